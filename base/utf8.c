#include "base/utf8.h"

#include <string.h>

int pfx_utf8_next(const char *s, size_t n, uint32_t *cp)
{
	const unsigned char *p = (const unsigned char *)s;
	unsigned lo = 0x80, hi = 0xbf;
	uint32_t c = p[0];
	int len;

	if (c < 0x80) {
		if (cp != NULL) {
			*cp = c;
		}
		return 1;
	}
	if (c < 0xc2 || c > 0xf4) {
		return -1;
	}
	if (c < 0xe0) {
		len = 2;
		c &= 0x1f;
	} else if (c < 0xf0) {
		len = 3;
		lo = c == 0xe0 ? 0xa0 : 0x80;
		hi = c == 0xed ? 0x9f : 0xbf;
		c &= 0x0f;
	} else {
		len = 4;
		lo = c == 0xf0 ? 0x90 : 0x80;
		hi = c == 0xf4 ? 0x8f : 0xbf;
		c &= 0x07;
	}
	/* Only the second byte has a narrower range than 80..BF (Unicode, table 3-7). */
	for (int i = 1; i < len; i++) {
		if ((size_t)i == n) {
			return 0;
		}
		if (p[i] < lo || p[i] > hi) {
			return -i;
		}
		c = c << 6 | (p[i] & 0x3f);
		lo = 0x80;
		hi = 0xbf;
	}
	if (cp != NULL) {
		*cp = c;
	}
	return len;
}

size_t pfx_utf8_valid_len(const char *s, size_t n)
{
	size_t i = 0;
	uint64_t w;
	int k;

	while (i < n) {
		if (n - i >= 8) {
			memcpy(&w, s + i, 8);
			if ((w & 0x8080808080808080ull) == 0) {
				i += 8;
				continue;
			}
		}
		k = pfx_utf8_next(s + i, n - i, NULL);
		if (k <= 0) {
			break;
		}
		i += (size_t)k;
	}
	return i;
}

int pfx_utf8_put(uint32_t cp, char *out)
{
	unsigned char *o = (unsigned char *)out;

	if (cp < 0x80) {
		o[0] = (unsigned char)cp;
		return 1;
	}
	if (cp < 0x800) {
		o[0] = (unsigned char)(0xc0 | cp >> 6);
		o[1] = (unsigned char)(0x80 | (cp & 0x3f));
		return 2;
	}
	if (cp < 0x10000) {
		o[0] = (unsigned char)(0xe0 | cp >> 12);
		o[1] = (unsigned char)(0x80 | (cp >> 6 & 0x3f));
		o[2] = (unsigned char)(0x80 | (cp & 0x3f));
		return 3;
	}
	o[0] = (unsigned char)(0xf0 | cp >> 18);
	o[1] = (unsigned char)(0x80 | (cp >> 12 & 0x3f));
	o[2] = (unsigned char)(0x80 | (cp >> 6 & 0x3f));
	o[3] = (unsigned char)(0x80 | (cp & 0x3f));
	return 4;
}

size_t pfx_utf8_clean(struct pfx_buf *out, const char *s, size_t n, int last)
{
	size_t i = 0, good;
	int k;

	while (i < n) {
		good = pfx_utf8_valid_len(s + i, n - i);
		pfx_buf_add(out, s + i, good);
		i += good;
		if (i == n) {
			break;
		}
		k = pfx_utf8_next(s + i, n - i, NULL);
		if (k == 0 && !last) {
			break;
		}
		pfx_buf_add(out, "\xef\xbf\xbd", 3);
		i += k == 0 ? n - i : (size_t)-k;
	}
	return i;
}
