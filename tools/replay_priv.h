#ifndef PFX_TOOLS_REPLAY_PRIV_H
#define PFX_TOOLS_REPLAY_PRIV_H

/* What the kinds of runs share. */

#include "tools/replay.h"

struct pfx_run_ops {
	/* A failed open is closed too. */
	int (*open)(struct pfx_run *run);
	int (*step)(struct pfx_run *run, uint32_t i);
	void (*close)(struct pfx_run *run);
};

struct pfx_run {
	const struct pfx_run_ops *ops;
	struct pfx_run_opts opts;
	const struct pfx_trace *trace;
	const uint32_t *next;
	uint32_t at; /* the next request */
	struct pfx_run_result result;
	void *state;
};

/* tools/replay_tree.c */
int pfx_run_tree_open(struct pfx_run *run);
int pfx_run_tree_step(struct pfx_run *run, uint32_t i);
void pfx_run_tree_close(struct pfx_run *run);

#endif
