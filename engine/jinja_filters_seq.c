/* Filters over sequences and dicts. */

#include <string.h>

#include "engine/jinja_filters.h"
#include "engine/jinja_ops.h"
#include "engine/jinja_text.h"

/* A generator, as jinja2's filters give it; already worked out. */
static struct pfx_jval generator(struct pfx_jctx *c)
{
	return pfx_j_iter(c, PFX_J_ITER, "generator");
}

/* A path "a.0.b" (or an int, or none) as a list of keys. */
static struct pfx_jval attribute_parts(struct pfx_jctx *c, struct pfx_jval attribute)
{
	struct pfx_jval parts = pfx_j_list(c, PFX_J_LIST), dot;

	if (attribute.type == PFX_J_STR) {
		dot = pfx_j_text(c, ".");
		parts = c->rc != 0 ? parts : pfx_j_split(c, attribute.u.s, dot.u.s, -1);
		for (size_t i = 0; c->rc == 0 && i < parts.u.l->n; i++) {
			const struct pfx_jstr *s = parts.u.l->v[i].u.s;
			int64_t index = 0;

			if (s->n == 0 || s->n > 9 || strspn(s->s, "0123456789") < s->n) {
				continue;
			}
			for (size_t k = 0; k < s->n; k++) {
				index = index * 10 + (s->s[k] - '0');
			}
			parts.u.l->v[i] = pfx_j_int(index);
		}
	} else if (pfx_j_given(attribute) && attribute.type != PFX_J_NONE) {
		pfx_j_push(c, parts, attribute);
	}
	return parts;
}

/* otherwise: PFX_J_ABSENT or NONE for none, else what stands for an undefined step */
static struct pfx_jval follow(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval parts,
	struct pfx_jval otherwise)
{
	for (size_t i = 0; c->rc == 0 && i < parts.u.l->n; i++) {
		v = pfx_j_getitem(c, v, parts.u.l->v[i]);
		if (v.type == PFX_J_UNDEF && pfx_j_given(otherwise) && otherwise.type != PFX_J_NONE) {
			v = otherwise;
		}
	}
	return v;
}

/* The items that map and select walk over: none when the value is falsy, whatever it is. */
static struct pfx_jval collect_truthy(struct pfx_jctx *c, struct pfx_jval v)
{
	return pfx_j_truth(c, v) ? pfx_j_collect(c, v) : pfx_j_list(c, PFX_J_LIST);
}

static const struct pfx_jval absent = { .type = PFX_J_ABSENT };

static struct pfx_jval ignore_case(struct pfx_jctx *c, struct pfx_jval v)
{
	return v.type == PFX_J_STR ? pfx_j_val(pfx_j_case(c, v.u.s, PFX_J_LOWER)) : v;
}

/* The key of each item: the attribute's value, without case unless case counts. */
static struct pfx_jval keys_of(struct pfx_jctx *c, struct pfx_jval items, struct pfx_jval attribute,
	int case_sensitive)
{
	struct pfx_jval parts = attribute_parts(c, attribute), keys = pfx_j_list(c, PFX_J_LIST), v;

	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		v = follow(c, items.u.l->v[i], parts, absent);
		pfx_j_push(c, keys, case_sensitive ? v : ignore_case(c, v));
	}
	return keys;
}

PFX_J_FILTER_FN(filter_length)
{
	int64_t n = pfx_j_len(self);

	if (n < 0) {
		pfx_j_fail(c, "object of type '%s' has no len()", pfx_j_type_name(self));
	}
	return pfx_j_int(n);
}

PFX_J_FILTER_FN(filter_list)
{
	return pfx_j_collect(c, self);
}

