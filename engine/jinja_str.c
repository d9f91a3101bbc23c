#include "config.h"

#include "engine/jinja_str.h"

#include <string.h>

#include "base/assert.h"
#include "base/utf8.h"

/* Bytes that are scanned for one step. */
#define SCAN_STEP 64

struct pfx_jbuild pfx_j_build(struct pfx_jctx *c)
{
	return (struct pfx_jbuild){ .c = c };
}

/* The memory behind a string that was made by pfx_j_extend, and how much of it is written. */
struct pfx_jtail {
	char *s;
	size_t n, cap;
	size_t *cuts;
	size_t n_cuts, cap_cuts;
	uint8_t last;
};

struct pfx_jbuild pfx_j_extend(struct pfx_jctx *c, const struct pfx_jstr *s)
{
	struct pfx_jbuild b = pfx_j_build(c);
	const struct pfx_jtail *tail = s == NULL ? NULL : s->tail;

	if (tail == NULL || tail->n != s->n || s->n == 0) {
		pfx_j_put_str(&b, s);
		pfx_j_step(c, b.n / SCAN_STEP);
	} else {
		b = (struct pfx_jbuild){ .c = c, .s = tail->s, .n = tail->n, .cap = tail->cap,
			.cuts = tail->cuts, .n_cuts = tail->n_cuts, .cap_cuts = tail->cap_cuts,
			.tail = s->tail, .lent_s = 1, .lent_cuts = 1, .first = s->client,
			.last = tail->last };
	}
	if (s != NULL && c->rc == 0) {
		b.n_old = s->n;
		b.chars_old = s->n_chars;
	}
	return b;
}

/* Memory of `size` for what stands at p: moved, or copied if p is another string's too. */
static void *more_memory(struct pfx_jbuild *b, void *p, size_t old, size_t size, int lent)
{
	void *to = lent ? pfx_j_alloc(b->c, size) : pfx_j_grow(b->c, p, old, size);

	if (to != NULL && lent && old > 0) {
		memcpy(to, p, old);
	}
	return to;
}

static char *make_room(struct pfx_jbuild *b, size_t n)
{
	size_t cap;
	char *s;

	if (n > b->c->text_max - b->n) {
		pfx_j_limit(b->c, "text");
		return NULL;
	}
	if (b->n + n > b->cap) {
		/* Twice as much for one that was extended before: it will be again. */
		cap = b->lent_s ? (b->n + n) * 2 : b->cap + b->cap / 2;
		cap = cap < 64 ? 64 : cap;
		cap = cap < b->n + n ? b->n + n : cap;
		s = more_memory(b, b->s, b->lent_s ? b->n : b->cap, cap, b->lent_s);
		if (s == NULL) {
			return NULL;
		}
		if (b->lent_s) {
			pfx_j_step(b->c, b->n / SCAN_STEP);
		}
		b->s = s;
		b->cap = cap;
		b->lent_s = 0;
		b->tail = NULL;
	}
	return b->s + b->n;
}

static int add_cut(struct pfx_jbuild *b)
{
	size_t cap = b->cap_cuts < 8 ? 8 : b->cap_cuts * 2;
	size_t *cuts;

	if (b->n_cuts == b->cap_cuts) {
		cuts = more_memory(b, b->cuts, b->n_cuts * sizeof(*cuts), cap * sizeof(*cuts), b->lent_cuts);
		if (cuts == NULL) {
			return 0;
		}
		b->cuts = cuts;
		b->cap_cuts = cap;
		b->lent_cuts = 0;
	}
	b->cuts[b->n_cuts++] = b->n;
	return 1;
}

void pfx_j_put(struct pfx_jbuild *b, const char *s, size_t n, int client)
{
	char *to;

	if (n == 0 || b->c->rc != 0) {
		return;
	}
	to = make_room(b, n);
	if (to == NULL) {
		return;
	}
	if (b->n == 0) {
		b->first = b->last = client != 0;
	} else if (b->last != (client != 0)) {
		if (!add_cut(b)) {
			return;
		}
		b->last = client != 0;
	}
	memcpy(to, s, n);
	b->n += n;
}

void pfx_j_puts(struct pfx_jbuild *b, const char *s, int client)
{
	pfx_j_put(b, s, strlen(s), client);
}

void pfx_j_put_cp(struct pfx_jbuild *b, uint32_t cp, int client)
{
	char s[4];

	pfx_j_put(b, s, (size_t)pfx_utf8_put(cp, s), client);
}

