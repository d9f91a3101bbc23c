/*
 * Attention of query vectors over one segment, over vectors of 16 floats; included once by
 * each fast variant. reference.c says what is computed, attn.h in which numbers; the
 * integer sums are exact, so their order is free here.
 *
 * The products want pairs of words: of dimensions of K with positions side by side, of positions
 * of V with dimensions side by side. With many query vectors the segment is first brought to
 * such words in scratch, and blocks of up to ROWS_MAX vectors go by; with few (decode) the words
 * are made on the way into the registers, straight from the blocks.
 */

/* f16 to a word in the low 16 bits. */
static inline v16 word(const uint16_t *half, v16 up)
{
	return v_fma(v_load_f16(half), up, v_set1(PFX_WORD_MAGIC));
}

/* Some positions of K or V as f16, and their factors to words; or as words. */
struct source {
	const uint16_t *half;
	size_t stride; /* from one dimension (K) or position (V) to the next */
	const uint32_t *words;
	size_t pairs;  /* from one pair to the next */
};

/* ---- to words in scratch ---- */

/* K of positions [pos, pos + 16); those from n on may be anything. */
static inline void words_k(const struct pfx_attn *a, uint32_t pos, uint32_t n, uint32_t *words)
{
	const uint32_t b = a->block_tokens;
	const uint16_t *half = a->kb[pos / b] + pos % b;
	const uint8_t *exps = a->ke[pos / b] + pos % b;
	uint16_t copy[16 * PFX_HEAD_DIM_MAX];
	uint8_t exps_copy[16] = { 0 };
	size_t stride = b;
	v16 up, none = v_zero();

	if (b < 16) {
		for (uint32_t i = 0; i < 16 && pos + i < n; i++) {
			const uint16_t *k = a->kb[(pos + i) / b] + (pos + i) % b;
			exps_copy[i] = a->ke[(pos + i) / b][(pos + i) % b];
			for (uint32_t d = 0; d < a->head_dim; d++) {
				copy[d * 16 + i] = k[d * b];
			}
		}
		half = copy;
		exps = exps_copy;
		stride = 16;
	}
	up = v_word_up(exps, pfx_k_bits(a->head_dim));
	v_store(a->k_scale + pos, v_word_down(exps, pfx_k_bits(a->head_dim)));
	for (uint32_t d = 0; d + 2 <= a->head_dim; d += 2, words += PFX_STRIP, half += 2 * stride) {
		w_store(words, v_pairs(word(half, up), word(half + stride, up)));
	}
	for (uint32_t d = a->head_dim / 2 * 2; d < a->dim_pad; d += 2, words += PFX_STRIP) {
		w_store(words, v_pairs(d < a->head_dim ? word(half, up) : none, none));
	}
}

/* V of one position; its dimensions are a whole number of vectors. */
static inline const uint16_t *row_v(const struct pfx_attn *a, uint32_t pos, uint16_t *copy)
{
	const uint32_t b = a->block_tokens;
	const uint16_t *v = a->vb[pos / b] + (size_t)(pos % b) * a->head_dim;

	if (a->head_dim == a->dim_pad) {
		return v;
	}
	memset(copy + a->head_dim, 0, (a->dim_pad - a->head_dim) * sizeof(*copy));
	return memcpy(copy, v, a->head_dim * sizeof(*copy));
}

/* V of positions [pos, pos + 16), those from n on zero. */
static inline void words_v(const struct pfx_attn *a, uint32_t pos, uint32_t n, uint32_t *words)
{
	const uint32_t b = a->block_tokens, len = n - pos < 16 ? n - pos : 16;
	uint16_t copy[2][PFX_HEAD_DIM_MAX];
	uint8_t exps[16] = { 0 };
	float up[16];

	for (uint32_t i = 0; i < len; i++) {
		exps[i] = a->ve[(pos + i) / b][(pos + i) % b];
	}
	v_store(a->v_scale + pos, v_word_down(exps, PFX_V_BITS));
	v_store(up, v_word_up(exps, PFX_V_BITS));
	for (uint32_t i = 0; i < len; i += 2) {
		const uint16_t *even = row_v(a, pos + i, copy[0]);
		const uint16_t *odd = i + 1 < len ? row_v(a, pos + i + 1, copy[1]) : NULL;
		v16 up_even = v_set1(up[i]), up_odd = v_set1(up[i + 1]);
		for (uint32_t d = 0; d < a->dim_pad; d += 16, words += 16) {
			w_store(words, v_pairs(word(even + d, up_even),
				odd == NULL ? v_zero() : word(odd + d, up_odd)));
		}
	}
}

