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
#include "base/buf.h"
#include "base/error.h"
#include "tools/curve.h"
#include "tools/ends.h"
#include "tools/sim.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define SIZES_MAX 1000u
#define BLOCKS_MAX (UINT32_MAX / 2)
#define AT_ONCE_MAX 65536u
#define AHEAD_MAX 1000u

const char *argp_program_version = "prefix-sim " PACKAGE_VERSION;

static const struct named {
	const char *name;
	enum pfx_run_kind kind;
	enum pfx_policy policy;
} policies[] = {
	{ "lru", PFX_RUN_TREE, PFX_POLICY_LRU },
	{ "fifo", PFX_RUN_FIFO, 0 },
	{ "leaf-fifo", PFX_RUN_TREE, PFX_POLICY_FIFO },
	{ "default", PFX_RUN_TREE, PFX_POLICY_DEFAULT },
	{ "belady", PFX_RUN_BELADY, 0 },
};

#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

/* ---- the command line ---- */

/* A whole word that is a number from 1 to most; else 0. */
static uint64_t number(const char *word, uint64_t most)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(word, &end, 10);
	return *word < '0' || *word > '9' || *end != '\0' || errno != 0 || n > most ? 0 : n;
}

static void add_size(struct sim *sim, struct argp_state *state, uint64_t n)
{
	if (sim->n_sizes == SIZES_MAX) {
		argp_error(state, "--capacity: more than %u sizes", SIZES_MAX);
		return;
	}
	sim->sizes[sim->n_sizes++] = (uint32_t)n;
}

/* FROM:TO[:*FACTOR|:+STEP] */
static void add_range(struct sim *sim, struct argp_state *state, char *word)
{
	char *rest = NULL, copy[100];
	const char *from, *to, *step;
	uint64_t low, high, by;

	snprintf(copy, sizeof(copy), "%s", word);
	from = strtok_r(copy, ":", &rest);
	to = strtok_r(NULL, ":", &rest);
	step = strtok_r(NULL, ":", &rest);
	step = step == NULL ? "*2" : step;
	low = from == NULL ? 0 : number(from, BLOCKS_MAX);
	high = to == NULL ? 0 : number(to, BLOCKS_MAX);
	by = *step == '*' || *step == '+' ? number(step + 1, BLOCKS_MAX) : 0;
	if (low == 0 || high < low || by == 0 || (*step == '*' && by == 1) ||
		strlen(word) >= sizeof(copy) || strtok_r(NULL, ":", &rest) != NULL) {
		argp_error(state, "--capacity: \"%s\" is no range of blocks like 1000:16000:*2 or "
			"1000:5000:+500", word);
		return;
	}
	for (uint64_t n = low; n <= high && sim->n_sizes <= SIZES_MAX;
		n = *step == '*' ? n * by : n + by) {
		add_size(sim, state, n);
		if (sim->n_sizes == SIZES_MAX) {
			break;
		}
	}
}

