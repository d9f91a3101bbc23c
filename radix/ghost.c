#include "radix/ghost.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

#define M 0x9e3779b97f4a7c15ull
#define M_INVERSE 0xf1de83e19937733dull
_Static_assert(M * M_INVERSE == 1, "a step of the digest can be undone");

/* 128k entries: 1 MB, and a pool of 32k blocks turned over twice. */
#define SETS_MAX 16384u
#define SETS_MIN 64u

int pfx_ghosts_init(struct pfx_ghosts *ghosts, uint32_t n_blocks)
{
	ghosts->n_sets = SETS_MIN;
	/* Two keys a block: room for the pool's content twice over. */
	while (ghosts->n_sets < SETS_MAX && ghosts->n_sets * PFX_GHOST_WAYS < 4ull * n_blocks) {
		ghosts->n_sets *= 2;
	}
	ghosts->added = 0;
	ghosts->set = pfx_aligned_alloc(64, ghosts->n_sets * PFX_GHOST_WAYS * sizeof(uint64_t));
	ghosts->when = pfx_calloc(ghosts->n_sets * PFX_GHOST_WAYS, sizeof(*ghosts->when));
	if (ghosts->set == NULL || ghosts->when == NULL) {
		return -ENOMEM;
	}
	memset(ghosts->set, 0, ghosts->n_sets * PFX_GHOST_WAYS * sizeof(uint64_t));
	for (uint32_t i = 0; i < 256; i++) {
		ghosts->place[i] = pfx_rng_mix(0x67686f7374, i) | 1;
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

uint64_t pfx_ghosts_hash(const struct pfx_ghosts *ghosts, const uint32_t *tokens, uint32_t n)
{
	uint64_t h = 0;

	for (uint32_t i = 0; i < n; i++) {
		h += pfx_ghosts_place(ghosts, tokens[i], i);
	}
	return h;
}

uint64_t pfx_digest_step(uint64_t digest, uint64_t h)
{
	return (digest + h) * M;
}

uint64_t pfx_digest_back(uint64_t digest, uint64_t h)
{
	return digest * M_INVERSE - h;
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
	uint64_t h = pfx_ghosts_hash(ghosts, tokens, from);

	if (from == 0) {
		return known(ghosts, key_of(digest, pfx_ghosts_place(ghosts, tokens[0], 0)), now_ns,
			when_ns);
	}
	for (uint32_t k = from; k < n; k++) {
		h += pfx_ghosts_place(ghosts, tokens[k], k);
		if (known(ghosts, key_of(digest, h), now_ns, when_ns)) {
			return 1;
		}
	}
	return 0;
}
