#ifndef PFX_RADIX_HEAP_H
#define PFX_RADIX_HEAP_H

/*
 * A pairing heap of nodes, least `rank` first and the deepest first among equals. Intrusive,
 * so that nothing here can fail: it runs through the nodes' order[tier]. next and prev of its
 * link are the siblings in the heap (prev of a first child is the node above it), `below` is
 * the first child. Push is O(1), the others O(log n) amortised. Nothing is recursive.
 */

#include "radix/node.h"

struct pfx_heap {
	struct pfx_node *top; /* NULL: empty */
	enum pfx_tier tier;
};

void pfx_heap_push(struct pfx_heap *heap, struct pfx_node *x, uint64_t rank);
/* Is x in a heap (or list) of that tier? */
static inline int pfx_heap_has(const struct pfx_node *x, enum pfx_tier tier)
{
	return x->order[tier].link.next != &x->order[tier].link;
}

void pfx_heap_remove(struct pfx_heap *heap, struct pfx_node *x);
/* Does a go before b, both with the rank that they have in that tier? */
int pfx_heap_before(const struct pfx_node *a, const struct pfx_node *b, enum pfx_tier tier);
/* Walks all nodes of a heap, from its top on; NULL after the last. */
const struct pfx_node *pfx_heap_next(const struct pfx_node *x, enum pfx_tier tier);

#endif
