/*
 * Promise 1 at the model's level: the logits of a prompt are the same bits however it is
 * cut, whatever shares its batch, wherever its blocks lie, with one thread or two, and
 * whether a position was run in a prefill or as a decode step.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/rng.h"
#include "engine/model.h"
#include "tests/model_util.h"
#include "tests/tap.h"

#ifndef PFX_LONG
#define PFX_LONG 0
#endif

/* The real model is run with short prompts in `make check`, with all in `make check-long`. */
#define REAL_MAX (PFX_LONG ? 600 : 40)
#define REAL_CUTS (PFX_LONG ? 20 : 2)
#define REAL_RUNS (PFX_LONG ? 5 : 1)
#define EVERY_CUT_MAX (PFX_LONG ? 40 : 12)

static struct pfx_rng rng;

struct prompt {
	uint32_t n, *tokens;
	float *want; /* [n][n_vocab] of the cold run in one piece */
};

static void *must(void *p)
{
	PFX_ASSERT(p != NULL);
	return p;
}

/* n distinct random blocks of the model's. */
static void draw_blocks(struct pfx_model *m, uint32_t *blocks, uint32_t n)
{
	uint32_t all = pfx_model_n_blocks(m), *order = must(calloc(all, sizeof(*order)));

	for (uint32_t i = 0; i < all; i++) {
		uint32_t j = (uint32_t)pfx_rng_below(&rng, i + 1);
		order[i] = order[j];
		order[j] = i;
	}
	PFX_ASSERT(n <= all);
	memcpy(blocks, order, n * sizeof(*blocks));
	free(order);
}

static struct prompt new_prompt(struct pfx_model *m, uint32_t n)
{
	uint32_t n_vocab = pfx_model_config(m)->n_vocab;
	struct prompt p = { n, must(calloc(n, sizeof(*p.tokens))),
		must(calloc((size_t)n * n_vocab, sizeof(*p.want))) };

	for (uint32_t i = 0; i < n; i++) {
		p.tokens[i] = (uint32_t)pfx_rng_below(&rng, n_vocab);
	}
	return p;
}

static void free_prompt(struct prompt *p)
{
	free(p->tokens);
	free(p->want);
}

static uint32_t blocks_for(uint32_t n, uint32_t block_tokens)
{
	return (n + block_tokens - 1) / block_tokens;
}

/* Positions of [from, from + n) whose logits are not the wanted bits. */
static uint32_t differing(struct pfx_model *m, const struct prompt *p, const float *got,
	uint32_t from, uint32_t n)
{
	uint32_t n_vocab = pfx_model_config(m)->n_vocab, bad = 0;

	for (uint32_t i = 0; i < n; i++) {
		bad += memcmp(got + (size_t)i * n_vocab, p->want + (size_t)(from + i) * n_vocab,
			n_vocab * sizeof(float)) != 0;
	}
	return bad;
}

/* Runs p in pieces of at most `chunk`, from position `from` on; what differs is counted. */
static uint32_t run_chunks(struct pfx_model *m, const struct prompt *p, const uint32_t *blocks,
	uint32_t n_blocks, uint32_t from, uint32_t chunk)
{
	uint32_t n_vocab = pfx_model_config(m)->n_vocab, bad = 0;
	float *got = must(calloc((size_t)chunk * n_vocab, sizeof(*got)));

	for (uint32_t at = from; at < p->n; at += chunk) {
		uint32_t n = p->n - at < chunk ? p->n - at : chunk;
		struct pfx_test_part part = { p->tokens, at, n, 0, blocks, n_blocks, got };
		pfx_test_run(m, &part, 1);
		bad += differing(m, p, got, at, n);
	}
	free(got);
	return bad;
}

