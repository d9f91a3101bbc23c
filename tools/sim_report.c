/*
 * What prefix-sim prints: a table for people, JSON for scripts, a picture.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "tools/curve.h"
#include "tools/plot.h"
#include "tools/sim.h"

static const double shares[] = { 0.9, 0.95, 0.99 };

#define N_SHARES (sizeof(shares) / sizeof(shares[0]))
#define CURVE_POINTS 240u

static double ceiling_of(const struct sim *sim)
{
	return sim_rate(sim, pfx_replay_ceiling(&sim->trace));
}

static const struct pfx_run_result *result_of(const struct sim *sim, uint32_t column, uint32_t size)
{
	return &sim->results[column * sim->n_sizes + size];
}

/* The least of the sizes that were tried with which a policy has that share; 0: none. */
static uint32_t size_for(const struct sim *sim, uint32_t column, double share)
{
	double want = share * (double)pfx_replay_ceiling(&sim->trace);
	uint32_t least = 0;

	for (uint32_t k = 0; k < sim->n_sizes; k++) {
		if ((double)result_of(sim, column, k)->hits >= want &&
			(least == 0 || sim->sizes[k] < least)) {
			least = sim->sizes[k];
		}
	}
	return least;
}

/* ---- text ---- */

static void print_bytes(const struct sim *sim, const char *before, double blocks, int width,
	const char *after)
{
	struct pfx_buf text = PFX_BUF_INIT;

	pfx_plot_bytes(&text, blocks * sim->block_bytes);
	printf("%s%*s%s", before, width, text.data == NULL ? "" : text.data, after);
	pfx_buf_free(&text);
}

static void print_size(const struct sim *sim, uint32_t size)
{
	printf("%u", size);
	if (sim->block_bytes > 0) {
		print_bytes(sim, " (", size, 0, ")");
	}
}

/* How much memory is needed: exact for leaf LRU, else the best of what was tried. */
static void print_needs(const struct sim *sim)
{
	printf("\nBlocks needed for 90, 95 and 99 %% of the ceiling\n%10s ", "lru");
	for (size_t s = 0; s < N_SHARES; s++) {
		printf("%s", s == 0 ? "" : ", ");
		print_size(sim, pfx_curve_size_for(&sim->trace, sim->lru, shares[s]));
	}
	printf("\n");
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		if (sim_is_exact(sim, c)) {
			continue;
		}
		printf("%10s ", sim->columns[c].name);
		for (size_t s = 0; s < N_SHARES; s++) {
			uint32_t size = size_for(sim, c, shares[s]);

			printf("%s", s == 0 ? "" : ", ");
			if (size > 0) {
				print_size(sim, size);
			} else {
				printf("-");
			}
		}
		printf(" (of the sizes above)\n");
	}
}

static void print_head(const struct sim *sim)
{
	uint32_t tokens = pfx_trace_block_tokens(&sim->trace);

	printf("%u requests, %llu blocks referred to, %u different", sim->trace.n_requests,
		(unsigned long long)pfx_trace_refs(&sim->trace), sim->trace.n_distinct);
	if (tokens > 0) {
		printf(", of %u tokens", tokens);
	}
	if (sim->trace.n_last_turns > 0) {
		printf("; %u last turns", sim->trace.n_last_turns);
	}
	printf("; hit rates in %%\n\n%10s", "capacity");
	if (sim->block_bytes > 0) {
		printf(" %10s", "memory");
	}
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		printf(" %9s", sim->columns[c].name);
	}
	printf("\n");
}

/* As wide as its head. */
static void print_rate(const struct sim *sim, uint32_t column, uint32_t size)
{
	size_t width = strlen(sim->columns[column].name);

	printf(" %*.2f", width > 9 ? (int)width : 9, sim_rate(sim, result_of(sim, column, size)->hits) * 100);
}

/* Where the hits were, and what had to be copied for them. */
static void print_tiers(const struct sim *sim)
{
	static const char *const what[] = { "device", "host", "disk", "spilled", "fetched", "loaded",
		"saved" };

	printf("\nBehind the device %u blocks in host memory and %u on disk; hits by tier in %%, copies in %s\n"
		"%10s %13s", sim->host, sim->disk, sim->block_bytes > 0 ? "bytes" : "blocks", "capacity", "");
	for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
		printf(" %9s", what[i]);
	}
	printf("\n");
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		for (uint32_t k = 0; k < sim->n_sizes && sim->columns[c].opts.kind == PFX_RUN_TREE; k++) {
			const struct pfx_run_result *r = result_of(sim, c, k);
			uint64_t moved[] = { r->spilled, r->tier[PFX_TIER_HOST], r->tier[PFX_TIER_DISK],
				r->saved };

			printf("%10u %13s", sim->sizes[k], sim->columns[c].name);
			for (int t = 0; t < PFX_TIERS; t++) {
				printf(" %9.2f", sim_rate(sim, r->tier[t]) * 100);
			}
			for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
				if (sim->block_bytes > 0) {
					print_bytes(sim, " ", (double)moved[i], 9, "");
				} else {
					printf(" %9llu", (unsigned long long)moved[i]);
				}
			}
			printf("\n");
		}
	}
}

