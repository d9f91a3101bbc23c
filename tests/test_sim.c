/*
 * The replay of traces against rates that others computed: block for block on a sample, whose
 * numbers tests/reference/trace_oracle.py worked out the plain way, and, when PREFIXD_TRACES
 * names the folder with the whole traces, to 0.1 point against the rows published with them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/tap.h"
#include "tools/curve.h"
#include "tools/ends.h"
#include "tools/replay.h"

#define SAMPLE_CAPACITIES 6
#define POLICIES 4

static const struct named {
	const char *name;
	struct pfx_run_opts opts;
} policies[] = {
	{ "lru", { .kind = PFX_RUN_TREE, .policy = PFX_POLICY_LRU } },
	{ "fifo", { .kind = PFX_RUN_FIFO } },
	{ "leaf-fifo", { .kind = PFX_RUN_TREE, .policy = PFX_POLICY_FIFO } },
	{ "default", { .kind = PFX_RUN_TREE, .policy = PFX_POLICY_DEFAULT } },
	{ "belady", { .kind = PFX_RUN_BELADY } },
};

#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

static struct pfx_run_opts opts_of(const char *policy, uint32_t capacity)
{
	struct pfx_run_opts opts = { 0 };

	for (size_t i = 0; i < N_POLICIES; i++) {
		if (strcmp(policies[i].name, policy) == 0) {
			opts = policies[i].opts;
		}
	}
	opts.capacity = capacity;
	return opts;
}

static uint64_t hits_of(const struct pfx_trace *t, const char *policy, uint32_t capacity, int check)
{
	struct pfx_run_opts opts = opts_of(policy, capacity);
	struct pfx_run_result result;

	opts.check = check;
	return pfx_replay(t, &opts, 1, &result, NULL, NULL) == 0 ? result.hits : UINT64_MAX;
}

/* The lines of a made-up trace, split at '\n'. */
static void read_lines(struct pfx_trace *t, const char *lines)
{
	while (*lines != '\0') {
		size_t n = strcspn(lines, "\n");
		char err[200] = "";

		if (pfx_trace_add(t, lines, n, err, sizeof(err)) < 0) {
			printf("# %s\n", err);
		}
		lines += n + (lines[n] == '\n');
	}
}

static int load(struct pfx_trace *t, const char *folder, const char *name)
{
	char path[4096], err[400] = "";
	int rc;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	rc = pfx_trace_load(t, path, err, sizeof(err));
	ok(rc == 0, "%s: read%s%s", name, rc == 0 ? "" : ": ", err);
	return rc;
}

/* Tiers, in blocks, behind so many on the device. */
struct shape {
	uint32_t capacity, host, disk, at_once;
};

/* How far default is before lru there in all tiers together, with what is reused saved; points. */
static double ahead_of_lru(const struct pfx_trace *t, const struct shape *s)
{
	struct pfx_run_opts opts[] = { opts_of("lru", s->capacity), opts_of("default", s->capacity) };
	struct pfx_run_result r[2];

	for (int i = 0; i < 2; i++) {
		opts[i].host = s->host;
		opts[i].disk = s->disk;
		opts[i].at_once = s->at_once;
		opts[i].save = PFX_SAVE_REUSED;
		opts[i].check = 1;
	}
	is_int(pfx_replay(t, opts, 2, r, NULL, NULL), 0, "%u blocks, %u in memory, %u on disk, "
		"%u at once", s->capacity, s->host, s->disk, s->at_once);
	return 100.0 * ((double)r[1].hits - (double)r[0].hits) / (double)pfx_trace_refs(t);
}

