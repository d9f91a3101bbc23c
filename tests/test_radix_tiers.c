/*
 * Random operations on a cache with all tiers on, in a world where each copy is late, may fail,
 * and may find that nobody wants it any more. After every step the cache checks itself, and
 * whatever a path is given must hold the KV of its own prefix, wherever it has been meanwhile.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "tests/radix_world.h"
#include "tests/tap.h"

#ifndef STEPS
#define STEPS 60000
#endif
#define EPISODE 1500
#define LEN_MAX 96
#define PATHS_MAX 8
#define SPACES 2
#define PAST 24

struct held {
	struct pfx_path *path;
	int space;
	uint32_t tokens[LEN_MAX];
	uint32_t n;
	uint32_t fetching; /* copies on their way for it */
	uint32_t fetch_to; /* published up to there once they have arrived */
	bool fetch_failed;
	uint32_t fetch_block; /* the one that failed */
	bool lease;
};

static struct pfx_space *spaces[SPACES];
static struct held paths[PATHS_MAX];
static uint64_t generation[PATHS_MAX]; /* so that a copy knows whether its path is there still */
static uint32_t past[PAST][LEN_MAX];
static uint32_t B, alphabet;
static uint64_t seed, step, now, seen[16];
static int failures;

#define must(cond, ...) do { \
	if (!(cond) && failures++ < 20) { \
		printf("# step %llu, line %d: ", (unsigned long long)step, __LINE__); \
		printf(__VA_ARGS__); \
		printf("\n"); \
	} \
} while (0)

/* Names the prefix tokens[0..n) of a space. */
static uint64_t prefix_id(int space, const uint32_t *tokens, uint32_t n)
{
	uint64_t h = pfx_rng_mix(seed, (uint64_t)(space + 1));

	for (uint32_t i = 0; i < n; i++) {
		h = pfx_rng_mix(h, tokens[i]);
	}
	return h;
}

static void report(void *arg, const char *text)
{
	(void)arg;
	must(false, "check: %s", text);
}

static void make_tokens(struct held *h)
{
	const uint32_t *like = past[below(PAST)];
	uint32_t same;

	h->n = 1 + below(LEN_MAX - 1);
	same = below(3) == 0 ? 0 : below(h->n + 1);
	for (uint32_t i = 0; i < LEN_MAX; i++) {
		h->tokens[i] = i < same ? like[i] : below(alphabet);
	}
	if (below(4) == 0) {
		memcpy(past[below(PAST)], h->tokens, sizeof(past[0]));
	}
}

/* Block i of a path, its first tokens up to position `to`, holds what it should. */
static void check_kv(const struct held *h, pfx_block_t block, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		must(kv[PFX_TIER_DEVICE][block][i % B] == prefix_id(h->space, h->tokens, i + 1),
			"block %u has another's KV at position %u", block, i);
	}
}

static void check_path(const struct held *h)
{
	uint32_t n, len = pfx_path_len(h->path);
	const pfx_block_t *table = pfx_path_blocks(h->path, &n);

	must(len <= n * B, "a path of %u tokens has %u blocks", len, n);
	must(pfx_path_reach(h->path) >= len, "reach is before len");
	for (uint32_t i = 0; i < len; i += B) {
		check_kv(h, table[i / B], i, i + B < len ? i + B : len);
	}
}

static void do_open(struct held *h)
{
	struct pfx_hit hit, before;

	memset(h, 0, sizeof(*h));
	make_tokens(h);
	h->space = (int)below(SPACES);
	pfx_cache_match(cache, spaces[h->space], h->tokens, h->n, &before);
	if (pfx_path_open(cache, spaces[h->space], h->tokens, h->n, &hit, &h->path) < 0) {
		h->path = NULL;
		return;
	}
	must(memcmp(&hit, &before, sizeof(hit)) == 0, "open and match differ");
	must(hit.tier_tokens[0] + hit.tier_tokens[1] + hit.tier_tokens[2] == hit.tokens,
		"the tiers do not add up");
	must(pfx_path_len(h->path) == hit.tier_tokens[0], "len is not what is on the device");
	must(pfx_path_reach(h->path) == hit.tokens, "reach is not what was matched");
	for (int t = 0; t < PFX_TIERS; t++) {
		seen[t] += hit.tier_tokens[t] > 0;
	}
}

