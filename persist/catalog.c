#include "persist/catalog.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"

struct pfx_catalog {
	struct pfx_catalog_entry **buckets;
	uint64_t n_buckets; /* a power of two */
	struct pfx_list roots;
	struct pfx_catalog_entry **heap; /* heap[1..n_heap], the oldest at 1 */
	uint32_t n_heap, cap_heap;
	uint64_t seq;
	struct pfx_catalog_totals totals;
};

int pfx_catalog_open(struct pfx_catalog **out)
{
	struct pfx_catalog *cat = pfx_calloc(1, sizeof(*cat));

	if (cat == NULL) {
		return -ENOMEM;
	}
	cat->n_buckets = 64;
	cat->buckets = pfx_calloc(cat->n_buckets, sizeof(*cat->buckets));
	if (cat->buckets == NULL) {
		pfx_free(cat);
		return -ENOMEM;
	}
	pfx_list_init(&cat->roots);
	*out = cat;
	return 0;
}

void pfx_catalog_close(struct pfx_catalog *cat)
{
	if (cat == NULL) {
		return;
	}
	for (uint64_t i = 0; i < cat->n_buckets; i++) {
		for (struct pfx_catalog_entry *e = cat->buckets[i], *next; e != NULL; e = next) {
			next = e->chain;
			pfx_free(e);
		}
	}
	pfx_free(cat->heap);
	pfx_free(cat->buckets);
	pfx_free(cat);
}

/* ---- the table ---- */

static uint64_t bucket_of(const struct pfx_digest *self, uint64_t n_buckets)
{
	uint64_t h;

	memcpy(&h, self->b, sizeof(h));
	return h & (n_buckets - 1);
}

struct pfx_catalog_entry *pfx_catalog_find(const struct pfx_catalog *cat,
	const struct pfx_digest *self)
{
	struct pfx_catalog_entry *e = cat->buckets[bucket_of(self, cat->n_buckets)];

	while (e != NULL && !pfx_digest_equal(&e->key.self, self)) {
		e = e->chain;
	}
	return e;
}

struct pfx_catalog_entry *pfx_catalog_match(const struct pfx_catalog *cat,
	const struct pfx_store_key *key)
{
	struct pfx_catalog_entry *e = pfx_catalog_find(cat, &key->self);

	return e != NULL && pfx_store_key_equal(&e->key, key) ? e : NULL;
}

/* A table that cannot grow gets slower, not wrong. */
static void table_grow(struct pfx_catalog *cat)
{
	uint64_t n = cat->n_buckets * 2;
	struct pfx_catalog_entry **buckets = pfx_calloc(n, sizeof(*buckets));

	if (buckets == NULL) {
		return;
	}
	for (uint64_t i = 0; i < cat->n_buckets; i++) {
		for (struct pfx_catalog_entry *e = cat->buckets[i], *next; e != NULL; e = next) {
			uint64_t b = bucket_of(&e->key.self, n);

			next = e->chain;
			e->chain = buckets[b];
			buckets[b] = e;
		}
	}
	pfx_free(cat->buckets);
	cat->buckets = buckets;
	cat->n_buckets = n;
}

static void table_remove(struct pfx_catalog *cat, struct pfx_catalog_entry *e)
{
	struct pfx_catalog_entry **at = &cat->buckets[bucket_of(&e->key.self, cat->n_buckets)];

	while (*at != e) {
		at = &(*at)->chain;
	}
	*at = e->chain;
	e->chain = NULL;
}

/* ---- the heap of leaves ---- */

static int older(const struct pfx_catalog_entry *a, const struct pfx_catalog_entry *b)
{
	if (a->used_ns != b->used_ns) {
		return a->used_ns < b->used_ns;
	}
	return a->key.pos != b->key.pos ? a->key.pos > b->key.pos : a->seq < b->seq;
}

static void heap_set(struct pfx_catalog *cat, uint32_t at, struct pfx_catalog_entry *e)
{
	cat->heap[at] = e;
	e->heap_at = at;
}

