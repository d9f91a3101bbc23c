#include "engine/jinja_eval.h"

#include <string.h>

#include "engine/jinja_ops.h"
#include "engine/jinja_text.h"

/* ---- names ---- */

struct pfx_jscope *pfx_j_scope(struct pfx_jctx *c, struct pfx_jscope *up)
{
	struct pfx_jscope *scope = pfx_j_alloc(c, sizeof(*scope));

	if (scope != NULL) {
		*scope = (struct pfx_jscope){ .up = up };
		c->scope = scope;
	}
	return scope;
}

void pfx_j_bind(struct pfx_jctx *c, uint32_t id, struct pfx_jval v)
{
	struct pfx_jscope *scope = c->scope;
	size_t cap;
	void *p;

	if (c->rc != 0) {
		return;
	}
	if (scope == NULL) {
		c->globals[id] = v;
		return;
	}
	for (size_t i = 0; i < scope->n; i++) {
		if (scope->v[i].id == id) {
			scope->v[i].val = v;
			return;
		}
	}
	if (scope->n == scope->cap) {
		cap = scope->cap < 4 ? 4 : scope->cap * 2;
		p = pfx_j_grow(c, scope->v, scope->cap * sizeof(*scope->v), cap * sizeof(*scope->v));
		if (p == NULL) {
			return;
		}
		scope->v = p;
		scope->cap = cap;
	}
	scope->v[scope->n++] = (struct pfx_jbinding){ id, v };
}

static struct pfx_jval lookup(struct pfx_jctx *c, uint32_t id, const struct pfx_jstr *name)
{
	for (const struct pfx_jscope *scope = c->scope; scope != NULL; scope = scope->up) {
		for (size_t i = 0; i < scope->n; i++) {
			if (scope->v[i].id == id) {
				return scope->v[i].val;
			}
		}
	}
	if (pfx_j_given(c->globals[id])) {
		return c->globals[id];
	}
	return pfx_j_undef(PFX_J_BY_NAME, PFX_J_ABSENT, name);
}

static void assign_tuple(struct pfx_jctx *c, const struct pfx_jnode *target, struct pfx_jval v)
{
	struct pfx_jval items = pfx_j_collect(c, v);
	size_t want = target->n_list;

	if (c->rc != 0) {
		return;
	}
	if (items.u.l->n < want) {
		pfx_j_fail(c, "not enough values to unpack (expected %zu, got %zu)", want, items.u.l->n);
	} else if (items.u.l->n > want) {
		pfx_j_fail(c, "too many values to unpack (expected %zu)", want);
	}
	for (size_t i = 0; i < want && c->rc == 0; i++) {
		pfx_j_assign(c, target->list[i], items.u.l->v[i]);
	}
}

void pfx_j_assign(struct pfx_jctx *c, const struct pfx_jnode *target, struct pfx_jval v)
{
	struct pfx_jval space;

	if (target->kind == PFX_J_NAME) {
		pfx_j_bind(c, target->id, v);
	} else if (target->kind == PFX_J_MAKETUPLE) {
		assign_tuple(c, target, v);
	} else {
		space = lookup(c, target->id, target->name);
		if (space.type != PFX_J_SPACE) {
			pfx_j_fail(c, "cannot assign attribute on non-namespace object");
			return;
		}
		pfx_j_dict_set(c, space.u.d, pfx_j_val(target->name), v);
	}
}

/* ---- expressions ---- */

static struct pfx_jval make_list(struct pfx_jctx *c, const struct pfx_jnode *node,
	enum pfx_jtype type)
{
	struct pfx_jval v = pfx_j_list(c, type);

	for (size_t i = 0; i < node->n_list && c->rc == 0; i++) {
		pfx_j_push(c, v, pfx_j_eval(c, node->list[i]));
	}
	return v;
}

static struct pfx_jval make_dict(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v = pfx_j_dict(c, PFX_J_DICT), key;

	for (size_t i = 0; i + 1 < node->n_list && c->rc == 0; i += 2) {
		key = pfx_j_eval(c, node->list[i]);
		pfx_j_dict_set(c, v.u.d, key, pfx_j_eval(c, node->list[i + 1]));
	}
	return v;
}

static struct pfx_jval concat(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval items = make_list(c, node, PFX_J_LIST);
	struct pfx_jbuild b;

	if (c->rc != 0) {
		return items;
	}
	b = pfx_j_extend(c, pfx_j_to_str(c, items.u.l->v[0]));
	for (size_t i = 1; i < items.u.l->n && c->rc == 0; i++) {
		pfx_j_put_val(&b, items.u.l->v[i]);
	}
	return pfx_j_val(pfx_j_built(&b));
}

