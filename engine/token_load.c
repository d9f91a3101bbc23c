#include "engine/token_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* The tables that both kinds of vocabulary have, and the ids with a part to play. */

enum { SPELLINGS_BYTES_MAX = 1 << 30 };

/*
 * Tokens that end a turn or a text in the models that have them. Files name only some of
 * them as EOS, EOT or EOM.
 */
static const char *const end_spellings[] = {
	"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>",
	"<end_of_turn>", "<|end_of_turn|>",
};

static int no_memory(const struct pfx_gguf *g, char *err, size_t errlen)
{
	return pfx_fail(-ENOMEM, err, errlen, "%s: no memory for the tokenizer", pfx_gguf_path(g));
}

static int load_model(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err, size_t errlen)
{
	const char *path = pfx_gguf_path(g), *key = "tokenizer.ggml.model";
	struct pfx_str model;
	int rc = pfx_gguf_str(g, key, &model, err, errlen);

	if (rc == -ENOENT) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s is missing", path, key);
	}
	if (rc != 0) {
		return rc;
	}
	if (model.n == 4 && memcmp(model.s, "gpt2", 4) == 0) {
		t->model = PFX_TOKEN_BPE;
	} else if (model.n == 5 && memcmp(model.s, "llama", 5) == 0) {
		t->model = PFX_TOKEN_SPM;
	} else {
		return pfx_fail(PFX_E_UNSUPPORTED, err, errlen, "%s: %s: \"%.*s\" is neither"
			" \"gpt2\" (byte-level BPE) nor \"llama\" (SentencePiece)", path, key,
			model.n > 64 ? 64 : (int)model.n, model.s);
	}
	return 0;
}

/* Copies the spellings, so that the tokenizer outlives the file. */
static int load_spellings(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err,
	size_t errlen)
{
	const char *path = pfx_gguf_path(g), *key = "tokenizer.ggml.tokens";
	const struct pfx_str *tokens;
	size_t bytes = 0;
	char *at;
	int rc = pfx_gguf_strs(g, key, &tokens, &t->n_vocab, err, errlen);

	if (rc != 0 && rc != -ENOENT) {
		return rc;
	}
	if (rc == -ENOENT || t->n_vocab == 0) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s is %s", path, key,
			rc == -ENOENT ? "missing" : "empty");
	}
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		bytes += tokens[i].n;
	}
	if (bytes > SPELLINGS_BYTES_MAX) {
		return pfx_fail(PFX_E_LIMIT, err, errlen, "%s: %s has %zu bytes, more than %d",
			path, key, bytes, (int)SPELLINGS_BYTES_MAX);
	}
	/* The first half is for the texts, which are never longer than the spellings. */
	t->arena = pfx_malloc(bytes * 2);
	t->spelling = pfx_reallocarray(NULL, t->n_vocab, sizeof(*t->spelling));
	t->text = pfx_reallocarray(NULL, t->n_vocab, sizeof(*t->text));
	t->type = pfx_malloc(t->n_vocab);
	t->is_end = pfx_calloc(t->n_vocab, 1);
	t->whole = pfx_calloc(t->n_vocab, 1);
	if (t->arena == NULL || t->spelling == NULL || t->text == NULL || t->type == NULL ||
		t->is_end == NULL || t->whole == NULL) {
		return no_memory(g, err, errlen);
	}
	at = t->arena + bytes;
	for (uint32_t i = 0; i < t->n_vocab; i++) {
		memcpy(at, tokens[i].s, tokens[i].n);
		t->spelling[i] = (struct pfx_str){ at, tokens[i].n };
		at += tokens[i].n;
	}
	return 0;
}

static int index_spellings(const struct pfx_tokenizer *t, const struct pfx_gguf *g,
	struct pfx_token_table *by_spelling, char *err, size_t errlen)
{
	if (pfx_token_table_init(by_spelling, t->spelling, t->n_vocab) != 0) {
		return no_memory(g, err, errlen);
	}
	for (uint32_t id = 0; id < t->n_vocab; id++) {
		uint32_t other;

		if (t->spelling[id].n == 0) {
			continue; /* a gap in the vocabulary: no text gives it */
		}
		other = pfx_token_table_add(by_spelling, id);
		if (other != PFX_TOKEN_NONE) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: tokenizer.ggml.tokens:"
				" entries %u and %u are the same", pfx_gguf_path(g), other, id);
		}
	}
	return 0;
}

static int load_types(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err, size_t errlen)
{
	const char *path = pfx_gguf_path(g), *key = "tokenizer.ggml.token_type";
	const int32_t *types;
	uint32_t n;
	int rc = pfx_gguf_i32s(g, key, &types, &n, err, errlen);

	if (rc == -ENOENT) {
		memset(t->type, PFX_TOKEN_NORMAL, t->n_vocab);
		return 0;
	}
	if (rc != 0) {
		return rc;
	}
	if (n != t->n_vocab) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s has %u entries, expected %u, as"
			" many as tokenizer.ggml.tokens", path, key, n, t->n_vocab);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (types[i] < 0 || types[i] > PFX_TOKEN_BYTE) {
			return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s: entry %u is %d, expected"
				" 0 to %d", path, key, i, (int)types[i], (int)PFX_TOKEN_BYTE);
		}
		t->type[i] = types[i] == 0 ? PFX_TOKEN_UNUSED : (uint8_t)types[i];
	}
	return 0;
}

