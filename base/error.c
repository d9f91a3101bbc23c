#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *pfx_strerror(int code)
{
	switch (code) {
	case 0: return "success";
	case PFX_E_FORMAT: return "malformed input";
	case PFX_E_UNSUPPORTED: return "not supported";
	case PFX_E_TRUNCATED: return "input is truncated";
	case PFX_E_LIMIT: return "a limit was exceeded";
	case PFX_E_FULL: return "no room";
	case PFX_E_TEMPLATE: return "chat template error";
	case PFX_E_SHUTDOWN: return "shutting down";
	}
	return code < 0 && code > -1000 ? strerror(-code) : "unknown error";
}

int pfx_fail(int code, char *err, size_t errlen, const char *fmt, ...)
{
	va_list ap;

	if (err != NULL && errlen > 0) {
		va_start(ap, fmt);
		vsnprintf(err, errlen, fmt, ap);
		va_end(ap);
	}
	return code;
}
