#include "radix/evict.h"

#include <errno.h>

#include "base/alloc.h"

/* ---- lru ---- */

static void lru_add(struct pfx_evict *evict, struct pfx_node *x)
{
	pfx_list_push_back(&evict->oldest, &x->order[evict->tier].link);
}

static void lru_add_above(struct pfx_evict *evict, struct pfx_node *x, struct pfx_node *child)
{
	pfx_list_insert_after(&child->order[evict->tier].link, &x->order[evict->tier].link);
}

static void lru_remove(struct pfx_evict *evict, struct pfx_node *x)
{
	pfx_list_remove(&x->order[evict->tier].link);
}

static struct pfx_node *lru_victim(const struct pfx_evict *evict)
{
	if (pfx_list_empty(&evict->oldest)) {
		return NULL;
	}
	return pfx_node_of(evict->oldest.next, evict->tier);
}

/* What is wrong with a node that waits, by any policy. */
const char *pfx_evict_check_held(const struct pfx_node *x)
{
	if (pfx_node_held(x) || x->state != PFX_NODE_LINKED) {
		return "a node that is held waits for eviction";
	}
	return NULL;
}

static const char *lru_check(const struct pfx_evict *evict, uint64_t unpinned, uint64_t leaves)
{
	uint64_t age = 0, n = 0;

	(void)leaves;
	pfx_list_for(it, &evict->oldest) {
		const struct pfx_node *x = pfx_node_of(it, evict->tier);

		if (pfx_evict_check_held(x) != NULL) {
			return pfx_evict_check_held(x);
		}
		if (x->age < age) {
			return "the eviction order is not by age";
		}
		if (x->parent->n > 0 && x->parent->age == x->age &&
			pfx_heap_has(x->parent, evict->tier) && x->parent->class == x->class &&
			it->next != &x->parent->order[evict->tier].link) {
			/* Both were let go by one path, one after the other. */
			return "a parent does not follow its child of the same age";
		}
		age = x->age;
		n++;
	}
	return n != unpinned ? "not all unpinned nodes wait for eviction" : NULL;
}

static const struct pfx_policy_ops lru = {
	.name = "lru",
	.add = lru_add,
	.add_above = lru_add_above,
	.remove = lru_remove,
	.victim = lru_victim,
	.check = lru_check,
};

/* ---- fifo ---- */

static int fifo_open(struct pfx_evict *evict, uint32_t n_blocks)
{
	evict->born = pfx_calloc(n_blocks, sizeof(*evict->born));
	return evict->born == NULL ? -ENOMEM : 0;
}

static void fifo_add(struct pfx_evict *evict, struct pfx_node *x)
{
	if (pfx_evict_leaf(evict, x)) {
		pfx_heap_push(&evict->leaves, x, evict->born[pfx_evict_last(evict, x)]);
	}
}

static void fifo_remove(struct pfx_evict *evict, struct pfx_node *x)
{
	if (pfx_heap_has(x, evict->tier)) {
		pfx_heap_remove(&evict->leaves, x);
	}
}

static void fifo_cut(struct pfx_evict *evict, struct pfx_node *x)
{
	fifo_remove(evict, x);
	fifo_add(evict, x);
}

static struct pfx_node *fifo_victim(const struct pfx_evict *evict)
{
	return evict->leaves.top;
}

static void fifo_born(struct pfx_evict *evict, const pfx_block_t *blocks, uint32_t n,
	uint64_t clock)
{
	for (uint32_t i = 0; i < n; i++) {
		evict->born[blocks[i]] = clock;
	}
}

const char *pfx_evict_check_order(const struct pfx_heap *heap, uint64_t *n)
{
	for (const struct pfx_node *x = heap->top; x != NULL; x = pfx_heap_next(x, heap->tier)) {
		const struct pfx_node *below = x->order[heap->tier].below;

		if (pfx_evict_check_held(x) != NULL) {
			return pfx_evict_check_held(x);
		}
		if (pfx_heap_before(x, heap->top, heap->tier) ||
			(below != NULL && pfx_heap_before(below, x, heap->tier))) {
			return "a heap of nodes is out of order";
		}
		++*n;
	}
	return NULL;
}

