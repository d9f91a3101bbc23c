#include "config.h"

#include "net/proto_priv.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "net/jwrite.h"
#include "net/scan.h"

#define STOP_MAX 64
#define STOP_BYTES_MAX 4096
/* The largest integer of the JSON library, for fields without an upper bound. */
#define INT_TOP 9223372036854775807.0

static const char *const op_names[] = {
	[PFX_OP_NONE] = "",
	[PFX_OP_HELLO] = "hello",
	[PFX_OP_PING] = "ping",
	[PFX_OP_AUTH] = "auth",
	[PFX_OP_CANCEL] = "cancel",
	[PFX_OP_CONFIG] = "config",
	[PFX_OP_DRAIN] = "drain",
	[PFX_OP_GENERATE] = "generate",
	[PFX_OP_WARM] = "warm",
	[PFX_OP_SCORE] = "score",
	[PFX_OP_RENDER] = "render",
	[PFX_OP_TOKENIZE] = "tokenize",
	[PFX_OP_DETOKENIZE] = "detokenize",
	[PFX_OP_SESSION_OPEN] = "session.open",
	[PFX_OP_SESSION_APPEND] = "session.append",
	[PFX_OP_SESSION_CLOSE] = "session.close",
	[PFX_OP_SESSION_LIST] = "session.list",
	[PFX_OP_END] = "end",
	[PFX_OP_PIN] = "pin",
	[PFX_OP_UNPIN] = "unpin",
	[PFX_OP_PINS] = "pins",
	[PFX_OP_PREFIX_PUT] = "prefix.put",
	[PFX_OP_PREFIX_GET] = "prefix.get",
	[PFX_OP_PREFIX_LIST] = "prefix.list",
	[PFX_OP_PREFIX_DELETE] = "prefix.delete",
	[PFX_OP_STATS] = "stats",
	[PFX_OP_CHECK] = "check",
	[PFX_OP_FLUSH] = "flush",
	[PFX_OP_EVICT] = "evict",
	[PFX_OP_SAVE] = "save",
	[PFX_OP_STORE] = "store",
	[PFX_OP_HITS] = "hits",
	[PFX_OP_TOP] = "top",
	[PFX_OP_TREE] = "tree",
	[PFX_OP_EXPLAIN] = "explain",
	[PFX_OP_TRACE] = "trace",
};

#define N_OPS (sizeof(op_names) / sizeof(op_names[0]))

const char *pfx_op_name(enum pfx_op op)
{
	return op_names[op];
}

/* The line as far as it is read: the message, the library's tree, what was lifted. */
struct reader {
	struct pfx_msg *m;
	json_t *root;
	struct pfx_scan scan;
	size_t line_max;
};

int pfx_proto_vbad(struct pfx_msg *m, enum pfx_fault fault, const char *fmt, va_list ap)
{
	m->bad = 1;
	m->fault = fault;
	vsnprintf(m->error, sizeof(m->error), fmt, ap);
	return -1;
}

__attribute__((format(printf, 3, 4)))
static int bad(struct pfx_msg *m, enum pfx_fault fault, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	pfx_proto_vbad(m, fault, fmt, ap);
	va_end(ap);
	return -1;
}

static void drop_job(struct pfx_msg *m)
{
	if (m->job != NULL) {
		pfx_job_free(m->job);
		m->job = NULL;
	}
}

static int no_memory(struct pfx_msg *m)
{
	return bad(m, PFX_FAULT_INTERNAL, "out of memory");
}

/* ---- ids ---- */

static uint64_t hash_bytes(const char *p, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a: ids are short */

	for (size_t i = 0; i < n; i++) {
		h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
	}
	return h | 1;
}

int pfx_id_equal(const struct pfx_id *a, const struct pfx_id *b)
{
	return a->hash == b->hash && a->json_len == b->json_len
		&& memcmp(a->json, b->json, a->json_len) == 0;
}

