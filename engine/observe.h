#ifndef PFX_ENGINE_OBSERVE_H
#define PFX_ENGINE_OBSERVE_H

/*
 * What the operator's view knows about requests: each one is looked at once, when it has
 * ended and its last event is posted, and nothing is done for it in a step. From here it goes
 * to the counters (hits.h, hot.h, ceiling.h), to the facts of the last requests (facts.h) and,
 * while one is recorded, to the trace (recorder.h). The engine thread's.
 */

#include "engine/ceiling.h"
#include "engine/engine_priv.h"
#include "engine/hits.h"
#include "engine/hot.h"
#include "engine/facts.h"
#include "engine/recorder.h"

struct pfx_observer {
	struct pfx_hits *hits;
	struct pfx_hot *hot;
	struct pfx_ceiling *ceiling;
	struct pfx_facts_ring *facts;
	struct pfx_recorder *recorder; /* the last trace, also when it has ended; or NULL */
	uint64_t hash_seed;
	uint64_t *digests; /* of the request at hand */
	uint32_t cap_digests;
};

int pfx_observer_open(struct pfx_observer **out, uint32_t block_tokens); /* -ENOMEM */
void pfx_observer_close(struct pfx_observer *o); /* NULL is fine */

/* A request that has ended, taken out of it before it is freed. */
struct pfx_observed {
	struct pfx_facts facts;
	struct pfx_ids tokens; /* owned */
	uint32_t counted; /* prompt tokens that usage accounts for */
	uint32_t limit;   /* prompt tokens that a cache may answer */
	uint32_t kept;    /* tokens that others can match from now on */
	uint64_t admission;
	struct pfx_name named; /* the prefix that was put in front; empty: none */
	char *session;         /* owned; NULL: none, or nobody records it */
	size_t session_len;
	int last_turn;
	int whole;        /* nothing of the prompt was missed */
};

void pfx_observe_take(struct pfx_engine *e, struct pfx_request *r, int failed,
	enum pfx_finish finish, struct pfx_observed *out);
/* Counts and frees it. */
void pfx_observe_end(struct pfx_engine *e, struct pfx_observed *seen);
/* The caches were emptied on purpose: an unlimited one would have been, too. */
void pfx_observe_flushed(struct pfx_engine *e);

/* The facts so far of a request that is still there. */
void pfx_observe_facts(const struct pfx_request *r, struct pfx_facts *out);

#endif
