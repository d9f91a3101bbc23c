#ifndef PFX_TESTS_REFERENCE_H
#define PFX_TESTS_REFERENCE_H

/*
 * Reads the reference vectors of tests/reference (layout: make_reference.py) and measures
 * logits against them.
 */

#include <stddef.h>
#include <stdint.h>

#define PFX_REF_BEST 64

/* A file read whole, and a cursor over it. Reading past its end ends the program. */
struct pfx_ref_file {
	uint8_t *bytes;
	size_t n, at;
};

/* name: within $top_srcdir/tests/reference. Also checks the four letters and version 1. */
void pfx_ref_open(struct pfx_ref_file *f, const char *name, const char *letters);
void pfx_ref_close(struct pfx_ref_file *f);
const void *pfx_ref_take(struct pfx_ref_file *f, size_t n);
uint32_t pfx_ref_u32(struct pfx_ref_file *f);
/* Returns owned (free) ids, widened from u16. */
uint32_t *pfx_ref_ids(struct pfx_ref_file *f, uint32_t n);

/* What the reference says about the token that follows one position. */
struct pfx_ref_position {
	uint16_t best[PFX_REF_BEST];    /* ids, best first */
	uint16_t logprob[PFX_REF_BEST]; /* f16 */
	uint16_t rest, zero;            /* f16: all other ids together */
	float next;                     /* of the token that the text goes on with */
};

struct pfx_ref_measure {
	double kl;      /* sum over positions of KL(reference || logits), 64 best and the rest */
	double worst;   /* the largest of one position */
	double nll, nll_ref; /* minus the sums of the next token's log-probabilities */
	uint32_t n, n_next, n_same; /* positions; those with a next token; with the same best */
};

/* Adds one position; next_id is UINT32_MAX at the end of a text. */
void pfx_ref_add(struct pfx_ref_measure *m, const struct pfx_ref_position *ref,
	const float *logits, uint32_t n_vocab, uint32_t next_id);

/* log of the sum of exp; what a logit minus it gives is a log-probability. */
double pfx_ref_log_sum(const float *logits, uint32_t n_vocab);

#endif
