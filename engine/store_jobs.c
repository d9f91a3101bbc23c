/*
 * What operators ask of the slower tiers: evict, flush and save, answered when what they are about
 * is copied, deleted or written, or nothing of it has moved for too long.
 */
#include "engine/engine_priv.h"
#include "engine/observe.h"
#include "engine/store_jobs.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"


static const char *const tier_names[PFX_TIERS] = {
	[PFX_TIER_DEVICE] = "device", [PFX_TIER_HOST] = "host", [PFX_TIER_DISK] = "disk",
};

static struct pfx_event *bad_request(const struct pfx_job *job, const char *message)
{
	return pfx_fault_event(job, PFX_FAULT_BAD_REQUEST, message);
}

/* ---- which part of the cache ---- */

/* -1 when it is no tier's name. */
static int tier_of(const json_t *name)
{
	for (int i = 0; i < PFX_TIERS; i++) {
		if (json_is_string(name) && strcmp(json_string_value(name), tier_names[i]) == 0) {
			return i;
		}
	}
	return -1;
}

/* Bits 1 << tier of `tier`, which names one or lists several; all without it; 0: it is wrong. */
static unsigned tiers_of(const struct pfx_job *job)
{
	const json_t *v = json_object_get(job->args, "tier"), *one;
	unsigned bits = 0;
	size_t i;

	if (v == NULL) {
		return PFX_TIER_ALL;
	}
	if (!json_is_array(v)) {
		return tier_of(v) < 0 ? 0 : 1u << tier_of(v);
	}
	json_array_foreach(v, i, one) {
		if (tier_of(one) < 0) {
			return 0;
		}
		bits |= 1u << tier_of(one);
	}
	return bits;
}

/* 1: `namespace` was given and is *out; 0: not given; -1: it is no string. */
int pfx_job_space(const struct pfx_job *job, struct pfx_digest *out)
{
	const json_t *v = json_object_get(job->args, "namespace");

	if (v == NULL) {
		return 0;
	}
	if (!json_is_string(v)) {
		return -1;
	}
	pfx_space_digest(job->space, job->space_len, json_string_value(v), json_string_length(v), out);
	return 1;
}

/* The handle of `namespace`, to be released; NULL for all. Not 0: *fault is the answer. */
static int open_space(struct pfx_engine *e, const struct pfx_job *job, struct pfx_space **out,
	struct pfx_event **fault)
{
	struct pfx_digest name;
	int given = pfx_job_space(job, &name);

	*out = NULL;
	if (given < 0) {
		*fault = bad_request(job, "namespace must be a string");
		return -1;
	}
	if (given > 0 && pfx_cache_space(e->cache, name.b, sizeof(name.b), out) != 0) {
		*fault = pfx_fault_event(job, PFX_FAULT_INTERNAL, "out of memory");
		return -1;
	}
	return 0;
}

/* ---- evict ---- */

/* `blocks`, or as many as `bytes` take; all without either. -1: wrong. */
static int64_t how_many(const struct pfx_engine *e, const struct pfx_job *job)
{
	const json_t *blocks = json_object_get(job->args, "blocks");
	const json_t *bytes = json_object_get(job->args, "bytes");
	json_int_t each = (json_int_t)(e->info.kv_bytes_per_token * e->info.block_tokens), n;

	if ((blocks != NULL && bytes != NULL) || (blocks != NULL && !json_is_integer(blocks)) ||
		(bytes != NULL && !json_is_integer(bytes))) {
		return -1;
	}
	n = blocks != NULL ? json_integer_value(blocks) : json_integer_value(bytes);
	if (blocks == NULL && bytes == NULL) {
		return UINT32_MAX;
	}
	if (n < 0) {
		return -1;
	}
	n = bytes != NULL ? n / each + (n % each != 0) : n;
	return n < UINT32_MAX ? n : UINT32_MAX;
}

static struct pfx_event *evict(struct pfx_engine *e, const struct pfx_job *job, int *out_tier)
{
	const json_t *name = json_object_get(job->args, "tier");
	int tier = name == NULL ? PFX_TIER_DEVICE : tier_of(name);
	int64_t n = how_many(e, job);
	struct pfx_cache_stats stats;
	struct pfx_space *space;
	struct pfx_event *ev;
	uint32_t gone;

