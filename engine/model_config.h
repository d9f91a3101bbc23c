#ifndef PFX_ENGINE_MODEL_CONFIG_H
#define PFX_ENGINE_MODEL_CONFIG_H

/* A model's shape, read from a GGUF file's metadata and checked against bounds. */

#include <stddef.h>

#include "engine/gguf.h"
#include "engine/model.h"
#include "kernels/ops.h"

/* What the architecture's name alone decides. */
struct pfx_arch {
	const char *name;
	enum pfx_rope_kind rope_kind;
	int qkv_bias; /* 1: always; 0: never; -1: as the file has it */
	int qk_norm;
};

/*
 * Fills *out (but for n_vocab, tied_head and, where the architecture leaves it open,
 * qkv_bias, which the tensors tell) and *arch (static). err names file and key.
 */
int pfx_model_config_read(const struct pfx_gguf *g, struct pfx_model_config *out,
	const struct pfx_arch **arch, char *err, size_t errlen);

/*
 * Metadata under the architecture's own prefix: "llama" + ".block_count". As the functions
 * of gguf.h, but an absent key leaves *v as it was and is no error.
 */
int pfx_arch_u32(const struct pfx_gguf *g, const char *arch, const char *key, uint32_t *v,
	char *err, size_t errlen);
int pfx_arch_f32(const struct pfx_gguf *g, const char *arch, const char *key, float *v, char *err,
	size_t errlen);

#endif
