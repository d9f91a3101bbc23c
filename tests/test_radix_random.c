/*
 * Random operations on the prefix cache against a naive model that knows nothing of trees:
 * a heap of blocks, each with the whole prefix that it ends. The engine is simulated as
 * well: for every position of every block we keep whose KV is in it, carry out the copies
 * that are ordered, and spoil what becomes writable, so that a block that is used after it
 * was freed, or overwritten while somebody reads it, shows as a wrong prefix.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "radix/cache.h"
#include "tests/tap.h"

#ifndef STEPS
#define STEPS 100000
#endif
#define EPISODE 1000 /* steps with one cache */
#define LEN_MAX 96
#define BLOCKS_MAX 128
#define PATHS_MAX 8
#define SPACES 3
#define PAST 32 /* sequences that later ones may begin like */
#define EVER (1u << 20)

struct mblock {
	bool used, flushed;
	int space;
	uint32_t depth, end; /* holds positions [depth * B, end) */
	uint32_t tokens[LEN_MAX];
	uint64_t age;
	int pins;
	int writer; /* path, or -1 */
};

struct mpath {
	struct pfx_path *path;
	int space; /* -1: private */
	uint32_t tokens[LEN_MAX];
	uint32_t len, in_tree, n_blocks, n_tree;
	bool apart;
	pfx_block_t table[LEN_MAX];
	bool holds[BLOCKS_MAX];
};

static struct pfx_rng rng;
static struct pfx_cache *cache;
static struct pfx_space *spaces[SPACES];
static uint32_t B, n_blocks, n_marks, alphabet;
static struct mblock blocks[BLOCKS_MAX]; /* by block id */
static bool own[BLOCKS_MAX];             /* unpublished block of a path */
static struct mpath paths[PATHS_MAX];
static uint64_t kv[BLOCKS_MAX][256]; /* what prefix each position's KV belongs to */
static uint64_t model_clock, step, epoch;
static uint32_t past[PAST][LEN_MAX];
static uint64_t ever[EVER]; /* prefixes that were evicted, hashed */
static struct {
	uint64_t prefix;
	uint64_t evictions; /* evicted_marks when it was set */
} marks[64];
static uint64_t seed;
static int failures;
static bool failing; /* allocations do */

#define must(cond, ...) do { \
	if (!(cond)) { \
		if (failures++ < 20) { \
			printf("# step %llu, %s:%d: ", (unsigned long long)step, __FILE__, __LINE__); \
			printf(__VA_ARGS__); \
			printf("\n"); \
		} \
	} \
} while (0)

static uint32_t below(uint32_t n)
{
	return (uint32_t)pfx_rng_below(&rng, n);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t blocks_for(uint32_t n)
{
	return (n + B - 1) / B;
}

/* Names the prefix tokens[0..n) of a space as it is since the last flush. */
static uint64_t prefix_id(int space, const uint32_t *tokens, uint32_t n)
{
	uint64_t h = pfx_rng_mix(seed, (uint64_t)(space + 1));

	for (uint32_t i = 0; i < n; i++) {
		h = pfx_rng_mix(h, tokens[i]);
	}
	return h;
}

static void ever_add(uint64_t id)
{
	uint64_t i = id & (EVER - 1);

	while (ever[i] != 0 && ever[i] != id) {
		i = (i + 1) & (EVER - 1);
	}
	ever[i] = id;
}

static bool ever_has(uint64_t id)
{
	uint64_t i = id & (EVER - 1);

	while (ever[i] != 0 && ever[i] != id) {
		i = (i + 1) & (EVER - 1);
	}
	return ever[i] == id;
}

static bool starts_with(const struct mblock *m, const uint32_t *tokens, uint32_t n)
{
	return m->end >= n && memcmp(m->tokens, tokens, n * sizeof(*tokens)) == 0;
}

static bool held(const struct mblock *m, int space)
{
	return m->used && !m->flushed && m->space == space;
}

static uint32_t longest(int space, const uint32_t *tokens, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t b = 0; b < n_blocks; b++) {
		uint32_t l = 0;

		if (!held(&blocks[b], space)) {
			continue;
		}
		while (l < n && l < blocks[b].end && blocks[b].tokens[l] == tokens[l]) {
			l++;
		}
		best = l > best ? l : best;
	}
	return best;
}

