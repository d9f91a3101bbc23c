/* What may follow `is`. */

#include "engine/jinja_ast.h"
#include "engine/jinja_call.h"
#include "engine/jinja_ops.h"
#include "engine/jinja_text.h"

#define TEST(name) \
	static struct pfx_jval name(struct pfx_jctx *c, struct pfx_jval self, \
		const struct pfx_jval *arg, const struct pfx_jargs *all)

TEST(is_defined)
{
	return pfx_j_bool(self.type != PFX_J_UNDEF);
}

TEST(is_undefined)
{
	return pfx_j_bool(self.type == PFX_J_UNDEF);
}

TEST(is_none)
{
	return pfx_j_bool(self.type == PFX_J_NONE);
}

TEST(is_boolean)
{
	return pfx_j_bool(self.type == PFX_J_BOOL);
}

TEST(is_true)
{
	return pfx_j_bool(self.type == PFX_J_BOOL && self.u.i);
}

TEST(is_false)
{
	return pfx_j_bool(self.type == PFX_J_BOOL && !self.u.i);
}

TEST(is_integer)
{
	return pfx_j_bool(self.type == PFX_J_INT);
}

TEST(is_float)
{
	return pfx_j_bool(self.type == PFX_J_FLOAT);
}

TEST(is_number)
{
	return pfx_j_bool(pfx_j_is_number(self));
}

TEST(is_string)
{
	return pfx_j_bool(self.type == PFX_J_STR);
}

TEST(is_mapping)
{
	return pfx_j_bool(self.type == PFX_J_DICT);
}

/* An Undefined can be walked, and has a length and an index operator: jinja2 says yes. */
TEST(is_iterable)
{
	switch ((enum pfx_jtype)self.type) {
	case PFX_J_UNDEF:
	case PFX_J_STR:
	case PFX_J_LIST:
	case PFX_J_TUPLE:
	case PFX_J_DICT:
	case PFX_J_RANGE:
	case PFX_J_VIEW:
	case PFX_J_ITER:
	case PFX_J_LOOP:
		return pfx_j_bool(1);
	default:
		return pfx_j_bool(0);
	}
}

TEST(is_sequence)
{
	return pfx_j_bool(pfx_j_len(self) >= 0 && self.type != PFX_J_VIEW);
}

TEST(is_callable)
{
	return pfx_j_bool(self.type == PFX_J_UNDEF || self.type == PFX_J_MACRO ||
		self.type == PFX_J_FUNC || self.type == PFX_J_METHOD || self.type == PFX_J_LOOP);
}

TEST(is_sameas)
{
	if (self.type != arg[0].type) {
		return pfx_j_bool(0);
	}
	return pfx_j_bool(self.type == PFX_J_NONE || self.u.i == arg[0].u.i ||
		(self.type == PFX_J_STR && pfx_j_str_eq(self.u.s, arg[0].u.s)));
}

TEST(is_escaped)
{
	return pfx_j_bool(self.type == PFX_J_STR && self.u.s->safe);
}

TEST(is_lower)
{
	return pfx_j_bool(pfx_j_is_class(c, pfx_j_to_str(c, self), "lower"));
}

TEST(is_upper)
{
	return pfx_j_bool(pfx_j_is_class(c, pfx_j_to_str(c, self), "upper"));
}

static struct pfx_jval remainder_is(struct pfx_jctx *c, struct pfx_jval v, struct pfx_jval by,
	int64_t want)
{
	return pfx_j_bool(pfx_j_equal(c, pfx_j_binary(c, '%', v, by), pfx_j_int(want)));
}

TEST(is_odd)
{
	return remainder_is(c, self, pfx_j_int(2), 1);
}

TEST(is_even)
{
	return remainder_is(c, self, pfx_j_int(2), 0);
}

TEST(is_divisibleby)
{
	return remainder_is(c, self, arg[0], 0);
}

TEST(is_in)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_IN, self, arg[0]));
}

TEST(is_eq)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_EQ, self, arg[0]));
}

TEST(is_ne)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_NE, self, arg[0]));
}

TEST(is_lt)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_LT, self, arg[0]));
}

TEST(is_le)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_LE, self, arg[0]));
}

TEST(is_gt)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_GT, self, arg[0]));
}

TEST(is_ge)
{
	return pfx_j_bool(pfx_j_compare(c, PFX_J_GE, self, arg[0]));
}

TEST(is_filter)
{
	return pfx_j_bool(self.type == PFX_J_STR && pfx_j_filter_named(self.u.s) != NULL);
}

TEST(is_test)
{
	return pfx_j_bool(self.type == PFX_J_STR && pfx_j_test_named(self.u.s) != NULL);
}

static const struct pfx_jdef tests[] = {
	{ "defined", is_defined, "", 0 },
	{ "undefined", is_undefined, "", 0 },
	{ "none", is_none, "", 0 },
	{ "boolean", is_boolean, "", 0 },
	{ "true", is_true, "", 0 },
	{ "false", is_false, "", 0 },
	{ "integer", is_integer, "", 0 },
	{ "float", is_float, "", 0 },
	{ "number", is_number, "", 0 },
	{ "string", is_string, "", 0 },
	{ "mapping", is_mapping, "", 0 },
	{ "iterable", is_iterable, "", 0 },
	{ "sequence", is_sequence, "", 0 },
	{ "callable", is_callable, "", 0 },
	{ "sameas", is_sameas, "other", 1 },
	{ "escaped", is_escaped, "", 0 },
	{ "lower", is_lower, "", 0 },
	{ "upper", is_upper, "", 0 },
	{ "odd", is_odd, "", 0 },
	{ "even", is_even, "", 0 },
	{ "divisibleby", is_divisibleby, "num", 1 },
	{ "in", is_in, "seq", 1 },
	{ "==", is_eq, "other", 1 },
	{ "eq", is_eq, "other", 1 },
	{ "equalto", is_eq, "other", 1 },
	{ "!=", is_ne, "other", 1 },
	{ "ne", is_ne, "other", 1 },
	{ "<", is_lt, "other", 1 },
	{ "lt", is_lt, "other", 1 },
	{ "lessthan", is_lt, "other", 1 },
	{ "<=", is_le, "other", 1 },
	{ "le", is_le, "other", 1 },
	{ ">", is_gt, "other", 1 },
	{ "gt", is_gt, "other", 1 },
	{ "greaterthan", is_gt, "other", 1 },
	{ ">=", is_ge, "other", 1 },
	{ "ge", is_ge, "other", 1 },
	{ "filter", is_filter, "", 0 },
	{ "test", is_test, "", 0 },
	{ 0 },
};

const struct pfx_jdef *pfx_j_test_named(const struct pfx_jstr *name)
{
	return pfx_j_in_table(tests, name);
}
