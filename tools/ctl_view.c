/* prefixctl: what is cached, who hits it, why a prompt missed: hits, tree, explain, trace. */
#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "tools/ctl.h"

/* ---- hits ---- */

/* Whether the slower tiers have columns: they do as soon as anything came from there. */
static int with_tiers;

static void put_rate(const json_t *row, const char *key)
{
	const json_t *v = json_object_get(row, key);

	if (json_is_number(v)) {
		printf(" %6.2f%%", 100 * json_number_value(v));
	} else {
		printf(" %7s", "-");
	}
}

static void put_row(const json_t *row)
{
	const json_t *cached = json_object_get(row, "cached");

	printf("%8lld %11lld %11lld", pfx_ctl_int(row, "requests"), pfx_ctl_int(row, "prompt_tokens"),
		pfx_ctl_int(row, "cached_tokens"));
	if (with_tiers) {
		printf(" %11lld %11lld", pfx_ctl_int(cached, "host"), pfx_ctl_int(cached, "disk"));
	}
	put_rate(row, "hit_rate");
	put_rate(row, "ceiling");
}

static void put_head(const char *what)
{
	printf("%8s %11s %11s", "requests", "prompt", "cached");
	if (with_tiers) {
		printf(" %11s %11s", "from host", "from disk");
	}
	printf(" %7s %7s  %s\n", "hits", "ceiling", what);
}

static void put_owner(const json_t *row)
{
	if (json_string_length(json_object_get(row, "namespace")) == 0) {
		fputs("(default)", stdout);
	}
	pfx_ctl_put_str(row, "namespace", 0);
	if (json_string_length(json_object_get(row, "salt")) > 0) {
		fputs(" + ", stdout);
		pfx_ctl_put_str(row, "salt", 0);
	}
}

static void put_rows(const json_t *list, const char *what, const char *name)
{
	if (json_array_size(list) == 0) {
		return;
	}
	puts("");
	put_head(what);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *row = json_array_get(list, i);

		put_row(row);
		fputs("  ", stdout);
		if (name != NULL) {
			pfx_ctl_put_str(row, name, 0);
			fputs(" in ", stdout);
		}
		put_owner(row);
		puts("");
	}
}

static void put_others(const json_t *row)
{
	if (pfx_ctl_int(row, "names") > 0) {
		put_row(row);
		printf("  %lld others\n", pfx_ctl_int(row, "names"));
	}
}

static void put_prefixes(const json_t *list)
{
	if (json_array_size(list) == 0) {
		return;
	}
	puts("");
	put_head("prefix");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *row = json_array_get(list, i);

		put_row(row);
		printf("  %lld tokens in ", pfx_ctl_int(row, "tokens"));
		put_owner(row);
		if (json_is_string(json_object_get(row, "text"))) {
			fputs("  ", stdout);
			pfx_ctl_put_str(row, "text", 60);
		}
		puts("");
	}
}

static void put_minutes(const json_t *list)
{
	if (json_array_size(list) == 0) {
		return;
	}
	puts("");
	put_head("minute");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *row = json_array_get(list, i);
		time_t at = (time_t)(pfx_ctl_int(row, "time_ms") / 1000);
		struct tm tm;
		char text[32];

		localtime_r(&at, &tm);
		strftime(text, sizeof(text), "%H:%M", &tm);
		put_row(row);
		printf("  %s\n", text);
	}
}

