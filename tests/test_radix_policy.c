/*
 * Policies of eviction. Random paths under each, every invariant checked after each step, with
 * allocations that fail too (what lru evicts is compared block by block in test_radix_random);
 * then what `default` is for: it learns which blocks do not come back, and where there is
 * nothing to be learned, or what was learned turns out wrong, it is no worse than leaf LRU.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "radix/priv.h"
#include "tests/tap.h"

#define PATHS 6
#define LEN 64
#define STEPS 12000

static struct pfx_rng rng;
static struct pfx_cache *cache;
static struct pfx_space *spaces[2];
static int problems;

static const char *const names[] = { "lru", "fifo", "default" };

struct held {
	struct pfx_path *path;
	uint32_t tokens[LEN];
	uint32_t n;
};

static void say(void *arg, const char *problem)
{
	(void)arg;
	if (problems < 10) {
		printf("#   %s\n", problem);
	}
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)pfx_rng_below(&rng, n);
}

static void open_one(struct held *h)
{
	h->n = below(LEN / 2) + 1;
	for (uint32_t i = 0; i < h->n; i++) {
		h->tokens[i] = below(8) == 0 ? below(3) : i % 5;
	}
	if (pfx_path_open(cache, spaces[below(2)], h->tokens, h->n, NULL, &h->path) < 0) {
		h->path = NULL;
	}
}

/* The prompt at first, a bit of reply later. */
static void go_on(struct held *h)
{
	struct pfx_block_copy copy;
	uint32_t len = pfx_path_len(h->path);

	while (len >= h->n && h->n < LEN && below(4) > 0) {
		h->tokens[h->n++] = below(3);
	}
	if (below(8) == 0) {
		pfx_path_follow(h->path, h->tokens, h->n);
	}
	if (pfx_path_reserve(h->path, h->n, &copy) == 0) {
		pfx_path_publish(h->path, h->tokens, h->n);
	}
}

static void step(struct held *paths)
{
	struct held *h = &paths[below(PATHS)];
	struct pfx_flushed flushed;
	uint32_t what = below(64);

	if (what == 0) {
		pfx_cache_flush(cache, below(2) ? spaces[below(2)] : NULL, PFX_TIER_ALL, &flushed);
	} else if (what < 4) {
		pfx_cache_press(cache, below(40));
	} else if (h->path == NULL) {
		open_one(h);
	} else if (what < 24) {
		pfx_path_close(h->path);
		h->path = NULL;
	} else {
		go_on(h);
	}
}

static void test_random(enum pfx_policy policy, uint32_t fail_one_in)
{
	struct pfx_cache_opts opts = { .block_tokens = 1u << below(4), .n_blocks = 40, .n_marks = 4,
		.policy = policy };
	struct held paths[PATHS] = { 0 };
	uint64_t live = pfx_alloc_live();
	struct pfx_cache_stats s;

	problems = 0;
	if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &spaces[0]) < 0 ||
		pfx_cache_space(cache, "b", 1, &spaces[1]) < 0) {
		abort();
	}
	for (int i = 0; i < STEPS && problems == 0; i++) {
		pfx_alloc_fail(pfx_rng_next(&rng), fail_one_in);
		step(paths);
		pfx_alloc_fail(0, 0);
		problems += pfx_cache_check(cache, say, NULL);
	}
	pfx_cache_stats(cache, &s);
	is_int(problems, 0, "%s, blocks of %u: every check is clean", names[policy], opts.block_tokens);
	ok(s.evicted_blocks > STEPS / 100, "%llu blocks were evicted",
		(unsigned long long)s.evicted_blocks);
	for (int i = 0; i < PATHS; i++) {
		pfx_path_close(paths[i].path);
	}
	pfx_cache_press(cache, 0);
	pfx_cache_stats(cache, &s);
	is_int(s.tier[0].free, s.tier[0].blocks, "pressed to nothing, all is free");
	pfx_cache_close(cache);
	is_int(pfx_alloc_live(), live, "all memory is given back");
}

static void test_no_memory(enum pfx_policy policy)
{
	struct pfx_cache_opts opts = { .block_tokens = 4, .n_blocks = 8, .policy = policy };
	uint64_t live = pfx_alloc_live();
	int opened = 0, refused = 0;
	struct pfx_cache *c;

	for (uint64_t i = 0; i < 400; i++) {
		int rc;

		pfx_alloc_fail(pfx_rng_next(&rng), 20);
		rc = pfx_cache_open(&c, &opts);
		pfx_alloc_fail(0, 0);
		opened += rc == 0;
		refused += rc == -ENOMEM;
		if (rc == 0) {
			pfx_cache_close(c);
		}
	}
	ok(opened > 0 && refused > 0, "%s: opened %d times, no memory %d times", names[policy],
		opened, refused);
	is_int(pfx_alloc_live(), live, "nothing is left behind");
}

