/*
 * How fast the forward pass is, beside what this machine can do:
 *
 *     bench_model [--json] [--quick] [--pin] [--threads N] [--kernels NAME]
 *         [--activations exact|fast] MODEL
 *
 * A step is taken alone, without the engine around it; tests/bench_cpu.py puts both together, and
 * other servers beside them. Best of some runs, since the machine may be shared. The share of
 * products and of attention is that of the peak of the instruction they are made with, for the
 * time in which they ran; the share of a decode step is that of reading its weights and KV.
 */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/model.h"
#include "engine/profile.h"
#include "tests/machine.h"
#include "tests/model_util.h"

#define BLOCK_TOKENS 32u
#define LONG 8192u /* the first sequence; the others have */
#define SHORT 2304u
#define SEQS 8u     /* each with a prompt of its own */
#define SHARERS 16u /* behind the first's */
#define SHARED 2048u
#define BLOCKS (LONG / BLOCK_TOKENS)
#define CHUNK 512u

enum shape {
	PREFILL, /* all n tokens from the first on, in chunks, with the last one's logits */
	ROWS,    /* n tokens behind `pos`, likewise */
	OWN,     /* a decode step of n sequences at pos, each with KV of its own */
	BEHIND,  /* the same behind one prefix of SHARED tokens */
};

/* In this order: each finds the KV that it needs. */
static const struct bench {
	const char *name;
	enum shape shape;
	uint32_t n, pos;
	int runs, quick_runs;
} cases[] = {
	{ "prefill_512", PREFILL, 512, 0, 6, 2 },
	{ "prefill_2048", PREFILL, 2048, 0, 3, 1 },
	{ "rows_64_at_2048", ROWS, 64, 2048, 10, 5 },
	{ "decode_0", OWN, 1, 16, 60, 20 },
	{ "decode_2048", OWN, 1, 2048, 60, 20 },
	{ "decode_8_at_2048", OWN, SEQS, 2048, 20, 0 },
	{ "shared_1_at_2048", BEHIND, 1, 2048, 60, 0 },
	{ "shared_8_at_2048", BEHIND, 8, 2048, 40, 10 },
	{ "shared_16_at_2048", BEHIND, 16, 2048, 40, 10 },
	{ "rows_512_at_2048", ROWS, 512, 2048, 3, 0 },
	{ "rows_64_at_4096", ROWS, 64, 4096, 10, 0 },
	{ "rows_512_at_7488", ROWS, 512, 7488, 3, 0 },
	{ "decode_8000", OWN, 1, 8000, 60, 0 },
};

struct result {
	double ms, mean_ms;
	struct pfx_phase_time phases[PFX_N_PHASES]; /* of the best run */
	double flop_product, flop_attention, bytes;
};

static struct pfx_model *m;
static uint32_t tokens[LONG], blocks[SEQS][BLOCKS], shared[SHARERS][BLOCKS], filled;
static struct pfx_device_info device;

static void run_batch(const struct pfx_batch *batch)
{
	const float *logits;

	pfx_profile_turn(pfx_model_profile(m));
	pfx_profile_begin(pfx_model_profile(m), batch->n_rows, batch->n_seqs);
	PFX_ASSERT(pfx_model_forward(m, batch) == 0);
	PFX_ASSERT(pfx_model_logits(m, 0, batch->n_out, &logits) == 0);
	pfx_profile_end(pfx_model_profile(m));
}

/* Tokens [from, to) of a sequence in chunks, with the last one's logits. */
static void run_rows(uint32_t from, uint32_t to, const uint32_t *table)
{
	for (uint32_t at = from; at < to; at += CHUNK) {
		uint32_t rows = to - at < CHUNK ? to - at : CHUNK, last = rows - 1;
		struct pfx_batch_seq s = { 0, rows, at, 0, BLOCKS, table };
		struct pfx_batch batch = { rows, 1, at + rows == to, tokens + at, &s, &last };
		run_batch(&batch);
	}
}

