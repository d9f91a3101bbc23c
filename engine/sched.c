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

#include "base/clock.h"
#include "base/error.h"

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
	whole = hit.tokens / e->info.block_tokens * e->info.block_tokens;
	if (pfx_path_open(e->cache, r->space, r->tokens.v, whole, NULL, &path) != 0) {
		return 0;
	}
	pfx_path_close(r->path);
	r->path = path;
	r->unshared = r->job->no_store;
	if (r->unshared) {
		pfx_path_keep_private(path);
	}
	return 1;
}

/*
 * Makes positions up to upto writable for r, preempting younger requests while there is no
 * room. Returns 1; 0 when r takes no part in this step (it may be gone).
 */
static int reserve(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	struct pfx_request *youngest;
	int rc;

	for (;;) {
		rc = pfx_path_reserve(r->path, upto, &r->copy);
		if (rc == 0) {
			return 1;
		}
		if (rc != PFX_E_FULL) {
			pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
			pfx_end_fault(e, r);
			return 0;
		}
		youngest = pfx_container_of(e->active.prev, struct pfx_request, link);
		if (youngest != r) {
			pfx_admit_preempt(e, youngest);
			continue;
		}
		if (e->n_active > 1) {
			pfx_admit_preempt(e, r);
			return 0;
		}
		if (drop_partial_block(e, r)) {
			/* It has more to run now than was planned; the next turn sees to it. */
			return 0;
		}
		/* Alone with the whole memory: the reply has filled it. */
		if (r->n_reply > 0) {
			pfx_end(e, r, PFX_FINISH_LENGTH);
		} else {
			pfx_request_fail(r, PFX_FAULT_INTERNAL, "no block is free");
			pfx_end_fault(e, r);
		}
		return 0;
	}
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

static void accept_request(struct pfx_engine *e, struct pfx_request *r)
{
	const struct pfx_job *job = r->job;
	struct pfx_buf name = PFX_BUF_INIT;
	uint64_t len = job->space_len;

	r->n_prompt = (uint32_t)r->tokens.n;
	r->admission = ++e->next_admission;
	e->n_waiting++;
	pfx_list_push_back(&e->waiting, &r->link);
	/* Framed by its length, so that no namespace and salt read like another pair. */
	pfx_buf_add(&name, &len, sizeof(len));
	pfx_buf_add(&name, job->space, job->space_len);
	pfx_buf_add(&name, job->salt, job->salt_len);
	if (name.oom || pfx_cache_space(e->cache, name.data, name.len, &r->space) != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
	}
	pfx_buf_free(&name);
	if (r->cancel && !r->failed) {
		pfx_end(e, r, PFX_FINISH_CANCELLED);
	} else if (!pfx_admit_possible(e, r)) {
		pfx_end_fault(e, r);
	}
}

/* Waits while there is nothing to do at all, then takes what came in. 0: time to stop. */
static int take_inbox(struct pfx_engine *e)
{
	struct pfx_list got;
	int stopping;

	pfx_list_init(&got);
	pthread_mutex_lock(&e->lock);
	while (pfx_list_empty(&e->inbox) && e->n_waiting == 0 && e->n_active == 0 && !e->stopping) {
		pthread_cond_wait(&e->engine_wake, &e->lock);
	}
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
		if (r->job->kind >= PFX_JOB_STATS) {
			pfx_control_run(e, r);
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

	while (take_inbox(e)) {
		reap(e, &e->waiting, 0);
		reap(e, &e->active, 0);
		pfx_admit_followers(e);
		pfx_admit(e);
		plan(e);
		pfx_step_run(e);
	}
	reap(e, &e->waiting, 1);
	reap(e, &e->active, 1);
	return NULL;
}
