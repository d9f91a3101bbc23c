/*
 * The small kernels over vectors of 16 floats; included once by each fast variant, after its
 * vec_*.h. Operation by operation the same as reference.c, which explains them.
 */

static void quantise(const float *x, uint32_t k, float top, int16_t *v, float *s)
{
	for (uint32_t g = 0; g < k / PFX_GROUP; g++, x += PFX_GROUP, v += PFX_GROUP, s += 2) {
		uint32_t max = v_amax_bits(x);
		float amax;
		memcpy(&amax, &max, 4);
		if (max >= 0x7f800000u || amax < 1e-30f) {
			memset(v, 0, PFX_GROUP * sizeof(*v));
			s[0] = s[1] = max >= 0x7f800000u ? NAN : 0;
			continue;
		}
		s[0] = amax / top;
		s[1] = s[0] * (float)v_round32(x, top / amax, v);
	}
}

static void rmsnorm(const float *x, const float *w, float eps, uint32_t dim, float *y)
{
	uint32_t i, rest = dim % 16;
	v16 lanes = v_zero(), r;

	for (i = 0; i + 16 <= dim; i += 16) {
		v16 a = v_load(x + i);
		lanes = v_fma(a, a, lanes);
	}
	if (rest != 0) {
		v16 a = v_load_n(x + i, rest);
		lanes = v_fma(a, a, lanes);
	}
	r = v_set1(1.0f / sqrtf(v_sum(lanes) / (float)dim + eps));
	for (i = 0; i + 16 <= dim; i += 16) {
		v_store(y + i, v_mul(v_mul(v_load(x + i), r), v_load(w + i)));
	}
	if (rest != 0) {
		v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, rest), r), v_load_n(w + i, rest)), rest);
	}
}

static inline v16 gate_of(enum pfx_act act, v16 x, v16 up)
{
	v16 e = act == PFX_ACT_SILU ? v_set1(-PFX_LOG2E) :
		v_fma(v_set1(PFX_GELU_B), v_mul(x, x), v_set1(PFX_GELU_A));

	return v_mul(v_div(x, v_add(v_set1(1.0f), v_exp2(v_mul(x, e)))), up);
}

static void gated(enum pfx_act act, const float *gate, const float *up, uint32_t n, float *y)
{
	uint32_t i, rest = n % 16;

	for (i = 0; i + 16 <= n; i += 16) {
		v_store(y + i, gate_of(act, v_load(gate + i), v_load(up + i)));
	}
	if (rest != 0) {
		v_store_n(y + i, gate_of(act, v_load_n(gate + i, rest), v_load_n(up + i, rest)), rest);
	}
}

static inline void turn(v16 *a, v16 *b, v16 c, v16 s)
{
	v16 x0 = *a, x1 = *b;

	*a = v_fms(x0, c, v_mul(x1, s));
	*b = v_fma(x0, s, v_mul(x1, c));
}

static void rope(enum pfx_rope_kind kind, uint32_t n_dims, const float *cs, float *x)
{
	uint32_t half = n_dims / 2, i = 0;
	v16 a, b;

	for (; kind == PFX_ROPE_PAIRS && i + 16 <= half; i += 16) {
		v_split_pairs(x + 2 * i, &a, &b);
		turn(&a, &b, v_load(cs + i), v_load(cs + half + i));
		v_join_pairs(x + 2 * i, a, b);
	}
	for (; kind == PFX_ROPE_HALVES && i + 16 <= half; i += 16) {
		a = v_load(x + i);
		b = v_load(x + half + i);
		turn(&a, &b, v_load(cs + i), v_load(cs + half + i));
		v_store(x + i, a);
		v_store(x + half + i, b);
	}
	for (; i < half; i++) {
		float *p = kind == PFX_ROPE_PAIRS ? &x[2 * i] : &x[i];
		float *q = kind == PFX_ROPE_PAIRS ? &x[2 * i + 1] : &x[i + half];
		float c = cs[i], s = cs[half + i], x0 = *p, x1 = *q;
		*p = fmaf(x0, c, -(x1 * s));
		*q = fmaf(x0, s, x1 * c);
	}
}

