/* What the engine says about itself: stats and check. Runs on the engine thread. */
#include "engine/engine_priv.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/profile.h"

static json_int_t num(uint64_t n)
{
	return (json_int_t)n;
}

/* Adds a number to an object. */
static void put(json_t *o, const char *key, uint64_t n)
{
	json_object_set_new(o, key, json_integer(num(n)));
}

/* What all tiers have. */
static json_t *blocks_report(const struct pfx_engine *e, const struct pfx_tier_stats *s)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "blocks", num(s->blocks), "free",
		num(s->free), "cached", num(s->cached), "running", num(s->running), "pinned",
		num(s->pinned), "leased", num(s->leased), "moving", num(s->moving), "bytes",
		num(s->blocks * e->info.kv_bytes_per_token * e->info.block_tokens), "evicted",
		num(s->evicted));
}

json_t *pfx_report_store(struct pfx_engine *e)
{
	const struct pfx_tiers *t = &e->tiers;
	struct pfx_writer_stats w = { 0 };
	struct pfx_store_info i;
	json_t *o = json_object();

	pfx_store_info(t->store, &i);
	if (t->writer != NULL) {
		pfx_writer_stats(t->writer, &w);
	}
	json_object_set_new(o, "path", e->opts.store_path == NULL ? json_null()
		: json_string(e->opts.store_path));
	json_object_set_new(o, "read_only", json_boolean(i.read_only));
	json_object_set_new(o, "broken", json_boolean(i.broken));
	json_object_set_new(o, "set_aside", json_boolean(t->opened.set_aside));
	put(o, "dropped_rows", t->opened.dropped);
	put(o, "restored", t->restored);
	put(o, "not_restored", t->not_restored);
	put(o, "records", i.records);
	put(o, "records_max", t->n_records);
	put(o, "tokens", i.tokens);
	put(o, "bytes", i.bytes);
	put(o, "bytes_max", i.bytes_max);
	put(o, "file_bytes", i.file_bytes);
	put(o, "gets", i.gets);
	put(o, "hits", i.hits);
	put(o, "misses", i.misses);
	put(o, "damaged", i.damaged);
	put(o, "failed_gets", i.failed_gets);
	put(o, "puts", i.puts);
	put(o, "written", i.written);
	put(o, "duplicates", i.duplicates);
	put(o, "replaced", i.replaced);
	put(o, "failed_puts", i.failed_puts);
	put(o, "evicted", i.evicted);
	put(o, "deleted", i.deleted);
	put(o, "syncs", i.syncs);
	put(o, "batches", w.batches);
	put(o, "queued", w.queued);
	return o;
}

static json_t *disk_report(struct pfx_engine *e, const struct pfx_tier_stats *s)
{
	const struct pfx_tiers *t = &e->tiers;
	struct pfx_store_info i = { 0 };
	json_t *o;

	if (t->store != NULL) {
		pfx_store_info(t->store, &i);
	}
	o = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "records", num(s->blocks - s->free), "bytes",
		num(i.bytes), "records_max", num(t->n_records), "bytes_max", num(i.bytes_max), "leased",
		num(s->leased), "moving", num(s->moving), "evicted", num(s->evicted));
	put(o, "saves", t->saves);
	put(o, "failed_saves", t->failed_saves);
	put(o, "loads", t->loads);
	put(o, "missed_loads", t->missed_loads);
	put(o, "failed_loads", t->failed_loads);
	put(o, "late", t->late);
	put(o, "deletes", t->deletes);
	put(o, "failed_deletes", t->failed_deletes);
	put(o, "damaged", i.damaged + (uint64_t)t->opened.set_aside + t->opened.dropped);
	json_object_set_new(o, "read_only", json_boolean(i.read_only));
	json_object_set_new(o, "broken", json_boolean(i.broken));
	return o;
}

