/* The tokenizer on vocabularies made by hand: rules, refusals, bounds. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"
#include "tests/gguf_write.h"
#include "tests/tap.h"

enum { MAX = 512 };

/* The tables of a vocabulary; what is NULL or negative is left out of the file. */
struct vocab {
	const char *model, *pre;
	const char *tokens[MAX];
	int32_t types[MAX];
	float scores[MAX];
	const char *merges[MAX];
	uint32_t n, n_types, n_scores, n_merges;
	int bos, eos, unk, add_bos, add_space_prefix;
};

static void add(struct vocab *v, const char *token, int type)
{
	v->tokens[v->n] = token;
	v->types[v->n_types++] = type;
	v->scores[v->n_scores++] = -(float)v->n;
	v->n++;
}

/* Ids: 0 a, 1 b, 2 c, 3 space, 4 ab, 5 bc, 6 abc, 7 <s>, 8 </s>, 9 <u>, 10 <u>s, 11 <, 12 s, 13 >. */
static struct vocab small_bpe(void)
{
	static const char *const ordinary[] = { "a", "b", "c", "\xc4\xa0", "ab", "bc", "abc" };
	struct vocab v = { .model = "gpt2", .pre = "gpt-2", .bos = 7, .eos = 8, .unk = -1,
		.add_bos = -1, .add_space_prefix = -1 };

	for (int i = 0; i < 7; i++) {
		add(&v, ordinary[i], 1);
	}
	add(&v, "<s>", 3);
	add(&v, "</s>", 3);
	add(&v, "<u>", 4);
	add(&v, "<u>s", 4);
	add(&v, "<", 1);
	add(&v, "s", 1);
	add(&v, ">", 1);
	v.merges[v.n_merges++] = "b c";
	v.merges[v.n_merges++] = "a b";
	v.merges[v.n_merges++] = "a bc";
	return v;
}

/* Ids: 0 <unk>, 1 <s>, 2 </s>, 3 to 258 the bytes, then space, a, b, " a", "  ", "ab". */
static struct vocab small_spm(void)
{
	static char bytes[256][7];
	struct vocab v = { .model = "llama", .bos = 1, .eos = 2, .unk = 0, .add_bos = -1,
		.add_space_prefix = -1 };

	add(&v, "<unk>", 2);
	add(&v, "<s>", 3);
	add(&v, "</s>", 3);
	for (int b = 0; b < 256; b++) {
		snprintf(bytes[b], sizeof(bytes[b]), "<0x%02X>", (unsigned)b);
		add(&v, bytes[b], 6);
	}
	add(&v, "\xe2\x96\x81", 1);
	add(&v, "a", 1);
	add(&v, "b", 1);
	add(&v, "\xe2\x96\x81" "a", 1);
	add(&v, "\xe2\x96\x81\xe2\x96\x81", 1);
	add(&v, "ab", 1);
	return v;
}

static void put_id(struct pfx_gw *w, const char *key, int id)
{
	if (id >= 0) {
		pfx_gw_u32(w, key, (uint32_t)id);
	}
}

