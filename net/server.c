#include "config.h"

#include "net/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "net/server_priv.h"

#define ACCEPTS_PER_TURN 64
#define EVENTS_PER_TURN 512
#define DRAIN_NS 30000000000u
/* How long before the bound what still runs is cancelled, so that it ends in a last line. */
#define DRAIN_CANCEL_NS 1000000000u
/* With all requests ended, how long unread replies may still hold up a drain. */
#define DRAIN_UNREAD_NS 5000000000u
/* Out of descriptors: how long until we try again. */
#define ACCEPT_PAUSE_MS 100
/* Descriptors that are not connections: listeners, the loop, the engine's files. */
#define FDS_KEPT 64

void pfx_server_opts_init(struct pfx_server_opts *opts)
{
	memset(opts, 0, sizeof(*opts));
	opts->max_connections = 10000;
	opts->max_in_flight = 1024;
	opts->max_line = 16u << 20;
	opts->max_unread = 64u << 20;
	opts->idle_timeout_ms = 3600000;
	opts->settings = "{}";
}

static struct timeval ms_to_tv(uint32_t ms)
{
	return (struct timeval){ .tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000 };
}

static void after(struct event *ev, uint32_t ms)
{
	struct timeval tv = ms_to_tv(ms);

	/* It fails for lack of memory alone, and then there is nothing better to do. */
	if (event_add(ev, &tv) < 0) {
		pfx_error("net", "no memory for a timer");
	}
}

/* ---- the loop's callbacks ---- */

/* Short while somebody is watched who sends no more (conn.c, probe), or the end is near. */
static uint32_t tick_ms(const struct pfx_server *s)
{
	uint32_t ms = s->opts.idle_timeout_ms / 8;

	if (s->n_half_closed > 0 || s->draining) {
		return 20;
	}
	return ms == 0 || ms > 5000 ? 5000 : ms < 50 ? 50 : ms;
}

void pfx_server_tick_soon(struct pfx_server *s)
{
	after(&s->tick_ev, tick_ms(s));
}

void pfx_server_again(struct pfx_server *s, struct pfx_conn *c)
{
	if (pfx_list_empty(&c->turn)) {
		pfx_list_push_back(&s->turn, &c->turn);
	}
	if (!evtimer_pending(&s->turn_ev, NULL)) {
		after(&s->turn_ev, 0);
	}
}

void pfx_server_dirty(struct pfx_server *s, struct pfx_conn *c)
{
	if (pfx_list_empty(&c->dirty)) {
		pfx_list_push_back(&s->dirty, &c->dirty);
	}
}

static void settle_dirty(struct pfx_server *s)
{
	while (!pfx_list_empty(&s->dirty)) {
		struct pfx_conn *c = pfx_container_of(s->dirty.next, struct pfx_conn, dirty);

		pfx_list_remove(&c->dirty);
		pfx_conn_settle(c);
	}
}

/* Everybody who waits gets one share; who still wants more is in the next turn's list. */
static void on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_server *s = arg;
	struct pfx_list now;

	(void)fd;
	(void)what;
	pfx_list_init(&now);
	while (!pfx_list_empty(&s->turn)) {
		struct pfx_list *n = s->turn.next;

		pfx_list_remove(n);
		pfx_list_push_back(&now, n);
	}
	while (!pfx_list_empty(&now)) {
		struct pfx_conn *c = pfx_container_of(now.next, struct pfx_conn, turn);

		pfx_list_remove(&c->turn);
		pfx_conn_work(c);
		pfx_conn_settle(c);
	}
}

static void check_drained(struct pfx_server *s);

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_server *s = arg;
	uint64_t now = pfx_clock_ns();

	(void)fd;
	(void)what;
	pfx_list_for_safe(it, &s->conns) {
		pfx_conn_tick(pfx_container_of(it, struct pfx_conn, link), now);
	}
	check_drained(s);
	after(&s->tick_ev, tick_ms(s));
}

static void on_engine(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_server *s = arg;
	struct pfx_event *ev;

	(void)fd;
	(void)what;
	for (int i = 0; i < EVENTS_PER_TURN && (ev = pfx_engine_next(s->engine)) != NULL; i++) {
		pfx_request_event(s, ev);
		pfx_event_free(ev);
	}
	settle_dirty(s);
	check_drained(s);
}

static void on_parsed(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_server *s = arg;
	struct pfx_parse_task *t;

	(void)fd;
	(void)what;
	while ((t = pfx_parser_next(s->parser)) != NULL) {
		pfx_conn_parsed(t);
	}
}

/* ---- listening ---- */

