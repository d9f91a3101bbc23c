#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "radix/check.h"

/*
 * Everything that the counters, lists and pins claim is worked out again from the trees and
 * the open paths, and compared. Iterative; needs memory for one word a block and two a path.
 */

void pfx_check_problem(struct pfx_check *c, const char *fmt, ...)
{
	char text[160];
	va_list ap;

	c->problems++;
	if (c->report == NULL) {
		return;
	}
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	c->report(c->arg, text);
}

void pfx_check_equal(struct pfx_check *c, const char *what, uint64_t has, uint64_t right)
{
	if (has != right) {
		pfx_check_problem(c, "%s: %llu where %llu is right", what, (unsigned long long)has,
			(unsigned long long)right);
	}
}

static int by_address(const void *a, const void *b)
{
	const struct pfx_node *const *x = a, *const *y = b;

	return *x < *y ? -1 : *x > *y;
}

static int room(struct pfx_check_nodes *nodes, uint32_t n)
{
	nodes->v = pfx_calloc(n, sizeof(*nodes->v));
	return nodes->v == NULL ? -1 : 0;
}

static void put(struct pfx_check_nodes *nodes, const struct pfx_node *x)
{
	if (x != NULL) {
		nodes->v[nodes->n++] = x;
	}
}

static void sort(struct pfx_check_nodes *nodes)
{
	qsort(nodes->v, nodes->n, sizeof(*nodes->v), by_address);
}

static int gather(struct pfx_check *c)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n_paths = 0, n_loose = 0;
	int rc = 0;

	pfx_list_for(it, &cache->paths) {
		n_paths++;
	}
	pfx_list_for(it, &cache->loose) {
		n_loose++;
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		c->owners[t] = pfx_calloc(cache->tier[t].pool.n, 1);
		rc |= c->owners[t] == NULL;
	}
	rc |= room(&c->ends, 2 * n_paths) | room(&c->leased, n_paths) | room(&c->loose, n_loose) |
		room(&c->loose_leased, n_loose);
	if (rc != 0) {
		return -1;
	}
	pfx_list_for(it, &cache->paths) {
		const struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		put(path->leased ? &c->leased : &c->ends, path->node);
		put(&c->ends, path->ahead);
	}
	pfx_list_for(it, &cache->loose) {
		const struct pfx_node *x = pfx_node_of(it, 0);

		put(&c->loose, x->pins > 0 ? x->parent : NULL);
		put(&c->loose_leased, x->leases > 0 ? x->parent : NULL);
	}
	sort(&c->ends);
	sort(&c->leased);
	sort(&c->loose);
	sort(&c->loose_leased);
	return 0;
}

void pfx_check_own(struct pfx_check *c, enum pfx_tier tier, pfx_block_t block, unsigned states)
{
	const struct pfx_pool *pool = &c->cache->tier[tier].pool;

	if (block >= pool->n) {
		pfx_check_problem(c, "block %u is none of the pool", block);
		return;
	}
	if (c->owners[tier][block]++ > 0) {
		pfx_check_problem(c, "block %u has more than one owner", block);
	}
	if ((states >> pool->state[block] & 1) == 0) {
		pfx_check_problem(c, "block %u of tier %d is in state %d, its owner says %x", block, (int)tier,
			pool->state[block], states);
	}
}

/* The path's table against the nodes from its end up. */
static void check_table(struct pfx_check *c, const struct pfx_path *path)
{
	const struct pfx_cache *cache = c->cache;

	for (const struct pfx_node *x = path->node; x->n > 0; x = x->parent) {
		uint32_t first = x->start >> cache->shift;
		uint32_t n = pfx_node_n_blocks(x, cache->shift);

		for (uint32_t i = 0; i < n && first + i < path->n_tree; i++) {
			if (i >= x->n_dev ||
				path->table[first + i] != pfx_node_blocks(x, cache->shift)[i]) {
				pfx_check_problem(c, "a path's table does not name its nodes' blocks");
				return;
			}
		}
	}
}

/* What it has matched in slower tiers. */
static void check_ahead(struct pfx_check *c, const struct pfx_path *path)
{
	const struct pfx_node *x = path->ahead;

	if (x == NULL) {
		return;
	}
	if (path->reach <= path->len || path->reach <= x->start || path->reach > pfx_node_end(x) ||
		x->state == PFX_NODE_FLUSHED || path->leased) {
		pfx_check_problem(c, "a path reaches to %u from %u, in a node of [%u, %u)", path->reach,
			path->len, x->start, pfx_node_end(x));
	}
}

