#include "config.h"

#include "engine/token_priv.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"

/*
 * SentencePiece BPE. Its vocabulary has a score for each token, and the pair of neighbours
 * whose whole has the highest score merges first. Every way to cut a token in two tokens
 * is such a pair, so the pairs and their order are laid down here, once.
 */

static const char metaspace[] = "\xe2\x96\x81"; /* U+2581 */
enum { METASPACE_LEN = 3 };
/* A token is tried at each of its characters, so a hostile length costs its square. */
enum { TOKEN_BYTES_MAX = 4096 };

/* Copies s with every U+2581 as a space; returns the new length. */
static size_t put_spaces(const char *s, size_t n, char *out)
{
	size_t k = 0;

	for (size_t i = 0; i < n;) {
		if (n - i >= METASPACE_LEN && memcmp(s + i, metaspace, METASPACE_LEN) == 0) {
			out[k++] = ' ';
			i += METASPACE_LEN;
		} else {
			out[k++] = s[i++];
		}
	}
	return k;
}

/* The value of a spelling <0xNN>, or -1. */
static int byte_value(const struct pfx_str *spelling)
{
	int value = 0;

	if (spelling->n != 6 || memcmp(spelling->s, "<0x", 3) != 0 || spelling->s[5] != '>') {
		return -1;
	}
	for (int i = 3; i < 5; i++) {
		char c = spelling->s[i];

		if (c >= '0' && c <= '9') {
			value = value * 16 + c - '0';
		} else if (c >= 'A' && c <= 'F') {
			value = value * 16 + c - 'A' + 10;
		} else {
			return -1;
		}
	}
	return value;
}

static int load_text(struct pfx_tokenizer *t, uint32_t id, char **at, const char *path, char *err,
	size_t errlen)
{
	const struct pfx_str *spelling = &t->spelling[id];
	int value;

	t->text[id] = *spelling;
	if (t->type[id] == PFX_TOKEN_NORMAL && spelling->n > 0) {
		if (spelling->n > TOKEN_BYTES_MAX) {
			return pfx_fail(PFX_E_LIMIT, err, errlen, "%s: tokenizer.ggml.tokens: entry"
				" %u has %zu bytes, more than %d", path, id, spelling->n,
				(int)TOKEN_BYTES_MAX);
		}
		if (pfx_utf8_valid_len(spelling->s, spelling->n) != spelling->n) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: tokenizer.ggml.tokens:"
				" entry %u is not UTF-8", path, id);
		}
		t->text[id].s = *at;
		t->text[id].n = put_spaces(spelling->s, spelling->n, *at);
		*at += t->text[id].n;
		pfx_token_table_add(&t->words, id);
	}
	if (t->type[id] == PFX_TOKEN_BYTE) {
		value = byte_value(spelling);
		if (value < 0) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: tokenizer.ggml.tokens: entry"
				" %u is of type byte (6) but is not spelled like <0x0A>", path, id);
		}
		**at = (char)value;
		t->text[id] = (struct pfx_str){ (*at)++, 1 };
		t->byte_id[value] = id;
	}
	return 0;
}

static int by_score(const void *a, const void *b, void *scores)
{
	float x = ((const float *)scores)[*(const uint32_t *)a];
	float y = ((const float *)scores)[*(const uint32_t *)b];

	return x > y ? -1 : x < y;
}

/* rank[id]: 0 for the highest score; equal scores have equal ranks. */
static int rank_scores(const float *scores, uint32_t n, uint32_t *rank)
{
	uint32_t *order = pfx_reallocarray(NULL, n, sizeof(*order));
	uint32_t r = 0;

	if (order == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n; i++) {
		order[i] = i;
	}
	qsort_r(order, n, sizeof(*order), by_score, (void *)scores);
	for (uint32_t i = 0; i < n; i++) {
		r += i > 0 && scores[order[i]] != scores[order[i - 1]];
		rank[order[i]] = r;
	}
	pfx_free(order);
	return 0;
}

