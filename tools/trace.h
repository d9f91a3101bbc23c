#ifndef PFX_TOOLS_TRACE_H
#define PFX_TOOLS_TRACE_H

/*
 * Request traces in the Mooncake form: one JSON object a line, whose `hash_ids` name the
 * blocks of a request's input. What an id means is decided by all that stands before it in
 * its request: the blocks of a trace are numbered anew, one number for each different prefix,
 * from 0 in the order in which they first appear. So a trace whose ids are chained and one
 * whose ids name a block's content alone both read right, and a block is always behind the
 * same other one.
 *
 * Of the other fields `input_length`, `output_length`, `session` and `namespace` (strings or
 * integers) and `last_turn` (a boolean) are read where they are there; what is of another type
 * counts as not there, as does an empty string. Requests of different namespaces share no
 * block, whatever their ids. More fields are passed over.
 */

#include <stddef.h>
#include <stdint.h>

#define PFX_TRACE_LINE_MAX (64u << 20) /* bytes */
#define PFX_TRACE_NONE UINT32_MAX

/* What is known of a request besides its blocks. */
struct pfx_trace_row {
	uint32_t input, reply; /* tokens; 0: it does not say */
	uint32_t session;      /* one number for each name in each namespace, or PFX_TRACE_NONE */
	uint32_t conversation; /* of tools/ends.h; until then as session */
	int last_turn;         /* no request will go on with its conversation */
};

struct pfx_trace {
	uint32_t *blocks; /* of all requests, one after the other */
	uint64_t *first;  /* request i has blocks[first[i] .. first[i+1]) */
	struct pfx_trace_row *rows;
	uint32_t n_requests, n_distinct;
	uint32_t n_blocks_max; /* of one request */
	uint32_t n_last_turns;
	uint32_t n_names; /* of namespaces and sessions together */

	/* Of the reader: from (block before, id) to number, and from a name to its own. */
	struct pfx_trace_slot *slots;
	uint32_t n_slots;
	struct pfx_trace_name **names;
	uint32_t n_name_slots;
	uint64_t cap_blocks, cap_requests;
};

#define PFX_TRACE_INIT { 0 }

static inline uint64_t pfx_trace_refs(const struct pfx_trace *t)
{
	return t->n_requests == 0 ? 0 : t->first[t->n_requests];
}

static inline uint32_t pfx_trace_n_blocks(const struct pfx_trace *t, uint32_t request)
{
	return (uint32_t)(t->first[request + 1] - t->first[request]);
}

/*
 * Adds one line without its end; a blank one adds nothing. PFX_E_FORMAT, PFX_E_LIMIT or
 * -ENOMEM with a sentence in err that does not name the line; the trace is as before then.
 */
int pfx_trace_add(struct pfx_trace *t, const char *line, size_t n, char *err, size_t errlen);
/* All lines of a file ("-": standard input). err names file and line. */
int pfx_trace_load(struct pfx_trace *t, const char *path, char *err, size_t errlen);
void pfx_trace_free(struct pfx_trace *t);

/*
 * How many tokens a full block has, worked out from the rows that say how long their input
 * was; the least power of two that fits, else the least number. 0: they say nothing, or no
 * size fits them all.
 */
uint32_t pfx_trace_block_tokens(const struct pfx_trace *t);

#endif
