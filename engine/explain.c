/*
 * explain: why a prefix ended where it did. By the number of a request, running or among the
 * last ones (facts.h); or by a prompt: what would be found of it now, where that lies, and
 * what would come of the rest.
 */
#include "config.h"

#include "engine/view.h"

#include <string.h>

#include "base/clock.h"

#define NODES_MAX 64u      /* of the way that are listed */
#define KIDS_MAX 4u        /* tokens with which the cached prefix goes on instead */
#define SPACES_MAX 1024u   /* other spaces that are asked */
#define WALK_MAX 50000u    /* nodes that are looked at for all of that */
#define TEXT_TOKENS 12u    /* on both sides of where it ends */

static json_t *ms_or_null(uint64_t from, uint64_t to)
{
	return from == 0 || to == 0 ? json_null() : json_real(to > from ? pfx_ns_to_ms(to - from) : 0);
}

static void add_span(json_t *spans, const char *tier, uint64_t *at, uint64_t n)
{
	if (n > 0) {
		json_array_append_new(spans, json_pack("{s:s,s:I,s:I}", "tier", tier, "from",
			(json_int_t)*at, "to", (json_int_t)(*at + n)));
	}
	*at += n;
}

static json_t *message_or_null(int64_t message)
{
	return message < 0 ? json_null() : json_integer(message);
}

/* ---- a request ---- */

static json_t *past_miss(const struct pfx_engine *e, const struct pfx_facts *f, int admin)
{
	json_t *o;

	if (f->miss == PFX_MISS_NONE) {
		return json_null();
	}
	o = json_pack("{s:s,s:I,s:o,s:I,s:o}", "reason", pfx_miss_name(f->miss), "at_token",
		(json_int_t)f->miss_at_token, "message", message_or_null(f->miss_message), "byte",
		(json_int_t)f->miss_byte, "evicted_ms_ago", f->evicted_ms_ago < 0 ? json_null()
		: json_real(f->evicted_ms_ago));
	if (f->miss == PFX_MISS_NOT_COPIED) {
		json_object_set_new(o, "not_copied", json_true());
	}
	if (f->miss_token != UINT32_MAX) {
		json_object_set_new(o, "token", json_integer(f->miss_token));
		if (admin) {
			json_object_set_new(o, "text", pfx_view_text(e, &f->miss_token, 1));
		}
	}
	return o;
}

static json_t *timing_json(const struct pfx_facts *f, uint64_t now)
{
	return json_pack("{s:o,s:o,s:o,s:o,s:o}", "queue_ms", ms_or_null(f->received_ns,
		f->admitted_ns), "prefill_ms", ms_or_null(f->admitted_ns, f->first_ns), "ttft_ms",
		ms_or_null(f->received_ns, f->first_ns), "total_ms", ms_or_null(f->received_ns,
		f->ended_ns != 0 ? f->ended_ns : now), "ended_ms_ago", ms_or_null(f->ended_ns, now));
}

static json_t *spans_of(const struct pfx_facts *f)
{
	const struct pfx_usage *u = &f->usage;
	uint32_t attached = f->attached < u->cached_device ? f->attached : u->cached_device;
	json_t *spans = json_array();
	uint64_t at = 0;

	/* What others were computing at the time lies behind what was there. */
	add_span(spans, "device", &at, u->cached_device - attached);
	add_span(spans, "host", &at, u->cached_host);
	add_span(spans, "disk", &at, u->cached_disk);
	add_span(spans, "attached", &at, attached);
	add_span(spans, "computed", &at, u->computed_tokens);
	return spans;
}

static json_t *facts_json(const struct pfx_engine *e, const struct pfx_facts *f,
	const char *state, int admin)
{
	const struct pfx_usage *u = &f->usage;
	uint64_t now = pfx_clock_ns();
	json_t *o = json_pack("{s:I,s:s,s:s}", "request", (json_int_t)f->number, "op",
		pfx_view_op(f->kind), "state", state);

	json_object_set_new(o, "finish", f->ended_ns == 0 || f->failed ? json_null()
		: json_string(pfx_finish_name(f->finish)));
	json_object_set_new(o, "error", f->ended_ns != 0 && f->failed
		? json_string(pfx_fault_name(f->fault)) : json_null());
	json_object_set_new(o, "namespace", pfx_name_json(&f->owner.space));
	json_object_set_new(o, "salt", pfx_name_json(&f->owner.salt));
	json_object_set_new(o, "prompt_tokens", json_integer(f->n_prompt));
	json_object_set_new(o, "cached_tokens", json_integer((json_int_t)u->cached_device +
		u->cached_host + u->cached_disk));
	json_object_set_new(o, "computed_tokens", json_integer(u->computed_tokens));
	json_object_set_new(o, "completion_tokens", json_integer(u->completion_tokens));
	json_object_set_new(o, "spans", spans_of(f));
	json_object_set_new(o, "preempted", json_integer(f->preempted));
	json_object_set_new(o, "recomputed_tokens", json_integer(f->recomputed));
	json_object_set_new(o, "miss", past_miss(e, f, admin));
	json_object_set_new(o, "timing", timing_json(f, now));
	return o;
}

