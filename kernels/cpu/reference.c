/*
 * The reference variant: plain loops that say what each kernel computes, operation by
 * operation. fmaf stands where the fast variants use a fused multiply-add, nowhere else
 * (this folder is built with -ffp-contract=off); sums that the fast variants keep in 16 lanes
 * are kept in 16 lanes here.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2.h"
#include "kernels/dtype_group.h"

static int usable(void)
{
	return 1;
}

static float exp2_poly(float x)
{
	float t, f, p;
	uint32_t bits, n;

	/* NaN goes through. */
	x = PFX_EXP2_MIN > x ? PFX_EXP2_MIN : x;
	x = PFX_EXP2_MAX < x ? PFX_EXP2_MAX : x;
	t = x + PFX_EXP2_MAGIC;
	f = x - (t - PFX_EXP2_MAGIC);
	p = fmaf(PFX_EXP2_C6, f, PFX_EXP2_C5);
	p = fmaf(p, f, PFX_EXP2_C4);
	p = fmaf(p, f, PFX_EXP2_C3);
	p = fmaf(p, f, PFX_EXP2_C2);
	p = fmaf(p, f, PFX_EXP2_C1);
	p = fmaf(p, f, 1.0f);
	memcpy(&n, &t, 4);
	memcpy(&bits, &p, 4);
	bits += n << 23;
	memcpy(&p, &bits, 4);
	return p;
}

/* 16 lanes to one, in the order of halving the vector. */
static float sum_lanes(float s[PFX_TILE])
{
	for (uint32_t w = PFX_TILE / 2; w > 0; w /= 2) {
		for (uint32_t i = 0; i < w; i++) {
			s[i] += s[i + w];
		}
	}
	return s[0];
}

static void quantise_group(const float *x, float top, int16_t *v, float *s)
{
	uint32_t bits, max = 0;
	int32_t total = 0;
	float amax, inv;

	for (uint32_t i = 0; i < PFX_GROUP; i++) {
		memcpy(&bits, &x[i], 4);
		bits &= 0x7fffffffu;
		max = bits > max ? bits : max;
	}
	memcpy(&amax, &max, 4);
	if (max >= 0x7f800000u || amax < 1e-30f) {
		memset(v, 0, PFX_GROUP * sizeof(*v));
		s[0] = s[1] = max >= 0x7f800000u ? NAN : 0;
		return;
	}
	inv = top / amax;
	for (uint32_t i = 0; i < PFX_GROUP; i++) {
		v[i] = (int16_t)rintf(x[i] * inv);
		total += v[i];
	}
	s[0] = amax / top;
	s[1] = s[0] * (float)total;
}

static void quantise(const float *x, uint32_t k, float top, int16_t *v, float *s)
{
	for (uint32_t g = 0; g < k / PFX_GROUP; g++) {
		quantise_group(x + g * PFX_GROUP, top, v + g * PFX_GROUP, s + 2 * g);
	}
}

/*
 * One output of some rows: for each group in ascending order the integers' sum, exact,
 * times the product of both scales, for each half that has a scale of its own; then the
 * minimum times the activations' sum.
 */
static void dot_integers(const struct pfx_gemm *gm, const struct pfx_part *p, uint32_t n,
	uint32_t row0, uint32_t n_rows, float *acc)
{
	uint32_t span = PFX_GROUP / p->n_scales;
	float scale[2], min;
	int8_t q[PFX_GROUP];

	for (uint32_t g = 0; g < p->n_groups; g++) {
		pfx_unpack_group(p, n, g, q, scale, &min);
		for (uint32_t i = 0; i < n_rows; i++) {
			const int16_t *v = gm->q.v + (size_t)(row0 + i) * gm->k + g * PFX_GROUP;
			const float *s = gm->q.s + ((size_t)(row0 + i) * p->n_groups + g) * 2;
			for (uint32_t h = 0; h < p->n_scales; h++) {
				int32_t dot = 0;
				for (uint32_t kk = h * span; kk < (h + 1) * span; kk++) {
					dot += q[kk] * v[kk];
				}
				acc[i] = fmaf(scale[h] * s[0], (float)dot, acc[i]);
			}
			if (p->has_min) {
				acc[i] = fmaf(min, s[1], acc[i]);
			}
		}
	}
}

