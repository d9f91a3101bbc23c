#ifndef PFX_PERSIST_CATALOG_H
#define PFX_PERSIST_CATALOG_H

/*
 * The index of a store in memory: which records there are, what hangs on what, and which
 * leaf is the oldest. It holds the tokens, never KV. Decides, does no I/O. Not thread-safe.
 *
 * Every entry but those at position 0 has its parent in the catalog. The age of an entry is
 * that of the youngest it ever had beneath it; among equals the deepest goes first. Finding
 * is O(1), adding, touching and evicting O(log leaves).
 */

#include <stdint.h>

#include "base/list.h"
#include "persist/record.h"

struct pfx_catalog_entry {
	struct pfx_store_key key; /* tokens point to own_tokens */
	uint64_t room;            /* what it takes of the cap */
	uint64_t bytes;           /* of the record */
	uint64_t used_ns;
	uint64_t seq;             /* differs for each entry ever added: tells a put anew from before */
	int pending;              /* its transaction is not committed: invisible to readers */
	int doomed;               /* found damaged: invisible, to be removed by its owner */
	int aged;                 /* used_ns is newer than the one on disk */
	void *value;              /* the owner's */
	/* The catalog's own. */
	struct pfx_catalog_entry *up, *chain;
	struct pfx_list kids, sibling;
	uint32_t n_kids, holds;
	uint32_t heap_at; /* 1-based; 0: not a leaf that may go */
	uint32_t own_tokens[];
};

struct pfx_catalog;

int pfx_catalog_open(struct pfx_catalog **out);
void pfx_catalog_close(struct pfx_catalog *cat); /* values are the owner's business; NULL is fine */

struct pfx_catalog_entry *pfx_catalog_find(const struct pfx_catalog *cat,
	const struct pfx_digest *self);
/* By digest and every other field; NULL also when the digest names something else. */
struct pfx_catalog_entry *pfx_catalog_match(const struct pfx_catalog *cat,
	const struct pfx_store_key *key);

/*
 * -ENOENT: the parent is not there (or is not the one whose end is key's begin, in key's
 * namespace); -EEXIST: the digest is taken; -ENOMEM.
 */
int pfx_catalog_add(struct pfx_catalog *cat, const struct pfx_store_key *key, uint64_t bytes,
	uint64_t room, uint64_t used_ns, struct pfx_catalog_entry **out);
/* Removes and frees a leaf that nobody holds. */
void pfx_catalog_remove(struct pfx_catalog *cat, struct pfx_catalog_entry *entry);
void pfx_catalog_touch(struct pfx_catalog *cat, struct pfx_catalog_entry *entry, uint64_t used_ns);
/* A held entry is never the oldest. Counted. */
void pfx_catalog_hold(struct pfx_catalog *cat, struct pfx_catalog_entry *entry);
void pfx_catalog_release(struct pfx_catalog *cat, struct pfx_catalog_entry *entry);
/* The leaf to evict next; NULL when there is none. */
struct pfx_catalog_entry *pfx_catalog_oldest(const struct pfx_catalog *cat);

/* A walk in which parents come before children: NULL begins it and ends it. */
struct pfx_catalog_entry *pfx_catalog_next(const struct pfx_catalog *cat,
	const struct pfx_catalog_entry *entry);
/* The same, past all that is beneath entry: ask before the subtree is removed. */
struct pfx_catalog_entry *pfx_catalog_skip(const struct pfx_catalog *cat,
	const struct pfx_catalog_entry *entry);
/* The first to remove of what is at or beneath entry: follow it up to remove a subtree. */
struct pfx_catalog_entry *pfx_catalog_deepest(struct pfx_catalog_entry *entry);

/*
 * Told of each entry that goes, just before; it may take entry->value. Must not call the
 * catalog.
 */
typedef void pfx_catalog_gone(void *arg, struct pfx_catalog_entry *entry);

/* Removes entry and all beneath it; how many that were, 0 when one of them is held. */
uint64_t pfx_catalog_remove_tree(struct pfx_catalog *cat, struct pfx_catalog_entry *entry,
	pfx_catalog_gone *gone, void *arg);

struct pfx_catalog_admit {
	/* Given. */
	const struct pfx_store_key *key;
	uint64_t bytes, room, room_max, now_ns;
	pfx_catalog_gone *gone;
	void *arg;
	/* Told. */
	struct pfx_catalog_entry *entry; /* there now and held once; NULL unless 0 is returned */
	int is_new;
	uint64_t evicted, replaced;
};
/*
 * What every store decides when key is put: an entry that is there already is touched; else
 * shorter records with the same beginning are removed, the oldest leaves are removed until
 * there is room, and a new entry is added with `pending` set. The caller releases the entry
 * when its batch is over: held, it cannot be evicted for the sake of a later one of the same
 * batch. -ENOENT, -EEXIST, -ENOMEM as pfx_catalog_add; PFX_E_FULL.
 */
int pfx_catalog_admit(struct pfx_catalog *cat, struct pfx_catalog_admit *admit);
/* Removes the oldest leaves until what is held takes at most room_max; how many went. */
uint64_t pfx_catalog_shrink(struct pfx_catalog *cat, uint64_t room_max, pfx_catalog_gone *gone,
	void *arg);

struct pfx_catalog_totals {
	uint64_t records, tokens, room;
};
void pfx_catalog_totals(const struct pfx_catalog *cat, struct pfx_catalog_totals *out);

/* Walks everything; 0, or a negative code that tests report. */
int pfx_catalog_check(const struct pfx_catalog *cat);

#endif