PFX_J_FILTER_FN(filter_items)
{
	struct pfx_jval v = generator(c);

	if (self.type == PFX_J_DICT) {
		for (size_t i = 0; i < self.u.d->n && pfx_j_step(c, 1); i++) {
			pfx_j_push(c, v, pfx_j_pair(c, self.u.d->v[i].key, self.u.d->v[i].val));
		}
	} else if (self.type != PFX_J_UNDEF) {
		pfx_j_fail(c, "Can only get item pairs from a mapping.");
	}
	return v;
}

PFX_J_FILTER_FN(filter_join)
{
	const struct pfx_jstr *between = pfx_j_given(arg[0]) ? pfx_j_to_str(c, arg[0]) : NULL;
	struct pfx_jval items = pfx_j_collect(c, self);
	struct pfx_jval parts = attribute_parts(c, arg[1]);
	struct pfx_jbuild b = pfx_j_build(c);

	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		if (i > 0) {
			pfx_j_put_str(&b, between);
		}
		pfx_j_put_val(&b, follow(c, items.u.l->v[i], parts, absent));
	}
	return pfx_j_val(pfx_j_built(&b));
}

PFX_J_FILTER_FN(filter_first)
{
	struct pfx_jval items;

	if (self.type == PFX_J_ITER) {
		return self.u.l->pos < self.u.l->n ? self.u.l->v[self.u.l->pos++]
			: pfx_j_undef_hint(c, "No first item, sequence was empty.");
	}
	items = pfx_j_collect(c, self);
	return c->rc == 0 && items.u.l->n > 0 ? items.u.l->v[0]
		: pfx_j_undef_hint(c, "No first item, sequence was empty.");
}

PFX_J_FILTER_FN(filter_last)
{
	struct pfx_jval items;

	if (self.type == PFX_J_ITER) {
		pfx_j_fail(c, "'%s' object is not reversible", pfx_j_type_name(self));
		return self;
	}
	items = pfx_j_collect(c, self);
	return c->rc == 0 && items.u.l->n > 0 ? items.u.l->v[items.u.l->n - 1]
		: pfx_j_undef_hint(c, "No last item, sequence was empty.");
}

PFX_J_FILTER_FN(filter_reverse)
{
	struct pfx_jval items, v;

	if (self.type == PFX_J_STR) {
		return pfx_j_val(pfx_j_reverse(c, self.u.s));
	}
	items = pfx_j_collect(c, self);
	v = pfx_j_iter(c, PFX_J_ITER, "reversed");
	for (size_t i = c->rc == 0 ? items.u.l->n : 0; i > 0 && c->rc == 0; i--) {
		pfx_j_push(c, v, items.u.l->v[i - 1]);
	}
	return v;
}

/*
 * sort takes several attributes, "a,b", and its keys are lists even when there is but one:
 * values that are equal are never asked which is less.
 */
static struct pfx_jval sort_keys(struct pfx_jctx *c, struct pfx_jval items,
	struct pfx_jval attribute, int case_sensitive)
{
	struct pfx_jval comma = pfx_j_text(c, ","), names = pfx_j_list(c, PFX_J_LIST), keys;
	struct pfx_jval all = pfx_j_list(c, PFX_J_LIST);

	if (attribute.type == PFX_J_STR && c->rc == 0) {
		names = pfx_j_split(c, attribute.u.s, comma.u.s, -1);
	} else {
		pfx_j_push(c, names, attribute);
	}
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		pfx_j_push(c, all, pfx_j_list(c, PFX_J_LIST));
	}
	for (size_t k = 0; c->rc == 0 && k < names.u.l->n; k++) {
		keys = keys_of(c, items, names.u.l->v[k], case_sensitive);
		for (size_t i = 0; c->rc == 0 && i < keys.u.l->n; i++) {
			pfx_j_push(c, all.u.l->v[i], keys.u.l->v[i]);
		}
	}
	return all;
}

PFX_J_FILTER_FN(filter_sort)
{
	int reverse = pfx_j_arg_truth(c, arg[0], 0), case_sensitive = pfx_j_arg_truth(c, arg[1], 0);
	struct pfx_jval items = pfx_j_collect(c, self);

	pfx_j_sort(c, items, sort_keys(c, items, arg[2], case_sensitive), reverse);
	return items;
}

