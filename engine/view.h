#ifndef PFX_ENGINE_VIEW_H
#define PFX_ENGINE_VIEW_H

/*
 * The operator's view: the control jobs `hits`, `top`, `tree`, `explain` and `trace`. Each
 * makes one report out of what observe.h has gathered and of the state of the engine; none
 * changes a counter. All run on the engine thread between two steps, so what they look at is
 * bounded: by a number of rows that the request may choose up to a limit, and they say when
 * something was cut.
 */

#include "engine/engine_priv.h"
#include "engine/observe.h"

struct pfx_event *pfx_view_hits(struct pfx_engine *e, const struct pfx_job *job);
struct pfx_event *pfx_view_top(struct pfx_engine *e, const struct pfx_job *job);
/* These answer by themselves. */
void pfx_view_tree(struct pfx_engine *e, struct pfx_request *r);
void pfx_view_explain(struct pfx_engine *e, struct pfx_request *r);
void pfx_view_trace(struct pfx_engine *e, struct pfx_request *r);

/* ---- what they share ---- */

/* A request's fields. The first one that is wrong makes the fault. */
struct pfx_args {
	const struct pfx_job *job;
	struct pfx_event *fault; /* NULL: all is well */
};
uint64_t pfx_arg_int(struct pfx_args *a, const char *name, uint64_t otherwise, uint64_t lo,
	uint64_t hi);
int pfx_arg_bool(struct pfx_args *a, const char *name); /* 0 when it is not there */
/* NULL when it is not there. */
const char *pfx_arg_text(struct pfx_args *a, const char *name);

/* A report of that name; takes the report. */
struct pfx_event *pfx_view_report(const struct pfx_job *job, const char *name, json_t *report);
/* The same with more members written as text, which is taken; `internal` when it had no memory. */
struct pfx_event *pfx_view_written(const struct pfx_job *job, const char *name, json_t *report,
	struct pfx_buf *text);
/* The text of these tokens as a JSON string. */
json_t *pfx_view_text(const struct pfx_engine *e, const uint32_t *tokens, uint32_t n);
/* Sets namespace and salt as the space's owner is known, else `space`, its name in hex. */
void pfx_view_name_space(const struct pfx_engine *e, const struct pfx_space *space, json_t *o);
uint64_t pfx_view_space_key(const struct pfx_space *space);
const char *pfx_view_op(enum pfx_job_kind kind);
const char *pfx_view_state(const struct pfx_request *r);

#endif
