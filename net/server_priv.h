#ifndef PFX_NET_SERVER_PRIV_H
#define PFX_NET_SERVER_PRIV_H

/*
 * What server.c, conn.c and request.c share. Everything in here belongs to the loop's
 * thread.
 */

#include <event2/event.h>
#include <event2/event_struct.h>

#include "base/buf.h"
#include "base/list.h"
#include "net/addr.h"
#include "net/conn.h"
#include "net/parser.h"
#include "net/reply.h"
#include "net/server.h"

/* Each decision counts, for tests and operators read behaviour from counters. */
struct pfx_net_counters {
	uint64_t accepted, refused, accept_failed;
	uint64_t lines, bad_lines, bytes_in, bytes_out;
	uint64_t failed; /* generate, warm and score that ended here and never saw the engine */
	uint64_t hung_up; /* connections that ended with requests in flight */
	uint64_t slow, idle; /* connections that we ended, and why */
};

struct pfx_listener {
	struct pfx_addr addr;
	struct event ev;
	int fd;
	int inherited; /* socket activation: the path is not ours to remove */
	char name[160];
	struct pfx_server *srv;
};

struct pfx_server {
	struct pfx_server_opts opts;
	struct pfx_engine *engine;
	struct event_base *base;
	struct pfx_parser *parser;
	struct pfx_listener *listeners;
	size_t n_listeners;
	struct event engine_ev, parser_ev, term_ev, int_ev;
	struct event turn_ev;   /* connections that have more to do than one turn allows */
	struct event accept_ev; /* listening again after the descriptors ran out */
	struct event tick_ev;   /* idle connections, half-closed ones, the drain's end */
	struct pfx_list conns, turn, dirty;
	uint32_t n_conns;
	uint32_t n_half_closed;
	uint32_t n_requests; /* in flight or orphaned */
	struct pfx_buf spare; /* a read buffer for whichever connection reads next */
	struct pfx_net_counters count;
	int listening;
	int draining, forced;
	int drain_cancelled;    /* what still ran shortly before the bound was told to end */
	uint64_t drain_end_ns;  /* the bound */
	uint64_t drain_idle_ns; /* since when only unread replies hold the drain up; 0: not yet */
};

/* A request that the engine works on. */
struct pfx_request {
	struct pfx_conn *conn; /* NULL: its client is gone */
	uint32_t at;           /* its place in conn->requests */
	uint64_t number;
	struct pfx_id id;
	struct pfx_reply reply;
};

/* request.c */
/* Answers the message, or hands its job to the engine. Takes what it needs out of m. */
void pfx_request_run(struct pfx_conn *c, struct pfx_msg *m, uint64_t received_ns);
/* Does not free the event. */
void pfx_request_event(struct pfx_server *s, struct pfx_event *ev);
/* The client is gone: its jobs are cancelled, their events will be dropped. */
void pfx_request_orphan_all(struct pfx_conn *c);
/* Its jobs end within a step, each with its last line. */
void pfx_request_cancel_all(struct pfx_conn *c);

/* server.c */
void pfx_server_drain(struct pfx_server *s);
/* c will be worked on in the loop's next turn. */
void pfx_server_again(struct pfx_server *s, struct pfx_conn *c);
/* Something just began that wants short ticks. */
void pfx_server_tick_soon(struct pfx_server *s);
/* c has replies to send when the current batch of events ends. */
void pfx_server_dirty(struct pfx_server *s, struct pfx_conn *c);

#endif
