#include "persist/writer.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/list.h"
#include "base/log.h"

#define BATCH_MAX 256u

enum job_kind { JOB_PUT, JOB_DELETE, JOB_SYNC };

struct job {
	struct pfx_list link;
	enum job_kind kind;
	int discarded;
	pfx_writer_done *done;
	void *arg;
	const void *kv; /* of a put */
	struct pfx_store_key key;
	uint32_t tokens[];
};

struct pfx_writer {
	struct pfx_store *store;
	uint32_t queue_max, batch_max, close_ms;
	pthread_t thread;
	pthread_mutex_t lock; /* everything below */
	pthread_cond_t work;  /* for the thread: there are jobs, or it is to stop */
	pthread_cond_t turn;  /* for others: a batch is over, or the thread has ended */
	struct pfx_list jobs;
	uint64_t turns; /* batches begun; odd while one is under way */
	int stop, ended;
	int error; /* the first since the last sync was answered */
	struct pfx_writer_stats stats;
};

static struct job *job_of(struct pfx_list *link)
{
	return pfx_container_of(link, struct job, link);
}

static struct timespec deadline(uint32_t ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}

/* Waits on `turn`; false once the time is up. */
static int wait_turn_locked(struct pfx_writer *w, const struct timespec *until)
{
	return pthread_cond_timedwait(&w->turn, &w->lock, until) != ETIMEDOUT;
}

/* ---- the thread ---- */

/* Takes the jobs of one turn off the queue: puts and deletes of one batch, or one sync. */
static uint32_t take_batch_locked(struct pfx_writer *w, struct job **batch)
{
	uint32_t n = 0;

	while (n < w->batch_max && !pfx_list_empty(&w->jobs)) {
		struct job *job = job_of(w->jobs.next);

		if (job->kind == JOB_SYNC && n > 0) {
			break;
		}
		pfx_list_remove(&job->link);
		batch[n++] = job;
		if (job->kind == JOB_SYNC) {
			break;
		}
	}
	return n;
}

static void note_error_locked(struct pfx_writer *w, int rc)
{
	if (rc != 0 && w->error == 0) {
		w->error = rc;
	}
}

static void log_failure(const char *what, int rc)
{
	static struct pfx_log_rate rate;
	uint64_t held;

	if (pfx_log_rate(&rate, &held)) {
		pfx_warn("persist", "%s failed: %s suppressed=%llu", what, pfx_strerror(rc),
			(unsigned long long)held);
	}
}

/* Counts what came of a job; 0, or its code when somebody should hear of it. */
static int note_result_locked(struct pfx_writer *w, const struct job *job, int *result)
{
	if (job->kind == JOB_DELETE) {
		*result = *result == -ENOENT ? 0 : *result;
		w->stats.deletes++;
		w->stats.failed_deletes += *result != 0;
	} else {
		w->stats.written += *result == 0;
		w->stats.failed += *result != 0;
	}
	if (*result == -ENOENT) {
		/* Its parent's failure is noted, if it was one: a parent may also be deleted meanwhile. */
		return 0;
	}
	note_error_locked(w, *result);
	return *result;
}

static void run_changes(struct pfx_writer *w, struct job **batch, uint32_t n, int *results)
{
	struct pfx_store_item items[BATCH_MAX];
	int put_results[BATCH_MAX];
	uint32_t at[BATCH_MAX], m = 0, n_puts = 0;
	int failed = 0;

	for (uint32_t i = 0; i < n; i++) {
		results[i] = -ECANCELED;
		n_puts += batch[i]->kind == JOB_PUT;
		if (!batch[i]->discarded) {
			at[m] = i;
			items[m++] = (struct pfx_store_item){ .key = &batch[i]->key, .kv = batch[i]->kv };
		}
	}
	if (m > 0) {
		pfx_store_put(w->store, items, m, put_results);
	}
	pthread_mutex_lock(&w->lock);
	w->stats.batches += m > 0;
	w->stats.discarded += n - m;
	for (uint32_t i = 0; i < m; i++) {
		int rc = note_result_locked(w, batch[at[i]], &put_results[i]);

		results[at[i]] = put_results[i];
		failed = rc != 0 ? rc : failed;
	}
	w->stats.queued -= n_puts;
	pthread_mutex_unlock(&w->lock);
	if (failed != 0) {
		log_failure("saving or deleting blocks", failed);
	}
}

