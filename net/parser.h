#ifndef PFX_NET_PARSER_H
#define PFX_NET_PARSER_H

/*
 * A thread that parses long request lines. The JSON library reads some 50 MB/s: a line of 16
 * MiB in the loop would be a third of a second in which nobody else is served. A connection
 * hands over one line at a time and reads on when it comes back, so its order is kept.
 */

#include <stddef.h>
#include <stdint.h>

#include "net/proto.h"

struct pfx_parser;

struct pfx_parse_task {
	void *owner; /* the user's; NULL once nobody waits for it */
	char *bytes; /* owned: the line, or the raw bytes of msg */
	size_t from, len; /* the part of bytes that counts */
	size_t line_max;
	int attach; /* bytes are msg's prompt; else a line to be parsed into msg */
	uint64_t received_ns;
	struct pfx_msg msg;
	struct pfx_parse_task *next; /* the parser's */
};

int pfx_parser_open(struct pfx_parser **out);
/* Drops what was not taken. NULL is fine. */
void pfx_parser_close(struct pfx_parser *p);
/* Takes the task. */
void pfx_parser_put(struct pfx_parser *p, struct pfx_parse_task *task);
/* Readable while finished tasks may wait. */
int pfx_parser_fd(const struct pfx_parser *p);
/* The next finished task, owned by the caller; NULL when none waits. */
struct pfx_parse_task *pfx_parser_next(struct pfx_parser *p);
void pfx_parse_task_free(struct pfx_parse_task *task);

#endif
