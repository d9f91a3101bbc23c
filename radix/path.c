#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "radix/priv.h"

static uint32_t blocks_for(const struct pfx_cache *cache, uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + cache->block_tokens - 1) >> cache->shift);
}

static uint32_t block_start(const struct pfx_cache *cache, uint32_t pos)
{
	return pos & ~(cache->block_tokens - 1);
}

static int table_room(struct pfx_path *path, uint32_t n)
{
	uint32_t cap = path->cap + path->cap / 2;
	pfx_block_t *table;

	if (n <= path->cap) {
		return 0;
	}
	cap = cap > n ? cap : n;
	table = pfx_reallocarray(path->table, cap, sizeof(*table));
	if (table == NULL) {
		return -ENOMEM;
	}
	path->table = table;
	path->cap = cap;
	return 0;
}

static struct pfx_pool *device(const struct pfx_path *path)
{
	return &path->cache->tier[PFX_TIER_DEVICE].pool;
}

static struct pfx_evict *policy(const struct pfx_path *path)
{
	return &path->cache->tier[PFX_TIER_DEVICE].evict;
}

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
	pfx_pool_move(device(path), path->table[at], PFX_BLOCK_READY);
	cache->tier[PFX_TIER_DEVICE].arrived++;
}

/* Blocks [from, to) of x have come to the device, from it or a slower tier: tells the policy. */
static void tell_promoted(struct pfx_path *path, const struct pfx_node *x, uint32_t from,
	uint32_t to)
{
	struct pfx_cache *cache = path->cache;
	const pfx_block_t *blocks = pfx_node_blocks(x, cache->shift);
	uint32_t full = x->n >> cache->shift;
	struct pfx_evict *evict = policy(path);

	if (evict->ops->born != NULL) {
		evict->ops->born(evict, blocks + from, to - from, cache->clock);
	}
	if (evict->ops->filled != NULL && from < full) {
		uint64_t digest = pfx_tree_digest(cache, x, x->start + (from << cache->shift));

		for (uint32_t i = from; i < to && i < full; i++) {
			digest = pfx_digest_step(digest, pfx_ghosts_hash(&cache->ghosts,
				x->run + ((size_t)i << cache->shift), cache->block_tokens));
			evict->ops->filled(evict, blocks[i], digest);
		}
	}
}

/*
 * table[from..to) becomes the tree's blocks on the way to x. Only when an entry has been
 * rewritten is the block of its own that stood there given up (rule 7). Where the tree has
 * the tokens in a slower tier, the path's own block becomes the tree's.
 */
static void adopt(struct pfx_path *path, struct pfx_node *x, uint32_t from, uint32_t to)
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
				pfx_pool_release(device(path), old);
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

/* The path's pin goes from its node to x; with it goes the right to write in the old one. */
static void move_pin(struct pfx_path *path, struct pfx_node *x)
{
	struct pfx_node *old = path->node;

	if (x == old) {
		return;
	}
	if (old->writer == path) {
		old->writer = NULL;
	}
	pfx_pin(path->cache, x);
	path->node = x;
	path->holds_more = 0;
	if (path->cache->slots > 1) {
		pfx_save_check(path->cache, old);
	}
	pfx_unpin(path->cache, old);
}

/* How far the device goes on the way to a place that ends a node or is in its last block. */
static struct pfx_place device_end(const struct pfx_cache *cache, struct pfx_place at)
{
	uint32_t end;

	while (at.node->n > 0 && at.node->n_dev == 0) {
		at.node = at.node->parent;
	}
	end = at.node->start + (at.node->n_dev << cache->shift);
	at.pos = at.pos < end ? at.pos : end;
	return at;
}

static struct pfx_path *path_new(struct pfx_cache *cache, struct pfx_space *space, uint32_t n_blocks)
{
	struct pfx_path *path = pfx_calloc(1, sizeof(*path));

