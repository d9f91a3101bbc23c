/*
 * The LMDB store. The one file that knows LMDB: its codes are mapped in map_code alone.
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
 *   change  one change at a time; guards dead and aged_all
 *   env     read: a transaction or the environment is in use; write: it is being replaced,
 *           or its map moved
 *   lock    the catalog, the counters, the list of aged entries; never held over I/O
 */
#include "persist/store.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/rng.h"
#include "persist/audit.h"
#include "persist/catalog.h"
#include "persist/walk.h"

#define PAGE 4096u
/* The map begins small and doubles, so that a small store takes little address space. */
#define MAP_FIRST (1u << 20)
/* Deleting a record touches a few tree pages, and LMDB bounds those of a transaction. */
#define PURGE_MAX 1024u
#define AGED_MAX 1024u
/* Ages written beside a batch of records: enough to keep up, too few to slow it down. */
#define AGES_A_BATCH 64u
#define ROW_MAX (128 + PFX_RECORD_TOKENS_MAX * sizeof(uint32_t))

static const char shape_row[] = "shape";

struct lmdb_store {
	struct pfx_store base;
	char *folder;
	int lock_fd;
	int read_only;
	uint64_t bytes_max, room_max;

	pthread_mutex_t change;
	struct pfx_digest *dead;
	size_t n_dead, cap_dead;

	pthread_rwlock_t env_lock;
	MDB_env *env; /* NULL: it could not be opened again */
	MDB_dbi meta, index, records;
	uint64_t map_bytes;
	_Atomic uint64_t file_seen; /* the size of the file is never less, unless it was cut */
	_Atomic int broken;

	pthread_mutex_t lock;
	struct pfx_catalog *cat;
	uint32_t n_doomed;
	struct pfx_digest aged[AGED_MAX];
	uint32_t n_aged;
	struct pfx_store_info info; /* the counters */
};

static struct lmdb_store *lmdb_of(struct pfx_store *store)
{
	return pfx_container_of(store, struct lmdb_store, base);
}

static int map_code(int rc)
{
	switch (rc) {
	case MDB_SUCCESS: return 0;
	case MDB_NOTFOUND: return -ENOENT;
	case MDB_KEYEXIST: return -EEXIST;
	case MDB_MAP_FULL: return PFX_E_FULL;
	case MDB_TXN_FULL: case MDB_PAGE_FULL: case MDB_CURSOR_FULL: return PFX_E_LIMIT;
	case MDB_READERS_FULL: return -EAGAIN;
	case MDB_VERSION_MISMATCH: return PFX_E_UNSUPPORTED;
	case MDB_CORRUPTED: case MDB_PAGE_NOTFOUND: case MDB_INVALID: return PFX_E_FORMAT;
	}
	/* Positive ones are errno's; the rest of LMDB's own mean that it gave up. */
	return rc > 0 ? -rc : -EIO;
}

static MDB_val val_of(const void *p, size_t n)
{
	return (MDB_val){ .mv_data = (void *)p, .mv_size = n };
}

static MDB_val digest_val(const struct pfx_digest *d)
{
	return val_of(d->b, sizeof(d->b));
}

/* What a record takes of the cap: whole pages, and its index row in trees that are half full. */
static uint64_t room_of(const struct pfx_store_shape *shape, uint32_t n_tokens)
{
	uint64_t record = pfx_record_size(shape, n_tokens) + 16;

	return (record + PAGE - 1) / PAGE * PAGE + 2 * (pfx_entry_size(n_tokens) + 96);
}

/* ---- reading ---- */

/* A file that shrank under the map kills the process that reads what is gone. */
static int file_is_whole(struct lmdb_store *s)
{
	struct stat st;
	int fd;

	if (s->env == NULL || s->broken || mdb_env_get_fd(s->env, &fd) != 0 || fstat(fd, &st) != 0) {
		return 0;
	}
	if ((uint64_t)st.st_size < s->file_seen) {
		s->broken = 1;
		pfx_error("persist", "store was truncated while in use, it is not read any more path=%s",
			s->folder);
		return 0;
	}
	return 1;
}

static void note_file_size(struct lmdb_store *s)
{
	struct stat st;
	int fd;

	if (mdb_env_get_fd(s->env, &fd) == 0 && fstat(fd, &st) == 0) {
		s->file_seen = (uint64_t)st.st_size;
	}
}

/* 0, -ENOENT when the row is missing, what pfx_record_decode says, or the disk's error. */
static int read_record(struct lmdb_store *s, const struct pfx_store_key *key, void *kv,
	int *decoded)
{
	MDB_txn *txn;
	MDB_val k = digest_val(&key->self), v;
	int rc;

	*decoded = 0;
	pthread_rwlock_rdlock(&s->env_lock);
	if (!file_is_whole(s)) {
		pthread_rwlock_unlock(&s->env_lock);
		return -EIO;
	}
	rc = map_code(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn));
	if (rc == 0) {
		rc = map_code(mdb_get(txn, s->records, &k, &v));
		if (rc == 0) {
			rc = pfx_record_decode(v.mv_data, v.mv_size, &s->base.shape, key, kv);
			*decoded = 1;
		}
		*decoded |= rc == -ENOENT;
		mdb_txn_abort(txn);
	}
	pthread_rwlock_unlock(&s->env_lock);
	return rc;
}

static struct pfx_catalog_entry *visible(struct lmdb_store *s, const struct pfx_store_key *key)
{
	struct pfx_catalog_entry *e = pfx_catalog_match(s->cat, key);

	return e != NULL && !e->pending && !e->doomed ? e : NULL;
}

static void touch_locked(struct lmdb_store *s, struct pfx_catalog_entry *e)
{
	int was_aged = e->aged;

	pfx_catalog_touch(s->cat, e, pfx_clock_wall_ns());
	if (e->aged && !was_aged && s->n_aged < AGED_MAX) {
		s->aged[s->n_aged++] = e->key.self;
	}
}

static void sweep(struct lmdb_store *s);

/*
 * Reads what was entry number seq. A record that is missing or damaged while its entry is
 * still the same one is doomed; if the entry went meanwhile, it is a plain miss.
 */
static int read_entry(struct lmdb_store *s, const struct pfx_store_key *key, uint64_t seq,
	void *kv)
{
	int decoded, rc = read_record(s, key, kv, &decoded), doomed = 0;
	struct pfx_catalog_entry *e;

	if (rc == 0) {
		return 0;
	}
	pthread_mutex_lock(&s->lock);
	e = pfx_catalog_find(s->cat, &key->self);
	if (!decoded) {
		s->info.failed_gets++;
	} else if (e == NULL || e->seq != seq || e->doomed) {
		rc = -ENOENT;
	} else {
		e->doomed = 1;
		s->n_doomed++;
		s->info.damaged++;
		doomed = 1;
		rc = rc == -ENOENT ? PFX_E_FORMAT : rc;
	}
	pthread_mutex_unlock(&s->lock);
	if (doomed && pthread_mutex_trylock(&s->change) == 0) {
		sweep(s);
		pthread_mutex_unlock(&s->change);
	}
	return rc;
}