void pfx_j_put_fill(struct pfx_jbuild *b, uint32_t cp, size_t n, int client)
{
	if (n > b->c->text_max) {
		pfx_j_limit(b->c, "text");
		return;
	}
	for (size_t i = 0; i < n && b->c->rc == 0; i++) {
		pfx_j_put_cp(b, cp, client);
	}
}

/* Index of the first cut of s that lies after its byte `at`. */
static size_t cut_after(const struct pfx_jstr *s, size_t at)
{
	size_t lo = 0, hi = s->n_cuts, mid;

	while (lo < hi) {
		mid = lo + (hi - lo) / 2;
		if (s->cuts[mid] - s->base > at) {
			hi = mid;
		} else {
			lo = mid + 1;
		}
	}
	return lo;
}

int pfx_j_mark(const struct pfx_jstr *s, size_t i)
{
	return s->client ^ (cut_after(s, i) & 1);
}

int pfx_j_tainted(const struct pfx_jstr *s)
{
	return s->n > 0 && (s->client || s->n_cuts > 0);
}

void pfx_j_put_part(struct pfx_jbuild *b, const struct pfx_jstr *s, size_t from, size_t to)
{
	size_t cut, end;
	int mark;

	if (s == NULL || from >= to) {
		return;
	}
	cut = cut_after(s, from);
	mark = s->client ^ (cut & 1);
	for (; from < to && b->c->rc == 0; from = end, cut++, mark = !mark) {
		end = cut < s->n_cuts && s->cuts[cut] - s->base < to ? s->cuts[cut] - s->base : to;
		pfx_j_put(b, s->s + from, end - from, mark);
	}
}

void pfx_j_put_str(struct pfx_jbuild *b, const struct pfx_jstr *s)
{
	if (s != NULL) {
		pfx_j_put_part(b, s, 0, s->n);
	}
}

size_t pfx_j_chars(const char *s, size_t n)
{
	size_t chars = 0;

	for (size_t i = 0; i < n; i++) {
		chars += ((unsigned char)s[i] & 0xC0) != 0x80;
	}
	return chars;
}

/* Notes in the tail how far the memory is written now; NULL when there is none to note it in. */
static struct pfx_jtail *note_tail(const struct pfx_jbuild *b)
{
	struct pfx_jtail *tail = b->tail;

	if (b->n_old == 0) {
		return NULL;
	}
	if (tail == NULL) {
		tail = pfx_j_alloc(b->c, sizeof(*tail));
	}
	if (tail != NULL) {
		*tail = (struct pfx_jtail){ b->s, b->n, b->cap, b->cuts, b->n_cuts, b->cap_cuts, b->last };
	}
	return tail;
}

const struct pfx_jstr *pfx_j_built(struct pfx_jbuild *b)
{
	struct pfx_jstr *s = pfx_j_alloc(b->c, sizeof(*s));

	if (s == NULL || !pfx_j_step(b->c, (b->n - b->n_old) / SCAN_STEP)) {
		return NULL;
	}
	*s = (struct pfx_jstr){ .s = b->n ? b->s : "", .n = b->n, .cuts = b->cuts,
		.n_cuts = b->n_cuts, .tail = note_tail(b), .client = b->first, .safe = b->safe };
	s->n_chars = b->chars_old + pfx_j_chars(s->s + b->n_old, s->n - b->n_old);
	return s;
}

const struct pfx_jstr *pfx_j_str(struct pfx_jctx *c, const char *s, size_t n, int client)
{
	struct pfx_jstr *str = pfx_j_alloc(c, sizeof(*str));

	if (str == NULL || !pfx_j_step(c, n / SCAN_STEP)) {
		return NULL;
	}
	*str = (struct pfx_jstr){ .s = n ? s : "", .n = n, .client = client != 0 };
	str->n_chars = pfx_j_chars(str->s, n);
	return str;
}

struct pfx_jval pfx_j_text(struct pfx_jctx *c, const char *s)
{
	return pfx_j_val(pfx_j_str(c, s, strlen(s), 0));
}

static struct pfx_jstr *new_part(struct pfx_jctx *c, const struct pfx_jstr *s, size_t from,
	size_t to)
{
	struct pfx_jstr *part;
	size_t lo, hi;

	if (c->rc != 0 || s == NULL) {
		return NULL;
	}
	PFX_ASSERT(from <= to && to <= s->n);
	part = pfx_j_alloc(c, sizeof(*part));
	if (part == NULL || !pfx_j_step(c, (to - from) / SCAN_STEP)) {
		return NULL;
	}
	lo = cut_after(s, from);
	hi = to == 0 ? 0 : cut_after(s, to - 1);
	*part = (struct pfx_jstr){ .s = s->s + from, .n = to - from, .base = s->base + from,
		.client = s->client ^ (lo & 1), .safe = s->safe };
	if (from < to && hi > lo) {
		part->cuts = s->cuts + lo;
		part->n_cuts = hi - lo;
	}
	part->n_chars = s->n == s->n_chars ? part->n : pfx_j_chars(part->s, part->n);
	return part;
}

