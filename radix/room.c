/* Making room: a block leaves the device for host memory, memory for the disk, or the cache. */
#include <errno.h>

#include "base/assert.h"
#include "radix/kids.h"
#include "radix/priv.h"

uint32_t pfx_node_blocks_of(const struct pfx_cache *cache, enum pfx_tier tier)
{
	const struct pfx_pool *pool = &cache->tier[tier].pool;

	return tier == PFX_TIER_DISK ? pool->count[PFX_BLOCK_READY] : pfx_pool_owned(pool);
}

uint32_t pfx_cached_blocks(const struct pfx_cache *cache, enum pfx_tier tier)
{
	const struct pfx_level *level = &cache->tier[tier];

	return pfx_node_blocks_of(cache, tier) - level->pinned - level->loose;
}

uint32_t pfx_evictable_blocks(const struct pfx_cache *cache, enum pfx_tier tier)
{
	return pfx_cached_blocks(cache, tier) - cache->tier[tier].idle;
}

/* There are at most as many loose nodes as open paths. */
void pfx_relink_below(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_list_for_safe(it, &cache->loose) {
		struct pfx_node *y = pfx_node_of(it, 0);

		if (y->parent == x && y->state == PFX_NODE_LOOSE && y->n_mem > 0) {
			pfx_tree_link(cache, y);
			if (cache->save == PFX_SAVE_ALL && y->state == PFX_NODE_LINKED) {
				y->worthy = y->n;
				pfx_save_check(cache, y);
			}
		}
	}
}

/* What the slower tiers know of the block that was the last of x goes as well. */
static void drop_rest(struct pfx_cache *cache, struct pfx_node *x, uint32_t last)
{
	uint32_t keep = last << cache->shift;

	pfx_save_orphan(cache, x, last);
	if (x->saved > keep) {
		pfx_record_release(cache, pfx_node_records(x, cache->shift)[last]);
	}
	pfx_node_set(cache, x, x->n_dev < last ? x->n_dev : last, x->n_mem < last ? x->n_mem : last,
		x->saved < keep ? x->saved : keep);
	pfx_save_check(cache, x);
}

/* Forgets the last block of a leaf, and the leaf with its last: 1. */
static int drop_last(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t last = pfx_node_n_blocks(x, cache->shift) - 1;
	uint32_t keep = last << cache->shift;
	uint64_t hash = pfx_ghosts_hash(&cache->ghosts, x->run + keep, x->n - keep);
	struct pfx_node *parent = x->parent;
	uint64_t digest = x->digest;

	PFX_ASSERT(x->kids == NULL);
	if (x->n - keep == cache->block_tokens) {
		digest = pfx_digest_back(digest, hash);
	}
	pfx_ghosts_add_hashed(&cache->ghosts, digest, hash, x->run + keep, x->n - keep, cache->now);
	cache->evicted_blocks++;
	if (keep == 0) {
		pfx_tree_unlink(cache, x);
		pfx_node_free(cache, x);
		if (pfx_node_held(parent)) {
			pfx_relink_below(cache, parent);
		}
		return 1;
	}
	if (x->n_mem > last) {
		pfx_node_let_go(cache, x, last);
	}
	pfx_marks_cut(&cache->marks, x, x->start + keep);
	x->digest = digest;
	cache->tokens -= x->n - keep;
	x->n = keep;
	x->worthy = x->worthy < keep ? x->worthy : keep;
	if (cache->n_tiers == 1) {
		/* It has others left and is held by nobody, so nothing changes but these. */
		x->n_dev = x->n_mem = last;
	} else {
		drop_rest(cache, x, last);
	}
	pfx_order_cut(cache, x);
	return 0;
}

int pfx_lose_memory(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t last = x->n_mem - 1;
	uint32_t keep = last << cache->shift;

	PFX_ASSERT(x->n_mem > 0);
	PFX_ASSERT(x->kids_in[PFX_TIER_HOST] == 0);
	cache->tier[x->n_dev == x->n_mem ? PFX_TIER_DEVICE : PFX_TIER_HOST].evicted++;
	if (x->saved <= keep) {
		return drop_last(cache, x);
	}
	pfx_save_orphan(cache, x, last);
	pfx_node_let_go(cache, x, last);
	pfx_node_blocks(x, cache->shift)[last] = PFX_BLOCK_NONE;
	pfx_node_set(cache, x, x->n_dev < last ? x->n_dev : last, last, x->saved);
	if (pfx_node_end(x) - x->start > x->saved && x->saved < keep + cache->block_tokens) {
		uint64_t digest = pfx_tree_digest(cache, x, x->start + keep);

		/* Its record has fewer tokens than there were. */
		pfx_ghosts_add(&cache->ghosts, digest, x->run + keep, x->n - keep, cache->now);
		return pfx_tree_shorten(cache, x, x->saved);
	}
	return 0;
}

