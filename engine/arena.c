#include "engine/arena.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"

struct pfx_arena {
	size_t block_bytes, map_bytes;
	uint32_t n_blocks;
	uint8_t *base;
};

int pfx_arena_open(struct pfx_arena **out, size_t block_bytes, uint64_t bytes_max)
{
	struct pfx_arena *a = pfx_calloc(1, sizeof(*a));
	uint64_t n = bytes_max / block_bytes;
	int saved;

	if (a == NULL) {
		return -ENOMEM;
	}
	a->block_bytes = block_bytes;
	a->n_blocks = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX - 1;
	a->map_bytes = a->n_blocks * block_bytes;
	if (a->n_blocks > 0) {
		a->base = mmap(NULL, a->map_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (a->base == MAP_FAILED) {
			saved = errno;
			pfx_free(a);
			return -saved;
		}
	}
	*out = a;
	return 0;
}

void pfx_arena_close(struct pfx_arena *a)
{
	if (a == NULL) {
		return;
	}
	if (a->n_blocks > 0) {
		PFX_ASSERT(munmap(a->base, a->map_bytes) == 0);
	}
	pfx_free(a);
}

uint32_t pfx_arena_blocks(const struct pfx_arena *a)
{
	return a == NULL ? 0 : a->n_blocks;
}

void *pfx_arena_at(struct pfx_arena *a, uint32_t block)
{
	PFX_ASSERT(block < a->n_blocks);
	return a->base + block * a->block_bytes;
}