static int open_file(const struct vocab *v, struct pfx_memfile *file, struct pfx_gguf **g)
{
	struct pfx_gw w = { 0 };
	struct pfx_buf image = PFX_BUF_INIT;
	int rc;

	if (v->model != NULL) {
		pfx_gw_str(&w, "tokenizer.ggml.model", v->model);
	}
	if (v->pre != NULL) {
		pfx_gw_str(&w, "tokenizer.ggml.pre", v->pre);
	}
	pfx_gw_strs(&w, "tokenizer.ggml.tokens", v->tokens, NULL, v->n);
	if (v->n_types > 0) {
		pfx_gw_i32s(&w, "tokenizer.ggml.token_type", v->types, v->n_types);
	}
	if (v->n_scores > 0) {
		pfx_gw_f32s(&w, "tokenizer.ggml.scores", v->scores, v->n_scores);
	}
	if (v->n_merges > 0) {
		pfx_gw_strs(&w, "tokenizer.ggml.merges", v->merges, NULL, v->n_merges);
	}
	put_id(&w, "tokenizer.ggml.bos_token_id", v->bos);
	put_id(&w, "tokenizer.ggml.eos_token_id", v->eos);
	put_id(&w, "tokenizer.ggml.unknown_token_id", v->unk);
	if (v->add_bos >= 0) {
		pfx_gw_bool(&w, "tokenizer.ggml.add_bos_token", v->add_bos);
	}
	if (v->add_space_prefix >= 0) {
		pfx_gw_bool(&w, "tokenizer.ggml.add_space_prefix", v->add_space_prefix);
	}
	pfx_gw_image(&w, &image);
	pfx_gw_free(&w);
	rc = pfx_memfile_open(file);
	rc = rc != 0 ? rc : pfx_memfile_set(file, image.data, image.len);
	pfx_buf_free(&image);
	return rc != 0 ? rc : pfx_gguf_open(g, file->path, NULL, 0);
}

static int open_vocab(const struct vocab *v, struct pfx_tokenizer **t, char *err, size_t errlen)
{
	struct pfx_memfile file;
	struct pfx_gguf *g;
	int rc = open_file(v, &file, &g);

	if (rc != 0) {
		printf("# the test's own file does not open: %d\n", rc);
		exit(1);
	}
	rc = pfx_tokenizer_open(t, g, err, errlen);
	pfx_gguf_close(g);
	pfx_memfile_close(&file);
	return rc;
}

static struct pfx_tokenizer *must_open(const struct vocab *v)
{
	struct pfx_tokenizer *t;
	char err[512] = "";

