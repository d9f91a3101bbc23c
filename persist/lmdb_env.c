/* The environment itself: files, transactions, the map, LMDB's codes. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "persist/audit.h"

/* A little more than LMDB takes for 126 readers. */
#define LOCK_BYTES 12288
/* A disk with less room than that has failed to take a record, more likely than it is broken. */
#define NEARLY_FULL (1u << 20)

int pfx_lmdb_code(int rc)
{
	static struct pfx_log_rate rate;
	uint64_t held;

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
	if (rc > 0) {
		return -rc; /* an errno */
	}
	/* The rest of LMDB's own mean that it gave up, and nobody further up can tell them apart. */
	if (pfx_log_rate(&rate, &held)) {
		pfx_error("persist", "the store's library gave up: %s suppressed=%llu", mdb_strerror(rc),
			(unsigned long long)held);
	}
	return -EIO;
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

int pfx_lmdb_is_whole(struct lmdb_store *s)
{
	struct stat st;
	/* Before the look at the file: a writer may make it longer in between, and say so here. */
	uint64_t seen = s->file_seen;

	if (s->env == NULL || s->broken || fstat(s->fd, &st) != 0) {
		return 0;
	}
	if (s->linked && st.st_nlink == 0) {
		s->broken = 1;
		pfx_error("persist", "store was removed while in use, it is not used any more path=%s",
			s->folder);
		return 0;
	}
	if ((uint64_t)st.st_size < seen) {
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

	if (fstat(s->fd, &st) == 0) {
		s->file_seen = (uint64_t)st.st_size;
	}
}

int pfx_lmdb_read_value(struct lmdb_store *s, const MDB_val *v, void *head, size_t head_len,
	void *body, size_t body_len)
{
	size_t n_head = v->mv_size < head_len ? v->mv_size : head_len;
	size_t n_body = v->mv_size - n_head < body_len ? v->mv_size - n_head : body_len, done = 0;
	off_t at = (const uint8_t *)v->mv_data - s->map;

	while (done < n_head + n_body) {
		size_t in_head = done < n_head ? done : n_head, in_body = done - in_head;
		struct iovec iov[2] = {
			{ .iov_base = (uint8_t *)head + in_head, .iov_len = n_head - in_head },
			{ .iov_base = (uint8_t *)body + in_body, .iov_len = n_body - in_body },
		};
		ssize_t got = preadv(s->fd, iov, 2, at + (off_t)done);

		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got <= 0) {
			return got < 0 ? -errno : PFX_E_TRUNCATED;
		}
		done += (size_t)got;
	}
	return 0;
}

int pfx_lmdb_mend(struct lmdb_store *s, const MDB_val *v)
{
	const uint8_t *at = v->mv_data;
	uint8_t head[PFX_AUDIT_HEAD];
	uint64_t offset = (uint64_t)((uintptr_t)at - (uintptr_t)s->map); /* huge: before the map */

	/*
	 * Of a tree page that this transaction has touched LMDB keeps a copy elsewhere: a small value
	 * in it is at no place of the file. A small value in the map lies inside of a tree page, and
	 * never so near its begin.
	 */
	if (offset >= s->map_bytes || offset % s->page_size != sizeof(head)) {
		return 0;
	}
	pfx_audit_value_head(head, offset / s->page_size, v->mv_size, s->page_size);
	if (memcmp(at - sizeof(head), head, sizeof(head)) == 0) {
		return 0;
	}
	pfx_warn("persist", "a page of the store was damaged and is mended path=%s page=%llu",
		s->folder, (unsigned long long)(offset / s->page_size));
	return pwrite(s->fd, head, sizeof(head), (off_t)(offset - sizeof(head))) ==
		(ssize_t)sizeof(head) ? 0 : -EIO;
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

/*
 * LMDB does not tell where its map begins, but every page begins with its own number. That it
 * is so is proved by reading the row that led there from the file.
 */
static int find_map(struct lmdb_store *s)
{
	MDB_val k = shape_key(), v;
	uint8_t row[PFX_SHAPE_BYTES];
	uint64_t pgno;
	MDB_txn *txn;
	MDB_stat st;
	int rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn));

	if (rc != 0) {
		return rc;
	}
	rc = pfx_lmdb_code(mdb_get(txn, s->meta, &k, &v));
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_stat(txn, s->meta, &st));
	}
	if (rc == 0) {
		const uint8_t *row_at = v.mv_data;
		const uint8_t *page = row_at - ((uintptr_t)row_at & (st.ms_psize - 1));

		memcpy(&pgno, page, sizeof(pgno));
		s->page_size = st.ms_psize;
		s->map = page - pgno * st.ms_psize;
		rc = v.mv_size == sizeof(row) ? pfx_lmdb_read_value(s, &v, row, sizeof(row), NULL, 0) :
			PFX_E_UNSUPPORTED;
	}
	if (rc == 0 && memcmp(row, v.mv_data, sizeof(row)) != 0) {
		rc = PFX_E_UNSUPPORTED;
	}
	mdb_txn_abort(txn);
	return rc;
}

