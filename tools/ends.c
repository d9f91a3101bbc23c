#include "tools/ends.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

#define NEVER UINT32_MAX

/* The conversation of row i, or PFX_TRACE_NONE: a new one. latest: by block, the row. */
static uint32_t goes_on_with(const struct pfx_trace *t, const uint32_t *latest, uint32_t i)
{
	const uint32_t *blocks = t->blocks + t->first[i];
	uint32_t n = pfx_trace_n_blocks(t, i), known = 0, before;

	while (known < n && latest[blocks[known]] != NEVER) {
		known++;
	}
	if (known == 0) {
		return PFX_TRACE_NONE;
	}
	before = latest[blocks[known - 1]];
	return 2ull * known > pfx_trace_n_blocks(t, before) ? t->rows[before].conversation
		: PFX_TRACE_NONE;
}

int pfx_ends_conversations(struct pfx_trace *t)
{
	uint32_t *latest = pfx_reallocarray(NULL, (size_t)t->n_distinct + 1, sizeof(*latest));
	uint32_t n = t->n_names;

	if (latest == NULL) {
		return -ENOMEM;
	}
	memset(latest, 0xff, t->n_distinct * sizeof(*latest));
	for (uint32_t i = 0; i < t->n_requests; i++) {
		struct pfx_trace_row *row = &t->rows[i];

		row->conversation = row->session;
		if (row->session == PFX_TRACE_NONE) {
			row->conversation = goes_on_with(t, latest, i);
		}
		if (row->conversation == PFX_TRACE_NONE) {
			row->conversation = n++;
		}
		for (uint64_t at = t->first[i]; at < t->first[i + 1]; at++) {
			latest[t->blocks[at]] = i;
		}
	}
	pfx_free(latest);
	return 0;
}

int pfx_ends_derive(struct pfx_trace *t)
{
	/* Names and requests are fewer than 2^31 each. */
	size_t n = (size_t)t->n_names + t->n_requests;
	uint8_t *goes_on;

	if (t->n_last_turns > 0) {
		return 0;
	}
	goes_on = pfx_calloc(n + 1, 1);
	if (goes_on == NULL) {
		return -ENOMEM;
	}
	for (uint32_t i = t->n_requests; i-- > 0;) {
		struct pfx_trace_row *row = &t->rows[i];

		row->last_turn = !goes_on[row->conversation];
		goes_on[row->conversation] = 1;
		t->n_last_turns += (uint32_t)row->last_turn;
	}
	pfx_free(goes_on);
	return 0;
}
