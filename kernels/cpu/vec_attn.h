/*
 * Attention of query vectors over one segment, over vectors of 16 floats; included once by
 * each fast variant. Scores have positions side by side, outputs have dimensions side by
 * side; the sums run over ascending dimensions and positions, as in reference.c.
 */

static void load_kv(const uint16_t *kb, const uint16_t *vb, uint32_t head_dim, uint32_t dim_pad,
	uint32_t block_tokens, uint32_t n, float *k, float *v)
{
	for (uint32_t d = 0; d < head_dim; d++) {
		const uint16_t *from = kb + (size_t)d * block_tokens;
		float *to = k + (size_t)d * PFX_SEGMENT;
		uint32_t i = 0;
		/* Past n, up to the next multiple of 16, is the block's own memory: loaded, not used. */
		for (; block_tokens >= 16 && i < n; i += 16) {
			v_store(to + i, v_load_f16(from + i));
		}
		for (; i < n; i++) {
			to[i] = _cvtsh_ss(from[i]);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		const uint16_t *from = vb + (size_t)i * head_dim;
		float *to = v + (size_t)i * dim_pad;
		uint32_t d = 0;
		for (; d + 16 <= head_dim; d += 16) {
			v_store(to + d, v_load_f16(from + d));
		}
		for (; d < dim_pad; d++) {
			to[d] = d < head_dim ? _cvtsh_ss(from[d]) : 0;
		}
	}
}

/* rows x cols vectors of scores: p[r][16 c] = sum over d of q[r][d] k[d][16 c] */
static inline __attribute__((always_inline)) void scores_block(const struct pfx_attn *a,
	const int rows, const int cols, uint32_t row, uint32_t pos)
{
	const float *q = a->q + (size_t)row * a->dim_pad, *k = a->k + pos;
	float *p = a->p + (size_t)row * PFX_SEGMENT + pos;
	v16 acc[ROWS_MAX][COLS_MAX], kv[COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = v_zero();
		}
	}
	for (uint32_t d = 0; d < a->head_dim; d++, k += PFX_SEGMENT) {
		UNROLL for (int c = 0; c < cols; c++) {
			kv[c] = v_load(k + 16 * c);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			v16 qv = v_set1(q[(size_t)r * a->dim_pad + d]);
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

/* Scores of all vectors, a strip of positions at a time, so that its K stays in the L1. */
static void scores(const struct pfx_attn *a)
{
	const uint32_t strip = 16 * COLS_MAX;

	for (uint32_t pos = 0; pos < a->n_valid[a->n - 1]; pos += strip) {
		uint32_t row = 0;
		/* Vectors see more and more: the first ones may see nothing of this strip. */
		while (a->n_valid[row] <= pos) {
			row++;
		}
		for (; row + ROWS_MAX <= a->n; row += ROWS_MAX) {
			scores_block(a, ROWS_MAX, COLS_MAX, row, pos);
		}
		for (; row + 3 <= a->n; row += 3) {
			scores_block(a, 3, COLS_MAX, row, pos);
		}
		for (; row < a->n; row++) {
			scores_block(a, 1, COLS_MAX, row, pos);
		}
	}
}

/* Scores to 2^(score - max), their sum and maximum. */
static void weigh(const struct pfx_attn *a, uint32_t row)
{
	float *p = a->p + (size_t)row * PFX_SEGMENT;
	uint32_t n = a->n_valid[row], i, rest = n % 16;
	v16 top = v_set1(-INFINITY), sum = v_zero(), m;

	for (i = 0; i + 16 <= n; i += 16) {
		top = v_max(v_load(p + i), top);
	}
	if (rest != 0) {
		top = v_max(v_head(v_load(p + i), v_set1(-INFINITY), rest), top);
	}
	a->m[row] = v_top(top);
	m = v_set1(a->m[row]);
	for (i = 0; i + 16 <= n; i += 16) {
		v16 e = v_exp2(v_sub(v_load(p + i), m));
		v_store(p + i, e);
		sum = v_add(sum, e);
	}
	if (rest != 0) {
		v16 e = v_head(v_exp2(v_sub(v_load(p + i), m)), v_zero(), rest);
		v_store(p + i, e);
		sum = v_add(sum, e);
	}
	a->l[row] = v_sum(sum);
}

/* o[r][16 c] = (from 0: zero, else o) + sum over positions [from, to) of p[r][j] v[j][16 c] */
static inline __attribute__((always_inline)) void values_block(const struct pfx_attn *a,
	const int rows, const int cols, uint32_t row, uint32_t dim, uint32_t from, uint32_t to)
{
	const float *p = a->p + (size_t)row * PFX_SEGMENT;
	const float *v = a->v + (size_t)from * a->dim_pad + dim;
	float *o = a->o + (size_t)row * a->dim_pad + dim;
	v16 acc[ROWS_MAX][COLS_MAX], vv[COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = from == 0 ? v_zero() : v_load(o + (size_t)r * a->dim_pad + 16 * c);
		}
	}
	for (uint32_t j = from; j < to; j++, v += a->dim_pad) {
		UNROLL for (int c = 0; c < cols; c++) {
			vv[c] = v_load(v + 16 * c);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			v16 pv = v_set1(p[r * PFX_SEGMENT + j]);
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

static void values_some(const struct pfx_attn *a, uint32_t rows, uint32_t row, uint32_t from,
	uint32_t to)
{
	uint32_t dim = 0;

	for (; dim + 16 * COLS_MAX <= a->dim_pad; dim += 16 * COLS_MAX) {
		if (rows == ROWS_MAX) {
			values_block(a, ROWS_MAX, COLS_MAX, row, dim, from, to);
		} else if (rows == 3) {
			values_block(a, 3, COLS_MAX, row, dim, from, to);
		} else {
			values_block(a, 1, COLS_MAX, row, dim, from, to);
		}
	}
	for (; dim < a->dim_pad; dim += 16) {
		for (uint32_t r = row; r < row + rows; r++) {
			values_block(a, 1, 1, r, dim, from, to);
		}
	}
}

/*
 * The sums over V: positions that all vectors of a block see together, then for each alone
 * what it sees beyond. A position that a vector does not see is not even multiplied by
 * zero: what stands there may be no number.
 */
static void values(const struct pfx_attn *a)
{
	for (uint32_t row = 0, n; row < a->n; row += n) {
		uint32_t common = a->n_valid[row];
		n = a->n - row >= ROWS_MAX ? ROWS_MAX : a->n - row >= 3 ? 3 : 1;
		values_some(a, n, row, 0, common);
		for (uint32_t r = row; r < row + n; r++) {
			if (a->n_valid[r] > common) {
				values_some(a, 1, r, common, a->n_valid[r]);
			}
		}
	}
}

static void attn(const struct pfx_attn *a)
{
	scores(a);
	for (uint32_t row = 0; row < a->n; row++) {
		weigh(a, row);
	}
	values(a);
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
