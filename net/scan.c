#include "net/scan.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"

struct cursor {
	const char *p, *end;
	uint32_t n_values; /* of those that are left to the library, or so */
};

static void skip_space(struct cursor *c)
{
	while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\r' || *c->p == '\n')) {
		c->p++;
	}
}

/* Takes one byte; 0 when another one stands there. */
static int take(struct cursor *c, char want)
{
	if (c->p == c->end || *c->p != want) {
		return 0;
	}
	c->p++;
	return 1;
}

/* Which of eight bytes are zero: 0x80 at those, and perhaps above the lowest one. */
static uint64_t zeros(uint64_t v)
{
	return (v - 0x0101010101010101u) & ~v & 0x8080808080808080u;
}

/* Eight bytes without a quote or backslash among them. */
static int inside8(const char *p)
{
	const uint64_t ones = 0x0101010101010101u;
	uint64_t v;

	memcpy(&v, p, 8);
	return (zeros(v ^ (ones * '"')) | zeros(v ^ (ones * '\\'))) == 0;
}

/* Eight bytes that all stand for themselves: ASCII besides, and no control. */
static int plain8(const char *p)
{
	const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
	uint64_t v;

	memcpy(&v, p, 8);
	return (((v | (v - ones * 0x20)) & high) | zeros(v ^ (ones * '"')) | zeros(v ^ (ones * '\\'))) == 0;
}

/* Behind the opening quote; goes behind the closing one. Judges nothing but where it ends. */
static int skip_string(struct cursor *c)
{
	while (c->p < c->end) {
		char b;

		while (c->end - c->p >= 8 && inside8(c->p)) {
			c->p += 8;
		}
		if (c->p == c->end) {
			return 0;
		}
		b = *c->p++;
		if (b == '"') {
			return 1;
		}
		if (b == '\\') {
			if (c->p == c->end) {
				return 0;
			}
			c->p++;
		}
	}
	return 0;
}

/* Skips any value. 1, 0 when it does not end, PFX_E_LIMIT. */
static int skip_value(struct cursor *c)
{
	int depth = 0;

	while (c->p < c->end) {
		char b = *c->p;

		if (depth == 0 && (b == ',' || b == '}' || b == ']')) {
			return 1;
		}
		c->p++;
		if (b == '"') {
			if (!skip_string(c)) {
				return 0;
			}
		} else if (b == '[' || b == '{') {
			if (++depth >= PFX_SCAN_DEPTH_MAX || ++c->n_values > PFX_SCAN_VALUES_MAX) {
				return PFX_E_LIMIT;
			}
		} else if (b == ',') {
			if (++c->n_values > PFX_SCAN_VALUES_MAX) {
				return PFX_E_LIMIT;
			}
		} else if (b == ']' || b == '}') {
			depth--;
		}
	}
	return 0;
}

static int hex4(const char *p)
{
	int v = 0;

	for (int i = 0; i < 4; i++) {
		int d = p[i];

		d = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10
			: d >= 'A' && d <= 'F' ? d - 'A' + 10 : -1;
		if (d < 0) {
			return -1;
		}
		v = v * 16 + d;
	}
	return v;
}

/* Behind "\u"; writes the character. Surrogates come in proper pairs or not at all. */
static int unescape_u(struct cursor *c, char *out, size_t *len)
{
	uint32_t cp;
	int hi, lo;

	if (c->end - c->p < 4) {
		return 0;
	}
	hi = hex4(c->p);
	c->p += 4;
	if (hi < 0 || (hi >= 0xdc00 && hi <= 0xdfff)) {
		return 0;
	}
	cp = (uint32_t)hi;
	if (hi >= 0xd800 && hi <= 0xdbff) {
		if (c->end - c->p < 6 || c->p[0] != '\\' || c->p[1] != 'u') {
			return 0;
		}
		lo = hex4(c->p + 2);
		c->p += 6;
		if (lo < 0xdc00 || lo > 0xdfff) {
			return 0;
		}
		cp = 0x10000 + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00);
	}
	*len += (size_t)pfx_utf8_put(cp, out + *len);
	return 1;
}

