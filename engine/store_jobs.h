#ifndef PFX_ENGINE_STORE_JOBS_H
#define PFX_ENGINE_STORE_JOBS_H

/* What store_jobs.c and store_chores.c share. The engine thread's own. */

#include "engine/engine_priv.h"

/* 1: `namespace` was given and is *out; 0: not given; -1: it is no string. */
int pfx_job_space(const struct pfx_job *job, struct pfx_digest *out);
/* Why nothing can be saved: a sentence; NULL: it can. */
const char *pfx_store_why_not(const struct pfx_engine *e);
/* The store has finished nothing for longer than who waits since then should wait for it. */
int pfx_store_is_stuck(const struct pfx_engine *e, uint64_t since_ns);
/* The last event of a request that may be in a list. */
void pfx_store_answer(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *ev);

/* store_chores.c */
void pfx_chore_turn(struct pfx_engine *e);
/* Whether somebody waits for a chore. */
int pfx_chore_waits(const struct pfx_tiers *t);
/* The chore that uses the store, by its name; NULL: none. */
const char *pfx_chore_running(const struct pfx_tiers *t);
/* The engine is closing: waits a while, answers. */
void pfx_chore_end(struct pfx_engine *e);

#endif
