/*
 * The store's own chores: verify, compact, clear. They take as long as reading the store and run
 * on a thread of their own, one at a time.
 */
#include "engine/store_jobs.h"
#include "engine/strays.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

/* How long a chore may go on after the engine was told to stop. */
#define CHORE_END_MS 5000u
/* A store that is slower than that is taken to be stuck by who waits for a chore. */
#define CHORE_BYTES_PER_MS 10000u

enum chore { CHORE_VERIFY, CHORE_COMPACT, CHORE_CLEAR, CHORES };

static const char *const chore_names[CHORES] = {
	[CHORE_VERIFY] = "verify", [CHORE_COMPACT] = "compact", [CHORE_CLEAR] = "clear",
};

struct pfx_store_job {
	struct pfx_engine *e;
	struct pfx_request *r; /* NULL: answered already, since it takes too long */
	enum chore chore;
	int has_space;
	struct pfx_digest space;
	pthread_t thread;
	int started;
	/*
	 * CLEAR: some records are held. At first the tree deletes the others, without a thread; then
	 * the thread deletes what the tree does not know.
	 */
	int deleting, strays;
	uint64_t failed_before;
	uint64_t start_ns, limit_ms; /* limit_ms: so long who asked waits */
	_Atomic int done;
	/* What came of it. */
	int rc;
	struct pfx_store_verified verified;
	uint64_t cleared, file_before;
};

static void *chore_main(void *arg)
{
	struct pfx_store_job *j = arg;
	struct pfx_store *store = j->e->tiers.store;
	struct pfx_engine *e = j->e;
	struct pfx_store_info info;

	pfx_store_info(store, &info);
	j->file_before = info.file_bytes;
	switch (j->chore) {
	case CHORE_VERIFY:
		j->rc = pfx_store_verify(store, &j->verified);
		break;
	case CHORE_COMPACT:
		j->rc = pfx_store_compact(store);
		break;
	case CHORE_CLEAR:
		j->rc = j->strays
			? pfx_strays_clear(store, e->tiers.records, j->has_space ? &j->space : NULL, &j->cleared)
			: pfx_store_clear(store, j->has_space ? &j->space : NULL, &j->cleared);
		break;
	case CHORES:
		break;
	}
	j->done = 1;
	pfx_engine_wake(e);
	return NULL;
}

static void start_thread(struct pfx_store_job *j)
{
	int rc = -pthread_create(&j->thread, NULL, chore_main, j);

	/* A thread that was started may have ended already: rc and done are its own. */
	j->started = rc == 0;
	if (rc != 0) {
		j->rc = rc;
		j->done = 1;
	}
}

/*
 * A chore begins once nothing is being written: what a save under way puts after a clear
 * would be there against the operator's word.
 */
static void begin_chore(struct pfx_engine *e, struct pfx_store_job *j)
{
	struct pfx_mover *m = e->tiers.mover;
	struct pfx_flushed flushed = { 0 };
	struct pfx_space *space = NULL;
	int rc = 0;

	if (j->chore == CHORE_CLEAR) {
		if (pfx_mover_in_flight(m, PFX_ORDER_SAVE) + pfx_mover_in_flight(m, PFX_ORDER_DELETE) > 0) {
			j->rc = pfx_store_is_stuck(e, j->start_ns) ? -EBUSY : 0;
			j->done = j->rc != 0;
			return;
		}
		if (j->has_space) {
			rc = pfx_cache_space(e->cache, j->space.b, sizeof(j->space.b), &space);
		}
		if (rc == 0) {
			pfx_cache_flush(e->cache, space, 1u << PFX_TIER_DISK, &flushed);
			pfx_space_release(space);
			j->deleting = flushed.in_use > 0;
		}
	}
	if (j->deleting) {
		/* The tree goes on counting on what it holds: only the rest is deleted, one by one. */
		j->cleared = flushed.blocks[PFX_TIER_DISK];
		j->failed_before = e->tiers.failed_deletes;
		e->tiers.deletes_held = 0;
		e->progress++;
		return;
	}
	if (rc == 0) {
		start_thread(j);
	} else {
		j->rc = rc;
		j->done = 1;
	}
	e->progress++;
}

