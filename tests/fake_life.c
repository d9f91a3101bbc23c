#include "tests/fake_life.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

void fake_life_open(struct fake_life *l)
{
	struct pfx_sessions_opts so = { 20000, 10000, 1 << 28, 3600000000000u };
	struct pfx_named_opts no = { 10000, 1000, 1 << 28 };

	memset(l, 0, sizeof(*l));
	if (pfx_sessions_open(&l->sessions, &so) != 0 || pfx_named_open(&l->named, &no) != 0) {
		abort();
	}
}

static void end_lease(struct fake_life *l, uint32_t i)
{
	pfx_key_free(&l->lease[i].key);
	memmove(&l->lease[i], &l->lease[i + 1], (--l->n_leases - i) * sizeof(l->lease[0]));
}

void fake_life_close(struct fake_life *l)
{
	while (l->n_leases > 0) {
		end_lease(l, 0);
	}
	pfx_sessions_close(l->sessions);
	pfx_named_close(l->named);
}

__attribute__((format(printf, 3, 4)))
static int fail(struct fake_fault *f, enum pfx_fault fault, const char *fmt, ...)
{
	va_list ap;

	f->fault = fault;
	va_start(ap, fmt);
	vsnprintf(f->why, sizeof(f->why), fmt, ap);
	va_end(ap);
	return -1;
}

static void key_of(const struct pfx_job *job, const char *name, size_t len, struct pfx_key *key)
{
	if (pfx_key_make(key, job->space, job->space_len, job->salt, job->salt_len, name, len) != 0) {
		abort();
	}
}

void fake_prompt(const struct pfx_job *job, struct pfx_buf *b)
{
	if (job->prompt == PFX_PROMPT_TEXT) {
		pfx_buf_add(b, job->text, job->text_len);
	} else if (job->prompt == PFX_PROMPT_TOKENS) {
		for (size_t i = 0; i < job->n_tokens; i++) {
			pfx_buf_addc(b, (char)job->tokens[i]);
		}
	} else if (job->prompt == PFX_PROMPT_CHAT) {
		for (size_t i = 0; i < json_array_size(job->messages); i++) {
			const json_t *m = json_array_get(job->messages, i);
			const json_t *c = json_object_get(m, "content");

			pfx_buf_addf(b, "<%s>", json_is_string(json_object_get(m, "role"))
				? json_string_value(json_object_get(m, "role")) : "?");
			pfx_buf_add(b, json_string_value(c), json_string_length(c));
		}
		if (job->add_generation_prompt) {
			pfx_buf_adds(b, "<assistant>");
		}
	}
}

static int with_prefix(struct fake_life *l, struct pfx_job *job, struct pfx_buf *prompt,
	struct fake_fault *f)
{
	struct pfx_content *c;
	struct pfx_job own = *job;
	struct pfx_key key;
	int rc = 0;

	if (job->prefix == NULL) {
		return 0;
	}
	key_of(job, job->prefix, job->prefix_len, &key);
	c = pfx_named_get(l->named, &key);
	pfx_key_free(&key);
	if (c == NULL) {
		return fail(f, PFX_FAULT_NOT_FOUND, "there is no prefix of the name %.100s", job->prefix);
	}
	rc = pfx_content_join(c, job);
	if (rc == 1) {
		own.prompt = c->kind;
		own.text = c->text;
		own.text_len = c->text_len;
		own.tokens = c->tokens;
		own.n_tokens = c->n_tokens;
		fake_prompt(&own, prompt);
	} else if (rc < 0) {
		fail(f, PFX_FAULT_BAD_REQUEST, "the prefix is %s, which cannot go in front of %s",
			pfx_prompt_name(c->kind), pfx_prompt_name(job->prompt));
	}
	pfx_content_release(c);
	return rc < 0 ? -1 : 0;
}

static void put_run(const struct pfx_session *s, struct pfx_buf *prompt)
{
	for (size_t i = 0; s->kind == PFX_PROMPT_TOKENS && i < s->seen.ids.n; i++) {
		pfx_buf_addc(prompt, (char)s->seen.ids.v[i]);
	}
}