static void listen_on(struct pfx_server *s, int on)
{
	if (on == s->listening) {
		return;
	}
	s->listening = on;
	for (size_t i = 0; i < s->n_listeners; i++) {
		struct event *ev = &s->listeners[i].ev;

		if ((on ? event_add(ev, NULL) : event_del(ev)) < 0) {
			pfx_error("net", "cannot watch a listener address=%s", s->listeners[i].name);
		}
	}
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_server *s = arg;

	(void)fd;
	(void)what;
	if (!s->draining) {
		listen_on(s, 1);
	}
}

/* Too many connections: says so as far as the socket takes it, and hangs up. */
static void turn_away(struct pfx_server *s, int fd)
{
	struct pfx_buf out = PFX_BUF_INIT;
	char unread[4096];

	s->count.refused++;
	pfx_reply_error(&out, NULL, "overloaded", "too many connections", 1000);
	if (!out.oom && send(fd, out.data, out.len, MSG_NOSIGNAL) >= 0) {
		shutdown(fd, SHUT_WR);
		/* Closing with input unread would reset the connection, line and all. */
		while (read(fd, unread, sizeof(unread)) > 0) {
			continue;
		}
	}
	pfx_buf_free(&out);
	close(fd);
}

static void out_of_fds(struct pfx_server *s, int err)
{
	static struct pfx_log_rate rate;
	uint64_t held;

	s->count.accept_failed++;
	if (pfx_log_rate(&rate, &held)) {
		pfx_warn("net", "cannot accept: %s; waiting connections=%u suppressed=%llu",
			strerror(err), s->n_conns, (unsigned long long)held);
	}
	listen_on(s, 0);
	after(&s->accept_ev, ACCEPT_PAUSE_MS);
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
	struct pfx_listener *l = arg;
	struct pfx_server *s = l->srv;

	(void)what;
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (client >= 0) {
			s->count.accepted++;
			if (s->n_conns >= s->opts.max_connections) {
				turn_away(s, client);
			} else if (pfx_conn_new(s, client, l->addr.family != AF_UNIX) == NULL) {
				close(client);
			}
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			out_of_fds(s, errno);
			return;
		}
		if (errno == EAGAIN || errno == EWOULDBLOCK) {
			return;
		}
		/* Anything else is that one connection's trouble. */
	}
}

/* A socket file that nobody listens on is left from a server that died: it may go. */
static int clear_stale(const struct pfx_addr *addr, const char *name, char *err, size_t errlen)
{
	const char *path = ((const struct sockaddr_un *)&addr->sa)->sun_path;
	struct stat st;
	int fd, rc;

	if (lstat(path, &st) < 0) {
		return 0;
	}
	if (!S_ISSOCK(st.st_mode)) {
		return pfx_fail(-EEXIST, err, errlen, "%s exists and is not a socket", name);
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return pfx_fail(-errno, err, errlen, "%s: %s", name, strerror(errno));
	}
	rc = connect(fd, (const struct sockaddr *)&addr->sa, addr->len);
	rc = rc < 0 ? -errno : 0;
	close(fd);
	if (rc != -ECONNREFUSED) {
		return pfx_fail(-EADDRINUSE, err, errlen, "%s is in use", name);
	}
	unlink(path);
	return 0;
}

static int check_local(const struct pfx_addr *addr, const char *name, char *err, size_t errlen)
{
	if (pfx_addr_is_local(addr)) {
		return 0;
	}
	return pfx_fail(-EPERM, err, errlen, "%s is not a loopback address: without a key file "
		"prefixd serves this machine only (127.0.0.1, [::1] or unix:PATH)", name);
}

static int bind_one(struct pfx_server *s, const char *text, char *err, size_t errlen)
{
	struct pfx_listener *l = &s->listeners[s->n_listeners];
	int rc = pfx_addr_parse(&l->addr, text, err, errlen), one = 1;

	rc = rc < 0 ? rc : check_local(&l->addr, text, err, errlen);
	if (rc == 0 && l->addr.family == AF_UNIX) {
		rc = clear_stale(&l->addr, text, err, errlen);
	}
	if (rc < 0) {
		return rc;
	}
	l->srv = s;
	l->fd = socket(l->addr.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0) {
		return pfx_fail(-errno, err, errlen, "%s: %s", text, strerror(errno));
	}
	s->n_listeners++;
	setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(l->fd, (struct sockaddr *)&l->addr.sa, l->addr.len) < 0) {
		rc = -errno;
		l->inherited = 1; /* whatever has that path, it is not us */
		return pfx_fail(rc, err, errlen, "cannot listen on %s: %s", text, strerror(-rc));
	}
	return 0;
}

