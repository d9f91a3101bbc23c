/*
 * From a message to its reply: what the front door knows itself is answered at once, the
 * rest becomes a job, whose events come back here. An id is taken from the moment its job
 * is submitted until its last line is written.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "net/jwrite.h"
#include "net/scan.h"
#include "net/server_priv.h"

static void answer_error(struct pfx_conn *c, const struct pfx_id *id, enum pfx_fault fault,
	const char *message, uint32_t retry_after_ms)
{
	struct pfx_buf *out = pfx_conn_out(c);

	if (out != NULL) {
		pfx_reply_error(out, id, pfx_fault_name(fault), message, retry_after_ms);
	}
}

static struct pfx_request *find(const struct pfx_conn *c, const struct pfx_id *id)
{
	for (uint32_t i = 0; i < c->n_requests && id->json != NULL; i++) {
		struct pfx_request *r = c->requests[i];

		if (r->id.json != NULL && pfx_id_equal(&r->id, id)) {
			return r;
		}
	}
	return NULL;
}

/* ---- what needs no engine ---- */

static void put_str(struct pfx_buf *out, const char *key, const char *value)
{
	pfx_buf_addf(out, ",\"%s\":", key);
	if (value == NULL) {
		pfx_buf_adds(out, "null");
	} else {
		pfx_jw_str(out, value, strlen(value));
	}
}

static void put_num(struct pfx_buf *out, const char *key, uint64_t value)
{
	pfx_buf_addf(out, ",\"%s\":%llu", key, (unsigned long long)value);
}

static void put_token_or_null(struct pfx_buf *out, const char *key, uint32_t token)
{
	if (token == UINT32_MAX) {
		put_str(out, key, NULL);
	} else {
		put_num(out, key, token);
	}
}

static void put_limits(struct pfx_buf *out, const struct pfx_server *s)
{
	const struct pfx_engine_info *info = pfx_engine_info(s->engine);

	pfx_buf_addf(out, ",\"limits\":{\"line_bytes\":%zu", s->opts.max_line);
	put_num(out, "connections", s->opts.max_connections);
	put_num(out, "requests_in_flight", s->opts.max_in_flight);
	put_num(out, "unread_bytes", s->opts.max_unread);
	put_num(out, "idle_ms", s->opts.idle_timeout_ms);
	put_num(out, "requests_running", info->max_requests);
	put_num(out, "requests_queued", info->queue_max);
	put_num(out, "context_tokens", info->context);
	put_num(out, "chunk_tokens", info->chunk_tokens);
	put_num(out, "depth", PFX_SCAN_DEPTH_MAX);
	put_num(out, "sessions", info->sessions_max);
	put_num(out, "namespace_sessions", info->sessions_space_max);
	put_num(out, "session_bytes", info->session_bytes_max);
	put_num(out, "session_ttl_ms", info->session_ttl_ms);
	put_num(out, "prefixes", info->prefixes_max);
	put_num(out, "namespace_prefixes", info->prefixes_space_max);
	put_num(out, "prefix_bytes", info->prefix_bytes_max);
	put_num(out, "pins", info->pins_max);
	put_num(out, "pin_ttl_ms", info->pin_ttl_ms);
	put_num(out, "pin_ttl_max_ms", info->pin_ttl_max_ms);
	put_num(out, "name_bytes", PFX_NAMED_BYTES_MAX);
	pfx_buf_adds(out, "}");
}

static void answer_hello(const struct pfx_server *s, const struct pfx_id *id, struct pfx_buf *out)
{
	const struct pfx_engine_info *info = pfx_engine_info(s->engine);

	pfx_reply_begin(out, id, "hello");
	put_str(out, "server", "prefixd");
	put_str(out, "version", PACKAGE_VERSION);
	put_num(out, "protocol", 1);
	put_str(out, "model", info->model);
	put_str(out, "architecture", info->architecture);
	put_str(out, "backend", info->backend);
	put_str(out, "kernels", info->kernels);
	put_str(out, "kv", info->kv);
	put_str(out, "activations", info->activations);
	put_num(out, "arithmetic", info->arithmetic);
	put_num(out, "threads", info->n_threads);
	put_num(out, "vocab", info->n_vocab);
	put_token_or_null(out, "bos", info->bos);
	put_token_or_null(out, "eos", info->eos);
	put_num(out, "context", info->context);
	put_num(out, "block_tokens", info->block_tokens);
	put_num(out, "blocks", info->n_blocks);
	put_num(out, "kv_bytes_per_token", info->kv_bytes_per_token);
	put_num(out, "weight_bytes", info->weight_bytes);
	pfx_buf_addf(out, ",\"chat_template\":%s", info->chat_template != NULL ? "true" : "false");
	put_str(out, "namespace", "");
	put_str(out, "role", "admin");
	put_limits(out, s);
	pfx_reply_end(out);
}

