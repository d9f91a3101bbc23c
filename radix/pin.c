#include "base/assert.h"
#include "radix/priv.h"

void pfx_pin(struct pfx_cache *cache, struct pfx_node *x)
{
	for (; x != NULL && x->pins++ == 0; x = x->parent) {
		if (x->n > 0) {
			PFX_ASSERT(x->state == PFX_NODE_LINKED);
			cache->evict.ops->remove(&cache->evict, x);
			cache->pinned_blocks += pfx_node_n_blocks(x, cache->shift);
		}
	}
}

/* x has lost its last pin. */
static void released(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);

	if (x->n == 0) {
		return;
	}
	if (x->state == PFX_NODE_LINKED) {
		cache->pinned_blocks -= n_blocks;
		x->age = cache->clock;
		pfx_node_trim(cache, x);
		cache->evict.ops->add(&cache->evict, x);
		return;
	}
	pfx_node_tighten(cache, x);
	pfx_node_free(cache, x);
}

void pfx_unpin(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_node *lowest = NULL;

	cache->clock++;
	while (x != NULL) {
		struct pfx_node *parent = x->parent;
		int linked = x->state == PFX_NODE_LINKED;

		PFX_ASSERT(x->pins > 0);
		if (--x->pins > 0) {
			break;
		}
		released(cache, x);
		if (lowest == NULL && linked) {
			lowest = x;
		}
		x = parent;
	}
	if (lowest != NULL) {
		pfx_tree_merge_up(cache, lowest);
	}
}

uint32_t pfx_cached_blocks(const struct pfx_cache *cache)
{
	return cache->pool.count[PFX_BLOCK_READY] - cache->pinned_blocks - cache->loose_blocks;
}

/*
 * The node that held more than the loose ones below x is gone: what they hold is now the
 * longest of its kind (rule 6). There are at most as many as open paths.
 */
static void relink_below(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_list_for_safe(it, &cache->loose) {
		struct pfx_node *y = pfx_container_of(it, struct pfx_node, order);

		if (y->parent == x && y->state == PFX_NODE_LOOSE) {
			pfx_tree_link(cache, y);
		}
	}
}

/* Drops the last block of a leaf, and the leaf with its last. */
static void drop_last(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t last = pfx_node_n_blocks(x, cache->shift) - 1;
	uint32_t keep = last << cache->shift;
	uint64_t digest = pfx_tree_digest(cache, x, x->start + keep);
	pfx_block_t block = pfx_node_blocks(x, cache->shift)[last];
	struct pfx_node *parent = x->parent;

	pfx_ghosts_add(&cache->ghosts, digest, x->run + keep, x->n - keep);
	cache->evicted_blocks++;
	if (keep == 0) {
		pfx_tree_unlink(cache, x);
		pfx_node_free(cache, x);
		if (parent->pins > 0) {
			relink_below(cache, parent);
		}
		return;
	}
	pfx_marks_cut(&cache->marks, x, x->start + keep);
	x->digest = digest;
	cache->tokens -= x->n - keep;
	x->n = keep;
	if (cache->evict.ops->gone != NULL) {
		cache->evict.ops->gone(&cache->evict, block);
	}
	pfx_pool_release(&cache->pool, block);
	if (cache->evict.ops->cut != NULL) {
		cache->evict.ops->cut(&cache->evict, x);
	}
}

static void evict_one(struct pfx_cache *cache)
{
	struct pfx_node *x = cache->evict.ops->victim(&cache->evict);

	PFX_ASSERT(x != NULL);
	PFX_ASSERT(x->kids == NULL);
	PFX_ASSERT(x->pins == 0);
	drop_last(cache, x);
}

void pfx_evict_until(struct pfx_cache *cache, uint32_t n)
{
	while (cache->pool.count[PFX_BLOCK_FREE] < n) {
		evict_one(cache);
	}
}

uint32_t pfx_cache_press(struct pfx_cache *cache, uint32_t n)
{
	uint32_t before = pfx_cached_blocks(cache);

	while (pfx_cached_blocks(cache) > n) {
		evict_one(cache);
	}
	return before - pfx_cached_blocks(cache);
}

uint32_t pfx_forget(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);

	pfx_marks_cut(&cache->marks, x, 0);
	pfx_tree_unlink(cache, x);
	if (x->pins == 0) {
		pfx_node_free(cache, x);
		return n_blocks;
	}
	pfx_node_loosen(cache, x, PFX_NODE_FLUSHED);
	return 0;
}
