#include "radix/heap.h"

#include "base/assert.h"

static struct pfx_node *of(const struct pfx_list *link)
{
	return link == NULL ? NULL : pfx_container_of(link, struct pfx_node, order);
}

int pfx_heap_before(const struct pfx_node *a, const struct pfx_node *b)
{
	if (a->rank != b->rank) {
		return a->rank < b->rank;
	}
	return pfx_node_end(a) > pfx_node_end(b);
}

/* Two heaps become one; either may be NULL. */
static struct pfx_node *meld(struct pfx_node *a, struct pfx_node *b)
{
	if (a == NULL || b == NULL) {
		return a == NULL ? b : a;
	}
	if (pfx_heap_before(b, a)) {
		struct pfx_node *swap = a;

		a = b;
		b = swap;
	}
	b->order.prev = &a->order;
	b->order.next = a->below == NULL ? NULL : &a->below->order;
	if (a->below != NULL) {
		a->below->order.prev = &b->order;
	}
	a->below = b;
	return a;
}

/* One heap of a row of siblings: pair by pair, then all pairs from the last to the first. */
static struct pfx_node *meld_row(struct pfx_node *x)
{
	struct pfx_node *pairs = NULL, *top = NULL;

	while (x != NULL) {
		struct pfx_node *y = of(x->order.next);
		struct pfx_node *next = y == NULL ? NULL : of(y->order.next);

		x = meld(x, y);
		x->order.next = pairs == NULL ? NULL : &pairs->order;
		pairs = x;
		x = next;
	}
	while (pairs != NULL) {
		struct pfx_node *next = of(pairs->order.next);

		top = meld(top, pairs);
		pairs = next;
	}
	return top;
}

static void crown(struct pfx_heap *heap, struct pfx_node *x)
{
	heap->top = x;
	if (x != NULL) {
		x->order.prev = x->order.next = NULL;
	}
}

void pfx_heap_push(struct pfx_heap *heap, struct pfx_node *x, uint64_t rank)
{
	x->rank = rank;
	x->below = NULL;
	crown(heap, meld(heap->top, x));
}

void pfx_heap_remove(struct pfx_heap *heap, struct pfx_node *x)
{
	struct pfx_node *rest = meld_row(x->below);

	if (x == heap->top) {
		crown(heap, rest);
	} else {
		struct pfx_node *prev = of(x->order.prev), *next = of(x->order.next);

		if (prev->below == x) {
			prev->below = next;
		} else {
			prev->order.next = x->order.next;
		}
		if (next != NULL) {
			next->order.prev = x->order.prev;
		}
		crown(heap, meld(heap->top, rest));
	}
	x->below = NULL;
	pfx_list_init(&x->order);
}

const struct pfx_node *pfx_heap_next(const struct pfx_node *x)
{
	if (x->below != NULL) {
		return x->below;
	}
	while (x != NULL && x->order.next == NULL) {
		/* To the first of the row, then to the node above it. */
		const struct pfx_node *prev = of(x->order.prev);

		while (prev != NULL && prev->below != x) {
			x = prev;
			prev = of(x->order.prev);
		}
		x = prev;
	}
	return x == NULL ? NULL : of(x->order.next);
}
