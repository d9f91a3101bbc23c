#ifndef PFX_ENGINE_JINJA_VALUE_H
#define PFX_ENGINE_JINJA_VALUE_H

/*
 * Values of the template language, and the context of one run (a parse or a render) that
 * owns them. All memory of a run comes from its arena and goes with it; values are passed
 * by copy and share what they point to.
 *
 * Errors are sticky: the first one sets ctx->rc and its sentence, everything after it
 * returns early with some valid value. So expressions are written plainly, and only loops
 * and those who use memory must look (pfx_j_alloc gives NULL then).
 *
 * One thread a context.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum pfx_jtype {
	PFX_J_ABSENT, /* no value: a parameter that was not given, a name that is not bound */
	PFX_J_UNDEF,  /* jinja2's Undefined */
	PFX_J_NONE,
	PFX_J_BOOL,
	PFX_J_INT,
	PFX_J_FLOAT,
	PFX_J_STR,
	PFX_J_LIST,
	PFX_J_TUPLE,
	PFX_J_DICT,
	PFX_J_RANGE,
	PFX_J_VIEW,   /* of a dict: can be walked again, not indexed */
	PFX_J_ITER,   /* a generator: can be walked once */
	PFX_J_SPACE,  /* namespace() */
	PFX_J_MACRO,
	PFX_J_FUNC,   /* a function of the environment */
	PFX_J_METHOD, /* a bound method */
	PFX_J_LOOP,
};

/* Why a value is undefined, for the message when somebody uses it. */
enum pfx_jundef { PFX_J_BY_NAME, PFX_J_BY_ATTR, PFX_J_BY_INDEX, PFX_J_BY_HINT };

/*
 * Text, UTF-8, with the mark of each byte: 1 if a client wrote it, 0 if the template did.
 * The mark is `client` at the first byte and flips at each cut. Cuts count from `base`
 * bytes before s, so that a part shares the cuts of its whole. Immutable.
 */
struct pfx_jstr {
	const char *s;
	size_t n;
	size_t n_chars; /* code points; == n for ASCII */
	const size_t *cuts;
	size_t n_cuts, base;
	struct pfx_jtail *tail; /* what pfx_j_extend may go on writing to; NULL: nothing */
	uint8_t client;
	uint8_t safe; /* markupsafe's Markup */
};

struct pfx_jval {
	uint8_t type;
	uint8_t client;   /* scalars: came from a client, so their text is the client's */
	uint8_t undef;    /* PFX_J_UNDEF: enum pfx_jundef */
	uint8_t undef_of; /* PFX_J_UNDEF by attribute or index: the type that lacks it */
	union {
		int64_t i;
		double f;
		const struct pfx_jstr *s;
		struct pfx_jlist *l;  /* list, tuple, view, iter */
		struct pfx_jdict *d;  /* dict, namespace */
		struct pfx_jrange *r;
		struct pfx_jmacro *m;
		struct pfx_jmethod *method;
		struct pfx_jloop *loop;
		const struct pfx_jdef *def;
	} u;
};

struct pfx_jlist {
	struct pfx_jval *v;
	size_t n, cap;
	size_t pos;       /* iter: the next one */
	const char *what; /* view, iter: Python's name of the type */
	uint8_t client;   /* whose the punctuation is when it is printed */
};

struct pfx_jentry {
	struct pfx_jval key, val;
	uint64_t hash;
};

/* Insertion order; the index (open addressing, entry + 1) exists from nine entries on. */
struct pfx_jdict {
	struct pfx_jentry *v;
	size_t n, cap;
	uint32_t *index;
	size_t n_index;
	uint8_t client;
};

struct pfx_jrange {
	int64_t start, stop, step;
	size_t n;
};

struct pfx_jmethod {
	struct pfx_jval self;
	const struct pfx_jdef *def;
};

struct pfx_jscope;
struct pfx_jbuild;
struct pfx_jchunk;

struct pfx_jctx {
	int rc; /* the first error, 0 while there is none */
	char *err;
	size_t errlen;
	uint32_t line; /* of what runs now */
	uint32_t depth;
	uint64_t steps, steps_max;
	size_t memory, memory_max;
	size_t text_max; /* longest string, the output included */
	uint64_t seed;   /* of the hashes; shows in no output */
	const struct tm *now;
	struct pfx_jval *globals; /* by name id */
	struct pfx_jscope *scope; /* innermost; NULL: the globals */
	struct pfx_jbuild *out;
	struct pfx_jval hole; /* what the filters of a block work on */
	struct pfx_jchunk *small, *big;
};

/* Deepest nesting of running nodes and of values that are walked; a stack of 2 MiB holds it. */
#define PFX_J_DEPTH_MAX 1000

/* Zeroes the context; memory_max and text_max in bytes, steps_max as in chat.h. */
void pfx_j_begin(struct pfx_jctx *c, size_t memory_max, size_t text_max, uint64_t steps_max,
	char *err, size_t errlen);
void pfx_j_end(struct pfx_jctx *c);

