/* What the engine says about itself: stats and check. Runs on the engine thread. */
#include "engine/engine_priv.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"

static json_int_t num(uint64_t n)
{
	return (json_int_t)n;
}

static json_t *tier_report(const struct pfx_engine *e)
{
	struct pfx_cache_stats s;
	const struct pfx_tier_stats *t = &s.tier[PFX_TIER_DEVICE];
	uint64_t block_bytes = e->info.kv_bytes_per_token * e->info.block_tokens;
	json_t *device, *host, *disk;

	pfx_cache_stats(e->cache, &s);
	device = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "blocks", num(t->blocks), "free",
		num(t->free), "cached", num(t->cached), "running", num(t->running), "pinned",
		num(t->pinned), "leased", num(t->leased), "bytes", num(t->blocks * block_bytes));
	/* The slower tiers hold nothing in this version. */
	host = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "blocks", 0, "free", 0, "cached", 0,
		"running", 0, "pinned", 0, "leased", 0, "bytes", 0);
	disk = json_pack("{s:i,s:i}", "records", 0, "bytes", 0);
	return json_pack("{s:o,s:o,s:o}", "device", device, "host", host, "disk", disk);
}

static json_t *cache_report(const struct pfx_engine *e)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(e->cache, &s);
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "spaces", num(s.spaces),
		"nodes", num(s.nodes), "tokens",
		num(s.tokens), "index_bytes", num(s.index_bytes), "logits_kept", num(s.marks),
		"logits_slots", num(pfx_keep_slots(e->keep)), "evicted_blocks", num(s.evicted_blocks),
		"evicted_logits", num(s.evicted_marks), "copied_blocks", num(s.copied_blocks),
		"duplicate_blocks", num(s.duplicate_blocks), "splits", num(s.splits));
}

json_t *pfx_report_stats(struct pfx_engine *e)
{
	const struct pfx_engine_counters *n = &e->n;
	json_t *tokens, *requests, *steps;

	tokens = json_pack("{s:I,s:I,s:{s:I,s:I,s:I},s:I,s:I,s:I}", "prompt", num(n->prompt),
		"computed", num(n->computed), "cached", "device", num(n->cached_device), "host",
		num(n->cached_host), "disk", num(n->cached_disk), "generated", num(n->generated),
		"recomputed", num(n->recomputed), "attached", num(n->attached));
	pthread_mutex_lock(&e->lock);
	requests = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "running", num(e->n_active),
		"queued", num(e->n_waiting + e->n_text + e->n_inbox), "done", num(n->done),
		"cancelled", num(n->cancelled), "failed", num(n->failed + e->n_refused), "refused",
		num(e->n_refused), "preempted", num(n->preempted), "kept_hits", num(n->kept_hits));
	pthread_mutex_unlock(&e->lock);
	steps = json_pack("{s:I,s:I,s:f}", "count", num(n->steps), "rows", num(n->rows), "us_per_row",
		e->ns_per_row / 1e3);
	return json_pack("{s:f,s:I,s:o,s:o,s:o,s:o,s:o}", "uptime_s",
		(double)(pfx_clock_ns() - e->opened_ns) / 1e9, "block_tokens",
		num(e->info.block_tokens), "tokens", tokens, "tiers", tier_report(e), "requests",
		requests, "steps", steps, "cache", cache_report(e));
}

static void add_problem(void *arg, const char *problem)
{
	json_array_append_new(arg, json_string(problem));
}

/* The engine's own invariants, beside the cache's. */
static void check_requests(struct pfx_engine *e, json_t *problems)
{
	uint32_t n_active = 0, n_waiting = 0;
	uint64_t last = 0;
	char text[160];

	pfx_list_for(it, &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		n_active++;
		if (r->admission <= last) {
			add_problem(problems, "running requests are not ordered by age");
		}
		last = r->admission;
		if (r->path == NULL || r->state == PFX_REQUEST_QUEUED) {
			add_problem(problems, "a running request holds no path");
			continue;
		}
		if (pfx_path_len(r->path) > r->tokens.n) {
			add_problem(problems, "a request has more KV than tokens");
		}
		if (r->leader != NULL && r->leader->admission >= r->admission) {
			add_problem(problems, "a request follows a younger one");
		}
		if (r->usage.cached_device + r->usage.computed_tokens != r->counted) {
			snprintf(text, sizeof(text), "request %llu: usage does not add up",
				(unsigned long long)r->job->number);
			add_problem(problems, text);
		}
	}
	pfx_list_for(it, &e->waiting) {
		n_waiting++;
		if (pfx_container_of(it, struct pfx_request, link)->path != NULL) {
			add_problem(problems, "a waiting request holds a path");
		}
	}
	if (n_active != e->n_active || n_waiting != e->n_waiting) {
		add_problem(problems, "the numbers of running and waiting requests are wrong");
	}
	if (e->n.prompt != e->n.computed + e->n.cached_device + e->n.cached_host + e->n.cached_disk) {
		add_problem(problems, "prompt tokens are not the sum of cached and computed");
	}
}

json_t *pfx_report_check(struct pfx_engine *e)
{
	json_t *problems = json_array();

	pfx_cache_check(e->cache, add_problem, problems);
	check_requests(e, problems);
	return json_pack("{s:b,s:o}", "ok", json_array_size(problems) == 0, "problems", problems);
}
