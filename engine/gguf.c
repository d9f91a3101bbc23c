#include "engine/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "engine/gguf_priv.h"

const struct pfx_gguf_type_info pfx_gguf_types[VT_COUNT] = {
	[VT_U8] = { "u8", 1 }, [VT_I8] = { "i8", 1 }, [VT_U16] = { "u16", 2 },
	[VT_I16] = { "i16", 2 }, [VT_U32] = { "u32", 4 }, [VT_I32] = { "i32", 4 },
	[VT_F32] = { "f32", 4 }, [VT_BOOL] = { "bool", 1 }, [VT_STRING] = { "string", 0 },
	[VT_ARRAY] = { "array", 0 }, [VT_U64] = { "u64", 8 }, [VT_I64] = { "i64", 8 },
	[VT_F64] = { "f64", 8 },
};

/* Far above any real file (a few dozen keys, some thousand tensors). They bound what the
 * tables cost before their contents have been read. */
#define KEYS_MAX (1u << 16)
#define TENSORS_MAX (1u << 17)
#define KEY_BYTES_MAX 65535u   /* the format's own bounds */
#define TENSOR_NAME_MAX 64u
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX (1u << 20)

/* Where parsing stands, and what it is at, for messages. */
struct reader {
	struct pfx_gguf *g;
	const uint8_t *p, *end;
	char what[160];
	char *err;
	size_t errlen;
};

/* --- names ----------------------------------------------------------------------- */

struct pfx_shown pfx_gguf_show(struct pfx_str name)
{
	struct pfx_shown out;
	size_t n = name.n < 64 ? name.n : 64, i;

	for (i = 0; i < n; i++) {
		out.s[i] = name.s[i] >= 0x20 && name.s[i] < 0x7f ? name.s[i] : '?';
	}
	strcpy(out.s + i, name.n > 64 ? "..." : "");
	return out;
}

static struct pfx_str name_at(const struct pfx_name_index *ix, uint32_t record)
{
	struct pfx_str name;

	memcpy(&name, ix->records + record * ix->stride, sizeof(name));
	return name;
}

static int index_open(struct pfx_name_index *ix, uint32_t n, const void *records, size_t stride)
{
	uint32_t slots = 8;

	while (slots < 2 * n) {
		slots *= 2;
	}
	ix->slots = pfx_calloc(slots, sizeof(*ix->slots));
	ix->mask = slots - 1;
	ix->records = records;
	ix->stride = stride;
	ix->seed = pfx_rng_entropy(); /* a file cannot choose names that collide */
	return ix->slots != NULL ? 0 : -ENOMEM;
}

uint32_t *pfx_name_slot(const struct pfx_name_index *ix, struct pfx_str name)
{
	uint32_t at = (uint32_t)XXH3_64bits_withSeed(name.s, name.n, ix->seed) & ix->mask;

	for (; ix->slots[at] != 0; at = (at + 1) & ix->mask) {
		struct pfx_str have = name_at(ix, ix->slots[at] - 1);
		if (have.n == name.n && memcmp(have.s, name.s, name.n) == 0) {
			break;
		}
	}
	return &ix->slots[at];
}

/* -EEXIST when a record of that name is there already. */
static int index_add(struct pfx_name_index *ix, uint32_t record)
{
	uint32_t *slot = pfx_name_slot(ix, name_at(ix, record));

	if (*slot != 0) {
		return -EEXIST;
	}
	*slot = record + 1;
	return 0;
}

/* --- reading --------------------------------------------------------------------- */

static int fail_short(struct reader *r, const char *wanted)
{
	return pfx_fail(PFX_E_TRUNCATED, r->err, r->errlen,
		"%s: file ends at byte %zu inside %s, where %s was expected", r->g->path,
		r->g->size, r->what, wanted);
}

static size_t left(const struct reader *r)
{
	return (size_t)(r->end - r->p);
}

static int take_u32(struct reader *r, uint32_t *out, const char *wanted)
{
	if (left(r) < sizeof(*out)) {
		return fail_short(r, wanted);
	}
	memcpy(out, r->p, sizeof(*out));
	r->p += sizeof(*out);
	return 0;
}

