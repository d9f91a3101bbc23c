#ifndef PFX_ENGINE_JINJA_AST_H
#define PFX_ENGINE_JINJA_AST_H

/*
 * A template as a tree. Nodes, names and constants live in the arena of the context that
 * parsed them; nothing in the tree changes afterwards, so any thread may walk it.
 */

#include <stddef.h>
#include <stdint.h>

#include "engine/jinja_value.h"

enum pfx_jkind {
	/* statements */
	PFX_J_BODY,         /* list */
	PFX_J_DATA,         /* val: template text */
	PFX_J_PRINT,        /* a: expression */
	PFX_J_IF,           /* list: condition, body, condition, body, ...; c: else body or NULL */
	PFX_J_FOR,          /* a: target, b: iterable, c: body, d: else or NULL, e: filter or NULL */
	PFX_J_SET,          /* a: target, b: expression */
	PFX_J_SETBLOCK,     /* a: target, b: filters over PFX_J_HOLE or NULL, c: body */
	PFX_J_DEFMACRO,     /* id, name; list: parameters (ARG); c: body; flags */
	PFX_J_CALLBLOCK,    /* a: the call; b: a DEFMACRO for the caller */
	PFX_J_FILTERBLOCK,  /* b: filters over PFX_J_HOLE; c: body */
	PFX_J_WITH,         /* list: target, expression, ...; c: body (a scope of its own) */
	PFX_J_BREAK,
	PFX_J_CONTINUE,
	/* expressions */
	PFX_J_CONST,        /* val */
	PFX_J_NAME,         /* id, name */
	PFX_J_MAKELIST,     /* list */
	PFX_J_MAKETUPLE,    /* list */
	PFX_J_MAKEDICT,     /* list: key, value, key, value, ... */
	PFX_J_COND,         /* a: test, b: then, c: else or NULL */
	PFX_J_AND,          /* a, b */
	PFX_J_OR,
	PFX_J_NOT,          /* a */
	PFX_J_NEG,
	PFX_J_POS,
	PFX_J_BINARY,       /* op: '+', '-', '*', '/', '%', PFX_J_FLOORDIV, PFX_J_POW */
	PFX_J_CONCAT,       /* list */
	PFX_J_COMPARE,      /* a; list: OPERANDs */
	PFX_J_OPERAND,      /* op: enum pfx_jcompare; a */
	PFX_J_GETATTR,      /* a; name */
	PFX_J_GETITEM,      /* a, b */
	PFX_J_SLICE,        /* a; b, c, d: start, stop, step or NULL */
	PFX_J_CALL,         /* a; list: ARGs */
	PFX_J_FILTER,       /* a; name; list: ARGs */
	PFX_J_TEST,         /* a; name; list: ARGs */
	PFX_J_NSREF,        /* id of the namespace; name of the attribute; a target only */
	PFX_J_ARG,          /* op: enum pfx_jarg; a: value or default (NULL: none); id, name */
	PFX_J_HOLE,         /* what the filters of a block are applied to */
};

enum { PFX_J_FLOORDIV = 'f', PFX_J_POW = 'p' };
enum pfx_jcompare { PFX_J_EQ, PFX_J_NE, PFX_J_LT, PFX_J_LE, PFX_J_GT, PFX_J_GE, PFX_J_IN,
	PFX_J_NOTIN };
enum pfx_jarg { PFX_J_ARG_POS, PFX_J_ARG_KEY, PFX_J_ARG_STAR, PFX_J_ARG_STARSTAR };
/* of a DEFMACRO: which special names its body mentions */
enum { PFX_J_USES_CALLER = 1, PFX_J_USES_KWARGS = 2, PFX_J_USES_VARARGS = 4 };

struct pfx_jnode {
	uint8_t kind, op, flags;
	uint32_t line, id;
	const struct pfx_jstr *name;
	struct pfx_jnode *a, *b, *c, *d, *e;
	struct pfx_jnode **list;
	size_t n_list;
	const struct pfx_jdef *def; /* FILTER, TEST: NULL when there is none of that name */
	struct pfx_jval val;
};

/* Ids of names that the interpreter itself looks for; the parser knows them from the start. */
enum {
	PFX_J_ID_LOOP, PFX_J_ID_CALLER, PFX_J_ID_KWARGS, PFX_J_ID_VARARGS, PFX_J_N_IDS
};

struct pfx_jtemplate {
	struct pfx_jnode *body;
	const struct pfx_jstr **names; /* by id */
	size_t n_names;
};

/*
 * c is a fresh context that then holds the tree. src is copied; name is for messages.
 * Returns c->rc: PFX_E_FORMAT for bad syntax, PFX_E_UNSUPPORTED for a statement that chat
 * templates have no use for (include, extends, ...), PFX_E_LIMIT, -ENOMEM.
 */
int pfx_j_parse(struct pfx_jctx *c, struct pfx_jtemplate *out, const char *src, size_t n,
	const char *name);

#endif
