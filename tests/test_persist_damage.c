/*
 * The LMDB store on a bad disk: files cut short, bits flipped in every kind of page, a full
 * disk, a folder that cannot be written, somebody else's environment. The process that uses
 * the store must never die and never see wrong KV. The seed is printed.
 */
#include "config.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/log.h"
#include "persist/audit.h"
#include "tests/persist_util.h"

#ifndef ROUNDS
#define ROUNDS 16
#endif

#define CHAINS 10
#define DEPTH 12
#define CAP (4u << 20)
#define SEED_ENV "PREFIXD_SEED"

static struct u_chain chains[CHAINS];
static uint8_t *image; /* a sound data.mdb */
static size_t image_len;

static const char *path_of(const char *folder, const char *name)
{
	static char path[300];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static const char *data_path(const char *folder)
{
	return path_of(folder, "data.mdb");
}

static void write_file(const char *folder, const char *name, const uint8_t *bytes, size_t n)
{
	FILE *f = fopen(path_of(folder, name), "wb");

	if (f == NULL || (n > 0 && fwrite(bytes, 1, n, f) != n)) {
		printf("Bail out! cannot write\n");
		exit(1);
	}
	fclose(f);
}

static void write_image(const char *folder, const uint8_t *bytes, size_t n)
{
	write_file(folder, "data.mdb", bytes, n);
}

static int count_files(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *e;
	int n = 0;

	while (dir != NULL && (e = readdir(dir)) != NULL) {
		n += e->d_name[0] != '.';
	}
	if (dir != NULL) {
		closedir(dir);
	}
	return n;
}

static void make_image(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store *store;
	struct stat st;
	FILE *f;

	if (pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
		printf("Bail out! no store\n");
		exit(1);
	}
	for (uint32_t c = 0; c < CHAINS; c++) {
		u_chain_make(&chains[c], c % 2, c, DEPTH);
		for (int i = 0; i < DEPTH; i++) {
			u_put(store, &chains[c].key[i]);
		}
	}
	/* Without the pages that older snapshots left behind: damage there changes nothing. */
	pfx_store_compact(store);
	/* Some free pages, so that the free list has something to be damaged in. */
	pfx_store_delete(store, &chains[0].key[4]);
	pfx_store_delete(store, &chains[3].key[2]);
	pfx_store_close(store);
	f = fopen(data_path(folder), "rb");
	if (f == NULL || fstat(fileno(f), &st) != 0) {
		printf("Bail out! no file\n");
		exit(1);
	}
	image_len = (size_t)st.st_size;
	image = malloc(image_len);
	if (fread(image, 1, image_len, f) != image_len) {
		printf("Bail out! short file\n");
		exit(1);
	}
	fclose(f);
	u_remove(folder);
}

/* What a server would do: open, read all, write much, sync. 0, or what went wrong. */
static int use_store(const char *folder, int *set_aside)
{
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store_opened opened;
	struct pfx_store_verified seen;
	struct pfx_store *store;
	char err[300] = "";

	if (pfx_store_lmdb_open(&store, &opts, &opened, err, sizeof(err)) != 0) {
		printf("# %s\n", err);
		return 2;
	}
	*set_aside = opened.set_aside;
	for (int c = 0; c < CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			if (u_get(store, &chains[c].key[i]) == 1) {
				return 3;
			}
		}
	}
	pfx_store_delete(store, &chains[1].key[3]);
	for (int c = 0; c < CHAINS; c += 2) {
		for (int i = 0; i < DEPTH; i++) {
			if (u_put(store, &chains[c].key[i]) != 0) {
				return 4;
			}
		}
	}
	if (pfx_store_verify(store, &seen) != 0 || pfx_store_sync(store) != 0) {
		return 5;
	}
	for (int c = 0; c < CHAINS; c += 2) {
		for (int i = 0; i < DEPTH; i++) {
			if (u_get(store, &chains[c].key[i]) != 0) {
				return 6;
			}
		}
	}
	pfx_store_close(store);
	/* It is as sound as if nothing had been. */
	return pfx_audit(data_path(folder), err, sizeof(err)) == 0 ? 0 : 7;
}

