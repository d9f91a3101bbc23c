/*
 * One client. Bytes come in, lines go to pfx_request_run in their order; replies gather in
 * `out` and leave when a callback ends. We read and write the socket ourselves: libevent's
 * bufferevent reads 4 KiB at a time and keeps lines in pieces, which costs a prompt of
 * 8,000 token ids more than answering it.
 *
 * Nothing in here frees the connection but pfx_conn_settle (and the server, at its end):
 * whatever goes wrong sets `dead`.
 */
#include "net/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/server_priv.h"

/* A turn's share of one connection. A flood of pings then costs the others some 50 us. */
#define LINES_PER_TURN 16
#define BYTES_PER_TURN (128u << 10)
/* Longer lines go to the parser's thread: at 50 MB/s this one holds the loop for 2.5 ms. */
#define INLINE_MAX (128u << 10)
#define READ_SIZE (64u << 10)
#define READ_SIZE_LONG (1u << 20) /* once a long line is on its way */
/* With so much unread the client must read before we read more of it. */
#define OUT_HIGH_WATER (1u << 20)
/* Buffers above this are given back when empty. */
#define KEEP_MAX (64u << 10)
/* How long we wait for the other side to close after we have. */
#define LINGER_NS 2000000000u

static size_t out_pending(const struct pfx_conn *c)
{
	return c->out.len - c->out_at;
}

static void on_read(evutil_socket_t fd, short what, void *arg);
static void on_write(evutil_socket_t fd, short what, void *arg);

struct pfx_conn *pfx_conn_new(struct pfx_server *s, int fd, int is_tcp)
{
	struct pfx_conn *c = pfx_calloc(1, sizeof(*c));
	int one = 1, idle_s = 60;

	if (c == NULL) {
		return NULL;
	}
	if (is_tcp) {
		/* Errors here cost speed or a late notice, never correctness. */
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
		setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	}
	c->srv = s;
	c->fd = fd;
	c->is_tcp = is_tcp;
	c->active_ns = pfx_clock_ns();
	pfx_list_init(&c->turn);
	pfx_list_init(&c->dirty);
	event_assign(&c->rd, s->base, fd, EV_READ | EV_PERSIST, on_read, c);
	event_assign(&c->wr, s->base, fd, EV_WRITE | EV_PERSIST, on_write, c);
	if (event_add(&c->rd, NULL) < 0) {
		pfx_free(c);
		return NULL;
	}
	pfx_list_push_back(&s->conns, &c->link);
	s->n_conns++;
	return c;
}

void pfx_conn_destroy(struct pfx_conn *c)
{
	struct pfx_server *s = c->srv;

	if (c->n_requests > 0) {
		s->count.hung_up++;
		pfx_request_orphan_all(c);
	}
	if (c->task != NULL) {
		c->task->owner = NULL;
	}
	if (c->half_closed) {
		s->n_half_closed--;
	}
	event_del(&c->rd);
	event_del(&c->wr);
	close(c->fd);
	pfx_list_remove(&c->link);
	pfx_list_remove(&c->turn);
	pfx_list_remove(&c->dirty);
	pfx_msg_free(&c->raw_msg);
	pfx_buf_free(&c->in);
	pfx_buf_free(&c->out);
	pfx_free(c->requests);
	pfx_free(c);
	s->n_conns--;
}

/* ---- out ---- */

struct pfx_buf *pfx_conn_out(struct pfx_conn *c)
{
	static struct pfx_log_rate rate;
	uint64_t held;

	if (c->dead) {
		return NULL;
	}
	if (out_pending(c) > c->srv->opts.max_unread) {
		c->srv->count.slow++;
		c->dead = 1;
		pfx_server_dirty(c->srv, c);
		if (pfx_log_rate(&rate, &held)) {
			pfx_warn("net", "a client leaves its replies unread, disconnected unread=%zu "
				"suppressed=%llu", out_pending(c), (unsigned long long)held);
		}
		return NULL;
	}
	if (c->out_at > KEEP_MAX && c->out_at > c->out.len / 2) {
		memmove(c->out.data, c->out.data + c->out_at, out_pending(c));
		c->out.len -= c->out_at;
		c->out_at = 0;
	}
	return &c->out;
}

