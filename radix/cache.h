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
 *   path    what one running sequence holds: positions 0..len with a block for each, pinned,
 *           and the right to write positions from len on in blocks that are its own or whose
 *           tail it was given. It is the only way to hold a block, and closing it the only
 *           way to let go.
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

struct pfx_cache_opts {
	uint32_t block_tokens; /* power of two, 1..256 */
	uint32_t n_blocks;     /* of the device tier; >= 1 */
	uint32_t n_marks;      /* logits slots; may be 0 */
	enum pfx_policy policy;
};

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

/* Why a match ended. */
enum pfx_end {
	PFX_END_WHOLE,      /* all n tokens have KV */
	PFX_END_NEVER_SEEN, /* the cached prefix just stops here */
	PFX_END_EVICTED,    /* it went on once, with these tokens, and was evicted */
	PFX_END_DIVERGED,   /* it goes on with other tokens */
};

struct pfx_hit {
	uint32_t tokens; /* longest common prefix with anything held, to the token */
	uint32_t mark;   /* slot of the logits after all n tokens, or PFX_MARK_NONE */
	enum pfx_end end;
};

/* Reads only: no pin, no change of age. Cost: one compare of the tokens matched. */
void pfx_cache_match(const struct pfx_cache *cache, const struct pfx_space *space,
	const uint32_t *tokens, uint32_t n, struct pfx_hit *out);

/*
 * Opens a path on the longest prefix of tokens[0..n) that has KV, pins its blocks and
 * makes it the youngest. *hit (may be NULL) says what was found, as match does.
 * -ENOMEM leaves nothing behind.
 */
int pfx_path_open(struct pfx_cache *cache, struct pfx_space *space, const uint32_t *tokens,
	uint32_t n, struct pfx_hit *hit, struct pfx_path **out);

/*
 * A path that holds nothing beyond its len moves on as far as the tree by now goes with
 * tokens[0..n) (whose first len tokens are the path's own): how a request follows the one
 * that computes its prefix. Returns the new len, or -ENOMEM with nothing changed.
 */
int64_t pfx_path_follow(struct pfx_path *path, const uint32_t *tokens, uint32_t n);

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
 * nothing has changed.
 */
int pfx_path_reserve(struct pfx_path *path, uint32_t upto, struct pfx_block_copy *copy);

/*
 * tokens[0..upto) now have KV in this path's blocks; the first len are as before. From now
 * on everybody can match them, a partial last block included, and len is upto. Where the
 * tree has the same tokens already (computed by somebody else meanwhile), the path's table
 * takes the tree's blocks and its own are freed. A path that was flushed, or opened with a
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

uint32_t pfx_path_len(const struct pfx_path *path);
/* The table: block i holds positions [i*B, (i+1)*B). Valid until the next call on path. */
const pfx_block_t *pfx_path_blocks(const struct pfx_path *path, uint32_t *n);
/* Unpins all, frees what was not published. NULL is fine. */
void pfx_path_close(struct pfx_path *path);

/* Evicts until at most n blocks that nobody holds are left. Returns how many went. */
uint32_t pfx_cache_press(struct pfx_cache *cache, uint32_t n);

/*
 * Forgets a space (NULL: all of them, marks included). Blocks that a path holds live until
 * it closes, but nobody can match them any more.
 */
struct pfx_flushed {
	uint32_t blocks; /* freed now */
	uint32_t in_use; /* still held by paths */
};
void pfx_cache_flush(struct pfx_cache *cache, struct pfx_space *space, struct pfx_flushed *out);

struct pfx_cache_stats {
	/* Gauges. blocks = free + cached + running; running: held by a path. */
	uint32_t blocks, free, cached, running;
	uint32_t pinned; /* blocks in the tree that a path holds */
	uint32_t marks;
	uint64_t nodes, tokens; /* in the trees */
	uint32_t spaces;
	uint64_t index_bytes;   /* memory of the tree itself */
	/* Counters. */
	uint64_t evicted_blocks, evicted_marks, copied_blocks, duplicate_blocks, splits;
};
void pfx_cache_stats(const struct pfx_cache *cache, struct pfx_cache_stats *out);

/*
 * Walks everything (trees, pool, lists, pins, marks, counters) and reports each broken
 * invariant as one sentence. Returns how many there are; 0 means clean.
 */
int pfx_cache_check(const struct pfx_cache *cache, void (*report)(void *arg, const char *problem),
	void *arg);

#endif
