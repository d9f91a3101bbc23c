#ifndef PFX_TOOLS_CURVE_H
#define PFX_TOOLS_CURVE_H

/*
 * The hit rates of leaf LRU at all sizes from one look at the trace. What leaf LRU of any size
 * holds is the beginning of one and the same row: the blocks in order of their last use, of one
 * request the deepest last. So a reference hits in every cache that has room for the blocks
 * used since the block's own last use, itself included, and in no smaller one; and because a
 * prefix always stands before what is behind it, what hits is always a beginning.
 */

#include "tools/trace.h"

/*
 * hits[c], for c in 0..n_distinct: blocks that a cache of c blocks would have had, as
 * tools/replay.h counts them. O(N log N). -ENOMEM.
 */
int pfx_curve_lru(const struct pfx_trace *t, uint64_t *hits);

/* The least size whose hits are at least that share of those of the greatest. */
uint32_t pfx_curve_size_for(const struct pfx_trace *t, const uint64_t *hits, double share);

#endif
