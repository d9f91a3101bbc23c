#ifndef PFX_PERSIST_WRITER_H
#define PFX_PERSIST_WRITER_H

/*
 * One thread that writes to a store in the background: a bounded queue in front, batched
 * transactions behind. Nobody who hands it something ever waits for the disk; a full queue
 * is an answer (PFX_E_FULL), counted as a drop, and what was dropped is simply not saved.
 *
 * Order is kept: what is handed over first is written first, so a parent goes before its
 * child. When a parent fails, its children fail with -ENOENT.
 *
 * Threads: all calls from any thread. Callbacks run on the writer's thread, one at a time,
 * hold no lock of the writer, and may hand over more; they must not wait for the writer.
 */

#include <stdint.h>

#include "persist/store.h"

struct pfx_writer;

/* What came of it: 0, or the code of put or sync; -ECANCELED when it was discarded. */
typedef void pfx_writer_done(void *arg, int result);

struct pfx_writer_opts {
	uint32_t queue_max; /* items that wait or are being written; 0: 1024 */
	uint32_t batch_max; /* items of a transaction; 0: 32 */
	uint32_t close_ms;  /* how long close waits for the store; 0: 30 s */
};

struct pfx_writer_stats {
	uint64_t accepted, dropped, written, failed, discarded;
	uint64_t batches, syncs, failed_syncs;
	uint32_t queued; /* gauge: waiting or being written */
};

/* Borrows store until it is closed. -ENOMEM, -EAGAIN: no thread. */
int pfx_writer_open(struct pfx_writer **out, struct pfx_store *store,
	const struct pfx_writer_opts *opts);

/*
 * Copies key and its tokens; borrows kv until done is called, which happens exactly once for
 * each item that was accepted (0). PFX_E_FULL, -ENOMEM, PFX_E_SHUTDOWN: not accepted, and
 * done is not called.
 */
int pfx_writer_put(struct pfx_writer *writer, const struct pfx_store_key *key, const void *kv,
	pfx_writer_done *done, void *arg);

/*
 * done is called when all that was accepted before is on the disk: 0, or the first error that
 * any put or sync met since the last such call. Never dropped for want of room: it takes none
 * of queue_max. -ENOMEM, PFX_E_SHUTDOWN: not accepted.
 */
int pfx_writer_sync(struct pfx_writer *writer, pfx_writer_done *done, void *arg);

/* The same, waiting: its result, or -ETIMEDOUT after ms_max (it is still under way then). */
int pfx_writer_flush(struct pfx_writer *writer, uint32_t ms_max);

/*
 * Takes back what waits for that namespace (NULL: all); done is called with -ECANCELED, on
 * the writer's thread. What is being written already is not taken back: returns when that is
 * over, or after ms_max with -ETIMEDOUT. So a pfx_store_clear after it finds all there is.
 */
int pfx_writer_discard(struct pfx_writer *writer, const struct pfx_digest *space,
	uint32_t ms_max);

void pfx_writer_stats(struct pfx_writer *writer, struct pfx_writer_stats *out);

/*
 * Accepts nothing more, writes what waits, syncs, ends the thread, frees. 0, or -EIO when any
 * put or sync ever failed. -ETIMEDOUT: the store did not come back in close_ms; the thread, the writer and the
 * store are then left as they are, and must not be used or freed. NULL is fine.
 */
int pfx_writer_close(struct pfx_writer *writer);

#endif
