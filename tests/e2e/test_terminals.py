"""A terminal that a process is given (``os.openpty``) counts as its pipes: a replay starts nothing, and the program reads what
it read."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.place import READINTO, Place
from tracekit import recovery

PROGRAM = """
import asyncio, errno, fcntl, io, os, pty, select, selectors, signal, struct, subprocess, sys, termios, threading, time, tty

def given(command, m, s, **options):
    process = subprocess.Popen(["sh", "-c", command], stdin=s, stdout=s, stderr=s, **options)
    os.close(s)
    return process

def until(m, end):
    out = b""
    while end not in out:
        out += os.read(m, 1024)
    return out

def rest(m):
    out = b""
    try:
        while data := os.read(m, 5):
            out += data
    except OSError as error:
        return out, error.errno == errno.EIO, error

"""

ECHO = "while read x; do echo got $x; done; echo bye"

PROGRAMS = {
    "read and written by number": f"""
m, s = os.openpty()
fcntl.ioctl(m, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
process = given("printf x >> effects; test -t 0 && stty size; {ECHO}", m, s, start_new_session=True)
print(until(m, b"80\\r\\n"), os.write(m, b"hello\\n"), until(m, b"got hello\\r\\n"))
fcntl.ioctl(m, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
print(struct.unpack("HHHH", fcntl.ioctl(m, termios.TIOCGWINSZ, bytes(8))), os.isatty(m))
mode = termios.tcgetattr(m)
tty.setraw(m)
print(termios.tcgetattr(m) == mode)
termios.tcsetattr(m, termios.TCSADRAIN, mode)
os.write(m, b"\\x04")
print(rest(m), rest(m))
os.close(m)
print(process.wait())
""",
    "asked which is ready": """
m, s = os.openpty()
m2, s2 = pty.openpty()
process = subprocess.Popen(["sh", "-c", "printf x >> effects; echo one; echo two >&2; read x; echo $x"], stdin=s, stdout=s, stderr=s2)
with selectors.DefaultSelector() as selector:
    selector.register(m, selectors.EVENT_READ, "out")
    selector.register(m2, selectors.EVENT_READ, "err")
    def seen(text):
        out = b""
        while text not in out:
            for key, _ in selector.select(5):
                data = os.read(key.fd, 100)
                print(key.data, data)
                out += data
    seen(b"o\\r\\n")
    os.write(m, b"line\\n")
    seen(b"line\\r\\nline\\r\\n")
print(select.select([m, m2], [], [], 0)[0], process.wait())
poller = select.poll()
poller.register(m, select.POLLIN)
os.set_blocking(m, False)
print(poller.poll(0))
try:
    os.read(m, 1)
except BlockingIOError as error:
    print(error)
""",
    "file objects": """
m, s = pty.openpty()
text = os.fdopen(m, "r")
process = given("printf x >> effects; stty -echo; echo ready; while read x; do echo got $x; done; echo bye", m, s)
into = open(m, "w", closefd=False)
print(repr(text.readline()), text.fileno() == m, text.isatty(), text.mode, into.mode, text)
print("one", file=into, flush=True)
print(repr(text.readline()))
into.write("\\x04")
into.flush()
try:
    for line in text:
        print(repr(line))
except OSError as error:
    print(error)
text.close()
print(process.wait())
m, s = pty.openpty()
process = given("printf x >> effects; echo hi", m, s)
with os.fdopen(m, "rb+", buffering=0) as both:
    print(both.write(b"through\\n"), process.wait(), sorted(both.read(100).split()), repr(both))
try:
    open(os.openpty()[0], "r+")
except OSError as error:
    print(error)
""",
    "a thread that reads": """
m, s = os.openpty()
out, more = [], threading.Condition()
def reads():
    try:
        while data := os.read(m, 1024):
            with more:
                out.append(data)
                more.notify()
    except OSError as error:
        out.append(error.errno)
process = given("printf x >> effects; for i in 1 2 3; do echo $i; done; cat", m, s, start_new_session=True)
thread = threading.Thread(target=reads)
thread.start()
def wait(text):
    with more:
        more.wait_for(lambda: text in b"".join(out))
wait(b"3\\r\\n")
os.write(m, b"line\\n")
wait(b"line\\r\\nline\\r\\n")
os.killpg(process.pid, signal.SIGTERM)
print(process.wait())
thread.join()
print(out)
""",
    "threads that read before a process has it": """
m, s = os.openpty()
first = threading.Thread(target=lambda: print(os.read(m, 100)))
first.start()

def waits(thread):
    with open(f"/proc/self/task/{thread.native_id}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"

while not waits(first):
    pass
os.write(s, b"of the program itself\\n")
first.join()
second = threading.Thread(target=lambda: print(until(m, b"hello\\r\\n")))
second.start()
while not waits(second):
    pass
process = given("printf x >> effects; echo hello", m, s)
second.join()
print(rest(m), process.wait())
""",
    "left before its end": """
m, s = os.openpty()
process = given("printf x >> effects; echo 1; exec sleep 60", m, s)
print(os.read(m, 100))
os.close(m)
process.kill()
print(process.wait())
m, s = os.openpty()  # under the same numbers
process = given("printf x >> effects; echo 2; exec sleep 60", m, s)
print(os.read(m, 100))
process.kill()
print(process.wait())
a, b = os.openpty()  # which nobody is given
os.write(b, b"out")
os.write(a, b"in\\n")
print(os.read(a, 3), os.read(b, 10))
os.close(m)  # another one under the same number and name, which nobody is given, either
again = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(again, 0x40045431, bytes(4))  # unlock it
s = os.open(f"/dev/pts/{struct.unpack('I', fcntl.ioctl(again, 0x80045430, bytes(4)))[0]}", os.O_RDWR | os.O_NOCTTY)
print(again == m, os.write(again, b"in\\n"), os.read(s, 10))
""",
    "of several processes": """
m, s = os.openpty()
first = subprocess.Popen(["sh", "-c", "printf x >> effects; echo first; read x; echo third"], stdin=subprocess.PIPE, stdout=s)
print(until(m, b"first\\r\\n"), subprocess.run(["sh", "-c", "printf x >> effects; echo second"], stdout=s).returncode)
print(until(m, b"second\\r\\n"), first.stdin.close(), until(m, b"third\\r\\n"), first.wait())
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "printf x >> effects; echo fourth"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, s, 1)])
os.close(s)
print(os.waitpid(pid, 0)[1], rest(m))
""",
    "as the shell of an agent in asyncio": f"""