/* Its pin is where what it has in the tree ends. */
static void check_end(struct pfx_check *c, const struct pfx_path *path)
{
	const struct pfx_cache *cache = c->cache;
	const struct pfx_node *x = path->node;
	uint32_t B = cache->block_tokens;
	uint32_t in_tree_blocks = (path->in_tree + B - 1) / B;

	/* Only what it could not take may be more: in slower tiers. */
	if (path->in_tree > pfx_node_end(x) || (x->n > 0 && path->in_tree < x->start) ||
		(!path->holds_more && in_tree_blocks < (pfx_node_end(x) + B - 1) / B &&
			in_tree_blocks < x->start / B + x->n_dev)) {
		pfx_check_problem(c, "a path has published %u, its node is [%u, %u), %u blocks on the device",
			path->in_tree, x->start, pfx_node_end(x), x->n_dev);
	}
	if (path->n_tree != in_tree_blocks && path->n_tree != path->in_tree / B) {
		pfx_check_problem(c, "a path takes %u of %u published blocks for the tree's",
			path->n_tree, in_tree_blocks);
	}
	if (x->writer == path && path->in_tree != pfx_node_end(x)) {
		pfx_check_problem(c, "a path may write before the end of a node");
	}
	if (!path->apart && x->state == PFX_NODE_FLUSHED) {
		pfx_check_problem(c, "a path does not know that it was flushed");
	}
}

static void check_paths(struct pfx_check *c)
{
	pfx_list_for(it, &c->cache->paths) {
		const struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		for (uint32_t i = path->n_tree; i < path->n_blocks; i++) {
			pfx_check_own(c, PFX_TIER_DEVICE, path->table[i], PFX_IN(FILLING));
			c->tier[PFX_TIER_DEVICE].filling++;
		}
		if (path->len > (uint64_t)path->n_blocks * c->cache->block_tokens ||
			path->in_tree > path->len) {
			pfx_check_problem(c, "a path is longer than its blocks");
		}
		c->n_leases += path->leased;
		if (path->leased && path->n_blocks > path->n_tree) {
			pfx_check_problem(c, "a lease has blocks of its own");
		}
		if (path->node != NULL) {
			check_end(c, path);
			check_ahead(c, path);
			check_table(c, path);
		}
	}
}

/* How many wait, in each class of each tier. */
static void check_order(struct pfx_check *c)
{
	for (int t = 0; t < PFX_TIERS; t++) {
		const struct pfx_level *level = &c->cache->tier[t];
		const char *wrong = level->evict.ops->check(&level->evict,
			c->tier[t].waiting[PFX_CLASS_POLICY], c->tier[t].leaves);
		uint64_t ended = 0, kept = 0;

		if (wrong == NULL) {
			wrong = pfx_evict_check_order(&level->ended, &ended);
		}
		if (wrong == NULL) {
			wrong = pfx_evict_check_order(&level->kept, &kept);
		}
		if (wrong != NULL) {
			pfx_check_problem(c, "%s", wrong);
		}
		pfx_check_equal(c, "nodes that wait and have ended", ended, c->tier[t].waiting[PFX_CLASS_ENDED]);
		pfx_check_equal(c, "nodes that wait and are kept", kept, c->tier[t].waiting[PFX_CLASS_KEPT]);
	}
}

/* A block with no owner is leaving, and a copy (or a delete) holds it. */
static void check_pool(struct pfx_check *c, enum pfx_tier tier)
{
	const struct pfx_pool *pool = &c->cache->tier[tier].pool;
	uint32_t count[PFX_BLOCK_STATES] = { 0 };

	for (uint32_t i = 0; i < pool->n; i++) {
		count[pool->state[i]]++;
	}
	for (int s = 0; s < PFX_BLOCK_STATES; s++) {
		pfx_check_equal(c, "blocks in a state", pool->count[s], count[s]);
	}
	for (uint32_t i = 0; i < pool->count[PFX_BLOCK_FREE]; i++) {
		pfx_check_own(c, tier, pool->free[i], PFX_IN(FREE));
	}
	for (uint32_t i = 0; i < pool->n; i++) {
		if ((c->owners[tier][i] == 0) != (pool->state[i] == PFX_BLOCK_LEAVING)) {
			pfx_check_problem(c, "block %u has no owner, or has one and is leaving", i);
		}
		if ((pool->state[i] == PFX_BLOCK_FREE && pool->holds[i] > 0) ||
			((pool->state[i] == PFX_BLOCK_LEAVING ||
				pool->state[i] == PFX_BLOCK_ARRIVING) && pool->holds[i] == 0)) {
			pfx_check_problem(c, "block %u is in state %d and held by %u copies", i, pool->state[i],
				pool->holds[i]);
		}
	}
	pfx_check_equal(c, "blocks of nodes", pfx_node_blocks_of(c->cache, tier), c->tier[tier].owned);
	pfx_check_equal(c, "blocks being filled", count[PFX_BLOCK_FILLING], c->tier[tier].filling);
}

