/*
 * The AVX2 variant (with FMA and F16C). Integer products are vpmaddwd and vpaddd on 16-bit
 * words; the sums of a group are exact, as in avx512.c, so the bits are the same.
 *
 * A tile's words are unpacked to the thread's scratch, a stretch of k at a time, and all rows
 * go by in blocks of BLOCK_ROWS, whose integer sums stay in registers; the float sums of a
 * row stand in the scratch between groups, for there are too few registers.
 */
#include "config.h"

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/target.h"
#include "kernels/dtype_group.h"

/* gcc 12 and clang 14 differ in what __builtin_cpu_supports knows of F16C. */
static int has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static int usable(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

TARGET_BEGIN("avx2,fma,f16c")

#include "kernels/cpu/vec_avx2.h"
#include "kernels/cpu/vec_exp2.h"
#include "kernels/cpu/vec_small.h"
#include "kernels/cpu/vec_attn.h"
#include "kernels/cpu/vec_gemm.h"

#define BLOCK_ROWS 4
#define STRETCH 16u /* groups of k that are unpacked at a time: 16 KiB */
#define PAIRS 16    /* of k in a group */

/* The thread's scratch. */
struct work {
	__m256i words[STRETCH][PAIRS][2];
	v16 scales[STRETCH][2]; /* [group][half] */
	v16 mins[STRETCH];
	v16 acc[PFX_GEMM_ROWS];
};
_Static_assert(sizeof(struct work) <= PFX_GEMM_SCRATCH, "fits the scratch of a thread");

/* Pair j of a group of 8 outputs (half 0 or 1 of the tile). */
static inline __attribute__((always_inline)) __m256i unpack_pair(const enum pfx_code code,
	const uint8_t *codes, int j, int half)
{
	int each = code == PFX_CODE_I8 ? 2 : 4;
	/* The place of the pair in its word. */
	int in = code == PFX_CODE_I8 ? j % 2 : j % 2 * 2 + j % 4 / 2;
	__m256i x = _mm256_loadu_si256((const __m256i *)(codes + j / each * 64 + half * 32));

	if (code == PFX_CODE_I8) {
		return _mm256_srai_epi16(in == 0 ? _mm256_slli_epi16(x, 8) : x, 8);
	}
	if (code == PFX_CODE_U4) {
		return _mm256_and_si256(_mm256_srli_epi16(x, 4 * in), _mm256_set1_epi16(15));
	}
	return _mm256_srai_epi16(_mm256_slli_epi16(x, 12 - 4 * in), 12);
}

static inline __attribute__((always_inline)) void unpack_group(const enum pfx_code code,
	const uint8_t *codes, __m256i w[PAIRS][2])
{
	UNROLL for (int j = 0; j < PAIRS; j++) {
		w[j][0] = unpack_pair(code, codes, j, 0);
		w[j][1] = unpack_pair(code, codes, j, 1);
	}
}

static inline v16 load_scale(const struct pfx_part *p, const uint8_t *at, size_t i)
{
	return p->scale_f16 ? v_load_f16((const uint16_t *)at + i * PFX_TILE) :
		v_load((const float *)at + i * PFX_TILE);
}

/* Groups [g0, g0 + n) of a tile. */
static void unpack_tile(struct work *work, const struct pfx_part *p, uint32_t tile, uint32_t g0,
	uint32_t n)
{
	const uint8_t *t = pfx_tile_at(p, tile);

	for (uint32_t i = 0; i < n; i++) {
		if (p->code == PFX_CODE_I8) {
			unpack_group(PFX_CODE_I8, t + (size_t)(g0 + i) * 512, work->words[i]);
		} else if (p->code == PFX_CODE_U4) {
			unpack_group(PFX_CODE_U4, t + (size_t)(g0 + i) * 256, work->words[i]);
		} else {
			unpack_group(PFX_CODE_I4, t + (size_t)(g0 + i) * 256, work->words[i]);
		}
		for (uint32_t h = 0; h < p->n_scales; h++) {
			work->scales[i][h] = load_scale(p, t + p->scales_at, (size_t)(g0 + i) * p->n_scales + h);
		}
		if (p->has_min) {
			work->mins[i] = load_scale(p, t + p->mins_at, g0 + i);
		}
	}
}

/* A pair of activations, the same for all outputs. */
static inline __m256i pair(const int16_t *v)
{
	int32_t both;

	memcpy(&both, v, 4);
	return _mm256_set1_epi32(both);
}

static inline v16 to_float(__m256i a, __m256i b)
{
	return (v16){ _mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b) };
}

