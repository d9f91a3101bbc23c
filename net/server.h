#ifndef PFX_NET_SERVER_H
#define PFX_NET_SERVER_H

/*
 * The line protocol's server: listeners, the loop, drain. One thread, the caller of
 * pfx_server_run, does everything but parsing very long lines (net/parser.h); it never waits
 * for anything but its poll. net/README.md tells a connection's life.
 *
 * Order of calls: open binds (so that a taken port is known before a model is loaded), start
 * listens, run serves until drained, close. None of them is thread-safe.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct pfx_server;

struct pfx_server_opts {
	const char *const *listen; /* HOST:PORT or unix:PATH */
	size_t n_listen;
	const int *fds; /* sockets that listen already (socket activation); taken over */
	size_t n_fds;
	uint32_t max_connections;
	uint32_t max_in_flight;   /* requests of a connection */
	size_t max_line;          /* bytes of a request line, and of prompt_bytes */
	size_t max_unread;        /* bytes of replies that a client may leave unread */
	uint32_t idle_timeout_ms; /* 0: never */
	const char *settings;     /* what `config` answers, a JSON object; borrowed until close */
	void (*on_draining)(void *arg); /* NULL is fine; called once, in the loop */
	void *arg;
};

/* The defaults of all limits; no listeners. */
void pfx_server_opts_init(struct pfx_server_opts *opts);

/* Refuses addresses that other machines could reach: there are no keys yet. */
int pfx_server_open(struct pfx_server **out, const struct pfx_server_opts *opts, char *err,
	size_t errlen);
/* Borrows the engine until close. */
int pfx_server_start(struct pfx_server *s, struct pfx_engine *e, char *err, size_t errlen);
/* Where it listens, with the port that the system chose; NULL behind the last. */
const char *pfx_server_address(const struct pfx_server *s, size_t i);

/*
 * Serves until SIGTERM, SIGINT or the drain operation, then until what runs has ended, at
 * most 30 s. 0: all ended. 1: cut short by a second signal or by the bound; the caller
 * should not wait for the engine either.
 */
int pfx_server_run(struct pfx_server *s);
/* Hangs up on everybody and cancels their jobs. Before pfx_engine_close. NULL is fine. */
void pfx_server_close(struct pfx_server *s);

#endif
