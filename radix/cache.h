#ifndef PFX_RADIX_CACHE_H
#define PFX_RADIX_CACHE_H

/*
 * The facade of radix/: which token prefixes have KV, in which blocks, who holds them, and
 * what goes when room is needed. It decides and counts; it moves no bytes. All calls come
 * from one thread (the engine's). Nothing here is recursive, and nothing allocates on a
 * read.
 *
 *   space   a namespace's root; spaces share nothing.
 *   block   block_tokens consecutive positions [k*B, (k+1)*B) of a prefix; the last block of
 *           a prefix may be filled in part.
 *   tier    where a block lies: on the device, in host memory, or on disk. A block of the tree
 *           is in one of the two memories or in none; besides, it may have a record on disk.
 *           On any way down from a root stand first the blocks on the device, then those in
 *           host memory, then those on disk only.
 *   path    what one running sequence holds: positions 0..len with a device block for each,
 *           pinned, and the right to write positions from len on in blocks that are its own or
 *           whose tail it was given. What it matched in slower tiers, up to reach, is pinned as
 *           well. It is the only way to hold a block, and closing it the only way to let go.
 *   mark    a place where a prompt ended whose logits the owner of the cache keeps, named by
 *           a slot number; the slot dies with the block, or as the oldest when slots run out.
 */

#include <stddef.h>
#include <stdint.h>

typedef uint32_t pfx_block_t;
#define PFX_BLOCK_NONE UINT32_MAX
#define PFX_MARK_NONE UINT32_MAX

struct pfx_cache;
struct pfx_space;
struct pfx_path;

/* Who goes when room is needed (radix/evict.h). */
enum pfx_policy {
	PFX_POLICY_LRU, /* leaf LRU */
	PFX_POLICY_FIFO,
	PFX_POLICY_DEFAULT, /* leaf LRU, corrected by what the past says (radix/README.md) */
};

enum pfx_tier {
	PFX_TIER_DEVICE,
	PFX_TIER_HOST,
	PFX_TIER_DISK,
	PFX_TIERS
};
#define PFX_TIER_ALL ((1u << PFX_TIERS) - 1)

/* What is saved to disk by itself. */
enum pfx_save {
	PFX_SAVE_OFF,    /* nothing, unless pfx_cache_want_saved says so */
	PFX_SAVE_REUSED, /* what a path was opened on after it had been computed */
	PFX_SAVE_ALL,
};

struct pfx_cache_opts {
	uint32_t block_tokens; /* power of two, 1..256 */
	uint32_t n_blocks;     /* of the device tier; >= 1 */
	uint32_t n_host;       /* blocks of the host tier; 0: off */
	uint32_t n_disk;       /* records on disk; 0: off */
	uint32_t n_marks;      /* logits slots; may be 0 */
	enum pfx_policy policy; /* of the device tier */
	enum pfx_save save;
	/* Of the hash of tokens, which nobody who chooses prompts should know; 0 is as good in a test. */
	uint64_t hash_seed;
};

/* -EINVAL: impossible sizes or policy; -ENOMEM. */
int pfx_cache_open(struct pfx_cache **out, const struct pfx_cache_opts *opts);
void pfx_cache_close(struct pfx_cache *cache); /* all paths must be closed; NULL is fine */

/*
 * The namespace of that name (any bytes), made on first use. The handle is valid until it is
 * released as often as it was asked for; what the space holds stays cached all the same. A
 * space that nobody has a handle of and that holds nothing is forgotten in time, so names
 * may come from clients. -ENOMEM.
 */
int pfx_cache_space(struct pfx_cache *cache, const void *name, size_t len, struct pfx_space **out);
/* After the last path of this user is closed. NULL is fine. */
void pfx_space_release(struct pfx_space *space);
const void *pfx_space_name(const struct pfx_space *space, size_t *len);

/*
 * The clock of ttl, ages and ghosts, in ns since some fixed time; the cache has none of its
 * own. It may stand still, and never goes back (an earlier time is ignored). What was kept
 * until then may be evicted from now on as if it had just been used.
 */
void pfx_cache_now(struct pfx_cache *cache, uint64_t ns);

/* Why a match ended. */
enum pfx_end {
	PFX_END_WHOLE,      /* all n tokens have KV */
	PFX_END_NEVER_SEEN, /* the cached prefix just stops here */
	PFX_END_EVICTED,    /* it went on once, with these tokens, and was evicted */
	PFX_END_DIVERGED,   /* it goes on with other tokens */
};

