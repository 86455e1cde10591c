"""A replay in a fresh process starts no process that did not join the run, and the program gets the recorded bytes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support.place import READINTO, Place
from tests.support.processes import ROOT
from tracekit import recovery

PROGRAM = """
import asyncio, os, select, selectors, signal, subprocess, sys, threading, time
from subprocess import PIPE, STDOUT
PY = sys.executable

def did(what):
    with open("effects", "a") as file:
        file.write(what)

"""
#: What a process does to be noticed, should a replay start it.
EFFECT = "open('effects', 'a').write('x')"

PROGRAMS = {
    "run": """
print(subprocess.run(["git", "--version"], capture_output=True, text=True))
print(subprocess.run(["sh", "-c", "printf x >> effects; echo out; echo err >&2; exit 3"], capture_output=True))
print(subprocess.run("printf x >> effects; echo $HOME | wc -l", shell=True, capture_output=True, text=True).stdout)
""",
    "check": """
print(subprocess.check_output(["sh", "-c", "echo a; echo b >&2"], stderr=STDOUT))
try:
    subprocess.check_call(["sh", "-c", "exit 5"])
except subprocess.CalledProcessError as error:
    print(error.returncode, error)
print(subprocess.call(["true"]), subprocess.getstatusoutput("echo x; exit 2"))
""",
    "input": """
print(subprocess.run(["tr", "a-z", "A-Z"], input=b"bytes", capture_output=True).stdout)
print(subprocess.run(["tr", "a-z", "A-Z"], input="text", text=True, capture_output=True).stdout)
""",
    "binary": """
