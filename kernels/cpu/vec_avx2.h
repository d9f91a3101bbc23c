/*
 * A vector of 16 floats for the shared bodies (vec_small.h, vec_attn.h, vec_gemm.h): two of
 * AVX2. Included once, by avx2.c, within its target region.
 */
typedef struct {
	__m256 a, b; /* lanes 0..7, 8..15 */
} v16;

/* Register blocks: rows x vectors. 6 x 2 sums, a vector of two and a broadcast: 15 of 16. */
#define ROWS_MAX 6
#define COLS_MAX 1

static inline v16 v_zero(void)
{
	return (v16){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}

static inline v16 v_set1(float f)
{
	return (v16){ _mm256_set1_ps(f), _mm256_set1_ps(f) };
}

static inline v16 v_load(const float *p)
{
	return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

static inline void v_store(float *p, v16 v)
{
	_mm256_storeu_ps(p, v.a);
	_mm256_storeu_ps(p + 8, v.b);
}

/* Lanes below n of the eight from `from` on. */
static inline __m256 first(uint32_t n, int from)
{
	__m256i lane = _mm256_add_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(from));

	return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}

/* The first n < 16 lanes, the others zero. */
static inline v16 v_load_n(const float *p, uint32_t n)
{
	return (v16){ _mm256_maskload_ps(p, _mm256_castps_si256(first(n, 0))),
		_mm256_maskload_ps(p + 8, _mm256_castps_si256(first(n, 8))) };
}

static inline void v_store_n(float *p, v16 v, uint32_t n)
{
	_mm256_maskstore_ps(p, _mm256_castps_si256(first(n, 0)), v.a);
	_mm256_maskstore_ps(p + 8, _mm256_castps_si256(first(n, 8)), v.b);
}

/* x in the first n < 16 lanes, y in the others. */
static inline v16 v_head(v16 x, v16 y, uint32_t n)
{
	return (v16){ _mm256_blendv_ps(y.a, x.a, first(n, 0)), _mm256_blendv_ps(y.b, x.b, first(n, 8)) };
}

static inline v16 v_load_f16(const uint16_t *p)
{
	return (v16){ _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
		_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))) };
}

static inline void v_store_f16(uint16_t *p, v16 v)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
	_mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}

static inline __m256 bf16_8(const uint16_t *p)
{
	__m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

	return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

static inline v16 v_load_bf16(const uint16_t *p)
{
	return (v16){ bf16_8(p), bf16_8(p + 8) };
}

static inline v16 v_add(v16 x, v16 y)
{
	return (v16){ _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b) };
}

static inline v16 v_sub(v16 x, v16 y)
{
	return (v16){ _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b) };
}

static inline v16 v_mul(v16 x, v16 y)
{
	return (v16){ _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b) };
}

static inline v16 v_div(v16 x, v16 y)
{
	return (v16){ _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b) };
}

/* x > y ? x : y */
static inline v16 v_max(v16 x, v16 y)
{
	return (v16){ _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b) };
}

/* x < y ? x : y */
static inline v16 v_min(v16 x, v16 y)
{
	return (v16){ _mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b) };
}

/* x * y + z, rounded once */
static inline v16 v_fma(v16 x, v16 y, v16 z)
{
	return (v16){ _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b) };
}

static inline v16 v_fms(v16 x, v16 y, v16 z)
{
	return (v16){ _mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b) };
}

static inline __m256 add_exponent8(__m256 p, __m256 n)
{
	__m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(n), 23);

	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted));
}

/* The bits of p plus (the low bits of n) << 23: p * 2^n, see exp2.h. */
static inline v16 v_add_exponent(v16 p, v16 n)
{
	return (v16){ add_exponent8(p.a, n.a), add_exponent8(p.b, n.b) };
}

/* Halves added until one is left: the order of the reference's sum_lanes. */
static inline float v_sum(v16 v)
{
	__m256 h = _mm256_add_ps(v.a, v.b);
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float v_top(v16 v)
{
	__m256 h = _mm256_max_ps(v.a, v.b);
	__m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

	s = _mm_max_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* 16 pairs of words, or 16 sums. */
typedef struct {
	__m256i a, b;
} w16;

static inline w16 w_zero(void)
{
	return (w16){ _mm256_setzero_si256(), _mm256_setzero_si256() };
}

static inline w16 w_load(const uint32_t *p)
{
	return (w16){ _mm256_loadu_si256((const __m256i *)p),
		_mm256_loadu_si256((const __m256i *)(p + 8)) };
}

/* 16 pairs of signed bytes. */
static inline w16 w_load_bytes(const void *p)
{
	const __m128i *at = p;

	return (w16){ _mm256_cvtepi8_epi16(_mm_loadu_si128(at)),
		_mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1)) };
}

