#include "persist/store.h"

#include <errno.h>
#include <string.h>

#include "base/assert.h"

static void check_store(const struct pfx_store *store)
{
	PFX_ASSERT(store->magic == PFX_STORE_MAGIC);
}

/* A key that no store of this shape can hold is a bug of ours, not of the disk. */
static void check_key(const struct pfx_store *store, const struct pfx_store_key *key)
{
	check_store(store);
	PFX_ASSERT(pfx_store_key_check(key, &store->shape) == 0);
}

int pfx_store_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv)
{
	check_key(store, key);
	return store->ops->get(store, key, kv);
}

int pfx_store_has(struct pfx_store *store, const struct pfx_store_key *key)
{
	check_key(store, key);
	return store->ops->has(store, key);
}

int pfx_store_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
	int *results)
{
	int rc;

	check_store(store);
	for (uint32_t i = 0; i < n; i++) {
		check_key(store, items[i].key);
	}
	if (n == 0) {
		return 0;
	}
	memset(results, 0, n * sizeof(*results));
	rc = store->ops->put(store, items, n, results);
	if (rc != 0) {
		for (uint32_t i = 0; i < n; i++) {
			results[i] = rc;
		}
	}
	return rc;
}

int pfx_store_delete(struct pfx_store *store, const struct pfx_store_key *key)
{
	struct pfx_store_item item = { .key = key };
	int result;

	pfx_store_put(store, &item, 1, &result);
	return result;
}

int pfx_store_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg)
{
	check_store(store);
	return store->ops->iterate(store, visit, arg);
}

int pfx_store_sync(struct pfx_store *store)
{
	check_store(store);
	return store->ops->sync(store);
}

void pfx_store_info(struct pfx_store *store, struct pfx_store_info *out)
{
	check_store(store);
	memset(out, 0, sizeof(*out));
	store->ops->info(store, out);
}

uint64_t pfx_store_capacity(const struct pfx_store *store)
{
	check_store(store);
	return store->ops->capacity(store);
}

int pfx_store_verify(struct pfx_store *store, struct pfx_store_verified *out)
{
	check_store(store);
	memset(out, 0, sizeof(*out));
	return store->ops->verify(store, out);
}

int pfx_store_compact(struct pfx_store *store)
{
	check_store(store);
	return store->ops->compact(store);
}

int pfx_store_clear(struct pfx_store *store, const struct pfx_digest *space, uint64_t *records)
{
	uint64_t n = 0;
	int rc;

	check_store(store);
	rc = store->ops->clear(store, space, &n);
	if (records != NULL) {
		*records = n;
	}
	return rc;
}

int pfx_store_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed)
{
	check_key(store, key);
	return store->ops->damage(store, key, harm, seed);
}

void pfx_store_close(struct pfx_store *store)
{
	if (store != NULL) {
		check_store(store);
		store->magic = 0;
		store->ops->close(store);
	}
}
