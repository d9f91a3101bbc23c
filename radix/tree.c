#include <string.h>

#include "base/alloc.h"
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

static size_t run_bytes(const struct pfx_cache *cache, uint32_t cap)
{
	return (size_t)cap * (cache->block_tokens + 1) * sizeof(uint32_t);
}

void pfx_root_init(struct pfx_space *space, uint64_t epoch)
{
	space->root = (struct pfx_node){ .space = space, .marks = PFX_MARK_NONE };
	pfx_list_init(&space->root.order);
	pfx_root_renew(space, epoch);
}

void pfx_root_renew(struct pfx_space *space, uint64_t epoch)
{
	space->root.digest = pfx_rng_mix(space->hash, epoch);
}

struct pfx_node *pfx_node_new(struct pfx_cache *cache, struct pfx_node *parent, uint32_t cap)
{
	struct pfx_node *x = pfx_malloc(sizeof(*x));
	uint32_t *run = pfx_malloc(run_bytes(cache, cap));

	if (x == NULL || run == NULL) {
		pfx_free(x);
		pfx_free(run);
		return NULL;
	}
	*x = (struct pfx_node){
		.parent = parent,
		.space = parent->space,
		.run = run,
		.digest = parent->digest,
		.start = pfx_node_end(parent),
		.cap = cap,
		.prio = (uint32_t)pfx_rng_next(&cache->prio),
		.marks = PFX_MARK_NONE,
	};
	pfx_list_init(&x->order);
	cache->index_bytes += sizeof(*x) + run_bytes(cache, cap);
	return x;
}

/* Tokens first, then blocks: so the blocks move when the room for tokens changes. */
static int resize(struct pfx_cache *cache, struct pfx_node *x, uint32_t cap)
{
	size_t block_bytes = (size_t)pfx_node_n_blocks(x, cache->shift) * sizeof(pfx_block_t);
	uint32_t *run = x->run;
	uint32_t old = x->cap;

	if (cap < old) {
		memmove(run + ((size_t)cap << cache->shift), run + ((size_t)old << cache->shift),
			block_bytes);
	}
	run = pfx_realloc(run, run_bytes(cache, cap));
	if (run == NULL && cap > old) {
		return -1;
	}
	if (run != NULL) {
		x->run = run;
	}
	if (cap > old) {
		memmove(run + ((size_t)cap << cache->shift), run + ((size_t)old << cache->shift),
			block_bytes);
	}
	x->cap = cap;
	cache->index_bytes += run_bytes(cache, cap) - run_bytes(cache, old);
	return 0;
}

int pfx_node_grow(struct pfx_cache *cache, struct pfx_node *x, uint32_t cap_blocks)
{
	uint32_t cap = x->cap + x->cap / 2;

	if (cap_blocks <= x->cap) {
		return 0;
	}
	return resize(cache, x, cap > cap_blocks ? cap : cap_blocks);
}

void pfx_node_trim(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t need = pfx_node_n_blocks(x, cache->shift);

	if (x->cap > need && x->run != NULL) {
		resize(cache, x, need);
	}
}

/* Of all tokens up to the end of the first block of x, which is full. */
static uint64_t first_digest(const struct pfx_cache *cache, const struct pfx_node *x)
{
	return pfx_digest_step(x->parent->digest,
		pfx_ghosts_hash(&cache->ghosts, x->run, cache->block_tokens));
}

void pfx_node_append(struct pfx_cache *cache, struct pfx_node *x, const uint32_t *tokens,
	uint32_t n, const pfx_block_t *blocks)
{
	uint32_t B = cache->block_tokens;
	uint32_t old = pfx_node_n_blocks(x, cache->shift);
	uint32_t full = x->n >> cache->shift;
	uint32_t more = ((x->n + n + B - 1) >> cache->shift) - old;
	int jumps = full == 0 && x->n > 0 && x->state == PFX_NODE_LINKED;

	PFX_ASSERT(old + more <= x->cap);
	memcpy(x->run + x->n, tokens, (size_t)n * sizeof(*tokens));
	if (more > 0) {
		memcpy(pfx_node_blocks(x, cache->shift) + old, blocks, more * sizeof(*blocks));
	}
	x->n += n;
	for (; full < x->n >> cache->shift; full++) {
		x->digest = pfx_digest_step(x->digest,
			pfx_ghosts_hash(&cache->ghosts, x->run + ((size_t)full << cache->shift), B));
		if (cache->evict.ops->filled != NULL) {
			cache->evict.ops->filled(&cache->evict,
				pfx_node_blocks(x, cache->shift)[full], x->digest);
		}
	}
	if (jumps && x->n >= B) {
		pfx_jump_add(&cache->jump, x, first_digest(cache, x));
	}
}

