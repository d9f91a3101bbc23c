#ifndef PFX_ENGINE_TOKENIZER_H
#define PFX_ENGINE_TOKENIZER_H

/*
 * Text to token ids and back, from the model file's own tables: byte-level BPE
 * (tokenizer.ggml.model "gpt2", with the pre-tokenizers gpt-2, llama-bpe, qwen2, smollm and
 * their aliases) and SentencePiece-type ("llama"). Immutable once open: any thread.
 *
 * Control tokens (type 3) are read out of text only inside the spans that the caller
 * trusts; user-defined ones (type 4) match in any text. So text of a client can never
 * become a control token.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/gguf.h"

struct pfx_tokenizer;
struct pfx_pieces;

struct pfx_span {
	size_t start, end; /* bytes [start, end) */
};

/* A growable run of ids. */
struct pfx_ids {
	uint32_t *v;
	size_t n, cap;
};
void pfx_ids_free(struct pfx_ids *ids);

int pfx_tokenizer_open(struct pfx_tokenizer **out, const struct pfx_gguf *g, char *err,
	size_t errlen);
void pfx_tokenizer_close(struct pfx_tokenizer *t);

uint32_t pfx_tokenizer_n_vocab(const struct pfx_tokenizer *t);
/* UINT32_MAX when the model has none. */
uint32_t pfx_tokenizer_bos(const struct pfx_tokenizer *t);
uint32_t pfx_tokenizer_eos(const struct pfx_tokenizer *t);
/* Whether a text prompt gets a BOS in front (the model's add_bos_token). */
int pfx_tokenizer_add_bos(const struct pfx_tokenizer *t);
/* Ends a turn: EOS, EOT, EOM and what the model's tables say besides. */
int pfx_tokenizer_is_end(const struct pfx_tokenizer *t, uint32_t id);
/*
 * The least number of ids that n bytes of plain text can become. A text for which that is
 * too many needs no tokenising to be refused.
 */
size_t pfx_tokenizer_least_ids(const struct pfx_tokenizer *t, size_t n);
/* The id's own spelling; empty for ids at or above the vocabulary. */
struct pfx_str pfx_tokenizer_spelling(const struct pfx_tokenizer *t, uint32_t id);

/*
 * Appends the ids of text[0..n). Control tokens are read where they lie wholly inside one
 * of the spans (ascending, not overlapping); the plain text between two special tokens is
 * tokenised as one piece, whoever wrote it. Bytes that are not UTF-8 are read as U+FFFD.
 * -ENOMEM, PFX_E_LIMIT.
 */
int pfx_tokenizer_encode(const struct pfx_tokenizer *t, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans, struct pfx_ids *out);
/*
 * The same for a text that goes on behind what *out has already: where that ends in plain
 * text, no space is made up in front of the first piece.
 */
int pfx_tokenizer_encode_on(const struct pfx_tokenizer *t, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans, struct pfx_ids *out);

/*
 * As encode_on, but pieces of plain text that the same owner had before are looked up
 * (pieces.h). The ids are the same.
 */
struct pfx_piece_use {
	struct pfx_pieces *pieces; /* NULL: nothing is looked up or kept */
	const char *owner;         /* of a length that reads off its own bytes */
	size_t owner_len;
};
int pfx_tokenizer_encode_kept(const struct pfx_tokenizer *t, const struct pfx_piece_use *use,
	const char *text, size_t n, const struct pfx_span *spans, size_t n_spans,
	struct pfx_ids *out);

/*
 * Where in text[0..n) special tokens are read: control tokens in the spans (which may reach
 * beyond n), user-defined ones anywhere. *out is owned. -ENOMEM.
 */
int pfx_tokenizer_specials(const struct pfx_tokenizer *t, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans, struct pfx_span **out, size_t *n_out);

/*
 * Ids to text, as a stream: whole characters only. What is incomplete waits for the next
 * push; bytes that can no longer become UTF-8 come out as U+FFFD.
 */
struct pfx_detok {
	char pending[4];
	uint32_t n_pending;
	int started; /* SentencePiece: the space in front of the first word is dropped */
};
#define PFX_DETOK_INIT { { 0 }, 0, 0 }
/* A control token gives its own spelling. */
void pfx_detok_push(const struct pfx_tokenizer *t, struct pfx_detok *d, uint32_t id,
	struct pfx_buf *out);
void pfx_detok_end(const struct pfx_tokenizer *t, struct pfx_detok *d, struct pfx_buf *out);

#endif