static void test_sample(const char *top)
{
	static const struct shape tiers = { 600, 0, 1200, 1 };
	struct pfx_trace t = PFX_TRACE_INIT;
	unsigned long long want, refs;
	char path[4096], policy[20];
	unsigned capacity;
	double gain;
	int n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/tests/vectors", top);
	if (load(&t, path, "trace.jsonl") < 0) {
		return;
	}
	snprintf(path, sizeof(path), "%s/tests/vectors/trace.txt", top);
	f = fopen(path, "r");
	while (f != NULL && fscanf(f, "%19s %u %llu %llu", policy, &capacity, &want, &refs) == 4) {
		is_int(hits_of(&t, policy, capacity, 1), want, "sample, %s of %u blocks", policy,
			capacity);
		n += pfx_trace_refs(&t) == refs;
	}
	is_int(n, SAMPLE_CAPACITIES * POLICIES, "all expected rows were read");
	/* What is on disk too goes from the device first: were it worth as much, it were 4.28. */
	gain = ahead_of_lru(&t, &tiers);
	ok(gain > 5, "sample, default beside lru with a disk: %+.2f points", gain);
	if (f != NULL) {
		fclose(f);
	}
	pfx_trace_free(&t);
}

/* Rates in percent; what the traces' own page says. */
struct row {
	uint32_t capacity;
	double fifo, lru, belady;
};

static const struct whole {
	const char *name;
	double ceiling;
	struct row rows[5];
	struct shape shapes[6];
} wholes[] = {
	{ "mooncake_synthetic.jsonl", 63.96, {
		{ 1000, 8.42, 8.41, 27.67 }, { 2000, 14.43, 14.64, 37.95 },
		{ 4000, 23.57, 23.45, 49.34 }, { 8000, 34.61, 37.33, 59.54 },
		{ 16000, 49.80, 52.99, 63.96 } },
		{ { 1000, 0, 1000, 1 }, { 1000, 0, 2000, 1 }, { 1000, 1000, 2000, 1 },
		{ 1000, 2000, 8000, 1 }, { 1000, 1000, 2500, 1 }, { 1000, 2000, 8000, 8 } } },
	{ "agent_miniswe.jsonl", 93.70, {
		{ 50, 8.91, 12.16, 21.63 }, { 100, 16.83, 24.44, 37.89 },
		{ 200, 32.54, 47.23, 58.92 }, { 400, 57.15, 74.88, 81.13 },
		{ 800, 82.10, 93.05, 93.45 } },
		{ { 200, 0, 100, 1 }, { 100, 50, 200, 1 }, { 400, 100, 200, 1 }, { 400, 0, 200, 8 } } },
	{ "agent_taubench.jsonl", 85.51, {
		{ 10, 32.96, 37.96, 58.78 }, { 20, 52.24, 64.18, 77.35 }, { 40, 75.20, 82.04, 85.00 } },
		{ { 20, 0, 10, 1 }, { 40, 0, 20, 1 }, { 40, 0, 40, 1 }, { 40, 10, 20, 1 } } },
};

static void near(const struct pfx_trace *t, uint64_t hits, double want, const char *what,
	uint32_t capacity)
{
	double rate = 100.0 * (double)hits / (double)pfx_trace_refs(t);

	ok(fabs(rate - want) < 0.1, "%s of %u blocks: %.2f, %.2f is published", what, capacity, rate,
		want);
}

/* default: never far behind lru; the share of the way from lru to belady. */
static double share_of_gap(const struct pfx_trace *t, const struct row *r)
{
	double rate = 100.0 * (double)hits_of(t, "default", r->capacity, 0) / (double)pfx_trace_refs(t);

	ok(rate > r->lru - 0.5, "default of %u blocks: %.2f, lru has %.2f", r->capacity, rate, r->lru);
	return (rate - r->lru) / (r->belady - r->lru);
}

/* What a policy reaches there that knows which blocks will never be used again. */
static void test_whole_ends(struct pfx_trace *t, const struct whole *w)
{
	static const double perfect[] = { 12.49, 20.22, 34.24, 53.39 };

	pfx_ends_conversations(t);
	pfx_ends_derive(t);
	for (int i = 0; i < 8; i++) {
		const struct row *r = &w->rows[i / 2];
		const char *policy = i % 2 ? "default" : "lru";
		double rate = 100.0 * (double)hits_of(t, policy, r->capacity, 0) / (double)pfx_trace_refs(t);
		double gain = (rate - r->lru) / (perfect[i / 2] - r->lru);

		ok(gain >= 0.9, "ends told, %s of %u blocks: %.2f, %.0f %% of the perfect gain", policy,
			r->capacity, rate, gain * 100);
	}
}

