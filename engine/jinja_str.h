#ifndef PFX_ENGINE_JINJA_STR_H
#define PFX_ENGINE_JINJA_STR_H

/*
 * Marked text: every operation that moves bytes moves their marks with them. Strings are
 * valid UTF-8 and count in code points; functions that say "byte" count in bytes.
 * Functions that return a string give NULL when the context has failed.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/jinja_value.h"

/* A string being written. */
struct pfx_jbuild {
	struct pfx_jctx *c;
	char *s;
	size_t n, cap;
	size_t *cuts;
	size_t n_cuts, cap_cuts;
	size_t n_old, chars_old;   /* what pfx_j_extend began with */
	struct pfx_jtail *tail;    /* of that, while s is its memory */
	uint8_t lent_s, lent_cuts; /* the memory is another string's too: not to be moved */
	uint8_t first, last, safe;
};

struct pfx_jbuild pfx_j_build(struct pfx_jctx *c);
/*
 * Begins with s. Writes behind it in place when nobody did before: "out = out ~ x" in a
 * loop then costs what x costs. Nothing else may be evaluated before pfx_j_built.
 */
struct pfx_jbuild pfx_j_extend(struct pfx_jctx *c, const struct pfx_jstr *s);
void pfx_j_put(struct pfx_jbuild *b, const char *s, size_t n, int client);
void pfx_j_puts(struct pfx_jbuild *b, const char *s, int client);
void pfx_j_put_cp(struct pfx_jbuild *b, uint32_t cp, int client);
void pfx_j_put_str(struct pfx_jbuild *b, const struct pfx_jstr *s);
/* Bytes [from, to) of s. */
void pfx_j_put_part(struct pfx_jbuild *b, const struct pfx_jstr *s, size_t from, size_t to);
/* Writes n times. */
void pfx_j_put_fill(struct pfx_jbuild *b, uint32_t cp, size_t n, int client);
/* b is used up. */
const struct pfx_jstr *pfx_j_built(struct pfx_jbuild *b);

/* Borrows the bytes. */
const struct pfx_jstr *pfx_j_str(struct pfx_jctx *c, const char *s, size_t n, int client);
/* Text of the template's from a C string, borrowed. */
struct pfx_jval pfx_j_text(struct pfx_jctx *c, const char *s);
/* Bytes [from, to) of s; shares with s. */
const struct pfx_jstr *pfx_j_part(struct pfx_jctx *c, const struct pfx_jstr *s, size_t from,
	size_t to);
/* The character at byte `at`, whose length is len: as iteration gives it, never Markup. */
struct pfx_jval pfx_j_char(struct pfx_jctx *c, const struct pfx_jstr *s, size_t at, size_t len);
/* Mark of byte i. */
int pfx_j_mark(const struct pfx_jstr *s, size_t i);
/* Whether a client wrote any byte of s. */
int pfx_j_tainted(const struct pfx_jstr *s);

int pfx_j_str_eq(const struct pfx_jstr *a, const struct pfx_jstr *b);
int pfx_j_str_is(const struct pfx_jstr *a, const char *b);
/* <0, 0, >0, by code points */
int pfx_j_str_cmp(const struct pfx_jstr *a, const struct pfx_jstr *b);
/* Byte offset of code point i, i <= n_chars. Counts its work. */
size_t pfx_j_offset(struct pfx_jctx *c, const struct pfx_jstr *s, size_t i);
/* How many code points lie in the first n bytes. */
size_t pfx_j_chars(const char *s, size_t n);
/* Byte offset of needle at or after byte `from`, -1 when it is not there. Counts its work. */
int64_t pfx_j_find(struct pfx_jctx *c, const struct pfx_jstr *s, const struct pfx_jstr *needle,
	size_t from);
int64_t pfx_j_rfind(struct pfx_jctx *c, const struct pfx_jstr *s, const struct pfx_jstr *needle);
/* Decodes the code point at byte i; *len is its length in bytes, at least 1. */
uint32_t pfx_j_cp(const struct pfx_jstr *s, size_t i, size_t *len);
int pfx_j_is_space(uint32_t cp);

#define PFX_J_LEFT 1
#define PFX_J_RIGHT 2
/* chars: NULL for white space */
const struct pfx_jstr *pfx_j_strip(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *chars, int sides);
/* max < 0: all */
const struct pfx_jstr *pfx_j_replace(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *old, const struct pfx_jstr *with, int64_t max);
/* Lists of parts. sep NULL: runs of white space. */
struct pfx_jval pfx_j_split(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *sep, int64_t max);
struct pfx_jval pfx_j_rsplit(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *sep, int64_t max);
struct pfx_jval pfx_j_lines(struct pfx_jctx *c, const struct pfx_jstr *s, int keep_ends);
const struct pfx_jstr *pfx_j_repeat(struct pfx_jctx *c, const struct pfx_jstr *s, int64_t times);
const struct pfx_jstr *pfx_j_reverse(struct pfx_jctx *c, const struct pfx_jstr *s);
/* HTML's five characters, as markupsafe writes them; the result is safe. */
const struct pfx_jstr *pfx_j_escape(struct pfx_jctx *c, const struct pfx_jstr *s);

/* jinja_case.c: Python's str.upper and its like. title_filter is jinja2's own. */
enum pfx_jcase { PFX_J_UPPER, PFX_J_LOWER, PFX_J_TITLE, PFX_J_CAPITALIZE, PFX_J_TITLE_FILTER,
	PFX_J_SWAPCASE };
const struct pfx_jstr *pfx_j_case(struct pfx_jctx *c, const struct pfx_jstr *s, enum pfx_jcase to);
/* str.isupper and its like; what is one of "upper", "lower", "alpha", "digit", "alnum", "space". */
int pfx_j_is_class(struct pfx_jctx *c, const struct pfx_jstr *s, const char *what);
/* Whether repr() leaves the character as it is. */
int pfx_j_is_printable(uint32_t cp);

#endif