/* A decode step of n sequences that stand at position pos. */
static void run_decode(uint32_t (*table)[BLOCKS], uint32_t n, uint32_t pos)
{
	struct pfx_batch_seq seqs[SHARERS];
	uint32_t ids[SHARERS], rows[SHARERS];

	for (uint32_t i = 0; i < n; i++) {
		seqs[i] = (struct pfx_batch_seq){ i, 1, pos, 0, BLOCKS, table[i] };
		ids[i] = tokens[pos];
		rows[i] = i;
	}
	struct pfx_batch batch = { n, n, n, ids, seqs, rows };
	run_batch(&batch);
}

static void run_case(const struct bench *c, uint32_t run)
{
	switch (c->shape) {
	case PREFILL:
		run_rows(0, c->n, blocks[0]);
		break;
	case ROWS:
		run_rows(c->pos, c->pos + c->n, blocks[0]);
		break;
	case OWN:
		run_decode(blocks, c->n, c->pos + run % 64);
		break;
	case BEHIND:
		run_decode(shared, c->n, c->pos + run % 64);
		break;
	}
}

/* The KV that a case finds. */
static void fill(const struct bench *c)
{
	if (c->shape != PREFILL && filled < c->pos) {
		run_rows(filled, c->pos, blocks[0]);
		filled = c->pos;
	}
	for (uint32_t i = 1; c->shape == OWN && i < c->n; i++) {
		run_rows(0, c->pos, blocks[i]);
	}
}

/* What a case has to multiply and to read; multiply and add are two. */
static void count_work(const struct bench *c, struct result *r)
{
	const struct pfx_model_config *f = pfx_model_config(m);
	double embd = f->n_embd, q = (double)f->n_heads * f->head_dim;
	double kv = (double)f->n_kv_heads * f->head_dim, pairs, positions = c->pos;
	double kv_bytes = (double)pfx_model_block_bytes(m) / BLOCK_TOKENS;

	r->flop_product = 2 * c->n * (double)f->n_layers *
		(embd * (q + 2 * kv) + q * embd + 3 * embd * f->n_ff);
	pairs = c->shape == PREFILL || c->shape == ROWS ? c->n * (c->pos + (c->n + 1) / 2.0)
		: c->n * (c->pos + 1.0);
	r->flop_attention = 4 * pairs * f->n_layers * q;
	if (c->shape == OWN) {
		positions = (double)c->n * c->pos;
	}
	r->bytes = (double)pfx_model_weight_bytes(m) + positions * kv_bytes;
}

static void run_bench(const struct bench *c, int runs, struct result *r)
{
	struct pfx_profile *profile = pfx_model_profile(m);
	double sum = 0;

	memset(r, 0, sizeof(*r));
	count_work(c, r);
	fill(c);
	for (int i = 0; i < runs; i++) {
		uint64_t start;

		memset(profile, 0, sizeof(*profile));
		start = pfx_clock_ns();
		run_case(c, (uint32_t)i);
		double ms = pfx_ns_to_ms(pfx_clock_ns() - start);
		sum += ms;
		if (i > 0 && ms >= r->ms) {
			continue;
		}
		r->ms = ms;
		for (int p = 0; p < PFX_N_PHASES; p++) {
			r->phases[p].ns = r->phases[p].waited_ns = 0;
			for (int k = 0; k < PFX_N_STEP_KINDS; k++) {
				r->phases[p].ns += profile->kinds[k].phases[p].ns;
				r->phases[p].waited_ns += profile->kinds[k].phases[p].waited_ns;
			}
		}
	}
	r->mean_ms = sum / runs;
	if (c->shape == PREFILL && c->n > filled) {
		filled = c->n;
	}
}

/* ---- what can be reached ---- */

struct limits {
	struct pfx_peak product, attention;
	double product_uses; /* instructions' worth of the peak that one multiplication takes */
	double read_gbs;
};

