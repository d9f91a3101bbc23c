#ifndef PFX_ENGINE_GGUF_H
#define PFX_ENGINE_GGUF_H

/*
 * A GGUF file (versions 2 and 3, little-endian), mapped read-only. Everything is checked
 * before it is handed out: counts, lengths, offsets, alignment, types, products of sizes,
 * names twice. Format: docs/gguf.md of the ggml project.
 *
 * Immutable once open, so any thread may read. Pointers are valid until close. Strings are
 * not ended by NUL and may hold any bytes.
 */

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct pfx_gguf;

/* err: one sentence naming the file, the key or tensor, and what was expected. */
int pfx_gguf_open(struct pfx_gguf **out, const char *path, char *err, size_t errlen);
void pfx_gguf_close(struct pfx_gguf *g); /* NULL is fine */

const char *pfx_gguf_path(const struct pfx_gguf *g);
/* XXH3-128 of the whole file, for a store's identity; computed on first call (slow). */
void pfx_gguf_digest(const struct pfx_gguf *g, uint8_t out[16]);

struct pfx_str {
	const char *s;
	size_t n;
};

/*
 * Metadata by key. 0; -ENOENT when the key is absent; PFX_E_FORMAT when it has another type
 * or does not fit (err then names file, key, wanted type). Any integer type that holds the
 * value serves for u32 and u64.
 */
int pfx_gguf_u32(const struct pfx_gguf *g, const char *key, uint32_t *out, char *err, size_t errlen);
int pfx_gguf_f32(const struct pfx_gguf *g, const char *key, float *out, char *err, size_t errlen);
int pfx_gguf_bool(const struct pfx_gguf *g, const char *key, int *out, char *err, size_t errlen);
int pfx_gguf_str(const struct pfx_gguf *g, const char *key, struct pfx_str *out, char *err,
	size_t errlen);
/* Arrays: *out borrows n elements. */
int pfx_gguf_strs(const struct pfx_gguf *g, const char *key, const struct pfx_str **out,
	uint32_t *n, char *err, size_t errlen);
int pfx_gguf_i32s(const struct pfx_gguf *g, const char *key, const int32_t **out, uint32_t *n,
	char *err, size_t errlen);
int pfx_gguf_f32s(const struct pfx_gguf *g, const char *key, const float **out, uint32_t *n,
	char *err, size_t errlen);

struct pfx_gguf_tensor {
	struct pfx_str name;
	enum pfx_dtype type;
	uint32_t n_dims;
	uint64_t dims[4]; /* dims[0] runs fastest: a matrix is [dims[1]][dims[0]] */
	const void *data;
	size_t bytes;
};

/* NULL when there is none of that name. */
const struct pfx_gguf_tensor *pfx_gguf_tensor(const struct pfx_gguf *g, const char *name);
uint32_t pfx_gguf_n_tensors(const struct pfx_gguf *g);
const struct pfx_gguf_tensor *pfx_gguf_tensor_at(const struct pfx_gguf *g, uint32_t i);

#endif
