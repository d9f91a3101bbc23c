/*
 * The server: settings, model, listeners, and out again. Everything of substance lives in
 * engine/ and net/.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "net/server.h"
#include "tools/settings.h"

#define LISTEN_MAX 16

/* What systemd passed and what it wants to know; nothing of it without systemd. */
static int passed_fds(int *fds)
{
#ifdef HAVE_SYSTEMD
	int n = sd_listen_fds(1);

	for (int i = 0; i < n && i < LISTEN_MAX; i++) {
		fds[i] = SD_LISTEN_FDS_START + i;
	}
	return n < 0 ? 0 : n > LISTEN_MAX ? LISTEN_MAX : n;
#else
	(void)fds;
	return 0;
#endif
}

static void notify(const char *state)
{
#ifdef HAVE_SYSTEMD
	sd_notify(0, state);
#else
	(void)state;
#endif
}

static void on_draining(void *arg)
{
	(void)arg;
	notify("STOPPING=1");
}

/* Until the loop runs there is nothing to let finish. */
static void leave(int sig)
{
	(void)sig;
	_exit(0);
}

static void set_signals(void)
{
	struct sigaction sa = { .sa_handler = leave };

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sa.sa_handler = SIG_IGN;
	sigaction(SIGPIPE, &sa, NULL);
	/* A terminal that closes must not take the clients' work with it. */
	sigaction(SIGHUP, &sa, NULL);
}

struct progress {
	int tty;
	uint64_t next_ns;
};

/* A line that is drawn over on a terminal; else one line of log every few seconds. */
static void on_progress(void *arg, const char *what, double done)
{
	struct progress *p = arg;
	uint64_t now = pfx_clock_ns();

	if (p->tty) {
		fprintf(stderr, "\r\033[K%s %3.0f%%%s", what, done * 100, done >= 1 ? "\r\033[K" : "");
	} else if (now >= p->next_ns) {
		pfx_info("prefixd", "loading what=\"%s\" done=%.0f%%", what, done * 100);
		p->next_ns = now + 2000000000u;
	}
}

static enum pfx_saves saves_of(const char *word)
{
	return strcmp(word, "off") == 0 ? PFX_SAVES_OFF
		: strcmp(word, "all") == 0 ? PFX_SAVES_ALL : PFX_SAVES_REUSED;
}

static int open_engine(struct pfx_engine **e, const struct pfx_settings *s, char *err,
	size_t errlen)
{
	struct progress progress = { isatty(STDERR_FILENO), pfx_clock_ns() + 1000000000u };
	struct pfx_engine_opts opts = {
		.model_path = s->model,
		.backend = s->backend,
		.kernels = s->kernels,
		.activations = s->activations,
		.n_threads = s->threads,
		.pin_threads = strcmp(s->pin_threads, "on") == 0,
		.kv_dtype = s->kv_dtype,
		.device_memory = s->device_memory,
		.logits_memory = s->logits_memory,
		.text_memory = s->text_cache,
		.host_memory = s->host_memory,
		.store_path = strcmp(s->store, "off") == 0 ? NULL : s->store,
		.store_size = s->store_size,
		.saves = saves_of(s->save),
		.eviction = strcmp(s->eviction, "lru") == 0 ? PFX_EVICTION_LRU : PFX_EVICTION_DEFAULT,
		.store_replace = s->store_replace,
		.load_wait_ms = s->load_wait_ms,
		.block_tokens = s->block_tokens,
		.chunk_tokens = s->chunk_tokens,
		.step_ms = s->step_ms,
		.max_requests = s->max_requests,
		.queue_max = s->queue,
		.context = s->context,
		.sessions_max = s->max_sessions,
		.sessions_space_max = s->namespace_sessions,
		.session_bytes_max = s->session_memory,
		.session_ttl_ms = s->session_ttl_ms,
		.prefixes_max = s->max_prefixes,
		.prefixes_space_max = s->namespace_prefixes,
		.prefix_bytes_max = s->prefix_memory,
		.pins_max = s->max_pins,
		.pin_ttl_ms = s->pin_ttl_ms,
		.pin_ttl_max_ms = s->pin_ttl_max_ms,
		.chat_template_path = s->chat_template,
		.template_time = s->has_template_time ? &s->template_time : NULL,
		.progress = on_progress,
		.progress_arg = &progress,
	};

	return pfx_engine_open(e, &opts, err, errlen);
}