static void arm_write(struct pfx_conn *c, int on)
{
	if (on == c->wr_on) {
		return;
	}
	c->wr_on = on;
	if ((on ? event_add(&c->wr, NULL) : event_del(&c->wr)) < 0) {
		c->dead = 1;
	}
}

void pfx_conn_flush(struct pfx_conn *c, uint64_t *now)
{
	uint64_t at = 0;

	while (!c->dead && out_pending(c) > 0) {
		ssize_t n = send(c->fd, c->out.data + c->out_at, out_pending(c), MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			break;
		}
		if (n < 0) {
			c->dead = 1;
			break;
		}
		c->out_at += (size_t)n;
		c->srv->count.bytes_out += (uint64_t)n;
		c->active_ns = at = pfx_clock_ns();
	}
	if (now != NULL) {
		*now = at != 0 ? at : pfx_clock_ns();
	}
	if (c->dead) {
		return;
	}
	if (out_pending(c) == 0) {
		c->out_at = 0;
		if (c->out.cap > KEEP_MAX) {
			pfx_buf_free(&c->out);
		} else {
			pfx_buf_reset(&c->out);
		}
	}
	arm_write(c, out_pending(c) > 0);
}

static void on_write(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_conn *c = arg;

	(void)fd;
	(void)what;
	pfx_conn_flush(c, NULL);
	pfx_conn_settle(c);
}

/* ---- in ---- */

/* An empty buffer of ours is worth keeping for whoever reads next; one is enough. */
static void give_buffer_back(struct pfx_conn *c)
{
	struct pfx_server *s = c->srv;

	if (s->spare.data == NULL && c->in.cap <= 2 * READ_SIZE) {
		s->spare = c->in;
		pfx_buf_reset(&s->spare);
		memset(&c->in, 0, sizeof(c->in));
	} else {
		pfx_buf_free(&c->in);
	}
	c->in_at = 0;
}

static void fill(struct pfx_conn *c)
{
	struct pfx_server *s = c->srv;
	size_t want = c->in.len - c->in_at >= READ_SIZE ? READ_SIZE_LONG : READ_SIZE;
	ssize_t n;
	char *to;

	if (c->in.data == NULL) {
		c->in = s->spare;
		memset(&s->spare, 0, sizeof(s->spare));
	}
	if (c->in_at > 0) {
		memmove(c->in.data, c->in.data + c->in_at, c->in.len - c->in_at);
		c->in.len -= c->in_at;
		c->in_at = 0;
	}
	to = pfx_buf_room(&c->in, want);
	if (to == NULL) {
		c->dead = 1;
		return;
	}
	n = read(c->fd, to, want);
	if (n > 0) {
		c->in.len += (size_t)n;
		s->count.bytes_in += (uint64_t)n;
		c->read_ns = c->active_ns = pfx_clock_ns();
	} else if (n == 0) {
		c->eof = 1;
	} else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
		c->dead = 1;
	}
}

static void refuse(struct pfx_conn *c, const char *message)
{
	struct pfx_buf *out = pfx_conn_out(c);

	c->srv->count.bad_lines++;
	if (out != NULL) {
		pfx_reply_error(out, NULL, "bad_request", message, 0);
	}
}

static void refuse_long(struct pfx_conn *c)
{
	char why[80];

	snprintf(why, sizeof(why), "the line is longer than %zu bytes", c->srv->opts.max_line);
	refuse(c, why);
}

/* The message is read, but for raw bytes that may follow. Takes what m holds. */
static void on_message(struct pfx_conn *c, struct pfx_msg *m, uint64_t received_ns)
{
	if (m->lost) {
		c->mode = PFX_CONN_DISCARD;
	}
	if (m->has_prompt_bytes && m->prompt_bytes > 0) {
		c->mode = PFX_CONN_RAW;
		c->raw_len = (size_t)m->prompt_bytes;
		c->raw_msg = *m;
		memset(m, 0, sizeof(*m));
		return;
	}
	if (m->has_prompt_bytes) {
		pfx_proto_attach(m, "", 0);
	}
	pfx_request_run(c, m, received_ns);
}

