#include "config.h"

#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"

#define THREADS_MAX 256u

struct worker {
	struct pfx_pool *pool;
	pthread_t thread;
	uint32_t number;
};

struct pfx_pool {
	/*
	 * The job in one word: its number in the high half, tasks that nobody has taken in the low
	 * one. Taking a task is one compare-and-swap, which fails when the job is another by now;
	 * it succeeded: then the job cannot end before this task does, and fn, arg and n_tasks are
	 * its own.
	 */
	_Alignas(64) _Atomic uint64_t state;
	_Atomic uint32_t n_tasks;
	pfx_task_fn fn;
	void *arg;
	_Alignas(64) _Atomic uint32_t done; /* futex: the caller sleeps on it */
	_Atomic uint32_t caller_sleeps;
	_Alignas(64) _Atomic uint32_t wake; /* futex: workers sleep on it */
	_Atomic uint32_t sleepers;
	_Atomic int stop;
	uint32_t n_threads;
	uint64_t waited_ns; /* the caller's */
	int pin;
	cpu_set_t cores; /* that the process could use at open */
	struct worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Takes and does tasks of the job at hand until none is left. */
static void work(struct pfx_pool *pool, uint32_t thread)
{
	uint64_t s = atomic_load(&pool->state);

	while ((uint32_t)s != 0) {
		if (!atomic_compare_exchange_weak(&pool->state, &s, s - 1)) {
			continue;
		}
		uint32_t n = atomic_load_explicit(&pool->n_tasks, memory_order_relaxed);
		pool->fn(pool->arg, n - (uint32_t)s, thread);
		if (atomic_fetch_add(&pool->done, 1) + 1 == n && atomic_load(&pool->caller_sleeps)) {
			futex_wake(&pool->done, 1);
		}
		s = atomic_load(&pool->state);
	}
}

/* True when a task or the end is there within the time that spinning may take. */
static int spin_for_task(struct pfx_pool *pool)
{
	uint64_t until = now_ns() + PFX_POOL_SPIN_NS;

	do {
		for (int i = 0; i < 64; i++) {
			if ((uint32_t)atomic_load(&pool->state) != 0 || atomic_load(&pool->stop)) {
				return 1;
			}
			relax();
		}
	} while (now_ns() < until);
	return 0;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct pfx_pool *pool = w->pool;

	while (!atomic_load(&pool->stop)) {
		work(pool, w->number);
		if (spin_for_task(pool)) {
			continue;
		}
		uint32_t seen = atomic_load(&pool->wake);
		atomic_fetch_add(&pool->sleepers, 1);
		/* Whoever publishes after this look sees a sleeper and raises `wake`. */
		if ((uint32_t)atomic_load(&pool->state) == 0 && !atomic_load(&pool->stop)) {
			futex_wait(&pool->wake, seen);
		}
		atomic_fetch_sub(&pool->sleepers, 1);
	}
	return NULL;
}

static void wake_workers(struct pfx_pool *pool, int n)
{
	if (atomic_load(&pool->sleepers) != 0) {
		atomic_fetch_add(&pool->wake, 1);
		futex_wake(&pool->wake, n);
	}
}

/* True when all are done within the time that spinning may take. */
static int spin_for_done(struct pfx_pool *pool, uint32_t n_tasks, uint64_t until)
{
	do {
		for (int i = 0; i < 64; i++) {
			if (atomic_load(&pool->done) == n_tasks) {
				return 1;
			}
			relax();
		}
	} while (now_ns() < until);
	return 0;
}

static void wait_done(struct pfx_pool *pool, uint32_t n_tasks)
{
	uint64_t start;
	uint32_t done;

	if (atomic_load(&pool->done) == n_tasks) {
		return;
	}
	start = now_ns();
	if (!spin_for_done(pool, n_tasks, start + PFX_POOL_SPIN_NS)) {
		atomic_store(&pool->caller_sleeps, 1);
		while ((done = atomic_load(&pool->done)) != n_tasks) {
			futex_wait(&pool->done, done);
		}
		atomic_store(&pool->caller_sleeps, 0);
	}
	pool->waited_ns += now_ns() - start;
}

void pfx_pool_run(struct pfx_pool *pool, pfx_task_fn fn, void *arg, uint32_t n_tasks)
{
	if (n_tasks == 0) {
		return;
	}
	if (n_tasks == 1 || pool->n_threads == 1) {
		for (uint32_t i = 0; i < n_tasks; i++) {
			fn(arg, i, 0);
		}
		return;
	}
	uint64_t job = (atomic_load_explicit(&pool->state, memory_order_relaxed) >> 32) + 1;
	pool->fn = fn;
	pool->arg = arg;
	atomic_store_explicit(&pool->n_tasks, n_tasks, memory_order_relaxed);
	atomic_store(&pool->done, 0);
	atomic_store(&pool->state, job << 32 | n_tasks);
	wake_workers(pool, (int)(n_tasks - 1));
	work(pool, 0);
	wait_done(pool, n_tasks);
}

/* The cores that the process may use. Returns how many. */
static uint32_t usable_cores(cpu_set_t *set)
{
	if (sched_getaffinity(0, sizeof(*set), set) == 0) {
		return (uint32_t)CPU_COUNT(set);
	}
	CPU_ZERO(set);
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (uint32_t)n : 1;
}

static int pin(const struct pfx_pool *pool, pthread_t thread, uint32_t number)
{
	int n = CPU_COUNT(&pool->cores), nth = n > 0 ? (int)number % n : 0, core = 0;
	cpu_set_t one;

	if (n == 0) {
		return ENOSYS;
	}
	for (; !CPU_ISSET(core, &pool->cores) || nth-- > 0; core++) {
	}
	CPU_ZERO(&one);
	CPU_SET(core, &one);
	return pthread_setaffinity_np(thread, sizeof(one), &one);
}

void pfx_pool_enter(struct pfx_pool *pool)
{
	int e = pool->pin ? pin(pool, pthread_self(), 0) : 0;

	if (e != 0) {
		pfx_warn("kernels", "a thread cannot be pinned: %s", pfx_strerror(-e));
	}
}

int pfx_pool_open(struct pfx_pool **out, uint32_t n_threads, int pinned)
{
	struct pfx_pool *pool;
	sigset_t all, before;
	cpu_set_t cores;
	uint32_t n_cores = usable_cores(&cores);
	int e = 0;

	if (n_threads == 0) {
		n_threads = n_cores;
	}
	if (n_threads > THREADS_MAX) {
		n_threads = THREADS_MAX;
	}
	pool = pfx_aligned_alloc(64, sizeof(*pool) + n_threads * sizeof(pool->workers[0]));
	if (pool == NULL) {
		return -ENOMEM;
	}
	memset(pool, 0, sizeof(*pool));
	pool->n_threads = 1;
	pool->pin = pinned;
	pool->cores = cores;
	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t i = 1; i < n_threads && e == 0; i++) {
		struct worker *w = &pool->workers[i - 1];
		*w = (struct worker){ .pool = pool, .number = i };
		e = pthread_create(&w->thread, NULL, worker_main, w);
		pool->n_threads += e == 0;
		if (e == 0 && pinned) {
			e = pin(pool, w->thread, i);
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (e != 0) {
		pfx_pool_close(pool);
		return -e;
	}
	*out = pool;
	return 0;
}

void pfx_pool_close(struct pfx_pool *pool)
{
	if (pool == NULL) {
		return;
	}
	atomic_store(&pool->stop, 1);
	atomic_fetch_add(&pool->wake, 1);
	futex_wake(&pool->wake, (int)THREADS_MAX);
	for (uint32_t i = 1; i < pool->n_threads; i++) {
		PFX_ASSERT(pthread_join(pool->workers[i - 1].thread, NULL) == 0);
	}
	pfx_free(pool);
}

uint64_t pfx_pool_waited(struct pfx_pool *pool)
{
	uint64_t ns = pool->waited_ns;

	pool->waited_ns = 0;
	return ns;
}

uint32_t pfx_pool_threads(const struct pfx_pool *pool)
{
	return pool->n_threads;
}