static void heap_settle(struct pfx_catalog *cat, uint32_t at)
{
	struct pfx_catalog_entry *e = cat->heap[at];

	while (at > 1 && older(e, cat->heap[at / 2])) {
		heap_set(cat, at, cat->heap[at / 2]);
		at /= 2;
	}
	for (;;) {
		uint32_t kid = 2 * at;

		if (kid > cat->n_heap) {
			break;
		}
		if (kid < cat->n_heap && older(cat->heap[kid + 1], cat->heap[kid])) {
			kid++;
		}
		if (!older(cat->heap[kid], e)) {
			break;
		}
		heap_set(cat, at, cat->heap[kid]);
		at = kid;
	}
	heap_set(cat, at, e);
}

static void heap_remove(struct pfx_catalog *cat, struct pfx_catalog_entry *e)
{
	uint32_t at = e->heap_at;
	struct pfx_catalog_entry *last = cat->heap[cat->n_heap--];

	e->heap_at = 0;
	if (last != e) {
		heap_set(cat, at, last);
		heap_settle(cat, at);
	}
}

/* Room for every entry there is, made when one is added, so that a leaf always finds its place. */
static int heap_room(struct pfx_catalog *cat)
{
	uint64_t need = cat->totals.records + 2;
	uint32_t cap = cat->cap_heap;
	struct pfx_catalog_entry **heap;

	if (need <= cap) {
		return 0;
	}
	cap = cap < 64 ? 64 : cap * 2;
	heap = cap > cat->cap_heap ? pfx_reallocarray(cat->heap, cap, sizeof(*heap)) : NULL;
	if (heap == NULL) {
		return -ENOMEM;
	}
	cat->heap = heap;
	cat->cap_heap = cap;
	return 0;
}

/* In the heap stand exactly the leaves that nobody holds. */
static void heap_update(struct pfx_catalog *cat, struct pfx_catalog_entry *e)
{
	int wanted = e->n_kids == 0 && e->holds == 0;

	if (wanted && e->heap_at == 0) {
		heap_set(cat, ++cat->n_heap, e);
		heap_settle(cat, e->heap_at);
	} else if (!wanted && e->heap_at != 0) {
		heap_remove(cat, e);
	} else if (wanted) {
		heap_settle(cat, e->heap_at);
	}
}

/* ---- entries ---- */

static int find_parent(const struct pfx_catalog *cat, const struct pfx_store_key *key,
	struct pfx_catalog_entry **out)
{
	struct pfx_catalog_entry *up;

	*out = NULL;
	if (pfx_digest_is_zero(&key->parent)) {
		return key->pos == 0 ? 0 : -ENOENT;
	}
	up = pfx_catalog_find(cat, &key->parent);
	if (up == NULL || up->key.pos + up->key.n_tokens != key->pos ||
		!pfx_digest_equal(&up->key.space, &key->space)) {
		return -ENOENT;
	}
	*out = up;
	return 0;
}

int pfx_catalog_add(struct pfx_catalog *cat, const struct pfx_store_key *key, uint64_t bytes,
	uint64_t room, uint64_t used_ns, struct pfx_catalog_entry **out)
{
	size_t tokens_len = (size_t)key->n_tokens * sizeof(uint32_t);
	struct pfx_catalog_entry *e, *up;
	uint64_t b;

	if (pfx_catalog_find(cat, &key->self) != NULL) {
		return -EEXIST;
	}
	if (find_parent(cat, key, &up) != 0) {
		return -ENOENT;
	}
	e = heap_room(cat) == 0 ? pfx_calloc(1, sizeof(*e) + tokens_len) : NULL;
	if (e == NULL) {
		return -ENOMEM;
	}
	if (cat->totals.records >= cat->n_buckets) {
		table_grow(cat);
	}
	memcpy(e->own_tokens, key->tokens, tokens_len);
	e->key = *key;
	e->key.tokens = e->own_tokens;
	e->bytes = bytes;
	e->room = room;
	e->used_ns = used_ns;
	e->seq = ++cat->seq;
	e->up = up;
	pfx_list_init(&e->kids);
	pfx_list_push_back(up != NULL ? &up->kids : &cat->roots, &e->sibling);
	b = bucket_of(&key->self, cat->n_buckets);
	e->chain = cat->buckets[b];
	cat->buckets[b] = e;
	cat->totals.records++;
	cat->totals.tokens += key->n_tokens;
	cat->totals.room += room;
	heap_update(cat, e);
	if (up != NULL) {
		up->n_kids++;
		heap_update(cat, up);
	}
	*out = e;
	return 0;
}