/* Is there a block of the same place that has the same tokens and more? */
static bool redundant(const struct mblock *m)
{
	for (uint32_t b = 0; b < n_blocks; b++) {
		const struct mblock *o = &blocks[b];

		if (o != m && held(o, m->space) && o->depth == m->depth && o->end > m->end &&
			starts_with(o, m->tokens, m->end)) {
			return true;
		}
	}
	return false;
}

/* What nobody holds and nobody can match is free. */
static void sweep(void)
{
	for (uint32_t b = 0; b < n_blocks; b++) {
		struct mblock *m = &blocks[b];

		if (m->used && m->pins == 0 && (m->flushed || redundant(m))) {
			m->used = false;
		}
	}
}

static uint32_t count(bool cached)
{
	uint32_t n = 0;

	for (uint32_t b = 0; b < n_blocks; b++) {
		n += cached ? blocks[b].used && blocks[b].pins == 0 : !blocks[b].used && !own[b];
	}
	return n;
}

static bool has_child(const struct mblock *m)
{
	for (uint32_t b = 0; b < n_blocks; b++) {
		const struct mblock *o = &blocks[b];

		if (held(o, m->space) && o->depth == m->depth + 1 && m->end % B == 0 &&
			starts_with(o, m->tokens, m->end)) {
			return true;
		}
	}
	return false;
}

/* Leaf LRU, deepest first among equals. */
static void evict_one(void)
{
	struct mblock *victim = NULL;

	for (uint32_t b = 0; b < n_blocks; b++) {
		struct mblock *m = &blocks[b];

		if (!m->used || m->pins > 0 || has_child(m)) {
			continue;
		}
		if (victim == NULL || m->age < victim->age ||
			(m->age == victim->age && m->depth > victim->depth)) {
			victim = m;
		}
	}
	must(victim != NULL, "the model has nothing to evict");
	if (victim != NULL) {
		for (uint32_t i = victim->depth * B; i < victim->end; i++) {
			ever_add(prefix_id(victim->space, victim->tokens, i + 1) ^ epoch);
		}
		victim->used = false;
	}
}

/* The path now holds just these; what it lets go of gets one common age. */
static void set_pins(struct mpath *p, const bool *now)
{
	model_clock++;
	for (uint32_t b = 0; b < n_blocks; b++) {
		if (p->holds[b] && !now[b]) {
			if (blocks[b].writer == (int)(p - paths)) {
				blocks[b].writer = -1;
			}
			if (--blocks[b].pins == 0) {
				blocks[b].age = model_clock;
			}
		} else if (!p->holds[b] && now[b]) {
			blocks[b].pins++;
		}
		p->holds[b] = now[b];
	}
	sweep();
}

static void check_kv(const struct mpath *p)
{
	for (uint32_t i = 0; i < p->len; i++) {
		must(kv[p->table[i / B]][i % B] == prefix_id(p->space, p->tokens, i + 1),
			"block %u of a path has another's KV at position %u", p->table[i / B], i);
	}
}

static void check_table(struct mpath *p)
{
	uint32_t n;
	const pfx_block_t *table = pfx_path_blocks(p->path, &n);

	must(pfx_path_len(p->path) == p->len, "len %u, want %u", pfx_path_len(p->path), p->len);
	must(n == p->n_blocks, "%u blocks, want %u", n, p->n_blocks);
	for (uint32_t i = 0; i < n && i < p->n_blocks; i++) {
		must(table[i] == p->table[i], "table[%u] is %u, want %u", i, table[i], p->table[i]);
	}
	check_kv(p);
}

/*
 * The path's table over blocks [from, to) is now the tree's: any block will do that begins
 * with the tokens up to upto, and is not held only because another path does.
 */
static void learn(struct mpath *p, uint32_t from, uint32_t to, uint32_t upto, bool *now)
{
	uint32_t n;
	const pfx_block_t *table = pfx_path_blocks(p->path, &n);

	for (uint32_t i = from; i < to; i++) {
		uint32_t end = least(upto, (i + 1) * B);
		struct mblock *m;

		if (i >= n || table[i] >= n_blocks) {
			must(false, "no block %u in a table of %u", i, n);
			return;
		}
		m = &blocks[table[i]];
		must(held(m, p->space), "block %u is not in the tree", table[i]);
		must(m->depth == i, "block %u is of place %u, want %u", table[i], m->depth, i);
		must(starts_with(m, p->tokens, end), "block %u has other tokens", table[i]);
		must(!redundant(m), "block %u is held by paths alone", table[i]);
		if (i >= p->n_tree && i < p->n_blocks) {
			own[p->table[i]] = false;
		}
		p->table[i] = table[i];
		now[table[i]] = true;
	}
}

