/*
 * A trace under arbitrary bytes, line by line. With libFuzzer this is a fuzz target; without
 * it, `make check` replays tests/corpus/trace.
 *
 * Besides surviving: a refused line leaves the trace as it was and has words; a block's
 * number is new when it is the next one, and always stands behind the same other block; no
 * policy hits more than Belady does, nor Belady more than the ceiling; the curve of leaf LRU is
 * what the tree does; and conversations have one end each, unless the trace says otherwise.
 */
#include "tests/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "tools/curve.h"
#include "tools/ends.h"
#include "tools/replay.h"

#define SIZES 12 /* 1, 3, 7 and so on */
#define KINDS 6

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

/* All runs in one go, those of one capacity side by side. */
static void check_policies(const struct pfx_trace *t)
{
	static const struct pfx_run_opts all[] = {
		{ .kind = PFX_RUN_BELADY },
		{ .kind = PFX_RUN_TREE, .policy = PFX_POLICY_LRU, .check = 1 },
		{ .kind = PFX_RUN_TREE, .policy = PFX_POLICY_FIFO, .check = 1 },
		{ .kind = PFX_RUN_TREE, .policy = PFX_POLICY_DEFAULT, .check = 1 },
		{ .kind = PFX_RUN_TREE, .policy = PFX_POLICY_DEFAULT, .check = 1, .at_once = 3 },
		{ .kind = PFX_RUN_TREE, .policy = PFX_POLICY_DEFAULT, .check = 1, .at_once = 2, .ahead = 2,
			.host = 3, .disk = 9, .save = PFX_SAVE_ALL },
	};
	struct pfx_run_opts opts[SIZES * KINDS];
	struct pfx_run_result got[SIZES * KINDS];
	uint64_t *curve = pfx_xcalloc((size_t)t->n_distinct + 1, sizeof(*curve));
	uint32_t n = 0;

	for (uint32_t c = 1; c < t->n_distinct + 2 && n < SIZES * KINDS; c = c * 2 + 1) {
		for (uint32_t i = 0; i < KINDS; i++) {
			opts[n] = all[i];
			opts[n++].capacity = c;
		}
	}
	PFX_ASSERT(pfx_replay(t, opts, n, got, NULL, NULL) == 0);
	PFX_ASSERT(pfx_curve_lru(t, curve) == 0);
	for (uint32_t k = 0; k < n; k += KINDS) {
		uint32_t c = opts[k].capacity;

		PFX_ASSERT(got[k].hits <= pfx_replay_ceiling(t));
		for (uint32_t i = 1; i < KINDS && t->n_last_turns == 0; i++) {
			PFX_ASSERT(opts[k + i].at_once > 1 || got[k + i].hits <= got[k].hits);
		}
		PFX_ASSERT(t->n_last_turns > 0 ||
			got[k + 1].hits == curve[c < t->n_distinct ? c : t->n_distinct]);
	}
	pfx_free(curve);
}

/* The last rows of conversations are as many as there are conversations. */
static void check_ends(struct pfx_trace *t)
{
	uint32_t own = t->n_last_turns, n = 0;
	uint8_t *seen = pfx_xcalloc((size_t)t->n_names + t->n_requests + 1, 1);

	PFX_ASSERT(pfx_ends_conversations(t) == 0);
	PFX_ASSERT(pfx_ends_derive(t) == 0);
	for (uint32_t i = 0; i < t->n_requests; i++) {
		uint32_t c = t->rows[i].conversation;

		PFX_ASSERT(c < t->n_names + t->n_requests);
		PFX_ASSERT(t->rows[i].session == PFX_TRACE_NONE || c == t->rows[i].session);
		n += !seen[c];
		seen[c] = 1;
	}
	PFX_ASSERT(t->n_last_turns == (own > 0 ? own : n));
	pfx_free(seen);
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
	pfx_trace_block_tokens(&t);
	if (pfx_trace_refs(&t) > 0 && pfx_trace_refs(&t) < 2000) {
		check_policies(&t);
		check_ends(&t);
		check_policies(&t);
	}
	pfx_free(text);
	pfx_trace_free(&t);
	return 0;
}
