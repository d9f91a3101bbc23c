#ifndef PFX_ENGINE_ROPE_H
#define PFX_ENGINE_ROPE_H

/*
 * The angles of rotary position embedding for a model: one frequency for each pair of
 * dimensions, with the file's scaling worked in (none, linear, YaRN, Llama-3's factors).
 */

#include <stddef.h>

#include "engine/gguf.h"
#include "engine/model_config.h"
#include "kernels/ops.h"

struct pfx_rope_table {
	struct pfx_rope rope;
	float *inv_freq; /* owned; rope.inv_freq points here */
};

/* err names file and key or tensor; a failed open leaves nothing to close. */
int pfx_rope_open(struct pfx_rope_table *out, const struct pfx_gguf *g,
	const struct pfx_arch *arch, const struct pfx_model_config *config, char *err,
	size_t errlen);
void pfx_rope_close(struct pfx_rope_table *t);

#endif