/* Gives the buffer away with `len` bytes of interest; what stands behind `used` stays. */
static void to_parser(struct pfx_conn *c, size_t len, size_t used, struct pfx_msg *attach)
{
	struct pfx_parse_task *t = pfx_calloc(1, sizeof(*t));
	struct pfx_buf rest = PFX_BUF_INIT;

	pfx_buf_add(&rest, c->in.data + c->in_at + used, c->in.len - c->in_at - used);
	if (t == NULL || rest.oom) {
		pfx_free(t);
		pfx_buf_free(&rest);
		c->dead = 1;
		return;
	}
	t->owner = c;
	t->bytes = c->in.data;
	t->from = c->in_at;
	t->len = len;
	t->line_max = c->srv->opts.max_line;
	t->received_ns = c->read_ns;
	if (attach != NULL) {
		t->attach = 1;
		t->msg = *attach;
		memset(attach, 0, sizeof(*attach));
	}
	c->in = rest;
	c->in_at = 0;
	c->task = t;
	pfx_parser_put(c->srv->parser, t);
}

void pfx_conn_parsed(struct pfx_parse_task *task)
{
	struct pfx_conn *c = task->owner;

	if (c != NULL) {
		c->task = NULL;
		if (task->attach) {
			pfx_request_run(c, &task->msg, task->received_ns);
		} else {
			on_message(c, &task->msg, task->received_ns);
		}
		pfx_conn_work(c);
		pfx_conn_settle(c);
	}
	pfx_parse_task_free(task);
}

/* A whole line of len bytes, and how many bytes it takes with its end. */
static void on_line(struct pfx_conn *c, size_t len, size_t used)
{
	const char *p = c->in.data + c->in_at;
	struct pfx_msg m;

	c->seen = 0;
	c->srv->count.lines++;
	if (len > 0 && used > len && p[len - 1] == '\r') {
		len--;
	}
	if (len > c->srv->opts.max_line) {
		c->in_at += used;
		refuse_long(c);
		return;
	}
	if (len > INLINE_MAX) {
		to_parser(c, len, used, NULL);
		return;
	}
	pfx_proto_parse(&m, p, len, c->srv->opts.max_line);
	c->in_at += used;
	on_message(c, &m, c->read_ns);
	pfx_msg_free(&m);
}

/* Each step_ function: 1 when something was dealt with, 0 when more bytes are needed. */
static int step_line(struct pfx_conn *c)
{
	const char *p = c->in.data + c->in_at;
	size_t n = c->in.len - c->in_at;
	const char *end = n == c->seen ? NULL : memchr(p + c->seen, '\n', n - c->seen);

	if (end != NULL) {
		on_line(c, (size_t)(end - p), (size_t)(end - p) + 1);
		return 1;
	}
	c->seen = n;
	if (n > c->srv->opts.max_line + 1) { /* one for a carriage return */
		c->srv->count.lines++;
		c->in_at = c->in.len;
		c->seen = 0;
		c->mode = PFX_CONN_SKIP_LINE;
		refuse_long(c);
		return 1;
	}
	if (c->eof && n > 0) {
		on_line(c, n, n);
		return 1;
	}
	return 0;
}

static int step_skip(struct pfx_conn *c)
{
	const char *p = c->in.data + c->in_at;
	const char *end = c->in.len == c->in_at ? NULL : memchr(p, '\n', c->in.len - c->in_at);

	if (end == NULL) {
		c->in_at = c->in.len;
		return 0;
	}
	c->in_at += (size_t)(end - p) + 1;
	c->mode = PFX_CONN_LINE;
	return 1;
}

static int step_raw(struct pfx_conn *c)
{
	size_t want = c->raw_len;

	if (c->in.len - c->in_at < want) {
		if (c->eof) {
			c->in_at = c->in.len;
			c->mode = PFX_CONN_LINE;
			pfx_msg_free(&c->raw_msg);
			refuse(c, "the connection ended before the bytes that prompt_bytes announced");
		}
		return 0;
	}
	c->mode = PFX_CONN_LINE;
	if (want > INLINE_MAX) {
		to_parser(c, want, want, &c->raw_msg);
		return 1;
	}
	pfx_proto_attach(&c->raw_msg, c->in.data + c->in_at, want);
	c->in_at += want;
	pfx_request_run(c, &c->raw_msg, c->read_ns);
	pfx_msg_free(&c->raw_msg);
	return 1;
}

