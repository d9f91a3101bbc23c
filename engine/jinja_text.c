#include "engine/jinja_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_ast.h"

void pfx_j_float_text(double f, char out[40])
{
	char digits[40], *e;
	int precision, exp, n;

	if (!isfinite(f)) {
		strcpy(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
		return;
	}
	for (precision = 0; precision < 17; precision++) {
		snprintf(digits, sizeof(digits), "%.*e", precision, f);
		if (strtod(digits, NULL) == f) {
			break;
		}
	}
	e = strchr(digits, 'e');
	exp = atoi(e + 1);
	if (exp < -4 || exp >= 16) {
		*e = 0;
		snprintf(out, 40, "%.24se%c%02d", digits, exp < 0 ? '-' : '+', abs(exp) % 1000);
		return;
	}
	n = snprintf(out, 40, "%.*f", precision > exp ? precision - exp : 0, f);
	if (strchr(out, '.') == NULL) {
		snprintf(out + n, 40 - (size_t)n, ".0");
	}
}

static void put_scalar(struct pfx_jbuild *b, struct pfx_jval v)
{
	char text[40];

	switch ((enum pfx_jtype)v.type) {
	case PFX_J_NONE:
		pfx_j_puts(b, "None", v.client);
		break;
	case PFX_J_BOOL:
		pfx_j_puts(b, v.u.i ? "True" : "False", v.client);
		break;
	case PFX_J_INT:
		snprintf(text, sizeof(text), "%lld", (long long)v.u.i);
		pfx_j_puts(b, text, v.client);
		break;
	default:
		pfx_j_float_text(v.u.f, text);
		pfx_j_puts(b, text, v.client);
		break;
	}
}

static void put_str_repr(struct pfx_jbuild *b, const struct pfx_jstr *s)
{
	int whose = pfx_j_tainted(s), mark;
	char quote = memchr(s->s, '\'', s->n) != NULL && memchr(s->s, '"', s->n) == NULL ? '"' : '\'';
	char text[16];
	uint32_t cp;
	size_t len;

	pfx_j_put(b, &quote, 1, whose);
	for (size_t i = 0; i < s->n && pfx_j_step(b->c, i % 16 == 0); i += len) {
		cp = pfx_j_cp(s, i, &len);
		mark = pfx_j_mark(s, i);
		if (cp == (uint32_t)quote || cp == '\\') {
			text[0] = '\\';
			text[1] = (char)cp;
			pfx_j_put(b, text, 2, mark);
		} else if (cp == '\n' || cp == '\r' || cp == '\t') {
			pfx_j_puts(b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t", mark);
		} else if (pfx_j_is_printable(cp)) {
			pfx_j_put_part(b, s, i, i + len);
		} else {
			snprintf(text, sizeof(text), cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x"
				: "\\U%08x", cp);
			pfx_j_puts(b, text, mark);
		}
	}
	pfx_j_put(b, &quote, 1, whose);
}

static void put_items_repr(struct pfx_jbuild *b, const struct pfx_jlist *l, const char *open,
	const char *close)
{
	pfx_j_puts(b, open, l->client);
	for (size_t i = 0; i < l->n && b->c->rc == 0; i++) {
		if (i > 0) {
			pfx_j_puts(b, ", ", l->client);
		}
		pfx_j_put_repr(b, l->v[i]);
	}
	pfx_j_puts(b, close, l->client);
}

static void put_dict_repr(struct pfx_jbuild *b, const struct pfx_jdict *d)
{
	pfx_j_puts(b, "{", d->client);
	for (size_t i = 0; i < d->n && b->c->rc == 0; i++) {
		if (i > 0) {
			pfx_j_puts(b, ", ", d->client);
		}
		pfx_j_put_repr(b, d->v[i].key);
		pfx_j_puts(b, ": ", d->client);
		pfx_j_put_repr(b, d->v[i].val);
	}
	pfx_j_puts(b, "}", d->client);
}

static void put_range_repr(struct pfx_jbuild *b, const struct pfx_jrange *r)
{
	char text[96];

	if (r->step == 1) {
		snprintf(text, sizeof(text), "range(%lld, %lld)", (long long)r->start,
			(long long)r->stop);
	} else {
		snprintf(text, sizeof(text), "range(%lld, %lld, %lld)", (long long)r->start,
			(long long)r->stop, (long long)r->step);
	}
	pfx_j_puts(b, text, 0);
}

static void put_container_repr(struct pfx_jbuild *b, struct pfx_jval v)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_LIST:
		put_items_repr(b, v.u.l, "[", "]");
		break;
	case PFX_J_TUPLE:
		put_items_repr(b, v.u.l, "(", v.u.l->n == 1 ? ",)" : ")");
		break;
	case PFX_J_VIEW:
		pfx_j_puts(b, v.u.l->what, v.u.l->client);
		put_items_repr(b, v.u.l, "([", "])");
		break;
	case PFX_J_DICT:
		put_dict_repr(b, v.u.d);
		break;
	case PFX_J_SPACE:
		pfx_j_puts(b, "<Namespace ", 0);
		put_dict_repr(b, v.u.d);
		pfx_j_puts(b, ">", 0);
		break;
	default:
		/* Python would show an address here; we have none to show. */
		pfx_j_puts(b, "<", 0);
		pfx_j_puts(b, pfx_j_type_name(v), 0);
		pfx_j_puts(b, ">", 0);
		break;
	}
}

