#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# The operator's view of a real engine on a tiny model: hits against the client's own sums, tree,
# top, explain and misses; a trace that is recorded and replayed by prefix-sim. The reports have
# the fields that doc/protocol.md shows.
import json
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, CTL, SRC, WAIT, Server, finish, ok, same, scratch  # noqa: E402

tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), tiny], check=True)
net_harness.FAKE = os.path.join(BUILD, "prefixd")
seed = int(os.environ.get("PFX_SEED", int.from_bytes(os.urandom(4), "little")))
print("# seed %d" % seed)
rnd = random.Random(seed)
B = 32


def shown():
    """The examples of the view's ops in doc/protocol.md, by event."""
    got = {}
    for line in open(os.path.join(SRC, "doc", "protocol.md")):
        if line.startswith("<- {"):
            r = json.loads(line[3:])
            name = r["event"] + ("_prompt" if r["event"] == "explain" and "request" not in r else "")
            got[name] = r
    return got


DOC = shown()


def fields(v, depth=0):
    """Names alone, to the first element of each list."""
    if isinstance(v, dict):
        return {k: fields(x) for k, x in v.items()}
    return [fields(v[0])] if isinstance(v, list) and v else None


def missing(want, got, at=""):
    """Fields of the example that the report lacks."""
    if isinstance(want, dict) and isinstance(got, dict):
        return [at + "." + k for k in want if k not in got] + [
            m for k in want if k in got for m in missing(want[k], got[k], at + "." + k)]
    if isinstance(want, list) and isinstance(got, list) and want and got:
        return missing(want[0], got[0], at + "[0]")
    return []


def as_shown(got, name):
    same(missing(fields(DOC[name]), fields(got), name), [], name + " has what the page shows")


def ids(n):
    return [rnd.randrange(20, 300) for _ in range(n)]


def start(*args):
    s = Server("--model", tiny, *args)
    return s, s.connect()


def total(c):
    return c.ask(op="hits", id=1)["total"]


# ---- hits ----
server, c = start()
block = c.ask(op="hello", id=1)["block_tokens"]
same(block, B, "blocks of 32")
base, sums = ids(70), {"prompt": 0, "cached": 0, "computed": 0, "n": 0}


def ask(c=c, **kw):
    r = c.ask(id=1, **kw)
    u = r["usage"]
    sums["n"] += 1
    sums["prompt"] += u["prompt_tokens"]
    sums["cached"] += u["cached_tokens"]
    sums["computed"] += u["computed_tokens"]
    return r


for i in range(12):
    ask(op="generate", tokens=base + [3 + i] + ids(9), max_tokens=3, ignore_eos=True, stream=False)
ask(op="warm", tokens=base, namespace="team\u001b[31m")
ask(op="warm", tokens=base, namespace="team\u001b[31m")
ask(op="score", tokens=base + [15] + ids(3), **{"from": 71})
h = c.ask(op="hits", id=1, text=True)
as_shown(h, "hits")
t = h["total"]
same((t["requests"], t["prompt_tokens"], t["cached_tokens"], t["computed_tokens"]),
     (sums["n"], sums["prompt"], sums["cached"], sums["computed"]), "the totals are the client's sums")
same(sum(t["cached"].values()), t["cached_tokens"], "... by tier")
for part in ("namespaces", "minutes"):
    same(sum(r["prompt_tokens"] for r in h[part]), t["prompt_tokens"], part + " add up")
    same(sum(r["blocks"]["hit"] for r in h[part]), t["blocks"]["hit"], "... their blocks, too")
same(sorted(r["salt"] for r in h["namespaces"]), ["", "team\u001b[31m"], "a row for each namespace")
st = c.ask(op="stats", id=1)
same((st["tokens"]["prompt"], st["tokens"]["computed"]), (t["prompt_tokens"], t["computed_tokens"]),
     "stats and hits say the same")
ok(abs(t["ceiling"] - t["hit_rate"]) < 1e-9 and h["ceiling"]["exact"],
   "with room for all, the cache reaches the ceiling", (t["ceiling"], t["hit_rate"]))