int pfx_lose_record(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t last = pfx_node_n_records(x, cache->shift) - 1;

	PFX_ASSERT(x->saved > 0);
	PFX_ASSERT(x->kids_in[PFX_TIER_DISK] == 0);
	cache->tier[PFX_TIER_DISK].evicted++;
	if (last >= x->n_mem) {
		return drop_last(cache, x);
	}
	pfx_save_forget(cache, x);
	pfx_save_orphan(cache, x, 0);
	pfx_record_release(cache, pfx_node_records(x, cache->shift)[last]);
	pfx_node_set(cache, x, x->n_dev, x->n_mem, last << cache->shift);
	x->worthy = x->saved;
	return 0;
}

/* ---- the device ---- */

/* Is there a free host block, or can one be had that goes before x? */
enum host_room {
	HOST_NONE, /* no: x leaves memory instead */
	HOST_BUSY, /* when copies have ended */
	HOST_FREE,
};

static enum host_room make_host_room(struct pfx_cache *cache, const struct pfx_node *x)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_HOST].pool;

	for (;;) {
		int leaf = x->n_mem == x->n_dev && x->kids_in[PFX_TIER_HOST] == 0;
		struct pfx_node *h;

		if (pool->n == 0 || (leaf && x->class == PFX_CLASS_ENDED)) {
			return HOST_NONE;
		}
		if (pool->count[PFX_BLOCK_FREE] > 0) {
			return HOST_FREE;
		}
		h = pfx_order_victim(cache, PFX_TIER_HOST);
		if (h == NULL) {
			return pool->count[PFX_BLOCK_LEAVING] > 0 ? HOST_BUSY : HOST_NONE;
		}
		if (leaf && pfx_order_before(x, h)) {
			return HOST_NONE;
		}
		if (pool->holds[pfx_node_blocks(h, cache->shift)[h->n_mem - 1]] > 0) {
			return HOST_BUSY;
		}
		pfx_lose_memory(cache, h);
	}
}

/* The last device block of x goes to host memory. */
static void spill(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_level *device = &cache->tier[PFX_TIER_DEVICE];
	pfx_block_t *at = pfx_node_blocks(x, cache->shift) + x->n_dev - 1;
	pfx_block_t block = *at;

	device->evicted++;
	cache->tier[PFX_TIER_HOST].arrived++;
	*at = pfx_order_spill(cache, block);
	if (device->evict.ops->gone != NULL) {
		device->evict.ops->gone(&device->evict, block);
	}
	pfx_pool_release(&device->pool, block);
	pfx_node_set(cache, x, x->n_dev - 1, x->n_mem, x->saved);
}

/* The last device block of x goes; no child of x has any. -EAGAIN: not before copies have ended. */
static int push_down(struct pfx_cache *cache, struct pfx_node *x)
{
	PFX_ASSERT(x->n_dev > 0);
	PFX_ASSERT(!pfx_node_held(x));
	PFX_ASSERT(x->kids_in[PFX_TIER_DEVICE] == 0);
	switch (make_host_room(cache, x)) {
	case HOST_BUSY:
		return -EAGAIN;
	case HOST_FREE:
		spill(cache, x);
		return 0;
	default:
		pfx_lose_memory(cache, x);
		return 0;
	}
}

int pfx_make_room(struct pfx_cache *cache, uint32_t n)
{
	const uint32_t *count = cache->tier[PFX_TIER_DEVICE].pool.count;

	while (count[PFX_BLOCK_FREE] < n) {
		if (count[PFX_BLOCK_FREE] + count[PFX_BLOCK_LEAVING] >= n ||
			push_down(cache, pfx_order_victim(cache, PFX_TIER_DEVICE)) < 0) {
			return -EAGAIN;
		}
	}
	return 0;
}

uint32_t pfx_cache_press(struct pfx_cache *cache, uint32_t n)
{
	uint32_t before = pfx_evictable_blocks(cache, PFX_TIER_DEVICE);

	while (pfx_evictable_blocks(cache, PFX_TIER_DEVICE) > n &&
		push_down(cache, pfx_order_victim(cache, PFX_TIER_DEVICE)) == 0) {
	}
	return before - pfx_evictable_blocks(cache, PFX_TIER_DEVICE);
}

/* ---- whole subtrees ---- */

