#include "config.h"

#include "engine/jinja_lex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/jinja_str.h"

/* Brackets inside one tag; the parser's own bound is smaller. */
#define NEST_MAX 256

struct lexer {
	struct pfx_jctx *c;
	const char *name; /* of the template */
	const char *s;
	size_t n, at;
	uint32_t line;
	int line_starting; /* the last match ended with a newline, or nothing was matched yet */
	char nest[NEST_MAX];
	size_t n_nest;
	struct pfx_jtokens *out;
};

void pfx_j_syntax(struct pfx_jctx *c, const char *name, uint32_t line, const char *fmt, ...)
{
	struct pfx_buf words = PFX_BUF_INIT;
	va_list ap;

	if (c->rc != 0) {
		return;
	}
	va_start(ap, fmt);
	pfx_buf_vaddf(&words, fmt, ap);
	va_end(ap);
	c->rc = pfx_fail(PFX_E_FORMAT, c->err, c->errlen, "%s: line %u: %s", name, line,
		words.data == NULL || words.oom ? "syntax error" : words.data);
	pfx_buf_free(&words);
}

#define fail(lx, ...) pfx_j_syntax((lx)->c, (lx)->name, (lx)->line, __VA_ARGS__)

static struct pfx_jtoken *add_token(struct lexer *lx, enum pfx_jtok type)
{
	struct pfx_jtokens *t = lx->out;
	size_t cap;
	void *p;

	if (lx->c->rc != 0) {
		return NULL;
	}
	if (t->n == t->cap) {
		cap = t->cap < 64 ? 64 : t->cap * 2;
		p = pfx_reallocarray(t->v, cap, sizeof(*t->v));
		if (p == NULL) {
			lx->c->rc = pfx_fail(-ENOMEM, lx->c->err, lx->c->errlen, "out of memory");
			return NULL;
		}
		t->v = p;
		t->cap = cap;
	}
	t->v[t->n] = (struct pfx_jtoken){ .type = type, .line = lx->line };
	return &t->v[t->n++];
}

/* Moves to `to`, counting lines. */
static void advance(struct lexer *lx, size_t to)
{
	for (; lx->at < to; lx->at++) {
		lx->line += lx->s[lx->at] == '\n';
	}
}

static int looking_at(const struct lexer *lx, size_t at, const char *what)
{
	size_t n = strlen(what);

	return at <= lx->n && n <= lx->n - at && memcmp(lx->s + at, what, n) == 0;
}

static size_t skip_space(const struct lexer *lx, size_t at)
{
	const struct pfx_jstr s = { .s = lx->s, .n = lx->n };
	size_t len;

	while (at < lx->n && pfx_j_is_space(pfx_j_cp(&s, at, &len))) {
		at += len;
	}
	return at;
}

static size_t back_space(const struct lexer *lx, size_t from, size_t to)
{
	const struct pfx_jstr s = { .s = lx->s, .n = lx->n };
	size_t len, at;

	while (to > from) {
		for (at = to - 1; at > from && ((unsigned char)lx->s[at] & 0xC0) == 0x80; at--) {
		}
		if (!pfx_j_is_space(pfx_j_cp(&s, at, &len))) {
			break;
		}
		to = at;
	}
	return to;
}

/* Data [from, to) in front of a tag with this sign ('-', '+' or 0); strip: lstrip_blocks. */
static void add_data(struct lexer *lx, size_t from, size_t to, char sign, int strip)
{
	struct pfx_jtoken *token;
	size_t end = to, bol;

	if (sign == '-') {
		end = back_space(lx, from, to);
	} else if (strip && sign != '+') {
		for (bol = to; bol > from && lx->s[bol - 1] != '\n'; bol--) {
		}
		if ((bol > from || lx->line_starting) && back_space(lx, bol, to) == bol) {
			end = bol;
		}
	}
	if (end > from) {
		token = add_token(lx, PFX_J_T_DATA);
		if (token != NULL) {
			token->val = pfx_j_val(pfx_j_str(lx->c, lx->s + from, end - from, 0));
		}
	}
	advance(lx, to);
}

/* Where a tag that ends here goes on: its sign, and the white space that it takes along. */
static size_t after_tag(struct lexer *lx, size_t at, char sign, int trim)
{
	if (sign == '-') {
		at = skip_space(lx, at);
	} else if (trim && sign != '+' && at < lx->n && lx->s[at] == '\n') {
		at++;
	}
	lx->line_starting = at > 0 && lx->s[at - 1] == '\n';
	return at;
}

static int is_sign(char ch)
{
	return ch == '-' || ch == '+';
}

static char sign_at(const struct lexer *lx, size_t at)
{
	return at < lx->n && is_sign(lx->s[at]) ? lx->s[at] : 0;
}

