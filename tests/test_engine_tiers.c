/*
 * Promise 1 through the tiers: a prompt whose prefix comes from the device, from host memory
 * or from the store after a restart has the bits of a cold one, for prefixes that end before,
 * at and behind a block's edge, alone and in company; and what is counted is where it lay.
 * Then what the store can do wrong: nothing of it is ever an answer, or a stall.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "persist/store.h"
#include "tests/engine_util.h"
#include "tests/tap.h"
#include "tests/test_models.h"

enum { REPLY = 3, CASES_MAX = 40 };

static struct one {
	uint32_t *tokens, prefix, n;
	struct reply cold;
} cases[CASES_MAX];
static uint32_t n_cases;

static struct suite {
	const char *name, *model;
	uint32_t block, n_vocab;
	struct pfx_rng rng;
} suite;

static struct pfx_store *store;

/* ---- asking ---- */

/* Takes args. Returns the reply's kind; *out is to be freed. */
static enum pfx_event_kind ask(struct pfx_engine *e, enum pfx_job_kind kind, json_t *args,
	struct reply *out)
{
	struct pfx_job *job = pfx_job_new(kind);

	job->args = args;
	run(e, job, out);
	return out->kind;
}

static long long ask_int(struct pfx_engine *e, enum pfx_job_kind kind, json_t *args,
	const char *field)
{
	struct reply r;
	long long n = -1;

	if (ask(e, kind, args, &r) == PFX_EVENT_REPORT) {
		n = json_integer_value(json_object_get(r.report, field));
	} else {
		printf("#   %s\n", r.message);
	}
	reply_free(&r);
	return n;
}

static void evict(struct pfx_engine *e, const char *tier, int blocks)
{
	ask_int(e, PFX_JOB_EVICT, blocks < 0 ? json_pack("{s:s}", "tier", tier)
		: json_pack("{s:s,s:i}", "tier", tier, "blocks", blocks), "blocks");
}

static void flush_tier(struct pfx_engine *e, const char *tier)
{
	struct reply r;

	ask(e, PFX_JOB_FLUSH, json_pack("{s:s}", "tier", tier), &r);
	reply_free(&r);
}

/* A request waits for the store for as long as a loaded machine may take, or for that long. */
static uint32_t load_wait_ms = 60000;

static struct pfx_engine *open_tiers(uint32_t host_blocks, struct pfx_store *s, enum pfx_saves saves)
{
	struct pfx_engine_opts opts = {
		.model_path = suite.model,
		.n_threads = 1,
		.device_memory = 512u << 20,
		.block_tokens = suite.block,
		.logits_memory = 1u << 20,
		.store = s,
		.saves = saves,
		.always_fetch = 1,
		.load_wait_ms = load_wait_ms,
		.max_requests = 16,
	};

	opts.host_memory = host_blocks > 0 ? 512u << 20 : 0;
	return open_engine(&opts);
}