print(subprocess.check_output([PY, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))"]))
try:
    subprocess.check_output([PY, "-c", "import sys; sys.stdout.buffer.write(bytes([255]))"], text=True, encoding="utf-8")
except UnicodeDecodeError as error:
    print(error)
print(repr(subprocess.check_output(["printf", "a\\r\\nb"], text=True)), repr(subprocess.check_output(["printf", "a\\r\\nb"])))
""",
    "missing": """
for start in (subprocess.run, subprocess.Popen):
    try:
        start(["no-such-program", "-v"])
    except OSError as error:
        print(type(error), error.errno, error.filename, error)
try:
    subprocess.run(["true"], cwd="nowhere")
except OSError as error:
    print(type(error), error)
""",
    "timeout": """
try:
    subprocess.run(["sh", "-c", "echo begun; exec sleep 60"], capture_output=True, timeout=0.5)
except subprocess.TimeoutExpired as error:
    print(error, error.stdout, error.stderr)
for words in (["sleep", "60"], [PY, "-c", "import time; time.sleep(60)"]):
    try:
        subprocess.run(words, timeout=0.5)  # it names what was left of the limit
    except subprocess.TimeoutExpired as error:
        print(error)
process = subprocess.Popen(["sleep", "60"])
try:
    process.wait(0.01)
except subprocess.TimeoutExpired as error:
    print(error)
print(process.poll())
process.terminate()
print(process.wait(), process.returncode, process.pid)
""",
    "by hand": """
process = subprocess.Popen(["cat"], stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
for line in ("one", "two", "three"):
    process.stdin.write(line + "\\n")
    print(process.stdout.readline(), end="")
process.stdin.close()
print(process.wait(), repr(process.stdout.read()))
with subprocess.Popen(["sh", "-c", "echo a; echo b; exit 4"], stdout=PIPE) as process:
    print([line for line in process.stdout], process.poll())
print(process.returncode)
process = subprocess.Popen(["sh", "-c", "echo left"], stdout=PIPE, stderr=PIPE)
process.wait()
print(process.communicate())
process = subprocess.Popen(["sh", "-c", "echo first; echo rest"], stdout=PIPE, bufsize=0)
print(process.stdout.read(3), process.communicate())
""",
    "broken pipe": """
process = subprocess.Popen(["true"], stdin=PIPE, bufsize=0)
process.wait()
try:
    process.stdin.write(b"x" * 100)
except BrokenPipeError as error:
    print(error)
""",
    "descriptors": """
process = subprocess.Popen(["sh", "-c", "cat; sleep 0.05; echo over"], stdin=PIPE, stdout=PIPE)
into, out = process.stdin.fileno(), process.stdout.fileno()
print(os.write(into, b"through"), select.select([out], [], [], 5)[0] == [out], os.read(out, 4), os.read(out, 100))
os.set_blocking(out, False)
try:
    os.read(out, 1)
except BlockingIOError as error:
    print(error)
print(select.select([process.stdout], [], [], 0.001))
poller = select.poll()
poller.register(process.stdout, select.POLLIN)
print(poller.poll(1), poller.modify(out, select.POLLOUT), poller.poll(1) == [(out, select.POLLHUP)], poller.unregister(out), poller.poll(1))
process.stdin.close()
with selectors.DefaultSelector() as selector:
    selector.register(process.stdout, selectors.EVENT_READ, "text")
    while ready := selector.select(5):
        ((key, events),) = ready
        text = os.read(key.fd, 100)
        print(key.data, events, text)
        if not text:
            break
print(process.wait())
""",
    "a buffer that a descriptor fills": READINTO
    + """
process = subprocess.Popen(["sh", "-c", "printf through; printf x >> effects"], stdout=PIPE)
filled, out = bytearray(5), process.stdout.fileno()
while count := os.readinto(out, filled):
    print(count, filled)
os.set_blocking(out, False)
print(process.wait(), os.readinto(out, filled))
""",
    "a pipeline": """
first = subprocess.Popen(["echo", "through"], stdout=PIPE)
second = subprocess.Popen(["tr", "a-z", "A-Z"], stdin=first.stdout, stdout=PIPE)
first.stdout.close()
print(second.communicate(), first.wait())
""",
    "os": """
print(os.system("printf x >> effects; exit 3"))
with os.popen("printf x >> effects; echo y") as file:
    print(file.read())
print(os.popen("exit 2").close())
""",
    "by number": """
def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

words = ["sh", "-c", "exit 3"]
print(os.spawnl(os.P_WAIT, "/bin/sh", "sh", "-c", "printf x >> effects"))
print(os.spawnv(os.P_WAIT, "/bin/sh", words), os.spawnlp(os.P_WAIT, "sh", *words))
pid = os.spawnvpe(os.P_NOWAIT, "sh", words, dict(os.environ))
print(status(pid), pid)
print([status(start("/bin/sh", words, os.environ)) for start in (os.posix_spawn, os.posix_spawnp)])
pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
print(os.waitpid(pid, os.WNOHANG))
os.kill(pid, signal.SIGTERM)
print(status(pid))
pids = {os.posix_spawn("/bin/sh", ["sh", "-c", f"sleep 0.0{n}; exit {n}"], {}): n for n in (5, 1)}
print([(pids[pid], os.waitstatus_to_exitcode(word)) for pid, word in (os.wait(), os.waitpid(-1, 0))])
for ask in (os.wait, lambda: os.waitpid(pid, 0)):
    try:
        ask()
    except ChildProcessError as error:
        print(error)
try:
    os.posix_spawn("/nowhere/program", ["program"], {})
except FileNotFoundError as error:
    print(error)
""",
    "threads": """
process = subprocess.Popen(["sh", "-c", "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.02; done"], stdout=PIPE, stderr=PIPE, text=True)
found = []
def read(pipe):
    for line in pipe:
        found.append(line.strip())
readers = [threading.Thread(target=read, args=(pipe,)) for pipe in (process.stdout, process.stderr)]
for reader in readers:
    reader.start()
while process.poll() is None:
    time.sleep(0.01)
for reader in readers:
    reader.join()
print(found, process.returncode)
""",
    "asyncio": """
async def main():
    process = await asyncio.create_subprocess_exec("sh", "-c", "printf x >> effects; echo a; echo b >&2; exit 3", stdout=PIPE, stderr=PIPE)
    print(await process.communicate(), process.returncode, process.pid)
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    for n in range(3):
        process.stdin.write(b"line %d\\n" % n)
        await process.stdin.drain()
        print(await process.stdout.readline())
    process.stdin.close()
    print(await process.wait(), await process.stdout.read())
    process = await asyncio.create_subprocess_shell("printf x >> effects; echo shell; cat", stdin=PIPE, stdout=PIPE)
    print(await process.communicate(b"input"))
    try:
        await asyncio.create_subprocess_exec("no-such-program")
    except FileNotFoundError as error:
        print(error)
    process = await asyncio.create_subprocess_exec(PY, "-c", "print(1); import sys; sys.exit(2)", stdout=PIPE)
    print(await process.communicate(), process.returncode)
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await asyncio.wait_for(process.wait(), 0.05)
    except asyncio.TimeoutError:
        process.terminate()
    print(await process.wait())

asyncio.run(main())
""",
    "asyncio, ended before the loop says so": """
import _thread

def ends(pid, ended):
    until = time.monotonic() + 20
    try:
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < until:
            pass
    except OSError:
        pass
    ended.release()

async def main():
    process = await asyncio.create_subprocess_exec("sh", "-c", "printf x >> effects")
    ended = _thread.allocate_lock()
    ended.acquire()
    _thread.start_new_thread(ends, (process.pid, ended))  # no part of the run
    ended.acquire()
    process.kill()
    process.kill()
    await process.wait()
    print(process.returncode is None)

asyncio.run(main())
""",
    "asyncio, side by side": """
async def main():
    seen, ticks = [], 0
    async def one(n):
        process = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 0.0{n}; echo {n}", stdout=PIPE)
        seen.append(await process.stdout.read())
        return await process.wait()
    print(await asyncio.gather(*[one(n) for n in (5, 1, 3)]), seen)
    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.004)
    ticking = asyncio.create_task(tick())
    process = await asyncio.create_subprocess_exec("sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.02; done", stdout=PIPE)
    async for line in process.stdout:
        print(line, ticks)
    print(await process.wait(), ticks)
    ticking.cancel()

asyncio.run(main())
""",
    "anyio": """
import anyio
async def main():
    print(await anyio.run_process(["sh", "-c", "printf x >> effects; echo out; cat"], input=b"in"))
    async with await anyio.open_process(["cat"]) as process:
        await process.stdin.send(b"there")
        print(await process.stdout.receive())
        await process.stdin.aclose()
        print(await process.wait())
    with anyio.move_on_after(0.05):
        await anyio.run_process(["sleep", "60"])
    print("over")

anyio.run(main)
""",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def replayed(place: Place) -> str:
    """What the program prints in a replay in a fresh process where no program is found; each effect has happened once."""
    before = place.effects()
    done = place.cli("replay", "last", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "exact (" in done.stderr, done.stderr
    assert place.effects() == before
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_starts_nothing_and_gives_the_same(name: str, place: Place) -> None:
    """Output, exit status, exceptions and time limits are the recorded ones, and nothing is reported as not captured."""
    place.program(PROGRAM + PROGRAMS[name])
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    assert "not captured" not in done.stderr
    assert done.stdout
    assert place.effects() == PROGRAMS[name].count("printf x >>")
    assert replayed(place) == done.stdout
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert [one["code"] for one in why["can_be_replayed"]["reasons"]] == ["nothing_lacking"]


ASKED_AGAIN = """
ended = subprocess.Popen(["sh", "-c", "exit 3"])
print(subprocess.run(["true"]).returncode, ended.wait(), ended.poll(), ended.wait())

def asks():
    print(ended.poll(), ended.wait())

thread = threading.Thread(target=asks)
thread.start()
thread.join()
"""


def test_what_a_program_knows_of_a_process_is_no_event(place: Place) -> None:
    """The log says how a process ended when a thread learns of it, and not again each time that the thread asks, as
    ``subprocess.run`` does."""
    place.program(PROGRAM + ASKED_AGAIN)
    done = place.cli("run", "agent.py")
    assert done.stdout == "0 3 3 3\n3 3\n", done.stderr
    entries = [json.loads(line) for line in Path(place.runs[0]).read_text().splitlines()]
    asked = [(one["name"], one["lane"]) for one in entries if one.get("name", "").startswith("process.status")]
    names = [name.rpartition(":")[2] for name, _ in asked]
    assert (names, len(set(asked))) == (["true#1", "sh#1", "sh#1"], 3)
    assert replayed(place) == done.stdout


def test_what_goes_to_an_inherited_stream_is_said_to_be_missing(place: Place) -> None:
    """If a process writes to the terminal by itself, a replay says that this output is not shown."""
    place.program(
        PROGRAM
        + 'print(subprocess.run(["sh", "-c", "printf x >> effects; echo out"], stderr=PIPE).returncode, flush=True)\n'
    )
    done = place.cli("run", "agent.py")
    assert (done.returncode, done.stdout, "not captured" in done.stderr) == (0, "out\n0\n", False), done.stderr
    done = place.cli("replay", "last", PATH="/nowhere")
    assert (done.returncode, done.stdout, place.effects()) == (0, "0\n", 1), done.stderr
    assert "sh inherited stdout: what such a process writes there" in done.stderr


def test_a_standard_stream_that_a_process_is_given_is_inherited(place: Place) -> None:
    """A process that is given the program's own standard error, as Playwright's driver is, writes there as one that inherits it, wherever
    that leads to: a file, too."""
    place.program(
        PROGRAM
        + "import tempfile\nwith tempfile.TemporaryFile() as log:\n    os.dup2(log.fileno(), 2)\n"
        + 'print(subprocess.run(["sh", "-c", "printf x >> effects; echo out; echo err >&2"], stdout=PIPE, stderr=sys.stderr.fileno()))\n'
    )
    recorded = place.cli("run", "agent.py")
    assert recorded.returncode == 0, recorded.stderr
    why = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert [one["code"] for one in why["can_be_replayed"]["reasons"]] == ["nothing_lacking"]
    done = place.cli("replay", "last", PATH="/nowhere")
    assert (done.returncode, done.stdout, place.effects()) == (0, recorded.stdout, 1), done.stderr


FRAMED = r"""
server = subprocess.Popen(
    [PY, "-Sc", "import json, os, struct, sys\nwhile head := sys.stdin.buffer.read(4):\n"
     " asked = json.loads(sys.stdin.buffer.read(*struct.unpack('<I', head)))\n"
     " found = json.dumps({'asked': asked, 'set-cookie': 'sid=cookie-' + os.urandom(8).hex()}).encode()\n"
     " sys.stdout.buffer.write(struct.pack('<I', len(found)) + found)\n sys.stdout.buffer.flush()"],
    stdin=PIPE, stdout=PIPE,
)
def ask(what):
    text = json.dumps(what).encode()
    server.stdin.write(struct.pack("<I", len(text)) + text)
    server.stdin.flush()
    (size,) = struct.unpack("<I", server.stdout.read(4))
    return json.loads(server.stdout.read(size))["asked"]
print(ask("one"), ask("two"))
server.stdin.close()
print(server.wait())
"""


def test_a_message_whose_length_is_sent_before_it_may_hold_a_secret(place: Place) -> None:
    """The placeholder has as many bytes, so the program reads the whole message in a replay, too, and not into the next one."""
    place.program("import json, struct\n" + PROGRAM + FRAMED)
    recorded = place.cli("run", "agent.py")
    assert (recorded.returncode, recorded.stdout) == (0, "one two\n0\n"), recorded.stderr
    assert b"REDACTED_" in place.runs[0].read_bytes()
    done = place.cli("replay", "last")
    assert (done.returncode, done.stdout) == (0, recorded.stdout), done.stderr


def test_another_command_is_a_divergence(place: Place) -> None:
    """The command, the directory and the input are compared, and a command that was not recorded is refused."""
    for then, now, told in (
        ('subprocess.run(["git", "--version"])', 'subprocess.run(["git", "version"])', "divergence"),
        ('subprocess.run(["true"])', 'subprocess.run(["true"], cwd="/")', "divergence"),
        (
            'subprocess.run(["cat"], input=b"a", stdout=PIPE)',
            'subprocess.run(["cat"], input=b"b", stdout=PIPE)',
            "divergence",
        ),
        ("pass", f'subprocess.run([PY, "-c", "{EFFECT}"])', "live-call-blocked"),
    ):
        place.program(PROGRAM + then + "\n")
        recorded = place.cli("run", "agent.py")
        assert recorded.returncode == 0, recorded.stderr
        place.program(PROGRAM + now + "\n")
        done = place.cli("replay", "last")
        assert (done.returncode, told in done.stderr, place.effects()) == (1, True, 0), done.stderr


def test_a_swallowed_error_of_a_missing_program_stays_swallowed(place: Place) -> None:
    """A program that went on without ``git`` does so in its replay, even if there is one now."""
    text = 'try:\n    out = subprocess.check_output(["git", "--version"])\nexcept Exception:\n    out = "unknown"\nprint(out)\n'
    place.program(PROGRAM + text)
    recorded = place.cli("run", "agent.py", PATH="/nowhere")
    assert recorded.stdout == "unknown\n"
    done = place.cli("replay", "last")
    assert (done.returncode, done.stdout) == (0, "unknown\n"), done.stderr


FILES = """
def given(mode, *command):
    with open("out", mode) as file:
        file.write("head\\n")
        file.flush()
        subprocess.run([*command], stdout=file, stderr=STDOUT)
        file.write("tail\\n")
    return open("out").read()

print(given("w", "sh", "-c", "printf x >> effects; echo $$"), given("a", "cat", "effects"), given("w+", "echo", "x"))
with tempfile.NamedTemporaryFile("w+") as file:
    subprocess.run(["echo", "elsewhere"], stdout=file)
    print(file.seek(0), file.read())
with open("out", "w+") as file:
    pid = os.posix_spawnp("echo", ["echo", "x"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), 1)])
    print(os.waitpid(pid, 0)[1], file.seek(0), file.read())
