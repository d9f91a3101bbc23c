/*
 * The part of a request line that says whose cache is meant, and by which names: namespace,
 * session, prefix.
 */
#include <stdio.h>

#include "base/alloc.h"
#include "net/proto_priv.h"

/* Ops that take the name of a session, and of a prefix. */
#define OPS_SESSION (OP(GENERATE) | OP(WARM) | OP(SESSION_OPEN) | OP(SESSION_APPEND) \
	| OP(SESSION_CLOSE) | OP(END))
#define OPS_PREFIX (OPS_RUN | OP(SESSION_OPEN) | OP(END) | OP(PIN) | OP(PREFIX_PUT) \
	| OP(PREFIX_GET) | OP(PREFIX_DELETE) | OP(EXPLAIN))

__attribute__((format(printf, 2, 3)))
static int bad(struct pfx_msg *m, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	pfx_proto_vbad(m, PFX_FAULT_BAD_REQUEST, fmt, ap);
	va_end(ap);
	return -1;
}

static int no_memory(struct pfx_msg *m)
{
	bad(m, "out of memory");
	m->fault = PFX_FAULT_INTERNAL;
	return -1;
}

/* A name of the client's choice, if it is there. */
static int read_name(struct pfx_msg *m, const json_t *root, const char *key, char **out,
	size_t *len)
{
	const json_t *v = json_object_get(root, key);

	if (v == NULL) {
		return 0;
	}
	if (!json_is_string(v)) {
		return bad(m, "%s must be a string", key);
	}
	*len = json_string_length(v);
	if (*len == 0 || *len > PFX_NAMED_BYTES_MAX) {
		return bad(m, "%s must have 1 to %d bytes", key, PFX_NAMED_BYTES_MAX);
	}
	*out = pfx_memdup(json_string_value(v), *len + 1);
	return *out == NULL ? no_memory(m) : 0;
}

/* Where the name is what the op is about, it may be called so. */
static const char *prefix_key(const struct pfx_msg *m, const json_t *root)
{
	uint64_t named = OP(PREFIX_PUT) | OP(PREFIX_GET) | OP(PREFIX_DELETE);

	const json_t *name = json_object_get(root, "name");

	return (1ull << m->op & named) != 0 && (json_object_get(root, "prefix") == NULL
		|| (name != NULL && !json_is_string(name))) ? "name" : "prefix";
}

/* Who is asked, and what was put under a name. */
int pfx_proto_names(struct pfx_msg *m, const json_t *root)
{
	const json_t *salt = json_object_get(root, "namespace");
	struct pfx_job *job = m->job;
	uint64_t bit = 1ull << m->op;

	if (m->op == PFX_OP_SCORE && json_object_get(root, "session") != NULL) {
		return bad(m, "score takes no session");
	}
	if (((bit & OPS_SESSION) != 0
			&& read_name(m, root, "session", &job->session, &job->session_len) < 0)
		|| ((bit & OPS_PREFIX) != 0
			&& read_name(m, root, prefix_key(m, root), &job->prefix, &job->prefix_len) < 0)) {
		return -1;
	}
	if (job->session != NULL && job->prefix != NULL && m->op != PFX_OP_SESSION_OPEN) {
		return bad(m,
			"session and prefix: only session.open puts a prefix in front of a session");
	}
	if ((job->session == NULL && (bit & (OP(SESSION_APPEND) | OP(SESSION_CLOSE))) != 0)
		|| (job->prefix == NULL
			&& (bit & (OP(PREFIX_PUT) | OP(PREFIX_GET) | OP(PREFIX_DELETE))) != 0)) {
		return bad(m, "%s needs the name of a %s", pfx_op_name(m->op),
			bit & OPS_SESSION ? "session" : "prefix");
	}
	if (salt == NULL) {
		return 0;
	}
	if (!json_is_string(salt)) {
		return bad(m, "namespace must be a string");
	}
	job->salt_len = json_string_length(salt);
	job->salt = pfx_memdup(json_string_value(salt), job->salt_len + 1);
	return job->salt == NULL ? no_memory(m) : 0;
}

/* What the fields say together. */
int pfx_proto_check_kept(struct pfx_msg *m)
{
	struct pfx_job *job = m->job;

	if (job->ttl_ms > PFX_TTL_MAX_MS) {
		job->ttl_ms = PFX_TTL_MAX_MS; /* for ever, as far as anybody can tell */
	}
	if (m->op == PFX_OP_UNPIN && (job->lease != 0) == job->all) {
		return bad(m, "unpin needs lease (a number) or all (true)");
	}
	if (m->op == PFX_OP_END && job->session != NULL && job->prompt != PFX_PROMPT_NONE) {
		return bad(m, "end takes a session or a prompt, not both");
	}
	if (m->op == PFX_OP_PREFIX_PUT && (job->pin || job->ttl_ms != 0)) {
		job->warm = 1;
	}
	return 0;
}
