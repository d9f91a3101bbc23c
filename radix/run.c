/* Nodes and their runs: tokens, the numbers of the blocks behind them, digests. */
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "radix/priv.h"

void pfx_root_init(struct pfx_space *space, uint64_t epoch)
{
	space->root = (struct pfx_node){ .space = space, .marks = PFX_MARK_NONE };
	pfx_list_init(&space->root.save);
	pfx_root_renew(space, epoch);
}

void pfx_root_renew(struct pfx_space *space, uint64_t epoch)
{
	space->root.digest = pfx_rng_mix(space->hash, epoch);
}

struct pfx_node *pfx_node_new(struct pfx_cache *cache, struct pfx_node *parent, uint32_t cap)
{
	struct pfx_node *x = pfx_arena_alloc(&cache->arena, sizeof(*x));
	uint32_t *run = pfx_arena_alloc(&cache->arena, pfx_run_bytes(cache, cap));

	if (x == NULL || run == NULL) {
		pfx_arena_free(&cache->arena, x, sizeof(*x));
		pfx_arena_free(&cache->arena, run, pfx_run_bytes(cache, cap));
		return NULL;
	}
	*x = (struct pfx_node){
		.parent = parent,
		.space = parent->space,
		.run = run,
		.digest = parent->digest,
		.start = pfx_node_end(parent),
		.cap = cap,
		.prio = (uint32_t)pfx_rng_next(&cache->prio),
		.marks = PFX_MARK_NONE,
	};
	pfx_list_init(&x->save);
	for (int t = 0; t < PFX_TIERS; t++) {
		pfx_list_init(&x->order[t].link);
	}
	cache->index_bytes += sizeof(*x) + pfx_run_bytes(cache, cap);
	return x;
}

void pfx_node_give_back(struct pfx_cache *cache, struct pfx_node *x)
{
	cache->index_bytes -= sizeof(*x) + pfx_run_bytes(cache, x->cap);
	pfx_arena_free(&cache->arena, x->run, pfx_run_bytes(cache, x->cap));
	pfx_arena_free(&cache->arena, x, sizeof(*x));
}

/* The numbers of n blocks go from behind room for `from` blocks to behind room for `to`. */
static void move_numbers(const struct pfx_cache *cache, uint32_t *run, uint32_t from, uint32_t to,
	uint32_t n)
{
	const uint32_t *old = run + ((size_t)from << cache->shift);
	uint32_t *new = run + ((size_t)to << cache->shift);

	/* The last first when they move up: where one was, the other may come to stand. */
	if (to < from) {
		memmove(new, old, n * sizeof(*new));
	}
	if (cache->slots > 1) {
		memmove(new + to, old + from, n * sizeof(*new));
	}
	if (to > from) {
		memmove(new, old, n * sizeof(*new));
	}
}

static int resize(struct pfx_cache *cache, struct pfx_node *x, uint32_t cap)
{
	uint32_t n = pfx_node_n_blocks(x, cache->shift);
	uint32_t *run = x->run;
	uint32_t old = x->cap;

	if (cap < old) {
		move_numbers(cache, run, old, cap, n);
	}
	run = pfx_arena_resize(&cache->arena, run, pfx_run_bytes(cache, old), pfx_run_bytes(cache, cap));
	if (run == NULL) {
		if (cap < old) {
			move_numbers(cache, x->run, cap, old, n);
		}
		return -1;
	}
	x->run = run;
	if (cap > old) {
		move_numbers(cache, x->run, old, cap, n);
	}
	x->cap = cap;
	cache->index_bytes += pfx_run_bytes(cache, cap) - pfx_run_bytes(cache, old);
	return 0;
}

int pfx_node_grow(struct pfx_cache *cache, struct pfx_node *x, uint32_t cap_blocks)
{
	uint32_t cap = x->cap + x->cap / 2;

	if (cap_blocks <= x->cap) {
		return 0;
	}
	return resize(cache, x, cap > cap_blocks ? cap : cap_blocks);
}

void pfx_node_trim(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t need = pfx_node_n_blocks(x, cache->shift);

	if (x->cap > need && x->run != NULL) {
		resize(cache, x, need);
	}
}

/* Of all tokens up to the end of the first block of x, which is full. */
uint64_t pfx_first_digest(const struct pfx_cache *cache, const struct pfx_node *x)
{
	return pfx_digest_step(x->parent->digest,
		pfx_ghosts_hash(&cache->ghosts, x->run, cache->block_tokens));
}

/* Blocks are hashed, and told of to the policy, so many at a time at most. */
#define FILL_BLOCKS 32u

