/* What comes before use: the walk in a child process, and loading the index. */
#include "config.h"

#include "persist/lmdb_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "persist/audit.h"
#include "persist/walk.h"

/* ---- the walk ---- */

struct walk_arg {
	const char *folder, *file;
	const struct pfx_store_shape *shape;
	int lock_fd;
};

static int walk_shape(MDB_txn *txn, MDB_dbi meta, const struct pfx_store_shape *want, char *why,
	size_t whylen)
{
	MDB_val k = shape_key(), v;
	struct pfx_store_shape have;
	uint32_t version = 0;
	int rc = pfx_lmdb_code(mdb_get(txn, meta, &k, &v));

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
	int rc = pfx_lmdb_code(mdb_cursor_open(txn, dbi, &cursor));

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
	int rc = pfx_lmdb_trees(txn, 0, &meta, &index, &records);

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
	rc = pfx_lmdb_env_open(w->folder, MDB_RDONLY | MDB_NOLOCK | MDB_NORDAHEAD, MAP_FIRST, &env);
	if (rc != 0) {
		return pfx_fail(rc, why, whylen, "LMDB cannot open it: %s", pfx_strerror(rc));
	}
	rc = pfx_lmdb_code(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
	return rc == 0 ? walk_env(txn, w, why, whylen) :
		pfx_fail(rc, why, whylen, "LMDB cannot read it: %s", pfx_strerror(rc));
}

/* A file that fails the walk may be another program's; ours has our words in it. */
static int has_our_words(const char *file)
{
	enum { PIECE = 1 << 20, PIECES = 64 };
	uint8_t *buf = pfx_malloc(PIECE);
	int fd = open(file, O_RDONLY | O_CLOEXEC), found = 0;

	for (off_t i = 0; buf != NULL && fd >= 0 && i < PIECES && !found; i++) {
		ssize_t n = pread(fd, buf, PIECE, i * PIECE);

		if (n <= 0) {
			break;
		}
		found = memmem(buf, (size_t)n, PFX_RECORD_MAGIC, 8) != NULL ||
			memmem(buf, (size_t)n, PFX_SHAPE_MAGIC, 8) != NULL;
	}
	if (fd >= 0) {
		close(fd);
	}
	pfx_free(buf);
	return found;
}

/* What to do with what the walk found. */
static int judge(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o, int rc,
	const char *file, struct pfx_store_opened *opened, char *err, size_t errlen)
{
	if ((rc == PFX_E_FORMAT || rc == PFX_E_TRUNCATED) && s->is_new && !has_our_words(file)) {
		char what[sizeof(opened->why)];

		/* Other programs may use LMDB in ways that we never do, and must not lose their data. */
		memcpy(what, opened->why, sizeof(what));
		rc = pfx_fail(-EEXIST, opened->why, sizeof(opened->why), "was never prefixd's, and "
			"holds an environment that is another program's or damaged (%.100s)", what);
	}
	if (rc == -EEXIST && o->replace && !s->read_only) {
		pfx_warn("persist", "store is cleared: it %s path=%s", opened->why, s->folder);
		opened->why[0] = '\0';
		rc = pfx_lmdb_move(s->folder, "data.mdb", NULL);
		return rc == 0 ? pfx_lmdb_move(s->folder, "lock.mdb", NULL) : rc;
	}
	if ((rc == PFX_E_FORMAT || rc == PFX_E_TRUNCATED) && !s->read_only) {
		rc = pfx_lmdb_move(s->folder, "data.mdb", "damaged.mdb");
		if (rc == 0) {
			rc = pfx_lmdb_move(s->folder, "lock.mdb", NULL);
		}
		if (rc == 0) {
			opened->set_aside = 1;
			pfx_warn("persist", "store was damaged (%s); it is now damaged.mdb, and the store "
				"starts empty: this is a cold start path=%s", opened->why, s->folder);
		}
		return rc == 0 ? 0 : pfx_fail(rc, err, errlen, "%s: damaged (%s), and cannot be set "
			"aside: %s", s->folder, opened->why, strerror(-rc));
	}
	return rc == 0 ? 0 : pfx_fail(rc, err, errlen, "%s: %s", s->folder, opened->why);
}

int pfx_lmdb_walk(struct lmdb_store *s, const struct pfx_store_lmdb_opts *o,
	struct pfx_store_opened *opened, char *err, size_t errlen)
{
	char *file = pfx_lmdb_path(s->folder, "data.mdb");
	struct walk_arg arg = { .folder = s->folder, .file = file, .shape = &s->base.shape,
		.lock_fd = s->lock_fd };
	int rc = -ENOMEM;

	if (file != NULL) {
		rc = pfx_walk(walk_all, &arg, o->walk_ms_max ? o->walk_ms_max : 120000, opened->why,
			sizeof(opened->why));
		rc = judge(s, o, rc, file, opened, err, errlen);
	}
	pfx_free(file);
	return rc;
}

/* ---- the index ---- */

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
	int rc = pfx_lmdb_code(mdb_cursor_open(txn, s->index, &cursor));

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

int pfx_lmdb_load(struct lmdb_store *s, uint64_t *dropped)
{
	struct loaded *rows = NULL;
	MDB_txn *txn;
	MDB_stat st;
	int rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn));

	if (rc != 0) {
		return rc;
	}
	rc = pfx_lmdb_code(mdb_stat(txn, s->index, &st));
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
