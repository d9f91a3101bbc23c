#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# The line protocol: framing, ids, every field's type, what each bad line is answered with.
import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
from net_harness import Server, finish, ok, same  # noqa: E402

server = Server()
c = server.connect()


def error_of(reply):
    return (reply.get("id"), reply.get("event"), reply.get("code"))


# ---- good requests and their fields ----

got = []
c.send(op="generate", id=1, prompt="h\u00e9y")
got = c.until_last()
same([g["text"] for g in got[:-1]], ["h", "", "\u00e9", "y", ""], "a token line for each token")
same([g["token"] for g in got[:-1]], [104, 195, 169, 121, 256], "with its id")
same([sorted(g) for g in got[:1]], [["event", "id", "text", "token"]], "and nothing unasked")
done = got[-1]
same(sorted(done), ["event", "finish", "id", "miss", "request", "seed", "timing", "usage"],
     "done has the promised fields")
same(done["usage"], {"prompt_tokens": 4, "cached_tokens": 0, "computed_tokens": 4,
                     "cached": {"device": 0, "host": 0, "disk": 0}, "completion_tokens": 5}, "usage")
same(sorted(done["timing"]), ["prefill_ms", "queue_ms", "total_ms", "ttft_ms"], "timing")
ok(0 < done["timing"]["ttft_ms"] <= done["timing"]["total_ms"], "ttft_ms within total_ms")
same(done["miss"], {"reason": "never_seen", "at_token": 0, "message": None, "byte": 0}, "miss")
again = c.ask(op="generate", id=1, prompt="h\u00e9y")
same((again["miss"], again["usage"]["cached_tokens"]), (None, 4), "nothing missed: null")
ok(again["request"] > done["request"], "request numbers go up")
same(c.ask(op="generate", id=1, prompt="a", seed=7)["seed"], 7, "a given seed comes back")
same(c.ask(op="generate", id=1, prompt="abc", max_tokens=2)["finish"], "length", "max_tokens")
zero = c.ask(op="generate", id=1, prompt="abc", max_tokens=0)
same((zero["finish"], zero["timing"]["ttft_ms"]), ("length", None), "no token: ttft_ms is null")

c.send(op="generate", id=2, prompt="ab", logprobs=2, digest=True)
got = c.until_last()
tok = got[0]
same(tok["top"], [[97, -0.25], [98, -0.5]], "top")
ok(abs(tok["logprob"] + 0.098) < 1e-6, "logprob", tok)
ok(len(tok["digest"]) == 16 and tok["digest"] == tok["digest"].lower(), "digest", tok)
flat = c.ask(op="generate", id=2, prompt="ab", logprobs=2, digest=True, stream=False)
same((flat["text"], flat["tokens"]), ("ab", [97, 98, 256]), "stream false: text and tokens")
same(flat["logprobs"], [g["logprob"] for g in got[:-1]], "... logprobs")
same(flat["top"], [g["top"] for g in got[:-1]], "... top")
same(flat["digests"], [g["digest"] for g in got[:-1]], "... digests")
ok(flat["timing"]["ttft_ms"] > 0, "... and a ttft_ms")
c.send(op="generate", id=2, prompt="a", logprobs=0)
same(c.until_last()[0]["top"], [], "logprobs 0: top is empty")
plain = c.ask(op="generate", id=2, prompt="a", stream=False)
ok("logprobs" not in plain and "digests" not in plain, "stream false: nothing unasked", plain)
none = c.ask(op="generate", id=2, prompt="a", max_tokens=0, logprobs=2, digest=True, stream=False)
same([none[k] for k in ("text", "tokens", "logprobs", "top", "digests")], ["", [], [], [], []],
     "... and what was asked is there without a token, too")

