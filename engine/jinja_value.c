#include "engine/jinja_value.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/jinja_str.h"

static const struct pfx_jstr no_name = { .s = "" };

struct pfx_jval pfx_j_undef(enum pfx_jundef by, enum pfx_jtype of, const struct pfx_jstr *name)
{
	struct pfx_jval v = { .type = PFX_J_UNDEF, .undef = by, .undef_of = of };

	v.u.s = name == NULL ? &no_name : name;
	return v;
}

struct pfx_jval pfx_j_undef_hint(struct pfx_jctx *c, const char *hint)
{
	return pfx_j_undef(PFX_J_BY_HINT, PFX_J_ABSENT, pfx_j_text(c, hint).u.s);
}

static const char *object_name(enum pfx_jtype type, char buf[64])
{
	if (type == PFX_J_NONE) {
		return "None";
	}
	snprintf(buf, 64, "%s object", pfx_j_type_name((struct pfx_jval){ .type = type }));
	return buf;
}

void pfx_j_fail_undef(struct pfx_jctx *c, struct pfx_jval v)
{
	const struct pfx_jstr *s = v.u.s;
	int n = (int)(s->n < 200 ? s->n : 200);
	char buf[64];

	switch ((enum pfx_jundef)v.undef) {
	case PFX_J_BY_NAME:
		pfx_j_fail(c, "'%.*s' is undefined", n, s->s);
		break;
	case PFX_J_BY_ATTR:
		pfx_j_fail(c, "'%s' has no attribute '%.*s'", object_name(v.undef_of, buf), n, s->s);
		break;
	case PFX_J_BY_INDEX:
		pfx_j_fail(c, "%s has no element %.*s", object_name(v.undef_of, buf), n, s->s);
		break;
	case PFX_J_BY_HINT:
		pfx_j_fail(c, "%.*s", n, s->s);
		break;
	}
}

const char *pfx_j_type_name(struct pfx_jval v)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_ABSENT: return "absent";
	case PFX_J_UNDEF: return "Undefined";
	case PFX_J_NONE: return "NoneType";
	case PFX_J_BOOL: return "bool";
	case PFX_J_INT: return "int";
	case PFX_J_FLOAT: return "float";
	case PFX_J_STR: return "str";
	case PFX_J_LIST: return "list";
	case PFX_J_TUPLE: return "tuple";
	case PFX_J_DICT: return "dict";
	case PFX_J_RANGE: return "range";
	case PFX_J_VIEW: return v.u.l != NULL ? v.u.l->what : "dict_items";
	case PFX_J_ITER: return v.u.l != NULL ? v.u.l->what : "generator";
	case PFX_J_SPACE: return "Namespace";
	case PFX_J_MACRO: return "Macro";
	case PFX_J_FUNC: return "function";
	case PFX_J_METHOD: return "builtin_function_or_method";
	case PFX_J_LOOP: return "LoopContext";
	}
	return "object";
}

struct pfx_jval pfx_j_iter(struct pfx_jctx *c, enum pfx_jtype type, const char *what)
{
	struct pfx_jval v = pfx_j_none();
	struct pfx_jlist *l = pfx_j_alloc(c, sizeof(*l));

	if (l != NULL) {
		*l = (struct pfx_jlist){ .what = what };
		v.type = type;
		v.u.l = l;
	}
	return v;
}

struct pfx_jval pfx_j_list(struct pfx_jctx *c, enum pfx_jtype type)
{
	return pfx_j_iter(c, type, NULL);
}

static int is_list(struct pfx_jval v)
{
	return v.type == PFX_J_LIST || v.type == PFX_J_TUPLE || v.type == PFX_J_VIEW ||
		v.type == PFX_J_ITER;
}

void pfx_j_push(struct pfx_jctx *c, struct pfx_jval list, struct pfx_jval v)
{
	struct pfx_jlist *l;
	size_t cap;
	void *p;

	if (c->rc != 0 || !is_list(list)) {
		return;
	}
	l = list.u.l;
	if (l->n == l->cap) {
		cap = l->cap < 4 ? 4 : l->cap * 2;
		p = pfx_j_grow(c, l->v, l->cap * sizeof(*l->v), cap * sizeof(*l->v));
		if (p == NULL) {
			return;
		}
		l->v = p;
		l->cap = cap;
	}
	l->v[l->n++] = v;
}

