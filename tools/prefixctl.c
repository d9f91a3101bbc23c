/*
 * prefixctl: one command to a running prefixd. A command is a row of a table: how its
 * request is built from the options, and how its reply is told to people. --json hands the
 * server's lines through as they come.
 */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "net/client.h"

enum { EXIT_NOT_OK = 1, EXIT_USAGE = 2, EXIT_CONNECTION = 3, EXIT_SERVER = 4, EXIT_INTERRUPTED = 130 };

const char *argp_program_version = "prefixctl " PACKAGE_VERSION;

struct command;

struct request {
	const char *server;
	int raw; /* --json */
	const struct command *command;
	json_t *fields;   /* what the options ask for */
	json_t *stop;     /* of fields */
	const char *file, *messages, *system;
	int chat;
	char **words; /* behind the command */
	int n_words;
	int timeout_ms;
};

struct command {
	const char *name, *op;
	int (*fill)(struct request *r); /* adds what the op needs; NULL: nothing */
	int (*tell)(const json_t *reply); /* prints the last line; an exit status */
	const char *help;
};

__attribute__((format(printf, 1, 2), noreturn))
static void die_usage(const char *fmt, ...)
{
	va_list ap;

	fputs("prefixctl: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs(" (see prefixctl --help)\n", stderr);
	exit(EXIT_USAGE);
}

/* ---- input ---- */

static void read_file(FILE *f, const char *name, struct pfx_buf *out)
{
	for (;;) {
		char *to = pfx_buf_room(out, 65536);
		size_t n = to == NULL ? 0 : fread(to, 1, 65536, f);

		out->len += n;
		if (n == 0) {
			break;
		}
	}
	if (ferror(f) || out->oom) {
		die_usage("cannot read %s", name);
	}
}

/* The text to work on: the words, or a file, or standard input. */
static json_t *input_text(const struct request *r)
{
	struct pfx_buf b = PFX_BUF_INIT;
	json_t *text;

	if (r->file != NULL && strcmp(r->file, "-") != 0) {
		FILE *f = fopen(r->file, "rb");

		if (f == NULL) {
			die_usage("cannot open %s: %s", r->file, strerror(errno));
		}
		read_file(f, r->file, &b);
		fclose(f);
	} else if (r->n_words > 0 && r->file == NULL) {
		for (int i = 0; i < r->n_words; i++) {
			pfx_buf_adds(&b, i == 0 ? "" : " ");
			pfx_buf_adds(&b, r->words[i]);
		}
	} else {
		read_file(stdin, "standard input", &b);
	}
	text = json_stringn(b.data == NULL ? "" : b.data, b.len);
	pfx_buf_free(&b);
	if (text == NULL) {
		die_usage("the text is not UTF-8");
	}
	return text;
}

static json_t *message(const char *role, json_t *content)
{
	return json_pack("{s:s,s:o}", "role", role, "content", content);
}

/* Sets messages and true when the options ask for a conversation. */
static int fill_messages(struct request *r)
{
	json_error_t why;
	json_t *list;

	if (r->messages != NULL) {
		list = strcmp(r->messages, "-") == 0 ? json_loadf(stdin, JSON_ALLOW_NUL, &why)
			: json_load_file(r->messages, JSON_ALLOW_NUL, &why);
		if (list == NULL) {
			die_usage("%s: %s (line %d)", r->messages, why.text, why.line);
		}
	} else if (r->chat || r->system != NULL) {
		list = json_array();
		if (r->system != NULL) {
			json_array_append_new(list, message("system", json_string(r->system)));
		}
		json_array_append_new(list, message("user", input_text(r)));
	} else {
		return 0;
	}
	json_object_set_new(r->fields, "messages", list);
	return 1;
}

static int fill_prompt(struct request *r)
{
	if (!fill_messages(r)) {
		json_object_set_new(r->fields, "prompt", input_text(r));
	}
	return 0;
}

static int fill_text(struct request *r)
{
	if (!fill_messages(r)) {
		json_object_set_new(r->fields, "text", input_text(r));
	}
	return 0;
}

static int fill_render(struct request *r)
{
	r->chat = 1;
	return fill_messages(r) ? 0 : -EINVAL;
}

static int fill_tokens(struct request *r)
{
	json_t *ids = json_array();
	const char *text;
	json_t *words;
	char *end;

	words = input_text(r);
	text = json_string_value(words);
	while (*(text += strspn(text, " \t\r\n,[]")) != 0) {
		errno = 0;
		json_array_append_new(ids, json_integer(strtoll(text, &end, 10)));
		if (end == text || errno != 0) {
			die_usage("%.20s is not a token id", text);
		}
		text = end;
	}
	json_decref(words);
	json_object_set_new(r->fields, "tokens", ids);
	return 0;
}

static int fill_cancel(struct request *r)
{
	char *end;
	long long n = r->n_words == 1 ? strtoll(r->words[0], &end, 10) : 0;

	if (r->n_words != 1 || n < 1 || *end != 0) {
		die_usage("cancel takes a request's number");
	}
	json_object_set_new(r->fields, "request", json_integer(n));
	return 0;
}

/* ---- output ---- */

static double real_of(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static long long int_of(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

static void tell_usage(const json_t *done)
{
	const json_t *usage = json_object_get(done, "usage");
	const json_t *timing = json_object_get(done, "timing");
	const json_t *miss = json_object_get(done, "miss");
	const char *finish = json_string_value(json_object_get(done, "finish"));

	fprintf(stderr, "%s: prompt %lld (cached %lld, computed %lld), completion %lld", finish,
		int_of(usage, "prompt_tokens"), int_of(usage, "cached_tokens"),
		int_of(usage, "computed_tokens"), int_of(usage, "completion_tokens"));
	if (json_is_number(json_object_get(timing, "ttft_ms"))) {
		fprintf(stderr, ", first token %.2f ms", real_of(timing, "ttft_ms"));
	}
	fprintf(stderr, ", total %.2f ms", real_of(timing, "total_ms"));
	if (json_is_object(miss)) {
		fprintf(stderr, "; missed from token %lld on: %s", int_of(miss, "at_token"),
			json_string_value(json_object_get(miss, "reason")));
	}
	fputs("\n", stderr);
}

static int tell_done(const json_t *reply)
{
	fflush(stdout);
	tell_usage(reply);
	return 0;
}

static int tell_score(const json_t *reply)
{
	const json_t *list = json_object_get(reply, "logprobs");
	double sum = 0;

	for (size_t i = 0; i < json_array_size(list); i++) {
		double lp = json_number_value(json_array_get(list, i));

		sum += lp;
		printf("%.6f\n", lp);
	}
	fflush(stdout);
	if (json_array_size(list) > 0) {
		fprintf(stderr, "sum %.6f, mean %.6f\n", sum, sum / (double)json_array_size(list));
	}
	tell_usage(reply);
	return 0;
}

static int tell_tokens(const json_t *reply)
{
	const json_t *list = json_object_get(reply, "tokens");

	for (size_t i = 0; i < json_array_size(list); i++) {
		printf("%s%lld", i == 0 ? "" : " ", json_integer_value(json_array_get(list, i)));
	}
	puts("");
	return 0;
}

static int tell_text(const json_t *reply)
{
	const json_t *text = json_object_get(reply, "text");

	fwrite(json_string_value(text), 1, json_string_length(text), stdout);
	if (isatty(STDOUT_FILENO)) {
		puts("");
	}
	return 0;
}

/* name  value, one a line; what is nested gets dotted names. */
static void tell_fields(const json_t *o, const char *prefix)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)o, key, v) {
		char name[256];

		snprintf(name, sizeof(name), "%s%s%s", prefix, *prefix == 0 ? "" : ".", key);
		if (json_is_object(v)) {
			tell_fields(v, name);
		} else if (json_is_string(v)) {
			printf("%-40s %s\n", name, json_string_value(v));
		} else if (strcmp(name, "id") != 0) {
			char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

			printf("%-40s %s\n", name, text);
			free(text);
		}
	}
}

