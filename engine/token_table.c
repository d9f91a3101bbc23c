#include "engine/token_priv.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"

/*
 * Both tables are filled from a file that somebody else wrote, so their hashes are seeded
 * at random: nobody can prepare a vocabulary whose entries all collide.
 */

struct pfx_token_slot {
	uint32_t tag; /* upper half of the hash: most misses end here */
	uint32_t id;
};

/* At most half full, so that a probe is short and always ends. */
static uint32_t slots_for(uint32_t n)
{
	uint32_t slots = 16;

	while (slots / 2 < n) {
		slots *= 2;
	}
	return slots;
}

int pfx_token_table_init(struct pfx_token_table *tab, const struct pfx_str *strs, uint32_t n_max)
{
	uint32_t n = slots_for(n_max);

	tab->slots = pfx_malloc(n * sizeof(*tab->slots));
	if (tab->slots == NULL) {
		return -ENOMEM;
	}
	memset(tab->slots, 0xff, n * sizeof(*tab->slots));
	tab->strs = strs;
	tab->seed = pfx_rng_entropy();
	tab->mask = n - 1;
	tab->longest = 0;
	return 0;
}

void pfx_token_table_free(struct pfx_token_table *tab)
{
	pfx_free(tab->slots);
	tab->slots = NULL;
}

/* The slot that holds these bytes, or the free one where they would go. */
static struct pfx_token_slot *probe(const struct pfx_token_table *tab, const char *s, size_t n,
	uint32_t *tag)
{
	uint64_t h = XXH3_64bits_withSeed(s, n, tab->seed);
	uint32_t i = (uint32_t)h & tab->mask;

	*tag = (uint32_t)(h >> 32);
	for (;; i = (i + 1) & tab->mask) {
		struct pfx_token_slot *slot = &tab->slots[i];

		if (slot->id == PFX_TOKEN_NONE) {
			return slot;
		}
		if (slot->tag == *tag && tab->strs[slot->id].n == n &&
			memcmp(tab->strs[slot->id].s, s, n) == 0) {
			return slot;
		}
	}
}

uint32_t pfx_token_table_find(const struct pfx_token_table *tab, const char *s, size_t n)
{
	uint32_t tag;

	if (n > tab->longest) {
		return PFX_TOKEN_NONE;
	}
	return probe(tab, s, n, &tag)->id;
}

uint32_t pfx_token_table_add(struct pfx_token_table *tab, uint32_t id)
{
	const struct pfx_str *str = &tab->strs[id];
	uint32_t tag;
	struct pfx_token_slot *slot = probe(tab, str->s, str->n, &tag);

	if (slot->id != PFX_TOKEN_NONE) {
		return slot->id;
	}
	slot->tag = tag;
	slot->id = id;
	if (str->n > tab->longest) {
		tab->longest = (uint32_t)str->n;
	}
	return PFX_TOKEN_NONE;
}

static struct pfx_token_pair *new_slots(uint32_t n)
{
	struct pfx_token_pair *slots = pfx_reallocarray(NULL, n, sizeof(*slots));

	if (slots != NULL) {
		memset(slots, 0xff, n * sizeof(*slots));
	}
	return slots;
}

int pfx_token_pairs_init(struct pfx_token_pairs *p, uint32_t n_hint)
{
	uint32_t n = slots_for(n_hint);

	p->slots = new_slots(n);
	if (p->slots == NULL) {
		return -ENOMEM;
	}
	p->seed = pfx_rng_entropy();
	p->mask = n - 1;
	p->n = 0;
	return 0;
}

void pfx_token_pairs_free(struct pfx_token_pairs *p)
{
	pfx_free(p->slots);
	p->slots = NULL;
}

static void place(struct pfx_token_pairs *p, const struct pfx_token_pair *pair)
{
	struct pfx_token_pair *e =
		(struct pfx_token_pair *)pfx_token_pairs_find(p, pair->left, pair->right);

	if (e->rank == PFX_TOKEN_NONE) {
		*e = *pair;
		p->n++;
	}
}

static int grow(struct pfx_token_pairs *p)
{
	struct pfx_token_pairs bigger = { NULL, p->seed, p->mask * 2 + 1, 0 };

	if (p->mask >= UINT32_MAX / 4) {
		return PFX_E_LIMIT;
	}
	bigger.slots = new_slots(bigger.mask + 1);
	if (bigger.slots == NULL) {
		return -ENOMEM;
	}
	for (size_t i = 0; i <= p->mask; i++) {
		if (p->slots[i].rank != PFX_TOKEN_NONE) {
			place(&bigger, &p->slots[i]);
		}
	}
	pfx_free(p->slots);
	*p = bigger;
	return 0;
}

int pfx_token_pairs_add(struct pfx_token_pairs *p, const struct pfx_token_pair *pair)
{
	if (p->n >= (p->mask + 1) / 2) {
		int rc = grow(p);

		if (rc != 0) {
			return rc;
		}
	}
	place(p, pair);
	return 0;
}
