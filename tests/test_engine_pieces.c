/*
 * Remembered pieces of text: whatever conversations come in whatever order and are edited
 * wherever, with the cache the ids are those of tokenising from scratch; owners share
 * nothing; the bound holds.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "engine/pieces.h"
#include "engine/token_priv.h"
#include "tests/tap.h"

enum { TURNS_MAX = 8, ROUNDS = 3000 };

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

static void same_ids(const struct pfx_ids *got, const struct pfx_ids *want, int *wrong)
{
	*wrong += got->n != want->n ||
		(want->n > 0 && memcmp(got->v, want->v, want->n * sizeof(*want->v)) != 0);
}

/* A turn: words with now and then a mark, a bad byte, a run of spaces or a special's spelling. */
static void write_turn(const struct pfx_tokenizer *t, struct pfx_rng *rng, struct pfx_buf *turn)
{
	static const char *const parts[] = { "the ", "cached", " prefix", "  ", "\n\n", "it's", " 12345",
		"e\xcc\x81", "\xc3\xa9t\xc3\xa9", "\xff", "\xe4\xbd\xa0\xe5\xa5\xbd", " \t", "\xe2\x96\x81",
		"<", "|>", "." };
	size_t n = pfx_rng_below(rng, 5) == 0 ? 0 : pfx_rng_below(rng, 60);

	pfx_buf_reset(turn);
	for (size_t i = 0; i < n; i++) {
		if (pfx_rng_below(rng, 40) == 0) {
			struct pfx_str s = t->spelling[t->specials.ids[pfx_rng_below(rng, t->specials.n)]];

			pfx_buf_add(turn, s.s, s.n);
		} else {
			const char *part = parts[pfx_rng_below(rng, sizeof(parts) / sizeof(parts[0]))];

			pfx_buf_add(turn, part, strlen(part));
		}
	}
}

/* The turns with a special in front of most, which is trusted or not. */
static size_t join(const struct pfx_tokenizer *t, struct pfx_rng *rng, const struct pfx_buf *turns,
	size_t n, struct pfx_buf *text, struct pfx_span *spans)
{
	size_t n_spans = 0;

	pfx_buf_reset(text);
	for (size_t i = 0; i < n; i++) {
		struct pfx_str s = t->spelling[t->specials.ids[i % t->specials.n]];

		if (pfx_rng_below(rng, 8) > 0) {
			spans[n_spans].start = text->len;
			pfx_buf_add(text, s.s, s.n);
			spans[n_spans].end = text->len;
			n_spans += pfx_rng_below(rng, 8) > 0;
		}
		pfx_buf_add(text, turns[i].data, turns[i].len);
	}
	return n_spans;
}

static void test_random(const char *name, uint64_t seed, uint64_t bytes_max)
{
	struct pfx_tokenizer *t = open_vectors(name);
	struct pfx_rng rng = { seed };
	struct pfx_buf turns[TURNS_MAX] = { PFX_BUF_INIT }, text = PFX_BUF_INIT;
	struct pfx_span spans[TURNS_MAX];
	struct pfx_ids got = { 0 }, want = { 0 };
	struct pfx_pieces_stats s;
	struct pfx_pieces *p;
	int wrong = 0, over = 0;

	pfx_pieces_open(&p, bytes_max);
	for (int round = 0; round < ROUNDS; round++) {
		size_t n = 1 + pfx_rng_below(&rng, TURNS_MAX), n_spans;
		struct pfx_piece_use use = { p, pfx_rng_below(&rng, 2) ? "a" : "b", 1 };
		int rc;

		/* One turn is edited; the others are those of the round before. */
		write_turn(t, &rng, &turns[pfx_rng_below(&rng, TURNS_MAX)]);
		n_spans = join(t, &rng, turns, n, &text, spans);
		got.n = want.n = 0;
		if (pfx_rng_below(&rng, 3) == 0) {
			uint32_t id = (uint32_t)pfx_rng_below(&rng, t->n_vocab);

			pfx_ids_push(&got, id);
			pfx_ids_push(&want, id);
		}
		rc = pfx_tokenizer_encode_on(t, text.data, text.len, spans, n_spans, &want);
		wrong += rc != pfx_tokenizer_encode_kept(t, &use, text.data, text.len, spans, n_spans, &got);
		same_ids(&got, &want, &wrong);
		pfx_pieces_stats(p, &s);
		over += s.bytes > bytes_max;
	}
	is_int(wrong, 0, "%s: the same ids in %llu bytes (seed %llu)", name,
		(unsigned long long)bytes_max, (unsigned long long)seed);
	is_int(over, 0, "%s: never more bytes than allowed", name);
	ok(s.hits > ROUNDS / 20, "%s: pieces were found", name);
	ok((s.evicted > 0) == (bytes_max < 1 << 20), "%s: and evicted where there is no room", name);
	pfx_pieces_clear(p);
	pfx_pieces_stats(p, &s);
	is_int((long long)(s.bytes + s.n), 0, "%s: clear leaves nothing", name);
	pfx_pieces_close(p);
	for (int i = 0; i < TURNS_MAX; i++) {
		pfx_buf_free(&turns[i]);
	}
	pfx_buf_free(&text);
	pfx_ids_free(&got);
	pfx_ids_free(&want);
	pfx_tokenizer_close(t);
}

