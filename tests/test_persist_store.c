/*
 * One set of tests over every store, then random operations against a naive model. The seed
 * is printed; PREFIXD_SEED sets it.
 */
#include "base/alloc.h"
#include "base/error.h"
#include "tests/persist_util.h"

#ifndef STEPS
#define STEPS 1200
#endif

static const char *folder; /* NULL: the store in memory */
static struct pfx_store *store;
static const char *name;

static struct pfx_store *open_store(uint64_t bytes_max)
{
	struct pfx_store_shape shape = u_shape();
	char err[300] = "";
	int rc;

	if (folder == NULL) {
		rc = pfx_store_mem_open(&store, &shape, bytes_max, err, sizeof(err));
	} else {
		struct pfx_store_lmdb_opts opts = u_opts(folder, bytes_max);

		rc = pfx_store_lmdb_open(&store, &opts, NULL, err, sizeof(err));
	}
	if (rc != 0) {
		printf("Bail out! %s: %s\n", name, err);
		exit(1);
	}
	return store;
}

static int count_row(void *arg, const struct pfx_store_row *row)
{
	++*(int *)arg;
	return 0;
}

static void test_basics(void)
{
	struct u_chain a, b, other;
	struct pfx_store_info info;
	struct pfx_store_item items[4];
	uint8_t kv[4][U_KV];
	int results[4], rows = 0, wrong = 0;

	u_chain_make(&a, 1, 1, 4);
	u_chain_make(&b, 1, 2, 2);
	u_chain_make(&other, 2, 1, 4);
	is_int(u_get(store, &a.key[0]), -ENOENT, "%s: a get from an empty store misses", name);
	is_int(u_put(store, &a.key[1]), -ENOENT, "%s: a put without its parent is refused", name);
	for (int i = 0; i < 4; i++) {
		u_kv(&a.key[i], kv[i]);
		items[i] = (struct pfx_store_item){ .key = &a.key[i], .kv = kv[i] };
	}
	is_int(pfx_store_put(store, items, 4, results), 0, "%s: a batch of a chain", name);
	for (int i = 0; i < 4; i++) {
		wrong += results[i] != 0 || u_get(store, &a.key[i]) != 0 ||
			!pfx_store_has(store, &a.key[i]);
	}
	is_int(wrong, 0, "%s: all four are there and right", name);
	is_int(u_get(store, &other.key[0]), -ENOENT, "%s: not in another namespace", name);
	is_int(u_put(store, &other.key[0]), 0, "%s: the same tokens in another namespace", name);
	is_int(u_put(store, &other.key[0]), 0, "%s: and once more", name);
	is_int(u_put(store, &b.key[0]), 0, "%s: another chain", name);
	pfx_store_info(store, &info);
	is_int(info.records, 6, "%s: six records", name);
	is_int(info.tokens, 6 * U_BLOCK, "%s: their tokens", name);
	is_int(info.duplicates, 1, "%s: one duplicate, not written again", name);
	is_int(info.hits, 4, "%s: hits are counted", name);
	is_int(info.misses, 2, "%s: misses are counted", name);
	is_int(pfx_store_iterate(store, count_row, &rows), 0, "%s: iterate", name);
	is_int(rows, 6, "%s: iterates over all", name);
	is_int(pfx_store_delete(store, &a.key[2]), 0, "%s: delete", name);
	is_int(u_get(store, &a.key[3]), -ENOENT, "%s: what hung on it is gone", name);
	is_int(u_get(store, &a.key[1]), 0, "%s: what it hung on is not", name);
	is_int(pfx_store_delete(store, &a.key[2]), -ENOENT, "%s: once", name);
	is_int(pfx_store_sync(store), 0, "%s: sync", name);
}

