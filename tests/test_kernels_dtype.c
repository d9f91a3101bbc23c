/* kernels/dtype: widening against the values of an independent implementation. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/dtype.h"
#include "tests/dtype_vectors.h"
#include "tests/tap.h"

static void check_type(enum pfx_dtype type, const uint8_t *bytes, size_t n_bytes,
	const uint32_t *want, size_t n)
{
	float got[256];
	uint32_t bits;
	int bad = 0;

	is_int((long long)pfx_dtype_row_bytes(type, n), (long long)n_bytes, "%s: bytes of a row",
		pfx_dtype_info(type)->name);
	pfx_dtype_widen(type, bytes, n, got);
	for (size_t i = 0; i < n; i++) {
		memcpy(&bits, &got[i], 4);
		bad += bits != want[i];
	}
	is_int(bad, 0, "%s: the bits of %zu elements", pfx_dtype_info(type)->name, n);
}

#define CHECK(type, name) check_type(type, name##_bytes, sizeof(name##_bytes), name##_want, \
	sizeof(name##_want) / sizeof(name##_want[0]))

static void test_widen(void)
{
	CHECK(PFX_Q4_0, q4_0);
	CHECK(PFX_Q4_1, q4_1);
	CHECK(PFX_Q5_0, q5_0);
	CHECK(PFX_Q5_1, q5_1);
	CHECK(PFX_Q8_0, q8_0);
	CHECK(PFX_Q4_K, q4_k);
	CHECK(PFX_Q5_K, q5_k);
	CHECK(PFX_Q6_K, q6_k);
}

/* Every f16 there is, by the definition. */
static void test_f16(void)
{
	int bad = 0, bad_nan = 0;

	for (uint32_t h = 0; h < 65536; h++) {
		int exp = (int)(h >> 10 & 31), man = (int)(h & 1023);
		double want = exp == 0 ? ldexp(man, -24) : ldexp(1024 + man, exp - 25);
		float got = pfx_f16_to_f32((uint16_t)h);
		if (exp == 31 && man != 0) {
			bad_nan += !isnan(got) || !isnan(pfx_f16_to_f32(pfx_f32_to_f16(got)));
			continue;
		}
		want = exp == 31 ? INFINITY : want;
		bad += (double)got != ((h & 0x8000) ? -want : want) || pfx_f32_to_f16(got) != h ||
			!!signbit(got) != (int)(h >> 15);
	}
	is_int(bad, 0, "every f16 widens exactly and comes back");
	is_int(bad_nan, 0, "a NaN stays one");
}

/* Rounding: the nearest of the two neighbours, of equals the even one. */
static void test_f16_rounding(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	int bad = 0;

	for (int i = 0; i < 200000; i++) {
		uint16_t h = (uint16_t)pfx_rng_below(&rng, 0x7bff);
		double lo = pfx_f16_to_f32(h), hi = pfx_f16_to_f32((uint16_t)(h + 1)), mid = (lo + hi) / 2;
		uint64_t kind = pfx_rng_below(&rng, 4);
		float f = kind == 0 ? (float)mid : kind == 1 ? nextafterf((float)mid, 0) :
			kind == 2 ? nextafterf((float)mid, INFINITY) :
			(float)(lo + (hi - lo) * pfx_rng_double(&rng));
		uint16_t want = f < mid ? h : f > mid ? (uint16_t)(h + 1) : (uint16_t)(h + (h & 1));
		bad += pfx_f32_to_f16(f) != want || pfx_f32_to_f16(-f) != (want | 0x8000);
	}
	is_int(bad, 0, "rounds to nearest even");
	is_int(pfx_f32_to_f16(65519.0f), 0x7bff, "just below the middle to infinity");
	is_int(pfx_f32_to_f16(65520.0f), 0x7c00, "and at it");
	is_int(pfx_f32_to_f16(1e30f), 0x7c00, "large becomes infinity");
	is_int(pfx_f32_to_f16(1e-30f), 0, "small becomes zero");
}

static void test_geometry(void)
{
	uint16_t bf[2] = { 0x3f80, 0xc040 };
	float f[2];

	ok(pfx_dtype_info(4) == NULL, "a type that is not listed is unknown");
	is_int((long long)pfx_dtype_row_bytes((enum pfx_dtype)4, 32), 0, "and has no row size");
	is_int((long long)pfx_dtype_row_bytes(PFX_Q4_K, 576), 0, "half a block is no row");
	is_int((long long)pfx_dtype_row_bytes(PFX_Q8_0, UINT64_MAX / 32 * 32), 0, "nor is an overflow");
	pfx_dtype_widen(PFX_BF16, bf, 2, f);
	ok(f[0] == 1.0f && f[1] == -3.0f, "bf16 is the upper half of a float32");
}

int main(void)
{
	uint64_t seed = pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	test_widen();
	test_f16();
	test_f16_rounding(seed);
	test_geometry();
	return tap_done();
}
