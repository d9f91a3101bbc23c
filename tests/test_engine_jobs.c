/* Each kind of job and each way in which one ends, on a tiny model. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "tests/engine_util.h"
#include "tests/tap.h"
#include "tests/test_models.h"

static struct pfx_engine *e;
static uint32_t tokens[400];

static void expect_fault(struct pfx_job *job, enum pfx_fault fault, const char *words,
	const char *what)
{
	struct reply r;

	run(e, job, &r);
	ok(r.kind == PFX_EVENT_ERROR && r.fault == fault && strstr(r.message, words) != NULL,
		"%s: %s", what, r.kind == PFX_EVENT_ERROR ? r.message : "no error");
	reply_free(&r);
}

static void test_refusals(void)
{
	uint32_t context = pfx_engine_info(e)->context, *many = calloc(context, sizeof(*many));
	struct pfx_job *job;

	expect_fault(token_job(PFX_JOB_GENERATE, tokens, 0, 1), PFX_FAULT_BAD_REQUEST, "empty",
		"no tokens");
	expect_fault(text_job(PFX_JOB_GENERATE, "", 1), PFX_FAULT_BAD_REQUEST, "empty", "no text");
	expect_fault(pfx_job_new(PFX_JOB_GENERATE), PFX_FAULT_BAD_REQUEST, "prompt", "no prompt");
	expect_fault(token_job(PFX_JOB_GENERATE, many, context, 1), PFX_FAULT_TOO_LONG, "context",
		"as long as the context");
	many[1] = tiny_model_n_vocab();
	expect_fault(token_job(PFX_JOB_GENERATE, many, 3, 1), PFX_FAULT_BAD_REQUEST, "index 1",
		"an id outside the vocabulary");
	job = token_job(PFX_JOB_SCORE, tokens, 10, 0);
	job->from = 11;
	expect_fault(job, PFX_FAULT_BAD_REQUEST, "from", "score from behind the end");
	job = token_job(PFX_JOB_GENERATE, tokens, 300, 100000);
	job->deadline_ms = 1;
	expect_fault(job, PFX_FAULT_DEADLINE, "1 ms", "a deadline that passes");
	is_int(pfx_engine_cancel(e, 1u << 30), -2, "cancelling what is not there");
	free(many);
}

static void test_lengths(void)
{
	struct reply r, again;
	long long steps;

	flush(e);
	run(e, token_job(PFX_JOB_GENERATE, tokens, 50, 0), &r);
	ok(r.n == 0 && r.finish == PFX_FINISH_LENGTH && r.usage.computed_tokens == 50,
		"max_tokens 0 computes the prompt and ends with length");
	reply_free(&r);
	steps = stat_of(e, "steps.count");
	run(e, token_job(PFX_JOB_GENERATE, tokens, 50, 1), &r);
	ok(r.n == 1 && r.usage.cached_device == 50 && r.usage.computed_tokens == 0 &&
			r.miss == PFX_MISS_NONE,
		"the same again is cached whole");
	is_int(stat_of(e, "steps.count"), steps, "and runs no forward pass");
	reply_free(&r);
	run(e, token_job(PFX_JOB_GENERATE, tokens, 30, 3), &r);
	ok(r.usage.cached_device == 29 && r.usage.computed_tokens == 1,
		"where no logits were kept the last token runs again");
	run(e, token_job(PFX_JOB_GENERATE, tokens, 30, 3), &again);
	ok(again.usage.cached_device == 30 && memcmp(r.digests, again.digests, 24) == 0,
		"and then its logits are kept, with the same bits");
	reply_free(&r);
	reply_free(&again);
	run(e, token_job(PFX_JOB_GENERATE, tokens, 300, 100000), &r);
	ok(r.finish == PFX_FINISH_LENGTH && r.n + 300 == pfx_engine_info(e)->context,
		"a reply ends at the context (%u)", r.n);
	reply_free(&r);
}

static void test_store_and_salt(void)
{
	struct pfx_job *job;
	struct reply r;
	long long free_blocks;

	flush(e);
	free_blocks = stat_of(e, "tiers.device.free");
	job = token_job(PFX_JOB_GENERATE, tokens, 100, 5);
	job->no_store = 1;
	run(e, job, &r);
	ok(r.n == 5 && r.usage.computed_tokens == 100, "store: false answers");
	is_int(stat_of(e, "tiers.device.free"), free_blocks, "and leaves nothing behind");
	reply_free(&r);
	run(e, token_job(PFX_JOB_WARM, tokens, 100, 0), &r);
	is_int(r.usage.computed_tokens, 100, "nor anything to match");
	reply_free(&r);
	job = token_job(PFX_JOB_GENERATE, tokens, 120, 2);
	job->no_store = 1;
	run(e, job, &r);
	is_int(r.usage.cached_device, 100, "store: false reads the cache");
	reply_free(&r);
	job = token_job(PFX_JOB_GENERATE, tokens, 120, 2);
	job->salt = pfx_strdup("other");
	job->salt_len = 5;
	run(e, job, &r);
	ok(r.usage.cached_device == 0 && r.miss == PFX_MISS_NEVER_SEEN,
		"another salt shares nothing, and does not say so");
	reply_free(&r);
	tokens[60] ^= 1;
	run(e, token_job(PFX_JOB_GENERATE, tokens, 100, 1), &r);
	ok(r.usage.cached_device == 60 && r.miss == PFX_MISS_DIVERGED && r.miss_at_token == 60,
		"a changed token is where it missed");
	reply_free(&r);
	tokens[60] ^= 1;
}

/* A client may name any number of namespaces; those that hold nothing any more are forgotten. */
static void test_many_salts(void)
{
	struct pfx_job *job;
	struct reply r;
	char salt[16];

	flush(e);
	for (int i = 0; i < 2000; i++) {
		snprintf(salt, sizeof(salt), "salt %d", i);
		job = token_job(PFX_JOB_WARM, tokens, 2, 0);
		job->salt = pfx_strdup(salt);
		job->salt_len = strlen(salt);
		job->no_store = i % 4 != 0;
		run(e, job, &r);
		reply_free(&r);
	}
	ok(stat_of(e, "cache.spaces") >= 500, "namespaces that hold something stay");
	flush(e);
	for (int i = 0; i < 2000; i++) {
		snprintf(salt, sizeof(salt), "more %d", i);
		job = token_job(PFX_JOB_WARM, tokens, 2, 0);
		job->salt = pfx_strdup(salt);
		job->salt_len = strlen(salt);
		job->no_store = 1;
		run(e, job, &r);
		reply_free(&r);
	}
	ok(stat_of(e, "cache.spaces") < 2000, "empty ones go (%lld are left of 4000)",
		stat_of(e, "cache.spaces"));
}

