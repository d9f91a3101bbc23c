#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# A server with a store, killed and damaged: prefixd over TCP on a tiny model, and on
# $PREFIXD_MODEL for the time that a restart costs. PFX_ROUNDS: how often it is killed.
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, FAKE, Server, finish, ok, same, scratch  # noqa: E402

net_harness.FAKE = os.path.join(BUILD, "prefixd")
net_harness.WAIT = 60
ROUNDS = int(os.environ.get("PFX_ROUNDS", 5))
seed = int(os.environ.get("PFX_SEED", int.from_bytes(os.urandom(4), "little")))
rnd = random.Random(seed)
print("# seed %d" % seed)
tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), tiny, "layers=2"], check=True)
N_VOCAB = 320
# A family of prompts that branch off one another.
prompts = []
for i in range(24):
    head = prompts[rnd.randrange(i)] if i else []
    head = head[:rnd.randrange(len(head) + 1)] if head else []
    prompts.append(head + [rnd.randrange(3, N_VOCAB) for _ in range(rnd.randrange(1, 120))])


def start(store, *more, model=tiny, **kw):
    args = ["--model", model, "--threads", "1", *more]
    if store:
        # A loaded machine is no reason to compute what these tests want to see loaded.
        args += ["--store", store, "--load-wait", "20"]
    return Server(*args, **kw)


def ask(c, tokens, n=3, **more):
    return c.ask(op="generate", id=1, tokens=tokens, max_tokens=n, digest=True, ignore_eos=True,
                 stream=False, **more)


s = start(None)
c = s.connect()
cold = [ask(c, p)["digests"] for p in prompts]
s.stop()


def answers(server, name):
    """Every prompt has the bits of its cold answer; how many tokens came from the store."""
    c, bad, disk = server.connect(), [], 0
    for i, p in enumerate(prompts):
        r = ask(c, p)
        u = r.get("usage")
        if r.get("digests") != cold[i] or u["cached_tokens"] + u["computed_tokens"] != len(p):
            bad.append((i, r))
        disk += u["cached"]["disk"] if u else 0
    same(bad, [], name + ": every answer has its bits")
    check = c.ask(op="check", id=1)
    same(check.get("problems"), [], name + ": check")
    c.close()
    return disk


# ---- killed at random ----

store = os.path.join(tmp.name, "killed")
opts = ["--save", "all", "--device-memory", "1M", "--host-memory", "1M"]
bad, from_disk, damaged = [], 0, 0
for i in range(ROUNDS):
    s = start(store, *opts)
    c = s.connect()
    end = time.time() + rnd.random() * 0.4
    asked = [rnd.randrange(len(prompts)) for _ in range(40)]
    for n, k in enumerate(asked):
        c.send(op="generate", id=n, tokens=prompts[k], max_tokens=3, digest=True, ignore_eos=True,
               stream=False)
        if rnd.random() < 0.02:
            c.send(op="save", id="s%d" % n)
    c.sock.settimeout(0.02)
    while time.time() < end:
        try:
            r = c.recv()
        except OSError:
            continue
        if r is None:
            break
        if r["event"] == "done" and r["digests"] != cold[asked[r["id"]]]:
            bad.append(r)
        if r["event"] == "done":
            from_disk += r["usage"]["cached"]["disk"]
    s.proc.kill()
    s.proc.wait()
    c.close()
same(bad, [], "killed %d times in the middle of work: no wrong answer" % ROUNDS)
s = start(store, *opts)
from_disk += answers(s, "after the last kill")
c = s.connect()
r = c.ask(op="store", id=1, do="verify")
same((r["event"], r["damaged"]), ("store", 0), "every record verifies")
ok(r["records"] > 0 and from_disk > 0, "what was saved was used again", (r, from_disk))
same(s.stop(), 0, "and it ends as it should")

