#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# prefixd as a program: options, config file, what it says, signals, drain, exit status.
import os
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
from net_harness import BUILD, CTL, FAKE, WAIT, Conn, Server, finish, ok, same, scratch  # noqa: E402

tmp = scratch()


def path(name):
    return os.path.join(tmp.name, name)


def run(*args, model=True):
    cmd = [FAKE] + (["--model", __file__] if model else []) + list(args)
    p = subprocess.run(cmd, capture_output=True, text=True, timeout=20)
    return p.returncode, p.stdout, p.stderr


def refused(name, word, *args, **kw):
    rc, out, err = run(*args, **kw)
    ok(1 <= rc <= 125 and out == "" and word in err and err.count("\n") <= 3, name, (rc, out, err))


# ---- options ----

rc, out, err = run("--help", model=False)
same((rc, err), (0, ""), "--help")
for name in ("model listen http backend kernels activations threads pin-threads device-memory host-memory store store-size "
             "save store-replace chunk-tokens step-ms max-requests context chat-template template-time keys config "
             "log-level").split():
    ok("--%s" % name in out, "--help tells of --" + name)
ok(run("--version", model=False)[1].startswith("prefixd "), "--version")
refused("no model", "--model", model=False)
refused("a model that is not there", "/nowhere/m.gguf", "--model", "/nowhere/m.gguf",
        "--listen", "127.0.0.1:0", model=False)
refused("an unknown option", "--frob", "--frob")
refused("a stray word", "stray", "stray")
for arg, good, bad in (
        ("--backend", ["auto", "cpu"], ["gpu", ""]),
        ("--kernels", ["auto", "amx", "avx512", "avx2", "reference"], ["sse"]),
        ("--activations", ["exact", "fast"], ["int8", ""]),
        ("--threads", ["0", "4"], ["-1", "x", "1.5", "99999", "4 "]),
        ("--pin-threads", ["on", "off"], ["", "yes", "2"]),
        ("--device-memory", ["1", "64M", "1g", "2T"], ["0", "-1", "1X", "1MB", "", "99999999999G"]),
        ("--http", ["off"], ["127.0.0.1:8080", "on"]),
        ("--host-memory", ["off", "1G", "0"], ["on", "-1", "1.5G"]),
        ("--store", ["off", "/tmp/x"], [""]),
        ("--store-size", ["0", "16G"], ["off", "x"]),
        ("--eviction", ["default", "lru"], ["fifo", ""]),
        ("--save", ["off", "reused", "all"], ["x", "on"]),
        ("--keys", ["off"], ["/etc/passwd"]),
        ("--chunk-tokens", ["1", "512"], ["-1"]),
        ("--step-ms", ["10"], ["x"]),
        ("--max-requests", ["1"], ["x"]),
        ("--queue", ["1"], ["x"]),
        ("--context", ["100"], ["x"]),
        ("--block-tokens", ["1", "16"], ["x", "512"]),
        ("--logits-memory", ["0", "1M"], ["x"]),
        ("--text-cache", ["off", "0", "1M"], ["x", "-1"]),
        ("--max-connections", ["1"], ["0"]),
        ("--max-in-flight", ["1"], ["0"]),
        ("--max-line", ["1024", "1M"], ["10", "2G"]),
        ("--max-unread", ["64K"], ["1"]),
        ("--idle-timeout", ["0", "0.5", "60"], ["-1", "x", "1m", "0x10", " 5", "+3"]),
        ("--template-time", ["2025-03-09T14:05:06"], ["2025-03-09", "2025-02-30T00:00:00", "now",
                                                     "2025-03-09T14:05:06Z"]),
        ("--log-level", ["error", "debug"], ["loud"]),
        ("--chat-template", ["x"], [""])):
    for v in good:
        same(run(arg, v, "--check-config")[:2], (0, "ok\n"), "%s %s" % (arg, v))
    for v in bad:
        refused("%s %s is refused" % (arg, v), arg, arg, v, "--check-config")
refused("a size has an upper bound, and says so", "a size from 1024 to 1073741824", "--max-line", "2G")
same(run("--threads", "x", "--threads", "2", "--check-config")[0], 2, "each value is looked at")
s = Server("--threads", "5", "--threads", "3")
same(s.connect().ask(op="hello", id=1)["threads"], 3, "of a repeated option the last one wins")
s.stop()

# ---- config file ----

n_files = 0


def config(text):
    global n_files
    n_files += 1
    with open(path("c%d.conf" % n_files), "w") as f:
        f.write(text)
    return path("c%d.conf" % n_files)


f = config("# a comment\nthreads = 7\nmax-requests = 9\nmax_connections = 11\n"
           "device_memory = 64M\nlog-level = \"error\"\nthreads = 8\n")
