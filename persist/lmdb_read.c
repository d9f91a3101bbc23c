/* Reading: a record, the index, all records. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

#define READ_PIECE (128u << 10)
/* Records of a prefix are got one after the other, so the disk is told of the next ones. */
#define AHEAD 3u

struct ahead {
	struct pfx_digest self[AHEAD];
	uint32_t n;
};

/* *decoded: the bytes could be had, so that a failure is the record's. */
static int read_value(struct lmdb_store *s, const struct pfx_store_key *key, const MDB_val *v,
	uint8_t *kv, int *decoded)
{
	size_t head_len = pfx_record_head_size(key->n_tokens);
	size_t kv_len = (size_t)s->base.shape.kv_bytes;
	uint8_t head[PFX_RECORD_HEAD_MAX];
	struct pfx_record_reader r;
	int rc;

	rc = pfx_lmdb_read_at(s, v, 0, head, v->mv_size < head_len ? v->mv_size : head_len);
	if (rc == 0) {
		*decoded = 1;
		rc = pfx_record_begin(&r, head, v->mv_size, &s->base.shape, key);
	}
	/* What was read is checked while it is in the nearest cache, and the disk reads on. */
	for (size_t at = 0; at < kv_len && rc == 0; at += READ_PIECE) {
		size_t n = kv_len - at < READ_PIECE ? kv_len - at : READ_PIECE;

		rc = pfx_lmdb_read_at(s, v, head_len + at, kv + at, n);
		*decoded = rc == 0;
		if (rc == 0) {
			pfx_record_piece(&r, kv + at, n);
		}
	}
	*decoded |= rc == PFX_E_TRUNCATED;
	return rc == 0 ? pfx_record_end(&r) : rc;
}

static void ask_ahead(struct lmdb_store *s, MDB_txn *txn, const struct ahead *ahead)
{
	for (uint32_t i = 0; i < ahead->n; i++) {
		MDB_val k = digest_val(&ahead->self[i]), v;

		if (mdb_get(txn, s->records, &k, &v) == MDB_SUCCESS) {
			pfx_lmdb_ask_for(s, &v);
		}
	}
}

/* 0, -ENOENT when the row is missing, what pfx_record_decode says, or the disk's error. */
static int read_record(struct lmdb_store *s, const struct pfx_store_key *key,
	const struct ahead *ahead, void *kv, int *decoded)
{
	MDB_txn *txn;
	MDB_val k = digest_val(&key->self), v;
	int rc;

	*decoded = 0;
	pthread_rwlock_rdlock(&s->env_lock);
	if (!pfx_lmdb_is_whole(s)) {
		pthread_rwlock_unlock(&s->env_lock);
		return -EIO;
	}
	rc = pfx_lmdb_code(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn));
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_get(txn, s->records, &k, &v));
		*decoded = rc == -ENOENT;
		if (rc == 0) {
			pfx_lmdb_ask_for(s, &v);
			ask_ahead(s, txn, ahead);
			rc = read_value(s, key, &v, kv, decoded);
		}
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

/*
 * Reads what was entry number seq. A record that is missing or damaged while its entry is
 * still the same one is doomed; if the entry went meanwhile, it is a plain miss.
 */
static int read_entry(struct lmdb_store *s, const struct pfx_store_key *key, uint64_t seq,
	const struct ahead *ahead, void *kv)
{
	int decoded, rc = read_record(s, key, ahead, kv, &decoded), doomed = 0;
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
		pfx_lmdb_sweep(s);
		pthread_mutex_unlock(&s->change);
	}
	return rc;
}

static void look_ahead_locked(const struct pfx_catalog_entry *e, struct ahead *out)
{
	while (out->n < AHEAD && (e = pfx_catalog_newest_kid(e)) != NULL) {
		out->self[out->n++] = e->key.self;
	}
}

int pfx_lmdb_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv)
{
	struct lmdb_store *s = lmdb_of(store);
	struct pfx_catalog_entry *e;
	struct ahead ahead = { .n = 0 };
	uint64_t seq = 0;
	int rc = -ENOENT;

	pthread_mutex_lock(&s->lock);
	s->info.gets++;
	e = visible(s, key);
	if (e != NULL) {
		touch_locked(s, e);
		seq = e->seq;
		look_ahead_locked(e, &ahead);
	}
	pthread_mutex_unlock(&s->lock);
	if (e != NULL) {
		rc = read_entry(s, key, seq, &ahead, kv);
	}
	pthread_mutex_lock(&s->lock);
	s->info.hits += rc == 0;
	s->info.misses += rc == -ENOENT;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int pfx_lmdb_has(struct pfx_store *store, const struct pfx_store_key *key)
{
	struct lmdb_store *s = lmdb_of(store);
	int found;

	pthread_mutex_lock(&s->lock);
	found = visible(s, key) != NULL;
	pthread_mutex_unlock(&s->lock);
	return found;
}

int pfx_lmdb_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg)
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

/* The digests of all there is, in the order of pfx_catalog_next; NULL: no memory. */
static struct pfx_digest *list_all(struct lmdb_store *s, size_t *n)
{
	struct pfx_catalog_totals totals;
	struct pfx_digest *all;

	*n = 0;
	pthread_mutex_lock(&s->lock);
	pfx_catalog_totals(s->cat, &totals);
	all = pfx_calloc((size_t)totals.records + 1, sizeof(*all));
	for (struct pfx_catalog_entry *e = all != NULL ? pfx_catalog_next(s->cat, NULL) : NULL;
		e != NULL; e = pfx_catalog_next(s->cat, e)) {
		all[(*n)++] = e->key.self;
	}
	pthread_mutex_unlock(&s->lock);
	return all;
}

static int verify_one(struct lmdb_store *s, const struct pfx_digest *self,
	const struct ahead *ahead, void *kv, struct pfx_store_verified *out)
{
	uint32_t tokens[PFX_RECORD_TOKENS_MAX];
	struct pfx_catalog_entry *e;
	struct pfx_store_key key;
	uint64_t seq = 0;
	int rc;

	pthread_mutex_lock(&s->lock);
	e = pfx_catalog_find(s->cat, self);
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
		return 0;
	}
	rc = read_entry(s, &key, seq, ahead, kv);
	if (rc == PFX_E_FORMAT || rc == PFX_E_TRUNCATED) {
		out->damaged++;
		return 0;
	}
	return rc == -ENOENT ? 0 : rc;
}

int pfx_lmdb_verify(struct pfx_store *store, struct pfx_store_verified *out)
{
	struct lmdb_store *s = lmdb_of(store);
	void *kv = pfx_malloc((size_t)store->shape.kv_bytes);
	size_t n;
	struct pfx_digest *all = list_all(s, &n);
	int rc = kv == NULL || all == NULL ? -ENOMEM : 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		struct ahead ahead = { .n = 0 };

		while (ahead.n < AHEAD && i + 1 + ahead.n < n) {
			ahead.self[ahead.n] = all[i + 1 + ahead.n];
			ahead.n++;
		}
		rc = verify_one(s, &all[i], &ahead, kv, out);
	}
	pfx_free(all);
	pfx_free(kv);
	return rc;
}
