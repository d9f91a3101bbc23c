#include "engine/profile.h"

#include <stddef.h>

#include "base/clock.h"

const char *pfx_phase_name(enum pfx_phase phase)
{
	static const char *const names[] = {
		[PFX_PHASE_TURN] = "turn",
		[PFX_PHASE_BATCH] = "batch",
		[PFX_PHASE_EMBED] = "embed",
		[PFX_PHASE_NORM] = "norm",
		[PFX_PHASE_PRODUCT] = "product",
		[PFX_PHASE_ROPE_KV] = "rope_kv",
		[PFX_PHASE_ATTENTION] = "attention",
		[PFX_PHASE_GATE] = "gate",
		[PFX_PHASE_HEAD] = "head",
		[PFX_PHASE_PUBLISH] = "publish",
		[PFX_PHASE_SAMPLE] = "sample",
		[PFX_PHASE_REPLY] = "reply",
	};

	return names[phase];
}

const char *pfx_step_kind_name(enum pfx_step_kind kind)
{
	return kind == PFX_STEP_DECODE ? "decode" : "prefill";
}

void pfx_profile_turn(struct pfx_profile *p)
{
	p->last_ns = pfx_clock_ns();
}

void pfx_profile_begin(struct pfx_profile *p, uint32_t n_rows, uint32_t n_seqs)
{
	p->now = &p->kinds[n_rows > n_seqs ? PFX_STEP_PREFILL : PFX_STEP_DECODE];
	p->now->steps++;
	p->now->rows += n_rows;
	pfx_profile_lap(p, PFX_PHASE_TURN, 0);
}

void pfx_profile_lap(struct pfx_profile *p, enum pfx_phase phase, uint64_t waited_ns)
{
	uint64_t now;

	if (p->now == NULL) {
		return;
	}
	now = pfx_clock_ns();
	p->now->phases[phase].ns += now - p->last_ns;
	p->now->phases[phase].waited_ns += waited_ns;
	p->last_ns = now;
}

void pfx_profile_end(struct pfx_profile *p)
{
	p->now = NULL;
}
