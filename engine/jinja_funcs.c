/* Functions that every template has. */

#include "config.h"

#include <string.h>
#include <time.h>

#include "engine/jinja_call.h"
#include "engine/jinja_text.h"

#define FUNCTION(name) \
	static struct pfx_jval name(struct pfx_jctx *c, struct pfx_jval self, \
		const struct pfx_jval *arg, const struct pfx_jargs *all)

/* jinja2's sandbox allows no longer ones. */
#define RANGE_MAX 100000

FUNCTION(fn_raise_exception)
{
	pfx_j_raise(c, pfx_j_to_str(c, arg[0]));
	return pfx_j_none();
}

FUNCTION(fn_namespace)
{
	return pfx_j_make_dict(c, all, PFX_J_SPACE);
}

FUNCTION(fn_dict)
{
	return pfx_j_make_dict(c, all, PFX_J_DICT);
}

FUNCTION(fn_range)
{
	int64_t start = 0, stop = pfx_j_arg_int(c, arg[0], 0), step = pfx_j_arg_int(c, arg[2], 1);
	struct pfx_jval v;

	if (pfx_j_given(arg[1])) {
		start = stop;
		stop = pfx_j_arg_int(c, arg[1], 0);
	}
	if (step == 0) {
		pfx_j_fail(c, "range() arg 3 must not be zero");
	}
	if (c->rc != 0) {
		return pfx_j_none();
	}
	v = pfx_j_range(c, start, stop, step);
	if (c->rc == 0 && v.u.r->n > RANGE_MAX) {
		pfx_j_fail(c, "Range too big. The sandbox blocks ranges larger than %d.", RANGE_MAX);
	}
	return v;
}

/* A naive time: Python prints nothing for the zone. */
static const struct pfx_jstr *without_zone(struct pfx_jctx *c, const struct pfx_jstr *fmt)
{
	struct pfx_jbuild b = pfx_j_build(c);

	for (size_t i = 0; i < fmt->n && c->rc == 0; i++) {
		if (fmt->s[i] != '%' || i + 1 == fmt->n) {
			pfx_j_put(&b, fmt->s + i, 1, 0);
			continue;
		}
		i++;
		if (fmt->s[i] == 'f') {
			pfx_j_puts(&b, "000000", 0);
		} else if (fmt->s[i] != 'z' && fmt->s[i] != 'Z' && fmt->s[i] != 0) {
			pfx_j_put(&b, fmt->s + i - 1, 2, 0);
		}
	}
	pfx_j_put(&b, "", 1, 0);
	return pfx_j_built(&b);
}

FUNCTION(fn_strftime_now)
{
	const struct pfx_jstr *fmt = pfx_j_need_str(c, arg[0], "strftime_now's format");
	struct tm now = { 0 };
	time_t t = time(NULL);
	char *text;
	size_t n;
	int client = fmt != NULL && pfx_j_tainted(fmt);

	fmt = fmt == NULL ? NULL : without_zone(c, fmt);
	if (fmt == NULL) {
		return pfx_j_none();
	}
	if (c->now != NULL) {
		/* Fills in the day of the week and of the year, whatever the zone. */
		now = *c->now;
		timegm(&now);
	} else {
		localtime_r(&t, &now);
	}
	n = fmt->n * 16 + 64;
	text = n > c->text_max ? (pfx_j_limit(c, "text"), NULL) : pfx_j_alloc(c, n);
	if (text == NULL) {
		return pfx_j_none();
	}
	return pfx_j_val(pfx_j_str(c, text, strftime(text, n, fmt->s, &now), client));
}

static const struct pfx_jdef functions[] = {
	{ "raise_exception", fn_raise_exception, "message", 1 },
	{ "namespace", fn_namespace, "*", 0 },
	{ "dict", fn_dict, "*", 0 },
	{ "range", fn_range, "start stop step", 1 },
	{ "strftime_now", fn_strftime_now, "format", 1 },
};

const struct pfx_jdef *pfx_j_function(size_t i)
{
	return i < sizeof(functions) / sizeof(functions[0]) ? &functions[i] : NULL;
}
