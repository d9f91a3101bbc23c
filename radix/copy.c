/* Copies: which blocks they hold, and the orders for them that wait to be taken. */
#include "base/assert.h"
#include "radix/priv.h"

void pfx_cache_hold(struct pfx_cache *cache, enum pfx_tier tier, uint32_t id)
{
	pfx_pool_hold(&cache->tier[tier].pool, id);
}

void pfx_cache_unhold(struct pfx_cache *cache, enum pfx_tier tier, uint32_t id)
{
	pfx_pool_unhold(&cache->tier[tier].pool, id);
}

/* ---- spills ---- */

pfx_block_t pfx_order_spill(struct pfx_cache *cache, pfx_block_t device)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_HOST].pool;
	pfx_block_t host = pfx_pool_take(pool, PFX_BLOCK_ARRIVING);

	pfx_pool_hold(pool, host);
	pfx_pool_hold(&cache->tier[PFX_TIER_DEVICE].pool, device);
	/* Each order has a host block of its own, so the ring has room. */
	cache->spills[(cache->spill_first + cache->n_spills++) % pool->n] =
		(struct pfx_spill){ .device = device, .host = host };
	return host;
}

int pfx_cache_next_spill(struct pfx_cache *cache, struct pfx_spill *out)
{
	const struct pfx_pool *pool = &cache->tier[PFX_TIER_HOST].pool;

	while (cache->n_spills > 0) {
		struct pfx_spill s = cache->spills[cache->spill_first];

		cache->spill_first = (cache->spill_first + 1) % pool->n;
		cache->n_spills--;
		if (pool->state[s.host] == PFX_BLOCK_LEAVING && pool->holds[s.host] == 1) {
			/* Nobody wants it any more. */
			pfx_cache_spilled(cache, &s, 1);
			continue;
		}
		*out = s;
		return 1;
	}
	return 0;
}

void pfx_cache_spilled(struct pfx_cache *cache, const struct pfx_spill *spill, int ok)
{
	struct pfx_level *host = &cache->tier[PFX_TIER_HOST];

	host->failed += !ok;
	if (host->pool.state[spill->host] == PFX_BLOCK_ARRIVING) {
		pfx_pool_move(&host->pool, spill->host, ok ? PFX_BLOCK_READY : PFX_BLOCK_BAD);
	}
	pfx_pool_unhold(&host->pool, spill->host);
	pfx_pool_unhold(&cache->tier[PFX_TIER_DEVICE].pool, spill->device);
}

/* ---- deletes ---- */

/* A record that nobody has any more is held by its delete until that is done. */
void pfx_order_delete(struct pfx_cache *cache, uint32_t record)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;

	pfx_pool_hold(pool, record);
	cache->deletes[(cache->delete_first + cache->n_deletes++) % pool->n] = record;
}

void pfx_record_release(struct pfx_cache *cache, uint32_t record)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;

	if (pool->state[record] == PFX_BLOCK_READY) {
		pfx_order_delete(cache, record);
	}
	/* If not, the order to save it holds it, and will see. */
	pfx_pool_release(pool, record);
}

int pfx_cache_next_delete(struct pfx_cache *cache, uint32_t *record)
{
	if (cache->n_deletes == 0) {
		return 0;
	}
	*record = cache->deletes[cache->delete_first];
	cache->delete_first = (cache->delete_first + 1) % cache->tier[PFX_TIER_DISK].pool.n;
	cache->n_deletes--;
	return 1;
}

void pfx_cache_deleted(struct pfx_cache *cache, uint32_t record)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;

	PFX_ASSERT(pool->state[record] == PFX_BLOCK_LEAVING);
	pfx_pool_unhold(pool, record);
}
