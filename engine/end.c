/* How a request that runs the model ends: the only two places where one does. */
#include "engine/engine_priv.h"
#include "engine/observe.h"

#include <string.h>

#include "base/clock.h"

void pfx_end_release_followers(struct pfx_engine *e, const struct pfx_request *r)
{
	pfx_list_for(it, &e->active) {
		struct pfx_request *f = pfx_container_of(it, struct pfx_request, link);
		if (f->leader == r) {
			f->leader = NULL;
		}
	}
}

/* Takes the request out of the engine thread's lists; its pins are gone after this. */
static void detach(struct pfx_engine *e, struct pfx_request *r)
{
	if (r->state != PFX_REQUEST_QUEUED) {
		e->n_active--;
		pfx_end_release_followers(e, r);
	} else {
		e->n_waiting--;
	}
	e->progress++;
	pfx_list_remove(&r->link);
	pfx_fetch_abandon(e, r);
	if (e->starving == r->admission) {
		e->starving = 0;
	}
	pfx_path_close(r->path);
	r->path = NULL;
	pfx_space_release(r->space);
	r->space = NULL;
}

static void note_end(struct pfx_engine *e)
{
	uint64_t now = pfx_clock_ns(), turn;

	if (e->last_end_ns != 0) {
		turn = e->turn_ns;
		e->turn_ns = turn == 0 ? now - e->last_end_ns : (turn * 3 + (now - e->last_end_ns)) / 4;
	}
	e->last_end_ns = now;
}

void pfx_end(struct pfx_engine *e, struct pfx_request *r, enum pfx_finish finish)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_DONE, r->job);
	uint64_t now = pfx_clock_ns();
	struct pfx_observed seen;

	ev->last = 1;
	ev->finish = finish;
	ev->usage = r->usage;
	ev->usage.prompt_tokens = r->n_prompt;
	ev->seed = r->job->seed;
	ev->received_ns = r->received_ns;
	ev->queue_ms = pfx_ns_to_ms((r->admitted_ns != 0 ? r->admitted_ns : now) - r->received_ns);
	if (r->first_ns != 0) {
		ev->prefill_ms = pfx_ns_to_ms(r->first_ns - r->admitted_ns);
	}
	ev->total_ms = pfx_ns_to_ms(now - r->received_ns);
	ev->miss = r->miss;
	if (r->miss != PFX_MISS_NONE) {
		ev->miss_at_token = r->miss_at_token;
		ev->miss_evicted_ms_ago = r->evicted_ms_ago;
		pfx_miss_locate(e, r, r->miss_at_token, &ev->miss_message, &ev->miss_byte);
	}
	if (r->job->kind == PFX_JOB_SCORE) {
		ev->score = r->score;
		ev->score_top = r->score_top;
		ev->n_score = r->n_score;
		ev->n_score_top = r->job->logprobs > 0 ? (uint32_t)r->job->logprobs : 0;
		r->score = NULL;
		r->score_top = NULL;
	}
	pfx_observe_take(e, r, 0, finish, &seen);
	seen.facts.miss_message = ev->miss_message;
	seen.facts.miss_byte = ev->miss_byte;
	if (finish != PFX_FINISH_CANCELLED) {
		/* Lent: who keeps ids beyond this makes a copy. */
		r->tokens = seen.tokens;
		pfx_life_done(e, r, &ev);
		memset(&r->tokens, 0, sizeof(r->tokens));
		seen.facts.failed = r->failed;
		seen.facts.fault = r->fault;
	}
	detach(e, r);
	if (finish == PFX_FINISH_CANCELLED) {
		e->n.cancelled++;
	} else if (r->failed) {
		e->n.failed++;
	} else {
		e->n.done++;
	}
	note_end(e);
	pfx_request_leave(e, r, ev);
	/* Nobody waits for this but whoever asks next, and he is answered after it. */
	pfx_observe_end(e, &seen);
}

void pfx_end_fault(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev = pfx_fault_event(r->job, r->fault, r->message);
	struct pfx_observed seen;

	pfx_observe_take(e, r, 1, PFX_FINISH_STOP, &seen);
	detach(e, r);
	e->n.failed++;
	note_end(e);
	pfx_request_leave(e, r, ev);
	pfx_observe_end(e, &seen);
}
