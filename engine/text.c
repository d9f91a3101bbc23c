/*
 * The text threads: what turns text into tokens and back. They keep chat templates and long
 * tokenisations off both the event loop and the engine thread, and long texts have a thread
 * of their own, so that nobody's short prompt stands behind somebody's megabytes. Jobs that
 * are text alone end here; the others go on to the engine thread, also when they failed, so
 * that a request has one place to end.
 */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* A text of this size takes some 5 ms to tokenise. */
enum { LONG_TEXT_BYTES = 128 << 10 };

static struct pfx_str spelling_of(const struct pfx_engine *e, uint32_t id)
{
	struct pfx_str none = { "", 0 };

	return id == UINT32_MAX ? none : pfx_tokenizer_spelling(e->tokenizer, id);
}

/* Renders the job's messages into out; on failure the request is marked and it is empty. */
static int render(struct pfx_engine *e, struct pfx_request *r, struct pfx_chat_output *out)
{
	const struct pfx_job *job = r->job;
	char err[512] = "";
	struct pfx_chat_input in = {
		.messages = job->messages,
		.tools = job->tools,
		.documents = job->documents,
		.kwargs = job->kwargs,
		.add_generation_prompt = job->add_generation_prompt,
		.bos = spelling_of(e, e->info.bos),
		.eos = spelling_of(e, e->info.eos),
		.now = e->opts.template_time != NULL ? &e->template_time : NULL,
	};
	int rc;

	if (e->chat == NULL) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST,
			"messages: the model has no chat template; give one with --chat-template");
		return -ENOENT;
	}
	rc = pfx_chat_render(e->chat, &in, out, err, sizeof(err));
	if (rc == -ENOMEM) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory in the chat template");
	} else if (rc != 0) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "messages: %s",
			err[0] != 0 ? err : pfx_strerror(rc));
	}
	return rc;
}

static void encode(struct pfx_engine *e, struct pfx_request *r, const char *text, size_t n,
	const struct pfx_span *spans, size_t n_spans)
{
	size_t least = r->tokens.n + pfx_tokenizer_least_ids(e->tokenizer, n);
	struct pfx_key owner = { 0 };
	struct pfx_piece_use use = { .pieces = e->pieces };
	int rc;

	if (r->job->kind != PFX_JOB_TOKENIZE && least >= e->info.context) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG, "prompt has at least %zu tokens, the context is %u",
			least, e->info.context);
		return;
	}
	rc = pfx_key_make(&owner, r->job->space, r->job->space_len, r->job->salt, r->job->salt_len,
		"", 0);
	if (rc == 0) {
		use.owner = owner.data;
		use.owner_len = owner.len;
		rc = pfx_tokenizer_encode_kept(e->tokenizer, &use, text, n, spans, n_spans, &r->tokens);
	}
	pfx_key_free(&owner);
	if (rc == -ENOMEM) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory in the tokenizer");
	} else if (rc != 0) {
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "the text cannot be tokenised: %s",
			pfx_strerror(rc));
	}
}

/* The rendered text from a byte on, with the spans that reach beyond it. */
static void encode_from(struct pfx_engine *e, struct pfx_request *r,
	const struct pfx_chat_output *out, size_t from)
{
	struct pfx_span *spans = pfx_xcalloc(out->n_spans + 1, sizeof(*spans));
	size_t n = 0;

	for (size_t i = 0; i < out->n_spans; i++) {
		if (out->spans[i].end > from) {
			spans[n].start = out->spans[i].start > from ? out->spans[i].start - from : 0;
			spans[n++].end = out->spans[i].end - from;
		}
	}
	encode(e, r, out->text.data + from, out->text.len - from, spans, n);
	pfx_free(spans);
}

static void encode_chat(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_chat_output out;
	size_t seen;

	memset(&out, 0, sizeof(out));
	if (render(e, r, &out) != 0) {
		return;
	}
	seen = pfx_life_seen(e, r, &out);
	if (seen > 0) {
		encode_from(e, r, &out, seen);
	} else {
		encode(e, r, out.text.data, out.text.len, out.spans, out.n_spans);
	}
	if (r->session != NULL && !r->failed &&
		pfx_tokenizer_specials(e->tokenizer, out.text.data, out.text.len, out.spans,
			out.n_spans, &r->specials, &r->n_specials) != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory in the tokenizer");
	}
	/* Kept to tell a miss in the client's own terms, and for the session. */
	r->text = out.text;
	memset(&out.text, 0, sizeof(out.text));
	pfx_chat_output_free(&out);
}