static int tell_all(const json_t *reply)
{
	json_t *copy = json_copy((json_t *)reply);

	json_object_del(copy, "event");
	tell_fields(copy, "");
	json_decref(copy);
	return 0;
}

static int tell_event(const json_t *reply)
{
	puts(json_string_value(json_object_get(reply, "event")));
	return 0;
}

static int tell_check(const json_t *reply)
{
	const json_t *problems = json_object_get(reply, "problems");

	if (json_is_true(json_object_get(reply, "ok"))) {
		puts("ok");
		return 0;
	}
	for (size_t i = 0; i < json_array_size(problems); i++) {
		puts(json_string_value(json_array_get(problems, i)));
	}
	return EXIT_NOT_OK;
}

static int tell_flush(const json_t *reply)
{
	const json_t *blocks = json_object_get(reply, "blocks");

	printf("flushed blocks: device %lld, host %lld, disk %lld; in use %lld\n",
		int_of(blocks, "device"), int_of(blocks, "host"), int_of(blocks, "disk"),
		int_of(reply, "in_use"));
	return 0;
}

static const struct command commands[] = {
	{ "ping", "ping", NULL, tell_event, "say pong" },
	{ "hello", "hello", NULL, tell_all, "version, model, backend and limits" },
	{ "gen", "generate", fill_prompt, tell_done, "generate; the text to standard output" },
	{ "warm", "warm", fill_prompt, tell_done, "compute a prompt's prefix and keep it" },
	{ "score", "score", fill_prompt, tell_score, "log-probability of each of a text's tokens" },
	{ "render", "render", fill_render, tell_text, "what the chat template makes of messages" },
	{ "tokenize", "tokenize", fill_text, tell_tokens, "a text's token ids" },
	{ "detokenize", "detokenize", fill_tokens, tell_text, "the text of token ids" },
	{ "stats", "stats", NULL, tell_all, "counters" },
	{ "check", "check", NULL, tell_check, "walk all of the cache's invariants" },
	{ "flush", "flush", NULL, tell_flush, "forget everything that is cached" },
	{ "cancel", "cancel", fill_cancel, tell_event, "stop a request, by its number" },
	{ "drain", "drain", NULL, tell_event, "finish what runs, take nothing new, end the server" },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* ---- options ---- */

enum { O_JSON = 256, O_TOP_K, O_TOP_P, O_MIN_P, O_PENALTY, O_SEED, O_STOP, O_IGNORE_EOS, O_LOGPROBS,
	O_DIGEST, O_PROGRESS, O_NAMESPACE, O_NO_STORE, O_DEADLINE, O_SYSTEM, O_SPECIAL, O_FROM,
	O_TIMEOUT };

static const struct argp_option options[] = {
	{ "server", 's', "ADDR", 0, "HOST:PORT or unix:PATH (default: $PREFIXD_SERVER, else "
		"127.0.0.1:7077)", 1 },
	{ "json", O_JSON, NULL, 0, "The server's lines as they come", 1 },
	{ "timeout", O_TIMEOUT, "SECONDS", 0, "Give up when no line comes for so long", 1 },
	{ NULL, 0, NULL, 0, "Input", 2 },
	{ "file", 'f', "FILE", 0, "The prompt or text from a file; - is standard input", 2 },
	{ "chat", 'c', NULL, 0, "The prompt is a user's message, not plain text", 2 },
	{ "system", O_SYSTEM, "TEXT", 0, "A system message in front of it; implies --chat", 2 },
	{ "messages", 'm', "FILE", 0, "A JSON array of messages; - is standard input", 2 },
	{ "namespace", O_NAMESPACE, "TEXT", 0, "Share the cache only with requests that say the same",
		2 },
	{ "special", O_SPECIAL, NULL, 0, "tokenize: read control tokens in the text", 2 },
	{ NULL, 0, NULL, 0, "Generation", 3 },
	{ "max-tokens", 'n', "N", 0, "Most tokens of the reply", 3 },
	{ "temperature", 't', "T", 0, "0, the default, takes the best token always", 3 },
	{ "top-k", O_TOP_K, "N", 0, "Only the N best tokens", 3 },
	{ "top-p", O_TOP_P, "P", 0, "Only the best tokens that make up P together", 3 },
	{ "min-p", O_MIN_P, "P", 0, "Only tokens at least P times as likely as the best", 3 },
	{ "repeat-penalty", O_PENALTY, "X", 0, "Makes tokens of the context less likely", 3 },
	{ "seed", O_SEED, "N", 0, "The same seed gives the same reply", 3 },
	{ "stop", O_STOP, "TEXT", 0, "End before this text; may be repeated", 3 },
	{ "ignore-eos", O_IGNORE_EOS, NULL, 0, "Go on behind the end-of-turn token", 3 },
	{ "logprobs", O_LOGPROBS, "N", 0, "Log-probabilities and the N best (with --json)", 3 },
	{ "digest", O_DIGEST, NULL, 0, "A digest of each position's logits (with --json)", 3 },
	{ "from", O_FROM, "N", 0, "score: the first position wanted", 3 },
	{ "no-store", O_NO_STORE, NULL, 0, "Leave nothing in the cache", 3 },
	{ "progress", O_PROGRESS, NULL, 0, "Tell how far the prompt is", 3 },
	{ "deadline-ms", O_DEADLINE, "N", 0, "Give up after so long", 3 },
	{ 0 },
};

static const struct {
	int key;
	const char *field;
	char type; /* i integer, f number, s string, t true, n false */
} fields[] = {
	{ 'n', "max_tokens", 'i' }, { 't', "temperature", 'f' }, { O_TOP_K, "top_k", 'i' },
	{ O_TOP_P, "top_p", 'f' }, { O_MIN_P, "min_p", 'f' }, { O_PENALTY, "repeat_penalty", 'f' },
	{ O_SEED, "seed", 'i' }, { O_IGNORE_EOS, "ignore_eos", 't' }, { O_LOGPROBS, "logprobs", 'i' },
	{ O_DIGEST, "digest", 't' }, { O_FROM, "from", 'i' }, { O_NO_STORE, "store", 'n' },
	{ O_PROGRESS, "progress", 't' }, { O_DEADLINE, "deadline_ms", 'i' },
	{ O_NAMESPACE, "namespace", 's' }, { O_SPECIAL, "special", 't' },
};

static json_t *value_of(char type, const char *arg, const char *field)
{
	char *end = NULL;
	json_t *v;

	if (type == 't' || type == 'n') {
		return json_boolean(type == 't');
	}
	if (type == 's') {
		v = json_string(arg);
		end = "";
	} else if (type == 'i') {
		errno = 0;
		v = json_integer(strtoll(arg, &end, 10));
	} else {
		v = json_real(strtod(arg, &end));
	}
	if (v == NULL || end == arg || *end != 0 || (type == 'i' && errno != 0)) {
		json_decref(v);
		die_usage("%s cannot be %s", field, arg);
	}
	return v;
}

static int set_field(struct request *r, int key, const char *arg)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (fields[i].key == key) {
			json_object_set_new(r->fields, fields[i].field,
				value_of(fields[i].type, arg, fields[i].field));
			return 0;
		}
	}
	return ARGP_ERR_UNKNOWN;
}

