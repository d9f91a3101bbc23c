/*
 * Random operations on the prefix cache against a naive model that knows nothing of trees:
 * a heap of cells, each a block with the whole prefix that it ends, and where it lies. The
 * engine is simulated as well (tests/radix_world.h): for every position of every block we keep
 * whose KV is in it, carry out the copies that are ordered, late, and spoil what becomes
 * writable, so that a block that is used after it was freed, or overwritten while somebody reads
 * it, shows as a wrong prefix. After each step the tree must say of every block what the model
 * says: which number it has in which tier, and who holds it; so it must have chosen the same
 * victims. Failing copies, and what is lost by them, are test_radix_tiers' part.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "tests/radix_world.h"
#include "tests/tap.h"

#ifndef STEPS
#define STEPS 60000
#endif
#ifndef TIERS
#define TIERS 0 /* 1: with all tiers on */
#endif
#define EPISODE 1000 /* steps with one cache */
#define LEN_MAX 96
#define CELLS_MAX 512
#define PATHS_MAX 8
#define SPACES 3
#define PAST 32 /* sequences that later ones may begin like */
#define EVER (1u << 20)
#define NONE (-1)
#define ORDERED (-2) /* a host block whose number is not known yet */

struct cell {
	bool used, flushed, ended;
	int space;
	uint32_t depth, end; /* holds positions [depth * B, end) */
	uint32_t tokens[LEN_MAX];
	uint64_t base; /* names the tokens before it */
	uint64_t age, keep;
	int pins, leases;
	int writer; /* path, or NONE */
	int dev, host, rec;
	uint32_t rec_end;  /* its record has the positions before */
	int spilled_from;  /* host == ORDERED: the device block */
};

struct mpath {
	struct pfx_path *path;
	int space; /* NONE: private */
	uint32_t tokens[LEN_MAX];
	uint32_t len, in_tree, n_blocks, n_tree, reach;
	bool apart, lease;
	pfx_block_t table[LEN_MAX];
	bool holds[CELLS_MAX], ahead[CELLS_MAX];
	uint32_t fetching, fetch_to;
	uint32_t fetch_end; /* what came without a gap ends here */
};

static struct pfx_space *spaces[SPACES];
static uint32_t B, n_blocks, n_host, n_disk, n_marks, alphabet;
static struct cell cells[CELLS_MAX];
static uint32_t n_cells;        /* those behind were never used */
static bool own[WORLD_BLOCKS];  /* device blocks of paths that are not published */
static bool gone[WORLD_BLOCKS]; /* those that this step has ordered to be spilled */
static uint32_t host_gone;      /* spilled by this step, and evicted again */
static struct mpath paths[PATHS_MAX];
static uint64_t generation[PATHS_MAX];
static int acked[WORLD_BLOCKS]; /* by record, written for this cell; or NONE */
static int saving_of[WORLD_BLOCKS];
static uint64_t model_clock, step, epoch, now, keeps;
static uint32_t past[PAST][LEN_MAX];
static uint64_t ever[EVER]; /* prefixes that were evicted, hashed */
static struct {
	uint64_t prefix;
	uint64_t evictions; /* evicted_marks when it was set */
} marks[64];
static uint64_t seed, seen[8];
static int failures;
static bool failing; /* allocations do */

#define must(cond, ...) do { \
	if (!(cond)) { \
		if (failures++ < 20) { \
			printf("# step %llu, %s:%d: ", (unsigned long long)step, __FILE__, __LINE__); \
			printf(__VA_ARGS__); \
			printf("\n"); \
		} \
	} \
} while (0)

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t blocks_for(uint32_t n)
{
	return (n + B - 1) / B;
}

/* Names the prefix tokens[0..n) of a space. */
static uint64_t prefix_id(int space, const uint32_t *tokens, uint32_t n)
{
	uint64_t h = pfx_rng_mix(seed, (uint64_t)(space + 1));

	for (uint32_t i = 0; i < n; i++) {
		h = pfx_rng_mix(h, tokens[i]);
	}
	return h;
}

static void ever_add(uint64_t id)
{
	uint64_t i = id & (EVER - 1);

	while (ever[i] != 0 && ever[i] != id) {
		i = (i + 1) & (EVER - 1);
	}
	ever[i] = id;
}

static bool ever_has(uint64_t id)
{
	uint64_t i = id & (EVER - 1);

	while (ever[i] != 0 && ever[i] != id) {
		i = (i + 1) & (EVER - 1);
	}
	return ever[i] == id;
}

/* ---- cells ---- */

static bool in_memory(const struct cell *m)
{
	return m->dev != NONE || m->host != NONE;
}

/* Can it be matched, were it not for a longer one? */
static bool present(const struct cell *m)
{
	return m->used && !m->flushed && (in_memory(m) || m->rec != NONE);
}

static bool unheld(const struct cell *m)
{
	return m->pins == 0 && m->leases == 0;
}

/* Tokens that the cell's block and tokens[..n) have in common, both behind the same base. */
static uint32_t common(const struct cell *m, const uint32_t *tokens, uint32_t n)
{
	uint32_t i = m->depth * B;

	while (i < n && i < m->end && m->tokens[i] == tokens[i]) {
		i++;
	}
	return i - m->depth * B;
}

/* Is o of the same place, with all of m's tokens and more? */
static bool outdoes(const struct cell *o, const struct cell *m)
{
	return o != m && present(o) && o->space == m->space && o->depth == m->depth &&
		o->base == m->base && o->end > m->end &&
		common(o, m->tokens, m->end) == m->end - m->depth * B;
}

/* The order of siblings: by tokens, a beginning first. */
static bool comes_first(const struct cell *a, const struct cell *b)
{
	for (uint32_t i = a->depth * B; i < a->end && i < b->end; i++) {
		if (a->tokens[i] != b->tokens[i]) {
			return a->tokens[i] < b->tokens[i];
		}
	}
	return a->end < b->end;
}

/* The first that outdoes m, or NULL. */
static struct cell *better(const struct cell *m)
{
	struct cell *best = NULL;

	if (m->end % B == 0) {
		/* A full block: another with the same tokens would be the same. */
		return NULL;
	}
	for (uint32_t i = 0; i < n_cells; i++) {
		if (outdoes(&cells[i], m) && (best == NULL || comes_first(&cells[i], best))) {
			best = &cells[i];
		}
	}
	return best;
}

static bool linked(const struct cell *m)
{
	return present(m) && better(m) == NULL;
}

/* Of all blocks of that place that begin as tokens[..n) do, the first with the most in common. */
static struct cell *best_at(int space, uint32_t depth, uint64_t base, const uint32_t *tokens,
	uint32_t n)
{
	struct cell *best = NULL;
	uint32_t most = 0;

	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];
		uint32_t l;

		if (m->depth != depth || m->base != base || m->space != space || !linked(m)) {
			continue;
		}
		l = common(m, tokens, n);
		if (l > most || (l > 0 && l == most && comes_first(m, best))) {
			most = l;
			best = m;
		}
	}
	return best;
}

/* The way down with tokens[0..n): the cells on it. Returns how many tokens are matched. */
static uint32_t walk(int space, const uint32_t *tokens, uint32_t n, struct cell **chain)
{
	uint32_t pos = 0;

	for (uint32_t d = 0; pos < n; d++) {
		struct cell *m = best_at(space, d, prefix_id(space, tokens, pos), tokens, n);

		if (m == NULL) {
			return pos;
		}
		chain[d] = m;
		pos += common(m, tokens, n);
		if (pos % B != 0) {
			return pos;
		}
	}
	return pos;
}

