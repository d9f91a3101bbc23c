/*
 * The tokenizer against what the reference makes of the same tables: small vocabularies of
 * each kind, and the real one of SmolLM2 when PREFIXD_MODEL names it. The vectors come from
 * tests/reference/make_tokenizer_vectors.py.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "engine/gguf.h"
#include "engine/token_priv.h"
#include "engine/tokenizer.h"
#include "tests/tap.h"

struct run {
	struct pfx_tokenizer *t;
	const char *name;
	int round_trip; /* ids give the text back: all bytes are there, nothing is normalised */
	int lines, wrong, wrong_text;
};

static size_t from_hex(const char *hex, size_t n, char *out)
{
	for (size_t i = 0; i + 1 < n; i += 2) {
		unsigned byte;

		if (sscanf(hex + i, "%2x", &byte) != 1) {
			return i / 2;
		}
		out[i / 2] = (char)byte;
	}
	return n / 2;
}

static int ids_equal(const struct pfx_ids *ids, const char *want)
{
	char *end;
	size_t i = 0;

	for (; *want != '\0' && *want != '\n'; want = *end == ' ' ? end + 1 : end, i++) {
		unsigned long id = strtoul(want, &end, 10);

		if (end == want || i >= ids->n || ids->v[i] != id) {
			return 0;
		}
	}
	return i == ids->n;
}

/* Pushes the ids one by one; what comes out at each push must be whole characters. */
static int text_equal(const struct pfx_tokenizer *t, const struct pfx_ids *ids, const char *s,
	size_t n)
{
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf text = PFX_BUF_INIT;
	int same = 1;

	for (size_t i = 0; i < ids->n; i++) {
		size_t before = text.len;

		pfx_detok_push(t, &d, ids->v[i], &text);
		same &= text.len == before ||
			pfx_utf8_valid_len(text.data + before, text.len - before) == text.len - before;
	}
	pfx_detok_end(t, &d, &text);
	same &= text.len == n && (n == 0 || memcmp(text.data, s, n) == 0);
	pfx_buf_free(&text);
	return same;
}

static void check_line(struct run *r, const char *line)
{
	const char *hex = line + 2, *tab = strchr(hex, '\t');
	static char text[65536];
	struct pfx_ids ids = { 0 };
	struct pfx_span all;
	size_t n = from_hex(hex, (size_t)(tab - hex), text);
	int rc;

	all = (struct pfx_span){ 0, n };
	rc = pfx_tokenizer_encode(r->t, text, n, &all, line[0] == 'S', &ids);
	r->lines++;
	if (rc != 0 || !ids_equal(&ids, tab + 1)) {
		if (r->wrong++ == 0) {
			printf("# %s: rc %d, ids differ: %.300s\n", r->name, rc, line);
		}
	}
	if (r->round_trip && !text_equal(r->t, &ids, text, n) && r->wrong_text++ == 0) {
		printf("# %s: text differs: %.300s\n", r->name, line);
	}
	pfx_ids_free(&ids);
}

static void check_file(struct run *r, const char *folder)
{
	static char line[1 << 18];
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/token_%s.txt", folder, r->name);
	f = fopen(path, "r");
	if (!ok(f != NULL, "%s: vectors", r->name)) {
		printf("# %s: %s\n", path, strerror(errno));
		return;
	}
	while (fgets(line, sizeof(line), f) != NULL) {
		check_line(r, line);
	}
	fclose(f);
	ok(r->lines > 400, "%s: %d texts", r->name, r->lines);
	is_int(r->wrong, 0, "%s: ids as the reference", r->name);
	is_int(r->wrong_text, 0, "%s: ids give the text back", r->name);
}

static void check(const char *folder, const char *model, const char *name, int round_trip)
{
	struct run r = { .name = name, .round_trip = round_trip };
	struct pfx_gguf *g;
	char err[512] = "";
	int rc = pfx_gguf_open(&g, model, err, sizeof(err));

	if (!ok(rc == 0, "%s: opens%s%s", name, rc ? ": " : "", rc ? err : "")) {
		return;
	}
	rc = pfx_tokenizer_open(&r.t, g, err, sizeof(err));
	pfx_gguf_close(g);
	if (ok(rc == 0, "%s: tokenizer opens, and outlives the file%s%s", name, rc ? ": " : "",
		rc ? err : "")) {
		check_file(&r, folder);
		if (r.t->jit) {
			/* Where no code may be made at run time, the pattern is interpreted. */
			r.t->jit = 0;
			r.lines = 0;
			check_file(&r, folder);
		}
		pfx_tokenizer_close(r.t);
	}
}

/* Whether the model has the vocabulary that token_smollm2.txt is of. */
static int is_smollm2(const char *model)
{
	struct pfx_gguf *g;
	struct pfx_str pre = { NULL, 0 };
	const struct pfx_str *tokens;
	uint32_t n = 0;

	if (pfx_gguf_open(&g, model, NULL, 0) != 0) {
		return 0;
	}
	if (pfx_gguf_str(g, "tokenizer.ggml.pre", &pre, NULL, 0) != 0 ||
		pfx_gguf_strs(g, "tokenizer.ggml.tokens", &tokens, &n, NULL, 0) != 0) {
		n = 0;
	}
	n = n == 49152 && pre.n == 6 && memcmp(pre.s, "smollm", 6) == 0;
	pfx_gguf_close(g);
	return (int)n;
}

int main(void)
{
	static const struct {
		const char *name;
		int round_trip;
	} kinds[] = { { "gpt-2", 1 }, { "llama-bpe", 1 }, { "qwen2", 0 }, { "smollm", 0 }, { "spm", 0 } };
	const char *top = getenv("top_srcdir"), *model = getenv("PREFIXD_MODEL");
	char folder[2048], path[4096];

	snprintf(folder, sizeof(folder), "%s/tests/vectors", top != NULL ? top : ".");
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		snprintf(path, sizeof(path), "%s/token_%s.gguf", folder, kinds[i].name);
		check(folder, path, kinds[i].name, kinds[i].round_trip);
	}
	if (model == NULL || !is_smollm2(model)) {
		skip(10, "PREFIXD_MODEL names no file with SmolLM2's vocabulary");
	} else {
		check(folder, model, "smollm2", 0);
	}
	return tap_done();
}
