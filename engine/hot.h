#ifndef PFX_ENGINE_HOT_H
#define PFX_ENGINE_HOT_H

/*
 * The prefixes that most requests begin with, and what of those requests was cached. Each
 * request counts at the depths of 1, 2, 4, 8 ... blocks that it reaches, in a table of fixed
 * size (Space-Saving: Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and
 * top-k elements in data streams", ICDT 2005). How long the common prefix of a row's requests
 * is, to the token, is narrowed with each of them. Rows outlive eviction: they say what was
 * asked for, not what is held.
 *
 * One thread's (the engine's).
 */

#include "engine/hits.h"

#define PFX_HOT_ROWS 256u
#define PFX_HOT_DEPTHS 11u /* 1 .. 1024 blocks */
#define PFX_HOT_HEAD 64u   /* tokens kept of a prefix's start */
#define PFX_HOT_TAIL 512u  /* tokens behind its depth that are compared */

struct pfx_hot;
int pfx_hot_open(struct pfx_hot **out, uint32_t block_tokens); /* -ENOMEM */
void pfx_hot_close(struct pfx_hot *hot); /* NULL is fine */

/* digests: chained, of the prompt's full blocks. */
void pfx_hot_add(struct pfx_hot *hot, const struct pfx_owner *owner, const uint64_t *digests,
	uint32_t n_digests, const uint32_t *tokens, uint32_t n_tokens,
	const struct pfx_hits_row *row, uint64_t wall_ns);

struct pfx_hot_prefix {
	const struct pfx_owner *owner;
	const struct pfx_hits_row *row;
	uint32_t n_tokens; /* of the common prefix, as far as it is known */
	const uint32_t *head;
	uint32_t n_head;
	uint64_t since_ns, used_ns;
};
/* The hottest first, prefixes of a hotter or about as hot longer one left out. Returns how many. */
uint32_t pfx_hot_top(const struct pfx_hot *hot, struct pfx_hot_prefix *out, uint32_t n);

#endif
