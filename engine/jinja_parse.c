/* Statements. Expressions are jinja_expr.c's. */

#include "engine/jinja_parse.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/jinja_str.h"

static const struct pfx_jtoken end_token = { .type = PFX_J_T_EOF };
/* Where the parser goes on writing after it has failed; nobody reads it. */
static _Thread_local struct pfx_jnode dead_node;

const struct pfx_jtoken *pfx_j_cur(struct pfx_jparser *p)
{
	return p->c->rc != 0 ? &end_token : &p->tokens.v[p->at];
}

void pfx_j_next(struct pfx_jparser *p)
{
	if (p->at + 1 < p->tokens.n) {
		p->at++;
	}
}

int pfx_j_at_op(struct pfx_jparser *p, int op)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);

	return t->type == PFX_J_T_OP && t->op == op;
}

int pfx_j_at_word(struct pfx_jparser *p, const char *word)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);

	return t->type == PFX_J_T_NAME && t->n == strlen(word) && memcmp(t->s, word, t->n) == 0;
}

int pfx_j_skip_op(struct pfx_jparser *p, int op)
{
	int here = pfx_j_at_op(p, op);

	if (here) {
		pfx_j_next(p);
	}
	return here;
}

int pfx_j_skip_word(struct pfx_jparser *p, const char *word)
{
	int here = pfx_j_at_word(p, word);

	if (here) {
		pfx_j_next(p);
	}
	return here;
}

void pfx_j_unexpected(struct pfx_jparser *p, const char *wanted)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);
	int n = (int)(t->n < 60 ? t->n : 60);

	switch ((enum pfx_jtok)t->type) {
	case PFX_J_T_NAME:
		pfx_j_syntax(p->c, p->name, t->line, "expected %s, got '%.*s'", wanted, n, t->s);
		break;
	case PFX_J_T_OP:
		pfx_j_syntax(p->c, p->name, t->line, "expected %s, got '%c'", wanted, t->op);
		break;
	default:
		pfx_j_syntax(p->c, p->name, t->line, "expected %s, got %s", wanted,
			t->type == PFX_J_T_EOF ? "the end of the template"
			: t->type == PFX_J_T_VAR_END || t->type == PFX_J_T_BLOCK_END ? "the end of the tag"
			: "a constant");
		break;
	}
}

void pfx_j_expect_op(struct pfx_jparser *p, int op)
{
	char wanted[4] = { '\'', (char)op, '\'', 0 };

	if (!pfx_j_skip_op(p, op)) {
		pfx_j_unexpected(p, wanted);
	}
}

static void expect(struct pfx_jparser *p, enum pfx_jtok type, const char *wanted)
{
	if (pfx_j_cur(p)->type != type) {
		pfx_j_unexpected(p, wanted);
		return;
	}
	pfx_j_next(p);
}

int pfx_j_nest(struct pfx_jparser *p)
{
	if (p->depth >= PFX_J_PARSE_DEPTH_MAX) {
		p->c->line = pfx_j_cur(p)->line;
		pfx_j_limit(p->c, "nesting");
		return 0;
	}
	p->depth++;
	return 1;
}

struct pfx_jnode *pfx_j_node(struct pfx_jparser *p, enum pfx_jkind kind)
{
	struct pfx_jnode *node = pfx_j_alloc(p->c, sizeof(*node));

	if (node == NULL) {
		node = &dead_node;
	}
	memset(node, 0, sizeof(*node));
	node->kind = (uint8_t)kind;
	node->line = pfx_j_cur(p)->line;
	return node;
}

void pfx_j_add(struct pfx_jparser *p, struct pfx_jnode *parent, struct pfx_jnode *child)
{
	size_t n = parent->n_list, cap;
	void *list;

	if (p->c->rc != 0) {
		return;
	}
	/* The capacity is the next power of two: full when n is one. */
	if (n == 0 || (n >= 4 && (n & (n - 1)) == 0)) {
		cap = n == 0 ? 4 : n * 2;
		list = pfx_j_grow(p->c, parent->list, n * sizeof(*parent->list),
			cap * sizeof(*parent->list));
		if (list == NULL) {
			return;
		}
		parent->list = list;
	}
	parent->list[parent->n_list++] = child;
}