static const struct pfx_request *find_in(const struct pfx_list *list, uint64_t number)
{
	pfx_list_for(it, list) {
		const struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);

		if (r->job->number == number) {
			return r;
		}
	}
	return NULL;
}

/* Requests of other namespaces and salts are the admin's to see. */
static int may_see(struct pfx_engine *e, const struct pfx_job *job, const struct pfx_facts *f)
{
	struct pfx_name space, salt;
	struct pfx_space *own;
	uint64_t key;

	if (job->admin) {
		return 1;
	}
	if (pfx_sched_space(e, job, &own, &key) != 0) {
		return 0;
	}
	pfx_space_release(own);
	/* The key is a digest of both: the names, as far as they are kept, must agree besides. */
	pfx_name_set(&space, job->space, job->space_len);
	pfx_name_set(&salt, job->salt, job->salt_len);
	return f->owner.key == key && pfx_name_equal(&f->owner.space, &space) &&
		pfx_name_equal(&f->owner.salt, &salt);
}

static struct pfx_event *explain_request(struct pfx_engine *e, const struct pfx_job *job,
	uint64_t number)
{
	const struct pfx_facts *past = pfx_facts_find(e->observer->facts, number);
	const struct pfx_request *r = find_in(&e->active, number);
	struct pfx_facts now;

	r = r != NULL ? r : find_in(&e->waiting, number);
	if (r != NULL) {
		pfx_observe_facts(r, &now);
		past = &now;
	}
	if (past == NULL || !may_see(e, job, past)) {
		return pfx_fault_event(job, PFX_FAULT_NOT_FOUND,
			"no request of that number is running or among the last ones");
	}
	return pfx_view_report(job, "explain", facts_json(e, past, r != NULL ? pfx_view_state(r)
		: past->failed ? "failed" : "done", job->admin));
}

/* ---- a prompt ---- */

/* What the walk along the prompt gathers: the nodes on the way, and what follows its end. */
struct way {
	const uint32_t *tokens;
	uint32_t n;     /* tokens to be matched */
	uint32_t match; /* of them, found */
	json_t *nodes;
	uint32_t left_out, n_walked;
	uint64_t now; /* by the cache's clock, which is the wall's */
	uint32_t others[KIDS_MAX][TEXT_TOKENS]; /* how the cache goes on where the match ends */
	uint32_t n_other[KIDS_MAX], n_others;
};

static uint32_t common(const struct way *w, const struct pfx_node_view *v)
{
	uint32_t n = w->n - v->start < v->n_tokens ? w->n - v->start : v->n_tokens, i = 0;

	while (i < n && v->tokens[i] == w->tokens[v->start + i]) {
		i++;
	}
	return i;
}

static void note_other(struct way *w, const struct pfx_node_view *v, uint32_t from)
{
	uint32_t n = v->n_tokens - from < TEXT_TOKENS ? v->n_tokens - from : TEXT_TOKENS;

	if (n > 0 && w->n_others < KIDS_MAX) {
		memcpy(w->others[w->n_others], v->tokens + from, n * sizeof(*v->tokens));
		w->n_other[w->n_others++] = n;
	}
}

static int walk_way(void *arg, const struct pfx_node_view *v)
{
	struct way *w = arg;
	uint32_t n;

	if (++w->n_walked > WALK_MAX) {
		return -1;
	}
	if (v->start > w->match || v->start > w->n) {
		return 1;
	}
	n = common(w, v);
	if (v->start + n == w->match) {
		note_other(w, v, n);
	}
	/* A sibling that shares a part of its first block is not on the way. */
	if (n == 0 || (n < v->n_tokens && v->start + n < w->match)) {
		return 1;
	}
	if (json_array_size(w->nodes) < NODES_MAX) {
		json_array_append_new(w->nodes, json_pack(
			"{s:I,s:I,s:I,s:{s:I,s:I,s:I,s:I},s:I,s:I,s:I,s:o}", "start", (json_int_t)v->start,
			"tokens", (json_int_t)v->n_tokens, "matched", (json_int_t)n, "blocks", "all",
			(json_int_t)v->blocks, "device", (json_int_t)v->device, "host", (json_int_t)v->host,
			"disk", (json_int_t)v->disk, "hits", (json_int_t)v->hits, "pins", (json_int_t)v->pins,
			"leases", (json_int_t)v->leases, "age_ms", v->used_ns == 0 ? json_null()
			: json_real(v->used_ns < w->now ? pfx_ns_to_ms(w->now - v->used_ns) : 0)));
	} else {
		w->left_out++;
	}
	return n < v->n_tokens ? 1 : 0;
}