static int take_u64(struct reader *r, uint64_t *out, const char *wanted)
{
	if (left(r) < sizeof(*out)) {
		return fail_short(r, wanted);
	}
	memcpy(out, r->p, sizeof(*out));
	r->p += sizeof(*out);
	return 0;
}

static int take_string(struct reader *r, struct pfx_str *out)
{
	uint64_t n = 0;
	int rc = take_u64(r, &n, "the length of a string");

	if (rc != 0) {
		return rc;
	}
	if (n > left(r)) {
		return pfx_fail(PFX_E_TRUNCATED, r->err, r->errlen,
			"%s: %s has a string of %" PRIu64
			" bytes, but only %zu are left in the file",
			r->g->path, r->what, n, left(r));
	}
	*out = (struct pfx_str){ (const char *)r->p, (size_t)n };
	r->p += n;
	return 0;
}

/* A key or a tensor's name: a string of 1..max bytes. */
static int take_name(struct reader *r, uint32_t max, struct pfx_str *out)
{
	int rc = take_string(r, out);

	if (rc == 0 && (out->n == 0 || out->n > max)) {
		rc = pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: %s has a name of %zu bytes, expected 1 to %u", r->g->path, r->what,
			out->n, max);
	}
	return rc;
}

static int check_bools(struct reader *r, const uint8_t *p, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		if (p[i] > 1) {
			return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
				"%s: %s holds %u as a bool, expected 0 or 1", r->g->path, r->what,
				p[i]);
		}
	}
	return 0;
}

static void read_scalar(struct pfx_gguf_entry *e, const uint8_t *p)
{
	union {
		uint8_t u8; int8_t i8; uint16_t u16; int16_t i16; uint32_t u32; int32_t i32;
		uint64_t u64; int64_t i64; float f32; double f64;
	} v;

	memcpy(&v, p, pfx_gguf_types[e->type].bytes);
	switch (e->type) {
	case VT_U8: e->scalar.u = v.u8; break;
	case VT_I8: e->scalar.i = v.i8; break;
	case VT_U16: e->scalar.u = v.u16; break;
	case VT_I16: e->scalar.i = v.i16; break;
	case VT_U32: e->scalar.u = v.u32; break;
	case VT_I32: e->scalar.i = v.i32; break;
	case VT_U64: e->scalar.u = v.u64; break;
	case VT_I64: e->scalar.i = v.i64; break;
	case VT_F32: e->scalar.f = (double)v.f32; break;
	case VT_F64: e->scalar.f = v.f64; break;
	case VT_BOOL: e->scalar.b = v.u8; break;
	case VT_STRING: case VT_ARRAY: case VT_COUNT: break;
	}
}

static int take_type(struct reader *r, enum pfx_gguf_type *out)
{
	uint32_t type = 0;
	int rc = take_u32(r, &type, "a value type");

	if (rc == 0 && type >= VT_COUNT) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: %s has value type %u, expected one of 0 to %d", r->g->path, r->what,
			type, VT_COUNT - 1);
	}
	*out = rc == 0 ? (enum pfx_gguf_type)type : VT_COUNT;
	return rc;
}

static int take_strings(struct reader *r, struct pfx_gguf_entry *e)
{
	struct pfx_str *v = pfx_calloc(e->n, sizeof(*v));

	e->array = v; /* freed with the entry */
	if (v == NULL) {
		return pfx_fail(
			-ENOMEM, r->err, r->errlen, "%s: no memory for %s", r->g->path, r->what);
	}
	for (uint32_t i = 0; i < e->n; i++) {
		int rc = take_string(r, &v[i]);
		if (rc != 0) {
			return rc;
		}
	}
	return 0;
}

