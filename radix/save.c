/*
 * What is to be written to disk. A node waits in the queue while it has tokens that are worthy
 * and not saved; those above it wait before it. Orders are given for its blocks one after the
 * other, and for those of a child once all of its parent's are saved or on their way; they take
 * effect in that order too, however they are acknowledged. So what is on disk of any prefix is
 * a beginning of it. What fails takes with it all that was ordered behind it.
 */
#include "base/assert.h"
#include "radix/kids.h"
#include "radix/priv.h"

#define TRIES 32     /* nodes looked at for one order */
#define ROOM_AHEAD 16u /* records given up at a time, at most */

static int queued(const struct pfx_node *x)
{
	return !pfx_list_empty(&x->save);
}

void pfx_save_forget(struct pfx_cache *cache, struct pfx_node *x)
{
	if (queued(x)) {
		pfx_list_remove(&x->save);
		cache->n_to_save--;
	}
}

/* Is its last block being written on? Then that one waits. */
static int tail_is_written(const struct pfx_cache *cache, const struct pfx_node *x)
{
	return x->writer != NULL && (x->n & (cache->block_tokens - 1)) != 0;
}

/* The order for that block of x, or NULL. */
static const struct pfx_saving *on_its_way(const struct pfx_cache *cache, const struct pfx_node *x,
	uint32_t index)
{
	for (int i = 0; x->saving > 0 && i < PFX_SAVES_MAX; i++) {
		if (cache->saving[i].node == x && cache->saving[i].index == index) {
			return &cache->saving[i];
		}
	}
	return NULL;
}

/* Blocks of x that are saved or on their way. *whole: the last of these is with all its tokens. */
static uint32_t ordered(const struct pfx_cache *cache, const struct pfx_node *x, int *whole)
{
	uint32_t n = (x->saved >> cache->shift) + x->saving;

	*whole = x->saving == 0 ||
		on_its_way(cache, x, n - 1)->n_tokens == cache->block_tokens;
	return n;
}

/* All blocks of x are saved or on their way. */
static int all_ordered(const struct pfx_cache *cache, const struct pfx_node *x)
{
	int whole;

	return x->n == 0 || (ordered(cache, x, &whole) >= x->n >> cache->shift && whole);
}

/* Has x tokens that could be ordered to be saved, now or in a moment? */
int pfx_save_due(const struct pfx_cache *cache, const struct pfx_node *x)
{
	int whole;
	uint32_t next;

	if (x->n == 0 || x->state != PFX_NODE_LINKED || x->saved >= x->worthy) {
		return 0;
	}
	next = ordered(cache, x, &whole);
	if (!whole || next << cache->shift >= x->worthy || next >= x->n_mem) {
		return 0;
	}
	return next < x->n >> cache->shift || !tail_is_written(cache, x);
}

void pfx_save_check(struct pfx_cache *cache, struct pfx_node *x)
{
	if (cache->slots > 1 && x->n > 0 && !queued(x) && pfx_save_due(cache, x)) {
		pfx_list_push_back(&cache->to_save, &x->save);
		cache->n_to_save++;
	}
}

void pfx_save_reused(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_list *before = &cache->to_save;

	for (; x->n > 0 && x->worthy < x->n; x = x->parent) {
		x->worthy = x->n;
		if (!queued(x) && pfx_save_due(cache, x)) {
			/* Those above stand before those below. */
			pfx_list_push_back(before, &x->save);
			cache->n_to_save++;
		}
		if (queued(x)) {
			before = &x->save;
		}
	}
}

