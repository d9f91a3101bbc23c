/* trace: starts, stops and tells of the recorder (recorder.h). */
#include "config.h"

#include "engine/view.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

#define MAX_BYTES_DEFAULT (1ull << 30)
#define MAX_BYTES_LEAST 1024u

static struct pfx_event *status(const struct pfx_engine *e, const struct pfx_job *job)
{
	return pfx_view_report(job, "trace", pfx_recorder_status(e->observer->recorder));
}

/* Who waits for the recorder's thread. It answers from there; the engine goes on meanwhile. */
struct waiter {
	struct pfx_engine *engine;
	struct pfx_request *request;
};

static struct waiter *waiter_new(struct pfx_engine *e, struct pfx_request *r)
{
	struct waiter *w = pfx_malloc(sizeof(*w));

	if (w != NULL) {
		w->engine = e;
		w->request = r;
	}
	return w;
}

static void answer(struct waiter *w, struct pfx_event *ev)
{
	pfx_control_answer(w->engine, w->request, ev);
	pfx_free(w);
}

static void on_opened(void *arg, struct pfx_recorder *rec, const char *error)
{
	struct waiter *w = arg;
	const struct pfx_job *job = w->request->job;

	answer(w, error != NULL ? pfx_fault_event(job, PFX_FAULT_BAD_REQUEST, error)
		: pfx_view_report(job, "trace", pfx_recorder_status(rec)));
}

static void on_ended(void *arg, struct pfx_recorder *rec)
{
	struct waiter *w = arg;

	answer(w, pfx_view_report(w->request->job, "trace", pfx_recorder_status(rec)));
}

static struct pfx_event *start(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_args a = { .job = r->job };
	struct pfx_observer *o = e->observer;
	struct pfx_recorder_opts opts = {
		.path = pfx_arg_text(&a, "path"),
		.max_bytes = pfx_arg_int(&a, "max_bytes", MAX_BYTES_DEFAULT, MAX_BYTES_LEAST, INT64_MAX),
		.block_tokens = e->info.block_tokens,
		.start_ns = pfx_clock_ns(),
		.opened = on_opened,
	};

	if (a.fault != NULL) {
		return a.fault;
	}
	if (opts.path == NULL || opts.path[0] != '/') {
		return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST,
			"path must be an absolute path on the server's machine");
	}
	if (pfx_recorder_is_on(o->recorder)) {
		return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST, "a trace is being recorded already");
	}
	if (!pfx_recorder_is_done(o->recorder)) {
		return pfx_fault_event(r->job, PFX_FAULT_OVERLOADED,
			"the last trace is still being written");
	}
	pfx_recorder_close(o->recorder);
	o->recorder = NULL;
	opts.arg = waiter_new(e, r);
	if (opts.arg == NULL || pfx_recorder_start(&o->recorder, &opts) != 0) {
		pfx_free(opts.arg);
		return pfx_fault_event(r->job, PFX_FAULT_INTERNAL, "cannot start the trace's thread");
	}
	return NULL;
}

static struct pfx_event *stop(struct pfx_engine *e, struct pfx_request *r)
{
	struct waiter *w;

	if (!pfx_recorder_is_on(e->observer->recorder)) {
		return pfx_fault_event(r->job, PFX_FAULT_NOT_FOUND, "no trace is being recorded");
	}
	w = waiter_new(e, r);
	if (w == NULL) {
		return pfx_fault_event(r->job, PFX_FAULT_INTERNAL, "out of memory");
	}
	pfx_recorder_stop(e->observer->recorder, on_ended, w);
	return NULL;
}

static struct pfx_event *trace(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_args a = { .job = r->job };
	const char *action = pfx_arg_text(&a, "action");

	if (a.fault != NULL) {
		return a.fault;
	}
	if (action != NULL && strcmp(action, "start") == 0) {
		return start(e, r);
	}
	if (json_object_get(r->job->args, "path") != NULL ||
		json_object_get(r->job->args, "max_bytes") != NULL) {
		/* Who says where to write, or how much, takes it that it is heeded. */
		return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST,
			"path and max_bytes go with the action start alone");
	}
	if (action != NULL && strcmp(action, "stop") == 0) {
		return stop(e, r);
	}
	if (action != NULL && strcmp(action, "status") == 0) {
		return status(e, r->job);
	}
	return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST, "action must be start, stop or status");
}

void pfx_view_trace(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev = trace(e, r);

	/* NULL: the recorder's thread has it, and answers. */
	if (ev != NULL) {
		pfx_control_answer(e, r, ev);
	}
}
