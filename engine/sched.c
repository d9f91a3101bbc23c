/*
 * The engine thread: takes what comes in, admits, lets followers follow, plans a step and
 * ends requests. README.md has the rules by number.
 *
 * A running request holds a path of `len` positions and runs tokens[len..n_tokens). There is
 * no difference between a prompt and a reply here: a request that has one token to run is
 * decoding, one that has more is prefilling, and one that was preempted simply has more to
 * run again. Logits are wanted wherever its tokens end.
 */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"

/* Prompt rows that a step takes at least while others decode, however slow the device. */
#define CHUNK_MIN 16u

static uint32_t len_of(const struct pfx_request *r)
{
	return pfx_path_len(r->path);
}

/* Tokens that a match may cover: what SCORE wants to see must be computed. */
static uint32_t match_limit(const struct pfx_request *r)
{
	return r->job->kind == PFX_JOB_SCORE ? r->job->from - 1 : (uint32_t)r->tokens.n;
}

static uint32_t common_prefix(const uint32_t *a, const uint32_t *b, uint32_t n)
{
	uint32_t i = 0;

	while (i + 64 <= n && memcmp(a + i, b + i, 64 * sizeof(*a)) == 0) {
		i += 64;
	}
	while (i < n && a[i] == b[i]) {
		i++;
	}
	return i;
}

/* ---- usage ---- */

void pfx_sched_count_cached(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	uint32_t end = upto < r->n_prompt ? upto : r->n_prompt;

	if (end <= r->counted) {
		return;
	}
	r->usage.cached_device += end - r->counted;
	e->n.cached_device += end - r->counted;
	e->n.prompt += end - r->counted;
	r->counted = end;
}

void pfx_sched_count_computed(struct pfx_engine *e, struct pfx_request *r, uint32_t upto)
{
	uint32_t end = upto < r->n_prompt ? upto : r->n_prompt;

	if (end <= r->counted) {
		return;
	}
	r->usage.computed_tokens += end - r->counted;
	e->n.computed += end - r->counted;
	e->n.prompt += end - r->counted;
	r->counted = end;
}

/* ---- ending ---- */

/* Whoever followed r looks for itself in the next turn. */
static void release_followers(struct pfx_engine *e, const struct pfx_request *r)
{
	pfx_list_for(it, &e->active) {
		struct pfx_request *f = pfx_container_of(it, struct pfx_request, link);
		if (f->leader == r) {
			f->leader = NULL;
		}
	}
}

/* Takes the request out of the engine thread's lists; its pins are gone after this. */
static void detach(struct pfx_engine *e, struct pfx_request *r)
{
	if (r->state != PFX_REQUEST_QUEUED) {
		e->n_active--;
		release_followers(e, r);
	} else {
		e->n_waiting--;
	}
	pfx_list_remove(&r->link);
	pfx_path_close(r->path);
	r->path = NULL;
	pfx_space_release(r->space);
	r->space = NULL;
}

static void note_end(struct pfx_engine *e)
{
	uint64_t now = pfx_clock_ns(), turn;

	if (e->last_end_ns != 0) {
		turn = e->turn_ns;
		e->turn_ns = turn == 0 ? now - e->last_end_ns : (turn * 3 + (now - e->last_end_ns)) / 4;
	}
	e->last_end_ns = now;
}

void pfx_sched_end(struct pfx_engine *e, struct pfx_request *r, enum pfx_finish finish)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_DONE, r->job);
	uint64_t now = pfx_clock_ns();

	ev->last = 1;
	ev->finish = finish;
	ev->usage = r->usage;
	ev->usage.prompt_tokens = r->n_prompt;
	ev->seed = r->job->seed;
	ev->received_ns = r->received_ns;
	ev->queue_ms = pfx_ns_to_ms((r->admitted_ns != 0 ? r->admitted_ns : now) - r->received_ns);
	if (r->first_ns != 0) {
		ev->prefill_ms = pfx_ns_to_ms(r->first_ns - r->admitted_ns);
	}
	ev->total_ms = pfx_ns_to_ms(now - r->received_ns);
	ev->miss = r->miss;
	if (r->miss != PFX_MISS_NONE) {
		ev->miss_at_token = r->miss_at_token;
		pfx_miss_locate(e, r, r->miss_at_token, &ev->miss_message, &ev->miss_byte);
	}
	if (r->job->kind == PFX_JOB_SCORE) {
		ev->score = r->score;
		ev->score_top = r->score_top;
		ev->n_score = r->n_score;
		ev->n_score_top = r->job->logprobs > 0 ? (uint32_t)r->job->logprobs : 0;
		r->score = NULL;
		r->score_top = NULL;
	}
	detach(e, r);
	if (finish == PFX_FINISH_CANCELLED) {
		e->n.cancelled++;
	} else {
		e->n.done++;
	}
	note_end(e);
	pfx_request_leave(e, r, ev);
}

