#ifndef PFX_NET_SCAN_H
#define PFX_NET_SCAN_H

/*
 * Lifts the long values out of a request line before the JSON library sees it. The library
 * takes about 100 ns for a token id, so that 8,000 ids would cost more than answering them
 * from the cache; here they cost some 5 ns each.
 *
 * Only the top level of the object is looked at, only the keys "prompt", "text" (strings)
 * and "tokens" (arrays of plain integers below 2^32), and only values that are valid beyond
 * doubt: anything odd stays in the line, and the library judges it there. A lifted
 * value leaves an empty one of its type behind, so that repeated keys and anything
 * else about the line is still found by the library.
 *
 * Pure; any thread.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* With less than this left of the line, nothing is worth lifting. */
#define PFX_SCAN_MIN 64
/* Arrays and objects may nest this deep, the line's own object counted. */
#define PFX_SCAN_DEPTH_MAX 128
/*
 * And so many values a line may have, those that are lifted counted as one: the library
 * takes up to 250 bytes for each, so that 16 MiB of {} would be more than a gigabyte.
 */
#define PFX_SCAN_VALUES_MAX 524288u

struct pfx_scan {
	struct pfx_buf rest; /* what the library is to parse; empty: the line itself */
	char *prompt, *text; /* NULL: not lifted; may hold NULs */
	size_t prompt_len, text_len;
	uint32_t *tokens; /* NULL: not lifted */
	size_t n_tokens;
};

/*
 * 0, also when nothing was lifted; PFX_E_LIMIT when the line nests too deep or has too many values; -ENOMEM.
 * pfx_scan_free is due in every case.
 */
int pfx_scan(struct pfx_scan *s, const char *line, size_t n);
void pfx_scan_free(struct pfx_scan *s);

#endif