	if (open_vocab(v, &t, err, sizeof(err)) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
	return t;
}

/* The ids of s as a string; spans are pairs of offsets, ended by -1. */
static const char *ids_of(const struct pfx_tokenizer *t, const char *s, size_t n, const int *cuts)
{
	static char text[4096];
	struct pfx_span spans[8];
	struct pfx_ids ids = { 0 };
	size_t n_spans = 0, at = 0;
	int rc;

	for (; cuts != NULL && cuts[2 * n_spans] >= 0; n_spans++) {
		spans[n_spans].start = (size_t)cuts[2 * n_spans];
		spans[n_spans].end = (size_t)cuts[2 * n_spans + 1];
	}
	rc = pfx_tokenizer_encode(t, s, n, spans, n_spans, &ids);
	at += (size_t)snprintf(text, sizeof(text), "%s", rc == 0 ? "" : "error");
	for (size_t i = 0; i < ids.n && at < sizeof(text); i++) {
		at += (size_t)snprintf(text + at, sizeof(text) - at, i == 0 ? "%u" : " %u", ids.v[i]);
	}
	pfx_ids_free(&ids);
	return text;
}

static void is_str(const char *got, const char *want, const char *what)
{
	if (!ok(strcmp(got, want) == 0, "%s", what)) {
		printf("#   got \"%s\", want \"%s\"\n", got, want);
	}
}

static void is_ids(const struct pfx_tokenizer *t, const char *s, const int *cuts, const char *want,
	const char *what)
{
	is_str(ids_of(t, s, strlen(s), cuts), want, what);
}

static void test_specials(void)
{
	struct vocab v = small_bpe();
	struct pfx_tokenizer *t = must_open(&v);

	is_ids(t, "abc", NULL, "6", "the merge with the lowest rank is first");
	is_ids(t, "ab", NULL, "4", "a token of two");
	is_ids(t, "a<s>a", NULL, "0 11 12 13 0", "a control token outside spans is text");
	is_ids(t, "a<s>a", (int[]){ 1, 4, -1 }, "0 7 0", "in a span of its own size it is read");
	is_ids(t, "a<s>a", (int[]){ 0, 5, -1 }, "0 7 0", "and in a larger one");
	is_ids(t, "a<s>a", (int[]){ 2, 5, -1 }, "0 11 12 13 0", "not when its first byte is outside");
	is_ids(t, "a<s>a", (int[]){ 0, 3, -1 }, "0 11 12 13 0", "nor when its last one is");
	is_ids(t, "a<s>a", (int[]){ 0, 2, 2, 5, -1 }, "0 11 12 13 0", "nor across two spans");
	is_ids(t, "<s><s>", (int[]){ 3, 6, -1 }, "11 12 13 7", "each by itself");
	is_ids(t, "<s></s>", (int[]){ 0, 3, 3, 7, -1 }, "7 8", "spans side by side");
	is_ids(t, "<u>a<u>", NULL, "9 0 9", "a user-defined token is read in any text");
	is_ids(t, "<u>s>", NULL, "10 13", "the longest at a place");
	is_ids(t, "<<u><", NULL, "11 9 11", "the leftmost");
	is_ids(t, "a<s>bc", (int[]){ 1, 1, 4, 4, -1 }, "0 11 12 13 5", "empty spans trust nothing");
	is_ids(t, "", (int[]){ 0, 0, -1 }, "", "no text, no ids");
	is_str(ids_of(t, "<s\xff>", 4, (int[]){ 0, 4, -1 }), "11 12 13",
		"bad bytes do not join what they part");
	is_str(ids_of(t, "\xff<s>\xe2<s>", 8, (int[]){ 1, 4, -1 }), "7 11 12 13",
		"spans stay in place behind bad bytes");
	is_str(ids_of(t, "\xe2<s>", 4, (int[]){ 0, 4, -1 }), "7", "a cut character in front");
	is_str(ids_of(t, "\xc3\xa9<s>\xff", 6, (int[]){ 1, 5, -1 }), "7",
		"a span from within a character");
	is_ids(t, "axb", NULL, "4", "a byte that the vocabulary lacks is left out, as in the reference");
	pfx_tokenizer_close(t);
}

static void test_roles(void)
{
	struct vocab v = small_bpe();
	struct pfx_tokenizer *t = must_open(&v);

	is_int(pfx_tokenizer_n_vocab(t), 14, "size of the vocabulary");
	is_int(pfx_tokenizer_bos(t), 7, "BOS");
	is_int(pfx_tokenizer_eos(t), 8, "EOS");
	is_int(pfx_tokenizer_is_end(t, 8), 1, "EOS ends");
	is_int(pfx_tokenizer_is_end(t, 7), 0, "BOS does not");
	is_int(pfx_tokenizer_is_end(t, UINT32_MAX), 0, "no id does not");
	is_int(pfx_tokenizer_add_bos(t), 0, "a byte-level vocabulary adds no BOS");
	is_int((long long)pfx_tokenizer_spelling(t, 14).n, 0, "an id beyond has no spelling");
	is_int(memcmp(pfx_tokenizer_spelling(t, 8).s, "</s>", 4), 0, "the spelling of one within");
	pfx_tokenizer_close(t);
	v.add_bos = 1;
	t = must_open(&v);
	is_int(pfx_tokenizer_add_bos(t), 1, "unless its file says so");
	pfx_tokenizer_close(t);
	v.bos = v.eos = -1;
	t = must_open(&v);
	is_int(pfx_tokenizer_add_bos(t), 0, "and there is one");
	is_int(pfx_tokenizer_bos(t), UINT32_MAX, "no BOS");
	pfx_tokenizer_close(t);
	v = small_bpe();
	v.pre = "llama-bpe";
	v.types[8] = 1;
	v.types[7] = 4;
	t = must_open(&v);
	is_int(pfx_tokenizer_add_bos(t), 1, "llama-bpe adds a BOS");
	is_ids(t, "</s><s>", NULL, "11 12 13 11 12 13",
		"BOS and EOS with the type of ordinary tokens cannot be written by anybody");
	is_ids(t, "<s>", (int[]){ 0, 3, -1 }, "7", "but are read where trusted");
	pfx_tokenizer_close(t);
}

static void test_spm(void)
{
	struct vocab v = small_spm();
	struct pfx_tokenizer *t = must_open(&v);

	is_int(pfx_tokenizer_add_bos(t), 1, "a SentencePiece vocabulary adds a BOS");
	is_ids(t, "ab", NULL, "262 261", "a space goes in front, and the best score first");
	is_ids(t, "a  a", NULL, "262 259 262", "spaces");
	is_ids(t, "a\xe2\x96\x81" "a", NULL, "262 262", "U+2581 is a space");
	is_ids(t, "\xc3\xa9", NULL, "259 198 172", "what is no token comes as bytes");
	is_ids(t, "<0x41>", NULL, "259 63 51 123 55 52 65", "the spelling of a byte is text");
	is_ids(t, "<s>", NULL, "259 63 118 65", "and so is that of a control token");
	is_ids(t, "a<s>a", (int[]){ 0, 5, -1 }, "262 1 262", "each plain piece gets its space");
	is_ids(t, "<unk>", (int[]){ 0, 5, -1 }, "0", "the unknown token where trusted");
	pfx_tokenizer_close(t);
	v.add_space_prefix = 0;
	t = must_open(&v);
	is_ids(t, "ab", NULL, "264", "no space in front where the file says so");
	pfx_tokenizer_close(t);
	v = small_spm();
	v.types[3 + 0xc3] = 5;
	t = must_open(&v);
	is_ids(t, "\xc3\xa9\xc3\xa9" "a", NULL, "259 0 260", "without its bytes it is unknown, once a row");
	pfx_tokenizer_close(t);
}

static void test_orders(void)
{
	struct vocab v = small_bpe();
	struct pfx_tokenizer *t;

	add(&v, "ca", 1);
	t = must_open(&v);
	is_ids(t, "ca", NULL, "2 0", "a word that no merges make stays in parts");
	pfx_tokenizer_close(t);
	v.pre = "llama-bpe";
	t = must_open(&v);
	is_ids(t, "ca", NULL, "14", "but with llama-bpe a word that is a token is that token");
	is_ids(t, "caca", NULL, "2 0 2 0", "which is said of whole words only");
	pfx_tokenizer_close(t);

	v = small_spm();
	v.add_space_prefix = 0;
	v.tokens[264] = "ba";
	add(&v, "ab", 1);
	v.scores[264] = v.scores[265] = -5;
	t = must_open(&v);
	is_ids(t, "aba", NULL, "265 260", "of equal scores the leftmost merges first");
	is_ids(t, "bab", NULL, "264 261", "whichever it is");
	pfx_tokenizer_close(t);
	v = small_spm();
	v.add_space_prefix = 0;
	add(&v, "b\xe2\x96\x81", 1);
	add(&v, "b\xe2\x96\x81" "b", 1);
	t = must_open(&v);
	is_ids(t, "b b", NULL, "266", "a token may have a space within");
	pfx_tokenizer_close(t);
}

/* Pushes ids and returns what came out, each push ended by '|'. */
static const char *pushed(const struct pfx_tokenizer *t, const int *ids)
{
	static char text[512];
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf out = PFX_BUF_INIT;

	for (; *ids >= 0; ids++) {
		pfx_detok_push(t, &d, (uint32_t)*ids, &out);
		pfx_buf_addc(&out, '|');
	}
	pfx_detok_end(t, &d, &out);
	snprintf(text, sizeof(text), "%s", out.data);
	pfx_buf_free(&out);
	return text;
}

#define BAD "\xef\xbf\xbd"

static void test_detok(void)
{
	struct vocab v = small_spm();
	struct pfx_tokenizer *t = must_open(&v);

	is_str(pushed(t, (int[]){ 262, 262, -1 }), "a| a|", "the first space is dropped");
	is_str(pushed(t, (int[]){ 1, 262, 2, -1 }), "<s>| a|</s>|", "control tokens spell themselves");
	is_str(pushed(t, (int[]){ 3 + 0xf0, 3 + 0x9f, 3 + 0x98, 3 + 0x80, -1 }),
		"|||\xf0\x9f\x98\x80|", "a character comes whole");
	is_str(pushed(t, (int[]){ 3 + 0xe2, 3 + 0x82, 260, -1 }), "||" BAD "a|", "a cut one becomes U+FFFD");
	is_str(pushed(t, (int[]){ 3 + 0xff, 3 + 0xc3, 3 + 0xc3, 3 + 0xa9, -1 }),
		BAD "||" BAD "|\xc3\xa9|", "as soon as it is sure");
	is_str(pushed(t, (int[]){ 3 + 0xf0, 3 + 0x9f, -1 }), "||" BAD, "or at the end");
	is_str(pushed(t, (int[]){ 260, 100000, 261, -1 }), "a||b|", "ids beyond give nothing");
	pfx_tokenizer_close(t);
	v = small_bpe();
	t = must_open(&v);
	is_str(pushed(t, (int[]){ 3, 6, 9, 7, -1 }), " |abc|<u>|<s>|", "byte-level keeps the first space");
	pfx_tokenizer_close(t);
}

static void refuses(const struct vocab *v, int want, const char *part, const char *what)
{
	struct pfx_tokenizer *t = NULL;
	char err[512] = "";
	int rc = open_vocab(v, &t, err, sizeof(err));

	is_int(rc, want, "%s is refused", what);
	if (rc == 0) {
		pfx_tokenizer_close(t);
	}
	if (!ok(strstr(err, part) != NULL, "%s: the sentence names it", what)) {
		printf("#   got \"%s\", want \"%s\" in it\n", err, part);
	}
}

#define REFUSES(make, change, rc, part, what) do { \
	struct vocab v = make(); \
	change; \
	refuses(&v, rc, part, what); \
} while (0)