/* ---- products ---- */

/* Pair i of dimensions of K, 16 positions from 16 c on. */
static inline __attribute__((always_inline)) w16 pair_k(const int half, const struct source *k,
	uint32_t i, int c, v16 up)
{
	const uint16_t *at = k->half + 2 * i * k->stride + 16 * c;

	return half ? v_pairs(word(at, up), word(at + k->stride, up))
		: w_load(k->words + i * k->pairs + 16 * c);
}

/* Pair i of positions of V, 16 dimensions from `dim` on. */
static inline __attribute__((always_inline)) w16 pair_v(const int half, const struct source *v,
	uint32_t i, uint32_t dim, v16 up_even, v16 up_odd)
{
	const uint16_t *at = v->half + 2 * i * v->stride + dim;

	return half ? v_pairs(word(at, up_even), word(at + v->stride, up_odd))
		: w_load(v->words + i * v->pairs + dim);
}

static inline uint32_t words_at(const void *words, size_t i)
{
	return ((const uint32_t *)words)[i];
}

/* p[r][16 c] = q[r] k[16 c], scaled; k_scale of the positions stands already. */
static inline __attribute__((always_inline)) void scores_block(const struct pfx_attn *a,
	const int half, const int rows, const int cols, uint32_t row, uint32_t pos, struct source k)
{
	const uint32_t n_pairs = a->dim_pad / 2;
	const int16_t *q = a->q + (size_t)row * a->dim_pad;
	w16 acc[ROWS_MAX][COLS_MAX], kw[COLS_MAX];
	v16 up[COLS_MAX];

	UNROLL for (int c = 0; c < cols; c++) {
		up[c] = half ? v_load(a->k_up + pos + 16 * c) : v_zero();
		UNROLL for (int r = 0; r < rows; r++) {
			acc[r][c] = w_zero();
		}
	}
	for (uint32_t i = 0; i < n_pairs; i++) {
		UNROLL for (int c = 0; c < cols; c++) {
			kw[c] = pair_k(half, &k, i, c, up[c]);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			w16 qw = w_set1(words_at(q, (size_t)r * n_pairs + i));
			UNROLL for (int c = 0; c < cols; c++) {
				acc[r][c] = w_dot(acc[r][c], qw, kw[c]);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		v16 scale = v_set1(a->q_scale[row + (uint32_t)r]);
		UNROLL for (int c = 0; c < cols; c++) {
			v16 s = v_mul(w_float(acc[r][c]), v_load(a->k_scale + pos + 16 * c));
			v_store(a->p + (size_t)r * PFX_P_STRIDE + pos + 16 * c, v_mul(s, scale));
		}
	}
}

/* Adds to acc[r][c] the products of weights with V of pairs of positions [i, end). */
static inline __attribute__((always_inline)) void values_add(const struct pfx_attn *a,
	const int half, const int rows, const int cols, w16 acc[ROWS_MAX][COLS_MAX], uint32_t dim,
	uint32_t pos, uint32_t n_pairs, struct source v)
{
	const float *up = a->v_up + pos;
	w16 vw[COLS_MAX];

	for (uint32_t i = 0; i < n_pairs; i++) {
		v16 even = half ? v_set1(up[2 * i]) : v_zero(), odd = half ? v_set1(up[2 * i + 1]) : even;
		UNROLL for (int c = 0; c < cols; c++) {
			vw[c] = pair_v(half, &v, i, dim + 16 * (uint32_t)c, even, odd);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			w16 pw = w_set1(words_at(a->p + (size_t)r * PFX_P_STRIDE, pos / 2 + i));
			UNROLL for (int c = 0; c < cols; c++) {
				acc[r][c] = w_dot(acc[r][c], pw, vw[c]);
			}
		}
	}
}

/* o[r][16 c] = p[r] v[16 c] over n positions, scaled */
static inline __attribute__((always_inline)) void values_block(const struct pfx_attn *a,
	const int half, const int rows, const int cols, uint32_t row, uint32_t dim, uint32_t n,
	const float *scale)
{
	const uint32_t b = a->block_tokens;
	float *o = a->o + (size_t)row * a->dim_pad + dim;
	w16 acc[ROWS_MAX][COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = w_zero();
		}
	}
	if (!half) {
		values_add(a, 0, rows, cols, acc, dim, 0, (n + 1) / 2,
			(struct source){ .words = a->v_words, .pairs = a->dim_pad });
	}
	/* Past n, up to a pair's end, is the block's own memory: its weight is zero. */
	for (uint32_t pos = 0; half && pos < n; pos += b) {
		values_add(a, 1, rows, cols, acc, dim, pos, (n - pos < b ? n - pos + 1 : b) / 2,
			(struct source){ .half = a->vb[pos / b], .stride = a->head_dim });
	}
	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			v_store(o + (size_t)r * a->dim_pad + 16 * c,
				v_mul(w_float(acc[r][c]), v_set1(scale[r])));
		}
	}
}

