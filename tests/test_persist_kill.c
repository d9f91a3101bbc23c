/*
 * kill -9 at random points: a child changes the store and tells through a pipe what it is about
 * to do and what was acknowledged. After each kill every record that was acknowledged is there
 * and verifies, every deletion that was is done, all else is right or a miss, and the file is
 * sound. Puts in batches, parts of blocks that are replaced, deletions, growth of the map,
 * eviction at the cap, sync, compact, clear. The seed is printed.
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
#define NUMBERS 4000
/* The last block of a chain is put in part first. */
#define PART DEPTH

enum state { UNKNOWN, THERE, GONE };

static const char *folder;
static uint8_t state[NUMBERS][DEPTH + 1];

struct word {
	uint32_t number, what; /* a block of that chain, or PART; ALL: all chains */
	uint32_t is;           /* what it is from now on */
};
#define ALL UINT32_MAX

static struct pfx_store *open_store(uint64_t cap, struct pfx_store_opened *opened)
{
	struct pfx_store_lmdb_opts opts = u_opts(folder, cap);
	struct pfx_store *store;
	char err[300] = "";

	if (pfx_store_lmdb_open(&store, &opts, opened, err, sizeof(err)) != 0) {
		printf("Bail out! %s\n", err);
		exit(1);
	}
	return store;
}

static void say(int fd, uint32_t number, uint32_t what, enum state is)
{
	struct word word = { number, what, is };

	if (write(fd, &word, sizeof(word)) != sizeof(word)) {
		_exit(1);
	}
}

/* ---- the child ---- */

static void key_of(const struct u_chain *c, uint32_t what, struct pfx_store_key *out)
{
	*out = c->key[what == PART ? DEPTH - 1 : what];
	if (what == PART) {
		pfx_store_key_head(out, &c->key[DEPTH - 1], U_BLOCK / 2);
	}
}

/* The first blocks and a part of the last, in one transaction. */
static void put_chain(struct pfx_store *store, int fd, uint32_t number)
{
	static const uint32_t what[DEPTH] = { 0, 1, 2, PART };
	static uint8_t kv[DEPTH][U_KV];
	struct pfx_store_key key[DEPTH];
	struct pfx_store_item items[DEPTH];
	int results[DEPTH];
	struct u_chain c;

	u_chain_make(&c, 1, number, DEPTH);
	for (int i = 0; i < DEPTH; i++) {
		key_of(&c, what[i], &key[i]);
		u_kv(&key[i], kv[i]);
		items[i] = (struct pfx_store_item){ .key = &key[i], .kv = kv[i] };
		say(fd, number, what[i], UNKNOWN);
	}
	pfx_store_put(store, items, DEPTH, results);
	for (int i = 0; i < DEPTH; i++) {
		if (results[i] == 0) {
			say(fd, number, what[i], THERE);
		}
	}
}

static void replace_part(struct pfx_store *store, int fd, uint32_t number)
{
	struct u_chain c;

	u_chain_make(&c, 1, number, DEPTH);
	say(fd, number, PART, UNKNOWN);
	say(fd, number, DEPTH - 1, UNKNOWN);
	if (u_put(store, &c.key[DEPTH - 1]) == 0) {
		say(fd, number, PART, GONE);
		say(fd, number, DEPTH - 1, THERE);
	}
}

/* Block i and what hangs on it, beside a put of another chain in the same batch. */
static void delete_from(struct pfx_store *store, int fd, uint32_t number, uint32_t i)
{
	struct u_chain c, other;
	struct pfx_store_item items[2];
	uint8_t kv[U_KV];
	/* A part of the last block hangs on the one before, not on the whole one. */
	uint32_t last = i < DEPTH - 1 ? PART : i;
	int results[2];

	u_chain_make(&c, 1, number, DEPTH);
	u_chain_make(&other, 3, number, 1);
	u_kv(&other.key[0], kv);
	for (uint32_t k = i; k <= last; k++) {
		say(fd, number, k, UNKNOWN);
	}
	items[0] = (struct pfx_store_item){ .key = &c.key[i] };
	items[1] = (struct pfx_store_item){ .key = &other.key[0], .kv = kv };
	pfx_store_put(store, items, 2, results);
	for (uint32_t k = i; k <= last; k++) {
		if (results[0] == 0 || results[0] == -ENOENT) {
			say(fd, number, k, GONE);
		}
	}
}

/* Writes until it is killed. */
static _Noreturn void child(int fd, uint32_t number, uint64_t seed)
{
	struct pfx_rng rng = { seed };
	struct pfx_store *store = open_store(CAP, NULL);

	for (; number < NUMBERS; number++) {
		uint32_t older = number - (uint32_t)pfx_rng_below(&rng, number < 8 ? number + 1 : 8);
		struct u_chain scratch;

		put_chain(store, fd, number);
		u_chain_make(&scratch, 2, number, 2);
		u_put(store, &scratch.key[0]);
		switch (pfx_rng_below(&rng, 30)) {
		case 0: pfx_store_sync(store); break;
		case 1: pfx_store_clear(store, &scratch.key[0].space, NULL); break;
		case 2: pfx_store_compact(store); break;
		case 3:
			if (pfx_rng_below(&rng, 8) == 0) {
				say(fd, 0, ALL, UNKNOWN);
				if (pfx_store_clear(store, NULL, NULL) == 0) {
					say(fd, 0, ALL, GONE);
				}
			}
			break;
		default:
			if (pfx_rng_below(&rng, 2) == 0) {
				replace_part(store, fd, older);
			} else {
				delete_from(store, fd, older, (uint32_t)pfx_rng_below(&rng, DEPTH));
			}
		}
	}
	_exit(0);
}

