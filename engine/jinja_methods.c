/* Methods of strings, lists and dicts. */

#include <string.h>

#include "engine/jinja_call.h"
#include "engine/jinja_ops.h"
#include "engine/jinja_text.h"

#define METHOD(name) \
	static struct pfx_jval name(struct pfx_jctx *c, struct pfx_jval self, \
		const struct pfx_jval *arg, const struct pfx_jargs *all)

/* NULL for an argument that is absent or none. */
static const struct pfx_jstr *optional_str(struct pfx_jctx *c, struct pfx_jval v, const char *what)
{
	return !pfx_j_given(v) || v.type == PFX_J_NONE ? NULL : pfx_j_need_str(c, v, what);
}

/* ---- str ---- */

METHOD(str_split)
{
	const struct pfx_jstr *sep = optional_str(c, arg[0], "separator");
	int64_t max = pfx_j_arg_int(c, arg[1], -1);

	return c->rc != 0 ? self : pfx_j_split(c, self.u.s, sep, max);
}

METHOD(str_rsplit)
{
	const struct pfx_jstr *sep = optional_str(c, arg[0], "separator");
	int64_t max = pfx_j_arg_int(c, arg[1], -1);

	return c->rc != 0 ? self : pfx_j_rsplit(c, self.u.s, sep, max);
}

METHOD(str_splitlines)
{
	return pfx_j_lines(c, self.u.s, pfx_j_arg_truth(c, arg[0], 0));
}

METHOD(str_strip)
{
	return pfx_j_val(pfx_j_strip(c, self.u.s, optional_str(c, arg[0], "strip arg"),
		PFX_J_LEFT | PFX_J_RIGHT));
}

METHOD(str_lstrip)
{
	return pfx_j_val(pfx_j_strip(c, self.u.s, optional_str(c, arg[0], "lstrip arg"), PFX_J_LEFT));
}

METHOD(str_rstrip)
{
	return pfx_j_val(pfx_j_strip(c, self.u.s, optional_str(c, arg[0], "rstrip arg"), PFX_J_RIGHT));
}

/* The part of self between the optional bounds start and end. */
static const struct pfx_jstr *bounded(struct pfx_jctx *c, const struct pfx_jstr *s,
	struct pfx_jval start, struct pfx_jval end, size_t *from_byte, int64_t *from_char)
{
	int64_t from, to, n = (int64_t)s->n_chars;

	*from_byte = 0;
	*from_char = 0;
	if (!pfx_j_given(start) && !pfx_j_given(end)) {
		return s;
	}
	if (pfx_j_is_int(start) && start.u.i > n) {
		return NULL;
	}
	pfx_j_slice_bounds(n, start, end, 1, &from, &to);
	*from_byte = pfx_j_offset(c, s, (size_t)from);
	*from_char = from;
	return to < from ? NULL : pfx_j_part(c, s, *from_byte, pfx_j_offset(c, s, (size_t)to));
}

static int has_affix(struct pfx_jctx *c, const struct pfx_jstr *s, const struct pfx_jstr *affix,
	int at_end)
{
	return affix->n <= s->n && pfx_j_step(c, affix->n / 64) &&
		memcmp(at_end ? s->s + s->n - affix->n : s->s, affix->s, affix->n) == 0;
}

static struct pfx_jval affixed(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jval *arg, int at_end)
{
	const struct pfx_jstr *s, *one;
	size_t from_byte;
	int64_t from_char;

	s = bounded(c, self.u.s, arg[1], arg[2], &from_byte, &from_char);
	if (s == NULL) {
		return pfx_j_bool(0);
	}
	if (arg[0].type == PFX_J_TUPLE) {
		for (size_t i = 0; i < arg[0].u.l->n; i++) {
			one = pfx_j_need_str(c, arg[0].u.l->v[i], "affix");
			if (one != NULL && has_affix(c, s, one, at_end)) {
				return pfx_j_bool(1);
			}
		}
		return pfx_j_bool(0);
	}
	one = pfx_j_need_str(c, arg[0], at_end ? "endswith first arg" : "startswith first arg");
	return pfx_j_bool(one != NULL && has_affix(c, s, one, at_end));
}

METHOD(str_startswith)
{
	return affixed(c, self, arg, 0);
}

