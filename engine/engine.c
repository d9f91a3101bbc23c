/* The engine's lifetime, and the door through which jobs come in. */
#include "engine/engine_priv.h"
#include "engine/observe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"

enum {
	DEFAULT_BLOCK_TOKENS = 32,
	/* Past this a larger chunk gains no speed on a CPU, and a cancel waits for a step. */
	DEFAULT_CHUNK_TOKENS = 512,
	DEFAULT_STEP_MS = 100,
	DEFAULT_MAX_REQUESTS = 64,
	DEFAULT_QUEUE_MAX = 1024,
	OUT_ROWS_MAX = 64,
	TEMPLATE_FILE_MAX = 4 << 20,
	DEFAULT_CLOSE_MS = 8000,
	DEFAULT_STORE_WAIT_MS = 10000,
	DEFAULT_LOAD_WAIT_MS = 200,
};

static void default_u32(uint32_t *to, uint32_t otherwise)
{
	*to = *to == 0 ? otherwise : *to;
}

static void default_u64(uint64_t *to, uint64_t otherwise)
{
	*to = *to == 0 ? otherwise : *to;
}

static void set_defaults(struct pfx_engine_opts *o)
{
	default_u32(&o->sessions_max, 20000);
	default_u32(&o->sessions_space_max, 10000);
	default_u64(&o->session_bytes_max, 256u << 20);
	default_u64(&o->session_ttl_ms, 3600000);
	default_u32(&o->prefixes_max, 10000);
	default_u32(&o->prefixes_space_max, 1000);
	default_u64(&o->prefix_bytes_max, 256u << 20);
	default_u32(&o->pins_max, 1000);
	default_u64(&o->pin_ttl_ms, 3600000);
	default_u64(&o->pin_ttl_max_ms, 86400000);
	if (o->kv_dtype == NULL) {
		o->kv_dtype = "f16";
	}
	if (o->device_memory == 0) {
		o->device_memory = 1ull << 30;
	}
	if (o->block_tokens == 0) {
		o->block_tokens = DEFAULT_BLOCK_TOKENS;
	}
	if (o->chunk_tokens == 0) {
		o->chunk_tokens = DEFAULT_CHUNK_TOKENS;
	}
	if (o->step_ms == 0) {
		o->step_ms = DEFAULT_STEP_MS;
	}
	if (o->max_requests == 0) {
		o->max_requests = DEFAULT_MAX_REQUESTS;
	}
	if (o->store_wait_ms == 0) {
		o->store_wait_ms = DEFAULT_STORE_WAIT_MS;
	}
	if (o->load_wait_ms == 0) {
		o->load_wait_ms = DEFAULT_LOAD_WAIT_MS;
	}
	if (o->close_ms == 0) {
		o->close_ms = DEFAULT_CLOSE_MS;
	}
	if (o->queue_max == 0) {
		o->queue_max = DEFAULT_QUEUE_MAX;
	}
}

static void report_pack(void *arg, double done)
{
	struct pfx_engine *e = arg;

	if (e->opts.progress != NULL) {
		e->opts.progress(e->opts.progress_arg, "packing weights", done);
	}
}

/* Reads a whole regular file into owned memory, NUL-ended. */
static int read_file(const char *path, char **out, size_t *len, char *err, size_t errlen)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
	struct stat st;
	size_t n = 0;
	ssize_t got;
	char *data;

	if (fd < 0) {
		return pfx_fail(-errno, err, errlen, "%s: %s", path, strerror(errno));
	}
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > TEMPLATE_FILE_MAX) {
		close(fd);
		return pfx_fail(-EINVAL, err, errlen, "%s: not a regular file of at most %d bytes", path,
			TEMPLATE_FILE_MAX);
	}
	data = pfx_xmalloc((size_t)st.st_size + 1);
	while (n < (size_t)st.st_size) {
		got = read(fd, data + n, (size_t)st.st_size - n);
		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			rc = pfx_fail(-errno, err, errlen, "%s: %s", path, strerror(errno));
		}
		if (got <= 0) {
			break;
		}
		n += (size_t)got;
	}
	close(fd);
	if (rc != 0) {
		pfx_free(data);
		return rc;
	}
	data[n] = 0;
	*out = data;
	*len = n;
	return 0;
}

