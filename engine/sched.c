/*
 * The engine thread: takes what comes in, and turn by turn plans what runs, making room for
 * it. README.md has the rules by number.
 *
 * A running request holds a path of `len` positions and runs tokens[len..n_tokens). There is
 * no difference between a prompt and a reply here: a request that has one token to run is
 * decoding, one that has more is prefilling, and one that was preempted simply has more to
 * run again. Logits are wanted wherever its tokens end.
 */
#include "engine/engine_priv.h"

#include <errno.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/profile.h"

/* Prompt rows that a step takes at least while others decode, however slow the device. */
#define CHUNK_MIN 16u

/* ---- planning ---- */

/*
 * A request that is alone and still finds no room has pinned a block only to copy its head:
 * it lets go of that block, and computes those few positions instead. Returns 0 when that
 * was not it.
 */
static int drop_partial_block(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t whole;
	struct pfx_hit hit;
	struct pfx_path *path;

	if (r->alone_retry) {
		return 0;
	}
	r->alone_retry = 1;
	/* Asked of the tree: what is not published is lost with the path. */
	pfx_cache_match(e->cache, r->space, r->tokens.v, pfx_request_len(r), &hit);
	whole = hit.tier_tokens[PFX_TIER_DEVICE] / e->info.block_tokens * e->info.block_tokens;
	if (pfx_path_open(e->cache, r->space, r->tokens.v, whole, NULL, &path) != 0) {
		return 0;
	}
	pfx_path_close(r->path);
	r->path = path;
	r->copy.n = 0;
	r->unshared = r->job->no_store;
	if (r->unshared) {
		pfx_path_keep_private(path);
	}
	return 1;
}

/* Alone, and still no room for its prompt, which the memory would hold: leases have it. */
static void fail_for_room(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(e->cache, &s);
	if (s.tier[PFX_TIER_DEVICE].leased > 0) {
		pfx_request_fail(r, PFX_FAULT_OVERLOADED, "leases hold %u of the device's %u blocks: the "
			"rest is too little for this prompt", s.tier[PFX_TIER_DEVICE].leased,
			e->info.n_blocks);
	} else {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "no block is free");
	}
	pfx_end_fault(e, r);
}

int pfx_sched_reserve(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	struct pfx_request *youngest;
	struct pfx_block_copy copy;
	int rc;

	if (e->starving != 0 && e->starving < r->admission) {
		return -EAGAIN;
	}
	for (;;) {
		rc = pfx_path_reserve(r->path, upto, &copy);
		if (rc == 0) {
			if (e->starving == r->admission) {
				e->starving = 0;
			}
			/* A copy that was asked for before and not made yet still stands. */
			if (copy.n > 0) {
				r->copy = copy;
			}
			return 0;
		}
		if (rc == -EAGAIN) {
			e->starving = r->admission;
			/* Its spills go out now, not in the next turn. */
			pfx_tiers_spill(e);
			return rc;
		}
		if (rc != PFX_E_FULL) {
			pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
			pfx_end_fault(e, r);
			return -ECANCELED;
		}
		youngest = pfx_container_of(e->active.prev, struct pfx_request, link);
		if (youngest == r && e->n_active == 1) {
			return rc;
		}
		pfx_admit_preempt(e, youngest);
		if (youngest == r) {
			return -ECANCELED;
		}
	}
}

/* The same for a step. Returns 1; 0 when r takes no part in this step (it may be gone). */
static int reserve(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	int rc = pfx_sched_reserve(e, r, upto);

	if (rc != PFX_E_FULL) {
		return rc == 0;
	}
	if (drop_partial_block(e, r)) {
		/* It has more to run now than was planned; the next turn sees to it. */
		e->progress++;
		return 0;
	}
	/* Alone with the whole memory: the reply has filled it. */
	if (r->n_reply > 0) {
		pfx_end(e, r, PFX_FINISH_LENGTH);
	} else {
		fail_for_room(e, r);
	}
	return 0;
}

/* Gives r up to `most` rows of this step. Returns how many it took. */
static uint32_t plan_one(struct pfx_engine *e, struct pfx_request *r, uint32_t most)
{
	uint32_t len = pfx_request_len(r), rows = (uint32_t)r->tokens.n - len, from = len;

	if (rows == 0) {
		/* All KV is there but nobody kept the logits: the last token runs again. */
		from = len - 1;
		rows = 1;
	} else {
		rows = rows < most ? rows : most;
		if (!reserve(e, r, len + rows)) {
			return 0;
		}
	}
	r->step_from = from;
	r->step_rows = rows;
	return rows;
}

static int is_decoding(const struct pfx_request *r)
{
	return r->n_reply > 0 && pfx_request_len(r) + 1 >= r->tokens.n;
}

/* Prompt rows of a step: all of the chunk, or as many as the others' patience allows. */
static uint32_t chunk_budget(const struct pfx_engine *e, uint32_t n_decoding)
{
	double rows;

	if (n_decoding == 0 || e->ns_per_row == 0) {
		return e->info.chunk_tokens;
	}
	rows = (double)e->opts.step_ms * 1e6 / e->ns_per_row;
	if (rows < CHUNK_MIN) {
		rows = CHUNK_MIN;
	}
	return rows < e->info.chunk_tokens ? (uint32_t)rows : e->info.chunk_tokens;
}

/*
 * Plans all running requests of one kind, oldest first. Planning one may end it and may
 * preempt younger ones, but never touches an older: so the place in the list is kept by its
 * predecessor.
 */
