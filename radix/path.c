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

/*
 * table[from..to) becomes the tree's blocks on the way to x. Only when an entry has been
 * rewritten is the block of its own that stood there given up (rule 7).
 */
static void adopt(struct pfx_path *path, const struct pfx_node *x, uint32_t from, uint32_t to)
{
	struct pfx_cache *cache = path->cache;

	for (; x->n > 0 && to > from; x = x->parent) {
		const pfx_block_t *blocks = pfx_node_blocks(x, cache->shift);
		uint32_t first = x->start >> cache->shift;

		while (to > from && to > first) {
			pfx_block_t old;

			to--;
			old = path->table[to];
			path->table[to] = blocks[to - first];
			if (to >= path->n_tree && to < path->n_blocks) {
				pfx_pool_release(&cache->pool, old);
				cache->duplicate_blocks++;
			}
		}
	}
}

/* The node that ends with the block of at.pos, cut out if need be. NULL: no memory. */
static struct pfx_node *settle(struct pfx_cache *cache, struct pfx_place at)
{
	uint32_t end = blocks_for(cache, at.pos) << cache->shift;

	return end < pfx_node_end(at.node) ? pfx_tree_split(cache, at.node, end) : at.node;
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
	pfx_unpin(path->cache, old);
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
	struct pfx_place at = { 0 };
	struct pfx_hit found = {
		.mark = PFX_MARK_NONE,
		.end = n > 0 ? PFX_END_NEVER_SEEN : PFX_END_WHOLE,
	};
	struct pfx_path *path;

