#ifndef PFX_RADIX_PAST_H
#define PFX_RADIX_PAST_H

/*
 * What is known of blocks, of those in the tree and of those that went, found by the digest
 * of the prefix that a block ends. After each use a block's record is at the front of a row; so
 * the first of the row are what a cache with leaf LRU would hold now (a block is used whenever
 * one behind it is, and is put before it in the row), and it can be told what LRU would have
 * hit. Records of what went are used for others when all are taken, the longest gone first.
 */

#include <stdint.h>

#include "radix/cache.h"

#define PFX_RECORD_NONE UINT32_MAX

struct pfx_record {
	uint64_t digest;
	uint32_t chain;            /* in its bucket */
	uint32_t younger, older;   /* in the row */
	uint32_t earlier, later;   /* among those that went */
	pfx_block_t block;         /* or PFX_BLOCK_NONE: gone */
	uint32_t tick;             /* of the last use (radix/learn.h) */
	uint8_t class;             /* at the last use */
	uint8_t uses;              /* stays at 255 */
	uint8_t waits;             /* for its next use; not while it is in use */
	uint8_t began_known;       /* what first used it began with something known */
	uint16_t holders;          /* requests that use it now */
	uint8_t in_row, in_lru;    /* was used, and is not in use; would be in an LRU cache */
};

struct pfx_past {
	struct pfx_record *records;
	uint32_t *buckets;
	uint32_t n_records, n_buckets; /* n_buckets is a power of two */
	uint32_t n_taken;              /* records that were ever used */
	uint32_t youngest, oldest;     /* of the row */
	uint32_t first_gone, last_gone;
	uint32_t n_here;               /* records with a block */
	uint32_t n_held;               /* of these, not in the row: in use since */
	uint32_t n_lru, last_lru;      /* in_lru; the oldest of them */
};

/* -ENOMEM; a failed open needs a close too. */
int pfx_past_open(struct pfx_past *p, uint32_t n_blocks);
void pfx_past_close(struct pfx_past *p);

/*
 * Soon pfx_past_arrive will be asked for these. Each is somewhere in a table larger than any cache,
 * so that they come together and not one after the other.
 */
void pfx_past_expect(const struct pfx_past *p, const uint64_t *digests, uint32_t n);
/*
 * The block that ends the prefix of this digest is in the tree now. Its record, an old one if
 * it has one; PFX_RECORD_NONE when another block has it. *forgotten is what the record was
 * before it was taken for this one, if that one waited: else its waits is 0.
 */
uint32_t pfx_past_arrive(struct pfx_past *p, uint64_t digest, pfx_block_t block,
	struct pfx_record *forgotten);
/* Its block is gone. */
void pfx_past_leave(struct pfx_past *p, uint32_t r);
/* One request more uses it: out of the row. */
void pfx_past_hold(struct pfx_past *p, uint32_t r);
/* One of them has used it. Returns 1, and it is at the front of the row, if that was the last. */
int pfx_past_use(struct pfx_past *p, uint32_t r);
/* An LRU cache has room for as many as there are here and are not in use. */
void pfx_past_trim(struct pfx_past *p);
/* Walks everything; a sentence when something is wrong, else NULL. */
const char *pfx_past_check(const struct pfx_past *p);

#endif
