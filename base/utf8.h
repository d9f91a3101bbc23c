#ifndef PFX_BASE_UTF8_H
#define PFX_BASE_UTF8_H

/*
 * UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/*
 * Looks at the first character of s[0..n), n > 0. Returns its length 1..4 and sets *cp;
 * 0 when the bytes are a proper prefix of some character (more bytes could complete it);
 * -k when they are not UTF-8, k being how many bytes stand for one U+FFFD (the maximal
 * ill-formed prefix, as the Unicode Standard 3.9 recommends). cp may be NULL.
 */
int pfx_utf8_next(const char *s, size_t n, uint32_t *cp);

/* Offset of the first byte that is not part of a valid character; n when all is valid. */
size_t pfx_utf8_valid_len(const char *s, size_t n);

/* Writes cp (a scalar value) and returns its length 1..4; out has room for 4. */
int pfx_utf8_put(uint32_t cp, char *out);

/*
 * Appends s to out with U+FFFD for what is not UTF-8, and returns how many bytes were
 * used: all, or, unless last, less by an incomplete character at the end (at most 3).
 */
size_t pfx_utf8_clean(struct pfx_buf *out, const char *s, size_t n, int last);

#endif
