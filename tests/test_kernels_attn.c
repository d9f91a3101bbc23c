/*
 * kernels/: RoPE, the KV arena and attention. The reference against double precision;
 * every variant and thread count against the reference; any cut of a sequence into
 * batches, any company in the batch and any block table against the whole run at once: bit
 * by bit. Blocks and outputs are filled with NaN before, so whoever reads what was not
 * written shows.
 */
#include <math.h>

#include "kernels/cpu/attn.h"
#include "tests/kernels_util.h"

#define LAYERS 2u
#define LAYER 1u

struct shape {
	uint32_t n_heads, n_kv, dim, block, n_dims;
	enum pfx_rope_kind kind;
	int norms;
	enum pfx_kv_type type;
};

struct seq {
	uint32_t len;
	float *qkv;       /* [len][width], before RoPE */
	uint32_t *blocks; /* of the run at hand */
	float *y;         /* [len][n_heads * dim] of the run at hand */
	uint32_t done;
};

struct world {
	struct shape s;
	uint32_t width, n_seqs, n_blocks;
	struct seq seqs[3];
	float inv_freq[128], *q_norm, *k_norm;
};

static void make_world(struct world *w, struct pfx_rng *rng, const struct shape *s,
	const uint32_t *lens, uint32_t n_seqs)
{
	*w = (struct world){ .s = *s, .width = (s->n_heads + 2 * s->n_kv) * s->dim, .n_seqs = n_seqs };
	for (uint32_t i = 0; i < n_seqs; i++) {
		struct seq *q = &w->seqs[i];
		q->len = lens[i];
		q->qkv = random_floats(rng, (size_t)lens[i] * w->width, 1);
		q->blocks = pfx_xcalloc(lens[i] / s->block + 1, sizeof(*q->blocks));
		q->y = pfx_xmalloc((size_t)lens[i] * s->n_heads * s->dim * 4);
		w->n_blocks += lens[i] / s->block + 1;
	}
	w->n_blocks += 3;
	for (uint32_t i = 0; i < s->n_dims / 2; i++) {
		w->inv_freq[i] = (float)pow(10000, -2.0 * i / s->n_dims);
	}
	w->q_norm = random_floats(rng, s->dim, 1);
	w->k_norm = random_floats(rng, s->dim, 1);
}

static void free_world(struct world *w)
{
	for (uint32_t i = 0; i < w->n_seqs; i++) {
		pfx_free(w->seqs[i].qkv);
		pfx_free(w->seqs[i].blocks);
		pfx_free(w->seqs[i].y);
	}
	pfx_free(w->q_norm);
	pfx_free(w->k_norm);
}

/* Blocks in a random order, no two alike. */
static void deal_blocks(struct world *w, struct pfx_rng *rng)
{
	uint32_t *ids = pfx_xcalloc(w->n_blocks, sizeof(*ids)), next = 0;

	for (uint32_t i = 0; i < w->n_blocks; i++) {
		uint32_t j = (uint32_t)pfx_rng_below(rng, i + 1);
		ids[i] = ids[j];
		ids[j] = i;
	}
	for (uint32_t s = 0; s < w->n_seqs; s++) {
		for (uint32_t i = 0; i <= w->seqs[s].len / w->s.block; i++) {
			w->seqs[s].blocks[i] = ids[next++];
		}
	}
	pfx_free(ids);
}

static struct pfx_kv *open_kv(const struct world *w, struct pfx_device *dev)
{
	struct pfx_kv_shape shape = { LAYERS, w->s.n_kv, w->s.dim, w->s.block, w->s.type };
	size_t bytes = ops->kv_block_bytes(&shape);
	uint16_t *poison = pfx_xmalloc(bytes);
	struct pfx_kv *kv;

	if (ops->kv_open(dev, &shape, w->n_blocks, &kv) != 0) {
		abort();
	}
	for (size_t i = 0; i < bytes / 2; i++) {
		poison[i] = 0x7e01;
	}
	for (uint32_t b = 0; b < w->n_blocks; b++) {
		ops->kv_write(dev, kv, b, poison);
	}
	pfx_free(poison);
	return kv;
}