static void open_store(struct pfx_engine *like)
{
	struct pfx_store_shape shape = { .block_tokens = suite.block,
		.kv_bytes = pfx_engine_info(like)->kv_bytes_per_token * suite.block };
	struct pfx_store *inner;
	char err[200];

	if (pfx_store_mem_open(&inner, &shape, 2u << 30, err, sizeof(err)) != 0 ||
		pfx_store_fault_open(&store, inner, suite.rng.state) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
}

/* ---- cases ---- */

static void add_case(uint32_t prefix, uint32_t rest)
{
	struct one *c = &cases[n_cases++];

	c->prefix = prefix;
	c->n = prefix + rest;
	c->tokens = malloc(c->n * sizeof(*c->tokens));
	for (uint32_t i = 0; i < c->n; i++) {
		c->tokens[i] = (uint32_t)pfx_rng_below(&suite.rng, suite.n_vocab);
	}
	/* No two share a prefix. */
	c->tokens[0] = n_cases;
}

static void make_cases(const uint32_t *ks, uint32_t n_ks, const uint32_t *rests, uint32_t n_rests)
{
	n_cases = 0;
	for (uint32_t i = 0; i < n_ks; i++) {
		for (uint32_t d = 0; d < 3; d++) {
			for (uint32_t j = 0; j < n_rests; j++) {
				uint32_t prefix = ks[i] * suite.block + d - 1;
				if (prefix > 0) {
					add_case(prefix, rests[j]);
				}
			}
		}
	}
}

static void run_cold(struct pfx_engine *e)
{
	for (uint32_t i = 0; i < n_cases; i++) {
		struct one *c = &cases[i];
		run(e, token_job(PFX_JOB_GENERATE, c->tokens, c->n, REPLY), &c->cold);
		flush(e);
	}
}

static void warm_all(struct pfx_engine *e)
{
	struct reply r;

	for (uint32_t i = 0; i < n_cases; i++) {
		run(e, token_job(PFX_JOB_WARM, cases[i].tokens, cases[i].prefix, 0), &r);
		reply_free(&r);
	}
}

static int same_bits(const struct one *c, const struct reply *got)
{
	return got->kind == PFX_EVENT_DONE && got->n == c->cold.n &&
		memcmp(got->digests, c->cold.digests, got->n * sizeof(*got->digests)) == 0 &&
		got->usage.cached_device + got->usage.cached_host + got->usage.cached_disk +
			got->usage.computed_tokens == c->n;
}

static uint32_t cached_in(const struct reply *r, int tier)
{
	return tier == 0 ? r->usage.cached_device : tier == 1 ? r->usage.cached_host
		: r->usage.cached_disk;
}

static int lies_elsewhere(const struct one *c, const struct reply *got, int tier)
{
	if (cached_in(got, tier) == c->prefix) {
		return 0;
	}
	printf("#   prefix %u of %u: device %u, host %u, disk %u, computed %u\n", c->prefix, c->n,
		got->usage.cached_device, got->usage.cached_host, got->usage.cached_disk,
		got->usage.computed_tokens);
	return 1;
}

static void run_alone(struct pfx_engine *e, int tier, const char *what)
{
	struct reply got;
	int bad = 0, elsewhere = 0;

	for (uint32_t i = 0; i < n_cases; i++) {
		run(e, token_job(PFX_JOB_GENERATE, cases[i].tokens, cases[i].n, REPLY), &got);
		bad += !same_bits(&cases[i], &got);
		elsewhere += lies_elsewhere(&cases[i], &got, tier);
		reply_free(&got);
	}
	is_int(bad, 0, "%s: %s alone: the bits of %u cold ones", suite.name, what, n_cases);
	is_int(elsewhere, 0, "... and all of each prefix was found there");
	is_int(problems(e), 0, "... check");
}

static void run_together(struct pfx_engine *e, int tier, const char *what)
{
	struct reply got[CASES_MAX + 2], *wait[CASES_MAX + 2];
	uint32_t other[20];
	int bad = 0, elsewhere = 0;

	for (uint32_t k = 0; k < 2; k++) {
		for (uint32_t i = 0; i < 20; i++) {
			other[i] = (i * 7 + k + 1) % suite.n_vocab;
		}
		start(e, token_job(PFX_JOB_GENERATE, other, 20, 40), wait[n_cases + k] = &got[n_cases + k]);
	}
	for (uint32_t i = 0; i < n_cases; i++) {
		start(e, token_job(PFX_JOB_GENERATE, cases[i].tokens, cases[i].n, REPLY), wait[i] = &got[i]);
	}
	wait_all(e, wait, n_cases + 2);
	for (uint32_t i = 0; i < n_cases; i++) {
		bad += !same_bits(&cases[i], &got[i]);
		elsewhere += lies_elsewhere(&cases[i], &got[i], tier);
	}
	for (uint32_t i = 0; i < n_cases + 2; i++) {
		reply_free(&got[i]);
	}
	is_int(bad, 0, "%s: %s in a mixed batch: the bits of %u cold ones", suite.name, what, n_cases);
	is_int(elsewhere, 0, "... and all of each prefix was found there");
	is_int(problems(e), 0, "... check");
}

/* ---- the tiers ---- */

static void test_device(struct pfx_engine *e)
{
	for (int together = 0; together < 2; together++) {
		flush(e);
		warm_all(e);
		(together ? run_together : run_alone)(e, 0, "device hits");
	}
}

static void test_host(void)
{
	struct pfx_engine *e = open_tiers(1, NULL, PFX_SAVES_OFF);
	int bad = 0, split = 0;
	struct reply got;

	for (int together = 0; together < 2; together++) {
		flush(e);
		warm_all(e);
		evict(e, "device", -1);
		(together ? run_together : run_alone)(e, 1, "host hits");
	}
	/* In two tiers at once, and cut at each block in turn. */
	for (uint32_t i = 0; i < n_cases; i++) {
		flush(e);
		run(e, token_job(PFX_JOB_WARM, cases[i].tokens, cases[i].prefix, 0), &got);
		reply_free(&got);
		evict(e, "device", (int)(i % (cases[i].prefix / suite.block + 2)));
		run(e, token_job(PFX_JOB_GENERATE, cases[i].tokens, cases[i].n, REPLY), &got);
		bad += !same_bits(&cases[i], &got) ||
			got.usage.cached_device + got.usage.cached_host != cases[i].prefix;
		split += got.usage.cached_device > 0 && got.usage.cached_host > 0;
		reply_free(&got);
	}
	is_int(bad, 0, "%s: partly in host memory (%d times): the same bits", suite.name, split);
	ok(split > 0, "... and some lay in both");
	is_int(problems(e), 0, "... check");
	flush(e);
	is_int(stat_of(e, "tiers.host.free"), stat_of(e, "tiers.host.blocks"), "a flush frees the host tier");
	is_int(stat_of(e, "tiers.device.free"), stat_of(e, "tiers.device.blocks"), "... and the device");
	ok(stat_of(e, "tiers.host.spills") > 0 && stat_of(e, "tiers.host.fetches") > 0,
		"spills and fetches are counted");
	pfx_engine_close(e);
}

static void test_disk(void)
{
	struct pfx_engine *e = open_tiers(0, store, PFX_SAVES_REUSED);

	warm_all(e);
	ok(ask_int(e, PFX_JOB_SAVE, NULL, "records") >= (long long)n_cases,
		"%s: save answers with what the store has", suite.name);
	is_int(problems(e), 0, "... check");
	pfx_engine_close(e);
	for (int together = 0; together < 2; together++) {
		/* Nothing is saved by it, so that the second round finds what the first did. */
		e = open_tiers(together, store, PFX_SAVES_OFF);
		is_int(problems(e), 0, "the tree is rebuilt");
		(together ? run_together : run_alone)(e, 2, "disk hits after a restart");
		pfx_engine_close(e);
	}
}

/* All of it that can go wrong with the store, at once or in turn: the bits stay. */
static void test_faults(void)
{
	static const struct {
		enum pfx_store_fault fault;
		uint32_t one_in;
		const char *name;
	} faults[] = {
		{ PFX_FAULT_GET_FAILS, 2, "reads fail" },
		{ PFX_FAULT_FLIP, 3, "bits flip" },
		{ PFX_FAULT_SHORT, 3, "records are cut" },
		{ PFX_FAULT_GONE, 3, "records vanish" },
		{ PFX_FAULT_SLOW, 2, "it is slow" },
		{ PFX_FAULT_STUCK, 4, "it never answers" },
	};

	for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
		struct pfx_engine *e;
		uint64_t start_ns;
		int bad = 0;

		load_wait_ms = faults[f].fault == PFX_FAULT_STUCK ? 0 : 60000;
		e = open_tiers(0, store, PFX_SAVES_OFF);
		start_ns = pfx_clock_ns();

		flush(e);
		warm_all(e);
		ask_int(e, PFX_JOB_SAVE, NULL, "records");
		evict(e, "device", -1);
		pfx_store_fault_slow_ns(store, 3000000);
		pfx_store_fault_set(store, faults[f].fault, faults[f].one_in);
		for (uint32_t i = 0; i < n_cases; i++) {
			struct reply got;
			run(e, token_job(PFX_JOB_GENERATE, cases[i].tokens, cases[i].n, REPLY), &got);
			bad += !same_bits(&cases[i], &got);
			reply_free(&got);
		}
		is_int(bad, 0, "%s: %s (%llu times, %.0f ms): the bits of cold ones", suite.name,
			faults[f].name, (unsigned long long)pfx_store_fault_count(store, faults[f].fault),
			pfx_ns_to_ms(pfx_clock_ns() - start_ns));
		is_int(problems(e), 0, "... check");
		pfx_store_fault_release(store);
		pfx_store_fault_set(store, faults[f].fault, 0);
		pfx_engine_close(e);
	}
}

