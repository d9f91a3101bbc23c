#include "tests/engine_util.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

void reply_free(struct reply *r)
{
	free(r->tokens);
	free(r->digests);
	free(r->logprobs);
	free(r->text);
	free(r->score);
	json_decref(r->report);
	memset(r, 0, sizeof(*r));
}

static void die(const char *what)
{
	printf("Bail out! %s\n", what);
	exit(1);
}

struct pfx_engine *open_engine(const struct pfx_engine_opts *opts)
{
	struct pfx_engine *e;
	char err[512] = "";

	if (pfx_engine_open(&e, opts, err, sizeof(err)) != 0) {
		die(err);
	}
	return e;
}

struct pfx_job *token_job(enum pfx_job_kind kind, const uint32_t *tokens, uint32_t n,
	uint32_t max_tokens)
{
	struct pfx_job *job = pfx_job_new(kind);

	job->prompt = PFX_PROMPT_TOKENS;
	job->tokens = pfx_memdup(tokens, n * sizeof(*tokens));
	job->n_tokens = n;
	job->max_tokens = max_tokens;
	job->digest = 1;
	job->ignore_eos = 1;
	return job;
}

struct pfx_job *text_job(enum pfx_job_kind kind, const char *text, uint32_t max_tokens)
{
	struct pfx_job *job = pfx_job_new(kind);

	job->prompt = PFX_PROMPT_TEXT;
	job->text = pfx_strdup(text);
	job->text_len = strlen(text);
	job->max_tokens = max_tokens;
	return job;
}

void start_as_client(struct pfx_engine *e, struct pfx_job *job, struct reply *r)
{
	memset(r, 0, sizeof(*r));
	job->user = r;
	r->number = pfx_engine_submit(e, job);
}

void start(struct pfx_engine *e, struct pfx_job *job, struct reply *r)
{
	job->admin = 1;
	start_as_client(e, job, r);
}

static void add_text(struct reply *r, const char *text, size_t n)
{
	r->text = realloc(r->text, r->text_len + n + 1);
	memcpy(r->text + r->text_len, text, n);
	r->text_len += n;
	r->text[r->text_len] = 0;
}

static void add_token(struct reply *r, const struct pfx_event *ev)
{
	if (r->n == r->cap) {
		r->cap = r->cap * 2 + 16;
		r->tokens = realloc(r->tokens, r->cap * sizeof(*r->tokens));
		r->digests = realloc(r->digests, r->cap * sizeof(*r->digests));
		r->logprobs = realloc(r->logprobs, r->cap * sizeof(*r->logprobs));
	}
	r->tokens[r->n] = ev->token;
	r->digests[r->n] = ev->digest;
	r->logprobs[r->n++] = ev->logprob;
	if (ev->text != NULL) {
		add_text(r, ev->text, ev->text_len);
	}
}

static void take(struct pfx_event *ev)
{
	struct reply *r = ev->user;

	if (r->ended) {
		die("an event after the last one");
	}
	switch (ev->kind) {
	case PFX_EVENT_TOKEN:
		add_token(r, ev);
		break;
	case PFX_EVENT_PREFILL:
		r->n_prefill++;
		break;
	case PFX_EVENT_TOKENS:
		r->tokens = malloc(ev->n_tokens * sizeof(*r->tokens) + 1);
		if (ev->n_tokens > 0) {
			memcpy(r->tokens, ev->tokens, ev->n_tokens * sizeof(*r->tokens));
		}
		r->n = (uint32_t)ev->n_tokens;
		break;
	case PFX_EVENT_TEXT:
		add_text(r, ev->text, ev->text_len);
		break;
	case PFX_EVENT_ERROR:
		r->fault = ev->fault;
		snprintf(r->message, sizeof(r->message), "%s", ev->message);
		break;
	default:
		break;
	}
	if (!ev->last) {
		return;
	}
	r->ended = 1;
	r->kind = ev->kind;
	r->finish = ev->finish;
	r->usage = ev->usage;
	r->seed = ev->seed;
	r->miss = ev->miss;
	r->miss_at_token = ev->miss_at_token;
	r->n_score = ev->n_score;
	if (ev->score != NULL) {
		r->score = malloc(ev->n_score * sizeof(*r->score));
		memcpy(r->score, ev->score, ev->n_score * sizeof(*r->score));
	}
	r->report = json_incref(ev->report);
	r->flushed = ev->flushed_device;
	r->in_use = ev->in_use;
	r->durable = ev->durable;
	r->moving = ev->flushed_moving;
}

void take_events(struct pfx_engine *e)
{
	struct pfx_event *ev;

	while ((ev = pfx_engine_next(e)) != NULL) {
		take(ev);
		pfx_event_free(ev);
	}
}

void wait_all(struct pfx_engine *e, struct reply **r, uint32_t n)
{
	struct pollfd p = { .fd = pfx_engine_event_fd(e), .events = POLLIN };

	for (uint32_t i = 0; i < n; i++) {
		while (!r[i]->ended) {
			if (poll(&p, 1, 60000) <= 0) {
				die("no event for a minute");
			}
			take_events(e);
		}
	}
}

void run(struct pfx_engine *e, struct pfx_job *job, struct reply *r)
{
	start(e, job, r);
	wait_all(e, &r, 1);
}

void flush(struct pfx_engine *e)
{
	struct reply r;

	run(e, pfx_job_new(PFX_JOB_FLUSH), &r);
	reply_free(&r);
}

int problems(struct pfx_engine *e)
{
	struct reply r;
	json_t *list, *text;
	size_t i;
	int n;

	run(e, pfx_job_new(PFX_JOB_CHECK), &r);
	list = json_object_get(r.report, "problems");
	n = (int)json_array_size(list);
	json_array_foreach(list, i, text) {
		printf("# check: %s\n", json_string_value(text));
	}
	if (json_is_true(json_object_get(r.report, "ok")) != (n == 0)) {
		n = -1;
	}
	reply_free(&r);
	return n;
}

long long stat_of(struct pfx_engine *e, const char *path)
{
	struct reply r;
	char key[128], *part, *rest = key;
	json_t *at;
	long long value;

	run(e, pfx_job_new(PFX_JOB_STATS), &r);
	snprintf(key, sizeof(key), "%s", path);
	at = r.report;
	while ((part = strsep(&rest, ".")) != NULL) {
		at = json_object_get(at, part);
	}
	if (!json_is_integer(at)) {
		die(path);
	}
	value = json_integer_value(at);
	reply_free(&r);
	return value;
}
