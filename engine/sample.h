#ifndef PFX_ENGINE_SAMPLE_H
#define PFX_ENGINE_SAMPLE_H

/*
 * From logits to a token, and to log-probabilities. Exact per seed: the choice depends on
 * the logits, the settings, the context and (seed, position) alone; the random number is
 * indexed by position, so that a batch, a preemption or a cache hit cannot shift it.
 *
 * Order: repetition penalty over the whole context, temperature, top_k, top_p, min_p.
 * Penalty: Keskar et al., "CTRL", 2019. top_p: Holtzman et al., "The Curious Case of Neural
 * Text Degeneration", 2019. min_p: Nguyen et al., "Turning Up the Heat", 2024.
 *
 * A sampler is scratch memory for one vocabulary; one thread at a time.
 */

#include <stdint.h>

#include "engine/engine.h"

struct pfx_sampler;

int pfx_sampler_open(struct pfx_sampler **out, uint32_t n_vocab);
void pfx_sampler_close(struct pfx_sampler *s);

struct pfx_sampling {
	float temperature; /* 0: greedy; of equal logits the lowest id */
	uint32_t top_k;    /* 0: off */
	float top_p;       /* 1: off */
	float min_p;       /* 0: off */
	float repeat_penalty; /* 1: off */
	uint64_t seed, position;
	const uint32_t *context; /* ids so far, for the penalty; borrowed */
	uint32_t n_context;
};

/* logits[n_vocab] -> a token id; UINT32_MAX when no logit is a finite number. */
uint32_t pfx_sample(struct pfx_sampler *s, const float *logits, const struct pfx_sampling *how);

/*
 * Log of the sum of exp(logits), computed in double in id order. The natural logarithm of
 * the softmax of id is logits[id] - this.
 */
double pfx_log_sum_exp(const float *logits, uint32_t n);

/*
 * The n best of logits[n_vocab], best first, of equals the lowest id, with log-probabilities
 * against lse. Writes min(n, n_vocab) entries and returns how many.
 */
uint32_t pfx_top_n(const float *logits, uint32_t n_vocab, double lse, struct pfx_top *out,
	uint32_t n);

#endif