static void measure_limits(struct limits *l)
{
	static const struct {
		const char *kernels, *activations;
		enum pfx_peak_kind product, attention;
		double uses;
	} peaks[] = {
		/* An activation of 16 bits is two of 8; attention is of 16-bit integers with all. */
		{ "amx", "int16", PFX_PEAK_TILE_INT8, PFX_PEAK_INT16_512, 2 },
		{ "amx", "int8", PFX_PEAK_INT8_512, PFX_PEAK_INT16_512, 1 },
		{ "avx512", "int16", PFX_PEAK_INT16_512, PFX_PEAK_INT16_512, 1 },
		{ "avx512", "int8", PFX_PEAK_INT8_512, PFX_PEAK_INT16_512, 1 },
		{ "avx2", "int16", PFX_PEAK_INT16_256, PFX_PEAK_INT16_256, 1 },
		{ "avx2", "int8", PFX_PEAK_INT16_256, PFX_PEAK_INT16_256, 1 },
	};

	memset(l, 0, sizeof(*l));
	for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++) {
		if (strcmp(device.kernels, peaks[i].kernels) == 0 &&
			strcmp(device.activations, peaks[i].activations) == 0) {
			pfx_machine_peak(peaks[i].product, device.n_threads, &l->product);
			pfx_machine_peak(peaks[i].attention, device.n_threads, &l->attention);
			l->product_uses = peaks[i].uses;
		}
	}
	l->read_gbs = pfx_machine_read_gbs(pfx_model_weight_bytes(m) +
		pfx_model_block_bytes(m) / BLOCK_TOKENS * SHARED, device.n_threads);
}

static double share(double flop, double ns, double rate)
{
	return ns > 0 && rate > 0 ? flop / ns / rate : 0;
}

static double product_share(const struct limits *l, const struct result *r)
{
	return share(r->flop_product * l->product_uses, (double)r->phases[PFX_PHASE_PRODUCT].ns,
		l->product.rate);
}

static double attention_share(const struct limits *l, const struct result *r)
{
	return share(r->flop_attention, (double)r->phases[PFX_PHASE_ATTENTION].ns, l->attention.rate);
}

static double floor_ms(const struct limits *l, const struct result *r)
{
	return r->bytes / l->read_gbs * 1e-6;
}

/* ---- how it is told ---- */

static json_t *case_json(const struct limits *l, const struct bench *c, const struct result *r)
{
	json_t *phases = json_object();

	for (int p = 0; p < PFX_N_PHASES; p++) {
		if (r->phases[p].ns > 0) {
			json_object_set_new(phases, pfx_phase_name(p), json_pack("{s:f,s:f}", "ms",
				pfx_ns_to_ms(r->phases[p].ns), "waited_ms",
				pfx_ns_to_ms(r->phases[p].waited_ns)));
		}
	}
	return json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:o}", "tokens", (int)c->n, "ms", r->ms,
		"mean_ms", r->mean_ms, "product_share", product_share(l, r), "attention_share",
		attention_share(l, r), "floor_ms", floor_ms(l, r), "phases", phases);
}

static void tell_json(const struct limits *l, const struct result *results)
{
	json_t *all = json_object(), *told = json_pack("{s:s,s:s,s:i,s:I,s:I,s:f,s:s?,s:f,s:s?,s:f}",
		"kernels", device.kernels, "activations", device.activations, "threads",
		(int)device.n_threads, "weight_bytes", (json_int_t)pfx_model_weight_bytes(m), "kv_bytes",
		(json_int_t)(pfx_model_block_bytes(m) / BLOCK_TOKENS), "read_gbs",
		l->read_gbs, "product_peak", l->product.name, "product_rate", l->product.rate,
		"attention_peak", l->attention.name, "attention_rate", l->attention.rate);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (results[i].ms > 0) {
			json_object_set_new(all, cases[i].name, case_json(l, &cases[i], &results[i]));
		}
	}
	json_object_set_new(told, "cases", all);
	json_dumpf(told, stdout, JSON_INDENT(1));
	puts("");
	json_decref(told);
}