int fake_life_begin(struct fake_life *l, struct pfx_job *job, struct fake_turn *turn,
	struct pfx_buf *prompt, struct fake_fault *f)
{
	char err[200];

	memset(turn, 0, sizeof(*turn));
	if (with_prefix(l, job, prompt, f) < 0) {
		return -1;
	}
	if (job->session != NULL) {
		key_of(job, job->session, job->session_len, &turn->key);
		turn->session = pfx_session_begin(l->sessions, &turn->key, pfx_clock_ns());
		pfx_key_free(&turn->key);
		if (turn->session == NULL) {
			return fail(f, PFX_FAULT_NOT_FOUND, "there is no session of the name %.100s",
				job->session);
		}
		if (pfx_session_join(turn->session, job, err, sizeof(err)) != 0) {
			pfx_session_end(l->sessions, turn->session, pfx_clock_ns());
			return fail(f, PFX_FAULT_BAD_REQUEST, "%s", err);
		}
		put_run(turn->session, prompt);
	}
	fake_prompt(job, prompt);
	if (prompt->len == 0) {
		if (turn->session != NULL) {
			pfx_session_end(l->sessions, turn->session, pfx_clock_ns());
		}
		return fail(f, PFX_FAULT_BAD_REQUEST, "the request has no prompt");
	}
	return 0;
}

static void keep(struct pfx_session *s, struct pfx_job *job, const struct pfx_buf *prompt,
	const struct pfx_buf *reply)
{
	struct pfx_ids ids = { 0 };

	if (job->prompt == PFX_PROMPT_CHAT) {
		if (pfx_session_say(s, job, reply == NULL ? NULL : reply->data, reply == NULL ? 0
			: reply->len) != 0) {
			abort();
		}
		return;
	}
	ids.cap = ids.n = prompt->len + (reply == NULL ? 0 : reply->len);
	ids.v = pfx_xcalloc(ids.n, sizeof(*ids.v));
	for (size_t i = 0; i < ids.n; i++) {
		ids.v[i] = (uint8_t)(i < prompt->len ? prompt->data[i] : reply->data[i - prompt->len]);
	}
	pfx_session_run(s, &ids);
}

void fake_life_end(struct fake_life *l, struct pfx_job *job, struct fake_turn *turn,
	const struct pfx_buf *prompt, const struct pfx_buf *reply)
{
	if (turn->session == NULL) {
		return;
	}
	if (reply != NULL && job->kind == PFX_JOB_GENERATE) {
		keep(turn->session, job, prompt, reply->len > 0 ? reply : NULL);
		turn->session->turns++;
	}
	if (reply != NULL && job->last_turn) {
		pfx_session_drop(l->sessions, turn->session);
	} else {
		pfx_session_end(l->sessions, turn->session, pfx_clock_ns());
	}
	turn->session = NULL;
}

/* ---- what is answered at once ---- */

static json_t *session_report(const struct pfx_session *s)
{
	size_t len;
	const char *name = pfx_key_name(&s->key, &len);

	return json_pack("{s:o,s:s,s:I,s:I,s:I,s:I}", "session", json_stringn(name, len), "kind",
		pfx_prompt_name(s->kind), "messages", (json_int_t)json_array_size(s->messages), "tokens",
		(json_int_t)s->seen.ids.n, "turns", (json_int_t)s->turns, "ttl_ms",
		(json_int_t)(s->ttl_ns / 1000000u));
}

static json_t *usage(size_t n)
{
	return json_pack("{s:I,s:I,s:I,s:{s:i,s:i,s:i}}", "prompt_tokens", (json_int_t)n,
		"cached_tokens", (json_int_t)0, "computed_tokens", (json_int_t)n, "cached", "device", 0,
		"host", 0, "disk", 0);
}