/* The same in a process of its own: its result, or minus the signal that ended it. */
static int use_in_child(const char *folder, int *set_aside)
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int aside = 0, rc = use_store(folder, &aside);

		fflush(stdout);
		_exit(rc == 0 && aside ? 100 : rc);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status)) {
		return -WTERMSIG(status);
	}
	*set_aside += WEXITSTATUS(status) == 100;
	return WEXITSTATUS(status) == 100 ? 0 : WEXITSTATUS(status);
}

enum kind { IN_META, IN_TREE, IN_VALUE, IN_HEAD, KINDS };
static const char *const kind_names[] = { "meta pages", "tree pages", "values",
	"what LMDB keeps before values" };

/* The kind of each byte of the image, as the headers of its pages say. */
static enum kind kind_of(size_t at)
{
	static uint8_t *in_value;
	uint16_t flags;
	uint32_t pages;

	if (in_value == NULL) {
		in_value = calloc(1, image_len / 4096 + 1);
		for (size_t p = 2; p < image_len / 4096; p++) {
			memcpy(&flags, image + p * 4096 + 10, 2);
			memcpy(&pages, image + p * 4096 + 12, 4);
			if (flags == 4 && pages < 100) {
				memset(in_value + p, 1, pages);
				in_value[p] = 2;
				p += pages - 1;
			}
		}
	}
	if (at < 2 * 4096) {
		return at % 4096 < 152 ? IN_META : KINDS;
	}
	if (in_value[at / 4096] == 2 && at % 4096 < 16) {
		return IN_HEAD;
	}
	return in_value[at / 4096] ? IN_VALUE : IN_TREE;
}

static size_t pick(enum kind kind, struct pfx_rng *rng)
{
	for (;;) {
		size_t at = (size_t)pfx_rng_below(rng, image_len), page = at / 4096 * 4096;

		if (kind == IN_META) {
			at = (size_t)pfx_rng_below(rng, 2) * 4096 + at % 152;
		} else if (kind == IN_HEAD) {
			at = page + at % 16;
		} else if (kind == IN_TREE && at % 2 == 0) {
			at = page + at % 96; /* headers and offsets */
		}
		if (kind_of(at) == kind) {
			return at;
		}
	}
}

static void test_flips(enum kind kind, uint64_t seed)
{
	struct pfx_rng rng = { seed + kind };
	uint8_t *bytes = malloc(image_len);
	int died = 0, wrong = 0, aside = 0;

	for (int i = 0; i < ROUNDS; i++) {
		size_t at = pick(kind, &rng);
		const char *folder = u_folder();
		int rc;

		memcpy(bytes, image, image_len);
		bytes[at] ^= (uint8_t)(1u << pfx_rng_below(&rng, 8));
		write_image(folder, bytes, image_len);
		rc = use_in_child(folder, &aside);
		if (rc != 0) {
			printf("# %s: byte %zu of page %zu: %d, seed %llu\n", kind_names[kind], at % 4096,
				at / 4096, rc, (unsigned long long)seed);
		}
		died += rc < 0;
		wrong += rc > 0;
		u_remove(folder);
	}
	free(bytes);
	is_int(died, 0, "%d flips in %s: nobody died (%d set aside)", ROUNDS, kind_names[kind],
		aside);
	is_int(wrong, 0, "%d flips in %s: the store works all the same", ROUNDS, kind_names[kind]);
	if (kind == IN_HEAD) {
		is_int(aside, 0, "%d flips in %s: mended from the tree", ROUNDS, kind_names[kind]);
	}
}

