#!/usr/bin/env python3
"""Compares random expressions and loops with jinja2, and checks their marks.

usage: random_chat.py DRIVER COUNT [SEED]

DRIVER is tests/chat_driver. Prints what differs; integers beyond 64 bits, which Python
has and prefixd refuses, are passed over. Each template is rendered a second time with
Han characters in all that the client gives and Hebrew letters in the template's own
strings, which no operation turns into one another: so every byte tells whose it is.
"""
import random
import re
import sys
import warnings

from compare_chat import Driver, reference
from make_chat_vectors import VARIABLES

NAMES = ["n", "neg", "f", "yes", "no", "s", "e", "ws", "u", "l", "ls", "d", "dl", "lines", "q",
         "nested", "missing", "none", "messages"]
LITERALS = ["0", "1", "2", "-1", "3.5", "'a'", "''", "' '", "'lo'", "', '", "'ß'", "'日本'", "[]",
            "[1, 'x']", "(1, 2)", "{'a': 1}", "true", "none", "'%s'", "'{}'", "10", "'A b-c'"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "string", "list", "first",
           "last", "reverse|list", "sort", "unique|list", "join", "join({})", "join({}, 'k')",
           "tojson", "tojson(indent=2)", "tojson(true)", "tojson(sort_keys=true)", "int", "float",
           "abs", "round", "round(1)", "default({})", "default({}, true)", "replace({}, {})",
           "e", "safe", "indent", "indent(2, true)", "min", "max", "sum", "items|list", "dictsort",
           "map('string')|list", "map('upper')|list", "select|list", "reject('none')|list",
           "selectattr('k')|list", "map(attribute='k')|list", "map(attribute='v')|list",
           "batch(2)|list", "batch(3, {})|list", "slice(2)|list", "dictsort(by='value')",
           "sort(reverse=true)", "sort(attribute='v')", "trim({})", "count", "int({})",
           "sort(case_sensitive=true)", "select('string')|list", "map('length')|list"]
METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "strip({})",
           "lstrip({})", "rstrip({})", "split()", "split({})", "split({}, 1)", "rsplit({}, 1)",
           "rsplit(none, 1)", "split(none, 1)", "splitlines()", "startswith({})", "endswith({})",
           "replace({}, {})", "replace({}, {}, 1)", "find({})", "rfind({})", "count({})",
           "index({})", "join({})", "partition({})", "rpartition({})", "center(9, '*')",
           "ljust(5)", "rjust(12)", "isalpha()", "isdigit()", "isspace()", "isupper()", "islower()",
           "removeprefix({})", "removesuffix({})", "keys()|list", "values()|list", "items()|list",
           "get({})", "get({}, {})", "copy()", "format({})", "format({}, {})"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "mapping",
         "iterable", "sequence", "boolean", "true", "false", "odd", "even", "divisibleby({})",
         "in({})", "eq({})", "ne({})", "lt({})", "ge({})", "lower", "upper", "callable",
         "sameas(none)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in",
             "and", "or", "**"]
SLICES = ["[0]", "[-1]", "[1]", "[1:]", "[:-1]", "[::-1]", "[::2]", "[-3:]", "[3:1:-1]", "['a']",
          "['k']", ".a", ".b", ".k", ".role", ".x", "[5]", "[{}]", "[{}:{}]"]


