#ifndef PFX_ENGINE_TOKEN_PRIV_H
#define PFX_ENGINE_TOKEN_PRIV_H

/*
 * What the files of the tokenizer share.
 *
 *     text --special--> plain pieces --NFC--> pieces --pre-tokenizer--> words --merges--> ids
 *
 * Both kinds of vocabulary are brought to one form when they are opened: each id has the
 * bytes it stands for (`text`), a word table maps such bytes to an id, and a pair table
 * says what two neighbouring ids merge to and how early. A SentencePiece vocabulary knows
 * no merges but scores; its pairs are made of all the ways to cut a token in two tokens,
 * ranked by the score of the whole, which gives the same result. It spells a space as
 * U+2581; here both that character and the space are kept as a space.
 *
 * Ids that a text of a client must not give (control, unknown, bytes spelled <0x41>) are
 * in neither table.
 */

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

#define PFX_TOKEN_NONE UINT32_MAX

/* As tokenizer.ggml.token_type numbers them. */
enum pfx_token_type {
	PFX_TOKEN_NORMAL = 1,
	PFX_TOKEN_UNKNOWN = 2,
	PFX_TOKEN_CONTROL = 3,
	PFX_TOKEN_USER = 4,
	PFX_TOKEN_UNUSED = 5,
	PFX_TOKEN_BYTE = 6,
};

enum pfx_token_model { PFX_TOKEN_BPE, PFX_TOKEN_SPM };

/* Bytes to id, by open addressing. Borrows strs, which is indexed by id. */
struct pfx_token_table {
	const struct pfx_str *strs;
	struct pfx_token_slot *slots;
	uint64_t seed;
	uint32_t mask;
	uint32_t longest; /* bytes of the longest entry */
};

int pfx_token_table_init(struct pfx_token_table *tab, const struct pfx_str *strs, uint32_t n_max);
void pfx_token_table_free(struct pfx_token_table *tab);
uint32_t pfx_token_table_find(const struct pfx_token_table *tab, const char *s, size_t n);
/* PFX_TOKEN_NONE, or the id that has these bytes already (and then nothing is added). */
uint32_t pfx_token_table_add(struct pfx_token_table *tab, uint32_t id);

/* What two neighbours merge to. Lower ranks merge first. */
struct pfx_token_pair {
	uint32_t left, right;
	uint32_t rank, id; /* rank PFX_TOKEN_NONE: no such pair */
};

struct pfx_token_pairs {
	struct pfx_token_pair *slots;
	uint64_t seed;
	uint32_t mask, n;
};

int pfx_token_pairs_init(struct pfx_token_pairs *p, uint32_t n_hint);
void pfx_token_pairs_free(struct pfx_token_pairs *p);
/* Grows as needed; the first of two equal pairs wins. -ENOMEM, PFX_E_LIMIT. */
int pfx_token_pairs_add(struct pfx_token_pairs *p, const struct pfx_token_pair *pair);

static inline uint64_t pfx_token_pair_hash(uint64_t seed, uint32_t left, uint32_t right)
{
	uint64_t h = ((uint64_t)left << 32 | right) ^ seed;

	h *= 0x9e3779b97f4a7c15ull;
	return h ^ h >> 32;
}

static inline const struct pfx_token_pair *pfx_token_pairs_find(const struct pfx_token_pairs *p,
	uint32_t left, uint32_t right)
{
	uint32_t i = (uint32_t)pfx_token_pair_hash(p->seed, left, right) & p->mask;

	for (;; i = (i + 1) & p->mask) {
		const struct pfx_token_pair *e = &p->slots[i];

		if ((e->left == left && e->right == right) || e->rank == PFX_TOKEN_NONE) {
			return e;
		}
	}
}

/* Control, unknown and user-defined ids by their spelling, in the order of their bytes. */
struct pfx_token_specials {
	uint32_t *ids;
	uint32_t n, n_user;
	uint32_t first[257]; /* where the spellings that begin with a byte begin in ids */
	uint8_t begins[256]; /* 1: some special begins so; 2: a user-defined one does */
};

