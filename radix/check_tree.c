/* The check of what stands in the trees, node by node, and of loose nodes. */
#include "radix/check.h"
#include "radix/kids.h"

/* How often x stands among them. */
static uint32_t times(const struct pfx_check_nodes *sorted, const struct pfx_node *x)
{
	uint32_t low = 0, high = sorted->n, count = 0;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (sorted->v[mid] < x) {
			low = mid + 1;
		} else {
			high = mid;
		}
	}
	while (low + count < sorted->n && sorted->v[low + count] == x) {
		count++;
	}
	return count;
}

static void check_marks_of(struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_marks *marks = &c->cache->marks;
	uint32_t prev = PFX_MARK_NONE;

	for (uint32_t i = x->marks; i != PFX_MARK_NONE; prev = i, i = marks->slot[i].next) {
		const struct pfx_mark *m = &marks->slot[i];

		if (m->node != x || m->prev != prev) {
			pfx_check_problem(c, "mark %u does not point back to its node", i);
			return;
		}
		if (m->pos <= x->start || m->pos > pfx_node_end(x)) {
			pfx_check_problem(c, "mark %u is at %u, outside its node", i, m->pos);
		}
		for (uint32_t j = m->next; j != PFX_MARK_NONE; j = marks->slot[j].next) {
			if (marks->slot[j].pos == m->pos) {
				pfx_check_problem(c, "marks %u and %u are at one place", i, j);
			}
		}
		c->marks++;
	}
}

/* Who holds it, and how many of its children are where. */
static void check_counts(struct pfx_check *c, const struct pfx_node *x)
{
	uint32_t pins = times(&c->ends, x) + times(&c->loose, x);
	uint32_t leases = times(&c->leased, x) + times(&c->loose_leased, x);
	uint32_t in[PFX_TIERS] = { 0 };

	for (const struct pfx_node *k = pfx_kids_first(x); k != NULL; k = pfx_kids_next(k)) {
		pins += k->pins > 0;
		leases += k->leases > 0;
		if (x->ended && !k->ended) {
			pfx_check_problem(c, "a node has ended and its child has not");
		}
		if (x->n > 0 && x->conv != 0 && k->conv == 0) {
			pfx_check_problem(c, "a node is of one conversation and its child of several");
		}
		for (int t = 0; t < PFX_TIERS; t++) {
			in[t] += (uint32_t)pfx_node_counts(k, t);
		}
	}
	if (x->ended && pfx_node_held(x)) {
		pfx_check_problem(c, "a node has ended and is held");
	}
	pfx_check_equal(c, "pins of a node", x->pins, pins);
	pfx_check_equal(c, "leases of a node", x->leases, leases);
	for (int t = 0; t < PFX_TIERS; t++) {
		pfx_check_equal(c, "children in a tier", x->kids_in[t], in[t]);
	}
}

/* Its blocks, tier by tier. */
static void check_blocks(struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n_blocks = pfx_node_n_blocks(x, cache->shift);

	if (x->cap < n_blocks) {
		pfx_check_problem(c, "a node has %u blocks and room for %u", n_blocks, x->cap);
	}
	if (x->n_dev > x->n_mem || x->n_mem > n_blocks || x->saved > x->n || x->worthy > x->n) {
		pfx_check_problem(c, "a node of %u tokens has %u blocks on the device, %u in memory, %u saved",
			x->n, x->n_dev, x->n_mem, x->saved);
		return;
	}
	for (uint32_t i = 0; i < x->n_mem; i++) {
		enum pfx_tier tier = i < x->n_dev ? PFX_TIER_DEVICE : PFX_TIER_HOST;

		pfx_check_own(c, tier, pfx_node_blocks(x, cache->shift)[i],
			tier == PFX_TIER_DEVICE ? PFX_IN(READY) : PFX_IN(READY) | PFX_IN(ARRIVING) | PFX_IN(BAD));
	}
	for (uint32_t i = 0; i < pfx_node_n_records(x, cache->shift); i++) {
		pfx_check_own(c, PFX_TIER_DISK, pfx_node_records(x, cache->shift)[i], PFX_IN(READY));
	}
	for (int t = 0; t < PFX_TIERS; t++) {
		c->tier[t].owned += pfx_node_in(x, t, cache->shift);
	}
}

