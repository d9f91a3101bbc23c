/*
 * The AMX variant: the AVX-512 one, but for integer products of many rows, which run on tiles
 * (AMX-TILE, AMX-INT8). Source of the instructions: Intel Architecture Instruction Set Extensions
 * Programming Reference, chapter 3.
 *
 * An activation is split into bytes, v = 256 hi + lo with hi signed and lo unsigned. A tile
 * instruction sums products of bytes into 32 bits exactly; so 256 (sum of w hi) + (sum of w lo) is
 * the integer that the other variants have for a group, and what follows has the same bits.
 *
 * 16 rows x 16 outputs at a time: for each group of 32 two tiles of sums are written to memory and
 * scaled there by vectors, while the tile unit works at the next groups.
 */
#include "config.h"

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/target.h"
#include "kernels/dtype_group.h"

/* The kernel gives tile registers to a process that asks: Documentation/arch/x86/xstate.rst. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18
/* EDX of CPUID leaf 7: AMX-TILE and AMX-INT8. */
#define LEAF7_AMX (1u << 24 | 1u << 25)

static int usable(void)
{
	unsigned a, b, c, d;

	return pfx_variant_avx512.usable() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
		(d & LEAF7_AMX) == LEAF7_AMX &&
		syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8")

#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_exp2.h"
#include "kernels/cpu/vec_small.h"
#include "kernels/cpu/vec_gemm.h"

#define ROWS 16      /* of a block: the rows of a tile */
#define STRETCH 48u  /* groups of k that are unpacked at a time: 24 KiB */
#define K_ROWS 8     /* rows of a tile of weights: four k each */

/* Tiles: two pairs of sums, what a pair reads. Macros: their numbers are part of a mnemonic. */
#define HI_A 0
#define LO_A 1
#define HI_B 2
#define LO_B 3
#define ROWS_HI 4
#define ROWS_LO 5
#define WEIGHTS_A 6
#define WEIGHTS_B 7

static void configure(void)
{
	/* Static: gcc 12 sees 8 of its 64 bytes read, and need not write the rest to a local one. */
	static const struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config = { .palette = 1,
		.row_bytes = { 64, 64, 64, 64, PFX_GROUP, PFX_GROUP, 64, 64 },
		.rows = { ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, K_ROWS, K_ROWS } };

	_tile_loadconfig(&config);
}

/* A row's words become, group by group, their 32 high bytes and then their 32 low ones. */
static void split(int16_t *v, uint32_t k)
{
	for (uint32_t i = 0; i < k; i += PFX_GROUP) {
		__m512i x = _mm512_loadu_si512(v + i);
		uint8_t *bytes = (uint8_t *)(v + i);

		_mm256_storeu_si256((void *)bytes, _mm512_cvtepi16_epi8(_mm512_srai_epi16(x, 8)));
		_mm256_storeu_si256((void *)(bytes + PFX_GROUP), _mm512_cvtepi16_epi8(x));
	}
}

/* avx512 has the products with one byte. */
static void bytes(int16_t *v, uint32_t k)
{
	pfx_variant_avx512.bytes(v, k);
}

/* The thread's scratch while the rows go by. */
struct work {
	__m512i weights[STRETCH][K_ROWS]; /* 16 outputs x 4 k in a vector */
	v16 scales[STRETCH], mins[STRETCH];
	__m512i sums[2][2][ROWS]; /* [turn][hi, lo] */
	v16 acc[PFX_GEMM_ROWS];
};
_Static_assert(sizeof(struct work) <= PFX_GEMM_SCRATCH, "fits the scratch of a thread");

static inline v16 load_scale(const struct pfx_part *p, const uint8_t *at, size_t i)
{
	return p->scale_f16 ? v_load_f16((const uint16_t *)at + i * PFX_TILE) :
		v_load((const float *)at + i * PFX_TILE);
}

/* Bytes 1 and 2 of each four change places: pack.c stores the even k of a four first. */
static inline __m512i in_order(__m512i x)
{
	const __m512i places = _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200);

	return _mm512_shuffle_epi8(x, places);
}

