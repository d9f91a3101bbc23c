#ifndef PFX_TESTS_FUZZ_H
#define PFX_TESTS_FUZZ_H

/* A fuzz target's entry. tests/fuzz_replay.c calls it for each file of a corpus. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

#endif
