/*
 * A trace under arbitrary bytes, line by line. With libFuzzer this is a fuzz target; without
 * it, `make check` replays tests/corpus/trace.
 *
 * Besides surviving: a refused line leaves the trace as it was and has words; a block's
 * number is new when it is the next one, and always stands behind the same other block; and
 * no policy hits more than Belady does, nor Belady more than the ceiling.
 */
#include "tests/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "tools/replay.h"

static void check_blocks(const struct pfx_trace *t)
{
	uint32_t *before = pfx_xcalloc(t->n_distinct + 1, sizeof(*before));
	uint32_t seen = 0;

	for (uint32_t i = 0; i < t->n_requests; i++) {
		PFX_ASSERT(t->first[i] <= t->first[i + 1]);
		for (uint64_t at = t->first[i]; at < t->first[i + 1]; at++) {
			uint32_t b = t->blocks[at];
			uint32_t prev = at == t->first[i] ? UINT32_MAX : t->blocks[at - 1];

			PFX_ASSERT(b <= seen);
			if (b == seen) {
				seen++;
				before[b] = prev;
			}
			PFX_ASSERT(before[b] == prev);
		}
	}
	PFX_ASSERT(seen == t->n_distinct);
	pfx_free(before);
}

static void check_policies(const struct pfx_trace *t)
{
	static const enum pfx_policy all[] = { PFX_POLICY_LRU, PFX_POLICY_FIFO, PFX_POLICY_DEFAULT };
	struct pfx_replay r = { .check = 1 };

	for (uint32_t capacity = 1; capacity < t->n_distinct + 2; capacity = capacity * 2 + 1) {
		uint64_t best, hits;

		PFX_ASSERT(pfx_replay_belady(t, capacity, &r, &best) == 0);
		PFX_ASSERT(best <= pfx_replay_ceiling(t));
		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
			PFX_ASSERT(pfx_replay_cache(t, all[i], capacity, &r, &hits) == 0);
			PFX_ASSERT(hits <= best);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct pfx_trace t = PFX_TRACE_INIT;
	char *text = pfx_xmalloc(n + 1);

	memcpy(text, bytes, n);
	text[n] = '\0';
	for (char *line = text, *end; line < text + n; line = end + 1) {
		uint32_t requests = t.n_requests, distinct = t.n_distinct;
		char err[100] = "";

		end = memchr(line, '\n', (size_t)(text + n - line));
		end = end == NULL ? text + n : end;
		*end = '\0';
		if (pfx_trace_add(&t, line, (size_t)(end - line), err, sizeof(err)) < 0) {
			PFX_ASSERT(err[0] != '\0');
			PFX_ASSERT(t.n_requests == requests);
			PFX_ASSERT(t.n_distinct == distinct);
		}
	}
	check_blocks(&t);
	if (pfx_trace_refs(&t) > 0 && pfx_trace_refs(&t) < 2000) {
		check_policies(&t);
	}
	pfx_free(text);
	pfx_trace_free(&t);
	return 0;
}
