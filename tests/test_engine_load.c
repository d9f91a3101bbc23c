/*
 * Random load on the engine: every request ends once, its answer has the bits of a cold one
 * asked alone, usage adds up, cached is the longest common prefix with anything held, and
 * after any cancels the pool balances and check is clean. With host memory and a store behind
 * it, too, whatever that store does.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "persist/store.h"
#include "tests/engine_util.h"
#include "tests/tap.h"
#include "tests/test_models.h"

enum { N_PROMPTS = 48, LEN_MAX = 300, REPLY_MAX = 24 };

static struct prompt {
	uint32_t tokens[LEN_MAX], n;
	struct reply cold; /* REPLY_MAX tokens of it */
} prompts[N_PROMPTS];

static const char *model;
static struct pfx_rng rng;
static int n_cancelled;

static uint32_t below(uint32_t n)
{
	return (uint32_t)pfx_rng_below(&rng, n);
}

/* A family of prompts that branch off one another at random places. */
static void make_prompts(void)
{
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1, .device_memory = 64u << 20 };
	struct pfx_engine *e = open_engine(&opts);

	for (int i = 0; i < N_PROMPTS; i++) {
		struct prompt *p = &prompts[i], *q = &prompts[i > 0 ? below((uint32_t)i) : 0];
		uint32_t shared = i == 0 ? 0 : below(q->n + 1);

		p->n = shared + 1 + below(LEN_MAX - shared);
		if (p->n > LEN_MAX) {
			p->n = LEN_MAX;
		}
		for (uint32_t j = 0; j < p->n; j++) {
			p->tokens[j] = j < shared ? q->tokens[j] : below(tiny_model_n_vocab());
		}
		flush(e);
		run(e, token_job(PFX_JOB_GENERATE, p->tokens, p->n, REPLY_MAX), &p->cold);
	}
	pfx_engine_close(e);
}

static int tier_balanced(struct pfx_engine *e, const char *tier)
{
	char key[4][48];
	const char *fields[4] = { "free", "cached", "blocks", "running" };

	for (int i = 0; i < 4; i++) {
		snprintf(key[i], sizeof(key[i]), "tiers.%s.%s", tier, fields[i]);
	}
	return stat_of(e, key[0]) + stat_of(e, key[1]) == stat_of(e, key[2]) && stat_of(e, key[3]) == 0;
}

/* Copies in the background end a little later than the last answer. */
static int balanced(struct pfx_engine *e)
{
	uint64_t until = pfx_clock_ns() + 10000000000u;
	int good;

	do {
		good = tier_balanced(e, "device") && tier_balanced(e, "host") &&
			stat_of(e, "tiers.device.pinned") == 0 && stat_of(e, "requests.running") == 0 &&
			stat_of(e, "requests.queued") == 0;
		if (!good) {
			usleep(1000);
		}
	} while (!good && pfx_clock_ns() < until);
	return good;
}

/* A prefix of what the cold run gave, bit for bit; all of it when it was not cancelled. */
static int as_cold(const struct reply *got, const struct prompt *p, uint32_t wanted)
{
	if (got->kind != PFX_EVENT_DONE || got->n > wanted) {
		return 0;
	}
	if (got->finish != PFX_FINISH_CANCELLED && (got->n != wanted ||
		got->usage.cached_device + got->usage.cached_host + got->usage.cached_disk +
			got->usage.computed_tokens != p->n)) {
		return 0;
	}
	return got->n == 0 ||
		memcmp(got->digests, p->cold.digests, got->n * sizeof(*got->digests)) == 0;
}

struct storm {
	uint32_t block, chunk;
	uint64_t memory, host; /* bytes */
	int n_requests;
	uint32_t records; /* that the store has room for; 0: no store */
	int faults;       /* it fails in every way, now and then */
	int always;       /* fetch whatever it costs, or as measured */
};

static struct pfx_store *open_store(const struct storm *o)
{
	struct pfx_store_shape shape = { .block_tokens = o->block,
		.kv_bytes = tiny_model_kv_bytes(o->block) };
	struct pfx_store *inner, *store;
	uint64_t bytes = o->records * (shape.kv_bytes + 1024);
	char err[200];

