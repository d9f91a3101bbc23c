#include "engine/jinja_ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/jinja_call.h"
#include "engine/jinja_eval.h"
#include "engine/jinja_text.h"

static struct pfx_jval bad_operands(struct pfx_jctx *c, int op, struct pfx_jval a,
	struct pfx_jval b)
{
	const char *name = op == PFX_J_FLOORDIV ? "//" : op == PFX_J_POW ? "**" : NULL;
	char one[2] = { (char)op };

	if (a.type == PFX_J_UNDEF || b.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, a.type == PFX_J_UNDEF ? a : b);
	} else if (op == '+' && a.type == PFX_J_STR) {
		pfx_j_fail(c, "can only concatenate str (not \"%s\") to str", pfx_j_type_name(b));
	} else {
		pfx_j_fail(c, "unsupported operand type(s) for %s: '%s' and '%s'", name ? name : one,
			pfx_j_type_name(a), pfx_j_type_name(b));
	}
	return pfx_j_none();
}

static struct pfx_jval too_big(struct pfx_jctx *c)
{
	pfx_j_fail(c, "integer beyond 64 bits");
	return pfx_j_none();
}

static struct pfx_jval int_power(struct pfx_jctx *c, int64_t base, int64_t exp)
{
	int64_t result = 1;

	if (exp < 0) {
		if (base == 0) {
			pfx_j_fail(c, "0.0 cannot be raised to a negative power");
		}
		return pfx_j_float(pow((double)base, (double)exp));
	}
	for (; exp > 0; exp >>= 1) {
		if ((exp & 1) && __builtin_mul_overflow(result, base, &result)) {
			return too_big(c);
		}
		if (exp > 1 && __builtin_mul_overflow(base, base, &base)) {
			return too_big(c);
		}
	}
	return pfx_j_int(result);
}

static struct pfx_jval int_op(struct pfx_jctx *c, int op, int64_t a, int64_t b)
{
	int64_t r = 0, rest;
	int over = 0;

	switch (op) {
	case '+':
		over = __builtin_add_overflow(a, b, &r);
		break;
	case '-':
		over = __builtin_sub_overflow(a, b, &r);
		break;
	case '*':
		over = __builtin_mul_overflow(a, b, &r);
		break;
	case PFX_J_POW:
		return int_power(c, a, b);
	default:
		if (b == 0) {
			pfx_j_fail(c, op == '%' ? "integer modulo by zero" : op == '/' ? "division by zero"
				: "integer division or modulo by zero");
			return pfx_j_none();
		}
		if (op == '/') {
			return pfx_j_float((double)((long double)a / (long double)b));
		}
		if (b == -1) {
			over = op == PFX_J_FLOORDIV && a == INT64_MIN;
			r = op == PFX_J_FLOORDIV && !over ? -a : 0;
			break;
		}
		/* Python rounds down, so that the rest has the divisor's sign. */
		rest = a % b;
		r = op == '%' ? (rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest)
			: a / b - (rest != 0 && (rest < 0) != (b < 0));
		break;
	}
	return over ? too_big(c) : pfx_j_int(r);
}

static struct pfx_jval float_op(struct pfx_jctx *c, int op, double a, double b)
{
	double rest;

	switch (op) {
	case '+':
		return pfx_j_float(a + b);
	case '-':
		return pfx_j_float(a - b);
	case '*':
		return pfx_j_float(a * b);
	case PFX_J_POW:
		if ((a == 0 && b < 0) || (a < 0 && b != floor(b))) {
			pfx_j_fail(c, "the result of ** is not a real number");
		}
		return pfx_j_float(pow(a, b));
	default:
		break;
	}
	if (b == 0) {
		pfx_j_fail(c, "float division by zero");
		return pfx_j_none();
	}
	if (op == '/') {
		return pfx_j_float(a / b);
	}
	rest = fmod(a, b);
	if (rest != 0 && (rest < 0) != (b < 0)) {
		rest += b;
	}
	if (op == '%') {
		return pfx_j_float(rest == 0 ? copysign(0, b) : rest);
	}
	return pfx_j_float(round((a - rest) / b));
}

