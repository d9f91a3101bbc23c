#ifndef PFX_KERNELS_OPS_H
#define PFX_KERNELS_OPS_H

/*
 * The backend interface: what a transformer's forward pass asks of a device, as one const
 * table of C functions. Nothing above kernels/ knows which backend it talks to.
 *
 * Promise (design: "Exact"): each output element depends on its own row, the weights and
 * the KV that its position sees; never on how many rows share the batch, on where a prompt
 * was cut, on which blocks hold the KV, or on the number of threads. Same bits.
 *   - products reduce in one fixed order of K, whatever the number of rows;
 *   - attention is computed per segment of PFX_SEGMENT positions, cut at absolute
 *     multiples of it, and the segments of a row are merged in ascending order.
 *
 * All matrices are row-major float32 unless said otherwise; shapes stand in brackets.
 * Calls may be asynchronous: what one call writes a later call sees; the host sees it
 * after ->sync. One thread at a time may use a device, but for kv_read and kv_write. Results:
 * 0 or a negative code; a failed open leaves nothing to close. Handles are opaque and belong to their device; all
 * must be freed before ->close.
 */

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

#define PFX_SEGMENT 256u /* positions; a multiple of every block size */

struct pfx_device; /* an opened backend */
struct pfx_weight; /* a packed matrix or vector, read-only */
struct pfx_mem;    /* activations: device memory of a fixed size */
struct pfx_kv;     /* the arena of KV blocks */

struct pfx_device_opts {
	const char *kernels; /* "auto", "amx", "avx512", "avx2" or "reference"; NULL is auto */
	uint32_t n_threads;  /* 0: one per core that the process may use */
	int pin_threads;     /* each stays on a core of its own */
	/*
	 * What products with quantised weights make of an activation: "exact" (16 bits; NULL is this) or
	 * "fast" (8 bits, for speed at a small loss of quality).
	 */
	const char *activations;
};

struct pfx_device_info {
	const char *backend;    /* "cpu", "cuda" */
	const char *kernels;    /* "amx", "avx512", "avx2", "reference", "sm_90", ... */
	const char *activations; /* what products see of an activation: "int16" (exact), "int8" (fast), ... */
	uint32_t arithmetic;    /* raised with any change of bits; part of a store's identity */
	uint32_t n_threads;
};

/* A matrix may be given in parts stacked along N, each of its own type (q, k and v). */
struct pfx_weight_part {
	enum pfx_dtype type;
	uint32_t n;       /* rows of this part */
	const void *data; /* [n][k] in GGUF layout; borrowed until pack returns */
};

/* How K and V are kept. */
enum pfx_kv_type {
	PFX_KV_F16,
	PFX_KV_INT8, /* -127..127, an f16 scale for each position and KV head */
};

/*
 * Layout of a block, the same in every tier: all layers, K and V, for block_tokens
 * consecutive positions; one contiguous piece of block_bytes (asked of the device).
 */
struct pfx_kv_shape {
	uint32_t n_layers, n_kv_heads, head_dim;
	uint32_t block_tokens; /* a power of two, 1..PFX_SEGMENT */
	enum pfx_kv_type type; /* PFX_KV_INT8: head_dim is even */
};

/* One sequence's part of a batch: rows [first_row, first_row + n_rows). */
struct pfx_batch_seq {
	uint32_t first_row, n_rows;
	uint32_t pos0;       /* absolute position of the first row */
	uint32_t write_from; /* KV of positions below this exists already and is not written */
	uint32_t n_blocks;
	const uint32_t *blocks; /* block i holds positions [i*block_tokens, (i+1)*block_tokens) */
};

/* What one step runs. Borrowed from begin until the next begin or sync. */
struct pfx_batch {
	uint32_t n_rows, n_seqs, n_out;
	const uint32_t *tokens;   /* [n_rows] ids below the vocabulary */
	const struct pfx_batch_seq *seqs;
	const uint32_t *out_rows; /* [n_out] rows whose logits are wanted, ascending */
};

enum pfx_rope_kind {
	PFX_ROPE_PAIRS, /* dims (2i, 2i+1) turn together: Llama as GGUF stores it */
	PFX_ROPE_HALVES /* dims (i, i + n/2) turn together: Qwen, NeoX */
};

struct pfx_rope {
	enum pfx_rope_kind kind;
	uint32_t n_dims;       /* leading dims of a head that turn; even */
	const float *inv_freq; /* [n_dims/2] radians a position, scalings applied; borrowed */
	float magnitude;       /* cos and sin are multiplied by it (YaRN); else 1 */
};

enum pfx_act { PFX_ACT_SILU, PFX_ACT_GELU_TANH };

struct pfx_ops {
	const char *name; /* "cpu" */

	int (*open)(struct pfx_device **out, const struct pfx_device_opts *opts, char *err,
		size_t errlen);
	void (*close)(struct pfx_device *dev); /* NULL is fine, as for all frees below */
	void (*info)(const struct pfx_device *dev, struct pfx_device_info *out);
	/* The calling thread is the one that runs steps from now on. */
	void (*enter)(struct pfx_device *dev);

