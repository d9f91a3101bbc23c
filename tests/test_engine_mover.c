/*
 * The mover alone: bytes that went down and came back are the same, orders keep their order,
 * whoever waits for a store that never answers gets the order back, and a bounded queue says
 * so.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/mover.h"
#include "tests/model_util.h"
#include "tests/tap.h"

enum { BLOCKS = 12, HOST = 6, B = 16 };

static struct pfx_model *model;
static struct pfx_arena *host;
static struct pfx_store *store;
static struct pfx_writer *writer;
static struct pfx_mover *mover;
static size_t block_bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static int n_woken;

static void wake(void *arg)
{
	pthread_mutex_lock(&lock);
	n_woken++;
	pthread_cond_signal(&woken);
	pthread_mutex_unlock(&lock);
}

static void open_all(uint32_t n_staging)
{
	struct pfx_store_shape shape = { .block_tokens = B, .kv_bytes = block_bytes };
	struct pfx_store *inner;
	struct pfx_mover_opts opts = { .model = model, .block_tokens = B, .host = host,
		.n_staging = n_staging, .n_loaders = 2, .wake = wake };
	char err[200];

	if (pfx_store_mem_open(&inner, &shape, 1u << 30, err, sizeof(err)) != 0 ||
		pfx_store_fault_open(&store, inner, 1) != 0 ||
		pfx_writer_open(&writer, store, NULL) != 0) {
		printf("Bail out! no store\n");
		exit(1);
	}
	opts.store = store;
	opts.writer = writer;
	if (pfx_mover_open(&mover, &opts) != 0) {
		printf("Bail out! no mover\n");
		exit(1);
	}
}

static void close_all(void)
{
	is_int(pfx_mover_close(mover, 1000), 0, "close");
	pfx_store_close(store);
}

static void fill(uint8_t *bytes, unsigned seed)
{
	for (size_t i = 0; i < block_bytes; i++) {
		bytes[i] = (uint8_t)((i * 31 + seed * 17) >> 3);
	}
}

/* Device block `block` holds the pattern of that seed. */
static int holds(uint32_t block, unsigned seed)
{
	uint8_t *want = malloc(block_bytes), *got = malloc(block_bytes);
	int same;

	fill(want, seed);
	pfx_model_read_block(model, block, B, got);
	same = memcmp(want, got, block_bytes) == 0;
	free(want);
	free(got);
	return same;
}

static void set(uint32_t block, unsigned seed)
{
	uint8_t *bytes = malloc(block_bytes);

	fill(bytes, seed);
	pfx_model_write_block(model, block, bytes);
	free(bytes);
}

/* Waits until an order is over, and takes it; its staging is told of before. */
static struct pfx_order *finish_one(int *staged)
{
	struct pfx_order *o;
	uint64_t until = pfx_clock_ns() + 20000000000u;

	while (pfx_clock_ns() < until) {
		while ((o = pfx_mover_next(mover)) != NULL) {
			*staged += o->staged;
			if (o->finished) {
				return o;
			}
		}
		pthread_mutex_lock(&lock);
		while (n_woken == 0) {
			pthread_cond_wait(&woken, &lock);
		}
		n_woken = 0;
		pthread_mutex_unlock(&lock);
	}
	printf("Bail out! nothing for 20 s\n");
	exit(1);
}

static struct pfx_order *order(enum pfx_order_kind kind, uint32_t device, uint32_t h)
{
	struct pfx_order *o = pfx_mover_order(mover, kind);

	o->device = device;
	o->host = h;
	return o;
}

static void give(struct pfx_order *o)
{
	is_int(pfx_mover_give(mover, o), 0, "given");
}

static int finish(enum pfx_order_kind kind, int *staged)
{
	struct pfx_order *o = finish_one(staged);
	int rc = o->kind == kind ? o->result : -1;

	pfx_mover_free(mover, o);
	return rc;
}

/* The key of the k-th block of one prefix. */
static struct pfx_order *keyed(struct pfx_order *o, uint32_t k)
{
	static const struct pfx_digest none;
	struct pfx_digest space, parent = none;
	uint32_t tokens[B];

	pfx_space_digest("a", 1, NULL, 0, &space);
	for (uint32_t i = 0; i <= k; i++) {
		for (uint32_t j = 0; j < B; j++) {
			tokens[j] = i * B + j;
		}
		pfx_order_key(o, &space, &parent, i * B, tokens, B);
		parent = o->key.self;
	}
	return o;
}