static uint64_t full_id(const struct cell *m)
{
	return prefix_id(m->space, m->tokens, m->end);
}

enum where { ON_DEVICE, IN_MEMORY, ON_DISK, ANYWHERE };

static bool is(const struct cell *m, enum where where)
{
	switch (where) {
	case ON_DEVICE:
		return m->dev != NONE;
	case IN_MEMORY:
		return in_memory(m);
	case ON_DISK:
		return m->rec != NONE;
	default:
		return true;
	}
}

static uint32_t children(const struct cell *m, enum where where)
{
	uint64_t id;
	uint32_t n = 0;

	if (m->end % B != 0) {
		return 0;
	}
	id = full_id(m);
	for (uint32_t i = 0; i < n_cells; i++) {
		const struct cell *o = &cells[i];

		n += o->depth == m->depth + 1 && o->base == id && o->space == m->space && linked(o) &&
			is(o, where);
	}
	return n;
}

static struct cell *parent_of(const struct cell *m)
{
	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *o = &cells[i];

		if (present(o) && o->space == m->space && o->depth + 1 == m->depth &&
			o->end % B == 0 && full_id(o) == m->base) {
			return o;
		}
	}
	return NULL;
}

/* Where m's record was, is, or goes. */
static void drop_record(struct cell *m)
{
	m->rec = NONE;
	m->rec_end = 0;
}

/*
 * What nobody holds and nobody can match is free; what another outdoes hands it its record.
 */
static void sweep(void)
{
	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i], *o;

		if (!m->used) {
			continue;
		}
		if (m->flushed) {
			drop_record(m);
		}
		o = present(m) ? better(m) : NULL;
		if (o != NULL && m->rec != NONE) {
			if (o->rec == NONE) {
				o->rec = m->rec;
				o->rec_end = m->rec_end;
			}
			drop_record(m);
		}
		if (unheld(m) && (!present(m) || o != NULL)) {
			m->used = false;
		}
	}
}

static struct cell *new_cell(void)
{
	uint32_t i = 0;

	while (i < n_cells && cells[i].used) {
		i++;
	}
	n_cells += i == n_cells;
	if (n_cells > CELLS_MAX) {
		abort();
	}
	memset(&cells[i], 0, sizeof(cells[i]));
	cells[i].used = true;
	cells[i].writer = cells[i].dev = cells[i].host = cells[i].rec = NONE;
	return &cells[i];
}

/* ---- room ---- */

static bool world_holds(enum pfx_tier tier, int id)
{
	for (uint32_t i = 0; i < n_copies; i++) {
		const struct world_copy *c = &copies[i];
		enum pfx_tier from = c->kind == COPY_SPILL ? PFX_TIER_DEVICE :
			c->kind == COPY_FETCH ? PFX_TIER_HOST : PFX_TIER_DISK;
		enum pfx_tier to = c->kind == COPY_SPILL ? PFX_TIER_HOST : PFX_TIER_DEVICE;

		if ((from == tier && (int)c->src == id) || (to == tier && (int)c->dst == id)) {
			return true;
		}
	}
	for (uint32_t i = 0; i < n_saves; i++) {
		if (!saves[i].copied && saves[i].order.tier == tier && (int)saves[i].order.src == id) {
			return true;
		}
	}
	return false;
}

/* Blocks of a tier that are nobody's, but copies read or write them; and those that are free. */
static void count_rest(enum pfx_tier tier, uint32_t *leaving, uint32_t *unused)
{
	bool owned[WORLD_BLOCKS] = { false };
	uint32_t n = tier == PFX_TIER_DEVICE ? n_blocks : n_host, taken = 0;

	*leaving = tier == PFX_TIER_HOST ? host_gone : 0;
	for (uint32_t i = 0; i < n_cells; i++) {
		int id = tier == PFX_TIER_DEVICE ? cells[i].dev : cells[i].host;

		if (cells[i].used && id != NONE) {
			taken++;
			if (id != ORDERED) {
				owned[id] = true;
			}
		}
	}
	for (uint32_t id = 0; id < n; id++) {
		if (tier == PFX_TIER_DEVICE && own[id]) {
			taken++;
		} else if (!owned[id]) {
			*leaving += world_holds(tier, (int)id) ||
				(tier == PFX_TIER_DEVICE && gone[id]);
		}
	}
	*unused = n - taken - *leaving;
}

static uint32_t evictable(enum pfx_tier tier)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_cells; i++) {
		const struct cell *m = &cells[i];

		n += m->used && unheld(m) && (tier == PFX_TIER_DEVICE ? m->dev != NONE :
			tier == PFX_TIER_HOST ? m->host != NONE : m->rec != NONE);
	}
	return n;
}

static int class_of(const struct cell *m)
{
	return m->ended ? 0 : m->keep > now ? 2 : 1;
}

static bool goes_before(const struct cell *a, const struct cell *b)
{
	uint64_t x = a->age, y = b->age;

	if (class_of(a) != class_of(b)) {
		return class_of(a) < class_of(b);
	}
	if (class_of(a) == 2 && a->keep != b->keep) {
		x = a->keep;
		y = b->keep;
	}
	return x != y ? x < y : a->depth > b->depth;
}

static struct cell *victim(enum pfx_tier tier)
{
	struct cell *best = NULL;

	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];
		bool there = tier == PFX_TIER_DEVICE ? m->dev != NONE :
			tier == PFX_TIER_HOST ? m->host != NONE : m->rec != NONE;

		if (m->used && there && unheld(m) && (best == NULL || goes_before(m, best)) &&
			children(m, tier == PFX_TIER_DEVICE ? ON_DEVICE :
				tier == PFX_TIER_HOST ? IN_MEMORY : ON_DISK) == 0) {
			best = m;
		}
	}
	return best;
}

/* Its tokens from position `from` on are forgotten. */
static void vanish(struct cell *m, uint32_t from)
{
	for (uint32_t i = from; i < m->end; i++) {
		ever_add(prefix_id(m->space, m->tokens, i + 1) ^ epoch);
	}
	m->end = from;
	m->used = from > m->depth * B;
	for (uint32_t i = 0; m->used && i < n_cells; i++) {
		struct cell *o = &cells[i];

		/* Held by somebody, and no less than m now: it is matched again, in its place. */
		if (o != m && present(o) && o->space == m->space && o->depth == m->depth &&
			o->base == m->base && o->end == from && common(o, m->tokens, from) ==
			from - m->depth * B) {
			o->rec = m->rec;
			o->rec_end = m->rec_end;
			m->used = false;
		}
	}
	sweep();
}

static void lose_memory(struct cell *m)
{
	host_gone += m->host == ORDERED;
	m->dev = m->host = NONE;
	if (m->rec == NONE) {
		vanish(m, m->depth * B);
	} else if (m->rec_end < m->end) {
		vanish(m, m->rec_end);
	}
}

static void lose_record(struct cell *m)
{
	drop_record(m);
	if (!in_memory(m)) {
		vanish(m, m->depth * B);
	}
}

static void spill(struct cell *m)
{
	gone[m->dev] = true;
	m->spilled_from = m->dev;
	m->dev = NONE;
	m->host = ORDERED;
	seen[0]++;
}