/* Whole pages of zeros or of noise, as a disk leaves them that lost a write. */
static void test_lost_pages(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	uint8_t *bytes = malloc(image_len);
	int bad = 0, aside = 0;

	for (int i = 0; i < ROUNDS; i++) {
		size_t page = (size_t)pfx_rng_below(&rng, image_len / 4096) * 4096;
		const char *folder = u_folder();
		int rc;

		memcpy(bytes, image, image_len);
		for (size_t k = 0; k < 4096; k++) {
			bytes[page + k] = i % 2 == 0 ? 0 : (uint8_t)pfx_rng_next(&rng);
		}
		write_image(folder, bytes, image_len);
		rc = use_in_child(folder, &aside);
		if (rc != 0) {
			printf("# page %zu lost: %d\n", page / 4096, rc);
		}
		bad += rc != 0;
		u_remove(folder);
	}
	free(bytes);
	is_int(bad, 0, "%d pages lost: the store works (%d set aside), seed %llu", ROUNDS, aside,
		(unsigned long long)seed);
}

/* LMDB's lock file and ours are made anew from anything: nobody else is there. */
static void test_lock_files(uint64_t seed)
{
	static const char *const names[] = { "lock.mdb", "prefixd.lock" };
	struct pfx_rng rng = { seed };
	int bad = 0, aside = 0;

	for (int i = 0; i < ROUNDS; i++) {
		const char *folder = u_folder();
		static uint8_t noise[10000];
		size_t n = i % 4 == 0 ? (size_t)pfx_rng_below(&rng, sizeof(noise)) : 8192;

		for (size_t k = 0; k < n; k++) {
			noise[k] = i % 3 == 0 ? 0 : (uint8_t)pfx_rng_next(&rng);
		}
		write_image(folder, image, image_len);
		write_file(folder, names[i % 2], noise, n);
		bad += use_in_child(folder, &aside) != 0;
		u_remove(folder);
	}
	is_int(bad, 0, "%d lock files of noise: the store works, seed %llu", ROUNDS,
		(unsigned long long)seed);
	is_int(aside, 0, "and nothing was set aside");
}

/* Where a file may end: inside of the meta pages, at and around each end of a page. */
static size_t cut_at(int i, struct pfx_rng *rng)
{
	static const size_t places[] = { 0, 1, 151, 4095, 4096, 4097, 8191, 8192, 8193 };
	int n = sizeof(places) / sizeof(places[0]);

	if (i < n) {
		return places[i];
	}
	return (size_t)pfx_rng_below(rng, image_len / 4096 - 2) * 4096 + 2 * 4096 +
		(size_t)pfx_rng_below(rng, 3) - 1;
}

static void test_truncated(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	int bad = 0, aside = 0, n = 9 + ROUNDS / 4;

	for (int i = 0; i < n; i++) {
		const char *folder = u_folder();
		int rc;

		write_file(folder, "prefixd.lock", NULL, 0);
		write_image(folder, image, cut_at(i, &rng));
		rc = use_in_child(folder, &aside);
		if (rc != 0) {
			printf("# truncated: %d\n", rc);
		}
		bad += rc != 0;
		u_remove(folder);
	}
	is_int(bad, 0, "%d files cut short: the store works (%d set aside)", n, aside);
	ok(aside > n / 2, "and most of them were set aside");
}

static void test_garbage(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store_opened opened;
	struct pfx_store *store;
	char path[300], err[300] = "";
	struct stat st;
	static const uint8_t text[] = "this is no database, but it is longer than nothing";

	write_image(folder, text, 50);
	is_int(pfx_store_lmdb_open(&store, &opts, &opened, err, sizeof(err)), -EEXIST,
		"garbage where no store was: %s", err);
	ok(strstr(err, folder) != NULL, "garbage: the folder is named");
	is_int(count_files(folder), 1, "garbage: left alone");
	write_file(folder, "prefixd.lock", NULL, 0);
	is_int(pfx_store_lmdb_open(&store, &opts, &opened, NULL, 0), 0, "garbage: opens");
	is_int(opened.set_aside, 1, "garbage: set aside");
	ok(opened.why[0] != '\0', "garbage: %s", opened.why);
	snprintf(path, sizeof(path), "%s/damaged.mdb", folder);
	ok(stat(path, &st) == 0 && st.st_size == 50, "garbage: kept as damaged.mdb");
	pfx_store_close(store);
	u_remove(folder);
}

