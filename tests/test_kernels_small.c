/* kernels/: the choice of a backend, memory, norms and activations. */
#include <errno.h>
#include <math.h>

#include "tests/kernels_util.h"

static void test_choice(void)
{
	struct pfx_device_opts o = { .kernels = "sse9", .n_threads = 1 };
	struct pfx_device_info info;
	struct pfx_device *dev = NULL;
	char err[200] = "";

	ok(pfx_ops_find("auto", err, sizeof(err)) != NULL, "auto finds a backend");
	ok(pfx_ops_find("tpu", err, sizeof(err)) == NULL && strstr(err, "tpu") != NULL, "%s", err);
	ok(ops->open(&dev, &o, err, sizeof(err)) < 0 && dev == NULL && strstr(err, "sse9") != NULL, "%s",
		err);
	o = (struct pfx_device_opts){ .n_threads = 0 };
	ok(ops->open(&dev, &o, err, sizeof(err)) == 0, "auto kernels, one thread a core");
	ops->info(dev, &info);
	ok(info.n_threads >= 1 && info.arithmetic >= 1 && info.kernels != NULL, "%s/%s %s, %u threads",
		info.backend, info.kernels, info.activations, info.n_threads);
	ops->close(dev);
	ops->close(NULL);
}

static void test_mem(void)
{
	struct pfx_mem *mem = mem_of(devices[0], "0123456789", 10);
	char got[4] = "";

	ops->mem_write(devices[0], mem, 4, "xy", 2);
	ops->mem_read(devices[0], mem, 3, got, 4);
	ok(memcmp(got, "3xy6", 4) == 0, "memory is written and read at offsets");
	ops->mem_free(devices[0], mem);
	ops->mem_free(devices[0], NULL);
	ok(ops->mem_alloc(devices[0], SIZE_MAX, &mem) == -ENOMEM, "too much is refused");
}

/* y of rmsnorm, gathered or not, on a device. */
static void norm_on(struct pfx_device *dev, const struct pfx_batch *batch, const float *x,
	const float *w, uint32_t dim, int gather, float *y)
{
	uint32_t n = gather ? batch->n_out : batch->n_rows;
	struct pfx_mem *mx = mem_of(dev, x, (size_t)batch->n_rows * dim * 4);
	struct pfx_mem *my = mem_of(dev, NULL, (size_t)n * dim * 4);
	struct pfx_weight *wn;

	if (ops->vector_pack(dev, PFX_F32, w, dim, &wn) != 0 || ops->begin(dev, batch, NULL) != 0 ||
		ops->rmsnorm(dev, mx, wn, 1e-5f, dim, gather, my) != 0) {
		abort();
	}
	ops->sync(dev);
	ops->mem_read(dev, my, 0, y, (size_t)n * dim * 4);
	ops->weight_free(dev, wn);
	ops->mem_free(dev, mx);
	ops->mem_free(dev, my);
}

static void test_rmsnorm(struct pfx_rng *rng)
{
	static const uint32_t dims[] = { 576, 64, 17, 1, 1000 }, out[] = { 0, 3, 18 };
	struct pfx_batch_seq seq = { .n_rows = 19 };
	struct pfx_batch batch = { .n_rows = 19, .n_seqs = 1, .n_out = 3, .seqs = &seq,
		.out_rows = out };

	for (size_t t = 0; t < sizeof(dims) / sizeof(dims[0]); t++) {
		uint32_t dim = dims[t];
		float *x = random_floats(rng, (size_t)19 * dim, 3), *w = random_floats(rng, dim, 1);
		float *y = random_floats(rng, (size_t)19 * dim, 1), *z = random_floats(rng, (size_t)19 * dim, 1);
		double worst = 0;
		int bad = 0;

		norm_on(devices[0], &batch, x, w, dim, 0, y);
		for (uint32_t i = 0; i < 19; i++) {
			double ss = 0;
			for (uint32_t d = 0; d < dim; d++) {
				ss += (double)x[i * dim + d] * x[i * dim + d];
			}
			for (uint32_t d = 0; d < dim; d++) {
				double want = x[i * dim + d] / sqrt(ss / dim + 1e-5) * w[d];
				worst = fmax(worst, fabs(y[i * dim + d] - want) / (fabs(want) + 1e-6));
			}
		}
		ok(worst < 1e-6, "rmsnorm of %u: reference within %.1e of double", dim, worst);
		for (int i = 1; i < n_devices; i++) {
			norm_on(devices[i], &batch, x, w, dim, 0, z);
			bad += memcmp(y, z, (size_t)19 * dim * 4) != 0;
			norm_on(devices[i], &batch, x, w, dim, 1, z);
			for (uint32_t o = 0; o < 3; o++) {
				bad += memcmp(y + (size_t)out[o] * dim, z + (size_t)o * dim, dim * 4) != 0;
			}
		}
		is_int(bad, 0, "rmsnorm of %u: all variants, gathered or not, give its bits", dim);
		pfx_free(x);
		pfx_free(w);
		pfx_free(y);
		pfx_free(z);
	}
}

