#ifndef PFX_RADIX_POOL_H
#define PFX_RADIX_POOL_H

/*
 * The blocks of one tier: which are free, and what each of the others is for. A block is a
 * number in [0, n); the memory behind it is the engine's. States change only along the
 * arrows of the table in pool.c, and a block becomes free in pfx_pool_release alone, so a
 * second release or one in mid-copy is caught where it happens.
 */

#include "radix/cache.h"

enum pfx_block_state {
	PFX_BLOCK_FREE,
	PFX_BLOCK_FILLING,  /* a path's own: being written, in no tree */
	PFX_BLOCK_READY,    /* its positions have KV and a node owns it */
	PFX_BLOCK_SPILLING, /* being copied to the tier below */
	PFX_BLOCK_FETCHING, /* being copied from the tier below: holds nothing yet */
	PFX_BLOCK_SAVING,   /* being written to disk */
	PFX_BLOCK_STATES
};

struct pfx_pool {
	uint8_t *state;
	pfx_block_t *free; /* a stack of the free ones */
	uint32_t n;
	uint32_t count[PFX_BLOCK_STATES];
};

int pfx_pool_init(struct pfx_pool *pool, uint32_t n);
void pfx_pool_fini(struct pfx_pool *pool);

/* A free block for `state` (FILLING or FETCHING). There must be one: see count. */
pfx_block_t pfx_pool_take(struct pfx_pool *pool, enum pfx_block_state state);
/* May a block go from one state to the other? */
int pfx_pool_may(enum pfx_block_state from, enum pfx_block_state to);
void pfx_pool_move(struct pfx_pool *pool, pfx_block_t block, enum pfx_block_state to);
/* The only way back to the free list. */
void pfx_pool_release(struct pfx_pool *pool, pfx_block_t block);

#endif