static void carry_out(const struct pfx_block_copy *copy)
{
	if (copy->n > 0) {
		memcpy(kv[0][copy->dst], kv[0][copy->src], copy->n * sizeof(kv[0][0][0]));
	}
}

/* Brings in some of what is in slower tiers. */
static void do_fetch(struct held *h)
{
	uint32_t len = pfx_path_len(h->path), reach = pfx_path_reach(h->path);
	struct pfx_block_copy copy;
	uint32_t to, n;
	const pfx_block_t *table;

	if (h->fetching > 0 || reach == len || h->fetch_to > 0) {
		return;
	}
	to = len + 1 + below(reach - len);
	if (pfx_path_reserve(h->path, to, &copy) != 0) {
		return;
	}
	/* Somebody may have brought here, and own, the rest of the block in which it ends. */
	carry_out(&copy);
	for (uint32_t i = len / B; i * B < to; i++) {
		struct pfx_source s;
		int rc = pfx_path_source(h->path, i, &s);

		if (rc < 0) {
			seen[3]++;
			to = i * B > len ? i * B : len;
			break;
		}
		must(memcmp(s.tokens, h->tokens + i * B, s.n_tokens * sizeof(*s.tokens)) == 0,
			"the source has other tokens");
		must(s.tier != PFX_TIER_DISK || written[s.id] == s.record_tokens,
			"record %u has %u tokens, not %u", s.id, written[s.id], s.record_tokens);
		if (s.tier == PFX_TIER_DEVICE) {
			to = i * B > len ? i * B : len;
			break;
		}
		table = pfx_path_blocks(h->path, &n);
		if (!world_fetch(s.tier, s.id, table[i], generation[h - paths] << 16 |
				(uint64_t)(h - paths) << 8 | i)) {
			to = i * B > len ? i * B : len;
			break;
		}
		h->fetching++;
		seen[4 + s.tier]++;
	}
	h->fetch_to = to;
	h->fetch_failed = false;
	if (to == len) {
		h->fetch_to = 0;
		if (below(2)) {
			pfx_path_forgo(h->path);
		}
	}
}

static void arrived(uint64_t token, bool ok)
{
	uint32_t p = token >> 8 & 0xff, i = token & 0xff;
	struct held *h = &paths[p];

	if (generation[p] != token >> 16) {
		return;
	}
	h->fetching--;
	if (!ok) {
		h->fetch_block = h->fetch_failed && h->fetch_block < i ? h->fetch_block : i;
		h->fetch_failed = true;
	}
}

/* All copies for it have arrived. */
static void fetched(struct held *h)
{
	uint32_t to = h->fetch_to;

	h->fetch_to = 0;
	if (h->fetch_failed) {
		to = h->fetch_block * B;
		if (below(2)) {
			pfx_path_lost(h->path, h->fetch_block);
			seen[7]++;
		}
	}
	if (to > pfx_path_len(h->path)) {
		pfx_path_publish(h->path, h->tokens, to);
	}
}

/* Computes a few tokens, in place of fetching them or behind. */
static void do_compute(struct held *h)
{
	uint32_t len = pfx_path_len(h->path), to, n;
	struct pfx_block_copy copy;
	const pfx_block_t *table;
	int rc;

	if (h->fetching > 0 || h->fetch_to > 0 || len == LEN_MAX) {
		return;
	}
	to = len + 1 + below(LEN_MAX - len < 3 * B ? LEN_MAX - len : 3 * B);
	rc = pfx_path_reserve(h->path, to, &copy);
	if (rc != 0) {
		seen[8] += rc == -EAGAIN;
		must(rc == -EAGAIN || rc == PFX_E_FULL || rc == -ENOMEM, "reserve says %d", rc);
		return;
	}
	carry_out(&copy);
	table = pfx_path_blocks(h->path, &n);
	for (uint32_t i = len; i < to; i++) {
		kv[0][table[i / B]][i % B] = prefix_id(h->space, h->tokens, i + 1);
	}
	rc = pfx_path_publish(h->path, h->tokens, to);
	must(rc == 0 || rc == -ENOMEM, "publish says %d", rc);
}

