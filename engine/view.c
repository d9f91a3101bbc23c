/* The operator's view: hits and top, and what all its reports share. */
#include "config.h"

#include "engine/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"

#define PREFIXES_MAX 100u
#define LIST_MAX 1000u

/* ---- shared ---- */

static void refuse(struct pfx_args *a, const char *message)
{
	if (a->fault == NULL) {
		a->fault = pfx_fault_event(a->job, PFX_FAULT_BAD_REQUEST, message);
	}
}

uint64_t pfx_arg_int(struct pfx_args *a, const char *name, uint64_t otherwise, uint64_t lo,
	uint64_t hi)
{
	const json_t *v = json_object_get(a->job->args, name);
	char message[128];

	if (v == NULL) {
		return otherwise;
	}
	if (json_is_integer(v) && json_integer_value(v) >= 0 &&
		(uint64_t)json_integer_value(v) >= lo && (uint64_t)json_integer_value(v) <= hi) {
		return (uint64_t)json_integer_value(v);
	}
	snprintf(message, sizeof(message), "%s must be an integer from %llu to %llu", name,
		(unsigned long long)lo, (unsigned long long)hi);
	refuse(a, message);
	return otherwise;
}

int pfx_arg_bool(struct pfx_args *a, const char *name)
{
	const json_t *v = json_object_get(a->job->args, name);
	char message[64];

	if (v != NULL && !json_is_boolean(v)) {
		snprintf(message, sizeof(message), "%s must be true or false", name);
		refuse(a, message);
	}
	return json_is_true(v);
}

const char *pfx_arg_text(struct pfx_args *a, const char *name)
{
	const json_t *v = json_object_get(a->job->args, name);
	const char *text = json_string_value(v);
	char message[64];

	if (v != NULL && (text == NULL || strlen(text) != json_string_length(v))) {
		snprintf(message, sizeof(message), "%s must be a string without NULs", name);
		refuse(a, message);
		return NULL;
	}
	return text;
}

struct pfx_event *pfx_view_report(const struct pfx_job *job, const char *name, json_t *report)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_REPORT, job);

	ev->report_name = name;
	ev->report = report;
	return ev;
}

struct pfx_event *pfx_view_written(const struct pfx_job *job, const char *name, json_t *report,
	struct pfx_buf *text)
{
	struct pfx_event *ev;

	if (text->oom) {
		pfx_buf_free(text);
		json_decref(report);
		return pfx_fault_event(job, PFX_FAULT_INTERNAL, "out of memory");
	}
	ev = pfx_view_report(job, name, report);
	ev->report_text = pfx_buf_take(text, &ev->report_text_len);
	return ev;
}

json_t *pfx_view_text(const struct pfx_engine *e, const uint32_t *tokens, uint32_t n)
{
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf text = PFX_BUF_INIT;
	json_t *out;

	for (uint32_t i = 0; i < n; i++) {
		pfx_detok_push(e->tokenizer, &d, tokens[i], &text);
	}
	pfx_detok_end(e->tokenizer, &d, &text);
	out = json_stringn(text.data == NULL ? "" : text.data, text.len);
	pfx_buf_free(&text);
	return out;
}

uint64_t pfx_view_space_key(const struct pfx_space *space)
{
	size_t len;
	const void *name = pfx_space_name(space, &len);

	return XXH3_64bits(name, len);
}

void pfx_view_name_space(const struct pfx_engine *e, const struct pfx_space *space, json_t *o)
{
	const struct pfx_owner *owner =
		pfx_hits_owner(e->observer->hits, pfx_view_space_key(space));
	char hex[2 * 16 + 1] = "";
	const unsigned char *name;
	size_t len;

	if (owner != NULL) {
		json_object_set_new(o, "namespace", pfx_name_json(&owner->space));
		json_object_set_new(o, "salt", pfx_name_json(&owner->salt));
		return;
	}
	/* Nobody has asked for it since the start: it came from the store. */
	name = pfx_space_name(space, &len);
	for (size_t i = 0; i < len && i < 16; i++) {
		snprintf(hex + 2 * i, 3, "%02x", name[i]);
	}
	json_object_set_new(o, "namespace", json_null());
	json_object_set_new(o, "salt", json_null());
	json_object_set_new(o, "space", json_string(hex));
}

