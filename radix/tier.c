/* What concerns the tiers below the device, as far as the tree uses them: the device is all. */
#include <errno.h>

#include "base/assert.h"
#include "base/error.h"
#include "radix/priv.h"

void pfx_cache_now(struct pfx_cache *cache, uint64_t ns)
{
	cache->now = ns > cache->now ? ns : cache->now;
}

uint32_t pfx_path_reach(const struct pfx_path *path)
{
	return path->len;
}

int pfx_path_source(const struct pfx_path *path, uint32_t block_index, struct pfx_source *out)
{
	(void)path;
	(void)block_index;
	(void)out;
	return -ENOENT;
}

void pfx_path_lost(struct pfx_path *path, uint32_t block_index)
{
	(void)path;
	(void)block_index;
}

void pfx_path_forgo(struct pfx_path *path)
{
	(void)path;
}

void pfx_path_last_turn(struct pfx_path *path)
{
	(void)path;
}

void pfx_path_keep_until(struct pfx_path *path, uint64_t ns)
{
	(void)path;
	(void)ns;
}

int pfx_path_lease(struct pfx_path *path)
{
	return path->apart ? -ENOENT : PFX_E_LIMIT;
}

int pfx_path_apart(const struct pfx_path *path)
{
	return path->apart;
}

void pfx_cache_touch(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n)
{
	struct pfx_path *path;

	if (pfx_path_open(cache, space, tokens, n, NULL, &path) == 0) {
		pfx_path_close(path);
	}
}

void pfx_cache_end(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n)
{
	(void)cache;
	(void)space;
	(void)tokens;
	(void)n;
}

void pfx_cache_hold(struct pfx_cache *cache, enum pfx_tier tier, uint32_t id)
{
	PFX_ASSERT(tier == PFX_TIER_DEVICE && id < cache->pool.n);
}

void pfx_cache_unhold(struct pfx_cache *cache, enum pfx_tier tier, uint32_t id)
{
	PFX_ASSERT(tier == PFX_TIER_DEVICE && id < cache->pool.n);
}

int pfx_cache_next_spill(struct pfx_cache *cache, struct pfx_spill *out)
{
	(void)cache;
	(void)out;
	return 0;
}

void pfx_cache_spilled(struct pfx_cache *cache, const struct pfx_spill *spill, int ok)
{
	(void)cache;
	(void)spill;
	(void)ok;
}

int pfx_cache_next_save(struct pfx_cache *cache, struct pfx_save_order *out)
{
	(void)cache;
	(void)out;
	return 0;
}

void pfx_cache_save_copied(struct pfx_cache *cache, uint32_t record)
{
	(void)cache;
	(void)record;
}

void pfx_cache_saved(struct pfx_cache *cache, uint32_t record, int rc)
{
	(void)cache;
	(void)record;
	(void)rc;
}

int pfx_cache_next_delete(struct pfx_cache *cache, uint32_t *record)
{
	(void)cache;
	(void)record;
	return 0;
}

void pfx_cache_deleted(struct pfx_cache *cache, uint32_t record)
{
	(void)cache;
	(void)record;
}

uint32_t pfx_cache_want_saved(struct pfx_cache *cache, struct pfx_space *space)
{
	(void)cache;
	(void)space;
	return 0;
}

int pfx_restore_begin(struct pfx_cache *cache, struct pfx_restore **out)
{
	(void)cache;
	*out = NULL;
	return -EINVAL;
}

int pfx_restore_add(struct pfx_restore *r, struct pfx_space *space, uint32_t parent_record,
	const uint32_t *tokens, uint32_t n_tokens, uint64_t used_ns, uint32_t *record)
{
	(void)r;
	(void)space;
	(void)parent_record;
	(void)tokens;
	(void)n_tokens;
	(void)used_ns;
	(void)record;
	return PFX_E_FULL;
}

void pfx_restore_end(struct pfx_restore *r)
{
	(void)r;
}

uint32_t pfx_cache_evict(struct pfx_cache *cache, enum pfx_tier tier, struct pfx_space *space,
	uint32_t n)
{
	uint32_t cached = pfx_cached_blocks(cache);

	if (tier != PFX_TIER_DEVICE || space != NULL) {
		return 0;
	}
	return pfx_cache_press(cache, cached > n ? cached - n : 0);
}
