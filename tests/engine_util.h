#ifndef PFX_TESTS_ENGINE_UTIL_H
#define PFX_TESTS_ENGINE_UTIL_H

/*
 * A blocking client of engine/engine.h for tests: submits jobs, gathers their events.
 */

#include "engine/engine.h"

struct reply {
	uint64_t number;
	int ended;             /* the last event came; more than one is a failure of the test */
	enum pfx_event_kind kind; /* of the last event */
	enum pfx_finish finish;
	enum pfx_fault fault;
	char message[256];
	struct pfx_usage usage;
	uint64_t seed;
	uint32_t *tokens;
	uint64_t *digests;
	float *logprobs;
	uint32_t n, cap;
	char *text;
	size_t text_len;
	float *score;
	uint32_t n_score;
	enum pfx_miss_reason miss;
	uint32_t miss_at_token;
	uint32_t n_prefill;
	json_t *report;
	uint32_t flushed, in_use, durable, moving;
};

void reply_free(struct reply *r);

/* Opens an engine on the model or ends the program with the error. */
struct pfx_engine *open_engine(const struct pfx_engine_opts *opts);

/* A job with a copy of these tokens as its prompt; digests are asked for. */
struct pfx_job *token_job(enum pfx_job_kind kind, const uint32_t *tokens, uint32_t n,
	uint32_t max_tokens);
struct pfx_job *text_job(enum pfx_job_kind kind, const char *text, uint32_t max_tokens);

/* Submits, as an admin; r gathers what comes back. r must outlive the request. */
void start(struct pfx_engine *e, struct pfx_job *job, struct reply *r);
/* The same as somebody who is none. */
void start_as_client(struct pfx_engine *e, struct pfx_job *job, struct reply *r);
/* Takes events until all n replies have ended. Fails the program after a minute of silence. */
void wait_all(struct pfx_engine *e, struct reply **r, uint32_t n);
/* Takes what is there now, without waiting. */
void take_events(struct pfx_engine *e);
/* start and wait of one. */
void run(struct pfx_engine *e, struct pfx_job *job, struct reply *r);

/* FLUSH, and the number of problems that CHECK finds (each printed as a comment). */
void flush(struct pfx_engine *e);
int problems(struct pfx_engine *e);
/* A number out of STATS by path, such as "tiers.device.free". */
long long stat_of(struct pfx_engine *e, const char *path);

#endif
