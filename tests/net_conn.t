#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# Connections that misbehave: hang-ups, half-closed sockets, slow readers, floods, idlers,
# too many of them; and that nobody else suffers.
import json
import os
import random
import resource
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
from net_harness import Conn, Server, finish, ok, same, scratch  # noqa: E402

server = Server("--max-unread", "4M", "--max-in-flight", "64")
tmp = scratch()
unix_server = Server(listen="unix:" + os.path.join(tmp.name, "s"))


def running(n):
    return lambda s: s["requests"]["running"] == n


# ---- hanging up ----

for srv, kind in ((server, "tcp"), (unix_server, "unix")):
    before = srv.stats()["requests"]["cancelled"]
    for how in ("streaming", "prefill", "reset", "queue of 20"):
        c = srv.connect()
        prompt = "@n=1000000@delay=1" if how == "streaming" else "@prefill=600000"
        n = 20 if how == "queue of 20" else 1
        for i in range(n):
            c.send(op="generate", id=i, prompt=prompt)
        if how == "streaming":
            c.recv()
        else:
            srv.settle(running(n), "%s, %s: running" % (kind, how))
        if how == "reset":
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        before += n
        srv.settle(lambda s: s["requests"]["cancelled"] == before and running(0)(s),
                   "%s, %s: hanging up cancels, ten minutes before its end" % (kind, how))
    # Shut for sending first, and gone only later.
    c = srv.connect()
    c.send(op="generate", id=1, prompt="@prefill=600000")
    c.half_close()
    srv.settle(running(1), "%s: half-closed requests go on" % kind)
    time.sleep(0.1)
    same(running(1)(srv.stats()), True, "... for a while")
    if kind == "unix":
        c.close()
        srv.settle(running(0), "... and end with a late hang-up")
    else:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        srv.settle(running(0), "... and end with a late reset")

# ---- half-closed ----

for srv in (server, unix_server):
    c = srv.connect()
    c.send(op="generate", id=1, prompt="abc@prefill=100@delay=10", max_tokens=3)
    c.send(op="ping", id=2)
    c.half_close()
    got = []
    while (r := c.recv()) is not None:
        got.append((r["id"], r["event"]))
    same(got, [(2, "pong")] + [(1, "token")] * 3 + [(1, "done")],
         "a half-closed client gets its replies, then the end")
    c.close()
    c = srv.connect()
    c.raw(b'{"op":"ping","id":1}\n{"op":"ping","id":2}')
    c.half_close()
    same([c.recv()["id"], c.recv()["id"], c.recv()], [1, 2, None], "the last line needs no newline")
    c = srv.connect()
    c.raw(b'{"op":"ping","id":1}\n{"op":"pi')
    c.half_close()
    same([c.recv()["event"], c.recv()["code"], c.recv()], ["pong", "bad_request", None],
         "half a line is an error")
    c = srv.connect()
    c.half_close()
    same(c.recv(), None, "nothing sent, nothing said")

# ---- in flight ----

c = server.connect()
for i in range(65):
    c.send(op="generate", id=i, prompt="@hang")
r = c.recv()
same((r["id"], r["code"], r["retry_after_ms"] > 0), (64, "overloaded", True), "one request too many")
same(c.ask(op="ping", id="p")["event"], "pong", "what the front door answers is not counted")
c.send(op="cancel", id="c", target=5)
same(sorted((c.recv()["id"], c.recv()["id"]), key=str), [5, "c"], "cancel makes room")
same(c.ask(op="generate", id=64, prompt="a", stream=False)["event"], "done", "... for another")
c.close()
server.settle(running(0), "all others end with the connection")

# ---- slow readers ----

calm = server.connect()


def times_of(n, **fields):
    """How long each of n requests takes, the shortest first."""
    times = []
    for _ in range(n):
        t = time.time()
        calm.ask(id=2, **fields)
        times.append(time.time() - t)
    return sorted(times)