void pfx_sched_end_fault(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev = pfx_fault_event(r->job, r->fault, r->message);

	detach(e, r);
	e->n.failed++;
	note_end(e);
	pfx_request_leave(e, r, ev);
}

/* ---- starting and following ---- */

static enum pfx_miss_reason miss_of(enum pfx_end end)
{
	switch (end) {
	case PFX_END_WHOLE: return PFX_MISS_NONE;
	case PFX_END_NEVER_SEEN: return PFX_MISS_NEVER_SEEN;
	case PFX_END_EVICTED: return PFX_MISS_EVICTED;
	case PFX_END_DIVERGED: return PFX_MISS_DIVERGED;
	}
	return PFX_MISS_NONE;
}

/*
 * The request has what others computed and goes on by itself. When nothing is left to run,
 * the logits kept at the prompt's end answer at once; without them its last token is run
 * again (its KV stays as it is). May end the request.
 */
static void start_running(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t limit = match_limit(r), len = len_of(r);
	struct pfx_hit hit;
	int whole = len == r->tokens.n;

	r->state = PFX_REQUEST_RUNNING;
	r->leader = NULL;
	/* Not before: a private path cannot follow. */
	if (r->unshared) {
		pfx_path_keep_private(r->path);
	}
	pfx_cache_match(e->cache, r->space, r->tokens.v, limit, &hit);
	if (!r->missed) {
		r->missed = 1;
		if (len < limit && hit.end != PFX_END_WHOLE) {
			r->miss = miss_of(hit.end);
			r->miss_at_token = len;
		}
	}
	if (whole && hit.tokens == limit && hit.mark != PFX_MARK_NONE) {
		pfx_sched_count_cached(e, r, r->n_prompt);
		e->n.kept_hits++;
		pfx_reply_logits(e, r, pfx_keep_at(e->keep, hit.mark));
		return;
	}
	pfx_sched_count_cached(e, r, whole ? len - 1 : len);
}

/*
 * The older request that will have published the most of r's tokens, if that is more than
 * r holds already. Only older ones, so that nobody waits in a circle.
 */
static struct pfx_request *find_leader(struct pfx_engine *e, const struct pfx_request *r,
	uint32_t have, uint32_t *follow_to)
{
	struct pfx_request *best = NULL;
	uint32_t limit = match_limit(r), n;

	*follow_to = have;
	pfx_list_for(it, &e->active) {
		struct pfx_request *q = pfx_container_of(it, struct pfx_request, link);
		if (q->admission >= r->admission) {
			break;
		}
		if (q->space != r->space || q->unshared || q->tokens.n <= *follow_to) {
			continue;
		}
		n = q->tokens.n < limit ? (uint32_t)q->tokens.n : limit;
		n = common_prefix(q->tokens.v, r->tokens.v, n);
		if (n > *follow_to && len_of(q) < n) {
			best = q;
			*follow_to = n;
		}
	}
	return best;
}

/* Follows somebody if there is somebody to follow, else runs. May end the request. */
static void lead_or_follow(struct pfx_engine *e, struct pfx_request *r)
{
	r->leader = find_leader(e, r, len_of(r), &r->follow_to);
	if (r->leader == NULL) {
		start_running(e, r);
		return;
	}
	r->state = PFX_REQUEST_FOLLOWING;
	pfx_sched_count_cached(e, r, len_of(r));
}

