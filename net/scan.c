#include "net/scan.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"

struct cursor {
	const char *p, *end;
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

/* Behind the opening quote; goes behind the closing one. Judges nothing but where it ends. */
static int skip_string(struct cursor *c)
{
	while (c->p < c->end) {
		char b = *c->p++;

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
			if (++depth >= PFX_SCAN_DEPTH_MAX) {
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

/* Eight bytes that all stand for themselves: ASCII, no control, quote or backslash. */
static int plain8(const char *p)
{
	const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
	uint64_t v, quote, slash;

	memcpy(&v, p, 8);
	quote = v ^ (ones * '"');
	slash = v ^ (ones * '\\');
	return ((v | (v - ones * 0x20) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & high)
		== 0;
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

/* Behind '['. Plain integers below 2^32 alone; out has room for half the encoded length. */
static int read_ids(struct cursor *c, uint32_t *out, size_t *n)
{
	size_t k = 0;

	skip_space(c);
	for (;;) {
		const char *start = c->p;
		uint64_t v = 0;

		while (c->p < c->end && *c->p >= '0' && *c->p <= '9' && c->p - start < 11) {
			v = v * 10 + (uint64_t)(*c->p++ - '0');
		}
		if (c->p == start || v > UINT32_MAX || (*start == '0' && c->p - start > 1)) {
			return 0;
		}
		out[k++] = (uint32_t)v;
		skip_space(c);
		if (take(c, ']')) {
			*n = k;
			return 1;
		}
		if (!take(c, ',')) {
			return 0;
		}
		skip_space(c);
	}
}

static int key_is(const char *key, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(key, want, len) == 0;
}

/* Copies the line up to `from` and puts an empty value for what is lifted. */
static void cut(struct pfx_scan *s, const char **copied, const char *from, const char *end,
	const char *empty)
{
	pfx_buf_add(&s->rest, *copied, (size_t)(from - *copied));
	pfx_buf_adds(&s->rest, empty);
	*copied = end;
}

static int lift_string(struct pfx_scan *s, char **slot, size_t *slot_len, const char *from,
	size_t size, const char **copied)
{
	struct cursor in = { from + 1, from + size };
	char *out;

	if (*slot != NULL) {
		return 1;
	}
	out = pfx_malloc(size);
	if (out == NULL) {
		return -ENOMEM;
	}
	if (!read_string(&in, out, slot_len)) {
		pfx_free(out);
		return 1;
	}
	out[*slot_len] = 0;
	*slot = out;
	cut(s, copied, from, in.p, "\"\"");
	return 1;
}

static int lift_tokens(struct pfx_scan *s, const char *from, size_t size, const char **copied)
{
	struct cursor in = { from + 1, from + size };
	uint32_t *out, *fit;

	if (s->tokens != NULL) {
		return 1;
	}
	out = pfx_reallocarray(NULL, size / 2 + 1, sizeof(*out));
	if (out == NULL) {
		return -ENOMEM;
	}
	if (!read_ids(&in, out, &s->n_tokens)) {
		pfx_free(out);
		return 1;
	}
	fit = pfx_reallocarray(out, s->n_tokens, sizeof(*out));
	s->tokens = fit != NULL ? fit : out;
	cut(s, copied, from, in.p, "[]");
	return 1;
}

/* One member's value from `from` to `to`; what cannot be lifted stays. 1 or -ENOMEM. */
static int lift(struct pfx_scan *s, const char *key, size_t key_len, const char *from,
	const char *to, const char **copied)
{
	size_t size = (size_t)(to - from);

	if (size < PFX_SCAN_MIN) {
		return 1;
	}
	if (*from == '"' && key_is(key, key_len, "prompt")) {
		return lift_string(s, &s->prompt, &s->prompt_len, from, size, copied);
	}
	if (*from == '"' && key_is(key, key_len, "text")) {
		return lift_string(s, &s->text, &s->text_len, from, size, copied);
	}
	if (*from == '[' && key_is(key, key_len, "tokens")) {
		return lift_tokens(s, from, size, copied);
	}
	return 1;
}

/* 1: all lifted that can be, 0: not an object as it should be, or a negative code. */
static int scan_members(struct pfx_scan *s, struct cursor *c, const char **copied)
{
	do {
		const char *key, *from;
		size_t key_len;
		int rc;

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
		from = c->p;
		rc = skip_value(c);
		if (rc <= 0) {
			return rc;
		}
		rc = lift(s, key, key_len, from, c->p, copied);
		if (rc <= 0) {
			return rc;
		}
	} while (take(c, ','));
	return take(c, '}');
}

int pfx_scan(struct pfx_scan *s, const char *line, size_t n)
{
	struct cursor c = { line, line + n };
	const char *copied = line;
	int rc;

	memset(s, 0, sizeof(*s));
	skip_space(&c);
	if (!take(&c, '{')) {
		return 0;
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
