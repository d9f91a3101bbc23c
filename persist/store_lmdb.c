/* The LMDB store: its life, from the folder's lock to its end. persist/lmdb_priv.h has the plan. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"

/* Who holds its lock has the folder; a folder that has none was never ours. */
#define LOCK_FILE "prefixd.lock"

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

static void lmdb_close(struct pfx_store *store)
{
	struct lmdb_store *s = lmdb_of(store);

	if (!s->read_only && s->env != NULL && !s->broken) {
		pfx_lmdb_sweep(s);
		pfx_lmdb_purge(s, 0);
		pfx_lmdb_write_all_ages(s);
		mdb_env_sync(s->env, 1);
	}
	store_free(s);
}

static const struct pfx_store_ops lmdb_ops = {
	.name = "lmdb",
	.get = pfx_lmdb_get,
	.has = pfx_lmdb_has,
	.put = pfx_lmdb_put,
	.iterate = pfx_lmdb_iterate,
	.sync = pfx_lmdb_sync,
	.info = lmdb_info,
	.capacity = lmdb_capacity,
	.verify = pfx_lmdb_verify,
	.compact = pfx_lmdb_compact,
	.clear = pfx_lmdb_clear,
	.damage = pfx_lmdb_damage,
	.close = lmdb_close,
};

/* ---- opening ---- */

uint64_t pfx_store_lmdb_least(const struct pfx_store_shape *shape, uint64_t file_bytes)
{
	uint64_t need = 32 * room_of(shape, shape->block_tokens);
	/* Such that room_max, as it is set when the store is opened, is the file's size. */
	uint64_t keep = file_bytes > 0 ? (file_bytes + PFX_STORE_BYTES_MIN / 4) / 7 * 8 + 4 * PAGE : 0;

	need = need < PFX_STORE_BYTES_MIN ? PFX_STORE_BYTES_MIN : need;
	return need < keep ? keep : need;
}

static int check_opts(const struct pfx_store_lmdb_opts *o, char *err, size_t errlen)
{
	uint64_t need;

	if (o->shape.block_tokens < 1 || o->shape.block_tokens > PFX_RECORD_TOKENS_MAX ||
		o->shape.kv_bytes < 1 || o->shape.kv_bytes > UINT32_MAX / 2) {
		return pfx_fail(-EINVAL, err, errlen, "%s: no store has blocks of %u tokens, %llu bytes",
			o->path, o->shape.block_tokens, (unsigned long long)o->shape.kv_bytes);
	}
	need = pfx_store_lmdb_least(&o->shape, 0);
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

static int cannot_write(const char *folder, const char *name)
{
	char *path = pfx_lmdb_path(folder, name);
	int no = path != NULL && access(path, W_OK) != 0 && (errno == EACCES || errno == EROFS);

	pfx_free(path);
	return no;
}

/* To open a pipe waits for ever, and a link leads out of the folder. */
static int check_files(const struct lmdb_store *s, char *err, size_t errlen)
{
	static const char *const names[] = { LOCK_FILE, "lock.mdb", "data.mdb", SPARE_FILE };
	struct stat st;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char *path = pfx_lmdb_path(s->folder, names[i]);
		int there = path != NULL && lstat(path, &st) == 0;

		pfx_free(path);
		if (there && !S_ISREG(st.st_mode)) {
			return pfx_fail(-EINVAL, err, errlen, "%s: %s is not a file", s->folder, names[i]);
		}
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
	rc = check_files(s, err, errlen);
	if (rc != 0) {
		return rc;
	}
	s->read_only |= cannot_write(s->folder, "") || cannot_write(s->folder, "data.mdb");
	file = pfx_lmdb_path(s->folder, LOCK_FILE);
	if (file == NULL) {
		return -ENOMEM;
	}
	s->lock_fd = open(file, (s->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	if (s->lock_fd < 0 && errno == ENOENT && !s->read_only) {
		s->is_new = 1;
		s->lock_fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	}
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
	int rc = pfx_lmdb_dead_room_locked(s);

	if (rc != 0) {
		return rc;
	}
	s->info.evicted += pfx_catalog_shrink(s->cat, s->room_max, pfx_lmdb_gone, s);
	/* A file that fills the map has no pages for a deletion's copies. */
	rc = s->map_bytes <= s->bytes_max ? pfx_lmdb_purge(s, 0) : PFX_E_FULL;
	if (rc != PFX_E_FULL) {
		return rc;
	}
	rc = pfx_lmdb_set_map(s, bytes);
	return rc == 0 ? pfx_lmdb_compact(&s->base) : rc;
}

/* What is there is read, also from a disk that takes no more: true when rc was of that kind. */
static int give_up_writing(struct lmdb_store *s, int rc)
{
	if (s->read_only || (rc != -ENOSPC && rc != -EDQUOT && rc != -EROFS && rc != -EFBIG &&
		rc != -EACCES && rc != -EPERM)) {
		return 0;
	}
	pfx_warn("persist", "store cannot be written (%s), it is only read path=%s", strerror(-rc),
		s->folder);
	s->read_only = 1;
	return 1;
}

static int open_env(struct lmdb_store *s)
{
	int rc = pfx_lmdb_reopen(s);

	if (!give_up_writing(s, rc)) {
		return rc;
	}
	/* When there is nothing to be read either (no file, or an empty one), the first says why. */
	return pfx_lmdb_reopen(s) == 0 ? 0 : rc;
}

/* On a full disk the file that was set aside has the room that the new one needs. */
static int open_beside(struct lmdb_store *s, const struct pfx_store_opened *opened)
{
	int rc = open_env(s);

	if ((rc != -ENOSPC && rc != -EDQUOT) || !opened->set_aside) {
		return rc;
	}
	pfx_warn("persist", "damaged.mdb is removed: the disk has no room for a new store beside it "
		"path=%s", s->folder);
	rc = pfx_lmdb_move(s->folder, "damaged.mdb", NULL);
	if (rc == 0) {
		rc = pfx_lmdb_move(s->folder, "data.mdb", NULL); /* as far as it was made */
	}
	if (rc != 0) {
		return rc;
	}
	s->read_only = 0;
	return open_env(s);
}

static int start(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o,
	struct pfx_store_opened *opened, char *err, size_t errlen)
{
	int rc = take_folder(s, err, errlen);

	if (rc == 0) {
		rc = pfx_lmdb_walk(s, o, opened, err, errlen);
		if (rc != 0 && s->is_new) {
			pfx_lmdb_move(s->folder, LOCK_FILE, NULL); /* the folder still never was ours */
		}
	}
	if (rc != 0) {
		return rc;
	}
	if (!s->read_only) {
		pfx_lmdb_move(s->folder, "compact.mdb", NULL);
	}
	rc = open_beside(s, opened);
	if (rc == 0) {
		rc = pfx_lmdb_load(s, &opened->dropped);
	}
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "%s: cannot be opened: %s", s->folder, pfx_strerror(rc));
	}
	if (s->read_only) {
		return 0;
	}
	rc = fit_cap(s);
	if (rc == 0) {
		rc = pfx_lmdb_sync_folder(s->folder);
	}
	return rc == 0 || give_up_writing(s, rc) ? 0 : pfx_fail(rc, err, errlen, "%s: cannot be written: %s", s->folder,
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