s = Server("--config", f, "--max-requests", "10")
h = s.connect().ask(op="hello", id=1)
same((h["threads"], h["limits"]["connections"]), (8, 11), "the file is read, both spellings")
same(h["limits"]["requests_running"], 10, "the command line outranks it")
s.stop()
s = Server("--max-requests", "10", "--config", f, "--pin-ttl", "1.5")
told = s.connect().ask(op="config", id=1)
same((told["event"], [told["settings"].get(k) for k in ("threads", "max-requests", "device-memory",
     "pin-ttl", "log-level", "chat-template", "host-memory", "store-replace")]),
     ("config", [8, 10, 64 << 20, 1.5, "error", None, 0, False]), "config tells what is in force")
p = subprocess.run([CTL, "-s", s.address, "config"], capture_output=True, text=True)
rc, out, err = run("--config", config(p.stdout), "--check-config", model=False)
same((p.returncode, rc, out), (0, 0, "ok\n"), "... and prefixctl config makes a file of it")
same(s.connect().ask(op="hello", id=1)["limits"]["requests_running"], 10, "... wherever it stands")
s.stop()
rc, out, err = run("--config", config('model = "%s"\nlisten = 127.0.0.1:0\n' % __file__),
                   "--check-config", model=False)
same((rc, out), (0, "ok\n"), "a file alone is enough")
refused("no such file", "/nowhere.conf", "--config", "/nowhere.conf")
for text, word in (("threads = 4\nfrob = 1\n", ":2: "), ("threads = x\n", ":1: threads"),
                   ("\n\nthreads 4\n", ":3: "), ('model = "abc\n', "conf:"), ("threads =\n", "conf:"),
                   ("host_memory = x\n", ":1: host-memory"), ("check-config = 1\n", ":1: "),
                   ("config = x\n", ":1: "), ("log-level = loud\n", ":1: log-level")):
    refused("config %r" % text, word, "--config", config(text))

for what in ("/", "/dev/zero", "/dev/null"):
    refused("config %s" % what, "prefixd: config %s is not a regular file" % what, "--config", what)
with open(path("long.conf"), "w") as f:
    f.write("#" * (1 << 20) + "\n")
refused("a config file of more than 1 MiB", "long.conf", "--config", path("long.conf"))

# ---- listening ----

s = Server()
ok(s.lines[0].startswith("listening on 127.0.0.1:") and not s.lines[0].endswith(":0"),
   "port 0 takes a free one and says which", s.lines)
refused("a port that is taken", s.address, "--listen", s.address)
same(s.stop(), 0, "SIGTERM: status 0")
s = Server(listen="127.0.0.1:0,unix:%s, localhost:0" % path("a"), lines=3)
same(s.lines[1], "listening on unix:" + path("a"), "several addresses")
for line in s.lines:
    same(Conn(line.split()[-1]).ask(op="ping", id=1)["event"], "pong", line.split(":")[0])
refused("a Unix socket that is taken", "in use", "--listen", "unix:" + path("a"))
same(s.stop(signal.SIGINT), 0, "SIGINT: status 0")
ok(not os.path.exists(path("a")), "the socket's file is gone")
if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") and "lo" in open("/proc/net/if_inet6").read():
    s = Server(listen="[::1]:0")
    ok(s.address.startswith("[::1]:"), "IPv6", s.lines)
    s.stop()
with open(path("file"), "w"):
    pass
refused("a file that is no socket", "not a socket", "--listen", "unix:" + path("file"))
ok(os.path.exists(path("file")), "... is left alone")
dead = socket.socket(socket.AF_UNIX)
dead.bind(path("stale"))
dead.listen()
dead.close()
s = Server(listen="unix:" + path("stale"))
same(s.connect().ask(op="ping", id=1)["event"], "pong", "a dead server's socket is taken over")
s.proc.kill()
s.wait()
s = Server(listen="unix:" + path("stale"))
same(s.connect().ask(op="ping", id=1)["event"], "pong", "... also after kill -9")
s.stop()
for bad in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "127.0.0.1:0,0.0.0.0:0"):
    refused("--listen %s is refused" % bad, "loopback", "--listen", bad)
for bad in ("127.0.0.1", "127.0.0.1:", ":0", "127.0.0.1:99999", "127.0.0.1:x", "unix:", "7077",
            "unix:/" + "x" * 200, "[::1:0"):
    refused("--listen %s is refused" % bad[:20], "", "--listen", bad)
refused("an empty --listen", "listen", "--listen", ",")

# ---- drain ----


def busy_server(prompt, *args):
    srv = Server(*args)
    conn = srv.connect()
    conn.send(op="generate", id=1, prompt=prompt)
    srv.settle(lambda st: st["requests"]["running"] == 1, "running: " + prompt)
    return srv, conn


def closed(address):
    try:
        return Conn(address).ask(op="ping", id=1) is None
    except OSError:
        return True


