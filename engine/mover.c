#include "engine/mover.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

enum {
	MOVES_MAX = 256, /* spills and fetches that wait */
	LOADS_MAX = 128,
	DELETES_MAX = 256,
	LOADERS_MAX = 8,
};

enum place {
	PLACE_NONE,    /* the caller's */
	PLACE_QUEUE,   /* waits for the mover, or for a loader */
	PLACE_READING, /* LOAD: a loader reads it into its own buffer */
	PLACE_WORK,    /* under way; cannot be withdrawn */
	PLACE_DONE,    /* in the list of what is to be told */
};

struct loader {
	struct pfx_mover *mover;
	pthread_t thread;
	int started, ended;
	struct pfx_order *order; /* that it reads; NULL when it was withdrawn */
	uint64_t since_ns;       /* 0: idle */
	uint8_t *buffer;
};

struct pfx_mover {
	struct pfx_model *model;
	struct pfx_arena *host;
	struct pfx_store *store;
	struct pfx_writer *writer;
	size_t block_bytes;
	uint32_t block_tokens;
	void (*wake)(void *arg);
	void *wake_arg;

	pthread_t thread;
	int started;
	/* One copy at a time touches the device beside the engine thread (kernels/ops.h). */
	pthread_mutex_t device_lock;

	pthread_mutex_t lock; /* everything below */
	pthread_cond_t work, load_work, turn;
	struct pfx_list moves, loads, done;
	int stop;
	uint8_t **staging; /* free buffers */
	uint32_t n_staging_free;
	struct pfx_mover_rates rates;
	struct loader loaders[LOADERS_MAX];
	uint32_t n_loaders;

	_Atomic uint32_t n_done;
	/* The engine thread's own. */
	uint32_t n_staging, in_flight[PFX_ORDERS];
	uint8_t *staging_memory;
};

static struct pfx_order *order_of(struct pfx_list *link)
{
	return pfx_container_of(link, struct pfx_order, link);
}

static void smooth(double *rate, uint64_t ns)
{
	*rate = *rate == 0 ? (double)ns : 0.8 * *rate + 0.2 * (double)ns;
}

/* ---- telling ---- */

/* The order joins the list of what is to be told, unless it stands there already. */
static void tell_locked(struct pfx_mover *m, struct pfx_order *o)
{
	if (o->place != PLACE_DONE) {
		o->place = PLACE_DONE;
		pfx_list_push_back(&m->done, &o->link);
		m->n_done++;
	}
}

static void finish(struct pfx_mover *m, struct pfx_order *o, int result)
{
	pthread_mutex_lock(&m->lock);
	o->result = result;
	o->was_finished = 1;
	if (o->buffer != NULL) {
		m->staging[m->n_staging_free++] = o->buffer;
		o->buffer = NULL;
	}
	tell_locked(m, o);
	pthread_mutex_unlock(&m->lock);
	m->wake(m->wake_arg);
}

/* On the writer's thread. */
static void written(void *arg, int result)
{
	struct pfx_order *o = arg;

	finish(o->mover, o, result);
}

/* ---- the mover thread ---- */

static int read_device(struct pfx_mover *m, uint32_t block, uint32_t n, void *dst)
{
	int rc;

	pthread_mutex_lock(&m->device_lock);
	rc = pfx_model_read_block(m->model, block, n, dst);
	pthread_mutex_unlock(&m->device_lock);
	return rc;
}

static int write_device(struct pfx_mover *m, uint32_t block, const void *src)
{
	int rc;

	pthread_mutex_lock(&m->device_lock);
	rc = pfx_model_write_block(m->model, block, src);
	pthread_mutex_unlock(&m->device_lock);
	return rc;
}

/*
 * The source goes to the staging buffer, the engine thread may let go of it, the writer goes on.
 * What lies behind the record's tokens is left out: somebody may be writing there, and a record
 * tells nothing of what its block was used for before.
 */
static void stage(struct pfx_mover *m, struct pfx_order *o)
{
	int rc = 0;

	if (o->device != PFX_ORDER_NO_BLOCK) {
		rc = read_device(m, o->device, o->key.n_tokens, o->buffer);
	} else {
		memcpy(o->buffer, pfx_arena_at(m->host, o->host), m->block_bytes);
		pfx_model_trim_block(m->model, o->buffer, o->key.n_tokens);
	}
	pthread_mutex_lock(&m->lock);
	o->was_staged = 1;
	tell_locked(m, o);
	pthread_mutex_unlock(&m->lock);
	m->wake(m->wake_arg);
	if (rc == 0) {
		rc = pfx_writer_put(m->writer, &o->key, o->buffer, written, o);
	}
	if (rc != 0) {
		finish(m, o, rc);
	}
}