static int lmdb_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv)
{
	struct lmdb_store *s = lmdb_of(store);
	struct pfx_catalog_entry *e;
	uint64_t seq = 0;
	int rc = -ENOENT;

	pthread_mutex_lock(&s->lock);
	s->info.gets++;
	e = visible(s, key);
	if (e != NULL) {
		touch_locked(s, e);
		seq = e->seq;
	}
	pthread_mutex_unlock(&s->lock);
	if (e != NULL) {
		rc = read_entry(s, key, seq, kv);
	}
	pthread_mutex_lock(&s->lock);
	s->info.hits += rc == 0;
	s->info.misses += rc == -ENOENT;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static int lmdb_has(struct pfx_store *store, const struct pfx_store_key *key)
{
	struct lmdb_store *s = lmdb_of(store);
	int found;

	pthread_mutex_lock(&s->lock);
	found = visible(s, key) != NULL;
	pthread_mutex_unlock(&s->lock);
	return found;
}

static int lmdb_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg)
{
	struct lmdb_store *s = lmdb_of(store);
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	for (struct pfx_catalog_entry *e = pfx_catalog_next(s->cat, NULL); e != NULL && rc == 0;
		e = pfx_catalog_next(s->cat, e)) {
		struct pfx_store_row row = { .key = e->key,
			.info = { .bytes = e->bytes, .used_ns = e->used_ns } };

		if (!e->doomed && e->up != NULL && e->up->doomed) {
			e->doomed = 1; /* goes with its parent */
		}
		if (!e->pending && !e->doomed) {
			rc = visit(arg, &row);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* ---- the dead ---- */

/* Makes room for every entry to die, so that none is lost for want of memory. */
static int dead_room(struct lmdb_store *s)
{
	struct pfx_catalog_totals totals;
	struct pfx_digest *dead;
	size_t need;

	pfx_catalog_totals(s->cat, &totals);
	need = s->n_dead + (size_t)totals.records + 1;
	if (need <= s->cap_dead) {
		return 0;
	}
	dead = pfx_reallocarray(s->dead, need + need / 2, sizeof(*dead));
	if (dead == NULL) {
		return -ENOMEM;
	}
	s->dead = dead;
	s->cap_dead = need + need / 2;
	return 0;
}

static void entry_gone(void *arg, struct pfx_catalog_entry *e)
{
	struct lmdb_store *s = arg;

	s->n_doomed -= e->doomed && s->n_doomed > 0;
	s->dead[s->n_dead++] = e->key.self;
}

static void sweep_locked(struct lmdb_store *s)
{
	struct pfx_catalog_entry *e, *next;

	if (s->n_doomed == 0 || dead_room(s) != 0) {
		return;
	}
	for (e = pfx_catalog_next(s->cat, NULL); e != NULL; e = next) {
		next = e->doomed ? pfx_catalog_skip(s->cat, e) : pfx_catalog_next(s->cat, e);
		if (e->doomed) {
			s->info.deleted += pfx_catalog_remove_tree(s->cat, e, entry_gone, s);
		}
	}
	s->n_doomed = 0;
}

/* Removes what was found damaged, with what hangs on it. The caller holds `change`. */
static void sweep(struct lmdb_store *s)
{
	pthread_mutex_lock(&s->lock);
	sweep_locked(s);
	pthread_mutex_unlock(&s->lock);
}

static int delete_row(struct lmdb_store *s, MDB_txn *txn, const struct pfx_digest *self)
{
	MDB_val k = digest_val(self);
	int rc = map_code(mdb_del(txn, s->index, &k, NULL));

	if (rc != 0 && rc != -ENOENT) {
		return rc;
	}
	rc = map_code(mdb_del(txn, s->records, &k, NULL));
	return rc == -ENOENT ? 0 : rc;
}

/* ---- transactions ---- */

static int begin(struct lmdb_store *s, MDB_txn **txn)
{
	pthread_rwlock_rdlock(&s->env_lock);
	if (file_is_whole(s)) {
		int rc = map_code(mdb_txn_begin(s->env, NULL, 0, txn));

		if (rc == 0) {
			return 0;
		}
		pthread_rwlock_unlock(&s->env_lock);
		return rc;
	}
	pthread_rwlock_unlock(&s->env_lock);
	return -EIO;
}

/* Commits when rc is 0, else aborts; returns what came of it. */
static int end(struct lmdb_store *s, MDB_txn *txn, int rc)
{
	if (rc == 0) {
		rc = map_code(mdb_txn_commit(txn));
	} else {
		mdb_txn_abort(txn);
	}
	note_file_size(s);
	pthread_rwlock_unlock(&s->env_lock);
	return rc;
}

static int grow(struct lmdb_store *s, uint64_t want)
{
	uint64_t bytes = s->map_bytes;
	int rc = 0;

	while (bytes < want && bytes < s->bytes_max) {
		bytes = bytes * 2 < s->bytes_max ? bytes * 2 : s->bytes_max;
	}
	if (bytes <= s->map_bytes) {
		return 0;
	}
	pthread_rwlock_wrlock(&s->env_lock);
	if (s->env != NULL) {
		rc = map_code(mdb_env_set_mapsize(s->env, (size_t)bytes));
	}
	if (rc == 0) {
		s->map_bytes = bytes;
	}
	pthread_rwlock_unlock(&s->env_lock);
	return rc;
}

/* So that a transaction that writes this many bytes finds room without waiting for a retry. */
static int grow_for(struct lmdb_store *s, uint64_t bytes)
{
	MDB_envinfo info;
	int rc = -EIO;

	pthread_rwlock_rdlock(&s->env_lock);
	if (s->env != NULL) {
		rc = map_code(mdb_env_info(s->env, &info));
	}
	pthread_rwlock_unlock(&s->env_lock);
	return rc == 0 ? grow(s, (info.me_last_pgno + 1) * PAGE + bytes + 64 * PAGE) : rc;
}

/* Deletes the last n of the dead in txn. */
static int bury(struct lmdb_store *s, MDB_txn *txn, size_t n)
{
	int rc = 0;

	for (size_t i = s->n_dead - n; i < s->n_dead && rc == 0; i++) {
		rc = delete_row(s, txn, &s->dead[i]);
	}
	return rc;
}

/*
 * Deletes until at most keep are left. The list ends with what died last, children before
 * parents; so transactions take from its front, and no row loses its parent before it goes.
 */
static int purge(struct lmdb_store *s, size_t keep)
{
	while (s->n_dead > keep) {
		size_t n = s->n_dead < PURGE_MAX ? s->n_dead : PURGE_MAX;
		MDB_txn *txn;
		int rc = grow_for(s, 64 * PAGE);

		if (rc == 0) {
			rc = begin(s, &txn);
		}
		if (rc != 0) {
			return rc;
		}
		for (size_t i = 0; i < n && rc == 0; i++) {
			rc = delete_row(s, txn, &s->dead[i]);
		}
		rc = end(s, txn, rc);
		if (rc != 0) {
			return rc;
		}
		memmove(s->dead, s->dead + n, (s->n_dead - n) * sizeof(*s->dead));
		s->n_dead -= n;
	}
	return 0;
}

/* Encodes an entry's row into buf when it is on disk and aged; its length or 0. */
static size_t take_age(struct lmdb_store *s, const struct pfx_digest *self, uint8_t *buf)
{
	struct pfx_catalog_entry *e = pfx_catalog_find(s->cat, self);
	struct pfx_entry_info info;

	if (e == NULL || !e->aged || e->pending || e->doomed) {
		return 0;
	}
	info = (struct pfx_entry_info){ .bytes = e->bytes, .used_ns = e->used_ns };
	pfx_entry_encode(buf, &e->key, &info);
	e->aged = 0;
	return pfx_entry_size(e->key.n_tokens);
}

/* Writes up to max of the ages that changed. One that is lost only makes a record look older. */
static int write_ages(struct lmdb_store *s, MDB_txn *txn, uint32_t max)
{
	uint8_t buf[ROW_MAX];
	int rc = 0;

	for (uint32_t i = 0; i < max && rc == 0; i++) {
		struct pfx_digest self;
		MDB_val k, v;
		size_t n = 0;

		pthread_mutex_lock(&s->lock);
		if (s->n_aged == 0) {
			pthread_mutex_unlock(&s->lock);
			break;
		}
		self = s->aged[--s->n_aged];
		n = take_age(s, &self, buf);
		pthread_mutex_unlock(&s->lock);
		if (n > 0) {
			k = digest_val(&self);
			v = val_of(buf, n);
			rc = map_code(mdb_put(txn, s->index, &k, &v, 0));
		}
	}
	return rc;
}

static int put_row(struct lmdb_store *s, MDB_txn *txn, const struct pfx_store_item *item,
	uint64_t used_ns)
{
	uint8_t buf[ROW_MAX];
	size_t n = pfx_record_size(&s->base.shape, item->key->n_tokens);
	struct pfx_entry_info info = { .bytes = n, .used_ns = used_ns };
	MDB_val k = digest_val(&item->key->self), v = val_of(NULL, n);
	int rc = map_code(mdb_put(txn, s->records, &k, &v, MDB_RESERVE));

	if (rc != 0) {
		return rc;
	}
	pfx_record_encode(v.mv_data, &s->base.shape, item->key, item->kv);
	pfx_entry_encode(buf, item->key, &info);
	v = val_of(buf, pfx_entry_size(item->key->n_tokens));
	return map_code(mdb_put(txn, s->index, &k, &v, 0));
}

/* ---- room ---- */

/* A transaction that only makes the pages usable that the one before it freed. */
static int tick(struct lmdb_store *s)
{
	uint8_t row[PFX_SHAPE_BYTES];
	MDB_val k = val_of(shape_row, sizeof(shape_row) - 1), v = val_of(row, sizeof(row));
	MDB_txn *txn;
	int rc = begin(s, &txn);

	if (rc != 0) {
		return rc;
	}
	pfx_shape_encode(row, &s->base.shape);
	return end(s, txn, map_code(mdb_put(txn, s->meta, &k, &v, 0)));
}

/* The map was full: grow it, or at the cap evict a sixteenth more. */
static int make_room(struct lmdb_store *s)
{
	struct pfx_catalog_totals totals;
	uint64_t part = s->room_max / 16, n = 0;
	int rc;

	if (s->map_bytes < s->bytes_max) {
		return grow(s, s->map_bytes + 1);
	}
	pthread_mutex_lock(&s->lock);
	rc = dead_room(s);
	if (rc == 0) {
		pfx_catalog_totals(s->cat, &totals);
		n = pfx_catalog_shrink(s->cat, totals.room > part ? totals.room - part : 0, entry_gone,
			s);
		s->info.evicted += n;
	}
	pthread_mutex_unlock(&s->lock);
	if (rc == 0) {
		rc = purge(s, 0);
	}
	return rc == 0 ? tick(s) : rc;
}

/* ---- put ---- */

struct planned {
	struct pfx_catalog_entry *entry; /* held; NULL: refused */
	int is_new;
};

static int plan_put(struct lmdb_store *s, const struct pfx_store_key *key, struct planned *out)
{
	struct pfx_catalog_admit a = { .key = key,
		.bytes = pfx_record_size(&s->base.shape, key->n_tokens),
		.room = room_of(&s->base.shape, key->n_tokens), .room_max = s->room_max,
		.now_ns = pfx_clock_wall_ns(), .gone = entry_gone, .arg = s };
	int rc = dead_room(s);

	if (rc == 0) {
		rc = pfx_catalog_admit(s->cat, &a);
	}
	if (rc == 0) {
		*out = (struct planned){ .entry = a.entry, .is_new = a.is_new };
	}
	s->info.puts++;
	s->info.evicted += a.evicted;
	s->info.replaced += a.replaced;
	s->info.failed_puts += rc != 0;
	s->info.duplicates += rc == 0 && !a.is_new;
	return rc;
}

/* -EAGAIN: what is to go is being put by the same batch, so that must be written first. */
static int plan_delete(struct lmdb_store *s, const struct pfx_store_key *key)
{
	struct pfx_catalog_entry *e = pfx_catalog_match(s->cat, key);
	int rc = e == NULL ? -ENOENT : dead_room(s);
	uint64_t n;

	if (rc != 0) {
		return rc;
	}
	n = pfx_catalog_remove_tree(s->cat, e, entry_gone, s);
	s->info.deleted += n;
	return n > 0 ? 0 : -EAGAIN;
}

/* How many of the n items, from the first on, the next transaction can carry out: >= 1. */
static uint32_t plan(struct lmdb_store *s, const struct pfx_store_item *items, uint32_t n,
	struct planned *plans, int *results)
{
	for (uint32_t i = 0; i < n; i++) {
		if (items[i].kv != NULL) {
			results[i] = plan_put(s, items[i].key, &plans[i]);
			continue;
		}
		results[i] = plan_delete(s, items[i].key);
		if (results[i] == -EAGAIN) {
			return i;
		}
	}
	return n;
}

static int write_plan(struct lmdb_store *s, const struct pfx_store_item *items, uint32_t n,
	const struct planned *plans)
{
	MDB_txn *txn;
	size_t n_dead;
	int rc = purge(s, PURGE_MAX);

	if (rc == 0) {
		rc = begin(s, &txn);
	}
	if (rc != 0) {
		return rc;
	}
	n_dead = s->n_dead;
	rc = bury(s, txn, n_dead);
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		if (plans[i].entry != NULL && plans[i].is_new) {
			rc = put_row(s, txn, &items[i], plans[i].entry->used_ns);
		}
	}
	if (rc == 0) {
		rc = write_ages(s, txn, AGES_A_BATCH);
	}
	rc = end(s, txn, rc);
	if (rc == 0) {
		s->n_dead -= n_dead;
	}
	return rc;
}

/* Publishes what was written, or takes it back. */
static void settle(struct lmdb_store *s, struct planned *plans, uint32_t n, int rc)
{
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < n; i++) {
		if (plans[i].entry != NULL) {
			pfx_catalog_release(s->cat, plans[i].entry);
		}
	}
	/* Children were added after their parents, so they go before them. */
	for (uint32_t i = n; i-- > 0;) {
		if (plans[i].entry == NULL || !plans[i].is_new) {
			continue;
		}
		if (rc == 0) {
			plans[i].entry->pending = 0;
			s->info.written++;
		} else {
			pfx_catalog_remove(s->cat, plans[i].entry);
			s->info.failed_puts++;
		}
	}
	pthread_mutex_unlock(&s->lock);
}

/* Carries out the first items of *n, and says in *n how many those were. */
static int put_some(struct lmdb_store *s, const struct pfx_store_item *items, uint32_t *n,
	uint64_t room, int *results)
{
	struct planned *plans = pfx_calloc(*n, sizeof(*plans));
	int rc = 0, is_new = 0;

	if (plans == NULL) {
		return -ENOMEM;
	}
	pthread_mutex_lock(&s->lock);
	sweep_locked(s);
	*n = plan(s, items, *n, plans, results);
	pthread_mutex_unlock(&s->lock);
	PFX_ASSERT(*n > 0);
	for (uint32_t i = 0; i < *n; i++) {
		is_new |= plans[i].is_new;
	}
	if (is_new || s->n_dead > 0) {
		rc = grow_for(s, room);
		for (int tries = 0; rc == 0 && tries < 32; tries++) {
			rc = write_plan(s, items, *n, plans);
			if (rc != PFX_E_FULL) {
				break;
			}
			rc = make_room(s);
			rc = rc == 0 && tries == 31 ? PFX_E_FULL : rc;
		}
	}
	settle(s, plans, *n, rc);
	pfx_free(plans);
	return rc;
}

/* A batch is cut so that what it writes and what it replaces fit beside one another. */
static int lmdb_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
	int *results)
{
	struct lmdb_store *s = lmdb_of(store);
	uint32_t done = 0;
	int rc = s->read_only ? -EROFS : 0;

	if (rc != 0) {
		return rc;
	}
	pthread_mutex_lock(&s->change);
	while (done < n && rc == 0) {
		uint32_t some = 0;
		uint64_t room = 0;

		do {
			const struct pfx_store_item *item = &items[done + some];

			room += item->kv != NULL ? room_of(&store->shape, item->key->n_tokens) : 0;
			some++;
		} while (done + some < n && room < s->bytes_max / 32);
		rc = put_some(s, items + done, &some, room, results + done);
		done += rc == 0 ? some : 0;
	}
	pthread_mutex_unlock(&s->change);
	for (uint32_t i = done; i < n; i++) {
		results[i] = rc;
	}
	return done == 0 ? rc : 0;
}

