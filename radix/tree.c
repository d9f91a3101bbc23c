#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "radix/kids.h"
#include "radix/priv.h"

/*
 * memcmp runs at the speed of memory but does not say where; so it goes ahead by pages, and
 * halves the page in which it failed. A processor fetches ahead inside a page only: the
 * first lines of the pages to come are asked for by hand, which in a tree that is out of the
 * caches hides most of the waiting for their addresses.
 */
#define PAGE 1024u      /* tokens in 4 KB */
#define PAGES_AHEAD 8u

uint32_t pfx_common(const uint32_t *a, const uint32_t *b, uint32_t n)
{
	uint32_t i = 0, size = 0;

	for (uint32_t p = PAGE; p < n && p <= PAGES_AHEAD * PAGE; p += PAGE) {
		__builtin_prefetch(a + p);
	}
	while (i < n) {
		size = n - i < PAGE ? n - i : PAGE;
		if (n - i > (PAGES_AHEAD + 1) * PAGE) {
			__builtin_prefetch(a + i + (PAGES_AHEAD + 1) * PAGE);
		}
		if (memcmp(a + i, b + i, size * sizeof(*a)) != 0) {
			break;
		}
		i += size;
	}
	if (i == n) {
		return n;
	}
	while (size > 16) {
		uint32_t half = size / 2;

		if (memcmp(a + i, b + i, half * sizeof(*a)) == 0) {
			i += half;
			size -= half;
		} else {
			size = half;
		}
	}
	while (a[i] == b[i]) {
		i++;
	}
	return i;
}

/*
 * The way to the child of x that begins with q[0..n): the digest with its first block, or 0. Asked
 * for before x itself is compared, so that the bucket comes in the meantime.
 */
static uint64_t way_to(const struct pfx_cache *cache, const struct pfx_node *x, const uint32_t *q,
	uint32_t n)
{
	uint64_t digest;

	/* With one child or two the treap is as fast. */
	if (n < cache->block_tokens || x->n_kids <= 2) {
		return 0;
	}
	digest = pfx_digest_step(x->digest,
		pfx_ghosts_hash(&cache->ghosts, q, cache->block_tokens));
	pfx_jump_prefetch(&cache->jump, digest);
	return digest;
}

/* The child of x with the longest common prefix with q[0..n), n > 0, as pfx_kids_best. */
static struct pfx_node *child_for(const struct pfx_cache *cache, const struct pfx_node *x,
	uint64_t way, const uint32_t *q, uint32_t n, uint32_t *common)
{
	uint32_t B = cache->block_tokens;

	if (way != 0) {
		struct pfx_node *kid = pfx_jump_find(&cache->jump, x, way);

		if (kid != NULL && pfx_common(kid->run, q, B) == B) {
			*common = B;
			return kid;
		}
	}
	return pfx_kids_best(x, q, n, B, common);
}

struct pfx_place pfx_tree_walk(const struct pfx_cache *cache, struct pfx_place at,
	const uint32_t *tokens, uint32_t n)
{
	for (;;) {
		struct pfx_node *kid;
		uint32_t end = pfx_node_end(at.node);
		uint64_t way = end < n ? way_to(cache, at.node, tokens + end, n - end) : 0;
		uint32_t common;

		if (at.pos < end && at.pos < n) {
			at.pos += pfx_common(at.node->run + (at.pos - at.node->start),
				tokens + at.pos, (end < n ? end : n) - at.pos);
		}
		if (at.pos < end || at.pos == n) {
			return at;
		}
		kid = child_for(cache, at.node, way, tokens + at.pos, n - at.pos, &common);
		if (kid == NULL) {
			return at;
		}
		at.node = kid;
		at.pos += common;
	}
}

struct pfx_node *pfx_tree_skip(const struct pfx_node *x)
{
	for (; x->parent != NULL; x = x->parent) {
		struct pfx_node *next = pfx_kids_next(x);

		if (next != NULL) {
			return next;
		}
	}
	return NULL;
}