static struct pfx_jval join_lists(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b)
{
	struct pfx_jval v = pfx_j_list(c, a.type);

	pfx_j_step(c, (a.u.l->n + b.u.l->n) / 8);
	for (size_t i = 0; i < a.u.l->n && c->rc == 0; i++) {
		pfx_j_push(c, v, a.u.l->v[i]);
	}
	for (size_t i = 0; i < b.u.l->n && c->rc == 0; i++) {
		pfx_j_push(c, v, b.u.l->v[i]);
	}
	if (c->rc == 0) {
		v.u.l->client = a.u.l->client || b.u.l->client;
	}
	return v;
}

static struct pfx_jval join_strings(struct pfx_jctx *c, const struct pfx_jstr *x,
	const struct pfx_jstr *y)
{
	struct pfx_jbuild b;
	uint8_t safe = x->safe | y->safe;

	/* Markup escapes plain text that is added to it. */
	y = safe ? pfx_j_escape(c, y) : y;
	b = pfx_j_extend(c, safe ? pfx_j_escape(c, x) : x);
	pfx_j_put_str(&b, y);
	b.safe = safe;
	return pfx_j_val(pfx_j_built(&b));
}

static struct pfx_jval repeat_list(struct pfx_jctx *c, struct pfx_jval v, int64_t times)
{
	struct pfx_jval out = pfx_j_list(c, v.type);

	for (int64_t i = 0; v.u.l->n > 0 && i < times && pfx_j_step(c, 1 + v.u.l->n / 8); i++) {
		for (size_t k = 0; k < v.u.l->n && c->rc == 0; k++) {
			pfx_j_push(c, out, v.u.l->v[k]);
		}
	}
	return out;
}

static struct pfx_jval multiply_sequence(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b)
{
	struct pfx_jval seq = pfx_j_is_int(a) ? b : a, times = pfx_j_is_int(a) ? a : b;

	if (!pfx_j_is_int(times)) {
		return bad_operands(c, '*', a, b);
	}
	if (seq.type == PFX_J_STR) {
		return pfx_j_val(pfx_j_repeat(c, seq.u.s, times.u.i));
	}
	if (seq.type == PFX_J_LIST || seq.type == PFX_J_TUPLE) {
		return repeat_list(c, seq, times.u.i);
	}
	return bad_operands(c, '*', a, b);
}

struct pfx_jval pfx_j_binary(struct pfx_jctx *c, int op, struct pfx_jval a, struct pfx_jval b)
{
	if (c->rc != 0) {
		return pfx_j_none();
	}
	if (pfx_j_is_int(a) && pfx_j_is_int(b)) {
		return int_op(c, op, a.u.i, b.u.i);
	}
	if (pfx_j_is_number(a) && pfx_j_is_number(b)) {
		return float_op(c, op, a.type == PFX_J_FLOAT ? a.u.f : (double)a.u.i,
			b.type == PFX_J_FLOAT ? b.u.f : (double)b.u.i);
	}
	if (op == '%' && a.type == PFX_J_STR) {
		return pfx_j_percent(c, a.u.s, b);
	}
	if (op == '+' && a.type == PFX_J_STR && b.type == PFX_J_STR) {
		return join_strings(c, a.u.s, b.u.s);
	}
	if (op == '+' && a.type == b.type && (a.type == PFX_J_LIST || a.type == PFX_J_TUPLE)) {
		return join_lists(c, a, b);
	}
	if (op == '*') {
		return multiply_sequence(c, a, b);
	}
	return bad_operands(c, op, a, b);
}

struct pfx_jval pfx_j_negate(struct pfx_jctx *c, struct pfx_jval v, int minus)
{
	if (v.type == PFX_J_FLOAT) {
		return pfx_j_float(minus ? -v.u.f : v.u.f);
	}
	if (pfx_j_is_int(v)) {
		return minus ? int_op(c, '-', 0, v.u.i) : pfx_j_int(v.u.i);
	}
	if (v.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, v);
	} else {
		pfx_j_fail(c, "bad operand type for unary %c: '%s'", minus ? '-' : '+', pfx_j_type_name(v));
	}
	return pfx_j_none();
}

