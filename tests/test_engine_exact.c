/*
 * Promise 1 from the engine's door: for prompts cut anywhere, logits after a hit of that
 * length have the same bits as cold ones; alone and in a batch, with any chunk size and any
 * number of threads, in prefill and in decode. Compared by digest of every sampled
 * position's logits.
 */
#include <string.h>

#include "base/rng.h"
#include "tests/engine_util.h"
#include "tests/tap.h"
#include "tests/test_models.h"

enum { REPLY = 6, PROMPTS_MAX = 24 };

/* How much the real model runs; all of it in make check-long. */
#ifdef PFX_LONG
enum { REAL_PROMPTS = 12, REAL_SETTINGS = 8, REAL_CHUNK1_MAX = 80 };
#else
enum { REAL_PROMPTS = 8, REAL_SETTINGS = 5, REAL_CHUNK1_MAX = 40 };
#endif

struct prompt {
	uint32_t *tokens, n;
	struct reply cold;
};

struct suite {
	const char *name, *model, *kv_dtype; /* NULL: the default */
	struct prompt prompts[PROMPTS_MAX];
	uint32_t n_prompts, n_vocab;
	uint64_t compared;
	struct pfx_rng rng;
};

static const struct setting {
	uint32_t chunk, threads;
} settings[] = {
	{ 1, 1 }, { 7, 2 }, { 64, 1 }, { 512, 1 }, { 512, 2 }, /* the real model's, for time */
	{ 1, 2 }, { 7, 1 }, { 64, 2 },
};

static struct pfx_engine *open_with(const struct suite *s, uint32_t chunk, uint32_t threads)
{
	struct pfx_engine_opts opts = {
		.model_path = s->model,
		.kv_dtype = s->kv_dtype,
		.n_threads = threads,
		.chunk_tokens = chunk,
		.device_memory = 256u << 20,
		.logits_memory = 64u << 20,
	};

	return open_engine(&opts);
}

/* Random ids; some prompts share a random head with an earlier one, so that batches mix. */
static void make_prompts(struct suite *s, const uint32_t *lengths, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct prompt *p = &s->prompts[i], *q = &s->prompts[i > 0 ? i - 1 : 0];
		uint32_t shared = 0;

		p->n = lengths[i];
		p->tokens = malloc(p->n * sizeof(*p->tokens));
		if (i > 0 && pfx_rng_below(&s->rng, 2) == 0) {
			shared = (uint32_t)pfx_rng_below(&s->rng, (p->n < q->n ? p->n : q->n) + 1);
		}
		for (uint32_t j = 0; j < p->n; j++) {
			p->tokens[j] = j < shared ? q->tokens[j] : (uint32_t)pfx_rng_below(&s->rng, s->n_vocab);
		}
	}
	s->n_prompts = n;
}

static int same(struct suite *s, const struct reply *got, const struct reply *want, const char *what)
{
	s->compared += got->n;
	if (got->n == want->n && memcmp(got->digests, want->digests, got->n * sizeof(*got->digests)) == 0) {
		return 1;
	}
	printf("#   %s: %u digests against %u, or other bits\n", what, got->n, want->n);
	return 0;
}

static struct pfx_job *ask(const struct prompt *p)
{
	return token_job(PFX_JOB_GENERATE, p->tokens, p->n, REPLY);
}

static void compute_cold(struct suite *s)
{
	struct pfx_engine *e = open_with(s, 512, 1);
	int computed = 0;

	for (uint32_t i = 0; i < s->n_prompts; i++) {
		struct prompt *p = &s->prompts[i];
		flush(e);
		run(e, ask(p), &p->cold);
		computed += p->cold.usage.computed_tokens == p->n && p->cold.n == REPLY;
	}
	is_int(computed, s->n_prompts, "%s: cold prompts are computed whole", s->name);
	is_int(problems(e), 0, "%s: check", s->name);
	pfx_engine_close(e);
}

/* After a hit of `cut` tokens. */
static int one_cut(struct suite *s, struct pfx_engine *e, const struct prompt *p, uint32_t cut)
{
	struct reply warm, got;
	int good;

	flush(e);
	run(e, token_job(PFX_JOB_WARM, p->tokens, cut, 0), &warm);
	run(e, ask(p), &got);
	good = same(s, &got, &p->cold, "after a hit");
	if (got.usage.cached_device != cut || got.usage.computed_tokens != p->n - cut) {
		printf("#   cut %u of %u: cached %u, computed %u\n", cut, p->n, got.usage.cached_device,
			got.usage.computed_tokens);
		good = 0;
	}
	reply_free(&warm);
	reply_free(&got);
	return good;
}

static void test_cuts(struct suite *s, struct pfx_engine *e, uint32_t n_max, uint32_t n_random,
	const char *label)
{
	int bad = 0;

	for (uint32_t i = 0; i < s->n_prompts; i++) {
		const struct prompt *p = &s->prompts[i];
		if (p->n > n_max) {
			continue;
		}
		if (p->n <= 24) {
			for (uint32_t cut = 1; cut <= p->n; cut++) {
				bad += !one_cut(s, e, p, cut);
			}
			continue;
		}
		for (uint32_t k = 0; k < n_random; k++) {
			bad += !one_cut(s, e, p, 1 + (uint32_t)pfx_rng_below(&s->rng, p->n));
		}
	}
	is_int(bad, 0, "%s: %s: after a hit of any length as cold", s->name, label);
}

