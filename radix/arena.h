#ifndef PFX_RADIX_ARENA_H
#define PFX_RADIX_ARENA_H

/*
 * The memory of nodes and their runs: pieces of any size out of slabs, each slab a huge page, so
 * that a walk through a cold tree does not wait for the addresses of its pages. Pieces begin at
 * cache lines, but for those that are so long that they stand alone. Who gives one back says how
 * long it was. Free neighbours become one, the smallest free piece that is sure to be long enough
 * is taken, and a slab that is all free is given back (but for one). Not thread-safe.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

#define PFX_ARENA_LINE 64u
#define PFX_ARENA_BINS 64u

struct pfx_arena {
	size_t slab_bytes;
	struct pfx_list slabs;
	struct pfx_list bins[PFX_ARENA_BINS]; /* free pieces by length */
	uint64_t filled;                      /* by bin: is there any? */
	uint32_t n_slabs, n_empty;            /* n_empty: of these, all free */
	uint64_t bytes;                       /* taken from the system, large pieces included */
	uint64_t pieces;                      /* in use */
};

/* For about so many bytes in all; where it is less than a few slabs, these are small. */
void pfx_arena_init(struct pfx_arena *arena, uint64_t bytes);
/* All pieces must have been given back. */
void pfx_arena_fini(struct pfx_arena *arena);
/* NULL: no memory. size > 0. */
void *pfx_arena_alloc(struct pfx_arena *arena, size_t size);
void pfx_arena_free(struct pfx_arena *arena, void *p, size_t size);
/* As realloc; from: the size it had. NULL: no memory, and nothing has changed. */
void *pfx_arena_resize(struct pfx_arena *arena, void *p, size_t from, size_t to);
/* NULL, or what is wrong with it. */
const char *pfx_arena_check(const struct pfx_arena *arena);

#endif
