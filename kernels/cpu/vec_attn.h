/*
 * Attention of query vectors over one segment, over vectors of 16 floats; included once by
 * each fast variant. Scores have positions side by side, outputs have dimensions side by
 * side; the sums run over ascending dimensions and positions, as in reference.c.
 *
 * With many query vectors a strip of K or V is widened to float32 in scratch, where it stays
 * in the L1 while all vectors go by; with few (decode) K and V are widened on the way into
 * the registers, straight from the blocks.
 */

#define FEW_VECTORS 8u

/* Some positions of K or V: in a block as f16, or widened. */
struct source {
	const void *at;
	size_t stride; /* elements from one dimension (K) or position (V) to the next */
};

static inline __attribute__((always_inline)) v16 from(const int half, const void *p, size_t i)
{
	return half ? v_load_f16((const uint16_t *)p + i) : v_load((const float *)p + i);
}

/* p[r][16 c] = sum over d of q[r][d] k[d][16 c] */
static inline __attribute__((always_inline)) void scores_block(const struct pfx_attn *a,
	const int half, const int rows, const int cols, uint32_t row, uint32_t pos, struct source k)
{
	const float *q[ROWS_MAX];
	float *p = a->p + (size_t)row * PFX_SEGMENT + pos;
	v16 acc[ROWS_MAX][COLS_MAX], kv[COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		q[r] = a->q + (size_t)(row + (uint32_t)r) * a->dim_pad;
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = v_zero();
		}
	}
	for (uint32_t d = 0; d < a->head_dim; d++) {
		UNROLL for (int c = 0; c < cols; c++) {
			kv[c] = from(half, k.at, d * k.stride + 16 * (size_t)c);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			v16 qv = v_set1(q[r][d]);
			UNROLL for (int c = 0; c < cols; c++) {
				acc[r][c] = v_fma(qv, kv[c], acc[r][c]);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			v_store(p + r * PFX_SEGMENT + 16 * c, acc[r][c]);
		}
	}
}

/* o[r][16 c] = (first: zero, else o) + sum over n positions of p[r][j] v[j][16 c] */
static inline __attribute__((always_inline)) void values_block(const struct pfx_attn *a,
	const int half, const int rows, const int cols, uint32_t row, uint32_t dim, uint32_t pos,
	uint32_t n, struct source v)
{
	const float *p[ROWS_MAX];
	float *o = a->o + (size_t)row * a->dim_pad + dim;
	v16 acc[ROWS_MAX][COLS_MAX], vv[COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		p[r] = a->p + (size_t)(row + (uint32_t)r) * PFX_SEGMENT + pos;
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = pos == 0 ? v_zero() : v_load(o + (size_t)r * a->dim_pad + 16 * c);
		}
	}
	for (uint32_t j = 0; j < n; j++) {
		UNROLL for (int c = 0; c < cols; c++) {
			vv[c] = from(half, v.at, j * v.stride + dim + 16 * (size_t)c);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			v16 pv = v_set1(p[r][j]);
			UNROLL for (int c = 0; c < cols; c++) {
				acc[r][c] = v_fma(pv, vv[c], acc[r][c]);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			v_store(o + (size_t)r * a->dim_pad + 16 * c, acc[r][c]);
		}
	}
}

/* All dimensions of rows query vectors over n positions from pos on. */
static inline __attribute__((always_inline)) void values_rows(const struct pfx_attn *a,
	const int half, const int rows, uint32_t row, uint32_t pos, uint32_t n, struct source v)
{
	uint32_t dim = 0;

	for (; dim + 16 * COLS_MAX <= a->dim_pad; dim += 16 * COLS_MAX) {
		values_block(a, half, rows, COLS_MAX, row, dim, pos, n, v);
	}
	for (; COLS_MAX > 1 && dim < a->dim_pad; dim += 16) {
		values_block(a, half, rows, 1, row, dim, pos, n, v);
	}
}

