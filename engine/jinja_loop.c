/*
 * `for`. Items are fetched one by one, as jinja2's generators do, so that a filter of the
 * loop sees what the body has changed; loop.last and its like fetch ahead.
 */

#include <string.h>

#include "engine/jinja_eval.h"
#include "engine/jinja_ops.h"

struct pfx_jloop {
	const struct pfx_jnode *node;
	struct pfx_jscope *outer, *filter_scope;
	struct pfx_jval source;
	size_t at;              /* next one of the source */
	struct pfx_jlist *ahead; /* fetched, not yet used, from ahead->pos on */
	int64_t index0, length, depth0;
	struct pfx_jval before, current, changed;
};

/* The source's next value, whatever the filter says. */
static int source_next(struct pfx_jctx *c, struct pfx_jloop *loop, struct pfx_jval *out)
{
	struct pfx_jlist *l;
	size_t len;

	switch ((enum pfx_jtype)loop->source.type) {
	case PFX_J_STR:
		if (loop->at >= loop->source.u.s->n) {
			return 0;
		}
		pfx_j_cp(loop->source.u.s, loop->at, &len);
		*out = pfx_j_char(c, loop->source.u.s, loop->at, len);
		loop->at += len;
		return c->rc == 0;
	case PFX_J_RANGE:
		if (loop->at >= loop->source.u.r->n) {
			return 0;
		}
		*out = pfx_j_range_at(loop->source.u.r, loop->at++);
		return 1;
	case PFX_J_ITER:
		l = loop->source.u.l;
		if (l->pos >= l->n) {
			return 0;
		}
		*out = l->v[l->pos++];
		return 1;
	default:
		l = loop->source.u.l;
		if (loop->at >= l->n) {
			return 0;
		}
		*out = l->v[loop->at++];
		return 1;
	}
}

/* The next value that the loop's filter lets through. */
static int filtered_next(struct pfx_jctx *c, struct pfx_jloop *loop, struct pfx_jval *out)
{
	struct pfx_jscope *scope = c->scope;
	int keep = 0;

	while (!keep && pfx_j_step(c, 1) && source_next(c, loop, out)) {
		if (loop->node->e == NULL) {
			return 1;
		}
		if (loop->filter_scope == NULL || loop->filter_scope->kept) {
			loop->filter_scope = pfx_j_scope(c, loop->outer);
			if (loop->filter_scope == NULL) {
				break;
			}
		}
		c->scope = loop->filter_scope;
		c->scope->n = 0;
		pfx_j_assign(c, loop->node->a, *out);
		keep = pfx_j_truth(c, pfx_j_eval(c, loop->node->e)) && c->rc == 0;
		c->scope = scope;
	}
	c->scope = scope;
	return keep;
}

static int has_ahead(const struct pfx_jloop *loop)
{
	return loop->ahead->pos < loop->ahead->n;
}

/* Fetches one more to lie ahead; false at the end. */
static int fetch(struct pfx_jctx *c, struct pfx_jloop *loop)
{
	struct pfx_jval v, list = { .type = PFX_J_LIST };

	if (!filtered_next(c, loop, &v)) {
		return 0;
	}
	if (!has_ahead(loop)) {
		loop->ahead->n = loop->ahead->pos = 0;
	}
	list.u.l = loop->ahead;
	pfx_j_push(c, list, v);
	return c->rc == 0;
}

static int loop_next(struct pfx_jctx *c, struct pfx_jloop *loop)
{
	struct pfx_jval v;

	if (has_ahead(loop)) {
		v = loop->ahead->v[loop->ahead->pos++];
	} else if (!filtered_next(c, loop, &v)) {
		return 0;
	}
	loop->before = loop->current;
	loop->current = v;
	loop->index0++;
	return 1;
}

static int64_t loop_length(struct pfx_jctx *c, struct pfx_jloop *loop)
{
	if (loop->length < 0 && loop->node->e == NULL) {
		loop->length = pfx_j_len(loop->source);
	}
	if (loop->length < 0) {
		while (fetch(c, loop)) {
		}
		loop->length = (int64_t)(loop->ahead->n - loop->ahead->pos) + loop->index0 + 1;
	}
	return loop->length;
}

/* Runs the loop over v; the context's scope is the loop's outer one. */
static void run_loop(struct pfx_jctx *c, const struct pfx_jnode *node, struct pfx_jval v,
	int64_t depth0)
{
	struct pfx_jloop *loop = pfx_j_alloc(c, sizeof(*loop));
	struct pfx_jval ahead = pfx_j_list(c, PFX_J_LIST), self = { .type = PFX_J_LOOP };
	struct pfx_jscope *outer = c->scope, *inner = NULL;
	int turns = 0;

	if (v.type == PFX_J_UNDEF || v.type == PFX_J_DICT || (v.type != PFX_J_STR &&
		v.type != PFX_J_RANGE && v.type != PFX_J_LIST && v.type != PFX_J_TUPLE &&
		v.type != PFX_J_VIEW && v.type != PFX_J_ITER)) {
		v = pfx_j_collect(c, v);
	}
	if (loop == NULL || c->rc != 0) {
		return;
	}
	*loop = (struct pfx_jloop){ .node = node, .outer = outer, .source = v, .ahead = ahead.u.l,
		.index0 = -1, .length = -1, .depth0 = depth0 };
	self.u.loop = loop;
	while (c->rc == 0 && loop_next(c, loop)) {
		turns = 1;
		if (inner == NULL || inner->kept) {
			inner = pfx_j_scope(c, outer);
			if (inner == NULL) {
				break;
			}
		}
		inner->n = 0;
		c->scope = inner;
		pfx_j_bind(c, PFX_J_ID_LOOP, self);
		pfx_j_assign(c, node->a, loop->current);
		if (c->rc != 0 || pfx_j_exec(c, node->c) == PFX_J_BROKE) {
			break;
		}
		c->scope = outer;
	}
	c->scope = outer;
	if (!turns && node->d != NULL && c->rc == 0 && pfx_j_scope(c, outer) != NULL) {
		pfx_j_exec(c, node->d);
		c->scope = outer;
	}
}

