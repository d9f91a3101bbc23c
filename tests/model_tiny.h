#ifndef PFX_TESTS_MODEL_TINY_H
#define PFX_TESTS_MODEL_TINY_H

/*
 * A model file small enough for tests to make one on the fly: random weights, a byte-level
 * BPE tokenizer (3 control tokens, 256 bytes, some merges; any text can be encoded), a
 * ChatML template. Valid in all parts, and the same bytes for the same options everywhere.
 * Its text makes no sense; its arithmetic is that of a big one.
 *
 * Ids: 0 <|endoftext|>, 1 <|im_start|> (BOS), 2 <|im_end|> (EOS), 3 + b for byte b, then
 * the merges. PFX_TINY_VOCAB in all.
 */

#include <stdint.h>

#include "kernels/dtype.h"
#include "tests/gguf_write.h"

#define PFX_TINY_VOCAB 320u

enum pfx_tiny_rope {
	PFX_TINY_ROPE_PLAIN,
	PFX_TINY_ROPE_LINEAR,  /* factor 4 */
	PFX_TINY_ROPE_YARN,    /* factor 4, original context a quarter */
	PFX_TINY_ROPE_FACTORS, /* a tensor rope_freqs.weight, as Llama 3 has */
};

/* What is 0 or NULL takes the default named beside it. */
struct pfx_tiny_opts {
	const char *architecture;   /* llama */
	enum pfx_dtype type;        /* of the layers' matrices: F32 */
	enum pfx_dtype embed_type;  /* of token_embd and output: F32 */
	uint32_t n_layers;          /* 2 */
	uint32_t n_heads;           /* 4 */
	uint32_t n_kv_heads;        /* 2 */
	uint32_t head_dim;          /* 32 */
	uint32_t n_embd;            /* n_heads * head_dim; a multiple of 256 for K types */
	uint32_t n_ff;              /* 2 * n_embd */
	uint32_t n_ctx;             /* 2048 */
	uint32_t rope_dims;         /* head_dim */
	int untied;                 /* an output.weight of its own */
	int bias;                   /* llama: with q, k, v biases (qwen2 always has them) */
	enum pfx_tiny_rope rope;
	const char *chat_template;  /* ChatML */
	uint64_t seed;
};

/* Adds all keys and tensors to *w, which the caller has zeroed and frees. */
void pfx_tiny_write(struct pfx_gw *w, const struct pfx_tiny_opts *opts);
/* 0 or a negative errno. */
int pfx_tiny_save(const char *path, const struct pfx_tiny_opts *opts);

/*
 * Reads one "key=value" (keys: see make_tiny_model.c) into *opts; the string is cut at the
 * sign and must live as long as *opts. -1 when it cannot be read.
 */
int pfx_tiny_parse(struct pfx_tiny_opts *opts, char *arg);

#endif