/* ---- what default learns ---- */

#define DOCS 60
#define PROMPT 8 /* blocks of one token */

/* One request, whose prompt is PROMPT tokens of that number. Returns tokens hit. */
static uint32_t request(uint32_t number, uint32_t reply)
{
	uint32_t tokens[PROMPT];
	struct pfx_block_copy copy;
	struct pfx_path *path;
	struct pfx_hit hit;

	for (uint32_t i = 0; i < PROMPT; i++) {
		tokens[i] = number;
	}
	if (pfx_path_open(cache, spaces[0], tokens, PROMPT, &hit, &path) < 0 ||
		pfx_path_reserve(path, PROMPT, &copy) < 0 ||
		pfx_path_publish(path, tokens, PROMPT) < 0) {
		abort();
	}
	pfx_path_reply(path, reply);
	pfx_path_close(path);
	return hit.tokens;
}

enum load {
	LOAD_DOCS,  /* documents asked about at random, among prompts that never come back; the
	             * replies to these are long */
	LOAD_EVEN,  /* the same, but replies are of any length */
	LOAD_TURNS, /* the same, but what long replies mean changes to the opposite, and back */
	LOAD_LOOP,  /* more documents than there is room for, one after the other */
};

static const char *const loads[] = { "a sign to see", "no sign", "a sign that turns", "a loop" };

/* Hits in percent of all blocks. */
static double run(enum load load, enum pfx_policy policy)
{
	struct pfx_cache_opts opts = { .block_tokens = 1, .n_blocks = 30 * PROMPT, .policy = policy };
	struct pfx_rng local = { .state = 42 };
	uint64_t hits = 0, n = 40000;

	if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &spaces[0]) < 0) {
		abort();
	}
	for (uint64_t i = 0; i < n; i++) {
		int is_doc = pfx_rng_below(&local, 3) == 0;
		uint32_t number = is_doc ? (uint32_t)pfx_rng_below(&local, DOCS) : DOCS + (uint32_t)i;
		int sign = is_doc;

		if (load == LOAD_EVEN) {
			sign = pfx_rng_below(&local, 2) == 0;
		} else if (load == LOAD_TURNS) {
			sign ^= (int)(i / 4000 % 2);
		} else if (load == LOAD_LOOP) {
			number = (uint32_t)(i % DOCS);
		}
		hits += request(number, sign ? 5 : 500);
	}
	pfx_cache_close(cache);
	return 100.0 * (double)hits / (double)(n * PROMPT);
}

static void test_learning(void)
{
	for (int load = LOAD_DOCS; load <= LOAD_LOOP; load++) {
		double lru = run((enum load)load, PFX_POLICY_LRU);
		double own = run((enum load)load, PFX_POLICY_DEFAULT);

		ok(own > lru - 0.5, "%s: default %.2f %%, leaf lru %.2f %%", loads[load], own, lru);
		if (load == LOAD_DOCS) {
			ok(own > lru + 5, "what is worth keeping is kept");
		}
	}
}

/* ---- conversations that end ---- */

enum { SESSION_NONE, SESSION_A, SESSION_B };

static struct pfx_hit found; /* by the latest hold */

/* One request of a text, a byte being a token. */
static struct pfx_path *hold(const char *text, int session)
{
	uint32_t tokens[LEN], n = (uint32_t)strlen(text);
	struct pfx_block_copy copy;
	struct pfx_path *path;

	for (uint32_t i = 0; i < n; i++) {
		tokens[i] = (unsigned char)text[i];
	}
	if (pfx_path_open(cache, spaces[0], tokens, n, &found, &path) < 0) {
		abort();
	}
	if (session != SESSION_NONE) {
		pfx_path_session(path, (uint64_t)session);
	}
	if (pfx_path_reserve(path, n, &copy) < 0 || pfx_path_publish(path, tokens, n) < 0) {
		abort();
	}
	return path;
}

static void talk(const char *text, int session, int last)
{
	struct pfx_path *path = hold(text, session);

	if (last) {
		pfx_path_last_turn(path);
	}
	pfx_path_close(path);
	problems += pfx_cache_check(cache, say, NULL);
}

/* After n blocks went: are exactly so many tokens of the text left? */
static void is_left(const char *text, uint32_t want, const char *what)
{
	uint32_t tokens[LEN], n = (uint32_t)strlen(text);
	struct pfx_hit hit;

	for (uint32_t i = 0; i < n; i++) {
		tokens[i] = (unsigned char)text[i];
	}
	pfx_cache_match(cache, spaces[0], tokens, n, &hit);
	is_int(hit.tokens, want, "%s: of %s", what, text);
}

static void let_go(uint32_t n)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(cache, &s);
	pfx_cache_press(cache, s.tier[PFX_TIER_DEVICE].cached - n);
	problems += pfx_cache_check(cache, say, NULL);
}