static void check_hit(int space, const uint32_t *tokens, uint32_t n, const struct pfx_hit *hit)
{
	uint32_t want = space < 0 ? 0 : longest(space, tokens, n);
	struct pfx_cache_stats s;
	bool on = false, found = false;
	uint64_t id = prefix_id(space, tokens, n) ^ epoch;

	pfx_cache_stats(cache, &s);
	must(hit->tokens == want, "matched %u, want %u of %u", hit->tokens, want, n);
	for (uint32_t b = 0; b < n_blocks; b++) {
		on |= held(&blocks[b], space) && blocks[b].end > want &&
			starts_with(&blocks[b], tokens, want);
	}
	must((hit->end == PFX_END_WHOLE) == (want == n), "whole or not");
	must(hit->end != PFX_END_DIVERGED || on, "diverged from nothing");
	must(hit->end != PFX_END_NEVER_SEEN || !on, "never seen, but something goes on");
	must(hit->end != PFX_END_EVICTED ||
		ever_has(prefix_id(space, tokens, want + 1) ^ epoch), "evicted, but never was");
	must(hit->mark == PFX_MARK_NONE || (hit->mark < n_marks && want == n &&
		marks[hit->mark].prefix == id), "the mark of another prefix");
	for (uint32_t i = 0; i < n_marks; i++) {
		found |= marks[i].prefix == id && marks[i].evictions == s.evicted_marks;
	}
	must(!found || hit->mark != PFX_MARK_NONE, "a mark of %u tokens got lost", n);
}

static uint32_t make_tokens(uint32_t *tokens)
{
	uint32_t n = 1 + below(LEN_MAX - 1);
	const uint32_t *like = past[below(PAST)];
	uint32_t same = below(3) == 0 ? 0 : below(n + 1);

	for (uint32_t i = 0; i < LEN_MAX; i++) {
		tokens[i] = i < same ? like[i] : below(alphabet);
	}
	if (below(4) == 0) {
		memcpy(past[below(PAST)], tokens, sizeof(past[0]));
	}
	return below(50) == 0 ? 0 : n;
}

static void do_match(void)
{
	uint32_t tokens[LEN_MAX];
	uint32_t n = make_tokens(tokens);
	int space = (int)below(SPACES);
	struct pfx_hit hit;

	pfx_cache_match(cache, spaces[space], tokens, n, &hit);
	check_hit(space, tokens, n, &hit);
}

static void do_open(struct mpath *p)
{
	bool now[BLOCKS_MAX] = { false };
	struct pfx_hit hit, before;
	uint32_t n;
	int rc;

	memset(p, 0, sizeof(*p));
	n = make_tokens(p->tokens);
	p->space = below(12) == 0 ? -1 : (int)below(SPACES);
	p->apart = p->space < 0;
	if (p->space >= 0) {
		pfx_cache_match(cache, spaces[p->space], p->tokens, n, &before);
	}
	rc = pfx_path_open(cache, p->space < 0 ? NULL : spaces[p->space], p->tokens, n, &hit,
		&p->path);
	if (rc < 0) {
		must(failing && rc == -ENOMEM, "open says %d", rc);
		p->path = NULL;
		return;
	}
	check_hit(p->space, p->tokens, n, &hit);
	must(p->space < 0 || memcmp(&hit, &before, sizeof(hit)) == 0, "open and match differ");
	p->len = p->in_tree = hit.tokens;
	if (p->space >= 0) {
		learn(p, 0, blocks_for(p->len), p->len, now);
		p->n_blocks = p->n_tree = blocks_for(p->len);
		set_pins(p, now);
	}
}

