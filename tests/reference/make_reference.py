#!/usr/bin/env python3
"""Makes the reference vectors of "Right answers" (needs numpy, gguf, tokenizers, xxhash).

    make_reference.py answers MODEL.gguf       -> answers.bin, english.bin
    make_reference.py tiny MAKE_TINY_MODEL     -> tiny.bin

answers.bin: "PFXA", u32 version 1, 16 bytes XXH3-128 of the model file, u32 texts; a text is
  char[16] name, u32 n, u16 ids[n], then for each position: u16 best[64] (reference's best ids,
  best first), f16 logprob[64], f16 logprob of all others together, u16 0, f32 logprob of the
  next token (0 at the last position). Little-endian.
english.bin: "PFXE", u32 version 1, digest, u32 window, u32 windows, u16 ids[windows * window],
  f64 nll[windows]: minus the sum of the window's logprobs of ids[1..window) after ids[0..).
tiny.bin: "PFXT", u32 version 1, u32 models; a model is u32 length, its make_tiny_model
  arguments with spaces between, 16 bytes digest of the file, u32 n, u16 ids[n], u32 rows, and
  for each row u32 position, f32 logits[320].
"""
import os
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
import xxhash

from forward import Model, log_softmax

HERE = os.path.dirname(os.path.abspath(__file__))
BEST = 64
WINDOW, WINDOWS = 1024, 30

TINY = [
    "seed=1 arch=llama type=F32 embed=F32",
    "seed=2 arch=llama type=F16 embed=F16 untied=1",
    "seed=3 arch=llama type=BF16 embed=BF16 kv_heads=4",
    "seed=4 arch=llama type=Q8_0 embed=Q8_0 rope=linear",
    "seed=5 arch=llama type=Q4_0 embed=Q8_0 rope=yarn",
    "seed=6 arch=llama type=Q4_1 embed=Q8_0 rope=factors kv_heads=1",
    "seed=7 arch=llama type=Q5_0 embed=Q5_1 bias=1",
    "seed=8 arch=llama type=Q5_1 embed=Q4_0 rope_dims=16",
    "seed=9 arch=llama type=Q4_K embed=Q6_K embd=256 ff=512 head_dim=64",
    "seed=10 arch=llama type=Q5_K embed=Q4_K embd=256 ff=512 heads=8",
    "seed=11 arch=llama type=Q6_K embed=Q5_K embd=256 ff=256 untied=1 head_dim=64",
    "seed=12 arch=qwen2 type=Q8_0 embed=F16",
    "seed=13 arch=qwen2 type=Q4_1 embed=Q8_0 rope=yarn untied=1 layers=3",
    "seed=14 arch=qwen3 type=F32 embed=F32 head_dim=64 embd=128",
    "seed=15 arch=qwen3 type=Q8_0 embed=Q8_0 rope=linear head_dim=128 heads=2 kv_heads=1",
]


def digest(path):
    h = xxhash.xxh3_128()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.digest()


def tokenizer(meta):
    """A byte-level BPE from the file's own tables, special tokens read in the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, AddedToken
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    types = meta["tokenizer.ggml.token_type"]
    tok.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, types) if k == 3])
    return tok


def answers_record(model, name, ids):
    lp = log_softmax(model.logits(ids))
    n = len(ids)
    best = np.argsort(-lp, axis=1, kind="stable")[:, :BEST]
    top = np.take_along_axis(lp, best, axis=1)
    rest_mask = np.ones(lp.shape, dtype=bool)
    np.put_along_axis(rest_mask, best, False, axis=1)
    rest = np.log(np.where(rest_mask, np.exp(lp), 0).sum(axis=1))
    out = struct.pack("<16sI", name.encode(), n) + np.asarray(ids, dtype="<u2").tobytes()
    for p in range(n):
        following = lp[p, ids[p + 1]] if p + 1 < n else 0.0
        out += best[p].astype("<u2").tobytes() + top[p].astype("<f2").tobytes()
        out += struct.pack("<eHf", rest[p], 0, following)
    return out, -lp[np.arange(n - 1), ids[1:]].sum()


def make_answers(path):
    from texts import TEXTS, english
    model = Model(path)
    tok = tokenizer(model.meta)
    head = struct.pack("<I16s", 1, digest(path))
    body, total, nll = b"", 0, 0.0
    for name, text, limit in TEXTS:
        ids = tok.encode(text).ids[:limit]
        start = time.time()
        record, loss = answers_record(model, name, ids)
        body += record
        total, nll = total + len(ids), nll + loss
        print(f"{name}: {len(ids)} tokens, perplexity {np.exp(loss / (len(ids) - 1)):.3f}, "
              f"{time.time() - start:.1f} s", flush=True)
    with open(os.path.join(HERE, "answers.bin"), "wb") as f:
        f.write(b"PFXA" + head + struct.pack("<I", len(TEXTS)) + body)
    print(f"{len(TEXTS)} texts, {total} tokens")

    ids = np.asarray(tok.encode(english()).ids[:WINDOW * WINDOWS], dtype="<u2")
    assert len(ids) == WINDOW * WINDOWS
    losses = []
    for i in range(WINDOWS):
        part = ids[i * WINDOW:(i + 1) * WINDOW].astype(int)
        lp = log_softmax(model.logits(part))
        losses.append(-lp[np.arange(WINDOW - 1), part[1:]].sum())
        print(f"window {i}: {losses[-1]:.4f}", flush=True)
    with open(os.path.join(HERE, "english.bin"), "wb") as f:
        f.write(b"PFXE" + head + struct.pack("<II", WINDOW, WINDOWS) + ids.tobytes() +
                np.asarray(losses, dtype="<f8").tobytes())
    print(f"perplexity {np.exp(sum(losses) / (WINDOWS * (WINDOW - 1))):.4f}")


def make_tiny(program):
    out = b"PFXT" + struct.pack("<II", 1, len(TINY))
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tiny.gguf")
        for args in TINY:
            subprocess.run([program, path, *args.split()], check=True)
            ids = rng.integers(0, 320, size=70)
            logits = Model(path).logits(ids)
            rows = [0, 1, 17, 48, 69]
            out += struct.pack("<I", len(args)) + args.encode() + digest(path)
            out += struct.pack("<I", len(ids)) + ids.astype("<u2").tobytes()
            out += struct.pack("<I", len(rows))
            for r in rows:
                out += struct.pack("<I", r) + logits[r].astype("<f4").tobytes()
            print(args, "logits' deviation", round(float(logits.std()), 3))
    with open(os.path.join(HERE, "tiny.bin"), "wb") as f:
        f.write(out)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("answers", "tiny"):
        sys.exit(__doc__)
    (make_answers if sys.argv[1] == "answers" else make_tiny)(sys.argv[2])