def on(terminal):
    def prepare():
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    return prepare

async def main():
    loop = asyncio.get_running_loop()
    m, s = os.openpty()
    command = "printf x >> effects; echo hello; {ECHO}"
    process = await asyncio.create_subprocess_exec("sh", "-c", command, stdin=s, stdout=s, stderr=s, preexec_fn=on(s))
    os.close(s)
    pieces, closed, more = [], asyncio.Event(), asyncio.Event()

    async def pump():
        try:
            while piece := await loop.run_in_executor(None, os.read, m, 4096):
                pieces.append(piece)
                more.set()
        except OSError as error:
            print(error)
        closed.set()

    async def until(text):
        while text not in b"".join(pieces):
            more.clear()
            await more.wait()
        print(pieces)
        pieces.clear()

    pumping = asyncio.create_task(pump())
    await until(b"hello\\r\\n")
    os.write(m, b"one\\n")
    await until(b"got one\\r\\n")
    os.write(m, b"\\x03")
    print(await process.wait())
    await closed.wait()
    await pumping
    print(pieces)
    await asyncio.to_thread(os.close, m)

asyncio.run(main())
""",
    "of a fork that becomes another program": f"""
pid, m = pty.fork()
if not pid:
    os.execv("/bin/sh", ["sh", "-c", "printf x >> effects; test -t 0 && stty size; {ECHO}; exit 3"])
print(until(m, b"0 0\\r\\n"), os.write(m, b"hello\\n"), until(m, b"got hello\\r\\n"), os.waitpid(pid, os.WNOHANG))
os.write(m, b"\\x04")
print(rest(m), os.waitpid(pid, 0)[1] >> 8)
os.close(m)
pid, m = os.forkpty()
if not pid:
    for name in ("/nowhere/sh", "/bin", "/bin/sh"):
        try:
            os.execve(name, ["sh", "-c", "printf x >> effects; echo $A; exec sleep 60"], {{"A": "of its own"}})
        except OSError as error:
            os.write(1, str(error.errno).encode())
print(until(m, b"own\\r\\n"), os.kill(pid, signal.SIGTERM), os.WTERMSIG(os.waitpid(pid, 0)[1]))
try:
    os.kill(pid, signal.SIGTERM)
