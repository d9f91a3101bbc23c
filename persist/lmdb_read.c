/* Reading: a record, the index, all records. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

/* 0, -ENOENT when the row is missing, what pfx_record_verify says, or the disk's error. */
static int read_record(struct lmdb_store *s, const struct pfx_store_key *key, void *kv,
	int *decoded)
{
	uint8_t head[PFX_RECORD_HEAD_MAX];
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
			rc = pfx_lmdb_read_value(s, &v, head, pfx_record_head_size(key->n_tokens), kv,
				(size_t)s->base.shape.kv_bytes);
			*decoded = rc == 0 || rc == PFX_E_TRUNCATED;
		}
		mdb_txn_abort(txn);
	}
	pthread_rwlock_unlock(&s->env_lock);
	return rc == 0 ? pfx_record_verify(head, v.mv_size, &s->base.shape, key, kv) : rc;
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
		pfx_lmdb_sweep(s);
		pthread_mutex_unlock(&s->change);
	}
	return rc;
}

int pfx_lmdb_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv)
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

static int verify_one(struct lmdb_store *s, const struct pfx_digest *self, void *kv, struct pfx_store_verified *out)
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
	rc = read_entry(s, &key, seq, kv);
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
		rc = verify_one(s, &all[i], kv, out);
	}
	pfx_free(all);
	pfx_free(kv);
	return rc;
}
