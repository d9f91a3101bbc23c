#ifndef PFX_RADIX_PRIV_H
#define PFX_RADIX_PRIV_H

/* What the files behind radix/cache.h share. The rules cited stand in radix/README.md. */

#include "base/rng.h"
#include "radix/arena.h"
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
	uint32_t n_loose;       /* its LOOSE and FLUSHED nodes */
	uint32_t loose_blocks;  /* in memory, of these */
	uint32_t refs;          /* users of the handle; without any, an empty space may go */
	size_t name_len;
	char name[];
};

/* One tier: its blocks, and the order in which those go that nobody holds. */
struct pfx_level {
	struct pfx_pool pool;
	struct pfx_evict evict;      /* PFX_CLASS_POLICY */
	struct pfx_heap ended, kept; /* the other classes: by age, by keep_until */
	uint32_t pinned;             /* blocks of LINKED nodes with pins */
	uint32_t leased, idle;       /* with leases; with leases and no pins */
	uint32_t loose;              /* of LOOSE and FLUSHED nodes */
	uint64_t arrived, evicted, failed;
};

/* An order to save a block, not yet acknowledged. */
struct pfx_saving {
	struct pfx_node *node; /* NULL: its block has gone, so its record will be deleted */
	uint32_t index;        /* of the block in the node */
	uint32_t record;       /* PFX_BLOCK_NONE: this slot is not used */
	uint32_t n_tokens;     /* of the block */
	uint32_t src;
	uint8_t tier;          /* of src */
	uint8_t copied;        /* src is let go */
	uint8_t durable;       /* acknowledged, but not yet what stands before it */
};

struct pfx_cache {
	uint32_t block_tokens, shift; /* block_tokens = 1 << shift */
	struct pfx_level tier[PFX_TIERS]; /* a tier that is off has no blocks */
	uint32_t n_tiers;             /* the first so many may have blocks */
	uint32_t slots;               /* numbers kept by block: 1, or 2 with a disk */
	struct pfx_arena arena;       /* of nodes and their runs */
	enum pfx_save save;
	struct pfx_marks marks;
	struct pfx_ghosts ghosts;
	struct pfx_jump jump;
	struct pfx_list paths; /* all that are open */
	struct pfx_list loose; /* all nodes that are LOOSE or FLUSHED; each is held */
	struct pfx_space **buckets;
	uint32_t n_buckets, n_spaces; /* n_buckets is a power of two */
	uint64_t seed;                /* of the hash of names */
	struct pfx_rng prio;          /* of treaps; the same in every run, so that runs repeat */
	uint64_t epoch;               /* raised by a flush, so that no ghost outlives it */
	uint64_t convs;               /* conversations taken for new, so far */
	uint64_t clock;               /* raised whenever pins are given back */
	uint64_t now;                 /* as told by pfx_cache_now */
	uint32_t n_leases;            /* paths */
	uint64_t nodes, tokens;       /* LINKED, without roots */
	uint64_t index_bytes;         /* nodes of any state and their runs */
	uint64_t evicted_blocks, copied_blocks, duplicate_blocks, splits;

	/* Orders not yet taken, in rings as long as their tier (radix/copy.c). */
	struct pfx_spill *spills;
	uint32_t *deletes;
	uint32_t spill_first, n_spills, delete_first, n_deletes;
	/* Nodes with worthy > saved, parents first, and what is on its way (radix/save.c). */
	struct pfx_list to_save;
	uint32_t n_to_save, n_saving;
	struct pfx_saving saving[PFX_SAVES_MAX];
};

struct pfx_path {
	struct pfx_list link; /* in cache->paths */
	struct pfx_cache *cache;
	struct pfx_space *space; /* NULL: private */
	struct pfx_node *node;   /* where what it has in the tree ends: pinned; NULL when private */
	struct pfx_node *ahead;  /* where reach is: pinned as well; NULL: reach is len */
	pfx_block_t *table;
	uint32_t n_blocks, cap; /* of table */
	uint32_t n_tree;        /* table[0..n_tree) belong to nodes, the rest to this path */
	uint32_t len;           /* positions with KV */
	uint32_t in_tree;       /* the first so many of them are published; <= len */
	uint32_t reach;         /* with ahead: > len */
	uint32_t n_open;        /* tokens that it was opened with */
	uint32_t reply;         /* told by pfx_path_reply, or 0 */
	uint64_t keep_until;    /* at close */
	uint64_t conv;          /* its conversation */
	uint8_t apart;          /* private or flushed: publishes no more */
	uint8_t leased;         /* it holds leases, not pins */
	uint8_t last_turn;      /* at close */
	uint8_t holds_more;     /* its node goes on behind in_tree */
};