static void test_refusals(void)
{
	REFUSES(small_bpe, v.model = NULL, PFX_E_FORMAT, "tokenizer.ggml.model", "no model");
	REFUSES(small_bpe, v.model = "bert", PFX_E_UNSUPPORTED, "\"bert\"", "an unknown model");
	REFUSES(small_bpe, v.pre = "viking", PFX_E_UNSUPPORTED, "\"viking\"", "an unknown pre-tokenizer");
	REFUSES(small_bpe, v.n = 0, PFX_E_FORMAT, "tokenizer.ggml.tokens is empty", "an empty vocabulary");
	REFUSES(small_bpe, v.tokens[5] = "a", PFX_E_FORMAT, "entries 0 and 5", "a token twice");
	REFUSES(small_bpe, v.n_types--, PFX_E_FORMAT, "token_type has 13", "too few types");
	REFUSES(small_bpe, v.types[3] = 7, PFX_E_FORMAT, "entry 3 is 7", "a type that is none");
	REFUSES(small_bpe, v.n_merges = 0, PFX_E_FORMAT, "tokenizer.ggml.merges is missing", "no merges");
	REFUSES(small_bpe, v.merges[1] = "a x", PFX_E_FORMAT, "right part of entry 1", "a part that is no token");
	REFUSES(small_bpe, v.merges[1] = "x a", PFX_E_FORMAT, "left part of entry 1", "another");
	REFUSES(small_bpe, v.merges[2] = "c c", PFX_E_FORMAT, "whole of entry 2", "a merge to no token");
	REFUSES(small_bpe, v.merges[0] = "ab", PFX_E_FORMAT, "entry 0 is not two parts", "a merge of one part");
	REFUSES(small_bpe, v.merges[0] = "ab ", PFX_E_FORMAT, "entry 0 is not two parts", "an empty part");
	REFUSES(small_bpe, v.bos = 14, PFX_E_FORMAT, "bos_token_id is 14", "a BOS beyond");
	REFUSES(small_bpe, v.eos = 99, PFX_E_FORMAT, "eos_token_id is 99", "an EOS beyond");
	REFUSES(small_spm, v.n_scores = 0, PFX_E_FORMAT, "tokenizer.ggml.scores is missing", "no scores");
	REFUSES(small_spm, v.n_scores--, PFX_E_FORMAT, "scores has 264 entries", "too few scores");
	REFUSES(small_spm, v.scores[9] = NAN, PFX_E_FORMAT, "entry 9 is not a number", "a score that is none");
	REFUSES(small_spm, v.tokens[7] = "<0x4>", PFX_E_FORMAT, "entry 7 is of type byte", "a byte spelled wrong");
	REFUSES(small_spm, v.tokens[260] = "\xc3", PFX_E_FORMAT, "entry 260 is not UTF-8", "a broken token");
}

