#ifndef PFX_PERSIST_LMDB_PRIV_H
#define PFX_PERSIST_LMDB_PRIV_H

/*
 * The LMDB store, for its own files alone: these are all that know LMDB.
 *
 *   store_lmdb.c   options, the folder's lock, open and close
 *   lmdb_start.c   before use: the walk in a child process, loading the index
 *   lmdb_env.c     files, transactions, the map; LMDB's codes are mapped there alone
 *   lmdb_read.c    get, has, iterate, verify
 *   lmdb_write.c   put, deletions, ages, sync
 *   lmdb_spare.c   room on a full disk for deletions
 *   lmdb_upkeep.c  compact, clear, damage
 *
 * An environment has three trees: "meta" with one row, the shape; "index" and "records" with
 * a row for each record, by its digest, changed in the same transaction. The index is in
 * memory, too (persist/catalog.h), and decides; LMDB is told.
 *
 * What goes leaves the catalog at once and its digest joins the list of the dead, which the
 * next transaction deletes from the disk. So a failed transaction brings nothing back, and a
 * reader that met damage need not wait for a writer.
 *
 * Locks, in the order in which they nest:
 *   change  one change at a time; guards dead
 *   env     read: a transaction or the environment is in use; write: it is being replaced,
 *           or its map moved
 *   lock    the catalog, the counters, the list of aged entries; never held over I/O
 */

#include <lmdb.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "persist/catalog.h"
#include "persist/store.h"

#define PAGE 4096u
/* The map begins small and doubles, so that a small store takes little address space. */
#define MAP_FIRST (1u << 20)
#define AGED_MAX 1024u
/* The key of the one row of "meta". */
#define SHAPE_ROW "shape"
#define SPARE_FILE "prefixd.spare"

struct lmdb_store {
	struct pfx_store base;
	char *folder;
	int lock_fd;
	int read_only;
	int is_new; /* no store of ours was in the folder before */
	uint64_t bytes_max, room_max;

	pthread_mutex_t change;
	struct pfx_digest *dead;
	size_t n_dead, cap_dead;
	uint32_t spare_bytes; /* of the spare file, as far as is known; `change` guards it */

	pthread_rwlock_t env_lock;
	MDB_env *env; /* NULL: it could not be opened again */
	MDB_dbi meta, index, records;
	uint64_t map_bytes;
	const uint8_t *map; /* where it begins */
	uint32_t page_size;
	int fd;             /* LMDB's own, of the data file */
	_Atomic uint64_t file_seen; /* the size of the file is never less, unless it was cut */
	int linked;      /* the file had a name when it was opened */
	_Atomic int broken;

	pthread_mutex_t lock;
	struct pfx_catalog *cat;
	uint32_t n_doomed;
	struct pfx_digest aged[AGED_MAX];
	uint32_t n_aged;
	struct pfx_store_info info; /* the counters */
};

static inline struct lmdb_store *lmdb_of(struct pfx_store *store)
{
	return pfx_container_of(store, struct lmdb_store, base);
}

static inline MDB_val val_of(const void *p, size_t n)
{
	return (MDB_val){ .mv_data = (void *)p, .mv_size = n };
}

static inline MDB_val digest_val(const struct pfx_digest *d)
{
	return val_of(d->b, sizeof(d->b));
}

static inline MDB_val shape_key(void)
{
	return val_of(SHAPE_ROW, sizeof(SHAPE_ROW) - 1);
}

/* What a record takes of the cap: whole pages, and its index row in trees that are half full. */
static inline uint64_t room_of(const struct pfx_store_shape *shape, uint32_t n_tokens)
{
	uint64_t record = pfx_record_size(shape, n_tokens) + 16;

	return (record + PAGE - 1) / PAGE * PAGE + 2 * (pfx_entry_size(n_tokens) + 96);
}

/* ---- lmdb_env.c ---- */

int pfx_lmdb_code(int rc);

/* folder/name, owned by the caller; NULL: no memory. */
char *pfx_lmdb_path(const char *folder, const char *name);
/* Renames folder/from to folder/to, or removes it when to is NULL. Not there: 0. */
int pfx_lmdb_move(const char *folder, const char *from, const char *to);
int pfx_lmdb_sync_folder(const char *folder);

int pfx_lmdb_env_open(const char *folder, unsigned flags, uint64_t map_bytes, MDB_env **out);
/* The three trees; made when they are missing and flags has MDB_CREATE. */
int pfx_lmdb_trees(MDB_txn *txn, unsigned flags, MDB_dbi *meta, MDB_dbi *index,
	MDB_dbi *records);
