/*
 * Which of a node's blocks are in which tier, and where they count: while somebody holds the
 * node, in the tier's sums; else among those that wait for eviction. A node waits in every
 * tier where it has blocks, in each by the same class: what has ended goes first, then what
 * the policy says, then what is kept (rule 15). In each class a child goes before its parent.
 */
#include "base/assert.h"
#include "radix/priv.h"

void pfx_tally(struct pfx_cache *cache, const struct pfx_node *x, int sign)
{
	if (x->state == PFX_NODE_LINKED && !pfx_node_held(x)) {
		return;
	}
	for (uint32_t t = 0; t < cache->n_tiers; t++) {
		struct pfx_level *level = &cache->tier[t];
		uint32_t n = pfx_node_in(x, t, cache->shift);

		n = sign < 0 ? 0 - n : n;
		if (x->state != PFX_NODE_LINKED) {
			level->loose += n;
			x->space->loose_blocks += t != PFX_TIER_DISK ? n : 0;
			continue;
		}
		level->pinned += x->pins > 0 ? n : 0;
		level->leased += x->leases > 0 ? n : 0;
		level->idle += x->leases > 0 && x->pins == 0 ? n : 0;
	}
}

/* ---- who waits ---- */

static struct pfx_heap *heap_of(struct pfx_level *level, const struct pfx_node *x)
{
	return x->class == PFX_CLASS_ENDED ? &level->ended : &level->kept;
}

static uint64_t rank_of(const struct pfx_node *x)
{
	return x->class == PFX_CLASS_ENDED ? x->age : x->keep_until;
}

static void enter(struct pfx_cache *cache, struct pfx_node *x, enum pfx_tier t)
{
	struct pfx_level *level = &cache->tier[t];

	if (x->class == PFX_CLASS_POLICY) {
		level->evict.ops->add(&level->evict, x);
	} else {
		pfx_heap_push(heap_of(level, x), x, rank_of(x));
	}
}

static void leave(struct pfx_cache *cache, struct pfx_node *x, enum pfx_tier t)
{
	struct pfx_level *level = &cache->tier[t];

	if (x->class == PFX_CLASS_POLICY) {
		level->evict.ops->remove(&level->evict, x);
	} else if (pfx_heap_has(x, t)) {
		pfx_heap_remove(heap_of(level, x), x);
	}
}

static void cut(struct pfx_cache *cache, struct pfx_node *x, enum pfx_tier t)
{
	struct pfx_level *level = &cache->tier[t];

	if (x->class != PFX_CLASS_POLICY) {
		leave(cache, x, t);
		enter(cache, x, t);
	} else if (level->evict.ops->cut != NULL) {
		level->evict.ops->cut(&level->evict, x);
	}
}

unsigned pfx_order_has(const struct pfx_cache *cache, const struct pfx_node *x)
{
	unsigned bits = 0;

	if (x->n == 0 || x->state != PFX_NODE_LINKED || pfx_node_held(x)) {
		return 0;
	}
	for (uint32_t t = 0; t < cache->n_tiers; t++) {
		bits |= (unsigned)(pfx_node_in(x, t, cache->shift) > 0) << t;
	}
	return bits;
}

void pfx_order_add(struct pfx_cache *cache, struct pfx_node *x)
{
	x->class = x->ended ? PFX_CLASS_ENDED :
		x->keep_until > cache->now ? PFX_CLASS_KEPT : PFX_CLASS_POLICY;
	for (uint32_t t = 0; t < cache->n_tiers; t++) {
		if (pfx_node_in(x, t, cache->shift) > 0) {
			enter(cache, x, t);
		}
	}
}

void pfx_order_remove(struct pfx_cache *cache, struct pfx_node *x)
{
	for (uint32_t t = 0; t < cache->n_tiers; t++) {
		if (pfx_node_in(x, t, cache->shift) > 0) {
			leave(cache, x, t);
		}
	}
}

void pfx_order_split(struct pfx_cache *cache, struct pfx_node *up, struct pfx_node *x, unsigned had)
{
	up->class = x->class;
	for (uint32_t t = 0; t < cache->n_tiers; t++) {
		struct pfx_level *level = &cache->tier[t];

		if ((had >> t & 1) == 0) {
			continue;
		}
		/* The first blocks are up's, so it has some in each tier that x had, but the host's
		 * may all be x's. */
		if (pfx_node_in(up, t, cache->shift) > 0) {
			if (x->class != PFX_CLASS_POLICY) {
				pfx_heap_push(heap_of(level, x), up, rank_of(up));
			} else if (level->evict.ops->add_above != NULL) {
				level->evict.ops->add_above(&level->evict, up, x);
			}
		}
		if (pfx_node_in(x, t, cache->shift) == 0) {
			leave(cache, x, t);
			cut(cache, up, t);
		}
	}
}