struct pfx_hit {
	uint32_t tokens; /* longest common prefix with anything held in any tier, to the token */
	uint32_t tier_tokens[PFX_TIERS]; /* by where their KV lies; they add up to tokens */
	uint32_t mark;   /* slot of the logits after all n tokens, or PFX_MARK_NONE */
	enum pfx_end end;
	uint64_t evicted_ns; /* END_EVICTED: when, by pfx_cache_now, to about 17 ms; else 0 */
};

/* Reads only: no pin, no change of age. Cost: one compare of the tokens matched. */
void pfx_cache_match(const struct pfx_cache *cache, const struct pfx_space *space,
	const uint32_t *tokens, uint32_t n, struct pfx_hit *out);

/*
 * Opens a path on the longest prefix of tokens[0..n) that has KV, pins its blocks and
 * makes it the youngest. *hit (may be NULL) says what was found, as match does. Its len is
 * what lies on the device, its reach what was matched in all tiers. -ENOMEM leaves nothing
 * behind.
 */
int pfx_path_open(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *hit, struct pfx_path **out);

/*
 * A path that holds nothing beyond its len moves on as far as the tree by now goes on the
 * device with tokens[0..n) (whose first len tokens are the path's own): how a request follows
 * the one that computes its prefix. Returns the new len, or -ENOMEM with nothing changed.
 */
int64_t pfx_path_follow(struct pfx_path *path, const uint32_t *tokens, uint32_t n);

/* Room for so many tokens in the path's table, where there is memory: reserve needs none then. */
void pfx_path_expect(struct pfx_path *path, uint32_t tokens);

/* A partial block to be copied before the next write: positions [0, n) of src to dst. */
struct pfx_block_copy {
	pfx_block_t src, dst;
	uint32_t n; /* 0: nothing to copy */
};

/*
 * Makes positions [len, upto) writable: takes blocks (evicting as few as needed), and, when
 * len lies inside a block whose tail belongs to somebody else, a fresh copy of that block:
 * *copy is then carried out by the caller before it writes. src stays pinned until the next
 * publish or close of this path. PFX_E_FULL: too few blocks are unpinned, -ENOMEM; on both
 * nothing has changed. -EAGAIN: the path has nothing more, but room comes when copies that are
 * in flight or ordered now (pfx_cache_next_spill) have ended: try again then.
 */
int pfx_path_reserve(struct pfx_path *path, uint32_t upto, struct pfx_block_copy *copy);

/*
 * tokens[0..upto) now have KV in this path's blocks; the first len (and all up to reach) are
 * as before. From now on everybody can match them, a partial last block included, and len is
 * upto. Where the tree has the same tokens already (computed by somebody else meanwhile), the
 * path's table takes the tree's blocks and its own are freed; where it has them in a slower
 * tier only, the path's blocks become the tree's: whether they were fetched, loaded or
 * computed makes no difference. A path that was flushed, or opened with a
 * private space (NULL), keeps its blocks to itself. -ENOMEM: not published, but len is upto
 * and the path stays usable.
 */
int pfx_path_publish(struct pfx_path *path, const uint32_t *tokens, uint32_t upto);

/*
 * Gives the slot in which to keep the logits that follow the path's last position; the
 * oldest mark yields when all are taken. PFX_MARK_NONE when there are no slots, or when the
 * path is not in the tree.
 */
uint32_t pfx_path_mark(struct pfx_path *path);

/*
 * From now on what the path computes stays its own: it publishes and marks nothing, and its
 * blocks are freed when it closes. What it has published stays.
 */
void pfx_path_keep_private(struct pfx_path *path);

/*
 * The reply to the path's request was so many tokens long. For those who publish no replies
 * (a simulator); otherwise what was published behind the tokens of the open is the reply.
 */
void pfx_path_reply(struct pfx_path *path, uint32_t n_tokens);

/* ---- what was matched in slower tiers ---- */

/* len <= reach: how far it matched in any tier when it was opened. */
uint32_t pfx_path_reach(const struct pfx_path *path);

struct pfx_source {
	enum pfx_tier tier; /* DEVICE: somebody else has brought it there: follow, or copy */
	uint32_t id;        /* of the block or record in that tier */
	uint32_t parent_id; /* DISK: the record before, or PFX_BLOCK_NONE */
	uint32_t n_tokens;  /* of the block, that are within reach */
	uint32_t record_tokens; /* DISK: tokens that the record has; >= n_tokens */
	const uint32_t *tokens; /* of the block, from its start; valid until the next call */
};
/*
 * Where the KV of a block in [len, reach) lies now. Whoever copies from there holds the block
 * (pfx_cache_hold) until the copy has ended. A copy that was to follow a spill which failed has
 * failed too. Where len is inside the block, what is before it must survive a copy that fails.
 * -ENOENT: nowhere, or no such block.
 */
