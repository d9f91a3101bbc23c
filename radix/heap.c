#include "radix/heap.h"

#include "base/assert.h"

static struct pfx_node *of(const struct pfx_list *link, enum pfx_tier tier)
{
	return link == NULL ? NULL : pfx_node_of(link, tier);
}

int pfx_heap_before(const struct pfx_node *a, const struct pfx_node *b, enum pfx_tier tier)
{
	if (a->order[tier].rank != b->order[tier].rank) {
		return a->order[tier].rank < b->order[tier].rank;
	}
	return pfx_node_end(a) > pfx_node_end(b);
}

/* Two heaps become one; either may be NULL. */
static struct pfx_node *meld(struct pfx_node *a, struct pfx_node *b, enum pfx_tier tier)
{
	struct pfx_order *above, *under;

	if (a == NULL || b == NULL) {
		return a == NULL ? b : a;
	}
	if (pfx_heap_before(b, a, tier)) {
		struct pfx_node *swap = a;

		a = b;
		b = swap;
	}
	above = &a->order[tier];
	under = &b->order[tier];
	under->link.prev = &above->link;
	under->link.next = above->below == NULL ? NULL : &above->below->order[tier].link;
	if (above->below != NULL) {
		above->below->order[tier].link.prev = &under->link;
	}
	above->below = b;
	return a;
}

/* One heap of a row of siblings: pair by pair, then all pairs from the last to the first. */
static struct pfx_node *meld_row(struct pfx_node *x, enum pfx_tier tier)
{
	struct pfx_node *pairs = NULL, *top = NULL;

	while (x != NULL) {
		struct pfx_node *y = of(x->order[tier].link.next, tier);
		struct pfx_node *next = y == NULL ? NULL : of(y->order[tier].link.next, tier);

		x = meld(x, y, tier);
		x->order[tier].link.next = pairs == NULL ? NULL : &pairs->order[tier].link;
		pairs = x;
		x = next;
	}
	while (pairs != NULL) {
		struct pfx_node *next = of(pairs->order[tier].link.next, tier);

		top = meld(top, pairs, tier);
		pairs = next;
	}
	return top;
}

static void crown(struct pfx_heap *heap, struct pfx_node *x)
{
	heap->top = x;
	if (x != NULL) {
		x->order[heap->tier].link.prev = x->order[heap->tier].link.next = NULL;
	}
}

void pfx_heap_push(struct pfx_heap *heap, struct pfx_node *x, uint64_t rank)
{
	x->order[heap->tier].rank = rank;
	x->order[heap->tier].below = NULL;
	crown(heap, meld(heap->top, x, heap->tier));
}

void pfx_heap_remove(struct pfx_heap *heap, struct pfx_node *x)
{
	enum pfx_tier tier = heap->tier;
	struct pfx_order *order = &x->order[tier];
	struct pfx_node *rest = meld_row(order->below, tier);

	if (x == heap->top) {
		crown(heap, rest);
	} else {
		struct pfx_node *prev = of(order->link.prev, tier), *next = of(order->link.next, tier);

		if (prev->order[tier].below == x) {
			prev->order[tier].below = next;
		} else {
			prev->order[tier].link.next = order->link.next;
		}
		if (next != NULL) {
			next->order[tier].link.prev = order->link.prev;
		}
		crown(heap, meld(heap->top, rest, tier));
	}
	order->below = NULL;
	pfx_list_init(&order->link);
}

const struct pfx_node *pfx_heap_next(const struct pfx_node *x, enum pfx_tier tier)
{
	if (x->order[tier].below != NULL) {
		return x->order[tier].below;
	}
	while (x != NULL && x->order[tier].link.next == NULL) {
		/* To the first of the row, then to the node above it. */
		const struct pfx_node *prev = of(x->order[tier].link.prev, tier);

		while (prev != NULL && prev->order[tier].below != x) {
			x = prev;
			prev = of(x->order[tier].link.prev, tier);
		}
		x = prev;
	}
	return x == NULL ? NULL : of(x->order[tier].link.next, tier);
}