static void test_score(void)
{
	struct pfx_job *job;
	struct reply gen, r;
	uint32_t all[64];
	double worst = 0;

	flush(e);
	job = token_job(PFX_JOB_GENERATE, tokens, 40, 20);
	job->logprobs = 0;
	run(e, job, &gen);
	memcpy(all, tokens, sizeof(all));
	memcpy(all + 40, gen.tokens, 20 * sizeof(*all));
	job = token_job(PFX_JOB_SCORE, all, 60, 0);
	job->from = 40;
	run(e, job, &r);
	ok(r.finish == PFX_FINISH_STOP && r.n_score == 20, "score gives an entry a position");
	is_int(r.usage.cached_device, 39, "reuses what lies before");
	for (int i = 0; i < 20; i++) {
		worst = fmax(worst, fabs((double)(r.score[i] - gen.logprobs[i])));
	}
	ok(worst == 0, "and the very log-probabilities that generate gave");
	reply_free(&r);
	job = token_job(PFX_JOB_SCORE, all, 60, 0);
	job->from = 60;
	run(e, job, &r);
	ok(r.kind == PFX_EVENT_DONE && r.n_score == 0, "from the end: nothing");
	reply_free(&r);
	reply_free(&gen);
}

static void test_text(void)
{
	struct reply plain, r, ids;
	struct pfx_job *job;
	char stop[8] = { 0 }, *at;
	size_t n;

	run(e, text_job(PFX_JOB_TOKENIZE, "Hello, w\xc3\xb6rld", 0), &ids);
	ok(ids.kind == PFX_EVENT_TOKENS && ids.n > 0, "tokenize");
	job = pfx_job_new(PFX_JOB_DETOKENIZE);
	job->tokens = pfx_memdup(ids.tokens, ids.n * sizeof(uint32_t));
	job->n_tokens = ids.n;
	run(e, job, &r);
	ok(r.kind == PFX_EVENT_TEXT && strcmp(r.text, "Hello, w\xc3\xb6rld") == 0, "detokenize");
	reply_free(&r);
	reply_free(&ids);

	job = text_job(PFX_JOB_GENERATE, "Once upon a time", 60);
	job->ignore_eos = 1;
	job->temperature = 1;
	job->has_seed = 1;
	job->seed = 42;
	run(e, job, &plain);
	is_int(plain.n, 60, "a text prompt is answered");
	for (n = 0; n + 1 < plain.text_len && ((unsigned char)plain.text[n + plain.text_len / 2] & 0xc0) == 0x80;
		n++) {
	}
	snprintf(stop, sizeof(stop), "%.3s", plain.text + plain.text_len / 2 + n);
	at = strstr(plain.text, stop);
	job = text_job(PFX_JOB_GENERATE, "Once upon a time", 60);
	job->ignore_eos = 1;
	job->temperature = 1;
	job->has_seed = 1;
	job->seed = 42;
	job->n_stop = 1;
	job->stop = pfx_calloc(1, sizeof(char *));
	job->stop_len = pfx_calloc(1, sizeof(size_t));
	job->stop[0] = pfx_strdup(stop);
	job->stop_len[0] = strlen(stop);
	run(e, job, &r);
	ok(r.finish == PFX_FINISH_STOP && r.n <= plain.n &&
			r.text_len == (size_t)(at - plain.text) && strncmp(r.text, plain.text, r.text_len) == 0,
		"a stop string ends the reply before itself, across token borders");
	is_int(memcmp(r.tokens, plain.tokens, r.n * sizeof(uint32_t)), 0, "the seed repeats the reply");
	reply_free(&r);
	reply_free(&plain);
}

