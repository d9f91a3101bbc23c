#ifndef PFX_BASE_ERROR_H
#define PFX_BASE_ERROR_H

/*
 * Results are int: 0 or a negative code. Negative errno values keep their meaning; ours
 * begin at -1000. Opening and loading functions also fill `char *err, size_t errlen` with
 * one sentence that names the file, tensor, key or option; err may be NULL.
 */

#include <stddef.h>

enum {
	PFX_E_FORMAT = -1000,      /* input breaks the rules of its format */
	PFX_E_UNSUPPORTED = -1001, /* valid, but not something that we can do */
	PFX_E_TRUNCATED = -1002,   /* input ends before it should */
	PFX_E_LIMIT = -1003,       /* a bound on size, depth or steps was met */
	PFX_E_FULL = -1004,        /* a bounded pool or queue has no room right now */
	PFX_E_TEMPLATE = -1005,    /* a chat template raised an exception or met a wrong type */
	PFX_E_SHUTDOWN = -1006,    /* the server is going down */
};

/* A sentence for any code of the above, or errno's; static storage or strerror's. */
const char *pfx_strerror(int code);

/* Writes a formatted sentence when err is not NULL, always ended by NUL; returns code. */
int pfx_fail(int code, char *err, size_t errlen, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#endif
