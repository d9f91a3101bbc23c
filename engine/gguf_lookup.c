/* Metadata and tensors by name, once a file is open. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "engine/gguf_priv.h"

static const struct pfx_gguf_entry *find(const struct pfx_gguf *g, const char *key, char *err,
	size_t errlen)
{
	uint32_t slot = *pfx_name_slot(&g->by_key, (struct pfx_str){ key, strlen(key) });

	if (slot == 0) {
		pfx_fail(-ENOENT, err, errlen, "%s: key '%s' is missing", g->path, key);
		return NULL;
	}
	return &g->entries[slot - 1];
}

static int wrong_type(const struct pfx_gguf *g, const struct pfx_gguf_entry *e, const char *wanted,
	char *err, size_t errlen)
{
	int array = e->type == VT_ARRAY;

	return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: key '%s' is %s%s, expected %s", g->path,
		pfx_gguf_show(e->key).s, array ? "an array of " : "of type ",
		pfx_gguf_types[array ? e->elem : e->type].name, wanted);
}

int pfx_gguf_u32(const struct pfx_gguf *g, const char *key, uint32_t *out, char *err, size_t errlen)
{
	const struct pfx_gguf_entry *e = find(g, key, err, errlen);
	uint64_t v;

	if (e == NULL) {
		return -ENOENT;
	}
	switch (e->type) {
	case VT_U8: case VT_U16: case VT_U32: case VT_U64:
		v = e->scalar.u;
		break;
	case VT_I8: case VT_I16: case VT_I32: case VT_I64:
		/* A negative one becomes too large below. */
		v = (uint64_t)e->scalar.i;
		break;
	default:
		return wrong_type(g, e, "an unsigned integer", err, errlen);
	}
	if (v > UINT32_MAX) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s' does not fit, expected an integer from 0 to %u", g->path, key,
			UINT32_MAX);
	}
	*out = (uint32_t)v;
	return 0;
}

int pfx_gguf_f32(const struct pfx_gguf *g, const char *key, float *out, char *err, size_t errlen)
{
	const struct pfx_gguf_entry *e = find(g, key, err, errlen);

	if (e == NULL) {
		return -ENOENT;
	}
	if (e->type != VT_F32 && e->type != VT_F64) {
		return wrong_type(g, e, "a floating-point number", err, errlen);
	}
	/* Narrowing what no float holds is undefined; NaN and infinity stay what they are. */
	if (e->scalar.f > 3.4e38 || e->scalar.f < -3.4e38) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: key '%s' does not fit, expected a finite float", g->path, key);
	}
	*out = (float)e->scalar.f;
	return 0;
}

int pfx_gguf_bool(const struct pfx_gguf *g, const char *key, int *out, char *err, size_t errlen)
{
	const struct pfx_gguf_entry *e = find(g, key, err, errlen);

	if (e == NULL) {
		return -ENOENT;
	}
	if (e->type != VT_BOOL) {
		return wrong_type(g, e, "a bool", err, errlen);
	}
	*out = e->scalar.b;
	return 0;
}

int pfx_gguf_str(const struct pfx_gguf *g, const char *key, struct pfx_str *out, char *err,
	size_t errlen)
{
	const struct pfx_gguf_entry *e = find(g, key, err, errlen);

	if (e == NULL) {
		return -ENOENT;
	}
	if (e->type != VT_STRING) {
		return wrong_type(g, e, "a string", err, errlen);
	}
	*out = e->str;
	return 0;
}

/* The array's copy when its elements are of one of the two types. */
static int find_array(const struct pfx_gguf *g, const char *key, enum pfx_gguf_type a,
	enum pfx_gguf_type b, const char *wanted, const struct pfx_gguf_entry **out, char *err,
	size_t errlen)
{
	const struct pfx_gguf_entry *e = find(g, key, err, errlen);

	if (e == NULL) {
		return -ENOENT;
	}
	if (e->type != VT_ARRAY || (e->elem != a && e->elem != b)) {
		return wrong_type(g, e, wanted, err, errlen);
	}
	*out = e;
	return 0;
}

int pfx_gguf_strs(const struct pfx_gguf *g, const char *key, const struct pfx_str **out,
	uint32_t *n, char *err, size_t errlen)
{
	const struct pfx_gguf_entry *e = NULL;
	int rc = find_array(g, key, VT_STRING, VT_STRING, "an array of strings", &e, err, errlen);

	if (rc == 0) {
		*out = e->array;
		*n = e->n;
	}
	return rc;
}

int pfx_gguf_i32s(const struct pfx_gguf *g, const char *key, const int32_t **out, uint32_t *n,
	char *err, size_t errlen)
{
	const struct pfx_gguf_entry *e = NULL;
	int rc = find_array(g, key, VT_I32, VT_U32, "an array of i32", &e, err, errlen);

	if (rc != 0) {
		return rc;
	}
	for (uint32_t i = 0; e->elem == VT_U32 && i < e->n; i++) {
		if (((const uint32_t *)e->array)[i] > INT32_MAX) {
			return pfx_fail(PFX_E_FORMAT, err, errlen,
				"%s: key '%s' has element %u out of range, expected i32", g->path,
				key, i);
		}
	}
	*out = e->array;
	*n = e->n;
	return 0;
}

int pfx_gguf_f32s(const struct pfx_gguf *g, const char *key, const float **out, uint32_t *n,
	char *err, size_t errlen)
{
	const struct pfx_gguf_entry *e = NULL;
	int rc = find_array(g, key, VT_F32, VT_F32, "an array of f32", &e, err, errlen);

	if (rc == 0) {
		*out = e->array;
		*n = e->n;
	}
	return rc;
}

const struct pfx_gguf_tensor *pfx_gguf_tensor(const struct pfx_gguf *g, const char *name)
{
	uint32_t slot = *pfx_name_slot(&g->by_tensor, (struct pfx_str){ name, strlen(name) });

	return slot != 0 ? &g->tensors[slot - 1] : NULL;
}

uint32_t pfx_gguf_n_tensors(const struct pfx_gguf *g)
{
	return g->n_tensors;
}

const struct pfx_gguf_tensor *pfx_gguf_tensor_at(const struct pfx_gguf *g, uint32_t i)
{
	return i < g->n_tensors ? &g->tensors[i] : NULL;
}
