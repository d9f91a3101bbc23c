/* How what a path has computed becomes the tree's. */
#include <errno.h>

#include "base/assert.h"
#include "radix/path.h"

/* The path's own block at `at` becomes that of x, which had it in a slower tier only. */
static void promote(struct pfx_path *path, struct pfx_node *x, uint32_t at)
{
	struct pfx_cache *cache = path->cache;
	uint32_t i = at - (x->start >> cache->shift);

	PFX_ASSERT(at >= path->n_tree && at < path->n_blocks);
	if (i < x->n_mem) {
		pfx_node_let_go(cache, x, i);
	}
	pfx_node_blocks(x, cache->shift)[i] = path->table[at];
	pfx_pool_move(pfx_path_device(path), path->table[at], PFX_BLOCK_READY);
	cache->tier[PFX_TIER_DEVICE].arrived++;
}

/* Blocks [from, to) of x have come to the device, from it or a slower tier: tells the policy. */
static void tell_promoted(struct pfx_path *path, const struct pfx_node *x, uint32_t from,
	uint32_t to)
{
	struct pfx_cache *cache = path->cache;
	const pfx_block_t *blocks = pfx_node_blocks(x, cache->shift);
	uint32_t full = x->n >> cache->shift;
	struct pfx_evict *evict = pfx_path_policy(path);

	if (evict->ops->born != NULL) {
		evict->ops->born(evict, blocks + from, to - from, cache->clock);
	}
	if (evict->ops->filled != NULL && from < full) {
		pfx_node_filled(cache, x, from, to < full ? to : full,
			pfx_tree_digest(cache, x, x->start + (from << cache->shift)));
	}
}

void pfx_path_adopt(struct pfx_path *path, struct pfx_node *x, uint32_t from, uint32_t to)
{
	struct pfx_cache *cache = path->cache;

	for (; x->n > 0 && to > from; x = x->parent) {
		const pfx_block_t *blocks = pfx_node_blocks(x, cache->shift);
		uint32_t first = x->start >> cache->shift;
		uint32_t n_dev = x->n_dev, end = to;

		while (to > from && to > first) {
			pfx_block_t old;

			to--;
			if (to - first >= n_dev) {
				promote(path, x, to);
				continue;
			}
			old = path->table[to];
			path->table[to] = blocks[to - first];
			if (to >= path->n_tree && to < path->n_blocks) {
				pfx_pool_release(pfx_path_device(path), old);
				cache->duplicate_blocks++;
			}
		}
		if (end > first && end - first > n_dev) {
			end -= first;
			pfx_node_set(cache, x, end, end > x->n_mem ? end : x->n_mem, x->saved);
			tell_promoted(path, x, n_dev, end);
		}
	}
}

/*
 * May x be made longer at its end, instead of getting a child: is nobody else held to it, and is
 * nothing said of it that is not true of the rest?
 */
static int may_extend(const struct pfx_path *path, const struct pfx_node *x)
{
	return x->n > 0 && x->kids == NULL && x->pins == (x == path->node) && x->leases == 0 &&
		x->conv == path->conv && x->keep_until <= path->cache->now;
}

/* The path's own blocks of positions [x's end, upto) become those of x, which has room. */
static void give_blocks(struct pfx_path *path, struct pfx_node *x, const uint32_t *tokens,
	uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	uint32_t end = pfx_node_end(x);
	uint32_t first = pfx_blocks_for(cache, end);
	uint32_t more = pfx_blocks_for(cache, upto) - first;

	pfx_pool_move_all(pfx_path_device(path), path->table + first, more, PFX_BLOCK_FILLING,
		PFX_BLOCK_READY);
	if (pfx_path_policy(path)->ops->born != NULL) {
		pfx_path_policy(path)->ops->born(pfx_path_policy(path), path->table + first, more,
			cache->clock);
	}
	pfx_node_append(cache, x, tokens + end, upto - end, path->table + first);
	if (cache->save == PFX_SAVE_ALL) {
		x->worthy = x->n;
	}
}

/* The same for a node that stands in the tree. */
static void extend(struct pfx_path *path, struct pfx_node *x, const uint32_t *tokens, uint32_t upto)
{
	struct pfx_cache *cache = path->cache;

	cache->tokens += upto - pfx_node_end(x);
	if (x->conv != path->conv) {
		pfx_conv_mixed(x);
	}
	pfx_tally(cache, x, -1);
	give_blocks(path, x, tokens, upto);
	pfx_tally(cache, x, 1);
}