const char *pfx_view_op(enum pfx_job_kind kind)
{
	switch (kind) {
	case PFX_JOB_GENERATE: return "generate";
	case PFX_JOB_SCORE: return "score";
	case PFX_JOB_SESSION_OPEN: return "session.open";
	case PFX_JOB_SESSION_APPEND: return "session.append";
	case PFX_JOB_PIN: return "pin";
	case PFX_JOB_PREFIX_PUT: return "prefix.put";
	default: return "warm"; /* of those that run the model, the only one left */
	}
}

const char *pfx_view_state(const struct pfx_request *r)
{
	switch (r->state) {
	case PFX_REQUEST_QUEUED: return "queued";
	case PFX_REQUEST_FOLLOWING: return "following";
	case PFX_REQUEST_FETCHING: return "fetching";
	case PFX_REQUEST_RUNNING: return pfx_request_len(r) < r->n_prompt ? "prefill" : "decode";
	}
	return "running";
}

/* ---- hits ---- */

/*
 * How far a sampled ceiling may be off, at 95 % if blocks were independent of each other;
 * those of one request are not, so it is a guide. 0: exact.
 */
static void put_ceiling(struct pfx_buf *b, const struct pfx_engine *e)
{
	const struct pfx_hits_row *total = pfx_hits_total(e->observer->hits);
	struct pfx_ceiling_stats s;
	double p, n, error = 0;

	pfx_ceiling_stats(e->observer->ceiling, &s);
	n = (double)(total->ceiling_of >> s.shift) / e->info.block_tokens;
	if (s.shift > 0 && n >= 1) {
		p = (double)total->ceiling / (double)total->ceiling_of;
		error = 1.96 * sqrt(p * (1 - p) / n);
	}
	pfx_buf_addf(b, ",\"ceiling\":{\"exact\":%s,\"sampled\":%.9g,\"blocks\":%u,\"room\":%u,"
		"\"error\":%.6f}", s.shift == 0 ? "true" : "false", ldexp(1, -(int)s.shift), s.blocks,
		s.entries / 4 * 3, error);
}

static void put_prefixes(struct pfx_buf *b, const struct pfx_engine *e, uint32_t n, int text)
{
	struct pfx_hot_prefix top[PREFIXES_MAX];

	n = pfx_hot_top(e->observer->hot, top, n);
	pfx_buf_adds(b, ",\"prefixes\":[");
	for (uint32_t i = 0; i < n; i++) {
		pfx_buf_addf(b, "%s{\"tokens\":%u,", i == 0 ? "" : ",", top[i].n_tokens);
		pfx_owner_put(b, top[i].owner);
		pfx_buf_addf(b, ",\"since_ms\":%llu,\"used_ms\":%llu,",
			(unsigned long long)(top[i].since_ns / 1000000u),
			(unsigned long long)(top[i].used_ns / 1000000u));
		if (text) {
			pfx_buf_adds(b, "\"text\":");
			pfx_json_put(b, pfx_view_text(e, top[i].head, top[i].n_head));
			pfx_buf_addc(b, ',');
		}
		pfx_hits_row_put(b, top[i].row);
		pfx_buf_addc(b, '}');
	}
	pfx_buf_addc(b, ']');
}

