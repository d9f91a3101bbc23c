/* What a request's prompt cost: each token of it is counted once, as cached or as computed. */
#include "engine/engine_priv.h"

void pfx_usage_cached(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	uint32_t end = upto < r->n_prompt ? upto : r->n_prompt;

	if (end <= r->counted) {
		return;
	}
	r->usage.cached_device += end - r->counted;
	e->n.cached_device += end - r->counted;
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
