#ifndef PFX_ENGINE_MODEL_PRIV_H
#define PFX_ENGINE_MODEL_PRIV_H

/* What model.c (lifetime) and forward.c (a step) share. */

#include "engine/model.h"
#include "engine/profile.h"
#include "engine/rope.h"
#include "engine/weights.h"

struct pfx_model {
	const struct pfx_ops *ops;
	struct pfx_device *dev;
	struct pfx_model_config config;
	struct pfx_rope_table rope;
	struct pfx_weights weights;

	struct pfx_kv *kv;
	struct pfx_kv_shape kv_shape;
	size_t block_bytes;
	uint32_t n_blocks;

	uint32_t rows_max, seqs_max, out_rows_max;
	/*
	 * Activations of a step, [rows_max][...]: x is the residual stream, h what a norm leaves
	 * (and, once the layers are done, the normed out rows), the others as in ops.h.
	 */
	struct pfx_mem *x, *h, *qkv, *att, *gate_up, *act;
	struct pfx_mem *logits;  /* [out_rows_max][n_vocab] */
	float *logits_host;      /* the same, for the caller */
	uint32_t n_out;          /* out rows of the last forward */
	struct pfx_profile profile;
};

#endif
