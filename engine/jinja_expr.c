/* Expressions, from the loosest binding to the tightest. */

#include <string.h>

#include "engine/jinja_call.h"
#include "engine/jinja_parse.h"
#include "engine/jinja_str.h"

static struct pfx_jnode *parse_or(struct pfx_jparser *p);
static struct pfx_jnode *parse_unary(struct pfx_jparser *p, int filters);

static struct pfx_jnode *binary(struct pfx_jparser *p, enum pfx_jkind kind, int op,
	struct pfx_jnode *a, struct pfx_jnode *b)
{
	struct pfx_jnode *node = pfx_j_node(p, kind);

	node->op = (uint8_t)op;
	node->line = a->line;
	node->a = a;
	node->b = b;
	return node;
}

/* x if y else z */
static struct pfx_jnode *parse_cond(struct pfx_jparser *p)
{
	struct pfx_jnode *then = parse_or(p), *node;

	while (pfx_j_skip_word(p, "if")) {
		node = pfx_j_node(p, PFX_J_COND);
		node->b = then;
		node->a = parse_or(p);
		if (pfx_j_skip_word(p, "else")) {
			node->c = pfx_j_parse_expr(p);
		}
		then = node;
	}
	return then;
}

struct pfx_jnode *pfx_j_parse_expr(struct pfx_jparser *p)
{
	struct pfx_jnode *node;

	if (!pfx_j_nest(p)) {
		return pfx_j_node(p, PFX_J_CONST);
	}
	node = parse_cond(p);
	p->depth--;
	return node;
}

static struct pfx_jnode *parse_power(struct pfx_jparser *p)
{
	struct pfx_jnode *node = parse_unary(p, 1);

	while (pfx_j_skip_op(p, PFX_J_OP_POW)) {
		node = binary(p, PFX_J_BINARY, PFX_J_POW, node, parse_unary(p, 1));
	}
	return node;
}

static struct pfx_jnode *parse_product(struct pfx_jparser *p)
{
	static const char ops[] = { '*', '/', PFX_J_OP_FLOORDIV, '%', 0 };
	struct pfx_jnode *node = parse_power(p);
	const struct pfx_jtoken *t;
	int op;

	for (t = pfx_j_cur(p); t->type == PFX_J_T_OP && strchr(ops, t->op) != NULL;
		t = pfx_j_cur(p)) {
		op = t->op;
		pfx_j_next(p);
		node = binary(p, PFX_J_BINARY, op, node, parse_power(p));
	}
	return node;
}

static struct pfx_jnode *parse_concat(struct pfx_jparser *p)
{
	struct pfx_jnode *node = parse_product(p), *first = node;

	if (!pfx_j_at_op(p, '~')) {
		return node;
	}
	node = pfx_j_node(p, PFX_J_CONCAT);
	pfx_j_add(p, node, first);
	while (pfx_j_skip_op(p, '~')) {
		pfx_j_add(p, node, parse_product(p));
	}
	return node;
}

static struct pfx_jnode *parse_sum(struct pfx_jparser *p)
{
	struct pfx_jnode *node = parse_concat(p);
	int op;

	while (pfx_j_at_op(p, '+') || pfx_j_at_op(p, '-')) {
		op = pfx_j_cur(p)->op;
		pfx_j_next(p);
		node = binary(p, PFX_J_BINARY, op, node, parse_concat(p));
	}
	return node;
}

/* Takes a comparison operator; -1 when there is none. */
static int skip_compare(struct pfx_jparser *p)
{
	static const struct {
		char token;
		char op;
	} ops[] = {
		{ PFX_J_OP_EQ, PFX_J_EQ }, { PFX_J_OP_NE, PFX_J_NE }, { '<', PFX_J_LT },
		{ PFX_J_OP_LE, PFX_J_LE }, { '>', PFX_J_GT }, { PFX_J_OP_GE, PFX_J_GE },
	};

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (pfx_j_skip_op(p, ops[i].token)) {
			return ops[i].op;
		}
	}
	if (pfx_j_skip_word(p, "in")) {
		return PFX_J_IN;
	}
	if (pfx_j_at_word(p, "not")) {
		pfx_j_next(p);
		if (pfx_j_skip_word(p, "in")) {
			return PFX_J_NOTIN;
		}
		p->at--;
	}
	return -1;
}

