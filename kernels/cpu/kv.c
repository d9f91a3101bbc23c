/*
 * The KV arena: blocks side by side in one mapping that the system fills with zero pages on
 * use. A block is [layer][K, V][kv_head] planes.
 *
 *   f16   a K plane is [head_dim][block_tokens], so that scores are computed with positions side
 *         by side, a V plane [block_tokens][head_dim]. Beside each block stand the exponents of
 *         its positions, written with it.
 *   int8  K [head_dim/2][block_tokens][2], V [block_tokens/2][head_dim][2]: pairs as the products
 *         want them (of one token: V is one pair, half of it unused). Behind the planes follow
 *         the scales, f16 [layer][K, V][kv_head][block_tokens].
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "kernels/cpu/cpu.h"

static size_t n_planes(const struct pfx_kv_shape *shape)
{
	return (size_t)shape->n_layers * 2 * shape->n_kv_heads;
}

/* Bytes of a plane; those of a block of one token have room for a pair. */
static size_t plane_bytes(const struct pfx_kv_shape *shape)
{
	return shape->type == PFX_KV_F16
		? (size_t)shape->head_dim * shape->block_tokens * sizeof(uint16_t)
		: (size_t)shape->head_dim * ((shape->block_tokens + 1) / 2 * 2);
}

size_t pfx_cpu_kv_block_bytes(const struct pfx_kv_shape *shape)
{
	size_t marks = shape->type == PFX_KV_F16 ? 0 : shape->block_tokens * sizeof(uint16_t);

	return n_planes(shape) * (plane_bytes(shape) + marks);
}

static void *map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED) {
		return NULL;
	}
	/* Planes are a few KiB and lie all over the arena: large pages spare the page walks. */
	madvise(at, bytes, MADV_HUGEPAGE);
	return at;
}

int pfx_cpu_kv_open(struct pfx_device *dev, const struct pfx_kv_shape *shape, uint32_t n_blocks,
	struct pfx_kv **out)
{
	struct pfx_kv *kv;
	uint32_t b = shape->block_tokens;

	if (shape->type != PFX_KV_F16 && (shape->type != PFX_KV_INT8 || shape->head_dim % 2 != 0)) {
		return PFX_E_UNSUPPORTED;
	}
	if (n_blocks == 0 || shape->n_layers == 0 || shape->n_kv_heads == 0 || shape->head_dim == 0 ||
		shape->head_dim > PFX_HEAD_DIM_MAX ||
		b == 0 || b > PFX_SEGMENT || (b & (b - 1)) != 0) {
		return -EINVAL;
	}
	kv = pfx_calloc(1, sizeof(*kv));
	if (kv == NULL) {
		return -ENOMEM;
	}
	kv->shape = *shape;
	kv->plane = plane_bytes(shape);
	kv->block_bytes = pfx_cpu_kv_block_bytes(shape);
	kv->n_blocks = n_blocks;
	if (kv->block_bytes > SIZE_MAX / n_blocks) {
		pfx_free(kv);
		return -ENOMEM;
	}
	kv->map_bytes = kv->block_bytes * n_blocks;
	kv->exps_bytes = shape->type == PFX_KV_F16 ? n_planes(shape) * b * n_blocks : 0;
	kv->base = map(kv->map_bytes);
	kv->exps = kv->exps_bytes == 0 ? NULL : map(kv->exps_bytes);
	if (kv->base == NULL || (kv->exps == NULL && kv->exps_bytes != 0)) {
		pfx_cpu_kv_close(dev, kv);
		return -ENOMEM;
	}
	*out = kv;
	return 0;
}

void pfx_cpu_kv_close(struct pfx_device *dev, struct pfx_kv *kv)
{
	if (kv != NULL) {
		PFX_ASSERT(kv->base == NULL || munmap(kv->base, kv->map_bytes) == 0);
		PFX_ASSERT(kv->exps == NULL || munmap(kv->exps, kv->exps_bytes) == 0);
		pfx_free(kv);
	}
}

static void *block_at(const struct pfx_kv *kv, uint32_t block)
{
	PFX_ASSERT(block < kv->n_blocks);
	return kv->base + block * kv->block_bytes;
}

/* Which plane of a block. */
static size_t plane_of(const struct pfx_kv *kv, uint32_t layer, enum pfx_kv_which which, uint32_t head)
{
	return ((size_t)layer * 2 + (size_t)which) * kv->shape.n_kv_heads + head;
}

static uint8_t *exps(const struct pfx_kv *kv, uint32_t block, size_t plane)
{
	return kv->exps + (block * n_planes(&kv->shape) + plane) * kv->shape.block_tokens;
}

/* Scales of a plane of the block that lies at `block`. */
static uint16_t *scales(const struct pfx_kv *kv, const void *block, size_t plane)
{
	const uint8_t *at = (const uint8_t *)block + n_planes(&kv->shape) * kv->plane;

	return (uint16_t *)(uintptr_t)at + plane * kv->shape.block_tokens;
}

void *pfx_kv_plane(const struct pfx_kv *kv, uint32_t block, uint32_t layer, enum pfx_kv_which which,
	uint32_t head)
{
	return (uint8_t *)block_at(kv, block) + plane_of(kv, layer, which, head) * kv->plane;
}