	if (tier < 0) {
		return bad_request(job, "tier must be device, host or disk");
	}
	if (n < 0) {
		return bad_request(job, "evict takes blocks or bytes, a whole number");
	}
	if (open_space(e, job, &space, &ev) != 0) {
		return ev;
	}
	*out_tier = tier;
	gone = pfx_cache_evict(e->cache, (enum pfx_tier)tier, space, (uint32_t)n);
	pfx_space_release(space);
	pfx_cache_stats(e->cache, &stats);
	ev = pfx_event_new(PFX_EVENT_REPORT, job);
	ev->report_name = "evicted";
	ev->report = json_pack("{s:s,s:I,s:I,s:I}", "tier", tier_names[tier], "blocks",
		(json_int_t)gone, "bytes",
		(json_int_t)(gone * e->info.kv_bytes_per_token * e->info.block_tokens), "in_use",
		(json_int_t)stats.tier[tier].pinned);
	return ev;
}

/* ---- answers that wait for the store ---- */

void pfx_store_answer(struct pfx_engine *e, struct pfx_request *r, struct pfx_event *ev)
{
	pfx_list_remove(&r->link);
	ev->last = 1;
	pfx_request_leave(e, r, ev);
}

static void answer_all(struct pfx_engine *e, struct pfx_list *list, enum pfx_fault fault,
	const char *message)
{
	pfx_list_for_safe(it, list) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		pfx_store_answer(e, r, pfx_fault_event(r->job, fault, message));
	}
}

static int anybody_waits(const struct pfx_tiers *t)
{
	return !pfx_list_empty(&t->asking) || !pfx_list_empty(&t->savers) ||
		!pfx_list_empty(&t->syncing) || !pfx_list_empty(&t->flushing);
}

/* From now on somebody waits, if nobody did before. */
static void begin_waiting(struct pfx_tiers *t)
{
	if (!anybody_waits(t)) {
		t->moved_ns = pfx_clock_ns();
	}
}

/* The store has finished nothing for longer than who waits since then should wait for it. */
int pfx_store_is_stuck(const struct pfx_engine *e, uint64_t since_ns)
{
	uint64_t from = since_ns > e->tiers.moved_ns ? since_ns : e->tiers.moved_ns;

	return pfx_clock_ns() - from > (uint64_t)e->opts.store_wait_ms * 1000000u;
}

/* ---- copies and deletions that somebody waits for ---- */

#define NOT_ORDERED UINT64_MAX

static uint64_t spills_over(const struct pfx_tiers *t)
{
	return t->spills + t->failed_spills;
}

static uint64_t deletes_over(const struct pfx_tiers *t)
{
	return t->deletes + t->failed_deletes;
}

/*
 * Whether the copies and deletions are over that r waits for. What radix/ had to order when it
 * came is among those in flight once all has been ordered, and both kinds end in their order:
 * so nobody waits for what others begin later.
 */
static int is_over(const struct pfx_tiers *t, struct pfx_request *r)
{
	if (r->spills_until == NOT_ORDERED && t->all_spilled) {
		r->spills_until = spills_over(t) + pfx_mover_in_flight(t->mover, PFX_ORDER_SPILL);
	}
	if (r->deletes_until == NOT_ORDERED && (t->all_deleted || t->store == NULL)) {
		r->deletes_until = deletes_over(t) + pfx_mover_in_flight(t->mover, PFX_ORDER_DELETE);
	}
	return r->spills_until <= spills_over(t) && r->deletes_until <= deletes_over(t);
}

/* What r waits for has come no further for longer than one should wait. */
static int is_late(const struct pfx_engine *e, const struct pfx_request *r)
{
	const struct pfx_tiers *t = &e->tiers;
	uint64_t moved_ns = r->spills_until > spills_over(t) ? t->spilled_ns : t->moved_ns;
	uint64_t from = r->asked_ns > moved_ns ? r->asked_ns : moved_ns;

	return pfx_clock_ns() - from > (uint64_t)e->opts.store_wait_ms * 1000000u;
}