/* Puts and deletions of one batch, in the order given. */
static void test_mixed(void)
{
	struct u_chain a, b;
	struct pfx_store_item items[7];
	struct pfx_store_info info;
	uint8_t kv[2][U_KV];
	int results[7];

	u_chain_make(&a, 8, 1, 2);
	u_chain_make(&b, 8, 2, 2);
	u_put(store, &b.key[0]);
	u_put(store, &b.key[1]);
	u_kv(&a.key[0], kv[0]);
	u_kv(&a.key[1], kv[1]);
	items[0] = (struct pfx_store_item){ .key = &b.key[1] };
	items[1] = (struct pfx_store_item){ .key = &a.key[0], .kv = kv[0] };
	items[2] = (struct pfx_store_item){ .key = &a.key[1], .kv = kv[1] };
	items[3] = (struct pfx_store_item){ .key = &a.key[0] };
	items[4] = (struct pfx_store_item){ .key = &a.key[1], .kv = kv[1] };
	items[5] = (struct pfx_store_item){ .key = &a.key[0], .kv = kv[0] };
	items[6] = (struct pfx_store_item){ .key = &b.key[1] };
	is_int(pfx_store_put(store, items, 7, results), 0, "%s: a batch of puts and deletions", name);
	is_int(results[0], 0, "%s: a deletion", name);
	is_int(results[2], 0, "%s: a put", name);
	is_int(results[3], 0, "%s: a deletion of what the batch put", name);
	is_int(results[4], -ENOENT, "%s: then a put of its child", name);
	is_int(results[5], 0, "%s: and of itself", name);
	is_int(results[6], -ENOENT, "%s: a second deletion", name);
	is_int(u_get(store, &b.key[1]), -ENOENT, "%s: one is gone", name);
	is_int(u_get(store, &b.key[0]), 0, "%s: what it hung on is not", name);
	is_int(u_get(store, &a.key[0]), 0, "%s: what was put last is there", name);
	is_int(u_get(store, &a.key[1]), -ENOENT, "%s: what was deleted is not", name);
	if (folder != NULL) {
		pfx_store_close(store);
		open_store(8 << 20);
		pfx_store_info(store, &info);
		is_int(info.records, 2, "%s: the same after a restart", name);
		is_int(u_get(store, &a.key[0]), 0, "%s: to the byte", name);
	}
	pfx_store_clear(store, NULL, NULL);
}

static void test_partial(void)
{
	struct u_chain a;
	struct pfx_store_key head, tail;
	struct pfx_store_info info;
	uint64_t before;

	u_chain_make(&a, 3, 7, 3);
	pfx_store_info(store, &info);
	before = info.records;
	u_put(store, &a.key[0]);
	pfx_store_key_head(&head, &a.key[1], 3);
	pfx_store_key_head(&tail, &a.key[1], 5);
	is_int(u_put(store, &head), 0, "%s: a block filled in part", name);
	is_int(u_get(store, &head), 0, "%s: is found", name);
	is_int(u_put(store, &tail), 0, "%s: a longer one", name);
	is_int(u_get(store, &head), -ENOENT, "%s: replaces the shorter", name);
	is_int(u_put(store, &a.key[1]), 0, "%s: the whole block", name);
	is_int(u_get(store, &tail), -ENOENT, "%s: replaces that", name);
	is_int(u_get(store, &a.key[1]), 0, "%s: and is found", name);
	pfx_store_info(store, &info);
	is_int(info.records, before + 2, "%s: two records of it are left", name);
	is_int(info.replaced, 2, "%s: two were replaced", name);
}

static void test_clear(void)
{
	struct u_chain a, b;
	struct pfx_store_info info;
	uint64_t n = 0;

	u_chain_make(&a, 4, 1, 2);
	u_chain_make(&b, 5, 1, 2);
	for (int i = 0; i < 2; i++) {
		u_put(store, &a.key[i]);
		u_put(store, &b.key[i]);
	}
	is_int(pfx_store_clear(store, &a.key[0].space, &n), 0, "%s: clear a namespace", name);
	is_int(n, 2, "%s: it had two records", name);
	is_int(u_get(store, &a.key[0]), -ENOENT, "%s: they are gone", name);
	is_int(u_get(store, &b.key[1]), 0, "%s: those of another are not", name);
	is_int(pfx_store_compact(store), 0, "%s: compact", name);
	is_int(u_get(store, &b.key[1]), 0, "%s: still there", name);
	is_int(u_put(store, &a.key[0]), 0, "%s: a put after compact", name);
	is_int(pfx_store_clear(store, NULL, &n), 0, "%s: clear all", name);
	pfx_store_info(store, &info);
	is_int(info.records, 0, "%s: nothing is left", name);
	is_int(u_get(store, &b.key[1]), -ENOENT, "%s: a get misses", name);
	is_int(u_put(store, &b.key[0]), 0, "%s: a put after clear", name);
	is_int(u_get(store, &b.key[0]), 0, "%s: and its get", name);
	pfx_store_clear(store, NULL, NULL);
}

