/* The environment itself: files, transactions, the map, LMDB's codes. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"

int pfx_lmdb_code(int rc)
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

/* ---- files ---- */

char *pfx_lmdb_path(const char *folder, const char *name)
{
	size_t n = strlen(folder) + strlen(name) + 2;
	char *path = pfx_malloc(n);

	if (path != NULL) {
		snprintf(path, n, "%s/%s", folder, name);
	}
	return path;
}

int pfx_lmdb_sync_folder(const char *folder)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd < 0 || fsync(fd) != 0 ? -errno : 0;

	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

/* Renames folder/from to folder/to, or removes it when to is NULL. */
int pfx_lmdb_move(const char *folder, const char *from, const char *to)
{
	char *a = pfx_lmdb_path(folder, from), *b = to != NULL ? pfx_lmdb_path(folder, to) : NULL;
	int rc = -ENOMEM;

	if (a != NULL && (to == NULL || b != NULL)) {
		rc = (to != NULL ? rename(a, b) : unlink(a)) == 0 || errno == ENOENT ? 0 : -errno;
	}
	pfx_free(a);
	pfx_free(b);
	return rc;
}

/* A file that shrank under the map kills the process that reads what is gone. */
int pfx_lmdb_is_whole(struct lmdb_store *s)
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

/* ---- opening ---- */

/* The three trees; makes them, with the shape, when they are not there and txn may write. */
int pfx_lmdb_trees(MDB_txn *txn, unsigned flags, MDB_dbi *meta, MDB_dbi *index,
	MDB_dbi *records)
{
	int rc = pfx_lmdb_code(mdb_dbi_open(txn, "meta", flags, meta));

	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_dbi_open(txn, "index", flags, index));
	}
	return rc == 0 ? pfx_lmdb_code(mdb_dbi_open(txn, "records", flags, records)) : rc;
}

int pfx_lmdb_env_open(const char *folder, unsigned flags, uint64_t map_bytes, MDB_env **out)
{
	MDB_env *env;
	int rc = pfx_lmdb_code(mdb_env_create(&env));

	if (rc != 0) {
		return rc;
	}
	rc = pfx_lmdb_code(mdb_env_set_maxdbs(env, 4));
	/* LMDB takes what the file needs when that is more; the file's own wish is not trusted. */
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_env_set_mapsize(env, (size_t)map_bytes));
	}
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_env_open(env, folder, flags | MDB_NOTLS, 0600));
	}
	if (rc != 0) {
		mdb_env_close(env);
		return rc;
	}
	*out = env;
	return 0;
}

/* Opens s->env for use. The map is what the file needs, or the least. */
int pfx_lmdb_reopen(struct lmdb_store *s)
{
	unsigned flags = s->read_only ? MDB_RDONLY | MDB_NOLOCK : MDB_NOMETASYNC;
	uint8_t row[PFX_SHAPE_BYTES];
	MDB_val k = shape_key(), v = val_of(row, sizeof(row));
	MDB_envinfo info;
	MDB_txn *txn;
	int rc = pfx_lmdb_env_open(s->folder, flags, s->map_bytes, &s->env);

	if (rc != 0) {
		s->env = NULL;
		return rc;
	}
	rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, s->read_only ? MDB_RDONLY : 0, &txn));
	if (rc == 0) {
		rc = pfx_lmdb_trees(txn, s->read_only ? 0 : MDB_CREATE, &s->meta, &s->index, &s->records);
		if (rc == 0 && !s->read_only) {
			pfx_shape_encode(row, &s->base.shape);
			rc = pfx_lmdb_code(mdb_put(txn, s->meta, &k, &v, MDB_NOOVERWRITE));
			rc = rc == -EEXIST ? 0 : rc;
		}
		if (rc == 0) {
			rc = pfx_lmdb_code(mdb_txn_commit(txn));
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

/* ---- transactions and the map ---- */

int pfx_lmdb_begin(struct lmdb_store *s, MDB_txn **txn)
{
	pthread_rwlock_rdlock(&s->env_lock);
	if (pfx_lmdb_is_whole(s)) {
		int rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, 0, txn));

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
int pfx_lmdb_end(struct lmdb_store *s, MDB_txn *txn, int rc)
{
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_txn_commit(txn));
	} else {
		mdb_txn_abort(txn);
	}
	note_file_size(s);
	pthread_rwlock_unlock(&s->env_lock);
	return rc;
}

int pfx_lmdb_grow(struct lmdb_store *s, uint64_t want)
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
		rc = pfx_lmdb_code(mdb_env_set_mapsize(s->env, (size_t)bytes));
	}
	if (rc == 0) {
		s->map_bytes = bytes;
	}
	pthread_rwlock_unlock(&s->env_lock);
	return rc;
}

/* So that a transaction that writes this many bytes finds room without waiting for a retry. */
int pfx_lmdb_grow_for(struct lmdb_store *s, uint64_t bytes)
{
	MDB_envinfo info;
	int rc = -EIO;

	pthread_rwlock_rdlock(&s->env_lock);
	if (s->env != NULL) {
		rc = pfx_lmdb_code(mdb_env_info(s->env, &info));
	}
	pthread_rwlock_unlock(&s->env_lock);
	return rc == 0 ? pfx_lmdb_grow(s, (info.me_last_pgno + 1) * PAGE + bytes + 64 * PAGE) : rc;
}
