/*
 * GGUF reader under arbitrary bytes. With libFuzzer (clang
 * -fsanitize=fuzzer,address) this is a fuzz target; without it, `make check` replays
 * tests/corpus/gguf.
 */
#include "tests/fuzz.h"

#include <string.h>

#include "engine/gguf.h"
#include "tests/gguf_walk.h"
#include "tests/gguf_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static struct pfx_memfile file = { .fd = -1 };
	struct pfx_gguf *g;
	char err[300] = "";

	if (file.fd < 0 && pfx_memfile_open(&file) != 0) {
		abort();
	}
	if (pfx_memfile_set(&file, bytes, n) != 0) {
		abort();
	}
	if (pfx_gguf_open(&g, file.path, err, sizeof(err)) == 0) {
		pfx_gguf_walk(g);
		pfx_gguf_close(g);
	} else if (strncmp(err, file.path, strlen(file.path)) != 0) {
		abort(); /* every refusal names the file */
	}
	return 0;
}
