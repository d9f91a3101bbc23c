#include "engine/token_priv.h"

#include <errno.h>
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"

/*
 * Unicode normalisation form C. Text below U+0300 is in that form already and is copied;
 * what lies above it, with the character in front, is decomposed, put into the canonical
 * order and composed. The order is ours: utf8proc's takes quadratic time when marks of two
 * classes alternate, and a text of a client may hold millions of them.
 */

enum { ABOVE = 0xcc }; /* no lead byte of a character below U+0300 is as large */

/* First byte at or after i that begins, or ends, a stretch above U+0300. */
static size_t find_above(const char *s, size_t n, size_t i)
{
	while (i < n && (unsigned char)s[i] < ABOVE) {
		i++;
	}
	return i;
}

static size_t find_below(const char *s, size_t n, size_t i)
{
	while (i < n && (unsigned char)s[i] >= 0x80 &&
		((unsigned char)s[i] < 0xc0 || (unsigned char)s[i] >= ABOVE)) {
		i++;
	}
	return i;
}

static int need(struct pfx_token_work *w, size_t n)
{
	size_t cap = n + n / 2 + 64;
	int32_t *cps;

	if (n <= w->cps_cap) {
		return 0;
	}
	cps = pfx_reallocarray(w->cps, cap, sizeof(*cps));
	if (cps == NULL) {
		return -ENOMEM;
	}
	w->cps = cps;
	w->cps_cap = cap;
	return 0;
}

/* Code points of s[0..n), decomposed, into w->cps. */
static int decompose(struct pfx_token_work *w, const char *s, size_t n, size_t *n_cps)
{
	enum { LONGEST = 8 }; /* the longest canonical decomposition has 4 */
	size_t k = 0;

	for (size_t i = 0; i < n;) {
		utf8proc_ssize_t m;
		uint32_t cp;
		int rc = need(w, k + LONGEST);

		if (rc != 0) {
			return rc;
		}
		i += (size_t)pfx_utf8_next(s + i, n - i, &cp);
		m = utf8proc_decompose_char((utf8proc_int32_t)cp, w->cps + k, LONGEST,
			UTF8PROC_STABLE | UTF8PROC_COMPOSE, NULL);
		if (m < 0 || m > LONGEST) {
			return PFX_E_LIMIT;
		}
		k += (size_t)m;
	}
	*n_cps = k;
	return 0;
}

static int class_of(int32_t cp)
{
	return utf8proc_get_property(cp)->combining_class;
}

/* A row of marks by their class, equal ones as they stood: a counting sort. */
static void sort_marks(const int32_t *marks, size_t n, int32_t *sorted)
{
	size_t at[257] = { 0 };

	for (size_t i = 0; i < n; i++) {
		at[class_of(marks[i]) + 1]++;
	}
	for (int c = 0; c < 256; c++) {
		at[c + 1] += at[c];
	}
	for (size_t i = 0; i < n; i++) {
		sorted[at[class_of(marks[i])]++] = marks[i];
	}
}

static int put_in_order(struct pfx_token_work *w, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t start = i, m;
		int sorted = 1, last = 0, rc;

		for (; i < n && class_of(w->cps[i]) > 0; i++) {
			sorted &= class_of(w->cps[i]) >= last;
			last = class_of(w->cps[i]);
		}
		m = i - start;
		i += m == 0;
		if (sorted) {
			continue;
		}
		rc = need(w, n + m);
		if (rc != 0) {
			return rc;
		}
		sort_marks(w->cps + start, m, w->cps + n);
		memcpy(w->cps + start, w->cps + n, m * sizeof(*w->cps));
	}
	return 0;
}

static int normalise(struct pfx_token_work *w, const char *s, size_t n)
{
	utf8proc_ssize_t m;
	size_t n_cps;
	char *room;
	int rc = decompose(w, s, n, &n_cps);

	if (rc == 0) {
		rc = put_in_order(w, n_cps);
	}
	if (rc != 0) {
		return rc;
	}
	m = utf8proc_normalize_utf32(w->cps, (utf8proc_ssize_t)n_cps,
		UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	if (m < 0) {
		return PFX_E_LIMIT;
	}
	room = pfx_buf_room(&w->piece, (size_t)m * 4);
	if (room == NULL) {
		return -ENOMEM;
	}
	for (utf8proc_ssize_t i = 0; i < m; i++) {
		char c[4];

		pfx_buf_add(&w->piece, c, (size_t)pfx_utf8_put((uint32_t)w->cps[i], c));
	}
	return 0;
}

int pfx_token_nfc(struct pfx_token_work *w, const char *s, size_t n, int *changed)
{
	size_t at = 0, above = find_above(s, n, 0);

	*changed = 0;
	if (above == n) {
		return 0;
	}
	pfx_buf_reset(&w->piece);
	while (above < n) {
		size_t start = above, end = find_below(s, n, above);
		int rc;

		/* The character in front may take the first mark in. */
		while (start > at && ((unsigned char)s[--start] & 0xc0) == 0x80) {
		}
		pfx_buf_add(&w->piece, s + at, start - at);
		rc = normalise(w, s + start, end - start);
		if (rc != 0) {
			return rc;
		}
		at = end;
		above = find_above(s, n, end);
	}
	pfx_buf_add(&w->piece, s + at, n - at);
	*changed = 1;
	return w->piece.oom ? -ENOMEM : 0;
}