static int adopt(struct pfx_server *s, int fd, char *err, size_t errlen)
{
	struct pfx_listener *l = &s->listeners[s->n_listeners++];
	int rc = pfx_addr_of_socket(&l->addr, fd);
	char name[sizeof(l->name)];

	l->srv = s;
	l->fd = fd;
	l->inherited = 1;
	if (rc < 0) {
		return pfx_fail(rc, err, errlen, "passed descriptor %d: %s", fd, strerror(-rc));
	}
	evutil_make_socket_nonblocking(fd);
	pfx_addr_format(&l->addr, name, sizeof(name));
	return check_local(&l->addr, name, err, errlen);
}

/* Makes sure that running out of connections is our decision and not the system's. */
static void fit_connections(struct pfx_server *s)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0) {
		return;
	}
	if (lim.rlim_cur < lim.rlim_max) {
		lim.rlim_cur = lim.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &lim) < 0 || getrlimit(RLIMIT_NOFILE, &lim) < 0) {
			return;
		}
	}
	if (lim.rlim_cur > FDS_KEPT && lim.rlim_cur - FDS_KEPT < s->opts.max_connections) {
		s->opts.max_connections = (uint32_t)(lim.rlim_cur - FDS_KEPT);
		pfx_info("net", "fewer connections, for want of descriptors max_connections=%u",
			s->opts.max_connections);
	}
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
	struct pfx_server *s = arg;

	(void)what;
	if (s->draining) {
		pfx_info("net", "second signal, leaving at once");
		s->forced = 1;
		event_base_loopbreak(s->base);
		return;
	}
	pfx_info("net", "draining signal=%s requests=%u", sig == SIGTERM ? "TERM" : "INT",
		s->n_requests);
	pfx_server_drain(s);
}

static void libevent_log(int severity, const char *message)
{
	pfx_log(severity >= EVENT_LOG_ERR ? PFX_LOG_ERROR : severity == EVENT_LOG_WARN ? PFX_LOG_WARN
		: PFX_LOG_DEBUG, "libevent", "%s", message);
}

static int prepare(struct pfx_server *s, char *err, size_t errlen)
{
	int rc = pfx_parser_open(&s->parser);

	if (rc < 0) {
		return pfx_fail(rc, err, errlen, "cannot start the parser's thread: %s", strerror(-rc));
	}
	event_set_log_callback(libevent_log);
	s->base = event_base_new();
	if (s->base == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "cannot make an event loop");
	}
	evtimer_assign(&s->turn_ev, s->base, on_turn, s);
	evtimer_assign(&s->tick_ev, s->base, on_tick, s);
	evtimer_assign(&s->accept_ev, s->base, on_accept_again, s);
	evsignal_assign(&s->term_ev, s->base, SIGTERM, on_signal, s);
	evsignal_assign(&s->int_ev, s->base, SIGINT, on_signal, s);
	event_assign(&s->parser_ev, s->base, pfx_parser_fd(s->parser), EV_READ | EV_PERSIST, on_parsed,
		s);
	return 0;
}

int pfx_server_open(struct pfx_server **out, const struct pfx_server_opts *opts, char *err,
	size_t errlen)
{
	struct pfx_server *s = pfx_calloc(1, sizeof(*s));
	int rc;

	if (s == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "out of memory");
	}
	s->opts = *opts;
	pfx_list_init(&s->conns);
	pfx_list_init(&s->turn);
	pfx_list_init(&s->dirty);
	s->listeners = pfx_calloc(opts->n_listen + opts->n_fds, sizeof(*s->listeners));
	rc = s->listeners == NULL ? pfx_fail(-ENOMEM, err, errlen, "out of memory")
		: prepare(s, err, errlen);
	for (size_t i = 0; rc == 0 && i < opts->n_fds; i++) {
		rc = adopt(s, opts->fds[i], err, errlen);
	}
	for (size_t i = 0; rc == 0 && i < opts->n_listen; i++) {
		rc = bind_one(s, opts->listen[i], err, errlen);
	}
	if (rc < 0) {
		pfx_server_close(s);
		return rc;
	}
	fit_connections(s);
	*out = s;
	return 0;
}

static int start_listener(struct pfx_listener *l, char *err, size_t errlen)
{
	int rc = 0;

	if (!l->inherited && listen(l->fd, SOMAXCONN) < 0) {
		rc = -errno;
	}
	if (rc == 0) {
		rc = pfx_addr_of_socket(&l->addr, l->fd);
	}
	pfx_addr_format(&l->addr, l->name, sizeof(l->name));
	if (rc < 0) {
		return pfx_fail(rc, err, errlen, "cannot listen on %s: %s", l->name, strerror(-rc));
	}
	return event_assign(&l->ev, l->srv->base, l->fd, EV_READ | EV_PERSIST, on_accept, l);
}

