#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# Sessions, named prefixes, leases and ends over TCP, with a real engine on a tiny model:
# turns sent without waiting, hang-ups and drains in the middle, hostile names, apart by
# namespace, leases that end by themselves.
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, CTL, Server, finish, ok, same, scratch  # noqa: E402

tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
slow = os.path.join(tmp.name, "slow.gguf")
make = os.path.join(BUILD, "tests", "make_tiny_model")
subprocess.run([make, tiny], check=True)
subprocess.run([make, slow, "layers=24", "ctx=4096"], check=True)
net_harness.FAKE = os.path.join(BUILD, "prefixd")
seed = int(os.environ.get("PFX_SEED", int.from_bytes(os.urandom(4), "little")))
rnd = random.Random(seed)
print("# seed %d" % seed)


def user(text):
    return [{"role": "user", "content": text}]


def reply(r):
    return (r["event"], r.get("tokens"), r.get("digests"))


GEN = dict(op="generate", max_tokens=5, stream=False, digest=True)
server = Server("--model", tiny, "--device-memory", "4M")
c = server.connect()

# A conversation in a session is the same one sent whole each time (as text that is tokenised
# anew: only where that gives the reply's own ids, which these do not all).
c.ask(op="session.open", id=1, session="a", messages=[{"role": "system", "content": "S"}])
whole = [{"role": "system", "content": "S"}]
equal = 0
for turn in range(5):
    new = user("turn %d" % turn)
    whole += new
    got = c.ask(**GEN, id=1, session="a", messages=new)
    want = c.ask(**GEN, id=1, messages=whole, namespace="whole")
    equal += reply(got) == reply(want) or got["usage"]["prompt_tokens"] != \
        want["usage"]["prompt_tokens"]
    ok(turn == 0 or got["usage"]["cached_tokens"] >= before, "turn %d: all before it is cached" % turn, got)
    before = got["usage"]["prompt_tokens"] + 4
    whole.append({"role": "assistant", "content": got["text"]})
same(equal, 5, "a session's turns are those of the conversation sent whole")
# Sent without waiting, on one connection and on two.
other = server.connect()
c.send(op="session.open", id="o", session="b", messages=user("x"))
for i in range(5):
    c.send(**GEN, id=i, session="b", messages=user("n%d" % i))
c.send(op="session.append", id="ap", session="b", messages=user("end"))
c.send(op="session.close", id="cl", session="b")
c.send(**GEN, id="late", session="b")
got = [c.recv() for _ in range(9)]
same([r["id"] for r in got], ["o", 0, 1, 2, 3, 4, "ap", "cl", "late"], "turns go in the order sent")
same([r["event"] for r in got], ["session"] + ["done"] * 5 + ["session", "closed", "error"],
     "... with their answers")
same((got[6]["messages"], got[6]["turns"], got[8]["code"]), (12, 5, "not_found"), "... and all was said")

# Names.
for name in ("", "x" * 257, 5, None, ["a"], {}):
    same(c.ask(op="session.open", id=1, session=name)["code"], "bad_request", "session name %r" % (name,))
    same(c.ask(op="prefix.put", id=1, prefix=name, prompt="a")["code"], "bad_request", "prefix name %r" % (name,))
names = ["x" * 256, "\u0000", "a\u0000b", "../../etc/passwd", "\u00e9", "e\u0301", "\U0001f600" * 60, "%s%n",
         "\"", "\\", "\n", " ", "a", "A", "a ", "\ufeffa", "\u202e"]
for name in names:
    r = c.ask(op="prefix.put", id=1, prefix=name, prompt="text of " + name)
    same((r["event"], r.get("prefix")), ("prefix", name), "prefix name %a" % name[:20])
    same(c.ask(op="session.open", id=1, session="n" + name[:255])["event"], "session", "... and session name")
listed = c.ask(op="prefix.list", id=1)["prefixes"]
same(sorted(p["prefix"].encode() for p in listed), sorted(n.encode() for n in names), "all are listed")
same([p["prefix"].encode() for p in listed], sorted(n.encode() for n in names), "... in order")
for name in names:
    same(c.ask(op="prefix.delete", id=1, name=name)["event"], "deleted", "delete %a" % name[:20])
    same(c.ask(op="end", id=1, session="n" + name[:255])["event"], "ended", "end")
same(c.ask(op="prefix.list", id=1)["prefixes"], [], "none is left")

# Apart: the same names in other namespaces, and salts that look alike.
for ns in ("x", "xy", "y", ""):
    c.ask(op="prefix.put", id=1, prefix="p", prompt="of " + ns, namespace=ns)
    c.ask(op="session.open", id=1, session="s", messages=user(ns), namespace=ns)
