/*
 * Tiers case by case: what the random tests reach only now and then, drawn beside each.
 * B is 4 and a letter is a token; D, H, R: on the device, in host memory, a record.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "tests/radix_world.h"
#include "tests/tap.h"

static struct pfx_space *space;

static void setup(uint32_t n_blocks, uint32_t n_host, uint32_t n_disk, enum pfx_save save)
{
	struct pfx_cache_opts opts = { .block_tokens = 4, .n_blocks = n_blocks, .n_host = n_host,
		.n_disk = n_disk, .n_marks = 4, .save = save };

	if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &space) < 0) {
		abort();
	}
	world_reset();
}

static void say(void *arg, const char *problem)
{
	(void)arg;
	printf("#   %s\n", problem);
}

#define clean(what) is_int(pfx_cache_check(cache, say, NULL), 0, "check is clean: %s", what)

static struct pfx_tier_stats stats(enum pfx_tier tier)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(cache, &s);
	return s.tier[tier];
}

static uint32_t text(uint32_t *tokens, const char *s)
{
	uint32_t n = 0;

	while (s[n] != '\0') {
		tokens[n] = (unsigned char)s[n];
		n++;
	}
	return n;
}

static struct pfx_path *open_on(const char *s, uint32_t len, uint32_t reach)
{
	uint32_t tokens[256], n = text(tokens, s);
	struct pfx_path *path = NULL;

	if (pfx_path_open(cache, space, tokens, n, NULL, &path) < 0) {
		abort();
	}
	is_int(pfx_path_len(path), len, "\"%s\" opens on %u tokens", s, len);
	is_int(pfx_path_reach(path), reach, "and reaches to %u", reach);
	return path;
}

/* Reserves up to the end of s, and publishes it, whether fetched or computed. */
static void extend_to(struct pfx_path *path, const char *s)
{
	uint32_t tokens[256], n = text(tokens, s);
	struct pfx_block_copy copy;

	is_int(pfx_path_reserve(path, n, &copy), 0, "room for \"%s\"", s);
	is_int(pfx_path_publish(path, tokens, n), 0, "which is published");
}

static void insert(const char *s)
{
	uint32_t tokens[256], n = text(tokens, s);
	struct pfx_block_copy copy;
	struct pfx_path *path;

	if (pfx_path_open(cache, space, tokens, n, NULL, &path) < 0 ||
		pfx_path_reserve(path, n, &copy) < 0 || pfx_path_publish(path, tokens, n) < 0) {
		abort();
	}
	pfx_path_close(path);
}

/* Where a prefix is, as "DDHR." or less: a letter a block that it matches. */
static const char *where(const char *s)
{
	static char out[64];
	uint32_t tokens[256], n = text(tokens, s), at = 0;
	struct pfx_hit hit;

	pfx_cache_match(cache, space, tokens, n, &hit);
	for (int t = 0; t < PFX_TIERS; t++) {
		for (uint32_t i = 0; i < (hit.tier_tokens[t] + 3) / 4; i++) {
			out[at++] = "DHR"[t];
		}
	}
	out[at] = '\0';
	return out;
}

#define same(got, want, ...) ok(strcmp((got), (want)) == 0, __VA_ARGS__)

static void save_all(void)
{
	struct pfx_save_order o;

	pfx_cache_want_saved(cache, NULL);
	while (pfx_cache_next_save(cache, &o)) {
		saves[n_saves++] = (struct world_save){ .order = o };
	}
	world_settle();
}

/*
 *   root -- aaaa bbbb cccc      press: the last first, spilled
 *            D    D    D
 *            D    H    H
 */
