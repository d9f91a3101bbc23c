/*
 * The AVX-512 variant (F, BW, DQ, VL, VNNI). Integer products are vpdpwssd: 16-bit words of
 * weights times 16-bit activations, summed in pairs into 32 bits; a group of 32 cannot
 * overflow, so its sum is exact and the order inside it is free.
 *
 * With many rows the weights of two tiles and a stretch of k are unpacked to words in the
 * thread's scratch, which then sits in the L1 while all rows go by in blocks of ROWS_MAX. With
 * few rows they are unpacked in registers, once for all rows: that is bound by reading them.
 *
 * Fast activations have 8 bits; with many rows they meet bytes of weights in vpdpbusd, which sums
 * fours. It wants one side unsigned: that is v + 128, and a sum starts at -128 * (sum of weights).
 */
#include "config.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/target.h"
#include "kernels/dtype_group.h"

static int usable(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
		__builtin_cpu_supports("avx2");
}

TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_exp2.h"
#include "kernels/cpu/vec_small.h"
#include "kernels/cpu/vec_gemm.h"

#define FEW_ROWS 8u      /* up to here weights are unpacked in registers */
#define STRETCH 10u      /* groups of k that are unpacked at a time: 20 KiB for two tiles */
#define STRETCH_BYTES 18u /* and 18 KiB */
#define GROUP_VECTORS 16 /* pairs of k in a group */
#define BYTE_VECTORS 8   /* fours of k */

static inline __m512i load_words(const void *p)
{
	return _mm512_loadu_si512(p);
}

/* The words of a group's 16 pairs, for 16 outputs. */
static inline __attribute__((always_inline)) void unpack_group(const enum pfx_code code,
	const uint8_t *codes, __m512i w[GROUP_VECTORS])
{
	const __m512i low = _mm512_set1_epi16(15);

	if (code == PFX_CODE_I8) {
		UNROLL for (int j = 0; j < 8; j++) {
			__m512i x = load_words(codes + 64 * j);
			w[2 * j] = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
			w[2 * j + 1] = _mm512_srai_epi16(x, 8);
		}
	} else if (code == PFX_CODE_U4) {
		UNROLL for (int j = 0; j < 4; j++) {
			__m512i x = load_words(codes + 64 * j);
			w[4 * j] = _mm512_and_si512(x, low);
			w[4 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(x, 8), low);
			w[4 * j + 2] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
			w[4 * j + 3] = _mm512_srli_epi16(x, 12);
		}
	} else {
		UNROLL for (int j = 0; j < 4; j++) {
			__m512i x = load_words(codes + 64 * j);
			w[4 * j] = _mm512_srai_epi16(_mm512_slli_epi16(x, 12), 12);
			w[4 * j + 1] = _mm512_srai_epi16(_mm512_slli_epi16(x, 4), 12);
			w[4 * j + 2] = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 12);
			w[4 * j + 3] = _mm512_srai_epi16(x, 12);
		}
	}
}

/* A group's 8 vectors of fours as signed bytes, and what the sums of its halves start at. */
static void unpack_bytes(enum pfx_code code, const uint8_t *codes, __m512i w[BYTE_VECTORS],
	__m512i start[2])
{
	const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
	const __m512i offset = _mm512_set1_epi8(-128);

	for (int j = 0; j < 8 && code == PFX_CODE_I8; j++) {
		w[j] = load_words(codes + 64 * j);
	}
	for (int j = 0; j < 4 && code != PFX_CODE_I8; j++) {
		__m512i x = load_words(codes + 64 * j);
		__m512i a = _mm512_and_si512(x, low), b = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);

		if (code == PFX_CODE_I4) {
			a = _mm512_sub_epi8(_mm512_xor_si512(a, eight), eight);
			b = _mm512_sub_epi8(_mm512_xor_si512(b, eight), eight);
		}
		w[2 * j] = a;
		w[2 * j + 1] = b;
	}
	for (int h = 0; h < 2; h++) {
		__m512i sum = _mm512_setzero_si512();

		for (int j = 4 * h; j < 4 * h + 4; j++) {
			sum = _mm512_dpbusd_epi32(sum, offset, w[j]);
		}
		start[h] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
	}
}