static void test_damage(void)
{
	static const enum pfx_store_harm harms[] = { PFX_HARM_FLIP, PFX_HARM_SHORT, PFX_HARM_GONE };
	struct pfx_store_verified seen;
	struct u_chain a;
	int rc, wrong = 0;

	u_chain_make(&a, 6, 1, 4);
	for (int i = 0; i < 4; i++) {
		u_put(store, &a.key[i]);
	}
	for (uint64_t seed = 0; seed < 60; seed++) {
		pfx_store_damage(store, &a.key[1], harms[seed % 3], seed);
		rc = u_get(store, &a.key[1]);
		wrong += rc != PFX_E_FORMAT && rc != PFX_E_TRUNCATED;
		wrong += u_get(store, &a.key[1]) != -ENOENT; /* quarantined: a plain miss from now on */
		wrong += u_get(store, &a.key[3]) != -ENOENT; /* with what hung on it */
		wrong += u_get(store, &a.key[0]) != 0;
		for (int i = 1; i < 4; i++) {
			wrong += u_put(store, &a.key[i]) != 0 || u_get(store, &a.key[i]) != 0;
		}
	}
	is_int(wrong, 0, "%s: damage is met once, then a miss, then written anew", name);
	pfx_store_damage(store, &a.key[2], PFX_HARM_FLIP, 9);
	is_int(pfx_store_verify(store, &seen), 0, "%s: verify", name);
	is_int(seen.damaged, 1, "%s: finds what is damaged", name);
	is_int(u_get(store, &a.key[2]), -ENOENT, "%s: and drops it", name);
	is_int(pfx_store_verify(store, &seen), 0, "%s: verify again", name);
	is_int(seen.damaged, 0, "%s: all sound", name);
	is_int(seen.records, 2, "%s: two are left", name);
	pfx_store_clear(store, NULL, NULL);
}

/* The oldest leaves go, never a parent before its children; the file never passes its cap. */
static void test_cap(uint64_t bytes_max)
{
	struct pfx_store_info info;
	static uint8_t kv[8][U_KV];
	struct u_chain hot, c;
	uint64_t file_max = 0;
	int wrong = 0, lost = 0;

	u_chain_make(&hot, 7, 1, 8);
	for (int i = 0; i < 8; i++) {
		u_put(store, &hot.key[i]);
	}
	for (uint32_t n = 2; n < 300; n++) {
		struct pfx_store_item items[8];
		int results[8];

		u_chain_make(&c, 7, n, 8);
		for (int i = 0; i < 8; i++) {
			u_kv(&c.key[i], kv[i]);
			items[i] = (struct pfx_store_item){ .key = &c.key[i], .kv = kv[i] };
		}
		wrong += pfx_store_put(store, items, 8, results) != 0;
		for (int i = 0; i < 8; i++) {
			wrong += results[i] != 0;
		}
		wrong += u_get(store, &c.key[7]) != 0;
		lost += u_get(store, &hot.key[7]) != 0;
		pfx_store_info(store, &info);
		file_max = info.file_bytes > file_max ? info.file_bytes : file_max;
		wrong += info.bytes > bytes_max;
	}
	is_int(wrong, 0, "%s: puts far beyond the cap", name);
	is_int(lost, 0, "%s: what is used stays", name);
	ok(info.evicted > 1000, "%s: %d evicted", name, (int)info.evicted);
	ok(file_max <= bytes_max, "%s: the file grew to %llu of %llu bytes", name,
		(unsigned long long)file_max, (unsigned long long)bytes_max);
	ok(info.bytes > bytes_max / 2, "%s: the cap is made use of: %llu of %llu bytes", name,
		(unsigned long long)info.bytes, (unsigned long long)bytes_max);
	pfx_store_clear(store, NULL, NULL);
}

/*
 * Who keeps to the capacity and deletes for itself, in any order, is never evicted for; nor
 * does a store that is always full grow slower or lose anything.
 */
static void test_capacity(uint64_t seed, uint64_t rounds)
{
	uint64_t capacity = pfx_store_capacity(store);
	struct pfx_rng rng = { seed };
	uint32_t *number = calloc(capacity, sizeof(*number)), next = 1;
	struct pfx_store_info info;
	uint64_t evicted;
	int wrong = 0;

	pfx_store_info(store, &info);
	evicted = info.evicted;
	for (uint64_t n = 0; n < capacity + rounds; n++) {
		struct pfx_store_item items[24];
		int results[24];
		static uint8_t kv[12][U_KV];
		static struct u_chain put[12], del[12];
		uint32_t k = 0, some = 1 + (uint32_t)pfx_rng_below(&rng, 12);

		for (uint32_t i = 0; i < some; i++) {
			uint64_t at = n < capacity ? n : pfx_rng_below(&rng, capacity);

			if (number[at] != 0) {
				u_chain_make(&del[i], 9, number[at], 1);
				items[k++] = (struct pfx_store_item){ .key = &del[i].key[0] };
			}
			number[at] = next++;
			u_chain_make(&put[i], 9, number[at], 1);
			u_kv(&put[i].key[0], kv[i]);
			items[k++] = (struct pfx_store_item){ .key = &put[i].key[0], .kv = kv[i] };
		}
		wrong += pfx_store_put(store, items, k, results) != 0;
		for (uint32_t i = 0; i < k; i++) {
			wrong += results[i] != 0;
		}
	}
	for (uint64_t at = 0; at < capacity; at++) {
		struct u_chain c;

		u_chain_make(&c, 9, number[at], 1);
		wrong += u_get(store, &c.key[0]) != 0;
	}
	pfx_store_info(store, &info);
	is_int(wrong, 0, "%s: full to its capacity of %d all the time", name, (int)capacity);
	is_int(info.evicted - evicted, 0, "%s: without an eviction of its own, seed %llu", name,
		(unsigned long long)seed);
	is_int(info.records, capacity, "%s: and nothing lost", name);
	free(number);
	pfx_store_clear(store, NULL, NULL);
}

