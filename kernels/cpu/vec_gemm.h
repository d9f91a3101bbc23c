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

/*
 * Many rows: some tiles and a stretch of k are widened to the thread's scratch, where they stay in
 * the L1 while all rows go by. Sums wait in the scratch between two stretches; their order is the
 * same.
 */
#define FLOATS_STRETCH (256u / COLS_MAX) /* k: 16 KiB */
#define FLOATS_MANY 16u                  /* with more rows that is quicker */
_Static_assert(ROWS_MAX == 6, "more than 12 rows are blocks of 4 to 6");

struct floats_work {
	v16 w[FLOATS_STRETCH][COLS_MAX];
	v16 acc[PFX_GEMM_ROWS][COLS_MAX];
};
_Static_assert(sizeof(struct floats_work) <= PFX_GEMM_SCRATCH, "fits the scratch of a thread");

static inline __attribute__((always_inline)) void widen(struct floats_work *work,
	const struct pfx_part *p, const enum pfx_code code, const int cols, uint32_t tile, uint32_t k0,
	uint32_t n)
{
	for (int c = 0; c < cols; c++) {
		const uint8_t *w = pfx_tile_at(p, tile + (uint32_t)c);

		for (uint32_t i = 0; i < n; i++) {
			work->w[i][c] = load_code(code, w, k0 + i);
		}
	}
}

static inline __attribute__((always_inline)) void wide_block(const struct pfx_gemm *g,
	struct floats_work *work, const int rows, const int cols, uint32_t row, uint32_t at,
	uint32_t k0, uint32_t n)
{
	const float *x[ROWS_MAX];
	v16 acc[ROWS_MAX][COLS_MAX], wv[COLS_MAX];

	UNROLL for (int r = 0; r < rows; r++) {
		x[r] = g->x + (size_t)(row + (uint32_t)r) * g->k + k0;
		UNROLL for (int c = 0; c < cols; c++) {
			acc[r][c] = k0 == 0 ? v_zero() : work->acc[at + (uint32_t)r][c];
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		UNROLL for (int c = 0; c < cols; c++) {
			wv[c] = work->w[i][c];
		}
		UNROLL for (int r = 0; r < rows; r++) {
			v16 xv = v_set1(x[r][i]);
			UNROLL for (int c = 0; c < cols; c++) {
				acc[r][c] = v_fma(wv[c], xv, acc[r][c]);
			}
		}
	}
	UNROLL for (int r = 0; r < rows; r++) {
		UNROLL for (int c = 0; c < cols; c++) {
			work->acc[at + (uint32_t)r][c] = acc[r][c];
		}
	}
}

/* A stretch of some tiles x all rows; after the last one the outputs. */
static inline __attribute__((always_inline)) void wide_stretch(const struct pfx_gemm *g,
	const struct pfx_part *p, struct floats_work *work, const int cols, uint32_t tile,
	uint32_t row0, uint32_t n_rows, uint32_t k0, uint32_t n)
{
	uint32_t rows;

	for (uint32_t at = 0; at < n_rows; at += rows) {
		uint32_t n_blocks = (n_rows - at + ROWS_MAX - 1) / ROWS_MAX;

		rows = (n_rows - at + n_blocks - 1) / n_blocks;
		switch (rows) {
		case 6:
			wide_block(g, work, 6, cols, row0 + at, at, k0, n);
			break;
		case 5:
			wide_block(g, work, 5, cols, row0 + at, at, k0, n);
			break;
		default: /* blocks of about one size, of more than two */
			PFX_ASSERT(rows == 4);
			wide_block(g, work, 4, cols, row0 + at, at, k0, n);
		}
		for (uint32_t r = at; k0 + n == g->k && r < at + rows; r++) {
			for (int c = 0; c < cols; c++) {
				put_out(g, p, row0 + r, tile + (uint32_t)c, work->acc[r][c]);
			}
		}
	}
}

static inline __attribute__((always_inline)) void wide_tiles(const struct pfx_gemm *g,
	const struct pfx_part *p, struct floats_work *work, const int cols, uint32_t tile,
	uint32_t row0, uint32_t n_rows)
{
	for (uint32_t k0 = 0; k0 < g->k; k0 += FLOATS_STRETCH) {
		uint32_t n = g->k - k0 < FLOATS_STRETCH ? g->k - k0 : FLOATS_STRETCH;

		if (p->code == PFX_CODE_F32) {
			widen(work, p, PFX_CODE_F32, cols, tile, k0, n);
		} else if (p->code == PFX_CODE_F16) {
			widen(work, p, PFX_CODE_F16, cols, tile, k0, n);
		} else {
			widen(work, p, PFX_CODE_BF16, cols, tile, k0, n);
		}
		wide_stretch(g, p, work, cols, tile, row0, n_rows, k0, n);
	}
}

static void floats_many(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile,
	uint32_t end_tile, uint32_t row0, uint32_t n_rows, struct floats_work *work)
{
	for (; tile + COLS_MAX <= end_tile; tile += COLS_MAX) {
		wide_tiles(g, p, work, COLS_MAX, tile, row0, n_rows);
	}
	for (; COLS_MAX > 2 && tile + 2 <= end_tile; tile += 2) {
		wide_tiles(g, p, work, COLS_MAX > 2 ? 2 : 1, tile, row0, n_rows);
	}
	for (; tile < end_tile; tile++) {
		wide_tiles(g, p, work, 1, tile, row0, n_rows);
	}
}

static void gemm_floats(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
	uint32_t n_tiles, uint32_t row0, uint32_t n_rows, void *scratch)
{
	/* Wide blocks of F32 are bound by the products as they are: 4 loads of 24. */
	if (n_rows > FLOATS_MANY && (p->code != PFX_CODE_F32 || COLS_MAX == 1)) {
		floats_many(g, p, tile0, tile0 + n_tiles, row0, n_rows, scratch);
	} else if (p->code == PFX_CODE_F32) {
		floats_of(g, p, PFX_CODE_F32, tile0, tile0 + n_tiles, row0, row0 + n_rows);
	} else if (p->code == PFX_CODE_F16) {
		floats_of(g, p, PFX_CODE_F16, tile0, tile0 + n_tiles, row0, row0 + n_rows);
	} else {
		floats_of(g, p, PFX_CODE_BF16, tile0, tile0 + n_tiles, row0, row0 + n_rows);
	}
}
