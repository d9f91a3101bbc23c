/* Writing: what is dead, ages, and batches of puts and deletions. */
#include "persist/lmdb_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"

/* Deleting a record touches a few tree pages, and LMDB bounds those of a transaction. */
#define PURGE_MAX 1024u
/* Ages written beside a batch of records: enough to keep up, too few to slow it down. */
#define AGES_A_BATCH 64u
/* Each may touch a page of its own, of the 128k that a transaction may write. */
#define AGES_A_CLOSE 16384u
#define ROW_MAX (128 + PFX_RECORD_TOKENS_MAX * sizeof(uint32_t))

/* ---- the dead ---- */

/* Makes room for every entry to die, so that none is lost for want of memory. */
int pfx_lmdb_dead_room_locked(struct lmdb_store *s)
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

void pfx_lmdb_gone(void *arg, struct pfx_catalog_entry *e)
{
	struct lmdb_store *s = arg;

	s->n_doomed -= e->doomed && s->n_doomed > 0;
	s->dead[s->n_dead++] = e->key.self;
}

void pfx_lmdb_sweep_locked(struct lmdb_store *s)
{
	struct pfx_catalog_entry *e, *next;

	if (s->n_doomed == 0 || pfx_lmdb_dead_room_locked(s) != 0) {
		return;
	}
	for (e = pfx_catalog_next(s->cat, NULL); e != NULL; e = next) {
		next = e->doomed ? pfx_catalog_skip(s->cat, e) : pfx_catalog_next(s->cat, e);
		if (e->doomed) {
			s->info.deleted += pfx_catalog_remove_tree(s->cat, e, pfx_lmdb_gone, s);
		}
	}
	s->n_doomed = 0;
}

/* Removes what was found damaged, with what hangs on it. The caller holds `change`. */
void pfx_lmdb_sweep(struct lmdb_store *s)
{
	pthread_mutex_lock(&s->lock);
	pfx_lmdb_sweep_locked(s);
	pthread_mutex_unlock(&s->lock);
}

