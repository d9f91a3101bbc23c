/*
 * The prefix cache case by case: what the random test finds only by chance, what peers'
 * users reported, depth, and that the check does see broken invariants.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "radix/kids.h"
#include "radix/priv.h"
#include "tests/tap.h"

static struct pfx_cache *cache;
static struct pfx_space *space;

static void setup(uint32_t block_tokens, uint32_t n_blocks, uint32_t n_marks)
{
	struct pfx_cache_opts opts = {
		.block_tokens = block_tokens, .n_blocks = n_blocks, .n_marks = n_marks,
	};

	if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &space) < 0) {
		abort();
	}
}

static void say(void *arg, const char *problem)
{
	(void)arg;
	printf("#   %s\n", problem);
}

#define clean(what) is_int(pfx_cache_check(cache, say, NULL), 0, "check is clean: %s", what)

static struct pfx_cache_stats stats(void)
{
	struct pfx_cache_stats s;

	pfx_cache_stats(cache, &s);
	return s;
}

/* Tokens from a string, one a character. */
static uint32_t text(uint32_t *tokens, const char *s)
{
	uint32_t n = 0;

	while (s[n] != '\0') {
		tokens[n] = (unsigned char)s[n];
		n++;
	}
	return n;
}

static struct pfx_path *open_on(const char *s, uint32_t want)
{
	uint32_t tokens[256];
	struct pfx_path *path = NULL;
	struct pfx_hit hit;

	if (pfx_path_open(cache, space, tokens, text(tokens, s), &hit, &path) < 0) {
		abort();
	}
	is_int(pfx_path_len(path), want, "\"%s\" opens on %u tokens", s, want);
	return path;
}

/* Computes and publishes all of s; returns the copy that was ordered. */
static struct pfx_block_copy extend_to(struct pfx_path *path, const char *s)
{
	uint32_t tokens[256];
	uint32_t n = text(tokens, s);
	struct pfx_block_copy copy;

	is_int(pfx_path_reserve(path, n, &copy), 0, "room for \"%s\"", s);
	is_int(pfx_path_publish(path, tokens, n), 0, "\"%s\" is published", s);
	return copy;
}

static struct pfx_hit match(const char *s)
{
	uint32_t tokens[256];
	struct pfx_hit hit;

	pfx_cache_match(cache, space, tokens, text(tokens, s), &hit);
	return hit;
}

static pfx_block_t block_of(struct pfx_path *path, uint32_t i)
{
	uint32_t n;
	const pfx_block_t *table = pfx_path_blocks(path, &n);

	return i < n ? table[i] : PFX_BLOCK_NONE;
}

static void insert(const char *s)
{
	struct pfx_path *path;
	uint32_t tokens[256];
	struct pfx_block_copy copy;
	uint32_t n = text(tokens, s);

	if (pfx_path_open(cache, space, tokens, n, NULL, &path) < 0 ||
		pfx_path_reserve(path, n, &copy) < 0 || pfx_path_publish(path, tokens, n) < 0) {
		abort();
	}
	pfx_path_close(path);
}

/* Makes the cache give up so many blocks. */
static void squeeze(uint32_t n)
{
	struct pfx_path *path;
	struct pfx_block_copy copy;

	if (pfx_path_open(cache, NULL, NULL, 0, NULL, &path) < 0) {
		abort();
	}
	is_int(pfx_path_reserve(path, (stats().tier[0].free + n) * cache->block_tokens, &copy), 0,
		"%u blocks are given up", n);
	pfx_path_close(path);
}

