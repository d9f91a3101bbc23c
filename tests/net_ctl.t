#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# prefixctl: each command for people and with --json, where text comes from, exit status.
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
from net_harness import CTL, Server, finish, ok, same, scratch  # noqa: E402

tmp = scratch()
server = Server(listen="127.0.0.1:0,unix:" + os.path.join(tmp.name, "s"), lines=2)


def ctl(*args, stdin="", address=None, env=None):
    p = subprocess.run([CTL, "-s", address or server.address, *args], input=stdin.encode(),
                       capture_output=True, timeout=20, env=env)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def write(name, text):
    with open(os.path.join(tmp.name, name), "w") as f:
        f.write(text)
    return os.path.join(tmp.name, name)


same(ctl("ping"), (0, "pong\n", ""), "ping")
same(ctl("ping", address="unix:" + os.path.join(tmp.name, "s"))[0], 0, "ping over a Unix socket")
same(json.loads(ctl("--json", "ping")[1]), {"id": 1, "event": "pong"}, "ping --json")
p = subprocess.run([CTL, "ping"], capture_output=True, timeout=20,
                   env=dict(os.environ, PREFIXD_SERVER=server.address))
same(p.returncode, 0, "the server's address from the environment")
rc, out, err = ctl("gen", "hello", "you")
same((rc, out), (0, "hello you\n"), "gen: text to stdout")
ok("prompt 9 (cached 0, computed 9), completion 10" in err and "never_seen" in err,
   "... usage to stderr", err)
same(ctl("gen", stdin="from stdin\n")[1], "from stdin\n", "gen from standard input")
same(ctl("gen", "-f", write("p", "from a file"))[1], "from a file\n", "gen from a file")
same(ctl("gen", "-f", "-", stdin="x")[1], "x\n", "gen -f -")
same(ctl("gen", "-n", "3", "abcdef")[1], "abc\n", "gen -n")
same(ctl("gen", "--chat", "hi")[1], "<user>hi<assistant>\n", "gen --chat")
same(ctl("gen", "--system", "be", "hi")[1], "<system>be<user>hi<assistant>\n", "gen --system")
m = write("m.json", '[{"role":"user","content":"from json"}]')
same(ctl("gen", "-m", m)[1], "<user>from json<assistant>\n", "gen --messages")
same(ctl("gen", "-m", "-", stdin='[{"role":"u","content":"c"}]')[1], "<u>c<assistant>\n",
     "gen --messages -")
# What is kept. The server's tables are the real ones, its tokens are bytes.
for args, want in (
        (("session", "open", "al", "--system", "be"), "al: messages 1, tokens seen 0, turns 0, ends after 3600.0 s of silence\n"),
        (("ask", "al", "hi", "-n", "4"), "<sys\n"),
        (("session", "append", "al", "--chat", "more"), "al: messages 4, tokens seen 0, turns 1, ends after 3600.0 s of silence\n"),
        (("sessions",), "       4          0        1 "),
        (("sessions", "--all"), " al \n"),
        (("ask", "al", "-n", "1", "--last-turn"), "<\n"),
        (("session", "open", "run", "abc", "--ttl", "61.5"), "run: a run of tokens, tokens seen 3, turns 0, ends after 61.5 s of silence\n"),
        (("gen", "--session", "run", "de", "-n", "2"), "ab\n"),
        (("session", "close", "run"), "closed: 7 tokens of it were cached\n"),
        (("end", "some", "words"), "ended: 10 tokens of it were cached\n"),
        (("prefix", "put", "p", "once"), "p: text, 4 bytes, digest 589b38dad1f027d9\n"),
        (("gen", "--prefix", "p", " more", "-n", "6"), "once m\n"),
        (("prefix", "put", "p", "twice", "--pin", "--ttl", "900"), "replaced, prompt 5 (cached 0, computed 5)\n"),
        (("prefix", "get", "p"), "5 tokens (cached: device 0, host 0, disk 0), lease 1\n"),
        (("prefix", "list"), "p: text, 5 bytes"),
        (("pin", "a", "prompt", "--ttl", "200"), "lease 2: 8 tokens in 1 blocks for 200.0 s, prompt 8 (cached 0, computed 8)\n"),
        (("pins",), "blocks leased: 2, at most 500\n"),
        (("unpin", "2"), "ended leases: 1\n"),
        (("unpin", "--all"), "ended leases: 1\n"),
        (("prefix", "delete", "p"), "deleted\n")):
    rc, out, err = ctl(*args)
    ok(rc == 0 and want in out, " ".join(args), (rc, out, err))
for args, want in ((("ask", "al", "hi"), 4), (("prefix", "get", "p"), 4), (("unpin", "2"), 4), (("session", "close"), 2),
                   (("session", "close", "a", "b"), 2), (("unpin",), 2), (("unpin", "x"), 2), (("unpin", "1", "--all"), 2),
                   (("prefix", "put"), 2), (("end", "--session", "a", "b"), 2)):
    same(ctl(*args)[0], want, "exit status of " + " ".join(args))
lines = [json.loads(x) for x in ctl("--json", "gen", "ab", "--logprobs", "1", "--digest")[1].split("\n")
         if x]