const char *pfx_evict_check_heap(const struct pfx_evict *evict, const struct pfx_heap *heap,
	uint64_t *n)
{
	const char *problem = pfx_evict_check_order(heap, n);

	for (const struct pfx_node *x = heap->top; problem == NULL && x != NULL;
		x = pfx_heap_next(x, heap->tier)) {
		if (!pfx_evict_leaf(evict, x)) {
			problem = "a node with children waits among the leaves";
		}
	}
	return problem;
}

static const char *fifo_check(const struct pfx_evict *evict, uint64_t unpinned, uint64_t leaves)
{
	uint64_t n = 0;
	const char *problem = pfx_evict_check_heap(evict, &evict->leaves, &n);

	(void)unpinned;
	if (problem == NULL && n != leaves) {
		problem = "not all unpinned leaves wait for eviction";
	}
	return problem;
}

static void fifo_close(struct pfx_evict *evict)
{
	pfx_free(evict->born);
	evict->born = NULL;
}

static const struct pfx_policy_ops fifo = {
	.name = "fifo",
	.open = fifo_open,
	.close = fifo_close,
	.add = fifo_add,
	.remove = fifo_remove,
	.cut = fifo_cut,
	.victim = fifo_victim,
	.born = fifo_born,
	.check = fifo_check,
};

/* ---- age ---- */

static void age_add(struct pfx_evict *evict, struct pfx_node *x)
{
	pfx_heap_push(&evict->leaves, x, x->age);
}

static void age_add_above(struct pfx_evict *evict, struct pfx_node *x, struct pfx_node *child)
{
	(void)child;
	age_add(evict, x);
}

/* Its end is part of its rank. */
static void age_cut(struct pfx_evict *evict, struct pfx_node *x)
{
	fifo_remove(evict, x);
	age_add(evict, x);
}

static const char *age_check(const struct pfx_evict *evict, uint64_t unpinned, uint64_t leaves)
{
	uint64_t n = 0;
	const char *problem = pfx_evict_check_order(&evict->leaves, &n);

	(void)leaves;
	for (const struct pfx_node *x = evict->leaves.top; problem == NULL && x != NULL;
		x = pfx_heap_next(x, evict->tier)) {
		if (x->order[evict->tier].rank != x->age) {
			problem = "a node does not wait by its age";
		}
	}
	if (problem == NULL && n != unpinned) {
		problem = "not all unpinned nodes wait for eviction";
	}
	return problem;
}

static const struct pfx_policy_ops age = {
	.name = "age",
	.add = age_add,
	.add_above = age_add_above,
	.remove = fifo_remove,
	.cut = age_cut,
	.victim = fifo_victim,
	.check = age_check,
};

void pfx_evict_open_slow(struct pfx_evict *evict, enum pfx_tier tier, uint32_t shift)
{
	*evict = (struct pfx_evict){ .ops = &age, .tier = tier, .shift = shift };
	pfx_list_init(&evict->oldest);
	evict->leaves.tier = tier;
}

/* ---- */

static const struct pfx_policy_ops *const policies[] = {
	[PFX_POLICY_LRU] = &lru,
	[PFX_POLICY_FIFO] = &fifo,
	[PFX_POLICY_DEFAULT] = &pfx_policy_adapt,
};

int pfx_evict_open(struct pfx_evict *evict, enum pfx_policy policy, uint32_t n_blocks,
	uint32_t shift)
{
	if ((size_t)policy >= sizeof(policies) / sizeof(policies[0])) {
		return -EINVAL;
	}
	*evict = (struct pfx_evict){ .ops = policies[policy], .shift = shift };
	pfx_list_init(&evict->oldest);
	return evict->ops->open == NULL ? 0 : evict->ops->open(evict, n_blocks);
}

void pfx_evict_close(struct pfx_evict *evict)
{
	if (evict->ops != NULL && evict->ops->close != NULL) {
		evict->ops->close(evict);
	}
}
