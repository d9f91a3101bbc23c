#ifndef PFX_ENGINE_JINJA_FILTERS_H
#define PFX_ENGINE_JINJA_FILTERS_H

/* The two halves of the table of filters. */

#include "engine/jinja_call.h"

#define PFX_J_FILTER_FN(name) \
	static struct pfx_jval name(struct pfx_jctx *c, struct pfx_jval self, \
		const struct pfx_jval *arg, const struct pfx_jargs *all)

extern const struct pfx_jdef pfx_j_sequence_filters[];

#endif