struct pfx_jval pfx_j_pair(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b)
{
	struct pfx_jval v = pfx_j_list(c, PFX_J_TUPLE);
	struct pfx_jval *two = pfx_j_alloc(c, 2 * sizeof(*two));

	if (two != NULL) {
		two[0] = a;
		two[1] = b;
		v.u.l->v = two;
		v.u.l->n = v.u.l->cap = 2;
	}
	return v;
}

struct pfx_jval pfx_j_range(struct pfx_jctx *c, int64_t start, int64_t stop, int64_t step)
{
	struct pfx_jval v = pfx_j_none();
	struct pfx_jrange *r = pfx_j_alloc(c, sizeof(*r));
	uint64_t span = 0, stride;

	if (r == NULL) {
		return v;
	}
	stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
	if (step > 0 && start < stop) {
		span = (uint64_t)stop - (uint64_t)start;
	} else if (step < 0 && start > stop) {
		span = (uint64_t)start - (uint64_t)stop;
	}
	*r = (struct pfx_jrange){ start, stop, step, (size_t)(span / stride + (span % stride != 0)) };
	v.type = PFX_J_RANGE;
	v.u.r = r;
	return v;
}

struct pfx_jval pfx_j_range_at(const struct pfx_jrange *r, size_t i)
{
	return pfx_j_int((int64_t)((uint64_t)r->start + (uint64_t)r->step * (uint64_t)i));
}

/* ---- dicts ---- */

/* 0 when v cannot be hashed. Equal values have equal hashes (1, 1.0 and true are equal). */
static int hash_value(struct pfx_jctx *c, struct pfx_jval v, uint64_t *out)
{
	uint64_t one;
	double f;

	switch ((enum pfx_jtype)v.type) {
	case PFX_J_STR:
		pfx_j_step(c, v.u.s->n / 64);
		*out = XXH3_64bits_withSeed(v.u.s->s, v.u.s->n, c->seed);
		return 1;
	case PFX_J_BOOL:
	case PFX_J_INT:
	case PFX_J_FLOAT:
		f = v.type == PFX_J_FLOAT ? v.u.f : (double)v.u.i;
		f = f == 0 ? 0 : f;
		*out = XXH3_64bits_withSeed(&f, sizeof(f), c->seed + 1);
		return 1;
	case PFX_J_NONE:
	case PFX_J_UNDEF:
		*out = c->seed + v.type;
		return 1;
	case PFX_J_TUPLE:
		*out = c->seed + PFX_J_TUPLE;
		if (!pfx_j_enter(c)) {
			return 0;
		}
		for (size_t i = 0; i < v.u.l->n; i++) {
			if (!hash_value(c, v.u.l->v[i], &one)) {
				pfx_j_leave(c);
				return 0;
			}
			*out = XXH3_64bits_withSeed(&one, sizeof(one), *out);
		}
		pfx_j_leave(c);
		return 1;
	case PFX_J_LIST:
	case PFX_J_DICT:
		return 0;
	default:
		*out = XXH3_64bits_withSeed(&v.u, sizeof(v.u), c->seed + 2);
		return 1;
	}
}

struct pfx_jval pfx_j_dict(struct pfx_jctx *c, enum pfx_jtype type)
{
	struct pfx_jval v = pfx_j_none();
	struct pfx_jdict *d = pfx_j_alloc(c, sizeof(*d));

	if (d != NULL) {
		memset(d, 0, sizeof(*d));
		v.type = type;
		v.u.d = d;
	}
	return v;
}

#define LINEAR_MAX 8