score = c.ask(op="score", id=3, tokens=[1, 2, 3, 4], logprobs=1)
same((score["finish"], len(score["logprobs"]), len(score["top"])), ("stop", 3, 3), "score")
score = c.ask(op="score", id=3, prompt="abcd", **{"from": 3})
same((len(score["logprobs"]), score["top"]), (1, [[]]), "score without logprobs, from 3")
same(c.ask(op="score", id=3, prompt="abcd", **{"from": 4})["logprobs"], [], "score from n")
same(error_of(c.ask(op="score", id=3, prompt="abcd", **{"from": 5})), (3, "error", "bad_request"),
     "score from behind the end")
warm = c.ask(op="warm", id=4, prompt="abcd")
same((warm["finish"], warm["usage"]["completion_tokens"]), ("length", 0), "warm")
c.send(op="warm", id=4, prompt="abcdef", progress=True)
same([(g["done"], g["total"]) for g in c.until_last()[:-1]], [(3, 6), (6, 6)], "prefill lines")
same(c.ask(op="tokenize", id=5, text="ab"),
     {"id": 5, "event": "tokens", "tokens": [97, 98], "count": 2}, "tokenize")
same(c.ask(op="tokenize", id=5, text="")["count"], 0, "tokenize nothing")
same(c.ask(op="detokenize", id=5, tokens=[97, 10]), {"id": 5, "event": "text", "text": "a\n"},
     "detokenize")
chat = [{"role": "user", "content": "hi"}]
same(c.ask(op="render", id=5, messages=chat)["text"], "<user>hi<assistant>", "render")
same(c.ask(op="render", id=5, messages=chat, add_generation_prompt=False)["text"], "<user>hi",
     "render without the generation prompt")
same(c.ask(op="tokenize", id=5, messages=chat)["count"], 19, "tokenize messages")
same(c.ask(op="check", id=6), {"id": 6, "event": "check", "ok": True, "problems": []}, "check")
same(sorted(c.ask(op="flush", id=6)), ["blocks", "durable", "event", "id", "in_use", "leases",
                                           "moving"], "flush")
same(c.ask(op="ping", id=6), {"id": 6, "event": "pong"}, "ping")
hello = c.ask(op="hello", id=6)
for key in ("version", "model", "backend", "kernels", "kv", "activations", "block_tokens", "context",
            "limits"):
    ok(key in hello, "hello names " + key)
same(c.ask(op="auth", key="whatever")["ok"], True, "auth: any credential is taken without keys")
same(c.ask(op="auth", id=6, key=[1])["ok"], True, "... of any type")
stats = c.ask(op="stats", id=6)
ok("requests" in stats and stats["connections"]["open"] >= 1, "stats", stats)

# ---- ids ----

big = 2 ** 63 - 1
for i in (0, -5, big, -big - 1, "", "x", "1", "\u00fc\n\"\\\u0000", "y" * 1024):
    same(c.ask(op="ping", id=i)["id"], i, "id %s comes back" % json.dumps(i)[:20])
same(c.ask(op="ping")["id"], None, "no id: null")
same(c.ask(op="ping", id=None)["id"], None, "null is no id")
for i in (1.5, True, [1], {"a": 1}, "y" * 1025):
    r = c.ask(op="ping", id=i)
    same(error_of(r), (None, "error", "bad_request"), "id %s is refused" % json.dumps(i)[:20])
    ok(r["message"].startswith("id "), "... and named", r)
c.send(op="generate", id="busy", prompt="@hang")
r = c.ask(op="ping", id="busy")
same(error_of(r), (None, "error", "bad_request"), "an id in flight is refused, not under that id")
ok("busy" in r["message"], "... and named", r)
other = server.connect()
same(other.ask(op="ping", id="busy")["event"], "pong", "other connections have their own ids")
same(error_of(other.ask(op="cancel", id=1, target="busy")), (1, "error", "not_found"),
     "... and cannot cancel by them")
other.close()
same(c.ask(op="cancel", id=9, target="busy"), {"id": 9, "event": "cancelled", "target": "busy"},
     "cancel by id")
