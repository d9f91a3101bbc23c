#include "tools/plot.h"

#include <math.h>
#include <string.h>

/* The picture and, inside it, the field of the curves; in pixels. */
#define WIDTH 760
#define HEIGHT 440
#define LEFT 60.0
#define RIGHT 640.0
#define TOP 40.0
#define BOTTOM 390.0

static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00" };

struct field {
	double low, high; /* logarithms of the least and the greatest capacity */
	double top;       /* the hit rate at the upper edge */
};

static double x_of(const struct field *f, uint32_t capacity)
{
	double width = f->high - f->low;

	return width <= 0 ? (LEFT + RIGHT) / 2
		: LEFT + (log(capacity) - f->low) / width * (RIGHT - LEFT);
}

static double y_of(const struct field *f, double rate)
{
	return BOTTOM - rate / f->top * (BOTTOM - TOP);
}

static void add_escaped(struct pfx_buf *out, const char *s)
{
	for (; *s != '\0'; s++) {
		switch (*s) {
		case '&':
			pfx_buf_adds(out, "&amp;");
			break;
		case '<':
			pfx_buf_adds(out, "&lt;");
			break;
		default:
			/* Control characters may stand in no XML. */
			pfx_buf_addc(out, (unsigned char)*s < ' ' ? '?' : *s);
		}
	}
}

static struct field measure(const struct pfx_plot_row *rows, uint32_t n, double ceiling)
{
	struct field f = { .low = INFINITY, .high = -INFINITY };
	double most = ceiling;

	for (uint32_t i = 0; i < n; i++) {
		f.low = fmin(f.low, log(rows[i].capacity));
		f.high = fmax(f.high, log(rows[i].capacity));
		most = fmax(most, rows[i].hit_rate);
	}
	f.top = fmin(1.0, fmax(0.1, ceil(most * 10 + 0.2) / 10));
	return f;
}

static void add_axes(struct pfx_buf *out, const struct field *f, const struct pfx_plot_row *rows,
	uint32_t n)
{
	for (int i = 0; i <= (int)lround(f->top * 10); i++) {
		double y = y_of(f, i / 10.0);

		pfx_buf_addf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
			"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
			LEFT, y, RIGHT, y, LEFT - 6, y + 4, i * 10);
	}
	for (uint32_t i = 0; i < n && strcmp(rows[i].policy, rows[0].policy) == 0; i++) {
		pfx_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%u</text>\n",
			x_of(f, rows[i].capacity), BOTTOM + 18, rows[i].capacity);
	}
	pfx_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">capacity, blocks</text>\n",
		(LEFT + RIGHT) / 2, BOTTOM + 38);
}

/* The curve of the policy that begins at rows[0]; returns how many rows it has. */
static uint32_t add_curve(struct pfx_buf *out, const struct field *f,
	const struct pfx_plot_row *rows, uint32_t n, uint32_t nth)
{
	const char *color = colors[nth % (sizeof(colors) / sizeof(colors[0]))];
	uint32_t k = 0;

	pfx_buf_addf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", color);
	for (; k < n && strcmp(rows[k].policy, rows[0].policy) == 0; k++) {
		pfx_buf_addf(out, "%.1f,%.1f ", x_of(f, rows[k].capacity), y_of(f, rows[k].hit_rate));
	}
	pfx_buf_adds(out, "\"/>\n");
	for (uint32_t i = 0; i < k; i++) {
		pfx_buf_addf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s, %u blocks:"
			" %.2f %%</title></circle>\n", x_of(f, rows[i].capacity),
			y_of(f, rows[i].hit_rate), color, rows[i].policy, rows[i].capacity,
			rows[i].hit_rate * 100);
	}
	pfx_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", RIGHT + 14,
		TOP + 14 + 20.0 * nth, color, rows[0].policy);
	return k;
}

void pfx_plot_svg(struct pfx_buf *out, const char *title, const struct pfx_plot_row *rows,
	uint32_t n_rows, double ceiling)
{
	struct field f = measure(rows, n_rows, ceiling);
	uint32_t nth = 0;

	pfx_buf_addf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\""
		" font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
		"<text x=\"%.1f\" y=\"24\" font-size=\"14\">Block hit rate: ", WIDTH, HEIGHT, LEFT);
	add_escaped(out, title);
	pfx_buf_adds(out, "</text>\n");
	add_axes(out, &f, rows, n_rows);
	pfx_buf_addf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#666\""
		" stroke-dasharray=\"6 4\"/>\n<text x=\"%.1f\" y=\"%.1f\" fill=\"#666\">ceiling %.2f %%</text>\n",
		LEFT, y_of(&f, ceiling), RIGHT, y_of(&f, ceiling), RIGHT + 14,
		y_of(&f, ceiling) < TOP + 110 ? TOP + 130 : y_of(&f, ceiling) + 4, ceiling * 100);
	for (uint32_t i = 0; i < n_rows;) {
		i += add_curve(out, &f, rows + i, n_rows - i, nth++);
	}
	pfx_buf_adds(out, "</svg>\n");
}
