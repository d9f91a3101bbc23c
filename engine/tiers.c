/* The engine thread's dealings with the mover: radix/'s orders out, what came of them back in. */
#include "engine/engine_priv.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

/* Staging buffers: some for a transaction, and not more memory than this. */
#define STAGING_BYTES (16u << 20)
#define STAGING_MAX 16u
#define LOADERS 2
/*
 * Saves that one turn begins while requests run, beside one for each block that the last step
 * filled: what is computed is saved at the pace of computing, and a step is not slowed by more.
 */
#define SAVES_A_TURN 2u
#define SAVES_A_TURN_ASKED 8u /* while somebody waits for them */
/* After a save that failed the next is tried this much later, then twice that, and so on. */
#define SAVE_PAUSE_NS 500000000u
#define SAVE_PAUSE_MAX_NS 60000000000u

/* ---- open and close ---- */

static void wake(void *arg)
{
	pfx_engine_wake(arg);
}

static int open_mover(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;
	size_t block_bytes = pfx_model_block_bytes(e->model);
	uint64_t n = STAGING_BYTES / block_bytes;
	struct pfx_mover_opts opts = {
		.model = e->model,
		.block_tokens = e->info.block_tokens,
		.host = t->host,
		.store = t->store,
		.writer = t->writer,
		.n_staging = n < 2 ? 2 : n > STAGING_MAX ? STAGING_MAX : (uint32_t)n,
		.n_loaders = LOADERS,
		.wake = wake,
		.wake_arg = e,
	};

	return pfx_mover_open(&t->mover, &opts);
}

/* What the machine does not have would be swapped, which is slower than computing. */
static int open_host(struct pfx_engine *e, char *err, size_t errlen)
{
	uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t bytes = e->opts.host_memory;
	size_t block_bytes = pfx_model_block_bytes(e->model);
	int rc;

	if (bytes < block_bytes) {
		return pfx_fail(-EINVAL, err, errlen,
			"--host-memory: %llu bytes are less than a block, which has %zu",
			(unsigned long long)bytes, block_bytes);
	}
	if (bytes > machine) {
		return pfx_fail(-EINVAL, err, errlen,
			"--host-memory: %llu bytes are more than the machine's %llu",
			(unsigned long long)bytes, (unsigned long long)machine);
	}
	rc = pfx_arena_open(&e->tiers.host, block_bytes, bytes);
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "--host-memory: cannot reserve %llu bytes: %s",
			(unsigned long long)bytes, pfx_strerror(rc));
	}
	return 0;
}

int pfx_tiers_open(struct pfx_engine *e, const struct pfx_gguf *g, char *err, size_t errlen)
{
	struct pfx_tiers *t = &e->tiers;
	int rc = 0;

	pfx_list_init(&t->asking);
	pfx_list_init(&t->savers);
	pfx_list_init(&t->syncing);
	pfx_list_init(&t->flushing);
	pfx_list_init(&t->evicting);
	if (e->opts.host_memory > 0) {
		rc = open_host(e, err, errlen);
		if (rc != 0) {
			return rc;
		}
	}
	if (e->opts.store_path != NULL || e->opts.store != NULL) {
		rc = pfx_tiers_open_store(e, g, err, errlen);
	}
	if (rc == 0 && (t->host != NULL || t->store != NULL)) {
		rc = open_mover(e);
		if (rc != 0) {
			pfx_fail(rc, err, errlen, "cannot set up the mover: %s", pfx_strerror(rc));
		}
	}
	return rc;
}

int pfx_tiers_close(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;
	int rc = 0;

	if (t->mover != NULL) {
		rc = pfx_mover_close(t->mover, e->opts.close_ms / 4);
	} else if (t->writer != NULL) {
		rc = pfx_writer_close(t->writer);
	}
	if (rc == -ETIMEDOUT || t->stuck) {
		return -ETIMEDOUT;
	}
	if (t->store != e->opts.store) {
		pfx_store_close(t->store);
	}
	pfx_records_close(t->records);
	pfx_arena_close(t->host);
	return 0;
}