static void follow(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t before = len_of(r);
	int64_t len = pfx_path_follow(r->path, r->tokens.v, match_limit(r));

	if (len < 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
		pfx_sched_end_fault(e, r);
		return;
	}
	if (len > before) {
		e->n.attached += (uint64_t)len - before;
	}
	if (r->leader != NULL && len < r->follow_to && len_of(r->leader) < r->follow_to) {
		pfx_sched_count_cached(e, r, (uint32_t)len);
		return;
	}
	/* There, or the leader is gone, or what it computes is not published. */
	lead_or_follow(e, r);
}

static void follow_all(struct pfx_engine *e)
{
	pfx_list_for_safe(it, &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if (r->state == PFX_REQUEST_FOLLOWING) {
			follow(e, r);
		}
	}
}

/* ---- admission ---- */

static uint32_t blocks_for(const struct pfx_engine *e, uint64_t tokens)
{
	return (uint32_t)((tokens + e->info.block_tokens - 1) / e->info.block_tokens);
}

/*
 * Whether r would find its blocks without taking any from those who run, who each may need
 * one more. Blocks that it matches stop being evictable when it pins them.
 */
static int has_room(const struct pfx_engine *e, const struct pfx_request *r, uint32_t have)
{
	struct pfx_cache_stats s;
	uint64_t need, evictable;

	pfx_cache_stats(e->cache, &s);
	need = blocks_for(e, r->tokens.n + 1) - have / e->info.block_tokens + e->n_active;
	evictable = s.cached > blocks_for(e, have) ? s.cached - blocks_for(e, have) : 0;
	return need <= s.free + evictable;
}

/* Checks what can be known before the request holds anything; 0 when it can never run. */
static int admissible(struct pfx_engine *e, struct pfx_request *r)
{
	uint64_t memory = (uint64_t)e->info.n_blocks * e->info.block_tokens;
	const struct pfx_job *job = r->job;

	if (r->failed) {
		return 0;
	}
	if (r->n_prompt == 0) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "the prompt is empty");
	} else if (r->n_prompt >= e->info.context) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG, "prompt has %u tokens, the context is %u",
			r->n_prompt, e->info.context);
	} else if (r->n_prompt + 1ull > memory) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG,
			"prompt has %u tokens, the device memory holds %llu", r->n_prompt,
			(unsigned long long)memory);
	} else if (job->kind == PFX_JOB_SCORE && (job->from < 1 || job->from > r->n_prompt)) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "from: %u is not within 1..%u", job->from,
			r->n_prompt);
	}
	return !r->failed;
}

/* Opens the request's path. Returns 0 when it must wait. */
static int admit_one(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t limit = match_limit(r), reach;
	struct pfx_hit hit;

	pfx_cache_match(e->cache, r->space, r->tokens.v, limit, &hit);
	find_leader(e, r, hit.tokens, &reach);
	if (e->n_active > 0 && !has_room(e, r, reach > hit.tokens ? reach : hit.tokens)) {
		return 0;
	}
	if (pfx_path_open(e->cache, r->space, r->tokens.v, limit, NULL, &r->path) != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
		pfx_sched_end_fault(e, r);
		return 1;
	}
	pfx_list_remove(&r->link);
	e->n_waiting--;
	e->n_active++;
	if (r->admitted_ns == 0) {
		r->admitted_ns = pfx_clock_ns();
	}
	r->alone_retry = 0;
	r->unshared = r->job->no_store;
	/* Active stays ordered by age: a resumed request goes back to its place. */
	struct pfx_list *at = e->active.prev;
	while (at != &e->active &&
		pfx_container_of(at, struct pfx_request, link)->admission > r->admission) {
		at = at->prev;
	}
	pfx_list_insert_after(at, &r->link);
	r->state = PFX_REQUEST_FOLLOWING;
	lead_or_follow(e, r);
	return 1;
}

static void admit(struct pfx_engine *e)
{
	while (!pfx_list_empty(&e->waiting) && e->n_active < e->info.max_requests) {
		if (!admit_one(e, pfx_container_of(e->waiting.next, struct pfx_request, link))) {
			break;
		}
	}
}

