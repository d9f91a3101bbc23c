#ifndef PFX_RADIX_KIDS_H
#define PFX_RADIX_KIDS_H

/*
 * The children of one node, ordered by the tokens of their first block. The set is free of
 * prefixes: no child's first block is the beginning of another's (rule 6), so the child
 * that shares most with a query is a neighbour of the place where the query would stand,
 * and the way down to that place meets it.
 *
 * An intrusive treap with up-pointers. Depth is about 2 ln n.
 */

#include "radix/node.h"

/*
 * The child with the longest common prefix with q[0..n), n > 0; *common is its length, of
 * which at most a block is looked at. Of several the first in order. NULL, and *common 0,
 * when none shares a token.
 */
struct pfx_node *pfx_kids_best(const struct pfx_node *parent, const uint32_t *q, uint32_t n,
	uint32_t block_tokens, uint32_t *common);

/* A place between two neighbours among the children; either may be NULL. */
struct pfx_kids_place {
	struct pfx_node *before, *after;
	struct pfx_node *up; /* whose left or right child in the treap is free there; NULL: no children */
	uint32_t in_before, in_after; /* tokens in common with them, at most a block */
};

/* Where q[0..n) would stand. A child whose first block is just that is `after`. */
void pfx_kids_find(const struct pfx_node *parent, const uint32_t *q, uint32_t n,
	uint32_t block_tokens, struct pfx_kids_place *at);
/* Puts x at the place that was found for its tokens. */
void pfx_kids_put(struct pfx_node *parent, struct pfx_node *x, const struct pfx_kids_place *at);
void pfx_kids_remove(struct pfx_node *parent, struct pfx_node *x);
/* Puts y, which has the same first block, in the place of x; they swap priorities. */
void pfx_kids_replace(struct pfx_node *parent, struct pfx_node *x, struct pfx_node *y);

/* In order; NULL ends. */
struct pfx_node *pfx_kids_first(const struct pfx_node *parent);
struct pfx_node *pfx_kids_next(const struct pfx_node *x);

/* Below 0, 0, above 0: how q[0..n) stands to the first block of x; *common as above. */
int pfx_kids_compare(const uint32_t *q, uint32_t n, const struct pfx_node *x,
	uint32_t block_tokens, uint32_t *common);

/* Heap order, up-pointers, priorities and number of one treap: 1 when sound. */
int pfx_kids_sound(const struct pfx_node *parent);

#endif
