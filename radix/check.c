#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "radix/kids.h"
#include "radix/priv.h"

/*
 * Everything that the counters, lists and pins claim is worked out again from the trees and
 * the open paths, and compared. Iterative; needs memory for one word a block and two a path.
 */

struct nodes { /* sorted */
	const struct pfx_node **v;
	uint32_t n;
};

struct check {
	const struct pfx_cache *cache;
	void (*report)(void *arg, const char *problem);
	void *arg;
	int problems;
	uint8_t *owners[PFX_TIERS]; /* by block: how many own it */
	struct nodes ends;          /* those that paths hold */
	struct nodes leased;        /* those that leases hold */
	struct nodes loose;         /* parents of loose nodes with pins */
	struct nodes loose_leased;  /* and with leases */
	uint64_t nodes, tokens, bytes, pieces, to_save, n_leases;
	uint32_t marks;
	struct {
		uint64_t owned, filling, pinned, leased, idle, loose;
		uint64_t waiting[PFX_CLASS_KEPT + 1], leaves; /* nodes; of the policy's */
	} tier[PFX_TIERS];
};

static void __attribute__((format(printf, 2, 3))) problem(struct check *c, const char *fmt, ...)
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

static void equal(struct check *c, const char *what, uint64_t has, uint64_t right)
{
	if (has != right) {
		problem(c, "%s: %llu where %llu is right", what, (unsigned long long)has,
			(unsigned long long)right);
	}
}

static int by_address(const void *a, const void *b)
{
	const struct pfx_node *const *x = a, *const *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* How often x stands among them. */
static uint32_t times(const struct nodes *sorted, const struct pfx_node *x)
{
	uint32_t low = 0, high = sorted->n, count = 0;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (sorted->v[mid] < x) {
			low = mid + 1;
		} else {
			high = mid;
		}
	}
	while (low + count < sorted->n && sorted->v[low + count] == x) {
		count++;
	}
	return count;
}

static int room(struct nodes *nodes, uint32_t n)
{
	nodes->v = pfx_calloc(n, sizeof(*nodes->v));
	return nodes->v == NULL ? -1 : 0;
}

static void put(struct nodes *nodes, const struct pfx_node *x)
{
	if (x != NULL) {
		nodes->v[nodes->n++] = x;
	}
}

static void sort(struct nodes *nodes)
{
	qsort(nodes->v, nodes->n, sizeof(*nodes->v), by_address);
}

static int gather(struct check *c)
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

static void own(struct check *c, enum pfx_tier tier, pfx_block_t block, unsigned states)
{
	const struct pfx_pool *pool = &c->cache->tier[tier].pool;

	if (block >= pool->n) {
		problem(c, "block %u is none of the pool", block);
		return;
	}
	if (c->owners[tier][block]++ > 0) {
		problem(c, "block %u has more than one owner", block);
	}
	if ((states >> pool->state[block] & 1) == 0) {
		problem(c, "block %u of tier %d is in state %d, its owner says %x", block, (int)tier,
			pool->state[block], states);
	}
}

#define IN(state) (1u << PFX_BLOCK_##state)

static void check_marks_of(struct check *c, const struct pfx_node *x)
{
	const struct pfx_marks *marks = &c->cache->marks;
	uint32_t prev = PFX_MARK_NONE;

	for (uint32_t i = x->marks; i != PFX_MARK_NONE; prev = i, i = marks->slot[i].next) {
		const struct pfx_mark *m = &marks->slot[i];

		if (m->node != x || m->prev != prev) {
			problem(c, "mark %u does not point back to its node", i);
			return;
		}
		if (m->pos <= x->start || m->pos > pfx_node_end(x)) {
			problem(c, "mark %u is at %u, outside its node", i, m->pos);
		}
		for (uint32_t j = m->next; j != PFX_MARK_NONE; j = marks->slot[j].next) {
			if (marks->slot[j].pos == m->pos) {
				problem(c, "marks %u and %u are at one place", i, j);
			}
		}
		c->marks++;
	}
}