r = c.recv()
same((r["id"], r["event"], r["finish"]), ("busy", "done", "cancelled"), "the target ends")
same(c.ask(op="ping", id="busy")["event"], "pong", "its id is free again")
same(error_of(c.ask(op="cancel", id=9, target="busy")), (9, "error", "not_found"), "cancel twice")
same(error_of(c.ask(op="cancel", id=9, target=1)), (9, "error", "not_found"), "1 is not \"1\"")
c.send(op="generate", id=1, prompt="@hang")
c.send(op="generate", id="1", prompt="abc")
ok(all(g["id"] == "1" for g in c.until_last()), "1 and \"1\" are two ids")
number = c.ask(op="generate", id=2, prompt="a")["request"] - 2
same(c.ask(op="cancel", id=3, request=number), {"id": 3, "event": "cancelled", "request": number},
     "cancel by number")
same(c.recv()["finish"], "cancelled", "... ends it")
same(error_of(c.ask(op="cancel", id=3, request=number)), (3, "error", "not_found"), "... once")

# ---- framing ----

c.raw(b'{"op":"ping","id":1}\r\n{"op":"ping","id":2}\n{"op":"ping","id":3}\n')
same([c.recv()["id"] for _ in range(3)], [1, 2, 3], "\\r\\n and several lines in one write")
for b in b'{"op":"ping","id":4}\n':
    c.raw(bytes([b]))
same(c.recv()["id"], 4, "a byte at a time")
c.raw(b' \t{"op" : "ping" , "id":5 }  \n')
same(c.recv()["id"], 5, "white space")
c.raw(b"".join(b'{"op":"tokenize","id":%d,"text":"a"}\n' % i for i in range(500)))
same(sorted(c.recv()["id"] for _ in range(500)), list(range(500)), "500 in one write")
c.raw(b"".join(b'{"op":"generate","id":%d,"prompt":"abc %d"}\n' % (i, i) for i in range(100)))
texts, ends = {}, 0
while ends < 100:
    r = c.recv()
    texts[r["id"]] = texts.get(r["id"], "") + r.get("text", "")
    ends += r["event"] == "done"
same(texts, {i: "abc %d" % i for i in range(100)}, "100 generations interleave")

for size in (200, 70000, 300000, 1100000):
    text = ("caf\u00e9 \\ \" \n " * size)[:size]
    r = c.ask(op="tokenize", id=size, text=text)
    same(r["count"], len(text.encode()), "text of %d characters" % size)
    same(bytes(r["tokens"]).decode(), text, "... as it was")
    c.raw(json.dumps({"op": "tokenize", "id": size, "text": text}, ensure_ascii=False).encode() + b"\n")
    same(bytes(c.recv()["tokens"]).decode(), text, "... also without escapes")
    ids = [i % 256 for i in range(size)]
    r = c.ask(op="warm", id=size, tokens=ids)
    if size < 1 << 20:
        same(r["usage"]["prompt_tokens"], size, "%d token ids" % size)
    else:
        same(error_of(r), (size, "error", "too_long"), "%d token ids are too long" % size)
r = c.ask(op="tokenize", id=1, messages=[{"role": "user", "content": "x" * 500000}])
same(r["count"], 500000 + len("<user><assistant>"), "a long message")
same(c.ask(op="tokenize", id=1, text="a\u0000b" * 30)["tokens"], [97, 0, 98] * 30, "NUL is data")
same(c.ask(op="tokenize", id=1, text="a\u0000b")["tokens"], [97, 0, 98], "... in a short text too")
same(c.ask(op="tokenize", id=1, text="\U0001f600")["count"], 4, "surrogate pairs are one character")

# ---- prompt_bytes ----

raw = "one\ntwo \"three\" {\"op\":\"drain\"}\n\u00e9".encode()
for n in (1, 60000):
    data = raw * n
    c.raw(b'{"op":"tokenize","id":1,"prompt_bytes":%d}\n' % len(data) + data
          + b'{"op":"ping","id":2}\n')
    both = {r["id"]: r for r in (c.recv(), c.recv())}
    same(bytes(both[1]["tokens"]), data, "raw bytes of a prompt (%d)" % len(data))
    same(both[2]["event"], "pong", "... and the line behind it")
