#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# The examples of doc/protocol.md are run: replies must have the same fields, of the same
# types, with the same values but for those that differ from run to run or model to model.
import json
import os
import sys

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
from net_harness import SRC, Server, finish, ok, same  # noqa: E402

VARIES = {"timing", "digest", "digests", "logprob", "logprobs", "top", "message", "limits", "context",
          "threads", "blocks", "block_tokens", "kv_bytes_per_token", "weight_bytes", "version",
          "device", "request", "age_s", "idle_s", "left_s", "expires_ms"}


def shape(v, exact=True):
    """What must agree: everything, or below a field that varies only the types."""
    if isinstance(v, dict):
        varies = VARIES | ({"bytes"} if "idle_s" in v else set())  # of a session: what its structs take
        return {k: shape(x, exact and k not in varies) for k, x in v.items()}
    if isinstance(v, list):
        return [shape(x, exact) for x in v]
    return v if exact else "null" if v is None else "number" if isinstance(v, (int, float)) \
        and not isinstance(v, bool) else type(v).__name__


steps, inside, n = [], False, 0
with open(os.path.join(SRC, "doc", "protocol.md")) as f:
    for n, line in enumerate(f, 1):
        line = line.rstrip("\n")
        if line.startswith("```"):
            inside = not inside
        elif inside:
            steps.append((n, line[:3], line[3:]))
ok(len(steps) > 40 and not inside, "doc/protocol.md has examples", len(steps))
server = Server()
c = server.connect()
for n, way, text in steps:
    if way == "-> ":
        c.raw(text.encode() + b"\n")
    elif way == "<- ":
        got, want = c.recv(), json.loads(text)
        same(shape(got), shape(want), "line %d: %s" % (n, want["event"]))
        same(list(got or {}), list(want), "... in that order")
    else:
        ok(False, "line %d is neither sent nor received" % n)
same(c.recv(), None, "after the drain the connection ends")
same(server.wait(), 0, "... and the server")
# Every op and every option that the page names exists, and the other way round.
page = open(os.path.join(SRC, "doc", "protocol.md")).read()
ops = [w for w in open(os.path.join(SRC, "net", "proto.c")).read().split("op_names[] = {")[1]
       .split("};")[0].split('"')[1::2] if w]
for op in ops:
    ok("`%s`" % op in page or '"op":"%s"' % op in page, "op %s is told of" % op)
finish()
