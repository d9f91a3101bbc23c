/*
 * An engine without a model: engine.h's functions over a thread that echoes prompts. The
 * front door is tested against it, fast and with every delay and failure at will. A token
 * is a byte (0..255); 256 ends a reply. Words in the prompt's text steer it:
 *
 *   @n=N        the reply has N tokens (the prompt, over and over)
 *   @delay=MS   between two tokens
 *   @prefill=MS before the first one, with progress events at halves when asked for
 *   @pad=N      each token's text is N letters
 *   @error=CODE ends in that error, after the prefill
 *   @hang       never ends by itself
 *
 * A prompt seen before under the same salt counts as cached.
 */
#include "engine/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/fake_life.h"
#include "tests/fake_view.h"

#define EOS 256u
#define SEEN_MAX 4096
#define EVENTS_MAX 20000 /* the thread rests while so many wait to be taken */

struct run {
	struct pfx_list link;
	struct pfx_job *job;
	uint64_t due_ns, deadline_ns, prefill_ns, delay_ns, start_ns;
	uint8_t *prompt;
	size_t n_prompt, n_reply, at, sent; /* sent: bytes of the prompt whose text went out */
	size_t pad;
	int hang, cancelled, cached, progressed;
	struct fake_turn turn;
	enum pfx_fault fault;
	int has_fault;
};

struct item {
	struct pfx_list link;
	struct pfx_event *ev;
};

struct pfx_engine {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct pfx_list runs, events;
	int fd, stop, draining;
	uint32_t n_runs, n_events, busy;
	struct fake_life life;
	uint64_t next_number, done, cancelled, failed;
	uint64_t seen[SEEN_MAX];
	uint32_t n_seen;
	struct pfx_engine_info info;
};

/* ---- events ---- */

static struct pfx_event *event_new(const struct pfx_job *job, enum pfx_event_kind kind)
{
	struct pfx_event *ev = pfx_xcalloc(1, sizeof(*ev));

	ev->kind = kind;
	ev->number = job->number;
	ev->user = job->user;
	ev->received_ns = job->received_ns;
	return ev;
}

static void post(struct pfx_engine *e, struct pfx_event *ev)
{
	struct item *it = pfx_xcalloc(1, sizeof(*it));
	uint64_t one = 1;

	it->ev = ev;
	pfx_list_push_back(&e->events, &it->link);
	e->n_events++;
	if (write(e->fd, &one, sizeof(one)) < 0 && errno != EAGAIN) {
		abort();
	}
}

/* By lock. Ends a job that is not in the list of runs (any more). */
static void finish(struct pfx_engine *e, struct pfx_job *job, struct pfx_event *ev)
{
	ev->last = 1;
	if (job->kind <= PFX_JOB_SCORE) {
		if (ev->kind == PFX_EVENT_ERROR) {
			e->failed++;
		} else if (ev->finish == PFX_FINISH_CANCELLED) {
			e->cancelled++;
		} else {
			e->done++;
		}
	}
	post(e, ev);
	pfx_job_free(job);
}

static void fail(struct pfx_engine *e, struct pfx_job *job, enum pfx_fault fault, const char *why)
{
	struct pfx_event *ev = event_new(job, PFX_EVENT_ERROR);

	ev->fault = fault;
	ev->message = pfx_xstrdup(why);
	ev->retry_after_ms = fault == PFX_FAULT_OVERLOADED ? 50 : 0;
	finish(e, job, ev);
}

/* ---- prompts ---- */

static void prompt_of(const struct pfx_job *job, uint8_t **out, size_t *n)
{
	struct pfx_buf b = PFX_BUF_INIT;

	fake_prompt(job, &b);
	*out = (uint8_t *)pfx_buf_take(&b, n);
}

static long word(const struct run *r, const char *name, long otherwise)
{
	const char *at = strstr((const char *)r->prompt, name);

	return at == NULL ? otherwise : strtol(at + strlen(name), NULL, 10);
}