int pfx_server_start(struct pfx_server *s, struct pfx_engine *e, char *err, size_t errlen)
{
	s->engine = e;
	event_assign(&s->engine_ev, s->base, pfx_engine_event_fd(e), EV_READ | EV_PERSIST, on_engine,
		s);
	for (size_t i = 0; i < s->n_listeners; i++) {
		int rc = start_listener(&s->listeners[i], err, errlen);

		if (rc < 0) {
			return rc;
		}
	}
	if (event_add(&s->engine_ev, NULL) < 0 || event_add(&s->parser_ev, NULL) < 0
		|| event_add(&s->term_ev, NULL) < 0 || event_add(&s->int_ev, NULL) < 0) {
		return pfx_fail(-ENOMEM, err, errlen, "cannot set up the event loop");
	}
	after(&s->tick_ev, tick_ms(s));
	listen_on(s, 1);
	return 0;
}

const char *pfx_server_address(const struct pfx_server *s, size_t i)
{
	return i < s->n_listeners ? s->listeners[i].name : NULL;
}

/* ---- the end ---- */

static void close_listener(struct pfx_listener *l)
{
	if (l->fd < 0) {
		return;
	}
	close(l->fd);
	l->fd = -1;
	if (l->addr.family == AF_UNIX && !l->inherited) {
		unlink(((const struct sockaddr_un *)&l->addr.sa)->sun_path);
	}
}

void pfx_server_drain(struct pfx_server *s)
{
	if (s->draining) {
		return;
	}
	s->draining = 1;
	s->drain_end_ns = pfx_clock_ns() + DRAIN_NS;
	pfx_engine_drain(s->engine);
	if (s->opts.on_draining != NULL) {
		s->opts.on_draining(s->opts.arg);
	}
	listen_on(s, 0);
	for (size_t i = 0; i < s->n_listeners; i++) {
		close_listener(&s->listeners[i]);
	}
	/* At once, but from the loop: the reply to a drain operation goes out first. */
	after(&s->tick_ev, 1);
}

static void check_drained(struct pfx_server *s)
{
	uint64_t now = pfx_clock_ns();
	int unfinished = 0;

	if (!s->draining) {
		return;
	}
	if (now > s->drain_end_ns - DRAIN_CANCEL_NS && !s->drain_cancelled) {
		s->drain_cancelled = 1;
		pfx_list_for(it, &s->conns) {
			pfx_request_cancel_all(pfx_container_of(it, struct pfx_conn, link));
		}
	}
	if (now > s->drain_end_ns) {
		pfx_warn("net", "drain took too long, giving up requests=%u", s->n_requests);
		s->forced = 1;
		event_base_loopbreak(s->base);
		return;
	}
	if (s->n_requests > 0 || pfx_engine_busy(s->engine) > 0) {
		return;
	}
	if (s->drain_idle_ns == 0) {
		s->drain_idle_ns = now;
	}
	pfx_list_for(it, &s->conns) {
		unfinished |= pfx_conn_unfinished(pfx_container_of(it, struct pfx_conn, link));
	}
	if (!unfinished || now > s->drain_idle_ns + DRAIN_UNREAD_NS) {
		event_base_loopbreak(s->base);
	}
}

int pfx_server_run(struct pfx_server *s)
{
	if (event_base_dispatch(s->base) < 0) {
		pfx_error("net", "the event loop failed");
		return 1;
	}
	return s->forced;
}

/* Bounded, so that nobody who keeps sending can hold us here. */
static void last_words(struct pfx_conn *c)
{
	char unread[65536];

	shutdown(c->fd, SHUT_WR);
	for (int i = 0; i < 16 && read(c->fd, unread, sizeof(unread)) > 0; i++) {
		continue;
	}
}

void pfx_server_close(struct pfx_server *s)
{
	if (s == NULL) {
		return;
	}
	pfx_list_for_safe(it, &s->conns) {
		struct pfx_conn *c = pfx_container_of(it, struct pfx_conn, link);

		last_words(c);
		pfx_conn_destroy(c);
	}
	/* Requests whose last event nobody will take. */
	while (s->engine != NULL && s->n_requests > 0 && !s->forced) {
		struct pollfd p = { .fd = pfx_engine_event_fd(s->engine), .events = POLLIN };
		struct pfx_event *ev;

		poll(&p, 1, 100);
		while ((ev = pfx_engine_next(s->engine)) != NULL) {
			pfx_request_event(s, ev);
			pfx_event_free(ev);
		}
	}
	listen_on(s, 0);
	for (size_t i = 0; i < s->n_listeners; i++) {
		close_listener(&s->listeners[i]);
	}
	pfx_parser_close(s->parser);
	if (s->base != NULL) {
		event_base_free(s->base);
	}
	pfx_buf_free(&s->spare);
	pfx_free(s->listeners);
	pfx_free(s);
}