/* ---- the parent ---- */

/* Listens until the child is dead; the number after the highest one heard of. */
static uint32_t listen_to(int fd, uint32_t next, uint32_t words[3])
{
	struct word w;

	while (read(fd, &w, sizeof(w)) == sizeof(w)) {
		words[w.is]++;
		if (w.what == ALL) {
			memset(state, (int)w.is, sizeof(state));
			continue;
		}
		state[w.number][w.what] = (uint8_t)w.is;
		next = w.number >= next ? w.number + 1 : next;
	}
	return next;
}

struct tally {
	int lost, wrong, back, aside, dropped, damaged;
};

static void look(struct pfx_store *store, uint32_t next, struct tally *t)
{
	struct pfx_store_verified seen;

	for (uint32_t n = 0; n <= next && n < NUMBERS; n++) {
		struct u_chain c;

		u_chain_make(&c, 1, n, DEPTH);
		for (uint32_t i = 0; i <= DEPTH; i++) {
			struct pfx_store_key key;
			int rc;

			key_of(&c, i, &key);
			rc = u_get(store, &key);
			t->lost += state[n][i] == THERE && rc != 0;
			t->back += state[n][i] == GONE && rc == 0;
			t->wrong += rc != 0 && rc != -ENOENT;
		}
	}
	t->damaged += pfx_store_verify(store, &seen) != 0 || seen.damaged > 0;
}

static void pause_us(uint64_t us)
{
	struct timespec t = { .tv_sec = (time_t)(us / 1000000),
		.tv_nsec = (long)(us % 1000000) * 1000 };

	nanosleep(&t, NULL);
}

static uint32_t one_round(uint32_t next, uint64_t seed, uint64_t us, struct tally *t,
	uint32_t words[3])
{
	struct pfx_store_opened opened;
	struct pfx_store *store;
	int fds[2];
	pid_t pid;

	if (pipe(fds) != 0) {
		printf("Bail out! no pipe\n");
		exit(1);
	}
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		child(fds[1], next, seed);
	}
	close(fds[1]);
	pause_us(us);
	kill(pid, SIGKILL);
	next = listen_to(fds[0], next, words) + 1;
	close(fds[0]);
	waitpid(pid, NULL, 0);
	store = open_store(CAP, &opened);
	t->aside += opened.set_aside;
	t->dropped += (int)opened.dropped;
	look(store, next, t);
	pfx_store_close(store);
	return next;
}

/* At the cap: a child that evicts and deletes all the time; what is left is sound. */
static _Noreturn void churn(uint32_t number)
{
	struct pfx_store *store = open_store(3 << 20, NULL);

	for (;; number++) {
		struct u_chain c;

		u_chain_make(&c, 4, number, 2);
		u_put(store, &c.key[0]);
		u_put(store, &c.key[1]);
		if (number % 3 == 0) {
			pfx_store_delete(store, &c.key[0]);
		}
	}
}

static void test_at_cap(int rounds, struct pfx_rng *rng)
{
	int bad = 0, records = 0;

	folder = u_folder();
	for (int i = 0; i < rounds; i++) {
		struct pfx_store_opened opened;
		struct pfx_store_verified seen;
		struct pfx_store_info info;
		struct pfx_store *store;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			churn((uint32_t)i * 100000);
		}
		pause_us(5000 + pfx_rng_below(rng, 100000));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		store = open_store(3 << 20, &opened);
		bad += opened.set_aside || opened.dropped > 0;
		bad += pfx_store_verify(store, &seen) != 0 || seen.damaged > 0;
		pfx_store_info(store, &info);
		bad += info.file_bytes > 3 << 20;
		records = (int)info.records;
		pfx_store_close(store);
	}
	is_int(bad, 0, "%d rounds of kill -9 at the cap: all %d records verify", rounds, records);
	u_remove(folder);
}

/* So much was acknowledged that the rounds are a test of it. */
static int enough(const uint32_t words[3])
{
	return words[THERE] > ROUNDS && words[GONE] > ROUNDS / 4;
}

int main(void)
{
	const char *env = getenv("PREFIXD_SEED");
	uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : pfx_rng_entropy();
	struct pfx_rng rng = { seed };
	struct tally t = { 0 };
	uint32_t next = 0, words[3] = { 0 };
	int rounds = 0;

	printf("# seed %llu\n", (unsigned long long)seed);
	pfx_log_set_level(PFX_LOG_ERROR);
	folder = u_folder();
	/* A child that hardly ran, for the machine's other work, says little: then there are more. */
	while (next < NUMBERS && (rounds < ROUNDS || (rounds < 10 * ROUNDS && !enough(words)))) {
		next = one_round(next, seed + (uint64_t)rounds, 5000 + pfx_rng_below(&rng, 80000), &t, words);
		rounds++;
	}
	ok(enough(words), "%d rounds of kill -9: %u puts and %u deletions were acknowledged", rounds,
		words[THERE], words[GONE]);
	is_int(t.lost, 0, "no put of these was lost");
	is_int(t.back, 0, "no deletion of these was undone");
	is_int(t.wrong, 0, "nothing was damaged");
	is_int(t.damaged, 0, "all verifies");
	is_int(t.aside, 0, "no environment was set aside");
	is_int(t.dropped, 0, "no row hung on nothing");
	u_remove(folder);
	test_at_cap(ROUNDS / 4, &rng);
	return tap_done();
}