/* ---- what came of the orders ---- */

static void take_spill(struct pfx_engine *e, struct pfx_order *o)
{
	struct pfx_spill s = { .device = o->device, .host = o->host };

	pfx_cache_spilled(e->cache, &s, o->result == 0);
	e->tiers.spilled_ns = pfx_clock_ns();
	e->tiers.spills += o->result == 0;
	e->tiers.failed_spills += o->result != 0;
}

static void note_save(struct pfx_tiers *t, int rc)
{
	if (rc == 0) {
		t->saves++;
		t->save_pause_ns = 0;
		return;
	}
	if (rc == -ENOENT) {
		/* Its parent failed, and that one has been noted, or has made room or was flushed since. */
		return;
	}
	t->failed_saves++;
	t->save_error = t->save_error == 0 ? rc : t->save_error;
	t->save_pause_ns = t->save_pause_ns == 0 ? SAVE_PAUSE_NS : t->save_pause_ns * 2;
	if (t->save_pause_ns > SAVE_PAUSE_MAX_NS) {
		t->save_pause_ns = SAVE_PAUSE_MAX_NS;
	}
	t->save_after_ns = pfx_clock_ns() + t->save_pause_ns;
}

static void take_save(struct pfx_engine *e, struct pfx_order *o)
{
	if (o->staged) {
		pfx_cache_save_copied(e->cache, o->record);
	}
	if (o->finished) {
		note_save(&e->tiers, o->result);
		pfx_cache_saved(e->cache, o->record, o->result);
	}
}

static void take_one(struct pfx_engine *e, struct pfx_order *o)
{
	if (o->finished && o->kind >= PFX_ORDER_SAVE) {
		e->tiers.moved_ns = pfx_clock_ns();
	}
	switch (o->kind) {
	case PFX_ORDER_SPILL:
		take_spill(e, o);
		break;
	case PFX_ORDER_FETCH:
	case PFX_ORDER_LOAD:
		pfx_fetch_take(e, o);
		return;
	case PFX_ORDER_SAVE:
		take_save(e, o);
		break;
	case PFX_ORDER_DELETE:
		e->tiers.deletes += o->result == 0;
		e->tiers.failed_deletes += o->result != 0;
		pfx_cache_deleted(e->cache, o->record);
		break;
	case PFX_ORDER_SYNC:
		pfx_store_synced(e, o->result);
		break;
	case PFX_ORDERS:
		break;
	}
	if (o->finished) {
		pfx_mover_free(e->tiers.mover, o);
	}
}

void pfx_tiers_take(struct pfx_engine *e)
{
	struct pfx_order *o;

	if (e->tiers.mover == NULL) {
		return;
	}
	while ((o = pfx_mover_next(e->tiers.mover)) != NULL) {
		e->progress++;
		take_one(e, o);
	}
}

/* ---- orders ---- */

int pfx_tiers_spill(struct pfx_engine *e)
{
	struct pfx_mover *m = e->tiers.mover;
	struct pfx_spill s;
	struct pfx_order *o;

	while (m != NULL) {
		if (!pfx_mover_room(m, PFX_ORDER_SPILL)) {
			return 0;
		}
		o = pfx_mover_order(m, PFX_ORDER_SPILL);
		if (o == NULL) {
			return 0;
		}
		if (!pfx_cache_next_spill(e->cache, &s)) {
			pfx_mover_free(m, o);
			break;
		}
		o->device = s.device;
		o->host = s.host;
		pfx_mover_give(m, o);
		e->progress++;
	}
	return 1;
}

