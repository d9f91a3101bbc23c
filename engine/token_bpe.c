#include "engine/token_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"

/*
 * Byte-level BPE spells bytes with printable characters: those that print in Latin-1 stand
 * for themselves, the other 68 are U+0100, U+0101 and so on in the order of the bytes.
 */
enum { ALPHABET_END = 256 + 68 };

static void make_alphabet(int16_t byte_of[ALPHABET_END])
{
	int next = 256;

	memset(byte_of, 0xff, ALPHABET_END * sizeof(*byte_of));
	for (int b = 0; b < 256; b++) {
		int prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);

		byte_of[prints ? b : next++] = (int16_t)b;
	}
}

/* The bytes that a spelling stands for, to out; -1 when it is not spelled so. */
static int decode(const int16_t byte_of[ALPHABET_END], const struct pfx_str *spelling, char *out)
{
	size_t n = 0;

	for (size_t i = 0; i < spelling->n;) {
		uint32_t cp;
		int len = pfx_utf8_next(spelling->s + i, spelling->n - i, &cp);

		if (len <= 0 || cp >= ALPHABET_END || byte_of[cp] < 0) {
			return -1;
		}
		out[n++] = (char)byte_of[cp];
		i += (size_t)len;
	}
	return (int)n;
}

/* Ordinary tokens stand for the bytes they spell, all others for their own spelling. */
static void load_texts(struct pfx_tokenizer *t)
{
	int16_t byte_of[ALPHABET_END];
	char *at = t->arena;

	make_alphabet(byte_of);
	memset(t->byte_id, 0xff, sizeof(t->byte_id));
	for (uint32_t id = 0; id < t->n_vocab; id++) {
		const struct pfx_str *spelling = &t->spelling[id];
		int n = -1;

		/* The text takes the place of the spelling's second copy, and is no longer. */
		t->text[id] = *spelling;
		if (t->type[id] == PFX_TOKEN_NORMAL) {
			n = decode(byte_of, spelling, at);
		}
		if (n <= 0) {
			continue;
		}
		t->text[id] = (struct pfx_str){ at, (size_t)n };
		at += n;
		pfx_token_table_add(&t->words, id);
		if (n == 1) {
			t->byte_id[(unsigned char)t->text[id].s[0]] = id;
		}
	}
}

/* The halves of "left right". */
static int cut_merge(const struct pfx_str *merge, struct pfx_str *left, struct pfx_str *right)
{
	const char *space = merge->n < 2 ? NULL : memchr(merge->s + 1, ' ', merge->n - 1);

	if (space == NULL || space + 1 == merge->s + merge->n) {
		return -1;
	}
	*left = (struct pfx_str){ merge->s, (size_t)(space - merge->s) };
	*right = (struct pfx_str){ space + 1, merge->n - left->n - 1 };
	return 0;
}

static uint32_t find_joined(const struct pfx_token_table *by_spelling, struct pfx_buf *joined,
	const struct pfx_str *left, const struct pfx_str *right)
{
	pfx_buf_reset(joined);
	pfx_buf_add(joined, left->s, left->n);
	pfx_buf_add(joined, right->s, right->n);
	return joined->oom ? PFX_TOKEN_NONE :
		pfx_token_table_find(by_spelling, joined->data, joined->len);
}

static int load_merges(struct pfx_tokenizer *t, const struct pfx_token_table *by_spelling,
	const struct pfx_str *merges, uint32_t n, struct pfx_buf *joined, const char *path,
	char *err, size_t errlen)
{
	for (uint32_t i = 0; i < n; i++) {
		struct pfx_token_pair pair = { .rank = i };
		struct pfx_str left, right;
		int rc;

		if (cut_merge(&merges[i], &left, &right) != 0) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: tokenizer.ggml.merges: entry"
				" %u is not two parts with a space between them", path, i);
		}
		pair.left = pfx_token_table_find(by_spelling, left.s, left.n);
		pair.right = pfx_token_table_find(by_spelling, right.s, right.n);
		pair.id = find_joined(by_spelling, joined, &left, &right);
		if (joined->oom) {
			return pfx_fail(-ENOMEM, err, errlen, "%s: no memory for the merges", path);
		}
		if (pair.left == PFX_TOKEN_NONE || pair.right == PFX_TOKEN_NONE ||
			pair.id == PFX_TOKEN_NONE) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: tokenizer.ggml.merges: the"
				" %s of entry %u is not in tokenizer.ggml.tokens", path,
				pair.left == PFX_TOKEN_NONE ? "left part" :
				pair.right == PFX_TOKEN_NONE ? "right part" : "whole", i);
		}
		/* Plain text never becomes a special token, whatever the merges say. */
		if (t->type[pair.id] != PFX_TOKEN_NORMAL && t->type[pair.id] != PFX_TOKEN_USER) {
			continue;
		}
		rc = pfx_token_pairs_add(&t->pairs, &pair);
		if (rc != 0) {
			return pfx_fail(rc, err, errlen, "%s: no memory for the merges", path);
		}
	}
	return 0;
}

int pfx_token_load_bpe(struct pfx_tokenizer *t, const struct pfx_gguf *g,
	const struct pfx_token_table *by_spelling, char *err, size_t errlen)
{
	const char *path = pfx_gguf_path(g), *key = "tokenizer.ggml.merges";
	struct pfx_buf joined = PFX_BUF_INIT;
	const struct pfx_str *merges;
	uint32_t n;
	int rc = pfx_gguf_strs(g, key, &merges, &n, err, errlen);

	if (rc == -ENOENT) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s is missing, which a \"gpt2\""
			" tokenizer needs", path, key);
	}
	if (rc != 0) {
		return rc;
	}
	load_texts(t);
	rc = pfx_token_pairs_init(&t->pairs, n);
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "%s: no memory for the merges", path);
	}
	rc = load_merges(t, by_spelling, merges, n, &joined, path, err, errlen);
	pfx_buf_free(&joined);
	return rc;
}