async def loop():
    with open("out", "w+") as file:
        process = await asyncio.create_subprocess_exec("echo", "x", stdout=file)
        return await process.wait(), file.tell(), file.seek(0), file.read()
print(asyncio.run(loop()))
with open("data", "w") as file:
    file.write("a\\nb\\nc\\n")
with open("data") as file:
    print(subprocess.run(["head", "-c", "2"], stdin=file, stdout=PIPE).stdout, repr(file.read()))
with open(os.devnull, "w") as file:
    print([subprocess.run(["echo", "x"], stdout=one).returncode for one in (file, sys.stderr, 2)])
"""


def test_a_file_of_the_programs_that_a_process_is_given(place: Place) -> None:
    """What a process writes to it is there in a replay, and what the program reads or writes next is at the same place; none is told."""
    place.program(PROGRAM + "import tempfile\n" + FILES)
    recorded = place.cli("run", "agent.py")
    assert (recorded.returncode, "not captured" in recorded.stderr) == (0, False), recorded.stderr
    assert "0 elsewhere" in recorded.stdout
    assert "(0, 2, 0, 'x\\n')" in recorded.stdout
    assert "b'a\\n' 'b\\nc\\n'" in recorded.stdout
    for name in ("out", "data"):
        (place.directory / name).unlink()
    done = place.cli("replay", "last")
    assert (done.returncode, done.stdout) == (0, recorded.stdout), done.stderr


ELSEWHERE = {
    "a pipe": "r, w = os.pipe()\nsubprocess.run(['echo', 'x'], stdout=w)\nos.close(w)\nprint(os.read(r, 9))\n",
    "pass_fds": "r, w = os.pipe()\nsubprocess.run(['sh', '-c', f'echo x >&{w}'], pass_fds=[w])\nos.close(w)\nprint(os.read(r, 9))\n",
    "a socket": "a, b = socket.socketpair()\nsubprocess.run(['echo', 'x'], stdout=b)\nb.close()\nprint(a.recv(9))\n",
    "a file": "with tempfile.TemporaryFile() as f:\n    subprocess.run(['echo', 'x'], stdout=f)\n    print(f.seek(0), f.read())\n",
    "whose file is read": (
        "with open('out', 'w') as file:\n    process = subprocess.Popen(['sh', '-c', 'echo x; read x'], stdin=PIPE, stdout=file)\n"
        "while not open('out').read():\n    time.sleep(0.01)\nprint(process.communicate()[0])\n"
    ),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_a_process_writes_elsewhere_is_told_and_refused(place: Place, what: str) -> None:
    """The run says when it is recorded that something a process writes to is not in the trace, and a replay refuses it there."""
    place.program(PROGRAM + "import socket, tempfile\n" + ELSEWHERE[what])
    recorded = place.cli("run", "agent.py")
    assert recorded.returncode == 0, recorded.stderr
    told = "writes to a pipe" if what == "pass_fds" else what
    assert told in next(line for line in recorded.stderr.splitlines() if "not captured" in line)
    done = place.cli("replay", "last")
    assert done.returncode == 1
    assert "[live-call-blocked]" in done.stderr
    assert "give it `stdout=PIPE`" in done.stderr


def test_a_pipe_that_is_read_by_nothing_known_is_told(place: Place) -> None:
    """The run says so if a pipe is read neither by its file object nor by ``os.read``, since its data is not captured."""
    place.program(
        PROGRAM
        + 'process = subprocess.Popen(["echo", "x"], stdout=PIPE)\nprint(os.fdopen(os.dup(process.stdout.fileno())).read())\n'
    )
    done = place.cli("run", "agent.py")
    assert "the descriptor of the stdout of the process" in done.stderr
    reasons = json.loads(place.cli("show", "last", "--why", "--json").stdout)["can_be_replayed"]["reasons"]
    assert [one["code"] for one in reasons] == ["uncaptured"]


# -- effects -------------------------------------------------------------------------------------------------------------------

KILLED = PROGRAM + """
print(subprocess.run(["uname"], capture_output=True).stdout)
subprocess.run([PY, "-c", "import os, signal; open('effects', 'a').write('x'); os.kill(os.getppid(), signal.SIGKILL)"])
"""  # fmt: skip


def test_killed_between_intention_and_outcome(place: Place) -> None:
    """The intention is in the log before the process starts; after a kill it is not started again, and is in doubt,
    listed apart from declared effects."""
    place.program(KILLED)
    assert place.cli("run", "agent.py").returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert place.effects() == 1
    (one,) = recovery.in_doubt(place.store).undeclared
    assert (one.name, one.arguments["command"][:2], one.declared) == ("python", ["python", "-c"], False)
    assert recovery.in_doubt(place.store).in_doubt == ()
    (decision,) = map(json.loads, place.cli("recovery", "scan", "--json").stdout.splitlines())
    codes = {reason["code"] for reason in decision["reasons"]}
    assert (decision["decision"], "irreversible_pending" in codes, decision["undeclared"]) == (
        "abort",
        True,
        [one.step],
    )
    resumed = place.cli("recovery", "resume", place.run)
    assert (resumed.returncode, place.effects()) == (4, 1), resumed.stderr


def test_a_run_goes_on_after_processes_that_have_ended(place: Place) -> None:
    """In a resumed run an ended process is answered, one that only reads is started again, and later ones are started
    for the first time."""
    place.program(
        PROGRAM
        + """
