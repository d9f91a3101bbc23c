/*
 * The writer over a store that fails on purpose: every item accepted is answered once, a
 * full queue is an answer, nothing waits for a disk that does not come back, and what is
 * read is right or a miss, whatever fault was injected. The seed is printed.
 */
#include <pthread.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "persist/writer.h"
#include "tests/persist_util.h"

#define N_CHAINS 40
#define DEPTH 6

static struct u_chain chains[N_CHAINS];
static uint8_t kv[N_CHAINS][DEPTH][U_KV];
static _Atomic int answered, good, cancelled;

static void count(void *arg, int result)
{
	answered++;
	good += result == 0;
	cancelled += result == -ECANCELED;
}

static void set_flag(void *arg, int result)
{
	*(_Atomic int *)arg = result == 0 ? 1 : result;
}

static void pause_ms(long ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static void open_mem(struct pfx_store **fault, uint64_t seed)
{
	struct pfx_store_shape shape = u_shape();
	struct pfx_store *mem;

	if (pfx_store_mem_open(&mem, &shape, 64 << 20, NULL, 0) != 0 ||
		pfx_store_fault_open(fault, mem, seed) != 0) {
		printf("Bail out! no store\n");
		exit(1);
	}
}

static int put_all(struct pfx_writer *w)
{
	int accepted = 0;

	for (int c = 0; c < N_CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			accepted += pfx_writer_put(w, &chains[c].key[i], kv[c][i], count, NULL) == 0;
		}
	}
	return accepted;
}

static void test_plain(void)
{
	struct pfx_writer_opts opts = { .queue_max = N_CHAINS * DEPTH };
	struct pfx_store *store;
	struct pfx_writer *w;
	struct pfx_writer_stats stats;
	int wrong = 0;
	_Atomic int synced = 0;

	open_mem(&store, 1);
	answered = good = 0;
	pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
	is_int(pfx_writer_open(&w, store, &opts), 0, "writer: opens");
	is_int(put_all(w), N_CHAINS * DEPTH, "writer: takes all");
	/* Stuck in its first batch until all stand behind that. */
	pfx_store_fault_release(store);
	is_int(pfx_writer_sync(w, set_flag, (void *)&synced), 0, "writer: takes a sync");
	is_int(pfx_writer_flush(w, 10000), 0, "writer: flushes");
	is_int(synced, 1, "writer: the sync before was answered");
	is_int(good, N_CHAINS * DEPTH, "writer: every item was answered");
	for (int c = 0; c < N_CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			wrong += u_get(store, &chains[c].key[i]) != 0;
		}
	}
	is_int(wrong, 0, "writer: all are there");
	pfx_writer_stats(w, &stats);
	is_int(stats.written, N_CHAINS * DEPTH, "writer: counted");
	ok(stats.batches < N_CHAINS * DEPTH, "writer: in %d batches", (int)stats.batches);
	is_int(stats.queued, 0, "writer: nothing waits");
	is_int(pfx_writer_close(w), 0, "writer: closes");
	pfx_store_close(store);
}

/* Deletions keep their place between puts, and none is dropped when the queue is full. */
static void test_deletes(void)
{
	struct pfx_writer_opts opts = { .queue_max = 3, .batch_max = 100 };
	struct pfx_store *store;
	struct pfx_writer *w;
	struct pfx_writer_stats stats;
	int there = 0;

	open_mem(&store, 4);
	answered = good = cancelled = 0;
	pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
	pfx_writer_open(&w, store, &opts);
	pfx_writer_delete(w, &chains[1].key[0], count, NULL);
	while (pfx_store_fault_count(store, PFX_FAULT_STUCK) == 0) {
		pause_ms(1);
	}
	/* The thread is stuck with the first, so what follows is one batch. */
	is_int(pfx_writer_put(w, &chains[0].key[0], kv[0][0], count, NULL), 0, "deletes: a put");
	pfx_writer_put(w, &chains[0].key[1], kv[0][1], count, NULL);
	is_int(pfx_writer_delete(w, &chains[0].key[0], count, NULL), 0, "deletes: and its deletion");
	pfx_writer_put(w, &chains[0].key[0], kv[0][0], count, NULL);
	is_int(pfx_writer_put(w, &chains[0].key[1], kv[0][1], count, NULL), PFX_E_FULL,
		"deletes: the queue takes no more puts");
	for (int i = 0; i < DEPTH; i++) {
		there += pfx_writer_delete(w, &chains[2].key[i], count, NULL) == 0;
	}
	is_int(there, DEPTH, "deletes: but deletions, however many");
	pfx_store_fault_release(store);
	is_int(pfx_writer_flush(w, 10000), 0, "deletes: one of nothing is no error");
	is_int(good, 5 + DEPTH, "deletes: all were answered");
	is_int(u_get(store, &chains[0].key[0]), 0, "deletes: what was put after is there");
	is_int(u_get(store, &chains[0].key[1]), -ENOENT, "deletes: what was deleted is not");
	pfx_writer_stats(w, &stats);
	is_int(stats.deletes, 2 + DEPTH, "deletes: are counted");
	is_int(stats.accepted, 3, "deletes: and not as puts");
	is_int(stats.batches, 2, "deletes: in one batch with the puts");
	is_int(stats.queued, 0, "deletes: nothing waits");
	pfx_store_fault_set(store, PFX_FAULT_PUT_FAILS, 1);
	pfx_writer_delete(w, &chains[0].key[0], count, NULL);
	is_int(pfx_writer_flush(w, 10000), -EIO, "deletes: one that fails is told");
	is_int(pfx_writer_close(w), -EIO, "deletes: by close, too");
	pfx_store_close(store);
}