static json_t *tier_report(struct pfx_engine *e)
{
	const struct pfx_tiers *t = &e->tiers;
	struct pfx_mover_rates rates = { 0 };
	struct pfx_cache_stats s;
	json_t *device, *host, *disk;

	pfx_cache_stats(e->cache, &s);
	if (t->mover != NULL) {
		pfx_mover_rates(t->mover, &rates);
	}
	device = blocks_report(e, &s.tier[PFX_TIER_DEVICE]);
	host = blocks_report(e, &s.tier[PFX_TIER_HOST]);
	put(host, "spills", t->spills);
	put(host, "failed_spills", t->failed_spills);
	put(host, "fetches", t->fetches);
	put(host, "failed_fetches", t->failed_fetches);
	put(host, "computed_instead", t->computed_instead);
	json_object_set_new(host, "fetch_us_per_block", json_real(rates.fetch_ns_per_block / 1e3));
	disk = disk_report(e, &s.tier[PFX_TIER_DISK]);
	json_object_set_new(disk, "load_us_per_block", json_real(rates.load_ns_per_block / 1e3));
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

static json_t *text_report(const struct pfx_engine *e)
{
	struct pfx_pieces_stats s;

	pfx_pieces_stats(e->pieces, &s);
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "pieces", num(s.n), "bytes", num(s.bytes),
		"bytes_max", num(s.bytes_max), "hits", num(s.hits), "misses", num(s.misses), "hit_bytes",
		num(s.hit_bytes), "evicted", num(s.evicted));
}

static json_t *profile_report(struct pfx_engine *e)
{
	const struct pfx_profile *p = pfx_model_profile(e->model);
	json_t *report = json_object();

	for (int k = 0; k < PFX_N_STEP_KINDS; k++) {
		const struct pfx_step_times *t = &p->kinds[k];
		json_t *phases = json_object();
		for (int i = 0; i < PFX_N_PHASES; i++) {
			json_object_set_new(phases, pfx_phase_name(i), json_pack("{s:f,s:f}", "ms",
				pfx_ns_to_ms(t->phases[i].ns), "waited_ms",
				pfx_ns_to_ms(t->phases[i].waited_ns)));
		}
		json_object_set_new(report, pfx_step_kind_name(k), json_pack("{s:I,s:I,s:o}", "steps",
			num(t->steps), "rows", num(t->rows), "phases", phases));
	}
	return report;
}

json_t *pfx_report_stats(struct pfx_engine *e)
{
	const struct pfx_engine_counters *n = &e->n;
	json_t *tokens, *requests, *steps, *report, *life;

	tokens = json_pack("{s:I,s:I,s:{s:I,s:I,s:I},s:I,s:I,s:I}", "prompt", num(n->prompt),
		"computed", num(n->computed), "cached", "device", num(n->cached_device), "host",
		num(n->cached_host), "disk", num(n->cached_disk), "generated", num(n->generated),
		"recomputed", num(n->recomputed), "attached", num(n->attached));
	pthread_mutex_lock(&e->lock);
	requests = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "running", num(e->n_active),
		"queued", num(e->n_waiting + e->n_text + e->n_inbox + e->n_turns_waiting), "done", num(n->done),
		"cancelled", num(n->cancelled), "failed", num(n->failed + e->n_refused), "refused",
		num(e->n_refused), "preempted", num(n->preempted), "kept_hits", num(n->kept_hits));
	pthread_mutex_unlock(&e->lock);
	steps = json_pack("{s:I,s:I,s:f}", "count", num(n->steps), "rows", num(n->rows), "us_per_row",
		e->ns_per_row / 1e3);
	report = json_pack("{s:f,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "uptime_s",
		(double)(pfx_clock_ns() - e->opened_ns) / 1e9, "block_tokens",
		num(e->info.block_tokens), "tokens", tokens, "tiers", tier_report(e), "requests",
		requests, "steps", steps, "cache", cache_report(e), "text_cache", text_report(e),
		"profile", profile_report(e));
	life = pfx_life_stats(e);
	json_object_update(report, life);
	json_decref(life);
	return report;
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
		if (r->state != PFX_REQUEST_FETCHING ? !pfx_list_empty(&r->orders) || r->fetch_to != 0
			: r->fetch_to > r->tokens.n || e->tiers.mover == NULL) {
			add_problem(problems, "a request waits for copies that it has no use for");
		}
		if (r->leader != NULL && r->leader->admission >= r->admission) {
			add_problem(problems, "a request follows a younger one");
		}
		if (r->usage.cached_device + r->usage.cached_host + r->usage.cached_disk +
			r->usage.computed_tokens != r->counted) {
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