/* Aligned for any type; NULL (and rc set) when there is no memory, or a bound is met. */
void *pfx_j_alloc(struct pfx_jctx *c, size_t n);
/* p is NULL or the latest block of that use, old its size; the contents are kept. */
void *pfx_j_grow(struct pfx_jctx *c, void *p, size_t old, size_t n);

/* PFX_E_TEMPLATE, with the line in front. */
void pfx_j_fail(struct pfx_jctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* PFX_E_TEMPLATE with these words alone. */
void pfx_j_raise(struct pfx_jctx *c, const struct pfx_jstr *words);
void pfx_j_limit(struct pfx_jctx *c, const char *what);
/* Counts work; false when the run is over its bound or failed before. */
int pfx_j_step(struct pfx_jctx *c, uint64_t n);
/* Enter and leave one level of recursion; enter gives false when that is too deep. */
int pfx_j_enter(struct pfx_jctx *c);
void pfx_j_leave(struct pfx_jctx *c);

static inline struct pfx_jval pfx_j_none(void)
{
	return (struct pfx_jval){ .type = PFX_J_NONE };
}

static inline struct pfx_jval pfx_j_bool(int b)
{
	return (struct pfx_jval){ .type = PFX_J_BOOL, .u.i = b != 0 };
}

static inline struct pfx_jval pfx_j_int(int64_t i)
{
	return (struct pfx_jval){ .type = PFX_J_INT, .u.i = i };
}

static inline struct pfx_jval pfx_j_float(double f)
{
	return (struct pfx_jval){ .type = PFX_J_FLOAT, .u.f = f };
}

static inline struct pfx_jval pfx_j_val(const struct pfx_jstr *s)
{
	struct pfx_jval v = { .type = PFX_J_STR };

	v.u.s = s;
	if (s == NULL) {
		v.type = PFX_J_NONE;
	}
	return v;
}

static inline int pfx_j_given(struct pfx_jval v)
{
	return v.type != PFX_J_ABSENT;
}

/* true, false or a number that Python calls an int */
static inline int pfx_j_is_int(struct pfx_jval v)
{
	return v.type == PFX_J_INT || v.type == PFX_J_BOOL;
}

static inline int pfx_j_is_number(struct pfx_jval v)
{
	return pfx_j_is_int(v) || v.type == PFX_J_FLOAT;
}

struct pfx_jval pfx_j_undef(enum pfx_jundef by, enum pfx_jtype of, const struct pfx_jstr *name);
struct pfx_jval pfx_j_undef_hint(struct pfx_jctx *c, const char *hint);
/* Fails with what Python says when an undefined value is used. */
void pfx_j_fail_undef(struct pfx_jctx *c, struct pfx_jval v);
/* Python's name of the type: "str", "dict", ... */
const char *pfx_j_type_name(struct pfx_jval v);

/* type: PFX_J_LIST, _TUPLE, _VIEW or _ITER. *out is never left without a list on success. */
struct pfx_jval pfx_j_list(struct pfx_jctx *c, enum pfx_jtype type);
struct pfx_jval pfx_j_iter(struct pfx_jctx *c, enum pfx_jtype type, const char *what);
void pfx_j_push(struct pfx_jctx *c, struct pfx_jval list, struct pfx_jval v);
struct pfx_jval pfx_j_pair(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b);
struct pfx_jval pfx_j_range(struct pfx_jctx *c, int64_t start, int64_t stop, int64_t step);

struct pfx_jval pfx_j_dict(struct pfx_jctx *c, enum pfx_jtype type);
/* NULL: not there (or key cannot be hashed: no error then). Valid until the next change. */
struct pfx_jval *pfx_j_dict_find(struct pfx_jctx *c, const struct pfx_jdict *d, struct pfx_jval key);
/* Fails on a key that cannot be hashed. */
void pfx_j_dict_set(struct pfx_jctx *c, struct pfx_jdict *d, struct pfx_jval key, struct pfx_jval v);
/* Takes entry i out; those after it move down. */
void pfx_j_dict_remove(struct pfx_jctx *c, struct pfx_jdict *d, size_t i);

int pfx_j_truth(struct pfx_jctx *c, struct pfx_jval v);
int pfx_j_equal(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b);
/* Python's a < b; op is how the message names it. Fails on types that have no order. */
int pfx_j_less(struct pfx_jctx *c, struct pfx_jval a, struct pfx_jval b, const char *op);
/* Python's len(), or -1 (no error) where it has none. */
int64_t pfx_j_len(struct pfx_jval v);
/* Everything in v as a list that nobody else changes; fails when v cannot be walked. */
struct pfx_jval pfx_j_collect(struct pfx_jctx *c, struct pfx_jval v);
/* Python's range()[i] without a bound check. */
struct pfx_jval pfx_j_range_at(const struct pfx_jrange *r, size_t i);

/* j as values, client being the mark; strings are borrowed from it, or copied. */
struct pfx_jval pfx_j_from_json(struct pfx_jctx *c, const json_t *j, int client, int copy);

#endif