/* Who holds it, and how many of its children are where. */
static void check_counts(struct check *c, const struct pfx_node *x)
{
	uint32_t pins = times(&c->ends, x) + times(&c->loose, x);
	uint32_t leases = times(&c->leased, x) + times(&c->loose_leased, x);
	uint32_t in[PFX_TIERS] = { 0 };

	for (const struct pfx_node *k = pfx_kids_first(x); k != NULL; k = pfx_kids_next(k)) {
		pins += k->pins > 0;
		leases += k->leases > 0;
		if (x->ended && !k->ended) {
			problem(c, "a node has ended and its child has not");
		}
		if (x->n > 0 && x->conv != 0 && k->conv == 0) {
			problem(c, "a node is of one conversation and its child of several");
		}
		for (int t = 0; t < PFX_TIERS; t++) {
			in[t] += (uint32_t)pfx_node_counts(k, t);
		}
	}
	if (x->ended && pfx_node_held(x)) {
		problem(c, "a node has ended and is held");
	}
	equal(c, "pins of a node", x->pins, pins);
	equal(c, "leases of a node", x->leases, leases);
	for (int t = 0; t < PFX_TIERS; t++) {
		equal(c, "children in a tier", x->kids_in[t], in[t]);
	}
}

/* Its blocks, tier by tier. */
static void check_blocks(struct check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);

	if (x->cap < n_blocks) {
		problem(c, "a node has %u blocks and room for %u", n_blocks, x->cap);
	}
	if (x->n_dev > x->n_mem || x->n_mem > n_blocks || x->saved > x->n || x->worthy > x->n) {
		problem(c, "a node of %u tokens has %u blocks on the device, %u in memory, %u saved",
			x->n, x->n_dev, x->n_mem, x->saved);
		return;
	}
	for (uint32_t i = 0; i < x->n_mem; i++) {
		enum pfx_tier tier = i < x->n_dev ? PFX_TIER_DEVICE : PFX_TIER_HOST;

		own(c, tier, pfx_node_blocks(x, cache->shift)[i],
			tier == PFX_TIER_DEVICE ? IN(READY) : IN(READY) | IN(ARRIVING) | IN(BAD));
	}
	for (uint32_t i = 0; i < pfx_node_n_records(x, cache->shift); i++) {
		own(c, PFX_TIER_DISK, pfx_node_records(x, cache->shift)[i], IN(READY));
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		c->tier[t].owned += pfx_node_in(x, t, cache->shift);
	}
}

/* What holds for a node in every state. */
static void check_node(struct check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;

	check_counts(c, x);
	if (x->n == 0) {
		return;
	}
	c->bytes += sizeof(*x) + pfx_run_bytes(cache, x->cap);
	c->pieces += 2;
	if (x->start % cache->block_tokens != 0 || x->start != pfx_node_end(x->parent)) {
		problem(c, "a node starts at %u, its parent ends at %u", x->start,
			pfx_node_end(x->parent));
	}
	if (x->space != x->parent->space) {
		problem(c, "a node and its parent are of different spaces");
	}
	check_blocks(c, x);
	if (x->writer != NULL && x->writer->node != x) {
		problem(c, "the writer of a node ends elsewhere");
	}
	if (x->kids != NULL && x->n % cache->block_tokens != 0) {
		problem(c, "a node with children ends inside a block");
	}
	check_marks_of(c, x);
}

/* Up to position same, the sibling before x is the owner of any mark. */
static void check_mark_owner(struct check *c, const struct pfx_node *x, uint32_t same)
{
	for (uint32_t i = x->marks; i != PFX_MARK_NONE; i = c->cache->marks.slot[i].next) {
		if (c->cache->marks.slot[i].pos <= same) {
			problem(c, "mark %u is not at the first sibling of its place", i);
		}
	}
}

