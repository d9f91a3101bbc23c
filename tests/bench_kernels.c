/*
 * How fast the CPU kernels are, beside what this machine can do: bench_kernels [KERNELS
 * [THREADS [FILTER]]]. Shapes are SmolLM2-135M's. Best of several runs; GFLOP/s count a
 * multiply and an add as two, GB/s the bytes of packed weights or of KV that a call reads.
 * With one thread the time is the CPU's own, so that neighbours on the machine do not count.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "tests/kernels_util.h"
#include "tests/machine.h"

#define HEADS 9u
#define KV_HEADS 3u
#define DIM 64u

static struct pfx_device *dev;
static const char *filter;
static clockid_t clock_id = CLOCK_MONOTONIC;

static double now(void)
{
	struct timespec ts;

	clock_gettime(clock_id, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Best time of one call in seconds: at least `runs` calls and 0.15 s; i_ counts them. */
#define BEST(runs, call) ({ \
	double best_ = 1e9; \
	uint64_t start_ = pfx_clock_ns(); \
	for (int i_ = 0; i_ < (runs) || pfx_clock_ns() - start_ < 150000000u; i_++) { \
		double s_ = now(); \
		call; \
		s_ = now() - s_; \
		best_ = s_ < best_ ? s_ : best_; \
	} \
	best_; \
})

static void bench_machine(uint32_t n_threads)
{
	struct pfx_peak peak;

	printf("%-40s %8.1f GB/s\n", "memory: read of 256 MiB", pfx_machine_read_gbs((size_t)256 << 20, n_threads));
	for (int i = 0; i < PFX_N_PEAKS; i++) {
		pfx_machine_peak(i, n_threads, &peak);
		if (peak.rate > 0) {
			printf("peak: %-34s %8.1f %s\n", peak.name, peak.rate, peak.unit);
		}
	}
}

static void bench_gemm(struct pfx_rng *rng, const char *name, enum pfx_dtype type, uint32_t n,
	uint32_t k)
{
	static const uint32_t rows[] = { 1, 2, 4, 8, 16, 64, 192 };
	enum { COPIES = 8 }; /* so that few rows read memory, not a cache */
	struct pfx_weight *w[COPIES];
	uint8_t *raw;
	char what[80];

	snprintf(what, sizeof(what), "%s %s", name, pfx_dtype_info(type)->name);
	if (filter != NULL && strstr(what, filter) == NULL) {
		return;
	}
	raw = random_weights(rng, type, n, k);
	struct pfx_weight_part part = { type, n, raw };
	for (int i = 0; i < COPIES; i++) {
		if (ops->weight_pack(dev, &part, 1, k, &w[i]) != 0) {
			abort();
		}
	}
	float *x = random_floats(rng, (size_t)192 * k, 1);
	struct pfx_mem *mx = mem_of(dev, x, (size_t)192 * k * 4);
	struct pfx_mem *my = mem_of(dev, NULL, (size_t)192 * n * 4);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		double s = BEST(COPIES, ops->matmul(dev, w[i_ % COPIES], mx, 0, rows[i], NULL, 0, my));
		printf("%-18s %5u x %5u, %4u rows  %8.1f GFLOP/s %7.1f GB/s %9.1f us\n", what, n, k, rows[i],
			2.0 * rows[i] * n * k / s * 1e-9, (double)ops->weight_bytes(w[0]) / s * 1e-9, s * 1e6);
	}
	for (int i = 0; i < COPIES; i++) {
		ops->weight_free(dev, w[i]);
	}
	ops->mem_free(dev, mx);
	ops->mem_free(dev, my);
	pfx_free(x);
	pfx_free(raw);
}

