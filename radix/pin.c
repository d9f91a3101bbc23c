/* Who is held, by paths and by leases. Both are counted upwards only where something changes. */
#include "base/assert.h"
#include "radix/priv.h"

/* x is held from now on. */
static void grab(struct pfx_cache *cache, struct pfx_node *x)
{
	PFX_ASSERT(x->state == PFX_NODE_LINKED);
	pfx_order_remove(cache, x);
	x->ended = 0;
}

void pfx_pin(struct pfx_cache *cache, struct pfx_node *x)
{
	for (; x != NULL && x->pins++ == 0; x = x->parent) {
		if (x->n == 0) {
			continue;
		}
		x->pins = 0;
		if (!pfx_node_held(x)) {
			grab(cache, x);
		}
		pfx_tally(cache, x, -1);
		x->pins = 1;
		pfx_tally(cache, x, 1);
	}
}

void pfx_lease(struct pfx_cache *cache, struct pfx_node *x)
{
	for (; x != NULL && x->leases++ == 0; x = x->parent) {
		if (x->n == 0) {
			continue;
		}
		x->leases = 0;
		if (!pfx_node_held(x)) {
			grab(cache, x);
		}
		pfx_tally(cache, x, -1);
		x->leases = 1;
		pfx_tally(cache, x, 1);
	}
}

/* x has lost its last pin, or its last lease: *count, which was 1. */
static void dropped(struct pfx_cache *cache, struct pfx_node *x, uint32_t *count)
{
	if (x->n == 0) {
		*count = 0;
		return;
	}
	pfx_tally(cache, x, -1);
	*count = 0;
	if (pfx_node_held(x)) {
		pfx_tally(cache, x, 1);
		return;
	}
	if (x->state == PFX_NODE_LINKED) {
		x->age = cache->clock;
		x->used_ns = cache->now;
		pfx_node_trim(cache, x);
		pfx_order_add(cache, x);
		return;
	}
	pfx_tally(cache, x, 1);
	pfx_node_tighten(cache, x);
	pfx_node_free(cache, x);
}

/*
 * Gives back pins or leases from x upwards. The lowest LINKED node that nobody holds now, or
 * NULL.
 */
static struct pfx_node *drop(struct pfx_cache *cache, struct pfx_node *x, int leases)
{
	struct pfx_node *lowest = NULL;

	cache->clock++;
	while (x != NULL) {
		struct pfx_node *parent = x->parent;
		uint32_t *count = leases ? &x->leases : &x->pins;
		int linked = x->state == PFX_NODE_LINKED;

		PFX_ASSERT(*count > 0);
		if (*count > 1) {
			--*count;
			break;
		}
		dropped(cache, x, count);
		if (lowest == NULL && linked && !pfx_node_held(x)) {
			lowest = x;
		}
		x = parent;
	}
	return lowest;
}

void pfx_unpin_as_it_is(struct pfx_cache *cache, struct pfx_node *x)
{
	drop(cache, x, 0);
}

void pfx_unpin(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_node *lowest = drop(cache, x, 0);

	if (lowest != NULL) {
		pfx_tree_merge_up(cache, lowest);
	}
}

void pfx_unlease(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_node *lowest = drop(cache, x, 1);

	if (lowest != NULL) {
		pfx_tree_merge_up(cache, lowest);
	}
}