static int read_id(struct reader *r, const char *key, struct pfx_id *out)
{
	const json_t *v = json_object_get(r->root, key);
	struct pfx_buf b = PFX_BUF_INIT;

	if (v == NULL || json_is_null(v)) {
		return 0;
	}
	if (json_is_string(v)) {
		if (json_string_length(v) > PFX_ID_MAX) {
			return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s is longer than %d bytes", key, PFX_ID_MAX);
		}
		pfx_jw_str(&b, json_string_value(v), json_string_length(v));
	} else if (json_is_integer(v)) {
		pfx_jw_i64(&b, json_integer_value(v));
	} else {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be a string or an integer", key);
	}
	out->json = pfx_buf_take(&b, &out->json_len);
	if (out->json == NULL) {
		return no_memory(r->m);
	}
	out->hash = hash_bytes(out->json, out->json_len);
	return 0;
}

/* ---- plain fields, by table ---- */

enum field_type { BOOL, NOT_BOOL, INT, U32, CAP, REAL, U64, CHECK_INT };

/*
 * Fields that are one number or truth value. CAP is a bound that a client may set as high as
 * it likes: what is beyond 32 bits is as good as the most that fits. CHECK_INT is a hint that
 * nothing uses yet: it is held to its type all the same, so that a client's mistake shows
 * today.
 */
static const struct field {
	const char *name;
	enum field_type type;
	uint64_t ops;
	size_t at;
	double lo, hi;
} fields[] = {
	{ "max_tokens", CAP, OP(GENERATE), offsetof(struct pfx_job, max_tokens), 0, INT_TOP },
	{ "temperature", REAL, OP(GENERATE), offsetof(struct pfx_job, temperature), 0, 1000 },
	{ "top_k", CAP, OP(GENERATE), offsetof(struct pfx_job, top_k), 0, INT_TOP },
	{ "top_p", REAL, OP(GENERATE), offsetof(struct pfx_job, top_p), 0, 1 },
	{ "min_p", REAL, OP(GENERATE), offsetof(struct pfx_job, min_p), 0, 1 },
	{ "repeat_penalty", REAL, OP(GENERATE), offsetof(struct pfx_job, repeat_penalty), 0.01, 100 },
	{ "seed", U64, OP(GENERATE), offsetof(struct pfx_job, seed), 0, INT_TOP },
	{ "ignore_eos", BOOL, OP(GENERATE), offsetof(struct pfx_job, ignore_eos), 0, 0 },
	{ "logprobs", INT, OP(GENERATE) | OP(SCORE), offsetof(struct pfx_job, logprobs), 0, 20 },
	{ "digest", BOOL, OP(GENERATE), offsetof(struct pfx_job, digest), 0, 0 },
	{ "from", U32, OP(SCORE), offsetof(struct pfx_job, from), 1, UINT32_MAX },
	{ "store", NOT_BOOL, OPS_RUN, offsetof(struct pfx_job, no_store), 0, 0 },
	{ "progress", BOOL, OPS_RUN | OPS_PUT, offsetof(struct pfx_job, progress), 0, 0 },
	{ "deadline_ms", CAP, OPS_RUN | OPS_PUT, offsetof(struct pfx_job, deadline_ms), 1, INT_TOP },
	{ "special", BOOL, OP(TOKENIZE), offsetof(struct pfx_job, text_special), 0, 0 },
	{ "add_generation_prompt", BOOL, OPS_CHAT, offsetof(struct pfx_job, add_generation_prompt),
		0, 0 },
	{ "last_turn", BOOL, OPS_RUN, offsetof(struct pfx_job, last_turn), 0, 0 },
	{ "ttl_ms", U64, OPS_RUN | OP(SESSION_OPEN) | OP(PIN) | OP(PREFIX_PUT),
		offsetof(struct pfx_job, ttl_ms), 0, INT_TOP },
	{ "warm", BOOL, OP(SESSION_OPEN) | OP(SESSION_APPEND) | OP(PREFIX_PUT),
		offsetof(struct pfx_job, warm), 0, 0 },
	{ "pin", BOOL, OP(PREFIX_PUT), offsetof(struct pfx_job, pin), 0, 0 },
	{ "lease", U64, OP(UNPIN), offsetof(struct pfx_job, lease), 1, INT_TOP },
	{ "all", BOOL, OP(UNPIN) | OP(PINS) | OP(PREFIX_LIST) | OP(SESSION_LIST),
		offsetof(struct pfx_job, all), 0, 0 },
	{ "priority", CHECK_INT, OPS_RUN, 0, -1e6, 1e6 },
};