static struct pfx_jnode *parse_compare(struct pfx_jparser *p)
{
	struct pfx_jnode *first = parse_sum(p), *node = NULL, *operand;
	int op;

	for (op = skip_compare(p); op >= 0; op = skip_compare(p)) {
		if (node == NULL) {
			node = pfx_j_node(p, PFX_J_COMPARE);
			node->line = first->line;
			node->a = first;
		}
		operand = pfx_j_node(p, PFX_J_OPERAND);
		operand->op = (uint8_t)op;
		operand->a = parse_sum(p);
		pfx_j_add(p, node, operand);
	}
	return node == NULL ? first : node;
}

static struct pfx_jnode *parse_not(struct pfx_jparser *p)
{
	struct pfx_jnode *node;

	if (!pfx_j_at_word(p, "not")) {
		return parse_compare(p);
	}
	node = pfx_j_node(p, PFX_J_NOT);
	pfx_j_next(p);
	if (pfx_j_nest(p)) {
		node->a = parse_not(p);
		p->depth--;
	}
	return node;
}

static struct pfx_jnode *parse_and(struct pfx_jparser *p)
{
	struct pfx_jnode *node = parse_not(p);

	while (pfx_j_skip_word(p, "and")) {
		node = binary(p, PFX_J_AND, 0, node, parse_not(p));
	}
	return node;
}

static struct pfx_jnode *parse_or(struct pfx_jparser *p)
{
	struct pfx_jnode *node = parse_and(p);

	while (pfx_j_skip_word(p, "or")) {
		node = binary(p, PFX_J_OR, 0, node, parse_and(p));
	}
	return node;
}

/* ---- primaries ---- */

static struct pfx_jnode *constant(struct pfx_jparser *p, struct pfx_jval v)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_CONST);

	node->val = v;
	return node;
}

static void note_use(struct pfx_jparser *p, const struct pfx_jnode *name)
{
	if (name->id == PFX_J_ID_CALLER) {
		p->uses |= PFX_J_USES_CALLER;
	} else if (name->id == PFX_J_ID_KWARGS) {
		p->uses |= PFX_J_USES_KWARGS;
	} else if (name->id == PFX_J_ID_VARARGS) {
		p->uses |= PFX_J_USES_VARARGS;
	}
}

static struct pfx_jnode *parse_name(struct pfx_jparser *p)
{
	struct pfx_jnode *node;

	if (pfx_j_at_word(p, "true") || pfx_j_at_word(p, "True") || pfx_j_at_word(p, "false") ||
		pfx_j_at_word(p, "False")) {
		node = constant(p, pfx_j_bool((pfx_j_cur(p)->s[0] | 32) == 't'));
		pfx_j_next(p);
	} else if (pfx_j_at_word(p, "none") || pfx_j_at_word(p, "None")) {
		node = constant(p, pfx_j_none());
		pfx_j_next(p);
	} else {
		node = pfx_j_node(p, PFX_J_NAME);
		pfx_j_take_name(p, node);
		note_use(p, node);
	}
	return node;
}

/* Strings that stand side by side are one. */
static struct pfx_jnode *parse_string(struct pfx_jparser *p)
{
	struct pfx_jnode *node = constant(p, pfx_j_cur(p)->val);
	struct pfx_jbuild b = pfx_j_build(p->c);

	pfx_j_next(p);
	if (pfx_j_cur(p)->type != PFX_J_T_STRING) {
		return node;
	}
	pfx_j_put_str(&b, node->val.u.s);
	while (pfx_j_cur(p)->type == PFX_J_T_STRING) {
		pfx_j_put_str(&b, pfx_j_cur(p)->val.u.s);
		pfx_j_next(p);
	}
	node->val = pfx_j_val(pfx_j_built(&b));
	return node;
}

static struct pfx_jnode *parse_list(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_MAKELIST);

	pfx_j_next(p);
	while (p->c->rc == 0 && !pfx_j_skip_op(p, ']')) {
		if (node->n_list > 0) {
			pfx_j_expect_op(p, ',');
			if (pfx_j_skip_op(p, ']')) {
				break;
			}
		}
		pfx_j_add(p, node, pfx_j_parse_expr(p));
	}
	return node;
}

