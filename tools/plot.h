#ifndef PFX_TOOLS_PLOT_H
#define PFX_TOOLS_PLOT_H

/* Hit rate by size as an SVG picture: one line a policy, and the ceiling. */

#include <stdint.h>

#include "base/buf.h"

struct pfx_plot_point {
	uint32_t capacity; /* > 0 */
	double hit_rate;   /* 0..1 */
};

struct pfx_plot_line {
	const char *name;
	const struct pfx_plot_point *points; /* by capacity, the least first */
	uint32_t n;
	int is_exact; /* a point for every turn of the curve: drawn without dots */
};

struct pfx_plot {
	const char *title;
	const struct pfx_plot_line *lines;
	uint32_t n_lines;
	double ceiling;
	double block_bytes; /* > 0: sizes are told in bytes, too */
};

void pfx_plot_svg(struct pfx_buf *out, const struct pfx_plot *plot);

/* As people write it: "1.5 GiB". */
void pfx_plot_bytes(struct pfx_buf *out, double bytes);

#endif
