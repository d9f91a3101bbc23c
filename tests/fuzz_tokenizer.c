/*
 * The tokenizer under arbitrary bytes, with a byte-level and a SentencePiece vocabulary.
 * Bytes without trusted spans come back as they are, but for U+FFFD where they are not
 * UTF-8, and hold no control token; with spans, which the first bytes place, control
 * tokens come from inside them alone.
 *
 * With libFuzzer (clang -fsanitize=fuzzer,address) this is a fuzz target;
 * without it, `make check` replays tests/corpus/tokenizer. The vocabularies are those of
 * tests/vectors, found by $top_srcdir.
 */
#include "tests/fuzz.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

static struct pfx_tokenizer *open_one(const char *name)
{
	const char *top = getenv("top_srcdir");
	struct pfx_tokenizer *t;
	struct pfx_gguf *g;
	char path[4096], err[512];

	snprintf(path, sizeof(path), "%s/tests/vectors/token_%s.gguf", top != NULL ? top : ".", name);
	if (pfx_gguf_open(&g, path, err, sizeof(err)) != 0 ||
		pfx_tokenizer_open(&t, g, err, sizeof(err)) != 0) {
		fprintf(stderr, "%s\n", err);
		abort();
	}
	pfx_gguf_close(g);
	return t;
}

static void must(int cond, const char *what)
{
	if (!cond) {
		fprintf(stderr, "fuzz_tokenizer: %s\n", what);
		abort();
	}
}

/* Ids 0..2 are the control tokens of both vocabularies (unknown, BOS, EOS in the second). */
static size_t count_control(const struct pfx_ids *ids)
{
	size_t n = 0;

	for (size_t i = 0; i < ids->n; i++) {
		n += ids->v[i] < 3;
	}
	return n;
}

/* The text of the ids; every push must give whole characters. */
static void decode(const struct pfx_tokenizer *t, const struct pfx_ids *ids, struct pfx_buf *text)
{
	struct pfx_detok d = PFX_DETOK_INIT;

	for (size_t i = 0; i < ids->n; i++) {
		size_t at = text->len;

		pfx_detok_push(t, &d, ids->v[i], text);
		must(text->len == at ||
			pfx_utf8_valid_len(text->data + at, text->len - at) == text->len - at,
			"a push gives part of a character");
	}
	pfx_detok_end(t, &d, text);
}

static void plain(const struct pfx_tokenizer *t, const char *s, size_t n, int exact)
{
	struct pfx_ids ids = { 0 };
	struct pfx_buf text = PFX_BUF_INIT, clean = PFX_BUF_INIT;

	must(pfx_tokenizer_encode(t, s, n, NULL, 0, &ids) == 0, "encode fails");
	must(count_control(&ids) == 0, "untrusted text gives a control token");
	decode(t, &ids, &text);
	pfx_utf8_clean(&clean, s, n, 1);
	if (exact) {
		must(text.len == clean.len &&
			(text.len == 0 || memcmp(text.data, clean.data, text.len) == 0),
			"the ids do not give the text back");
	}
	pfx_buf_free(&text);
	pfx_buf_free(&clean);
	pfx_ids_free(&ids);
}

static void trusted(const struct pfx_tokenizer *t, const char *s, size_t n, const uint8_t cut[4])
{
	struct pfx_span spans[2] = { { 0, 0 }, { 0, 0 } };
	struct pfx_ids ids = { 0 };
	size_t room = 0;

	spans[0].start = n * cut[0] / 256;
	spans[0].end = spans[0].start + (n - spans[0].start) * cut[1] / 256;
	spans[1].start = spans[0].end + (n - spans[0].end) * cut[2] / 256;
	spans[1].end = spans[1].start + (n - spans[1].start) * cut[3] / 255;
	must(pfx_tokenizer_encode(t, s, n, spans, 2, &ids) == 0, "encode with spans fails");
	/* The shortest control token has three bytes. */
	for (int i = 0; i < 2; i++) {
		room += (spans[i].end - spans[i].start) / 3;
	}
	must(count_control(&ids) <= room, "more control tokens than the spans have room for");
	pfx_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static struct pfx_tokenizer *bpe, *spm;
	const char *s = (const char *)bytes;

	if (bpe == NULL) {
		bpe = open_one("gpt-2");
		spm = open_one("spm");
	}
	plain(bpe, s, n, 1);
	plain(spm, s, n, 0);
	if (n >= 4) {
		trusted(bpe, s + 4, n - 4, bytes);
		trusted(spm, s + 4, n - 4, bytes);
	}
	return 0;
}
