#ifndef PFX_ENGINE_JINJA_OPS_H
#define PFX_ENGINE_JINJA_OPS_H

/* The operators of the language over values: Python's rules, jinja2's for attributes. */

#include "engine/jinja_ast.h"
#include "engine/jinja_value.h"

/* op as in PFX_J_BINARY */
struct pfx_jval pfx_j_binary(struct pfx_jctx *c, int op, struct pfx_jval a, struct pfx_jval b);
struct pfx_jval pfx_j_negate(struct pfx_jctx *c, struct pfx_jval v, int minus);
int pfx_j_compare(struct pfx_jctx *c, enum pfx_jcompare op, struct pfx_jval a, struct pfx_jval b);
int pfx_j_contains(struct pfx_jctx *c, struct pfx_jval all, struct pfx_jval one);
/* x.name: methods first, then items. x[key]: the other way round. */
struct pfx_jval pfx_j_getattr(struct pfx_jctx *c, struct pfx_jval v, const struct pfx_jstr *name);
struct pfx_jval pfx_j_getitem(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval key);
/* x[start:stop:step]; PFX_J_NONE for what is left out */
struct pfx_jval pfx_j_slice(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval start,
	struct pfx_jval stop, struct pfx_jval step);
/* Python's clamping of slice bounds for length n; *start, *stop as given or absent. */
void pfx_j_slice_bounds(int64_t n, struct pfx_jval start, struct pfx_jval stop, int64_t step,
	int64_t *from, int64_t *to);

#endif