const struct pfx_jstr *pfx_j_part(struct pfx_jctx *c, const struct pfx_jstr *s, size_t from,
	size_t to)
{
	return new_part(c, s, from, to);
}

struct pfx_jval pfx_j_char(struct pfx_jctx *c, const struct pfx_jstr *s, size_t at, size_t len)
{
	struct pfx_jstr *one = new_part(c, s, at, at + len);

	if (one != NULL) {
		one->safe = 0;
	}
	return pfx_j_val(one);
}

int pfx_j_str_eq(const struct pfx_jstr *a, const struct pfx_jstr *b)
{
	return a == b || (a->n == b->n && memcmp(a->s, b->s, a->n) == 0);
}

int pfx_j_str_is(const struct pfx_jstr *a, const char *b)
{
	return a->n == strlen(b) && memcmp(a->s, b, a->n) == 0;
}

int pfx_j_str_cmp(const struct pfx_jstr *a, const struct pfx_jstr *b)
{
	/* UTF-8 sorts as its code points do. */
	int order = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);

	return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

size_t pfx_j_offset(struct pfx_jctx *c, const struct pfx_jstr *s, size_t i)
{
	size_t at = 0;

	if (s->n == s->n_chars) {
		return i < s->n ? i : s->n;
	}
	if (i >= s->n_chars) {
		return s->n;
	}
	for (size_t seen = 0; at < s->n; at++) {
		if (((unsigned char)s->s[at] & 0xC0) != 0x80 && seen++ == i) {
			break;
		}
	}
	pfx_j_step(c, at / SCAN_STEP);
	return at;
}

int64_t pfx_j_find(struct pfx_jctx *c, const struct pfx_jstr *s, const struct pfx_jstr *needle,
	size_t from)
{
	const char *at;

	if (from > s->n) {
		return -1;
	}
	at = memmem(s->s + from, s->n - from, needle->s, needle->n);
	pfx_j_step(c, (at == NULL ? s->n - from : (size_t)(at - s->s) - from) / SCAN_STEP);
	return at == NULL ? -1 : at - s->s;
}

int64_t pfx_j_rfind(struct pfx_jctx *c, const struct pfx_jstr *s, const struct pfx_jstr *needle)
{
	int64_t last = -1;

	if (needle->n == 0) {
		return (int64_t)s->n;
	}
	for (int64_t at = 0; c->rc == 0; last = at++) {
		at = pfx_j_find(c, s, needle, (size_t)at);
		if (at < 0 || !pfx_j_step(c, 1)) {
			break;
		}
	}
	return last;
}

uint32_t pfx_j_cp(const struct pfx_jstr *s, size_t i, size_t *len)
{
	uint32_t cp = 0xFFFD;
	int n;

	if ((unsigned char)s->s[i] < 0x80) {
		*len = 1;
		return (unsigned char)s->s[i];
	}
	n = pfx_utf8_next(s->s + i, s->n - i, &cp);

	*len = n > 0 ? (size_t)n : 1;
	return n > 0 ? cp : 0xFFFD;
}