typedef __m256i h16; /* 16 f16 */

static inline h16 h_load(const uint16_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

/* The larger magnitudes of top and of 16 f16. */
static inline h16 h_amax(h16 top, h16 half)
{
	return _mm256_max_epu16(top, _mm256_and_si256(half, _mm256_set1_epi16(0x7fff)));
}

static inline uint32_t h_top(h16 a)
{
	__m128i top = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

	top = _mm_minpos_epu16(_mm_xor_si128(top, _mm_set1_epi16(-1)));
	return 0xffffu ^ (uint32_t)_mm_extract_epi16(top, 0);
}

static uint32_t narrow(const float *x, uint32_t n, uint16_t *y)
{
	h16 top = _mm256_setzero_si256();
	uint16_t last[16];
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16) {
		v_store_f16(y + i, v_load(x + i));
		top = h_amax(top, h_load(y + i));
	}
	if (i < n) {
		v_store_f16(last, v_load_n(x + i, n - i));
		top = h_amax(top, h_load(last));
		memcpy(y + i, last, (n - i) * sizeof(*y));
	}
	return h_top(top);
}

static uint16_t narrow8(const float *x, uint32_t n, int8_t *y)
{
	float scale, most, padded[16];
	uint16_t half[16];
	int16_t words[16];
	uint32_t amax = 0;
	v16 inv;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, x + i, 4);
		bits &= 0x7fffffffu;
		amax = bits > amax ? bits : amax;
	}
	memcpy(&most, &amax, 4);
	v_store_f16(half, v_set1(most / 127.0f));
	if (half[0] == 0 || half[0] >= 0x7c00) {
		memset(y, 0, n);
		return half[0] == 0 ? 0 : PFX_F16_NAN;
	}
	v_store(padded, v_load_f16(half));
	scale = padded[0];
	inv = v_set1(1.0f / scale);
	for (uint32_t i = 0; i < n; i += 16) {
		uint32_t len = n - i < 16 ? n - i : 16;
		v16 v = v_mul(len < 16 ? v_load_n(x + i, len) : v_load(x + i), inv);
		v = v_max(v_min(v, v_set1(127.0f)), v_set1(-127.0f));
		v_store_words(words, v_add(v, v_set1(PFX_WORD_MAGIC)));
		for (uint32_t j = 0; j < len; j++) {
			y[i + j] = (int8_t)words[j];
		}
	}
	return half[0];
}

static void exponents_k(const uint16_t *x, uint32_t n_rows, uint32_t n_cols, uint8_t *e)
{
	uint16_t amax[16];

	for (uint32_t i = 0; i < n_cols; i += 16) {
		const uint32_t n = n_cols - i < 16 ? n_cols - i : 16;
		h16 top = _mm256_setzero_si256();
		for (uint32_t row = 0; row < n_rows; row++) {
			uint16_t part[16] = { 0 };
			const uint16_t *at = x + (size_t)row * n_cols + i;
			top = h_amax(top, h_load(n == 16 ? at : memcpy(part, at, n * sizeof(*at))));
		}
		_mm256_storeu_si256((__m256i *)amax, top);
		for (uint32_t j = 0; j < n; j++) {
			e[i + j] = pfx_exponent(amax[j]);
		}
	}
}

static void exponents_v(const uint16_t *x, uint32_t n_rows, uint32_t n_cols, uint8_t *e)
{
	for (uint32_t row = 0; row < n_rows; row++, x += n_cols) {
		h16 top = _mm256_setzero_si256();
		uint32_t i;
		for (i = 0; i + 16 <= n_cols; i += 16) {
			top = h_amax(top, h_load(x + i));
		}
		if (i < n_cols) {
			uint16_t part[16] = { 0 };
			memcpy(part, x + i, (n_cols - i) * sizeof(*x));
			top = h_amax(top, h_load(part));
		}
		e[row] = pfx_exponent(h_top(top));
	}
}