static uint32_t plan_kind(struct pfx_engine *e, int decoding, uint32_t budget)
{
	struct pfx_list *before = &e->active, *it;
	uint32_t planned = 0;

	while ((it = before->next) != &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if (r->state == PFX_REQUEST_RUNNING && r->step_rows == 0 &&
			is_decoding(r) == decoding && planned < budget) {
			planned += plan_one(e, r, decoding ? 1 : budget - planned);
		}
		if (before->next == it) {
			before = it;
		}
	}
	return planned;
}

/* Decodes first, then prompts within the chunk's budget. */
static void plan(struct pfx_engine *e)
{
	uint32_t n_decoding;

	pfx_list_for(it, &e->active) {
		pfx_container_of(it, struct pfx_request, link)->step_rows = 0;
	}
	n_decoding = plan_kind(e, 1, UINT32_MAX);
	plan_kind(e, 0, chunk_budget(e, n_decoding));
}

/* ---- the thread ---- */

int pfx_sched_space(struct pfx_engine *e, const struct pfx_job *job, struct pfx_space **out,
	uint64_t *key)
{
	struct pfx_digest name;

	pfx_space_digest(job->space, job->space_len, job->salt, job->salt_len, &name);
	*key = XXH3_64bits(name.b, sizeof(name.b));
	return pfx_cache_space(e->cache, name.b, sizeof(name.b), out);
}

static void accept_request(struct pfx_engine *e, struct pfx_request *r)
{
	const struct pfx_job *job = r->job;

	r->n_prompt = (uint32_t)r->tokens.n;
	r->admission = ++e->next_admission;
	e->n_waiting++;
	pfx_list_push_back(&e->waiting, &r->link);
	if (pfx_sched_space(e, job, &r->space, &r->space_key) != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
	}
	if (r->cancel && !r->failed) {
		pfx_end(e, r, PFX_FINISH_CANCELLED);
	} else if (!pfx_admit_possible(e, r)) {
		pfx_end_fault(e, r);
	}
}

/*
 * Nothing moved in the last turn: what there is to do waits for copies or for a lease's end, or
 * there is nothing.
 */
static int idle_locked(const struct pfx_engine *e)
{
	return pfx_list_empty(&e->inbox) && !e->woken && !e->stopping &&
		pfx_clock_ns() < e->lease_due_ns && e->progress == e->slept_at;
}

/*
 * Until when to wait at most: deadlines and patience end while nobody sends anything, and so
 * does the pause after a save that failed, waiting for a store, and a lease. 0: for ever.
 */
static uint32_t nap_ms(const struct pfx_engine *e)
{
	uint32_t ms = e->n_waiting + e->n_active > 0 ? 5
		: e->tiers.save_pause_ns > 0 || pfx_store_jobs_wait(&e->tiers) ? 200 : 0;
	uint64_t now, left_ms;

	if (e->lease_due_ns == UINT64_MAX) {
		return ms;
	}
	now = pfx_clock_ns();
	left_ms = now < e->lease_due_ns ? (e->lease_due_ns - now) / 1000000u + 1 : 1;
	left_ms = left_ms < 60000 ? left_ms : 60000;
	return ms == 0 || left_ms < ms ? (uint32_t)left_ms : ms;
}

/* Waits while there is nothing to do at all, then takes what came in. 0: time to stop. */
static int take_inbox(struct pfx_engine *e)
{
	struct pfx_list got;
	int stopping;

	pfx_list_init(&got);
	pthread_mutex_lock(&e->lock);
	while (idle_locked(e)) {
		if (pfx_engine_nap_locked(e, nap_ms(e)) != 0) {
			break;
		}
	}
	e->woken = 0;
	e->slept_at = e->progress;
	stopping = e->stopping;
	if (!pfx_list_empty(&e->inbox)) {
		got = e->inbox;
		got.next->prev = got.prev->next = &got;
		pfx_list_init(&e->inbox);
	}
	e->n_inbox = 0;
	pthread_mutex_unlock(&e->lock);
	pfx_list_for_safe(it, &got) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		pfx_list_remove(it);
		e->progress++;
		if (r->job->kind >= PFX_JOB_STATS) {
			pfx_control_run(e, r);
		} else if (pfx_job_is_life_control(r->job)) {
			pfx_life_control(e, r);
		} else {
			accept_request(e, r);
		}
	}
	return !stopping;
}

/* Ends what was cancelled or is past its deadline. */
static void reap(struct pfx_engine *e, struct pfx_list *list, int all)
{
	uint64_t now = pfx_clock_ns();

	pfx_list_for_safe(it, list) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if (all || r->cancel) {
			pfx_end(e, r, PFX_FINISH_CANCELLED);
		} else if (r->deadline_ns != 0 && now > r->deadline_ns) {
			pfx_request_fail(r, PFX_FAULT_DEADLINE, "not done within %u ms",
				r->job->deadline_ms);
			pfx_end_fault(e, r);
		}
	}
}

void *pfx_sched_main(void *engine)
{
	struct pfx_engine *e = engine;

	pfx_model_enter(e->model);
	while (take_inbox(e)) {
		pfx_profile_turn(pfx_model_profile(e->model));
		pfx_cache_now(e->cache, pfx_clock_wall_ns());
		pfx_tiers_take(e);
		pfx_lease_expire(e);
		pfx_turn_expire(e);
		reap(e, &e->waiting, 0);
		reap(e, &e->active, 0);
		pfx_fetch_turn(e);
		pfx_admit_followers(e);
		pfx_admit(e);
		pfx_fetch_turn(e);
		pfx_admit_look_ahead(e);
		plan(e);
		/* Copied while the step runs. */
		pfx_tiers_give(e);
		pfx_step_run(e);
	}
	reap(e, &e->waiting, 1);
	reap(e, &e->active, 1);
	pfx_tiers_last_saves(e);
	pfx_store_jobs_end(e);
	return NULL;
}