/* The template: a file if one is named, else the model's own; a model may have none. */
static int open_chat(struct pfx_engine *e, const struct pfx_gguf *g, char *err, size_t errlen)
{
	const char *path = e->opts.chat_template_path;
	struct pfx_str own;
	size_t len = 0;
	int rc;

	if (path != NULL) {
		rc = read_file(path, &e->chat_source, &len, err, errlen);
	} else {
		rc = pfx_gguf_str(g, "tokenizer.chat_template", &own, err, errlen);
		if (rc == -ENOENT) {
			return 0;
		}
		if (rc == 0) {
			len = own.n;
			e->chat_source = pfx_xmalloc(len + 1);
			memcpy(e->chat_source, own.s, len);
			e->chat_source[len] = 0;
		}
	}
	if (rc != 0) {
		return rc;
	}
	return pfx_chat_open(&e->chat, e->chat_source, len, path != NULL ? path : e->opts.model_path,
		err, errlen);
}

static int open_model(struct pfx_engine *e, const struct pfx_gguf *g, char *err, size_t errlen)
{
	int int8 = strcmp(e->opts.kv_dtype, "int8") == 0;
	struct pfx_model_opts opts = {
		.backend = e->opts.backend != NULL ? e->opts.backend : "auto",
		.kernels = e->opts.kernels != NULL ? e->opts.kernels : "auto",
		.activations = e->opts.activations,
		.n_threads = e->opts.n_threads,
		.pin_threads = e->opts.pin_threads,
		.block_tokens = e->opts.block_tokens,
		.kv_type = int8 ? PFX_KV_INT8 : PFX_KV_F16,
		.kv_bytes_max = e->opts.device_memory,
		.rows_max = e->rows_max,
		.seqs_max = e->opts.max_requests,
		.out_rows_max = e->out_rows_max,
		.progress = report_pack,
		.progress_arg = e,
	};

	if (!int8 && strcmp(e->opts.kv_dtype, "f16") != 0) {
		return pfx_fail(-EINVAL, err, errlen, "keys and values as '%s': expected f16 or int8",
			e->opts.kv_dtype);
	}
	return pfx_model_open(&e->model, g, &opts, err, errlen);
}

static int open_cache(struct pfx_engine *e, char *err, size_t errlen)
{
	struct pfx_cache_opts opts = { 0 };
	int rc = pfx_keep_open(&e->keep, e->info.n_vocab, e->opts.logits_memory);

	if (rc == 0 && e->opts.text_memory > 0) {
		rc = pfx_pieces_open(&e->pieces, e->opts.text_memory);
	}
	if (rc == 0) {
		opts.block_tokens = e->opts.block_tokens;
		opts.n_blocks = pfx_model_n_blocks(e->model);
		opts.n_host = e->info.n_host_blocks = pfx_arena_blocks(e->tiers.host);
		opts.n_disk = e->info.n_records = e->tiers.n_records;
		opts.save = e->tiers.writer == NULL || e->opts.saves == PFX_SAVES_OFF ? PFX_SAVE_OFF
			: e->opts.saves == PFX_SAVES_ALL ? PFX_SAVE_ALL : PFX_SAVE_REUSED;
		opts.policy = e->opts.eviction == PFX_EVICTION_LRU ? PFX_POLICY_LRU : PFX_POLICY_DEFAULT;
		opts.hash_seed = pfx_rng_entropy(); /* prompts cannot be chosen to collide */
		opts.n_marks = pfx_keep_slots(e->keep);
		rc = pfx_cache_open(&e->cache, &opts);
	}
	if (rc == 0) {
		rc = pfx_observer_open(&e->observer, e->opts.block_tokens);
	}
	if (rc == 0) {
		rc = pfx_life_open(e);
	}
	if (rc == 0) {
		rc = pfx_sampler_open(&e->sampler, e->info.n_vocab);
	}
	if (rc != 0) {
		pfx_fail(rc, err, errlen, "cannot set up the cache: %s", pfx_strerror(rc));
	}
	return rc;
}