static uint32_t intern(struct pfx_jparser *p, const struct pfx_jstr *name)
{
	struct pfx_jval key = pfx_j_val(name), *known;
	void *names;
	size_t cap;

	if (p->c->rc != 0 || name == NULL) {
		return 0;
	}
	known = pfx_j_dict_find(p->c, p->ids.u.d, key);
	if (known != NULL) {
		return (uint32_t)known->u.i;
	}
	if (p->n_names == p->cap_names) {
		cap = p->cap_names == 0 ? 32 : p->cap_names * 2;
		names = pfx_j_grow(p->c, p->names, p->cap_names * sizeof(*p->names),
			cap * sizeof(*p->names));
		if (names == NULL) {
			return 0;
		}
		p->names = names;
		p->cap_names = cap;
	}
	p->names[p->n_names] = name;
	pfx_j_dict_set(p->c, p->ids.u.d, key, pfx_j_int((int64_t)p->n_names));
	return (uint32_t)p->n_names++;
}

void pfx_j_take_name(struct pfx_jparser *p, struct pfx_jnode *node)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);
	char *name;

	if (t->type != PFX_J_T_NAME) {
		pfx_j_unexpected(p, "a name");
		return;
	}
	name = pfx_j_alloc(p->c, t->n + 1);
	if (name == NULL) {
		return;
	}
	memcpy(name, t->s, t->n);
	name[t->n] = 0;
	node->name = pfx_j_str(p->c, name, t->n, 0);
	node->id = intern(p, node->name);
	node->line = t->line;
	pfx_j_next(p);
}

/* ---- statements ---- */

static void parse_statement(struct pfx_jparser *p, struct pfx_jnode *body);

/* Statements up to a tag that begins with one of the words; that word is not taken. */
static struct pfx_jnode *parse_until(struct pfx_jparser *p, const char *const *words)
{
	struct pfx_jnode *body = pfx_j_node(p, PFX_J_BODY), *node;
	const struct pfx_jtoken *t;

	if (!pfx_j_nest(p)) {
		return body;
	}
	for (t = pfx_j_cur(p); t->type != PFX_J_T_EOF; t = pfx_j_cur(p)) {
		if (t->type == PFX_J_T_DATA) {
			node = pfx_j_node(p, PFX_J_DATA);
			node->val = t->val;
			pfx_j_add(p, body, node);
			pfx_j_next(p);
		} else if (t->type == PFX_J_T_VAR_BEGIN) {
			node = pfx_j_node(p, PFX_J_PRINT);
			pfx_j_next(p);
			node->a = pfx_j_parse_tuple(p, 1);
			pfx_j_add(p, body, node);
			expect(p, PFX_J_T_VAR_END, "'}}'");
		} else {
			expect(p, PFX_J_T_BLOCK_BEGIN, "a tag");
			for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
				if (pfx_j_at_word(p, words[i])) {
					p->depth--;
					return body;
				}
			}
			parse_statement(p, body);
			expect(p, PFX_J_T_BLOCK_END, "'%}'");
		}
	}
	if (words != NULL) {
		pfx_j_unexpected(p, words[0]);
	}
	p->depth--;
	return body;
}

/* The body of a tag: from the tag's end to one of the words. */
static struct pfx_jnode *parse_body(struct pfx_jparser *p, const char *const *words)
{
	pfx_j_skip_op(p, ':');
	expect(p, PFX_J_T_BLOCK_END, "'%}'");
	return parse_until(p, words);
}

/* The same for a single word, which is taken. */
static struct pfx_jnode *parse_simple_body(struct pfx_jparser *p, const char *word)
{
	const char *words[] = { word, NULL };
	struct pfx_jnode *body = parse_body(p, words);

	pfx_j_next(p);
	return body;
}

