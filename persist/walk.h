#ifndef PFX_PERSIST_WALK_H
#define PFX_PERSIST_WALK_H

/*
 * Runs a function that may be killed by what it reads, in a child process. The child has no
 * core dump and the default signal actions, and only the pipe that carries the sentence back.
 */

#include <stddef.h>
#include <stdint.h>

/* 0 or a negative code; writes a sentence to why unless 0. Runs in the child. */
typedef int pfx_walk_fn(void *arg, char *why, size_t whylen);

/*
 * What fn returned and wrote. PFX_E_FORMAT when a signal ended the child (why names it).
 * -ETIMEDOUT: not done after ms_max, and killed. -ENOMEM, -EAGAIN, -EMFILE...: no child or
 * pipe could be made.
 */
int pfx_walk(pfx_walk_fn *fn, void *arg, uint32_t ms_max, char *why, size_t whylen);

#endif