/* ---- other changes ---- */

static int lmdb_sync(struct pfx_store *store)
{
	struct lmdb_store *s = lmdb_of(store);
	MDB_txn *txn;
	uint32_t n_aged;
	int rc = 0;

	if (s->read_only) {
		return 0;
	}
	pthread_mutex_lock(&s->change);
	pthread_mutex_lock(&s->lock);
	n_aged = s->n_aged;
	pthread_mutex_unlock(&s->lock);
	if (n_aged > 0 && begin(s, &txn) == 0) {
		end(s, txn, write_ages(s, txn, AGED_MAX));
	}
	pthread_rwlock_rdlock(&s->env_lock);
	rc = file_is_whole(s) ? map_code(mdb_env_sync(s->env, 1)) : -EIO;
	pthread_rwlock_unlock(&s->env_lock);
	pthread_mutex_unlock(&s->change);
	pthread_mutex_lock(&s->lock);
	s->info.syncs++;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static void lmdb_info(struct pfx_store *store, struct pfx_store_info *out)
{
	struct lmdb_store *s = lmdb_of(store);
	struct pfx_catalog_totals totals;

	pthread_mutex_lock(&s->lock);
	pfx_catalog_totals(s->cat, &totals);
	*out = s->info;
	pthread_mutex_unlock(&s->lock);
	out->records = totals.records;
	out->tokens = totals.tokens;
	out->bytes = totals.room;
	out->bytes_max = s->bytes_max;
	out->file_bytes = s->file_seen;
	out->read_only = s->read_only;
	out->broken = s->broken;
}

/*
 * With so many records the catalog never evicts. Nor does a full map make it: what a batch
 * frees and what it writes fit beside one another in the part of the cap that room_max leaves.
 */
static uint64_t lmdb_capacity(const struct pfx_store *store)
{
	const struct lmdb_store *s = pfx_container_of(store, const struct lmdb_store, base);

	return s->room_max / room_of(&store->shape, store->shape.block_tokens);
}

static int lmdb_verify(struct pfx_store *store, struct pfx_store_verified *out)
{
	struct lmdb_store *s = lmdb_of(store);
	struct pfx_catalog_totals totals;
	struct pfx_digest *all;
	void *kv = pfx_malloc((size_t)store->shape.kv_bytes);
	size_t n = 0;
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	pfx_catalog_totals(s->cat, &totals);
	all = pfx_calloc((size_t)totals.records, sizeof(*all));
	for (struct pfx_catalog_entry *e = all != NULL ? pfx_catalog_next(s->cat, NULL) : NULL;
		e != NULL; e = pfx_catalog_next(s->cat, e)) {
		all[n++] = e->key.self;
	}
	pthread_mutex_unlock(&s->lock);
	rc = kv == NULL || all == NULL ? -ENOMEM : 0;
	for (size_t i = 0; i < n && rc == 0; i++) {
		uint32_t tokens[PFX_RECORD_TOKENS_MAX];
		struct pfx_catalog_entry *e;
		struct pfx_store_key key;
		uint64_t seq = 0;

		pthread_mutex_lock(&s->lock);
		e = pfx_catalog_find(s->cat, &all[i]);
		e = e != NULL && !e->pending && !e->doomed ? e : NULL;
		if (e != NULL) {
			seq = e->seq;
			key = e->key;
			memcpy(tokens, e->key.tokens, e->key.n_tokens * sizeof(uint32_t));
			key.tokens = tokens;
			out->records++;
			out->bytes += e->bytes;
		}
		pthread_mutex_unlock(&s->lock);
		if (e == NULL) {
			continue;
		}
		rc = read_entry(s, &key, seq, kv);
		out->damaged += rc == PFX_E_FORMAT || rc == PFX_E_TRUNCATED;
		rc = rc == PFX_E_FORMAT || rc == PFX_E_TRUNCATED || rc == -ENOENT ? 0 : rc;
	}
	pfx_free(all);
	pfx_free(kv);
	return rc;
}

static int lmdb_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed)
{
	struct lmdb_store *s = lmdb_of(store);
	MDB_val k = digest_val(&key->self), v;
	uint64_t r = pfx_rng_mix(seed, 0);
	MDB_txn *txn;
	uint8_t *copy = NULL;
	int rc;

	/* What has left the index may still wait on disk for its deletion; it is not there. */
	if (!lmdb_has(store, key)) {
		return -ENOENT;
	}
	pthread_mutex_lock(&s->change);
	rc = begin(s, &txn);
	if (rc == 0) {
		rc = map_code(mdb_get(txn, s->records, &k, &v));
		copy = rc == 0 ? pfx_memdup(v.mv_data, v.mv_size) : NULL;
		rc = rc == 0 && copy == NULL ? -ENOMEM : rc;
		if (rc == 0 && harm == PFX_HARM_FLIP) {
			copy[r % v.mv_size] ^= (uint8_t)(1u << (r >> 61));
			v.mv_data = copy;
			rc = map_code(mdb_put(txn, s->records, &k, &v, 0));
		} else if (rc == 0 && harm == PFX_HARM_SHORT) {
			v = val_of(copy, r % v.mv_size);
			rc = map_code(mdb_put(txn, s->records, &k, &v, 0));
		} else if (rc == 0) {
			rc = map_code(mdb_del(txn, s->records, &k, NULL));
		}
		rc = end(s, txn, rc);
		pfx_free(copy);
	}
	pthread_mutex_unlock(&s->change);
	return rc;
}

