#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# Everything at once on pools that hold next to nothing: prefixd over TCP on a tiny model, all
# tiers, every op that moves or drops blocks, hang-ups and deadlines. Whatever comes, a prompt
# has the bits of its cold answer. PFX_ROUNDS: servers; PFX_SECONDS: how long each is stormed.
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, Server, finish, ok, same, scratch  # noqa: E402

net_harness.FAKE = os.path.join(BUILD, "prefixd")
net_harness.WAIT = 60
ROUNDS = int(os.environ.get("PFX_ROUNDS", 4))
SECONDS = float(os.environ.get("PFX_SECONDS", 1.5))
seed = int(os.environ.get("PFX_SEED", int.from_bytes(os.urandom(4), "little")))
rnd = random.Random(seed)
print("# seed %d" % seed)
tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), tiny, "layers=2"], check=True)
N = 4  # tokens of a reply
SALTS = ["", "a", "b"]
prompts = []
for i in range(30):
    head = prompts[rnd.randrange(i)] if i else []
    head = head[:rnd.randrange(len(head) + 1)] if head else []
    more = [rnd.randrange(3, 320) for _ in range(rnd.randrange(1, 150))]
    prompts.append((head + more)[:300])


def start(*args):
    s = Server("--model", tiny, "--threads", "1", "--log-level", "warn", *args,
               stderr=open(os.path.join(tmp.name, "log"), "w"))
    return s, s.connect()


def log():
    with open(os.path.join(tmp.name, "log")) as f:
        return f.read()


def ask(c, tokens, **more):
    return c.ask(op="generate", id=1, tokens=tokens, max_tokens=N, digest=True, ignore_eos=True,
                 stream=False, **more)


s, c = start()
kv = c.ask(op="hello", id=1)["kv_bytes_per_token"]
cold = [ask(c, p, store=False)["digests"] for p in prompts]
s.stop()


def usage_adds_up(r):
    u = r["usage"]
    return sum(u["cached"].values()) == u["cached_tokens"] and (
        r["finish"] == "cancelled" or u["cached_tokens"] + u["computed_tokens"] == u["prompt_tokens"])


def request(rnd, fly):
    """A random line, and the prompt whose cold answer it must have."""
    i = rnd.randrange(len(prompts))
    p, salt = prompts[i], {"namespace": rnd.choice(SALTS)}
    k = rnd.random()
    keep = rnd.choice([{}, {}, {"last_turn": True}, {"ttl_ms": rnd.choice([1, 50, 10**9])},
                       {"store": False}, {"deadline_ms": rnd.choice([1, 5, 1000])}])
    if k < .50:
        return dict(op="generate", tokens=p, max_tokens=rnd.randrange(N + 1), digest=True,
                    ignore_eos=True, stream=False, **keep, **salt), i
    if k < .58:
        return dict(op="warm", tokens=p, progress=rnd.random() < .3, **keep, **salt), None
    short = p[:rnd.randrange(1, len(p) + 1)]
    several = ["device", "host", "disk", ["device", "host"], ["host", "disk"]]
    return rnd.choice([
        lambda: dict(op="pin", tokens=short, ttl_ms=rnd.choice([1, 20, 200]), **salt),
        lambda: dict(op="unpin", all=True, **salt),
        lambda: dict(op="end", tokens=p, **salt),
        lambda: dict(op="score", tokens=p, **{"from": rnd.randrange(1, len(p) + 1)}, **salt),
        lambda: dict(op="flush", tier=rnd.choice(several), **salt),
        lambda: dict(op="evict", tier=rnd.choice(several[:3]), blocks=rnd.choice([1, 5, 1000])),
        lambda: dict(op="save"),
        lambda: dict(op="store", do=rnd.choice(["verify", "verify", "compact", "clear"])),
        lambda: dict(op="check"),
        lambda: dict(op="tree", text=True),
        lambda: dict(op="explain", tokens=p, **salt),
        lambda: dict(op="prefix.put", prefix="n", tokens=short, pin=rnd.random() < .3, ttl_ms=50),
        lambda: dict(op="generate", prefix="n", tokens=[5], max_tokens=2, stream=False),
        lambda: dict(op="session.open", session="s", tokens=p[:20], ttl_ms=rnd.choice([5, 5000])),
        lambda: dict(op="generate", session="s", tokens=p[:9], max_tokens=2, stream=False),
        lambda: dict(op="session.close", session="s"),
        lambda: dict(op="cancel", target=rnd.choice(list(fly) or [0])),
    ])(), None


class Client:
    def __init__(self, server):
        self.server, self.n = server, 0
        self.connect()

    def connect(self):
        self.c, self.fly = self.server.connect(), {}

    def lines(self):
        self.c.buf += self.c.sock.recv(1 << 18)
        *whole, self.c.buf = self.c.buf.split(b"\n")
        return [json.loads(line) for line in whole]


