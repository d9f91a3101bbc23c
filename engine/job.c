/* Jobs and requests: making, failing, leaving. */
#include "engine/engine_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

const char *pfx_fault_name(enum pfx_fault fault)
{
	static const char *const names[] = {
		[PFX_FAULT_BAD_REQUEST] = "bad_request", [PFX_FAULT_NOT_FOUND] = "not_found",
		[PFX_FAULT_TOO_LONG] = "too_long", [PFX_FAULT_OVERLOADED] = "overloaded",
		[PFX_FAULT_DEADLINE] = "deadline", [PFX_FAULT_SHUTTING_DOWN] = "shutting_down",
		[PFX_FAULT_INTERNAL] = "internal",
	};

	return names[fault];
}

const char *pfx_finish_name(enum pfx_finish finish)
{
	static const char *const names[] = {
		[PFX_FINISH_STOP] = "stop",
		[PFX_FINISH_LENGTH] = "length",
		[PFX_FINISH_CANCELLED] = "cancelled",
	};

	return names[finish];
}

const char *pfx_miss_name(enum pfx_miss_reason reason)
{
	static const char *const names[] = {
		[PFX_MISS_NONE] = "none",
		[PFX_MISS_NEVER_SEEN] = "never_seen",
		[PFX_MISS_EVICTED] = "evicted",
		[PFX_MISS_DIVERGED] = "diverged",
	};

	return names[reason];
}

struct pfx_job *pfx_job_new(enum pfx_job_kind kind)
{
	struct pfx_job *job = pfx_calloc(1, sizeof(*job));

	if (job == NULL) {
		return NULL;
	}
	job->kind = kind;
	job->add_generation_prompt = 1;
	job->max_tokens = UINT32_MAX;
	job->top_p = 1;
	job->repeat_penalty = 1;
	job->logprobs = -1;
	job->from = 1;
	return job;
}

void pfx_job_free(struct pfx_job *job)
{
	if (job == NULL) {
		return;
	}
	pfx_free(job->space);
	pfx_free(job->salt);
	pfx_free(job->text);
	json_decref(job->messages);
	json_decref(job->tools);
	json_decref(job->documents);
	json_decref(job->kwargs);
	pfx_free(job->tokens);
	for (uint32_t i = 0; i < job->n_stop; i++) {
		pfx_free(job->stop[i]);
	}
	pfx_free(job->stop);
	pfx_free(job->stop_len);
	pfx_free(job);
}

struct pfx_request *pfx_request_new(struct pfx_job *job)
{
	struct pfx_request *r = pfx_xcalloc(1, sizeof(*r));
	uint64_t now = pfx_clock_ns();

	r->job = job;
	pfx_list_init(&r->all);
	pfx_list_init(&r->link);
	r->received_ns = job->received_ns != 0 ? job->received_ns : now;
	if (job->deadline_ms != 0) {
		r->deadline_ns = r->received_ns + (uint64_t)job->deadline_ms * 1000000u;
	}
	return r;
}

void pfx_request_free(struct pfx_request *r)
{
	pfx_path_close(r->path);
	pfx_ids_free(&r->tokens);
	pfx_buf_free(&r->text);
	pfx_buf_free(&r->held);
	pfx_free(r->message);
	pfx_free(r->score);
	pfx_free(r->score_top);
	pfx_job_free(r->job);
	pfx_free(r);
}

void pfx_request_fail(struct pfx_request *r, enum pfx_fault fault, const char *fmt, ...)
{
	char message[1024];
	va_list ap;

	if (r->failed) {
		return;
	}
	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	r->failed = 1;
	r->fault = fault;
	r->message = pfx_xstrdup(message);
}

struct pfx_event *pfx_fault_event(const struct pfx_job *job, enum pfx_fault fault,
	const char *message)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_ERROR, job);

	ev->last = 1;
	ev->fault = fault;
	ev->message = pfx_xstrdup(message);
	return ev;
}

void pfx_request_leave(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *last)
{
	pthread_mutex_lock(&e->lock);
	pfx_list_remove(&r->all);
	pthread_mutex_unlock(&e->lock);
	pfx_request_free(r);
	pfx_events_post(e, last);
}
