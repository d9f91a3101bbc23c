/*
 * A request whose prefix lies in a slower tier: FETCHING. Blocks are reserved like those of a
 * prefill, the mover fills them instead of the model, and what has come without a gap is
 * published like a chunk that was computed. Whatever goes wrong, the rest is computed.
 */
#include "engine/engine_priv.h"

#include <errno.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

/* No prompt is so long that waiting for the store pays beyond this, unless one was told so. */
#define PATIENCE_MAX_NS 5000000000u
/* After a request waited in vain for such a one, none asks the store for so long. */
#define LATE_PAUSE_NS 1000000000u

/* How long a request waits for the next block from the store at least. */
static uint64_t least_wait_ns(const struct pfx_engine *e)
{
	return e->opts.load_wait_ms * 1000000ull;
}

/* A store that has been at one record for half of that is not asked for more. */
static int is_stuck(const struct pfx_engine *e, const struct pfx_mover_rates *rates)
{
	return rates->load_wait_ns > least_wait_ns(e) / 2;
}

/* ---- is it worth it? ---- */

static uint32_t blocks_of(const struct pfx_engine *e, uint32_t from, uint32_t to)
{
	uint32_t b = e->info.block_tokens;

	return to <= from ? 0 : (to + b - 1) / b - from / b;
}

/* What computing tokens [from, to) should take longer than copying their blocks, in ns. */
static double gain(const struct pfx_engine *e, uint32_t from, uint32_t to, double ns_per_block,
	uint32_t n_before)
{
	return (to - from) * e->ns_per_row - (double)(blocks_of(e, from, to) + n_before) * ns_per_block;
}

/*
 * A block of which little is wanted costs as much as a whole one: the last one of the tokens
 * up to `to` is left to be computed when that is faster.
 */
static uint32_t trim(const struct pfx_engine *e, uint32_t from, uint32_t to, double ns_per_block)
{
	uint32_t whole = to / e->info.block_tokens * e->info.block_tokens;

	return whole > from && to - whole < e->info.block_tokens &&
		(to - whole) * e->ns_per_row < ns_per_block ? whole : to;
}

/*
 * How far to copy: host blocks reach up to `host`, records to `disk`, and len is on the device.
 * By what was measured; what was not is taken to be fast.
 */
static uint32_t choose(struct pfx_engine *e, uint32_t len, uint32_t host, uint32_t disk)
{
	struct pfx_mover *m = e->tiers.mover;
	struct pfx_mover_rates rates;
	double host_gain = 0, disk_gain = 0;
	int stuck;

	pfx_mover_rates(m, &rates);
	stuck = is_stuck(e, &rates) || pfx_clock_ns() < e->tiers.loads_after_ns;
	disk = stuck ? host : disk;
	if (e->opts.always_fetch || e->ns_per_row == 0) {
		return disk;
	}
	if (host > len) {
		host_gain = gain(e, len, host, rates.fetch_ns_per_block,
			pfx_mover_in_flight(m, PFX_ORDER_FETCH));
	}
	if (disk > host) {
		disk_gain = gain(e, host > len ? host : len, disk, rates.load_ns_per_block,
			pfx_mover_in_flight(m, PFX_ORDER_LOAD));
	}
	if (disk_gain > 0 && host_gain + disk_gain > 0) {
		return trim(e, host > len ? host : len, disk, rates.load_ns_per_block);
	}
	if (disk > host) {
		pfx_mover_doubt(m, PFX_ORDER_LOAD);
	}
	if (host_gain > 0) {
		return trim(e, len, host, rates.fetch_ns_per_block);
	}
	pfx_mover_doubt(m, PFX_ORDER_FETCH);
	return len;
}

/* ---- orders ---- */

/* Where the KV of block fetch_next comes from goes into the order. */
static void name_source(struct pfx_engine *e, const struct pfx_request *r, struct pfx_order *o,
	const struct pfx_source *src)
{
	static const struct pfx_digest none;
	struct pfx_store_key parent;
	size_t len;

	o->index = r->fetch_next;
	if (o->kind == PFX_ORDER_FETCH) {
		o->host = src->id;
		return;
	}
	o->record = src->id;
	if (o->index > 0) {
		PFX_ASSERT(src->parent_id != PFX_BLOCK_NONE);
		parent = pfx_records_get(e->tiers.records, src->parent_id);
	}
	pfx_order_key(o, pfx_space_name(r->space, &len), o->index > 0 ? &parent.self : &none,
		o->index * e->info.block_tokens, src->tokens, src->record_tokens);
}

static void hold(struct pfx_engine *e, const struct pfx_order *o)
{
	pfx_cache_hold(e->cache, PFX_TIER_DEVICE, o->device);
	if (o->kind == PFX_ORDER_FETCH) {
		pfx_cache_hold(e->cache, PFX_TIER_HOST, o->host);
	} else {
		pfx_cache_hold(e->cache, PFX_TIER_DISK, o->record);
	}
}