static inline void w_store(uint32_t *p, w16 x)
{
	_mm256_storeu_si256((__m256i *)p, x.a);
	_mm256_storeu_si256((__m256i *)(p + 8), x.b);
}

static inline w16 w_set1(uint32_t pair)
{
	return (w16){ _mm256_set1_epi32((int)pair), _mm256_set1_epi32((int)pair) };
}

/* acc + the products of both words of each pair */
static inline w16 w_dot(w16 acc, w16 x, w16 y)
{
	return (w16){ _mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)),
		_mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b)) };
}

static inline v16 w_float(w16 x)
{
	return (v16){ _mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b) };
}

/* Floats that hold integers in their low 16 bits (attn.h): 16 words, or 16 pairs. */
static inline void v_store_words(int16_t *p, v16 x)
{
	__m256i low = _mm256_set1_epi32(0xffff);
	__m256i a = _mm256_and_si256(_mm256_castps_si256(x.a), low);
	__m256i b = _mm256_and_si256(_mm256_castps_si256(x.b), low);

	/* packus works on halves: put the quarters in order again. */
	_mm256_storeu_si256((__m256i *)p,
		_mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}

static inline __m256i pairs8(__m256 low, __m256 high)
{
	__m256i up = _mm256_slli_epi32(_mm256_castps_si256(high), 16);

	return _mm256_blend_epi16(up, _mm256_castps_si256(low), 0x55);
}

static inline w16 v_pairs(v16 low, v16 high)
{
	return (w16){ pairs8(low.a, high.a), pairs8(low.b, high.b) };
}

static inline __m256i exponents8(const uint8_t *e)
{
	return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)e));
}

static inline __m256 word_up8(const uint8_t *e, int bits)
{
	__m256i up = _mm256_sub_epi32(_mm256_set1_epi32(PFX_WORD_UP(bits)), exponents8(e));

	return _mm256_castsi256_ps(_mm256_slli_epi32(up, 23));
}

static inline __m256 word_down8(const uint8_t *e, int bits)
{
	__m256i exp = exponents8(e), none = _mm256_cmpeq_epi32(exp, _mm256_set1_epi32(PFX_EXP_NONE));
	__m256i down = _mm256_add_epi32(exp, _mm256_set1_epi32(PFX_WORD_DOWN(bits)));

	return _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_slli_epi32(down, 23)), _mm256_set1_ps(NAN),
		_mm256_castsi256_ps(none));
}

/* The factors to words, and back, of 16 exponents (attn.h). */
static inline v16 v_word_up(const uint8_t *e, int bits)
{
	return (v16){ word_up8(e, bits), word_up8(e + 8, bits) };
}

static inline v16 v_word_down(const uint8_t *e, int bits)
{
	return (v16){ word_down8(e, bits), word_down8(e + 8, bits) };
}

/* The largest |x| of 32 floats, as bits: NaN above infinity above all numbers. */
static inline uint32_t v_amax_bits(const float *x)
{
	__m256i mask = _mm256_set1_epi32(0x7fffffff), top = _mm256_setzero_si256();
	__m128i s;

	for (int i = 0; i < 32; i += 8) {
		__m256i v = _mm256_loadu_si256((const __m256i *)(x + i));
		top = _mm256_max_epi32(top, _mm256_and_si256(v, mask));
	}
	s = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
	s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(s);
}

/* v[i] = round(x[i] * inv) for 32 floats; returns their sum. */
static inline int32_t v_round32(const float *x, float inv, int16_t *v)
{
	__m256i sum = _mm256_setzero_si256();
	__m256 f = _mm256_set1_ps(inv);
	__m128i s;

	for (int i = 0; i < 32; i += 16) {
		__m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), f));
		__m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), f));
		sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
		/* packs works on halves: put the quarters in order again. */
		_mm256_storeu_si256((__m256i *)(v + i),
			_mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
	}
	s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
	return _mm_cvtsi128_si32(s);
}

static inline void split8(const float *p, __m256 *a, __m256 *b)
{
	__m256 x = _mm256_loadu_ps(p), y = _mm256_loadu_ps(p + 8);
	__m256 even = _mm256_shuffle_ps(x, y, 0x88), odd = _mm256_shuffle_ps(x, y, 0xdd);

	*a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
	*b = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
}

static inline void join8(float *p, __m256 a, __m256 b)
{
	__m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);

	_mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
	_mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

/* 16 pairs (a0 b0 a1 b1 ...) apart and together again. */
static inline void v_split_pairs(const float *p, v16 *x, v16 *y)
{
	split8(p, &x->a, &y->a);
	split8(p + 16, &x->b, &y->b);
}

static inline void v_join_pairs(float *p, v16 x, v16 y)
{
	join8(p, x.a, y.a);
	join8(p + 16, x.b, y.b);
}
