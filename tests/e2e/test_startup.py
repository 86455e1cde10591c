"""What a program that has just been started imports with tracekit, and that nothing is missed since the rest is imported later."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes import python

#: What ``record``, ``replay`` and ``traced_tool`` may import beside Python's own start: tracekit's modules, orjson, and these,
#: the last line of which Python's own modules import from 3.12, 3.13 or 3.14 on.
_NAMES = """
    __future__ _ast _bisect _collections _contextvars _ctypes _datetime _functools _heapq _json _opcode _operator _queue
    _signal _sre _string _struct _typing _uuid _weakref _weakrefset array ast atexit base64 binascii bisect collections contextlib
    contextvars copy copyreg ctypes dataclasses datetime dis enum errno fcntl fnmatch functools gc heapq importlib inspect
    itertools json keyword linecache math opcode operator platform posix re reprlib select signal stat string struct
    textwrap threading token tokenize types typing uuid warnings weakref
    _opcode_metadata _tokenize annotationlib
"""
#: Without the C extension, or a processor with instructions for SHA-256, hashes are those of ``hashlib``, which loads OpenSSL.
_HASHED_IN_C = (
    os.environ.get("TRACEKIT_PURE", "0") in ("", "0")
    and find_spec("tracekit._native._compiled") is not None
    and " sha_ni" in Path("/proc/cpuinfo").read_text()
)
ALLOWED = frozenset(_NAMES.split()) | (set() if _HASHED_IN_C else {"_blake2", "_hashlib", "hashlib"})

LIST = """\
import sys
before = set(sys.modules)
from tracekit import record, replay, traced_tool
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""

TELL = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
FIRST = "from tracekit import record\nwith record('first'): pass\n"
TOOL = """\
from tracekit import record, traced_tool
@traced_tool(side_effect="read_only")
def look(order): return order
with record("first"): look("a-17")
"""
JOINS = """\
import subprocess, sys, tracekit
tracekit.instrument()
with tracekit.record("parent"):
    subprocess.run([sys.executable, "-c", "import tracekit\\n" + sys.argv[1]], check=True)
"""
#: Prints what a replay opens and lists beside the modules that it imports.
OPENS = """\
import os, sys
from tracekit import record, replay, traced_tool
@traced_tool(side_effect="read_only")
def look(order): return order
with record("first") as run: look("a-17")
with replay(run.id): look("a-17")
seen = []
def hook(event, args):
    if event in ("open", "os.listdir", "os.scandir") and type(args[0]) is str:
        seen.append(args[0])
sys.addaudithook(hook)
with replay(run.id): look("a-17")
print(*(os.path.relpath(path, os.environ["TRACEKIT_DIR"]).replace(run.id, "ID") for path in [*seen]), sep="\\n")
"""
#: What else a process imports that records, or is recorded, beside the integrations, which are packages of tracekit's own.
#: From Python 3.13 on ``glob`` lists directories for ``pathlib``, and its own reference to the function is replaced.
RECORDED = ALLOWED | {"_random", "ipaddress", "urllib"} | ({"glob"} if sys.version_info >= (3, 13) else set())

#: Each imports what it uses inside the run.
PARTS = {
    "tasks": """
def part():
    import asyncio
    async def task(n):
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append((n, random.random()))
        try:
            async with asyncio.timeout(0.001 * n):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append(time.monotonic())
        return await asyncio.to_thread(lambda: random.random())
    async def main():
        seen.extend(await asyncio.gather(*(task(n) for n in range(1, 4))))
    asyncio.run(main())
""",
    "tasks in a thread": """
def part():
    def work():
        import asyncio
        async def task(n):
            await asyncio.sleep(0)
            seen.append((n, random.random()))
        async def main():
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(task(n))
        asyncio.run(main())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
""",
    "imported by a thread outside": """
begun, imported = threading.Event(), threading.Event()
def imports():
    begun.wait()
    import asyncio, concurrent.futures.thread, queue
    imported.set()
threading.Thread(target=imports).start()
def part():
    begun.set()
    imported.wait()
    import asyncio
    async def task(n):
        await asyncio.sleep(0.001)
        seen.append((n, random.random()))
    async def main():
        await asyncio.gather(*(task(n) for n in range(3)))
    asyncio.run(main())
""",
    "pools and queues": """
def part():
    import queue
    from concurrent.futures import ThreadPoolExecutor, as_completed
    items = queue.Queue()
    def work(n):
        items.put(n)
        return n, random.random()
    with ThreadPoolExecutor(2) as pool:
        for future in as_completed([pool.submit(work, n) for n in range(4)]):
            seen.append(future.result())
    seen.extend([items.get(timeout=5) for _ in range(4)] + [items.qsize(), items.empty()])
""",
    "processes": """
def part():
    import subprocess
    seen.append(subprocess.run([sys.executable, "-S", "-c", "print(3)"], capture_output=True, text=True).stdout)
""",
    "sockets": """
def part():
    import socket
    with socket.socket() as ours:
        try:
            ours.connect(("127.0.0.1", 1))
        except OSError as error:
            seen.append(error.errno)
""",
}