/* Elements of a fixed size; those that are handed out later are copied to be aligned. */
static int take_numbers(struct reader *r, struct pfx_gguf_entry *e, uint32_t elem_bytes)
{
	const uint8_t *p = r->p;

	r->p += (size_t)e->n * elem_bytes; /* the caller saw that they are there */
	if (e->elem == VT_BOOL) {
		return check_bools(r, p, e->n);
	}
	if (e->elem != VT_U32 && e->elem != VT_I32 && e->elem != VT_F32) {
		return 0;
	}
	e->array = pfx_memdup(p, (size_t)e->n * elem_bytes);
	if (e->array == NULL) {
		return pfx_fail(
			-ENOMEM, r->err, r->errlen, "%s: no memory for %s", r->g->path, r->what);
	}
	return 0;
}

static int take_array(struct reader *r, struct pfx_gguf_entry *e)
{
	uint64_t n = 0;
	uint32_t elem_bytes;
	int rc = take_type(r, &e->elem);

	if (rc == 0) {
		rc = take_u64(r, &n, "the length of an array");
	}
	if (rc != 0) {
		return rc;
	}
	if (e->elem == VT_ARRAY) {
		return pfx_fail(PFX_E_UNSUPPORTED, r->err, r->errlen,
			"%s: %s is an array of arrays, expected an array of plain values",
			r->g->path, r->what);
	}
	/* A string takes at least the 8 bytes of its length. */
	elem_bytes = e->elem == VT_STRING ? 8 : pfx_gguf_types[e->elem].bytes;
	if (n > left(r) / elem_bytes || n > UINT32_MAX) {
		return pfx_fail(PFX_E_TRUNCATED, r->err, r->errlen,
			"%s: %s is an array of %" PRIu64
			" elements of type %s, but only %zu bytes are left in the file",
			r->g->path, r->what, n, pfx_gguf_types[e->elem].name, left(r));
	}
	e->n = (uint32_t)n;
	return e->elem == VT_STRING ? take_strings(r, e) : take_numbers(r, e, elem_bytes);
}

static int take_entry(struct reader *r, struct pfx_gguf_entry *e)
{
	int rc = take_name(r, KEY_BYTES_MAX, &e->key);

	if (rc != 0) {
		return rc;
	}
	snprintf(r->what, sizeof(r->what), "key '%s'", pfx_gguf_show(e->key).s);
	rc = take_type(r, &e->type);
	if (rc != 0) {
		return rc;
	}
	if (e->type == VT_STRING) {
		return take_string(r, &e->str);
	}
	if (e->type == VT_ARRAY) {
		return take_array(r, e);
	}
	if (left(r) < pfx_gguf_types[e->type].bytes) {
		return fail_short(r, "a value");
	}
	read_scalar(e, r->p);
	rc = e->type == VT_BOOL ? check_bools(r, r->p, 1) : 0;
	r->p += pfx_gguf_types[e->type].bytes;
	return rc;
}

static int parse_metadata(struct reader *r)
{
	struct pfx_gguf *g = r->g;

	for (uint32_t i = 0; i < g->n_keys; i++) {
		snprintf(r->what, sizeof(r->what), "metadata key %u of %u", i + 1, g->n_keys);
		int rc = take_entry(r, &g->entries[i]);
		if (rc != 0) {
			return rc;
		}
		if (index_add(&g->by_key, i) != 0) {
			return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
				"%s: %s stands in the file twice, expected once", g->path, r->what);
		}
	}
	return 0;
}

/* --- tensors --------------------------------------------------------------------- */

static int take_alignment(struct reader *r)
{
	uint32_t v = ALIGNMENT_DEFAULT;
	static const char key[] = "general.alignment";
	int rc = pfx_gguf_u32(r->g, key, &v, NULL, 0);

	if (rc != 0 && rc != -ENOENT) {
		return pfx_gguf_u32(r->g, key, &v, r->err, r->errlen);
	}
	if (v < 8 || v > ALIGNMENT_MAX || (v & (v - 1)) != 0) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: key 'general.alignment' is %u, expected a power of two from 8 to %u",
			r->g->path, v, ALIGNMENT_MAX);
	}
	r->g->alignment = v;
	return 0;
}

