/*
 * Lifetimes: sessions, named prefixes, leases and ends, where they meet the way of a
 * request. session.c, named.c and lease.c keep the tables; turns.c keeps a session's
 * requests in order. README.md has the rules by number.
 */
#include "engine/engine_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

int pfx_life_open(struct pfx_engine *e)
{
	struct pfx_sessions_opts so = {
		.n_max = e->opts.sessions_max,
		.n_space_max = e->opts.sessions_space_max,
		.bytes_max = e->opts.session_bytes_max,
		.ttl_ns = e->opts.session_ttl_ms * 1000000u,
	};
	struct pfx_named_opts no = {
		.n_max = e->opts.prefixes_max,
		.n_space_max = e->opts.prefixes_space_max,
		.bytes_max = e->opts.prefix_bytes_max,
	};
	int rc = pfx_map_init(&e->turns);

	e->lease_due_ns = UINT64_MAX;
	if (rc == 0) {
		rc = pfx_sessions_open(&e->sessions, &so);
	}
	return rc == 0 ? pfx_named_open(&e->named, &no) : rc;
}

void pfx_life_close(struct pfx_engine *e)
{
	pfx_lease_close(e);
	pfx_sessions_close(e->sessions);
	pfx_named_close(e->named);
	pfx_map_free(&e->turns);
}

static json_t *name_of(const struct pfx_key *key)
{
	size_t len;
	const char *name = pfx_key_name(key, &len);

	return json_stringn(name, len);
}

static void fail_on(struct pfx_request *r, int rc, const char *err)
{
	if (rc == -ENOMEM) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
	} else {
		pfx_request_fail(r, rc == PFX_E_FULL ? PFX_FAULT_OVERLOADED : PFX_FAULT_BAD_REQUEST, "%s",
			err);
	}
}

/* ---- at submit ---- */

/* What the request's prefix means now, whatever becomes of the name. */
static void look_up(struct pfx_engine *e, struct pfx_request *r, const struct pfx_key *key)
{
	r->prefix = r->job->kind == PFX_JOB_PREFIX_DELETE ? pfx_named_delete(e->named, key)
							  : pfx_named_get(e->named, key);
	if (r->prefix == NULL) {
		pfx_request_fail(r, PFX_FAULT_NOT_FOUND, "there is no prefix of the name %.100s",
			r->job->prefix);
		return;
	}
	r->job->bytes += r->prefix->bytes;
}

static void put(struct pfx_engine *e, struct pfx_request *r)
{
	char err[256] = "";
	int rc;

	r->prefix = pfx_content_take(r->job);
	rc = r->prefix == NULL ? -ENOMEM
			       : pfx_named_put(e->named, &r->key, r->prefix, &r->replaced, err,
					 sizeof(err));
	if (rc != 0) {
		fail_on(r, rc, err);
	}
}

static void check_ttl(struct pfx_engine *e, struct pfx_request *r)
{
	const struct pfx_job *job = r->job;

	if ((job->kind == PFX_JOB_PIN || job->pin) && job->ttl_ms > e->opts.pin_ttl_max_ms) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "ttl_ms: a lease lasts at most %llu ms",
			(unsigned long long)e->opts.pin_ttl_max_ms);
	}
}

void pfx_life_submit(struct pfx_engine *e, struct pfx_request *r)
{
	const struct pfx_job *job = r->job;
	const char *name = job->session != NULL ? job->session : job->prefix;
	size_t len = job->session != NULL ? job->session_len : job->prefix_len;
	struct pfx_key key;

	if (name == NULL && (job->kind <= PFX_JOB_RENDER || job->kind >= PFX_JOB_STATS)) {
		return;
	}
	if (pfx_key_make(&r->key, job->space, job->space_len, job->salt, job->salt_len, name,
		    name == NULL ? 0 : len) != 0) {
		fail_on(r, -ENOMEM, "");
		return;
	}
	check_ttl(e, r);
	if (r->failed) {
		return;
	}
	if (job->kind == PFX_JOB_PREFIX_PUT) {
		put(e, r);
	} else if (job->prefix != NULL && job->session == NULL) {
		look_up(e, r, &r->key);
	} else if (job->prefix != NULL) {
		if (pfx_key_make(&key, job->space, job->space_len, job->salt, job->salt_len,
			    job->prefix, job->prefix_len) != 0) {
			fail_on(r, -ENOMEM, "");
			return;
		}
		look_up(e, r, &key);
		pfx_key_free(&key);
	}
	r->turn_bytes = job->bytes;
	if (job->session != NULL) {
		r->job->bytes += pfx_session_bytes(e->sessions, &r->key);
	}
}

