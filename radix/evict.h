#ifndef PFX_RADIX_EVICT_H
#define PFX_RADIX_EVICT_H

/*
 * The order in which unpinned nodes go. The policy is leaf LRU: of the leaves that nobody
 * holds, the one whose last pin was given back longest ago.
 *
 * It needs no heap and no scan. All unpinned nodes, inner ones too, stand in one list by
 * the time of their last unpin, a child before its parent where the times are equal. A pin
 * on a node pins its ancestors, so no child is younger than its parent and none is pinned
 * under an unpinned parent: whatever stands first has no children. Each call is O(1).
 *
 * Another policy is another set of these functions; the tree calls nothing else.
 */

#include "radix/node.h"

struct pfx_evict {
	struct pfx_list oldest; /* ring: next is the victim, prev the youngest */
};

void pfx_evict_init(struct pfx_evict *evict);
/* x lost its last pin just now; children are told before their parents. */
void pfx_evict_add(struct pfx_evict *evict, struct pfx_node *x);
/* x is new above its only child, unpinned like it and of the same age. */
void pfx_evict_add_above(struct pfx_evict *evict, struct pfx_node *x, struct pfx_node *child);
/* x is pinned again, or dies. */
void pfx_evict_remove(struct pfx_evict *evict, struct pfx_node *x);
/* The leaf whose last block goes next, or NULL. */
struct pfx_node *pfx_evict_victim(const struct pfx_evict *evict);

#endif