uint32_t pfx_cache_want_saved(struct pfx_cache *cache, struct pfx_space *space)
{
	uint32_t n = 0;

	if (cache->slots < 2) {
		return 0;
	}
	for (uint32_t i = 0; i < cache->n_buckets; i++) {
		for (struct pfx_space *s = cache->buckets[i]; s != NULL; s = s->next) {
			struct pfx_node *x = space == NULL || s == space ? pfx_kids_first(&s->root) : NULL;

			while (x != NULL) {
				uint32_t in_memory = x->n_mem << cache->shift;

				in_memory = in_memory < x->n ? in_memory : x->n;
				if (in_memory > x->saved) {
					n += x->n_mem - (x->saved >> cache->shift);
					x->worthy = in_memory;
					pfx_save_check(cache, x);
				}
				x = pfx_tree_next(x);
			}
		}
	}
	return n;
}

/* ---- orders on their way ---- */

static struct pfx_saving *find(struct pfx_cache *cache, uint32_t record)
{
	for (int i = 0; i < PFX_SAVES_MAX; i++) {
		if (cache->saving[i].record == record) {
			return &cache->saving[i];
		}
	}
	PFX_ASSERT(!"an order to save that was never given");
	return NULL;
}

static void orphan(struct pfx_cache *cache, struct pfx_saving *s)
{
	s->node->saving--;
	s->node = NULL;
	if (s->durable) {
		struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;

		/* It waited for what stands before it: there is nothing more to come of it. */
		pfx_order_delete(cache, s->record);
		pfx_pool_release(pool, s->record);
		pfx_pool_unhold(pool, s->record);
		s->record = PFX_BLOCK_NONE;
		cache->n_saving--;
		return;
	}
	pfx_pool_release(&cache->tier[PFX_TIER_DISK].pool, s->record);
}

void pfx_save_orphan(struct pfx_cache *cache, struct pfx_node *x, uint32_t index)
{
	for (int i = 0; x->saving > 0 && i < PFX_SAVES_MAX; i++) {
		struct pfx_saving *s = &cache->saving[i];

		if (s->node == x && s->index >= index) {
			orphan(cache, s);
		}
	}
}

void pfx_save_split(struct pfx_cache *cache, struct pfx_node *up, struct pfx_node *x, uint32_t head)
{
	uint32_t n = x->saving;

	for (int i = 0; n > 0 && i < PFX_SAVES_MAX; i++) {
		struct pfx_saving *s = &cache->saving[i];

		if (s->node != x) {
			continue;
		}
		if (s->index < head) {
			s->node = up;
			up->saving++;
			x->saving--;
		} else {
			s->index -= head;
		}
		n--;
	}
	if (queued(x)) {
		pfx_list_push_back(&x->save, &up->save);
		cache->n_to_save++;
	}
	/* What waited for the last order for x may wait for its parent's now. */
	pfx_save_check(cache, x);
}

void pfx_save_merge(struct pfx_cache *cache, struct pfx_node *p, struct pfx_node *x,
	uint32_t further)
{
	uint32_t n;

	if (!all_ordered(cache, p)) {
		pfx_save_orphan(cache, x, 0);
	}
	n = p->saving + x->saving;
	for (int i = 0; n > 0 && i < PFX_SAVES_MAX; i++) {
		struct pfx_saving *s = &cache->saving[i];

		if (s->node == x) {
			s->index += further;
			n--;
		} else if (s->node == p) {
			s->node = x;
			n--;
		}
	}
	x->saving += p->saving;
	p->saving = 0;
	if (queued(p) && !queued(x)) {
		pfx_list_push_back(&p->save, &x->save);
		cache->n_to_save++;
	}
	pfx_save_forget(cache, p);
}

/* ---- giving orders ---- */

/* What is the matter with the head of the queue? */
enum turn {
	TURN_NOW,
	TURN_LATER, /* its parent, or a copy, is not ready */
	TURN_NEVER, /* there is nothing to do, or it cannot be done */
};

static enum turn turn_of(const struct pfx_cache *cache, const struct pfx_node *x)
{
	uint32_t next = (x->saved >> cache->shift) + x->saving;
	const struct pfx_pool *host = &cache->tier[PFX_TIER_HOST].pool;
	enum pfx_block_state state;

