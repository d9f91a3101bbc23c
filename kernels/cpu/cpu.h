#ifndef PFX_KERNELS_CPU_CPU_H
#define PFX_KERNELS_CPU_CPU_H

/*
 * Inside kernels/cpu: what the table (ops_cpu.c), the drivers that cut work into tasks and
 * the variants of the kernels share. A variant is a const table of plain functions that
 * work on memory they are given; all variants give the same bits (README.md, "Exactness").
 */

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

#define PFX_TILE 16u /* outputs that are computed side by side: one AVX-512 vector */

/* How a packed part keeps its elements. */
enum pfx_code {
	PFX_CODE_U4,   /* 0..15, two to a byte; has minima */
	PFX_CODE_I4,   /* -8..7, two to a byte */
	PFX_CODE_I8,   /* signed bytes */
	PFX_CODE_F32,
	PFX_CODE_F16,
	PFX_CODE_BF16,
};

/*
 * One part of a packed matrix: tiles of PFX_TILE outputs, one after the other, each
 *   codes    U4, I4: [k/32][4][16] words pairs, see pack.c; I8: [k/32][8][16] pairs;
 *            floats: [k][16]
 *   scales   [k/32][n_scales][16], f16 or f32      (integers only)
 *   minima   [k/32][16], of the scales' type       (has_min only)
 * The last tile is filled up with zeros.
 */
struct pfx_part {
	enum pfx_code code;
	uint8_t scale_f16, has_min, n_scales;
	uint32_t n, n0;       /* outputs, and the number of the first among all parts */
	uint32_t k, n_groups; /* n_groups: of 32; 0 for floats */
	uint32_t n_tiles;
	size_t scales_at, mins_at, tile_bytes; /* from the start of a tile */
	uint8_t *tiles;
};

struct pfx_weight {
	uint32_t n, k, n_parts;
	size_t bytes;
	void *base;  /* all tiles; or the float32 vector when n_parts is 0 */
	struct pfx_part parts[];
};

/* Where the codes of 16-bit words (output lane, k pair) lie; shared by pack and reference. */
static inline const uint8_t *pfx_tile_at(const struct pfx_part *p, uint32_t tile)
{
	return p->tiles + tile * p->tile_bytes;
}

/*
 * Rows of activations as products with integer weights see them: v = round(x / s), of at most
 * PFX_TOP_EXACT or PFX_TOP_FAST, one s for 32 elements of a row; sum = s * (sum of v). A group
 * whose largest element is below 1e-30 counts as zero; one that holds an infinity or NaN has
 * s = NaN.
 */
#define PFX_TOP_EXACT 32767.0f
#define PFX_TOP_FAST 127.0f

struct pfx_quant {
	int16_t *v;  /* [rows][k] */
	float *s;    /* [rows][k/32][2]: s, then sum */
};

/* One product, as matmul was asked for it; rows count from its first row. */
struct pfx_gemm {
	const struct pfx_weight *w;
	uint32_t n_rows, k, n; /* n: outputs of all parts */
	const float *x;        /* [n_rows][k] */
	struct pfx_quant q;    /* when a part has integers */
	int split, bytes;      /* q.v went through the variant's function of that name */
	const float *bias;     /* [n] or NULL */
	int add;
	float *y; /* [n_rows][n] */
};

/* Fewer rows wait for the weights to come, whatever the products. */
#define PFX_BYTES_ROWS 9u
/* Bytes of a thread's own memory that gemm may use, whatever the shapes. */
#define PFX_GEMM_SCRATCH (128u * 1024u)
/* Most rows that one call of a variant's gemm is given. */
#define PFX_GEMM_ROWS 240u

/* Positions whose K stands together as words: 8 KiB of 64 dimensions. */
#define PFX_STRIP 64u
/* Floats from the weights of one query vector to those of the next: not on the same L1 sets. */
#define PFX_P_STRIDE (PFX_SEGMENT + 16u)
/* Most query vectors that a variant's attn works on at a time. */
#define PFX_P_ROWS 6u

/*
 * Some query vectors (rows of one sequence, heads of one KV head) against one segment of its
 * KV. Vectors stand in ascending order of their rows, n_valid positions of the segment are
 * seen by each (ascending too, at least 1).
 */