PFX_J_FILTER_FN(filter_dictsort)
{
	int case_sensitive = pfx_j_arg_truth(c, arg[0], 0), reverse = pfx_j_arg_truth(c, arg[2], 0);
	struct pfx_jval items = pfx_j_list(c, PFX_J_LIST), by = pfx_j_int(0);

	if (self.type != PFX_J_DICT) {
		pfx_j_fail(c, "'%s' object has no attribute 'items'", pfx_j_type_name(self));
		return items;
	}
	if (pfx_j_given(arg[1]) && pfx_j_need_str(c, arg[1], "by") != NULL) {
		by = pfx_j_int(pfx_j_str_is(arg[1].u.s, "value"));
		if (!by.u.i && !pfx_j_str_is(arg[1].u.s, "key")) {
			pfx_j_fail(c, "You can only sort by either \"key\" or \"value\"");
		}
	}
	for (size_t i = 0; i < self.u.d->n && pfx_j_step(c, 1); i++) {
		pfx_j_push(c, items, pfx_j_pair(c, self.u.d->v[i].key, self.u.d->v[i].val));
	}
	pfx_j_sort(c, items, keys_of(c, items, by, case_sensitive), reverse);
	return items;
}

PFX_J_FILTER_FN(filter_unique)
{
	struct pfx_jval items = pfx_j_collect(c, self), v = generator(c);
	struct pfx_jval keys = keys_of(c, items, arg[1], pfx_j_arg_truth(c, arg[0], 0));
	struct pfx_jval seen = pfx_j_dict(c, PFX_J_DICT);

	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		if (pfx_j_dict_find(c, seen.u.d, keys.u.l->v[i]) == NULL) {
			pfx_j_dict_set(c, seen.u.d, keys.u.l->v[i], pfx_j_none());
			pfx_j_push(c, v, items.u.l->v[i]);
		}
	}
	return v;
}

static struct pfx_jval extreme(struct pfx_jctx *c, struct pfx_jval self, const struct pfx_jval *arg,
	int max)
{
	struct pfx_jval items = pfx_j_collect(c, self), keys;
	size_t best = 0;
	int better;

	if (c->rc != 0 || items.u.l->n == 0) {
		return pfx_j_undef_hint(c, "No aggregated item, sequence was empty.");
	}
	keys = keys_of(c, items, arg[1], pfx_j_arg_truth(c, arg[0], 0));
	for (size_t i = 1; c->rc == 0 && i < items.u.l->n; i++) {
		better = max ? pfx_j_less(c, keys.u.l->v[best], keys.u.l->v[i], ">")
			: pfx_j_less(c, keys.u.l->v[i], keys.u.l->v[best], "<");
		best = better ? i : best;
	}
	return items.u.l->v[best];
}

PFX_J_FILTER_FN(filter_min)
{
	return extreme(c, self, arg, 0);
}

PFX_J_FILTER_FN(filter_max)
{
	return extreme(c, self, arg, 1);
}

PFX_J_FILTER_FN(filter_sum)
{
	struct pfx_jval items = pfx_j_collect(c, self), parts = attribute_parts(c, arg[0]);
	struct pfx_jval sum = pfx_j_given(arg[1]) ? arg[1] : pfx_j_int(0);

	if (sum.type == PFX_J_STR) {
		pfx_j_fail(c, "sum() can't sum strings [use ''.join(seq) instead]");
	}
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		sum = pfx_j_binary(c, '+', sum, follow(c, items.u.l->v[i], parts, absent));
	}
	return sum;
}

/* The arguments that follow the first n. */
static struct pfx_jargs rest_of(const struct pfx_jargs *all, size_t n)
{
	struct pfx_jargs rest = *all;

