#ifndef PFX_NET_ADDR_H
#define PFX_NET_ADDR_H

/*
 * Addresses as people write them: HOST:PORT, [V6]:PORT, unix:PATH. Host names are resolved,
 * which may block: for start-up and clients only.
 */

#include <stddef.h>
#include <sys/socket.h>

struct pfx_addr {
	struct sockaddr_storage sa;
	socklen_t len;
	int family;
};

/* -EINVAL or PFX_E_FORMAT with a sentence that quotes the address. */
int pfx_addr_parse(struct pfx_addr *out, const char *text, char *err, size_t errlen);
/* True for 127.0.0.0/8, ::1 and Unix sockets: what only this machine can reach. */
int pfx_addr_is_local(const struct pfx_addr *a);
/* HOST:PORT, [V6]:PORT or unix:PATH, the form that parse takes. */
void pfx_addr_format(const struct pfx_addr *a, char *out, size_t n);
/* The address that a socket is bound to; -errno. */
int pfx_addr_of_socket(struct pfx_addr *out, int fd);

#endif