void pfx_j_put_repr(struct pfx_jbuild *b, struct pfx_jval v)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_ABSENT:
	case PFX_J_UNDEF:
		pfx_j_puts(b, "Undefined", 0);
		break;
	case PFX_J_NONE:
	case PFX_J_BOOL:
	case PFX_J_INT:
	case PFX_J_FLOAT:
		put_scalar(b, v);
		break;
	case PFX_J_STR:
		if (v.u.s->safe) {
			pfx_j_puts(b, "Markup(", pfx_j_tainted(v.u.s));
		}
		put_str_repr(b, v.u.s);
		if (v.u.s->safe) {
			pfx_j_puts(b, ")", pfx_j_tainted(v.u.s));
		}
		break;
	case PFX_J_RANGE:
		put_range_repr(b, v.u.r);
		break;
	default:
		if (pfx_j_enter(b->c)) {
			put_container_repr(b, v);
			pfx_j_leave(b->c);
		}
		break;
	}
}

void pfx_j_put_val(struct pfx_jbuild *b, struct pfx_jval v)
{
	if (v.type == PFX_J_STR) {
		pfx_j_put_str(b, v.u.s);
	} else if (v.type != PFX_J_UNDEF && v.type != PFX_J_ABSENT) {
		pfx_j_put_repr(b, v);
	}
}

const struct pfx_jstr *pfx_j_to_str(struct pfx_jctx *c, struct pfx_jval v)
{
	struct pfx_jbuild b = pfx_j_build(c);

	if (v.type == PFX_J_STR) {
		return v.u.s;
	}
	pfx_j_put_val(&b, v);
	return pfx_j_built(&b);
}

/* ---- JSON ---- */

static void put_json_ascii(struct pfx_jbuild *b, uint32_t cp, int mark)
{
	char text[16];

	if (cp >= 0x10000) {
		cp -= 0x10000;
		snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xD800 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
	} else {
		snprintf(text, sizeof(text), "\\u%04x", cp);
	}
	pfx_j_puts(b, text, mark);
}

static void put_json_str(struct pfx_jbuild *b, const struct pfx_jstr *s, int ascii)
{
	static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
	int whose = pfx_j_tainted(s), mark;
	const char *hit;
	char pair[2] = { '\\' };
	size_t len, plain = 0;
	uint32_t cp;

	pfx_j_put(b, "\"", 1, whose);
	for (size_t i = 0; i < s->n && pfx_j_step(b->c, i % 16 == 0); i += len) {
		cp = pfx_j_cp(s, i, &len);
		if (cp >= 0x20 && cp != '"' && cp != '\\' && (!ascii || cp < 0x7F)) {
			continue;
		}
		pfx_j_put_part(b, s, plain, i);
		plain = i + len;
		mark = pfx_j_mark(s, i);
		hit = cp == 0 || cp > 0x7F ? NULL : strchr(from, (int)cp);
		if (hit != NULL) {
			pair[1] = to[hit - from];
			pfx_j_put(b, pair, 2, mark);
		} else {
			put_json_ascii(b, cp, mark);
		}
	}
	pfx_j_put_part(b, s, plain, s->n);
	pfx_j_put(b, "\"", 1, whose);
}