struct pfx_attn {
	uint32_t head_dim, dim_pad; /* dim_pad: up to a multiple of PFX_TILE */
	uint32_t n;                 /* query vectors */
	const int16_t *q;           /* [n][dim_pad] */
	const float *q_scale;       /* [n], scale * log2(e) times that of q's words */
	const uint32_t *n_valid;    /* [n] */
	uint32_t block_tokens;
	enum pfx_kv_type type;
	const void *const *kb, *const *vb; /* planes of each block that is seen (kv.c) */
	const void *const *ke, *const *ve; /* their exponents or scales, [block_tokens] */
	float *m, *l;               /* [n] out: maximum, sum of 2^(score - m) */
	float *o;                   /* [n][dim_pad] out: sum of 2^(score - m) v */
	/* For the variant's use. */
	uint32_t *k_words; /* [PFX_SEGMENT / PFX_STRIP][dim_pad / 2][PFX_STRIP] */
	uint32_t *v_words; /* [PFX_SEGMENT / 2][dim_pad] */
	float *k_scale, *v_scale, *k_up, *v_up; /* [PFX_SEGMENT] */
	float *p;          /* [PFX_P_ROWS][PFX_P_STRIDE] */
};

struct pfx_variant {
	const char *name;
	int (*usable)(void); /* can this CPU and system run it? */

	void (*quantise)(const float *x, uint32_t k, float top, int16_t *v, float *s);
	/*
	 * Exact products of so many rows or more, of groups with one scale, have each row's v rearranged
	 * by split; fast ones by bytes; 0: none has.
	 */
	uint32_t split_rows, bytes_rows;
	void (*split)(int16_t *v, uint32_t k);
	void (*bytes)(int16_t *v, uint32_t k);
	/* Rows [row0, row0 + n_rows) of the outputs of tiles [tile0, tile0 + n_tiles) of a part. */
	void (*gemm)(const struct pfx_gemm *g, const struct pfx_part *p, uint32_t tile0,
		uint32_t n_tiles, uint32_t row0, uint32_t n_rows, void *scratch);
	/* y may be x. */
	void (*rmsnorm)(const float *x, const float *w, float eps, uint32_t dim, float *y);
	void (*gated)(enum pfx_act act, const float *gate, const float *up, uint32_t n, float *y);
	/* cs: n_dims/2 cosines, then as many sines. */
	void (*rope)(enum pfx_rope_kind kind, uint32_t n_dims, const float *cs, float *x);
	/* A query vector to words q[dim_pad]; returns its scale times factor (attn.h). */
	float (*attn_query)(const float *x, uint32_t dim, uint32_t dim_pad, float factor, int16_t *q);
	void (*attn)(const struct pfx_attn *a);
	/* Merges the later segment (m, l, o) into (*run_m, *run_l, run_o). */
	void (*attn_merge)(uint32_t dim_pad, float *run_m, float *run_l, float *run_o, float m,
		float l, const float *o);
	/* y[0..n) as f16; returns the largest |y|, as the bits of one. */
	uint32_t (*narrow)(const float *x, uint32_t n, uint16_t *y);
	/* y[0..n) as int8; returns their scale as f16, NaN when one is not finite. n is even. */
	uint16_t (*narrow8)(const float *x, uint32_t n, int8_t *y);
	/* e[n_cols] of the columns (K), or e[n_rows] of the rows (V), of f16 x[n_rows][n_cols]. */
	void (*exponents_k)(const uint16_t *x, uint32_t n_rows, uint32_t n_cols, uint8_t *e);
	void (*exponents_v)(const uint16_t *x, uint32_t n_rows, uint32_t n_cols, uint8_t *e);
};

extern const struct pfx_ops pfx_cpu_ops;
extern const struct pfx_variant pfx_variant_reference, pfx_variant_avx2, pfx_variant_avx512,
	pfx_variant_amx;

/* avx512_attn.c */
void pfx_avx512_attn(const struct pfx_attn *a);
float pfx_avx512_attn_query(const float *x, uint32_t dim, uint32_t dim_pad, float factor, int16_t *q);
void pfx_avx512_attn_merge(uint32_t dim_pad, float *run_m, float *run_l, float *run_o, float m,
	float l, const float *o);

struct pfx_mem {
	size_t bytes;
	float *data;
};

struct pfx_kv {
	struct pfx_kv_shape shape;
	size_t block_bytes, plane; /* plane: bytes of one layer's K or V of one KV head */
	uint32_t n_blocks;
	size_t map_bytes, exps_bytes;
	uint8_t *base;
	/*
	 * With f16: [n_blocks][planes][block_tokens] exponents of the positions (attn.h). They follow
	 * from the f16 and are kept beside the blocks, since attention would else have to look for the
	 * largest of a position each time.
	 */
	uint8_t *exps;
};

/* A task of attention: rows of one sequence, one KV head, segments [seg0, seg1). */
struct pfx_attn_unit {
	uint32_t seq, row, n_rows; /* row: in the batch */
	uint32_t seg0, seg1;
	uint32_t part; /* of a merge: first partial result, of segment 0 */
	/*
	 * UINT32_MAX: all segments are done here. Else there is one, for the rows of members[member + i]:
	 * of one sequence, or of several that have its blocks in common.
	 */
	uint32_t member;
};

/* A row of a unit of one segment, and where its partial result goes. */
struct pfx_attn_member {
	uint32_t row, part;
};

