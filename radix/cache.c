#include "radix/cache.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/rng.h"
#include "radix/priv.h"

#define BUCKETS_MIN 16u

static int open_tiers(struct pfx_cache *cache, const struct pfx_cache_opts *opts)
{
	uint32_t n[PFX_TIERS] = { opts->n_blocks, opts->n_host, opts->n_disk };
	int rc = pfx_evict_open(&cache->tier[PFX_TIER_DEVICE].evict, opts->policy, opts->n_blocks,
		cache->shift);

	for (int t = 0; t < PFX_TIERS && rc == 0; t++) {
		struct pfx_level *level = &cache->tier[t];

		level->ended.tier = level->kept.tier = t;
		if (t != PFX_TIER_DEVICE) {
			pfx_evict_open_slow(&level->evict, t, cache->shift);
		}
		rc = pfx_pool_init(&level->pool, n[t]);
	}
	cache->tier[PFX_TIER_DEVICE].evict.disk_keeps = opts->n_disk >= opts->n_blocks;
	cache->n_tiers = opts->n_disk > 0 ? PFX_TIERS : opts->n_host > 0 ? PFX_TIER_HOST + 1 : 1;
	cache->slots = opts->n_disk > 0 ? 2 : 1;
	cache->save = opts->n_disk > 0 ? opts->save : PFX_SAVE_OFF;
	cache->spills = pfx_calloc(opts->n_host, sizeof(*cache->spills));
	cache->deletes = pfx_calloc(opts->n_disk, sizeof(*cache->deletes));
	for (int i = 0; i < PFX_SAVES_MAX; i++) {
		cache->saving[i].record = PFX_BLOCK_NONE;
	}
	return rc == 0 && (cache->spills == NULL || cache->deletes == NULL) ? -ENOMEM : rc;
}

static int open_rest(struct pfx_cache *cache, const struct pfx_cache_opts *opts)
{
	uint64_t sum = (uint64_t)opts->n_blocks + opts->n_host + opts->n_disk;
	uint32_t n = sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;

	cache->buckets = pfx_calloc(cache->n_buckets, sizeof(struct pfx_space *));
	if (cache->buckets == NULL || pfx_jump_init(&cache->jump, n) < 0 ||
		pfx_marks_init(&cache->marks, opts->n_marks) < 0 ||
		pfx_ghosts_init(&cache->ghosts, n, opts->hash_seed) < 0) {
		return -ENOMEM;
	}
	return 0;
}

int pfx_cache_open(struct pfx_cache **out, const struct pfx_cache_opts *opts)
{
	uint32_t B = opts->block_tokens;
	struct pfx_cache *cache;
	int rc;

	if (B == 0 || B > 256 || (B & (B - 1)) != 0 || opts->n_blocks == 0 ||
		opts->n_blocks == PFX_BLOCK_NONE || opts->n_marks == PFX_MARK_NONE ||
		opts->n_host == PFX_BLOCK_NONE || opts->n_disk == PFX_BLOCK_NONE ||
		(unsigned)opts->save > PFX_SAVE_ALL) {
		return -EINVAL;
	}
	cache = pfx_calloc(1, sizeof(*cache));
	if (cache == NULL) {
		return -ENOMEM;
	}
	cache->block_tokens = B;
	cache->shift = (uint32_t)__builtin_ctz(B);
	cache->seed = pfx_rng_entropy();
	cache->prio.state = B;
	pfx_list_init(&cache->paths);
	pfx_list_init(&cache->loose);
	pfx_list_init(&cache->to_save);
	cache->n_buckets = BUCKETS_MIN;
	pfx_arena_init(&cache->arena,
		((uint64_t)opts->n_blocks + opts->n_host + opts->n_disk) * B * sizeof(uint32_t));
	rc = open_tiers(cache, opts);
	if (rc == 0) {
		rc = open_rest(cache, opts);
	}
	if (rc < 0) {
		pfx_cache_close(cache);
		return rc;
	}
	*out = cache;
	return 0;
}