/* Cuts "a, b" in place; at most LISTEN_MAX pieces. -EINVAL for more. */
static int split(char *list, const char **out)
{
	int n = 0;
	char *save;

	for (char *w = strtok_r(list, ", \t", &save); w != NULL; w = strtok_r(NULL, ", \t", &save)) {
		if (n == LISTEN_MAX) {
			return -EINVAL;
		}
		out[n++] = w;
	}
	return n == 0 ? -EINVAL : n;
}

static int open_server(struct pfx_server **out, struct pfx_settings *s, const char *settings,
	char *err, size_t errlen)
{
	const char *listen[LISTEN_MAX];
	int fds[LISTEN_MAX];
	int n_fds = passed_fds(fds), n = 0;
	struct pfx_server_opts opts;

	/* Sockets from systemd stand for the default address, but not for one that was asked for. */
	if (n_fds == 0 || s->listen_given) {
		n = split(s->listen, listen);
	}
	if (n < 0) {
		snprintf(err, errlen, "--listen takes from 1 to %d addresses", LISTEN_MAX);
		return n;
	}
	pfx_server_opts_init(&opts);
	opts.listen = listen;
	opts.n_listen = (size_t)n;
	opts.fds = fds;
	opts.n_fds = (size_t)n_fds;
	opts.max_connections = s->max_connections;
	opts.max_in_flight = s->max_in_flight;
	opts.max_line = s->max_line;
	opts.max_unread = s->max_unread;
	opts.idle_timeout_ms = s->idle_timeout_ms;
	opts.settings = settings;
	opts.on_draining = on_draining;
	return pfx_server_open(out, &opts, err, errlen);
}

static void announce(const struct pfx_server *server)
{
	const char *address;

	for (size_t i = 0; (address = pfx_server_address(server, i)) != NULL; i++) {
		printf("listening on %s\n", address);
	}
	fflush(stdout);
	notify("READY=1");
}

static int serve(struct pfx_settings *s, char *err, size_t errlen)
{
	struct pfx_server *server = NULL;
	struct pfx_engine *engine = NULL;
	json_t *settings = pfx_settings_json(s);
	char *told = settings == NULL ? NULL : json_dumps(settings, JSON_COMPACT);
	int rc = told == NULL ? pfx_fail(-ENOMEM, err, errlen, "out of memory")
		: open_server(&server, s, told, err, errlen);

	json_decref(settings);
	if (rc == 0) {
		rc = open_engine(&engine, s, err, errlen);
	}
	if (rc == 0) {
		rc = pfx_server_start(server, engine, err, errlen);
	}
	if (rc == 0) {
		announce(server);
		rc = pfx_server_run(server);
	}
	pfx_server_close(server);
	if (rc == 1) {
		/* In a hurry: the engine may be in the middle of a step. */
		fflush(NULL);
		_exit(0);
	}
	pfx_engine_close(engine);
	free(told);
	return rc;
}

int main(int argc, char **argv)
{
	struct pfx_settings settings;
	char err[512] = "";
	int rc;

	set_signals();
	rc = pfx_settings_read(&settings, argc, argv, err, sizeof(err));
	if (rc < 0) {
		fprintf(stderr, "prefixd: %s\n", err);
		return 2;
	}
	if (settings.check_only) {
		puts("ok");
		pfx_settings_free(&settings);
		return 0;
	}
	pfx_log_set_level(settings.log_level);
	json_object_seed(0);
	rc = serve(&settings, err, sizeof(err));
	pfx_settings_free(&settings);
	if (rc < 0) {
		fprintf(stderr, "prefixd: %s\n", err);
		return 1;
	}
	return 0;
}