static void answer_cancel(struct pfx_conn *c, const struct pfx_msg *m)
{
	struct pfx_server *s = c->srv;
	const struct pfx_request *target = find(c, &m->target);
	struct pfx_buf *out;

	if (m->number != 0 ? pfx_engine_cancel(s->engine, m->number) < 0 : target == NULL) {
		answer_error(c, &m->id, PFX_FAULT_NOT_FOUND, m->number != 0
			? "there is no request of that number" : "target is not in flight on this connection", 0);
		return;
	}
	if (target != NULL) {
		/* Its last line was not sent yet, whatever the engine thinks: it is ours to cancel. */
		pfx_engine_cancel(s->engine, target->number);
	}
	out = pfx_conn_out(c);
	if (out == NULL) {
		return;
	}
	pfx_reply_begin(out, &m->id, "cancelled");
	if (m->number != 0) {
		put_num(out, "request", m->number);
	} else {
		pfx_buf_adds(out, ",\"target\":");
		pfx_buf_add(out, m->target.json, m->target.json_len);
	}
	pfx_reply_end(out);
}

static void answer_drain(struct pfx_conn *c, const struct pfx_id *id)
{
	struct pfx_buf *out;

	pfx_server_drain(c->srv);
	out = pfx_conn_out(c);
	if (out != NULL) {
		pfx_reply_begin(out, id, "draining");
		put_num(out, "running", pfx_engine_busy(c->srv->engine));
		pfx_reply_end(out);
	}
}

static void answer_here(struct pfx_conn *c, const struct pfx_msg *m)
{
	struct pfx_buf *out;

	if (m->op == PFX_OP_CANCEL) {
		answer_cancel(c, m);
		return;
	}
	if (m->op == PFX_OP_DRAIN) {
		answer_drain(c, &m->id);
		return;
	}
	out = pfx_conn_out(c);
	if (out == NULL) {
		return;
	}
	if (m->op == PFX_OP_HELLO) {
		answer_hello(c->srv, &m->id, out);
		return;
	}
	if (m->op == PFX_OP_CONFIG) {
		pfx_reply_begin(out, &m->id, "config");
		pfx_buf_addf(out, ",\"settings\":%s", c->srv->opts.settings);
		pfx_reply_end(out);
		return;
	}
	pfx_reply_begin(out, &m->id, m->op == PFX_OP_PING ? "pong" : "auth");
	if (m->op == PFX_OP_AUTH) {
		/* No key file: everybody is admin of the default namespace, whatever was sent. */
		pfx_buf_adds(out, ",\"ok\":true");
		put_str(out, "namespace", "");
		put_str(out, "role", "admin");
	}
	pfx_reply_end(out);
}

/* ---- what the engine answers ---- */

static void request_free(struct pfx_server *s, struct pfx_request *r)
{
	pfx_reply_free(&r->reply);
	pfx_free(r->id.json);
	pfx_free(r);
	s->n_requests--;
}

static struct pfx_request *request_new(struct pfx_conn *c, struct pfx_msg *m, uint64_t start_ns)
{
	struct pfx_request *r = pfx_calloc(1, sizeof(*r));

	if (r == NULL) {
		return NULL;
	}
	c->srv->n_requests++;
	if (pfx_reply_init(&r->reply, m) < 0) {
		request_free(c->srv, r);
		return NULL;
	}
	if (c->n_requests == c->cap_requests) {
		uint32_t cap = c->cap_requests == 0 ? 8 : c->cap_requests * 2;
		void *p = pfx_reallocarray(c->requests, cap, sizeof(*c->requests));

		if (p == NULL) {
			request_free(c->srv, r);
			return NULL;
		}
		c->requests = p;
		c->cap_requests = cap;
	}
	r->reply.start_ns = start_ns;
	r->conn = c;
	r->at = c->n_requests;
	r->id = m->id;
	memset(&m->id, 0, sizeof(m->id));
	c->requests[c->n_requests++] = r;
	return r;
}

static void submit(struct pfx_conn *c, struct pfx_msg *m, uint64_t received_ns)
{
	struct pfx_job *job = m->job;
	struct pfx_request *r = request_new(c, m, received_ns);

	if (r == NULL) {
		answer_error(c, &m->id, PFX_FAULT_INTERNAL, "out of memory", 0);
		return;
	}
	m->job = NULL;
	job->user = r;
	job->admin = 1; /* without a key file everybody is */
	job->received_ns = received_ns;
	r->number = pfx_engine_submit(c->srv->engine, job);
}