static int run_sync(struct pfx_writer *w)
{
	int rc = pfx_store_sync(w->store);

	pthread_mutex_lock(&w->lock);
	w->stats.syncs++;
	w->stats.failed_syncs += rc != 0;
	note_error_locked(w, rc);
	rc = w->error;
	w->error = 0;
	pthread_mutex_unlock(&w->lock);
	if (rc != 0) {
		log_failure("making the store durable", rc);
	}
	return rc;
}

static void run_batch(struct pfx_writer *w, struct job **batch, uint32_t n)
{
	int results[BATCH_MAX];

	if (batch[0]->kind == JOB_SYNC) {
		results[0] = run_sync(w);
	} else {
		run_changes(w, batch, n, results);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (batch[i]->done != NULL) {
			batch[i]->done(batch[i]->arg, results[i]);
		}
		pfx_free(batch[i]);
	}
}

static void *run(void *arg)
{
	struct pfx_writer *w = arg;
	struct job *batch[BATCH_MAX];

	pthread_mutex_lock(&w->lock);
	for (;;) {
		uint32_t n;

		while (pfx_list_empty(&w->jobs) && !w->stop) {
			pthread_cond_wait(&w->work, &w->lock);
		}
		if (pfx_list_empty(&w->jobs)) {
			break;
		}
		n = take_batch_locked(w, batch);
		w->turns++;
		pthread_mutex_unlock(&w->lock);
		run_batch(w, batch, n);
		pthread_mutex_lock(&w->lock);
		w->turns++;
		pthread_cond_broadcast(&w->turn);
	}
	pthread_mutex_unlock(&w->lock);
	run_sync(w);
	pthread_mutex_lock(&w->lock);
	w->ended = 1;
	pthread_cond_broadcast(&w->turn);
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* ---- the callers' side ---- */

int pfx_writer_open(struct pfx_writer **out, struct pfx_store *store,
	const struct pfx_writer_opts *opts)
{
	struct pfx_writer *w = pfx_calloc(1, sizeof(*w));
	pthread_condattr_t attr;
	int rc;

	if (w == NULL) {
		return -ENOMEM;
	}
	w->store = store;
	w->queue_max = opts != NULL && opts->queue_max > 0 ? opts->queue_max : 1024;
	w->batch_max = opts != NULL && opts->batch_max > 0 ? opts->batch_max : 32;
	w->batch_max = w->batch_max < BATCH_MAX ? w->batch_max : BATCH_MAX;
	w->close_ms = opts != NULL && opts->close_ms > 0 ? opts->close_ms : 30000;
	pfx_list_init(&w->jobs);
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->work, NULL);
	pthread_cond_init(&w->turn, &attr);
	pthread_condattr_destroy(&attr);
	rc = pthread_create(&w->thread, NULL, run, w);
	if (rc != 0) {
		pfx_free(w);
		return -rc;
	}
	*out = w;
	return 0;
}

static int hand_over(struct pfx_writer *w, struct job *job)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	if (w->stop) {
		rc = PFX_E_SHUTDOWN;
	} else if (job->kind == JOB_PUT && w->stats.queued >= w->queue_max) {
		w->stats.dropped++;
		rc = PFX_E_FULL;
	} else {
		w->stats.accepted += job->kind == JOB_PUT;
		w->stats.queued += job->kind == JOB_PUT;
		pfx_list_push_back(&w->jobs, &job->link);
		pthread_cond_signal(&w->work);
	}
	pthread_mutex_unlock(&w->lock);
	if (rc != 0) {
		pfx_free(job);
	}
	return rc;
}

static int hand_over_key(struct pfx_writer *w, enum job_kind kind,
	const struct pfx_store_key *key, const void *kv, pfx_writer_done *done, void *arg)
{
	size_t tokens_len = (size_t)key->n_tokens * sizeof(uint32_t);
	struct job *job = pfx_calloc(1, sizeof(*job) + tokens_len);

	if (job == NULL) {
		return -ENOMEM;
	}
	memcpy(job->tokens, key->tokens, tokens_len);
	job->key = *key;
	job->key.tokens = job->tokens;
	job->kv = kv;
	job->kind = kind;
	job->done = done;
	job->arg = arg;
	return hand_over(w, job);
}

