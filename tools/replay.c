#include "tools/replay.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "tools/replay_priv.h"

/* Requests that a run takes at a time: enough for its memory to come into the caches. */
#define TURN 64u

/* ---- fifo ---- */

struct fifo {
	uint8_t *cached; /* by block */
	uint32_t *queue; /* blocks in the order in which they go; each reference brings in one at most */
	uint64_t head, tail;
};

static int fifo_open(struct pfx_run *run)
{
	const struct pfx_trace *t = run->trace;
	struct fifo *f = run->state = pfx_calloc(1, sizeof(*f));

	if (f == NULL) {
		return -ENOMEM;
	}
	f->cached = pfx_calloc((size_t)t->n_distinct + 1, 1);
	f->queue = pfx_reallocarray(NULL, pfx_trace_refs(t) + 1, sizeof(*f->queue));
	return f->cached == NULL || f->queue == NULL ? -ENOMEM : 0;
}

static int fifo_step(struct pfx_run *run, uint32_t i)
{
	const struct pfx_trace *t = run->trace;
	struct fifo *f = run->state;
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
	while (f->tail - f->head > run->opts.capacity) {
		f->cached[f->queue[f->head++]] = 0;
	}
	run->result.hits += hits;
	return 0;
}

static void fifo_close(struct pfx_run *run)
{
	struct fifo *f = run->state;

	if (f != NULL) {
		pfx_free(f->cached);
		pfx_free(f->queue);
		pfx_free(f);
	}
}

/* ---- Belady ---- */

/* A block that was referred to, and when it will be again. Stale once it was. */
struct use {
	uint32_t next, depth, block; /* next: a request's number, or NEVER */
};

#define NEVER UINT32_MAX

struct belady {
	uint32_t *when;  /* by block: the next use of the cached ones; ABSENT: not cached */
	struct use *heap;
	uint64_t n_heap, cap_heap;
	uint32_t n_cached;
};

#define ABSENT 0u /* no next use is request 0 */

uint32_t *pfx_replay_next(const struct pfx_trace *t)
{
	uint32_t *next = pfx_reallocarray(NULL, pfx_trace_refs(t) + 1, sizeof(*next));
	uint32_t *when = pfx_reallocarray(NULL, (size_t)t->n_distinct + 1, sizeof(*when));

	if (next == NULL || when == NULL) {
		pfx_free(next);
		pfx_free(when);
		return NULL;
	}
	memset(when, 0xff, t->n_distinct * sizeof(*when));
	for (uint32_t i = t->n_requests; i-- > 0;) {
		for (uint64_t at = t->first[i]; at < t->first[i + 1]; at++) {
			next[at] = when[t->blocks[at]];
			when[t->blocks[at]] = i;
		}
	}
	pfx_free(when);
	return next;
}

static int goes_before(const struct use *a, const struct use *b)
{
	return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

/* Puts u at place i or above. */
static void raise(struct belady *b, uint64_t i, struct use u)
{
	while (i > 0 && goes_before(&u, &b->heap[(i - 1) / 2])) {
		b->heap[i] = b->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	b->heap[i] = u;
}

/* Puts u at place i or below. */
static void lower(struct belady *b, uint64_t i, struct use u)
{
	uint64_t kid;

	while ((kid = 2 * i + 1) < b->n_heap) {
		kid += kid + 1 < b->n_heap && goes_before(&b->heap[kid + 1], &b->heap[kid]);
		if (!goes_before(&b->heap[kid], &u)) {
			break;
		}
		b->heap[i] = b->heap[kid];
		i = kid;
	}
	b->heap[i] = u;
}

static struct use pop(struct belady *b)
{
	struct use top = b->heap[0], last = b->heap[--b->n_heap];

	if (b->n_heap > 0) {
		lower(b, 0, last);
	}
	return top;
}

/* Throws out what is stale; after that at most half of the heap is in use. */
static void sift(struct belady *b)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < b->n_heap; i++) {
		if (b->when[b->heap[i].block] == b->heap[i].next) {
			b->heap[n++] = b->heap[i];
		}
	}
	b->n_heap = n;
	for (uint64_t i = n / 2; i-- > 0;) {
		lower(b, i, b->heap[i]);
	}
}

static int belady_open(struct pfx_run *run)
{
	const struct pfx_trace *t = run->trace;
	struct belady *b = run->state = pfx_calloc(1, sizeof(*b));
	uint64_t most = (uint64_t)run->opts.capacity + t->n_blocks_max;

	if (b == NULL) {
		return -ENOMEM;
	}
	most = most < t->n_distinct ? most : t->n_distinct;
	/* All that is cached, twice over, and one request. */
	b->cap_heap = 2 * most + t->n_blocks_max + 1;
	b->when = pfx_calloc((size_t)t->n_distinct + 1, sizeof(*b->when));
	b->heap = pfx_reallocarray(NULL, b->cap_heap, sizeof(*b->heap));
	return b->when == NULL || b->heap == NULL ? -ENOMEM : 0;
}