METHOD(str_endswith)
{
	return affixed(c, self, arg, 1);
}

METHOD(str_removeprefix)
{
	const struct pfx_jstr *one = pfx_j_need_str(c, arg[0], "prefix");

	return one == NULL || !has_affix(c, self.u.s, one, 0) ? self
		: pfx_j_val(pfx_j_part(c, self.u.s, one->n, self.u.s->n));
}

METHOD(str_removesuffix)
{
	const struct pfx_jstr *one = pfx_j_need_str(c, arg[0], "suffix");

	return one == NULL || !has_affix(c, self.u.s, one, 1) ? self
		: pfx_j_val(pfx_j_part(c, self.u.s, 0, self.u.s->n - one->n));
}

METHOD(str_replace)
{
	return pfx_j_val(pfx_j_replace(c, self.u.s, pfx_j_need_str(c, arg[0], "replace() argument 1"),
		pfx_j_need_str(c, arg[1], "replace() argument 2"), pfx_j_arg_int(c, arg[2], -1)));
}

METHOD(str_upper)
{
	return pfx_j_val(pfx_j_case(c, self.u.s, PFX_J_UPPER));
}

METHOD(str_lower)
{
	return pfx_j_val(pfx_j_case(c, self.u.s, PFX_J_LOWER));
}

METHOD(str_title)
{
	return pfx_j_val(pfx_j_case(c, self.u.s, PFX_J_TITLE));
}

METHOD(str_capitalize)
{
	return pfx_j_val(pfx_j_case(c, self.u.s, PFX_J_CAPITALIZE));
}

METHOD(str_swapcase)
{
	return pfx_j_val(pfx_j_case(c, self.u.s, PFX_J_SWAPCASE));
}

METHOD(str_isupper)
{
	return pfx_j_bool(pfx_j_is_class(c, self.u.s, "upper"));
}

METHOD(str_islower)
{
	return pfx_j_bool(pfx_j_is_class(c, self.u.s, "lower"));
}

METHOD(str_isalpha)
{
	return pfx_j_bool(pfx_j_is_class(c, self.u.s, "alpha"));
}

METHOD(str_isdigit)
{
	return pfx_j_bool(pfx_j_is_class(c, self.u.s, "digit"));
}

METHOD(str_isalnum)
{
	return pfx_j_bool(pfx_j_is_class(c, self.u.s, "alnum"));
}

METHOD(str_isspace)
{
	return pfx_j_bool(pfx_j_is_class(c, self.u.s, "space"));
}

METHOD(str_join)
{
	struct pfx_jval items = pfx_j_collect(c, arg[0]);
	struct pfx_jbuild b = pfx_j_build(c);

	b.safe = self.u.s->safe;
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		if (items.u.l->v[i].type != PFX_J_STR) {
			pfx_j_fail(c, "sequence item %zu: expected str instance, %s found", i,
				pfx_j_type_name(items.u.l->v[i]));
			break;
		}
		if (i > 0) {
			pfx_j_put_str(&b, self.u.s);
		}
		pfx_j_put_str(&b, items.u.l->v[i].u.s);
	}
	return pfx_j_val(pfx_j_built(&b));
}

/* Index in code points of arg[0], -1 when it is not there. */
static int64_t find_in(struct pfx_jctx *c, struct pfx_jval self, const struct pfx_jval *arg,
	int last)
{
	const struct pfx_jstr *needle = pfx_j_need_str(c, arg[0], "find() argument 1"), *s;
	size_t from_byte;
	int64_t from_char, at;

	if (needle == NULL) {
		return -1;
	}
	s = bounded(c, self.u.s, arg[1], arg[2], &from_byte, &from_char);
	if (s == NULL) {
		return -1;
	}
	at = last ? pfx_j_rfind(c, s, needle) : pfx_j_find(c, s, needle, 0);
	pfx_j_step(c, at > 0 ? (uint64_t)at / 64 : 0);
	return at < 0 ? -1 : from_char + (int64_t)pfx_j_chars(s->s, (size_t)at);
}

METHOD(str_find)
{
	return pfx_j_int(find_in(c, self, arg, 0));
}

METHOD(str_rfind)
{
	return pfx_j_int(find_in(c, self, arg, 1));
}