static int delete_row(struct lmdb_store *s, MDB_txn *txn, const struct pfx_digest *self)
{
	MDB_val k = digest_val(self), v;
	int rc = pfx_lmdb_code(mdb_del(txn, s->index, &k, NULL));

	if (rc != 0 && rc != -ENOENT) {
		return rc;
	}
	rc = pfx_lmdb_code(mdb_get(txn, s->records, &k, &v));
	if (rc == 0) {
		rc = pfx_lmdb_mend(s, &v);
	}
	if (rc == 0) {
		rc = pfx_lmdb_code(mdb_del(txn, s->records, &k, NULL));
	}
	return rc == -ENOENT ? 0 : rc;
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

/* A transaction that only makes the pages usable that the one before it freed. */
static int tick(struct lmdb_store *s)
{
	uint8_t row[PFX_SHAPE_BYTES];
	MDB_val k = shape_key(), v = val_of(row, sizeof(row));
	MDB_txn *txn;
	int rc = pfx_lmdb_begin(s, &txn);

	if (rc != 0) {
		return rc;
	}
	pfx_shape_encode(row, &s->base.shape);
	return pfx_lmdb_end(s, txn, pfx_lmdb_code(mdb_put(txn, s->meta, &k, &v, 0)));
}

/*
 * Deletes the first n of the dead. The list ends with what died last, children before parents; so
 * transactions take from its front, and no row loses its parent before it goes.
 */
static int bury_first(struct lmdb_store *s, size_t n)
{
	MDB_txn *txn;
	int rc = pfx_lmdb_grow_for(s, 64 * PAGE);

	if (rc == 0) {
		rc = pfx_lmdb_begin(s, &txn);
	}
	if (rc != 0) {
		return rc;
	}
	for (size_t i = 0; i < n && rc == 0; i++) {
		rc = delete_row(s, txn, &s->dead[i]);
	}
	rc = pfx_lmdb_end(s, txn, rc);
	if (rc == 0) {
		memmove(s->dead, s->dead + n, (s->n_dead - n) * sizeof(*s->dead));
		s->n_dead -= n;
	}
	return rc;
}

/*
 * Deletes until at most keep are left. A deletion, too, writes pages before any are free, about one
 * for each row: with the disk full only a few rows go at first, and what those free lets more go.
 * If not even one does, there is the spare room.
 */
int pfx_lmdb_purge(struct lmdb_store *s, size_t keep)
{
	size_t most = PURGE_MAX;
	int ticked = 0;

	while (s->n_dead > keep) {
		size_t n = s->n_dead < most ? s->n_dead : most;
		int rc = bury_first(s, n);

		if (rc == 0) {
			most = n < PURGE_MAX / 2 ? 2 * n : PURGE_MAX;
			ticked = 0;
		} else if (rc != -ENOSPC) {
			return rc;
		} else if (!ticked) {
			ticked = 1;
			rc = tick(s);
			if (rc != 0 && rc != -ENOSPC) {
				return rc;
			}
		} else if (n > 1) {
			most = n / 2;
		} else if (!pfx_lmdb_give_spare(s)) {
			return rc;
		}
	}
	return 0;
}

/* ---- rows ---- */

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

static int write_age(struct lmdb_store *s, MDB_txn *txn, const struct pfx_digest *self)
{
	uint8_t buf[ROW_MAX];
	MDB_val k = digest_val(self), v;
	size_t n;

	pthread_mutex_lock(&s->lock);
	n = take_age(s, self, buf);
	pthread_mutex_unlock(&s->lock);
	v = val_of(buf, n);
	return n > 0 ? pfx_lmdb_code(mdb_put(txn, s->index, &k, &v, 0)) : 0;
}

int pfx_lmdb_write_ages(struct lmdb_store *s, MDB_txn *txn, uint32_t max)
{
	int rc = 0;

	for (uint32_t i = 0; i < max && rc == 0; i++) {
		struct pfx_digest self;
		int some;

		pthread_mutex_lock(&s->lock);
		some = s->n_aged > 0;
		if (some) {
			self = s->aged[--s->n_aged];
		}
		pthread_mutex_unlock(&s->lock);
		if (!some) {
			break;
		}
		rc = write_age(s, txn, &self);
	}
	return rc;
}

void pfx_lmdb_write_all_ages(struct lmdb_store *s)
{
	struct pfx_catalog_entry *e = pfx_catalog_next(s->cat, NULL);
	int rc = 0;

	s->n_aged = 0;
	while (e != NULL && rc == 0) {
		uint32_t n = 0;
		MDB_txn *txn;

		while (e != NULL && !e->aged) {
			e = pfx_catalog_next(s->cat, e);
		}
		if (e == NULL || pfx_lmdb_begin(s, &txn) != 0) {
			return;
		}
		for (; e != NULL && n < AGES_A_CLOSE && rc == 0; e = pfx_catalog_next(s->cat, e)) {
			if (e->aged) {
				rc = write_age(s, txn, &e->key.self);
				n++;
			}
		}
		rc = pfx_lmdb_end(s, txn, rc);
	}
}

static int put_row(struct lmdb_store *s, MDB_txn *txn, const struct pfx_store_item *item,
	uint64_t used_ns)
{
	uint8_t buf[ROW_MAX];
	size_t n = pfx_record_size(&s->base.shape, item->key->n_tokens);
	struct pfx_entry_info info = { .bytes = n, .used_ns = used_ns };
	MDB_val k = digest_val(&item->key->self), v = val_of(NULL, n);
	int rc = pfx_lmdb_code(mdb_put(txn, s->records, &k, &v, MDB_RESERVE));

	if (rc != 0) {
		return rc;
	}
	pfx_record_encode(v.mv_data, &s->base.shape, item->key, item->kv);
	pfx_entry_encode(buf, item->key, &info);
	v = val_of(buf, pfx_entry_size(item->key->n_tokens));
	return pfx_lmdb_code(mdb_put(txn, s->index, &k, &v, 0));
}

/* ---- room ---- */

/* The map was full: grow it, or at the cap evict a sixteenth more. */
static int make_room(struct lmdb_store *s)
{
	struct pfx_catalog_totals totals;
	uint64_t part = s->room_max / 16, n = 0;
	int rc;

	if (s->map_bytes < s->bytes_max) {
		return pfx_lmdb_grow(s, s->map_bytes + 1);
	}
	pthread_mutex_lock(&s->lock);
	rc = pfx_lmdb_dead_room_locked(s);
	if (rc == 0) {
		pfx_catalog_totals(s->cat, &totals);
		n = pfx_catalog_shrink(s->cat, totals.room > part ? totals.room - part : 0, pfx_lmdb_gone,
			s);
		s->info.evicted += n;
	}
	pthread_mutex_unlock(&s->lock);
	if (rc == 0) {
		rc = pfx_lmdb_purge(s, 0);
	}
	return rc == 0 ? tick(s) : rc;
}

/* Whether so many bytes, and trees for them, fit where deleted records were. */
static int has_holes(struct lmdb_store *s, uint64_t bytes)
{
	MDB_dbi trees[] = { 0, s->meta, s->index, s->records };
	uint64_t used = 2; /* LMDB's meta pages */
	MDB_envinfo info;
	MDB_txn *txn;
	int rc = pfx_lmdb_begin(s, &txn);

	if (rc != 0) {
		return 0;
	}
	for (size_t i = 0; i < sizeof(trees) / sizeof(trees[0]) && rc == 0; i++) {
		MDB_stat st;

		rc = mdb_stat(txn, trees[i], &st);
		used += rc == 0 ? st.ms_branch_pages + st.ms_leaf_pages + st.ms_overflow_pages : 0;
	}
	rc = rc == 0 ? mdb_env_info(s->env, &info) : rc;
	pfx_lmdb_end(s, txn, -ECANCELED);
	return rc == 0 && info.me_last_pgno + 1 > used + 2 * (bytes / PAGE) + 64;
}

/*
 * The disk is full, but a batch of so many bytes still fits where deleted records were. What was
 * deleted last is not usable before another transaction has committed; and a batch that fails
 * never does.
 */
static int use_holes(struct lmdb_store *s, uint64_t bytes)
{
	int rc = tick(s);

	return rc == -ENOSPC && has_holes(s, bytes) && pfx_lmdb_give_spare(s) ? tick(s) : rc;
}

/* ---- batches ---- */

struct planned {
	struct pfx_catalog_entry *entry; /* held; NULL: refused */
	int is_new;
};

static int plan_put(struct lmdb_store *s, const struct pfx_store_key *key, struct planned *out)
{
	struct pfx_catalog_admit a = { .key = key,
		.bytes = pfx_record_size(&s->base.shape, key->n_tokens),
		.room = room_of(&s->base.shape, key->n_tokens), .room_max = s->room_max,
		.now_ns = pfx_clock_wall_ns(), .gone = pfx_lmdb_gone, .arg = s };
	int rc = pfx_lmdb_dead_room_locked(s);

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
	int rc = e == NULL ? -ENOENT : pfx_lmdb_dead_room_locked(s);
	uint64_t n;

	if (rc != 0) {
		return rc;
	}
	n = pfx_catalog_remove_tree(s->cat, e, pfx_lmdb_gone, s);
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
	int rc = pfx_lmdb_purge(s, PURGE_MAX);

	if (rc == 0) {
		rc = pfx_lmdb_begin(s, &txn);
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
		rc = pfx_lmdb_write_ages(s, txn, AGES_A_BATCH);
	}
	rc = pfx_lmdb_end(s, txn, rc);
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
	int rc = 0, is_new = 0, ticked = 0;

	if (plans == NULL) {
		return -ENOMEM;
	}
	pthread_mutex_lock(&s->lock);
	pfx_lmdb_sweep_locked(s);
	*n = plan(s, items, *n, plans, results);
	pthread_mutex_unlock(&s->lock);
	PFX_ASSERT(*n > 0);
	for (uint32_t i = 0; i < *n; i++) {
		is_new |= plans[i].is_new;
	}
	if (is_new) {
		pfx_lmdb_keep_spare(s);
	}
	if (is_new || s->n_dead > 0) {
		rc = pfx_lmdb_grow_for(s, room);
		for (int tries = 0; rc == 0 && tries < 32; tries++) {
			rc = write_plan(s, items, *n, plans);
			if (rc == -ENOSPC && !ticked) {
				ticked = 1;
				rc = pfx_lmdb_purge(s, 0);
				if (!is_new) {
					break;
				}
				rc = rc == 0 ? use_holes(s, room) : rc;
				continue;
			}
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
int pfx_lmdb_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
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

int pfx_lmdb_sync(struct pfx_store *store)
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
	if (n_aged > 0 && pfx_lmdb_begin(s, &txn) == 0) {
		pfx_lmdb_end(s, txn, pfx_lmdb_write_ages(s, txn, AGED_MAX));
	}
	pthread_rwlock_rdlock(&s->env_lock);
	rc = pfx_lmdb_is_whole(s) ? pfx_lmdb_code(mdb_env_sync(s->env, 1)) : -EIO;
	pthread_rwlock_unlock(&s->env_lock);
	pthread_mutex_unlock(&s->change);
	pthread_mutex_lock(&s->lock);
	s->info.syncs++;
	pthread_mutex_unlock(&s->lock);
	return rc;
}