/* n_seqs sequences of n_rows rows each, whose last row is at position depth - 1. */
static void bench_attn(struct pfx_rng *rng, uint32_t n_seqs, uint32_t n_rows, uint32_t depth)
{
	enum { LAYERS = 30, BLOCK = 32, SEQS = 8 };
	struct pfx_kv_shape shape = { LAYERS, KV_HEADS, DIM, BLOCK, PFX_KV_F16 };
	uint32_t width = (HEADS + 2 * KV_HEADS) * DIM, n_blocks = depth / BLOCK + 1, all = n_rows * n_seqs;
	uint32_t *blocks = pfx_xcalloc((size_t)n_blocks * n_seqs, sizeof(*blocks));
	struct pfx_batch_seq seqs[SEQS];
	struct pfx_batch batch = { .n_rows = all, .n_seqs = n_seqs, .seqs = seqs };
	float inv_freq[DIM / 2] = { 1 }, *x = random_floats(rng, (size_t)all * width, 1);
	struct pfx_rope rope = { PFX_ROPE_PAIRS, DIM, inv_freq, 1 };
	struct pfx_mem *qkv = mem_of(dev, x, (size_t)all * width * 4);
	struct pfx_mem *y = mem_of(dev, NULL, (size_t)all * HEADS * DIM * 4);
	uint16_t *fill = pfx_xcalloc(ops->kv_block_bytes(&shape), 1);
	struct pfx_kv *kv;
	double pairs = 0;

	if (filter != NULL && strstr("attention", filter) == NULL) {
		return;
	}
	if (ops->kv_open(dev, &shape, n_blocks * n_seqs, &kv) != 0) {
		abort();
	}
	for (uint32_t i = 0; i < n_blocks * n_seqs; i++) {
		blocks[i] = i;
		ops->kv_write(dev, kv, i, fill);
	}
	for (uint32_t i = 0; i < n_seqs; i++) {
		seqs[i] = (struct pfx_batch_seq){ i * n_rows, n_rows, depth - n_rows, 0, n_blocks,
			blocks + i * n_blocks };
	}
	for (uint32_t i = 0; i < n_rows; i++) {
		pairs += (double)n_seqs * (depth - i);
	}
	if (ops->begin(dev, &batch, &rope) != 0) {
		abort();
	}
	double s = BEST(LAYERS, ops->attention(dev, kv, (uint32_t)i_ % LAYERS, HEADS, 0.125f, qkv, y));
	printf("attention %u x %3u rows at %5u           %8.1f GFLOP/s %7.1f GB/s %9.1f us\n", n_seqs, n_rows,
		depth, pairs * HEADS * DIM * 4 / s * 1e-9,
		(double)n_seqs * depth * KV_HEADS * DIM * 4 / s * 1e-9, s * 1e6);
	s = BEST(3, ops->rope_kv(dev, kv, 0, HEADS, NULL, NULL, 0, qkv));
	printf("rope and KV write %u x %3u rows %42.1f us\n", n_seqs, n_rows, s * 1e6);
	ops->sync(dev);
	ops->kv_close(dev, kv);
	ops->mem_free(dev, qkv);
	ops->mem_free(dev, y);
	pfx_free(fill);
	pfx_free(x);
	pfx_free(blocks);
}

static void bench_small(struct pfx_rng *rng, uint32_t n_rows)
{
	struct pfx_batch_seq seq = { .n_rows = n_rows };
	struct pfx_batch batch = { .n_rows = n_rows, .n_seqs = 1, .seqs = &seq };
	float *x = random_floats(rng, (size_t)n_rows * 3072, 1);
	struct pfx_mem *mx = mem_of(dev, x, (size_t)n_rows * 3072 * 4);
	struct pfx_mem *my = mem_of(dev, NULL, (size_t)n_rows * 1536 * 4);
	struct pfx_weight *w;

	if (filter != NULL && strstr("small", filter) == NULL) {
		return;
	}
	if (ops->vector_pack(dev, PFX_F32, x, 576, &w) != 0 || ops->begin(dev, &batch, NULL) != 0) {
		abort();
	}
	printf("rmsnorm of 576, %3u rows %45.1f us\n", n_rows,
		BEST(3, ops->rmsnorm(dev, mx, w, 1e-5f, 576, 0, my)) * 1e6);
	printf("silu of 1536, %3u rows %47.1f us\n", n_rows,
		BEST(3, ops->gated(dev, PFX_ACT_SILU, mx, 1536, my)) * 1e6);
	ops->sync(dev);
	ops->weight_free(dev, w);
	ops->mem_free(dev, mx);
	ops->mem_free(dev, my);
	pfx_free(x);
}

int main(int argc, char **argv)
{
	struct pfx_device_opts o = { .kernels = argc > 1 ? argv[1] : NULL,
		.n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 0 };
	struct pfx_device_info info;
	struct pfx_rng rng = { 1 };
	char err[200];

	filter = argc > 3 ? argv[3] : NULL;
	ops = pfx_ops_find("cpu", err, sizeof(err));
	if (ops->open(&dev, &o, err, sizeof(err)) != 0) {
		fprintf(stderr, "bench_kernels: %s\n", err);
		return 1;
	}
	ops->info(dev, &info);
	clock_id = info.n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
	printf("%s, %u threads\n", info.kernels, info.n_threads);
	bench_machine(info.n_threads);
	bench_gemm(&rng, "qkv", PFX_Q4_1, 960, 576);
	bench_gemm(&rng, "out", PFX_Q4_1, 576, 576);
	bench_gemm(&rng, "gate, up", PFX_Q4_1, 3072, 576);
	bench_gemm(&rng, "down", PFX_Q4_1, 576, 1536);
	bench_gemm(&rng, "head", PFX_Q8_0, 49152, 576);
	bench_gemm(&rng, "gate, up", PFX_Q4_0, 3072, 576);
	bench_gemm(&rng, "gate, up", PFX_Q8_0, 3072, 576);
	bench_gemm(&rng, "gate, up", PFX_Q6_K, 3072, 512);
	bench_gemm(&rng, "gate, up", PFX_F16, 3072, 576);
	bench_gemm(&rng, "gate, up", PFX_BF16, 3072, 576);
	bench_gemm(&rng, "gate, up", PFX_F32, 3072, 576);
	bench_attn(&rng, 1, 1, 512);
	bench_attn(&rng, 1, 1, 2048);
	bench_attn(&rng, 1, 1, 8192);
	bench_attn(&rng, 8, 1, 2048);
	bench_attn(&rng, 1, 512, 512);
	bench_attn(&rng, 1, 512, 2048);
	bench_attn(&rng, 1, 512, 8192);
	bench_small(&rng, 1);
	bench_small(&rng, 512);
	ops->close(dev);
	return 0;
}