import tracekit
tracekit.instrument(processes={"sh -c *read*": "read_only"})
print(subprocess.run(["sh", "-c", "printf x >> effects; echo done"], capture_output=True).stdout)
out = subprocess.run(["sh", "-c", "test -e again || kill -9 $PPID; echo read"], capture_output=True).stdout
print(out)
print(subprocess.run(["sh", "-c", "printf x >> effects; echo after"], capture_output=True).stdout)
"""
    )
    assert place.cli("run", "agent.py").returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert place.effects() == 1
    (place.directory / "again").touch()
    done = place.cli("recovery", "resume", place.run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("b'done\\n'\nb'read\\n'\nb'after\\n'\n")
    assert place.effects() == 2
    assert replayed(place).endswith("b'done\\n'\nb'read\\n'\nb'after\\n'\n")


def effects_of(place: Place) -> dict[str, Any]:
    (path,) = place.runs
    entries = map(json.loads, path.read_bytes().splitlines())
    return {
        " ".join(one["input"]["command"]): one["meta"]["side_effect"]
        for one in entries
        if one["type"] == "process.start"
    }


def test_classes(place: Place) -> None:
    """A command that is known or declared only to ask is read-only; everything else, including more than one program,
    is irreversible."""
    commands = {
        "git rev-parse --is-inside-work-tree": "read_only",
        "git status --short": "read_only",
        "uname -s": "read_only",
        "/usr/bin/git --version": "read_only",
        "./git --version": "irreversible",
        "git commit -m x": "irreversible",
        "git rev-list --output=x HEAD": "irreversible",
        "hostname": "read_only",
        "hostname other": "irreversible",
        "sh -c true": "irreversible",
        "mine --look here": "read_only",
        "mine --write": "irreversible",
        "mine --undo": "reversible",
    }
    text = (
        "import tracekit\ntracekit.instrument(processes={'mine --look*': 'read_only', 'mine --undo': 'reversible'})\n"
    )
    text += f"for words in {[*commands]!r}:\n    try:\n        subprocess.run(words.split(), capture_output=True)\n"
    text += "    except OSError:\n        pass\n"
    place.program(PROGRAM + text)
    done = place.cli("run", "agent.py", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert effects_of(place) == commands


def test_who_is_given_a_ticket(place: Place) -> None:
    """A command that only asks gets no variable to join the run, unless its program is Python; a replay starts neither."""
    shell = '#!/bin/sh\nprintf x >> effects\necho "${TRACEKIT_JOIN:+ticket}"\n'
    python = "#!/usr/bin/env python3\nimport os\nopen('effects', 'a').write('x')\nprint('ticket' * ('TRACEKIT_JOIN' in os.environ))\n"
    for name, text in (("hostname", shell), ("uname", shell), ("mine", shell), ("whoami", python)):
        path = place.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    commands = ["hostname", "uname -s", "hostname other", "mine", "whoami", "nproc", "sh -c hostname"]
    place.program(
        PROGRAM
        + 'os.environ["PATH"] = os.path.abspath("bin") + ":" + os.environ["PATH"]\n'
        + f"for words in {commands!r}:\n"
        + "    print(words, subprocess.run(words.split(), capture_output=True, text=True).stdout.strip())\n"
    )
    done = place.cli("run", "agent.py")
    assert done.returncode == 0, done.stderr
    said = [
        line.rpartition(" ")[2] == "ticket" for line in done.stdout.splitlines() if line.startswith(tuple(commands))
    ]
    assert said == [False, False, True, True, True, False, True]
    assert place.effects() == 6
    assert replayed(place) == done.stdout
    assert place.effects() == 6


@pytest.mark.parametrize(
    ("command", "side_effect"),
    [
        ("git status", "read_only"),
        ("git status; rm x", "irreversible"),
        ("git status > x", "irreversible"),
        ("git status $(rm x)", "irreversible"),
        ("mine", "read_only"),
        ("mine; rm x", "irreversible"),
    ],
)
def test_a_shell_that_does_more_than_one_program(command: str, side_effect: str, tmp_path: Path) -> None:
    """A pattern applies only to a shell text that is one program."""
    import subprocess

    tracekit.instrument(processes={"mine*": "read_only"})
    try:
        with tracekit.record("r", store=str(tmp_path)) as run:
            subprocess.run(command, shell=True, capture_output=True, env={"PATH": "/nowhere"}, cwd=tmp_path)
    finally:
        tracekit.uninstrument()
    entries = map(json.loads, Path(run.path).read_bytes().splitlines())
    assert [one["meta"]["side_effect"] for one in entries if one["type"] == "process.start"] == [side_effect]


def test_a_command_can_only_have_a_known_class_of_side_effect() -> None:
    """``instrument(processes=…)`` refuses a class that does not exist at once, and names those that do."""
    with pytest.raises(ValueError, match="is not one of read_only, reversible, irreversible"):
        tracekit.instrument(processes={"git*": "harmless"})


def test_inside_a_tool_the_tools_class_covers_it(place: Place) -> None:
    """A process started in a tool is no step of its own, and a replay answers the tool."""
    place.program(
        PROGRAM
        + """
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def shell(command):
    return subprocess.check_output(command, shell=True, text=True)

