#ifndef PFX_BASE_CLOCK_H
#define PFX_BASE_CLOCK_H

/*
 * Time that tests can set. While it is set, time stands still until it is set again.
 * Thread-safe.
 */

#include <stdint.h>

uint64_t pfx_clock_ns(void);      /* monotonic, from an arbitrary start */
uint64_t pfx_clock_wall_ns(void); /* since 1970-01-01 UTC */

/* Tests: both clocks say t from now on; 0 gives real time back. */
void pfx_clock_set(uint64_t t);

static inline double pfx_ns_to_ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

#endif
