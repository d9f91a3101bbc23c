#include "base/rng.h"

#include <sys/random.h>

#include "base/clock.h"

#define GOLDEN 0x9e3779b97f4a7c15ull

static uint64_t finalize(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t pfx_rng_mix(uint64_t seed, uint64_t index)
{
	/* The seed is scrambled first: neighbouring seeds must not give shifted sequences. */
	return finalize(finalize(seed + GOLDEN) + (index + 1) * GOLDEN);
}

uint64_t pfx_rng_next(struct pfx_rng *rng)
{
	rng->state += GOLDEN;
	return finalize(rng->state);
}

uint64_t pfx_rng_below(struct pfx_rng *rng, uint64_t n)
{
	return (uint64_t)(((unsigned __int128)pfx_rng_next(rng) * n) >> 64);
}

double pfx_rng_to_double(uint64_t bits)
{
	return (double)(bits >> 11) * 0x1.0p-53;
}

double pfx_rng_double(struct pfx_rng *rng)
{
	return pfx_rng_to_double(pfx_rng_next(rng));
}

uint64_t pfx_rng_entropy(void)
{
	uint64_t seed;

	if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed)) {
		seed = pfx_rng_mix(pfx_clock_wall_ns(), pfx_clock_ns());
	}
	return seed;
}
