#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void pfx_buf_free(struct pfx_buf *b)
{
	pfx_free(b->data);
	memset(b, 0, sizeof(*b));
}

void pfx_buf_reset(struct pfx_buf *b)
{
	b->len = 0;
	b->oom = 0;
	if (b->data != NULL) {
		b->data[0] = 0;
	}
}

char *pfx_buf_room(struct pfx_buf *b, size_t n)
{
	size_t need, cap;
	char *p;

	if (b->oom || __builtin_add_overflow(b->len + 1, n, &need)) {
		b->oom = 1;
		return NULL;
	}
	if (need > b->cap) {
		cap = b->cap < 64 ? 64 : b->cap + b->cap / 2;
		if (cap < need) {
			cap = need;
		}
		p = pfx_realloc(b->data, cap);
		if (p == NULL) {
			b->oom = 1;
			return NULL;
		}
		b->data = p;
		b->cap = cap;
	}
	return b->data + b->len;
}

void pfx_buf_add(struct pfx_buf *b, const void *p, size_t n)
{
	char *to = pfx_buf_room(b, n);

	if (to == NULL) {
		return;
	}
	if (n > 0) {
		memcpy(to, p, n);
	}
	b->len += n;
	b->data[b->len] = 0;
}

void pfx_buf_addc(struct pfx_buf *b, char c)
{
	pfx_buf_add(b, &c, 1);
}

void pfx_buf_adds(struct pfx_buf *b, const char *s)
{
	pfx_buf_add(b, s, strlen(s));
}

void pfx_buf_vaddf(struct pfx_buf *b, const char *fmt, va_list ap)
{
	va_list again;
	char *to;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	to = n < 0 ? NULL : pfx_buf_room(b, (size_t)n);
	if (to != NULL) {
		vsnprintf(to, (size_t)n + 1, fmt, again);
		b->len += (size_t)n;
	}
	va_end(again);
}

void pfx_buf_addf(struct pfx_buf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	pfx_buf_vaddf(b, fmt, ap);
	va_end(ap);
}

char *pfx_buf_take(struct pfx_buf *b, size_t *len)
{
	char *p;

	if (pfx_buf_room(b, 0) == NULL) {
		pfx_buf_free(b);
		return NULL;
	}
	b->data[b->len] = 0;
	p = b->data;
	if (len != NULL) {
		*len = b->len;
	}
	memset(b, 0, sizeof(*b));
	return p;
}
