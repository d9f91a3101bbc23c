/*
 * The KV arena: blocks side by side in one mapping that the system fills with zero pages on
 * use. A block is [layer][K, V][kv_head] planes of f16; a K plane is [head_dim][block_tokens],
 * so that scores are computed with positions side by side, a V plane is
 * [block_tokens][head_dim]. Beside each block stand the exponents of its positions, written
 * with it.
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "kernels/cpu/cpu.h"

size_t pfx_cpu_kv_block_bytes(const struct pfx_kv_shape *shape)
{
	return (size_t)shape->n_layers * 2 * shape->n_kv_heads * shape->head_dim *
		shape->block_tokens * sizeof(uint16_t);
}

static size_t n_planes(const struct pfx_kv *kv)
{
	return (size_t)kv->shape.n_layers * 2 * kv->shape.n_kv_heads;
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

	if (shape->type != PFX_F16) {
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
	kv->plane = (size_t)shape->head_dim * b;
	kv->block_bytes = pfx_cpu_kv_block_bytes(shape);
	kv->n_blocks = n_blocks;
	if (kv->block_bytes > SIZE_MAX / n_blocks) {
		pfx_free(kv);
		return -ENOMEM;
	}
	kv->map_bytes = kv->block_bytes * n_blocks;
	kv->exps_bytes = n_planes(kv) * b * n_blocks;
	kv->base = map(kv->map_bytes);
	kv->exps = map(kv->exps_bytes);
	if (kv->base == NULL || kv->exps == NULL) {
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

/* Which plane of a block: K (0) or V (1) of a layer and KV head. */
static size_t plane_of(const struct pfx_kv *kv, uint32_t layer, uint32_t which, uint32_t head)
{
	return ((size_t)layer * 2 + which) * kv->shape.n_kv_heads + head;
}

static uint16_t *plane(const struct pfx_kv *kv, uint32_t block, size_t i)
{
	PFX_ASSERT(block < kv->n_blocks);
	return (uint16_t *)(kv->base + block * kv->block_bytes) + i * kv->plane;
}

static uint8_t *exps(const struct pfx_kv *kv, uint32_t block, size_t i)
{
	PFX_ASSERT(block < kv->n_blocks);
	return kv->exps + (block * n_planes(kv) + i) * kv->shape.block_tokens;
}

uint16_t *pfx_kv_k(const struct pfx_kv *kv, uint32_t block, uint32_t layer, uint32_t head)
{
	return plane(kv, block, plane_of(kv, layer, 0, head));
}

uint16_t *pfx_kv_v(const struct pfx_kv *kv, uint32_t block, uint32_t layer, uint32_t head)
{
	return plane(kv, block, plane_of(kv, layer, 1, head));
}

uint8_t *pfx_kv_k_exps(const struct pfx_kv *kv, uint32_t block, uint32_t layer, uint32_t head)
{
	return exps(kv, block, plane_of(kv, layer, 0, head));
}

uint8_t *pfx_kv_v_exps(const struct pfx_kv *kv, uint32_t block, uint32_t layer, uint32_t head)
{
	return exps(kv, block, plane_of(kv, layer, 1, head));
}

static void *block_at(const struct pfx_kv *kv, uint32_t block)
{
	PFX_ASSERT(block < kv->n_blocks);
	return kv->base + block * kv->block_bytes;
}

/* Plane i of a block is one of K? */
static int is_k(const struct pfx_kv *kv, size_t i)
{
	return i / kv->shape.n_kv_heads % 2 == 0;
}

/* The first n positions of a block, and nothing else of it, is read and written. */
static void copy_first(const struct pfx_kv *kv, uint16_t *dst, const uint16_t *src, uint32_t n)
{
	uint32_t b = kv->shape.block_tokens, dim = kv->shape.head_dim;

	for (size_t i = 0; i < n_planes(kv); i++, dst += kv->plane, src += kv->plane) {
		if (!is_k(kv, i)) {
			memcpy(dst, src, (size_t)n * dim * sizeof(*dst));
			continue;
		}
		for (size_t d = 0; d < dim; d++) {
			memcpy(dst + d * b, src + d * b, n * sizeof(*dst));
		}
	}
}

int pfx_cpu_kv_copy(struct pfx_device *dev, struct pfx_kv *kv, uint32_t dst, uint32_t src,
	uint32_t n)
{
	PFX_ASSERT(n <= kv->shape.block_tokens && dst != src);
	copy_first(kv, block_at(kv, dst), block_at(kv, src), n);
	for (size_t i = 0; i < n_planes(kv); i++) {
		memcpy(exps(kv, dst, i), exps(kv, src, i), n);
	}
	return 0;
}

void pfx_cpu_kv_trim(const struct pfx_kv *kv, void *block, uint32_t n)
{
	uint32_t b = kv->shape.block_tokens, dim = kv->shape.head_dim;
	uint16_t *at = block;

	PFX_ASSERT(n <= b);
	for (size_t i = 0; i < n_planes(kv) && n < b; i++, at += kv->plane) {
		if (!is_k(kv, i)) {
			memset(at + (size_t)n * dim, 0, (size_t)(b - n) * dim * sizeof(*at));
			continue;
		}
		for (size_t d = 0; d < dim; d++) {
			memset(at + d * b + n, 0, (b - n) * sizeof(*at));
		}
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
	copy_first(kv, dst, block_at(kv, block), n);
	pfx_cpu_kv_trim(kv, dst, n);
	return 0;
}

int pfx_cpu_kv_write(struct pfx_device *dev, struct pfx_kv *kv, uint32_t block, const void *src)
{
	const uint16_t *from = src;
	uint32_t b = kv->shape.block_tokens, dim = kv->shape.head_dim;

	for (size_t i = 0; i < n_planes(kv); i++, from += kv->plane) {
		uint16_t *to = memcpy(plane(kv, block, i), from, kv->plane * sizeof(*from));
		if (is_k(kv, i)) {
			dev->variant->exponents_k(to, dim, b, exps(kv, block, i));
		} else {
			dev->variant->exponents_v(to, b, dim, exps(kv, block, i));
		}
	}
	return 0;
}