/* Does f abort? */
static int aborts(void (*f)(void))
{
	pid_t child;
	int status = 0;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		/* What it says is no test point. */
		if (freopen("/dev/null", "w", stderr) == NULL ||
			freopen("/dev/null", "w", stdout) == NULL) {
			_exit(1);
		}
		f();
		_exit(0);
	}
	waitpid(child, &status, 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void release_twice(void)
{
	struct pfx_pool pool;
	pfx_block_t b;

	pfx_pool_init(&pool, 2);
	b = pfx_pool_take(&pool, PFX_BLOCK_FILLING);
	pfx_pool_release(&pool, b);
	pfx_pool_release(&pool, b);
}

static void release_in_copy(void)
{
	struct pfx_pool pool;
	pfx_block_t b;

	pfx_pool_init(&pool, 2);
	b = pfx_pool_take(&pool, PFX_BLOCK_FILLING);
	pfx_pool_move(&pool, b, PFX_BLOCK_READY);
	pfx_pool_hold(&pool, b);
	pfx_pool_release(&pool, b);
	pfx_pool_release(&pool, b);
}

static void take_from_none(void)
{
	struct pfx_pool pool;

	pfx_pool_init(&pool, 1);
	pfx_pool_take(&pool, PFX_BLOCK_FILLING);
	pfx_pool_take(&pool, PFX_BLOCK_FILLING);
}

static void take_too_many(void)
{
	struct pfx_pool pool;
	pfx_block_t blocks[3];

	pfx_pool_init(&pool, 2);
	pfx_pool_take_all(&pool, blocks, 3, PFX_BLOCK_FILLING);
}

static void publish_one_twice(void)
{
	struct pfx_pool pool;
	pfx_block_t blocks[2];

	pfx_pool_init(&pool, 2);
	pfx_pool_take_all(&pool, blocks, 2, PFX_BLOCK_FILLING);
	blocks[1] = blocks[0];
	pfx_pool_move_all(&pool, blocks, 2, PFX_BLOCK_FILLING, PFX_BLOCK_READY);
}

static void close_twice(void)
{
	struct pfx_path *path;
	struct pfx_node *node;

	setup(4, 8, 0);
	insert("abcdefgh");
	path = open_on("abcdefgh", 8);
	node = path->node;
	pfx_path_close(path);
	pfx_unpin(cache, node);
}

static void test_pool(void)
{
	static const struct {
		enum pfx_block_state from, to;
	} arrows[] = {
		{ PFX_BLOCK_FREE, PFX_BLOCK_FILLING }, { PFX_BLOCK_FREE, PFX_BLOCK_ARRIVING },
		{ PFX_BLOCK_FILLING, PFX_BLOCK_READY }, { PFX_BLOCK_FILLING, PFX_BLOCK_LEAVING },
		{ PFX_BLOCK_FILLING, PFX_BLOCK_FREE }, { PFX_BLOCK_ARRIVING, PFX_BLOCK_READY },
		{ PFX_BLOCK_ARRIVING, PFX_BLOCK_BAD }, { PFX_BLOCK_ARRIVING, PFX_BLOCK_LEAVING },
		{ PFX_BLOCK_READY, PFX_BLOCK_LEAVING }, { PFX_BLOCK_READY, PFX_BLOCK_FREE },
		{ PFX_BLOCK_BAD, PFX_BLOCK_LEAVING }, { PFX_BLOCK_BAD, PFX_BLOCK_FREE },
		{ PFX_BLOCK_LEAVING, PFX_BLOCK_FREE },
	};
	int n = 0;

	for (int from = 0; from < PFX_BLOCK_STATES; from++) {
		for (int to = 0; to < PFX_BLOCK_STATES; to++) {
			n += pfx_pool_may(from, to);
		}
	}
	is_int(n, sizeof(arrows) / sizeof(arrows[0]), "no more arrows between states than these");
	for (size_t i = 0; i < sizeof(arrows) / sizeof(arrows[0]); i++) {
		n -= pfx_pool_may(arrows[i].from, arrows[i].to);
	}
	is_int(n, 0, "and all of these");
	ok(aborts(release_twice), "a second release of a block is refused");
	ok(aborts(release_in_copy), "a block that a copy holds is not released twice");
	ok(aborts(take_from_none), "no block is taken out of nothing");
	ok(aborts(take_too_many), "nor more than there are at once");
	ok(aborts(publish_one_twice), "of many that are published none is there twice");
	ok(aborts(close_twice), "a pin is not given back twice");
}

/* sgl-project/mini-sglang PR 52: the matched node itself must be held, not its parents only. */
static void test_held_is_not_evicted(void)
{
	struct pfx_path *path, *other;
	struct pfx_block_copy copy;
	pfx_block_t first;

	setup(4, 8, 4);
	insert("aaaabbbbccccdd");
	insert("xxxxyyyy");
	path = open_on("aaaabbbbzz", 8);
	first = block_of(path, 0);
	is_int(stats().tier[0].pinned, 2, "two blocks are pinned");
	is_int(stats().tier[0].cached, 4, "four can go");
	is_int(pfx_path_open(cache, NULL, NULL, 0, NULL, &other), 0, "a hog");
	is_int(pfx_path_reserve(other, 7 * 4, &copy), PFX_E_FULL, "seven blocks are too many");
	is_int(stats().evicted_blocks, 0, "and nothing was evicted for them");
	is_int(pfx_path_reserve(other, 6 * 4, &copy), 0, "six can be had");
	is_int(stats().evicted_blocks, 4, "by evicting just the shortfall");
	clean("all evicted that can be");
	is_int(match("aaaabbbbcccc").tokens, 8, "what is held can be matched still");
	is_int(block_of(path, 0), first, "in the same blocks");
	pfx_path_close(path);
	is_int(stats().tier[0].pinned, 0, "the count goes back to zero");
	is_int(pfx_path_reserve(other, 8 * 4, &copy), 0, "and then they can go");
	is_int(match("aaaa").tokens, 0, "all of it");
	pfx_path_close(other);
	clean("the end");
	pfx_cache_close(cache);
}

/* sgl-project/mini-sglang PR 142: the table first, then the duplicates. */
static void test_same_prefix_twice(void)
{
	struct pfx_path *p1, *p2;
	struct pfx_block_copy copy;
	uint32_t tokens[16];

	setup(4, 8, 0);
	p1 = open_on("aaaabbbbcc", 0);
	p2 = open_on("aaaabbbbcc", 0);
	is_int(pfx_path_reserve(p1, 10, &copy), 0, "both compute it");
	is_int(pfx_path_reserve(p2, 12, &copy), 0, "at the same time");
	is_int(stats().tier[0].free, 2, "in blocks of their own");
	text(tokens, "aaaabbbbcc");
	is_int(pfx_path_publish(p1, tokens, 10), 0, "one publishes");
	is_int(pfx_path_publish(p2, tokens, 10), 0, "then the other");
	for (uint32_t i = 0; i < 3; i++) {
		is_int(block_of(p2, i), block_of(p1, i), "block %u is shared", i);
	}
	is_int(stats().tier[0].free, 5, "the duplicates are free");
	is_int(stats().duplicate_blocks, 3, "and counted");
	copy = extend_to(p2, "aaaabbbbccd");
	is_int(copy.n, 2, "the one that may not write in the tail copies it");
	is_int(copy.src, block_of(p1, 2), "from the other's block");
	copy = extend_to(p1, "aaaabbbbcce");
	is_int(copy.n, 0, "the one that may does not");
	clean("two replies");
	pfx_path_close(p1);
	pfx_path_close(p2);
	is_int(match("aaaabbbbccd").tokens, 11, "the first reply is kept");
	is_int(match("aaaabbbbcce").tokens, 11, "and the second");
	clean("the end");
	pfx_cache_close(cache);
}

/* Splits under a pin, given back in every order, with everything evicted in between. */
static void test_pin_split_evict(void)
{
	static const char *const prompts[] = { "aaaabbbbccccdddd", "aaaabbbbccxx", "aaaabb", "aaaa" };
	static const uint32_t lens[] = { 16, 10, 6, 4 };
	int order[] = { 0, 1, 2, 3 };

	for (int round = 0; round < 24; round++) {
		struct pfx_path *path[4];

		setup(4, 8, 0);
		insert(prompts[0]);
		for (int i = 0; i < 4; i++) {
			path[i] = open_on(prompts[i], lens[i]);
		}
		is_int(stats().tier[0].pinned, 4, "all four blocks are pinned");
		for (int i = 0; i < 4; i++) {
			uint32_t held = 0;

			pfx_path_close(path[order[i]]);
			for (int k = i + 1; k < 4; k++) {
				uint32_t n = (lens[order[k]] + 3) / 4;

				held = n > held ? n : held;
			}
			is_int(stats().tier[0].pinned, held, "after closing %d: %u", order[i], held);
			squeeze(stats().tier[0].cached);
			is_int(stats().tier[0].free, 8 - held, "the rest can be evicted");
			is_int(pfx_cache_check(cache, say, NULL), 0, "check is clean");
		}
		pfx_cache_close(cache);
		/* Next permutation. */
		for (int i = 2; i >= 0; i--) {
			int j = 3, t;

			if (order[i] > order[i + 1]) {
				continue;
			}
			while (order[j] < order[i]) {
				j--;
			}
			t = order[i], order[i] = order[j], order[j] = t;
			for (int a = i + 1, b = 3; a < b; a++, b--) {
				t = order[a], order[a] = order[b], order[b] = t;
			}
			break;
		}
	}
}

static void test_right_to_append(void)
{
	struct pfx_path *p1, *p2, *reader;
	struct pfx_block_copy copy;
	pfx_block_t tail;

	setup(4, 16, 0);
	insert("aaaabb");
	p1 = open_on("aaaabb", 6);
	p2 = open_on("aaaabb", 6);
	reader = open_on("aaaabx", 5);
	tail = block_of(p1, 1);
	copy = extend_to(p1, "aaaabbc");
	is_int(copy.n, 0, "nobody owned the tail: the first writes in place");
	is_int(block_of(p1, 1), tail, "in the same block");
	copy = extend_to(p2, "aaaabbd");
	is_int(copy.n, 2, "the second gets a copy of what is before");
	is_int(copy.src, tail, "of that block");
	is_int(block_of(reader, 1), tail, "who reads it keeps it");
	copy = extend_to(reader, "aaaabx");
	is_int(copy.n, 1, "and copies less");
	is_int(match("aaaabbc").tokens, 7, "first reply");
	is_int(match("aaaabbd").tokens, 7, "second reply");
	is_int(match("aaaabxy").tokens, 6, "third reply");
	clean("three tails");
	pfx_path_close(p1);
	p1 = open_on("aaaabbc", 7);
	copy = extend_to(p1, "aaaabbcceeee");
	is_int(copy.n, 0, "the right goes on to who comes next");
	is_int(pfx_path_reserve(p1, 12, &copy), 0, "nothing more to reserve");
	is_int(copy.n, 0, "and nothing to copy");
	pfx_path_close(p1);
	pfx_path_close(p2);
	pfx_path_close(reader);
	clean("the end");
	pfx_cache_close(cache);
}

/* A block that holds a beginning of what another holds goes, once nobody is held to it. */
static void test_redundant(void)
{
	struct pfx_path *p1, *p2;
	uint32_t slot;

	setup(4, 8, 4);
	p1 = open_on("aaaab", 0);
	extend_to(p1, "aaaab");
	slot = pfx_path_mark(p1);
	p2 = open_on("aaaab", 5);
	is_int(extend_to(p2, "aaaabc").n, 1, "p1 may write there, so p2 copies");
	is_int(stats().tier[0].free, 5, "block b is held by p1 alone now");
	is_int(match("aaaab").mark, slot, "its mark moved to the longer block");
	clean("a loose block");
	extend_to(p1, "aaaabd");
	is_int(stats().tier[0].free, 5, "p1 went another way: its block is in the tree again");
	is_int(match("aaaabd").tokens, 6, "and can be matched");
	is_int(match("aaaab").mark, slot, "the mark is found whichever block has it");
	pfx_path_close(p1);
	pfx_path_close(p2);
	clean("both closed");

	/* Loose, then the longer one is evicted: what is held must be found again. */
	p1 = open_on("xxxxy", 0);
	extend_to(p1, "xxxxy");
	p2 = open_on("xxxxy", 5);
	extend_to(p2, "xxxxyz");
	pfx_path_close(p2);
	squeeze(stats().tier[0].cached);
	clean("the longer one is gone");
	is_int(match("xxxxyz").tokens, 5, "the shorter one is matched again");
	is_int(match("xxxxyz").end, PFX_END_EVICTED, "and it is known that more was there");
	pfx_path_close(p1);
	is_int(stats().tier[0].cached, 2, "it stays when it is let go");

	/* Loose and let go: gone at once. */
	p1 = open_on("ppppq", 0);
	extend_to(p1, "ppppq");
	p2 = open_on("ppppq", 5);
	extend_to(p2, "ppppqr");
	is_int(stats().tier[0].running, 3, "two blocks for q");
	pfx_path_close(p1);
	is_int(stats().tier[0].running, 2, "one of them goes");
	pfx_path_close(p2);
	clean("the end");
	pfx_cache_close(cache);
}

static void test_marks(void)
{
	struct pfx_path *path, *p2;
	uint32_t a, b, c;

	setup(4, 16, 2);
	path = open_on("aaaabb", 0);
	is_int(pfx_path_mark(path), PFX_MARK_NONE, "nothing to mark yet");
	extend_to(path, "aaaabb");
	a = pfx_path_mark(path);
	ok(a < 2, "a slot");
	is_int(pfx_path_mark(path), a, "the same slot for the same place");
	extend_to(path, "aaaabbccccdd");
	b = pfx_path_mark(path);
	ok(b < 2 && b != a, "another slot");
	is_int(match("aaaabb").mark, a, "found inside a path");
	is_int(match("aaaabbccccdd").mark, b, "and at its end");
	is_int(match("aaaabbcc").mark, PFX_MARK_NONE, "not between them");
	is_int(match("aaaabbx").mark, PFX_MARK_NONE, "nor when the prompt goes on");
	/* Opening on a marked place makes the mark young, so the other one yields. */
	p2 = open_on("aaaabb", 6);
	extend_to(p2, "aaaabbzz");
	c = pfx_path_mark(p2);
	is_int(c, b, "the oldest yields");
	is_int(match("aaaabb").mark, a, "the one just used stays");
	is_int(match("aaaabbccccdd").mark, PFX_MARK_NONE, "the other is gone");
	is_int(stats().evicted_marks, 1, "and counted");
	pfx_path_close(path);
	pfx_path_close(p2);
	clean("two marks");
	/* The mark at "aaaabb" is shared by two blocks: it dies with the last of them. */
	is_int(stats().tier[0].cached, 4, "aaaa, bbcc, ccdd, bbzz");
	squeeze(2);
	is_int(match("aaaabb").tokens, 6, "one block of the two is left");
	is_int(match("aaaabb").mark, a, "with the mark");
	squeeze(1);
	is_int(match("aaaabb").mark, PFX_MARK_NONE, "then it dies");
	is_int(stats().marks, 0, "no mark is left");
	clean("the end");
	pfx_cache_close(cache);
	setup(4, 4, 0);
	path = open_on("aa", 0);
	extend_to(path, "aa");
	is_int(pfx_path_mark(path), PFX_MARK_NONE, "no slots, no mark");
	pfx_path_close(path);
	pfx_cache_close(cache);
}

/* A mark at a block's end stays when the block behind it goes. */
static void test_mark_at_a_block_end(void)
{
	struct pfx_path *path;
	uint32_t a;

	setup(4, 16, 2);
	path = open_on("aaaabb", 0);
	extend_to(path, "aaaa");
	a = pfx_path_mark(path);
	extend_to(path, "aaaabb");
	pfx_path_close(path);
	squeeze(1);
	is_int(match("aaaa").mark, a, "the mark at the end of what is left stays");
	is_int(stats().evicted_marks, 0, "and none was evicted");
	pfx_cache_close(cache);
}

/* What was flushed must not come back when the block that outdid it is evicted. */
static void test_flushed_stays_flushed(void)
{
	struct pfx_path *p1, *p2;
	struct pfx_flushed gone;

	setup(4, 8, 0);
	p1 = open_on("ab", 0);
	extend_to(p1, "ab");
	p2 = open_on("ab", 2);
	extend_to(p2, "abc");
	pfx_path_close(p2);
	clean("ab is loose");
	pfx_cache_flush(cache, space, PFX_TIER_ALL, &gone);
	p2 = open_on("xy", 0);
	extend_to(p2, "xy");
	insert("zz");
	squeeze(1);
	is_int(match("zz").tokens, 0, "something else was evicted");
	is_int(match("ab").tokens, 0, "and ab is forgotten");
	clean("flushed while loose");
	pfx_path_close(p1);
	pfx_path_close(p2);
	is_int(stats().tier[0].free, 7, "xy is left");
	pfx_cache_close(cache);
}

/* The jump table may name a wrong child; tokens decide. */
static void test_false_jump(void)
{
	struct pfx_node *x, *y;

	setup(4, 16, 0);
	insert("aaaaa");
	insert("bbbbb");
	insert("ccccc");
	insert("ddddd");
	x = pfx_kids_first(&space->root);
	y = pfx_kids_next(x);
	pfx_jump_remove(&cache->jump, x);
	pfx_jump_add(&cache->jump, x, pfx_tree_digest(cache, y, 4));
	is_int(match("aaaaa").tokens, 5, "found without a jump");
	is_int(match("bbbbb").tokens, 5, "found in spite of a false jump");
	pfx_cache_close(cache);
}

static void test_ends(void)
{
	setup(4, 6, 0);
	is_int(match("aaaabbbb").end, PFX_END_NEVER_SEEN, "nothing cached");
	is_int(match("").end, PFX_END_WHOLE, "the empty prompt is whole");
	insert("aaaabbbbcc");
	is_int(match("aaaabbbbcc").end, PFX_END_WHOLE, "whole");
	is_int(match("aaaabbbb").end, PFX_END_WHOLE, "whole inside");
	is_int(match("aaaabbbbccdd").end, PFX_END_NEVER_SEEN, "it stops here");
	is_int(match("aaaabbbx").end, PFX_END_DIVERGED, "other tokens inside a block");
	is_int(match("aaaabbbx").tokens, 7, "behind seven");
	is_int(match("aaaaxxxx").end, PFX_END_DIVERGED, "other tokens at a block's start");
	squeeze(1);
	is_int(match("aaaabbbbcc").tokens, 8, "the tail was evicted");
	is_int(match("aaaabbbbcc").end, PFX_END_EVICTED, "so it says");
	is_int(match("aaaabbbbc").end, PFX_END_EVICTED, "also with less of it");
	is_int(match("aaaabbbbx").end, PFX_END_NEVER_SEEN, "but not for other tokens");
	squeeze(2);
	is_int(match("aaaabbbbcc").tokens, 0, "all evicted");
	is_int(match("aaaabbbbcc").end, PFX_END_EVICTED, "so it says");
	insert("aaxx");
	is_int(match("aaaa").end, PFX_END_EVICTED, "evicted outdoes diverged");
	is_int(match("aaay").end, PFX_END_DIVERGED, "unless the tokens are other ones");
	insert("aaaabbbbcc");
	is_int(match("aaaabbbbcc").end, PFX_END_WHOLE, "computed again");
	pfx_cache_close(cache);
}

static void test_flush(void)
{
	struct pfx_path *path;
	struct pfx_space *other;
	struct pfx_flushed gone;
	struct pfx_hit hit;
	uint32_t tokens[16], n = text(tokens, "aaaabbbb");

	setup(4, 16, 4);
	pfx_cache_space(cache, "b", 1, &other);
	insert("aaaabbbbcccc");
	insert("xxxx");
	path = open_on("aaaabb", 6);
	is_int(pfx_path_publish(path, tokens, 6), 0, "publishing nothing new is fine");
	pfx_path_mark(path);
	pfx_cache_flush(cache, other, PFX_TIER_ALL, &gone);
	is_int(gone.blocks[0] + gone.in_use, 0, "the other space has nothing to flush");
	pfx_cache_flush(cache, space, PFX_TIER_ALL, &gone);
	is_int(gone.blocks[0], 2, "cccc and xxxx are freed");
	is_int(gone.in_use, 2, "aaaa and bbbb are in use");
	is_int(stats().tier[0].running, 2, "and running");
	is_int(stats().tier[0].cached, 0, "nothing is cached");
	is_int(stats().marks, 0, "no marks either");
	is_int(stats().nodes, 0, "nor nodes");
	is_int(match("aaaa").tokens, 0, "nobody can match them");
	is_int(match("aaaabbbbcccc").end, PFX_END_NEVER_SEEN, "and nobody remembers");
	clean("flushed");
	is_int(extend_to(path, "aaaabbyy").n, 2, "the path goes on");
	is_int(pfx_path_mark(path), PFX_MARK_NONE, "but marks nothing");
	is_int(match("aaaa").tokens, 0, "and shows nothing");
	insert("aaaabbbb");
	is_int(match("aaaabbbb").tokens, 8, "others compute it anew");
	pfx_cache_flush(cache, NULL, PFX_TIER_ALL, &gone);
	is_int(gone.blocks[0], 2, "flushed again: the new ones");
	is_int(gone.in_use, 3, "the path's are in use as before");
	clean("flushed twice");
	pfx_path_close(path);
	is_int(stats().tier[0].free, 16, "closing frees them");
	is_int(pfx_path_open(cache, NULL, tokens, n, &hit, &path), 0, "a private path");
	is_int(hit.end, PFX_END_NEVER_SEEN, "finds nothing");
	extend_to(path, "aaaabbbb");
	is_int(match("aaaa").tokens, 0, "and leaves nothing");
	is_int(pfx_path_follow(path, tokens, n), 8, "follow is no use to it");
	pfx_path_close(path);
	is_int(stats().tier[0].free, 16, "all free");
	clean("the end");
	pfx_cache_close(cache);
}

static void test_follow(void)
{
	struct pfx_path *leader, *follower;
	struct pfx_block_copy copy;
	uint32_t tokens[32], n = text(tokens, "aaaabbbbccccdd");

	setup(4, 16, 0);
	leader = open_on("aaaabbbbccccdd", 0);
	follower = open_on("aaaabbbbccccdd", 0);
	is_int(pfx_path_follow(follower, tokens, n), 0, "nothing to follow yet");
	extend_to(leader, "aaaabb");
	is_int(pfx_path_follow(follower, tokens, n), 6, "as far as it goes");
	extend_to(leader, "aaaabbbbcc");
	is_int(pfx_path_follow(follower, tokens, n), 10, "and on");
	is_int(pfx_path_follow(follower, tokens, 10), 10, "no further than asked");
	is_int(stats().tier[0].running, 3, "in the same blocks");
	pfx_path_close(leader);
	is_int(stats().tier[0].running, 3, "which outlive the leader");
	is_int(pfx_path_reserve(follower, 14, &copy), 0, "the follower takes over");
	is_int(copy.n, 0, "in place");
	is_int(pfx_path_follow(follower, tokens, n), 10, "holding more, it does not follow");
	is_int(pfx_path_publish(follower, tokens, n), 0, "and publishes");
	clean("followed");
	pfx_path_close(follower);
	clean("the end");
	pfx_cache_close(cache);
}

static void test_spaces(void)
{
	static struct pfx_space *many[200];
	struct pfx_space *again;
	int same = 0;
	struct pfx_hit hit;
	uint32_t tokens[4] = { 1, 2, 3, 4 };

	setup(4, 8, 0);
	for (uint32_t i = 0; i < 200; i++) {
		pfx_cache_space(cache, &i, sizeof(i), &many[i]);
	}
	for (uint32_t i = 0; i < 200; i++) {
		pfx_cache_space(cache, &i, sizeof(i), &again);
		same += again == many[i];
	}
	is_int(same, 200, "a name stands for one space, also after the table has grown");
	pfx_cache_space(cache, NULL, 0, &again);
	ok(again != space, "the empty name is a name");
	text(tokens, "aaaa");
	insert("aaaa");
	pfx_cache_match(cache, many[7], tokens, 4, &hit);
	is_int(hit.tokens, 0, "spaces share nothing");
	clean("many spaces");
	for (uint32_t i = 0; i < 200; i++) {
		pfx_space_release(many[i]);
		pfx_space_release(many[i]);
	}
	for (uint32_t i = 0; i < 2000; i++) {
		uint64_t name = i + (1ull << 40);

		pfx_cache_space(cache, &name, sizeof(name), &again);
		pfx_space_release(again);
	}
	ok(stats().spaces < 600, "names used once are forgotten: %u are left", stats().spaces);
	is_int(match("aaaa").tokens, 4, "but no space that holds something");
	clean("few spaces");
	pfx_cache_close(cache);
}

static void test_open(void)
{
	static const struct pfx_cache_opts bad[] = {
		{ .block_tokens = 0, .n_blocks = 8 },
		{ .block_tokens = 3, .n_blocks = 8 },
		{ .block_tokens = 512, .n_blocks = 8 },
		{ .block_tokens = 4, .n_blocks = 0 },
		{ .block_tokens = 4, .n_blocks = 8, .policy = (enum pfx_policy)99 },
	};
	uint64_t live = pfx_alloc_live();
	int refused = 0, opened = 0;
	struct pfx_cache *c;

	for (int i = 0; i < 5; i++) {
		refused += pfx_cache_open(&c, &bad[i]) == -EINVAL;
	}
	is_int(refused, 5, "impossible sizes are refused");
	for (uint64_t seed = 0; seed < 200; seed++) {
		struct pfx_cache_opts opts = { .block_tokens = 4, .n_blocks = 8, .n_marks = 4 };

		pfx_alloc_fail(seed, 6);
		if (pfx_cache_open(&c, &opts) == 0) {
			opened++;
			pfx_cache_close(c);
		}
		pfx_alloc_fail(0, 0);
	}
	ok(opened > 0 && opened < 200, "an open that fails for memory (%d did not) leaves nothing",
		opened);
	is_int(pfx_alloc_live(), live, "indeed nothing");
	pfx_cache_close(NULL);
	pfx_path_close(NULL);
}

#define DEEP 100000u

/* One token at a time; with a follower each token is a node of its own. */
static void test_deep(uint32_t block_tokens, int follow)
{
	uint32_t *tokens = pfx_xmalloc((DEEP + 1) * sizeof(*tokens));
	struct pfx_path *path, *follower;
	struct pfx_block_copy copy;
	struct pfx_flushed gone;
	struct pfx_hit hit;
	int bad = 0;

	setup(block_tokens, DEEP + 8, 4);
	for (uint32_t i = 0; i <= DEEP; i++) {
		tokens[i] = i % 7;
	}
	bad += pfx_path_open(cache, space, tokens, 0, NULL, &path) != 0;
	bad += pfx_path_open(cache, space, tokens, 0, NULL, &follower) != 0;
	for (uint32_t n = 1; n <= DEEP; n++) {
		bad += pfx_path_reserve(path, n, &copy) != 0;
		bad += pfx_path_publish(path, tokens, n) != 0;
		if (follow) {
			bad += pfx_path_follow(follower, tokens, n) != n;
		}
	}
	is_int(bad, 0, "%u tokens one at a time, block %u%s", DEEP, block_tokens,
		follow ? ", followed" : "");
	printf("# %llu nodes, %.2f bytes a token\n", (unsigned long long)stats().nodes,
		(double)stats().index_bytes / DEEP);
	ok(follow ? stats().nodes >= DEEP / block_tokens : stats().nodes == 1, "as many nodes as due");
	clean("deep");
	pfx_cache_match(cache, space, tokens, DEEP, &hit);
	is_int(hit.tokens, DEEP, "match");
	pfx_path_close(path);
	pfx_path_close(follower);
	is_int(stats().nodes, 1, "let go, it is one node");
	clean("let go");
	/* Cut it up: branches from every so often. */
	for (uint32_t n = 1; n < DEEP; n += 997) {
		uint32_t was = tokens[n];

		tokens[n] = 1000;
		bad += pfx_path_open(cache, space, tokens, n + 1, &hit, &path) != 0;
		bad += hit.tokens != n;
		bad += pfx_path_reserve(path, n + 1, &copy) != 0;
		bad += pfx_path_publish(path, tokens, n + 1) != 0;
		tokens[n] = was;
		pfx_path_close(path);
	}
	is_int(bad, 0, "a hundred branches");
	clean("branches");
	squeeze(stats().tier[0].cached / 2);
	clean("half of it evicted");
	bad += pfx_path_open(cache, space, tokens, DEEP, NULL, &path) != 0;
	pfx_cache_flush(cache, NULL, PFX_TIER_ALL, &gone);
	clean("flushed");
	pfx_path_close(path);
	is_int(stats().tier[0].free, DEEP + 8, "all blocks are back");
	pfx_cache_close(cache);
	pfx_free(tokens);
}

/* Very many leaves: a victim must not cost more with more of them. */
static void test_many_leaves(void)
{
	enum { LEAVES = 100000 };
	struct pfx_path *path;
	struct pfx_block_copy copy;
	int bad = 0;

	setup(4, LEAVES, 0);
	for (uint32_t i = 0; i < LEAVES; i++) {
		uint32_t tokens[4] = { i, 7, i, i };

		bad += pfx_path_open(cache, space, tokens, 4, NULL, &path) != 0;
		bad += pfx_path_reserve(path, 4, &copy) != 0;
		bad += pfx_path_publish(path, tokens, 4) != 0;
		pfx_path_close(path);
	}
	is_int(bad, 0, "%d leaves below one root", LEAVES);
	clean("many leaves");
	is_int(pfx_path_open(cache, NULL, NULL, 0, NULL, &path), 0, "a hog");
	for (uint32_t i = 1; i <= LEAVES; i++) {
		uint32_t tokens[4] = { i, 7, i, i };
		struct pfx_hit hit;

		bad += pfx_path_reserve(path, i * 4, &copy) != 0;
		pfx_cache_match(cache, space, tokens, 4, &hit);
		bad += i < LEAVES && hit.tokens != 4;
	}
	is_int(bad, 0, "evicted one by one, the oldest first");
	is_int(stats().evicted_blocks, LEAVES, "and not one more");
	is_int(stats().nodes, 0, "all of them");
	pfx_path_close(path);
	pfx_cache_close(cache);
}

/* Each way of breaking an invariant by hand must be seen. */
static void test_check_sees(void)
{
	struct pfx_path *path;
	struct pfx_node *x;
	uint32_t slot, seen = 0, tried = 0;

	setup(4, 16, 4);
	insert("aaaabbbbcc");
	insert("aaaaxxxxyyyy");
	path = open_on("aaaabbbbcc", 10);
	slot = pfx_path_mark(path);
	x = path->node;
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
	SEES(x->pins, 2);
	SEES(x->parent->pins, 0);
	SEES(x->start, 8);
	SEES(x->n, 5);
	SEES(x->digest, 1);
	SEES(x->run[0], 'z');
	SEES(pfx_node_blocks(x, 2)[0], 15);
	SEES(pfx_node_blocks(x, 2)[0], pfx_node_blocks(x, 2)[1]);
	SEES(x->marks, PFX_MARK_NONE);
	SEES(x->state, PFX_NODE_LOOSE);
	SEES(x->tag, x->tag + 1);
	SEES(x->space, NULL);
	SEES(x->prio, x->prio ^ UINT32_MAX);
	SEES(cache->marks.slot[slot].pos, 3);
	SEES(cache->marks.used, 2);
	SEES(cache->nodes, 9);
	SEES(cache->tokens, 9);
	SEES(cache->index_bytes, 9);
	SEES(cache->tier[0].pinned, 1);
	SEES(cache->tier[0].loose, 1);
	SEES(space->loose_blocks, 1);
	SEES(cache->tier[0].pool.count[PFX_BLOCK_FREE], 3);
	SEES(cache->tier[0].pool.state[path->table[0]], PFX_BLOCK_FILLING);
	SEES(cache->tier[0].pool.free[0], path->table[0]);
	SEES(path->table[0], path->table[1]);
	SEES(path->len, 50);
	SEES(path->in_tree, 3);
	SEES(path->n_tree, 1);
	SEES(path->node, x->parent);
	is_int(seen, tried, "the check sees each of %u broken things", tried);
	clean("mended again");
	pfx_path_close(path);
	pfx_cache_close(cache);
}

int main(void)
{
	uint64_t live = pfx_alloc_live();

	test_pool();
	test_held_is_not_evicted();
	test_same_prefix_twice();
	test_pin_split_evict();
	test_right_to_append();
	test_redundant();
	test_marks();
	test_mark_at_a_block_end();
	test_flushed_stays_flushed();
	test_false_jump();
	test_ends();
	test_flush();
	test_follow();
	test_spaces();
	test_open();
	test_deep(1, 0);
	test_deep(1, 1);
	test_deep(16, 0);
	test_deep(16, 1);
	test_many_leaves();
	test_check_sees();
	is_int(pfx_alloc_live(), live, "all memory is given back");
	return tap_done();
}