/* Opens the trees, and makes them in an environment that is new. */
static int open_trees(struct lmdb_store *s)
{
	MDB_val k = shape_key(), v;
	uint8_t row[PFX_SHAPE_BYTES];
	MDB_txn *txn;
	int rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, s->read_only ? MDB_RDONLY : 0, &txn));

	if (rc != 0) {
		return rc;
	}
	rc = pfx_lmdb_trees(txn, s->read_only ? 0 : MDB_CREATE, &s->meta, &s->index, &s->records);
	if (rc == 0 && !s->read_only) {
		pfx_shape_encode(row, &s->base.shape);
		v = val_of(row, sizeof(row));
		rc = pfx_lmdb_code(mdb_put(txn, s->meta, &k, &v, MDB_NOOVERWRITE));
		rc = rc == -EEXIST ? 0 : rc;
	}
	if (rc == 0) {
		return pfx_lmdb_code(mdb_txn_commit(txn));
	}
	mdb_txn_abort(txn);
	return rc;
}

/*
 * LMDB makes its lock file with a hole in it and writes there through a map: on a full disk
 * that is a signal, where this is an error.
 */
static int reserve_lock_file(const char *folder)
{
	char *path = pfx_lmdb_path(folder, "lock.mdb");
	int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	int rc = path == NULL ? -ENOMEM : fd < 0 ? -errno : -posix_fallocate(fd, 0, LOCK_BYTES);

	if (fd >= 0) {
		close(fd);
	}
	pfx_free(path);
	return rc == -EOPNOTSUPP || rc == -EINVAL ? 0 : rc; /* not every file system can */
}

int pfx_lmdb_reopen(struct lmdb_store *s)
{
	/* Values are not read through the map, and what stands beside a tree page is no use. */
	unsigned flags = MDB_NORDAHEAD | (s->read_only ? MDB_RDONLY | MDB_NOLOCK : MDB_NOMETASYNC);
	MDB_envinfo info;
	struct stat st;
	int rc = s->read_only ? 0 : reserve_lock_file(s->folder);

	s->env = NULL;
	if (rc == 0) {
		rc = pfx_lmdb_env_open(s->folder, flags, s->map_bytes, &s->env);
	}
	if (rc != 0) {
		return rc;
	}
	rc = pfx_lmdb_code(mdb_env_get_fd(s->env, &s->fd));
	if (rc == 0) {
		rc = open_trees(s);
	}
	if (rc == 0) {
		rc = find_map(s);
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
	/* Not every file system tells. */
	s->linked = fstat(s->fd, &st) == 0 && st.st_nlink > 0;
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

/* LMDB calls it an I/O error when the disk takes only a part of what it writes. */
static int why_not_written(const struct lmdb_store *s, int rc)
{
	struct statvfs st;

	return rc == -EIO && fstatvfs(s->fd, &st) == 0 && st.f_bavail * st.f_frsize < NEARLY_FULL
		? -ENOSPC : rc;
}

/* Commits when rc is 0, else aborts; returns what came of it. */
int pfx_lmdb_end(struct lmdb_store *s, MDB_txn *txn, int rc)
{
	if (rc == 0) {
		rc = why_not_written(s, pfx_lmdb_code(mdb_txn_commit(txn)));
	} else {
		mdb_txn_abort(txn);
	}
	note_file_size(s);
	pthread_rwlock_unlock(&s->env_lock);
	return rc;
}

int pfx_lmdb_set_map(struct lmdb_store *s, uint64_t bytes)
{
	int rc = pfx_lmdb_code(mdb_env_set_mapsize(s->env, (size_t)bytes));

	if (rc == 0) {
		s->map_bytes = bytes;
		rc = find_map(s);
		/* Reads at places of the old map would find the wrong records. */
		s->broken |= rc != 0;
	}
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
		rc = pfx_lmdb_set_map(s, bytes);
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