static void test_chunks(struct pfx_model *m, const struct prompt *p, uint32_t block_tokens,
	const char *what)
{
	static const uint32_t sizes[] = { 1, 7, 64, 512 };
	uint32_t n = blocks_for(p->n, block_tokens), *blocks = must(calloc(n, sizeof(*blocks)));

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		draw_blocks(m, blocks, n);
		is_int(run_chunks(m, p, blocks, n, 0, sizes[i]), 0, "%s: %u tokens in chunks of %u",
			what, p->n, sizes[i]);
	}
	free(blocks);
}

/* Two prompts, cut at random, side by side; one of them waits now and then. */
static uint32_t run_together(struct pfx_model *m, const struct prompt *p, uint32_t block_tokens)
{
	uint32_t n_vocab = pfx_model_config(m)->n_vocab, bad = 0, done[2] = { 0, 0 }, nb[2];
	uint32_t *blocks;
	float *got[2];

	nb[0] = blocks_for(p[0].n, block_tokens);
	nb[1] = blocks_for(p[1].n, block_tokens);
	blocks = must(calloc(nb[0] + nb[1], sizeof(*blocks)));
	draw_blocks(m, blocks, nb[0] + nb[1]);
	for (int i = 0; i < 2; i++) {
		got[i] = must(calloc((size_t)p[i].n * n_vocab, sizeof(float)));
	}
	while (done[0] < p[0].n || done[1] < p[1].n) {
		struct pfx_test_part parts[2];
		uint32_t n_parts = 0, who[2];
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t left = p[i].n - done[i], n;
			if (left == 0 || pfx_rng_below(&rng, 4) == 0) {
				continue;
			}
			n = 1 + (uint32_t)pfx_rng_below(&rng, left < 90 ? left : 90);
			n = pfx_rng_below(&rng, 3) == 0 ? 1 : n; /* now and then a decode step */
			parts[n_parts] = (struct pfx_test_part){p[i].tokens, done[i], n, 0,
				blocks + (i ? nb[0] : 0), nb[i],
				got[i] + (size_t)done[i] * n_vocab};
			who[n_parts++] = i;
		}
		if (n_parts > 0) {
			pfx_test_run(m, parts, n_parts);
		}
		for (uint32_t i = 0; i < n_parts; i++) {
			done[who[i]] += parts[i].n;
		}
	}
	for (int i = 0; i < 2; i++) {
		bad += differing(m, &p[i], got[i], 0, p[i].n);
		free(got[i]);
	}
	free(blocks);
	return bad;
}

/*
 * A hit: the first `cut` positions come from another run's blocks, the last of them copied
 * when it is partial (copy-on-write), and only the rest is run.
 */
static uint32_t run_after_hit(struct pfx_model *m, const struct prompt *p, uint32_t block_tokens,
	uint32_t cut)
{
	uint32_t n = blocks_for(p->n, block_tokens), whole = cut / block_tokens;
	uint32_t *blocks = must(calloc(2 * n, sizeof(*blocks))), *mine = blocks + n, bad;

	draw_blocks(m, blocks, 2 * n);
	bad = run_chunks(m, p, blocks, n, 0, 64);
	memcpy(mine, blocks, whole * sizeof(*mine));
	if (cut % block_tokens != 0) {
		bad += pfx_model_copy_block(m, mine[whole], blocks[whole], cut % block_tokens) != 0;
	}
	bad += run_chunks(m, p, mine, n, cut, 33);
	free(blocks);
	return bad;
}

/*
 * write_from keeps the KV that is there: after the last position was run again with a wrong
 * token in front of it and write_from at the end, what follows is as before.
 */
static uint32_t run_write_from(struct pfx_model *m, const struct prompt *p, uint32_t block_tokens)
{
	uint32_t n = blocks_for(p->n, block_tokens), *blocks = must(calloc(n, sizeof(*blocks)));
	uint32_t last = p->n - 1, bad, *wrong = must(calloc(p->n, sizeof(*wrong)));
	float *got = must(calloc(pfx_model_config(m)->n_vocab, sizeof(*got)));

	draw_blocks(m, blocks, n);
	bad = run_chunks(m, p, blocks, n, 0, 512);
	for (uint32_t i = 0; i < p->n; i++) {
		wrong[i] = (p->tokens[i] + 1) % pfx_model_config(m)->n_vocab;
	}
	struct pfx_test_part again = { wrong, 0, last, last, blocks, n, NULL };
	pfx_test_run(m, &again, 1);
	struct pfx_test_part part = { p->tokens, last, 1, last, blocks, n, got };
	pfx_test_run(m, &part, 1);
	bad += differing(m, p, got, last, 1);
	free(got);
	free(wrong);
	free(blocks);
	return bad;
}