METHOD(str_index)
{
	int64_t at = find_in(c, self, arg, 0);

	if (at < 0) {
		pfx_j_fail(c, "substring not found");
	}
	return pfx_j_int(at);
}

METHOD(str_rindex)
{
	int64_t at = find_in(c, self, arg, 1);

	if (at < 0) {
		pfx_j_fail(c, "substring not found");
	}
	return pfx_j_int(at);
}

METHOD(str_count)
{
	const struct pfx_jstr *needle = pfx_j_need_str(c, arg[0], "count() argument 1"), *s;
	int64_t n = 0, at, from_char;
	size_t from_byte, from = 0;

	if (needle == NULL) {
		return self;
	}
	s = bounded(c, self.u.s, arg[1], arg[2], &from_byte, &from_char);
	if (s == NULL) {
		return pfx_j_int(0);
	}
	if (needle->n == 0) {
		return pfx_j_int((int64_t)s->n_chars + 1);
	}
	for (at = pfx_j_find(c, s, needle, 0); at >= 0 && pfx_j_step(c, 1);
		at = pfx_j_find(c, s, needle, from)) {
		from = (size_t)at + needle->n;
		n++;
	}
	return pfx_j_int(n);
}

METHOD(str_format)
{
	return pfx_j_format(c, self.u.s, all);
}

static struct pfx_jval partition(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jval *arg, int last)
{
	const struct pfx_jstr *sep = pfx_j_need_str(c, arg[0], "separator"), *s = self.u.s;
	struct pfx_jval v = pfx_j_list(c, PFX_J_TUPLE);
	int64_t at;
	size_t end;

	if (sep == NULL) {
		return v;
	}
	if (sep->n == 0) {
		pfx_j_fail(c, "empty separator");
		return v;
	}
	at = last ? pfx_j_rfind(c, s, sep) : pfx_j_find(c, s, sep, 0);
	end = at < 0 ? s->n : (size_t)at + sep->n;
	if (at < 0 && last) {
		pfx_j_push(c, v, pfx_j_text(c, ""));
		pfx_j_push(c, v, pfx_j_text(c, ""));
		pfx_j_push(c, v, self);
		return v;
	}
	pfx_j_push(c, v, pfx_j_val(pfx_j_part(c, s, 0, at < 0 ? s->n : (size_t)at)));
	pfx_j_push(c, v, pfx_j_val(pfx_j_part(c, s, at < 0 ? s->n : (size_t)at, end)));
	pfx_j_push(c, v, pfx_j_val(pfx_j_part(c, s, end, s->n)));
	return v;
}

METHOD(str_partition)
{
	return partition(c, self, arg, 0);
}

METHOD(str_rpartition)
{
	return partition(c, self, arg, 1);
}

static struct pfx_jval justify(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jval *arg, int left_share)
{
	const struct pfx_jstr *fill = optional_str(c, arg[1], "the fill character"), *s = self.u.s;
	int64_t width = pfx_j_arg_int(c, arg[0], 0), pad = width - (int64_t)s->n_chars, left;
	struct pfx_jbuild b = pfx_j_build(c);

	if (pad <= 0 || c->rc != 0) {
		return self;
	}
	if (fill != NULL && fill->n_chars != 1) {
		pfx_j_fail(c, "the fill character must be exactly one character long");
		return self;
	}
	/* Python's center puts the odd one on the left when the width is odd. */
	left = left_share == 1 ? pad / 2 + (pad & width & 1) : left_share == 2 ? pad : 0;
	for (int64_t i = 0; i < pad && pfx_j_step(c, i % 16 == 0); i++) {
		if (i == left) {
			pfx_j_put_str(&b, s);
		}
		if (fill != NULL) {
			pfx_j_put_str(&b, fill);
		} else {
			pfx_j_put(&b, " ", 1, 0);
		}
	}
	if (left == pad) {
		pfx_j_put_str(&b, s);
	}
	return pfx_j_val(pfx_j_built(&b));
}

METHOD(str_ljust)
{
	return justify(c, self, arg, 0);
}

METHOD(str_center)
{
	return justify(c, self, arg, 1);
}

METHOD(str_rjust)
{
	return justify(c, self, arg, 2);
}

