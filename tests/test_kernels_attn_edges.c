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
	struct pfx_kv_shape shape = { 1, 1, e->dim, BLOCK, PFX_KV_F16 };
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
			const uint16_t *k_at = pfx_kv_plane(kv, block, layer, PFX_KV_K, h);
			const uint16_t *v_at = pfx_kv_plane(kv, block, layer, PFX_KV_V, h);
			const uint8_t *k_exps = pfx_kv_marks(kv, block, layer, PFX_KV_K, h);
			const uint8_t *v_exps = pfx_kv_marks(kv, block, layer, PFX_KV_V, h);
			for (uint32_t i = 0; i < n; i++) {
				uint32_t k = 0, v = 0;
				for (uint32_t d = 0; d < s->head_dim; d++) {
					uint32_t kd = k_at[d * s->block_tokens + i] & 0x7fffu;
					uint32_t vd = v_at[i * s->head_dim + d] & 0x7fffu;
					k = kd > k ? kd : k;
					v = vd > v ? vd : v;
				}
				bad += k_exps[i] != pfx_exponent(k);
				bad += v_exps[i] != pfx_exponent(v);
			}
		}
	}
	return bad;
}

/* Written from outside, copied, and written by a step. */
static void test_exponents(struct pfx_rng *rng, uint32_t dim, uint32_t b)
{
	struct pfx_kv_shape shape = { 2, 3, dim, b, PFX_KV_F16 };
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

/* Where int8 of a position lie in a block, by the layout that kv.c's head gives. */
static size_t byte_of(const struct pfx_kv_shape *s, size_t plane, int is_k, size_t pos, size_t d)
{
	size_t bytes = (size_t)s->head_dim * ((s->block_tokens + 1) / 2 * 2);

	return plane * bytes + (is_k ? (d / 2 * s->block_tokens + pos) * 2 + d % 2
		: (pos / 2 * s->head_dim + d) * 2 + pos % 2);
}

/* Positions [from, to) of a and b hold the same (b NULL: zeros)? Counts what does not. */
static int differ8(const struct pfx_kv_shape *s, const uint8_t *a, const uint8_t *b, size_t from, size_t to)
{
	size_t planes = (size_t)s->n_layers * 2 * s->n_kv_heads;
	size_t scales = planes * ((size_t)s->head_dim * ((s->block_tokens + 1) / 2 * 2));
	int bad = 0;

	for (size_t plane = 0; plane < planes; plane++) {
		int is_k = plane / s->n_kv_heads % 2 == 0;
		for (size_t pos = from; pos < to; pos++) {
			for (size_t d = 0; d < s->head_dim; d++) {
				size_t at = byte_of(s, plane, is_k, pos, d);
				bad += a[at] != (b == NULL ? 0 : b[at]);
			}
			for (size_t i = 0; i < 2; i++) {
				size_t at = scales + (plane * s->block_tokens + pos) * 2 + i;
				bad += a[at] != (b == NULL ? 0 : b[at]);
			}
		}
	}
	return bad;
}

/* Blocks of int8 as bytes: read, cut, copied and written by position, to the byte. */
static void test_int8_blocks(struct pfx_rng *rng, uint32_t dim, uint32_t b)
{
	struct pfx_kv_shape shape = { 2, 2, dim, b, PFX_KV_INT8 };
	size_t bytes = ops->kv_block_bytes(&shape);
	uint8_t *x = pfx_xmalloc(bytes), *y = pfx_xmalloc(bytes), *z = pfx_xmalloc(bytes);
	struct pfx_kv *kv;
	int bad = 0;

	if (ops->kv_open(devices[0], &shape, 2, &kv) != 0) {
		abort();
	}
	is_int((long long)bytes, 2 * 2 * 2 * ((long long)dim * (b + b % 2) + 2 * b), "bytes of a block of int8");
	for (uint32_t n = 0; n <= b; n += b < 9 ? 1 : 7) {
		for (size_t i = 0; i < bytes; i++) {
			x[i] = (uint8_t)pfx_rng_next(rng);
			y[i] = (uint8_t)pfx_rng_next(rng);
		}
		ops->kv_write(devices[0], kv, 0, x);
		ops->kv_write(devices[0], kv, 1, y);
		ops->kv_read(devices[0], kv, 0, b, z);
		bad += memcmp(x, z, bytes) != 0;
		ops->kv_copy(devices[0], kv, 1, 0, n);
		ops->kv_read(devices[0], kv, 1, b, z);
		bad += differ8(&shape, z, x, 0, n) + differ8(&shape, z, y, n, b);
		memset(z, 0xa5, bytes);
		ops->kv_read(devices[0], kv, 0, n, z);
		bad += differ8(&shape, z, x, 0, n) + differ8(&shape, z, NULL, n, b);
		ops->kv_trim(kv, x, n);
		bad += differ8(&shape, x, z, 0, b);
	}
	is_int(bad, 0, "%u dimensions, blocks of %u: every position by itself", dim, b);
	ops->kv_close(devices[0], kv);
	pfx_free(x);
	pfx_free(y);
	pfx_free(z);
}

/* What a step writes as int8: within half a step of it, and not finite where it was not. */
static void test_int8_values(struct pfx_rng *rng)
{
	struct pfx_kv_shape shape = { 1, 1, 34, 4, PFX_KV_INT8 };
	uint32_t block = 0, width = 3 * 34;
	struct pfx_batch_seq seq = { 0, 4, 0, 0, 1, &block };
	struct pfx_batch batch = { .n_rows = 4, .n_seqs = 1, .seqs = &seq };
	struct pfx_rope rope = { PFX_ROPE_PAIRS, 0, NULL, 1 };
	static const float sizes[] = { 1, 1e-6f, 1e6f, 1e8f }; /* f16 scales below normal, large, too large */
	float *x = random_floats(rng, (size_t)4 * width, 1);
	int bad = 0;

	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t j = 0; j < width; j++) {
			x[i * width + j] *= sizes[i];
		}
	}
	for (int i = 0; i < n_devices; i++) {
		struct pfx_mem *qkv;
		struct pfx_kv *kv;
		if (ops->kv_open(devices[i], &shape, 1, &kv) != 0 ||
			ops->mem_alloc(devices[i], (size_t)4 * width * 4, &qkv) != 0) {
			abort();
		}
		ops->mem_write(devices[i], qkv, 0, x, (size_t)4 * width * 4);
		ops->begin(devices[i], &batch, &rope);
		ops->rope_kv(devices[i], kv, 0, 1, NULL, NULL, 0, qkv);
		ops->sync(devices[i]);
		const int8_t *v = pfx_kv_plane(kv, 0, 0, PFX_KV_V, 0);
		const uint16_t *scale = pfx_kv_marks(kv, 0, 0, PFX_KV_V, 0);
		for (uint32_t pos = 0; pos < 4; pos++) {
			double s = pfx_f16_to_f32(scale[pos]), most = 0;
			for (uint32_t d = 0; d < 34; d++) {
				most = fmax(most, fabs((double)x[pos * width + 68 + d]));
			}
			for (uint32_t d = 0; d < 34; d++) {
				double got = v[(pos / 2 * 34 + d) * 2 + pos % 2] * s, want = x[pos * width + 68 + d];
				/* Where the scale is below f16's normal numbers it is off by 2^-25. */
				double off = most / 127 / 2 * 1.01 + 127 * ldexp(1, -25);
				bad += pos == 3 ? !isnan(s) : !(fabs(got - want) <= off);
			}
		}
		ops->mem_free(devices[i], qkv);
		ops->kv_close(devices[i], kv);
	}
	is_int(bad, 0, "int8 are within half a step of what was written");
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
	test_int8_blocks(&rng, 64, 32);
	test_int8_blocks(&rng, 20, 8);
	test_int8_blocks(&rng, 6, 1);
	test_int8_values(&rng);
	close_devices();
	return tap_done();
}