static struct pfx_jval compare(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval left = pfx_j_eval(c, node->a), right;
	int yes = 1;

	for (size_t i = 0; i < node->n_list && yes && c->rc == 0; i++) {
		right = pfx_j_eval(c, node->list[i]->a);
		yes = pfx_j_compare(c, node->list[i]->op, left, right);
		left = right;
	}
	return pfx_j_bool(yes);
}

static void push_arg(struct pfx_jctx *c, struct pfx_jargs *args, struct pfx_jval v)
{
	struct pfx_jval *p;

	/* Full at 0 and at each power of two from 8 on. */
	if (args->n == 0 || (args->n >= 8 && (args->n & (args->n - 1)) == 0)) {
		p = pfx_j_grow(c, args->v, args->n * sizeof(*p), (args->n ? args->n * 2 : 8) * sizeof(*p));
		if (p == NULL) {
			return;
		}
		args->v = p;
	}
	args->v[args->n++] = v;
}

static void push_kwarg(struct pfx_jctx *c, struct pfx_jargs *args, const struct pfx_jstr *name,
	struct pfx_jval v)
{
	struct pfx_jkwarg *p;

	for (size_t i = 0; i < args->n_kw && pfx_j_step(c, 1); i++) {
		if (pfx_j_str_eq(args->kw[i].name, name)) {
			pfx_j_fail(c, "keyword argument '%.*s' is given twice",
				(int)(name->n < 100 ? name->n : 100), name->s);
		}
	}
	if (args->n_kw == 0 || (args->n_kw >= 8 && (args->n_kw & (args->n_kw - 1)) == 0)) {
		p = pfx_j_grow(c, args->kw, args->n_kw * sizeof(*p),
			(args->n_kw ? args->n_kw * 2 : 8) * sizeof(*p));
		if (p == NULL) {
			return;
		}
		args->kw = p;
	}
	args->kw[args->n_kw++] = (struct pfx_jkwarg){ name, v };
}

static void push_star(struct pfx_jctx *c, struct pfx_jargs *args, struct pfx_jval v, int kw)
{
	struct pfx_jval list;
	size_t i;

	if (!kw) {
		list = pfx_j_collect(c, v);
		for (i = 0; c->rc == 0 && i < list.u.l->n; i++) {
			push_arg(c, args, list.u.l->v[i]);
		}
		return;
	}
	if (v.type != PFX_J_DICT) {
		pfx_j_fail(c, "argument after ** must be a mapping, not %s", pfx_j_type_name(v));
		return;
	}
	for (i = 0; c->rc == 0 && i < v.u.d->n; i++) {
		if (v.u.d->v[i].key.type != PFX_J_STR) {
			pfx_j_fail(c, "keywords must be strings");
			return;
		}
		push_kwarg(c, args, v.u.d->v[i].key.u.s, v.u.d->v[i].val);
	}
}

static struct pfx_jargs eval_args(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jargs args = { NULL, 0, NULL, 0 };
	const struct pfx_jnode *arg;
	struct pfx_jval v;

	for (size_t i = 0; i < node->n_list && c->rc == 0; i++) {
		arg = node->list[i];
		v = pfx_j_eval(c, arg->a);
		if (c->rc != 0) {
			break;
		}
		if (arg->op == PFX_J_ARG_POS) {
			push_arg(c, &args, v);
		} else if (arg->op == PFX_J_ARG_KEY) {
			push_kwarg(c, &args, arg->name, v);
		} else {
			push_star(c, &args, v, arg->op == PFX_J_ARG_STARSTAR);
		}
	}
	return args;
}

static struct pfx_jval eval_call(struct pfx_jctx *c, const struct pfx_jnode *node,
	const struct pfx_jval *caller)
{
	static const struct pfx_jstr caller_name = { .s = "caller", .n = 6, .n_chars = 6 };
	struct pfx_jval callee = pfx_j_eval(c, node->a);
	struct pfx_jargs args = eval_args(c, node);

	if (caller != NULL) {
		push_kwarg(c, &args, &caller_name, *caller);
	}
	c->line = node->line;
	return pfx_j_call(c, callee, &args);
}

/* self: what stands before the pipe, or the text of a block. */
static struct pfx_jval apply_filter(struct pfx_jctx *c, const struct pfx_jnode *node,
	struct pfx_jval self)
{
	struct pfx_jargs args = eval_args(c, node);

