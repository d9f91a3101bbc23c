#ifndef PFX_RADIX_CHECK_H
#define PFX_RADIX_CHECK_H

/* What the files of pfx_cache_check share: what is found on the way, to be compared at the end. */

#include "radix/priv.h"

struct pfx_check_nodes { /* sorted */
	const struct pfx_node **v;
	uint32_t n;
};

struct pfx_check {
	const struct pfx_cache *cache;
	void (*report)(void *arg, const char *problem);
	void *arg;
	int problems;
	uint8_t *owners[PFX_TIERS]; /* by block: how many own it */
	struct pfx_check_nodes ends;          /* those that paths hold */
	struct pfx_check_nodes leased;        /* those that leases hold */
	struct pfx_check_nodes loose;         /* parents of loose nodes with pins */
	struct pfx_check_nodes loose_leased;  /* and with leases */
	uint64_t nodes, tokens, bytes, pieces, to_save, n_leases;
	uint32_t marks;
	struct {
		uint64_t owned, filling, pinned, leased, idle, loose;
		uint64_t waiting[PFX_CLASS_KEPT + 1], leaves; /* nodes; of the policy's */
	} tier[PFX_TIERS];
};

void __attribute__((format(printf, 2, 3))) pfx_check_problem(struct pfx_check *c, const char *fmt,
	...);
void pfx_check_equal(struct pfx_check *c, const char *what, uint64_t has, uint64_t right);
/* A block with an owner, who says in which of these states (bits) it is. */
void pfx_check_own(struct pfx_check *c, enum pfx_tier tier, pfx_block_t block, unsigned states);

#define PFX_IN(state) (1u << PFX_BLOCK_##state)

/* The linked nodes of all spaces, and the others; radix/check_tree.c. */
void pfx_check_trees(struct pfx_check *c);
void pfx_check_loose(struct pfx_check *c);

#endif