void *pfx_kv_marks(const struct pfx_kv *kv, uint32_t block, uint32_t layer, enum pfx_kv_which which,
	uint32_t head)
{
	size_t plane = plane_of(kv, layer, which, head);

	PFX_ASSERT(block < kv->n_blocks);
	return kv->shape.type == PFX_KV_F16 ? (void *)exps(kv, block, plane)
		: scales(kv, block_at(kv, block), plane);
}

/* Plane i of a block is one of K? */
static int is_k(const struct pfx_kv *kv, size_t i)
{
	return i / kv->shape.n_kv_heads % 2 == 0;
}

/* Positions [from, to) of a plane of K: rows of 2-byte elements, f16 or pairs of int8. NULL: zeros. */
static void set_k(const struct pfx_kv *kv, uint8_t *dst, const uint8_t *src, uint32_t from, uint32_t to)
{
	size_t row = (size_t)kv->shape.block_tokens * 2;

	for (size_t at = (size_t)from * 2; at < kv->plane; at += row) {
		if (src != NULL) {
			memcpy(dst + at, src + at, (size_t)(to - from) * 2);
		} else {
			memset(dst + at, 0, (size_t)(to - from) * 2);
		}
	}
}

/* The same of a plane of V. */
static void set_v(const struct pfx_kv *kv, uint8_t *dst, const uint8_t *src, uint32_t from, uint32_t to)
{
	size_t dim = kv->shape.head_dim, step = kv->shape.type == PFX_KV_F16 ? 1 : 2;

	if (kv->shape.type == PFX_KV_INT8) {
		/* One half of the pairs at the ends. */
		for (size_t d = 0; d < dim && from % 2 != 0 && from < to; d++) {
			size_t at = ((from / 2) * dim + d) * 2 + 1;
			dst[at] = src == NULL ? 0 : src[at];
		}
		from += from < to ? from % 2 : 0;
		for (size_t d = 0; d < dim && to % 2 != 0 && from < to; d++) {
			size_t at = ((to / 2) * dim + d) * 2;
			dst[at] = src == NULL ? 0 : src[at];
		}
		to -= from < to ? to % 2 : 0;
	}
	size_t at = from / step * dim * 2, bytes = (to - from) / step * dim * 2;
	if (src != NULL) {
		memcpy(dst + at, src + at, bytes);
	} else {
		memset(dst + at, 0, bytes);
	}
}

/* Positions [from, to) of a block, and nothing else of it, from src, or NULL: zeros. */
static void set_positions(const struct pfx_kv *kv, void *dst, const void *src, uint32_t from, uint32_t to)
{
	for (size_t i = 0; i < n_planes(&kv->shape); i++) {
		uint8_t *d = (uint8_t *)dst + i * kv->plane;
		const uint8_t *s = src == NULL ? NULL : (const uint8_t *)src + i * kv->plane;
		if (is_k(kv, i)) {
			set_k(kv, d, s, from, to);
		} else {
			set_v(kv, d, s, from, to);
		}
		if (kv->shape.type == PFX_KV_INT8 && src != NULL) {
			memcpy(scales(kv, dst, i) + from, scales(kv, src, i) + from,
				(to - from) * sizeof(uint16_t));
		} else if (kv->shape.type == PFX_KV_INT8) {
			memset(scales(kv, dst, i) + from, 0, (to - from) * sizeof(uint16_t));
		}
	}
}

int pfx_cpu_kv_copy(struct pfx_device *dev, struct pfx_kv *kv, uint32_t dst, uint32_t src,
	uint32_t n)
{
	PFX_ASSERT(n <= kv->shape.block_tokens && dst != src);
	set_positions(kv, block_at(kv, dst), block_at(kv, src), 0, n);
	for (size_t i = 0; kv->exps != NULL && i < n_planes(&kv->shape); i++) {
		memcpy(exps(kv, dst, i), exps(kv, src, i), n);
	}
	return 0;
}

void pfx_cpu_kv_trim(const struct pfx_kv *kv, void *block, uint32_t n)
{
	PFX_ASSERT(n <= kv->shape.block_tokens);
	if (n < kv->shape.block_tokens) {
		set_positions(kv, block, NULL, n, kv->shape.block_tokens);
	}
}

int pfx_cpu_kv_read(struct pfx_device *dev, const struct pfx_kv *kv, uint32_t block, uint32_t n,
	void *dst)
{
	PFX_ASSERT(n <= kv->shape.block_tokens);
	if (n == kv->shape.block_tokens) {
		memcpy(dst, block_at(kv, block), kv->block_bytes);
		return 0;
	}
	set_positions(kv, dst, block_at(kv, block), 0, n);
	pfx_cpu_kv_trim(kv, dst, n);
	return 0;
}

int pfx_cpu_kv_write(struct pfx_device *dev, struct pfx_kv *kv, uint32_t block, const void *src)
{
	uint32_t b = kv->shape.block_tokens, dim = kv->shape.head_dim;
	uint8_t *to = block_at(kv, block);

	if (kv->exps == NULL) {
		memcpy(to, src, kv->block_bytes);
		return 0;
	}
	for (size_t i = 0; i < n_planes(&kv->shape); i++, to += kv->plane) {
		memcpy(to, (const uint8_t *)src + i * kv->plane, kv->plane);
		if (is_k(kv, i)) {
			dev->variant->exponents_k((const uint16_t *)to, dim, b, exps(kv, block, i));
		} else {
			dev->variant->exponents_v((const uint16_t *)to, b, dim, exps(kv, block, i));
		}
	}
	return 0;
}
