#include "tools/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define PROGRESS_EVERY 64u /* requests */

static void progress(const struct pfx_replay *r, uint32_t done)
{
	if (r->progress != NULL && done % PROGRESS_EVERY == 0) {
		r->progress(r->arg, done);
	}
}

uint64_t pfx_replay_ceiling(const struct pfx_trace *t)
{
	return pfx_trace_refs(t) - t->n_distinct;
}

/* ---- the real tree ---- */

static int run_request(struct pfx_cache *cache, struct pfx_space *space, const struct pfx_trace *t,
	uint32_t i, uint64_t *hits)
{
	const uint32_t *tokens = t->blocks + t->first[i];
	uint32_t n = (uint32_t)(t->first[i + 1] - t->first[i]);
	struct pfx_block_copy copy;
	struct pfx_path *path;
	struct pfx_hit hit;
	int rc = pfx_path_open(cache, space, tokens, n, &hit, &path);

	if (rc < 0) {
		return rc;
	}
	*hits += hit.tokens;
	rc = pfx_path_reserve(path, n, &copy);
	if (rc == 0) {
		rc = pfx_path_publish(path, tokens, n);
	}
	pfx_path_reply(path, t->reply[i]);
	pfx_path_close(path);
	return rc;
}

int pfx_replay_cache(const struct pfx_trace *t, enum pfx_policy policy, uint32_t capacity,
	const struct pfx_replay *r, uint64_t *hits)
{
	struct pfx_cache_opts opts = { .block_tokens = 1, .policy = policy };
	struct pfx_space *space = NULL;
	struct pfx_cache *cache;
	uint64_t pool = (uint64_t)capacity + t->n_blocks_max;
	int rc;

	/* With more room than there are blocks nothing changes any more. */
	pool = pool < t->n_distinct ? pool : t->n_distinct;
	opts.n_blocks = pool > 0 ? (uint32_t)pool : 1;
	*hits = 0;
	rc = pfx_cache_open(&cache, &opts);
	if (rc < 0) {
		return rc;
	}
	rc = pfx_cache_space(cache, "", 0, &space);
	for (uint32_t i = 0; rc == 0 && i < t->n_requests; i++) {
		rc = run_request(cache, space, t, i, hits);
		pfx_cache_press(cache, capacity);
		if (rc == 0 && r->check && i % PROGRESS_EVERY == 0 &&
			pfx_cache_check(cache, NULL, NULL) != 0) {
			rc = PFX_E_FORMAT;
		}
		progress(r, i);
	}
	pfx_space_release(space);
	pfx_cache_close(cache);
	return rc;
}

/* ---- fifo ---- */

struct fifo {
	uint8_t *cached;  /* by block */
	uint32_t *queue;  /* blocks in the order in which they go; each reference brings in one at most */
	uint64_t head, tail;
};

static uint64_t fifo_request(const struct pfx_trace *t, struct fifo *f, uint32_t i,
	uint32_t capacity)
{
	uint64_t from = t->first[i], to = t->first[i + 1], hits = 0;

	while (from + hits < to && f->cached[t->blocks[from + hits]]) {
		hits++;
	}
	/* Those of one request go deepest first. */
	for (uint64_t at = to; at-- > from + hits;) {
		if (!f->cached[t->blocks[at]]) {
			f->cached[t->blocks[at]] = 1;
			f->queue[f->tail++] = t->blocks[at];
		}
	}
	while (f->tail - f->head > capacity) {
		f->cached[f->queue[f->head++]] = 0;
	}
	return hits;
}

int pfx_replay_fifo(const struct pfx_trace *t, uint32_t capacity, const struct pfx_replay *r,
	uint64_t *hits)
{
	struct fifo f = {
		.cached = pfx_calloc(t->n_distinct, 1),
		.queue = pfx_reallocarray(NULL, pfx_trace_refs(t), sizeof(*f.queue)),
	};
	int rc = f.cached == NULL || f.queue == NULL ? -ENOMEM : 0;

	*hits = 0;
	for (uint32_t i = 0; rc == 0 && i < t->n_requests; i++) {
		*hits += fifo_request(t, &f, i, capacity);
		progress(r, i);
	}
	pfx_free(f.cached);
	pfx_free(f.queue);
	return rc;
}

