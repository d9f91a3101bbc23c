#include "engine/hot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* So many requests halve the weight of what was counted before: the table follows the traffic. */
#define HALVE_REQUESTS 4096u

struct hot_row {
	uint64_t parent; /* digest at half the depth; 0: none */
	uint64_t since_ns, used_ns;
	uint32_t depth;  /* blocks */
	uint32_t common; /* tokens behind the depth that all its requests shared so far */
	uint32_t n_head;
	uint32_t head[PFX_HOT_HEAD], tail[PFX_HOT_TAIL];
	struct pfx_owner owner;
	struct pfx_hits_row row;
};

struct pfx_hot {
	uint32_t block_tokens, n, until_halve;
	uint64_t digests[PFX_HOT_ROWS];
	double weights[PFX_HOT_ROWS];
	struct hot_row *rows;
};

int pfx_hot_open(struct pfx_hot **out, uint32_t block_tokens)
{
	struct pfx_hot *hot = pfx_calloc(1, sizeof(*hot));

	if (hot == NULL) {
		return -ENOMEM;
	}
	hot->rows = pfx_calloc(PFX_HOT_ROWS, sizeof(*hot->rows));
	if (hot->rows == NULL) {
		pfx_free(hot);
		return -ENOMEM;
	}
	hot->block_tokens = block_tokens;
	hot->until_halve = HALVE_REQUESTS;
	*out = hot;
	return 0;
}

void pfx_hot_close(struct pfx_hot *hot)
{
	if (hot == NULL) {
		return;
	}
	pfx_free(hot->rows);
	pfx_free(hot);
}

static uint32_t least_of(const struct pfx_hot *hot)
{
	uint32_t at = 0;

	for (uint32_t i = 1; i < PFX_HOT_ROWS; i++) {
		if (hot->weights[i] < hot->weights[at]) {
			at = i;
		}
	}
	return at;
}

/* The row of the digest; a new one takes the lightest one's place and, as it must, its weight. */
static uint32_t row_of(struct pfx_hot *hot, uint64_t digest, uint64_t wall_ns)
{
	uint32_t at;

	for (uint32_t i = 0; i < hot->n; i++) {
		if (hot->digests[i] == digest) {
			return i;
		}
	}
	if (hot->n < PFX_HOT_ROWS) {
		at = hot->n++;
		hot->weights[at] = 0;
	} else {
		at = least_of(hot);
	}
	memset(&hot->rows[at], 0, sizeof(hot->rows[at]));
	hot->digests[at] = digest;
	hot->rows[at].since_ns = wall_ns;
	return at;
}

static void narrow(struct hot_row *r, const uint32_t *behind, uint32_t n)
{
	uint32_t i = 0;

	n = n < r->common ? n : r->common;
	while (i < n && behind[i] == r->tail[i]) {
		i++;
	}
	r->common = i;
}

static void first_of(struct hot_row *r, const uint32_t *tokens, uint32_t n_tokens, uint32_t from)
{
	r->n_head = n_tokens < PFX_HOT_HEAD ? n_tokens : PFX_HOT_HEAD;
	memcpy(r->head, tokens, r->n_head * sizeof(*tokens));
	r->common = n_tokens - from < PFX_HOT_TAIL ? n_tokens - from : PFX_HOT_TAIL;
	memcpy(r->tail, tokens + from, r->common * sizeof(*tokens));
}

void pfx_hot_add(struct pfx_hot *hot, const struct pfx_owner *owner, const uint64_t *digests,
	uint32_t n_digests, const uint32_t *tokens, uint32_t n_tokens,
	const struct pfx_hits_row *row, uint64_t wall_ns)
{
	uint64_t parent = 0;

	for (uint32_t d = 0; d < PFX_HOT_DEPTHS && 1u << d <= n_digests; d++) {
		uint32_t depth = 1u << d, from = depth * hot->block_tokens;
		uint32_t at = row_of(hot, digests[depth - 1], wall_ns);
		struct hot_row *r = &hot->rows[at];

		if (r->row.requests == 0) {
			r->owner = *owner;
			r->depth = depth;
			r->parent = parent;
			first_of(r, tokens, n_tokens, from);
		} else {
			narrow(r, tokens + from, n_tokens - from);
		}
		parent = hot->digests[at];
		hot->weights[at]++;
		r->used_ns = wall_ns;
		pfx_hits_sum(&r->row, row);
	}
	if (--hot->until_halve == 0) {
		hot->until_halve = HALVE_REQUESTS;
		for (uint32_t i = 0; i < hot->n; i++) {
			hot->weights[i] /= 2;
		}
	}
}

/* A longer prefix that begins with this one and has nearly all of its requests stands for it. */
static int is_covered(const struct pfx_hot *hot, uint32_t at)
{
	for (uint32_t i = 0; i < hot->n; i++) {
		if (hot->rows[i].parent == hot->digests[at] &&
			hot->rows[i].row.requests * 10 >= hot->rows[at].row.requests * 9) {
			return 1;
		}
	}
	return 0;
}

static void show(const struct pfx_hot *hot, uint32_t at, struct pfx_hot_prefix *out)
{
	const struct hot_row *r = &hot->rows[at];

	out->owner = &r->owner;
	out->row = &r->row;
	out->n_tokens = r->depth * hot->block_tokens + r->common;
	out->head = r->head;
	out->n_head = r->n_head < out->n_tokens ? r->n_head : out->n_tokens;
	out->since_ns = r->since_ns;
	out->used_ns = r->used_ns;
}

struct ranked {
	double weight;
	uint32_t at;
};

static int heavier_first(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	return x->weight != y->weight ? (x->weight < y->weight) - (x->weight > y->weight)
		: (x->at > y->at) - (x->at < y->at);
}

uint32_t pfx_hot_top(const struct pfx_hot *hot, struct pfx_hot_prefix *out, uint32_t n)
{
	struct ranked order[PFX_HOT_ROWS];
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < hot->n; i++) {
		order[i] = (struct ranked){ hot->weights[i], i };
	}
	qsort(order, hot->n, sizeof(*order), heavier_first);
	for (uint32_t i = 0; i < hot->n && n_out < n; i++) {
		/* What came once is no prefix that requests share. */
		if (hot->rows[order[i].at].row.requests > 1 && !is_covered(hot, order[i].at)) {
			show(hot, order[i].at, &out[n_out++]);
		}
	}
	return n_out;
}
