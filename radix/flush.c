/* Forgetting: a space, or all, in all tiers or in some. */
#include "radix/kids.h"
#include "radix/priv.h"

/* Takes a node for good out of a tree that is being flushed. */
static void forget(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_marks_cut(&cache->marks, x, 0);
	pfx_tree_unlink(cache, x);
	if (pfx_node_held(x)) {
		pfx_node_loosen(cache, x, PFX_NODE_FLUSHED);
	} else {
		pfx_node_free(cache, x);
	}
}

void pfx_flush_space(struct pfx_cache *cache, struct pfx_space *space)
{
	struct pfx_node *x = &space->root;

	/* Takes top nodes of treaps, leaves first. */
	for (;;) {
		struct pfx_node *parent;

		while (x->kids != NULL) {
			x = x->kids;
		}
		if (x == &space->root) {
			break;
		}
		parent = x->parent;
		forget(cache, x);
		x = parent;
	}
	pfx_root_renew(space, ++cache->epoch);
}

/* The paths of a space (NULL: all) are on their own from now on. Returns blocks in no tree. */
static uint32_t set_apart(struct pfx_cache *cache, const struct pfx_space *space)
{
	uint32_t own = 0;

	pfx_list_for(it, &cache->paths) {
		struct pfx_path *path = pfx_container_of(it, struct pfx_path, link);

		if (space != NULL && path->space != space) {
			continue;
		}
		own += path->n_blocks - path->n_tree;
		path->apart = 1;
		pfx_path_forgo(path);
		if (path->node != NULL && path->node->state == PFX_NODE_LOOSE) {
			path->node->state = PFX_NODE_FLUSHED;
		}
	}
	return own;
}

/*
 * What nobody holds leaves some of the tiers. Of what is below a node that nobody holds nobody
 * holds anything, and what follows a block in slower memory goes with it.
 */
static void flush_some(struct pfx_cache *cache, struct pfx_space *space, enum pfx_tier tier)
{
	struct pfx_node *x = pfx_tree_next(&space->root), *next;

	for (; x != NULL; x = next) {
		uint32_t keep = tier == PFX_TIER_HOST ? x->n_dev : 0;

		next = pfx_tree_next(x);
		if (pfx_node_held(x)) {
			continue;
		}
		if (tier == PFX_TIER_HOST ? x->n_mem > x->n_dev : pfx_node_counts(x, tier)) {
			next = pfx_tree_skip(x);
			pfx_lose_below(cache, x, keep,
				tier == PFX_TIER_DISK ? PFX_TIER_DISK : PFX_TIER_HOST);
		}
	}
}

/* What paths hold in some tiers of a space. */
static uint32_t held_blocks(const struct pfx_cache *cache, struct pfx_space *space, unsigned tiers)
{
	uint32_t n = 0;

	for (struct pfx_node *x = pfx_tree_next(&space->root); x != NULL; x = pfx_tree_next(x)) {
		for (int t = 0; t < PFX_TIERS && pfx_node_held(x); t++) {
			n += tiers >> t & 1 ? pfx_node_in(x, t, cache->shift) : 0;
		}
	}
	return n;
}

static void flush_space(struct pfx_cache *cache, struct pfx_space *space, unsigned tiers, int all,
	struct pfx_flushed *out)
{
	if (all) {
		pfx_flush_space(cache, space);
		out->in_use += space->loose_blocks;
		return;
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		if (tiers >> t & 1) {
			flush_some(cache, space, t);
		}
	}
	out->in_use += held_blocks(cache, space, tiers);
}

void pfx_cache_flush(struct pfx_cache *cache, struct pfx_space *space, unsigned tiers,
	struct pfx_flushed *out)
{
	unsigned on = 0;
	int all;

	*out = (struct pfx_flushed){ 0 };
	for (int t = 0; t < PFX_TIERS; t++) {
		on |= (unsigned)(cache->tier[t].pool.n > 0) << t;
	}
	all = (tiers & on) == on;
	if (all) {
		out->in_use = set_apart(cache, space);
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		out->blocks[t] = pfx_node_blocks_of(cache, t);
	}
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		for (struct pfx_space *s = cache->buckets[i]; s != NULL; s = s->next) {
			if (space == NULL || s == space) {
				flush_space(cache, s, tiers & on, all, out);
			}
		}
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		out->blocks[t] -= pfx_node_blocks_of(cache, t);
	}
}