static void dot_floats(const struct pfx_gemm *gm, const struct pfx_part *p, uint32_t n,
	uint32_t row0, uint32_t n_rows, float *acc)
{
	for (uint32_t k = 0; k < gm->k; k++) {
		float w = pfx_unpack_float(p, n, k);
		for (uint32_t i = 0; i < n_rows; i++) {
			acc[i] = fmaf(w, gm->x[(size_t)(row0 + i) * gm->k + k], acc[i]);
		}
	}
}

static void gemm(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
	uint32_t n_tiles, uint32_t row0, uint32_t n_rows, void *scratch)
{
	uint32_t end = (tile0 + n_tiles) * PFX_TILE;
	float *acc = scratch; /* [n_rows] */

	for (uint32_t n = tile0 * PFX_TILE; n < end && n < p->n; n++) {
		memset(acc, 0, n_rows * sizeof(*acc));
		if (p->n_groups != 0) {
			dot_integers(g, p, n, row0, n_rows, acc);
		} else {
			dot_floats(g, p, n, row0, n_rows, acc);
		}
		for (uint32_t i = 0; i < n_rows; i++) {
			float *y = g->y + (size_t)(row0 + i) * g->n + p->n0 + n;
			if (g->bias != NULL) {
				acc[i] += g->bias[p->n0 + n];
			}
			*y = g->add ? acc[i] + *y : acc[i];
		}
	}
}

static void rmsnorm(const float *x, const float *w, float eps, uint32_t dim, float *y)
{
	float lanes[PFX_TILE] = { 0 }, r;

	for (uint32_t i = 0; i < dim; i++) {
		lanes[i % PFX_TILE] = fmaf(x[i], x[i], lanes[i % PFX_TILE]);
	}
	r = 1.0f / sqrtf(sum_lanes(lanes) / (float)dim + eps);
	for (uint32_t i = 0; i < dim; i++) {
		y[i] = x[i] * r * w[i];
	}
}

static void gated(enum pfx_act act, const float *gate, const float *up, uint32_t n, float *y)
{
	for (uint32_t i = 0; i < n; i++) {
		float x = gate[i], e;
		if (act == PFX_ACT_SILU) {
			e = x * -PFX_LOG2E;
		} else {
			e = x * fmaf(PFX_GELU_B, x * x, PFX_GELU_A);
		}
		y[i] = x / (1.0f + exp2_poly(e)) * up[i];
	}
}

static void rope(enum pfx_rope_kind kind, uint32_t n_dims, const float *cs, float *x)
{
	uint32_t half = n_dims / 2;

	for (uint32_t i = 0; i < half; i++) {
		float *a = kind == PFX_ROPE_PAIRS ? &x[2 * i] : &x[i];
		float *b = kind == PFX_ROPE_PAIRS ? &x[2 * i + 1] : &x[i + half];
		float c = cs[i], s = cs[half + i], x0 = *a, x1 = *b;
		*a = fmaf(x0, c, -(x1 * s));
		*b = fmaf(x0, s, x1 * c);
	}
}

/* x * up as a word, rounded once. */
static int16_t word(float x, float up)
{
	return (int16_t)(fmaf(x, up, PFX_WORD_MAGIC) - PFX_WORD_MAGIC);
}