/* The largest of n scores. */
static inline float top_score(const float *p, uint32_t n)
{
	v16 top[4];
	uint32_t i;

	top[0] = top[1] = top[2] = top[3] = v_set1(-INFINITY);
	for (i = 0; i + 64 <= n; i += 64) {
		UNROLL for (uint32_t j = 0; j < 4; j++) {
			top[j] = v_max(v_load(p + i + 16 * j), top[j]);
		}
	}
	for (; i + 16 <= n; i += 16) {
		top[0] = v_max(v_load(p + i), top[0]);
	}
	if (n % 16 != 0) {
		top[1] = v_max(v_head(v_load(p + i), v_set1(-INFINITY), n % 16), top[1]);
	}
	return v_top(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
}

/* Scores of a vector to 2^(score - max) times V's scale; l; returns what they are divided by. */
static inline float weigh(const struct pfx_attn *a, uint32_t row, float *p)
{
	const uint32_t n = a->n_valid[row], rest = n % 16;
	v16 l = v_zero(), sum = v_zero(), top = v_zero(), m = v_set1(a->m[row]), e, w;
	float most, eighth;
	uint32_t i;

	for (i = 0; i + 16 <= n; i += 16) {
		e = v_exp2_low(v_sub(v_load(p + i), m));
		w = v_mul(e, v_load(a->v_scale + i));
		v_store(p + i, w);
		l = v_add(l, e);
		sum = v_add(sum, w);
		top = v_max(w, top);
	}
	if (rest != 0) {
		e = v_head(v_exp2_low(v_sub(v_load(p + i), m)), v_zero(), rest);
		w = v_head(v_mul(e, v_load(a->v_scale + i)), v_zero(), rest);
		v_store(p + i, w);
		l = v_add(l, e);
		sum = v_add(sum, w);
		top = v_max(w, top);
	}
	a->l[row] = v_sum(l);
	most = v_top(top);
	eighth = v_sum(sum) * 0.125f;
	return most > eighth ? most : eighth;
}

/* Those to words in place, n of them, zeros from there to the end. */
static inline void weights_to_words(float *p, float most, uint32_t n, uint32_t end)
{
	const v16 up = v_set1(PFX_WEIGHT_MAX / most);
	int16_t *words = (int16_t *)p;
	uint32_t i;

	for (i = 0; i < n; i += 16) {
		v_store_words(words + i, v_fma(v_load(p + i), up, v_set1(PFX_WORD_MAGIC)));
	}
	for (; i < end; i += 16) {
		v_store_words(words + i, v_zero());
	}
}

/* Scores of some vectors to words; m and l; what sums of them and V are multiplied by to scale. */
static inline __attribute__((always_inline)) void weigh_rows(const struct pfx_attn *a,
	const int rows, uint32_t row, uint32_t n, float *scale)
{
	const uint32_t *n_valid = a->n_valid + row;

	/* Three rounds: what a vector waits for at the end of one is done beside the next vector. */
	for (int r = 0; r < rows; r++) {
		a->m[row + (uint32_t)r] = top_score(a->p + (size_t)r * PFX_P_STRIDE, n_valid[r]);
	}
	for (int r = 0; r < rows; r++) {
		scale[r] = weigh(a, row + (uint32_t)r, a->p + (size_t)r * PFX_P_STRIDE);
	}
	for (int r = 0; r < rows; r++) {
		weights_to_words(a->p + (size_t)r * PFX_P_STRIDE, scale[r], n_valid[r], n);
		scale[r] /= PFX_WEIGHT_MAX;
	}
}

/* ---- a segment ---- */

static inline __attribute__((always_inline)) void scores_words(const struct pfx_attn *a,
	const int rows, uint32_t row, uint32_t n)
{
	for (uint32_t pos = 0; pos < n; pos += 16 * COLS_MAX) {
		uint32_t strip = pos / PFX_STRIP * PFX_STRIP;
		scores_block(a, 0, rows, COLS_MAX, row, pos, (struct source){
			.words = a->k_words + (size_t)strip * (a->dim_pad / 2) + pos - strip,
			.pairs = PFX_STRIP });
	}
}

/* Asks for K of the next block and V of this one: the planes lie too far apart for the CPU. */
static inline void prefetch_planes(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	const uint32_t block = pos / a->block_tokens;
	const size_t plane = (size_t)a->block_tokens * a->head_dim;

	for (size_t i = 0; i < plane && pos + a->block_tokens < n; i += 32) {
		_mm_prefetch((const char *)(a->kb[block + 1] + i), _MM_HINT_T0);
	}
	for (size_t i = 0; i < plane; i += 32) {
		_mm_prefetch((const char *)(a->vb[block] + i), _MM_HINT_T1);
	}
}

static inline __attribute__((always_inline)) void scores_half(const struct pfx_attn *a,
	const int rows, uint32_t row, uint32_t n)
{
	const uint32_t b = a->block_tokens;
	const int cols = COLS_MAX < 2 ? 1 : 2;

	for (uint32_t pos = 0; pos < n; pos += b) {
		/* Past n, up to the vector's end, is the block's own memory: computed, not used. */
		uint32_t len = n - pos < b ? n - pos : b, i = 0;
		prefetch_planes(a, pos, n);
		for (; i < len && i + 16 * (uint32_t)cols <= b; i += 16 * (uint32_t)cols) {
			scores_block(a, 1, rows, cols, row, pos + i,
				(struct source){ .half = a->kb[pos / b] + i, .stride = b });
		}
		for (; i < len; i += 16) {
			scores_block(a, 1, rows, 1, row, pos + i,
				(struct source){ .half = a->kb[pos / b] + i, .stride = b });
		}
	}
}

static inline __attribute__((always_inline)) void attn_rows(const struct pfx_attn *a,
	const int half, const int rows, uint32_t row)
{
	const uint32_t n = a->n_valid[row + (uint32_t)rows - 1];
	float scale[ROWS_MAX];
	uint32_t dim = 0;

	if (half) {
		scores_half(a, rows, row, n);
	} else {
		scores_words(a, rows, row, n);
	}
	weigh_rows(a, rows, row, n, scale);
	for (; dim + 16 * COLS_MAX <= a->dim_pad; dim += 16 * COLS_MAX) {
		values_block(a, half, rows, COLS_MAX, row, dim, n, scale);
	}
	for (; COLS_MAX > 1 && dim < a->dim_pad; dim += 16) {
		values_block(a, half, rows, 1, row, dim, n, scale);
	}
}

static inline __attribute__((always_inline)) void attn_some(const struct pfx_attn *a,
	const int half, uint32_t rows, uint32_t row)
{
	switch (rows) {
	case 1:
		attn_rows(a, half, 1, row);
		break;
	case 2:
		attn_rows(a, half, 2, row);
		break;
	case 3:
		attn_rows(a, half, 3, row);
		break;
	case 4:
		attn_rows(a, half, 4, row);
		break;
	case 5:
		attn_rows(a, half, 5, row);
		break;
	default:
		attn_rows(a, half, ROWS_MAX, row);
		break;
	}
}

static void attn_few(const struct pfx_attn *a)
{
	const uint32_t n = a->n_valid[a->n - 1], b = a->block_tokens;

	for (uint32_t pos = 0; pos < n; pos += 16) {
		const uint8_t *ke = a->ke[pos / b] + pos % b, *ve = a->ve[pos / b] + pos % b;
		v_store(a->k_up + pos, v_word_up(ke, pfx_k_bits(a->head_dim)));
		v_store(a->k_scale + pos, v_word_down(ke, pfx_k_bits(a->head_dim)));
		v_store(a->v_up + pos, v_word_up(ve, PFX_V_BITS));
		v_store(a->v_scale + pos, v_word_down(ve, PFX_V_BITS));
	}
	attn_some(a, 1, a->n, 0);
}

static void attn_many(const struct pfx_attn *a)
{
	const uint32_t n = a->n_valid[a->n - 1];

	for (uint32_t pos = 0; pos < n; pos += 16) {
		uint32_t strip = pos / PFX_STRIP * PFX_STRIP;
		words_k(a, pos, n, a->k_words + (size_t)strip * (a->dim_pad / 2) + pos - strip);
		words_v(a, pos, n, a->v_words + (size_t)(pos / 2) * a->dim_pad);
	}
	for (uint32_t row = 0, rows; row < a->n; row += rows) {
		/* Blocks of about one size: a short one at the end would wait for its own sums. */
		uint32_t n_blocks = (a->n - row + ROWS_MAX - 1) / ROWS_MAX;
		rows = (a->n - row + n_blocks - 1) / n_blocks;
		attn_some(a, 0, rows, row);
	}
}

static void attn(const struct pfx_attn *a)
{
	if (a->n <= ROWS_MAX && a->block_tokens >= 16 && a->head_dim % 16 == 0) {
		attn_few(a);
	} else {
		attn_many(a);
	}
}

/* Brings a query vector to words; see struct pfx_attn. */
static float attn_query(const float *x, uint32_t dim, uint32_t dim_pad, float factor, int16_t *q)
{
	v16 squares = v_zero(), up, v;
	float norm;

	for (uint32_t d = 0; d < dim; d += 16) {
		v = dim - d < 16 ? v_load_n(x + d, dim - d) : v_load(x + d);
		squares = v_fma(v, v, squares);
	}
	norm = sqrtf(v_sum(squares));
	if (!(norm >= PFX_QUERY_MIN && norm < INFINITY)) {
		memset(q, 0, dim_pad * sizeof(*q));
		return norm < PFX_QUERY_MIN ? 0 : NAN;
	}
	up = v_set1(PFX_QUERY_NORM / norm);
	for (uint32_t d = 0; d < dim_pad; d += 16) {
		v = d >= dim ? v_zero() : dim - d < 16 ? v_load_n(x + d, dim - d) : v_load(x + d);
		v_store_words(q + d, v_fma(v, up, v_set1(PFX_WORD_MAGIC)));
	}
	return norm / PFX_QUERY_NORM * factor;
}

static void attn_merge(uint32_t dim_pad, float *run_m, float *run_l, float *run_o, float m, float l,
	const float *o)
{
	float top = *run_m > m ? *run_m : m, scale[16] = { *run_m - top, m - top };
	v16 a, b;

	v_store(scale, v_exp2(v_load(scale)));
	*run_m = top;
	*run_l = fmaf(*run_l, scale[0], l * scale[1]);
	a = v_set1(scale[0]);
	b = v_set1(scale[1]);
	for (uint32_t d = 0; d < dim_pad; d += 16) {
		v_store(run_o + d, v_fma(v_load(run_o + d), a, v_mul(v_load(o + d), b)));
	}
}