/* ---- order.c: tiers of a node, what is counted, and who waits for eviction ---- */

/* Adds (sign 1) or takes away (-1) x's blocks where they count: held, leased or loose ones. */
void pfx_tally(struct pfx_cache *cache, const struct pfx_node *x, int sign);
/*
 * x, in the tree or not, has so many blocks on the device, in memory, and tokens saved from now
 * on: counts, orders and its parent's kids_in follow. The numbers of blocks are the caller's.
 */
void pfx_node_set(struct pfx_cache *cache, struct pfx_node *x, uint32_t n_dev, uint32_t n_mem,
	uint32_t saved);
/* x is a child in its parent's kids_in now (1), or no longer (-1). */
void pfx_node_count(struct pfx_cache *cache, struct pfx_node *x, int sign);
/* x, which nobody holds, waits in each tier where it has blocks; told of children first. */
void pfx_order_add(struct pfx_cache *cache, struct pfx_node *x);
void pfx_order_remove(struct pfx_cache *cache, struct pfx_node *x);
/* up is new above x, a part of what was x; had: the tiers (bits) in which x waited. */
void pfx_order_split(struct pfx_cache *cache, struct pfx_node *up, struct pfx_node *x,
	unsigned had);
/* The end of x has changed. */
void pfx_order_cut(struct pfx_cache *cache, struct pfx_node *x);
/* The tiers (bits) in which x waits. */
unsigned pfx_order_has(const struct pfx_cache *cache, const struct pfx_node *x);
/* The node whose last block in that tier goes next, or NULL. */
struct pfx_node *pfx_order_victim(const struct pfx_cache *cache, enum pfx_tier tier);
/* Does a go before b, in any tier? */
int pfx_order_before(const struct pfx_node *a, const struct pfx_node *b);

/* ---- run.c: nodes and their runs ---- */

void pfx_root_init(struct pfx_space *space, uint64_t epoch);
/* Its digest: the start of all chains of this space, another for each epoch. */
void pfx_root_renew(struct pfx_space *space, uint64_t epoch);

/* Bytes of a run with room for so many blocks. */
static inline size_t pfx_run_bytes(const struct pfx_cache *cache, uint32_t cap)
{
	return (size_t)cap * (cache->block_tokens + cache->slots) * sizeof(uint32_t);
}

/* An empty node for tokens behind the end of parent, with room for so many blocks; or NULL. */
struct pfx_node *pfx_node_new(struct pfx_cache *cache, struct pfx_node *parent, uint32_t cap);
/* Makes room for so many blocks in all. -ENOMEM. */
int pfx_node_grow(struct pfx_cache *cache, struct pfx_node *x, uint32_t cap_blocks);
/* Gives back room that a leaf was keeping for more. */
void pfx_node_trim(struct pfx_cache *cache, struct pfx_node *x);
/*
 * Appends tokens and the device blocks that they begin, there being room; x is on the device as
 * a whole. Of a node in the tree the caller keeps cache->tokens.
 */
void pfx_node_append(struct pfx_cache *cache, struct pfx_node *x, const uint32_t *tokens,
	uint32_t n, const pfx_block_t *blocks);
/*
 * Blocks [from, to) of x, which are full and stand behind the prefix of `digest`, have come to the
 * device with these tokens: tells the policy. Returns the digest behind them.
 */
uint64_t pfx_node_filled(struct pfx_cache *cache, const struct pfx_node *x, uint32_t from,
	uint32_t to, uint64_t digest);
