#ifndef PFX_TESTS_TEST_MODELS_H
#define PFX_TESTS_TEST_MODELS_H

/* Which models tests run on, and the seed that they take. */

#include <stdint.h>

/*
 * Writes a tiny random model into a temporary file and returns its path (static storage,
 * overwritten by the next call); the caller removes the file. Ends the program on failure.
 */
const char *tiny_model(const char *name, uint64_t seed);
uint32_t tiny_model_n_vocab(void);
/* Bytes of KV that hold this many tokens of the tiny model. */
uint64_t tiny_model_kv_bytes(uint32_t tokens);

/* The file that PREFIXD_MODEL names; NULL when it names none. */
const char *real_model(void);

/* PFX_TEST_SEED, or a new one. */
uint64_t seed_from_environment(void);

#endif