	if (pfx_store_mem_open(&inner, &shape, bytes, err, sizeof(err)) != 0 ||
		pfx_store_fault_open(&store, inner, rng.state) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
	pfx_store_fault_slow_ns(store, 2000000);
	return store;
}

static void draw_faults(struct pfx_store *store, int on)
{
	pfx_store_fault_release(store);
	for (enum pfx_store_fault f = 0; f < PFX_FAULTS; f++) {
		uint32_t one_in = f == PFX_FAULT_STUCK ? 200 : 3 + below(40);
		pfx_store_fault_set(store, f, on && below(2) == 0 ? one_in : 0);
	}
}

/* What operators do meanwhile; its answer is awaited with the wave's. */
static struct pfx_job *random_op(int store)
{
	static const char *const tiers[] = { "device", "host", "disk" };
	static const char *const chores[] = { "verify", "compact", "clear", "info" };
	struct pfx_job *job;
	uint32_t what = below(store ? 10 : 6);

	if (what < 4) {
		job = pfx_job_new(PFX_JOB_EVICT);
		job->args = json_pack("{s:s,s:i}", "tier", tiers[below(3)], "blocks", (int)below(12));
	} else if (what < 6) {
		job = pfx_job_new(PFX_JOB_FLUSH);
		job->args = below(2) == 0 ? NULL : json_pack("{s:[s]}", "tier", tiers[below(3)]);
	} else if (what < 8) {
		job = pfx_job_new(PFX_JOB_SAVE);
	} else {
		job = pfx_job_new(PFX_JOB_STORE);
		job->args = json_pack("{s:s}", "do", chores[below(4)]);
	}
	return job;
}

enum { WAVE = 16 };

struct wave {
	struct reply got[WAVE], op;
	uint32_t which[WAVE], wanted[WAVE];
	int has_op;
};

static void start_wave(struct pfx_engine *e, struct wave *w, int store)
{
	for (int i = 0; i < WAVE; i++) {
		struct prompt *p = &prompts[w->which[i] = below(N_PROMPTS)];
		struct pfx_job *job;

		w->wanted[i] = below(REPLY_MAX + 1);
		job = token_job(below(8) == 0 ? PFX_JOB_WARM : PFX_JOB_GENERATE, p->tokens, p->n,
			w->wanted[i]);
		if (job->kind == PFX_JOB_WARM) {
			w->wanted[i] = 0;
		}
		job->no_store = below(8) == 0;
		start(e, job, &w->got[i]);
		if (below(3) == 0) {
			usleep(below(400));
		}
		if (below(3) == 0) {
			pfx_engine_cancel(e, w->got[below((uint32_t)i + 1)].number);
		}
		if (!w->has_op && below(40) == 0) {
			w->has_op = 1;
			start(e, random_op(store), &w->op);
		}
	}
	usleep(below(2000));
	for (int i = 0; i < WAVE; i++) {
		if (below(4) == 0) {
			pfx_engine_cancel(e, w->got[i].number);
		}
	}
}

/* 1 when the i-th answer is what it must be. */
static int good_answer(const struct wave *w, int i, uint64_t capacity)
{
	const struct prompt *p = &prompts[w->which[i]];
	const struct reply *got = &w->got[i];
	uint32_t most;

	if (p->n + 1 > capacity) {
		return (got->kind == PFX_EVENT_ERROR && got->fault == PFX_FAULT_TOO_LONG) ||
			(got->kind == PFX_EVENT_DONE && got->finish == PFX_FINISH_CANCELLED);
	}
	/* A reply ends early where it fills the whole memory. */
	most = capacity - p->n + 1 < w->wanted[i] ? (uint32_t)(capacity - p->n + 1) : w->wanted[i];
	if (!as_cold(got, p, most)) {
		printf("#   prompt of %u, %u wanted: %u came, kind %d, finish %d, %s\n", p->n, most, got->n,
			got->kind, got->finish, got->message);
		return 0;
	}
	return 1;
}

/*
 * Waves of requests at once, some cancelled at a random moment, in a pool of n_blocks: from
 * "everything fits" down to "one request fills it".
 */
static void test_storm(const struct storm *o)
{
	struct pfx_store *store = o->records > 0 ? open_store(o) : NULL;
	struct pfx_engine_opts opts = {
		.model_path = model,
		.n_threads = 1 + below(2),
		.device_memory = o->memory,
		.host_memory = o->host,
		.block_tokens = o->block,
		.chunk_tokens = o->chunk,
		.logits_memory = 1u << 20,
		.max_requests = 8,
		.store = store,
		.saves = below(2) == 0 ? PFX_SAVES_ALL : PFX_SAVES_REUSED,
		.always_fetch = o->always,
	};
	struct pfx_engine *e = open_engine(&opts);
	uint64_t capacity = (uint64_t)pfx_engine_info(e)->n_blocks * o->block;
	int bad = 0, cancelled = 0, asked = 0;

	while (asked < o->n_requests) {
		struct wave w = { .has_op = 0 };
		struct reply *wait[WAVE + 1];

		if (o->faults) {
			draw_faults(store, 1);
		}
		start_wave(e, &w, store != NULL);
		for (int i = 0; i < WAVE; i++) {
			wait[i] = &w.got[i];
		}
		wait_all(e, wait, WAVE);
		if (w.has_op) {
			/* A store that is stuck keeps a save waiting, but no request. */
			if (o->faults) {
				draw_faults(store, 0);
			}
			wait[0] = &w.op;
			wait_all(e, wait, 1);
			reply_free(&w.op);
		}
		for (int i = 0; i < WAVE; i++) {
			bad += !good_answer(&w, i, capacity);
			cancelled += w.got[i].kind == PFX_EVENT_DONE &&
				w.got[i].finish == PFX_FINISH_CANCELLED;
			reply_free(&w.got[i]);
		}
		asked += WAVE;
		bad += problems(e) != 0;
	}
	if (store != NULL) {
		draw_faults(store, 0);
	}
	n_cancelled += cancelled;
	is_int(bad, 0, "blocks of %u, %u of them, %u in host memory, %u records%s, chunk %u: %d requests, "
		"%d cancelled", o->block, pfx_engine_info(e)->n_blocks, pfx_engine_info(e)->n_host_blocks,
		pfx_engine_info(e)->n_records, o->faults ? " that fail" : "", o->chunk, asked, cancelled);
	ok(balanced(e), "and then nothing is held; preempted %lld, spilled %lld, fetched %lld, loaded %lld, "
		"saved %lld", stat_of(e, "requests.preempted"), stat_of(e, "tiers.host.spills"),
		stat_of(e, "tiers.host.fetches"), stat_of(e, "tiers.disk.loads"),
		stat_of(e, "tiers.disk.saves"));
	flush(e);
	ok(balanced(e) && stat_of(e, "tiers.device.free") == stat_of(e, "tiers.device.blocks") &&
		stat_of(e, "tiers.host.free") == stat_of(e, "tiers.host.blocks"),
		"and a flush frees every block");
	pfx_engine_close(e);
	pfx_store_close(store);
}

/* One at a time in a large pool: cached equals brute force over everything still held. */
static void test_longest_prefix(void)
{
	struct pfx_engine_opts opts = {
		.model_path = model,
		.n_threads = 1,
		.device_memory = 64u << 20,
		.logits_memory = 64u << 20,
	};
	struct pfx_engine *e = open_engine(&opts);
	enum { N = 400 };
	static uint32_t held[N][LEN_MAX + REPLY_MAX], held_n[N], held_space[N], ended[N];
	int bad = 0;

	for (int i = 0; i < N; i++) {
		struct prompt *p = &prompts[below(N_PROMPTS)];
		uint32_t n = 1 + below(p->n), best = 0, exact = 0, want, reply = below(REPLY_MAX);
		struct pfx_job *job;
		struct reply got;
		char salt[2] = { (char)('a' + below(2)), 0 };

		if (below(3) == 0) {
			n = p->n;
		}
		job = token_job(PFX_JOB_GENERATE, p->tokens, n, reply);
		job->salt = pfx_strdup(salt);
		job->salt_len = 1;
		for (int k = 0; k < i; k++) {
			uint32_t m = 0;
			if (held_space[k] != (uint32_t)salt[0]) {
				continue;
			}
			while (m < n && m < held_n[k] && held[k][m] == p->tokens[m]) {
				m++;
			}
			best = m > best ? m : best;
			exact |= m == n && ended[k] == n;
		}
		want = best == n && !exact ? n - 1 : best;
		run(e, job, &got);
		if (got.usage.cached_device != want || got.usage.computed_tokens != n - want) {
			printf("#   prompt of %u: cached %u, brute force %u\n", n, got.usage.cached_device, want);
			bad++;
		}
		bad += (got.miss == PFX_MISS_NONE) != (best == n);
		/* The last sampled token has no KV yet. */
		memcpy(held[i], p->tokens, n * sizeof(uint32_t));
		if (got.n > 1) {
			memcpy(held[i] + n, got.tokens, (got.n - 1) * sizeof(uint32_t));
		}
		held_n[i] = n + (got.n > 1 ? got.n - 1 : 0);
		held_space[i] = (uint32_t)salt[0];
		ended[i] = n;
		reply_free(&got);
	}
	is_int(bad, 0, "cached is the longest common prefix with all that is held, %d times", N);
	is_int(problems(e), 0, "check");
	pfx_engine_close(e);
}

/* Cold and at once: the shared part is computed once. */
static void test_once(void)
{
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1, .device_memory = 64u << 20,
		.chunk_tokens = 16, .logits_memory = 1u << 20 };
	struct pfx_engine *e = open_engine(&opts);
	enum { CLIENTS = 8, SHARED = 200, OWN = 20 };
	uint32_t tokens[SHARED + OWN];
	struct reply got[CLIENTS], *wait[CLIENTS];
	int computed = 0, sums = 0;