static void end_told(void)
{
	talk("SSSSSSSSbbbb", SESSION_B, 0);
	talk("SSSSSSSSaaaa", SESSION_A, 0);
	talk("SSSSSSSSaaaaxxxx", SESSION_A, 0);
	talk("SSSSSSSSaaaayyyy", SESSION_A, 1);
	let_go(3);
	is_left("SSSSSSSSaaaa", 8, "a session goes with what it left behind");
	is_left("SSSSSSSSbbbb", 12, "what another one uses stays, though older");
}

static void end_guessed(void)
{
	talk("SSSSSSSSbbbb", SESSION_NONE, 0);
	talk("SSSSSSSSaaaa", SESSION_NONE, 0);
	talk("SSSSSSSSaaaaxxxx", SESSION_NONE, 1);
	let_go(2);
	is_left("SSSSSSSSaaaa", 8, "a conversation is known by its prompt");
	is_left("SSSSSSSSbbbb", 12, "the other stays");
	talk("SSSSSSSSbbbb", SESSION_NONE, 1);
	let_go(1);
	is_left("SSSSSSSSbbbb", 8, "what two had used ends with neither");
}

static void end_wrong(void)
{
	talk("xxxxyyyy", SESSION_NONE, 1);
	talk("zzzz", SESSION_NONE, 0);
	talk("xxxxyyyywwww", SESSION_NONE, 0);
	let_go(1);
	is_left("xxxxyyyywwww", 12, "it went on after all");
	is_left("zzzz", 0, "the older one goes");
}

static void end_held(void)
{
	struct pfx_path *other = hold("SSSSbbbb", SESSION_NONE);
	uint32_t tokens[8] = { 'S', 'S', 'S', 'S', 'a', 'a', 'a', 'a' };

	talk("SSSSaaaa", SESSION_NONE, 0);
	pfx_cache_end(cache, spaces[0], tokens, 7);
	talk("cccc", SESSION_NONE, 0);
	pfx_cache_end(cache, spaces[0], tokens, 8);
	pfx_path_close(other);
	let_go(1);
	is_left("SSSSaaaa", 4, "an end without a request");
	is_left("SSSSbbbb", 8, "who was there at the time keeps what it uses");
}

static void test_end(void (*run_it)(void), enum pfx_policy policy)
{
	struct pfx_cache_opts opts = { .block_tokens = 4, .n_blocks = 64, .policy = policy };

	problems = 0;
	if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &spaces[0]) < 0) {
		abort();
	}
	run_it();
	is_int(problems, 0, "%s: every check is clean", names[policy]);
	pfx_cache_close(cache);
}

/* What a client says wrongly costs default hardly more than leaf LRU without it loses. */
static void test_wrong_ends(void)
{
	uint64_t hits[2] = { 0 };

	for (int wrong = 0; wrong < 2; wrong++) {
		struct pfx_cache_opts opts = { .block_tokens = 1, .n_blocks = 30 * PROMPT,
			.policy = wrong ? PFX_POLICY_DEFAULT : PFX_POLICY_LRU };
		struct pfx_rng local = { .state = 42 };

		if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &spaces[0]) < 0) {
			abort();
		}
		for (uint32_t i = 0; i < 40000; i++) {
			int ends = pfx_rng_below(&local, 5) == 0;
			char text[PROMPT + 1] = "";
			struct pfx_path *path;

			/* Documents, used at random, with more of some than of others. */
			memset(text, (int)(1 + pfx_rng_below(&local, 1 + pfx_rng_below(&local, 60))), PROMPT);
			path = hold(text, SESSION_NONE);
			hits[wrong] += found.tokens;
			if (wrong && ends) {
				pfx_path_last_turn(path);
			}
			pfx_path_close(path);
		}
		pfx_cache_close(cache);
	}
	ok((double)hits[1] > (double)hits[0] - 0.005 * 40000 * PROMPT, "ends told wrongly: %.2f %%, "
		"leaf lru without them %.2f %%", (double)hits[1] / (400.0 * PROMPT),
		(double)hits[0] / (400.0 * PROMPT));
}

int main(void)
{
	uint64_t seed = pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	for (int policy = PFX_POLICY_LRU; policy <= PFX_POLICY_DEFAULT; policy++) {
		test_random((enum pfx_policy)policy, 0);
		test_random((enum pfx_policy)policy, 20);
		test_no_memory((enum pfx_policy)policy);
	}
	test_learning();
	for (int policy = PFX_POLICY_LRU; policy <= PFX_POLICY_DEFAULT; policy++) {
		test_end(end_told, (enum pfx_policy)policy);
		test_end(end_guessed, (enum pfx_policy)policy);
		test_end(end_wrong, (enum pfx_policy)policy);
		test_end(end_held, (enum pfx_policy)policy);
	}
	test_wrong_ends();
	return tap_done();
}