void pfx_catalog_remove(struct pfx_catalog *cat, struct pfx_catalog_entry *e)
{
	struct pfx_catalog_entry *up = e->up;

	PFX_ASSERT(e->n_kids == 0);
	PFX_ASSERT(e->holds == 0);
	heap_remove(cat, e);
	table_remove(cat, e);
	pfx_list_remove(&e->sibling);
	cat->totals.records--;
	cat->totals.tokens -= e->key.n_tokens;
	cat->totals.room -= e->room;
	if (up != NULL) {
		up->n_kids--;
		if (up->used_ns < e->used_ns) {
			up->used_ns = e->used_ns;
			up->aged = 1;
		}
		heap_update(cat, up);
	}
	pfx_free(e);
}

void pfx_catalog_touch(struct pfx_catalog *cat, struct pfx_catalog_entry *e, uint64_t used_ns)
{
	if (used_ns > e->used_ns) {
		e->used_ns = used_ns;
		e->aged = 1;
		heap_update(cat, e);
	}
}

void pfx_catalog_hold(struct pfx_catalog *cat, struct pfx_catalog_entry *e)
{
	e->holds++;
	heap_update(cat, e);
}

void pfx_catalog_release(struct pfx_catalog *cat, struct pfx_catalog_entry *e)
{
	PFX_ASSERT(e->holds > 0);
	e->holds--;
	heap_update(cat, e);
}

struct pfx_catalog_entry *pfx_catalog_oldest(const struct pfx_catalog *cat)
{
	return cat->n_heap > 0 ? cat->heap[1] : NULL;
}

static struct pfx_catalog_entry *entry_of(struct pfx_list *sibling)
{
	return pfx_container_of(sibling, struct pfx_catalog_entry, sibling);
}

struct pfx_catalog_entry *pfx_catalog_next(const struct pfx_catalog *cat,
	const struct pfx_catalog_entry *e)
{
	const struct pfx_list *kids = e != NULL ? &e->kids : &cat->roots;

	return !pfx_list_empty(kids) ? entry_of(kids->next) : pfx_catalog_skip(cat, e);
}

struct pfx_catalog_entry *pfx_catalog_skip(const struct pfx_catalog *cat,
	const struct pfx_catalog_entry *e)
{
	for (; e != NULL; e = e->up) {
		const struct pfx_list *end = e->up != NULL ? &e->up->kids : &cat->roots;

		if (e->sibling.next != end) {
			return entry_of(e->sibling.next);
		}
	}
	return NULL;
}

struct pfx_catalog_entry *pfx_catalog_deepest(struct pfx_catalog_entry *e)
{
	while (!pfx_list_empty(&e->kids)) {
		e = entry_of(e->kids.next);
	}
	return e;
}

uint64_t pfx_catalog_remove_tree(struct pfx_catalog *cat, struct pfx_catalog_entry *entry,
	pfx_catalog_gone *gone, void *arg)
{
	const struct pfx_catalog_entry *end = pfx_catalog_skip(cat, entry);
	uint64_t n = 0;

	for (const struct pfx_catalog_entry *e = entry; e != end; e = pfx_catalog_next(cat, e)) {
		if (e->holds > 0) {
			return 0;
		}
	}
	for (int last = 0; !last;) {
		struct pfx_catalog_entry *e = pfx_catalog_deepest(entry);

		last = e == entry;
		gone(arg, e);
		pfx_catalog_remove(cat, e);
		n++;
	}
	return n;
}

uint64_t pfx_catalog_shrink(struct pfx_catalog *cat, uint64_t room_max, pfx_catalog_gone *gone,
	void *arg)
{
	uint64_t n = 0;
	struct pfx_catalog_entry *e;

	while (cat->totals.room > room_max && (e = pfx_catalog_oldest(cat)) != NULL) {
		gone(arg, e);
		pfx_catalog_remove(cat, e);
		n++;
	}
	return n;
}

