#ifndef PFX_TOOLS_REPLAY_H
#define PFX_TOOLS_REPLAY_H

/*
 * A trace through a cache of some size: how many of the blocks that its requests refer to
 * were there. A request hits the longest run of its first blocks that are cached; then all
 * of its blocks are, as the youngest; then, after the request, blocks go until at most
 * `capacity` are left. Requests run one by one in the order of the trace; generated tokens
 * and running requests take no room.
 *
 * A run is one cache; a trace goes through many of them at once.
 */

#include "radix/cache.h"
#include "tools/trace.h"

enum pfx_run_kind {
	/* Through radix/, a block of the trace being a block of one token. */
	PFX_RUN_TREE,
	/*
	 * First in, first out, without a tree: not only leaves go, so that blocks may lie behind
	 * a gap, where they take room and help nobody. What a cache of hashed blocks does. O(1) a
	 * reference.
	 */
	PFX_RUN_FIFO,
	/*
	 * What nobody can beat: the blocks go whose next use lies farthest ahead. A prefix is
	 * used whenever what stands behind it is, so its next use is never later, and with the
	 * deepest first among equals the victim is always a leaf. O(log n) a reference.
	 */
	PFX_RUN_BELADY,
};

struct pfx_run_opts {
	enum pfx_run_kind kind;
	enum pfx_policy policy; /* of a tree */
	uint32_t capacity;      /* blocks */
	/*
	 * What follows is of a tree. Requests that hold their blocks at the same time: from 2 on a
	 * request lets go when so many others began after it (earlier when there is no room
	 * otherwise), what it holds takes room, and room is made before a request and not after it,
	 * as a server does. So it is with slower tiers, too.
	 */
	uint32_t at_once;
	uint32_t ahead;      /* requests that wait already, and whose blocks are kept for them */
	uint32_t host, disk; /* blocks of the slower tiers, behind `capacity` on the device; 0: none */
	enum pfx_save save;
	int check; /* pfx_cache_check now and then; PFX_E_FORMAT when it finds something */
};

struct pfx_run_result {
	uint64_t hits;             /* blocks, of all tiers */
	uint64_t tier[PFX_TIERS];  /* the same, by where they lay */
	uint64_t spilled, saved;   /* blocks copied from the device to host memory, and to disk */
	uint64_t refused; /* requests that found no room, even alone */
};

struct pfx_run;

/* *next: of pfx_replay_next, for PFX_RUN_BELADY. Borrows the trace, which is whole. -ENOMEM. */
int pfx_run_open(struct pfx_run **out, const struct pfx_trace *t, const uint32_t *next,
	const struct pfx_run_opts *opts);
/* The next request. -ENOMEM, PFX_E_FORMAT. */
int pfx_run_step(struct pfx_run *run);
void pfx_run_close(struct pfx_run *run, struct pfx_run_result *out); /* NULL is fine for both */

/* For each reference the number of the request that refers to that block next, or UINT32_MAX.
 * Returns owned, or NULL: no memory. */
uint32_t *pfx_replay_next(const struct pfx_trace *t);

/* Called now and then with how many requests have been through all runs. */
typedef void (*pfx_replay_progress_fn)(void *arg, uint32_t n_requests);

/* The whole trace through n runs in one go. progress may be NULL. */
int pfx_replay(const struct pfx_trace *t, const struct pfx_run_opts *opts, uint32_t n,
	struct pfx_run_result *results, pfx_replay_progress_fn progress, void *arg);

/* The blocks that a cache with room for all would have had. */
static inline uint64_t pfx_replay_ceiling(const struct pfx_trace *t)
{
	return pfx_trace_refs(t) - t->n_distinct;
}

#endif