/* A query vector to words; see attn.h. */
static float attn_query(const float *x, uint32_t dim, uint32_t dim_pad, float factor, int16_t *q)
{
	float lanes[PFX_TILE] = { 0 }, norm;

	for (uint32_t d = 0; d < dim; d++) {
		lanes[d % PFX_TILE] = fmaf(x[d], x[d], lanes[d % PFX_TILE]);
	}
	norm = sqrtf(sum_lanes(lanes));
	memset(q, 0, dim_pad * sizeof(*q));
	if (!(norm >= PFX_QUERY_MIN && norm < INFINITY)) {
		return norm < PFX_QUERY_MIN ? 0 : NAN;
	}
	for (uint32_t d = 0; d < dim; d++) {
		q[d] = word(x[d], PFX_QUERY_NORM / norm);
	}
	return norm / PFX_QUERY_NORM * factor;
}

/* f16 of a position with exponent e to words; returns their scale. */
static float words_f16(const uint16_t *f16, size_t stride, uint32_t n, int bits, int e, int16_t *words)
{
	for (uint32_t i = 0; i < n; i++) {
		words[i] = e == PFX_EXP_NONE ? 0
			: word(pfx_f16_to_f32(f16[i * stride]), ldexpf(1, PFX_WORD_UP(bits) - 127 - e));
	}
	return e == PFX_EXP_NONE ? NAN : ldexpf(1, PFX_WORD_DOWN(bits) - 127 + e);
}

/* K of a position as words; returns their scale. kv.c has the layouts. */
static float k_words(const struct pfx_attn *a, uint32_t pos, int16_t *words)
{
	uint32_t b = a->block_tokens, at = pos % b;
	const int8_t *bytes = a->kb[pos / b];

	if (a->type == PFX_KV_F16) {
		return words_f16((const uint16_t *)a->kb[pos / b] + at, b, a->head_dim,
			pfx_k_bits(a->head_dim), ((const uint8_t *)a->ke[pos / b])[at], words);
	}
	for (uint32_t d = 0; d < a->head_dim; d++) {
		words[d] = bytes[((size_t)d / 2 * b + at) * 2 + d % 2];
	}
	return pfx_f16_to_f32(((const uint16_t *)a->ke[pos / b])[at]);
}

static float v_words(const struct pfx_attn *a, uint32_t pos, int16_t *words)
{
	uint32_t b = a->block_tokens, at = pos % b;
	const int8_t *bytes = a->vb[pos / b];

	if (a->type == PFX_KV_F16) {
		return words_f16((const uint16_t *)a->vb[pos / b] + (size_t)at * a->head_dim, 1, a->head_dim,
			PFX_V_BITS, ((const uint8_t *)a->ve[pos / b])[at], words);
	}
	for (uint32_t d = 0; d < a->head_dim; d++) {
		words[d] = bytes[((size_t)at / 2 * a->head_dim + d) * 2 + at % 2];
	}
	return pfx_f16_to_f32(((const uint16_t *)a->ve[pos / b])[at]);
}

static void attn_scores(const struct pfx_attn *a, uint32_t i, float *p)
{
	const int16_t *q = a->q + (size_t)i * a->dim_pad;
	int16_t k[PFX_HEAD_DIM_MAX];

	for (uint32_t j = 0; j < a->n_valid[i]; j++) {
		float scale = k_words(a, j, k);
		int32_t dot = 0;
		for (uint32_t d = 0; d < a->head_dim; d++) {
			dot += q[d] * k[d];
		}
		p[j] = (float)dot * scale * a->q_scale[i];
	}
}