c.raw(b'{"op":"generate","id":1,"prompt_bytes":3,"stream":false}\n')
ok(c.quiet(0.05), "nothing before the bytes are there")
c.raw(b"abc")
same(c.recv()["text"], "abc", "they may come later")
c.raw(b'{"op":"generate","id":1,"prompt_bytes":6,"temperature":"x"}\n{"op":{"op":"ping","id":2}\n')
same(error_of(c.recv()), (1, "error", "bad_request"), "raw bytes of a bad request")
same(c.recv()["event"], "pong", "... are skipped")
c.raw(b'{"op":"ping","id":1,"prompt_bytes":6}\nping!\n')
same(c.recv()["event"], "pong", "raw bytes belong to any op")
c.raw(b'{"op":"warm","id":1,"prompt_bytes":0}\n')
r = c.recv()
same(error_of(r), (1, "error", "bad_request"), "no bytes are an empty prompt")
ok(r["message"].startswith("prompt_bytes"), "... and the field is named", r)
c.raw(b'{"op":"warm","id":1,"prompt_bytes":4}\na\xff\xfeb')
r = c.recv()
same(error_of(r), (1, "error", "bad_request"), "raw bytes that are not UTF-8")
ok("byte 1" in r["message"], "... and where", r)
c.raw(b'{"op":"warm","id":1,"prompt_bytes":4,"prompt":"a"}\nabcd')
same(error_of(c.recv()), (1, "error", "bad_request"), "prompt and prompt_bytes")
c.raw(b'{"op":"warm","id":1,"prompt_bytes":-1}\n')
same(error_of(c.recv()), (1, "error", "bad_request"), "a negative number of bytes")
same(c.ask(op="ping", id=1)["event"], "pong", "... and the connection stays")
for text in (b'{"op":"warm","id":1,"prompt_bytes":16777217}\n', b'{"op":"warm","prompt_bytes":3,}\nabc'):
    d = server.connect()
    d.raw(text + b'{"op":"drain"}\n')
    same(d.recv()["code"], "bad_request", "unknown where the next line begins")
    same(d.recv(), None, "... ends the connection")
    d.close()
d = server.connect()
d.raw(b'{"op":"warm","id":1,"prompt_bytes":10}\nabc')
d.half_close()
same(d.recv()["code"], "bad_request", "an end before the last of the bytes")
same(d.recv(), None, "... and no more")

# ---- lines that are too long ----

limit = 16 << 20
d = server.connect()
d.raw(b'{"op":"ping","id":1,"x":"' + b"x" * (limit - 27) + b'"}\n')
same(d.recv()["event"], "pong", "a line as long as it may be")
d.raw(b'{"op":"ping","id":1,"x":"' + b"x" * (limit - 26) + b'"}\n{"op":"ping","id":2}\n')
r = d.recv()
same(error_of(r), (None, "error", "bad_request"), "a line one byte longer")
ok(str(limit) in r["message"], "... says how long it may be", r)
same(d.recv(), {"id": 2, "event": "pong"}, "... and the next line is read")
d.raw(b"y" * (limit + 70000))
same(error_of(d.recv()), (None, "error", "bad_request"), "answered before the line ends")
d.raw(b"y" * 100000 + b'\n{"op":"ping","id":3}\n')
same(d.recv(), {"id": 3, "event": "pong"}, "... once, and then on")
d.close()

# ---- lines that are no requests: the answer's id and a word of its message ----