static void test_spill_and_promote(void)
{
	struct pfx_path *path;
	struct pfx_source source;

	setup(4, 4, 0, PFX_SAVE_OFF);
	insert("aaaabbbbcccc");
	is_int(pfx_cache_press(cache, 1), 2, "two blocks leave the device");
	same(where("aaaabbbbcccc"), "DHH", "for host memory");
	is_int(stats(PFX_TIER_DEVICE).free, 1, "where they were is not free");
	is_int(stats(PFX_TIER_DEVICE).moving, 2, "before they are copied");
	clean("spilling");
	world_settle();
	is_int(stats(PFX_TIER_DEVICE).free, 3, "now it is");
	path = open_on("aaaabbbbccccdd", 4, 12);
	is_int(pfx_path_source(path, 1, &source), 0, "the second block has a source");
	is_int(source.tier, PFX_TIER_HOST, "in host memory");
	extend_to(path, "aaaabbbb");
	same(where("aaaabbbbcccc"), "DDH", "published, it is on the device again");
	is_int(stats(PFX_TIER_HOST).free, 3, "and its host block is free");
	extend_to(path, "aaaabbbbccccdd");
	same(where("aaaabbbbccccdd"), "DDDD", "computing what is in host memory promotes as well");
	is_int(pfx_path_reach(path), 14, "nothing is ahead any more");
	clean("promoted");
	pfx_path_close(path);
	pfx_cache_close(cache);
}

/*
 *   root -- aaaa bbb        a path has aaaab: its own block is too short for the tree's
 *            D    H
 */
static void test_shorter_than_the_tree(void)
{
	struct pfx_path *path;
	uint32_t slot;

	setup(4, 4, 0, PFX_SAVE_OFF);
	insert("aaaabbb");
	pfx_cache_press(cache, 1);
	world_settle();
	path = open_on("aaaab", 4, 5);
	extend_to(path, "aaaab");
	same(where("aaaabbb"), "DH", "the tree keeps its longer block");
	slot = pfx_path_mark(path);
	ok(slot < 4, "the place can be marked");
	clean("a block of its own");
	extend_to(path, "aaaabbbc");
	same(where("aaaabbbc"), "DD", "going on, the path outdoes it");
	is_int(stats(PFX_TIER_HOST).free, 4, "and it goes");
	clean("outdone");
	pfx_path_close(path);
	pfx_cache_close(cache);
}

/*
 *   p1 holds aaaab, which aaaabc (D, then H) outdoes: its block is loose.
 *   p1 computes c and more: its block becomes the tree's, host memory is let go.
 */
static void test_loose_rejoins(void)
{
	struct pfx_path *p1, *reader;

	setup(8, 4, 0, PFX_SAVE_OFF);
	p1 = open_on("aaaab", 0, 0);
	extend_to(p1, "aaaab");
	reader = open_on("aaaab", 5, 5);
	insert("aaaabc");
	clean("loose");
	pfx_cache_press(cache, 0);
	world_settle();
	same(where("aaaabc"), "DH", "the longer block is in host memory");
	extend_to(p1, "aaaabcd");
	same(where("aaaabcd"), "DD", "the loose one, now longer, takes its place");
	clean("outdone by the loose one");
	pfx_path_close(p1);
	pfx_path_close(reader);
	pfx_cache_press(cache, 0);
	world_settle();

	/* The same, but it computes just what there is, and on behind it. */
	p1 = open_on("xxxxy", 0, 0);
	extend_to(p1, "xxxxy");
	reader = open_on("xxxxy", 5, 5);
	insert("xxxxyzzz");
	pfx_cache_press(cache, 0);
	world_settle();
	same(where("xxxxyzzz"), "DH", "the full block is in host memory");
	extend_to(p1, "xxxxyzzzwwww");
	same(where("xxxxyzzzwwww"), "DDD", "the loose block is the tree's");
	is_int(stats(PFX_TIER_DEVICE).pinned, 3, "and held");
	clean("rejoined");
	pfx_path_close(p1);
	is_int(stats(PFX_TIER_DEVICE).pinned, 2, "by the reader too");
	pfx_path_close(reader);
	clean("let go");
	pfx_cache_close(cache);
}

