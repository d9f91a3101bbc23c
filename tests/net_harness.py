"""What the net_*.t scripts share: a server of one's own, connections, TAP."""
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("top_builddir", ".")
SRC = os.environ.get("top_srcdir", ".")
FAKE = os.path.join(BUILD, "tests", "prefixd_fake")
CTL = os.path.join(BUILD, "prefixctl")
WAIT = 20  # seconds until a test gives up; far above what anything here takes

_run = _failed = 0


def ok(cond, name, detail=None):
    global _run, _failed
    _run += 1
    print("%sok %d - %s" % ("" if cond else "not ", _run, name))
    if not cond:
        _failed += 1
        if detail is not None:
            print("#   %s" % repr(detail)[:600])
    sys.stdout.flush()
    return cond


def same(got, want, name):
    return ok(got == want, name, "got %r, want %r" % (got, want))


def finish():
    print("1..%d" % _run)
    sys.exit(1 if _failed else 0)


def skip_all(why):
    print("1..0 # SKIP " + why)
    sys.exit(0)


class Server:
    """prefixd_fake on a free port; stop() says how it ended."""

    def __init__(self, *args, listen="127.0.0.1:0", lines=1, **kw):
        cmd = [FAKE, "--model", __file__, "--listen", listen, "--log-level", "error", *args]
        self.proc = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True, **kw)
        atexit.register(self.proc.kill)  # when the script itself fails; does nothing else
        self.lines = [self.proc.stdout.readline().rstrip("\n") for _ in range(lines)]
        self.address = self.lines[0].replace("listening on ", "", 1)

    def connect(self):
        return Conn(self.address)

    def fds(self):
        return len(os.listdir("/proc/%d/fd" % self.proc.pid))

    def fds_are(self, want, name):
        """Waits until so many descriptors are open: what hung up is closed a little later."""
        end = time.time() + WAIT
        while self.fds() != want and time.time() < end:
            time.sleep(0.02)
        return same(self.fds(), want, name)

    def stats(self):
        """Asks until there is room for one more connection."""
        end = time.time() + WAIT
        while True:
            c = self.connect()
            c.send(op="stats", id="stats")
            r = c.recv()
            c.close()
            if (r is not None and r["event"] == "stats") or time.time() > end:
                return r
            time.sleep(0.02)

    def connections_are(self, want, c):
        """Waits until so many are open, asking by c: the others' descriptors are closed then."""
        end = time.time() + WAIT
        while c.ask(op="stats", id=1)["connections"]["open"] != want and time.time() < end:
            time.sleep(0.02)

    def settle(self, look, name, wait=WAIT):
        """Waits until the stats satisfy look."""
        end = time.time() + wait
        while True:
            s = self.stats()
            if look(s) or time.time() > end:
                return ok(look(s), name, s)
            time.sleep(0.02)

    def wait(self):
        try:
            return self.proc.wait(WAIT)
        except subprocess.TimeoutExpired:
            return "still running"

    def stop(self, sig=signal.SIGTERM):
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        rc = self.wait()
        if rc == "still running":
            self.proc.kill()
        self.proc.stdout.close()
        return rc


class Conn:
    def __init__(self, address, rcvbuf=None):
        if address.startswith("unix:"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(WAIT)
            self.sock.connect(address[5:])
        else:
            host, port = address.rsplit(":", 1)
            self.sock = socket.socket()
            if rcvbuf:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
            self.sock.settimeout(WAIT)
            self.sock.connect((host, int(port)))
        self.buf = b""

    def raw(self, data):
        self.sock.sendall(data)

    def send(self, **fields):
        self.raw(json.dumps(fields).encode() + b"\n")

    def line(self):
        """The next line, or None at the end (also when it is a reset)."""
        while b"\n" not in self.buf:
            try:
                more = self.sock.recv(1 << 16)
            except ConnectionError:
                more = b""
            if not more:
                return None
            self.buf += more
        line, self.buf = self.buf.split(b"\n", 1)
        return line

    def recv(self):
        line = self.line()
        return None if line is None else json.loads(line)

    def until_last(self):
        """All lines up to the first last one."""
        got = []
        while True:
            r = self.recv()
            got.append(r)
            if r is None or r["event"] not in ("token", "prefill"):
                return got

    def ask(self, **fields):
        self.send(**fields)
        return self.until_last()[-1]

    def quiet(self, seconds):
        """True when nothing comes for so long."""
        self.sock.settimeout(seconds)
        try:
            return self.buf == b"" and self.sock.recv(1 << 16, socket.MSG_PEEK) is None
        except socket.timeout:
            return self.buf == b""
        except ConnectionError:
            return False
        finally:
            self.sock.settimeout(WAIT)

    def half_close(self):
        self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        self.sock.close()


def scratch():
    return tempfile.TemporaryDirectory(prefix="prefixd-test-")
