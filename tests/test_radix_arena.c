/*
 * The memory of nodes and runs: pieces of all sizes come, grow, shrink and go at random, with
 * allocations that fail; no byte of any is touched by another, the bookkeeping is whole, what is
 * taken from the system stays in proportion to what is used, and all of it is given back.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "radix/arena.h"
#include "tests/tap.h"

#define PIECES 600
#define STEPS 60000

static struct pfx_rng rng;
static struct pfx_arena arena;
static struct {
	uint8_t *p;
	size_t size;
	uint8_t fill;
} pieces[PIECES];
static uint64_t in_use;

static size_t some_size(size_t most)
{
	uint64_t kind = pfx_rng_below(&rng, 20);

	/* Nodes, runs of some blocks, long ones; and now and then one that stands alone. */
	if (kind < 8) {
		return 312;
	}
	if (kind < 19) {
		return 132 * (1 + pfx_rng_below(&rng, most / 4 / 132));
	}
	return 1 + pfx_rng_below(&rng, most);
}

static int whole(int i)
{
	for (size_t k = 0; k < pieces[i].size; k++) {
		if (pieces[i].p[k] != pieces[i].fill) {
			return 0;
		}
	}
	return 1;
}

static void set(int i, uint8_t *p, size_t size)
{
	in_use += size - pieces[i].size;
	pieces[i].p = p;
	pieces[i].size = size;
	pieces[i].fill = (uint8_t)pfx_rng_next(&rng);
	if (p != NULL) {
		memset(p, pieces[i].fill, size);
	}
}

/* One change; 0: bytes of the piece are not what they were. */
static int step(size_t most)
{
	int i = (int)pfx_rng_below(&rng, PIECES), good = 1;
	size_t size = some_size(most);
	uint8_t *p;

	if (pieces[i].p == NULL) {
		p = pfx_arena_alloc(&arena, size);
		if (p != NULL) {
			set(i, p, size);
		}
		return size > arena.slab_bytes / 8 || (uintptr_t)p % PFX_ARENA_LINE == 0;
	}
	good = whole(i);
	if (pfx_rng_below(&rng, 3) > 0) {
		pfx_arena_free(&arena, pieces[i].p, pieces[i].size);
		set(i, NULL, 0);
		return good;
	}
	p = pfx_arena_resize(&arena, pieces[i].p, pieces[i].size, size);
	if (p != NULL) {
		size_t both = size < pieces[i].size ? size : pieces[i].size;

		for (size_t k = 0; k < both; k++) {
			good &= p[k] == pieces[i].fill;
		}
		set(i, p, size);
	}
	return good;
}

static void churn(uint64_t bytes, size_t most, const char *name)
{
	uint64_t before = pfx_alloc_live(), good = 0, slack = 0, half = 0;
	const char *problem = NULL;

	pfx_arena_init(&arena, bytes);
	for (int i = 0; i < STEPS; i++) {
		good += (uint64_t)step(most);
		if (i % 1000 == 0 && problem == NULL) {
			problem = pfx_arena_check(&arena);
		}
		/* Steady from some thousand steps on. */
		if (i > STEPS / 8 && arena.bytes - in_use > slack) {
			slack = arena.bytes - in_use;
		}
		if (i == STEPS / 2) {
			half = slack;
		}
	}
	ok(problem == NULL, "%s: whole%s%s", name, problem != NULL ? ": " : "",
		problem != NULL ? problem : "");
	is_int((long long)good, STEPS, "%s: no piece touches another", name);
	ok(slack <= half + half / 4 + 2 * arena.slab_bytes,
		"%s: what is not used does not grow: %llu, then %llu bytes beside %llu in use", name,
		(unsigned long long)half, (unsigned long long)slack, (unsigned long long)in_use);
	for (int i = 0; i < PIECES; i++) {
		if (pieces[i].p != NULL) {
			pfx_arena_free(&arena, pieces[i].p, pieces[i].size);
			set(i, NULL, 0);
		}
	}
	ok(arena.n_slabs <= 1 && arena.bytes <= arena.slab_bytes,
		"%s: one slab is left when all is free", name);
	pfx_arena_fini(&arena);
	is_int((long long)pfx_alloc_live(), (long long)before, "%s: all memory is given back", name);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	rng.state = seed;
	churn(1 << 20, 80 << 10, "small slabs");
	churn(1 << 30, 300 << 10, "huge pages");
	pfx_alloc_fail(seed, 8);
	churn(1 << 20, 80 << 10, "with allocations that fail");
	pfx_alloc_fail(0, 0);
	return tap_done();
}
