#ifndef PFX_TESTS_KERNELS_UTIL_H
#define PFX_TESTS_KERNELS_UTIL_H

/* What the tests of kernels/ share: devices of every variant, and random weights. */

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/tap.h"

static const enum pfx_dtype all_types[] = { PFX_F32, PFX_F16, PFX_BF16, PFX_Q8_0, PFX_Q4_0, PFX_Q4_1,
	PFX_Q5_0, PFX_Q5_1, PFX_Q4_K, PFX_Q5_K, PFX_Q6_K };
#define N_TYPES (sizeof(all_types) / sizeof(all_types[0]))

#define DEVICES_MAX 12
static const struct pfx_ops *ops;
static struct pfx_device *devices[DEVICES_MAX]; /* [0] is the reference with one thread */
static char device_names[DEVICES_MAX][32];
static int n_devices;

/* Every variant that this CPU has, with 1, 2 and 3 threads. activations: exact or fast. */
static inline void open_devices_of(const char *activations)
{
	static const char *const names[] = { "reference", "avx2", "avx512", "amx" };
	char err[200];

	n_devices = 0;
	ops = pfx_ops_find("cpu", err, sizeof(err));
	for (int v = 0; v < 4; v++) {
		for (uint32_t threads = 1; threads <= 3; threads++) {
			struct pfx_device_opts o = { .kernels = names[v], .n_threads = threads,
				.activations = activations };
			if (ops->open(&devices[n_devices], &o, err, sizeof(err)) != 0) {
				printf("# %s\n", err);
				break;
			}
			snprintf(device_names[n_devices], sizeof(device_names[0]), "%s/%u", names[v], threads);
			n_devices++;
		}
	}
}

static inline void open_devices(void)
{
	open_devices_of("exact");
}

static inline void close_devices(void)
{
	for (int i = 0; i < n_devices; i++) {
		ops->close(devices[i]);
	}
	is_int((long long)pfx_alloc_live(), 0, "nothing is left");
}

/* Roughly normal, sigma 1. */
static inline float random_normal(struct pfx_rng *rng)
{
	double s = 0;

	for (int i = 0; i < 6; i++) {
		s += pfx_rng_double(rng);
	}
	return (float)((s - 3) * 1.41421356);
}

static inline float *random_floats(struct pfx_rng *rng, size_t n, float sigma)
{
	float *x = pfx_xmalloc((n + 1) * sizeof(*x));

	for (size_t i = 0; i < n; i++) {
		x[i] = random_normal(rng) * sigma;
	}
	return x;
}

static inline void put_half(uint8_t *at, float f)
{
	uint16_t h = pfx_f32_to_f16(f);

	memcpy(at, &h, 2);
}

/* n rows of k elements in GGUF layout: any codes, scales of a size that weights have. */
static inline uint8_t *random_weights(struct pfx_rng *rng, enum pfx_dtype type, uint32_t n, uint32_t k)
{
	size_t bytes = pfx_dtype_row_bytes(type, k) * n, block = pfx_dtype_info(type)->block_bytes;
	uint8_t *w = pfx_xmalloc(bytes + 1);

	for (size_t i = 0; i < bytes; i++) {
		w[i] = (uint8_t)pfx_rng_next(rng);
	}
	for (size_t at = 0; at < bytes; at += block) {
		float f = random_normal(rng) * 0.05f;
		uint32_t bits;
		memcpy(&bits, &f, 4);
		bits >>= 16;
		switch (type) {
		case PFX_F32:
			memcpy(w + at, &f, 4);
			break;
		case PFX_BF16:
			memcpy(w + at, &bits, 2);
			break;
		case PFX_Q6_K:
			put_half(w + at + 208, f / 64);
			break;
		case PFX_Q4_1:
		case PFX_Q5_1:
		case PFX_Q4_K:
		case PFX_Q5_K:
			put_half(w + at + 2, random_normal(rng) * 0.05f);
			put_half(w + at, f);
			break;
		default:
			put_half(w + at, f);
		}
	}
	return w;
}

static inline struct pfx_mem *mem_of(struct pfx_device *dev, const void *src, size_t bytes)
{
	struct pfx_mem *mem = NULL;

	if (ops->mem_alloc(dev, bytes, &mem) != 0) {
		abort();
	}
	if (src != NULL) {
		ops->mem_write(dev, mem, 0, src, bytes);
	}
	return mem;
}

#endif
