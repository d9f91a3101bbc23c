"""Texts that tokenizers disagree on. Deterministic for a seed."""

import random
import unicodedata

SPACES = " \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NO_SPACES = "\u180e\u200b\u200c\u200d\u2060\ufeff\u00ad"
WORDS = """the of and to in a is that for it as was with be by on not he I this are or his from at
which but have an had they you were their one all we can her has there been if more when will would
who so no don't can't we're I'll he'd they've I'm it's DON'T WE'RE I'LL tokenization
internationalization naïve café Zürich coöperate straße Ελλάδα Москва привет мир שלום مرحبا नमस्ते
สวัสดี 你好 世界 東京都 こんにちは カタカナ 한국어 안녕하세요 ı İ ſ ß ǆ ﬁ Ⅷ ½ ² 
x86_64 foo_bar fooBar HTTPServer int32_t 0x1F 3.14159 1,234,567 192.168.0.1 2025-03-09 $100 50%
== != <= >= && || -> :: ++ -- // /* */ #include <stdio.h> {} () [] ;; ... ---- ==== ''' `` ~~""".split()
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "🤷🏿‍♀️", "🦀", "☃", "🧑‍🚀"]
CODE = ["\tfor (int i = 0; i < n; i++) {\n\t\tx[i] += y[i];\n\t}\n", "def f(x):\n    return x ** 2\n",
        "\r\nif (a &&\r\n    b) {\r\n}\r\n", "<div class=\"a\">&nbsp;</div>\n", "SELECT * FROM t;\n\n\n",
        "    \n\t \n  x", "printf(\"%d\\n\", 'c');", "{\"k\": [1, 2.5e-3, null]}\n"]


def code_point(rng):
    """Any scalar value that is not for private use, the low planes more often."""
    while True:
        top = rng.choice([0x80, 0x250, 0x600, 0x3000, 0x3200, 0xa000, 0x10000, 0x20000, 0x110000])
        c = chr(rng.randrange(top))
        if unicodedata.category(c) not in ("Cs", "Co"):
            return c


def marks(rng):
    """A letter with combining marks in any order; some compose, some reorder."""
    base = rng.choice("aeiouAEOUnNcsSzyYqx가각ᄀがカΑωиक")
    pool = "\u0300\u0301\u0302\u0303\u0308\u030a\u0323\u0327\u0328\u0331\u0345\u3099\u309a\u093c" \
           "\u05b0\u05c1\u064b\u0651\u0f71\u1161\u11a8\u0340\u0344\u1dc0"
    return base + "".join(rng.choice(pool) for _ in range(rng.randrange(1, 6)))


def snippet(rng, specials):
    kind = rng.randrange(15)
    if kind < 5:
        return rng.choice(["", " ", " ", " ", "  ", "\n"]) + rng.choice(WORDS)
    if kind == 5:
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 6)))
    if kind == 6:
        return rng.choice(" \n\t\r") * rng.choice([1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 70])
    if kind == 7:
        return str(rng.randrange(10 ** rng.randrange(1, 12)))
    if kind == 8:
        return rng.choice(EMOJI) * rng.choice([1, 1, 2, 3, 5])
    if kind == 9:
        return marks(rng)
    if kind == 10:
        return code_point(rng) * rng.choice([1, 1, 1, 2, 3])
    if kind == 11:
        return rng.choice([rng.choice(NO_SPACES), chr(rng.randrange(32)), "\x7f", "\u2581",
                           chr(rng.randrange(0x80, 0xa0))])
    if kind == 12:
        return rng.choice(CODE)
    if kind == 13:
        return rng.choice("aZ-=*#_.!é中")* rng.choice([1, 2, 3, 5, 9, 40, 64, 65, 130])
    if specials and rng.randrange(3) == 0:
        s = rng.choice(specials)
        return rng.choice([s, s, s[:-1], s[1:], s + s, s.upper(), s[:3] + s])
    return rng.choice(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<0x0A>", "<unk>", "<|", "|>"])


def mixed(rng, size, specials=()):
    """About `size` characters of everything."""
    out, n = [], 0
    while n < size:
        out.append(snippet(rng, specials))
        n += len(out[-1])
    return "".join(out)


def broken(rng, size, specials=()):
    """The same as bytes, some of them not UTF-8."""
    data = bytearray(mixed(rng, size, specials).encode())
    for _ in range(1 + len(data) // 40):
        at = rng.randrange(len(data) + 1)
        if rng.randrange(2):
            data[at:at] = bytes([rng.choice([0x80, 0xbf, 0xc0, 0xc3, 0xe2, 0xed, 0xf0, 0xf4, 0xff])])
        else:
            del data[at:at + 1]
    return bytes(data)
