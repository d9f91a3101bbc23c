/* What a path has matched beyond the device, and paths that are leases. */
#include <errno.h>

#include "base/assert.h"
#include "base/error.h"
#include "radix/priv.h"

uint32_t pfx_path_reach(const struct pfx_path *path)
{
	return path->ahead != NULL ? path->reach : path->len;
}

int pfx_path_apart(const struct pfx_path *path)
{
	return path->apart;
}

void pfx_path_forgo(struct pfx_path *path)
{
	struct pfx_node *x = path->ahead;

	if (x != NULL) {
		path->ahead = NULL;
		pfx_unpin(path->cache, x);
	}
}

void pfx_path_reached(struct pfx_path *path)
{
	if (path->ahead != NULL && path->len >= path->reach) {
		pfx_path_forgo(path);
	}
}

/* The node above the end of the match that has the block; *index becomes its place there. */
static struct pfx_node *node_of(const struct pfx_path *path, uint32_t *index)
{
	const struct pfx_cache *cache = path->cache;
	struct pfx_node *x = path->ahead;
	uint64_t pos = (uint64_t)*index << cache->shift;

	if (x == NULL || pos >= path->reach || pos + cache->block_tokens <= path->len) {
		return NULL;
	}
	while (x->start > pos) {
		x = x->parent;
	}
	*index -= x->start >> cache->shift;
	return x;
}

static uint32_t record_before(const struct pfx_cache *cache, const struct pfx_node *x,
	uint32_t index)
{
	if (index > 0) {
		return pfx_node_records(x, cache->shift)[index - 1];
	}
	x = x->parent;
	if (x->n == 0) {
		return PFX_BLOCK_NONE;
	}
	return pfx_node_records(x, cache->shift)[pfx_node_n_blocks(x, cache->shift) - 1];
}

int pfx_path_source(const struct pfx_path *path, uint32_t block_index, struct pfx_source *out)
{
	const struct pfx_cache *cache = path->cache;
	uint32_t i = block_index, first, here;
	const struct pfx_node *x = node_of(path, &i);

	if (x == NULL) {
		return -ENOENT;
	}
	first = i << cache->shift;
	here = path->reach - (x->start + first);
	*out = (struct pfx_source){
		.id = PFX_BLOCK_NONE,
		.parent_id = PFX_BLOCK_NONE,
		.n_tokens = here < cache->block_tokens ? here : cache->block_tokens,
		.tokens = x->run + first,
	};
	if (i < x->n_mem) {
		out->tier = i < x->n_dev ? PFX_TIER_DEVICE : PFX_TIER_HOST;
		out->id = pfx_node_blocks(x, cache->shift)[i];
		if (cache->tier[out->tier].pool.state[out->id] != PFX_BLOCK_BAD) {
			return 0;
		}
	}
	if (x->saved < first + out->n_tokens) {
		return -ENOENT;
	}
	out->tier = PFX_TIER_DISK;
	out->id = pfx_node_records(x, cache->shift)[i];
	out->parent_id = record_before(cache, x, i);
	here = x->saved - first;
	out->record_tokens = here < cache->block_tokens ? here : cache->block_tokens;
	return 0;
}

/* ---- a source that turned out to be bad ---- */

/* Is y x, or below it? */
static int below(const struct pfx_node *y, const struct pfx_node *x)
{
	while (y->start > x->start) {
		y = y->parent;
	}
	return y == x;
}

/* The path lets go of what it holds of x from position pos on, and of all below x. */
static void retreat(struct pfx_path *path, struct pfx_node *x, uint32_t pos)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_node *to = pos > x->start ? x : x->parent;
	struct pfx_node *old = path->ahead;

	if (old != NULL && path->reach > pos && below(old, x)) {
		path->ahead = pos > path->len ? to : NULL;
		path->reach = pos;
		if (path->ahead != NULL) {
			pfx_pin(cache, to);
		}
		pfx_unpin_as_it_is(cache, old);
	}
	old = path->node;
	/* A path apart may hold it as well: it was told to keep to itself after it had published. */
	if (old != NULL && path->in_tree > pos && below(old, x)) {
		/* Its last block ends inside one of the tree's, which it could not take. */
		PFX_ASSERT(path->n_tree <= pos >> cache->shift);
		path->in_tree = pos;
		path->holds_more = to == x;
		path->node = to;
		pfx_pin(cache, to);
		pfx_unpin_as_it_is(cache, old);
	}
}