/* A hit rate means less when requests went without. */
static void print_refused(const struct sim *sim)
{
	const char *before = "\nRequests that found no room among what others hold: ";

	for (uint32_t c = 0; c < sim->n_columns; c++) {
		for (uint32_t k = 0; k < sim->n_sizes; k++) {
			uint64_t n = result_of(sim, c, k)->refused;

			if (n > 0) {
				printf("%s%llu (%s, %u blocks)", before, (unsigned long long)n,
					sim->columns[c].name, sim->sizes[k]);
				before = ", ";
			}
		}
	}
	if (*before == ',') {
		puts("");
	}
}

void sim_print_table(const struct sim *sim)
{
	print_head(sim);
	for (uint32_t k = 0; k < sim->n_sizes; k++) {
		printf("%10u", sim->sizes[k]);
		if (sim->block_bytes > 0) {
			print_bytes(sim, " ", sim->sizes[k], 10, "");
		}
		for (uint32_t c = 0; c < sim->n_columns; c++) {
			print_rate(sim, c, k);
		}
		printf("\n");
	}
	printf("%10s", "unlimited");
	if (sim->block_bytes > 0) {
		print_bytes(sim, " ", sim->trace.n_distinct, 10, "");
	}
	printf(" %9.2f\n", ceiling_of(sim) * 100);
	if (sim_has_tiers(sim)) {
		print_tiers(sim);
	} else {
		print_needs(sim);
	}
	print_refused(sim);
}

/* ---- JSON ---- */

static void print_json_need(const struct sim *sim, const char *name, double share, uint32_t size,
	int first)
{
	printf("%s{\"policy\":\"%s\",\"share\":%.2f,\"capacity\":", first ? "" : ",", name, share);
	if (size > 0) {
		printf("%u", size);
	} else {
		printf("null");
	}
	if (size > 0 && sim->block_bytes > 0) {
		printf(",\"bytes\":%.0f", size * sim->block_bytes);
	}
	printf("}");
}

static void print_json_needs(const struct sim *sim)
{
	for (size_t s = 0; s < N_SHARES; s++) {
		print_json_need(sim, "lru", shares[s],
			pfx_curve_size_for(&sim->trace, sim->lru, shares[s]), s == 0);
	}
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		for (size_t s = 0; s < N_SHARES && !sim_is_exact(sim, c); s++) {
			print_json_need(sim, sim->columns[c].name, shares[s],
				size_for(sim, c, shares[s]), 0);
		}
	}
}

static void print_json_tiers(const struct sim *sim, const struct pfx_run_result *r)
{
	printf(",\"tiers\":{\"device\":%.6f,\"host\":%.6f,\"disk\":%.6f},\"moved\":{\"spilled\":%llu,"
		"\"fetched\":%llu,\"loaded\":%llu,\"saved\":%llu}", sim_rate(sim, r->tier[PFX_TIER_DEVICE]),
		sim_rate(sim, r->tier[PFX_TIER_HOST]), sim_rate(sim, r->tier[PFX_TIER_DISK]),
		(unsigned long long)r->spilled, (unsigned long long)r->tier[PFX_TIER_HOST],
		(unsigned long long)r->tier[PFX_TIER_DISK], (unsigned long long)r->saved);
}

