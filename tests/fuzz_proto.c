/*
 * A request line under arbitrary bytes. With libFuzzer this is a fuzz target; without it,
 * `make check` replays tests/corpus/proto, and tests/test_net_proto.c feeds it random lines.
 *
 * Besides surviving: whatever our own scanner lifts out of a line is what the JSON library
 * reads there, what the library refuses is refused, and a reply is always one line of JSON.
 */
#include "tests/fuzz.h"

#include <string.h>

#include "base/assert.h"
#include "net/proto.h"
#include "net/reply.h"

#define LINE_MAX_BYTES 4096

static void check_text(const struct pfx_job *job, const json_t *root, const char *key)
{
	const json_t *v = json_object_get(root, key);

	PFX_ASSERT(json_is_string(v));
	PFX_ASSERT(json_string_length(v) == job->text_len);
	PFX_ASSERT(memcmp(json_string_value(v), job->text, job->text_len + 1) == 0);
}

static void check_tokens(const struct pfx_job *job, const json_t *root)
{
	const json_t *v = json_object_get(root, "tokens");

	PFX_ASSERT(json_array_size(v) == job->n_tokens);
	for (size_t i = 0; i < job->n_tokens; i++) {
		PFX_ASSERT(json_integer_value(json_array_get(v, i)) == job->tokens[i]);
	}
}

static void check_job(const struct pfx_msg *m, const json_t *root)
{
	const struct pfx_job *job = m->job;

	PFX_ASSERT(job != NULL);
	PFX_ASSERT(job->top_p >= 0 && job->top_p <= 1);
	PFX_ASSERT(job->logprobs >= -1 && job->logprobs <= 20);
	PFX_ASSERT(job->from >= 1);
	if (job->prompt == PFX_PROMPT_TEXT && !m->has_prompt_bytes) {
		check_text(job, root, m->op == PFX_OP_TOKENIZE ? "text" : "prompt");
	} else if (job->prompt == PFX_PROMPT_TOKENS) {
		check_tokens(job, root);
	} else if (job->prompt == PFX_PROMPT_CHAT) {
		PFX_ASSERT(json_equal(job->messages, json_object_get(root, "messages")));
	}
}

static void check_message(const struct pfx_msg *m, const json_t *root)
{
	PFX_ASSERT(!m->bad || m->job == NULL);
	PFX_ASSERT(!m->bad || m->error[0] != 0);
	PFX_ASSERT(m->bad || m->op != PFX_OP_NONE);
	PFX_ASSERT(m->bad || json_is_object(root));
	PFX_ASSERT(!m->has_prompt_bytes || m->prompt_bytes <= LINE_MAX_BYTES);
	if (json_is_object(root) && m->bad) {
		PFX_ASSERT(strncmp(m->error, "not a JSON", 10) != 0);
	}
	if (!m->bad && m->op >= PFX_OP_GENERATE) {
		check_job(m, root);
	}
}

static void check_reply(const struct pfx_msg *m)
{
	struct pfx_buf b = PFX_BUF_INIT;
	json_t *line;

	pfx_reply_error(&b, &m->id, "bad_request", m->error, 0);
	PFX_ASSERT(memchr(b.data, '\n', b.len) == b.data + b.len - 1);
	line = json_loadb(b.data, b.len, JSON_ALLOW_NUL, NULL);
	PFX_ASSERT(json_is_object(line));
	json_decref(line);
	pfx_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
	json_t *root = json_loadb((const char *)bytes, n, flags, NULL);
	struct pfx_msg m;

	pfx_proto_parse(&m, (const char *)bytes, n, LINE_MAX_BYTES);
	check_message(&m, root);
	if (m.has_prompt_bytes) {
		size_t k = m.prompt_bytes < n ? (size_t)m.prompt_bytes : n;

		pfx_proto_attach(&m, (const char *)bytes, k);
		PFX_ASSERT(!m.bad || m.job == NULL);
	}
	check_reply(&m);
	pfx_msg_free(&m);
	json_decref(root);
	return 0;
}