static struct pfx_jnode *parse_dict(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_MAKEDICT);

	pfx_j_next(p);
	while (p->c->rc == 0 && !pfx_j_skip_op(p, '}')) {
		if (node->n_list > 0) {
			pfx_j_expect_op(p, ',');
			if (pfx_j_skip_op(p, '}')) {
				break;
			}
		}
		pfx_j_add(p, node, pfx_j_parse_expr(p));
		pfx_j_expect_op(p, ':');
		pfx_j_add(p, node, pfx_j_parse_expr(p));
	}
	return node;
}

static int at_tuple_end(struct pfx_jparser *p)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);

	return t->type == PFX_J_T_VAR_END || t->type == PFX_J_T_BLOCK_END ||
		t->type == PFX_J_T_EOF || pfx_j_at_op(p, ')');
}

/* Items up to where a tuple can end; empty: "()" is one, which bare nothing is not. */
static struct pfx_jnode *parse_items(struct pfx_jparser *p, int cond, int empty)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_MAKETUPLE);
	int is_tuple = 0;

	do {
		if (at_tuple_end(p) || pfx_j_at_word(p, "recursive")) {
			break;
		}
		pfx_j_add(p, node, cond ? pfx_j_parse_expr(p) : parse_or(p));
		is_tuple |= pfx_j_at_op(p, ',');
	} while (pfx_j_skip_op(p, ','));
	if (!is_tuple && node->n_list == 1) {
		return node->list[0];
	}
	if (!is_tuple && !empty) {
		pfx_j_unexpected(p, "an expression");
	}
	return node;
}

struct pfx_jnode *pfx_j_parse_tuple(struct pfx_jparser *p, int cond)
{
	struct pfx_jnode *node;

	if (!pfx_j_nest(p)) {
		return pfx_j_node(p, PFX_J_CONST);
	}
	node = parse_items(p, cond, 0);
	p->depth--;
	return node;
}

static struct pfx_jnode *parse_primary(struct pfx_jparser *p)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);
	struct pfx_jnode *node;

	switch ((enum pfx_jtok)t->type) {
	case PFX_J_T_NAME:
		return parse_name(p);
	case PFX_J_T_STRING:
		return parse_string(p);
	case PFX_J_T_INT:
	case PFX_J_T_FLOAT:
		node = constant(p, t->val);
		pfx_j_next(p);
		return node;
	default:
		break;
	}
	if (pfx_j_at_op(p, '[')) {
		return parse_list(p);
	}
	if (pfx_j_at_op(p, '{')) {
		return parse_dict(p);
	}
	if (pfx_j_skip_op(p, '(')) {
		node = parse_items(p, 1, 1);
		pfx_j_expect_op(p, ')');
		return node;
	}
	pfx_j_unexpected(p, "an expression");
	return pfx_j_node(p, PFX_J_CONST);
}

/* ---- what follows a primary ---- */

static void parse_args(struct pfx_jparser *p, struct pfx_jnode *node)
{
	struct pfx_jnode *arg;
	int last = PFX_J_ARG_POS, named;

	pfx_j_expect_op(p, '(');
	while (p->c->rc == 0 && !pfx_j_skip_op(p, ')')) {
		if (node->n_list > 0) {
			pfx_j_expect_op(p, ',');
			if (pfx_j_skip_op(p, ')')) {
				break;
			}
		}
		arg = pfx_j_node(p, PFX_J_ARG);
		named = pfx_j_cur(p)->type == PFX_J_T_NAME && p->at + 1 < p->tokens.n &&
			p->tokens.v[p->at + 1].type == PFX_J_T_OP && p->tokens.v[p->at + 1].op == '=';
		if (pfx_j_skip_op(p, PFX_J_OP_POW)) {
			arg->op = PFX_J_ARG_STARSTAR;
		} else if (pfx_j_skip_op(p, '*')) {
			arg->op = PFX_J_ARG_STAR;
		} else if (named) {
			arg->op = PFX_J_ARG_KEY;
			pfx_j_take_name(p, arg);
			pfx_j_next(p);
		}
		if (last == PFX_J_ARG_STARSTAR || (arg->op == PFX_J_ARG_POS && last != PFX_J_ARG_POS) ||
			(arg->op == PFX_J_ARG_STAR && last == PFX_J_ARG_STAR)) {
			pfx_j_syntax(p->c, p->name, arg->line, "invalid order of arguments in a call");
		}
		last = arg->op;
		arg->a = pfx_j_parse_expr(p);
		pfx_j_add(p, node, arg);
	}
}