/* false: not before copies have ended. */
static bool push_down(struct cell *v)
{
	for (;;) {
		bool leaf = children(v, IN_MEMORY) == 0;
		uint32_t leaving, unused;
		struct cell *h;

		if (n_host == 0 || (leaf && v->ended)) {
			break;
		}
		count_rest(PFX_TIER_HOST, &leaving, &unused);
		if (unused > 0) {
			spill(v);
			return true;
		}
		h = victim(PFX_TIER_HOST);
		if (h == NULL && leaving > 0) {
			return false;
		}
		if (h == NULL || (leaf && goes_before(v, h))) {
			break;
		}
		if (h->host == ORDERED || world_holds(PFX_TIER_HOST, h->host)) {
			return false;
		}
		lose_memory(h);
	}
	lose_memory(v);
	return true;
}

static bool make_room(uint32_t need)
{
	for (;;) {
		uint32_t leaving, unused;
		struct cell *v;

		count_rest(PFX_TIER_DEVICE, &leaving, &unused);
		if (unused >= need) {
			return true;
		}
		if (unused + leaving >= need) {
			return false;
		}
		v = victim(PFX_TIER_DEVICE);
		must(v != NULL, "the model has nothing to evict");
		if (v == NULL || !push_down(v)) {
			return false;
		}
	}
}

/* ---- who holds what ---- */

static void hold(struct cell *m, int *count)
{
	m->ended = false;
	++*count;
}

/* The path now holds just these; what it lets go of gets one common age. */
static void set_pins(struct mpath *p, bool *was, const bool *is_now)
{
	model_clock++;
	for (uint32_t i = 0; i < n_cells; i++) {
		if (!was[i] && is_now[i]) {
			hold(&cells[i], p->lease ? &cells[i].leases : &cells[i].pins);
		}
	}
	for (uint32_t i = 0; i < n_cells; i++) {
		if (was[i] && !is_now[i]) {
			if (cells[i].writer == (int)(p - paths) && was == p->holds) {
				cells[i].writer = NONE;
			}
			if (--*(p->lease ? &cells[i].leases : &cells[i].pins) == 0 && unheld(&cells[i])) {
				cells[i].age = model_clock;
			}
		}
		was[i] = is_now[i];
	}
	sweep();
}

static void reached(struct mpath *p)
{
	bool none[CELLS_MAX] = { false };

	if (p->reach > 0 && p->len >= p->reach) {
		set_pins(p, p->ahead, none);
		p->reach = 0;
	}
}

static void hold_chain(bool *holds, struct cell *const *chain, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		holds[chain[i] - cells] = true;
	}
}

/* ---- operations ---- */

static uint32_t device_end(struct cell *const *chain, uint32_t pos)
{
	for (uint32_t i = 0; i < blocks_for(pos); i++) {
		if (chain[i]->dev == NONE) {
			return i * B;
		}
	}
	return pos;
}

static void check_hit(int space, const uint32_t *tokens, uint32_t n, const struct pfx_hit *hit)
{
	struct cell *chain[LEN_MAX];
	uint32_t want = space < 0 ? 0 : walk(space, tokens, n, chain);
	uint32_t device = space < 0 ? 0 : device_end(chain, want), memory = device;
	struct pfx_cache_stats s;
	bool on = false, found = false;
	uint64_t id = prefix_id(space, tokens, n) ^ epoch;

	for (uint32_t i = 0; i < blocks_for(want); i++) {
		memory = in_memory(chain[i]) ? least((i + 1) * B, want) : memory;
	}
	pfx_cache_stats(cache, &s);
	must(hit->tokens == want, "matched %u, want %u of %u", hit->tokens, want, n);
	must(hit->tier_tokens[0] == device && hit->tier_tokens[1] == memory - device &&
		hit->tier_tokens[2] == want - memory, "matched %u + %u + %u, want %u + %u + %u",
		hit->tier_tokens[0], hit->tier_tokens[1], hit->tier_tokens[2], device,
		memory - device, want - memory);
	for (uint32_t i = 0; i < n_cells; i++) {
		on |= present(&cells[i]) && cells[i].space == space && cells[i].end > want &&
			memcmp(cells[i].tokens, tokens, want * sizeof(*tokens)) == 0;
	}
	must((hit->end == PFX_END_WHOLE) == (want == n), "whole or not");
	must(hit->end != PFX_END_DIVERGED || on, "diverged from nothing");
	must(hit->end != PFX_END_NEVER_SEEN || !on, "never seen, but something goes on");
	must(hit->end != PFX_END_EVICTED ||
		ever_has(prefix_id(space, tokens, want + 1) ^ epoch), "evicted, but never was");
	must(hit->mark == PFX_MARK_NONE || (hit->mark < n_marks && want == n &&
		marks[hit->mark].prefix == id), "the mark of another prefix");
	for (uint32_t i = 0; i < n_marks; i++) {
		found |= marks[i].prefix == id && marks[i].evictions == s.evicted_marks;
	}
	must(!found || hit->mark != PFX_MARK_NONE, "a mark of %u tokens got lost", n);
}

static uint32_t make_tokens(uint32_t *tokens)
{
	uint32_t n = 1 + below(LEN_MAX - 1);
	const uint32_t *like = past[below(PAST)];
	uint32_t same = below(3) == 0 ? 0 : below(n + 1);

	for (uint32_t i = 0; i < LEN_MAX; i++) {
		tokens[i] = i < same ? like[i] : below(alphabet);
	}
	if (below(4) == 0) {
		memcpy(past[below(PAST)], tokens, sizeof(past[0]));
	}
	return below(50) == 0 ? 0 : n;
}

static void do_match(void)
{
	uint32_t tokens[LEN_MAX];
	uint32_t n = make_tokens(tokens);
	int space = (int)below(SPACES);
	struct pfx_hit hit;

	pfx_cache_match(cache, spaces[space], tokens, n, &hit);
	check_hit(space, tokens, n, &hit);
}

/* The blocks of the chain that are on the device are those of the path's table. */
static void take_table(struct mpath *p, struct cell *const *chain, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		must(chain[i]->dev != NONE, "block %u of a path is not on the device", i);
		p->table[i] = (pfx_block_t)chain[i]->dev;
	}
}

static void do_open(struct mpath *p)
{
	bool holds[CELLS_MAX] = { false }, ahead[CELLS_MAX] = { false };
	struct cell *chain[LEN_MAX];
	struct pfx_hit hit, before;
	uint32_t n;
	int rc;

	memset(p, 0, sizeof(*p));
	n = make_tokens(p->tokens);
	p->space = below(12) == 0 ? NONE : (int)below(SPACES);
	p->apart = p->space < 0;
	if (p->space >= 0) {
		pfx_cache_match(cache, spaces[p->space], p->tokens, n, &before);
	}
	rc = pfx_path_open(cache, p->space < 0 ? NULL : spaces[p->space], p->tokens, n, &hit,
		&p->path);
	if (rc < 0) {
		must(failing && rc == -ENOMEM, "open says %d", rc);
		p->path = NULL;
		return;
	}
	check_hit(p->space, p->tokens, n, &hit);
	must(p->space < 0 || memcmp(&hit, &before, sizeof(hit)) == 0, "open and match differ");
	if (p->space < 0) {
		return;
	}
	p->reach = walk(p->space, p->tokens, n, chain);
	p->len = p->in_tree = device_end(chain, p->reach);
	p->n_blocks = p->n_tree = blocks_for(p->len);
	take_table(p, chain, 0, p->n_tree);
	hold_chain(holds, chain, p->n_tree);
	set_pins(p, p->holds, holds);
	if (p->reach > p->len) {
		hold_chain(ahead, chain, blocks_for(p->reach));
		set_pins(p, p->ahead, ahead);
		seen[1]++;
	} else {
		p->reach = 0;
	}
}

