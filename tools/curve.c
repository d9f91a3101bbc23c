#include "tools/curve.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"

/* How many blocks were last used at each place: sums over beginnings in O(log n). Places run
 * from 1; a place is one reference, the deepest of a request first. */
struct sums {
	uint32_t *at;
	uint64_t n;
};

static void add(struct sums *s, uint64_t place, uint32_t by)
{
	for (; place <= s->n; place += place & -place) {
		s->at[place] += by;
	}
}

static uint64_t up_to(const struct sums *s, uint64_t place)
{
	uint64_t sum = 0;

	for (; place > 0; place -= place & -place) {
		sum += s->at[place];
	}
	return sum;
}

/* Distances first, all as things stood before the request; then its blocks are the youngest. */
static void one_request(const struct pfx_trace *t, uint32_t i, struct sums *s, uint64_t *last,
	uint64_t *n_known, uint64_t *hits)
{
	uint64_t from = t->first[i], to = t->first[i + 1];

	for (uint64_t at = from; at < to && last[t->blocks[at]] > 0; at++) {
		hits[*n_known - up_to(s, last[t->blocks[at]] - 1)]++;
	}
	for (uint64_t at = from; at < to; at++) {
		uint64_t *mine = &last[t->blocks[at]];

		if (*mine > 0) {
			add(s, *mine, -1u);
		} else {
			++*n_known;
		}
		*mine = from + (to - at);
		add(s, *mine, 1);
	}
}

int pfx_curve_lru(const struct pfx_trace *t, uint64_t *hits)
{
	struct sums s = { .n = pfx_trace_refs(t) };
	uint64_t *last = pfx_calloc((size_t)t->n_distinct + 1, sizeof(*last)), n_known = 0;
	int rc;

	s.at = pfx_calloc(s.n + 1, sizeof(*s.at));
	rc = s.at == NULL || last == NULL ? -ENOMEM : 0;
	memset(hits, 0, ((size_t)t->n_distinct + 1) * sizeof(*hits));
	for (uint32_t i = 0; rc == 0 && i < t->n_requests; i++) {
		one_request(t, i, &s, last, &n_known, hits);
	}
	for (uint32_t c = 0; c < t->n_distinct; c++) {
		hits[c + 1] += hits[c];
	}
	pfx_free(s.at);
	pfx_free(last);
	return rc;
}

uint32_t pfx_curve_size_for(const struct pfx_trace *t, const uint64_t *hits, double share)
{
	uint32_t low = 0, high = t->n_distinct;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if ((double)hits[middle] >= share * (double)hits[t->n_distinct]) {
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	return low;
}