static void do_close(struct held *h)
{
	if (below(4) == 0) {
		pfx_path_last_turn(h->path);
	}
	if (below(4) == 0) {
		pfx_path_keep_until(h->path, now + below(2000));
	}
	pfx_path_close(h->path);
	generation[h - paths]++;
	h->path = NULL;
}

static void do_lease(struct held *h)
{
	int rc;

	if (h->fetching > 0 || h->lease) {
		return;
	}
	rc = pfx_path_lease(h->path);
	must(rc == 0 || rc == PFX_E_LIMIT || rc == -ENOENT || rc == -ENOMEM, "lease says %d", rc);
	h->lease = rc == 0;
	seen[9] += rc == 0;
}

static void do_save(void)
{
	struct pfx_save_order o;

	if (!pfx_cache_next_save(cache, &o)) {
		return;
	}
	must(n_saves < PFX_SAVES_MAX, "too many orders to save");
	must(o.parent_record == PFX_BLOCK_NONE ? o.pos == 0 : o.pos > 0, "no parent");
	saves[n_saves++] = (struct world_save){ .order = o };
	seen[10]++;
}

static void do_world(void)
{
	uint32_t record;

	switch (below(8)) {
	case 0:
	case 1:
		if (n_copies > 0) {
			world_copy_end(below(n_copies));
		}
		break;
	case 2:
	case 3:
		do_save();
		break;
	case 4:
		if (n_saves > 0) {
			world_save_copy(&saves[below(n_saves)]);
		}
		break;
	case 5:
		if (n_saves > 0) {
			world_save_end(below(n_saves));
		}
		break;
	case 6:
		if (n_deletes < WORLD_BLOCKS && pfx_cache_next_delete(cache, &record)) {
			deletes[n_deletes++] = record;
		}
		break;
	default:
		if (n_deletes > 0) {
			world_delete_end(below(n_deletes));
		}
		break;
	}
}

static void do_admin(void)
{
	struct held any = { 0 };
	struct pfx_flushed flushed;
	int space = (int)below(SPACES);
	struct pfx_space *which = below(2) ? spaces[space] : NULL;

	make_tokens(&any);
	switch (below(40)) {
	case 0:
		pfx_cache_flush(cache, which, PFX_TIER_ALL, &flushed);
		seen[11]++;
		break;
	case 1:
	case 2:
		pfx_cache_flush(cache, which, 1 + below(PFX_TIER_ALL), &flushed);
		break;
	case 3:
		pfx_cache_press(cache, below(32));
		break;
	case 4:
	case 5:
	case 6:
		pfx_cache_evict(cache, below(PFX_TIERS), which, 1 + below(6));
		break;
	case 7:
		pfx_cache_want_saved(cache, which);
		break;
	default:
		if (below(2)) {
			pfx_cache_touch(cache, spaces[space], any.tokens, any.n);
		} else {
			pfx_cache_end(cache, spaces[space], any.tokens, any.n);
		}
	}
}

static void one_step(bool failing)
{
	struct held *h = &paths[below(PATHS_MAX)];
	uint32_t what = below(100);

	if (failing) {
		pfx_alloc_fail(pfx_rng_next(&rng), 4);
	}
	if (below(3) == 0) {
		now += below(500);
		pfx_cache_now(cache, now);
	}
	if (what < 30) {
		do_world();
	} else if (what < 36) {
		do_admin();
	} else if (what < 40) {
		world_take_spills();
	} else if (h->path == NULL) {
		do_open(h);
	} else if (h->fetch_to > 0 && h->fetching == 0) {
		fetched(h);
	} else if (what < 52) {
		do_close(h);
	} else if (h->lease) {
		/* It does no more. */
	} else if (what < 54) {
		do_lease(h);
	} else if (what < 58 && h->fetching == 0) {
		int64_t len = pfx_path_follow(h->path, h->tokens, h->n);

		must(len >= 0 || failing, "follow says %d", (int)len);
	} else if (what < 60 && below(h->path->in_tree > h->path->n_tree * B ? 1 : 16) == 0) {
		/* Any that ends inside a block of the tree's with a copy of its own, and few others. */
		pfx_path_keep_private(h->path);
	} else if (what < 60) {
		pfx_path_forgo(h->path);
	} else if (what < 78) {
		do_fetch(h);
	} else {
		do_compute(h);
	}
	pfx_alloc_fail(0, 0);
	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL) {
			check_path(&paths[i]);
		}
	}
	pfx_cache_check(cache, report, NULL);
}

