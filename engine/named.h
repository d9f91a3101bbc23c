#ifndef PFX_ENGINE_NAMED_H
#define PFX_ENGINE_NAMED_H

/*
 * The named prefixes: content that a namespace's clients have put once and call by name.
 * The table has a lock of its own, held for a lookup and no longer: any thread. What a
 * request found under a name stays that request's, whatever becomes of the name.
 */

#include "engine/content.h"
#include "engine/map.h"

struct pfx_named;

struct pfx_named_opts {
	uint32_t n_max;       /* names in all, */
	uint32_t n_space_max; /* and of one of the server's namespaces */
	uint64_t bytes_max;   /* content of all of them */
};

struct pfx_named_stats {
	uint32_t n;
	uint64_t bytes, put, deleted, refused;
};

int pfx_named_open(struct pfx_named **out, const struct pfx_named_opts *opts);
void pfx_named_close(struct pfx_named *t);

/*
 * The name means this content from now on; takes a hold of its own, and gives it a serial
 * number above all before. *replaced: it meant another. PFX_E_FULL (err says what is full),
 * -ENOMEM: nothing has changed.
 */
int pfx_named_put(struct pfx_named *t, const struct pfx_key *key, struct pfx_content *c,
	int *replaced, char *err, size_t errlen);
/* Returns a hold, or NULL: there is none. */
struct pfx_content *pfx_named_get(struct pfx_named *t, const struct pfx_key *key);
/* The name means nothing any more; returns what it meant, as get does. */
struct pfx_content *pfx_named_delete(struct pfx_named *t, const struct pfx_key *key);
/*
 * The names with this namespace and salt (all: with any salt), each as an object with prefix (the
 * name), namespace, salt, kind, bytes, digest and age_s; sorted by name.
 */
json_t *pfx_named_list(struct pfx_named *t, const struct pfx_key *of, int all);
void pfx_named_stats(struct pfx_named *t, struct pfx_named_stats *out);

#endif
