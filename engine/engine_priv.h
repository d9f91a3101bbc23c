#ifndef PFX_ENGINE_ENGINE_PRIV_H
#define PFX_ENGINE_ENGINE_PRIV_H

/*
 * What the files behind engine.h share. Two threads work here:
 *
 *   text threads   render chat templates, tokenise, detokenise (text.c): one for long texts,
 *                  one for all others
 *   engine thread  owns model, cache, kept logits and every request that has its tokens
 *                  (sched.c, admit.c, fetch.c, step.c, reply.c, end.c, report.c, tiers.c)
 *   mover, loaders, writer  carry KV between the tiers (mover.h)
 *
 * A request belongs to one of them at a time and travels through the queues below, which
 * `lock` protects together with the registry and the turns of sessions. Only `cancel` of a
 * request is touched by others. Events have a queue and a lock of their own (events.c), and
 * so have the tables of sessions and of named prefixes; no lock is held while another is
 * taken. The inside of a session belongs to the request whose turn it is.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/list.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/keep.h"
#include "engine/named.h"
#include "engine/pieces.h"
#include "engine/session.h"
#include "engine/model.h"
#include "engine/sample.h"
#include "engine/tiers.h"
#include "engine/tokenizer.h"
#include "radix/cache.h"

enum pfx_request_state {
	PFX_REQUEST_QUEUED,    /* in a queue: text, inbox or waiting */
	PFX_REQUEST_FOLLOWING, /* holds a path; what it needs next is being computed by `leader` */
	PFX_REQUEST_FETCHING,  /* holds a path; what it needs next is being copied (fetch.c) */
	PFX_REQUEST_RUNNING,   /* holds a path; runs tokens[len..n_tokens) */
};

struct pfx_request {
	struct pfx_list all;  /* registry; under engine->lock */
	struct pfx_list link; /* the one queue or list that the request is in */
	struct pfx_job *job;
	enum pfx_request_state state;
	_Atomic int cancel;

	/* What was asked: prompt tokens first, then the reply's. */
	struct pfx_ids tokens;
	uint32_t n_prompt;
	struct pfx_buf text; /* prompt as text, for telling where it missed; may be empty */
	struct pfx_space *space;
	uint64_t space_key; /* a digest of the space's name, for the operator's view */
	/* Lifetimes (life.c, turns.c). */
	struct pfx_key key;          /* of the session or prefix that the job names; or of none */
	struct pfx_turn *turn;       /* this request has the turn */
	int waits_turn;              /* in the queue of its session's turns; under engine->lock */
	struct pfx_session *session; /* in a turn of this request's */
	int closes;                  /* the session ends with this turn */
	struct pfx_content *prefix;  /* what the job's prefix meant when it was submitted */
	int replaced;                /* PREFIX_PUT */
	struct pfx_event *answer;    /* FLUSH, EVICT: told once what it began has ended */
	uint64_t asked_ns;           /* ... which began then, */
	uint64_t spills_until, deletes_until; /* and has when so many are over; NOT_ORDERED: not yet */
	size_t turn_bytes;           /* what the job brings to its session, about */
	struct pfx_span *specials;   /* of text: where special tokens were read, for the session */
	size_t n_specials;
	struct pfx_buf said; /* the reply's text, for the session */

	/* A failure found by the text thread; the engine thread ends the request with it. */
	int failed;
	enum pfx_fault fault;
	char *message;

	/* The running part. */
	struct pfx_path *path;
	int unshared; /* what the path computes stays its own: store false, or flushed */
	struct pfx_request *leader;
	uint32_t follow_to;   /* FOLLOWING: tokens that the leader will have published */
	uint64_t admission;   /* age: the lower the older; kept over a preemption */
	uint32_t counted;     /* prompt tokens that usage accounts for already */
	uint32_t step_rows;   /* rows of this step; 0: not in it */
	uint32_t step_from;   /* position of the first of them */
	uint32_t step_out;    /* index of its first out row, and */
	uint32_t step_n_out;  /* how many it has */
	struct pfx_block_copy copy;
	int alone_retry; /* gave up a partial block to fit; see sched.c */