/* Blocks on their way out of the tier, for an answer that could not wait for their end. */
static uint32_t still_moving(const struct pfx_engine *e, enum pfx_tier tier)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(e->cache, &s);
	return s.tier[tier].moving;
}

static void answer_evict(struct pfx_engine *e, struct pfx_request *r, int is_done)
{
	struct pfx_event *ev = r->answer;
	enum pfx_tier tier = r->deletes_until != 0 ? PFX_TIER_DISK : PFX_TIER_DEVICE;

	r->answer = NULL;
	json_object_set_new(ev->report, "moving", json_integer(is_done ? 0 : still_moving(e, tier)));
	pfx_store_answer(e, r, ev);
	e->progress++;
}

void pfx_control_evict(struct pfx_engine *e, struct pfx_request *r)
{
	int tier = PFX_TIER_DEVICE;
	struct pfx_event *ev = evict(e, r->job, &tier);

	if (ev->kind != PFX_EVENT_REPORT) {
		pfx_store_answer(e, r, ev);
		return;
	}
	r->answer = ev;
	r->asked_ns = pfx_clock_ns();
	/* What leaves host memory is on disk already, or gone. */
	r->spills_until = tier == PFX_TIER_DEVICE ? NOT_ORDERED : 0;
	r->deletes_until = tier == PFX_TIER_DISK ? NOT_ORDERED : 0;
	if (e->tiers.mover == NULL || tier == PFX_TIER_HOST) {
		answer_evict(e, r, 1);
		return;
	}
	pfx_list_push_back(&e->tiers.evicting, &r->link);
}

static void evicting_turn(struct pfx_engine *e)
{
	pfx_list_for_safe(it, &e->tiers.evicting) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);

		if (is_over(&e->tiers, r)) {
			answer_evict(e, r, 1);
		} else if (is_late(e, r)) {
			answer_evict(e, r, 0);
		}
	}
}

/* ---- flush ---- */

static struct pfx_event *flush(struct pfx_engine *e, const struct pfx_job *job)
{
	unsigned tiers = tiers_of(job);
	uint32_t leases;
	struct pfx_flushed flushed;
	struct pfx_space *space;
	struct pfx_event *ev;

	if (tiers == 0) {
		return bad_request(job, "tier must be one or several of device, host and disk");
	}
	if (open_space(e, job, &space, &ev) != 0) {
		return ev;
	}
	/* A lease holds device memory: it ends with what it was for. */
	leases = (tiers >> PFX_TIER_DEVICE & 1) ? pfx_lease_flush(e, space) : 0;
	pfx_cache_flush(e->cache, space, tiers, &flushed);
	/* Who runs keeps its blocks, but nobody can follow it any more. */
	pfx_list_for(it, &e->active) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		if ((space == NULL || r->space == space) && (tiers >> PFX_TIER_DEVICE & 1)) {
			r->unshared = 1;
			r->leader = NULL;
		}
	}
	pfx_space_release(space);
	if (tiers == PFX_TIER_ALL) {
		pfx_pieces_clear(e->pieces);
	}
	if (space == NULL && tiers == PFX_TIER_ALL) {
		pfx_observe_flushed(e);
	}
	ev = pfx_event_new(PFX_EVENT_FLUSHED, job);
	ev->flushed_device = flushed.blocks[PFX_TIER_DEVICE];
	ev->flushed_host = flushed.blocks[PFX_TIER_HOST];
	ev->flushed_disk = flushed.blocks[PFX_TIER_DISK];
	ev->in_use = flushed.in_use;
	ev->flushed_leases = leases;
	ev->durable = e->tiers.store == NULL || e->tiers.writer != NULL;
	return ev;
}

