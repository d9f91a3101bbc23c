#include "config.h"

#include "tests/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"

void pfx_gw_free(struct pfx_gw *w)
{
	pfx_buf_free(&w->keys);
	pfx_buf_free(&w->infos);
	pfx_buf_free(&w->data);
	memset(w, 0, sizeof(*w));
}

static void put(struct pfx_buf *b, const void *p, size_t n)
{
	pfx_buf_add(b, p, n);
	if (b->oom) {
		abort();
	}
}

static void put_u32(struct pfx_buf *b, uint32_t v)
{
	put(b, &v, sizeof(v));
}

static void put_u64(struct pfx_buf *b, uint64_t v)
{
	put(b, &v, sizeof(v));
}

static void put_str(struct pfx_buf *b, const char *s, size_t n)
{
	put_u64(b, n);
	put(b, s, n);
}

void pfx_gw_raw(struct pfx_gw *w, const char *key, uint32_t type, const void *bytes, size_t n)
{
	put_str(&w->keys, key, strlen(key));
	put_u32(&w->keys, type);
	put(&w->keys, bytes, n);
	w->n_keys++;
}

void pfx_gw_u32(struct pfx_gw *w, const char *key, uint32_t v)
{
	pfx_gw_raw(w, key, 4, &v, sizeof(v));
}

void pfx_gw_f32(struct pfx_gw *w, const char *key, float v)
{
	pfx_gw_raw(w, key, 6, &v, sizeof(v));
}

void pfx_gw_bool(struct pfx_gw *w, const char *key, int v)
{
	uint8_t byte = v != 0;

	pfx_gw_raw(w, key, 7, &byte, 1);
}

void pfx_gw_str(struct pfx_gw *w, const char *key, const char *v)
{
	pfx_gw_raw(w, key, 8, "", 0);
	put_str(&w->keys, v, strlen(v));
}

static void array(struct pfx_gw *w, const char *key, uint32_t elem, uint64_t n)
{
	pfx_gw_raw(w, key, 9, &elem, sizeof(elem));
	put_u64(&w->keys, n);
}

void pfx_gw_strs(struct pfx_gw *w, const char *key, const char *const *v, const size_t *lens,
	uint32_t n)
{
	array(w, key, 8, n);
	for (uint32_t i = 0; i < n; i++) {
		put_str(&w->keys, v[i], lens != NULL ? lens[i] : strlen(v[i]));
	}
}

void pfx_gw_i32s(struct pfx_gw *w, const char *key, const int32_t *v, uint32_t n)
{
	array(w, key, 5, n);
	put(&w->keys, v, n * sizeof(*v));
}

void pfx_gw_f32s(struct pfx_gw *w, const char *key, const float *v, uint32_t n)
{
	array(w, key, 6, n);
	put(&w->keys, v, n * sizeof(*v));
}

static void pad(struct pfx_buf *b, uint32_t alignment)
{
	while (b->len % alignment != 0) {
		put(b, "", 1);
	}
}

void pfx_gw_tensor(struct pfx_gw *w, const char *name, uint32_t type, uint32_t n_dims,
	const uint64_t *dims, const void *data, size_t bytes)
{
	pad(&w->data, w->alignment ? w->alignment : 32);
	put_str(&w->infos, name, strlen(name));
	put_u32(&w->infos, n_dims);
	for (uint32_t i = 0; i < n_dims; i++) {
		put_u64(&w->infos, dims[i]);
	}
	put_u32(&w->infos, type);
	put_u64(&w->infos, w->data.len);
	put(&w->data, data, bytes);
	w->n_tensors++;
}

void pfx_gw_image(const struct pfx_gw *w, struct pfx_buf *out)
{
	PFX_ASSERT(out->len == 0);
	put(out, "GGUF", 4);
	put_u32(out, 3);
	put_u64(out, w->n_tensors);
	put_u64(out, w->n_keys);
	put(out, w->keys.data, w->keys.len);
	put(out, w->infos.data, w->infos.len);
	pad(out, w->alignment ? w->alignment : 32);
	put(out, w->data.data, w->data.len);
}

int pfx_gw_save(const struct pfx_gw *w, const char *path)
{
	struct pfx_buf image = PFX_BUF_INIT;
	FILE *f = fopen(path, "wb");
	int rc = 0;

	if (f == NULL) {
		return -errno;
	}
	pfx_gw_image(w, &image);
	if (fwrite(image.data, 1, image.len, f) != image.len) {
		rc = -EIO;
	}
	if (fclose(f) != 0) {
		rc = -EIO;
	}
	pfx_buf_free(&image);
	return rc;
}

int pfx_memfile_open(struct pfx_memfile *f)
{
	f->fd = memfd_create("test", MFD_CLOEXEC);
	if (f->fd < 0) {
		return -errno;
	}
	snprintf(f->path, sizeof(f->path), "/proc/self/fd/%d", f->fd);
	return 0;
}

void pfx_memfile_close(struct pfx_memfile *f)
{
	close(f->fd);
	f->fd = -1;
}

int pfx_memfile_set(struct pfx_memfile *f, const void *bytes, size_t n)
{
	const char *p = bytes;

	if (ftruncate(f->fd, 0) != 0) {
		return -errno;
	}
	for (size_t at = 0; at < n;) {
		ssize_t got = pwrite(f->fd, p + at, n - at, (off_t)at);
		if (got <= 0) {
			return -EIO;
		}
		at += (size_t)got;
	}
	return 0;
}