hot = h["prefixes"][0]
same((hot["tokens"], hot["requests"]), (70, 13), "the hottest prefix, to the token")
ok(len(hot["text"]) > 0, "... and its text")
same(c.ask(op="hits", id=1, prefixes=0)["prefixes"], [], "no prefixes when none are wanted")
ok("text" not in c.ask(op="hits", id=1)["prefixes"][0], "no text when none is asked for")
one = c.ask(op="hits", id=1, names=1)
same(([r["requests"] for r in one["namespaces"]], one["others"]["names"], one["others"]["requests"]),
     ([13], 1, 2), "few rows are the largest, the rest is counted together")
same(total(c), total(server.connect()), "two who read see the same")
before = total(c)
rate = c.ask(op="warm", id=1, tokens=base)["usage"]
after = total(c)
same(after["cached_tokens"] - before["cached_tokens"], rate["cached_tokens"],
     "a difference of two readings is what came between")
same(after["requests"] - before["requests"], 1, "... and reading counts nothing")
for bad in ({"minutes": -1}, {"minutes": "x"}, {"minutes": 1441}, {"prefixes": 101}, {"text": 1},
            {"names": 2000}):
    same(c.ask(op="hits", id=1, **bad)["code"], "bad_request", "hits with %r" % bad)
out = subprocess.run([CTL, "-s", server.address, "hits", "--text"], capture_output=True, text=True)
ok(out.returncode == 0 and "ceiling" in out.stdout, "prefixctl hits", out)
ok("\u001b" not in out.stdout and "team·[31m" in out.stdout, "... sends no terminal what strangers wrote")
same(json.loads(subprocess.run([CTL, "-s", server.address, "--json", "hits"],
                               capture_output=True).stdout)["total"], after, "... --json")

# ---- tree ----
tree = c.ask(op="tree", id=1, text=True)
as_shown(tree, "tree")
nodes = [n for s in tree["spaces"] for n in s["nodes"]]
same((len(nodes), tree["shown"], tree["cut"]), (tree["nodes"], tree["nodes"], False), "all nodes")
same(sum(n["tokens"] for n in nodes), tree["tokens"], "... and all their tokens")
same(sum(n["blocks"]["device"] for n in nodes), st["tiers"]["device"]["cached"],
     "... in the blocks that stats counts")
same(sorted(s["salt"] for s in tree["spaces"]), ["", "team\u001b[31m"], "a tree for each namespace")
few = c.ask(op="tree", id=1, nodes=3)
same((few["shown"], few["cut"], len([n for s in few["spaces"] for n in s["nodes"]])), (3, True, 3),
     "cut by number")
same({n["depth"] for s in c.ask(op="tree", id=1, depth=1)["spaces"] for n in s["nodes"]}, {0},
     "cut by depth")
long = c.ask(op="tree", id=1, min_tokens=50)
ok(long["cut"] and all(n["tokens"] >= 50 or n["kids"] for s in long["spaces"] for n in s["nodes"]),
   "cut by size", long)
same([s["salt"] for s in c.ask(op="tree", id=1, one_namespace=True)["spaces"]], [""],
     "the default namespace alone")
one = c.ask(op="tree", id=1, namespace="team\u001b[31m")["spaces"]
same(([s["salt"] for s in one], sum(n["tokens"] for n in one[0]["nodes"])), (["team\u001b[31m"], 70),
     "one namespace")
below = c.ask(op="tree", id=1, tokens=base + [1])
ok(all(n["start"] + n["tokens"] <= 70 or n["start"] >= 64 for n in below["spaces"][0]["nodes"])
   if below["spaces"] else True, "below a prompt", below)
same(c.ask(op="tree", id=1, tokens=[1, 1, 1])["spaces"], [], "below a prompt that nobody had: nothing")
for bad in ({"depth": 0}, {"nodes": 10001}, {"text": "x"}, {"tokens": "x"}, {"prompt": ""}):
    same(c.ask(op="tree", id=1, **bad)["code"], "bad_request", "tree with %r" % bad)
out = subprocess.run([CTL, "-s", server.address, "tree", "--text"], capture_output=True, text=True)
ok(out.returncode == 0 and "└─ " in out.stdout and "\u001b" not in out.stdout, "prefixctl tree", out)