static const struct pfx_jdef str_methods[] = {
	{ "split", str_split, "sep maxsplit", 0 },
	{ "rsplit", str_rsplit, "sep maxsplit", 0 },
	{ "splitlines", str_splitlines, "keepends", 0 },
	{ "strip", str_strip, "chars", 0 },
	{ "lstrip", str_lstrip, "chars", 0 },
	{ "rstrip", str_rstrip, "chars", 0 },
	{ "startswith", str_startswith, "prefix start end", 1 },
	{ "endswith", str_endswith, "suffix start end", 1 },
	{ "removeprefix", str_removeprefix, "prefix", 1 },
	{ "removesuffix", str_removesuffix, "suffix", 1 },
	{ "replace", str_replace, "old new count", 2 },
	{ "upper", str_upper, "", 0 },
	{ "lower", str_lower, "", 0 },
	{ "title", str_title, "", 0 },
	{ "capitalize", str_capitalize, "", 0 },
	{ "swapcase", str_swapcase, "", 0 },
	{ "isupper", str_isupper, "", 0 },
	{ "islower", str_islower, "", 0 },
	{ "isalpha", str_isalpha, "", 0 },
	{ "isdigit", str_isdigit, "", 0 },
	{ "isalnum", str_isalnum, "", 0 },
	{ "isspace", str_isspace, "", 0 },
	{ "join", str_join, "iterable", 1 },
	{ "find", str_find, "sub start end", 1 },
	{ "rfind", str_rfind, "sub start end", 1 },
	{ "index", str_index, "sub start end", 1 },
	{ "rindex", str_rindex, "sub start end", 1 },
	{ "count", str_count, "sub start end", 1 },
	{ "format", str_format, "*", 0 },
	{ "partition", str_partition, "sep", 1 },
	{ "rpartition", str_rpartition, "sep", 1 },
	{ "ljust", str_ljust, "width fillchar", 1 },
	{ "center", str_center, "width fillchar", 1 },
	{ "rjust", str_rjust, "width fillchar", 1 },
	{ 0 },
};

/* ---- list and tuple ---- */

METHOD(list_append)
{
	pfx_j_push(c, self, arg[0]);
	return pfx_j_none();
}

METHOD(list_extend)
{
	struct pfx_jval more = pfx_j_collect(c, arg[0]);

	for (size_t i = 0; c->rc == 0 && i < more.u.l->n; i++) {
		pfx_j_push(c, self, more.u.l->v[i]);
	}
	return pfx_j_none();
}

static void remove_at(struct pfx_jctx *c, struct pfx_jlist *l, size_t at)
{
	pfx_j_step(c, (l->n - at) / 8);
	memmove(l->v + at, l->v + at + 1, (l->n - at - 1) * sizeof(*l->v));
	l->n--;
}

METHOD(list_pop)
{
	int64_t at = pfx_j_arg_int(c, arg[0], -1);
	struct pfx_jlist *l = self.u.l;
	struct pfx_jval v;

	at += at < 0 ? (int64_t)l->n : 0;
	if (at < 0 || (uint64_t)at >= l->n) {
		pfx_j_fail(c, l->n == 0 ? "pop from empty list" : "pop index out of range");
		return pfx_j_none();
	}
	v = l->v[at];
	remove_at(c, l, (size_t)at);
	return v;
}

METHOD(list_insert)
{
	int64_t at = pfx_j_arg_int(c, arg[0], 0);
	struct pfx_jlist *l = self.u.l;

	pfx_j_push(c, self, arg[1]);
	if (c->rc != 0 || !pfx_j_step(c, l->n / 8)) {
		return pfx_j_none();
	}
	at += at < 0 ? (int64_t)l->n - 1 : 0;
	at = at < 0 ? 0 : at > (int64_t)l->n - 1 ? (int64_t)l->n - 1 : at;
	memmove(l->v + at + 1, l->v + at, (l->n - 1 - (size_t)at) * sizeof(*l->v));
	l->v[at] = arg[1];
	return pfx_j_none();
}

static int64_t index_of(struct pfx_jctx *c, const struct pfx_jlist *l, struct pfx_jval one)
{
	for (size_t i = 0; i < l->n && pfx_j_step(c, 1); i++) {
		if (pfx_j_equal(c, l->v[i], one)) {
			return (int64_t)i;
		}
	}
	return -1;
}

