/*
 * Digests of prefixes and the table of ghosts: what the processor's wide instructions compute is
 * what the plain code does, and blocks that differ in little have different hashes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "radix/ghost.h"
#include "tests/tap.h"

#define MANY 65536u

static struct pfx_ghosts ghosts;
static uint32_t tokens[4096];

static void test_wide(void)
{
	struct pfx_ghosts plain = ghosts;
	int same = 1, chains = 1;

	plain.avx2 = 0;
	if (!ghosts.avx2) {
		skip(2, "no AVX2");
		return;
	}
	for (uint32_t n = 0; n <= 256; n++) {
		for (uint32_t at = 0; at < 8; at++) {
			same &= pfx_ghosts_hash(&ghosts, tokens + at, n) ==
				pfx_ghosts_hash(&plain, tokens + at, n);
		}
	}
	ok(same, "AVX2 and plain code have one hash of up to 256 tokens");
	for (uint32_t B = 1; B <= 256; B *= 2) {
		uint64_t a[16], b[16];

		chains &= pfx_ghosts_chain(&ghosts, 7, tokens, B, 16, a) ==
			pfx_ghosts_chain(&plain, 7, tokens, B, 16, b);
		for (int i = 0; i < 16; i++) {
			chains &= a[i] == b[i];
		}
	}
	ok(chains, "and one digest of each block in a row");
}

static void test_chain(void)
{
	uint64_t each[16], digest = 7;
	int forth = 1, back = 1;

	ok(pfx_ghosts_chain(&ghosts, 7, tokens, 32, 16, each) == each[15],
		"a chain returns its last digest");
	for (int i = 0; i < 16; i++) {
		uint64_t h = pfx_ghosts_hash(&ghosts, tokens + i * 32, 32);
		uint64_t before = digest;

		digest = pfx_digest_step(digest, h);
		forth &= digest == each[i];
		back &= pfx_digest_back(digest, h) == before;
	}
	ok(forth, "it is one step a block");
	ok(back, "and each can be undone");
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Blocks of n tokens that differ in those at two places alone. */
static uint32_t equal_hashes(uint32_t n, uint32_t first, uint32_t second)
{
	uint64_t *h = pfx_xmalloc(MANY * sizeof(*h));
	uint32_t block[32], equal = 0;

	memcpy(block, tokens, sizeof(block));
	for (uint32_t i = 0; i < MANY; i++) {
		block[first] = i & 255;
		block[second] = i >> 8;
		h[i] = pfx_ghosts_hash(&ghosts, block, n);
	}
	qsort(h, MANY, sizeof(*h), by_value);
	for (uint32_t i = 1; i < MANY; i++) {
		equal += h[i] == h[i - 1];
	}
	pfx_free(h);
	return equal;
}

static void test_spread(void)
{
	uint64_t h[32];
	int other = 1;

	is_int(equal_hashes(32, 4, 5), 0, "no two that differ in a pair have one hash");
	is_int(equal_hashes(32, 5, 6), 0, "nor in tokens of two pairs");
	is_int(equal_hashes(31, 3, 30), 0, "nor in what stands alone");
	memset(tokens, 0, 32 * sizeof(*tokens));
	for (uint32_t n = 1; n <= 32; n++) {
		h[n - 1] = pfx_ghosts_hash(&ghosts, tokens, n);
		for (uint32_t k = 1; k < n; k++) {
			other &= h[k - 1] != h[n - 1];
		}
	}
	ok(other, "zeroes have another hash for each length");
}

/* Blocks of every length, each gone behind a prefix of its own. */
static void test_ghosts(void)
{
	uint64_t when = 0;
	int found = 1, none = 1, one = 1;

	for (uint32_t n = 2; n <= 32; n++) {
		pfx_ghosts_add(&ghosts, n, tokens + n, n, 5ull << PFX_GHOST_SHIFT);
	}
	for (uint32_t n = 2; n <= 32; n++) {
		for (uint32_t from = 1; from < n; from++) {
			found &= pfx_ghosts_know(&ghosts, n, tokens + n, from, n, 6ull << PFX_GHOST_SHIFT, &when);
			none &= !pfx_ghosts_know(&ghosts, n, tokens + n, from, n - 1, 0, &when);
		}
		one &= pfx_ghosts_know(&ghosts, n, tokens + n, 0, 32, 6ull << PFX_GHOST_SHIFT, &when);
		none &= !pfx_ghosts_know(&ghosts, n + 100, tokens + n, 0, 32, 0, &when);
	}
	ok(found, "what went is known by its tokens");
	ok(one, "and by the first of them");
	ok(none, "and nothing else is");
	is_int(when >> PFX_GHOST_SHIFT, 5, "with the time at which it went");
}

int main(void)
{
	struct pfx_rng rng = { .state = 11 };

	if (pfx_ghosts_init(&ghosts, 1000, 0x67686f7374) < 0) {
		abort();
	}
	for (uint32_t i = 0; i < 4096; i++) {
		tokens[i] = (uint32_t)pfx_rng_below(&rng, i % 3 == 0 ? 1ull << 32 : 49152);
	}
	test_wide();
	test_chain();
	test_ghosts();
	test_spread();
	pfx_ghosts_fini(&ghosts);
	return tap_done();
}