static void tell_case(const struct limits *l, const struct bench *c, const struct result *r)
{
	int decodes = c->shape == OWN || c->shape == BEHIND;

	printf("%-18s %9.2f ms %9.1f tokens/s (mean %.1f)  ", c->name, r->ms, c->n / r->ms * 1e3,
		c->n / r->mean_ms * 1e3);
	if (decodes) {
		printf("%3.0f %% of reading\n", 100 * floor_ms(l, r) / r->ms);
	} else {
		printf("products %2.0f %%, attention %2.0f %%\n", 100 * product_share(l, r),
			100 * attention_share(l, r));
	}
}

static void tell_limits(const struct limits *l)
{
	printf("%s, %s, %u threads; weights %.1f MB packed; read %.1f GB/s\n", device.kernels,
		device.activations, device.n_threads, (double)pfx_model_weight_bytes(m) / 1e6, l->read_gbs);
	if (l->product.rate > 0) {
		printf("products: %s, %.0f %s, %.0f a multiplication; attention: %s, %.0f %s\n",
			l->product.name, l->product.rate, l->product.unit, l->product_uses, l->attention.name,
			l->attention.rate, l->attention.unit);
	}
}

static void open_model(const char *path, const struct pfx_test_model_opts *opts)
{
	struct pfx_rng rng = { 1 };
	uint32_t next = 0;

	m = pfx_test_model_open(path, opts);
	pfx_model_device(m, &device);
	for (uint32_t i = 0; i < LONG; i++) {
		tokens[i] = (uint32_t)pfx_rng_below(&rng, pfx_model_config(m)->n_vocab);
	}
	for (uint32_t i = 0; i < SEQS; i++) {
		for (uint32_t b = 0; b < (i == 0 ? LONG : SHORT) / BLOCK_TOKENS; b++) {
			blocks[i][b] = next++;
		}
	}
	for (uint32_t i = 0; i < SHARERS; i++) {
		for (uint32_t b = 0; b < SHORT / BLOCK_TOKENS; b++) {
			shared[i][b] = b < SHARED / BLOCK_TOKENS ? blocks[0][b] : next++;
		}
	}
	PFX_ASSERT(next <= opts->n_blocks);
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "json", no_argument, NULL, 'j' },
		{ "quick", no_argument, NULL, 'q' }, { "pin", no_argument, NULL, 'p' },
		{ "threads", required_argument, NULL, 't' },
		{ "kernels", required_argument, NULL, 'k' },
		{ "activations", required_argument, NULL, 'a' }, { 0 } };
	struct pfx_test_model_opts opts = { .n_threads = 2, .block_tokens = BLOCK_TOKENS,
		.rows_max = CHUNK, .out_rows_max = SHARERS,
		.n_blocks = (LONG + (SEQS - 1) * SHORT + SHARERS * (SHORT - SHARED)) / BLOCK_TOKENS };
	struct result results[sizeof(cases) / sizeof(cases[0])] = { 0 };
	struct limits limits;
	int json = 0, quick = 0, o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		json |= o == 'j';
		quick |= o == 'q';
		opts.pin_threads |= o == 'p';
		opts.n_threads = o == 't' ? (uint32_t)atoi(optarg) : opts.n_threads;
		opts.kernels = o == 'k' ? optarg : opts.kernels;
		opts.activations = o == 'a' ? optarg : opts.activations;
		if (o == '?') {
			return 2;
		}
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: bench_model [--json] [--quick] [--pin] [--threads N] "
			"[--kernels NAME] [--activations exact|fast] MODEL\n");
		return 2;
	}
	open_model(argv[optind], &opts);
	measure_limits(&limits);
	pfx_model_enter(m);
	if (!json) {
		tell_limits(&limits);
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int runs = quick ? cases[i].quick_runs : cases[i].runs;
		if (runs > 0) {
			run_bench(&cases[i], runs, &results[i]);
		}
		if (runs > 0 && !json) {
			tell_case(&limits, &cases[i], &results[i]);
		}
	}
	if (json) {
		tell_json(&limits, results);
	}
	pfx_model_close(m);
	return 0;
}