# ---- explain ----
r = c.ask(op="generate", id=1, tokens=base + [16] * 40, max_tokens=3, ignore_eos=True, stream=False)
x = c.ask(op="explain", id=1, request=r["request"])
as_shown(x, "explain")
same((x["state"], x["finish"], x["prompt_tokens"], x["cached_tokens"], x["completion_tokens"]),
     ("done", "length", 110, 70, 3), "explain a request")
same([(s["tier"], s["from"], s["to"]) for s in x["spans"]], [("device", 0, 70), ("computed", 70, 110)],
     "... where its tokens lay")
same((x["miss"]["reason"], x["miss"]["at_token"], x["miss"]["token"]),
     (r["miss"]["reason"], 70, 16), "... and why the rest did not")
x = c.ask(op="explain", id=1, tokens=base + [16] * 40 + [17])
as_shown(x, "explain_prompt")
same((x["cached_tokens"], x["miss"]["at_token"]), (110, 110), "explain a prompt")
x = c.ask(op="explain", id=1, tokens=base + [16] * 39 + [17, 18])
same((x["miss"]["reason"], x["miss"]["token"], [o["token"] for o in x["miss"]["cached_instead"]]),
     ("diverged", 17, [16]), "... and the token that differs, on both sides")
same(sum(n["matched"] for n in x["nodes"]), 109, "... with the nodes on its way", )
x = c.ask(op="explain", id=1, tokens=base)
same((x["miss"], x["cached_tokens"], x["logits_kept"]), (None, 70, True), "a whole hit misses nothing")
c.ask(op="warm", id=1, tokens=[9] * 50, namespace="other")
x = c.ask(op="explain", id=1, tokens=[9] * 50)
same((x["cached_tokens"], [(o["salt"], o["tokens"]) for o in x["elsewhere"]]), (0, [("other", 50)]),
     "another namespace has it, which admins learn")
x = c.ask(op="explain", id=1, messages=[{"role": "user", "content": "Where is Bob?"}])
ok(x["event"] == "explain" and x["prompt_tokens"] > 5, "messages", x)
c.send(op="generate", id=7, tokens=base, max_tokens=1500, ignore_eos=True)
busy = c.recv()
other = server.connect()
top = other.ask(op="top", id=1)
as_shown(top, "top")
number = top["list"][0]["request"]
same((len(top["list"]), top["list"][0]["state"], top["list"][0]["prompt_tokens"]), (1, "decode", 70),
     "top shows what runs")
x = other.ask(op="explain", id=1, request=number)
same((x["state"], x["finish"]), ("decode", None), "explain what runs")
same(c.until_last()[-1]["request"], number, "... which then ends")
for bad, code in (({}, "bad_request"), ({"request": 0}, "bad_request"),
                  ({"request": 999999}, "not_found"), ({"request": 1, "tokens": [5]}, "bad_request"),
                  ({"tokens": [5], "prompt": "a"}, "bad_request"), ({"tokens": [99999]}, "bad_request"),
                  ({"prompt": ""}, "bad_request")):
    same(c.ask(op="explain", id=1, **bad)["code"], code, "explain with %r" % bad)
out = subprocess.run([CTL, "-s", server.address, "explain", str(number)], capture_output=True, text=True)
ok(out.returncode == 0 and "request %d" % number in out.stdout, "prefixctl explain", out)
same((c.ask(op="check", id=1)["ok"], server.stop()), (True, 0), "all is well")