/* A disk that hangs: nobody waits for it. */
static void test_stuck(void)
{
	struct pfx_writer_opts opts = { .queue_max = 50, .batch_max = 4 };
	struct pfx_store *store;
	struct pfx_writer *w;
	struct pfx_writer_stats stats;
	int accepted;

	open_mem(&store, 2);
	answered = good = cancelled = 0;
	pfx_store_fault_set(store, PFX_FAULT_STUCK, 1);
	pfx_writer_open(&w, store, &opts);
	accepted = put_all(w);
	is_int(accepted, 50, "stuck: the queue takes what it may");
	pfx_writer_stats(w, &stats);
	is_int(stats.dropped, N_CHAINS * DEPTH - 50, "stuck: the rest is dropped and counted");
	is_int(pfx_writer_flush(w, 20), -ETIMEDOUT, "stuck: a flush ends in time");
	while (pfx_store_fault_count(store, PFX_FAULT_STUCK) == 0) {
		pause_ms(1);
	}
	is_int(pfx_writer_discard(w, NULL, 20), -ETIMEDOUT, "stuck: a discard ends in time");
	is_int(answered, 0, "stuck: nothing is answered");
	pfx_store_fault_release(store);
	is_int(pfx_writer_flush(w, 10000), 0, "stuck: it goes on when the disk does");
	is_int(answered, 50, "stuck: then all are answered");
	ok(cancelled >= 46, "stuck: %d of them as taken back", (int)cancelled);
	is_int(good + cancelled, 50, "stuck: the others were written");
	pfx_writer_close(w);
	pfx_store_close(store);
}

static void test_errors(void)
{
	struct pfx_store *store;
	struct pfx_writer *w;
	struct pfx_writer_stats stats;

	open_mem(&store, 3);
	answered = good = 0;
	pfx_store_fault_set(store, PFX_FAULT_FULL, 1);
	pfx_writer_open(&w, store, NULL);
	put_all(w);
	is_int(pfx_writer_flush(w, 10000), -ENOSPC, "full: a flush tells the first error");
	is_int(pfx_writer_flush(w, 10000), 0, "full: once");
	is_int(good, 0, "full: nothing was written");
	is_int(answered, N_CHAINS * DEPTH, "full: all were answered");
	pfx_store_fault_set(store, PFX_FAULT_FULL, 0);
	pfx_store_fault_set(store, PFX_FAULT_SYNC_FAILS, 1);
	put_all(w);
	is_int(pfx_writer_flush(w, 10000), -EIO, "a failed sync is told");
	pfx_store_fault_set(store, PFX_FAULT_SYNC_FAILS, 0);
	is_int(good, N_CHAINS * DEPTH, "and the puts were good all the same");
	pfx_writer_stats(w, &stats);
	is_int(stats.failed, N_CHAINS * DEPTH, "failures are counted");
	is_int(stats.failed_syncs, 1, "failed syncs, too");
	is_int(pfx_writer_close(w), -EIO, "close tells that not all went well");
	pfx_store_close(store);
}

/* Readers meet every fault while the writer writes; never a wrong byte. */
struct reader {
	struct pfx_store *store;
	uint64_t seed;
	_Atomic int *stop;
	int gets, hits, wrong, failed;
};

static void *read_on(void *arg)
{
	struct reader *r = arg;
	struct pfx_rng rng = { r->seed };

	while (!*r->stop || r->gets < 1000) {
		int rc = u_get(r->store, &chains[pfx_rng_below(&rng, N_CHAINS)].key
			[pfx_rng_below(&rng, DEPTH)]);

		r->gets++;
		r->hits += rc == 0;
		r->wrong += rc == 1;
		r->failed += rc < 0 && rc != -ENOENT;
	}
	return NULL;
}

/*
 * Whoever reads looks first whether the file was cut while it was open. A writer makes it longer at
 * the same time, commit by commit, which must never be taken for that.
 */
