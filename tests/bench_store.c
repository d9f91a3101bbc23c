/*
 * The LMDB store beside the disk that it lies on, in one run: puts, gets from the page cache
 * and from the disk, reopening, the walk. Arguments: the folder to work in, MiB of KV, bytes
 * of a block's KV, items of a batch.
 */
#include <fcntl.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "persist/audit.h"
#include "tests/persist_util.h"

#define TOKENS 32u

struct bench {
	const char *top;
	char folder[256], file[300];
	uint64_t kv_bytes, n;
	uint32_t batch;
	uint8_t *kv;      /* of one batch */
	uint32_t *tokens; /* TOKENS of each record */
	struct pfx_store_key *keys;
	struct pfx_store *store;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_store: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double since(uint64_t start)
{
	return (double)(pfx_clock_ns() - start) / 1e9;
}

static void line(const struct bench *b, const char *what, double seconds)
{
	double gb = (double)(b->n * b->kv_bytes) / 1e9;

	printf("%-44s %8.3f s %8.3f GB/s %10.1f us a record\n", what, seconds, gb / seconds,
		seconds * 1e6 / (double)b->n);
	fflush(stdout);
}

/* Chains of 64 records: what a prompt of 2,000 tokens leaves behind. */
static void make_keys(struct bench *b)
{
	struct pfx_digest space;

	pfx_space_digest("bench", 5, NULL, 0, &space);
	for (uint64_t i = 0; i < b->n; i++) {
		uint32_t *tokens = b->tokens + i * TOKENS;

		for (uint32_t t = 0; t < TOKENS; t++) {
			tokens[t] = (uint32_t)pfx_rng_mix(i, t) % 50000;
		}
		pfx_store_key_make(&b->keys[i], &space, i % 64 > 0 ? &b->keys[i - 1] : NULL, tokens,
			TOKENS);
	}
}

static void fill(struct bench *b, uint64_t first)
{
	for (uint64_t i = 0; i < b->batch * b->kv_bytes / 8; i++) {
		uint64_t r = pfx_rng_mix(first, i);

		memcpy(b->kv + i * 8, &r, 8);
	}
}

static void drop_caches(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) {
		die(path);
	}
	close(fd);
}

static void open_store(struct bench *b, const char *what)
{
	struct pfx_store_lmdb_opts opts = { .path = b->folder,
		.shape = { .block_tokens = TOKENS, .kv_bytes = b->kv_bytes },
		.bytes_max = (b->n + 64) * (b->kv_bytes + 16384) / 3 * 4 + (64u << 20) };
	uint64_t start = pfx_clock_ns();
	char err[300] = "";

	if (pfx_store_lmdb_open(&b->store, &opts, NULL, err, sizeof(err)) != 0) {
		fprintf(stderr, "bench_store: %s\n", err);
		exit(1);
	}
	if (what != NULL) {
		line(b, what, since(start));
	}
}

/* The same bytes by plain writes in the same portions, each flushed. */
static void disk_write(struct bench *b)
{
	char path[420];
	uint64_t start, spent = 0;
	int fd;

	snprintf(path, sizeof(path), "%s/plain", b->top);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		die(path);
	}
	for (uint64_t i = 0; i < b->n; i += b->batch) {
		uint64_t some = b->n - i < b->batch ? b->n - i : b->batch;
		size_t want = (size_t)(some * b->kv_bytes);

		fill(b, i);
		start = pfx_clock_ns();
		if (write(fd, b->kv, want) != (ssize_t)want || fdatasync(fd) != 0) {
			die(path);
		}
		spent += pfx_clock_ns() - start;
	}
	close(fd);
	line(b, "the disk: write and flush, batch by batch", (double)spent / 1e9);
}

static void disk_read(struct bench *b)
{
	char path[420];
	uint64_t start;
	int fd;

	snprintf(path, sizeof(path), "%s/plain", b->top);
	for (int round = 0; round < 2; round++) {
		drop_caches(path);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		start = pfx_clock_ns();
		for (uint64_t i = 0; i < b->n; i++) {
			uint64_t at = round == 0 ? i : pfx_rng_mix(i, 7) % b->n;

			if (pread(fd, b->kv, b->kv_bytes, (off_t)(at * b->kv_bytes)) !=
				(ssize_t)b->kv_bytes) {
				die(path);
			}
		}
		line(b, round == 0 ? "the disk: cold reads in order" :
			"the disk: cold reads at random", since(start));
		close(fd);
	}
	unlink(path);
}