void pfx_cache_close(struct pfx_cache *cache)
{
	if (cache == NULL) {
		return;
	}
	for (uint32_t i = 0; cache->buckets != NULL && i < cache->n_buckets; i++) {
		struct pfx_space *s, *next;

		for (s = cache->buckets[i]; s != NULL; s = next) {
			next = s->next;
			PFX_ASSERT(s->root.pins == 0);
			pfx_flush_space(cache, s);
			pfx_free(s);
		}
	}
	PFX_ASSERT(pfx_list_empty(&cache->paths));
	pfx_free(cache->buckets);
	for (int t = 0; t < PFX_TIERS; t++) {
		pfx_evict_close(&cache->tier[t].evict);
		pfx_pool_fini(&cache->tier[t].pool);
	}
	pfx_free(cache->spills);
	pfx_free(cache->deletes);
	pfx_ghosts_fini(&cache->ghosts);
	pfx_marks_fini(&cache->marks);
	pfx_jump_fini(&cache->jump);
	pfx_arena_fini(&cache->arena);
	pfx_free(cache);
}

/* Keyed, since names may come from clients. */
static uint64_t hash_name(uint64_t seed, const char *name, size_t len)
{
	uint64_t hash = pfx_rng_mix(seed, len);

	for (size_t i = 0; i < len; i += sizeof(uint64_t)) {
		uint64_t word = 0;

		memcpy(&word, name + i, len - i < sizeof(word) ? len - i : sizeof(word));
		hash = pfx_rng_mix(hash, word);
	}
	return hash;
}

static void grow_buckets(struct pfx_cache *cache)
{
	uint32_t n = cache->n_buckets * 2;
	struct pfx_space **buckets = pfx_calloc(n, sizeof(*buckets));

	if (buckets == NULL) {
		return; /* longer chains, that is all */
	}
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		struct pfx_space *s, *next;

		for (s = cache->buckets[i]; s != NULL; s = next) {
			next = s->next;
			s->next = buckets[s->hash & (n - 1)];
			buckets[s->hash & (n - 1)] = s;
		}
	}
	pfx_free(cache->buckets);
	cache->buckets = buckets;
	cache->n_buckets = n;
}

/* Frees the spaces that hold nothing and that nobody has a handle of. */
static void sweep_spaces(struct pfx_cache *cache)
{
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		struct pfx_space **at = &cache->buckets[i];

		while (*at != NULL) {
			struct pfx_space *s = *at;

			if (s->refs > 0 || s->root.kids != NULL || s->n_loose > 0) {
				at = &s->next;
				continue;
			}
			PFX_ASSERT(s->root.pins == 0);
			*at = s->next;
			cache->n_spaces--;
			pfx_free(s);
		}
	}
}

int pfx_cache_space(struct pfx_cache *cache, const void *name, size_t len, struct pfx_space **out)
{
	uint64_t hash = hash_name(cache->seed, name, len);
	struct pfx_space *s = cache->buckets[hash & (cache->n_buckets - 1)];

	for (; s != NULL; s = s->next) {
		if (s->hash == hash && s->name_len == len &&
			(len == 0 || memcmp(s->name, name, len) == 0)) {
			s->refs++;
			*out = s;
			return 0;
		}
	}
	/* After this at least half as many are made before the next time: O(1) a space. */
	if (cache->n_spaces >= cache->n_buckets) {
		sweep_spaces(cache);
		if (cache->n_spaces > cache->n_buckets / 2) {
			grow_buckets(cache);
		}
	}
	s = pfx_calloc(1, sizeof(*s) + len);
	if (s == NULL) {
		return -ENOMEM;
	}
	s->hash = hash;
	s->name_len = len;
	if (len > 0) {
		memcpy(s->name, name, len);
	}
	s->refs = 1;
	pfx_root_init(s, cache->epoch);
	s->next = cache->buckets[hash & (cache->n_buckets - 1)];
	cache->buckets[hash & (cache->n_buckets - 1)] = s;
	cache->n_spaces++;
	*out = s;
	return 0;
}

void pfx_space_release(struct pfx_space *space)
{
	if (space == NULL) {
		return;
	}
	PFX_ASSERT(space->refs > 0);
	space->refs--;
}

const void *pfx_space_name(const struct pfx_space *space, size_t *len)
{
	*len = space->name_len;
	return space->name;
}

