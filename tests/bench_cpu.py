#!/usr/bin/env python3
"""How fast prefixd is on this machine's CPUs, beside the machine's limits and other servers.

    make bench-cpu [BENCH_ARGS="..."] [LLAMA_BENCH=PATH ...]

Two kinds of cases. Those of the forward pass alone are run by tests/bench_model, beside the
benchmark programs of llama.cpp and ik_llama.cpp. Those of a client are run over TCP on the
machine itself, beside their servers and vLLM. All take part in turns, round after round, and the
best of the rounds counts; whoever is not at work is stopped, so that an idle server costs the
others nothing. Another program on the machine spoils the figures: what it took in between is told.

Peers are programs that are there already, named by path; who is not named is left out:
    LLAMA_BENCH LLAMA_BATCHED LLAMA_SERVER   llama-bench, llama-batched-bench, llama-server
    IK_BENCH IK_BATCHED IK_SERVER            the same of ik_llama.cpp
    VLLM_PYTHON VLLM_MODEL                   a Python that has vLLM, the model as a folder
    PEER_MODELS                              more model files for the peers' forward pass alone
"""
import argparse
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

BUILD = os.environ.get("top_builddir", ".")
CTX = 16384
PREFIXES = (2048, 4096)


def cpu_seconds():
    """Of all processors since the start: in all, and busy."""
    with open("/proc/stat") as f:
        v = [int(x) / os.sysconf("SC_CLK_TCK") for x in f.readline().split()[1:9]]
    return sum(v), sum(v) - v[3] - v[4]


def seconds_of(root):
    """Processor time of a process that runs and of all that it has started."""
    parents, ticks = {}, {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % p) as f:
                v = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(p)], ticks[int(p)] = int(v[1]), sum(map(int, v[11:15]))
    tree, before = {root}, 0
    while before != len(tree):
        before = len(tree)
        tree |= {p for p, parent in parents.items() if parent in tree}
    return sum(ticks.get(p, 0) for p in tree) / os.sysconf("SC_CLK_TCK")


# ---- servers ----

class Stream:
    """One request under way; counts the pieces that have come, each with its time."""

    def __init__(self, sock, request, piece, end):
        self.sock, self.piece, self.end = sock, piece, end
        self.raw, self.n, self.ended, self.times = b"", 0, False, []
        self.start = time.perf_counter()
        sock.sendall(request)

    def feed(self):
        data = self.sock.recv(1 << 16)
        now = time.perf_counter()
        if not data:
            raise SystemExit("a server hung up: %r" % self.raw[-300:])
        self.raw += data
        n = self.raw.count(self.piece)
        self.times += [now] * (n - self.n)
        self.n, self.ended = n, self.end in self.raw

    def finish(self):
        while not self.ended:
            self.feed()
        return self


class Server:
    name, port, proc = None, None, None

    def launch(self, cmd, env=None):
        out = open(os.path.join(args.logs, self.name.replace(" ", "-") + ".log"), "w")
        self.proc = subprocess.Popen(cmd, stdout=out, stderr=subprocess.STDOUT, env=env,
                                     preexec_fn=os.setpgrp)

    def wait(self, seconds=300):
        end = time.time() + seconds
        while time.time() < end:
            if self.proc.poll() is not None:
                raise SystemExit("%s ended with %d" % (self.name, self.proc.returncode))
            try:
                if self.ready():
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise SystemExit("%s did not start" % self.name)

    def ready(self):
        s = socket.create_connection(("127.0.0.1", self.port), 2)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b" 200 " in s.recv(64)

    def pause(self):
        os.killpg(self.proc.pid, signal.SIGSTOP)

    def resume(self):
        os.killpg(self.proc.pid, signal.SIGCONT)

    def stop(self):
        self.resume()
        os.killpg(self.proc.pid, signal.SIGTERM)
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.proc.pid, signal.SIGKILL)

    def start(self, tokens, n_out):
        """Sends a request; what is to be sent is made before the clock starts."""
        body = json.dumps(self.body(tokens, n_out)).encode()
        request = (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n" % (self.path, len(body))) + body
        return Stream(self.connect(), request, b"data: {", b"\r\n0\r\n\r\n")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), 600)


