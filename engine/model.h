#ifndef PFX_ENGINE_MODEL_H
#define PFX_ENGINE_MODEL_H

/*
 * A Llama-type transformer (RMSNorm, RoPE, grouped-query attention, gated MLP, tied or
 * untied head), with Qwen2's biases and Qwen3's q/k norms as flags of the same forward pass,
 * written over kernels/ops.h. The model owns its device, its packed weights, its activations
 * and its KV arena. One thread at a time, but where it is said.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/gguf.h"
#include "kernels/ops.h"

struct pfx_model;
struct pfx_profile;

struct pfx_model_config {
	char architecture[32], name[128];
	uint32_t n_vocab, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff;
	uint32_t n_ctx_train;
	float rms_eps;
	int tied_head, qkv_bias, qk_norm;
};

struct pfx_model_opts {
	const char *backend;     /* auto, cpu, cuda */
	const char *kernels;     /* auto, avx512, avx2, reference */
	const char *activations; /* exact, fast; NULL: exact */
	uint32_t n_threads;
	int pin_threads;
	uint32_t block_tokens;
	enum pfx_kv_type kv_type;
	uint64_t kv_bytes_max;   /* n_blocks = this / bytes a block; at least one block must fit */
	uint32_t rows_max;       /* most rows of a batch */
	uint32_t seqs_max;       /* most sequences of a batch */
	uint32_t out_rows_max;   /* most rows of one pfx_model_logits */
	/* Called now and then while packing, 0..1; may be NULL. */
	void (*progress)(void *arg, double done);
	void *progress_arg;
};

/* g is borrowed during open only. err names file and tensor, key or option. */
int pfx_model_open(struct pfx_model **out, const struct pfx_gguf *g,
	const struct pfx_model_opts *opts, char *err, size_t errlen);
void pfx_model_close(struct pfx_model *m);

const struct pfx_model_config *pfx_model_config(const struct pfx_model *m);
void pfx_model_device(const struct pfx_model *m, struct pfx_device_info *out);
uint32_t pfx_model_n_blocks(const struct pfx_model *m);
size_t pfx_model_block_bytes(const struct pfx_model *m);
size_t pfx_model_weight_bytes(const struct pfx_model *m);

/* The calling thread is the one that runs batches from now on. */
void pfx_model_enter(struct pfx_model *m);

/*
 * Runs one batch and writes its KV. Same bits for a row whatever else is in the batch. The
 * batch's arrays are borrowed until the next call.
 */
int pfx_model_forward(struct pfx_model *m, const struct pfx_batch *batch);

/*
 * Logits of the last forward's out rows [first, first + n), n <= out_rows_max:
 * (*logits)[n][n_vocab], borrowed, valid until the next call. The head is run here, so only
 * for the rows that are asked for.
 */
int pfx_model_logits(struct pfx_model *m, uint32_t first, uint32_t n, const float **logits);

/* Where the time of forward and logits goes, between pfx_profile_begin and _end. The model's. */
struct pfx_profile *pfx_model_profile(struct pfx_model *m);

/* Copies the first n positions of block src into dst. */
int pfx_model_copy_block(struct pfx_model *m, uint32_t dst, uint32_t src, uint32_t n);

/*
 * A block to and from host memory, pfx_model_block_bytes(m) each. One other thread may do this
 * beside the one that runs batches: to write a block that no batch in flight touches, and to
 * read the first n positions of any; what is behind them comes out as zeros, unread.
 */
int pfx_model_read_block(struct pfx_model *m, uint32_t block, uint32_t n, void *dst);
/* Clears all behind the first n positions of a block in host memory. Any thread. */
void pfx_model_trim_block(const struct pfx_model *m, void *block, uint32_t n);
int pfx_model_write_block(struct pfx_model *m, uint32_t block, const void *src);

/*
 * Adds a description of all that decides the bytes of its KV beside the file's bytes: shapes,
 * RoPE, the layout of a block, device and arithmetic. Equal text, equal bits.
 */
void pfx_model_describe_kv(const struct pfx_model *m, struct pfx_buf *out);

#endif