/* ---- comparisons ---- */

static int contains_range(const struct pfx_jrange *r, struct pfx_jval one)
{
	int64_t i;

	if (one.type == PFX_J_FLOAT && one.u.f == floor(one.u.f) && fabs(one.u.f) < 9e18) {
		one = pfx_j_int((int64_t)one.u.f);
	}
	if (!pfx_j_is_int(one) || r->n == 0) {
		return 0;
	}
	i = one.u.i;
	if (r->step > 0 ? i < r->start || i >= r->stop : i > r->start || i <= r->stop) {
		return 0;
	}
	return ((__int128)i - r->start) % r->step == 0;
}

static int contains_item(struct pfx_jctx *c, struct pfx_jval all, struct pfx_jval one)
{
	struct pfx_jlist *l = all.u.l;
	size_t i = all.type == PFX_J_ITER ? l->pos : 0;
	int found = 0;

	for (; i < l->n && !found && pfx_j_step(c, 1); i++) {
		found = pfx_j_equal(c, l->v[i], one);
	}
	if (all.type == PFX_J_ITER) {
		l->pos = i;
	}
	return found;
}

int pfx_j_contains(struct pfx_jctx *c, struct pfx_jval all, struct pfx_jval one)
{
	if (c->rc != 0) {
		return 0;
	}
	switch ((enum pfx_jtype)all.type) {
	case PFX_J_UNDEF:
		return 0;
	case PFX_J_STR:
		if (one.type != PFX_J_STR) {
			pfx_j_fail(c, "'in <string>' requires string as left operand, not %s",
				pfx_j_type_name(one));
			return 0;
		}
		return pfx_j_find(c, all.u.s, one.u.s, 0) >= 0;
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_VIEW:
	case PFX_J_ITER:
		return contains_item(c, all, one);
	case PFX_J_DICT:
		if (one.type == PFX_J_LIST || one.type == PFX_J_DICT) {
			pfx_j_fail(c, "unhashable type: '%s'", pfx_j_type_name(one));
			return 0;
		}
		return pfx_j_dict_find(c, all.u.d, one) != NULL;
	case PFX_J_RANGE:
		return contains_range(all.u.r, one);
	default:
		pfx_j_fail(c, "argument of type '%s' is not iterable", pfx_j_type_name(all));
		return 0;
	}
}

int pfx_j_compare(struct pfx_jctx *c, enum pfx_jcompare op, struct pfx_jval a, struct pfx_jval b)
{
	int nan = (a.type == PFX_J_FLOAT && isnan(a.u.f)) || (b.type == PFX_J_FLOAT && isnan(b.u.f));

	switch (op) {
	case PFX_J_EQ:
		return pfx_j_equal(c, a, b);
	case PFX_J_NE:
		return !pfx_j_equal(c, a, b);
	case PFX_J_LT:
		return pfx_j_less(c, a, b, "<");
	case PFX_J_GT:
		return pfx_j_less(c, b, a, ">");
	case PFX_J_LE:
		return !pfx_j_less(c, b, a, "<=") && !nan;
	case PFX_J_GE:
		return !pfx_j_less(c, a, b, ">=") && !nan;
	case PFX_J_IN:
		return pfx_j_contains(c, b, a);
	case PFX_J_NOTIN:
		return !pfx_j_contains(c, b, a);
	}
	return 0;
}

/* ---- attributes, items, slices ---- */

static struct pfx_jval bind_method(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jdef *def)
{
	struct pfx_jval v = pfx_j_none();
	struct pfx_jmethod *m = pfx_j_alloc(c, sizeof(*m));

	if (m != NULL) {
		*m = (struct pfx_jmethod){ self, def };
		v.type = PFX_J_METHOD;
		v.u.method = m;
	}
	return v;
}

