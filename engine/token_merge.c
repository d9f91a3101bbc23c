#include "engine/token_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"

/*
 * One word to ids: begin with its smallest symbols and merge, again and again, the pair of
 * neighbours with the lowest rank (the leftmost of equals) until no pair can be merged.
 * Short words, which is nearly all of them, are searched plainly; long ones use a heap, so
 * that a word of n symbols costs O(n log n).
 */

enum { SHORT_WORD = 32 }; /* from here on the heap is faster */

void pfx_token_work_free(struct pfx_token_work *w)
{
	pfx_free(w->syms);
	pfx_free(w->heap);
	pfx_free(w->cps);
	pfx_buf_free(&w->piece);
	pfx_buf_free(&w->key);
	pcre2_match_data_free(w->match);
	memset(w, 0, sizeof(*w));
}

int pfx_ids_push(struct pfx_ids *ids, uint32_t id)
{
	if (ids->n == ids->cap) {
		size_t cap = ids->cap < 32 ? 64 : ids->cap * 2;
		uint32_t *v = pfx_reallocarray(ids->v, cap, sizeof(*v));

		if (v == NULL) {
			return -ENOMEM;
		}
		ids->v = v;
		ids->cap = cap;
	}
	ids->v[ids->n++] = id;
	return 0;
}

static int heap_push(struct pfx_token_work *w, uint64_t key)
{
	size_t i;

	if (w->n_heap == w->heap_cap) {
		size_t cap = w->heap_cap < 32 ? 64 : w->heap_cap * 2;
		uint64_t *heap = pfx_reallocarray(w->heap, cap, sizeof(*heap));

		if (heap == NULL) {
			return -ENOMEM;
		}
		w->heap = heap;
		w->heap_cap = cap;
	}
	for (i = w->n_heap++; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) {
		w->heap[i] = w->heap[(i - 1) / 2];
	}
	w->heap[i] = key;
	return 0;
}

static uint64_t heap_pop(struct pfx_token_work *w)
{
	uint64_t top = w->heap[0], key = w->heap[--w->n_heap];
	size_t i = 0;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= w->n_heap) {
			break;
		}
		if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child]) {
			child++;
		}
		if (w->heap[child] >= key) {
			break;
		}
		w->heap[i] = w->heap[child];
		i = child;
	}
	w->heap[i] = key;
	return top;
}

/* Ranks the pair of symbol i and the next one, and queues it when it can be merged. */
static int rank_pair(const struct pfx_tokenizer *t, struct pfx_token_work *w, uint32_t i)
{
	struct pfx_token_sym *sym = &w->syms[i];

	sym->rank = PFX_TOKEN_NONE;
	if (sym->next != PFX_TOKEN_NONE) {
		sym->rank = pfx_token_pairs_find(&t->pairs, sym->id, w->syms[sym->next].id)->rank;
	}
	if (sym->rank == PFX_TOKEN_NONE) {
		return 0;
	}
	return heap_push(w, (uint64_t)sym->rank << 32 | i);
}

static int merge_long(const struct pfx_tokenizer *t, struct pfx_token_work *w, struct pfx_ids *out)
{
	struct pfx_token_sym *syms = w->syms;
	int rc = 0;

	w->n_heap = 0;
	for (uint32_t i = 0; i < w->n_syms && rc == 0; i++) {
		syms[i].prev = i == 0 ? PFX_TOKEN_NONE : i - 1;
		syms[i].next = i + 1 == w->n_syms ? PFX_TOKEN_NONE : i + 1;
		rc = rank_pair(t, w, i);
	}
	while (w->n_heap > 0 && rc == 0) {
		uint64_t key = heap_pop(w);
		uint32_t i = (uint32_t)key, gone;

		/* Stale when the pair has changed since (to one of equal rank does no harm). */
		if (syms[i].rank != key >> 32) {
			continue;
		}
		gone = syms[i].next;
		syms[i].id = pfx_token_pairs_find(&t->pairs, syms[i].id, syms[gone].id)->id;
		syms[i].next = syms[gone].next;
		syms[gone].rank = PFX_TOKEN_NONE;
		if (syms[i].next != PFX_TOKEN_NONE) {
			syms[syms[i].next].prev = i;
		}
		rc = rank_pair(t, w, i);
		if (rc == 0 && syms[i].prev != PFX_TOKEN_NONE) {
			rc = rank_pair(t, w, syms[i].prev);
		}
	}
	for (uint32_t i = 0; i != PFX_TOKEN_NONE && rc == 0; i = syms[i].next) {
		rc = pfx_ids_push(out, syms[i].id);
	}
	return rc;
}

