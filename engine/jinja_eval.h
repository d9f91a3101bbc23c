#ifndef PFX_ENGINE_JINJA_EVAL_H
#define PFX_ENGINE_JINJA_EVAL_H

/*
 * Runs a template's tree. Names are looked up from the innermost scope outwards, then in
 * the globals: loops, macros, callers and blocks have a scope each, `if` has none.
 */

#include "engine/jinja_ast.h"
#include "engine/jinja_call.h"
#include "engine/jinja_str.h"

/*
 * Renders t into out. c is a fresh context whose globals (n_names of them, PFX_J_ABSENT
 * where nothing is bound) are set. Returns c->rc.
 */
int pfx_j_render(struct pfx_jctx *c, const struct pfx_jtemplate *t, struct pfx_jbuild *out);

struct pfx_jbinding {
	uint32_t id;
	struct pfx_jval val;
};

struct pfx_jscope {
	struct pfx_jscope *up;
	struct pfx_jbinding *v;
	size_t n, cap;
	int kept; /* a macro remembers it: not to be used again for another turn */
};

struct pfx_jmacro {
	const struct pfx_jnode *def;
	struct pfx_jscope *scope; /* where it was defined */
};

enum pfx_jflow { PFX_J_GO_ON, PFX_J_BROKE, PFX_J_CONTINUED };

struct pfx_jval pfx_j_eval(struct pfx_jctx *c, const struct pfx_jnode *node);
enum pfx_jflow pfx_j_exec(struct pfx_jctx *c, const struct pfx_jnode *node);
/* Runs node and gives what it printed. */
const struct pfx_jstr *pfx_j_capture(struct pfx_jctx *c, const struct pfx_jnode *node);
/* Binds v to a name, a tuple of targets or an attribute of a namespace. */
void pfx_j_assign(struct pfx_jctx *c, const struct pfx_jnode *target, struct pfx_jval v);

/* A fresh innermost scope under `up`; NULL when the context has failed. */
struct pfx_jscope *pfx_j_scope(struct pfx_jctx *c, struct pfx_jscope *up);
void pfx_j_bind(struct pfx_jctx *c, uint32_t id, struct pfx_jval v);
/* A macro or caller that sees the scope of now. */
struct pfx_jval pfx_j_macro(struct pfx_jctx *c, const struct pfx_jnode *def);
struct pfx_jval pfx_j_call_macro(struct pfx_jctx *c, const struct pfx_jmacro *m,
	const struct pfx_jargs *all);

/* jinja_loop.c: `for`, and the value named loop. */
void pfx_j_exec_for(struct pfx_jctx *c, const struct pfx_jnode *node);
struct pfx_jval pfx_j_loop_attr(struct pfx_jctx *c, struct pfx_jval v, const struct pfx_jstr *name);
struct pfx_jval pfx_j_call_loop(struct pfx_jctx *c, struct pfx_jloop *loop,
	const struct pfx_jargs *all);

#endif
