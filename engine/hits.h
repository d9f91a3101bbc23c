#ifndef PFX_ENGINE_HITS_H
#define PFX_ENGINE_HITS_H

/*
 * What the cache was worth: prompt tokens and blocks, found and asked for, by namespace, by
 * named prefix, by hot prefix (hot.h) and by minute, each beside what an unlimited cache would
 * have found (ceiling.h). Counters only ever grow, and reading them changes nothing: whoever
 * wants a rate of his own takes the difference of two readings.
 *
 * All memory is bounded: so many rows of names, the rest counted together; a day of minutes.
 * One thread's (the engine's).
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define PFX_HITS_NAMES 1024u
#define PFX_HITS_MINUTES 1440u

/* What a name is shown as; longer ones are cut, at a character's end. */
#define PFX_NAME_MAX 96u
struct pfx_name {
	uint8_t len, is_cut;
	char text[PFX_NAME_MAX];
};
void pfx_name_set(struct pfx_name *out, const char *text, size_t len);
int pfx_name_equal(const struct pfx_name *a, const struct pfx_name *b);
json_t *pfx_name_json(const struct pfx_name *name);

/* Whose cache: the server's namespace and the client's salt. The key is of both in full. */
struct pfx_owner {
	uint64_t key;
	struct pfx_name space, salt;
};

enum { PFX_HITS_DEVICE, PFX_HITS_HOST, PFX_HITS_DISK, PFX_HITS_TIERS };

struct pfx_hits_row {
	uint64_t requests;
	uint64_t prompt, computed, cached[PFX_HITS_TIERS]; /* tokens: prompt = computed + cached */
	uint64_t blocks, blocks_hit; /* a prompt's last, partly filled block is one */
	uint64_t ceiling, ceiling_of; /* tokens */
};
void pfx_hits_sum(struct pfx_hits_row *to, const struct pfx_hits_row *from);
/*
 * Reports are written as JSON text: there may be thousands of rows, and a step waits. Each of
 * these appends members of an object, or (pfx_name_put) a string.
 */
/* Rates of nothing are null. */
void pfx_hits_row_put(struct pfx_buf *b, const struct pfx_hits_row *row);
void pfx_name_put(struct pfx_buf *b, const struct pfx_name *name);
/* Any value, which is taken; NULL is a lack of memory. */
void pfx_json_put(struct pfx_buf *b, json_t *value);
void pfx_owner_put(struct pfx_buf *b, const struct pfx_owner *owner);

struct pfx_hits;
int pfx_hits_open(struct pfx_hits **out, uint64_t wall_ns); /* -ENOMEM */
void pfx_hits_close(struct pfx_hits *h); /* NULL is fine */

/*
 * Counts one request. named: the named prefix in front of its prompt, NULL when there is none
 * (names are the owner's own). wall_ns says the minute.
 */
void pfx_hits_add(struct pfx_hits *h, const struct pfx_owner *owner, const struct pfx_name *named,
	const struct pfx_hits_row *row, uint64_t wall_ns);
/* The owner of that key, NULL when it is not (or no longer) among the rows. */
const struct pfx_owner *pfx_hits_owner(const struct pfx_hits *h, uint64_t key);
const struct pfx_hits_row *pfx_hits_total(const struct pfx_hits *h);
/*
 * since_ms, time_ms, total, namespaces, others, named, named_others, minutes. names: rows of
 * each table at most, those with most requests first; minutes: so many, the running one last.
 */
void pfx_hits_put(struct pfx_buf *b, const struct pfx_hits *h, uint32_t names, uint32_t minutes,
	uint64_t wall_ns);
/* Sum of the last so many minutes, the running one included. */
void pfx_hits_window(const struct pfx_hits *h, uint32_t minutes, uint64_t wall_ns,
	struct pfx_hits_row *out);

#endif