def bound(seconds):
    """Where the machine has so much other work that a ping by itself takes long, as much longer."""
    return max(seconds, 10 * times_of(100, op="ping")[50])


bound_s = bound(1)
slow = Conn(server.address, rcvbuf=4096)
slow.send(op="generate", id=1, prompt="@n=1000000@pad=100")
worst = times_of(50, op="generate", prompt="abc")[-1]
ok(worst < bound_s, "others are served beside a reader that does not read", worst)
server.settle(lambda s: s["connections"]["slow"] == 1 and running(0)(s),
              "it is disconnected once too much lies unread")
while slow.recv() is not None:
    pass
slow.close()
slow = Conn(server.address, rcvbuf=4096)
slow.send(op="detokenize", id=1, tokens=[97] * 1000000)
same(len(slow.recv()["text"]), 1000000, "one reply may be of any size")
slow.close()
slow = server.connect()
slow.raw(b'{"op":"hello"}\n' * 20000)  # 10 MB of replies, far more than may lie unread
n = 0
while n < 20000:
    r = slow.recv()
    if r is None:
        break
    n += r["event"] == "hello"
same(n, 20000, "simple operations wait for the reader instead")
slow.close()

# ---- floods ----

bound_s = bound(0.1)
flood = server.connect()
flood.sock.setblocking(False)
ping = b'{"op":"ping","id":1}\n' * 3000
left = b""
times = []
end = time.time() + 1
while time.time() < end:
    for _ in range(20):
        try:
            left = left or ping
            left = left[flood.sock.send(left):]
        except BlockingIOError:
            break
    try:
        flood.sock.recv(1 << 20)
    except BlockingIOError:
        pass
    times += times_of(1, op="ping")
ok(sorted(times)[len(times) // 2] < bound_s, "a flood of pings leaves the others' pings alone",
   (len(times), sorted(times)[len(times) // 2], max(times)))
flood.close()
bound_s = bound(0.05)
big = server.connect()
line = json.dumps({"op": "tokenize", "id": 1, "messages": [
    {"role": "user", "content": "x\n" * 8} for _ in range(40000)]}).encode() + b"\n"
big.raw(line)
times = times_of(100, op="ping")
ok(times[50] < bound_s, "a line of %d KB is parsed beside the others' pings"
   % (len(line) >> 10), (times[50], times[-1], bound_s))
ok(big.recv()["count"] > 0, "... and answered")
big.raw(line + b'{"op":"ping","id":2}\n')
same([big.recv()["id"], big.recv()["id"]], [2, 1], "... in its order, then as it gets ready")
big.raw(line)
big.close()
same(calm.ask(op="ping", id=1)["event"], "pong", "hanging up while a line is parsed")

# ---- coming and going ----

seed = int.from_bytes(os.urandom(4), "little")
print("# seed %d" % seed)
rnd = random.Random(seed)
server.settle(lambda s: s["connections"]["open"] == 2, "two connections are left")
server.connections_are(1, calm)
fds = server.fds()
for i in range(10000):
    s = socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1])))
    what = rnd.randrange(8)
    if what == 1:
        s.send(b'{"op":"ping","id":1}\n')
    elif what == 2:
        s.send(b'{"op":"generate","id":1,"prompt":"@prefill=5@n=50"}\n' * 2)
    elif what == 3:
        s.send(b'{"op":"gen')
    elif what == 4:
        s.send(b'{"op":"warm","id":1,"prompt_bytes":50}\nabc')
    elif what == 5:
        s.send(b'{"op":"generate","id":1,"prompt":"@hang"}\n')
        s.shutdown(socket.SHUT_WR)
    s.close()
server.settle(lambda s: s["connections"]["open"] <= 2 and running(0)(s),
              "10,000 connects and hang-ups leave no connection")