static void set_word(struct request *r, struct argp_state *state, char *arg)
{
	if (r->command != NULL) {
		r->words[r->n_words++] = arg;
		return;
	}
	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(commands[i].name, arg) == 0) {
			r->command = &commands[i];
		}
	}
	if (r->command == NULL) {
		argp_error(state, "unknown command %s", arg);
	}
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct request *r = state->input;

	switch (key) {
	case 's':
		r->server = arg;
		return 0;
	case O_JSON:
		r->raw = 1;
		return 0;
	case O_TIMEOUT:
		r->timeout_ms = (int)(strtod(arg, NULL) * 1000);
		return 0;
	case 'f':
		r->file = arg;
		return 0;
	case 'c':
		r->chat = 1;
		return 0;
	case O_SYSTEM:
		r->system = arg;
		return 0;
	case 'm':
		r->messages = arg;
		return 0;
	case O_STOP:
		json_array_append_new(r->stop, value_of('s', arg, "stop"));
		return 0;
	case ARGP_KEY_ARG:
		set_word(r, state, arg);
		return 0;
	case ARGP_KEY_END:
		if (r->command == NULL) {
			argp_error(state, "a command is needed");
		}
		return 0;
	default:
		return set_field(r, key, arg);
	}
}

static void read_command(struct request *r, int argc, char **argv)
{
	struct pfx_buf doc = PFX_BUF_INIT;
	struct argp argp = { options, on_option, "COMMAND [TEXT...]", NULL, NULL, NULL, NULL };

	pfx_buf_adds(&doc, "Talks to a running prefixd.\n\nCommands:\n");
	for (size_t i = 0; i < N_COMMANDS; i++) {
		pfx_buf_addf(&doc, "  %-11s %s\n", commands[i].name, commands[i].help);
	}
	pfx_buf_adds(&doc, "\vText comes from the words behind the command, from --file, or else from "
		"standard input. Ctrl-C cancels.\n\nExit status: 0 done; 1 check found problems; 2 wrong "
		"usage; 3 no connection; 4 the server answered with an error; 130 cancelled by Ctrl-C.");
	argp.doc = doc.data;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, r);
	pfx_buf_free(&doc);
}