/* Back to the head of the queue, in the order of age; what it computed stays as cache. */
static void preempt(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_list *at = &e->waiting;

	e->n.preempted++;
	release_followers(e, r);
	pfx_list_remove(&r->link);
	pfx_path_close(r->path);
	r->path = NULL;
	r->leader = NULL;
	r->step_rows = 0;
	r->copy.n = 0;
	r->state = PFX_REQUEST_QUEUED;
	e->n_active--;
	e->n_waiting++;
	while (at->next != &e->waiting &&
		pfx_container_of(at->next, struct pfx_request, link)->admission < r->admission) {
		at = at->next;
	}
	pfx_list_insert_after(at, &r->link);
}

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
	pfx_cache_match(e->cache, r->space, r->tokens.v, len_of(r), &hit);
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
			pfx_sched_end_fault(e, r);
			return 0;
		}
		youngest = pfx_container_of(e->active.prev, struct pfx_request, link);
		if (youngest != r) {
			preempt(e, youngest);
			continue;
		}
		if (e->n_active > 1) {
			preempt(e, r);
			return 0;
		}
		if (drop_partial_block(e, r)) {
			/* It has more to run now than was planned; the next turn sees to it. */
			return 0;
		}
		/* Alone with the whole memory: the reply has filled it. */
		if (r->n_reply > 0) {
			pfx_sched_end(e, r, PFX_FINISH_LENGTH);
		} else {
			pfx_request_fail(r, PFX_FAULT_INTERNAL, "no block is free");
			pfx_sched_end_fault(e, r);
		}
		return 0;
	}
}

/* Gives r up to `most` rows of this step. Returns how many it took. */
static uint32_t plan_one(struct pfx_engine *e, struct pfx_request *r, uint32_t most)
{
	uint32_t len = len_of(r), rows = (uint32_t)r->tokens.n - len, from = len;

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
	return r->n_reply > 0 && len_of(r) + 1 >= r->tokens.n;
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
		pfx_sched_end(e, r, PFX_FINISH_CANCELLED);
	} else if (!admissible(e, r)) {
		pfx_sched_end_fault(e, r);
	}
}

static struct pfx_event *flush(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_FLUSHED, job);
	struct pfx_flushed flushed;

	pfx_cache_flush(e->cache, NULL, &flushed);
	/* Who runs keeps its blocks, but nobody can follow it any more. */
	pfx_list_for(it, &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		r->unshared = 1;
		r->leader = NULL;
	}
	ev->flushed_device = flushed.blocks;
	ev->in_use = flushed.in_use;
	return ev;
}

static void run_control(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev;

	switch (r->job->kind) {
	case PFX_JOB_STATS:
		ev = pfx_event_new(PFX_EVENT_STATS, r->job);
		ev->report = pfx_report_stats(e);
		break;
	case PFX_JOB_CHECK:
		ev = pfx_event_new(PFX_EVENT_CHECK, r->job);
		ev->report = pfx_report_check(e);
		break;
	default:
		ev = flush(e, r->job);
		break;
	}
	ev->last = 1;
	pfx_request_leave(e, r, ev);
}

static int is_control(const struct pfx_job *job)
{
	return job->kind == PFX_JOB_STATS || job->kind == PFX_JOB_CHECK || job->kind == PFX_JOB_FLUSH;
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
		if (is_control(r->job)) {
			run_control(e, r);
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
			pfx_sched_end(e, r, PFX_FINISH_CANCELLED);
		} else if (r->deadline_ns != 0 && now > r->deadline_ns) {
			pfx_request_fail(r, PFX_FAULT_DEADLINE, "not done within %u ms",
				r->job->deadline_ms);
			pfx_sched_end_fault(e, r);
		}
	}
}

void *pfx_sched_main(void *engine)
{
	struct pfx_engine *e = engine;

	while (take_inbox(e)) {
		reap(e, &e->waiting, 0);
		reap(e, &e->active, 0);
		follow_all(e);
		admit(e);
		plan(e);
		pfx_step_run(e);
	}
	reap(e, &e->waiting, 1);
	reap(e, &e->active, 1);
	return NULL;
}