static uint64_t chain(const struct check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint64_t digest = x->parent->digest;

	for (uint32_t i = 0; i + cache->block_tokens <= x->n; i += cache->block_tokens) {
		digest = pfx_digest_step(digest,
			pfx_ghosts_hash(&cache->ghosts, x->run + i, cache->block_tokens));
	}
	return digest;
}

static void check_kids(struct check *c, const struct pfx_node *x)
{
	if (!pfx_kids_sound(x)) {
		problem(c, "the treap of a node's children is broken");
	}
	for (const struct pfx_node *k = pfx_kids_first(x), *next; k != NULL; k = next) {
		uint32_t common = 0;

		next = pfx_kids_next(k);
		if (k->parent != x) {
			problem(c, "a child has another parent");
		}
		if (next != NULL && (pfx_kids_compare(k->run, k->n, next, c->cache->block_tokens,
					     &common) >= 0 || common == k->n)) {
			problem(c, "two children are out of order, or one begins the other");
		}
		if (next != NULL && next->marks != PFX_MARK_NONE) {
			check_mark_owner(c, next, x->n + x->start + common);
		}
	}
}

/* x, not a root, and its parent: tiers, ages and classes go down in one direction. */
static void check_below(struct check *c, const struct pfx_node *x)
{
	const struct pfx_node *p = x->parent;
	uint32_t n_blocks = pfx_node_n_blocks(x, c->cache->shift);
	uint32_t above = pfx_node_n_blocks(p, c->cache->shift);

	if ((x->n_dev > 0 && p->n_dev < above) || (x->n_mem > 0 && p->n_mem < above) ||
		(x->saved > 0 && p->saved < p->n)) {
		problem(c, "a node has blocks in a tier and its parent not all");
	}
	if (x->n_mem < n_blocks && x->saved < x->n) {
		problem(c, "a node has blocks in no tier");
	}
	if (p->n == 0) {
		return;
	}
	if (x->keep_until > p->keep_until) {
		problem(c, "a node is kept for longer than its parent");
	}
	if (!pfx_node_held(x) && !pfx_node_held(p)) {
		if (x->class > p->class) {
			problem(c, "a node goes in a later class than its parent");
		}
		if (x->age > p->age) {
			problem(c, "a node is older than its child");
		}
	}
}

/* Where it counts, or waits. */
static void check_place(struct check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;

	for (int t = 0; t < PFX_TIERS; t++) {
		uint32_t n = pfx_node_in(x, t, cache->shift);

		c->tier[t].pinned += x->pins > 0 ? n : 0;
		c->tier[t].leased += x->leases > 0 ? n : 0;
		c->tier[t].idle += x->leases > 0 && x->pins == 0 ? n : 0;
		if (pfx_node_held(x) || n == 0) {
			if (pfx_heap_has(x, t)) {
				problem(c, "a node waits where it should not");
			}
			continue;
		}
		c->tier[t].waiting[x->class]++;
		c->tier[t].leaves += x->class == PFX_CLASS_POLICY && x->kids_in[t] == 0;
	}
	if (!pfx_node_held(x) && (x->class == PFX_CLASS_ENDED) != x->ended) {
		problem(c, "a node has ended and does not wait as such");
	}
	if (!pfx_node_held(x) && (x->class == PFX_CLASS_KEPT) !=
			(!x->ended && x->keep_until > cache->now)) {
		problem(c, "a node is kept and does not wait as such");
	}
}