for ns in ("x", "xy", "y", ""):
    r = c.ask(op="prefix.get", id=1, prefix="p", namespace=ns)
    same(r["bytes"], 3 + len(ns), "the prefix of namespace %r" % ns)
    same([p["salt"] for p in c.ask(op="prefix.list", id=1, namespace=ns)["prefixes"]], [ns], "... alone")
for ns, code in (("z", "not_found"), ("xyz", "not_found")):
    for op, key in (("prefix.get", "prefix"), ("prefix.delete", "prefix"), ("session.close", "session"),
                    ("end", "session"), ("generate", "session"), ("warm", "prefix")):
        same(c.ask(op=op, id=1, namespace=ns, **{key: "p" if key == "prefix" else "s"}).get("code"), code,
             "%s from namespace %s" % (op, ns))
same(len(c.ask(op="prefix.list", id=1, all=True)["prefixes"]), 4, "all salts, for who runs the server")
same([(s["session"], s["salt"]) for s in c.ask(op="session.list", id=1, namespace="xy")["sessions"]],
     [("s", "xy")], "session.list of one salt")
same(sorted(s["salt"] for s in c.ask(op="session.list", id=1, all=True)["sessions"] if s["session"] == "s"),
     ["", "x", "xy", "y"], "... and of all")
for ns in ("x", "xy", "y", ""):
    same(c.ask(op="session.close", id=1, session="s", namespace=ns)["event"], "closed", "close in %r" % ns)

# What may not go together.
for what, fields, word in (
        ("session and prefix", dict(op="generate", session="a", prefix="p"), "session.open"),
        ("score in a session", dict(op="score", session="a", prompt="x"), "score takes no session"),
        ("end of two things", dict(op="end", session="a", prompt="x"), "not both"),
        ("end of nothing", dict(op="end"), "needs"),
        ("pin of nothing", dict(op="pin"), "needs"),
        ("put of nothing", dict(op="prefix.put", prefix="p"), "needs"),
        ("append of nothing", dict(op="session.append", session="a"), "needs"),
        ("append to nothing", dict(op="session.append", prompt="x"), "name of a session"),
        ("close of nothing", dict(op="session.close"), "name of a session"),
        ("get of nothing", dict(op="prefix.get"), "name of a prefix"),
        ("unpin of nothing", dict(op="unpin"), "lease"),
        ("unpin of all and one", dict(op="unpin", all=True, lease=1), "lease"),
        ("unpin of 0", dict(op="unpin", lease=0), "lease"),
        ("a ttl that is no number", dict(op="pin", prompt="x", ttl_ms="1"), "ttl_ms"),
        ("a lease for years", dict(op="pin", prompt="x", ttl_ms=10 ** 12), "at most"),
        ("an empty put", dict(op="prefix.put", prefix="p", prompt=""), "empty"),
        ("a put with a wrong token", dict(op="prefix.put", prefix="p", tokens=[10 ** 6]), "tokens"),
        ("pin that is no truth", dict(op="prefix.put", prefix="p", prompt="x", pin=1), "pin")):
    r = c.ask(id=1, **fields)
    ok(r.get("code") == "bad_request" and word in r["message"], what, r)
same(c.ask(op="prefix.get", id=1, prefix="p")["bytes"], 3, "nothing of it was kept")
c.ask(op="prefix.delete", id=1, prefix="p")

# last_turn, ttl_ms and end are taken everywhere.
r = c.ask(op="warm", id=1, prompt="to be over", last_turn=True, ttl_ms=1000)
same(r["event"], "done", "last_turn and ttl_ms on warm")
r = c.ask(op="score", id=1, prompt="to be over", last_turn=True, ttl_ms=2 ** 62)
same(r["event"], "done", "... and on score")
same(c.ask(op="end", id=1, prompt="to be over")["cached_tokens"] > 0, True, "end by prompt")
r = c.ask(op="prefix.put", id=1, prefix="k", tokens=list(range(3, 70)), ttl_ms=500)
same((r["tokens"], r["usage"]["computed_tokens"]), (67, 67), "a put that is computed and kept")
raw = b"a long prompt\nwith lines"
c.raw(b'{"op":"prefix.put","id":1,"prefix":"raw","prompt_bytes":%d}\n' % len(raw) + raw)
same(c.recv()["bytes"], len(raw), "a put of raw bytes")
rc = subprocess.run([CTL, "-s", server.address, "gen", "--prefix", "raw", " and more", "-n", "1"],
                    capture_output=True, timeout=20)