static int merge_short(const struct pfx_tokenizer *t, struct pfx_token_work *w,
	struct pfx_ids *out)
{
	const struct pfx_token_pair *pair[SHORT_WORD], *end;
	struct pfx_token_sym *syms = w->syms;
	uint32_t n = (uint32_t)w->n_syms;
	int rc = 0;

	end = pfx_token_pairs_find(&t->pairs, PFX_TOKEN_NONE, PFX_TOKEN_NONE);
	for (uint32_t i = 0; i + 1 < n; i++) {
		pair[i] = pfx_token_pairs_find(&t->pairs, syms[i].id, syms[i + 1].id);
	}
	pair[n - 1] = end;
	for (;;) {
		uint32_t best = 0;

		for (uint32_t i = 1; i < n; i++) {
			if (pair[i]->rank < pair[best]->rank) {
				best = i;
			}
		}
		if (pair[best]->rank == PFX_TOKEN_NONE) {
			break;
		}
		syms[best].id = pair[best]->id;
		n--;
		for (uint32_t i = best + 1; i < n; i++) {
			syms[i].id = syms[i + 1].id;
			pair[i] = pair[i + 1];
		}
		pair[best] = best + 1 == n ? end :
			pfx_token_pairs_find(&t->pairs, syms[best].id, syms[best + 1].id);
		if (best > 0) {
			pair[best - 1] =
				pfx_token_pairs_find(&t->pairs, syms[best - 1].id, syms[best].id);
		}
	}
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		rc = pfx_ids_push(out, syms[i].id);
	}
	return rc;
}

static void add_sym(struct pfx_token_work *w, uint32_t id)
{
	w->syms[w->n_syms++].id = id;
}

/* A character that is no token: its bytes, or the unknown id, once for a row of them. */
static void add_unknown(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	int len)
{
	int bytes = 1;

	for (int i = 0; i < len; i++) {
		bytes &= t->byte_id[(unsigned char)s[i]] != PFX_TOKEN_NONE;
	}
	if (bytes) {
		for (int i = 0; i < len; i++) {
			add_sym(w, t->byte_id[(unsigned char)s[i]]);
		}
	} else if (t->unk != PFX_TOKEN_NONE &&
		(w->n_syms == 0 || w->syms[w->n_syms - 1].id != t->unk)) {
		add_sym(w, t->unk);
	}
}

static int first_syms(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n)
{
	if (w->syms_cap < n) {
		size_t cap = n < 256 ? 256 : n;
		struct pfx_token_sym *syms = pfx_reallocarray(w->syms, cap, sizeof(*syms));

		if (syms == NULL) {
			return -ENOMEM;
		}
		w->syms = syms;
		w->syms_cap = cap;
	}
	w->n_syms = 0;
	if (t->model == PFX_TOKEN_BPE) {
		/* A byte that the vocabulary lacks is left out, as the reference does. */
		for (size_t i = 0; i < n; i++) {
			if (t->byte_id[(unsigned char)s[i]] != PFX_TOKEN_NONE) {
				add_sym(w, t->byte_id[(unsigned char)s[i]]);
			}
		}
		return 0;
	}
	for (size_t i = 0; i < n;) {
		int len = pfx_utf8_next(s + i, n - i, NULL);
		uint32_t id = pfx_token_table_find(&t->words, s + i, (size_t)len);

		if (id != PFX_TOKEN_NONE) {
			add_sym(w, id);
		} else {
			add_unknown(t, w, s + i, len);
		}
		i += (size_t)len;
	}
	return 0;
}

enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

int pfx_token_word(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, struct pfx_ids *out)
{
	uint32_t id = pfx_token_table_find(&t->words, s, n);
	uint8_t whole = WHOLE_NO;
	size_t at = out->n;
	int rc;

	if (id != PFX_TOKEN_NONE) {
		whole = t->ignore_merges ? WHOLE_YES :
			atomic_load_explicit(&t->whole[id], memory_order_relaxed);
		if (whole == WHOLE_YES) {
			return pfx_ids_push(out, id);
		}
	}
	rc = first_syms(t, w, s, n);
	if (rc != 0 || w->n_syms == 0) {
		return rc;
	}
	rc = w->n_syms <= SHORT_WORD ? merge_short(t, w, out) : merge_long(t, w, out);
	if (rc == 0 && id != PFX_TOKEN_NONE && whole == WHOLE_UNKNOWN) {
		whole = out->n == at + 1 && out->v[at] == id ? WHOLE_YES : WHOLE_NO;
		atomic_store_explicit(&t->whole[id], whole, memory_order_relaxed);
	}
	return rc;
}
