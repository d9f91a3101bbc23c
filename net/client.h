#ifndef PFX_NET_CLIENT_H
#define PFX_NET_CLIENT_H

/*
 * The other end of the line protocol, blocking: for prefixctl, the benchmark and tests. One
 * thread a client.
 */

#include <jansson.h>
#include <stddef.h>

struct pfx_client;

/* address: HOST:PORT or unix:PATH. err is a sentence that names it. */
int pfx_client_open(struct pfx_client **out, const char *address, char *err, size_t errlen);
void pfx_client_close(struct pfx_client *c); /* NULL is fine */

/* One line, without its newline. 0, or -errno: -EPIPE when the server is gone. */
int pfx_client_send(struct pfx_client *c, const char *line, size_t n);
int pfx_client_send_json(struct pfx_client *c, const json_t *request); /* borrows */

/*
 * The next line. *line is without its newline, NUL-ended, valid until the next call.
 * 0; -EPIPE when the server has closed; -ETIMEDOUT; -EINTR when a signal came first, after
 * which the call may be made again. timeout_ms < 0 waits for ever.
 */
int pfx_client_recv(struct pfx_client *c, const char **line, size_t *n, int timeout_ms);

#endif
