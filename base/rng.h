#ifndef PFX_BASE_RNG_H
#define PFX_BASE_RNG_H

/*
 * Randomness that can be repeated. pfx_rng_mix is a stateless generator indexed by
 * (seed, index), so that the value of one index does not depend on how many were drawn
 * before. struct pfx_rng is the sequential form. Both are splitmix64 (Steele, Lea and
 * Flood, "Fast splittable pseudorandom number generators", 2014). Not for secrets.
 */

#include <stdint.h>

uint64_t pfx_rng_mix(uint64_t seed, uint64_t index);

struct pfx_rng {
	uint64_t state;
};

uint64_t pfx_rng_next(struct pfx_rng *rng);
/* Uniform in [0, n), without bias worth naming for n far below 2^64; n > 0. */
uint64_t pfx_rng_below(struct pfx_rng *rng, uint64_t n);
/* Uniform in [0, 1), 53 bits. */
double pfx_rng_double(struct pfx_rng *rng);
double pfx_rng_to_double(uint64_t bits);

/* A seed that differs from run to run, from the kernel; falls back to the clock. */
uint64_t pfx_rng_entropy(void);

#endif
