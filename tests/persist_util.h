#ifndef PFX_TESTS_PERSIST_UTIL_H
#define PFX_TESTS_PERSIST_UTIL_H

/*
 * What the tests of persist/ share: folders that are new and removed again, keys by number,
 * and KV bytes that follow from a key, so that any test can tell whether they are right.
 */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "persist/store.h"
#include "tests/tap.h"

#define U_BLOCK 8u
#define U_KV 3000u

static inline struct pfx_store_shape u_shape(void)
{
	struct pfx_store_shape shape = { .block_tokens = U_BLOCK, .kv_bytes = U_KV };

	memset(shape.identity.b, 0x5a, sizeof(shape.identity.b));
	return shape;
}

/* A new folder below the build directory; the name is static storage. */
static inline const char *u_folder(void)
{
	static char path[256];

	snprintf(path, sizeof(path), "persist-test.XXXXXX");
	if (mkdtemp(path) == NULL) {
		printf("Bail out! no folder: %s\n", strerror(errno));
		exit(1);
	}
	return path;
}

static inline void u_remove(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *e;
	char path[600];

	while (dir != NULL && (e = readdir(dir)) != NULL) {
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		unlink(path);
	}
	if (dir != NULL) {
		closedir(dir);
	}
	rmdir(folder);
}

static inline struct pfx_store_lmdb_opts u_opts(const char *folder, uint64_t bytes_max)
{
	return (struct pfx_store_lmdb_opts){ .path = folder, .shape = u_shape(),
		.bytes_max = bytes_max };
}

/* KV that belongs to this key alone. */
static inline void u_kv(const struct pfx_store_key *key, uint8_t *kv)
{
	uint64_t seed;

	memcpy(&seed, key->self.b, sizeof(seed));
	for (uint32_t i = 0; i < U_KV; i += 8) {
		uint64_t r = pfx_rng_mix(seed, i);

		memcpy(kv + i, &r, U_KV - i < 8 ? U_KV - i : 8);
	}
}

static inline int u_kv_ok(const struct pfx_store_key *key, const uint8_t *kv)
{
	uint8_t want[U_KV];

	u_kv(key, want);
	return memcmp(want, kv, U_KV) == 0;
}

/* Chain number c of a namespace: block i of it, its tokens and its key. */
struct u_chain {
	struct pfx_store_key key[64];
	uint32_t tokens[64][U_BLOCK];
	uint32_t n;
};

static inline void u_chain_make(struct u_chain *c, uint32_t space, uint32_t number, uint32_t n)
{
	struct pfx_digest d;

	pfx_space_digest(&space, sizeof(space), NULL, 0, &d);
	c->n = n;
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t t = 0; t < U_BLOCK; t++) {
			c->tokens[i][t] = number * 1000 + i * U_BLOCK + t;
		}
		pfx_store_key_make(&c->key[i], &d, i > 0 ? &c->key[i - 1] : NULL, c->tokens[i], U_BLOCK);
	}
}

static inline int u_put(struct pfx_store *store, const struct pfx_store_key *key)
{
	uint8_t kv[U_KV];
	struct pfx_store_item item = { .key = key, .kv = kv };
	int result;

	u_kv(key, kv);
	pfx_store_put(store, &item, 1, &result);
	return result;
}

/* 0: found and right; 1: found and wrong, which must never be; else the code of the miss. */
static inline int u_get(struct pfx_store *store, const struct pfx_store_key *key)
{
	uint8_t kv[U_KV];
	int rc = pfx_store_get(store, key, kv);

	return rc == 0 && !u_kv_ok(key, kv) ? 1 : rc;
}

#endif
