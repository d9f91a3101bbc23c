/* Python's two ways of formatting: "..." % args and "...".format(...). */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/jinja_ops.h"
#include "engine/jinja_text.h"

#define WIDTH_MAX 1000000
#define PRECISION_MAX 100

struct spec {
	uint32_t fill;
	char align, sign, type, group;
	int alt;
	int64_t width, precision; /* precision < 0: none */
	int mark;                 /* whose the padding is */
};

/* A number in pieces: sign, prefix ("0x"), digits. */
struct number {
	char sign[2], prefix[3], digits[512];
};

static void put_digits_grouped(char *out, size_t size, const char *digits, char group)
{
	size_t whole = strspn(digits, "0123456789"), n = 0;

	for (size_t i = 0; digits[i] != 0 && n + 2 < size; i++) {
		if (i > 0 && i < whole && (whole - i) % 3 == 0) {
			out[n++] = group;
		}
		out[n++] = digits[i];
	}
	out[n] = 0;
}

static void int_digits(struct number *num, int64_t i, const struct spec *spec)
{
	uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
	size_t n = 0;
	char bits[65];

	switch (spec->type) {
	case 'x':
		snprintf(num->digits, sizeof(num->digits), "%llx", (unsigned long long)u);
		break;
	case 'X':
		snprintf(num->digits, sizeof(num->digits), "%llX", (unsigned long long)u);
		break;
	case 'o':
		snprintf(num->digits, sizeof(num->digits), "%llo", (unsigned long long)u);
		break;
	case 'b':
		for (int bit = 63; bit >= 0; bit--) {
			if (n > 0 || bit == 0 || (u >> bit & 1)) {
				bits[n++] = (char)('0' + (u >> bit & 1));
			}
		}
		bits[n] = 0;
		strcpy(num->digits, bits);
		break;
	default:
		snprintf(num->digits, sizeof(num->digits), "%llu", (unsigned long long)u);
		return;
	}
	if (spec->alt) {
		num->prefix[0] = '0';
		num->prefix[1] = spec->type;
	}
}

static void float_digits(struct number *num, double f, const struct spec *spec)
{
	int precision = spec->precision < 0 ? 6 : (int)spec->precision;
	char fmt[8] = "%.*f", *p = num->digits;

	f = fabs(f);
	if (!isfinite(f)) {
		strcpy(p, isnan(f) ? "nan" : "inf");
	} else if (spec->type == 0 && spec->precision < 0) {
		pfx_j_float_text(f, p);
	} else if (spec->type == '%') {
		snprintf(p, sizeof(num->digits) - 1, "%.*f", precision, f * 100);
		strcat(p, "%");
	} else {
		fmt[3] = spec->type == 0 || spec->type == 'n' ? 'g' : spec->type;
		if (spec->alt) {
			strcpy(fmt, "%#.*f");
			fmt[4] = spec->type == 0 || spec->type == 'n' ? 'g' : spec->type;
		}
		snprintf(p, sizeof(num->digits), fmt, precision, f);
	}
}

static void put_number(struct pfx_jbuild *b, struct pfx_jval v, const struct spec *spec)
{
	struct number num = { { 0 }, { 0 }, { 0 } };
	char grouped[700];
	int negative = v.type == PFX_J_FLOAT ? signbit(v.u.f) && !isnan(v.u.f) : v.u.i < 0;
	size_t n, pad, left;
	char align = spec->align ? spec->align : '>';

	if (v.type == PFX_J_FLOAT) {
		float_digits(&num, v.u.f, spec);
	} else {
		int_digits(&num, v.u.i, spec);
	}
	if (negative || spec->sign == '+' || spec->sign == ' ') {
		num.sign[0] = negative ? '-' : spec->sign;
	}
	if (spec->group != 0) {
		put_digits_grouped(grouped, sizeof(grouped), num.digits, spec->group);
	} else {
		strcpy(grouped, num.digits);
	}
	n = strlen(num.sign) + strlen(num.prefix) + strlen(grouped);
	pad = spec->width > (int64_t)n ? (size_t)spec->width - n : 0;
	left = align == '<' || align == '=' ? 0 : align == '^' ? pad / 2 : pad;
	pfx_j_put_fill(b, spec->fill, left, spec->mark);
	pfx_j_puts(b, num.sign, v.client);
	pfx_j_puts(b, num.prefix, v.client);
	pfx_j_put_fill(b, spec->fill, align == '=' ? pad : 0, spec->mark);
	pfx_j_puts(b, grouped, v.client);
	pfx_j_put_fill(b, spec->fill, align == '<' || align == '^' ? pad - left : 0, spec->mark);
}