static void unhold(struct pfx_engine *e, const struct pfx_order *o)
{
	pfx_cache_unhold(e->cache, PFX_TIER_DEVICE, o->device);
	if (o->kind == PFX_ORDER_FETCH) {
		pfx_cache_unhold(e->cache, PFX_TIER_HOST, o->host);
	} else {
		pfx_cache_unhold(e->cache, PFX_TIER_DISK, o->record);
	}
}

static struct pfx_order *order_at(struct pfx_list *link)
{
	return pfx_container_of(link, struct pfx_order, of_owner);
}

/*
 * Nothing from block `index` on is fetched any more. Loads that the store has not answered
 * are taken back; what is being copied is waited for.
 */
static void cut(struct pfx_engine *e, struct pfx_request *r, uint32_t index)
{
	struct pfx_mover *m = e->tiers.mover;

	if (index * e->info.block_tokens < r->fetch_to) {
		r->fetch_to = index * e->info.block_tokens;
	}
	pfx_list_for_safe(it, &r->orders) {
		struct pfx_order *o = order_at(it);
		if (o->index < index) {
			continue;
		}
		r->fetch_torn = 1;
		if (o->finished) {
			pfx_mover_free(m, o);
		} else if (o->kind == PFX_ORDER_LOAD && pfx_mover_withdraw(m, o)) {
			unhold(e, o);
			pfx_mover_free(m, o);
		}
	}
}

void pfx_fetch_abandon(struct pfx_engine *e, struct pfx_request *r)
{
	if (e->tiers.mover == NULL) {
		return;
	}
	cut(e, r, 0);
	pfx_list_for_safe(it, &r->orders) {
		/* Under way: it holds its blocks, and nobody waits for it. */
		order_at(it)->owner = NULL;
		pfx_list_remove(it);
	}
	r->fetch_to = 0;
}

static void log_failure(const struct pfx_order *o)
{
	static struct pfx_log_rate rate;
	uint64_t held;

	if (!pfx_log_rate(&rate, &held)) {
		return;
	}
	if (o->result == PFX_E_FORMAT || o->result == PFX_E_TRUNCATED) {
		pfx_warn("engine", "a record of the store is damaged and dropped; what it had is computed "
			"suppressed=%llu", (unsigned long long)held);
	} else {
		pfx_warn("engine", "a block cannot be brought to the device and is computed: %s "
			"suppressed=%llu", pfx_strerror(o->result), (unsigned long long)held);
	}
}

void pfx_fetch_take(struct pfx_engine *e, struct pfx_order *o)
{
	struct pfx_tiers *t = &e->tiers;
	int load = o->kind == PFX_ORDER_LOAD;

	unhold(e, o);
	if (o->result == 0) {
		t->loads += load;
		t->fetches += !load;
	} else {
		t->missed_loads += load && o->result == -ENOENT;
		t->failed_loads += load && o->result != -ENOENT;
		t->failed_fetches += !load;
		if (!load || o->result != -ENOENT) {
			log_failure(o);
		}
	}
	if (o->owner == NULL) {
		pfx_mover_free(t->mover, o);
	}
}

/*
 * Gives the order for one more block. 1; 0: not now, or no more (fetch_to says which); -1: the
 * request is gone or back in the queue.
 */
static int give_one(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_mover *m = e->tiers.mover;
	uint32_t upto, n;
	struct pfx_source src;
	struct pfx_order *o;
	enum pfx_order_kind kind;
	int rc = pfx_path_source(r->path, r->fetch_next, &src);

	if (rc != 0 || src.tier == PFX_TIER_DEVICE) {
		/* Gone; or somebody has brought it back, and the path can follow. */
		r->fetch_torn |= rc != 0;
		cut(e, r, r->fetch_next);
		return 0;
	}
	kind = src.tier == PFX_TIER_HOST ? PFX_ORDER_FETCH : PFX_ORDER_LOAD;
	r->fetch_queued = kind == PFX_ORDER_LOAD;
	/* A host block may still be on its way there: that order must have been given before. */
	if (!pfx_mover_room(m, kind) || (kind == PFX_ORDER_FETCH && !pfx_tiers_spill(e)) ||
		(o = pfx_mover_order(m, kind)) == NULL) {
		return 0;
	}
	name_source(e, r, o, &src);
	upto = r->fetch_next * e->info.block_tokens + src.n_tokens;
	o->upto = upto < r->fetch_to ? upto : r->fetch_to;
	rc = pfx_sched_reserve(e, r, o->upto);
	if (rc != 0) {
		pfx_mover_free(m, o);
		if (rc == PFX_E_FULL) {
			cut(e, r, r->fetch_next);
		}
		return rc == -ECANCELED ? -1 : 0;
	}
	o->device = pfx_path_blocks(r->path, &n)[o->index];
	hold(e, o);
	o->owner = r;
	pfx_list_push_back(&r->orders, &o->of_owner);
	pfx_mover_give(m, o);
	r->fetch_next++;
	e->progress++;
	return 1;
}

/* ---- a request's turn ---- */

