#ifndef PFX_ENGINE_RECORDS_H
#define PFX_ENGINE_RECORDS_H

/*
 * What radix/'s record numbers are called in the store: number -> key, so that the key of a
 * record that hangs on another is found in O(1). Memory is touched on use. One thread.
 */

#include <stddef.h>
#include <stdint.h>

#include "persist/record.h"

struct pfx_records;

int pfx_records_open(struct pfx_records **out, uint32_t n, uint32_t block_tokens);
void pfx_records_close(struct pfx_records *r); /* NULL is fine */
void pfx_records_set(struct pfx_records *r, uint32_t record, const struct pfx_store_key *key);
/* The key that was set last; its tokens are valid until the next set of that record. */
struct pfx_store_key pfx_records_get(const struct pfx_records *r, uint32_t record);
/* The digests of all keys that were set, in no order; to be freed. NULL: no memory. */
struct pfx_digest *pfx_records_digests(const struct pfx_records *r, size_t *n);

#endif