/* A row's words, at most 127, become bytes v + 128, each four in the order of pack.c: 0 2 1 3. */
static void bytes(int16_t *v, uint32_t k)
{
	const __m256i places = _mm256_broadcastsi128_si256(
		_mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0));
	uint8_t *to = (uint8_t *)v;

	for (uint32_t i = 0; i < k; i += PFX_GROUP, to += PFX_GROUP) {
		__m256i x = _mm512_cvtepi16_epi8(_mm512_loadu_si512(v + i));

		x = _mm256_xor_si256(_mm256_shuffle_epi8(x, places), _mm256_set1_epi8(-128));
		_mm256_storeu_si256((__m256i *)to, x);
	}
}

static inline v16 load_scale(const struct pfx_part *p, const uint8_t *at, size_t i)
{
	return p->scale_f16 ? v_load_f16((const uint16_t *)at + i * PFX_TILE) :
		v_load((const float *)at + i * PFX_TILE);
}

/* A pair of activations (or four of one byte), the same for all outputs. */
static inline __m512i pair(const void *v)
{
	int32_t both;

	memcpy(&both, v, 4);
	return _mm512_set1_epi32(both);
}

/* The words of pair j of a group. */
static inline __attribute__((always_inline)) __m512i word_of(const enum pfx_code code,
	const uint8_t *codes, int j)
{
	__m512i x = load_words(codes + 64 * (code == PFX_CODE_I8 ? j / 2 : j / 4));
	int at = code == PFX_CODE_I8 ? j % 2 * 8 : j % 2 * 8 + j % 4 / 2 * 4; /* of its lowest bit */

	if (code == PFX_CODE_U4) {
		x = at == 0 ? x : _mm512_srli_epi16(x, (unsigned)at);
		return at == 12 ? x : _mm512_and_si512(x, _mm512_set1_epi16(15));
	}
	int up = 16 - at - (code == PFX_CODE_I8 ? 8 : 4);
	x = up == 0 ? x : _mm512_slli_epi16(x, (unsigned)up);
	return _mm512_srai_epi16(x, code == PFX_CODE_I8 ? 8 : 12);
}

