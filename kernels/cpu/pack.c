/*
 * Packing: a matrix's parts become tiles of 16 outputs, laid out so that one 64-byte vector
 * holds a pair of neighbouring k for each of the 16 outputs, as two 16-bit words.
 *
 * Pair p (0..15) of a group holds k = 2p and 2p + 1. I8 keeps two pairs in one word, as bytes:
 * vector j of a group (j < 8) holds pairs 2j and 2j+1. U4 and I4 keep four, as nibbles: vector j
 * (j < 4) holds pairs 4j and 4j+1 in the low nibbles of the bytes, 4j+2 and 4j+3 in the high ones.
 * So a shift and a mask of a vector give the words of one pair, which is what vpdpwssd (vpmaddwd)
 * eats, or the bytes of two, which are four k in the order 0 2 1 3, for vpdpbusd.
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dtype_group.h"

#define HUGE_PAGE ((size_t)2 << 20)

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* Large ones on large pages: a decode step walks all of them. */
static void *weight_alloc(size_t bytes)
{
	void *p;

	if (bytes < 2 * HUGE_PAGE) {
		return pfx_aligned_alloc(64, align64(bytes));
	}
	bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	p = pfx_aligned_alloc(HUGE_PAGE, bytes);
	if (p != NULL) {
		madvise(p, bytes, MADV_HUGEPAGE);
	}
	return p;
}

static void lay_out(struct pfx_part *p, enum pfx_dtype type, uint32_t n, uint32_t n0, uint32_t k)
{
	const struct pfx_group_info *gi = pfx_group_info(type);
	size_t codes, scale;

	*p = (struct pfx_part){ .n = n, .n0 = n0, .k = k, .n_tiles = (n + PFX_TILE - 1) / PFX_TILE };
	if (gi == NULL) {
		p->code = type == PFX_F32 ? PFX_CODE_F32 : type == PFX_F16 ? PFX_CODE_F16 : PFX_CODE_BF16;
		p->tile_bytes = (size_t)k * PFX_TILE * (type == PFX_F32 ? 4 : 2);
		p->tile_bytes = align64(p->tile_bytes);
		return;
	}
	p->n_groups = k / PFX_GROUP;
	p->has_min = gi->has_min;
	p->scale_f16 = gi->scale_f16;
	p->n_scales = gi->n_scales;
	p->code = gi->q_max > 15 || gi->q_min < -8 ? PFX_CODE_I8 :
		gi->has_min ? PFX_CODE_U4 : PFX_CODE_I4;
	codes = (size_t)p->n_groups * PFX_GROUP * PFX_TILE / (p->code == PFX_CODE_I8 ? 1 : 2);
	scale = (size_t)PFX_TILE * (p->scale_f16 ? 2 : 4) * p->n_groups;
	p->scales_at = codes;
	p->mins_at = p->scales_at + align64(scale * p->n_scales);
	p->tile_bytes = p->mins_at + (p->has_min ? align64(scale) : 0);
}

/* Byte of a group, and shift inside it, that holds element kk (0..31) of an output lane. */
static size_t code_at(enum pfx_code code, uint32_t lane, uint32_t kk, uint32_t *shift)
{
	uint32_t pair = kk / 2, word = kk % 2;

	if (code == PFX_CODE_I8) {
		*shift = 0;
		return (size_t)pair / 2 * 64 + lane * 4 + word * 2 + pair % 2;
	}
	*shift = pair % 4 / 2 * 4;
	return (size_t)pair / 4 * 64 + lane * 4 + word * 2 + pair % 2;
}

static size_t group_bytes(enum pfx_code code)
{
	return PFX_GROUP * PFX_TILE / (code == PFX_CODE_I8 ? 1 : 2);
}

static void put_scale(const struct pfx_part *p, uint8_t *at, size_t i, float f)
{
	uint16_t h;

	if (p->scale_f16) {
		h = pfx_f32_to_f16(f); /* exact: it was one */
		memcpy(at + 2 * i, &h, 2);
	} else {
		memcpy(at + 4 * i, &f, 4);
	}
}