struct pfx_event *pfx_view_hits(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_args a = { .job = job };
	uint32_t minutes = (uint32_t)pfx_arg_int(&a, "minutes", 60, 0, PFX_HITS_MINUTES);
	uint32_t names = (uint32_t)pfx_arg_int(&a, "names", 100, 0, PFX_HITS_NAMES);
	uint32_t prefixes = (uint32_t)pfx_arg_int(&a, "prefixes", 10, 0, PREFIXES_MAX);
	int text = pfx_arg_bool(&a, "text");
	struct pfx_buf b = PFX_BUF_INIT;

	if (a.fault != NULL) {
		return a.fault;
	}
	pfx_hits_put(&b, e->observer->hits, names, minutes, pfx_clock_wall_ns());
	put_prefixes(&b, e, prefixes, text);
	put_ceiling(&b, e);
	return pfx_view_written(job, "hits", json_pack("{s:I}", "block_tokens",
		(json_int_t)e->info.block_tokens), &b);
}

/* ---- top ---- */

static json_t *request_json(const struct pfx_request *r, uint64_t now)
{
	struct pfx_facts f;
	uint32_t len = r->path == NULL ? 0 : pfx_request_len(r);
	double s = r->first_ns == 0 ? 0 : (double)(now - r->first_ns) / 1e9;
	json_t *o;

	pfx_observe_facts(r, &f);
	o = json_pack("{s:I,s:s,s:s,s:o,s:o,s:I,s:I,s:I,s:I}", "request", (json_int_t)f.number, "op",
		pfx_view_op(f.kind), "state", pfx_view_state(r), "namespace",
		pfx_name_json(&f.owner.space), "salt", pfx_name_json(&f.owner.salt), "prompt_tokens",
		(json_int_t)r->n_prompt, "done_tokens",
		(json_int_t)(len < r->n_prompt ? len : r->n_prompt), "cached_tokens",
		(json_int_t)f.usage.cached_device + f.usage.cached_host + f.usage.cached_disk,
		"completion_tokens", (json_int_t)r->n_reply);
	json_object_set_new(o, "max_tokens", r->job->max_tokens == UINT32_MAX ? json_null()
		: json_integer(r->job->max_tokens));
	json_object_set_new(o, "age_ms", json_real(pfx_ns_to_ms(now - r->received_ns)));
	json_object_set_new(o, "tokens_per_s", s > 0 && r->n_reply > 1
		? json_real((r->n_reply - 1) / s) : json_null());
	return o;
}

static uint32_t list_requests(const struct pfx_list *from, json_t *list, uint32_t most,
	uint64_t now)
{
	uint32_t left_out = 0;

	pfx_list_for(it, from) {
		if (json_array_size(list) < most) {
			json_array_append_new(list,
				request_json(pfx_container_of(it, struct pfx_request, link), now));
		} else {
			left_out++;
		}
	}
	return left_out;
}

struct pfx_event *pfx_view_top(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_args a = { .job = job };
	uint32_t most = (uint32_t)pfx_arg_int(&a, "limit", 100, 0, LIST_MAX), left_out;
	uint64_t now = pfx_clock_ns();
	struct pfx_buf b = PFX_BUF_INIT;
	json_t *stats, *list, *report;
	struct pfx_hits_row row;

	if (a.fault != NULL) {
		return a.fault;
	}
	list = json_array();
	left_out = list_requests(&e->active, list, most, now);
	left_out += list_requests(&e->waiting, list, most, now);
	pfx_hits_window(e->observer->hits, 2, pfx_clock_wall_ns(), &row);
	pfx_buf_adds(&b, "\"last_minutes\":{");
	pfx_hits_row_put(&b, &row);
	pfx_buf_addc(&b, '}');
	stats = pfx_report_stats(e);
	report = json_pack("{s:I,s:O,s:s,s:O,s:O,s:O,s:O,s:o,s:I}", "time_ms",
		(json_int_t)(pfx_clock_wall_ns() / 1000000u), "uptime_s",
		json_object_get(stats, "uptime_s"), "model", e->info.model, "tokens",
		json_object_get(stats, "tokens"), "requests", json_object_get(stats, "requests"), "steps", json_object_get(stats, "steps"), "tiers",
		json_object_get(stats, "tiers"), "list", list, "left_out",
		(json_int_t)left_out);
	json_decref(stats);
	return pfx_view_written(job, "top", report, &b);
}