/* Over all tiers together default is never far behind lru either, with what is reused saved. */
static void test_whole_tiers(const struct pfx_trace *t, const struct whole *w)
{
	for (const struct shape *s = w->shapes; s < w->shapes + 6 && s->capacity > 0; s++) {
		double ahead = ahead_of_lru(t, s);

		ok(ahead > -0.5, "default beside lru: %+.2f points", ahead);
	}
}

static void test_whole(const char *folder, const struct whole *w)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	double share = 0, gap;

	if (load(&t, folder, w->name) == 0) {
		near(&t, pfx_replay_ceiling(&t), w->ceiling, "ceiling", 0);
		for (const struct row *r = w->rows; r < w->rows + 5 && r->capacity > 0; r++) {
			near(&t, hits_of(&t, "fifo", r->capacity, 0), r->fifo, "fifo", r->capacity);
			near(&t, hits_of(&t, "lru", r->capacity, 0), r->lru, "lru", r->capacity);
			near(&t, hits_of(&t, "belady", r->capacity, 0), r->belady, "belady",
				r->capacity);
			gap = share_of_gap(&t, r);
			share += r > w->rows && r < w->rows + 4 ? gap / 3 : 0;
		}
		test_whole_tiers(&t, w);
		if (w == wholes) {
			test_whole_ends(&t, w);
			ok(share >= 0.15, "default goes %.1f %% of the way from lru to belady, mean of "
				"2,000, 4,000 and 8,000 blocks", share * 100);
		}
	}
	pfx_trace_free(&t);
}

/* ---- made-up traces ---- */

/* Sessions that grow, some behind common instructions, in random order. */
static void make_up(struct pfx_trace *t, struct pfx_rng *rng)
{
	uint32_t lengths[12] = { 0 }, epochs[12] = { 0 };

	for (int i = 0; i < 400; i++) {
		uint32_t s = (uint32_t)pfx_rng_below(rng, 12);
		char line[2000];
		int n;

		if (lengths[s] == 0 || pfx_rng_below(rng, 6) == 0) {
			lengths[s] = 2;
			epochs[s]++;
		}
		lengths[s] += (uint32_t)pfx_rng_below(rng, 4);
		n = snprintf(line, sizeof(line), "{\"session\":\"%u.%u\",\"output_length\":%u,\"hash_ids\":[%u",
			s, epochs[s], (uint32_t)pfx_rng_below(rng, 900), s % 3);
		for (uint32_t k = 1; k < lengths[s] && k < 60; k++) {
			n += snprintf(line + n, sizeof(line) - (size_t)n, ",%u",
				k < 3 ? s % 3 : s * 1000 + epochs[s] * 50 + k);
		}
		snprintf(line + n, sizeof(line) - (size_t)n, ",%u]}", 100000 + (uint32_t)i);
		read_lines(t, line);
	}
}

/* The curve is what the tree does, at every size; many runs at once are what each is alone. */
static void test_curve(struct pfx_rng *rng)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	struct pfx_run_result results[40];
	struct pfx_run_opts opts[40];
	uint64_t *hits, wrong = 0;
	uint32_t n = 0;

	make_up(&t, rng);
	hits = pfx_xcalloc((size_t)t.n_distinct + 1, sizeof(*hits));
	is_int(pfx_curve_lru(&t, hits), 0, "made up: a curve of %u sizes", t.n_distinct);
	for (uint32_t c = 1; c <= t.n_distinct && n < 40; c += 1 + c / 6) {
		opts[n++] = opts_of("lru", c);
	}
	is_int(pfx_replay(&t, opts, n, results, NULL, NULL), 0, "%u sizes in one go", n);
	for (uint32_t i = 0; i < n; i++) {
		wrong += results[i].hits != hits[opts[i].capacity];
	}
	is_int(wrong, 0, "the curve of leaf LRU is what the tree does");
	is_int(hits[0], 0, "no room, no hits");
	is_int(hits[t.n_distinct], pfx_replay_ceiling(&t), "room for all: the ceiling");
	for (size_t i = 0; i < N_POLICIES; i++) {
		opts[i] = opts_of(policies[i].name, 60);
	}
	pfx_replay(&t, opts, N_POLICIES, results, NULL, NULL);
	for (size_t i = 0; i < N_POLICIES; i++) {
		is_int(results[i].hits, hits_of(&t, policies[i].name, 60, 1), "%s: the same alone",
			policies[i].name);
		ok(results[i].hits <= results[N_POLICIES - 1].hits, "and not above belady");
	}
	n = pfx_curve_size_for(&t, hits, 0.9);
	ok((double)hits[n] >= 0.9 * (double)hits[t.n_distinct] &&
		(double)hits[n - 1] < 0.9 * (double)hits[t.n_distinct],
		"%u blocks are the fewest that reach 90 %%", n);
	pfx_free(hits);
	pfx_trace_free(&t);
}

