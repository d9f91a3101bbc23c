#ifndef PFX_ENGINE_CEILING_H
#define PFX_ENGINE_CEILING_H

/*
 * What an unlimited cache would have had: the blocks of all requests so far, as 64-bit
 * digests that are chained (equal digests mean equal whole prefixes). Bounded: beyond
 * `entries` a half of all digests, chosen by their own bits, is looked at no more, and so on
 * (spatial sampling: Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction
 * with SHARDS", FAST 2015). What is still looked at keeps its whole history, so each block
 * looked at stands for 2^shift others and the rate stays unbiased. Exact while shift is 0.
 *
 * One thread's (the engine's). No step is ever long: a halving is swept up bit by bit.
 */

#include <stdint.h>

struct pfx_ceiling;

/* entries: a power of two; 16 bytes each, touched on use. -ENOMEM. */
int pfx_ceiling_open(struct pfx_ceiling **out, uint32_t entries);
void pfx_ceiling_close(struct pfx_ceiling *c); /* NULL is fine */
/* Forgets all blocks: the caches were emptied on purpose. */
void pfx_ceiling_clear(struct pfx_ceiling *c);

/* A request as it ended: blocks are its first, each block_tokens long but for the last. */
struct pfx_ceiling_ask {
	const uint64_t *digests;
	uint32_t n_blocks, block_tokens;
	uint32_t n_tokens; /* asked for: the first n_tokens of its blocks */
	uint32_t cached;   /* of them, found by the real cache: an unlimited one had them too */
	uint64_t when;     /* its number in the order in which requests came in, from 1 */
};

/*
 * Adds to *tokens how many of the tokens asked for a request that came in earlier had, and to
 * *of how many were asked for, both weighted when sampled.
 */
void pfx_ceiling_look(const struct pfx_ceiling *c, const struct pfx_ceiling_ask *ask,
	uint64_t *tokens, uint64_t *of);
/* The block was there from `when` on. Of two such calls the earlier time counts. */
void pfx_ceiling_add(struct pfx_ceiling *c, uint64_t digest, uint64_t when);

struct pfx_ceiling_stats {
	uint32_t entries, blocks; /* room, and blocks held */
	uint32_t shift;           /* one block in 2^shift is looked at */
};
void pfx_ceiling_stats(const struct pfx_ceiling *c, struct pfx_ceiling_stats *out);

#endif