static struct pfx_jnode *parse_call(struct pfx_jparser *p, struct pfx_jnode *callee)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_CALL);

	node->a = callee;
	parse_args(p, node);
	return node;
}

static int at_subscript_end(struct pfx_jparser *p)
{
	return pfx_j_at_op(p, ']') || pfx_j_at_op(p, ',') || pfx_j_at_op(p, ':');
}

/* One subscript: an index, or a slice, which then is a node over `of`. */
static struct pfx_jnode *parse_subscribed(struct pfx_jparser *p, struct pfx_jnode *of, int *slice)
{
	struct pfx_jnode *start = NULL, *node;

	*slice = 0;
	if (!pfx_j_at_op(p, ':')) {
		start = pfx_j_parse_expr(p);
		if (!pfx_j_at_op(p, ':')) {
			return start;
		}
	}
	*slice = 1;
	node = pfx_j_node(p, PFX_J_SLICE);
	node->a = of;
	node->b = start;
	pfx_j_next(p);
	if (!at_subscript_end(p)) {
		node->c = pfx_j_parse_expr(p);
	}
	if (pfx_j_skip_op(p, ':') && !at_subscript_end(p)) {
		node->d = pfx_j_parse_expr(p);
	}
	return node;
}

static struct pfx_jnode *parse_subscript(struct pfx_jparser *p, struct pfx_jnode *of)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_GETITEM), *tuple;
	int slice;

	pfx_j_next(p);
	node->a = of;
	node->b = parse_subscribed(p, of, &slice);
	if (!pfx_j_at_op(p, ',')) {
		pfx_j_expect_op(p, ']');
		return slice ? node->b : node;
	}
	tuple = pfx_j_node(p, PFX_J_MAKETUPLE);
	pfx_j_add(p, tuple, node->b);
	while (pfx_j_skip_op(p, ',') && p->c->rc == 0) {
		pfx_j_add(p, tuple, parse_subscribed(p, of, &slice));
	}
	pfx_j_expect_op(p, ']');
	node->b = tuple;
	return node;
}

static struct pfx_jnode *parse_attribute(struct pfx_jparser *p, struct pfx_jnode *of)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_GETATTR);

	pfx_j_next(p);
	node->a = of;
	if (pfx_j_cur(p)->type == PFX_J_T_INT) {
		node->kind = PFX_J_GETITEM;
		node->b = constant(p, pfx_j_cur(p)->val);
		pfx_j_next(p);
		return node;
	}
	pfx_j_take_name(p, node);
	return node;
}

static struct pfx_jnode *parse_postfix(struct pfx_jparser *p, struct pfx_jnode *node)
{
	while (p->c->rc == 0) {
		if (pfx_j_at_op(p, '.')) {
			node = parse_attribute(p, node);
		} else if (pfx_j_at_op(p, '[')) {
			node = parse_subscript(p, node);
		} else if (pfx_j_at_op(p, '(')) {
			node = parse_call(p, node);
		} else {
			break;
		}
	}
	return node;
}

/* A filter's or test's name; dots belong to it. */
static void take_dotted(struct pfx_jparser *p, struct pfx_jnode *node)
{
	struct pfx_jnode *more;
	struct pfx_jbuild b;

	pfx_j_take_name(p, node);
	while (pfx_j_skip_op(p, '.')) {
		more = pfx_j_node(p, PFX_J_NAME);
		pfx_j_take_name(p, more);
		b = pfx_j_build(p->c);
		pfx_j_put_str(&b, node->name);
		pfx_j_puts(&b, ".", 0);
		pfx_j_put_str(&b, more->name);
		node->name = pfx_j_built(&b);
	}
}

struct pfx_jnode *pfx_j_parse_filters(struct pfx_jparser *p, struct pfx_jnode *node, int first)
{
	struct pfx_jnode *filter;

	while (p->c->rc == 0 && (first || pfx_j_skip_op(p, '|'))) {
		first = 0;
		filter = pfx_j_node(p, PFX_J_FILTER);
		filter->a = node;
		take_dotted(p, filter);
		if (p->c->rc == 0) {
			filter->def = pfx_j_filter_named(filter->name);
		}
		if (pfx_j_at_op(p, '(')) {
			parse_args(p, filter);
		}
		node = filter;
	}
	return node;
}

