/*
 * What tiers cost while they have nothing to do: time per decoded token without them and with
 * host memory, a store and its threads, in turns on the same machine. bench_tiers MODEL [N]
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "persist/store.h"
#include "tests/engine_util.h"

enum { TOKENS = 128, PROMPT = 64 };

static double ns_per_token(struct pfx_engine *e, uint32_t n_vocab)
{
	uint32_t tokens[PROMPT];
	struct reply r;
	uint64_t start_ns;
	double ns;

	for (uint32_t i = 0; i < PROMPT; i++) {
		tokens[i] = (i * 37 + 11) % n_vocab;
	}
	run(e, token_job(PFX_JOB_GENERATE, tokens, PROMPT, 1), &r);
	reply_free(&r);
	start_ns = pfx_clock_ns();
	run(e, token_job(PFX_JOB_GENERATE, tokens, PROMPT, TOKENS), &r);
	ns = (double)(pfx_clock_ns() - start_ns) / TOKENS;
	reply_free(&r);
	flush(e);
	return ns;
}

int main(int argc, char **argv)
{
	struct pfx_engine_opts opts = { .device_memory = 128u << 20, .logits_memory = 8u << 20 };
	struct pfx_store_shape shape = { 0 };
	struct pfx_engine *off, *on;
	struct pfx_store *store;
	double best_off = 1e18, best_on = 1e18, t;
	int rounds = argc > 2 ? atoi(argv[2]) : 20;
	char err[200];

	if (argc < 2) {
		fprintf(stderr, "usage: bench_tiers MODEL [ROUNDS]\n");
		return 2;
	}
	opts.model_path = argv[1];
	off = open_engine(&opts);
	shape.block_tokens = pfx_engine_info(off)->block_tokens;
	shape.kv_bytes = pfx_engine_info(off)->kv_bytes_per_token * shape.block_tokens;
	if (pfx_store_mem_open(&store, &shape, 1u << 30, err, sizeof(err)) != 0) {
		fprintf(stderr, "%s\n", err);
		return 1;
	}
	opts.host_memory = 256u << 20;
	opts.store = store;
	opts.saves = PFX_SAVES_OFF; /* idle: the prompt is used again, and would be saved */
	on = open_engine(&opts);
	for (int i = 0; i < rounds; i++) {
		t = ns_per_token(off, pfx_engine_info(off)->n_vocab);
		best_off = t < best_off ? t : best_off;
		t = ns_per_token(on, pfx_engine_info(on)->n_vocab);
		best_on = t < best_on ? t : best_on;
	}
	printf("decode, best of %d: %.1f us a token without tiers, %.1f us with them idle (%+.2f %%)\n",
		rounds, best_off / 1e3, best_on / 1e3, (best_on / best_off - 1) * 100);
	pfx_engine_close(off);
	pfx_engine_close(on);
	pfx_store_close(store);
	return 0;
}
