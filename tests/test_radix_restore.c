/*
 * A tree that was restored goes in the order in which it was last used before: by used_ns, whatever
 * the order of the rows; what stands above a young row is as young; and what is used after the
 * start is younger than all of it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "radix/priv.h"
#include "tests/tap.h"

#define B 4
#define ROWS 40

static struct pfx_cache *cache;
static struct pfx_space *space;
static struct pfx_restore *restore;

static void setup(void)
{
	struct pfx_cache_opts opts = {
		.block_tokens = B, .n_blocks = 8, .n_host = 8, .n_disk = ROWS, .save = PFX_SAVE_ALL,
	};

	if (pfx_cache_open(&cache, &opts) < 0 || pfx_cache_space(cache, "a", 1, &space) < 0 ||
		pfx_restore_begin(cache, &restore) < 0) {
		abort();
	}
}

static void finish(const char *what)
{
	is_int(pfx_cache_check(cache, NULL, NULL), 0, "check is clean: %s", what);
	pfx_cache_close(cache);
}

/* A block of the same token; behind the record `above`. */
static uint32_t row(uint32_t above, uint32_t token, uint64_t used_ns)
{
	uint32_t tokens[B] = { token, token, token, token }, record = PFX_BLOCK_NONE;

	is_int(pfx_restore_add(restore, space, above, tokens, B, used_ns, &record), 0,
		"row of %u, used at %llu", token, (unsigned long long)used_ns);
	return record;
}

static uint32_t matched(uint32_t first, uint32_t second)
{
	uint32_t tokens[2 * B] = { first, first, first, first, second, second, second, second };
	struct pfx_hit hit;

	pfx_cache_match(cache, space, tokens, second != 0 ? 2 * B : B, &hit);
	return hit.tokens;
}

static void evict_one(void)
{
	is_int(pfx_cache_evict(cache, PFX_TIER_DISK, NULL, 1), 1, "one record goes");
}

static void test_any_order_of_rows(void)
{
	struct pfx_rng rng = { .state = 119 };
	uint32_t when[ROWS], wrong = 0;

	setup();
	for (uint32_t i = 0; i < ROWS; i++) {
		when[i] = i;
	}
	for (uint32_t i = ROWS - 1; i > 0; i--) {
		uint32_t k = (uint32_t)pfx_rng_below(&rng, i + 1), other = when[i];

		when[i] = when[k];
		when[k] = other;
	}
	for (uint32_t i = 0; i < ROWS; i++) {
		row(PFX_BLOCK_NONE, 100 + when[i], 1000 + when[i]);
	}
	pfx_restore_end(restore);
	for (uint32_t i = 0; i < ROWS; i++) {
		wrong += pfx_cache_evict(cache, PFX_TIER_DISK, NULL, 1) != 1;
		wrong += matched(100 + i, 0) != 0;
		wrong += i + 1 < ROWS && matched(100 + i + 1, 0) != B;
	}
	is_int(wrong, 0, "the one used longest ago goes first, %u times", ROWS);
	finish("all gone");
}

static void test_above_the_young(void)
{
	uint32_t a, b;

	setup();
	a = row(PFX_BLOCK_NONE, 1, 10);
	b = row(PFX_BLOCK_NONE, 2, 20);
	row(a, 3, 30);
	row(b, 4, 15);
	row(a, 5, 12);
	pfx_restore_end(restore);
	evict_one();
	is_int(matched(1, 5), B, "5, used at 12, goes first");
	evict_one();
	is_int(matched(2, 4), B, "then 4 at 15");
	evict_one();
	is_int(matched(2, 0), 0, "then 2 at 20");
	is_int(matched(1, 3), 2 * B, "1 was used when 3 was, at 30");
	evict_one();
	is_int(matched(1, 3), B, "3 before what it stands on");
	evict_one();
	is_int(matched(1, 0), 0, "and 1 last");
	finish("above");
}

static void test_used_after_the_start(void)
{
	uint32_t tokens[B] = { 1, 1, 1, 1 };
	struct pfx_path *path;

	setup();
	row(PFX_BLOCK_NONE, 1, 10);
	row(PFX_BLOCK_NONE, 2, 20);
	pfx_restore_end(restore);
	is_int(pfx_path_open(cache, space, tokens, B, NULL, &path), 0, "1 is used again");
	pfx_path_close(path);
	evict_one();
	is_int(matched(2, 0), 0, "2 goes");
	is_int(matched(1, 0), B, "1 stays");
	finish("used");
}

/* Not of a restore, but of records too: a host block is lost in the middle of a node, its record not. */
static void test_lost_in_the_middle(void)
{
	uint32_t tokens[3 * B] = { 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 };
	struct pfx_block_copy copy;
	struct pfx_save_order save;
	struct pfx_spill spill;
	struct pfx_path *path, *other;

	setup();
	pfx_restore_end(restore);
	is_int(pfx_path_open(cache, space, tokens, 3 * B, NULL, &path), 0, "three blocks");
	is_int(pfx_path_reserve(path, 3 * B, &copy), 0, "have room");
	is_int(pfx_path_publish(path, tokens, 3 * B), 0, "and are published");
	pfx_path_close(path);
	while (pfx_cache_next_save(cache, &save) == 1) {
		pfx_cache_save_copied(cache, save.record);
		pfx_cache_saved(cache, save.record, 0);
	}
	is_int(pfx_cache_evict(cache, PFX_TIER_DEVICE, NULL, 3), 3, "they go to host memory");
	while (pfx_cache_next_spill(cache, &spill) == 1) {
		pfx_cache_spilled(cache, &spill, 1);
	}
	is_int(pfx_path_open(cache, space, tokens, 3 * B, NULL, &path), 0, "a path matches them");
	is_int(pfx_path_reach(path), 3 * B, "all three");
	pfx_path_lost(path, 1);
	is_int(pfx_path_reach(path), B, "the second cannot be read");
	is_int(matched(1, 2), 2 * B, "but has its record");
	is_int(pfx_path_open(cache, space, tokens, 2 * B, NULL, &other), 0, "one that cuts behind it");
	is_int(pfx_cache_check(cache, NULL, NULL), 0, "leaves the first path where it was");
	pfx_path_lost(other, 1);
	is_int(matched(1, 2), B, "and then its record is lost as well");
	pfx_path_close(other);
	pfx_path_close(path);
	finish("lost");
}

int main(void)
{
	uint64_t live = pfx_alloc_live();

	test_any_order_of_rows();
	test_above_the_young();
	test_used_after_the_start();
	test_lost_in_the_middle();
	is_int((long long)pfx_alloc_live(), (long long)live, "all memory is given back");
	return tap_done();
}
