#ifndef PFX_TESTS_FAKE_LIFE_H
#define PFX_TESTS_FAKE_LIFE_H

/*
 * Sessions, named prefixes and leases of the engine without a model (fake_engine.c): the
 * real tables behind an engine whose tokens are bytes. The caller holds the lock.
 */

#include "base/buf.h"
#include "engine/content.h"
#include "engine/named.h"
#include "engine/session.h"

struct fake_life {
	struct pfx_sessions *sessions;
	struct pfx_named *named;
	struct { uint64_t number; struct pfx_key key; uint32_t tokens; int named; } lease[64];
	uint32_t n_leases;
	uint64_t next_lease;
};

/* What is in front of a run's own prompt, and what becomes of it. */
struct fake_turn {
	struct pfx_session *session;
	struct pfx_key key;
};

struct fake_fault {
	enum pfx_fault fault;
	char why[256];
};

void fake_life_open(struct fake_life *l);
void fake_life_close(struct fake_life *l);
/* Appends the bytes of a prompt of any kind. */
void fake_prompt(const struct pfx_job *job, struct pfx_buf *out);
/* The bytes of the job's prompt behind those of its prefix or session. -1: *f says why not. */
int fake_life_begin(struct fake_life *l, struct pfx_job *job, struct fake_turn *turn,
	struct pfx_buf *prompt, struct fake_fault *f);
/* reply NULL: the turn failed, or said nothing that is kept. */
void fake_life_end(struct fake_life *l, struct pfx_job *job, struct fake_turn *turn,
	const struct pfx_buf *prompt, const struct pfx_buf *reply);
/* Answers a job from SESSION_OPEN on; NULL: *f says why not. */
json_t *fake_life_answer(struct fake_life *l, struct pfx_job *job, const char **name,
	struct fake_fault *f);

#endif
