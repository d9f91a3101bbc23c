/* The tree from the rows of the store's index: nodes that are on disk only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "radix/kids.h"
#include "radix/priv.h"

struct pfx_restore {
	struct pfx_cache *cache;
	/* By record: a node that it is in or that stood there before a split: then it is above. */
	struct pfx_node **node;
	uint32_t *start; /* by record: its first position */
};

int pfx_restore_begin(struct pfx_cache *cache, struct pfx_restore **out)
{
	uint32_t n = cache->tier[PFX_TIER_DISK].pool.n;
	struct pfx_restore *r = pfx_calloc(1, sizeof(*r));

	if (r == NULL) {
		return -ENOMEM;
	}
	r->cache = cache;
	r->node = pfx_calloc(n, sizeof(struct pfx_node *));
	r->start = pfx_calloc(n, sizeof(*r->start));
	if (r->node == NULL || r->start == NULL) {
		pfx_free(r->node);
		pfx_free(r->start);
		pfx_free(r);
		return -ENOMEM;
	}
	*out = r;
	return 0;
}

/* The place behind the block of that record: 0, or PFX_E_FORMAT. */
static int place_after(const struct pfx_restore *r, struct pfx_space *space, uint32_t record,
	struct pfx_place *at)
{
	const struct pfx_cache *cache = r->cache;
	const struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;
	struct pfx_node *x;

	*at = (struct pfx_place){ .node = &space->root };
	if (record == PFX_BLOCK_NONE) {
		return 0;
	}
	if (record >= pool->n || pool->state[record] != PFX_BLOCK_READY || r->node[record] == NULL) {
		return PFX_E_FORMAT;
	}
	for (x = r->node[record]; x->start > r->start[record]; x = x->parent) {
	}
	at->node = x;
	at->pos = r->start[record] + cache->block_tokens;
	return x->space != space || at->pos > pfx_node_end(x) ? PFX_E_FORMAT : 0;
}

/* A block on disk alone, with that many tokens, at the end of x, which has room and is not held. */
static void append(struct pfx_cache *cache, struct pfx_node *x, const uint32_t *tokens, uint32_t n,
	uint32_t record)
{
	uint32_t at = x->n >> cache->shift;

	memcpy(x->run + x->n, tokens, n * sizeof(*tokens));
	pfx_node_blocks(x, cache->shift)[at] = PFX_BLOCK_NONE;
	pfx_node_records(x, cache->shift)[at] = record;
	x->n += n;
	x->saved = x->worthy = x->n;
	if (n == cache->block_tokens) {
		x->digest = pfx_digest_step(x->digest, pfx_ghosts_hash(&cache->ghosts, tokens, n));
	}
}

static int by_use(const void *a, const void *b)
{
	const struct pfx_node *x = *(struct pfx_node *const *)a, *y = *(struct pfx_node *const *)b;

	if (x->used_ns != y->used_ns) {
		return x->used_ns < y->used_ns ? -1 : 1;
	}
	return pfx_node_end(x) > pfx_node_end(y) ? -1 : pfx_node_end(x) < pfx_node_end(y);
}

/* The node to which the block is to be added, or NULL with *rc set. */
static struct pfx_node *node_for(struct pfx_cache *cache, struct pfx_place at,
	const uint32_t *tokens, uint32_t n, uint64_t used_ns, int *rc)
{
	struct pfx_node *x = at.node;
	uint32_t rest = pfx_node_end(x) - at.pos, common;

	if (rest > 0) {
		common = pfx_common(x->run + (at.pos - x->start), tokens, n < rest ? n : rest);
	} else {
		pfx_kids_best(x, tokens, n, cache->block_tokens, &common);
	}
	*rc = common == n ? -EEXIST : -ENOMEM;
	if (common == n) {
		return NULL;
	}
	if (rest > 0) {
		x = pfx_tree_split(cache, x, at.pos);
	} else if (x->n > 0 && x->kids == NULL && used_ns >= x->used_ns) {
		return pfx_node_grow(cache, x, (x->n >> cache->shift) + 1) < 0 ? NULL : x;
	}
	return x == NULL ? NULL : pfx_node_new(cache, x, 1);
}

int pfx_restore_add(struct pfx_restore *r, struct pfx_space *space, uint32_t parent_record,
	const uint32_t *tokens, uint32_t n_tokens, uint64_t used_ns, uint32_t *record)
{
	struct pfx_cache *cache = r->cache;
	struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;
	struct pfx_place at;
	struct pfx_node *x;
	int rc = place_after(r, space, parent_record, &at);

	if (rc < 0 || n_tokens == 0 || n_tokens > cache->block_tokens) {
		return PFX_E_FORMAT;
	}
	if (pool->count[PFX_BLOCK_FREE] == 0) {
		return PFX_E_FULL;
	}
	x = node_for(cache, at, tokens, n_tokens, used_ns, &rc);
	if (x == NULL) {
		return rc;
	}
	*record = pfx_pool_take(pool, PFX_BLOCK_ARRIVING);
	pfx_pool_move(pool, *record, PFX_BLOCK_READY);
	x->used_ns = used_ns;
	append(cache, x, tokens, n_tokens, *record);
	if (x->n > n_tokens) {
		cache->tokens += n_tokens;
		pfx_order_cut(cache, x);
	} else {
		pfx_tree_link(cache, x);
		pfx_order_add(cache, x);
	}
	r->node[*record] = x;
	r->start[*record] = pfx_node_end(x) - n_tokens;
	return 0;
}

/* A prefix was used when anything behind it was. Of nodes that stand behind their parents. */
static void spread_use(struct pfx_node **node, uint32_t n)
{
	while (n-- > 0) {
		struct pfx_node *parent = node[n]->parent;

		if (parent->n > 0 && parent->used_ns < node[n]->used_ns) {
			parent->used_ns = node[n]->used_ns;
		}
	}
}

void pfx_restore_end(struct pfx_restore *r)
{
	struct pfx_cache *cache;
	uint32_t n = 0;

	if (r == NULL) {
		return;
	}
	/* No more is asked of the map: there is room in it for all nodes. */
	cache = r->cache;
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		for (struct pfx_space *s = cache->buckets[i]; s != NULL; s = s->next) {
			for (struct pfx_node *x = pfx_tree_next(&s->root); x != NULL;
				x = pfx_tree_next(x)) {
				PFX_ASSERT(n < cache->tier[PFX_TIER_DISK].pool.n);
				r->node[n++] = x;
			}
		}
	}
	spread_use(r->node, n);
	qsort(r->node, n, sizeof(struct pfx_node *), by_use);
	for (uint32_t i = 0; i < n; i++) {
		struct pfx_node *x = r->node[i];

		cache->clock += i == 0 || x->used_ns != r->node[i - 1]->used_ns;
		pfx_order_remove(cache, x);
		x->age = cache->clock;
		pfx_order_add(cache, x);
		pfx_node_trim(cache, x);
	}
	pfx_free(r->node);
	pfx_free(r->start);
	pfx_free(r);
}
