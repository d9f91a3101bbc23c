"""Reference tokenizers made of a GGUF file's own tables, for comparison with prefixd's.

Needs: pip install gguf tokenizers sentencepiece protobuf
"""

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class Tables:
    """What the tokenizer keys of a GGUF file hold."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields

        def get(name, default=None):
            field = fields.get("tokenizer.ggml." + name)
            return default if field is None else field.contents()

        self.model = get("model")
        self.pre = get("pre", "default")
        self.tokens = get("tokens")
        self.tokens_set = set(self.tokens)
        self.types = get("token_type", [NORMAL] * len(self.tokens))
        self.scores = get("scores")
        self.merges = get("merges", [])
        self.space_prefix = get("add_space_prefix", self.model == "llama")
        self.unk = get("unknown_token_id")

    def specials(self, trusted):
        """User-defined tokens match in any text, control and unknown ones in trusted text."""
        wanted = (USER, CONTROL, UNKNOWN) if trusted else (USER,)
        return [t for t, kind in zip(self.tokens, self.types) if kind in wanted]


def byte_level(digits=False, split=None):
    parts = []
    if digits:
        parts.append(pre_tokenizers.Digits(individual_digits=True))
    if split:
        parts.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    return pre_tokenizers.Sequence(parts)


def kind(tables):
    return {"default": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe",
            "starcoder": "smollm", "refact": "smollm"}.get(tables.pre, tables.pre)


def nfc(tables):
    return kind(tables) in ("qwen2", "mpt", "olmo", "command-r")


def alphabet():
    """Byte-level BPE's character for each byte."""
    prints = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = iter(range(256, 512))
    return [chr(b) if b in prints else chr(next(rest)) for b in range(256)]


def pre_tokenizer(tables):
    return {
        "gpt-2": lambda: byte_level(),
        "mpt": lambda: byte_level(),
        "olmo": lambda: byte_level(),
        "smollm": lambda: byte_level(digits=True),
        "command-r": lambda: byte_level(digits=True),
        "llama-bpe": lambda: byte_level(split=LLAMA3 % "{1,3}"),
        "qwen2": lambda: byte_level(split=LLAMA3 % ""),
    }[kind(tables)]()


def hf_bpe(tables, trusted):
    # Added tokens must be in the vocabulary already, else they get ids that are taken.
    vocab = {t: i for i, t in enumerate(tables.tokens)
             if trusted or tables.types[i] in (NORMAL, USER)}
    model = models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in tables.merges],
                       ignore_merges=kind(tables) == "llama-bpe")
    hf = tokenizers.Tokenizer(model)
    hf.pre_tokenizer = pre_tokenizer(tables)
    if nfc(tables):
        hf.normalizer = normalizers.NFC()
    hf.decoder = decoders.ByteLevel()
    add_specials(hf, tables, trusted)
    return hf


def add_specials(hf, tables, trusted):
    for content in tables.specials(trusted):
        hf.add_special_tokens([AddedToken(content, normalized=False, special=True)])


class WithIds:
    """tokenizers numbers added tokens as it likes; this gives the file's ids."""

    def __init__(self, hf, tables):
        self.hf = hf
        self.ids = {t: i for i, t in enumerate(tables.tokens)}

    def encode(self, text):
        return [self.ids[t] for t in self.hf.encode(text, add_special_tokens=False).tokens]


def hf_spm(tables, trusted):
    """As transformers converts a Llama tokenizer: every cut of a token is a merge."""
    vocab = {t: i for i, t in enumerate(tables.tokens)
             if trusted or tables.types[i] in (NORMAL, UNKNOWN, BYTE)}
    normal = {t for t, i in vocab.items() if tables.types[i] == NORMAL}
    merges = []
    for token in normal:
        cuts = [(token[:k], token[k:]) for k in range(1, len(token))]
        cuts = [c for c in cuts if c[0] in normal and c[1] in normal]
        cuts.sort(key=lambda c: (vocab[c[0]], vocab[c[1]]))
        merges += [(tables.scores[vocab[token]], vocab[token], c) for c in cuts]
    merges.sort(key=lambda m: (m[0], len(m[2][0]), len(m[2][1])), reverse=True)
    unk = tables.tokens[tables.types.index(UNKNOWN)]
    hf = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[m[2] for m in merges],
                                         unk_token=unk, fuse_unk=True, byte_fallback=True))
    parts = [normalizers.Prepend("\u2581")] if tables.space_prefix else []
    hf.normalizer = normalizers.Sequence(parts + [normalizers.Replace(" ", "\u2581")])
    add_specials(hf, tables, trusted)
    return hf


def hf_tokenizer(tables, trusted):
    make = hf_bpe if tables.model == "gpt2" else hf_spm
    return WithIds(make(tables, trusted), tables)


def sentencepiece_model(tables):
    """The tables as a SentencePiece model, serialised."""
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto()
    for token, kind, score in zip(tables.tokens, tables.types, tables.scores):
        piece = proto.pieces.add()
        piece.piece, piece.score, piece.type = token, score, kind
    proto.trainer_spec.model_type = pb.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = BYTE in tables.types
    proto.trainer_spec.unk_id = tables.types.index(UNKNOWN)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = bool(tables.space_prefix)
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    return proto.SerializeToString()