static int read_bool(struct reader *r, const struct field *f, const json_t *v)
{
	int *out = (int *)((char *)r->m->job + f->at);

	if (!json_is_boolean(v)) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be true or false", f->name);
	}
	*out = json_is_true(v) == (f->type == BOOL);
	return 0;
}

static int read_int(struct reader *r, const struct field *f, const json_t *v)
{
	char *out = (char *)r->m->job + f->at;
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || (double)n < f->lo || (double)n > f->hi) {
		if (f->hi > 1e18) {
			return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be an integer of %.0f or more",
				f->name, f->lo);
		}
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be an integer from %.0f to %.0f",
			f->name, f->lo, f->hi);
	}
	if (f->type == INT) {
		*(int *)out = (int)n;
	} else if (f->type == U32) {
		*(uint32_t *)out = (uint32_t)n;
	} else if (f->type == CAP) {
		*(uint32_t *)out = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
	} else if (f->type == U64) {
		*(uint64_t *)out = (uint64_t)n;
	}
	return 0;
}

static int read_real(struct reader *r, const struct field *f, const json_t *v)
{
	double x = json_number_value(v);

	if (!json_is_number(v) || !(x >= f->lo && x <= f->hi)) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be a number from %g to %g", f->name,
			f->lo, f->hi);
	}
	*(float *)((char *)r->m->job + f->at) = (float)x;
	return 0;
}

static int read_fields(struct reader *r)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const struct field *f = &fields[i];
		const json_t *v = json_object_get(r->root, f->name);
		int rc;

		if (v == NULL || (f->ops >> r->m->op & 1) == 0) {
			continue;
		}
		if (f->type == BOOL || f->type == NOT_BOOL) {
			rc = read_bool(r, f, v);
		} else {
			rc = f->type == REAL ? read_real(r, f, v) : read_int(r, f, v);
		}
		if (rc < 0) {
			return rc;
		}
	}
	return 0;
}

/* ---- the longer ones ---- */

static int read_stop_one(struct reader *r, const json_t *v, uint32_t i, int alone)
{
	struct pfx_job *job = r->m->job;
	char name[16];

	snprintf(name, sizeof(name), alone ? "stop" : "stop[%u]", i);
	if (!json_is_string(v)) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST,
			alone ? "%s must be a string or an array of strings" : "%s must be a string", name);
	}
	if (json_string_length(v) == 0) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s is empty", name);
	}
	if (json_string_length(v) > STOP_BYTES_MAX) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s is longer than %d bytes", name, STOP_BYTES_MAX);
	}
	job->stop_len[i] = json_string_length(v);
	job->stop[i] = pfx_memdup(json_string_value(v), job->stop_len[i] + 1);
	if (job->stop[i] == NULL) {
		return no_memory(r->m);
	}
	job->n_stop = i + 1;
	return 0;
}

static int read_stop(struct reader *r)
{
	struct pfx_job *job = r->m->job;
	const json_t *v = json_object_get(r->root, "stop");
	size_t n = json_is_array(v) ? json_array_size(v) : 1;
	int rc = 0;

	if (v == NULL || r->m->op != PFX_OP_GENERATE || n == 0) {
		return 0;
	}
	if (n > STOP_MAX) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "stop has more than %d strings", STOP_MAX);
	}
	job->stop = pfx_calloc(n, sizeof(*job->stop));
	job->stop_len = pfx_calloc(n, sizeof(*job->stop_len));
	if (job->stop == NULL || job->stop_len == NULL) {
		return no_memory(r->m);
	}
	if (!json_is_array(v)) {
		return read_stop_one(r, v, 0, 1);
	}
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		rc = read_stop_one(r, json_array_get(v, i), i, 0);
	}
	return rc;
}

