#ifndef PFX_BASE_ALLOC_H
#define PFX_BASE_ALLOC_H

/*
 * The allocator of everything that can be told "no memory": it counts live allocations
 * and can be made to fail at random by tests. Memory from here is released by pfx_free
 * only. Thread-safe. Sizes of zero give a unique pointer.
 */

#include <stddef.h>
#include <stdint.h>

void *pfx_malloc(size_t size);
void *pfx_calloc(size_t n, size_t size); /* NULL also when n * size overflows */
void *pfx_realloc(void *p, size_t size);
void *pfx_reallocarray(void *p, size_t n, size_t size);
/* align is a power of two >= sizeof(void *); not to be passed to pfx_realloc. */
void *pfx_aligned_alloc(size_t align, size_t size);
char *pfx_strdup(const char *s);
void *pfx_memdup(const void *p, size_t n);
void pfx_free(void *p);

/* For programs and start-up code alone: ends the process when there is no memory. */
void *pfx_xmalloc(size_t size);
void *pfx_xcalloc(size_t n, size_t size);
void *pfx_xrealloc(void *p, size_t size);
char *pfx_xstrdup(const char *s);

/*
 * Memory for an allocator of its own: size is a multiple of PFX_HUGE_PAGE, and so is the address;
 * in huge pages where the system has any. It is zero, and released by pfx_huge_free alone.
 */
#define PFX_HUGE_PAGE ((size_t)2 << 20)
void *pfx_huge_alloc(size_t size);
void pfx_huge_free(void *p, size_t size);
/* For what stands on top of this allocator: 1 where an allocation is to fail now. */
int pfx_alloc_must_fail(void);

/* Allocations that are live now; tests compare it before and after. */
uint64_t pfx_alloc_live(void);

/*
 * Failure injection: from now on each allocation fails with probability 1/one_in, drawn
 * from seed; one_in 0 switches it off. The x-functions are not failed.
 */
void pfx_alloc_fail(uint64_t seed, uint32_t one_in);

#endif