/* One tile x rows over the n groups that are unpacked, from group g0 on. */
static inline __attribute__((always_inline)) void block(const struct pfx_gemm *g,
	struct work *work, const int rows, const int n_scales, const int has_min, uint32_t row,
	uint32_t at, uint32_t g0, uint32_t n)
{
	const uint32_t groups = g->k / PFX_GROUP;
	const int16_t *v = g->q.v + (size_t)row * g->k + (size_t)g0 * PFX_GROUP;
	const float *s = g->q.s + ((size_t)row * groups + g0) * 2;
	__m256i dot[BLOCK_ROWS][2];

	UNROLL for (int r = 0; r < rows; r++) {
		if (g0 == 0) {
			work->acc[at + (uint32_t)r] = v_zero();
		}
	}
	for (uint32_t i = 0; i < n; i++, v += PFX_GROUP) {
		for (int h = 0; h < n_scales; h++) {
			UNROLL for (int r = 0; r < rows; r++) {
				dot[r][0] = dot[r][1] = _mm256_setzero_si256();
			}
			for (int j = h * PAIRS / n_scales; j < (h + 1) * PAIRS / n_scales; j++) {
				__m256i w0 = work->words[i][j][0], w1 = work->words[i][j][1];
				UNROLL for (int r = 0; r < rows; r++) {
					__m256i x = pair(v + (size_t)r * g->k + 2 * j);
					dot[r][0] = _mm256_add_epi32(dot[r][0], _mm256_madd_epi16(w0, x));
					dot[r][1] = _mm256_add_epi32(dot[r][1], _mm256_madd_epi16(w1, x));
				}
			}
			UNROLL for (int r = 0; r < rows; r++) {
				v16 xs = v_set1(s[((size_t)r * groups + i) * 2]), *acc = &work->acc[at + (uint32_t)r];
				*acc = v_fma(v_mul(work->scales[i][h], xs), to_float(dot[r][0], dot[r][1]), *acc);
				if (has_min) {
					*acc = v_fma(work->mins[i], v_set1(s[((size_t)r * groups + i) * 2 + 1]), *acc);
				}
			}
		}
	}
}

static inline __attribute__((always_inline)) void stretch(const struct pfx_gemm *g,
	struct work *work, const int n_scales, const int has_min, uint32_t row0, uint32_t n_rows,
	uint32_t g0, uint32_t n)
{
	uint32_t at = 0;

	for (; at + BLOCK_ROWS <= n_rows; at += BLOCK_ROWS) {
		block(g, work, BLOCK_ROWS, n_scales, has_min, row0 + at, at, g0, n);
	}
	for (; at + 2 <= n_rows; at += 2) {
		block(g, work, 2, n_scales, has_min, row0 + at, at, g0, n);
	}
	if (at < n_rows) {
		block(g, work, 1, n_scales, has_min, row0 + at, at, g0, n);
	}
}

static void integer_tile(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile,
	uint32_t row0, uint32_t n_rows, struct work *work)
{
	for (uint32_t g0 = 0; g0 < p->n_groups; g0 += STRETCH) {
		uint32_t n = p->n_groups - g0 < STRETCH ? p->n_groups - g0 : STRETCH;
		unpack_tile(work, p, tile, g0, n);
		if (p->n_scales == 2) {
			stretch(g, work, 2, 0, row0, n_rows, g0, n);
		} else if (p->has_min) {
			stretch(g, work, 1, 1, row0, n_rows, g0, n);
		} else {
			stretch(g, work, 1, 0, row0, n_rows, g0, n);
		}
	}
	for (uint32_t r = 0; r < n_rows; r++) {
		put_out(g, p, row0 + r, tile, work->acc[r]);
	}
}

static void gemm(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
	uint32_t n_tiles, uint32_t row0, uint32_t n_rows, void *scratch)
{
	PFX_ASSERT(n_rows <= PFX_GEMM_ROWS);
	if (p->n_groups == 0) {
		gemm_floats(g, p, tile0, n_tiles, row0, n_rows, scratch);
		return;
	}
	for (uint32_t t = tile0; t < tile0 + n_tiles; t++) {
		integer_tile(g, p, t, row0, n_rows, scratch);
	}
}

TARGET_END

const struct pfx_variant pfx_variant_avx2 = {
	.name = "avx2",
	.usable = usable,
	.quantise = quantise,
	.gemm = gemm,
	.rmsnorm = rmsnorm,
	.gated = gated,
	.rope = rope,
	.attn_query = attn_query,
	.attn = attn,
	.attn_merge = attn_merge,
	.narrow = narrow,
	.narrow8 = narrow8,
	.exponents_k = exponents_k,
	.exponents_v = exponents_v,
};