static void do_follow(struct mpath *p)
{
	uint32_t n = p->len + below(LEN_MAX - p->len + 1);
	int64_t rc = pfx_path_follow(p->path, p->tokens, n);
	struct cell *chain[LEN_MAX];
	bool holds[CELLS_MAX] = { false };
	uint32_t want = p->len;

	if (rc < 0) {
		must(failing && rc == -ENOMEM, "follow says %d", (int)rc);
		return;
	}
	if (!p->apart && p->in_tree == p->len && p->n_tree == p->n_blocks) {
		want = device_end(chain, walk(p->space, p->tokens, n, chain));
		want = want > p->len ? want : p->len;
	}
	must(rc == want, "followed to %lld, want %u", (long long)rc, want);
	if (rc <= p->len) {
		return;
	}
	take_table(p, chain, p->in_tree / B, blocks_for(want));
	hold_chain(holds, chain, blocks_for(want));
	p->len = p->in_tree = want;
	p->n_blocks = p->n_tree = blocks_for(want);
	set_pins(p, p->holds, holds);
	reached(p);
}

/* The cell in which the path's published part ends, where it has its block from the tree. */
static struct cell *tail_cell(const struct mpath *p)
{
	for (uint32_t i = 0; i < n_cells; i++) {
		if (p->holds[i] && cells[i].depth == p->in_tree / B && cells[i].dev != NONE) {
			return &cells[i];
		}
	}
	return NULL;
}

/* The block that this path would have to write in next, if a node has it. */
static struct cell *tail_block(const struct mpath *p)
{
	return p->len % B == 0 || p->len / B >= p->n_tree ? NULL : tail_cell(p);
}

static bool do_reserve(struct mpath *p, uint32_t upto)
{
	uint32_t want = blocks_for(upto) > p->n_blocks ? blocks_for(upto) : p->n_blocks;
	uint32_t need = want - p->n_blocks, leaving, unused;
	struct cell *tail = upto > p->len ? tail_block(p) : NULL;
	bool take = tail != NULL && tail->writer < 0 && tail->end == p->len;
	bool copy = tail != NULL && !take && tail->writer != (int)(p - paths);
	struct pfx_block_copy order;
	const pfx_block_t *table;
	uint32_t n, old = p->n_blocks;
	int rc = pfx_path_reserve(p->path, upto, &order);

	need += copy;
	count_rest(PFX_TIER_DEVICE, &leaving, &unused);
	if (rc == -ENOMEM || rc == PFX_E_FULL) {
		must((rc == -ENOMEM && failing) || (rc == PFX_E_FULL &&
			need > evictable(PFX_TIER_DEVICE) + leaving + unused), "reserve says %d", rc);
		must(order.n == 0, "a copy is ordered by a failed reserve");
		return false;
	}
	must(need <= evictable(PFX_TIER_DEVICE) + leaving + unused, "more was reserved than there is");
	if (upto > p->len && !make_room(need)) {
		must(rc == -EAGAIN, "reserve says %d and should wait", rc);
		seen[2]++;
		return false;
	}
	must(rc == 0, "reserve says %d and need not wait", rc);
	must((order.n > 0) == copy, "copy %u, want %d", order.n, copy);
	table = pfx_path_blocks(p->path, &n);
	must(n == want, "%u blocks reserved, want %u", n, want);
	if (rc != 0 || n != want) {
		return false;
	}
	if (take) {
		tail->writer = (int)(p - paths);
	}
	if (copy && order.n > 0) {
		uint32_t at = p->len / B;

		must(order.src == p->table[at], "copy of another block");
		must(order.dst == table[at] && order.n == p->len % B, "copy to the wrong place");
		memcpy(kv[0][order.dst], kv[0][order.src], order.n * sizeof(kv[0][0][0]));
		own[order.dst] = true;
		p->table[at] = order.dst;
		p->n_tree = at;
	}
	for (uint32_t i = old; i < want; i++) {
		own[table[i]] = true;
		p->table[i] = table[i];
	}
	p->n_blocks = want;
	for (uint32_t i = p->len; i < upto; i++) {
		kv[0][p->table[i / B]][i % B] = pfx_rng_next(&rng);
	}
	return true;
}

/* Up to where has this path the right to write? */
static uint32_t writable(const struct mpath *p)
{
	struct cell *tail = tail_block(p);

	if (tail != NULL && tail->writer != (int)(p - paths)) {
		return p->len;
	}
	return least(p->n_blocks * B, LEN_MAX);
}

/* The path's block at depth i, its own, is m's from now on. */
static void give(struct mpath *p, struct cell *m, uint32_t i)
{
	must(own[p->table[i]], "block %u is not the path's own", p->table[i]);
	own[p->table[i]] = false;
	m->dev = (int)p->table[i];
	m->host = NONE;
}

/* The path's last block is loose, and what the tree has of it is z's, in a slower tier. */
static bool rejoin(struct mpath *p, struct cell *y, struct cell *z, uint32_t pos, uint32_t upto)
{
	if (z->dev != NONE || (pos < upto && pos < (y->depth + 1) * B)) {
		return false;
	}
	if (pos < z->end) {
		/* Another path may have written more in it than this one reads. */
		if (upto > y->end) {
			y->end = upto;
			memcpy(y->tokens, p->tokens, upto * sizeof(*y->tokens));
		}
		return true;
	}
	z->dev = y->dev;
	z->host = y->dev = NONE;
	for (int i = 0; i < PATHS_MAX; i++) {
		struct mpath *o = &paths[i];

		if (o->path != NULL && o->holds[y - cells]) {
			o->holds[y - cells] = false;
			o->holds[z - cells] = true;
			hold(z, o->lease ? &z->leases : &z->pins);
			--*(o->lease ? &y->leases : &y->pins);
		}
	}
	seen[3]++;
	sweep();
	return false;
}