# ---- a small memory: what is evicted, and the ceiling above the cache ----
server, c = start("--device-memory", "600K")
mem = c.ask(op="hello", id=1)
print("# %d blocks" % mem["blocks"])
prompts = [[3 + i] + ids(8 * B - 1) for i in range(mem["blocks"] // 4)]
sums = {"prompt": 0, "cached": 0, "computed": 0, "n": 0}
evicted = []
for i in range(4 * len(prompts)):
    r = ask(c, op="warm", tokens=prompts[i % len(prompts)])
    if r["miss"] and r["miss"]["reason"] == "evicted":
        evicted.append(r)
ok(len(evicted) > 0, "prompts are evicted")
ok(all(0 <= r["miss"]["evicted_ms_ago"] < 1000 * WAIT for r in evicted), "... and when is told",
   [r["miss"] for r in evicted])
t = total(c)
same((t["cached_tokens"], t["prompt_tokens"]), (sums["cached"], sums["prompt"]), "hits still add up")
same(t["ceiling_tokens"]["hit"], sums["prompt"] - len(prompts) * 8 * B,
     "an unlimited cache had missed each once")
ok(t["hit_rate"] < t["ceiling"], "... and this one missed more")
c.ask(op="flush", id=1)
ask(c, op="warm", tokens=prompts[0])
same(total(c)["ceiling_tokens"]["hit"], t["ceiling_tokens"]["hit"], "flush empties the unlimited one, too")
x = c.ask(op="explain", id=1, request=evicted[-1]["request"])
same((x["miss"]["reason"], x["miss"]["evicted_ms_ago"] is None),
     ("evicted", evicted[-1]["miss"]["evicted_ms_ago"] is None), "explain says when it was evicted")
server.stop()

# ---- the same prompt at once: who follows had it, in an unlimited cache as well ----
server, c = start()
many = ids(20 * B)
conns = [server.connect() for _ in range(6)]
for k in conns:
    k.send(op="generate", id=1, tokens=many + [rnd.randrange(3, 300)], max_tokens=2, ignore_eos=True)
done = [k.until_last()[-1] for k in conns]
t = total(c)
same(t["cached_tokens"], sum(d["usage"]["cached_tokens"] for d in done), "what was attached is cached")
ok(t["cached_tokens"] <= t["ceiling_tokens"]["hit"] <= t["ceiling_tokens"]["of"] - len(many),
   "the first of them misses in an unlimited cache, too", t)
server.stop()

# ---- names ----
server, c = start()
path = os.path.join(tmp.name, "named.jsonl")
c.ask(op="trace", id=1, action="start", path=path)
same(c.ask(op="prefix.put", id=1, prefix="manual", tokens=ids(60))["event"], "prefix", "a named prefix")
for i in range(3):
    c.ask(op="warm", id=1, prefix="manual", tokens=[10 + i] + ids(9))  # no two go on alike
h = c.ask(op="hits", id=1)
same([(r["name"], r["requests"], r["prompt_tokens"], r["cached_tokens"]) for r in h["named"]],
     [("manual", 3, 210, 120)], "hits by named prefix")
x = c.ask(op="explain", id=1, prefix="manual", tokens=[5, 6, 7])
same((x["prompt_tokens"], x["cached_tokens"]), (63, 60), "explain with a named prefix")
ok("manual in (default)" in subprocess.run([CTL, "-s", server.address, "hits"], capture_output=True,
                                           text=True).stdout, "prefixctl hits names it")
c.ask(op="session.open", id=1, session="bob")
for turn in range(3):
    r = c.ask(op="generate", id=1, session="bob", prompt="Hello again", max_tokens=4, stream=False,
              ignore_eos=True, last_turn=turn == 2)
    same(r["event"], "done", "turn %d" % turn)
c.ask(op="trace", id=1, action="stop")
lines = [json.loads(x) for x in open(path)]
same(["session" in x for x in lines], [False] * 3 + [True] * 3, "sessions stand in a trace")
same([len({x["session"] for x in lines[3:]}), [x.get("last_turn", False) for x in lines]],
     [1, [False] * 5 + [True]], "... one name for each, and its last turn")
ok("bob" not in open(path).read(), "... not by their names")
server.stop()

# ---- a host tier ----
server, c = start("--device-memory", "600K", "--host-memory", "4M")
prompts = [[3 + i] + ids(8 * B - 1) for i in range(10)]
for i in range(30):
    c.ask(op="warm", id=1, tokens=prompts[i % 10])
h = c.ask(op="hits", id=1)["total"]
st = c.ask(op="stats", id=1)["tokens"]
same(h["cached"], st["cached"], "hits by tier are those of stats")
tree = c.ask(op="tree", id=1, nodes=10000, depth=100)
nodes = [n["blocks"] for s in tree["spaces"] for n in s["nodes"]]
st = c.ask(op="stats", id=1)["tiers"]
same([sum(n[t] for n in nodes) for t in ("device", "host")],
     [st[t]["cached"] for t in ("device", "host")], "the tree's tiers are those of stats")
spans = {}
for p in prompts:
    x = c.ask(op="explain", id=1, tokens=p + [3])
    ok(all(n["all"] >= n["device"] for n in [k["blocks"] for k in x["nodes"]]), "its nodes")
    for s in x["spans"]:
        spans[s["tier"]] = spans.get(s["tier"], 0) + s["to"] - s["from"]
    same([s["tier"] for s in x["estimate"]["slower_tiers"]],
         [s["tier"] for s in x["spans"] if s["tier"] in ("host", "disk")], "... what copying costs")
ok(sum(spans.get(t, 0) for t in ("device", "host")) > 0, "explain tells tiers", spans)
print("# %s %s" % (spans, h["cached"]))
server.stop()

# ---- a store, over a restart ----
store = os.path.join(tmp.name, "store")
server, c = start("--store", store, "--save", "all")
prompts = [[3 + i] + ids(4 * B - 1) for i in range(5)]
for tokens in prompts:
    c.ask(op="warm", id=1, tokens=tokens, namespace="kept")
c.ask(op="save", id=1)
server.stop()
server, c = start("--store", store, "--save", "all", "--load-wait", "20")
tree = c.ask(op="tree", id=1)
same([(s["namespace"], s["salt"], len(s["space"])) for s in tree["spaces"]], [(None, None, 32)],
     "what came from the store has no name yet")
ok(subprocess.run([CTL, "-s", server.address, "tree"], capture_output=True,
                  text=True).stdout.startswith("space "), "... and prefixctl tree says so")
same(sum(n["blocks"]["disk"] for n in tree["spaces"][0]["nodes"]), 20, "... and is on disk")
x = c.ask(op="explain", id=1, tokens=prompts[0] + [3], namespace="kept")
same([(s["tier"], s["to"] - s["from"]) for s in x["spans"]], [("disk", 4 * B), ("to compute", 1)],
     "explain finds it there")
same([(s["tier"], s["tokens"], s["better"]) for s in x["estimate"]["slower_tiers"]],
     [("disk", 4 * B, "copy")], "... and would load it")
for tokens in prompts:
    c.ask(op="warm", id=1, tokens=tokens, namespace="kept")
h = c.ask(op="hits", id=1)
same(h["total"]["cached"], c.ask(op="stats", id=1)["tokens"]["cached"], "hits from disk")
ok(h["total"]["cached"]["disk"] > 0, "... there are some", h["total"])
ok(h["total"]["ceiling_tokens"]["hit"] == h["total"]["cached_tokens"],
   "what came from before the start counts for an unlimited cache, too")
same([s["salt"] for s in c.ask(op="tree", id=1)["spaces"]], ["kept"], "now its name is known")
ok("from disk" in subprocess.run([CTL, "-s", server.address, "hits"], capture_output=True,
                                 text=True).stdout, "prefixctl hits shows slower tiers")
said = [subprocess.run([CTL, "-s", server.address, *words], capture_output=True, text=True).stderr
        for words in (["gen", "-n", "1", "word " * 100], ["save"], ["evict"], ["gen", "-n", "1", "word " * 100])]
ok("from disk" not in said[0] and "from host 0, from disk " in said[3],
   "prefixctl gen tells of slower tiers, where something came from there", said)
server.stop()

# ---- what is being computed ----
server, c = start("--chunk-tokens", "16")
asker = server.connect()
told = None
for token in range(10, 200):
    c.send(op="warm", id=1, tokens=[token] * 1900)
    x = {"cached_tokens": 0}
    while x["cached_tokens"] < 1900 and told is None:
        x = asker.ask(op="explain", id=1, tokens=[token] * 1900)
        told = x["in_flight"]
    number = c.until_last()[-1]["request"]
    if told is not None:
        break
same(told, {"request": number, "tokens": 1900}, "who computes a prompt now is told")
server.stop()

# ---- a trace, replayed ----
server, c = start()
path = os.path.join(tmp.name, "t.jsonl")
same(c.ask(op="trace", id=1, action="status")["state"], "off", "no trace yet")
as_shown(c.ask(op="trace", id=1, action="start", path=path), "trace")
same(c.ask(op="trace", id=1, action="start", path=path + "2")["code"], "bad_request", "one at a time")
base0 = total(c)["blocks"]
secret = "the old password was swordfish"
chains = [ids(B * rnd.randrange(1, 12)) for _ in range(20)]
asked = []
for i in range(150):
    chain = rnd.choice(chains)[: B * rnd.randrange(1, 12)] + ids(B * rnd.randrange(0, 3))
    asked.append(chain)


def client(mine):
    k = server.connect()
    for tokens in mine:
        k.ask(op="warm", id=1, tokens=tokens)


# First one by one, where replay and server must agree to the block; then at once, for the order.
client(asked)
part = total(c)["blocks"]
for action in ("stop", "status"):
    for field in (dict(path=path), dict(max_bytes=4096)):
        r = c.ask(op="trace", id=1, action=action, **field)
        ok(r["event"] == "error" and r["code"] == "bad_request" and "start" in r["message"],
           "trace %s with %s is refused" % (action, list(field)[0]), r)
stopped = c.ask(op="trace", id=1, action="stop")
as_shown(stopped, "trace")
lines = [json.loads(x) for x in open(path)]
same((stopped["state"], stopped["records"], stopped["dropped"]), ("stopped", 150, 0), "a trace stops")
same((len(lines), os.path.getsize(path)), (150, stopped["bytes"]), "... with a line for each request")
same([x["input_length"] for x in lines], [len(a) for a in asked], "... in their order")
same([len(x["hash_ids"]) for x in lines], [len(a) // B for a in asked], "... an id for each block")
sim = subprocess.run([os.path.join(BUILD, "prefix-sim"), "--trace", path, "--capacity", "100000",
                      "--policy", "lru", "--json"], capture_output=True)
sim = json.loads(sim.stdout)
got = (part["hit"] - base0["hit"]) / (part["of"] - base0["of"])
ok(abs(sim["rows"][0]["hit_rate"] - got) < 1e-4, "prefix-sim finds what the server counted",
   (sim["rows"][0], got))
path2 = path + "2"
c.ask(op="trace", id=1, action="start", path=path2)
threads = [threading.Thread(target=client, args=(asked[i::5],)) for i in range(5)]
for t in threads:
    t.start()
c.ask(op="generate", id=1, prompt=secret, max_tokens=5, stream=False)
for t in threads:
    t.join()
out = subprocess.run([CTL, "-s", server.address, "trace", "stop"], capture_output=True, text=True)
ok(out.returncode == 0 and "requests 151, " in out.stdout, "prefixctl trace stop", out)
lines2 = [json.loads(x) for x in open(path2)]
ok(sorted(len(x["hash_ids"]) for x in lines2[:]) != [] and "swordfish" not in open(path2).read(),
   "no text is in it")
same(set(i for x in lines for i in x["hash_ids"]) & set(i for x in lines2 for i in x["hash_ids"]), set(),
     "two traces have no id in common")
ok(all(x["timestamp"] <= y["timestamp"] + 50 for x, y in zip(lines2, lines2[1:])),
   "in the order of arrival", [x["timestamp"] for x in lines2])
for bad, code in (({"action": "stop"}, "not_found"), ({"action": "start"}, "bad_request"),
                  ({"action": "start", "path": "rel"}, "bad_request"), ({}, "bad_request"),
                  ({"action": "start", "path": path}, "bad_request"),
                  ({"action": "start", "path": "/nowhere/t"}, "bad_request"),
                  ({"action": "start", "path": path + "3", "max_bytes": 1}, "bad_request")):
    same(c.ask(op="trace", id=1, **bad)["code"], code, "trace with %r" % bad)
same([subprocess.run([CTL, "-s", server.address, *more, "trace", "status"], capture_output=True).returncode
      for more in ((), ("--json",))], [1, 1], "the exit status tells that a trace failed")
same(len(open(path).readlines()), 150, "a file that is there is never touched")
path3 = path + "3"
out = subprocess.run([os.path.abspath(CTL), "-s", server.address, "trace", "start", "t.jsonl3"], cwd=tmp.name,
                     capture_output=True, text=True)
ok(out.returncode == 0 and path3 in out.stdout, "prefixctl trace start, from where one stands", out)
c.ask(op="warm", id=1, tokens=base)
same(server.stop(), 0, "a server that goes")
same(len(open(path3).readlines()), 1, "... completes its trace")
finish()
