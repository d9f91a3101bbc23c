#ifndef PFX_RADIX_PATH_H
#define PFX_RADIX_PATH_H

/* What path.c, which opens and closes paths, and publish.c share. */

#include "radix/priv.h"

static inline uint32_t pfx_blocks_for(const struct pfx_cache *cache, uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + cache->block_tokens - 1) >> cache->shift);
}

static inline uint32_t pfx_block_start(const struct pfx_cache *cache, uint32_t pos)
{
	return pos & ~(cache->block_tokens - 1);
}

static inline struct pfx_pool *pfx_path_device(const struct pfx_path *path)
{
	return &path->cache->tier[PFX_TIER_DEVICE].pool;
}

static inline struct pfx_evict *pfx_path_policy(const struct pfx_path *path)
{
	return &path->cache->tier[PFX_TIER_DEVICE].evict;
}

/*
 * table[from..to) becomes the tree's blocks on the way to x. Only when an entry has been
 * rewritten is the block of its own that stood there given up (rule 7). Where the tree has
 * the tokens in a slower tier, the path's own block becomes the tree's.
 */
void pfx_path_adopt(struct pfx_path *path, struct pfx_node *x, uint32_t from, uint32_t to);
/* The path's pin goes from its node to x; with it goes the right to write in the old one. */
void pfx_path_move_pin(struct pfx_path *path, struct pfx_node *x);
/* Walks on from the start of the block in which the published part of the path ends. */
struct pfx_place pfx_path_walk_on(const struct pfx_path *path, const uint32_t *tokens, uint32_t n);

#endif
