#include "net/reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "net/jwrite.h"

#define ADD(out, literal) pfx_buf_add((out), (literal), sizeof(literal) - 1)

void pfx_reply_begin(struct pfx_buf *out, const struct pfx_id *id, const char *event)
{
	ADD(out, "{\"id\":");
	if (id == NULL || id->json == NULL) {
		ADD(out, "null");
	} else {
		pfx_buf_add(out, id->json, id->json_len);
	}
	ADD(out, ",\"event\":\"");
	pfx_buf_adds(out, event);
	ADD(out, "\"");
}

void pfx_reply_end(struct pfx_buf *out)
{
	ADD(out, "}\n");
}

static void put_error(struct pfx_buf *out, const char *code, const char *message, size_t len,
	uint32_t retry_after_ms)
{
	ADD(out, ",\"code\":\"");
	pfx_buf_adds(out, code);
	ADD(out, "\",\"message\":");
	pfx_jw_str(out, message, len);
	if (retry_after_ms > 0) {
		ADD(out, ",\"retry_after_ms\":");
		pfx_jw_u64(out, retry_after_ms);
	}
}

void pfx_reply_error(struct pfx_buf *out, const struct pfx_id *id, const char *code,
	const char *message, uint32_t retry_after_ms)
{
	pfx_reply_begin(out, id, "error");
	put_error(out, code, message, strlen(message), retry_after_ms);
	pfx_reply_end(out);
}

int pfx_reply_init(struct pfx_reply *r, const struct pfx_msg *m)
{
	struct pfx_buf head = PFX_BUF_INIT;

	memset(r, 0, sizeof(*r));
	r->op = m->op;
	r->stream = m->stream;
	/* Told by what was asked, so that a reply without tokens has its empty lists too. */
	r->has_logprobs = m->job != NULL && m->job->logprobs >= 0;
	r->has_digests = m->job != NULL && m->job->digest;
	pfx_reply_begin(&head, &m->id, "");
	if (head.len > 0) {
		head.len--; /* the event's closing quote: each line brings its own name */
	}
	r->head = pfx_buf_take(&head, &r->head_len);
	return r->head == NULL ? -ENOMEM : 0;
}

void pfx_reply_free(struct pfx_reply *r)
{
	pfx_free(r->head);
	pfx_buf_free(&r->text);
	pfx_buf_free(&r->tokens);
	pfx_buf_free(&r->logprobs);
	pfx_buf_free(&r->top);
	pfx_buf_free(&r->digests);
	memset(r, 0, sizeof(*r));
}

/* The comma in front of every entry but the first. */
static void separate(struct pfx_buf *list, uint32_t at)
{
	if (at > 0) {
		ADD(list, ",");
	}
}

static void put_top(struct pfx_buf *out, const struct pfx_top *top, uint32_t n)
{
	ADD(out, "[");
	for (uint32_t i = 0; i < n; i++) {
		separate(out, i);
		ADD(out, "[");
		pfx_jw_u64(out, top[i].token);
		ADD(out, ",");
		pfx_jw_real(out, top[i].logprob);
		ADD(out, "]");
	}
	ADD(out, "]");
}

static void token_line(struct pfx_reply *r, const struct pfx_event *ev, struct pfx_buf *out)
{
	pfx_buf_add(out, r->head, r->head_len);
	ADD(out, "token\",\"text\":");
	pfx_jw_str(out, ev->text, ev->text_len);
	ADD(out, ",\"token\":");
	pfx_jw_u64(out, ev->token);
	if (ev->has_logprob) {
		ADD(out, ",\"logprob\":");
		pfx_jw_real(out, ev->logprob);
		ADD(out, ",\"top\":");
		put_top(out, ev->top, ev->n_top);
	}
	if (ev->has_digest) {
		ADD(out, ",\"digest\":");
		pfx_jw_hex64(out, ev->digest);
	}
	pfx_reply_end(out);
}

/* Lists without their brackets, joined when the request ends. */
static int collect(struct pfx_reply *r, const struct pfx_event *ev)
{
	pfx_buf_add(&r->text, ev->text, ev->text_len);
	separate(&r->tokens, r->n_tokens);
	pfx_jw_u64(&r->tokens, ev->token);
	if (ev->has_logprob) {
		separate(&r->logprobs, r->n_tokens);
		pfx_jw_real(&r->logprobs, ev->logprob);
		separate(&r->top, r->n_tokens);
		put_top(&r->top, ev->top, ev->n_top);
	}
	if (ev->has_digest) {
		separate(&r->digests, r->n_tokens);
		pfx_jw_hex64(&r->digests, ev->digest);
	}
	r->n_tokens++;
	return r->text.oom || r->tokens.oom || r->logprobs.oom || r->top.oom || r->digests.oom
		? -ENOMEM : 0;
}

