#ifndef PFX_ENGINE_STRAYS_H
#define PFX_ENGINE_STRAYS_H

/*
 * Rows of the store that the engine has no number for: at the start they found no place in the
 * tree (the store held more than the numbers reach, or a parent was missing), so no order of the
 * tree ever deletes them. Whoever clears a store of which a part is held must see to them.
 */

#include "engine/records.h"
#include "persist/store.h"

/*
 * Deletes them, those of one space or all (NULL), and adds to *n how many there were. Takes as
 * long as the store takes to delete; records must not change meanwhile. 0, -ENOMEM or the store's
 * error.
 */
int pfx_strays_clear(struct pfx_store *store, const struct pfx_records *records,
	const struct pfx_digest *space, uint64_t *n);

#endif