static int take_dims(struct reader *r, struct pfx_gguf_tensor *t)
{
	int rc = take_u32(r, &t->n_dims, "its number of dimensions");

	if (rc != 0) {
		return rc;
	}
	if (t->n_dims < 1 || t->n_dims > 4) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: %s has %u dimensions, expected 1 to 4", r->g->path, r->what,
			t->n_dims);
	}
	for (uint32_t i = 0; i < 4; i++) {
		t->dims[i] = 1;
		rc = i < t->n_dims ? take_u64(r, &t->dims[i], "its dimensions") : 0;
		if (rc != 0) {
			return rc;
		}
		if (t->dims[i] == 0) {
			return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
				"%s: %s has dimension %u of size 0, expected at least 1",
				r->g->path, r->what, i);
		}
	}
	return 0;
}

/* Type and dimensions to bytes. */
static int size_tensor(struct reader *r, struct pfx_gguf_tensor *t, uint32_t type)
{
	const struct pfx_dtype_info *info = pfx_dtype_info(type);
	uint64_t bytes;

	if (info == NULL) {
		return pfx_fail(PFX_E_UNSUPPORTED, r->err, r->errlen,
			"%s: %s has type %u, expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
			"Q5_1, Q4_K, Q5_K or Q6_K",
			r->g->path, r->what, type);
	}
	t->type = (enum pfx_dtype)type;
	if (t->dims[0] % info->block_elems != 0) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: %s is %s with rows of %" PRIu64 " elements, expected a multiple of %u",
			r->g->path, r->what, info->name, t->dims[0], info->block_elems);
	}
	bytes = t->dims[0] / info->block_elems;
	if (__builtin_mul_overflow(bytes, info->block_bytes, &bytes) ||
		__builtin_mul_overflow(bytes, t->dims[1], &bytes) ||
		__builtin_mul_overflow(bytes, t->dims[2], &bytes) ||
		__builtin_mul_overflow(bytes, t->dims[3], &bytes) || bytes > SIZE_MAX) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: %s has dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
			", expected a size that fits into the file",
			r->g->path, r->what, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
	}
	t->bytes = (size_t)bytes;
	return 0;
}

/* Leaves the offset, relative to the data, in *offset: where data begins is known later. */
static int take_tensor(struct reader *r, struct pfx_gguf_tensor *t, uint64_t *offset)
{
	uint32_t type = 0;
	int rc = take_name(r, TENSOR_NAME_MAX, &t->name);

	if (rc != 0) {
		return rc;
	}
	snprintf(r->what, sizeof(r->what), "tensor '%s'", pfx_gguf_show(t->name).s);
	rc = take_dims(r, t);
	if (rc == 0) {
		rc = take_u32(r, &type, "its type");
	}
	if (rc == 0) {
		rc = size_tensor(r, t, type);
	}
	if (rc == 0) {
		rc = take_u64(r, offset, "its offset");
	}
	if (rc == 0 && *offset % r->g->alignment != 0) {
		rc = pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: %s has offset %" PRIu64 ", expected a multiple of the alignment %u",
			r->g->path, r->what, *offset, r->g->alignment);
	}
	return rc;
}

static int place_tensors(struct reader *r, const uint64_t *offsets)
{
	struct pfx_gguf *g = r->g;
	size_t start = (size_t)(r->p - g->map);
	size_t pad = (g->alignment - start % g->alignment) % g->alignment;
	/* A file without tensors may end without the padding. */
	size_t room = left(r) > pad ? left(r) - pad : 0;

	for (uint32_t i = 0; i < g->n_tensors; i++) {
		struct pfx_gguf_tensor *t = &g->tensors[i];
		if (offsets[i] > room || t->bytes > room - offsets[i]) {
			return pfx_fail(PFX_E_TRUNCATED, r->err, r->errlen,
				"%s: tensor '%s' takes %zu bytes from offset %" PRIu64
				", expected to end within the %zu bytes of tensor data in the file",
				g->path, pfx_gguf_show(t->name).s, t->bytes, offsets[i], room);
		}
		t->data = r->p + pad + offsets[i];
	}
	return 0;
}

