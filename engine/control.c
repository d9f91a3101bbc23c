/* Jobs that ask or tell the engine itself: one function a kind, run between two steps. */
#include "engine/engine_priv.h"
#include "engine/view.h"

static struct pfx_event *stats(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_STATS, job);

	ev->report = pfx_report_stats(e);
	return ev;
}

static struct pfx_event *check(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_CHECK, job);

	ev->report = pfx_report_check(e);
	return ev;
}

/* Each answers with the job's last event, a fault's included. */
static struct pfx_event *(*const controls[])(struct pfx_engine *e, const struct pfx_job *job) = {
	[PFX_JOB_STATS] = stats,
	[PFX_JOB_CHECK] = check,
	[PFX_JOB_HITS] = pfx_view_hits,
	[PFX_JOB_TOP] = pfx_view_top,
};

/* These answer by themselves, now or in a later turn, and may want the prompt's tokens. */
static void (*const controls_later[])(struct pfx_engine *e, struct pfx_request *r) = {
	[PFX_JOB_FLUSH] = pfx_control_flush,
	[PFX_JOB_EVICT] = pfx_control_evict,
	[PFX_JOB_SAVE] = pfx_control_save,
	[PFX_JOB_STORE] = pfx_control_store,
	[PFX_JOB_TREE] = pfx_view_tree,
	[PFX_JOB_EXPLAIN] = pfx_view_explain,
	[PFX_JOB_TRACE] = pfx_view_trace,
};

#define N_LATER (sizeof(controls_later) / sizeof(controls_later[0]))

void pfx_control_answer(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *ev)
{
	ev->last = 1;
	pfx_request_leave(e, r, ev);
}

void pfx_control_run(struct pfx_engine *e, struct pfx_request *r)
{
	enum pfx_job_kind kind = r->job->kind;

	if (r->failed) {
		/* Its prompt was wrong. */
		pfx_control_answer(e, r, pfx_fault_event(r->job, r->fault, r->message));
	} else if (kind < N_LATER && controls_later[kind] != NULL) {
		controls_later[kind](e, r);
	} else {
		pfx_control_answer(e, r, controls[kind](e, r->job));
	}
}