	if (!pfx_save_due(cache, x)) {
		return TURN_NEVER;
	}
	if (!all_ordered(cache, x->parent)) {
		return queued(x->parent) || x->parent->saving > 0 ? TURN_LATER : TURN_NEVER;
	}
	if (next < x->n_dev) {
		return TURN_NOW;
	}
	state = host->state[pfx_node_blocks(x, cache->shift)[next]];
	return state == PFX_BLOCK_READY ? TURN_NOW : state == PFX_BLOCK_ARRIVING ? TURN_LATER : TURN_NEVER;
}

/* No longer worthy: until it is used again. */
static void give_up(struct pfx_cache *cache, struct pfx_node *x)
{
	pfx_save_forget(cache, x);
	if (pfx_save_due(cache, x)) {
		x->worthy = x->saved;
	}
}

/* May d's record go for one of x? */
static int goes_for(const struct pfx_node *d, const struct pfx_node *x)
{
	if (pfx_node_held(x)) {
		return d->class <= PFX_CLASS_POLICY;
	}
	return d != x && pfx_order_before(d, x);
}

/* 1: there is a free record for x. 0: not now. -1: nor later; all are better kept than x. */
static int record_for(struct pfx_cache *cache, struct pfx_node *x)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;

	uint32_t ahead = pool->n / 64 < ROOM_AHEAD ? pool->n / 64 + 1 : ROOM_AHEAD;

	while (pool->count[PFX_BLOCK_FREE] == 0 && pool->count[PFX_BLOCK_LEAVING] < ahead) {
		struct pfx_node *d = pfx_order_victim(cache, PFX_TIER_DISK);

		if (d == NULL || !goes_for(d, x)) {
			break;
		}
		pfx_lose_record(cache, d);
	}
	if (pool->count[PFX_BLOCK_FREE] > 0) {
		return 1;
	}
	return pool->count[PFX_BLOCK_LEAVING] > 0 ? 0 : -1;
}

/* The record, there or on its way, of the block before the one at index. */
static uint32_t record_before(const struct pfx_cache *cache, const struct pfx_node *x,
	uint32_t index)
{
	const struct pfx_saving *s;

	if (index == 0) {
		x = x->parent;
		index = x->n >> cache->shift;
		if (index == 0) {
			return PFX_BLOCK_NONE;
		}
	}
	s = on_its_way(cache, x, index - 1);
	return s != NULL ? s->record : pfx_node_records(x, cache->shift)[index - 1];
}

static void give_order(struct pfx_cache *cache, struct pfx_node *x, struct pfx_save_order *out)
{
	uint32_t next = (x->saved >> cache->shift) + x->saving;
	uint32_t first = next << cache->shift, n = x->n - first;
	enum pfx_tier tier = next < x->n_dev ? PFX_TIER_DEVICE : PFX_TIER_HOST;
	struct pfx_pool *disk = &cache->tier[PFX_TIER_DISK].pool;
	struct pfx_saving *s = find(cache, PFX_BLOCK_NONE);

	*out = (struct pfx_save_order){
		.tier = tier,
		.src = pfx_node_blocks(x, cache->shift)[next],
		.record = pfx_pool_take(disk, PFX_BLOCK_ARRIVING),
		.parent_record = record_before(cache, x, next),
		.pos = x->start + first,
		.n_tokens = n < cache->block_tokens ? n : cache->block_tokens,
		.tokens = x->run + first,
		.space = x->space,
	};
	*s = (struct pfx_saving){
		.node = x,
		.index = next,
		.record = out->record,
		.n_tokens = out->n_tokens,
		.src = out->src,
		.tier = (uint8_t)tier,
	};
	pfx_pool_hold(disk, out->record);
	pfx_pool_hold(&cache->tier[tier].pool, out->src);
	x->saving++;
	cache->n_saving++;
}

