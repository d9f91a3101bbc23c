/*
 * The readers of what lies on disk under arbitrary bytes: record, index row, shape. The first
 * byte chooses. With libFuzzer (clang -fsanitize=fuzzer,
 * address) this is a fuzz target; without it, `make check` replays tests/corpus/record.
 */
#include "config.h"

#include "tests/fuzz.h"

#include <string.h>

#include "persist/record.h"

/* Read in two parts a record is judged as when it is read at once. */
static void same_in_parts(const uint8_t *bytes, size_t n, const struct pfx_store_shape *shape,
	const struct pfx_store_key *key)
{
	size_t head = pfx_record_head_size(key->n_tokens);
	uint8_t kv[32] = { 0 }, other[32];

	if (n > head) {
		memcpy(kv, bytes + head, n - head < sizeof(kv) ? n - head : sizeof(kv));
	}
	if (pfx_record_verify(bytes, n, shape, key, kv) !=
		pfx_record_decode(bytes, n, shape, key, other)) {
		abort();
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
	switch (bytes[0] % 3) {
	case 0:
		same_in_parts(bytes + 1, n - 1, &shape, &key);
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
	}
	return 0;
}