static int alloc_step(struct pfx_engine *e, char *err, size_t errlen)
{
	e->step_tokens = pfx_calloc(e->rows_max, sizeof(*e->step_tokens));
	e->step_out_rows = pfx_calloc(e->rows_max, sizeof(*e->step_out_rows));
	e->step_seqs = pfx_calloc(e->opts.max_requests, sizeof(*e->step_seqs));
	e->step_requests = pfx_calloc(e->opts.max_requests, sizeof(*e->step_requests));
	if (e->step_tokens == NULL || e->step_out_rows == NULL || e->step_seqs == NULL ||
		e->step_requests == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "out of memory for a step of %u rows", e->rows_max);
	}
	return 0;
}

static int fill_info(struct pfx_engine *e, char *err, size_t errlen)
{
	const struct pfx_model_config *c = pfx_model_config(e->model);
	struct pfx_engine_info *i = &e->info;
	struct pfx_device_info device;
	uint32_t n = pfx_tokenizer_n_vocab(e->tokenizer);

	if (n > c->n_vocab) {
		return pfx_fail(PFX_E_FORMAT, err, errlen,
			"%s: the tokenizer has %u tokens, the model's embedding %u", e->opts.model_path, n,
			c->n_vocab);
	}
	pfx_model_device(e->model, &device);
	i->model = c->name;
	i->architecture = c->architecture;
	i->backend = device.backend;
	i->kernels = device.kernels;
	i->activations = device.activations;
	i->arithmetic = device.arithmetic;
	i->n_threads = device.n_threads;
	i->kv = strcmp(e->opts.kv_dtype, "int8") == 0 ? "int8" : "f16";
	i->chat_template = e->chat_source;
	i->n_vocab = c->n_vocab;
	i->context = e->opts.context == 0 || e->opts.context > c->n_ctx_train ? c->n_ctx_train
									     : e->opts.context;
	i->block_tokens = e->opts.block_tokens;
	i->n_blocks = pfx_model_n_blocks(e->model);
	i->bos = pfx_tokenizer_bos(e->tokenizer);
	i->eos = pfx_tokenizer_eos(e->tokenizer);
	i->kv_bytes_per_token = pfx_model_block_bytes(e->model) / e->opts.block_tokens;
	i->weight_bytes = pfx_model_weight_bytes(e->model);
	i->max_requests = e->opts.max_requests;
	i->queue_max = e->opts.queue_max;
	i->chunk_tokens = e->opts.chunk_tokens;
	i->sessions_max = e->opts.sessions_max;
	i->sessions_space_max = e->opts.sessions_space_max;
	i->session_bytes_max = e->opts.session_bytes_max;
	i->session_ttl_ms = e->opts.session_ttl_ms;
	i->prefixes_max = e->opts.prefixes_max;
	i->prefixes_space_max = e->opts.prefixes_space_max;
	i->prefix_bytes_max = e->opts.prefix_bytes_max;
	i->pins_max = e->opts.pins_max;
	i->pin_ttl_ms = e->opts.pin_ttl_ms;
	i->pin_ttl_max_ms = e->opts.pin_ttl_max_ms;
	if (e->opts.context > c->n_ctx_train) {
		pfx_warn("engine", "--context %u is above what the model was trained for; using %u",
			e->opts.context, i->context);
	}
	return 0;
}

