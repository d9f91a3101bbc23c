#include "config.h"

#include "tests/machine.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "kernels/cpu/cpu.h"

#define REPEATS 100000
#define CALLS 30

static double now(uint32_t n_threads)
{
	struct timespec ts;

	clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Pinned, for the system may put both threads of so short a run on one core; closed by close_pool. */
static cpu_set_t usable_before;

static struct pfx_pool *open_pool(uint32_t n_threads)
{
	struct pfx_pool *pool;

	sched_getaffinity(0, sizeof(usable_before), &usable_before);
	if (pfx_pool_open(&pool, n_threads, 1) != 0) {
		abort();
	}
	pfx_pool_enter(pool);
	return pool;
}

static void close_pool(struct pfx_pool *pool)
{
	pfx_pool_close(pool);
	sched_setaffinity(0, sizeof(usable_before), &usable_before);
}

#if defined(__x86_64__)
#include <immintrin.h>

static volatile float sink;

/*
 * A task that makes the same step with twelve sums that do not wait for one another: more than any
 * of these instructions takes cycles.
 */
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i) , a##i = x
#define LOOP(name, features, type, start, step, fold, out) \
	__attribute__((target(features))) static void name(void *arg, uint32_t task, uint32_t thread) \
	{ \
		type x = start CHAINS(DECLARE); \
		for (int n = 0; n < REPEATS; n++) { \
			CHAINS(step) \
		} \
		CHAINS(fold) \
		sink = out; \
	}

