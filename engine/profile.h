#ifndef PFX_ENGINE_PROFILE_H
#define PFX_ENGINE_PROFILE_H

/*
 * Where a step's time goes: a clock that is read at the end of each phase and adds what has
 * passed to that phase. It is always on: a reading costs some 25 ns, a step of 30 layers has 280
 * of them. Outside of a step readings are not taken at all. One thread, the one that runs steps.
 *
 * A device that works behind the host's back shows its time where the host waits for it.
 */

#include <stdint.h>

enum pfx_phase {
	PFX_PHASE_TURN,      /* queue, admission, planning, orders to the tiers */
	PFX_PHASE_BATCH,     /* the batch's arrays, heads of blocks copied, the device's own plan */
	PFX_PHASE_EMBED,
	PFX_PHASE_NORM,
	PFX_PHASE_PRODUCT,   /* of the layers, activations made integers and all */
	PFX_PHASE_ROPE_KV,   /* positions turned in, K and V written */
	PFX_PHASE_ATTENTION,
	PFX_PHASE_GATE,      /* between the products of an MLP */
	PFX_PHASE_HEAD,      /* the product behind the logits */
	PFX_PHASE_PUBLISH,   /* into the tree */
	PFX_PHASE_SAMPLE,
	PFX_PHASE_REPLY,     /* text, stop strings, events */
	PFX_N_PHASES
};

enum pfx_step_kind {
	PFX_STEP_DECODE,  /* one row a sequence */
	PFX_STEP_PREFILL, /* more, at least of one */
	PFX_N_STEP_KINDS
};

struct pfx_phase_time {
	uint64_t ns;
	uint64_t waited_ns; /* of ns: for other threads that had a task in hand */
};

struct pfx_step_times {
	uint64_t steps, rows;
	struct pfx_phase_time phases[PFX_N_PHASES];
};

struct pfx_profile {
	struct pfx_step_times kinds[PFX_N_STEP_KINDS];
	struct pfx_step_times *now; /* NULL: between steps */
	uint64_t last_ns;
};

const char *pfx_phase_name(enum pfx_phase phase);
const char *pfx_step_kind_name(enum pfx_step_kind kind);

/* What passes from here to the begin of a step is the step's PFX_PHASE_TURN. */
void pfx_profile_turn(struct pfx_profile *p);
void pfx_profile_begin(struct pfx_profile *p, uint32_t n_rows, uint32_t n_seqs);
/* The phase ends here; it began where the one before ended. */
void pfx_profile_lap(struct pfx_profile *p, enum pfx_phase phase, uint64_t waited_ns);
void pfx_profile_end(struct pfx_profile *p);

#endif
