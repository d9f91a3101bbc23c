/*
 * Keys and layouts against vectors that must never change within a version: a store written
 * by an older build has to be found by a newer one, or to be refused.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "persist/catalog.h"
#include "tests/tap.h"

#define KV 40

static struct pfx_store_shape shape = { .block_tokens = 4, .kv_bytes = KV };

static void is_hex(const struct pfx_digest *d, const char *want, const char *what)
{
	char hex[33];

	if (!ok(strcmp(pfx_digest_hex(d, hex), want) == 0, "golden: %s", what)) {
		printf("#   got %s, want %s\n", hex, want);
	}
}

/* Names a whole buffer: the digest of a namespace of that name. */
static void is_bytes(const void *p, size_t n, const char *want, const char *what)
{
	struct pfx_digest d;

	pfx_space_digest(p, n, NULL, 0, &d);
	is_hex(&d, want, what);
}

static const uint32_t tokens[10] = { 1, 2, 3, 4, 5, 6, 7, 0, 4294967295u, 10 };

static void make_keys(struct pfx_store_key key[3])
{
	struct pfx_digest space;

	pfx_space_digest("team", 4, "salt", 4, &space);
	pfx_store_key_make(&key[0], &space, NULL, tokens, 4);
	pfx_store_key_make(&key[1], &space, &key[0], tokens + 4, 4);
	pfx_store_key_make(&key[2], &space, &key[1], tokens + 8, 2);
}

static void test_golden(void)
{
	struct pfx_digest d;
	struct pfx_store_key key[3], again;
	struct pfx_entry_info info = { .bytes = 123, .used_ns = 456 };
	uint8_t kv[KV], out[256];

	memset(shape.identity.b, 7, sizeof(shape.identity.b));
	for (int i = 0; i < KV; i++) {
		kv[i] = (uint8_t)(i * 3);
	}
	pfx_space_digest("", 0, NULL, 0, &d);
	is_hex(&d, "1e5b3bfa2a07708ee8c15a1d72092799", "the namespace without a name");
	pfx_space_digest("team", 4, "salt", 4, &d);
	is_hex(&d, "c749987c30805ea199205ac89c836011", "a namespace with a salt");
	make_keys(key);
	is_hex(&key[0].self, "b48b03a44b42c75228945bec7ef9edfc", "the first record of a prefix");
	is_hex(&key[1].self, "23c2ca836573914409a6ba26f2ef632c", "the second");
	is_hex(&key[2].self, "671adbb10ed34036b7ba9fb12fa00e26", "a part of a block");
	pfx_store_key_follow(&again, &key[1].space, &key[1].self, 8, tokens + 8, 2);
	ok(pfx_store_key_equal(&again, &key[2]), "golden: the same from the digest before alone");
	pfx_store_key_follow(&again, &key[0].space, NULL, 0, tokens, 4);
	ok(pfx_store_key_equal(&again, &key[0]), "golden: and of the first");
	is_int(pfx_record_size(&shape, 4), 112 + 16 + KV, "golden: the size of a record");
	pfx_record_encode(out, &shape, &key[1], kv);
	is_bytes(out, pfx_record_size(&shape, 4), "70696ab1e47a04c1e145c8380736d889",
		"the bytes of a record");
	is_int(pfx_entry_size(2), 72 + 8, "golden: the size of an index row");
	pfx_entry_encode(out, &key[2], &info);
	is_bytes(out, pfx_entry_size(2), "6852cb66024f62c7732e83e25e6defdc",
		"the bytes of an index row");
	pfx_shape_encode(out, &shape);
	is_bytes(out, PFX_SHAPE_BYTES, "22e4911860fe150c4baed8ed78cea37b", "the bytes of the shape row");
}

/* Typed and framed: moving bytes between parts makes another digest. */
static void test_framing(void)
{
	struct pfx_digest a, b, c;
	struct pfx_store_key k1, k2, k3, parent;

	pfx_space_digest("ab", 2, "c", 1, &a);
	pfx_space_digest("a", 1, "bc", 2, &b);
	pfx_space_digest("abc", 3, NULL, 0, &c);
	ok(!pfx_digest_equal(&a, &b) && !pfx_digest_equal(&a, &c), "name and salt are told apart");
	pfx_store_key_make(&k1, &a, NULL, tokens, 4);
	pfx_store_key_make(&k2, &b, NULL, tokens, 4);
	ok(!pfx_digest_equal(&k1.self, &k2.self), "namespaces are told apart");
	pfx_store_key_make(&parent, &a, NULL, tokens, 2);
	pfx_store_key_make(&k3, &a, &parent, tokens + 2, 2);
	ok(!pfx_digest_equal(&k1.self, &k3.self), "where a chain is cut is part of it");
	pfx_store_key_head(&k2, &k1, 2);
	ok(pfx_store_key_equal(&k2, &parent), "the head of a key is the key of its head");
}