METHOD(list_index)
{
	int64_t at = index_of(c, self.u.l, arg[0]);

	if (at < 0) {
		pfx_j_fail(c, "the value is not in the list");
	}
	return pfx_j_int(at);
}

METHOD(list_remove)
{
	int64_t at = index_of(c, self.u.l, arg[0]);

	if (at < 0) {
		pfx_j_fail(c, "list.remove(x): x not in list");
	} else {
		remove_at(c, self.u.l, (size_t)at);
	}
	return pfx_j_none();
}

METHOD(list_count)
{
	int64_t n = 0;

	for (size_t i = 0; i < self.u.l->n && pfx_j_step(c, 1); i++) {
		n += pfx_j_equal(c, self.u.l->v[i], arg[0]);
	}
	return pfx_j_int(n);
}

METHOD(list_clear)
{
	self.u.l->n = 0;
	return pfx_j_none();
}

METHOD(list_copy)
{
	return pfx_j_collect(c, self);
}

METHOD(list_reverse)
{
	struct pfx_jlist *l = self.u.l;
	struct pfx_jval swap;

	pfx_j_step(c, l->n / 8);
	for (size_t i = 0; i < l->n / 2; i++) {
		swap = l->v[i];
		l->v[i] = l->v[l->n - 1 - i];
		l->v[l->n - 1 - i] = swap;
	}
	return pfx_j_none();
}

METHOD(list_sort)
{
	pfx_j_sort(c, self, self, pfx_j_arg_truth(c, arg[0], 0));
	return pfx_j_none();
}

static const struct pfx_jdef list_methods[] = {
	{ "append", list_append, "object", 1 },
	{ "extend", list_extend, "iterable", 1 },
	{ "pop", list_pop, "index", 0 },
	{ "insert", list_insert, "index object", 2 },
	{ "index", list_index, "value", 1 },
	{ "remove", list_remove, "value", 1 },
	{ "count", list_count, "value", 1 },
	{ "clear", list_clear, "", 0 },
	{ "copy", list_copy, "", 0 },
	{ "reverse", list_reverse, "", 0 },
	{ "sort", list_sort, "reverse", 0 },
	{ 0 },
};

static const struct pfx_jdef tuple_methods[] = {
	{ "index", list_index, "value", 1 },
	{ "count", list_count, "value", 1 },
	{ 0 },
};

/* ---- dict ---- */

METHOD(dict_items)
{
	struct pfx_jval v = pfx_j_iter(c, PFX_J_VIEW, "dict_items");

	for (size_t i = 0; i < self.u.d->n && pfx_j_step(c, 1); i++) {
		pfx_j_push(c, v, pfx_j_pair(c, self.u.d->v[i].key, self.u.d->v[i].val));
	}
	return v;
}

METHOD(dict_keys)
{
	struct pfx_jval v = pfx_j_iter(c, PFX_J_VIEW, "dict_keys");

	for (size_t i = 0; i < self.u.d->n && pfx_j_step(c, i % 8 == 0); i++) {
		pfx_j_push(c, v, self.u.d->v[i].key);
	}
	return v;
}

METHOD(dict_values)
{
	struct pfx_jval v = pfx_j_iter(c, PFX_J_VIEW, "dict_values");

	for (size_t i = 0; i < self.u.d->n && pfx_j_step(c, i % 8 == 0); i++) {
		pfx_j_push(c, v, self.u.d->v[i].val);
	}
	return v;
}

static struct pfx_jval *find_key(struct pfx_jctx *c, struct pfx_jval self, struct pfx_jval key)
{
	if (key.type == PFX_J_LIST || key.type == PFX_J_DICT) {
		pfx_j_fail(c, "unhashable type: '%s'", pfx_j_type_name(key));
		return NULL;
	}
	return pfx_j_dict_find(c, self.u.d, key);
}

static struct pfx_jval or_none(struct pfx_jval v)
{
	return pfx_j_given(v) ? v : pfx_j_none();
}

METHOD(dict_get)
{
	struct pfx_jval *found = find_key(c, self, arg[0]);

	return found != NULL ? *found : or_none(arg[1]);
}