	rest.v = n < all->n ? all->v + n : NULL;
	rest.n = n < all->n ? all->n - n : 0;
	return rest;
}

/* map(attribute=..., default=...) */
static struct pfx_jval map_attribute(struct pfx_jctx *c, struct pfx_jval items,
	const struct pfx_jargs *all)
{
	struct pfx_jval v = generator(c), attribute = absent, otherwise = absent, parts;

	for (size_t i = 0; i < all->n_kw; i++) {
		if (pfx_j_str_is(all->kw[i].name, "attribute")) {
			attribute = all->kw[i].val;
		} else if (pfx_j_str_is(all->kw[i].name, "default")) {
			otherwise = all->kw[i].val;
		} else {
			pfx_j_fail(c, "map: unexpected keyword argument");
		}
	}
	if (!pfx_j_given(attribute)) {
		pfx_j_fail(c, "map requires a filter argument");
	}
	parts = attribute_parts(c, attribute);
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		pfx_j_push(c, v, follow(c, items.u.l->v[i], parts, otherwise));
	}
	return v;
}

PFX_J_FILTER_FN(filter_map)
{
	struct pfx_jval items = collect_truthy(c, self), v;
	const struct pfx_jdef *def = NULL;
	struct pfx_jargs rest = rest_of(all, 1);
	const struct pfx_jstr *name;

	if (c->rc != 0 || items.u.l->n == 0) {
		return generator(c);
	}
	if (all->n == 0) {
		return map_attribute(c, items, all);
	}
	v = generator(c);
	name = pfx_j_need_str(c, all->v[0], "the name of a filter");
	if (name != NULL) {
		def = pfx_j_filter_named(name);
		if (def == NULL) {
			pfx_j_fail(c, "No filter named '%.*s'.", (int)(name->n < 100 ? name->n : 100), name->s);
		}
	}
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		pfx_j_push(c, v, pfx_j_call_def(c, def, items.u.l->v[i], &rest));
	}
	return v;
}

/* select, reject, selectattr, rejectattr: keep items whose test says `want`. */
static struct pfx_jval pick(struct pfx_jctx *c, struct pfx_jval self, const struct pfx_jargs *all,
	int by_attribute, int want)
{
	struct pfx_jval items = collect_truthy(c, self), v = generator(c), one;
	struct pfx_jval parts = attribute_parts(c, by_attribute && all->n > 0 ? all->v[0] : absent);
	size_t at = by_attribute ? 1 : 0;
	struct pfx_jargs rest = rest_of(all, at + 1);
	const struct pfx_jdef *def = NULL;

	if (c->rc != 0 || items.u.l->n == 0) {
		return v;
	}
	if (by_attribute && all->n == 0) {
		pfx_j_fail(c, "Missing parameter for attribute name");
	}
	if (all->n > at && pfx_j_need_str(c, all->v[at], "the name of a test") != NULL) {
		def = pfx_j_test_named(all->v[at].u.s);
		if (def == NULL) {
			pfx_j_fail(c, "No test of that name.");
		}
	}
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		one = follow(c, items.u.l->v[i], parts, absent);
		if (def != NULL) {
			one = pfx_j_call_def(c, def, one, &rest);
		}
		if (pfx_j_truth(c, one) == want) {
			pfx_j_push(c, v, items.u.l->v[i]);
		}
	}
	return v;
}

PFX_J_FILTER_FN(filter_select)
{
	return pick(c, self, all, 0, 1);
}

PFX_J_FILTER_FN(filter_reject)
{
	return pick(c, self, all, 0, 0);
}

PFX_J_FILTER_FN(filter_selectattr)
{
	return pick(c, self, all, 1, 1);
}

PFX_J_FILTER_FN(filter_rejectattr)
{
	return pick(c, self, all, 1, 0);
}