static uint64_t hits_of(const struct pfx_tokenizer *t, struct pfx_pieces *p, const char *owner,
	const char *text)
{
	struct pfx_piece_use use = { p, owner, strlen(owner) };
	struct pfx_pieces_stats before, after;
	struct pfx_ids ids = { 0 };

	pfx_pieces_stats(p, &before);
	pfx_tokenizer_encode_kept(t, &use, text, strlen(text), NULL, 0, &ids);
	pfx_pieces_stats(p, &after);
	pfx_ids_free(&ids);
	return after.hits - before.hits;
}

static void test_owners(void)
{
	static const char text[] = "A text that is long enough to be worth the while of being kept "
		"for the next time that somebody sends it.";
	struct pfx_tokenizer *t = open_vectors("smollm");
	struct pfx_pieces *p;

	pfx_pieces_open(&p, 1 << 16);
	is_int((long long)hits_of(t, p, "one", text), 0, "a new text is not there");
	is_int((long long)hits_of(t, p, "one", text), 1, "then it is");
	is_int((long long)hits_of(t, p, "two", text), 0, "but not for another owner");
	is_int((long long)hits_of(t, p, "two", text), 1, "who has it by itself");
	is_int((long long)hits_of(t, p, "one", "short"), 0, "a short text is not kept,");
	is_int((long long)hits_of(t, p, "one", "short"), 0, "nor looked for");
	pfx_pieces_close(p);
	pfx_tokenizer_close(t);
}

/* Where memory fails there is an error or the right ids, and nothing half done. */
static void test_no_memory(uint64_t seed)
{
	struct pfx_tokenizer *t = open_vectors("qwen2");
	struct pfx_rng rng = { seed };
	struct pfx_buf turn = PFX_BUF_INIT;
	struct pfx_ids got = { 0 }, want = { 0 };
	struct pfx_pieces *p;
	int wrong = 0, failed = 0;

	pfx_pieces_open(&p, 1 << 14);
	for (int round = 0; round < 400; round++) {
		struct pfx_piece_use use = { p, "a", 1 };
		int rc;

		if (round % 3 == 0) {
			write_turn(t, &rng, &turn);
		}
		pfx_ids_free(&got);
		want.n = 0;
		pfx_tokenizer_encode(t, turn.data, turn.len, NULL, 0, &want);
		pfx_alloc_fail(seed + (uint64_t)round, 6);
		rc = pfx_tokenizer_encode_kept(t, &use, turn.data, turn.len, NULL, 0, &got);
		pfx_alloc_fail(0, 0);
		failed += rc != 0;
		if (rc == 0) {
			same_ids(&got, &want, &wrong);
		} else {
			wrong += got.n != 0;
		}
	}
	ok(failed > 20, "memory failed now and then");
	is_int(wrong, 0, "the right ids or none (seed %llu)", (unsigned long long)seed);
	pfx_pieces_close(p);
	pfx_buf_free(&turn);
	pfx_ids_free(&got);
	pfx_ids_free(&want);
	pfx_tokenizer_close(t);
}

int main(void)
{
	static const char *const names[] = { "gpt-2", "llama-bpe", "qwen2", "smollm", "spm" };
	uint64_t seed = pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		test_random(names[i], seed + i, 16 << 20);
		test_random(names[i], seed + i, 8 << 10);
	}
	test_owners();
	test_no_memory(seed);
	is_int((long long)pfx_alloc_live(), 0, "nothing is left allocated");
	return tap_done();
}