/* Opens s->env for use. The map is what the file needs, or s->map_bytes. */
int pfx_lmdb_reopen(struct lmdb_store *s);

/* The caller holds env_lock. A file that shrank under the map kills who reads what is gone. */
int pfx_lmdb_is_whole(struct lmdb_store *s);
/*
 * Copies the beginning of a value to head (up to head_len bytes) and what follows that to body
 * (up to body_len): by a read of the file, not through the map, since a disk that fails is then
 * an error, where it would kill who touches the map. In a transaction, with env_lock held. 0,
 * PFX_E_TRUNCATED or the disk's error.
 */
int pfx_lmdb_read_value(struct lmdb_store *s, const MDB_val *v, void *head, size_t head_len,
	void *body, size_t body_len);
/*
 * LMDB relies on what stands in front of a large value when it deletes or copies it, and the
 * walk did not look: it is compared with what it must be, and mended in the file. The caller
 * holds `change`, env_lock, and a transaction that did not write v.
 */
int pfx_lmdb_mend(struct lmdb_store *s, const MDB_val *v);
/* A writer's transaction; holds env_lock (read) until its end. The caller holds `change`. */
int pfx_lmdb_begin(struct lmdb_store *s, MDB_txn **txn);
/* Commits when rc is 0, else aborts; returns what came of it. */
int pfx_lmdb_end(struct lmdb_store *s, MDB_txn *txn, int rc);
/* The caller holds env_lock for writing, or has the store to itself. */
int pfx_lmdb_set_map(struct lmdb_store *s, uint64_t bytes);
/* Makes the map at least so long, as far as the cap lets it. Waits until nobody reads. */
int pfx_lmdb_grow(struct lmdb_store *s, uint64_t want);
/* So that a transaction that writes this many bytes finds room without a retry. */
int pfx_lmdb_grow_for(struct lmdb_store *s, uint64_t bytes);

/* ---- lmdb_spare.c; the caller holds `change` ---- */

/* Sees to it that there is a spare file, as large as the disk lets it be. Before records are put. */
void pfx_lmdb_keep_spare(struct lmdb_store *s);
/* Gives its room to the disk. True when there was any. */
int pfx_lmdb_give_spare(struct lmdb_store *s);

/* ---- lmdb_start.c ---- */

/* Walks the environment in a child process; sets it aside, clears it or fails by what it finds. */
int pfx_lmdb_walk(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o,
	struct pfx_store_opened *opened, char *err, size_t errlen);
/* Fills the catalog. Rows that are damaged or hang on nothing die, and are counted. */
int pfx_lmdb_load(struct lmdb_store *s, uint64_t *dropped);

/* ---- lmdb_read.c ---- */

int pfx_lmdb_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv);
int pfx_lmdb_has(struct pfx_store *store, const struct pfx_store_key *key);
int pfx_lmdb_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg);
int pfx_lmdb_verify(struct pfx_store *store, struct pfx_store_verified *out);

/* ---- lmdb_write.c; the caller holds `change` ---- */

/* Makes room for every entry to die, so that none is lost for want of memory. */
int pfx_lmdb_dead_room_locked(struct lmdb_store *s);
/* A pfx_catalog_gone: the entry joins the dead. arg is the store. */
void pfx_lmdb_gone(void *arg, struct pfx_catalog_entry *e);
/* Removes from the catalog what was found damaged, with what hangs on it. */
void pfx_lmdb_sweep(struct lmdb_store *s);
void pfx_lmdb_sweep_locked(struct lmdb_store *s);
/* Deletes the dead from the disk until at most keep are left. */
int pfx_lmdb_purge(struct lmdb_store *s, size_t keep);
/* Writes up to max of the ages that changed. One that is lost only makes a record look older. */
int pfx_lmdb_write_ages(struct lmdb_store *s, MDB_txn *txn, uint32_t max);
/* At the end: those that found no place in the list of the aged, too. */
void pfx_lmdb_write_all_ages(struct lmdb_store *s);

int pfx_lmdb_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
	int *results);
int pfx_lmdb_sync(struct pfx_store *store);

/* ---- lmdb_upkeep.c ---- */

int pfx_lmdb_compact(struct pfx_store *store);
int pfx_lmdb_clear(struct pfx_store *store, const struct pfx_digest *space, uint64_t *records);
int pfx_lmdb_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed);

#endif