uint64_t pfx_node_filled(struct pfx_cache *cache, const struct pfx_node *x, uint32_t from,
	uint32_t to, uint64_t digest)
{
	struct pfx_evict *evict = &cache->tier[PFX_TIER_DEVICE].evict;
	uint64_t each[FILL_BLOCKS];

	for (uint32_t n; from < to; from += n) {
		n = to - from < FILL_BLOCKS ? to - from : FILL_BLOCKS;
		digest = pfx_ghosts_chain(&cache->ghosts, digest, x->run + ((size_t)from << cache->shift),
			cache->block_tokens, n, each);
		if (evict->ops->filled != NULL) {
			evict->ops->filled(evict, pfx_node_blocks(x, cache->shift) + from, each, n);
		}
	}
	return digest;
}

/*
 * Copies tokens behind those of x, some blocks at a time: these are hashed while the stores of
 * their copy wait for memory (4 KB with blocks of 32, about what a processor has stored and not
 * yet written out).
 */
static void append_tokens(struct pfx_cache *cache, struct pfx_node *x, const uint32_t *tokens,
	uint32_t n)
{
	uint32_t most = FILL_BLOCKS << cache->shift;

	while (n > 0) {
		uint32_t full = x->n >> cache->shift;
		uint32_t part = n < most ? n : most;

		memcpy(x->run + x->n, tokens, part * sizeof(*tokens));
		x->n += part;
		x->digest = pfx_node_filled(cache, x, full, x->n >> cache->shift, x->digest);
		tokens += part;
		n -= part;
	}
}

void pfx_node_append(struct pfx_cache *cache, struct pfx_node *x, const uint32_t *tokens,
	uint32_t n, const pfx_block_t *blocks)
{
	uint32_t B = cache->block_tokens;
	uint32_t old = pfx_node_n_blocks(x, cache->shift);
	uint32_t more = ((x->n + n + B - 1) >> cache->shift) - old;
	int jumps = x->n < B && x->n > 0 && x->state == PFX_NODE_LINKED;

	PFX_ASSERT(old + more <= x->cap);
	PFX_ASSERT(x->n_dev == old);
	if (more > 0) {
		memcpy(pfx_node_blocks(x, cache->shift) + old, blocks, more * sizeof(*blocks));
	}
	x->n_dev = x->n_mem = old + more;
	append_tokens(cache, x, tokens, n);
	if (jumps && x->n >= B) {
		pfx_jump_add(&cache->jump, x, pfx_first_digest(cache, x));
	}
}

void pfx_node_let_go(struct pfx_cache *cache, const struct pfx_node *x, uint32_t index)
{
	struct pfx_level *device = &cache->tier[PFX_TIER_DEVICE];
	pfx_block_t block = pfx_node_blocks(x, cache->shift)[index];

	PFX_ASSERT(index < x->n_mem);
	if (index >= x->n_dev) {
		pfx_pool_release(&cache->tier[PFX_TIER_HOST].pool, block);
		return;
	}
	if (device->evict.ops->gone != NULL) {
		device->evict.ops->gone(&device->evict, block);
	}
	pfx_pool_release(&device->pool, block);
}

void pfx_node_free(struct pfx_cache *cache, struct pfx_node *x)
{
	PFX_ASSERT(!pfx_node_held(x));
	PFX_ASSERT(x->kids == NULL);
	PFX_ASSERT(x->writer == NULL);
	pfx_marks_cut(&cache->marks, x, 0);
	pfx_save_forget(cache, x);
	pfx_save_orphan(cache, x, 0);
	for (uint32_t i = pfx_node_n_records(x, cache->shift); i-- > 0;) {
		pfx_record_release(cache, pfx_node_records(x, cache->shift)[i]);
	}
	for (uint32_t i = x->n_mem; i-- > 0;) {
		pfx_node_let_go(cache, x, i);
	}
	pfx_node_give_back(cache, x);
}

uint64_t pfx_tree_digest(const struct pfx_cache *cache, const struct pfx_node *x, uint32_t at)
{
	uint32_t B = cache->block_tokens;
	uint32_t full = x->start + (x->n >> cache->shift << cache->shift);
	uint64_t digest = x->digest;

	if (at == full) {
		return digest;
	}
	if (at - x->start < full - at) {
		digest = x->parent->digest;
		for (uint32_t p = x->start; p < at; p += B) {
			digest = pfx_digest_step(digest,
				pfx_ghosts_hash(&cache->ghosts, x->run + (p - x->start), B));
		}
		return digest;
	}
	for (uint32_t p = full; p > at; p -= B) {
		digest = pfx_digest_back(digest,
			pfx_ghosts_hash(&cache->ghosts, x->run + (p - B - x->start), B));
	}
	return digest;
}
