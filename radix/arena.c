/*
 * A slab begins with its head, in which each line of the slab has a tag: in the first and in the
 * last line of a piece stands how many lines it has, and whether it is used. So both neighbours
 * of a piece are found without looking at them, and nothing is written beside what is used.
 */
#include "radix/arena.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define USED 0x8000u
#define SMALL_SLAB ((size_t)512 << 10)

struct slab {
	struct pfx_list link; /* in arena->slabs */
	uint32_t first;       /* line behind the head */
	uint32_t lines;       /* of the slab; behind the last stands a tag as of a used piece */
	uint16_t tag[];
};

/* A free piece; its length stands in its tags. */
struct piece {
	struct pfx_list link; /* in its bin */
};

void pfx_arena_init(struct pfx_arena *arena, uint64_t bytes)
{
	*arena = (struct pfx_arena){
		.slab_bytes = bytes >= 2 * PFX_HUGE_PAGE ? PFX_HUGE_PAGE : SMALL_SLAB,
	};
	pfx_list_init(&arena->slabs);
	for (uint32_t i = 0; i < PFX_ARENA_BINS; i++) {
		pfx_list_init(&arena->bins[i]);
	}
}

/* ---- bins: one for each number of lines up to 8, from there on four for each doubling ---- */

/* The bin of a piece of so many lines. */
static uint32_t bin_of(uint32_t lines)
{
	uint32_t log;

	if (lines < 8) {
		return lines;
	}
	log = 31u - (uint32_t)__builtin_clz(lines);
	return 8 + (log - 3) * 4 + (lines >> (log - 2) & 3);
}

/* The first bin in which all pieces have so many lines. */
static uint32_t bin_for(uint32_t lines)
{
	uint32_t log;

	if (lines < 8) {
		return lines;
	}
	log = 31u - (uint32_t)__builtin_clz(lines);
	return bin_of(lines + (1u << (log - 2)) - 1);
}

static void *at_line(const struct slab *slab, uint32_t line)
{
	return (char *)slab + (size_t)line * PFX_ARENA_LINE;
}

static void put(struct pfx_arena *arena, struct slab *slab, uint32_t line, uint32_t lines)
{
	struct piece *piece = at_line(slab, line);
	uint32_t bin = bin_of(lines);

	slab->tag[line] = slab->tag[line + lines - 1] = (uint16_t)lines;
	pfx_list_push_front(&arena->bins[bin], &piece->link);
	arena->filled |= 1ull << bin;
	ASAN_POISON_MEMORY_REGION(piece + 1, (size_t)lines * PFX_ARENA_LINE - sizeof(*piece));
	arena->n_empty += lines == slab->lines - slab->first;
}

static void take(struct pfx_arena *arena, struct slab *slab, uint32_t line)
{
	struct piece *piece = at_line(slab, line);
	uint32_t lines = slab->tag[line];
	uint32_t bin = bin_of(lines);

	ASAN_UNPOISON_MEMORY_REGION(piece, (size_t)lines * PFX_ARENA_LINE);
	pfx_list_remove(&piece->link);
	if (pfx_list_empty(&arena->bins[bin])) {
		arena->filled &= ~(1ull << bin);
	}
	arena->n_empty -= lines == slab->lines - slab->first;
}

static void use(struct slab *slab, uint32_t line, uint32_t lines)
{
	slab->tag[line] = slab->tag[line + lines - 1] = (uint16_t)(lines | USED);
}

/* ---- slabs ---- */

static int add_slab(struct pfx_arena *arena)
{
	uint32_t lines = (uint32_t)(arena->slab_bytes / PFX_ARENA_LINE);
	size_t head = sizeof(struct slab) + ((size_t)lines + 1) * sizeof(uint16_t);
	struct slab *slab = arena->slab_bytes == SMALL_SLAB ?
		pfx_aligned_alloc(SMALL_SLAB, SMALL_SLAB) : pfx_huge_alloc(arena->slab_bytes);

	if (slab == NULL) {
		return -1;
	}
	slab->lines = lines;
	slab->first = (uint32_t)((head + PFX_ARENA_LINE - 1) / PFX_ARENA_LINE);
	slab->tag[slab->first - 1] = USED;
	slab->tag[lines] = USED;
	pfx_list_push_back(&arena->slabs, &slab->link);
	arena->n_slabs++;
	arena->bytes += arena->slab_bytes;
	put(arena, slab, slab->first, lines - slab->first);
	return 0;
}