static void put_text(struct pfx_jbuild *b, const struct pfx_jstr *s, const struct spec *spec,
	char otherwise)
{
	char align = spec->align ? spec->align : otherwise;
	size_t pad, left;

	if (s == NULL) {
		return;
	}
	if (spec->precision >= 0 && (uint64_t)spec->precision < s->n_chars) {
		s = pfx_j_part(b->c, s, 0, pfx_j_offset(b->c, s, (size_t)spec->precision));
		if (s == NULL) {
			return;
		}
	}
	pad = spec->width > (int64_t)s->n_chars ? (size_t)spec->width - s->n_chars : 0;
	left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
	pfx_j_put_fill(b, spec->fill, left, spec->mark);
	pfx_j_put_str(b, s);
	pfx_j_put_fill(b, spec->fill, pad - left, spec->mark);
}

static int bounds_ok(struct pfx_jctx *c, const struct spec *spec)
{
	if (spec->width > WIDTH_MAX || spec->precision > WIDTH_MAX) {
		pfx_j_limit(c, "width");
		return 0;
	}
	return 1;
}

/* ---- % ---- */

struct percent {
	struct pfx_jctx *c;
	const struct pfx_jstr *fmt;
	size_t at;
	struct pfx_jval args;
	size_t next; /* of a tuple */
	int named;
};

static struct pfx_jval next_arg(struct percent *p)
{
	size_t n = p->args.type == PFX_J_TUPLE ? p->args.u.l->n : 1;

	if (p->next >= n) {
		pfx_j_fail(p->c, "not enough arguments for format string");
		return pfx_j_none();
	}
	p->next++;
	return p->args.type == PFX_J_TUPLE ? p->args.u.l->v[p->next - 1] : p->args;
}

static char peek(const struct percent *p)
{
	return p->at < p->fmt->n ? p->fmt->s[p->at] : 0;
}

static int64_t percent_number(struct percent *p)
{
	struct pfx_jval v;
	int64_t n = 0;

	if (peek(p) == '*') {
		p->at++;
		v = next_arg(p);
		if (p->c->rc == 0 && !pfx_j_is_int(v)) {
			pfx_j_fail(p->c, "* wants int");
		}
		return p->c->rc == 0 ? v.u.i : 0;
	}
	for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
		n = n > WIDTH_MAX ? n : n * 10 + (peek(p) - '0');
	}
	return n;
}

static struct pfx_jval percent_key(struct percent *p, struct pfx_jval v)
{
	size_t from = ++p->at, depth = 1;
	const struct pfx_jstr *key;
	struct pfx_jval *found;

	for (; p->at < p->fmt->n && depth > 0; p->at++) {
		depth += peek(p) == '(';
		depth -= peek(p) == ')';
	}
	if (depth > 0 || p->args.type != PFX_J_DICT) {
		pfx_j_fail(p->c, depth > 0 ? "incomplete format key" : "format requires a mapping");
		return v;
	}
	key = pfx_j_part(p->c, p->fmt, from, p->at - 1);
	found = key == NULL ? NULL : pfx_j_dict_find(p->c, p->args.u.d, pfx_j_val(key));
	if (found == NULL) {
		pfx_j_fail(p->c, "no such key in the arguments of a format string");
		return v;
	}
	p->named = 1;
	return *found;
}

