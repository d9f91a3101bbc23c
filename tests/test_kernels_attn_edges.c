/*
 * kernels/: attention at the edges of its number formats (kernels/cpu/attn.h): the largest
 * numbers that f16 holds, all of one sign, where integer sums come closest to their limit; tiny
 * ones; positions far apart in size; what is not finite; and the exponents that stand beside
 * the blocks, whichever way those are written.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels_util.h"

#define POSITIONS 256u
#define BLOCK 16u
#define BLOCKS (POSITIONS / BLOCK)

/* One sequence, one head; K and V by position, one query at the last of them. */
struct edge {
	uint32_t dim;
	float q[1024], *k, *v; /* [POSITIONS][dim]; f16 holds them */
	float y[1024];
};

static void write_plane(uint16_t *block, const struct edge *e, uint32_t first)
{
	uint16_t *k = block, *v = block + (size_t)e->dim * BLOCK;

	for (uint32_t i = 0; i < BLOCK; i++) {
		for (uint32_t d = 0; d < e->dim; d++) {
			k[d * BLOCK + i] = pfx_f32_to_f16(e->k[(size_t)(first + i) * e->dim + d]);
			v[i * e->dim + d] = pfx_f32_to_f16(e->v[(size_t)(first + i) * e->dim + d]);
		}
	}
}

/* Attention of rows equal queries at the last positions; the last one's result. */
static void run(struct pfx_device *dev, struct edge *e, uint32_t rows)
{
	struct pfx_kv_shape shape = { 1, 1, e->dim, BLOCK, PFX_F16 };
	uint32_t blocks[BLOCKS];
	struct pfx_batch_seq seq = { 0, rows, POSITIONS - rows, POSITIONS, BLOCKS, blocks };
	struct pfx_batch batch = { .n_rows = rows, .n_seqs = 1, .seqs = &seq };
	struct pfx_rope rope = { PFX_ROPE_PAIRS, 0, NULL, 1 };
	uint16_t *block = pfx_xmalloc(ops->kv_block_bytes(&shape));
	float *x = pfx_xcalloc((size_t)rows * 3 * e->dim, sizeof(*x));
	struct pfx_mem *qkv, *y;
	struct pfx_kv *kv;

	if (ops->kv_open(dev, &shape, BLOCKS, &kv) != 0 ||
		ops->mem_alloc(dev, (size_t)rows * 3 * e->dim * 4, &qkv) != 0 ||
		ops->mem_alloc(dev, (size_t)rows * e->dim * 4, &y) != 0) {
		abort();
	}
	for (uint32_t b = 0; b < BLOCKS; b++) {
		blocks[b] = BLOCKS - 1 - b;
		write_plane(block, e, b * BLOCK);
		ops->kv_write(dev, kv, blocks[b], block);
	}
	for (uint32_t i = 0; i < rows; i++) {
		memcpy(x + (size_t)i * 3 * e->dim, e->q, e->dim * 4);
	}
	ops->mem_write(dev, qkv, 0, x, (size_t)rows * 3 * e->dim * 4);
	if (ops->begin(dev, &batch, &rope) != 0 ||
		ops->attention(dev, kv, 0, 1, 1, qkv, y) != 0) {
		abort();
	}
	ops->mem_read(dev, y, (size_t)(rows - 1) * e->dim * 4, e->y, e->dim * 4);
	ops->sync(dev);
	ops->mem_free(dev, qkv);
	ops->mem_free(dev, y);
	ops->kv_close(dev, kv);
	pfx_free(block);
	pfx_free(x);
}

/* Worst error against double precision, as a part of the largest |V|. */
static double error_of(const struct edge *e)
{
	double p[POSITIONS], m = -INFINITY, l = 0, most = 0, worst = 0;

	for (uint32_t i = 0; i < POSITIONS; i++) {
		p[i] = 0;
		for (uint32_t d = 0; d < e->dim; d++) {
			p[i] += (double)e->q[d] * e->k[(size_t)i * e->dim + d];
			most = fmax(most, fabs(e->v[(size_t)i * e->dim + d]));
		}
		m = fmax(m, p[i]);
	}
	for (uint32_t i = 0; i < POSITIONS; i++) {
		p[i] = exp(p[i] - m);
		l += p[i];
	}
	for (uint32_t d = 0; d < e->dim; d++) {
		double want = 0;
		for (uint32_t i = 0; i < POSITIONS; i++) {
			want += p[i] / l * e->v[(size_t)i * e->dim + d];
		}
		worst = fmax(worst, isfinite(e->y[d]) ? fabs(want - e->y[d]) : INFINITY);
	}
	return worst / most;
}