	if (path == NULL) {
		return NULL;
	}
	path->cache = cache;
	path->space = space;
	path->apart = space == NULL;
	if (table_room(path, n_blocks) < 0) {
		pfx_free(path);
		return NULL;
	}
	pfx_list_push_back(&cache->paths, &path->link);
	return path;
}

int pfx_path_open(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *hit, struct pfx_path **out)
{
	struct pfx_place at = { 0 }, reach = { 0 };
	struct pfx_hit found = {
		.mark = PFX_MARK_NONE,
		.end = n > 0 ? PFX_END_NEVER_SEEN : PFX_END_WHOLE,
	};
	struct pfx_path *path;

	if (space != NULL) {
		reach.node = &space->root;
		reach = pfx_tree_walk(cache, reach, tokens, n);
		pfx_cache_describe(cache, reach, tokens, n, &found);
		reach.node = pfx_tree_settle(cache, reach);
		if (reach.node == NULL) {
			return -ENOMEM;
		}
		at = device_end(cache, reach);
		at.node = pfx_tree_settle(cache, at);
		if (at.node == NULL) {
			return -ENOMEM;
		}
	}
	path = path_new(cache, space, blocks_for(cache, at.pos));
	if (path == NULL) {
		return -ENOMEM;
	}
	if (space != NULL) {
		path->conv = pfx_conv_at(cache, reach.node, reach.pos);
		pfx_pin(cache, at.node);
		path->node = at.node;
		path->len = path->in_tree = at.pos;
		adopt(path, at.node, 0, blocks_for(cache, at.pos));
		path->n_blocks = path->n_tree = blocks_for(cache, at.pos);
		if (at.pos < reach.pos) {
			pfx_pin(cache, reach.node);
			path->ahead = reach.node;
			path->reach = reach.pos;
		}
		for (struct pfx_node *x = reach.node; x->n > 0; x = x->parent) {
			x->hits++;
		}
		if (cache->slots > 1 && cache->save == PFX_SAVE_REUSED) {
			pfx_save_reused(cache, reach.node);
		}
	}
	if (found.mark != PFX_MARK_NONE) {
		pfx_marks_touch(&cache->marks, found.mark);
	}
	path->n_open = n;
	if (policy(path)->ops->hit != NULL) {
		policy(path)->ops->hit(policy(path), path->table, path->in_tree >> cache->shift);
	}
	if (hit != NULL) {
		*hit = found;
	}
	*out = path;
	return 0;
}

/* Walks on from the start of the block in which the published part of the path ends. */
static struct pfx_place walk_on(const struct pfx_path *path, const uint32_t *tokens, uint32_t n)
{
	struct pfx_place at = {
		.node = path->node,
		.pos = block_start(path->cache, path->in_tree),
	};

	if (at.node->n > 0 && at.node->start == at.pos) {
		at.node = at.node->parent;
	}
	return pfx_tree_walk(path->cache, at, tokens, n);
}

int64_t pfx_path_follow(struct pfx_path *path, const uint32_t *tokens, uint32_t n)
{
	struct pfx_cache *cache = path->cache;
	uint32_t from = path->in_tree >> cache->shift;
	struct pfx_place at;
	struct pfx_node *x;

	if (path->apart || path->leased || path->in_tree < path->len ||
		path->n_tree < path->n_blocks) {
		return path->len;
	}
	at = device_end(cache, walk_on(path, tokens, n));
	if (at.pos <= path->len) {
		return path->len;
	}
	if (table_room(path, blocks_for(cache, at.pos)) < 0 || (x = pfx_tree_settle(cache, at)) == NULL) {
		return -ENOMEM;
	}
	adopt(path, x, from, blocks_for(cache, at.pos));
	path->n_blocks = path->n_tree = blocks_for(cache, at.pos);
	path->len = path->in_tree = at.pos;
	move_pin(path, x);
	pfx_path_reached(path);
	if (policy(path)->ops->hit != NULL) {
		policy(path)->ops->hit(policy(path), path->table + from,
			(path->in_tree >> cache->shift) - from);
	}
	return path->len;
}

