#include "base/alloc.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rng.h"

static _Atomic uint64_t live;
static _Atomic uint32_t fail_one_in;
static _Atomic uint64_t fail_seed;
static _Atomic uint64_t fail_calls;

int pfx_alloc_must_fail(void)
{
	uint32_t one_in = atomic_load_explicit(&fail_one_in, memory_order_relaxed);

	if (one_in == 0) {
		return 0;
	}
	return pfx_rng_mix(fail_seed, atomic_fetch_add(&fail_calls, 1)) % one_in == 0;
}

static void *counted(void *p)
{
	if (p != NULL) {
		atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
	}
	return p;
}

void *pfx_malloc(size_t size)
{
	return pfx_alloc_must_fail() ? NULL : counted(malloc(size ? size : 1));
}

void *pfx_calloc(size_t n, size_t size)
{
	return pfx_alloc_must_fail() ? NULL : counted(calloc(n ? n : 1, size ? size : 1));
}

void *pfx_realloc(void *p, size_t size)
{
	void *q;

	if (p == NULL) {
		return pfx_malloc(size);
	}
	if (pfx_alloc_must_fail()) {
		return NULL;
	}
	q = realloc(p, size ? size : 1);
	return q;
}

void *pfx_reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		return NULL;
	}
	return pfx_realloc(p, bytes);
}

void *pfx_aligned_alloc(size_t align, size_t size)
{
	void *p = NULL;

	if (pfx_alloc_must_fail() || posix_memalign(&p, align, size ? size : 1) != 0) {
		return NULL;
	}
	return counted(p);
}

void *pfx_memdup(const void *p, size_t n)
{
	void *q = pfx_malloc(n);

	if (q != NULL && n > 0) {
		memcpy(q, p, n);
	}
	return q;
}

char *pfx_strdup(const char *s)
{
	return pfx_memdup(s, strlen(s) + 1);
}

void pfx_free(void *p)
{
	if (p == NULL) {
		return;
	}
	atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
	free(p);
}

void *pfx_huge_alloc(size_t size)
{
	size_t more = size + PFX_HUGE_PAGE;
	uint8_t *map, *p;

	if (pfx_alloc_must_fail() || more < size) {
		return NULL;
	}
	map = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED) {
		return NULL;
	}
	p = map + (-(uintptr_t)map & (PFX_HUGE_PAGE - 1));
	if (p > map) {
		munmap(map, (size_t)(p - map));
	}
	munmap(p + size, PFX_HUGE_PAGE - (size_t)(p - map));
#if defined(MADV_HUGEPAGE)
	/* A hint: without huge pages all works as well, a little slower. */
	(void)madvise(p, size, MADV_HUGEPAGE);
#endif
	return counted(p);
}

void pfx_huge_free(void *p, size_t size)
{
	if (p == NULL) {
		return;
	}
	atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
	munmap(p, size);
}

static void *or_die(void *p)
{
	if (p == NULL) {
		fputs("prefixd: out of memory\n", stderr);
		exit(70);
	}
	return p;
}

void *pfx_xmalloc(size_t size)
{
	return counted(or_die(malloc(size ? size : 1)));
}

void *pfx_xcalloc(size_t n, size_t size)
{
	return counted(or_die(calloc(n ? n : 1, size ? size : 1)));
}

void *pfx_xrealloc(void *p, size_t size)
{
	if (p == NULL) {
		return pfx_xmalloc(size);
	}
	return or_die(realloc(p, size ? size : 1));
}

char *pfx_xstrdup(const char *s)
{
	size_t n = strlen(s) + 1;

	return memcpy(pfx_xmalloc(n), s, n);
}

uint64_t pfx_alloc_live(void)
{
	return live;
}

void pfx_alloc_fail(uint64_t seed, uint32_t one_in)
{
	fail_seed = seed;
	fail_calls = 0;
	fail_one_in = one_in;
}