static void steer(struct run *r)
{
	const char *error = strstr((const char *)r->prompt, "@error=");

	r->n_reply = (size_t)word(r, "@n=", (long)r->n_prompt);
	r->delay_ns = (uint64_t)word(r, "@delay=", 0) * 1000000u;
	r->prefill_ns = (uint64_t)word(r, "@prefill=", 0) * 1000000u;
	r->pad = (size_t)word(r, "@pad=", 0);
	r->hang = strstr((const char *)r->prompt, "@hang") != NULL;
	for (int f = 0; error != NULL && f <= PFX_FAULT_INTERNAL; f++) {
		const char *name = pfx_fault_name((enum pfx_fault)f);

		if (strncmp(error + 7, name, strlen(name)) == 0) {
			r->has_fault = 1;
			r->fault = (enum pfx_fault)f;
		}
	}
}

static int note_seen(struct pfx_engine *e, const struct run *r)
{
	uint64_t h = 7;

	for (size_t i = 0; i < r->job->salt_len; i++) {
		h = pfx_rng_mix(h, (uint8_t)r->job->salt[i]);
	}
	h = pfx_rng_mix(h, r->n_prompt);
	for (size_t i = 0; i < r->n_prompt; i++) {
		h = pfx_rng_mix(h, r->prompt[i]);
	}
	for (uint32_t i = 0; i < e->n_seen; i++) {
		if (e->seen[i] == h) {
			return 1;
		}
	}
	if (e->n_seen < SEEN_MAX && !r->job->no_store) {
		e->seen[e->n_seen++] = h;
	}
	return 0;
}

/* ---- running ---- */

static void fill_top(struct pfx_top *top, uint32_t n, uint32_t first)
{
	for (uint32_t i = 0; i < n; i++) {
		top[i].token = (first + i) % EOS;
		top[i].logprob = -0.25f * (float)(i + 1);
	}
}

static void token_text(struct run *r, struct pfx_event *ev, uint32_t token)
{
	struct pfx_buf b = PFX_BUF_INIT;

	if (r->pad > 0) {
		for (size_t i = 0; i < r->pad; i++) {
			pfx_buf_addc(&b, 'x');
		}
	} else if (token != EOS) {
		/* The character that this byte ends, if it ends one. */
		size_t end = r->at % r->n_prompt + 1;

		if (end == 1) {
			r->sent = 0;
		}
		r->sent += pfx_utf8_clean(&b, (char *)r->prompt + r->sent, end - r->sent, 0);
	}
	ev->text = pfx_buf_take(&b, &ev->text_len);
}

static void emit(struct pfx_engine *e, struct run *r, uint32_t token)
{
	struct pfx_event *ev = event_new(r->job, PFX_EVENT_TOKEN);
	struct pfx_job *job = r->job;

	ev->token = token;
	token_text(r, ev, token);
	if (job->logprobs >= 0) {
		ev->has_logprob = 1;
		ev->logprob = -0.001f * (float)(token + 1);
		ev->n_top = (uint32_t)job->logprobs;
		ev->top = pfx_xcalloc(ev->n_top, sizeof(*ev->top));
		fill_top(ev->top, ev->n_top, token);
	}
	ev->has_digest = job->digest;
	ev->digest = pfx_rng_mix(job->digest ? r->n_prompt : 0, r->at);
	post(e, ev);
	r->at++;
}

static struct pfx_event *done_event(struct run *r, enum pfx_finish how)
{
	struct pfx_event *ev = event_new(r->job, PFX_EVENT_DONE);
	struct pfx_job *job = r->job;
	uint32_t n = (uint32_t)r->n_prompt, cached = r->cached ? n : 0;

	if (job->kind == PFX_JOB_SCORE && cached > job->from - 1) {
		cached = job->from - 1;
	}
	ev->finish = how;
	ev->usage.prompt_tokens = n;
	ev->usage.completion_tokens = (uint32_t)r->at;
	ev->usage.cached_device = cached;
	ev->usage.computed_tokens = n - cached;
	ev->seed = job->has_seed ? job->seed : 4711;
	ev->prefill_ms = pfx_ns_to_ms(r->prefill_ns);
	ev->total_ms = pfx_ns_to_ms(pfx_clock_ns() - r->start_ns);
	ev->miss = cached == n ? PFX_MISS_NONE : PFX_MISS_NEVER_SEEN;
	ev->miss_at_token = cached;
	ev->miss_byte = cached;
	ev->miss_message = job->prompt == PFX_PROMPT_CHAT ? 0 : -1;
	if (job->kind == PFX_JOB_SCORE) {
		ev->n_score = n - job->from;
		ev->n_score_top = (uint32_t)job->logprobs;
		ev->score = pfx_xcalloc(ev->n_score, sizeof(*ev->score));
		ev->score_top = pfx_xcalloc((size_t)ev->n_score * ev->n_score_top,
			sizeof(*ev->score_top));
		for (uint32_t i = 0; i < ev->n_score; i++) {
			ev->score[i] = -0.01f * r->prompt[job->from + i];
			fill_top(ev->score_top + (size_t)i * ev->n_score_top, ev->n_score_top, i);
		}
	}
	return ev;
}