int pfx_j_is_space(uint32_t cp)
{
	return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xA0 ||
		cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
		cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static int in_chars(struct pfx_jctx *c, const struct pfx_jstr *s, size_t at, size_t len,
	const struct pfx_jstr *chars)
{
	if (chars == NULL) {
		return pfx_j_is_space(pfx_j_cp(s, at, &len));
	}
	/* In valid UTF-8 the bytes of one character match another's only as a whole. */
	return pfx_j_step(c, 1 + chars->n / SCAN_STEP) &&
		memmem(chars->s, chars->n, s->s + at, len) != NULL;
}

const struct pfx_jstr *pfx_j_strip(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *chars, int sides)
{
	size_t from = 0, to, at, len;

	if (s == NULL || c->rc != 0) {
		return NULL;
	}
	to = s->n;
	while ((sides & PFX_J_LEFT) && from < to) {
		pfx_j_cp(s, from, &len);
		if (!in_chars(c, s, from, len, chars)) {
			break;
		}
		from += len;
	}
	while ((sides & PFX_J_RIGHT) && from < to) {
		for (at = to - 1; at > from && ((unsigned char)s->s[at] & 0xC0) == 0x80; at--) {
		}
		if (!in_chars(c, s, at, to - at, chars)) {
			break;
		}
		to = at;
	}
	pfx_j_step(c, (from + s->n - to) / 16);
	return from == 0 && to == s->n ? s : pfx_j_part(c, s, from, to);
}

/* Python puts `with` in front of every character and at the end. */
static void replace_empty(struct pfx_jbuild *b, const struct pfx_jstr *s,
	const struct pfx_jstr *with, int64_t max)
{
	size_t at = 0, len;

	while (at < s->n && max != 0 && pfx_j_step(b->c, 1)) {
		pfx_j_put_str(b, with);
		pfx_j_cp(s, at, &len);
		pfx_j_put_part(b, s, at, at + len);
		at += len;
		max--;
	}
	if (at == s->n && max != 0) {
		pfx_j_put_str(b, with);
	}
	pfx_j_put_part(b, s, at, s->n);
}

const struct pfx_jstr *pfx_j_replace(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *old, const struct pfx_jstr *with, int64_t max)
{
	struct pfx_jbuild b = pfx_j_build(c);
	size_t from = 0;
	int64_t at;

	if (s == NULL || old == NULL || with == NULL) {
		return NULL;
	}
	b.safe = s->safe;
	if (old->n == 0) {
		replace_empty(&b, s, with, max);
		return pfx_j_built(&b);
	}
	for (; max != 0 && pfx_j_step(c, 1); max--) {
		at = pfx_j_find(c, s, old, from);
		if (at < 0) {
			break;
		}
		pfx_j_put_part(&b, s, from, (size_t)at);
		pfx_j_put_str(&b, with);
		from = (size_t)at + old->n;
	}
	if (from == 0 && b.n == 0) {
		return s;
	}
	pfx_j_put_part(&b, s, from, s->n);
	return pfx_j_built(&b);
}

static void push_part(struct pfx_jctx *c, struct pfx_jval list, const struct pfx_jstr *s,
	size_t from, size_t to)
{
	pfx_j_push(c, list, pfx_j_val(pfx_j_part(c, s, from, to)));
}

static size_t skip_space(const struct pfx_jstr *s, size_t at, int space)
{
	size_t len;

	while (at < s->n && pfx_j_is_space(pfx_j_cp(s, at, &len)) == space) {
		at += len;
	}
	return at;
}

static struct pfx_jval split_space(struct pfx_jctx *c, const struct pfx_jstr *s, int64_t max)
{
	struct pfx_jval list = pfx_j_list(c, PFX_J_LIST);
	size_t at = skip_space(s, 0, 1), end;

	pfx_j_step(c, s->n / 16);
	while (at < s->n && pfx_j_step(c, 1)) {
		if (max-- == 0) {
			push_part(c, list, s, at, s->n);
			break;
		}
		end = skip_space(s, at, 0);
		push_part(c, list, s, at, end);
		at = skip_space(s, end, 1);
	}
	return list;
}

struct pfx_jval pfx_j_split(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *sep, int64_t max)
{
	struct pfx_jval list;
	size_t from = 0;
	int64_t at;

	if (sep == NULL) {
		return split_space(c, s, max);
	}
	list = pfx_j_list(c, PFX_J_LIST);
	if (sep->n == 0) {
		pfx_j_fail(c, "empty separator");
		return list;
	}
	for (; max != 0 && pfx_j_step(c, 1); max--) {
		at = pfx_j_find(c, s, sep, from);
		if (at < 0) {
			break;
		}
		push_part(c, list, s, from, (size_t)at);
		from = (size_t)at + sep->n;
	}
	push_part(c, list, s, from, s->n);
	return list;
}

static void reverse_list(struct pfx_jval list)
{
	struct pfx_jval swap;

	if (list.type != PFX_J_LIST) {
		return;
	}
	for (size_t i = 0, j = list.u.l->n; i + 1 < j; i++) {
		swap = list.u.l->v[i];
		list.u.l->v[i] = list.u.l->v[--j];
		list.u.l->v[j] = swap;
	}
}

/* Start of the character that ends before byte `end`. */
static size_t back(const struct pfx_jstr *s, size_t end)
{
	for (end--; end > 0 && ((unsigned char)s->s[end] & 0xC0) == 0x80; end--) {
	}
	return end;
}

static size_t back_space(const struct pfx_jstr *s, size_t end, int space)
{
	size_t len;

	while (end > 0 && pfx_j_is_space(pfx_j_cp(s, back(s, end), &len)) == space) {
		end = back(s, end);
	}
	return end;
}

static void rsplit_space(struct pfx_jctx *c, struct pfx_jval list, const struct pfx_jstr *s,
	int64_t max)
{
	size_t end = back_space(s, s->n, 1), from;

	pfx_j_step(c, s->n / 16);
	while (end > 0 && pfx_j_step(c, 1)) {
		if (max-- == 0) {
			push_part(c, list, s, 0, end);
			break;
		}
		from = back_space(s, end, 0);
		push_part(c, list, s, from, end);
		end = back_space(s, from, 1);
	}
}

struct pfx_jval pfx_j_rsplit(struct pfx_jctx *c, const struct pfx_jstr *s,
	const struct pfx_jstr *sep, int64_t max)
{
	struct pfx_jval list = pfx_j_list(c, PFX_J_LIST);
	const struct pfx_jstr *head = s;
	int64_t at;

	if (sep == NULL) {
		rsplit_space(c, list, s, max);
		reverse_list(list);
		return list;
	}
	if (sep->n == 0) {
		pfx_j_fail(c, "empty separator");
		return list;
	}
	if (max < 0) {
		/* Without a bound both directions cut alike, but where separators overlap. */
		max = INT64_MAX;
	}
	for (; max != 0 && head != NULL && pfx_j_step(c, 1); max--) {
		/* From the right: the last place whose end is the last of all. */
		for (at = (int64_t)head->n - (int64_t)sep->n; at >= 0; at--) {
			if (memcmp(head->s + at, sep->s, sep->n) == 0) {
				break;
			}
		}
		pfx_j_step(c, (head->n - (size_t)(at < 0 ? 0 : at)) / 16);
		if (at < 0) {
			break;
		}
		push_part(c, list, head, (size_t)at + sep->n, head->n);
		head = pfx_j_part(c, head, 0, (size_t)at);
	}
	pfx_j_push(c, list, pfx_j_val(head));
	reverse_list(list);
	return list;
}

static int is_line_end(uint32_t cp)
{
	return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
		cp == 0x2028 || cp == 0x2029;
}

struct pfx_jval pfx_j_lines(struct pfx_jctx *c, const struct pfx_jstr *s, int keep_ends)
{
	struct pfx_jval list = pfx_j_list(c, PFX_J_LIST);
	size_t from = 0, at = 0, len;
	uint32_t cp;

	if (s == NULL || !pfx_j_step(c, s->n / SCAN_STEP)) {
		return list;
	}
	while (at < s->n && c->rc == 0) {
		cp = pfx_j_cp(s, at, &len);
		if (!is_line_end(cp)) {
			at += len;
			continue;
		}
		if (cp == '\r' && at + 1 < s->n && s->s[at + 1] == '\n') {
			len = 2;
		}
		push_part(c, list, s, from, keep_ends ? at + len : at);
		from = at += len;
	}
	if (from < s->n) {
		push_part(c, list, s, from, s->n);
	}
	return list;
}

const struct pfx_jstr *pfx_j_repeat(struct pfx_jctx *c, const struct pfx_jstr *s, int64_t times)
{
	struct pfx_jbuild b = pfx_j_build(c);

	if (s == NULL) {
		return NULL;
	}
	b.safe = s->safe;
	if (s->n > 0 && times > 0 && (uint64_t)times > c->text_max / s->n) {
		pfx_j_limit(c, "text");
		return NULL;
	}
	for (int64_t i = 0; s->n > 0 && i < times && c->rc == 0; i++) {
		pfx_j_put_str(&b, s);
	}
	return pfx_j_built(&b);
}

const struct pfx_jstr *pfx_j_reverse(struct pfx_jctx *c, const struct pfx_jstr *s)
{
	struct pfx_jbuild b = pfx_j_build(c);
	size_t from;

	if (s == NULL || !pfx_j_step(c, s->n / 16)) {
		return NULL;
	}
	for (size_t to = s->n; to > 0 && c->rc == 0; to = from) {
		from = back(s, to);
		pfx_j_put_part(&b, s, from, to);
	}
	return pfx_j_built(&b);
}

const struct pfx_jstr *pfx_j_escape(struct pfx_jctx *c, const struct pfx_jstr *s)
{
	static const char from[] = "&<>\"'";
	static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#34;", "&#39;" };
	struct pfx_jbuild b = pfx_j_build(c);
	const char *hit;

	if (s == NULL || s->safe || !pfx_j_step(c, s->n / 16)) {
		return s;
	}
	b.safe = 1;
	for (size_t i = 0; i < s->n && c->rc == 0; i++) {
		hit = s->s[i] == 0 ? NULL : strchr(from, s->s[i]);
		if (hit != NULL) {
			pfx_j_puts(&b, to[hit - from], pfx_j_mark(s, i));
		} else {
			pfx_j_put_part(&b, s, i, i + 1);
		}
	}
	return pfx_j_built(&b);
}
