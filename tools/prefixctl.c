/*
 * prefixctl: one command to a running prefixd. This file reads the command line; what there
 * is to say stands in the groups (ctl.h). --json hands the server's lines through as they
 * come.
 */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "tools/ctl.h"

const char *argp_program_version = "prefixctl " PACKAGE_VERSION;

static const struct pfx_ctl_group *const groups[] = { &pfx_ctl_text, &pfx_ctl_keep,
	&pfx_ctl_view, &pfx_ctl_admin, &pfx_ctl_store };

#define N_GROUPS (sizeof(groups) / sizeof(groups[0]))

void pfx_ctl_die(const char *fmt, ...)
{
	va_list ap;

	fputs("prefixctl: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs(" (see prefixctl --help)\n", stderr);
	exit(PFX_CTL_USAGE);
}

/* ---- options ---- */

enum { O_JSON = 256, O_TIMEOUT, O_SYSTEM, O_GROUPS };

/* Those that every command has, or that say where its text comes from. */
static const struct argp_option common[] = {
	{ "server", 's', "ADDR", 0, "HOST:PORT or unix:PATH (default: $PREFIXD_SERVER, else "
		"127.0.0.1:7077)", 1 },
	{ "json", O_JSON, NULL, 0, "The server's lines as they come", 1 },
	{ "timeout", O_TIMEOUT, "SECONDS", 0, "Give up when no line comes for so long", 1 },
	{ NULL, 0, NULL, 0, "Input", 2 },
	{ "file", 'f', "FILE", 0, "The prompt or text from a file; - is standard input", 2 },
	{ "chat", 'c', NULL, 0, "The prompt is a user's message, not plain text", 2 },
	{ "system", O_SYSTEM, "TEXT", 0, "A system message in front of it; implies --chat", 2 },
	{ "messages", 'm', "FILE", 0, "A JSON array of messages; - is standard input", 2 },
};

static const struct pfx_ctl_option shared[] = {
	{ "namespace", 0, "TEXT", PFX_CTL_TEXT, "namespace",
		"Share the cache only with requests that say the same" },
	{ 0 },
};

static const struct pfx_ctl_group input_group = { NULL, NULL, NULL, shared };

#define N_COMMON (sizeof(common) / sizeof(common[0]))

/* A group's options have the keys from O_GROUPS on, counted through all groups. */
static const struct pfx_ctl_option *option_of(int key)
{
	int at = O_GROUPS;

	for (size_t g = 0; g <= N_GROUPS; g++) {
		const struct pfx_ctl_option *o = g == N_GROUPS ? shared : groups[g]->options;

		for (; o != NULL && o->name != NULL; o++, at++) {
			if (key == at || (o->letter != 0 && key == o->letter)) {
				return o;
			}
		}
	}
	return NULL;
}

static struct argp_option *add_group(struct argp_option *out, const struct pfx_ctl_group *g,
	int *key, int order)
{
	if (g->options != NULL && g->options_title != NULL) {
		*out++ = (struct argp_option){ .doc = g->options_title, .group = order };
	}
	for (const struct pfx_ctl_option *o = g->options; o != NULL && o->name != NULL; o++, ++*key) {
		*out++ = (struct argp_option){ .name = o->name, .key = o->letter != 0 ? o->letter : *key,
			.arg = o->arg, .doc = o->help, .group = order };
	}
	return out;
}

/* The table that argp reads, made of what is common and of the groups'. */
static struct argp_option *all_options(void)
{
	struct argp_option *all, *out;
	size_t n = N_COMMON + sizeof(shared) / sizeof(shared[0]) + 1;
	int key = O_GROUPS;

	for (size_t g = 0; g < N_GROUPS; g++) {
		n++;
		for (const struct pfx_ctl_option *o = groups[g]->options; o != NULL && o->name != NULL;
			o++) {
			n++;
		}
	}
	out = all = pfx_xcalloc(n, sizeof(*all));
	memcpy(out, common, sizeof(common));
	out += N_COMMON;
	for (size_t g = 0; g < N_GROUPS; g++) {
		out = add_group(out, groups[g], &key, (int)g + 3);
	}
	add_group(out, &input_group, &key, 2);
	return all;
}

static json_t *size_of(const char *arg, char **end)
{
	static const char units[] = "KMGT";
	double n = strtod(arg, end);
	const char *unit = **end == 0 ? NULL : strchr(units, **end);

	if (unit != NULL) {
		++*end;
		n *= (double)(1ull << 10 * (unit - units + 1));
	}
	return json_integer(n >= 0 && n < 9e18 ? (json_int_t)n : -1);
}

/* As milliseconds; NULL: it is no number, negative, or longer than anybody lives. */
static json_t *seconds_of(const char *arg, char **end)
{
	double s = strtod(arg, end);

	return s >= 0 && s <= 1e10 ? json_integer((json_int_t)(s * 1000 + 0.5)) : NULL;
}

static json_t *value_of(const struct pfx_ctl_option *o, const char *arg)
{
	char *end = NULL;
	json_t *v;

	errno = 0;
	switch (o->type) {
	case PFX_CTL_TRUE:
	case PFX_CTL_FALSE:
		return json_boolean(o->type == PFX_CTL_TRUE);
	case PFX_CTL_TEXT:
	case PFX_CTL_LIST:
		v = json_string(arg);
		end = "";
		break;
	case PFX_CTL_INT:
		v = json_integer(strtoll(arg, &end, 10));
		break;
	case PFX_CTL_SIZE:
		v = size_of(arg, &end);
		break;
	case PFX_CTL_SECONDS:
		v = seconds_of(arg, &end);
		break;
	default:
		v = json_real(strtod(arg, &end));
	}
	if (v == NULL || end == arg || *end != 0 || (o->type == PFX_CTL_INT && errno != 0)) {
		json_decref(v);
		pfx_ctl_die("%s cannot be %s", o->name, arg);
	}
	return v;
}

static int set_field(struct pfx_ctl *ctl, int key, const char *arg)
{
	const struct pfx_ctl_option *o = option_of(key);
	json_t *into, *v;
	const char *name;

	if (o == NULL) {
		return ARGP_ERR_UNKNOWN;
	}
	into = o->field != NULL ? ctl->fields : ctl->local;
	name = o->field != NULL ? o->field : o->name;
	v = value_of(o, arg);
	if (o->type == PFX_CTL_LIST) {
		if (json_object_get(into, name) == NULL) {
			json_object_set_new(into, name, json_array());
		}
		json_array_append_new(json_object_get(into, name), v);
		return 0;
	}
	json_object_set_new(into, name, v);
	return 0;
}

/* ---- commands ---- */

/* Words of the command's name that the words on the line begin with; 0 when it is another. */
static int names(const struct pfx_ctl_command *c, const struct pfx_ctl *ctl)
{
	const char *space = strchr(c->name, ' ');
	size_t n = space == NULL ? strlen(c->name) : (size_t)(space - c->name);

	if (strlen(ctl->words[0]) != n || memcmp(ctl->words[0], c->name, n) != 0) {
		return 0;
	}
	if (space == NULL) {
		return 1;
	}
	return ctl->n_words > 1 && strcmp(ctl->words[1], space + 1) == 0 ? 2 : 0;
}

/* Complains with the words that may follow, when the first one begins a command of two. */
static void say_second_words(const struct pfx_ctl *ctl, struct argp_state *state)
{
	size_t len = strlen(ctl->words[0]);
	struct pfx_buf b = PFX_BUF_INIT;

	for (size_t g = 0; g < N_GROUPS; g++) {
		for (const struct pfx_ctl_command *c = groups[g]->commands; c->name != NULL; c++) {
			if (strncmp(c->name, ctl->words[0], len) == 0 && c->name[len] == ' ') {
				pfx_buf_addf(&b, "%s%s", b.len == 0 ? "" : ", ", c->name + len + 1);
			}
		}
	}
	if (b.len > 0) {
		argp_error(state, "%s takes one of: %s", ctl->words[0], b.data);
	}
	pfx_buf_free(&b);
}

/* The command that the first words name; of two, the longer one. */
static void find_command(struct pfx_ctl *ctl, struct argp_state *state)
{
	int longest = 0, n;

	if (ctl->n_words == 0) {
		argp_error(state, "a command is needed");
		return;
	}
	for (size_t g = 0; g < N_GROUPS; g++) {
		for (const struct pfx_ctl_command *c = groups[g]->commands; c->name != NULL; c++) {
			n = names(c, ctl);
			if (n > longest) {
				longest = n;
				ctl->command = c;
			}
		}
	}
	if (ctl->command == NULL) {
		say_second_words(ctl, state);
		argp_error(state, "unknown command %s%s%s", ctl->words[0], ctl->n_words > 1 ? " " : "",
			ctl->n_words > 1 ? ctl->words[1] : "");
	}
	ctl->words += longest;
	ctl->n_words -= longest;
}

static int timeout_of(const char *arg)
{
	char *end;
	double s = strtod(arg, &end);

	if (end == arg || *end != 0 || !(s >= 0 && s <= 1e6)) {
		pfx_ctl_die("--timeout is a number of seconds from 0 to 1000000");
	}
	return (int)(s * 1000);
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct pfx_ctl *ctl = state->input;

	switch (key) {
	case 's':
		ctl->server = arg;
		return 0;
	case O_JSON:
		ctl->raw = 1;
		return 0;
	case O_TIMEOUT:
		ctl->timeout_ms = timeout_of(arg);
		return 0;
	case 'f':
		ctl->file = arg;
		return 0;
	case 'c':
		ctl->chat = 1;
		return 0;
	case O_SYSTEM:
		ctl->system = arg;
		return 0;
	case 'm':
		ctl->messages = arg;
		return 0;
	case ARGP_KEY_ARG:
		ctl->words[ctl->n_words++] = arg;
		return 0;
	case ARGP_KEY_END:
		find_command(ctl, state);
		return 0;
	default:
		return set_field(ctl, key, arg);
	}
}

static void read_command(struct pfx_ctl *ctl, int argc, char **argv)
{
	struct pfx_buf doc = PFX_BUF_INIT;
	struct argp_option *options = all_options();
	struct argp argp = { options, on_option, "COMMAND [TEXT...]", NULL, NULL, NULL, NULL };

	pfx_buf_adds(&doc, "Talks to a running prefixd.\n");
	for (size_t g = 0; g < N_GROUPS; g++) {
		pfx_buf_addf(&doc, "\n%s:\n", groups[g]->title);
		for (const struct pfx_ctl_command *c = groups[g]->commands; c->name != NULL; c++) {
			pfx_buf_addf(&doc, "  %-14s %s\n", c->name, c->help);
		}
	}
	pfx_buf_adds(&doc, "\vText comes from the words behind the command, from --file, or else from "
		"standard input. Ctrl-C cancels.\n\nExit status: 0 done; 1 problems (check), damaged records (store verify) or a "
		"failed trace; 2 wrong "
		"usage; 3 no connection; 4 the server answered with an error; 130 cancelled by Ctrl-C.");
	argp.doc = doc.data;
	argp_err_exit_status = PFX_CTL_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, ctl);
	pfx_buf_free(&doc);
	pfx_free(options);
}

int main(int argc, char **argv)
{
	struct pfx_ctl ctl = { .fields = json_object(), .local = json_object(), .timeout_ms = -1 };
	char **words = pfx_xcalloc((size_t)argc, sizeof(*words));
	int status;

	/* Text is UTF-8 whatever the locale says; so are the lines that draw a tree. */
	if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
		setlocale(LC_CTYPE, "C.UTF-8");
	}
	ctl.server = getenv("PREFIXD_SERVER");
	if (ctl.server == NULL || *ctl.server == 0) {
		ctl.server = "127.0.0.1:7077";
	}
	ctl.words = words;
	read_command(&ctl, argc, argv);
	status = pfx_ctl_run(&ctl);
	json_decref(ctl.fields);
	json_decref(ctl.local);
	pfx_free(words);
	if (fflush(stdout) != 0) {
		fprintf(stderr, "prefixctl: cannot write: %s\n", strerror(errno));
		return PFX_CTL_CONNECTION;
	}
	return status;
}
