/*
 * prefix-sim: how much memory does a prefix cache need? Replays a trace of requests through
 * the very tree that serves, for many sizes and policies, and prints the hit rates beside
 * the best that anybody could have reached.
 */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "tools/plot.h"
#include "tools/replay.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define SIZES_MAX 64

const char *argp_program_version = "prefix-sim " PACKAGE_VERSION;

static const struct policy {
	const char *name;
	enum pfx_policy policy; /* of radix/, unless there is a function */
	int (*run)(const struct pfx_trace *t, uint32_t capacity, const struct pfx_replay *r,
		uint64_t *hits);
} policies[] = {
	{ "lru", PFX_POLICY_LRU, NULL },
	{ "fifo", 0, pfx_replay_fifo },
	{ "leaf-fifo", PFX_POLICY_FIFO, NULL },
	{ "default", PFX_POLICY_DEFAULT, NULL },
	{ "belady", 0, pfx_replay_belady },
};

#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

struct sim {
	const char *trace_path, *plot_path;
	int json;
	uint32_t sizes[SIZES_MAX];
	uint32_t n_sizes;
	const struct policy *chosen[N_POLICIES];
	uint32_t n_chosen;

	struct pfx_trace trace;
	struct pfx_plot_row rows[SIZES_MAX * N_POLICIES];
	uint32_t n_rows;
	int is_tty;
};

/* ---- the command line ---- */

static void set_sizes(struct sim *sim, struct argp_state *state, char *arg)
{
	char *word, *end, *rest = NULL;

	sim->n_sizes = 0;
	for (word = strtok_r(arg, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
		unsigned long long n;

		errno = 0;
		n = strtoull(word, &end, 10);
		if (*word < '0' || *word > '9' || *end != '\0' || errno != 0 || n == 0 ||
			n >= UINT32_MAX / 2) {
			argp_error(state, "--capacity: \"%s\" is not a number of blocks", word);
		}
		if (sim->n_sizes == SIZES_MAX) {
			argp_error(state, "--capacity: more than %d sizes", SIZES_MAX);
			return;
		}
		sim->sizes[sim->n_sizes++] = (uint32_t)n;
	}
	if (sim->n_sizes == 0) {
		argp_error(state, "--capacity: no number of blocks");
	}
}

static const struct policy *policy_named(const char *name)
{
	for (size_t i = 0; i < N_POLICIES; i++) {
		if (strcmp(policies[i].name, name) == 0) {
			return &policies[i];
		}
	}
	return NULL;
}

static void set_policies(struct sim *sim, struct argp_state *state, char *arg)
{
	char *word, *rest = NULL;

	sim->n_chosen = 0;
	for (word = strtok_r(arg, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
		const struct policy *p = policy_named(word);

		if (p == NULL) {
			struct pfx_buf names = PFX_BUF_INIT;

			for (size_t i = 0; i < N_POLICIES; i++) {
				pfx_buf_addf(&names, "%s%s", i == 0 ? "" : ", ", policies[i].name);
			}
			argp_error(state, "--policy: there is no \"%s\", only %s", word, names.data);
			pfx_buf_free(&names);
			return;
		}
		for (uint32_t i = 0; i < sim->n_chosen; i++) {
			if (sim->chosen[i] == p) {
				p = NULL;
				break;
			}
		}
		if (p != NULL) {
			sim->chosen[sim->n_chosen++] = p;
		}
	}
	if (sim->n_chosen == 0) {
		argp_error(state, "--policy: no policy");
	}
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct sim *sim = state->input;

	switch (key) {
	case 't':
		sim->trace_path = arg;
		return 0;
	case 'c':
		set_sizes(sim, state, arg);
		return 0;
	case 'p':
		set_policies(sim, state, arg);
		return 0;
	case 'j':
		sim->json = 1;
		return 0;
	case 'o':
		sim->plot_path = arg;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "\"%s\" is no option", arg);
		return 0;
	case ARGP_KEY_END:
		if (sim->trace_path == NULL) {
			argp_error(state, "--trace is needed");
		}
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option options[] = {
	{ "trace", 't', "FILE", 0, "requests, one JSON object a line with hash_ids; - is standard input", 0 },
	{ "capacity", 'c', "N[,N...]", 0,
		"sizes of the cache in the trace's blocks; without it, the powers of two up to all of them", 0 },
	{ "policy", 'p', "NAME[,NAME...]", 0, "which to try, of those listed below; default: all", 0 },
	{ "json", 'j', NULL, 0, "print {\"ceiling\":F,\"rows\":[{\"policy\":..,\"capacity\":N,\"hit_rate\":F},...]}", 0 },
	{ "plot", 'o', "FILE", 0, "write a picture of the curves, as SVG", 0 },
	{ 0 },
};

static const char doc[] =
	"Replays a trace of requests through a prefix cache and prints the share of blocks that "
	"were cached, by size and policy."
	"\v"
	"The policies: lru, of the blocks that no cached one stands behind (the leaves) the one not "
	"used for longest goes first; fifo, the block that came first, leaf or not; leaf-fifo, the "
	"leaf that came first; default, lru corrected by what the past says of blocks used as "
	"often, by requests with replies as long; belady, the block that will not be used for longest, which no server "
	"can know and none can beat. The ceiling is the hit rate of a cache that never lets go.\n\n"
	"A request counts as cached the longest run of its first blocks that are there; then all "
	"its blocks are; then the policy lets blocks go until the cache has its size again.\n\n"
	"Exit status: 0; 1 when a file cannot be read or written or is not a trace; 2 when the "
	"command line is wrong.";

static void read_options(struct sim *sim, int argc, char **argv)
{
	struct argp argp = { options, on_option, NULL, doc, NULL, NULL, NULL };

	for (size_t i = 0; i < N_POLICIES; i++) {
		sim->chosen[sim->n_chosen++] = &policies[i];
	}
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, sim);
}

static void default_sizes(struct sim *sim)
{
	for (uint64_t n = 64; n / 2 < sim->trace.n_distinct && sim->n_sizes < 24; n *= 2) {
		sim->sizes[sim->n_sizes++] = (uint32_t)n;
	}
}

/* ---- the runs ---- */

static void show_progress(void *arg, uint32_t n_requests)
{
	struct sim *sim = arg;
	uint64_t all = (uint64_t)sim->n_chosen * sim->n_sizes;
	double done = ((double)n_requests / sim->trace.n_requests + sim->n_rows) / (double)all;
	int width = (int)(done * 40);

	fprintf(stderr, "\r[%.*s%*s] %3.0f %%", width, "========================================",
		40 - width, "", done * 100);
}

static int run_one(struct sim *sim, const struct policy *p, uint32_t capacity)
{
	struct pfx_replay r = { .progress = sim->is_tty ? show_progress : NULL, .arg = sim };
	uint64_t hits = 0;
	int rc = p->run != NULL ? p->run(&sim->trace, capacity, &r, &hits)
		: pfx_replay_cache(&sim->trace, p->policy, capacity, &r, &hits);

	sim->rows[sim->n_rows++] = (struct pfx_plot_row){
		.policy = p->name,
		.capacity = capacity,
		.hit_rate = (double)hits / (double)pfx_trace_refs(&sim->trace),
	};
	return rc;
}

static int run_all(struct sim *sim)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < sim->n_chosen; i++) {
		for (uint32_t k = 0; rc == 0 && k < sim->n_sizes; k++) {
			rc = run_one(sim, sim->chosen[i], sim->sizes[k]);
		}
	}
	if (sim->is_tty) {
		fprintf(stderr, "\r%*s\r", 50, "");
	}
	return rc;
}

