#include "engine/strays.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* Deletions of one transaction. */
#define BATCH 64u

struct stray {
	struct pfx_store_key key;
	uint32_t tokens[PFX_RECORD_TOKENS_MAX];
};

struct search {
	const struct pfx_digest *space;
	struct pfx_digest *known; /* sorted: what has a number */
	size_t n_known;
	struct stray *found;
	size_t n, cap;
};

static int by_bytes(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct pfx_digest));
}

/* A row whose number was given to another one since is not in the store any more. */
static int list_known(struct search *s, const struct pfx_records *records)
{
	s->known = pfx_records_digests(records, &s->n_known);
	if (s->known == NULL) {
		return -ENOMEM;
	}
	qsort(s->known, s->n_known, sizeof(*s->known), by_bytes);
	return 0;
}

/* A pfx_store_visit. */
static int note(void *arg, const struct pfx_store_row *row)
{
	struct search *s = arg;
	struct stray *found;

	if ((s->space != NULL && !pfx_digest_equal(&row->key.space, s->space)) ||
		bsearch(&row->key.self, s->known, s->n_known, sizeof(*s->known), by_bytes) != NULL) {
		return 0;
	}
	if (s->n == s->cap) {
		size_t cap = s->cap == 0 ? BATCH : s->cap * 2;

		found = pfx_reallocarray(s->found, cap, sizeof(*found));
		if (found == NULL) {
			return -ENOMEM;
		}
		s->found = found;
		s->cap = cap;
	}
	found = &s->found[s->n++];
	found->key = row->key;
	memcpy(found->tokens, row->key.tokens, row->key.n_tokens * sizeof(*found->tokens));
	return 0;
}

/* What goes with its parent is not there any more when its turn comes. */
static int delete_found(struct pfx_store *store, struct search *s)
{
	struct pfx_store_item items[BATCH];
	int results[BATCH], rc = 0;
	uint32_t m;

	for (size_t i = 0; i < s->n && rc == 0; i += m) {
		m = s->n - i < BATCH ? (uint32_t)(s->n - i) : BATCH;
		for (uint32_t k = 0; k < m; k++) {
			struct stray *stray = &s->found[i + k];

			stray->key.tokens = stray->tokens;
			items[k] = (struct pfx_store_item){ .key = &stray->key };
		}
		rc = pfx_store_put(store, items, m, results);
	}
	return rc;
}

int pfx_strays_clear(struct pfx_store *store, const struct pfx_records *records,
	const struct pfx_digest *space, uint64_t *n)
{
	struct search s = { .space = space };
	int rc = list_known(&s, records);

	if (rc == 0) {
		rc = pfx_store_iterate(store, note, &s);
	}
	if (rc == 0) {
		rc = delete_found(store, &s);
		*n += rc == 0 ? s.n : 0;
	}
	pfx_free(s.found);
	pfx_free(s.known);
	return rc;
}