	/* FETCHING: blocks [.., fetch_next) are ordered, tokens below fetch_to are wanted. */
	struct pfx_list orders; /* struct pfx_order of_owner, by block */
	uint32_t fetch_next, fetch_to;
	uint64_t fetch_by_ns; /* later it computes */
	int fetch_queued;     /* the next block wanted is in the store */
	int fetch_torn;       /* the path holds blocks behind a gap */
	int no_fetch;         /* until it is admitted anew */
	/* Where its tokens lay when it was first admitted: below these, in order. */
	uint32_t at_device, at_host, at_disk;

	/* The reply. */
	uint32_t n_reply;
	struct pfx_detok detok;
	struct pfx_buf held; /* text that may yet turn out to be part of a stop string */
	float *score;
	struct pfx_top *score_top;
	uint32_t n_score;

	struct pfx_usage usage;
	enum pfx_miss_reason miss;
	uint32_t miss_at_token;
	double evicted_ms_ago; /* MISS_EVICTED; < 0: not known */
	int missed; /* miss is decided */
	uint32_t attached, recomputed, preempted; /* as the counters of those names */
	uint64_t received_ns, deadline_ns, admitted_ns, first_ns;
};

/* Counters; the engine thread's own. */
struct pfx_engine_counters {
	uint64_t prompt, computed, cached_device, cached_host, cached_disk, generated;
	uint64_t done, cancelled, failed;
	uint64_t steps, rows, recomputed, preempted, attached, kept_hits;
	uint64_t leases_expired;
};

enum { PFX_TEXT_SHORT, PFX_TEXT_LONG, PFX_N_TEXT };

/* A text thread's queue; under engine->lock. */
struct pfx_text_queue {
	struct pfx_engine *engine;
	struct pfx_list requests;
	pthread_cond_t wake;
	pthread_t thread;
};

struct pfx_events {
	pthread_mutex_t lock;
	struct pfx_event_node *head, **tail;
	struct pfx_event_node *nodes, *free; /* events of steps, which take no memory each */
	uint32_t n_free;
	int fd;
};

struct pfx_engine {
	struct pfx_engine_opts opts;
	struct pfx_engine_info info;
	struct pfx_model *model;
	struct pfx_tokenizer *tokenizer;
	struct pfx_pieces *pieces; /* NULL: --text-cache off */
	struct pfx_chat *chat; /* NULL: the model has no template */
	char *chat_source;
	struct pfx_cache *cache;
	struct pfx_sessions *sessions;
	struct pfx_named *named;
	struct pfx_keep *keep;
	struct pfx_tiers tiers;
	struct pfx_sampler *sampler;
	struct pfx_events events;
	struct tm template_time;
	uint64_t opened_ns;

	pthread_t engine_thread;
	pthread_mutex_t lock;
	pthread_cond_t engine_wake;
	/* Under lock. */
	struct pfx_text_queue text[PFX_N_TEXT];
	struct pfx_list all, inbox;
	struct pfx_map turns; /* sessions that somebody has the turn of */
	uint32_t n_turns_waiting;
	uint32_t n_text, n_inbox; /* waiting in the text queues, and in the inbox */
	uint64_t next_number;
	int stopping;
	int woken; /* somebody has something for the engine thread beside the inbox */
	_Atomic int draining;
	_Atomic uint32_t n_waiting, n_active; /* written by the engine thread */
	_Atomic uint32_t n_busy;
	_Atomic uint64_t turn_ns; /* smoothed time between two requests' ends */
	_Atomic uint64_t n_refused; /* overloaded: they never got into a queue */

	/* The engine thread's own. */
	struct pfx_list waiting, active; /* both oldest first */
	struct pfx_list leases;  /* oldest first */
	uint64_t lease_due_ns;   /* when the next one ends; UINT64_MAX: none */
	uint64_t next_lease;
	uint32_t n_leases;
	uint64_t next_admission;
	/*
	 * The oldest request (by admission) that waits for room until copies have ended; 0: none.
	 * Younger ones take no block before it has its own.
	 */
	uint64_t starving;
	uint64_t progress, slept_at; /* raised by all that moves something; its value at a turn's begin */
	uint64_t last_end_ns, looked_ns;
	uint32_t step_rows; /* of the last step */
	double ns_per_row; /* smoothed cost of a prompt row; 0: not known yet */
	struct pfx_engine_counters n;
	struct pfx_observer *observer; /* what the operator's view counts (observe.h) */
	/* Arrays of a step, allocated at open. */
	uint32_t rows_max, out_rows_max;
	uint32_t *step_tokens, *step_out_rows;
	struct pfx_batch_seq *step_seqs;
	struct pfx_request **step_requests;
};