/* What holds for a node in every state. */
static void check_node(struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;

	check_counts(c, x);
	if (x->n == 0) {
		return;
	}
	c->bytes += sizeof(*x) + pfx_run_bytes(cache, x->cap);
	c->pieces += 2;
	if (x->start % cache->block_tokens != 0 || x->start != pfx_node_end(x->parent)) {
		pfx_check_problem(c, "a node starts at %u, its parent ends at %u", x->start,
			pfx_node_end(x->parent));
	}
	if (x->space != x->parent->space) {
		pfx_check_problem(c, "a node and its parent are of different spaces");
	}
	check_blocks(c, x);
	if (x->writer != NULL && x->writer->node != x) {
		pfx_check_problem(c, "the writer of a node ends elsewhere");
	}
	if (x->kids != NULL && x->n % cache->block_tokens != 0) {
		pfx_check_problem(c, "a node with children ends inside a block");
	}
	check_marks_of(c, x);
}

/* Up to position same, the sibling before x is the owner of any mark. */
static void check_mark_owner(struct pfx_check *c, const struct pfx_node *x, uint32_t same)
{
	for (uint32_t i = x->marks; i != PFX_MARK_NONE; i = c->cache->marks.slot[i].next) {
		if (c->cache->marks.slot[i].pos <= same) {
			pfx_check_problem(c, "mark %u is not at the first sibling of its place", i);
		}
	}
}

static uint64_t chain(const struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint64_t digest = x->parent->digest;

	for (uint32_t i = 0; i + cache->block_tokens <= x->n; i += cache->block_tokens) {
		digest = pfx_digest_step(digest,
			pfx_ghosts_hash(&cache->ghosts, x->run + i, cache->block_tokens));
	}
	return digest;
}

static void check_kids(struct pfx_check *c, const struct pfx_node *x)
{
	if (!pfx_kids_sound(x)) {
		pfx_check_problem(c, "the treap of a node's children is broken");
	}
	for (const struct pfx_node *k = pfx_kids_first(x), *next; k != NULL; k = next) {
		uint32_t common = 0;

		next = pfx_kids_next(k);
		if (k->parent != x) {
			pfx_check_problem(c, "a child has another parent");
		}
		if (next != NULL && (pfx_kids_compare(k->run, k->n, next, c->cache->block_tokens,
					     &common) >= 0 || common == k->n)) {
			pfx_check_problem(c, "two children are out of order, or one begins the other");
		}
		if (next != NULL && next->marks != PFX_MARK_NONE) {
			check_mark_owner(c, next, x->n + x->start + common);
		}
	}
}

/* x, not a root, and its parent: tiers, ages and classes go down in one direction. */
static void check_below(struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_node *p = x->parent;
	uint32_t n_blocks = pfx_node_n_blocks(x, c->cache->shift);
	uint32_t above = pfx_node_n_blocks(p, c->cache->shift);

	if ((x->n_dev > 0 && p->n_dev < above) || (x->n_mem > 0 && p->n_mem < above) ||
		(x->saved > 0 && p->saved < p->n)) {
		pfx_check_problem(c, "a node has blocks in a tier and its parent not all");
	}
	if (x->n_mem < n_blocks && x->saved < x->n) {
		pfx_check_problem(c, "a node has blocks in no tier");
	}
	if (p->n == 0) {
		return;
	}
	if (x->keep_until > p->keep_until) {
		pfx_check_problem(c, "a node is kept for longer than its parent");
	}
	if (!pfx_node_held(x) && !pfx_node_held(p)) {
		if (x->class > p->class) {
			pfx_check_problem(c, "a node goes in a later class than its parent");
		}
		if (x->age > p->age) {
			pfx_check_problem(c, "a node is older than its child");
		}
	}
}

/* Where it counts, or waits. */
static void check_place(struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;

	for (int t = 0; t < PFX_TIERS; t++) {
		uint32_t n = pfx_node_in(x, t, cache->shift);

		c->tier[t].pinned += x->pins > 0 ? n : 0;
		c->tier[t].leased += x->leases > 0 ? n : 0;
		c->tier[t].idle += x->leases > 0 && x->pins == 0 ? n : 0;
		if (pfx_node_held(x) || n == 0) {
			if (pfx_heap_has(x, t)) {
				pfx_check_problem(c, "a node waits where it should not");
			}
			continue;
		}
		c->tier[t].waiting[x->class]++;
		c->tier[t].leaves += x->class == PFX_CLASS_POLICY && x->kids_in[t] == 0;
	}
	if (!pfx_node_held(x) && (x->class == PFX_CLASS_ENDED) != x->ended) {
		pfx_check_problem(c, "a node has ended and does not wait as such");
	}
	if (!pfx_node_held(x) && (x->class == PFX_CLASS_KEPT) !=
			(!x->ended && x->keep_until > cache->now)) {
		pfx_check_problem(c, "a node is kept and does not wait as such");
	}
}

