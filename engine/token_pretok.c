#include "engine/token_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"

/*
 * Pre-tokenizers of byte-level BPE: a pattern whose matches, one behind the other, are the
 * words. Every character belongs to some match. White space is written as the Unicode
 * property, for PCRE2's \s has U+180E too, which the reference has not.
 *
 * The reference knows Unicode 16, PCRE2 10.40 to 10.42 know Unicode 14: letters and digits
 * that came since are added by hand, since the words around them depend on it.
 */
#define NEW_LETTERS \
	"\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}" \
	"\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}" \
	"\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}" \
	"\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}" \
	"\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}" \
	"\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}" \
	"\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}" \
	"\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define NEW_DIGITS \
	"\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
	"\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
	"\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"

#define SPACE "\\p{White_Space}"
#define BEFORE_SPACE "(?!\\P{White_Space})"
#define L "\\p{L}" NEW_LETTERS
#define N "\\p{N}" NEW_DIGITS
#define LETTER "[" L "]"
#define DIGIT "[" N "]"
#define OTHER "[^" SPACE L N "]"

/*
 * smollm: each digit by itself, then gpt-2 on what lies between digits; made one pattern.
 * That first step of the reference knows Unicode 17.
 */
#define SINGLE N "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}"
static const char pattern_smollm[] =
	"[" SINGLE "]|'s|'t|'re|'ve|'m|'ll|'d| ?" LETTER "+| ?[^" SPACE L SINGLE "]+|"
	SPACE "+(?![^" SPACE SINGLE "])|" SPACE "+";
static const char pattern_gpt2[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?" LETTER "+| ?" DIGIT "+| ?" OTHER "+|"
	SPACE "+" BEFORE_SPACE "|" SPACE "+";
#define LLAMA3(digits) \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n" L N "]?" LETTER "+|" digits "| ?" OTHER \
	"+[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACE "+" BEFORE_SPACE "|" SPACE "+"
static const char pattern_llama3[] = LLAMA3(DIGIT "{1,3}");
static const char pattern_qwen2[] = LLAMA3(DIGIT);

enum { IGNORE_MERGES = 1, NFC = 2, ADD_BOS = 4 };

/* The names are those that writers of GGUF files use. */
static const struct pretok {
	const char *name, *pattern;
	int flags;
} pretoks[] = {
	{ "default", pattern_gpt2, 0 },
	{ "gpt-2", pattern_gpt2, 0 },
	{ "phi-2", pattern_gpt2, 0 },
	{ "gigachat", pattern_gpt2, 0 },
	{ "mellum", pattern_gpt2, 0 },
	{ "a.x-4.0", pattern_gpt2, 0 },
	{ "granite-docling", pattern_gpt2, 0 },
	{ "mpt", pattern_gpt2, NFC },
	{ "olmo", pattern_gpt2, NFC },
	{ "smollm", pattern_smollm, 0 },
	{ "starcoder", pattern_smollm, 0 },
	{ "refact", pattern_smollm, 0 },
	{ "codeshell", pattern_smollm, 0 },
	{ "command-r", pattern_smollm, NFC },
	{ "llama3", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "llama-v3", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "llama-bpe", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "falcon3", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "falcon-h1", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "pixtral", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "midm-2.0", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "lfm2", pattern_llama3, IGNORE_MERGES | ADD_BOS },
	{ "qwen2", pattern_qwen2, NFC },
	{ "deepseek-r1-qwen", pattern_qwen2, NFC },
	{ "megrez", pattern_qwen2, NFC },
	{ "kormo", pattern_qwen2, NFC },
	{ "f2llmv2", pattern_qwen2, NFC },
};

static void *from_pcre(size_t n, void *unused)
{
	return pfx_malloc(n);
}

static void to_pcre(void *p, void *unused)
{
	pfx_free(p);
}

static const struct pretok *find_pretok(const struct pfx_str *name)
{
	for (size_t i = 0; i < sizeof(pretoks) / sizeof(*pretoks); i++) {
		if (strlen(pretoks[i].name) == name->n &&
			memcmp(pretoks[i].name, name->s, name->n) == 0) {
			return &pretoks[i];
		}
	}
	return NULL;
}

static int compile(struct pfx_tokenizer *t, const char *pattern)
{
	pcre2_compile_context *ctx;
	PCRE2_SIZE at;
	int code;

	t->pcre_ctx = pcre2_general_context_create(from_pcre, to_pcre, NULL);
	if (t->pcre_ctx == NULL) {
		return -ENOMEM;
	}
	ctx = pcre2_compile_context_create(t->pcre_ctx);
	if (ctx == NULL) {
		return -ENOMEM;
	}
	t->pattern = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, &code, &at, ctx);
	pcre2_compile_context_free(ctx);
	if (t->pattern == NULL) {
		return code == PCRE2_ERROR_HEAP_FAILED ? -ENOMEM : PFX_E_UNSUPPORTED;
	}
	/* Text is bounded and the patterns do not blow up; the default limit ends at 10 MB. */
	t->match_ctx = pcre2_match_context_create(t->pcre_ctx);
	if (t->match_ctx == NULL) {
		return -ENOMEM;
	}
	pcre2_set_match_limit(t->match_ctx, UINT32_MAX);
	/* Where no code may be generated at run time, the interpreter serves, slower. */
	t->jit = pcre2_jit_compile(t->pattern, PCRE2_JIT_COMPLETE) == 0;
	return 0;
}