print(shell("printf x >> effects; echo out"))
"""
    )
    done = place.cli("run", "agent.py")
    assert "process.start" not in place.runs[0].read_text()
    assert replayed(place) == done.stdout


def test_a_secret_in_a_command_is_not_in_the_trace(place: Place) -> None:
    """A secret is stored neither from the command nor from its output."""
    secret = "sk-ant-api03-" + "Ab3" * 20
    text = f'secret = "{secret}"\nprint(subprocess.check_output(["echo", "--password", secret]) != b"")\n'
    place.program(PROGRAM + text)
    assert place.cli("run", "agent.py").returncode == 0
    assert secret not in place.runs[0].read_text()
    assert place.cli("replay", "last", PATH="/nowhere").returncode == 0


def test_signals_reach_nobody_in_a_replay(place: Place) -> None:
    """A replay sends no signal, as the recorded process id may be another process's by now."""
    text = 'process = subprocess.Popen(["sleep", "60"])\nprocess.send_signal(signal.SIGTERM)\nprint(process.wait())\nprint(process.pid)\n'
    place.program(PROGRAM + text)
    done = place.cli("run", "agent.py")
    number = int(done.stdout.splitlines()[-1])
    (path,) = place.runs
    assert f'"pid":"{number}"' in path.read_text()
    assert replayed(place) == done.stdout


