#include "radix/jump.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/assert.h"

int pfx_jump_init(struct pfx_jump *jump, uint32_t n_blocks)
{
	uint32_t n = 64;

	/* A node has a block at least, and most have many: four to a chain is the worst. */
	while (n < n_blocks / 4) {
		n *= 2;
	}
	jump->mask = n - 1;
	jump->bucket = pfx_calloc(n, sizeof(struct pfx_node *));
	return jump->bucket != NULL ? 0 : -ENOMEM;
}

void pfx_jump_fini(struct pfx_jump *jump)
{
	pfx_free(jump->bucket);
	jump->bucket = NULL;
}

/* The low bits of a product are the weak ones. */
static uint32_t tag_of(uint64_t digest)
{
	return (uint32_t)((digest ^ digest >> 29) * 0xbf58476d1ce4e5b9ull >> 32);
}

void pfx_jump_add(struct pfx_jump *jump, struct pfx_node *x, uint64_t digest)
{
	struct pfx_node **head;

	x->tag = tag_of(digest);
	head = &jump->bucket[x->tag & jump->mask];
	x->chain = *head;
	*head = x;
}

void pfx_jump_remove(struct pfx_jump *jump, struct pfx_node *x)
{
	struct pfx_node **at = &jump->bucket[x->tag & jump->mask];

	while (*at != x) {
		PFX_ASSERT(*at != NULL);
		at = &(*at)->chain;
	}
	*at = x->chain;
	x->chain = NULL;
}

void pfx_jump_prefetch(const struct pfx_jump *jump, uint64_t digest)
{
	__builtin_prefetch(&jump->bucket[tag_of(digest) & jump->mask]);
}

struct pfx_node *pfx_jump_find(const struct pfx_jump *jump, const struct pfx_node *parent,
	uint64_t digest)
{
	uint32_t tag = tag_of(digest);
	struct pfx_node *x = jump->bucket[tag & jump->mask];

	while (x != NULL && (x->tag != tag || x->parent != parent)) {
		x = x->chain;
	}
	return x;
}

int pfx_jump_has(const struct pfx_jump *jump, const struct pfx_node *x)
{
	const struct pfx_node *y = jump->bucket[x->tag & jump->mask];

	while (y != NULL && y != x) {
		y = y->chain;
	}
	return y != NULL;
}