/* Text from the lifted value or from the tree; the field's type is known to be right. */
static int set_text(struct reader *r, char **lifted, size_t lifted_len, const json_t *v)
{
	struct pfx_job *job = r->m->job;

	job->prompt = PFX_PROMPT_TEXT;
	if (*lifted != NULL) {
		job->text = *lifted;
		job->text_len = lifted_len;
		*lifted = NULL;
		return 0;
	}
	job->text_len = json_string_length(v);
	job->text = pfx_memdup(json_string_value(v), job->text_len + 1);
	return job->text == NULL ? no_memory(r->m) : 0;
}

static int set_tokens(struct reader *r, const json_t *v)
{
	struct pfx_job *job = r->m->job;

	job->prompt = PFX_PROMPT_TOKENS;
	if (r->scan.tokens != NULL) {
		job->tokens = r->scan.tokens;
		job->n_tokens = r->scan.n_tokens;
		r->scan.tokens = NULL;
		return 0;
	}
	job->tokens = pfx_reallocarray(NULL, json_array_size(v), sizeof(*job->tokens));
	if (job->tokens == NULL) {
		return no_memory(r->m);
	}
	for (size_t i = 0; i < json_array_size(v); i++) {
		const json_t *id = json_array_get(v, i);
		json_int_t n = json_integer_value(id);

		if (!json_is_integer(id) || n < 0 || n > UINT32_MAX) {
			return bad(r->m, PFX_FAULT_BAD_REQUEST, "tokens[%zu] is not a token id", i);
		}
		job->tokens[job->n_tokens++] = (uint32_t)n;
	}
	return 0;
}

/* A companion of messages: takes a reference of what is there and of the right type. */
static int companion(struct reader *r, const char *key, json_type type, json_t **out)
{
	json_t *v = json_object_get(r->root, key);

	if (v == NULL || (type == JSON_ARRAY && json_is_null(v))) {
		return 0;
	}
	if (json_typeof(v) != type) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be %s", key,
			type == JSON_ARRAY ? "an array" : "an object");
	}
	*out = json_incref(v);
	return 0;
}

static int read_messages(struct reader *r, json_t *v)
{
	struct pfx_job *job = r->m->job;

	if (!json_is_array(v)) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "messages must be an array");
	}
	if (job->prompt != PFX_PROMPT_NONE) {
		return 0;
	}
	job->prompt = PFX_PROMPT_CHAT;
	job->messages = json_incref(v);
	return 0;
}

/* Held to their types also where there are no messages. */
static int read_companions(struct reader *r)
{
	struct pfx_job *job = r->m->job;

	if ((1ull << r->m->op & OPS_CHAT) == 0) {
		return 0;
	}
	if (companion(r, "tools", JSON_ARRAY, &job->tools) < 0
		|| companion(r, "documents", JSON_ARRAY, &job->documents) < 0
		|| companion(r, "chat_template_kwargs", JSON_OBJECT, &job->kwargs) < 0) {
		return -1;
	}
	return 0;
}

/* Which forms of input an op takes, for the sentence that asks for one. */
static const char *forms_of(enum pfx_op op)
{
	switch (op) {
	case PFX_OP_SCORE:
		return "prompt, prompt_bytes or tokens";
	case PFX_OP_RENDER:
		return "messages";
	case PFX_OP_TOKENIZE:
		return "text, prompt_bytes or messages";
	case PFX_OP_DETOKENIZE:
		return "tokens";
	case PFX_OP_END:
		return "session, prefix, prompt, prompt_bytes, messages or tokens";
	case PFX_OP_PIN:
		return "prefix, prompt, prompt_bytes, messages or tokens";
	default:
		return "prompt, prompt_bytes, messages or tokens";
	}
}

/* Whether a request may come without a prompt of its own: something else stands for it. */
static int may_be_without(const struct reader *r)
{
	const struct pfx_job *job = r->m->job;
	enum pfx_op op = r->m->op;

	if (op == PFX_OP_PREFIX_PUT || op == PFX_OP_SESSION_APPEND) {
		return 0;
	}
	return (1ull << op & (OP(SESSION_OPEN) | OPS_ABOUT)) != 0 || job->session != NULL
		|| job->prefix != NULL;
}