/*
 * If a tag of that one word stands at `at` ("{%- raw -%}"), its length; *open and *close
 * are its signs.
 */
static size_t word_tag(const struct lexer *lx, size_t at, const char *word, char *open,
	char *close)
{
	size_t from = at;

	if (!looking_at(lx, at, "{%")) {
		return 0;
	}
	*open = sign_at(lx, at + 2);
	at = skip_space(lx, at + 2 + (*open != 0));
	if (!looking_at(lx, at, word)) {
		return 0;
	}
	at = skip_space(lx, at + strlen(word));
	*close = sign_at(lx, at);
	at += *close != 0;
	return looking_at(lx, at, "%}") ? at + 2 - from : 0;
}

static void lex_raw(struct lexer *lx, size_t tag, char close)
{
	char open, end_close;
	size_t from, len = 0, to;

	advance(lx, after_tag(lx, lx->at + tag, close == '-' ? '-' : '+', 0));
	from = lx->at;
	for (to = from; to < lx->n; to++) {
		len = word_tag(lx, to, "endraw", &open, &end_close);
		if (len > 0) {
			break;
		}
	}
	if (to >= lx->n) {
		fail(lx, "missing end of raw directive");
		return;
	}
	add_data(lx, from, to, open, 1);
	advance(lx, after_tag(lx, to + len, end_close, 1));
}

static void lex_comment(struct lexer *lx)
{
	const char *end = memmem(lx->s + lx->at, lx->n - lx->at, "#}", 2);
	char sign;

	if (end == NULL) {
		fail(lx, "missing end of comment tag");
		return;
	}
	sign = end > lx->s + lx->at && is_sign(end[-1]) ? end[-1] : 0;
	advance(lx, after_tag(lx, (size_t)(end - lx->s) + 2, sign, 1));
}

/* ---- what stands inside a tag ---- */

static int is_name_char(unsigned char ch, int first)
{
	return ch == '_' || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch >= 0x80 ||
		(!first && ch >= '0' && ch <= '9');
}

static void lex_name(struct lexer *lx)
{
	struct pfx_jtoken *token = add_token(lx, PFX_J_T_NAME);
	size_t end = lx->at;

	while (end < lx->n && is_name_char((unsigned char)lx->s[end], 0)) {
		end++;
	}
	if (token != NULL) {
		token->s = lx->s + lx->at;
		token->n = end - lx->at;
	}
	lx->at = end;
}

static int hex_digits(const char *s, size_t n, size_t want, uint32_t *out)
{
	char digits[9] = { 0 };

	if (n < want) {
		return 0;
	}
	memcpy(digits, s, want);
	*out = (uint32_t)strtoul(digits, NULL, 16);
	return strspn(digits, "0123456789abcdefABCDEF") == want;
}

static void put_escaped(struct pfx_jbuild *b, uint32_t cp)
{
	/* Half a surrogate pair and what lies beyond Unicode have no UTF-8. */
	pfx_j_put_cp(b, (cp >= 0xD800 && cp < 0xE000) || cp > 0x10FFFF ? 0xFFFD : cp, 0);
}

/* One escape of s[at..n), at being behind the backslash; returns where it ends. */
static size_t unescape(struct lexer *lx, struct pfx_jbuild *b, const char *s, size_t n, size_t at)
{
	static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
	const char *hit = strchr(from, s[at]);
	uint32_t cp = 0;
	size_t want;

	if (s[at] == '\n') {
		return at + 1;
	}
	if (hit != NULL && s[at] != 0) {
		pfx_j_put(b, &to[hit - from], 1, 0);
		return at + 1;
	}
	if (s[at] >= '0' && s[at] <= '7') {
		for (want = 0; want < 3 && at < n && s[at] >= '0' && s[at] <= '7'; want++, at++) {
			cp = cp * 8 + (uint32_t)(s[at] - '0');
		}
		put_escaped(b, cp);
		return at;
	}
	want = s[at] == 'x' ? 2 : s[at] == 'u' ? 4 : s[at] == 'U' ? 8 : 0;
	if (want == 0 && s[at] != 'N') {
		pfx_j_put(b, "\\", 1, 0);
		return at;
	}
	if (want == 0 || !hex_digits(s + at + 1, n - at - 1, want, &cp)) {
		fail(lx, "bad escape in a string");
		return n;
	}
	put_escaped(b, cp);
	return at + 1 + want;
}