/* What was said becomes the session's, if it ended well. */
static void end_turn(struct pfx_engine *e, struct run *r, const struct pfx_event *ev)
{
	struct pfx_buf prompt = PFX_BUF_INIT, reply = PFX_BUF_INIT;
	int good = ev->kind == PFX_EVENT_DONE && ev->finish != PFX_FINISH_CANCELLED;

	pfx_buf_add(&prompt, r->prompt, r->n_prompt);
	for (size_t i = 0; good && i < r->at && i < r->n_reply; i++) {
		pfx_buf_addc(&reply, (char)r->prompt[i % r->n_prompt]);
	}
	fake_life_end(&e->life, r->job, &r->turn, &prompt, good ? &reply : NULL);
	pfx_buf_free(&prompt);
	pfx_buf_free(&reply);
}

static void end_run(struct pfx_engine *e, struct run *r, struct pfx_event *ev)
{
	end_turn(e, r, ev);
	pfx_list_remove(&r->link);
	e->n_runs--;
	finish(e, r->job, ev);
	pfx_free(r->prompt);
	pfx_free(r);
}

static void end_in_error(struct pfx_engine *e, struct run *r, enum pfx_fault fault, const char *why)
{
	struct pfx_event *ev = event_new(r->job, PFX_EVENT_ERROR);

	ev->fault = fault;
	ev->message = pfx_xstrdup(why);
	ev->retry_after_ms = fault == PFX_FAULT_OVERLOADED ? 50 : 0;
	end_run(e, r, ev);
}

static void progress(struct pfx_engine *e, struct run *r, uint32_t done)
{
	struct pfx_event *ev = event_new(r->job, PFX_EVENT_PREFILL);

	ev->done = done;
	ev->total = (uint32_t)r->n_prompt;
	post(e, ev);
}

/* What is due of one run; 1 when it ended. */
static int advance(struct pfx_engine *e, struct run *r, uint64_t now)
{
	if (r->cancelled) {
		end_run(e, r, done_event(r, PFX_FINISH_CANCELLED));
		return 1;
	}
	if (r->deadline_ns != 0 && now >= r->deadline_ns) {
		end_in_error(e, r, PFX_FAULT_DEADLINE, "the deadline has passed");
		return 1;
	}
	if (r->job->progress && r->progressed == 0) {
		r->progressed = 1;
		progress(e, r, (uint32_t)r->n_prompt / 2);
	}
	if (now < r->due_ns) {
		return 0;
	}
	if (r->job->progress && r->progressed == 1) {
		r->progressed = 2;
		progress(e, r, (uint32_t)r->n_prompt);
	}
	if (r->has_fault) {
		end_in_error(e, r, r->fault, "as the prompt asked");
		return 1;
	}
	if (r->job->kind != PFX_JOB_GENERATE && !r->hang) {
		end_run(e, r, done_event(r, r->job->kind == PFX_JOB_WARM ? PFX_FINISH_LENGTH
			: PFX_FINISH_STOP));
		return 1;
	}
	for (int i = 0; i < 16 && !r->hang; i++) {
		if (r->at >= r->job->max_tokens) {
			end_run(e, r, done_event(r, PFX_FINISH_LENGTH));
			return 1;
		}
		if (r->at >= r->n_reply) {
			emit(e, r, EOS);
			end_run(e, r, done_event(r, PFX_FINISH_STOP));
			return 1;
		}
		emit(e, r, r->prompt[r->at % r->n_prompt]);
		if (r->delay_ns > 0) {
			r->due_ns = now + r->delay_ns;
			break;
		}
	}
	return 0;
}