static int is_merge(const char *merge, const char *left, const char *right)
{
	size_t n = strlen(left);

	return strncmp(merge, left, n) == 0 && merge[n] == ' ' && strcmp(merge + n + 1, right) == 0;
}

/* What the ids of one word must be, by the plainest way to merge. */
static void naive(const struct vocab *v, const char *word, size_t n, char *out)
{
	char syms[256][256];
	size_t n_syms = 0, at = 0;

	for (size_t i = 0; i < n; i++) {
		snprintf(syms[n_syms++], sizeof(syms[0]), "%c", word[i]);
	}
	for (;;) {
		size_t best = n_syms;
		uint32_t best_rank = UINT32_MAX;

		for (size_t i = 0; i + 1 < n_syms; i++) {
			for (uint32_t r = 0; r < v->n_merges && r < best_rank; r++) {
				if (is_merge(v->merges[r], syms[i], syms[i + 1])) {
					best = i;
					best_rank = r;
				}
			}
		}
		if (best == n_syms) {
			break;
		}
		memmove(syms[best] + strlen(syms[best]), syms[best + 1], strlen(syms[best + 1]) + 1);
		memmove(syms[best + 1], syms[best + 2], (n_syms - best - 2) * sizeof(syms[0]));
		n_syms--;
	}
	*out = '\0';
	for (size_t i = 0; i < n_syms; i++) {
		for (uint32_t id = 0; id < v->n; id++) {
			if (strcmp(v->tokens[id], syms[i]) == 0) {
				at += (size_t)sprintf(out + at, i == 0 ? "%u" : " %u", id);
			}
		}
	}
}