static void open_cache(void)
{
	static const uint32_t sizes[] = { 1, 2, 4, 8, 16 };
	struct pfx_cache_opts opts;

	B = sizes[below(5)];
	alphabet = 1 + below(3);
	opts = (struct pfx_cache_opts){
		.block_tokens = B,
		.n_blocks = 2 + below(8 + 128 / B),
		.n_host = below(4) == 0 ? 0 : 1 + below(4 + 96 / B),
		.n_disk = below(4) == 0 ? 0 : 1 + below(8 + 96 / B),
		.n_marks = below(8),
		.save = (enum pfx_save)below(3),
		.policy = (enum pfx_policy)below(3),
	};
	must(pfx_cache_open(&cache, &opts) == 0, "open");
	cache->seed = seed; /* so that a run can be repeated */
	for (int i = 0; i < SPACES; i++) {
		must(pfx_cache_space(cache, "abc", (size_t)i, &spaces[i]) == 0, "space");
	}
	fail_in = below(2) ? 6 : 0;
	now = 0;
	world_reset();
	memset(paths, 0, sizeof(paths));
}

/* ---- the disk's state in another cache ---- */

static uint32_t renumbered[WORLD_BLOCKS]; /* by old record: the new one */
static uint32_t n_restored, n_short;

/* All rows of a node, as the store's index would have them. */
static void restore_node(struct pfx_restore *r, struct pfx_space *space, const struct pfx_node *x)
{
	uint32_t shift = cache->shift;

	for (uint32_t i = 0; i < pfx_node_n_records(x, shift); i++) {
		uint32_t record = pfx_node_records(x, shift)[i], n = x->saved - i * B;
		const struct pfx_node *p = x->parent;
		uint32_t above = PFX_BLOCK_NONE;
		int rc;

		if (i > 0) {
			above = pfx_node_records(x, shift)[i - 1];
		} else if (p->n > 0) {
			above = pfx_node_records(p, shift)[pfx_node_n_blocks(p, shift) - 1];
		}
		n = n < B ? n : B;
		must(written[record] == n, "record %u has %u tokens, the tree says %u", record,
			written[record], n);
		rc = pfx_restore_add(r, space, above == PFX_BLOCK_NONE ? above : renumbered[above],
			x->run + i * B, n, x->used_ns, &renumbered[record]);
		/* A block that is saved in part may be a beginning of another: of that row, then. */
		n_short += n < B;
		must(rc == 0 || (rc == -EEXIST && n < B), "a row is refused: %d", rc);
		if (rc != 0) {
			continue;
		}
		must(pfx_restore_add(r, space, above == PFX_BLOCK_NONE ? above : renumbered[above],
			x->run + i * B, n, 0, &record) == (n_restored + 1 == cache->tier[2].pool.n ?
			PFX_E_FULL : -EEXIST), "a row is taken twice");
		n_restored++;
	}
}

/* What of x is on disk is found on disk in the other cache, and ends there. */
static void find_node(struct pfx_cache *other, struct pfx_space *space, const struct pfx_node *x)
{
	uint32_t tokens[LEN_MAX + 1], n = x->start + x->saved;
	struct pfx_hit hit;

	if (x->saved == 0) {
		return;
	}
	for (const struct pfx_node *p = x; p->n > 0; p = p->parent) {
		memcpy(tokens + p->start, p->run, (p == x ? x->saved : p->n) * sizeof(*tokens));
	}
	pfx_cache_match(other, space, tokens, n, &hit);
	must(hit.tokens == n && hit.tier_tokens[PFX_TIER_DISK] == n, "%u of %u saved tokens are found",
		hit.tokens, n);
	if (x->saved < x->n || x->kids_in[PFX_TIER_DISK] == 0) {
		struct pfx_hit longer;
		struct pfx_path *path;
		struct pfx_source source;

		tokens[n] = 1000;
		pfx_cache_match(other, space, tokens, n + 1, &longer);
		must(longer.tokens == n, "more is found than was saved");
		must(pfx_path_open(other, space, tokens, n, NULL, &path) == 0, "open");
		must(pfx_path_source(path, (n - 1) / B, &source) == 0 && (x->saved % B != 0 ||
			source.id == renumbered[pfx_node_records(x, cache->shift)[(x->saved - 1) / B]]),
			"another record is the source");
		pfx_path_close(path);
	}
}

