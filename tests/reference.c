#include "tests/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

static _Noreturn void bail_out(const char *name, const char *what)
{
	printf("Bail out! tests/reference/%s: %s\n", name, what);
	exit(1);
}

void pfx_ref_open(struct pfx_ref_file *f, const char *name, const char *letters)
{
	const char *top = getenv("top_srcdir");
	char path[4096];
	FILE *file;
	long n;

	snprintf(path, sizeof(path), "%s/tests/reference/%s", top != NULL ? top : ".", name);
	file = fopen(path, "rb");
	if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (n = ftell(file)) < 8) {
		bail_out(name, "cannot be read");
	}
	rewind(file);
	*f = (struct pfx_ref_file){ malloc((size_t)n), (size_t)n, 0 };
	if (f->bytes == NULL || fread(f->bytes, 1, f->n, file) != f->n) {
		bail_out(name, "cannot be read");
	}
	fclose(file);
	if (memcmp(pfx_ref_take(f, 4), letters, 4) != 0 || pfx_ref_u32(f) != 1) {
		bail_out(name, "is of another kind or version");
	}
}

void pfx_ref_close(struct pfx_ref_file *f)
{
	free(f->bytes);
	memset(f, 0, sizeof(*f));
}

const void *pfx_ref_take(struct pfx_ref_file *f, size_t n)
{
	const void *p = f->bytes + f->at;

	if (n > f->n - f->at) {
		bail_out("*.bin", "ends too early");
	}
	f->at += n;
	return p;
}

uint32_t pfx_ref_u32(struct pfx_ref_file *f)
{
	uint32_t v;

	memcpy(&v, pfx_ref_take(f, sizeof(v)), sizeof(v));
	return v;
}

uint32_t *pfx_ref_ids(struct pfx_ref_file *f, uint32_t n)
{
	const uint8_t *p = pfx_ref_take(f, 2 * (size_t)n);
	uint32_t *ids = malloc(n * sizeof(*ids) + 1);

	if (ids == NULL) {
		bail_out("*.bin", "no memory");
	}
	for (uint32_t i = 0; i < n; i++) {
		ids[i] = (uint32_t)(p[2 * i] | p[2 * i + 1] << 8);
	}
	return ids;
}

double pfx_ref_log_sum(const float *logits, uint32_t n_vocab)
{
	double max = -INFINITY, sum = 0.0;

	for (uint32_t i = 0; i < n_vocab; i++) {
		max = (double)logits[i] > max ? (double)logits[i] : max;
	}
	for (uint32_t i = 0; i < n_vocab; i++) {
		sum += exp((double)logits[i] - max);
	}
	return max + log(sum);
}

/*
 * The stored log-probabilities are rounded to f16. Scaled so that they add up to one they
 * are again a distribution, and what rounding does to the divergence is of second order,
 * about 1e-8.
 */
static double divergence(const struct pfx_ref_position *ref, const float *logits, double log_sum)
{
	double p[PFX_REF_BEST + 1], q[PFX_REF_BEST + 1], total = 0.0, kl = 0.0;

	q[PFX_REF_BEST] = 1.0;
	for (int i = 0; i <= PFX_REF_BEST; i++) {
		p[i] = exp((double)pfx_f16_to_f32(i < PFX_REF_BEST ? ref->logprob[i] : ref->rest));
		total += p[i];
		if (i < PFX_REF_BEST) {
			q[i] = exp((double)logits[ref->best[i]] - log_sum);
			q[PFX_REF_BEST] -= q[i];
		}
	}
	q[PFX_REF_BEST] = q[PFX_REF_BEST] > 1e-12 ? q[PFX_REF_BEST] : 1e-12;
	for (int i = 0; i <= PFX_REF_BEST; i++) {
		p[i] /= total;
		kl += p[i] > 0.0 ? p[i] * log(p[i] / q[i]) : 0.0;
	}
	return kl;
}

void pfx_ref_add(struct pfx_ref_measure *m, const struct pfx_ref_position *ref,
	const float *logits, uint32_t n_vocab, uint32_t next_id)
{
	double log_sum = pfx_ref_log_sum(logits, n_vocab), kl = divergence(ref, logits, log_sum);
	uint32_t best = 0;

	for (uint32_t i = 1; i < n_vocab; i++) {
		best = logits[i] > logits[best] ? i : best;
	}
	m->n++;
	m->kl += kl;
	/* Not a number stays: it must not pass for a small one. */
	m->worst = kl <= m->worst ? m->worst : kl;
	m->n_same += best == ref->best[0];
	if (next_id != UINT32_MAX) {
		m->n_next++;
		m->nll -= (double)logits[next_id] - log_sum;
		m->nll_ref -= (double)ref->next;
	}
}