STRINGS = ["s", "u", "ws", "q", "lines", "s[1:]", "(s ~ n)", "ls[0]"]
NUMBERS = ["n", "neg", "f", "3", "2.5", "(n + 1)", "0", "-7"]
LISTS = ["l", "ls", "[1, n]", "dl", "(l + ls)", "nested"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def fill(self, shape, depth):
        return re.sub(r"\{\}", lambda _: self.expression(depth - 2), shape)

    def expression(self, depth):
        r = self.random
        if depth <= 0 or r.random() < 0.15:
            return r.choice(NAMES if r.random() < 0.6 else LITERALS)
        kind = r.randrange(8)
        if kind <= 1:
            return f"({self.expression(depth - 1)})|{self.fill(r.choice(FILTERS), depth)}"
        if kind == 2:
            target = self.expression(depth - 1) if r.random() < 0.3 else r.choice(STRINGS)
            return f"({target}).{self.fill(r.choice(METHODS), depth)}"
        if kind == 3:
            negation = r.choice(["", "not "])
            return f"(({self.expression(depth - 1)}) is {negation}{self.fill(r.choice(TESTS), depth)})"
        if kind == 4:
            op = r.choice(OPERATORS)
            if r.random() < 0.6:
                same = r.choice([STRINGS, NUMBERS, LISTS])
                op = "-" if op == "**" else op
                return f"({r.choice(same)} {op} {r.choice(same)})"
            if op == "**":
                return f"({r.choice(['n', 'neg', 'f'])} ** {r.choice(['2', '3', '-1', 'n'])})"
            right = self.expression(depth - 1)
            return f"({self.expression(depth - 1)} {op} {right})"
        if kind == 5:
            # jinja2 folds what is constant by other rules, so something here is not.
            shape = self.fill(r.choice(SLICES), depth)
            target = self.expression(depth - 1) if "[:" not in shape and ":" not in shape else \
                r.choice(STRINGS + LISTS)
            return f"({target}){shape}"
        if kind == 6 or kind == 7 and r.random() < 0.8:
            a, b, c = (self.expression(depth - 2) for _ in range(3))
            return r.choice([f"({a} if {b} else {c})", f"[{a}, {b}]", f"{{'k': {a}, 'v': {b}}}",
                             f"({a}, {b}, {c})", f"({a} < {b} < {c})", f"(not {a})"])
        return f"-({self.expression(depth - 1)})"

    def template(self):
        r = self.random
        one, two = self.expression(4), self.expression(3)
        return r.choice([
            "{{ %s }}" % one, "{{ %s }}" % one, "{{ %s }}" % one,
            "{%% for x in %s %%}{{ x }}{{ loop.index }}{{ loop.last }};{%% endfor %%}" % one,
            "{%% for x in %s if %s %%}{{ x }};{%% else %%}no{%% endfor %%}" % (one, two),
            "{%% if %s %%}a{%% else %%}{{ %s }}{%% endif %%}" % (one, two),
            "{%% set v = %s %%}{{ v }}|{{ %s }}" % (one, two),
            "{%% set v %%}{{ %s }}{%% endset %%}{{ v|length }}{{ v|upper }}" % one,
            "{%% macro m(x, y=%s) %%}{{ x }},{{ y }}{%% endmacro %%}{{ m(%s) }}" % (two, one),
            "{%% filter title %%}{{ %s }}{%% endfilter %%}" % one,
        ])


def to_han(value):
    """The same value with Han characters for those of its strings, keys excepted."""
    if isinstance(value, str):
        return "".join(c if c.isspace() else chr(0x4e00 + ord(c) % 512) for c in value)
    if isinstance(value, list):
        return [to_han(v) for v in value]
    if isinstance(value, dict):
        return {k: to_han(v) for k, v in value.items()}
    return value


def to_hebrew(template):
    """The template with Hebrew letters in its strings, but for those that name something."""
    names = {"k", "v", "a", "b", "value", "none", "string", "upper", "length", "%s", "{}", "*"}

    def change(m):
        if m.group(1) in names:
            return m.group()
        return "'" + "".join(c if c.isspace() else chr(0x5d0 + ord(c) % 27) for c in m.group(1)) + "'"

    return re.sub(r"'([^']*)'", change, template)


def bad_mark(reply):
    """A character whose mark is wrong, or None."""
    data, inside = reply["text"].encode(), set()
    for start, end in reply["spans"]:
        inside.update(range(start, end))
    at = 0
    for c in reply["text"]:
        n = len(c.encode())
        mine = {i in inside for i in range(at, at + n)}
        if 0x4e00 <= ord(c) < 0x5000 and mine != {False} or 0x5d0 <= ord(c) < 0x5eb and mine != {True}:
            return f"byte {at} of {data!r}, spans {reply['spans']}"
        at += n
    return None


def incomparable(text):
    """Python's addresses, and numbers of more than 64 bits."""
    return " at 0x" in text or " object" in text and "<" in text or re.search(r"\d{19}", text)


def main():
    warnings.simplefilter("ignore", SyntaxWarning)
    count = int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    print(f"seed {seed}")
    maker, driver, bad, raised = Maker(seed), Driver(sys.argv[1]), 0, 0
    han = {"messages": to_han(VARIABLES["messages"]), "kwargs": to_han(VARIABLES["kwargs"])}
    for _ in range(count):
        request = {"template": maker.template(), **VARIABLES}
        want = reference(request)
        got = driver.render(request)
        if isinstance(want, Exception):
            raised += 1
            same = "text" not in got
        else:
            same = got.get("text") == want or incomparable(want) or "64 bits" in got.get("error", "")
        if not same:
            bad += 1
            print(f"{request['template']}\n    jinja2 {want!r}\n    we     "
                  f"{got.get('text', got.get('error'))!r}")
        got = driver.render({"template": to_hebrew(request["template"]), **han})
        problem = bad_mark(got) if "text" in got else None
        if problem:
            bad += 1
            print(f"{to_hebrew(request['template'])}\n    marks: {problem}")
    print(f"{count - bad} of {count} equal ({raised} raise)")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