deep = b"[" * 127 + b"]" * 127
too_deep = b"[" * 128 + b"]" * 128
hostile = [
    (b"", None, "JSON"),
    (b"\r", None, "JSON"),
    (b" ", None, "JSON"),
    (b"hello", None, "JSON"),
    (b"GET / HTTP/1.1", None, "JSON"),
    (b"null", None, "JSON"),
    (b"true", None, "JSON"),
    (b"1", None, "JSON"),
    (b'"op"', None, "JSON"),
    (b"[]", None, "JSON object"),
    (b'[{"op":"ping"}]', None, "JSON object"),
    (b"{", None, "JSON"),
    (b"}", None, "JSON"),
    (b'{"op":"ping"', None, "JSON"),
    (b'{"op":"ping"}}', None, "JSON"),
    (b'{"op":"ping"}{"op":"ping"}', None, "JSON"),
    (b'{"op":"ping"} x', None, "JSON"),
    (b'{"op":"ping",}', None, "JSON"),
    (b'{op:"ping"}', None, "JSON"),
    (b"{'op':'ping'}", None, "JSON"),
    (b'{"op":"ping","id":01}', None, "JSON"),
    (b'{"op":"ping","id":1e999}', None, "JSON"),
    (b'{"op":"ping","id":9223372036854775808}', None, "JSON"),
    (b'{"op":"ping","id":NaN}', None, "JSON"),
    (b'{"op":"ping","id":1,"id":2}', None, "JSON"),
    (b'{"op":"ping","id":1,"op":"drain"}', None, "JSON"),
    (b'{"op":"ping","i\\u0064":1,"id":2}', None, "JSON"),
    (b'{"op":"render","id":1,"messages":[{"a":1,"a":2}]}', None, "JSON"),
    (b'{"op":"ping","x":"\\ud800"}', None, "JSON"),
    (b'{"op":"ping","x":"\\udc00\\ud800"}', None, "JSON"),
    (b'{"op":"ping","x":"\\x41"}', None, "JSON"),
    (b'{"op":"ping","x":"a\tb"}', None, "JSON"),
    (b'{"op":"ping","x":"a\x00b"}', None, "JSON"),
    (b'{"op":"ping"\x00}', None, "JSON"),
    (b'\xef\xbb\xbf{"op":"ping"}', None, "JSON"),
    (b'{"op":"ping","x":"\xff"}', None, "JSON"),
    (b'{"op":"ping","x":"\xc0\x80"}', None, "JSON"),
    (b'{"op":"ping","x":"\xed\xa0\x80"}', None, "JSON"),
    (b'{"op":"ping","x":"\xf4\x90\x80\x80"}', None, "JSON"),
    (b'{"op":"ping","x":"\xe2\x82"}', None, "JSON"),
    (b'{"op":"tokenize","text":"' + b"x" * 80 + b'\xff"}', None, "JSON"),
    (b'{"op":"tokenize","text":"' + b"x" * 80 + b'\x01"}', None, "JSON"),
    (b'{"op":"tokenize","text":"' + b"x" * 80 + b'\\ud83d"}', None, "JSON"),
    (b'{"op":"ping","id":1,"x":' + too_deep + b"}", None, "deeper"),
    (b'{"op":"ping","id":1,"x":' + b'{"a":' * 200000 + b"1" + b"}" * 200000 + b"}", None, "deeper"),
    (b'{"id":1}', 1, "op"),
    (b'{"id":1,"op":null}', 1, "op"),
    (b'{"id":1,"op":1}', 1, "op"),
    (b'{"id":1,"op":["ping"]}', 1, "op"),
    (b'{"id":1,"op":""}', 1, "unknown op"),
    (b'{"id":1,"op":"PING"}', 1, "unknown op PING"),
    (b'{"id":1,"op":"ping\\u0000"}', 1, "unknown op"),
    (b'{"id":1,"op":"explode"}', 1, "unknown op explode"),
    (b'{"id":1,"op":"generate"}', 1, "prompt"),
    (b'{"id":1,"op":"warm"}', 1, "prompt"),
    (b'{"id":1,"op":"score","messages":[]}', 1, "prompt"),
    (b'{"id":1,"op":"render"}', 1, "messages"),
    (b'{"id":1,"op":"tokenize","prompt":"a"}', 1, "text"),
    (b'{"id":1,"op":"tokenize","text":1}', 1, "text"),
    (b'{"id":1,"op":"detokenize"}', 1, "tokens"),
    (b'{"id":1,"op":"detokenize","tokens":"a"}', 1, "tokens"),
    (b'{"id":1,"op":"detokenize","tokens":[1,-1]}', 1, "tokens[1]"),
    (b'{"id":1,"op":"detokenize","tokens":[1,2,257]}', 1, "tokens[2]"),
    (b'{"id":1,"op":"generate","prompt":"a","tokens":[1]}', 1, "only one"),
    (b'{"id":1,"op":"generate","prompt":"a","messages":[]}', 1, "only one"),
    (b'{"id":1,"op":"generate","prompt":""}', 1, "prompt is empty"),
    (b'{"id":1,"op":"generate","prompt":null}', 1, "prompt"),
    (b'{"id":1,"op":"generate","prompt":["a"]}', 1, "prompt"),
    (b'{"id":1,"op":"generate","tokens":[]}', 1, "tokens is empty"),
    (b'{"id":1,"op":"generate","tokens":[1.0]}', 1, "tokens[0]"),
    (b'{"id":1,"op":"generate","tokens":[1,"2"]}', 1, "tokens[1]"),
    (b'{"id":1,"op":"generate","tokens":[4294967296]}', 1, "tokens[0]"),
    (b'{"id":1,"op":"generate","tokens":{"a":1}}', 1, "tokens"),
    (b'{"id":1,"op":"generate","tokens":[' + b"1," * 40 + b"-1]}", 1, "tokens[40]"),
    (b'{"id":1,"op":"generate","tokens":[' + b"1," * 40 + b"99999999999]}", 1, "tokens[40]"),
    (b'{"id":1,"op":"generate","messages":{}}', 1, "messages"),
    (b'{"id":1,"op":"generate","messages":"hi"}', 1, "messages"),
    (b'{"id":1,"op":"generate","messages":[],"tools":{}}', 1, "tools"),
    (b'{"id":1,"op":"generate","messages":[],"documents":"x"}', 1, "documents"),
    (b'{"id":1,"op":"generate","messages":[],"chat_template_kwargs":[]}', 1, "chat_template_kwargs"),
    (b'{"id":1,"op":"generate","messages":[],"add_generation_prompt":1}', 1, "add_generation_prompt"),
    (b'{"id":1,"op":"generate","prompt":"a","prefix":"p"}', 1, "prefix"),
    (b'{"id":1,"op":"generate","prompt":"a","session":"s"}', 1, "session"),
    (b'{"id":1,"op":"generate","prompt":"a","prefix":1}', 1, "prefix"),
    (b'{"id":1,"op":"cancel"}', 1, "target"),
    (b'{"id":1,"op":"cancel","target":null}', 1, "target"),
    (b'{"id":1,"op":"cancel","target":1.5}', 1, "target"),
    (b'{"id":1,"op":"cancel","target":[1]}', 1, "target"),
    (b'{"id":1,"op":"cancel","target":1,"request":1}', 1, "target"),
    (b'{"id":1,"op":"cancel","request":"1"}', 1, "request"),
    (b'{"id":1,"op":"cancel","request":0}', 1, "request"),
]
fields = {
    "stream": ["no", 1, None, "true"],
    "max_tokens": [-1, 1.5, "5", True, None],
    "temperature": [-0.1, "1", True, None, 1e9],
    "top_k": [-1, 2.0, "3"],
    "top_p": [-0.1, 1.1, "1", False],
    "min_p": [-0.1, 1.1, []],
    "repeat_penalty": [0, -1, "1", 1e9],
    "seed": [-1, 1.0, "x"],
    "ignore_eos": [0, "false", None],
    "logprobs": [-1, 21, 1.0, True, None],
    "digest": [1, "yes"],
    "stop": ["", [""], [1], 5, None, ["a", None], ["x"] * 65, "y" * 5000],
    "namespace": [1, None],
    "last_turn": [1],
    "ttl_ms": [-1, "1", 1.5],
    "priority": ["high", 1.5],
    "store": [0, None],
    "progress": [1],
    "deadline_ms": [0, -1, "1"],
    "tools": [{}, "x", 1],
    "documents": [{}, "x"],
    "chat_template_kwargs": [[], "x", None],
}
for name, values in fields.items():
    for v in values:
        hostile.append((json.dumps({"id": 1, "op": "generate", "prompt": "a", name: v}).encode(), 1,
                        name))
