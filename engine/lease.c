/*
 * Leases: prefixes that stay where they are until a time. A lease is a path that nobody runs
 * any more: it pins what it holds, so nothing else has to know of it. All of it belongs to
 * the engine thread, which wakes up when one is due.
 */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

struct lease {
	struct pfx_list link;
	uint64_t number;
	struct pfx_key key; /* of its namespace and salt; with the prefix's name, if put with one */
	uint64_t serial;    /* of what the name meant */
	struct pfx_path *path;
	struct pfx_space *space;
	uint32_t *tokens;
	uint32_t n_tokens, n_held, n_blocks; /* n_held: of the tokens, how many lie in the blocks */
	uint64_t made_ns, due_ns, hits;
};

static void end_lease(struct pfx_engine *e, struct lease *l)
{
	pfx_list_remove(&l->link);
	e->n_leases--;
	pfx_path_close(l->path);
	pfx_space_release(l->space);
	pfx_key_free(&l->key);
	pfx_free(l->tokens);
	pfx_free(l);
}

static void find_due(struct pfx_engine *e)
{
	e->lease_due_ns = UINT64_MAX;
	pfx_list_for(it, &e->leases) {
		const struct lease *l = pfx_container_of(it, struct lease, link);
		if (l->due_ns < e->lease_due_ns) {
			e->lease_due_ns = l->due_ns;
		}
	}
}

/* ---- making ---- */

static uint32_t blocks_max(const struct pfx_engine *e)
{
	return e->info.n_blocks / 2;
}

static uint32_t leased_blocks(const struct pfx_engine *e)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(e->cache, &s);
	return s.tier[PFX_TIER_DEVICE].leased;
}

int pfx_lease_possible(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t need = (r->n_prompt + e->info.block_tokens - 1) / e->info.block_tokens;

	if (e->n_leases >= e->opts.pins_max) {
		pfx_request_fail(r, PFX_FAULT_OVERLOADED, "there are %u leases already, as many as the "
			"server keeps", e->n_leases);
	} else if (need > blocks_max(e)) {
		pfx_request_fail(r, PFX_FAULT_TOO_LONG, "the prefix has %u tokens, %u blocks; leases hold "
			"at most %u of the device's %u blocks", r->n_prompt, need,
			blocks_max(e), e->info.n_blocks);
	}
	return !r->failed;
}

/* Whether the path can be a lease's; else the request is marked. */
static int may_lease(struct pfx_engine *e, struct pfx_request *r, uint32_t n_blocks)
{
	int rc;

	if (!pfx_lease_possible(e, r)) {
		return 0;
	}
	rc = pfx_path_lease(r->path);
	if (rc == -ENOENT) {
		pfx_request_fail(r, PFX_FAULT_OVERLOADED,
			"the cache was flushed meanwhile: nobody could find what this lease would hold");
	} else if (rc == PFX_E_LIMIT) {
		pfx_request_fail(r, PFX_FAULT_OVERLOADED, "leases hold %u of the device's %u blocks "
			"already, and may hold %u; this one needs %u", leased_blocks(e), e->info.n_blocks,
			blocks_max(e), n_blocks);
	} else if (rc != 0) {
		pfx_request_fail(r, PFX_FAULT_INTERNAL, "out of memory");
	}
	return rc == 0;
}

uint64_t pfx_lease_make(struct pfx_engine *e, struct pfx_request *r, json_t *report)
{
	uint64_t now = pfx_clock_ns(), ttl_ms = r->job->ttl_ms;
	struct lease *l;
	uint32_t n_blocks;
	uint64_t held;

	pfx_path_blocks(r->path, &n_blocks);
	if (!may_lease(e, r, n_blocks)) {
		return 0;
	}
	/* A last block that the tree has in a slower tier, longer than here, is not held. */
	pfx_path_blocks(r->path, &n_blocks);
	held = (uint64_t)n_blocks * e->info.block_tokens;
	ttl_ms = ttl_ms != 0 ? ttl_ms : e->opts.pin_ttl_ms;
	l = pfx_xcalloc(1, sizeof(*l));
	l->number = ++e->next_lease;
	l->key = r->key;
	memset(&r->key, 0, sizeof(r->key));
	l->serial = r->job->kind == PFX_JOB_PREFIX_PUT ? r->prefix->serial : 0;
	l->path = r->path;
	r->path = NULL;
	l->space = r->space;
	r->space = NULL;
	l->tokens = pfx_xmalloc(r->n_prompt * sizeof(*l->tokens));
	memcpy(l->tokens, r->tokens.v, r->n_prompt * sizeof(*l->tokens));
	l->n_tokens = r->n_prompt;
	l->n_blocks = n_blocks;
	l->n_held = held < r->n_prompt ? (uint32_t)held : r->n_prompt;
	l->made_ns = now;
	l->due_ns = now + ttl_ms * 1000000u;
	pfx_list_push_back(&e->leases, &l->link);
	e->n_leases++;
	e->lease_due_ns = l->due_ns < e->lease_due_ns ? l->due_ns : e->lease_due_ns;
	json_object_set_new(report, "lease", json_integer((json_int_t)l->number));
	json_object_set_new(report, "tokens", json_integer(l->n_held));
	json_object_set_new(report, "blocks", json_integer(n_blocks));
	json_object_set_new(report, "ttl_ms", json_integer((json_int_t)ttl_ms));
	json_object_set_new(report, "expires_ms",
		json_integer((json_int_t)(pfx_clock_wall_ns() / 1000000u + ttl_ms)));
	return l->number;
}

