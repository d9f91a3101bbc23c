#ifndef PFX_ENGINE_WEIGHTS_H
#define PFX_ENGINE_WEIGHTS_H

/*
 * The tensors of a Llama-type model, found by their GGUF names, checked against the
 * configuration, and packed for a device: q, k and v as one matrix, gate and up as another.
 * A tensor that this forward pass would not use is an error, for leaving it out would give
 * wrong answers without a word.
 */

#include <stddef.h>

#include "engine/gguf.h"
#include "engine/model.h"
#include "kernels/ops.h"

struct pfx_layer_weights {
	struct pfx_weight *attn_norm, *ffn_norm;
	struct pfx_weight *qkv, *qkv_bias;   /* bias NULL when the model has none */
	struct pfx_weight *q_norm, *k_norm;  /* NULL when the model has none */
	struct pfx_weight *attn_out, *gate_up, *down;
};

struct pfx_weights {
	struct pfx_weight *embed, *output_norm;
	struct pfx_weight *head; /* the same as embed when tied */
	struct pfx_layer_weights *layers;
	uint32_t n_layers;
	size_t bytes; /* as packed */
};

/*
 * Completes config (n_vocab, tied_head, qkv_bias) from the tensors. g is not needed after.
 * progress may be NULL. err names file and tensor; a failed open leaves nothing to close.
 */
int pfx_weights_open(struct pfx_weights *out, const struct pfx_ops *ops, struct pfx_device *dev,
	const struct pfx_gguf *g, struct pfx_model_config *config,
	void (*progress)(void *arg, double done), void *progress_arg, char *err, size_t errlen);
void pfx_weights_close(struct pfx_weights *w, const struct pfx_ops *ops, struct pfx_device *dev);

#endif
