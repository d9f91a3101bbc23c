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

/* What came of it: 0, or the code of put, delete or sync; -ECANCELED when it was discarded. */
typedef void pfx_writer_done(void *arg, int result);

struct pfx_writer_opts {
	uint32_t queue_max; /* puts that wait or are being written; 0: 1024 */
	uint32_t batch_max; /* puts and deletes of a transaction; 0: 32 */
	uint32_t close_ms;  /* how long close waits for the store; 0: 30 s */
};

struct pfx_writer_stats {
	uint64_t accepted, dropped, written, failed, discarded; /* puts */
	uint64_t deletes, failed_deletes;
	uint64_t batches, syncs, failed_syncs;
	uint32_t queued; /* gauge: puts that wait or are being written */
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
 * Deletes key and all that hangs on it, in its turn between the puts and in the same batches.
 * Copies key and its tokens. done gets 0 once it is not there, also when it never was. Any
 * other code: it may be there still. Never dropped for want of room, and never discarded: it
 * takes none of queue_max. -ENOMEM, PFX_E_SHUTDOWN: not accepted.
 */
int pfx_writer_delete(struct pfx_writer *writer, const struct pfx_store_key *key,
	pfx_writer_done *done, void *arg);

/*
 * done is called when all that was accepted before is on the disk: 0, or the first error that
 * any put, delete or sync met since the last such call. Never dropped for want of room: it takes none
 * of queue_max. -ENOMEM, PFX_E_SHUTDOWN: not accepted.
 */
int pfx_writer_sync(struct pfx_writer *writer, pfx_writer_done *done, void *arg);

/* The same, waiting: its result, or -ETIMEDOUT after ms_max (it is still under way then). */
int pfx_writer_flush(struct pfx_writer *writer, uint32_t ms_max);

/*
 * Takes back the puts that wait for that namespace (NULL: all); done is called with -ECANCELED, on
 * the writer's thread. What is being written already is not taken back: returns when that is
 * over, or after ms_max with -ETIMEDOUT. So a pfx_store_clear after it finds all there is.
 */
int pfx_writer_discard(struct pfx_writer *writer, const struct pfx_digest *space,
	uint32_t ms_max);

void pfx_writer_stats(struct pfx_writer *writer, struct pfx_writer_stats *out);

/*
 * Accepts nothing more, writes what waits, syncs, ends the thread, frees. 0, or -EIO when any
 * put, delete or sync ever failed. -ETIMEDOUT: the store did not come back in close_ms; the thread, the writer and the
 * store are then left as they are, and must not be used or freed. NULL is fine.
 */
int pfx_writer_close(struct pfx_writer *writer);

#endif
