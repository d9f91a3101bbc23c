/*
 * The LMDB store beside the disk that it lies on, in one run: puts, gets from the page cache
 * and from the disk, reopening, the walk. Arguments: the folder to work in, MiB of KV, bytes
 * of a block's KV, items of a batch.
 */
#include <fcntl.h>
#include <malloc.h>
#include <time.h>

#include "base/clock.h"
#include "persist/audit.h"
#include "tests/persist_util.h"

#define TOKENS 32u

struct bench {
	const char *top;
	char folder[256], file[300], plain[300];
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

/* Time on the clock and time on the processor, which others on the machine do not lengthen. */
struct span {
	uint64_t wall, cpu;
};

static struct span now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (struct span){ pfx_clock_ns(), (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec };
}

static void add(struct span *sum, struct span start)
{
	struct span end = now();

	sum->wall += end.wall - start.wall;
	sum->cpu += end.cpu - start.cpu;
}

static void line(const struct bench *b, const char *what, struct span spent)
{
	double seconds = (double)spent.wall / 1e9, gb = (double)(b->n * b->kv_bytes) / 1e9;

	printf("%-42s %8.3f s %8.3f GB/s %9.1f us a record, %7.1f of them CPU\n", what, seconds,
		gb / seconds, seconds * 1e6 / (double)b->n, (double)spent.cpu / 1e3 / (double)b->n);
	fflush(stdout);
}

static void line_since(const struct bench *b, const char *what, struct span start)
{
	struct span spent = { 0 };

	add(&spent, start);
	line(b, what, spent);
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
	struct span start = now();
	char err[300] = "";

	if (pfx_store_lmdb_open(&b->store, &opts, NULL, err, sizeof(err)) != 0) {
		fprintf(stderr, "bench_store: %s\n", err);
		exit(1);
	}
	if (what != NULL) {
		line_since(b, what, start);
	}
}

/*
 * Plain writes in the same portions, each flushed, and puts: in turns, since a disk that is
 * shared or throttled is another one a second later.
 */
static void write_all(struct bench *b)
{
	struct pfx_store_item *items = calloc(b->batch, sizeof(*items));
	int *results = calloc(b->batch, sizeof(*results));
	struct span plain = { 0 }, put = { 0 }, start;
	int fd = open(b->plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0) {
		die(b->plain);
	}
	for (uint64_t i = 0; i < b->n; i += b->batch) {
		uint32_t some = (uint32_t)(b->n - i < b->batch ? b->n - i : b->batch);
		size_t want = (size_t)(some * b->kv_bytes);

		fill(b, i);
		for (uint32_t k = 0; k < some; k++) {
			items[k] = (struct pfx_store_item){ .key = &b->keys[i + k],
				.kv = b->kv + k * b->kv_bytes };
		}
		start = now();
		if (write(fd, b->kv, want) != (ssize_t)want || fdatasync(fd) != 0) {
			die(b->plain);
		}
		add(&plain, start);
		start = now();
		if (pfx_store_put(b->store, items, some, results) != 0) {
			die("put");
		}
		add(&put, start);
	}
	close(fd);
	line(b, "the disk: write and flush, batch by batch", plain);
	line(b, "put", put);
	free(items);
	free(results);
}

/* Gets and plain reads of the same sizes, in turns of this many, as a prefix is loaded. */
#define TURN 64u

static void read_all(struct bench *b, int random, const char *what)
{
	/* A prime that is no divisor of n: each record once, far from the one before. */
	uint64_t stride = !random ? 1 : b->n % 1000003 == 0 ? 999983 : 1000003;
	struct span plain = { 0 }, get = { 0 }, start;
	int fd = open(b->plain, O_RDONLY | O_CLOEXEC);
	char disk[80];

	if (fd < 0) {
		die(b->plain);
	}
	for (uint64_t from = 0; from < b->n; from += TURN) {
		uint64_t to = from + TURN < b->n ? from + TURN : b->n;

		start = now();
		for (uint64_t i = from; i < to; i++) {
			if (pread(fd, b->kv, b->kv_bytes, (off_t)(i * stride % b->n * b->kv_bytes)) !=
				(ssize_t)b->kv_bytes) {
				die(b->plain);
			}
		}
		add(&plain, start);
		start = now();
		for (uint64_t i = from; i < to; i++) {
			if (pfx_store_get(b->store, &b->keys[i * stride % b->n], b->kv) != 0) {
				die("get");
			}
		}
		add(&get, start);
	}
	close(fd);
	snprintf(disk, sizeof(disk), "the disk: %s", what);
	line(b, disk, plain);
	snprintf(disk, sizeof(disk), "get: %s", what);
	line(b, disk, get);
}

/* With nothing of either file in memory; a map would keep its pages. */
static void cold(struct bench *b)
{
	pfx_store_close(b->store);
	drop_caches(b->file);
	drop_caches(b->plain);
	open_store(b, NULL);
}

static int count_row(void *arg, const struct pfx_store_row *row)
{
	++*(uint64_t *)arg;
	return 0;
}

static void audit(struct bench *b, const char *what)
{
	struct span start = now();
	char why[200] = "";

	if (pfx_audit(b->file, why, sizeof(why)) != 0) {
		fprintf(stderr, "bench_store: %s\n", why);
		exit(1);
	}
	line_since(b, what, start);
}

static void reopen(struct bench *b)
{
	struct span start;
	uint64_t rows = 0;
	size_t before;

	start = now();
	pfx_store_close(b->store);
	line_since(b, "close", start);
	drop_caches(b->file);
	audit(b, "the audit alone, cold");
	audit(b, "the audit alone, warm");
	drop_caches(b->file);
	before = mallinfo2().uordblks;
	open_store(b, "open: the walk and the index, cold");
	printf("  memory it took: %.0f bytes a record\n",
		(double)(mallinfo2().uordblks - before) / (double)b->n);
	start = now();
	pfx_store_iterate(b->store, count_row, &rows);
	line_since(b, "iterate", start);
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
	snprintf(b.plain, sizeof(b.plain), "%s.plain", b.folder);
	b.kv = malloc(b.batch * b.kv_bytes + 8);
	b.tokens = calloc(b.n * TOKENS, sizeof(*b.tokens));
	b.keys = calloc(b.n, sizeof(*b.keys));
	if (b.kv == NULL || b.tokens == NULL || b.keys == NULL) {
		die("memory");
	}
	make_keys(&b);
	printf("%llu records of %llu bytes of KV, %u a batch\n", (unsigned long long)b.n,
		(unsigned long long)b.kv_bytes, b.batch);
	open_store(&b, NULL);
	write_all(&b);
	read_all(&b, 0, "from the page cache");
	reopen(&b);
	cold(&b);
	read_all(&b, 0, "cold, in order");
	cold(&b);
	read_all(&b, 1, "cold, at random");
	pfx_store_close(b.store);
	u_remove(b.folder);
	unlink(b.plain);
	free(b.kv);
	free(b.tokens);
	free(b.keys);
	return 0;
}