/* ---- on the text threads ---- */

/* The prefix in front of the job's own prompt. */
static void join_prefix(struct pfx_engine *e, struct pfx_request *r)
{
	const struct pfx_content *c = r->prefix;
	struct pfx_job own, *job = r->job;
	int rc;

	if (job->prompt == PFX_PROMPT_NONE && job->kind != PFX_JOB_GENERATE) {
		/* The prefix alone is not a turn to be answered. */
		job->add_generation_prompt = 0;
	}
	rc = pfx_content_join(c, job);
	if (rc == 1 && c->kind == PFX_PROMPT_TOKENS) {
		pfx_request_push_tokens(r, c->tokens, c->n_tokens);
	} else if (rc == 1) {
		/* Text in front of ids: it is tokenised by itself. */
		own = *job;
		job->prompt = PFX_PROMPT_TEXT;
		job->text = c->text;
		job->text_len = c->text_len;
		pfx_text_tokenise(e, r);
		*job = own;
		pfx_buf_reset(&r->text);
	} else if (rc == -EINVAL) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "the prefix is %s, which cannot go in front of "
			"%s", pfx_prompt_name(c->kind), pfx_prompt_name(job->prompt));
	} else if (rc < 0) {
		fail_on(r, rc, "");
	}
}

static void begin(struct pfx_engine *e, struct pfx_request *r)
{
	r->session = pfx_session_begin(e->sessions, &r->key, pfx_clock_ns());
	if (r->session == NULL) {
		pfx_request_fail(r, PFX_FAULT_NOT_FOUND, "there is no session of the name %.100s",
			r->job->session);
	}
}

static void make(struct pfx_engine *e, struct pfx_request *r)
{
	char err[256] = "";
	int rc = pfx_session_make(e->sessions, &r->key, pfx_clock_ns(), &r->session, err, sizeof(err));

	if (rc == -EEXIST) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "there is a session of the name %.100s already",
			r->job->session);
	} else if (rc != 0) {
		fail_on(r, rc, err);
	} else {
		r->closes = 1; /* until all has gone well */
		if (r->job->ttl_ms != 0) {
			r->session->ttl_ns = r->job->ttl_ms * 1000000u;
			r->session->keeps = 1;
		}
	}
}

/* The session in front of the job's own prompt. */
static void join_session(struct pfx_engine *e, struct pfx_request *r)
{
	char err[256] = "";
	int rc = pfx_session_room(e->sessions, r->turn_bytes, err, sizeof(err));

	if (rc == 0) {
		rc = pfx_session_join(r->session, r->job, err, sizeof(err));
	}
	if (rc != 0) {
		fail_on(r, rc, err);
	} else if (r->session->kind == PFX_PROMPT_TOKENS) {
		pfx_request_push_tokens(r, r->session->seen.ids.v, r->session->seen.ids.n);
	}
}

/* The conversation as far as the model has seen it, for who ends it. */
static void take_seen(struct pfx_engine *e, struct pfx_request *r)
{
	begin(e, r);
	if (r->session != NULL) {
		r->closes = 1;
		pfx_ids_free(&r->tokens);
		r->tokens = r->session->seen.ids;
		memset(&r->session->seen.ids, 0, sizeof(r->session->seen.ids));
	}
}

void pfx_life_tokenise(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_job *job = r->job;
	int keeps_messages;

	if (job->kind == PFX_JOB_SESSION_CLOSE || (job->kind == PFX_JOB_END && job->session != NULL)) {
		take_seen(e, r);
		return;
	}
	if (job->kind == PFX_JOB_SESSION_OPEN) {
		make(e, r);
	} else if (job->session != NULL) {
		begin(e, r);
	}
	if (r->prefix != NULL && !r->failed) {
		join_prefix(e, r);
	}
	if (r->session != NULL && !r->failed) {
		join_session(e, r);
	}
	/* What is only kept is rendered when somebody wants an answer to it. */
	keeps_messages = !job->warm && (job->kind == PFX_JOB_SESSION_OPEN ||
					       job->kind == PFX_JOB_SESSION_APPEND) &&
		(job->prompt == PFX_PROMPT_CHAT || job->prompt == PFX_PROMPT_NONE);
	if (!r->failed && !keeps_messages) {
		pfx_text_tokenise(e, r);
	}
	if (job->kind == PFX_JOB_PREFIX_GET && r->failed && r->fault == PFX_FAULT_BAD_REQUEST) {
		/* A template that does not take these messages by themselves: nobody can count them. */
		r->failed = 0;
		pfx_free(r->message);
		r->message = NULL;
	}
}

