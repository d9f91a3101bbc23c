#ifndef PFX_ENGINE_KEEP_H
#define PFX_ENGINE_KEEP_H

/*
 * The logits that are kept where prompts ended: a fixed number of slots of n_vocab floats,
 * in memory that is touched on first use. Which slot belongs to which prefix, and when it
 * goes, is radix/'s business (marks). One thread.
 */

#include <stddef.h>
#include <stdint.h>

struct pfx_keep;

/* As many slots as fit into bytes_max, maybe none. */
int pfx_keep_open(struct pfx_keep **out, uint32_t n_vocab, uint64_t bytes_max);
void pfx_keep_close(struct pfx_keep *keep);
uint32_t pfx_keep_slots(const struct pfx_keep *keep);
/* [n_vocab] of that slot; borrowed, valid until close. */
float *pfx_keep_at(struct pfx_keep *keep, uint32_t slot);

#endif
