#include "config.h"

#include "engine/token_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/*
 * Special tokens in a text: leftmost, the longest at a place. The spellings lie sorted, so
 * that those which agree with the text so far are always one range, narrowed byte by byte.
 */

enum { ANY_BEGINS = 1, USER_BEGINS = 2 };

static int is_special(uint8_t type)
{
	return type == PFX_TOKEN_CONTROL || type == PFX_TOKEN_UNKNOWN || type == PFX_TOKEN_USER;
}

static int by_bytes(const void *a, const void *b, void *spelling)
{
	const struct pfx_str *x = (struct pfx_str *)spelling + *(const uint32_t *)a;
	const struct pfx_str *y = (struct pfx_str *)spelling + *(const uint32_t *)b;
	int d = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);

	return d != 0 ? d : x->n < y->n ? -1 : x->n > y->n;
}

int pfx_token_specials_init(struct pfx_tokenizer *t)
{
	struct pfx_token_specials *sp = &t->specials;
	uint32_t n = 0;

	for (uint32_t id = 0; id < t->n_vocab; id++) {
		n += is_special(t->type[id]) && t->spelling[id].n > 0;
	}
	sp->ids = pfx_reallocarray(NULL, n, sizeof(*sp->ids));
	if (sp->ids == NULL) {
		return -ENOMEM;
	}
	for (uint32_t id = 0; id < t->n_vocab; id++) {
		if (is_special(t->type[id]) && t->spelling[id].n > 0) {
			sp->ids[sp->n++] = id;
		}
	}
	qsort_r(sp->ids, sp->n, sizeof(*sp->ids), by_bytes, t->spelling);
	for (uint32_t i = 0; i < sp->n; i++) {
		unsigned char c = (unsigned char)t->spelling[sp->ids[i]].s[0];
		int user = t->type[sp->ids[i]] == PFX_TOKEN_USER;

		sp->n_user += user;
		sp->begins[c] |= ANY_BEGINS | (user ? USER_BEGINS : 0);
		sp->first[c + 1]++;
	}
	for (int c = 0; c < 256; c++) {
		sp->first[c + 1] += sp->first[c];
	}
	return 0;
}

void pfx_token_specials_free(struct pfx_token_specials *sp)
{
	pfx_free(sp->ids);
	sp->ids = NULL;
}

/* Of ids[lo..hi), all longer than depth, the first whose byte there is not below c. */
static uint32_t lower_bound(const struct pfx_tokenizer *t, uint32_t lo, uint32_t hi, size_t depth,
	int c)
{
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if ((unsigned char)t->spelling[t->specials.ids[mid]].s[depth] < c) {
			lo = mid + 1;
		} else {
			hi = mid;
		}
	}
	return lo;
}

/* The longest special at s; control and unknown ones only when they end by trusted. */
static uint32_t match_at(const struct pfx_tokenizer *t, const char *s, size_t n, size_t trusted,
	size_t *len)
{
	const struct pfx_token_specials *sp = &t->specials;
	uint32_t lo = sp->first[(unsigned char)s[0]], hi = sp->first[(unsigned char)s[0] + 1];
	uint32_t found = PFX_TOKEN_NONE;

	for (size_t depth = 1; lo < hi; depth++) {
		uint32_t id = sp->ids[lo];

		/* Spellings are unlike each other, so at most one ends here, and it is first. */
		if (t->spelling[id].n == depth) {
			if (depth <= trusted || t->type[id] == PFX_TOKEN_USER) {
				found = id;
				*len = depth;
			}
			lo++;
		}
		if (depth == n) {
			break;
		}
		lo = lower_bound(t, lo, hi, depth, (unsigned char)s[depth]);
		hi = lower_bound(t, lo, hi, depth, (unsigned char)s[depth] + 1);
	}
	return found;
}

/* How many bytes from `at` on are trusted; spans that end before are left behind. */
static size_t trusted_from(struct pfx_token_scan *scan, size_t at)
{
	while (scan->n_spans > 0 && scan->spans->end <= at) {
		scan->spans++;
		scan->n_spans--;
	}
	return scan->n_spans > 0 && scan->spans->start <= at ? scan->spans->end - at : 0;
}

uint32_t pfx_token_special_next(const struct pfx_tokenizer *t, struct pfx_token_scan *scan)
{
	const struct pfx_token_specials *sp = &t->specials;
	size_t i = scan->at;

	while (i < scan->n) {
		size_t trusted = trusted_from(scan, i);

		if (trusted == 0 && sp->n_user == 0) {
			/* Nothing can begin before the next span. */
			if (scan->n_spans == 0) {
				break;
			}
			i = scan->spans->start;
			continue;
		}
		if (sp->begins[(unsigned char)scan->s[i]] & (trusted > 0 ? ANY_BEGINS : USER_BEGINS)) {
			uint32_t id = match_at(t, scan->s + i, scan->n - i, trusted, &scan->len);

			if (id != PFX_TOKEN_NONE) {
				scan->at = i;
				return id;
			}
		}
		i++;
	}
	scan->at = scan->n;
	return PFX_TOKEN_NONE;
}
