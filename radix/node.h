#ifndef PFX_RADIX_NODE_H
#define PFX_RADIX_NODE_H

/*
 * A node of the tree: a run of tokens that starts at a block boundary, and the blocks that
 * hold their KV. What the states, pins and ages mean stands in radix/README.md; the numbers
 * of its rules are used below.
 */

#include <stdint.h>

#include "base/list.h"
#include "radix/cache.h"

enum pfx_node_state {
	PFX_NODE_LINKED,  /* among its parent's children: can be matched */
	PFX_NODE_LOOSE,   /* a sibling holds the same tokens and more (rule 6) */
	PFX_NODE_FLUSHED, /* forgotten, but a path still holds it (rule 9) */
};

struct pfx_space;

struct pfx_node {
	/* What the way down reads; one cache line. */
	uint32_t *run;           /* tokens[cap * B], then blocks[cap]; NULL in a root */
	struct pfx_node *parent; /* NULL: the root of a space */
	struct pfx_node *kids;   /* top of the treap of children (radix/kids.h) */
	struct pfx_node *chain;  /* radix/jump.h */
	uint64_t digest;         /* of all tokens up to the end of the last full block */
	uint32_t start;          /* position of the first token, a multiple of B */
	uint32_t n;              /* tokens; 0 in a root alone */
	uint32_t cap;            /* blocks that run has room for */
	uint32_t tag;            /* radix/jump.h */
	uint32_t marks;          /* first mark of this node, or PFX_MARK_NONE */
	uint32_t pins;           /* paths that end here + children with pins (rule 3) */

	struct pfx_node *left, *right, *up; /* this node's place in its parent's treap */
	struct pfx_list order;   /* LINKED and unpinned: the policy's (radix/evict.h); LINKED
	                            and pinned: none; LOOSE and FLUSHED: the cache's list of such */
	struct pfx_node *below;  /* radix/heap.h */
	uint64_t rank;           /* the same */
	struct pfx_space *space;
	struct pfx_path *writer; /* who may write behind the last token, or NULL */
	uint64_t age;            /* the clock when the last pin was given back */
	uint32_t prio;           /* in the parent's treap */
	enum pfx_node_state state;
};

static inline uint32_t pfx_node_end(const struct pfx_node *x)
{
	return x->start + x->n;
}

static inline uint32_t pfx_node_n_blocks(const struct pfx_node *x, uint32_t shift)
{
	return (x->n + (1u << shift) - 1) >> shift;
}

static inline pfx_block_t *pfx_node_blocks(const struct pfx_node *x, uint32_t shift)
{
	return x->run + ((size_t)x->cap << shift);
}

/* How many of the first n tokens of a and b are equal, before the first that differs; a is
 * the tree's. */
uint32_t pfx_common(const uint32_t *a, const uint32_t *b, uint32_t n);

#endif
