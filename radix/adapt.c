/*
 * The policy `default`. Blocks are sorted into classes by what is known of them when a request
 * lets them go: how often they were used, how long the reply was (a long one rarely goes with
 * a prompt that comes back, a short one often does), and whether the request began with
 * something known. radix/learn.h learns what a block of a class and an age is worth; the leaf
 * whose last block is worth least goes, and inside a class the one not used for longest. With
 * nothing learned, or no class unlike the others, that is leaf LRU.
 *
 * What lies on disk too is worth less, as less is lost with it.
 *
 * radix/past.h tells what leaf LRU would have hit with the same room. When we fall behind by
 * more than a small share, leaf LRU decides until that is mended.
 */
#include <errno.h>
#include <math.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "radix/evict.h"
#include "radix/learn.h"
#include "radix/past.h"

/* We may be behind leaf LRU by one of so many blocks referred to, of late. */
#define BEHIND_ONE_IN 500
/* Being ahead of it counts up to so many times that, or else a change for the worse would have
 * to last as long as the good time before it until it is noticed. */
#define CREDIT 5
/* Late is what came since as many blocks as this times the cache were referred to; what came
 * before counts half, and what came before that a quarter. */
#define LATE 128

/* What is lost with a block that lies on disk as well, as a share of what is lost with another:
 * it need not be computed again, but be loaded, and its record may go before it is wanted. */
#define LOSS_SAVED 0.5

/* Ticks for which a block is kept for a request that waits: as many as go by while one time and
 * a half the cache is referred to. One that waits still is told of again. */
#define AWAITED 12u

/* A node's rank: the class of its last block, then its age. */
#define CLASS_SHIFT 56

struct pfx_adapt {
	struct pfx_learn learn;
	struct pfx_past past;
	struct pfx_heap heaps[PFX_LEARN_CLASSES];
	uint64_t in_use[PFX_LEARN_CLASSES / 64]; /* bits: heaps that are not empty */
	struct {
		uint32_t record; /* PFX_RECORD_NONE: not full, or two have it */
		uint32_t tick;   /* of the last use */
		uint32_t class;
		uint32_t awaited; /* 1 + the tick at which it was told last that a request will use it */
	} *blocks;
	int64_t behind;   /* blocks that leaf LRU would have hit, less those hit */
	int64_t referred; /* blocks, of late */
	int64_t late;     /* blocks referred to, after which both are halved */
};

static int adapt_open(struct pfx_evict *evict, uint32_t n_blocks)
{
	struct pfx_adapt *a = pfx_calloc(1, sizeof(*a));
	int rc;

	evict->adapt = a;
	if (a == NULL) {
		return -ENOMEM;
	}
	a->late = (int64_t)LATE * n_blocks;
	a->blocks = pfx_calloc(n_blocks, sizeof(*a->blocks));
	rc = a->blocks == NULL ? -ENOMEM : pfx_learn_open(&a->learn, n_blocks);
	if (rc == 0) {
		rc = pfx_past_open(&a->past, n_blocks);
	}
	for (uint32_t i = 0; rc == 0 && i < n_blocks; i++) {
		a->blocks[i].record = PFX_RECORD_NONE;
	}
	return rc;
}

static void adapt_close(struct pfx_evict *evict)
{
	if (evict->adapt == NULL) {
		return;
	}
	pfx_past_close(&evict->adapt->past);
	pfx_learn_close(&evict->adapt->learn);
	pfx_free(evict->adapt->blocks);
	pfx_free(evict->adapt);
	evict->adapt = NULL;
}

/* ---- the leaves ---- */

static void adapt_add(struct pfx_evict *evict, struct pfx_node *x)
{
	struct pfx_adapt *a = evict->adapt;
	uint64_t class;

	if (pfx_evict_leaf(evict, x)) {
		class = a->blocks[pfx_evict_last(evict, x)].class;
		pfx_heap_push(&a->heaps[class], x, class << CLASS_SHIFT | x->age);
		a->in_use[class / 64] |= 1ull << class % 64;
	}
}