/* What is on its way to disk of x follows on what is there. */
static void check_saving(struct check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n = 0, sum = 0, next = x->saved >> cache->shift;
	int queued = !pfx_list_empty(&x->save);

	for (int i = 0; i < PFX_SAVES_MAX; i++) {
		const struct pfx_saving *s = &cache->saving[i];

		if (s->record != PFX_BLOCK_NONE && s->node == x) {
			n++;
			sum += s->index;
			if (s->index >= x->n_mem || s->index < next || s->index >= next + x->saving) {
				problem(c, "block %u of a node is on its way to disk: %u saved, %u in memory",
					s->index, x->saved, x->n_mem);
			}
			own(c, PFX_TIER_DISK, s->record, IN(ARRIVING));
		}
	}
	equal(c, "blocks of a node on their way to disk", x->saving, n);
	equal(c, "which they are", sum, n == 0 ? 0 : (uint64_t)n * next + (uint64_t)n * (n - 1) / 2);
	c->to_save += (uint64_t)queued;
	if (!queued && cache->slots > 1 && pfx_save_due(cache, x)) {
		problem(c, "a node has %u to save of %u, %u saved, %u on the way, and does not wait",
			x->worthy, x->n, x->saved, x->saving);
	}
}

static void check_linked(struct check *c, const struct pfx_node *x)
{
	check_node(c, x);
	if (x->state != PFX_NODE_LINKED) {
		problem(c, "a child is not in the state of one");
	}
	check_kids(c, x);
	if (x->n == 0) {
		return;
	}
	c->nodes++;
	c->tokens += x->n;
	if (x->n >= c->cache->block_tokens && !pfx_jump_has(&c->cache->jump, x)) {
		problem(c, "a node with a full first block cannot be jumped to");
	}
	check_below(c, x);
	check_place(c, x);
	check_saving(c, x);
	equal(c, "digest of a node", x->digest, chain(c, x));
}

static void check_trees(struct check *c)
{
	for (uint32_t i = 0; i < c->cache->n_buckets; i++) {
		for (const struct pfx_space *s = c->cache->buckets[i]; s != NULL; s = s->next) {
			uint32_t blocks = 0, loose = 0;

			for (const struct pfx_node *x = &s->root; x != NULL; x = pfx_tree_next(x)) {
				check_linked(c, x);
			}
			pfx_list_for(it, &c->cache->loose) {
				const struct pfx_node *x = pfx_node_of(it, 0);

				if (x->space == s) {
					loose++;
					blocks += x->n_mem;
				}
			}
			equal(c, "loose nodes of a space", s->n_loose, loose);
			equal(c, "loose blocks of a space", s->loose_blocks, blocks);
		}
	}
}

static void check_loose(struct check *c)
{
	pfx_list_for(it, &c->cache->loose) {
		const struct pfx_node *x = pfx_node_of(it, 0);
		uint32_t common;

		check_node(c, x);
		for (int t = 0; t < PFX_TIERS; t++) {
			c->tier[t].loose += pfx_node_in(x, t, c->cache->shift);
		}
		if (!pfx_node_held(x)) {
			problem(c, "a loose node is held by nobody");
		}
		if (x->kids != NULL || x->marks != PFX_MARK_NONE || x->state == PFX_NODE_LINKED) {
			problem(c, "a loose node has children or marks, or counts as linked");
		}
		if (x->saved > 0 || x->saving > 0 || !pfx_list_empty(&x->save)) {
			problem(c, "a loose node is on disk");
		}
		if (x->state != PFX_NODE_LOOSE) {
			continue;
		}
		pfx_kids_best(x->parent, x->run, x->n, c->cache->block_tokens, &common);
		if (x->n >= c->cache->block_tokens || (common != x->n && x->n_mem > 0)) {
			problem(c, "a loose node holds what no child of its parent does");
		}
	}
}

/* The path's table against the nodes from its end up. */
static void check_table(struct check *c, const struct pfx_path *path)
{
	const struct pfx_cache *cache = c->cache;

	for (const struct pfx_node *x = path->node; x->n > 0; x = x->parent) {
		uint32_t first = x->start >> cache->shift;
		uint32_t n = pfx_node_n_blocks(x, cache->shift);

		for (uint32_t i = 0; i < n && first + i < path->n_tree; i++) {
			if (i >= x->n_dev ||
				path->table[first + i] != pfx_node_blocks(x, cache->shift)[i]) {
				problem(c, "a path's table does not name its nodes' blocks");
				return;
			}
		}
	}
}