static void rest(struct pfx_engine *e, uint64_t until)
{
	uint64_t now = pfx_clock_ns();
	struct timespec ts;

	if (until == UINT64_MAX) {
		pthread_cond_wait(&e->wake, &e->lock);
		return;
	}
	if (until <= now) {
		return;
	}
	clock_gettime(CLOCK_REALTIME, &ts);
	until = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + (until - now);
	ts.tv_sec = (time_t)(until / 1000000000u);
	ts.tv_nsec = (long)(until % 1000000000u);
	pthread_cond_timedwait(&e->wake, &e->lock, &ts);
}

static void *work(void *arg)
{
	struct pfx_engine *e = arg;

	pthread_mutex_lock(&e->lock);
	while (!e->stop) {
		uint64_t now = pfx_clock_ns(), next = UINT64_MAX;

		pfx_list_for_safe(it, &e->runs) {
			struct run *r = pfx_container_of(it, struct run, link);

			if (advance(e, r, now)) {
				continue;
			}
			if (!r->hang && r->due_ns < next) {
				next = r->due_ns;
			}
			if (r->deadline_ns != 0 && r->deadline_ns < next) {
				next = r->deadline_ns;
			}
		}
		rest(e, e->n_events > EVENTS_MAX ? now + 1000000u : next);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

/* ---- the facade ---- */

int pfx_engine_open(struct pfx_engine **out, const struct pfx_engine_opts *opts, char *err,
	size_t errlen)
{
	struct pfx_engine *e = pfx_xcalloc(1, sizeof(*e));

	if (opts->model_path != NULL && access(opts->model_path, R_OK) < 0) {
		int rc = -errno;

		pfx_free(e);
		return pfx_fail(rc, err, errlen, "model %s: %s", opts->model_path, strerror(-rc));
	}
	if (opts->progress != NULL) {
		opts->progress(opts->progress_arg, "weights", 0.5);
		opts->progress(opts->progress_arg, "weights", 1);
	}
	e->info = (struct pfx_engine_info){ .model = "echo", .architecture = "fake", .backend = "cpu",
		.kernels = "reference", .kv = "f16", .activations = "f32", .chat_template = "echo",
		.arithmetic = 1, .n_threads = opts->n_threads != 0 ? opts->n_threads : 1,
		.n_vocab = EOS + 1, .context = opts->context != 0 ? opts->context : 1u << 20,
		.block_tokens = opts->block_tokens != 0 ? opts->block_tokens : 32, .n_blocks = 1000,
		.bos = UINT32_MAX, .eos = EOS, .kv_bytes_per_token = 1, .weight_bytes = 1,
		.max_requests = opts->max_requests != 0 ? opts->max_requests : 64,
		.queue_max = opts->queue_max != 0 ? opts->queue_max : 1024,
		.chunk_tokens = opts->chunk_tokens != 0 ? opts->chunk_tokens : 512,
		.sessions_max = 20000, .sessions_space_max = 10000, .session_bytes_max = 1 << 28,
		.session_ttl_ms = 3600000, .prefixes_max = 10000, .prefixes_space_max = 1000,
		.prefix_bytes_max = 1 << 28, .pins_max = 64, .pin_ttl_ms = 3600000,
		.pin_ttl_max_ms = 86400000 };
	fake_life_open(&e->life);
	pfx_list_init(&e->runs);
	pfx_list_init(&e->events);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->wake, NULL);
	e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (e->fd < 0 || pthread_create(&e->thread, NULL, work, e) != 0) {
		abort();
	}
	*out = e;
	return 0;
}

void pfx_engine_close(struct pfx_engine *e)
{
	struct pfx_event *ev;

	if (e == NULL) {
		return;
	}
	pthread_mutex_lock(&e->lock);
	e->stop = 1;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	pfx_list_for_safe(it, &e->runs) {
		struct run *r = pfx_container_of(it, struct run, link);

		end_run(e, r, done_event(r, PFX_FINISH_CANCELLED));
	}
	while ((ev = pfx_engine_next(e)) != NULL) {
		pfx_event_free(ev);
	}
	fake_life_close(&e->life);
	close(e->fd);
	pthread_cond_destroy(&e->wake);
	pthread_mutex_destroy(&e->lock);
	pfx_free(e);
}

const struct pfx_engine_info *pfx_engine_info(const struct pfx_engine *e)
{
	return &e->info;
}

void pfx_engine_drain(struct pfx_engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->draining = 1;
	pthread_mutex_unlock(&e->lock);
}

uint32_t pfx_engine_busy(const struct pfx_engine *e)
{
	struct pfx_engine *m = (struct pfx_engine *)e;
	uint32_t n;

	pthread_mutex_lock(&m->lock);
	n = m->busy;
	pthread_mutex_unlock(&m->lock);
	return n;
}

static void run_job(struct pfx_engine *e, struct pfx_job *job)
{
	uint64_t now = pfx_clock_ns();
	struct pfx_buf prompt = PFX_BUF_INIT;
	struct fake_fault f = { 0 };
	struct fake_turn turn;
	struct run *r;

	if (e->draining) {
		fail(e, job, PFX_FAULT_SHUTTING_DOWN, "the server is going down");
		return;
	}
	if (e->n_runs >= e->info.max_requests + e->info.queue_max) {
		fail(e, job, PFX_FAULT_OVERLOADED, "the queue is full");
		return;
	}
	if (fake_life_begin(&e->life, job, &turn, &prompt, &f) < 0) {
		pfx_buf_free(&prompt);
		fail(e, job, f.fault, f.why);
		return;
	}
	r = pfx_xcalloc(1, sizeof(*r));
	r->job = job;
	r->turn = turn;
	r->prompt = (uint8_t *)pfx_buf_take(&prompt, &r->n_prompt);
	pfx_list_init(&r->link);
	if (r->n_prompt >= e->info.context
		|| (job->kind == PFX_JOB_SCORE && job->from > r->n_prompt)) {
		int too_long = r->n_prompt >= e->info.context;

		fake_life_end(&e->life, job, &r->turn, NULL, NULL);
		pfx_free(r->prompt);
		pfx_free(r);
		fail(e, job, too_long ? PFX_FAULT_TOO_LONG : PFX_FAULT_BAD_REQUEST,
			too_long ? "the prompt is longer than the context" : "from is behind the prompt's end");
		return;
	}
	steer(r);
	r->cached = note_seen(e, r);
	r->start_ns = job->received_ns != 0 ? job->received_ns : now;
	r->due_ns = now + r->prefill_ns;
	r->deadline_ns = job->deadline_ms == 0 ? 0 : now + job->deadline_ms * 1000000ull;
	pfx_list_push_back(&e->runs, &r->link);
	e->n_runs++;
	pthread_cond_signal(&e->wake);
}

static void tokenize(struct pfx_engine *e, struct pfx_job *job)
{
	struct pfx_event *ev = event_new(job, PFX_EVENT_TOKENS);
	uint8_t *bytes;

	prompt_of(job, &bytes, &ev->n_tokens);
	ev->tokens = pfx_xcalloc(ev->n_tokens, sizeof(*ev->tokens));
	for (size_t i = 0; i < ev->n_tokens; i++) {
		ev->tokens[i] = bytes[i];
	}
	pfx_free(bytes);
	finish(e, job, ev);
}

static void text(struct pfx_engine *e, struct pfx_job *job)
{
	struct pfx_event *ev;
	struct pfx_buf b = PFX_BUF_INIT;
	uint8_t *bytes;
	char why[64];
	size_t n;

	for (size_t i = 0; i < job->n_tokens; i++) {
		if (job->tokens[i] > EOS) {
			snprintf(why, sizeof(why), "tokens[%zu] is not in the vocabulary", i);
			fail(e, job, PFX_FAULT_BAD_REQUEST, why);
			return;
		}
	}
	prompt_of(job, &bytes, &n);
	ev = event_new(job, PFX_EVENT_TEXT);
	pfx_utf8_clean(&b, (char *)bytes, n, 1);
	ev->text = pfx_buf_take(&b, &ev->text_len);
	pfx_free(bytes);
	finish(e, job, ev);
}

/* Of a store that holds one record. */
static struct pfx_event *tiers_report(struct pfx_job *job)
{
	struct pfx_event *ev = event_new(job, PFX_EVENT_REPORT);
	const char *what = json_string_value(json_object_get(job->args, "do"));

	if (job->kind == PFX_JOB_EVICT) {
		ev->report_name = "evicted";
		ev->report = json_pack("{s:s,s:i,s:i,s:i,s:i}", "tier", "device", "blocks", 0, "bytes", 0,
			"in_use", 0, "moving", 0);
	} else if (job->kind == PFX_JOB_SAVE) {
		ev->report_name = "saved";
		ev->report = json_pack("{s:i,s:i}", "records", 1, "bytes", 741376);
	} else {
		ev->report_name = "store";
		ev->report = json_pack("{s:s,s:f,s:i}", "do", what == NULL ? "info" : what, "ms", 0.5,
			"records", 1);
		if (what != NULL && strcmp(what, "verify") == 0) {
			json_object_set_new(ev->report, "bytes", json_integer(741376));
			json_object_set_new(ev->report, "damaged", json_integer(0));
		}
	}
	return ev;
}

static void report(struct pfx_engine *e, struct pfx_job *job)
{
	const char *name;
	json_t *view = fake_view_report(job, &name);
	struct pfx_event *ev;

	if (view != NULL) {
		ev = event_new(job, PFX_EVENT_REPORT);
		ev->report = view;
		ev->report_name = name;
	} else if (job->kind == PFX_JOB_FLUSH) {
		ev = event_new(job, PFX_EVENT_FLUSHED);
		ev->flushed_device = e->n_seen;
		ev->in_use = e->n_runs;
		ev->durable = 1;
		e->n_seen = 0;
	} else if (job->kind == PFX_JOB_CHECK) {
		ev = event_new(job, PFX_EVENT_CHECK);
		ev->report = json_pack("{s:b,s:[]}", "ok", 1, "problems");
	} else if (job->kind >= PFX_JOB_EVICT && job->kind <= PFX_JOB_STORE) {
		ev = tiers_report(job);
	} else {
		ev = event_new(job, PFX_EVENT_STATS);
		ev->report = json_pack("{s:f,s:i,s:{s:i,s:i,s:I,s:I,s:I}}", "uptime_s", 0.1,
			"block_tokens", 32, "requests", "running", (int)e->n_runs, "queued", 0,
			"done", (json_int_t)e->done, "cancelled", (json_int_t)e->cancelled,
			"failed", (json_int_t)e->failed);
	}
	finish(e, job, ev);
}

static void life(struct pfx_engine *e, struct pfx_job *job)
{
	struct fake_fault f = { 0 };
	const char *name = NULL;
	json_t *report = fake_life_answer(&e->life, job, &name, &f);
	struct pfx_event *ev;

	if (report == NULL) {
		fail(e, job, f.fault, f.why);
		return;
	}
	ev = event_new(job, PFX_EVENT_REPORT);
	ev->report = report;
	ev->report_name = name;
	finish(e, job, ev);
}

uint64_t pfx_engine_submit(struct pfx_engine *e, struct pfx_job *job)
{
	uint64_t number;

	pthread_mutex_lock(&e->lock);
	number = job->number = ++e->next_number;
	e->busy++;
	if (job->kind <= PFX_JOB_SCORE) {
		run_job(e, job);
	} else if (job->kind == PFX_JOB_TOKENIZE) {
		tokenize(e, job);
	} else if (job->kind == PFX_JOB_DETOKENIZE || job->kind == PFX_JOB_RENDER) {
		text(e, job);
	} else if (job->kind < PFX_JOB_STATS) {
		life(e, job);
	} else {
		report(e, job);
	}
	pthread_mutex_unlock(&e->lock);
	return number;
}

int pfx_engine_cancel(struct pfx_engine *e, uint64_t number)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&e->lock);
	pfx_list_for(it, &e->runs) {
		struct run *r = pfx_container_of(it, struct run, link);

		if (r->job->number == number) {
			r->cancelled = 1;
			rc = 0;
		}
	}
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
	return rc;
}

int pfx_engine_event_fd(const struct pfx_engine *e)
{
	return e->fd;
}

struct pfx_event *pfx_engine_next(struct pfx_engine *e)
{
	struct pfx_event *ev = NULL;
	uint64_t n;

	pthread_mutex_lock(&e->lock);
	if (pfx_list_empty(&e->events)) {
		if (read(e->fd, &n, sizeof(n)) < 0 && errno != EAGAIN) {
			abort();
		}
	} else {
		struct item *it = pfx_container_of(e->events.next, struct item, link);

		pfx_list_remove(&it->link);
		ev = it->ev;
		pfx_free(it);
		e->n_events--;
		e->busy -= ev->last != 0;
	}
	pthread_mutex_unlock(&e->lock);
	return ev;
}