static json_t *session_open(struct fake_life *l, struct pfx_job *job, struct fake_fault *f)
{
	struct pfx_buf prompt = PFX_BUF_INIT;
	struct pfx_session *s = NULL;
	struct pfx_key key;
	json_t *report;
	int rc;

	if (with_prefix(l, job, &prompt, f) < 0) {
		return NULL;
	}
	key_of(job, job->session, job->session_len, &key);
	rc = pfx_session_make(l->sessions, &key, pfx_clock_ns(), &s, f->why, sizeof(f->why));
	pfx_key_free(&key);
	f->fault = PFX_FAULT_OVERLOADED;
	if (rc == -EEXIST) {
		fail(f, PFX_FAULT_BAD_REQUEST, "there is a session of the name %.100s already",
			job->session);
	}
	if (rc != 0) {
		pfx_buf_free(&prompt);
		return NULL;
	}
	s->ttl_ns = job->ttl_ms != 0 ? job->ttl_ms * 1000000u : s->ttl_ns;
	fake_prompt(job, &prompt);
	if (prompt.len > 0) {
		keep(s, job, &prompt, NULL);
	}
	report = session_report(s);
	if (job->warm) {
		json_object_set_new(report, "usage", usage(prompt.len));
	}
	pfx_session_end(l->sessions, s, pfx_clock_ns());
	pfx_buf_free(&prompt);
	return report;
}

static json_t *session_append(struct fake_life *l, struct pfx_job *job, struct fake_fault *f)
{
	struct pfx_buf prompt = PFX_BUF_INIT;
	struct fake_turn turn;
	json_t *report;

	if (fake_life_begin(l, job, &turn, &prompt, f) < 0) {
		pfx_buf_free(&prompt);
		return NULL;
	}
	keep(turn.session, job, &prompt, NULL);
	report = session_report(turn.session);
	if (job->warm) {
		json_object_set_new(report, "usage", usage(prompt.len));
	}
	pfx_session_end(l->sessions, turn.session, pfx_clock_ns());
	pfx_buf_free(&prompt);
	return report;
}

static json_t *end(struct fake_life *l, struct pfx_job *job, struct fake_fault *f)
{
	struct pfx_buf prompt = PFX_BUF_INIT;
	struct fake_turn turn = { 0 };
	json_t *report = json_pack("{s:i}", "cached_tokens", 0);
	size_t n = 0;

	if (job->session == NULL) {
		n = fake_life_begin(l, job, &turn, &prompt, f) == 0 ? prompt.len : 0;
	} else {
		key_of(job, job->session, job->session_len, &turn.key);
		turn.session = pfx_session_begin(l->sessions, &turn.key, pfx_clock_ns());
		pfx_key_free(&turn.key);
		if (turn.session == NULL) {
			json_decref(report);
			fail(f, PFX_FAULT_NOT_FOUND, "there is no session of the name %.100s", job->session);
			return NULL;
		}
		n = turn.session->seen.ids.n;
		json_object_set_new(report, "session", json_stringn(job->session, job->session_len));
		pfx_session_drop(l->sessions, turn.session);
	}
	json_object_set_new(report, "cached_tokens", json_integer((json_int_t)n));
	pfx_buf_free(&prompt);
	return report;
}

static uint64_t lease(struct fake_life *l, struct pfx_job *job, size_t n, json_t *report,
	struct fake_fault *f)
{
	uint64_t ttl_ms = job->ttl_ms != 0 ? job->ttl_ms : 3600000;

	if (l->n_leases == 64) {
		fail(f, PFX_FAULT_OVERLOADED, "there are 64 leases already");
		return 0;
	}
	key_of(job, job->prefix, job->prefix_len, &l->lease[l->n_leases].key);
	l->lease[l->n_leases].tokens = (uint32_t)n;
	l->lease[l->n_leases].named = job->kind == PFX_JOB_PREFIX_PUT;
	l->lease[l->n_leases++].number = ++l->next_lease;
	json_object_set_new(report, "lease", json_integer((json_int_t)l->next_lease));
	json_object_set_new(report, "tokens", json_integer((json_int_t)n));
	json_object_set_new(report, "blocks", json_integer((json_int_t)(n + 31) / 32));
	json_object_set_new(report, "ttl_ms", json_integer((json_int_t)ttl_ms));
	json_object_set_new(report, "expires_ms",
		json_integer((json_int_t)(pfx_clock_wall_ns() / 1000000u + ttl_ms)));
	return l->next_lease;
}