/* A group of one tile, k in ascending order, as signed bytes. */
static inline void unpack_group(const struct pfx_part *p, const uint8_t *tile, uint32_t group,
	__m512i w[K_ROWS])
{
	const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);

	if (p->code == PFX_CODE_I8) {
		for (int j = 0; j < 8; j++) {
			w[j] = in_order(_mm512_loadu_si512(tile + (size_t)group * 512 + 64 * j));
		}
		return;
	}
	for (int j = 0; j < 4; j++) {
		__m512i x = _mm512_loadu_si512(tile + (size_t)group * 256 + 64 * j);
		__m512i a = _mm512_and_si512(x, low), b = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);

		if (p->code == PFX_CODE_I4) {
			a = _mm512_sub_epi8(_mm512_xor_si512(a, eight), eight);
			b = _mm512_sub_epi8(_mm512_xor_si512(b, eight), eight);
		}
		w[2 * j] = in_order(a);
		w[2 * j + 1] = in_order(b);
	}
}

static void unpack_tile(struct work *work, const struct pfx_part *p, uint32_t tile, uint32_t g0,
	uint32_t n)
{
	const uint8_t *t = pfx_tile_at(p, tile);

	for (uint32_t i = 0; i < n; i++) {
		unpack_group(p, t, g0 + i, work->weights[i]);
		work->scales[i] = load_scale(p, t + p->scales_at, g0 + i);
		work->mins[i] = p->has_min ? load_scale(p, t + p->mins_at, g0 + i) : v_zero();
	}
	/* Loads of tiles are not known to the compiler as reads of memory. */
	__asm__ volatile("" ::: "memory");
}

/* Where 16 rows' scales stand: every fourth is pointed at, the others are a few rows on. */
struct row_scales {
	const float *at[4];
	size_t row; /* floats from one row to the next */
};

static inline __attribute__((always_inline)) void scale_sums(v16 acc[ROWS], __m512i sums[2][ROWS],
	v16 scale, v16 min, const int has_min, const struct row_scales *s)
{
	UNROLL for (int r = 0; r < ROWS; r++) {
		const float *xs = s->at[r / 4] + (size_t)(r % 4) * s->row;
		__m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sums[0][r], 8), sums[1][r]);

		acc[r] = v_fma(v_mul(scale, v_set1(xs[0])), _mm512_cvtepi32_ps(sum), acc[r]);
		if (has_min) {
			acc[r] = v_fma(min, v_set1(xs[1]), acc[r]);
		}
	}
}

#define SUM(hi, lo, weights, w, x, stride) \
	do { \
		_tile_loadd(weights, w, 64); \
		_tile_loadd(ROWS_HI, x, stride); \
		_tile_loadd(ROWS_LO, (x) + PFX_GROUP, stride); \
		_tile_zero(hi); \
		_tile_zero(lo); \
		_tile_dpbssd(hi, ROWS_HI, weights); \
		_tile_dpbusd(lo, ROWS_LO, weights); \
	} while (0)

#define STORE(hi, lo, sums) \
	do { \
		_tile_stored(hi, (sums)[0], 64); \
		_tile_stored(lo, (sums)[1], 64); \
	} while (0)

/*
 * 16 rows x one tile over the n groups that are unpacked. x: the first row's bytes. Turn i sums group
 * i, stores the sums of the one before and scales those of the one before that: the tile unit does
 * not wait for a store, nor vectors for a tile.
 */
static inline __attribute__((always_inline)) void block(struct work *work, const int has_min,
	const uint8_t *x, size_t stride, struct row_scales s, uint32_t n, v16 acc[ROWS])
{
	for (uint32_t i = 0; i < n + 2; i++, x += 2 * PFX_GROUP) {
		if (i % 2 == 0) {
			if (i < n) {
				SUM(HI_A, LO_A, WEIGHTS_A, work->weights[i], x, stride);
			}
			if (i > 0 && i <= n) {
				STORE(HI_B, LO_B, work->sums[1]);
			}
		} else {
			if (i < n) {
				SUM(HI_B, LO_B, WEIGHTS_B, work->weights[i], x, stride);
			}
			if (i <= n) {
				STORE(HI_A, LO_A, work->sums[0]);
			}
		}
		if (i < 2) {
			continue;
		}
		scale_sums(acc, work->sums[i % 2], work->scales[i - 2], work->mins[i - 2], has_min, &s);
		UNROLL for (int r = 0; r < 4; r++) {
			s.at[r] += 2;
		}
	}
}

