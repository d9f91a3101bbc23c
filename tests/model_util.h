#ifndef PFX_TESTS_MODEL_UTIL_H
#define PFX_TESTS_MODEL_UTIL_H

/*
 * What tests of the model share: opening one, and running batches over block tables that
 * the test chooses. Failures end the program; they are no matter of the test at hand.
 */

#include <stdint.h>

#include "engine/model.h"
#include "tests/model_tiny.h"

/* $PREFIXD_MODEL, or NULL with the reason for a TAP SKIP in *why. */
const char *pfx_test_model_path(const char **why);

struct pfx_test_model_opts {
	const char *kernels; /* NULL: auto */
	const char *activations; /* NULL: exact */
	/* Zeros take 1, 16, 512, 512, 64. */
	uint32_t n_threads, block_tokens, rows_max, out_rows_max, n_blocks;
	int pin_threads;
	enum pfx_kv_type kv_type;
};

struct pfx_model *pfx_test_model_open(const char *path, const struct pfx_test_model_opts *opts);
struct pfx_model *pfx_test_model_tiny(const struct pfx_tiny_opts *tiny,
	const struct pfx_test_model_opts *opts);

/* One sequence's part of a batch to run: positions [pos0, pos0 + n) of tokens. */
struct pfx_test_part {
	const uint32_t *tokens; /* of the whole sequence, from position 0 */
	uint32_t pos0, n, write_from;
	const uint32_t *blocks;
	uint32_t n_blocks;
	float *logits; /* [n][n_vocab] out, or NULL */
};

/* Runs the parts as one batch. Returns what pfx_model_forward did. */
int pfx_test_try(struct pfx_model *m, const struct pfx_test_part *parts, uint32_t n_parts);
/* The same for a batch that must not fail. */
void pfx_test_run(struct pfx_model *m, const struct pfx_test_part *parts, uint32_t n_parts);

#endif