static float get_scale(const struct pfx_part *p, const uint8_t *at, size_t i)
{
	uint16_t h;
	float f;

	if (p->scale_f16) {
		memcpy(&h, at + 2 * i, 2);
		return pfx_f16_to_f32(h);
	}
	memcpy(&f, at + 4 * i, 4);
	return f;
}

static void pack_group(const struct pfx_part *p, uint8_t *tile, uint32_t lane, uint32_t g,
	const struct pfx_group *grp)
{
	uint8_t *codes = tile + g * group_bytes(p->code);
	uint32_t shift;

	for (uint32_t kk = 0; kk < PFX_GROUP; kk++) {
		uint8_t *at = codes + code_at(p->code, lane, kk, &shift);
		if (p->code == PFX_CODE_I8) {
			*at = (uint8_t)grp->q[kk];
		} else {
			*at = (uint8_t)(*at | (grp->q[kk] & 15) << shift);
		}
	}
	for (uint32_t i = 0; i < p->n_scales; i++) {
		put_scale(p, tile + p->scales_at, ((size_t)g * p->n_scales + i) * PFX_TILE + lane,
			grp->scale[i]);
	}
	if (p->has_min) {
		put_scale(p, tile + p->mins_at, (size_t)g * PFX_TILE + lane, grp->min);
	}
}

static void pack_floats(const struct pfx_part *p, uint8_t *tile, uint32_t lane, const uint8_t *row)
{
	size_t each = p->code == PFX_CODE_F32 ? 4 : 2;

	for (uint32_t k = 0; k < p->k; k++) {
		memcpy(tile + ((size_t)k * PFX_TILE + lane) * each, row + k * each, each);
	}
}

struct pack_job {
	const struct pfx_part *part;
	const struct pfx_weight_part *src;
	size_t row_bytes;
};

static void pack_tile(void *arg, uint32_t t, uint32_t thread)
{
	const struct pack_job *job = arg;
	const struct pfx_part *p = job->part;
	uint8_t *tile = p->tiles + t * p->tile_bytes;
	struct pfx_group grp;

	memset(tile, 0, p->tile_bytes);
	for (uint32_t lane = 0; lane < PFX_TILE && t * PFX_TILE + lane < p->n; lane++) {
		const uint8_t *row = (const uint8_t *)job->src->data +
			(size_t)(t * PFX_TILE + lane) * job->row_bytes;
		if (p->n_groups == 0) {
			pack_floats(p, tile, lane, row);
			continue;
		}
		for (uint32_t g = 0; g < p->n_groups; g++) {
			pfx_group_read(job->src->type, row, g, &grp);
			pack_group(p, tile, lane, g, &grp);
		}
	}
}

int pfx_cpu_weight_pack(struct pfx_device *dev, const struct pfx_weight_part *parts,
	uint32_t n_parts, uint32_t k, struct pfx_weight **out)
{
	struct pfx_weight *w = pfx_calloc(1, sizeof(*w) + n_parts * sizeof(w->parts[0]));
	uint8_t *at;

	if (w == NULL) {
		return -ENOMEM;
	}
	w->k = k;
	w->n_parts = n_parts;
	for (uint32_t i = 0; i < n_parts; i++) {
		if (k == 0 || parts[i].n == 0 || parts[i].n > UINT32_MAX - 64 - w->n ||
			pfx_dtype_row_bytes(parts[i].type, k) == 0) {
			pfx_free(w);
			return -EINVAL;
		}
		lay_out(&w->parts[i], parts[i].type, parts[i].n, w->n, k);
		w->n += parts[i].n;
		w->bytes += w->parts[i].tile_bytes * w->parts[i].n_tiles;
	}
	at = w->base = weight_alloc(w->bytes);
	if (at == NULL) {
		pfx_free(w);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_parts; i++) {
		struct pack_job job = { &w->parts[i], &parts[i], pfx_dtype_row_bytes(parts[i].type, k) };
		w->parts[i].tiles = at;
		at += w->parts[i].tile_bytes * w->parts[i].n_tiles;
		pfx_pool_run(dev->pool, pack_tile, &job, w->parts[i].n_tiles);
	}
	*out = w;
	return 0;
}