void pfx_node_free(struct pfx_cache *cache, struct pfx_node *x)
{
	const pfx_block_t *blocks = pfx_node_blocks(x, cache->shift);
	uint32_t n = pfx_node_n_blocks(x, cache->shift);

	PFX_ASSERT(x->pins == 0);
	PFX_ASSERT(x->kids == NULL);
	PFX_ASSERT(x->writer == NULL);
	pfx_marks_cut(&cache->marks, x, 0);
	for (uint32_t i = n; i-- > 0;) {
		if (cache->evict.ops->gone != NULL) {
			cache->evict.ops->gone(&cache->evict, blocks[i]);
		}
		pfx_pool_release(&cache->pool, blocks[i]);
	}
	cache->index_bytes -= sizeof(*x) + run_bytes(cache, x->cap);
	pfx_free(x->run);
	pfx_free(x);
}

/* The child of x with the longest common prefix with q[0..n), n > 0, as pfx_kids_best. */
static struct pfx_node *child_for(const struct pfx_cache *cache, const struct pfx_node *x,
	const uint32_t *q, uint32_t n, uint32_t *common)
{
	uint32_t B = cache->block_tokens;
	const struct pfx_node *top = x->kids;

	/* With one child or three the treap is as fast. */
	if (n >= B && top != NULL && top->left != NULL && top->right != NULL) {
		struct pfx_node *kid = pfx_jump_find(&cache->jump, x,
			pfx_digest_step(x->digest, pfx_ghosts_hash(&cache->ghosts, q, B)));

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
		uint32_t common;

		if (at.pos < end && at.pos < n) {
			at.pos += pfx_common(at.node->run + (at.pos - at.node->start),
				tokens + at.pos, (end < n ? end : n) - at.pos);
		}
		if (at.pos < end || at.pos == n) {
			return at;
		}
		kid = child_for(cache, at.node, tokens + at.pos, n - at.pos, &common);
		if (kid == NULL) {
			return at;
		}
		at.node = kid;
		at.pos += common;
	}
}

uint64_t pfx_tree_digest(const struct pfx_cache *cache, const struct pfx_node *x, uint32_t at)
{
	uint32_t B = cache->block_tokens;
	uint32_t full = x->start + (x->n >> cache->shift << cache->shift);
	uint64_t digest = x->digest;

	if (at == full) {
		return digest;
	}
	if (at - x->start < full - at) {
		digest = x->parent->digest;
		for (uint32_t p = x->start; p < at; p += B) {
			digest = pfx_digest_step(digest,
				pfx_ghosts_hash(&cache->ghosts, x->run + (p - x->start), B));
		}
		return digest;
	}
	for (uint32_t p = full; p > at; p -= B) {
		digest = pfx_digest_back(digest,
			pfx_ghosts_hash(&cache->ghosts, x->run + (p - B - x->start), B));
	}
	return digest;
}

/* Into its parent's children, and out of them. */
static void enter(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_kids_insert(x->parent, x, cache->block_tokens);
	if (x->n >= cache->block_tokens) {
		pfx_jump_add(&cache->jump, x, first_digest(cache, x));
	}
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
	uint32_t first = from << cache->shift;
	uint32_t end = (from + n_blocks) << cache->shift;

	memmove(run, x->run + first, ((end < x->n ? end : x->n) - first) * sizeof(*run));
	memmove(run + ((size_t)cap << cache->shift), pfx_node_blocks(x, cache->shift) + from,
		n_blocks * sizeof(pfx_block_t));
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

struct pfx_node *pfx_tree_split(struct pfx_cache *cache, struct pfx_node *x, uint32_t at)
{
	uint32_t head = (at - x->start) >> cache->shift;
	uint32_t tail = pfx_node_n_blocks(x, cache->shift) - head;
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
	up->age = x->age;
	pfx_marks_hand_over(&cache->marks, x, at, up);
	pfx_jump_remove(&cache->jump, x);
	divide_run(cache, x, up, head);
	pfx_kids_replace(x->parent, x, up);
	pfx_jump_add(&cache->jump, up, first_digest(cache, up));
	x->parent = up;
	enter(cache, x);
	pfx_node_trim(cache, up);
	if (x->writer == NULL) {
		pfx_node_trim(cache, x);
	}
	up->pins = x->pins > 0;
	if (x->pins == 0 && cache->evict.ops->add_above != NULL) {
		cache->evict.ops->add_above(&cache->evict, up, x);
	}
	cache->nodes++;
	cache->splits++;
	return up;
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
	struct pfx_node *parent = x->parent;

	PFX_ASSERT(x->state == PFX_NODE_LINKED);
	if (x->marks != PFX_MARK_NONE && next != NULL) {
		pfx_marks_hand_over(&cache->marks, x, same_until(cache, x, next), next);
	}
	leave(cache, x);
	cache->nodes--;
	cache->tokens -= x->n;
	if (x->pins > 0) {
		cache->pinned_blocks -= pfx_node_n_blocks(x, cache->shift);
	} else {
		cache->evict.ops->remove(&cache->evict, x);
	}
	if (parent->n > 0 && parent->kids == NULL && parent->pins == 0 &&
		cache->evict.ops->cut != NULL) {
		cache->evict.ops->cut(&cache->evict, parent);
	}
}

void pfx_node_loosen(struct pfx_cache *cache, struct pfx_node *x, enum pfx_node_state state)
{
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);

	PFX_ASSERT(x->pins > 0);
	x->state = state;
	pfx_list_push_back(&cache->loose, &x->order);
	cache->loose_blocks += n_blocks;
	x->space->loose_blocks += n_blocks;
}