/* events.c */
int pfx_events_open(struct pfx_events *q);
void pfx_events_close(struct pfx_events *q);
struct pfx_event *pfx_event_new(enum pfx_event_kind kind, const struct pfx_job *job);
/*
 * The same for TOKEN and PREFILL, out of what is kept for them while there is any. Text and top
 * are set by these alone.
 */
struct pfx_event *pfx_event_of_step(struct pfx_engine *e, enum pfx_event_kind kind,
	const struct pfx_job *job);
/* Memory for n bytes of text and a NUL. */
char *pfx_event_text(struct pfx_event *ev, size_t n);
/* Memory for the PFX_LOGPROBS_MAX best. */
struct pfx_top *pfx_event_top(struct pfx_event *ev);
/* Takes ev. */
void pfx_events_post(struct pfx_engine *e, struct pfx_event *ev);

/* request.c */
struct pfx_request *pfx_request_new(struct pfx_job *job);
void pfx_request_free(struct pfx_request *r);
void pfx_request_push_tokens(struct pfx_request *r, const uint32_t *tokens, size_t n);
/* Room for so many tokens in all, so that those to come allocate nothing. */
void pfx_request_expect_tokens(struct pfx_request *r, size_t n);
/* Records a failure; the first one counts. */
void pfx_request_fail(struct pfx_request *r, enum pfx_fault fault, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Removes the request from the registry, posts its last event and frees it. Any thread. */
void pfx_request_leave(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *last);
struct pfx_event *pfx_fault_event(const struct pfx_job *job, enum pfx_fault fault,
	const char *message);

/* engine.c: hands a request to the engine thread. */
void pfx_engine_enqueue(struct pfx_engine *e, struct pfx_request *r);
/* Any thread: the engine thread looks for what there is to do. */
void pfx_engine_wake(struct pfx_engine *e);
/* Under lock: 0, or ETIMEDOUT; ms 0 is for ever. */
int pfx_engine_nap_locked(struct pfx_engine *e, uint32_t ms);
/* The engine thread waits to be woken, at most so long. */
void pfx_engine_sleep(struct pfx_engine *e, uint32_t ms);

/* text.c */
/* The job's own prompt, behind the ids that the request has already. Marks failures. */
void pfx_text_tokenise(struct pfx_engine *e, struct pfx_request *r);
void *pfx_text_main(void *text_queue);
/* Puts a request into the queue that its size asks for. Under engine->lock. */
void pfx_text_put_locked(struct pfx_engine *e, struct pfx_request *r);

/* sched.c */
void *pfx_sched_main(void *engine);
/*
 * Makes positions up to upto of r writable, preempting younger requests while there is no
 * room. 0; -EAGAIN: when copies under way have ended; PFX_E_FULL: it is alone with the whole
 * memory; -ECANCELED: r is gone, or back in the queue.
 */
int pfx_sched_reserve(struct pfx_engine *e, struct pfx_request *r, uint32_t upto);
/* Whose cache the job means: its space, to be released, and a digest of the space's name. */
int pfx_sched_space(struct pfx_engine *e, const struct pfx_job *job, struct pfx_space **out,
	uint64_t *key);

/* admit.c: the engine thread's. Both may end requests. */
void pfx_admit(struct pfx_engine *e);
void pfx_admit_followers(struct pfx_engine *e);
/* Checks what can be known before a request holds anything; marks it and returns 0 when it
 * can never run. */
int pfx_admit_possible(struct pfx_engine *e, struct pfx_request *r);
/* FETCHING is over: what has come is published. May end it. */
void pfx_admit_fetched(struct pfx_engine *e, struct pfx_request *r);
/* How many of the first n ids are the same. */
uint32_t pfx_common_prefix(const uint32_t *a, const uint32_t *b, uint32_t n);
/* What the queue will need is made young before something must go. */
void pfx_admit_look_ahead(struct pfx_engine *e);
/* Back to the head of the queue, in the order of age; what it computed stays as cache. */
void pfx_admit_preempt(struct pfx_engine *e, struct pfx_request *r);

/* fetch.c: 1 when r waits for a slower tier from now on. limit: tokens that a match may cover. */
int pfx_fetch_begin(struct pfx_engine *e, struct pfx_request *r, uint32_t limit);
void pfx_fetch_turn(struct pfx_engine *e);
/* Nobody waits for its copies any more; before its path is closed, in whatever state it is. */
void pfx_fetch_abandon(struct pfx_engine *e, struct pfx_request *r);
/* A copy is over. */
void pfx_fetch_take(struct pfx_engine *e, struct pfx_order *o);

/* end.c: ends a request that is in one of the engine thread's lists. */
void pfx_end(struct pfx_engine *e, struct pfx_request *r, enum pfx_finish finish);
void pfx_end_fault(struct pfx_engine *e, struct pfx_request *r);
/* Whoever followed r looks for itself in the next turn. */
void pfx_end_release_followers(struct pfx_engine *e, const struct pfx_request *r);

/* usage.c: prompt tokens below upto have KV now, found or computed. */
void pfx_usage_cached(struct pfx_engine *e, struct pfx_request *r, uint32_t upto);
void pfx_usage_computed(struct pfx_engine *e, struct pfx_request *r, uint32_t upto);

static inline uint32_t pfx_request_len(const struct pfx_request *r)
{
	return pfx_path_len(r->path);
}

/* step.c: runs the requests with step_rows > 0 as one batch and delivers what comes out. */
void pfx_step_run(struct pfx_engine *e);

/* reply.c: logits[n_vocab] that follow all of the request's tokens. May end it. */
void pfx_reply_logits(struct pfx_engine *e, struct pfx_request *r, const float *logits);
/* SCORE: logits after position pos, whose next token is known. */
void pfx_reply_score(struct pfx_engine *e, struct pfx_request *r, uint32_t pos,
	const float *logits);

/* miss.c: where in what the client sent the token stands. */
void pfx_miss_locate(const struct pfx_engine *e, const struct pfx_request *r, uint32_t at_token,
	int64_t *message, uint64_t *byte);

/* turns.c: one turn at a time of a session, in the order of submission. Under engine->lock. */
/* 1: r may go; 0: it waits, and is put into a text queue when its turn comes; or -ENOMEM. */
int pfx_turn_take_locked(struct pfx_engine *e, struct pfx_request *r);
/* The turn is over: who is next goes. */
void pfx_turn_leave_locked(struct pfx_engine *e, struct pfx_turn *turn);
/* A request that waits for its turn waits no more: off to the engine thread, which ends it. */
void pfx_turn_give_up_locked(struct pfx_engine *e, struct pfx_request *r);
void pfx_turn_expire(struct pfx_engine *e); /* takes the lock: what is past its deadline */
/* All threads are gone: frees what waits. */
void pfx_turn_close(struct pfx_engine *e);

/* life.c */
int pfx_life_open(struct pfx_engine *e);
void pfx_life_close(struct pfx_engine *e);
/* At submit, by whatever thread: names are looked up, put and deleted, in this order. */
void pfx_life_submit(struct pfx_engine *e, struct pfx_request *r);
/* Text thread: the request's ids, behind what its prefix or session puts in front of them. */
void pfx_life_tokenise(struct pfx_engine *e, struct pfx_request *r);
/*
 * How many bytes of the rendered text the model has seen in the turn before, with the same
 * special tokens; their ids are put into r->tokens.
 */
size_t pfx_life_seen(struct pfx_engine *e, struct pfx_request *r,
	const struct pfx_chat_output *out);
/* Text thread: the last event of a job that ends there. */
struct pfx_event *pfx_life_text_job(struct pfx_engine *e, struct pfx_request *r);
/* Engine thread: answers a job for which pfx_job_is_life_control. */
void pfx_life_control(struct pfx_engine *e, struct pfx_request *r);
/*
 * Engine thread: a request that runs the model has come to its good end, its path still
 * open: sessions, leases and ends are seen to, and the last event may become another one.
 */
void pfx_life_done(struct pfx_engine *e, struct pfx_request *r, struct pfx_event **ev);
/* A request is leaving: its turn in the session is over. Any thread. */
void pfx_life_leave(struct pfx_engine *e, struct pfx_request *r);
json_t *pfx_life_stats(struct pfx_engine *e);

/* lease.c: the engine thread's. */
/* Marks a request for a lease that can never have one; returns 0 then. */
int pfx_lease_possible(struct pfx_engine *e, struct pfx_request *r);
/* The path becomes a lease, whose number is told; it is r's no more. Marks failures. */
uint64_t pfx_lease_make(struct pfx_engine *e, struct pfx_request *r, json_t *report);
/* Ends those whose time has come. */
void pfx_lease_expire(struct pfx_engine *e);
/* A request was admitted: leases whose whole prefix it begins with count it. */
void pfx_lease_hit(struct pfx_engine *e, const struct pfx_request *r);
/* Tokens of the longest lease whose whole prefix the request begins with. */
uint32_t pfx_lease_covers(const struct pfx_engine *e, const struct pfx_request *r);
/* Ends all leases of the space (NULL: of every one). Returns how many. */
uint32_t pfx_lease_flush(struct pfx_engine *e, const struct pfx_space *space);
/* Ends leases that were put with what the name meant before serial. */
uint32_t pfx_lease_drop_named(struct pfx_engine *e, const struct pfx_key *key, uint64_t serial);
/* Ends one by its number, or all (0), of this namespace and salt. */
uint32_t pfx_lease_drop(struct pfx_engine *e, const struct pfx_key *of, uint64_t number);
/* The lease that was put with the name; 0: none. */
uint64_t pfx_lease_of(const struct pfx_engine *e, const struct pfx_key *key);
json_t *pfx_lease_report(const struct pfx_engine *e, const struct pfx_key *of, int all);
void pfx_lease_close(struct pfx_engine *e);

/* Which jobs go where. */
static inline int pfx_job_runs(const struct pfx_job *job) /* the model */
{
	switch (job->kind) {
	case PFX_JOB_GENERATE:
	case PFX_JOB_WARM:
	case PFX_JOB_SCORE:
	case PFX_JOB_PIN:
		return 1;
	case PFX_JOB_SESSION_OPEN:
	case PFX_JOB_SESSION_APPEND:
	case PFX_JOB_PREFIX_PUT:
		return job->warm;
	default:
		return 0;
	}
}

static inline int pfx_job_is_text(const struct pfx_job *job) /* ends on a text thread */
{
	return job->kind == PFX_JOB_TOKENIZE || job->kind == PFX_JOB_DETOKENIZE ||
		job->kind == PFX_JOB_RENDER || job->kind == PFX_JOB_PREFIX_LIST ||
		job->kind == PFX_JOB_SESSION_LIST ||
		(!job->warm && (job->kind == PFX_JOB_SESSION_OPEN ||
				       job->kind == PFX_JOB_SESSION_APPEND));
}

static inline int pfx_job_is_life_control(const struct pfx_job *job)
{
	return job->kind > PFX_JOB_RENDER && job->kind < PFX_JOB_STATS && !pfx_job_runs(job) &&
		!pfx_job_is_text(job);
}

/* control.c: answers a job of kind STATS or behind, and frees it. */
void pfx_control_run(struct pfx_engine *e, struct pfx_request *r);
/* The last event of one whose answer came later. Any thread; frees the request. */
void pfx_control_answer(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *ev);

/* store_jobs.c: rows of control.c that answer by themselves. */
void pfx_control_evict(struct pfx_engine *e, struct pfx_request *r);
void pfx_control_flush(struct pfx_engine *e, struct pfx_request *r);
void pfx_control_save(struct pfx_engine *e, struct pfx_request *r);
void pfx_control_store(struct pfx_engine *e, struct pfx_request *r);

/* report.c */
json_t *pfx_report_store(struct pfx_engine *e);
json_t *pfx_report_stats(struct pfx_engine *e);
json_t *pfx_report_check(struct pfx_engine *e);

#endif
