#ifndef PFX_ENGINE_ARENA_H
#define PFX_ENGINE_ARENA_H

/*
 * The host tier's memory: a fixed number of blocks of one size, touched on first use. Which
 * block holds what is radix/'s business. Any thread; nobody guards the bytes here.
 */

#include <stddef.h>
#include <stdint.h>

struct pfx_arena;

/* As many blocks as fit into bytes_max, maybe none. A negative errno when there is no room. */
int pfx_arena_open(struct pfx_arena **out, size_t block_bytes, uint64_t bytes_max);
void pfx_arena_close(struct pfx_arena *a); /* NULL is fine */
uint32_t pfx_arena_blocks(const struct pfx_arena *a); /* NULL: none */
/* block_bytes of that block; borrowed, valid until close. */
void *pfx_arena_at(struct pfx_arena *a, uint32_t block);

#endif
