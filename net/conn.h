#ifndef PFX_NET_CONN_H
#define PFX_NET_CONN_H

/*
 * One client's connection: framing, back-pressure, half-closed sockets, time-outs. Belongs
 * to the loop's thread. README.md tells its life; the functions are for server.c and
 * request.c.
 */

#include <event2/event_struct.h>

#include "base/buf.h"
#include "base/list.h"
#include "net/parser.h"
#include "net/proto.h"

struct pfx_server;
struct pfx_request;

/* What a connection's next bytes are. */
enum pfx_conn_mode {
	PFX_CONN_LINE,
	PFX_CONN_SKIP_LINE, /* the rest of a line that was too long */
	PFX_CONN_RAW,       /* the bytes of prompt_bytes */
	PFX_CONN_DISCARD,   /* nothing that we want to know; the connection is to end */
};

struct pfx_conn {
	struct pfx_server *srv;
	struct pfx_list link, turn, dirty;
	struct event rd, wr;
	int fd;
	int is_tcp;
	int rd_off, wr_on; /* which of the two events is not as it was at the start */
	int eof;           /* the client sends no more */
	int half_closed;   /* ... and replies are due */
	int probed;        /* ... and it was tried whether it is there at all */
	int more;          /* there may be whole lines in `in` */
	int dead;          /* to be destroyed when the current callback ends */
	uint64_t shut_ns;  /* when our own side was closed; 0: it is open */
	uint64_t active_ns, read_ns;

	enum pfx_conn_mode mode;
	struct pfx_buf in;
	size_t in_at;   /* what stands before it was dealt with */
	size_t seen;    /* of a line: bytes behind in_at known to hold no newline */
	size_t raw_len; /* PFX_CONN_RAW: bytes wanted */
	struct pfx_msg raw_msg;
	struct pfx_parse_task *task; /* at the parser */

	struct pfx_buf out;
	size_t out_at;

	struct pfx_request **requests;
	uint32_t n_requests, cap_requests;
};

struct pfx_conn *pfx_conn_new(struct pfx_server *s, int fd, int is_tcp);
void pfx_conn_destroy(struct pfx_conn *c);
/* Deals with what was read, as much as a turn allows. */
void pfx_conn_work(struct pfx_conn *c);
/* The end of every callback: sends, re-arms, or destroys. c may be gone afterwards. */
void pfx_conn_settle(struct pfx_conn *c);
/* Room for another reply, or NULL: the client reads too slowly and is done with. */
struct pfx_buf *pfx_conn_out(struct pfx_conn *c);
/* Hands what waits to the socket; *now is then the time, when that is asked for. */
void pfx_conn_flush(struct pfx_conn *c, uint64_t *now);
/* The parser is done with a task, whose connection may be gone. Takes the task. */
void pfx_conn_parsed(struct pfx_parse_task *task);
/* Periodically: idle, half-closed, stalled. c may be gone afterwards. */
void pfx_conn_tick(struct pfx_conn *c, uint64_t now);
/* Something is still on its way in or out. */
int pfx_conn_unfinished(const struct pfx_conn *c);

#endif