/* ---- opening ---- */

static char *path_in(const char *folder, const char *name)
{
	size_t n = strlen(folder) + strlen(name) + 2;
	char *path = pfx_malloc(n);

	if (path != NULL) {
		snprintf(path, n, "%s/%s", folder, name);
	}
	return path;
}

static int sync_folder(const char *folder)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd < 0 || fsync(fd) != 0 ? -errno : 0;

	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

/* Renames folder/from to folder/to, or removes it when to is NULL. */
static int move_file(const char *folder, const char *from, const char *to)
{
	char *a = path_in(folder, from), *b = to != NULL ? path_in(folder, to) : NULL;
	int rc = -ENOMEM;

	if (a != NULL && (to == NULL || b != NULL)) {
		rc = (to != NULL ? rename(a, b) : unlink(a)) == 0 || errno == ENOENT ? 0 : -errno;
	}
	pfx_free(a);
	pfx_free(b);
	return rc;
}

/* The three trees; makes them, with the shape, when they are not there and txn may write. */
static int open_trees(MDB_txn *txn, unsigned flags, MDB_dbi *meta, MDB_dbi *index,
	MDB_dbi *records)
{
	int rc = map_code(mdb_dbi_open(txn, "meta", flags, meta));

	if (rc == 0) {
		rc = map_code(mdb_dbi_open(txn, "index", flags, index));
	}
	return rc == 0 ? map_code(mdb_dbi_open(txn, "records", flags, records)) : rc;
}