/* true, false and null are spelled as in JSON; NaN and Infinity as Python does. */
static void put_json_scalar(struct pfx_jbuild *b, struct pfx_jval v)
{
	if (v.type == PFX_J_NONE) {
		pfx_j_puts(b, "null", v.client);
	} else if (v.type == PFX_J_BOOL) {
		pfx_j_puts(b, v.u.i ? "true" : "false", v.client);
	} else if (v.type == PFX_J_FLOAT && !isfinite(v.u.f)) {
		pfx_j_puts(b, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity", v.client);
	} else {
		put_scalar(b, v);
	}
}

static void put_json(struct pfx_jbuild *b, struct pfx_jval v, const struct pfx_jjson *how,
	uint32_t level);

static void put_line(struct pfx_jbuild *b, const struct pfx_jjson *how, uint32_t level, int client)
{
	if (how->indent == NULL) {
		return;
	}
	pfx_j_put(b, "\n", 1, client);
	for (uint32_t i = 0; i < level; i++) {
		pfx_j_put_str(b, how->indent);
	}
}

static void put_json_list(struct pfx_jbuild *b, const struct pfx_jlist *l,
	const struct pfx_jjson *how, uint32_t level)
{
	pfx_j_puts(b, "[", l->client);
	for (size_t i = 0; i < l->n && b->c->rc == 0; i++) {
		if (i > 0) {
			pfx_j_put(b, how->comma->s, how->comma->n, l->client || how->comma->client);
		}
		put_line(b, how, level + 1, l->client);
		put_json(b, l->v[i], how, level + 1);
	}
	if (l->n > 0) {
		put_line(b, how, level, l->client);
	}
	pfx_j_puts(b, "]", l->client);
}

static void put_json_key(struct pfx_jbuild *b, struct pfx_jval key, const struct pfx_jjson *how)
{
	switch ((enum pfx_jtype)key.type) {
	case PFX_J_STR:
		put_json_str(b, key.u.s, how->ascii);
		break;
	case PFX_J_NONE:
	case PFX_J_BOOL:
	case PFX_J_INT:
	case PFX_J_FLOAT:
		pfx_j_puts(b, "\"", key.client);
		put_json_scalar(b, key);
		pfx_j_puts(b, "\"", key.client);
		break;
	default:
		pfx_j_fail(b->c, "keys must be str, int, float, bool or None, not %s",
			pfx_j_type_name(key));
		break;
	}
}

/* The entries in the order in which they are written; one of Python's sorts, if asked for. */
static struct pfx_jval json_order(struct pfx_jctx *c, const struct pfx_jdict *d,
	const struct pfx_jjson *how)
{
	struct pfx_jval order = pfx_j_list(c, PFX_J_LIST), keys = pfx_j_list(c, PFX_J_LIST);

	for (size_t i = 0; i < d->n && c->rc == 0; i++) {
		pfx_j_push(c, order, pfx_j_int((int64_t)i));
		pfx_j_push(c, keys, d->v[i].key);
	}
	if (how->sort_keys) {
		pfx_j_sort(c, order, keys, 0);
	}
	return order;
}

static void put_json_dict(struct pfx_jbuild *b, const struct pfx_jdict *d,
	const struct pfx_jjson *how, uint32_t level)
{
	struct pfx_jval order = json_order(b->c, d, how);
	const struct pfx_jentry *e;

	pfx_j_puts(b, "{", d->client);
	for (size_t i = 0; b->c->rc == 0 && i < order.u.l->n; i++) {
		e = &d->v[order.u.l->v[i].u.i];
		if (i > 0) {
			pfx_j_put(b, how->comma->s, how->comma->n, d->client || how->comma->client);
		}
		put_line(b, how, level + 1, d->client);
		put_json_key(b, e->key, how);
		pfx_j_put(b, how->colon->s, how->colon->n, d->client || how->colon->client);
		put_json(b, e->val, how, level + 1);
	}
	if (d->n > 0) {
		put_line(b, how, level, d->client);
	}
	pfx_j_puts(b, "}", d->client);
}

static void put_json(struct pfx_jbuild *b, struct pfx_jval v, const struct pfx_jjson *how,
	uint32_t level)
{
	switch ((enum pfx_jtype)v.type) {
	case PFX_J_STR:
		put_json_str(b, v.u.s, how->ascii);
		return;
	case PFX_J_NONE:
	case PFX_J_BOOL:
	case PFX_J_INT:
	case PFX_J_FLOAT:
		put_json_scalar(b, v);
		return;
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_DICT:
		break;
	default:
		pfx_j_fail(b->c, "Object of type %s is not JSON serializable", pfx_j_type_name(v));
		return;
	}
	if (!pfx_j_enter(b->c)) {
		return;
	}
	if (v.type == PFX_J_DICT) {
		put_json_dict(b, v.u.d, how, level);
	} else {
		put_json_list(b, v.u.l, how, level);
	}
	pfx_j_leave(b->c);
}

void pfx_j_put_json(struct pfx_jbuild *b, struct pfx_jval v, const struct pfx_jjson *how)
{
	put_json(b, v, how, 0);
}

struct pfx_jval pfx_j_load_json(struct pfx_jctx *c, const struct pfx_jstr *s)
{
	struct pfx_jval v = pfx_j_none();
	json_error_t error;
	json_t *j;

	if (s == NULL || !pfx_j_step(c, s->n / 8)) {
		return v;
	}
	j = json_loadb(s->s, s->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	if (j == NULL) {
		pfx_j_fail(c, "from_json: %s", error.text);
		return v;
	}
	v = pfx_j_from_json(c, j, pfx_j_tainted(s), 1);
	json_decref(j);
	return v;
}
