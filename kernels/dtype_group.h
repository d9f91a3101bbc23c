#ifndef PFX_KERNELS_DTYPE_GROUP_H
#define PFX_KERNELS_DTYPE_GROUP_H

/*
 * Inside kernels/: a group of 32 elements of a quantised row as integers, which is what
 * widening and packing both start from. Element i of the group is, by definition,
 *     scale[i / 16] * q[i]          and, when the type has a minimum, + min
 * in float32, each operation rounded. scale and min are exact: an f16 times a small
 * integer at most. scale[0] == scale[1] but for Q6_K.
 */

#include <stdint.h>

#include "kernels/dtype.h"

#define PFX_GROUP 32u

struct pfx_group {
	int8_t q[PFX_GROUP];
	float scale[2];
	float min;
};

/* What a quantised type's groups look like; NULL for the float types. */
struct pfx_group_info {
	int8_t q_min, q_max; /* range of q */
	uint8_t has_min;
	uint8_t scale_f16;   /* scale and min are f16 as they stand in the file */
	uint8_t n_scales;    /* 1, or 2 where the two halves have scales of their own */
};
const struct pfx_group_info *pfx_group_info(enum pfx_dtype type);

/* Group g of a row in GGUF layout. */
void pfx_group_read(enum pfx_dtype type, const void *row, uint64_t g, struct pfx_group *out);

#endif