same([x["event"] for x in lines], ["token", "token", "token", "done"], "gen --json: the lines")
ok("digest" in lines[0] and len(lines[0]["top"]) == 1, "... with what was asked for", lines[0])
rc, out, err = ctl("gen", "-t", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1", "--seed",
                   "5", "--repeat-penalty", "1.1", "--stop", "x", "--stop", "y", "--ignore-eos",
                   "--no-store", "--deadline-ms", "60000", "--namespace", "n", "--progress", "q")
same((rc, out), (0, "q\n"), "gen with every option")
ok("prefill 1 of 1" in err, "... progress", err)
same(ctl("warm", "abc")[:2], (0, ""), "warm")
rc, out, err = ctl("score", "abc")
same((rc, len(out.split()), "sum" in err), (0, 2, True), "score")
same(len(ctl("score", "--from", "2", "abc")[1].split()), 1, "score --from")
same(ctl("render", "hi"), (0, "<user>hi<assistant>", ""), "render")
same(ctl("tokenize", "ab")[1], "97 98\n", "tokenize")
same(ctl("tokenize", "--special", "ab")[1], "97 98\n", "tokenize --special")
same(ctl("detokenize", "97", "98")[1], "ab", "detokenize")
same(ctl("detokenize", stdin="[97, 98,\n99]")[1], "abc", "detokenize a list")
rc, out, err = ctl("stats")
ok(rc == 0 and "requests.running " in out and "connections.open " in out, "stats", out)
ok("requests" in json.loads(ctl("stats", "--json")[1]), "stats --json")
ok("limits.line_bytes " in ctl("hello")[1], "hello")
same(ctl("check"), (0, "ok\n", ""), "check")
ok(ctl("flush")[1].startswith("flushed blocks: device "), "flush")
same(ctl("flush", "--tier", "host", "--tier", "disk", "--namespace", "n")[0], 0, "flush a part")
same(ctl("evict", "--tier", "device", "--bytes", "1G"),
     (0, "evicted from device: blocks 0, 0 bytes; in use 0\n", ""), "evict")
same(ctl("evict", "--tier", "host", "--tier", "disk")[0], 2, "evict takes one tier")
same(ctl("save"), (0, "saved: records in the store 1, 724 KiB\n", ""), "save")
ok("records " in ctl("store", "info")[1], "store info")
same(ctl("store", "verify"), (0, "verified records 1, 724 KiB; damaged 0\n", ""), "store verify")
same(ctl("store", "clear"), (0, "cleared records 1\n", ""), "store clear")
same(ctl("store", "compact")[0], 0, "store compact")
same(ctl("store", "frob")[0], 2, "store with another word")

rc, out, err = ctl("gen", "@error=too_long")
same((rc, out), (4, ""), "an error: status 4")
ok("too_long" in err, "... and says which", err)
same(ctl("--json", "gen", "@error=too_long")[0], 4, "... also with --json")
same(ctl("gen", "-n", "-5", "x")[0], 4, "the server judges values")
same(ctl("ping", address="127.0.0.1:1")[0], 3, "no server: status 3")
same(ctl("ping", address="nonsense")[0], 3, "no address")
for args in ((), ("frob",), ("ping", "x"), ("gen", "-n", "x", "y"), ("gen", "--frob"), ("cancel",),
             ("cancel", "x"), ("detokenize", "x"), ("gen", "-f", "/nowhere"),
             ("gen", "-m", "/nowhere"), ("gen", "-m", write("bad", "[1,"))):
    rc, out, err = ctl(*args)
    ok(rc == 2 and out == "" and err.startswith(("prefixctl:", CTL)), "wrong usage: %s" % " ".join(args),
       (rc, out, err))
same(subprocess.run([CTL, "-s", server.address, "gen", b"\xff"], capture_output=True).returncode, 2,
     "text that is not UTF-8")
same(ctl("--timeout", "0.5", "gen", "@hang")[0], 3, "--timeout")

p = subprocess.Popen([CTL, "-s", server.address, "gen", "x@n=100000@delay=5"],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
first = os.read(p.stdout.fileno(), 10)
p.send_signal(signal.SIGINT)
out, err = p.communicate(timeout=20)
same((first[:1], p.returncode), (b"x", 130), "Ctrl-C cancels")
ok(b"cancelled: " in err, "... and the usage is told", err)
server.settle(lambda s: s["requests"]["running"] == 0, "... and nothing runs")
c = server.connect()
number = c.ask(op="warm", id=1, prompt="z")["request"] + 1
c.send(op="generate", id=2, prompt="@hang")
server.settle(lambda s: s["requests"]["running"] == 1, "one runs")
same(ctl("cancel", str(number)), (0, "cancelled\n", ""), "cancel by number")
same(c.recv()["finish"], "cancelled", "... ends that one")
same(ctl("cancel", str(number))[0], 4, "... once")
p = subprocess.Popen([CTL, "-s", server.address, "gen", "x@hang"], stderr=subprocess.PIPE)
server.settle(lambda s: s["requests"]["running"] == 1, "one runs")
server.proc.kill()
same((p.wait(20), b"closed the connection" in p.stderr.read()), (3, True), "a server that dies")
p.stderr.close()
server.wait()

server = Server()
same(ctl("drain"), (0, "draining\n", ""), "drain")
same(server.wait(), 0, "... drains")
for word in ("ping", "gen", "stats", "check", "flush", "--json", "Exit status"):
    ok(word in subprocess.run([CTL, "--help"], capture_output=True, text=True).stdout,
       "--help tells of " + word)
finish()
