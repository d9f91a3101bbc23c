#ifndef PFX_PERSIST_STORE_H
#define PFX_PERSIST_STORE_H

/*
 * A store keeps blocks of KV beyond the life of the process: one interface, several stores
 * behind it (LMDB, memory, and one that wraps another and injects faults). Nothing of a
 * store's own types shows here.
 *
 * Rules that hold for every store
 *   1. What is asked for is a struct pfx_store_key, which always carries the namespace.
 *   2. A record's parent is in the store. So put wants parents first, eviction takes leaves
 *      alone, and deleting a record deletes what hangs on it.
 *   3. get gives KV that was verified (every field of the key, the tokens, the checksum) and
 *      copied out, or no KV. A damaged record is dropped, with what hangs on it, by the get
 *      that meets it: the next one is a plain miss, and the next put writes it anew.
 *   4. A put that answered 0 survives kill -9. After a sync that began later and answered 0
 *      it survives a power cut. A power cut may undo what was put since the last sync, never
 *      more, and never leaves half a record.
 *   5. Bytes on disk never exceed bytes_max.
 *
 * Threads: all calls from any thread. Those that change the store wait for one another;
 * get, has and info wait for a change only in memory, never for its disk, but for compact,
 * clear and growth of the map, which wait until no get is under way and hold new ones up.
 */

#include <stddef.h>
#include <stdint.h>

#include "persist/record.h"

struct pfx_store;

struct pfx_store_item {
	const struct pfx_store_key *key;
	const void *kv; /* shape.kv_bytes, read before put returns; NULL: key is deleted */
};

struct pfx_store_row {
	struct pfx_store_key key; /* with its tokens, valid during the call */
	struct pfx_entry_info info;
};
/* Not 0 ends the walk. Must not call the store. */
typedef int pfx_store_visit(void *arg, const struct pfx_store_row *row);

struct pfx_store_info {
	/* Gauges. */
	uint64_t records, tokens;
	uint64_t bytes;      /* of the records and their index rows, as they take room */
	uint64_t bytes_max;  /* the cap */
	uint64_t file_bytes; /* 0 for a store in memory */
	int read_only;
	int broken;          /* the disk failed: everything is a miss until it is opened again */
	/* Counters since it was opened. */
	uint64_t gets, hits, misses, damaged, failed_gets;
	uint64_t puts, written, duplicates, replaced, failed_puts;
	uint64_t evicted, deleted, syncs;
};

struct pfx_store_verified {
	uint64_t records, bytes; /* looked at */
	uint64_t damaged;        /* dropped, with what hung on them */
};

/* How pfx_store_damage spoils a record. */
enum pfx_store_harm { PFX_HARM_FLIP, PFX_HARM_SHORT, PFX_HARM_GONE };

struct pfx_store_ops {
	const char *name;
	int (*get)(struct pfx_store *, const struct pfx_store_key *, void *kv);
	int (*has)(struct pfx_store *, const struct pfx_store_key *);
	int (*put)(struct pfx_store *, const struct pfx_store_item *, uint32_t n, int *results);
	int (*iterate)(struct pfx_store *, pfx_store_visit *, void *arg);
	int (*sync)(struct pfx_store *);
	void (*info)(struct pfx_store *, struct pfx_store_info *);
	uint64_t (*capacity)(const struct pfx_store *);
	int (*verify)(struct pfx_store *, struct pfx_store_verified *);
	int (*compact)(struct pfx_store *);
	int (*clear)(struct pfx_store *, const struct pfx_digest *space, uint64_t *records);
	int (*damage)(struct pfx_store *, const struct pfx_store_key *, enum pfx_store_harm,
		uint64_t seed);
	void (*close)(struct pfx_store *);
};

/* For implementations: every store begins with this. */
struct pfx_store {
	uint32_t magic;
	const struct pfx_store_ops *ops;
	struct pfx_store_shape shape;
};
#define PFX_STORE_MAGIC 0x70667374u

/*
 * Copies the KV of key to kv (shape.kv_bytes). 0: found. -ENOENT: not there. Any other code:
 * it was there and cannot be had: PFX_E_FORMAT, PFX_E_TRUNCATED (damaged, now dropped), -EIO.
 * To the caller all but 0 are misses, and kv holds nothing of use.
 */
int pfx_store_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv);

/* 1 when the index has key (the bytes are not looked at), else 0. Changes no age. */
int pfx_store_has(struct pfx_store *store, const struct pfx_store_key *key);

/*
 * Carries out n items in the order given, parents before children, in one transaction (a large
 * batch in a small store, or one that deletes what it put: in several). An item with KV is
 * written, evicting the oldest leaves as far as room is needed; results[i] is 0 (stored, or
 * there already and now young), -ENOENT (its parent is not there), -EEXIST (its digest names
 * other tokens), PFX_E_FULL (no room without evicting what this batch hangs on). A record that
 * begins with the same tokens and is shorter is replaced. An item without KV is deleted as by
 * pfx_store_delete: 0 or -ENOENT. Not 0 when the transaction failed (-ENOSPC, -EIO, -EROFS,
 * -ENOMEM, PFX_E_FULL): then nothing of it is stored and all results say so; what it was to
 * delete is a miss or is there still.
 */
int pfx_store_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
	int *results);