static int env_open(const char *folder, unsigned flags, uint64_t map_bytes, MDB_env **out)
{
	MDB_env *env;
	int rc = map_code(mdb_env_create(&env));

	if (rc != 0) {
		return rc;
	}
	rc = map_code(mdb_env_set_maxdbs(env, 4));
	/* LMDB takes what the file needs when that is more; the file's own wish is not trusted. */
	if (rc == 0) {
		rc = map_code(mdb_env_set_mapsize(env, (size_t)map_bytes));
	}
	if (rc == 0) {
		rc = map_code(mdb_env_open(env, folder, flags | MDB_NOTLS, 0600));
	}
	if (rc != 0) {
		mdb_env_close(env);
		return rc;
	}
	*out = env;
	return 0;
}

/* Opens s->env for use. The map is what the file needs, or the least. */
static int env_reopen(struct lmdb_store *s)
{
	unsigned flags = s->read_only ? MDB_RDONLY | MDB_NOLOCK : MDB_NOMETASYNC;
	uint8_t row[PFX_SHAPE_BYTES];
	MDB_val k = val_of(shape_row, sizeof(shape_row) - 1), v = val_of(row, sizeof(row));
	MDB_envinfo info;
	MDB_txn *txn;
	int rc = env_open(s->folder, flags, s->map_bytes, &s->env);

	if (rc != 0) {
		s->env = NULL;
		return rc;
	}
	rc = map_code(mdb_txn_begin(s->env, NULL, s->read_only ? MDB_RDONLY : 0, &txn));
	if (rc == 0) {
		rc = open_trees(txn, s->read_only ? 0 : MDB_CREATE, &s->meta, &s->index, &s->records);
		if (rc == 0 && !s->read_only) {
			pfx_shape_encode(row, &s->base.shape);
			rc = map_code(mdb_put(txn, s->meta, &k, &v, MDB_NOOVERWRITE));
			rc = rc == -EEXIST ? 0 : rc;
		}
		if (rc == 0) {
			rc = map_code(mdb_txn_commit(txn));
		} else {
			mdb_txn_abort(txn);
		}
	}
	if (rc != 0) {
		mdb_env_close(s->env);
		s->env = NULL;
		return rc;
	}
	if (mdb_env_info(s->env, &info) == 0 && info.me_mapsize > s->map_bytes) {
		s->map_bytes = info.me_mapsize;
	}
	note_file_size(s);
	return 0;
}

/* ---- the walk, in a child process ---- */

struct walk_arg {
	const char *folder, *file;
	const struct pfx_store_shape *shape;
	int lock_fd;
};

static int walk_shape(MDB_txn *txn, MDB_dbi meta, const struct pfx_store_shape *want, char *why,
	size_t whylen)
{
	MDB_val k = val_of(shape_row, sizeof(shape_row) - 1), v;
	struct pfx_store_shape have;
	uint32_t version = 0;
	int rc = map_code(mdb_get(txn, meta, &k, &v));

	if (rc == 0) {
		rc = pfx_shape_decode(v.mv_data, v.mv_size, &have, &version);
	}
	if (rc == PFX_E_UNSUPPORTED) {
		return pfx_fail(-EEXIST, why, whylen, "holds records of version %u, not %u", version,
			PFX_RECORD_VERSION);
	}
	if (rc != 0) {
		return pfx_fail(PFX_E_FORMAT, why, whylen, "the row that tells its shape is damaged");
	}
	if (have.block_tokens != want->block_tokens || have.kv_bytes != want->kv_bytes) {
		return pfx_fail(-EEXIST, why, whylen,
			"holds blocks of %u tokens and %llu bytes, not of %u and %llu", have.block_tokens,
			(unsigned long long)have.kv_bytes, want->block_tokens,
			(unsigned long long)want->kv_bytes);
	}
	return pfx_digest_equal(&have.identity, &want->identity) ? 0 : pfx_fail(-EEXIST, why, whylen,
		"holds records of another model, backend or arithmetic");
}

