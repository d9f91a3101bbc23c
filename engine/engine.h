#ifndef PFX_ENGINE_ENGINE_H
#define PFX_ENGINE_ENGINE_H

/*
 * The engine as its users see it: a model that answers jobs, and the cache behind it. This
 * is the only header of engine/ that net/ and tools/ include; both front doors (lines and
 * HTTP) stand on it.
 *
 * A job is submitted, takes its course on the engine's threads, and comes back as events:
 * any number of token and prefill events, then exactly one last event (`last` is set).
 * Events wait in a queue; pfx_engine_event_fd becomes readable while it is not empty, so
 * that an event loop needs no thread of its own. Nothing here blocks, but for open, close
 * and where it is said.
 *
 * Threads: submit, cancel, drain, next and info may be called from any thread; one thread
 * at a time takes events.
 *
 * Promise (README.md, "Exact"): a prompt's logits depend on the model file, the tokens, the
 * backend, its kernels and number formats, and on nothing else.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct pfx_engine;
struct pfx_store;

/* What goes to the store in the background. */
enum pfx_saves {
	PFX_SAVES_REUSED, /* what was used a second time */
	PFX_SAVES_ALL,
	PFX_SAVES_OFF, /* only what is asked for */
};

/* What the device lets go first (radix/README.md). */
enum pfx_eviction {
	PFX_EVICTION_DEFAULT,
	PFX_EVICTION_LRU,
};

struct pfx_engine_opts {
	const char *model_path;
	const char *backend, *kernels;  /* NULL: "auto" */
	const char *activations;        /* "exact" or "fast"; NULL: "exact" */
	uint32_t n_threads;             /* 0: one per core */
	int pin_threads;                /* each that computes stays on a core of its own */
	const char *kv_dtype;           /* "f16" or "int8"; NULL: f16 */
	uint64_t device_memory;         /* KV bytes; 0: 1 GiB */
	uint64_t logits_memory;         /* bytes for logits kept where prompts ended */
	uint64_t text_memory;           /* bytes for ids of texts that were tokenised; 0: none */
	uint64_t host_memory;           /* bytes of the host tier; 0: none */
	const char *store_path;         /* the disk tier's folder; NULL: none */
	uint64_t store_size;            /* its bound in bytes; 0: 16 GiB, or what the disk has */
	enum pfx_saves saves;
	enum pfx_eviction eviction;
	int store_replace;              /* clears a store of another model or version */
	uint32_t close_ms;              /* how long the end may wait for the store; 0: 8 s */
	uint32_t store_wait_ms; /* flush and save wait for a store that does nothing so long; 0: 10 s */
	/*
	 * How long a request waits for its next block from the store at least (a long prompt waits
	 * for up to twice the time of computing it, and 5 s) until it is computed. 0: 200 ms.
	 */
	uint32_t load_wait_ms;
	uint32_t block_tokens;          /* 0: the default, 32 */
	uint32_t chunk_tokens;          /* most prompt tokens of a step; 0: the default */
	uint32_t step_ms;               /* target of a step's time; 0: the default */
	uint32_t max_requests;          /* running at once; 0: the default, 64 */
	uint32_t queue_max;             /* waiting at once; 0: the default, 1024 */
	uint32_t context;               /* most tokens of prompt and reply; 0: the model's */
	/* What clients may leave with the server; 0 takes the default (doc/protocol.md). */
	uint32_t sessions_max, sessions_space_max; /* in all, and of one namespace */
	uint64_t session_bytes_max, session_ttl_ms;
	uint32_t prefixes_max, prefixes_space_max;
	uint64_t prefix_bytes_max;
	uint32_t pins_max;
	uint64_t pin_ttl_ms, pin_ttl_max_ms;
	const char *chat_template_path; /* NULL: the model's own */
	const struct tm *template_time; /* NULL: the wall clock */
	/* For tests: a store that is open already, borrowed; and: fetch, whatever it costs. */
	struct pfx_store *store;
	int always_fetch;
	void (*progress)(void *arg, const char *what, double done);
	void *progress_arg;
};