	c->line = node->line;
	if (node->def == NULL) {
		pfx_j_fail(c, "no filter named '%.*s'", (int)node->name->n, node->name->s);
		return pfx_j_none();
	}
	return pfx_j_call_def(c, node->def, self, &args);
}

static struct pfx_jval eval_test(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval self = pfx_j_eval(c, node->a);
	struct pfx_jargs args = eval_args(c, node);

	c->line = node->line;
	if (node->def == NULL) {
		pfx_j_fail(c, "no test named '%.*s'", (int)node->name->n, node->name->s);
		return pfx_j_none();
	}
	return pfx_j_call_def(c, node->def, self, &args);
}

static struct pfx_jval eval_slice(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v = pfx_j_eval(c, node->a);
	struct pfx_jval start = node->b != NULL ? pfx_j_eval(c, node->b) : pfx_j_none();
	struct pfx_jval stop = node->c != NULL ? pfx_j_eval(c, node->c) : pfx_j_none();
	struct pfx_jval step = node->d != NULL ? pfx_j_eval(c, node->d) : pfx_j_none();

	return pfx_j_slice(c, v, start, stop, step);
}

static struct pfx_jval eval_cond(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	if (pfx_j_truth(c, pfx_j_eval(c, node->a))) {
		return pfx_j_eval(c, node->b);
	}
	if (node->c != NULL) {
		return pfx_j_eval(c, node->c);
	}
	return pfx_j_undef_hint(c, "the inline if-expression evaluated to false and no else "
		"section was defined.");
}

static struct pfx_jval eval_logic(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v = pfx_j_eval(c, node->a);

	return pfx_j_truth(c, v) == (node->kind == PFX_J_AND) ? pfx_j_eval(c, node->b) : v;
}

static struct pfx_jval eval_binary(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval a = pfx_j_eval(c, node->a), b = pfx_j_eval(c, node->b);

	return pfx_j_binary(c, node->op, a, b);
}

static struct pfx_jval eval_item(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v = pfx_j_eval(c, node->a);

	return pfx_j_getitem(c, v, pfx_j_eval(c, node->b));
}

static struct pfx_jval eval_kind(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	switch ((enum pfx_jkind)node->kind) {
	case PFX_J_CONST:
		return node->val;
	case PFX_J_NAME:
		return lookup(c, node->id, node->name);
	case PFX_J_MAKELIST:
		return make_list(c, node, PFX_J_LIST);
	case PFX_J_MAKETUPLE:
		return make_list(c, node, PFX_J_TUPLE);
	case PFX_J_MAKEDICT:
		return make_dict(c, node);
	case PFX_J_COND:
		return eval_cond(c, node);
	case PFX_J_AND:
	case PFX_J_OR:
		return eval_logic(c, node);
	case PFX_J_NOT:
		return pfx_j_bool(!pfx_j_truth(c, pfx_j_eval(c, node->a)));
	case PFX_J_NEG:
	case PFX_J_POS:
		return pfx_j_negate(c, pfx_j_eval(c, node->a), node->kind == PFX_J_NEG);
	case PFX_J_BINARY:
		return eval_binary(c, node);
	case PFX_J_CONCAT:
		return concat(c, node);
	case PFX_J_COMPARE:
		return compare(c, node);
	case PFX_J_GETATTR:
		return pfx_j_getattr(c, pfx_j_eval(c, node->a), node->name);
	case PFX_J_GETITEM:
		return eval_item(c, node);
	case PFX_J_SLICE:
		return eval_slice(c, node);
	case PFX_J_CALL:
		return eval_call(c, node, NULL);
	case PFX_J_FILTER:
		return apply_filter(c, node, pfx_j_eval(c, node->a));
	case PFX_J_TEST:
		return eval_test(c, node);
	case PFX_J_HOLE:
		return c->hole;
	default:
		pfx_j_fail(c, "a statement stands where an expression should");
		return pfx_j_none();
	}
}

struct pfx_jval pfx_j_eval(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v;

	if (c->rc != 0 || !pfx_j_enter(c)) {
		return pfx_j_none();
	}
	c->line = node->line;
	v = eval_kind(c, node);
	pfx_j_leave(c);
	return c->rc != 0 ? pfx_j_none() : v;
}

/* ---- statements ---- */

static enum pfx_jflow exec_body(struct pfx_jctx *c, const struct pfx_jnode *body)
{
	enum pfx_jflow flow = PFX_J_GO_ON;