	for (int cancel_leader = 0; cancel_leader < 2; cancel_leader++) {
		computed = sums = 0;
		flush(e);
		for (uint32_t i = 0; i < SHARED; i++) {
			tokens[i] = below(tiny_model_n_vocab());
		}
		for (uint32_t c = 0; c < CLIENTS; c++) {
			for (uint32_t i = 0; i < OWN; i++) {
				tokens[SHARED + i] = (c * 31 + i * 7 + 1) % tiny_model_n_vocab();
			}
			start(e, token_job(PFX_JOB_GENERATE, tokens, SHARED + OWN, 4), &got[c]);
			wait[c] = &got[c];
		}
		if (cancel_leader) {
			pfx_engine_cancel(e, got[0].number);
		}
		wait_all(e, wait, CLIENTS);
		for (int c = 0; c < CLIENTS; c++) {
			computed += (int)got[c].usage.computed_tokens;
			sums += got[c].usage.computed_tokens + got[c].usage.cached_device == SHARED + OWN;
			reply_free(&got[c]);
		}
		if (cancel_leader) {
			ok(computed <= SHARED + CLIENTS * OWN && sums >= CLIENTS - 1,
				"the leader cancelled: still once (%d computed)", computed);
		} else {
			ok(computed == SHARED + CLIENTS * OWN && sums == CLIENTS,
				"a shared cold prefix is computed once (%d)", computed);
		}
	}
	/* Who stores nothing may follow all the same. */
	flush(e);
	for (uint32_t c = 0; c < 2; c++) {
		struct pfx_job *job = token_job(PFX_JOB_GENERATE, tokens, SHARED + c, 4);
		job->no_store = c == 1;
		start(e, job, &got[c]);
		wait[c] = &got[c];
	}
	wait_all(e, wait, 2);
	ok(got[0].usage.computed_tokens == SHARED && got[1].usage.computed_tokens == 1,
		"store: false follows (%u, %u computed)", got[0].usage.computed_tokens,
		got[1].usage.computed_tokens);
	reply_free(&got[0]);
	reply_free(&got[1]);
	is_int(problems(e), 0, "check");
	pfx_engine_close(e);
}