/* Merges of random tokens over three letters, in random order of their making. */
static void make_random(struct vocab *v, struct pfx_rng *rng, struct pfx_buf text[MAX])
{
	*v = (struct vocab){ .model = "gpt2", .pre = "gpt-2", .bos = -1, .eos = -1, .unk = -1,
		.add_bos = -1, .add_space_prefix = -1 };
	add(v, "x", 1);
	add(v, "y", 1);
	add(v, "z", 1);
	for (int i = 0; i < 60; i++) {
		const char *l = v->tokens[pfx_rng_below(rng, v->n)], *r = v->tokens[pfx_rng_below(rng, v->n)];
		struct pfx_buf *merge = &text[2 * i], *token = &text[2 * i + 1];
		int twice = 0;

		pfx_buf_reset(merge);
		pfx_buf_reset(token);
		pfx_buf_addf(merge, "%s %s", l, r);
		pfx_buf_addf(token, "%s%s", l, r);
		for (uint32_t k = 0; k < v->n_merges; k++) {
			twice |= strcmp(v->merges[k], merge->data) == 0;
		}
		if (twice || token->len > 12) {
			continue;
		}
		v->merges[v->n_merges++] = merge->data;
		for (uint32_t k = 0; k < v->n; k++) {
			twice |= strcmp(v->tokens[k], token->data) == 0;
		}
		if (!twice) {
			add(v, token->data, 1);
		}
	}
}