/* Steps through a tree as LMDB sees it, without looking at values. */
static int walk_tree(MDB_txn *txn, MDB_dbi dbi, uint64_t *rows)
{
	MDB_cursor *cursor;
	MDB_val k, v;
	int rc = map_code(mdb_cursor_open(txn, dbi, &cursor));

	*rows = 0;
	if (rc != 0) {
		return rc;
	}
	while ((rc = mdb_cursor_get(cursor, &k, &v, MDB_NEXT)) == MDB_SUCCESS) {
		if (k.mv_size != sizeof(struct pfx_digest)) {
			break;
		}
		++*rows;
	}
	mdb_cursor_close(cursor);
	return rc == MDB_NOTFOUND ? 0 : PFX_E_FORMAT;
}

static int walk_env(MDB_txn *txn, const struct walk_arg *w, char *why, size_t whylen)
{
	MDB_dbi names, meta, index, records;
	MDB_stat st;
	uint64_t n_index, n_records;
	int rc = open_trees(txn, 0, &meta, &index, &records);

	if (rc == -ENOENT) {
		/* One of our names is missing. When all are, nobody of ours was here. */
		static const char *const ours[] = { "meta", "index", "records" };
		int seen = 0;

		for (size_t i = 0; i < 3; i++) {
			seen += mdb_dbi_open(txn, ours[i], 0, &names) == 0;
		}
		if (seen > 0) {
			return pfx_fail(PFX_E_FORMAT, why, whylen, "one of its trees is missing");
		}
		return mdb_dbi_open(txn, NULL, 0, &names) == 0 && mdb_stat(txn, names, &st) == 0 &&
			st.ms_entries == 0 ? 0 : pfx_fail(-EEXIST, why, whylen,
			"is an LMDB environment of another program");
	}
	if (rc != 0) {
		return pfx_fail(rc, why, whylen, "its trees cannot be opened");
	}
	rc = walk_shape(txn, meta, w->shape, why, whylen);
	if (rc != 0) {
		return rc;
	}
	if (walk_tree(txn, index, &n_index) != 0 || walk_tree(txn, records, &n_records) != 0) {
		return pfx_fail(PFX_E_FORMAT, why, whylen, "a tree cannot be walked");
	}
	return n_index == n_records ? 0 : pfx_fail(PFX_E_FORMAT, why, whylen,
		"the index has %llu rows for %llu records", (unsigned long long)n_index,
		(unsigned long long)n_records);
}

static int walk_all(void *arg, char *why, size_t whylen)
{
	const struct walk_arg *w = arg;
	MDB_env *env;
	MDB_txn *txn;
	struct stat st;
	int rc;

	/* Else the child of a killed process would keep the folder from the next one. */
	if (w->lock_fd >= 0) {
		close(w->lock_fd);
	}
	rc = pfx_audit(w->file, why, whylen);

	if (rc == PFX_E_UNSUPPORTED) {
		return -EEXIST;
	}
	if (rc != 0 || stat(w->file, &st) != 0 || st.st_size == 0) {
		return rc;
	}
	rc = env_open(w->folder, MDB_RDONLY | MDB_NOLOCK, MAP_FIRST, &env);
	if (rc != 0) {
		return pfx_fail(rc, why, whylen, "LMDB cannot open it: %s", pfx_strerror(rc));
	}
	rc = map_code(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
	return rc == 0 ? walk_env(txn, w, why, whylen) :
		pfx_fail(rc, why, whylen, "LMDB cannot read it: %s", pfx_strerror(rc));
}

/* What to do with what the walk found. */
static int judge(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o, int rc,
	struct pfx_store_opened *opened, char *err, size_t errlen)
{
	if (rc == -EEXIST && o->replace && !s->read_only) {
		pfx_warn("persist", "store is cleared: it %s path=%s", opened->why, s->folder);
		opened->why[0] = '\0';
		rc = move_file(s->folder, "data.mdb", NULL);
		return rc == 0 ? move_file(s->folder, "lock.mdb", NULL) : rc;
	}
	if ((rc == PFX_E_FORMAT || rc == PFX_E_TRUNCATED) && !s->read_only) {
		rc = move_file(s->folder, "data.mdb", "damaged.mdb");
		if (rc == 0) {
			rc = move_file(s->folder, "lock.mdb", NULL);
		}
		if (rc == 0) {
			opened->set_aside = 1;
			pfx_warn("persist", "store was damaged (%s); it is now damaged.mdb, and the store "
				"starts empty path=%s", opened->why, s->folder);
		}
		return rc == 0 ? 0 : pfx_fail(rc, err, errlen, "%s: damaged (%s), and cannot be set "
			"aside: %s", s->folder, opened->why, strerror(-rc));
	}
	return rc == 0 ? 0 : pfx_fail(rc, err, errlen, "%s: %s", s->folder, opened->why);
}

static int walk_first(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o,
	struct pfx_store_opened *opened, char *err, size_t errlen)
{
	char *file = path_in(s->folder, "data.mdb");
	struct walk_arg arg = { .folder = s->folder, .file = file, .shape = &s->base.shape,
		.lock_fd = s->lock_fd };
	int rc = -ENOMEM;

	if (file != NULL) {
		rc = pfx_walk(walk_all, &arg, o->walk_ms_max ? o->walk_ms_max : 120000, opened->why,
			sizeof(opened->why));
		rc = judge(s, o, rc, opened, err, errlen);
	}
	pfx_free(file);
	return rc;
}

/* ---- loading the index ---- */

struct loaded {
	MDB_val k, v; /* in the map: valid during the transaction */
	uint32_t pos;
};

static int by_pos(const void *a, const void *b)
{
	uint32_t x = ((const struct loaded *)a)->pos, y = ((const struct loaded *)b)->pos;

	return (x > y) - (x < y);
}

/* A row that is damaged, or hangs on nothing, dies. */
static int load_row(struct lmdb_store *s, const struct loaded *l, uint64_t *dropped)
{
	uint32_t tokens[PFX_RECORD_TOKENS_MAX];
	struct pfx_store_key key;
	struct pfx_entry_info info;
	struct pfx_catalog_entry *e;
	int rc = pfx_entry_decode(l->v.mv_data, l->v.mv_size, &s->base.shape, &key, tokens, &info);

	if (rc == 0 && memcmp(key.self.b, l->k.mv_data, sizeof(key.self.b)) != 0) {
		rc = PFX_E_FORMAT;
	}
	if (rc == 0) {
		rc = pfx_catalog_add(s->cat, &key, info.bytes, room_of(&s->base.shape, key.n_tokens),
			info.used_ns, &e);
	}
	if (rc == 0 || rc == -ENOMEM) {
		return rc;
	}
	memcpy(s->dead[s->n_dead++].b, l->k.mv_data, sizeof(s->dead->b));
	++*dropped;
	return 0;
}

static int load_rows(struct lmdb_store *s, MDB_txn *txn, struct loaded *rows, size_t max,
	uint64_t *dropped)
{
	MDB_cursor *cursor;
	size_t n = 0;
	int rc = map_code(mdb_cursor_open(txn, s->index, &cursor));

	if (rc != 0) {
		return rc;
	}
	while (n < max && mdb_cursor_get(cursor, &rows[n].k, &rows[n].v, MDB_NEXT) == MDB_SUCCESS) {
		uint32_t tokens[PFX_RECORD_TOKENS_MAX];
		struct pfx_store_key key = { 0 };
		struct pfx_entry_info info;

		pfx_entry_decode(rows[n].v.mv_data, rows[n].v.mv_size, &s->base.shape, &key, tokens,
			&info);
		rows[n].pos = key.pos;
		n++;
	}
	mdb_cursor_close(cursor);
	/* A parent begins before its child. */
	qsort(rows, n, sizeof(*rows), by_pos);
	for (size_t i = 0; i < n && rc == 0; i++) {
		rc = load_row(s, &rows[i], dropped);
	}
	return rc;
}

static int load_index(struct lmdb_store *s, uint64_t *dropped)
{
	struct loaded *rows = NULL;
	MDB_txn *txn;
	MDB_stat st;
	int rc = map_code(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn));

	if (rc != 0) {
		return rc;
	}
	rc = map_code(mdb_stat(txn, s->index, &st));
	if (rc == 0) {
		rows = pfx_calloc(st.ms_entries, sizeof(*rows));
		s->dead = pfx_calloc(st.ms_entries + 1, sizeof(*s->dead));
		s->cap_dead = st.ms_entries + 1;
		rc = rows == NULL || s->dead == NULL ? -ENOMEM :
			load_rows(s, txn, rows, st.ms_entries, dropped);
	}
	mdb_txn_abort(txn);
	pfx_free(rows);
	return rc;
}

