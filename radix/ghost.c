#include "radix/ghost.h"

#include <errno.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/alloc.h"
#include "base/rng.h"

/* Of what stands alone at the end; odd. */
#define ALONE 0xd1342543de82ef95ull

/* 128k entries: 1 MB, and a pool of 32k blocks turned over twice. */
#define SETS_MAX 16384u
#define SETS_MIN 64u

int pfx_ghosts_init(struct pfx_ghosts *ghosts, uint32_t n_blocks, uint64_t seed)
{
	ghosts->n_sets = SETS_MIN;
	/* Two keys a block: room for the pool's content twice over. */
	while (ghosts->n_sets < SETS_MAX && ghosts->n_sets * PFX_GHOST_WAYS < 4ull * n_blocks) {
		ghosts->n_sets *= 2;
	}
	ghosts->added = 0;
#if defined(__x86_64__)
	ghosts->avx2 = __builtin_cpu_supports("avx2") != 0;
#endif
	ghosts->set = pfx_aligned_alloc(64, ghosts->n_sets * PFX_GHOST_WAYS * sizeof(uint64_t));
	ghosts->when = pfx_calloc(ghosts->n_sets * PFX_GHOST_WAYS, sizeof(*ghosts->when));
	if (ghosts->set == NULL || ghosts->when == NULL) {
		return -ENOMEM;
	}
	memset(ghosts->set, 0, ghosts->n_sets * PFX_GHOST_WAYS * sizeof(uint64_t));
	for (uint32_t i = 0; i < 256; i++) {
		/* The top two bits are 10, so a token below 2^30 is added without a carry out. */
		ghosts->place[i] = (uint32_t)(pfx_rng_mix(seed, i) >> 34) | 1u << 31;
	}
	return 0;
}

void pfx_ghosts_fini(struct pfx_ghosts *ghosts)
{
	pfx_free(ghosts->set);
	pfx_free(ghosts->when);
	ghosts->set = NULL;
	ghosts->when = NULL;
}

/* The tokens at an even place i and behind it; the one at i alone. */
static uint64_t pair(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t i)
{
	return (uint64_t)(tokens[i] + ghosts->place[i]) * (tokens[i + 1] + ghosts->place[i + 1]);
}

static uint64_t alone(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t i)
{
	return (uint64_t)(tokens[i] + ghosts->place[i]) * ALONE;
}

/* Goes on from place i, an even one, h being of the tokens before. */
static uint64_t hash_rest(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t n,
	uint32_t i, uint64_t h)
{
	for (; i + 2 <= n; i += 2) {
		h += pair(ghosts, tokens, i);
	}
	return i < n ? h + alone(ghosts, tokens, i) : h;
}

#if defined(__x86_64__)
/* Four pairs: each is 64 bits wide, and its tokens the halves of these. */
__attribute__((target("avx2"))) static inline __m256i pairs(const struct pfx_ghosts *ghosts,
	const uint32_t *tokens, uint32_t i)
{
	__m256i v = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(tokens + i)),
		_mm256_loadu_si256((const __m256i *)(ghosts->place + i)));

	return _mm256_mul_epu32(v, _mm256_srli_epi64(v, 32));
}

__attribute__((target("avx2"))) static inline uint64_t hash_avx2(const struct pfx_ghosts *ghosts,
	const uint32_t *tokens, uint32_t n)
{
	__m256i sum = _mm256_setzero_si256();
	uint32_t i = 0;
	uint64_t h;
	__m128i two;

	for (; i + 32 <= n; i += 32) {
		__m256i a = _mm256_add_epi64(pairs(ghosts, tokens, i), pairs(ghosts, tokens, i + 8));
		__m256i b = _mm256_add_epi64(pairs(ghosts, tokens, i + 16),
			pairs(ghosts, tokens, i + 24));

		sum = _mm256_add_epi64(sum, _mm256_add_epi64(a, b));
	}
	for (; i + 8 <= n; i += 8) {
		sum = _mm256_add_epi64(sum, pairs(ghosts, tokens, i));
	}
	two = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
	h = (uint64_t)_mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
	return i < n ? hash_rest(ghosts, tokens, n, i, h) : h;
}