/* The empty assembly keeps a compiler from seeing what a sum will be. */
#define STEP_INT8(i) a##i = _mm512_dpbusd_epi32(a##i, x, x); __asm__("" : "+v"(a##i));
#define STEP_INT16(i) a##i = _mm512_dpwssd_epi32(a##i, x, x); __asm__("" : "+v"(a##i));
#define STEP_FMA(i) a##i = _mm512_fmadd_ps(a##i, x, x); __asm__("" : "+v"(a##i));
#define STEP_BF16(i) a##i = _mm512_dpbf16_ps(a##i, (__m512bh)x, (__m512bh)x); \
	__asm__("" : "+v"(a##i));
#define STEP_INT16_256(i) a##i = _mm256_add_epi32(a##i, _mm256_madd_epi16(a##i, x)); \
	__asm__("" : "+x"(a##i));
#define STEP_FMA_256(i) a##i = _mm256_fmadd_ps(a##i, x, x); __asm__("" : "+x"(a##i));
#define FOLD_INT(i) x = _mm512_xor_si512(x, a##i);
#define FOLD_FLOAT(i) x = _mm512_add_ps(x, a##i);
#define FOLD_INT_256(i) x = _mm256_xor_si256(x, a##i);
#define FOLD_FLOAT_256(i) x = _mm256_add_ps(x, a##i);

LOOP(int8_512, "avx512f,avx512vnni", __m512i, _mm512_set1_epi32(3), STEP_INT8, FOLD_INT,
	(float)_mm512_reduce_add_epi32(x))
LOOP(int16_512, "avx512f,avx512vnni", __m512i, _mm512_set1_epi32(3), STEP_INT16, FOLD_INT,
	(float)_mm512_reduce_add_epi32(x))
LOOP(bf16_512, "avx512f,avx512bf16", __m512, _mm512_set1_ps(0.5f), STEP_BF16, FOLD_FLOAT,
	_mm512_reduce_add_ps(x))
LOOP(fma_512, "avx512f", __m512, _mm512_set1_ps(0.5f), STEP_FMA, FOLD_FLOAT,
	_mm512_reduce_add_ps(x))
LOOP(int16_256, "avx2", __m256i, _mm256_set1_epi32(3), STEP_INT16_256, FOLD_INT_256,
	(float)_mm256_extract_epi32(x, 0))
LOOP(fma_256, "avx2,fma", __m256, _mm256_set1_ps(0.5f), STEP_FMA_256, FOLD_FLOAT_256,
	_mm256_cvtss_f32(x))

static int has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}

static int has_vnni(void)
{
	return __builtin_cpu_supports("avx512vnni");
}

static int has_bf16(void)
{
	return __builtin_cpu_supports("avx512bf16");
}

#if defined(HAVE_AMX)
#define TILE_REPEATS (REPEATS / 2)

/* Static: a compiler does not see that all of it is read. */
static const struct {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
} six_tiles = { .palette = 1, .row_bytes = { 64, 64, 64, 64, 64, 64 },
	.rows = { 16, 16, 16, 16, 16, 16 } };

/* Four tiles of sums, 16 x 16 each; an instruction multiplies 64 bytes for each sum. */
#define TILE_LOOP(name, features, instruction) \
	__attribute__((target(features))) static void name(void *arg, uint32_t task, uint32_t thread) \
	{ \
		_tile_loadconfig(&six_tiles); \
		for (int n = 0; n < TILE_REPEATS; n++) { \
			instruction(0, 4, 5); \
			instruction(1, 4, 5); \
			instruction(2, 4, 5); \
			instruction(3, 4, 5); \
		} \
		_tile_release(); \
	}
TILE_LOOP(tile_int8, "amx-tile,amx-int8", _tile_dpbusd)
TILE_LOOP(tile_bf16, "amx-tile,amx-bf16", _tile_dpbf16ps)

static int has_tiles(void)
{
	return pfx_variant_amx.usable(); /* asks the system for the registers, too */
}
#endif

static const struct loop {
	const char *name, *unit;
	int (*usable)(void);
	pfx_task_fn fn;
	double ops; /* of a task */
} loops[PFX_N_PEAKS] = {
#if defined(HAVE_AMX)
	[PFX_PEAK_TILE_INT8] = { "tdpbusd, tiles", "Gop/s", has_tiles, tile_int8,
		4.0 * TILE_REPEATS * 16 * 16 * 128 },
	[PFX_PEAK_TILE_BF16] = { "tdpbf16ps, tiles", "GFLOP/s", has_tiles, tile_bf16,
		4.0 * TILE_REPEATS * 16 * 16 * 64 },
#endif
	[PFX_PEAK_INT8_512] = { "vpdpbusd, 512 bits", "Gop/s", has_vnni, int8_512,
		12.0 * REPEATS * 128 },
	[PFX_PEAK_INT16_512] = { "vpdpwssd, 512 bits", "Gop/s", has_vnni, int16_512,
		12.0 * REPEATS * 64 },
	[PFX_PEAK_BF16_512] = { "vdpbf16ps, 512 bits", "GFLOP/s", has_bf16, bf16_512,
		12.0 * REPEATS * 64 },
	[PFX_PEAK_FMA_512] = { "fma, 512 bits", "GFLOP/s", has_avx512, fma_512, 12.0 * REPEATS * 32 },
	[PFX_PEAK_INT16_256] = { "vpmaddwd + vpaddd, 256 bits", "Gop/s", has_avx2, int16_256,
		12.0 * REPEATS * 32 },
	[PFX_PEAK_FMA_256] = { "fma, 256 bits", "GFLOP/s", has_avx2, fma_256, 12.0 * REPEATS * 16 },
};

void pfx_machine_peak(enum pfx_peak_kind kind, uint32_t n_threads, struct pfx_peak *out)
{
	const struct loop *loop = &loops[kind];
	struct pfx_pool *pool;
	double best = 1e9, s;

	*out = (struct pfx_peak){ loop->name, loop->unit, 0 };
	if (loop->usable == NULL || !loop->usable()) {
		return;
	}
	pool = open_pool(n_threads);
	for (int i = 0; i < CALLS; i++) {
		s = now(n_threads);
		pfx_pool_run(pool, loop->fn, NULL, n_threads);
		s = now(n_threads) - s;
		best = s < best ? s : best;
	}
	close_pool(pool);
	out->rate = n_threads * loop->ops / best * 1e-9;
}
#else
void pfx_machine_peak(enum pfx_peak_kind kind, uint32_t n_threads, struct pfx_peak *out)
{
	*out = (struct pfx_peak){ NULL, NULL, 0 };
}
#endif

/* Four streams of a task at once: one alone leaves the memory waiting. */
#define STREAMS 4u

typedef uint64_t line __attribute__((vector_size(64)));

struct read_job {
	const line *data;
	size_t lines_each; /* of a stream */
	_Atomic uint64_t sum;
};

static void read_task(void *arg, uint32_t task, uint32_t thread)
{
	struct read_job *job = arg;
	size_t n = job->lines_each;
	const line *p = job->data + task * STREAMS * n;
	line a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	for (size_t i = 0; i < n; i++) {
		a ^= p[i];
		b ^= p[n + i];
		c ^= p[2 * n + i];
		d ^= p[3 * n + i];
	}
	a ^= b ^ c ^ d;
	job->sum += a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

double pfx_machine_read_gbs(size_t bytes, uint32_t n_threads)
{
	enum { TASKS = 64, RUNS = 20 };
	struct read_job job = { .lines_each = bytes / sizeof(line) / TASKS / STREAMS };
	line *data = pfx_aligned_alloc(4096, bytes);
	struct pfx_pool *pool = open_pool(n_threads);
	double best = 1e9, s;

	if (data == NULL) {
		abort();
	}
	memset(data, 1, bytes);
	job.data = data;
	for (int i = 0; i < RUNS; i++) {
		s = now(n_threads);
		pfx_pool_run(pool, read_task, &job, TASKS);
		s = now(n_threads) - s;
		best = s < best ? s : best;
	}
	close_pool(pool);
	pfx_free(data);
	return (double)job.lines_each * STREAMS * TASKS * sizeof(line) / best * 1e-9;
}
