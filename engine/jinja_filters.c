/* What may follow a pipe: text and numbers here, sequences in jinja_filters_seq.c. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_filters.h"
#include "engine/jinja_ops.h"
#include "engine/jinja_text.h"

/* ---- text ---- */

PFX_J_FILTER_FN(filter_upper)
{
	return pfx_j_val(pfx_j_case(c, pfx_j_to_str(c, self), PFX_J_UPPER));
}

PFX_J_FILTER_FN(filter_lower)
{
	return pfx_j_val(pfx_j_case(c, pfx_j_to_str(c, self), PFX_J_LOWER));
}

PFX_J_FILTER_FN(filter_capitalize)
{
	return pfx_j_val(pfx_j_case(c, pfx_j_to_str(c, self), PFX_J_CAPITALIZE));
}

PFX_J_FILTER_FN(filter_title)
{
	return pfx_j_val(pfx_j_case(c, pfx_j_to_str(c, self), PFX_J_TITLE_FILTER));
}

PFX_J_FILTER_FN(filter_string)
{
	return pfx_j_val(pfx_j_to_str(c, self));
}

PFX_J_FILTER_FN(filter_trim)
{
	const struct pfx_jstr *s = pfx_j_to_str(c, self), *chars = NULL;

	if (pfx_j_given(arg[0]) && arg[0].type != PFX_J_NONE) {
		chars = pfx_j_need_str(c, arg[0], "strip arg");
	}
	return pfx_j_val(pfx_j_strip(c, s, chars, PFX_J_LEFT | PFX_J_RIGHT));
}

PFX_J_FILTER_FN(filter_replace)
{
	int64_t max = arg[2].type == PFX_J_NONE ? -1 : pfx_j_arg_int(c, arg[2], -1);

	return pfx_j_val(pfx_j_replace(c, pfx_j_to_str(c, self), pfx_j_to_str(c, arg[0]),
		pfx_j_to_str(c, arg[1]), max));
}

PFX_J_FILTER_FN(filter_safe)
{
	const struct pfx_jstr *s = pfx_j_to_str(c, self);
	struct pfx_jstr *marked = pfx_j_alloc(c, sizeof(*marked));

	if (marked == NULL || s == NULL) {
		return pfx_j_none();
	}
	*marked = *s;
	marked->safe = 1;
	return pfx_j_val(marked);
}

PFX_J_FILTER_FN(filter_escape)
{
	return pfx_j_val(pfx_j_escape(c, pfx_j_to_str(c, self)));
}

PFX_J_FILTER_FN(filter_forceescape)
{
	const struct pfx_jstr *s = pfx_j_to_str(c, self);
	struct pfx_jstr plain;

	if (s == NULL) {
		return pfx_j_none();
	}
	plain = *s;
	plain.safe = 0;
	return pfx_j_val(pfx_j_escape(c, &plain));
}

PFX_J_FILTER_FN(filter_format)
{
	const struct pfx_jstr *s = pfx_j_to_str(c, self);
	struct pfx_jval args = pfx_j_list(c, PFX_J_TUPLE);

	if (all->n > 0 && all->n_kw > 0) {
		pfx_j_fail(c, "can't handle positional and keyword arguments at the same time");
	}
	if (all->n_kw > 0) {
		args = pfx_j_make_dict(c, all, PFX_J_DICT);
	}
	for (size_t i = 0; i < all->n && c->rc == 0; i++) {
		pfx_j_push(c, args, all->v[i]);
	}
	return c->rc != 0 ? self : pfx_j_percent(c, s, args);
}

/* The text of one indentation: a number of spaces, or the string itself. */
static const struct pfx_jstr *indentation(struct pfx_jctx *c, struct pfx_jval width,
	int64_t otherwise)
{
	struct pfx_jbuild b = pfx_j_build(c);
	int64_t n;

	if (width.type == PFX_J_STR) {
		return width.u.s;
	}
	n = pfx_j_arg_int(c, width, otherwise);
	pfx_j_put_fill(&b, ' ', n < 0 ? 0 : (size_t)n, 0);
	return pfx_j_built(&b);
}

PFX_J_FILTER_FN(filter_indent)
{
	const struct pfx_jstr *s = pfx_j_need_str(c, self, "the text to indent");
	const struct pfx_jstr *indent = indentation(c, arg[0], 4), *line;
	int first = pfx_j_arg_truth(c, arg[1], 0), blank = pfx_j_arg_truth(c, arg[2], 0);
	struct pfx_jbuild b = pfx_j_build(c);
	struct pfx_jval lines;

	if (c->rc != 0) {
		return self;
	}
	/* jinja2 adds a newline, splits, and joins again: so the last newline stays. */
	b.safe = s->safe;
	pfx_j_put_str(&b, s);
	pfx_j_put(&b, "\n", 1, 0);
	lines = pfx_j_lines(c, pfx_j_built(&b), 0);
	b = pfx_j_build(c);
	for (size_t i = 0; c->rc == 0 && i < lines.u.l->n; i++) {
		line = lines.u.l->v[i].u.s;
		if (i > 0) {
			pfx_j_put(&b, "\n", 1, 0);
		}
		if (i == 0 ? first : blank || line->n > 0) {
			pfx_j_put_str(&b, indent);
		}
		pfx_j_put_str(&b, line);
	}
	return pfx_j_val(pfx_j_built(&b));
}