/* ---- replacing the environment ---- */

static int lmdb_compact(struct pfx_store *store)
{
	struct lmdb_store *s = lmdb_of(store);
	char *copy = path_in(s->folder, "compact.mdb");
	int rc = s->read_only ? -EROFS : copy == NULL ? -ENOMEM : 0, fd = -1;

	pthread_mutex_lock(&s->change);
	if (rc == 0) {
		sweep(s);
		rc = purge(s, 0);
	}
	pthread_rwlock_wrlock(&s->env_lock);
	if (rc == 0 && !file_is_whole(s)) {
		rc = -EIO;
	}
	if (rc == 0) {
		fd = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		rc = fd < 0 ? -errno : map_code(mdb_env_copyfd2(s->env, fd, MDB_CP_COMPACT));
	}
	if (fd >= 0) {
		rc = fsync(fd) != 0 && rc == 0 ? -errno : rc;
		close(fd);
	}
	if (rc == 0) {
		mdb_env_close(s->env);
		s->env = NULL;
		s->map_bytes = MAP_FIRST;
		rc = move_file(s->folder, "compact.mdb", "data.mdb");
		sync_folder(s->folder);
		rc = env_reopen(s) != 0 ? -EIO : rc;
		s->broken = s->env == NULL;
	}
	move_file(s->folder, "compact.mdb", NULL);
	pthread_rwlock_unlock(&s->env_lock);
	pthread_mutex_unlock(&s->change);
	pfx_free(copy);
	return rc;
}

/* Everything goes with the file itself: at once, and its room is the file system's again. */
static int clear_all(struct lmdb_store *s, uint64_t *records)
{
	struct pfx_catalog *fresh;
	struct pfx_catalog_totals totals;
	int rc = pfx_catalog_open(&fresh);

	if (rc != 0) {
		return rc;
	}
	pthread_rwlock_wrlock(&s->env_lock);
	if (s->env != NULL) {
		mdb_env_close(s->env);
		s->env = NULL;
	}
	rc = move_file(s->folder, "data.mdb", NULL);
	s->map_bytes = MAP_FIRST;
	s->n_dead = 0;
	if (env_reopen(s) != 0) {
		rc = -EIO;
	}
	s->broken = s->env == NULL;
	pthread_rwlock_unlock(&s->env_lock);
	pthread_mutex_lock(&s->lock);
	if (rc == 0) {
		struct pfx_catalog *old = s->cat;

		pfx_catalog_totals(old, &totals);
		*records = totals.records;
		s->info.deleted += totals.records;
		s->cat = fresh;
		s->n_doomed = 0;
		s->n_aged = 0;
		fresh = old;
	}
	pthread_mutex_unlock(&s->lock);
	pfx_catalog_close(fresh);
	return rc;
}

static int clear_space(struct lmdb_store *s, const struct pfx_digest *space, uint64_t *records)
{
	struct pfx_catalog_entry *e, *next;
	int rc;

	pthread_mutex_lock(&s->lock);
	sweep_locked(s);
	rc = dead_room(s);
	/* A whole prefix is of one namespace, so that of its first record decides. */
	for (e = rc == 0 ? pfx_catalog_next(s->cat, NULL) : NULL; e != NULL; e = next) {
		next = pfx_catalog_skip(s->cat, e);
		if (pfx_digest_equal(&e->key.space, space)) {
			*records += pfx_catalog_remove_tree(s->cat, e, entry_gone, s);
		}
	}
	s->info.deleted += *records;
	pthread_mutex_unlock(&s->lock);
	return rc == 0 ? purge(s, 0) : rc;
}

static int lmdb_clear(struct pfx_store *store, const struct pfx_digest *space,
	uint64_t *records)
{
	struct lmdb_store *s = lmdb_of(store);
	int rc = s->read_only ? -EROFS : 0;

	if (rc == 0) {
		pthread_mutex_lock(&s->change);
		rc = space != NULL ? clear_space(s, space, records) : clear_all(s, records);
		pthread_mutex_unlock(&s->change);
	}
	return rc;
}

/* ---- open and close ---- */

static void store_free(struct lmdb_store *s)
{
	if (s->env != NULL) {
		mdb_env_close(s->env);
	}
	if (s->lock_fd >= 0) {
		close(s->lock_fd);
	}
	pfx_catalog_close(s->cat);
	pthread_mutex_destroy(&s->change);
	pthread_mutex_destroy(&s->lock);
	pthread_rwlock_destroy(&s->env_lock);
	pfx_free(s->dead);
	pfx_free(s->folder);
	pfx_free(s);
}

/* Ages that found no place in the list of the aged are looked up here. */
static void write_all_ages(struct lmdb_store *s)
{
	struct pfx_catalog_entry *e = pfx_catalog_next(s->cat, NULL);

	s->n_aged = 0;
	while (e != NULL) {
		MDB_txn *txn;

		while (e != NULL && s->n_aged < AGED_MAX) {
			if (e->aged) {
				s->aged[s->n_aged++] = e->key.self;
			}
			e = pfx_catalog_next(s->cat, e);
		}
		if (s->n_aged == 0 || begin(s, &txn) != 0 ||
			end(s, txn, write_ages(s, txn, AGED_MAX)) != 0) {
			return;
		}
	}
}

