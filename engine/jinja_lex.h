#ifndef PFX_ENGINE_JINJA_LEX_H
#define PFX_ENGINE_JINJA_LEX_H

/*
 * Template source to tokens, with the white space rules of trim_blocks and lstrip_blocks
 * and of the signs in tags applied to the data between them.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/jinja_value.h"

enum pfx_jtok {
	PFX_J_T_EOF,
	PFX_J_T_DATA,      /* val */
	PFX_J_T_VAR_BEGIN,
	PFX_J_T_VAR_END,
	PFX_J_T_BLOCK_BEGIN,
	PFX_J_T_BLOCK_END,
	PFX_J_T_NAME,      /* s, n */
	PFX_J_T_STRING,    /* val */
	PFX_J_T_INT,       /* val */
	PFX_J_T_FLOAT,     /* val */
	PFX_J_T_OP,        /* op: the character, or one of the below */
};

/* Operators of two characters. */
enum { PFX_J_OP_EQ = 'e', PFX_J_OP_NE = 'n', PFX_J_OP_LE = 'l', PFX_J_OP_GE = 'g',
	PFX_J_OP_FLOORDIV = 'f', PFX_J_OP_POW = 'p' };

struct pfx_jtoken {
	uint8_t type, op;
	uint32_t line;
	const char *s; /* in the copy of the source */
	size_t n;
	struct pfx_jval val;
};

struct pfx_jtokens {
	struct pfx_jtoken *v; /* ends with PFX_J_T_EOF; pfx_free */
	size_t n, cap;
};

/*
 * The source is copied into c's arena, with newlines as "\n", without the last one, and
 * with U+FFFD for what is not UTF-8. Returns c->rc; syntax errors go through
 * pfx_j_syntax.
 */
int pfx_j_lex(struct pfx_jctx *c, struct pfx_jtokens *out, const char *src, size_t n,
	const char *name);

/* PFX_E_FORMAT: "NAME: line N: ..." */
void pfx_j_syntax(struct pfx_jctx *c, const char *name, uint32_t line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#endif
