/*
 * What the tree costs, at 10^3..10^7 cached tokens: a match of 8k tokens with everything in
 * the processor's caches and with the tree flushed out of them, insert, append, split and
 * evict, and memory. Beside each stands the cost of the bare copy or compare of as many
 * tokens, measured in the same run, in the same state of the caches. An append is of one token
 * and of one block.
 *
 * bench_radix [TOKENS_MAX [PROMPT_TOKENS]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/rng.h"
#include "radix/kids.h"
#include "radix/priv.h"

#define B 32
#define SYSTEM 500u /* tokens that all prompts begin with; not a multiple of B */
#define REPEAT 21

static struct pfx_cache *cache;
static struct pfx_space *space;
static struct pfx_space *other_space; /* not flushed: what is matched there warms the code */
static uint32_t prompt_tokens;
static uint32_t *scratch; /* one prompt */

/* Prompt i: the shared head, then tokens that depend on (i, position). */
static void make_prompt(uint32_t *tokens, uint64_t i)
{
	for (uint32_t k = 0; k < prompt_tokens; k++) {
		tokens[k] = (uint32_t)(pfx_rng_mix(k < SYSTEM ? 0 : i + 1, k) % 49152);
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return v[n / 2];
}

static void flush_range(const void *p, size_t n)
{
#if defined(__x86_64__)
	for (size_t i = 0; i < n; i += 64) {
		_mm_clflush((const char *)p + i);
	}
	_mm_mfence();
#else
	(void)p;
	(void)n;
#endif
}

/* Puts the whole tree out of the processor's caches, but for the little one of other_space. */
static void flush_tree(void)
{
	const struct pfx_node *x = &space->root;

	while (x != NULL) {
		const struct pfx_node *next = pfx_kids_first(x);

		for (const struct pfx_node *y = x; next == NULL && y->parent != NULL; y = y->parent) {
			next = pfx_kids_next(y);
		}
		if (x->run != NULL) {
			flush_range(x->run, ((size_t)x->cap * (B + 1)) * sizeof(uint32_t));
		}
		flush_range(x, sizeof(*x));
		x = next;
	}
	flush_range(cache->jump.bucket, ((size_t)cache->jump.mask + 1) * sizeof(*cache->jump.bucket));
}

/* The way of a request that computes all that is missing. */
static void insert(const uint32_t *tokens, uint32_t n)
{
	struct pfx_block_copy copy;
	struct pfx_path *path;

	PFX_ASSERT(pfx_path_open(cache, space, tokens, n, NULL, &path) == 0);
	PFX_ASSERT(pfx_path_reserve(path, n, &copy) == 0);
	PFX_ASSERT(pfx_path_publish(path, tokens, n) == 0);
	pfx_path_close(path);
}

/* Four prompts, so that a match there goes the way of one in the large tree. */
static void warm_space(void)
{
	struct pfx_space *large = space;

	PFX_ASSERT(pfx_cache_space(cache, "other", 5, &other_space) == 0);
	space = other_space;
	for (uint64_t i = 0; i < 4; i++) {
		make_prompt(scratch, i);
		insert(scratch, prompt_tokens);
	}
	space = large;
}

static double bench_match(int cold, double *limit)
{
	double t[REPEAT], l[REPEAT];
	uint32_t *other = pfx_xmalloc(prompt_tokens * sizeof(*other));
	struct pfx_hit hit;

	make_prompt(scratch, 0);
	memcpy(other, scratch, prompt_tokens * sizeof(*other));
	for (int r = 0; r < REPEAT; r++) {
		int rounds = cold ? 1 : 200;
		volatile int sink;
		uint64_t t0;

		if (cold) {
			flush_range(other, prompt_tokens * sizeof(*other));
			flush_tree();
			pfx_cache_match(cache, other_space, scratch, prompt_tokens, &hit);
			sink = memcmp(scratch, scratch + 1, prompt_tokens * sizeof(*scratch) - 4);
		}
		t0 = pfx_clock_ns();
		for (int i = 0; i < rounds; i++) {
			pfx_cache_match(cache, space, scratch, prompt_tokens, &hit);
		}
		t[r] = (double)(pfx_clock_ns() - t0) / rounds;
		PFX_ASSERT(hit.tokens == prompt_tokens);
		t0 = pfx_clock_ns();
		for (int i = 0; i < rounds; i++) {
			sink = memcmp(scratch, other, prompt_tokens * sizeof(*scratch));
		}
		l[r] = (double)(pfx_clock_ns() - t0) / rounds;
		(void)sink;
	}
	pfx_free(other);
	*limit = median(l, REPEAT);
	return median(t, REPEAT);
}

/* The bare copy of a prompt into a new piece of an arena. */
static double copy_into(struct pfx_arena *arena, uint32_t **copy)
{
	uint64_t t0 = pfx_clock_ns();

	*copy = pfx_arena_alloc(arena, prompt_tokens * sizeof(**copy));
	PFX_ASSERT(*copy != NULL);
	memcpy(*copy, scratch, prompt_tokens * sizeof(**copy));
	return (double)(pfx_clock_ns() - t0);
}

/*
 * Publishing a whole new prompt. The limits are to copy its tokens: *beside into the tree's own
 * arena, right behind what was published, so that the memory is as fresh and as cold; *hot into
 * a slab that the processor has just cleared, and so still has in its caches.
 */
static double bench_insert(double *beside, double *hot)
{
	double t[REPEAT], b[REPEAT], h[REPEAT];
	struct pfx_arena fresh_memory;
	uint32_t *copies[REPEAT][2];
	static uint64_t fresh = 1ull << 40;

	pfx_arena_init(&fresh_memory, (uint64_t)cache->tier[0].pool.n * B * sizeof(uint32_t));

	for (int r = 0; r < REPEAT; r++) {
		struct pfx_block_copy copy;
		struct pfx_path *path;
		uint64_t t0;

		make_prompt(scratch, fresh++);
		PFX_ASSERT(pfx_path_open(cache, space, scratch, prompt_tokens, NULL, &path) == 0);
		PFX_ASSERT(pfx_path_reserve(path, prompt_tokens, &copy) == 0);
		t0 = pfx_clock_ns();
		PFX_ASSERT(pfx_path_publish(path, scratch, prompt_tokens) == 0);
		t[r] = (double)(pfx_clock_ns() - t0);
		pfx_path_close(path);
		b[r] = copy_into(&cache->arena, &copies[r][0]);
		h[r] = copy_into(&fresh_memory, &copies[r][1]);
	}
	for (int r = 0; r < REPEAT; r++) {
		pfx_arena_free(&cache->arena, copies[r][0], prompt_tokens * sizeof(*scratch));
		pfx_arena_free(&fresh_memory, copies[r][1], prompt_tokens * sizeof(*scratch));
	}
	pfx_arena_fini(&fresh_memory);
	*beside = median(b, REPEAT);
	*hot = median(h, REPEAT);
	return median(t, REPEAT);
}

/* A reply that grows behind a whole prompt by so many tokens at a time: reserve and publish. */
static double bench_append(uint32_t by)
{
	static uint64_t fresh = 1ull << 41;
	uint32_t each = 100, most = prompt_tokens + each * by;
	uint32_t *tokens = pfx_xmalloc(most * sizeof(*tokens));
	double t[REPEAT];

	for (int r = 0; r < REPEAT; r++) {
		struct pfx_block_copy copy;
		struct pfx_path *path;
		uint64_t t0;

		make_prompt(tokens, fresh++);
		for (uint32_t i = prompt_tokens; i < most; i++) {
			tokens[i] = i;
		}
		insert(tokens, prompt_tokens);
		PFX_ASSERT(pfx_path_open(cache, space, tokens, prompt_tokens, NULL, &path) == 0);
		t0 = pfx_clock_ns();
		for (uint32_t n = prompt_tokens + by; n <= most; n += by) {
			PFX_ASSERT(pfx_path_reserve(path, n, &copy) == 0);
			PFX_ASSERT(pfx_path_publish(path, tokens, n) == 0);
		}
		t[r] = (double)(pfx_clock_ns() - t0) / each;
		pfx_path_close(path);
	}
	pfx_free(tokens);
	return median(t, REPEAT);
}

/*
 * Opens and closes on all but the last two blocks of a prompt that is one node: walk, split,
 * pin, table, unpin. Less a second time, when nothing is left to split.
 */
static double bench_split(void)
{
	static uint64_t fresh = 1ull << 42;
	double t[REPEAT];

	for (int r = 0; r < REPEAT; r++) {
		uint32_t n = prompt_tokens - 2 * B;
		struct pfx_path *path, *again;
		uint64_t t0, t1, t2;

		make_prompt(scratch, fresh++);
		insert(scratch, prompt_tokens);
		t0 = pfx_clock_ns();
		PFX_ASSERT(pfx_path_open(cache, space, scratch, n, NULL, &path) == 0);
		t1 = pfx_clock_ns();
		PFX_ASSERT(pfx_path_open(cache, space, scratch, n, NULL, &again) == 0);
		t2 = pfx_clock_ns();
		t[r] = (double)(t1 - t0) - (double)(t2 - t1);
		pfx_path_close(again);
		pfx_path_close(path);
	}
	return median(t, REPEAT);
}

/*
 * A path without a tree takes blocks of a full pool: what a block's eviction costs, one by
 * one and (*whole) all that are left at once.
 */
static double bench_evict(double *whole)
{
	struct pfx_block_copy copy;
	struct pfx_cache_stats s;
	struct pfx_path *path, *hog;
	uint32_t n, taken = 0;
	uint64_t t0;
	double t[REPEAT];

	pfx_cache_stats(cache, &s);
	PFX_ASSERT(pfx_path_open(cache, NULL, NULL, 0, NULL, &hog) == 0);
	PFX_ASSERT(pfx_path_reserve(hog, s.tier[0].free * B, &copy) == 0);
	PFX_ASSERT(pfx_path_open(cache, NULL, NULL, 0, NULL, &path) == 0);
	n = s.tier[0].cached / 2 / REPEAT < 256 ? s.tier[0].cached / 2 / REPEAT : 256;
	for (int r = 0; r < REPEAT; r++) {
		t0 = pfx_clock_ns();
		for (uint32_t i = 0; i < n; i++) {
			PFX_ASSERT(pfx_path_reserve(path, ++taken * B, &copy) == 0);
		}
		t[r] = (double)(pfx_clock_ns() - t0) / n;
	}
	pfx_path_close(path);
	PFX_ASSERT(pfx_path_open(cache, NULL, NULL, 0, NULL, &path) == 0);
	pfx_cache_stats(cache, &s);
	t0 = pfx_clock_ns();
	PFX_ASSERT(pfx_path_reserve(path, (s.tier[0].free + s.tier[0].cached) * B, &copy) == 0);
	*whole = (double)(pfx_clock_ns() - t0) / (s.tier[0].free + s.tier[0].cached);
	pfx_path_close(path);
	pfx_path_close(hog);
	return median(t, REPEAT);
}

static void bench(uint64_t tokens)
{
	struct pfx_cache_opts opts = { .block_tokens = B, .n_marks = 64 };
	uint64_t n_prompts, held;
	struct pfx_cache_stats s;
	double hot, hot_limit, cold, cold_limit, add, add_beside, add_hot, append, block, split, one, all;

	/* Room for the prompts that the benches add. */
	n_prompts = tokens / prompt_tokens > 0 ? tokens / prompt_tokens : 1;
	opts.n_blocks = (uint32_t)((n_prompts + 5 * REPEAT + 8) * (prompt_tokens / B + 2) + 128);
	PFX_ASSERT(pfx_cache_open(&cache, &opts) == 0);
	PFX_ASSERT(pfx_cache_space(cache, "bench", 5, &space) == 0);
	for (uint64_t i = 0; i < n_prompts; i++) {
		make_prompt(scratch, i);
		insert(scratch, prompt_tokens);
	}
	pfx_cache_stats(cache, &s);
	held = cache->arena.bytes;
	warm_space();
	hot = bench_match(0, &hot_limit);
	cold = bench_match(1, &cold_limit);
	add = bench_insert(&add_beside, &add_hot);
	append = bench_append(1);
	block = bench_append(B);
	split = bench_split();
	one = bench_evict(&all);
	printf("%9llu %6llu %6.2f %6.2f | %8.0f %7.3f %8.0f | %8.0f %7.3f %8.0f | %8.0f %8.0f %8.0f | "
	       "%6.0f %6.0f | %6.0f | %5.0f %5.0f\n",
		(unsigned long long)s.tokens, (unsigned long long)s.nodes,
		(double)s.index_bytes / (double)s.tokens, (double)held / (double)s.tokens, hot,
		hot / prompt_tokens, hot_limit, cold, cold / prompt_tokens, cold_limit, add, add_beside,
		add_hot, append, block, split, one, all);
	fflush(stdout);
	PFX_ASSERT(pfx_cache_check(cache, NULL, NULL) == 0);
	pfx_cache_close(cache);
}

int main(int argc, char **argv)
{
	uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 0) : 10000000;
	uint32_t longest = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 8192;

	scratch = pfx_xmalloc(longest * sizeof(*scratch));
	printf("prompts of %u tokens, %u of them shared by all; ns, medians; block %d\n", longest, SYSTEM,
		B);
	printf("%9s %6s %6s %6s | %8s %7s %8s | %8s %7s %8s | %8s %8s %8s | %6s %6s | %6s | %5s %5s\n",
		"tokens", "nodes", "B/tok", "held", "hot", "/token", "memcmp", "cold", "/token", "memcmp",
		"insert", "beside", "hot copy", "append", "block", "split", "evict", "bulk");
	for (uint64_t n = 1000; n <= most; n *= 10) {
		prompt_tokens = n < longest ? (uint32_t)n : longest;
		bench(n);
	}
	pfx_free(scratch);
	return 0;
}