/* A message that goes no further. id NULL: null, when its own belongs to another request. */
static void turn_down(struct pfx_conn *c, const struct pfx_msg *m, const struct pfx_id *id,
	enum pfx_fault fault, const char *why, uint32_t retry_after_ms)
{
	if (m->op == PFX_OP_GENERATE || m->op == PFX_OP_WARM || m->op == PFX_OP_SCORE) {
		c->srv->count.failed++;
	}
	c->srv->count.bad_lines += fault != PFX_FAULT_OVERLOADED;
	answer_error(c, id, fault, why, retry_after_ms);
}

void pfx_request_run(struct pfx_conn *c, struct pfx_msg *m, uint64_t received_ns)
{
	char why[128];

	if (m->bad) {
		turn_down(c, m, &m->id, m->fault, m->error, 0);
		return;
	}
	if (find(c, &m->id) != NULL) {
		/* Not under the id: that would read as the end of the request that has it. */
		snprintf(why, sizeof(why), "id %.90s is in flight on this connection", m->id.json);
		turn_down(c, m, NULL, PFX_FAULT_BAD_REQUEST, why, 0);
		return;
	}
	if (m->op < PFX_OP_GENERATE) {
		answer_here(c, m);
		return;
	}
	if (c->n_requests >= c->srv->opts.max_in_flight) {
		snprintf(why, sizeof(why), "this connection has %u requests in flight", c->n_requests);
		turn_down(c, m, &m->id, PFX_FAULT_OVERLOADED, why, 100);
		return;
	}
	submit(c, m, received_ns);
}

static json_t *connection_counters(const struct pfx_server *s)
{
	const struct pfx_net_counters *n = &s->count;

	return json_pack("{s:{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}}", "connections",
		"open", (json_int_t)s->n_conns, "accepted", (json_int_t)n->accepted,
		"refused", (json_int_t)n->refused, "accept_failed", (json_int_t)n->accept_failed,
		"hung_up", (json_int_t)n->hung_up, "slow", (json_int_t)n->slow,
		"idle", (json_int_t)n->idle, "lines", (json_int_t)n->lines,
		"bad_lines", (json_int_t)n->bad_lines, "bytes_in", (json_int_t)n->bytes_in,
		"bytes_out", (json_int_t)n->bytes_out);
}

/* `failed` counts every request that ended in an error, here or behind the engine's door. */
static void add_failed(const struct pfx_server *s, json_t *report)
{
	json_t *failed = json_object_get(json_object_get(report, "requests"), "failed");

	if (json_is_integer(failed)) {
		json_integer_set(failed, json_integer_value(failed) + (json_int_t)s->count.failed);
	}
}

static void tell(struct pfx_server *s, struct pfx_request *r, struct pfx_event *ev)
{
	struct pfx_conn *c = r->conn;
	struct pfx_buf *out = pfx_conn_out(c);
	json_t *extra = ev->kind == PFX_EVENT_STATS ? connection_counters(s) : NULL;
	int first = ev->kind == PFX_EVENT_TOKEN && r->reply.first_ns == 0;

	if (ev->kind == PFX_EVENT_STATS) {
		add_failed(s, ev->report);
	}
	if (out != NULL && pfx_reply_event(&r->reply, ev, extra, out) < 0) {
		c->dead = 1; /* no memory for the line: the client must not wait for it */
	}
	json_decref(extra);
	if (first && r->reply.stream) {
		/* Alone and at once: this is the moment that ttft_ms tells. */
		pfx_conn_flush(c, &r->reply.first_ns);
	} else if (first) {
		r->reply.first_ns = pfx_clock_ns();
	}
	pfx_server_dirty(s, c);
}

static void leave(struct pfx_request *r)
{
	struct pfx_conn *c = r->conn;
	struct pfx_request *moved = c->requests[--c->n_requests];

	c->requests[r->at] = moved;
	moved->at = r->at;
	c->active_ns = pfx_clock_ns();
}

void pfx_request_event(struct pfx_server *s, struct pfx_event *ev)
{
	struct pfx_request *r = ev->user;

	if (r->conn != NULL) {
		tell(s, r, ev);
	}
	if (!ev->last) {
		return;
	}
	if (r->conn != NULL) {
		leave(r);
	}
	request_free(s, r);
}

void pfx_request_cancel_all(struct pfx_conn *c)
{
	for (uint32_t i = 0; i < c->n_requests; i++) {
		pfx_engine_cancel(c->srv->engine, c->requests[i]->number);
	}
}

void pfx_request_orphan_all(struct pfx_conn *c)
{
	for (uint32_t i = 0; i < c->n_requests; i++) {
		c->requests[i]->conn = NULL;
		/* It may have ended already, with its last event still on the way. */
		pfx_engine_cancel(c->srv->engine, c->requests[i]->number);
	}
	c->n_requests = 0;
}