static void test_round_trips(void)
{
	struct pfx_mover_rates rates;
	int staged = 0, good = 1;

	open_all(4);
	set(0, 1);
	set(1, 2);
	/* A fetch of a block right behind the spill that fills it. */
	give(order(PFX_ORDER_SPILL, 0, 3));
	give(order(PFX_ORDER_FETCH, 5, 3));
	give(order(PFX_ORDER_SPILL, 1, 3));
	give(order(PFX_ORDER_FETCH, 6, 3));
	is_int(pfx_mover_in_flight(mover, PFX_ORDER_FETCH), 2, "two fetches in flight");
	for (int i = 0; i < 4; i++) {
		good &= finish(i % 2 ? PFX_ORDER_FETCH : PFX_ORDER_SPILL, &staged) == 0;
	}
	ok(good && holds(5, 1) && holds(6, 2), "down and back, in the order given");
	pfx_mover_rates(mover, &rates);
	ok(rates.fetch_ns_per_block > 0 && rates.load_ns_per_block == 0, "a fetch was measured");

	/* To the store from the device and from the host, and back. */
	give(keyed(order(PFX_ORDER_SAVE, 0, PFX_ORDER_NO_BLOCK), 0));
	give(keyed(order(PFX_ORDER_SAVE, PFX_ORDER_NO_BLOCK, 3), 1));
	good = finish(PFX_ORDER_SAVE, &staged) == 0 && finish(PFX_ORDER_SAVE, &staged) == 0;
	ok(good && staged == 2, "two saves, each staged once (%d)", staged);
	give(pfx_mover_order(mover, PFX_ORDER_SYNC));
	is_int(finish(PFX_ORDER_SYNC, &staged), 0, "a sync");
	give(keyed(order(PFX_ORDER_LOAD, 8, PFX_ORDER_NO_BLOCK), 0));
	give(keyed(order(PFX_ORDER_LOAD, 9, PFX_ORDER_NO_BLOCK), 1));
	good = finish(PFX_ORDER_LOAD, &staged) == 0 && finish(PFX_ORDER_LOAD, &staged) == 0;
	ok(good && holds(8, 1) && holds(9, 2), "and back from the store");
	pfx_mover_rates(mover, &rates);
	ok(rates.load_ns_per_block > 0, "a load was measured");
	give(keyed(order(PFX_ORDER_LOAD, 10, PFX_ORDER_NO_BLOCK), 2));
	is_int(finish(PFX_ORDER_LOAD, &staged), -ENOENT, "what is not there is not there");
	give(keyed(order(PFX_ORDER_DELETE, 0, 0), 1));
	is_int(finish(PFX_ORDER_DELETE, &staged), 0, "deleted");
	give(keyed(order(PFX_ORDER_LOAD, 10, PFX_ORDER_NO_BLOCK), 1));
	is_int(finish(PFX_ORDER_LOAD, &staged), -ENOENT, "and gone");
	/* A child of what is not there. */
	give(keyed(order(PFX_ORDER_SAVE, 0, PFX_ORDER_NO_BLOCK), 2));
	is_int(finish(PFX_ORDER_SAVE, &staged), -ENOENT, "no save without its parent");
	close_all();
}

/* The record of a block's first tokens has their KV alone, wherever it was saved from. */
static void test_part(void)
{
	uint8_t *want = malloc(block_bytes), *got = malloc(block_bytes);
	int staged = 0, same = 0;

	open_all(2);
	set(0, 1);
	pfx_model_read_block(model, 0, 5, want);
	give(order(PFX_ORDER_SPILL, 0, 3));
	is_int(finish(PFX_ORDER_SPILL, &staged), 0, "spilled");
	for (uint32_t from_host = 0; from_host < 2; from_host++) {
		uint32_t device = from_host ? PFX_ORDER_NO_BLOCK : 0;
		struct pfx_digest space;
		struct pfx_order *save = order(PFX_ORDER_SAVE, device, 3), *load;
		uint32_t tokens[5] = { from_host, 1, 2, 3, 4 };

		pfx_space_digest("a", 1, NULL, 0, &space);
		pfx_order_key(save, &space, NULL, 0, tokens, 5);
		give(save);
		is_int(finish(PFX_ORDER_SAVE, &staged), 0, "saved");
		load = order(PFX_ORDER_LOAD, 8, PFX_ORDER_NO_BLOCK);
		pfx_order_key(load, &space, NULL, 0, tokens, 5);
		give(load);
		is_int(finish(PFX_ORDER_LOAD, &staged), 0, "loaded");
		pfx_model_read_block(model, 8, B, got);
		same += memcmp(want, got, block_bytes) == 0;
	}
	is_int(same, 2, "the first five positions and zeros, from the device and from the host");
	free(want);
	free(got);
	close_all();
}