/* x's last block, which this path may write in, now goes on to position upto. */
static void extend_tail(struct pfx_path *path, struct pfx_node *x, const uint32_t *tokens,
	uint32_t upto)
{
	if (x->state == PFX_NODE_LINKED) {
		extend(path, x, tokens, upto);
	} else {
		/* It has no more blocks than before, so it counts among the loose as it did. */
		give_blocks(path, x, tokens, upto);
		pfx_tree_link(path->cache, x);
	}
}

/* A child of x for positions [x's end, upto), whose blocks are the path's own. */
static struct pfx_node *add_child(struct pfx_path *path, struct pfx_node *x, uint32_t from,
	uint32_t upto)
{
	struct pfx_node *kid = pfx_node_new(path->cache, x, pfx_blocks_for(path->cache, upto - from));

	if (kid != NULL) {
		kid->conv = path->conv;
		kid->conv_end = path->n_open;
	}
	return kid;
}

/* Nobody has all tokens of x, or the tree would not have ended before them. */
static struct pfx_node *link_new(struct pfx_cache *cache, struct pfx_node *x)
{
	int linked = pfx_tree_link(cache, x);

	PFX_ASSERT(linked);
	return x;
}

/*
 * The tree ends inside the block that begins at q, which is the tail of the path's node and
 * the path's to write. Returns the node in which the path now ends; NULL: no memory.
 */
static struct pfx_node *grow_tail(struct pfx_path *path, const uint32_t *tokens, uint32_t q,
	uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_node *x = path->node;
	uint32_t block_end = q + cache->block_tokens;
	struct pfx_node *kid = NULL;

	PFX_ASSERT(x->writer == path);
	PFX_ASSERT(pfx_node_end(x) == path->in_tree);
	if (upto <= block_end) {
		extend_tail(path, x, tokens, upto);
		return x;
	}
	if (may_extend(path, x)) {
		if (pfx_node_grow(cache, x, pfx_blocks_for(cache, upto - x->start)) < 0) {
			return NULL;
		}
		extend_tail(path, x, tokens, block_end);
		extend(path, x, tokens, upto);
		return x;
	}
	kid = add_child(path, x, block_end, upto);
	if (kid == NULL) {
		return NULL;
	}
	extend_tail(path, x, tokens, block_end);
	kid->start = block_end;
	kid->digest = x->digest;
	give_blocks(path, kid, tokens, upto);
	return link_new(cache, kid);
}

/* The tree ends at a place inside the block that begins at q, and the path has its own. */
static struct pfx_node *grow_own(struct pfx_path *path, struct pfx_place at, const uint32_t *tokens,
	uint32_t q, uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	uint32_t from = path->in_tree >> cache->shift;
	struct pfx_node *x = at.node;
	struct pfx_node *kid;

	if (x->n > 0 && q == x->start) {
		x = x->parent;
	} else if (q < pfx_node_end(x)) {
		x = pfx_tree_split(cache, x, q);
		if (x == NULL) {
			return NULL;
		}
	}
	if (may_extend(path, x)) {
		if (pfx_node_grow(cache, x, pfx_blocks_for(cache, upto - x->start)) < 0) {
			return NULL;
		}
		pfx_path_adopt(path, x, from, q >> cache->shift);
		extend(path, x, tokens, upto);
		return x;
	}
	kid = add_child(path, x, q, upto);
	if (kid == NULL) {
		return NULL;
	}
	pfx_path_adopt(path, x, from, q >> cache->shift);
	give_blocks(path, kid, tokens, upto);
	return link_new(cache, kid);
}

/*
 * The tree has all tokens up to upto. Where the last block of these goes on in the tree, but in
 * a slower tier, the path's copy is too short to take its place: then the path keeps it, and
 * *n_tree is before it.
 */
static struct pfx_node *grow_none(struct pfx_path *path, struct pfx_place at, uint32_t *n_tree)
{
	struct pfx_cache *cache = path->cache;
	uint32_t last = at.pos >> cache->shift;
	struct pfx_node *x = pfx_tree_settle(cache, at);

