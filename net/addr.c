#include "net/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/error.h"

static int parse_unix(struct pfx_addr *out, const char *text, char *err, size_t errlen)
{
	struct sockaddr_un *un = (struct sockaddr_un *)&out->sa;
	const char *path = text + strlen("unix:");
	size_t n = strlen(path);

	if (n == 0) {
		return pfx_fail(-EINVAL, err, errlen, "address %s has no path", text);
	}
	if (n >= sizeof(un->sun_path)) {
		return pfx_fail(-EINVAL, err, errlen, "path of %s is longer than %zu bytes", text,
			sizeof(un->sun_path) - 1);
	}
	un->sun_family = AF_UNIX;
	memcpy(un->sun_path, path, n + 1);
	out->family = AF_UNIX;
	out->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
	return 0;
}

static int parse_port(const char *s)
{
	int v = 0;

	if (*s == 0 || strlen(s) > 5) {
		return -1;
	}
	for (; *s != 0; s++) {
		if (*s < '0' || *s > '9') {
			return -1;
		}
		v = v * 10 + (*s - '0');
	}
	return v > 65535 ? -1 : v;
}

int pfx_addr_parse(struct pfx_addr *out, const char *text, char *err, size_t errlen)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	const char *colon = strrchr(text, ':');
	struct addrinfo *found;
	char host[256];
	size_t n;
	int rc;

	memset(out, 0, sizeof(*out));
	if (strncmp(text, "unix:", 5) == 0) {
		return parse_unix(out, text, err, errlen);
	}
	if (colon == NULL || colon == text || parse_port(colon + 1) < 0) {
		return pfx_fail(-EINVAL, err, errlen, "address %s is not HOST:PORT or unix:PATH", text);
	}
	n = (size_t)(colon - text);
	if (text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	if (n == 0 || n >= sizeof(host)) {
		return pfx_fail(-EINVAL, err, errlen, "address %s is not HOST:PORT or unix:PATH", text);
	}
	memcpy(host, text, n);
	host[n] = 0;
	rc = getaddrinfo(host, colon + 1, &hints, &found);
	if (rc != 0) {
		return pfx_fail(-EINVAL, err, errlen, "host %s: %s", host, gai_strerror(rc));
	}
	memcpy(&out->sa, found->ai_addr, found->ai_addrlen);
	out->len = found->ai_addrlen;
	out->family = found->ai_family;
	freeaddrinfo(found);
	return 0;
}

int pfx_addr_is_local(const struct pfx_addr *a)
{
	if (a->family == AF_INET) {
		return ntohl(((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr) >> 24 == 127;
	}
	if (a->family == AF_INET6) {
		return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);
	}
	return a->family == AF_UNIX;
}

void pfx_addr_format(const struct pfx_addr *a, char *out, size_t n)
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (a->family == AF_UNIX) {
		snprintf(out, n, "unix:%s", ((const struct sockaddr_un *)&a->sa)->sun_path);
	} else if (a->family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)&a->sa;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(out, n, "%s:%u", host, ntohs(in->sin_port));
	} else {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&a->sa;

		inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof(host));
		snprintf(out, n, "[%s]:%u", host, ntohs(in->sin6_port));
	}
}

int pfx_addr_of_socket(struct pfx_addr *out, int fd)
{
	memset(out, 0, sizeof(*out));
	out->len = sizeof(out->sa) - 1; /* the last byte stays NUL, for a full sun_path */
	if (getsockname(fd, (struct sockaddr *)&out->sa, &out->len) < 0) {
		return -errno;
	}
	out->family = out->sa.ss_family;
	return 0;
}