struct run {
	struct world *w;
	struct pfx_device *dev;
	struct pfx_kv *kv;
	struct pfx_weight *q_norm, *k_norm;
};

/* One batch: the next n[i] rows of each sequence (0: not in it). */
static void run_batch(struct run *r, const uint32_t *n)
{
	struct world *w = r->w;
	struct pfx_batch_seq seqs[3];
	struct pfx_batch batch = { .seqs = seqs };
	struct pfx_rope rope = { w->s.kind, w->s.n_dims, w->inv_freq, 1 };
	size_t y_row = (size_t)w->s.n_heads * w->s.dim * 4, row = (size_t)w->width * 4;
	struct pfx_mem *qkv, *y;
	float *nans;

	for (uint32_t i = 0; i < w->n_seqs; i++) {
		struct seq *s = &w->seqs[i];
		if (n[i] != 0) {
			seqs[batch.n_seqs++] = (struct pfx_batch_seq){ batch.n_rows, n[i], s->done, 0,
				(s->done + n[i] - 1) / w->s.block + 1, s->blocks };
			batch.n_rows += n[i];
		}
	}
	nans = pfx_xmalloc(batch.n_rows * y_row);
	memset(nans, 0xff, batch.n_rows * y_row);
	qkv = mem_of(r->dev, NULL, batch.n_rows * row);
	y = mem_of(r->dev, nans, batch.n_rows * y_row);
	for (uint32_t i = 0, at = 0; i < w->n_seqs; at += n[i], i++) {
		ops->mem_write(r->dev, qkv, at * row, w->seqs[i].qkv + (size_t)w->seqs[i].done * w->width,
			n[i] * row);
	}
	if (ops->begin(r->dev, &batch, &rope) != 0 ||
		ops->rope_kv(r->dev, r->kv, LAYER, w->s.n_heads, w->s.norms ? r->q_norm : NULL,
			w->s.norms ? r->k_norm : NULL, 1e-5f, qkv) != 0 ||
		ops->attention(r->dev, r->kv, LAYER, w->s.n_heads, 0.3f, qkv, y) != 0) {
		abort();
	}
	for (uint32_t i = 0, at = 0; i < w->n_seqs; at += n[i], i++) {
		ops->mem_read(r->dev, y, at * y_row,
			w->seqs[i].y + (size_t)w->seqs[i].done * w->s.n_heads * w->s.dim, n[i] * y_row);
		w->seqs[i].done += n[i];
	}
	ops->sync(r->dev);
	ops->mem_free(r->dev, qkv);
	ops->mem_free(r->dev, y);
	pfx_free(nans);
}

/*
 * All rows of all sequences, chunk_max at a time at most, 0: each sequence alone and whole.
 * Leaves the results in seqs[].y.
 */
static void run_world(struct world *w, struct pfx_device *dev, struct pfx_rng *rng,
	uint32_t chunk_max)
{
	struct run r = { .w = w, .dev = dev, .kv = open_kv(w, dev) };
	uint32_t n[3], left = 1;

	if (ops->vector_pack(dev, PFX_F32, w->q_norm, w->s.dim, &r.q_norm) != 0 ||
		ops->vector_pack(dev, PFX_F32, w->k_norm, w->s.dim, &r.k_norm) != 0) {
		abort();
	}
	deal_blocks(w, rng);
	for (uint32_t i = 0; i < w->n_seqs; i++) {
		w->seqs[i].done = 0;
		memset(n, 0, sizeof(n));
		n[i] = w->seqs[i].len;
		if (chunk_max == 0) {
			run_batch(&r, n);
		}
	}
	while (chunk_max != 0 && left != 0) {
		uint32_t total = 0;
		left = 0;
		for (uint32_t i = 0; i < w->n_seqs; i++) {
			uint32_t rest = w->seqs[i].len - w->seqs[i].done;
			n[i] = (uint32_t)pfx_rng_below(rng, chunk_max + 1);
			n[i] = n[i] < rest ? n[i] : rest;
			total += n[i];
			left += rest - n[i];
		}
		if (total != 0) {
			run_batch(&r, n);
		}
	}
	ops->weight_free(dev, r.q_norm);
	ops->weight_free(dev, r.k_norm);
	ops->kv_close(dev, r.kv);
}