static int parse_tensors(struct reader *r)
{
	struct pfx_gguf *g = r->g;
	uint64_t *offsets = pfx_calloc(g->n_tensors, sizeof(*offsets));
	int rc = 0;

	if (offsets == NULL) {
		return pfx_fail(
			-ENOMEM, r->err, r->errlen, "%s: no memory for its tensors", g->path);
	}
	for (uint32_t i = 0; i < g->n_tensors && rc == 0; i++) {
		snprintf(r->what, sizeof(r->what), "tensor %u of %u", i + 1, g->n_tensors);
		rc = take_tensor(r, &g->tensors[i], &offsets[i]);
		if (rc == 0 && index_add(&g->by_tensor, i) != 0) {
			rc = pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
				"%s: %s stands in the file twice, expected once", g->path, r->what);
		}
	}
	if (rc == 0) {
		rc = place_tensors(r, offsets);
	}
	pfx_free(offsets);
	return rc;
}

/* --- the file -------------------------------------------------------------------- */

static int check_version(struct reader *r, uint32_t version)
{
	const char *path = r->g->path;

	if ((version & 0xffff) == 0 && version != 0) {
		return pfx_fail(PFX_E_UNSUPPORTED, r->err, r->errlen,
			"%s: is a big-endian GGUF file, expected a little-endian one", path);
	}
	if (version != 2 && version != 3) {
		return pfx_fail(PFX_E_UNSUPPORTED, r->err, r->errlen,
			"%s: has GGUF version %u, expected 2 or 3", path, version);
	}
	return 0;
}

/* A count is believed only as far as the file has room for that many records. */
static int check_count(struct reader *r, uint64_t n, uint32_t max, uint32_t bytes_min,
	const char *what)
{
	if (n > max || n > left(r) / bytes_min) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: header says %" PRIu64 " %s, expected at most %" PRIu64
			" in a file of %zu bytes", r->g->path, n, what,
			left(r) / bytes_min < max ? (uint64_t)(left(r) / bytes_min) : (uint64_t)max,
			r->g->size);
	}
	return 0;
}

static int parse_header(struct reader *r)
{
	struct pfx_gguf *g = r->g;
	uint64_t n_tensors = 0, n_keys = 0;
	int rc;

	snprintf(r->what, sizeof(r->what), "the header");
	if (left(r) < 4 || memcmp(r->p, "GGUF", 4) != 0) {
		return pfx_fail(PFX_E_FORMAT, r->err, r->errlen,
			"%s: is no GGUF file, expected it to begin with the letters GGUF", g->path);
	}
	r->p += 4;
	rc = take_u32(r, &g->version, "a version");
	if (rc == 0) {
		rc = check_version(r, g->version);
	}
	if (rc == 0) {
		rc = take_u64(r, &n_tensors, "the number of tensors");
	}
	if (rc == 0) {
		rc = take_u64(r, &n_keys, "the number of keys");
	}
	/* Smallest key: length, one byte, type, one byte. Smallest tensor: length, one byte,
	 * number of dimensions, one dimension, type, offset. */
	if (rc == 0) {
		rc = check_count(r, n_keys, KEYS_MAX, 8 + 1 + 4 + 1, "keys");
	}
	if (rc == 0) {
		rc = check_count(r, n_tensors, TENSORS_MAX, 8 + 1 + 4 + 8 + 4 + 8, "tensors");
	}
	if (rc == 0) {
		g->n_keys = (uint32_t)n_keys;
		g->n_tensors = (uint32_t)n_tensors;
	}
	return rc;
}