/* Every order that waits, or is on its way, holds what it is about. */
static void check_orders(struct pfx_check *c)
{
	const struct pfx_cache *cache = c->cache;
	const struct pfx_pool *device = &cache->tier[PFX_TIER_DEVICE].pool;
	const struct pfx_pool *host = &cache->tier[PFX_TIER_HOST].pool;
	const struct pfx_pool *disk = &cache->tier[PFX_TIER_DISK].pool;
	uint32_t n = 0;

	for (uint32_t i = 0; i < cache->n_spills; i++) {
		const struct pfx_spill *s = &cache->spills[(cache->spill_first + i) % host->n];

		if (host->holds[s->host] == 0 || device->holds[s->device] == 0) {
			pfx_check_problem(c, "a spill does not hold its blocks");
		}
	}
	for (uint32_t i = 0; i < cache->n_deletes; i++) {
		uint32_t record = cache->deletes[(cache->delete_first + i) % disk->n];

		if (disk->state[record] != PFX_BLOCK_LEAVING) {
			pfx_check_problem(c, "record %u is to be deleted and in use", record);
		}
	}
	for (int i = 0; i < PFX_SAVES_MAX; i++) {
		const struct pfx_saving *s = &cache->saving[i];

		if (s->record == PFX_BLOCK_NONE) {
			continue;
		}
		n++;
		if (disk->holds[s->record] == 0 ||
			(!s->copied && cache->tier[s->tier].pool.holds[s->src] == 0) ||
			(s->node == NULL && disk->state[s->record] != PFX_BLOCK_LEAVING)) {
			pfx_check_problem(c, "an order to save does not hold what it is about");
		}
	}
	pfx_check_equal(c, "orders to save", cache->n_saving, n);
	pfx_check_equal(c, "nodes that wait to be saved", cache->n_to_save, c->to_save);
}

static void check_counters(struct pfx_check *c)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t ages = 0, free = 0;

	for (int t = 0; t < PFX_TIERS; t++) {
		const struct pfx_level *level = &cache->tier[t];

		pfx_check_equal(c, "pinned blocks", level->pinned, c->tier[t].pinned);
		pfx_check_equal(c, "leased blocks", level->leased, c->tier[t].leased);
		pfx_check_equal(c, "leased blocks that nobody else holds", level->idle, c->tier[t].idle);
		pfx_check_equal(c, "loose blocks", level->loose, c->tier[t].loose);
	}
	pfx_check_equal(c, "leases", cache->n_leases, c->n_leases);
	pfx_check_equal(c, "nodes", cache->nodes, c->nodes);
	pfx_check_equal(c, "tokens", cache->tokens, c->tokens);
	pfx_check_equal(c, "index bytes", cache->index_bytes, c->bytes);
	pfx_check_equal(c, "pieces of memory", cache->arena.pieces, c->pieces);
	if (pfx_arena_check(&cache->arena) != NULL) {
		pfx_check_problem(c, "%s", pfx_arena_check(&cache->arena));
	}
	pfx_check_equal(c, "marks in use", cache->marks.used, c->marks);
	pfx_list_for(it, &cache->marks.oldest) {
		ages += pfx_container_of(it, struct pfx_mark, age)->node != NULL;
	}
	pfx_list_for(it, &cache->marks.free) {
		free += pfx_container_of(it, struct pfx_mark, age)->node == NULL;
	}
	pfx_check_equal(c, "marks by age", ages, c->marks);
	pfx_check_equal(c, "free marks", free, cache->marks.n - c->marks);
}

int pfx_cache_check(const struct pfx_cache *cache, void (*report)(void *arg, const char *problem),
	void *arg)
{
	struct pfx_check c = { .cache = cache, .report = report, .arg = arg };

	if (gather(&c) < 0) {
		pfx_check_problem(&c, "no memory for the check itself");
	} else {
		pfx_check_trees(&c);
		pfx_check_loose(&c);
		check_paths(&c);
		check_order(&c);
		for (int t = 0; t < PFX_TIERS; t++) {
			check_pool(&c, t);
		}
		check_orders(&c);
		check_counters(&c);
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		pfx_free(c.owners[t]);
	}
	pfx_free(c.ends.v);
	pfx_free(c.leased.v);
	pfx_free(c.loose.v);
	pfx_free(c.loose_leased.v);
	return c.problems;
}