static int step(struct pfx_conn *c)
{
	switch (c->mode) {
	case PFX_CONN_LINE:
		return step_line(c);
	case PFX_CONN_SKIP_LINE:
		return step_skip(c);
	case PFX_CONN_RAW:
		return step_raw(c);
	case PFX_CONN_DISCARD:
		c->in_at = c->in.len;
		break;
	}
	return 0;
}

void pfx_conn_work(struct pfx_conn *c)
{
	size_t left = BYTES_PER_TURN;

	c->more = 0;
	for (int i = 0; !c->dead && c->task == NULL; i++) {
		size_t before = c->in_at, used;

		if (i == LINES_PER_TURN || left == 0 || out_pending(c) > OUT_HIGH_WATER) {
			c->more = 1;
			break;
		}
		if (!step(c)) {
			break;
		}
		used = c->in_at > before ? c->in_at - before : 0;
		left -= used < left ? used : left;
	}
	if (c->in_at == c->in.len && c->in.data != NULL && c->task == NULL) {
		give_buffer_back(c);
	}
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_conn *c = arg;

	(void)fd;
	(void)what;
	fill(c);
	pfx_conn_work(c);
	pfx_conn_settle(c);
}

/* ---- ends ---- */

/*
 * The client sends no more, but replies are due. Over TCP a client that has only shut its
 * sending side looks like one that is gone altogether, and a long prefill sends nothing
 * from which its kernel's answer would tell. So one byte goes out as urgent data: ordinary
 * reads of a living client do not see it, and a dead one answers with a reset.
 */
static void probe(struct pfx_conn *c)
{
	struct pollfd p = { .fd = c->fd };

	if (c->is_tcp && !c->probed && out_pending(c) == 0) {
		c->probed = 1;
		if (send(c->fd, "\n", 1, MSG_OOB | MSG_NOSIGNAL) < 0 && errno != EAGAIN) {
			c->dead = 1;
		}
	}
	if (poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP)) != 0) {
		c->dead = 1;
	}
}

/* Nothing runs and all is sent. */
static void finish(struct pfx_conn *c)
{
	if (c->eof) {
		c->dead = 1;
	} else if (c->mode == PFX_CONN_DISCARD && c->shut_ns == 0) {
		/* Closing with input unread would reset the connection and lose our last line. */
		shutdown(c->fd, SHUT_WR);
		c->shut_ns = pfx_clock_ns();
	}
}

static void arm_read(struct pfx_conn *c, int on)
{
	if (on == !c->rd_off) {
		return;
	}
	c->rd_off = !on;
	if ((on ? event_add(&c->rd, NULL) : event_del(&c->rd)) < 0) {
		c->dead = 1;
	}
}

static void settle_living(struct pfx_conn *c)
{
	int blocked = c->task != NULL || out_pending(c) > OUT_HIGH_WATER;

	arm_read(c, !c->eof && !c->more && !blocked);
	if (c->more && !blocked) {
		pfx_server_again(c->srv, c);
	}
	if (c->more || c->task != NULL) {
		return;
	}
	if (c->n_requests == 0 && out_pending(c) == 0) {
		finish(c);
	} else if (c->eof && !c->half_closed) {
		c->half_closed = 1;
		if (c->srv->n_half_closed++ == 0) {
			pfx_server_tick_soon(c->srv);
		}
		probe(c);
	}
}

void pfx_conn_settle(struct pfx_conn *c)
{
	if (!c->wr_on) {
		pfx_conn_flush(c, NULL);
	}
	if (!c->dead) {
		settle_living(c);
	}
	if (c->dead) {
		pfx_conn_destroy(c);
	}
}

void pfx_conn_tick(struct pfx_conn *c, uint64_t now)
{
	uint64_t idle_ns = (uint64_t)c->srv->opts.idle_timeout_ms * 1000000u;

	if (c->half_closed) {
		probe(c);
	}
	if (c->shut_ns != 0 && now > c->shut_ns + LINGER_NS) {
		c->dead = 1;
	}
	if (!c->dead && idle_ns > 0 && now > c->active_ns + idle_ns && c->task == NULL
		&& (c->n_requests == 0 || out_pending(c) > 0)) {
		c->srv->count.idle++;
		c->dead = 1;
	}
	if (c->dead) {
		pfx_conn_destroy(c);
	}
}

int pfx_conn_unfinished(const struct pfx_conn *c)
{
	return c->task != NULL || c->more || out_pending(c) > 0;
}
