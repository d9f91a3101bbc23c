/* What an operator asks for: compact, clear. And damage, for tests. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"

/* LMDB copies from the map, and as many pages of a value as its first one says. */
static int copy_to(struct lmdb_store *s, int fd)
{
	MDB_val k, v;
	MDB_cursor *cursor;
	MDB_txn *txn;
	int rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn));

	if (rc != 0) {
		return rc;
	}
	rc = pfx_lmdb_code(mdb_cursor_open(txn, s->records, &cursor));
	if (rc == 0) {
		while (rc == 0 && mdb_cursor_get(cursor, &k, &v, MDB_NEXT) == MDB_SUCCESS) {
			rc = pfx_lmdb_mend(s, &v);
		}
		mdb_cursor_close(cursor);
	}
	mdb_txn_abort(txn);
	madvise((void *)s->map, (size_t)s->file_seen, MADV_NORMAL);
	return rc == 0 ? pfx_lmdb_code(mdb_env_copyfd2(s->env, fd, MDB_CP_COMPACT)) : rc;
}

int pfx_lmdb_compact(struct pfx_store *store)
{
	struct lmdb_store *s = lmdb_of(store);
	char *copy = pfx_lmdb_path(s->folder, "compact.mdb");
	int rc = s->read_only ? -EROFS : copy == NULL ? -ENOMEM : 0, fd = -1;

	pthread_mutex_lock(&s->change);
	if (rc == 0) {
		pfx_lmdb_sweep(s);
		rc = pfx_lmdb_purge(s, 0);
	}
	pthread_rwlock_wrlock(&s->env_lock);
	if (rc == 0 && !pfx_lmdb_is_whole(s)) {
		rc = -EIO;
	}
	if (rc == 0) {
		fd = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		rc = fd < 0 ? -errno : copy_to(s, fd);
	}
	if (fd >= 0) {
		rc = fsync(fd) != 0 && rc == 0 ? -errno : rc;
		close(fd);
	}
	if (rc == 0) {
		mdb_env_close(s->env);
		s->env = NULL;
		s->map_bytes = MAP_FIRST;
		rc = pfx_lmdb_move(s->folder, "compact.mdb", "data.mdb");
		pfx_lmdb_sync_folder(s->folder);
		rc = pfx_lmdb_reopen(s) != 0 ? -EIO : rc;
		s->broken = s->env == NULL;
	}
	pfx_lmdb_move(s->folder, "compact.mdb", NULL);
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
	rc = pfx_lmdb_move(s->folder, "data.mdb", NULL);
	s->map_bytes = MAP_FIRST;
	s->n_dead = 0;
	if (pfx_lmdb_reopen(s) != 0) {
		rc = -EIO;
	}
	s->broken = s->env == NULL;
	/* Before anybody reads again: who misses what the old catalog tells would call it damaged. */
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
	pthread_rwlock_unlock(&s->env_lock);
	pfx_catalog_close(fresh);
	return rc;
}

static int clear_space(struct lmdb_store *s, const struct pfx_digest *space, uint64_t *records)
{
	struct pfx_catalog_entry *e, *next;
	int rc;

	pthread_mutex_lock(&s->lock);
	pfx_lmdb_sweep_locked(s);
	rc = pfx_lmdb_dead_room_locked(s);
	/* A whole prefix is of one namespace, so that of its first record decides. */
	for (e = rc == 0 ? pfx_catalog_next(s->cat, NULL) : NULL; e != NULL; e = next) {
		next = pfx_catalog_skip(s->cat, e);
		if (pfx_digest_equal(&e->key.space, space)) {
			*records += pfx_catalog_remove_tree(s->cat, e, pfx_lmdb_gone, s);
		}
	}
	s->info.deleted += *records;
	pthread_mutex_unlock(&s->lock);
	return rc == 0 ? pfx_lmdb_purge(s, 0) : rc;
}

int pfx_lmdb_clear(struct pfx_store *store, const struct pfx_digest *space,
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

int pfx_lmdb_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed)
{
	struct lmdb_store *s = lmdb_of(store);
	MDB_val k = digest_val(&key->self), v;
	uint64_t r = pfx_rng_mix(seed, 0);
	MDB_txn *txn;
	uint8_t *copy = NULL;
	int rc;

	/* What has left the index may still wait on disk for its deletion; it is not there. */
	if (!pfx_lmdb_has(store, key)) {
		return -ENOENT;
	}
	pthread_mutex_lock(&s->change);
	rc = pfx_lmdb_begin(s, &txn);
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_get(txn, s->records, &k, &v));
		rc = rc == 0 ? pfx_lmdb_mend(s, &v) : rc;
		copy = rc == 0 ? pfx_memdup(v.mv_data, v.mv_size) : NULL;
		rc = rc == 0 && copy == NULL ? -ENOMEM : rc;
		if (rc == 0 && harm == PFX_HARM_FLIP) {
			copy[r % v.mv_size] ^= (uint8_t)(1u << (r >> 61));
			v.mv_data = copy;
			rc = pfx_lmdb_code(mdb_put(txn, s->records, &k, &v, 0));
		} else if (rc == 0 && harm == PFX_HARM_SHORT) {
			v = val_of(copy, r % v.mv_size);
			rc = pfx_lmdb_code(mdb_put(txn, s->records, &k, &v, 0));
		} else if (rc == 0) {
			rc = pfx_lmdb_code(mdb_del(txn, s->records, &k, NULL));
		}
		rc = pfx_lmdb_end(s, txn, rc);
		pfx_free(copy);
	}
	pthread_mutex_unlock(&s->change);
	return rc;
}
