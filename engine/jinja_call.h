#ifndef PFX_ENGINE_JINJA_CALL_H
#define PFX_ENGINE_JINJA_CALL_H

/*
 * Everything that a template can call and that is written in C: filters, tests, methods of
 * values and functions of the environment, as tables of struct pfx_jdef; and how arguments
 * come to parameters.
 */

#include "engine/jinja_value.h"

#define PFX_J_PARAMS_MAX 6

struct pfx_jkwarg {
	const struct pfx_jstr *name;
	struct pfx_jval val;
};

struct pfx_jargs {
	struct pfx_jval *v;
	size_t n;
	struct pfx_jkwarg *kw;
	size_t n_kw;
};

/*
 * self is what stands in front of the pipe, `is` or dot. arg[i] belongs to parameter i and
 * is PFX_J_ABSENT where none was given; all has the arguments as they were written.
 */
typedef struct pfx_jval (*pfx_jfn)(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jval *arg, const struct pfx_jargs *all);

struct pfx_jdef {
	const char *name;
	pfx_jfn fn;
	const char *params; /* "old new count"; "*": any, fn looks at `all` itself */
	int n_min;          /* how many must be given */
};

struct pfx_jval pfx_j_call_def(struct pfx_jctx *c, const struct pfx_jdef *def,
	struct pfx_jval self, const struct pfx_jargs *all);
/* Anything callable; fails on what is not. */
struct pfx_jval pfx_j_call(struct pfx_jctx *c, struct pfx_jval callee, const struct pfx_jargs *all);

/* NULL when there is none of that name. */
const struct pfx_jdef *pfx_j_filter_named(const struct pfx_jstr *name);
const struct pfx_jdef *pfx_j_test_named(const struct pfx_jstr *name);
/* The method of that name that values of the type of v have. */
const struct pfx_jdef *pfx_j_method_named(struct pfx_jval v, const struct pfx_jstr *name);
/* Entry i of the environment's functions; NULL after the last. */
const struct pfx_jdef *pfx_j_function(size_t i);

/* Shared by the tables. Parameters that were not given take the value on the right. */
int64_t pfx_j_arg_int(struct pfx_jctx *c, struct pfx_jval v, int64_t otherwise);
int pfx_j_arg_truth(struct pfx_jctx *c, struct pfx_jval v, int otherwise);
/* The string itself; fails, naming `what`, when v is no string. */
const struct pfx_jstr *pfx_j_need_str(struct pfx_jctx *c, struct pfx_jval v, const char *what);
/* Looks a name up in a table that ends with a NULL name. */
const struct pfx_jdef *pfx_j_in_table(const struct pfx_jdef *table, const struct pfx_jstr *name);
/* dict(...), or namespace(...) as the type says */
struct pfx_jval pfx_j_make_dict(struct pfx_jctx *c, const struct pfx_jargs *all, enum pfx_jtype type);
/* A stable sort of list by `keys` (same length), in place. */
void pfx_j_sort(struct pfx_jctx *c, struct pfx_jval list, struct pfx_jval keys, int reverse);

#endif