/* What it has matched in slower tiers. */
static void check_ahead(struct check *c, const struct pfx_path *path)
{
	const struct pfx_node *x = path->ahead;

	if (x == NULL) {
		return;
	}
	if (path->reach <= path->len || path->reach <= x->start || path->reach > pfx_node_end(x) ||
		x->state == PFX_NODE_FLUSHED || path->leased) {
		problem(c, "a path reaches to %u from %u, in a node of [%u, %u)", path->reach, path->len,
			x->start, pfx_node_end(x));
	}
}

/* Its pin is where what it has in the tree ends. */
static void check_end(struct check *c, const struct pfx_path *path)
{
	const struct pfx_cache *cache = c->cache;
	const struct pfx_node *x = path->node;
	uint32_t B = cache->block_tokens;
	uint32_t in_tree_blocks = (path->in_tree + B - 1) / B;

	/* Only what it could not take may be more: in slower tiers. */
	if (path->in_tree > pfx_node_end(x) || (x->n > 0 && path->in_tree < x->start) ||
		(!path->holds_more && in_tree_blocks < (pfx_node_end(x) + B - 1) / B &&
			in_tree_blocks < x->start / B + x->n_dev)) {
		problem(c, "a path has published %u, its node is [%u, %u), %u blocks on the device",
			path->in_tree, x->start, pfx_node_end(x), x->n_dev);
	}
	if (path->n_tree != in_tree_blocks && path->n_tree != path->in_tree / B) {
		problem(c, "a path takes %u of %u published blocks for the tree's",
			path->n_tree, in_tree_blocks);
	}
	if (x->writer == path && path->in_tree != pfx_node_end(x)) {
		problem(c, "a path may write before the end of a node");
	}
	if (!path->apart && x->state == PFX_NODE_FLUSHED) {
		problem(c, "a path does not know that it was flushed");
	}
}

static void check_paths(struct check *c)
{
	pfx_list_for(it, &c->cache->paths) {
		const struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		for (uint32_t i = path->n_tree; i < path->n_blocks; i++) {
			own(c, PFX_TIER_DEVICE, path->table[i], IN(FILLING));
			c->tier[PFX_TIER_DEVICE].filling++;
		}
		if (path->len > (uint64_t)path->n_blocks * c->cache->block_tokens ||
			path->in_tree > path->len) {
			problem(c, "a path is longer than its blocks");
		}
		c->n_leases += path->leased;
		if (path->leased && path->n_blocks > path->n_tree) {
			problem(c, "a lease has blocks of its own");
		}
		if (path->node != NULL) {
			check_end(c, path);
			check_ahead(c, path);
			check_table(c, path);
		}
	}
}

/* How many wait, in each class of each tier. */
static void check_order(struct check *c)
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
			problem(c, "%s", wrong);
		}
		equal(c, "nodes that wait and have ended", ended, c->tier[t].waiting[PFX_CLASS_ENDED]);
		equal(c, "nodes that wait and are kept", kept, c->tier[t].waiting[PFX_CLASS_KEPT]);
	}
}

