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
#include "tests/tap.h"
#include "tools/replay.h"

#define SAMPLE_CAPACITIES 6
#define POLICIES 4

static const struct named {
	const char *name;
	enum pfx_policy policy;
	int (*run)(const struct pfx_trace *t, uint32_t capacity, const struct pfx_replay *r,
		uint64_t *hits);
} policies[] = {
	{ "lru", PFX_POLICY_LRU, NULL },
	{ "fifo", 0, pfx_replay_fifo },
	{ "leaf-fifo", PFX_POLICY_FIFO, NULL },
	{ "default", PFX_POLICY_DEFAULT, NULL },
	{ "belady", 0, pfx_replay_belady },
};

static uint64_t hits_of(const struct pfx_trace *t, const char *policy, uint32_t capacity, int check)
{
	struct pfx_replay r = { .check = check };
	uint64_t hits = 0;
	int rc = -EINVAL;

	for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
		const struct named *p = &policies[i];

		if (strcmp(p->name, policy) == 0) {
			rc = p->run != NULL ? p->run(t, capacity, &r, &hits)
				: pfx_replay_cache(t, p->policy, capacity, &r, &hits);
		}
	}
	return rc == 0 ? hits : UINT64_MAX;
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

static void test_sample(const char *top)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	unsigned long long want, refs;
	char path[4096], policy[20];
	unsigned capacity;
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
} wholes[] = {
	{ "mooncake_synthetic.jsonl", 63.96, {
		{ 1000, 8.42, 8.41, 27.67 }, { 2000, 14.43, 14.64, 37.95 },
		{ 4000, 23.57, 23.45, 49.34 }, { 8000, 34.61, 37.33, 59.54 },
		{ 16000, 49.80, 52.99, 63.96 } } },
	{ "agent_miniswe.jsonl", 93.70, {
		{ 50, 8.91, 12.16, 21.63 }, { 100, 16.83, 24.44, 37.89 },
		{ 200, 32.54, 47.23, 58.92 }, { 400, 57.15, 74.88, 81.13 },
		{ 800, 82.10, 93.05, 93.45 } } },
	{ "agent_taubench.jsonl", 85.51, {
		{ 10, 32.96, 37.96, 58.78 }, { 20, 52.24, 64.18, 77.35 }, { 40, 75.20, 82.04, 85.00 } } },
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
		if (w == wholes) {
			ok(share >= 0.15, "default goes %.1f %% of the way from lru to belady, mean of "
				"2,000, 4,000 and 8,000 blocks", share * 100);
		}
	}
	pfx_trace_free(&t);
}

/* A size of a million references takes less than three seconds. */
static void test_speed(void)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	uint64_t start, seed = 7;
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
	for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
		start = pfx_clock_ns();
		hits_of(&t, policies[i].name, 20000, 0);
		printf("# %s: a million references in %.3f s\n", policies[i].name,
			(double)(pfx_clock_ns() - start) / 1e9);
	}
	pfx_trace_free(&t);
}

int main(void)
{
	const char *folder = getenv("PREFIXD_TRACES"), *top = getenv("top_srcdir");
	uint64_t live = pfx_alloc_live();

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
