#include "engine/content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"

/* What the library takes for a value, and for a member of an object beside its key. */
enum { VALUE_BYTES = 32, MEMBER_BYTES = 64 };

const char *pfx_prompt_name(enum pfx_prompt_kind kind)
{
	static const char *const names[] = {
		[PFX_PROMPT_NONE] = "none",
		[PFX_PROMPT_TEXT] = "text",
		[PFX_PROMPT_CHAT] = "messages",
		[PFX_PROMPT_TOKENS] = "tokens",
	};

	return names[kind];
}

/* As deep as a line may nest: net/ has bounded it. */
size_t pfx_json_bytes(const json_t *v)
{
	size_t sum = v == NULL ? 0 : VALUE_BYTES, i;
	const char *key;
	json_t *it;

	if (json_is_string(v)) {
		return sum + json_string_length(v);
	}
	if (json_is_array(v)) {
		json_array_foreach(v, i, it) {
			sum += sizeof(it) + pfx_json_bytes(it);
		}
	} else if (json_is_object(v)) {
		json_object_foreach((json_t *)v, key, it) {
			sum += MEMBER_BYTES + strlen(key) + pfx_json_bytes(it);
		}
	}
	return sum;
}

/* Over the bytes of a text, the ids in little-endian, or the messages as compact JSON. */
static int digest(struct pfx_content *c)
{
	json_t *whole;
	char *text;

	if (c->kind == PFX_PROMPT_TEXT) {
		c->digest = XXH3_64bits(c->text, c->text_len);
		return 0;
	}
	if (c->kind == PFX_PROMPT_TOKENS) {
		c->digest = XXH3_64bits(c->tokens, c->n_tokens * sizeof(*c->tokens));
		return 0;
	}
	whole = json_pack("{s:O,s:O*,s:O*,s:O*}", "messages", c->messages, "tools", c->tools,
		"documents", c->documents, "chat_template_kwargs", c->kwargs);
	text = whole == NULL ? NULL : json_dumps(whole, JSON_COMPACT);
	if (text != NULL) {
		c->digest = XXH3_64bits(text, strlen(text));
	}
	json_decref(whole);
	free(text); /* memory of the library's own allocator */
	return text == NULL ? -ENOMEM : 0;
}

struct pfx_content *pfx_content_take(struct pfx_job *job)
{
	struct pfx_content *c = pfx_calloc(1, sizeof(*c));

	if (c == NULL) {
		return NULL;
	}
	c->refs = 1;
	c->kind = job->prompt;
	c->text = job->text;
	c->text_len = job->text_len;
	c->messages = job->messages;
	c->tools = job->tools;
	c->documents = job->documents;
	c->kwargs = job->kwargs;
	c->tokens = job->tokens;
	c->n_tokens = job->n_tokens;
	job->prompt = PFX_PROMPT_NONE;
	job->text = NULL;
	job->tokens = NULL;
	job->messages = job->tools = job->documents = job->kwargs = NULL;
	job->text_len = job->n_tokens = 0;
	c->bytes = c->text_len + c->n_tokens * sizeof(*c->tokens) +
		pfx_json_bytes(c->messages) + pfx_json_bytes(c->tools) + pfx_json_bytes(c->documents) +
		pfx_json_bytes(c->kwargs);
	if (digest(c) != 0) {
		pfx_content_release(c);
		return NULL;
	}
	return c;
}

struct pfx_content *pfx_content_hold(struct pfx_content *c)
{
	atomic_fetch_add(&c->refs, 1);
	return c;
}

void pfx_content_release(struct pfx_content *c)
{
	if (c == NULL || atomic_fetch_sub(&c->refs, 1) > 1) {
		return;
	}
	pfx_free(c->text);
	json_decref(c->messages);
	json_decref(c->tools);
	json_decref(c->documents);
	json_decref(c->kwargs);
	pfx_free(c->tokens);
	pfx_free(c);
}

/* ---- in front of a job's own ---- */

static int join_text(const struct pfx_content *c, struct pfx_job *job)
{
	char *text = pfx_malloc(c->text_len + job->text_len + 1);

	if (text == NULL) {
		return -ENOMEM;
	}
	memcpy(text, c->text, c->text_len);
	if (job->text_len > 0) {
		memcpy(text + c->text_len, job->text, job->text_len);
	}
	job->text_len += c->text_len;
	text[job->text_len] = 0;
	pfx_free(job->text);
	job->text = text;
	return 0;
}

static int join_tokens(const struct pfx_content *c, struct pfx_job *job)
{
	uint32_t *tokens = pfx_reallocarray(NULL, c->n_tokens + job->n_tokens, sizeof(*tokens));

	if (tokens == NULL) {
		return -ENOMEM;
	}
	memcpy(tokens, c->tokens, c->n_tokens * sizeof(*tokens));
	if (job->n_tokens > 0) {
		memcpy(tokens + c->n_tokens, job->tokens, job->n_tokens * sizeof(*tokens));
	}
	job->n_tokens += c->n_tokens;
	pfx_free(job->tokens);
	job->tokens = tokens;
	return 0;
}

/* Both objects' members; the second's win. A new reference, or NULL. */
static json_t *merged(json_t *first, json_t *second)
{
	json_t *both;

	if (first == NULL || second == NULL) {
		return json_incref(first != NULL ? first : second);
	}
	both = json_copy(first);
	if (both != NULL && json_object_update(both, second) != 0) {
		json_decref(both);
		both = NULL;
	}
	return both;
}

int pfx_messages_join(json_t *messages, json_t *tools, json_t *documents, json_t *kwargs,
	struct pfx_job *job)
{
	json_t *all = json_copy(messages), *both = merged(kwargs, job->kwargs);

	if (all == NULL || (both == NULL && (kwargs != NULL || job->kwargs != NULL)) ||
		(job->messages != NULL && json_array_extend(all, job->messages) != 0)) {
		json_decref(all);
		json_decref(both);
		return -ENOMEM;
	}
	json_decref(job->messages);
	json_decref(job->kwargs);
	job->messages = all;
	job->kwargs = both;
	if (job->tools == NULL) {
		job->tools = json_incref(tools);
	}
	if (job->documents == NULL) {
		job->documents = json_incref(documents);
	}
	return 0;
}

int pfx_content_join(const struct pfx_content *c, struct pfx_job *job)
{
	enum pfx_prompt_kind own = job->prompt;

	if (own != PFX_PROMPT_NONE && own != c->kind) {
		return own == PFX_PROMPT_CHAT || c->kind == PFX_PROMPT_CHAT ? -EINVAL : 1;
	}
	job->prompt = c->kind;
	switch (c->kind) {
	case PFX_PROMPT_TEXT:
		return join_text(c, job);
	case PFX_PROMPT_TOKENS:
		return join_tokens(c, job);
	case PFX_PROMPT_CHAT:
		return pfx_messages_join(c->messages, c->tools, c->documents, c->kwargs, job);
	case PFX_PROMPT_NONE:
		break;
	}
	return -EINVAL;
}