void pfx_j_exec_for(struct pfx_jctx *c, const struct pfx_jnode *node)
{
	struct pfx_jval v = pfx_j_eval(c, node->b);

	if (c->rc == 0) {
		run_loop(c, node, v, 0);
	}
}

struct pfx_jval pfx_j_call_loop(struct pfx_jctx *c, struct pfx_jloop *loop,
	const struct pfx_jargs *all)
{
	struct pfx_jbuild b = pfx_j_build(c), *out = c->out;
	struct pfx_jscope *scope = c->scope;

	if (!loop->node->flags || all->n != 1 || all->n_kw != 0) {
		pfx_j_fail(c, "the loop must have the 'recursive' marker to be called, with one argument");
		return pfx_j_none();
	}
	if (!pfx_j_enter(c)) {
		return pfx_j_none();
	}
	c->out = &b;
	c->scope = loop->outer;
	run_loop(c, loop->node, all->v[0], loop->depth0 + 1);
	c->scope = scope;
	c->out = out;
	pfx_j_leave(c);
	return pfx_j_val(pfx_j_built(&b));
}

static struct pfx_jval loop_cycle(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jval *arg, const struct pfx_jargs *all)
{
	(void)arg;
	if (all->n == 0) {
		pfx_j_fail(c, "no items for cycling given");
		return pfx_j_none();
	}
	return all->v[(size_t)self.u.loop->index0 % all->n];
}

static struct pfx_jval loop_changed(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jval *arg, const struct pfx_jargs *all)
{
	struct pfx_jval now = pfx_j_list(c, PFX_J_TUPLE);
	struct pfx_jloop *loop = self.u.loop;

	(void)arg;
	for (size_t i = 0; i < all->n; i++) {
		pfx_j_push(c, now, all->v[i]);
	}
	if (pfx_j_given(loop->changed) && pfx_j_equal(c, loop->changed, now)) {
		return pfx_j_bool(0);
	}
	loop->changed = now;
	return pfx_j_bool(1);
}

static const struct pfx_jdef loop_methods[] = {
	{ "cycle", loop_cycle, "*", 0 },
	{ "changed", loop_changed, "*", 0 },
	{ 0 },
};

static struct pfx_jval loop_method(struct pfx_jctx *c, struct pfx_jval self,
	const struct pfx_jstr *name)
{
	const struct pfx_jdef *def = pfx_j_in_table(loop_methods, name);
	struct pfx_jmethod *m;
	struct pfx_jval v = { .type = PFX_J_METHOD };

	if (def == NULL) {
		return pfx_j_undef(PFX_J_BY_ATTR, PFX_J_LOOP, name);
	}
	m = pfx_j_alloc(c, sizeof(*m));
	if (m == NULL) {
		return pfx_j_none();
	}
	*m = (struct pfx_jmethod){ self, def };
	v.u.method = m;
	return v;
}

struct pfx_jval pfx_j_loop_attr(struct pfx_jctx *c, struct pfx_jval v, const struct pfx_jstr *name)
{
	struct pfx_jloop *loop = v.u.loop;

	if (pfx_j_str_is(name, "index0")) {
		return pfx_j_int(loop->index0);
	}
	if (pfx_j_str_is(name, "index")) {
		return pfx_j_int(loop->index0 + 1);
	}
	if (pfx_j_str_is(name, "first")) {
		return pfx_j_bool(loop->index0 == 0);
	}
	if (pfx_j_str_is(name, "last")) {
		return pfx_j_bool(!has_ahead(loop) && !fetch(c, loop));
	}
	if (pfx_j_str_is(name, "length")) {
		return pfx_j_int(loop_length(c, loop));
	}
	if (pfx_j_str_is(name, "revindex")) {
		return pfx_j_int(loop_length(c, loop) - loop->index0);
	}
	if (pfx_j_str_is(name, "revindex0")) {
		return pfx_j_int(loop_length(c, loop) - loop->index0 - 1);
	}
	if (pfx_j_str_is(name, "depth0") || pfx_j_str_is(name, "depth")) {
		return pfx_j_int(loop->depth0 + (name->n == 5));
	}
	if (pfx_j_str_is(name, "previtem")) {
		return loop->index0 > 0 ? loop->before : pfx_j_undef_hint(c, "there is no previous item");
	}
	if (pfx_j_str_is(name, "nextitem")) {
		return has_ahead(loop) || fetch(c, loop) ? loop->ahead->v[loop->ahead->pos]
			: pfx_j_undef_hint(c, "there is no next item");
	}
	return loop_method(c, v, name);
}
