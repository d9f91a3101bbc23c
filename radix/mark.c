#include "radix/mark.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"

int pfx_marks_init(struct pfx_marks *marks, uint32_t n)
{
	*marks = (struct pfx_marks){ .n = n };
	pfx_list_init(&marks->oldest);
	pfx_list_init(&marks->free);
	marks->slot = pfx_calloc(n, sizeof(*marks->slot));
	if (marks->slot == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n; i++) {
		pfx_list_push_back(&marks->free, &marks->slot[i].age);
	}
	return 0;
}

void pfx_marks_fini(struct pfx_marks *marks)
{
	pfx_free(marks->slot);
	marks->slot = NULL;
}

uint32_t pfx_marks_find(const struct pfx_marks *marks, const struct pfx_node *x, uint32_t pos)
{
	uint32_t i = x->marks;

	while (i != PFX_MARK_NONE && marks->slot[i].pos != pos) {
		i = marks->slot[i].next;
	}
	return i;
}

static void attach(struct pfx_marks *marks, uint32_t i, struct pfx_node *x)
{
	struct pfx_mark *m = &marks->slot[i];

	m->node = x;
	m->prev = PFX_MARK_NONE;
	m->next = x->marks;
	if (m->next != PFX_MARK_NONE) {
		marks->slot[m->next].prev = i;
	}
	x->marks = i;
}

static void detach(struct pfx_marks *marks, uint32_t i)
{
	struct pfx_mark *m = &marks->slot[i];

	if (m->prev != PFX_MARK_NONE) {
		marks->slot[m->prev].next = m->next;
	} else {
		m->node->marks = m->next;
	}
	if (m->next != PFX_MARK_NONE) {
		marks->slot[m->next].prev = m->prev;
	}
	m->node = NULL;
}

static void drop(struct pfx_marks *marks, uint32_t i)
{
	detach(marks, i);
	pfx_list_remove(&marks->slot[i].age);
	pfx_list_push_front(&marks->free, &marks->slot[i].age);
	marks->used--;
	marks->evicted++;
}

void pfx_marks_touch(struct pfx_marks *marks, uint32_t slot)
{
	pfx_list_remove(&marks->slot[slot].age);
	pfx_list_push_back(&marks->oldest, &marks->slot[slot].age);
}

static uint32_t number(const struct pfx_marks *marks, struct pfx_list *age)
{
	return (uint32_t)(pfx_container_of(age, struct pfx_mark, age) - marks->slot);
}

uint32_t pfx_marks_put(struct pfx_marks *marks, struct pfx_node *x, uint32_t pos)
{
	uint32_t i = pfx_marks_find(marks, x, pos);

	if (marks->n == 0) {
		return PFX_MARK_NONE;
	}
	if (i == PFX_MARK_NONE) {
		if (pfx_list_empty(&marks->free)) {
			drop(marks, number(marks, marks->oldest.next));
		}
		i = number(marks, marks->free.next);
		marks->slot[i].pos = pos;
		attach(marks, i, x);
		marks->used++;
	}
	pfx_marks_touch(marks, i);
	return i;
}

void pfx_marks_cut(struct pfx_marks *marks, struct pfx_node *x, uint32_t pos)
{
	for (uint32_t i = x->marks, next; i != PFX_MARK_NONE; i = next) {
		next = marks->slot[i].next;
		if (marks->slot[i].pos > pos) {
			drop(marks, i);
		}
	}
}

void pfx_marks_hand_over(struct pfx_marks *marks, struct pfx_node *x, uint32_t pos,
	struct pfx_node *y)
{
	for (uint32_t i = x->marks, next; i != PFX_MARK_NONE; i = next) {
		next = marks->slot[i].next;
		if (marks->slot[i].pos > pos) {
			continue;
		}
		PFX_ASSERT(pfx_marks_find(marks, y, marks->slot[i].pos) == PFX_MARK_NONE);
		detach(marks, i);
		attach(marks, i, y);
	}
}