static int load(struct pfx_engine *e, char *err, size_t errlen)
{
	struct pfx_gguf *g = NULL;
	int rc;

	if (e->opts.progress != NULL) {
		e->opts.progress(e->opts.progress_arg, "reading the model", 0);
	}
	rc = pfx_gguf_open(&g, e->opts.model_path, err, errlen);
	if (rc == 0) {
		rc = pfx_tokenizer_open(&e->tokenizer, g, err, errlen);
	}
	if (rc == 0) {
		rc = open_chat(e, g, err, errlen);
	}
	if (rc == 0) {
		rc = open_model(e, g, err, errlen);
	}
	if (rc == 0) {
		rc = fill_info(e, err, errlen);
	}
	if (rc == 0) {
		rc = pfx_tiers_open(e, g, err, errlen);
	}
	if (rc == 0) {
		rc = open_cache(e, err, errlen);
	}
	if (rc == 0) {
		rc = pfx_tiers_restore(e, err, errlen);
	}
	pfx_gguf_close(g);
	return rc;
}

/* The threads that use it are gone; a stuck store's excepted, which keeps what it needs. */
static void free_all(struct pfx_engine *e)
{
	int stuck;

	pfx_life_close(e);
	stuck = pfx_tiers_close(e) != 0;
	pfx_observer_close(e->observer);
	pfx_cache_close(e->cache);
	pfx_keep_close(e->keep);
	pfx_sampler_close(e->sampler);
	pfx_model_close(e->model);
	pfx_chat_close(e->chat);
	pfx_pieces_close(e->pieces);
	pfx_tokenizer_close(e->tokenizer);
	pfx_free(e->chat_source);
	pfx_free(e->step_tokens);
	pfx_free(e->step_out_rows);
	pfx_free(e->step_seqs);
	pfx_free(e->step_requests);
	if (stuck) {
		return;
	}
	pthread_mutex_destroy(&e->lock);
	pthread_cond_destroy(&e->engine_wake);
	for (int i = 0; i < PFX_N_TEXT; i++) {
		pthread_cond_destroy(&e->text[i].wake);
	}
	pfx_free(e);
}

static void stop_text_threads(struct pfx_engine *e, int n)
{
	pthread_mutex_lock(&e->lock);
	e->stopping = 1;
	for (int i = 0; i < n; i++) {
		pthread_cond_broadcast(&e->text[i].wake);
	}
	pthread_mutex_unlock(&e->lock);
	for (int i = 0; i < n; i++) {
		pthread_join(e->text[i].thread, NULL);
	}
}

static void stop_engine_thread(struct pfx_engine *e)
{
	pthread_mutex_lock(&e->lock);
	pthread_cond_broadcast(&e->engine_wake);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->engine_thread, NULL);
}

static int start_threads(struct pfx_engine *e, char *err, size_t errlen)
{
	int rc = pthread_create(&e->engine_thread, NULL, pfx_sched_main, e);

	if (rc != 0) {
		return pfx_fail(-rc, err, errlen, "cannot start the engine thread: %s", strerror(rc));
	}
	for (int i = 0; i < PFX_N_TEXT; i++) {
		rc = pthread_create(&e->text[i].thread, NULL, pfx_text_main, &e->text[i]);
		if (rc != 0) {
			stop_text_threads(e, i);
			stop_engine_thread(e);
			return pfx_fail(-rc, err, errlen, "cannot start a text thread: %s", strerror(rc));
		}
	}
	return 0;
}

int pfx_engine_open(struct pfx_engine **out, const struct pfx_engine_opts *opts, char *err,
	size_t errlen)
{
	struct pfx_engine *e = pfx_xcalloc(1, sizeof(*e));
	pthread_condattr_t attr;
	int rc;

	e->opts = *opts;
	set_defaults(&e->opts);
	if (opts->template_time != NULL) {
		e->template_time = *opts->template_time;
	}
	e->out_rows_max = OUT_ROWS_MAX;
	e->rows_max = e->opts.chunk_tokens + e->opts.max_requests;
	e->opened_ns = pfx_clock_ns();
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->engine_wake, &attr);
	pthread_condattr_destroy(&attr);
	pfx_list_init(&e->all);
	pfx_list_init(&e->leases);
	for (int i = 0; i < PFX_N_TEXT; i++) {
		e->text[i].engine = e;
		pfx_list_init(&e->text[i].requests);
		pthread_cond_init(&e->text[i].wake, NULL);
	}
	pfx_list_init(&e->inbox);
	pfx_list_init(&e->waiting);
	pfx_list_init(&e->active);
	rc = alloc_step(e, err, errlen);
	if (rc == 0) {
		rc = load(e, err, errlen);
	}
	if (rc == 0) {
		rc = pfx_events_open(&e->events);
		if (rc != 0) {
			pfx_fail(rc, err, errlen, "cannot make an event descriptor: %s", pfx_strerror(rc));
		}
	}
	if (rc == 0) {
		rc = start_threads(e, err, errlen);
		if (rc != 0) {
			pfx_events_close(&e->events);
		}
	}
	if (rc != 0) {
		free_all(e);
		return rc;
	}
	*out = e;
	return 0;
}