/* Spaces, for asking them one by one after the walk, during which nothing may be asked. */
struct spaces {
	struct pfx_space *list[SPACES_MAX];
	uint32_t n, n_walked;
};

static int note_space(void *arg, const struct pfx_node_view *v)
{
	struct spaces *s = arg;

	if (++s->n_walked > WALK_MAX) {
		return -1;
	}
	if (s->n == 0 || s->list[s->n - 1] != v->space) {
		if (s->n == SPACES_MAX) {
			return -1;
		}
		s->list[s->n++] = v->space;
	}
	return 1;
}

/* Other spaces that hold more of the prompt than its own does. */
static json_t *elsewhere(struct pfx_engine *e, const struct pfx_space *own,
	const struct pfx_request *r, uint32_t more_than)
{
	struct spaces s = { .n = 0 };
	json_t *list = json_array();
	struct pfx_hit hit;

	pfx_cache_visit(e->cache, NULL, note_space, &s);
	for (uint32_t i = 0; i < s.n; i++) {
		json_t *o;

		if (s.list[i] == own) {
			continue;
		}
		pfx_cache_match(e->cache, s.list[i], r->tokens.v, (uint32_t)r->tokens.n, &hit);
		if (hit.tokens <= more_than) {
			continue;
		}
		o = json_object();
		pfx_view_name_space(e, s.list[i], o);
		json_object_set_new(o, "tokens", json_integer(hit.tokens));
		json_array_append_new(list, o);
	}
	return list;
}

static const char *reason_of(enum pfx_end end)
{
	return pfx_miss_name(end == PFX_END_EVICTED ? PFX_MISS_EVICTED
		: end == PFX_END_DIVERGED ? PFX_MISS_DIVERGED : PFX_MISS_NEVER_SEEN);
}

/* Why it ends there, and what stands there on both sides. */
static json_t *prompt_miss(const struct pfx_engine *e, const struct pfx_request *r,
	const struct pfx_hit *hit, const struct way *w)
{
	uint32_t at = hit->tokens, n = (uint32_t)r->tokens.n - at;
	int64_t message;
	uint64_t byte;
	json_t *o, *others;

	if (hit->end == PFX_END_WHOLE) {
		return json_null();
	}
	pfx_miss_locate(e, r, at, &message, &byte);
	o = json_pack("{s:s,s:I,s:o,s:I,s:o,s:I}", "reason", reason_of(hit->end), "at_token",
		(json_int_t)at, "message", message_or_null(message), "byte", (json_int_t)byte,
		"evicted_ms_ago", hit->end == PFX_END_EVICTED ? ms_or_null(hit->evicted_ns, w->now)
		: json_null(), "token", (json_int_t)r->tokens.v[at]);
	if (!r->job->admin) {
		return o;
	}
	json_object_set_new(o, "text", pfx_view_text(e, r->tokens.v + at,
		n < TEXT_TOKENS ? n : TEXT_TOKENS));
	others = json_array();
	for (uint32_t i = 0; i < w->n_others; i++) {
		json_array_append_new(others, json_pack("{s:I,s:o}", "token",
			(json_int_t)w->others[i][0], "text",
			pfx_view_text(e, w->others[i], w->n_other[i])));
	}
	json_object_set_new(o, "cached_instead", others);
	return o;
}

/*
 * A span in a slower tier: what copying it would take and what computing it, by what was
 * measured; what was not (null) is taken to be fast, as it is when requests choose.
 */
static json_t *copy_or_compute(const struct pfx_engine *e, const char *tier, uint32_t tokens,
	double ns_per_block)
{
	uint32_t blocks = (tokens + e->info.block_tokens - 1) / e->info.block_tokens;
	double copy_ms = blocks * ns_per_block / 1e6, compute_ms = tokens * e->ns_per_row / 1e6;

	return json_pack("{s:s,s:I,s:o,s:o,s:s}", "tier", tier, "tokens", (json_int_t)tokens,
		"copy_ms", ns_per_block == 0 ? json_null() : json_real(copy_ms), "compute_ms",
		e->ns_per_row == 0 ? json_null() : json_real(compute_ms), "better",
		e->ns_per_row == 0 || copy_ms < compute_ms ? "copy" : "compute");
}