for how in ("SIGTERM", "drain"):
    s, c = busy_server("abc@prefill=5000")  # far longer than what is asked meanwhile
    idle = s.connect()
    idle.ask(op="ping", id=1)
    if how == "drain":
        same(idle.ask(op="drain", id=2), {"id": 2, "event": "draining", "running": 1}, "drain says so")
        same(idle.ask(op="drain", id=3)["event"], "draining", "... twice, too")
    else:
        s.proc.send_signal(signal.SIGTERM)
    gone = closed(s.address)
    while not gone and s.proc.poll() is None:
        time.sleep(0.01)
        gone = closed(s.address)
    ok(gone, how + ": no new connections")
    for op in ("generate", "warm", "score"):
        same(idle.ask(op=op, id=2, prompt="x")["code"], "shutting_down", "... no new " + op)
    same(idle.ask(op="ping", id=2)["event"], "pong", "... the rest is answered")
    same([r["event"] for r in c.until_last()][-1], "done", "what runs goes on to its end")
    same(c.recv(), None, "... and then the end")
    same(s.wait(), 0, "... with status 0, idle connections or not")
s, c = busy_server("@hang")
s.proc.send_signal(signal.SIGHUP)
time.sleep(0.1)
same(s.connect().ask(op="ping", id=1)["event"], "pong", "SIGHUP is ignored")
s.proc.send_signal(signal.SIGTERM)
time.sleep(0.1)
same(s.proc.poll(), None, "what hangs is waited for")
s.proc.send_signal(signal.SIGTERM)
same(s.wait(), 0, "a second signal ends it before the 30 s of a drain")
s = Server()
c = s.connect()
c.send(op="generate", id=1, prompt="@n=20000@pad=400")
same(c.recv()["event"], "token", "a reply of 9 MB has begun")
s.proc.send_signal(signal.SIGTERM)
lines = [r["event"] for r in c.until_last()]
same((len(lines), lines[-1], s.wait()), (20001, "done", 0), "all replies are sent before the end")
s = Server(listen="unix:" + path("d"))
s.connect().ask(op="drain", id=1)
same(s.wait(), 0, "nothing runs: drain ends it")
ok(not os.path.exists(path("d")), "... and removes the socket's file")

# ---- a signal while the model loads, and a stdout that nobody reads ----

p = subprocess.Popen([FAKE, "--model", __file__, "--listen", "unix:" + path("mute")],
                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
p.stdout.close()
end = time.time() + WAIT
while closed("unix:" + path("mute")) and time.time() < end:
    time.sleep(0.02)
p.send_signal(signal.SIGTERM)
same(p.wait(20), 0, "stdout closed: it serves and drains all the same")
statuses = set()
delay = 0
# Through the start in small steps, then in ever larger ones until the program runs.
while delay < 0.04 or (0 not in statuses and delay < WAIT):
    delay = delay + 0.002 if delay < 0.04 else 2 * delay
    p = subprocess.Popen([FAKE, "--model", __file__, "--listen", "127.0.0.1:0"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    p.send_signal(signal.SIGTERM)
    statuses.add(p.wait(20))
ok(statuses <= {0, -signal.SIGTERM}, "a signal at any moment of the start", statuses)
ok(0 in statuses, "... ends with 0 once the program runs", statuses)

# ---- systemd: a socket that is passed in, and readiness ----

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
note = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
note.bind(path("notify"))
note.settimeout(WAIT)
with open(os.path.join(BUILD, "config.h")) as f:
    has_systemd = "#define HAVE_SYSTEMD 1" in f.read()
pid = os.fork()
if pid == 0:
    fd = os.dup2(listener.fileno(), 60)
    os.dup2(fd, 3, inheritable=True)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    os.dup2(os.open(path("stdout"), os.O_CREAT | os.O_WRONLY), 1)
    env = dict(os.environ, LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), NOTIFY_SOCKET=path("notify"))
    os.execve(FAKE, [FAKE, "--model", __file__, "--listen", "127.0.0.1:0"], env)
if not has_systemd:
    print("# built without systemd")
    end = time.time() + WAIT
    while (not os.path.exists(path("stdout")) or not os.path.getsize(path("stdout"))) and time.time() < end:
        time.sleep(0.02)
else:
    same(note.recv(100), b"READY=1", "systemd is told when it is ready")
    out = open(path("stdout")).read().split()
    same(len(out), 6, "it listens on both the passed socket and the asked one")
    same(Conn("127.0.0.1:%d" % listener.getsockname()[1]).ask(op="ping", id=1)["event"], "pong",
         "a passed socket is served")
os.kill(pid, signal.SIGTERM)
if has_systemd:
    same(note.recv(100), b"STOPPING=1", "... and when it stops")
same(os.waitpid(pid, 0)[1], 0, "ends well")
finish()