void pfx_engine_close(struct pfx_engine *e)
{
	if (e == NULL) {
		return;
	}
	pthread_mutex_lock(&e->lock);
	/* So that the text threads have little left to do. */
	pfx_list_for(it, &e->all) {
		pfx_container_of(it, struct pfx_request, all)->cancel = 1;
	}
	pthread_mutex_unlock(&e->lock);
	/* In this order: after the first, nothing new reaches the inbox. */
	stop_text_threads(e, PFX_N_TEXT);
	stop_engine_thread(e);
	/* A trace that is being recorded ends; whoever waits for that is answered. */
	pfx_observer_close(e->observer);
	e->observer = NULL;
	/* What a text thread handed over after the engine thread's last look. */
	pfx_list_for_safe(it, &e->inbox) {
		pfx_request_free(pfx_container_of(it, struct pfx_request, link));
	}
	pfx_turn_close(e);
	pfx_events_close(&e->events);
	free_all(e);
}

const struct pfx_engine_info *pfx_engine_info(const struct pfx_engine *e)
{
	return &e->info;
}

void pfx_engine_drain(struct pfx_engine *e)
{
	e->draining = 1;
}

uint32_t pfx_engine_busy(const struct pfx_engine *e)
{
	return e->n_busy;
}

void pfx_engine_enqueue(struct pfx_engine *e, struct pfx_request *r)
{
	pthread_mutex_lock(&e->lock);
	pfx_list_push_back(&e->inbox, &r->link);
	e->n_inbox++;
	pthread_cond_signal(&e->engine_wake);
	pthread_mutex_unlock(&e->lock);
}

void pfx_engine_wake(struct pfx_engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->woken = 1;
	pthread_cond_signal(&e->engine_wake);
	pthread_mutex_unlock(&e->lock);
}

int pfx_engine_nap_locked(struct pfx_engine *e, uint32_t ms)
{
	struct timespec until;

	if (ms == 0) {
		return pthread_cond_wait(&e->engine_wake, &e->lock);
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)ms * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return pthread_cond_timedwait(&e->engine_wake, &e->lock, &until);
}

void pfx_engine_sleep(struct pfx_engine *e, uint32_t ms)
{
	pthread_mutex_lock(&e->lock);
	if (!e->woken) {
		pfx_engine_nap_locked(e, ms);
	}
	e->woken = 0;
	pthread_mutex_unlock(&e->lock);
}

/* When a place in the queue should be free again, from the pace of the last requests. */
static uint32_t retry_after_ms(const struct pfx_engine *e)
{
	uint64_t ms = e->turn_ns / 1000000u;

	return ms < 50 ? 50 : ms > 30000 ? 30000 : (uint32_t)ms;
}

/* Checks that need no thread; the request is marked when one fails. */
static void check_job(struct pfx_engine *e, struct pfx_request *r, uint32_t n_queued)
{
	const struct pfx_job *job = r->job;
	const char *forbidden = pfx_job_forbidden(job);

	if (forbidden != NULL) {
		pfx_request_fail(r, PFX_FAULT_FORBIDDEN, "%s", forbidden);
	}
	if (pfx_job_runs(job) && (e->draining || e->stopping)) {
		pfx_request_fail(r, PFX_FAULT_SHUTTING_DOWN, "the server is shutting down");
	}
	if (n_queued >= e->opts.queue_max) {
		pfx_request_fail(r, PFX_FAULT_OVERLOADED, "%u requests are waiting already", n_queued);
	}
	for (size_t i = 0; i < job->n_tokens && !r->failed; i++) {
		if (job->tokens[i] >= e->info.n_vocab) {
			pfx_request_fail(r, PFX_FAULT_BAD_REQUEST,
				"tokens: id %u at index %zu is not below the vocabulary's %u", job->tokens[i],
				i, e->info.n_vocab);
		}
	}
	if (job->n_tokens > INT32_MAX) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG, "prompt has %zu tokens", job->n_tokens);
	}
}