/* Cut while in use: the file is shorter than what was seen, so it is not read any more. */
static void test_cut_in_use(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store *store;
	struct pfx_store_info info;

	write_image(folder, image, image_len);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0), 0, "cut in use: opens");
	is_int(u_get(store, &chains[2].key[0]), 0, "cut in use: a hit before");
	is_int(truncate(data_path(folder), 3 * 4096), 0, "cut in use: cut");
	is_int(u_get(store, &chains[2].key[0]), -EIO, "cut in use: a miss after");
	is_int(u_put(store, &chains[0].key[5]), -ENOENT, "cut in use: a put without its parent");
	is_int(u_put(store, &chains[0].key[4]), -EIO, "cut in use: a put fails");
	pfx_store_info(store, &info);
	is_int(info.broken, 1, "cut in use: and it is told");
	pfx_store_close(store);
	u_remove(folder);
}

static void test_full_disk(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct rlimit old, small;
	struct pfx_store *store;
	int failed = 0, stored = 0, wrong = 0;

	write_image(folder, image, image_len);
	getrlimit(RLIMIT_FSIZE, &old);
	small = old;
	small.rlim_cur = image_len + 64 * 1024;
	signal(SIGXFSZ, SIG_IGN);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0), 0, "full disk: opens");
	setrlimit(RLIMIT_FSIZE, &small);
	for (uint32_t n = 100; n < 180; n++) {
		struct u_chain c;
		int rc;

		u_chain_make(&c, 1, n, 1);
		rc = u_put(store, &c.key[0]);
		failed += rc != 0;
		stored += rc == 0;
		wrong += u_get(store, &c.key[0]) != (rc == 0 ? 0 : -ENOENT);
	}
	wrong += u_get(store, &chains[2].key[5]) != 0;
	ok(failed > 5, "full disk: %d puts failed", failed);
	ok(stored > 0, "full disk: %d still found room", stored);
	is_int(wrong, 0, "full disk: what failed is a miss, the rest is there");
	setrlimit(RLIMIT_FSIZE, &old);
	is_int(u_put(store, &chains[0].key[4]), 0, "full disk: works again when there is room");
	is_int(u_get(store, &chains[0].key[4]), 0, "full disk: and reads");
	pfx_store_close(store);
	u_remove(folder);
}

/* In a child process: a disk of its own. */
static int small_disk(const char *folder, unsigned kib)
{
	char size[32];

	snprintf(size, sizeof(size), "size=%uk", kib);
	return unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
		mount("none", folder, "tmpfs", 0, size) != 0 ? 99 : 0;
}

/* Chains until the disk is full; how many blocks have been put. */
static uint32_t fill(struct pfx_store *store, struct u_chain *c, uint32_t n_chains)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_chains; i++) {
		u_chain_make(&c[i], 1, 100 + i, 64);
		for (uint32_t k = 0; k < 64; k++, n++) {
			if (u_put(store, &c[i].key[k]) != 0) {
				return n;
			}
		}
	}
	return n;
}

/*
 * All records of a full disk deleted at once, which takes more pages than are free. How many those
 * are is by chance: so disks of many sizes are filled, again and again.
 */
static int empty_full_disk(const char *folder)
{
	static struct u_chain c[40];
	struct pfx_store_lmdb_opts opts = u_opts(folder, 64u << 20);
	int wrong = 0;

	for (unsigned i = 0; i < 25; i++) {
		struct pfx_store *store;

		if (small_disk(folder, i < 24 ? 768 + 4 * i : 8192) != 0) {
			return 99;
		}
		if (pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
			return 1;
		}
		for (unsigned round = 0; round < 4; round++) {
			struct pfx_store_item items[40] = { 0 };
			uint32_t n = fill(store, c, 40), n_chains = (n + 63) / 64;
			int results[40];

			wrong += n < 80 || n == 40 * 64;
			for (uint32_t k = 0; k < n_chains; k++) {
				items[k].key = &c[k].key[0];
			}
			wrong += pfx_store_put(store, items, n_chains, results) != 0;
			for (uint32_t k = 0; k < n; k++) {
				wrong += u_get(store, &c[k / 64].key[k % 64]) != -ENOENT;
			}
			for (uint32_t k = 0; k < n_chains; k++) {
				wrong += results[k] != 0;
			}
		}
		pfx_store_close(store);
		umount(folder);
	}
	return wrong == 0 ? 0 : 2;
}

