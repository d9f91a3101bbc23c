#ifndef PFX_KERNELS_DTYPE_H
#define PFX_KERNELS_DTYPE_H

/*
 * Number formats in which a model file may keep a tensor, with their block geometry. The
 * values are GGUF's own type numbers (ggml's docs/gguf.md), so a reader needs no table.
 */

#include <stddef.h>
#include <stdint.h>

enum pfx_dtype {
	PFX_F32 = 0,
	PFX_F16 = 1,
	PFX_Q4_0 = 2,
	PFX_Q4_1 = 3,
	PFX_Q5_0 = 6,
	PFX_Q5_1 = 7,
	PFX_Q8_0 = 8,
	PFX_Q4_K = 12,
	PFX_Q5_K = 13,
	PFX_Q6_K = 14,
	PFX_BF16 = 30,
};

/* Static: name, elements a block and bytes a block; NULL for a type that is not listed. */
struct pfx_dtype_info {
	const char *name;
	uint32_t block_elems, block_bytes;
};
const struct pfx_dtype_info *pfx_dtype_info(uint32_t type);

/* Bytes of one row of k elements; 0 when k is no multiple of the block or type is unknown. */
size_t pfx_dtype_row_bytes(enum pfx_dtype type, uint64_t k);

/* The oracle: widens k elements (a whole number of blocks) to float32, exactly as defined. */
void pfx_dtype_widen(enum pfx_dtype type, const void *src, uint64_t k, float *dst);

float pfx_f16_to_f32(uint16_t h);
uint16_t pfx_f32_to_f16(float f); /* round to nearest even, as the hardware does */

#endif