class Prefixd(Server):
    name = "prefixd"

    def __init__(self):
        cmd = [os.path.join(BUILD, "prefixd"), "--model", args.model, "--listen", "127.0.0.1:0",
               "--threads", str(args.threads), "--context", "8192", "--pin-threads",
               "on" if args.pin else "off", "--activations", args.activations,
               *args.prefixd.split()]
        self.proc = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True,
                                     preexec_fn=os.setpgrp)
        self.port = int(self.proc.stdout.readline().rsplit(":", 1)[1])

    def wait(self):
        pass

    def start(self, tokens, n_out):
        return self.send({"op": "generate", "id": 1, "tokens": tokens, "max_tokens": n_out,
                          "ignore_eos": True})

    def send(self, request):
        raw = json.dumps(request).encode() + b"\n"
        return Stream(self.connect(), raw, b'"event":"token"', b'"event":"done"')

    def usage(self, stream):
        return json.loads(stream.raw.splitlines()[-1])["usage"]


class Llama(Server):
    path = b"/completion"

    def __init__(self, name, binary, port):
        self.name, self.port = name, port
        self.launch([binary, "-m", args.model, "--host", "127.0.0.1", "--port", str(port), "-c",
                     str(CTX), "-np", "1", "-t", str(args.threads), "-fa", "on"])

    def body(self, tokens, n_out):
        return {"prompt": tokens, "n_predict": n_out, "temperature": 0, "cache_prompt": True,
                "ignore_eos": True, "stream": True}


class Vllm(Server):
    name, path = "vLLM", b"/v1/completions"

    def __init__(self, port):
        self.port = port
        env = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="2", VLLM_NO_USAGE_STATS="1",
                   DO_NOT_TRACK="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(args.threads),
                   VLLM_CPU_OMP_THREADS_BIND="0-%d" % (args.threads - 1))
        self.launch([args.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model",
                     args.vllm_model, "--served-model-name", "m", "--host", "127.0.0.1", "--port",
                     str(port), "--dtype", "bfloat16", "--max-model-len", "8192",
                     "--max-num-seqs", "32"], env)

    def body(self, tokens, n_out):
        return {"model": "m", "prompt": tokens, "max_tokens": n_out, "temperature": 0,
                "ignore_eos": True, "stream": True}


# ---- cases over TCP ----

rnd = random.Random(1)


def some(n):
    return [rnd.randrange(1000, 40000) for _ in range(n)]


def ttft(server, tokens, computed=None):
    s = server.start(tokens, 1).finish()
    if computed is not None and isinstance(server, Prefixd):
        got = server.usage(s)["computed_tokens"]
        if got != computed:
            raise SystemExit("%d tokens were computed, not %d" % (got, computed))
    return (s.times[0] - s.start) * 1e3


def cold(n):
    def case(server):
        return ttft(server, some(n), n)
    return case


def behind(n):
    """64 new tokens behind a cached prefix."""
    prefix = some(n)

    def case(server):
        ttft(server, prefix)
        return min(ttft(server, prefix + some(64), 64) for _ in range(args.tries))
    return case


def repeat(n):
    prompt = some(n)

    def case(server):
        ttft(server, prompt)
        return min(ttft(server, prompt, 0) for _ in range(args.tries))
    return case


def one_token(n):
    """All cached but the logits: the last token is computed."""
    prompt = some(n + 1)

    def case(server):
        ttft(server, prompt)
        best = 1e9
        for _ in range(args.tries):
            prompt.pop()  # where a prompt ended its logits are kept
            best = min(best, ttft(server, prompt, 1))
        return best
    return case


def chat_repeat(server):
    """The same conversation of about 1,800 tokens again, as messages."""
    words = " ".join("word%d" % (i % 97) for i in range(600))
    ask = {"op": "generate", "id": 1, "max_tokens": 1, "messages": [
        {"role": "system", "content": words}, {"role": "user", "content": "Say it again."}]}
    best = 1e9
    for _ in range(args.tries + 1):
        s = server.send(ask).finish()
        best = min(best, (s.times[0] - s.start) * 1e3)
    return best


