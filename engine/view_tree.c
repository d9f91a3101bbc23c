/*
 * The tree as people see it. A step waits for this, so both what is shown and what is walked
 * over is bounded; the report says when there was more.
 */
#include "config.h"

#include "engine/view.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define NODES_MAX 10000u
/* Nodes looked at, shown or not: some 5 ms of a large tree. */
#define WALK_MAX 50000u
#define TEXT_TOKENS 24u

struct walk {
	const struct pfx_engine *e;
	/* What was asked for. */
	uint32_t depth, min_tokens, nodes;
	uint64_t min_hits;
	int text;
	const uint32_t *prompt; /* only what lies on or below these tokens */
	uint32_t n_prompt;

	struct pfx_buf out; /* "spaces":[...], as text */
	const struct pfx_space *space; /* at hand; NULL: none yet */
	uint32_t n_space;              /* its nodes so far */
	uint32_t n_walked, n_shown;
	int is_cut;
	uint64_t now;
};

/* Ends the list of nodes of the space at hand, if there is one. */
static void leave_space(struct walk *w)
{
	if (w->space != NULL) {
		pfx_buf_adds(&w->out, "]}");
	}
}

static void enter_space(struct walk *w, struct pfx_space *space)
{
	json_t *o = json_object();
	char *text;

	leave_space(w);
	pfx_view_name_space(w->e, space, o);
	text = json_dumps(o, JSON_COMPACT);
	if (text == NULL) {
		w->out.oom = 1;
	} else {
		/* The object goes on with its nodes. */
		text[strlen(text) - 1] = 0;
		pfx_buf_addf(&w->out, "%s%s,\"nodes\":[", w->space == NULL ? "" : ",", text);
	}
	free(text);
	json_decref(o);
	w->space = space;
	w->n_space = 0;
}

/* Whether the node lies on the way to the prompt's end or behind it. */
static int is_on_way(const struct walk *w, const struct pfx_node_view *v)
{
	uint32_t n;

	if (v->start >= w->n_prompt) {
		return 1;
	}
	n = w->n_prompt - v->start < v->n_tokens ? w->n_prompt - v->start : v->n_tokens;
	return memcmp(v->tokens, w->prompt + v->start, n * sizeof(*v->tokens)) == 0;
}

static void put_text(struct walk *w, const struct pfx_node_view *v)
{
	uint32_t n = v->n_tokens < TEXT_TOKENS ? v->n_tokens : TEXT_TOKENS;

	pfx_buf_adds(&w->out, ",\"text\":");
	pfx_json_put(&w->out, pfx_view_text(w->e, v->tokens, n));
	pfx_buf_adds(&w->out, n < v->n_tokens ? ",\"text_cut\":true" : ",\"text_cut\":false");
}

/* Written as text: a thousand nodes as values of the JSON library would cost 25 ms of a step. */
static void put_node(struct walk *w, const struct pfx_node_view *v)
{
	struct pfx_buf *b = &w->out;

	pfx_buf_addf(b, "%s{\"depth\":%u,\"start\":%u,\"tokens\":%u,\"blocks\":{\"all\":%u,"
		"\"device\":%u,\"host\":%u,\"disk\":%u},\"hits\":%llu,\"kids\":%u,\"pins\":%u,"
		"\"leases\":%u,\"age_ms\":", w->n_space++ == 0 ? "" : ",", v->depth, v->start, v->n_tokens,
		v->blocks, v->device, v->host, v->disk, (unsigned long long)v->hits, v->n_kids, v->pins,
		v->leases);
	if (v->used_ns == 0) {
		pfx_buf_adds(b, "null");
	} else {
		pfx_buf_addf(b, "%llu", (unsigned long long)(v->used_ns < w->now
			? (w->now - v->used_ns) / 1000000u : 0));
	}
	pfx_buf_adds(b, ",\"kept_ms\":");
	if (v->keep_until_ns > w->now) {
		pfx_buf_addf(b, "%llu", (unsigned long long)((v->keep_until_ns - w->now) / 1000000u));
	} else {
		pfx_buf_adds(b, "null");
	}
	pfx_buf_addf(b, ",\"ended\":%s", v->ended ? "true" : "false");
	if (w->text) {
		put_text(w, v);
	}
	pfx_buf_addc(b, '}');
}

static int visit(void *arg, const struct pfx_node_view *v)
{
	struct walk *w = arg;

	if (++w->n_walked > WALK_MAX) {
		w->is_cut = 1;
		return -1;
	}
	if (v->depth >= w->depth || !is_on_way(w, v)) {
		w->is_cut |= v->depth >= w->depth;
		return 1;
	}
	/* What is too small or too cold is left out with all below it: hits only fall on the way. */
	if (v->hits < w->min_hits || (v->n_kids == 0 && v->n_tokens < w->min_tokens)) {
		w->is_cut = 1;
		return 1;
	}
	if (w->n_shown == w->nodes) {
		w->is_cut = 1;
		return -1;
	}
	if (v->space != w->space) {
		enter_space(w, v->space);
	}
	w->n_shown++;
	put_node(w, v);
	return 0;
}

static struct pfx_event *tree(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_args a = { .job = r->job };
	struct pfx_space *space = NULL;
	int one = pfx_arg_bool(&a, "one_namespace") || r->tokens.n > 0 || r->job->salt != NULL;
	struct walk w = {
		.e = e,
		.depth = (uint32_t)pfx_arg_int(&a, "depth", 8, 1, UINT32_MAX),
		.min_tokens = (uint32_t)pfx_arg_int(&a, "min_tokens", 1, 0, UINT32_MAX),
		.min_hits = pfx_arg_int(&a, "min_hits", 0, 0, INT64_MAX),
		.nodes = (uint32_t)pfx_arg_int(&a, "nodes", 200, 1, NODES_MAX),
		.text = pfx_arg_bool(&a, "text"),
		.prompt = r->tokens.v,
		.n_prompt = (uint32_t)r->tokens.n,
		.now = pfx_clock_wall_ns(), /* the cache's clock */
	};
	struct pfx_cache_stats s;
	uint64_t key;

	if (a.fault != NULL) {
		return a.fault;
	}
	if (one && pfx_sched_space(e, r->job, &space, &key) != 0) {
		return pfx_fault_event(r->job, PFX_FAULT_INTERNAL, "out of memory");
	}
	pfx_buf_adds(&w.out, "\"spaces\":[");
	pfx_cache_visit(e->cache, space, visit, &w);
	leave_space(&w);
	pfx_buf_addc(&w.out, ']');
	pfx_space_release(space);
	pfx_cache_stats(e->cache, &s);
	return pfx_view_written(r->job, "tree", json_pack("{s:I,s:I,s:I,s:I,s:b}", "block_tokens",
		(json_int_t)e->info.block_tokens, "nodes", (json_int_t)s.nodes, "tokens",
		(json_int_t)s.tokens, "shown", (json_int_t)w.n_shown, "cut", w.is_cut), &w.out);
}

void pfx_view_tree(struct pfx_engine *e, struct pfx_request *r)
{
	pfx_control_answer(e, r, tree(e, r));
}
