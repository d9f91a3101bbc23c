#ifndef PFX_RADIX_MARK_H
#define PFX_RADIX_MARK_H

/*
 * Marks: slots, bounded in number, each tied to a (node, position) after which somebody
 * keeps the logits. A node's marks hang in a list of its own; all of them in one by age.
 */

#include "radix/node.h"

struct pfx_mark {
	struct pfx_node *node; /* NULL: the slot is free */
	uint32_t pos;          /* in (node->start, end of node] */
	uint32_t next, prev;   /* of the same node */
	struct pfx_list age;   /* by last use while taken, among the free ones else */
};

struct pfx_marks {
	struct pfx_mark *slot;
	uint32_t n, used;
	struct pfx_list oldest, free;
	uint64_t evicted; /* died with their block, or yielded to a newer one */
};

int pfx_marks_init(struct pfx_marks *marks, uint32_t n);
void pfx_marks_fini(struct pfx_marks *marks);

/* The slot at that place, or PFX_MARK_NONE. */
uint32_t pfx_marks_find(const struct pfx_marks *marks, const struct pfx_node *x, uint32_t pos);
/* The slot at that place, made if need be, the oldest yielding; NONE only without slots. */
uint32_t pfx_marks_put(struct pfx_marks *marks, struct pfx_node *x, uint32_t pos);
/* Makes it the youngest. */
void pfx_marks_touch(struct pfx_marks *marks, uint32_t slot);
/* Drops those of x behind pos, because their block goes. */
void pfx_marks_cut(struct pfx_marks *marks, struct pfx_node *x, uint32_t pos);
/* Those of x up to pos belong to y from now on, which has none at the same places. */
void pfx_marks_hand_over(struct pfx_marks *marks, struct pfx_node *x, uint32_t pos,
	struct pfx_node *y);

#endif
