/*
 * A template and its input as JSON on stdin, the rendered text and spans as JSON on stdout:
 * what tests/reference/compare_chat.py compares with jinja2.
 */

#include <stdio.h>
#include <string.h>

#include "engine/chat.h"

static struct pfx_str str_of(json_t *o, const char *key)
{
	json_t *j = json_object_get(o, key);

	return (struct pfx_str){ json_string_value(j), json_string_length(j) };
}

static json_t *render(json_t *request)
{
	json_t *template = json_object_get(request, "template"), *spans, *reply;
	struct pfx_chat_output out = { PFX_BUF_INIT, NULL, 0 };
	struct tm now = { .tm_year = 125, .tm_mon = 2, .tm_mday = 9, .tm_hour = 14, .tm_min = 5,
		.tm_sec = 6 };
	struct pfx_chat_input in = {
		.messages = json_object_get(request, "messages"),
		.tools = json_object_get(request, "tools"),
		.documents = json_object_get(request, "documents"),
		.kwargs = json_object_get(request, "kwargs"),
		.add_generation_prompt = json_is_true(json_object_get(request, "add_generation_prompt")),
		.bos = str_of(request, "bos_token"),
		.eos = str_of(request, "eos_token"),
		.now = &now,
	};
	struct pfx_chat *chat;
	char err[1024] = "";
	int rc;

	rc = pfx_chat_open(&chat, json_string_value(template), json_string_length(template), "t", err,
		sizeof(err));
	if (rc == 0) {
		rc = pfx_chat_render(chat, &in, &out, err, sizeof(err));
		pfx_chat_close(chat);
	}
	if (rc < 0) {
		return json_pack("{s:i, s:s%}", "rc", rc, "error", err, strnlen(err, 200));
	}
	spans = json_array();
	for (size_t i = 0; i < out.n_spans; i++) {
		json_array_append_new(spans, json_pack("[I,I]", (json_int_t)out.spans[i].start,
			(json_int_t)out.spans[i].end));
	}
	reply = json_pack("{s:s%, s:o}", "text", out.text.len ? out.text.data : "", out.text.len,
		"spans", spans);
	pfx_chat_output_free(&out);
	return reply;
}

int main(void)
{
	json_error_t error;
	json_t *request, *reply;

	for (;;) {
		request = json_loadf(stdin, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &error);
		if (request == NULL) {
			return feof(stdin) ? 0 : 1;
		}
		reply = render(request);
		json_dumpf(reply, stdout, JSON_COMPACT);
		printf("\n");
		fflush(stdout);
		json_decref(reply);
		json_decref(request);
	}
}
