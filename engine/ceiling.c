#include "engine/ceiling.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"

/* Slots looked over at each addition while a halving is on: done long before the next. */
#define SWEEP 256u
/* The bits of a digest that choose what is looked at; its place comes from the lower ones. */
#define SAMPLE_SHIFT 40
#define SAMPLE_BITS 24

struct slot {
	uint64_t digest; /* 0: empty */
	uint64_t when;
};

struct pfx_ceiling {
	struct slot *slots;
	uint32_t n_slots, mask, n_used;
	uint32_t shift;
	uint32_t sweep_at; /* n_slots: nothing to sweep */
};

int pfx_ceiling_open(struct pfx_ceiling **out, uint32_t entries)
{
	struct pfx_ceiling *c = pfx_calloc(1, sizeof(*c));

	PFX_ASSERT(entries >= 4 && (entries & (entries - 1)) == 0);
	if (c == NULL) {
		return -ENOMEM;
	}
	c->n_slots = c->sweep_at = entries;
	c->mask = entries - 1;
	c->slots = mmap(NULL, entries * sizeof(*c->slots), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->slots == MAP_FAILED) {
		pfx_free(c);
		return -ENOMEM;
	}
	*out = c;
	return 0;
}

void pfx_ceiling_close(struct pfx_ceiling *c)
{
	if (c == NULL) {
		return;
	}
	munmap(c->slots, c->n_slots * sizeof(*c->slots));
	pfx_free(c);
}

void pfx_ceiling_clear(struct pfx_ceiling *c)
{
	/* Gives the pages back instead of writing to them all: private and anonymous read as 0. */
	if (madvise(c->slots, c->n_slots * sizeof(*c->slots), MADV_DONTNEED) != 0) {
		memset(c->slots, 0, c->n_slots * sizeof(*c->slots));
	}
	c->n_used = 0;
	c->shift = 0;
	c->sweep_at = c->n_slots;
}

static int is_sampled(const struct pfx_ceiling *c, uint64_t digest)
{
	return digest >> SAMPLE_SHIFT < (1u << SAMPLE_BITS) >> c->shift;
}

static uint32_t home_of(const struct pfx_ceiling *c, uint64_t digest)
{
	return (uint32_t)(digest >> 1) & c->mask; /* bit 0 is always set */
}

/* The slot that holds the digest, or the empty one where it belongs. */
static struct slot *find(const struct pfx_ceiling *c, uint64_t digest)
{
	uint32_t i = home_of(c, digest);

	while (c->slots[i].digest != 0 && c->slots[i].digest != digest) {
		i = (i + 1) & c->mask;
	}
	return &c->slots[i];
}

/* Empties slot i and closes the gap, so that a search need not step over it. */
static void drop(struct pfx_ceiling *c, uint32_t i)
{
	uint32_t j = i, home;

	for (;;) {
		j = (j + 1) & c->mask;
		if (c->slots[j].digest == 0) {
			break;
		}
		home = home_of(c, c->slots[j].digest);
		if (((j - home) & c->mask) >= ((j - i) & c->mask)) {
			c->slots[i] = c->slots[j];
			i = j;
		}
	}
	c->slots[i].digest = 0;
	c->n_used--;
}

static void sweep(struct pfx_ceiling *c)
{
	for (uint32_t n = 0; n < SWEEP && c->sweep_at < c->n_slots; n++) {
		uint64_t digest = c->slots[c->sweep_at].digest;

		if (digest != 0 && !is_sampled(c, digest)) {
			/* What moved into its place is looked at next. */
			drop(c, c->sweep_at);
		} else {
			c->sweep_at++;
		}
	}
}

void pfx_ceiling_look(const struct pfx_ceiling *c, const struct pfx_ceiling_ask *ask,
	uint64_t *tokens, uint64_t *of)
{
	uint64_t seen = 0, asked = 0;

	for (uint32_t k = 0; k < ask->n_blocks; k++) {
		uint32_t start = k * ask->block_tokens;
		uint32_t n = start >= ask->n_tokens ? 0 : ask->n_tokens - start;
		uint32_t had = start >= ask->cached ? 0 : ask->cached - start;
		uint64_t digest = ask->digests[k] | 1;
		const struct slot *s;

		n = n < ask->block_tokens ? n : ask->block_tokens;
		if (n == 0) {
			break;
		}
		if (!is_sampled(c, digest)) {
			continue;
		}
		asked += n;
		s = find(c, digest);
		seen += had >= n || (s->digest != 0 && s->when < ask->when) ? n : had;
	}
	*tokens += seen << c->shift;
	*of += asked << c->shift;
}

void pfx_ceiling_add(struct pfx_ceiling *c, uint64_t digest, uint64_t when)
{
	struct slot *s;

	digest |= 1; /* never the empty one */
	sweep(c);
	if (!is_sampled(c, digest)) {
		return;
	}
	s = find(c, digest);
	if (s->digest != 0) {
		s->when = when < s->when ? when : s->when;
		return;
	}
	s->digest = digest;
	s->when = when;
	c->n_used++;
	if (c->n_used > c->n_slots / 4 * 3 && c->sweep_at == c->n_slots && c->shift < SAMPLE_BITS) {
		c->shift++;
		c->sweep_at = 0;
	}
}

void pfx_ceiling_stats(const struct pfx_ceiling *c, struct pfx_ceiling_stats *out)
{
	out->entries = c->n_slots;
	out->blocks = c->n_used;
	out->shift = c->shift;
}