/* Every single flipped bit and every length is refused; the right bytes are not. */
static void test_flips(void)
{
	struct pfx_store_key key[3], back;
	uint8_t kv[KV] = { 1, 2, 3 }, got[KV], out[256];
	uint32_t read[PFX_RECORD_TOKENS_MAX], version;
	struct pfx_entry_info info = { .bytes = pfx_record_size(&shape, 4), .used_ns = 9 }, info_back;
	struct pfx_store_shape shape_back;
	size_t n = pfx_record_size(&shape, 4);
	int passed = 0;

	make_keys(key);
	pfx_record_encode(out, &shape, &key[1], kv);
	is_int(pfx_record_decode(out, n, &shape, &key[1], got), 0, "a record decodes");
	is_int(memcmp(kv, got, KV), 0, "to its KV");
	is_int(pfx_record_decode(out, n, &shape, &key[0], got), -ENOENT, "for its key alone");
	for (size_t bit = 0; bit < n * 8; bit++) {
		out[bit / 8] ^= (uint8_t)(1 << bit % 8);
		passed += pfx_record_decode(out, n, &shape, &key[1], got) == 0;
		out[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (size_t len = 0; len < n; len++) {
		uint8_t *exact = pfx_memdup(out, len);

		passed += pfx_record_decode(exact, len, &shape, &key[1], got) == 0;
		pfx_free(exact);
	}
	passed += pfx_record_decode(out, n + 1, &shape, &key[1], got) == 0;
	is_int(passed, 0, "no flipped bit and no other length of a record passes");

	pfx_entry_encode(out, &key[1], &info);
	n = pfx_entry_size(4);
	is_int(pfx_entry_decode(out, n, &shape, &back, read, &info_back), 0, "an index row decodes");
	ok(pfx_store_key_equal(&back, &key[1]) && info_back.used_ns == 9, "to its key");
	for (size_t bit = 0; bit < n * 8; bit++) {
		out[bit / 8] ^= (uint8_t)(1 << bit % 8);
		passed += pfx_entry_decode(out, n, &shape, &back, read, &info_back) == 0;
		out[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	is_int(passed, 0, "no flipped bit of an index row passes");

	pfx_shape_encode(out, &shape);
	is_int(pfx_shape_decode(out, PFX_SHAPE_BYTES, &shape_back, &version), 0, "a shape decodes");
	ok(shape_back.kv_bytes == KV && shape_back.block_tokens == 4 &&
		pfx_digest_equal(&shape_back.identity, &shape.identity), "to what it was");
	for (size_t bit = 0; bit < PFX_SHAPE_BYTES * 8; bit++) {
		out[bit / 8] ^= (uint8_t)(1 << bit % 8);
		passed += pfx_shape_decode(out, PFX_SHAPE_BYTES, &shape_back, &version) != PFX_E_FORMAT;
		out[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	is_int(passed, 0, "a flipped bit of a shape is damage, never another version");
}

static void test_key_check(void)
{
	struct pfx_store_key key[3], bad;

	make_keys(key);
	is_int(pfx_store_key_check(&key[2], &shape), 0, "a key is checked");
	bad = key[1];
	bad.pos = 3;
	is_int(pfx_store_key_check(&bad, &shape), -EINVAL, "a position inside a block is refused");
	bad = key[1];
	bad.tokens = tokens;
	is_int(pfx_store_key_check(&bad, &shape), -EINVAL, "other tokens under a digest are refused");
}

static void count_gone(void *arg, struct pfx_catalog_entry *e)
{
	++*(int *)arg;
}

/* The catalog under random use, with an allocator that fails: its invariants always hold. */
static void test_catalog(uint64_t seed)
{
	struct pfx_rng rng = { seed };
	static uint32_t text[64][4];
	static struct pfx_store_key key[64];
	struct pfx_digest space;
	struct pfx_catalog *cat;
	struct pfx_catalog_totals totals;
	int gone = 0, broken = 0, over = 0, no_memory = 0;

	pfx_space_digest("x", 1, NULL, 0, &space);
	for (uint32_t i = 0; i < 64; i++) {
		for (uint32_t t = 0; t < 4; t++) {
			text[i][t] = i * 4 + t;
		}
		pfx_store_key_make(&key[i], &space, i < 8 ? NULL : &key[pfx_rng_below(&rng, i)], text[i], 4);
	}
	is_int(pfx_catalog_open(&cat), 0, "catalog: opens");
	pfx_alloc_fail(seed, 5);
	for (int n = 0; n < 20000; n++) {
		uint32_t i = (uint32_t)pfx_rng_below(&rng, 64);
		struct pfx_catalog_entry *e = pfx_catalog_match(cat, &key[i]);

		if (pfx_rng_below(&rng, 8) == 0 && e != NULL) {
			pfx_catalog_remove_tree(cat, e, count_gone, &gone);
		} else if (pfx_rng_below(&rng, 3) == 0 && e != NULL) {
			pfx_catalog_touch(cat, e, (uint64_t)n);
		} else {
			struct pfx_catalog_admit a = { .key = &key[i], .bytes = 10, .room = 10,
				.room_max = 200, .now_ns = (uint64_t)n, .gone = count_gone, .arg = &gone };
			int rc = pfx_catalog_admit(cat, &a);

			no_memory += rc == -ENOMEM;
			if (rc == 0) {
				pfx_catalog_release(cat, a.entry);
			}
		}
		broken += pfx_catalog_check(cat) != 0;
		pfx_catalog_totals(cat, &totals);
		over += totals.room > 200;
	}
	pfx_alloc_fail(0, 0);
	is_int(broken, 0, "catalog: invariants hold over 20000 operations, seed %llu",
		(unsigned long long)seed);
	is_int(over, 0, "catalog: never over its cap");
	ok(gone > 1000 && no_memory > 10, "catalog: %d went, %d found no memory", gone, no_memory);
	pfx_catalog_close(cat);
	is_int(pfx_alloc_live(), 0, "catalog: nothing is left allocated");
}

int main(void)
{
	test_golden();
	test_framing();
	test_flips();
	test_key_check();
	test_catalog(pfx_rng_entropy());
	return tap_done();
}