int pfx_cache_next_save(struct pfx_cache *cache, struct pfx_save_order *out)
{
	for (int i = 0; i < TRIES && cache->n_to_save > 0 && cache->n_saving < PFX_SAVES_MAX; i++) {
		struct pfx_node *x = pfx_container_of(cache->to_save.next, struct pfx_node, save);
		enum turn turn = turn_of(cache, x);
		int room = 0;

		if (turn == TURN_NOW) {
			room = record_for(cache, x);
			if (room == 0) {
				return 0;
			}
		}
		if (turn == TURN_LATER) {
			pfx_list_remove(&x->save);
			pfx_list_push_back(&cache->to_save, &x->save);
		} else if (room > 0) {
			give_order(cache, x, out);
			if (!pfx_save_due(cache, x)) {
				pfx_save_forget(cache, x);
			}
			return 1;
		} else {
			give_up(cache, x);
		}
	}
	return 0;
}

/* ---- what becomes of them ---- */

static void let_go_of_source(struct pfx_cache *cache, struct pfx_saving *s)
{
	if (!s->copied) {
		s->copied = 1;
		pfx_pool_unhold(&cache->tier[s->tier].pool, s->src);
	}
}

void pfx_cache_save_copied(struct pfx_cache *cache, uint32_t record)
{
	let_go_of_source(cache, find(cache, record));
}

static int all_saved(const struct pfx_node *x)
{
	return x->saved == x->n;
}

/* The block is on disk, and all before it are. */
static void commit(struct pfx_cache *cache, struct pfx_saving *s)
{
	struct pfx_pool *pool = &cache->tier[PFX_TIER_DISK].pool;
	struct pfx_node *x = s->node;
	uint32_t *at = &pfx_node_records(x, cache->shift)[s->index];
	uint32_t first = s->index << cache->shift;

	if (x->saved > first) {
		pfx_record_release(cache, *at);
	}
	*at = s->record;
	pfx_pool_move(pool, s->record, PFX_BLOCK_READY);
	pfx_pool_unhold(pool, s->record);
	x->saving--;
	pfx_node_set(cache, x, x->n_dev, x->n_mem, first + s->n_tokens);
	cache->tier[PFX_TIER_DISK].arrived++;
	cache->n_saving--;
	s->record = PFX_BLOCK_NONE;
	s->node = NULL;
	pfx_save_check(cache, x);
}

/* Commits what can be, in whatever order it was acknowledged. */
static void settle(struct pfx_cache *cache)
{
	int more = 1;

	while (more) {
		more = 0;
		for (int i = 0; i < PFX_SAVES_MAX; i++) {
			struct pfx_saving *s = &cache->saving[i];
			struct pfx_node *x = s->node;

			if (x == NULL || !s->durable) {
				continue;
			}
			if (x->saved >> cache->shift == s->index && all_saved(x->parent)) {
				commit(cache, s);
				more = 1;
			} else if (!all_ordered(cache, x->parent)) {
				/* What stood before it has come to nothing. */
				pfx_save_orphan(cache, x, 0);
				give_up(cache, x);
				more = 1;
			}
		}
	}
}

void pfx_cache_saved(struct pfx_cache *cache, uint32_t record, int rc)
{
	struct pfx_level *disk = &cache->tier[PFX_TIER_DISK];
	struct pfx_saving *s = find(cache, record);
	struct pfx_node *x = s->node;

	PFX_ASSERT(!s->durable);
	let_go_of_source(cache, s);
	if (rc == 0 && x != NULL) {
		s->durable = 1;
		settle(cache);
		return;
	}
	if (x != NULL) {
		/* Those behind it too; this one is LEAVING then, and still held. */
		pfx_save_orphan(cache, x, s->index);
		give_up(cache, x);
	}
	if (rc == 0) {
		pfx_order_delete(cache, record);
	} else {
		disk->failed++;
	}
	pfx_pool_unhold(&disk->pool, record);
	s->record = PFX_BLOCK_NONE;
	cache->n_saving--;
	settle(cache);
}