/* A full or failing disk: everything goes on, `save` says so, and a later one works. */
static void test_full(void)
{
	struct pfx_engine *e = open_tiers(0, store, PFX_SAVES_ALL);
	struct reply r;
	int bad = 0;

	flush(e);
	pfx_store_fault_set(store, PFX_FAULT_FULL, 1);
	for (uint32_t i = 0; i < n_cases; i++) {
		run(e, token_job(PFX_JOB_GENERATE, cases[i].tokens, cases[i].n, REPLY), &r);
		bad += !same_bits(&cases[i], &r);
		reply_free(&r);
	}
	is_int(bad, 0, "%s: a full disk changes no answer", suite.name);
	is_int(ask(e, PFX_JOB_SAVE, NULL, &r), PFX_EVENT_ERROR, "save says that it could not");
	ok(strstr(r.message, "space") != NULL, "... and why: %s", r.message);
	reply_free(&r);
	ok(stat_of(e, "tiers.disk.failed_saves") > 0, "... and it is counted");
	is_int(problems(e), 0, "... check");
	pfx_store_fault_set(store, PFX_FAULT_FULL, 0);
	ok(ask_int(e, PFX_JOB_SAVE, NULL, "records") > 0, "with room again it is saved");
	is_int(problems(e), 0, "... check");
	pfx_engine_close(e);
}

