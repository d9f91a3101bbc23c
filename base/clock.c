#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t set_to;

static uint64_t read_clock(clockid_t id)
{
	uint64_t t = atomic_load_explicit(&set_to, memory_order_relaxed);
	struct timespec ts;

	if (t != 0) {
		return t;
	}
	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t pfx_clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t pfx_clock_wall_ns(void)
{
	return read_clock(CLOCK_REALTIME);
}

void pfx_clock_set(uint64_t t)
{
	set_to = t;
}