struct pfx_node *pfx_tree_next(const struct pfx_node *x)
{
	struct pfx_node *kid = pfx_kids_first(x);

	return kid != NULL ? kid : pfx_tree_skip(x);
}

/* Into its parent's children, at a place found for it or not, and out of them. */
static void enter_at(struct pfx_cache *cache, struct pfx_node *x, const struct pfx_kids_place *at)
{
	pfx_kids_put(x->parent, x, at);
	if (x->n >= cache->block_tokens) {
		pfx_jump_add(&cache->jump, x, pfx_first_digest(cache, x));
	}
}

static void enter(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_kids_place at;

	pfx_kids_find(x->parent, x->run, x->n, cache->block_tokens, &at);
	enter_at(cache, x, &at);
}

static void leave(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_kids_remove(x->parent, x);
	if (x->n >= cache->block_tokens) {
		pfx_jump_remove(&cache->jump, x);
	}
}

/* Puts n_blocks blocks from block `from` on of x's run, with their tokens, into run. */
static void copy_run(const struct pfx_cache *cache, const struct pfx_node *x, uint32_t from,
	uint32_t n_blocks, uint32_t *run, uint32_t cap)
{
	const uint32_t *blocks = pfx_node_blocks(x, cache->shift), *records = blocks + x->cap;
	uint32_t *to = run + ((size_t)cap << cache->shift);
	uint32_t first = from << cache->shift;
	uint32_t end = (from + n_blocks) << cache->shift;

	memmove(run, x->run + first, ((end < x->n ? end : x->n) - first) * sizeof(*run));
	memmove(to, blocks + from, n_blocks * sizeof(*to));
	if (cache->slots > 1) {
		memmove(to + cap, records + from, n_blocks * sizeof(*to));
	}
}

/*
 * The first head_blocks of x's run go to up, the rest stays. The smaller of the two parts is
 * copied out, into the run that up has brought along with room for cap blocks.
 */
static void divide_run(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *up,
	uint32_t head_blocks)
{
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);
	uint32_t *run = up->run;
	uint32_t cap = up->cap;

	if (cap == head_blocks) {
		copy_run(cache, x, 0, head_blocks, run, cap);
		copy_run(cache, x, head_blocks, n_blocks - head_blocks, x->run, x->cap);
	} else {
		copy_run(cache, x, head_blocks, n_blocks - head_blocks, run, cap);
		up->run = x->run;
		up->cap = x->cap;
		x->run = run;
		x->cap = cap;
	}
	up->n = head_blocks << cache->shift;
	x->n -= up->n;
	x->start += up->n;
}

/* Of an amount that lies at the beginning of x: how much of it is in the first part. */
static uint32_t share(uint32_t *amount, uint32_t part)
{
	uint32_t head = *amount < part ? *amount : part;

	*amount -= head;
	return head;
}

/* What up has of all that was x's, whose run has been divided. */
static void divide_rest(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *up,
	uint32_t head)
{
	up->n_dev = share(&x->n_dev, head);
	up->n_mem = share(&x->n_mem, head);
	up->saved = share(&x->saved, up->n);
	up->worthy = share(&x->worthy, up->n);
	up->age = x->age;
	up->keep_until = x->keep_until;
	up->used_ns = x->used_ns;
	up->hits = x->hits;
	up->ended = x->ended;
	up->conv = x->conv;
	up->conv_end = x->conv_end;
	up->pins = x->pins > 0;
	up->leases = x->leases > 0;
	for (int t = 0; t < PFX_TIERS; t++) {
		up->kids_in[t] = (uint32_t)pfx_node_counts(x, t);
	}
	pfx_save_split(cache, up, x, head);
}

struct pfx_node *pfx_tree_split(struct pfx_cache *cache, struct pfx_node *x, uint32_t at)
{
	uint32_t head = (at - x->start) >> cache->shift;
	uint32_t tail = pfx_node_n_blocks(x, cache->shift) - head;
	unsigned had = pfx_order_has(cache, x);
	struct pfx_node *up;

