/*
 * prefix-bench: load for a running prefixd, and how it bore it. Requests of random tokens share a
 * prefix; a number of them is in flight at once, on one connection. It tells the time to the first
 * token and between tokens, what was cached, and with --profile where the time of the server's
 * steps went meanwhile.
 */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "net/client.h"

const char *argp_program_version = "prefix-bench " PACKAGE_VERSION;

enum { USAGE = 2, CONNECTION, REFUSED }; /* exit statuses, as prefixctl's */

struct settings {
	const char *server;
	uint32_t requests, at_once, shared, own, reply;
	uint64_t seed;
	int profile, json;
};

struct request {
	uint64_t sent_ns, last_ns;
	uint32_t n_tokens;
	double ttft_ms;
};

struct bench {
	struct settings set;
	struct pfx_client *client;
	json_t *prefix; /* of all prompts */
	uint64_t vocab;
	struct pfx_rng rng;
	struct request *requests;
	double *gaps_ms; /* between two tokens of a request */
	size_t n_gaps;
	uint64_t prompt, cached, generated, begin_ns, end_ns;
};

static void die(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));

static void die(int status, const char *fmt, ...)
{
	va_list ap;

	fputs("prefix-bench: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(status);
}

/* ---- the connection ---- */

/* The next line as an object, owned. */
static json_t *next_line(struct bench *b)
{
	const char *line;
	json_t *o;
	size_t n;
	int rc;

	do {
		rc = pfx_client_recv(b->client, &line, &n, -1);
	} while (rc == -EINTR);
	if (rc != 0) {
		die(CONNECTION, "%s: the server hung up", b->set.server);
	}
	o = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
	if (o == NULL || strcmp(json_string_value(json_object_get(o, "event")), "error") == 0) {
		die(REFUSED, "the server says %.*s", (int)n, line);
	}
	return o;
}

static void send_request(struct bench *b, json_t *request)
{
	if (pfx_client_send_json(b->client, request) != 0) {
		die(CONNECTION, "%s: the server hung up", b->set.server);
	}
	json_decref(request);
}

/* Asks while nothing is in flight. */
static json_t *ask(struct bench *b, const char *op)
{
	send_request(b, json_pack("{s:s,s:s}", "op", op, "id", op));
	return next_line(b);
}

static uint64_t number(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* ---- the load ---- */

static void add_tokens(struct bench *b, json_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		json_array_append_new(tokens, json_integer((json_int_t)pfx_rng_below(&b->rng, b->vocab)));
	}
}

static void start(struct bench *b, uint32_t i)
{
	json_t *tokens = json_copy(b->prefix), *request;

	add_tokens(b, tokens, b->set.own);
	request = json_pack("{s:s,s:i,s:o,s:i,s:b}", "op", "generate", "id", (int)i, "tokens", tokens,
		"max_tokens", (int)b->set.reply, "ignore_eos", 1);
	b->requests[i].sent_ns = pfx_clock_ns();
	send_request(b, request);
}

static void take_token(struct bench *b, struct request *r)
{
	uint64_t now = pfx_clock_ns();

	if (r->n_tokens++ == 0) {
		r->ttft_ms = pfx_ns_to_ms(now - r->sent_ns);
	} else {
		b->gaps_ms[b->n_gaps++] = pfx_ns_to_ms(now - r->last_ns);
	}
	r->last_ns = now;
	b->generated++;
}

/* Takes lines until a request has ended. */
static void wait_for_one(struct bench *b)
{
	int done = 0;

	while (!done) {
		json_t *o = next_line(b), *usage = json_object_get(o, "usage");
		uint64_t id = number(o, "id");
		if (usage == NULL) {
			take_token(b, &b->requests[id]);
		} else {
			b->prompt += number(usage, "prompt_tokens");
			b->cached += number(usage, "cached_tokens");
			done = 1;
		}
		json_decref(o);
	}
}

static void run(struct bench *b)
{
	uint32_t sent = 0, ended = 0;

	b->begin_ns = pfx_clock_ns();
	while (ended < b->set.requests) {
		while (sent < b->set.requests && sent - ended < b->set.at_once) {
			start(b, sent++);
		}
		wait_for_one(b);
		ended++;
	}
	b->end_ns = pfx_clock_ns();
}

/* ---- what came of it ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static json_t *percentiles(double *v, size_t n)
{
	static const struct {
		const char *name;
		double at;
	} wanted[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 }, { "max", 1 } };
	json_t *o = json_object();

	qsort(v, n, sizeof(*v), by_value);
	for (size_t i = 0; n > 0 && i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		json_object_set_new(o, wanted[i].name, json_real(v[(size_t)(wanted[i].at * (double)(n - 1))]));
	}
	return o;
}

/* What has been added to the numbers of an object, those of objects inside it included. */
static json_t *added(const json_t *before, const json_t *after)
{
	json_t *o = json_object(), *value, *old;
	const char *key;

	json_object_foreach((json_t *)after, key, value) {
		old = json_object_get(before, key);
		json_object_set_new(o, key, json_is_object(value) ? added(old, value)
			: json_is_integer(value) ? json_integer(json_integer_value(value) -
				json_integer_value(old))
			: json_real(json_real_value(value) - json_real_value(old)));
	}
	return o;
}

static json_t *result(struct bench *b, const json_t *before, const json_t *after)
{
	double seconds = (double)(b->end_ns - b->begin_ns) / 1e9;
	double *ttft = pfx_xcalloc(b->set.requests, sizeof(*ttft));
	size_t n = 0;
	json_t *o;

	for (uint32_t i = 0; i < b->set.requests; i++) {
		if (b->requests[i].n_tokens > 0) {
			ttft[n++] = b->requests[i].ttft_ms;
		}
	}
	o = json_pack("{s:i,s:i,s:f,s:I,s:I,s:f,s:o,s:o}", "requests", (int)b->set.requests, "at_once",
		(int)b->set.at_once, "seconds", seconds, "prompt_tokens", (json_int_t)b->prompt,
		"cached_tokens", (json_int_t)b->cached, "tokens_per_s", (double)b->generated / seconds,
		"ttft_ms", percentiles(ttft, n), "between_tokens_ms", percentiles(b->gaps_ms, b->n_gaps));
	if (b->set.profile) {
		json_object_set_new(o, "profile", added(json_object_get(before, "profile"),
			json_object_get(after, "profile")));
	}
	pfx_free(ttft);
	return o;
}

static double real(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static void tell_percentiles(const char *name, const json_t *o)
{
	printf("%-20s", name);
	if (json_object_size(o) == 0) {
		puts(" none");
		return;
	}
	printf(" p50 %.2f  p90 %.2f  p99 %.2f  max %.2f ms\n", real(o, "p50"), real(o, "p90"),
		real(o, "p99"), real(o, "max"));
}

static void tell_steps(const char *kind, const json_t *times)
{
	double steps = real(times, "steps"), total = 0;
	json_t *phases = json_object_get(times, "phases"), *phase;
	const char *name;

	json_object_foreach(phases, name, phase) {
		total += real(phase, "ms");
	}
	if (steps == 0) {
		return;
	}
	printf("\n%s: %.0f steps, %.1f rows and %.3f ms a step\n", kind, steps,
		real(times, "rows") / steps, total / steps);
	json_object_foreach(phases, name, phase) {
		double ms = real(phase, "ms");
		printf("  %-10s %9.3f ms %5.1f %%", name, ms / steps, 100 * ms / total);
		if (real(phase, "waited_ms") > 0) {
			printf("   waited %.3f ms", real(phase, "waited_ms") / steps);
		}
		puts("");
	}
}

static void tell(const json_t *o)
{
	const json_t *profile = json_object_get(o, "profile");
	double prompt = real(o, "prompt_tokens");

	printf("%.0f requests, %.0f at once, in %.2f s; %.1f tokens/s generated\n", real(o, "requests"),
		real(o, "at_once"), real(o, "seconds"), real(o, "tokens_per_s"));
	printf("%.0f of %.0f prompt tokens were cached (%.1f %%)\n", real(o, "cached_tokens"), prompt,
		prompt > 0 ? 100 * real(o, "cached_tokens") / prompt : 0);
	tell_percentiles("first token", json_object_get(o, "ttft_ms"));
	tell_percentiles("between tokens", json_object_get(o, "between_tokens_ms"));
	if (profile != NULL) {
		tell_steps("decode", json_object_get(profile, "decode"));
		tell_steps("prefill", json_object_get(profile, "prefill"));
	}
}

/* ---- options ---- */

enum { O_JSON = 256, O_PROFILE, O_SHARED, O_OWN, O_REPLY, O_SEED };

static const struct argp_option options[] = {
	{ "server", 's', "ADDR", 0, "HOST:PORT or unix:PATH (default: $PREFIXD_SERVER, else "
		"127.0.0.1:7077)", 0 },
	{ "requests", 'n', "N", 0, "How many in all (default: 32)", 0 },
	{ "at-once", 'c', "N", 0, "How many in flight at once (default: 4)", 0 },
	{ "shared", O_SHARED, "N", 0, "Tokens that all prompts begin with (default: 1024)", 0 },
	{ "own", O_OWN, "N", 0, "Tokens that each prompt has of its own (default: 64)", 0 },
	{ "reply", O_REPLY, "N", 0, "Tokens to generate for each (default: 32)", 0 },
	{ "seed", O_SEED, "N", 0, "Of the tokens; the same seed finds its prompts cached (default: a "
		"new one)", 0 },
	{ "profile", O_PROFILE, NULL, 0, "Where the time of the server's steps went (an admin's "
		"connection)", 0 },
	{ "json", O_JSON, NULL, 0, "One object instead of text", 0 },
	{ 0 },
};

static uint64_t whole(struct argp_state *state, const char *arg, uint64_t lo, uint64_t hi)
{
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(arg, &end, 10);
	if (*arg < '0' || *arg > '9' || *end != 0 || errno != 0 || v < lo || v > hi) {
		argp_error(state, "%s is not a whole number from %llu to %llu", arg,
			(unsigned long long)lo, (unsigned long long)hi);
	}
	return v;
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct settings *set = state->input;

	switch (key) {
	case 's':
		set->server = arg;
		return 0;
	case 'n':
		set->requests = (uint32_t)whole(state, arg, 1, 1000000);
		return 0;
	case 'c':
		set->at_once = (uint32_t)whole(state, arg, 1, 1024);
		return 0;
	case O_SHARED:
		set->shared = (uint32_t)whole(state, arg, 0, 10000000);
		return 0;
	case O_OWN:
		set->own = (uint32_t)whole(state, arg, 1, 10000000);
		return 0;
	case O_REPLY:
		set->reply = (uint32_t)whole(state, arg, 1, 1000000);
		return 0;
	case O_SEED:
		set->seed = whole(state, arg, 0, UINT64_MAX);
		return 0;
	case O_PROFILE:
		set->profile = 1;
		return 0;
	case O_JSON:
		set->json = 1;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void read_settings(struct settings *set, int argc, char **argv)
{
	static const struct argp argp = { options, on_option, NULL,
		"Load for a running prefixd, and how it bore it.\v"
		"Exit status: 0 done; 2 wrong usage; 3 no connection; 4 the server answered with an error.",
		NULL, NULL, NULL };

	*set = (struct settings){ .requests = 32, .at_once = 4, .shared = 1024, .own = 64, .reply = 32,
		.seed = pfx_rng_entropy() };
	set->server = getenv("PREFIXD_SERVER");
	if (set->server == NULL || *set->server == 0) {
		set->server = "127.0.0.1:7077";
	}
	argp_err_exit_status = USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, set);
}

int main(int argc, char **argv)
{
	struct bench b = { .prefix = json_array() };
	json_t *before = NULL, *after = NULL, *o;
	char err[256];

	read_settings(&b.set, argc, argv);
	b.rng.state = b.set.seed;
	b.requests = pfx_xcalloc(b.set.requests, sizeof(*b.requests));
	b.gaps_ms = pfx_xcalloc((size_t)b.set.requests * b.set.reply, sizeof(*b.gaps_ms));
	if (pfx_client_open(&b.client, b.set.server, err, sizeof(err)) != 0) {
		die(CONNECTION, "%s", err);
	}
	o = ask(&b, "hello");
	b.vocab = number(o, "vocab");
	json_decref(o);
	add_tokens(&b, b.prefix, b.set.shared);
	if (b.set.profile) {
		before = ask(&b, "stats");
	}
	run(&b);
	if (b.set.profile) {
		after = ask(&b, "stats");
	}
	o = result(&b, before, after);
	if (b.set.json) {
		json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
		puts("");
	} else {
		tell(o);
	}
	json_decref(o);
	json_decref(before);
	json_decref(after);
	json_decref(b.prefix);
	pfx_client_close(b.client);
	pfx_free(b.requests);
	pfx_free(b.gaps_ms);
	return 0;
}
