#ifndef PFX_NET_REPLY_H
#define PFX_NET_REPLY_H

/*
 * The engine's events -> reply lines, with the fields of doc/protocol.md. One struct
 * pfx_reply a request holds what later lines need: the id, when the first token left, and
 * for `"stream":false` everything that is told at the end. No I/O; one thread at a time.
 */

#include <stdint.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "net/proto.h"

struct pfx_reply {
	char *head; /* {"id":1,"event":" */
	size_t head_len;
	enum pfx_op op;
	int stream;
	uint64_t first_ns; /* when the first token line was handed over; 0: not yet */
	uint64_t start_ns; /* 0: not known, and the event's own is taken */
	/* Not streaming: what the token events brought. */
	struct pfx_buf text, tokens, logprobs, top, digests;
	uint32_t n_tokens;
	int has_logprobs, has_digests;
};

/* Reads what it needs of the message and keeps nothing of it. -ENOMEM. */
int pfx_reply_init(struct pfx_reply *r, const struct pfx_msg *m);
void pfx_reply_free(struct pfx_reply *r);

/*
 * Appends the line that the event makes, or none (a token that is collected). The caller
 * sets first_ns once the first token line is on its way; extra, when not NULL, is a JSON
 * object whose members are added to a stats reply. -ENOMEM: what was appended is undone.
 */
int pfx_reply_event(struct pfx_reply *r, const struct pfx_event *ev, const json_t *extra,
	struct pfx_buf *out);

/* A line of error for the id (NULL: null). retry_after_ms 0: not told. */
void pfx_reply_error(struct pfx_buf *out, const struct pfx_id *id, const char *code,
	const char *message, uint32_t retry_after_ms);
/* `{"id":..,"event":"NAME"` without its end, for the operations that the front door answers. */
void pfx_reply_begin(struct pfx_buf *out, const struct pfx_id *id, const char *event);
void pfx_reply_end(struct pfx_buf *out);

#endif