struct pfx_engine_info {
	const char *model, *architecture;
	const char *backend, *kernels, *kv, *activations;
	const char *chat_template; /* NULL when there is none; Jinja source, NUL-ended */
	uint32_t arithmetic, n_threads;
	uint32_t n_vocab, context, block_tokens, n_blocks;
	uint32_t bos, eos; /* UINT32_MAX: none */
	uint64_t kv_bytes_per_token, weight_bytes;
	uint32_t n_host_blocks, n_records; /* of the slower tiers; 0: there is none */
	uint32_t max_requests, queue_max, chunk_tokens;
	uint32_t sessions_max, sessions_space_max, prefixes_max, prefixes_space_max, pins_max;
	uint64_t session_bytes_max, session_ttl_ms, prefix_bytes_max, pin_ttl_ms, pin_ttl_max_ms;
};

/* Loads the model (may take seconds; *err is a sentence) and starts the threads. */
int pfx_engine_open(struct pfx_engine **out, const struct pfx_engine_opts *opts, char *err,
	size_t errlen);
/* Cancels what still runs, waits for the threads, drops events not taken. NULL is fine. */
void pfx_engine_close(struct pfx_engine *e);
const struct pfx_engine_info *pfx_engine_info(const struct pfx_engine *e);
/* From now on generate, warm and score end in shutting_down; what runs goes on. */
void pfx_engine_drain(struct pfx_engine *e);
/* Jobs whose last event was not taken yet. */
uint32_t pfx_engine_busy(const struct pfx_engine *e);

enum pfx_job_kind {
	PFX_JOB_GENERATE,
	PFX_JOB_WARM,
	PFX_JOB_SCORE,
	PFX_JOB_TOKENIZE,
	PFX_JOB_DETOKENIZE,
	PFX_JOB_RENDER,
	/* Lifetimes: what is kept for a client, and for how long (engine/life.c). */
	PFX_JOB_SESSION_OPEN,
	PFX_JOB_SESSION_APPEND,
	PFX_JOB_SESSION_CLOSE,
	PFX_JOB_SESSION_LIST,
	PFX_JOB_END,
	PFX_JOB_PIN,
	PFX_JOB_UNPIN,
	PFX_JOB_PINS,
	PFX_JOB_PREFIX_PUT,
	PFX_JOB_PREFIX_GET,
	PFX_JOB_PREFIX_LIST,
	PFX_JOB_PREFIX_DELETE,
	/* From here on: of the engine itself; answered between two steps (engine/control.c). */
	PFX_JOB_STATS,
	PFX_JOB_CHECK,
	PFX_JOB_FLUSH,
	PFX_JOB_EVICT,
	PFX_JOB_SAVE,
	PFX_JOB_STORE,
	PFX_JOB_HITS,
	PFX_JOB_TOP,
	PFX_JOB_TREE,    /* may have a prompt */
	PFX_JOB_EXPLAIN, /* may have a prompt */
	PFX_JOB_TRACE,
};

enum pfx_prompt_kind { PFX_PROMPT_NONE, PFX_PROMPT_TEXT, PFX_PROMPT_CHAT, PFX_PROMPT_TOKENS };

/* Pointers in here are owned by the job. Make one with pfx_job_new, which sets defaults. */
struct pfx_job {
	enum pfx_job_kind kind;
	void *user; /* handed back in every event */

	/* Whose cache this is: the server's namespace, narrowed by the client's salt. */
	char *space, *salt;
	size_t space_len, salt_len;

	enum pfx_prompt_kind prompt;
	char *text; /* TEXT; any bytes */
	size_t text_len;
	int text_special; /* TOKENIZE: read control tokens in the text */
	json_t *messages, *tools, *documents, *kwargs; /* CHAT; NULL but for messages */
	int add_generation_prompt;                     /* default 1 */
	uint32_t *tokens; /* TOKENS */
	size_t n_tokens;