/* 0 when some deletions wait still: what is saved now could be what they delete. */
static int give_deletes(struct pfx_engine *e)
{
	struct pfx_mover *m = e->tiers.mover;
	struct pfx_order *o;
	uint32_t record;

	for (;;) {
		if (e->tiers.writer == NULL) {
			/* A store that is only read keeps what it has. */
			if (!pfx_cache_next_delete(e->cache, &record)) {
				return 1;
			}
			pfx_cache_deleted(e->cache, record);
			continue;
		}
		if (!pfx_mover_room(m, PFX_ORDER_DELETE) ||
			(o = pfx_mover_order(m, PFX_ORDER_DELETE)) == NULL) {
			return 0;
		}
		if (!pfx_cache_next_delete(e->cache, &record)) {
			pfx_mover_free(m, o);
			return 1;
		}
		o->record = record;
		o->key = pfx_records_get(e->tiers.records, record);
		e->progress++;
		if (pfx_mover_give(m, o) != 0) {
			e->tiers.failed_deletes++;
			pfx_cache_deleted(e->cache, record);
			pfx_mover_free(m, o);
		}
	}
}

static void name_save(struct pfx_engine *e, struct pfx_order *o, const struct pfx_save_order *s)
{
	static const struct pfx_digest none;
	struct pfx_store_key parent;
	size_t len;
	const void *space = pfx_space_name(s->space, &len);

	PFX_ASSERT(len == sizeof(struct pfx_digest));
	if (s->pos > 0) {
		parent = pfx_records_get(e->tiers.records, s->parent_record);
	}
	pfx_order_key(o, space, s->pos > 0 ? &parent.self : &none, s->pos, s->tokens, s->n_tokens);
	pfx_records_set(e->tiers.records, s->record, &o->key);
	o->record = s->record;
	if (s->tier == PFX_TIER_DEVICE) {
		o->device = s->src;
	} else {
		o->host = s->src;
	}
}

/* Nothing waits for an order; or it waits for room, or for what stands before it. */
static int nothing_to_save(const struct pfx_engine *e)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(e->cache, &s);
	return s.saves_waiting == pfx_mover_in_flight(e->tiers.mover, PFX_ORDER_SAVE);
}

static void give_saves(struct pfx_engine *e, uint32_t most)
{
	struct pfx_mover *m = e->tiers.mover;
	struct pfx_save_order s;
	struct pfx_order *o;

	e->tiers.all_saved = 0;
	for (uint32_t i = 0; i < most && pfx_mover_room(m, PFX_ORDER_SAVE); i++) {
		o = pfx_mover_order(m, PFX_ORDER_SAVE);
		if (o == NULL) {
			return;
		}
		if (!pfx_cache_next_save(e->cache, &s)) {
			pfx_mover_free(m, o);
			e->tiers.all_saved = nothing_to_save(e);
			return;
		}
		name_save(e, o, &s);
		pfx_mover_give(m, o);
		e->progress++;
	}
}

/*
 * Who waits for a save or for deletions waits for what was there when he asked: what is new does
 * not begin before that has ended.
 */
static int may_save(const struct pfx_tiers *t)
{
	/* Who asks for a save waits for those who asked before, and what they wait for goes on. */
	return t->writer != NULL && !t->held &&
		(pfx_list_empty(&t->asking) || !pfx_list_empty(&t->savers)) &&
		pfx_list_empty(&t->flushing) && (pfx_list_empty(&t->savers) || !t->all_saved) &&
		pfx_clock_ns() >= t->save_after_ns;
}

void pfx_tiers_give(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;
	uint32_t most = e->n_active == 0 ? UINT32_MAX : e->step_rows / e->info.block_tokens +
		(pfx_list_empty(&t->savers) ? SAVES_A_TURN : SAVES_A_TURN_ASKED);

	if (t->mover == NULL) {
		return;
	}
	t->all_spilled = pfx_tiers_spill(e);
	t->all_deleted = t->all_spilled && t->store != NULL && !t->deletes_held && give_deletes(e);
	if (t->all_deleted && may_save(t)) {
		give_saves(e, most);
	}
	pfx_store_jobs_turn(e);
}

static int nothing_in_flight(const struct pfx_mover *m)
{
	uint32_t n = 0;

	for (enum pfx_order_kind kind = 0; kind < PFX_ORDERS; kind++) {
		n += pfx_mover_in_flight(m, kind);
	}
	return n == 0;
}