void pfx_control_flush(struct pfx_engine *e, struct pfx_request *r)
{
	struct pfx_tiers *t = &e->tiers;
	struct pfx_event *ev = flush(e, r->job);

	if (ev->kind != PFX_EVENT_FLUSHED || t->mover == NULL) {
		pfx_store_answer(e, r, ev);
		return;
	}
	r->answer = ev;
	r->asked_ns = pfx_clock_ns();
	r->spills_until = NOT_ORDERED;
	r->deletes_until = 0; /* the whole store is waited for, see below */
	begin_waiting(t);
	if (pfx_list_empty(&t->flushing)) {
		t->failed_before = t->failed_deletes;
	}
	pfx_list_push_back(&t->flushing, &r->link);
}

static void answer_flush(struct pfx_engine *e, struct pfx_request *r, int is_done, int durable)
{
	struct pfx_event *ev = r->answer;

	r->answer = NULL;
	/* A store that is only read has its records again after a restart. */
	ev->durable = ev->durable && durable;
	ev->flushed_moving = is_done ? 0
		: still_moving(e, PFX_TIER_DEVICE) + still_moving(e, PFX_TIER_DISK);
	pfx_store_answer(e, r, ev);
	e->progress++;
}

/*
 * What was being saved when the flush came is deleted once it is there; so no save may be under
 * way, and none begins meanwhile. A store that is not written forgets at once.
 */
static int store_is_flushed(const struct pfx_tiers *t)
{
	return t->writer == NULL || (t->all_deleted &&
		pfx_mover_in_flight(t->mover, PFX_ORDER_SAVE) == 0 &&
		pfx_mover_in_flight(t->mover, PFX_ORDER_DELETE) == 0);
}

static void flushing_turn(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;
	int is_flushed = store_is_flushed(t);
	int durable = is_flushed && t->failed_deletes == t->failed_before;

	pfx_list_for_safe(it, &t->flushing) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);

		if (is_over(t, r) && is_flushed) {
			answer_flush(e, r, 1, durable);
		} else if (is_late(e, r)) {
			answer_flush(e, r, 0, durable);
		}
	}
}

/* ---- save ---- */

const char *pfx_store_why_not(const struct pfx_engine *e)
{
	return e->tiers.store == NULL ? "there is no store; prefixd --store DIR names one"
		: e->tiers.writer == NULL ? "the store cannot be written" : NULL;
}

void pfx_control_save(struct pfx_engine *e, struct pfx_request *r)
{
	const char *why = pfx_store_why_not(e);

	if (why != NULL) {
		pfx_store_answer(e, r, bad_request(r->job, why));
		return;
	}
	begin_waiting(&e->tiers);
	pfx_list_push_back(&e->tiers.asking, &r->link);
}

static void move_all(struct pfx_list *from, struct pfx_list *to)
{
	while (!pfx_list_empty(from)) {
		struct pfx_list *first = from->next;
		pfx_list_remove(first);
		pfx_list_push_back(to, first);
	}
}

static int give_sync(struct pfx_engine *e)
{
	struct pfx_order *o = pfx_mover_order(e->tiers.mover, PFX_ORDER_SYNC);

	if (o == NULL) {
		return -ENOMEM;
	}
	if (pfx_mover_give(e->tiers.mover, o) != 0) {
		pfx_mover_free(e->tiers.mover, o);
		return -ENOMEM;
	}
	return 0;
}

/*
 * What was asked for begins once no older save is under way and the writer has told of its
 * older failures, which would else be taken for ours.
 */
static void asking_turn(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;

	if (pfx_list_empty(&t->asking) || !pfx_list_empty(&t->savers) ||
		pfx_mover_in_flight(t->mover, PFX_ORDER_SYNC) > 0 ||
		pfx_mover_in_flight(t->mover, PFX_ORDER_SAVE) > 0) {
		return;
	}
	if (give_sync(e) != 0) {
		answer_all(e, &t->asking, PFX_FAULT_INTERNAL, "out of memory");
		return;
	}
	t->clearing = 1;
}

/* What could not be saved a moment ago is tried as well. */
static void begin_saving(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;

	pfx_cache_want_saved(e->cache, NULL);
	t->save_after_ns = 0;
	t->save_error = 0;
	t->all_saved = 0;
	move_all(&t->asking, &t->savers);
	e->progress++;
}

