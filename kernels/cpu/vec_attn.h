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

_Static_assert(ROWS_MAX <= PFX_P_ROWS, "the weights of a block of vectors have room");
_Static_assert(PFX_STRIP % (16 * COLS_MAX) == 0, "a strip is a whole number of blocks");

/* f16 to a word in the low 16 bits. */
static inline v16 word(const uint16_t *half, v16 up)
{
	return v_fma(v_load_f16(half), up, v_set1(PFX_WORD_MAGIC));
}

/* Where words come from: scratch, or blocks of f16 or int8 (kv.c has the layouts). */
enum form { WORDS, F16, INT8 };

/*
 * Some positions of K or V; stride: to the next dimension of K or position of V in f16, else to
 * the next pair of them in words or bytes.
 */
struct source {
	const void *at;
	size_t stride;
};

/* Pair i of dimensions of K, 16 positions from 16 c on. */
static inline __attribute__((always_inline)) w16 pair_k(const enum form form, struct source k,
	size_t i, int c, v16 up)
{
	if (form == WORDS) {
		return w_load((const uint32_t *)k.at + i * k.stride + 16 * c);
	}
	if (form == INT8) {
		return w_load_bytes((const uint8_t *)k.at + i * k.stride + 32 * c);
	}
	const uint16_t *at = (const uint16_t *)k.at + 2 * i * k.stride + 16 * c;
	return v_pairs(word(at, up), word(at + k.stride, up));
}

/* Pair i of positions of V, 16 dimensions from `dim` on. */
static inline __attribute__((always_inline)) w16 pair_v(const enum form form, struct source v,
	size_t i, uint32_t dim, v16 up_even, v16 up_odd)
{
	if (form == WORDS) {
		return w_load((const uint32_t *)v.at + i * v.stride + dim);
	}
	if (form == INT8) {
		return w_load_bytes((const uint8_t *)v.at + i * v.stride + 2 * (size_t)dim);
	}
	const uint16_t *at = (const uint16_t *)v.at + 2 * i * v.stride + dim;
	return v_pairs(word(at, up_even), word(at + v.stride, up_odd));
}

/* ---- to words in scratch ---- */

/* Exponents or scales of positions [pos, pos + 16); of those from n on, anything. */
static inline const void *marks_at(const struct pfx_attn *a, const void *const *marks, uint32_t pos,
	uint32_t n, void *copy)
{
	const uint32_t b = a->block_tokens;
	const size_t bytes = a->type == PFX_KV_F16 ? 1 : 2;

	if (b >= 16) {
		return (const uint8_t *)marks[pos / b] + pos % b * bytes;
	}
	memset(copy, 0, 16 * bytes);
	for (uint32_t i = 0; i < 16 && pos + i < n; i++) {
		memcpy((uint8_t *)copy + i * bytes,
			(const uint8_t *)marks[(pos + i) / b] + (pos + i) % b * bytes, bytes);
	}
	return copy;
}

/* The factors of positions [pos, pos + 16) from words, and to them (int8 are words). */
static inline void load_scales(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	uint16_t copy[16];
	const void *k = marks_at(a, a->ke, pos, n, copy);

	if (a->type == PFX_KV_F16) {
		v_store(a->k_scale + pos, v_word_down(k, pfx_k_bits(a->head_dim)));
		v_store(a->k_up + pos, v_word_up(k, pfx_k_bits(a->head_dim)));
	} else {
		v_store(a->k_scale + pos, v_load_f16(k));
	}
	const void *v = marks_at(a, a->ve, pos, n, copy);
	if (a->type == PFX_KV_F16) {
		v_store(a->v_scale + pos, v_word_down(v, PFX_V_BITS));
		v_store(a->v_up + pos, v_word_up(v, PFX_V_BITS));
	} else {
		v_store(a->v_scale + pos, v_load_f16(v));
	}
}

/* K of positions [pos, pos + 16); those from n on may be anything. */
static inline void words_k(const struct pfx_attn *a, uint32_t pos, uint32_t n, uint32_t *words)
{
	const uint32_t b = a->block_tokens, dim = a->head_dim;
	/* Elements of 2 bytes, f16 or pairs of int8: rows of them, positions side by side. */
	const uint32_t n_rows = a->type == PFX_KV_F16 ? dim : dim / 2;
	const uint16_t *at = (const uint16_t *)a->kb[pos / b] + pos % b;
	uint16_t copy[16 * PFX_HEAD_DIM_MAX];
	const v16 up = v_load(a->k_up + pos), none = v_zero();
	size_t stride = b;
	uint32_t d = 0;

	for (uint32_t i = 0; b < 16 && i < 16 && pos + i < n; i++) {
		const uint16_t *k = (const uint16_t *)a->kb[(pos + i) / b] + (pos + i) % b;
		for (uint32_t row = 0; row < n_rows; row++) {
			copy[row * 16 + i] = k[row * b];
		}
	}
	if (b < 16) {
		at = copy;
		stride = 16;
	}
	if (a->type == PFX_KV_INT8) {
		for (; d < dim; d += 2, words += PFX_STRIP, at += stride) {
			w_store(words, w_load_bytes(at));
		}
	}
	for (; d + 2 <= dim; d += 2, words += PFX_STRIP, at += 2 * stride) {
		w_store(words, v_pairs(word(at, up), word(at + stride, up)));
	}
	for (; d < a->dim_pad; d += 2, words += PFX_STRIP) {
		w_store(words, v_pairs(d < dim ? word(at, up) : none, none));
	}
}

