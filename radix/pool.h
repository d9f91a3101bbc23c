#ifndef PFX_RADIX_POOL_H
#define PFX_RADIX_POOL_H

/*
 * The blocks of one tier (on disk: records): which are free, and what each of the others is
 * for. A block is a number in [0, n); the memory behind it is the engine's. States change
 * only along the arrows of the table in pool.c, and a block becomes free in pfx_pool_release
 * and, when copies held it then, at the end of the last of them; so a second release, or a use
 * of what a copy still reads, is caught where it happens.
 */

#include "radix/cache.h"

enum pfx_block_state {
	PFX_BLOCK_FREE,
	PFX_BLOCK_FILLING,  /* a path's own: being written, in no tree */
	PFX_BLOCK_ARRIVING, /* a node's; its bytes are being copied in */
	PFX_BLOCK_READY,    /* a node's, with all bytes */
	PFX_BLOCK_BAD,      /* a node's; the copy in failed */
	PFX_BLOCK_LEAVING,  /* nobody's; copies hold it */
	PFX_BLOCK_STATES
};

struct pfx_pool {
	uint8_t *state;
	uint16_t *holds;   /* copies in flight that read or write the block */
	pfx_block_t *free; /* a stack of the free ones */
	uint32_t n;
	uint32_t count[PFX_BLOCK_STATES];
};

int pfx_pool_init(struct pfx_pool *pool, uint32_t n);
void pfx_pool_fini(struct pfx_pool *pool);

/* A free block for `state` (FILLING or ARRIVING). There must be one: see count. */
pfx_block_t pfx_pool_take(struct pfx_pool *pool, enum pfx_block_state state);
void pfx_pool_take_all(struct pfx_pool *pool, pfx_block_t *blocks, uint32_t n,
	enum pfx_block_state state);
/* May a block go from one state to the other? */
int pfx_pool_may(enum pfx_block_state from, enum pfx_block_state to);
void pfx_pool_move(struct pfx_pool *pool, pfx_block_t block, enum pfx_block_state to);
/* The same of many, which are all in state `from`. */
void pfx_pool_move_all(struct pfx_pool *pool, const pfx_block_t *blocks, uint32_t n,
	enum pfx_block_state from, enum pfx_block_state to);
/* Its owner lets go: it is free, or LEAVING while copies hold it. */
void pfx_pool_release(struct pfx_pool *pool, pfx_block_t block);
void pfx_pool_hold(struct pfx_pool *pool, pfx_block_t block);
void pfx_pool_unhold(struct pfx_pool *pool, pfx_block_t block);
/* Blocks that nodes own. */
static inline uint32_t pfx_pool_owned(const struct pfx_pool *pool)
{
	return pool->n - pool->count[PFX_BLOCK_FREE] - pool->count[PFX_BLOCK_FILLING] -
		pool->count[PFX_BLOCK_LEAVING];
}

#endif
