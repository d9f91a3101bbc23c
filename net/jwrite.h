#ifndef PFX_NET_JWRITE_H
#define PFX_NET_JWRITE_H

/*
 * JSON text written by hand: a token line is written thousands of times a second, and
 * building a tree first costs more than the line. Everything appends to a pfx_buf, whose
 * `oom` is looked at once at the end. Pure; any thread.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* A quoted string. s should be UTF-8; what is not becomes U+FFFD. No raw newline comes out. */
void pfx_jw_str(struct pfx_buf *b, const char *s, size_t n);
void pfx_jw_u64(struct pfx_buf *b, uint64_t v);
void pfx_jw_i64(struct pfx_buf *b, int64_t v);
/* Nine significant digits, which give any float back; NaN is null, infinities FLT_MAX. */
void pfx_jw_real(struct pfx_buf *b, double v);
/* Milliseconds with three decimals. */
void pfx_jw_ms(struct pfx_buf *b, double ms);
/* Sixteen lower-case hexadecimal digits, quoted. */
void pfx_jw_hex64(struct pfx_buf *b, uint64_t v);

#endif