void pfx_tiers_last_saves(struct pfx_engine *e)
{
	struct pfx_tiers *t = &e->tiers;
	uint64_t until = pfx_clock_ns() + (uint64_t)e->opts.close_ms * 1000000u, before;

	if (t->mover == NULL) {
		return;
	}
	/* One more try, should the disk have been full. */
	t->save_after_ns = 0;
	do {
		before = e->progress;
		pfx_tiers_take(e);
		pfx_tiers_give(e);
		if (e->progress == before && nothing_in_flight(t->mover)) {
			return;
		}
		if (e->progress == before) {
			pfx_engine_sleep(e, 20);
		}
	} while (pfx_clock_ns() < until);
	pfx_warn("engine", "not all was saved that was worth it: %u ms are over",
		e->opts.close_ms);
}

/* ---- at start ---- */

/* Digest -> record number, for finding a row's parent. */
struct restore {
	struct pfx_engine *e;
	struct pfx_restore *into;
	uint32_t *table; /* [size]: record + 1; 0: free */
	uint32_t size;   /* a power of two above the number of rows */
	int rc;
};

static uint32_t slot_of(const struct restore *r, const struct pfx_digest *d)
{
	uint32_t i;
	uint64_t h;

	memcpy(&h, d->b, sizeof(h));
	for (i = (uint32_t)h & (r->size - 1); r->table[i] != 0; i = (i + 1) & (r->size - 1)) {
		struct pfx_store_key key = pfx_records_get(r->e->tiers.records, r->table[i] - 1);
		if (pfx_digest_equal(&key.self, d)) {
			break;
		}
	}
	return i;
}

static int restore_row(void *arg, const struct pfx_store_row *row)
{
	struct restore *r = arg;
	struct pfx_engine *e = r->e;
	const struct pfx_store_key *key = &row->key;
	struct pfx_space *space;
	uint32_t parent = PFX_BLOCK_NONE, record;
	int rc;

	if (key->pos > 0) {
		parent = r->table[slot_of(r, &key->parent)];
		if (parent == 0) {
			/* Its parent found no place. */
			e->tiers.not_restored++;
			return 0;
		}
		parent--;
	}
	rc = pfx_cache_space(e->cache, key->space.b, sizeof(key->space.b), &space);
	if (rc == 0) {
		rc = pfx_restore_add(r->into, space, parent, key->tokens, key->n_tokens,
			row->info.used_ns, &record);
		pfx_space_release(space);
	}
	if (rc == -EEXIST && e->tiers.writer != NULL) {
		/* Shorter than another that begins the same: of no use to anybody. */
		pfx_writer_delete(e->tiers.writer, key, NULL, NULL);
	}
	if (rc != 0) {
		e->tiers.not_restored++;
		r->rc = rc == -ENOMEM ? rc : r->rc;
		return r->rc;
	}
	pfx_records_set(e->tiers.records, record, key);
	r->table[slot_of(r, &key->self)] = record + 1;
	e->tiers.restored++;
	return 0;
}

int pfx_tiers_restore(struct pfx_engine *e, char *err, size_t errlen)
{
	struct pfx_tiers *t = &e->tiers;
	struct restore r = { .e = e, .size = 64 };
	uint64_t start = pfx_clock_ns();
	int rc;

	if (t->store == NULL || t->n_records == 0) {
		return 0;
	}
	while (r.size < 2ull * t->n_records && r.size < 1u << 31) {
		r.size *= 2;
	}
	r.table = pfx_calloc(r.size, sizeof(*r.table));
	rc = r.table == NULL ? -ENOMEM : pfx_restore_begin(e->cache, &r.into);
	if (rc == 0) {
		pfx_store_iterate(t->store, restore_row, &r);
		rc = r.rc;
		pfx_restore_end(r.into);
	}
	pfx_free(r.table);
	if (rc != 0) {
		return pfx_fail(rc, err, errlen, "cannot read the store's index: %s", pfx_strerror(rc));
	}
	pfx_info("engine", "the tree is rebuilt from the store records=%llu without_place=%llu ms=%.1f",
		(unsigned long long)t->restored, (unsigned long long)t->not_restored,
		pfx_ns_to_ms(pfx_clock_ns() - start));
	return 0;
}
