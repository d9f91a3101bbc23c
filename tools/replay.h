#ifndef PFX_TOOLS_REPLAY_H
#define PFX_TOOLS_REPLAY_H

/*
 * A trace through a cache of some size: how many of the blocks that its requests refer to
 * were there. A request hits the longest run of its first blocks that are cached; then all
 * of its blocks are, as the youngest; then, after the request, blocks go until at most
 * `capacity` are left. Requests run one by one in the order of the trace; generated tokens
 * and running requests take no room.
 */

#include "radix/cache.h"
#include "tools/trace.h"

/* Called now and then with how many requests are done. */
typedef void (*pfx_replay_progress_fn)(void *arg, uint32_t n_requests);

struct pfx_replay {
	pfx_replay_progress_fn progress; /* may be NULL */
	void *arg;
	int check; /* pfx_cache_check now and then; PFX_E_FORMAT when it finds something */
};

/* Through radix/, a block of the trace being a block of one token. *hits: blocks. -ENOMEM. */
int pfx_replay_cache(const struct pfx_trace *t, enum pfx_policy policy, uint32_t capacity,
	const struct pfx_replay *r, uint64_t *hits);

/*
 * First in, first out, without a tree: not only leaves go, so that blocks may lie behind a
 * gap, where they take room and help nobody. What a cache of hashed blocks does. O(N).
 */
int pfx_replay_fifo(const struct pfx_trace *t, uint32_t capacity, const struct pfx_replay *r,
	uint64_t *hits);

/*
 * What nobody can beat: the blocks go whose next use lies farthest ahead. A prefix is used
 * whenever what stands behind it is, so its next use is never later, and with the deepest
 * first among equals the victim is always a leaf. O(N log N) for N references.
 */
int pfx_replay_belady(const struct pfx_trace *t, uint32_t capacity, const struct pfx_replay *r,
	uint64_t *hits);

/* With room for all. */
uint64_t pfx_replay_ceiling(const struct pfx_trace *t);

#endif