static void do_publish(struct mpath *p, uint32_t upto)
{
	bool holds[CELLS_MAX] = { false };
	struct cell *chain[LEN_MAX], *y;
	uint32_t pos, from = p->in_tree / B, shared, n_tree = blocks_for(upto);
	int rc = pfx_path_publish(p->path, p->tokens, upto);

	p->len = upto;
	if (p->apart) {
		must(rc == 0, "publish says %d", rc);
		reached(p);
		return;
	}
	y = p->n_tree > from ? tail_cell(p) : NULL;
	pos = walk(p->space, p->tokens, upto, chain);
	if (rc < 0) {
		must(failing && rc == -ENOMEM, "publish says %d", rc);
		/* It may have come as far as to give its last block to the tree. */
		if (y != NULL && y->end % B != 0 && better(y) != NULL &&
			p->path->node->state == PFX_NODE_LINKED) {
			rejoin(p, y, chain[from], pos, upto);
		}
		reached(p);
		return;
	}
	must(pos >= p->in_tree, "what a path holds cannot be matched");
	if (y != NULL && y->end % B != 0 && better(y) != NULL &&
		rejoin(p, y, chain[from], pos, upto)) {
		p->in_tree = upto;
		p->n_tree = n_tree;
		return;
	}
	shared = pos / B;
	if (pos == upto) {
		shared = n_tree;
		if (upto % B != 0 && chain[upto / B]->end > upto && chain[upto / B]->dev == NONE) {
			if (upto / B < p->n_tree) {
				/* It has another block with these tokens from the tree already. */
				return;
			}
			n_tree = shared = upto / B;
			seen[4]++;
		}
	}
	for (uint32_t i = from; i < shared; i++) {
		if (chain[i]->dev == NONE) {
			give(p, chain[i], i);
			seen[5]++;
		} else if (i >= p->n_tree) {
			own[p->table[i]] = false;
		}
		p->table[i] = (pfx_block_t)chain[i]->dev;
	}
	hold_chain(holds, chain, pos == upto ? blocks_for(upto) : shared);
	for (uint32_t i = shared; pos < upto && i < n_tree; i++) {
		struct cell *m = i < p->n_tree ? y : new_cell();

		if (m != y || i >= p->n_tree) {
			m->space = p->space;
			m->depth = i;
			m->base = prefix_id(p->space, p->tokens, i * B);
			give(p, m, i);
		}
		m->end = least(upto, (i + 1) * B);
		memcpy(m->tokens, p->tokens, m->end * sizeof(m->tokens[0]));
		m->writer = m->end % B != 0 ? (int)(p - paths) : NONE;
		holds[m - cells] = true;
	}
	p->in_tree = upto;
	p->n_tree = n_tree;
	set_pins(p, p->holds, holds);
	reached(p);
}

static void compute(struct mpath *p)
{
	uint32_t upto = p->len + below(writable(p) - p->len + 1);

	for (uint32_t i = p->len; i < upto; i++) {
		kv[0][p->table[i / B]][i % B] = prefix_id(p->space, p->tokens, i + 1);
	}
	do_publish(p, upto);
}

/* Brings in some of what is in slower tiers. */
static void do_fetch(struct mpath *p)
{
	uint32_t to;

	if (p->reach == 0 || p->len % B != 0) {
		return;
	}
	to = p->len + 1 + below(p->reach - p->len);
	if (!do_reserve(p, to)) {
		return;
	}
	p->fetch_to = to;
	p->fetch_end = UINT32_MAX;
	for (uint32_t i = p->len / B; i * B < to; i++) {
		struct pfx_source s;

		if (pfx_path_source(p->path, i, &s) < 0 || s.tier == PFX_TIER_DEVICE) {
			must(s.tier == PFX_TIER_DEVICE, "no source");
			p->fetch_to = i * B;
			break;
		}
		if (!world_fetch(s.tier, s.id, p->table[i],
				generation[p - paths] << 24 | (uint64_t)i << 8 | (uint64_t)(p - paths))) {
			p->fetch_to = i * B;
			break;
		}
		p->fetching++;
	}
	p->fetch_to = p->fetch_to > p->len ? p->fetch_to : 0;
}

/*
 * A record that a path needs is not deleted. It needs it no more once another path has brought the
 * block to the device, or once it was forgotten, by a flush or a loss, so that the path does not reach
 * it: then what comes too late ends at the block before.
 */
static void arrived(uint64_t token, bool ok)
{
	struct mpath *p = &paths[token & 0xff];
	uint32_t index = token >> 8 & 0xffff;
	struct pfx_source s;

	if (generation[p - paths] != token >> 24) {
		return;
	}
	p->fetching--;
	if (!ok) {
		must(pfx_path_source(p->path, index, &s) != 0 || s.tier == PFX_TIER_DEVICE,
			"a record that a path needs was deleted");
		p->fetch_end = index * B < p->fetch_end ? index * B : p->fetch_end;
	}
}

static void fetched(struct mpath *p)
{
	uint32_t to = p->fetch_to < p->fetch_end ? p->fetch_to : p->fetch_end;

	p->fetch_to = 0;
	if (to > p->len) {
		do_publish(p, to);
	}
}

static void do_mark(struct mpath *p)
{
	uint32_t slot = pfx_path_mark(p->path);
	uint64_t id = prefix_id(p->space, p->tokens, p->len) ^ epoch;
	struct pfx_cache_stats s;

	if (p->apart || p->len == 0 || p->in_tree < p->len || n_marks == 0) {
		must(slot == PFX_MARK_NONE, "a mark for what is not in the tree");
		return;
	}
	must(slot < n_marks, "no mark");
	if (slot >= n_marks) {
		return;
	}
	pfx_cache_stats(cache, &s);
	for (uint32_t i = 0; i < n_marks; i++) {
		must(i == slot || marks[i].prefix != id || marks[i].evictions < s.evicted_marks,
			"a second mark at one place");
	}
	if (marks[slot].prefix != id) {
		must(marks[slot].prefix == 0 || marks[slot].evictions < s.evicted_marks,
			"slot %u is taken", slot);
	}
	/* Those that have not seen a mark die since they were set are all alive. */
	marks[slot].prefix = id;
	marks[slot].evictions = s.evicted_marks;
}

/* The tree's node that has m, or NULL; *index: m's place there. */
static struct pfx_node *node_of(const struct cell *m, uint32_t *index)
{
	struct pfx_node *x = &spaces[m->space]->root;

	while (x != NULL) {
		struct pfx_node *k;

		if (x->n > 0 && m->depth * B < pfx_node_end(x)) {
			*index = m->depth - x->start / B;
			return x;
		}
		for (k = pfx_kids_first(x); k != NULL; k = pfx_kids_next(k)) {
			uint32_t n = k->n < B ? k->n : B;

			if (k->start + n <= m->end && memcmp(k->run, m->tokens + k->start,
					n * sizeof(*k->run)) == 0) {
				break;
			}
		}
		x = k;
	}
	return NULL;
}

/* Which conversations there are is test_radix_policy's part: nothing that is held may end. */
static void learn_ends(void)
{
	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];
		const struct pfx_node *x;
		uint32_t index;

		if (m->used && !m->flushed && linked(m) && (x = node_of(m, &index)) != NULL &&
			x->ended && !m->ended) {
			must(unheld(m), "a block has ended that somebody holds");
			m->ended = true;
		}
	}
}

static void free_own(struct mpath *p)
{
	for (uint32_t i = p->n_tree; i < p->n_blocks; i++) {
		own[p->table[i]] = false;
	}
	p->n_blocks = p->n_tree;
}

static void do_close(struct mpath *p)
{
	bool none[CELLS_MAX] = { false };
	uint64_t keep = below(6) == 0 ? now + below(400) * 1000 + ++keeps % 1000 : 0;
	bool last = below(4) == 0;

	if (keep > 0) {
		pfx_path_keep_until(p->path, keep);
	}
	if (last) {
		pfx_path_last_turn(p->path);
	}
	free_own(p);
	pfx_path_close(p->path);
	generation[p - paths]++;
	p->path = NULL;
	for (uint32_t i = 0; i < n_cells && !p->lease; i++) {
		if (p->holds[i] && cells[i].keep < keep) {
			cells[i].keep = keep;
		}
	}
	set_pins(p, p->holds, none);
	set_pins(p, p->ahead, none);
	p->reach = 0;
	if (last) {
		learn_ends();
	}
}