static void put_collected(const struct pfx_reply *r, struct pfx_buf *out)
{
	ADD(out, ",\"text\":");
	pfx_jw_str(out, r->text.data, r->text.len);
	ADD(out, ",\"tokens\":[");
	pfx_buf_add(out, r->tokens.data, r->tokens.len);
	ADD(out, "]");
	if (r->has_logprobs) {
		ADD(out, ",\"logprobs\":[");
		pfx_buf_add(out, r->logprobs.data, r->logprobs.len);
		ADD(out, "],\"top\":[");
		pfx_buf_add(out, r->top.data, r->top.len);
		ADD(out, "]");
	}
	if (r->has_digests) {
		ADD(out, ",\"digests\":[");
		pfx_buf_add(out, r->digests.data, r->digests.len);
		ADD(out, "]");
	}
}

static void put_usage(struct pfx_buf *out, const struct pfx_usage *u)
{
	ADD(out, ",\"usage\":{\"prompt_tokens\":");
	pfx_jw_u64(out, u->prompt_tokens);
	ADD(out, ",\"cached_tokens\":");
	pfx_jw_u64(out, (uint64_t)u->cached_device + u->cached_host + u->cached_disk);
	ADD(out, ",\"computed_tokens\":");
	pfx_jw_u64(out, u->computed_tokens);
	ADD(out, ",\"cached\":{\"device\":");
	pfx_jw_u64(out, u->cached_device);
	ADD(out, ",\"host\":");
	pfx_jw_u64(out, u->cached_host);
	ADD(out, ",\"disk\":");
	pfx_jw_u64(out, u->cached_disk);
	ADD(out, "},\"completion_tokens\":");
	pfx_jw_u64(out, u->completion_tokens);
	ADD(out, "}");
}

/* The engine's total ends before the reply is written: it is never told below ttft_ms. */
static void put_timing(const struct pfx_reply *r, struct pfx_buf *out, const struct pfx_event *ev)
{
	uint64_t start = r->start_ns != 0 ? r->start_ns : ev->received_ns;
	double ttft_ms = r->first_ns > start ? pfx_ns_to_ms(r->first_ns - start) : 0;

	ADD(out, ",\"timing\":{\"queue_ms\":");
	pfx_jw_ms(out, ev->queue_ms);
	ADD(out, ",\"prefill_ms\":");
	pfx_jw_ms(out, ev->prefill_ms);
	ADD(out, ",\"ttft_ms\":");
	if (r->first_ns == 0) {
		ADD(out, "null");
	} else {
		pfx_jw_ms(out, ttft_ms);
	}
	ADD(out, ",\"total_ms\":");
	pfx_jw_ms(out, ev->total_ms > ttft_ms ? ev->total_ms : ttft_ms);
	ADD(out, "}");
}

static void put_miss(struct pfx_buf *out, const struct pfx_event *ev)
{
	ADD(out, ",\"miss\":");
	if (ev->miss == PFX_MISS_NONE) {
		ADD(out, "null");
		return;
	}
	ADD(out, "{\"reason\":\"");
	pfx_buf_adds(out, pfx_miss_name(ev->miss));
	ADD(out, "\",\"at_token\":");
	pfx_jw_u64(out, ev->miss_at_token);
	ADD(out, ",\"message\":");
	if (ev->miss_message < 0) {
		ADD(out, "null");
	} else {
		pfx_jw_i64(out, ev->miss_message);
	}
	ADD(out, ",\"byte\":");
	pfx_jw_u64(out, ev->miss_byte);
	if (ev->miss == PFX_MISS_NOT_COPIED) {
		ADD(out, ",\"evicted_ms_ago\":null,\"not_copied\":true");
	}
	if (ev->miss == PFX_MISS_EVICTED) {
		ADD(out, ",\"evicted_ms_ago\":");
		if (ev->miss_evicted_ms_ago < 0) {
			ADD(out, "null");
		} else {
			pfx_jw_ms(out, ev->miss_evicted_ms_ago);
		}
	}
	ADD(out, "}");
}

static void put_score(struct pfx_buf *out, const struct pfx_event *ev)
{
	ADD(out, ",\"logprobs\":[");
	for (uint32_t i = 0; i < ev->n_score; i++) {
		separate(out, i);
		pfx_jw_real(out, ev->score[i]);
	}
	ADD(out, "],\"top\":[");
	for (uint32_t i = 0; i < ev->n_score; i++) {
		separate(out, i);
		put_top(out, ev->n_score_top == 0 ? NULL : ev->score_top + (size_t)i * ev->n_score_top,
			ev->n_score_top);
	}
	ADD(out, "]");
}

