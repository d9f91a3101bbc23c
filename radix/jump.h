#ifndef PFX_RADIX_JUMP_H
#define PFX_RADIX_JUMP_H

/*
 * From the tokens of a whole first block to the child that begins with it, for nodes with
 * many children: two cache misses instead of two a level of the treap. It only ever saves
 * time. What it finds is compared token by token as everything is, and where it finds
 * nothing the treap is asked. Its size is fixed when the cache is opened, so that adding to
 * it cannot fail; chains run through the nodes.
 */

#include "radix/node.h"

struct pfx_jump {
	struct pfx_node **bucket;
	uint32_t mask;
};

int pfx_jump_init(struct pfx_jump *jump, uint32_t n_blocks);
void pfx_jump_fini(struct pfx_jump *jump);

/* digest: of all tokens up to the end of the node's first block. */
void pfx_jump_add(struct pfx_jump *jump, struct pfx_node *x, uint64_t digest);
void pfx_jump_remove(struct pfx_jump *jump, struct pfx_node *x);
/* Soon pfx_jump_find will be asked for it. */
void pfx_jump_prefetch(const struct pfx_jump *jump, uint64_t digest);
/* A child of parent that may well be the one, or NULL. */
struct pfx_node *pfx_jump_find(const struct pfx_jump *jump, const struct pfx_node *parent,
	uint64_t digest);
int pfx_jump_has(const struct pfx_jump *jump, const struct pfx_node *x);

#endif
