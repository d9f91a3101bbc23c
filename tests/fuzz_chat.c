/*
 * Chat templates under arbitrary source, over fixed messages. With libFuzzer (clang
 * -fsanitize=fuzzer,address) this is a fuzz target; without it, `make check` replays
 * tests/corpus/chat. Every client's string holds U+E000, which then may stand nowhere in
 * what counts as the template's own.
 */
#include "tests/fuzz.h"

#include <string.h>

#include "base/error.h"
#include "engine/chat.h"

#define MINE "\xee\x80\x80"

static json_t *client_values(void)
{
	static const char text[] = "{"
		"\"messages\": [{\"role\": \"system\", \"content\": \" S" MINE " \"},"
		"  {\"role\": \"user\", \"content\": \"<|x|>" MINE "\\n Wörld ß\", \"n\": 3, \"f\": 1.5},"
		"  {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a" MINE "\","
		"    \"function\": {\"name\": \"f" MINE "\", \"arguments\": {\"k" MINE "\": [1, true, null]}}}]}],"
		"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}],"
		"\"kwargs\": {\"x\": \"" MINE "x\", \"l\": [3, 1, 2, \"" MINE "\"], \"d\": {\"a\": 1, \"b\": {}}}}";
	json_error_t error;

	return json_loads(text, 0, &error);
}

/* Whether the template could have made the client's character by itself. */
static int could_write_it(const char *src, size_t n)
{
	static const char *const ways[] = { MINE, "e000", "E000", "from_json", "fromjson" };

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		for (size_t at = 0; at + strlen(ways[i]) <= n; at++) {
			if (memcmp(src + at, ways[i], strlen(ways[i])) == 0) {
				return 1;
			}
		}
	}
	return 0;
}

static void check_spans(const struct pfx_chat_output *out, int own)
{
	const struct pfx_span *span;
	size_t end = 0;

	for (size_t i = 0; i < out->n_spans; i++) {
		span = &out->spans[i];
		if (span->start >= span->end || span->end > out->text.len || (i > 0 && span->start <= end)) {
			abort();
		}
		end = span->end;
		for (size_t at = span->start; !own && at + 3 <= span->end; at++) {
			if (memcmp(out->text.data + at, MINE, 3) == 0) {
				abort();
			}
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static json_t *values;
	static const struct tm now = { .tm_year = 125, .tm_mon = 2, .tm_mday = 9 };
	struct pfx_chat_output out = { PFX_BUF_INIT, NULL, 0 };
	struct pfx_chat *chat;
	char err[300] = "";
	int rc;

	if (values == NULL) {
		values = client_values();
	}
	struct pfx_chat_input in = {
		.messages = json_object_get(values, "messages"),
		.tools = json_object_get(values, "tools"),
		.kwargs = json_object_get(values, "kwargs"),
		.bos = { "<s>", 3 }, .eos = { "</s>", 4 }, .add_generation_prompt = 1, .now = &now,
		.steps_max = 20000, .output_max = 1 << 18,
	};
	rc = pfx_chat_open(&chat, (const char *)bytes, n, "t", err, sizeof(err));
	if (rc == 0) {
		rc = pfx_chat_render(chat, &in, &out, err, sizeof(err));
		check_spans(&out, could_write_it((const char *)bytes, n));
		pfx_chat_close(chat);
	}
	if (rc < 0 && (err[0] == 0 || out.text.data != NULL)) {
		abort(); /* a failure has words, and leaves no text */
	}
	pfx_chat_output_free(&out);
	return 0;
}