/* A disk of its own that is smaller than the cap, and full: ENOSPC in every place. */
static int fill_disk(const char *folder)
{
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store_info info;
	struct pfx_store *store;
	int failed = 0, wrong = 0, fd;
	static uint8_t zeros[4096];

	if (small_disk(folder, 1024) != 0) {
		return 99;
	}
	if (pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
		return 1;
	}
	for (int c = 0; c < CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			int rc = u_put(store, &chains[c].key[i]);

			failed += rc == -ENOSPC;
			wrong += rc != 0 && rc != -ENOSPC && rc != -ENOENT;
			wrong += rc == 0 && u_get(store, &chains[c].key[i]) != 0;
		}
	}
	for (uint32_t n = 100; failed < 100; n++) {
		struct u_chain c;

		u_chain_make(&c, 1, n, 1);
		failed += u_put(store, &c.key[0]) == -ENOSPC;
	}
	wrong += pfx_store_compact(store) != -ENOSPC;
	wrong += u_get(store, &chains[0].key[2]) != 0;
	wrong += pfx_store_delete(store, &chains[0].key[2]) != 0;
	wrong += u_get(store, &chains[0].key[2]) != -ENOENT;
	pfx_store_close(store);
	/* Nothing is left for a lock file either. */
	unlink(path_of(folder, "lock.mdb"));
	fd = open(path_of(folder, "filler"), O_WRONLY | O_CREAT, 0600);
	while (fd >= 0 && write(fd, zeros, sizeof(zeros)) > 0) {
	}
	close(fd);
	if (pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
		return 2;
	}
	pfx_store_info(store, &info);
	wrong += !info.read_only || u_get(store, &chains[0].key[1]) != 0;
	pfx_store_close(store);
	unlink(path_of(folder, "filler"));
	if (pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
		return 3;
	}
	wrong += pfx_store_clear(store, NULL, NULL) != 0;
	wrong += u_put(store, &chains[0].key[0]) != 0;
	pfx_store_close(store);
	if (mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0 ||
		pfx_store_lmdb_open(&store, &opts, NULL, NULL, 0) != 0) {
		return 4;
	}
	wrong += u_get(store, &chains[0].key[0]) != 0 || u_put(store, &chains[0].key[1]) != -EROFS;
	pfx_store_close(store);
	return wrong == 0 ? 0 : 5;
}

static void test_small_disk(int (*run)(const char *folder), const char *name)
{
	const char *folder = u_folder();
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		pfx_log_set_level(PFX_LOG_ERROR);
		_exit(run(folder));
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 99) {
		skip(1, "no right to mount a file system");
	} else {
		is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0, "%s", name);
	}
	u_remove(folder);
}

static void test_read_only(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store *store, *other;
	struct pfx_store_info info;
	char err[300] = "";

	opts.read_only = 1;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -ENOENT,
		"read-only: nothing there, %s", err);
	write_image(folder, image, image_len);
	chmod(folder, 0500);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), 0, "read-only: opens");
	is_int(u_get(store, &chains[2].key[5]), 0, "read-only: a hit");
	is_int(u_put(store, &chains[0].key[4]), -EROFS, "read-only: no put");
	is_int(pfx_store_delete(store, &chains[2].key[5]), -EROFS, "read-only: no delete");
	is_int(pfx_store_clear(store, NULL, NULL), -EROFS, "read-only: no clear");
	pfx_store_info(store, &info);
	is_int(info.read_only, 1, "read-only: is told");
	is_int(pfx_store_lmdb_open(&other, &opts, NULL, err, sizeof(err)), 0,
		"read-only: two may read");
	pfx_store_close(other);
	pfx_store_close(store);
	chmod(folder, 0700);
	u_remove(folder);
}