static void set_sizes(struct sim *sim, struct argp_state *state, char *arg)
{
	char *word, *rest = NULL;

	sim->n_sizes = 0;
	for (word = strtok_r(arg, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
		uint64_t n = number(word, BLOCKS_MAX);

		if (strchr(word, ':') != NULL) {
			add_range(sim, state, word);
		} else if (n == 0) {
			argp_error(state, "--capacity: \"%s\" is not a number of blocks", word);
		} else {
			add_size(sim, state, n);
		}
	}
	if (sim->n_sizes == 0) {
		argp_error(state, "--capacity: no number of blocks");
	}
}

static const struct named *policy_named(struct argp_state *state, const char *name)
{
	struct pfx_buf names = PFX_BUF_INIT;

	for (size_t i = 0; i < N_POLICIES; i++) {
		if (strcmp(policies[i].name, name) == 0) {
			return &policies[i];
		}
	}
	for (size_t i = 0; i < N_POLICIES; i++) {
		pfx_buf_addf(&names, "%s%s", i == 0 ? "" : ", ", policies[i].name);
	}
	argp_error(state, "--policy: there is no \"%s\", only %s", name, names.data);
	pfx_buf_free(&names);
	return NULL;
}

static void add_column(struct sim *sim, const struct named *p)
{
	struct sim_column *c = &sim->columns[sim->n_columns];

	for (uint32_t i = 0; i < sim->n_columns; i++) {
		if (strcmp(sim->columns[i].name, p->name) == 0) {
			return;
		}
	}
	*c = (struct sim_column){ .opts = { .kind = p->kind, .policy = p->policy } };
	snprintf(c->name, sizeof(c->name), "%s", p->name);
	sim->n_columns++;
}

static void set_policies(struct sim *sim, struct argp_state *state, char *arg)
{
	char *word, *rest = NULL;

	sim->n_columns = 0;
	for (word = strtok_r(arg, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
		const struct named *p = policy_named(state, word);

		if (p != NULL) {
			add_column(sim, p);
		}
	}
	if (sim->n_columns == 0) {
		argp_error(state, "--policy: no policy");
	}
}

static double bytes(struct argp_state *state, const char *option, const char *arg)
{
	static const char units[] = "KMGT";
	size_t n = strlen(arg);
	const char *unit = n > 0 ? strchr(units, arg[n - 1]) : NULL;
	char digits[32] = "";

	if (n > 0 && n < sizeof(digits)) {
		memcpy(digits, arg, unit == NULL ? n : n - 1);
	}
	if (number(digits, UINT64_MAX >> 40) == 0) {
		argp_error(state, "%s: \"%s\" is not a number of bytes, like 23040 or 12M", option, arg);
	}
	return (double)number(digits, UINT64_MAX >> 40) *
		(unit == NULL ? 1 : (double)(1ull << 10 * (unit - units + 1)));
}

static enum pfx_save save_named(struct argp_state *state, const char *arg)
{
	static const char *const names[] = { "off", "reused", "all" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i], arg) == 0) {
			return (enum pfx_save)i;
		}
	}
	argp_error(state, "--save: \"%s\" is not one of off, reused, all", arg);
	return PFX_SAVE_OFF;
}

static uint32_t blocks(struct argp_state *state, const char *option, const char *arg)
{
	uint64_t n = number(arg, BLOCKS_MAX / 2);

	if (n == 0) {
		argp_error(state, "%s: \"%s\" is not a number of blocks", option, arg);
	}
	return (uint32_t)n;
}

