#ifndef PFX_RADIX_GHOST_H
#define PFX_RADIX_GHOST_H

/*
 * What was evicted, remembered so that a miss can say so: a table of fixed size of digests.
 * Nothing but a reason given to people depends on it, so 64 bits that are not cryptographic
 * are enough, and the oldest entries are simply overwritten.
 *
 * The digest of a prefix is a chain over its full blocks, starting from a value that names
 * the space: next = (digest + h(block)) * M. M is odd, so a step can be undone, and a node
 * needs only the digest at its end to give that of each of its block ends in turn while it
 * is evicted from the end. h is a sum of tokens times fixed random odd numbers, one a place.
 */

#include <stddef.h>
#include <stdint.h>

#define PFX_GHOST_WAYS 8 /* one cache line a set */
#define PFX_GHOST_SHIFT 24 /* 17 ms; of two years ago and more the age is wrong */

struct pfx_ghosts {
	uint64_t *set;       /* n_sets * PFX_GHOST_WAYS keys, 0 none; the youngest first */
	uint32_t *when;      /* of each, when it was added, in units of 2^PFX_GHOST_SHIFT ns */
	uint64_t n_sets;     /* a power of two */
	uint64_t added;      /* how many ever */
	uint64_t place[256]; /* odd numbers of h */
};

int pfx_ghosts_init(struct pfx_ghosts *ghosts, uint32_t n_blocks);
void pfx_ghosts_fini(struct pfx_ghosts *ghosts);

/* h of n <= 256 tokens; h of a longer beginning is had by adding pfx_ghosts_place. */
uint64_t pfx_ghosts_hash(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t n);

static inline uint64_t pfx_ghosts_place(const struct pfx_ghosts *ghosts, uint32_t token, uint32_t i)
{
	return ((uint64_t)token + 1) * ghosts->place[i];
}

uint64_t pfx_digest_step(uint64_t digest, uint64_t h);
uint64_t pfx_digest_back(uint64_t digest, uint64_t h);

/* A block of n tokens went now that stood behind the prefix of that digest. */
void pfx_ghosts_add(struct pfx_ghosts *ghosts, uint64_t digest, const uint32_t *tokens, uint32_t n,
	uint64_t now_ns);
/* The same, h of all n being known. */
void pfx_ghosts_add_hashed(struct pfx_ghosts *ghosts, uint64_t digest, uint64_t h,
	const uint32_t *tokens, uint32_t n, uint64_t now_ns);
/*
 * Was there a block behind that prefix which began with tokens[0..k) for some k in (from, n]?
 * from > 0 finds only blocks that ended at k. n <= block. *when_ns: the time of that.
 */
int pfx_ghosts_know(const struct pfx_ghosts *ghosts, uint64_t digest, const uint32_t *tokens,
	uint32_t from, uint32_t n, uint64_t now_ns, uint64_t *when_ns);

#endif