/* Runs fn in a process without root's rights: its result, or -1. */
static int as_nobody(int (*fn)(const char *folder), const char *folder)
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
			_exit(100);
		}
		_exit(fn(folder));
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* 0: opened read-only and works; 1: refused, and the folder is named; else wrong. */
static int try_read_only(const char *folder)
{
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store_info info;
	struct pfx_store *store;
	char err[300] = "";
	int rc = pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), works;

	if (rc != 0) {
		printf("# %s\n", err);
		fflush(stdout);
		return rc == -EACCES && strstr(err, folder) != NULL ? 1 : 2;
	}
	pfx_store_info(store, &info);
	works = info.read_only && u_get(store, &chains[2].key[5]) == 0 &&
		u_put(store, &chains[0].key[4]) == -EROFS;
	pfx_store_close(store);
	return works ? 0 : 3;
}

static void test_permissions(void)
{
	const char *folder = u_folder();

	write_image(folder, image, image_len);
	write_file(folder, "prefixd.lock", NULL, 0);
	chmod(folder, 0755);
	chmod(data_path(folder), 0644);
	chmod(path_of(folder, "prefixd.lock"), 0644);
	if (geteuid() != 0) {
		chmod(data_path(folder), 0444);
		is_int(as_nobody(try_read_only, folder), 0, "a file that is read-only is read");
		chmod(folder, 0555);
	}
	is_int(as_nobody(try_read_only, folder), 0, "a folder that is read-only is read");
	chmod(folder, 0777);
	chmod(data_path(folder), 0444);
	is_int(as_nobody(try_read_only, folder), 0, "a file that is read-only is read");
	chmod(data_path(folder), 0000);
	is_int(as_nobody(try_read_only, folder), 1, "a file that cannot be read is refused");
	chmod(folder, 0000);
	is_int(as_nobody(try_read_only, folder), 1, "a folder that cannot be entered is refused");
	chmod(folder, 0700);
	u_remove(folder);
}

static void test_no_folder(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts;
	struct pfx_store *store;
	char path[300], err[300] = "";

	write_file(folder, "file", (const uint8_t *)"x", 1);
	snprintf(path, sizeof(path), "%s/file", folder);
	opts = u_opts(path, CAP);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -ENOTDIR, "%s", err);
	ok(strstr(err, path) != NULL, "a file for a folder: it is named");
	opts.read_only = 1;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -ENOTDIR, "%s", err);
	snprintf(path, sizeof(path), "%s/new", folder);
	opts = u_opts(path, CAP);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), 0, "its last part is made");
	pfx_store_close(store);
	u_remove(path);
	u_remove(folder);
}

/* What another program may keep in a folder, by LMDB's own means. */
static void make_foreign(const char *folder, unsigned flags, const char *tree)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;
	int rc = mdb_env_create(&env);

	mdb_env_set_maxdbs(env, 20);
	mdb_env_set_mapsize(env, 16 << 20);
	rc |= mdb_env_open(env, folder, 0, 0600);
	rc |= mdb_txn_begin(env, NULL, 0, &txn);
	rc |= mdb_dbi_open(txn, tree, tree != NULL ? flags | MDB_CREATE : flags, &dbi);
	for (uint32_t i = 0; i < 500 && rc == 0; i++) {
		char big[9000] = "";
		MDB_val k = { sizeof(i), &i }, v = { flags & MDB_DUPSORT ? 30 : i * 18 + 1, big };

		rc |= mdb_put(txn, dbi, &k, &v, 0);
	}
	rc |= mdb_txn_commit(txn);
	mdb_env_close(env);
	unlink(path_of(folder, "lock.mdb"));
	if (rc != 0) {
		printf("Bail out! no foreign environment: %s\n", mdb_strerror(rc));
		exit(1);
	}
}

