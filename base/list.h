#ifndef PFX_BASE_LIST_H
#define PFX_BASE_LIST_H

/*
 * Intrusive doubly linked ring. A head is a node of its own; an element embeds a
 * struct pfx_list and is found again with pfx_container_of. Not thread-safe.
 */

#include <stddef.h>

struct pfx_list {
	struct pfx_list *prev, *next;
};

#define pfx_container_of(ptr, type, member) \
	((type *)((char *)(ptr) - offsetof(type, member)))

static inline void pfx_list_init(struct pfx_list *head)
{
	head->prev = head->next = head;
}

static inline int pfx_list_empty(const struct pfx_list *head)
{
	return head->next == head;
}

static inline void pfx_list_insert_after(struct pfx_list *at, struct pfx_list *node)
{
	node->prev = at;
	node->next = at->next;
	at->next->prev = node;
	at->next = node;
}

static inline void pfx_list_push_back(struct pfx_list *head, struct pfx_list *node)
{
	pfx_list_insert_after(head->prev, node);
}

static inline void pfx_list_push_front(struct pfx_list *head, struct pfx_list *node)
{
	pfx_list_insert_after(head, node);
}

/* The node is left as a ring of its own, so removing it twice does no harm. */
static inline void pfx_list_remove(struct pfx_list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	pfx_list_init(node);
}

#define pfx_list_for(it, head) \
	for (struct pfx_list *it = (head)->next; it != (head); it = it->next)

/* The body may remove the current node. */
#define pfx_list_for_safe(it, head) \
	for (struct pfx_list *it = (head)->next, *it##_next = it->next; it != (head); \
		it = it##_next, it##_next = it->next)

#endif