/* ---- the answer ---- */

static double ceiling_of(const struct sim *sim)
{
	return (double)pfx_replay_ceiling(&sim->trace) / (double)pfx_trace_refs(&sim->trace);
}

static void print_table(const struct sim *sim)
{
	printf("%u requests, %llu blocks referred to, %u different; hit rates in %%\n\n%10s",
		sim->trace.n_requests, (unsigned long long)pfx_trace_refs(&sim->trace),
		sim->trace.n_distinct, "capacity");
	for (uint32_t i = 0; i < sim->n_chosen; i++) {
		printf(" %9s", sim->chosen[i]->name);
	}
	printf("\n");
	for (uint32_t k = 0; k < sim->n_sizes; k++) {
		printf("%10u", sim->sizes[k]);
		for (uint32_t i = 0; i < sim->n_chosen; i++) {
			printf(" %9.2f", sim->rows[i * sim->n_sizes + k].hit_rate * 100);
		}
		printf("\n");
	}
	printf("%10s %9.2f\n", "unlimited", ceiling_of(sim) * 100);
}

static void print_json(const struct sim *sim)
{
	printf("{\"ceiling\":%.6f,\"rows\":[", ceiling_of(sim));
	for (uint32_t i = 0; i < sim->n_rows; i++) {
		printf("%s{\"policy\":\"%s\",\"capacity\":%u,\"hit_rate\":%.6f}", i == 0 ? "" : ",",
			sim->rows[i].policy, sim->rows[i].capacity, sim->rows[i].hit_rate);
	}
	printf("]}\n");
}

static int write_plot(const struct sim *sim)
{
	const char *name = strrchr(sim->trace_path, '/');
	struct pfx_buf svg = PFX_BUF_INIT;
	FILE *f = fopen(sim->plot_path, "wb");
	int rc = f == NULL ? -errno : 0;

	pfx_plot_svg(&svg, name != NULL ? name + 1 : sim->trace_path, sim->rows, sim->n_rows,
		ceiling_of(sim));
	if (f != NULL) {
		if (svg.oom || fwrite(svg.data, 1, svg.len, f) != svg.len) {
			rc = svg.oom ? -ENOMEM : -errno;
		}
		if (fclose(f) != 0 && rc == 0) {
			rc = -errno;
		}
	}
	if (rc < 0) {
		fprintf(stderr, "prefix-sim: cannot write %s: %s\n", sim->plot_path, pfx_strerror(rc));
	}
	pfx_buf_free(&svg);
	return rc;
}

static int run(struct sim *sim)
{
	char err[400];
	int rc;

	if (pfx_trace_load(&sim->trace, sim->trace_path, err, sizeof(err)) < 0) {
		fprintf(stderr, "prefix-sim: %s\n", err);
		return EXIT_FAILED;
	}
	if (sim->n_sizes == 0) {
		default_sizes(sim);
	}
	rc = run_all(sim);
	if (rc < 0) {
		fprintf(stderr, "prefix-sim: %s\n", pfx_strerror(rc));
		return EXIT_FAILED;
	}
	if (sim->json) {
		print_json(sim);
	} else {
		print_table(sim);
	}
	if (sim->plot_path != NULL && write_plot(sim) < 0) {
		return EXIT_FAILED;
	}
	if (fflush(stdout) != 0) {
		fprintf(stderr, "prefix-sim: cannot write: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct sim *sim = pfx_xcalloc(1, sizeof(*sim));
	int status;

	read_options(sim, argc, argv);
	sim->is_tty = isatty(STDERR_FILENO);
	status = run(sim);
	pfx_trace_free(&sim->trace);
	pfx_free(sim);
	return status;
}
