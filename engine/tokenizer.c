#include "engine/tokenizer.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/pieces.h"
#include "engine/token_priv.h"

/* Positions in a word are 32 bits wide; far above any request all the same. */
enum { TEXT_BYTES_MAX = 1 << 30 };

void pfx_ids_free(struct pfx_ids *ids)
{
	pfx_free(ids->v);
	*ids = (struct pfx_ids){ NULL, 0, 0 };
}

int pfx_tokenizer_open(struct pfx_tokenizer **out, const struct pfx_gguf *g, char *err,
	size_t errlen)
{
	struct pfx_tokenizer *t = pfx_calloc(1, sizeof(*t));
	int rc;

	if (t == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "%s: no memory for the tokenizer",
			pfx_gguf_path(g));
	}
	rc = pfx_token_load(t, g, err, errlen);
	if (rc != 0) {
		pfx_tokenizer_close(t);
		return rc;
	}
	*out = t;
	return 0;
}

void pfx_tokenizer_close(struct pfx_tokenizer *t)
{
	if (t == NULL) {
		return;
	}
	pfx_token_table_free(&t->words);
	pfx_token_pairs_free(&t->pairs);
	pfx_token_specials_free(&t->specials);
	pcre2_code_free(t->pattern);
	pcre2_match_context_free(t->match_ctx);
	pcre2_general_context_free(t->pcre_ctx);
	pfx_free(t->arena);
	pfx_free(t->spelling);
	pfx_free(t->text);
	pfx_free(t->type);
	pfx_free(t->is_end);
	pfx_free((void *)t->whole);
	pfx_free(t);
}

uint32_t pfx_tokenizer_n_vocab(const struct pfx_tokenizer *t)
{
	return t->n_vocab;
}

uint32_t pfx_tokenizer_bos(const struct pfx_tokenizer *t)
{
	return t->bos;
}

uint32_t pfx_tokenizer_eos(const struct pfx_tokenizer *t)
{
	return t->eos;
}

int pfx_tokenizer_add_bos(const struct pfx_tokenizer *t)
{
	return t->add_bos;
}

size_t pfx_tokenizer_least_ids(const struct pfx_tokenizer *t, size_t n)
{
	/*
	 * An id stands for no more than the longest spelling, and NFC makes a text at most three
	 * times shorter. Bytes that the vocabulary lacks are dropped, but no real text is made of
	 * those alone.
	 */
	return n / 3 / (t->longest > 0 ? t->longest : 1);
}

int pfx_tokenizer_is_end(const struct pfx_tokenizer *t, uint32_t id)
{
	return id < t->n_vocab && t->is_end[id];
}

struct pfx_str pfx_tokenizer_spelling(const struct pfx_tokenizer *t, uint32_t id)
{
	return id < t->n_vocab ? t->spelling[id] : (struct pfx_str){ "", 0 };
}

static int encode_plain(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *piece,
	size_t n, struct pfx_ids *out)
{
	return t->model == PFX_TOKEN_SPM ? pfx_token_encode_spm(t, w, piece, n, out) :
		pfx_token_encode_bpe(t, w, piece, n, out);
}

/*
 * The ids of a piece are made of its bytes and goes_on alone: encode_plain sees nothing else
 * of the text, and what w holds beside is scratch memory. So these are the key.
 */
static int encode_kept(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *piece,
	size_t n, struct pfx_ids *out)
{
	size_t before = out->n;
	int rc;

	pfx_buf_reset(&w->key);
	pfx_buf_add(&w->key, w->use->owner, w->use->owner_len);
	pfx_buf_addc(&w->key, (char)w->goes_on);
	pfx_buf_add(&w->key, piece, n);
	if (w->key.oom) {
		return -ENOMEM;
	}
	rc = pfx_pieces_find(w->use->pieces, w->key.data, w->key.len, out);
	if (rc != 0) {
		return rc < 0 ? rc : 0;
	}
	rc = encode_plain(t, w, piece, n, out);
	if (rc == 0) {
		pfx_pieces_add(w->use->pieces, w->key.data, w->key.len, out->v + before,
			out->n - before);
	}
	return rc;
}

static int encode_piece(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *piece,
	size_t n, struct pfx_ids *out)
{
	return w->use != NULL && w->use->pieces != NULL && pfx_pieces_keeps(w->use->pieces, n) ?
		encode_kept(t, w, piece, n, out) : encode_plain(t, w, piece, n, out);
}

/* The plain pieces and, between them, the specials. The text is valid UTF-8. */
static int encode_valid(const struct pfx_tokenizer *t, struct pfx_token_scan *scan,
	struct pfx_token_work *w, struct pfx_ids *out)
{
	int rc = 0;

	while (rc == 0) {
		size_t start = scan->at;
		uint32_t id = pfx_token_special_next(t, scan);
		const char *piece = scan->s + start;
		size_t n = scan->at - start;

		w->goes_on = w->goes_on && start == 0;
		if (n > 0) {
			rc = encode_piece(t, w, piece, n, out);
		}
		if (id == PFX_TOKEN_NONE) {
			break;
		}
		scan->at += scan->len;
		if (rc == 0) {
			rc = pfx_ids_push(out, id);
		}
	}
	return rc;
}

