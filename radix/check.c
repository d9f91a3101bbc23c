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

struct check {
	const struct pfx_cache *cache;
	void (*report)(void *arg, const char *problem);
	void *arg;
	int problems;
	uint8_t *owners;             /* by block: how many own it */
	const struct pfx_node **ends; /* the nodes in which paths end, sorted */
	uint32_t n_ends;
	const struct pfx_node **loose; /* parents of loose nodes, sorted */
	uint32_t n_loose;
	uint64_t nodes, tokens, bytes, ready, filling, pinned, loose_blocks, unpinned, unpinned_leaves;
	uint32_t marks;
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

/* How often x stands in a sorted array. */
static uint32_t times(const struct pfx_node **sorted, uint32_t n, const struct pfx_node *x)
{
	uint32_t low = 0, high = n, count = 0;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (sorted[mid] < x) {
			low = mid + 1;
		} else {
			high = mid;
		}
	}
	while (low + count < n && sorted[low + count] == x) {
		count++;
	}
	return count;
}

static int gather(struct check *c)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n_paths = 0, n_loose = 0;

	pfx_list_for(it, &cache->paths) {
		n_paths++;
	}
	pfx_list_for(it, &cache->loose) {
		n_loose++;
	}
	c->owners = pfx_calloc(cache->pool.n, 1);
	c->ends = pfx_calloc(n_paths, sizeof(*c->ends));
	c->loose = pfx_calloc(n_loose, sizeof(*c->loose));
	if (c->owners == NULL || c->ends == NULL || c->loose == NULL) {
		return -1;
	}
	pfx_list_for(it, &cache->paths) {
		const struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		if (path->node != NULL) {
			c->ends[c->n_ends++] = path->node;
		}
	}
	pfx_list_for(it, &cache->loose) {
		c->loose[c->n_loose++] = pfx_container_of(it, struct pfx_node, order)->parent;
	}
	qsort(c->ends, c->n_ends, sizeof(*c->ends), by_address);
	qsort(c->loose, c->n_loose, sizeof(*c->loose), by_address);
	return 0;
}

static void own(struct check *c, pfx_block_t block, enum pfx_block_state state)
{
	if (block >= c->cache->pool.n) {
		problem(c, "block %u is none of the pool", block);
		return;
	}
	if (c->owners[block]++ > 0) {
		problem(c, "block %u has more than one owner", block);
	}
	if (c->cache->pool.state[block] != state) {
		problem(c, "block %u is in state %d, its owner says %d", block,
			c->cache->pool.state[block], state);
	}
}

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

/* What holds for a node in every state. */
static void check_node(struct check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);
	uint32_t pins = times(c->ends, c->n_ends, x) + times(c->loose, c->n_loose, x);

	for (const struct pfx_node *k = pfx_kids_first(x); k != NULL; k = pfx_kids_next(k)) {
		pins += k->pins > 0;
	}
	equal(c, "pins of a node", x->pins, pins);
	if (x->n == 0) {
		return;
	}
	c->bytes += sizeof(*x) + (size_t)x->cap * (cache->block_tokens + 1) * sizeof(uint32_t);
	if (x->cap < n_blocks) {
		problem(c, "a node has %u blocks and room for %u", n_blocks, x->cap);
	}
	if (x->start % cache->block_tokens != 0 || x->start != pfx_node_end(x->parent)) {
		problem(c, "a node starts at %u, its parent ends at %u", x->start,
			pfx_node_end(x->parent));
	}
	if (x->space != x->parent->space) {
		problem(c, "a node and its parent are of different spaces");
	}
	for (uint32_t i = 0; i < n_blocks; i++) {
		own(c, pfx_node_blocks(x, cache->shift)[i], PFX_BLOCK_READY);
	}
	c->ready += n_blocks;
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

static void check_linked(struct check *c, const struct pfx_node *x)
{
	uint32_t n_blocks = pfx_node_n_blocks(x, c->cache->shift);

	check_node(c, x);
	if (x->state != PFX_NODE_LINKED) {
		problem(c, "a child is not in the state of one");
	}
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
		if (k->pins == 0 && x->n > 0 && x->pins == 0 && k->age > x->age) {
			problem(c, "a node is older than its child");
		}
	}
	if (x->n == 0) {
		return;
	}
	c->nodes++;
	c->tokens += x->n;
	if (x->n >= c->cache->block_tokens && !pfx_jump_has(&c->cache->jump, x)) {
		problem(c, "a node with a full first block cannot be jumped to");
	}
	if (x->pins > 0) {
		c->pinned += n_blocks;
	} else {
		c->unpinned++;
		c->unpinned_leaves += x->kids == NULL;
	}
	equal(c, "digest of a node", x->digest, chain(c, x));
}

static const struct pfx_node *next_in_tree(const struct pfx_node *x)
{
	const struct pfx_node *k = pfx_kids_first(x);

	if (k != NULL) {
		return k;
	}
	for (; x->parent != NULL; x = x->parent) {
		k = pfx_kids_next(x);
		if (k != NULL) {
			return k;
		}
	}
	return NULL;
}