static void remove_slab(struct pfx_arena *arena, struct slab *slab)
{
	take(arena, slab, slab->first);
	pfx_list_remove(&slab->link);
	arena->n_slabs--;
	arena->bytes -= arena->slab_bytes;
	if (arena->slab_bytes == SMALL_SLAB) {
		pfx_free(slab);
	} else {
		pfx_huge_free(slab, arena->slab_bytes);
	}
}

void pfx_arena_fini(struct pfx_arena *arena)
{
	PFX_ASSERT(arena->pieces == 0);
	if (arena->slab_bytes == 0) {
		return;
	}
	pfx_list_for_safe(it, &arena->slabs) {
		remove_slab(arena, pfx_container_of(it, struct slab, link));
	}
}

static struct slab *slab_of(const struct pfx_arena *arena, const void *p)
{
	return (struct slab *)((uintptr_t)p & ~(uintptr_t)(arena->slab_bytes - 1));
}

/* ---- pieces ---- */

static uint32_t lines_of(size_t size)
{
	return (uint32_t)((size + PFX_ARENA_LINE - 1) / PFX_ARENA_LINE);
}

/* What would not leave a slab full to seven eighths stands alone. */
static int is_large(const struct pfx_arena *arena, size_t size)
{
	return size > arena->slab_bytes / 8;
}

/* The first bin from `from` on that is not empty; PFX_ARENA_BINS: none. */
static uint32_t next_filled(const struct pfx_arena *arena, uint32_t from)
{
	uint64_t bits = arena->filled & ~0ull << from;

	return bits == 0 ? PFX_ARENA_BINS : (uint32_t)__builtin_ctzll(bits);
}

/* The first lines of a piece that was free become used, what is left of it stays free. */
static void carve(struct pfx_arena *arena, struct slab *slab, uint32_t line, uint32_t has,
	uint32_t lines)
{
	use(slab, line, lines);
	if (has > lines) {
		put(arena, slab, line + lines, has - lines);
	}
}

static void *alloc_large(struct pfx_arena *arena, size_t size)
{
	void *p = pfx_malloc(size);

	if (p != NULL) {
		arena->bytes += size;
		arena->pieces++;
	}
	return p;
}

void *pfx_arena_alloc(struct pfx_arena *arena, size_t size)
{
	uint32_t lines = lines_of(size), bin, line;
	struct slab *slab;
	void *p;

	if (is_large(arena, size)) {
		return alloc_large(arena, size);
	}
	if (pfx_alloc_must_fail()) {
		return NULL;
	}
	bin = next_filled(arena, bin_for(lines));
	if (bin == PFX_ARENA_BINS) {
		if (add_slab(arena) < 0) {
			return NULL;
		}
		bin = next_filled(arena, bin_for(lines));
	}
	p = arena->bins[bin].next;
	slab = slab_of(arena, p);
	line = (uint32_t)(((char *)p - (char *)slab) / PFX_ARENA_LINE);
	take(arena, slab, line);
	carve(arena, slab, line, slab->tag[line], lines);
	arena->pieces++;
	return p;
}

/* Lines [line, line + lines) are free from now on, and one piece with what is free around. */
static void release(struct pfx_arena *arena, struct slab *slab, uint32_t line, uint32_t lines)
{
	uint16_t before = slab->tag[line - 1], behind = slab->tag[line + lines];

	if ((behind & USED) == 0) {
		take(arena, slab, line + lines);
		lines += behind;
	}
	if ((before & USED) == 0) {
		line -= before;
		take(arena, slab, line);
		lines += before;
	}
	put(arena, slab, line, lines);
	if (arena->n_empty > 1 && lines == slab->lines - slab->first) {
		remove_slab(arena, slab);
	}
}

