#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# The bound of a drain, which takes its 30 seconds: what never ends is cancelled before it, so
# that every request has its last line.
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import Server, finish, ok, same  # noqa: E402

net_harness.WAIT = 60

s = Server()
conns = [s.connect() for _ in range(3)]
for c in conns:
    for i in range(3):
        c.send(op="generate", id=i, prompt="@hang")
s.settle(lambda st: st["requests"]["running"] == 9, "nine requests hang")
start = time.time()
s.proc.send_signal(signal.SIGTERM)
for c in conns:
    got = sorted((r["id"], r["event"], r.get("finish")) for r in (c.recv() for _ in range(3)))
    same(got, [(i, "done", "cancelled") for i in range(3)], "each ends in a last line")
    same(c.recv(), None, "... and then the end")
same(s.wait(), 0, "status 0")
ok(28 <= time.time() - start <= 31, "... near the bound", time.time() - start)
finish()