	/* Weights. Packing may take long; it uses all threads of the device. */
	int (*weight_pack)(struct pfx_device *dev, const struct pfx_weight_part *parts,
		uint32_t n_parts, uint32_t k, struct pfx_weight **out);
	/* A float32 vector (norms, biases): widened from any type. */
	int (*vector_pack)(struct pfx_device *dev, enum pfx_dtype type, const void *data,
		uint32_t n, struct pfx_weight **out);
	void (*weight_free)(struct pfx_device *dev, struct pfx_weight *w);
	size_t (*weight_bytes)(const struct pfx_weight *w);

	/* Activations. */
	int (*mem_alloc)(struct pfx_device *dev, size_t bytes, struct pfx_mem **out);
	void (*mem_free)(struct pfx_device *dev, struct pfx_mem *mem);
	int (*mem_write)(struct pfx_device *dev, struct pfx_mem *mem, size_t at, const void *src,
		size_t bytes);
	int (*mem_read)(struct pfx_device *dev, const struct pfx_mem *mem, size_t at, void *dst,
		size_t bytes); /* waits for what was asked before */

	/* KV arena: n_blocks blocks, touched on use only. */
	size_t (*kv_block_bytes)(const struct pfx_kv_shape *shape);
	int (*kv_open)(struct pfx_device *dev, const struct pfx_kv_shape *shape, uint32_t n_blocks,
		struct pfx_kv **out);
	void (*kv_close)(struct pfx_device *dev, struct pfx_kv *kv);
	/* Copies the first n positions of a block, all layers (copy-on-write). */
	int (*kv_copy)(struct pfx_device *dev, struct pfx_kv *kv, uint32_t dst, uint32_t src,
		uint32_t n);
	/*
	 * Blocks to and from host memory, block_bytes each; done when they return. One other thread
	 * may call them beside the one that runs steps: to write a block that no operation in flight
	 * touches, and to read the first n positions of any, if none writes those. What is behind
	 * them is not looked at and comes out as zeros.
	 */
	int (*kv_read)(struct pfx_device *dev, const struct pfx_kv *kv, uint32_t block, uint32_t n,
		void *dst);
	/* Clears all behind the first n positions of a block that lies in host memory. Any thread. */
	void (*kv_trim)(const struct pfx_kv *kv, void *block, uint32_t n);
	int (*kv_write)(struct pfx_device *dev, struct pfx_kv *kv, uint32_t block, const void *src);

	/* A step: begin, the operations below in any number, sync. */
	int (*begin)(struct pfx_device *dev, const struct pfx_batch *batch, const struct pfx_rope *rope);
	int (*sync)(struct pfx_device *dev);
	/* Nanoseconds that operations have waited for other threads since this was asked last. */
	uint64_t (*waited)(struct pfx_device *dev);

	/* y[n_rows][k] = scale * row tokens[i] of w[vocab][k] */
	int (*embed)(struct pfx_device *dev, const struct pfx_weight *w, float scale, struct pfx_mem *y);
	/*
	 * y[i][:] = x[i][:] * rsqrt(mean(x[i]^2) + eps) * w, over rows of the batch, or over its
	 * out_rows gathered in order when gather is set (y is then [n_out][dim]).
	 * Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
	 */
	int (*rmsnorm)(struct pfx_device *dev, const struct pfx_mem *x, const struct pfx_weight *w,
		float eps, uint32_t dim, int gather, struct pfx_mem *y);
	/*
	 * y[i][n] = x[row0 + i][k] w[n][k]^T (+ bias[n] when not NULL) (+ y[i] when add is set),
	 * i in [0, n_rows). Reads the weights once whatever n_rows.
	 */
	int (*matmul)(struct pfx_device *dev, const struct pfx_weight *w, const struct pfx_mem *x,
		uint32_t row0, uint32_t n_rows, const struct pfx_weight *bias, int add,
		struct pfx_mem *y);
	/*
	 * qkv[n_rows][(n_heads + 2 n_kv_heads) * head_dim]: q heads, then k, then v. Normalises
	 * q and k per head (when the norms are not NULL), turns both by RoPE in place, and
	 * writes k and v of positions >= write_from into the sequence's blocks of this layer.
	 */
	int (*rope_kv)(struct pfx_device *dev, struct pfx_kv *kv, uint32_t layer, uint32_t n_heads,
		const struct pfx_weight *q_norm, const struct pfx_weight *k_norm, float eps,
		struct pfx_mem *qkv);
	/*
	 * Causal attention of the batch's rows over their sequences' KV, positions 0..own.
	 * Query head h reads KV head h / (n_heads / n_kv_heads). Reads q out of qkv as above.
	 * y[n_rows][n_heads * head_dim] = softmax(scale * q k^T) v
	 */
	int (*attention)(struct pfx_device *dev, const struct pfx_kv *kv, uint32_t layer,
		uint32_t n_heads, float scale, const struct pfx_mem *qkv, struct pfx_mem *y);
	/* y[n_rows][n] = act(gu[i][0..n)) * gu[i][n..2n): gate first, then up */
	int (*gated)(struct pfx_device *dev, enum pfx_act act, const struct pfx_mem *gu, uint32_t n,
		struct pfx_mem *y);
};

/*
 * Picks a table: "cpu", "cuda" or "auto". NULL, with a sentence in err, for a name that is
 * unknown or was not built in; auto always finds one.
 */
const struct pfx_ops *pfx_ops_find(const char *backend, char *err, size_t errlen);

#endif