static void lmdb_close(struct pfx_store *store)
{
	struct lmdb_store *s = lmdb_of(store);

	if (!s->read_only && s->env != NULL && !s->broken) {
		sweep(s);
		purge(s, 0);
		write_all_ages(s);
		mdb_env_sync(s->env, 1);
	}
	store_free(s);
}

static const struct pfx_store_ops lmdb_ops = {
	.name = "lmdb",
	.get = lmdb_get,
	.has = lmdb_has,
	.put = lmdb_put,
	.iterate = lmdb_iterate,
	.sync = lmdb_sync,
	.info = lmdb_info,
	.capacity = lmdb_capacity,
	.verify = lmdb_verify,
	.compact = lmdb_compact,
	.clear = lmdb_clear,
	.damage = lmdb_damage,
	.close = lmdb_close,
};

static int check_opts(const struct pfx_store_lmdb_opts *o, char *err, size_t errlen)
{
	uint64_t need;

	if (o->shape.block_tokens < 1 || o->shape.block_tokens > PFX_RECORD_TOKENS_MAX ||
		o->shape.kv_bytes < 1 || o->shape.kv_bytes > UINT32_MAX / 2) {
		return pfx_fail(-EINVAL, err, errlen, "%s: no store has blocks of %u tokens, %llu bytes",
			o->path, o->shape.block_tokens, (unsigned long long)o->shape.kv_bytes);
	}
	need = 32 * room_of(&o->shape, o->shape.block_tokens);
	need = need < PFX_STORE_BYTES_MIN ? PFX_STORE_BYTES_MIN : need;
	if (o->bytes_max < need) {
		return pfx_fail(-EINVAL, err, errlen, "%s: a store of %llu bytes is too small, it takes "
			"%llu", o->path, (unsigned long long)o->bytes_max, (unsigned long long)need);
	}
	return 0;
}

/* One that was killed just now may take a moment to be gone, with what it forked. */
static int lock_folder(struct lmdb_store *s, char *err, size_t errlen)
{
	struct timespec pause = { .tv_nsec = 20000000 };

	for (int tries = 0; flock(s->lock_fd, (s->read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0;
		tries++) {
		if (errno != EWOULDBLOCK || tries == 25) {
			int rc = errno == EWOULDBLOCK ? -EBUSY : -errno;

			return pfx_fail(rc, err, errlen, "%s: cannot be locked: %s", s->folder,
				rc == -EBUSY ? "another process has it" : strerror(-rc));
		}
		nanosleep(&pause, NULL);
	}
	return 0;
}

/* The folder, and the lock that keeps other processes out. */
static int take_folder(struct lmdb_store *s, char *err, size_t errlen)
{
	char *file;
	int rc;

	if (!s->read_only && mkdir(s->folder, 0700) != 0 && errno != EEXIST && errno != EROFS &&
		errno != EACCES) {
		rc = -errno;
		return pfx_fail(rc, err, errlen, "%s: cannot be made: %s", s->folder, strerror(-rc));
	}
	s->read_only |= access(s->folder, W_OK) != 0 && (errno == EACCES || errno == EROFS);
	file = path_in(s->folder, "prefixd.lock");
	if (file == NULL) {
		return -ENOMEM;
	}
	s->lock_fd = open(file, s->read_only ? O_RDONLY | O_CLOEXEC : O_RDWR | O_CREAT | O_CLOEXEC,
		0600);
	rc = s->lock_fd < 0 ? -errno : 0;
	pfx_free(file);
	if (rc != 0) {
		/* Nobody can ever have written where the lock could not be made. */
		return s->read_only && rc == -ENOENT ? 0 :
			pfx_fail(rc, err, errlen, "%s: cannot be locked: %s", s->folder, strerror(-rc));
	}
	return lock_folder(s, err, errlen);
}

/*
 * The cap may be lower than last time. Then the map ends where the file does and may have no
 * free page, but deleting takes some; so the file grows a little before it is made small.
 */
static int fit_cap(struct lmdb_store *s)
{
	uint64_t bytes = s->map_bytes + s->map_bytes / 4 + PFX_STORE_BYTES_MIN;
	int rc = dead_room(s);

	if (rc != 0) {
		return rc;
	}
	s->info.evicted += pfx_catalog_shrink(s->cat, s->room_max, entry_gone, s);
	if (s->map_bytes <= s->bytes_max) {
		return purge(s, 0);
	}
	rc = map_code(mdb_env_set_mapsize(s->env, (size_t)bytes));
	return rc == 0 ? lmdb_compact(&s->base) : rc;
}

static int start(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o,
	struct pfx_store_opened *opened, char *err, size_t errlen)
{
	int rc = take_folder(s, err, errlen);

	if (rc == 0) {
		rc = walk_first(s, o, opened, err, errlen);
	}
	if (rc != 0) {
		return rc;
	}
	if (!s->read_only) {
		move_file(s->folder, "compact.mdb", NULL);
	}
	rc = env_reopen(s);
	if (rc == 0) {
		rc = load_index(s, &opened->dropped);
	}
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "%s: cannot be opened: %s", s->folder, pfx_strerror(rc));
	}
	if (s->read_only) {
		return 0;
	}
	rc = fit_cap(s);
	if (rc == 0) {
		rc = sync_folder(s->folder);
	}
	return rc == 0 ? 0 : pfx_fail(rc, err, errlen, "%s: cannot be written: %s", s->folder,
		pfx_strerror(rc));
}

int pfx_store_lmdb_open(struct pfx_store **out, const struct pfx_store_lmdb_opts *opts,
	struct pfx_store_opened *opened, char *err, size_t errlen)
{
	struct pfx_store_opened own;
	struct lmdb_store *s;
	int rc = check_opts(opts, err, errlen);

	opened = opened != NULL ? opened : &own;
	memset(opened, 0, sizeof(*opened));
	if (rc != 0) {
		return rc;
	}
	s = pfx_calloc(1, sizeof(*s));
	if (s == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "%s: out of memory", opts->path);
	}
	s->base = (struct pfx_store){ .magic = PFX_STORE_MAGIC, .ops = &lmdb_ops,
		.shape = opts->shape };
	s->lock_fd = -1;
	s->read_only = opts->read_only;
	s->bytes_max = opts->bytes_max / PAGE * PAGE;
	/* The rest is for trees, free lists, and what a batch writes before the old pages go. */
	s->room_max = s->bytes_max / 8 * 7 - PFX_STORE_BYTES_MIN / 4;
	s->map_bytes = MAP_FIRST;
	pthread_mutex_init(&s->change, NULL);
	pthread_mutex_init(&s->lock, NULL);
	pthread_rwlock_init(&s->env_lock, NULL);
	s->folder = pfx_strdup(opts->path);
	rc = s->folder == NULL || pfx_catalog_open(&s->cat) != 0 ?
		pfx_fail(-ENOMEM, err, errlen, "%s: out of memory", opts->path) :
		start(s, opts, opened, err, errlen);
	if (rc != 0) {
		store_free(s);
		return rc;
	}
	*out = &s->base;
	return 0;
}