/* Whether bytes [from, to) are all the template's; spans that touch may follow each other. */
static int is_templates(const struct pfx_chat_output *out, size_t from, size_t to)
{
	for (size_t i = 0; i < out->n_spans && from < to; i++) {
		if (out->spans[i].start <= from && from < out->spans[i].end) {
			from = out->spans[i].end;
		}
	}
	return from >= to;
}

/* Whether the prompt that the model saw has the same special tokens at the same places. */
static int same_specials(const struct pfx_engine *e, const struct pfx_seen *seen,
	const struct pfx_chat_output *out)
{
	struct pfx_span *found;
	size_t n;
	int same = 0;

	if (pfx_tokenizer_specials(e->tokenizer, out->text.data, seen->prompt_bytes, out->spans,
		    out->n_spans, &found, &n) != 0) {
		return 0;
	}
	same = n == seen->n_specials &&
		(n == 0 || memcmp(found, seen->specials, n * sizeof(*found)) == 0);
	pfx_free(found);
	return same;
}

size_t pfx_life_seen(struct pfx_engine *e, struct pfx_request *r,
	const struct pfx_chat_output *out)
{
	const struct pfx_seen *seen = r->session == NULL ? NULL : &r->session->seen;
	size_t len, n;

	if (seen == NULL || seen->ids.n == 0 || r->session->kind != PFX_PROMPT_CHAT) {
		return 0;
	}
	n = seen->ids.n;
	len = seen->text.len;
	if (len > out->text.len || memcmp(seen->text.data, out->text.data, len) != 0 ||
		!is_templates(out, len - seen->end, len)) {
		/* Where the template ends a reply otherwise, all but the reply's end. */
		n -= seen->end > 0;
		len -= seen->end;
	}
	if (len > out->text.len || memcmp(seen->text.data, out->text.data, len) != 0 ||
		!same_specials(e, seen, out)) {
		return 0;
	}
	pfx_request_push_tokens(r, seen->ids.v, n);
	return len;
}

static json_t *session_report(const struct pfx_session *s)
{
	size_t n = json_array_size(s->messages);

	return json_pack("{s:o,s:s,s:I,s:I,s:I,s:I}", "session", name_of(&s->key), "kind",
		pfx_prompt_name(s->kind), "messages", (json_int_t)n, "tokens",
		(json_int_t)s->seen.ids.n, "turns", (json_int_t)s->turns, "ttl_ms",
		(json_int_t)(s->ttl_ns / 1000000u));
}

/*
 * What was said becomes the session's: for a run, these ids (taken); for a conversation, the
 * job's messages and the reply, if that is not NULL.
 */
static int keep_turn(struct pfx_request *r, struct pfx_ids *ids, const char *reply, size_t len)
{
	if (r->job->prompt == PFX_PROMPT_CHAT) {
		if (pfx_session_say(r->session, r->job, reply, len) != 0) {
			pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory; the session is as it was");
			return -ENOMEM;
		}
	} else if (r->job->prompt != PFX_PROMPT_NONE) {
		pfx_session_run(r->session, ids);
	}
	r->closes = 0;
	return 0;
}

struct pfx_event *pfx_life_text_job(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev;
	json_t *report = NULL;

	if (r->job->kind == PFX_JOB_PREFIX_LIST) {
		report = json_pack("{s:o}", "prefixes", pfx_named_list(e->named, &r->key, r->job->all));
	} else if (r->job->kind == PFX_JOB_SESSION_LIST) {
		report = json_pack("{s:o}", "sessions", pfx_sessions_list(e->sessions, &r->key,
			r->job->all, pfx_clock_ns()));
	} else {
		pfx_life_tokenise(e, r);
		if (!r->failed && r->tokens.n >= e->info.context) {
			pfx_request_fail(r, PFX_FAULT_TOO_LONG, "the session would have %zu tokens, the "
				"context is %u", r->tokens.n, e->info.context);
		}
		if (!r->failed && keep_turn(r, &r->tokens, NULL, 0) == 0) {
			report = session_report(r->session);
		}
	}
	if (r->failed) {
		return pfx_fault_event(r->job, r->fault, r->message);
	}
	ev = pfx_event_new(PFX_EVENT_REPORT, r->job);
	ev->last = 1;
	ev->report = report;
	ev->report_name = r->job->kind == PFX_JOB_PREFIX_LIST ? "prefixes"
		: r->job->kind == PFX_JOB_SESSION_LIST ? "sessions" : "session";
	return ev;
}