void pfx_path_lost(struct pfx_path *path, uint32_t block_index)
{
	struct pfx_cache *cache = path->cache;
	uint32_t i = block_index, pos = block_index << cache->shift;
	struct pfx_node *x = node_of(path, &i);
	int in_memory, bad, keeps;

	if (x == NULL || i < x->n_dev) {
		return;
	}
	if (x->state != PFX_NODE_LINKED) {
		pfx_path_forgo(path);
		return;
	}
	in_memory = i < x->n_mem;
	bad = in_memory && cache->tier[PFX_TIER_HOST].pool.state[
		pfx_node_blocks(x, cache->shift)[i]] == PFX_BLOCK_BAD;
	cache->tier[in_memory && !bad ? PFX_TIER_HOST : PFX_TIER_DISK].failed++;
	/*
	 * What stays on disk begins a node, so that no path is left with the middle of one, which
	 * another cut would take away from it. Without the memory for that, nothing stays.
	 */
	keeps = in_memory && !bad && x->saved > i << cache->shift;
	if (keeps && i > 0) {
		keeps = pfx_tree_split(cache, x, pos) != NULL;
		i = keeps ? 0 : i;
	}
	pfx_list_for(it, &cache->paths) {
		struct pfx_path *other = pfx_container_of(it, struct pfx_path, link);

		if (other->space == path->space) {
			retreat(other, x, pos);
		}
	}
	/* With a bad host block the record was the source. */
	if (!keeps) {
		pfx_lose_below(cache, x, i, PFX_TIER_DISK);
	}
	if (in_memory) {
		pfx_lose_below(cache, x, i, PFX_TIER_HOST);
	}
}

/* ---- leases ---- */

/*
 * A path that has a copy of its own of a block in which it ends in the tree takes the tree's
 * instead, or, where that is not on the device, ends before it. 0: no memory.
 */
static int adopt_last(struct pfx_path *path)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_node *x = path->node;
	uint32_t pos = path->n_tree << cache->shift;
	uint32_t i = path->n_tree - (x->start >> cache->shift);

	if (path->in_tree <= pos) {
		return 1;
	}
	if (i < x->n_dev) {
		pfx_pool_release(&cache->tier[PFX_TIER_DEVICE].pool, path->table[path->n_tree]);
		path->table[path->n_tree++] = pfx_node_blocks(x, cache->shift)[i];
		return 1;
	}
	x = i == 0 ? x->parent : pfx_tree_settle(cache, (struct pfx_place){ .node = x, .pos = pos });
	if (x == NULL) {
		return 0;
	}
	path->in_tree = pos;
	pfx_pin(cache, x);
	pfx_unpin(cache, path->node);
	path->node = x;
	return 1;
}

int pfx_path_lease(struct pfx_path *path)
{
	struct pfx_cache *cache = path->cache;
	struct pfx_level *device = &cache->tier[PFX_TIER_DEVICE];
	uint64_t more = device->leased;
	struct pfx_node *x = path->node;

	if (path->apart || x->state == PFX_NODE_FLUSHED) {
		return -ENOENT;
	}
	if (path->leased) {
		return 0;
	}
	for (x = path->node; x->n > 0 && x->leases == 0; x = x->parent) {
		more += x->n_dev;
	}
	if (more > device->pool.n / 2) {
		return PFX_E_LIMIT;
	}
	if (!adopt_last(path)) {
		return -ENOMEM;
	}
	pfx_path_drop_own(path);
	pfx_path_forgo(path);
	path->len = path->in_tree;
	path->leased = 1;
	cache->n_leases++;
	pfx_lease(cache, path->node);
	pfx_unpin(cache, path->node);
	return 0;
}