static void puts_all(struct bench *b)
{
	struct pfx_store_item *items = calloc(b->batch, sizeof(*items));
	int *results = calloc(b->batch, sizeof(*results));
	uint64_t spent = 0, start;

	for (uint64_t i = 0; i < b->n; i += b->batch) {
		uint32_t some = (uint32_t)(b->n - i < b->batch ? b->n - i : b->batch);

		fill(b, i);
		for (uint32_t k = 0; k < some; k++) {
			items[k] = (struct pfx_store_item){ .key = &b->keys[i + k],
				.kv = b->kv + k * b->kv_bytes };
		}
		start = pfx_clock_ns();
		if (pfx_store_put(b->store, items, some, results) != 0) {
			die("put");
		}
		spent += pfx_clock_ns() - start;
	}
	line(b, "put", (double)spent / 1e9);
	free(items);
	free(results);
}

static void gets_all(struct bench *b, int random, const char *what)
{
	uint64_t start = pfx_clock_ns();

	for (uint64_t i = 0; i < b->n; i++) {
		uint64_t at = random ? pfx_rng_mix(i, 7) % b->n : i;

		if (pfx_store_get(b->store, &b->keys[at], b->kv) != 0) {
			die("get");
		}
	}
	line(b, what, since(start));
}

static int count_row(void *arg, const struct pfx_store_row *row)
{
	++*(uint64_t *)arg;
	return 0;
}

static long rss_kib(void)
{
	long pages = 0, all = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (f == NULL || fscanf(f, "%ld %ld", &all, &pages) != 2) {
		pages = 0;
	}
	if (f != NULL) {
		fclose(f);
	}
	return pages * 4;
}

static void audit(struct bench *b, const char *what)
{
	uint64_t start = pfx_clock_ns();
	char why[200] = "";

	if (pfx_audit(b->file, why, sizeof(why)) != 0) {
		fprintf(stderr, "bench_store: %s\n", why);
		exit(1);
	}
	line(b, what, since(start));
}

static void reopen(struct bench *b)
{
	uint64_t start, rows = 0;
	long before;

	start = pfx_clock_ns();
	pfx_store_close(b->store);
	line(b, "close", since(start));
	drop_caches(b->file);
	audit(b, "the audit alone, cold");
	audit(b, "the audit alone, warm");
	drop_caches(b->file);
	before = rss_kib();
	open_store(b, "open: the walk and the index, cold");
	printf("%-44s %8ld KiB, %.0f bytes a record\n", "  memory it took", rss_kib() - before,
		(double)(rss_kib() - before) * 1024 / (double)b->n);
	start = pfx_clock_ns();
	pfx_store_iterate(b->store, count_row, &rows);
	line(b, "iterate", since(start));
	pfx_store_close(b->store);
	open_store(b, "open: the walk and the index, warm");
}

int main(int argc, char **argv)
{
	struct bench b = { .top = argc > 1 ? argv[1] : "." };
	uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 0) : 256;

	b.kv_bytes = argc > 3 ? strtoull(argv[3], NULL, 0) : 737280; /* SmolLM2-135M, f16 */
	b.batch = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 0) : 32;
	b.n = (mib << 20) / b.kv_bytes;
	b.n = b.n > 0 ? b.n : 1;
	snprintf(b.folder, sizeof(b.folder), "%s/bench-store.XXXXXX", b.top);
	if (mkdtemp(b.folder) == NULL) {
		die(b.folder);
	}
	snprintf(b.file, sizeof(b.file), "%s/data.mdb", b.folder);
	b.kv = malloc(b.batch * b.kv_bytes + 8);
	b.tokens = calloc(b.n * TOKENS, sizeof(*b.tokens));
	b.keys = calloc(b.n, sizeof(*b.keys));
	if (b.kv == NULL || b.tokens == NULL || b.keys == NULL) {
		die("memory");
	}
	make_keys(&b);
	printf("%llu records of %llu bytes of KV, %u a batch\n", (unsigned long long)b.n,
		(unsigned long long)b.kv_bytes, b.batch);
	disk_write(&b);
	open_store(&b, NULL);
	puts_all(&b);
	gets_all(&b, 0, "get, from the page cache");
	reopen(&b);
	drop_caches(b.file);
	gets_all(&b, 0, "get, cold, in order");
	drop_caches(b.file);
	gets_all(&b, 1, "get, cold, at random");
	disk_read(&b);
	pfx_store_close(b.store);
	u_remove(b.folder);
	free(b.kv);
	free(b.tokens);
	free(b.keys);
	return 0;
}