int pfx_writer_put(struct pfx_writer *w, const struct pfx_store_key *key, const void *kv,
	pfx_writer_done *done, void *arg)
{
	return hand_over_key(w, JOB_PUT, key, kv, done, arg);
}

int pfx_writer_delete(struct pfx_writer *w, const struct pfx_store_key *key,
	pfx_writer_done *done, void *arg)
{
	return hand_over_key(w, JOB_DELETE, key, NULL, done, arg);
}

int pfx_writer_sync(struct pfx_writer *w, pfx_writer_done *done, void *arg)
{
	struct job *job = pfx_calloc(1, sizeof(*job));

	if (job == NULL) {
		return -ENOMEM;
	}
	job->kind = JOB_SYNC;
	job->done = done;
	job->arg = arg;
	return hand_over(w, job);
}

/* Shared by the waiting caller and the callback; the last of the two frees it. */
struct flush {
	struct pfx_writer *w;
	int done, left, result;
};

static void flushed(void *arg, int result)
{
	struct flush *f = arg;
	struct pfx_writer *w = f->w;
	int left;

	pthread_mutex_lock(&w->lock);
	f->done = 1;
	f->result = result;
	left = f->left;
	pthread_cond_broadcast(&w->turn);
	pthread_mutex_unlock(&w->lock);
	if (left) {
		pfx_free(f);
	}
}

int pfx_writer_flush(struct pfx_writer *w, uint32_t ms_max)
{
	struct timespec until = deadline(ms_max);
	struct flush *f = pfx_calloc(1, sizeof(*f));
	int rc, done;

	if (f == NULL) {
		return -ENOMEM;
	}
	f->w = w;
	rc = pfx_writer_sync(w, flushed, f);
	if (rc != 0) {
		pfx_free(f);
		return rc;
	}
	pthread_mutex_lock(&w->lock);
	while (!f->done && wait_turn_locked(w, &until)) {
	}
	done = f->done;
	f->left = !done;
	rc = done ? f->result : -ETIMEDOUT;
	pthread_mutex_unlock(&w->lock);
	if (done) {
		pfx_free(f);
	}
	return rc;
}

int pfx_writer_discard(struct pfx_writer *w, const struct pfx_digest *space, uint32_t ms_max)
{
	struct timespec until = deadline(ms_max);
	uint64_t turn;
	int in_time = 1;

	pthread_mutex_lock(&w->lock);
	pfx_list_for(it, &w->jobs) {
		struct job *job = job_of(it);

		if (job->kind == JOB_PUT &&
			(space == NULL || pfx_digest_equal(&job->key.space, space))) {
			job->discarded = 1;
		}
	}
	turn = w->turns;
	while (turn % 2 == 1 && w->turns == turn && in_time) {
		in_time = wait_turn_locked(w, &until);
	}
	in_time = turn % 2 == 0 || w->turns != turn;
	pthread_mutex_unlock(&w->lock);
	return in_time ? 0 : -ETIMEDOUT;
}

void pfx_writer_stats(struct pfx_writer *w, struct pfx_writer_stats *out)
{
	pthread_mutex_lock(&w->lock);
	*out = w->stats;
	pthread_mutex_unlock(&w->lock);
}

int pfx_writer_close(struct pfx_writer *w)
{
	struct timespec until;
	int ended, rc;

	if (w == NULL) {
		return 0;
	}
	until = deadline(w->close_ms);
	pthread_mutex_lock(&w->lock);
	w->stop = 1;
	pthread_cond_signal(&w->work);
	while (!w->ended && wait_turn_locked(w, &until)) {
	}
	ended = w->ended;
	rc = w->stats.failed_syncs + w->stats.failed + w->stats.failed_deletes > 0 ? -EIO : 0;
	pthread_mutex_unlock(&w->lock);
	if (!ended) {
		pthread_detach(w->thread);
		pfx_error("persist", "the store does not come back, what waits for it is lost");
		return -ETIMEDOUT;
	}
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->work);
	pthread_cond_destroy(&w->turn);
	pthread_mutex_destroy(&w->lock);
	pfx_free(w);
	return rc;
}