/* ---- the conversation ---- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	if (interrupted) {
		_exit(EXIT_INTERRUPTED);
	}
	interrupted = 1;
}

static void put_raw(const char *line, size_t n)
{
	fwrite(line, 1, n, stdout);
	fputc('\n', stdout);
	fflush(stdout);
}

static void tell_token(const json_t *reply, int *open_line)
{
	const json_t *text = json_object_get(reply, "text");
	size_t n = json_string_length(text);

	if (n > 0) {
		fwrite(json_string_value(text), 1, n, stdout);
		fflush(stdout);
		*open_line = json_string_value(text)[n - 1] != '\n';
	}
}

static int tell_error(const json_t *reply)
{
	fprintf(stderr, "prefixctl: %s: %s\n", json_string_value(json_object_get(reply, "code")),
		json_string_value(json_object_get(reply, "message")));
	return EXIT_SERVER;
}

/* One line of the server's. -1: more will come; else the exit status. */
static int take_line(const struct request *r, const char *line, size_t n, int *open_line)
{
	json_t *reply = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
	const char *event = json_string_value(json_object_get(reply, "event"));
	int status = -1, error = event != NULL && strcmp(event, "error") == 0;

	if (event == NULL) {
		fprintf(stderr, "prefixctl: the server's line is no reply: %.200s\n", line);
		json_decref(reply);
		return EXIT_CONNECTION;
	}
	if (json_integer_value(json_object_get(reply, "id")) == 2) {
		/* The answer to our cancel; the request itself tells how it ended. */
		json_decref(reply);
		return -1;
	}
	if (r->raw) {
		put_raw(line, n);
	}
	if (strcmp(event, "token") == 0) {
		if (!r->raw) {
			tell_token(reply, open_line);
		}
	} else if (strcmp(event, "prefill") == 0) {
		if (!r->raw) {
			fprintf(stderr, "prefill %lld of %lld\n", int_of(reply, "done"), int_of(reply, "total"));
		}
	} else if (r->raw) {
		status = error ? EXIT_SERVER : json_is_false(json_object_get(reply, "ok")) ? EXIT_NOT_OK : 0;
	} else {
		if (*open_line) {
			puts("");
		}
		status = error ? tell_error(reply) : r->command->tell(reply);
	}
	json_decref(reply);
	return status;
}