static int goes_through_text(const struct pfx_job *job)
{
	int has_text = job->prompt == PFX_PROMPT_TEXT || job->prompt == PFX_PROMPT_CHAT;

	if (pfx_job_is_text(job) || job->session != NULL || job->kind == PFX_JOB_SESSION_OPEN ||
		(job->kind >= PFX_JOB_STATS && (has_text || job->prefix != NULL))) {
		return 1;
	}
	return (pfx_job_runs(job) && (has_text || job->prefix != NULL ||
					     job->prompt == PFX_PROMPT_NONE)) ||
		job->kind == PFX_JOB_END || job->kind == PFX_JOB_PREFIX_GET;
}

/* Ids that need nothing in front of them are the request's at once. */
static void take_tokens(struct pfx_request *r)
{
	struct pfx_job *job = r->job;

	if (job->prompt == PFX_PROMPT_TOKENS && !goes_through_text(job)) {
		r->tokens.v = job->tokens;
		r->tokens.n = r->tokens.cap = job->n_tokens;
		job->tokens = NULL;
		job->n_tokens = 0;
	}
}

static void dispatch_locked(struct pfx_engine *e, struct pfx_request *r)
{
	int rc;

	pfx_list_push_back(&e->all, &r->all);
	if (!goes_through_text(r->job)) {
		pfx_list_push_back(&e->inbox, &r->link);
		e->n_inbox++;
		pthread_cond_signal(&e->engine_wake);
		return;
	}
	rc = pfx_turn_take_locked(e, r);
	if (rc < 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
	}
	if (rc != 0) {
		pfx_text_put_locked(e, r);
	}
}

uint64_t pfx_engine_submit(struct pfx_engine *e, struct pfx_job *job)
{
	struct pfx_request *r = pfx_request_new(job);
	struct pfx_event *ev;
	uint64_t number;

	if (!job->has_seed) {
		/* 53 bits, so that a JSON reader that keeps numbers as doubles gives it back. */
		job->seed = pfx_rng_entropy() >> 11;
	}
	pthread_mutex_lock(&e->lock);
	number = job->number = ++e->next_number;
	e->n_busy++;
	check_job(e, r, e->n_text + e->n_inbox + e->n_waiting + e->n_turns_waiting);
	pthread_mutex_unlock(&e->lock);
	if (r->failed && r->fault == PFX_FAULT_OVERLOADED) {
		ev = pfx_fault_event(job, r->fault, r->message);
		ev->retry_after_ms = retry_after_ms(e);
		e->n_refused++;
		pfx_request_free(r);
		pfx_events_post(e, ev);
		return number;
	}
	if (!r->failed) {
		pfx_life_submit(e, r);
	}
	take_tokens(r);
	pthread_mutex_lock(&e->lock);
	dispatch_locked(e, r);
	pthread_mutex_unlock(&e->lock);
	return number;
}

int pfx_engine_cancel(struct pfx_engine *e, uint64_t number)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&e->lock);
	pfx_list_for(it, &e->all) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, all);
		if (r->job->number == number) {
			r->cancel = 1;
			/* It may be waiting for a copy. */
			e->woken = 1;
			pthread_cond_signal(&e->engine_wake);
			rc = 0;
			if (r->waits_turn && pfx_job_runs(r->job)) {
				pfx_turn_give_up_locked(e, r);
			}
			break;
		}
	}
	pthread_mutex_unlock(&e->lock);
	return rc;
}
