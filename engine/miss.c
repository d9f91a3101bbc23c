/*
 * Where a token stands in what the client sent. The tokens before it are spelled out again,
 * which gives a byte of the rendered prompt; messages are then found in the rendered text in
 * their order, by their content (as sent, or trimmed, as most templates do).
 */
#include "config.h"

#include "engine/engine_priv.h"

#include <string.h>

static size_t bytes_before(const struct pfx_engine *e, const struct pfx_request *r, uint32_t n)
{
	struct pfx_detok d = PFX_DETOK_INIT;
	struct pfx_buf text = PFX_BUF_INIT;
	size_t len;
	uint32_t from = 0;

	/* A BOS in front of a text prompt was not in the text. */
	if (r->job->prompt == PFX_PROMPT_TEXT && r->n_prompt > 0 && r->tokens.v[0] == e->info.bos &&
		pfx_tokenizer_add_bos(e->tokenizer)) {
		from = 1;
	}
	for (uint32_t i = from; i < n; i++) {
		pfx_detok_push(e->tokenizer, &d, r->tokens.v[i], &text);
	}
	len = text.len;
	pfx_buf_free(&text);
	return len;
}

/* Finds content in text[from..n), as it is or trimmed; -1 when it is not there. */
static int64_t find_content(const char *text, size_t from, size_t n, const char *content,
	size_t len, size_t *skipped)
{
	const char *at;

	*skipped = 0;
	at = memmem(text + from, n - from, content, len);
	if (at == NULL) {
		while (len > 0 && strchr(" \t\r\n", content[len - 1]) != NULL) {
			len--;
		}
		while (*skipped < len && strchr(" \t\r\n", content[*skipped]) != NULL) {
			++*skipped;
		}
		at = memmem(text + from, n - from, content + *skipped, len - *skipped);
	}
	return at == NULL ? -1 : at - text;
}

void pfx_miss_locate(const struct pfx_engine *e, const struct pfx_request *r, uint32_t at_token,
	int64_t *message, uint64_t *byte)
{
	size_t at, from = 0, skipped, len;
	int64_t start;
	json_t *content;

	*message = -1;
	*byte = 0;
	if (r->job->prompt == PFX_PROMPT_TOKENS) {
		return;
	}
	at = bytes_before(e, r, at_token);
	*byte = at;
	if (r->job->prompt != PFX_PROMPT_CHAT || r->text.data == NULL) {
		return;
	}
	for (size_t i = 0; i < json_array_size(r->job->messages); i++) {
		content = json_object_get(json_array_get(r->job->messages, i), "content");
		if (!json_is_string(content)) {
			continue;
		}
		len = json_string_length(content);
		start = find_content(r->text.data, from, r->text.len, json_string_value(content), len,
			&skipped);
		if (start < 0) {
			continue;
		}
		/* What stands in front of a message's content is its header. */
		*message = (int64_t)i;
		*byte = at > (size_t)start ? at - (size_t)start + skipped : 0;
		if (*byte > len) {
			*byte = len;
		}
		from = (size_t)start + len - skipped;
		if (at < from) {
			return;
		}
		if (from > r->text.len) {
			from = r->text.len;
		}
	}
}
