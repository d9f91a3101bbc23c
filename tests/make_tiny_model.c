/*
 * make_tiny_model OUT.gguf [KEY=VALUE]...: a tiny model for shell tests and for the numpy
 * reference. Keys: seed, arch, type, embed (type names as GGUF has them), layers, heads,
 * kv_heads, head_dim, embd, ff, ctx, rope_dims, untied, bias, rope (plain, linear, yarn,
 * factors). Without any: llama with Q4_1 matrices and a Q8_0 embedding.
 */
#include <stdio.h>

#include "base/error.h"
#include "tests/model_tiny.h"

int main(int argc, char **argv)
{
	struct pfx_tiny_opts o = { .type = PFX_Q4_1, .embed_type = PFX_Q8_0 };
	int rc;

	if (argc < 2) {
		fprintf(stderr, "usage: make_tiny_model OUT.gguf [KEY=VALUE]...\n");
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		if (pfx_tiny_parse(&o, argv[i]) != 0) {
			fprintf(stderr, "make_tiny_model: cannot read '%s'\n", argv[i]);
			return 2;
		}
	}
	rc = pfx_tiny_save(argv[1], &o);
	if (rc != 0) {
		fprintf(stderr, "make_tiny_model: %s: %s\n", argv[1], pfx_strerror(rc));
		return 1;
	}
	return 0;
}