int pfx_cpu_vector_pack(struct pfx_device *dev, enum pfx_dtype type, const void *data, uint32_t n,
	struct pfx_weight **out)
{
	struct pfx_weight *w;

	if (n == 0 || pfx_dtype_row_bytes(type, n) == 0) {
		return -EINVAL;
	}
	w = pfx_calloc(1, sizeof(*w));
	if (w == NULL) {
		return -ENOMEM;
	}
	w->n = n;
	w->k = 1;
	w->bytes = (size_t)n * sizeof(float);
	w->base = pfx_aligned_alloc(64, align64(w->bytes));
	if (w->base == NULL) {
		pfx_free(w);
		return -ENOMEM;
	}
	pfx_dtype_widen(type, data, n, w->base);
	*out = w;
	return 0;
}

void pfx_cpu_weight_free(struct pfx_device *dev, struct pfx_weight *w)
{
	if (w != NULL) {
		pfx_free(w->base);
		pfx_free(w);
	}
}

void pfx_unpack_group(const struct pfx_part *p, uint32_t n, uint32_t g, int8_t q[32],
	float scale[2], float *min)
{
	const uint8_t *tile = pfx_tile_at(p, n / PFX_TILE), *codes = tile + g * group_bytes(p->code);
	uint32_t lane = n % PFX_TILE, shift;

	for (uint32_t kk = 0; kk < PFX_GROUP; kk++) {
		uint8_t byte = codes[code_at(p->code, lane, kk, &shift)];
		int v = byte >> shift & 15;
		q[kk] = p->code == PFX_CODE_I8 ? (int8_t)byte :
			(int8_t)(p->code == PFX_CODE_I4 ? (v ^ 8) - 8 : v);
	}
	for (uint32_t i = 0; i < 2; i++) {
		size_t at = ((size_t)g * p->n_scales + (i < p->n_scales ? i : 0)) * PFX_TILE + lane;
		scale[i] = get_scale(p, tile + p->scales_at, at);
	}
	*min = p->has_min ? get_scale(p, tile + p->mins_at, (size_t)g * PFX_TILE + lane) : 0;
}

float pfx_unpack_float(const struct pfx_part *p, uint32_t n, uint32_t k)
{
	const uint8_t *tile = pfx_tile_at(p, n / PFX_TILE);
	size_t at = (size_t)k * PFX_TILE + n % PFX_TILE;
	float f;

	if (p->code == PFX_CODE_F32) {
		pfx_dtype_widen(PFX_F32, tile + 4 * at, 1, &f);
	} else {
		pfx_dtype_widen(p->code == PFX_CODE_F16 ? PFX_F16 : PFX_BF16, tile + 2 * at, 1, &f);
	}
	return f;
}

void pfx_unpack_row(const struct pfx_weight *w, uint32_t n, float *y)
{
	const struct pfx_part *p = w->parts;
	int8_t q[32];
	float scale[2], min;

	while (n - p->n0 >= p->n) {
		p++;
	}
	n -= p->n0;
	for (uint32_t k = 0; p->n_groups == 0 && k < p->k; k++) {
		y[k] = pfx_unpack_float(p, n, k);
	}
	for (uint32_t g = 0; g < p->n_groups; g++) {
		pfx_unpack_group(p, n, g, q, scale, &min);
		for (uint32_t kk = 0; kk < 32; kk++) {
			float v = scale[kk / 16] * (float)q[kk];
			y[g * 32 + kk] = p->has_min ? v + min : v;
		}
	}
}
