/*
 * A store in memory, for tests and for a server without a disk of its own. It keeps records
 * as the bytes that a disk would hold, so that damage beneath the checks is met by the same
 * code as in the LMDB store. One lock for everything.
 */
#include "persist/store.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "persist/catalog.h"

/* What an entry takes beside its record: about the size of the index. */
#define ENTRY_ROOM 256

struct blob {
	size_t n;
	uint8_t bytes[];
};

struct mem_store {
	struct pfx_store base;
	pthread_mutex_t lock;
	struct pfx_catalog *cat;
	uint64_t bytes_max;
	struct pfx_store_info info; /* the counters */
};

static struct mem_store *mem_of(struct pfx_store *store)
{
	return pfx_container_of(store, struct mem_store, base);
}

static void blob_gone(void *arg, struct pfx_catalog_entry *e)
{
	pfx_free(e->value);
	e->value = NULL;
}

static int mem_get_locked(struct mem_store *m, struct pfx_catalog_entry *e, void *kv)
{
	const struct blob *blob = e->value;
	int rc = blob == NULL ? PFX_E_TRUNCATED :
		pfx_record_decode(blob->bytes, blob->n, &m->base.shape, &e->key, kv);

	if (rc == 0) {
		return 0;
	}
	m->info.damaged++;
	m->info.deleted += pfx_catalog_remove_tree(m->cat, e, blob_gone, NULL);
	return rc == -ENOENT ? PFX_E_FORMAT : rc;
}

static int mem_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv)
{
	struct mem_store *m = mem_of(store);
	struct pfx_catalog_entry *e;
	int rc = -ENOENT;

	pthread_mutex_lock(&m->lock);
	m->info.gets++;
	e = pfx_catalog_match(m->cat, key);
	if (e != NULL) {
		pfx_catalog_touch(m->cat, e, pfx_clock_wall_ns());
		rc = mem_get_locked(m, e, kv);
	}
	m->info.hits += rc == 0;
	m->info.misses += rc == -ENOENT;
	pthread_mutex_unlock(&m->lock);
	return rc;
}

static int mem_has(struct pfx_store *store, const struct pfx_store_key *key)
{
	struct mem_store *m = mem_of(store);
	int found;

	pthread_mutex_lock(&m->lock);
	found = pfx_catalog_match(m->cat, key) != NULL;
	pthread_mutex_unlock(&m->lock);
	return found;
}

static int mem_put_one(struct mem_store *m, const struct pfx_store_item *item,
	struct pfx_catalog_entry **held)
{
	size_t n = pfx_record_size(&m->base.shape, item->key->n_tokens);
	struct pfx_catalog_admit a = { .key = item->key, .bytes = n, .room = n + ENTRY_ROOM,
		.room_max = m->bytes_max, .now_ns = pfx_clock_wall_ns(), .gone = blob_gone };
	struct blob *blob = pfx_malloc(sizeof(*blob) + n);
	int rc = blob == NULL ? -ENOMEM : pfx_catalog_admit(m->cat, &a);

	*held = a.entry;
	m->info.evicted += a.evicted;
	m->info.replaced += a.replaced;
	if (rc != 0 || !a.is_new) {
		pfx_free(blob);
		m->info.duplicates += rc == 0;
		return rc;
	}
	blob->n = n;
	pfx_record_encode(blob->bytes, &m->base.shape, item->key, item->kv);
	a.entry->value = blob;
	a.entry->pending = 0;
	m->info.written++;
	return 0;
}

static void release_held(struct mem_store *m, struct pfx_catalog_entry **held, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (held[i] != NULL) {
			pfx_catalog_release(m->cat, held[i]);
			held[i] = NULL;
		}
	}
}

static int mem_del(struct mem_store *m, const struct pfx_store_key *key)
{
	struct pfx_catalog_entry *e = pfx_catalog_match(m->cat, key);

	if (e == NULL) {
		return -ENOENT;
	}
	m->info.deleted += pfx_catalog_remove_tree(m->cat, e, blob_gone, NULL);
	return 0;
}

static int mem_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
	int *results)
{
	struct mem_store *m = mem_of(store);
	struct pfx_catalog_entry **held = pfx_calloc(n, sizeof(struct pfx_catalog_entry *));

	if (held == NULL) {
		return -ENOMEM;
	}
	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < n; i++) {
		if (items[i].kv == NULL) {
			release_held(m, held, i);
			results[i] = mem_del(m, items[i].key);
			continue;
		}
		m->info.puts++;
		results[i] = mem_put_one(m, &items[i], &held[i]);
		m->info.failed_puts += results[i] != 0;
	}
	release_held(m, held, n);
	pthread_mutex_unlock(&m->lock);
	pfx_free(held);
	return 0;
}

static int mem_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg)
{
	struct mem_store *m = mem_of(store);
	int rc = 0;

	pthread_mutex_lock(&m->lock);
	for (struct pfx_catalog_entry *e = pfx_catalog_next(m->cat, NULL); e != NULL && rc == 0;
		e = pfx_catalog_next(m->cat, e)) {
		struct pfx_store_row row = { .key = e->key,
			.info = { .bytes = e->bytes, .used_ns = e->used_ns } };

		rc = visit(arg, &row);
	}
	pthread_mutex_unlock(&m->lock);
	return rc;
}