void pfx_node_tighten(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);

	pfx_list_remove(&x->order);
	cache->loose_blocks -= n_blocks;
	x->space->loose_blocks -= n_blocks;
	x->state = PFX_NODE_LINKED;
}

/* The next sibling begins with all tokens of x, a leaf with one block filled in part. */
static void make_redundant(struct pfx_cache *cache, struct pfx_node *x)
{
	PFX_ASSERT(x->kids == NULL);
	PFX_ASSERT(x->n < cache->block_tokens);
	pfx_tree_unlink(cache, x);
	if (x->pins == 0) {
		pfx_node_free(cache, x);
		return;
	}
	PFX_ASSERT(x->marks == PFX_MARK_NONE);
	pfx_node_loosen(cache, x, PFX_NODE_LOOSE);
}

void pfx_tree_link(struct pfx_cache *cache, struct pfx_node *x)
{
	uint32_t first = x->n < cache->block_tokens ? x->n : cache->block_tokens;
	uint32_t common;
	struct pfx_node *near = pfx_kids_best(x->parent, x->run, first, cache->block_tokens, &common);
	struct pfx_node *next;

	PFX_ASSERT(x->state != PFX_NODE_FLUSHED);
	if (near != NULL && common == first) {
		PFX_ASSERT(x->state == PFX_NODE_LOOSE);
		return;
	}
	if (x->state == PFX_NODE_LOOSE) {
		pfx_node_tighten(cache, x);
	}
	enter(cache, x);
	next = pfx_kids_next(x);
	if (next != NULL && next->marks != PFX_MARK_NONE) {
		pfx_marks_hand_over(&cache->marks, next, same_until(cache, x, next), x);
	}
	cache->nodes++;
	cache->tokens += x->n;
	if (x->pins > 0) {
		cache->pinned_blocks += pfx_node_n_blocks(x, cache->shift);
	}
	if (near != NULL && common == near->n) {
		make_redundant(cache, near);
	}
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

/* Is x all that p leads to, so that the two can be one node? */
static int joins(const struct pfx_node *p, const struct pfx_node *x)
{
	return p->n > 0 && p->pins == 0 && p->kids == x && x->left == NULL && x->right == NULL;
}

/* Puts the runs of x and of the nodes above it up to top into run, which has room. */
static void gather(struct pfx_cache *cache, struct pfx_node *x, const struct pfx_node *top,
	uint32_t *run, uint32_t cap)
{
	for (const struct pfx_node *p = x;; p = p->parent) {
		memcpy(run + (p->start - top->start), p->run, (size_t)p->n * sizeof(*run));
		memcpy(run + ((size_t)cap << cache->shift) +
				((p->start - top->start) >> cache->shift),
			pfx_node_blocks(p, cache->shift),
			pfx_node_n_blocks(p, cache->shift) * sizeof(pfx_block_t));
		if (p == top) {
			return;
		}
	}
}

/* x swallows the nodes above it up to top; it is x that stays, for its children's sake. */
static void swallow(struct pfx_cache *cache, struct pfx_node *x, struct pfx_node *top)
{
	uint32_t n = pfx_node_end(x) - top->start;
	uint32_t cap = (n + cache->block_tokens - 1) >> cache->shift;
	uint32_t *run = pfx_malloc(run_bytes(cache, cap));
	struct pfx_node *p, *above = top->parent;

	if (run == NULL) {
		return; /* two nodes serve as well as one */
	}
	gather(cache, x, top, run, cap);
	leave(cache, x);
	leave(cache, top);
	for (p = x->parent; p != above;) {
		struct pfx_node *next = p->parent;

		PFX_ASSERT(p->age == x->age);
		if (p != top) {
			leave(cache, p);
		}
		pfx_marks_hand_over(&cache->marks, p, pfx_node_end(p), x);
		cache->evict.ops->remove(&cache->evict, p);
		cache->index_bytes -= sizeof(*p) + run_bytes(cache, p->cap);
		cache->nodes--;
		x->start = p->start;
		pfx_free(p->run);
		pfx_free(p);
		p = next;
	}
	cache->index_bytes += run_bytes(cache, cap) - run_bytes(cache, x->cap);
	pfx_free(x->run);
	x->run = run;
	x->n = n;
	x->cap = cap;
	x->parent = above;
	enter(cache, x);
}

void pfx_tree_merge_up(struct pfx_cache *cache, struct pfx_node *x)
{
	while (x->n > 0 && x->pins == 0) {
		struct pfx_node *top = x;

		while (joins(top->parent, top)) {
			top = top->parent;
		}
		if (top != x) {
			swallow(cache, x, top);
		}
		x = x->parent;
	}
}
