#include "engine/named.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"

struct name {
	struct pfx_map_node node;
	struct pfx_key key;
	struct pfx_content *content;
	uint64_t put_ns;
};

struct pfx_named {
	struct pfx_named_opts opts;
	pthread_mutex_t lock;
	struct pfx_map map;
	struct pfx_quota quota;
	uint64_t serial;
	struct pfx_named_stats n;
};

int pfx_named_open(struct pfx_named **out, const struct pfx_named_opts *opts)
{
	struct pfx_named *t = pfx_calloc(1, sizeof(*t));

	if (t == NULL) {
		return -ENOMEM;
	}
	t->opts = *opts;
	pthread_mutex_init(&t->lock, NULL);
	if (pfx_map_init(&t->map) != 0 || pfx_quota_init(&t->quota) != 0) {
		pfx_named_close(t);
		return -ENOMEM;
	}
	*out = t;
	return 0;
}

static void name_free(struct name *name)
{
	pfx_content_release(name->content);
	pfx_key_free(&name->key);
	pfx_free(name);
}

void pfx_named_close(struct pfx_named *t)
{
	struct pfx_map_node *it, *next;
	size_t slot = 0;

	if (t == NULL) {
		return;
	}
	for (it = pfx_map_next(&t->map, NULL, &slot); it != NULL; it = next) {
		next = pfx_map_next(&t->map, it, &slot);
		name_free(pfx_container_of(it, struct name, node));
	}
	pfx_map_free(&t->map);
	pfx_quota_free(&t->quota);
	pthread_mutex_destroy(&t->lock);
	pfx_free(t);
}

static struct name *find_locked(struct pfx_named *t, const struct pfx_key *key)
{
	struct pfx_map_node *it = pfx_map_find(&t->map, key->data, key->len);

	return it == NULL ? NULL : pfx_container_of(it, struct name, node);
}

/* A new name without content, in the map. */
static int add_locked(struct pfx_named *t, const struct pfx_key *key, struct name **out, char *err,
	size_t errlen)
{
	struct name *name;
	int rc;

	if (t->map.n >= t->opts.n_max) {
		return pfx_fail(PFX_E_FULL, err, errlen, "there are %u named prefixes already, as many "
			"as the server keeps", t->opts.n_max);
	}
	rc = pfx_quota_take(&t->quota, key, t->opts.n_space_max);
	if (rc == PFX_E_FULL) {
		return pfx_fail(rc, err, errlen, "the namespace has %u named prefixes already, as many as "
			"it may", t->opts.n_space_max);
	}
	name = rc == 0 ? pfx_calloc(1, sizeof(*name)) : NULL;
	if (name != NULL) {
		name->key = *key;
		name->key.data = pfx_memdup(key->data, key->len);
	}
	if (name == NULL || name->key.data == NULL) {
		if (rc == 0) {
			pfx_quota_give(&t->quota, key);
		}
		pfx_free(name);
		return -ENOMEM;
	}
	name->node.key = name->key.data;
	name->node.key_len = name->key.len;
	pfx_map_add(&t->map, &name->node);
	*out = name;
	return 0;
}

static int put_locked(struct pfx_named *t, const struct pfx_key *key, struct pfx_content *c,
	struct pfx_content **old, char *err, size_t errlen)
{
	struct name *name = find_locked(t, key);
	uint64_t bytes = t->n.bytes + c->bytes - (name == NULL ? 0 : name->content->bytes);
	int rc;

	if (bytes > t->opts.bytes_max) {
		return pfx_fail(PFX_E_FULL, err, errlen, "named prefixes hold %llu of %llu bytes already; "
			"this one has %zu", (unsigned long long)t->n.bytes,
			(unsigned long long)t->opts.bytes_max, c->bytes);
	}
	if (name == NULL) {
		rc = add_locked(t, key, &name, err, errlen);
		if (rc != 0) {
			return rc;
		}
	}
	*old = name->content;
	c->serial = ++t->serial;
	name->content = pfx_content_hold(c);
	name->put_ns = pfx_clock_ns();
	t->n.bytes = bytes;
	t->n.put++;
	return 0;
}

