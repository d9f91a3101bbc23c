/* The pool of threads: each task once, whom a job waits for, where threads run, and rest. */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/cpu/pool.h"
#include "tests/tap.h"

static void sleep_ms(long ms)
{
	struct timespec ts = { 0, ms * 1000000 };

	nanosleep(&ts, NULL);
}

struct marks {
	_Atomic uint32_t seen[1000];
	_Atomic uint32_t wrong_thread;
};

static void mark(void *arg, uint32_t task, uint32_t thread)
{
	struct marks *m = arg;

	atomic_fetch_add(&m->seen[task], 1);
	if (thread >= 4) {
		atomic_fetch_add(&m->wrong_thread, 1);
	}
}

static void test_tasks(struct pfx_rng *rng)
{
	static struct marks m;
	struct pfx_pool *pool;
	uint32_t total = 0, sum = 0;

	is_int(pfx_pool_open(&pool, 4, 0), 0, "a pool opens");
	is_int(pfx_pool_threads(pool), 4, "it has the threads that were asked for");
	for (int i = 0; i < 3000; i++) {
		uint32_t n = (uint32_t)pfx_rng_below(rng, i % 10 == 0 ? 1000 : 8);
		pfx_pool_run(pool, mark, &m, n);
		total += n;
		if (i % 500 == 0) {
			sleep_ms(1); /* lets the threads fall asleep */
		}
	}
	for (int i = 0; i < 1000; i++) {
		sum += atomic_load(&m.seen[i]);
	}
	is_int(sum, total, "each task runs once");
	is_int(m.wrong_thread, 0, "thread numbers stay below the number of threads");
	pfx_pool_close(pool);
	pfx_pool_close(NULL);
}

/* Thread 0 is done at once, the others sleep in their task. */
static void nap(void *arg, uint32_t task, uint32_t thread)
{
	_Atomic uint32_t *left = arg;

	atomic_fetch_sub(left, 1);
	while (atomic_load(left) != 0) {
	}
	if (thread != 0) {
		sleep_ms(20);
	}
}

static void test_waited(void)
{
	struct pfx_pool *pool;
	_Atomic uint32_t left;
	uint64_t ns = 0;

	pfx_pool_open(&pool, 2, 0);
	is_int((long long)pfx_pool_waited(pool), 0, "a new pool has waited for nobody");
	/* A caller that does not run itself for so long need not wait. */
	for (int i = 0; i < 50 && ns < 15000000u; i++) {
		atomic_store(&left, 2);
		pfx_pool_run(pool, nap, (void *)&left, 2);
		ns = pfx_pool_waited(pool);
	}
	ok(ns >= 15000000u, "the caller has waited for the other thread's 20 ms (%.1f)", pfx_ns_to_ms(ns));
	is_int((long long)pfx_pool_waited(pool), 0, "and is asked for it once");
	pfx_pool_close(pool);
}

/* Processor time, not the clock's: what others on the machine do does not count. */
static double cpu_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

static void test_rest(void)
{
	static struct marks m;
	struct pfx_pool *pool;
	double before;

	pfx_pool_open(&pool, 4, 0);
	pfx_pool_run(pool, mark, &m, 1000);
	sleep_ms(20);
	before = cpu_ms();
	sleep_ms(200);
	ok(cpu_ms() - before < 20, "threads without work take no time (%.2f of 200 ms)",
		cpu_ms() - before);
	pfx_pool_close(pool);
}

#define THREADS 4u

struct places {
	cpu_set_t cores[THREADS];
	_Atomic uint32_t seen, left;
};

/* Each thread takes one task: it holds it until all are taken. */
static void look(void *arg, uint32_t task, uint32_t thread)
{
	struct places *p = arg;

	sched_getaffinity(0, sizeof(p->cores[thread]), &p->cores[thread]);
	atomic_fetch_add(&p->seen, 1);
	while (atomic_load(&p->seen) < atomic_load(&p->left)) {
		sched_yield();
	}
}

static int one_core(const cpu_set_t *set)
{
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (CPU_ISSET(i, set)) {
			return CPU_COUNT(set) == 1 ? i : -1;
		}
	}
	return -1;
}

static void *places_of(void *arg)
{
	static struct places plain, pinned;
	const cpu_set_t *usable = arg;
	uint32_t n = (uint32_t)CPU_COUNT(usable) < THREADS ? (uint32_t)CPU_COUNT(usable) : THREADS;
	struct pfx_pool *pool;
	cpu_set_t taken;
	int all = 1, apart = 1, inside = 1;

	plain.left = pinned.left = n;
	pfx_pool_open(&pool, n, 0);
	pfx_pool_enter(pool);
	pfx_pool_run(pool, look, &plain, n);
	for (uint32_t i = 0; i < n; i++) {
		all &= CPU_EQUAL(&plain.cores[i], usable);
	}
	ok(all, "threads may run on all cores of the process");
	pfx_pool_close(pool);

	pfx_pool_open(&pool, n, 1);
	pfx_pool_enter(pool);
	pfx_pool_run(pool, look, &pinned, n);
	CPU_ZERO(&taken);
	for (uint32_t i = 0; i < n; i++) {
		int core = one_core(&pinned.cores[i]);
		all &= core >= 0;
		inside &= core >= 0 && CPU_ISSET(core, usable);
		apart &= core >= 0 && !CPU_ISSET(core, &taken);
		if (core >= 0) {
			CPU_SET(core, &taken);
		}
	}
	ok(all, "pinned: %u threads stay on one core each", n);
	ok(inside, "of those that the process may use");
	ok(apart, "and no two on the same");
	pfx_pool_close(pool);
	is_int(pfx_pool_open(&pool, n + 1, 1), 0, "more threads than cores can be pinned as well");
	pfx_pool_close(pool);
	return NULL;
}

/* On a thread of its own, which stays where it was put. */
static void test_pinning(void)
{
	cpu_set_t usable, after;
	pthread_t thread;

	sched_getaffinity(0, sizeof(usable), &usable);
	pthread_create(&thread, NULL, places_of, &usable);
	pthread_join(thread, NULL);
	sched_getaffinity(0, sizeof(after), &after);
	ok(CPU_EQUAL(&usable, &after), "threads that do not compute are left alone");
}

int main(void)
{
	struct pfx_rng rng = { pfx_rng_entropy() };

	printf("# seed %llu\n", (unsigned long long)rng.state);
	test_tasks(&rng);
	test_waited();
	test_rest();
	test_pinning();
	return tap_done();
}