	if (space != NULL) {
		at.node = &space->root;
		at = pfx_tree_walk(cache, at, tokens, n);
		pfx_cache_describe(cache, at, tokens, n, &found);
		at.node = settle(cache, at);
	}
	if ((space != NULL && at.node == NULL) ||
		(path = path_new(cache, space, blocks_for(cache, at.pos))) == NULL) {
		return -ENOMEM;
	}
	if (space != NULL) {
		pfx_pin(cache, at.node);
		path->node = at.node;
		path->len = path->in_tree = at.pos;
		adopt(path, at.node, 0, blocks_for(cache, at.pos));
		path->n_blocks = path->n_tree = blocks_for(cache, at.pos);
	}
	if (found.mark != PFX_MARK_NONE) {
		pfx_marks_touch(&cache->marks, found.mark);
	}
	path->n_open = n;
	if (cache->evict.ops->hit != NULL) {
		cache->evict.ops->hit(&cache->evict, path->table, path->n_tree);
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

	if (path->apart || path->in_tree < path->len || path->n_tree < path->n_blocks) {
		return path->len;
	}
	at = walk_on(path, tokens, n);
	if (at.pos <= path->len) {
		return path->len;
	}
	if (table_room(path, blocks_for(cache, at.pos)) < 0 || (x = settle(cache, at)) == NULL) {
		return -ENOMEM;
	}
	adopt(path, x, from, blocks_for(cache, at.pos));
	path->n_blocks = path->n_tree = blocks_for(cache, at.pos);
	path->len = path->in_tree = at.pos;
	move_pin(path, x);
	if (cache->evict.ops->hit != NULL) {
		cache->evict.ops->hit(&cache->evict, path->table + from, path->n_tree - from);
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

	*copy = (struct pfx_block_copy){ .src = PFX_BLOCK_NONE, .dst = PFX_BLOCK_NONE };
	if (upto <= path->len) {
		return 0;
	}
	tail = tail_of(path);
	need += tail == TAIL_COPY;
	if (need > (uint64_t)cache->pool.count[PFX_BLOCK_FREE] + pfx_cached_blocks(cache)) {
		return PFX_E_FULL;
	}
	if (table_room(path, want) < 0) {
		return -ENOMEM;
	}
	pfx_evict_until(cache, need);
	if (tail == TAIL_TAKE) {
		path->node->writer = path;
	}
	if (tail == TAIL_COPY) {
		uint32_t at = path->len >> cache->shift;

		copy->src = path->table[at];
		copy->dst = pfx_pool_take(&cache->pool, PFX_BLOCK_FILLING);
		copy->n = path->len - block_start(cache, path->len);
		path->table[at] = copy->dst;
		path->n_tree = at;
		cache->copied_blocks++;
	}
	while (path->n_blocks < want) {
		path->table[path->n_blocks++] = pfx_pool_take(&cache->pool, PFX_BLOCK_FILLING);
	}
	return 0;
}

/* May x be made longer at its end, instead of getting a child: is nobody else held to it? */
static int may_extend(const struct pfx_path *path, const struct pfx_node *x)
{
	return x->n > 0 && x->kids == NULL && x->pins == (x == path->node);
}

/* The path's own blocks of positions [x's end, upto) become those of x, which has room. */
static void give_blocks(struct pfx_path *path, struct pfx_node *x, const uint32_t *tokens,
	uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	uint32_t end = pfx_node_end(x);
	uint32_t first = blocks_for(cache, end);

	for (uint32_t i = first; i < blocks_for(cache, upto); i++) {
		pfx_pool_move(&cache->pool, path->table[i], PFX_BLOCK_READY);
	}
	if (cache->evict.ops->born != NULL) {
		cache->evict.ops->born(&cache->evict, path->table + first,
			blocks_for(cache, upto) - first, cache->clock);
	}
	pfx_node_append(cache, x, tokens + end, upto - end, path->table + first);
}

/* The same for a node that stands in the tree. */
static void extend(struct pfx_path *path, struct pfx_node *x, const uint32_t *tokens, uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	uint32_t old = pfx_node_n_blocks(x, cache->shift);

	cache->tokens += upto - pfx_node_end(x);
	give_blocks(path, x, tokens, upto);
	if (x->pins > 0) {
		cache->pinned_blocks += pfx_node_n_blocks(x, cache->shift) - old;
	}
}

/* x's last block, which this path may write in, now goes on to position upto. */
static void extend_tail(struct pfx_path *path, struct pfx_node *x, const uint32_t *tokens,
	uint32_t upto)
{
	if (x->state == PFX_NODE_LINKED) {
		extend(path, x, tokens, upto);
	} else {
		give_blocks(path, x, tokens, upto);
		pfx_tree_link(path->cache, x);
	}
}

/* A child of x for positions [x's end, upto), whose blocks are the path's own. */
static struct pfx_node *add_child(struct pfx_path *path, struct pfx_node *x, uint32_t from,
	uint32_t upto)
{
	return pfx_node_new(path->cache, x, blocks_for(path->cache, upto - from));
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
	pfx_tree_link(cache, kid);
	return kid;
}

/* The tree ends at a place inside the block that begins at q, and the path has its own. */
static struct pfx_node *grow_own(struct pfx_path *path, struct pfx_place at, const uint32_t *tokens,
	uint32_t q, uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
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
		extend(path, x, tokens, upto);
		return x;
	}
	kid = add_child(path, x, q, upto);
	if (kid != NULL) {
		give_blocks(path, kid, tokens, upto);
		pfx_tree_link(cache, kid);
	}
	return kid;
}

int pfx_path_publish(struct pfx_path *path, const uint32_t *tokens, uint32_t upto)
{
	struct pfx_cache *cache = path->cache;
	uint32_t from = path->in_tree >> cache->shift;
	struct pfx_place at;
	struct pfx_node *x;
	uint32_t q;

	PFX_ASSERT(upto >= path->len);
	PFX_ASSERT(blocks_for(cache, upto) <= path->n_blocks);
	path->len = upto;
	if (path->apart) {
		return 0;
	}
	at = walk_on(path, tokens, upto);
	PFX_ASSERT(at.pos >= path->in_tree);
	q = at.pos == upto ? blocks_for(cache, upto) << cache->shift : block_start(cache, at.pos);
	if (at.pos == upto) {
		x = settle(cache, at);
	} else if (q >> cache->shift < path->n_tree) {
		x = grow_tail(path, tokens, q, upto);
	} else {
		x = grow_own(path, at, tokens, q, upto);
	}
	if (x == NULL) {
		return -ENOMEM;
	}
	adopt(path, x, from, q >> cache->shift);
	path->n_tree = blocks_for(cache, upto);
	path->in_tree = upto;
	move_pin(path, x);
	if (at.pos < upto) {
		x->writer = block_start(cache, upto) < upto ? path : NULL;
	}
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
	struct pfx_evict *evict = &path->cache->evict;
	uint32_t reply = path->reply;

	if (reply == 0 && path->in_tree > path->n_open) {
		reply = path->in_tree - path->n_open;
	}
	if (evict->ops->used != NULL) {
		evict->ops->used(evict, path->table, path->n_tree, reply);
	}
}

void pfx_path_close(struct pfx_path *path)
{
	if (path == NULL) {
		return;
	}
	for (uint32_t i = path->n_blocks; i-- > path->n_tree;) {
		pfx_pool_release(&path->cache->pool, path->table[i]);
	}
	if (path->node != NULL) {
		if (path->node->writer == path) {
			path->node->writer = NULL;
		}
		tell_used(path);
		pfx_unpin(path->cache, path->node);
	}
	pfx_list_remove(&path->link);
	pfx_free(path->table);
	pfx_free(path);
}