# What flush has answered is gone after a kill, also what was being saved when it came.
store = os.path.join(tmp.name, "flushed")
left = []
for i in range(ROUNDS):
    s = start(store, "--save", "all")
    c = s.connect()
    left.append(c.ask(op="store", id=1)["records"])
    for p in prompts:
        ask(c, p)
    if i % 2:
        c.ask(op="save", id=1)
    r = c.ask(op="flush", id=1)
    s.proc.kill()
    s.proc.wait()
    c.close()
    left.append(0 if r["durable"] else r)
same(left, [0] * (2 * ROUNDS), "flush, then kill -9, %d times: no record comes back" % ROUNDS)

# What save has answered is there after a kill; with the policy that saves nothing by itself.
store = os.path.join(tmp.name, "saved")
s = start(store, "--save", "off")
c = s.connect()
for p in prompts:
    ask(c, p)
r = c.ask(op="save", id=1)
same(r["event"], "saved", "save")
records = r["records"]
s.proc.kill()
s.proc.wait()
s = start(store, "--save", "off")
disk = answers(s, "after save and kill -9")
st = s.stats()["tiers"]["disk"]
same(st["records"], records, "all records are back")
ok(disk > 0 and st["loads"] > 0, "and were loaded", (disk, st))
second = subprocess.run([net_harness.FAKE, "--model", tiny, "--listen", "127.0.0.1:0", "--store", store],
                        capture_output=True, text=True, timeout=60)
ok(second.returncode == 1 and store in second.stderr, "a second server on the same folder is refused",
   second.stderr)
same(s.stop(), 0, "the first one ends as it should")

# A clean end saves what is worth it.
clean = os.path.join(tmp.name, "clean")
s = start(clean, "--save", "all")
c = s.connect()
for p in prompts:
    ask(c, p)
same(s.stop(), 0, "SIGTERM right after the last answer")
s = start(clean)
st = s.stats()["tiers"]["disk"]
ok(st["records"] > 0, "and all was saved", st)
ok(answers(s, "after a clean end") > 0, "and is used")
s.stop()

# By itself only what was used again is saved.
reused = os.path.join(tmp.name, "reused")
s = start(reused)
c = s.connect()
ask(c, prompts[1])
s.stop()
s = start(reused)
same(s.stats()["tiers"]["disk"]["records"], 0, "what was asked for once is not saved")
c = s.connect()
for p in (prompts[1], prompts[1] + [3, 4, 5], prompts[2]):
    ask(c, p)
s.settle(lambda s: s["tiers"]["disk"]["records"] > 0, "what was used again is, in the background")
s.stop()

# ---- whose store is it ----

