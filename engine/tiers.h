#ifndef PFX_ENGINE_TIERS_H
#define PFX_ENGINE_TIERS_H

/*
 * What lies below the device's memory: the host tier's arena, the store and its writer, the
 * mover between them. radix/ decides what goes where; tiers.c carries its orders out and
 * fetch.c brings back what a request needs. The engine thread's own, but for open and close.
 */

#include <jansson.h>

#include "base/list.h"
#include "engine/arena.h"
#include "engine/mover.h"
#include "engine/records.h"

struct pfx_engine;
struct pfx_gguf;

struct pfx_tiers {
	struct pfx_arena *host;   /* NULL: no host tier */
	struct pfx_store *store;  /* NULL: no store */
	struct pfx_writer *writer; /* NULL: nothing is saved */
	struct pfx_records *records;
	struct pfx_mover *mover;  /* NULL: neither */
	uint32_t n_records;       /* that the store holds */
	struct pfx_store_opened opened;

	/* After a save failed: none before this time, and how long the pause was. */
	uint64_t save_after_ns, save_pause_ns;
	int save_error;  /* the first failure since somebody asked for a save */
	int all_saved;   /* radix/ had nothing more to save when it was last asked */
	struct pfx_list asking, savers, syncing; /* requests that wait for a save, by how far it is */
	struct pfx_list flushing; /* requests that wait for deletions and copies */
	struct pfx_list evicting; /* the same, and leave the store's saves alone */
	int all_spilled;          /* radix/ had no copy left to order when it was last asked */
	int all_deleted;          /* nor a deletion */
	uint64_t spilled_ns;      /* when the last copy to host memory ended */
	uint64_t failed_before;   /* failed_deletes when the first of these came */
	uint64_t moved_ns; /* when the store last finished something, or somebody began to wait */
	int clearing;    /* a sync is under way whose only use is to be told of older errors */
	struct pfx_store_job *job;       /* that uses the store on a thread of its own */
	int stuck;                       /* such a job did not end with the engine */
	int held, deletes_held;          /* for its sake: no saves; no deletions */
	uint64_t loads_after_ns; /* after one that came too late: none before this time */

	/* Counters. */
	uint64_t spills, fetches, loads, saves, deletes;
	uint64_t failed_spills, failed_fetches, failed_loads, missed_loads, failed_saves,
		failed_deletes;
	uint64_t late;           /* requests that stopped waiting for the store */
	uint64_t computed_instead; /* requests for which computing was expected to be faster */
	uint64_t restored, not_restored; /* records at start */
};

/* Before the cache is opened: opts of the engine say what there is to be. */
int pfx_tiers_open(struct pfx_engine *e, const struct pfx_gguf *g, char *err, size_t errlen);
/* Once the cache is there: fills it from the store's index. */
int pfx_tiers_restore(struct pfx_engine *e, char *err, size_t errlen);
/* On the engine thread, when nothing runs any more: saves what is worth it, within close_ms. */
void pfx_tiers_last_saves(struct pfx_engine *e);
/* The engine thread is gone. 0, or -ETIMEDOUT: the store is stuck and all it uses must stay. */
int pfx_tiers_close(struct pfx_engine *e);

/* Takes what the mover has to tell. */
void pfx_tiers_take(struct pfx_engine *e);
/* Hands all spills to the mover; 0 when some found no room yet. */
int pfx_tiers_spill(struct pfx_engine *e);
/* Hands over spills, deletions and saves, as many as one turn should. */
void pfx_tiers_give(struct pfx_engine *e);

/* store_jobs.c: what operators ask of the store, and its turn. */
void pfx_store_jobs_turn(struct pfx_engine *e);
/* Whether somebody waits for the store, and is answered after a time all the same. */
int pfx_store_jobs_wait(const struct pfx_tiers *t);
void pfx_store_synced(struct pfx_engine *e, int rc);
/* Answers all that still wait: the engine is closing. */
void pfx_store_jobs_end(struct pfx_engine *e);

/* tier_store.c: the engine's store, opened, or the reason why not. */
int pfx_tiers_open_store(struct pfx_engine *e, const struct pfx_gguf *g, char *err, size_t errlen);

#endif
