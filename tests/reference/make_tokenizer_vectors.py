#!/usr/bin/env python3
"""Makes tests/vectors/token_*: small vocabularies as GGUF files without tensors, and what the
reference makes of a few hundred short texts. With a model, the vectors of its vocabulary too.

usage: make_tokenizer_vectors.py OUT-FOLDER [MODEL.gguf] < TEXT-TO-TRAIN-ON

A line of a .txt: P or S (S: special tokens are read in the whole text), the text in hex, the ids;
tabs between. See hf_tokenizer.py for what it needs.
"""

import io
import json
import os
import random
import sys

import gguf
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

import hf_tokenizer as hf
import tokenizer_texts

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER = ["<tool_call>", "</tool_call>", "<tool", "    ", "        ", "Zq", "\u00e9\u00e9"]
VOCAB = 900
N_TEXTS = 220


def train_bpe(pre, text):
    tables = type("T", (), {"pre": pre})()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = hf.pre_tokenizer(tables)
    t.normalizer = normalizers.NFC()
    t.train_from_iterator(text.split("\n\n"), trainer)
    vocab = sorted(t.get_vocab(), key=t.get_vocab().get)
    merges = json.loads(t.to_str())["model"]["merges"]
    return vocab, [" ".join(m) for m in merges]


def write_bpe(path, pre, text):
    vocab, merges = train_bpe(pre, text)
    if pre == "smollm":
        # As the real one, it lacks some bytes.
        gone = {hf.alphabet()[b] for b in (0x04, 0x06, 0xf1, 0xf2, 0xc0, 0xff)}
        vocab = [t for t in vocab if t not in gone]
    tokens = CONTROL + vocab + USER
    types = [hf.CONTROL] * len(CONTROL) + [hf.NORMAL] * len(vocab) + [hf.USER] * len(USER)
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    finish(w)


def write_spm(path, text):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=VOCAB,
        model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, minloglevel=2,
        num_threads=1)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(sp.get_piece_size())
    kind = [hf.UNKNOWN if sp.is_unknown(i) else hf.CONTROL if sp.is_control(i) else
            hf.BYTE if sp.is_byte(i) else hf.NORMAL for i in ids]
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list([sp.id_to_piece(i) for i in ids])
    w.add_token_scores([sp.get_score(i) for i in ids])
    w.add_token_types(kind)
    w.add_bos_token_id(sp.bos_id())
    w.add_eos_token_id(sp.eos_id())
    w.add_unk_token_id(sp.unk_id())
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def texts(seed, specials):
    rng = random.Random(seed)
    out = ["", " ", "  ", "\n", "\0", "a", " a", "a ", "\u2581", "\u00e9", "e\u0301", "'s", "don't",
           "12345", " 12 345", "<|im_start|>", "<|im_start|><|im_end|>", "x<|im_end|> y", "<tool_call>",
           "<tool_call", "ZqZqx", "     ", "         x", "\ud55c\uae00", "a" * 70, "\u0600" * 40,
           "hello " * 20, " " * 70 + "x", "-" * 67, "\U00031350<div", "\U0001d2c0!x", "\u1c89=z"]
    while len(out) < N_TEXTS:
        out.append(tokenizer_texts.mixed(rng, rng.choice([1, 5, 10, 20, 40]), specials))
    return out


def encoder(tables, special):
    if tables.model == "llama" and not special:
        sp = sentencepiece.SentencePieceProcessor(model_proto=hf.sentencepiece_model(tables))
        return sp.encode_as_ids
    return hf.hf_tokenizer(tables, special).encode


def write_vectors(model, path, seed):
    tables = hf.Tables(model)
    with open(path, "w") as f:
        for special in (False, True):
            encode = encoder(tables, special)
            for text in texts(seed + special, tables.specials(True)):
                ids = " ".join(map(str, encode(text)))
                f.write("%s\t%s\t%s\n" % ("PS"[special], text.encode().hex(), ids))


def main():
    folder = sys.argv[1]
    text = sys.stdin.buffer.read().decode() + tokenizer_texts.mixed(random.Random(0), 60000)
    for n, pre in enumerate(["gpt-2", "llama-bpe", "qwen2", "smollm", "spm"]):
        path = os.path.join(folder, "token_%s.gguf" % pre)
        write_spm(path, text) if pre == "spm" else write_bpe(path, pre, text)
        write_vectors(path, path.replace(".gguf", ".txt"), 100 * n)
    if len(sys.argv) > 2:
        write_vectors(sys.argv[2], os.path.join(folder, "token_smollm2.txt"), 1000)


if __name__ == "__main__":
    main()