def decode(n_prefix, n):
    """Tokens a second in all of n streams, each with a token of its own behind one prefix."""
    prefix, first, last = some(n_prefix), 8, 8 + args.out

    def case(server):
        ttft(server, prefix)
        streams = [server.start(prefix + some(1), last + 8) for _ in range(n)]
        by_sock = {s.sock: s for s in streams}
        while not all(s.ended for s in streams):
            for sock in select.select([s.sock for s in streams if not s.ended], [], [])[0]:
                by_sock[sock].feed()
        begin = max(s.times[first] for s in streams)
        end = min(s.times[last] for s in streams)
        done = sum(sum(begin < t <= end for t in s.times) for s in streams)
        return done / (end - begin)
    return case


MS, RATE = "ms", "tokens/s"


def client_cases():
    """name, unit, the case, whether only prefixd has it, and what bounds it from below"""
    yield "cold 512", MS, cold(512), False, None
    yield "cold 2048", MS, cold(2048), False, None
    for n in PREFIXES[:1] if args.quick else PREFIXES:
        yield "64 new behind %d" % n, MS, behind(n), False, None
    yield "one token computed, 2048 cached", MS, one_token(2048), True, 2048
    if not args.quick:
        yield "one token computed, 8000 cached", MS, one_token(8000), True, 8000
    yield "exact repeat of 2048", MS, repeat(2048), False, None
    if not args.quick:
        yield "exact repeat of 1800, as messages", MS, chat_repeat, True, None
    yield "decode at 0", RATE, decode(16, 1), False, 0
    yield "decode at 2048", RATE, decode(2048, 1), False, 2048
    if not args.quick:
        yield "decode at 7000", RATE, decode(7000, 1), False, 7000
    yield "8 behind one 2048, in all", RATE, decode(2048, 8), False, None
    yield "16 behind one 2048, in all", RATE, decode(2048, 16), False, None


def run_client_cases():
    servers = [Prefixd()]
    if args.llama_server:
        servers.append(Llama("llama.cpp", args.llama_server, 18101))
    if args.ik_server:
        servers.append(Llama("ik_llama.cpp", args.ik_server, 18102))
    if args.vllm_python:
        servers.append(Vllm(18103))
    rows = []
    try:
        for s in servers:
            s.wait()
            ttft(s, some(8))
            s.pause()
        for name, unit, case, ours_only, depth in client_cases():
            best = {}
            for _ in range(args.rounds):
                for s in servers[:1] if ours_only else servers:
                    # One sequence at a time: batches are the business of their batched benchmark.
                    if isinstance(s, Llama) and "behind one" in name:
                        continue
                    s.resume()
                    got = case(s)
                    s.pause()
                    keep(best, s.name, got, unit)
            rows.append({"case": name, "unit": unit, "depth": depth, "best": best})
            note("%s: %s" % (name, best))
    finally:
        used = sum(seconds_of(s.proc.pid) for s in servers)
        for s in servers:
            s.stop()
    return rows, used


# ---- cases of the forward pass ----

FORWARD = {  # of bench_model: what it is called, unit, what the peers' programs call it
    "prefill_512": ("prefill of 512", RATE, (512, 0, 0)),
    "prefill_2048": ("prefill of 2048", RATE, (2048, 0, 0)),
    "rows_512_at_2048": ("512 rows at 2048", RATE, None),
    "rows_512_at_7488": ("512 rows at 7488", RATE, None),
    "decode_0": ("decode step at 0", RATE, (0, 32, 0)),
    "decode_2048": ("decode step at 2048", RATE, (0, 32, 2048)),
    "decode_8000": ("decode step at 8000", RATE, (0, 32, 8000)),
    "shared_1_at_2048": ("1 behind one 2048", RATE, 1),
    "shared_8_at_2048": ("8 behind one 2048, in all", RATE, 8),
    "shared_16_at_2048": ("16 behind one 2048, in all", RATE, 16),
}


def note(text):
    print(text, file=sys.stderr, flush=True)


def keep(best, name, got, unit):
    old = best.get(name)
    if got is not None:
        best[name] = got if old is None else min(old, got) if unit == MS else max(old, got)


