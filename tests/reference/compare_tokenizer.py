#!/usr/bin/env python3
"""Compares prefixd's tokenizer with the reference on one model's tables.

usage: compare_tokenizer.py [--mb N] [--seed N] TOKENIZE MODEL.gguf [TEXT-FILE...]

TOKENIZE is the program tests/tokenize of the build. The texts are made at random (English, code,
CJK, emoji, marks, odd white space, control characters, broken UTF-8, special tokens); files are
taken besides, whole and in pieces. For byte-level BPE the reference is Hugging Face's tokenizers,
for SentencePiece the sentencepiece library, with tokenizers for texts with special tokens.
"""

import argparse
import random
import struct
import subprocess
import sys
import unicodedata

import hf_tokenizer
import tokenizer_texts


def run(program, model, records, special):
    data = b"".join(struct.pack("<I", len(r)) + r for r in records)
    flags = ["-r", "-d"] + (["-s"] if special else [])
    out = subprocess.run([program, *flags, model], input=data, capture_output=True, check=True)
    lines = out.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(records), (len(lines), len(records))
    for line in lines:
        ids, text = line.split("\t")
        yield [int(i) for i in ids.split()], bytes.fromhex(text)


def make_records(args, specials):
    rng = random.Random(args.seed)
    records, size = [], 0
    for path in args.files:
        data = open(path, "rb").read()
        records.append(data)
        while data:
            n = rng.choice([10, 100, 1000, 10000])
            records.append(data[:n])
            data = data[n:]
    while size < args.mb * 1e6:
        n = rng.choice([1, 3, 10, 30, 100, 300, 1000, 10000, 100000])
        make = tokenizer_texts.broken if rng.randrange(6) == 0 else tokenizer_texts.mixed
        text = make(rng, n, specials)
        records.append(text if isinstance(text, bytes) else text.encode())
        size += len(records[-1])
    return records


def reference(tables, special):
    if tables.model == "llama" and not special and hf_tokenizer.USER not in tables.types:
        import sentencepiece
        sp = sentencepiece.SentencePieceProcessor()
        sp.LoadFromSerializedProto(hf_tokenizer.sentencepiece_model(tables))
        return "sentencepiece", lambda text: sp.EncodeAsIds(text)
    return "tokenizers", hf_tokenizer.hf_tokenizer(tables, special).encode


def expected_text(tables, text):
    """What the ids must give back; None where special tokens and space prefixes blur it."""
    if tables.model == "llama":
        return text.replace("\u2581", " ").encode() if tables.space_prefix else None
    if hf_tokenizer.nfc(tables):
        text = unicodedata.normalize("NFC", text)
    have = {b for b, t in enumerate(hf_tokenizer.alphabet()) if t in tables.tokens_set}
    return bytes(b for b in text.encode() if b in have).decode(errors="replace").encode()


def report(text, got, want, tables):
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    print("differs at id %d of %d: got %s, want %s" % (at, len(want),
          [tables.tokens[i] for i in got[at:at + 6]], [tables.tokens[i] for i in want[at:at + 6]]))
    print("  text", ascii(text[:200]))


def compare(args, tables, special):
    records = make_records(args, tables.specials(True))
    name, encode = reference(tables, special)
    bad = 0
    for data, (got, back) in zip(records, run(args.tokenize, args.model, records, special)):
        text = data.decode(errors="replace")
        want = encode(text)
        if got != want:
            bad += 1
            if bad <= args.show:
                report(text, got, want, tables)
        want_text = None if special and tables.model == "llama" else expected_text(tables, text)
        if want_text is not None and back != want_text:
            bad += 1
            print("text differs:", ascii(back[:200]), ascii(want_text[:200]))
    print("%s: %d texts, %d bytes, special tokens %s, against %s: %d differ" % (args.model,
          len(records), sum(map(len, records)), "read" if special else "not read", name, bad))
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    parser.add_argument("tokenize")
    parser.add_argument("model")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    tables = hf_tokenizer.Tables(args.model)
    bad = compare(args, tables, False) + compare(args, tables, True)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
