#include "engine/sample.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

struct candidate {
	float logit;
	uint32_t id;
};

struct pfx_sampler {
	uint32_t n_vocab;
	float *scaled;            /* [n_vocab] logits after the penalty */
	double *weight;           /* [n_vocab] exp(scaled - max), of the candidates in order */
	struct candidate *sorted; /* [n_vocab] */
	uint64_t *seen;           /* a bit an id: the penalty was applied */
};

int pfx_sampler_open(struct pfx_sampler **out, uint32_t n_vocab)
{
	struct pfx_sampler *s = pfx_calloc(1, sizeof(*s));

	if (s == NULL) {
		return -ENOMEM;
	}
	s->n_vocab = n_vocab;
	s->scaled = pfx_calloc(n_vocab, sizeof(*s->scaled));
	s->weight = pfx_calloc(n_vocab, sizeof(*s->weight));
	s->sorted = pfx_calloc(n_vocab, sizeof(*s->sorted));
	s->seen = pfx_calloc(n_vocab / 64 + 1, sizeof(*s->seen));
	if (s->scaled == NULL || s->weight == NULL || s->sorted == NULL || s->seen == NULL) {
		pfx_sampler_close(s);
		return -ENOMEM;
	}
	*out = s;
	return 0;
}

void pfx_sampler_close(struct pfx_sampler *s)
{
	if (s == NULL) {
		return;
	}
	pfx_free(s->scaled);
	pfx_free(s->weight);
	pfx_free(s->sorted);
	pfx_free(s->seen);
	pfx_free(s);
}

/* The largest value, found 16 wide so that the compiler can use vectors. */
static float max_of(const float *x, uint32_t n)
{
	float m[16], best;
	uint32_t i = 0;

	for (int j = 0; j < 16; j++) {
		m[j] = -INFINITY;
	}
	for (; i + 16 <= n; i += 16) {
		for (int j = 0; j < 16; j++) {
			m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
		}
	}
	best = m[0];
	for (int j = 1; j < 16; j++) {
		best = m[j] > best ? m[j] : best;
	}
	for (; i < n; i++) {
		best = x[i] > best ? x[i] : best;
	}
	return best;
}

static uint32_t argmax(const float *x, uint32_t n)
{
	float best = max_of(x, n);

	if (!isfinite(best)) {
		return UINT32_MAX;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (x[i] == best) {
			return i;
		}
	}
	return UINT32_MAX;
}

static const float *penalise(struct pfx_sampler *s, const float *logits,
	const struct pfx_sampling *how)
{
	uint32_t id;

	if (how->repeat_penalty == 1 || how->n_context == 0) {
		return logits;
	}
	memcpy(s->scaled, logits, s->n_vocab * sizeof(*logits));
	for (uint32_t i = 0; i < how->n_context; i++) {
		id = how->context[i];
		if (s->seen[id / 64] >> (id % 64) & 1) {
			continue;
		}
		s->seen[id / 64] |= 1ull << (id % 64);
		s->scaled[id] = logits[id] > 0 ? logits[id] / how->repeat_penalty
					       : logits[id] * how->repeat_penalty;
	}
	for (uint32_t i = 0; i < how->n_context; i++) {
		s->seen[how->context[i] / 64] = 0;
	}
	return s->scaled;
}

/* Best first, of equals the lowest id; ids are unique, so the order is total. */
static int by_logit(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->logit != y->logit) {
		return x->logit > y->logit ? -1 : 1;
	}
	return x->id < y->id ? -1 : 1;
}

/* Fills sorted with all candidates within window of the best logit, best first. */
static uint32_t collect(struct pfx_sampler *s, const float *x, float best, float window)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_vocab; i++) {
		if (x[i] >= best - window) {
			s->sorted[n].logit = x[i];
			s->sorted[n++].id = i;
		}
	}
	qsort(s->sorted, n, sizeof(*s->sorted), by_logit);
	return n;
}

/* Everything in id order; used where nothing cuts the tail, so that nothing is sorted. */
static uint32_t all_candidates(struct pfx_sampler *s, const float *x)
{
	for (uint32_t i = 0; i < s->n_vocab; i++) {
		s->sorted[i].logit = x[i];
		s->sorted[i].id = i;
	}
	return s->n_vocab;
}

static double weight_of(float logit, float best, float temperature)
{
	return (double)expf((logit - best) / temperature);
}