/* A path goes while its block is filled: the block waits for the copy. */
static void test_cancel_while_fetching(void)
{
	struct pfx_path *path;
	struct pfx_block_copy copy;
	struct pfx_source source;
	struct pfx_flushed flushed;
	uint32_t n;

	setup(2, 2, 0, PFX_SAVE_OFF);
	insert("aaaabbbb");
	pfx_cache_press(cache, 1);
	world_settle();
	path = open_on("aaaabbbb", 4, 8);
	is_int(pfx_path_reserve(path, 8, &copy), 0, "a block to fetch into");
	is_int(pfx_path_source(path, 1, &source), 0, "and where from");
	world_fetch(source.tier, source.id, pfx_path_blocks(path, &n)[1], 0);
	pfx_path_close(path);
	is_int(stats(PFX_TIER_DEVICE).free, 0, "cancelled: the block is not free");
	pfx_cache_flush(cache, NULL, PFX_TIER_ALL, &flushed);
	is_int(flushed.blocks[0] + flushed.blocks[1], 2, "flushed: one block in each tier");
	is_int(stats(PFX_TIER_HOST).free, 1, "the one that is read is not free");
	clean("flushed while copies fly");
	world_settle();
	is_int(stats(PFX_TIER_DEVICE).free + stats(PFX_TIER_HOST).free, 4, "all is free in the end");
	pfx_cache_close(cache);
}

/* Records are a beginning of the prefix, whatever comes first, and go with what is flushed. */
static void test_records(void)
{
	struct pfx_save_order a, b, none;
	struct pfx_flushed flushed;
	uint32_t record;

	setup(4, 0, 4, PFX_SAVE_ALL);
	insert("aaaabbbb");
	is_int(pfx_cache_next_save(cache, &a) + pfx_cache_next_save(cache, &b), 2, "two orders");
	is_int(b.parent_record, a.record, "the first is the parent of the second");
	is_int(pfx_cache_next_save(cache, &none), 0, "and no third");
	pfx_cache_saved(cache, b.record, 0);
	is_int(stats(PFX_TIER_DISK).cached, 0, "the child counts only");
	clean("one is there, but not what is before it");
	pfx_cache_saved(cache, a.record, 0);
	is_int(stats(PFX_TIER_DISK).cached, 2, "when the parent does");
	pfx_cache_press(cache, 0);
	same(where("aaaabbbb"), "RR", "without host memory it is on disk only");
	pfx_cache_flush(cache, NULL, 1u << PFX_TIER_DISK, &flushed);
	is_int(flushed.blocks[PFX_TIER_DISK], 2, "flushed from there");
	same(where("aaaabbbb"), "", "it is nowhere");
	is_int(pfx_cache_next_delete(cache, &record), 1, "and to be deleted");
	pfx_cache_deleted(cache, record);
	clean("one deleted");
	is_int(pfx_cache_next_delete(cache, &record), 1, "both of it");
	pfx_cache_deleted(cache, record);
	is_int(stats(PFX_TIER_DISK).free, 4, "then the records are free");
	/* What fails takes what was ordered behind it along. */
	insert("aaaabbbb");
	is_int(pfx_cache_next_save(cache, &a) + pfx_cache_next_save(cache, &b), 2, "two orders again");
	pfx_cache_saved(cache, a.record, -EIO);
	pfx_cache_saved(cache, b.record, 0);
	is_int(stats(PFX_TIER_DISK).cached, 0, "none is kept");
	is_int(pfx_cache_next_delete(cache, &record), 1, "the second is deleted");
	is_int(record, b.record, "indeed that one");
	is_int(pfx_cache_next_save(cache, &none), 0, "nothing is tried again by itself");
	clean("failed");
	pfx_cache_deleted(cache, record);
	pfx_cache_close(cache);
}

/*
 *   aaaa bbb    a record of the part, then of the whole; siblings hand a record on
 *    R    R
 */
