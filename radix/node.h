#ifndef PFX_RADIX_NODE_H
#define PFX_RADIX_NODE_H

/*
 * A node of the tree: a run of tokens that starts at a block boundary, and the blocks that
 * hold their KV. What the states, pins, ages and tiers mean stands in radix/README.md; the
 * numbers of its rules are used below.
 */

#include <stdint.h>

#include "base/list.h"
#include "radix/cache.h"

enum pfx_node_state {
	PFX_NODE_LINKED,  /* among its parent's children: can be matched */
	PFX_NODE_LOOSE,   /* a sibling holds the same tokens and more (rule 6) */
	PFX_NODE_FLUSHED, /* forgotten, but a path still holds it (rule 9) */
};

/* Who goes first (rule 15). No child's class is higher than its parent's. */
enum pfx_class {
	PFX_CLASS_ENDED,
	PFX_CLASS_POLICY,
	PFX_CLASS_KEPT,
};

struct pfx_space;
struct pfx_node;

/* A node's place in the order of eviction of one tier. */
struct pfx_order {
	struct pfx_list link;
	struct pfx_node *below; /* radix/heap.h */
	uint64_t rank;          /* the same */
};

struct pfx_node {
	/* What the way down reads; one cache line. */
	uint32_t *run;           /* tokens[cap * B], then blocks[cap], then, with a disk, records[cap];
	                            NULL in a root */
	struct pfx_node *parent; /* NULL: the root of a space */
	struct pfx_node *kids;   /* top of the treap of children (radix/kids.h) */
	struct pfx_node *chain;  /* radix/jump.h */
	uint64_t digest;         /* of all tokens up to the end of the last full block */
	uint32_t start;          /* position of the first token, a multiple of B */
	uint32_t n;              /* tokens; 0 in a root alone */
	uint32_t tag;            /* radix/jump.h */
	uint32_t marks;          /* first mark of this node, or PFX_MARK_NONE */
	uint32_t n_kids;

	uint32_t cap;            /* blocks that run has room for */
	uint32_t n_dev;          /* its first so many blocks are on the device (rule 13) */
	struct pfx_node *left, *right, *up; /* this node's place in its parent's treap */
	uint32_t pins;           /* paths that hold it + children with pins (rule 3) */
	uint32_t leases;         /* the same, of leases */
	uint32_t n_mem;          /* its first so many blocks are in memory: device, then host */
	uint32_t saved;          /* its first so many tokens have records */
	uint32_t worthy;         /* its first so many tokens are to have some (rule 17) */
	uint32_t kids_in[PFX_TIERS]; /* children with blocks on the device; in memory; on disk */
	struct pfx_space *space;
	struct pfx_path *writer; /* who may write behind the last token, or NULL */
	uint64_t age;            /* the clock when the last pin was given back */
	uint64_t keep_until;     /* pfx_path_keep_until; no child's is later */
	uint64_t used_ns, hits;  /* for people */
	uint64_t conv;           /* the one conversation that ever used it; 0: several (rule 15) */
	struct pfx_list save;    /* in the queue of what is to be saved, or alone */
	uint32_t prio;           /* in the parent's treap */
	uint8_t state;           /* enum pfx_node_state */
	uint8_t class;           /* enum pfx_class, while it waits for eviction */
	uint8_t ended;           /* its conversation is over (rule 15) */
	uint32_t conv_end;       /* where the prompt of its latest request through here ended */
	uint32_t saving;         /* orders to save its blocks that are not acknowledged */
	struct pfx_order order[PFX_TIERS]; /* LINKED and held by nobody: in each tier where it has
	                            blocks (radix/order.c). LOOSE and FLUSHED: the first is in the
	                            cache's list of such */
};

static inline uint32_t pfx_node_end(const struct pfx_node *x)
{
	return x->start + x->n;
}

static inline uint32_t pfx_node_n_blocks(const struct pfx_node *x, uint32_t shift)
{
	return (x->n + (1u << shift) - 1) >> shift;
}

/* By block: its number on the device or in host memory, as far as n_mem. */
static inline pfx_block_t *pfx_node_blocks(const struct pfx_node *x, uint32_t shift)
{
	return x->run + ((size_t)x->cap << shift);
}

/* By block: its record, as far as saved. With a disk only. */
static inline uint32_t *pfx_node_records(const struct pfx_node *x, uint32_t shift)
{
	return pfx_node_blocks(x, shift) + x->cap;
}

static inline uint32_t pfx_node_n_records(const struct pfx_node *x, uint32_t shift)
{
	return (x->saved + (1u << shift) - 1) >> shift;
}

/* Blocks of x in a tier. */
static inline uint32_t pfx_node_in(const struct pfx_node *x, enum pfx_tier tier, uint32_t shift)
{
	switch (tier) {
	case PFX_TIER_DEVICE:
		return x->n_dev;
	case PFX_TIER_HOST:
		return x->n_mem - x->n_dev;
	default:
		return pfx_node_n_records(x, shift);
	}
}

/* Does x count in its parent's kids_in[tier]? */
static inline int pfx_node_counts(const struct pfx_node *x, enum pfx_tier tier)
{
	return (tier == PFX_TIER_DEVICE ? x->n_dev : tier == PFX_TIER_HOST ? x->n_mem : x->saved) > 0;
}

static inline int pfx_node_held(const struct pfx_node *x)
{
	return x->pins > 0 || x->leases > 0;
}

/* The node whose order[tier].link this is. */
static inline struct pfx_node *pfx_node_of(const struct pfx_list *link, enum pfx_tier tier)
{
	return (struct pfx_node *)((char *)link - offsetof(struct pfx_node, order) -
		(size_t)tier * sizeof(struct pfx_order) - offsetof(struct pfx_order, link));
}

/* How many of the first n tokens of a and b are equal, before the first that differs; a is
 * the tree's. */
uint32_t pfx_common(const uint32_t *a, const uint32_t *b, uint32_t n);

#endif
