#ifndef PFX_ENGINE_CONTENT_H
#define PFX_ENGINE_CONTENT_H

/*
 * What a prompt is made of, kept beyond the request that brought it: the content of a named
 * prefix. Never changed once made, counted by its holders, who may be of any thread: a name
 * that is put anew takes nothing from the requests that were accepted before.
 */

#include <stdatomic.h>

#include "engine/engine.h"

struct pfx_content {
	_Atomic uint32_t refs;
	enum pfx_prompt_kind kind;
	char *text; /* TEXT */
	size_t text_len;
	json_t *messages, *tools, *documents, *kwargs; /* CHAT */
	uint32_t *tokens;                              /* TOKENS */
	size_t n_tokens;
	size_t bytes; /* what it is accounted for */
	uint64_t digest;
	uint64_t serial; /* set by who keeps it: a later one is higher */
};

/* Takes the prompt out of the job, which is left with none. One holder. NULL: -ENOMEM. */
struct pfx_content *pfx_content_take(struct pfx_job *job);
struct pfx_content *pfx_content_hold(struct pfx_content *c);
void pfx_content_release(struct pfx_content *c); /* NULL is fine */
const char *pfx_prompt_name(enum pfx_prompt_kind kind);

/*
 * Puts the content in front of the job's own prompt, as if the client had sent it whole:
 * text and text, messages and messages, ids and ids; a job without a prompt becomes the
 * content's. 1: both are runs of text or ids but not of one kind, so nothing was done, and
 * the content's ids go in front of the job's; -EINVAL: they cannot go together; -ENOMEM.
 */
int pfx_content_join(const struct pfx_content *c, struct pfx_job *job);

/* Messages in front of the job's own; companions that the job has none of. -ENOMEM. */
int pfx_messages_join(json_t *messages, json_t *tools, json_t *documents, json_t *kwargs,
	struct pfx_job *job);
/* About the memory that a value takes. */
size_t pfx_json_bytes(const json_t *v);

#endif