	for (size_t i = 0; i < body->n_list && flow == PFX_J_GO_ON && c->rc == 0; i++) {
		flow = pfx_j_exec(c, body->list[i]);
	}
	return flow;
}

static enum pfx_jflow exec_if(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	for (size_t i = 0; i + 1 < node->n_list && c->rc == 0; i += 2) {
		if (pfx_j_truth(c, pfx_j_eval(c, node->list[i]))) {
			return pfx_j_exec(c, node->list[i + 1]);
		}
	}
	return node->c != NULL ? pfx_j_exec(c, node->c) : PFX_J_GO_ON;
}

const struct pfx_jstr *pfx_j_capture(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jbuild b = pfx_j_build(c), *out = c->out;

	c->out = &b;
	pfx_j_exec(c, node);
	c->out = out;
	return pfx_j_built(&b);
}

/* The text of a block, run in a scope of its own, through the block's filters. */
static struct pfx_jval filtered_block(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jscope *scope = c->scope;
	struct pfx_jval hole = c->hole, v;

	if (pfx_j_scope(c, scope) == NULL) {
		return pfx_j_none();
	}
	v = pfx_j_val(pfx_j_capture(c, node->c));
	if (node->b != NULL && c->rc == 0) {
		c->hole = v;
		v = pfx_j_eval(c, node->b);
		c->hole = hole;
	}
	c->scope = scope;
	return v;
}

static enum pfx_jflow exec_with(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jscope *scope = c->scope, *inner;
	enum pfx_jflow flow;
	struct pfx_jval values = pfx_j_list(c, PFX_J_LIST);

	for (size_t i = 1; i < node->n_list && c->rc == 0; i += 2) {
		pfx_j_push(c, values, pfx_j_eval(c, node->list[i]));
	}
	inner = pfx_j_scope(c, scope);
	if (inner == NULL) {
		return PFX_J_GO_ON;
	}
	for (size_t i = 0; i + 1 < node->n_list && c->rc == 0; i += 2) {
		pfx_j_assign(c, node->list[i], values.u.l->v[i / 2]);
	}
	flow = pfx_j_exec(c, node->c);
	c->scope = scope;
	return flow;
}

static void exec_call_block(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval caller = pfx_j_macro(c, node->b), v;

	v = eval_call(c, node->a, &caller);
	if (c->rc == 0) {
		pfx_j_put_val(c->out, v);
	}
}

static enum pfx_jflow exec_kind(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v;

	switch ((enum pfx_jkind)node->kind) {
	case PFX_J_BODY:
		return exec_body(c, node);
	case PFX_J_DATA:
		pfx_j_put_str(c->out, node->val.u.s);
		return PFX_J_GO_ON;
	case PFX_J_PRINT:
		v = pfx_j_eval(c, node->a);
		if (c->rc == 0) {
			pfx_j_put_val(c->out, v);
		}
		return PFX_J_GO_ON;
	case PFX_J_IF:
		return exec_if(c, node);
	case PFX_J_FOR:
		pfx_j_exec_for(c, node);
		return PFX_J_GO_ON;
	case PFX_J_SET:
		pfx_j_assign(c, node->a, pfx_j_eval(c, node->b));
		return PFX_J_GO_ON;
	case PFX_J_SETBLOCK:
		pfx_j_assign(c, node->a, filtered_block(c, node));
		return PFX_J_GO_ON;
	case PFX_J_FILTERBLOCK:
		v = filtered_block(c, node);
		if (c->rc == 0) {
			pfx_j_put_val(c->out, v);
		}
		return PFX_J_GO_ON;
	case PFX_J_DEFMACRO:
		pfx_j_bind(c, node->id, pfx_j_macro(c, node));
		return PFX_J_GO_ON;
	case PFX_J_CALLBLOCK:
		exec_call_block(c, node);
		return PFX_J_GO_ON;
	case PFX_J_WITH:
		return exec_with(c, node);
	case PFX_J_BREAK:
		return PFX_J_BROKE;
	case PFX_J_CONTINUE:
		return PFX_J_CONTINUED;
	default:
		pfx_j_fail(c, "an expression stands where a statement should");
		return PFX_J_GO_ON;
	}
}

enum pfx_jflow pfx_j_exec(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	enum pfx_jflow flow;

	if (c->rc != 0 || !pfx_j_enter(c)) {
		return PFX_J_GO_ON;
	}
	c->line = node->line;
	flow = exec_kind(c, node);
	pfx_j_leave(c);
	return flow;
}

