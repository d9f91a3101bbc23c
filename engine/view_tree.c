/*
 * The tree as people see it. A step waits for this, so both what is shown and what is walked
 * over is bounded; the report says when there was more.
 */
#include "config.h"

#include "engine/view.h"

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

	json_t *spaces, *list; /* list: nodes of the space at hand */
	const struct pfx_space *space;
	uint32_t n_walked, n_shown;
	int is_cut;
	uint64_t now;
};

static void enter_space(struct walk *w, const struct pfx_space *space)
{
	json_t *o = json_object();

	w->space = space;
	w->list = json_array();
	pfx_view_name_space(w->e, space, o);
	json_object_set(o, "nodes", w->list);
	json_array_append_new(w->spaces, o);
	json_decref(w->list); /* the object holds it */
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

static json_t *node_json(const struct walk *w, const struct pfx_node_view *v)
{
	uint32_t n_text = v->n_tokens < TEXT_TOKENS ? v->n_tokens : TEXT_TOKENS;
	json_t *o = json_pack("{s:I,s:I,s:I,s:{s:I,s:I,s:I,s:I},s:I,s:I,s:I,s:I}", "depth",
		(json_int_t)v->depth, "start", (json_int_t)v->start, "tokens", (json_int_t)v->n_tokens,
		"blocks", "all", (json_int_t)v->blocks, "device", (json_int_t)v->device, "host",
		(json_int_t)v->host, "disk", (json_int_t)v->disk, "hits", (json_int_t)v->hits, "kids",
		(json_int_t)v->n_kids, "pins", (json_int_t)v->pins, "leases", (json_int_t)v->leases);

	json_object_set_new(o, "age_ms", v->used_ns == 0 ? json_null()
		: json_real(v->used_ns < w->now ? pfx_ns_to_ms(w->now - v->used_ns) : 0));
	json_object_set_new(o, "kept_ms", v->keep_until_ns > w->now
		? json_real(pfx_ns_to_ms(v->keep_until_ns - w->now)) : json_null());
	json_object_set_new(o, "ended", json_boolean(v->ended));
	if (w->text) {
		json_object_set_new(o, "text", pfx_view_text(w->e, v->tokens, n_text));
		json_object_set_new(o, "text_cut", json_boolean(n_text < v->n_tokens));
	}
	return o;
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
	json_array_append_new(w->list, node_json(w, v));
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
		.text = pfx_arg_bool(&a, "text") && r->job->admin,
		.prompt = r->tokens.v,
		.n_prompt = (uint32_t)r->tokens.n,
		.now = pfx_clock_wall_ns(), /* the cache's clock */
	};
	struct pfx_cache_stats s;
	uint64_t key;

	if (a.fault != NULL) {
		return a.fault;
	}
	if ((one || !r->job->admin) && pfx_sched_space(e, r->job, &space, &key) != 0) {
		return pfx_fault_event(r->job, PFX_FAULT_INTERNAL, "out of memory");
	}
	w.spaces = json_array();
	pfx_cache_visit(e->cache, space, visit, &w);
	pfx_space_release(space);
	pfx_cache_stats(e->cache, &s);
	return pfx_view_report(r->job, "tree", json_pack("{s:I,s:I,s:I,s:I,s:b,s:o}",
		"block_tokens", (json_int_t)e->info.block_tokens, "nodes", (json_int_t)s.nodes,
		"tokens", (json_int_t)s.tokens, "shown", (json_int_t)w.n_shown, "cut", w.is_cut,
		"spaces", w.spaces));
}

void pfx_view_tree(struct pfx_engine *e, struct pfx_request *r)
{
	pfx_control_answer(e, r, tree(e, r));
}
