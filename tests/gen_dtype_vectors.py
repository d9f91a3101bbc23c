#!/usr/bin/env python3
"""Writes tests/dtype_vectors.h: random blocks of each quantised type, and what the `gguf`
package (pip install gguf) makes of them. Usage: gen_dtype_vectors.py > dtype_vectors.h"""
import numpy as np
from gguf import GGMLQuantizationType as T, quants

rng = np.random.default_rng(20250101)
# type, bytes a block, blocks, offsets of f16 fields (which must not be NaN or huge)
TYPES = [(T.Q4_0, 18, 2, [0]), (T.Q4_1, 20, 2, [0, 2]), (T.Q5_0, 22, 2, [0]),
         (T.Q5_1, 24, 2, [0, 2]), (T.Q8_0, 34, 2, [0]), (T.Q4_K, 144, 1, [0, 2]),
         (T.Q5_K, 176, 1, [0, 2]), (T.Q6_K, 210, 1, [208])]


def lines(words, fmt, each):
    for i in range(0, len(words), each):
        print("\t" + ", ".join(fmt % w for w in words[i:i + each]) + ",")


print("/* Written by tests/gen_dtype_vectors.py; do not edit. */")
for t, size, n, halves in TYPES:
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in halves:
        h = rng.normal(0, 0.05, n).astype(np.float16)
        b[:, at:at + 2] = h.view(np.uint8).reshape(n, 2)
    want = quants.dequantize(b, t).astype(np.float32).reshape(-1).view(np.uint32)
    print(f"static const uint8_t {t.name.lower()}_bytes[] = {{")
    lines(b.reshape(-1), "%u", 24)
    print(f"}};\nstatic const uint32_t {t.name.lower()}_want[] = {{")
    lines(want, "0x%08x", 8)
    print("};")
