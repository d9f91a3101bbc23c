#include "tools/plot.h"

#include <math.h>
#include <string.h>

/* The picture and, inside it, the field of the curves; in pixels. */
#define WIDTH 760
#define HEIGHT 460
#define LEFT 60.0
#define RIGHT 630.0
#define TOP 40.0
#define BOTTOM 390.0

#define TICK_ROOM 44.0 /* between the numbers below the field */
#define LINE_ROOM 20.0 /* between the names beside it */

static const char *const colors[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
	"#56b4e9", "#000000" };

struct field {
	double low, high; /* logarithms of the least and the greatest capacity */
	double top;       /* the hit rate at the upper edge */
};

static double x_of(const struct field *f, double capacity)
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

void pfx_plot_bytes(struct pfx_buf *out, double bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	size_t u = 0;

	while (bytes >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
		bytes /= 1024;
		u++;
	}
	pfx_buf_addf(out, "%.*f %s", bytes < 10 && u > 0 ? 2 : bytes < 100 && u > 0 ? 1 : 0, bytes,
		units[u]);
}

static struct field measure(const struct pfx_plot *p)
{
	struct field f = { .low = INFINITY, .high = -INFINITY };
	double most = p->ceiling;

	for (uint32_t k = 0; k < p->n_lines; k++) {
		for (uint32_t i = 0; i < p->lines[k].n; i++) {
			f.low = fmin(f.low, log(p->lines[k].points[i].capacity));
			f.high = fmax(f.high, log(p->lines[k].points[i].capacity));
			most = fmax(most, p->lines[k].points[i].hit_rate);
		}
	}
	f.top = fmin(1.0, fmax(0.1, ceil(most * 10 + 0.2) / 10));
	return f;
}

static void add_tick(struct pfx_buf *out, const struct pfx_plot *p, double x,
	uint32_t capacity)
{
	pfx_buf_addf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
		"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%u</text>\n", x, TOP, x,
		BOTTOM + 4, x, BOTTOM + 18, capacity);
	if (p->block_bytes > 0) {
		pfx_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#666\""
			" font-size=\"10\">", x, BOTTOM + 32);
		pfx_plot_bytes(out, capacity * p->block_bytes);
		pfx_buf_adds(out, "</text>\n");
	}
}

/* Below the field stand 1, 2, 5, 10, 20 and so on, as far as there is room for them. */
static void add_sizes(struct pfx_buf *out, const struct pfx_plot *p, const struct field *f)
{
	static const double steps[] = { 1, 2, 5 };
	double last = -INFINITY;
	int n = 0;

	for (int k = 0; k < 30; k++) {
		double capacity = steps[k % 3] * pow(10, k / 3);
		double x = x_of(f, capacity);

		if (log(capacity) >= f->low - 1e-9 && log(capacity) <= f->high + 1e-9 &&
			x - last >= TICK_ROOM) {
			add_tick(out, p, x, (uint32_t)capacity);
			last = x;
			n++;
		}
	}
	if (n == 0) {
		add_tick(out, p, x_of(f, exp(f->high)), (uint32_t)lround(exp(f->high)));
	}
}

static void add_axes(struct pfx_buf *out, const struct pfx_plot *p, const struct field *f)
{
	for (int i = 0; i <= (int)lround(f->top * 10); i++) {
		double y = y_of(f, i / 10.0);

		pfx_buf_addf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
			"<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
			LEFT, y, RIGHT, y, LEFT - 6, y + 4, i * 10);
	}
	add_sizes(out, p, f);
	pfx_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">capacity, blocks</text>\n",
		(LEFT + RIGHT) / 2, BOTTOM + 52);
}

static void add_line(struct pfx_buf *out, const struct field *f, const struct pfx_plot_line *l,
	uint32_t nth)
{
	const char *color = colors[nth % (sizeof(colors) / sizeof(colors[0]))];

	pfx_buf_addf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", color);
	for (uint32_t i = 0; i < l->n; i++) {
		pfx_buf_addf(out, "%.1f,%.1f ", x_of(f, l->points[i].capacity),
			y_of(f, l->points[i].hit_rate));
	}
	pfx_buf_adds(out, "\"/>\n");
	for (uint32_t i = 0; i < l->n && !l->is_exact; i++) {
		pfx_buf_addf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s, %u blocks:"
			" %.2f %%</title></circle>\n", x_of(f, l->points[i].capacity),
			y_of(f, l->points[i].hit_rate), color, l->name, l->points[i].capacity,
			l->points[i].hit_rate * 100);
	}
	pfx_buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", RIGHT + 14,
		TOP + 34 + LINE_ROOM * nth, color, l->name);
}

void pfx_plot_svg(struct pfx_buf *out, const struct pfx_plot *p)
{
	struct field f = measure(p);

	pfx_buf_addf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\""
		" font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
		"<text x=\"%.1f\" y=\"24\" font-size=\"14\">Block hit rate: ", WIDTH, HEIGHT, LEFT);
	add_escaped(out, p->title);
	pfx_buf_adds(out, "</text>\n");
	add_axes(out, p, &f);
	pfx_buf_addf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#666\""
		" stroke-dasharray=\"6 4\"/>\n<text x=\"%.1f\" y=\"%.1f\" fill=\"#666\">ceiling %.2f %%</text>\n",
		LEFT, y_of(&f, p->ceiling), RIGHT, y_of(&f, p->ceiling), RIGHT + 14, TOP + 14,
		p->ceiling * 100);
	for (uint32_t k = 0; k < p->n_lines; k++) {
		add_line(out, &f, &p->lines[k], k);
	}
	pfx_buf_adds(out, "</svg>\n");
}