/* ---- on the engine thread: a run's good end ---- */

/*
 * How many of the reply's ids spell exactly what was said: all, but where a stop string cut
 * the text. UINT32_MAX: it was cut within an id.
 */
static uint32_t ids_said(const struct pfx_engine *e, const struct pfx_request *r, uint32_t n_text)
{
	const uint32_t *ids = r->tokens.v + r->n_prompt;
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf text = PFX_BUF_INIT;
	uint32_t best = UINT32_MAX;

	for (uint32_t k = 0; text.len <= r->said.len; k++) {
		if (d.n_pending == 0 && text.len == r->said.len) {
			best = k;
		}
		if (k == n_text) {
			pfx_detok_end(e->tokenizer, &d, &text);
			best = text.len == r->said.len ? n_text : best;
			break;
		}
		pfx_detok_push(e->tokenizer, &d, ids[k], &text);
	}
	pfx_buf_free(&text);
	return best;
}

/* The id that ended the reply, or UINT32_MAX when it ended otherwise. */
static uint32_t end_of(const struct pfx_engine *e, const struct pfx_request *r)
{
	uint32_t last = r->tokens.v[r->tokens.n - 1];

	return !r->job->ignore_eos && pfx_tokenizer_is_end(e->tokenizer, last) ? last : UINT32_MAX;
}

static int copy_ids(struct pfx_ids *out, const struct pfx_ids *ids, size_t n)
{
	out->v = pfx_malloc(n * sizeof(*out->v));
	if (out->v == NULL) {
		return -ENOMEM;
	}
	memcpy(out->v, ids->v, n * sizeof(*out->v));
	out->n = out->cap = n;
	return 0;
}

/* What the model has seen of a conversation, for the next turn to go on behind. */
static void keep_seen(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_seen *seen = &r->session->seen;
	uint32_t end = end_of(e, r), n_text = r->n_reply - (end != UINT32_MAX);
	uint32_t n = ids_said(e, r, n_text);
	struct pfx_str spelling = pfx_tokenizer_spelling(e->tokenizer, end);

	pfx_seen_free(seen);
	if (n == UINT32_MAX) {
		return;
	}
	seen->text = r->text;
	memset(&r->text, 0, sizeof(r->text));
	seen->prompt_bytes = seen->text.len;
	seen->specials = r->specials;
	seen->n_specials = r->n_specials;
	r->specials = NULL;
	pfx_buf_add(&seen->text, r->said.data, r->said.len);
	if (end != UINT32_MAX && n == n_text) {
		pfx_buf_add(&seen->text, spelling.s, spelling.n);
		seen->end = spelling.n;
		n++;
	}
	if (seen->text.oom || copy_ids(&seen->ids, &r->tokens, r->n_prompt + n) != 0) {
		pfx_seen_free(seen);
	}
}

/* A run goes on behind the reply's text; the id that ended it is no part of that. */
static int run_of(struct pfx_engine *e, struct pfx_request *r, struct pfx_ids *out)
{
	uint32_t n = r->n_reply == 0 ? 0 : ids_said(e, r, r->n_reply - (end_of(e, r) != UINT32_MAX));
	int rc = copy_ids(out, &r->tokens, r->n_prompt + (n == UINT32_MAX ? 0 : n));

	if (rc == 0 && n == UINT32_MAX) {
		rc = pfx_tokenizer_encode_on(e->tokenizer, r->said.data, r->said.len, NULL, 0, out);
	}
	if (rc != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory; the session is as it was");
	}
	return rc;
}

static void session_done(struct pfx_engine *e, struct pfx_request *r)
{
	int chat = r->job->prompt == PFX_PROMPT_CHAT, replied = r->n_reply > 0;
	const char *reply = !replied ? NULL : r->said.data != NULL ? r->said.data : "";
	struct pfx_ids ids = { 0 };

	if (r->job->kind == PFX_JOB_WARM) {
		return;
	}
	if (r->said.oom) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory; the session is as it was");
		return;
	}
	if ((!chat && run_of(e, r, &ids) != 0) || keep_turn(r, &ids, reply, r->said.len) != 0) {
		pfx_ids_free(&ids);
		return;
	}
	if (replied && chat) {
		keep_seen(e, r);
	}
	r->session->turns += r->job->kind == PFX_JOB_GENERATE;
}