/* ---- ending ---- */

void pfx_lease_expire(struct pfx_engine *e)
{
	uint64_t now = pfx_clock_ns();

	if (now < e->lease_due_ns) {
		return;
	}
	pfx_list_for_safe(it, &e->leases) {
		struct lease *l = pfx_container_of(it, struct lease, link);
		if (now >= l->due_ns) {
			e->n.leases_expired++;
			end_lease(e, l);
		}
	}
	find_due(e);
}

uint32_t pfx_lease_drop(struct pfx_engine *e, const struct pfx_key *of, uint64_t number)
{
	uint32_t n = 0;

	pfx_list_for_safe(it, &e->leases) {
		struct lease *l = pfx_container_of(it, struct lease, link);
		if (pfx_key_within(&l->key, of, 0) && (number == 0 || l->number == number)) {
			end_lease(e, l);
			n++;
		}
	}
	find_due(e);
	return n;
}

static int is_named(const struct lease *l, const struct pfx_key *key)
{
	return l->serial != 0 && l->key.len == key->len &&
		memcmp(l->key.data, key->data, key->len) == 0;
}

uint32_t pfx_lease_drop_named(struct pfx_engine *e, const struct pfx_key *key, uint64_t serial)
{
	uint32_t n = 0;

	pfx_list_for_safe(it, &e->leases) {
		struct lease *l = pfx_container_of(it, struct lease, link);
		if (is_named(l, key) && l->serial < serial) {
			end_lease(e, l);
			n++;
		}
	}
	find_due(e);
	return n;
}

uint64_t pfx_lease_of(const struct pfx_engine *e, const struct pfx_key *key)
{
	uint64_t number = 0;

	pfx_list_for(it, &e->leases) {
		const struct lease *l = pfx_container_of(it, struct lease, link);
		number = is_named(l, key) ? l->number : number;
	}
	return number;
}

uint32_t pfx_lease_flush(struct pfx_engine *e, const struct pfx_space *space)
{
	uint32_t n = 0;

	pfx_list_for_safe(it, &e->leases) {
		struct lease *l = pfx_container_of(it, struct lease, link);
		if (space == NULL || l->space == space) {
			end_lease(e, l);
			n++;
		}
	}
	find_due(e);
	return n;
}

void pfx_lease_close(struct pfx_engine *e)
{
	pfx_lease_flush(e, NULL);
}

/* ---- telling ---- */

static int covers(const struct lease *l, const struct pfx_request *r)
{
	/* The last id first: most that are no hit differ there. */
	return l->space == r->space && l->n_tokens <= r->tokens.n &&
		l->tokens[l->n_tokens - 1] == r->tokens.v[l->n_tokens - 1] &&
		memcmp(l->tokens, r->tokens.v, l->n_tokens * sizeof(*l->tokens)) == 0;
}

void pfx_lease_hit(struct pfx_engine *e, const struct pfx_request *r)
{
	pfx_list_for(it, &e->leases) {
		struct lease *l = pfx_container_of(it, struct lease, link);
		l->hits += (uint64_t)covers(l, r);
	}
}

uint32_t pfx_lease_covers(const struct pfx_engine *e, const struct pfx_request *r)
{
	uint32_t most = 0;

	pfx_list_for(it, &e->leases) {
		const struct lease *l = pfx_container_of(it, struct lease, link);
		if (l->n_tokens > most && covers(l, r)) {
			most = l->n_tokens;
		}
	}
	return most;
}

static json_t *report_one(const struct lease *l, uint64_t now)
{
	size_t name_len;
	const char *name = pfx_key_name(&l->key, &name_len);
	json_t *o = json_pack("{s:I}", "lease", (json_int_t)l->number);

	pfx_key_report(&l->key, o);
	json_object_set_new(o, "prefix", name_len == 0 ? json_null() : json_stringn(name, name_len));
	json_object_set_new(o, "tokens", json_integer(l->n_held));
	json_object_set_new(o, "blocks", json_integer(l->n_blocks));
	json_object_set_new(o, "hits", json_integer((json_int_t)l->hits));
	json_object_set_new(o, "age_s", json_real((double)(now - l->made_ns) / 1e9));
	json_object_set_new(o, "left_s",
		json_real(l->due_ns > now ? (double)(l->due_ns - now) / 1e9 : 0.0));
	return o;
}

json_t *pfx_lease_report(const struct pfx_engine *e, const struct pfx_key *of, int all)
{
	uint64_t now = pfx_clock_ns();
	json_t *list = json_array();

	pfx_list_for(it, &e->leases) {
		const struct lease *l = pfx_container_of(it, struct lease, link);
		if (pfx_key_within(&l->key, of, all)) {
			json_array_append_new(list, report_one(l, now));
		}
	}
	return json_pack("{s:o,s:i,s:i}", "leases", list, "blocks_leased", (int)leased_blocks(e),
		"blocks_max", (int)blocks_max(e));
}