static void lex_string(struct lexer *lx)
{
	struct pfx_jtoken *token;
	struct pfx_jbuild b = pfx_j_build(lx->c);
	size_t from = lx->at + 1, end = from, i;
	char quote = lx->s[lx->at];
	const char *back;

	while (end < lx->n && lx->s[end] != quote) {
		end += lx->s[end] == '\\' ? 2 : 1;
	}
	if (end >= lx->n) {
		fail(lx, "unexpected char '%c'", quote);
		return;
	}
	token = add_token(lx, PFX_J_T_STRING);
	if (token == NULL) {
		return;
	}
	if (memchr(lx->s + from, '\\', end - from) == NULL) {
		token->val = pfx_j_val(pfx_j_str(lx->c, lx->s + from, end - from, 0));
		advance(lx, end + 1);
		return;
	}
	for (i = from; i < end && lx->c->rc == 0;) {
		back = memchr(lx->s + i, '\\', end - i);
		if (back == NULL) {
			pfx_j_put(&b, lx->s + i, end - i, 0);
			break;
		}
		pfx_j_put(&b, lx->s + i, (size_t)(back - lx->s) - i, 0);
		i = unescape(lx, &b, lx->s, end, (size_t)(back - lx->s) + 1);
	}
	token->val = pfx_j_val(pfx_j_built(&b));
	advance(lx, end + 1);
}

static int is_digit(char ch)
{
	return ch >= '0' && ch <= '9';
}

/* Digits with single underscores between them, from `at`; returns where they end. */
static size_t digits(const struct lexer *lx, size_t at)
{
	while (at < lx->n && (is_digit(lx->s[at]) ||
		(lx->s[at] == '_' && at + 1 < lx->n && is_digit(lx->s[at + 1]) && is_digit(lx->s[at - 1])))) {
		at++;
	}
	return at;
}

static void lex_number(struct lexer *lx)
{
	size_t from = lx->at, end = digits(lx, from), exp;
	int is_float = 0, base = 10;
	struct pfx_jtoken *token;
	char text[64], *stop;
	size_t n = 0;

	if (lx->s[from] == '0' && from + 1 < lx->n && strchr("xXoObB", lx->s[from + 1]) != NULL &&
		lx->s[from + 1] != 0) {
		base = strchr("xX", lx->s[from + 1]) ? 16 : strchr("oO", lx->s[from + 1]) ? 8 : 2;
		for (end = from += 2; end < lx->n && strchr("0123456789abcdefABCDEF_", lx->s[end]) &&
			lx->s[end] != 0; end++) {
		}
	} else if (from == 0 || lx->s[from - 1] != '.') {
		/* After a dot digits are an index: x.0.1 */
		if (end + 1 < lx->n && lx->s[end] == '.' && is_digit(lx->s[end + 1])) {
			is_float = 1;
			end = digits(lx, end + 1);
		}
		exp = end + 1 < lx->n && (lx->s[end] | 32) == 'e' ? end + 1 : 0;
		exp += exp != 0 && is_sign(lx->s[exp]);
		if (exp != 0 && exp < lx->n && is_digit(lx->s[exp])) {
			is_float = 1;
			end = digits(lx, exp);
		}
	}
	for (size_t i = from; i < end && n + 1 < sizeof(text); i++) {
		if (lx->s[i] != '_') {
			text[n++] = lx->s[i];
		}
	}
	text[n] = 0;
	token = add_token(lx, is_float ? PFX_J_T_FLOAT : PFX_J_T_INT);
	if (token == NULL) {
		return;
	}
	errno = 0;
	if (is_float) {
		token->val = pfx_j_float(strtod(text, &stop));
	} else {
		token->val = pfx_j_int(strtoll(text, &stop, base));
	}
	if (*stop != 0 || n == 0 || end - from >= sizeof(text) || (!is_float && errno != 0)) {
		fail(lx, "bad number, or one beyond 64 bits");
	}
	lx->at = end;
}

static void lex_bracket(struct lexer *lx, char ch)
{
	const char *pair = strchr("(){}[]", ch);

	if (strchr("([{", ch) != NULL) {
		if (lx->n_nest == NEST_MAX) {
			pfx_j_limit(lx->c, "depth");
			return;
		}
		lx->nest[lx->n_nest++] = pair[1];
	} else if (lx->n_nest == 0 || lx->nest[--lx->n_nest] != ch) {
		fail(lx, "unexpected '%c'", ch);
	}
}

static void lex_operator(struct lexer *lx)
{
	static const char *const doubles[] = { "==", "!=", "<=", ">=", "//", "**" };
	static const char codes[] = { PFX_J_OP_EQ, PFX_J_OP_NE, PFX_J_OP_LE, PFX_J_OP_GE,
		PFX_J_OP_FLOORDIV, PFX_J_OP_POW };
	char ch = lx->s[lx->at];
	struct pfx_jtoken *token;

	if (ch == 0 || strchr("+-/*%~[](){}><=.:|,;!", ch) == NULL) {
		fail(lx, "unexpected character 0x%02x in a tag", (unsigned char)ch);
		return;
	}
	if (strchr("[](){}", ch) != NULL) {
		lex_bracket(lx, ch);
	}
	token = add_token(lx, PFX_J_T_OP);
	if (token == NULL) {
		return;
	}
	token->op = (uint8_t)ch;
	for (size_t i = 0; i < sizeof(codes); i++) {
		if (looking_at(lx, lx->at, doubles[i])) {
			token->op = (uint8_t)codes[i];
			lx->at += 2;
			return;
		}
	}
	if (ch == '!') {
		fail(lx, "unexpected char '!'");
	}
	lx->at++;
}

