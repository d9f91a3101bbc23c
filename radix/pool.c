#include "radix/pool.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"

#define TO(state) (1u << PFX_BLOCK_##state)

/*
 * From each state, where a block may go. What is ARRIVING is held by the copy that fills it,
 * so it can only be LEAVING, never free, before that copy has ended.
 */
static const uint8_t arrows[PFX_BLOCK_STATES] = {
	[PFX_BLOCK_FREE] = TO(FILLING) | TO(ARRIVING),
	[PFX_BLOCK_FILLING] = TO(READY) | TO(LEAVING) | TO(FREE),
	[PFX_BLOCK_ARRIVING] = TO(READY) | TO(BAD) | TO(LEAVING),
	[PFX_BLOCK_READY] = TO(LEAVING) | TO(FREE),
	[PFX_BLOCK_BAD] = TO(LEAVING) | TO(FREE),
	[PFX_BLOCK_LEAVING] = TO(FREE),
};

int pfx_pool_init(struct pfx_pool *pool, uint32_t n)
{
	*pool = (struct pfx_pool){
		.state = pfx_calloc(n, sizeof(*pool->state)),
		.holds = pfx_calloc(n, sizeof(*pool->holds)),
		.free = pfx_calloc(n, sizeof(*pool->free)),
		.n = n,
	};
	if (pool->state == NULL || pool->holds == NULL || pool->free == NULL) {
		pfx_pool_fini(pool);
		return -ENOMEM;
	}
	/* Lowest numbers on top, so that memory is touched only as far as it is needed. */
	for (uint32_t i = 0; i < n; i++) {
		pool->free[i] = n - 1 - i;
	}
	pool->count[PFX_BLOCK_FREE] = n;
	return 0;
}

void pfx_pool_fini(struct pfx_pool *pool)
{
	pfx_free(pool->state);
	pfx_free(pool->holds);
	pfx_free(pool->free);
	*pool = (struct pfx_pool){ 0 };
}

int pfx_pool_may(enum pfx_block_state from, enum pfx_block_state to)
{
	return (arrows[from] >> to) & 1;
}

static void change(struct pfx_pool *pool, pfx_block_t block, enum pfx_block_state to)
{
	PFX_ASSERT(block < pool->n);
	PFX_ASSERT(pfx_pool_may(pool->state[block], to));
	pool->count[pool->state[block]]--;
	pool->count[to]++;
	pool->state[block] = to;
}

/* What `change` does, of many: each is asserted, and they are counted at once. */
static void change_all(struct pfx_pool *pool, const pfx_block_t *blocks, uint32_t n,
	enum pfx_block_state from, enum pfx_block_state to)
{
	uint8_t *states = pool->state;
	uint32_t n_states = pool->n;

	PFX_ASSERT(pfx_pool_may(from, to));
	for (uint32_t i = 0; i < n; i++) {
		PFX_ASSERT(blocks[i] < n_states);
		PFX_ASSERT(states[blocks[i]] == from);
		states[blocks[i]] = (uint8_t)to;
	}
	pool->count[from] -= n;
	pool->count[to] += n;
}

pfx_block_t pfx_pool_take(struct pfx_pool *pool, enum pfx_block_state state)
{
	pfx_block_t block;

	PFX_ASSERT(pool->count[PFX_BLOCK_FREE] > 0);
	block = pool->free[pool->count[PFX_BLOCK_FREE] - 1];
	change(pool, block, state);
	return block;
}

void pfx_pool_take_all(struct pfx_pool *pool, pfx_block_t *blocks, uint32_t n,
	enum pfx_block_state state)
{
	const pfx_block_t *top = pool->free + pool->count[PFX_BLOCK_FREE];

	PFX_ASSERT(pool->count[PFX_BLOCK_FREE] >= n);
	for (uint32_t i = 0; i < n; i++) {
		blocks[i] = *--top;
	}
	change_all(pool, blocks, n, PFX_BLOCK_FREE, state);
}

void pfx_pool_move(struct pfx_pool *pool, pfx_block_t block, enum pfx_block_state to)
{
	PFX_ASSERT(to != PFX_BLOCK_FREE && to != PFX_BLOCK_LEAVING);
	change(pool, block, to);
}

void pfx_pool_move_all(struct pfx_pool *pool, const pfx_block_t *blocks, uint32_t n,
	enum pfx_block_state from, enum pfx_block_state to)
{
	PFX_ASSERT(to != PFX_BLOCK_FREE && to != PFX_BLOCK_LEAVING);
	PFX_ASSERT(from != PFX_BLOCK_FREE);
	change_all(pool, blocks, n, from, to);
}

static void make_free(struct pfx_pool *pool, pfx_block_t block)
{
	change(pool, block, PFX_BLOCK_FREE);
	pool->free[pool->count[PFX_BLOCK_FREE] - 1] = block;
}

void pfx_pool_release(struct pfx_pool *pool, pfx_block_t block)
{
	PFX_ASSERT(block < pool->n);
	PFX_ASSERT(pool->state[block] != PFX_BLOCK_LEAVING);
	if (pool->holds[block] > 0) {
		change(pool, block, PFX_BLOCK_LEAVING);
	} else {
		make_free(pool, block);
	}
}

void pfx_pool_hold(struct pfx_pool *pool, pfx_block_t block)
{
	PFX_ASSERT(block < pool->n);
	PFX_ASSERT(pool->state[block] != PFX_BLOCK_FREE);
	PFX_ASSERT(pool->holds[block] < UINT16_MAX);
	pool->holds[block]++;
}

void pfx_pool_unhold(struct pfx_pool *pool, pfx_block_t block)
{
	PFX_ASSERT(block < pool->n);
	PFX_ASSERT(pool->holds[block] > 0);
	if (--pool->holds[block] == 0 && pool->state[block] == PFX_BLOCK_LEAVING) {
		make_free(pool, block);
	}
}