static void test_another_program(void)
{
	static const struct {
		const char *tree, *what;
		unsigned flags;
	} kinds[] = {
		{ NULL, "rows without a tree of their own", 0 },
		{ "cache", "another tree", 0 },
		{ "cache", "a tree of duplicates", MDB_DUPSORT },
		{ "cache", "a tree of numbers", MDB_INTEGERKEY },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const char *folder = u_folder();
		struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
		struct pfx_store *store;
		struct stat before, after;
		char err[300] = "";

		make_foreign(folder, kinds[i].flags, kinds[i].tree);
		stat(data_path(folder), &before);
		for (int again = 0; again < 2; again++) {
			is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -EEXIST,
				"another program's, %s: %s", kinds[i].what, err);
		}
		stat(data_path(folder), &after);
		ok(before.st_ino == after.st_ino && before.st_size == after.st_size &&
			before.st_mtime == after.st_mtime && count_files(folder) == 1,
			"another program's, %s: left alone", kinds[i].what);
		opts.replace = 1;
		is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), 0,
			"another program's, %s: cleared when told", kinds[i].what);
		is_int(u_put(store, &chains[0].key[0]), 0, "and put to use");
		pfx_store_close(store);
		u_remove(folder);
	}
}

/* The row that tells the shape, as version 1 wrote it. */
static void test_older(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	uint8_t *bytes = malloc(image_len);
	struct pfx_store_info info;
	struct pfx_store *store;
	uint32_t version = 1;
	uint64_t check;
	char err[300] = "";
	int n = 0;

	memcpy(bytes, image, image_len);
	for (size_t at = 0; at + 64 <= image_len; at++) {
		if (memcmp(bytes + at, PFX_SHAPE_MAGIC, 8) == 0) {
			memcpy(bytes + at + 8, &version, sizeof(version));
			check = XXH3_64bits(bytes + at, 56);
			memcpy(bytes + at + 56, &check, sizeof(check));
			n++;
		}
	}
	ok(n > 0, "older: found its row");
	write_image(folder, bytes, image_len);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -EEXIST, "older: %s", err);
	ok(strstr(err, "version 1") != NULL && strstr(err, folder) != NULL,
		"older: version and folder are named");
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -EEXIST,
		"older: left alone");
	opts.replace = 1;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), 0, "older: replaced");
	pfx_store_info(store, &info);
	is_int(info.records, 0, "older: by an empty one");
	pfx_store_close(store);
	free(bytes);
	u_remove(folder);
}

static void test_foreign(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store *store, *other;
	struct pfx_store_info info;
	char err[300] = "";

	write_image(folder, image, image_len);
	opts.shape.identity.b[3] ^= 1;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -EEXIST,
		"another model: %s", err);
	opts = u_opts(folder, CAP);
	opts.shape.block_tokens *= 2;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -EEXIST,
		"another block size: %s", err);
	opts = u_opts(folder, CAP);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), 0, "our own: opens");
	pfx_store_info(store, &info);
	is_int(info.records, CHAINS * DEPTH - 8 - 10, "our own: was left alone");
	is_int(pfx_store_lmdb_open(&other, &opts, NULL, err, sizeof(err)), -EBUSY, "twice: %s", err);
	pfx_store_close(store);
	opts.shape.kv_bytes = U_KV - 8;
	opts.replace = 1;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), 0, "replace: opens");
	pfx_store_info(store, &info);
	is_int(info.records, 0, "replace: it is empty");
	pfx_store_close(store);
	opts.bytes_max = 100000;
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -EINVAL, "tiny: %s", err);
	u_remove(folder);
	opts = u_opts("persist-test.none/none", CAP);
	is_int(pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err)), -ENOENT, "%s", err);
}

int main(void)
{
	const char *env = getenv(SEED_ENV);
	uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	pfx_log_set_level(PFX_LOG_ERROR);
	make_image();
	for (enum kind kind = 0; kind < KINDS; kind++) {
		test_flips(kind, seed);
	}
	test_lost_pages(seed);
	test_lock_files(seed);
	test_truncated(seed);
	test_garbage();
	test_cut_in_use();
	test_full_disk();
	test_small_disk(fill_disk, "a full file system and a read-only one: hits and misses, and it "
		"recovers");
	test_small_disk(empty_full_disk, "a full file system: all is deleted at once, and room again");
	test_read_only();
	test_permissions();
	test_no_folder();
	test_foreign();
	test_another_program();
	test_older();
	free(image);
	return tap_done();
}
