#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# The whole way through: prefixd with a real engine (on a tiny model, and on $PREFIXD_MODEL
# when that is set), every operation once, hang-ups at random, and nothing left over.
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, Server, finish, ok, same, scratch  # noqa: E402

tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), tiny], check=True)
net_harness.FAKE = os.path.join(BUILD, "prefixd")
seed = int(os.environ.get("PFX_SEED", int.from_bytes(os.urandom(4), "little")))
print("# seed %d" % seed)


def adds_up(done):
    u = done["usage"]
    return u["cached_tokens"] + u["computed_tokens"] == u["prompt_tokens"] \
        and sum(u["cached"].values()) == u["cached_tokens"]


def every_op(server, name):
    rnd = random.Random(seed)
    c = server.connect()
    hello = c.ask(op="hello", id=1)
    same(hello["backend"], "cpu", name + ": hello")
    ids = [rnd.randrange(3, hello["vocab"]) for _ in range(50)]
    # Two prompts below must part at position 30, where one begins again.
    ids[30] = 3 if ids[0] != 3 else 4
    c.send(op="generate", id=1, tokens=ids, max_tokens=8, logprobs=3, digest=True, ignore_eos=True)
    cold = c.until_last()
    same([r["event"] for r in cold], ["token"] * 8 + ["done"], name + ": generate")
    same((cold[-1]["usage"]["computed_tokens"], cold[-1]["usage"]["completion_tokens"]), (50, 8),
         "... counts")
    ok(all(r["top"][0][1] >= r["top"][1][1] >= r["top"][2][1] and r["token"] == r["top"][0][0]
           and r["logprob"] == r["top"][0][1] for r in cold[:-1]), "... top is best first, and greedy")
    c.send(op="generate", id=1, tokens=ids, max_tokens=8, logprobs=3, digest=True, ignore_eos=True)
    hit = c.until_last()
    same(hit[:-1], cold[:-1], "a hit gives the same lines, digests and all")
    same((hit[-1]["usage"]["cached_tokens"], hit[-1]["miss"]), (50, None), "... without computing")
    flat = c.ask(op="generate", id=1, tokens=ids, max_tokens=8, logprobs=3, digest=True,
                 ignore_eos=True, stream=False)
    same((flat["tokens"], flat["digests"]), ([r["token"] for r in cold[:-1]],
                                             [r["digest"] for r in cold[:-1]]), "... and in one line")
    same(flat["text"], "".join(r["text"] for r in cold[:-1]), "... with the same text")
    drawn = c.ask(op="generate", id=1, tokens=ids, max_tokens=8, temperature=1.5, stream=False)
    again = c.ask(op="generate", id=1, tokens=ids, max_tokens=8, temperature=1.5, stream=False,
                  seed=drawn["seed"])
    same(again["tokens"], drawn["tokens"], "the seed that done tells gives the reply again")
    warm = c.ask(op="warm", id=1, tokens=ids[:30] + ids[:30])
    same((warm["finish"], warm["usage"]["cached_tokens"], adds_up(warm)), ("length", 30, True), "warm")
    same((warm["miss"]["reason"], warm["miss"]["at_token"]), ("diverged", 30), "... and its miss")
    score = c.ask(op="score", id=1, tokens=ids, **{"from": 10})
    same((len(score["logprobs"]), len(score["top"]), adds_up(score)), (40, 40, True), "score")
    toks = c.ask(op="tokenize", id=1, text="Hello w\u00f6rld")
    same(c.ask(op="detokenize", id=1, tokens=toks["tokens"])["text"], "Hello w\u00f6rld",
         "tokenize and back")
    if hello["chat_template"]:
        text = c.ask(op="render", id=1, messages=[{"role": "user", "content": "Hi <|im_end|>"}])
        ok("Hi <|im_end|>" in text["text"], "render", text)
        chat = c.ask(op="generate", id=1, messages=[{"role": "user", "content": "Hi"}], max_tokens=3)
        same((chat["event"], adds_up(chat)), ("done", True), "chat")
    same(c.ask(op="generate", id=1, tokens=[hello["vocab"]])["code"], "bad_request", "a wrong token id")
    same(c.ask(op="generate", id=1, tokens=ids * 4000)["code"], "too_long", "a prompt that cannot fit")
    c.send(op="tokenize", id=1, text="ab " * 4000000)
    c.send(op="generate", id=2, prompt="short", max_tokens=1, stream=False)
    c.send(op="tokenize", id=3, messages=[]) if hello["chat_template"] else None
    c.send(op="tokenize", id=4, text="short")
    order = [c.recv()["id"] for _ in range(4 if hello["chat_template"] else 3)]
    same((order[-1], order.index(2) < order.index(1)), (1, True), "a long text holds up no short one")
    stats = c.ask(op="stats", id=1)
    dev = stats["tiers"]["device"]
    same(dev["blocks"], dev["free"] + dev["cached"] + dev["running"], "stats: blocks add up")
    same((dev["running"], dev["pinned"]), (0, 0), "... none runs or is pinned")
    same(c.ask(op="flush", id=1)["in_use"], 0, "flush")
    same(c.ask(op="warm", id=1, tokens=ids)["usage"]["cached_tokens"], 0, "... forgets")

    conns = []
    end = time.time() + 3
    n = 0
    while time.time() < end and n < 300:
        n += 1
        if len(conns) < 6:
            conns.append(server.connect())
        v = rnd.choice(conns)
        what = rnd.randrange(8)
        if what < 5:
            k = rnd.randrange(1, 40)
            v.send(op=rnd.choice(["generate", "warm", "score"]), id=n, tokens=ids[:k] + ids[:rnd.randrange(20)],
                   max_tokens=rnd.randrange(6))
        elif what == 5:
            v.send(op="cancel", id=n, target=n - rnd.randrange(1, 5))
        else:
            v.close()
            conns.remove(v)
    for v in conns:
        v.close()
    server.settle(lambda s: s["requests"]["running"] == 0 and s["requests"]["queued"] == 0,
                  "after %d requests and hang-ups nothing runs" % n)
    same(c.ask(op="check", id=1), {"id": 1, "event": "check", "ok": True, "problems": []},
         "... check is clean")
    dev = c.ask(op="stats", id=1)["tiers"]["device"]
    same((dev["running"], dev["pinned"], dev["free"] + dev["cached"]), (0, 0, dev["blocks"]),
         "... and all blocks are back")
    c.send(op="generate", id=1, tokens=ids, max_tokens=20, ignore_eos=True)
    c.send(op="drain", id=2)
    events = []
    while (r := c.recv()) is not None:
        events.append(r["event"])
    same((events.count("token"), events.count("done"), events.count("draining")), (20, 1, 1),
         "drain: what runs is told to its end")
    same(server.wait(), 0, "... ends well")


every_op(Server("--model", tiny), "tiny model")
every_op(Server("--model", tiny, "--device-memory", "200K", "--block-tokens", "8", "--max-requests", "3",
                "--chunk-tokens", "7"), "tiny model, little memory")
huge = subprocess.run([net_harness.FAKE, "--model", tiny, "--device-memory", "1000T"], capture_output=True,
                      text=True, timeout=20)
same(huge.returncode, 1, "more blocks than can be counted are refused at once")
ok(huge.stderr.startswith("prefixd: device memory is limited to 1099511627776000 bytes, expected fewer"),
   "... with the figures", huge.stderr)
if os.environ.get("PREFIXD_MODEL"):
    every_op(Server("--model", os.environ["PREFIXD_MODEL"]), "PREFIXD_MODEL")
else:
    print("# PREFIXD_MODEL is not set: the tiny model alone")
finish()