/* What is on its way to disk of x follows on what is there. */
static void check_saving(struct pfx_check *c, const struct pfx_node *x)
{
	const struct pfx_cache *cache = c->cache;
	uint32_t n = 0, sum = 0, next = x->saved >> cache->shift;
	int queued = !pfx_list_empty(&x->save);

	for (int i = 0; i < PFX_SAVES_MAX; i++) {
		const struct pfx_saving *s = &cache->saving[i];

		if (s->record != PFX_BLOCK_NONE && s->node == x) {
			n++;
			sum += s->index;
			if (s->index >= x->n_mem || s->index < next || s->index >= next + x->saving) {
				pfx_check_problem(c, "block %u of a node is on its way to disk: %u saved, %u in memory",
					s->index, x->saved, x->n_mem);
			}
			pfx_check_own(c, PFX_TIER_DISK, s->record, PFX_IN(ARRIVING));
		}
	}
	pfx_check_equal(c, "blocks of a node on their way to disk", x->saving, n);
	pfx_check_equal(c, "which they are", sum,
		n == 0 ? 0 : (uint64_t)n * next + (uint64_t)n * (n - 1) / 2);
	c->to_save += (uint64_t)queued;
	if (!queued && cache->slots > 1 && pfx_save_due(cache, x)) {
		pfx_check_problem(c, "a node has %u to save of %u, %u saved, %u on the way, and does not wait",
			x->worthy, x->n, x->saved, x->saving);
	}
}

static void check_linked(struct pfx_check *c, const struct pfx_node *x)
{
	check_node(c, x);
	if (x->state != PFX_NODE_LINKED) {
		pfx_check_problem(c, "a child is not in the state of one");
	}
	check_kids(c, x);
	if (x->n == 0) {
		return;
	}
	c->nodes++;
	c->tokens += x->n;
	if (x->n >= c->cache->block_tokens && !pfx_jump_has(&c->cache->jump, x)) {
		pfx_check_problem(c, "a node with a full first block cannot be jumped to");
	}
	check_below(c, x);
	check_place(c, x);
	check_saving(c, x);
	pfx_check_equal(c, "digest of a node", x->digest, chain(c, x));
}

void pfx_check_trees(struct pfx_check *c)
{
	for (uint32_t i = 0; i < c->cache->n_buckets; i++) {
		for (const struct pfx_space *s = c->cache->buckets[i]; s != NULL; s = s->next) {
			uint32_t blocks = 0, loose = 0;

			for (const struct pfx_node *x = &s->root; x != NULL; x = pfx_tree_next(x)) {
				check_linked(c, x);
			}
			pfx_list_for(it, &c->cache->loose) {
				const struct pfx_node *x = pfx_node_of(it, 0);

				if (x->space == s) {
					loose++;
					blocks += x->n_mem;
				}
			}
			pfx_check_equal(c, "loose nodes of a space", s->n_loose, loose);
			pfx_check_equal(c, "loose blocks of a space", s->loose_blocks, blocks);
		}
	}
}

void pfx_check_loose(struct pfx_check *c)
{
	pfx_list_for(it, &c->cache->loose) {
		const struct pfx_node *x = pfx_node_of(it, 0);
		uint32_t common;

		check_node(c, x);
		for (int t = 0; t < PFX_TIERS; t++) {
			c->tier[t].loose += pfx_node_in(x, t, c->cache->shift);
		}
		if (!pfx_node_held(x)) {
			pfx_check_problem(c, "a loose node is held by nobody");
		}
		if (x->kids != NULL || x->marks != PFX_MARK_NONE || x->state == PFX_NODE_LINKED) {
			pfx_check_problem(c, "a loose node has children or marks, or counts as linked");
		}
		if (x->saved > 0 || x->saving > 0 || !pfx_list_empty(&x->save)) {
			pfx_check_problem(c, "a loose node is on disk");
		}
		if (x->state != PFX_NODE_LOOSE) {
			continue;
		}
		pfx_kids_best(x->parent, x->run, x->n, c->cache->block_tokens, &common);
		if (x->n >= c->cache->block_tokens || (common != x->n && x->n_mem > 0)) {
			pfx_check_problem(c, "a loose node holds what no child of its parent does");
		}
	}
}
