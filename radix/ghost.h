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
 * is evicted from the end. h is a sum over pairs of neighbours: to each token a fixed number is
 * added, another for each place, and the two are multiplied to 64 bits. That is one multiplication
 * for two tokens, and one that processors do several of at a time. What stands alone at the end
 * is multiplied by a number of its own.
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
	uint8_t avx2;        /* the processor has it */
	uint32_t place[256]; /* numbers of h; so large that no sum with a token is 0 */
};

/* seed chooses the numbers of h. */
int pfx_ghosts_init(struct pfx_ghosts *ghosts, uint32_t n_blocks, uint64_t seed);
void pfx_ghosts_fini(struct pfx_ghosts *ghosts);

/* h of n <= 256 tokens. */
uint64_t pfx_ghosts_hash(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t n);
/*
 * The digests behind each of n full blocks of B tokens, which follow the prefix of `digest`.
 * Returns the last of them.
 */
uint64_t pfx_ghosts_chain(const struct pfx_ghosts *ghosts, uint64_t digest, const uint32_t *tokens,
	uint32_t B, uint32_t n, uint64_t *each);

#define PFX_DIGEST_M 0x9e3779b97f4a7c15ull
#define PFX_DIGEST_M_INVERSE 0xf1de83e19937733dull
_Static_assert(PFX_DIGEST_M * PFX_DIGEST_M_INVERSE == 1, "a step of the digest can be undone");

static inline uint64_t pfx_digest_step(uint64_t digest, uint64_t h)
{
	return (digest + h) * PFX_DIGEST_M;
}

static inline uint64_t pfx_digest_back(uint64_t digest, uint64_t h)
{
	return digest * PFX_DIGEST_M_INVERSE - h;
}

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
