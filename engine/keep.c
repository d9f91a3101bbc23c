#include "engine/keep.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"

struct pfx_keep {
	uint32_t n_vocab, n_slots;
	size_t bytes;
	float *data;
};

int pfx_keep_open(struct pfx_keep **out, uint32_t n_vocab, uint64_t bytes_max)
{
	struct pfx_keep *keep = pfx_calloc(1, sizeof(*keep));
	uint64_t slot_bytes = (uint64_t)n_vocab * sizeof(float);
	uint64_t slots = bytes_max / slot_bytes;
	int saved;

	if (keep == NULL) {
		return -ENOMEM;
	}
	keep->n_vocab = n_vocab;
	keep->n_slots = slots > INT32_MAX ? INT32_MAX : (uint32_t)slots;
	keep->bytes = (size_t)(keep->n_slots * slot_bytes);
	if (keep->n_slots > 0) {
		keep->data = mmap(NULL, keep->bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (keep->data == MAP_FAILED) {
			saved = errno;
			pfx_free(keep);
			return -saved;
		}
	}
	*out = keep;
	return 0;
}

void pfx_keep_close(struct pfx_keep *keep)
{
	if (keep == NULL) {
		return;
	}
	if (keep->n_slots > 0) {
		munmap(keep->data, keep->bytes);
	}
	pfx_free(keep);
}

uint32_t pfx_keep_slots(const struct pfx_keep *keep)
{
	return keep->n_slots;
}

float *pfx_keep_at(struct pfx_keep *keep, uint32_t slot)
{
	PFX_ASSERT(slot < keep->n_slots);
	return keep->data + (size_t)slot * keep->n_vocab;
}
