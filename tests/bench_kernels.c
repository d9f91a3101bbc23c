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
#include "kernels/cpu/pool.h"
#include "tests/kernels_util.h"

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

#if defined(__x86_64__)
#include <immintrin.h>

static volatile float sink;

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

__attribute__((target("avx512f,avx512vnni"))) static void words_512(void *arg, uint32_t task,
	uint32_t thread)
{
#define INIT(i) __m512i a##i = _mm512_set1_epi32(i);
#define STEP(i) a##i = _mm512_dpwssd_epi32(a##i, x, x); __asm__("" : "+v"(a##i));
#define FOLD(i) x = _mm512_xor_si512(x, a##i);
	__m512i x = _mm512_set1_epi32(3);
	CHAINS(INIT)
	for (int n = 0; n < 100000; n++) {
		CHAINS(STEP)
	}
	CHAINS(FOLD)
	sink = (float)_mm512_reduce_add_epi32(x);
#undef INIT
#undef STEP
#undef FOLD
}

__attribute__((target("avx512f"))) static void fma_512(void *arg, uint32_t task, uint32_t thread)
{
#define INIT(i) __m512 a##i = _mm512_set1_ps(i);
#define STEP(i) a##i = _mm512_fmadd_ps(a##i, x, x); __asm__("" : "+v"(a##i));
#define FOLD(i) x = _mm512_add_ps(x, a##i);
	__m512 x = _mm512_set1_ps(0.5f);
	CHAINS(INIT)
	for (int n = 0; n < 100000; n++) {
		CHAINS(STEP)
	}
	CHAINS(FOLD)
	sink = _mm512_reduce_add_ps(x);
#undef INIT
#undef STEP
#undef FOLD
}

__attribute__((target("avx2"))) static void words_256(void *arg, uint32_t task, uint32_t thread)
{
#define INIT(i) __m256i a##i = _mm256_set1_epi32(i);
#define STEP(i) a##i = _mm256_add_epi32(a##i, _mm256_madd_epi16(a##i, x)); __asm__("" : "+x"(a##i));
#define FOLD(i) x = _mm256_xor_si256(x, a##i);
	__m256i x = _mm256_set1_epi32(3);
	CHAINS(INIT)
	for (int n = 0; n < 100000; n++) {
		CHAINS(STEP)
	}
	CHAINS(FOLD)
	sink = (float)_mm256_extract_epi32(x, 0);
#undef INIT
#undef STEP
#undef FOLD
}

__attribute__((target("avx2,fma"))) static void fma_256(void *arg, uint32_t task, uint32_t thread)
{
#define INIT(i) __m256 a##i = _mm256_set1_ps(i);
#define STEP(i) a##i = _mm256_fmadd_ps(a##i, x, x); __asm__("" : "+x"(a##i));
#define FOLD(i) x = _mm256_add_ps(x, a##i);
	__m256 x = _mm256_set1_ps(0.5f);
	CHAINS(INIT)
	for (int n = 0; n < 100000; n++) {
		CHAINS(STEP)
	}
	CHAINS(FOLD)
	sink = _mm256_cvtss_f32(x);
#undef INIT
#undef STEP
#undef FOLD
}
#endif

struct read_job {
	const uint64_t *data;
	size_t words_each;
	_Atomic uint64_t sum;
};

static void read_task(void *arg, uint32_t task, uint32_t thread)
{
	struct read_job *job = arg;
	const uint64_t *p = job->data + task * job->words_each;
	uint64_t a = 0, b = 0, c = 0, d = 0;

	for (size_t i = 0; i < job->words_each; i += 8) {
		a += p[i] ^ p[i + 4];
		b += p[i + 1] ^ p[i + 5];
		c += p[i + 2] ^ p[i + 6];
		d += p[i + 3] ^ p[i + 7];
	}
	job->sum += a + b + c + d;
}

static void bench_machine(uint32_t n_threads)
{
	struct pfx_pool *pool;
	size_t bytes = (size_t)256 << 20, part = bytes / 16; /* a part a call: short, so undisturbed */
	struct read_job job = { .words_each = part / 8 / 64 };
	uint64_t *data = pfx_aligned_alloc(4096, bytes);

	if (data == NULL || pfx_pool_open(&pool, n_threads) != 0) {
		abort();
	}
	memset(data, 1, bytes);
	double r = BEST(64, (job.data = data + i_ % 16 * (part / 8),
		pfx_pool_run(pool, read_task, &job, 64)));
	printf("%-40s %8.1f GB/s\n", "memory: read of 256 MiB", (double)part / r * 1e-9);
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512vnni")) {
		double s = BEST(5, pfx_pool_run(pool, words_512, NULL, n_threads));
		printf("%-40s %8.1f GFLOP/s\n", "peak: vpdpwssd, 512 bits", n_threads * 12e5 * 64 / s * 1e-9);
		s = BEST(5, pfx_pool_run(pool, fma_512, NULL, n_threads));
		printf("%-40s %8.1f GFLOP/s\n", "peak: fma, 512 bits", n_threads * 12e5 * 32 / s * 1e-9);
	}
	double s = BEST(5, pfx_pool_run(pool, words_256, NULL, n_threads));
	printf("%-40s %8.1f GFLOP/s\n", "peak: vpmaddwd + vpaddd, 256 bits",
		n_threads * 12e5 * 32 / s * 1e-9);
	s = BEST(5, pfx_pool_run(pool, fma_256, NULL, n_threads));
	printf("%-40s %8.1f GFLOP/s\n", "peak: fma, 256 bits", n_threads * 12e5 * 16 / s * 1e-9);
#endif
	pfx_pool_close(pool);
	pfx_free(data);
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
	struct pfx_kv_shape shape = { LAYERS, KV_HEADS, DIM, BLOCK, PFX_F16 };
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
	struct pfx_device_opts o = { argc > 1 ? argv[1] : NULL, argc > 2 ? (uint32_t)atoi(argv[2]) : 0 };
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