/* Memory in tokens. */
static const struct storm storms[] = {
	{ .block = 32, .chunk = 512, .memory = 65536, .n_requests = 1200 },
	{ .block = 16, .chunk = 64, .memory = 600, .n_requests = 900 },
	{ .block = 1, .chunk = 7, .memory = 350, .n_requests = 480 },
	{ .block = 32, .chunk = 16, .memory = 320, .n_requests = 480 },
	{ .block = 4, .chunk = 1, .memory = 160, .n_requests = 160 },
	{ .block = 16, .chunk = 64, .memory = 600, .host = 1200, .n_requests = 640, .always = 1 },
	{ .block = 1, .chunk = 7, .memory = 350, .host = 200, .n_requests = 320, .always = 1 },
	{ .block = 16, .chunk = 64, .memory = 400, .records = 40, .n_requests = 480, .always = 1 },
	{ .block = 8, .chunk = 32, .memory = 400, .host = 300, .records = 60, .n_requests = 480,
		.always = 1 },
	{ .block = 16, .chunk = 64, .memory = 500, .host = 500, .records = 400, .n_requests = 480,
		.faults = 1, .always = 1 },
	{ .block = 4, .chunk = 16, .memory = 320, .host = 64, .records = 400, .n_requests = 320,
		.faults = 1, .always = 1 },
	{ .block = 16, .chunk = 64, .memory = 600, .host = 600, .records = 100, .n_requests = 480 },
};

int main(void)
{
	rng.state = seed_from_environment();
	printf("# seed %llu\n", (unsigned long long)rng.state);
	model = tiny_model("load", rng.state);
	make_prompts();
	test_longest_prefix();
	test_once();
	for (size_t i = 0; i < sizeof(storms) / sizeof(storms[0]); i++) {
		struct storm o = storms[i];
		/* Given in tokens. */
		o.memory = tiny_model_kv_bytes((uint32_t)o.memory);
		o.host = tiny_model_kv_bytes((uint32_t)o.host);
		test_storm(&o);
	}
	ok(n_cancelled >= 1000, "%d cancels in all", n_cancelled);
	remove(model);
	return tap_done();
}