/* The store's chores, and what is asked of a store that is not there. */
static void test_chores(void)
{
	struct pfx_engine *e = open_tiers(0, store, PFX_SAVES_OFF);
	struct reply r;

	warm_all(e);
	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	ok(ask_int(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "verify"), "records") > 0, "store verify");
	is_int(ask_int(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "verify"), "damaged"), 0,
		"... finds no damage");
	ok(ask_int(e, PFX_JOB_STORE, NULL, "records") > 0, "store info");
	is_int(ask(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "frob"), &r), PFX_EVENT_ERROR, "store frob");
	reply_free(&r);
	ok(ask_int(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "compact"), "file_bytes") >= 0,
		"store compact");
	ok(ask_int(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "clear"), "records") >= 0, "store clear");
	is_int(ask_int(e, PFX_JOB_STORE, NULL, "records"), 0, "... leaves nothing");
	is_int(problems(e), 0, "check");
	ok(ask_int(e, PFX_JOB_SAVE, NULL, "records") > 0, "and what is in memory is saved again");
	is_int(ask(e, PFX_JOB_EVICT, json_pack("{s:s}", "tier", "moon"), &r), PFX_EVENT_ERROR,
		"evict from no tier");
	reply_free(&r);
	pfx_engine_close(e);
	e = open_tiers(0, NULL, PFX_SAVES_OFF);
	is_int(ask(e, PFX_JOB_SAVE, NULL, &r), PFX_EVENT_ERROR, "save without a store");
	reply_free(&r);
	is_int(ask(e, PFX_JOB_STORE, NULL, &r), PFX_EVENT_ERROR, "store without a store");
	reply_free(&r);
	pfx_engine_close(e);
}

static long long records_in(struct pfx_store *s)
{
	struct pfx_store_info info;

	pfx_store_info(s, &info);
	return (long long)info.records;
}