static int tell_hits(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *ceiling = json_object_get(reply, "ceiling");
	const json_t *cached = json_object_get(json_object_get(reply, "total"), "cached");

	with_tiers = pfx_ctl_int(cached, "host") + pfx_ctl_int(cached, "disk") > 0;
	put_head("");
	put_row(json_object_get(reply, "total"));
	puts("  all");
	put_rows(json_object_get(reply, "namespaces"), "namespace", NULL);
	put_others(json_object_get(reply, "others"));
	put_rows(json_object_get(reply, "named"), "named prefix", "name");
	put_others(json_object_get(reply, "named_others"));
	put_prefixes(json_object_get(reply, "prefixes"));
	put_minutes(json_object_get(reply, "minutes"));
	if (!json_is_true(json_object_get(ceiling, "exact"))) {
		printf("\nThe ceiling is an estimate: one block in %.0f is looked at, +-%.2f points.\n",
			1 / pfx_ctl_real(ceiling, "sampled"), 100 * pfx_ctl_real(ceiling, "error"));
	}
	return 0;
}

/* ---- tree ---- */

static int has_prompt(const struct pfx_ctl *ctl)
{
	return ctl->n_words > 0 || ctl->file != NULL || ctl->messages != NULL || ctl->chat ||
		ctl->system != NULL;
}

static void fill_tree(struct pfx_ctl *ctl)
{
	if (has_prompt(ctl)) {
		pfx_ctl_fill_prompt(ctl);
	}
}

/* Is there a later sibling of nodes[i]? Asked for depth d <= its own: of its ancestor there. */
static int goes_on(const json_t *nodes, size_t i, long long d)
{
	for (size_t k = i + 1; k < json_array_size(nodes); k++) {
		long long depth = pfx_ctl_int(json_array_get(nodes, k), "depth");

		if (depth <= d) {
			return depth == d;
		}
	}
	return 0;
}

static void add_age(struct pfx_buf *line, const char *what, const json_t *ms)
{
	double s = json_number_value(ms) / 1000;

	if (!json_is_number(ms)) {
		return;
	}
	if (s < 120) {
		pfx_buf_addf(line, "  %s%.1fs", what, s);
	} else if (s < 7200) {
		pfx_buf_addf(line, "  %s%.0fm", what, s / 60);
	} else {
		pfx_buf_addf(line, "  %s%.1fh", what, s / 3600);
	}
}

static void add_tiers(struct pfx_buf *line, const json_t *node)
{
	static const char *const tiers[] = { "device", "host", "disk" };
	const json_t *blocks = json_object_get(node, "blocks");

	for (int i = 0; i < 3; i++) {
		long long n = pfx_ctl_int(blocks, tiers[i]);

		if (n > 0) {
			pfx_buf_addf(line, "  %s %lld", tiers[i], n);
		}
	}
}

static void put_branch(struct pfx_buf *line, const json_t *nodes, size_t i, long long depth,
	int width)
{
	long long first = width > 0 && depth * 3 > width / 2 ? depth - width / 6 : 0;

	if (first > 0) {
		pfx_buf_addf(line, "…%lld ", first);
	}
	for (long long d = first; d < depth; d++) {
		pfx_buf_adds(line, goes_on(nodes, i, d) ? "│  " : "   ");
	}
	pfx_buf_adds(line, goes_on(nodes, i, depth) ? "├─ " : "└─ ");
}

static void put_node(const json_t *nodes, size_t i, int width)
{
	const json_t *node = json_array_get(nodes, i);
	const json_t *text = json_object_get(node, "text");
	long long pins = pfx_ctl_int(node, "pins"), leases = pfx_ctl_int(node, "leases");
	struct pfx_buf line = PFX_BUF_INIT;

	put_branch(&line, nodes, i, pfx_ctl_int(node, "depth"), width);
	pfx_buf_addf(&line, "%lld tokens", pfx_ctl_int(node, "tokens"));
	add_tiers(&line, node);
	pfx_buf_addf(&line, "  hits %lld", pfx_ctl_int(node, "hits"));
	add_age(&line, "", json_object_get(node, "age_ms"));
	add_age(&line, "kept ", json_object_get(node, "kept_ms"));
	if (pins > 0) {
		pfx_buf_addf(&line, "  pins %lld", pins);
	}
	if (leases > 0) {
		pfx_buf_addf(&line, "  leases %lld", leases);
	}
	if (json_is_true(json_object_get(node, "ended"))) {
		pfx_buf_adds(&line, "  ended");
	}
	if (json_is_string(text)) {
		pfx_buf_adds(&line, "  \"");
		pfx_buf_add(&line, json_string_value(text), json_string_length(text));
		pfx_buf_adds(&line, json_is_true(json_object_get(node, "text_cut")) ? "…\"" : "\"");
	}
	pfx_ctl_put_text(line.data, line.len, width);
	puts("");
	pfx_buf_free(&line);
}