/* Did the tree once go on behind that place with (the next of) these tokens? */
static int was_evicted(const struct pfx_cache *cache, struct pfx_place at, const uint32_t *tokens,
	uint32_t n, uint64_t *when_ns)
{
	uint32_t q = at.pos & ~(cache->block_tokens - 1);
	uint32_t rest = n - q;

	if (cache->ghosts.added == 0) {
		return 0;
	}
	return pfx_ghosts_know(&cache->ghosts, pfx_tree_digest(cache, at.node, q), tokens + q,
		at.pos - q, rest < cache->block_tokens ? rest : cache->block_tokens, cache->now, when_ns);
}

/* How much of what is before a place lies where. */
static void count_tiers(const struct pfx_cache *cache, struct pfx_place at, uint32_t *tokens)
{
	const struct pfx_node *x = at.node;
	uint32_t device, memory;

	tokens[PFX_TIER_DEVICE] = at.pos;
	if (cache->n_tiers == 1) {
		return;
	}
	while (x->n > 0 && x->n_mem == 0) {
		x = x->parent;
	}
	memory = x->start + (x->n_mem << cache->shift);
	while (x->n > 0 && x->n_dev == 0) {
		x = x->parent;
	}
	device = x->start + (x->n_dev << cache->shift);
	memory = memory < at.pos ? memory : at.pos;
	tokens[PFX_TIER_DEVICE] = device < at.pos ? device : at.pos;
	tokens[PFX_TIER_HOST] = memory - tokens[PFX_TIER_DEVICE];
	tokens[PFX_TIER_DISK] = at.pos - memory;
}

void pfx_cache_describe(const struct pfx_cache *cache, struct pfx_place at, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *out)
{
	*out = (struct pfx_hit){
		.tokens = at.pos,
		.mark = PFX_MARK_NONE,
	};
	count_tiers(cache, at, out->tier_tokens);
	if (at.pos == n) {
		out->mark = pfx_marks_find(&cache->marks, at.node, n);
		out->end = PFX_END_WHOLE;
	} else if (was_evicted(cache, at, tokens, n, &out->evicted_ns)) {
		out->end = PFX_END_EVICTED;
	} else if (at.pos < pfx_node_end(at.node) || at.node->kids != NULL) {
		out->end = PFX_END_DIVERGED;
	} else {
		out->end = PFX_END_NEVER_SEEN;
	}
}

void pfx_cache_match(const struct pfx_cache *cache, const struct pfx_space *space,
	const uint32_t *tokens, uint32_t n, struct pfx_hit *out)
{
	/* The walk only reads; what it finds is handed on as it is. */
	struct pfx_place at = { .node = (struct pfx_node *)&space->root };

	at = pfx_tree_walk(cache, at, tokens, n);
	pfx_cache_describe(cache, at, tokens, n, out);
}

static void stats_of(const struct pfx_cache *cache, enum pfx_tier tier, struct pfx_tier_stats *out)
{
	const struct pfx_level *level = &cache->tier[tier];
	const uint32_t *count = level->pool.count;

	*out = (struct pfx_tier_stats){
		.blocks = level->pool.n,
		.free = count[PFX_BLOCK_FREE],
		.cached = pfx_cached_blocks(cache, tier),
		.pinned = level->pinned,
		.leased = level->leased,
		.moving = count[PFX_BLOCK_ARRIVING] + count[PFX_BLOCK_LEAVING],
		.arrived = level->arrived,
		.evicted = level->evicted,
		.failed = level->failed,
	};
	out->running = out->blocks - out->free - out->cached;
}

void pfx_cache_stats(const struct pfx_cache *cache, struct pfx_cache_stats *out)
{
	*out = (struct pfx_cache_stats){
		.marks = cache->marks.used,
		.nodes = cache->nodes,
		.spaces = cache->n_spaces,
		.leases = cache->n_leases,
		.tokens = cache->tokens,
		.index_bytes = cache->index_bytes,
		.saves_waiting = cache->n_to_save + cache->n_saving,
		.evicted_blocks = cache->evicted_blocks,
		.evicted_marks = cache->marks.evicted,
		.copied_blocks = cache->copied_blocks,
		.duplicate_blocks = cache->duplicate_blocks,
		.splits = cache->splits,
	};
	for (int t = 0; t < PFX_TIERS; t++) {
		stats_of(cache, t, &out->tier[t]);
	}
}
