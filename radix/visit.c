/* The view of the trees, for people. */
#include "radix/kids.h"
#include "radix/priv.h"

static int show(const struct pfx_cache *cache, const struct pfx_node *x, uint32_t depth,
	int (*visit)(void *arg, const struct pfx_node_view *node), void *arg)
{
	struct pfx_node_view view = {
		.space = x->space,
		.depth = depth,
		.start = x->start,
		.n_tokens = x->n,
		.tokens = x->run,
		.blocks = pfx_node_n_blocks(x, cache->shift),
		.device = pfx_node_in(x, PFX_TIER_DEVICE, cache->shift),
		.host = pfx_node_in(x, PFX_TIER_HOST, cache->shift),
		.disk = pfx_node_in(x, PFX_TIER_DISK, cache->shift),
		.hits = x->hits,
		.used_ns = pfx_node_held(x) ? cache->now : x->used_ns,
		.keep_until_ns = x->keep_until,
		.pins = x->pins,
		.leases = x->leases,
		.ended = x->ended,
	};

	for (const struct pfx_node *k = pfx_kids_first(x); k != NULL; k = pfx_kids_next(k)) {
		view.n_kids++;
	}
	return visit(arg, &view);
}

/* Returns -1 when the visitor wants no more. */
static int visit_space(const struct pfx_cache *cache, const struct pfx_space *space,
	int (*visit)(void *arg, const struct pfx_node_view *node), void *arg)
{
	const struct pfx_node *x = pfx_kids_first(&space->root);
	uint32_t depth = 0;

	while (x != NULL) {
		int result = show(cache, x, depth, visit, arg);
		const struct pfx_node *next = result == 0 ? pfx_kids_first(x) : NULL;

		if (result < 0) {
			return -1;
		}
		depth += next != NULL;
		while (next == NULL && x->n > 0) {
			next = pfx_kids_next(x);
			if (next == NULL) {
				x = x->parent;
				depth--;
			}
		}
		x = next;
	}
	return 0;
}

void pfx_cache_visit(struct pfx_cache *cache, struct pfx_space *space,
	int (*visit)(void *arg, const struct pfx_node_view *node), void *arg)
{
	if (space != NULL) {
		visit_space(cache, space, visit, arg);
		return;
	}
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		for (const struct pfx_space *s = cache->buckets[i]; s != NULL; s = s->next) {
			if (visit_space(cache, s, visit, arg) < 0) {
				return;
			}
		}
	}
}