static int tell_tree(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *spaces = json_object_get(reply, "spaces");
	int width = pfx_ctl_width();

	for (size_t i = 0; i < json_array_size(spaces); i++) {
		const json_t *space = json_array_get(spaces, i);
		const json_t *nodes = json_object_get(space, "nodes");

		if (json_is_string(json_object_get(space, "space"))) {
			printf("space %s", pfx_ctl_str(space, "space"));
		} else {
			put_owner(space);
		}
		puts("");
		for (size_t k = 0; k < json_array_size(nodes); k++) {
			put_node(nodes, k, width);
		}
	}
	printf("%lld of %lld nodes, %lld tokens%s\n", pfx_ctl_int(reply, "shown"),
		pfx_ctl_int(reply, "nodes"), pfx_ctl_int(reply, "tokens"),
		json_is_true(json_object_get(reply, "cut"))
		? "; cut: --depth, --nodes, --min-tokens, --min-hits" : "");
	return 0;
}

/* ---- explain ---- */

static void fill_explain(struct pfx_ctl *ctl)
{
	const char *word = ctl->n_words == 1 ? ctl->words[0] : "";

	if (*word != 0 && strspn(word, "0123456789") == strlen(word) && ctl->file == NULL &&
		!ctl->chat && ctl->system == NULL && ctl->messages == NULL) {
		json_object_set_new(ctl->fields, "request",
			json_integer(pfx_ctl_number(ctl, "a request's number, or a prompt")));
	} else {
		pfx_ctl_fill_prompt(ctl);
	}
}

static void put_instead(const json_t *miss)
{
	const json_t *others = json_object_get(miss, "cached_instead");

	if (json_is_string(json_object_get(miss, "text"))) {
		fputs("  there stands     \"", stdout);
		pfx_ctl_put_str(miss, "text", 60);
		printf("\" (token %lld)\n", pfx_ctl_int(miss, "token"));
	}
	for (size_t i = 0; i < json_array_size(others); i++) {
		const json_t *o = json_array_get(others, i);

		fputs("  the cache has    \"", stdout);
		pfx_ctl_put_str(o, "text", 60);
		printf("\" (token %lld)\n", pfx_ctl_int(o, "token"));
	}
}

static void put_miss(const json_t *miss)
{
	const json_t *ago = json_object_get(miss, "evicted_ms_ago");

	if (!json_is_object(miss)) {
		puts("nothing is missed");
		return;
	}
	printf("ends at token %lld: %s", pfx_ctl_int(miss, "at_token"), pfx_ctl_str(miss, "reason"));
	if (json_is_number(ago)) {
		printf(" %.1f s before", json_number_value(ago) / 1000);
	}
	if (json_is_integer(json_object_get(miss, "message"))) {
		printf(", in message %lld at byte %lld", pfx_ctl_int(miss, "message"),
			pfx_ctl_int(miss, "byte"));
	} else if (pfx_ctl_int(miss, "byte") > 0) {
		printf(", at byte %lld", pfx_ctl_int(miss, "byte"));
	}
	puts("");
	put_instead(miss);
}

