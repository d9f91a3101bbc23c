#ifndef PFX_TOOLS_PLOT_H
#define PFX_TOOLS_PLOT_H

/* Hit rate by size as an SVG picture: one line a policy, and the ceiling. */

#include <stdint.h>

#include "base/buf.h"

struct pfx_plot_row {
	const char *policy;
	uint32_t capacity;
	double hit_rate; /* 0..1 */
};

/* rows in groups of one policy each. */
void pfx_plot_svg(struct pfx_buf *out, const char *title, const struct pfx_plot_row *rows,
	uint32_t n_rows, double ceiling);

#endif