static void test_random_merges(uint64_t seed)
{
	static struct pfx_buf text[MAX];
	struct pfx_rng rng = { seed };
	int wrong = 0;

	for (int round = 0; round < 60; round++) {
		static struct vocab v;
		struct pfx_tokenizer *t;

		make_random(&v, &rng, text);
		t = must_open(&v);
		for (int k = 0; k < 12; k++) {
			char word[200], want[2048];
			size_t n = 1 + (size_t)pfx_rng_below(&rng, k < 8 ? 12 : 120);

			for (size_t i = 0; i < n; i++) {
				word[i] = "xyz"[pfx_rng_below(&rng, 3)];
			}
			naive(&v, word, n, want);
			/* Twice: what is remembered of a word must not change it. */
			for (int again = 0; again < 2; again++) {
				if (strcmp(ids_of(t, word, n, NULL), want) != 0 && wrong++ == 0) {
					printf("# %.*s: want %s\n", (int)n, word, want);
				}
			}
		}
		pfx_tokenizer_close(t);
	}
	is_int(wrong, 0, "random merges as the plain way (seed %llu)", (unsigned long long)seed);
	for (int i = 0; i < MAX; i++) {
		pfx_buf_free(&text[i]);
	}
}

static struct pfx_tokenizer *open_vectors(const char *name)
{
	const char *top = getenv("top_srcdir");
	struct pfx_tokenizer *t = NULL;
	struct pfx_gguf *g;
	char path[4096], err[512] = "";