/* Requests that hold their blocks at the same time. */
static void test_at_once(struct pfx_rng *rng)
{
	struct pfx_trace t = PFX_TRACE_INIT;

	make_up(&t, rng);
	for (uint32_t capacity = 30; capacity <= 480; capacity *= 2) {
		uint64_t lru = 0;

		for (int i = 0; i < 2; i++) {
			const char *policy = i == 0 ? "lru" : "default";
			struct pfx_run_opts opts = opts_of(policy, capacity);
			struct pfx_run_result result = { 0 };

			opts.at_once = 8;
			opts.check = 1;
			is_int(pfx_replay(&t, &opts, 1, &result, NULL, NULL), 0,
				"8 at once, %s of %u blocks: %llu hits, %llu refused", policy, capacity,
				(unsigned long long)result.hits, (unsigned long long)result.refused);
			lru = i == 0 ? result.hits : lru;
			ok(result.hits + pfx_trace_refs(&t) / 50 > lru, "not far under lru");
		}
	}
	pfx_trace_free(&t);
}

/* Who knows what waits loses nothing by it where all else is leaf LRU. */
static void test_ahead(struct pfx_rng *rng)
{
	struct pfx_trace t = PFX_TRACE_INIT;

	make_up(&t, rng);
	for (uint32_t capacity = 40; capacity <= 160; capacity *= 2) {
		struct pfx_run_opts opts[] = { opts_of("lru", capacity), opts_of("lru", capacity),
			opts_of("belady", capacity) };
		struct pfx_run_result r[3];

		opts[1].ahead = 6;
		opts[1].check = 1;
		pfx_replay(&t, opts, 3, r, NULL, NULL);
		ok(r[1].hits + pfx_trace_refs(&t) / 200 >= r[0].hits && r[1].hits <= r[2].hits,
			"6 ahead in %u blocks: %llu hits, blind %llu, belady %llu", capacity,
			(unsigned long long)r[1].hits, (unsigned long long)r[0].hits,
			(unsigned long long)r[2].hits);
	}
	pfx_trace_free(&t);
}

/* What the device lets go lies in slower tiers; what is hit there comes back. */
static void test_tiers(struct pfx_rng *rng)
{
	struct pfx_trace t = PFX_TRACE_INIT;

	make_up(&t, rng);
	for (int i = 0; i < 4; i++) {
		struct pfx_run_opts opts[] = { opts_of(i % 2 ? "default" : "lru", 80),
			opts_of(i % 2 ? "default" : "lru", 80) };
		struct pfx_run_result r[2];
		uint64_t sum = 0;

		opts[0].at_once = opts[1].at_once = 3;
		opts[1].host = 120;
		opts[1].disk = i / 2 * 400;
		opts[1].save = PFX_SAVE_ALL;
		opts[1].check = 1;
		is_int(pfx_replay(&t, opts, 2, r, NULL, NULL), 0, "host %u, disk %u behind 80 blocks",
			opts[1].host, opts[1].disk);
		for (int tier = 0; tier < PFX_TIERS; tier++) {
			sum += r[1].tier[tier];
		}
		is_int(sum, r[1].hits, "all hits are of some tier");
		ok(r[1].hits > r[0].hits && r[1].tier[PFX_TIER_HOST] > 0 && r[1].spilled > 0,
			"more hits than the device alone has: %llu, %llu", (unsigned long long)r[1].hits,
			(unsigned long long)r[0].hits);
		ok((opts[1].disk > 0) == (r[1].saved > 0), "%llu blocks saved",
			(unsigned long long)r[1].saved);
		ok(r[1].hits <= pfx_replay_ceiling(&t), "and no more than the ceiling");
	}
	pfx_trace_free(&t);
}

