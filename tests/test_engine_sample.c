/* The sampler against a plain one that sorts everything, and its statistics. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/sample.h"
#include "tests/tap.h"

enum { V = 500 };

struct plain {
	float logit;
	uint32_t id;
	double weight;
};

static int by_logit(const void *a, const void *b)
{
	const struct plain *x = a, *y = b;

	if (x->logit != y->logit) {
		return x->logit > y->logit ? -1 : 1;
	}
	return x->id < y->id ? -1 : 1;
}

/* The set of ids that the cuts leave, by the book: one full sort, one cut after the other. */
static uint32_t plain_cut(const float *logits, const struct pfx_sampling *how, struct plain *p)
{
	double sum = 0, part = 0;
	uint32_t n = V, k;

	for (uint32_t i = 0; i < V; i++) {
		p[i].logit = logits[i];
		p[i].id = i;
	}
	qsort(p, V, sizeof(*p), by_logit);
	if (how->top_k > 0 && how->top_k < n) {
		n = how->top_k;
	}
	for (uint32_t i = 0; i < n; i++) {
		p[i].weight = (double)expf((p[i].logit - p[0].logit) / how->temperature);
		sum += p[i].weight;
	}
	if (how->top_p < 1) {
		for (k = 0; k < n && (k == 0 || part < (double)how->top_p * sum); k++) {
			part += p[k].weight;
		}
		n = k;
	}
	if (how->min_p > 0) {
		for (k = 1; k < n && p[k].weight >= (double)how->min_p; k++) {
		}
		n = k;
	}
	return n;
}

static void test_cuts(struct pfx_sampler *s, struct pfx_rng *rng)
{
	static const struct pfx_sampling settings[] = {
		{ .temperature = 1, .top_p = 1, .repeat_penalty = 1 },
		{ .temperature = 1, .top_k = 5, .top_p = 1, .repeat_penalty = 1 },
		{ .temperature = 0.5f, .top_p = 0.9f, .repeat_penalty = 1 },
		{ .temperature = 5, .top_p = 0.99f, .repeat_penalty = 1 },
		{ .temperature = 1, .top_p = 1, .min_p = 0.1f, .repeat_penalty = 1 },
		{ .temperature = 2, .top_k = 100, .top_p = 0.8f, .min_p = 0.01f, .repeat_penalty = 1 },
		{ .temperature = 0.01f, .top_k = 3, .top_p = 0.5f, .repeat_penalty = 1 },
		{ .temperature = 1, .top_k = 1000, .top_p = 1, .repeat_penalty = 1 },
	};
	float logits[V];
	struct plain p[V];

	for (size_t c = 0; c < sizeof(settings) / sizeof(settings[0]); c++) {
		struct pfx_sampling how = settings[c];
		int outside = 0, seen[V] = { 0 };
		uint32_t n = 0, id;
		double worst = 0, sum = 0;
		enum { DRAWS = 20000 };

		for (int i = 0; i < V; i++) {
			logits[i] = (float)(12 * pfx_rng_double(rng) - 6);
		}
		n = plain_cut(logits, &how, p);
		for (uint32_t i = 0; i < n; i++) {
			sum += p[i].weight;
		}
		how.seed = pfx_rng_next(rng);
		for (how.position = 0; how.position < DRAWS; how.position++) {
			id = pfx_sample(s, logits, &how);
			seen[id]++;
		}
		for (uint32_t i = 0; i < V; i++) {
			if (i >= n) {
				outside += seen[p[i].id];
			} else {
				worst = fmax(worst, fabs(seen[p[i].id] / (double)DRAWS - p[i].weight / sum));
			}
		}
		is_int(outside, 0, "setting %zu: nothing outside the %u that the cuts leave", c, n);
		/* Four standard deviations of a share of one half. */
		ok(worst < 4 * 0.5 / sqrt(DRAWS), "setting %zu: shares are right (off by %.4f)", c, worst);
	}
}

static void test_greedy(struct pfx_sampler *s)
{
	struct pfx_sampling how = { .top_p = 1, .repeat_penalty = 1 };
	uint32_t context[] = { 7, 7, 9 };
	struct pfx_top top[3];
	float logits[V] = { 0 };
	double lse, direct = 0;

	logits[7] = logits[9] = 2;
	logits[11] = 1.5f;
	logits[13] = -1;
	is_int(pfx_sample(s, logits, &how), 7, "of equal logits the lowest id");
	how.repeat_penalty = 2;
	how.context = context;
	how.n_context = 3;
	is_int(pfx_sample(s, logits, &how), 11, "a penalty counts an id once, however often it stood");
	is_int(pfx_sample(s, logits, &how), 11, "and leaves nothing behind");
	how.n_context = 0;
	is_int(pfx_sample(s, logits, &how), 7, "without context there is none");
	for (int i = 0; i < V; i++) {
		direct += exp((double)logits[i]);
	}
	lse = pfx_log_sum_exp(logits, V);
	ok(fabs(lse - log(direct)) < 1e-6, "log-sum-exp");
	is_int(pfx_top_n(logits, V, lse, top, 3), 3, "top gives what is asked");
	ok(top[0].token == 7 && top[1].token == 9 && top[2].token == 11, "best first, lowest id of equals");
	ok(fabsf(top[2].logprob - (float)(1.5 - lse)) < 1e-6f, "with log-probabilities");
	for (int i = 0; i < V; i++) {
		logits[i] = NAN;
	}
	is_int(pfx_sample(s, logits, &how), UINT32_MAX, "logits that are no numbers give no token");
	how.temperature = 1;
	is_int(pfx_sample(s, logits, &how), UINT32_MAX, "nor when drawn");
}

int main(void)
{
	struct pfx_rng rng = { pfx_rng_entropy() };
	struct pfx_sampler *s;

	printf("# seed %llu\n", (unsigned long long)rng.state);
	is_int(pfx_sampler_open(&s, V), 0, "open");
	test_greedy(s);
	test_cuts(s, &rng);
	pfx_sampler_close(s);
	return tap_done();
}