static inline __attribute__((always_inline)) void stretch(const struct pfx_gemm *g,
	struct work *work, const int has_min, uint32_t row0, uint32_t n_rows, uint32_t g0, uint32_t n)
{
	const size_t groups = g->k / PFX_GROUP;

	for (uint32_t at = 0; at < n_rows; at += ROWS) {
		/* The last block may begin among rows that are done; what it has of them is dropped. */
		uint32_t skip = at + ROWS > n_rows ? at + ROWS - n_rows : 0, row = row0 + at - skip;
		struct row_scales s = { .row = groups * 2 };
		v16 acc[ROWS];

		for (int i = 0; i < 4; i++) {
			s.at[i] = g->q.s + ((row + 4 * (size_t)i) * groups + g0) * 2;
		}
		UNROLL for (int r = 0; r < ROWS; r++) {
			acc[r] = g0 == 0 || (uint32_t)r < skip ? v_zero() : work->acc[at + (uint32_t)r - skip];
		}
		block(work, has_min, (const uint8_t *)(g->q.v + (size_t)row * g->k) +
			(size_t)g0 * 2 * PFX_GROUP, (size_t)g->k * 2, s, n, acc);
		UNROLL for (int r = 0; r < ROWS; r++) {
			if ((uint32_t)r >= skip) {
				work->acc[at + (uint32_t)r - skip] = acc[r];
			}
		}
	}
}

static void tile_of_rows(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile,
	uint32_t row0, uint32_t n_rows, struct work *work)
{
	for (uint32_t g0 = 0; g0 < p->n_groups; g0 += STRETCH) {
		uint32_t n = p->n_groups - g0 < STRETCH ? p->n_groups - g0 : STRETCH;

		unpack_tile(work, p, tile, g0, n);
		if (p->has_min) {
			stretch(g, work, 1, row0, n_rows, g0, n);
		} else {
			stretch(g, work, 0, row0, n_rows, g0, n);
		}
	}
	for (uint32_t r = 0; r < n_rows; r++) {
		put_out(g, p, row0 + r, tile, work->acc[r]);
	}
}

static void gemm(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
	uint32_t n_tiles, uint32_t row0, uint32_t n_rows, void *scratch)
{
	PFX_ASSERT(n_rows <= PFX_GEMM_ROWS);
	if (p->n_groups == 0) {
		gemm_floats(g, p, tile0, n_tiles, row0, n_rows, scratch);
		return;
	}
	if (!g->split) {
		pfx_variant_avx512.gemm(g, p, tile0, n_tiles, row0, n_rows, scratch);
		return;
	}
	PFX_ASSERT(row0 + n_rows >= ROWS && p->n_scales == 1);
	configure();
	for (uint32_t t = tile0; t < tile0 + n_tiles; t++) {
		tile_of_rows(g, p, t, row0, n_rows, scratch);
	}
	/* A thread without tile state is cheaper to switch. */
	_tile_release();
}

TARGET_END

const struct pfx_variant pfx_variant_amx = {
	.name = "amx",
	.usable = usable,
	.split_rows = ROWS,
	.bytes_rows = PFX_BYTES_ROWS,
	.bytes = bytes,
	.split = split,
	.quantise = quantise,
	.gemm = gemm,
	.rmsnorm = rmsnorm,
	.gated = gated,
	.rope = rope,
	.attn_query = pfx_avx512_attn_query,
	.attn = pfx_avx512_attn,
	.attn_merge = pfx_avx512_attn_merge,
	.narrow = narrow,
	.narrow8 = narrow8,
	.exponents_k = exponents_k,
	.exponents_v = exponents_v,
};
