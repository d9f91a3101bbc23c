#ifndef PFX_KERNELS_CPU_POOL_H
#define PFX_KERNELS_CPU_POOL_H

/*
 * A few threads that work on one job at a time beside the thread that asks for it. A job is
 * a number of independent tasks; who takes which is left to chance, so no result may
 * depend on it. A thread that the system does not run holds up nothing but the task it has
 * in hand: jobs are counted by tasks done, not by threads that have come by.
 *
 * Waiting threads look for a new job for PFX_POOL_SPIN_NS, since within a step the next one
 * comes in microseconds, and then sleep on a futex.
 */

#include <stdint.h>

#define PFX_POOL_SPIN_NS 100000u

struct pfx_pool;

/* thread: 0 for the caller of run, 1.. for the pool's own; at most one task a thread. */
typedef void (*pfx_task_fn)(void *arg, uint32_t task, uint32_t thread);

/*
 * n_threads counts the caller; 0: one for each core that the process may use. With pin each thread
 * stays on a core of its own, as long as there are enough that the process may use.
 */
int pfx_pool_open(struct pfx_pool **out, uint32_t n_threads, int pin);
/* The calling thread is the one that will run jobs from now on: it is pinned as well. */
void pfx_pool_enter(struct pfx_pool *pool);
void pfx_pool_close(struct pfx_pool *pool);
uint32_t pfx_pool_threads(const struct pfx_pool *pool);

/* Returns when all tasks 0..n_tasks-1 are done; n_tasks < 2^31. One caller at a time. */
void pfx_pool_run(struct pfx_pool *pool, pfx_task_fn fn, void *arg, uint32_t n_tasks);

/* Nanoseconds that run has waited for tasks of other threads since this was asked last. */
uint64_t pfx_pool_waited(struct pfx_pool *pool);

#endif
