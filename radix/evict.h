#ifndef PFX_RADIX_EVICT_H
#define PFX_RADIX_EVICT_H

/*
 * The order in which the blocks of one tier go that nobody holds. Always the last block in
 * that tier goes of a node whose children have none there; which node's, is the policy's to
 * say. (Before it go what has ended, after it what is kept: radix/order.c.) A policy is a table
 * of functions, told by the tree what happens to nodes and blocks; the tree calls nothing else.
 *
 *   lru      Leaf LRU: the leaf whose last pin was given back longest ago. It needs no heap
 *            and no scan: all unpinned nodes, inner ones too, stand in one list by the time of
 *            their last unpin, a child before its parent where the times are equal. A pin on a
 *            node pins its ancestors, so no child is younger than its parent and none is
 *            pinned under an unpinned parent: whatever stands first has no children. Each call
 *            is O(1).
 *   fifo     The leaf whose last block was computed first. A heap of the unpinned leaves, by a
 *            time for each block; O(log n).
 *   default  Leaf LRU among blocks of a class, and between classes what the past says of them
 *            (radix/adapt.c). A heap of leaves for each class; O(log n + classes).
 *   age      What lru does, with a heap: for the slower tiers, where nodes do not arrive by
 *            age. O(log n).
 *
 * Nothing here takes memory after pfx_evict_open, so nothing but that can fail.
 */

#include "radix/heap.h"
#include "radix/node.h"

struct pfx_evict;

struct pfx_policy_ops {
	const char *name;
	/* What it keeps for each block of the pool; -ENOMEM. NULL: nothing. A failed one is closed. */
	int (*open)(struct pfx_evict *evict, uint32_t n_blocks);
	void (*close)(struct pfx_evict *evict);

	/* x lost its last pin just now; children are told before their parents. */
	void (*add)(struct pfx_evict *evict, struct pfx_node *x);
	/* x is new above its only child, unpinned like it and of the same age. */
	void (*add_above)(struct pfx_evict *evict, struct pfx_node *x, struct pfx_node *child);
	/* x is pinned again, or dies. */
	void (*remove)(struct pfx_evict *evict, struct pfx_node *x);
	/* x, unpinned, has lost its last child in the tier, or its last block but not its first. */
	void (*cut)(struct pfx_evict *evict, struct pfx_node *x);
	/* The leaf whose last block goes next, or NULL. */
	struct pfx_node *(*victim)(const struct pfx_evict *evict);

	/* What follows may be NULL, as add_above and cut may. */

	/* Is it right to let go what is told to have ended before all else? NULL: always. If
	 * not, the one of both goes that was not used for longest. */
	int (*trusts_ends)(const struct pfx_evict *evict);

	/* These blocks, in the order of a prefix, got their first tokens from a path. */
	void (*born)(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n, uint64_t clock);
	/* These blocks in the tree are full now; each ends the prefix of its digest. */
	void (*filled)(struct pfx_evict *evict, const pfx_block_t *blocks, const uint64_t *digests,
		uint32_t n);
	/* A path was opened on these, or, from the second time on, followed on to more. */
	void (*hit)(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n);
	/* A path that held these lets go. Its reply was so many tokens long. */
	void (*used)(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n, uint32_t reply);
	/* A request that waits will use these. */
	void (*awaited)(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n);
	/* A block leaves the tree. */
	void (*gone)(struct pfx_evict *evict, pfx_block_t block);

	/*
	 * Walks what waits, of so many unpinned nodes of which so many have no children. Returns
	 * a sentence that says what is wrong, or NULL.
	 */
	const char *(*check)(const struct pfx_evict *evict, uint64_t unpinned, uint64_t leaves);
};

struct pfx_evict {
	const struct pfx_policy_ops *ops;
	enum pfx_tier tier;
	uint32_t shift;         /* of the cache's block size */
	int disk_keeps;         /* what is on disk is there for as long as it would be here, or longer */
	struct pfx_list oldest; /* lru: ring; next is the victim, prev the youngest */
	struct pfx_heap leaves; /* fifo: leaves; age: all that wait */
	uint64_t *born;         /* fifo: when each block was computed, by the cache's clock */
	struct pfx_adapt *adapt; /* default: radix/adapt.c */
};

extern const struct pfx_policy_ops pfx_policy_adapt;

/* The last block of x on the device. */
static inline pfx_block_t pfx_evict_last(const struct pfx_evict *evict, const struct pfx_node *x)
{
	return pfx_node_blocks(x, evict->shift)[x->n_dev - 1];
}

/* Has x no children in the tier? */
static inline int pfx_evict_leaf(const struct pfx_evict *evict, const struct pfx_node *x)
{
	return x->kids_in[evict->tier] == 0;
}

/* For the checks of policies. A sentence, or NULL. */
const char *pfx_evict_check_held(const struct pfx_node *x);
/* Of a heap; *n is raised by how many there are. */
const char *pfx_evict_check_order(const struct pfx_heap *heap, uint64_t *n);
/* Of a heap of leaves; *n is raised by how many there are. */
const char *pfx_evict_check_heap(const struct pfx_evict *evict, const struct pfx_heap *heap,
	uint64_t *n);

/* -EINVAL: no such policy; -ENOMEM. A failed open needs a close too. */
int pfx_evict_open(struct pfx_evict *evict, enum pfx_policy policy, uint32_t n_blocks,
	uint32_t shift);
/* Of a slower tier: by age. */
void pfx_evict_open_slow(struct pfx_evict *evict, enum pfx_tier tier, uint32_t shift);
void pfx_evict_close(struct pfx_evict *evict);

#endif