static size_t find_entry(struct pfx_jctx *c, const struct pfx_jdict *d, struct pfx_jval key,
	uint64_t hash)
{
	size_t at, i;

	if (d->index == NULL) {
		for (i = 0; i < d->n; i++) {
			if (d->v[i].hash == hash && pfx_j_equal(c, d->v[i].key, key)) {
				return i;
			}
		}
		return SIZE_MAX;
	}
	for (at = hash & (d->n_index - 1); d->index[at] != 0; at = (at + 1) & (d->n_index - 1)) {
		i = d->index[at] - 1;
		if (d->v[i].hash == hash && pfx_j_equal(c, d->v[i].key, key)) {
			return i;
		}
		if (!pfx_j_step(c, 1)) {
			break;
		}
	}
	return SIZE_MAX;
}

struct pfx_jval *pfx_j_dict_find(struct pfx_jctx *c, const struct pfx_jdict *d, struct pfx_jval key)
{
	uint64_t hash;
	size_t i;

	if (c->rc != 0 || !hash_value(c, key, &hash)) {
		return NULL;
	}
	i = find_entry(c, d, key, hash);
	return i == SIZE_MAX ? NULL : &d->v[i].val;
}

static void fill_index(struct pfx_jdict *d)
{
	size_t at;

	memset(d->index, 0, d->n_index * sizeof(*d->index));
	for (size_t i = 0; i < d->n; i++) {
		for (at = d->v[i].hash & (d->n_index - 1); d->index[at] != 0;
			at = (at + 1) & (d->n_index - 1)) {
		}
		d->index[at] = (uint32_t)i + 1;
	}
}

/* Makes the index when it is time; at most half of it is ever used. */
static int fit_index(struct pfx_jctx *c, struct pfx_jdict *d)
{
	size_t n = d->n_index == 0 ? 32 : d->n_index * 2;
	uint32_t *index;

	if (d->n < LINEAR_MAX || d->n + 1 <= d->n_index / 2) {
		return 1;
	}
	if (d->n >= UINT32_MAX / 4) {
		pfx_j_limit(c, "memory");
		return 0;
	}
	index = pfx_j_alloc(c, n * sizeof(*index));
	if (index == NULL) {
		return 0;
	}
	d->index = index;
	d->n_index = n;
	fill_index(d);
	return 1;
}

void pfx_j_dict_set(struct pfx_jctx *c, struct pfx_jdict *d, struct pfx_jval key, struct pfx_jval v)
{
	size_t i, at, cap;
	uint64_t hash;
	void *p;

	if (c->rc != 0) {
		return;
	}
	if (!hash_value(c, key, &hash)) {
		pfx_j_fail(c, "unhashable type: '%s'", pfx_j_type_name(key));
		return;
	}
	i = find_entry(c, d, key, hash);
	if (i != SIZE_MAX) {
		d->v[i].val = v;
		return;
	}
	if (d->n == d->cap) {
		cap = d->cap < 4 ? 4 : d->cap * 2;
		p = pfx_j_grow(c, d->v, d->cap * sizeof(*d->v), cap * sizeof(*d->v));
		if (p == NULL) {
			return;
		}
		d->v = p;
		d->cap = cap;
	}
	if (!fit_index(c, d)) {
		return;
	}
	if (d->index != NULL) {
		for (at = hash & (d->n_index - 1); d->index[at] != 0; at = (at + 1) & (d->n_index - 1)) {
		}
		d->index[at] = (uint32_t)d->n + 1;
	}
	d->v[d->n++] = (struct pfx_jentry){ key, v, hash };
}

void pfx_j_dict_remove(struct pfx_jctx *c, struct pfx_jdict *d, size_t i)
{
	pfx_j_step(c, d->n / 4);
	memmove(d->v + i, d->v + i + 1, (d->n - i - 1) * sizeof(*d->v));
	d->n--;
	if (d->index != NULL) {
		fill_index(d);
	}
}

/* ---- Python's relations ---- */

int pfx_j_truth(struct pfx_jctx *c, struct pfx_jval v)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_ABSENT:
	case PFX_J_UNDEF:
	case PFX_J_NONE:
		return 0;
	case PFX_J_BOOL:
	case PFX_J_INT:
		return v.u.i != 0;
	case PFX_J_FLOAT:
		return v.u.f != 0;
	case PFX_J_STR:
		return v.u.s->n > 0;
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_VIEW:
		return v.u.l->n > 0;
	case PFX_J_DICT:
		return v.u.d->n > 0;
	case PFX_J_RANGE:
		return v.u.r->n > 0;
	default:
		return 1;
	}
}

