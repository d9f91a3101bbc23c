/* Paths: how they open, go on in the tree, get room and are closed. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "radix/path.h"

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

void pfx_path_move_pin(struct pfx_path *path, struct pfx_node *x)
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

static struct pfx_path *path_new(struct pfx_cache *cache, struct pfx_space *space,
	uint32_t n_blocks)
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
	path = path_new(cache, space, pfx_blocks_for(cache, at.pos));
	if (path == NULL) {
		return -ENOMEM;
	}
	if (space != NULL) {
		path->conv = pfx_conv_at(cache, reach.node, reach.pos);
		pfx_pin(cache, at.node);
		path->node = at.node;
		path->len = path->in_tree = at.pos;
		pfx_path_adopt(path, at.node, 0, pfx_blocks_for(cache, at.pos));
		path->n_blocks = path->n_tree = pfx_blocks_for(cache, at.pos);
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
	if (pfx_path_policy(path)->ops->hit != NULL) {
		pfx_path_policy(path)->ops->hit(pfx_path_policy(path), path->table,
			path->in_tree >> cache->shift);
	}
	if (hit != NULL) {
		*hit = found;
	}
	*out = path;
	return 0;
}

struct pfx_place pfx_path_walk_on(const struct pfx_path *path, const uint32_t *tokens, uint32_t n)
{
	struct pfx_place at = {
		.node = path->node,
		.pos = pfx_block_start(path->cache, path->in_tree),
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
	at = device_end(cache, pfx_path_walk_on(path, tokens, n));
	if (at.pos <= path->len) {
		return path->len;
	}
	if (table_room(path, pfx_blocks_for(cache, at.pos)) < 0 ||
		(x = pfx_tree_settle(cache, at)) == NULL) {
		return -ENOMEM;
	}
	pfx_path_adopt(path, x, from, pfx_blocks_for(cache, at.pos));
	path->n_blocks = path->n_tree = pfx_blocks_for(cache, at.pos);
	path->len = path->in_tree = at.pos;
	pfx_path_move_pin(path, x);
	pfx_path_reached(path);
	if (pfx_path_policy(path)->ops->hit != NULL) {
		pfx_path_policy(path)->ops->hit(pfx_path_policy(path), path->table + from,
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

	if (at >= path->n_tree || pfx_block_start(path->cache, path->len) == path->len ||
		path->node->writer == path) {
		return TAIL_OWN;
	}
	if (path->node->writer == NULL && pfx_node_end(path->node) == path->len) {
		return TAIL_TAKE;
	}
	return TAIL_COPY;
}

void pfx_path_expect(struct pfx_path *path, uint32_t tokens)
{
	(void)table_room(path, pfx_blocks_for(path->cache, tokens));
}

int pfx_path_reserve(struct pfx_path *path, uint32_t upto, struct pfx_block_copy *copy)
{
	struct pfx_cache *cache = path->cache;
	uint32_t want = pfx_blocks_for(cache, upto);
	uint32_t need = want > path->n_blocks ? want - path->n_blocks : 0;
	enum tail tail;

	PFX_ASSERT(!path->leased);
	*copy = (struct pfx_block_copy){ .src = PFX_BLOCK_NONE, .dst = PFX_BLOCK_NONE };
	if (upto <= path->len) {
		return 0;
	}
	tail = tail_of(path);
	need += tail == TAIL_COPY;
	if (need > (uint64_t)pfx_path_device(path)->count[PFX_BLOCK_FREE] +
			pfx_path_device(path)->count[PFX_BLOCK_LEAVING] +
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
		copy->dst = pfx_pool_take(pfx_path_device(path), PFX_BLOCK_FILLING);
		copy->n = path->len - pfx_block_start(cache, path->len);
		path->table[at] = copy->dst;
		path->n_tree = at;
		cache->copied_blocks++;
	}
	if (path->n_blocks < want) {
		pfx_pool_take_all(pfx_path_device(path), path->table + path->n_blocks,
			want - path->n_blocks, PFX_BLOCK_FILLING);
		path->n_blocks = want;
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
	struct pfx_evict *evict = pfx_path_policy(path);
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
		pfx_pool_release(pfx_path_device(path), path->table[i]);
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