static int load_id(const struct pfx_tokenizer *t, const struct pfx_gguf *g, const char *key,
	uint32_t *id, char *err, size_t errlen)
{
	int rc = pfx_gguf_u32(g, key, id, err, errlen);

	if (rc == -ENOENT) {
		*id = PFX_TOKEN_NONE;
		return 0;
	}
	if (rc == 0 && *id >= t->n_vocab) {
		return pfx_fail(PFX_E_FORMAT, err, errlen, "%s: %s is %u, but there are only %u"
			" tokens", pfx_gguf_path(g), key, *id, t->n_vocab);
	}
	return rc;
}

static int load_ids(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err, size_t errlen)
{
	uint32_t padding;
	const struct {
		const char *key;
		uint32_t *id;
	} ids[] = {
		{ "tokenizer.ggml.bos_token_id", &t->bos },
		{ "tokenizer.ggml.eos_token_id", &t->eos },
		{ "tokenizer.ggml.eot_token_id", &t->eot },
		{ "tokenizer.ggml.eom_token_id", &t->eom },
		{ "tokenizer.ggml.unknown_token_id", &t->unk },
		{ "tokenizer.ggml.padding_token_id", &padding },
	};

	for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
		int rc = load_id(t, g, ids[i].key, ids[i].id, err, errlen);

		if (rc != 0) {
			return rc;
		}
	}
	return 0;
}

/*
 * Some files give their special tokens the type of ordinary or user-defined ones, and then
 * a client could write them. A part to play and a spelling in angle brackets tell them.
 */
static void protect(struct pfx_tokenizer *t, uint32_t id)
{
	const struct pfx_str *s;

	if (id == PFX_TOKEN_NONE) {
		return;
	}
	s = &t->spelling[id];
	if ((t->type[id] == PFX_TOKEN_NORMAL || t->type[id] == PFX_TOKEN_USER) && s->n > 2 &&
		s->s[0] == '<' && s->s[s->n - 1] == '>') {
		t->type[id] = PFX_TOKEN_CONTROL;
	}
}

static void mark_end(struct pfx_tokenizer *t, uint32_t id)
{
	if (id != PFX_TOKEN_NONE) {
		t->is_end[id] = 1;
		protect(t, id);
	}
}

static void mark_ends(struct pfx_tokenizer *t, const struct pfx_token_table *by_spelling)
{
	mark_end(t, t->eos);
	mark_end(t, t->eot);
	mark_end(t, t->eom);
	for (size_t i = 0; i < sizeof(end_spellings) / sizeof(*end_spellings); i++) {
		const char *s = end_spellings[i];

		mark_end(t, pfx_token_table_find(by_spelling, s, strlen(s)));
	}
	protect(t, t->bos);
	for (uint32_t id = 0; id < t->n_vocab && t->unk == PFX_TOKEN_NONE; id++) {
		if (t->type[id] == PFX_TOKEN_UNKNOWN) {
			t->unk = id;
		}
	}
}

static int load_flag(const struct pfx_gguf *g, const char *key, int *flag, char *err, size_t errlen)
{
	int rc = pfx_gguf_bool(g, key, flag, err, errlen);

	return rc == -ENOENT ? 0 : rc;
}

static int load_parts(struct pfx_tokenizer *t, const struct pfx_gguf *g,
	const struct pfx_token_table *by_spelling, char *err, size_t errlen)
{
	int rc = load_types(t, g, err, errlen);

	if (rc == 0) {
		rc = load_ids(t, g, err, errlen);
	}
	if (rc != 0) {
		return rc;
	}
	mark_ends(t, by_spelling);
	if (pfx_token_table_init(&t->words, t->text, t->n_vocab) != 0 ||
		pfx_token_specials_init(t) != 0) {
		return no_memory(g, err, errlen);
	}
	if (t->model == PFX_TOKEN_SPM) {
		t->add_bos = 1;
		t->add_space_prefix = 1;
		rc = load_flag(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err,
			errlen);
	} else {
		rc = pfx_token_pretok_open(t, g, err, errlen);
	}
	if (rc == 0) {
		rc = load_flag(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err, errlen);
	}
	if (rc != 0) {
		return rc;
	}
	t->add_bos = t->add_bos && t->bos != PFX_TOKEN_NONE;
	return t->model == PFX_TOKEN_SPM ? pfx_token_load_spm(t, g, err, errlen) :
		pfx_token_load_bpe(t, g, by_spelling, err, errlen);
}

int pfx_token_load(struct pfx_tokenizer *t, const struct pfx_gguf *g, char *err, size_t errlen)
{
	struct pfx_token_table by_spelling = { 0 };
	int rc = load_model(t, g, err, errlen);

	if (rc == 0) {
		rc = load_spellings(t, g, err, errlen);
	}
	if (rc == 0) {
		rc = index_spellings(t, g, &by_spelling, err, errlen);
	}
	if (rc == 0) {
		rc = load_parts(t, g, &by_spelling, err, errlen);
	}
	t->longest = by_spelling.longest;
	pfx_token_table_free(&by_spelling);
	return rc;
}