static void move(struct pfx_mover *m, struct pfx_order *o)
{
	uint64_t start = pfx_clock_ns();
	int rc;

	if (o->kind == PFX_ORDER_SAVE) {
		stage(m, o);
		return;
	}
	if (o->kind == PFX_ORDER_SPILL) {
		rc = read_device(m, o->device, m->block_tokens, pfx_arena_at(m->host, o->host));
	} else {
		rc = write_device(m, o->device, pfx_arena_at(m->host, o->host));
		pthread_mutex_lock(&m->lock);
		smooth(&m->rates.fetch_ns_per_block, pfx_clock_ns() - start);
		pthread_mutex_unlock(&m->lock);
	}
	finish(m, o, rc);
}

static void *move_main(void *arg)
{
	struct pfx_mover *m = arg;
	struct pfx_order *o;

	pthread_mutex_lock(&m->lock);
	for (;;) {
		while (pfx_list_empty(&m->moves) && !m->stop) {
			pthread_cond_wait(&m->work, &m->lock);
		}
		if (pfx_list_empty(&m->moves)) {
			break;
		}
		o = order_of(m->moves.next);
		pfx_list_remove(&o->link);
		o->place = PLACE_WORK;
		pthread_mutex_unlock(&m->lock);
		move(m, o);
		pthread_mutex_lock(&m->lock);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

/* ---- the loader threads ---- */

/*
 * One record, with the lock held at begin and end. The key is copied before, for an order that
 * is withdrawn is freed. Once the bytes are here the order is either gone or takes its course.
 */
static void load(struct pfx_mover *m, struct loader *l)
{
	uint32_t tokens[PFX_RECORD_TOKENS_MAX];
	struct pfx_store_key key = l->order->key;
	struct pfx_order *o;
	int rc;

	memcpy(tokens, key.tokens, key.n_tokens * sizeof(*tokens));
	key.tokens = tokens;
	pthread_mutex_unlock(&m->lock);
	rc = pfx_store_get(m->store, &key, l->buffer);
	pthread_mutex_lock(&m->lock);
	o = l->order;
	l->order = NULL;
	if (o == NULL) {
		return;
	}
	o->place = PLACE_WORK;
	pthread_mutex_unlock(&m->lock);
	if (rc == 0) {
		rc = write_device(m, o->device, l->buffer);
	}
	if (rc == 0) {
		pthread_mutex_lock(&m->lock);
		smooth(&m->rates.load_ns_per_block, (pfx_clock_ns() - l->since_ns) / m->n_loaders);
		pthread_mutex_unlock(&m->lock);
	}
	finish(m, o, rc);
	pthread_mutex_lock(&m->lock);
}

static void *load_main(void *arg)
{
	struct loader *l = arg;
	struct pfx_mover *m = l->mover;

	pthread_mutex_lock(&m->lock);
	while (!m->stop) {
		if (pfx_list_empty(&m->loads)) {
			pthread_cond_wait(&m->load_work, &m->lock);
			continue;
		}
		l->order = order_of(m->loads.next);
		pfx_list_remove(&l->order->link);
		l->order->place = PLACE_READING;
		l->since_ns = pfx_clock_ns();
		load(m, l);
		l->since_ns = 0;
	}
	l->ended = 1;
	pthread_cond_broadcast(&m->turn);
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

/* ---- open and close ---- */

static void free_all(struct pfx_mover *m)
{
	for (uint32_t i = 0; i < LOADERS_MAX; i++) {
		pfx_free(m->loaders[i].buffer);
	}
	pfx_free(m->staging_memory);
	pfx_free(m->staging);
	pthread_mutex_destroy(&m->lock);
	pthread_mutex_destroy(&m->device_lock);
	pthread_cond_destroy(&m->work);
	pthread_cond_destroy(&m->load_work);
	pthread_cond_destroy(&m->turn);
	pfx_free(m);
}

static int alloc_buffers(struct pfx_mover *m)
{
	if (m->writer != NULL) {
		m->staging = pfx_calloc(m->n_staging, sizeof(*m->staging));
		m->staging_memory = pfx_aligned_alloc(64, m->n_staging * m->block_bytes);
		if (m->staging == NULL || m->staging_memory == NULL) {
			return -ENOMEM;
		}
		for (uint32_t i = 0; i < m->n_staging; i++) {
			m->staging[m->n_staging_free++] = m->staging_memory + i * m->block_bytes;
		}
	}
	for (uint32_t i = 0; m->store != NULL && i < m->n_loaders; i++) {
		m->loaders[i].mover = m;
		m->loaders[i].buffer = pfx_aligned_alloc(64, m->block_bytes);
		if (m->loaders[i].buffer == NULL) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int start(struct pfx_mover *m)
{
	int rc = pthread_create(&m->thread, NULL, move_main, m);

	m->started = rc == 0;
	for (uint32_t i = 0; m->store != NULL && rc == 0 && i < m->n_loaders; i++) {
		rc = pthread_create(&m->loaders[i].thread, NULL, load_main, &m->loaders[i]);
		m->loaders[i].started = rc == 0;
	}
	return -rc;
}

int pfx_mover_open(struct pfx_mover **out, const struct pfx_mover_opts *opts)
{
	struct pfx_mover *m = pfx_calloc(1, sizeof(*m));
	pthread_condattr_t attr;
	int rc;

	if (m == NULL) {
		return -ENOMEM;
	}
	m->model = opts->model;
	m->host = opts->host;
	m->store = opts->store;
	m->writer = opts->writer;
	m->wake = opts->wake;
	m->wake_arg = opts->wake_arg;
	m->n_staging = opts->n_staging;
	m->n_loaders = opts->n_loaders == 0 ? 1 : opts->n_loaders;
	m->n_loaders = m->n_loaders < LOADERS_MAX ? m->n_loaders : LOADERS_MAX;
	m->block_bytes = pfx_model_block_bytes(opts->model);
	m->block_tokens = opts->block_tokens;
	pfx_list_init(&m->moves);
	pfx_list_init(&m->loads);
	pfx_list_init(&m->done);
	pthread_mutex_init(&m->lock, NULL);
	pthread_mutex_init(&m->device_lock, NULL);
	pthread_cond_init(&m->work, NULL);
	pthread_cond_init(&m->load_work, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->turn, &attr);
	pthread_condattr_destroy(&attr);
	rc = alloc_buffers(m);
	if (rc == 0) {
		rc = start(m);
	}
	if (rc != 0) {
		m->writer = NULL;
		pfx_mover_close(m, 1000);
		return rc;
	}
	*out = m;
	return 0;
}

/* True when all loaders have come back within the time. */
static int join_loaders(struct pfx_mover *m, const struct timespec *until)
{
	int in_time = 1, all = 1;

	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < m->n_loaders; i++) {
		struct loader *l = &m->loaders[i];
		while (l->started && !l->ended && in_time) {
			in_time = pthread_cond_timedwait(&m->turn, &m->lock, until) != ETIMEDOUT;
		}
		all &= !l->started || l->ended;
	}
	pthread_mutex_unlock(&m->lock);
	for (uint32_t i = 0; i < m->n_loaders; i++) {
		struct loader *l = &m->loaders[i];
		if (l->started && l->ended) {
			pthread_join(l->thread, NULL);
		} else if (l->started) {
			pthread_detach(l->thread);
		}
	}
	return all;
}

int pfx_mover_close(struct pfx_mover *m, uint32_t ms_max)
{
	struct timespec until;
	struct pfx_order *o;
	int rc, all;

	if (m == NULL) {
		return 0;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms_max / 1000 + 1;
	pthread_mutex_lock(&m->lock);
	m->stop = 1;
	for (uint32_t i = 0; i < m->n_loaders; i++) {
		/* What is read now is not written anywhere any more. */
		o = m->loaders[i].order;
		if (o != NULL) {
			m->loaders[i].order = NULL;
			pfx_free(o);
		}
	}
	pthread_cond_broadcast(&m->work);
	pthread_cond_broadcast(&m->load_work);
	pthread_mutex_unlock(&m->lock);
	if (m->started) {
		pthread_join(m->thread, NULL);
	}
	all = join_loaders(m, &until);
	rc = pfx_writer_close(m->writer);
	pfx_list_for_safe(it, &m->loads) {
		pfx_free(order_of(it));
	}
	if (!all || rc == -ETIMEDOUT) {
		/* Somebody may still come back to it. */
		return -ETIMEDOUT;
	}
	pfx_list_for_safe(it, &m->done) {
		pfx_free(order_of(it));
	}
	free_all(m);
	return 0;
}

/* ---- the engine thread's side ---- */

int pfx_mover_room(const struct pfx_mover *m, enum pfx_order_kind kind)
{
	switch (kind) {
	case PFX_ORDER_SPILL:
	case PFX_ORDER_FETCH:
		return m->in_flight[PFX_ORDER_SPILL] + m->in_flight[PFX_ORDER_FETCH] < MOVES_MAX;
	case PFX_ORDER_LOAD:
		return m->store != NULL && m->in_flight[kind] < LOADS_MAX;
	case PFX_ORDER_SAVE:
		return m->writer != NULL && m->in_flight[kind] < m->n_staging;
	case PFX_ORDER_DELETE:
		return m->writer != NULL && m->in_flight[kind] < DELETES_MAX;
	case PFX_ORDER_SYNC:
		return m->writer != NULL;
	case PFX_ORDERS:
		break;
	}
	return 0;
}

struct pfx_order *pfx_mover_order(struct pfx_mover *m, enum pfx_order_kind kind)
{
	struct pfx_order *o = pfx_calloc(1, sizeof(*o));

	if (o != NULL) {
		o->mover = m;
		o->kind = kind;
		o->device = o->host = PFX_ORDER_NO_BLOCK;
		o->key.tokens = o->tokens;
		pfx_list_init(&o->of_owner);
	}
	return o;
}

void pfx_mover_free(struct pfx_mover *m, struct pfx_order *o)
{
	(void)m;
	pfx_list_remove(&o->of_owner);
	pfx_free(o);
}

void pfx_order_key(struct pfx_order *o, const struct pfx_digest *space,
	const struct pfx_digest *parent, uint32_t pos, const uint32_t *tokens, uint32_t n_tokens)
{
	PFX_ASSERT(n_tokens <= PFX_RECORD_TOKENS_MAX);
	memcpy(o->tokens, tokens, n_tokens * sizeof(*tokens));
	pfx_store_key_follow(&o->key, space, pos == 0 ? NULL : parent, pos, o->tokens, n_tokens);
}

int pfx_mover_give(struct pfx_mover *m, struct pfx_order *o)
{
	int rc = 0;

	PFX_ASSERT(pfx_mover_room(m, o->kind));
	o->given_ns = pfx_clock_ns();
	if (o->kind == PFX_ORDER_DELETE || o->kind == PFX_ORDER_SYNC) {
		o->place = PLACE_WORK;
		rc = o->kind == PFX_ORDER_SYNC ? pfx_writer_sync(m->writer, written, o)
			: pfx_writer_delete(m->writer, &o->key, written, o);
		m->in_flight[o->kind] += rc == 0;
		return rc;
	}
	m->in_flight[o->kind]++;
	pthread_mutex_lock(&m->lock);
	o->place = PLACE_QUEUE;
	if (o->kind == PFX_ORDER_SAVE) {
		o->buffer = m->staging[--m->n_staging_free];
	}
	if (o->kind == PFX_ORDER_LOAD) {
		pfx_list_push_back(&m->loads, &o->link);
		pthread_cond_signal(&m->load_work);
	} else {
		pfx_list_push_back(&m->moves, &o->link);
		pthread_cond_signal(&m->work);
	}
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int pfx_mover_withdraw(struct pfx_mover *m, struct pfx_order *o)
{
	int mine = 0;

	PFX_ASSERT(o->kind == PFX_ORDER_LOAD);
	pthread_mutex_lock(&m->lock);
	if (o->place == PLACE_QUEUE) {
		pfx_list_remove(&o->link);
		mine = 1;
	} else if (o->place == PLACE_READING) {
		for (uint32_t i = 0; i < m->n_loaders; i++) {
			if (m->loaders[i].order == o) {
				m->loaders[i].order = NULL;
			}
		}
		mine = 1;
	}
	pthread_mutex_unlock(&m->lock);
	if (mine) {
		m->in_flight[o->kind]--;
	}
	return mine;
}

struct pfx_order *pfx_mover_next(struct pfx_mover *m)
{
	struct pfx_order *o = NULL;

	if (m->n_done == 0) {
		return NULL;
	}
	pthread_mutex_lock(&m->lock);
	if (!pfx_list_empty(&m->done)) {
		o = order_of(m->done.next);
		pfx_list_remove(&o->link);
		m->n_done--;
		o->place = PLACE_WORK;
		o->staged = o->was_staged && !o->told_staged;
		o->told_staged |= o->was_staged;
		o->finished = o->was_finished;
	}
	pthread_mutex_unlock(&m->lock);
	if (o != NULL && o->finished) {
		o->place = PLACE_NONE;
		m->in_flight[o->kind]--;
	}
	return o;
}

int pfx_mover_ready(const struct pfx_mover *m)
{
	return m->n_done != 0;
}

uint32_t pfx_mover_in_flight(const struct pfx_mover *m, enum pfx_order_kind kind)
{
	return m->in_flight[kind];
}

void pfx_mover_rates(struct pfx_mover *m, struct pfx_mover_rates *out)
{
	uint64_t now = pfx_clock_ns(), since;

	pthread_mutex_lock(&m->lock);
	*out = m->rates;
	out->load_wait_ns = 0;
	for (uint32_t i = 0; i < m->n_loaders; i++) {
		since = m->loaders[i].since_ns;
		if (since != 0 && now - since > out->load_wait_ns) {
			out->load_wait_ns = now - since;
		}
	}
	pthread_mutex_unlock(&m->lock);
}

void pfx_mover_doubt(struct pfx_mover *m, enum pfx_order_kind kind)
{
	pthread_mutex_lock(&m->lock);
	if (kind == PFX_ORDER_FETCH) {
		m->rates.fetch_ns_per_block *= 0.9;
	} else {
		m->rates.load_ns_per_block *= 0.9;
	}
	pthread_mutex_unlock(&m->lock);
}
