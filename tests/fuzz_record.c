/*
 * The readers of what lies on disk under arbitrary bytes: record, index row, shape, and the
 * audit of an LMDB file. The first byte chooses. With libFuzzer (clang -fsanitize=fuzzer,
 * address) this is a fuzz target; without it, `make check` replays tests/corpus/record.
 */
#include "config.h"

#include "tests/fuzz.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "persist/audit.h"
#include "persist/record.h"

static void audit(const uint8_t *bytes, size_t n)
{
	static int fd = -1;
	char path[64], why[200] = "";

	fd = fd < 0 ? memfd_create("audit", 0) : fd;
	if (fd < 0 || ftruncate(fd, 0) != 0 || (n > 0 && pwrite(fd, bytes, n, 0) != (ssize_t)n)) {
		abort();
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (pfx_audit(path, why, sizeof(why)) != 0 && why[0] == '\0') {
		abort(); /* every refusal has a sentence */
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static const uint32_t tokens[4] = { 1, 2, 3, 4 };
	struct pfx_store_shape shape = { .block_tokens = 4, .kv_bytes = 32 };
	struct pfx_digest space;
	struct pfx_store_key key, back;
	struct pfx_entry_info info;
	uint32_t read[PFX_RECORD_TOKENS_MAX], version;
	uint8_t kv[32], again[256];

	if (n == 0) {
		return 0;
	}
	pfx_space_digest("f", 1, NULL, 0, &space);
	pfx_store_key_make(&key, &space, NULL, tokens, 4);
	switch (bytes[0] % 4) {
	case 0:
		if (pfx_record_decode(bytes + 1, n - 1, &shape, &key, kv) == 0) {
			pfx_record_encode(again, &shape, &key, kv);
			if (memcmp(again, bytes + 1, n - 1) != 0) {
				abort(); /* what is accepted is what would have been written */
			}
		}
		break;
	case 1:
		if (pfx_entry_decode(bytes + 1, n - 1, &shape, &back, read, &info) == 0 &&
			pfx_store_key_check(&back, &shape) != 0) {
			abort();
		}
		break;
	case 2:
		pfx_shape_decode(bytes + 1, n - 1, &shape, &version);
		break;
	case 3:
		audit(bytes + 1, n - 1);
		break;
	}
	return 0;
}