/* The end of the tag at `at`, its sign included; 0 when it is not here. */
static size_t tag_end(const struct lexer *lx, int block, char *sign)
{
	/* "+}}" is not an end: only blocks take a plus. */
	*sign = sign_at(lx, lx->at);
	if (*sign == '+' && !block) {
		*sign = 0;
	}
	if (lx->n_nest > 0 || !looking_at(lx, lx->at + (*sign != 0), block ? "%}" : "}}")) {
		return 0;
	}
	return lx->at + (*sign != 0) + 2;
}

static void lex_tag(struct lexer *lx, int block)
{
	size_t end;
	char ch, sign;

	lx->at += 2;
	lx->at += sign_at(lx, lx->at) != 0;
	add_token(lx, block ? PFX_J_T_BLOCK_BEGIN : PFX_J_T_VAR_BEGIN);
	lx->n_nest = 0;
	while (lx->c->rc == 0) {
		advance(lx, skip_space(lx, lx->at));
		if (lx->at >= lx->n) {
			fail(lx, "unexpected end of template inside a tag");
			return;
		}
		end = tag_end(lx, block, &sign);
		if (end > 0) {
			add_token(lx, block ? PFX_J_T_BLOCK_END : PFX_J_T_VAR_END);
			advance(lx, after_tag(lx, end, sign, block));
			return;
		}
		ch = lx->s[lx->at];
		if (is_name_char((unsigned char)ch, 1)) {
			lex_name(lx);
		} else if (is_digit(ch)) {
			lex_number(lx);
		} else if (ch == '\'' || ch == '"') {
			lex_string(lx);
		} else {
			lex_operator(lx);
		}
	}
}

static void lex_template(struct lexer *lx)
{
	char open, close;
	size_t tag, raw;

	while (lx->at < lx->n && lx->c->rc == 0) {
		for (tag = lx->at; tag + 1 < lx->n; tag++) {
			if (lx->s[tag] == '{' && strchr("{%#", lx->s[tag + 1]) != NULL && lx->s[tag + 1] != 0) {
				break;
			}
		}
		if (tag + 1 >= lx->n) {
			add_data(lx, lx->at, lx->n, 0, 0);
			break;
		}
		add_data(lx, lx->at, tag, sign_at(lx, tag + 2), lx->s[tag + 1] != '{');
		raw = word_tag(lx, tag, "raw", &open, &close);
		if (raw > 0 && close != '+') {
			lex_raw(lx, raw, close);
		} else if (lx->s[tag + 1] == '#') {
			lx->at += 2;
			lx->at += sign_at(lx, lx->at) != 0;
			lex_comment(lx);
		} else {
			lex_tag(lx, lx->s[tag + 1] == '%');
		}
	}
	add_token(lx, PFX_J_T_EOF);
}

static void copy_source(struct lexer *lx, const char *src, size_t n)
{
	struct pfx_buf clean = PFX_BUF_INIT;
	char *to;
	size_t used = 0;

	pfx_utf8_clean(&clean, src, n, 1);
	to = clean.oom ? NULL : pfx_j_alloc(lx->c, clean.len + 1);
	if (to == NULL) {
		if (lx->c->rc == 0) {
			lx->c->rc = pfx_fail(-ENOMEM, lx->c->err, lx->c->errlen, "out of memory");
		}
		pfx_buf_free(&clean);
		return;
	}
	for (size_t i = 0; i < clean.len; i++) {
		if (clean.data[i] == '\r') {
			to[used++] = '\n';
			i += i + 1 < clean.len && clean.data[i + 1] == '\n';
		} else {
			to[used++] = clean.data[i];
		}
	}
	pfx_buf_free(&clean);
	used -= used > 0 && to[used - 1] == '\n';
	to[used] = 0;
	lx->s = to;
	lx->n = used;
}

int pfx_j_lex(struct pfx_jctx *c, struct pfx_jtokens *out, const char *src, size_t n,
	const char *name)
{
	struct lexer lx = { .c = c, .name = name, .line = 1, .line_starting = 1, .out = out };

	memset(out, 0, sizeof(*out));
	copy_source(&lx, src, n);
	if (c->rc == 0) {
		lex_template(&lx);
	}
	return c->rc;
}
