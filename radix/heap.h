#ifndef PFX_RADIX_HEAP_H
#define PFX_RADIX_HEAP_H

/*
 * A pairing heap of nodes, least `rank` first and the deepest first among equals. Intrusive,
 * so that nothing here can fail: next and prev of a node's `order` are its siblings in the
 * heap (prev of a first child is the node above it), `below` is its first child. Push is O(1),
 * the others O(log n) amortised. Nothing is recursive.
 */

#include "radix/node.h"

struct pfx_heap {
	struct pfx_node *top; /* NULL: empty */
};

void pfx_heap_push(struct pfx_heap *heap, struct pfx_node *x, uint64_t rank);
/* Is x in a heap? Of nodes in no list. */
static inline int pfx_heap_has(const struct pfx_node *x)
{
	return x->order.next != &x->order;
}

void pfx_heap_remove(struct pfx_heap *heap, struct pfx_node *x);
/* Does a go before b? */
int pfx_heap_before(const struct pfx_node *a, const struct pfx_node *b);
/* Walks all nodes of a heap, from its top on; NULL after the last. */
const struct pfx_node *pfx_heap_next(const struct pfx_node *x);

#endif