def run(cmd, stderr=subprocess.DEVNULL):
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=stderr, text=True)
    if done.returncode != 0:
        raise SystemExit("%s ended with %d" % (cmd[0], done.returncode))
    return done.stdout


def bench_model(model):
    return json.loads(run([os.path.join(BUILD, "tests", "bench_model"), "--json", "--threads",
                           str(args.threads), *(["--quick"] if args.quick else []),
                           *(["--kernels", args.kernels] if args.kernels else []),
                           *(["--pin"] if args.pin else []), "--activations",
                           args.activations, model]))


def peer_bench(binary, model, is_ik):
    """(prompt, generated, depth) -> tokens/s, by llama-bench."""
    depths = [] if args.quick else [2048, 8000]
    cmd = [binary, "-m", model, "-t", str(args.threads), "-r", "2", "-o", "json", "-p", "512,2048",
           "-n", "32", "-fa", "1"]
    got = {}
    runs = [cmd + [w for d in depths for w in ("-gp", "%d,32" % d)]] if is_ik else \
        [cmd] + [cmd + ["-p", "0", "-d", str(d)] for d in depths]
    for c in runs:
        for r in json.loads(run(c)):
            depth = r.get("n_depth", 0)
            key = (r["n_prompt"], r["n_gen"], depth)
            if is_ik and r["n_prompt"] and r["n_gen"]:
                key = (0, r["n_gen"], r["n_prompt"])
            got[key] = max(r["samples_ts"])
    return got


def peer_batched(binary, model, is_ik):
    """Sequences behind one prompt of 2048 -> tokens/s in all, by llama-batched-bench."""
    out = run([binary, "-m", model, "-t", str(args.threads), "-c", "8192", "-b", "2048", "-ub",
               "512", "-npp", "2048", "-ntg", "32", "-npl", "8,16" if args.quick else "1,8,16",
               "-pps", "-fa", "on", *([] if is_ik else ["-kvu"])], subprocess.STDOUT)
    got = {}
    for line in out.splitlines():
        v = [x.strip() for x in line.split("|")[1:-1]]
        if len(v) >= 8 and v[2].isdigit():
            got[int(v[2])] = float(v[7])
    return got


def run_forward_cases(model, peers_only):
    best, ours = {}, None
    for _ in range(args.rounds):
        if not peers_only:
            got = bench_model(model)
            ours = better(ours, got)
        for name, bench, batched in (("llama.cpp", args.llama_bench, args.llama_batched),
                                     ("ik_llama.cpp", args.ik_bench, args.ik_batched)):
            got = peer_bench(bench, model, bench == args.ik_bench) if bench else {}
            got.update(peer_batched(batched, model, batched == args.ik_batched) if batched else {})
            for key, (_, unit, theirs) in FORWARD.items():
                keep(best.setdefault(key, {}), name, got.get(theirs), unit)
        note("%s: a round" % model)
    return {"model": os.path.basename(model), "ours": ours, "peers": best}


def better(old, new):
    """Of two runs of bench_model, the best of each case and of each limit."""
    if old is None:
        return new
    for key in ("read_gbs", "product_rate", "attention_rate"):
        new[key] = max(old[key], new[key])
    for name, c in old["cases"].items():
        if c["ms"] < new["cases"][name]["ms"]:
            new["cases"][name] = c
    return new


# ---- how it is told ----

def times(x):
    return "%.2fx" % x if x else ""


def beside(best, ours, unit):
    """The peers' figures, and how many times better than the best of them ours is."""
    theirs = {k: v for k, v in best.items() if k != "prefixd"}
    text = ", ".join("%s %.*f" % (k, 1 if v < 100 else 0, v) for k, v in sorted(theirs.items()))
    if not theirs or ours is None:
        return text, ""
    return text, times(min(theirs.values()) / ours if unit == MS else ours / max(theirs.values()))


def table(head, rows):
    widths = [max(len(r[i]) for r in [head] + rows) for i in range(len(head))]
    for r in [head, ["-" * w for w in widths]] + rows:
        print("| " + " | ".join(c.ljust(w) for c, w in zip(r, widths)) + " |")
    print()