/* q or k head after norm and RoPE, in double. */
static void turn(const struct world *w, const float *x, const float *norm, uint32_t pos, double *out)
{
	double ss = 0, r;

	for (uint32_t d = 0; d < w->s.dim; d++) {
		ss += (double)x[d] * x[d];
	}
	r = w->s.norms ? 1 / sqrt(ss / w->s.dim + 1e-5) : 1;
	for (uint32_t d = 0; d < w->s.dim; d++) {
		out[d] = x[d] * (w->s.norms ? r * norm[d] : 1);
	}
	for (uint32_t i = 0; i < w->s.n_dims / 2; i++) {
		uint32_t a = w->s.kind == PFX_ROPE_PAIRS ? 2 * i : i;
		uint32_t b = w->s.kind == PFX_ROPE_PAIRS ? 2 * i + 1 : i + w->s.n_dims / 2;
		double c = cos(pos * (double)w->inv_freq[i]), s = sin(pos * (double)w->inv_freq[i]);
		double x0 = out[a], x1 = out[b];
		out[a] = x0 * c - x1 * s;
		out[b] = x0 * s + x1 * c;
	}
}

/* n values of a position and KV head as the arena keeps them. */
static void keep(const struct world *w, double *x)
{
	double most = 0, scale;

	for (uint32_t d = 0; d < w->s.dim; d++) {
		most = fmax(most, fabs((double)(float)x[d]));
	}
	scale = pfx_f16_to_f32(pfx_f32_to_f16((float)(most / 127)));
	for (uint32_t d = 0; d < w->s.dim; d++) {
		x[d] = w->s.type == PFX_KV_F16 ? pfx_f16_to_f32(pfx_f32_to_f16((float)x[d]))
			: scale == 0 ? 0 : fmin(fmax(rint((float)x[d] / scale), -127), 127) * scale;
	}
}

/* Worst error of some rows of seqs[].y against attention in double over what is kept. */
static double worst_error(const struct world *w, struct pfx_rng *rng)
{
	uint32_t dim = w->s.dim, group = w->s.n_heads / w->s.n_kv;
	double q[256], k[256], worst = 0;

	for (int round = 0; round < 6; round++) {
		const struct seq *s = &w->seqs[pfx_rng_below(rng, w->n_seqs)];
		uint32_t row = (uint32_t)pfx_rng_below(rng, s->len);
		uint32_t head = (uint32_t)pfx_rng_below(rng, w->s.n_heads);
		double *p = pfx_xcalloc(row + 1, sizeof(*p)), m = -1e30, l = 0, want[256] = { 0 };

		turn(w, s->qkv + (size_t)row * w->width + head * dim, w->q_norm, row, q);
		for (uint32_t j = 0; j <= row; j++) {
			turn(w, s->qkv + (size_t)j * w->width + (w->s.n_heads + head / group) * dim,
				w->k_norm, j, k);
			keep(w, k);
			for (uint32_t d = 0; d < dim; d++) {
				p[j] += 0.3 * q[d] * k[d];
			}
			m = fmax(m, p[j]);
		}
		for (uint32_t j = 0; j <= row; j++) {
			p[j] = exp(p[j] - m);
			l += p[j];
		}
		for (uint32_t j = 0; j <= row; j++) {
			double v[256];
			for (uint32_t d = 0; d < dim; d++) {
				v[d] = s->qkv[(size_t)j * w->width + (w->s.n_heads + w->s.n_kv + head / group) * dim + d];
			}
			keep(w, v);
			for (uint32_t d = 0; d < dim; d++) {
				want[d] += p[j] * v[d] / l;
			}
		}
		for (uint32_t d = 0; d < dim; d++) {
			double e = fabs(want[d] - s->y[((size_t)row * w->s.n_heads + head) * dim + d]);
			worst = e > worst || isnan(e) ? e : worst;
		}
		pfx_free(p);
	}
	return worst;
}