static void do_lease(struct mpath *p)
{
	bool holds[CELLS_MAX] = { false }, none[CELLS_MAX] = { false };
	uint32_t more = 0;
	int rc = pfx_path_lease(p->path);

	for (uint32_t i = 0; i < n_cells; i++) {
		more += cells[i].used && !cells[i].flushed && cells[i].dev != NONE && linked(&cells[i]) &&
			cells[i].leases > 0;
		more += p->holds[i] && cells[i].dev != NONE && cells[i].leases == 0;
	}
	if (rc < 0) {
		must((rc == -ENOENT && p->apart) || (rc == PFX_E_LIMIT && more > n_blocks / 2) ||
			(rc == -ENOMEM && failing), "lease says %d", rc);
		return;
	}
	must(!p->apart && more <= n_blocks / 2, "%u of %u blocks are leased", more, n_blocks);
	memcpy(holds, p->holds, sizeof(holds));
	if (p->in_tree > p->n_tree * B) {
		struct cell *m = tail_cell(p);

		if (m != NULL) {
			own[p->table[p->n_tree]] = false;
			p->table[p->n_tree++] = (pfx_block_t)m->dev;
		} else {
			p->in_tree = p->n_tree * B;
			for (uint32_t i = 0; i < n_cells; i++) {
				holds[i] &= cells[i].depth < p->n_tree;
			}
			set_pins(p, p->holds, holds);
		}
	}
	free_own(p);
	if (p->reach > 0) {
		set_pins(p, p->ahead, none);
		p->reach = 0;
	}
	for (uint32_t i = 0; i < n_cells; i++) {
		if (holds[i]) {
			cells[i].leases++;
			cells[i].pins--;
			if (cells[i].writer == (int)(p - paths)) {
				cells[i].writer = NONE;
			}
		}
	}
	model_clock++;
	p->lease = true;
	p->len = p->in_tree;
	seen[6]++;
}

static uint32_t in_use(int space)
{
	uint32_t n = 0;

	for (uint32_t b = 0; b < n_cells; b++) {
		const struct cell *m = &cells[b];

		n += m->used && !unheld(m) && in_memory(m) && (space < 0 || m->space == space);
	}
	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL && (space < 0 || paths[i].space == space)) {
			n += paths[i].n_blocks - paths[i].n_tree;
		}
	}
	return n;
}

static void forgo(struct mpath *p)
{
	bool none[CELLS_MAX] = { false };

	if (p->reach > 0) {
		set_pins(p, p->ahead, none);
		p->reach = 0;
	}
}

static void flush_all(int space, struct pfx_flushed *got)
{
	pfx_cache_flush(cache, space < 0 ? NULL : spaces[space], PFX_TIER_ALL, got);
	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL && (space < 0 || paths[i].space == space)) {
			paths[i].apart = true;
			forgo(&paths[i]);
		}
	}
}

static void do_flush(void)
{
	int space = (int)below(SPACES + 1) - 1;
	uint32_t freed = 0, want;
	struct pfx_flushed got, all;

	flush_all(space, &got);
	want = in_use(space);
	for (uint32_t b = 0; b < n_cells; b++) {
		if (cells[b].used && (space < 0 || cells[b].space == space)) {
			freed += unheld(&cells[b]) && cells[b].dev != NONE;
			cells[b].flushed = true;
		}
	}
	sweep();
	must(got.blocks[0] == freed, "flush freed %u, want %u", got.blocks[0], freed);
	must(got.in_use == want, "flush left %u in use, want %u", got.in_use, want);
	/* Nothing of before may be remembered in that space; the other spaces lose little. */
	epoch = pfx_rng_next(&rng);
	for (uint32_t i = 0; i < n_marks; i++) {
		marks[i].evictions = 0;
	}
	if (space >= 0) {
		flush_all(NONE, &all);
		for (uint32_t b = 0; b < n_cells; b++) {
			cells[b].flushed |= cells[b].used;
		}
		sweep();
	}
}

/* Does m, in memory, hang on a device block that goes? */
static bool behind_device(const struct cell *m)
{
	for (const struct cell *o = m; o != NULL; o = parent_of(o)) {
		if (o->dev != NONE) {
			return unheld(o);
		}
	}
	return false;
}

/* Of those that go, the first among the deepest; NULL: none is left. */
static struct cell *next_to_go(const bool *goes)
{
	struct cell *first = NULL;

	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];

		if (goes[i] && m->used && (first == NULL || m->depth > first->depth ||
			(m->depth == first->depth && comes_first(m, first)))) {
			first = m;
		}
	}
	return first;
}

/*
 * All that nobody holds leaves one tier, the deepest first, and siblings in their order: what is
 * left of one in its record may be the beginning of another that has not gone yet.
 */
static void flush_tier(enum pfx_tier tier, int space)
{
	bool goes[CELLS_MAX] = { false };
	struct cell *m;

	for (uint32_t i = 0; i < n_cells; i++) {
		m = &cells[i];
		goes[i] = m->used && linked(m) && unheld(m) && (space < 0 || m->space == space) &&
			(tier == PFX_TIER_DISK ? m->rec != NONE :
			tier == PFX_TIER_HOST ? m->host != NONE : in_memory(m) && behind_device(m));
	}
	while ((m = next_to_go(goes)) != NULL) {
		goes[m - cells] = false;
		if (tier == PFX_TIER_DISK) {
			lose_record(m);
		} else {
			lose_memory(m);
		}
	}
}

static void do_admin(void)
{
	uint32_t tokens[LEN_MAX], n = make_tokens(tokens), pos, count = 1 + below(5);
	struct cell *chain[LEN_MAX];
	int space = (int)below(SPACES), some = (int)below(SPACES + 1) - 1;
	enum pfx_tier tier = (enum pfx_tier)below(PFX_TIERS);
	struct pfx_flushed flushed;

	pfx_alloc_fail(0, 0);
	switch (below(16)) {
	case 0:
		if ((tier == PFX_TIER_HOST ? n_host : tier == PFX_TIER_DISK ? n_disk : 0) > 0 ||
			(tier == PFX_TIER_DEVICE && n_host + n_disk > 0)) {
			pfx_cache_flush(cache, some < 0 ? NULL : spaces[some], 1u << tier, &flushed);
			flush_tier(tier, some);
		}
		break;
	case 1:
	case 2:
		n = pfx_cache_evict(cache, tier, NULL, count);
		for (uint32_t i = 0; i < n; i++) {
			struct cell *v = victim(tier);

			must(v != NULL, "%u of tier %d were evicted", n, (int)tier);
			if (v == NULL) {
				break;
			}
			if (tier == PFX_TIER_DEVICE) {
				must(push_down(v), "%u of %u were evicted, and should not", i + 1, n);
			} else if (tier == PFX_TIER_HOST) {
				lose_memory(v);
			} else {
				lose_record(v);
			}
		}
		must(n == count || evictable(tier) == 0 || tier == PFX_TIER_DEVICE, "too few went");
		break;
	case 3:
	case 4:
	case 5:
		pfx_cache_end(cache, spaces[space], tokens, n);
		learn_ends();
		break;
	default:
		pos = walk(space, tokens, n, chain);
		pfx_cache_touch(cache, spaces[space], tokens, n);
		model_clock++;
		for (uint32_t i = 0; i < blocks_for(pos); i++) {
			if (unheld(chain[i])) {
				chain[i]->age = model_clock;
				chain[i]->ended = false;
			}
		}
	}
}

