#ifndef PFX_TESTS_GGUF_WALK_H
#define PFX_TESTS_GGUF_WALK_H

/* Touches all that an open GGUF file hands out, for sanitizers to watch. */

#include <string.h>

#include "engine/gguf.h"

static inline uint64_t pfx_gguf_walk_bytes(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint64_t sum = 0;

	for (size_t i = 0; i < n; i++) {
		sum += b[i];
	}
	return sum;
}

static inline uint64_t pfx_gguf_walk_key(const struct pfx_gguf *g, const char *key)
{
	char err[200];
	struct pfx_str str;
	const struct pfx_str *strs;
	const int32_t *i32s;
	const float *f32s;
	uint32_t u32, n;
	float f32;
	int b;
	uint64_t sum = 0;

	sum += pfx_gguf_u32(g, key, &u32, err, sizeof(err)) == 0;
	sum += pfx_gguf_f32(g, key, &f32, err, sizeof(err)) == 0;
	sum += pfx_gguf_bool(g, key, &b, NULL, 0) == 0;
	if (pfx_gguf_str(g, key, &str, err, sizeof(err)) == 0) {
		sum += pfx_gguf_walk_bytes(str.s, str.n);
	}
	if (pfx_gguf_strs(g, key, &strs, &n, err, sizeof(err)) == 0) {
		for (uint32_t i = 0; i < n; i++) {
			sum += pfx_gguf_walk_bytes(strs[i].s, strs[i].n);
		}
	}
	if (pfx_gguf_i32s(g, key, &i32s, &n, err, sizeof(err)) == 0) {
		sum += pfx_gguf_walk_bytes(i32s, n * sizeof(*i32s));
	}
	if (pfx_gguf_f32s(g, key, &f32s, &n, err, sizeof(err)) == 0) {
		sum += pfx_gguf_walk_bytes(f32s, n * sizeof(*f32s));
	}
	return sum;
}

static inline uint64_t pfx_gguf_walk(const struct pfx_gguf *g)
{
	static const char *const keys[] = {
		"general.architecture", "general.alignment", "tokenizer.ggml.tokens",
		"tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
		"tokenizer.ggml.add_bos_token", "llama.rope.freq_base", "absent",
	};
	uint64_t sum = 0;
	uint8_t digest[16];

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		sum += pfx_gguf_walk_key(g, keys[i]);
	}
	for (uint32_t i = 0; i < pfx_gguf_n_tensors(g); i++) {
		const struct pfx_gguf_tensor *t = pfx_gguf_tensor_at(g, i);
		sum += pfx_gguf_walk_bytes(t->name.s, t->name.n);
		sum += pfx_gguf_walk_bytes(t->data, t->bytes);
	}
	sum += pfx_gguf_tensor(g, "token_embd.weight") != NULL;
	pfx_gguf_digest(g, digest);
	return sum + digest[0];
}

#endif