/* Told the ends, conversations that are over make room. */
static void test_ends_told(struct pfx_rng *rng)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	struct pfx_run_opts opts = opts_of("lru", 60);
	struct pfx_run_result blind, told;

	make_up(&t, rng);
	pfx_ends_conversations(&t);
	pfx_replay(&t, &opts, 1, &blind, NULL, NULL);
	pfx_ends_derive(&t);
	opts.check = 1;
	is_int(pfx_replay(&t, &opts, 1, &told, NULL, NULL), 0, "with ends told");
	ok(told.hits > blind.hits, "%llu hits, blind %llu", (unsigned long long)told.hits,
		(unsigned long long)blind.hits);
	pfx_trace_free(&t);
}

static void test_fields(void)
{
	struct pfx_trace t = PFX_TRACE_INIT;

	read_lines(&t, "{\"hash_ids\":[1,2,3],\"namespace\":\"a\",\"session\":7}\n"
		"{\"hash_ids\":[1,2],\"namespace\":\"b\",\"session\":\"7\",\"last_turn\":true}\n"
		"{\"hash_ids\":[1,2],\"namespace\":\"\",\"session\":null,\"last_turn\":1}\n"
		"{\"hash_ids\":[1],\"namespace\":\"a\",\"session\":\"7\",\"input_length\":-4}\n"
		"{\"hash_ids\":[1],\"output_length\":9,\"input_length\":12}");
	is_int(t.n_requests, 5, "rows with all fields");
	is_int(t.n_distinct, 7, "namespaces share nothing");
	ok(t.rows[0].session == t.rows[3].session && t.rows[0].session != t.rows[1].session,
		"a session is one of its namespace, a number or its text");
	is_int(t.rows[2].session, PFX_TRACE_NONE, "null is no session");
	ok(t.rows[1].last_turn && !t.rows[2].last_turn && t.n_last_turns == 1, "last turns");
	ok(t.rows[3].input == 0 && t.rows[4].input == 12 && t.rows[4].reply == 9, "lengths");
	is_int(hits_of(&t, "lru", 100, 1), 2, "hits are of one namespace");
	pfx_trace_free(&t);
}

static void test_block_tokens(void)
{
	struct pfx_trace t = PFX_TRACE_INIT;

	is_int(pfx_trace_block_tokens(&t), 0, "no rows tell no size");
	read_lines(&t, "{\"hash_ids\":[1,2,3],\"input_length\":40}\n{\"hash_ids\":[4,5],\"input_length\":17}\n"
		"{\"hash_ids\":[9]}");
	is_int(pfx_trace_block_tokens(&t), 16, "a last block in part");
	read_lines(&t, "{\"hash_ids\":[1,2,3],\"input_length\":63}");
	is_int(pfx_trace_block_tokens(&t), 0, "sizes that agree with none");
	pfx_trace_free(&t);
	read_lines(&t, "{\"hash_ids\":[1,2,3],\"input_length\":50}\n{\"hash_ids\":[4],\"input_length\":31}");
	is_int(pfx_trace_block_tokens(&t), 16, "full blocks alone");
	pfx_trace_free(&t);
}

static void is_last(const struct pfx_trace *t, const char *want, const char *what)
{
	char got[32] = "";

	for (uint32_t i = 0; i < t->n_requests && i < sizeof(got) - 1; i++) {
		got[i] = t->rows[i].last_turn ? 'x' : '.';
	}
	ok(strcmp(got, want) == 0, "%s: %s, want %s", what, got, want);
}