other = os.path.join(tmp.name, "other.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), other, "seed=9"], check=True)


def refused(*more):
    p = subprocess.run([net_harness.FAKE, "--model", other, "--listen", "127.0.0.1:0", *more],
                       capture_output=True, text=True, timeout=60)
    return p.returncode, p.stderr


rc, err = refused("--store", store)
ok(rc == 1 and "--store-replace" in err and store in err, "a store of another model is refused", err)
rc, err = refused("--model", tiny, "--block-tokens", "16", "--store", store)
ok(rc == 1 and "--store-replace" in err, "... and one of another block size", err)
s = start(store)
same(s.stats()["tiers"]["disk"]["records"], records, "... and is left alone")
s.stop()
copy = os.path.join(tmp.name, "replaced")
shutil.copytree(store, copy)
s = start(copy, "--store-replace", model=other)
same(s.stats()["tiers"]["disk"]["records"], 0, "--store-replace clears it")
s.stop()

rc, err = refused("--host-memory", "99999T")
ok(rc == 1 and "more than the machine's" in err, "host memory that the machine does not have", err)
rc, err = refused("--host-memory", "1K")
ok(rc == 1 and "less than a block" in err, "... or that holds no block", err)

# ---- damage ----

folder = os.path.join(tmp.name, "damaged")


def damaged_start(harm, name, *more):
    """The copy of the store after harm; how many tokens came from it, and what was said."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(store, folder)
    harm(os.path.join(folder, "data.mdb"))
    log = os.path.join(tmp.name, "log")
    with open(log, "w") as f:
        s = start(folder, "--log-level", "warn", *more, stderr=f)
        disk = answers(s, name)
        counted = s.stats()["tiers"]["disk"]["damaged"]
        same(s.stop(), 0, name + ": ends as it should")
    return disk, counted, open(log).read()


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        b = f.read(1)
        f.seek(at)
        f.write(bytes([b[0] ^ 1 << rnd.randrange(8)]))


size = os.path.getsize(os.path.join(store, "data.mdb"))
disk, counted, log = damaged_start(lambda p: None, "no damage")
same((disk > 0, counted, log), (True, 0, ""), "no damage: no message")
told = 0
for i in range(max(6, ROUNDS)):
    at = rnd.choice([rnd.randrange(16, 160), 4096 + rnd.randrange(16, 160), rnd.randrange(size),
                     rnd.randrange(size), rnd.randrange(size // 4096) * 4096 + rnd.randrange(24)])
    disk, counted, log = damaged_start(lambda p: flip(p, at), "a bit flipped at %d" % at)
    same(counted > 0, "damage" in log, "... it is counted when it is told of")
    told += counted > 0
print("# %d flips were met" % told)
disk, counted, log = damaged_start(lambda p: os.truncate(p, size // 2), "a file cut in two")
ok(counted > 0 and "damage" in log, "... is told of and counted", (counted, log))
same(log.count("damaged.mdb"), 1, "... and warned of once")
disk, counted, log = damaged_start(lambda p: os.truncate(p, 0), "an empty file")
disk, counted, log = damaged_start(lambda p: [flip(p, 4096 * k + j) for k in range(2) for j in
                                              range(16, 100)], "both meta pages overwritten")
ok(counted > 0 and "damage" in log, "... is told of and counted", (counted, log))

# ---- a disk that is full, or only read ----

disk = os.path.join(tmp.name, "disk")
os.mkdir(disk)
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk],
                  capture_output=True).returncode == 0:
    try:
        with open(os.path.join(disk, "filler"), "wb") as f:
            f.write(bytes(3 << 20))
        log = os.path.join(tmp.name, "log")
        with open(log, "w") as f:
            s = start(os.path.join(disk, "s"), "--save", "all", "--store-size", "64M", "--log-level",
                      "warn", stderr=f)
            long = [[rnd.randrange(3, N_VOCAB) for _ in range(700)] for _ in range(12)]
            c = s.connect()
            for p in long:
                ask(c, p)
            answers(s, "a full disk")
            r = c.ask(op="save", id=1)
            same((r["event"], r.get("code")), ("error", "internal"), "save says so")
            ok("space" in r["message"], "... and why", r)
            s.settle(lambda s: s["tiers"]["disk"]["failed_saves"] > 0, "and it is counted")
            same(c.ask(op="flush", id=1)["durable"], True, "what is there can be deleted")
            ask(c, long[0][:300])
            r = c.ask(op="save", id=1)
            ok(r["event"] == "saved" and r["records"] > 0, "... and its room used again", r)
            os.remove(os.path.join(disk, "filler"))
            same(s.stop(), 0, "it ends as it should")
        ok("failed" in open(log).read(), "and told of", open(log).read())
        shutil.rmtree(os.path.join(disk, "s"))
        def fill():
            try:
                with open(os.path.join(disk, "filler"), "ab", buffering=0) as f:
                    while True:
                        f.write(bytes(4096))
            except OSError:
                pass

        # A restart while others fill the disk; --store-size is left to the server.
        for n in (1, 6):
            s = start(os.path.join(disk, "s"), "--save", "all")
            c = s.connect()
            want = [ask(c, p)["digests"] for p in long[:n]][0]
            records = c.ask(op="save", id=1)["records"]
            same(s.stop(), 0, "a store of %d prompts on a disk with room" % n)
            fill()
            for how in ("rw", "ro"):
                subprocess.run(["mount", "-o", "remount," + how, disk], check=True)
                s = start(os.path.join(disk, "s"), "--save", "all")
                c = s.connect()
                same(c.ask(op="store", id=1).get("restored"), records,
                     "a full disk (%s): the store is opened, whole" % how)
                r = ask(c, long[0])
                same((r["digests"], r["usage"]["cached"]["disk"] > 0), (want, True), "... and read")
                same(s.stop(), 0, "... and closed")
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            os.remove(os.path.join(disk, "filler"))
        file = os.path.join(disk, "s", "data.mdb")
        os.truncate(file, os.path.getsize(file) // 2)
        fill()
        s = start(os.path.join(disk, "s"), "--save", "all")
        c = s.connect()
        r = c.ask(op="store", id=1)
        same((r.get("restored"), r.get("set_aside")), (0, True),
             "a full disk and a file that was cut: it starts cold")
        same(ask(c, long[0])["digests"], want, "... and answers")
        same(s.stop(), 0, "... and ends as it should")
        os.remove(os.path.join(disk, "filler"))
        shutil.rmtree(os.path.join(disk, "s"))
        shutil.copytree(store, os.path.join(disk, "s"))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with open(log, "w") as f:
            s = start(os.path.join(disk, "s"), "--save", "all", "--log-level", "warn", stderr=f)
            ok(answers(s, "a disk that is only read") > 0, "is read")
            c = s.connect()
            same(c.ask(op="save", id=1)["code"], "bad_request", "save says that it cannot")
            same(s.stats()["tiers"]["disk"]["read_only"], True, "and the counters do")
            same(s.stop(), 0, "it ends as it should")
        ok("written" in open(log).read(), "and told of", open(log).read())
    finally:
        subprocess.run(["umount", disk])
else:
    ok(True, "a disk that is full or only read # SKIP no rights to mount one")

# ---- the time that a restart costs ----

real = os.environ.get("PREFIXD_MODEL")
if real and os.access(real, os.R_OK):
    store = os.path.join(tmp.name, "real")
    prefix = [rnd.randrange(1000, 40000) for _ in range(2000)]
    tails = [[rnd.randrange(1000, 40000) for _ in range(8)] for _ in range(64)]

    def ttft(c, tokens):
        r = ask(c, tokens, 1)
        return r["timing"]["ttft_ms"], r["usage"]

    s = start(store, "--save", "all", "--threads", "0", model=real)
    c = s.connect()
    c.ask(op="warm", id=1, tokens=prefix)
    ask(c, prefix, 1)
    hit = min(ttft(c, prefix + t)[0] for t in tails[:10])
    exact = min(ttft(c, prefix)[0] for _ in range(5))
    same(c.ask(op="save", id=1)["event"], "saved", "the real model's prefix is saved")
    s.proc.kill()
    s.proc.wait()
    s = start(store, "--save", "off", "--threads", "0", model=real)
    c = s.connect()
    ask(c, tails[0] * 10, 1)  # the first step of a process touches its memory
    first, again = [], []
    for k in range(8):
        ms, u = ttft(c, prefix + tails[10 + k])
        first.append(ms)
        same((u["cached"]["disk"], u["computed_tokens"]), (2000, 8), "all of it comes from the store")
        hit = min(hit, ttft(c, prefix + tails[30 + k])[0])
        c.ask(op="evict", id=1, tier="device")
        again.append(ttft(c, prefix)[0])
        c.ask(op="evict", id=1, tier="device")
    print("# 2,000 tokens: device hit %.2f ms; from the store after kill -9 %.2f ms at first, %.2f at "
          "best (%.2fx); the same prompt: %.2f ms with its logits kept, %.2f from the store" % (
              hit, first[0], min(first), min(first) / hit, exact, min(again)))
    ok(min(first) <= 3 * hit, "after a restart it answers within three times a device hit",
       (first, hit))
    s.stop()

finish()