/* What must happen before the path may write into the block in which it ends. */
enum tail {
	TAIL_OWN,  /* nothing */
	TAIL_TAKE, /* the right to write in it is free (rule 8) */
	TAIL_COPY, /* it is somebody else's */
};

static enum tail tail_of(const struct pfx_path *path)
{
	uint32_t at = path->len >> path->cache->shift;

	if (at >= path->n_tree || block_start(path->cache, path->len) == path->len ||
		path->node->writer == path) {
		return TAIL_OWN;
	}
	if (path->node->writer == NULL && pfx_node_end(path->node) == path->len) {
		return TAIL_TAKE;
	}
	return TAIL_COPY;
}

int pfx_path_reserve(struct pfx_path *path, uint32_t upto, struct pfx_block_copy *copy)
{
	struct pfx_cache *cache = path->cache;
	uint32_t want = blocks_for(cache, upto);
	uint32_t need = want > path->n_blocks ? want - path->n_blocks : 0;
	enum tail tail;

	PFX_ASSERT(!path->leased);
	*copy = (struct pfx_block_copy){ .src = PFX_BLOCK_NONE, .dst = PFX_BLOCK_NONE };
	if (upto <= path->len) {
		return 0;
	}
	tail = tail_of(path);
	need += tail == TAIL_COPY;
	if (need > (uint64_t)device(path)->count[PFX_BLOCK_FREE] +
			device(path)->count[PFX_BLOCK_LEAVING] +
			pfx_evictable_blocks(cache, PFX_TIER_DEVICE)) {
		return PFX_E_FULL;
	}
	if (table_room(path, want) < 0) {
		return -ENOMEM;
	}
	if (pfx_make_room(cache, need) < 0) {
		return -EAGAIN;
	}
	if (tail == TAIL_TAKE) {
		path->node->writer = path;
	}
	if (tail == TAIL_COPY) {
		uint32_t at = path->len >> cache->shift;

		copy->src = path->table[at];
		copy->dst = pfx_pool_take(device(path), PFX_BLOCK_FILLING);
		copy->n = path->len - block_start(cache, path->len);
		path->table[at] = copy->dst;
		path->n_tree = at;
		cache->copied_blocks++;
	}
	while (path->n_blocks < want) {
		path->table[path->n_blocks++] = pfx_pool_take(device(path), PFX_BLOCK_FILLING);
	}
	return 0;
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
	uint32_t first = blocks_for(cache, end);

	for (uint32_t i = first; i < blocks_for(cache, upto); i++) {
		pfx_pool_move(device(path), path->table[i], PFX_BLOCK_READY);
	}
	if (policy(path)->ops->born != NULL) {
		policy(path)->ops->born(policy(path), path->table + first,
			blocks_for(cache, upto) - first, cache->clock);
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
	struct pfx_node *kid = pfx_node_new(path->cache, x, blocks_for(path->cache, upto - from));

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
		if (pfx_node_grow(cache, x, blocks_for(cache, upto - x->start)) < 0) {
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
		if (pfx_node_grow(cache, x, blocks_for(cache, upto - x->start)) < 0) {
			return NULL;
		}
		adopt(path, x, from, q >> cache->shift);
		extend(path, x, tokens, upto);
		return x;
	}
	kid = add_child(path, x, q, upto);
	if (kid == NULL) {
		return NULL;
	}
	adopt(path, x, from, q >> cache->shift);
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
	*n_tree = blocks_for(cache, at.pos);
	if (*n_tree > last && pfx_node_end(x) > at.pos && last - (x->start >> cache->shift) >= x->n_dev) {
		if (last < path->n_tree) {
			/* It has another block with these tokens from the tree already. */
			return path->node;
		}
		*n_tree = last;
	}
	adopt(path, x, path->in_tree >> cache->shift, *n_tree);
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
	uint32_t q, n_tree = blocks_for(cache, upto);

	PFX_ASSERT(!path->leased);
	PFX_ASSERT(upto >= path->len);
	PFX_ASSERT(blocks_for(cache, upto) <= path->n_blocks);
	path->len = upto;
	if (path->apart) {
		pfx_path_reached(path);
		return 0;
	}
	at = walk_on(path, tokens, upto);
	PFX_ASSERT(at.pos >= path->in_tree);
	if (path->node->state == PFX_NODE_LOOSE) {
		if (rejoin(path, at, tokens, upto, &x) < 0) {
			pfx_path_reached(path);
			return -ENOMEM;
		}
		at = walk_on(path, tokens, upto);
	}
	q = block_start(cache, at.pos);
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
	move_pin(path, x);
	if (at.pos < upto) {
		x->writer = block_start(cache, upto) < upto ? path : NULL;
	}
	if (cache->slots > 1 && x->n > 0) {
		pfx_save_check(cache, x->parent);
		pfx_save_check(cache, x);
	}
	pfx_path_reached(path);
	return 0;
}

uint32_t pfx_path_mark(struct pfx_path *path)
{
	struct pfx_node *x = path->node;

	if (path->apart || path->len == 0 || path->in_tree < path->len) {
		return PFX_MARK_NONE;
	}
	x = pfx_tree_mark_owner(path->cache, x, path->len);
	return pfx_marks_put(&path->cache->marks, x, path->len);
}

void pfx_path_keep_private(struct pfx_path *path)
{
	path->apart = 1;
}

uint32_t pfx_path_len(const struct pfx_path *path)
{
	return path->len;
}

const pfx_block_t *pfx_path_blocks(const struct pfx_path *path, uint32_t *n)
{
	*n = path->n_blocks;
	return path->table;
}

void pfx_path_reply(struct pfx_path *path, uint32_t n_tokens)
{
	path->reply = n_tokens;
}

static void tell_used(struct pfx_path *path)
{
	struct pfx_evict *evict = policy(path);
	uint32_t reply = path->reply;

	if (reply == 0 && path->in_tree > path->n_open) {
		reply = path->in_tree - path->n_open;
	}
	if (evict->ops->used != NULL) {
		evict->ops->used(evict, path->table, path->n_tree, reply);
	}
}

void pfx_path_drop_own(struct pfx_path *path)
{
	for (uint32_t i = path->n_blocks; i-- > path->n_tree;) {
		pfx_pool_release(device(path), path->table[i]);
	}
	path->n_blocks = path->n_tree;
	if (path->node != NULL && path->node->writer == path) {
		path->node->writer = NULL;
		if (path->cache->slots > 1) {
			pfx_save_check(path->cache, path->node);
		}
	}
}

/* Gives back the pins, and says how long what they held is to live. */
static void let_go(struct pfx_path *path)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_node *x = path->node;
	int linked = x->state == PFX_NODE_LINKED;

	if (x->state != PFX_NODE_FLUSHED) {
		pfx_conv_used(path->ahead != NULL ? path->ahead : x, path->conv, path->n_open);
	}
	tell_used(path);
	if (path->leased) {
		pfx_unlease(cache, x);
		cache->n_leases--;
	} else {
		for (struct pfx_node *y = x; y->n > 0 && y->keep_until < path->keep_until;
			y = y->parent) {
			y->keep_until = path->keep_until;
		}
		/* While the one ahead is held, so is all above it. */
		if (path->ahead != NULL) {
			pfx_unpin_as_it_is(cache, x);
			linked = linked && path->ahead->state == PFX_NODE_LINKED;
			x = path->ahead;
		}
		pfx_unpin(cache, x);
	}
	if (path->last_turn && linked) {
		pfx_conv_end(cache, x, path->conv);
	}
}

void pfx_path_close(struct pfx_path *path)
{
	if (path == NULL) {
		return;
	}
	pfx_path_drop_own(path);
	if (path->node != NULL) {
		let_go(path);
	}
	pfx_list_remove(&path->link);
	pfx_free(path->table);
	pfx_free(path);
}
