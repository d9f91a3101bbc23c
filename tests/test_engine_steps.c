/*
 * What a step of the engine does beside its work: it takes no memory from the system and gives
 * none back, and its clock says where the time went.
 *
 * Requests are compared that differ in nothing but the number of their steps: both may allocate
 * what a request needs, but the longer one no more than the shorter.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/engine_util.h"
#include "tests/tap.h"
#include "tests/test_models.h"

static _Atomic long long calls; /* of the allocator, by all threads but this program's first */
static __thread int uncounted;

/* A sanitizer has an allocator of its own, which these would stand in the way of. */
#if defined(__has_feature) /* clang's way to say it; the others are gcc's */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
	__has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__GLIBC__) && !defined(SANITIZED) && !defined(__SANITIZE_ADDRESS__) && \
	!defined(__SANITIZE_THREAD__)
#define COUNTS 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *p);

static void count(void)
{
	if (!uncounted) {
		atomic_fetch_add(&calls, 1);
	}
}

void *malloc(size_t size)
{
	count();
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	count();
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	count();
	return __libc_realloc(p, size);
}

int posix_memalign(void **out, size_t align, size_t size)
{
	count();
	*out = __libc_memalign(align, size);
	return *out != NULL ? 0 : 12;
}

void free(void *p)
{
	if (p != NULL) {
		count();
	}
	__libc_free(p);
}
#else
#define COUNTS 0
#endif

#define N_MAX 4u

static struct pfx_engine_opts opts = { .n_threads = 2, .chunk_tokens = 64,
	.logits_memory = 4u << 20 };
static struct pfx_engine *e;
static uint32_t tokens[900];

/*
 * Calls of the allocator in the lives of n like requests at once, all but the last token of whose
 * prompts is cached when warm, and in a look at the counters behind them.
 */
static long long calls_of(enum pfx_job_kind kind, uint32_t n_prompt, uint32_t n_reply, uint32_t n,
	int warm)
{
	struct reply r[N_MAX], *all[N_MAX];
	struct pfx_job *job;
	long long before;

	flush(e);
	if (warm) {
		run(e, token_job(PFX_JOB_WARM, tokens, n_prompt - 1, 0), &r[0]);
		reply_free(&r[0]);
	}
	/* Answered by the engine's thread once it is done with all that came before. */
	stat_of(e, "steps.count");
	before = atomic_load(&calls);
	for (uint32_t i = 0; i < n; i++) {
		job = token_job(kind, tokens, n_prompt, n_reply);
		job->logprobs = kind == PFX_JOB_GENERATE ? 5 : -1;
		job->progress = 1;
		all[i] = &r[i];
		start(e, job, &r[i]);
	}
	wait_all(e, all, n);
	for (uint32_t i = 0; i < n; i++) {
		reply_free(&r[i]);
	}
	stat_of(e, "steps.count");
	return atomic_load(&calls) - before;
}

static void test_allocations(void)
{
	if (!COUNTS) {
		skip(4, "the allocator is another one's");
		return;
	}
	/* Arrays grow to what they have to be. */
	calls_of(PFX_JOB_GENERATE, 600, 300, N_MAX, 1);
	is_int(calls_of(PFX_JOB_GENERATE, 40, 300, 1, 0) - calls_of(PFX_JOB_GENERATE, 40, 20, 1, 0), 0,
		"280 decode steps allocate nothing");
	is_int(calls_of(PFX_JOB_GENERATE, 600, 210, N_MAX, 1) -
		calls_of(PFX_JOB_GENERATE, 600, 10, N_MAX, 1), 0,
		"nor do 200 of several requests behind one prefix");
	is_int(calls_of(PFX_JOB_WARM, 640, 0, 1, 0) - calls_of(PFX_JOB_WARM, 64, 0, 1, 0), 0,
		"9 prefill steps allocate nothing");
	ok(calls_of(PFX_JOB_GENERATE, 600, 200, 1, 0) > 0, "what requests allocate is seen");
}

/* Sum of a number over all phases of a kind of steps. */
static double sum_of(const json_t *times, const char *number)
{
	const char *name;
	json_t *phase;
	double sum = 0;

	json_object_foreach(json_object_get(times, "phases"), name, phase) {
		sum += json_number_value(json_object_get(phase, number));
	}
	return sum;
}

static double phase_of(const json_t *times, const char *phase)
{
	return json_number_value(json_object_get(json_object_get(json_object_get(times, "phases"), phase),
		"ms"));
}

static void test_profile(void)
{
	static const char *const working[] = { "turn", "batch", "embed", "norm", "product", "rope_kv",
		"attention", "gate", "head", "publish", "sample", "reply" };
	struct reply r, stats;
	const json_t *decode, *prefill;
	uint64_t start_ns = pfx_clock_ns();
	double wall_ms;

	pfx_engine_close(e);
	e = open_engine(&opts);
	run(e, token_job(PFX_JOB_GENERATE, tokens, 100, 21), &r);
	reply_free(&r);
	run(e, pfx_job_new(PFX_JOB_STATS), &stats);
	wall_ms = pfx_ns_to_ms(pfx_clock_ns() - start_ns);
	decode = json_object_get(json_object_get(stats.report, "profile"), "decode");
	prefill = json_object_get(json_object_get(stats.report, "profile"), "prefill");
	is_int(json_integer_value(json_object_get(decode, "steps")), 20, "20 steps of decode");
	is_int(json_integer_value(json_object_get(decode, "rows")), 20, "of a row each");
	is_int(json_integer_value(json_object_get(prefill, "steps")), 2, "two of a prompt");
	is_int(json_integer_value(json_object_get(prefill, "rows")), 100, "of 100");
	for (size_t i = 0; i < sizeof(working) / sizeof(working[0]); i++) {
		ok(phase_of(decode, working[i]) > 0, "%s took time", working[i]);
	}
	ok(sum_of(decode, "ms") + sum_of(prefill, "ms") < wall_ms, "all phases together no more than "
		"has passed");
	ok(sum_of(decode, "waited_ms") <= sum_of(decode, "ms"), "waiting is a part of it");
	reply_free(&stats);
}

int main(void)
{
	struct pfx_rng rng = { seed_from_environment() };

	uncounted = 1;
	printf("# seed %llu\n", (unsigned long long)rng.state);
	opts.device_memory = tiny_model_kv_bytes(8192);
	opts.model_path = tiny_model("steps", rng.state);
	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		tokens[i] = (uint32_t)pfx_rng_below(&rng, tiny_model_n_vocab());
	}
	e = open_engine(&opts);
	test_allocations();
	test_profile();
	pfx_engine_close(e);
	remove(opts.model_path);
	return tap_done();
}
