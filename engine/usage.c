/*
 * What a request's prompt cost: each token of it is counted once, as cached or as computed.
 * Of the cached the tier counts in which it lay when the request was first admitted; what it
 * got from another one in flight counts as the device's.
 */
#include "engine/engine_priv.h"

/* How many of [from, to) lie in [lo, hi). */
static uint32_t between(uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
	from = from > lo ? from : lo;
	to = to < hi ? to : hi;
	return to > from ? to - from : 0;
}

void pfx_usage_cached(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	uint32_t end = upto < r->n_prompt ? upto : r->n_prompt;
	uint32_t from_device, from_host, from_disk;

	if (end <= r->counted) {
		return;
	}
	from_device = between(r->counted, end, 0, r->at_device) +
		between(r->counted, end, r->at_disk, UINT32_MAX);
	from_host = between(r->counted, end, r->at_device, r->at_host);
	from_disk = between(r->counted, end, r->at_host, r->at_disk);
	r->usage.cached_device += from_device;
	r->usage.cached_host += from_host;
	r->usage.cached_disk += from_disk;
	e->n.cached_device += from_device;
	e->n.cached_host += from_host;
	e->n.cached_disk += from_disk;
	e->n.prompt += end - r->counted;
	r->counted = end;
}

void pfx_usage_computed(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	uint32_t end = upto < r->n_prompt ? upto : r->n_prompt;

	if (end <= r->counted) {
		return;
	}
	r->usage.computed_tokens += end - r->counted;
	e->n.computed += end - r->counted;
	e->n.prompt += end - r->counted;
	r->counted = end;
}
