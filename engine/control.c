/* Jobs that ask or tell the engine itself: one function a kind, run between two steps. */
#include "engine/engine_priv.h"

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

static struct pfx_event *flush(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_FLUSHED, job);
	struct pfx_flushed flushed;

	pfx_cache_flush(e->cache, NULL, PFX_TIER_ALL, &flushed);
	/* Who runs keeps its blocks, but nobody can follow it any more. */
	pfx_list_for(it, &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		r->unshared = 1;
		r->leader = NULL;
	}
	ev->flushed_device = flushed.blocks[PFX_TIER_DEVICE];
	ev->in_use = flushed.in_use;
	return ev;
}

/* Each answers with the job's last event, a fault's included. */
static struct pfx_event *(*const controls[])(struct pfx_engine *e, const struct pfx_job *job) = {
	[PFX_JOB_STATS] = stats,
	[PFX_JOB_CHECK] = check,
	[PFX_JOB_FLUSH] = flush,
};

void pfx_control_run(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev = controls[r->job->kind](e, r->job);

	ev->last = 1;
	pfx_request_leave(e, r, ev);
}