static void percent_convert(struct pfx_jbuild *b, struct pfx_jval v, struct spec *spec)
{
	struct pfx_jbuild text = pfx_j_build(b->c);

	switch (spec->type) {
	case 's':
		put_text(b, pfx_j_to_str(b->c, v), spec, '>');
		return;
	case 'r':
	case 'a':
		pfx_j_put_repr(&text, v);
		put_text(b, pfx_j_built(&text), spec, '>');
		return;
	case 'c':
		if (v.type == PFX_J_STR && v.u.s->n_chars == 1) {
			put_text(b, v.u.s, spec, '>');
		} else {
			pfx_j_fail(b->c, "%%c requires a character");
		}
		return;
	case 'd':
	case 'i':
	case 'u':
		spec->type = 'd';
		if (v.type == PFX_J_FLOAT && fabs(v.u.f) < 9e18) {
			v.u.i = (int64_t)v.u.f;
			v.type = PFX_J_INT;
		}
		break;
	default:
		if (strchr("fFeEgG", spec->type) != NULL && pfx_j_is_int(v)) {
			v.u.f = (double)v.u.i;
			v.type = PFX_J_FLOAT;
		}
		break;
	}
	if (spec->type != 'd' && (strchr("xXofFeEgG", spec->type) == NULL || spec->type == 0)) {
		pfx_j_fail(b->c, "unsupported format character");
	} else if (!pfx_j_is_number(v) || (strchr("dxXo", spec->type) && v.type == PFX_J_FLOAT)) {
		pfx_j_fail(b->c, "%%%c format: a number is required, not %s", spec->type,
			pfx_j_type_name(v));
	} else if (spec->precision > PRECISION_MAX) {
		pfx_j_limit(b->c, "width");
	} else {
		put_number(b, v, spec);
	}
}

static void percent_one(struct percent *p, struct pfx_jbuild *b)
{
	struct spec spec = { .fill = ' ', .precision = -1, .mark = pfx_j_mark(p->fmt, p->at - 1) };
	struct pfx_jval v = { .type = PFX_J_ABSENT };
	int zero = 0;

	if (peek(p) == '(') {
		v = percent_key(p, v);
	}
	for (; peek(p) != 0 && strchr("#0- +", peek(p)) != NULL; p->at++) {
		zero |= peek(p) == '0';
		spec.alt |= peek(p) == '#';
		spec.align = peek(p) == '-' ? '<' : spec.align;
		spec.sign = peek(p) == '+' || (peek(p) == ' ' && !spec.sign) ? peek(p) : spec.sign;
	}
	spec.width = percent_number(p);
	if (spec.width < 0) {
		spec.align = '<';
		spec.width = spec.width < -WIDTH_MAX ? WIDTH_MAX + 1 : -spec.width;
	}
	if (peek(p) == '.') {
		p->at++;
		spec.precision = percent_number(p);
	}
	while (peek(p) == 'h' || peek(p) == 'l' || peek(p) == 'L') {
		p->at++;
	}
	spec.type = peek(p);
	p->at++;
	if (spec.type == '%') {
		pfx_j_put(b, "%", 1, spec.mark);
		return;
	}
	if (spec.type == 0) {
		pfx_j_fail(p->c, "incomplete format");
		return;
	}
	if (zero && spec.align == 0 && strchr("srac", spec.type) == NULL) {
		spec.fill = '0';
		spec.align = '=';
	}
	if (!pfx_j_given(v)) {
		v = next_arg(p);
	}
	if (p->c->rc == 0 && bounds_ok(p->c, &spec)) {
		percent_convert(b, v, &spec);
	}
}

/* Python asks whether all was used, but not of what could be a mapping (has an index operator). */
static int may_be_left(struct pfx_jval args)
{
	return args.type == PFX_J_DICT || args.type == PFX_J_LIST || args.type == PFX_J_RANGE ||
		args.type == PFX_J_UNDEF;
}

struct pfx_jval pfx_j_percent(struct pfx_jctx *c, const struct pfx_jstr *fmt, struct pfx_jval args)
{
	struct percent p = { .c = c, .fmt = fmt, .args = args };
	struct pfx_jbuild b = pfx_j_build(c);
	const char *hit;
	size_t end;

	b.safe = fmt->safe;
	while (p.at < fmt->n && pfx_j_step(c, 1)) {
		hit = memchr(fmt->s + p.at, '%', fmt->n - p.at);
		end = hit == NULL ? fmt->n : (size_t)(hit - fmt->s);
		pfx_j_put_part(&b, fmt, p.at, end);
		p.at = end + 1;
		if (hit != NULL) {
			percent_one(&p, &b);
		}
	}
	if (!p.named && !may_be_left(args) && p.next < (args.type == PFX_J_TUPLE ? args.u.l->n : 1)) {
		pfx_j_fail(c, "not all arguments converted during string formatting");
	}
	return pfx_j_val(pfx_j_built(&b));
}

/* ---- format ---- */

static int64_t spec_number(const struct pfx_jstr *s, size_t *at, size_t end)
{
	int64_t n = 0;

	for (; *at < end && s->s[*at] >= '0' && s->s[*at] <= '9'; ++*at) {
		n = n > WIDTH_MAX ? n : n * 10 + (s->s[*at] - '0');
	}
	return n;
}