/* Behind a backslash. */
static int unescape(struct cursor *c, char *out, size_t *len)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char *at;
	char b;

	if (c->p == c->end) {
		return 0;
	}
	b = *c->p++;
	if (b == 'u') {
		return unescape_u(c, out, len);
	}
	at = b == 0 ? NULL : strchr(from, b);
	if (at == NULL) {
		return 0;
	}
	out[(*len)++] = to[at - from];
	return 1;
}

/*
 * Behind the opening quote. Decodes into out, which has room for the encoded length (no
 * escape is shorter than what it stands for). 0 at anything that is not valid.
 */
static int read_string(struct cursor *c, char *out, size_t *out_len)
{
	size_t len = 0;

	while (c->p < c->end) {
		unsigned char b;
		int k;

		while (c->end - c->p >= 8 && plain8(c->p)) {
			memcpy(out + len, c->p, 8);
			len += 8;
			c->p += 8;
		}
		if (c->p == c->end) {
			return 0;
		}
		b = (unsigned char)*c->p;
		if (b == '"') {
			c->p++;
			*out_len = len;
			return 1;
		}
		if (b == '\\') {
			c->p++;
			if (!unescape(c, out, &len)) {
				return 0;
			}
			continue;
		}
		k = b < 0x20 ? -1 : b < 0x80 ? 1 : pfx_utf8_next(c->p, (size_t)(c->end - c->p), NULL);
		if (k <= 0) {
			return 0;
		}
		memcpy(out + len, c->p, (size_t)k);
		len += (size_t)k;
		c->p += k;
	}
	return 0;
}

/*
 * Behind '['. Plain integers below 2^32 alone; out has room for half the encoded length. The
 * common form, no spaces and five digits, is what the loop is for.
 */
static int read_ids(struct cursor *c, uint32_t *out, size_t *n)
{
	const char *p, *const end = c->end;
	size_t k = 0;

	skip_space(c);
	p = c->p;
	for (;;) {
		const char *start = p;
		uint64_t v = 0;

		while (p < end && (unsigned char)(*p - '0') <= 9 && p - start < 11) {
			v = v * 10 + (uint64_t)(*p++ - '0');
		}
		if (p == start || v > UINT32_MAX || (*start == '0' && p - start > 1)) {
			return 0;
		}
		out[k++] = (uint32_t)v;
		if (p < end && *p == ',') {
			p++;
			if (p < end && (unsigned char)(*p - '0') <= 9) {
				continue;
			}
			c->p = p;
		} else {
			c->p = p;
			skip_space(c);
			if (take(c, ']')) {
				*n = k;
				return 1;
			}
			if (!take(c, ',')) {
				return 0;
			}
		}
		skip_space(c);
		p = c->p;
	}
}

static int key_is(const char *key, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(key, want, len) == 0;
}

/* Copies the line up to `from` and puts an empty value for what is lifted, up to `to`. */
static void cut(struct pfx_scan *s, struct cursor *c, const char **copied, const char *to,
	const char *empty)
{
	pfx_buf_add(&s->rest, *copied, (size_t)(c->p - *copied));
	pfx_buf_adds(&s->rest, empty);
	c->p = to;
	*copied = to;
}

/* Each lift_ function stands at a value. 1: lifted, c is behind it; 0: it stays; -ENOMEM. */
static int lift_string(struct pfx_scan *s, struct cursor *c, char **slot, size_t *slot_len,
	const char **copied)
{
	struct cursor in = { c->p + 1, c->end, 0 };
	size_t room = (size_t)(c->end - c->p);
	char *out = *slot != NULL ? NULL : pfx_malloc(room), *fit;

	if (*slot != NULL) {
		return 0;
	}
	if (out == NULL) {
		return -ENOMEM;
	}
	if (!read_string(&in, out, slot_len)) {
		pfx_free(out);
		return 0;
	}
	out[*slot_len] = 0;
	fit = *slot_len + 1 < room / 2 ? pfx_realloc(out, *slot_len + 1) : NULL;
	*slot = fit != NULL ? fit : out;
	cut(s, c, copied, in.p, "\"\"");
	return 1;
}

