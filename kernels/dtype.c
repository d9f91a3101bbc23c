#include "kernels/dtype.h"

#include <string.h>

#include "base/assert.h"
#include "kernels/dtype_group.h"

static const struct {
	uint32_t type;
	struct pfx_dtype_info info;
} types[] = {
	{ PFX_F32, { "F32", 1, 4 } },
	{ PFX_F16, { "F16", 1, 2 } },
	{ PFX_BF16, { "BF16", 1, 2 } },
	{ PFX_Q4_0, { "Q4_0", 32, 18 } },
	{ PFX_Q4_1, { "Q4_1", 32, 20 } },
	{ PFX_Q5_0, { "Q5_0", 32, 22 } },
	{ PFX_Q5_1, { "Q5_1", 32, 24 } },
	{ PFX_Q8_0, { "Q8_0", 32, 34 } },
	{ PFX_Q4_K, { "Q4_K", 256, 144 } },
	{ PFX_Q5_K, { "Q5_K", 256, 176 } },
	{ PFX_Q6_K, { "Q6_K", 256, 210 } },
};

const struct pfx_dtype_info *pfx_dtype_info(uint32_t type)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (types[i].type == type) {
			return &types[i].info;
		}
	}
	return NULL;
}

size_t pfx_dtype_row_bytes(enum pfx_dtype type, uint64_t k)
{
	const struct pfx_dtype_info *info = pfx_dtype_info(type);

	if (info == NULL || k % info->block_elems != 0 ||
		k / info->block_elems > SIZE_MAX / info->block_bytes) {
		return 0;
	}
	return (size_t)(k / info->block_elems) * info->block_bytes;
}

const struct pfx_group_info *pfx_group_info(enum pfx_dtype type)
{
	static const struct pfx_group_info q4_0 = { -8, 7, 0, 1, 1 }, q4_1 = { 0, 15, 1, 1, 1 };
	static const struct pfx_group_info q5_0 = { -16, 15, 0, 1, 1 }, q5_1 = { 0, 31, 1, 1, 1 };
	static const struct pfx_group_info q8_0 = { -128, 127, 0, 1, 1 }, q4_k = { 0, 15, 1, 0, 1 };
	static const struct pfx_group_info q5_k = { 0, 31, 1, 0, 1 }, q6_k = { -32, 31, 0, 0, 2 };

	switch (type) {
	case PFX_Q4_0:
		return &q4_0;
	case PFX_Q4_1:
		return &q4_1;
	case PFX_Q5_0:
		return &q5_0;
	case PFX_Q5_1:
		return &q5_1;
	case PFX_Q8_0:
		return &q8_0;
	case PFX_Q4_K:
		return &q4_k;
	case PFX_Q5_K:
		return &q5_k;
	case PFX_Q6_K:
		return &q6_k;
	default:
		return NULL;
	}
}

float pfx_f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31u, man = h & 1023u, bits;
	float f;

	if (exp == 31) {
		/* A NaN stays one and becomes quiet, as in hardware. */
		bits = sign | 0x7f800000u | man << 13 | (man != 0 ? 0x400000u : 0u);
	} else if (exp != 0) {
		bits = sign | (exp + 112) << 23 | man << 13;
	} else {
		f = (float)man * 0x1p-24f;
		memcpy(&bits, &f, 4);
		bits |= sign;
	}
	memcpy(&f, &bits, 4);
	return f;
}

uint16_t pfx_f32_to_f16(float f)
{
	uint32_t bits, sign, abs, shift, man, half;

	memcpy(&bits, &f, 4);
	sign = bits >> 16 & 0x8000u;
	abs = bits & 0x7fffffffu;
	if (abs > 0x7f800000u) {
		return (uint16_t)(sign | 0x7e00u | (abs >> 13 & 0x3ffu));
	}
	if (abs >= 0x47800000u) {
		return (uint16_t)(sign | 0x7c00u); /* 65536 and above, infinity */
	}
	if (abs >= 0x38800000u) {
		/* Normal: round to even on the 13 bits that go; a carry moves up by itself. */
		return (uint16_t)(sign | ((abs - 0x38000000u + 0xfffu + (abs >> 13 & 1u)) >> 13));
	}
	if (abs < 0x33000000u) {
		return (uint16_t)sign; /* below half of the smallest subnormal */
	}
	man = (abs & 0x7fffffu) | 0x800000u;
	shift = 126 - (abs >> 23); /* 14..24 */
	half = 1u << (shift - 1);
	return (uint16_t)(sign | ((man + half - 1 + (man >> shift & 1u)) >> shift));
}

