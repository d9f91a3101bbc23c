#ifndef PFX_ENGINE_PIECES_H
#define PFX_ENGINE_PIECES_H

/*
 * The ids of pieces of plain text that were tokenised before. A piece is what stands between
 * two special tokens; its ids depend on its bytes and on nothing around it (tokenizer.c), so
 * the turns of a conversation that were there before are found whatever comes behind or in
 * front of them.
 *
 * The key begins with whose text it is, so that no namespace or salt can tell by the time
 * that another one has sent the same. Keys are compared byte by byte. Bounded in bytes; what
 * was not used for longest goes first. Has a lock of its own: any thread.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/tokenizer.h"

struct pfx_pieces;

struct pfx_pieces_stats {
	uint64_t n, bytes, bytes_max;
	uint64_t hits, misses, hit_bytes, evicted;
};

int pfx_pieces_open(struct pfx_pieces **out, uint64_t bytes_max);
void pfx_pieces_close(struct pfx_pieces *p);
/* Whether a piece of this size is kept: not one so short that a look-up gains nothing. */
int pfx_pieces_keeps(const struct pfx_pieces *p, size_t piece_bytes);
/* 1: its ids are appended; 0: not there; -ENOMEM. */
int pfx_pieces_find(struct pfx_pieces *p, const char *key, size_t len, struct pfx_ids *out);
/* A copy is kept, if there is memory for it. */
void pfx_pieces_add(struct pfx_pieces *p, const char *key, size_t len, const uint32_t *ids,
	size_t n);
void pfx_pieces_clear(struct pfx_pieces *p);
void pfx_pieces_stats(struct pfx_pieces *p, struct pfx_pieces_stats *out);

#endif