static struct pfx_jval lookup(struct pfx_jctx *c, struct pfx_jval v, const struct pfx_jstr *name)
{
	struct pfx_jval *found = pfx_j_dict_find(c, v.u.d, pfx_j_val(name));

	return found != NULL ? *found : pfx_j_undef(PFX_J_BY_ATTR, v.type, name);
}

struct pfx_jval pfx_j_getattr(struct pfx_jctx *c, struct pfx_jval v, const struct pfx_jstr *name)
{
	const struct pfx_jdef *def;

	if (c->rc != 0 || name == NULL) {
		return pfx_j_none();
	}
	if (v.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, v);
		return v;
	}
	if (v.type == PFX_J_LOOP) {
		return pfx_j_loop_attr(c, v, name);
	}
	if (v.type == PFX_J_MACRO && pfx_j_str_is(name, "name")) {
		return pfx_j_val(v.u.m->def->name);
	}
	if (v.type == PFX_J_SPACE) {
		return lookup(c, v, name);
	}
	def = pfx_j_method_named(v, name);
	if (def != NULL) {
		return bind_method(c, v, def);
	}
	if (v.type == PFX_J_DICT) {
		return lookup(c, v, name);
	}
	return pfx_j_undef(PFX_J_BY_ATTR, v.type, name);
}

static struct pfx_jval no_element(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval key)
{
	struct pfx_jbuild b = pfx_j_build(c);

	if (key.type == PFX_J_STR) {
		return pfx_j_undef(PFX_J_BY_ATTR, v.type, key.u.s);
	}
	pfx_j_put_repr(&b, key);
	return pfx_j_undef(PFX_J_BY_INDEX, v.type, pfx_j_built(&b));
}

/* 0 <= *at < n for the index i that may count from the end. */
static int in_bounds(int64_t i, size_t n, size_t *at)
{
	if (i < 0) {
		i += (int64_t)n;
	}
	*at = (size_t)i;
	return i >= 0 && (uint64_t)i < n;
}

static struct pfx_jval char_at(struct pfx_jctx *c, const struct pfx_jstr *s, size_t i)
{
	size_t at = pfx_j_offset(c, s, i), len;

	pfx_j_cp(s, at, &len);
	return pfx_j_val(pfx_j_part(c, s, at, at + len));
}

struct pfx_jval pfx_j_getitem(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval key)
{
	struct pfx_jval *found;
	size_t at;

	if (c->rc != 0) {
		return pfx_j_none();
	}
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_UNDEF:
		pfx_j_fail_undef(c, v);
		return v;
	case PFX_J_DICT:
		found = pfx_j_dict_find(c, v.u.d, key);
		if (found != NULL) {
			return *found;
		}
		break;
	case PFX_J_LIST:
	case PFX_J_TUPLE:
		if (pfx_j_is_int(key) && in_bounds(key.u.i, v.u.l->n, &at)) {
			return v.u.l->v[at];
		}
		break;
	case PFX_J_RANGE:
		if (pfx_j_is_int(key) && in_bounds(key.u.i, v.u.r->n, &at)) {
			return pfx_j_range_at(v.u.r, at);
		}
		break;
	case PFX_J_STR:
		if (pfx_j_is_int(key) && in_bounds(key.u.i, v.u.s->n_chars, &at)) {
			return char_at(c, v.u.s, at);
		}
		break;
	default:
		break;
	}
	if (key.type == PFX_J_STR) {
		return pfx_j_getattr(c, v, key.u.s);
	}
	return no_element(c, v, key);
}

/* A bound as Python reads it: none, or an int clamped to 64 bits. */
static int64_t clamp(struct pfx_jval v, int64_t n, int64_t low, int64_t high, int64_t otherwise)
{
	int64_t i = v.u.i;

	if (!pfx_j_is_int(v)) {
		return otherwise;
	}
	if (i < 0) {
		i += n;
	}
	return i < low ? low : i > high ? high : i;
}