/* All prompts at once, cold; then all at once again, whatever is cached by now. */
static void test_batch(struct suite *s, struct pfx_engine *e, uint32_t n_max, const char *label)
{
	struct reply got[PROMPTS_MAX], *wait[PROMPTS_MAX];
	int bad = 0;

	flush(e);
	for (int round = 0; round < 2; round++) {
		uint32_t n = 0;
		for (uint32_t i = 0; i < s->n_prompts; i++) {
			if (s->prompts[i].n > n_max) {
				continue;
			}
			start(e, ask(&s->prompts[i]), &got[i]);
			wait[n++] = &got[i];
		}
		wait_all(e, wait, n);
		for (uint32_t i = 0; i < s->n_prompts; i++) {
			if (s->prompts[i].n > n_max) {
				continue;
			}
			bad += !same(s, &got[i], &s->prompts[i].cold, "in a batch");
			reply_free(&got[i]);
		}
	}
	is_int(bad, 0, "%s: %s: in a batch as alone", s->name, label);
}

/* What was decoded, asked as a prompt: prefill gives decode's bits. */
static void test_decode_as_prefill(struct suite *s, struct pfx_engine *e, uint32_t n_max)
{
	int bad = 0;

	for (uint32_t i = 0; i < s->n_prompts; i++) {
		const struct prompt *p = &s->prompts[i];
		uint32_t n = p->n + REPLY - 1, *tokens;
		struct reply got;

		if (p->n > n_max) {
			continue;
		}
		tokens = malloc(n * sizeof(*tokens));
		memcpy(tokens, p->tokens, p->n * sizeof(*tokens));
		memcpy(tokens + p->n, p->cold.tokens, (REPLY - 1) * sizeof(*tokens));
		flush(e);
		run(e, token_job(PFX_JOB_GENERATE, tokens, n, 1), &got);
		bad += got.n != 1 || got.digests[0] != p->cold.digests[REPLY - 1];
		s->compared++;
		reply_free(&got);
		free(tokens);
	}
	is_int(bad, 0, "%s: decode and prefill give the same bits", s->name);
}

static void run_suite(struct suite *s, uint32_t n_settings, uint32_t n_random,
	uint32_t n_max_chunk1)
{
	char label[64];

	compute_cold(s);
	for (uint32_t c = 0; c < n_settings; c++) {
		struct pfx_engine *e = open_with(s, settings[c].chunk, settings[c].threads);
		uint32_t n_max = settings[c].chunk == 1 ? n_max_chunk1 : UINT32_MAX;

		snprintf(label, sizeof(label), "chunk %u, threads %u", settings[c].chunk,
			settings[c].threads);
		test_cuts(s, e, n_max, n_random, label);
		test_batch(s, e, n_max, label);
		if (settings[c].chunk == 512) {
			test_decode_as_prefill(s, e, n_max);
		}
		is_int(problems(e), 0, "%s: %s: check", s->name, label);
		pfx_engine_close(e);
	}
	printf("# %s: %llu logit vectors compared\n", s->name, (unsigned long long)s->compared);
	for (uint32_t i = 0; i < s->n_prompts; i++) {
		free(s->prompts[i].tokens);
		reply_free(&s->prompts[i].cold);
	}
}

static uint32_t vocabulary(const struct suite *s)
{
	struct pfx_engine *e = open_with(s, 0, 1);
	uint32_t n = pfx_engine_info(e)->n_vocab;

	pfx_engine_close(e);
	return n;
}

int main(void)
{
	uint32_t lengths[PROMPTS_MAX] = { 1, 2, 3, 8, 17, 24, 31, 32, 33, 64, 65, 127, 255, 256, 257 };
	uint32_t real_lengths[REAL_PROMPTS] = { 1, 5, 13, 32, 33, 70, 256, 257 };
	uint64_t seed = seed_from_environment();
	struct suite s = { .name = "tiny", .rng = { seed } };

	printf("# seed %llu\n", (unsigned long long)seed);
	for (uint32_t i = 15; i < PROMPTS_MAX; i++) {
		lengths[i] = 1 + (uint32_t)pfx_rng_below(&s.rng, 600);
	}
	s.model = tiny_model("exact", seed);
	s.n_vocab = tiny_model_n_vocab();
	make_prompts(&s, lengths, PROMPTS_MAX);
	run_suite(&s, sizeof(settings) / sizeof(settings[0]), 4, 128);
	s.name = "tiny, int8";
	s.kv_dtype = "int8";
	make_prompts(&s, lengths, PROMPTS_MAX / 2);
	run_suite(&s, REAL_SETTINGS, 2, 128);
	remove(s.model);

	memset(&s, 0, sizeof(s));
	s.name = "real";
	s.rng.state = seed;
	s.model = real_model();
	if (s.model == NULL) {
		skip(1, "PREFIXD_MODEL names no model");
		return tap_done();
	}
	s.n_vocab = vocabulary(&s);
	for (uint32_t i = 8; i < REAL_PROMPTS; i++) {
		real_lengths[i] = 1 + (uint32_t)pfx_rng_below(&s.rng, 600);
	}
	make_prompts(&s, real_lengths, REAL_PROMPTS);
	run_suite(&s, REAL_SETTINGS, 2, REAL_CHUNK1_MAX);
	return tap_done();
}
