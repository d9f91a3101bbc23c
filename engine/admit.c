/*
 * From the queue to the running: admission, following and starting, and the way back, which
 * is preemption. README.md has the rules by number.
 */
#include "engine/engine_priv.h"

#include <string.h>

#include "base/clock.h"

/*
 * The queue's look-ahead: so many of the first that wait, with so many tokens at most (a
 * match of 100k takes some 45 us), and not more often than this.
 */
#define AHEAD_MAX 8u
#define AHEAD_TOKENS 131072u
#define AHEAD_NS 20000000u

/* Tokens that a match may cover: what SCORE wants to see must be computed. */
static uint32_t match_limit(const struct pfx_request *r)
{
	return r->job->kind == PFX_JOB_SCORE ? r->job->from - 1 : (uint32_t)r->tokens.n;
}

uint32_t pfx_common_prefix(const uint32_t *a, const uint32_t *b, uint32_t n)
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

/* ---- starting and following ---- */

/* By the cache's clock. */
static double ms_ago(uint64_t ns)
{
	uint64_t now = pfx_clock_wall_ns();

	return ns == 0 ? -1 : now > ns ? pfx_ns_to_ms(now - ns) : 0;
}

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

/* Tokens up to len are there, and what follows is computed. */
static void set_miss(struct pfx_request *r, const struct pfx_hit *hit, uint32_t len)
{
	if (hit->end != PFX_END_WHOLE) {
		r->miss = miss_of(hit->end);
		r->evicted_ms_ago = ms_ago(hit->evicted_ns);
		/* Where a slower tier ends counts, also when nothing is copied from there. */
		r->miss_at_token = hit->tokens > len ? hit->tokens : len;
	} else if (hit->tier_tokens[PFX_TIER_DEVICE] <= len) {
		r->miss = PFX_MISS_NOT_COPIED;
		r->miss_at_token = len;
	}
}

/*
 * The request has what others computed and goes on by itself. When nothing is left to run,
 * the logits kept at the prompt's end answer at once; without them its last token is run
 * again (its KV stays as it is). May end the request.
 */
static void start_running(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t limit = match_limit(r), len = pfx_request_len(r);
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
		if (len < limit) {
			set_miss(r, &hit, len);
		}
	}
	if (whole && hit.tokens == limit && hit.mark != PFX_MARK_NONE) {
		pfx_usage_cached(e, r, r->n_prompt);
		e->n.kept_hits++;
		pfx_reply_logits(e, r, pfx_keep_at(e->keep, hit.mark));
		return;
	}
	pfx_usage_cached(e, r, whole ? len - 1 : len);
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
		n = pfx_common_prefix(q->tokens.v, r->tokens.v, n);
		if (n > *follow_to && pfx_request_len(q) < n) {
			best = q;
			*follow_to = n;
		}
	}
	return best;
}

/*
 * Follows somebody if there is somebody to follow, else fetches what a slower tier has, else
 * runs. May end the request.
 */
static void lead_or_follow(struct pfx_engine *e, struct pfx_request *r)
{
	r->leader = find_leader(e, r, pfx_request_len(r), &r->follow_to);
	if (r->leader == NULL) {
		if (pfx_fetch_begin(e, r, match_limit(r))) {
			return;
		}
		pfx_path_forgo(r->path);
		start_running(e, r);
		return;
	}
	r->state = PFX_REQUEST_FOLLOWING;
	pfx_usage_cached(e, r, pfx_request_len(r));
}

static void follow(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t before = pfx_request_len(r);
	int64_t len = pfx_path_follow(r->path, r->tokens.v, match_limit(r));

	if (len < 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
		pfx_end_fault(e, r);
		return;
	}
	if (len > before) {
		e->n.attached += (uint64_t)len - before;
		r->attached += (uint32_t)len - before;
	}
	if (r->leader != NULL && len < r->follow_to && pfx_request_len(r->leader) < r->follow_to) {
		pfx_usage_cached(e, r, (uint32_t)len);
		return;
	}
	/* There, or the leader is gone, or what it computes is not published. */
	lead_or_follow(e, r);
}

void pfx_admit_fetched(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t before = pfx_request_len(r);
	int64_t len = before;

	r->state = PFX_REQUEST_FOLLOWING;
	if (e->starving == r->admission) {
		/* It may follow somebody now; what it lacks it asks for again. */
		e->starving = 0;
	}
	if (r->fetch_torn) {
		/* With blocks behind a gap a path cannot follow: it fills them itself. */
		pfx_path_forgo(r->path);
		start_running(e, r);
		return;
	}
	if (pfx_path_reach(r->path) > before) {
		len = pfx_path_follow(r->path, r->tokens.v, match_limit(r));
	}
	if (len < 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
		pfx_end_fault(e, r);
		return;
	}
	/* Went as far as was worth it; only what others brought meanwhile is looked at anew. */
	r->no_fetch = len == before;
	lead_or_follow(e, r);
}

