#ifndef PFX_TOOLS_SIM_H
#define PFX_TOOLS_SIM_H

/* What the files of prefix-sim share: what was asked for, and what came out. */

#include "tools/replay.h"

struct sim_column {
	char name[32];
	struct pfx_run_opts opts; /* but for the capacity */
};

#define SIM_COLUMNS_MAX 16

struct sim {
	const char *trace_path, *plot_path;
	int json;
	int ends;                       /* derive last turns */
	uint32_t at_once, ahead;
	uint32_t host, disk;            /* blocks */
	enum pfx_save save;
	double block_bytes;             /* 0: not told */
	double token_bytes;             /* the same */
	uint32_t *sizes;                /* blocks */
	uint32_t n_sizes;
	struct sim_column columns[SIM_COLUMNS_MAX];
	uint32_t n_columns;

	struct pfx_trace trace;
	struct pfx_run_result *results; /* of column c at size k: [c * n_sizes + k] */
	uint64_t *lru;                  /* hits of leaf LRU by size (tools/curve.h) */
	int progress;                   /* is shown */
};

static inline double sim_rate(const struct sim *sim, uint64_t hits)
{
	return (double)hits / (double)pfx_trace_refs(&sim->trace);
}

static inline int sim_has_tiers(const struct sim *sim)
{
	return sim->host > 0 || sim->disk > 0;
}

/* Does the exact curve tell what this column has? */
static inline int sim_is_exact(const struct sim *sim, uint32_t column)
{
	const struct pfx_run_opts *o = &sim->columns[column].opts;

	return o->kind == PFX_RUN_TREE && o->policy == PFX_POLICY_LRU && o->at_once <= 1 &&
		o->ahead == 0 && o->host == 0 && o->disk == 0 && sim->trace.n_last_turns == 0;
}

/* tools/sim_report.c */
void sim_print_table(const struct sim *sim);
void sim_print_json(const struct sim *sim);
/* Says what is wrong on stderr. */
int sim_write_plot(const struct sim *sim);

#endif