enum kind { LARGEST, ALTERNATING, ONE_LARGE, TINY, UNEVEN, N_KINDS };
static const char *const kind_names[] = { "all of the largest", "the largest, signs by turns",
	"one dimension large", "below the normal f16", "positions from 2^-14 to 2^15" };

static void fill(struct edge *e, enum kind kind, struct pfx_rng *rng)
{
	for (uint32_t i = 0; i < POSITIONS; i++) {
		float *k = e->k + (size_t)i * e->dim, *v = e->v + (size_t)i * e->dim;
		float size = ldexpf(1, (int)(i % 30) - 14);
		for (uint32_t d = 0; d < e->dim; d++) {
			float sign = kind == ALTERNATING && (i + d) % 2 ? -1 : 1;
			k[d] = kind == TINY ? ldexpf((float)(i + d), -24)
				: kind == UNEVEN ? pfx_f16_to_f32(pfx_f32_to_f16(random_normal(rng) * size / 4))
				: kind == ONE_LARGE && d != 3 ? 0 : 65504 * sign;
			v[d] = kind == UNEVEN || kind == TINY ? k[d] : 65504 * sign;
		}
	}
	for (uint32_t d = 0; d < e->dim; d++) {
		/* Scores that do not all go to one position. */
		float by = kind == TINY ? 1e5f : kind == UNEVEN ? 1e-4f / sqrtf((float)e->dim) : 1e-6f / (float)e->dim;
		e->q[d] = kind == LARGEST || kind == ONE_LARGE ? by
			: kind == ALTERNATING ? (d % 2 ? -by : by) : random_normal(rng) * by;
	}
}

static void test_edges(struct pfx_rng *rng, uint32_t dim)
{
	struct edge e = { .dim = dim, .k = pfx_xcalloc(POSITIONS * dim, sizeof(float)),
		.v = pfx_xcalloc(POSITIONS * dim, sizeof(float)) };
	static const uint32_t rows[] = { 1, 5, 40 };

	for (int kind = 0; kind < N_KINDS; kind++) {
		float want[1024];
		int bad = 0;
		fill(&e, (enum kind)kind, rng);
		run(devices[0], &e, 1);
		memcpy(want, e.y, dim * 4);
		double error = error_of(&e);
		ok(error < 1e-3, "%u dimensions, %s: %.1e of the largest off", dim, kind_names[kind], error);
		for (int i = 0; i < n_devices; i++) {
			for (int r = 0; r < 3; r++) {
				run(devices[i], &e, rows[r]);
				bad += memcmp(want, e.y, dim * 4) != 0;
			}
		}
		is_int(bad, 0, "the same bits everywhere");
	}
	pfx_free(e.k);
	pfx_free(e.v);
}

/* What is not finite in q, K or V makes NaN of the rows that see it. */
static void test_not_finite(struct pfx_rng *rng)
{
	static const float nots[] = { INFINITY, -INFINITY, NAN };
	struct edge e = { .dim = 64, .k = pfx_xcalloc(POSITIONS * 64, sizeof(float)),
		.v = pfx_xcalloc(POSITIONS * 64, sizeof(float)) };
	int bad = 0, spread = 0;

	for (int i = 0; i < n_devices; i++) {
		for (int what = 0; what < 3; what++) {
			for (int rows = 1; rows <= 17; rows += 16) {
				fill(&e, UNEVEN, rng);
				(what == 0 ? e.q : what == 1 ? e.k : e.v)[what == 0 ? 7 : 100 * 64 + 7] = nots[i % 3];
				run(devices[i], &e, (uint32_t)rows);
				for (int d = 0; d < 64; d++) {
					bad += !isnan(e.y[d]);
				}
				/* The last position alone does not reach back. */
				fill(&e, UNEVEN, rng);
				if (what > 0) {
					float *at = what == 1 ? e.k : e.v;
					for (uint32_t d = 0; d < 64; d++) {
						at[(POSITIONS - 1) * 64 + d] = nots[i % 3];
					}
					run(devices[i], &e, 2);
					spread += !isnan(e.y[0]);
				}
			}
		}
	}
	is_int(bad, 0, "a row that sees what is not finite is NaN");
	is_int(spread, 0, "wherever it stands");
	pfx_free(e.k);
	pfx_free(e.v);
}

