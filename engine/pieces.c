#include "engine/pieces.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/list.h"
#include "engine/map.h"

/* Shorter ones are tokenised in about the time of a look-up. */
#define PIECE_BYTES_MIN 64
/*
 * Longer ones would hold the lock for more than about a millisecond, and with it the thread
 * that serves short texts.
 */
#define PIECE_BYTES_MAX ((size_t)4 << 20)
/* Of the whole that one piece may take: a few long texts must not empty the cache. */
#define PIECE_SHARE 8

struct entry {
	struct pfx_map_node node;
	struct pfx_list link; /* in `used` */
	size_t n, bytes;
	uint32_t ids[]; /* then the key's bytes */
};

struct pfx_pieces {
	pthread_mutex_t lock;
	struct pfx_map map;
	struct pfx_list used; /* the youngest first */
	uint64_t bytes_max;
	struct pfx_pieces_stats stats;
};

int pfx_pieces_open(struct pfx_pieces **out, uint64_t bytes_max)
{
	struct pfx_pieces *p = pfx_calloc(1, sizeof(*p));

	if (p == NULL || pfx_map_init(&p->map) != 0) {
		pfx_free(p);
		return -ENOMEM;
	}
	pthread_mutex_init(&p->lock, NULL);
	pfx_list_init(&p->used);
	p->bytes_max = bytes_max;
	*out = p;
	return 0;
}

static void drop(struct pfx_pieces *p, struct entry *e)
{
	pfx_map_remove(&p->map, &e->node);
	pfx_list_remove(&e->link);
	p->stats.bytes -= e->bytes;
	pfx_free(e);
}

static struct entry *oldest(const struct pfx_pieces *p)
{
	return pfx_list_empty(&p->used) ? NULL
		: pfx_container_of(p->used.prev, struct entry, link);
}

static void clear_locked(struct pfx_pieces *p)
{
	struct entry *e;

	while ((e = oldest(p)) != NULL) {
		drop(p, e);
	}
}

void pfx_pieces_close(struct pfx_pieces *p)
{
	if (p == NULL) {
		return;
	}
	clear_locked(p);
	pfx_map_free(&p->map);
	pthread_mutex_destroy(&p->lock);
	pfx_free(p);
}

int pfx_pieces_keeps(const struct pfx_pieces *p, size_t piece_bytes)
{
	return piece_bytes >= PIECE_BYTES_MIN && piece_bytes <= PIECE_BYTES_MAX &&
		piece_bytes <= p->bytes_max / PIECE_SHARE;
}

static int append(struct pfx_ids *out, const struct entry *e)
{
	size_t want = out->n + e->n, cap = out->cap * 2 > want ? out->cap * 2 : want;
	uint32_t *v;

	if (want > out->cap) {
		v = pfx_reallocarray(out->v, cap, sizeof(*v));
		if (v == NULL) {
			return -ENOMEM;
		}
		out->v = v;
		out->cap = cap;
	}
	if (e->n > 0) {
		memcpy(out->v + out->n, e->ids, e->n * sizeof(*e->ids));
	}
	out->n = want;
	return 1;
}

int pfx_pieces_find(struct pfx_pieces *p, const char *key, size_t len, struct pfx_ids *out)
{
	struct pfx_map_node *node;
	struct entry *e;
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	node = pfx_map_find(&p->map, key, len);
	if (node != NULL) {
		e = pfx_container_of(node, struct entry, node);
		pfx_list_remove(&e->link);
		pfx_list_push_front(&p->used, &e->link);
		rc = append(out, e);
		p->stats.hits++;
		p->stats.hit_bytes += len;
	} else {
		p->stats.misses++;
	}
	pthread_mutex_unlock(&p->lock);
	return rc;
}

void pfx_pieces_add(struct pfx_pieces *p, const char *key, size_t len, const uint32_t *ids,
	size_t n)
{
	size_t bytes = sizeof(struct entry) + n * sizeof(*ids) + len;
	struct entry *e;
	char *own_key;

	/* Each byte may be an id of its own, so what was worth a look may yet be too large. */
	if (bytes > p->bytes_max) {
		return;
	}
	e = pfx_malloc(bytes);
	if (e == NULL) {
		return;
	}
	if (n > 0) {
		memcpy(e->ids, ids, n * sizeof(*ids));
	}
	own_key = (char *)(e->ids + n);
	memcpy(own_key, key, len);
	e->node = (struct pfx_map_node){ .key = own_key, .key_len = len };
	e->n = n;
	e->bytes = bytes;
	pthread_mutex_lock(&p->lock);
	if (pfx_map_find(&p->map, key, len) != NULL) {
		/* The other text thread had the same text. */
		pfx_free(e);
	} else {
		while (p->stats.bytes + bytes > p->bytes_max) {
			drop(p, oldest(p));
			p->stats.evicted++;
		}
		pfx_map_add(&p->map, &e->node);
		pfx_list_push_front(&p->used, &e->link);
		p->stats.bytes += bytes;
	}
	pthread_mutex_unlock(&p->lock);
}

void pfx_pieces_clear(struct pfx_pieces *p)
{
	if (p == NULL) {
		return;
	}
	pthread_mutex_lock(&p->lock);
	clear_locked(p);
	pthread_mutex_unlock(&p->lock);
}

void pfx_pieces_stats(struct pfx_pieces *p, struct pfx_pieces_stats *out)
{
	*out = (struct pfx_pieces_stats){ 0 };
	if (p == NULL) {
		return;
	}
	pthread_mutex_lock(&p->lock);
	*out = p->stats;
	out->n = p->map.n;
	out->bytes_max = p->bytes_max;
	pthread_mutex_unlock(&p->lock);
}