static void test_growth(struct pfx_store *store, uint64_t seed)
{
	struct reader readers[2];
	pthread_t threads[2];
	struct pfx_store_info info;
	_Atomic int stop = 0;
	int put = 0, failed = 0;

	for (uint64_t i = 0; i < 2; i++) {
		readers[i] = (struct reader){ .store = store, .seed = seed + i, .stop = &stop };
		pthread_create(&threads[i], NULL, read_on, &readers[i]);
	}
	for (int c = 0; c < N_CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			put += u_put(store, &chains[c].key[i]) == 0;
		}
	}
	stop = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		failed += readers[i].failed + readers[i].wrong;
	}
	pfx_store_info(store, &info);
	is_int(put, N_CHAINS * DEPTH, "a file that grows under its readers: every put succeeds");
	is_int(failed, 0, "... no read fails");
	is_int(info.broken, 0, "... and the store is whole");
}

static void storm(struct pfx_store *store, uint64_t seed, const char *what)
{
	struct reader readers[2];
	pthread_t threads[2];
	struct pfx_writer *w;
	_Atomic int stop = 0;
	int hits = 0, wrong = 0, accepted = 0;

	answered = 0;
	pfx_store_fault_slow_ns(store, 100000);
	for (enum pfx_store_fault f = 0; f < PFX_FAULTS; f++) {
		pfx_store_fault_set(store, f, f == PFX_FAULT_STUCK ? 0 : 20);
	}
	/* These have fewer occasions: a batch, a flush. */
	pfx_store_fault_set(store, PFX_FAULT_PUT_FAILS, 5);
	pfx_store_fault_set(store, PFX_FAULT_FULL, 5);
	pfx_store_fault_set(store, PFX_FAULT_SYNC_FAILS, 2);
	pfx_writer_open(&w, store, NULL);
	for (uint64_t i = 0; i < 2; i++) {
		readers[i] = (struct reader){ .store = store, .seed = seed + i, .stop = &stop };
		pthread_create(&threads[i], NULL, read_on, &readers[i]);
	}
	for (int round = 0; round < 8; round++) {
		accepted += put_all(w);
		for (int c = round % 3; c < N_CHAINS; c += 3) {
			accepted += pfx_writer_delete(w, &chains[c].key[DEPTH - 1 - round % 2], count, NULL) == 0;
		}
		pfx_writer_flush(w, 10000);
	}
	stop = 1;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		hits += readers[i].hits;
		wrong += readers[i].wrong;
	}
	pfx_writer_close(w);
	is_int(wrong, 0, "%s: no wrong byte under every fault, seed %llu", what,
		(unsigned long long)seed);
	ok(hits > 100, "%s: %d hits all the same", what, hits);
	is_int(answered, accepted, "%s: every item was answered", what);
	for (enum pfx_store_fault f = 0; f < PFX_FAULTS; f++) {
		wrong += f != PFX_FAULT_STUCK && f != PFX_FAULT_SYNC_FAILS &&
			pfx_store_fault_count(store, f) == 0;
	}
	is_int(wrong, 0, "%s: every fault of a get or put did happen", what);
	for (enum pfx_store_fault f = 0; f < PFX_FAULTS; f++) {
		pfx_store_fault_set(store, f, 0);
	}
	wrong = 0;
	for (int c = 0; c < N_CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			int rc = u_get(store, &chains[c].key[i]);

			wrong += rc != 0 && (u_get(store, &chains[c].key[i]) != -ENOENT ||
				u_put(store, &chains[c].key[i]) != 0 || u_get(store, &chains[c].key[i]) != 0);
		}
	}
	is_int(wrong, 0, "%s: and heals when they stop", what);
}

int main(void)
{
	const char *env = getenv("PREFIXD_SEED");
	uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : pfx_rng_entropy();
	struct pfx_store_lmdb_opts opts;
	struct pfx_store *store, *lmdb;
	const char *folder;
	uint64_t records;

	printf("# seed %llu\n", (unsigned long long)seed);
	pfx_log_set_level(PFX_LOG_ERROR);
	for (uint32_t c = 0; c < N_CHAINS; c++) {
		u_chain_make(&chains[c], c % 3, c, DEPTH);
		for (int i = 0; i < DEPTH; i++) {
			u_kv(&chains[c].key[i], kv[c][i]);
		}
	}
	test_plain();
	test_deletes();
	test_stuck();
	test_errors();
	open_mem(&store, seed);
	storm(store, seed, "memory");
	pfx_store_close(store);
	folder = u_folder();
	opts = u_opts(folder, 8 << 20);
	for (int i = 0; i < 8; i++) {
		if (pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
			printf("Bail out! no store\n");
			return 1;
		}
		test_growth(store, seed + (uint64_t)i);
		pfx_store_clear(store, NULL, &records);
		pfx_store_close(store);
	}
	if (pfx_store_lmdb_open(&lmdb, &opts, NULL, NULL, 0) != 0 ||
		pfx_store_fault_open(&store, lmdb, seed) != 0) {
		printf("Bail out! no store\n");
		return 1;
	}
	storm(store, seed, "lmdb");
	pfx_store_close(store);
	u_remove(folder);
	return tap_done();
}