static const struct pfx_jstr *separator(struct pfx_jctx *c, struct pfx_jval v, size_t i,
	const char *otherwise)
{
	if (pfx_j_given(v) && v.type != PFX_J_NONE) {
		if ((v.type != PFX_J_TUPLE && v.type != PFX_J_LIST) || v.u.l->n != 2) {
			pfx_j_fail(c, "separators must be two strings");
			return NULL;
		}
		return pfx_j_need_str(c, v.u.l->v[i], "a separator");
	}
	return pfx_j_text(c, otherwise).u.s;
}

PFX_J_FILTER_FN(filter_tojson)
{
	struct pfx_jbuild b = pfx_j_build(c);
	int lines = pfx_j_given(arg[1]) && arg[1].type != PFX_J_NONE;
	struct pfx_jjson how = {
		.ascii = pfx_j_arg_truth(c, arg[0], 0),
		.indent = lines ? indentation(c, arg[1], 0) : NULL,
		.comma = separator(c, arg[2], 0, lines ? "," : ", "),
		.colon = separator(c, arg[2], 1, ": "),
		.sort_keys = pfx_j_arg_truth(c, arg[3], 0),
	};

	if (c->rc == 0) {
		pfx_j_put_json(&b, self, &how);
	}
	return pfx_j_val(pfx_j_built(&b));
}

PFX_J_FILTER_FN(filter_from_json)
{
	return pfx_j_load_json(c, pfx_j_need_str(c, self, "the JSON text"));
}

PFX_J_FILTER_FN(filter_default)
{
	struct pfx_jval otherwise = pfx_j_given(arg[0]) ? arg[0] : pfx_j_text(c, "");

	if (self.type == PFX_J_UNDEF || (pfx_j_arg_truth(c, arg[1], 0) && !pfx_j_truth(c, self))) {
		return otherwise;
	}
	return self;
}

/* ---- numbers ---- */

/* Python's int(text, base); false when text is no number of that base. */
static int text_to_int(struct pfx_jctx *c, const struct pfx_jstr *s, int base, int64_t *out)
{
	char digits[80], *stop;
	size_t n = 0;

	s = pfx_j_strip(c, s, NULL, PFX_J_LEFT | PFX_J_RIGHT);
	if (s == NULL || s->n == 0 || s->n >= sizeof(digits)) {
		return 0;
	}
	for (size_t i = 0; i < s->n; i++) {
		if (s->s[i] == '_' && i > 0 && i + 1 < s->n && s->s[i - 1] != '_') {
			continue;
		}
		if (s->s[i] == ' ' || (s->s[i] >= '\t' && s->s[i] <= '\r') || s->s[i] == 0) {
			return 0;
		}
		digits[n++] = s->s[i];
	}
	digits[n] = 0;
	if ((base == 2 || base == 8) && n > 2 && digits[0] == '0' &&
		(digits[1] | 32) == (base == 2 ? 'b' : 'o')) {
		digits[0] = digits[1] = '0';
	}
	errno = 0;
	*out = strtoll(digits, &stop, base);
	if (errno == ERANGE) {
		pfx_j_fail(c, "integer beyond 64 bits");
	}
	return *stop == 0 && stop != digits;
}

static int text_to_float(struct pfx_jctx *c, const struct pfx_jstr *s, double *out)
{
	char text[400], *stop;

	s = pfx_j_strip(c, s, NULL, PFX_J_LEFT | PFX_J_RIGHT);
	if (s == NULL || s->n == 0 || s->n >= sizeof(text) || memchr(s->s, 0, s->n) != NULL) {
		return 0;
	}
	memcpy(text, s->s, s->n);
	text[s->n] = 0;
	/* strtod takes hex and nan(...), which Python does not. */
	if (strpbrk(text, "xX( \t\n") != NULL) {
		return 0;
	}
	*out = strtod(text, &stop);
	return *stop == 0;
}

static int float_to_int(struct pfx_jctx *c, double f, int64_t *out)
{
	if (!isfinite(f)) {
		return 0;
	}
	if (fabs(f) >= 9.2e18) {
		pfx_j_fail(c, "integer beyond 64 bits");
		return 0;
	}
	*out = (int64_t)f;
	return 1;
}

PFX_J_FILTER_FN(filter_int)
{
	struct pfx_jval otherwise = pfx_j_given(arg[0]) ? arg[0] : pfx_j_int(0);
	int64_t base = pfx_j_arg_int(c, arg[1], 10), i;
	double f;

	if (pfx_j_is_int(self)) {
		return pfx_j_int(self.u.i);
	}
	if (self.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, self);
		return otherwise;
	}
	if (self.type == PFX_J_FLOAT) {
		return float_to_int(c, self.u.f, &i) ? pfx_j_int(i) : otherwise;
	}
	if (self.type != PFX_J_STR) {
		return otherwise;
	}
	if (base >= 0 && base <= 36 && base != 1 && text_to_int(c, self.u.s, (int)base, &i)) {
		return pfx_j_int(i);
	}
	return text_to_float(c, self.u.s, &f) && float_to_int(c, f, &i) ? pfx_j_int(i) : otherwise;
}