int64_t pfx_j_len(struct pfx_jval v)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_UNDEF:
		return 0;
	case PFX_J_STR:
		return (int64_t)v.u.s->n_chars;
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_VIEW:
		return (int64_t)v.u.l->n;
	case PFX_J_DICT:
		return (int64_t)v.u.d->n;
	case PFX_J_RANGE:
		return (int64_t)v.u.r->n;
	default:
		return -1;
	}
}

static long double number(struct pfx_jval v)
{
	return v.type == PFX_J_FLOAT ? (long double)v.u.f : (long double)v.u.i;
}

static int equal_lists(struct pfx_jctx *c, const struct pfx_jlist *a, const struct pfx_jlist *b)
{
	if (a->n != b->n) {
		return 0;
	}
	for (size_t i = 0; i < a->n; i++) {
		if (!pfx_j_equal(c, a->v[i], b->v[i])) {
			return 0;
		}
	}
	return 1;
}

static int equal_dicts(struct pfx_jctx *c, const struct pfx_jdict *a, const struct pfx_jdict *b)
{
	const struct pfx_jval *other;

	if (a->n != b->n) {
		return 0;
	}
	for (size_t i = 0; i < a->n; i++) {
		other = pfx_j_dict_find(c, b, a->v[i].key);
		if (other == NULL || !pfx_j_equal(c, a->v[i].val, *other)) {
			return 0;
		}
	}
	return 1;
}

int pfx_j_equal(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b)
{
	int same = 0;

	if (pfx_j_is_number(a) && pfx_j_is_number(b)) {
		return number(a) == number(b);
	}
	if (a.type != b.type) {
		return 0;
	}
	switch ((enum pfx_jtype)a.type) {
	case PFX_J_NONE:
	case PFX_J_UNDEF:
		return 1;
	case PFX_J_STR:
		pfx_j_step(c, a.u.s->n / 64);
		return pfx_j_str_eq(a.u.s, b.u.s);
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_DICT:
		if (a.u.l == b.u.l) {
			return 1;
		}
		if (!pfx_j_enter(c)) {
			return 0;
		}
		same = a.type == PFX_J_DICT ? equal_dicts(c, a.u.d, b.u.d) : equal_lists(c, a.u.l, b.u.l);
		pfx_j_leave(c);
		return same;
	case PFX_J_RANGE:
		return a.u.r->n == b.u.r->n && (a.u.r->n == 0 || (a.u.r->start == b.u.r->start &&
			(a.u.r->n == 1 || a.u.r->step == b.u.r->step)));
	default:
		return a.u.l == b.u.l;
	}
}

int pfx_j_less(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b, const char *op)
{
	int less = 0;
	size_t i, n;

	if (c->rc != 0) {
		return 0;
	}
	if (pfx_j_is_number(a) && pfx_j_is_number(b)) {
		return number(a) < number(b);
	}
	if (a.type == PFX_J_UNDEF || b.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, a.type == PFX_J_UNDEF ? a : b);
		return 0;
	}
	if (a.type == PFX_J_STR && b.type == PFX_J_STR) {
		pfx_j_step(c, a.u.s->n / 64);
		return pfx_j_str_cmp(a.u.s, b.u.s) < 0;
	}
	if (a.type != b.type || (a.type != PFX_J_LIST && a.type != PFX_J_TUPLE)) {
		pfx_j_fail(c, "'%s' not supported between instances of '%s' and '%s'", op,
			pfx_j_type_name(a), pfx_j_type_name(b));
		return 0;
	}
	if (!pfx_j_enter(c)) {
		return 0;
	}
	n = a.u.l->n < b.u.l->n ? a.u.l->n : b.u.l->n;
	for (i = 0; i < n && pfx_j_equal(c, a.u.l->v[i], b.u.l->v[i]); i++) {
	}
	less = i < n ? pfx_j_less(c, a.u.l->v[i], b.u.l->v[i], op) : a.u.l->n < b.u.l->n;
	pfx_j_leave(c);
	return less;
}