/* A flush answers when the store has let go of what it is about; what was under way as well. */
static void test_flush(void)
{
	struct pfx_engine *e = open_tiers(0, store, PFX_SAVES_ALL);
	struct reply r;
	uint64_t n;

	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	ok(records_in(store) > 0, "there are records");
	/* Saves are slow, so that the flush comes between their order and their commit. */
	pfx_store_fault_slow_ns(store, 20000000);
	pfx_store_fault_set(store, PFX_FAULT_SLOW, 1);
	warm_all(e);
	run(e, pfx_job_new(PFX_JOB_FLUSH), &r);
	is_int(records_in(store), 0, "with the answer to a flush the store is empty");
	ok(r.durable, "... and the answer says so");
	reply_free(&r);
	pfx_store_fault_set(store, PFX_FAULT_SLOW, 0);
	is_int(problems(e), 0, "... check");

	warm_all(e);
	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	n = pfx_store_fault_count(store, PFX_FAULT_PUT_FAILS);
	pfx_store_fault_set(store, PFX_FAULT_PUT_FAILS, 1);
	run(e, pfx_job_new(PFX_JOB_FLUSH), &r);
	pfx_store_fault_set(store, PFX_FAULT_PUT_FAILS, 0);
	ok(pfx_store_fault_count(store, PFX_FAULT_PUT_FAILS) > n && !r.durable,
		"a deletion that failed is told");
	reply_free(&r);
	is_int(problems(e), 0, "... check");
	pfx_engine_close(e);
}

/* An evict answers when what it pushed out has arrived, or is deleted. */
static void test_evict(void)
{
	struct pfx_engine *e = open_tiers(1, store, PFX_SAVES_OFF);
	struct reply r;
	long long before;

	flush(e);
	warm_all(e);
	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	before = records_in(store);
	is_int(ask_int(e, PFX_JOB_EVICT, json_pack("{s:s}", "tier", "device"), "moving"), 0,
		"with the answer to an evict no copy is under way");
	is_int(stat_of(e, "tiers.device.free"), stat_of(e, "tiers.device.blocks"), "... all is free");
	ok(stat_of(e, "tiers.host.spills") > 0, "... and was copied");
	pfx_store_fault_slow_ns(store, 20000000);
	pfx_store_fault_set(store, PFX_FAULT_SLOW, 1);
	is_int(ask(e, PFX_JOB_EVICT, json_pack("{s:s,s:i}", "tier", "disk", "blocks", 5), &r),
		PFX_EVENT_REPORT, "an evict from the disk");
	is_int(records_in(store), before - json_integer_value(json_object_get(r.report, "blocks")),
		"... answers when they are deleted");
	is_int(json_integer_value(json_object_get(r.report, "moving")), 0, "... and says so");
	reply_free(&r);
	pfx_store_fault_set(store, PFX_FAULT_SLOW, 0);
	is_int(problems(e), 0, "... check");
	pfx_engine_close(e);
}

/* What a lease holds stays in the store: a save after it counts on that. */
static void test_clear_held(void)
{
	struct pfx_engine *e = open_tiers(0, store, PFX_SAVES_OFF);
	const struct one *c = &cases[n_cases - 1];
	struct reply r;

	warm_all(e);
	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	run(e, token_job(PFX_JOB_PIN, c->tokens, c->prefix, 0), &r);
	reply_free(&r);
	ok(ask_int(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "clear"), "records") > 0,
		"a clear beside a lease");
	is_int(records_in(store), (c->prefix + suite.block - 1) / suite.block,
		"... leaves what the lease holds");
	is_int(problems(e), 0, "... check");
	ok(ask_int(e, PFX_JOB_SAVE, NULL, "records") > 0, "a save then");
	flush_tier(e, "device");
	run(e, token_job(PFX_JOB_GENERATE, c->tokens, c->n, REPLY), &r);
	ok(same_bits(c, &r) && r.usage.cached_disk == c->prefix, "has all of it on disk: %u of %u",
		r.usage.cached_disk, c->prefix);
	reply_free(&r);
	flush(e);
	is_int(records_in(store), 0, "and a flush leaves nothing");
	pfx_engine_close(e);
}

