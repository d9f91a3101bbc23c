#include "radix/past.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

#define NONE PFX_RECORD_NONE
/* Records for each block of the cache. With 4, what comes back after long is taken for new,
 * and on a trace with long intervals most of the gain is lost; 16 are as good as any number. */
#define RECORDS_A_BLOCK 16u

int pfx_past_open(struct pfx_past *p, uint32_t n_blocks)
{
	uint64_t n = (uint64_t)n_blocks * RECORDS_A_BLOCK, buckets = 1;

	n = n < NONE / 4 ? n : NONE / 4;
	while (buckets < n) {
		buckets *= 2;
	}
	*p = (struct pfx_past){
		.n_records = (uint32_t)n,
		.n_buckets = (uint32_t)buckets,
		.records = pfx_calloc(n, sizeof(*p->records)), /* touched as they are taken */
		.buckets = pfx_calloc(buckets, sizeof(*p->buckets)),
		.youngest = NONE, .oldest = NONE, .first_gone = NONE, .last_gone = NONE,
		.last_lru = NONE,
	};
	return p->records == NULL || p->buckets == NULL ? -ENOMEM : 0;
}

void pfx_past_close(struct pfx_past *p)
{
	pfx_free(p->records);
	pfx_free(p->buckets);
	p->records = NULL;
	p->buckets = NULL;
}

/* Buckets and chains hold a record's number plus one, so that zeroed memory is empty. */
static uint32_t *bucket_of(const struct pfx_past *p, uint64_t digest)
{
	return &p->buckets[(digest ^ digest >> 32) & (p->n_buckets - 1)];
}

static uint32_t find(const struct pfx_past *p, uint64_t digest)
{
	uint32_t at = *bucket_of(p, digest);

	while (at != 0 && p->records[at - 1].digest != digest) {
		at = p->records[at - 1].chain;
	}
	return at == 0 ? NONE : at - 1;
}

void pfx_past_expect(const struct pfx_past *p, const uint64_t *digests, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		__builtin_prefetch(bucket_of(p, digests[i]));
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = *bucket_of(p, digests[i]);

		if (at != 0) {
			__builtin_prefetch(&p->records[at - 1]);
		}
	}
}

static void unchain(struct pfx_past *p, uint32_t r)
{
	uint32_t *at = bucket_of(p, p->records[r].digest);

	while (*at != r + 1) {
		at = &p->records[*at - 1].chain;
	}
	*at = p->records[r].chain;
}

/* ---- the row ---- */

static void take_from_row(struct pfx_past *p, uint32_t r)
{
	struct pfx_record *x = &p->records[r];

	if (!x->in_row) {
		return;
	}
	if (p->last_lru == r) {
		p->last_lru = x->younger;
	}
	*(x->younger == NONE ? &p->youngest : &p->records[x->younger].older) = x->older;
	*(x->older == NONE ? &p->oldest : &p->records[x->older].younger) = x->younger;
	p->n_lru -= x->in_lru;
	x->in_row = x->in_lru = 0;
}

void pfx_past_hold(struct pfx_past *p, uint32_t r)
{
	p->n_held += p->records[r].in_row && p->records[r].block != PFX_BLOCK_NONE;
	take_from_row(p, r);
	p->records[r].holders += p->records[r].holders < UINT16_MAX;
}

int pfx_past_use(struct pfx_past *p, uint32_t r)
{
	struct pfx_record *x = &p->records[r];

	/* It may have come to a request without a word, when two computed the same. */
	x->holders -= x->holders > 0;
	if (x->holders > 0) {
		return 0;
	}
	p->n_held -= !x->in_row && x->block != PFX_BLOCK_NONE;
	take_from_row(p, r);
	x->younger = NONE;
	x->older = p->youngest;
	*(p->youngest == NONE ? &p->oldest : &p->records[p->youngest].younger) = r;
	p->youngest = r;
	x->in_row = x->in_lru = 1;
	if (p->n_lru++ == 0) {
		p->last_lru = r;
	}
	return 1;
}

