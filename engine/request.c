/* Requests: making, failing, leaving. */
#include "engine/engine_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

/* When to try again what found a table full: nobody knows when one will leave it. */
#define RETRY_MS 1000u

struct pfx_request *pfx_request_new(struct pfx_job *job)
{
	struct pfx_request *r = pfx_xcalloc(1, sizeof(*r));
	uint64_t now = pfx_clock_ns();

	r->job = job;
	pfx_list_init(&r->all);
	pfx_list_init(&r->link);
	pfx_list_init(&r->orders);
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
	pfx_key_free(&r->key);
	pfx_content_release(r->prefix);
	pfx_free(r->specials);
	pfx_buf_free(&r->said);
	pfx_buf_free(&r->held);
	pfx_free(r->message);
	pfx_free(r->score);
	pfx_free(r->score_top);
	pfx_event_free(r->answer);
	pfx_job_free(r->job);
	pfx_free(r);
}

void pfx_request_expect_tokens(struct pfx_request *r, size_t n)
{
	struct pfx_ids *ids = &r->tokens;

	if (ids->cap < n) {
		ids->cap = n;
		ids->v = pfx_xrealloc(ids->v, n * sizeof(*ids->v));
	}
}

void pfx_request_push_tokens(struct pfx_request *r, const uint32_t *tokens, size_t n)
{
	struct pfx_ids *ids = &r->tokens;

	if (n == 0) {
		return;
	}
	pfx_request_expect_tokens(r, ids->n + n);
	memcpy(ids->v + ids->n, tokens, n * sizeof(*tokens));
	ids->n += n;
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
	ev->retry_after_ms = fault == PFX_FAULT_OVERLOADED ? RETRY_MS : 0;
	return ev;
}

void pfx_request_leave(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *last)
{
	struct pfx_turn *turn = r->turn;

	pfx_life_leave(e, r);
	pthread_mutex_lock(&e->lock);
	pfx_list_remove(&r->all);
	pthread_mutex_unlock(&e->lock);
	pfx_request_free(r);
	pfx_events_post(e, last);
	/* Behind the answer, so that the next turn's cannot overtake it. */
	if (turn != NULL) {
		pthread_mutex_lock(&e->lock);
		pfx_turn_leave_locked(e, turn);
		pthread_mutex_unlock(&e->lock);
	}
}