int pfx_path_source(const struct pfx_path *path, uint32_t block_index, struct pfx_source *out);
/*
 * The source of that block could not be read, or was wrong: it is dropped, with all that hangs
 * on it in that tier, and reach is before it.
 */
void pfx_path_lost(struct pfx_path *path, uint32_t block_index);
/* The path computes the rest itself: reach is len. */
void pfx_path_forgo(struct pfx_path *path);

/* ---- how long ---- */

/* At close: the conversation is over; what only it used goes first in every tier. */
void pfx_path_last_turn(struct pfx_path *path);
/*
 * Right after open: the path belongs to that conversation. Otherwise it is taken to go on with
 * the one whose latest prompt it has in full, if that is what it found, and to begin one if not.
 */
void pfx_path_session(struct pfx_path *path, uint64_t id);
/* At close: what it holds goes after all else until then (the latest time given counts). */
void pfx_path_keep_until(struct pfx_path *path, uint64_t ns);
/*
 * From now on the path is a lease: it holds the published blocks that it has until it is
 * closed, which count as leased and cached, not as running; what it has not published is
 * freed, and it reserves, publishes and follows no more. PFX_E_LIMIT: more than half of the
 * device's blocks would be leased; -ENOENT: nobody can match what it holds (it is private or
 * was flushed); -ENOMEM. On all of these nothing has changed.
 */
int pfx_path_lease(struct pfx_path *path);
/* Was the path private from the start, or made so by a flush or pfx_path_keep_private? */
int pfx_path_apart(const struct pfx_path *path);

uint32_t pfx_path_len(const struct pfx_path *path);
/* The table: block i holds positions [i*B, (i+1)*B). Valid until the next call on path. */
const pfx_block_t *pfx_path_blocks(const struct pfx_path *path, uint32_t *n);
/* Unpins all, frees what was not published. NULL is fine. */
void pfx_path_close(struct pfx_path *path);

/* Makes the match young, as opening and closing a path would: for what a queue will need. */
void pfx_cache_touch(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n);
/* The conversation of these tokens will not go on: as pfx_path_last_turn. */
void pfx_cache_end(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n);

/* ---- copies: ordered here, carried out by the caller ---- */

/*
 * A copy that reads or writes the block (a record, on disk) is in flight: however it is let go
 * of meanwhile, its number is not given to anybody else before the last such copy has ended.
 */
void pfx_cache_hold(struct pfx_cache *cache, enum pfx_tier tier, uint32_t id);
void pfx_cache_unhold(struct pfx_cache *cache, enum pfx_tier tier, uint32_t id);

/*
 * Copies from the device to host memory, to be carried out in the order in which they are
 * given, before any copy ordered later that reads the host block. Both ends are held until
 * pfx_cache_spilled. To the tree the block is in host memory from the moment of the order.
 */
struct pfx_spill {
	pfx_block_t device, host;
};
int pfx_cache_next_spill(struct pfx_cache *cache, struct pfx_spill *out); /* 1, or 0: none */
/* Not ok: the host block is bad; whoever meets it gets -ENOENT from pfx_path_source. */
void pfx_cache_spilled(struct pfx_cache *cache, const struct pfx_spill *spill, int ok);

/*
 * A block to be written to disk, parents first. Its source is held until
 * pfx_cache_save_copied or pfx_cache_saved. tokens are valid until the next call on the cache.
 * The record replaces an older one with fewer tokens, which is then deleted by an order.
 */
struct pfx_save_order {
	enum pfx_tier tier; /* of src */
	uint32_t src, record;
	uint32_t parent_record; /* or PFX_BLOCK_NONE */
	uint32_t pos, n_tokens; /* first position, a multiple of block_tokens */
	const uint32_t *tokens; /* the block's n_tokens */
	struct pfx_space *space;
};
#define PFX_SAVES_MAX 64 /* orders not yet acknowledged */
/* 1, or 0: none now. */
int pfx_cache_next_save(struct pfx_cache *cache, struct pfx_save_order *out);
/* The bytes have been copied elsewhere: the source is let go. */
void pfx_cache_save_copied(struct pfx_cache *cache, uint32_t record);
/* rc 0: it is durable; else it is not there, and is not tried again before its next use. */
void pfx_cache_saved(struct pfx_cache *cache, uint32_t record, int rc);
/* A record to be deleted; its number is used again after pfx_cache_deleted. 1, or 0: none. */
int pfx_cache_next_delete(struct pfx_cache *cache, uint32_t *record);
void pfx_cache_deleted(struct pfx_cache *cache, uint32_t record);
/* All that is in memory now is to be saved (space NULL: of all). Returns blocks unsaved. */
uint32_t pfx_cache_want_saved(struct pfx_cache *cache, struct pfx_space *space);