/* One tile x few rows; each word is unpacked once and used by all of them. */
static inline __attribute__((always_inline)) void few_block(const struct pfx_gemm *g,
	const struct pfx_part *p, const enum pfx_code code, const int n_scales, const int rows,
	uint32_t row, uint32_t tile)
{
	const uint8_t *w = pfx_tile_at(p, tile);
	const int span = GROUP_VECTORS / n_scales;
	const int16_t *x[FEW_ROWS];
	const float *s[FEW_ROWS];
	v16 acc[FEW_ROWS];

	UNROLL for (int r = 0; r < rows; r++) {
		x[r] = g->q.v + (size_t)(row + (uint32_t)r) * g->k;
		s[r] = g->q.s + (size_t)(row + (uint32_t)r) * p->n_groups * 2;
		__asm__("" : "+r"(x[r]), "+r"(s[r]));
		acc[r] = v_zero();
	}
	for (uint32_t i = 0; i < p->n_groups; i++, w += code == PFX_CODE_I8 ? 512 : 256) {
		UNROLL for (int h = 0; h < n_scales; h++) {
			v16 scale = load_scale(p, pfx_tile_at(p, tile) + p->scales_at,
				(size_t)i * (size_t)n_scales + (size_t)h);
			__m512i dot[FEW_ROWS][2]; /* two sums: one would wait for the product before */
			UNROLL for (int j = 0; j < span; j++) {
				__m512i word = word_of(code, w, h * span + j);
				UNROLL for (int r = 0; r < rows; r++) {
					__m512i xv = pair(x[r] + 2 * (h * span + j));
					__m512i *d = &dot[r][j % 2];
					*d = j < 2 ? _mm512_madd_epi16(word, xv) : _mm512_dpwssd_epi32(*d, word, xv);
				}
			}
			UNROLL for (int r = 0; r < rows; r++) {
				__m512i d = _mm512_add_epi32(dot[r][0], dot[r][1]);
				acc[r] = v_fma(v_mul(scale, v_set1(s[r][0])), _mm512_cvtepi32_ps(d), acc[r]);
			}
		}
		if (p->has_min) {
			v16 min = load_scale(p, pfx_tile_at(p, tile) + p->mins_at, i);
			UNROLL for (int r = 0; r < rows; r++) {
				acc[r] = v_fma(min, v_set1(s[r][1]), acc[r]);
			}
		}
		UNROLL for (int r = 0; r < rows; r++) {
			x[r] += PFX_GROUP;
			s[r] += 2;
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		put_out(g, p, row + (uint32_t)r, tile, acc[r]);
	}
}

static inline __attribute__((always_inline)) void few_rows(const struct pfx_gemm *g,
	const struct pfx_part *p, const enum pfx_code code, const int n_scales, uint32_t tile,
	uint32_t end_tile, uint32_t row, uint32_t n_rows)
{
	for (; tile < end_tile; tile++) {
		switch (n_rows) {
		case 1:
			few_block(g, p, code, n_scales, 1, row, tile);
			break;
		case 2:
			few_block(g, p, code, n_scales, 2, row, tile);
			break;
		case 3:
			few_block(g, p, code, n_scales, 3, row, tile);
			break;
		case 4:
			few_block(g, p, code, n_scales, 4, row, tile);
			break;
		case 5:
			few_block(g, p, code, n_scales, 5, row, tile);
			break;
		case 6:
			few_block(g, p, code, n_scales, 6, row, tile);
			break;
		case 7:
			few_block(g, p, code, n_scales, 7, row, tile);
			break;
		default:
			PFX_ASSERT(n_rows == FEW_ROWS);
			few_block(g, p, code, n_scales, 8, row, tile);
		}
	}
}

/* The thread's scratch while many rows go by. */
struct work {
	union {                                       /* two tiles side by side */
		__m512i words[STRETCH][GROUP_VECTORS][2];
		__m512i bytes[STRETCH_BYTES][BYTE_VECTORS][2];
	};
	__m512i start[STRETCH_BYTES][2][2];           /* [group][half][tile] */
	v16 scales[STRETCH_BYTES][2][2];
	v16 mins[STRETCH_BYTES][2];
	v16 acc[PFX_GEMM_ROWS][2];
	/* Of the tiles after these two: what is still to be prefetched, lines at a time. */
	const uint8_t *next, *end;
	uint32_t lines_each;
};
_Static_assert(sizeof(struct work) <= PFX_GEMM_SCRATCH, "fits the scratch of a thread");

static void unpack_words(const struct pfx_part *p, const uint8_t *t, uint32_t group,
	__m512i w[GROUP_VECTORS])
{
	if (p->code == PFX_CODE_I8) {
		unpack_group(PFX_CODE_I8, t + (size_t)group * 512, w);
	} else if (p->code == PFX_CODE_U4) {
		unpack_group(PFX_CODE_U4, t + (size_t)group * 256, w);
	} else {
		unpack_group(PFX_CODE_I4, t + (size_t)group * 256, w);
	}
}

/* Groups [g0, g0 + n) of one tile to column c, as words or bytes. */
static void unpack_tile(struct work *work, const struct pfx_part *p, uint32_t tile, uint32_t c,
	uint32_t g0, uint32_t n, int as_bytes)
{
	const uint8_t *t = pfx_tile_at(p, tile);
	__m512i w[GROUP_VECTORS], start[2];

	for (uint32_t i = 0; i < n; i++) {
		if (as_bytes) {
			size_t bytes = p->code == PFX_CODE_I8 ? 512 : 256;
			unpack_bytes(p->code, t + (g0 + i) * bytes, w, start);
			for (int j = 0; j < BYTE_VECTORS; j++) {
				work->bytes[i][j][c] = w[j];
			}
			work->start[i][1][c] = start[1];
			work->start[i][0][c] = p->n_scales == 2 ? start[0] :
				_mm512_add_epi32(start[0], start[1]);
		} else {
			unpack_words(p, t, g0 + i, w);
			UNROLL for (int j = 0; j < GROUP_VECTORS; j++) {
				work->words[i][j][c] = w[j];
			}
		}
		for (uint32_t h = 0; h < p->n_scales; h++) {
			work->scales[i][h][c] =
				load_scale(p, t + p->scales_at, (size_t)(g0 + i) * p->n_scales + h);
		}
		if (p->has_min) {
			work->mins[i][c] = load_scale(p, t + p->mins_at, g0 + i);
		}
	}
}

/* Column c when there is no second tile. */
static void clear_tile(struct work *work, uint32_t c, uint32_t n, int as_bytes)
{
	for (uint32_t i = 0; i < n; i++) {
		for (int j = 0; j < (as_bytes ? BYTE_VECTORS : GROUP_VECTORS); j++) {
			*(as_bytes ? &work->bytes[i][j][c] : &work->words[i][j][c]) = _mm512_setzero_si512();
		}
		work->start[i][0][c] = work->start[i][1][c] = _mm512_setzero_si512();
		work->scales[i][0][c] = work->scales[i][1][c] = work->mins[i][c] = v_zero();
	}
}

/* Vectors [from, to) of a group, which share one scale, for rows x two tiles. */
static inline __attribute__((always_inline)) void add_vectors(v16 acc[ROWS_MAX][2], const int rows,
	const int as_bytes, const int from, const int to, const __m512i (*codes)[2],
	const __m512i start[2], const v16 scale[2], const uint8_t *const x[ROWS_MAX],
	const float *const s[ROWS_MAX])
{
	__m512i dot[ROWS_MAX][2];

	UNROLL for (int j = from; j < to; j++) {
		__m512i w0 = codes[j][0], w1 = codes[j][1];
		UNROLL for (int r = 0; r < rows; r++) {
			__m512i xv = pair(x[r] + 4 * j);
			if (as_bytes) {
				dot[r][0] = _mm512_dpbusd_epi32(j == from ? start[0] : dot[r][0], xv, w0);
				dot[r][1] = _mm512_dpbusd_epi32(j == from ? start[1] : dot[r][1], xv, w1);
			} else {
				/* The first one starts the sum: no zeroes to be made. */
				dot[r][0] = j == from ? _mm512_madd_epi16(w0, xv) :
					_mm512_dpwssd_epi32(dot[r][0], w0, xv);
				dot[r][1] = j == from ? _mm512_madd_epi16(w1, xv) :
					_mm512_dpwssd_epi32(dot[r][1], w1, xv);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		v16 xs = v_set1(s[r][0]);
		acc[r][0] = v_fma(v_mul(scale[0], xs), _mm512_cvtepi32_ps(dot[r][0]), acc[r][0]);
		acc[r][1] = v_fma(v_mul(scale[1], xs), _mm512_cvtepi32_ps(dot[r][1]), acc[r][1]);
	}
}

/* How the groups of a product are: all of it is known to the compiler in each copy of a loop. */
struct kind {
	int as_bytes, n_scales, has_min;
};

/* rows x two tiles over the groups [g0, g0 + n) that are unpacked. */
static inline __attribute__((always_inline)) void many_block(const struct pfx_gemm *g,
	struct work *work, const int rows, const struct kind kind, uint32_t row, uint32_t at,
	uint32_t g0, uint32_t n)
{
	const uint32_t groups = g->k / PFX_GROUP;
	const size_t group_bytes = PFX_GROUP * (kind.as_bytes ? 1 : 2);
	const int vectors = kind.as_bytes ? BYTE_VECTORS : GROUP_VECTORS;
	const uint8_t *x[ROWS_MAX];
	const float *s[ROWS_MAX]; /* scales and sums of the row */
	v16 acc[ROWS_MAX][2];

	UNROLL for (int r = 0; r < rows; r++) {
		x[r] = (const uint8_t *)(g->q.v + (size_t)(row + (uint32_t)r) * g->k) + g0 * group_bytes;
		s[r] = g->q.s + ((size_t)(row + (uint32_t)r) * groups + g0) * 2;
		/* Pointers for each row, not offsets worked out for each load. */
		__asm__("" : "+r"(x[r]), "+r"(s[r]));
		acc[r][0] = g0 == 0 ? v_zero() : work->acc[at + (uint32_t)r][0];
		acc[r][1] = g0 == 0 ? v_zero() : work->acc[at + (uint32_t)r][1];
	}
	for (uint32_t i = 0; i < n; i++) {
		const __m512i (*codes)[2] = kind.as_bytes ? work->bytes[i] : work->words[i];

		UNROLL for (int h = 0; h < kind.n_scales; h++) {
			add_vectors(acc, rows, kind.as_bytes, h * vectors / kind.n_scales,
				(h + 1) * vectors / kind.n_scales, codes, work->start[i][h],
				work->scales[i][h], x, s);
		}
		if (kind.has_min) {
			v16 m0 = work->mins[i][0], m1 = work->mins[i][1];
			UNROLL for (int r = 0; r < rows; r++) {
				v16 sum = v_set1(s[r][1]);
				acc[r][0] = v_fma(m0, sum, acc[r][0]);
				acc[r][1] = v_fma(m1, sum, acc[r][1]);
			}
		}
		UNROLL for (int r = 0; r < rows; r++) {
			x[r] += group_bytes;
			s[r] += 2;
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		work->acc[at + (uint32_t)r][0] = acc[r][0];
		work->acc[at + (uint32_t)r][1] = acc[r][1];
	}
}

/* Outputs of rows that have had all groups, while the next rows go by: stores take time. */
static void put_rows(const struct pfx_gemm *g, const struct pfx_part *p, const struct work *work,
	uint32_t tile, uint32_t row0, uint32_t at, uint32_t rows)
{
	for (uint32_t r = at; r < at + rows; r++) {
		put_out(g, p, row0 + r, tile, work->acc[r][0]);
		if (tile + 1 < p->n_tiles) {
			put_out(g, p, row0 + r, tile + 1, work->acc[r][1]);
		}
	}
}

/* What is needed next comes nearer: the lines of y of these rows, and a few of the next tiles. */
static inline void prefetch(const struct pfx_gemm *g, const struct pfx_part *p, struct work *work,
	uint32_t tile, uint32_t row, uint32_t rows, int last)
{
	const float *y = g->y + (size_t)row * g->n + p->n0 + tile * PFX_TILE;

	for (uint32_t i = 0; i < work->lines_each && work->next < work->end; i++, work->next += 64) {
		_mm_prefetch((const char *)work->next, _MM_HINT_T1);
	}
	for (uint32_t r = 0; last && r < rows; r++, y += g->n) {
		__builtin_prefetch(y, 1);
		__builtin_prefetch(y + PFX_TILE, 1);
	}
}

static inline __attribute__((always_inline)) void many_stretch(const struct pfx_gemm *g,
	const struct pfx_part *p, struct work *work, const struct kind kind, uint32_t tile,
	uint32_t row0, uint32_t n_rows, uint32_t g0, uint32_t n)
{
	int last = g0 + n == p->n_groups;
	uint32_t rows;

	for (uint32_t at = 0; at < n_rows; at += rows) {
		/* Blocks of about the same size: a small one waits for its own sums. */
		uint32_t n_blocks = (n_rows - at + ROWS_MAX - 1) / ROWS_MAX;

		rows = (n_rows - at + n_blocks - 1) / n_blocks;
		prefetch(g, p, work, tile, row0 + at, rows, last);
		switch (rows) {
		case 1:
			many_block(g, work, 1, kind, row0 + at, at, g0, n);
			break;
		case 2:
			many_block(g, work, 2, kind, row0 + at, at, g0, n);
			break;
		case 3:
			many_block(g, work, 3, kind, row0 + at, at, g0, n);
			break;
		case 4:
			many_block(g, work, 4, kind, row0 + at, at, g0, n);
			break;
		case 5:
			many_block(g, work, 5, kind, row0 + at, at, g0, n);
			break;
		default:
			many_block(g, work, 6, kind, row0 + at, at, g0, n);
		}
		if (last) {
			put_rows(g, p, work, tile, row0, at, rows);
		}
	}
}

static inline __attribute__((always_inline)) void many_kind(const struct pfx_gemm *g,
	const struct pfx_part *p, struct work *work, const int as_bytes, uint32_t tile, uint32_t row0,
	uint32_t n_rows, uint32_t g0, uint32_t n)
{
	if (p->n_scales == 2) {
		many_stretch(g, p, work, (struct kind){ as_bytes, 2, 0 }, tile, row0, n_rows, g0, n);
	} else if (p->has_min) {
		many_stretch(g, p, work, (struct kind){ as_bytes, 1, 1 }, tile, row0, n_rows, g0, n);
	} else {
		many_stretch(g, p, work, (struct kind){ as_bytes, 1, 0 }, tile, row0, n_rows, g0, n);
	}
}

/* Two tiles x many rows; the task goes on to end_tile. */
static void many_rows(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile,
	uint32_t end_tile, uint32_t row0, uint32_t n_rows, struct work *work)
{
	uint32_t most = g->bytes ? STRETCH_BYTES : STRETCH;
	uint32_t n_stretches = (p->n_groups + most - 1) / most;
	uint32_t each = (p->n_groups + n_stretches - 1) / n_stretches;
	uint32_t n_blocks = n_stretches * ((n_rows + ROWS_MAX - 1) / ROWS_MAX);

	work->next = pfx_tile_at(p, tile + 2);
	work->end = pfx_tile_at(p, tile + 4 < end_tile ? tile + 4 : end_tile);
	work->lines_each = (uint32_t)(2 * p->tile_bytes / 64) / n_blocks + 1;
	for (uint32_t g0 = 0; g0 < p->n_groups; g0 += each) {
		uint32_t n = p->n_groups - g0 < each ? p->n_groups - g0 : each;
		unpack_tile(work, p, tile, 0, g0, n, g->bytes);
		if (tile + 1 < p->n_tiles) {
			unpack_tile(work, p, tile + 1, 1, g0, n, g->bytes);
		} else {
			clear_tile(work, 1, n, g->bytes);
		}
		if (g->bytes) {
			many_kind(g, p, work, 1, tile, row0, n_rows, g0, n);
		} else {
			many_kind(g, p, work, 0, tile, row0, n_rows, g0, n);
		}
	}
}

static void gemm(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
	uint32_t n_tiles, uint32_t row0, uint32_t n_rows, void *scratch)
{
	uint32_t end = tile0 + n_tiles;

	PFX_ASSERT(n_rows <= PFX_GEMM_ROWS && tile0 % 2 == 0);
	if (p->n_groups == 0) {
		gemm_floats(g, p, tile0, n_tiles, row0, n_rows, scratch);
	} else if (g->bytes || n_rows > FEW_ROWS) {
		for (uint32_t t = tile0; t < end; t += 2) {
			many_rows(g, p, t, end, row0, n_rows, scratch);
		}
	} else if (p->code == PFX_CODE_U4) {
		few_rows(g, p, PFX_CODE_U4, 1, tile0, end, row0, n_rows);
	} else if (p->code == PFX_CODE_I4) {
		few_rows(g, p, PFX_CODE_I4, 1, tile0, end, row0, n_rows);
	} else if (p->n_scales == 2) {
		few_rows(g, p, PFX_CODE_I8, 2, tile0, end, row0, n_rows);
	} else {
		few_rows(g, p, PFX_CODE_I8, 1, tile0, end, row0, n_rows);
	}
}

TARGET_END

const struct pfx_variant pfx_variant_avx512 = {
	.name = "avx512",
	.usable = usable,
	.bytes_rows = PFX_BYTES_ROWS,
	.bytes = bytes,
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
