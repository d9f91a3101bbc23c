/*
 * A store that wraps another one and fails by a schedule drawn from a seed: what a disk does
 * on a bad day, on demand. Damage is done to the stored bytes, beneath the checks of the
 * inner store, so that it is those checks which are tested.
 */
#include "persist/store.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/rng.h"

struct fault_store {
	struct pfx_store base;
	struct pfx_store *inner;
	pthread_mutex_t lock;
	pthread_cond_t released;
	struct pfx_rng rng;
	uint32_t one_in[PFX_FAULTS];
	uint64_t count[PFX_FAULTS];
	uint64_t slow_ns;
	uint64_t releases;
};

static const struct pfx_store_ops fault_ops;

static struct fault_store *fault_of(struct pfx_store *store)
{
	PFX_ASSERT(store->ops == &fault_ops);
	return pfx_container_of(store, struct fault_store, base);
}

/* Whether this fault happens now; *draw (may be NULL) gets a number to do it with. */
static int happens(struct fault_store *f, enum pfx_store_fault fault, uint64_t *draw)
{
	int yes;

	pthread_mutex_lock(&f->lock);
	yes = f->one_in[fault] > 0 && pfx_rng_below(&f->rng, f->one_in[fault]) == 0;
	if (yes) {
		f->count[fault]++;
		if (draw != NULL) {
			*draw = pfx_rng_next(&f->rng);
		}
	}
	pthread_mutex_unlock(&f->lock);
	return yes;
}

static void delay(struct fault_store *f)
{
	if (happens(f, PFX_FAULT_SLOW, NULL)) {
		struct timespec t = { .tv_sec = (time_t)(f->slow_ns / 1000000000),
			.tv_nsec = (long)(f->slow_ns % 1000000000) };

		nanosleep(&t, NULL);
	}
	if (happens(f, PFX_FAULT_STUCK, NULL)) {
		uint64_t seen;

		pthread_mutex_lock(&f->lock);
		seen = f->releases;
		while (f->releases == seen) {
			pthread_cond_wait(&f->released, &f->lock);
		}
		pthread_mutex_unlock(&f->lock);
	}
}

static void spoil(struct fault_store *f, const struct pfx_store_key *key, enum pfx_store_fault fault,
	enum pfx_store_harm harm)
{
	uint64_t draw = 0;

	if (pfx_store_has(f->inner, key) && happens(f, fault, &draw)) {
		pfx_store_damage(f->inner, key, harm, draw);
	}
}

static int fault_get(struct pfx_store *store, const struct pfx_store_key *key, void *kv)
{
	struct fault_store *f = fault_of(store);

	delay(f);
	if (happens(f, PFX_FAULT_GET_FAILS, NULL)) {
		return -EIO;
	}
	spoil(f, key, PFX_FAULT_FLIP, PFX_HARM_FLIP);
	spoil(f, key, PFX_FAULT_SHORT, PFX_HARM_SHORT);
	spoil(f, key, PFX_FAULT_GONE, PFX_HARM_GONE);
	return pfx_store_get(f->inner, key, kv);
}

static int fault_has(struct pfx_store *store, const struct pfx_store_key *key)
{
	return pfx_store_has(fault_of(store)->inner, key);
}

static int fault_put(struct pfx_store *store, const struct pfx_store_item *items, uint32_t n,
	int *results)
{
	struct fault_store *f = fault_of(store);

	delay(f);
	if (happens(f, PFX_FAULT_PUT_FAILS, NULL)) {
		return -EIO;
	}
	if (happens(f, PFX_FAULT_FULL, NULL)) {
		return -ENOSPC;
	}
	return pfx_store_put(f->inner, items, n, results);
}

static int fault_iterate(struct pfx_store *store, pfx_store_visit *visit, void *arg)
{
	return pfx_store_iterate(fault_of(store)->inner, visit, arg);
}

static int fault_sync(struct pfx_store *store)
{
	struct fault_store *f = fault_of(store);

	return happens(f, PFX_FAULT_SYNC_FAILS, NULL) ? -EIO : pfx_store_sync(f->inner);
}

static void fault_info(struct pfx_store *store, struct pfx_store_info *out)
{
	pfx_store_info(fault_of(store)->inner, out);
}

static uint64_t fault_capacity(const struct pfx_store *store)
{
	return pfx_store_capacity(pfx_container_of(store, const struct fault_store, base)->inner);
}

static int fault_verify(struct pfx_store *store, struct pfx_store_verified *out)
{
	delay(fault_of(store));
	return pfx_store_verify(fault_of(store)->inner, out);
}

static int fault_compact(struct pfx_store *store)
{
	delay(fault_of(store));
	return pfx_store_compact(fault_of(store)->inner);
}

static int fault_clear(struct pfx_store *store, const struct pfx_digest *space,
	uint64_t *records)
{
	return pfx_store_clear(fault_of(store)->inner, space, records);
}

static int fault_damage(struct pfx_store *store, const struct pfx_store_key *key,
	enum pfx_store_harm harm, uint64_t seed)
{
	return pfx_store_damage(fault_of(store)->inner, key, harm, seed);
}

static void fault_close(struct pfx_store *store)
{
	struct fault_store *f = pfx_container_of(store, struct fault_store, base);

	pfx_store_close(f->inner);
	pthread_cond_destroy(&f->released);
	pthread_mutex_destroy(&f->lock);
	pfx_free(f);
}

static const struct pfx_store_ops fault_ops = {
	.name = "fault",
	.get = fault_get,
	.has = fault_has,
	.put = fault_put,
	.iterate = fault_iterate,
	.sync = fault_sync,
	.info = fault_info,
	.capacity = fault_capacity,
	.verify = fault_verify,
	.compact = fault_compact,
	.clear = fault_clear,
	.damage = fault_damage,
	.close = fault_close,
};

int pfx_store_fault_open(struct pfx_store **out, struct pfx_store *inner, uint64_t seed)
{
	struct fault_store *f = pfx_calloc(1, sizeof(*f));

	if (f == NULL) {
		return -ENOMEM;
	}
	f->base = (struct pfx_store){ .magic = PFX_STORE_MAGIC, .ops = &fault_ops,
		.shape = inner->shape };
	f->inner = inner;
	f->rng.state = seed;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->released, NULL);
	*out = &f->base;
	return 0;
}

void pfx_store_fault_set(struct pfx_store *store, enum pfx_store_fault fault, uint32_t one_in)
{
	struct fault_store *f = fault_of(store);

	pthread_mutex_lock(&f->lock);
	f->one_in[fault] = one_in;
	pthread_mutex_unlock(&f->lock);
}

void pfx_store_fault_slow_ns(struct pfx_store *store, uint64_t slow_ns)
{
	fault_of(store)->slow_ns = slow_ns;
}

void pfx_store_fault_release(struct pfx_store *store)
{
	struct fault_store *f = fault_of(store);

	pthread_mutex_lock(&f->lock);
	f->one_in[PFX_FAULT_STUCK] = 0;
	f->releases++;
	pthread_cond_broadcast(&f->released);
	pthread_mutex_unlock(&f->lock);
}

uint64_t pfx_store_fault_count(struct pfx_store *store, enum pfx_store_fault fault)
{
	struct fault_store *f = fault_of(store);
	uint64_t n;

	pthread_mutex_lock(&f->lock);
	n = f->count[fault];
	pthread_mutex_unlock(&f->lock);
	return n;
}
