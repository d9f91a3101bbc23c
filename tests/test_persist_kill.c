/*
 * kill -9 at random points: a child writes chains and tells through a pipe what was
 * acknowledged; after each kill every such record is there and verifies, every other one is
 * right or a miss. The seed is printed.
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "tests/persist_util.h"

#ifndef ROUNDS
#define ROUNDS 20
#endif

#define CAP (64u << 20)
#define DEPTH 4
#define NUMBER_MAX 3000

static const char *folder;
static uint8_t acked[NUMBER_MAX][DEPTH];

static struct pfx_store *open_store(struct pfx_store_opened *opened)
{
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store *store;
	char err[300] = "";

	if (pfx_store_lmdb_open(&store, &opts, opened, err, sizeof(err)) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
	return store;
}

struct ack {
	uint32_t number, block;
};

/* Writes until it is killed: batches, now and then a sync, a compact, or a clear of scratch. */
static _Noreturn void child(int fd, uint32_t number, uint64_t seed)
{
	struct pfx_rng rng = { seed };
	struct pfx_store *store = open_store(NULL);

	for (; number < NUMBER_MAX; number++) {
		struct u_chain c, scratch;
		struct pfx_store_item items[DEPTH];
		static uint8_t kv[DEPTH][U_KV];
		int results[DEPTH];

		u_chain_make(&c, 1, number, DEPTH);
		for (uint32_t i = 0; i < DEPTH; i++) {
			u_kv(&c.key[i], kv[i]);
			items[i] = (struct pfx_store_item){ .key = &c.key[i], .kv = kv[i] };
		}
		pfx_store_put(store, items, DEPTH, results);
		for (uint32_t i = 0; i < DEPTH; i++) {
			struct ack ack = { number, i };

			if (results[i] == 0 && write(fd, &ack, sizeof(ack)) != sizeof(ack)) {
				_exit(1);
			}
		}
		u_chain_make(&scratch, 2, number, 2);
		u_put(store, &scratch.key[0]);
		u_get(store, &c.key[1]);
		switch (pfx_rng_below(&rng, 24)) {
		case 0: pfx_store_sync(store); break;
		case 1: pfx_store_clear(store, &scratch.key[0].space, NULL); break;
		case 2: pfx_store_compact(store); break;
		}
	}
	_exit(0);
}

/* Collects what was told until the child is dead; the highest number seen. */
static uint32_t collect(int fd, uint32_t number)
{
	struct ack ack;

	while (read(fd, &ack, sizeof(ack)) == sizeof(ack)) {
		acked[ack.number][ack.block] = 1;
		number = ack.number > number ? ack.number : number;
	}
	return number;
}

static void pause_us(uint64_t us)
{
	struct timespec t = { .tv_sec = (time_t)(us / 1000000),
		.tv_nsec = (long)(us % 1000000) * 1000 };

	nanosleep(&t, NULL);
}

int main(void)
{
	const char *env = getenv("PREFIXD_SEED");
	uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : pfx_rng_entropy();
	struct pfx_rng rng = { seed };
	uint32_t next = 0;
	int lost = 0, wrong = 0, aside = 0, total = 0;

	printf("# seed %llu\n", (unsigned long long)seed);
	pfx_log_set_level(PFX_LOG_ERROR);
	folder = u_folder();
	for (int round = 0; round < ROUNDS; round++) {
		struct pfx_store_opened opened;
		struct pfx_store *store;
		int fds[2];
		pid_t pid;

		if (pipe(fds) != 0) {
			break;
		}
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			close(fds[0]);
			child(fds[1], next, seed + (uint64_t)round);
		}
		close(fds[1]);
		pause_us(5000 + pfx_rng_below(&rng, 80000));
		kill(pid, SIGKILL);
		next = collect(fds[0], next) + 1;
		close(fds[0]);
		waitpid(pid, NULL, 0);
		store = open_store(&opened);
		aside += opened.set_aside;
		for (uint32_t n = 0; n <= next && n < NUMBER_MAX; n++) {
			struct u_chain c;

			u_chain_make(&c, 1, n, DEPTH);
			for (int i = 0; i < DEPTH; i++) {
				int rc = u_get(store, &c.key[i]);

				lost += acked[n][i] && rc != 0;
				wrong += rc != 0 && rc != -ENOENT;
			}
		}
		pfx_store_close(store);
	}
	for (uint32_t n = 0; n < NUMBER_MAX; n++) {
		total += acked[n][0] + acked[n][1] + acked[n][2] + acked[n][3];
	}
	ok(total > ROUNDS, "%d rounds of kill -9: %d records were acknowledged", ROUNDS, total);
	is_int(lost, 0, "none of them was lost");
	is_int(wrong, 0, "and none was damaged");
	is_int(aside, 0, "no environment was set aside");
	u_remove(folder);
	return tap_done();
}