/*
 * At the start, before any path: the tree is rebuilt from the store's index. Rows come with
 * parents first; each is one block, and is found on disk only from then on. `used_ns` orders
 * their ages. *record is the number that the row has here from now on. PFX_E_FULL: no number
 * is left; PFX_E_FORMAT: the parent is unknown, not a whole block, or of another space; -EEXIST:
 * another row has all of these tokens (the caller may delete this one); -ENOMEM.
 */
struct pfx_restore;
int pfx_restore_begin(struct pfx_cache *cache, struct pfx_restore **out);
int pfx_restore_add(struct pfx_restore *r, struct pfx_space *space, uint32_t parent_record,
	const uint32_t *tokens, uint32_t n_tokens, uint64_t used_ns, uint32_t *record);
void pfx_restore_end(struct pfx_restore *r); /* NULL is fine */

/* ---- on demand ---- */

/* Evicts until at most n device blocks that nobody holds are left. Returns how many went. */
uint32_t pfx_cache_press(struct pfx_cache *cache, uint32_t n);

/*
 * Pushes up to n blocks that nobody holds out of a tier into the next slower one that takes
 * them (of one space, or of all: NULL), or out of the cache. Of one space the leaves go first,
 * but not by age. Returns how many left.
 */
uint32_t pfx_cache_evict(struct pfx_cache *cache, enum pfx_tier tier, struct pfx_space *space,
	uint32_t n);

/*
 * Forgets a space (NULL: all of them), in the tiers whose bits (1 << tier) are set. With all
 * tiers that are on, marks included: blocks that a path holds live until it closes, but nobody
 * can match them any more. With some of the tiers: what somebody holds stays as it is; the
 * rest leaves these tiers, and where it is in no other one it is forgotten, and what follows it in
 * slower memory too.
 */
struct pfx_flushed {
	uint32_t blocks[PFX_TIERS]; /* of each tier, cleared now */
	uint32_t in_use;            /* still held by paths and leases */
};
void pfx_cache_flush(struct pfx_cache *cache, struct pfx_space *space, unsigned tiers,
	struct pfx_flushed *out);

/* One node of the tree: a run of tokens behind the end of its parent's. */
struct pfx_node_view {
	struct pfx_space *space;
	uint32_t depth; /* 0: below the root */
	uint32_t start, n_tokens;
	const uint32_t *tokens; /* of the run; valid during the call */
	uint32_t blocks, device, host, disk; /* of them, and in each tier */
	uint64_t hits;          /* paths opened on it or through it */
	uint64_t used_ns, keep_until_ns;
	uint32_t n_kids, pins, leases; /* pins, leases: how many children and paths hold it */
	int ended;
};
/*
 * Walks the trees (of one space, or all: NULL), a node before its children. A result of 1: not
 * below this node; -1: stop. visit makes no call on the cache.
 */
void pfx_cache_visit(struct pfx_cache *cache, struct pfx_space *space,
	int (*visit)(void *arg, const struct pfx_node_view *node), void *arg);

struct pfx_tier_stats {
	/* Gauges. blocks = free + cached + running; running: held by a path, or by a copy alone. */
	uint32_t blocks, free, cached, running;
	uint32_t pinned; /* blocks in the tree that a path holds */
	uint32_t leased; /* held by leases; cached unless also running */
	uint32_t moving; /* being copied in, or waiting for the end of a copy (a delete) */
	/* Counters. */
	uint64_t arrived; /* blocks that came from another tier, or were found in a slower one */
	uint64_t evicted; /* blocks that left to make room or on demand, flush apart */
	uint64_t failed;  /* copies into this tier that failed; DISK also: records lost */
};
struct pfx_cache_stats {
	struct pfx_tier_stats tier[PFX_TIERS];
	uint32_t marks;
	uint64_t nodes, tokens; /* in the trees */
	uint32_t spaces, leases;
	uint64_t index_bytes;   /* memory of the tree itself */
	uint32_t saves_waiting; /* nodes that wait for an order; orders without an answer */
	/* Counters. */
	uint64_t evicted_blocks; /* that are in no tier any more */
	uint64_t evicted_marks, copied_blocks, duplicate_blocks, splits;
};
void pfx_cache_stats(const struct pfx_cache *cache, struct pfx_cache_stats *out);

/*
 * Walks everything (trees, pool, lists, pins, marks, counters) and reports each broken
 * invariant as one sentence. Returns how many there are; 0 means clean.
 */
int pfx_cache_check(const struct pfx_cache *cache, void (*report)(void *arg, const char *problem),
	void *arg);

#endif