/* The memory alone. */
void pfx_node_give_back(struct pfx_cache *cache, struct pfx_node *x);
/* Releases the blocks and the memory. The node stands in no list and no treap. */
void pfx_node_free(struct pfx_cache *cache, struct pfx_node *x);
/* A block of x leaves the memory that it is in. */
void pfx_node_let_go(struct pfx_cache *cache, const struct pfx_node *x, uint32_t index);
/* Of all tokens up to the end of the first block of x, which is full. */
uint64_t pfx_first_digest(const struct pfx_cache *cache, const struct pfx_node *x);
/* The digest of all tokens before position at, a block boundary in x or at its ends. */
uint64_t pfx_tree_digest(const struct pfx_cache *cache, const struct pfx_node *x, uint32_t at);

/* ---- tree.c: the walk down, splits, links and merges; no pins are changed ---- */

/* A place in a tree: behind position pos, in x: x->start < pos <= end of x, or the root. */
struct pfx_place {
	struct pfx_node *node;
	uint32_t pos;
};

/* From a place on down, as far as the tree has tokens[pos..n). */
struct pfx_place pfx_tree_walk(const struct pfx_cache *cache, struct pfx_place at,
	const uint32_t *tokens, uint32_t n);
/* The next node of a tree, parents first; or the next that is not below x. NULL: none. */
struct pfx_node *pfx_tree_next(const struct pfx_node *x);
struct pfx_node *pfx_tree_skip(const struct pfx_node *x);
/* Cuts x at position at, a block boundary inside it. Returns the new upper part; x stays
 * the lower one, so whoever points to the end of x still does. NULL: no memory. */
struct pfx_node *pfx_tree_split(struct pfx_cache *cache, struct pfx_node *x, uint32_t at);
/* The node that ends with the block of at.pos, cut out if need be. NULL: no memory. */
struct pfx_node *pfx_tree_settle(struct pfx_cache *cache, struct pfx_place at);
/*
 * Puts a new or loose node among its parent's children (rule 6): a sibling whose tokens are
 * a beginning of its first block becomes loose, or is freed when nobody holds it. 0: x itself
 * is such a beginning of a sibling's, and nothing has changed.
 */
int pfx_tree_link(struct pfx_cache *cache, struct pfx_node *x);
/* An unlinked node joins the cache's list of such, or leaves it to be linked or freed. */
/* Its records are deleted. */
void pfx_node_loosen(struct pfx_cache *cache, struct pfx_node *x, enum pfx_node_state state);
void pfx_node_tighten(struct pfx_cache *cache, struct pfx_node *x);
/*
 * Takes a LINKED node out of its parent's children; it is in no list then. Marks that a
 * sibling can take over, its tokens being the same so far, go there.
 */
void pfx_tree_unlink(struct pfx_cache *cache, struct pfx_node *x);
/*
 * A leaf that has only its first n tokens left, in records alone from the block of the last of
 * them on. 1: a sibling has them too, so x is gone.
 */
int pfx_tree_shorten(struct pfx_cache *cache, struct pfx_node *x, uint32_t n);
/* The node that keeps the mark of the place that x, linked or loose, has at pos (rule 10). */
struct pfx_node *pfx_tree_mark_owner(const struct pfx_cache *cache, struct pfx_node *x,
	uint32_t pos);
/*
 * x was just let go, and whatever is unpinned above it with it, so that all have one age.
 * Makes one node of each chain of only children among them.
 */
void pfx_tree_merge_up(struct pfx_cache *cache, struct pfx_node *x);

/* ---- pin.c: who is held (rules 3, 4) ---- */

void pfx_pin(struct pfx_cache *cache, struct pfx_node *x);
/* What is let go is merged: of nodes that nobody holds only x and its children are sure to live. */
void pfx_unpin(struct pfx_cache *cache, struct pfx_node *x);
/* The same without merging: all nodes live but x itself, and that only if it is not LINKED. */
void pfx_unpin_as_it_is(struct pfx_cache *cache, struct pfx_node *x);
void pfx_lease(struct pfx_cache *cache, struct pfx_node *x);
void pfx_unlease(struct pfx_cache *cache, struct pfx_node *x);

/* ---- room.c: who goes (rules 5, 14) ---- */