/* Exactly one of the input forms that the op knows; forms of other ops are not looked at. */
static int read_input(struct reader *r)
{
	enum pfx_op op = r->m->op;
	uint64_t bit = 1ull << op;
	const char *text_key = op == PFX_OP_TOKENIZE ? "text" : "prompt";
	json_t *text = bit & (OPS_PROMPT | OP(TOKENIZE)) ? json_object_get(r->root, text_key) : NULL;
	json_t *messages = bit & OPS_CHAT ? json_object_get(r->root, "messages") : NULL;
	json_t *tokens = bit & (OPS_PROMPT | OP(DETOKENIZE)) ? json_object_get(r->root, "tokens")
		: NULL;
	int raw = bit & (OPS_PROMPT | OP(TOKENIZE)) ? r->m->has_prompt_bytes : 0;
	int n = (text != NULL) + (messages != NULL) + (tokens != NULL) + raw;

	if (n == 0 && may_be_without(r)) {
		return 0;
	}
	if (n != 1) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, n == 0 ? "%s needs %s" : "%s takes only one of %s",
			pfx_op_name(op), forms_of(op));
	}
	if (raw) {
		r->m->job->prompt = PFX_PROMPT_TEXT;
		return 0;
	}
	if (messages != NULL) {
		return read_messages(r, messages);
	}
	if (text != NULL) {
		if (!json_is_string(text)) {
			return bad(r->m, PFX_FAULT_BAD_REQUEST, "%s must be a string", text_key);
		}
		return op == PFX_OP_TOKENIZE ? set_text(r, &r->scan.text, r->scan.text_len, text)
			: set_text(r, &r->scan.prompt, r->scan.prompt_len, text);
	}
	if (!json_is_array(tokens)) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "tokens must be an array of token ids");
	}
	return set_tokens(r, tokens);
}

static int check_not_empty(struct pfx_msg *m)
{
	const struct pfx_job *job = m->job;

	if ((1ull << m->op & OPS_PROMPT) == 0 || job->prompt == PFX_PROMPT_CHAT
		|| job->prompt == PFX_PROMPT_NONE) {
		return 0;
	}
	if (job->prompt == PFX_PROMPT_TOKENS ? job->n_tokens == 0 : job->text_len == 0) {
		return bad(m, PFX_FAULT_BAD_REQUEST, job->prompt == PFX_PROMPT_TOKENS ? "tokens is empty"
			: m->has_prompt_bytes ? "prompt_bytes is 0: the prompt is empty" : "prompt is empty");
	}
	return 0;
}

/* ---- ops ---- */

static int read_prompt(struct reader *r)
{
	if (pfx_proto_names(r->m, r->root) < 0 || read_fields(r) < 0 || read_input(r) < 0
		|| read_companions(r) < 0) {
		return -1;
	}
	/* What follows the line is asked for when it is there. */
	return r->m->has_prompt_bytes ? 0 : check_not_empty(r->m);
}

static int takes_input(enum pfx_op op)
{
	return (1ull << op & (OPS_PROMPT | OPS_CHAT | OP(DETOKENIZE))) != 0;
}

