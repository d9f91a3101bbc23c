/*
 * A damaged LMDB file before the audit, and what the audit lets through before LMDB: that must
 * neither die nor spoil what it writes. The input says what is done to a sound file that is
 * made here: two bytes of where it is cut (0: nowhere; in 16 bytes), then four bytes for each
 * byte that is changed: its place in three, what it is combined with. With libFuzzer this is a
 * fuzz target; without it, `make check` replays tests/corpus/audit.
 */
#include "config.h"

#include "tests/fuzz.h"

#include <lmdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "persist/audit.h"

#define PAGE 4096u
#define MAP (8u << 20)
#define ROWS 90u

static uint8_t image[1 << 20];
static size_t image_len;
static int file = -1;
static char path[64];
uint64_t fuzz_audit_sum; /* so that values are read and not optimised away */

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fuzz_audit: %s\n", what);
		abort();
	}
}

static MDB_env *env_open(void)
{
	MDB_env *env;

	must(mdb_env_create(&env) == 0, "env");
	mdb_env_set_maxdbs(env, 4);
	mdb_env_set_mapsize(env, MAP);
	if (mdb_env_open(env, path, MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC | MDB_NOTLS, 0600) != 0) {
		mdb_env_close(env);
		return NULL;
	}
	return env;
}

static void put(MDB_txn *txn, MDB_dbi dbi, uint64_t key, size_t n)
{
	static const uint8_t bytes[9000];
	uint64_t both[2] = { key * 0x9e3779b97f4a7c15u, key };
	MDB_val k = { sizeof(both), both }, v = { n, (void *)bytes };

	mdb_put(txn, dbi, &k, &v, 0);
}

/* Trees of more than one level, values of every kind, a free list. */
static void make_image(void)
{
	static const char *const names[] = { "index", "meta", "records" };
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi[3];

	file = memfd_create("audit", 0);
	must(file >= 0, "memfd");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	env = env_open();
	must(env != NULL, "open");
	for (int round = 0; round < 3; round++) {
		must(mdb_txn_begin(env, NULL, 0, &txn) == 0, "begin");
		for (int i = 0; i < 3; i++) {
			must(mdb_dbi_open(txn, names[i], MDB_CREATE, &dbi[i]) == 0, "tree");
		}
		put(txn, dbi[1], 1, 64);
		for (uint64_t row = 0; row < ROWS; row++) {
			if (round == 0 || row % 5 == (uint64_t)round) {
				put(txn, dbi[0], row + (uint64_t)round % 2 * 1000, 104);
				put(txn, dbi[2], row + (uint64_t)round % 2 * 1000, row % 9 == 0 ? 300 : 2100 + row * 60);
			}
		}
		must(mdb_txn_commit(txn) == 0, "commit");
	}
	mdb_env_close(env);
	image_len = (size_t)lseek(file, 0, SEEK_END);
	must(image_len <= sizeof(image) && pread(file, image, image_len, 0) == (ssize_t)image_len,
		"image");
}

/* As persist/lmdb_env.c does before LMDB relies on what stands before a value. */
static void mend(const uint8_t *map, const MDB_val *v)
{
	size_t at = (size_t)((const uint8_t *)v->mv_data - map);
	uint8_t head[PFX_AUDIT_HEAD];

	if (at % PAGE == sizeof(head)) {
		pfx_audit_value_head(head, at / PAGE, v->mv_size, PAGE);
		must(pwrite(file, head, sizeof(head), (off_t)(at - sizeof(head))) == sizeof(head), "mend");
	}
}

/* Reads all of a tree, and deletes every third row. */
static uint64_t use_tree(MDB_txn *txn, MDB_dbi dbi)
{
	uint64_t sum = 0, n = 0;
	MDB_cursor *cursor;
	MDB_val k, v;

	if (mdb_cursor_open(txn, dbi, &cursor) != 0) {
		return 0;
	}
	while (mdb_cursor_get(cursor, &k, &v, MDB_NEXT) == 0) {
		const uint8_t *page = (const uint8_t *)k.mv_data - (uintptr_t)k.mv_data % PAGE;
		uint64_t pgno;

		for (size_t i = 0; i < v.mv_size; i += 64) {
			sum += ((const uint8_t *)v.mv_data)[i];
		}
		memcpy(&pgno, page, sizeof(pgno));
		if (n++ % 3 == 0 && pgno < image_len / PAGE) {
			mend(page - pgno * PAGE, &v);
		}
	}
	mdb_cursor_close(cursor);
	return sum + n;
}

static void delete_some(MDB_txn *txn, MDB_dbi dbi)
{
	uint64_t n = 0;
	MDB_cursor *cursor;
	MDB_val k, v;

	if (mdb_cursor_open(txn, dbi, &cursor) == 0) {
		while (mdb_cursor_get(cursor, &k, &v, MDB_NEXT) == 0) {
			if (n++ % 3 == 0 && mdb_cursor_del(cursor, 0) != 0) {
				break;
			}
		}
		mdb_cursor_close(cursor);
	}
}

static void let_loose(void)
{
	static const char *const names[] = { "index", "meta", "records" };
	MDB_env *env = env_open();
	char why[200] = "";
	MDB_txn *txn;

	if (env == NULL) {
		return;
	}
	if (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0) {
		for (int i = 0; i < 3; i++) {
			MDB_dbi dbi;

			fuzz_audit_sum += mdb_dbi_open(txn, names[i], 0, &dbi) == 0 ? use_tree(txn, dbi) : 0;
		}
		mdb_txn_commit(txn);
	}
	for (uint64_t round = 0; round < 2; round++) {
		MDB_dbi dbi;

		if (mdb_txn_begin(env, NULL, 0, &txn) != 0) {
			break;
		}
		if (mdb_dbi_open(txn, "records", 0, &dbi) == 0) {
			if (round == 0) {
				delete_some(txn, dbi);
			}
			for (uint64_t row = 0; row < 20; row++) {
				put(txn, dbi, row + 5000 + round * 100, 2100 + row * 60);
			}
		}
		mdb_txn_commit(txn);
	}
	mdb_env_close(env);
	if (pfx_audit(path, why, sizeof(why)) != 0) {
		fprintf(stderr, "fuzz_audit: after use: %s\n", why);
		abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static uint8_t now[sizeof(image)];
	size_t len;
	char why[200] = "";

	if (file < 0) {
		make_image();
	}
	if (n < 2) {
		return 0;
	}
	memcpy(now, image, image_len);
	len = (bytes[0] | (size_t)bytes[1] << 8) * 16;
	len = len == 0 || len > image_len ? image_len : len;
	for (size_t i = 2; i + 4 <= n; i += 4) {
		now[(bytes[i] | (size_t)bytes[i + 1] << 8 | (size_t)bytes[i + 2] << 16) % image_len] ^=
			bytes[i + 3];
	}
	must(ftruncate(file, 0) == 0 && pwrite(file, now, len, 0) == (ssize_t)len, "write");
	if (pfx_audit(path, why, sizeof(why)) == 0) {
		let_loose();
	} else {
		must(why[0] != '\0', "a refusal has a sentence");
	}
	return 0;
}
