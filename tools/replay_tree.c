/*
 * The real tree under a trace. A block of the trace is one of one token, named by its number;
 * numbers of different prefixes, and so of different namespaces, are different, so that one
 * space holds them all.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "tools/replay_priv.h"

#define CHECK_EVERY 64u /* requests */

struct tree {
	int serves; /* room is made before a request, and is all that there is */
	struct pfx_cache *cache;
	struct pfx_space *space;
	struct pfx_path **open; /* at_once - 1 of them: those that began before, a ring */
	uint32_t n_ring, oldest;
};

int pfx_run_tree_open(struct pfx_run *run)
{
	const struct pfx_trace *t = run->trace;
	struct pfx_cache_opts opts = {
		.block_tokens = 1, .policy = run->opts.policy, .save = run->opts.save,
		.n_host = run->opts.host, .n_disk = run->opts.disk,
	};
	struct tree *tree = run->state = pfx_calloc(1, sizeof(*tree));
	uint64_t pool = run->opts.capacity;
	int rc;

	if (tree == NULL) {
		return -ENOMEM;
	}
	tree->serves = run->opts.at_once > 1 || opts.n_host > 0 || opts.n_disk > 0;
	if (run->opts.at_once > 1) {
		tree->n_ring = run->opts.at_once - 1;
		tree->open = pfx_calloc(tree->n_ring, sizeof(struct pfx_path *));
		if (tree->open == NULL) {
			return -ENOMEM;
		}
	}
	pool += tree->serves ? 0 : t->n_blocks_max;
	/* With more room than there are blocks nothing changes any more. */
	pool = pool < t->n_distinct ? pool : t->n_distinct;
	opts.n_blocks = pool > 0 ? (uint32_t)pool : 1;
	opts.n_host = opts.n_host < t->n_distinct ? opts.n_host : t->n_distinct;
	opts.n_disk = opts.n_disk < t->n_distinct ? opts.n_disk : t->n_distinct;
	rc = pfx_cache_open(&tree->cache, &opts);
	return rc < 0 ? rc : pfx_cache_space(tree->cache, "", 0, &tree->space);
}

void pfx_run_tree_close(struct pfx_run *run)
{
	struct tree *tree = run->state;

	if (tree == NULL) {
		return;
	}
	for (uint32_t k = 0; tree->open != NULL && k < tree->n_ring; k++) {
		pfx_path_close(tree->open[k]);
	}
	pfx_space_release(tree->space);
	pfx_cache_close(tree->cache);
	pfx_free(tree->open);
	pfx_free(tree);
}

/*
 * Orders of copies are carried out at once, all of them: a full disk has room for more only when
 * the records that were given up for the first have been deleted.
 */
static void carry_out(struct pfx_run *run, struct tree *tree)
{
	struct pfx_save_order save;
	struct pfx_spill spill;
	uint32_t record;
	int deleted;

	while (pfx_cache_next_spill(tree->cache, &spill)) {
		pfx_cache_spilled(tree->cache, &spill, 1);
		run->result.spilled++;
	}
	do {
		while (pfx_cache_next_save(tree->cache, &save)) {
			pfx_cache_save_copied(tree->cache, save.record);
			pfx_cache_saved(tree->cache, save.record, 0);
			run->result.saved++;
		}
		deleted = 0;
		while (pfx_cache_next_delete(tree->cache, &record)) {
			pfx_cache_deleted(tree->cache, record);
			deleted = 1;
		}
	} while (deleted);
}

static void close_oldest(struct tree *tree)
{
	pfx_path_close(tree->open[tree->oldest]);
	tree->open[tree->oldest] = NULL;
	tree->oldest = (tree->oldest + 1) % tree->n_ring;
}

/* Room for n blocks, made by letting others go if need be. */
static int reserve(struct pfx_run *run, struct tree *tree, struct pfx_path *path, uint32_t n)
{
	struct pfx_block_copy copy;
	uint32_t closed = 0;
	int rc = pfx_path_reserve(path, n, &copy);

	while (rc == -EAGAIN || (rc == PFX_E_FULL && closed < tree->n_ring)) {
		if (rc == PFX_E_FULL) {
			close_oldest(tree);
			closed++;
		}
		carry_out(run, tree);
		rc = pfx_path_reserve(path, n, &copy);
	}
	return rc;
}

static void count_hit(struct pfx_run *run, const struct pfx_hit *hit)
{
	run->result.hits += hit->tokens;
	for (int t = 0; t < PFX_TIERS; t++) {
		run->result.tier[t] += hit->tier_tokens[t];
	}
}

/*
 * What lies in a slower tier is fetched into blocks of the path and published with what is
 * computed: to the tree that is the same.
 */
static int run_request(struct pfx_run *run, struct tree *tree, uint32_t i)
{
	const struct pfx_trace *t = run->trace;
	const uint32_t *tokens = t->blocks + t->first[i];
	uint32_t n = pfx_trace_n_blocks(t, i);
	struct pfx_path *path;
	struct pfx_hit hit;
	int rc = pfx_path_open(tree->cache, tree->space, tokens, n, &hit, &path);

	if (rc < 0) {
		return rc;
	}
	pfx_path_reply(path, t->rows[i].reply);
	pfx_path_session(path, t->rows[i].conversation);
	if (t->rows[i].last_turn) {
		pfx_path_last_turn(path);
	}
	rc = reserve(run, tree, path, n);
	if (rc == 0) {
		count_hit(run, &hit);
		rc = pfx_path_publish(path, tokens, n);
	} else if (rc == PFX_E_FULL) {
		run->result.refused++;
		rc = 0;
	}
	if (tree->n_ring == 0) {
		pfx_path_close(path);
	} else {
		close_oldest(tree);
		tree->open[(tree->oldest + tree->n_ring - 1) % tree->n_ring] = path;
	}
	carry_out(run, tree);
	return rc;
}

/* What waits is made young, the next request's blocks most of all. */
static void look_ahead(struct pfx_run *run, struct tree *tree, uint32_t i)
{
	const struct pfx_trace *t = run->trace;
	uint32_t rest = t->n_requests - 1 - i;

	for (uint32_t k = run->opts.ahead < rest ? run->opts.ahead : rest; k > 0; k--) {
		pfx_cache_touch(tree->cache, tree->space, t->blocks + t->first[i + k],
			pfx_trace_n_blocks(t, i + k));
	}
}

int pfx_run_tree_step(struct pfx_run *run, uint32_t i)
{
	struct tree *tree = run->state;
	int rc = run_request(run, tree, i);

	look_ahead(run, tree, i);
	if (!tree->serves) {
		pfx_cache_press(tree->cache, run->opts.capacity);
	}
	if (rc == 0 && run->opts.check && i % CHECK_EVERY == 0 &&
		pfx_cache_check(tree->cache, NULL, NULL) != 0) {
		rc = PFX_E_FORMAT;
	}
	return rc;
}
