#include "config.h"

#include "engine/observe.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"

/* 16 MiB when full, exact up to 786,432 blocks: 25 million tokens in blocks of 32. */
#define CEILING_ENTRIES (1u << 20)

int pfx_observer_open(struct pfx_observer **out, uint32_t block_tokens)
{
	struct pfx_observer *o = pfx_calloc(1, sizeof(*o));

	if (o == NULL) {
		return -ENOMEM;
	}
	/* Not to be guessed: nobody can make up prompts whose digests are equal. */
	o->hash_seed = pfx_rng_entropy();
	if (pfx_hits_open(&o->hits, pfx_clock_wall_ns()) != 0 ||
		pfx_hot_open(&o->hot, block_tokens) != 0 ||
		pfx_ceiling_open(&o->ceiling, CEILING_ENTRIES) != 0 || pfx_facts_open(&o->facts) != 0) {
		pfx_observer_close(o);
		return -ENOMEM;
	}
	*out = o;
	return 0;
}

void pfx_observer_close(struct pfx_observer *o)
{
	if (o == NULL) {
		return;
	}
	pfx_recorder_close(o->recorder);
	pfx_hits_close(o->hits);
	pfx_hot_close(o->hot);
	pfx_ceiling_close(o->ceiling);
	pfx_facts_close(o->facts);
	pfx_free(o->digests);
	pfx_free(o);
}

/* ---- taking ---- */

void pfx_observe_facts(const struct pfx_request *r, struct pfx_facts *f)
{
	const struct pfx_job *job = r->job;

	memset(f, 0, sizeof(*f));
	f->number = job->number;
	f->kind = job->kind;
	f->owner.key = r->space_key;
	pfx_name_set(&f->owner.space, job->space, job->space_len);
	pfx_name_set(&f->owner.salt, job->salt, job->salt_len);
	f->usage = r->usage;
	f->usage.prompt_tokens = f->n_prompt = r->n_prompt;
	f->attached = r->attached;
	f->recomputed = r->recomputed;
	f->preempted = r->preempted;
	f->miss = r->miss;
	f->miss_at_token = r->miss_at_token;
	f->miss_token = r->miss != PFX_MISS_NONE && r->miss_at_token < r->n_prompt
		? r->tokens.v[r->miss_at_token] : UINT32_MAX;
	f->miss_message = -1;
	f->evicted_ms_ago = r->miss == PFX_MISS_EVICTED ? r->evicted_ms_ago : -1;
	f->received_ns = r->received_ns;
	f->admitted_ns = r->admitted_ns;
	f->first_ns = r->first_ns;
}

void pfx_observe_take(struct pfx_engine *e, struct pfx_request *r, int failed,
	enum pfx_finish finish, struct pfx_observed *out)
{
	memset(out, 0, sizeof(*out));
	pfx_observe_facts(r, &out->facts);
	out->facts.failed = failed;
	out->facts.finish = finish;
	out->facts.fault = r->fault;
	out->facts.ended_ns = pfx_clock_ns();
	out->counted = r->counted;
	out->limit = r->job->kind == PFX_JOB_SCORE && r->job->from - 1 < r->counted
		? r->job->from - 1 : r->counted;
	out->kept = r->path == NULL || r->unshared ? 0 : pfx_path_len(r->path);
	out->whole = r->missed && r->miss == PFX_MISS_NONE;
	out->admission = r->admission;
	/* A put is not a use. */
	if (r->job->prefix != NULL && r->job->kind != PFX_JOB_PREFIX_PUT) {
		pfx_name_set(&out->named, r->job->prefix, r->job->prefix_len);
	}
	if (r->job->session != NULL && pfx_recorder_is_on(e->observer->recorder)) {
		out->session = pfx_memdup(r->job->session, r->job->session_len);
		out->session_len = r->job->session_len;
	}
	out->last_turn = r->job->last_turn;
	out->tokens = r->tokens;
	memset(&r->tokens, 0, sizeof(r->tokens));
}

/* ---- counting ---- */

/*
 * Digests of the blocks of tokens[0..n), the last one filled in part, of which those before
 * block `from` are there already. Returns how many there are; 0 also without memory.
 */
static uint32_t digest(struct pfx_observer *o, uint64_t space_key, const uint32_t *tokens,
	uint32_t n, uint32_t block_tokens, uint32_t from)
{
	uint32_t n_blocks = (n + block_tokens - 1) / block_tokens;
	uint64_t h = from > 0 ? o->digests[from - 1] : pfx_rng_mix(o->hash_seed, space_key);

	if (n_blocks > o->cap_digests) {
		uint64_t *p = pfx_reallocarray(o->digests, n_blocks, sizeof(*p));

		if (p == NULL) {
			return 0;
		}
		o->digests = p;
		o->cap_digests = n_blocks;
	}
	for (uint32_t k = from; k < n_blocks; k++) {
		uint32_t at = k * block_tokens, len = n - at < block_tokens ? n - at : block_tokens;

		h = XXH3_64bits_withSeed(tokens + at, len * sizeof(*tokens), h);
		o->digests[k] = h;
	}
	return n_blocks;
}