static json_t *pin(struct fake_life *l, struct pfx_job *job, struct fake_fault *f)
{
	struct pfx_buf prompt = PFX_BUF_INIT;
	struct fake_turn turn;
	json_t *report = NULL;

	if (fake_life_begin(l, job, &turn, &prompt, f) == 0) {
		report = json_object();
		lease(l, job, prompt.len, report, f);
		json_object_set_new(report, "usage", usage(prompt.len));
	}
	pfx_buf_free(&prompt);
	return report;
}

static json_t *prefix_report(const struct pfx_job *job, const struct pfx_content *c)
{
	char digest[20];

	snprintf(digest, sizeof(digest), "%016llx", (unsigned long long)c->digest);
	return json_pack("{s:s#,s:s,s:I,s:s}", "prefix", job->prefix, (int)job->prefix_len, "kind",
		pfx_prompt_name(c->kind), "bytes", (json_int_t)c->bytes, "digest", digest);
}

static uint32_t drop_named(struct fake_life *l, const struct pfx_key *key)
{
	uint32_t n = 0;

	for (uint32_t i = l->n_leases; i-- > 0;) {
		if (l->lease[i].named && l->lease[i].key.len == key->len
			&& memcmp(l->lease[i].key.data, key->data, key->len) == 0) {
			end_lease(l, i);
			n++;
		}
	}
	return n;
}

static json_t *named_lease(const struct fake_life *l, const struct pfx_key *key)
{
	for (uint32_t i = 0; i < l->n_leases; i++) {
		if (l->lease[i].named && l->lease[i].key.len == key->len
			&& memcmp(l->lease[i].key.data, key->data, key->len) == 0) {
			return json_integer((json_int_t)l->lease[i].number);
		}
	}
	return json_null();
}

static json_t *prefix(struct fake_life *l, struct pfx_job *job, const struct pfx_key *key,
	struct fake_fault *f)
{
	struct pfx_buf prompt = PFX_BUF_INIT;
	struct pfx_content *c;
	json_t *report;
	int replaced, rc = 0;

	fake_prompt(job, &prompt);
	if (job->kind == PFX_JOB_PREFIX_PUT) {
		c = pfx_content_take(job);
		rc = pfx_named_put(l->named, key, c, &replaced, f->why, sizeof(f->why));
		f->fault = PFX_FAULT_OVERLOADED;
	} else {
		c = job->kind == PFX_JOB_PREFIX_GET ? pfx_named_get(l->named, key)
			: pfx_named_delete(l->named, key);
		rc = c == NULL ? fail(f, PFX_FAULT_NOT_FOUND, "there is no prefix of the name %.100s",
			job->prefix) : 0;
	}
	report = rc != 0 ? NULL : prefix_report(job, c);
	if (rc == 0 && job->kind == PFX_JOB_PREFIX_PUT) {
		drop_named(l, key);
		json_object_set_new(report, "replaced", json_boolean(replaced));
		if (job->warm) {
			json_object_set_new(report, "tokens", json_integer((json_int_t)prompt.len));
		}
		if (job->pin) {
			lease(l, job, prompt.len, report, f);
		}
		if (job->warm) {
			json_object_set_new(report, "usage", usage(prompt.len));
		}
	} else if (rc == 0 && job->kind == PFX_JOB_PREFIX_GET) {
		pfx_content_join(c, job);
		fake_prompt(job, &prompt);
		json_object_update_new(report, json_pack("{s:I,s:{s:I,s:i,s:i},s:o}", "tokens",
			(json_int_t)prompt.len, "cached", "device", (json_int_t)0, "host", 0, "disk", 0,
			"lease", named_lease(l, key)));
	} else if (rc == 0) {
		json_decref(report);
		report = json_pack("{s:s#,s:I}", "prefix", job->prefix, (int)job->prefix_len, "leases",
			(json_int_t)drop_named(l, key));
	}
	pfx_content_release(c);
	pfx_buf_free(&prompt);
	return report;
}