enum { KEY_ENDS = 256, KEY_AT_ONCE, KEY_AHEAD, KEY_DEVICE, KEY_HOST, KEY_DISK, KEY_SAVE, KEY_BLOCK_BYTES,
	KEY_TOKEN_BYTES };

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct sim *sim = state->input;

	switch (key) {
	case 't':
		sim->trace_path = arg;
		return 0;
	case 'c':
	case KEY_DEVICE:
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
	case KEY_ENDS:
		sim->ends = 1;
		return 0;
	case KEY_AT_ONCE:
		sim->at_once = (uint32_t)number(arg, AT_ONCE_MAX);
		if (sim->at_once == 0) {
			argp_error(state, "--at-once: \"%s\" is not a number from 1 to %u", arg, AT_ONCE_MAX);
		}
		return 0;
	case KEY_AHEAD:
		sim->ahead = (uint32_t)number(arg, AHEAD_MAX);
		if (sim->ahead == 0) {
			argp_error(state, "--look-ahead: \"%s\" is not a number from 1 to %u", arg, AHEAD_MAX);
		}
		return 0;
	case KEY_HOST:
		sim->host = blocks(state, "--host", arg);
		return 0;
	case KEY_DISK:
		sim->disk = blocks(state, "--disk", arg);
		return 0;
	case KEY_SAVE:
		sim->save = save_named(state, arg);
		return 0;
	case KEY_BLOCK_BYTES:
		sim->block_bytes = bytes(state, "--block-bytes", arg);
		return 0;
	case KEY_TOKEN_BYTES:
		sim->token_bytes = bytes(state, "--bytes-per-token", arg);
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
	{ "capacity", 'c', "LIST", 0, "N[,N...]: sizes of the cache in the trace's blocks, also ranges: "
		"1000:16000:*2, 1000:5000:+500; without it, the powers of two up to all of them", 0 },
	{ "device", KEY_DEVICE, "LIST", 0, "the same as --capacity, beside --host and --disk", 0 },
	{ "host", KEY_HOST, "N", 0, "blocks of host memory behind these; with it or --disk room is made "
		"before a request and not after it, as by a server", 0 },
	{ "disk", KEY_DISK, "N", 0, "blocks on disk", 0 },
	{ "save", KEY_SAVE, "WHAT", 0, "what goes to disk by itself: off, reused or all; default: reused", 0 },
	{ "policy", 'p', "LIST", 0, "NAME[,NAME...]: which to try, of those listed below; default: all", 0 },
	{ "ends", KEY_ENDS, NULL, 0, "tell the cache which request is its conversation's last, as a "
		"client would; what a trace says of it itself (last_turn) is told anyway", 0 },
	{ "at-once", KEY_AT_ONCE, "N", 0, "requests that hold their blocks at the same time", 0 },
	{ "look-ahead", KEY_AHEAD, "N", 0, "beside each policy, the same with the next N requests known: "
		"they wait, and what they need is kept", 0 },
	{ "bytes-per-token", KEY_TOKEN_BYTES, "SIZE", 0, "tell sizes in bytes, too (23040 for "
		"SmolLM2-135M); the trace must tell how long its inputs are", 0 },
	{ "block-bytes", KEY_BLOCK_BYTES, "SIZE", 0, "tell sizes in bytes, too, by what a block of the trace takes", 0 },
	{ "json", 'j', NULL, 0, "print one JSON object in place of the table (see below)", 0 },
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
	"often, by requests with replies as long; belady, the block that will not be used for longest, "
	"which no server can know and none can beat. The ceiling is the hit rate of a cache that never "
	"lets go.\n\n"
	"A request counts as cached the longest run of its first blocks that are there; then all "
	"its blocks are; then the policy lets blocks go until the cache has its size again.\n\n"
	"A conversation is a trace's `session`. Where there is none, a request goes on with the "
	"conversation of the latest one that used the last block that is known already, when more than "
	"half of that one's blocks are known; else it begins one.\n\n"
	"--json: `ceiling` and `rows`, one for each policy and size with `policy`, `capacity`, `hit_rate` "
	"(0 to 1; of the ceiling, too), `bytes` where sizes in bytes are known, `refused` (requests that "
	"found no room among what others hold; with --at-once and slower tiers), `tiers` (the share found "
	"in `device`, `host`, `disk`) and `moved` (blocks `spilled`, `fetched`, `loaded`, `saved`) with slower tiers; "
	"`requests`, `blocks` referred to, `distinct` ones, `block_tokens` (0: unknown), `last_turns`, `host`, `disk`; "
	"`need`, the least `capacity` with which a `policy` has that `share` of the ceiling: exact "
	"for lru, of the sizes tried for others, null when none is enough.\n\n"
	"Exit status: 0; 1 when a file cannot be read or written or is not a trace; 2 when the "
	"command line is wrong.";

static void read_options(struct sim *sim, int argc, char **argv)
{
	struct argp argp = { options, on_option, NULL, doc, NULL, NULL, NULL };

	sim->sizes = pfx_xcalloc(SIZES_MAX, sizeof(*sim->sizes));
	sim->at_once = 1;
	sim->save = PFX_SAVE_REUSED;
	for (size_t i = 0; i < N_POLICIES; i++) {
		add_column(sim, &policies[i]);
	}
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, sim);
}

/* ---- the run ---- */

static void default_sizes(struct sim *sim)
{
	for (uint64_t n = 64; n / 2 < sim->trace.n_distinct && sim->n_sizes < 24; n *= 2) {
		sim->sizes[sim->n_sizes++] = (uint32_t)n;
	}
}

static void show_progress(void *arg, uint32_t n_requests)
{
	const struct sim *sim = arg;
	double done = (double)n_requests / sim->trace.n_requests;
	int width = (int)(done * 40);

	fprintf(stderr, "\r[%.*s%*s] %3.0f %%", width, "========================================",
		40 - width, "", done * 100);
	if (n_requests == sim->trace.n_requests) {
		fprintf(stderr, "\r%*s\r", 50, "");
	}
}

/* The columns are the policies asked for, and each that goes through the tree again, with a
 * look ahead. */
