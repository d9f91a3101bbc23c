#include "engine/chat.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/jinja_eval.h"

#define STEPS_MAX 10000000
#define OUTPUT_MAX ((size_t)64 << 20)
/* Memory of a render: a few strings as long as the output, and values besides. */
#define MEMORY_MAX(output) (4 * (output) + ((size_t)64 << 20))
/* Of a template's tree; the longest real one takes a quarter of a MiB. */
#define TREE_MAX ((size_t)64 << 20)

struct pfx_chat {
	struct pfx_jctx tree; /* holds the memory of the template */
	struct pfx_jtemplate template;
};

int pfx_chat_open(struct pfx_chat **out, const char *src, size_t n, const char *name, char *err,
	size_t errlen)
{
	struct pfx_chat *chat = pfx_calloc(1, sizeof(*chat));
	int rc;

	*out = NULL;
	if (chat == NULL) {
		return pfx_fail(-ENOMEM, err, errlen, "out of memory");
	}
	pfx_j_begin(&chat->tree, TREE_MAX, TREE_MAX, UINT64_MAX, err, errlen);
	rc = pfx_j_parse(&chat->tree, &chat->template, src, n, name);
	if (rc < 0) {
		pfx_chat_close(chat);
		return rc;
	}
	chat->tree.err = NULL;
	*out = chat;
	return 0;
}

void pfx_chat_close(struct pfx_chat *chat)
{
	if (chat != NULL) {
		pfx_j_end(&chat->tree);
		pfx_free(chat);
	}
}

static struct pfx_jval from_client(struct pfx_jctx *c, const json_t *j)
{
	return j == NULL ? pfx_j_none() : pfx_j_from_json(c, j, 1, 0);
}

/* A special token's text: the template's, and valid UTF-8 like all text. */
static struct pfx_jval special(struct pfx_jctx *c, struct pfx_str s)
{
	struct pfx_buf clean = PFX_BUF_INIT;
	struct pfx_jbuild b = pfx_j_build(c);

	pfx_utf8_clean(&clean, s.s, s.n, 1);
	if (clean.oom && c->rc == 0) {
		c->rc = -ENOMEM;
	}
	pfx_j_put(&b, clean.data, clean.len, 0);
	pfx_buf_free(&clean);
	return pfx_j_val(pfx_j_built(&b));
}

static struct pfx_jval function_named(const char *name)
{
	struct pfx_jval v = { .type = PFX_J_ABSENT };
	const struct pfx_jdef *def;

	for (size_t i = 0; (def = pfx_j_function(i)) != NULL; i++) {
		if (strcmp(def->name, name) == 0) {
			v.type = PFX_J_FUNC;
			v.u.def = def;
		}
	}
	return v;
}

static struct pfx_jval variable(struct pfx_jctx *c, const struct pfx_chat_input *in,
	const char *name)
{
	const json_t *over = json_object_get(in->kwargs, name);

	if (over != NULL) {
		return from_client(c, over);
	}
	if (strcmp(name, "messages") == 0) {
		return from_client(c, in->messages);
	}
	if (strcmp(name, "tools") == 0) {
		return from_client(c, in->tools);
	}
	if (strcmp(name, "documents") == 0) {
		return from_client(c, in->documents);
	}
	if (strcmp(name, "add_generation_prompt") == 0) {
		return pfx_j_bool(in->add_generation_prompt);
	}
	if (strcmp(name, "bos_token") == 0) {
		return special(c, in->bos);
	}
	if (strcmp(name, "eos_token") == 0) {
		return special(c, in->eos);
	}
	return function_named(name);
}

/* Only names that the template mentions are made into values. */
static void bind_globals(struct pfx_jctx *c, const struct pfx_jtemplate *t,
	const struct pfx_chat_input *in)
{
	c->globals = pfx_j_alloc(c, (t->n_names + 1) * sizeof(*c->globals));
	for (size_t i = 0; i < t->n_names && c->rc == 0; i++) {
		c->globals[i] = variable(c, in, t->names[i]->s);
	}
}

static int copy_output(const struct pfx_jbuild *b, struct pfx_chat_output *out)
{
	size_t start = 0, end;
	int mark = b->first;

	pfx_buf_add(&out->text, b->s, b->n);
	out->spans = pfx_reallocarray(NULL, b->n_cuts / 2 + 1, sizeof(*out->spans));
	if (out->text.oom || out->spans == NULL) {
		return -ENOMEM;
	}
	for (size_t i = 0; i <= b->n_cuts; i++) {
		end = i < b->n_cuts ? b->cuts[i] : b->n;
		if (!mark && start < end) {
			out->spans[out->n_spans++] = (struct pfx_span){ start, end };
		}
		start = end;
		mark = !mark;
	}
	return 0;
}

int pfx_chat_render(const struct pfx_chat *chat, const struct pfx_chat_input *in,
	struct pfx_chat_output *out, char *err, size_t errlen)
{
	size_t output_max = in->output_max ? in->output_max : OUTPUT_MAX;
	struct pfx_jbuild text;
	struct pfx_jctx c;
	int rc;

	if (in->kwargs != NULL && !json_is_object(in->kwargs)) {
		return pfx_fail(-EINVAL, err, errlen, "chat_template_kwargs must be an object");
	}
	pfx_j_begin(&c, MEMORY_MAX(output_max), output_max, in->steps_max ? in->steps_max : STEPS_MAX,
		err, errlen);
	c.now = in->now;
	text = pfx_j_build(&c);
	bind_globals(&c, &chat->template, in);
	rc = c.rc != 0 ? c.rc : pfx_j_render(&c, &chat->template, &text);
	if (rc == 0) {
		rc = copy_output(&text, out);
	}
	pfx_j_end(&c);
	if (rc < 0) {
		pfx_chat_output_free(out);
	}
	if (rc == -ENOMEM) {
		pfx_fail(rc, err, errlen, "out of memory");
	}
	return rc;
}

void pfx_chat_output_free(struct pfx_chat_output *out)
{
	pfx_buf_free(&out->text);
	pfx_free(out->spans);
	out->spans = NULL;
	out->n_spans = 0;
}