/* Blocks (acknowledged records, on disk) that nodes have. */
uint32_t pfx_node_blocks_of(const struct pfx_cache *cache, enum pfx_tier tier);
/* Blocks of a tier in use by nobody but leases; and those that can be evicted. */
uint32_t pfx_cached_blocks(const struct pfx_cache *cache, enum pfx_tier tier);
uint32_t pfx_evictable_blocks(const struct pfx_cache *cache, enum pfx_tier tier);
/*
 * Makes n device blocks free; free, leaving and evictable ones must be as many. -EAGAIN: they
 * are when copies have ended.
 */
int pfx_make_room(struct pfx_cache *cache, uint32_t n);
/*
 * The last block of x, which has no children in memory, leaves memory; the last record of x,
 * which has no children on disk, is deleted. Tokens in no tier are forgotten. 1: and x with
 * them (never when x is held and not the last of its blocks goes).
 */
int pfx_lose_memory(struct pfx_cache *cache, struct pfx_node *x);
int pfx_lose_record(struct pfx_cache *cache, struct pfx_node *x);
/*
 * All blocks of x from the one at index on, and those of all nodes below, leave memory, or their
 * records are deleted (DISK). Nobody holds any of them, but maybe x, if index > 0.
 */
void pfx_lose_below(struct pfx_cache *cache, struct pfx_node *x, uint32_t index,
	enum pfx_tier tier);
/* The loose children of x may have become the longest of their kind (rule 6). */
void pfx_relink_below(struct pfx_cache *cache, struct pfx_node *x);

/* ---- reach.c: paths and slower tiers ---- */

/* Frees what the path has that is in no tree, and gives up the right to write. */
void pfx_path_drop_own(struct pfx_path *path);
/* Drops the pin ahead when len has come to reach. */
void pfx_path_reached(struct pfx_path *path);

/* ---- copy.c ---- */

/* The node's last block on the device is to be copied to a host block, which it gets. */
pfx_block_t pfx_order_spill(struct pfx_cache *cache, pfx_block_t device);
/* A node lets go of a record, or never had it (an order to save that came to nothing). */
void pfx_record_release(struct pfx_cache *cache, uint32_t record);
void pfx_order_delete(struct pfx_cache *cache, uint32_t record);

/* ---- save.c ---- */

/* x has tokens that are worthy and have no record, or may have: into the queue if so. */
void pfx_save_check(struct pfx_cache *cache, struct pfx_node *x);
void pfx_save_forget(struct pfx_cache *cache, struct pfx_node *x); /* out of the queue */
int pfx_save_due(const struct pfx_cache *cache, const struct pfx_node *x);
/* A path was opened on all of x. */
void pfx_save_reused(struct pfx_cache *cache, struct pfx_node *x);
/* Orders for blocks of x from the one at index on come to nothing. */
void pfx_save_orphan(struct pfx_cache *cache, struct pfx_node *x, uint32_t index);
/* up has become the first `head` blocks of what was x. */
void pfx_save_split(struct pfx_cache *cache, struct pfx_node *up, struct pfx_node *x,
	uint32_t head);
/* What is on its way for p is x's, so many blocks further on. */
void pfx_save_merge(struct pfx_cache *cache, struct pfx_node *p, struct pfx_node *x,
	uint32_t further);

/* ---- flush.c ---- */

/* Frees what nobody holds; the rest is forgotten. */
void pfx_flush_space(struct pfx_cache *cache, struct pfx_space *space);

/* ---- life.c ---- */

/* The conversation that a path goes on with, which matched up to pos, in x, or a new one. */
uint64_t pfx_conv_at(struct pfx_cache *cache, const struct pfx_node *x, uint32_t pos);
/* Other conversations used x, and so all above it, too. */
void pfx_conv_mixed(struct pfx_node *x);
/* A path of that conversation, whose prompt had n tokens, used x and all above it. */
void pfx_conv_used(struct pfx_node *x, uint64_t conv, uint32_t n);
/* The conversation that the last tokens of x are of is over. */
void pfx_conv_end(struct pfx_cache *cache, struct pfx_node *x, uint64_t conv);

/* ---- cache.c ---- */

/* What a place says about tokens[0..n). */
void pfx_cache_describe(const struct pfx_cache *cache, struct pfx_place at, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *out);

#endif
