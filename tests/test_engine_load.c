/*
 * Random load on the engine: every request ends once, its answer has the bits of a cold one
 * asked alone, usage adds up, cached is the longest common prefix with anything held, and
 * after any cancels the pool balances and check is clean.
 */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
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

static int balanced(struct pfx_engine *e)
{
	return stat_of(e, "tiers.device.free") + stat_of(e, "tiers.device.cached") ==
			stat_of(e, "tiers.device.blocks") &&
		stat_of(e, "tiers.device.running") == 0 && stat_of(e, "tiers.device.pinned") == 0 &&
		stat_of(e, "requests.running") == 0 && stat_of(e, "requests.queued") == 0;
}

/* A prefix of what the cold run gave, bit for bit; all of it when it was not cancelled. */
static int as_cold(const struct reply *got, const struct prompt *p, uint32_t wanted)
{
	if (got->kind != PFX_EVENT_DONE || got->n > wanted) {
		return 0;
	}
	if (got->finish != PFX_FINISH_CANCELLED &&
		(got->n != wanted || got->usage.cached_device + got->usage.computed_tokens != p->n)) {
		return 0;
	}
	return got->n == 0 ||
		memcmp(got->digests, p->cold.digests, got->n * sizeof(*got->digests)) == 0;
}

/*
 * Waves of requests at once, some cancelled at a random moment, in a pool of n_blocks: from
 * "everything fits" down to "one request fills it".
 */
static void test_storm(uint32_t block_tokens, uint64_t memory, uint32_t chunk, int n_requests)
{
	struct pfx_engine_opts opts = {
		.model_path = model,
		.n_threads = 1 + below(2),
		.device_memory = memory,
		.block_tokens = block_tokens,
		.chunk_tokens = chunk,
		.logits_memory = 1u << 20,
		.max_requests = 8,
	};
	struct pfx_engine *e = open_engine(&opts);
	enum { WAVE = 16 };
	struct reply got[WAVE], *wait[WAVE];
	uint32_t which[WAVE], wanted[WAVE];
	uint64_t capacity = (uint64_t)pfx_engine_info(e)->n_blocks * block_tokens;
	int bad = 0, cancelled = 0, too_long = 0, asked = 0;

	while (asked < n_requests) {
		for (int i = 0; i < WAVE; i++) {
			struct prompt *p = &prompts[which[i] = below(N_PROMPTS)];
			struct pfx_job *job;

			wanted[i] = below(REPLY_MAX + 1);
			job = token_job(below(8) == 0 ? PFX_JOB_WARM : PFX_JOB_GENERATE, p->tokens, p->n,
				wanted[i]);
			if (job->kind == PFX_JOB_WARM) {
				wanted[i] = 0;
			}
			job->no_store = below(8) == 0;
			start(e, job, &got[i]);
			wait[i] = &got[i];
			if (below(3) == 0) {
				usleep(below(400));
			}
			if (below(3) == 0) {
				pfx_engine_cancel(e, got[below((uint32_t)i + 1)].number);
			}
			if (below(40) == 0) {
				flush(e);
			}
		}
		usleep(below(2000));
		for (int i = 0; i < WAVE; i++) {
			if (below(4) == 0) {
				pfx_engine_cancel(e, got[i].number);
			}
		}
		wait_all(e, wait, WAVE);
		for (int i = 0; i < WAVE; i++) {
			const struct prompt *p = &prompts[which[i]];
			if (p->n + 1 > capacity) {
				too_long += got[i].kind == PFX_EVENT_ERROR && got[i].fault == PFX_FAULT_TOO_LONG;
				bad += got[i].kind == PFX_EVENT_DONE && got[i].finish != PFX_FINISH_CANCELLED;
			} else {
				/* A reply ends early where it fills the whole memory. */
				uint32_t most = capacity - p->n + 1 < wanted[i] ? (uint32_t)(capacity - p->n + 1)
									       : wanted[i];
				int good = as_cold(&got[i], p, most);
				if (!good) {
					printf("#   prompt of %u, %u wanted: %u came, kind %d, finish %d, %s\n",
						p->n, most, got[i].n, got[i].kind, got[i].finish, got[i].message);
				}
				bad += !good;
			}
			cancelled += got[i].kind == PFX_EVENT_DONE && got[i].finish == PFX_FINISH_CANCELLED;
			reply_free(&got[i]);
		}
		asked += WAVE;
		if (problems(e) != 0) {
			bad++;
		}
	}
	n_cancelled += cancelled;
	is_int(bad, 0, "blocks of %u, %u of them, chunk %u: %d requests, %d cancelled, %d too long",
		block_tokens, pfx_engine_info(e)->n_blocks, chunk, asked, cancelled, too_long);
	ok(balanced(e), "and then nothing is held; preempted %lld", stat_of(e, "requests.preempted"));
	flush(e);
	is_int(stat_of(e, "tiers.device.free"), stat_of(e, "tiers.device.blocks"),
		"and a flush frees every block");
	pfx_engine_close(e);
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

int main(void)
{
	rng.state = seed_from_environment();
	printf("# seed %llu\n", (unsigned long long)rng.state);
	model = tiny_model("load", rng.state);
	make_prompts();
	test_longest_prefix();
	test_once();
	test_storm(32, 64u << 20, 512, 1200);
	test_storm(16, tiny_model_kv_bytes(600), 64, 900);
	test_storm(1, tiny_model_kv_bytes(350), 7, 480);
	test_storm(32, tiny_model_kv_bytes(320), 16, 480);
	test_storm(4, tiny_model_kv_bytes(160), 1, 160);
	ok(n_cancelled >= 1000, "%d cancels in all", n_cancelled);
	remove(model);
	return tap_done();
}
