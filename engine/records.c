#include "engine/records.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

struct record {
	struct pfx_digest space, parent, self;
	uint32_t pos, n_tokens;
};

struct pfx_records {
	uint32_t n, block_tokens;
	struct record *records;
	uint32_t *tokens; /* [n][block_tokens] */
};

int pfx_records_open(struct pfx_records **out, uint32_t n, uint32_t block_tokens)
{
	struct pfx_records *r = pfx_calloc(1, sizeof(*r));

	if (r != NULL) {
		r->n = n;
		r->block_tokens = block_tokens;
		r->records = pfx_calloc(n, sizeof(*r->records));
		r->tokens = pfx_calloc(n, block_tokens * sizeof(*r->tokens));
	}
	if (r == NULL || r->records == NULL || r->tokens == NULL) {
		pfx_records_close(r);
		return -ENOMEM;
	}
	*out = r;
	return 0;
}

void pfx_records_close(struct pfx_records *r)
{
	if (r != NULL) {
		pfx_free(r->records);
		pfx_free(r->tokens);
		pfx_free(r);
	}
}

void pfx_records_set(struct pfx_records *r, uint32_t record, const struct pfx_store_key *key)
{
	PFX_ASSERT(record < r->n);
	PFX_ASSERT(key->n_tokens <= r->block_tokens);
	r->records[record] = (struct record){ .space = key->space, .parent = key->parent,
		.self = key->self, .pos = key->pos, .n_tokens = key->n_tokens };
	memcpy(r->tokens + (size_t)record * r->block_tokens, key->tokens,
		key->n_tokens * sizeof(*key->tokens));
}

struct pfx_store_key pfx_records_get(const struct pfx_records *r, uint32_t record)
{
	const struct record *at = &r->records[record];

	PFX_ASSERT(record < r->n);
	PFX_ASSERT(at->n_tokens > 0);
	return (struct pfx_store_key){ .space = at->space, .parent = at->parent, .self = at->self,
		.pos = at->pos, .n_tokens = at->n_tokens,
		.tokens = r->tokens + (size_t)record * r->block_tokens };
}

struct pfx_digest *pfx_records_digests(const struct pfx_records *r, size_t *n)
{
	struct pfx_digest *all;
	size_t n_set = 0;

	for (uint32_t i = 0; i < r->n; i++) {
		n_set += r->records[i].n_tokens > 0;
	}
	*n = 0;
	all = pfx_calloc(n_set + 1, sizeof(*all));
	for (uint32_t i = 0; i < r->n && all != NULL; i++) {
		if (r->records[i].n_tokens > 0) {
			all[(*n)++] = r->records[i].self;
		}
	}
	return all;
}