static void gated_on(struct pfx_device *dev, enum pfx_act act, const float *gu, uint32_t m, uint32_t n,
	float *y)
{
	struct pfx_batch_seq seq = { .n_rows = m };
	struct pfx_batch batch = { .n_rows = m, .n_seqs = 1, .seqs = &seq };
	struct pfx_mem *mg = mem_of(dev, gu, (size_t)m * n * 8), *my = mem_of(dev, NULL, (size_t)m * n * 4);

	if (ops->begin(dev, &batch, NULL) != 0 || ops->gated(dev, act, mg, n, my) != 0) {
		abort();
	}
	ops->sync(dev);
	ops->mem_read(dev, my, 0, y, (size_t)m * n * 4);
	ops->mem_free(dev, mg);
	ops->mem_free(dev, my);
}

static void test_gated(struct pfx_rng *rng)
{
	for (int act = PFX_ACT_SILU; act <= PFX_ACT_GELU_TANH; act++) {
		uint32_t m = 11, n = 1 + (uint32_t)pfx_rng_below(rng, 300);
		float *gu = random_floats(rng, (size_t)m * n * 2, 8), *y = random_floats(rng, (size_t)m * n, 1);
		float *z = random_floats(rng, (size_t)m * n, 1);
		double worst = 0;

		gu[0] = 1e9f;
		gu[n > 1] = n > 1 ? -1e9f : 1e9f;
		gated_on(devices[0], (enum pfx_act)act, gu, m, n, y);
		for (uint32_t i = 0; i < m * n; i++) {
			double x = gu[i / n * 2 * n + i % n], up = gu[i / n * 2 * n + n + i % n];
			double u = act == PFX_ACT_SILU ? x / 2 :
				0.7978845608028654 * (x + 0.044715 * x * x * x);
			double want = x / (1 + exp(-2 * u)) * up;
			worst = fmax(worst, fabs(y[i] - want) / (fabs(want) + 1e-3));
		}
		ok(worst < 1e-5, "gated %d: reference within %.1e of double", act, worst);
		for (int i = 1; i < n_devices; i++) {
			gated_on(devices[i], (enum pfx_act)act, gu, m, n, z);
			ok(memcmp(y, z, (size_t)m * n * 4) == 0, "gated %d of %u: %s has its bits", act, n,
				device_names[i]);
		}
		pfx_free(gu);
		pfx_free(y);
		pfx_free(z);
	}
}

/* Every allocation that may fail does, and nothing is lost. */
static void test_no_memory(struct pfx_rng *rng)
{
	static const uint8_t raw[34 * 4];
	struct pfx_weight_part part = { PFX_Q8_0, 4, raw };
	uint64_t before = pfx_alloc_live();
	int opened = 0, packed = 0;

	for (int i = 0; i < 300; i++) {
		struct pfx_device_opts o = { .n_threads = 1 };
		struct pfx_device *dev;
		struct pfx_weight *w;
		struct pfx_mem *mem;
		char err[100];
		pfx_alloc_fail(pfx_rng_next(rng), 4);
		if (ops->open(&dev, &o, err, sizeof(err)) == 0) {
			opened++;
			if (ops->weight_pack(dev, &part, 1, 32, &w) == 0) {
				packed++;
				ops->weight_free(dev, w);
			}
			if (ops->mem_alloc(dev, 100, &mem) == 0) {
				ops->mem_free(dev, mem);
			}
			ops->close(dev);
		}
		pfx_alloc_fail(0, 0);
	}
	ok(opened > 50 && opened < 290 && packed > 20 && packed < opened, "some come through, some not");
	is_int((long long)pfx_alloc_live(), (long long)before, "and nothing is lost");
}

int main(void)
{
	struct pfx_rng rng = { pfx_rng_entropy() };

	printf("# seed %llu\n", (unsigned long long)rng.state);
	open_devices();
	test_choice();
	test_mem();
	test_rmsnorm(&rng);
	test_gated(&rng);
	test_no_memory(&rng);
	close_devices();
	return tap_done();
}