void sim_print_json(const struct sim *sim)
{
	const struct pfx_trace *t = &sim->trace;

	printf("{\"ceiling\":%.6f,\"rows\":[", ceiling_of(sim));
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		for (uint32_t k = 0; k < sim->n_sizes; k++) {
			printf("%s{\"policy\":\"%s\",\"capacity\":%u,\"hit_rate\":%.6f", c + k > 0 ? "," : "",
				sim->columns[c].name, sim->sizes[k],
				sim_rate(sim, result_of(sim, c, k)->hits));
			if (sim->block_bytes > 0) {
				printf(",\"bytes\":%.0f", sim->sizes[k] * sim->block_bytes);
			}
			if (sim_has_tiers(sim) && sim->columns[c].opts.kind == PFX_RUN_TREE) {
				print_json_tiers(sim, result_of(sim, c, k));
			}
			if (sim->at_once > 1 || sim_has_tiers(sim)) {
				printf(",\"refused\":%llu",
					(unsigned long long)result_of(sim, c, k)->refused);
			}
			printf("}");
		}
	}
	printf("],\"requests\":%u,\"blocks\":%llu,\"distinct\":%u,\"block_tokens\":%u,\"last_turns\":%u,"
		"\"host\":%u,\"disk\":%u,\"need\":[", t->n_requests, (unsigned long long)pfx_trace_refs(t), t->n_distinct,
		pfx_trace_block_tokens(t), t->n_last_turns, sim->host, sim->disk);
	if (!sim_has_tiers(sim)) {
		print_json_needs(sim);
	}
	printf("]}\n");
}

/* ---- the picture ---- */

static int by_capacity(const void *a, const void *b)
{
	uint32_t x = ((const struct pfx_plot_point *)a)->capacity;
	uint32_t y = ((const struct pfx_plot_point *)b)->capacity;

	return x < y ? -1 : x > y;
}

static struct pfx_plot_line line_of(const struct sim *sim, uint32_t column)
{
	struct pfx_plot_point *points = pfx_xcalloc(sim->n_sizes, sizeof(*points));

	for (uint32_t k = 0; k < sim->n_sizes; k++) {
		points[k] = (struct pfx_plot_point){ sim->sizes[k],
			sim_rate(sim, result_of(sim, column, k)->hits) };
	}
	qsort(points, sim->n_sizes, sizeof(*points), by_capacity);
	return (struct pfx_plot_line){ sim->columns[column].name, points, sim->n_sizes, 0 };
}

/* Leaf LRU between the least and the greatest size, at as many sizes as can be told apart. */
static struct pfx_plot_line exact_line(const struct sim *sim)
{
	struct pfx_plot_point *points = pfx_xcalloc(CURVE_POINTS, sizeof(*points));
	double low = sim->sizes[0], high = sim->sizes[0];
	uint32_t n = 0;

	for (uint32_t k = 1; k < sim->n_sizes; k++) {
		low = fmin(low, sim->sizes[k]);
		high = fmax(high, sim->sizes[k]);
	}
	for (uint32_t i = 0; i < CURVE_POINTS; i++) {
		double c = round(exp(log(low) + (log(high) - log(low)) * i / (CURVE_POINTS - 1)));
		uint32_t at = c < sim->trace.n_distinct ? (uint32_t)c : sim->trace.n_distinct;

		if (n == 0 || points[n - 1].capacity < (uint32_t)c) {
			points[n++] = (struct pfx_plot_point){ (uint32_t)c, sim_rate(sim, sim->lru[at]) };
		}
	}
	return (struct pfx_plot_line){ "lru", points, n, 1 };
}

static int write_file(const char *path, const struct pfx_buf *text)
{
	FILE *f = fopen(path, "wb");
	int rc = f == NULL ? -errno : 0;

	if (f != NULL) {
		if (text->oom || fwrite(text->data, 1, text->len, f) != text->len) {
			rc = text->oom ? -ENOMEM : -errno;
		}
		if (fclose(f) != 0 && rc == 0) {
			rc = -errno;
		}
	}
	return rc;
}

int sim_write_plot(const struct sim *sim)
{
	const char *name = strrchr(sim->trace_path, '/');
	struct pfx_plot_line lines[SIM_COLUMNS_MAX];
	struct pfx_plot plot = {
		.title = name != NULL ? name + 1 : sim->trace_path,
		.lines = lines, .n_lines = sim->n_columns,
		.ceiling = ceiling_of(sim), .block_bytes = sim->block_bytes,
	};
	struct pfx_buf svg = PFX_BUF_INIT;
	int rc;

	for (uint32_t c = 0; c < sim->n_columns; c++) {
		lines[c] = sim_is_exact(sim, c) ? exact_line(sim) : line_of(sim, c);
	}
	pfx_plot_svg(&svg, &plot);
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		pfx_free((void *)lines[c].points);
	}
	rc = write_file(sim->plot_path, &svg);
	if (rc < 0) {
		fprintf(stderr, "prefix-sim: cannot write %s: %s\n", sim->plot_path, pfx_strerror(rc));
	}
	pfx_buf_free(&svg);
	return rc;
}
