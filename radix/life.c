/* How long things live: what has ended, what is kept, what is made young. */
#include "radix/priv.h"

void pfx_path_last_turn(struct pfx_path *path)
{
	path->last_turn = 1;
}

void pfx_path_keep_until(struct pfx_path *path, uint64_t ns)
{
	path->keep_until = ns > path->keep_until ? ns : path->keep_until;
}

/*
 * What only this conversation used: nobody else holds it, nothing goes on behind it that has
 * not ended as well, and it never led to two places. What is not shared has one child at most.
 */
void pfx_end_up(struct pfx_cache *cache, struct pfx_node *x)
{
	for (; x->n > 0 && !pfx_node_held(x) && !x->shared; x = x->parent) {
		if (x->kids != NULL && !x->kids->ended) {
			return;
		}
		pfx_order_remove(cache, x);
		x->ended = 1;
		pfx_order_add(cache, x);
	}
}

void pfx_cache_end(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n)
{
	struct pfx_place at = { .node = &space->root };

	at = pfx_tree_walk(cache, at, tokens, n);
	/* Inside a node it is somebody else's that goes on. */
	if (at.pos == pfx_node_end(at.node)) {
		pfx_end_up(cache, at.node);
	}
}

void pfx_cache_touch(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n)
{
	struct pfx_place at = { .node = &space->root };
	struct pfx_node *x;

	at = pfx_tree_walk(cache, at, tokens, n);
	x = pfx_tree_settle(cache, at);
	if (x != NULL) {
		pfx_pin(cache, x);
		pfx_unpin(cache, x);
	}
}

/* The node that has been kept for long enough first, of all tiers; NULL: none has. */
static struct pfx_node *expired(const struct pfx_cache *cache)
{
	struct pfx_node *first = NULL;

	for (int t = 0; t < PFX_TIERS; t++) {
		struct pfx_node *x = cache->tier[t].kept.top;

		if (x != NULL && x->keep_until <= cache->now &&
			(first == NULL || pfx_order_before(x, first))) {
			first = x;
		}
	}
	return first;
}

void pfx_cache_now(struct pfx_cache *cache, uint64_t ns)
{
	struct pfx_node *x;

	cache->now = ns > cache->now ? ns : cache->now;
	while ((x = expired(cache)) != NULL) {
		pfx_order_remove(cache, x);
		x->age = ++cache->clock;
		pfx_order_add(cache, x);
	}
}