/* V of one position in f16; its dimensions are a whole number of vectors. */
static inline const uint16_t *row_v(const struct pfx_attn *a, uint32_t pos, uint16_t *copy)
{
	const uint32_t b = a->block_tokens;
	const uint16_t *v = (const uint16_t *)a->vb[pos / b] + (size_t)(pos % b) * a->head_dim;

	if (a->head_dim == a->dim_pad) {
		return v;
	}
	memset(copy + a->head_dim, 0, (a->dim_pad - a->head_dim) * sizeof(*copy));
	return memcpy(copy, v, a->head_dim * sizeof(*copy));
}

/* V of positions pos, which is even, and pos + 1 in int8, likewise. */
static inline const uint8_t *pairs_of_v(const struct pfx_attn *a, uint32_t pos, uint32_t n, uint8_t *copy)
{
	const uint32_t b = a->block_tokens;
	const uint8_t *v = (const uint8_t *)a->vb[pos / b] + (size_t)(pos % b) * a->head_dim;

	if (b > 1 && a->head_dim == a->dim_pad) {
		return v;
	}
	memset(copy, 0, 2 * (size_t)a->dim_pad);
	memcpy(copy, v, 2 * (size_t)a->head_dim);
	for (uint32_t d = 0; b == 1 && d < a->head_dim && pos + 1 < n; d++) {
		copy[2 * d + 1] = ((const uint8_t *)a->vb[pos + 1])[2 * d];
	}
	return copy;
}

/* V of positions [pos, pos + 16); those from n on may be anything. */
static inline void words_v(const struct pfx_attn *a, uint32_t pos, uint32_t n, uint32_t *words)
{
	uint16_t copy[2][PFX_HEAD_DIM_MAX];

	for (uint32_t i = pos; i < pos + 16 && i < n; i += 2) {
		if (a->type == PFX_KV_INT8) {
			const uint8_t *pairs = pairs_of_v(a, i, n, (uint8_t *)copy);
			for (uint32_t d = 0; d < a->dim_pad; d += 16, words += 16) {
				w_store(words, w_load_bytes(pairs + 2 * d));
			}
			continue;
		}
		const uint16_t *even = row_v(a, i, copy[0]);
		const uint16_t *odd = row_v(a, i + 1 < n ? i + 1 : i, copy[1]);
		v16 up_even = v_set1(a->v_up[i]), up_odd = v_set1(a->v_up[i + 1]);
		for (uint32_t d = 0; d < a->dim_pad; d += 16, words += 16) {
			w_store(words, v_pairs(word(even + d, up_even), word(odd + d, up_odd)));
		}
	}
}

/* ---- products ---- */

static inline uint32_t words_at(const void *words, size_t i)
{
	return ((const uint32_t *)words)[i];
}