hostile.append((b'{"id":1,"op":"tokenize","text":"a","special":1}', 1, "special"))
hostile.append((b'{"id":1,"op":"score","prompt":"a","from":0}', 1, "from"))
hostile.append((b'{"id":1,"op":"score","prompt":"a","from":"1"}', 1, "from"))
for line, want_id, word in hostile:
    c.raw(line + b"\n")
    r = c.recv()
    want_code = "not_found" if b'"prefix":"' in line or b'"session":"' in line else "bad_request"
    ok(error_of(r) == (want_id, "error", want_code) and word in r["message"],
       "bad line %s" % line[:60].decode("latin-1").encode("unicode_escape").decode(), r)
same(c.ask(op="ping", id="end")["event"], "pong",
     "the connection stays after %d bad lines" % len(hostile))
c.raw(b'{"op":"ping","id":1,"x":' + deep + b"}\n")
same(c.recv()["event"], "pong", "nesting as deep as it may be")
same(c.ask(op="ping", id=1, nobody={"knows": ["this"]}, temperature="x")["event"], "pong",
     "unknown fields, and those of other ops, are ignored")
same(c.ask(op="generate", id=1, prompt="a", stop=[], namespace="n", last_turn=True, ttl_ms=5,
           priority=-2, store=False, top_p=0, top_k=0, min_p=1, repeat_penalty=1.1, temperature=1,
           ignore_eos=True, deadline_ms=10000)["event"], "done", "every field at once")