int pfx_token_pretok_open(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err,
	size_t errlen)
{
	const char *path = pfx_gguf_path(g), *key = "tokenizer.ggml.pre";
	const struct pretok *pretok;
	struct pfx_str name;
	int rc = pfx_gguf_str(g, key, &name, err, errlen);

	if (rc == -ENOENT) {
		name = (struct pfx_str){ "default", 7 };
		pfx_warn("engine", "%s: no %s: words are split as gpt-2 does", path, key);
	} else if (rc != 0) {
		return rc;
	}
	pretok = find_pretok(&name);
	if (pretok == NULL) {
		return pfx_fail(PFX_E_UNSUPPORTED, err, errlen, "%s: %s: the pre-tokenizer \"%.*s\""
			" is not one of gpt-2, llama-bpe, qwen2, smollm and their other names", path,
			key, name.n > 64 ? 64 : (int)name.n, name.s);
	}
	t->ignore_merges = (pretok->flags & IGNORE_MERGES) != 0;
	t->nfc = (pretok->flags & NFC) != 0;
	t->add_bos = (pretok->flags & ADD_BOS) != 0;
	rc = compile(t, pretok->pattern);
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "%s: the pattern of pre-tokenizer \"%s\" does not"
			" compile", path, pretok->name);
	}
	return 0;
}

/*
 * Most words of most texts: ASCII letters, maybe with a space in front. Every pattern takes
 * them alike, when no letter beyond ASCII goes on with the word. 0: it is something else.
 */
static size_t plain_word_end(const char *s, size_t n, size_t at)
{
	size_t start = at + (s[at] == ' '), i = start;

	while (i < n && (unsigned char)((s[i] | 0x20) - 'a') < 26) {
		i++;
	}
	return i == start || (i < n && (unsigned char)s[i] >= 0x80) ? 0 : i;
}

static int next_word(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, size_t at, size_t *end)
{
	PCRE2_SPTR subject = (PCRE2_SPTR)s;
	int rc;

	*end = plain_word_end(s, n, at);
	if (*end != 0) {
		return 0;
	}
	if (t->jit) {
		rc = pcre2_jit_match(t->pattern, subject, n, at, PCRE2_NO_UTF_CHECK, w->match,
			t->match_ctx);
	} else {
		rc = pcre2_match(t->pattern, subject, n, at, PCRE2_NO_UTF_CHECK, w->match,
			t->match_ctx);
	}
	if (rc < 0) {
		return rc == PCRE2_ERROR_NOMEMORY ? -ENOMEM : PFX_E_LIMIT;
	}
	*end = pcre2_get_ovector_pointer(w->match)[1];
	return 0;
}

int pfx_token_encode_bpe(const struct pfx_tokenizer *t, struct pfx_token_work *w, const char *s,
	size_t n, struct pfx_ids *out)
{
	size_t end;
	int rc = 0, changed = 0;

	if (t->nfc) {
		rc = pfx_token_nfc(w, s, n, &changed);
	}
	if (changed) {
		s = w->piece.data;
		n = w->piece.len;
	}
	if (w->match == NULL) {
		w->match = pcre2_match_data_create(1, t->pcre_ctx);
		if (w->match == NULL) {
			return -ENOMEM;
		}
	}
	for (size_t at = 0; at < n && rc == 0; at = end) {
		rc = next_word(t, w, s, n, at, &end);
		if (rc == 0) {
			rc = pfx_token_word(t, w, s + at, end - at, out);
		}
	}
	return rc;
}