static void test_bounds(void)
{
	int staged = 0, n = 0, bad = 0;

	open_all(3);
	pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
	for (uint32_t k = 0; pfx_mover_room(mover, PFX_ORDER_SAVE); k++, n++) {
		bad += pfx_mover_give(mover, keyed(order(PFX_ORDER_SAVE, 0, PFX_ORDER_NO_BLOCK), k)) != 0;
	}
	is_int(n, 3, "as many saves at once as there are staging buffers");
	is_int(bad, 0, "all given");
	pfx_store_fault_release(store);
	for (int i = 0; i < n; i++) {
		bad += finish(PFX_ORDER_SAVE, &staged) != 0;
	}
	is_int(bad, 0, "all saved once the store comes back");
	ok(pfx_mover_room(mover, PFX_ORDER_SAVE), "and there is room again");
	close_all();
}

static void test_stuck(void)
{
	struct pfx_order *a, *b, *c;
	struct pfx_mover_rates rates;
	uint64_t until;
	int staged = 0;

	open_all(2);
	give(keyed(order(PFX_ORDER_SAVE, 0, PFX_ORDER_NO_BLOCK), 0));
	is_int(finish(PFX_ORDER_SAVE, &staged), 0, "saved");
	set(7, 9);
	pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
	give(a = keyed(order(PFX_ORDER_LOAD, 7, PFX_ORDER_NO_BLOCK), 0));
	give(b = keyed(order(PFX_ORDER_LOAD, 7, PFX_ORDER_NO_BLOCK), 0));
	give(c = keyed(order(PFX_ORDER_LOAD, 7, PFX_ORDER_NO_BLOCK), 0));
	until = pfx_clock_ns() + 20000000000u;
	do {
		pfx_mover_rates(mover, &rates);
	} while (rates.load_wait_ns < 10000000 && pfx_clock_ns() < until);
	ok(rates.load_wait_ns >= 10000000, "a store that does not answer shows");
	/* The copies in memory go on meanwhile. */
	give(order(PFX_ORDER_SPILL, 0, 1));
	is_int(finish(PFX_ORDER_SPILL, &staged), 0, "a spill beside it");
	ok(pfx_mover_withdraw(mover, a) == 1 && pfx_mover_withdraw(mover, b) == 1 &&
		pfx_mover_withdraw(mover, c) == 1, "all three loads are taken back");
	is_int(pfx_mover_in_flight(mover, PFX_ORDER_LOAD), 0, "none is in flight");
	pfx_mover_free(mover, a);
	pfx_mover_free(mover, b);
	pfx_mover_free(mover, c);
	pfx_store_fault_release(store);
	give(keyed(order(PFX_ORDER_LOAD, 8, PFX_ORDER_NO_BLOCK), 0));
	is_int(finish(PFX_ORDER_LOAD, &staged), 0, "the loaders are back");
	ok(holds(7, 9), "what was taken back has written nothing");
	close_all();
}

static void test_failures(void)
{
	int staged = 0;

	open_all(2);
	pfx_store_fault_set(store, PFX_FAULT_FULL, 1);
	give(keyed(order(PFX_ORDER_SAVE, 0, PFX_ORDER_NO_BLOCK), 0));
	is_int(finish(PFX_ORDER_SAVE, &staged), -ENOSPC, "a full disk is told");
	is_int(staged, 1, "and the source is let go of all the same");
	pfx_store_fault_set(store, PFX_FAULT_FULL, 0);
	give(keyed(order(PFX_ORDER_SAVE, 0, PFX_ORDER_NO_BLOCK), 0));
	is_int(finish(PFX_ORDER_SAVE, &staged), 0, "later it goes");
	pfx_store_fault_set(store, PFX_FAULT_FLIP, 1);
	set(4, 3);
	give(keyed(order(PFX_ORDER_LOAD, 4, PFX_ORDER_NO_BLOCK), 0));
	ok(finish(PFX_ORDER_LOAD, &staged) != 0 && holds(4, 3),
		"a flipped bit never reaches the device");
	is_int(pfx_mover_close(mover, 1000), 0, "close");
	pfx_store_close(store);
}

int main(void)
{
	struct pfx_tiny_opts tiny = { .seed = 1 };
	struct pfx_test_model_opts opts = { .n_blocks = BLOCKS, .block_tokens = B };

	model = pfx_test_model_tiny(&tiny, &opts);
	block_bytes = pfx_model_block_bytes(model);
	if (pfx_arena_open(&host, block_bytes, HOST * block_bytes) != 0) {
		return 1;
	}
	is_int(pfx_arena_blocks(host), HOST, "the arena has its blocks");
	test_round_trips();
	test_part();
	test_bounds();
	test_stuck();
	test_failures();
	pfx_arena_close(host);
	pfx_model_close(model);
	return tap_done();
}