static void fail_savers(struct pfx_engine *e, struct pfx_list *list, int rc)
{
	struct pfx_buf text = PFX_BUF_INIT;

	pfx_buf_addf(&text, "not everything could be saved: %s", pfx_strerror(rc));
	answer_all(e, list, PFX_FAULT_INTERNAL, text.oom ? "not everything could be saved" : text.data);
	pfx_buf_free(&text);
}

/* Once all is with the store, it is told to make it durable. */
static void savers_turn(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;

	if (pfx_list_empty(&t->savers) || pfx_mover_in_flight(t->mover, PFX_ORDER_SYNC) > 0) {
		return;
	}
	if (t->save_error != 0) {
		fail_savers(e, &t->savers, t->save_error);
		return;
	}
	if (!t->all_saved || pfx_mover_in_flight(t->mover, PFX_ORDER_SAVE) > 0) {
		return;
	}
	if (give_sync(e) != 0) {
		fail_savers(e, &t->savers, -ENOMEM);
		return;
	}
	move_all(&t->savers, &t->syncing);
}

void pfx_store_synced(struct pfx_engine *e, int rc)
{
	struct pfx_tiers *t = &e->tiers;
	struct pfx_store_info info;

	if (t->clearing) {
		t->clearing = 0;
		if (!pfx_list_empty(&t->asking)) {
			begin_saving(e);
		}
		return;
	}
	if (rc != 0) {
		fail_savers(e, &t->syncing, rc);
		return;
	}
	pfx_store_info(t->store, &info);
	pfx_list_for_safe(it, &t->syncing) {
		struct pfx_request *r = pfx_container_of(it, struct pfx_request, link);
		struct pfx_event *ev = pfx_event_new(PFX_EVENT_REPORT, r->job);
		ev->report_name = "saved";
		ev->report = json_pack("{s:I,s:I}", "records", (json_int_t)info.records, "bytes",
			(json_int_t)info.bytes);
		pfx_store_answer(e, r, ev);
	}
}

/* What is not written by now goes on by itself; nobody waits for it any more. */
static void patience_turn(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;
	const char *chore = pfx_chore_running(t);
	enum pfx_fault fault = PFX_FAULT_INTERNAL;
	char text[160];

	if (!pfx_store_is_stuck(e, 0)) {
		return;
	}
	if (chore != NULL) {
		/* Not the disk is at fault: whatever is written waits for the chore. */
		fault = PFX_FAULT_OVERLOADED;
		snprintf(text, sizeof(text), "not everything is saved yet: the store is busy, %s is running",
			chore);
	} else {
		snprintf(text, sizeof(text), "not everything is saved: the store has done nothing for "
			"%u ms", e->opts.store_wait_ms);
	}
	answer_all(e, &t->asking, fault, text);
	answer_all(e, &t->savers, fault, text);
	answer_all(e, &t->syncing, fault, text);
}

int pfx_store_jobs_wait(const struct pfx_tiers *t)
{
	return anybody_waits(t) || !pfx_list_empty(&t->evicting) || pfx_chore_waits(t);
}

void pfx_store_jobs_turn(struct pfx_engine *e)
{
	evicting_turn(e);
	flushing_turn(e);
	savers_turn(e);
	asking_turn(e);
	patience_turn(e);
	pfx_chore_turn(e);
}

void pfx_store_jobs_end(struct pfx_engine *e)
{
	pfx_list_for_safe(it, &e->tiers.evicting) {
		answer_evict(e, pfx_container_of(it, struct pfx_request, link), 0);
	}
	pfx_list_for_safe(it, &e->tiers.flushing) {
		answer_flush(e, pfx_container_of(it, struct pfx_request, link), 0, 0);
	}
	answer_all(e, &e->tiers.asking, PFX_FAULT_SHUTTING_DOWN, "the server is shutting down");
	answer_all(e, &e->tiers.savers, PFX_FAULT_SHUTTING_DOWN, "the server is shutting down");
	answer_all(e, &e->tiers.syncing, PFX_FAULT_SHUTTING_DOWN, "the server is shutting down");
	pfx_chore_end(e);
}
