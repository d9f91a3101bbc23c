#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void pfx_assert_failed(const char *what, const char *file, int line, const char *func)
{
	fprintf(stderr, "prefixd: assertion failed: %s at %s:%d in %s\n", what, file, line, func);
	abort();
}