static int mem_sync(struct pfx_store *store)
{
	struct mem_store *m = mem_of(store);

	pthread_mutex_lock(&m->lock);
	m->info.syncs++;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static void mem_info(struct pfx_store *store, struct pfx_store_info *out)
{
	struct mem_store *m = mem_of(store);
	struct pfx_catalog_totals totals;

	pthread_mutex_lock(&m->lock);
	pfx_catalog_totals(m->cat, &totals);
	*out = m->info;
	pthread_mutex_unlock(&m->lock);
	out->records = totals.records;
	out->tokens = totals.tokens;
	out->bytes = totals.room;
	out->bytes_max = m->bytes_max;
}

static uint64_t mem_capacity(const struct pfx_store *store)
{
	const struct mem_store *m = pfx_container_of(store, const struct mem_store, base);

	return m->bytes_max / (pfx_record_size(&store->shape, store->shape.block_tokens) + ENTRY_ROOM);
}

static int mem_verify(struct pfx_store *store, struct pfx_store_verified *out)
{
	struct mem_store *m = mem_of(store);
	void *kv = pfx_malloc((size_t)store->shape.kv_bytes);
	struct pfx_catalog_entry *e;

	if (kv == NULL) {
		return -ENOMEM;
	}
	pthread_mutex_lock(&m->lock);
	e = pfx_catalog_next(m->cat, NULL);
	while (e != NULL) {
		out->records++;
		out->bytes += e->bytes;
		if (mem_get_locked(m, e, kv) == 0) {
			e = pfx_catalog_next(m->cat, e);
		} else {
			/* The subtree is gone, and the place in the walk with it. */
			*out = (struct pfx_store_verified){ .damaged = out->damaged + 1 };
			e = pfx_catalog_next(m->cat, NULL);
		}
	}
	pthread_mutex_unlock(&m->lock);
	pfx_free(kv);
	return 0;
}

static int mem_compact(struct pfx_store *store)
{
	return 0;
}

static int mem_clear(struct pfx_store *store, const struct pfx_digest *space, uint64_t *records)
{
	struct mem_store *m = mem_of(store);
	struct pfx_catalog_entry *e, *next;

	pthread_mutex_lock(&m->lock);
	for (e = pfx_catalog_next(m->cat, NULL); e != NULL; e = next) {
		next = pfx_catalog_skip(m->cat, e);
		if (space == NULL || pfx_digest_equal(&e->key.space, space)) {
			*records += pfx_catalog_remove_tree(m->cat, e, blob_gone, NULL);
		}
	}
	m->info.deleted += *records;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int mem_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed)
{
	struct mem_store *m = mem_of(store);
	struct pfx_catalog_entry *e;

	pthread_mutex_lock(&m->lock);
	e = pfx_catalog_match(m->cat, key);
	if (e != NULL && e->value != NULL) {
		struct blob *blob = e->value;
		uint64_t r = pfx_rng_mix(seed, 0);

		if (harm == PFX_HARM_FLIP && blob->n > 0) {
			blob->bytes[r % blob->n] ^= (uint8_t)(1u << (r >> 61));
		} else if (harm == PFX_HARM_SHORT && blob->n > 0) {
			blob->n = r % blob->n;
		} else {
			blob_gone(NULL, e);
		}
	}
	pthread_mutex_unlock(&m->lock);
	return e != NULL ? 0 : -ENOENT;
}

static void mem_close(struct pfx_store *store)
{
	struct mem_store *m = mem_of(store);

	for (struct pfx_catalog_entry *e = pfx_catalog_next(m->cat, NULL); e != NULL;
		e = pfx_catalog_next(m->cat, e)) {
		blob_gone(NULL, e);
	}
	pfx_catalog_close(m->cat);
	pthread_mutex_destroy(&m->lock);
	pfx_free(m);
}

static const struct pfx_store_ops mem_ops = {
	.name = "memory",
	.get = mem_get,
	.has = mem_has,
	.put = mem_put,
	.iterate = mem_iterate,
	.sync = mem_sync,
	.info = mem_info,
	.capacity = mem_capacity,
	.verify = mem_verify,
	.compact = mem_compact,
	.clear = mem_clear,
	.damage = mem_damage,
	.close = mem_close,
};

int pfx_store_mem_open(struct pfx_store **out, const struct pfx_store_shape *shape,
	uint64_t bytes_max, char *err, size_t errlen)
{
	struct mem_store *m;

	if (shape->block_tokens < 1 || shape->block_tokens > PFX_RECORD_TOKENS_MAX ||
		shape->kv_bytes < 1) {
		return pfx_fail(-EINVAL, err, errlen, "memory store: no such shape of a block");
	}
	m = pfx_calloc(1, sizeof(*m));
	if (m == NULL || pfx_catalog_open(&m->cat) != 0) {
		pfx_free(m);
		return pfx_fail(-ENOMEM, err, errlen, "memory store: out of memory");
	}
	m->base = (struct pfx_store){ .magic = PFX_STORE_MAGIC, .ops = &mem_ops, .shape = *shape };
	m->bytes_max = bytes_max;
	pthread_mutex_init(&m->lock, NULL);
	*out = &m->base;
	return 0;
}
