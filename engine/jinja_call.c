#include "engine/jinja_call.h"

#include <string.h>

#include "engine/jinja_eval.h"
#include "engine/jinja_str.h"

/* Parameter i of def, its length in *n; NULL when it has fewer. */
static const char *param_name(const struct pfx_jdef *def, size_t i, size_t *n)
{
	const char *p = def->params;

	for (;; p += *n) {
		p += strspn(p, " ");
		*n = strcspn(p, " ");
		if (*n == 0) {
			return NULL;
		}
		if (i-- == 0) {
			return p;
		}
	}
}

static size_t count_params(const struct pfx_jdef *def)
{
	size_t n, k = 0;

	while (param_name(def, k, &n) != NULL) {
		k++;
	}
	return k;
}

static void bind_kwarg(struct pfx_jctx *c, const struct pfx_jdef *def, const struct pfx_jkwarg *kw,
	struct pfx_jval *arg)
{
	const char *name;
	size_t n;

	for (size_t i = 0; (name = param_name(def, i, &n)) != NULL; i++) {
		if (kw->name->n == n && memcmp(kw->name->s, name, n) == 0) {
			if (pfx_j_given(arg[i])) {
				pfx_j_fail(c, "%s() got multiple values for argument '%.*s'", def->name,
					(int)n, name);
			}
			arg[i] = kw->val;
			return;
		}
	}
	pfx_j_fail(c, "%s() got an unexpected keyword argument '%.*s'", def->name,
		(int)(kw->name->n < 100 ? kw->name->n : 100), kw->name->s);
}

struct pfx_jval pfx_j_call_def(struct pfx_jctx *c, const struct pfx_jdef *def,
	struct pfx_jval self, const struct pfx_jargs *all)
{
	struct pfx_jval arg[PFX_J_PARAMS_MAX] = { { 0 } };
	struct pfx_jval v = pfx_j_none();
	size_t max;

	if (c->rc != 0) {
		return v;
	}
	if (strcmp(def->params, "*") != 0) {
		max = count_params(def);
		if (all->n > max) {
			pfx_j_fail(c, "%s() takes at most %zu arguments (%zu given)", def->name, max, all->n);
			return v;
		}
		for (size_t i = 0; i < all->n; i++) {
			arg[i] = all->v[i];
		}
		for (size_t i = 0; i < all->n_kw && c->rc == 0; i++) {
			bind_kwarg(c, def, &all->kw[i], arg);
		}
		for (int i = 0; i < def->n_min && c->rc == 0; i++) {
			if (!pfx_j_given(arg[i])) {
				pfx_j_fail(c, "%s() is missing a required argument", def->name);
			}
		}
	}
	if (c->rc != 0 || !pfx_j_enter(c)) {
		return v;
	}
	v = def->fn(c, self, arg, all);
	pfx_j_leave(c);
	return c->rc != 0 ? pfx_j_none() : v;
}

struct pfx_jval pfx_j_call(struct pfx_jctx *c, struct pfx_jval callee, const struct pfx_jargs *all)
{
	if (c->rc != 0) {
		return pfx_j_none();
	}
	switch ((enum pfx_jtype)callee.type) {
	case PFX_J_FUNC:
		return pfx_j_call_def(c, callee.u.def, pfx_j_none(), all);
	case PFX_J_METHOD:
		return pfx_j_call_def(c, callee.u.method->def, callee.u.method->self, all);
	case PFX_J_MACRO:
		return pfx_j_call_macro(c, callee.u.m, all);
	case PFX_J_LOOP:
		return pfx_j_call_loop(c, callee.u.loop, all);
	case PFX_J_UNDEF:
		pfx_j_fail_undef(c, callee);
		return pfx_j_none();
	default:
		pfx_j_fail(c, "'%s' object is not callable", pfx_j_type_name(callee));
		return pfx_j_none();
	}
}

const struct pfx_jdef *pfx_j_in_table(const struct pfx_jdef *table, const struct pfx_jstr *name)
{
	for (; name != NULL && table->name != NULL; table++) {
		if (pfx_j_str_is(name, table->name)) {
			return table;
		}
	}
	return NULL;
}

int64_t pfx_j_arg_int(struct pfx_jctx *c, struct pfx_jval v, int64_t otherwise)
{
	if (!pfx_j_given(v)) {
		return otherwise;
	}
	if (!pfx_j_is_int(v)) {
		pfx_j_fail(c, "'%s' object cannot be interpreted as an integer", pfx_j_type_name(v));
		return otherwise;
	}
	return v.u.i;
}

int pfx_j_arg_truth(struct pfx_jctx *c, struct pfx_jval v, int otherwise)
{
	return pfx_j_given(v) ? pfx_j_truth(c, v) : otherwise;
}

const struct pfx_jstr *pfx_j_need_str(struct pfx_jctx *c, struct pfx_jval v, const char *what)
{
	if (c->rc != 0) {
		return NULL;
	}
	if (v.type == PFX_J_STR) {
		return v.u.s;
	}
	if (v.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, v);
	} else {
		pfx_j_fail(c, "%s must be a str, not %s", what, pfx_j_type_name(v));
	}
	return NULL;
}

struct sorting {
	struct pfx_jctx *c;
	struct pfx_jval *keys;
	size_t *order, *spare;
	int reverse;
};

/* Python keeps equals in their order, also when it sorts downwards. */
static int comes_first(struct sorting *s, size_t a, size_t b)
{
	return s->reverse ? pfx_j_less(s->c, s->keys[a], s->keys[b], "<")
		: pfx_j_less(s->c, s->keys[b], s->keys[a], "<");
}

static void merge(struct sorting *s, size_t from, size_t mid, size_t to)
{
	size_t i = from, j = mid, n = 0;

	while (i < mid && j < to && pfx_j_step(s->c, 1)) {
		s->spare[n++] = s->order[comes_first(s, s->order[i], s->order[j]) ? j++ : i++];
	}
	while (i < mid) {
		s->spare[n++] = s->order[i++];
	}
	while (j < to) {
		s->spare[n++] = s->order[j++];
	}
	memcpy(s->order + from, s->spare, n * sizeof(*s->order));
}

void pfx_j_sort(struct pfx_jctx *c, struct pfx_jval list, struct pfx_jval keys, int reverse)
{
	struct sorting s = { .c = c, .reverse = reverse };
	struct pfx_jval *sorted;
	size_t n;

	if (c->rc != 0) {
		return;
	}
	n = list.u.l->n;
	s.keys = keys.u.l->v;
	s.order = pfx_j_alloc(c, n * sizeof(*s.order));
	s.spare = pfx_j_alloc(c, n * sizeof(*s.spare));
	sorted = pfx_j_alloc(c, n * sizeof(*sorted));
	if (sorted == NULL) {
		return;
	}
	for (size_t i = 0; i < n; i++) {
		s.order[i] = i;
	}
	for (size_t width = 1; width < n && c->rc == 0; width *= 2) {
		for (size_t from = 0; from + width < n && c->rc == 0; from += 2 * width) {
			merge(&s, from, from + width, from + 2 * width < n ? from + 2 * width : n);
		}
	}
	for (size_t i = 0; i < n; i++) {
		sorted[i] = list.u.l->v[s.order[i]];
	}
	if (n > 0) {
		memcpy(list.u.l->v, sorted, n * sizeof(*sorted));
	}
}