/* Whether all is deleted that the tree is to delete for a clear. */
static void deleting_turn(struct pfx_engine *e, struct pfx_store_job *j)
{
	struct pfx_tiers *t = &e->tiers;

	if (t->all_deleted && pfx_mover_in_flight(t->mover, PFX_ORDER_DELETE) == 0) {
		j->deleting = 0;
		if (t->failed_deletes == j->failed_before) {
			j->strays = 1;
			start_thread(j);
		} else {
			j->rc = -EIO;
			j->done = 1;
		}
		e->progress++;
	} else if (pfx_store_is_stuck(e, j->start_ns)) {
		j->rc = -EBUSY;
		j->done = 1;
	}
}

static struct pfx_event *chore_event(struct pfx_engine *e, const struct pfx_store_job *j)
{
	const struct pfx_job *job = j->r->job;
	struct pfx_event *ev;
	struct pfx_store_info info;
	char text[200];

	if (j->rc != 0) {
		snprintf(text, sizeof(text), "%s failed: %s", chore_names[j->chore], pfx_strerror(j->rc));
		return pfx_fault_event(job, PFX_FAULT_INTERNAL, text);
	}
	ev = pfx_event_new(PFX_EVENT_REPORT, job);
	ev->report_name = "store";
	ev->report = json_pack("{s:s,s:f}", "do", chore_names[j->chore], "ms",
		pfx_ns_to_ms(pfx_clock_ns() - j->start_ns));
	pfx_store_info(e->tiers.store, &info);
	if (j->chore == CHORE_VERIFY) {
		json_object_set_new(ev->report, "records", json_integer((json_int_t)j->verified.records));
		json_object_set_new(ev->report, "bytes", json_integer((json_int_t)j->verified.bytes));
		json_object_set_new(ev->report, "damaged", json_integer((json_int_t)j->verified.damaged));
	} else if (j->chore == CHORE_CLEAR) {
		json_object_set_new(ev->report, "records", json_integer((json_int_t)j->cleared));
	} else {
		json_object_set_new(ev->report, "file_bytes", json_integer((json_int_t)info.file_bytes));
		json_object_set_new(ev->report, "file_bytes_before",
			json_integer((json_int_t)j->file_before));
	}
	return ev;
}

/*
 * A thread that is in the store cannot be called back: who asked is told, and the chore goes on
 * if it ever does. Until it has ended there is no other one.
 */
static void give_up_late(struct pfx_engine *e, struct pfx_store_job *j)
{
	uint64_t ms = (pfx_clock_ns() - j->start_ns) / 1000000u;
	char text[160];

	if (j->r == NULL || !j->started || ms <= j->limit_ms) {
		return;
	}
	snprintf(text, sizeof(text), "%s has not ended in %llu ms, for which the store is too slow or "
		"stuck; it goes on, and store info tells while it does", chore_names[j->chore],
		(unsigned long long)ms);
	pfx_store_answer(e, j->r, pfx_fault_event(j->r->job, PFX_FAULT_INTERNAL, text));
	j->r = NULL;
	e->progress++;
}

void pfx_chore_turn(struct pfx_engine *e)
{
	struct pfx_store_job *j = e->tiers.job;

	if (j == NULL) {
		return;
	}
	if (j->deleting) {
		deleting_turn(e, j);
	} else if (!j->started && !j->done) {
		begin_chore(e, j);
	}
	if (!j->done) {
		give_up_late(e, j);
		return;
	}
	if (j->started) {
		pthread_join(j->thread, NULL);
	}
	if (j->chore == CHORE_VERIFY && j->verified.damaged > 0) {
		pfx_warn("engine", "damaged records were dropped records=%llu",
			(unsigned long long)j->verified.damaged);
	}
	if (j->r != NULL) {
		pfx_store_answer(e, j->r, chore_event(e, j));
	} else {
		pfx_info("engine", "a chore of the store that was given up has ended do=%s result=%d",
			chore_names[j->chore], j->rc);
	}
	e->tiers.job = NULL;
	e->tiers.held = e->tiers.deletes_held = 0;
	e->progress++;
	pfx_free(j);
}