PFX_J_FILTER_FN(filter_attr)
{
	struct pfx_jval key = pfx_j_val(pfx_j_need_str(c, arg[0], "the attribute's name"));

	/* Items do not count here: only methods and what our own objects have. */
	if (c->rc != 0 || (self.type == PFX_J_DICT && pfx_j_method_named(self, key.u.s) == NULL)) {
		return pfx_j_undef(PFX_J_BY_ATTR, self.type, key.type == PFX_J_STR ? key.u.s : NULL);
	}
	return pfx_j_getattr(c, self, key.u.s);
}

PFX_J_FILTER_FN(filter_batch)
{
	struct pfx_jval items = pfx_j_collect(c, self), v = generator(c), row = absent;
	int64_t width = pfx_j_arg_int(c, arg[0], 1);

	if (width < 1) {
		pfx_j_fail(c, "batch wants at least one item a row");
	}
	for (size_t i = 0; c->rc == 0 && i < items.u.l->n; i++) {
		if (i % (size_t)width == 0) {
			row = pfx_j_list(c, PFX_J_LIST);
			pfx_j_push(c, v, row);
		}
		pfx_j_push(c, row, items.u.l->v[i]);
	}
	if (pfx_j_given(arg[1]) && arg[1].type != PFX_J_NONE && pfx_j_given(row)) {
		while (c->rc == 0 && row.u.l->n < (size_t)width && pfx_j_step(c, 1)) {
			pfx_j_push(c, row, arg[1]);
		}
	}
	return v;
}

PFX_J_FILTER_FN(filter_slice)
{
	struct pfx_jval items = pfx_j_collect(c, self), v = generator(c), column;
	int64_t n = pfx_j_arg_int(c, arg[0], 1);
	size_t at = 0, take;

	if (n < 1) {
		pfx_j_fail(c, "slice wants at least one column");
	}
	for (int64_t i = 0; c->rc == 0 && i < n && pfx_j_step(c, 1); i++) {
		column = pfx_j_list(c, PFX_J_LIST);
		take = items.u.l->n / (size_t)n + ((uint64_t)i < items.u.l->n % (size_t)n);
		for (size_t k = 0; k < take; k++) {
			pfx_j_push(c, column, items.u.l->v[at++]);
		}
		if (pfx_j_given(arg[1]) && arg[1].type != PFX_J_NONE && items.u.l->n % (size_t)n != 0 &&
			(uint64_t)i >= items.u.l->n % (size_t)n) {
			pfx_j_push(c, column, arg[1]);
		}
		pfx_j_push(c, v, column);
	}
	return v;
}

const struct pfx_jdef pfx_j_sequence_filters[] = {
	{ "length", filter_length, "", 0 },
	{ "count", filter_length, "", 0 },
	{ "list", filter_list, "", 0 },
	{ "items", filter_items, "", 0 },
	{ "join", filter_join, "d attribute", 0 },
	{ "first", filter_first, "", 0 },
	{ "last", filter_last, "", 0 },
	{ "reverse", filter_reverse, "", 0 },
	{ "sort", filter_sort, "reverse case_sensitive attribute", 0 },
	{ "dictsort", filter_dictsort, "case_sensitive by reverse", 0 },
	{ "unique", filter_unique, "case_sensitive attribute", 0 },
	{ "min", filter_min, "case_sensitive attribute", 0 },
	{ "max", filter_max, "case_sensitive attribute", 0 },
	{ "sum", filter_sum, "attribute start", 0 },
	{ "map", filter_map, "*", 0 },
	{ "select", filter_select, "*", 0 },
	{ "reject", filter_reject, "*", 0 },
	{ "selectattr", filter_selectattr, "*", 0 },
	{ "rejectattr", filter_rejectattr, "*", 0 },
	{ "attr", filter_attr, "name", 1 },
	{ "batch", filter_batch, "linecount fill_with", 1 },
	{ "slice", filter_slice, "slices fill_with", 1 },
	{ 0 },
};