static void test_ends(void)
{
	struct pfx_trace t = PFX_TRACE_INIT;

	/* Two conversations behind two blocks of instructions; one turn of the first is made
	 * again; a request of the instructions alone. */
	read_lines(&t, "{\"hash_ids\":[1,2,10,11,12]}\n{\"hash_ids\":[1,2,20,21,22]}\n"
		"{\"hash_ids\":[1,2,10,11,13,14]}\n{\"hash_ids\":[1,2,20,21,23,24,25]}\n"
		"{\"hash_ids\":[1,2,10,11,13,15,16,17]}\n{\"hash_ids\":[1,2]}");
	is_int(pfx_ends_conversations(&t), 0, "conversations");
	ok(t.rows[0].conversation == t.rows[2].conversation && t.rows[2].conversation ==
		t.rows[4].conversation && t.rows[1].conversation == t.rows[3].conversation,
		"turns belong together");
	ok(t.rows[0].conversation != t.rows[1].conversation && t.rows[5].conversation !=
		t.rows[4].conversation, "what only shares instructions does not");
	is_int(pfx_ends_derive(&t), 0, "ends");
	is_last(&t, "...xxx", "the last of each conversation");
	is_int(t.n_last_turns, 3, "are counted");
	pfx_trace_free(&t);

	read_lines(&t, "{\"session\":1,\"hash_ids\":[1]}\n{\"session\":2,\"hash_ids\":[1]}\n"
		"{\"session\":1,\"hash_ids\":[5]}\n{\"hash_ids\":[9]}");
	is_int(pfx_ends_conversations(&t), 0, "sessions");
	is_int(pfx_ends_derive(&t), 0, "their ends");
	is_last(&t, ".xxx", "the last of each session, whatever it shares");
	pfx_trace_free(&t);

	read_lines(&t, "{\"last_turn\":true,\"hash_ids\":[1,2]}\n{\"hash_ids\":[1,2,3]}");
	pfx_ends_conversations(&t);
	pfx_ends_derive(&t);
	is_last(&t, "x.", "a trace's own word is left as it is");
	pfx_trace_free(&t);
}

/* A size of a million references takes less than three seconds. */
static void test_speed(void)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	uint64_t start, seed = 7, *curve;
	char line[4096];

	for (int i = 0; i < 10000; i++) {
		int n = snprintf(line, sizeof(line), "{\"hash_ids\":[");

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		for (int k = 0; k < 100; k++) {
			n += snprintf(line + n, sizeof(line) - (size_t)n, "%s%d", k > 0 ? "," : "",
				(int)((seed >> 33) % 997) * 1000 + (k < 40 ? k : k + i % 5 * 100));
		}
		n += snprintf(line + n, sizeof(line) - (size_t)n, "]}");
		if (pfx_trace_add(&t, line, (size_t)n, NULL, 0) < 0) {
			break;
		}
	}
	is_int(pfx_trace_refs(&t), 1000000, "a million references");
	for (size_t i = 0; i < N_POLICIES; i++) {
		start = pfx_clock_ns();
		hits_of(&t, policies[i].name, 20000, 0);
		printf("# %s: a million references in %.3f s\n", policies[i].name,
			(double)(pfx_clock_ns() - start) / 1e9);
	}
	curve = pfx_xcalloc((size_t)t.n_distinct + 1, sizeof(*curve));
	start = pfx_clock_ns();
	pfx_curve_lru(&t, curve);
	printf("# the curve of all sizes: %.3f s\n", (double)(pfx_clock_ns() - start) / 1e9);
	pfx_free(curve);
	pfx_trace_free(&t);
}

int main(void)
{
	const char *folder = getenv("PREFIXD_TRACES"), *top = getenv("top_srcdir");
	uint64_t live = pfx_alloc_live();
	struct pfx_rng rng = { .state = pfx_rng_entropy() };

	printf("# seed %llu\n", (unsigned long long)rng.state);
	test_fields();
	test_block_tokens();
	test_ends();
	test_curve(&rng);
	test_at_once(&rng);
	test_ahead(&rng);
	test_tiers(&rng);
	test_ends_told(&rng);
	test_sample(top != NULL ? top : ".");
	for (size_t i = 0; i < sizeof(wholes) / sizeof(wholes[0]); i++) {
		if (folder != NULL && *folder != '\0') {
			test_whole(folder, &wholes[i]);
		} else {
			skip(1, "PREFIXD_TRACES names no folder of traces");
		}
	}
	test_speed();
	is_int(pfx_alloc_live(), live, "all memory is given back");
	return tap_done();
}