/* Megabytes of text hold up nobody's short prompt, and are refused unread where they must be. */
static void test_long_text(void)
{
	enum { BYTES = 4 << 20 };
	char *text = pfx_malloc(BYTES + 1);
	struct reply slow, quick;
	struct pfx_job *job;

	for (int i = 0; i < BYTES; i++) {
		text[i] = "etaoin shrdlu"[(i * 7 + i / 13) % 13];
	}
	text[BYTES] = 0;
	start(e, text_job(PFX_JOB_TOKENIZE, text, 0), &slow);
	run(e, text_job(PFX_JOB_TOKENIZE, "short", 0), &quick);
	ok(quick.ended && !slow.ended, "a short text passes a long one");
	wait_all(e, (struct reply *[]){ &slow }, 1);
	ok(slow.kind == PFX_EVENT_TOKENS && slow.n > 1000, "which is tokenised as well (%u ids)", slow.n);
	reply_free(&slow);
	reply_free(&quick);
	job = text_job(PFX_JOB_GENERATE, text, 1);
	expect_fault(job, PFX_FAULT_TOO_LONG, "at least", "a text beyond any context");
	pfx_free(text);
}

static void test_chat(void)
{
	struct pfx_job *job = pfx_job_new(PFX_JOB_RENDER);
	struct reply r;

	job->prompt = PFX_PROMPT_CHAT;
	job->messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hi <|im_end|>");
	run(e, job, &r);
	ok(r.kind == PFX_EVENT_TEXT && strstr(r.text, "<|im_start|>user\nHi <|im_end|>") != NULL,
		"render: %s", r.text);
	reply_free(&r);
	job = pfx_job_new(PFX_JOB_TOKENIZE);
	job->prompt = PFX_PROMPT_CHAT;
	job->messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "<|im_end|>");
	run(e, job, &r);
	{
		struct reply plain;
		uint32_t ends = 0;
		struct pfx_job *special = text_job(PFX_JOB_TOKENIZE, "<|im_end|>", 0);

		special->text_special = 1;
		run(e, special, &plain);
		is_int(plain.n, 1, "a control token is read where it is asked for");
		for (uint32_t i = 0; i < r.n; i++) {
			ends += r.tokens[i] == plain.tokens[0];
		}
		is_int(ends, 1, "and a client's text never becomes one");
		reply_free(&plain);
	}
	reply_free(&r);
	job = pfx_job_new(PFX_JOB_GENERATE);
	job->prompt = PFX_PROMPT_CHAT;
	job->messages = json_integer(3);
	job->max_tokens = 1;
	expect_fault(job, PFX_FAULT_BAD_REQUEST, "messages", "messages that the template cannot take");
}

static void test_cancel_and_progress(void)
{
	struct pfx_job *job = token_job(PFX_JOB_GENERATE, tokens, 300, 100000);
	struct reply r;

	flush(e);
	start(e, job, &r);
	is_int(pfx_engine_cancel(e, r.number), 0, "cancel");
	wait_all(e, (struct reply *[]){ &r }, 1);
	ok(r.kind == PFX_EVENT_DONE && r.finish == PFX_FINISH_CANCELLED, "ends as cancelled");
	reply_free(&r);
	flush(e);
	job = token_job(PFX_JOB_GENERATE, tokens, 300, 1);
	job->progress = 1;
	run(e, job, &r);
	ok(r.n_prefill >= 300 / 64, "progress is told a chunk (%u)", r.n_prefill);
	reply_free(&r);
}