static json_t *slower_tiers(const struct pfx_engine *e, const struct pfx_hit *hit)
{
	json_t *list = json_array();
	struct pfx_mover_rates rates;

	if (e->tiers.mover == NULL) {
		return list;
	}
	pfx_mover_rates(e->tiers.mover, &rates);
	if (hit->tier_tokens[PFX_TIER_HOST] > 0) {
		json_array_append_new(list, copy_or_compute(e, "host", hit->tier_tokens[PFX_TIER_HOST],
			rates.fetch_ns_per_block));
	}
	if (hit->tier_tokens[PFX_TIER_DISK] > 0) {
		json_array_append_new(list, copy_or_compute(e, "disk", hit->tier_tokens[PFX_TIER_DISK],
			rates.load_ns_per_block));
	}
	return list;
}

/* What computing the rest would take, by what rows have cost so far; null: not known yet. */
static json_t *estimate(const struct pfx_engine *e, const struct pfx_hit *hit, uint32_t n)
{
	uint32_t rows = n - hit->tokens;

	if (rows == 0 && hit->mark == PFX_MARK_NONE) {
		rows = 1; /* the last token's logits were not kept */
	}
	return json_pack("{s:I,s:o,s:o}", "compute_tokens", (json_int_t)rows, "compute_ms",
		e->ns_per_row == 0 && rows > 0 ? json_null() : json_real(rows * e->ns_per_row / 1e6),
		"slower_tiers", slower_tiers(e, hit));
}

/* The running request with the most of the prompt beyond what is cached: it would be followed. */
static json_t *in_flight(struct pfx_engine *e, const struct pfx_space *space,
	const struct pfx_request *r, uint32_t have)
{
	uint64_t number = 0;

	pfx_list_for(it, &e->active) {
		const struct pfx_request *q = pfx_container_of(it, struct pfx_request, link);
		uint32_t same;

		if (q->space != space || q->unshared) {
			continue;
		}
		same = pfx_common_prefix(q->tokens.v, r->tokens.v,
			(uint32_t)(q->tokens.n < r->tokens.n ? q->tokens.n : r->tokens.n));
		if (same > have) {
			have = same;
			number = q->job->number;
		}
	}
	return number == 0 ? json_null() : json_pack("{s:I,s:I}", "request", (json_int_t)number,
		"tokens", (json_int_t)have);
}

static struct pfx_event *explain_prompt(struct pfx_engine *e, struct pfx_request *r)
{
	static const char *const tiers[] = { "device", "host", "disk" };
	uint32_t n = (uint32_t)r->tokens.n;
	struct way w = { .tokens = r->tokens.v, .n = n, .now = pfx_clock_wall_ns() };
	struct pfx_space *space;
	struct pfx_hit hit;
	uint64_t key, at = 0;
	json_t *o, *spans = json_array();

	r->n_prompt = n;
	if (pfx_sched_space(e, r->job, &space, &key) != 0) {
		json_decref(spans);
		return pfx_fault_event(r->job, PFX_FAULT_INTERNAL, "out of memory");
	}
	pfx_cache_match(e->cache, space, w.tokens, n, &hit);
	w.match = hit.tokens;
	w.nodes = json_array();
	pfx_cache_visit(e->cache, space, walk_way, &w);
	for (int t = 0; t < PFX_TIERS; t++) {
		add_span(spans, tiers[t], &at, hit.tier_tokens[t]);
	}
	add_span(spans, "to compute", &at, n - hit.tokens);
	o = json_pack("{s:I,s:I,s:o,s:b,s:o,s:I,s:o,s:o}", "prompt_tokens", (json_int_t)n,
		"cached_tokens", (json_int_t)hit.tokens, "spans", spans, "logits_kept",
		hit.mark != PFX_MARK_NONE, "nodes", w.nodes, "nodes_left_out",
		(json_int_t)w.left_out, "miss", prompt_miss(e, r, &hit, &w), "estimate",
		estimate(e, &hit, n));
	json_object_set_new(o, "in_flight", in_flight(e, space, r, hit.tokens));
	if (r->job->admin) {
		json_object_set_new(o, "elsewhere", elsewhere(e, space, r, hit.tokens));
	}
	pfx_space_release(space);
	return pfx_view_report(r->job, "explain", o);
}

static struct pfx_event *explain(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_args a = { .job = r->job };
	uint64_t number = pfx_arg_int(&a, "request", 0, 1, INT64_MAX);

	if (a.fault != NULL) {
		return a.fault;
	}
	if ((number != 0) == (r->tokens.n > 0)) {
		return pfx_fault_event(r->job, PFX_FAULT_BAD_REQUEST,
			"explain takes a request's number or a prompt that is not empty");
	}
	return number != 0 ? explain_request(e, r->job, number) : explain_prompt(e, r);
}

void pfx_view_explain(struct pfx_engine *e, struct pfx_request *r)
{
	pfx_control_answer(e, r, explain(e, r));
}