static uint64_t patience(const struct pfx_engine *e, const struct pfx_request *r)
{
	double ns = 2 * (double)(r->fetch_to - pfx_request_len(r)) * e->ns_per_row;
	uint64_t worth = ns < PATIENCE_MAX_NS ? (uint64_t)ns : PATIENCE_MAX_NS;

	return worth > least_wait_ns(e) ? worth : least_wait_ns(e);
}

/* Publishes what has come without a gap. */
static void publish(struct pfx_engine *e, struct pfx_request *r)
{
	uint32_t before = pfx_request_len(r), upto = before;

	while (!pfx_list_empty(&r->orders)) {
		struct pfx_order *o = order_at(r->orders.next);
		if (!o->finished || o->result != 0 || o->upto > r->fetch_to) {
			break;
		}
		upto = o->upto;
		pfx_mover_free(e->tiers.mover, o);
	}
	if (upto == before) {
		return;
	}
	if (pfx_path_publish(r->path, r->tokens.v, upto) != 0) {
		pfx_warn("engine", "no memory to publish a prefix; it is not cached tokens=%u", upto);
	}
	/* A block whose head was to be copied came whole. */
	r->copy.n = 0;
	/* Whether the last token must run again is not decided yet. */
	pfx_usage_cached(e, r, upto < r->n_prompt ? upto : r->n_prompt - 1);
	if (r->fetch_to > upto) {
		r->fetch_by_ns = pfx_clock_ns() + patience(e, r);
	}
}

/* What could not be read is forgotten, and all that hangs on it; the rest is computed. */
static void look_for_failure(struct pfx_engine *e, struct pfx_request *r)
{
	pfx_list_for(it, &r->orders) {
		struct pfx_order *o = order_at(it);
		if (!o->finished || o->result == 0) {
			continue;
		}
		if (o->kind == PFX_ORDER_LOAD) {
			pfx_path_lost(r->path, o->index);
		}
		cut(e, r, o->index);
		return;
	}
}

static int any_under_way(const struct pfx_request *r)
{
	pfx_list_for(it, &r->orders) {
		if (!order_at(it)->finished) {
			return 1;
		}
	}
	return 0;
}

/* Copies in memory end by themselves; what comes late is what the store has not read. */
static int waits_for_store(const struct pfx_request *r)
{
	int loads = r->fetch_queued && pfx_list_empty(&r->orders);

	pfx_list_for(it, &r->orders) {
		loads |= order_at(it)->kind == PFX_ORDER_LOAD && !order_at(it)->finished;
	}
	return loads;
}

static void fetch(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_mover_rates rates;
	int given = 1;

	publish(e, r);
	look_for_failure(e, r);
	if (pfx_request_len(r) < r->fetch_to && pfx_clock_ns() > r->fetch_by_ns && waits_for_store(r)) {
		e->tiers.late++;
		pfx_mover_rates(e->tiers.mover, &rates);
		if (is_stuck(e, &rates)) {
			e->tiers.loads_after_ns = pfx_clock_ns() + LATE_PAUSE_NS;
		}
		r->fetch_torn = 1;
		cut(e, r, pfx_request_len(r) / e->info.block_tokens);
	}
	while (given > 0 && r->fetch_next * e->info.block_tokens < r->fetch_to) {
		given = give_one(e, r);
	}
	if (given < 0 || pfx_request_len(r) < r->fetch_to || any_under_way(r)) {
		return;
	}
	cut(e, r, 0);
	e->progress++;
	pfx_admit_fetched(e, r);
}

int pfx_fetch_begin(struct pfx_engine *e, struct pfx_request *r, uint32_t limit)
{
	uint32_t len = pfx_request_len(r), host;
	struct pfx_hit hit;

	if (e->tiers.mover == NULL || r->no_fetch || pfx_path_reach(r->path) <= len) {
		return 0;
	}
	pfx_cache_match(e->cache, r->space, r->tokens.v, limit, &hit);
	host = hit.tier_tokens[PFX_TIER_DEVICE] + hit.tier_tokens[PFX_TIER_HOST];
	host = host > len ? host : len;
	r->fetch_to = choose(e, len, host, pfx_path_reach(r->path));
	if (r->fetch_to <= len) {
		e->tiers.computed_instead++;
		r->fetch_to = 0;
		return 0;
	}
	r->state = PFX_REQUEST_FETCHING;
	r->leader = NULL;
	r->fetch_next = len / e->info.block_tokens;
	r->fetch_torn = 0;
	r->fetch_queued = 0;
	r->fetch_by_ns = pfx_clock_ns() + patience(e, r);
	pfx_usage_cached(e, r, len);
	return 1;
}

/* Younger requests may be preempted meanwhile, and r may end; older ones are not touched. */
void pfx_fetch_turn(struct pfx_engine *e)
{
	struct pfx_list *before = &e->active, *it;

	while ((it = before->next) != &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if (r->state == PFX_REQUEST_FETCHING) {
			fetch(e, r);
		}
		if (before->next == it) {
			before = it;
		}
	}
}
