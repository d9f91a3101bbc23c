#include "net/client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "net/addr.h"

#define READ_SIZE 65536

struct pfx_client {
	int fd;
	struct pfx_buf in, out;
	size_t at;   /* bytes of `in` that earlier lines took */
	size_t seen; /* behind at: known to hold no newline */
};

int pfx_client_open(struct pfx_client **out, const char *address, char *err, size_t errlen)
{
	struct pfx_client *c;
	struct pfx_addr addr;
	int rc = pfx_addr_parse(&addr, address, err, errlen), one = 1;

	if (rc < 0) {
		return rc;
	}
	c = pfx_calloc(1, sizeof(*c));
	if (c == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "out of memory");
	}
	c->fd = socket(addr.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&addr.sa, addr.len) < 0) {
		rc = pfx_fail(-errno, err, errlen, "cannot reach %s: %s", address, strerror(errno));
		pfx_client_close(c);
		return rc;
	}
	if (addr.family != AF_UNIX) {
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	*out = c;
	return 0;
}

void pfx_client_close(struct pfx_client *c)
{
	if (c == NULL) {
		return;
	}
	if (c->fd >= 0) {
		close(c->fd);
	}
	pfx_buf_free(&c->in);
	pfx_buf_free(&c->out);
	pfx_free(c);
}

static int send_all(struct pfx_client *c, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR) {
			continue;
		}
		if (k < 0) {
			return errno == ECONNRESET ? -EPIPE : -errno;
		}
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

int pfx_client_send(struct pfx_client *c, const char *line, size_t n)
{
	pfx_buf_reset(&c->out);
	pfx_buf_add(&c->out, line, n);
	pfx_buf_addc(&c->out, '\n');
	return c->out.oom ? -ENOMEM : send_all(c, c->out.data, c->out.len);
}

int pfx_client_send_json(struct pfx_client *c, const json_t *request)
{
	char *line = json_dumps(request, JSON_COMPACT);
	int rc = line == NULL ? -ENOMEM : pfx_client_send(c, line, strlen(line));

	free(line);
	return rc;
}

/* Waits until there is something to read or *left_ms, which it lowers, is over. */
static int wait_readable(const struct pfx_client *c, int *left_ms)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };
	uint64_t start = pfx_clock_ns();
	int rc = poll(&p, 1, *left_ms);

	if (rc < 0) {
		return -errno;
	}
	if (rc == 0) {
		return -ETIMEDOUT;
	}
	if (*left_ms > 0) {
		uint64_t took = (pfx_clock_ns() - start) / 1000000u;

		*left_ms = took >= (uint64_t)*left_ms ? 0 : *left_ms - (int)took;
	}
	return 0;
}

static int read_more(struct pfx_client *c)
{
	ssize_t n;
	char *to;

	if (c->at > 0) {
		memmove(c->in.data, c->in.data + c->at, c->in.len - c->at);
		c->in.len -= c->at;
		c->at = 0;
	}
	to = pfx_buf_room(&c->in, READ_SIZE);
	if (to == NULL) {
		return -ENOMEM;
	}
	n = recv(c->fd, to, READ_SIZE, 0);
	if (n < 0) {
		return errno == ECONNRESET ? -EPIPE : -errno;
	}
	c->in.len += (size_t)n;
	return n == 0 ? -EPIPE : 0;
}

int pfx_client_recv(struct pfx_client *c, const char **line, size_t *n, int timeout_ms)
{
	for (;;) {
		char *p = c->in.data == NULL ? NULL : c->in.data + c->at;
		size_t have = c->in.len - c->at;
		char *end = have == c->seen ? NULL : memchr(p + c->seen, '\n', have - c->seen);
		int rc;

		if (end != NULL) {
			*end = 0;
			*line = p;
			*n = (size_t)(end - p);
			c->at += *n + 1;
			c->seen = 0;
			return 0;
		}
		c->seen = have;
		rc = wait_readable(c, &timeout_ms);
		rc = rc < 0 ? rc : read_more(c);
		if (rc < 0) {
			return rc;
		}
	}
}