/* A store for this model that keeps about n records. */
static struct pfx_store *open_small(uint32_t n)
{
	struct pfx_store_shape shape = { .block_tokens = suite.block };
	struct pfx_engine *e = open_tiers(0, NULL, PFX_SAVES_OFF);
	struct pfx_store *small;
	char err[200];

	shape.kv_bytes = pfx_engine_info(e)->kv_bytes_per_token * suite.block;
	pfx_engine_close(e);
	if (pfx_store_mem_open(&small, &shape, n * (shape.kv_bytes + 2048), err, sizeof(err)) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
	return small;
}

/* Records of one token take less room, so that more fit than a store of whole blocks keeps. */
static void fill_beyond(struct pfx_store *s, const struct pfx_store_shape *shape)
{
	struct pfx_digest space;
	struct pfx_store_key key;
	void *kv = calloc(1, shape->kv_bytes);
	struct pfx_store_item item = { &key, kv };
	uint64_t n = pfx_store_capacity(s);
	int result;

	pfx_space_digest("other", 5, NULL, 0, &space);
	for (uint32_t t = 0; t < 2 * n; t++) {
		pfx_store_key_make(&key, &space, NULL, &t, 1);
		pfx_store_put(s, &item, 1, &result);
	}
	free(kv);
}

/* A clear beside a lease also deletes what found no place in the tree at the start. */
static void test_clear_strays(void)
{
	struct pfx_store *small = open_small(400);
	const struct one *c = &cases[n_cases - 1];
	struct pfx_engine *e;
	struct reply r;

	fill_beyond(small, &small->shape);
	e = open_tiers(0, small, PFX_SAVES_OFF);
	ok(ask_int(e, PFX_JOB_STORE, NULL, "not_restored") > 0, "some rows find no place in the tree");
	run(e, token_job(PFX_JOB_PIN, c->tokens, c->prefix, 0), &r);
	reply_free(&r);
	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	ask_int(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "clear"), "records");
	is_int(records_in(small), (c->prefix + suite.block - 1) / suite.block,
		"a clear beside a lease leaves what it holds, and nothing else");
	is_int(problems(e), 0, "... check");
	pfx_engine_close(e);
	pfx_store_close(small);
}

/* A store that is full: what must go is deleted before a save is answered, not behind it. */
static void test_small_store(void)
{
	struct pfx_engine *e;
	struct pfx_store *small;
	const struct one *c;
	struct reply r;
	int bad = 0;

	if (pfx_store_fault_open(&small, open_small(24), 1) != 0) {
		printf("Bail out! out of memory\n");
		exit(1);
	}
	pfx_store_fault_slow_ns(small, 5000000);
	pfx_store_fault_set(small, PFX_FAULT_SLOW, 1);
	e = open_tiers(0, small, PFX_SAVES_OFF);
	for (uint32_t i = 0; i < n_cases; i++) {
		c = &cases[i];
		run(e, token_job(PFX_JOB_WARM, c->tokens, c->prefix, 0), &r);
		reply_free(&r);
		ask_int(e, PFX_JOB_SAVE, NULL, "records");
		evict(e, "device", -1);
		run(e, token_job(PFX_JOB_GENERATE, c->tokens, c->n, REPLY), &r);
		bad += r.usage.cached_disk != c->prefix;
		reply_free(&r);
		evict(e, "device", -1);
	}
	is_int(bad, 0, "a full store: what a save was answered for is there, %u times", n_cases);
	is_int(problems(e), 0, "... check");
	pfx_engine_close(e);
	pfx_store_close(small);
}

/* What the store is busy with, by `store info`; to be freed. */
static char *chore_running(struct pfx_engine *e)
{
	struct reply r;
	const char *what;
	char *copy;

	ask(e, PFX_JOB_STORE, NULL, &r);
	what = json_string_value(json_object_get(json_object_get(r.report, "running"), "do"));
	copy = strdup(what == NULL ? "nothing" : what);
	reply_free(&r);
	return copy;
}