/* Deletes key and all that hangs on it; for one whose use failed, too. 0, -ENOENT or -EIO... */
int pfx_store_delete(struct pfx_store *store, const struct pfx_store_key *key);

/* The index, parents before children, without touching the KV. Returns what visit ended with. */
int pfx_store_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg);

/* All that put and delete have answered is on the disk when this answers 0. */
int pfx_store_sync(struct pfx_store *store);

void pfx_store_info(struct pfx_store *store, struct pfx_store_info *out);

/*
 * How many records the store holds without evicting any by itself, whatever their number of
 * tokens. Who keeps to it (a deletion handed over before the put that needs its place, in
 * batches of any size) decides alone what goes.
 */
uint64_t pfx_store_capacity(const struct pfx_store *store);

/* Reads and checks every record. Takes as long as reading them all; gets and puts go on. */
int pfx_store_verify(struct pfx_store *store, struct pfx_store_verified *out);

/* Gives unused room back to the file system. Needs room for a second copy meanwhile. */
int pfx_store_compact(struct pfx_store *store);

/* Forgets a namespace (NULL: all). *records (may be NULL): how many were forgotten. */
int pfx_store_clear(struct pfx_store *store, const struct pfx_digest *space, uint64_t *records);

/* For tests: spoils the stored bytes of key beneath all checks. 0 or -ENOENT. */
int pfx_store_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed);

/* Makes it durable as far as it can and frees it. Nobody may be in a call. NULL is fine. */
void pfx_store_close(struct pfx_store *store);

/* ---- the stores ---- */

/* A store in memory, gone when closed. shape is copied. */
int pfx_store_mem_open(struct pfx_store **out, const struct pfx_store_shape *shape,
	uint64_t bytes_max, char *err, size_t errlen);

struct pfx_store_lmdb_opts {
	const char *path; /* a folder of its own; made (0700) with its last part when missing */
	struct pfx_store_shape shape;
	uint64_t bytes_max; /* of the file; at least pfx_store_lmdb_least of 0 */
	int read_only;      /* also assumed when folder, file or disk cannot be written */
	int replace;        /* clears an environment of another shape or version */
	uint32_t walk_ms_max; /* the longest that the walk at start may take; 0: 120 s */
};
#define PFX_STORE_BYTES_MIN (2u << 20)

struct pfx_store_opened {
	int set_aside;   /* the environment was damaged; it is now PATH/damaged.mdb, if that has room */
	char why[200];   /* what was wrong with it */
	uint64_t dropped; /* rows of the index that were damaged or hung on nothing */
};

/*
 * The least bytes_max (PFX_STORE_BYTES_MIN, or what 32 full records take) with which a data.mdb of
 * file_bytes loses nothing when it is opened; 0: there is none.
 */
uint64_t pfx_store_lmdb_least(const struct pfx_store_shape *shape, uint64_t file_bytes);

/*
 * Opens the environment in path, after a child process walked it: LMDB trusts its own pages,
 * so a damaged one may kill who reads it. One that fails the walk is renamed to damaged.mdb
 * (the last one only is kept) and the store starts empty: that is success, *opened (may be
 * NULL) and a warning tell. -EEXIST: an environment of another shape, version or program, or
 * one that fails the walk where no store of ours ever was (left alone; `replace` clears it).
 * -EBUSY: another process has it. -EINVAL: bad options. Others: the disk, as far as not even
 * reading is possible: a disk that is full or read-only is success, with info.read_only and a
 * warning. err gets a sentence that names the folder. Forks; call it before there are
 * threads that hold locks, or accept that the child runs nothing but the walk.
 */
int pfx_store_lmdb_open(struct pfx_store **out, const struct pfx_store_lmdb_opts *opts,
	struct pfx_store_opened *opened, char *err, size_t errlen);

/* ---- faults, for tests ---- */

enum pfx_store_fault {
	PFX_FAULT_GET_FAILS, /* the record is there, the read fails: -EIO */
	PFX_FAULT_FLIP,      /* one bit of the stored record is flipped before the read */
	PFX_FAULT_SHORT,     /* the stored record is cut before the read */
	PFX_FAULT_GONE,      /* the index has it, the record is gone */
	PFX_FAULT_PUT_FAILS, /* the transaction fails: -EIO */
	PFX_FAULT_FULL,      /* the disk is full: -ENOSPC */
	PFX_FAULT_SYNC_FAILS,
	PFX_FAULT_SLOW,      /* any get, put, verify or compact takes slow_ns longer */
	PFX_FAULT_STUCK,     /* ... does not return until released */
	PFX_FAULTS,
};

/* Takes inner (closed with it). Without a schedule it does nothing but pass calls on. */
int pfx_store_fault_open(struct pfx_store **out, struct pfx_store *inner, uint64_t seed);
/* From now on this fault happens at one in one_in calls (1: at each, 0: never). */
void pfx_store_fault_set(struct pfx_store *store, enum pfx_store_fault fault, uint32_t one_in);
void pfx_store_fault_slow_ns(struct pfx_store *store, uint64_t slow_ns);
/* Lets all calls that are stuck go on, and sets PFX_FAULT_STUCK to never. */
void pfx_store_fault_release(struct pfx_store *store);
/* How often it happened. */
uint64_t pfx_store_fault_count(struct pfx_store *store, enum pfx_store_fault fault);

#endif
