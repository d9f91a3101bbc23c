#ifndef PFX_ENGINE_FACTS_H
#define PFX_ENGINE_FACTS_H

/*
 * The facts of the last requests, for `explain`: what was found where, why the match ended,
 * what was computed, how long it took. A ring of fixed size, without any text or tokens but
 * the one token at which the match ended. One thread's (the engine's).
 */

#include "engine/engine.h"
#include "engine/hits.h"

#define PFX_FACTS_ROWS 4096u

struct pfx_facts {
	uint64_t number; /* 0: none */
	enum pfx_job_kind kind;
	struct pfx_owner owner;
	int failed; /* then fault, else finish */
	enum pfx_finish finish;
	enum pfx_fault fault;
	struct pfx_usage usage;
	uint32_t n_prompt, attached, recomputed, preempted;
	enum pfx_miss_reason miss;
	uint32_t miss_at_token, miss_token; /* UINT32_MAX: the prompt ends there */
	int64_t miss_message;
	uint64_t miss_byte;
	double evicted_ms_ago; /* from when it was found missing; < 0: not known, or not evicted */
	uint64_t received_ns, admitted_ns, first_ns, ended_ns; /* 0: it never came to that */
};

struct pfx_facts_ring;
int pfx_facts_open(struct pfx_facts_ring **out); /* -ENOMEM */
void pfx_facts_close(struct pfx_facts_ring *ring); /* NULL is fine */
/* The oldest makes room. The row is copied. */
void pfx_facts_add(struct pfx_facts_ring *ring, const struct pfx_facts *row);
/* NULL when it is not (or no longer) there. Valid until the next add. */
const struct pfx_facts *pfx_facts_find(const struct pfx_facts_ring *ring, uint64_t number);

#endif