	snprintf(path, sizeof(path), "%s/tests/vectors/token_%s.gguf", top != NULL ? top : ".", name);
	if (pfx_gguf_open(&g, path, err, sizeof(err)) != 0 ||
		pfx_tokenizer_open(&t, g, err, sizeof(err)) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
	pfx_gguf_close(g);
	return t;
}

/* A megabyte of one thing. Quadratic time would be hours; the bound leaves room for valgrind. */
static void test_bounds(const char *name)
{
	static const char *const things[] = { "a", "A", " ", "\n", " \n", "'", "\xf0\x9f\x98\x80", "\xe4\xb8\xad",
		"\xcc\x81\xcc\xa3", "7", "<", "<tool", "\xc2\xa0", "\xff", "Z", "ab " };
	struct pfx_tokenizer *t = open_vectors(name);

	for (size_t i = 0; i < sizeof(things) / sizeof(*things); i++) {
		struct pfx_buf text = PFX_BUF_INIT;
		struct pfx_ids ids = { 0 };
		struct pfx_span all;
		uint64_t start;
		int rc;

		while (text.len < 1000000) {
			pfx_buf_adds(&text, things[i]);
		}
		all = (struct pfx_span){ 0, text.len };
		start = pfx_clock_ns();
		rc = pfx_tokenizer_encode(t, text.data, text.len, &all, 1, &ids);
		ok(rc == 0 && pfx_clock_ns() - start < 60000000000ull, "%s: a megabyte of \"%s\", %zu ids",
			name, things[i][0] == '\n' ? "\\n" : i == 4 ? " \\n" : things[i][0] == '\xff' ? "FF" : things[i],
			ids.n);
		pfx_ids_free(&ids);
		pfx_buf_free(&text);
	}
	pfx_tokenizer_close(t);
}

static int try_all(const struct pfx_gguf *g, const char *s, size_t n)
{
	struct pfx_span spans[2] = { { 0, 5 }, { 9, n } };
	struct pfx_tokenizer *t = NULL;
	struct pfx_ids ids = { 0 };
	char err[256];
	int rc = pfx_tokenizer_open(&t, g, err, sizeof(err));

	if (rc == 0) {
		rc = pfx_tokenizer_encode(t, s, n, spans, 2, &ids);
		if (rc != 0 && ids.n != 0) {
			rc = 1; /* a failed call must leave no ids behind */
		}
		pfx_ids_free(&ids);
		pfx_tokenizer_close(t);
	}
	return rc;
}

static void test_no_memory(const struct vocab *v, uint64_t seed)
{
	static const char text[] = "abc <s>\xff caf\xc3\xa9 e\xcc\x81\xcc\xa3 \xed\x95\x9c <u>aaaaaaaaaaaaaaaaaaaaaaaaa"
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	struct pfx_memfile file;
	struct pfx_gguf *g;
	uint64_t live;
	int failed = 0, odd = 0;

	if (!ok(open_file(v, &file, &g) == 0, "a file to run out of memory with")) {
		return;
	}
	live = pfx_alloc_live();
	for (uint64_t i = 0; i < 400; i++) {
		int rc;

		pfx_alloc_fail(seed + i, 1 + (uint32_t)(i % 40));
		rc = try_all(g, text, sizeof(text) - 1);
		pfx_alloc_fail(0, 0);
		failed += rc == -ENOMEM;
		odd += rc != 0 && rc != -ENOMEM;
	}
	ok(failed > 0, "%s: %d of 400 ran out of memory", v->model, failed);
	is_int(odd, 0, "%s: and said so (seed %llu)", v->model, (unsigned long long)seed);
	is_int((long long)(pfx_alloc_live() - live), 0, "%s: nothing leaks", v->model);
	pfx_gguf_close(g);
	pfx_memfile_close(&file);
}

struct share {
	struct pfx_tokenizer *t;
	struct pfx_buf text;
	struct pfx_ids ids;
};

static void *encode_shared(void *arg)
{
	struct share *s = arg;

	s->ids = (struct pfx_ids){ 0 };
	for (int i = 0; i < 5; i++) {
		s->ids.n = 0;
		pfx_tokenizer_encode(s->t, s->text.data, s->text.len, NULL, 0, &s->ids);
	}
	return NULL;
}

static void test_threads(uint64_t seed)
{
	struct share s[2] = { { .t = open_vectors("qwen2") } };
	struct pfx_rng rng = { seed };
	pthread_t thread;

	for (int i = 0; i < 20000; i++) {
		pfx_buf_addc(&s[0].text, " etaoinshr"[pfx_rng_below(&rng, 10)]);
	}
	s[1] = s[0];
	if (pthread_create(&thread, NULL, encode_shared, &s[1]) != 0) {
		printf("Bail out! no thread\n");
		exit(1);
	}
	encode_shared(&s[0]);
	pthread_join(thread, NULL);
	ok(s[0].ids.n > 1000 && s[0].ids.n == s[1].ids.n &&
		memcmp(s[0].ids.v, s[1].ids.v, s[0].ids.n * sizeof(uint32_t)) == 0,
		"two threads see the same (seed %llu)", (unsigned long long)seed);
	pfx_ids_free(&s[0].ids);
	pfx_ids_free(&s[1].ids);
	pfx_buf_free(&s[0].text);
	pfx_tokenizer_close(s[0].t);
}

int main(void)
{
	uint64_t seed = pfx_rng_entropy();
	struct vocab v;

	printf("# seed %llu\n", (unsigned long long)seed);
	test_specials();
	test_roles();
	test_spm();
	test_orders();
	test_detok();
	test_refusals();
	test_random_merges(seed);
	test_bounds("qwen2");
	test_bounds("spm");
	v = small_bpe();
	v.pre = "qwen2";
	test_no_memory(&v, seed);
	v = small_spm();
	test_no_memory(&v, seed);
	test_threads(seed);
	is_int((long long)pfx_alloc_live(), 0, "nothing is left allocated");
	return tap_done();
}