static void put_request(const json_t *o)
{
	const json_t *timing = json_object_get(o, "timing");
	const char *finish = pfx_ctl_str(o, "finish"), *error = pfx_ctl_str(o, "error");
	static const struct {
		const char *key, *name;
	} parts[] = {
		{ "queue_ms", "waited" }, { "prefill_ms", "prefill" }, { "ttft_ms", "to first token" },
		{ "total_ms", "in all" },
	};
	const json_t *ago = json_object_get(timing, "ended_ms_ago");

	printf("request %lld: %s, %s%s%s%s, in ", pfx_ctl_int(o, "request"), pfx_ctl_str(o, "op"),
		pfx_ctl_str(o, "state"), *finish != 0 || *error != 0 ? " with " : "", finish, error);
	put_owner(o);
	puts("");
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (json_is_number(json_object_get(timing, parts[i].key))) {
			printf("  %-16s %.2f ms\n", parts[i].name, pfx_ctl_real(timing, parts[i].key));
		}
	}
	if (json_is_number(ago)) {
		printf("  %-16s %.1f s ago\n", "ended", json_number_value(ago) / 1000);
	}
	if (pfx_ctl_int(o, "preempted") > 0) {
		printf("  preempted        %lld times, %lld tokens computed again\n",
			pfx_ctl_int(o, "preempted"), pfx_ctl_int(o, "recomputed_tokens"));
	}
}

/* An estimate; null, which is read as 0, where nothing was measured. */
static void put_ms(double ms)
{
	if (ms > 0) {
		printf("%.2f ms", ms);
	} else {
		fputs("not measured yet", stdout);
	}
}

static void put_estimate(const json_t *estimate)
{
	const json_t *list = json_object_get(estimate, "slower_tiers");

	if (pfx_ctl_int(estimate, "compute_tokens") > 0) {
		fputs("  computing it     ", stdout);
		put_ms(pfx_ctl_real(estimate, "compute_ms"));
		puts("");
	}
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *o = json_array_get(list, i);

		printf("  from %-11s %lld tokens: ", pfx_ctl_str(o, "tier"), pfx_ctl_int(o, "tokens"));
		put_ms(pfx_ctl_real(o, "copy_ms"));
		fputs("; computing them: ", stdout);
		put_ms(pfx_ctl_real(o, "compute_ms"));
		printf("; better: %s\n", pfx_ctl_str(o, "better"));
	}
}

static int tell_explain(const struct pfx_ctl *ctl, const json_t *reply)
{
	const json_t *spans = json_object_get(reply, "spans");
	const json_t *elsewhere = json_object_get(reply, "elsewhere");
	const json_t *flight = json_object_get(reply, "in_flight");

	if (json_object_get(reply, "request") != NULL) {
		put_request(reply);
	}
	printf("prompt of %lld tokens:\n", pfx_ctl_int(reply, "prompt_tokens"));
	for (size_t i = 0; i < json_array_size(spans); i++) {
		const json_t *s = json_array_get(spans, i);

		printf("  %-16s %lld (from %lld on)\n", pfx_ctl_str(s, "tier"),
			pfx_ctl_int(s, "to") - pfx_ctl_int(s, "from"), pfx_ctl_int(s, "from"));
	}
	put_miss(json_object_get(reply, "miss"));
	put_estimate(json_object_get(reply, "estimate"));
	if (json_is_object(flight)) {
		printf("request %lld is computing it up to token %lld\n", pfx_ctl_int(flight, "request"),
			pfx_ctl_int(flight, "tokens"));
	}
	for (size_t i = 0; i < json_array_size(elsewhere); i++) {
		const json_t *o = json_array_get(elsewhere, i);

		printf("%lld tokens of it are cached in ", pfx_ctl_int(o, "tokens"));
		put_owner(o);
		puts("");
	}
	return 0;
}

/* ---- trace ---- */