	if (x == NULL) {
		return NULL;
	}
	*n_tree = pfx_blocks_for(cache, at.pos);
	if (*n_tree > last && pfx_node_end(x) > at.pos && last - (x->start >> cache->shift) >= x->n_dev) {
		if (last < path->n_tree) {
			/* It has another block with these tokens from the tree already. */
			return path->node;
		}
		*n_tree = last;
	}
	pfx_path_adopt(path, x, path->in_tree >> cache->shift, *n_tree);
	return x;
}

/* Whoever holds the loose node y holds z instead, which has y's block now. */
static void move_holders(struct pfx_cache *cache, struct pfx_node *y, struct pfx_node *z)
{
	y->writer = NULL;
	pfx_list_for(it, &cache->paths) {
		struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		if (path->node != y) {
			continue;
		}
		path->node = z;
		if (path->leased) {
			pfx_lease(cache, z);
			pfx_unlease(cache, y);
		} else {
			pfx_pin(cache, z);
			pfx_unpin_as_it_is(cache, y);
		}
	}
}

/*
 * The path may end in a loose block, and what the tree has of that block be in a slower tier.
 * Where the path has all of it, its block becomes the tree's, and it ends in the tree again.
 * Where it has less, nothing is left to be published: *out is the loose node.
 */
static int rejoin(struct pfx_path *path, struct pfx_place at, const uint32_t *tokens, uint32_t upto,
	struct pfx_node **out)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_node *y = path->node, *z = at.node;
	uint32_t end, from = path->in_tree >> cache->shift;

	*out = NULL;
	if (from >= path->n_tree) {
		return 0;
	}
	while (z->start > y->start) {
		z = z->parent;
	}
	end = y->start + (z->n < cache->block_tokens ? z->n : cache->block_tokens);
	if (z->n_dev > 0 || (at.pos < upto && at.pos < y->start + cache->block_tokens)) {
		return 0;
	}
	if (at.pos < end) {
		if (upto > path->in_tree) {
			extend_tail(path, y, tokens, upto);
		}
		*out = y;
		return 0;
	}
	z = pfx_tree_settle(cache, (struct pfx_place){ .node = z, .pos = end });
	if (z == NULL) {
		return -ENOMEM;
	}
	if (z->n_mem > 0) {
		pfx_node_let_go(cache, z, 0);
	}
	pfx_node_blocks(z, cache->shift)[0] = path->table[from];
	cache->tier[PFX_TIER_DEVICE].arrived++;
	pfx_node_set(cache, y, 0, 0, 0);
	pfx_node_set(cache, z, 1, 1, z->saved);
	tell_promoted(path, z, 0, 1);
	move_holders(cache, y, z);
	return 0;
}

int pfx_path_publish(struct pfx_path *path, const uint32_t *tokens, uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_place at;
	struct pfx_node *x = NULL;
	uint32_t q, n_tree = pfx_blocks_for(cache, upto);

	PFX_ASSERT(!path->leased);
	PFX_ASSERT(upto >= path->len);
	PFX_ASSERT(pfx_blocks_for(cache, upto) <= path->n_blocks);
	path->len = upto;
	if (path->apart) {
		pfx_path_reached(path);
		return 0;
	}
	at = pfx_path_walk_on(path, tokens, upto);
	PFX_ASSERT(at.pos >= path->in_tree);
	if (path->node->state == PFX_NODE_LOOSE) {
		if (rejoin(path, at, tokens, upto, &x) < 0) {
			pfx_path_reached(path);
			return -ENOMEM;
		}
		at = pfx_path_walk_on(path, tokens, upto);
	}
	q = pfx_block_start(cache, at.pos);
	if (x != NULL) {
		q = upto;
	} else if (at.pos == upto) {
		x = grow_none(path, at, &n_tree);
	} else if (q >> cache->shift < path->n_tree) {
		x = grow_tail(path, tokens, q, upto);
	} else {
		x = grow_own(path, at, tokens, q, upto);
	}
	if (x == NULL) {
		pfx_path_reached(path);
		return -ENOMEM;
	}
	path->n_tree = n_tree;
	path->in_tree = upto;
	pfx_path_move_pin(path, x);
	if (at.pos < upto) {
		x->writer = pfx_block_start(cache, upto) < upto ? path : NULL;
	}
	if (cache->slots > 1 && x->n > 0) {
		pfx_save_check(cache, x->parent);
		pfx_save_check(cache, x);
	}
	pfx_path_reached(path);
	return 0;
}