static int lift_tokens(struct pfx_scan *s, struct cursor *c, const char **copied)
{
	struct cursor in = { c->p + 1, c->end, 0 };
	uint32_t *out, *fit;

	if (s->tokens != NULL) {
		return 0;
	}
	/* Most of this is never touched, and given back below. */
	out = pfx_reallocarray(NULL, (size_t)(c->end - c->p) / 2 + 1, sizeof(*out));
	if (out == NULL) {
		return -ENOMEM;
	}
	if (!read_ids(&in, out, &s->n_tokens)) {
		pfx_free(out);
		return 0;
	}
	fit = pfx_reallocarray(out, s->n_tokens, sizeof(*out));
	s->tokens = fit != NULL ? fit : out;
	cut(s, c, copied, in.p, "[]");
	return 1;
}

static int lift(struct pfx_scan *s, const char *key, size_t key_len, struct cursor *c,
	const char **copied)
{
	if (c->end - c->p < PFX_SCAN_MIN) {
		return 0;
	}
	if (*c->p == '"' && key_is(key, key_len, "prompt")) {
		return lift_string(s, c, &s->prompt, &s->prompt_len, copied);
	}
	if (*c->p == '"' && key_is(key, key_len, "text")) {
		return lift_string(s, c, &s->text, &s->text_len, copied);
	}
	if (*c->p == '[' && key_is(key, key_len, "tokens")) {
		return lift_tokens(s, c, copied);
	}
	return 0;
}

/* 1: all lifted that can be, 0: not an object as it should be, or a negative code. */
static int scan_members(struct pfx_scan *s, struct cursor *c, const char **copied)
{
	do {
		const char *key;
		size_t key_len;
		int rc;

		if (++c->n_values > PFX_SCAN_VALUES_MAX) {
			return PFX_E_LIMIT;
		}
		skip_space(c);
		if (!take(c, '"')) {
			return 0;
		}
		key = c->p;
		if (!skip_string(c)) {
			return 0;
		}
		key_len = (size_t)(c->p - 1 - key);
		skip_space(c);
		if (!take(c, ':')) {
			return 0;
		}
		skip_space(c);
		rc = lift(s, key, key_len, c, copied);
		rc = rc == 0 ? skip_value(c) : rc;
		if (rc <= 0) {
			return rc;
		}
		skip_space(c);
	} while (take(c, ','));
	return take(c, '}');
}

int pfx_scan(struct pfx_scan *s, const char *line, size_t n)
{
	struct cursor c = { line, line + n, 0 };
	const char *copied = line;
	int rc;

	memset(s, 0, sizeof(*s));
	skip_space(&c);
	if (!take(&c, '{')) {
		/* No object: the library says so, once it has read what there is. */
		rc = skip_value(&c);
		return rc < 0 ? rc : 0;
	}
	rc = scan_members(s, &c, &copied);
	if (rc > 0 && copied != line) {
		pfx_buf_add(&s->rest, copied, (size_t)(c.end - copied));
		rc = s->rest.oom ? -ENOMEM : 1;
	}
	if (rc <= 0) {
		pfx_scan_free(s);
	}
	return rc < 0 ? rc : 0;
}

void pfx_scan_free(struct pfx_scan *s)
{
	pfx_buf_free(&s->rest);
	pfx_free(s->prompt);
	pfx_free(s->text);
	pfx_free(s->tokens);
	memset(s, 0, sizeof(*s));
}