/*
 * Where the borders of the spans lie once s is cleaned. A border within bytes that become
 * one U+FFFD moves inward, so that nothing is trusted that was not.
 */
static int clean_spans(struct pfx_buf *clean, const char *s, size_t n, struct pfx_span *spans,
	size_t n_spans)
{
	size_t at = 0;

	for (size_t k = 0; k < n_spans; k++) {
		size_t *border[2] = { &spans[k].start, &spans[k].end };

		for (int b = 0; b < 2; b++) {
			size_t want = *border[b], used;

			/* Whole characters up to the border; then, for a start, the cut one. */
			used = pfx_utf8_clean(clean, s + at, want < at ? 0 : want - at, 0);
			at += used;
			if (b == 0 && at < want) {
				int len = pfx_utf8_next(s + at, n - at, NULL);

				len = len == 0 ? (int)(n - at) : len < 0 ? -len : len;
				pfx_utf8_clean(clean, s + at, (size_t)len, 1);
				at += (size_t)len;
			}
			*border[b] = clean->len;
		}
	}
	pfx_utf8_clean(clean, s + at, n - at, 1);
	return clean->oom ? -ENOMEM : 0;
}

static int encode_dirty(const struct pfx_tokenizer *t, struct pfx_token_scan *scan,
	struct pfx_token_work *w, struct pfx_ids *out)
{
	struct pfx_buf clean = PFX_BUF_INIT;
	struct pfx_span *spans = NULL;
	int rc = 0;

	if (scan->n_spans > 0) {
		spans = pfx_memdup(scan->spans, scan->n_spans * sizeof(*spans));
		rc = spans == NULL ? -ENOMEM : 0;
	}
	if (rc == 0) {
		rc = clean_spans(&clean, scan->s, scan->n, spans, scan->n_spans);
	}
	if (rc == 0) {
		scan->s = clean.data;
		scan->n = clean.len;
		scan->spans = spans;
		rc = encode_valid(t, scan, w, out);
	}
	pfx_free(spans);
	pfx_buf_free(&clean);
	return rc;
}

static int encode(const struct pfx_tokenizer *t, const struct pfx_piece_use *use, const char *text,
	size_t n, const struct pfx_span *spans, size_t n_spans, int goes_on, struct pfx_ids *out)
{
	struct pfx_token_scan scan = { text, n, spans, n_spans, 0, 0 };
	struct pfx_token_work w = { .goes_on = goes_on, .use = use };
	size_t n_before = out->n, last = 0;
	int rc;

	if (n > TEXT_BYTES_MAX) {
		return PFX_E_LIMIT;
	}
	for (size_t k = 0; k < n_spans; k++) {
		PFX_ASSERT(last <= spans[k].start);
		PFX_ASSERT(spans[k].start <= spans[k].end);
		last = spans[k].end;
	}
	PFX_ASSERT(last <= n);
	rc = pfx_utf8_valid_len(text, n) == n ? encode_valid(t, &scan, &w, out) :
		encode_dirty(t, &scan, &w, out);
	pfx_token_work_free(&w);
	if (rc != 0) {
		out->n = n_before;
	}
	return rc;
}

int pfx_tokenizer_encode(const struct pfx_tokenizer *t, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans, struct pfx_ids *out)
{
	return encode(t, NULL, text, n, spans, n_spans, 0, out);
}

int pfx_tokenizer_encode_on(const struct pfx_tokenizer *t, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans, struct pfx_ids *out)
{
	return pfx_tokenizer_encode_kept(t, NULL, text, n, spans, n_spans, out);
}

int pfx_tokenizer_encode_kept(const struct pfx_tokenizer *t, const struct pfx_piece_use *use,
	const char *text, size_t n, const struct pfx_span *spans, size_t n_spans,
	struct pfx_ids *out)
{
	int goes_on = out->n > 0 && out->v[out->n - 1] < t->n_vocab &&
		(t->type[out->v[out->n - 1]] == PFX_TOKEN_NORMAL ||
			t->type[out->v[out->n - 1]] == PFX_TOKEN_BYTE);

	return encode(t, use, text, n, spans, n_spans, goes_on, out);
}

int pfx_tokenizer_specials(const struct pfx_tokenizer *t, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans, struct pfx_span **out, size_t *n_out)
{
	struct pfx_token_scan scan = { text, n, spans, n_spans, 0, 0 };
	struct pfx_span *found = pfx_malloc(sizeof(*found)), *more;
	size_t k = 0, cap = 1;

	while (found != NULL && pfx_token_special_next(t, &scan) != PFX_TOKEN_NONE) {
		if (k == cap) {
			cap = cap * 2 + 16;
			more = pfx_reallocarray(found, cap, sizeof(*found));
			if (more == NULL) {
				pfx_free(found);
			}
			found = more;
		}
		if (found != NULL) {
			found[k].start = scan.at;
			found[k++].end = scan.at += scan.len;
		}
	}
	*out = found;
	*n_out = k;
	return found == NULL ? -ENOMEM : 0;
}