/* What was kept for long enough is as if just used, those that were to be kept shortest first. */
static void do_time(void)
{
	uint64_t was = now, last = 0;

	now += below(100) * 1000;
	pfx_cache_now(cache, now);
	for (;;) {
		struct cell *first = NULL;

		for (uint32_t i = 0; i < n_cells; i++) {
			struct cell *m = &cells[i];

			if (m->used && !m->flushed && unheld(m) && !m->ended && m->keep > was &&
				m->keep <= now && linked(m) &&
				(first == NULL || m->keep < first->keep ||
				(m->keep == first->keep && m->depth > first->depth))) {
				first = m;
			}
		}
		if (first == NULL) {
			return;
		}
		model_clock += first->keep != last;
		last = first->keep;
		first->keep = was;
		for (struct cell *m = first; m != NULL && unheld(m) && m->age < model_clock;
			m = parent_of(m)) {
			m->age = model_clock;
		}
	}
}

/* ---- the disk ---- */

static int record_in_tree(const struct cell *m, uint32_t *end)
{
	uint32_t i;
	const struct pfx_node *x = node_of(m, &i);

	if (x == NULL || i >= pfx_node_n_records(x, cache->shift)) {
		return NONE;
	}
	*end = least(x->start + x->saved, (m->depth + 1) * B);
	return (int)pfx_node_records(x, cache->shift)[i];
}

static void do_save(void)
{
	struct pfx_save_order o;
	int rc = pfx_cache_next_save(cache, &o);
	struct cell *m = NULL, *up;
	uint32_t end;

	/* Some records may have made room: the right ones. */
	for (;;) {
		struct cell *v = victim(PFX_TIER_DISK);

		if (v == NULL || record_in_tree(v, &end) != NONE) {
			break;
		}
		lose_record(v);
		seen[7]++;
	}
	if (rc == 0) {
		return;
	}
	for (uint32_t i = 0; i < n_cells; i++) {
		if (cells[i].used && (o.tier == PFX_TIER_DEVICE ? cells[i].dev : cells[i].host) == (int)o.src) {
			m = &cells[i];
		}
	}
	must(m != NULL, "a block is to be saved that is nobody's");
	if (m == NULL) {
		return;
	}
	must(o.pos == m->depth * B && o.pos + o.n_tokens == m->end &&
		memcmp(o.tokens, m->tokens + o.pos, o.n_tokens * sizeof(*o.tokens)) == 0 &&
		o.space == spaces[m->space], "an order to save has other tokens");
	must(m->writer < 0 || m->end % B == 0, "a block is saved while somebody writes in it");
	must(m->rec == NONE || m->rec_end < m->end, "a block is saved twice");
	up = m->depth > 0 ? parent_of(m) : NULL;
	must(m->depth == 0 ? o.parent_record == PFX_BLOCK_NONE : up != NULL &&
		((int)o.parent_record == up->rec || saving_of[o.parent_record] == up - cells ||
			acked[o.parent_record] == up - cells),
		"an order to save has another parent");
	saving_of[o.record] = (int)(m - cells);
	saves[n_saves++] = (struct world_save){ .order = o };
}

/* Blocks count as saved once all before them are; nothing else may have changed. */
static void learn_records(void)
{
	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];
		uint32_t end = 0;
		int rec;

		if (!m->used || m->flushed || !linked(m)) {
			continue;
		}
		rec = record_in_tree(m, &end);
		if (rec == m->rec) {
			continue;
		}
		must(rec != NONE, "a record of %u tokens is gone", m->rec_end);
		must(rec == NONE || acked[rec] == (int)i, "record %d is not that block's", rec);
		must(m->depth == 0 || (parent_of(m) != NULL && parent_of(m)->rec_end == m->depth * B) ||
			record_in_tree(parent_of(m), &end) != NONE, "a record without a parent");
		rec = record_in_tree(m, &end);
		m->rec = rec;
		m->rec_end = end;
	}
}

static void do_world(void)
{
	uint32_t record, i;

	switch (below(12)) {
	case 0:
	case 1:
	case 2:
	case 9:
	case 10:
	case 11:
		if (n_copies > 0) {
			fail_in = 0;
			world_copy_end(below(n_copies));
		}
		break;
	case 3:
	case 4:
		do_save();
		break;
	case 5:
		if (n_saves > 0) {
			world_save_copy(&saves[below(n_saves)]);
		}
		break;
	case 6:
		if (n_saves > 0) {
			i = below(n_saves);
			record = saves[i].order.record;
			fail_in = 8;
			world_save_copy(&saves[i]);
			world_save_end(i);
			acked[record] = saving_of[record];
			saving_of[record] = NONE;
			learn_records();
		}
		break;
	case 7:
		if (pfx_cache_next_delete(cache, &record)) {
			deletes[n_deletes++] = record;
			acked[record] = NONE;
		}
		break;
	default:
		if (n_deletes > 0) {
			world_delete_end(below(n_deletes));
		}
		break;
	}
}

/* ---- after each step ---- */

static void report(void *arg, const char *text)
{
	(void)arg;
	must(false, "check: %s", text);
}

/* Takes the spills that were ordered, and learns the numbers of the host blocks. */
static void take_spills(void)
{
	uint32_t before = n_copies;

	world_take_spills();
	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];

		if (!m->used || m->host != ORDERED) {
			continue;
		}
		for (uint32_t k = before; k < n_copies; k++) {
			if (copies[k].kind == COPY_SPILL && (int)copies[k].src == m->spilled_from) {
				m->host = (int)copies[k].dst;
			}
		}
		must(m->host != ORDERED, "no spill of block %d is ordered", m->spilled_from);
	}
	memset(gone, 0, sizeof(gone));
	host_gone = 0;
}

static void check_path(struct mpath *p)
{
	uint32_t n;
	const pfx_block_t *table = pfx_path_blocks(p->path, &n);

	must(pfx_path_len(p->path) == p->len, "len %u, want %u", pfx_path_len(p->path), p->len);
	must(pfx_path_reach(p->path) == (p->reach > 0 ? p->reach : p->len), "reach %u, want %u",
		pfx_path_reach(p->path), p->reach);
	must(n == p->n_blocks, "%u blocks, want %u", n, p->n_blocks);
	for (uint32_t i = 0; i < n && i < p->n_blocks; i++) {
		must(table[i] == p->table[i], "table[%u] is %u, want %u", i, table[i], p->table[i]);
	}
	for (uint32_t i = 0; i < p->len; i++) {
		must(kv[0][p->table[i / B]][i % B] == prefix_id(p->space, p->tokens, i + 1),
			"block %u of a path has another's KV at position %u", p->table[i / B], i);
	}
}

/* What the tree says of a cell. */
static void check_cell(struct cell *m)
{
	uint32_t i, end = 0;
	const struct pfx_node *x = node_of(m, &i);
	int dev, host;

	must(x != NULL, "a block of the model is not in the tree");
	if (x == NULL) {
		return;
	}
	dev = i < x->n_dev ? (int)pfx_node_blocks(x, cache->shift)[i] : NONE;
	host = i >= x->n_dev && i < x->n_mem ? (int)pfx_node_blocks(x, cache->shift)[i] : NONE;
	must(dev == m->dev && host == m->host, "block at %u: device %d, host %d; want %d and %d",
		m->depth * B, dev, host, m->dev, m->host);
	must(record_in_tree(m, &end) == m->rec && end == m->rec_end,
		"block at %u: record %d to %u, want %d to %u", m->depth * B, record_in_tree(m, &end),
		end, m->rec, m->rec_end);
	must((x->pins > 0) == (m->pins > 0) && (x->leases > 0) == (m->leases > 0),
		"block at %u: %u pins, %u leases; want %d and %d", m->depth * B, x->pins, x->leases,
		m->pins, m->leases);
	must(x->ended == m->ended, "block at %u: ended %d, want %d", m->depth * B, x->ended, m->ended);
	must(least(x->start + x->n, (m->depth + 1) * B) == m->end, "a block ends elsewhere");
}