__attribute__((target("avx2"))) static uint64_t chain_avx2(const struct pfx_ghosts *ghosts,
	uint64_t digest, const uint32_t *tokens, uint32_t B, uint32_t n, uint64_t *each)
{
	for (uint32_t i = 0; i < n; i++) {
		digest = pfx_digest_step(digest, hash_avx2(ghosts, tokens + (size_t)i * B, B));
		each[i] = digest;
	}
	return digest;
}

#endif

uint64_t pfx_ghosts_hash(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t n)
{
#if defined(__x86_64__)
	if (ghosts->avx2) {
		return hash_avx2(ghosts, tokens, n);
	}
#endif
	return hash_rest(ghosts, tokens, n, 0, 0);
}

uint64_t pfx_ghosts_chain(const struct pfx_ghosts *ghosts, uint64_t digest, const uint32_t *tokens,
	uint32_t B, uint32_t n, uint64_t *each)
{
#if defined(__x86_64__)
	if (ghosts->avx2) {
		return chain_avx2(ghosts, digest, tokens, B, n, each);
	}
#endif
	for (uint32_t i = 0; i < n; i++) {
		digest = pfx_digest_step(digest, hash_rest(ghosts, tokens + (size_t)i * B, B, 0, 0));
		each[i] = digest;
	}
	return digest;
}

/* Sums have weak low bits; the table is indexed with them. Never 0. */
static uint64_t key_of(uint64_t digest, uint64_t h)
{
	return pfx_rng_mix(digest, h) | 1;
}

static uint64_t *set_of(const struct pfx_ghosts *ghosts, uint64_t key)
{
	return ghosts->set + ((key >> 32) & (ghosts->n_sets - 1)) * PFX_GHOST_WAYS;
}

static int known(const struct pfx_ghosts *ghosts, uint64_t key, uint64_t now_ns, uint64_t *when_ns)
{
	const uint64_t *set = set_of(ghosts, key);
	uint64_t now = now_ns >> PFX_GHOST_SHIFT;

	for (int i = 0; i < PFX_GHOST_WAYS; i++) {
		if (set[i] == key) {
			uint32_t age = (uint32_t)now - ghosts->when[set + i - ghosts->set];

			*when_ns = (now - age) << PFX_GHOST_SHIFT;
			return 1;
		}
	}
	return 0;
}

static void add(struct pfx_ghosts *ghosts, uint64_t key, uint64_t now_ns)
{
	uint64_t *set = set_of(ghosts, key);
	uint32_t *when = ghosts->when + (set - ghosts->set);
	int i = 0;

	while (i < PFX_GHOST_WAYS - 1 && set[i] != key) {
		i++;
	}
	memmove(set + 1, set, (size_t)i * sizeof(*set));
	memmove(when + 1, when, (size_t)i * sizeof(*when));
	set[0] = key;
	when[0] = (uint32_t)(now_ns >> PFX_GHOST_SHIFT);
}

void pfx_ghosts_add(struct pfx_ghosts *ghosts, uint64_t digest, const uint32_t *tokens, uint32_t n,
	uint64_t now_ns)
{
	pfx_ghosts_add_hashed(ghosts, digest, pfx_ghosts_hash(ghosts, tokens, n), tokens, n, now_ns);
}

void pfx_ghosts_add_hashed(struct pfx_ghosts *ghosts, uint64_t digest, uint64_t h,
	const uint32_t *tokens, uint32_t n, uint64_t now_ns)
{
	add(ghosts, key_of(digest, h), now_ns);
	if (n > 1) {
		add(ghosts, key_of(digest, pfx_ghosts_hash(ghosts, tokens, 1)), now_ns);
	}
	ghosts->added++;
}

int pfx_ghosts_know(const struct pfx_ghosts *ghosts, uint64_t digest, const uint32_t *tokens,
	uint32_t from, uint32_t n, uint64_t now_ns, uint64_t *when_ns)
{
	uint64_t h = pfx_ghosts_hash(ghosts, tokens, from & ~1u);

	if (from == 0) {
		return known(ghosts, key_of(digest, alone(ghosts, tokens, 0)), now_ns, when_ns);
	}
	/* h is of the pairs before k. */
	for (uint32_t k = from; k < n; k++) {
		h += k & 1 ? pair(ghosts, tokens, k - 1) : 0;
		if (known(ghosts, key_of(digest, k & 1 ? h : h + alone(ghosts, tokens, k)), now_ns,
			when_ns)) {
			return 1;
		}
	}
	return 0;
}