void pfx_order_cut(struct pfx_cache *cache, struct pfx_node *x)
{
	for (uint32_t t = 0; t < cache->n_tiers; t++) {
		if (pfx_order_has(cache, x) >> t & 1) {
			cut(cache, x, t);
		}
	}
}

struct pfx_node *pfx_order_victim(const struct pfx_cache *cache, enum pfx_tier tier)
{
	const struct pfx_level *level = &cache->tier[tier];
	const struct pfx_policy_ops *ops = level->evict.ops;
	struct pfx_node *x = level->ended.top, *y;

	if (x == NULL || (ops->trusts_ends != NULL && !ops->trusts_ends(&level->evict))) {
		y = ops->victim(&level->evict);
		x = x == NULL || (y != NULL && y->age < x->age) ? y : x;
	}
	return x != NULL ? x : level->kept.top;
}

int pfx_order_before(const struct pfx_node *a, const struct pfx_node *b)
{
	uint64_t x = a->age, y = b->age;

	if (a->class != b->class) {
		return a->class < b->class;
	}
	if (a->class == PFX_CLASS_KEPT && a->keep_until != b->keep_until) {
		x = a->keep_until;
		y = b->keep_until;
	}
	return x != y ? x < y : pfx_node_end(a) > pfx_node_end(b);
}

/* ---- a node's tiers ---- */

/* Tiers of kids_in that are kept: what is in memory is counted without host memory as well. */
static uint32_t tiers_of_kids(const struct pfx_cache *cache)
{
	return cache->n_tiers > PFX_TIER_HOST ? cache->n_tiers : PFX_TIER_HOST + 1;
}

void pfx_node_count(struct pfx_cache *cache, struct pfx_node *x, int sign)
{
	struct pfx_node *parent = x->parent;
	uint32_t tiers = tiers_of_kids(cache);

	for (uint32_t t = 0; t < tiers; t++) {
		if (!pfx_node_counts(x, t)) {
			continue;
		}
		parent->kids_in[t] += (uint32_t)sign;
		if (sign < 0 && parent->kids_in[t] == 0 && t == PFX_TIER_DEVICE &&
			pfx_order_has(cache, parent) & 1u << PFX_TIER_DEVICE) {
			cut(cache, parent, t);
		}
	}
}

void pfx_node_set(struct pfx_cache *cache, struct pfx_node *x, uint32_t n_dev, uint32_t n_mem,
	uint32_t saved)
{
	unsigned had = pfx_order_has(cache, x), has;
	int counted = x->state == PFX_NODE_LINKED;
	uint32_t was_dev = x->n_dev;
	uint32_t tiers = tiers_of_kids(cache);
	int counts[PFX_TIERS];

	PFX_ASSERT(n_dev <= n_mem);
	for (uint32_t t = 0; t < tiers; t++) {
		counts[t] = pfx_node_counts(x, t);
	}
	pfx_tally(cache, x, -1);
	x->n_dev = n_dev;
	x->n_mem = n_mem;
	x->saved = saved;
	pfx_tally(cache, x, 1);
	has = pfx_order_has(cache, x);
	for (uint32_t t = 0; t < tiers; t++) {
		int now = pfx_node_counts(x, t);

		if (had >> t & ~(has >> t) & 1) {
			leave(cache, x, t);
		} else if (has >> t & ~(had >> t) & 1) {
			enter(cache, x, t);
		} else if (has >> t & 1 && t == PFX_TIER_DEVICE && n_dev != was_dev) {
			cut(cache, x, t);
		}
		if (!counted || now == counts[t]) {
			continue;
		}
		x->parent->kids_in[t] += now ? 1u : 0u - 1u;
		if (!now && x->parent->kids_in[t] == 0 && t == PFX_TIER_DEVICE &&
			pfx_order_has(cache, x->parent) & 1u << PFX_TIER_DEVICE) {
			cut(cache, x->parent, t);
		}
	}
}