static void attn_vector(const struct pfx_attn *a, uint32_t i)
{
	float *p = a->p, *scale = a->v_scale, *o = a->o + (size_t)i * a->dim_pad;
	float lanes[PFX_TILE] = { 0 }, sums[PFX_TILE] = { 0 }, m = -INFINITY, most = 0, eighth;
	uint32_t n = a->n_valid[i];
	int16_t *v = (int16_t *)a->v_words;

	attn_scores(a, i, p);
	for (uint32_t j = 0; j < n; j++) {
		m = p[j] > m ? p[j] : m;
		scale[j] = v_words(a, j, v + (size_t)j * a->dim_pad);
	}
	for (uint32_t j = 0; j < n; j++) {
		p[j] = exp2_poly(p[j] - m);
		lanes[j % PFX_TILE] += p[j];
		p[j] *= scale[j];
		sums[j % PFX_TILE] += p[j];
		most = p[j] > most ? p[j] : most;
	}
	a->m[i] = m;
	a->l[i] = sum_lanes(lanes);
	eighth = sum_lanes(sums) * 0.125f;
	most = most > eighth ? most : eighth;
	memset(o, 0, a->dim_pad * sizeof(*o));
	for (uint32_t d = 0; d < a->head_dim; d++) {
		int32_t dot = 0;
		for (uint32_t j = 0; j < n; j++) {
			dot += word(p[j], PFX_WEIGHT_MAX / most) * v[(size_t)j * a->dim_pad + d];
		}
		o[d] = (float)dot * (most / PFX_WEIGHT_MAX);
	}
}

static void attn(const struct pfx_attn *a)
{
	for (uint32_t i = 0; i < a->n; i++) {
		attn_vector(a, i);
	}
}

static void attn_merge(uint32_t dim_pad, float *run_m, float *run_l, float *run_o, float m, float l,
	const float *o)
{
	float top = *run_m > m ? *run_m : m, a = exp2_poly(*run_m - top), b = exp2_poly(m - top);

	*run_m = top;
	*run_l = fmaf(*run_l, a, l * b);
	for (uint32_t d = 0; d < dim_pad; d++) {
		run_o[d] = fmaf(run_o[d], a, o[d] * b);
	}
}

static uint32_t narrow(const float *x, uint32_t n, uint16_t *y)
{
	uint32_t amax = 0;

	for (uint32_t i = 0; i < n; i++) {
		y[i] = pfx_f32_to_f16(x[i]);
		amax = (y[i] & 0x7fffu) > amax ? y[i] & 0x7fffu : amax;
	}
	return amax;
}

static uint16_t narrow8(const float *x, uint32_t n, int8_t *y)
{
	uint32_t amax = 0, bits;
	uint16_t scale;
	float most, inv;

	for (uint32_t i = 0; i < n; i++) {
		memcpy(&bits, &x[i], 4);
		amax = (bits & 0x7fffffffu) > amax ? bits & 0x7fffffffu : amax;
	}
	memcpy(&most, &amax, 4);
	scale = pfx_f32_to_f16(most / 127.0f);
	memset(y, 0, n);
	if (scale >= 0x7c00) {
		return PFX_F16_NAN;
	}
	inv = 1.0f / pfx_f16_to_f32(scale);
	for (uint32_t i = 0; i < n && scale != 0; i++) {
		float v = x[i] * inv;
		v = v < 127.0f ? v : 127.0f;
		v = v > -127.0f ? v : -127.0f;
		y[i] = (int8_t)word(v, 1);
	}
	return scale;
}

static uint8_t exponent_of(const uint16_t *x, uint32_t n, size_t stride)
{
	uint32_t amax = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t half = x[i * stride] & 0x7fffu;
		amax = half > amax ? half : amax;
	}
	return pfx_exponent(amax);
}

static void exponents_k(const uint16_t *x, uint32_t n_rows, uint32_t n_cols, uint8_t *e)
{
	for (uint32_t i = 0; i < n_cols; i++) {
		e[i] = exponent_of(x + i, n_rows, n_cols);
	}
}

static void exponents_v(const uint16_t *x, uint32_t n_rows, uint32_t n_cols, uint8_t *e)
{
	for (uint32_t i = 0; i < n_rows; i++) {
		e[i] = exponent_of(x + (size_t)i * n_cols, n_cols, 1);
	}
}

const struct pfx_variant pfx_variant_reference = {
	.name = "reference",
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
