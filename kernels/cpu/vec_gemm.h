/*
 * Products with float weights, and what all products end in, over vectors of 16 floats;
 * included once by each fast variant. Lanes are outputs; each sums over ascending k.
 */

/* y = acc (+ bias) (+ y) for one row and tile; the last tile of a part may be a short one. */
static inline void put_out(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t row,
	uint32_t tile, v16 acc)
{
	uint32_t n = tile * PFX_TILE, left = p->n - n;
	float *y = g->y + (size_t)row * g->n + p->n0 + n;
	const float *bias = g->bias == NULL ? NULL : g->bias + p->n0 + n;

	if (left >= 16) {
		acc = bias != NULL ? v_add(acc, v_load(bias)) : acc;
		acc = g->add ? v_add(acc, v_load(y)) : acc;
		v_store(y, acc);
	} else {
		acc = bias != NULL ? v_add(acc, v_load_n(bias, left)) : acc;
		acc = g->add ? v_add(acc, v_load_n(y, left)) : acc;
		v_store_n(y, acc, left);
	}
}

static inline __attribute__((always_inline)) v16 load_code(const enum pfx_code code,
	const uint8_t *tile, uint32_t k)
{
	return code == PFX_CODE_F32 ? v_load((const float *)tile + (size_t)k * 16) :
		code == PFX_CODE_F16 ? v_load_f16((const uint16_t *)tile + (size_t)k * 16) :
		v_load_bf16((const uint16_t *)tile + (size_t)k * 16);
}

static inline __attribute__((always_inline)) void floats_block(const struct pfx_gemm *g,
	const struct pfx_part *p, const enum pfx_code code, const int rows, const int cols,
	uint32_t row, uint32_t tile)
{
	const uint8_t *w = pfx_tile_at(p, tile);
	const float *x = g->x + (size_t)row * g->k;
	v16 acc[ROWS_MAX][COLS_MAX], wv[COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = v_zero();
		}
	}
	for (uint32_t k = 0; k < g->k; k++) {
		UNROLL for (int c = 0; c < cols; c++) {
			wv[c] = load_code(code, w + c * p->tile_bytes, k);
		}
		UNROLL for (int r = 0; r < rows; r++) {
			v16 xv = v_set1(x[(size_t)r * g->k + k]);
			UNROLL for (int c = 0; c < cols; c++) {
				acc[r][c] = v_fma(wv[c], xv, acc[r][c]);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			put_out(g, p, row + (uint32_t)r, tile + (uint32_t)c, acc[r][c]);
		}
	}
}

/* Some tiles x all rows. */
static inline __attribute__((always_inline)) void floats_tiles(const struct pfx_gemm *g,
	const struct pfx_part *p, const enum pfx_code code, const int cols, uint32_t tile,
	uint32_t row, uint32_t end)
{
	for (; row + ROWS_MAX <= end; row += ROWS_MAX) {
		floats_block(g, p, code, ROWS_MAX, cols, row, tile);
	}
	for (; row + 2 <= end; row += 2) {
		floats_block(g, p, code, 2, cols, row, tile);
	}
	for (; row < end; row++) {
		floats_block(g, p, code, 1, cols, row, tile);
	}
}

static inline __attribute__((always_inline)) void floats_of(const struct pfx_gemm *g,
	const struct pfx_part *p, const enum pfx_code code, uint32_t tile, uint32_t end_tile,
	uint32_t row, uint32_t end)
{
	for (; tile + COLS_MAX <= end_tile; tile += COLS_MAX) {
		floats_tiles(g, p, code, COLS_MAX, tile, row, end);
	}
	for (; COLS_MAX > 1 && tile < end_tile; tile++) {
		floats_tiles(g, p, code, 1, tile, row, end);
	}
}

static void gemm_floats(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
	uint32_t n_tiles, uint32_t row0, uint32_t n_rows)
{
	if (p->code == PFX_CODE_F32) {
		floats_of(g, p, PFX_CODE_F32, tile0, tile0 + n_tiles, row0, row0 + n_rows);
	} else if (p->code == PFX_CODE_F16) {
		floats_of(g, p, PFX_CODE_F16, tile0, tile0 + n_tiles, row0, row0 + n_rows);
	} else {
		floats_of(g, p, PFX_CODE_BF16, tile0, tile0 + n_tiles, row0, row0 + n_rows);
	}
}