/* Weights of the first n candidates and their sum. */
static double weigh(struct pfx_sampler *s, uint32_t n, float best, float temperature)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		s->weight[i] = weight_of(s->sorted[i].logit, best, temperature);
		sum += s->weight[i];
	}
	return sum;
}

/*
 * The candidates that top_k, top_p and min_p leave, sorted and weighed. Sorting the whole
 * vocabulary would cost more than the model's own head, so only what lies within a window of
 * the best logit is sorted, and the window grows until it holds all that the cuts keep.
 */
static uint32_t cut(struct pfx_sampler *s, const float *x, float best, const struct pfx_sampling *how,
	double *sum)
{
	/* expf underflows to 0 beyond 104, so nothing farther off can be drawn. */
	const float farthest = 104 * how->temperature;
	double total = 0, part;
	uint32_t n, kept;

	if (how->top_p < 1 && how->top_k == 0) {
		for (uint32_t i = 0; i < s->n_vocab; i++) {
			total += weight_of(x[i], best, how->temperature);
		}
	}
	for (float window = 13 * how->temperature;; window *= 2) {
		n = collect(s, x, best, window);
		if (how->top_k > 0 && n < how->top_k && window < farthest) {
			continue;
		}
		if (how->top_k > 0 && n > how->top_k) {
			n = how->top_k;
		}
		*sum = weigh(s, n, best, how->temperature);
		if (how->top_p < 1) {
			part = 0;
			if (how->top_k > 0) {
				total = *sum;
			}
			/* The smallest head whose share reaches top_p; never empty. */
			for (kept = 0; kept < n && (kept == 0 || part < (double)how->top_p * total); kept++) {
				part += s->weight[kept];
			}
			if (kept == n && part < (double)how->top_p * total && window < farthest) {
				continue;
			}
			n = kept;
			*sum = part;
		} else if (how->min_p > 0 && how->top_k == 0 && window < farthest &&
			s->weight[n - 1] >= (double)how->min_p) {
			continue;
		}
		break;
	}
	if (how->min_p > 0) {
		/* The best weighs 1 and always stays. */
		part = s->weight[0];
		for (kept = 1; kept < n && s->weight[kept] >= (double)how->min_p; kept++) {
			part += s->weight[kept];
		}
		n = kept;
		*sum = part;
	}
	return n;
}

uint32_t pfx_sample(struct pfx_sampler *s, const float *logits, const struct pfx_sampling *how)
{
	const float *x = penalise(s, logits, how);
	double sum, part = 0, u;
	float best;
	uint32_t n;

	if (how->temperature <= 0) {
		return argmax(x, s->n_vocab);
	}
	best = max_of(x, s->n_vocab);
	if (!isfinite(best)) {
		return UINT32_MAX;
	}
	if (how->top_k == 0 && how->top_p >= 1 && how->min_p <= 0) {
		n = all_candidates(s, x);
		sum = weigh(s, n, best, how->temperature);
	} else {
		n = cut(s, x, best, how, &sum);
	}
	u = pfx_rng_to_double(pfx_rng_mix(how->seed, how->position)) * sum;
	for (uint32_t i = 0; i < n; i++) {
		part += s->weight[i];
		if (u < part) {
			return s->sorted[i].id;
		}
	}
	/* Rounding left u at the very end: the last that weighs anything. */
	while (n > 1 && s->weight[n - 1] <= 0) {
		n--;
	}
	return s->sorted[n - 1].id;
}

double pfx_log_sum_exp(const float *logits, uint32_t n)
{
	float best = max_of(logits, n);
	double sum = 0;

	if (!isfinite(best)) {
		return (double)best;
	}
	for (uint32_t i = 0; i < n; i++) {
		sum += (double)expf(logits[i] - best);
	}
	return (double)best + log(sum);
}

uint32_t pfx_top_n(const float *logits, uint32_t n_vocab, double lse, struct pfx_top *out,
	uint32_t n)
{
	uint32_t have = 0, at;

	if (n == 0) {
		return 0;
	}
	/* n is small: an insertion into a sorted array beats a heap. */
	for (uint32_t i = 0; i < n_vocab; i++) {
		if (have == n && logits[i] <= out[n - 1].logprob) {
			continue;
		}
		at = have < n ? have++ : n - 1;
		for (; at > 0 && out[at - 1].logprob < logits[i]; at--) {
			out[at] = out[at - 1];
		}
		out[at].token = i;
		out[at].logprob = logits[i];
	}
	for (uint32_t i = 0; i < have; i++) {
		out[i].logprob = (float)((double)out[i].logprob - lse);
	}
	return have;
}