/* What begin works out for a batch. */
struct pfx_plan {
	uint32_t *pos, *seq;     /* [n_rows] absolute position, sequence */
	float *cs;               /* [n_rows][n_dims]: cosines, then sines */
	uint32_t rows_cap, dims_cap; /* of these; grown on need, as the lists are */
	uint32_t n_units, n_parts, units_cap;
	struct pfx_attn_unit *units;
	/* Rows whose segments are computed apart, for the merge. */
	uint32_t n_merges, merges_cap;
	struct pfx_attn_unit *merges;
	uint32_t n_members, members_cap;
	struct pfx_attn_member *members;
	uint32_t *leader, *next; /* [n_merges], while segments are planned */
	uint32_t leaders_cap;
	uint32_t per_segment;    /* blocks of a segment for which that was done; 0: not yet */
};

struct pfx_device {
	const struct pfx_variant *variant;
	struct pfx_pool *pool;
	uint32_t n_threads;
	int fast; /* activations of 8 bits */
	const struct pfx_batch *batch; /* between begin and sync */
	struct pfx_rope rope;
	struct pfx_plan plan;
	/* Grown on need, kept until close. */
	struct pfx_quant quant;
	size_t quant_cap; /* bytes behind quant.v, which both share */
	uint8_t *scratch; /* [n_threads][scratch_each] */
	size_t scratch_each;
	float *partials;
	size_t partials_cap;
};

/* Memory of at least `bytes` for each thread, 64-aligned; NULL when there is none. */
int pfx_scratch(struct pfx_device *dev, size_t bytes_each);

/* pack.c */
int pfx_cpu_weight_pack(struct pfx_device *dev, const struct pfx_weight_part *parts,
	uint32_t n_parts, uint32_t k, struct pfx_weight **out);
int pfx_cpu_vector_pack(struct pfx_device *dev, enum pfx_dtype type, const void *data, uint32_t n,
	struct pfx_weight **out);
void pfx_cpu_weight_free(struct pfx_device *dev, struct pfx_weight *w);
/* Row n as float32; the bits of pfx_dtype_widen. */
void pfx_unpack_row(const struct pfx_weight *w, uint32_t n, float *y);
/* One group of one output as integers and its scales, from the packed form. */
void pfx_unpack_group(const struct pfx_part *p, uint32_t n, uint32_t g, int8_t q[32],
	float scale[2], float *min);
float pfx_unpack_float(const struct pfx_part *p, uint32_t n, uint32_t k);

/* gemm.c */
int pfx_cpu_matmul(struct pfx_device *dev, const struct pfx_weight *w, const struct pfx_mem *x,
	uint32_t row0, uint32_t n_rows, const struct pfx_weight *bias, int add, struct pfx_mem *y);

/* kv.c */
size_t pfx_cpu_kv_block_bytes(const struct pfx_kv_shape *shape);
int pfx_cpu_kv_open(struct pfx_device *dev, const struct pfx_kv_shape *shape, uint32_t n_blocks,
	struct pfx_kv **out);
void pfx_cpu_kv_close(struct pfx_device *dev, struct pfx_kv *kv);
int pfx_cpu_kv_copy(struct pfx_device *dev, struct pfx_kv *kv, uint32_t dst, uint32_t src,
	uint32_t n);
int pfx_cpu_kv_read(struct pfx_device *dev, const struct pfx_kv *kv, uint32_t block, uint32_t n,
	void *dst);
void pfx_cpu_kv_trim(const struct pfx_kv *kv, void *block, uint32_t n);
int pfx_cpu_kv_write(struct pfx_device *dev, struct pfx_kv *kv, uint32_t block, const void *src);
/* Plane of K or V; exponents (uint8_t) or scales (f16) of its positions. */
enum pfx_kv_which { PFX_KV_K, PFX_KV_V };
void *pfx_kv_plane(const struct pfx_kv *kv, uint32_t block, uint32_t layer, enum pfx_kv_which which,
	uint32_t head);
void *pfx_kv_marks(const struct pfx_kv *kv, uint32_t block, uint32_t layer, enum pfx_kv_which which,
	uint32_t head);

/* attn.c */
int pfx_plan_batch(struct pfx_device *dev, const struct pfx_batch *batch);
void pfx_plan_free(struct pfx_plan *plan);
int pfx_cpu_rope_kv(struct pfx_device *dev, struct pfx_kv *kv, uint32_t layer, uint32_t n_heads,
	const struct pfx_weight *q_norm, const struct pfx_weight *k_norm, float eps,
	struct pfx_mem *qkv);
int pfx_cpu_attention(struct pfx_device *dev, const struct pfx_kv *kv, uint32_t layer,
	uint32_t n_heads, float scale, const struct pfx_mem *qkv, struct pfx_mem *y);

#endif