static void check_all(void)
{
	struct pfx_cache_stats s;
	uint32_t leaving, unused, pinned = 0, leased = 0, cached = 0, n = 0, in_tree = 0;

	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL) {
			check_path(&paths[i]);
		}
	}
	for (uint32_t i = 0; i < n_cells; i++) {
		struct cell *m = &cells[i];

		if (!m->used || !present(m)) {
			continue;
		}
		cached += m->dev != NONE && m->pins == 0 && linked(m);
		if (linked(m)) {
			pinned += m->dev != NONE && m->pins > 0;
			leased += m->dev != NONE && m->leases > 0;
			n++;
			check_cell(m);
		}
	}
	for (int k = 0; k < SPACES; k++) {
		for (struct pfx_node *x = &spaces[k]->root; x != NULL; x = pfx_tree_next(x)) {
			in_tree += blocks_for(x->n);
		}
	}
	must(in_tree == n, "%u blocks in the tree, want %u", in_tree, n);
	count_rest(PFX_TIER_DEVICE, &leaving, &unused);
	pfx_cache_stats(cache, &s);
	must(s.tier[0].free == unused, "%u free, want %u", s.tier[0].free, unused);
	must(s.tier[0].cached == cached, "%u cached, want %u", s.tier[0].cached, cached);
	must(s.tier[0].pinned == pinned, "%u pinned, want %u", s.tier[0].pinned, pinned);
	must(s.tier[0].leased == leased, "%u leased, want %u", s.tier[0].leased, leased);
	must(s.tier[0].free + s.tier[0].cached + s.tier[0].running == s.tier[0].blocks, "blocks");
	pfx_cache_check(cache, report, NULL);
}

static void one_step(void)
{
	struct mpath *p = &paths[below(TIERS ? PATHS_MAX / 2 : PATHS_MAX)];
	uint32_t what = below(100);

	if (failing) {
		pfx_alloc_fail(pfx_rng_next(&rng), 4);
	}
	if (TIERS && below(3) == 0) {
		do_world();
	} else if (below(30) == 0) {
		do_admin();
	} else if (below(20) == 0) {
		do_time();
	} else if (what < 8) {
		do_match();
	} else if (what == 8 && below(TIERS ? 20 : 6) == 0) {
		do_flush();
	} else if (p->path == NULL) {
		do_open(p);
	} else if (p->fetch_to > 0 && p->fetching == 0) {
		fetched(p);
	} else if (what < (TIERS ? 6 : 15) || (TIERS && what < 22 && p->fetch_to == 0)) {
		do_close(p);
	} else if (p->lease && below(3) == 0) {
		do_close(p);
	} else if (p->lease || p->fetch_to > 0) {
		/* It does no more, or waits. */
	} else if (what == 22 && below(8) == 0) {
		pfx_path_keep_private(p->path);
		p->apart = true;
	} else if (what == 23 && below(2) == 0) {
		do_lease(p);
	} else if (what == 24) {
		pfx_path_forgo(p->path);
		forgo(p);
	} else if (what < 32) {
		do_follow(p);
	} else if (what < 80 && p->reach > 0) {
		do_fetch(p);
	} else if (what < 60) {
		do_reserve(p, p->len + below(least(LEN_MAX - p->len, 3 * B + 4) + 1));
	} else if (what < 92) {
		compute(p);
	} else {
		do_mark(p);
	}
	pfx_alloc_fail(0, 0);
	take_spills();
	check_all();
}

static void open_cache(void)
{
	static const uint32_t sizes[] = { 1, 2, 4, 16, 32 };
	struct pfx_cache_opts opts;

	B = sizes[below(5)];
	n_blocks = 1 + below(below(2) == 0 ? 12 : least(100, 8 + (TIERS ? 128 : 256) / B));
	n_host = TIERS && below(4) > 0 ? 1 + below(4 + 96 / B) : 0;
	n_disk = TIERS && below(4) > 0 ? 1 + below(8 + 96 / B) : 0;
	n_marks = below(8) == 0 ? 0 : 1 + below(12);
	alphabet = 1 + below(3);
	opts = (struct pfx_cache_opts){ .block_tokens = B, .n_blocks = n_blocks, .n_host = n_host,
		.n_disk = n_disk, .n_marks = n_marks, .save = (enum pfx_save)below(3) };
	must(pfx_cache_open(&cache, &opts) == 0, "open");
	cache->seed = seed; /* so that a run can be repeated */
	for (int i = 0; i < SPACES; i++) {
		must(pfx_cache_space(cache, "abc", (size_t)i, &spaces[i]) == 0, "space");
	}
	world_reset();
	n_cells = 0;
	memset(cells, 0, sizeof(cells));
	memset(own, 0, sizeof(own));
	memset(paths, 0, sizeof(paths));
	memset(marks, 0, sizeof(marks));
	memset(ever, 0, sizeof(ever));
	memset(acked, 0xff, sizeof(acked));
	memset(saving_of, 0xff, sizeof(saving_of));
	epoch = now = 0;
}

static void close_cache(void)
{
	struct pfx_cache_stats s;

	for (int i = 0; i < PATHS_MAX; i++) {
		if (paths[i].path != NULL) {
			do_close(&paths[i]);
		}
	}
	check_all();
	fail_in = 0;
	world_settle();
	pfx_cache_stats(cache, &s);
	must(s.tier[0].running == 0 && s.tier[0].pinned == 0, "idle, but %u running, %u pinned",
		s.tier[0].running, s.tier[0].pinned);
	must(s.tier[0].free + s.tier[0].cached == s.tier[0].blocks, "idle: the blocks do not add up");
	pfx_cache_close(cache);
}

static void run(uint64_t steps, const char *name)
{
	uint64_t live = pfx_alloc_live();
	int before = failures;

	step = 0;
	while (step < steps && failures == before) {
		open_cache();
		for (int i = 0; i < EPISODE && step < steps && failures == before; i++, step++) {
			one_step();
		}
		if (failures == before) {
			close_cache();
		}
	}
	ok(failures == before, "%llu steps %s, seed %llu", (unsigned long long)step, name,
		(unsigned long long)seed);
	if (failures == before) {
		is_int(pfx_alloc_live(), live, "all memory is given back");
	}
}

int main(int argc, char **argv)
{
	static const char *const what[] = { "spills", "paths that match beyond the device",
		"waits for copies", "loose blocks that joined the tree again",
		"ends inside a block of a slower tier", "promotions", "leases", "records evicted" };

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : pfx_rng_entropy();
	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	world_arrived = arrived;
	run(STEPS, "against the model");
	failing = true;
	run(STEPS / 2, "with allocations that fail");
	for (int i = 0; TIERS && i < 8; i++) {
		printf("# %llu %s\n", (unsigned long long)seen[i], what[i]);
	}
	return tap_done();
}