static int is_align(char ch)
{
	return ch == '<' || ch == '>' || ch == '=' || ch == '^';
}

/* [[fill]align][sign][#][0][width][,][.precision][type]; false when there is more. */
static int read_spec(const struct pfx_jstr *s, size_t at, size_t end, struct spec *spec)
{
	size_t len = 0;
	uint32_t cp = at < end ? pfx_j_cp(s, at, &len) : 0;

	if (at + len < end && is_align(s->s[at + len])) {
		spec->fill = cp;
		spec->align = s->s[at + len];
		at += len + 1;
	} else if (at < end && is_align(s->s[at])) {
		spec->align = s->s[at++];
	}
	if (at < end && strchr("+- ", s->s[at]) != NULL && s->s[at] != 0) {
		spec->sign = s->s[at++];
	}
	if (at < end && s->s[at] == '#') {
		spec->alt = 1;
		at++;
	}
	if (at < end && s->s[at] == '0' && spec->align == 0) {
		spec->fill = '0';
		spec->align = '=';
		at++;
	}
	spec->width = spec_number(s, &at, end);
	if (at < end && (s->s[at] == ',' || s->s[at] == '_')) {
		spec->group = s->s[at++];
	}
	if (at < end && s->s[at] == '.') {
		at++;
		spec->precision = spec_number(s, &at, end);
	}
	if (at < end) {
		spec->type = s->s[at++];
	}
	return at == end;
}

static void format_number(struct pfx_jbuild *b, struct pfx_jval v, const struct spec *spec)
{
	const char *types;

	if (pfx_j_is_int(v) && spec->type != 0 && strchr("eEfFgG%", spec->type) != NULL) {
		v.u.f = (double)v.u.i;
		v.type = PFX_J_FLOAT;
	}
	types = v.type == PFX_J_FLOAT ? "eEfFgG%n" : "bdoxXn";
	if ((spec->type != 0 && strchr(types, spec->type) == NULL) || spec->precision > PRECISION_MAX) {
		pfx_j_fail(b->c, "unknown format code '%c' for an object of type '%s'", spec->type,
			pfx_j_type_name(v));
		return;
	}
	put_number(b, v, spec);
}

static void format_value(struct pfx_jbuild *b, struct pfx_jval v, const struct pfx_jstr *fmt,
	size_t at, size_t end)
{
	struct spec spec = { .fill = ' ', .precision = -1, .mark = pfx_j_mark(fmt, at) };

	if (at >= end) {
		pfx_j_put_val(b, v);
		return;
	}
	if (!read_spec(fmt, at, end, &spec)) {
		pfx_j_fail(b->c, "invalid format specifier");
		return;
	}
	if (!bounds_ok(b->c, &spec)) {
		return;
	}
	if (v.type == PFX_J_STR) {
		if ((spec.type != 0 && spec.type != 's') || spec.align == '=' || spec.sign != 0) {
			pfx_j_fail(b->c, "unknown format code for a str");
			return;
		}
		put_text(b, v.u.s, &spec, '<');
	} else if (pfx_j_is_number(v)) {
		format_number(b, v, &spec);
	} else {
		pfx_j_fail(b->c, "unsupported format string passed to %s.__format__", pfx_j_type_name(v));
	}
}

struct fields {
	struct pfx_jctx *c;
	const struct pfx_jstr *fmt;
	const struct pfx_jargs *args;
	size_t next; /* the next one without a number */
};

/* A run of at most nine digits as a number, -1 for anything else. */
static int64_t small_number(const struct pfx_jstr *s)
{
	int64_t n = 0;

	for (size_t i = 0; i < s->n; i++) {
		if (s->s[i] < '0' || s->s[i] > '9' || i == 9) {
			return -1;
		}
		n = n * 10 + (s->s[i] - '0');
	}
	return s->n == 0 ? -1 : n;
}

/* The argument that a field's first name stands for: the next one, a number, a keyword. */
static struct pfx_jval field_argument(struct fields *f, const struct pfx_jstr *name)
{
	int64_t k = name->n == 0 ? (int64_t)f->next++ : small_number(name);

