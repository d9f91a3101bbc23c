#ifndef PFX_TOOLS_TRACE_H
#define PFX_TOOLS_TRACE_H

/*
 * Request traces in the Mooncake form: one JSON object a line, whose `hash_ids` name the
 * blocks of a request's input; `output_length` may stand there too, and nothing else is
 * looked at. What an id means is decided
 * by all that stands before it in its request: the blocks of a trace are numbered anew, one
 * number for each different prefix, from 0 in the order in which they first appear. So a
 * trace whose ids are chained and one whose ids name a block's content alone both read right,
 * and a block is always behind the same other one.
 */

#include <stddef.h>
#include <stdint.h>

#define PFX_TRACE_LINE_MAX (64u << 20) /* bytes */

struct pfx_trace {
	uint32_t *blocks; /* of all requests, one after the other */
	uint64_t *first;  /* request i has blocks[first[i] .. first[i+1]) */
	uint32_t *reply;  /* request i: tokens of output, 0 when it does not say */
	uint32_t n_requests, n_distinct;
	uint32_t n_blocks_max; /* of one request */

	/* Of the reader: a table from (block before, id) to number. */
	struct pfx_trace_slot *slots;
	uint32_t n_slots;
	uint64_t cap_blocks, cap_requests;
};

#define PFX_TRACE_INIT { 0 }

static inline uint64_t pfx_trace_refs(const struct pfx_trace *t)
{
	return t->n_requests == 0 ? 0 : t->first[t->n_requests];
}

/*
 * Adds one line without its end; a blank one adds nothing. PFX_E_FORMAT, PFX_E_LIMIT or
 * -ENOMEM with a sentence in err that does not name the line; the trace is as before then.
 */
int pfx_trace_add(struct pfx_trace *t, const char *line, size_t n, char *err, size_t errlen);
/* All lines of a file ("-": standard input). err names file and line. */
int pfx_trace_load(struct pfx_trace *t, const char *path, char *err, size_t errlen);
void pfx_trace_free(struct pfx_trace *t);

#endif