/* A block with no owner is leaving, and a copy (or a delete) holds it. */
static void check_pool(struct check *c, enum pfx_tier tier)
{
	const struct pfx_pool *pool = &c->cache->tier[tier].pool;
	uint32_t count[PFX_BLOCK_STATES] = { 0 };

	for (uint32_t i = 0; i < pool->n; i++) {
		count[pool->state[i]]++;
	}
	for (int s = 0; s < PFX_BLOCK_STATES; s++) {
		equal(c, "blocks in a state", pool->count[s], count[s]);
	}
	for (uint32_t i = 0; i < pool->count[PFX_BLOCK_FREE]; i++) {
		own(c, tier, pool->free[i], IN(FREE));
	}
	for (uint32_t i = 0; i < pool->n; i++) {
		if ((c->owners[tier][i] == 0) != (pool->state[i] == PFX_BLOCK_LEAVING)) {
			problem(c, "block %u has no owner, or has one and is leaving", i);
		}
		if ((pool->state[i] == PFX_BLOCK_FREE && pool->holds[i] > 0) ||
			((pool->state[i] == PFX_BLOCK_LEAVING ||
				pool->state[i] == PFX_BLOCK_ARRIVING) && pool->holds[i] == 0)) {
			problem(c, "block %u is in state %d and held by %u copies", i, pool->state[i],
				pool->holds[i]);
		}
	}
	equal(c, "blocks of nodes", pfx_node_blocks_of(c->cache, tier), c->tier[tier].owned);
	equal(c, "blocks being filled", count[PFX_BLOCK_FILLING], c->tier[tier].filling);
}

/* Every order that waits, or is on its way, holds what it is about. */
static void check_orders(struct check *c)
{
	const struct pfx_cache *cache = c->cache;
	const struct pfx_pool *device = &cache->tier[PFX_TIER_DEVICE].pool;
	const struct pfx_pool *host = &cache->tier[PFX_TIER_HOST].pool;
	const struct pfx_pool *disk = &cache->tier[PFX_TIER_DISK].pool;
	uint32_t n = 0;

	for (uint32_t i = 0; i < cache->n_spills; i++) {
		const struct pfx_spill *s = &cache->spills[(cache->spill_first + i) % host->n];

		if (host->holds[s->host] == 0 || device->holds[s->device] == 0) {
			problem(c, "a spill does not hold its blocks");
		}
	}
	for (uint32_t i = 0; i < cache->n_deletes; i++) {
		uint32_t record = cache->deletes[(cache->delete_first + i) % disk->n];

		if (disk->state[record] != PFX_BLOCK_LEAVING) {
			problem(c, "record %u is to be deleted and in use", record);
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
			problem(c, "an order to save does not hold what it is about");
		}
	}
	equal(c, "orders to save", cache->n_saving, n);
	equal(c, "nodes that wait to be saved", cache->n_to_save, c->to_save);
}

static void check_counters(struct check *c)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t ages = 0, free = 0;

	for (int t = 0; t < PFX_TIERS; t++) {
		const struct pfx_level *level = &cache->tier[t];

		equal(c, "pinned blocks", level->pinned, c->tier[t].pinned);
		equal(c, "leased blocks", level->leased, c->tier[t].leased);
		equal(c, "leased blocks that nobody else holds", level->idle, c->tier[t].idle);
		equal(c, "loose blocks", level->loose, c->tier[t].loose);
	}
	equal(c, "leases", cache->n_leases, c->n_leases);
	equal(c, "nodes", cache->nodes, c->nodes);
	equal(c, "tokens", cache->tokens, c->tokens);
	equal(c, "index bytes", cache->index_bytes, c->bytes);
	equal(c, "pieces of memory", cache->arena.pieces, c->pieces);
	if (pfx_arena_check(&cache->arena) != NULL) {
		problem(c, pfx_arena_check(&cache->arena));
	}
	equal(c, "marks in use", cache->marks.used, c->marks);
	pfx_list_for(it, &cache->marks.oldest) {
		ages += pfx_container_of(it, struct pfx_mark, age)->node != NULL;
	}
	pfx_list_for(it, &cache->marks.free) {
		free += pfx_container_of(it, struct pfx_mark, age)->node == NULL;
	}
	equal(c, "marks by age", ages, c->marks);
	equal(c, "free marks", free, cache->marks.n - c->marks);
}

int pfx_cache_check(const struct pfx_cache *cache, void (*report)(void *arg, const char *problem),
	void *arg)
{
	struct check c = { .cache = cache, .report = report, .arg = arg };

	if (gather(&c) < 0) {
		problem(&c, "no memory for the check itself");
	} else {
		check_trees(&c);
		check_loose(&c);
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