def test_signals_by_number_reach_nobody_in_a_replay(place: Place) -> None:
    """The same holds for ``os.kill`` of the recorded id and ``os.killpg`` of its group."""
    text = """
first = subprocess.Popen(["sleep", "60"])
os.kill(first.pid, signal.SIGTERM)
second = subprocess.Popen(["sleep", "60"], start_new_session=True)
os.killpg(os.getpgid(second.pid), signal.SIGTERM)
print(first.wait(), second.wait())
try:
    os.kill(first.pid, signal.SIGTERM)
except ProcessLookupError as error:
    print(error)
third, fourth = subprocess.Popen(["sleep", "60"], preexec_fn=os.setsid), subprocess.Popen(["sleep", "60"])
os.killpg(third.pid, signal.SIGTERM)
try:
    os.killpg(fourth.pid, signal.SIGTERM)  # which leads no group
except ProcessLookupError as error:
    print(error)
fourth.kill()
print(third.wait(), fourth.wait())
"""
    place.program(PROGRAM + text)
    done = place.cli("run", "agent.py")
    assert done.stdout.startswith("-15 -15\n"), done.stderr
    assert done.stdout.endswith("-15 -9\n"), done.stderr
    assert "not captured" not in done.stderr
    assert replayed(place) == done.stdout