static void do_follow(struct mpath *p)
{
	uint32_t n = p->len + below(LEN_MAX - p->len + 1);
	int64_t rc = pfx_path_follow(p->path, p->tokens, n);
	bool now[BLOCKS_MAX];
	uint32_t want = p->len;

	if (rc < 0) {
		must(failing && rc == -ENOMEM, "follow says %d", (int)rc);
		return;
	}
	if (!p->apart && p->in_tree == p->len && p->n_tree == p->n_blocks) {
		want = longest(p->space, p->tokens, n);
		want = want > p->len ? want : p->len;
	}
	must(rc == want, "followed to %lld, want %u", (long long)rc, want);
	if (rc <= p->len) {
		return;
	}
	memset(now, 0, sizeof(now));
	for (uint32_t i = 0; i < p->in_tree / B; i++) {
		now[p->table[i]] = true;
	}
	learn(p, p->in_tree / B, blocks_for(want), want, now);
	p->len = p->in_tree = want;
	p->n_blocks = p->n_tree = blocks_for(want);
	set_pins(p, now);
}

/* The block that this path would have to write in next, if a node has it. */
static struct mblock *tail_block(const struct mpath *p)
{
	if (p->len % B == 0 || p->len / B >= p->n_tree) {
		return NULL;
	}
	return &blocks[p->table[p->len / B]];
}

static void do_reserve(struct mpath *p)
{
	uint32_t upto = p->len + below(least(LEN_MAX - p->len, 3 * B + 4) + 1);
	uint32_t want = blocks_for(upto) > p->n_blocks ? blocks_for(upto) : p->n_blocks;
	uint32_t need = want - p->n_blocks;
	struct mblock *tail = upto > p->len ? tail_block(p) : NULL;
	bool take = tail != NULL && tail->writer < 0 && tail->end == p->len;
	bool copy = tail != NULL && !take && tail->writer != (int)(p - paths);
	struct pfx_block_copy order;
	const pfx_block_t *table;
	uint32_t n;
	int rc = pfx_path_reserve(p->path, upto, &order);

	need += copy;
	if (rc < 0) {
		must((rc == -ENOMEM && failing) ||
			(rc == PFX_E_FULL && need > count(true) + count(false)), "reserve says %d", rc);
		must(order.n == 0, "a copy is ordered by a failed reserve");
		return;
	}
	must(need <= count(true) + count(false), "more was reserved than there is");
	must((order.n > 0) == copy, "copy %u, want %d", order.n, copy);
	while (count(false) < need) {
		evict_one();
	}
	table = pfx_path_blocks(p->path, &n);
	must(n == want, "%u blocks reserved, want %u", n, want);
	if (take) {
		tail->writer = (int)(p - paths);
	}
	if (copy && order.n > 0) {
		uint32_t at = p->len / B;

		must(order.src == p->table[at], "copy of another block");
		must(order.dst == table[at] && order.n == p->len % B, "copy to the wrong place");
		must(!own[order.dst] && !blocks[order.dst].used, "copy into a block in use");
		memcpy(kv[order.dst], kv[order.src], order.n * sizeof(kv[0][0]));
		own[order.dst] = true;
		p->table[at] = order.dst;
		p->n_tree = at;
	}
	for (uint32_t i = p->n_blocks; i < want && i < n; i++) {
		must(!own[table[i]] && !blocks[table[i]].used, "block %u is in use", table[i]);
		own[table[i]] = true;
		p->table[i] = table[i];
	}
	p->n_blocks = want;
	for (uint32_t i = p->len; i < upto; i++) {
		kv[p->table[i / B]][i % B] = pfx_rng_next(&rng);
	}
	/* How far it may write is all blocks that it has now. */
}

/* Up to where has this path the right to write? */
static uint32_t writable(const struct mpath *p)
{
	struct mblock *tail = tail_block(p);

	if (tail != NULL && tail->writer != (int)(p - paths)) {
		return p->len;
	}
	return least(p->n_blocks * B, LEN_MAX);
}