void pfx_past_trim(struct pfx_past *p)
{
	while (p->n_lru > p->n_here - p->n_held) {
		struct pfx_record *x = &p->records[p->last_lru];

		x->in_lru = 0;
		p->n_lru--;
		p->last_lru = p->n_lru > 0 ? x->younger : NONE;
	}
}

/* ---- those that went ---- */

static void take_from_gone(struct pfx_past *p, uint32_t r)
{
	struct pfx_record *x = &p->records[r];

	*(x->earlier == NONE ? &p->first_gone : &p->records[x->earlier].later) = x->later;
	*(x->later == NONE ? &p->last_gone : &p->records[x->later].earlier) = x->earlier;
}

void pfx_past_leave(struct pfx_past *p, uint32_t r)
{
	struct pfx_record *x = &p->records[r];

	PFX_ASSERT(x->block != PFX_BLOCK_NONE);
	p->n_held -= !x->in_row;
	x->block = PFX_BLOCK_NONE;
	x->holders = 0;
	x->earlier = p->last_gone;
	x->later = NONE;
	*(p->last_gone == NONE ? &p->first_gone : &p->records[p->last_gone].later) = r;
	p->last_gone = r;
	p->n_here--;
}

/* A record for something new: one never used, or that of what went longest ago. */
static uint32_t take(struct pfx_past *p, struct pfx_record *forgotten)
{
	uint32_t r = p->first_gone;

	if (p->n_taken < p->n_records) {
		return p->n_taken++;
	}
	PFX_ASSERT(r != NONE); /* there are fewer blocks than records */
	*forgotten = p->records[r];
	take_from_gone(p, r);
	take_from_row(p, r);
	unchain(p, r);
	return r;
}

uint32_t pfx_past_arrive(struct pfx_past *p, uint64_t digest, pfx_block_t block,
	struct pfx_record *forgotten)
{
	uint32_t r = find(p, digest), *bucket;

	forgotten->waits = 0;
	if (r != NONE) {
		if (p->records[r].block != PFX_BLOCK_NONE) {
			return NONE;
		}
		take_from_gone(p, r);
	} else {
		r = take(p, forgotten);
		bucket = bucket_of(p, digest);
		p->records[r] = (struct pfx_record){ .digest = digest, .chain = *bucket };
		*bucket = r + 1;
	}
	p->records[r].block = block;
	p->n_here++;
	p->n_held += !p->records[r].in_row;
	return r;
}

const char *pfx_past_check(const struct pfx_past *p)
{
	uint32_t here = 0, held = 0, gone = 0, lru = 0, row = 0, in_row = 0, younger = NONE;

	for (uint32_t r = 0; r < p->n_taken; r++) {
		here += p->records[r].block != PFX_BLOCK_NONE;
		in_row += p->records[r].in_row;
		held += p->records[r].block != PFX_BLOCK_NONE && !p->records[r].in_row;
		if (find(p, p->records[r].digest) != r) {
			return "a record of the past is not found by its digest";
		}
	}
	for (uint32_t r = p->first_gone; r != NONE; r = p->records[r].later) {
		gone++;
	}
	for (uint32_t r = p->youngest; r != NONE; younger = r, r = p->records[r].older) {
		if (p->records[r].younger != younger || p->records[r].in_lru != (row < p->n_lru)) {
			return "the row of the past is broken";
		}
		lru += p->records[r].in_lru;
		if (lru == p->n_lru && lru == row + 1 && p->last_lru != r) {
			return "the past takes another for the last of an LRU cache";
		}
		row++;
	}
	if (here != p->n_here || held != p->n_held || here + gone != p->n_taken ||
		lru != p->n_lru || row != in_row) {
		return "the past is miscounted";
	}
	return NULL;
}