static int wrong_exponents(const struct pfx_kv *kv, uint32_t block, uint32_t n)
{
	const struct pfx_kv_shape *s = &kv->shape;
	int bad = 0;

	for (uint32_t layer = 0; layer < s->n_layers; layer++) {
		for (uint32_t h = 0; h < s->n_kv_heads; h++) {
			for (uint32_t i = 0; i < n; i++) {
				uint32_t k = 0, v = 0;
				for (uint32_t d = 0; d < s->head_dim; d++) {
					uint32_t kd = pfx_kv_k(kv, block, layer, h)[d * s->block_tokens + i] & 0x7fffu;
					uint32_t vd = pfx_kv_v(kv, block, layer, h)[i * s->head_dim + d] & 0x7fffu;
					k = kd > k ? kd : k;
					v = vd > v ? vd : v;
				}
				bad += pfx_kv_k_exps(kv, block, layer, h)[i] != pfx_exponent(k);
				bad += pfx_kv_v_exps(kv, block, layer, h)[i] != pfx_exponent(v);
			}
		}
	}
	return bad;
}

/* Written from outside, copied, and written by a step. */
static void test_exponents(struct pfx_rng *rng, uint32_t dim, uint32_t b)
{
	struct pfx_kv_shape shape = { 2, 3, dim, b, PFX_F16 };
	size_t halves = ops->kv_block_bytes(&shape) / 2;
	uint16_t *block = pfx_xmalloc(halves * 2);
	uint32_t blocks[] = { 3, 0 }, width = (3 + 2 * 3) * dim;
	struct pfx_batch_seq seq = { 0, b, 0, 0, 2, blocks };
	struct pfx_batch batch = { .n_rows = b, .n_seqs = 1, .seqs = &seq };
	struct pfx_rope rope = { PFX_ROPE_PAIRS, 0, NULL, 1 };
	float *x = random_floats(rng, (size_t)b * width, 3);
	int bad = 0;

	for (int i = 0; i < n_devices; i++) {
		struct pfx_mem *qkv;
		struct pfx_kv *kv;
		if (ops->kv_open(devices[i], &shape, 4, &kv) != 0 ||
			ops->mem_alloc(devices[i], (size_t)b * width * 4, &qkv) != 0) {
			abort();
		}
		for (uint32_t at = 0; at < 3; at++) {
			for (size_t j = 0; j < halves; j++) {
				block[j] = (uint16_t)pfx_rng_next(rng);
				/* Rarely so large: of random bits most positions would hold what is not finite. */
				block[j] &= pfx_rng_below(rng, 200) == 0 ? 0xffff : 0xbfff;
			}
			ops->kv_write(devices[i], kv, at, block);
			bad += wrong_exponents(kv, at, b);
		}
		ops->kv_copy(devices[i], kv, 2, 1, b / 2);
		bad += wrong_exponents(kv, 2, b);
		ops->mem_write(devices[i], qkv, 0, x, (size_t)b * width * 4);
		ops->begin(devices[i], &batch, &rope);
		ops->rope_kv(devices[i], kv, 0, 3, NULL, NULL, 0, qkv);
		ops->rope_kv(devices[i], kv, 1, 3, NULL, NULL, 0, qkv);
		bad += wrong_exponents(kv, 3, b);
		ops->sync(devices[i]);
		ops->mem_free(devices[i], qkv);
		ops->kv_close(devices[i], kv);
	}
	is_int(bad, 0, "exponents of %u dimensions in blocks of %u follow their f16", dim, b);
	pfx_free(block);
	pfx_free(x);
}

int main(void)
{
	struct pfx_rng rng = { pfx_rng_entropy() };

	printf("# seed %llu\n", (unsigned long long)rng.state);
	open_devices();
	test_edges(&rng, 64);
	test_edges(&rng, 256);
	test_edges(&rng, 1024);
	test_edges(&rng, 20);
	test_not_finite(&rng);
	test_exponents(&rng, 64, 32);
	test_exponents(&rng, 20, 8);
	test_exponents(&rng, 7, 1);
	test_exponents(&rng, 128, 256);
	close_devices();
	return tap_done();
}
