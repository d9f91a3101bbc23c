/*
 * The LMDB store on a bad disk: files cut short, bits flipped in every kind of page, a full
 * disk, a folder that cannot be written, somebody else's environment. The process that uses
 * the store must never die and never see wrong KV. The seed is printed.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/error.h"
#include "base/log.h"
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

static const char *data_path(const char *folder)
{
	static char path[300];

	snprintf(path, sizeof(path), "%s/data.mdb", folder);
	return path;
}

static void write_image(const char *folder, const uint8_t *bytes, size_t n)
{
	FILE *f = fopen(data_path(folder), "wb");

	if (f == NULL || fwrite(bytes, 1, n, f) != n) {
		printf("Bail out! cannot write\n");
		exit(1);
	}
	fclose(f);
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
	return 0;
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

enum kind { IN_META, IN_TREE, IN_VALUE, KINDS };
static const char *const kind_names[] = { "meta pages", "tree pages", "values" };

/* The kind of each page of the image, as its own header says. */
static enum kind kind_of(size_t page)
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
				for (uint32_t k = 0; k < pages; k++) {
					in_value[p + k] = 1;
				}
				p += pages - 1;
			}
		}
	}
	return page < 2 ? IN_META : in_value[page] ? IN_VALUE : IN_TREE;
}

static void test_flips(enum kind kind, uint64_t seed)
{
	struct pfx_rng rng = { seed + kind };
	uint8_t *bytes = malloc(image_len);
	int died = 0, wrong = 0, aside = 0, done = 0;

	for (int tries = 0; done < ROUNDS && tries < ROUNDS * 1000; tries++) {
		size_t page = (size_t)pfx_rng_below(&rng, image_len / 4096);
		size_t at = page * 4096 + (size_t)pfx_rng_below(&rng, 4096);
		const char *folder;
		int rc;

		if (kind == IN_META) {
			at = (size_t)pfx_rng_below(&rng, 2) * 4096 + (size_t)pfx_rng_below(&rng, 152);
			page = at / 4096;
		} else if (kind == IN_TREE && pfx_rng_below(&rng, 2) == 0) {
			at = page * 4096 + (size_t)pfx_rng_below(&rng, 96); /* headers and offsets */
		}
		if (kind_of(page) != kind) {
			continue;
		}
		memcpy(bytes, image, image_len);
		bytes[at] ^= (uint8_t)(1u << pfx_rng_below(&rng, 8));
		folder = u_folder();
		write_image(folder, bytes, image_len);
		rc = use_in_child(folder, &aside);
		if (rc != 0) {
			printf("# %s: byte %zu of page %zu: %d, seed %llu\n", kind_names[kind], at % 4096,
				page, rc, (unsigned long long)seed);
		}
		died += rc < 0;
		wrong += rc > 0;
		done++;
		u_remove(folder);
	}
	free(bytes);
	is_int(died, 0, "%d flips in %s: nobody died (%d set aside)", done, kind_names[kind], aside);
	is_int(wrong, 0, "%d flips in %s: the store works all the same", done, kind_names[kind]);
}

static void test_truncated(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	int bad = 0, aside = 0, n = ROUNDS / 4;

	for (int i = 0; i < n; i++) {
		const char *folder = u_folder();
		int rc;

		write_image(folder, image, (size_t)pfx_rng_below(&rng, image_len));
		rc = use_in_child(folder, &aside);
		if (rc != 0) {
			printf("# truncated: %d\n", rc);
		}
		bad += rc != 0;
		u_remove(folder);
	}
	is_int(bad, 0, "%d files cut at random: the store works (%d set aside)", n, aside);
	ok(aside > n / 2, "and most of them were set aside");
}

static void test_garbage(void)
{
	const char *folder = u_folder();
	struct pfx_store_lmdb_opts opts = u_opts(folder, CAP);
	struct pfx_store_opened opened;
	struct pfx_store *store;
	char path[300];
	struct stat st;

	write_image(folder, (const uint8_t *)"this is no database, but it is longer than nothing", 50);
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
	test_truncated(seed);
	test_garbage();
	test_cut_in_use();
	test_full_disk();
	test_read_only();
	test_foreign();
	free(image);
	return tap_done();
}