PFX_J_FILTER_FN(filter_float)
{
	double f;

	if (pfx_j_is_int(self)) {
		return pfx_j_float((double)self.u.i);
	}
	if (self.type == PFX_J_FLOAT) {
		return pfx_j_float(self.u.f);
	}
	if (self.type == PFX_J_UNDEF) {
		pfx_j_fail_undef(c, self);
	} else if (self.type == PFX_J_STR && text_to_float(c, self.u.s, &f)) {
		return pfx_j_float(f);
	}
	return pfx_j_given(arg[0]) ? arg[0] : pfx_j_float(0);
}

PFX_J_FILTER_FN(filter_abs)
{
	if (self.type == PFX_J_FLOAT) {
		return pfx_j_float(fabs(self.u.f));
	}
	if (pfx_j_is_int(self)) {
		return self.u.i < 0 ? pfx_j_negate(c, self, 1) : pfx_j_int(self.u.i);
	}
	pfx_j_fail(c, "bad operand type for abs(): '%s'", pfx_j_type_name(self));
	return self;
}

/* Python's round(f, digits): of two nearest the even one, by f's exact value. */
static double round_float(double f, int64_t digits)
{
	char text[512];
	double scale;

	if (digits >= 0) {
		snprintf(text, sizeof(text), "%.*f", digits > 100 ? 100 : (int)digits, f);
		return strtod(text, NULL);
	}
	scale = pow(10, (double)(digits < -400 ? 400 : -digits));
	return isinf(scale) ? 0 : nearbyint(f / scale) * scale;
}

PFX_J_FILTER_FN(filter_round)
{
	int64_t digits = pfx_j_arg_int(c, arg[0], 0), i;
	struct pfx_jval scale = pfx_j_float(pow(10, (double)digits)), v;
	const struct pfx_jstr *method = pfx_j_given(arg[1]) ? pfx_j_need_str(c, arg[1], "method") : NULL;

	if (!pfx_j_is_number(self)) {
		pfx_j_fail(c, "type %s doesn't define __round__ method", pfx_j_type_name(self));
	}
	if (c->rc != 0) {
		return self;
	}
	if (method == NULL || pfx_j_str_is(method, "common")) {
		if (pfx_j_is_int(self) && digits >= 0) {
			return pfx_j_int(self.u.i);
		}
		if (pfx_j_is_int(self)) {
			return float_to_int(c, round_float((double)self.u.i, digits), &i) ? pfx_j_int(i) : self;
		}
		return isfinite(self.u.f) ? pfx_j_float(round_float(self.u.f, digits)) : self;
	}
	v = pfx_j_float(self.type == PFX_J_FLOAT ? self.u.f : (double)self.u.i);
	v = pfx_j_binary(c, '*', v, scale);
	if (pfx_j_str_is(method, "ceil") || pfx_j_str_is(method, "floor")) {
		v = pfx_j_float(pfx_j_str_is(method, "ceil") ? ceil(v.u.f) : floor(v.u.f));
		return pfx_j_binary(c, '/', v, scale);
	}
	pfx_j_fail(c, "method must be common, ceil or floor");
	return self;
}

static const struct pfx_jdef text_filters[] = {
	{ "upper", filter_upper, "", 0 },
	{ "lower", filter_lower, "", 0 },
	{ "capitalize", filter_capitalize, "", 0 },
	{ "title", filter_title, "", 0 },
	{ "string", filter_string, "", 0 },
	{ "trim", filter_trim, "chars", 0 },
	{ "replace", filter_replace, "old new count", 2 },
	{ "safe", filter_safe, "", 0 },
	{ "escape", filter_escape, "", 0 },
	{ "e", filter_escape, "", 0 },
	{ "forceescape", filter_forceescape, "", 0 },
	{ "format", filter_format, "*", 0 },
	{ "indent", filter_indent, "width first blank", 0 },
	{ "tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0 },
	{ "from_json", filter_from_json, "", 0 },
	{ "fromjson", filter_from_json, "", 0 },
	{ "default", filter_default, "default_value boolean", 0 },
	{ "d", filter_default, "default_value boolean", 0 },
	{ "int", filter_int, "default base", 0 },
	{ "float", filter_float, "default", 0 },
	{ "abs", filter_abs, "", 0 },
	{ "round", filter_round, "precision method", 0 },
	{ 0 },
};

const struct pfx_jdef *pfx_j_filter_named(const struct pfx_jstr *name)
{
	const struct pfx_jdef *def = pfx_j_in_table(text_filters, name);

	return def != NULL ? def : pfx_j_in_table(pfx_j_sequence_filters, name);
}