void pfx_admit_followers(struct pfx_engine *e)
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
	const struct pfx_tier_stats *t = &s.tier[PFX_TIER_DEVICE];
	uint64_t need, evictable, leased, held;

	pfx_cache_stats(e->cache, &s);
	need = blocks_for(e, r->tokens.n + 1) - have / e->info.block_tokens + e->n_active;
	/* Nor are those that leases hold; what is both counts once. */
	leased = pfx_lease_covers(e, r) / e->info.block_tokens;
	leased = t->leased > leased ? t->leased - leased : 0;
	held = blocks_for(e, have) + leased;
	evictable = t->cached > held ? t->cached - held : 0;
	return need <= t->free + evictable;
}

/* A sentence that names the field. */
static const char *what_is_empty(const struct pfx_job *job)
{
	switch (job->prompt) {
	case PFX_PROMPT_CHAT: return "messages: the template makes an empty prompt of them";
	case PFX_PROMPT_TOKENS: return "tokens is empty";
	case PFX_PROMPT_TEXT: return "prompt is empty";
	case PFX_PROMPT_NONE: break;
	}
	return job->session != NULL ? "session is empty, and the request brings no prompt"
		: "prefix is empty, and the request brings no prompt";
}

int pfx_admit_possible(struct pfx_engine *e, struct pfx_request *r)
{
	uint64_t memory = (uint64_t)e->info.n_blocks * e->info.block_tokens;
	const struct pfx_job *job = r->job;

	if (r->failed) {
		return 0;
	}
	if (r->n_prompt == 0) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "%s", what_is_empty(job));
	} else if (r->n_prompt >= e->info.context) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG, "prompt has %u tokens, the context is %u",
			r->n_prompt, e->info.context);
	} else if (r->n_prompt + 1ull > memory) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG,
			"prompt has %u tokens, the device memory holds %llu", r->n_prompt,
			(unsigned long long)memory);
	} else if (job->kind == PFX_JOB_PIN || job->pin) {
		pfx_lease_possible(e, r);
	} else if (job->kind == PFX_JOB_SCORE && (job->from < 1 || job->from > r->n_prompt)) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "from: %u is not within 1..%u", job->from,
			r->n_prompt);
	}
	return !r->failed;
}

/* Room for all that the reply may come to, so that its steps need not ask for any. */
static void expect_reply(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t most = e->info.context - r->n_prompt;

	if (r->job->kind == PFX_JOB_GENERATE) {
		most = r->job->max_tokens < most ? r->job->max_tokens : most;
		pfx_request_expect_tokens(r, r->n_prompt + (size_t)most);
	}
	pfx_path_expect(r->path, (uint32_t)r->tokens.cap);
}

/* Opens the request's path. Returns 0 when it must wait. */
static int admit_one(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t limit = match_limit(r), reach, have;
	struct pfx_hit hit;

	pfx_cache_match(e->cache, r->space, r->tokens.v, limit, &hit);
	/* What the slower tiers have needs blocks as well. */
	have = hit.tier_tokens[PFX_TIER_DEVICE];
	find_leader(e, r, have, &reach);
	if (e->n_active > 0 && !has_room(e, r, reach > have ? reach : have)) {
		return 0;
	}
	if (pfx_path_open(e->cache, r->space, r->tokens.v, limit, NULL, &r->path) != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
		pfx_end_fault(e, r);
		return 1;
	}
	expect_reply(e, r);
	pfx_list_remove(&r->link);
	e->n_waiting--;
	e->n_active++;
	if (r->admitted_ns == 0) {
		pfx_lease_hit(e, r);
		r->admitted_ns = pfx_clock_ns();
		r->at_device = have;
		r->at_host = have + hit.tier_tokens[PFX_TIER_HOST];
		r->at_disk = r->at_host + hit.tier_tokens[PFX_TIER_DISK];
	}
	r->alone_retry = 0;
	r->no_fetch = 0;
	e->progress++;
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

void pfx_admit(struct pfx_engine *e)
{
	while (!pfx_list_empty(&e->waiting) && e->n_active < e->info.max_requests &&
		e->starving == 0) {
		if (!admit_one(e, pfx_container_of(e->waiting.next, struct pfx_request, link))) {
			break;
		}
	}
}

void pfx_admit_look_ahead(struct pfx_engine *e)
{
	struct pfx_request *first[AHEAD_MAX];
	struct pfx_cache_stats s;
	uint64_t now = pfx_clock_ns();
	uint32_t n = 0, tokens = 0;

	if (e->n_waiting == 0 || now - e->looked_ns < AHEAD_NS) {
		return;
	}
	pfx_cache_stats(e->cache, &s);
	if (s.tier[PFX_TIER_DEVICE].free >= blocks_for(e, e->info.chunk_tokens) + e->n_active) {
		return;
	}
	e->looked_ns = now;
	pfx_list_for(it, &e->waiting) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if (n == AHEAD_MAX || (tokens += r->n_prompt) > AHEAD_TOKENS) {
			break;
		}
		first[n++] = r;
	}
	/* The next one last, so that it is the youngest. */
	while (n-- > 0) {
		pfx_cache_touch(e->cache, first[n]->space, first[n]->tokens.v, match_limit(first[n]));
	}
}

void pfx_admit_preempt(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_list *at = &e->waiting;

	e->n.preempted++;
	r->preempted++;
	pfx_end_release_followers(e, r);
	e->progress++;
	if (e->starving == r->admission) {
		e->starving = 0;
	}
	pfx_list_remove(&r->link);
	pfx_fetch_abandon(e, r);
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