/* Records of the same parent that hold a true beginning of key's tokens. */
static void remove_heads(struct pfx_catalog *cat, struct pfx_catalog_admit *a)
{
	for (uint32_t n = 1; n < a->key->n_tokens; n++) {
		struct pfx_store_key head;
		struct pfx_catalog_entry *e;

		pfx_store_key_head(&head, a->key, n);
		e = pfx_catalog_match(cat, &head);
		if (e != NULL && e->n_kids == 0 && e->holds == 0) {
			a->gone(a->arg, e);
			pfx_catalog_remove(cat, e);
			a->replaced++;
		}
	}
}

static int admit_new(struct pfx_catalog *cat, struct pfx_catalog_admit *a)
{
	struct pfx_catalog_entry *up;
	int rc = find_parent(cat, a->key, &up);

	if (rc != 0) {
		return rc;
	}
	if (a->room > a->room_max) {
		return PFX_E_FULL;
	}
	/* The parent may be the oldest leaf of all: it must not make way for its own child. */
	if (up != NULL) {
		pfx_catalog_hold(cat, up);
	}
	remove_heads(cat, a);
	a->evicted += pfx_catalog_shrink(cat, a->room_max - a->room, a->gone, a->arg);
	rc = cat->totals.room + a->room > a->room_max ? PFX_E_FULL :
		pfx_catalog_add(cat, a->key, a->bytes, a->room, a->now_ns, &a->entry);
	if (up != NULL) {
		pfx_catalog_release(cat, up);
	}
	if (rc == 0) {
		a->entry->pending = 1;
		a->is_new = 1;
	}
	return rc;
}

int pfx_catalog_admit(struct pfx_catalog *cat, struct pfx_catalog_admit *a)
{
	int rc = 0;

	a->is_new = 0;
	a->entry = pfx_catalog_find(cat, &a->key->self);
	if (a->entry == NULL) {
		rc = admit_new(cat, a);
	} else if (!pfx_store_key_equal(&a->entry->key, a->key)) {
		a->entry = NULL;
		rc = -EEXIST;
	} else {
		pfx_catalog_touch(cat, a->entry, a->now_ns);
	}
	if (rc == 0) {
		pfx_catalog_hold(cat, a->entry);
	}
	return rc;
}

void pfx_catalog_totals(const struct pfx_catalog *cat, struct pfx_catalog_totals *out)
{
	*out = cat->totals;
}

static int check_entry(const struct pfx_catalog *cat, const struct pfx_catalog_entry *e)
{
	uint32_t kids = 0;

	pfx_list_for(it, &e->kids) {
		kids++;
	}
	if (kids != e->n_kids || pfx_catalog_find(cat, &e->key.self) != e) {
		return -1;
	}
	if (e->up == NULL ? e->key.pos != 0 :
		!pfx_digest_equal(&e->up->key.self, &e->key.parent)) {
		return -2;
	}
	if ((e->heap_at != 0) != (e->n_kids == 0 && e->holds == 0)) {
		return -3;
	}
	if (e->heap_at > cat->n_heap || (e->heap_at > 0 && cat->heap[e->heap_at] != e)) {
		return -4;
	}
	return e->heap_at > 1 && older(e, cat->heap[e->heap_at / 2]) ? -5 : 0;
}

int pfx_catalog_check(const struct pfx_catalog *cat)
{
	struct pfx_catalog_totals seen = { 0 };
	uint32_t leaves = 0;

	for (struct pfx_catalog_entry *e = pfx_catalog_next(cat, NULL); e != NULL;
		e = pfx_catalog_next(cat, e)) {
		int rc = check_entry(cat, e);

		if (rc != 0) {
			return rc;
		}
		seen.records++;
		seen.tokens += e->key.n_tokens;
		seen.room += e->room;
		leaves += e->heap_at != 0;
	}
	return memcmp(&seen, &cat->totals, sizeof(seen)) == 0 && leaves == cat->n_heap ? 0 : -6;
}
