#include "engine/facts.h"

#include <errno.h>

#include "base/alloc.h"

struct pfx_facts_ring {
	struct pfx_facts *rows;
	uint64_t n; /* added ever */
};

int pfx_facts_open(struct pfx_facts_ring **out)
{
	struct pfx_facts_ring *ring = pfx_calloc(1, sizeof(*ring));

	if (ring == NULL) {
		return -ENOMEM;
	}
	ring->rows = pfx_calloc(PFX_FACTS_ROWS, sizeof(*ring->rows));
	if (ring->rows == NULL) {
		pfx_free(ring);
		return -ENOMEM;
	}
	*out = ring;
	return 0;
}

void pfx_facts_close(struct pfx_facts_ring *ring)
{
	if (ring == NULL) {
		return;
	}
	pfx_free(ring->rows);
	pfx_free(ring);
}

void pfx_facts_add(struct pfx_facts_ring *ring, const struct pfx_facts *row)
{
	ring->rows[ring->n++ % PFX_FACTS_ROWS] = *row;
}

const struct pfx_facts *pfx_facts_find(const struct pfx_facts_ring *ring, uint64_t number)
{
	for (uint32_t i = 0; i < PFX_FACTS_ROWS; i++) {
		if (ring->rows[i].number == number && number != 0) {
			return &ring->rows[i];
		}
	}
	return NULL;
}