static float f16_at(const uint8_t *p)
{
	return pfx_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 16 bytes of nibbles: element j is the low one of byte j, element j + 16 the high one. */
static void read_nibbles(const uint8_t *qs, int8_t q[PFX_GROUP])
{
	for (int j = 0; j < 16; j++) {
		q[j] = (int8_t)(qs[j] & 15);
		q[j + 16] = (int8_t)(qs[j] >> 4);
	}
}

/* The fifth bits of 32 elements, little-endian, bit i for element i. */
static void add_fifth_bits(const uint8_t *qh, int8_t q[PFX_GROUP])
{
	for (int j = 0; j < 32; j++) {
		q[j] = (int8_t)(q[j] | (qh[j / 8] >> (j % 8) & 1) << 4);
	}
}

static void shift_down(int8_t q[PFX_GROUP], int by)
{
	for (int j = 0; j < 32; j++) {
		q[j] = (int8_t)(q[j] - by);
	}
}

/* Q4_K and Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes. */
static void read_scale_min(const uint8_t *s, uint32_t i, uint32_t *scale, uint32_t *min)
{
	if (i < 4) {
		*scale = s[i] & 63u;
		*min = s[i + 4] & 63u;
	} else {
		*scale = (s[i + 4] & 15u) | (uint32_t)(s[i - 4] >> 6) << 4;
		*min = (uint32_t)(s[i + 4] >> 4) | (uint32_t)(s[i] >> 6) << 4;
	}
}

/* Superblocks of 256: f16 d, f16 dmin, 12 bytes of scales, (Q5_K: 32 of fifth bits,) 128 of nibbles. */
static void read_q45_k(const uint8_t *b, const uint8_t *qh, const uint8_t *qs, uint32_t i,
	struct pfx_group *out)
{
	uint32_t scale, min;

	read_scale_min(b + 4, i, &scale, &min);
	out->scale[0] = out->scale[1] = f16_at(b) * (float)scale;
	out->min = -(f16_at(b + 2) * (float)min);
	for (uint32_t j = 0; j < 32; j++) {
		uint32_t q = (uint32_t)(qs[i / 2 * 32 + j] >> (i % 2 * 4)) & 15u;
		if (qh != NULL) {
			q |= (uint32_t)(qh[j] >> i & 1) << 4;
		}
		out->q[j] = (int8_t)q;
	}
}

/* Q6_K: 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, f16 d. */
static void read_q6_k(const uint8_t *b, uint32_t i, struct pfx_group *out)
{
	uint32_t half = i / 4, quarter = i % 4; /* 128 elements; 32 of them */
	const uint8_t *ql = b + half * 64 + quarter % 2 * 32, *qh = b + 128 + half * 32;
	const int8_t *sc = (const int8_t *)b + 192 + half * 8 + quarter * 2;
	float d = f16_at(b + 208);

	out->scale[0] = d * (float)sc[0];
	out->scale[1] = d * (float)sc[1];
	for (uint32_t j = 0; j < 32; j++) {
		int low = ql[j] >> (quarter / 2 * 4) & 15, high = qh[j] >> (quarter * 2) & 3;
		out->q[j] = (int8_t)((low | high << 4) - 32);
	}
}

void pfx_group_read(enum pfx_dtype type, const void *row, uint64_t g, struct pfx_group *out)
{
	const struct pfx_dtype_info *info = pfx_dtype_info(type);
	uint32_t per_block = info->block_elems / PFX_GROUP, i = (uint32_t)(g % per_block);
	const uint8_t *b = (const uint8_t *)row + g / per_block * info->block_bytes;

	out->min = 0;
	switch (type) {
	case PFX_Q4_0:
		read_nibbles(b + 2, out->q);
		shift_down(out->q, 8);
		break;
	case PFX_Q4_1:
		out->min = f16_at(b + 2);
		read_nibbles(b + 4, out->q);
		break;
	case PFX_Q5_0:
		read_nibbles(b + 6, out->q);
		add_fifth_bits(b + 2, out->q);
		shift_down(out->q, 16);
		break;
	case PFX_Q5_1:
		out->min = f16_at(b + 2);
		read_nibbles(b + 8, out->q);
		add_fifth_bits(b + 4, out->q);
		break;
	case PFX_Q8_0:
		memcpy(out->q, b + 2, PFX_GROUP);
		break;
	case PFX_Q4_K:
		read_q45_k(b, NULL, b + 16, i, out);
		return;
	case PFX_Q5_K:
		read_q45_k(b, b + 16, b + 48, i, out);
		return;
	case PFX_Q6_K:
		read_q6_k(b, i, out);
		return;
	default:
		PFX_ASSERT(0);
	}
	out->scale[0] = out->scale[1] = f16_at(b);
}

static void widen_groups(enum pfx_dtype type, const void *src, uint64_t k, float *dst)
{
	int has_min = pfx_group_info(type)->has_min;
	struct pfx_group g;

	for (uint64_t i = 0; i < k / PFX_GROUP; i++) {
		pfx_group_read(type, src, i, &g);
		for (uint32_t j = 0; j < PFX_GROUP; j++) {
			float w = g.scale[j / 16] * (float)g.q[j];
			dst[i * PFX_GROUP + j] = has_min ? w + g.min : w;
		}
	}
}

void pfx_dtype_widen(enum pfx_dtype type, const void *src, uint64_t k, float *dst)
{
	const uint8_t *b = src;
	uint32_t bits;

	PFX_ASSERT(k == 0 || pfx_dtype_row_bytes(type, k) != 0);
	switch (type) {
	case PFX_F32:
		memcpy(dst, src, k * sizeof(*dst));
		break;
	case PFX_F16:
		for (uint64_t i = 0; i < k; i++) {
			dst[i] = f16_at(b + 2 * i);
		}
		break;
	case PFX_BF16:
		for (uint64_t i = 0; i < k; i++) {
			bits = (uint32_t)(b[2 * i] | b[2 * i + 1] << 8) << 16;
			memcpy(&dst[i], &bits, 4);
		}
		break;
	default:
		widen_groups(type, src, k, dst);
	}
}
