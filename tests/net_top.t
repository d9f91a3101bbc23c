#!/bin/sh
''':'
command -v "${PYTHON:-python3}" >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec "${PYTHON:-python3}" "$0" "$@"
'''
# prefixctl top on a terminal of our own (80x24, a VT100): what stands on it, keys, a new size,
# and that the terminal is given back however it ends. Then as text and as JSON.
import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.environ.get("top_srcdir", "."), "tests"))
import net_harness  # noqa: E402
from net_harness import BUILD, CTL, WAIT, Server, finish, ok, same, scratch, skip_all  # noqa: E402

tmp = scratch()
tiny = os.path.join(tmp.name, "tiny.gguf")
subprocess.run([os.path.join(BUILD, "tests", "make_tiny_model"), tiny], check=True)
net_harness.FAKE = os.path.join(BUILD, "prefixd")


class Screen:
    """Enough of a VT100: cursor moves, erasing, scrolling, text."""

    def __init__(self, rows, cols):
        self.resize(rows, cols)
        self.rest, self.odd, self.wrapped = "", [], 0

    def resize(self, rows, cols):
        self.rows, self.cols = rows, cols
        self.cells = [[" "] * cols for _ in range(rows)]
        self.y = self.x = 0
        self.stale = True  # until it is cleared, what comes was drawn for another size

    def text(self):
        return "\n".join("".join(r).rstrip() for r in self.cells)

    def erase(self, y, x0, x1):
        self.cells[y][x0:x1] = " " * (x1 - x0)

    def csi(self, args, final):
        n = [int(a) if a.isdigit() else 0 for a in args.lstrip("?").split(";")]
        one = max(n[0], 1)
        if final in "ABCDJK":
            # Behind the last column the cursor stays on it until a character wraps.
            self.x = min(self.x, self.cols - 1)
        if final == "H":
            self.y, self.x = max(n[0], 1) - 1, max(n[1] if len(n) > 1 else 1, 1) - 1
        elif final in "ABCD":
            self.y += {"A": -one, "B": one}.get(final, 0)
            self.x += {"C": one, "D": -one}.get(final, 0)
        elif final == "J" and (self.y, self.x) == (0, 0):
            self.cells = [[" "] * self.cols for _ in range(self.rows)]
            self.stale = False
        elif self.stale:
            return
        elif final == "J":
            self.erase(self.y, self.x, self.cols)
            for y in range(self.y + 1, self.rows):
                self.erase(y, 0, self.cols)
        elif final == "K":
            self.erase(self.y, *((0, self.x + 1) if n[0] == 1 else (self.x, self.cols)))
        elif final not in "mrhlc":
            self.odd.append(args + final)

    def feed(self, data):
        data = self.rest + data
        while data:
            m = re.match(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()].|\x1b[=>78MDE]", data)
            if m:
                if m.group(2):
                    self.csi(m.group(1), m.group(2))
                data = data[m.end():]
                continue
            if data[0] == "\x1b":
                break
            self.put(data[0])
            data = data[1:]
        self.rest = data

    def put(self, ch):
        if ch == "\r":
            self.x = 0
        elif ch == "\n":
            self.y = min(self.y + 1, self.rows - 1)
        elif ch == "\b":
            self.x = max(self.x - 1, 0)
        elif ch >= " " and not self.stale:
            if self.x >= self.cols or self.y >= self.rows:
                self.wrapped += 1
                return
            self.cells[self.y][self.x] = ch
            self.x += 1