PROGRAM = """\
import random, sys, threading, time
kind, store = sys.argv[1:]
{early}
from tracekit import record, replay
seen = []
{part}
if kind == "record":
    assert "asyncio" not in sys.modules
    with record("late", run_id="late", store=store) as run:
        part()
    print(run.warnings, file=sys.stderr)
else:
    with replay("late", store=store) as session:
        part()
    print(session.report.verdict.line, file=sys.stderr)
print(seen)
"""


def test_what_is_imported() -> None:
    """``from tracekit import record, replay, traced_tool`` imports no more than this: no asyncio, socket, subprocess or logging, nor
    OpenSSL."""
    found = set(python("-c", LIST, fresh=True).stdout.split())
    others = {name for name in found if not name.startswith(("tracekit", "_sysconfigdata_"))}
    assert "orjson" in others
    assert others - ALLOWED == {"orjson"}


#: tracekit's own modules that neither the names, nor a plain tool, nor a first run imports which has no budget, process, failure or trace
#: to read.
LATER = """
    _capture.commands _capture.contracted _capture.popen _capture.stdio _capture.wire _journal.indexes _journal.keys _journal.packing
    _journal.reader _journal.seals _policy.once _runs.partial _runs.replayed_children _runs.replaying _runtime.loop_queue
    _runtime.mutations _runtime.places _runtime.prices _runtime.recovered _runtime.signal_calls _runtime.spending _runtime.verdict
    _values.decoding
"""
#: Those that are imported while a run or a trace is opened, where no lock is held, may import other packages.
OPENING = {"_capture.wire", "_journal.indexes", "_runs.partial", "_runs.replaying"}
IMPORTS_THE_REST = """
import importlib, sys
print(*sys.modules)
for name in {}:
    importlib.import_module("tracekit." + name)
print(*sys.modules)
"""


def test_what_is_needed_later_is_imported_later(tmp_path: Path) -> None:
    """Neither the names, a tool nor a first run imports modules that it does not use, nor ``urllib``; and those that are imported on first
    use import nothing but tracekit: a lock may be held there, and whoever is importing another package may be waiting for it."""
    later = {"urllib", "shlex", "tracekit_openai._chat", *(f"tracekit.{name}" for name in LATER.split())}
    # A secret in the environment that is more than letters and digits needs the quoting of URLs.
    variables = {"PATH": os.environ["PATH"], "TRACEKIT_DIR": str(tmp_path)}
    rest = sorted(set(LATER.split()) - OPENING)
    program = "import tracekit; tracekit.instrument()\n" + TOOL + IMPORTS_THE_REST.format(rest)
    done = python("-c", program, fresh=True, env=variables)
    assert done.returncode == 0, done.stderr
    first, then = (set(line.split()) for line in done.stdout.splitlines())
    if "tracekit._native._compiled" in first:
        later.add("tracekit._native.pure")
    assert not later & first
    others = {name for name in then - first if not name.startswith("tracekit.")}
    assert others <= {"array", "math"}  # which run no Python code


#: Prints every regular expression of tracekit's that is compiled once the names are imported.
COMPILES = """\
import re, sys
from tracekit import record, traced_tool
compiled = re.compile
def compiling(*given):
    if sys._getframe(1).f_globals["__name__"].startswith("tracekit"):
        print(given[0])
    return compiled(*given)
re.compile = compiling
"""


