#include "radix/evict.h"

void pfx_evict_init(struct pfx_evict *evict)
{
	pfx_list_init(&evict->oldest);
}

void pfx_evict_add(struct pfx_evict *evict, struct pfx_node *x)
{
	pfx_list_push_back(&evict->oldest, &x->order);
}

void pfx_evict_add_above(struct pfx_evict *evict, struct pfx_node *x, struct pfx_node *child)
{
	(void)evict;
	pfx_list_insert_after(&child->order, &x->order);
}

void pfx_evict_remove(struct pfx_evict *evict, struct pfx_node *x)
{
	(void)evict;
	pfx_list_remove(&x->order);
}

struct pfx_node *pfx_evict_victim(const struct pfx_evict *evict)
{
	if (pfx_list_empty(&evict->oldest)) {
		return NULL;
	}
	return pfx_container_of(evict->oldest.next, struct pfx_node, order);
}
