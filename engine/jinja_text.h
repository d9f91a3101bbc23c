#ifndef PFX_ENGINE_JINJA_TEXT_H
#define PFX_ENGINE_JINJA_TEXT_H

/*
 * Values as text: Python's str and repr, JSON as transformers writes it, % and format.
 * Strings bring their marks; punctuation, escapes and scalars are the client's where the
 * value that they belong to came from a client.
 */

#include "engine/jinja_call.h"
#include "engine/jinja_str.h"
#include "engine/jinja_value.h"

/* str(v) */
void pfx_j_put_val(struct pfx_jbuild *b, struct pfx_jval v);
const struct pfx_jstr *pfx_j_to_str(struct pfx_jctx *c, struct pfx_jval v);
/* repr(v); ascii: as Python's ascii() */
void pfx_j_put_repr(struct pfx_jbuild *b, struct pfx_jval v);
/* Shortest text that reads back as f, as Python writes it. */
void pfx_j_float_text(double f, char out[40]);

struct pfx_jjson {
	int ascii, sort_keys;
	const struct pfx_jstr *indent; /* NULL: one line */
	const struct pfx_jstr *comma, *colon;
};
void pfx_j_put_json(struct pfx_jbuild *b, struct pfx_jval v, const struct pfx_jjson *how);
/* json.loads */
struct pfx_jval pfx_j_load_json(struct pfx_jctx *c, const struct pfx_jstr *s);

/* jinja_format.c: fmt % args and fmt.format(...) */
struct pfx_jval pfx_j_percent(struct pfx_jctx *c, const struct pfx_jstr *fmt, struct pfx_jval args);
struct pfx_jval pfx_j_format(struct pfx_jctx *c, const struct pfx_jstr *fmt,
	const struct pfx_jargs *args);

#endif