static json_t *usage_report(const struct pfx_request *r)
{
	const struct pfx_usage *u = &r->usage;

	return json_pack("{s:I,s:I,s:I,s:{s:I,s:I,s:I}}", "prompt_tokens", (json_int_t)r->n_prompt,
		"cached_tokens", (json_int_t)u->cached_device + u->cached_host + u->cached_disk,
		"computed_tokens", (json_int_t)u->computed_tokens, "cached", "device",
		(json_int_t)u->cached_device, "host", (json_int_t)u->cached_host, "disk",
		(json_int_t)u->cached_disk);
}

static json_t *prefix_report(const struct pfx_request *r)
{
	char digest[20];

	snprintf(digest, sizeof(digest), "%016llx", (unsigned long long)r->prefix->digest);
	return json_pack("{s:s#,s:s,s:I,s:s}", "prefix", r->job->prefix, (int)r->job->prefix_len,
		"kind", pfx_prompt_name(r->prefix->kind), "bytes", (json_int_t)r->prefix->bytes,
		"digest", digest);
}

/* The answer of a job that computed as warm does, but is told of in its own event. */
static void report_run(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *ev)
{
	ev->kind = PFX_EVENT_REPORT;
	switch (r->job->kind) {
	case PFX_JOB_PIN:
		ev->report_name = "pinned";
		ev->report = json_object();
		pfx_lease_make(e, r, ev->report);
		break;
	case PFX_JOB_PREFIX_PUT:
		ev->report_name = "prefix";
		ev->report = prefix_report(r);
		json_object_set_new(ev->report, "replaced", json_boolean(r->replaced));
		pfx_lease_drop_named(e, &r->key, r->prefix->serial);
		json_object_set_new(ev->report, "tokens", json_integer(r->n_prompt));
		if (r->job->pin) {
			pfx_lease_make(e, r, ev->report);
		}
		break;
	default:
		ev->report_name = "session";
		ev->report = session_report(r->session);
		break;
	}
	json_object_set_new(ev->report, "usage", usage_report(r));
}

static void keep_until(struct pfx_request *r, uint64_t ttl_ns)
{
	if (ttl_ns != 0) {
		pfx_path_keep_until(r->path, pfx_clock_wall_ns() + ttl_ns);
	}
}

void pfx_life_done(struct pfx_engine *e, struct pfx_request *r, struct pfx_event **ev)
{
	const struct pfx_job *job = r->job;

	if (r->session != NULL) {
		session_done(e, r);
	}
	if (job->last_turn && !r->failed) {
		pfx_path_last_turn(r->path);
		r->closes = 1;
	} else if (job->kind <= PFX_JOB_SCORE || job->kind == PFX_JOB_PREFIX_PUT) {
		keep_until(r, job->ttl_ms * 1000000u);
	}
	if (r->session != NULL && r->session->keeps && !r->closes) {
		keep_until(r, r->session->ttl_ns);
	}
	if (job->kind > PFX_JOB_SCORE && !r->failed) {
		report_run(e, r, *ev);
	}
	if (r->failed) {
		pfx_event_free(*ev);
		*ev = pfx_fault_event(job, r->fault, r->message);
	}
}

void pfx_life_leave(struct pfx_engine *e, struct pfx_request *r)
{
	if (r->session == NULL) {
		return;
	}
	if (r->closes) {
		pfx_session_drop(e->sessions, r->session);
	} else {
		pfx_session_end(e->sessions, r->session, pfx_clock_ns());
	}
	r->session = NULL;
}

/* ---- on the engine thread: what needs no run ---- */

/* Tokens of the request that are cached, by tier, as an object. */
static json_t *cached_report(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_hit hit = { 0 };

	if (r->tokens.n > 0) {
		pfx_cache_match(e->cache, r->space, r->tokens.v, (uint32_t)r->tokens.n, &hit);
	}
	return json_pack("{s:I,s:I,s:I}", "device",
		(json_int_t)hit.tier_tokens[PFX_TIER_DEVICE], "host",
		(json_int_t)hit.tier_tokens[PFX_TIER_HOST], "disk",
		(json_int_t)hit.tier_tokens[PFX_TIER_DISK]);
}