static struct pfx_event *info_event(struct pfx_engine *e, const struct pfx_job *job)
{
	const struct pfx_store_job *j = e->tiers.job;
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_REPORT, job);

	ev->report_name = "store";
	ev->report = pfx_report_store(e);
	json_object_set_new(ev->report, "do", json_string("info"));
	json_object_set_new(ev->report, "running", j == NULL ? json_null() : json_pack("{s:s,s:f}",
		"do", chore_names[j->chore], "ms", pfx_ns_to_ms(pfx_clock_ns() - j->start_ns)));
	return ev;
}

/* NULL: it is under way. */
static struct pfx_event *new_chore(struct pfx_engine *e, struct pfx_request *r, const char *what)
{
	struct pfx_store_job *j;
	struct pfx_store_info info;
	enum chore chore = 0;
	char text[80];

	while (chore < CHORES && strcmp(what, chore_names[chore]) != 0) {
		chore++;
	}
	if (chore == CHORES) {
		return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST,
			"do must be info, verify, compact or clear");
	}
	if (chore != CHORE_VERIFY && e->tiers.writer == NULL) {
		return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST, "the store cannot be written");
	}
	if (e->tiers.job != NULL) {
		snprintf(text, sizeof(text), "the store is busy: %s is running",
			chore_names[e->tiers.job->chore]);
		return pfx_fault_event(r->job, PFX_FAULT_OVERLOADED, text);
	}
	j = pfx_calloc(1, sizeof(*j));
	if (j == NULL) {
		return pfx_fault_event(r->job, PFX_FAULT_INTERNAL, "out of memory");
	}
	j->e = e;
	j->r = r;
	j->chore = chore;
	j->start_ns = pfx_clock_ns();
	pfx_store_info(e->tiers.store, &info);
	j->limit_ms = e->opts.store_wait_ms +
		(info.bytes > info.file_bytes ? info.bytes : info.file_bytes) / CHORE_BYTES_PER_MS;
	j->has_space = pfx_job_space(r->job, &j->space) > 0;
	e->tiers.job = j;
	e->tiers.held = e->tiers.deletes_held = chore == CHORE_CLEAR;
	return NULL;
}

void pfx_control_store(struct pfx_engine *e, struct pfx_request *r)
{
	const json_t *v = json_object_get(r->job->args, "do");
	const char *what = v == NULL ? "info" : json_is_string(v) ? json_string_value(v) : "";
	struct pfx_digest name;
	struct pfx_event *ev;

	if (e->tiers.store == NULL) {
		ev = pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST, pfx_store_why_not(e));
	} else if (pfx_job_space(r->job, &name) < 0) {
		ev = pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST, "namespace must be a string");
	} else if (strcmp(what, "info") == 0) {
		ev = info_event(e, r->job);
	} else {
		ev = new_chore(e, r, what);
	}
	if (ev != NULL) {
		pfx_store_answer(e, r, ev);
	}
}

const char *pfx_chore_running(const struct pfx_tiers *t)
{
	return t->job == NULL ? NULL : chore_names[t->job->chore];
}

int pfx_chore_waits(const struct pfx_tiers *t)
{
	return t->job != NULL && t->job->r != NULL;
}

void pfx_chore_end(struct pfx_engine *e)
{
	struct pfx_store_job *j = e->tiers.job;
	uint64_t until = pfx_clock_ns() + CHORE_END_MS * 1000000ull;

	if (j == NULL) {
		return;
	}
	while (j->started && !j->done && pfx_clock_ns() < until) {
		pfx_engine_sleep(e, 20);
	}
	if (j->r != NULL) {
		pfx_store_answer(e, j->r, pfx_fault_event(j->r->job, PFX_FAULT_SHUTTING_DOWN,
			"the server is shutting down"));
	}
	if (j->started && !j->done) {
		/* It still uses the store: both are left as they are. */
		pthread_detach(j->thread);
		e->tiers.stuck = 1;
		return;
	}
	if (j->started) {
		pthread_join(j->thread, NULL);
	}
	pfx_free(j);
	e->tiers.job = NULL;
}
