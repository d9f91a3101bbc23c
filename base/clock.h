#ifndef PFX_BASE_CLOCK_H
#define PFX_BASE_CLOCK_H

/* Time, in nanoseconds. Thread-safe. */

#include <stdint.h>

uint64_t pfx_clock_ns(void);      /* monotonic, from an arbitrary start */
uint64_t pfx_clock_wall_ns(void); /* since 1970-01-01 UTC */

static inline double pfx_ns_to_ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

#endif