static uint64_t cached_of(const struct pfx_usage *u)
{
	return (uint64_t)u->cached_device + u->cached_host + u->cached_disk;
}

static void count_blocks(const struct pfx_observed *seen, uint32_t b, struct pfx_hits_row *row)
{
	uint32_t cached = (uint32_t)cached_of(&seen->facts.usage), n = seen->counted;

	/* A whole hit whose logits were not kept computes its last token once more. */
	if (seen->whole && cached + 1 == n) {
		cached = n;
	}
	row->blocks = (n + b - 1) / b;
	row->blocks_hit = cached == n ? row->blocks : cached / b;
}

/*
 * The prompt's blocks were there from when the request came in (those who came in later and
 * needed them followed it), the reply's from now on.
 */
static void add_to_ceiling(struct pfx_engine *e, const struct pfx_observed *seen,
	uint32_t n_prompt_blocks)
{
	struct pfx_observer *o = e->observer;
	uint32_t b = e->info.block_tokens, n_prompt = seen->facts.n_prompt, n;

	for (uint32_t k = 0; k < n_prompt_blocks && k * b < seen->kept; k++) {
		pfx_ceiling_add(o->ceiling, o->digests[k], seen->admission);
	}
	if (seen->kept <= n_prompt) {
		return;
	}
	n = digest(o, seen->facts.owner.key, seen->tokens.v, seen->kept / b * b, b,
		n_prompt / b);
	for (uint32_t k = n_prompt / b; k < n; k++) {
		pfx_ceiling_add(o->ceiling, o->digests[k], e->next_admission + 1);
	}
}

static void count(struct pfx_engine *e, const struct pfx_observed *seen)
{
	struct pfx_observer *o = e->observer;
	const struct pfx_facts *f = &seen->facts;
	uint32_t b = e->info.block_tokens;
	uint64_t now = pfx_clock_wall_ns();
	struct pfx_hits_row row = {
		.requests = 1,
		.prompt = seen->counted,
		.computed = f->usage.computed_tokens,
		.cached = { f->usage.cached_device, f->usage.cached_host, f->usage.cached_disk },
	};
	struct pfx_ceiling_ask ask = {
		.block_tokens = b,
		.n_tokens = seen->limit,
		.cached = (uint32_t)cached_of(&f->usage),
		.when = seen->admission,
	};

	count_blocks(seen, b, &row);
	ask.n_blocks = digest(o, f->owner.key, seen->tokens.v, seen->counted, b, 0);
	ask.digests = o->digests;
	pfx_ceiling_look(o->ceiling, &ask, &row.ceiling, &row.ceiling_of);
	/* What no cache can answer was asked for all the same. */
	row.ceiling_of += seen->counted - seen->limit;
	pfx_hits_add(o->hits, &f->owner, seen->named.len > 0 ? &seen->named : NULL, &row, now);
	if (ask.n_blocks > 0) {
		pfx_hot_add(o->hot, &f->owner, o->digests, seen->counted / b, seen->tokens.v,
			seen->counted, &row, now);
		add_to_ceiling(e, seen, ask.n_blocks);
	}
}

/* The oldest request that has not ended: its record is still to come. */
static uint64_t oldest(const struct pfx_engine *e)
{
	uint64_t floor = UINT64_MAX, age;

	if (!pfx_list_empty(&e->active)) {
		floor = pfx_container_of(e->active.next, struct pfx_request, link)->admission;
	}
	if (!pfx_list_empty(&e->waiting)) {
		age = pfx_container_of(e->waiting.next, struct pfx_request, link)->admission;
		floor = age < floor ? age : floor;
	}
	return floor;
}

static void give_to_recorder(struct pfx_engine *e, struct pfx_observed *seen)
{
	struct pfx_record_request r = {
		.admission = seen->admission,
		.floor = oldest(e),
		.received_ns = seen->facts.received_ns,
		.space_key = seen->facts.owner.key,
		.tokens = seen->tokens.v,
		.n_prompt = seen->facts.n_prompt,
		.n_reply = seen->facts.usage.completion_tokens,
		.session = seen->session,
		.session_len = seen->session_len,
		.last_turn = seen->last_turn,
	};

	seen->session = NULL;
	memset(&seen->tokens, 0, sizeof(seen->tokens));
	pfx_recorder_add(e->observer->recorder, &r);
}

void pfx_observe_end(struct pfx_engine *e, struct pfx_observed *seen)
{
	pfx_facts_add(e->observer->facts, &seen->facts);
	if (seen->counted > 0) {
		count(e, seen);
	}
	/* A prompt that was not worked on to its end would weigh more in a replay than it did. */
	if (seen->counted > 0 && seen->counted == seen->facts.n_prompt &&
		pfx_recorder_is_on(e->observer->recorder)) {
		give_to_recorder(e, seen);
	}
	pfx_free(seen->session);
	pfx_ids_free(&seen->tokens);
}

void pfx_observe_flushed(struct pfx_engine *e)
{
	pfx_ceiling_clear(e->observer->ceiling);
}