static void do_publish(struct mpath *p)
{
	uint32_t upto = p->len + below(writable(p) - p->len + 1);
	bool now[BLOCKS_MAX] = { false };
	uint32_t i, shared;
	int rc;

	for (i = p->len; i < upto; i++) {
		kv[p->table[i / B]][i % B] = prefix_id(p->space, p->tokens, i + 1);
	}
	rc = pfx_path_publish(p->path, p->tokens, upto);
	p->len = upto;
	if (rc < 0) {
		must(failing && rc == -ENOMEM, "publish says %d", rc);
		return;
	}
	if (p->apart) {
		return;
	}
	shared = longest(p->space, p->tokens, upto);
	must(shared >= p->in_tree, "what a path holds cannot be matched");
	for (i = 0; i < p->in_tree / B; i++) {
		now[p->table[i]] = true;
	}
	shared = shared == upto ? blocks_for(upto) : shared / B;
	learn(p, i, shared, upto, now);
	for (i = shared > i ? shared : i; i < blocks_for(upto); i++) {
		struct mblock *m = &blocks[p->table[i]];
		bool extends = i < p->n_tree;

		if (!extends) {
			must(own[p->table[i]], "block %u is not the path's own", p->table[i]);
			own[p->table[i]] = false;
			*m = (struct mblock){ .used = true, .space = p->space, .depth = i };
		}
		m->end = least(upto, (i + 1) * B);
		memcpy(m->tokens, p->tokens, m->end * sizeof(m->tokens[0]));
		m->writer = m->end % B != 0 ? (int)(p - paths) : -1;
		now[p->table[i]] = true;
	}
	p->in_tree = upto;
	p->n_tree = blocks_for(upto);
	set_pins(p, now);
}

static void do_mark(struct mpath *p)
{
	uint32_t slot = pfx_path_mark(p->path);
	uint64_t id = prefix_id(p->space, p->tokens, p->len) ^ epoch;
	struct pfx_cache_stats s;

	if (p->apart || p->len == 0 || p->in_tree < p->len || n_marks == 0) {
		must(slot == PFX_MARK_NONE, "a mark for what is not in the tree");
		return;
	}
	must(slot < n_marks, "no mark");
	if (slot >= n_marks) {
		return;
	}
	pfx_cache_stats(cache, &s);
	for (uint32_t i = 0; i < n_marks; i++) {
		must(i == slot || marks[i].prefix != id || marks[i].evictions < s.evicted_marks,
			"a second mark at one place");
	}
	if (marks[slot].prefix != id) {
		must(marks[slot].prefix == 0 || marks[slot].evictions < s.evicted_marks,
			"slot %u is taken", slot);
	}
	/* Those that have not seen a mark die since they were set are all alive. */
	marks[slot].prefix = id;
	marks[slot].evictions = s.evicted_marks;
}

static void do_close(struct mpath *p)
{
	bool now[BLOCKS_MAX] = { false };

	for (uint32_t i = p->n_tree; i < p->n_blocks; i++) {
		own[p->table[i]] = false;
	}
	pfx_path_close(p->path);
	set_pins(p, now);
	p->path = NULL;
}

static uint32_t in_use(int space)
{
	uint32_t n = 0;

	for (uint32_t b = 0; b < n_blocks; b++) {
		n += blocks[b].used && blocks[b].pins > 0 && (space < 0 || blocks[b].space == space);
	}
	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL && (space < 0 || paths[i].space == space)) {
			n += paths[i].n_blocks - paths[i].n_tree;
		}
	}
	return n;
}

static void do_flush(void)
{
	int space = (int)below(SPACES + 1) - 1;
	uint32_t freed = 0, want = in_use(space);
	struct pfx_flushed got;

	pfx_cache_flush(cache, space < 0 ? NULL : spaces[space], PFX_TIER_ALL, &got);
	for (uint32_t b = 0; b < n_blocks; b++) {
		if (blocks[b].used && (space < 0 || blocks[b].space == space)) {
			freed += blocks[b].pins == 0;
			blocks[b].flushed = true;
		}
	}
	for (int i = 0; i < PATHS_MAX; i++) {
		paths[i].apart |= space < 0 || paths[i].space == space;
	}
	sweep();
	must(got.blocks[0] == freed, "flush freed %u, want %u", got.blocks[0], freed);
	must(got.in_use == want, "flush left %u in use, want %u", got.in_use, want);
	/* Nothing of before may be remembered in that space; the other spaces lose little. */
	epoch = pfx_rng_next(&rng);
	for (uint32_t i = 0; i < n_marks; i++) {
		marks[i].evictions = 0;
	}
	if (space >= 0) {
		struct pfx_flushed all;

		pfx_cache_flush(cache, NULL, PFX_TIER_ALL, &all);
		for (uint32_t b = 0; b < n_blocks; b++) {
			blocks[b].flushed |= blocks[b].used;
		}
		for (int i = 0; i < PATHS_MAX; i++) {
			paths[i].apart = true;
		}
		sweep();
	}
}

