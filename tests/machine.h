#ifndef PFX_TESTS_MACHINE_H
#define PFX_TESTS_MACHINE_H

/*
 * What this machine can do at most, for benchmarks to stand beside: how many operations a second
 * the instructions of products and attention make on registers alone, and how fast memory is read.
 * Best of several short runs. With one thread the time is the CPU's own, so that neighbours do not
 * count.
 */

#include <stddef.h>
#include <stdint.h>

struct pfx_peak {
	const char *name; /* "vpdpwssd, 512 bits" */
	const char *unit; /* "GFLOP/s" or "Gop/s"; a multiply and an add are two */
	double rate;      /* of all threads; 0: this machine does not have it */
};

enum pfx_peak_kind {
	PFX_PEAK_TILE_INT8, /* AMX; after a device has opened kernels "amx" */
	PFX_PEAK_TILE_BF16,
	PFX_PEAK_INT8_512,
	PFX_PEAK_INT16_512,
	PFX_PEAK_BF16_512,
	PFX_PEAK_FMA_512,
	PFX_PEAK_INT16_256,
	PFX_PEAK_FMA_256,
	PFX_N_PEAKS
};

void pfx_machine_peak(enum pfx_peak_kind kind, uint32_t n_threads, struct pfx_peak *out);
/*
 * Of so many bytes, again and again, as steps read their weights: what a cache keeps of them it
 * keeps here too.
 */
double pfx_machine_read_gbs(size_t bytes, uint32_t n_threads);

#endif
