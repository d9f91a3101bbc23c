/*
 * A vector of 16 floats for the shared bodies (vec_small.h, vec_attn.h, vec_gemm.h): AVX-512.
 * Included once, by avx512.c, within its target region.
 */
typedef __m512 v16;

/* Register blocks: rows x vectors. */
#define ROWS_MAX 6
#define COLS_MAX 4

static inline __mmask16 first(uint32_t n)
{
	return (__mmask16)((1u << n) - 1);
}

static inline v16 v_zero(void)
{
	return _mm512_setzero_ps();
}

static inline v16 v_set1(float f)
{
	return _mm512_set1_ps(f);
}

static inline v16 v_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, v16 a)
{
	_mm512_storeu_ps(p, a);
}

/* The first n < 16 lanes, the others zero. */
static inline v16 v_load_n(const float *p, uint32_t n)
{
	return _mm512_maskz_loadu_ps(first(n), p);
}

static inline void v_store_n(float *p, v16 a, uint32_t n)
{
	_mm512_mask_storeu_ps(p, first(n), a);
}

/* a in the first n < 16 lanes, b in the others. */
static inline v16 v_head(v16 a, v16 b, uint32_t n)
{
	return _mm512_mask_blend_ps(first(n), b, a);
}

static inline v16 v_load_f16(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void v_store_f16(uint16_t *p, v16 a)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline v16 v_load_bf16(const uint16_t *p)
{
	__m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

	return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

static inline v16 v_add(v16 a, v16 b)
{
	return _mm512_add_ps(a, b);
}

static inline v16 v_sub(v16 a, v16 b)
{
	return _mm512_sub_ps(a, b);
}

static inline v16 v_mul(v16 a, v16 b)
{
	return _mm512_mul_ps(a, b);
}

static inline v16 v_div(v16 a, v16 b)
{
	return _mm512_div_ps(a, b);
}

/* a > b ? a : b */
static inline v16 v_max(v16 a, v16 b)
{
	return _mm512_max_ps(a, b);
}

/* a < b ? a : b */
static inline v16 v_min(v16 a, v16 b)
{
	return _mm512_min_ps(a, b);
}

/* a * b + c, rounded once */
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
	return _mm512_fmadd_ps(a, b, c);
}

static inline v16 v_fms(v16 a, v16 b, v16 c)
{
	return _mm512_fmsub_ps(a, b, c);
}

/* The bits of p plus (the low bits of n) << 23: p * 2^n, see exp2.h. */
static inline v16 v_add_exponent(v16 p, v16 n)
{
	__m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(n), 23);

	return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), shifted));
}

/* Halves added until one is left: the order of the reference's sum_lanes. */
static inline __m128 v_halves(__m256 a)
{
	return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

static inline float v_sum(v16 a)
{
	__m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
	__m128 s = v_halves(_mm256_add_ps(_mm512_castps512_ps256(a), high));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float v_top(v16 a)
{
	return _mm512_reduce_max_ps(a);
}

/* 16 pairs of words, or 16 sums. */
typedef __m512i w16;

static inline w16 w_zero(void)
{
	return _mm512_setzero_si512();
}

static inline w16 w_load(const uint32_t *p)
{
	return _mm512_loadu_si512(p);
}

/* 16 pairs of signed bytes. */
static inline w16 w_load_bytes(const void *p)
{
	return _mm512_cvtepi8_epi16(_mm256_loadu_si256(p));
}

static inline void w_store(uint32_t *p, w16 a)
{
	_mm512_storeu_si512(p, a);
}

static inline w16 w_set1(uint32_t pair)
{
	return _mm512_set1_epi32((int)pair);
}

/*
 * acc + the products of both words of each pair. By name, since gcc 12 copies the sum to another
 * register and back around the intrinsic when there are many sums.
 */
static inline w16 w_dot(w16 acc, w16 a, w16 b)
{
	__asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
	return acc;
}

static inline v16 w_float(w16 a)
{
	return _mm512_cvtepi32_ps(a);
}

/* Floats that hold integers in their low 16 bits (attn.h): 16 words, or 16 pairs. */
static inline void v_store_words(int16_t *p, v16 a)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_castps_si512(a)));
}

static inline w16 v_pairs(v16 low, v16 high)
{
	__m512i up = _mm512_slli_epi32(_mm512_castps_si512(high), 16);

	return _mm512_mask_blend_epi16(0x55555555, up, _mm512_castps_si512(low));
}

static inline __m512i exponents(const uint8_t *e)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)e));
}

/* The factors to words, and back, of 16 exponents (attn.h). */
static inline v16 v_word_up(const uint8_t *e, int bits)
{
	__m512i up = _mm512_sub_epi32(_mm512_set1_epi32(PFX_WORD_UP(bits)), exponents(e));

	return _mm512_castsi512_ps(_mm512_slli_epi32(up, 23));
}

static inline v16 v_word_down(const uint8_t *e, int bits)
{
	__m512i exp = exponents(e);
	__m512i down = _mm512_add_epi32(exp, _mm512_set1_epi32(PFX_WORD_DOWN(bits)));
	__mmask16 none = _mm512_cmpeq_epi32_mask(exp, _mm512_set1_epi32(PFX_EXP_NONE));

	return _mm512_mask_blend_ps(none, _mm512_castsi512_ps(_mm512_slli_epi32(down, 23)),
		_mm512_set1_ps(NAN));
}

/* The largest |x| of 32 floats, as bits: NaN above infinity above all numbers. */
static inline uint32_t v_amax_bits(const float *x)
{
	__m512i mask = _mm512_set1_epi32(0x7fffffff);
	__m512i a = _mm512_and_si512(_mm512_loadu_si512(x), mask);
	__m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);

	return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

/* v[i] = round(x[i] * inv) for 32 floats; returns their sum. */
static inline int32_t v_round32(const float *x, float inv, int16_t *v)
{
	__m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inv)));
	__m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), _mm512_set1_ps(inv)));

	_mm256_storeu_si256((__m256i *)v, _mm512_cvtepi32_epi16(a));
	_mm256_storeu_si256((__m256i *)(v + 16), _mm512_cvtepi32_epi16(b));
	return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

/* 16 pairs (a0 b0 a1 b1 ...) apart and together again. */
static inline void v_split_pairs(const float *p, v16 *a, v16 *b)
{
	__m512 x = _mm512_loadu_ps(p), y = _mm512_loadu_ps(p + 16);
	__m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
	__m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);

	*a = _mm512_permutex2var_ps(x, even, y);
	*b = _mm512_permutex2var_ps(x, odd, y);
}

static inline void v_join_pairs(float *p, v16 a, v16 b)
{
	__m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
	__m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);

	_mm512_storeu_ps(p, _mm512_permutex2var_ps(a, low, b));
	_mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(a, high, b));
}