struct pfx_jval pfx_j_collect(struct pfx_jctx *c, struct pfx_jval v)
{
	struct pfx_jval list = pfx_j_list(c, PFX_J_LIST);
	size_t i, len;

	if (c->rc != 0) {
		return list;
	}
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_UNDEF:
		break;
	case PFX_J_STR:
		for (i = 0; i < v.u.s->n && pfx_j_step(c, 1); i += len) {
			pfx_j_cp(v.u.s, i, &len);
			pfx_j_push(c, list, pfx_j_char(c, v.u.s, i, len));
		}
		break;
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_VIEW:
	case PFX_J_ITER:
		i = v.type == PFX_J_ITER ? v.u.l->pos : 0;
		pfx_j_step(c, (v.u.l->n - i) / 8);
		for (; i < v.u.l->n && c->rc == 0; i++) {
			pfx_j_push(c, list, v.u.l->v[i]);
		}
		v.u.l->pos = v.u.l->n;
		break;
	case PFX_J_DICT:
		pfx_j_step(c, v.u.d->n / 8);
		for (i = 0; i < v.u.d->n && c->rc == 0; i++) {
			pfx_j_push(c, list, v.u.d->v[i].key);
		}
		break;
	case PFX_J_RANGE:
		for (i = 0; i < v.u.r->n && pfx_j_step(c, 1); i++) {
			pfx_j_push(c, list, pfx_j_range_at(v.u.r, i));
		}
		break;
	default:
		pfx_j_fail(c, "'%s' object is not iterable", pfx_j_type_name(v));
		break;
	}
	return list;
}

static struct pfx_jval json_text(struct pfx_jctx *c, const char *s, size_t n, int client, int copy)
{
	char *to;

	if (copy) {
		to = pfx_j_alloc(c, n + 1);
		if (to == NULL) {
			return pfx_j_none();
		}
		memcpy(to, s, n);
		s = to;
	}
	return pfx_j_val(pfx_j_str(c, s, n, client));
}

static struct pfx_jval array_value(struct pfx_jctx *c, const json_t *j, int client, int copy)
{
	struct pfx_jval v = pfx_j_list(c, PFX_J_LIST);
	json_t *item;
	size_t i;

	if (c->rc != 0 || !pfx_j_enter(c)) {
		return v;
	}
	v.u.l->client = client != 0;
	json_array_foreach(j, i, item) {
		pfx_j_push(c, v, pfx_j_from_json(c, item, client, copy));
	}
	pfx_j_leave(c);
	return v;
}

static struct pfx_jval object_value(struct pfx_jctx *c, const json_t *j, int client, int copy)
{
	struct pfx_jval v = pfx_j_dict(c, PFX_J_DICT);
	json_t *object = (json_t *)(uintptr_t)j; /* jansson's iterators take no const */
	struct pfx_jval name;
	const char *key;
	json_t *item;

	if (c->rc != 0 || !pfx_j_enter(c)) {
		return v;
	}
	v.u.d->client = client != 0;
	json_object_foreach(object, key, item) {
		name = json_text(c, key, strlen(key), client, copy);
		pfx_j_dict_set(c, v.u.d, name, pfx_j_from_json(c, item, client, copy));
	}
	pfx_j_leave(c);
	return v;
}

struct pfx_jval pfx_j_from_json(struct pfx_jctx *c, const json_t *j, int client, int copy)
{
	struct pfx_jval v = pfx_j_none();

	if (c->rc != 0) {
		return v;
	}
	switch (json_typeof(j)) {
	case JSON_STRING:
		return json_text(c, json_string_value(j), json_string_length(j), client, copy);
	case JSON_ARRAY:
		return array_value(c, j, client, copy);
	case JSON_OBJECT:
		return object_value(c, j, client, copy);
	case JSON_INTEGER:
		v = pfx_j_int(json_integer_value(j));
		break;
	case JSON_REAL:
		v = pfx_j_float(json_real_value(j));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		v = pfx_j_bool(json_is_true(j));
		break;
	case JSON_NULL:
		break;
	}
	v.client = client != 0;
	return v;
}