/* Keeps or compares all results. */
static int differs(const struct world *w, float **want)
{
	size_t at = 0, n = 0;
	int bad = 0;

	for (uint32_t i = 0; i < w->n_seqs; i++) {
		n += (size_t)w->seqs[i].len * w->s.n_heads * w->s.dim;
	}
	if (*want == NULL) {
		*want = pfx_xmalloc(n * 4);
		bad = -1;
	}
	for (uint32_t i = 0; i < w->n_seqs; i++) {
		n = (size_t)w->seqs[i].len * w->s.n_heads * w->s.dim;
		if (bad < 0) {
			memcpy(*want + at, w->seqs[i].y, n * 4);
		} else {
			bad += memcmp(*want + at, w->seqs[i].y, n * 4) != 0;
		}
		at += n;
	}
	return bad;
}

static void test_shape(struct pfx_rng *rng, const struct shape *s, const uint32_t *lens,
	uint32_t n_seqs)
{
	static const uint32_t chunks[] = { 1, 5, 40, 300 };
	struct world w;
	float *want = NULL;
	char what[100];

	make_world(&w, rng, s, lens, n_seqs);
	snprintf(what, sizeof(what), "%u/%u heads of %u in %s, rope %u, blocks of %u, %u tokens", s->n_heads,
		s->n_kv, s->dim, s->type == PFX_KV_F16 ? "f16" : "int8", s->n_dims, s->block, lens[0]);
	run_world(&w, devices[0], rng, 0);
	differs(&w, &want);
	double e = worst_error(&w, rng);
	/*
	 * An f16 K that rounds the other way moves a score by 2^-11 of a product, one of int8 by 1/127
	 * of 3.5 times 0.3 |q[d]|; and K in whole
	 * numbers moves it by 0.3 |q| times 0.29 of one, of which the largest |k|, some 3.5, is half of
	 * 2^bits or more.
	 */
	double moved = 0.3 * sqrt(s->dim) * 0.29 * 3.5 / (1 << (pfx_k_bits(s->dim) - 1));
	ok(e < (s->type == PFX_KV_F16 ? 6e-3 : 2.5e-2) + 3 * moved, "%s: reference within %.1e of double", what, e);
	for (int i = 2; i < n_devices; i++) {
		run_world(&w, devices[i], rng, 0);
		ok(differs(&w, &want) == 0, "%s: %s has its bits", what, device_names[i]);
	}
	for (int i = 0; i < n_devices; i++) {
		int bad = 0, reference = strncmp(device_names[i], "reference", 9) == 0;
		for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
			/* The reference is slow, and one token a batch is for short sequences. */
			if (reference ? chunks[c] == (i == 1 ? 40 : 0) : chunks[c] > 1 || lens[0] <= 300) {
				run_world(&w, devices[i], rng, chunks[c]);
				bad += differs(&w, &want) != 0;
			}
		}
		if (reference && i != 1) {
			continue;
		}
		is_int(bad, 0, "%s: %s does not know of cuts and company", what, device_names[i]);
	}
	pfx_free(want);
	free_world(&w);
}