static int parse(struct reader *r)
{
	struct pfx_gguf *g = r->g;
	int rc = parse_header(r);

	if (rc != 0) {
		return rc;
	}
	g->entries = pfx_calloc(g->n_keys, sizeof(*g->entries));
	g->tensors = pfx_calloc(g->n_tensors, sizeof(*g->tensors));
	if (g->entries == NULL || g->tensors == NULL ||
		index_open(&g->by_key, g->n_keys, g->entries, sizeof(*g->entries)) != 0 ||
		index_open(&g->by_tensor, g->n_tensors, g->tensors, sizeof(*g->tensors)) != 0) {
		return pfx_fail(
			-ENOMEM, r->err, r->errlen, "%s: no memory for its tables", g->path);
	}
	rc = parse_metadata(r);
	if (rc == 0) {
		rc = take_alignment(r);
	}
	return rc == 0 ? parse_tensors(r) : rc;
}

/* O_NONBLOCK: a FIFO without a writer must not hang the open; it is refused below. */
static int map_file(struct pfx_gguf *g, char *err, size_t errlen)
{
	struct stat st;
	void *map;
	int fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc = 0;

	if (fd < 0 || fstat(fd, &st) < 0) {
		rc = pfx_fail(-errno, err, errlen, "%s: %s", g->path, strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		rc = pfx_fail(PFX_E_FORMAT, err, errlen, "%s: is %s, expected a regular file",
			g->path, S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
	} else if (st.st_size == 0) {
		rc = pfx_fail(PFX_E_TRUNCATED, err, errlen, "%s: is empty, expected a GGUF file",
			g->path);
	} else {
		map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (map == MAP_FAILED) {
			rc = pfx_fail(-errno, err, errlen, "%s: cannot be mapped: %s", g->path,
				strerror(errno));
		} else {
			g->map = map;
			g->size = (size_t)st.st_size;
		}
	}
	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

static struct pfx_gguf_digest_once *digest_new(void)
{
	struct pfx_gguf_digest_once *d = pfx_calloc(1, sizeof(*d));

	if (d != NULL) {
		pthread_mutex_init(&d->lock, NULL);
	}
	return d;
}

int pfx_gguf_open(struct pfx_gguf **out, const char *path, char *err, size_t errlen)
{
	struct pfx_gguf *g = pfx_calloc(1, sizeof(*g));
	struct reader r = { .g = g, .err = err, .errlen = errlen };
	int rc;

	*out = NULL;
	if (g == NULL || (g->path = pfx_strdup(path)) == NULL ||
		(g->digest = digest_new()) == NULL) {
		rc = pfx_fail(-ENOMEM, err, errlen, "%s: no memory", path);
		goto fail;
	}
	rc = map_file(g, err, errlen);
	if (rc != 0) {
		goto fail;
	}
	r.p = g->map;
	r.end = g->map + g->size;
	rc = parse(&r);
	if (rc != 0) {
		goto fail;
	}
	*out = g;
	return 0;
fail:
	pfx_gguf_close(g);
	return rc;
}

void pfx_gguf_close(struct pfx_gguf *g)
{
	if (g == NULL) {
		return;
	}
	for (uint32_t i = 0; g->entries != NULL && i < g->n_keys; i++) {
		pfx_free(g->entries[i].array);
	}
	pfx_free(g->entries);
	pfx_free(g->tensors);
	pfx_free(g->by_key.slots);
	pfx_free(g->by_tensor.slots);
	if (g->digest != NULL) {
		pthread_mutex_destroy(&g->digest->lock);
		pfx_free(g->digest);
	}
	if (g->map != NULL) {
		munmap((void *)g->map, g->size);
	}
	pfx_free(g->path);
	pfx_free(g);
}

const char *pfx_gguf_path(const struct pfx_gguf *g)
{
	return g->path;
}

void pfx_gguf_digest(const struct pfx_gguf *g, uint8_t out[16])
{
	struct pfx_gguf_digest_once *d = g->digest;

	pthread_mutex_lock(&d->lock);
	if (!d->known) {
		XXH128_canonical_t canon;
		XXH128_canonicalFromHash(&canon, XXH3_128bits(g->map, g->size));
		memcpy(d->bytes, canon.digest, sizeof(d->bytes));
		d->known = 1;
	}
	memcpy(out, d->bytes, sizeof(d->bytes));
	pthread_mutex_unlock(&d->lock);
}