	PFX_ASSERT(x->state == PFX_NODE_LINKED);
	PFX_ASSERT(at > x->start);
	PFX_ASSERT(at < pfx_node_end(x));
	PFX_ASSERT((at & (cache->block_tokens - 1)) == 0);
	up = pfx_node_new(cache, x->parent, head < tail ? head : tail);
	if (up == NULL) {
		return NULL;
	}
	up->digest = pfx_tree_digest(cache, x, at);
	pfx_marks_hand_over(&cache->marks, x, at, up);
	pfx_jump_remove(&cache->jump, x);
	divide_run(cache, x, up, head);
	divide_rest(cache, x, up, head);
	pfx_kids_replace(x->parent, x, up);
	pfx_jump_add(&cache->jump, up, pfx_first_digest(cache, up));
	x->parent = up;
	enter(cache, x);
	pfx_node_trim(cache, up);
	if (x->writer == NULL) {
		pfx_node_trim(cache, x);
	}
	pfx_order_split(cache, up, x, had);
	cache->nodes++;
	cache->splits++;
	return up;
}

struct pfx_node *pfx_tree_settle(struct pfx_cache *cache, struct pfx_place at)
{
	uint32_t B = cache->block_tokens;
	uint32_t end = (uint32_t)(((uint64_t)at.pos + B - 1) & ~(uint64_t)(B - 1));

	return end < pfx_node_end(at.node) ? pfx_tree_split(cache, at.node, end) : at.node;
}

/* Up to which position x and a sibling have the same tokens, as far as their first block. */
static uint32_t same_until(const struct pfx_cache *cache, const struct pfx_node *x,
	const struct pfx_node *y)
{
	uint32_t n = x->n < y->n ? x->n : y->n;

	return x->start + pfx_common(x->run, y->run, n < cache->block_tokens ? n : cache->block_tokens);
}

void pfx_tree_unlink(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_node *next = pfx_kids_next(x);

	PFX_ASSERT(x->state == PFX_NODE_LINKED);
	if (x->marks != PFX_MARK_NONE && next != NULL) {
		pfx_marks_hand_over(&cache->marks, x, same_until(cache, x, next), next);
	}
	leave(cache, x);
	cache->nodes--;
	cache->tokens -= x->n;
	if (pfx_node_held(x)) {
		pfx_tally(cache, x, -1);
	} else {
		pfx_order_remove(cache, x);
	}
	pfx_node_count(cache, x, -1);
	pfx_save_forget(cache, x);
}

void pfx_node_loosen(struct pfx_cache *cache, struct pfx_node *x, enum pfx_node_state state)
{
	PFX_ASSERT(pfx_node_held(x));
	pfx_save_orphan(cache, x, 0);
	for (uint32_t i = pfx_node_n_records(x, cache->shift); i-- > 0;) {
		pfx_record_release(cache, pfx_node_records(x, cache->shift)[i]);
	}
	x->saved = x->worthy = 0;
	x->state = (uint8_t)state;
	pfx_list_push_back(&cache->loose, &x->order[0].link);
	x->space->n_loose++;
	pfx_tally(cache, x, 1);
}

void pfx_node_tighten(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_list_remove(&x->order[0].link);
	x->space->n_loose--;
	pfx_tally(cache, x, -1);
	x->state = PFX_NODE_LINKED;
}

/* y begins with all tokens of x, a block in part, and may keep x's record for its own. */
static void hand_record(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *y)
{
	uint32_t saved = x->saved;

	if (saved == 0 || y->saved > 0) {
		return;
	}
	pfx_node_records(y, cache->shift)[0] = pfx_node_records(x, cache->shift)[0];
	pfx_node_set(cache, x, x->n_dev, x->n_mem, 0);
	pfx_node_set(cache, y, y->n_dev, y->n_mem, saved);
	y->worthy = y->worthy > saved ? y->worthy : saved;
}