	if (k >= 0 && (uint64_t)k < f->args->n) {
		return f->args->v[k];
	}
	for (size_t i = 0; i < f->args->n_kw; i++) {
		if (pfx_j_str_eq(f->args->kw[i].name, name)) {
			return f->args->kw[i].val;
		}
	}
	pfx_j_fail(f->c, "a field of a format string has no argument");
	return pfx_j_none();
}

/* Where one name of a field ends: a bare one, or one in brackets. */
static size_t name_end(const struct pfx_jstr *fmt, size_t at, size_t end, int item)
{
	while (at < end && (item ? fmt->s[at] != ']' : fmt->s[at] != '.' && fmt->s[at] != '[')) {
		at++;
	}
	return at;
}

/* What the name [at, end) of a field stands for, its .attributes and [items] applied. */
static struct pfx_jval field_value(struct fields *f, size_t at, size_t end)
{
	size_t to = name_end(f->fmt, at, end, 0);
	const struct pfx_jstr *name = pfx_j_part(f->c, f->fmt, at, to);
	struct pfx_jval v = name == NULL ? pfx_j_none() : field_argument(f, name);
	int item;

	for (at = to; at < end && f->c->rc == 0; at = to + (item && to < end)) {
		item = f->fmt->s[at] == '[';
		to = name_end(f->fmt, at + 1, end, item);
		name = pfx_j_part(f->c, f->fmt, at + 1, to);
		if (name == NULL) {
			break;
		}
		if (!item) {
			v = pfx_j_getattr(f->c, v, name);
		} else if (small_number(name) >= 0) {
			v = pfx_j_getitem(f->c, v, pfx_j_int(small_number(name)));
		} else {
			v = pfx_j_getitem(f->c, v, pfx_j_val(name));
		}
	}
	return v;
}

/* A field "{name!conversion:spec}" whose inside is [at, end). */
static void format_field(struct fields *f, struct pfx_jbuild *b, size_t at, size_t end)
{
	struct pfx_jbuild text = pfx_j_build(f->c);
	size_t name = at, bracket = 0;
	struct pfx_jval v;
	char conversion = 0;

	for (; at < end && (bracket || (f->fmt->s[at] != '!' && f->fmt->s[at] != ':')); at++) {
		bracket = f->fmt->s[at] == '[' ? 1 : f->fmt->s[at] == ']' ? 0 : bracket;
	}
	v = field_value(f, name, at);
	if (at + 1 < end && f->fmt->s[at] == '!') {
		conversion = f->fmt->s[at + 1];
		at += 2;
	}
	if (at < end && f->fmt->s[at] != ':') {
		pfx_j_fail(f->c, "expected ':' after conversion specifier");
	}
	if (f->c->rc != 0) {
		return;
	}
	if (conversion == 's') {
		v = pfx_j_val(pfx_j_to_str(f->c, v));
	} else if (conversion == 'r' || conversion == 'a') {
		pfx_j_put_repr(&text, v);
		v = pfx_j_val(pfx_j_built(&text));
	} else if (conversion != 0) {
		pfx_j_fail(f->c, "unknown conversion specifier");
	}
	if (f->c->rc == 0) {
		format_value(b, v, f->fmt, at + (at < end), end);
	}
}

struct pfx_jval pfx_j_format(struct pfx_jctx *c, const struct pfx_jstr *fmt,
	const struct pfx_jargs *args)
{
	struct fields f = { .c = c, .fmt = fmt, .args = args };
	struct pfx_jbuild b = pfx_j_build(c);
	size_t at = 0, end;
	char ch;

	b.safe = fmt->safe;
	while (at < fmt->n && pfx_j_step(c, 1)) {
		for (end = at; end < fmt->n && fmt->s[end] != '{' && fmt->s[end] != '}'; end++) {
		}
		pfx_j_put_part(&b, fmt, at, end);
		if (end == fmt->n) {
			break;
		}
		ch = fmt->s[end];
		if (end + 1 < fmt->n && fmt->s[end + 1] == ch) {
			pfx_j_put_part(&b, fmt, end, end + 1);
			at = end + 2;
			continue;
		}
		for (at = ++end; end < fmt->n && fmt->s[end] != '}' && fmt->s[end] != '{'; end++) {
		}
		if (ch == '}' || end >= fmt->n || fmt->s[end] == '{') {
			pfx_j_fail(c, "a brace without its partner (or a nested field) in a format string");
			break;
		}
		format_field(&f, &b, at, end);
		at = end + 1;
	}
	return pfx_j_val(pfx_j_built(&b));
}
