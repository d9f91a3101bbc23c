#ifndef PFX_TESTS_RADIX_WORLD_H
#define PFX_TESTS_RADIX_WORLD_H

/*
 * What the engine does around a cache, in miniature: memories whose every position says which
 * prefix's KV it holds, and the copies that the cache orders, carried out late, in any order that
 * is allowed, and sometimes failing. Included by the tests of radix/ that need it.
 */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "radix/kids.h"
#include "radix/priv.h"

#define WORLD_BLOCKS 192
#define WORLD_B 32
#define WORLD_COPIES 256
#define JUNK 1ull /* no prefix has this name */

/* A copy on its way. */
struct world_copy {
	enum { COPY_SPILL, COPY_FETCH, COPY_LOAD } kind;
	uint32_t src, dst;
	uint64_t token; /* FETCH and LOAD: whose it is; see world_fetch */
};

static struct pfx_cache *cache;
static struct pfx_rng rng;
static uint64_t kv[PFX_TIERS][WORLD_BLOCKS][WORLD_B];
static uint32_t written[WORLD_BLOCKS]; /* by record: tokens that it has; 0: no such record */
static struct world_copy copies[WORLD_COPIES]; /* in the order in which they were given */
static uint32_t n_copies;
static struct world_save {
	struct pfx_save_order order;
	uint64_t kv[WORLD_B]; /* once copied */
	bool copied;
} saves[PFX_SAVES_MAX];
static uint32_t n_saves;
static uint32_t deletes[WORLD_BLOCKS], n_deletes;
static uint32_t fail_in; /* one copy or write in so many fails; 0: none */
/* A copy for a path has ended, well or not. */
static void (*world_arrived)(uint64_t token, bool ok);

static uint32_t below(uint32_t n)
{
	return (uint32_t)pfx_rng_below(&rng, n);
}

static bool fails(void)
{
	return fail_in > 0 && below(fail_in) == 0;
}

static void spoil(enum pfx_tier tier, uint32_t id)
{
	for (int i = 0; i < WORLD_B; i++) {
		kv[tier][id][i] = JUNK;
	}
}

static void world_reset(void)
{
	n_copies = n_saves = n_deletes = 0;
	memset(written, 0, sizeof(written));
	for (int t = 0; t < PFX_TIERS; t++) {
		for (uint32_t i = 0; i < WORLD_BLOCKS; i++) {
			spoil(t, i);
		}
	}
}

/* Takes the spills that are ordered. */
static void world_take_spills(void)
{
	struct pfx_spill s;

	while (n_copies < WORLD_COPIES && pfx_cache_next_spill(cache, &s)) {
		copies[n_copies++] = (struct world_copy){ COPY_SPILL, s.device, s.host, 0 };
	}
}

/* Brings a block from a slower tier into one on the device, for whoever the token stands for. */
static bool world_fetch(enum pfx_tier tier, uint32_t src, pfx_block_t dst, uint64_t token)
{
	world_take_spills();
	if (n_copies == WORLD_COPIES) {
		return false;
	}
	pfx_cache_hold(cache, tier, src);
	pfx_cache_hold(cache, PFX_TIER_DEVICE, dst);
	copies[n_copies++] = (struct world_copy){ tier == PFX_TIER_DISK ? COPY_LOAD : COPY_FETCH, src,
		dst, token };
	return true;
}

/* Carries out the copy at i; all but loads wait for those before them that are no loads. */
static void world_copy_end(uint32_t i)
{
	struct world_copy c;
	bool ok = !fails();

	for (uint32_t j = 0; copies[i].kind != COPY_LOAD && j < i; j++) {
		if (copies[j].kind != COPY_LOAD) {
			i = j;
		}
	}
	c = copies[i];
	memmove(copies + i, copies + i + 1, (n_copies - i - 1) * sizeof(*copies));
	n_copies--;
	if (c.kind == COPY_SPILL) {
		struct pfx_spill s = { c.src, c.dst };

		memcpy(kv[PFX_TIER_HOST][c.dst], kv[PFX_TIER_DEVICE][c.src], sizeof(kv[0][0]));
		if (!ok) {
			spoil(PFX_TIER_HOST, c.dst);
		}
		pfx_cache_spilled(cache, &s, ok);
		return;
	}
	if (ok) {
		enum pfx_tier tier = c.kind == COPY_LOAD ? PFX_TIER_DISK : PFX_TIER_HOST;

		/* What was deleted meanwhile cannot be read, nor what failed to be copied before. */
		ok = tier == PFX_TIER_HOST ? kv[tier][c.src][0] != JUNK : written[c.src] > 0;
		if (ok) {
			memcpy(kv[PFX_TIER_DEVICE][c.dst], kv[tier][c.src], sizeof(kv[0][0]));
		}
	}
	pfx_cache_unhold(cache, c.kind == COPY_LOAD ? PFX_TIER_DISK : PFX_TIER_HOST, c.src);
	pfx_cache_unhold(cache, PFX_TIER_DEVICE, c.dst);
	if (world_arrived != NULL) {
		world_arrived(c.token, ok);
	}
}

static void world_save_copy(struct world_save *s)
{
	if (!s->copied) {
		memcpy(s->kv, kv[s->order.tier][s->order.src], sizeof(s->kv));
		s->copied = true;
		pfx_cache_save_copied(cache, s->order.record);
	}
}

static void world_save_end(uint32_t i)
{
	struct world_save s = saves[i];
	bool ok = !fails();

	/* What was not copied in time is told as a failure. */
	ok = ok && s.copied;
	saves[i] = saves[--n_saves];
	if (ok) {
		memcpy(kv[PFX_TIER_DISK][s.order.record], s.kv, sizeof(s.kv));
		written[s.order.record] = s.order.n_tokens;
	}
	pfx_cache_saved(cache, s.order.record, ok ? 0 : -5);
}

static void world_delete_end(uint32_t i)
{
	uint32_t record = deletes[i];

	deletes[i] = deletes[--n_deletes];
	written[record] = 0;
	spoil(PFX_TIER_DISK, record);
	pfx_cache_deleted(cache, record);
}

/* Carries out all that is on its way. */
static void world_settle(void)
{
	uint32_t record;

	do {
		world_take_spills();
		while (n_copies > 0) {
			world_copy_end(0);
		}
		while (n_saves > 0) {
			world_save_copy(&saves[0]);
			world_save_end(0);
		}
		while (n_deletes < WORLD_BLOCKS && pfx_cache_next_delete(cache, &record)) {
			deletes[n_deletes++] = record;
		}
		while (n_deletes > 0) {
			world_delete_end(0);
		}
		world_take_spills();
	} while (n_copies > 0);
}

#endif