	/* GENERATE */
	uint32_t max_tokens; /* default UINT32_MAX: the rest of the context */
	float temperature;   /* default 0: greedy */
	uint32_t top_k;      /* 0: off */
	float top_p;         /* 1: off */
	float min_p;         /* 0: off */
	float repeat_penalty; /* 1: off */
	uint64_t seed;
	int has_seed;
	int ignore_eos;
	char **stop; /* strings */
	size_t *stop_len;
	uint32_t n_stop;

	/* GENERATE and SCORE */
	int logprobs; /* -1: none; 0..20: with that many best */
	int digest;   /* GENERATE: XXH3-64 of each sampled position's logits */
	uint32_t from; /* SCORE: first position wanted, default 1 */

	/*
	 * Kinds that ask or tell the engine itself (from STATS on): the request as an object, of
	 * which nothing has been checked but that it is one; NULL is an empty one.
	 */
	json_t *args;
	int admin; /* who asks has the admin role (pfx_job_forbidden) */

	/* Lifetimes. */
	char *session, *prefix; /* names, 1..PFX_NAMED_BYTES_MAX bytes; NULL: none */
	size_t session_len, prefix_len;
	int last_turn;   /* the conversation will not go on behind this request */
	uint64_t ttl_ms; /* 0: none; at most PFX_TTL_MAX_MS */
	int warm;        /* SESSION_OPEN, SESSION_APPEND, PREFIX_PUT: compute it too */
	int pin;         /* PREFIX_PUT: with a lease */
	uint64_t lease;  /* UNPIN: its number; 0: all */
	int all;         /* UNPIN: all; PINS, PREFIX_LIST, SESSION_LIST: whatever the salt */

	int no_store;         /* leave nothing in the cache */
	int progress;         /* prefill events */
	uint32_t deadline_ms; /* 0: none; counted from submit */

	/*
	 * About how many bytes of text are to be worked on; long ones are kept off the thread that
	 * serves the short. 0: text_len.
	 */
	size_t bytes;
	/*
	 * When the request line's last byte was read, in pfx_clock_ns; timing starts here. 0: at
	 * submit.
	 */
	uint64_t received_ns;

	uint64_t number; /* set by submit */
};

#define PFX_NAMED_BYTES_MAX 256
#define PFX_TTL_MAX_MS 1000000000000u

/* NULL on -ENOMEM. */
struct pfx_job *pfx_job_new(enum pfx_job_kind kind);
void pfx_job_free(struct pfx_job *job); /* only when it was not submitted */
/*
 * Why who asks may not have the job run; NULL: he may. Looked at by submit, so nothing behind it
 * asks who is an admin but explain, which tells the others less.
 */
const char *pfx_job_forbidden(const struct pfx_job *job);

/*
 * Takes the job, also when it fails: a job that cannot be run at all ends in an error
 * event, so the caller has one path. Returns the request's number (never 0).
 */
uint64_t pfx_engine_submit(struct pfx_engine *e, struct pfx_job *job);
/*
 * Stops a job within one step; its last event then says `cancelled` (or what it had come to
 * before). -ENOENT when there is no such job any more.
 */
int pfx_engine_cancel(struct pfx_engine *e, uint64_t number);

enum pfx_event_kind {
	PFX_EVENT_TOKEN,
	PFX_EVENT_PREFILL,
	PFX_EVENT_DONE,    /* generate, warm, score */
	PFX_EVENT_ERROR,
	PFX_EVENT_TEXT,    /* detokenize, render */
	PFX_EVENT_TOKENS,  /* tokenize */
	PFX_EVENT_STATS,
	PFX_EVENT_CHECK,
	PFX_EVENT_FLUSHED,
	PFX_EVENT_REPORT, /* any other answer of the engine about itself */
};

enum pfx_finish { PFX_FINISH_STOP, PFX_FINISH_LENGTH, PFX_FINISH_CANCELLED };

