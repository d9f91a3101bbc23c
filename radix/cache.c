#include "radix/cache.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/rng.h"
#include "radix/priv.h"

#define BUCKETS_MIN 16u

int pfx_cache_open(struct pfx_cache **out, const struct pfx_cache_opts *opts)
{
	uint32_t B = opts->block_tokens;
	struct pfx_cache *cache;
	int rc;

	if (B == 0 || B > 256 || (B & (B - 1)) != 0 || opts->n_blocks == 0 ||
		opts->n_blocks == PFX_BLOCK_NONE || opts->n_marks == PFX_MARK_NONE ||
		opts->n_host > 0 || opts->n_disk > 0) {
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
	cache->n_buckets = BUCKETS_MIN;
	rc = pfx_evict_open(&cache->evict, opts->policy, opts->n_blocks, cache->shift);
	if (rc < 0) {
		pfx_cache_close(cache);
		return rc;
	}
	cache->buckets = pfx_calloc(cache->n_buckets, sizeof(struct pfx_space *));
	if (cache->buckets == NULL || pfx_pool_init(&cache->pool, opts->n_blocks) < 0 ||
		pfx_jump_init(&cache->jump, opts->n_blocks) < 0 ||
		pfx_marks_init(&cache->marks, opts->n_marks) < 0 ||
		pfx_ghosts_init(&cache->ghosts, opts->n_blocks) < 0) {
		pfx_cache_close(cache);
		return -ENOMEM;
	}
	*out = cache;
	return 0;
}

/* Frees what nobody holds; the rest is forgotten. Takes top nodes of treaps, leaves first. */
static uint32_t flush_tree(struct pfx_cache *cache, struct pfx_space *space)
{
	struct pfx_node *x = &space->root;
	uint32_t freed = 0;

	for (;;) {
		struct pfx_node *parent;

		while (x->kids != NULL) {
			x = x->kids;
		}
		if (x == &space->root) {
			break;
		}
		parent = x->parent;
		freed += pfx_forget(cache, x);
		x = parent;
	}
	pfx_root_renew(space, ++cache->epoch);
	return freed;
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
			flush_tree(cache, s);
			pfx_free(s);
		}
	}
	PFX_ASSERT(pfx_list_empty(&cache->paths));
	pfx_free(cache->buckets);
	pfx_evict_close(&cache->evict);
	pfx_ghosts_fini(&cache->ghosts);
	pfx_marks_fini(&cache->marks);
	pfx_jump_fini(&cache->jump);
	pfx_pool_fini(&cache->pool);
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

			if (s->refs > 0 || s->root.kids != NULL || s->loose_blocks > 0) {
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
	uint32_t n)
{
	uint32_t q = at.pos & ~(cache->block_tokens - 1);
	uint32_t rest = n - q;

	if (cache->ghosts.added == 0) {
		return 0;
	}
	return pfx_ghosts_know(&cache->ghosts, pfx_tree_digest(cache, at.node, q), tokens + q,
		at.pos - q, rest < cache->block_tokens ? rest : cache->block_tokens);
}

void pfx_cache_describe(const struct pfx_cache *cache, struct pfx_place at, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *out)
{
	*out = (struct pfx_hit){
		.tokens = at.pos,
		.tier_tokens[PFX_TIER_DEVICE] = at.pos,
		.mark = PFX_MARK_NONE,
	};
	if (at.pos == n) {
		out->mark = pfx_marks_find(&cache->marks, at.node, n);
		out->end = PFX_END_WHOLE;
	} else if (was_evicted(cache, at, tokens, n)) {
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

void pfx_cache_flush(struct pfx_cache *cache, struct pfx_space *space, unsigned tiers,
	struct pfx_flushed *out)
{
	uint32_t own = 0;

	*out = (struct pfx_flushed){ 0 };
	if ((tiers & 1u << PFX_TIER_DEVICE) == 0) {
		return;
	}
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		for (struct pfx_space *s = cache->buckets[i]; s != NULL; s = s->next) {
			if (space == NULL || s == space) {
				out->blocks[PFX_TIER_DEVICE] += flush_tree(cache, s);
				out->in_use += s->loose_blocks;
			}
		}
	}
	pfx_list_for(it, &cache->paths) {
		struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		if (space != NULL && path->space != space) {
			continue;
		}
		own += path->n_blocks - path->n_tree;
		path->apart = 1;
		if (path->node != NULL && path->node->state == PFX_NODE_LOOSE) {
			path->node->state = PFX_NODE_FLUSHED;
		}
	}
	out->in_use += own;
}

void pfx_cache_stats(const struct pfx_cache *cache, struct pfx_cache_stats *out)
{
	const uint32_t *count = cache->pool.count;

	*out = (struct pfx_cache_stats){
		.tier[PFX_TIER_DEVICE] = {
			.blocks = cache->pool.n,
			.free = count[PFX_BLOCK_FREE],
			.cached = pfx_cached_blocks(cache),
			.running = count[PFX_BLOCK_FILLING] + cache->pinned_blocks +
				cache->loose_blocks,
			.pinned = cache->pinned_blocks,
			.evicted = cache->evicted_blocks,
		},
		.marks = cache->marks.used,
		.nodes = cache->nodes,
		.spaces = cache->n_spaces,
		.tokens = cache->tokens,
		.index_bytes = cache->index_bytes,
		.evicted_blocks = cache->evicted_blocks,
		.evicted_marks = cache->marks.evicted,
		.copied_blocks = cache->copied_blocks,
		.duplicate_blocks = cache->duplicate_blocks,
		.splits = cache->splits,
	};
}