/* The place of a used piece. */
static uint32_t line_of(const struct slab *slab, const void *p, uint32_t lines)
{
	uint32_t line = (uint32_t)(((const char *)p - (const char *)slab) / PFX_ARENA_LINE);

	PFX_ASSERT(slab->tag[line] == (lines | USED));
	return line;
}

void pfx_arena_free(struct pfx_arena *arena, void *p, size_t size)
{
	uint32_t lines = lines_of(size);
	struct slab *slab;

	if (p == NULL) {
		return;
	}
	arena->pieces--;
	if (is_large(arena, size)) {
		arena->bytes -= size;
		pfx_free(p);
		return;
	}
	slab = slab_of(arena, p);
	release(arena, slab, line_of(slab, p, lines), lines);
}

/* Where it stands: 1, or 0: it cannot. */
static int resize_here(struct pfx_arena *arena, void *p, uint32_t from, uint32_t to)
{
	struct slab *slab = slab_of(arena, p);
	uint32_t line = line_of(slab, p, from);
	uint32_t behind = slab->tag[line + from];

	if (to < from) {
		use(slab, line, to);
		release(arena, slab, line + to, from - to);
		return 1;
	}
	if (to > from) {
		if ((behind & USED) != 0 || from + behind < to) {
			return 0;
		}
		take(arena, slab, line + from);
		carve(arena, slab, line, from + behind, to);
	}
	return 1;
}

void *pfx_arena_resize(struct pfx_arena *arena, void *p, size_t from, size_t to)
{
	void *q;

	if (is_large(arena, from) && is_large(arena, to)) {
		q = pfx_realloc(p, to);
		arena->bytes += q != NULL ? to - from : 0;
		return q;
	}
	if (!is_large(arena, from) && !is_large(arena, to) &&
		resize_here(arena, p, lines_of(from), lines_of(to))) {
		return p;
	}
	q = pfx_arena_alloc(arena, to);
	if (q != NULL) {
		memcpy(q, p, from < to ? from : to);
		pfx_arena_free(arena, p, from);
	}
	return q;
}

/* ---- for tests ---- */

static const char *check_slab(const struct slab *slab, uint64_t *n_free, uint64_t *n_used)
{
	uint32_t line, lines, was_free = 0;

	for (line = slab->first; line < slab->lines; line += lines) {
		uint16_t tag = slab->tag[line];

		lines = tag & ~USED;
		if (lines == 0 || line + lines > slab->lines || slab->tag[line + lines - 1] != tag) {
			return "a piece of an arena has other tags at its ends";
		}
		if ((tag & USED) == 0 && was_free) {
			return "free neighbours in an arena are two pieces";
		}
		was_free = (tag & USED) == 0;
		*(was_free ? n_free : n_used) += 1;
	}
	return NULL;
}

const char *pfx_arena_check(const struct pfx_arena *arena)
{
	uint64_t n_free = 0, n_used = 0, binned = 0;
	const char *problem = NULL;

	pfx_list_for(it, &arena->slabs) {
		if (problem == NULL) {
			problem = check_slab(pfx_container_of(it, struct slab, link), &n_free, &n_used);
		}
	}
	for (uint32_t i = 0; i < PFX_ARENA_BINS && problem == NULL; i++) {
		if (pfx_list_empty(&arena->bins[i]) == (int)(arena->filled >> i & 1)) {
			problem = "an arena does not know which bins are filled";
		}
		pfx_list_for(it, &arena->bins[i]) {
			const struct slab *slab = slab_of(arena, it);
			uint32_t line = (uint32_t)(((char *)it - (char *)slab) / PFX_ARENA_LINE);

			if (problem == NULL && bin_of(slab->tag[line]) != i) {
				problem = "a free piece of an arena is in the wrong bin";
			}
			binned++;
		}
	}
	if (problem == NULL && (binned != n_free || n_used > arena->pieces)) {
		problem = "an arena does not know its pieces";
	}
	return problem;
}
