#ifndef PFX_TESTS_GGUF_WRITE_H
#define PFX_TESTS_GGUF_WRITE_H

/*
 * Writes GGUF files for tests: keys and tensors are appended in any order, then the whole
 * becomes one image. Ends the program when there is no memory. The image can be offered as
 * a path without touching a disk (struct pfx_memfile).
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct pfx_gw {
	struct pfx_buf keys, infos, data;
	uint64_t n_keys, n_tensors;
	uint32_t alignment; /* of tensor data; 32 when left at 0 */
};

void pfx_gw_free(struct pfx_gw *w);

void pfx_gw_u32(struct pfx_gw *w, const char *key, uint32_t v);
void pfx_gw_f32(struct pfx_gw *w, const char *key, float v);
void pfx_gw_bool(struct pfx_gw *w, const char *key, int v);
void pfx_gw_str(struct pfx_gw *w, const char *key, const char *v);
/* lens may be NULL for strings that end with a NUL. */
void pfx_gw_strs(struct pfx_gw *w, const char *key, const char *const *v, const size_t *lens,
	uint32_t n);
void pfx_gw_i32s(struct pfx_gw *w, const char *key, const int32_t *v, uint32_t n);
void pfx_gw_f32s(struct pfx_gw *w, const char *key, const float *v, uint32_t n);
/* Any value: its type number and its bytes as they stand in the file. */
void pfx_gw_raw(struct pfx_gw *w, const char *key, uint32_t type, const void *bytes, size_t n);

void pfx_gw_tensor(struct pfx_gw *w, const char *name, uint32_t type, uint32_t n_dims,
	const uint64_t *dims, const void *data, size_t bytes);

/* Appends the whole file to out. */
void pfx_gw_image(const struct pfx_gw *w, struct pfx_buf *out);
/* 0 or a negative errno. */
int pfx_gw_save(const struct pfx_gw *w, const char *path);

/* An anonymous file that has a path: reopened by it as often as one likes. */
struct pfx_memfile {
	int fd;
	char path[64];
};
int pfx_memfile_open(struct pfx_memfile *f);
void pfx_memfile_close(struct pfx_memfile *f);
/* The file's whole content becomes these bytes. */
int pfx_memfile_set(struct pfx_memfile *f, const void *bytes, size_t n);

#endif
