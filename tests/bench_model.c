/*
 * How fast the forward pass is: bench_model MODEL [THREADS [KERNELS]]. Best of some runs,
 * since the machine may be shared. `make bench-model` runs it on $PREFIXD_MODEL.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/model.h"
#include "tests/model_util.h"

#define BLOCK_TOKENS 16u
#define CONTEXT 2304u
#define SEQS 8u         /* each with a prompt of its own */
#define SHARERS 16u     /* behind one prompt */
#define BLOCKS (CONTEXT / BLOCK_TOKENS)
#define CHUNK 512u

static uint32_t tokens[CONTEXT], blocks[SEQS][BLOCKS], shared[SHARERS][BLOCKS];

/* Milliseconds of the prompt's first n tokens in chunks, with the last one's logits. */
static double prefill(struct pfx_model *m, uint32_t n, uint32_t seq)
{
	uint64_t start = pfx_clock_ns();

	for (uint32_t at = 0; at < n; at += CHUNK) {
		uint32_t rows = n - at < CHUNK ? n - at : CHUNK, last = rows - 1;
		struct pfx_batch_seq s = { 0, rows, at, 0, BLOCKS, blocks[seq] };
		struct pfx_batch batch = { rows, 1, at + rows == n, tokens + at, &s, &last };
		const float *row;
		PFX_ASSERT(pfx_model_forward(m, &batch) == 0);
		PFX_ASSERT(pfx_model_logits(m, 0, batch.n_out, &row) == 0);
	}
	return pfx_ns_to_ms(pfx_clock_ns() - start);
}

/* Milliseconds of one decode step of n_seqs sequences that stand at position pos. */
static double decode(struct pfx_model *m, uint32_t (*table)[BLOCKS], uint32_t n_seqs, uint32_t pos)
{
	struct pfx_batch_seq seqs[SHARERS];
	uint32_t ids[SHARERS], rows[SHARERS];
	const float *row;
	uint64_t start = pfx_clock_ns();

	for (uint32_t i = 0; i < n_seqs; i++) {
		seqs[i] = (struct pfx_batch_seq){ i, 1, pos, 0, BLOCKS, table[i] };
		ids[i] = tokens[pos];
		rows[i] = i;
	}
	struct pfx_batch batch = { n_seqs, n_seqs, n_seqs, ids, seqs, rows };
	PFX_ASSERT(pfx_model_forward(m, &batch) == 0);
	PFX_ASSERT(pfx_model_logits(m, 0, n_seqs, &row) == 0);
	return pfx_ns_to_ms(pfx_clock_ns() - start);
}

static void bench_prefill(struct pfx_model *m, uint32_t n, int runs)
{
	double best = 1e30;

	for (int i = 0; i < runs; i++) {
		double ms = prefill(m, n, 0);
		best = ms < best ? ms : best;
	}
	printf("prefill of %4u tokens   %8.1f ms  %8.0f tokens/s\n", n, best, n / best * 1e3);
}

static void bench_decode(struct pfx_model *m, uint32_t (*table)[BLOCKS], uint32_t n_seqs,
	uint32_t pos)
{
	double best = 1e30, sum = 0.0;
	const int runs = 40;

	for (int i = 0; i < runs; i++) {
		double ms = decode(m, table, n_seqs, pos + (uint32_t)i);
		best = ms < best ? ms : best;
		sum += ms;
	}
	printf("decode of %2u at %4u%s %8.2f ms  %8.1f tokens/s (mean %.1f)\n", n_seqs, pos,
		table == shared ? ", shared" : "        ", best,
		n_seqs / best * 1e3, n_seqs / sum * runs * 1e3);
}

int main(int argc, char **argv)
{
	struct pfx_test_model_opts opts = { .block_tokens = BLOCK_TOKENS, .rows_max = CHUNK,
		.out_rows_max = SHARERS, .n_blocks = (SEQS + SHARERS) * BLOCKS };
	struct pfx_device_info info;
	struct pfx_rng rng = { 1 };
	struct pfx_model *m;

	if (argc < 2) {
		fprintf(stderr, "usage: bench_model MODEL [THREADS [KERNELS]]\n");
		return 2;
	}
	opts.n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 2;
	opts.kernels = argc > 3 ? argv[3] : NULL;
	uint64_t start = pfx_clock_ns();
	m = pfx_test_model_open(argv[1], &opts);
	pfx_model_device(m, &info);
	printf("%s, %s, %u threads; opened in %.0f ms, weights %.1f MB packed\n", info.kernels,
		info.activations, info.n_threads, pfx_ns_to_ms(pfx_clock_ns() - start),
		(double)pfx_model_weight_bytes(m) / 1e6);
	for (uint32_t i = 0; i < CONTEXT; i++) {
		tokens[i] = (uint32_t)pfx_rng_below(&rng, pfx_model_config(m)->n_vocab);
	}
	for (uint32_t i = 0; i < SEQS * BLOCKS; i++) {
		blocks[i / BLOCKS][i % BLOCKS] = i;
	}
	for (uint32_t i = 0; i < SHARERS * BLOCKS; i++) {
		shared[i / BLOCKS][i % BLOCKS] = i % BLOCKS < 2048 / BLOCK_TOKENS ? i % BLOCKS
			: SEQS * BLOCKS + i;
	}
	bench_prefill(m, 512, 5);
	bench_prefill(m, 2048, 3);
	for (uint32_t i = 1; i < SEQS; i++) {
		prefill(m, 2048, i);
	}
	bench_decode(m, blocks, 1, 16);
	bench_decode(m, blocks, 1, 2048);
	bench_decode(m, blocks, SEQS, 2048);
	bench_decode(m, shared, 1, 2048);
	bench_decode(m, shared, SEQS, 2048);
	bench_decode(m, shared, SHARERS, 2048);
	pfx_model_close(m);
	return 0;
}