static void cold_run(struct pfx_model *m, struct prompt *p, uint32_t block_tokens)
{
	uint32_t n = blocks_for(p->n, block_tokens), *blocks = must(calloc(n, sizeof(*blocks)));
	struct pfx_test_part part = { p->tokens, 0, p->n, 0, blocks, n, p->want };

	for (uint32_t i = 0; i < n; i++) {
		blocks[i] = i;
	}
	pfx_test_run(m, &part, 1);
	free(blocks);
}

static uint32_t test_every_cut(struct pfx_model *m, uint32_t block_tokens)
{
	struct prompt p = new_prompt(m, 2 + (uint32_t)pfx_rng_below(&rng, EVERY_CUT_MAX - 1));
	uint32_t bad = 0;

	cold_run(m, &p, block_tokens);
	for (uint32_t cut = 1; cut < p.n; cut++) {
		bad += run_after_hit(m, &p, block_tokens, cut);
	}
	free_prompt(&p);
	return bad;
}

/* A step that memory fails in the middle of is an error, and does no harm to the next. */
static uint32_t test_no_memory(struct pfx_model *m, const struct prompt *p, uint32_t block_tokens)
{
	uint32_t n = blocks_for(p->n, block_tokens), *blocks = must(calloc(n, sizeof(*blocks)));
	uint64_t live = pfx_alloc_live();
	uint32_t bad = 0;

	draw_blocks(m, blocks, n);
	struct pfx_test_part part = { p->tokens, 0, p->n, 0, blocks, n, NULL };
	for (uint64_t seed = 0; seed < 8; seed++) {
		pfx_alloc_fail(seed, 3);
		int rc = pfx_test_try(m, &part, 1);
		pfx_alloc_fail(0, 0);
		bad += rc != 0 && rc != -ENOMEM;
	}
	bad += run_chunks(m, p, blocks, n, 0, 512);
	bad += pfx_alloc_live() > live + 8; /* what a device keeps between steps */
	free(blocks);
	return bad;
}

static void test_model(struct pfx_model *one, struct pfx_model *two, uint32_t block_tokens,
	uint32_t n0, uint32_t n1, int n_cuts, const char *what)
{
	struct prompt p[2] = { new_prompt(one, n0), new_prompt(one, n1) };
	uint32_t bad = 0;

	cold_run(one, &p[0], block_tokens);
	cold_run(one, &p[1], block_tokens);
	test_chunks(one, &p[0], block_tokens, what);
	is_int(run_together(one, p, block_tokens), 0, "%s: two prompts in mixed batches", what);
	is_int(run_together(two, p, block_tokens), 0, "%s: the same with two threads", what);
	for (int i = 0; i < n_cuts; i++) {
		uint32_t cut = 1 + (uint32_t)pfx_rng_below(&rng, p[0].n - 1);
		bad += run_after_hit(i % 2 ? two : one, &p[0], block_tokens, cut);
	}
	is_int(bad, 0, "%s: %d hits of random length", what, n_cuts);
	is_int(run_write_from(one, &p[1], block_tokens), 0, "%s: write_from keeps what is there",
		what);
	is_int(test_no_memory(one, &p[1], block_tokens), 0, "%s: steps without memory", what);
	is_int(test_every_cut(one, block_tokens), 0, "%s: every cut of a short prompt", what);
	free_prompt(&p[0]);
	free_prompt(&p[1]);
}