static void test_shapes(struct pfx_rng *rng)
{
	static const struct {
		struct shape s;
		uint32_t lens[3], n_seqs;
	} cases[] = {
		{ { 3, 1, 64, 32, 64, PFX_ROPE_PAIRS, 0, PFX_KV_F16 }, { 540, 70, 257 }, 3 },
		{ { 4, 2, 16, 16, 16, PFX_ROPE_HALVES, 1, PFX_KV_F16 }, { 130, 256, 1 }, 3 },
		{ { 2, 2, 128, 256, 96, PFX_ROPE_HALVES, 0, PFX_KV_F16 }, { 290, 33 }, 2 },
		{ { 5, 1, 80, 1, 80, PFX_ROPE_PAIRS, 0, PFX_KV_F16 }, { 90, 20 }, 2 },
		{ { 2, 1, 256, 8, 64, PFX_ROPE_HALVES, 1, PFX_KV_F16 }, { 60 }, 1 },
		{ { 6, 2, 24, 4, 10, PFX_ROPE_PAIRS, 0, PFX_KV_F16 }, { 75, 300 }, 2 },
		{ { 3, 1, 64, 32, 64, PFX_ROPE_PAIRS, 0, PFX_KV_INT8 }, { 540, 70, 257 }, 3 },
		{ { 2, 2, 128, 256, 96, PFX_ROPE_HALVES, 1, PFX_KV_INT8 }, { 290, 33 }, 2 },
		{ { 5, 1, 80, 1, 80, PFX_ROPE_PAIRS, 0, PFX_KV_INT8 }, { 90, 20 }, 2 },
		{ { 6, 2, 24, 4, 10, PFX_ROPE_PAIRS, 0, PFX_KV_INT8 }, { 75, 300 }, 2 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		test_shape(rng, &cases[i].s, cases[i].lens, cases[i].n_seqs);
	}
}

static void test_blocks(struct pfx_rng *rng)
{
	struct pfx_kv_shape shape = { 3, 2, 20, 8, PFX_KV_F16 };
	size_t bytes = ops->kv_block_bytes(&shape), n = bytes / 2;
	uint16_t *a = pfx_xmalloc(bytes), *b = pfx_xmalloc(bytes), *c = pfx_xmalloc(bytes);
	struct pfx_kv *kv;
	int bad = 0;

	is_int((long long)bytes, 3 * 2 * 2 * 20 * 8 * 2, "bytes of a block");
	for (size_t i = 0; i < n; i++) {
		a[i] = (uint16_t)pfx_rng_next(rng);
		b[i] = (uint16_t)pfx_rng_next(rng);
	}
	ok(ops->kv_open(devices[0], &shape, 4, &kv) == 0, "an arena opens");
	ops->kv_write(devices[0], kv, 3, a);
	ops->kv_write(devices[0], kv, 1, b);
	ops->kv_copy(devices[0], kv, 1, 3, 5);
	ops->kv_read(devices[0], kv, 3, 8, c);
	is_int(memcmp(a, c, bytes), 0, "a block comes back as written");
	ops->kv_read(devices[0], kv, 1, 8, c);
	for (size_t i = 0; i < n; i++) {
		size_t plane = i / 160, at = i % 160;
		size_t pos = plane / 2 % 2 == 0 ? at % 8 : at / 20; /* K, K, V, V of a layer */
		bad += c[i] != (pos < 5 ? a[i] : b[i]);
	}
	is_int(bad, 0, "copy takes the first positions of all layers, and no more");
	memset(c, 0xa5, bytes);
	ops->kv_read(devices[0], kv, 3, 3, c);
	for (size_t i = 0; i < n; i++) {
		size_t at = i % 160, pos = i / 320 % 2 == 0 ? at % 8 : at / 20;
		bad += c[i] != (pos < 3 ? a[i] : 0);
	}
	is_int(bad, 0, "a part of a block is read with zeros behind it");
	ops->kv_trim(kv, a, 3);
	is_int(memcmp(a, c, bytes), 0, "and a block in host memory is cut to the same bytes");
	ops->kv_close(devices[0], kv);
	shape.block_tokens = 24;
	ok(ops->kv_open(devices[0], &shape, 4, &kv) < 0, "24 tokens are no block");
	shape.block_tokens = 512;
	ok(ops->kv_open(devices[0], &shape, 4, &kv) < 0, "nor are 512");
	pfx_free(a);
	pfx_free(b);
	pfx_free(c);
}

/* Positions below write_from are read, never written. */
static void test_write_from(struct pfx_rng *rng)
{
	static const struct shape s = { 1, 1, 16, 8, 16, PFX_ROPE_PAIRS, 0, PFX_KV_F16 };
	static const uint32_t len = 20, blocks[] = { 2, 0, 1 };
	struct pfx_rope rope;
	struct pfx_batch_seq seq = { 0, 20, 0, 13, 3, blocks };
	struct pfx_batch batch = { .n_rows = 20, .n_seqs = 1, .seqs = &seq };
	uint16_t block[LAYERS * 2 * 16 * 8], bad = 0;
	struct world w;

	make_world(&w, rng, &s, &len, 1);
	rope = (struct pfx_rope){ s.kind, s.n_dims, w.inv_freq, 1 };
	struct pfx_kv *kv = open_kv(&w, devices[0]);
	struct pfx_mem *qkv = mem_of(devices[0], w.seqs[0].qkv, 20 * 48 * 4);
	ok(ops->begin(devices[0], &batch, &rope) == 0, "begin");
	ops->rope_kv(devices[0], kv, LAYER, 1, NULL, NULL, 0, qkv);
	for (uint32_t pos = 0; pos < 24; pos++) {
		ops->kv_read(devices[0], kv, blocks[pos / 8], 8, block);
		for (uint32_t i = 0; i < 16; i++) {
			int k = block[(LAYER * 2 + 0) * 128 + i * 8 + pos % 8] != 0x7e01;
			int v = block[(LAYER * 2 + 1) * 128 + pos % 8 * 16 + i] != 0x7e01;
			int want = pos >= 13 && pos < 20;
			bad = (uint16_t)(bad + (k != want || v != want));
		}
	}
	is_int(bad, 0, "only positions from write_from on are written");
	ops->sync(devices[0]);
	ops->mem_free(devices[0], qkv);
	ops->kv_close(devices[0], kv);
	free_world(&w);
}

/* ---- sequences that have blocks in common ---- */

#define SHARED_SEQS 40u
#define SHARED_LEN 1100u /* four segments whole, and a part of a fifth */

struct shared {
	struct shape s;
	uint32_t width, n_rows, n_blocks;
	uint32_t blocks[SHARED_SEQS][SHARED_LEN / 4 + 1];
	struct pfx_batch_seq seqs[SHARED_SEQS];
	struct pfx_rope rope;
	float inv_freq[128], *qkv;
	uint16_t *kv; /* of all blocks */
};

/* Each sequence begins as another one does, for a while, and goes on with blocks of its own. */
static void make_shared(struct shared *w, struct pfx_rng *rng, const struct shape *s)
{
	struct pfx_kv_shape shape = { LAYERS, s->n_kv, s->dim, s->block, s->type };
	size_t halves;

	*w = (struct shared){ .s = *s, .width = (s->n_heads + 2 * s->n_kv) * s->dim };
	for (uint32_t i = 0; i < SHARED_SEQS; i++) {
		uint32_t rows = 1 + (uint32_t)pfx_rng_below(rng, pfx_rng_below(rng, 4) == 0 ? 20 : 3);
		uint32_t end = rows + 1 + (uint32_t)pfx_rng_below(rng, SHARED_LEN - rows);
		uint32_t n = (end + s->block - 1) / s->block;
		uint32_t like = i == 0 ? 0 : (uint32_t)pfx_rng_below(rng, i), common = 0;

		if (i > 0) {
			common = (w->seqs[like].pos0 < end - rows ? w->seqs[like].pos0 : end - rows) / s->block;
			common = pfx_rng_below(rng, 3) == 0 ? (uint32_t)pfx_rng_below(rng, common + 1) : common;
		}
		for (uint32_t b = 0; b < n; b++) {
			w->blocks[i][b] = b < common ? w->blocks[like][b] : w->n_blocks++;
		}
		w->seqs[i] = (struct pfx_batch_seq){ w->n_rows, rows, end - rows, 0, n, w->blocks[i] };
		w->n_rows += rows;
	}
	for (uint32_t i = 0; i < s->n_dims / 2; i++) {
		w->inv_freq[i] = (float)pow(10000, -2.0 * i / s->n_dims);
	}
	w->rope = (struct pfx_rope){ s->kind, s->n_dims, w->inv_freq, 1 };
	w->qkv = random_floats(rng, (size_t)w->n_rows * w->width, 1);
	halves = (size_t)w->n_blocks * ops->kv_block_bytes(&shape) / 2;
	w->kv = pfx_xmalloc(halves * 2);
	for (size_t i = 0; i < halves; i++) {
		/* As int8: pairs of any, and no scale is as large as a pair's bits could be. */
		w->kv[i] = s->type == PFX_KV_F16 ? pfx_f32_to_f16(random_normal(rng))
			: (uint16_t)(pfx_rng_next(rng) & 0xbfff) % 0x3c00;
	}
}

/* n of the sequences from `first` on in one batch; their rows to y. */
static void run_shared(const struct shared *w, struct pfx_device *dev, struct pfx_kv *kv,
	uint32_t first, uint32_t n, float *y)
{
	struct pfx_batch_seq seqs[SHARED_SEQS];
	struct pfx_batch batch = { .n_seqs = n, .seqs = seqs };
	uint32_t row0 = w->seqs[first].first_row;
	size_t y_row = (size_t)w->s.n_heads * w->s.dim * 4;
	struct pfx_mem *qkv, *out;

	for (uint32_t i = 0; i < n; i++) {
		seqs[i] = w->seqs[first + i];
		seqs[i].first_row -= row0;
		batch.n_rows += seqs[i].n_rows;
	}
	qkv = mem_of(dev, w->qkv + (size_t)row0 * w->width, (size_t)batch.n_rows * w->width * 4);
	out = mem_of(dev, NULL, batch.n_rows * y_row);
	if (ops->begin(dev, &batch, &w->rope) != 0 ||
		ops->rope_kv(dev, kv, LAYER, w->s.n_heads, NULL, NULL, 0, qkv) != 0 ||
		ops->attention(dev, kv, LAYER, w->s.n_heads, 0.3f, qkv, out) != 0) {
		abort();
	}
	ops->mem_read(dev, out, 0, y + row0 * y_row / 4, batch.n_rows * y_row);
	ops->sync(dev);
	ops->mem_free(dev, qkv);
	ops->mem_free(dev, out);
}

static void test_shared(struct pfx_rng *rng, const struct shape *s)
{
	struct pfx_kv_shape shape = { LAYERS, s->n_kv, s->dim, s->block, s->type };
	size_t bytes = ops->kv_block_bytes(&shape), n;
	float *alone, *together;
	struct shared *w = pfx_xmalloc(sizeof(*w));

	make_shared(w, rng, s);
	n = (size_t)w->n_rows * s->n_heads * s->dim;
	alone = pfx_xmalloc(n * 4);
	together = pfx_xmalloc(n * 4);
	for (int i = 0; i < n_devices; i++) {
		struct pfx_kv *kv;
		int bad = 0;

		if (ops->kv_open(devices[i], &shape, w->n_blocks, &kv) != 0) {
			abort();
		}
		for (uint32_t b = 0; b < w->n_blocks; b++) {
			ops->kv_write(devices[i], kv, b, w->kv + b * bytes / 2);
		}
		for (uint32_t j = 0; i == 0 && j < SHARED_SEQS; j++) {
			run_shared(w, devices[i], kv, j, 1, alone);
		}
		for (uint32_t first = 0, some; i > 0 && first < SHARED_SEQS; first += some) {
			some = i % 3 == 1 ? SHARED_SEQS
				: 1 + (uint32_t)pfx_rng_below(rng, SHARED_SEQS - first);
			run_shared(w, devices[i], kv, first, some, together);
		}
		bad = i > 0 && memcmp(alone, together, n * 4) != 0;
		is_int(bad, 0, "%u/%u heads of %u in %s, blocks of %u, shared: %s has the bits of each alone",
			s->n_heads, s->n_kv, s->dim, s->type == PFX_KV_F16 ? "f16" : "int8", s->block,
			device_names[i]);
		ops->kv_close(devices[i], kv);
	}
	pfx_free(alone);
	pfx_free(together);
	pfx_free(w->qkv);
	pfx_free(w->kv);
	pfx_free(w);
}

static void test_shared_shapes(struct pfx_rng *rng)
{
	static const struct shape shapes[] = {
		{ 3, 1, 64, 32, 64, PFX_ROPE_PAIRS, 0, PFX_KV_F16 },
		{ 2, 2, 16, 4, 16, PFX_ROPE_HALVES, 0, PFX_KV_F16 },
		{ 4, 1, 24, 256, 24, PFX_ROPE_PAIRS, 0, PFX_KV_F16 },
		{ 3, 1, 64, 32, 64, PFX_ROPE_PAIRS, 0, PFX_KV_INT8 },
		{ 4, 2, 24, 4, 24, PFX_ROPE_PAIRS, 0, PFX_KV_INT8 },
	};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		test_shared(rng, &shapes[i]);
	}
}

int main(void)
{
	struct pfx_rng rng = { pfx_rng_entropy() };

	printf("# seed %llu\n", (unsigned long long)rng.state);
	open_devices();
	test_blocks(&rng);
	test_write_from(&rng);
	test_shared_shapes(&rng);
	test_shapes(&rng);
	close_devices();
	return tap_done();
}