static void restore(void)
{
	struct pfx_cache_opts opts = {
		.block_tokens = B, .n_blocks = 4, .n_disk = cache->tier[PFX_TIER_DISK].pool.n,
	};
	struct pfx_space *space[SPACES];
	struct pfx_cache *other;
	struct pfx_restore *r;
	struct pfx_cache_stats s;

	if (opts.n_disk == 0) {
		return;
	}
	must(pfx_cache_open(&other, &opts) == 0 && pfx_restore_begin(other, &r) == 0, "begin");
	n_restored = n_short = 0;
	for (int i = 0; i < SPACES; i++) {
		must(pfx_cache_space(other, "abc", (size_t)i, &space[i]) == 0, "space");
		for (struct pfx_node *x = pfx_tree_next(&spaces[i]->root); x != NULL;
			x = pfx_tree_next(x)) {
			restore_node(r, space[i], x);
		}
	}
	pfx_restore_end(r);
	pfx_cache_check(other, report, NULL);
	pfx_cache_stats(other, &s);
	must(s.tier[PFX_TIER_DISK].cached <= n_restored &&
		s.tier[PFX_TIER_DISK].cached + n_short >= n_restored, "%u of %u rows are there",
		s.tier[PFX_TIER_DISK].cached, n_restored);
	seen[12] += n_restored;
	for (int i = 0; i < SPACES; i++) {
		for (struct pfx_node *x = pfx_tree_next(&spaces[i]->root); x != NULL;
			x = pfx_tree_next(x)) {
			find_node(other, space[i], x);
		}
	}
	pfx_cache_check(other, report, NULL);
	must(pfx_cache_evict(other, PFX_TIER_DISK, NULL, UINT32_MAX) ==
		s.tier[PFX_TIER_DISK].cached, "all can be evicted");
	pfx_cache_check(other, report, NULL);
	pfx_cache_close(other);
}

static void close_cache(void)
{
	struct pfx_cache_stats s;

	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL) {
			do_close(&paths[i]);
		}
	}
	world_settle();
	pfx_cache_check(cache, report, NULL);
	pfx_cache_stats(cache, &s);
	for (int t = 0; t < PFX_TIERS; t++) {
		must(s.tier[t].running == 0 && s.tier[t].leased == 0 && s.tier[t].moving == 0,
			"idle: %u running, %u moving in tier %d", s.tier[t].running, s.tier[t].moving, t);
	}
	restore();
	pfx_cache_close(cache);
}

static void run(uint64_t steps, bool failing, const char *name)
{
	uint64_t live = pfx_alloc_live();
	int before = failures;

	step = 0;
	while (step < steps && failures == before) {
		open_cache();
		for (int i = 0; i < EPISODE && step < steps && failures == before; i++, step++) {
			one_step(failing);
		}
		if (failures == before) {
			close_cache();
		}
	}
	ok(failures == before, "%llu steps %s, seed %llu", (unsigned long long)step, name,
		(unsigned long long)seed);
	if (failures == before) {
		is_int(pfx_alloc_live(), live, "all memory is given back");
	}
}

int main(int argc, char **argv)
{
	static const char *const what[] = { "hits on the device", "hits in host memory", "hits on disk",
		"sources that are gone", "", "fetches", "loads", "sources lost", "waits for copies",
		"leases", "saves", "flushes", "rows restored" };

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : pfx_rng_entropy();
	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	world_arrived = arrived;
	run(STEPS, false, "in all tiers");
	run(STEPS / 2, true, "with allocations that fail");
	for (int i = 0; i < 13; i++) {
		if (what[i][0] != '\0') {
			ok(seen[i] > 0, "%llu %s", (unsigned long long)seen[i], what[i]);
		}
	}
	return tap_done();
}