struct pfx_tokenizer {
	enum pfx_token_model model;
	uint32_t n_vocab;
	uint32_t bos, eos, eot, eom, unk;
	int add_bos;
	int add_space_prefix; /* SPM: a space in front of each plain piece */
	int ignore_merges;    /* a word that is a token is that token, whatever the merges say */
	int nfc;

	char *arena; /* the bytes of spelling and text */
	struct pfx_str *spelling;
	struct pfx_str *text;
	uint8_t *type;
	uint8_t *is_end;
	uint32_t longest; /* bytes of the longest spelling; no text of an id is longer */

	struct pfx_token_table words;
	struct pfx_token_pairs pairs;
	/* Whether merging the text of an id gives that id: found out on first use. */
	_Atomic uint8_t *whole;
	uint32_t byte_id[256]; /* BPE: the one-byte tokens; SPM: the ids <0x00>..<0xFF> */
	int cut_at_space;      /* SPM: no token has a space behind another character */

	struct pfx_token_specials specials;
	pcre2_general_context *pcre_ctx;
	pcre2_code *pattern;
	pcre2_match_context *match_ctx;
	int jit;
};

/* A symbol of a word that is being merged: a list through one array. */
struct pfx_token_sym {
	uint32_t prev, next;
	uint32_t id;
	uint32_t rank; /* of the pair with next */
};

/* What one call of encode needs; zeroed, then freed. */
struct pfx_token_work {
	struct pfx_token_sym *syms;
	size_t n_syms, syms_cap;
	uint64_t *heap; /* rank << 32 | index of the left symbol */
	size_t n_heap, heap_cap;
	int32_t *cps;
	size_t cps_cap;
	struct pfx_buf piece;
	pcre2_match_data *match;
	int goes_on; /* this piece follows plain text */
	const struct pfx_piece_use *use; /* NULL: nothing is remembered */
	struct pfx_buf key;
};
void pfx_token_work_free(struct pfx_token_work *w);

int pfx_ids_push(struct pfx_ids *ids, uint32_t id);

/* token_load.c: fills a zeroed tokenizer from the file's tables. */
int pfx_token_load(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err, size_t errlen);
/* token_bpe.c, token_spm.c: text, words, pairs, byte_id of a loaded vocabulary. */
int pfx_token_load_bpe(struct pfx_tokenizer *t, const struct pfx_gguf *g,
	const struct pfx_token_table *by_spelling, char *err, size_t errlen);
int pfx_token_load_spm(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err,
	size_t errlen);
/* One plain piece, which is valid UTF-8. */
int pfx_token_encode_spm(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, struct pfx_ids *out);

/* token_merge.c: appends the ids of one word. */
int pfx_token_word(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, struct pfx_ids *out);

/* token_pretok.c: the pre-tokenizer by its name in the file. */
int pfx_token_pretok_open(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err,
	size_t errlen);
/* One plain piece of a BPE vocabulary, which is valid UTF-8. */
int pfx_token_encode_bpe(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, struct pfx_ids *out);

/* token_nfc.c: w->piece becomes the NFC of s[0..n); *changed is 0 when s is so already. */
int pfx_token_nfc(struct pfx_token_work *w, const char *s, size_t n, int *changed);

/* token_special.c: a walk over the specials of a text. */
struct pfx_token_scan {
	const char *s;
	size_t n;
	const struct pfx_span *spans;
	size_t n_spans;
	size_t at; /* where to look from; then where the special begins, n if there is none */
	size_t len;
};
int pfx_token_specials_init(struct pfx_tokenizer *t);
void pfx_token_specials_free(struct pfx_token_specials *sp);
/* The leftmost special at or after `at`, the longest one there; or PFX_TOKEN_NONE. */
uint32_t pfx_token_special_next(const struct pfx_tokenizer *t, struct pfx_token_scan *scan);

#endif
