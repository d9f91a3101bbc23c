#ifndef PFX_ENGINE_CHAT_H
#define PFX_ENGINE_CHAT_H

/*
 * A chat template: the model's Jinja source, parsed once, rendered for each request by the
 * interpreter in jinja_*.c. What clients wrote keeps a mark through every filter and string
 * operation, so that the output says byte by byte who wrote it: only what the template
 * itself wrote (bos_token and eos_token included) is read for control tokens.
 *
 * Immutable once open: any thread may render. trim_blocks and lstrip_blocks are on, loop
 * controls exist, tojson is transformers' (insertion order, no HTML or ASCII escapes).
 */

#include <jansson.h>
#include <stddef.h>
#include <time.h>

#include "base/buf.h"
#include "engine/tokenizer.h"

struct pfx_chat;

/* src: Jinja, not NUL-ended. name: of the file or model, for messages. err names the line. */
int pfx_chat_open(struct pfx_chat **out, const char *src, size_t n, const char *name, char *err,
	size_t errlen);
void pfx_chat_close(struct pfx_chat *chat);

struct pfx_chat_input {
	json_t *messages;  /* any JSON value, handed to the template untouched; borrowed */
	json_t *tools;     /* NULL: none */
	json_t *documents; /* NULL: none */
	json_t *kwargs;    /* chat_template_kwargs: an object that overrides any variable, or NULL */
	int add_generation_prompt;
	struct pfx_str bos, eos;
	/* What strftime_now sees, as local time; NULL: now. */
	const struct tm *now;
	/* Bounds; 0 takes the default (10^7 steps, 64 MiB). */
	size_t steps_max, output_max;
};

struct pfx_chat_output {
	struct pfx_buf text; /* may hold NUL bytes */
	struct pfx_span *spans; /* what the template wrote, ascending; merged where they touch */
	size_t n_spans;
};

/*
 * Fills *out (a zeroed one) or leaves it empty. PFX_E_TEMPLATE: raise_exception or a type
 * error, err has its words; PFX_E_LIMIT: over a bound; -ENOMEM.
 */
int pfx_chat_render(const struct pfx_chat *chat, const struct pfx_chat_input *in,
	struct pfx_chat_output *out, char *err, size_t errlen);
void pfx_chat_output_free(struct pfx_chat_output *out);

#endif
