#include "tests/test_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/model_tiny.h"

/* Q4_1 as the real model has, small enough for thousands of requests. */
static const struct pfx_tiny_opts shape = {
	.type = PFX_Q4_1,
	.embed_type = PFX_Q8_0,
	.n_layers = 2,
	.n_heads = 4,
	.n_kv_heads = 2,
	.head_dim = 16,
	.n_ctx = 1024,
};

const char *tiny_model(const char *name, uint64_t seed)
{
	static char path[256];
	struct pfx_tiny_opts opts = shape;

	opts.seed = seed;
	snprintf(path, sizeof(path), "test_%s_%d.gguf", name, (int)getpid());
	if (pfx_tiny_save(path, &opts) != 0) {
		printf("Bail out! cannot write %s\n", path);
		exit(1);
	}
	return path;
}

uint32_t tiny_model_n_vocab(void)
{
	return PFX_TINY_VOCAB;
}

uint64_t tiny_model_kv_bytes(uint32_t tokens)
{
	/* K and V, 2 bytes each. */
	return (uint64_t)tokens * shape.n_layers * 2 * shape.n_kv_heads * shape.head_dim * 2;
}

const char *real_model(void)
{
	const char *path = getenv("PREFIXD_MODEL");

	return path != NULL && path[0] != 0 ? path : NULL;
}

uint64_t seed_from_environment(void)
{
	const char *seed = getenv("PFX_TEST_SEED");

	return seed != NULL ? strtoull(seed, NULL, 10) : pfx_rng_entropy() >> 16;
}