static void test_partial_records(void)
{
	struct pfx_path *path;
	uint32_t record;

	setup(8, 0, 8, PFX_SAVE_OFF);
	insert("aaaabbb");
	save_all();
	is_int(stats(PFX_TIER_DISK).cached, 2, "a part of a block is saved, too");
	path = open_on("aaaabbbc", 7, 7);
	extend_to(path, "aaaabbbc");
	pfx_path_close(path);
	is_int(stats(PFX_TIER_DISK).cached, 2, "grown, it has the record of its part");
	pfx_cache_press(cache, 0);
	same(where("aaaabbbc"), "RR", "evicted, it is on disk");
	is_int(open_on("aaaabbbc", 0, 7) != NULL, 1, "as far as it was saved");
	clean("a shorter record");
	pfx_path_close(pfx_container_of(cache->paths.next, struct pfx_path, link));
	insert("aaaabbbc");
	save_all();
	is_int(pfx_cache_next_delete(cache, &record), 0, "the old record is gone");
	is_int(stats(PFX_TIER_DISK).cached, 2, "replaced by the fuller one");
	pfx_cache_press(cache, 0);
	pfx_path_close(open_on("aaaabbbc", 0, 8));
	clean("the whole record");
	pfx_cache_close(cache);
}

/* A source that cannot be read: all that hangs on it goes, for all who wanted it. */
static void test_lost(void)
{
	struct pfx_path *p1, *p2;

	setup(8, 0, 8, PFX_SAVE_ALL);
	insert("aaaabbbbccccdddd");
	save_all();
	pfx_cache_press(cache, 0);
	p1 = open_on("aaaabbbbccccdddd", 0, 16);
	p2 = open_on("aaaabbbbcccc", 0, 12);
	pfx_path_lost(p1, 2);
	is_int(pfx_path_reach(p1), 8, "it reaches to before that block");
	is_int(pfx_path_reach(p2), 8, "and so does another path");
	same(where("aaaabbbbccccdddd"), "RR", "nobody will find it");
	clean("lost");
	extend_to(p1, "aaaabbbbccccdddd");
	same(where("aaaabbbbccccdddd"), "DDDD", "computed, it is there again");
	pfx_path_close(p1);
	pfx_path_close(p2);
	clean("let go");
	pfx_cache_close(cache);
}

/* A lease stays through pressure, not through a flush. */
static void test_lease(void)
{
	struct pfx_path *lease, *big;
	struct pfx_flushed flushed;

	setup(8, 8, 0, PFX_SAVE_OFF);
	insert("aaaabbbb");
	insert("xxxx");
	lease = open_on("aaaabbbb", 8, 8);
	is_int(pfx_path_lease(lease), 0, "two blocks are leased");
	is_int(stats(PFX_TIER_DEVICE).cached, 3, "they count as cached");
	is_int(stats(PFX_TIER_DEVICE).leased, 2, "and as leased");
	is_int(pfx_cache_press(cache, 0), 1, "only the third goes");
	same(where("aaaabbbb"), "DD", "not they");
	insert("aaaabbbbccccdddd");
	big = open_on("aaaabbbbccccddddeeee", 16, 16);
	extend_to(big, "aaaabbbbccccddddeeee");
	is_int(pfx_path_lease(big), PFX_E_LIMIT, "more than half cannot be leased");
	is_int(pfx_path_len(big), 20, "and nothing has changed");
	pfx_path_close(big);
	clean("leased");
	pfx_cache_flush(cache, NULL, PFX_TIER_ALL, &flushed);
	is_int(flushed.in_use, 2, "a flush forgets them, but they stay in use");
	ok(pfx_path_apart(lease), "which the lease can tell");
	same(where("aaaabbbb"), "", "nobody finds them");
	clean("flushed");
	pfx_path_close(lease);
	world_settle();
	is_int(stats(PFX_TIER_DEVICE).free, 8, "closed, they are free");
	pfx_cache_close(cache);
}