for top in (2 ** 32 - 1, 2 ** 32, 2 ** 63 - 1):
    big = c.ask(op="generate", id=1, prompt="abc", stream=False, max_tokens=top, top_k=top, deadline_ms=top)
    same((big["event"], big.get("tokens")), ("done", [97, 98, 99, 256]), "bounds of %d are no bounds" % top)
same(c.ask(op="generate", id=1, messages=[], tools=None, documents=[], prompt_bytes_=1,
           chat_template_kwargs={"a": 1})["event"], "done", "messages with companions")

most = 524288
for line, fine in ((b'{"id":1,"op":"ping","x":[' + b"1," * (most - 5) + b"1]}", True),
                   (b'{"id":1,"op":"ping","x":[' + b"1," * most + b"1]}", False),
                   (b'{"id":1,"op":"render","messages":[' + b"{}," * most + b"{}]}", False),
                   (b'{"id":1,"op":"ping",' + b'"x":1,' * most + b'"y":1}', False),
                   (b"[" + b"{}," * most + b"{}]", False),
                   (b'{"id":1,"op":"tokenize","text":"%s"}' % (b"," * most), True)):
    c.raw(line + b"\n")
    r = c.recv()
    same((r["id"], r.get("code")), (1, None) if fine else (None, "bad_request"),
         "values in a line of %d bytes" % len(line))

before = c.ask(op="stats", id=1)["requests"]["failed"]
c.ask(op="generate", id=1, prompt="")
c.ask(op="warm", id=1, prompt="a", deadline_ms=-1)
c.ask(op="score", id=1, prompt="a", session="s")
c.ask(op="tokenize", id=1, text=1)
c.raw(b"{]\n")
c.recv()
same(c.ask(op="stats", id=1)["requests"]["failed"] - before, 3, "failed counts refused requests")

# ---- the engine's errors ----

for code in ("bad_request", "too_long", "overloaded", "deadline", "internal", "not_found"):
    r = c.ask(op="generate", id=1, prompt="@error=" + code)
    same(error_of(r), (1, "error", code), "error " + code)
    same("retry_after_ms" in r, code == "overloaded", "... with the right fields")
same(error_of(c.ask(op="generate", id=1, prompt="@hang", deadline_ms=20)), (1, "error", "deadline"),
     "a deadline")
same(server.stop(), 0, "ends well")
finish()
