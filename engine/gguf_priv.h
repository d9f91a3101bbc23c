#ifndef PFX_ENGINE_GGUF_PRIV_H
#define PFX_ENGINE_GGUF_PRIV_H

/* What gguf.c (reading a file) and gguf_lookup.c (answering questions about it) share. */

#include <pthread.h>

#include "engine/gguf.h"

/* The format's own numbers for the type of a metadata value. */
enum pfx_gguf_type {
	VT_U8, VT_I8, VT_U16, VT_I16, VT_U32, VT_I32, VT_F32, VT_BOOL, VT_STRING, VT_ARRAY,
	VT_U64, VT_I64, VT_F64, VT_COUNT
};

struct pfx_gguf_type_info {
	const char *name;
	uint32_t bytes; /* 0: of no fixed size */
};
extern const struct pfx_gguf_type_info pfx_gguf_types[VT_COUNT];

struct pfx_gguf_entry {
	struct pfx_str key; /* first, so that an index can look into it */
	enum pfx_gguf_type type, elem;
	uint32_t n;         /* elements of an array */
	struct pfx_str str;
	union {
		uint64_t u;
		int64_t i;
		double f;
		int b;
	} scalar;
	/* Arrays of strings, u32, i32 and f32 as aligned copies; NULL for other elements. */
	void *array;
};

/* Open addressing over names that stand first in records of one size. */
struct pfx_name_index {
	uint32_t *slots; /* record number + 1; 0 is empty */
	uint32_t mask;
	const char *records;
	size_t stride;
	uint64_t seed;
};

struct pfx_gguf_digest_once {
	pthread_mutex_t lock;
	int known;
	uint8_t bytes[16];
};

struct pfx_gguf {
	char *path;
	const uint8_t *map;
	size_t size;
	uint32_t version, alignment;
	uint32_t n_keys, n_tensors;
	struct pfx_gguf_entry *entries;
	struct pfx_gguf_tensor *tensors;
	struct pfx_name_index by_key, by_tensor;
	struct pfx_gguf_digest_once *digest;
};

/* A name out of a file, fit for a message: printable and of bounded length. */
struct pfx_shown {
	char s[72];
};
struct pfx_shown pfx_gguf_show(struct pfx_str name);

/* The slot that holds the name, or the empty one where it would go. */
uint32_t *pfx_name_slot(const struct pfx_name_index *ix, struct pfx_str name);

#endif
