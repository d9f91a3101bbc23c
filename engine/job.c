/* Jobs and events as engine.h shows them: names, making and freeing. */
#include "engine/engine.h"

#include "base/alloc.h"

const char *pfx_fault_name(enum pfx_fault fault)
{
	static const char *const names[] = {
		[PFX_FAULT_BAD_REQUEST] = "bad_request", [PFX_FAULT_FORBIDDEN] = "forbidden",
		[PFX_FAULT_NOT_FOUND] = "not_found", [PFX_FAULT_TOO_LONG] = "too_long",
		[PFX_FAULT_OVERLOADED] = "overloaded", [PFX_FAULT_DEADLINE] = "deadline",
		[PFX_FAULT_SHUTTING_DOWN] = "shutting_down", [PFX_FAULT_INTERNAL] = "internal",
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
		[PFX_MISS_NOT_COPIED] = "evicted", /* from the device; the reply says what more */
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
	/* What is only kept is not to be answered. */
	job->add_generation_prompt = kind != PFX_JOB_SESSION_OPEN && kind != PFX_JOB_SESSION_APPEND &&
		kind != PFX_JOB_PREFIX_PUT && kind != PFX_JOB_PREFIX_GET;
	job->max_tokens = UINT32_MAX;
	job->top_p = 1;
	job->repeat_penalty = 1;
	job->logprobs = -1;
	job->from = 1;
	return job;
}

/*
 * A key's clients share its namespace; the salt keeps what they do from one another, so what is
 * told across salts is the admin's, as are the jobs of the engine itself.
 */
const char *pfx_job_forbidden(const struct pfx_job *job)
{
	if (job->admin) {
		return NULL;
	}
	if (job->kind >= PFX_JOB_STATS && job->kind != PFX_JOB_EXPLAIN) {
		return "the op is for admins";
	}
	if (job->all && job->kind != PFX_JOB_UNPIN) {
		return "all: what other salts have is for admins";
	}
	return NULL;
}

void pfx_job_free(struct pfx_job *job)
{
	if (job == NULL) {
		return;
	}
	pfx_free(job->space);
	pfx_free(job->salt);
	pfx_free(job->session);
	pfx_free(job->prefix);
	pfx_free(job->text);
	json_decref(job->messages);
	json_decref(job->tools);
	json_decref(job->documents);
	json_decref(job->kwargs);
	json_decref(job->args);
	pfx_free(job->tokens);
	for (uint32_t i = 0; i < job->n_stop; i++) {
		pfx_free(job->stop[i]);
	}
	pfx_free(job->stop);
	pfx_free(job->stop_len);
	pfx_free(job);
}

void pfx_event_free(struct pfx_event *ev)
{
	if (ev == NULL) {
		return;
	}
	if (ev->give_back != NULL) {
		ev->give_back(ev);
		return;
	}
	pfx_free(ev->text);
	pfx_free(ev->tokens);
	pfx_free(ev->top);
	pfx_free(ev->score);
	pfx_free(ev->score_top);
	pfx_free(ev->message);
	json_decref(ev->report);
	pfx_free(ev->report_text);
	pfx_free(ev);
}