/* The plain loops take a hundred times as long; they get shorter prompts. */
static int is_slow(struct pfx_model *m)
{
	struct pfx_device_info info;

	pfx_model_device(m, &info);
	return strcmp(info.kernels, "reference") == 0;
}

static void test_tiny(const char *args, uint32_t block_tokens, enum pfx_kv_type kv_type)
{
	struct pfx_tiny_opts tiny = { .seed = pfx_rng_next(&rng) };
	struct pfx_test_model_opts opts = { .block_tokens = block_tokens, .kv_type = kv_type,
		.rows_max = 600, .n_blocks = 2 * 600 / block_tokens + 4 };
	static int first = 1;
	char copy[200], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", args);
	for (char *arg = strtok_r(copy, " ", &save); arg != NULL;
		arg = strtok_r(NULL, " ", &save)) {
		PFX_ASSERT(pfx_tiny_parse(&tiny, arg) == 0);
	}
	opts.n_threads = 1;
	struct pfx_model *one = pfx_test_model_tiny(&tiny, &opts);
	opts.n_threads = 2;
	struct pfx_model *two = pfx_test_model_tiny(&tiny, &opts);
	if (is_slow(one) && !first) {
		test_model(one, two, block_tokens, 20 + (uint32_t)pfx_rng_below(&rng, 30),
			2 + (uint32_t)pfx_rng_below(&rng, 20), 2, args);
	} else {
		/* More than a segment of attention, so that partial results are merged. */
		test_model(one, two, block_tokens, 280 + (uint32_t)pfx_rng_below(&rng, 250),
			2 + (uint32_t)pfx_rng_below(&rng, 200), is_slow(one) ? 1 : 6, args);
	}
	first = 0;
	pfx_model_close(one);
	pfx_model_close(two);
}

static void test_real(void)
{
	const char *why = NULL, *path = pfx_test_model_path(&why);
	struct pfx_test_model_opts opts = { .n_threads = 1, .block_tokens = 16, .rows_max = 600,
		.n_blocks = 80 };

	if (path == NULL) {
		skip(1, why);
		return;
	}
	struct pfx_model *one = pfx_test_model_open(path, &opts);
	opts.n_threads = 2;
	struct pfx_model *two = pfx_test_model_open(path, &opts);
	if (is_slow(one)) {
		skip(1, "the plain loops are too slow for the real model");
	} else {
		for (int i = 0; i < REAL_RUNS; i++) {
			test_model(one, two, 16, 2 + (uint32_t)pfx_rng_below(&rng, REAL_MAX - 1),
				2 + (uint32_t)pfx_rng_below(&rng, REAL_MAX - 1), REAL_CUTS,
				"the real model");
		}
	}
	pfx_model_close(one);
	pfx_model_close(two);
}

int main(void)
{
	const char *given = getenv("PFX_TEST_SEED");

	rng.state = given != NULL ? strtoull(given, NULL, 0) : pfx_rng_entropy();
	printf("# PFX_TEST_SEED=%llu\n", (unsigned long long)rng.state);
	test_tiny("arch=llama type=Q4_1 embed=Q8_0", 16, PFX_KV_F16);
	test_tiny("arch=llama type=F16 embed=F16 rope=yarn untied=1", 32, PFX_KV_F16);
	test_tiny("arch=qwen2 type=Q8_0 embed=BF16 layers=1", 1, PFX_KV_F16);
	test_tiny("arch=qwen3 type=F32 embed=Q4_0 head_dim=64", 8, PFX_KV_F16);
	test_tiny("arch=llama type=Q6_K embed=Q4_K embd=256 head_dim=64 layers=1", 16, PFX_KV_F16);
	test_tiny("arch=llama type=Q4_1 embed=Q8_0 head_dim=64 layers=1", 32, PFX_KV_INT8);
	test_tiny("arch=qwen3 type=Q8_0 embed=F16 head_dim=24 layers=1", 4, PFX_KV_INT8);
	test_real();
	return tap_done();
}
