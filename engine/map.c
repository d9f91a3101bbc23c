#include "engine/map.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/list.h"
#include "base/rng.h"

#define SLOTS_FIRST 64u

int pfx_map_init(struct pfx_map *m)
{
	m->slots = pfx_calloc(SLOTS_FIRST, sizeof(struct pfx_map_node *));
	m->n_slots = SLOTS_FIRST;
	m->n = 0;
	m->seed = pfx_rng_entropy();
	return m->slots == NULL ? -ENOMEM : 0;
}

void pfx_map_free(struct pfx_map *m)
{
	pfx_free(m->slots);
	m->slots = NULL;
}

struct pfx_map_node *pfx_map_find(const struct pfx_map *m, const char *key, size_t len)
{
	uint64_t hash = XXH3_64bits_withSeed(key, len, m->seed);
	struct pfx_map_node *it = m->slots[hash & (m->n_slots - 1)];

	while (it != NULL &&
		(it->hash != hash || it->key_len != len || memcmp(it->key, key, len) != 0)) {
		it = it->next;
	}
	return it;
}

/* Without memory it stays as it is, and gets slower. */
static void grow(struct pfx_map *m)
{
	size_t n = m->n_slots * 2;
	struct pfx_map_node **slots = pfx_calloc(n, sizeof(struct pfx_map_node *));

	if (slots == NULL) {
		return;
	}
	for (size_t i = 0; i < m->n_slots; i++) {
		struct pfx_map_node *it = m->slots[i], *next;
		for (; it != NULL; it = next) {
			next = it->next;
			it->next = slots[it->hash & (n - 1)];
			slots[it->hash & (n - 1)] = it;
		}
	}
	pfx_free(m->slots);
	m->slots = slots;
	m->n_slots = n;
}

void pfx_map_add(struct pfx_map *m, struct pfx_map_node *node)
{
	struct pfx_map_node **slot;

	if (m->n >= m->n_slots) {
		grow(m);
	}
	node->hash = XXH3_64bits_withSeed(node->key, node->key_len, m->seed);
	slot = &m->slots[node->hash & (m->n_slots - 1)];
	node->next = *slot;
	*slot = node;
	m->n++;
}

void pfx_map_remove(struct pfx_map *m, struct pfx_map_node *node)
{
	struct pfx_map_node **at = &m->slots[node->hash & (m->n_slots - 1)];

	while (*at != node) {
		PFX_ASSERT(*at != NULL);
		at = &(*at)->next;
	}
	*at = node->next;
	node->next = NULL;
	m->n--;
}

struct pfx_map_node *pfx_map_next(const struct pfx_map *m, struct pfx_map_node *at, size_t *slot)
{
	if (at != NULL && at->next != NULL) {
		return at->next;
	}
	while (m->slots != NULL && *slot < m->n_slots) {
		at = m->slots[(*slot)++];
		if (at != NULL) {
			return at;
		}
	}
	return NULL;
}

/* ---- keys ---- */

static char *put_framed(char *to, const char *p, size_t len)
{
	uint64_t n = len;

	memcpy(to, &n, sizeof(n));
	if (len > 0) {
		memcpy(to + sizeof(n), p, len);
	}
	return to + sizeof(n) + len;
}

int pfx_key_make(struct pfx_key *k, const char *space, size_t space_len, const char *salt,
	size_t salt_len, const char *name, size_t name_len)
{
	char *at;

	memset(k, 0, sizeof(*k));
	at = pfx_malloc(2 * sizeof(uint64_t) + space_len + salt_len + name_len);
	if (at == NULL) {
		return -ENOMEM;
	}
	k->data = at;
	at = put_framed(at, space, space_len);
	k->space = (size_t)(at - k->data);
	at = put_framed(at, salt, salt_len);
	k->head = (size_t)(at - k->data);
	if (name_len > 0) {
		memcpy(at, name, name_len);
	}
	k->len = k->head + name_len;
	return 0;
}

int pfx_key_copy(struct pfx_key *k, const struct pfx_key *from)
{
	*k = *from;
	k->data = pfx_memdup(from->data, from->len);
	if (k->data == NULL) {
		memset(k, 0, sizeof(*k));
		return -ENOMEM;
	}
	return 0;
}

int pfx_key_within(const struct pfx_key *k, const struct pfx_key *of, int all)
{
	size_t head = all ? of->space : of->head;

	return k->len >= head && memcmp(k->data, of->data, head) == 0;
}

int pfx_key_by_name(const struct pfx_key *a, const struct pfx_key *b)
{
	size_t n, m;
	const char *x = pfx_key_name(a, &n), *y = pfx_key_name(b, &m);
	int c = memcmp(x, y, n < m ? n : m);

	return c != 0 ? c : (n > m) - (n < m);
}

void pfx_key_report(const struct pfx_key *k, json_t *row)
{
	size_t n_space, n_salt;
	const char *space = pfx_key_space(k, &n_space), *salt = pfx_key_salt(k, &n_salt);

	json_object_set_new(row, "namespace", json_stringn(space, n_space));
	json_object_set_new(row, "salt", json_stringn(salt, n_salt));
}

void pfx_key_free(struct pfx_key *k)
{
	pfx_free(k->data);
	memset(k, 0, sizeof(*k));
}

/* ---- quotas ---- */

struct quota {
	struct pfx_map_node node;
	uint32_t n;
	char space[];
};

int pfx_quota_init(struct pfx_quota *q)
{
	return pfx_map_init(&q->map);
}

void pfx_quota_free(struct pfx_quota *q)
{
	size_t slot = 0;
	struct pfx_map_node *it = pfx_map_next(&q->map, NULL, &slot), *next;

	for (; it != NULL; it = next) {
		next = pfx_map_next(&q->map, it, &slot);
		pfx_free(pfx_container_of(it, struct quota, node));
	}
	pfx_map_free(&q->map);
}

int pfx_quota_take(struct pfx_quota *q, const struct pfx_key *of, uint32_t max)
{
	struct pfx_map_node *it = pfx_map_find(&q->map, of->data, of->space);
	struct quota *quota;

	if (it == NULL) {
		quota = pfx_calloc(1, sizeof(*quota) + of->space);
		if (quota == NULL) {
			return -ENOMEM;
		}
		memcpy(quota->space, of->data, of->space);
		quota->node.key = quota->space;
		quota->node.key_len = of->space;
		pfx_map_add(&q->map, &quota->node);
	} else {
		quota = pfx_container_of(it, struct quota, node);
	}
	if (quota->n >= max) {
		return PFX_E_FULL; /* max is above 0, so a new one is not left behind empty */
	}
	quota->n++;
	return 0;
}

void pfx_quota_give(struct pfx_quota *q, const struct pfx_key *of)
{
	struct pfx_map_node *it = pfx_map_find(&q->map, of->data, of->space);
	struct quota *quota = pfx_container_of(it, struct quota, node);

	PFX_ASSERT(it != NULL && quota->n > 0);
	if (--quota->n == 0) {
		pfx_map_remove(&q->map, it);
		pfx_free(quota);
	}
}