static struct pfx_jnode *parse_if(struct pfx_jparser *p)
{
	static const char *const words[] = { "endif", "elif", "else", NULL };
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_IF);

	do {
		pfx_j_add(p, node, pfx_j_parse_tuple(p, 0));
		pfx_j_add(p, node, parse_body(p, words));
	} while (pfx_j_skip_word(p, "elif"));
	if (pfx_j_skip_word(p, "else")) {
		node->c = parse_simple_body(p, "endif");
	} else {
		pfx_j_next(p);
	}
	return node;
}

static struct pfx_jnode *parse_for(struct pfx_jparser *p)
{
	static const char *const words[] = { "endfor", "else", NULL };
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_FOR);

	node->a = pfx_j_parse_target(p, 0);
	if (!pfx_j_skip_word(p, "in")) {
		pfx_j_unexpected(p, "'in'");
	}
	node->b = pfx_j_parse_tuple(p, 0);
	if (pfx_j_skip_word(p, "if")) {
		node->e = pfx_j_parse_expr(p);
	}
	node->flags = (uint8_t)pfx_j_skip_word(p, "recursive");
	p->loops++;
	node->c = parse_body(p, words);
	p->loops--;
	if (pfx_j_skip_word(p, "else")) {
		node->d = parse_simple_body(p, "endfor");
	} else {
		pfx_j_next(p);
	}
	return node;
}

static struct pfx_jnode *parse_set(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_SET);

	node->a = pfx_j_parse_target(p, 1);
	if (pfx_j_skip_op(p, '=')) {
		node->b = pfx_j_parse_tuple(p, 1);
		return node;
	}
	node->kind = PFX_J_SETBLOCK;
	if (pfx_j_at_op(p, '|')) {
		node->b = pfx_j_parse_filters(p, pfx_j_node(p, PFX_J_HOLE), 0);
	}
	node->c = parse_simple_body(p, "endset");
	return node;
}

static void parse_signature(struct pfx_jparser *p, struct pfx_jnode *macro)
{
	struct pfx_jnode *arg;
	int defaults = 0;

	pfx_j_expect_op(p, '(');
	while (p->c->rc == 0 && !pfx_j_skip_op(p, ')')) {
		if (macro->n_list > 0) {
			pfx_j_expect_op(p, ',');
		}
		arg = pfx_j_node(p, PFX_J_ARG);
		pfx_j_take_name(p, arg);
		if (pfx_j_skip_op(p, '=')) {
			arg->a = pfx_j_parse_expr(p);
			defaults = 1;
		} else if (defaults) {
			pfx_j_syntax(p->c, p->name, arg->line,
				"a parameter without default follows one with a default");
		}
		pfx_j_add(p, macro, arg);
	}
}

/* The body of a macro or caller; what names it uses is noted. */
static void parse_macro_body(struct pfx_jparser *p, struct pfx_jnode *macro, const char *word)
{
	uint32_t loops = p->loops;
	uint8_t uses = p->uses;

	p->loops = 0;
	p->uses = 0;
	macro->c = parse_simple_body(p, word);
	macro->flags = p->uses;
	p->uses |= uses;
	p->loops = loops;
}

static struct pfx_jnode *parse_macro(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_DEFMACRO);

	pfx_j_take_name(p, node);
	parse_signature(p, node);
	parse_macro_body(p, node, "endmacro");
	return node;
}

static struct pfx_jnode *parse_call(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_CALLBLOCK);

	node->b = pfx_j_node(p, PFX_J_DEFMACRO);
	if (pfx_j_at_op(p, '(')) {
		parse_signature(p, node->b);
	}
	node->a = pfx_j_parse_expr(p);
	if (node->a->kind != PFX_J_CALL) {
		pfx_j_syntax(p->c, p->name, node->line, "expected a call");
	}
	parse_macro_body(p, node->b, "endcall");
	return node;
}

static struct pfx_jnode *parse_filter_block(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_FILTERBLOCK);

	node->b = pfx_j_parse_filters(p, pfx_j_node(p, PFX_J_HOLE), 1);
	node->c = parse_simple_body(p, "endfilter");
	return node;
}