static int at_test_argument(struct pfx_jparser *p)
{
	switch ((enum pfx_jtok)pfx_j_cur(p)->type) {
	case PFX_J_T_NAME:
		return !pfx_j_at_word(p, "else") && !pfx_j_at_word(p, "or") && !pfx_j_at_word(p, "and");
	case PFX_J_T_STRING:
	case PFX_J_T_INT:
	case PFX_J_T_FLOAT:
		return 1;
	default:
		return pfx_j_at_op(p, '[') || pfx_j_at_op(p, '{');
	}
}

static struct pfx_jnode *parse_test(struct pfx_jparser *p, struct pfx_jnode *of)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_TEST), *arg, *not;
	int negated;

	pfx_j_next(p);
	negated = pfx_j_skip_word(p, "not");
	node->a = of;
	take_dotted(p, node);
	if (p->c->rc == 0) {
		node->def = pfx_j_test_named(node->name);
	}
	if (pfx_j_at_op(p, '(')) {
		parse_args(p, node);
	} else if (pfx_j_at_word(p, "is")) {
		pfx_j_syntax(p->c, p->name, node->line, "you cannot chain multiple tests with is");
	} else if (at_test_argument(p)) {
		arg = pfx_j_node(p, PFX_J_ARG);
		arg->a = parse_postfix(p, parse_primary(p));
		pfx_j_add(p, node, arg);
	}
	if (!negated) {
		return node;
	}
	not = pfx_j_node(p, PFX_J_NOT);
	not->a = node;
	return not;
}

static struct pfx_jnode *parse_filters_and_tests(struct pfx_jparser *p, struct pfx_jnode *node)
{
	while (p->c->rc == 0) {
		if (pfx_j_at_op(p, '|')) {
			node = pfx_j_parse_filters(p, node, 0);
		} else if (pfx_j_at_word(p, "is")) {
			node = parse_test(p, node);
		} else if (pfx_j_at_op(p, '(')) {
			node = parse_call(p, node);
		} else {
			break;
		}
	}
	return node;
}

static struct pfx_jnode *parse_unary(struct pfx_jparser *p, int filters)
{
	struct pfx_jnode *node;

	if (!pfx_j_nest(p)) {
		return pfx_j_node(p, PFX_J_CONST);
	}
	if (pfx_j_at_op(p, '-') || pfx_j_at_op(p, '+')) {
		node = pfx_j_node(p, pfx_j_at_op(p, '-') ? PFX_J_NEG : PFX_J_POS);
		pfx_j_next(p);
		node->a = parse_unary(p, 0);
	} else {
		node = parse_primary(p);
	}
	node = parse_postfix(p, node);
	if (filters) {
		node = parse_filters_and_tests(p, node);
	}
	p->depth--;
	return node;
}

/* ---- targets ---- */

static struct pfx_jnode *parse_one_target(struct pfx_jparser *p, int ns)
{
	struct pfx_jnode *node;

	if (pfx_j_at_op(p, '(')) {
		if (!pfx_j_nest(p)) {
			return pfx_j_node(p, PFX_J_CONST);
		}
		pfx_j_next(p);
		node = pfx_j_parse_target(p, 0);
		pfx_j_expect_op(p, ')');
		p->depth--;
		return node;
	}
	node = parse_name(p);
	if (node->kind != PFX_J_NAME) {
		pfx_j_syntax(p->c, p->name, node->line, "cannot assign to a constant");
		return node;
	}
	if (ns && pfx_j_skip_op(p, '.')) {
		struct pfx_jnode *attr = pfx_j_node(p, PFX_J_NAME);

		pfx_j_take_name(p, attr);
		node->kind = PFX_J_NSREF;
		node->name = attr->name;
	}
	return node;
}

struct pfx_jnode *pfx_j_parse_target(struct pfx_jparser *p, int ns)
{
	struct pfx_jnode *node = parse_one_target(p, ns), *tuple;

	if (!pfx_j_at_op(p, ',')) {
		return node;
	}
	tuple = pfx_j_node(p, PFX_J_MAKETUPLE);
	pfx_j_add(p, tuple, node);
	while (pfx_j_skip_op(p, ',')) {
		if (at_tuple_end(p) || pfx_j_at_word(p, "in") || pfx_j_at_op(p, '=')) {
			break;
		}
		pfx_j_add(p, tuple, parse_one_target(p, ns));
	}
	return tuple;
}