/* The protocol's error codes (doc/protocol.md, section 2). */
enum pfx_fault {
	PFX_FAULT_BAD_REQUEST,
	PFX_FAULT_FORBIDDEN, /* an admin may, but who asks is none */
	PFX_FAULT_NOT_FOUND,
	PFX_FAULT_TOO_LONG,
	PFX_FAULT_OVERLOADED,
	PFX_FAULT_DEADLINE,
	PFX_FAULT_SHUTTING_DOWN,
	PFX_FAULT_INTERNAL,
};
const char *pfx_fault_name(enum pfx_fault fault);
const char *pfx_finish_name(enum pfx_finish finish);

struct pfx_top {
	uint32_t token;
	float logprob;
};

enum pfx_miss_reason {
	PFX_MISS_NONE,
	PFX_MISS_NEVER_SEEN,
	PFX_MISS_EVICTED,
	PFX_MISS_DIVERGED,
	PFX_MISS_NOT_COPIED, /* a slower tier has it, and computing was, or became, the faster way */
};
const char *pfx_miss_name(enum pfx_miss_reason reason);

struct pfx_usage {
	uint32_t prompt_tokens, completion_tokens, computed_tokens;
	uint32_t cached_device, cached_host, cached_disk;
};

struct pfx_event {
	enum pfx_event_kind kind;
	int last;
	uint64_t number;
	void *user;

	/* TOKEN, TEXT: UTF-8, NUL-ended, but may hold NULs: text_len counts. */
	char *text;
	size_t text_len;
	/* TOKEN: one. TOKENS: n_tokens. */
	uint32_t token;
	uint32_t *tokens;
	size_t n_tokens;

	/* TOKEN when asked for. */
	int has_logprob, has_digest;
	float logprob;
	uint64_t digest;
	struct pfx_top *top; /* best first; of equals the lowest id */
	uint32_t n_top;

	/* PREFILL */
	uint32_t done, total;

	/* DONE */
	enum pfx_finish finish;
	struct pfx_usage usage;
	uint64_t seed;
	double queue_ms, prefill_ms, total_ms;
	uint64_t received_ns; /* for ttft_ms, which the front door finishes */
	enum pfx_miss_reason miss; /* NONE: nothing was missed */
	uint32_t miss_at_token;
	double miss_evicted_ms_ago; /* MISS_EVICTED; < 0: not known */
	int64_t miss_message; /* index into messages, or -1 when not from one */
	uint64_t miss_byte;   /* within that message's content, or within the prompt's text */
	/* SCORE: entry k is position from + k; top holds n_score * logprobs entries. */
	float *score;
	struct pfx_top *score_top;
	uint32_t n_score, n_score_top; /* n_score_top: entries of top each */

	/* ERROR */
	enum pfx_fault fault;
	char *message;
	uint32_t retry_after_ms; /* OVERLOADED */

	/* STATS, CHECK, REPORT: the reply's fields, as doc/protocol.md names them. */
	json_t *report;
	const char *report_name; /* REPORT: the reply's `event`; static */
	/* REPORT: more fields, as JSON text from `"name":` on; NULL: none. For what is long. */
	char *report_text;
	size_t report_text_len;

	/* FLUSHED */
	uint32_t flushed_device, flushed_host, flushed_disk, in_use, flushed_leases;
	uint32_t flushed_moving; /* not gone yet, since a copy or the store does not come to an end */
	int durable; /* no restart brings any of it back */

	void (*give_back)(struct pfx_event *ev); /* NULL: nobody wants it back */
};

#define PFX_LOGPROBS_MAX 20u /* of a job's `logprobs` */

/* Readable while events wait. Owned by the engine. */
int pfx_engine_event_fd(const struct pfx_engine *e);
/* The next event, owned by the caller until the engine is closed; NULL when none waits. */
struct pfx_event *pfx_engine_next(struct pfx_engine *e);
void pfx_event_free(struct pfx_event *ev);

#endif
