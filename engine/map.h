#ifndef PFX_ENGINE_MAP_H
#define PFX_ENGINE_MAP_H

/*
 * A hash map from runs of bytes to nodes that are embedded in what they name, and the keys
 * of named things: whose (the server's namespace, narrowed by the client's salt) and how
 * called, each part framed by its length, so that no two of them ever read alike.
 *
 * Not thread-safe: who owns a map owns its lock.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct pfx_map_node {
	struct pfx_map_node *next;
	uint64_t hash;
	const char *key; /* borrowed: lives as long as the node is in the map */
	size_t key_len;
};

struct pfx_map {
	struct pfx_map_node **slots;
	size_t n_slots, n;
	uint64_t seed; /* drawn at init, so that clients cannot choose names that collide */
};

int pfx_map_init(struct pfx_map *m); /* -ENOMEM */
void pfx_map_free(struct pfx_map *m); /* the nodes are their owners' */
struct pfx_map_node *pfx_map_find(const struct pfx_map *m, const char *key, size_t len);
/* node->key is set and not in the map. Cannot fail. */
void pfx_map_add(struct pfx_map *m, struct pfx_map_node *node);
void pfx_map_remove(struct pfx_map *m, struct pfx_map_node *node);
/* Nodes in no order: *slot is 0 at first; at is the last one given, or NULL. */
struct pfx_map_node *pfx_map_next(const struct pfx_map *m, struct pfx_map_node *at, size_t *slot);

/* Of a name: bytes [0, space) are the namespace alone, [0, head) namespace and salt. */
struct pfx_key {
	char *data;
	size_t len, head, space;
};

/* -ENOMEM leaves it empty. */
int pfx_key_make(struct pfx_key *k, const char *space, size_t space_len, const char *salt,
	size_t salt_len, const char *name, size_t name_len);
int pfx_key_copy(struct pfx_key *k, const struct pfx_key *from); /* the same */
void pfx_key_free(struct pfx_key *k);
/* Whether k is of the namespace of `of`, and, unless all is set, of its salt. */
int pfx_key_within(const struct pfx_key *k, const struct pfx_key *of, int all);
/* For sorting: by the bytes of the names. */
int pfx_key_by_name(const struct pfx_key *a, const struct pfx_key *b);
/* The `namespace` and `salt` of a row of a report. */
void pfx_key_report(const struct pfx_key *k, json_t *row);
static inline const char *pfx_key_name(const struct pfx_key *k, size_t *len)
{
	*len = k->len - k->head;
	return k->data + k->head;
}
static inline const char *pfx_key_space(const struct pfx_key *k, size_t *len)
{
	*len = k->space - sizeof(uint64_t);
	return k->data + sizeof(uint64_t);
}
static inline const char *pfx_key_salt(const struct pfx_key *k, size_t *len)
{
	*len = k->head - k->space - sizeof(uint64_t);
	return k->data + k->space + sizeof(uint64_t);
}

/* How many things each of the server's namespaces has, whatever its clients' salts. */
struct pfx_quota {
	struct pfx_map map;
};
int pfx_quota_init(struct pfx_quota *q);
void pfx_quota_free(struct pfx_quota *q);
/* PFX_E_FULL when the namespace has max already; -ENOMEM. */
int pfx_quota_take(struct pfx_quota *q, const struct pfx_key *of, uint32_t max);
void pfx_quota_give(struct pfx_quota *q, const struct pfx_key *of);

#endif