server.fds_are(fds, "... and no descriptor")
same(calm.ask(op="check", id=1)["ok"], True, "... and a server that answers")

# Random lines of random requests, random hang-ups: nothing may be left over.
conns = []
for i in range(1500):
    if len(conns) < 12 and rnd.random() < 0.4:
        conns.append(server.connect())
    if not conns:
        continue
    c = rnd.choice(conns)
    what = rnd.randrange(10)
    if what < 5:
        c.send(op="generate", id=rnd.randrange(20), prompt="x@n=%d@delay=%d@prefill=%d"
               % (rnd.randrange(30), rnd.randrange(3), rnd.randrange(5)))
    elif what < 7:
        c.send(op="cancel", id=100 + i, target=rnd.randrange(20))
    elif what == 7:
        c.raw(b'{"op":"score","id":50,"prompt_bytes":9}\n123456789')
    elif what == 8:
        c.half_close()
        conns.remove(c)
    else:
        c.close()
        conns.remove(c)
for c in conns:
    c.close()
del c, conns
server.settle(running(0), "random hang-ups leave nothing running")
calm.close()
same(server.stop(), 0, "ends well")
same(unix_server.stop(), 0, "ends well, too")
ok(not os.path.exists(os.path.join(tmp.name, "s")), "the socket's file is gone")

# ---- idle ----

# Far longer than it takes to send a request, also when the machine has other work.
server = Server("--idle-timeout", "2")
busy = server.connect()
busy.send(op="generate", id=1, prompt="@prefill=6000", max_tokens=1)
t = time.time()
idle, half = server.connect(), server.connect()
half.raw(b'{"op":"pi')
same((idle.recv(), half.recv()), (None, None), "idle connections are closed")
ok(1.9 < time.time() - t, "... after the time-out, not before", time.time() - t)
same([r["event"] for r in busy.until_last()], ["token", "done"], "one that waits for a reply is not")
server.settle(lambda s: s["connections"]["idle"] == 2, "... and it is counted")
same(server.stop(), 0, "ends well")

# ---- too many ----

server = Server("--max-connections", "3")
held = [server.connect() for _ in range(3)]
same([c.ask(op="ping", id=1)["event"] for c in held], ["pong"] * 3, "as many as there may be")
r = server.connect().recv()
same((r["id"], r["code"]), (None, "overloaded"), "one more is told so")
ok(r["retry_after_ms"] > 0, "... and when to come back", r)
same(held[0].ask(op="ping", id=1)["event"], "pong", "the others stay")
held.pop().close()
server.connections_are(2, held[0])
same(server.connect().ask(op="ping", id=1)["event"], "pong", "a place is free again")
same(server.stop(), 0, "ends well")

limit = (96, 96)
server = Server("--max-connections", "100", preexec_fn=lambda: resource.setrlimit(
    resource.RLIMIT_NOFILE, limit))
fds = server.fds()
held, refused = [], 0
for i in range(40):
    c = server.connect()
    c.send(op="ping", id=1)
    r = c.recv()
    refused += r is not None and r.get("code") == "overloaded"
    held.append(c)
ok(refused > 0, "few descriptors mean fewer connections", refused)
for c in held:
    c.close()
server.settle(lambda s: s["connections"]["open"] == 1, "all gone")
server.fds_are(fds, "... with their descriptors")
resource.prlimit(server.proc.pid, resource.RLIMIT_NOFILE, (server.fds() + 3, 96))
held = [server.connect() for _ in range(3)]
same([c.ask(op="ping", id=1)["event"] for c in held], ["pong"] * 3, "the last descriptors")
late = server.connect()
late.send(op="ping", id=1)
ok(late.quiet(0.2), "out of descriptors: a new connection waits")
same(held[0].ask(op="ping", id=1)["event"], "pong", "... the others are served")
held.pop().close()
same(late.recv()["event"], "pong", "... and its turn comes")
same(server.stop(), 0, "ends well")
finish()