/* What is kept goes last, what has ended first, and before a request is refused all goes. */
static void test_classes(void)
{
	struct pfx_path *path;

	setup(4, 0, 0, PFX_SAVE_OFF);
	pfx_cache_now(cache, 1000);
	path = open_on("kkkk", 0, 0);
	extend_to(path, "kkkk");
	pfx_path_keep_until(path, 5000);
	pfx_path_close(path);
	insert("oooo");
	path = open_on("eeee", 0, 0);
	extend_to(path, "eeee");
	pfx_path_last_turn(path);
	pfx_path_close(path);
	pfx_cache_press(cache, 2);
	same(where("eeee"), "", "what has ended goes first, though the youngest");
	pfx_cache_press(cache, 1);
	same(where("oooo"), "", "then what nothing is said of");
	same(where("kkkk"), "D", "what is kept stays, though the oldest");
	insert("yyyy");
	pfx_cache_now(cache, 5000);
	clean("its time is over");
	pfx_cache_press(cache, 1);
	same(where("kkkk"), "D", "then it is as if just used");
	pfx_cache_press(cache, 0);
	same(where("kkkk"), "", "no more than that");
	path = open_on("kkkk", 0, 0);
	extend_to(path, "kkkk");
	pfx_path_keep_until(path, 99000);
	pfx_path_close(path);
	path = open_on("aaaabbbbccccdddd", 0, 0);
	extend_to(path, "aaaabbbbccccdddd");
	same(where("kkkk"), "", "what is kept yields before a request is refused");
	pfx_path_close(path);
	clean("the end");
	pfx_cache_close(cache);
}

/* Each way of breaking an invariant of tiers by hand must be seen. */
static void test_check_sees(void)
{
	struct pfx_path *path;
	struct pfx_node *x;
	int seen = 0, tried = 0;

	setup(4, 4, 8, PFX_SAVE_OFF);
	insert("aaaabbbbccccdddd");
	save_all();
	pfx_cache_press(cache, 1);
	pfx_cache_evict(cache, PFX_TIER_HOST, NULL, 1);
	world_settle();
	same(where("aaaabbbbccccdddd"), "DHHR", "a block or two in each tier");
	path = open_on("aaaabbbb", 4, 8);
	x = path->ahead;
	clean("before");
#define SEES(member, wrong) do { \
	__typeof__(member) right_ = (member); \
	(member) = (wrong); \
	tried++; \
	if (pfx_cache_check(cache, NULL, NULL) > 0) { \
		seen++; \
	} else { \
		printf("# not seen: %s = %s\n", #member, #wrong); \
	} \
	(member) = right_; \
} while (0)
	SEES(x->n_dev, 1);
	SEES(x->n_mem, 0);
	SEES(x->saved, 2);
	SEES(x->worthy, 99);
	SEES(x->saving, 1);
	SEES(x->leases, 1);
	SEES(x->pins, 2);
	SEES(x->kids_in[PFX_TIER_HOST], 7);
	SEES(x->parent->kids_in[PFX_TIER_DISK], 0);
	SEES(x->keep_until, 5);
	SEES(x->kids->age, 99);
	SEES(x->kids->class, PFX_CLASS_ENDED);
	SEES(pfx_node_blocks(x, 2)[0], 9);
	SEES(pfx_node_records(x, 2)[0], pfx_node_records(x->parent, 2)[0]);
	SEES(path->reach, 3);
	SEES(path->leased, 1);
	SEES(cache->tier[PFX_TIER_HOST].pinned, 0);
	SEES(cache->tier[PFX_TIER_DEVICE].leased, 1);
	SEES(cache->tier[PFX_TIER_DEVICE].idle, 1);
	SEES(cache->tier[PFX_TIER_DISK].pool.state[pfx_node_records(x, 2)[0]], PFX_BLOCK_LEAVING);
	SEES(cache->tier[PFX_TIER_HOST].pool.holds[cache->tier[PFX_TIER_HOST].pool.free[0]], 1);
	SEES(cache->n_saving, 1);
	SEES(cache->n_to_save, 1);
	SEES(cache->n_leases, 1);
	is_int(seen, tried, "the check sees each of %d broken things", tried);
	clean("mended again");
	pfx_path_close(path);
	pfx_cache_close(cache);
}