static void check_trees(struct check *c)
{
	for (uint32_t i = 0; i < c->cache->n_buckets; i++) {
		for (const struct pfx_space *s = c->cache->buckets[i]; s != NULL; s = s->next) {
			uint32_t loose = 0;

			for (const struct pfx_node *x = &s->root; x != NULL; x = next_in_tree(x)) {
				check_linked(c, x);
			}
			pfx_list_for(it, &c->cache->loose) {
				const struct pfx_node *x =
					pfx_container_of(it, struct pfx_node, order);

				if (x->space == s) {
					loose += pfx_node_n_blocks(x, c->cache->shift);
				}
			}
			equal(c, "loose blocks of a space", s->loose_blocks, loose);
		}
	}
}

static void check_loose(struct check *c)
{
	pfx_list_for(it, &c->cache->loose) {
		const struct pfx_node *x = pfx_container_of(it, struct pfx_node, order);
		uint32_t common;

		check_node(c, x);
		c->loose_blocks += pfx_node_n_blocks(x, c->cache->shift);
		if (x->pins == 0) {
			problem(c, "a loose node is held by nobody");
		}
		if (x->kids != NULL || x->marks != PFX_MARK_NONE || x->state == PFX_NODE_LINKED) {
			problem(c, "a loose node has children or marks, or counts as linked");
		}
		if (x->state != PFX_NODE_LOOSE) {
			continue;
		}
		pfx_kids_best(x->parent, x->run, x->n, c->cache->block_tokens, &common);
		if (common != x->n || x->n >= c->cache->block_tokens) {
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
			if (path->table[first + i] != pfx_node_blocks(x, cache->shift)[i]) {
				problem(c, "a path's table does not name its nodes' blocks");
				return;
			}
		}
	}
}

static void check_paths(struct check *c)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t B = cache->block_tokens;

	pfx_list_for(it, &cache->paths) {
		const struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);
		uint32_t in_tree_blocks = (path->in_tree + B - 1) / B;

		for (uint32_t i = path->n_tree; i < path->n_blocks; i++) {
			own(c, path->table[i], PFX_BLOCK_FILLING);
			c->filling++;
		}
		if (path->len > (uint64_t)path->n_blocks * B || path->in_tree > path->len) {
			problem(c, "a path is longer than its blocks");
		}
		if (path->node == NULL) {
			continue;
		}
		if (in_tree_blocks != (pfx_node_end(path->node) + B - 1) / B ||
			path->in_tree > pfx_node_end(path->node)) {
			problem(c, "a path holds more or less than its published blocks");
		}
		if (path->n_tree != in_tree_blocks && path->n_tree != path->in_tree / B) {
			problem(c, "a path takes %u of %u published blocks for the tree's",
				path->n_tree, in_tree_blocks);
		}
		if (path->node->writer == path && path->in_tree != pfx_node_end(path->node)) {
			problem(c, "a path may write before the end of a node");
		}
		if (!path->apart && path->node->state == PFX_NODE_FLUSHED) {
			problem(c, "a path does not know that it was flushed");
		}
		check_table(c, path);
	}
}

static void check_order(struct check *c)
{
	const struct pfx_evict *evict = &c->cache->evict;
	const char *wrong = evict->ops->check(evict, c->unpinned, c->unpinned_leaves);

	if (wrong != NULL) {
		problem(c, "%s", wrong);
	}
}

static void check_pool(struct check *c)
{
	const struct pfx_pool *pool = &c->cache->pool;
	uint32_t count[PFX_BLOCK_STATES] = { 0 };

	for (uint32_t i = 0; i < pool->n; i++) {
		count[pool->state[i]]++;
	}
	for (int s = 0; s < PFX_BLOCK_STATES; s++) {
		equal(c, "blocks in a state", pool->count[s], count[s]);
	}
	for (uint32_t i = 0; i < pool->count[PFX_BLOCK_FREE]; i++) {
		own(c, pool->free[i], PFX_BLOCK_FREE);
	}
	for (uint32_t i = 0; i < pool->n; i++) {
		if (c->owners[i] == 0) {
			problem(c, "block %u has no owner", i);
		}
	}
	equal(c, "ready blocks", count[PFX_BLOCK_READY], c->ready);
	equal(c, "blocks being filled", count[PFX_BLOCK_FILLING], c->filling);
}

static void check_counters(struct check *c)
{
	const struct pfx_cache *cache = c->cache;
	struct pfx_cache_stats s;
	uint32_t ages = 0, free = 0;

	pfx_cache_stats(cache, &s);
	equal(c, "free + cached + running", (uint64_t)s.tier[0].free + s.tier[0].cached +
		s.tier[0].running, s.tier[0].blocks);
	equal(c, "nodes", s.nodes, c->nodes);
	equal(c, "tokens", s.tokens, c->tokens);
	equal(c, "index bytes", s.index_bytes, c->bytes);
	equal(c, "pinned blocks", s.tier[0].pinned, c->pinned);
	equal(c, "loose blocks", cache->loose_blocks, c->loose_blocks);
	equal(c, "marks in use", s.marks, c->marks);
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
		check_pool(&c);
		check_counters(&c);
	}
	pfx_free(c.owners);
	pfx_free(c.ends);
	pfx_free(c.loose);
	return c.problems;
}