except ProcessLookupError as error:
    print(error)
""",
    "that is asked for its mode": """
def echoes():
    return bool(termios.tcgetattr(m)[3] & termios.ECHO)

pid, m = pty.fork()
if not pid:
    command = "printf x >> effects; stty -echo; echo password; read x; stty echo; echo $x; read x"
    os.execv("/bin/sh", ["sh", "-c", command])
print(until(m, b"password\\r\\n"), echoes(), os.write(m, b"one\\n"), until(m, b"one\\r\\n"), echoes())
print(tty.tcgetattr(m)[3] & termios.ECHO, os.write(m, b"two\\n"), rest(m), os.waitpid(pid, 0)[1])
""",
    # What the packages pexpect and ptyprocess do.
    "of a fork that prepares and closes everything": """
import resource
os.mkdir("in")
ours, theirs = os.pipe()
pid, m = pty.fork()
if not pid:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    mode = termios.tcgetattr(0)
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, mode)
    os.close(ours)
    fcntl.fcntl(theirs, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    os.closerange(3, theirs)
    os.closerange(theirs + 1, min(1048576, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    os.chdir("in")
    try:
        os.execvpe("/bin/sh", ["sh", "-c", "printf x >> ../effects; stty size; read x; pwd -P; echo $x"], {"PATH": "/bin:/usr/bin"})
    except OSError as error:
        os.write(theirs, str(error).encode())
        os._exit(71)
both = open(m, "rb", buffering=0), open(m, "wb", buffering=0, closefd=False)
file = io.BufferedRWPair(*both)
os.close(theirs)
print(os.read(ours, 4096))
os.close(ours)
fcntl.ioctl(m, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
out = b""
def expect(text):
    global out
    while text not in out:
        print(select.select([m], [], [], 30)[0] == [m])
        out += os.read(m, 2000)
    before, _, out = out.partition(text)
    return before
print(expect(b"24 80\\r\\n"), os.waitpid(pid, os.WNOHANG), os.write(m, b"line\\n"), expect(b"/in\\r\\n")[-1:] != b"", expect(b"line\\r\\n"))
try:
    print(select.select([m], [], [], 30)[0] == [m], os.read(m, 2000))
except OSError as error:
    print(error)
print(os.waitpid(pid, 0)[1])
file.close()
""",
    "of pty.spawn": """
out = []
def read(m):
    out.append(os.read(m, 1024))
    return out[-1]
print(pty.spawn(["/bin/sh", "-c", "printf x >> effects; echo hello; exit 2"], read) >> 8, len(b"".join(out)))
""",
    "of a fork that stays Python": """
import random
pid, m = pty.fork()
if not pid:
    print(random.random(), input(), flush=True)
    os._exit(4)
os.write(m, b"input\\n")
print(rest(m)[0].split()[-1], os.waitpid(pid, 0)[1] >> 8)
""",
    "of a fork that is killed before it has done anything": """
pid, m = pty.fork()
if not pid:
    print("ready", flush=True)
    while True:
        signal.pause()
print(until(m, b"ready\\r\\n"), os.kill(pid, signal.SIGTERM), os.WTERMSIG(os.waitpid(pid, 0)[1]), rest(m))
try:
    os.kill(pid, signal.SIGTERM)
except ProcessLookupError as error:
    print(error)
""",
    "a buffer that a descriptor fills": READINTO
    + """
m, s = os.openpty()
process = given("printf x >> effects; printf through", m, s)
print(process.wait())
filled = bytearray(4)
try:
    while count := os.readinto(m, filled):
        print(count, filled)
except OSError as error:
    print(error)
""",
}


LOOP = """
async def main():
    loop = asyncio.get_running_loop()
    m, s = os.openpty()
    process = await asyncio.create_subprocess_exec("sh", "-c", "printf x >> effects; echo hello", stdin=s, stdout=s)
    os.close(s)
    done = loop.create_future()
    %s
    await done
    print(await process.wait())

asyncio.run(main())
"""  # fmt: skip
READ = "loop.add_reader(m, lambda: done.done() or done.set_result(os.read(m, 100)))"
CONNECT = """class Protocol(asyncio.Protocol):
        def data_received(self, data):
            done.done() or done.set_result(data)
    await loop.connect_read_pipe(Protocol, os.fdopen(m, "rb", 0))"""
SHARED = (
    PROGRAM
    + """
m, s = os.openpty()
print(subprocess.run(["sh", "-c", "printf x >> effects; echo one"], stdout=s).returncode, until(m, b"one\\r\\n"))
process = subprocess.Popen([sys.executable, "worker.py"], stdin=s, stdout=s)
print(until(m, b"ready\\r\\n"), os.write(m, b"do\\n"), until(m, b"True\\r\\n"), process.wait())
"""
)


def test_a_terminal_of_a_process_that_joins_and_of_another_is_told(place: Place) -> None:
    """Recorded, it is reported; a replay refuses it."""
    place.program(JOINS, "worker.py")
    place.program(SHARED)
    done = place.cli("run", "agent.py")
    assert (done.returncode, place.effects()) == (0, 2), done.stderr
    assert "one terminal was given to /process:worker.py#1, which joined the run, and to /process:sh#1" in done.stderr
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert {one["code"] for one in why["can_be_replayed"]["reasons"]} == {"uncaptured"}
    again = place.cli("replay", "last")
    assert (again.returncode, "[live-call-blocked]" in again.stderr, place.effects()) == (1, True, 2), again.stderr


PROGRAMS["read by an event loop"] = LOOP % READ
PROGRAMS["read by a loop of uvloop"] = (
    (LOOP % READ)
    .replace("asyncio.run", "__import__('uvloop').run")
    .replace("await asyncio.create_subprocess_exec(", "subprocess.Popen([")
    .replace('hello",', 'hello"],')
    .replace("await process.wait", "process.wait")
)
PROGRAMS["read by a transport"] = LOOP % CONNECT
PROGRAMS["read by a loop beside other tasks"] = f"""
async def main():
    loop = asyncio.get_running_loop()
    seen = []
    pid, m = pty.fork()
    if not pid:
        os.execv("/bin/sh", ["sh", "-c", "printf x >> effects; stty -echo; echo ready; {ECHO}"])
    reader = asyncio.StreamReader(limit=16)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(m), "rb", 0))
    m2, s2 = os.openpty()
    command = "printf x >> effects; for i in 1 2 3 4 5 6 7 8; do echo $i; done; sleep 0.1; echo end"
    process = subprocess.Popen(["sh", "-c", command], stdout=s2)
    os.close(s2)
    done = asyncio.Event()

    def ready(n):
        try:
            seen.append((n, os.read(m2, 3)))
        except OSError as error:
            seen.append(error.errno)
            print(loop.remove_reader(m2), loop.remove_reader(m2))
            done.set()
        else:
            if n == 2:
                loop.add_reader(m2, ready, n + 1)
            elif n == 5:
                print(loop.remove_reader(m2))
                loop.call_later(0.01, loop.add_reader, m2, ready, 6)
            else:
                loop.add_reader(m2, ready, n + 1)

    async def ticks():
        while not done.is_set():
            seen.append("tick")
            await asyncio.sleep(0.001)

    loop.add_reader(m2, ready, 1)
    ticking = asyncio.create_task(ticks())
    async def line():
        found = b""
        while not found.endswith(b"\\n"):
            found += await reader.read(8)
        return found

    for n in range(3):
        print(await line())
        os.write(m, b"%d of a longer line than fits\\n" % n)
        seen.append(n)
    os.write(m, b"\\x04")
    try:
        print(await reader.read())
    except OSError as error:
        print(error)
    await asyncio.gather(done.wait(), ticking)
    transport.close()
    print(seen, process.wait(), await loop.run_in_executor(None, os.waitpid, pid, 0) != (pid, 9))

asyncio.run(main())
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_starts_nothing_and_reads_the_same(name: str, place: Place) -> None:
    """Pieces, ends and errors are the recorded ones, nothing is reported as not captured, and no program is needed."""
    place.program(PROGRAM + PROGRAMS[name])
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    assert "not captured" not in done.stderr
    assert place.effects() == PROGRAMS[name].count("printf x >>")
    again = place.cli("replay", "last", PATH="/nowhere")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "exact (" in again.stderr
    assert place.effects() == PROGRAMS[name].count("printf x >>")
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert [one["code"] for one in why["can_be_replayed"]["reasons"]] == ["nothing_lacking"]


JOINS = """
import sys, time
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def act(x):
    with open("effects", "a") as file:
        file.write("x")
    return x + "!"

print("ready", flush=True)
print(act(input()), time.time() > 0, flush=True)
"""


def test_a_process_that_joins_has_its_terminal_in_a_replay(place: Place) -> None:
    """It is started again, on the terminal that the replay opened, and is answered from its own file."""
    place.program(JOINS, "worker.py")
    place.program(
        PROGRAM + "m, s = os.openpty()\nprocess = subprocess.Popen([sys.executable, 'worker.py'], stdin=s, stdout=s)\n"
        "os.close(s)\nprint(until(m, b'ready\\r\\n'), os.write(m, b'do\\n'), until(m, b'True\\r\\n'), rest(m), process.wait())\n"
    )
    done = place.cli("run", "agent.py")
    assert (done.returncode, "do! True" in done.stdout, place.effects()) == (0, True, 1), done.stderr
    again = place.cli("replay", "last")
    assert (again.returncode, again.stdout, place.effects()) == (0, done.stdout, 1), again.stderr


def test_other_input_is_a_divergence(place: Place) -> None:
    """What the program writes to the terminal is compared, and so is that a process has one."""
    start = "m, s = os.openpty()\nprocess = given('printf x >> effects; read x; echo got $x', m, s)\n"
    then = start + "os.write(m, b'one\\n')\nprint(until(m, b'got one\\r\\n'), process.wait())\n"
    place.program(PROGRAM + then)
    done = place.cli("run", "agent.py")
    assert (done.returncode, place.effects()) == (0, 1), done.stderr
    for now in (
        then.replace("b'one\\n'", "b'two\\n'"),
        then.replace("m, s = os.openpty()", "m = s = os.open('f', 66)"),
    ):
        place.program(PROGRAM + now)
        again = place.cli("replay", "last")
        assert (again.returncode, "[divergence]" in again.stderr, place.effects()) == (1, True, 1), again.stderr


def test_reading_on_is_no_success(place: Place) -> None:
    """A program that reads more than it did fails in a replay."""
    then = "m, s = os.openpty()\nprocess = given('echo one; echo two', m, s)\nprint(process.wait(), os.read(m, 3))\nos.close(m)\n"
    place.program(PROGRAM + then)
    assert place.cli("run", "agent.py").returncode == 0
    place.program(PROGRAM + then.replace("os.read(m, 3)", "os.read(m, 3), os.read(m, 3)"))
    again = place.cli("replay", "last")
    assert (again.returncode, "[trace-exhausted]" in again.stderr) == (1, True), again.stderr


def test_a_process_on_a_terminal_that_is_killed_is_in_doubt(place: Place) -> None:
    """The intention is in the log before the process starts; it is not started again."""
    place.program(
        PROGRAM
        + "m, s = os.openpty()\nprocess = given('printf x >> effects; kill -9 $PPID', m, s)\nprint(rest(m), process.wait())\n"
    )
    assert place.cli("run", "agent.py").returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert place.effects() == 1
    (one,) = recovery.in_doubt(place.store).undeclared
    assert (one.name, one.arguments["stdout"]) == ("sh", "terminal")
    assert (place.cli("recovery", "resume", place.run).returncode, place.effects()) == (4, 1)


FORKED = (
    PROGRAM
    + """
ours, theirs = os.pipe()
open("none", "w").close()
os.chmod("none", 0o755)
pid, m = pty.fork()
if not pid:
    %s
    os._exit(3)
print(rest(m)[0], os.waitpid(pid, 0)[1])
"""
)


def test_a_fork_that_becomes_another_program_than_it_did_is_a_divergence(place: Place) -> None:
    """The fork is made in a replay, too, and what it is about to become is compared; nothing is executed."""
    become = 'os.execv("/bin/sh", ["sh", "-c", "printf x >> effects"])'
    place.program(FORKED % become)
    done = place.cli("run", "agent.py")
    assert (done.returncode, place.effects()) == (0, 1), done.stderr
    for now in ('os.execv("/bin/sh", ["sh", "-c", "printf y >> effects"])', f"os.chdir('/'); {become}", "pass"):
        place.program(FORKED % now)
        again = place.cli("replay", "last")
        assert (again.returncode, "in the process /fork#1" in again.stderr, place.effects()) == (1, True, 1), (
            again.stderr
        )
        assert "[divergence]" in again.stderr or (now == "pass" and "[unconsumed-steps]" in again.stderr), again.stderr


@pytest.mark.parametrize(
    ("become", "told"),
    [
        ("os.dup2(theirs, 1); os.execv('/bin/sh', ['sh', '-c', 'printf x >> effects'])", "which writes to a pipe"),
        ("os.dup2(ours, 0); os.execv('/bin/sh', ['sh', '-c', 'printf x >> effects'])", "which writes to a pipe"),
        ("os.execv(sys.executable, [sys.executable, 'worker.py'])", "joined the run on the terminal of the fork"),
        (
            "try:\n        os.execv('none', ['none'])\n    except OSError as error:\n        print(error, flush=True)",
            "not captured, and a replay will refuse it: the process none",
        ),
    ],
    ids=("output", "input", "joins", "fails"),
)
def test_what_a_fork_on_a_terminal_does_besides_is_told(place: Place, become: str, told: str) -> None:
    """Other streams, a program that joins the run, and one that can't be started are told when they are recorded; a
    replay refuses them."""
    place.program(JOINS.replace("input()", "'do'"), "worker.py")
    place.program(FORKED % become)
    done = place.cli("run", "agent.py")
    effects = place.effects()
    assert (done.returncode, told in done.stderr) == (0, True), done.stderr
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert {one["code"] for one in why["can_be_replayed"]["reasons"]} == {"uncaptured"}
    again = place.cli("replay", "last")
    assert (again.returncode, "[live-call-blocked]" in again.stderr, place.effects()) == (1, True, effects), (
        again.stderr
    )


def test_a_fork_on_a_terminal_that_is_killed_is_in_doubt(place: Place) -> None:
    """It is in the log before it is forked, and what it becomes before it does."""
    place.program(FORKED % 'os.execv("/bin/sh", ["sh", "-c", "printf x >> effects; kill -9 $PPID"])')
    assert place.cli("run", "agent.py").returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert place.effects() == 1
    (one,) = recovery.in_doubt(place.store).undeclared
    assert (one.name, one.arguments["command"]) == ("fork", "os.forkpty")
    (run,) = (path.stem for path in place.runs if path.stem.count(".") == 0)
    assert "printf x" in place.cli("show", run).stdout
    assert (place.cli("recovery", "resume", run).returncode, place.effects()) == (4, 1)


UNFOLLOWED = {
    "a loop of uvloop": (LOOP % CONNECT)
    .replace("asyncio.run", "__import__('uvloop').run")
    .replace("await asyncio.create_subprocess_exec(", "subprocess.Popen([")
    .replace('hello",', 'hello"],')
    .replace("await process.wait", "process.wait"),
    "a loop that says when it can be written": LOOP % "loop.add_writer(m, lambda: done.done() or done.set_result(0))",
    "a loop that writes": LOOP
    % """transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(m, "wb", 0))
    transport.write(b"one")
    done.set_result(0)""",
}


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_what_is_not_followed_is_told(place: Place, name: str) -> None:
    """A terminal that an event loop uses otherwise is told when it is recorded."""
    place.program(PROGRAM + UNFOLLOWED[name])
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    assert "whose terminal an event loop uses" in next(
        line for line in done.stderr.splitlines() if "not captured" in line
    )
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert {one["code"] for one in why["can_be_replayed"]["reasons"]} == {"uncaptured"}
    again = place.cli("replay", "last")
    assert (again.returncode, "[live-call-blocked]" in again.stderr, place.effects()) == (1, True, 1), again.stderr


def test_a_loop_that_reads_the_terminal_of_a_process_that_joins_is_told(place: Place) -> None:
    """Recorded, it is reported; a replay refuses it."""
    place.program(JOINS.replace("input()", "'do'"), "worker.py")
    start = 'create_subprocess_exec("sh", "-c", "printf x >> effects; echo hello",'
    assert start in LOOP
    place.program(PROGRAM + (LOOP % READ).replace(start, "create_subprocess_exec(sys.executable, 'worker.py',"))
    done = place.cli("run", "agent.py")
    assert (done.returncode, place.effects()) == (0, 1), done.stderr
    assert "an event loop reads the terminal of /process:worker.py#1, which joined the run" in done.stderr
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert {one["code"] for one in why["can_be_replayed"]["reasons"]} == {"uncaptured"}
    again = place.cli("replay", "last")
    assert (again.returncode, "[live-call-blocked]" in again.stderr, place.effects()) == (1, True, 1), again.stderr