/* The first node below x (or x) in an order in which children come before their parents. */
static struct pfx_node *lowest_first(struct pfx_node *x)
{
	for (struct pfx_node *k = pfx_kids_first(x); k != NULL; k = pfx_kids_first(x)) {
		x = k;
	}
	return x;
}

/* Of x, and then, x maybe gone. */
static struct pfx_node *next_of(struct pfx_node *x)
{
	struct pfx_node *next = pfx_kids_next(x);

	return next != NULL ? lowest_first(next) : x->parent;
}

static int lose_from(struct pfx_cache *cache, struct pfx_node *x, uint32_t index,
	enum pfx_tier tier)
{
	int gone = 0;

	if (tier == PFX_TIER_DISK) {
		while (!gone && pfx_node_n_records(x, cache->shift) > index) {
			gone = pfx_lose_record(cache, x);
		}
		return gone;
	}
	while (!gone && x->n_mem > index) {
		gone = pfx_lose_memory(cache, x);
	}
	return gone;
}

void pfx_lose_below(struct pfx_cache *cache, struct pfx_node *x, uint32_t index, enum pfx_tier tier)
{
	struct pfx_node *next;

	for (struct pfx_node *y = lowest_first(x); y != x; y = next) {
		next = next_of(y);
		lose_from(cache, y, 0, tier);
	}
	lose_from(cache, x, index, tier);
}

/* ---- on demand ---- */

static uint32_t evict_oldest(struct pfx_cache *cache, enum pfx_tier tier, uint32_t n)
{
	uint32_t gone = 0;

	while (gone < n) {
		struct pfx_node *x = pfx_order_victim(cache, tier);

		if (x == NULL || (tier == PFX_TIER_DEVICE && push_down(cache, x) < 0)) {
			break;
		}
		if (tier == PFX_TIER_HOST) {
			pfx_lose_memory(cache, x);
		} else if (tier == PFX_TIER_DISK) {
			pfx_lose_record(cache, x);
		}
		gone++;
	}
	return gone;
}

/* Blocks of a space that nobody holds, in one tier. */
static uint32_t count_idle(const struct pfx_cache *cache, struct pfx_space *space,
	enum pfx_tier tier)
{
	uint32_t n = 0;

	for (struct pfx_node *x = lowest_first(&space->root); x->n > 0; x = next_of(x)) {
		n += pfx_node_held(x) ? 0 : pfx_node_in(x, tier, cache->shift);
	}
	return n;
}

/*
 * The last block that x has in a tier goes, without touching any other node: 1; 0: it cannot;
 * -1: it goes, and x with it.
 */
static int evict_alone(struct pfx_cache *cache, struct pfx_node *x, enum pfx_tier tier)
{
	const struct pfx_pool *host = &cache->tier[PFX_TIER_HOST].pool;

	if (pfx_node_held(x) || x->kids_in[tier] > 0 || pfx_node_in(x, tier, cache->shift) == 0) {
		return 0;
	}
	if (tier == PFX_TIER_DISK) {
		return pfx_lose_record(cache, x) ? -1 : 1;
	}
	if (tier == PFX_TIER_DEVICE && host->count[PFX_BLOCK_FREE] > 0) {
		spill(cache, x);
		return 1;
	}
	if (x->kids_in[PFX_TIER_HOST] > 0 || (tier == PFX_TIER_DEVICE && x->n_mem > x->n_dev)) {
		return 0;
	}
	return pfx_lose_memory(cache, x) ? -1 : 1;
}

static uint32_t evict_space(struct pfx_cache *cache, enum pfx_tier tier, struct pfx_space *space,
	uint32_t n)
{
	uint32_t most = count_idle(cache, space, tier), gone = 0;
	const struct pfx_pool *host = &cache->tier[PFX_TIER_HOST].pool;
	struct pfx_node *next;

	n = n < most ? n : most;
	if (tier == PFX_TIER_DEVICE && host->count[PFX_BLOCK_FREE] < n && host->n > 0) {
		evict_oldest(cache, PFX_TIER_HOST, n - host->count[PFX_BLOCK_FREE]);
	}
	for (struct pfx_node *x = lowest_first(&space->root); x->n > 0 && gone < n; x = next) {
		int rc = 1;

		next = next_of(x);
		while (rc > 0 && gone < n) {
			rc = evict_alone(cache, x, tier);
			gone += rc != 0;
		}
	}
	return gone;
}

uint32_t pfx_cache_evict(struct pfx_cache *cache, enum pfx_tier tier, struct pfx_space *space,
	uint32_t n)
{
	return space == NULL ? evict_oldest(cache, tier, n) : evict_space(cache, tier, space, n);
}