static void finish_columns(struct sim *sim)
{
	uint32_t n = 0;
	struct sim_column asked[N_POLICIES];

	memcpy(asked, sim->columns, sim->n_columns * sizeof(asked[0]));
	for (uint32_t i = 0; i < sim->n_columns; i++) {
		struct pfx_run_opts *o = &asked[i].opts;

		o->at_once = sim->at_once;
		o->host = sim->host;
		o->disk = sim->disk;
		o->save = sim->save;
		sim->columns[n++] = asked[i];
		if (sim->ahead > 0 && o->kind == PFX_RUN_TREE) {
			o->ahead = sim->ahead;
			sim->columns[n] = asked[i];
			snprintf(sim->columns[n++].name, sizeof(asked[i].name), "%.20s+ahead",
				asked[i].name);
		}
	}
	sim->n_columns = n;
}

/* What the real tree did must be what the curve says of leaf LRU. */
static int check_curve(const struct sim *sim)
{
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		for (uint32_t k = 0; k < sim->n_sizes && sim_is_exact(sim, c); k++) {
			uint32_t size = sim->sizes[k] < sim->trace.n_distinct ? sim->sizes[k]
				: sim->trace.n_distinct;

			if (sim->results[c * sim->n_sizes + k].hits != sim->lru[size]) {
				fprintf(stderr, "prefix-sim: the tree and the curve of leaf LRU differ at %u "
					"blocks; this is a bug\n", size);
				return PFX_E_FORMAT;
			}
		}
	}
	return 0;
}

static int run_all(struct sim *sim)
{
	uint32_t n = sim->n_columns * sim->n_sizes;
	struct pfx_run_opts *opts = pfx_xcalloc(n, sizeof(*opts));
	int rc;

	sim->results = pfx_xcalloc(n, sizeof(*sim->results));
	sim->lru = pfx_xcalloc((size_t)sim->trace.n_distinct + 1, sizeof(*sim->lru));
	for (uint32_t c = 0; c < sim->n_columns; c++) {
		for (uint32_t k = 0; k < sim->n_sizes; k++) {
			opts[c * sim->n_sizes + k] = sim->columns[c].opts;
			opts[c * sim->n_sizes + k].capacity = sim->sizes[k];
			/* Those that know no tiers have one as large as all of them. */
			if (sim->columns[c].opts.kind != PFX_RUN_TREE) {
				opts[c * sim->n_sizes + k].capacity += sim->host + sim->disk;
			}
		}
	}
	rc = pfx_curve_lru(&sim->trace, sim->lru);
	if (rc == 0) {
		rc = pfx_replay(&sim->trace, opts, n, sim->results, sim->progress ? show_progress : NULL,
			sim);
	}
	pfx_free(opts);
	if (rc < 0) {
		fprintf(stderr, "prefix-sim: %s\n", pfx_strerror(rc));
	}
	return rc < 0 ? rc : check_curve(sim);
}

static int load(struct sim *sim)
{
	uint32_t tokens;
	char err[400];
	int rc = pfx_trace_load(&sim->trace, sim->trace_path, err, sizeof(err));

	if (rc < 0) {
		fprintf(stderr, "prefix-sim: %s\n", err);
		return rc;
	}
	rc = pfx_ends_conversations(&sim->trace);
	if (rc == 0 && sim->ends) {
		rc = pfx_ends_derive(&sim->trace);
	}
	if (rc < 0) {
		fprintf(stderr, "prefix-sim: %s\n", pfx_strerror(rc));
		return rc;
	}
	tokens = pfx_trace_block_tokens(&sim->trace);
	if (sim->token_bytes > 0 && sim->block_bytes <= 0) {
		if (tokens == 0) {
			fprintf(stderr, "prefix-sim: %s does not tell how many tokens a block has: use "
				"--block-bytes\n", sim->trace_path);
			return PFX_E_FORMAT;
		}
		sim->block_bytes = sim->token_bytes * tokens;
	}
	return 0;
}

static int run(struct sim *sim)
{
	if (load(sim) < 0) {
		return EXIT_FAILED;
	}
	if (sim->n_sizes == 0) {
		default_sizes(sim);
	}
	finish_columns(sim);
	if (run_all(sim) < 0) {
		return EXIT_FAILED;
	}
	if (sim->json) {
		sim_print_json(sim);
	} else {
		sim_print_table(sim);
	}
	if (sim->plot_path != NULL && sim_write_plot(sim) < 0) {
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
	sim->progress = isatty(STDERR_FILENO);
	status = run(sim);
	pfx_trace_free(&sim->trace);
	pfx_free(sim->results);
	pfx_free(sim->lru);
	pfx_free(sim->sizes);
	pfx_free(sim);
	return status;
}
