#ifndef PFX_KERNELS_CPU_ATTN_H
#define PFX_KERNELS_CPU_ATTN_H

/*
 * The number formats of attention. Its products are of 16-bit integers ("words") with 32-bit
 * sums, which are exact, so that no variant has to keep an order of them:
 *
 *   K, V  each position of a KV head has a power of two of its own as scale, taken from its
 *         largest |f16|: that becomes less than 2^bits. The two upper binades of a position
 *         come through as they are, the others rounded to 1 of 2^bits.
 *   q     a vector's scale is its Euclidean norm: it becomes PFX_QUERY_NORM.
 *   p     the weights 2^(score - max) of a segment, times V's scales, have one scale in a vector
 *         such that none is above PFX_WEIGHT_MAX and they sum to 8 times that at most.
 *
 * No sum overflows: |q k| <= |q| |k| (Cauchy-Schwarz), 32004 * 2^16 < 2^31, where |k| <=
 * 2^bits sqrt(head_dim); |sum p v| <= 2^13 * sum p <= 2^13 * (8 * 32000 + 128) < 2^31.
 *
 * A position whose K or V is not finite has NaN for its scale, and those rows that see it get
 * NaN, no others.
 */

#include <stdint.h>

#define PFX_HEAD_DIM_MAX 1024u
#define PFX_F16_NAN 0x7e00u
#define PFX_EXP_NONE 31 /* exponent of a position that is not finite */
#define PFX_QUERY_NORM 32000.0f
#define PFX_QUERY_MIN 1e-30f /* vectors of a smaller norm count as zero */
#define PFX_WEIGHT_MAX 32000.0f
#define PFX_V_BITS 13

/*
 * 1.5 * 2^23: the sum of it and a float of less than 2^15 is rounded to a whole number, which
 * then stands in the low 16 bits, in two's complement.
 */
#define PFX_WORD_MAGIC 12582912.0f

/* The exponent of a position whose largest |f16| is amax: 1..30, or PFX_EXP_NONE. */
static inline uint8_t pfx_exponent(uint32_t amax)
{
	return amax >> 10 > 1 ? (uint8_t)(amax >> 10) : 1;
}

static inline int pfx_k_bits(uint32_t head_dim)
{
	return head_dim <= 64 ? 13 : head_dim <= 256 ? 12 : 11;
}

/* Biased float exponents of the factor to words: this less the position's exponent. */
#define PFX_WORD_UP(bits) (127 + 15 + (bits) - 1)
/* And back: this and the exponent. */
#define PFX_WORD_DOWN(bits) (127 - 15 - (bits) + 1)

#endif
