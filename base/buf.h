#ifndef PFX_BASE_BUF_H
#define PFX_BASE_BUF_H

/*
 * A growable run of bytes. After the first failed allocation it stays failed (`oom`) and
 * further appends do nothing, so that a writer checks once at its end. data is always
 * ended by a NUL that len does not count (data may be NULL when len is 0).
 */

#include <stdarg.h>
#include <stddef.h>

struct pfx_buf {
	char *data;
	size_t len, cap;
	int oom;
};

#define PFX_BUF_INIT { NULL, 0, 0, 0 }

void pfx_buf_free(struct pfx_buf *b); /* leaves it empty and usable */
void pfx_buf_reset(struct pfx_buf *b); /* keeps the memory */
void pfx_buf_add(struct pfx_buf *b, const void *p, size_t n);
void pfx_buf_addc(struct pfx_buf *b, char c);
void pfx_buf_adds(struct pfx_buf *b, const char *s);
void pfx_buf_addf(struct pfx_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void pfx_buf_vaddf(struct pfx_buf *b, const char *fmt, va_list ap);
/* Makes room for n more bytes and returns where they go (len is not moved); NULL on oom. */
char *pfx_buf_room(struct pfx_buf *b, size_t n);
/* Returns owned memory (pfx_free) and leaves b empty; NULL on oom. Never NULL otherwise. */
char *pfx_buf_take(struct pfx_buf *b, size_t *len);

#endif
