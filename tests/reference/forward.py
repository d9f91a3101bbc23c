"""A float32 forward pass over a GGUF file's dequantised weights: the oracle for answers.

Written from the papers and the format's description, in numpy alone, and on purpose without
a look at the C code: plain formulas, one sequence, no cache. Dequantising is done by the
`gguf` package.
"""
import math

import gguf
import numpy as np


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {t.name: t for t in reader.tensors}
        self.arch = self.meta["general.architecture"]
        self.n_layers = self.key("block_count")
        self.n_heads = self.key("attention.head_count")
        self.n_kv = self.key("attention.head_count_kv", self.n_heads)
        self.n_embd = self.key("embedding_length")
        self.head_dim = self.key("attention.key_length", self.n_embd // self.n_heads)
        self.eps = np.float32(self.key("attention.layer_norm_rms_epsilon"))
        self.cache = {}

    def key(self, name, default=None):
        value = self.meta.get(f"{self.arch}.{name}", default)
        if value is None:
            raise KeyError(name)
        return value

    def w(self, name):
        """Dequantised to float32, [out][in]; None when the file has no such tensor."""
        if name not in self.tensors:
            return None
        if name not in self.cache:
            t = self.tensors[name]
            a = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            self.cache[name] = a.reshape([int(d) for d in reversed(t.shape)])
        return self.cache[name]

    def frequencies(self):
        """Radians a position for each pair of dimensions, and the factor of cos and sin."""
        n = self.key("rope.dimension_count", self.head_dim)
        base = float(self.key("rope.freq_base", 10000.0))
        freq = base ** (-np.arange(0, n, 2, dtype=np.float64) / n)
        factors = self.w("rope_freqs.weight")
        if factors is not None:
            freq = freq / factors.astype(np.float64)
        kind = self.key("rope.scaling.type", "none")
        if kind == "none":
            return freq, 1.0
        factor = float(self.key("rope.scaling.factor"))
        if kind == "linear":
            return freq / factor, 1.0
        assert kind == "yarn"
        # Waves that turn often over the original context stay, slow ones are stretched.
        length = self.key("rope.scaling.original_context_length")

        def dim_of(turns):
            return n * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dim_of(32.0)), 0)
        high = min(math.ceil(dim_of(1.0)), n - 1)
        ramp = np.clip((np.arange(n // 2) - low) / max(high - low, 0.001), 0, 1)
        return freq / factor * ramp + freq * (1 - ramp), 0.1 * math.log(factor) + 1.0

    def rope(self, x, n_tokens):
        """x[token][head][dim]"""
        freq, magnitude = self.frequencies()
        angle = np.arange(n_tokens, dtype=np.float64)[:, None] * freq[None, :]
        cos = (np.cos(angle) * magnitude).astype(np.float32)[:, None, :]
        sin = (np.sin(angle) * magnitude).astype(np.float32)[:, None, :]
        half = len(freq)
        y = x.copy()
        if self.arch == "llama":
            a, b = x[..., 0:2 * half:2], x[..., 1:2 * half:2]
            y[..., 0:2 * half:2] = a * cos - b * sin
            y[..., 1:2 * half:2] = a * sin + b * cos
        else:
            a, b = x[..., :half], x[..., half:2 * half]
            y[..., :half] = a * cos - b * sin
            y[..., half:2 * half] = a * sin + b * cos
        return y

    def norm(self, x, w):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * w

    def linear(self, x, name):
        y = x @ self.w(name + ".weight").T
        bias = self.w(name + ".bias")
        return y if bias is None else y + bias

    def attention(self, x, layer):
        n, blk = len(x), f"blk.{layer}."
        q = self.linear(x, blk + "attn_q").reshape(n, self.n_heads, self.head_dim)
        k = self.linear(x, blk + "attn_k").reshape(n, self.n_kv, self.head_dim)
        v = self.linear(x, blk + "attn_v").reshape(n, self.n_kv, self.head_dim)
        if self.w(blk + "attn_q_norm.weight") is not None:
            q = self.norm(q, self.w(blk + "attn_q_norm.weight"))
            k = self.norm(k, self.w(blk + "attn_k_norm.weight"))
        q, k = self.rope(q, n), self.rope(k, n)
        mask = np.triu(np.full((n, n), -np.inf, dtype=np.float32), 1)
        out = np.empty((n, self.n_heads, self.head_dim), dtype=np.float32)
        for head in range(self.n_heads):
            kv = head // (self.n_heads // self.n_kv)
            s = q[:, head] @ k[:, kv].T / np.float32(math.sqrt(self.head_dim)) + mask
            p = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, kv]
        return self.linear(out.reshape(n, -1), blk + "attn_output")

    def mlp(self, x, layer):
        blk = f"blk.{layer}."
        gate = self.linear(x, blk + "ffn_gate")
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(x, blk + "ffn_up"),
                           blk + "ffn_down")

    def hidden(self, ids):
        """The normed last hidden state of each position."""
        x = self.w("token_embd.weight")[np.asarray(ids)].copy()
        for layer in range(self.n_layers):
            x = x + self.attention(self.norm(x, self.w(f"blk.{layer}.attn_norm.weight")), layer)
            x = x + self.mlp(self.norm(x, self.w(f"blk.{layer}.ffn_norm.weight")), layer)
        return self.norm(x, self.w("output_norm.weight"))

    def logits(self, ids):
        head = self.w("output.weight")
        return self.hidden(ids) @ (self.w("token_embd.weight") if head is None else head).T


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