class Terminal:
    def __init__(self, *args, rows=24, cols=80, term="vt100"):
        self.master, self.slave = pty.openpty()
        self.size(rows, cols)
        self.screen = Screen(rows, cols)
        self.was = termios.tcgetattr(self.slave)
        self.raw = ""
        # A read may end within a character.
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.proc = subprocess.Popen([CTL, "-s", server.address, "top", *args], stdin=self.slave,
                                     stdout=self.slave, stderr=subprocess.PIPE, start_new_session=True,
                                     env=dict(os.environ, TERM=term, LINES="", COLUMNS=""))

    def size(self, rows, cols):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def resize(self, rows, cols):
        self.size(rows, cols)
        self.screen.resize(rows, cols)
        self.proc.send_signal(signal.SIGWINCH)

    def read(self, seconds):
        """True when something came."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        data = self.decoder.decode(os.read(self.master, 65536))
        self.raw += data
        self.screen.feed(data)
        return True

    def still(self, name):
        """Waits until nothing is drawn for a second, five times its delay: all of a look is there."""
        end = time.time() + WAIT
        while self.read(1):
            if time.time() > end:
                return ok(False, name, self.screen.text())
        return ok(True, name)

    def until(self, look, name):
        end = time.time() + WAIT
        while not look(self.screen.text()) and time.time() < end:
            self.read(0.1)
        return ok(look(self.screen.text()), name, self.screen.text())

    def keys(self, text):
        os.write(self.master, text.encode())

    def end(self, name, want):
        got = None
        end = time.time() + WAIT
        while got is None and time.time() < end:
            self.read(0.05)
            got = self.proc.poll()
        while self.read(0.2):
            pass
        same(got, want, name)
        same(termios.tcgetattr(self.slave), self.was, "... and gives the terminal back")
        ok(self.screen.y == self.screen.rows - 1 and self.screen.odd == [], "... its cursor below all",
           (self.screen.y, self.screen.odd))
        self.err = self.proc.stderr.read().decode()
        self.proc.stderr.close()
        os.close(self.master)
        os.close(self.slave)


server = Server("--model", tiny)
c = server.connect()
c.ask(op="warm", id=1, tokens=list(range(3, 80)))
t = Terminal("--delay", "0.2")
t.until(lambda s: "prefixd tiny" in s and "REQUEST" in s and "q quit" in s, "the screen is drawn")
if "prefixd" not in t.screen.text():
    print("# " + t.proc.stderr.read().decode())
rows = t.screen.text().split("\n")
ok(len(rows) == 24 and rows[23].startswith("q quit") and all(len(r) <= 80 for r in rows),
   "it has 24 rows of 80", rows)
same(t.screen.wrapped, 0, "... and nothing stands beyond them")
# Each one ends within a second or two: there are always new ones.
busy = server.connect()


def run_some(n):
    for i in range(n):
        busy.send(op="generate", id="r%d-%f" % (i, time.time()), tokens=list(range(3, 80 + i)),
                  max_tokens=1900, ignore_eos=True, namespace="ns\u001b[7m")


run_some(6)
t.until(lambda s: "decode" in s or "prefill" in s, "what runs is shown")
ok("ns·[7m" in t.screen.text() or "decode" in t.screen.text(), "... a stranger's name without its escape")
ok("\u001b[7mns" not in t.raw and "ns\u001b[7m" not in t.raw, "... which the terminal never sees")
t.keys("n")
t.until(lambda s: "by number" in s, "n sorts by number")
t.keys("p")
t.until(lambda s: "PAUSED" in s, "p pauses")
t.still("... and nothing moves")
numbers = [int(m) for m in re.findall(r"^ +(\d+) generate", t.screen.text(), re.M)]
same(numbers, sorted(numbers), "... they do")
t.keys("p")
t.until(lambda s: "PAUSED" not in s, "p goes on")
t.keys("c")
t.until(lambda s: "by cached" in s, "c sorts by cached tokens")
t.resize(10, 60)
t.until(lambda s: len(s.split("\n")) == 10 and s.split("\n")[9].startswith("q quit")
        and "prefixd tiny" in s.split("\n")[0], "a smaller window")
same(t.screen.wrapped, 0, "... keeps within it")
t.resize(30, 120)
t.until(lambda s: s.split("\n")[29].startswith("q quit"), "a larger one")
t.keys("q")
t.end("q ends it", 0)
for sig, want in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP),
                  (signal.SIGINT, 0)):
    t = Terminal()
    t.until(lambda s: "REQUEST" in s, "up again")
    t.proc.send_signal(sig)
    t.end("signal %d ends it" % sig, want)
t = Terminal("--count", "2", "--delay", "0.1")
t.until(lambda s: "REQUEST" in s, "up again")
t.end("--count ends it", 0)
for term in ("no-such-terminal", "dumb"):
    t = Terminal(term=term)
    t.proc.wait(WAIT)
    while t.read(0.2):
        pass
    ok("REQUEST" in t.raw and "\x1b" not in t.raw and t.proc.returncode == 0,
       "one look as text on a terminal called " + term, t.raw)
    os.close(t.master)
    t.proc.stderr.close()

# ---- without a screen ----


def ctl(*args, timeout=WAIT):
    p = subprocess.run([CTL, "-s", server.address, *args], capture_output=True, text=True,
                       stdin=subprocess.DEVNULL, timeout=timeout)
    return p.returncode, p.stdout, p.stderr


rc, out, err = ctl("top")
ok(rc == 0 and "prefixd tiny" in out and "REQUEST" in out and err == "", "into a pipe: one look", (rc, out, err))
rc, out, err = ctl("top", "--json", "--count", "3", "--delay", "0.1")
looks = [json.loads(x) for x in out.splitlines()]
same((rc, [x["event"] for x in looks]), (0, ["top"] * 3), "--json: a line for each look")
ok(looks[0]["time_ms"] + 90 <= looks[1]["time_ms"], "... so far apart", [x["time_ms"] for x in looks])
p = subprocess.Popen([CTL, "-s", server.address, "top", "--json"], stdout=subprocess.PIPE, text=True)
ok(json.loads(p.stdout.readline())["event"] == "top", "--json goes on")
p.send_signal(signal.SIGINT)
same(p.wait(WAIT), 0, "... until it is interrupted")
p.stdout.close()
same(ctl("top", "--delay", "0")[0], 2, "a delay of nothing")
same(ctl("top", "--count", "-1")[0], 2, "no looks less than none")
same(ctl("top", "x")[0], 2, "words")
t = Terminal()
t.until(lambda s: "REQUEST" in s, "up again")
server.proc.kill()
t.end("a server that dies ends it", 3)
ok("closed the connection" in t.err, "... and is told", t.err)
finish()