static json_t *unpin(struct fake_life *l, const struct pfx_job *job, const struct pfx_key *of,
	struct fake_fault *f)
{
	uint32_t n = 0;

	for (uint32_t i = l->n_leases; i-- > 0;) {
		if (l->lease[i].key.len >= of->head
			&& memcmp(l->lease[i].key.data, of->data, of->head) == 0
			&& (job->lease == 0 || job->lease == l->lease[i].number)) {
			end_lease(l, i);
			n++;
		}
	}
	if (n == 0 && job->lease != 0) {
		fail(f, PFX_FAULT_NOT_FOUND, "there is no lease of the number %llu",
			(unsigned long long)job->lease);
		return NULL;
	}
	return json_pack("{s:I}", "leases", (json_int_t)n);
}

static json_t *pins(const struct fake_life *l, const struct pfx_job *job, const struct pfx_key *of)
{
	json_t *list = json_array();
	size_t head = job->all ? of->space : of->head, len, salt_len;

	for (uint32_t i = 0; i < l->n_leases; i++) {
		const struct pfx_key *key = &l->lease[i].key;
		const char *name = pfx_key_name(key, &len), *salt = pfx_key_salt(key, &salt_len);

		if (memcmp(key->data, of->data, head) != 0) {
			continue;
		}
		json_array_append_new(list, json_pack("{s:I,s:s,s:o,s:o,s:I,s:I,s:i,s:f,s:f}", "lease",
			(json_int_t)l->lease[i].number, "namespace", "", "salt",
			json_stringn(salt, salt_len), "prefix",
			len == 0 ? json_null() : json_stringn(name, len), "tokens",
			(json_int_t)l->lease[i].tokens, "blocks", (json_int_t)(l->lease[i].tokens + 31) / 32,
			"hits", 0, "age_s", 0.1, "left_s", 0.1));
	}
	return json_pack("{s:o,s:i,s:i}", "leases", list, "blocks_leased", (int)l->n_leases,
		"blocks_max", 500);
}

json_t *fake_life_answer(struct fake_life *l, struct pfx_job *job, const char **name,
	struct fake_fault *f)
{
	struct pfx_key key;
	json_t *report;

	key_of(job, job->prefix, job->prefix_len, &key);
	switch (job->kind) {
	case PFX_JOB_SESSION_OPEN:
		*name = "session";
		report = session_open(l, job, f);
		break;
	case PFX_JOB_SESSION_APPEND:
		*name = "session";
		report = session_append(l, job, f);
		break;
	case PFX_JOB_SESSION_CLOSE:
	case PFX_JOB_END:
		*name = job->kind == PFX_JOB_END ? "ended" : "closed";
		report = end(l, job, f);
		break;
	case PFX_JOB_PIN:
		*name = "pinned";
		report = pin(l, job, f);
		break;
	case PFX_JOB_UNPIN:
		*name = "unpinned";
		report = unpin(l, job, &key, f);
		break;
	case PFX_JOB_PINS:
		*name = "pins";
		report = pins(l, job, &key);
		break;
	case PFX_JOB_SESSION_LIST:
		*name = "sessions";
		report = json_pack("{s:o}", "sessions", pfx_sessions_list(l->sessions, &key, job->all,
			pfx_clock_ns()));
		break;
	case PFX_JOB_PREFIX_LIST:
		*name = "prefixes";
		report = json_pack("{s:o}", "prefixes", pfx_named_list(l->named, &key, job->all));
		break;
	default:
		*name = job->kind == PFX_JOB_PREFIX_DELETE ? "deleted" : "prefix";
		report = prefix(l, job, &key, f);
		break;
	}
	pfx_key_free(&key);
	return report;
}