static void adapt_remove(struct pfx_evict *evict, struct pfx_node *x)
{
	struct pfx_adapt *a = evict->adapt;
	uint32_t class = (uint32_t)(x->order[evict->tier].rank >> CLASS_SHIFT);

	if (pfx_heap_has(x, evict->tier)) {
		pfx_heap_remove(&a->heaps[class], x);
		if (a->heaps[class].top == NULL) {
			a->in_use[class / 64] &= ~(1ull << class % 64);
		}
	}
}

static void adapt_cut(struct pfx_evict *evict, struct pfx_node *x)
{
	adapt_remove(evict, x);
	adapt_add(evict, x);
}

/* Are we not too far behind leaf LRU to act on what was learned, or told? */
static int adapt_trusts(const struct pfx_adapt *a)
{
	return a->behind * BEHIND_ONE_IN <= a->referred;
}

/* Of the last block of a leaf. */
static double worth_of(const struct pfx_evict *evict, const struct pfx_node *x)
{
	const struct pfx_adapt *a = evict->adapt;
	pfx_block_t block = pfx_evict_last(evict, x);
	double worth;

	if (a->blocks[block].awaited > 0 && a->learn.tick - a->blocks[block].awaited + 1 < AWAITED) {
		return INFINITY;
	}
	worth = pfx_learn_worth(&a->learn, a->blocks[block].class, a->blocks[block].tick);
	if (evict->disk_keeps && pfx_node_n_records(x, evict->shift) >= x->n_dev) {
		worth *= LOSS_SAVED;
	}
	return worth;
}

/* Does x, the least of its class, go before y, that of another? */
static int worth_less(const struct pfx_evict *evict, const struct pfx_node *x,
	const struct pfx_node *y)
{
	double wx, wy;

	if (adapt_trusts(evict->adapt)) {
		wx = worth_of(evict, x);
		wy = worth_of(evict, y);
		if (wx < wy || wx > wy) {
			return wx < wy;
		}
	}
	if (x->age != y->age) {
		return x->age < y->age;
	}
	return pfx_node_end(x) > pfx_node_end(y);
}

static struct pfx_node *adapt_victim(const struct pfx_evict *evict)
{
	const struct pfx_adapt *a = evict->adapt;
	struct pfx_node *best = NULL;

	for (uint32_t word = 0; word < PFX_LEARN_CLASSES / 64; word++) {
		for (uint64_t rest = a->in_use[word]; rest != 0; rest &= rest - 1) {
			struct pfx_node *x = a->heaps[word * 64 + (uint32_t)__builtin_ctzll(rest)].top;

			if (best == NULL || worth_less(evict, x, best)) {
				best = x;
			}
		}
	}
	return best;
}

static int adapt_trusts_ends(const struct pfx_evict *evict)
{
	return adapt_trusts(evict->adapt);
}

/* ---- what happens to blocks ---- */

/* The wait of a record is over: it is used, by a request that has it in hand now. */
static void end_wait(struct pfx_adapt *a, struct pfx_record *r, int again)
{
	if (r->waits) {
		r->waits = 0;
		pfx_learn_end(&a->learn, r->class, r->tick, again);
	}
}

static void adapt_hit(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n)
{
	struct pfx_adapt *a = evict->adapt;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t r = a->blocks[blocks[i]].record;

		if (r == PFX_RECORD_NONE) {
			continue;
		}
		/* That what somebody holds anyway was there tells nothing. */
		if (a->past.records[r].waits) {
			end_wait(a, &a->past.records[r], 1);
			a->behind -= !a->past.records[r].in_lru;
		}
		pfx_past_hold(&a->past, r);
	}
}

static void adapt_filled(struct pfx_evict *evict, const pfx_block_t *blocks,
	const uint64_t *digests, uint32_t n)
{
	struct pfx_adapt *a = evict->adapt;

	pfx_past_expect(&a->past, digests, n);
	for (uint32_t i = 0; i < n; i++) {
		struct pfx_record forgotten;
		uint32_t r = pfx_past_arrive(&a->past, digests[i], blocks[i], &forgotten);

		a->blocks[blocks[i]].record = r;
		end_wait(a, &forgotten, 0);
		if (r != PFX_RECORD_NONE) {
			end_wait(a, &a->past.records[r], 1);
			a->behind += a->past.records[r].in_lru;
			pfx_past_hold(&a->past, r);
		}
	}
}

