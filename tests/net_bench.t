#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# prefix-bench against prefixd with a real engine on a tiny model: what it sends, counts and tells.
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, Server, finish, ok, same, scratch  # noqa: E402

tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), tiny], check=True)
net_harness.FAKE = os.path.join(BUILD, "prefixd")
server = Server("--model", tiny, "--threads", "2")


def bench(*args, address=None):
    cmd = [os.path.join(BUILD, "prefix-bench"), "-s", address or server.address, *args]
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, done.stderr


load = ("-n", "6", "-c", "3", "--shared", "100", "--own", "20", "--reply", "8")
before = server.stats()
rc, out, err = bench(*load, "--seed", "7", "--profile", "--json")
same((rc, err), (0, ""), "a run ends well")
got = json.loads(out)
after = server.stats()
same((got["requests"], got["at_once"], got["prompt_tokens"]), (6, 3, 720), "it asked as it was told")
ok(500 <= got["cached_tokens"] < 720, "five of six found the shared part", got["cached_tokens"])
same(after["tokens"]["generated"] - before["tokens"]["generated"], 48, "and got its replies")
for name in ("ttft_ms", "between_tokens_ms"):
    p = got[name]
    ok(0 < p["p50"] <= p["p90"] <= p["p99"] <= p["max"], name + " has percentiles in order", p)
ok(got["tokens_per_s"] > 0 and got["seconds"] > 0, "and tokens a second")
for kind in ("decode", "prefill"):
    same(got["profile"][kind]["steps"],
         after["profile"][kind]["steps"] - before["profile"][kind]["steps"],
         "--profile tells of the steps in between, " + kind)
ok(got["profile"]["decode"]["phases"]["product"]["ms"] > 0, "and where their time went")
ok("profile" not in json.loads(bench(*load, "--json")[1]), "only when it is asked for")
again = json.loads(bench(*load, "--seed", "7", "--json")[1])
same(again["cached_tokens"], 720, "the same seed asks the same again")
rc, out, err = bench("--own", "5", "--profile")
words = ("32 requests, 4 at once", "first token", "between tokens", "decode: ", "product", " %")
ok(rc == 0 and all(w in out for w in words), "as text", out)

same(bench("-n", "0")[0], 2, "no requests is wrong usage")
same(bench("--frob")[0], 2, "so is an unknown option")
ok("whole number" in bench("--reply", "x")[2], "and it says why")
rc, out, err = bench(address="127.0.0.1:1")
ok(rc == 3 and "127.0.0.1:1" in err, "no server", err)
rc, out, err = bench("--shared", "100000")
ok(rc == 4 and "too_long" in err, "what the server refuses is told", err)
same(server.stop(), 0, "the server ends well")
finish()
