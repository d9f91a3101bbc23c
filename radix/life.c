/* How long things live: what has ended, what is kept, what is made young. */
#include "radix/kids.h"
#include "radix/priv.h"

void pfx_path_last_turn(struct pfx_path *path)
{
	path->last_turn = 1;
}

void pfx_path_keep_until(struct pfx_path *path, uint64_t ns)
{
	path->keep_until = ns > path->keep_until ? ns : path->keep_until;
}

/* ---- conversations (rule 15) ---- */

/* Told ones are even, guessed ones odd, so that they are never the same. */
void pfx_path_session(struct pfx_path *path, uint64_t id)
{
	path->conv = (id + 1) << 1;
}

uint64_t pfx_conv_at(struct pfx_cache *cache, const struct pfx_node *x, uint32_t pos)
{
	if (pos > 0 && x->conv != 0 && pos >= x->conv_end) {
		return x->conv;
	}
	return ++cache->convs << 1 | 1;
}

void pfx_conv_mixed(struct pfx_node *x)
{
	for (; x->n > 0 && x->conv != 0; x = x->parent) {
		x->conv = 0;
	}
}

void pfx_conv_used(struct pfx_node *x, uint64_t conv, uint32_t n)
{
	for (; x->n > 0 && x->conv == conv; x = x->parent) {
		x->conv_end = n;
	}
	pfx_conv_mixed(x);
}

/* The deepest node from x on by its first children, but not below what has ended. */
static struct pfx_node *lowest(struct pfx_node *x)
{
	while (x->kids != NULL && !x->ended) {
		x = pfx_kids_first(x);
	}
	return x;
}

/*
 * All of it goes, with the branches that it left behind: a turn made again, a reply that came
 * back changed. Nobody else's hangs on it, or it would have been told (pfx_conv_mixed), unless
 * somebody holds that still, and then what is above it as well.
 */
void pfx_conv_end(struct pfx_cache *cache, struct pfx_node *x, uint64_t conv)
{
	struct pfx_node *top = NULL, *next;

	for (; x->n > 0 && x->conv == conv; x = x->parent) {
		top = x;
	}
	for (x = top == NULL ? NULL : lowest(top); x != NULL; x = next) {
		next = x == top ? NULL : pfx_kids_next(x) != NULL ? lowest(pfx_kids_next(x)) : x->parent;
		if (!pfx_node_held(x) && !x->ended) {
			pfx_order_remove(cache, x);
			x->ended = 1;
			pfx_order_add(cache, x);
		}
	}
}

void pfx_cache_end(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n)
{
	struct pfx_place at = { .node = &space->root };

	at = pfx_tree_walk(cache, at, tokens, n);
	if (at.pos > 0 && at.node->conv != 0 && at.pos >= at.node->conv_end) {
		pfx_conv_end(cache, at.node, at.node->conv);
	}
}

void pfx_cache_touch(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n)
{
	struct pfx_evict *evict = &cache->tier[PFX_TIER_DEVICE].evict;
	struct pfx_place at = { .node = &space->root };
	struct pfx_node *x, *y;

	at = pfx_tree_walk(cache, at, tokens, n);
	x = pfx_tree_settle(cache, at);
	if (x == NULL) {
		return;
	}
	for (y = x; y->n > 0 && evict->ops->awaited != NULL; y = y->parent) {
		evict->ops->awaited(evict, pfx_node_blocks(y, cache->shift), y->n_dev);
	}
	pfx_pin(cache, x);
	pfx_unpin(cache, x);
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
	uint64_t last = 0;

	cache->now = ns > cache->now ? ns : cache->now;
	while ((x = expired(cache)) != NULL) {
		/* Those that were kept for equally long are equally old, so that no child is younger. */
		cache->clock += x->keep_until != last;
		last = x->keep_until;
		pfx_order_remove(cache, x);
		x->age = cache->clock;
		pfx_order_add(cache, x);
		/* Those above are kept for as long or longer, so their place does not depend on it. */
		for (struct pfx_node *p = x->parent; p->n > 0 && !pfx_node_held(p) &&
			p->age < cache->clock; p = p->parent) {
			p->age = cache->clock;
		}
	}
}