static void adapt_gone(struct pfx_evict *evict, pfx_block_t block)
{
	struct pfx_adapt *a = evict->adapt;
	uint32_t r = a->blocks[block].record;

	a->blocks[block].awaited = 0;
	if (r != PFX_RECORD_NONE) {
		pfx_past_leave(&a->past, r);
		pfx_past_trim(&a->past);
		a->blocks[block].record = PFX_RECORD_NONE;
	}
}

/* From the deepest on, so that in the row a block stands before those behind it. */
static void adapt_used(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n,
	uint32_t reply)
{
	struct pfx_adapt *a = evict->adapt;
	int known = 0;

	if (n > 0 && a->blocks[blocks[0]].record != PFX_RECORD_NONE) {
		known = a->past.records[a->blocks[blocks[0]].record].uses > 0;
	}
	pfx_learn_advance(&a->learn, n);
	a->referred += n;
	if (a->behind * BEHIND_ONE_IN < -CREDIT * a->referred) {
		a->behind = -CREDIT * a->referred / BEHIND_ONE_IN;
	}
	if (a->referred > a->late) {
		a->referred /= 2;
		a->behind /= 2;
	}
	for (uint32_t i = n; i-- > 0;) {
		uint32_t at = a->blocks[blocks[i]].record;
		struct pfx_record *r = at == PFX_RECORD_NONE ? NULL : &a->past.records[at];
		struct pfx_traits traits = { .uses = 1, .reply = reply, .known = known, .tail = i == n - 1 };
		uint32_t class;

		if (r != NULL) {
			end_wait(a, r, 0);
			/* A block keeps the class of what brought it in. */
			r->began_known = r->uses == 0 ? (uint8_t)known : r->began_known;
			r->uses += r->uses < UINT8_MAX;
			traits.uses = r->uses;
			traits.known = r->began_known;
		}
		class = pfx_learn_class_of(&traits);
		a->blocks[blocks[i]].class = class;
		a->blocks[blocks[i]].awaited = 0;
		a->blocks[blocks[i]].tick = a->learn.tick;
		if (r != NULL) {
			r->class = (uint8_t)class;
			r->tick = a->learn.tick;
			r->waits = (uint8_t)pfx_past_use(&a->past, at);
		}
		if (r != NULL && r->waits) {
			pfx_learn_start(&a->learn, class);
		}
	}
	pfx_past_trim(&a->past);
}

static void adapt_awaited(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		evict->adapt->blocks[blocks[i]].awaited = evict->adapt->learn.tick + 1;
	}
}

static const char *adapt_check(const struct pfx_evict *evict, uint64_t unpinned, uint64_t leaves)
{
	const struct pfx_adapt *a = evict->adapt;
	const char *problem = pfx_past_check(&a->past);
	uint64_t n = 0;

	(void)unpinned;
	for (uint32_t c = 0; problem == NULL && c < PFX_LEARN_CLASSES; c++) {
		problem = pfx_evict_check_heap(evict, &a->heaps[c], &n);
		if (problem == NULL && (a->heaps[c].top != NULL) != (a->in_use[c / 64] >> c % 64 & 1)) {
			problem = "a heap of leaves is empty, or is not, and its bit says otherwise";
		}
	}
	for (uint32_t r = 0; problem == NULL && r < a->past.n_taken; r++) {
		pfx_block_t block = a->past.records[r].block;

		if (block != PFX_BLOCK_NONE && a->blocks[block].record != r) {
			problem = "a block and its record do not know each other";
		}
	}
	if (problem == NULL && n != leaves) {
		problem = "not all unpinned leaves wait for eviction";
	}
	return problem;
}

const struct pfx_policy_ops pfx_policy_adapt = {
	.name = "default",
	.open = adapt_open,
	.close = adapt_close,
	.add = adapt_add,
	.remove = adapt_remove,
	.cut = adapt_cut,
	.victim = adapt_victim,
	.trusts_ends = adapt_trusts_ends,
	.filled = adapt_filled,
	.hit = adapt_hit,
	.used = adapt_used,
	.awaited = adapt_awaited,
	.gone = adapt_gone,
	.check = adapt_check,
};