/* ---- random operations against a model ---- */

#define CHAINS 12
#define DEPTH 6

static struct u_chain chains[CHAINS];
static int have[CHAINS][DEPTH]; /* the model: nothing is evicted, the cap being far away */

static void model_drop(int c, int from)
{
	for (int i = from; i < DEPTH; i++) {
		have[c][i] = 0;
	}
}

static int step_put(struct pfx_rng *rng, int c)
{
	uint32_t n = 1 + (uint32_t)pfx_rng_below(rng, 4), from = (uint32_t)pfx_rng_below(rng, DEPTH);
	struct pfx_store_item items[4];
	uint8_t kv[4][U_KV];
	int results[4], wrong = 0;

	n = from + n > DEPTH ? DEPTH - from : n;
	for (uint32_t i = 0; i < n; i++) {
		u_kv(&chains[c].key[from + i], kv[i]);
		items[i] = (struct pfx_store_item){ .key = &chains[c].key[from + i], .kv = kv[i] };
	}
	wrong += pfx_store_put(store, items, n, results) != 0;
	for (uint32_t i = 0; i < n; i++) {
		int fits = from + i == 0 || have[c][from + i - 1];

		wrong += results[i] != (fits ? 0 : -ENOENT);
		have[c][from + i] = fits;
	}
	return wrong;
}

static int step(struct pfx_rng *rng)
{
	static const enum pfx_store_harm harms[] = { PFX_HARM_FLIP, PFX_HARM_SHORT, PFX_HARM_GONE };
	int c = (int)pfx_rng_below(rng, CHAINS), i = (int)pfx_rng_below(rng, DEPTH);
	const struct pfx_store_key *key = &chains[c].key[i];
	uint64_t dice = pfx_rng_below(rng, 1000);
	int rc;

	if (dice < 400) {
		return step_put(rng, c);
	}
	if (dice < 850) {
		return u_get(store, key) != (have[c][i] ? 0 : -ENOENT);
	}
	if (dice < 920) {
		rc = pfx_store_delete(store, key) != (have[c][i] ? 0 : -ENOENT);
		model_drop(c, i);
		return rc;
	}
	if (dice < 970) {
		rc = pfx_store_damage(store, key, harms[dice % 3], pfx_rng_next(rng));
		if (rc != (have[c][i] ? 0 : -ENOENT)) {
			return 1;
		}
		rc = u_get(store, key);
		rc = rc == 0 || rc == 1 || (rc == -ENOENT) != !have[c][i];
		model_drop(c, i);
		return rc;
	}
	if (dice < 975) {
		for (int k = 0; k < CHAINS; k++) {
			if (k % 3 == c % 3) {
				model_drop(k, 0);
			}
		}
		return pfx_store_clear(store, &key->space, NULL) != 0;
	}
	if (dice < 978) {
		return pfx_store_compact(store) != 0;
	}
	if (dice < 985 && folder != NULL) {
		pfx_store_close(store);
		open_store(8 << 20);
		return 0;
	}
	return pfx_store_sync(store) != 0;
}

static int visit_model(void *arg, const struct pfx_store_row *row)
{
	int *left = arg;

	for (int c = 0; c < CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			if (pfx_store_key_equal(&chains[c].key[i], &row->key)) {
				*left -= have[c][i];
				return 0;
			}
		}
	}
	return -1;
}