static int converse(struct pfx_client *c, const struct request *r)
{
	static const char cancel[] = "{\"op\":\"cancel\",\"id\":2,\"target\":1}";
	const int slice_ms = 500; /* a signal that comes just before the wait is seen this late */
	int asked = 0, status = -1, open_line = 0, waited_ms = 0;
	int rc = pfx_client_send_json(c, r->fields);

	while (rc == 0 && status < 0) {
		const char *line;
		size_t n;

		if (interrupted && !asked) {
			asked = 1;
			rc = pfx_client_send(c, cancel, sizeof(cancel) - 1);
			continue;
		}
		rc = pfx_client_recv(c, &line, &n, slice_ms);
		if (rc == -ETIMEDOUT && (r->timeout_ms < 0 || (waited_ms += slice_ms) < r->timeout_ms)) {
			rc = 0;
		} else if (rc == -EINTR) {
			rc = 0;
		} else if (rc == 0) {
			waited_ms = 0;
			status = take_line(r, line, n, &open_line);
		}
	}
	if (rc < 0) {
		fprintf(stderr, "prefixctl: %s\n", rc == -EPIPE ? "the server closed the connection"
			: strerror(-rc));
		return EXIT_CONNECTION;
	}
	return asked && status == 0 ? EXIT_INTERRUPTED : status;
}

static int run(struct request *r)
{
	struct pfx_client *c;
	char err[256];
	int status;

	json_object_set_new(r->fields, "id", json_integer(1));
	json_object_set_new(r->fields, "op", json_string(r->command->op));
	if (json_array_size(r->stop) > 0) {
		json_object_set(r->fields, "stop", r->stop);
	}
	if (r->command->fill != NULL) {
		r->command->fill(r);
	} else if (r->n_words > 0) {
		die_usage("%s takes no words", r->command->name);
	}
	if (pfx_client_open(&c, r->server, err, sizeof(err)) < 0) {
		fprintf(stderr, "prefixctl: %s\n", err);
		return EXIT_CONNECTION;
	}
	status = converse(c, r);
	pfx_client_close(c);
	return status;
}

int main(int argc, char **argv)
{
	struct request r = { .fields = json_object(), .stop = json_array(), .timeout_ms = -1 };
	struct sigaction sa = { .sa_handler = on_interrupt };
	int status;

	r.server = getenv("PREFIXD_SERVER");
	if (r.server == NULL || *r.server == 0) {
		r.server = "127.0.0.1:7077";
	}
	r.words = pfx_xcalloc((size_t)argc, sizeof(*r.words));
	read_command(&r, argc, argv);
	sigaction(SIGINT, &sa, NULL);
	status = run(&r);
	json_decref(r.fields);
	json_decref(r.stop);
	pfx_free(r.words);
	if (fflush(stdout) != 0) {
		fprintf(stderr, "prefixctl: cannot write: %s\n", strerror(errno));
		return EXIT_CONNECTION;
	}
	return status;
}