static void test_overload_and_drain(const char *model)
{
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1, .max_requests = 1,
		.queue_max = 2, .device_memory = 8u << 20 };
	struct pfx_engine *full = open_engine(&opts);
	enum { N = 12 };
	struct reply r[N], *wait[N];
	int refused = 0, done = 0;

	for (int i = 0; i < N; i++) {
		start(full, token_job(PFX_JOB_GENERATE, tokens + i, 300, 50), &r[i]);
		wait[i] = &r[i];
	}
	wait_all(full, wait, N);
	for (int i = 0; i < N; i++) {
		refused += r[i].kind == PFX_EVENT_ERROR && r[i].fault == PFX_FAULT_OVERLOADED;
		done += r[i].kind == PFX_EVENT_DONE;
		reply_free(&r[i]);
	}
	ok(refused > 0 && done >= 2 && refused + done == N, "a full queue refuses (%d), the rest is done",
		refused);
	start(full, token_job(PFX_JOB_GENERATE, tokens, 20, 200), &r[0]);
	pfx_engine_drain(full);
	start(full, token_job(PFX_JOB_GENERATE, tokens, 20, 2), &r[1]);
	wait_all(full, wait, 2);
	ok(r[0].kind == PFX_EVENT_DONE && r[0].n == 200, "a drain lets what runs go on");
	ok(r[1].kind == PFX_EVENT_ERROR && r[1].fault == PFX_FAULT_SHUTTING_DOWN, "and takes nothing new");
	reply_free(&r[0]);
	reply_free(&r[1]);
	/* Closing with work under way must not hang or leak. */
	pfx_engine_close(full);
	opts.queue_max = 100;
	full = open_engine(&opts);
	for (int i = 0; i < N; i++) {
		start(full, token_job(PFX_JOB_GENERATE, tokens, 300, 100000), &r[i]);
	}
	/* main looks afterwards whether anything of them is left. */
	pfx_engine_close(full);
}

static void tokenize(struct pfx_engine *of, const char *text, const char *salt, struct reply *r)
{
	struct pfx_job *job = text_job(PFX_JOB_TOKENIZE, text, 0);

	job->salt = pfx_strdup(salt);
	job->salt_len = strlen(salt);
	run(of, job, r);
}

/* Texts come from the cache when they come again: the same ids, apart by salt, gone by flush. */
static void test_text_cache(const char *model)
{
	static const char text[] = "What was tokenised once for a client is not tokenised again for "
		"the same client, as long as there is room to keep it.";
	struct pfx_engine_opts opts = { .model_path = model, .n_threads = 1,
		.device_memory = 1u << 20, .text_memory = 1u << 16 };
	struct pfx_engine *kept = open_engine(&opts);
	struct reply plain, r[3];

	tokenize(e, text, "", &plain);
	for (int i = 0; i < 3; i++) {
		tokenize(kept, text, i < 2 ? "" : "salt", &r[i]);
		ok(r[i].n == plain.n && memcmp(r[i].tokens, plain.tokens, plain.n * 4) == 0,
			"time %d: the ids of an engine that keeps none", i);
		reply_free(&r[i]);
	}
	is_int(stat_of(e, "text_cache.misses"), 0, "without --text-cache nothing is looked up");
	is_int(stat_of(kept, "text_cache.hits"), 1, "the same text is found,");
	is_int(stat_of(kept, "text_cache.pieces"), 2, "but not with another salt");
	flush(kept);
	is_int(stat_of(kept, "text_cache.pieces"), 0, "flush forgets texts");
	is_int(stat_of(kept, "text_cache.bytes"), 0, "and all of them");
	reply_free(&plain);
	pfx_engine_close(kept);
}

int main(void)
{
	struct pfx_rng rng = { seed_from_environment() };
	struct pfx_engine_opts opts = { .n_threads = 1, .device_memory = 32u << 20, .chunk_tokens = 64,
		.logits_memory = 4u << 20 };
	uint64_t live;

	printf("# seed %llu\n", (unsigned long long)rng.state);
	opts.model_path = tiny_model("jobs", rng.state);
	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		tokens[i] = (uint32_t)pfx_rng_below(&rng, tiny_model_n_vocab());
	}
	live = pfx_alloc_live();
	e = open_engine(&opts);
	test_refusals();
	test_lengths();
	test_store_and_salt();
	test_many_salts();
	test_score();
	test_text();
	test_long_text();
	test_chat();
	test_cancel_and_progress();
	test_text_cache(opts.model_path);
	is_int(problems(e), 0, "check");
	pfx_engine_close(e);
	test_overload_and_drain(opts.model_path);
	is_int((long long)pfx_alloc_live(), (long long)live, "nothing is left allocated");
	remove(opts.model_path);
	return tap_done();
}