static int read_job(struct reader *r)
{
	static const enum pfx_job_kind kinds[] = {
		[PFX_OP_GENERATE] = PFX_JOB_GENERATE,
		[PFX_OP_WARM] = PFX_JOB_WARM,
		[PFX_OP_SCORE] = PFX_JOB_SCORE,
		[PFX_OP_RENDER] = PFX_JOB_RENDER,
		[PFX_OP_TOKENIZE] = PFX_JOB_TOKENIZE,
		[PFX_OP_DETOKENIZE] = PFX_JOB_DETOKENIZE,
		[PFX_OP_SESSION_OPEN] = PFX_JOB_SESSION_OPEN,
		[PFX_OP_SESSION_APPEND] = PFX_JOB_SESSION_APPEND,
		[PFX_OP_SESSION_CLOSE] = PFX_JOB_SESSION_CLOSE,
		[PFX_OP_SESSION_LIST] = PFX_JOB_SESSION_LIST,
		[PFX_OP_END] = PFX_JOB_END,
		[PFX_OP_PIN] = PFX_JOB_PIN,
		[PFX_OP_UNPIN] = PFX_JOB_UNPIN,
		[PFX_OP_PINS] = PFX_JOB_PINS,
		[PFX_OP_PREFIX_PUT] = PFX_JOB_PREFIX_PUT,
		[PFX_OP_PREFIX_GET] = PFX_JOB_PREFIX_GET,
		[PFX_OP_PREFIX_LIST] = PFX_JOB_PREFIX_LIST,
		[PFX_OP_PREFIX_DELETE] = PFX_JOB_PREFIX_DELETE,
		[PFX_OP_STATS] = PFX_JOB_STATS,
		[PFX_OP_CHECK] = PFX_JOB_CHECK,
		[PFX_OP_FLUSH] = PFX_JOB_FLUSH,
		[PFX_OP_EVICT] = PFX_JOB_EVICT,
		[PFX_OP_SAVE] = PFX_JOB_SAVE,
		[PFX_OP_STORE] = PFX_JOB_STORE,
		[PFX_OP_HITS] = PFX_JOB_HITS,
		[PFX_OP_TOP] = PFX_JOB_TOP,
		[PFX_OP_TREE] = PFX_JOB_TREE,
		[PFX_OP_EXPLAIN] = PFX_JOB_EXPLAIN,
		[PFX_OP_TRACE] = PFX_JOB_TRACE,
	};
	struct pfx_msg *m = r->m;
	const json_t *stream = json_object_get(r->root, "stream");

	m->job = pfx_job_new(kinds[m->op]);
	if (m->job == NULL) {
		return no_memory(m);
	}
	if (m->op >= PFX_OP_STATS) {
		m->job->args = json_incref(r->root);
		return 1ull << m->op & OPS_ABOUT ? read_prompt(r) : 0;
	}
	if (m->op == PFX_OP_SCORE) {
		m->job->logprobs = 0;
	}
	if (m->op == PFX_OP_GENERATE && stream != NULL) {
		if (!json_is_boolean(stream)) {
			return bad(m, PFX_FAULT_BAD_REQUEST, "stream must be true or false");
		}
		m->stream = json_is_true(stream);
	}
	if (pfx_proto_names(r->m, r->root) < 0 || read_fields(r) < 0 || read_stop(r) < 0
		|| (takes_input(m->op) && read_input(r) < 0) || read_companions(r) < 0
		|| pfx_proto_check_kept(m) < 0) {
		return -1;
	}
	m->job->has_seed = m->op == PFX_OP_GENERATE && json_object_get(r->root, "seed") != NULL;
	return m->has_prompt_bytes ? 0 : check_not_empty(m);
}

static int read_cancel(struct reader *r)
{
	const json_t *number = json_object_get(r->root, "request");
	const json_t *target = json_object_get(r->root, "target");

	if ((number != NULL) == (target != NULL)) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "cancel needs target (an id) or request (a number)");
	}
	if (target != NULL) {
		if (json_is_null(target)) {
			return bad(r->m, PFX_FAULT_BAD_REQUEST, "target must be a string or an integer");
		}
		return read_id(r, "target", &r->m->target);
	}
	if (!json_is_integer(number) || json_integer_value(number) < 1) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "request must be an integer of 1 or more");
	}
	r->m->number = (uint64_t)json_integer_value(number);
	return 0;
}

/* Before anything can fail but the JSON itself: the framing depends on it. */
static int read_prompt_bytes(struct reader *r)
{
	const json_t *v = json_object_get(r->root, "prompt_bytes");

	if (v == NULL) {
		return 0;
	}
	if (!json_is_integer(v) || json_integer_value(v) < 0) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "prompt_bytes must be an integer from 0 to %zu",
			r->line_max);
	}
	if ((uint64_t)json_integer_value(v) > r->line_max) {
		r->m->lost = 1;
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "prompt_bytes must be an integer from 0 to %zu",
			r->line_max);
	}
	r->m->has_prompt_bytes = 1;
	r->m->prompt_bytes = (uint64_t)json_integer_value(v);
	return 0;
}