METHOD(dict_pop)
{
	struct pfx_jval *found = find_key(c, self, arg[0]), v;

	if (found == NULL) {
		if (!pfx_j_given(arg[1])) {
			pfx_j_fail(c, "pop: no such key");
		}
		return or_none(arg[1]);
	}
	v = *found;
	for (size_t i = 0; i < self.u.d->n; i++) {
		if (&self.u.d->v[i].val == found) {
			pfx_j_dict_remove(c, self.u.d, i);
			break;
		}
	}
	return v;
}

METHOD(dict_setdefault)
{
	struct pfx_jval *found = find_key(c, self, arg[0]);

	if (found != NULL) {
		return *found;
	}
	pfx_j_dict_set(c, self.u.d, arg[0], or_none(arg[1]));
	return or_none(arg[1]);
}

static void update_from(struct pfx_jctx *c, struct pfx_jdict *d, struct pfx_jval from)
{
	struct pfx_jval items, pair;

	if (from.type == PFX_J_DICT) {
		for (size_t i = 0; i < from.u.d->n && pfx_j_step(c, 1); i++) {
			pfx_j_dict_set(c, d, from.u.d->v[i].key, from.u.d->v[i].val);
		}
		return;
	}
	items = pfx_j_collect(c, from);
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		pair = pfx_j_collect(c, items.u.l->v[i]);
		if (c->rc == 0 && pair.u.l->n != 2) {
			pfx_j_fail(c, "dictionary update sequence element has a length other than 2");
		}
		if (c->rc == 0) {
			pfx_j_dict_set(c, d, pair.u.l->v[0], pair.u.l->v[1]);
		}
	}
}

METHOD(dict_update)
{
	for (size_t i = 0; i < all->n && c->rc == 0; i++) {
		update_from(c, self.u.d, all->v[i]);
	}
	for (size_t i = 0; i < all->n_kw && c->rc == 0; i++) {
		pfx_j_dict_set(c, self.u.d, pfx_j_val(all->kw[i].name), all->kw[i].val);
	}
	return pfx_j_none();
}

METHOD(dict_copy)
{
	struct pfx_jval v = pfx_j_dict(c, PFX_J_DICT);

	if (c->rc == 0) {
		v.u.d->client = self.u.d->client;
		update_from(c, v.u.d, self);
	}
	return v;
}

METHOD(dict_clear)
{
	while (self.u.d->n > 0 && c->rc == 0) {
		pfx_j_dict_remove(c, self.u.d, self.u.d->n - 1);
	}
	return pfx_j_none();
}

METHOD(dict_popitem)
{
	struct pfx_jdict *d = self.u.d;
	struct pfx_jval v;

	if (d->n == 0) {
		pfx_j_fail(c, "popitem(): dictionary is empty");
		return pfx_j_none();
	}
	v = pfx_j_pair(c, d->v[d->n - 1].key, d->v[d->n - 1].val);
	pfx_j_dict_remove(c, d, d->n - 1);
	return v;
}

static const struct pfx_jdef dict_methods[] = {
	{ "items", dict_items, "", 0 },
	{ "keys", dict_keys, "", 0 },
	{ "values", dict_values, "", 0 },
	{ "get", dict_get, "key default", 1 },
	{ "pop", dict_pop, "key default", 1 },
	{ "setdefault", dict_setdefault, "key default", 1 },
	{ "update", dict_update, "*", 0 },
	{ "copy", dict_copy, "", 0 },
	{ "clear", dict_clear, "", 0 },
	{ "popitem", dict_popitem, "", 0 },
	{ 0 },
};

const struct pfx_jdef *pfx_j_method_named(struct pfx_jval v, const struct pfx_jstr *name)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_STR:
		return pfx_j_in_table(str_methods, name);
	case PFX_J_LIST:
		return pfx_j_in_table(list_methods, name);
	case PFX_J_TUPLE:
		return pfx_j_in_table(tuple_methods, name);
	case PFX_J_DICT:
		return pfx_j_in_table(dict_methods, name);
	default:
		return NULL;
	}
}

/* What dict() does with its arguments, for the function of that name. */
struct pfx_jval pfx_j_make_dict(struct pfx_jctx *c, const struct pfx_jargs *all, enum pfx_jtype type)
{
	struct pfx_jval v = pfx_j_dict(c, type);

	return c->rc != 0 ? v : (dict_update(c, v, NULL, all), v);
}