static void fill_trace(struct pfx_ctl *ctl)
{
	const char *action = strchr(ctl->command->name, ' ') + 1;
	char here[PATH_MAX];
	const char *path;
	struct pfx_buf full = PFX_BUF_INIT;

	json_object_set_new(ctl->fields, "action", json_string(action));
	if (strcmp(action, "start") != 0) {
		if (ctl->n_words > 0) {
			pfx_ctl_die("%s takes no words", ctl->command->name);
		}
		return;
	}
	path = pfx_ctl_word(ctl, "the name of a file that is not there yet");
	/* The server wants it absolute: it may run elsewhere. */
	if (path[0] != '/' && getcwd(here, sizeof(here)) != NULL) {
		pfx_buf_addf(&full, "%s/", here);
	}
	pfx_buf_adds(&full, path);
	json_object_set_new(ctl->fields, "path", json_string(full.data));
	pfx_buf_free(&full);
}

static int tell_trace(const struct pfx_ctl *ctl, const json_t *reply)
{
	const char *error = pfx_ctl_str(reply, "error");

	printf("%s", pfx_ctl_str(reply, "state"));
	if (json_is_string(json_object_get(reply, "path"))) {
		printf(" %s: requests %lld, ", pfx_ctl_str(reply, "path"), pfx_ctl_int(reply, "records"));
		pfx_ctl_put_bytes(pfx_ctl_int(reply, "bytes"));
		fputs(" of at most ", stdout);
		pfx_ctl_put_bytes(pfx_ctl_int(reply, "max_bytes"));
	}
	if (pfx_ctl_int(reply, "dropped") > 0) {
		printf(", %lld dropped", pfx_ctl_int(reply, "dropped"));
	}
	puts("");
	if (*error != 0) {
		puts(error);
		return PFX_CTL_NOT_OK;
	}
	return 0;
}

static const struct pfx_ctl_command commands[] = {
	{ "hits", "hits", NULL, tell_hits, "hit rates, beside what an unlimited cache would reach",
		NULL },
	{ "top", "top", NULL, NULL, "what runs, live (q quits; --json: a line a second)", pfx_ctl_top },
	{ "tree", "tree", fill_tree, tell_tree, "what is cached, or what of it is below a prompt",
		NULL },
	{ "explain", "explain", fill_explain, tell_explain,
		"why a request (by number) or a prompt misses", NULL },
	{ "trace start", "trace", fill_trace, tell_trace, "record the traffic to FILE, as keyed hashes",
		NULL },
	{ "trace stop", "trace", fill_trace, tell_trace, "complete the trace's file", NULL },
	{ "trace status", "trace", fill_trace, tell_trace, "how far the trace is", NULL },
	{ 0 },
};

static const struct pfx_ctl_option options[] = {
	{ "delay", 0, "SECONDS", PFX_CTL_REAL, NULL, "top: between two looks (1)" },
	{ "count", 0, "N", PFX_CTL_INT, NULL, "top: end after N looks" },
	{ "minutes", 0, "N", PFX_CTL_INT, "minutes", "hits: the last N minutes, one by one" },
	{ "names", 0, "N", PFX_CTL_INT, "names", "hits: N namespaces and N named prefixes" },
	{ "prefixes", 0, "N", PFX_CTL_INT, "prefixes", "hits: the N hottest prefixes" },
	{ "text", 0, NULL, PFX_CTL_TRUE, "text", "hits, tree: show text" },
	{ "depth", 0, "N", PFX_CTL_INT, "depth", "tree: only N levels" },
	{ "nodes", 0, "N", PFX_CTL_INT, "nodes", "tree: at most N nodes" },
	{ "min-tokens", 0, "N", PFX_CTL_INT, "min_tokens", "tree: no leaves with fewer tokens" },
	{ "min-hits", 0, "N", PFX_CTL_INT, "min_hits", "tree: nothing with fewer hits" },
	{ "max-bytes", 0, "SIZE", PFX_CTL_SIZE, "max_bytes",
		"trace start: end the trace at this size" },
	{ 0 },
};

const struct pfx_ctl_group pfx_ctl_view = { "The operator's view", commands, "View", options };