static json_t *end_conversation(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_hit hit = { 0 };
	json_t *report;

	if (r->tokens.n > 0) {
		pfx_cache_match(e->cache, r->space, r->tokens.v, (uint32_t)r->tokens.n, &hit);
		pfx_cache_end(e->cache, r->space, r->tokens.v, (uint32_t)r->tokens.n);
	}
	report = json_pack("{s:I}", "cached_tokens", (json_int_t)hit.tokens);
	if (r->session != NULL) {
		json_object_set_new(report, "session", name_of(&r->session->key));
	}
	return report;
}

static json_t *prefix_get(struct pfx_engine *e, struct pfx_request *r)
{
	json_t *report = prefix_report(r);
	uint64_t lease = pfx_lease_of(e, &r->key);

	json_object_set_new(report, "tokens",
		r->tokens.n == 0 ? json_null() : json_integer((json_int_t)r->tokens.n));
	json_object_set_new(report, "cached", cached_report(e, r));
	json_object_set_new(report, "lease",
		lease == 0 ? json_null() : json_integer((json_int_t)lease));
	return report;
}

static json_t *unpin(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t n = pfx_lease_drop(e, &r->key, r->job->lease);

	if (n == 0 && r->job->lease != 0) {
		pfx_request_fail(r, PFX_FAULT_NOT_FOUND, "there is no lease of the number %llu",
			(unsigned long long)r->job->lease);
		return NULL;
	}
	return json_pack("{s:I}", "leases", (json_int_t)n);
}

static json_t *control(struct pfx_engine *e, struct pfx_request *r, const char **name)
{
	json_t *report;

	switch (r->job->kind) {
	case PFX_JOB_SESSION_CLOSE:
		*name = "closed";
		return end_conversation(e, r);
	case PFX_JOB_END:
		*name = "ended";
		return end_conversation(e, r);
	case PFX_JOB_PREFIX_PUT:
		*name = "prefix";
		pfx_lease_drop_named(e, &r->key, r->prefix->serial);
		report = prefix_report(r);
		json_object_set_new(report, "replaced", json_boolean(r->replaced));
		return report;
	case PFX_JOB_PREFIX_GET:
		*name = "prefix";
		return prefix_get(e, r);
	case PFX_JOB_PREFIX_DELETE:
		*name = "deleted";
		return json_pack("{s:s#,s:I}", "prefix", r->job->prefix, (int)r->job->prefix_len,
			"leases", (json_int_t)pfx_lease_drop_named(e, &r->key, r->prefix->serial + 1));
	case PFX_JOB_UNPIN:
		*name = "unpinned";
		return unpin(e, r);
	default:
		*name = "pins";
		return pfx_lease_report(e, &r->key, r->job->all);
	}
}

void pfx_life_control(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev;
	json_t *report = NULL;
	const char *name = NULL;

	if (!r->failed && pfx_sched_space(e, r->job, &r->space, &r->space_key) != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
	}
	if (!r->failed) {
		report = control(e, r, &name);
	}
	pfx_space_release(r->space);
	r->space = NULL;
	if (r->failed) {
		json_decref(report);
		ev = pfx_fault_event(r->job, r->fault, r->message);
	} else {
		ev = pfx_event_new(PFX_EVENT_REPORT, r->job);
		ev->last = 1;
		ev->report = report;
		ev->report_name = name;
	}
	pfx_request_leave(e, r, ev);
}

json_t *pfx_life_stats(struct pfx_engine *e)
{
	struct pfx_sessions_stats s;
	struct pfx_named_stats n;

	pfx_sessions_stats(e->sessions, pfx_clock_ns(), &s);
	pfx_named_stats(e->named, &n);
	return json_pack("{s:{s:I,s:I,s:I,s:I,s:I,s:I,s:I},s:{s:I,s:I,s:I,s:I,s:I},s:{s:I,s:I,s:I}}",
		"sessions", "open", (json_int_t)s.n, "bytes", (json_int_t)s.bytes, "opened",
		(json_int_t)s.opened, "closed", (json_int_t)s.closed, "expired", (json_int_t)s.expired,
		"refused", (json_int_t)s.refused, "turns", (json_int_t)s.turns, "prefixes", "names",
		(json_int_t)n.n, "bytes", (json_int_t)n.bytes, "put", (json_int_t)n.put, "deleted",
		(json_int_t)n.deleted, "refused", (json_int_t)n.refused, "leases", "held",
		(json_int_t)e->n_leases, "made", (json_int_t)e->next_lease, "expired",
		(json_int_t)e->n.leases_expired);
}
