#include "net/jwrite.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static const char hex_digits[] = "0123456789abcdef";

/* Length of the leading run that stands for itself in a JSON string: ASCII but " \ and controls. */
static size_t plain_run(const char *s, size_t n)
{
	size_t i = 0;

	while (i < n) {
		unsigned char c = (unsigned char)s[i];

		if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') {
			break;
		}
		i++;
	}
	return i;
}

static void put_escape(struct pfx_buf *b, unsigned char c)
{
	char esc[6] = { '\\', 'u', '0', '0', hex_digits[c >> 4], hex_digits[c & 15] };

	switch (c) {
	case '"':
	case '\\':
		esc[1] = (char)c;
		break;
	case '\n':
		esc[1] = 'n';
		break;
	case '\r':
		esc[1] = 'r';
		break;
	case '\t':
		esc[1] = 't';
		break;
	case '\b':
		esc[1] = 'b';
		break;
	case '\f':
		esc[1] = 'f';
		break;
	default:
		pfx_buf_add(b, esc, 6);
		return;
	}
	pfx_buf_add(b, esc, 2);
}

void pfx_jw_str(struct pfx_buf *b, const char *s, size_t n)
{
	size_t i = 0;

	pfx_buf_addc(b, '"');
	while (i < n) {
		size_t run = plain_run(s + i, n - i);
		int k;

		pfx_buf_add(b, s + i, run);
		i += run;
		if (i == n) {
			break;
		}
		if ((unsigned char)s[i] < 0x80) {
			put_escape(b, (unsigned char)s[i++]);
			continue;
		}
		k = pfx_utf8_next(s + i, n - i, NULL);
		if (k > 0) {
			pfx_buf_add(b, s + i, (size_t)k);
			i += (size_t)k;
		} else {
			pfx_buf_add(b, "\xef\xbf\xbd", 3);
			i += k < 0 ? (size_t)-k : n - i;
		}
	}
	pfx_buf_addc(b, '"');
}

/* Decimal digits of v at the end of tmp[20]; returns where they begin. */
static char *digits(uint64_t v, char tmp[20])
{
	char *p = tmp + 20;

	do {
		*--p = (char)('0' + v % 10);
		v /= 10;
	} while (v != 0);
	return p;
}

void pfx_jw_u64(struct pfx_buf *b, uint64_t v)
{
	char tmp[20];
	char *p = digits(v, tmp);

	pfx_buf_add(b, p, (size_t)(tmp + 20 - p));
}

void pfx_jw_i64(struct pfx_buf *b, int64_t v)
{
	if (v < 0) {
		pfx_buf_addc(b, '-');
		pfx_jw_u64(b, 0 - (uint64_t)v);
	} else {
		pfx_jw_u64(b, (uint64_t)v);
	}
}

/* v = whole / 10^places, at least one decimal, without zeros at its end. */
static void put_fixed(struct pfx_buf *b, uint64_t whole, int places)
{
	char tmp[20];
	char *p;
	int n;

	while (places > 1 && whole % 10 == 0) {
		whole /= 10;
		places--;
	}
	p = digits(whole, tmp);
	n = (int)(tmp + 20 - p);
	if (n > places) {
		pfx_buf_add(b, p, (size_t)(n - places));
		p += n - places;
		n = places;
	} else {
		pfx_buf_addc(b, '0');
	}
	pfx_buf_addc(b, '.');
	for (; places > n; places--) {
		pfx_buf_addc(b, '0');
	}
	pfx_buf_add(b, p, (size_t)n);
}

void pfx_jw_real(struct pfx_buf *b, double v)
{
	double a = fabs(v);
	double bound = 1, scale = 1e9;
	int places = 9;

	if (isnan(v)) {
		pfx_buf_adds(b, "null");
		return;
	}
	if (isinf(v)) {
		v = v < 0 ? -FLT_MAX : FLT_MAX;
		a = FLT_MAX;
	}
	if (a != 0 && (a < 1e-4 || a >= 1e8)) {
		pfx_buf_addf(b, "%.9g", v);
		return;
	}
	if (v < 0) {
		pfx_buf_addc(b, '-');
	}
	/* Places such that nine digits are significant; below one, zeros behind the point count not. */
	for (; a >= bound && places > 1; bound *= 10) {
		scale /= 10;
		places--;
	}
	for (bound = 0.1; a != 0 && a < bound; bound /= 10) {
		scale *= 10;
		places++;
	}
	put_fixed(b, (uint64_t)(a * scale + 0.5), places);
}

void pfx_jw_ms(struct pfx_buf *b, double ms)
{
	if (!(ms >= 0)) {
		ms = 0;
	}
	if (ms > 1e15) {
		ms = 1e15;
	}
	put_fixed(b, (uint64_t)(ms * 1000 + 0.5), 3);
}

void pfx_jw_hex64(struct pfx_buf *b, uint64_t v)
{
	char out[18];

	out[0] = out[17] = '"';
	for (int i = 0; i < 16; i++) {
		out[1 + i] = hex_digits[(v >> (60 - 4 * i)) & 15];
	}
	pfx_buf_add(b, out, 18);
}