static void is_running(struct pfx_engine *e, const char *want)
{
	char *what = NULL;

	/* One that was let go takes a moment to end. */
	for (int i = 0; i < 1000 && (what == NULL || strcmp(what, want) != 0); i++) {
		free(what);
		usleep(i == 0 ? 0 : 10000);
		what = chore_running(e);
	}
	ok(strcmp(what, want) == 0, "store info says that %s runs: %s", want, what);
	free(what);
}

/* Nobody waits for ever for a chore, nor for a save behind it. */
static void test_stuck_chores(void)
{
	static const char *const chores[] = { "verify", "compact" };
	struct pfx_engine_opts opts = {
		.model_path = suite.model,
		.n_threads = 1,
		.device_memory = 64u << 20,
		.block_tokens = suite.block,
		.saves = PFX_SAVES_OFF,
		.store = store,
		.store_wait_ms = 300,
	};
	struct pfx_engine *e = open_engine(&opts);
	struct reply r;

	for (int i = 0; i < 2; i++) {
		const char *what = chores[i];

		flush(e);
		warm_all(e);
		pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
		is_int(ask(e, PFX_JOB_STORE, json_pack("{s:s}", "do", what), &r), PFX_EVENT_ERROR,
			"a %s that is stuck is answered", what);
		ok(strstr(r.message, "has not ended") != NULL, "... in words: %s", r.message);
		reply_free(&r);
		is_running(e, what);
		is_int(ask(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "verify"), &r), PFX_EVENT_ERROR,
			"another chore is refused");
		ok(r.fault == PFX_FAULT_OVERLOADED && strstr(r.message, what) != NULL, "... with its name: %s",
			r.message);
		reply_free(&r);
		is_int(ask(e, PFX_JOB_SAVE, NULL, &r), PFX_EVENT_ERROR, "a save behind it gives up");
		ok(r.fault == PFX_FAULT_OVERLOADED && strstr(r.message, what) != NULL,
			"... and says what it waits for: %s", r.message);
		reply_free(&r);
		pfx_store_fault_release(store);
		is_running(e, "nothing");
		ok(ask_int(e, PFX_JOB_SAVE, NULL, "records") > 0, "then a save works");
		is_int(problems(e), 0, "... check");
	}
	pfx_engine_close(e);
}

/* A store that never comes back keeps neither a request nor the end of the engine. */
static void test_stuck_end(void)
{
	struct pfx_engine_opts opts = {
		.model_path = suite.model,
		.n_threads = 1,
		.device_memory = 64u << 20,
		.block_tokens = suite.block,
		.saves = PFX_SAVES_ALL,
		.always_fetch = 1,
		.close_ms = 400,
		.store_wait_ms = 300,
	};
	struct pfx_engine *e;
	struct reply r;
	uint64_t start_ns;
	int bad = 0;

	open_store(e = open_tiers(0, NULL, PFX_SAVES_OFF));
	pfx_engine_close(e);
	opts.store = store;
	e = open_engine(&opts);
	pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
	start_ns = pfx_clock_ns();
	for (uint32_t i = 0; i < n_cases; i++) {
		run(e, token_job(PFX_JOB_GENERATE, cases[i].tokens, cases[i].n, REPLY), &r);
		bad += !same_bits(&cases[i], &r);
		reply_free(&r);
	}
	is_int(bad, 0, "nothing can be saved: the same bits, in %.0f ms",
		pfx_ns_to_ms(pfx_clock_ns() - start_ns));
	is_int(ask(e, PFX_JOB_SAVE, NULL, &r), PFX_EVENT_ERROR, "a save gives up");
	ok(strstr(r.message, "nothing for 300 ms") != NULL, "... and says so: %s", r.message);
	reply_free(&r);
	run(e, pfx_job_new(PFX_JOB_FLUSH), &r);
	ok(r.kind == PFX_EVENT_FLUSHED && !r.durable, "a flush is answered as not durable");
	ok(r.moving > 0, "... with what is still under way: %u", r.moving);
	reply_free(&r);
	is_int(ask(e, PFX_JOB_STORE, json_pack("{s:s}", "do", "clear"), &r), PFX_EVENT_ERROR,
		"a clear gives up: %s", r.message);
	reply_free(&r);
	start_ns = pfx_clock_ns();
	pfx_engine_close(e);
	ok(pfx_clock_ns() - start_ns < 20000000000u, "and the engine ends: %.0f ms",
		pfx_ns_to_ms(pfx_clock_ns() - start_ns));
	/* Its threads are in the store still, which is theirs now. */
}