static int belady_step(struct pfx_run *run, uint32_t i)
{
	const struct pfx_trace *t = run->trace;
	struct belady *b = run->state;
	uint64_t from = t->first[i], to = t->first[i + 1], hits = 0;

	while (from + hits < to && b->when[t->blocks[from + hits]] != ABSENT) {
		hits++;
	}
	b->n_cached += (uint32_t)(to - from - hits);
	for (uint64_t at = from; at < to; at++) {
		b->when[t->blocks[at]] = run->next[at];
	}
	if (b->n_heap + (to - from) > b->cap_heap) {
		sift(b);
	}
	for (uint64_t at = from; at < to; at++) {
		raise(b, b->n_heap++,
			(struct use){ run->next[at], (uint32_t)(at - from), t->blocks[at] });
	}
	while (b->n_cached > run->opts.capacity) {
		struct use u = pop(b);

		if (b->when[u.block] == u.next) {
			b->when[u.block] = ABSENT;
			b->n_cached--;
		}
	}
	run->result.hits += hits;
	return 0;
}

static void belady_close(struct pfx_run *run)
{
	struct belady *b = run->state;

	if (b != NULL) {
		pfx_free(b->when);
		pfx_free(b->heap);
		pfx_free(b);
	}
}

/* ---- all kinds ---- */

static const struct pfx_run_ops all_ops[] = {
	[PFX_RUN_TREE] = { pfx_run_tree_open, pfx_run_tree_step, pfx_run_tree_close },
	[PFX_RUN_FIFO] = { fifo_open, fifo_step, fifo_close },
	[PFX_RUN_BELADY] = { belady_open, belady_step, belady_close },
};

int pfx_run_open(struct pfx_run **out, const struct pfx_trace *t, const uint32_t *next,
	const struct pfx_run_opts *opts)
{
	struct pfx_run *run = pfx_calloc(1, sizeof(*run));
	int rc;

	PFX_ASSERT(opts->kind != PFX_RUN_BELADY || next != NULL);
	if (run == NULL) {
		return -ENOMEM;
	}
	*run = (struct pfx_run){ .ops = &all_ops[opts->kind], .opts = *opts, .trace = t, .next = next };
	rc = run->ops->open(run);
	if (rc < 0) {
		pfx_run_close(run, NULL);
		return rc;
	}
	*out = run;
	return 0;
}

int pfx_run_step(struct pfx_run *run)
{
	PFX_ASSERT(run->at < run->trace->n_requests);
	return run->ops->step(run, run->at++);
}

void pfx_run_close(struct pfx_run *run, struct pfx_run_result *out)
{
	if (run == NULL) {
		return;
	}
	run->ops->close(run);
	if (out != NULL) {
		*out = run->result;
	}
	pfx_free(run);
}

static int step_all(struct pfx_run **runs, uint32_t n, uint32_t n_requests)
{
	for (uint32_t k = 0; k < n; k++) {
		for (uint32_t i = 0; i < n_requests; i++) {
			int rc = pfx_run_step(runs[k]);

			if (rc < 0) {
				return rc;
			}
		}
	}
	return 0;
}

int pfx_replay(const struct pfx_trace *t, const struct pfx_run_opts *opts, uint32_t n,
	struct pfx_run_result *results, pfx_replay_progress_fn progress, void *arg)
{
	struct pfx_run **runs = pfx_calloc((size_t)n + 1, sizeof(struct pfx_run *));
	uint32_t *next = pfx_replay_next(t);
	int rc = runs == NULL || next == NULL ? -ENOMEM : 0;

	for (uint32_t k = 0; rc == 0 && k < n; k++) {
		rc = pfx_run_open(&runs[k], t, next, &opts[k]);
	}
	for (uint32_t i = 0; rc == 0 && i < t->n_requests; i += TURN) {
		uint32_t turn = t->n_requests - i < TURN ? t->n_requests - i : TURN;

		rc = step_all(runs, n, turn);
		if (progress != NULL) {
			progress(arg, i + turn);
		}
	}
	for (uint32_t k = 0; runs != NULL && k < n; k++) {
		pfx_run_close(runs[k], &results[k]);
	}
	pfx_free(runs);
	pfx_free(next);
	return rc;
}