#define DEEP 100000u

/* One token at a time with all tiers on; no call may take long for it. */
static void test_deep(void)
{
	uint32_t *tokens = pfx_xmalloc(DEEP * sizeof(*tokens));
	struct pfx_cache_opts opts = { .block_tokens = 4, .n_blocks = DEEP / 4 + 8,
		.n_host = DEEP / 8, .n_disk = DEEP / 2, .save = PFX_SAVE_ALL };
	struct pfx_path *path, *follower;
	struct pfx_save_order o;
	struct pfx_spill s;
	struct pfx_hit hit;
	uint32_t n_saved = 0, record;
	struct pfx_flushed flushed;
	int bad = 0;

	bad += pfx_cache_open(&cache, &opts) != 0 || pfx_cache_space(cache, "a", 1, &space) != 0;
	bad += pfx_path_open(cache, space, tokens, 0, NULL, &path) != 0;
	bad += pfx_path_open(cache, space, tokens, 0, NULL, &follower) != 0;
	for (uint32_t n = 1; n <= DEEP; n++) {
		struct pfx_block_copy copy;

		tokens[n - 1] = n % 7;
		bad += pfx_path_reserve(path, n, &copy) != 0;
		bad += pfx_path_publish(path, tokens, n) != 0;
		bad += n % 3 == 0 && pfx_path_follow(follower, tokens, n) != n;
	}
	is_int(bad, 0, "%u tokens one at a time", DEEP);
	while (pfx_cache_next_save(cache, &o)) {
		pfx_cache_saved(cache, o.record, 0);
		n_saved++;
	}
	is_int(n_saved, DEEP / 4, "every block is saved");
	is_int(pfx_cache_check(cache, say, NULL), 0, "check is clean: saved");
	pfx_path_close(path);
	pfx_path_close(follower);
	/* A host block that is being copied into does not make room for another. */
	while (pfx_cache_press(cache, 100) > 0) {
		while (pfx_cache_next_spill(cache, &s)) {
			pfx_cache_spilled(cache, &s, 1);
		}
	}
	pfx_cache_match(cache, space, tokens, DEEP, &hit);
	is_int(hit.tokens, DEEP, "all of it is found");
	ok(hit.tier_tokens[1] > 0 && hit.tier_tokens[2] > 0, "in all tiers: %u, %u, %u",
		hit.tier_tokens[0], hit.tier_tokens[1], hit.tier_tokens[2]);
	is_int(pfx_cache_check(cache, say, NULL), 0, "check is clean: pressed down");
	pfx_cache_flush(cache, NULL, 1u << PFX_TIER_DEVICE, &flushed);
	pfx_cache_match(cache, space, tokens, DEEP, &hit);
	is_int(hit.tier_tokens[2], DEEP, "flushed out of memory, it is on disk");
	pfx_cache_flush(cache, NULL, PFX_TIER_ALL, &flushed);
	while (pfx_cache_next_delete(cache, &record)) {
		pfx_cache_deleted(cache, record);
		n_saved--;
	}
	is_int(n_saved, 0, "flushed, every record is deleted");
	is_int(pfx_cache_check(cache, say, NULL), 0, "check is clean: flushed");
	is_int(bad, 0, "nothing failed");
	pfx_cache_close(cache);
	pfx_free(tokens);
}

int main(void)
{
	uint64_t live = pfx_alloc_live();

	test_spill_and_promote();
	test_shorter_than_the_tree();
	test_loose_rejoins();
	test_cancel_while_fetching();
	test_records();
	test_partial_records();
	test_lost();
	test_lease();
	test_classes();
	test_check_sees();
	test_deep();
	is_int(pfx_alloc_live(), live, "all memory is given back");
	return tap_done();
}