/* All is on disk, but reading it is slow: it is computed, and the reply says why. */
static void test_not_copied(void)
{
	struct pfx_engine_opts opts = {
		.model_path = suite.model,
		.n_threads = 1,
		.device_memory = 64u << 20,
		.block_tokens = suite.block,
		.store = store,
		.saves = PFX_SAVES_OFF,
		.load_wait_ms = 60000,
	};
	struct pfx_engine *e = open_engine(&opts);
	struct reply r;
	int bad = 0, told = 0;

	flush(e);
	for (uint32_t i = 0; i < n_cases; i++) {
		run(e, token_job(PFX_JOB_WARM, cases[i].tokens, cases[i].n, 0), &r);
		reply_free(&r);
	}
	ask_int(e, PFX_JOB_SAVE, NULL, "records");
	evict(e, "device", -1);
	/* The first one measures how slow it is. */
	pfx_store_fault_slow_ns(store, 100000000);
	pfx_store_fault_set(store, PFX_FAULT_SLOW, 1);
	for (uint32_t i = 0; i < n_cases && told < 3; i++) {
		const struct one *c = &cases[i];
		int whole;

		run(e, token_job(PFX_JOB_GENERATE, c->tokens, c->n, REPLY), &r);
		bad += !same_bits(c, &r);
		whole = r.usage.cached_disk + 1 >= c->n;
		bad += whole != (r.miss == PFX_MISS_NONE) ||
			(!whole && (r.miss != PFX_MISS_NOT_COPIED || r.miss_at_token != r.usage.cached_disk));
		told += !whole;
		reply_free(&r);
	}
	pfx_store_fault_set(store, PFX_FAULT_SLOW, 0);
	is_int(bad, 0, "what is computed though the store has it says so, with the same bits");
	is_int(told, 3, "... and some was");
	ok(stat_of(e, "tiers.host.computed_instead") > 0, "... and is counted");
	pfx_engine_close(e);
}

static void free_cases(void)
{
	for (uint32_t i = 0; i < n_cases; i++) {
		reply_free(&cases[i].cold);
		free(cases[i].tokens);
	}
}

static void run_suite(const char *name, const char *model, uint32_t block, const uint32_t *ks,
	uint32_t n_ks, int tiers_only)
{
	uint32_t rests[] = { 1, block - 1, block, block + 1 };
	struct pfx_engine *e;

	suite.name = name;
	suite.model = model;
	suite.block = block;
	e = open_tiers(0, NULL, PFX_SAVES_OFF);
	suite.n_vocab = pfx_engine_info(e)->n_vocab;
	make_cases(ks, n_ks, rests, 4);
	run_cold(e);
	test_device(e);
	open_store(e);
	pfx_engine_close(e);
	test_host();
	test_disk();
	if (tiers_only) {
		pfx_store_close(store);
		free_cases();
		return;
	}
	test_faults();
	test_full();
	test_chores();
	test_flush();
	test_evict();
	test_clear_held();
	test_clear_strays();
	test_not_copied();
	test_stuck_chores();
	test_small_store();
	pfx_store_close(store);
	test_stuck_end();
	free_cases();
}

int main(void)
{
	static const uint32_t tiny_ks[] = { 1, 4, 7 }, real_ks[] = { 2 };
	const char *tiny;

	suite.rng.state = seed_from_environment();
	printf("# seed %llu\n", (unsigned long long)suite.rng.state);
	tiny = tiny_model("tiers", suite.rng.state);
	run_suite("tiny", tiny, 16, tiny_ks, 3, 0);
	remove(tiny);
	if (real_model() != NULL) {
		run_suite("real", real_model(), 32, real_ks, 1, 1);
	}
	return tap_done();
}