def storm(s, rnd, seconds, room):
    """What was wrong, and how many lines were answered."""
    clients, wrong, n = [Client(s) for _ in range(5)], [], 0
    end = time.time() + seconds
    while time.time() < end or any(x.fly for x in clients):
        if time.time() > end + net_harness.WAIT:
            return wrong + [("no answer", x.fly) for x in clients if x.fly], n
        for x in clients:
            while time.time() < end and len(x.fly) < rnd.choice([1, 3, 12]):
                line, i = request(rnd, x.fly)
                x.n += 1
                x.fly[x.n] = (line, i)
                x.c.send(id=x.n, **line)
            if time.time() < end and rnd.random() < .004:
                x.c.close()
                x.connect()
        for x in clients:
            if not select.select([x.c.sock], [], [], .002)[0]:
                continue
            for r in x.lines():
                if r["event"] in ("token", "prefill"):
                    continue
                n += 1
                line, i = x.fly.pop(r["id"])
                if r["event"] == "error" and r["code"] == "internal":
                    wrong.append((line["op"], r))
                elif r["event"] == "check" and not r["ok"]:
                    wrong.append(r)
                elif r["event"] == "store" and line["do"] == "verify" and r["damaged"]:
                    wrong.append(r)
                elif r["event"] == "done" and not usage_adds_up(r):
                    wrong.append(r)
                elif r["event"] == "done" and i is not None and r["finish"] == "length":
                    want = cold[i][:line["max_tokens"]]
                    # Beside leases the memory may end before the reply does.
                    full = len(prompts[i]) + len(r["digests"]) > room / 4
                    if r["digests"] != (want[:len(r["digests"])] if full else want):
                        wrong.append((i, r))
    for x in clients:
        x.c.close()
    return wrong, n


def at_rest(s, c, name):
    for salt in SALTS:
        c.ask(op="unpin", id=1, all=True, namespace=salt)
    tiers = ("device", "host")

    def still(st):
        return (st["requests"]["running"] + st["requests"]["queued"] == 0 and
                all(st["tiers"][t][k] == 0 for t in tiers
                    for k in ("running", "pinned", "leased", "moving")))
    s.settle(still, name + ": nothing runs or is held")
    st = s.stats()
    same([st["tiers"][t]["free"] + st["tiers"][t]["cached"] for t in tiers],
         [st["tiers"][t]["blocks"] for t in tiers], name + ": free and cached make up each tier")
    same(st["tokens"]["prompt"], st["tokens"]["computed"] + sum(st["tokens"]["cached"].values()),
         name + ": every prompt token is counted once")
    if not same([st["tiers"]["disk"][k] for k in ("damaged", "failed_saves", "failed_loads")],
                [0, 0, 0], name + ": no record is damaged, none failed"):
        print("# " + log().replace("\n", "\n# "))
    r = c.ask(op="check", id=1)
    ok(r["ok"], name + ": check is clean", r)


for n in range(ROUNDS):
    store = os.path.join(tmp.name, "store%d" % n)
    # A block of one token is a record so small that several share a page of the store.
    b = [1, 8, 32, 16][n % 4]
    room, host = rnd.choice([700, 1000, 2000]), rnd.choice([0, 300, 1000])
    args = ["--block-tokens", str(b), "--device-memory", str(room * kv), "--max-pins", "50",
            "--host-memory", str(host * kv) if host else "off",
            "--eviction", rnd.choice(["lru", "default"]), "--max-requests", rnd.choice("1248"),
            "--chunk-tokens", rnd.choice(["1", "7", "512"]),
            "--logits-memory", rnd.choice(["0", "64K"]), "--store", store,
            "--store-size", rnd.choice(["2M", "8M"]), "--save", rnd.choice(["all", "reused"])]
    print("# " + " ".join(args[:-6]))
    name = "storm %d, blocks of %d" % (n, b)
    s, c = start(*args)
    wrong, answers = storm(s, rnd, SECONDS, room)
    ok(not wrong and answers > 0, name + ": every answer is right", wrong[:2])
    at_rest(s, c, name)
    # Several at once: each is answered.
    others = [s.connect() for _ in range(4)]
    for p in prompts[:10]:
        ask(c, p)
    for x in others:
        x.send(op="save", id=1)
    same([x.recv()["event"] for x in others], ["saved"] * 4, name + ": four saves at once end")
    s.stop(rnd.choice([signal.SIGKILL, signal.SIGTERM]))
    same([line for line in log().split("\n") if "damaged" in line or "failed" in line], [],
         name + ": nothing was taken for damaged")
    s, c = start(*args)
    got = [ask(c, p) for p in prompts]
    same([r.get("digests") for r in got], cold, name + ": the same bits after a restart")
    disk = sum(r["usage"]["cached"]["disk"] for r in got)
    ok(b == 1 or disk > 0, name + ": some of it from the disk")
    if n == 0:
        for field, line in (("namespace", dict(op="store", do="info", namespace=5)),
                            ("name", dict(op="prefix.put", prefix="n", name=[], tokens=[3]))):
            r = c.ask(id=1, **line)
            ok(r.get("code") == "bad_request" and field in r["message"],
               "%s of the wrong type is refused, although it would not be used" % field, r)
    same(s.stop(), 0, name + ": it ends with 0")

for name, make in (("a pipe", os.mkfifo), ("a link", lambda p: os.symlink("/dev/null", p))):
    store = os.path.join(tmp.name, "odd " + name[2:])
    os.mkdir(store)
    make(os.path.join(store, "data.mdb"))
    r = subprocess.run([net_harness.FAKE, "--model", tiny, "--listen", "127.0.0.1:0",
                        "--store", store], capture_output=True, text=True, timeout=60)
    ok(r.returncode == 1 and "data.mdb is not a file" in r.stderr,
       "%s in place of the store's file is refused" % name, r.stderr)

store = os.path.join(tmp.name, "gone")
s, c = start("--store", store, "--save", "all")
ask(c, prompts[0])
same(c.ask(op="save", id=1)["event"], "saved", "a save")
shutil.rmtree(store)
got = ask(c, prompts[1])["digests"], ask(c, prompts[0])["digests"]
same(got, (cold[1], cold[0]), "the store's folder is removed: answers stay right")
same(c.ask(op="save", id=1).get("code"), "internal", "... and a save does not say that it is kept")
ok("removed while in use" in log(), "... and the log tells", log())
same(s.stop(), 0, "... and the end is as always")

finish()
