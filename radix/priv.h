#ifndef PFX_RADIX_PRIV_H
#define PFX_RADIX_PRIV_H

/* What the files behind radix/cache.h share. The rules cited stand in radix/README.md. */

#include "base/rng.h"
#include "radix/evict.h"
#include "radix/ghost.h"
#include "radix/jump.h"
#include "radix/mark.h"
#include "radix/node.h"
#include "radix/pool.h"

struct pfx_space {
	struct pfx_space *next; /* in its bucket */
	struct pfx_node root;   /* start 0, no tokens; lives as long as the space */
	uint64_t hash;          /* of the name */
	uint32_t loose_blocks;  /* of its LOOSE and FLUSHED nodes */
	uint32_t refs;          /* users of the handle; without any, an empty space may go */
	size_t name_len;
	char name[];
};

struct pfx_cache {
	uint32_t block_tokens, shift; /* block_tokens = 1 << shift */
	struct pfx_pool pool;
	struct pfx_marks marks;
	struct pfx_ghosts ghosts;
	struct pfx_jump jump;
	struct pfx_evict evict;
	struct pfx_list paths; /* all that are open */
	struct pfx_list loose; /* all nodes that are LOOSE or FLUSHED; each is pinned */
	struct pfx_space **buckets;
	uint32_t n_buckets, n_spaces; /* n_buckets is a power of two */
	uint64_t seed;                /* of the hash of names */
	struct pfx_rng prio;          /* of treaps; the same in every run, so that runs repeat */
	uint64_t epoch;               /* raised by a flush, so that no ghost outlives it */
	uint64_t clock;               /* raised whenever pins are given back */
	uint64_t now;                 /* as told by pfx_cache_now */
	uint32_t pinned_blocks;       /* of LINKED nodes with pins */
	uint32_t loose_blocks;        /* of LOOSE and FLUSHED nodes */
	uint64_t nodes, tokens;       /* LINKED, without roots */
	uint64_t index_bytes;         /* nodes of any state and their runs */
	uint64_t evicted_blocks, copied_blocks, duplicate_blocks, splits;
};

struct pfx_path {
	struct pfx_list link; /* in cache->paths */
	struct pfx_cache *cache;
	struct pfx_space *space; /* NULL: private */
	struct pfx_node *node;   /* the one pin that this path has, or NULL when private */
	pfx_block_t *table;
	uint32_t n_blocks, cap; /* of table */
	uint32_t n_tree;        /* table[0..n_tree) belong to nodes, the rest to this path */
	uint32_t len;           /* positions with KV */
	uint32_t in_tree;       /* the first so many of them are published; <= len */
	uint32_t n_open;        /* tokens that it was opened with */
	uint32_t reply;         /* told by pfx_path_reply, or 0 */
	int apart;              /* private or flushed: publishes no more */
};

/* ---- tree.c: nodes, runs, the walk down, splits and merges; no pins are changed ---- */

void pfx_root_init(struct pfx_space *space, uint64_t epoch);
/* Its digest: the start of all chains of this space, another for each epoch. */
void pfx_root_renew(struct pfx_space *space, uint64_t epoch);

/* An empty node for tokens behind the end of parent, with room for so many blocks; or NULL. */
struct pfx_node *pfx_node_new(struct pfx_cache *cache, struct pfx_node *parent, uint32_t cap);
/* Makes room for so many blocks in all. -ENOMEM. */
int pfx_node_grow(struct pfx_cache *cache, struct pfx_node *x, uint32_t cap_blocks);
/* Gives back room that a leaf was keeping for more. */
void pfx_node_trim(struct pfx_cache *cache, struct pfx_node *x);
/*
 * Appends tokens and the blocks that they begin, there being room. Of a node in the tree the
 * caller keeps cache->tokens and cache->pinned_blocks.
 */
void pfx_node_append(struct pfx_cache *cache, struct pfx_node *x, const uint32_t *tokens,
	uint32_t n, const pfx_block_t *blocks);
/* Releases the blocks and the memory. The node stands in no list and no treap. */
void pfx_node_free(struct pfx_cache *cache, struct pfx_node *x);

/* A place in a tree: behind position pos, in x: x->start < pos <= end of x, or the root. */
struct pfx_place {
	struct pfx_node *node;
	uint32_t pos;
};

/* From a place on down, as far as the tree has tokens[pos..n). */
struct pfx_place pfx_tree_walk(const struct pfx_cache *cache, struct pfx_place at,
	const uint32_t *tokens, uint32_t n);
/* Cuts x at position at, a block boundary inside it. Returns the new upper part; x stays
 * the lower one, so whoever points to the end of x still does. NULL: no memory. */
struct pfx_node *pfx_tree_split(struct pfx_cache *cache, struct pfx_node *x, uint32_t at);
/*
 * Puts a new or loose node among its parent's children (rule 6): a sibling whose tokens are
 * a beginning of its first block becomes loose, or is freed when nobody holds it; and where
 * x itself is such a beginning of a sibling's, x becomes or stays loose.
 */
void pfx_tree_link(struct pfx_cache *cache, struct pfx_node *x);
/* An unlinked node joins the cache's list of such, or leaves it to be linked or freed. */
void pfx_node_loosen(struct pfx_cache *cache, struct pfx_node *x, enum pfx_node_state state);
void pfx_node_tighten(struct pfx_cache *cache, struct pfx_node *x);
/*
 * Takes a LINKED node out of its parent's children; it is in no list then. Marks that a
 * sibling can take over, its tokens being the same so far, go there.
 */
void pfx_tree_unlink(struct pfx_cache *cache, struct pfx_node *x);
/* The node that keeps the mark of the place that x, linked or loose, has at pos (rule 10). */
struct pfx_node *pfx_tree_mark_owner(const struct pfx_cache *cache, struct pfx_node *x,
	uint32_t pos);
/*
 * x was just let go, and whatever is unpinned above it with it, so that all have one age.
 * Makes one node of each chain of only children among them.
 */
void pfx_tree_merge_up(struct pfx_cache *cache, struct pfx_node *x);
/* The digest of all tokens before position at, a block boundary in x or at its ends. */
uint64_t pfx_tree_digest(const struct pfx_cache *cache, const struct pfx_node *x, uint32_t at);

/* ---- pin.c: who is held, and who goes (rules 3, 4, 5) ---- */

void pfx_pin(struct pfx_cache *cache, struct pfx_node *x);
void pfx_unpin(struct pfx_cache *cache, struct pfx_node *x);
/* Evicts until n blocks are free; free and cached ones must be as many. */
void pfx_evict_until(struct pfx_cache *cache, uint32_t n);
/* Blocks that can be evicted. */
uint32_t pfx_cached_blocks(const struct pfx_cache *cache);
/* Takes a LINKED node for good out of a tree that is being flushed; returns blocks freed. */
uint32_t pfx_forget(struct pfx_cache *cache, struct pfx_node *x);

/* ---- cache.c ---- */

/* What a place says about tokens[0..n). */
void pfx_cache_describe(const struct pfx_cache *cache, struct pfx_place at, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *out);

#endif