static int add_cuts(struct pfx_tokenizer *t, uint32_t id, uint32_t rank)
{
	const struct pfx_str *text = &t->text[id];
	int len;

	for (size_t i = 0; i < text->n; i += (size_t)len) {
		struct pfx_token_pair pair = { .rank = rank, .id = id };
		int rc;

		len = pfx_utf8_next(text->s + i, text->n - i, NULL);
		if (i > 0 && text->s[i] == ' ' && text->s[i - 1] != ' ') {
			t->cut_at_space = 0;
		}
		if (i == 0) {
			continue;
		}
		pair.left = pfx_token_table_find(&t->words, text->s, i);
		pair.right = pfx_token_table_find(&t->words, text->s + i, text->n - i);
		if (pair.left == PFX_TOKEN_NONE || pair.right == PFX_TOKEN_NONE) {
			continue;
		}
		rc = pfx_token_pairs_add(&t->pairs, &pair);
		if (rc != 0) {
			return rc;
		}
	}
	return 0;
}

static int load_pairs(struct pfx_tokenizer *t, const float *scores)
{
	uint32_t *rank = pfx_reallocarray(NULL, t->n_vocab, sizeof(*rank));
	int rc = rank == NULL ? -ENOMEM : rank_scores(scores, t->n_vocab, rank);

	if (rc == 0) {
		rc = pfx_token_pairs_init(&t->pairs, 0);
	}
	t->cut_at_space = 1;
	for (uint32_t id = 0; id < t->n_vocab && rc == 0; id++) {
		if (t->type[id] == PFX_TOKEN_NORMAL) {
			rc = add_cuts(t, id, rank[id]);
		}
	}
	pfx_free(rank);
	return rc;
}

static int read_scores(const struct pfx_tokenizer *t, const struct pfx_gguf *g,
	const float **scores, char *err, size_t errlen)
{
	const char *path = pfx_gguf_path(g), *key = "tokenizer.ggml.scores";
	uint32_t n;
	int rc = pfx_gguf_f32s(g, key, scores, &n, err, errlen);

	if (rc == -ENOENT) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s is missing, which a \"llama\""
			" tokenizer needs", path, key);
	}
	if (rc != 0) {
		return rc;
	}
	if (n != t->n_vocab) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s has %u entries, expected %u, as"
			" many as tokenizer.ggml.tokens", path, key, n, t->n_vocab);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (isnan((*scores)[i])) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s: entry %u is not a number",
				path, key, i);
		}
	}
	return 0;
}

int pfx_token_load_spm(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err, size_t errlen)
{
	const char *path = pfx_gguf_path(g);
	const float *scores;
	char *at = t->arena;
	int rc = read_scores(t, g, &scores, err, errlen);

	memset(t->byte_id, 0xff, sizeof(t->byte_id));
	for (uint32_t id = 0; id < t->n_vocab && rc == 0; id++) {
		rc = load_text(t, id, &at, path, err, errlen);
	}
	if (rc != 0) {
		return rc;
	}
	rc = load_pairs(t, scores);
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "%s: no memory for the tokenizer", path);
	}
	return 0;
}

/* Where the word that begins at `at` ends: in front of a space behind another character. */
static size_t word_end(const struct pfx_tokenizer *t, const char *s, size_t n, size_t at)
{
	const char *space;

	if (!t->cut_at_space) {
		return n;
	}
	while (at < n && s[at] == ' ') {
		at++;
	}
	space = at < n ? memchr(s + at, ' ', n - at) : NULL;
	return space == NULL ? n : (size_t)(space - s);
}

int pfx_token_encode_spm(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, struct pfx_ids *out)
{
	char *room;
	size_t end;
	int rc = 0;

	pfx_buf_reset(&w->piece);
	if (t->add_space_prefix && !w->goes_on) {
		pfx_buf_addc(&w->piece, ' ');
	}
	room = pfx_buf_room(&w->piece, n);
	if (room == NULL) {
		return -ENOMEM;
	}
	n = put_spaces(s, n, room) + (size_t)(room - w->piece.data);
	s = w->piece.data;
	for (size_t at = 0; at < n && rc == 0; at = end) {
		end = word_end(t, s, n, at);
		rc = pfx_token_word(t, w, s + at, end - at, out);
	}
	return rc;
}