def test_the_documentation_has_the_table() -> None:
    """The settings reference lists exactly the commands that count as only asking."""
    from tracekit._capture.commands import HARMLESS

    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    table = text.partition("<!-- harmless commands -->")[2].partition("<!-- end -->")[0]
    assert table.strip().splitlines()[1:-1] == [*HARMLESS]


COLLECTED = """
import gc, os, subprocess
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

class Holder:
    def __init__(self):
        self.process = subprocess.Popen(["uname"], stdout=subprocess.PIPE)
        self.itself = self

    def __del__(self):
        self.process.stdout.close()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

gc.disable()
print(Holder().process.stdout.read())
if "PYTHON_COLLECT" in os.environ:
    gc.collect()
print(look(1))
"""


def test_a_finalizer_that_ends_a_process(place: Place) -> None:
    """When a finalizer runs is chance: replays in which it ends a process and in which it never runs are exact, whether
    it ran in the recording or not."""
    place.program(COLLECTED)
    for recorded in ({"PYTHON_COLLECT": "1"}, {}):
        done = place.cli("run", "agent.py", **recorded)
        assert done.returncode == 0, done.stderr
        for replayed in ({"PYTHON_COLLECT": "1"}, {}):
            again = place.cli("replay", "last", **replayed)
            assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