static void encode_text(struct pfx_engine *e, struct pfx_request *r)
{
	const struct pfx_job *job = r->job;
	struct pfx_span all = { 0, job->text_len };
	uint32_t bos = e->info.bos;
	int with_bos = job->kind != PFX_JOB_TOKENIZE && job->text_len > 0 && bos != UINT32_MAX &&
		r->tokens.n == 0 && pfx_tokenizer_add_bos(e->tokenizer);

	if (with_bos) {
		r->tokens.v = pfx_xmalloc(sizeof(*r->tokens.v));
		r->tokens.v[0] = bos;
		r->tokens.n = r->tokens.cap = 1;
	}
	encode(e, r, job->text, job->text_len, &all, job->text_special);
	pfx_buf_add(&r->text, job->text, job->text_len);
}

void pfx_text_tokenise(struct pfx_engine *e, struct pfx_request *r)
{
	switch (r->job->prompt) {
	case PFX_PROMPT_CHAT:
		encode_chat(e, r);
		break;
	case PFX_PROMPT_TEXT:
		encode_text(e, r);
		break;
	case PFX_PROMPT_TOKENS:
		pfx_request_push_tokens(r, r->job->tokens, r->job->n_tokens);
		break;
	case PFX_PROMPT_NONE:
		pfx_request_fail(r, PFX_FAULT_BAD_REQUEST, "the request has no prompt");
		break;
	}
}

static struct pfx_event *detokenise(struct pfx_engine *e, const struct pfx_job *job)
{
	struct pfx_event *ev = pfx_event_new(PFX_EVENT_TEXT, job);
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf text = PFX_BUF_INIT;

	for (size_t i = 0; i < job->n_tokens; i++) {
		pfx_detok_push(e->tokenizer, &d, job->tokens[i], &text);
	}
	pfx_detok_end(e->tokenizer, &d, &text);
	ev->text = pfx_buf_take(&text, &ev->text_len);
	return ev;
}

static struct pfx_event *run_text_job(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_event *ev = NULL;
	struct pfx_chat_output out;

	if (r->failed) {
		return pfx_fault_event(r->job, r->fault, r->message);
	}
	if (r->job->kind > PFX_JOB_RENDER) {
		return pfx_life_text_job(e, r);
	}
	switch (r->job->kind) {
	case PFX_JOB_TOKENIZE:
		pfx_text_tokenise(e, r);
		ev = pfx_event_new(PFX_EVENT_TOKENS, r->job);
		ev->tokens = r->tokens.v;
		ev->n_tokens = r->tokens.n;
		memset(&r->tokens, 0, sizeof(r->tokens));
		break;
	case PFX_JOB_DETOKENIZE:
		ev = detokenise(e, r->job);
		if (ev->text == NULL) {
			pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory in detokenize");
		}
		break;
	default:
		memset(&out, 0, sizeof(out));
		ev = pfx_event_new(PFX_EVENT_TEXT, r->job);
		if (render(e, r, &out) == 0) {
			ev->text = pfx_buf_take(&out.text, &ev->text_len);
		}
		pfx_chat_output_free(&out);
		break;
	}
	if (r->failed) {
		pfx_event_free(ev);
		return pfx_fault_event(r->job, r->fault, r->message);
	}
	ev->last = 1;
	return ev;
}

void pfx_text_put_locked(struct pfx_engine *e, struct pfx_request *r)
{
	size_t bytes = r->job->bytes > r->job->text_len ? r->job->bytes : r->job->text_len;
	struct pfx_text_queue *q =
		&e->text[bytes > LONG_TEXT_BYTES ? PFX_TEXT_LONG : PFX_TEXT_SHORT];

	pfx_list_push_back(&q->requests, &r->link);
	e->n_text++;
	pthread_cond_signal(&q->wake);
}

/* The next request; NULL when the engine stops and none is left. */
static struct pfx_request *take(struct pfx_text_queue *q)
{
	struct pfx_engine *e = q->engine;
	struct pfx_request *r = NULL;

	pthread_mutex_lock(&e->lock);
	while (pfx_list_empty(&q->requests) && !e->stopping) {
		pthread_cond_wait(&q->wake, &e->lock);
	}
	if (!pfx_list_empty(&q->requests)) {
		r = pfx_container_of(q->requests.next, struct pfx_request, link);
		pfx_list_remove(&r->link);
		e->n_text--;
	}
	pthread_mutex_unlock(&e->lock);
	return r;
}

void *pfx_text_main(void *text_queue)
{
	struct pfx_text_queue *q = text_queue;
	struct pfx_engine *e = q->engine;
	struct pfx_request *r;

	while ((r = take(q)) != NULL) {
		if (pfx_job_is_text(r->job)) {
			pfx_request_leave(e, r, run_text_job(e, r));
			continue;
		}
		/* What does not run the model is done all the same: a close, say, and then a hang-up. */
		if (!r->failed && !(r->cancel && pfx_job_runs(r->job))) {
			pfx_life_tokenise(e, r);
		}
		pfx_engine_enqueue(e, r);
	}
	return NULL;
}