def tell_forward(result):
    ours, rows = result["ours"], []
    print("Forward pass, %s, %d threads" % (result["model"], args.threads))
    if ours:
        print("%s, activations %s; read %.1f GB/s; products %s %.0f Gop/s; "
              "attention %s %.0f Gop/s" % (ours["kernels"], ours["activations"], ours["read_gbs"],
                                              ours["product_peak"], ours["product_rate"],
                                              ours["attention_peak"], ours["attention_rate"]))
    for key, (name, unit, _) in FORWARD.items():
        c = ours["cases"].get(key) if ours else None
        rate = c["tokens"] / c["ms"] * 1e3 if c else None
        text, ratio = beside(result["peers"].get(key, {}), rate, unit)
        share = ""
        if c and key.startswith(("decode", "shared")):
            share = "%.0f %% of reading" % (100 * c["floor_ms"] / c["ms"])
        elif c:
            share = "products %.0f %%, attention %.0f %%" % (100 * c["product_share"],
                                                              100 * c["attention_share"])
        if c or text:
            rows.append([name, "%.0f" % rate if rate else "", share, text, ratio])
    table(["tokens/s", "prefixd", "of the limit", "peers", "of the best"], rows)


def tell_clients(rows, limits):
    print("Clients over TCP, %s, %d threads" % (os.path.basename(args.model), args.threads))
    out = []
    for r in rows:
        ours = r["best"]["prefixd"]
        text, ratio = beside(r["best"], ours, r["unit"])
        share = ""
        if r["depth"] is not None:
            floor = (limits["weight_bytes"] + r["depth"] * limits["kv_bytes"]) / 1e6
            floor /= limits["read_gbs"]
            share = "%.2fx the floor" % ((ours if r["unit"] == MS else 1e3 / ours) / floor)
        out.append(["%s, %s" % (r["case"], r["unit"]), "%.*f" % (2 if ours < 100 else 0, ours),
                    share, text, ratio])
    table(["case", "prefixd", "of the limit", "peers", "of the best"], out)


def options():
    env = os.environ.get
    p = argparse.ArgumentParser(prog="make bench-cpu", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=env("PREFIXD_MODEL"))
    p.add_argument("--more-models", nargs="*", default=[], help="for the forward pass alone")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--kernels", help="of bench_model")
    p.add_argument("--pin", action="store_true", help="prefixd's threads")
    p.add_argument("--activations", default="exact", choices=("exact", "fast"))
    p.add_argument("--prefixd", default="", help="more options of the server")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--quick", action="store_true", help="a minute: short prompts, one round")
    p.add_argument("--only", choices=("forward", "clients"))
    p.add_argument("--json", action="store_true")
    p.add_argument("--logs", default="/tmp", help="a folder for what the peers' servers say")
    a = p.parse_args()
    for name in ("LLAMA_BENCH", "LLAMA_BATCHED", "LLAMA_SERVER", "IK_BENCH", "IK_BATCHED",
                 "IK_SERVER", "VLLM_PYTHON", "VLLM_MODEL"):
        setattr(a, name.lower(), env(name))
    a.peer_models = env("PEER_MODELS", "").split()
    a.rounds = 1 if a.quick else a.rounds
    a.tries, a.out = (5, 24) if a.quick else (12, 48)
    if not a.model:
        p.error("--model, or PREFIXD_MODEL, names no model")
    return a


def main():
    # Servers are stopped also when this program is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    before, used = cpu_seconds(), 0
    forward, clients = [], []
    if args.only != "clients":
        forward = [run_forward_cases(m, False) for m in [args.model, *args.more_models]]
        forward += [run_forward_cases(m, True) for m in args.peer_models]
    limits = forward[0]["ours"] if forward else bench_model(args.model)
    own = os.times()
    if args.only != "forward":
        clients, used = run_client_cases()
    used += sum(own[:4])
    after = cpu_seconds()
    other = max(0, after[1] - before[1] - used) / (after[0] - before[0])
    if args.json:
        print(json.dumps({"threads": args.threads, "other_load": other, "forward": forward,
                          "clients": clients}, indent=1))
        return
    for r in forward:
        tell_forward(r)
    if clients:
        tell_clients(clients, limits)
    print("Other programs took %.0f %% of the machine." % (100 * other))


args = options()
main()