static void test_random(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	int wrong = 0, left = 0;

	for (int c = 0; c < CHAINS; c++) {
		u_chain_make(&chains[c], 100 + (uint32_t)c % 3, (uint32_t)c, DEPTH);
		model_drop(c, 0);
	}
	for (int n = 0; n < STEPS && wrong == 0; n++) {
		wrong += step(&rng);
		if (wrong) {
			printf("# step %d of seed %llu\n", n, (unsigned long long)seed);
		}
	}
	is_int(wrong, 0, "%s: %d random operations, seed %llu", name, STEPS,
		(unsigned long long)seed);
	for (int c = 0; c < CHAINS; c++) {
		for (int i = 0; i < DEPTH; i++) {
			left += have[c][i];
		}
	}
	is_int(pfx_store_iterate(store, visit_model, &left), 0, "%s: iterates over known rows", name);
	is_int(left, 0, "%s: and over all of them", name);
}

/* With an allocator that fails at random: an error or a miss, never a wrong byte or a leak. */
static void test_no_memory(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	int wrong = 0, refused = 0, put = 0;

	pfx_store_clear(store, NULL, NULL);
	pfx_alloc_fail(seed, 6);
	for (int n = 0; n < STEPS / 2; n++) {
		const struct pfx_store_key *key = &chains[pfx_rng_below(&rng, CHAINS)].key
			[pfx_rng_below(&rng, DEPTH)];
		int rc = pfx_rng_below(&rng, 10) == 0 ? pfx_store_delete(store, key) : u_put(store, key);

		refused += rc == -ENOMEM;
		put += rc == 0;
		wrong += rc != 0 && rc != -ENOMEM && rc != -ENOENT;
		rc = u_get(store, key);
		wrong += rc != 0 && rc != -ENOENT;
	}
	pfx_alloc_fail(0, 0);
	is_int(wrong, 0, "%s: no wrong answer when memory fails, seed %llu", name,
		(unsigned long long)seed);
	ok(refused > 0 && put > 0, "%s: %d were refused for it, %d were not", name, refused, put);
	is_int(u_put(store, &chains[0].key[0]), 0, "%s: and works again", name);
}

static void test_all(uint64_t seed)
{
	uint64_t live = pfx_alloc_live();

	open_store(8 << 20);
	test_basics();
	test_partial();
	pfx_store_clear(store, NULL, NULL);
	test_mixed();
	test_clear();
	test_damage();
	test_random(seed);
	test_no_memory(seed);
	pfx_store_clear(store, NULL, NULL);
	pfx_store_close(store);
	open_store(3 << 20);
	test_capacity(seed, STEPS / 4);
	pfx_store_close(store);
	open_store(4 << 20);
	test_cap(4 << 20);
	pfx_store_close(store);
	is_int(pfx_alloc_live() - live, 0, "%s: nothing is left allocated", name);
}

static void test_reopen(void)
{
	struct u_chain a;
	struct pfx_store_info info;
	int wrong = 0;

	u_chain_make(&a, 1, 1, 60);
	open_store(8 << 20);
	for (int i = 0; i < 60; i++) {
		wrong += u_put(store, &a.key[i]) != 0;
	}
	for (uint32_t n = 2; n < 12; n++) {
		struct u_chain c;

		u_chain_make(&c, 1, n, 60);
		for (int i = 0; i < 60; i++) {
			wrong += u_put(store, &c.key[i]) != 0;
		}
		u_get(store, &a.key[59]);
	}
	for (int round = 0; round < 3; round++) {
		pfx_store_close(store);
		open_store(8 << 20);
		for (int i = 0; i < 60; i++) {
			wrong += u_get(store, &a.key[i]) != 0;
		}
	}
	is_int(wrong, 0, "lmdb: a chain of 60 over three restarts");
	pfx_store_info(store, &info);
	pfx_store_close(store);
	/* The map is full then, and what must go needs pages to be deleted. */
	open_store(info.file_bytes);
	pfx_store_info(store, &info);
	ok(info.evicted > 0 && !info.read_only, "lmdb: its file's size as its cap: %d records go",
		(int)info.evicted);
	pfx_store_close(store);
	open_store(PFX_STORE_BYTES_MIN);
	wrong += u_get(store, &a.key[20]) != 0;
	pfx_store_close(store);
	open_store(PFX_STORE_BYTES_MIN);
	pfx_store_info(store, &info);
	ok(wrong == 0 && info.records > 20 && info.bytes <= PFX_STORE_BYTES_MIN,
		"lmdb: with a lower cap it holds %d records", (int)info.records);
	pfx_store_close(store);
}

int main(void)
{
	const char *env = getenv("PREFIXD_SEED");
	uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : pfx_rng_entropy();

	printf("# seed %llu\n", (unsigned long long)seed);
	name = "memory";
	test_all(seed);
	name = "lmdb";
	folder = u_folder();
	test_all(seed);
	u_remove(folder);
	folder = u_folder();
	test_reopen();
	u_remove(folder);
	return tap_done();
}