void pfx_j_slice_bounds(int64_t n, struct pfx_jval start, struct pfx_jval stop, int64_t step,
	int64_t *from, int64_t *to)
{
	if (step > 0) {
		*from = clamp(start, n, 0, n, 0);
		*to = clamp(stop, n, 0, n, n);
	} else {
		*from = clamp(start, n, -1, n - 1, n - 1);
		*to = clamp(stop, n, -1, n - 1, -1);
	}
}

static int is_bound(struct pfx_jval v)
{
	return v.type == PFX_J_NONE || v.type == PFX_J_ABSENT || pfx_j_is_int(v);
}

static struct pfx_jval slice_string(struct pfx_jctx *c, const struct pfx_jstr *s, int64_t from,
	int64_t to, int64_t step)
{
	struct pfx_jbuild b = pfx_j_build(c);
	struct pfx_jval chars;

	if (step == 1) {
		size_t start = pfx_j_offset(c, s, (size_t)from);

		return pfx_j_val(pfx_j_part(c, s, start,
			to <= from ? start : pfx_j_offset(c, s, (size_t)to)));
	}
	if (s->n != s->n_chars) {
		/* One walk over the characters rather than one for each of them. */
		chars = pfx_j_collect(c, pfx_j_val(s));
		for (; c->rc == 0 && (step > 0 ? from < to : from > to); from += step) {
			pfx_j_put_str(&b, chars.u.l->v[from].u.s);
		}
		return pfx_j_val(pfx_j_built(&b));
	}
	for (; (step > 0 ? from < to : from > to) && pfx_j_step(c, from % 8 == 0); from += step) {
		pfx_j_put_part(&b, s, (size_t)from, (size_t)from + 1);
	}
	return pfx_j_val(pfx_j_built(&b));
}

static struct pfx_jval slice_list(struct pfx_jctx *c, struct pfx_jval v, int64_t from, int64_t to,
	int64_t step)
{
	struct pfx_jval out = pfx_j_list(c, v.type);

	if (c->rc != 0) {
		return out;
	}
	out.u.l->client = v.u.l->client;
	for (; (step > 0 ? from < to : from > to) && pfx_j_step(c, from % 8 == 0); from += step) {
		pfx_j_push(c, out, v.u.l->v[from]);
	}
	return out;
}

struct pfx_jval pfx_j_slice(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval start,
	struct pfx_jval stop, struct pfx_jval step)
{
	int64_t by = pfx_j_is_int(step) ? step.u.i : 1, from, to, n = pfx_j_len(v);

	if (c->rc != 0) {
		return pfx_j_none();
	}
	if (v.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, v);
		return v;
	}
	if (v.type != PFX_J_STR && v.type != PFX_J_LIST && v.type != PFX_J_TUPLE &&
		v.type != PFX_J_RANGE) {
		pfx_j_fail(c, "'%s' object is not subscriptable by a slice", pfx_j_type_name(v));
		return pfx_j_none();
	}
	if (!is_bound(start) || !is_bound(stop) || !is_bound(step)) {
		pfx_j_fail(c, "slice indices must be integers or None");
		return pfx_j_none();
	}
	if (by == 0) {
		pfx_j_fail(c, "slice step cannot be zero");
		return pfx_j_none();
	}
	/* No step needs to be longer than the whole, and a sum of two such cannot overflow. */
	by = by > n + 1 ? n + 1 : by < -n - 1 ? -n - 1 : by;
	pfx_j_slice_bounds(n, start, stop, by, &from, &to);
	if (v.type == PFX_J_STR) {
		return slice_string(c, v.u.s, from, to, by);
	}
	if (v.type == PFX_J_RANGE) {
		return pfx_j_range(c, pfx_j_range_at(v.u.r, (size_t)from).u.i,
			pfx_j_range_at(v.u.r, (size_t)to).u.i,
			(int64_t)((uint64_t)v.u.r->step * (uint64_t)by));
	}
	return slice_list(c, v, from, to, by);
}