/* ---- Belady ---- */

/* A block that was referred to, and when it will be again. Stale once it was. */
struct use {
	uint32_t next, depth, block; /* next: a request's number, or NEVER */
};

#define NEVER UINT32_MAX

struct belady {
	uint32_t *next;  /* by reference: the request that refers to that block next */
	uint32_t *when;  /* by block: the next use of the cached ones; ABSENT: not cached */
	struct use *heap;
	uint64_t n_heap;
	uint32_t n_cached;
};

#define ABSENT 0u /* no next use is request 0 */

static int goes_before(const struct use *a, const struct use *b)
{
	return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static void push(struct belady *b, struct use u)
{
	uint64_t i = b->n_heap++;

	while (i > 0 && goes_before(&u, &b->heap[(i - 1) / 2])) {
		b->heap[i] = b->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	b->heap[i] = u;
}

static struct use pop(struct belady *b)
{
	struct use top = b->heap[0], u = b->heap[--b->n_heap];
	uint64_t i = 0, kid;

	while ((kid = 2 * i + 1) < b->n_heap) {
		kid += kid + 1 < b->n_heap && goes_before(&b->heap[kid + 1], &b->heap[kid]);
		if (!goes_before(&b->heap[kid], &u)) {
			break;
		}
		b->heap[i] = b->heap[kid];
		i = kid;
	}
	b->heap[i] = u;
	return top;
}

static void look_ahead(const struct pfx_trace *t, struct belady *b)
{
	memset(b->when, 0xff, t->n_distinct * sizeof(*b->when));
	for (uint32_t i = t->n_requests; i-- > 0;) {
		for (uint64_t at = t->first[i]; at < t->first[i + 1]; at++) {
			b->next[at] = b->when[t->blocks[at]];
			b->when[t->blocks[at]] = i;
		}
	}
	memset(b->when, 0, t->n_distinct * sizeof(*b->when));
}

static uint64_t belady_request(const struct pfx_trace *t, struct belady *b, uint32_t i,
	uint32_t capacity)
{
	uint64_t from = t->first[i], to = t->first[i + 1], hits = 0;

	while (from + hits < to && b->when[t->blocks[from + hits]] != ABSENT) {
		hits++;
	}
	b->n_cached += (uint32_t)(to - from - hits);
	for (uint64_t at = from; at < to; at++) {
		b->when[t->blocks[at]] = b->next[at];
		push(b, (struct use){ b->next[at], (uint32_t)(at - from), t->blocks[at] });
	}
	while (b->n_cached > capacity) {
		struct use u = pop(b);

		if (b->when[u.block] == u.next) {
			b->when[u.block] = ABSENT;
			b->n_cached--;
		}
	}
	return hits;
}

int pfx_replay_belady(const struct pfx_trace *t, uint32_t capacity, const struct pfx_replay *r,
	uint64_t *hits)
{
	uint64_t refs = pfx_trace_refs(t);
	struct belady b = {
		.next = pfx_reallocarray(NULL, refs, sizeof(*b.next)),
		.when = pfx_reallocarray(NULL, t->n_distinct, sizeof(*b.when)),
		.heap = pfx_reallocarray(NULL, refs, sizeof(*b.heap)),
	};
	int rc = b.next == NULL || b.when == NULL || b.heap == NULL ? -ENOMEM : 0;

	*hits = 0;
	if (rc == 0) {
		look_ahead(t, &b);
		for (uint32_t i = 0; i < t->n_requests; i++) {
			*hits += belady_request(t, &b, i, capacity);
			progress(r, i);
		}
	}
	pfx_free(b.next);
	pfx_free(b.when);
	pfx_free(b.heap);
	return rc;
}