/* The same of an x that is not linked any more, and will be freed. */
static void hand_record_out(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *y)
{
	if (x->saved > 0 && y->saved == 0) {
		uint32_t saved = x->saved;

		pfx_node_records(y, cache->shift)[0] = pfx_node_records(x, cache->shift)[0];
		x->saved = 0;
		pfx_node_set(cache, y, y->n_dev, y->n_mem, saved);
		y->worthy = y->worthy > saved ? y->worthy : saved;
	}
}

/* y, linked, begins with all tokens of x, a leaf with one block filled in part. */
static void make_redundant(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *y)
{
	PFX_ASSERT(x->kids == NULL);
	PFX_ASSERT(x->n < cache->block_tokens);
	hand_record(cache, x, y);
	pfx_tree_unlink(cache, x);
	if (!pfx_node_held(x)) {
		pfx_node_free(cache, x);
		return;
	}
	PFX_ASSERT(x->marks == PFX_MARK_NONE);
	pfx_node_loosen(cache, x, PFX_NODE_LOOSE);
}

int pfx_tree_link(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t first = x->n < cache->block_tokens ? x->n : cache->block_tokens;
	struct pfx_kids_place at;

	PFX_ASSERT(x->state != PFX_NODE_FLUSHED);
	/* Beginnings come first: x's stands right before it, and what x begins right behind. */
	pfx_kids_find(x->parent, x->run, x->n, cache->block_tokens, &at);
	if (at.after != NULL && at.in_after == first) {
		return 0;
	}
	if (x->state == PFX_NODE_LOOSE) {
		pfx_node_tighten(cache, x);
	}
	enter_at(cache, x, &at);
	if (at.after != NULL && at.after->marks != PFX_MARK_NONE) {
		pfx_marks_hand_over(&cache->marks, at.after, x->start + at.in_after, x);
	}
	cache->nodes++;
	cache->tokens += x->n;
	pfx_node_count(cache, x, 1);
	if (pfx_node_held(x)) {
		pfx_tally(cache, x, 1);
	}
	if (at.before != NULL && at.in_before == at.before->n) {
		make_redundant(cache, at.before, x);
	}
	return 1;
}

int pfx_tree_shorten(struct pfx_cache *cache, struct pfx_node *x, uint32_t n)
{
	uint32_t keep = n & ~(cache->block_tokens - 1);
	struct pfx_node *near;
	uint32_t common;

	PFX_ASSERT(x->kids == NULL);
	PFX_ASSERT(x->n_mem <= keep >> cache->shift);
	if (keep > 0) {
		pfx_marks_cut(&cache->marks, x, x->start + n);
		x->digest = pfx_tree_digest(cache, x, x->start + keep);
		cache->tokens -= x->n - n;
		x->n = n;
		x->worthy = x->worthy < n ? x->worthy : n;
		pfx_order_cut(cache, x);
		return 0;
	}
	/* Its place among the siblings may be another now, or none. */
	pfx_tree_unlink(cache, x);
	pfx_marks_cut(&cache->marks, x, x->start + n);
	x->digest = x->parent->digest;
	x->n = n;
	x->worthy = x->worthy < n ? x->worthy : n;
	if (pfx_node_held(x->parent)) {
		/* Who had a beginning of what x was may have as much as x now, in memory. */
		pfx_relink_below(cache, x->parent);
	}
	if (pfx_tree_link(cache, x)) {
		pfx_order_add(cache, x);
		return 0;
	}
	near = pfx_kids_best(x->parent, x->run, n, cache->block_tokens, &common);
	hand_record_out(cache, x, near);
	pfx_node_free(cache, x);
	return 1;
}

