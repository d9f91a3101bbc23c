#ifndef PFX_ENGINE_JINJA_PARSE_H
#define PFX_ENGINE_JINJA_PARSE_H

/* What the parser of statements and the parser of expressions share. */

#include "engine/jinja_ast.h"
#include "engine/jinja_lex.h"

/* Expressions and statements inside one another; a C stack of 512 KiB holds it. */
#define PFX_J_PARSE_DEPTH_MAX 200

struct pfx_jparser {
	struct pfx_jctx *c;
	const char *name;
	struct pfx_jtokens tokens;
	size_t at;
	uint32_t depth;
	uint32_t loops;        /* for statements around, inside the innermost macro */
	uint8_t uses;          /* special names seen: PFX_J_USES_* */
	struct pfx_jval ids;   /* dict: name to id */
	const struct pfx_jstr **names;
	size_t n_names, cap_names;
};

/* The current token; after an error always the end. */
const struct pfx_jtoken *pfx_j_cur(struct pfx_jparser *p);
void pfx_j_next(struct pfx_jparser *p);
int pfx_j_at_op(struct pfx_jparser *p, int op);
int pfx_j_at_word(struct pfx_jparser *p, const char *word);
/* Take it if it is there. */
int pfx_j_skip_op(struct pfx_jparser *p, int op);
int pfx_j_skip_word(struct pfx_jparser *p, const char *word);
/* Take it or fail. */
void pfx_j_expect_op(struct pfx_jparser *p, int op);
void pfx_j_unexpected(struct pfx_jparser *p, const char *wanted);
int pfx_j_nest(struct pfx_jparser *p);

/* Never NULL to its users: after an error a node that nobody will run. */
struct pfx_jnode *pfx_j_node(struct pfx_jparser *p, enum pfx_jkind kind);
void pfx_j_add(struct pfx_jparser *p, struct pfx_jnode *parent, struct pfx_jnode *child);
/* Sets name (ended by a NUL) and id from the current token, a name, and takes it. */
void pfx_j_take_name(struct pfx_jparser *p, struct pfx_jnode *node);

/* jinja_expr.c */
struct pfx_jnode *pfx_j_parse_expr(struct pfx_jparser *p);
/* An expression, or a tuple without parentheses. cond: may be "x if y else z". */
struct pfx_jnode *pfx_j_parse_tuple(struct pfx_jparser *p, int cond);
/* A name, a tuple of targets, or with ns an attribute of a namespace. */
struct pfx_jnode *pfx_j_parse_target(struct pfx_jparser *p, int ns);
/* "| filter ..." over node while there are any; first: the pipe of the first is missing. */
struct pfx_jnode *pfx_j_parse_filters(struct pfx_jparser *p, struct pfx_jnode *node, int first);

#endif