static int read_op(struct reader *r)
{
	const json_t *v = json_object_get(r->root, "op");
	const char *name = json_string_value(v);

	if (v == NULL) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "op is missing");
	}
	if (name == NULL) {
		return bad(r->m, PFX_FAULT_BAD_REQUEST, "op must be a string");
	}
	for (size_t i = 1; i < N_OPS; i++) {
		if (strlen(op_names[i]) == json_string_length(v) && strcmp(op_names[i], name) == 0) {
			r->m->op = (enum pfx_op)i;
			return 0;
		}
	}
	return bad(r->m, PFX_FAULT_BAD_REQUEST, "unknown op %.100s", name);
}

static void read_object(struct reader *r)
{
	struct pfx_msg *m = r->m;
	/* The id and the framing first, so that whatever is wrong else can be told properly. */
	int rc = read_id(r, "id", &m->id);

	if (read_prompt_bytes(r) < 0 || rc < 0 || read_op(r) < 0) {
		return;
	}
	if (m->op >= PFX_OP_GENERATE) {
		rc = read_job(r);
	} else if (m->op == PFX_OP_CANCEL) {
		rc = read_cancel(r);
	}
	if (rc < 0) {
		drop_job(m);
	}
}

/* A line that cannot be read but may be followed by raw bytes: they must not be run as lines. */
static void check_lost(struct pfx_msg *m, const char *line, size_t n)
{
	static const char key[] = "prompt_bytes";

	if (n >= sizeof(key) && memmem(line, n, key, sizeof(key) - 1) != NULL) {
		m->lost = 1;
	}
}

void pfx_proto_parse(struct pfx_msg *m, const char *line, size_t n, size_t line_max)
{
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
	struct reader r = { .m = m, .line_max = line_max };
	json_error_t err;
	int rc;

	memset(m, 0, sizeof(*m));
	m->stream = 1;
	rc = pfx_scan(&r.scan, line, n);
	if (rc == PFX_E_LIMIT) {
		bad(m, PFX_FAULT_BAD_REQUEST, "the line nests deeper than %d or has more than %u values",
			PFX_SCAN_DEPTH_MAX, PFX_SCAN_VALUES_MAX);
	} else if (rc < 0) {
		no_memory(m);
	} else {
		r.root = r.scan.rest.len > 0 ? json_loadb(r.scan.rest.data, r.scan.rest.len, flags, &err)
			: json_loadb(line, n, flags, &err);
		if (r.root == NULL) {
			bad(m, PFX_FAULT_BAD_REQUEST, "not a JSON object: %s (column %d)", err.text,
				err.column);
		} else if (!json_is_object(r.root)) {
			bad(m, PFX_FAULT_BAD_REQUEST, "not a JSON object");
		}
	}
	if (m->bad) {
		check_lost(m, line, n);
	} else {
		read_object(&r);
	}
	if (m->job != NULL) {
		m->job->bytes = n;
	}
	json_decref(r.root);
	pfx_scan_free(&r.scan);
}

void pfx_proto_attach(struct pfx_msg *m, const char *bytes, size_t n)
{
	size_t valid;
	char *text;

	if (m->bad || m->job == NULL || m->job->prompt != PFX_PROMPT_TEXT) {
		return;
	}
	valid = pfx_utf8_valid_len(bytes, n);
	text = valid == n ? pfx_malloc(n + 1) : NULL;
	if (valid != n) {
		bad(m, PFX_FAULT_BAD_REQUEST, "the prompt's bytes are not UTF-8 at byte %zu", valid);
	} else if (text == NULL) {
		no_memory(m);
	} else {
		memcpy(text, bytes, n);
		text[n] = 0;
		m->job->text = text;
		m->job->text_len = n;
		m->job->bytes += n;
		check_not_empty(m);
	}
	if (m->bad) {
		drop_job(m);
	}
}

void pfx_msg_free(struct pfx_msg *m)
{
	drop_job(m);
	pfx_free(m->id.json);
	pfx_free(m->target.json);
	memset(m, 0, sizeof(*m));
}