struct pfx_node *pfx_tree_mark_owner(const struct pfx_cache *cache, struct pfx_node *x,
	uint32_t pos)
{
	uint32_t n = pos - x->start;

	if (x->state == PFX_NODE_LINKED && n >= cache->block_tokens) {
		return x;
	}
	x = pfx_kids_best(x->parent, x->run, n, cache->block_tokens, &n);
	PFX_ASSERT(n == pos - x->start);
	return x;
}

/* Is x all that p leads to, and like it in all that a node says as a whole? */
static int joins(const struct pfx_cache *cache, const struct pfx_node *p, const struct pfx_node *x)
{
	return p->n > 0 && !pfx_node_held(p) && p->kids == x && x->left == NULL && x->right == NULL &&
		p->class == x->class && p->keep_until == x->keep_until && p->ended == x->ended &&
		p->conv == x->conv && p->age == x->age &&
		(p->worthy == p->n || x->worthy == 0) &&
		(pfx_order_has(cache, p) & ~pfx_order_has(cache, x)) == 0;
}

/* Puts the runs of x and of the nodes above it up to top into run, which has room. */
static void gather(struct pfx_cache *cache, struct pfx_node *x, const struct pfx_node *top,
	uint32_t *run, uint32_t cap)
{
	uint32_t *blocks = run + ((size_t)cap << cache->shift);

	for (const struct pfx_node *p = x;; p = p->parent) {
		uint32_t at = (p->start - top->start) >> cache->shift;
		uint32_t n = pfx_node_n_blocks(p, cache->shift);

		memcpy(run + (p->start - top->start), p->run, (size_t)p->n * sizeof(*run));
		memcpy(blocks + at, pfx_node_blocks(p, cache->shift), n * sizeof(*run));
		if (cache->slots > 1) {
			memcpy(blocks + cap + at, pfx_node_records(p, cache->shift), n * sizeof(*run));
		}
		if (p == top) {
			return;
		}
	}
}

/* All but the run of p, which is above x, becomes x's. */
static void absorb(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *p)
{
	pfx_marks_hand_over(&cache->marks, p, pfx_node_end(p), x);
	pfx_order_remove(cache, p);
	pfx_save_merge(cache, p, x, (x->start - p->start) >> cache->shift);
	x->n_dev += p->n_dev;
	x->n_mem += p->n_mem;
	x->saved += p->saved;
	x->worthy += p->worthy;
	x->hits = x->hits > p->hits ? x->hits : p->hits;
	x->start = p->start;
	cache->nodes--;
	pfx_node_give_back(cache, p);
}

/* x swallows the nodes above it up to top; it is x that stays, for its children's sake. */
static void swallow(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *top)
{
	uint32_t n = pfx_node_end(x) - top->start;
	uint32_t cap = (n + cache->block_tokens - 1) >> cache->shift;
	uint32_t *run = pfx_arena_alloc(&cache->arena, pfx_run_bytes(cache, cap));
	struct pfx_node *p, *above = top->parent;

	if (run == NULL) {
		return; /* two nodes serve as well as one */
	}
	gather(cache, x, top, run, cap);
	leave(cache, x);
	leave(cache, top);
	for (p = x->parent; p != above;) {
		struct pfx_node *next = p->parent;

		if (p != top) {
			leave(cache, p);
		}
		absorb(cache, x, p);
		p = next;
	}
	cache->index_bytes += pfx_run_bytes(cache, cap) - pfx_run_bytes(cache, x->cap);
	pfx_arena_free(&cache->arena, x->run, pfx_run_bytes(cache, x->cap));
	x->run = run;
	x->n = n;
	x->cap = cap;
	x->parent = above;
	enter(cache, x);
}

void pfx_tree_merge_up(struct pfx_cache *cache, struct pfx_node *x)
{
	while (x->n > 0 && !pfx_node_held(x)) {
		struct pfx_node *top = x;

		while (joins(cache, top->parent, top)) {
			top = top->parent;
		}
		if (top != x) {
			swallow(cache, x, top);
			pfx_save_check(cache, x);
		}
		x = x->parent;
	}
}