same(rc.returncode, 0, "prefixctl gen --prefix")

# Hang-ups in the middle of turns: the session is as it was, and nobody waits for ever.
c.ask(op="session.open", id=1, session="h", messages=user("hello"))
for i in range(30):
    d = server.connect()
    for k in range(rnd.randrange(1, 5)):
        d.send(op="generate", id=k, session="h", messages=user("lost"), max_tokens=800, ignore_eos=True)
    if rnd.random() < 0.5:
        d.recv()
    d.close()
got = c.ask(**GEN, id=1, session="h")
want = c.ask(**GEN, id=1, messages=user("hello"), namespace="whole")
if got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]:
    same(reply(got), reply(want), "turns of those who hung up leave nothing")
server.settle(lambda s: s["requests"]["running"] == 0 and s["requests"]["queued"] == 0, "nothing runs")
c.ask(op="flush", id=1)
same(c.ask(op="session.close", id=1, session="h")["event"], "closed", "a flush leaves sessions alone")
same(c.ask(op="check", id=1)["problems"], [], "check")
stats = c.ask(op="stats", id=1)
same((stats["sessions"]["open"], stats["prefixes"]["names"]), (1, 5), "what is still there is counted")
c.close()
other.close()
same(server.stop(), 0, "it ends well with things kept")

# A close and then a hang-up: closed it is. Also an open whose prompt is ids, without a name.
server = Server("--model", tiny, "--device-memory", "4M")
c = server.connect()
c.ask(op="session.open", id=1, session="gone", messages=user("x"))
d = server.connect()
d.send(op="generate", id=1, session="gone", max_tokens=300, ignore_eos=True)
d.send(op="session.close", id=2, session="gone")
d.recv()
d.close()
server.settle(lambda s: s["sessions"]["open"] == 0, "a close before a hang-up is done")
r = c.ask(op="session.open", id=1, tokens=list(range(3, 60)), warm=True)
same((r["kind"], r["tokens"], r["usage"]["computed_tokens"]), ("tokens", 57, 57), "an open with ids, computed")
r2 = c.ask(op="session.open", id=1, tokens=[5, 6])
ok(r2["session"] != r["session"] and len(r2["session"]) > 30, "names that the server makes", r2)
same(c.ask(**GEN, id=1, session=r["session"])["usage"]["cached_tokens"], 57, "... can be used")
same(server.stop(), 0, "it ends")

# With slower tiers behind: a lease brings back what had gone there.
server = Server("--model", tiny, "--device-memory", "1M", "--host-memory", "4M")
c = server.connect()
ids = list(range(3, 200))
c.ask(op="prefix.put", id=1, prefix="p", tokens=ids, warm=True)
c.ask(op="evict", id=1, tier="device")
same(c.ask(op="prefix.get", id=1, prefix="p")["cached"], {"device": 0, "host": 197, "disk": 0}, "it lies in host memory")
r = c.ask(op="pin", id=1, prefix="p", tokens=[4, 5, 6])
same((r["usage"]["cached"]["host"], r["usage"]["computed_tokens"], r["tokens"]), (197, 3, 200), "pinned from there")
c.ask(op="evict", id=1, tier="device")
same(c.ask(op="prefix.get", id=1, prefix="p")["cached"]["device"], 197, "... it stays on the device")
same(c.ask(op="flush", id=1, tier="host")["leases"], 0, "a flush of another tier ends no lease")
same(c.ask(op="flush", id=1, tier="device")["leases"], 1, "one of the device does")
same(c.ask(op="check", id=1)["problems"], [], "check")
same(server.stop(), 0, "it ends")

# A drain in the middle of a turn with others waiting behind it.
server = Server("--model", slow, "--device-memory", "64M")
c = server.connect()
d = server.connect()
c.ask(op="session.open", id=1, session="d", messages=user("hello"))
c.send(op="generate", id=1, session="d", messages=user("x"), max_tokens=300, ignore_eos=True, stream=False)
c.send(op="generate", id=2, session="d", messages=user("y"), max_tokens=5, stream=False)
server.settle(lambda s: s["requests"]["running"] + s["requests"]["queued"] == 2, "a turn runs, one waits")
d.ask(op="drain", id=1)
same(d.ask(op="session.append", id=2, session="d", messages=user("z"))["event"] in ("session", "error"), True,
     "an append while draining is answered")
got = sorted((r["id"], r["event"]) for r in (c.recv(), c.recv()))
same(got, [(1, "done"), (2, "done")], "turns that were there before the drain end well")
same(server.wait(), 0, "and so does the server")
finish()