static void report(void *arg, const char *text)
{
	(void)arg;
	must(false, "check: %s", text);
}

static void check_all(void)
{
	struct pfx_cache_stats s;
	uint32_t cached = count(true), unused = count(false), pinned = 0;

	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL) {
			check_table(&paths[i]);
		}
	}
	for (uint32_t b = 0; b < n_blocks; b++) {
		pinned += blocks[b].used && blocks[b].pins > 0 && !blocks[b].flushed &&
			!redundant(&blocks[b]);
	}
	pfx_cache_stats(cache, &s);
	must(s.tier[0].blocks == n_blocks, "blocks");
	must(s.tier[0].free == unused, "%u free, want %u", s.tier[0].free, unused);
	must(s.tier[0].cached == cached, "%u cached, want %u", s.tier[0].cached, cached);
	must(s.tier[0].running == n_blocks - cached - unused, "%u running, want %u", s.tier[0].running,
		n_blocks - cached - unused);
	must(s.tier[0].pinned == pinned, "%u pinned, want %u", s.tier[0].pinned, pinned);
	pfx_cache_check(cache, report, NULL);
}

static void one_step(void)
{
	struct mpath *p = &paths[below(PATHS_MAX)];
	uint32_t what = below(100);

	if (failing) {
		pfx_alloc_fail(pfx_rng_next(&rng), 4);
	}
	if (what < 8) {
		do_match();
	} else if (what == 8 && below(6) == 0) {
		do_flush();
	} else if (p->path == NULL) {
		do_open(p);
	} else if (what < 15) {
		do_close(p);
	} else if (what == 15 && below(4) == 0) {
		pfx_path_keep_private(p->path);
		p->apart = true;
	} else if (what < 25) {
		do_follow(p);
	} else if (what < 55) {
		do_reserve(p);
	} else if (what < 92) {
		do_publish(p);
	} else {
		do_mark(p);
	}
	pfx_alloc_fail(0, 0);
	check_all();
}

static void open_cache(void)
{
	static const uint32_t sizes[] = { 1, 2, 4, 16, 32 };
	struct pfx_cache_opts opts;

	B = sizes[below(5)];
	n_blocks = 1 + below(below(2) == 0 ? 12 : least(BLOCKS_MAX, 8 + 256 / B));
	n_marks = below(8) == 0 ? 0 : 1 + below(12);
	alphabet = 1 + below(3);
	opts = (struct pfx_cache_opts){ .block_tokens = B, .n_blocks = n_blocks, .n_marks = n_marks };
	must(pfx_cache_open(&cache, &opts) == 0, "open");
	for (int i = 0; i < SPACES; i++) {
		must(pfx_cache_space(cache, "abc", (size_t)i, &spaces[i]) == 0, "space");
	}
	memset(blocks, 0, sizeof(blocks));
	memset(own, 0, sizeof(own));
	memset(paths, 0, sizeof(paths));
	memset(marks, 0, sizeof(marks));
	memset(ever, 0, sizeof(ever));
	epoch = 0;
}

static void close_cache(void)
{
	struct pfx_cache_stats s;

	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL) {
			do_close(&paths[i]);
		}
	}
	check_all();
	pfx_cache_stats(cache, &s);
	must(s.tier[0].running == 0 && s.tier[0].pinned == 0, "idle, but %u running, %u pinned", s.tier[0].running, s.tier[0].pinned);
	must(s.tier[0].free + s.tier[0].cached == s.tier[0].blocks, "idle: the blocks do not add up");
	pfx_cache_close(cache);
}

static void run(uint64_t steps, const char *name)
{
	uint64_t live = pfx_alloc_live();
	int before = failures;

	step = 0;
	while (step < steps && failures == before) {
		open_cache();
		for (int i = 0; i < EPISODE && step < steps && failures == before; i++, step++) {
			one_step();
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
	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : pfx_rng_entropy();
	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	run(STEPS, "against the model");
	failing = true;
	run(STEPS / 2, "with allocations that fail");
	return tap_done();
}