int pfx_named_put(struct pfx_named *t, const struct pfx_key *key, struct pfx_content *c,
	int *replaced, char *err, size_t errlen)
{
	struct pfx_content *old = NULL;
	int rc;

	pthread_mutex_lock(&t->lock);
	rc = put_locked(t, key, c, &old, err, errlen);
	t->n.refused += rc == PFX_E_FULL;
	pthread_mutex_unlock(&t->lock);
	*replaced = old != NULL;
	pfx_content_release(old);
	return rc;
}

struct pfx_content *pfx_named_get(struct pfx_named *t, const struct pfx_key *key)
{
	struct name *name;
	struct pfx_content *c = NULL;

	pthread_mutex_lock(&t->lock);
	name = find_locked(t, key);
	if (name != NULL) {
		c = pfx_content_hold(name->content);
	}
	pthread_mutex_unlock(&t->lock);
	return c;
}

struct pfx_content *pfx_named_delete(struct pfx_named *t, const struct pfx_key *key)
{
	struct name *name;
	struct pfx_content *c = NULL;

	pthread_mutex_lock(&t->lock);
	name = find_locked(t, key);
	if (name != NULL) {
		c = name->content;
		name->content = NULL;
		pfx_map_remove(&t->map, &name->node);
		pfx_quota_give(&t->quota, key);
		t->n.bytes -= c->bytes;
		t->n.deleted++;
	}
	pthread_mutex_unlock(&t->lock);
	if (name != NULL) {
		name_free(name);
	}
	return c;
}

/* What a list says of a name, taken out of the table. */
struct row {
	struct pfx_key key; /* a copy */
	struct pfx_content *content;
	uint64_t put_ns;
};

static int by_name(const void *a, const void *b)
{
	return pfx_key_by_name(&((const struct row *)a)->key, &((const struct row *)b)->key);
}

/* Under the lock only what must be: a thousand names take some 100 us. */
static size_t rows_locked(struct pfx_named *t, const struct pfx_key *of, int all, struct row *rows)
{
	size_t slot = 0, n = 0;
	struct pfx_map_node *it = pfx_map_next(&t->map, NULL, &slot);

	for (; it != NULL; it = pfx_map_next(&t->map, it, &slot)) {
		struct name *name = pfx_container_of(it, struct name, node);

		if (!pfx_key_within(&name->key, of, all)) {
			continue;
		}
		if (pfx_key_copy(&rows[n].key, &name->key) != 0) {
			break;
		}
		rows[n].put_ns = name->put_ns;
		rows[n].content = pfx_content_hold(name->content);
		n++;
	}
	return n;
}

json_t *pfx_named_list(struct pfx_named *t, const struct pfx_key *of, int all)
{
	uint64_t now = pfx_clock_ns();
	json_t *list = json_array(), *row;
	struct row *rows;
	size_t n = 0, len;
	char digest[20];

	pthread_mutex_lock(&t->lock);
	rows = pfx_calloc(t->map.n + 1, sizeof(*rows));
	if (rows != NULL) {
		n = rows_locked(t, of, all, rows);
	}
	pthread_mutex_unlock(&t->lock);
	if (n > 0) {
		qsort(rows, n, sizeof(*rows), by_name);
	}
	for (size_t i = 0; i < n; i++) {
		const struct pfx_content *c = rows[i].content;
		const char *name = pfx_key_name(&rows[i].key, &len);

		snprintf(digest, sizeof(digest), "%016llx", (unsigned long long)c->digest);
		row = json_pack("{s:o}", "prefix", json_stringn(name, len));
		pfx_key_report(&rows[i].key, row);
		json_object_set_new(row, "kind", json_string(pfx_prompt_name(c->kind)));
		json_object_set_new(row, "bytes", json_integer((json_int_t)c->bytes));
		json_object_set_new(row, "digest", json_string(digest));
		json_object_set_new(row, "age_s", json_real((double)(now - rows[i].put_ns) / 1e9));
		json_array_append_new(list, row);
		pfx_content_release(rows[i].content);
		pfx_key_free(&rows[i].key);
	}
	pfx_free(rows);
	return list;
}

void pfx_named_stats(struct pfx_named *t, struct pfx_named_stats *out)
{
	pthread_mutex_lock(&t->lock);
	*out = t->n;
	out->n = (uint32_t)t->map.n;
	pthread_mutex_unlock(&t->lock);
}
