/* prefixctl: the conversation: one request, its lines, and a Ctrl-C that cancels it. */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/client.h"
#include "tools/ctl.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	if (interrupted) {
		_exit(PFX_CTL_INTERRUPTED);
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
	return PFX_CTL_SERVER;
}

/* What --json ends with: as the text would. */
static int raw_status(const json_t *reply)
{
	const char *state = pfx_ctl_str(reply, "state"), *what = pfx_ctl_str(reply, "do");

	return json_is_false(json_object_get(reply, "ok")) || strcmp(state, "failed") == 0 ||
		(strcmp(what, "verify") == 0 && pfx_ctl_int(reply, "damaged") > 0) ? PFX_CTL_NOT_OK : 0;
}

/* One line of the server's. -1: more will come; else the exit status. */
static int take_line(const struct pfx_ctl *ctl, const char *line, size_t n, int *open_line)
{
	json_t *reply = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
	const char *event = json_string_value(json_object_get(reply, "event"));
	int status = -1, error = event != NULL && strcmp(event, "error") == 0;

	if (event == NULL) {
		fprintf(stderr, "prefixctl: the server's line is no reply: %.200s\n", line);
		json_decref(reply);
		return PFX_CTL_CONNECTION;
	}
	if (json_integer_value(json_object_get(reply, "id")) == 2) {
		/* The answer to our cancel; the request itself tells how it ended. */
		json_decref(reply);
		return -1;
	}
	if (ctl->raw) {
		put_raw(line, n);
	}
	if (strcmp(event, "token") == 0) {
		if (!ctl->raw) {
			tell_token(reply, open_line);
		}
	} else if (strcmp(event, "prefill") == 0) {
		if (!ctl->raw) {
			fprintf(stderr, "prefill %lld of %lld\n", pfx_ctl_int(reply, "done"),
				pfx_ctl_int(reply, "total"));
		}
	} else if (ctl->raw) {
		status = error ? PFX_CTL_SERVER : raw_status(reply);
	} else {
		if (*open_line) {
			puts("");
		}
		status = error ? tell_error(reply) : ctl->command->tell(ctl, reply);
	}
	json_decref(reply);
	return status;
}

static int converse(struct pfx_client *c, const struct pfx_ctl *ctl)
{
	static const char cancel[] = "{\"op\":\"cancel\",\"id\":2,\"target\":1}";
	const int slice_ms = 500; /* a signal that comes just before the wait is seen this late */
	int asked = 0, status = -1, open_line = 0, waited_ms = 0;
	int rc = pfx_client_send_json(c, ctl->fields);

	while (rc == 0 && status < 0) {
		const char *line;
		size_t n;

		if (interrupted && !asked) {
			asked = 1;
			rc = pfx_client_send(c, cancel, sizeof(cancel) - 1);
			continue;
		}
		rc = pfx_client_recv(c, &line, &n, slice_ms);
		if (rc == -ETIMEDOUT &&
			(ctl->timeout_ms < 0 || (waited_ms += slice_ms) < ctl->timeout_ms)) {
			rc = 0;
		} else if (rc == -EINTR) {
			rc = 0;
		} else if (rc == 0) {
			waited_ms = 0;
			status = take_line(ctl, line, n, &open_line);
		}
	}
	if (rc < 0) {
		fprintf(stderr, "prefixctl: %s\n", rc == -EPIPE ? "the server closed the connection"
			: strerror(-rc));
		return PFX_CTL_CONNECTION;
	}
	return asked && status == 0 ? PFX_CTL_INTERRUPTED : status;
}

int pfx_ctl_interrupted(void)
{
	return interrupted;
}

int pfx_ctl_run(struct pfx_ctl *ctl)
{
	struct sigaction sa = { .sa_handler = on_interrupt };
	struct pfx_client *c;
	char err[256];
	int status;

	sigaction(SIGINT, &sa, NULL);
	json_object_set_new(ctl->fields, "id", json_integer(1));
	json_object_set_new(ctl->fields, "op", json_string(ctl->command->op));
	if (ctl->command->fill != NULL) {
		ctl->command->fill(ctl);
	} else if (ctl->n_words > 0) {
		pfx_ctl_die("%s takes no words", ctl->command->name);
	}
	if (pfx_client_open(&c, ctl->server, err, sizeof(err)) < 0) {
		fprintf(stderr, "prefixctl: %s\n", err);
		return PFX_CTL_CONNECTION;
	}
	status = ctl->command->talk != NULL ? ctl->command->talk(ctl, c) : converse(c, ctl);
	pfx_client_close(c);
	return status;
}