static void done_line(const struct pfx_reply *r, const struct pfx_event *ev, struct pfx_buf *out)
{
	ADD(out, "done\",\"finish\":\"");
	pfx_buf_adds(out, pfx_finish_name(ev->finish));
	ADD(out, "\"");
	if (r->op == PFX_OP_GENERATE && !r->stream) {
		put_collected(r, out);
	}
	if (r->op == PFX_OP_SCORE) {
		put_score(out, ev);
	}
	put_usage(out, &ev->usage);
	put_timing(r, out, ev);
	put_miss(out, ev);
	ADD(out, ",\"request\":");
	pfx_jw_u64(out, ev->number);
	ADD(out, ",\"seed\":");
	pfx_jw_u64(out, ev->seed);
}

static void tokens_line(const struct pfx_event *ev, struct pfx_buf *out)
{
	ADD(out, "tokens\",\"tokens\":[");
	for (size_t i = 0; i < ev->n_tokens; i++) {
		separate(out, i > 0);
		pfx_jw_u64(out, ev->tokens[i]);
	}
	ADD(out, "],\"count\":");
	pfx_jw_u64(out, ev->n_tokens);
}

static void flushed_line(const struct pfx_event *ev, struct pfx_buf *out)
{
	ADD(out, "flushed\",\"blocks\":{\"device\":");
	pfx_jw_u64(out, ev->flushed_device);
	ADD(out, ",\"host\":");
	pfx_jw_u64(out, ev->flushed_host);
	ADD(out, ",\"disk\":");
	pfx_jw_u64(out, ev->flushed_disk);
	ADD(out, "},\"in_use\":");
	pfx_jw_u64(out, ev->in_use);
	ADD(out, ",\"leases\":");
	pfx_jw_u64(out, ev->flushed_leases);
	ADD(out, ",\"moving\":");
	pfx_jw_u64(out, ev->flushed_moving);
	if (ev->durable) {
		ADD(out, ",\"durable\":true");
	} else {
		ADD(out, ",\"durable\":false");
	}
}

/* The members of a JSON object, each with a comma in front. */
static void put_members(struct pfx_buf *out, const json_t *object)
{
	char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
	size_t n = text == NULL ? 0 : strlen(text);

	if (object != NULL && text == NULL) {
		out->oom = 1;
	}
	if (n > 2) {
		ADD(out, ",");
		pfx_buf_add(out, text + 1, n - 2);
	}
	/* Memory of the library's own allocator. */
	free(text);
}

static void last_line(const struct pfx_reply *r, const struct pfx_event *ev, const json_t *extra,
	struct pfx_buf *out)
{
	switch (ev->kind) {
	case PFX_EVENT_DONE:
		done_line(r, ev, out);
		break;
	case PFX_EVENT_ERROR:
		ADD(out, "error\"");
		put_error(out, pfx_fault_name(ev->fault), ev->message == NULL ? "" : ev->message,
			ev->message == NULL ? 0 : strlen(ev->message), ev->retry_after_ms);
		break;
	case PFX_EVENT_TEXT:
		ADD(out, "text\",\"text\":");
		pfx_jw_str(out, ev->text, ev->text_len);
		break;
	case PFX_EVENT_TOKENS:
		tokens_line(ev, out);
		break;
	case PFX_EVENT_STATS:
		ADD(out, "stats\"");
		put_members(out, ev->report);
		put_members(out, extra);
		break;
	case PFX_EVENT_CHECK:
		ADD(out, "check\"");
		put_members(out, ev->report);
		break;
	case PFX_EVENT_REPORT:
		pfx_buf_adds(out, ev->report_name);
		ADD(out, "\"");
		put_members(out, ev->report);
		if (ev->report_text_len > 0) {
			ADD(out, ",");
			pfx_buf_add(out, ev->report_text, ev->report_text_len);
		}
		break;
	case PFX_EVENT_FLUSHED:
		flushed_line(ev, out);
		break;
	case PFX_EVENT_PREFILL:
		ADD(out, "prefill\",\"done\":");
		pfx_jw_u64(out, ev->done);
		ADD(out, ",\"total\":");
		pfx_jw_u64(out, ev->total);
		break;
	case PFX_EVENT_TOKEN:
		break;
	}
}

int pfx_reply_event(struct pfx_reply *r, const struct pfx_event *ev, const json_t *extra,
	struct pfx_buf *out)
{
	size_t before = out->len;

	if (ev->kind == PFX_EVENT_TOKEN) {
		if (!r->stream) {
			return collect(r, ev);
		}
		token_line(r, ev, out);
	} else {
		pfx_buf_add(out, r->head, r->head_len);
		last_line(r, ev, extra, out);
		pfx_reply_end(out);
	}
	if (out->oom) {
		out->oom = 0;
		out->len = before;
		return -ENOMEM;
	}
	return 0;
}