int pfx_j_render(struct pfx_jctx *c, const struct pfx_jtemplate *t, struct pfx_jbuild *out)
{
	c->out = out;
	pfx_j_exec(c, t->body);
	return c->rc;
}

/* ---- macros ---- */

struct pfx_jval pfx_j_macro(struct pfx_jctx *c, const struct pfx_jnode *def)
{
	struct pfx_jval v = pfx_j_none();
	struct pfx_jmacro *m = pfx_j_alloc(c, sizeof(*m));

	if (m == NULL) {
		return v;
	}
	*m = (struct pfx_jmacro){ def, c->scope };
	for (struct pfx_jscope *scope = c->scope; scope != NULL; scope = scope->up) {
		scope->kept = 1;
	}
	v.type = PFX_J_MACRO;
	v.u.m = m;
	return v;
}

static int take_kwarg(const struct pfx_jargs *all, char *used, const struct pfx_jstr *name,
	struct pfx_jval *out)
{
	for (size_t i = 0; i < all->n_kw; i++) {
		if (!used[i] && pfx_j_str_eq(all->kw[i].name, name)) {
			used[i] = 1;
			*out = all->kw[i].val;
			return 1;
		}
	}
	return 0;
}

static void bind_parameters(struct pfx_jctx *c, const struct pfx_jnode *def,
	const struct pfx_jargs *all, char *used)
{
	const struct pfx_jnode *param;
	struct pfx_jval v;

	for (size_t i = 0; i < def->n_list && c->rc == 0; i++) {
		param = def->list[i];
		if (i < all->n) {
			v = all->v[i];
		} else if (!take_kwarg(all, used, param->name, &v)) {
			v = param->a != NULL ? pfx_j_eval(c, param->a)
				: pfx_j_undef(PFX_J_BY_NAME, PFX_J_ABSENT, param->name);
		}
		pfx_j_bind(c, param->id, v);
	}
}

/* caller, kwargs and varargs are bound in macros that mention them, and refused in others. */
static void bind_special(struct pfx_jctx *c, const struct pfx_jnode *def,
	const struct pfx_jargs *all, char *used)
{
	static const struct pfx_jstr caller_name = { .s = "caller", .n = 6, .n_chars = 6 };
	struct pfx_jval kwargs = pfx_j_dict(c, PFX_J_DICT), varargs = pfx_j_list(c, PFX_J_TUPLE), v;

	if (def->flags & PFX_J_USES_CALLER) {
		if (!take_kwarg(all, used, &caller_name, &v)) {
			v = pfx_j_undef_hint(c, "No caller defined");
		}
		pfx_j_bind(c, PFX_J_ID_CALLER, v);
	}
	for (size_t i = 0; i < all->n_kw && c->rc == 0; i++) {
		if (!used[i] && !(def->flags & PFX_J_USES_KWARGS)) {
			pfx_j_fail(c, "the macro takes no keyword argument '%.*s'",
				(int)(all->kw[i].name->n < 100 ? all->kw[i].name->n : 100), all->kw[i].name->s);
		} else if (!used[i]) {
			pfx_j_dict_set(c, kwargs.u.d, pfx_j_val(all->kw[i].name), all->kw[i].val);
		}
	}
	for (size_t i = def->n_list; i < all->n && c->rc == 0; i++) {
		pfx_j_push(c, varargs, all->v[i]);
	}
	if (c->rc == 0 && varargs.u.l->n > 0 && !(def->flags & PFX_J_USES_VARARGS)) {
		pfx_j_fail(c, "macro takes not more than %zu argument(s)", def->n_list);
	}
	if (def->flags & PFX_J_USES_KWARGS) {
		pfx_j_bind(c, PFX_J_ID_KWARGS, kwargs);
	}
	if (def->flags & PFX_J_USES_VARARGS) {
		pfx_j_bind(c, PFX_J_ID_VARARGS, varargs);
	}
}

struct pfx_jval pfx_j_call_macro(struct pfx_jctx *c, const struct pfx_jmacro *m,
	const struct pfx_jargs *all)
{
	struct pfx_jscope *scope = c->scope;
	char *used = pfx_j_alloc(c, all->n_kw + 1);
	struct pfx_jval v = pfx_j_none();

	if (used == NULL || pfx_j_scope(c, m->scope) == NULL) {
		return v;
	}
	memset(used, 0, all->n_kw + 1);
	bind_parameters(c, m->def, all, used);
	bind_special(c, m->def, all, used);
	if (c->rc == 0) {
		v = pfx_j_val(pfx_j_capture(c, m->def->c));
	}
	c->scope = scope;
	return v;
}