def test_a_first_run_compiles_no_expression(tmp_path: Path) -> None:
    """A first tool and a first run compile no regular expression: each takes as long as many recorded calls."""
    done = python("-c", COMPILES + TOOL, fresh=True, env={"PATH": os.environ["PATH"], "TRACEKIT_DIR": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("start", ["a first run", "a tool", "a child process", "tracekit run"])
def test_what_a_process_imports_that_is_recorded(tmp_path: Path, start: str) -> None:
    """A first ``record()``, a first tool, a child process that joins a run, and a program under ``tracekit run`` import no more than
    this: no asyncio, socket, subprocess, click or importlib.metadata that the program does not import itself."""
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    if start in ("a first run", "a tool"):
        done = python("-c", (FIRST if start == "a first run" else TOOL) + TELL, fresh=True, env=environment)
    elif start == "a child process":
        done = python("-c", JOINS, TELL, fresh=True, env=environment)
    else:
        (tmp_path / "program.py").write_text(TELL)
        done = python("-m", "tracekit", "run", str(tmp_path / "program.py"), fresh=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = {name for name in done.stdout.split() if not name.startswith(("tracekit", "_sysconfigdata_"))}
    bare = set(python("-c", TELL, fresh=True).stdout.split())
    assert "orjson" in found
    assert found - bare - RECORDED == ({"orjson", "runpy"} if start == "tracekit run" else {"orjson"})
    assert len(list((tmp_path / "store" / "runs").glob("*.jsonl"))) == (2 if start == "a child process" else 1)


#: Runs a command, and prints what its process has imported.
COMMAND = """\
import sys
from tracekit.cli import main
try:
    main(sys.argv[1:], standalone_mode=False)
except SystemExit:
    pass
print(*sys.modules)
"""


@pytest.mark.parametrize("command", ["list", "show last", "verify last", "replay --dry-run last"])
def test_a_command_that_records_nothing_imports_no_hooks(tmp_path: Path, command: str) -> None:
    """A command that reads runs, or starts a program in another process, does not load what is put into functions of that one."""
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    (tmp_path / "program.py").write_text(TOOL)
    python(str(tmp_path / "program.py"), fresh=True, env=environment)
    done = python("-c", COMMAND, *command.split(), fresh=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.splitlines()[-1].split())
    assert "tracekit.cli.commands" in found
    assert not {"ctypes", "tracekit._capture.guard", "tracekit._capture.in_place"} & found


def test_a_second_replay_opens_nothing_but_its_run(tmp_path: Path) -> None:
    """A replay of one thread reads its file, looks for others beside it, and asks nothing of the system about threads and processes."""
    done = python("-c", OPENS, fresh=True, env={**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")})
    assert done.returncode == 0, done.stderr
    opened = set(done.stdout.split())
    assert "runs/ID.jsonl" in opened
    assert opened <= {"runs/ID.jsonl", "runs/ID.seal", "runs", "heads/ID", "vault"}


@pytest.mark.parametrize("name", [name for name in PARTS if name != "sockets"])
def test_what_is_imported_inside_a_run_is_captured(tmp_path: Path, name: str) -> None:
    """A library that is imported after a run has begun, by whatever thread, is captured as one that was there: the replay, in which it was
    imported before, is exact."""
    early = "import asyncio, concurrent.futures.thread, queue, subprocess"
    recorded = python("-c", PROGRAM.format(part=PARTS[name], early=""), "record", str(tmp_path), fresh=True)
    assert (recorded.returncode, recorded.stderr) == (0, "[]\n")
    replayed = python("-c", PROGRAM.format(part=PARTS[name], early=early), "replay", str(tmp_path))
    assert (replayed.stdout, replayed.stderr) == (recorded.stdout, "exact\n")


def test_a_socket_that_is_imported_inside_a_run_is_seen(tmp_path: Path) -> None:
    """A connection made with a socket module that was imported after the run had begun is in its boundary; a replay refuses it."""
    program = PROGRAM.format(part=PARTS["sockets"], early="")
    recorded = python("-c", program, "record", str(tmp_path), fresh=True)
    assert recorded.returncode == 0
    assert "127.0.0.1:1" in recorded.stderr
    replayed = python("-c", program, "replay", str(tmp_path), fresh=True)
    assert "LiveCallBlockedError" in replayed.stderr


INTERRUPTED = """
import os, sys

class Interrupts:
    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise KeyboardInterrupt

for name in {"dataclasses", "datetime", "enum", "json", "uuid"} - sys.modules.keys():
    pid = os.fork()
    if not pid:
        sys.meta_path.insert(0, Interrupts(name))
        try:
            from tracekit import record
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_ctrl_c_while_tracekit_is_imported_is_an_exception() -> None:
    """And no crash of the interpreter: orjson, which is loaded with it, does not check what it imports itself."""
    done = python("-c", INTERRUPTED, fresh=True)
    assert {line.split()[1] for line in done.stdout.splitlines()} == {"7"}, done.stdout + done.stderr
    assert "json" in done.stdout