/* p[r][16 c] = q[r] k[16 c], scaled; k_scale of the positions stands already. */
static inline __attribute__((always_inline)) void scores_block(const struct pfx_attn *a,
	const enum form form, const int rows, const int cols, uint32_t row, uint32_t pos, struct source k)
{
	const uint32_t n_pairs = a->dim_pad / 2;
	const int16_t *q = a->q + (size_t)row * a->dim_pad;
	w16 acc[ROWS_MAX][COLS_MAX], kw[COLS_MAX];
	v16 up[COLS_MAX];

	UNROLL for (int c = 0; c < cols; c++) {
		up[c] = form == F16 ? v_load(a->k_up + pos + 16 * c) : v_zero();
		UNROLL for (int r = 0; r < rows; r++) {
			acc[r][c] = w_zero();
		}
	}
	for (uint32_t i = 0; i < n_pairs; i++) {
		UNROLL for (int c = 0; c < cols; c++) {
			kw[c] = pair_k(form, k, i, c, up[c]);
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
	const enum form form, const int rows, const int cols, w16 acc[ROWS_MAX][COLS_MAX], uint32_t dim,
	uint32_t pos, uint32_t n_pairs, struct source v)
{
	const float *up = a->v_up + pos;
	w16 vw[COLS_MAX];

	for (uint32_t i = 0; i < n_pairs; i++) {
		v16 even = form == F16 ? v_set1(up[2 * i]) : v_zero();
		v16 odd = form == F16 ? v_set1(up[2 * i + 1]) : v_zero();
		UNROLL for (int c = 0; c < cols; c++) {
			vw[c] = pair_v(form, v, i, dim + 16 * (uint32_t)c, even, odd);
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
	const enum form form, const int rows, const int cols, uint32_t row, uint32_t dim, uint32_t n,
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
	if (form == WORDS) {
		values_add(a, WORDS, rows, cols, acc, dim, 0, (n + 1) / 2,
			(struct source){ a->v_words, a->dim_pad });
	}
	/* Past n, up to a pair's end, is the block's own memory: its weight is zero. */
	for (uint32_t pos = 0; form != WORDS && pos < n; pos += b) {
		values_add(a, form, rows, cols, acc, dim, pos, (n - pos < b ? n - pos + 1 : b) / 2,
			(struct source){ a->vb[pos / b], (form == F16 ? 1 : 2) * (size_t)a->head_dim });
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
		scores_block(a, WORDS, rows, COLS_MAX, row, pos, (struct source){
			a->k_words + (size_t)strip * (a->dim_pad / 2) + pos - strip, PFX_STRIP });
	}
}

/* Asks for K of the next block and V of this one: the planes lie too far apart for the CPU. */
static inline void prefetch_planes(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	const uint32_t block = pos / a->block_tokens;
	const size_t bytes = (size_t)a->block_tokens * a->head_dim * (a->type == PFX_KV_F16 ? 2 : 1);

	for (size_t i = 0; i < bytes && pos + a->block_tokens < n; i += 64) {
		_mm_prefetch((const char *)a->kb[block + 1] + i, _MM_HINT_T0);
	}
	for (size_t i = 0; i < bytes; i += 64) {
		_mm_prefetch((const char *)a->vb[block] + i, _MM_HINT_T1);
	}
}

static inline __attribute__((always_inline)) void scores_blocks(const struct pfx_attn *a,
	const enum form form, const int rows, uint32_t row, uint32_t n)
{
	const uint32_t b = a->block_tokens;
	const size_t stride = form == F16 ? b : 2 * (size_t)b;
	const int cols = COLS_MAX < 2 ? 1 : 2;

	for (uint32_t pos = 0; pos < n; pos += b) {
		/* Past n, up to the vector's end, is the block's own memory: computed, not used. */
		uint32_t len = n - pos < b ? n - pos : b, i = 0;
		const uint16_t *k = a->kb[pos / b]; /* f16, or pairs of int8 */
		prefetch_planes(a, pos, n);
		for (; i < len && i + 16 * (uint32_t)cols <= b; i += 16 * (uint32_t)cols) {
			scores_block(a, form, rows, cols, row, pos + i, (struct source){ k + i, stride });
		}
		for (; i < len; i += 16) {
			scores_block(a, form, rows, 1, row, pos + i, (struct source){ k + i, stride });
		}
	}
}

static inline __attribute__((always_inline)) void attn_rows(const struct pfx_attn *a,
	const enum form form, const int rows, uint32_t row)
{
	const uint32_t n = a->n_valid[row + (uint32_t)rows - 1];
	float scale[ROWS_MAX];
	uint32_t dim = 0;

	if (form == WORDS) {
		scores_words(a, rows, row, n);
	} else {
		scores_blocks(a, form, rows, row, n);
	}
	weigh_rows(a, rows, row, n, scale);
	for (; dim + 16 * COLS_MAX <= a->dim_pad; dim += 16 * COLS_MAX) {
		values_block(a, form, rows, COLS_MAX, row, dim, n, scale);
	}
	for (; COLS_MAX > 1 && dim < a->dim_pad; dim += 16) {
		values_block(a, form, rows, 1, row, dim, n, scale);
	}
}

#define FEW_VECTORS 4u /* up to here words are made on the way into the registers */

static inline __attribute__((always_inline)) void attn_few(const struct pfx_attn *a,
	const enum form form)
{
	switch (a->n) {
	case 1:
		attn_rows(a, form, 1, 0);
		break;
	case 2:
		attn_rows(a, form, 2, 0);
		break;
	case 3:
		attn_rows(a, form, 3, 0);
		break;
	default:
		attn_rows(a, form, FEW_VECTORS, 0);
		break;
	}
}

static void attn_many(const struct pfx_attn *a)
{
	for (uint32_t row = 0, left = a->n; left > 0; left = a->n - row) {
		if (left >= ROWS_MAX) {
			attn_rows(a, WORDS, ROWS_MAX, row);
			row += ROWS_MAX;
		} else if (left >= 3) {
			attn_rows(a, WORDS, 3, row);
			row += 3;
		} else {
			attn_rows(a, WORDS, 1, row);
			row++;
		}
	}
}

static void attn(const struct pfx_attn *a)
{
	const uint32_t n = a->n_valid[a->n - 1];
	const int few = a->n <= FEW_VECTORS && a->block_tokens >= 16 && a->head_dim % 16 == 0;

	for (uint32_t pos = 0; pos < n; pos += 16) {
		uint32_t strip = pos / PFX_STRIP * PFX_STRIP;
		load_scales(a, pos, n);
		if (!few) {
			words_k(a, pos, n, a->k_words + (size_t)strip * (a->dim_pad / 2) + pos - strip);
			words_v(a, pos, n, a->v_words + (size_t)(pos / 2) * a->dim_pad);
		}
	}
	if (!few) {
		attn_many(a);
	} else if (a->type == PFX_KV_F16) {
		attn_few(a, F16);
	} else {
		attn_few(a, INT8);
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