/* Scores to 2^(score - max), their sum and maximum. */
static void weigh(const struct pfx_attn *a, uint32_t row)
{
	float *p = a->p + (size_t)row * PFX_SEGMENT;
	uint32_t n = a->n_valid[row], i, rest = n % 16;
	v16 top[4], sum = v_zero(), m;

	top[0] = top[1] = top[2] = top[3] = v_set1(-INFINITY);
	for (i = 0; i + 64 <= n; i += 64) {
		UNROLL for (uint32_t j = 0; j < 4; j++) {
			top[j] = v_max(v_load(p + i + 16 * j), top[j]);
		}
	}
	for (; i + 16 <= n; i += 16) {
		top[0] = v_max(v_load(p + i), top[0]);
	}
	if (rest != 0) {
		top[1] = v_max(v_head(v_load(p + i), v_set1(-INFINITY), rest), top[1]);
	}
	a->m[row] = v_top(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
	m = v_set1(a->m[row]);
	for (i = 0; i + 16 <= n; i += 16) {
		v16 e = v_exp2_low(v_sub(v_load(p + i), m));
		v_store(p + i, e);
		sum = v_add(sum, e);
	}
	if (rest != 0) {
		v16 e = v_head(v_exp2_low(v_sub(v_load(p + i), m)), v_zero(), rest);
		v_store(p + i, e);
		sum = v_add(sum, e);
	}
	a->l[row] = v_sum(sum);
}

/* Few vectors: one block after the other, straight from its f16. */

static inline uint32_t block_end(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	return n - pos < a->block_tokens ? n - pos : a->block_tokens;
}

static inline __attribute__((always_inline)) void few_scores(const struct pfx_attn *a,
	const int rows, uint32_t row)
{
	const uint32_t b = a->block_tokens, n = a->n_valid[row + (uint32_t)rows - 1];
	const uint32_t wide = 16 * (COLS_MAX < 2 ? 1 : 2);

	for (uint32_t pos = 0; pos < n; pos += b) {
		const uint16_t *k = a->kb[pos / b];
		uint32_t end = block_end(a, pos, n), i = 0;
		/* Past n, up to the vector's end, is the block's own memory: loaded, not used. */
		for (; i < end && i + wide <= b; i += wide) {
			scores_block(a, 1, rows, wide / 16, row, pos + i, (struct source){ k + i, b });
		}
		for (; i < end; i += 16) {
			scores_block(a, 1, rows, 1, row, pos + i, (struct source){ k + i, b });
		}
	}
}

static inline __attribute__((always_inline)) void few_values(const struct pfx_attn *a,
	const int rows, uint32_t row, uint32_t from_pos, uint32_t n)
{
	const uint32_t b = a->block_tokens;

	for (uint32_t pos = from_pos, end; pos < n; pos += end) {
		uint32_t in = pos % b;
		end = b - in < n - pos ? b - in : n - pos;
		values_rows(a, 1, rows, row, pos, end,
			(struct source){ a->vb[pos / b] + (size_t)in * a->head_dim, a->head_dim });
	}
}

static inline __attribute__((always_inline)) void few_rows_attn(const struct pfx_attn *a,
	const int rows, uint32_t row)
{
	uint32_t common = a->n_valid[row];

	few_scores(a, rows, row);
	UNROLL for (int r = 0; r < rows; r++) {
		weigh(a, row + (uint32_t)r);
	}
	few_values(a, rows, row, 0, common);
	for (uint32_t r = row; r < row + (uint32_t)rows; r++) {
		if (a->n_valid[r] > common) {
			few_values(a, 1, r, common, a->n_valid[r]);
		}
	}
}

static void attn_few(const struct pfx_attn *a)
{
	uint32_t row = 0;

	for (; row + 4 <= a->n; row += 4) {
		few_rows_attn(a, 4, row);
	}
	switch (a->n - row) {
	case 1:
		few_rows_attn(a, 1, row);
		break;
	case 2:
		few_rows_attn(a, 2, row);
		break;
	case 3:
		few_rows_attn(a, 3, row);
		break;
	default:
		break;
	}
}

/* Many vectors: a strip of positions is widened, then all vectors go by. */

/* Positions [pos, pos + n) of K, to wide[d][PFX_STRIP]. */
static void widen_k(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	const uint32_t b = a->block_tokens;

	for (uint32_t at = 0, len; at < n; at += len) {
		uint32_t in = (pos + at) % b;
		const uint16_t *from_k = a->kb[(pos + at) / b] + in;
		len = b - in < n - at ? b - in : n - at;
		for (uint32_t d = 0; d < a->head_dim; d++, from_k += b) {
			float *to = a->wide + (size_t)d * PFX_STRIP + at;
			uint32_t i = 0;
			/* Past n, up to the vector's end, is the block's own memory: loaded, not used. */
			for (; b >= 16 && i < len; i += 16) {
				v_store(to + i, v_load_f16(from_k + i));
			}
			for (; i < len; i++) {
				to[i] = _cvtsh_ss(from_k[i]);
			}
		}
	}
}

/* Positions [pos, pos + n) of V, to wide[][dim_pad]. */
static void widen_v(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	const uint32_t b = a->block_tokens;

	for (uint32_t i = pos; i < pos + n; i++) {
		const uint16_t *at = a->vb[i / b] + (size_t)(i % b) * a->head_dim;
		float *to = a->wide + (size_t)(i - pos) * a->dim_pad;
		uint32_t d = 0;
		for (; d + 16 <= a->head_dim; d += 16) {
			v_store(to + d, v_load_f16(at + d));
		}
		for (; d < a->dim_pad; d++) {
			to[d] = d < a->head_dim ? _cvtsh_ss(at[d]) : 0;
		}
	}
}

/* 16 * COLS_MAX positions, those from pos + at on, for all vectors from row on. */
static void many_scores(const struct pfx_attn *a, uint32_t row, uint32_t pos, uint32_t at)
{
	struct source k = { a->wide + at, PFX_STRIP };

	/* Vectors see more and more: the first ones may see nothing of this. */
	while (a->n_valid[row] <= pos + at) {
		row++;
	}
	for (; row + ROWS_MAX <= a->n; row += ROWS_MAX) {
		scores_block(a, 0, ROWS_MAX, COLS_MAX, row, pos + at, k);
	}
	for (; row + 3 <= a->n; row += 3) {
		scores_block(a, 0, 3, COLS_MAX, row, pos + at, k);
	}
	for (; row < a->n; row++) {
		scores_block(a, 0, 1, COLS_MAX, row, pos + at, k);
	}
}

static void many_values_rows(const struct pfx_attn *a, uint32_t rows, uint32_t row, uint32_t pos,
	uint32_t at, uint32_t end)
{
	struct source v = { a->wide + (size_t)at * a->dim_pad, a->dim_pad };

	if (at >= end) {
		return;
	}
	if (rows == ROWS_MAX) {
		values_rows(a, 0, ROWS_MAX, row, pos + at, end - at, v);
	} else if (rows == 3) {
		values_rows(a, 0, 3, row, pos + at, end - at, v);
	} else {
		values_rows(a, 0, 1, row, pos + at, end - at, v);
	}
}

/* Positions of the strip [pos, pos + n) that a vector sees. */
static inline uint32_t seen(const struct pfx_attn *a, uint32_t row, uint32_t pos, uint32_t n)
{
	uint32_t valid = a->n_valid[row];

	return valid <= pos ? 0 : valid - pos < n ? valid - pos : n;
}

/*
 * The sums over a strip of V: positions that all vectors of a block see together, then for
 * each alone what it sees beyond. A position that a vector does not see is not even
 * multiplied by zero: what stands there may be no number.
 */
static void many_values(const struct pfx_attn *a, uint32_t pos, uint32_t n)
{
	for (uint32_t row = 0, rows; row < a->n; row += rows) {
		uint32_t common = seen(a, row, pos, n);
		rows = a->n - row >= ROWS_MAX ? ROWS_MAX : a->n - row >= 3 ? 3 : 1;
		many_values_rows(a, rows, row, pos, 0, common);
		for (uint32_t r = row + 1; r < row + rows; r++) {
			many_values_rows(a, 1, r, pos, common, seen(a, r, pos, n));
		}
	}
}

static void attn_many(const struct pfx_attn *a)
{
	uint32_t n = a->n_valid[a->n - 1];

	for (uint32_t pos = 0; pos < n; pos += PFX_STRIP) {
		uint32_t len = n - pos < PFX_STRIP ? n - pos : PFX_STRIP;
		widen_k(a, pos, len);
		for (uint32_t at = 0; at < len; at += 16 * COLS_MAX) {
			many_scores(a, 0, pos, at);
		}
	}
	for (uint32_t row = 0; row < a->n; row++) {
		weigh(a, row);
	}
	for (uint32_t pos = 0; pos < n; pos += PFX_STRIP) {
		uint32_t len = n - pos < PFX_STRIP ? n - pos : PFX_STRIP;
		widen_v(a, pos, len);
		many_values(a, pos, len);
	}
}

static void attn(const struct pfx_attn *a)
{
	if (a->n <= FEW_VECTORS && a->block_tokens >= 16 && a->head_dim % 16 == 0) {
		attn_few(a);
	} else {
		attn_many(a);
	}
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