static struct pfx_jnode *parse_with(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_WITH);

	while (pfx_j_cur(p)->type != PFX_J_T_BLOCK_END && p->c->rc == 0) {
		if (node->n_list > 0) {
			pfx_j_expect_op(p, ',');
		}
		pfx_j_add(p, node, pfx_j_parse_target(p, 0));
		pfx_j_expect_op(p, '=');
		pfx_j_add(p, node, pfx_j_parse_expr(p));
	}
	node->c = parse_simple_body(p, "endwith");
	return node;
}

/* Marks what the model wrote, for training; here only a scope. */
static struct pfx_jnode *parse_generation(struct pfx_jparser *p)
{
	struct pfx_jnode *node = pfx_j_node(p, PFX_J_WITH);

	node->c = parse_simple_body(p, "endgeneration");
	return node;
}

static struct pfx_jnode *parse_jump(struct pfx_jparser *p, enum pfx_jkind kind)
{
	struct pfx_jnode *node = pfx_j_node(p, kind);

	if (p->loops == 0) {
		pfx_j_syntax(p->c, p->name, node->line, "break or continue outside of a loop");
	}
	return node;
}

static struct pfx_jnode *parse_break(struct pfx_jparser *p)
{
	return parse_jump(p, PFX_J_BREAK);
}

static struct pfx_jnode *parse_continue(struct pfx_jparser *p)
{
	return parse_jump(p, PFX_J_CONTINUE);
}

static const struct {
	const char *word;
	struct pfx_jnode *(*parse)(struct pfx_jparser *p);
} statements[] = {
	{ "if", parse_if },
	{ "for", parse_for },
	{ "set", parse_set },
	{ "macro", parse_macro },
	{ "call", parse_call },
	{ "filter", parse_filter_block },
	{ "with", parse_with },
	{ "generation", parse_generation },
	{ "break", parse_break },
	{ "continue", parse_continue },
};

/* Known to jinja2, but of no use to a single template without files beside it. */
static const char *const unsupported[] = { "include", "import", "from", "extends", "block",
	"autoescape" };

static void parse_print(struct pfx_jparser *p, struct pfx_jnode *body)
{
	struct pfx_jnode *node;
	int more;

	for (more = pfx_j_cur(p)->type != PFX_J_T_BLOCK_END; more; more = pfx_j_skip_op(p, ',')) {
		node = pfx_j_node(p, PFX_J_PRINT);
		node->a = pfx_j_parse_expr(p);
		pfx_j_add(p, body, node);
	}
}

static void parse_statement(struct pfx_jparser *p, struct pfx_jnode *body)
{
	const struct pfx_jtoken *t = pfx_j_cur(p);

	if (pfx_j_skip_word(p, "print")) {
		parse_print(p, body);
		return;
	}
	for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++) {
		if (pfx_j_skip_word(p, statements[i].word)) {
			pfx_j_add(p, body, statements[i].parse(p));
			return;
		}
	}
	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
		if (pfx_j_at_word(p, unsupported[i]) && p->c->rc == 0) {
			p->c->rc = pfx_fail(PFX_E_UNSUPPORTED, p->c->err, p->c->errlen,
				"%s: line %u: the statement '%s' is not supported", p->name, t->line,
				unsupported[i]);
			return;
		}
	}
	pfx_j_unexpected(p, "a statement");
}

int pfx_j_parse(struct pfx_jctx *c, struct pfx_jtemplate *out, const char *src, size_t n,
	const char *name)
{
	static const char *const known[PFX_J_N_IDS] = { "loop", "caller", "kwargs", "varargs" };
	struct pfx_jparser p = { .c = c, .name = name };

	if (pfx_j_lex(c, &p.tokens, src, n, name) == 0) {
		p.ids = pfx_j_dict(c, PFX_J_DICT);
		for (uint32_t i = 0; i < PFX_J_N_IDS; i++) {
			intern(&p, pfx_j_text(c, known[i]).u.s);
		}
		out->body = parse_until(&p, NULL);
		out->names = p.names;
		out->n_names = p.n_names;
	}
	pfx_free(p.tokens.v);
	return c->rc;
}
