"""``tracekit debug``, and of ``tracekit replay``: programs that are elsewhere, single functions."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.processes import forking, python
from tracekit._capture import isolation
from tracekit.cli import launch
from tracekit.cli.debug import debug as debugger
from tracekit.errors import RunStateError
from tracekit.integration import Store, Trace, read_run

PROGRAM = """\
import time
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def send(to):
    print("live")
    return None

where = "acme"
def main():
    started = time.time()
    done = send(where)
    print("after", done)

main()
"""

ENTRY = """\
import asyncio, inspect
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(number):
    return number * 2

@record("handle")
KEYWORD def handle(number):
    return look(number)

def main():
    made = handle(4)
    if inspect.iscoroutine(made):
        asyncio.run(made)
"""


CONCURRENT = """\
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, "site-packages")
import library
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n * 2

async def worker(name):
    mine = f"worker {name}"
    await asyncio.sleep(0)
    return await asyncio.to_thread(look, name), look(name)

def on_done(task):
    seen = look("callback")

def in_pool(n):
    mine = f"pool {n}"
    return look(n)

async def main():
    tasks = [asyncio.create_task(worker(name)) for name in "ab"]
    tasks[0].add_done_callback(on_done)
    await asyncio.gather(*tasks)
    await library.in_task(look, "task")

asyncio.run(main())
with ThreadPoolExecutor(2) as pool:
    list(pool.map(in_pool, range(2)))
library.in_thread(look, "thread")
"""

LIBRARY = """\
import asyncio, threading

async def in_task(function, value):
    async def inner():
        return function(value)
    return await asyncio.create_task(inner())

def in_thread(function, value):
    thread = threading.Thread(target=lambda: function(value))
    thread.start()
    thread.join()
"""

LOOP = """\
import time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return {"n": n, "odd": n % 2 == 1}

def main():
    for i in range(4):
        try:
            got = look(i)
        except BaseException:
            open("../reached", "w").close()
            raise
        print("got", i)
        if i == 2:
            breakpoint()
        stamp = time.time()

main()
"""


#: Runs on and on, where there is a file beside its directory.
SPIN = """print("spinning", flush=True)
            while os.path.exists("../spin"):
                pass"""


def command(*arguments: str, stdin: str = "", cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    main = "from tracekit.cli import main; main()"
    return python("-c", main, *arguments, input=stdin, cwd=cwd, env={**_environment(), **variables}, seeds=("0",))


def _environment() -> dict[str, str]:
    """Where modules are found does not depend on the working directory."""
    places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, places))}


Debug = Callable[..., str]


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Debug:
    """``tracekit debug last`` in this process, with these lines typed at its prompt; returns what was printed on stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)

    def run(*lines: str, options: Sequence[str] = (), status: int = 0, run: str = "last") -> str:
        typed = tmp_path.parent / f"{tmp_path.name}.typed"
        typed.write_text("".join(f"{line}\n" for line in lines))
        capfd.readouterr()
        with open(typed) as stdin, forking(children=True), monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            with pytest.raises(SystemExit) as left:
                debugger.main([run, *options])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        assert left.value.code == status, out + err
        run_stderr.append(err)
        return out

    run_stderr: list[str] = []
    run.stderr = run_stderr  # type: ignore[attr-defined]
    return run


def recorded(tmp_path: Path, program: str) -> list[int]:
    """Record a program; returns the numbers of its tool calls."""
    (tmp_path / "program.py").write_text(program)
    done = command("run", "program.py", cwd=tmp_path, PYTHONBREAKPOINT="0")
    assert done.returncode == 0, done.stderr
    with Trace(Store().list()[0].path) as trace:
        return [entry["seq"] for entry in trace.entries() if entry["type"] == "tool.call"]


def stops(text: str) -> list[int | str]:
    """The steps that the debugger has shown, in order."""
    found = re.findall(r"^(?:\(debug\) |\(Pdb\) )*step (\S+) \(", text, re.MULTILINE)
    return [int(place) if place.isdigit() else place for place in found]


def test_it_stops_in_the_frame_that_makes_the_step(tmp_path: Path) -> None:
    """The prompt stands at the user's line; what is typed there is no part of the run, and the replay goes on exactly."""
    (step,) = recorded(tmp_path, PROGRAM)
    lines = "p where\np time.time() > 0\nanswer\nlist\npdb\nn\np done\nc\n"
    done = command("debug", "last", "--at", str(step), stdin=lines, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{os.sep}program.py(12)main()" in done.stdout
    assert "-> done = send(where)" in done.stdout
    assert "'acme'" in done.stdout
    assert "True" in done.stdout
    assert "output\n    null" in done.stdout
    assert "  12 ->     done = send(where)" in done.stdout
    assert "program.py(13)main()" in done.stdout
    assert "(Pdb) None" in done.stdout
    assert "after None" in done.stdout
    assert "live" not in done.stdout
    assert "1 step matched" in done.stderr
    assert "left in the debugger" not in done.stderr


def test_back_and_forth(tmp_path: Path, debug: Debug) -> None:
    """Steps are gone to by number, one by one, and by what they have; what was printed once is not printed again on the way back."""
    one, two, three, four = recorded(tmp_path, LOOP.replace("breakpoint()", "pass"))
    out = debug("step", "p i", "back", "p i", f"goto {three}", "p i", "b", "rn", "last", "first", "quit", status=1)
    assert stops(out) == [one, two, one, three, two, one, four, one]
    assert re.findall(r"\(debug\) (\d)$", out, re.MULTILINE) == ["1", "0", "2"]
    assert out.count("got 0") == 3  # each time that it was gone past, forwards
    assert "left in the debugger" in debug.stderr[-1]  # type: ignore[attr-defined]
    out = debug(
        *("until answer['odd']", "until n", "until input['n'] > 2", "reverse-until tool:look", "break input['n'] == 1"),
        *("break 12345", "rc", "reverse-continue", "c", "clear", "goto 4711", "until nothing > 2", "q"),
        status=1,
    )
    assert stops(out) == [one, two, four, three, two, one, two]
    assert "no step of this run is n; there are tool:look" in out
    assert out.count("no step begins there: entry 12345 is past the last one") == 1
    assert "no step begins there: entry 4711 is past the last one" in out
    assert "nothing: a condition knows step, kind," in out


def test_each_answer_ends_its_line(tmp_path: Path, debug: Debug) -> None:
    """What the debugger prints ends with a line end, whatever letters are in it."""
    recorded(tmp_path, LOOP.replace("breakpoint()", "pass"))
    out = debug("p 'käse'", "help", "q", "p 'too late'", status=1)
    assert "too late" not in out
    assert "(debug) 'käse'\n" in out
    assert re.search(r"writes a new run\.\n  help \[COMMAND\] ", out)


def test_the_lines_of_threads_tasks_and_callbacks(tmp_path: Path, debug: Debug) -> None:
    """A step that a library's thread or task makes stops in the line of the program that waits for it, with the variables there."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library.py").write_text(LIBRARY)
    recorded(tmp_path, CONCURRENT)
    out = debug("until input['n'] == 'a'", *("s",) * 8, "p mine", "where", "c", options=["--at", str(_first_call())])
    found = dict(re.findall(r"look\(n=(\w+)\)[^\n]*\n> [^\n]*program\.py\(\d+\)(\S+)\(\)\n", out))
    assert found == {
        "a": "worker",
        "b": "worker",
        "callback": "on_done",
        "task": "main",
        "0": "in_pool",
        "1": "in_pool",
        "thread": "<module>",
    }
    by_line = dict(re.findall(r"look\(n=(\w+)\)[^\n]*\n> [^\n]*\n-> ([^\n]*)\n", out))
    assert by_line["task"] == 'await library.in_task(look, "task")'
    assert by_line["thread"] == 'library.in_thread(look, "thread")'
    assert "return await asyncio.to_thread(look, name), look(name)" in out


def _first_call() -> int:
    with Trace(Store().list()[0].path) as trace:
        return next(entry["seq"] for entry in trace.entries() if entry["type"] == "tool.call")


def test_breakpoint_and_line_by_line(tmp_path: Path, debug: Debug) -> None:
    """``pdb`` from a step on, whose ``c`` goes on to the next step, and ``breakpoint()`` in the program, on the way to another step."""
    steps = recorded(tmp_path, LOOP)
    out = debug("pdb", "n", "p got", "c", "last", "p i", "n", "p stamp > 0", "c", "p i", "c")
    assert "(Pdb) {'n': 0, 'odd': False}" in out
    assert stops(out) == [steps[0], steps[1], steps[3]]
    assert re.findall(r"^\((\w+)\) (\d|True)$", out, re.MULTILINE) == [("Pdb", "2"), ("Pdb", "True"), ("debug", "3")]
    assert "exact (4 steps matched)" in debug.stderr[-1]  # type: ignore[attr-defined]


IN_THREAD = """\
import threading
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

def price(offers):
    best = min(offers)
    return best

look(1)
thread = threading.Thread(target=price, args=([3, 2],))
thread.start()
thread.join()
look(2)
"""


def test_a_breakpoint_of_pdb_in_a_thread_that_starts_later(tmp_path: Path, debug: Debug) -> None:
    """A framework runs a tool in a thread: a breakpoint there stops, and goes on line by line; nothing is printed at the end."""
    recorded(tmp_path, IN_THREAD)
    out = debug("pdb", "b program.py:10", "c", "p best", "n", "c", "c")
    assert "(Pdb) 2\n" in out
    assert "-> return best" in out
    assert "exact (2 steps matched)" in debug.stderr[-1]  # type: ignore[attr-defined]
    assert "Exception ignored" not in debug.stderr[-1]  # type: ignore[attr-defined]


def test_nothing_of_the_debugger_reaches_the_program(tmp_path: Path, debug: Debug) -> None:
    """Errors at the prompt, live calls there, leaving it and ``pdb``: the program's handlers see none of them, and a replay stays exact."""
    recorded(tmp_path, LOOP)
    out = debug("p 1/0", "look(7)", "import socket; socket.create_connection(('192.0.2.1', 9))", "p (", "c", "c")
    assert "*** ZeroDivisionError" in out
    assert out.count("LiveCallBlockedError") == 2
    assert "*** SyntaxError" in out
    assert "exact (4 steps matched)" in debug.stderr[-1]  # type: ignore[attr-defined]
    for left in (["q"], ["pdb", "q", "q"], ["pdb", "n"]):
        assert ("the replay was left in pdb" in debug(*left, status=1)) == ("pdb" in left)
        assert "Traceback" not in debug.stderr[-1]  # type: ignore[attr-defined]
    assert not (tmp_path.parent / "reached").exists()


def test_leaving_pdb_in_a_replay_is_no_success(tmp_path: Path) -> None:
    """``breakpoint()`` in a replay: what is typed is not a part of it, and ``q`` ends it with exit code 1 and one sentence."""
    recorded(tmp_path, LOOP)
    done = command("replay", "last", stdin="p time.time() > 0\nc\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(Pdb) True" in done.stdout
    assert "exact (4 steps matched)" in done.stderr
    left = command("replay", "last", stdin="q\n", cwd=tmp_path)
    assert left.returncode == 1
    assert "left in the debugger" in left.stderr
    assert "Traceback" not in left.stderr


def test_a_terminal(tmp_path: Path) -> None:
    """Tab completes commands; Ctrl-C drops what is typed, and ends a replay that runs, not the debugger; Ctrl-D leaves it."""
    (place := tmp_path / "place").mkdir()
    recorded(place, "import os\n" + LOOP.replace("breakpoint()", SPIN))
    (tmp_path / "spin").touch()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(place)
        os.execv(sys.executable, [sys.executable, "-m", "tracekit", "debug", "last"])
    seen = ""

    def until(text: str) -> str:
        nonlocal seen
        while text not in seen:
            assert select.select([terminal], [], [], 60)[0], seen
            seen += os.read(terminal, 4096).decode()
        before, _, seen = seen.partition(text)
        return before

    def interrupt() -> None:
        """Ctrl-C once it waits: what comes just before that, Python's ``input`` hears of with the next key only."""
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)
        os.write(terminal, b"\x03")

    try:
        until("(debug) ")
        os.write(terminal, b"revers\tc\t\n")  # `reverse-`, with which three begin, then `reverse-continue`
        assert "step 2 (1 of 4)" in until("(debug) ")
        os.write(terminal, b"nonsense")
        until("nonsense")
        interrupt()
        until("(debug) ")
        os.write(terminal, b"c\n")
        until("spinning")
        interrupt()
        assert "interrupted; the replay was ended" in until("(debug) ")
        os.write(terminal, b"p 20 + 2\nfirst\n")
        assert "the replay does not stand at a step" in until("(debug) ")
        until("step 2 (1 of 4)")
        until("(debug) ")
        os.write(terminal, b"\x04")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
        process = 0
    finally:
        os.close(terminal)
        if process:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def test_what_if_from_here(tmp_path: Path, debug: Debug) -> None:
    """From the step at which it stands, chosen kinds go live, those before it do not; what comes of it is a new run, which has the program
    that made it, without the secrets in its arguments, and can be replayed as any."""
    steps = recorded(tmp_path, LOOP.replace("breakpoint()", "pass").replace("n % 2 == 1", "time.perf_counter_ns()"))
    origin = Store().list()[0].run_id
    secret = ["--password", "correct-horse-battery"]
    what_if = (f"goto {steps[2]}", "what-if decision", "what-if tool:look", f"goto {steps[2]}", "q")
    debug(*what_if, options=["--", "program.py", *secret])  # which ends as its last what-if did
    again = command("replay", "last", cwd=tmp_path)
    assert "exact (4 steps matched)" in again.stderr, again.stderr
    new = next(run for run in Store().list() if run.run_id != origin)
    with Trace(Store().list()[-1].path) as before, Trace(new.path) as after:
        outputs = [
            [trace.expand(entry["output"]) for entry in trace.entries() if entry["type"] == "tool.return"]
            for trace in (before, after)
        ]
    same = [old == now for old, now in zip(*outputs, strict=True)]
    assert same == [True, True, False, False]
    assert secret[1].encode() not in Path(new.path).read_bytes()


def test_a_step_at_which_nothing_can_stop_is_refused(tmp_path: Path) -> None:
    """An entry at which no step begins is named as what it is."""
    (step,) = recorded(tmp_path, PROGRAM)
    done = command("debug", "last", "--at", str(step + 1), cwd=tmp_path)
    assert done.returncode == 2
    assert f"entry {step + 1} is of type tool.return, which belongs to step {step}" in done.stderr
    assert "'end' is not the number of a step" in command("debug", "last", "--at", "end", cwd=tmp_path).stderr
    text = command("debug", "last", "--at", "999", cwd=tmp_path).stderr
    assert "entry 999 is past the last one" in text
    listed = re.search(r"next: +`tracekit (show .*?)`", text)  # the command that it names works as printed
    assert listed is not None
    assert f"{step} tool" in command(*listed[1].split(), cwd=tmp_path).stdout


CHILDREN = """\
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

@traced_tool(side_effect="read_only")
def below(n):
    return n

def worker(n):
    print("worker", n, flush=True)
    mine = f"worker {n}"
    below(n)
    last = below(n + 1)
    return last

if __name__ == "__main__":
    look(1)
    if len(sys.argv) > 1:
        child = os.fork()
        if child == 0:
            worker(7)
            os._exit(0)
        os.waitpid(child, 0)
    else:
        child = multiprocessing.get_context("spawn").Process(target=worker, args=(7,))
        child.start()
        child.join()
    with ProcessPoolExecutor(1) as pool:
        print(pool.submit(worker, 20).result())
    look(3)
"""


@pytest.mark.parametrize("how", [(), ("fork",)], ids=["spawned", "forked"])
def test_steps_of_child_processes(tmp_path: Path, debug: Debug, how: tuple[str, ...]) -> None:
    """It stops in the lines of child processes and of a pool's calls as in the program's own, back and forth across them, by segment and
    number, by name, and by what a step has; what a child process printed is not shown again, and the replay stays exact."""
    (tmp_path / "program.py").write_text(CHILDREN)
    assert command("run", "program.py", *how, cwd=tmp_path).returncode == 0
    with read_run(Store().list()[0].path) as view:
        child, call = sorted((file for file in view.files[1:] if file.steps), key=lambda file: file.first["ts_ns"])
        first, last = (step.place for step in view.own.steps.values() if step.kind == "tool")
        one, two, three, four = (
            str(step.place) for file in (child, call) for step in file.steps.values() if step.kind == "tool"
        )
    name = child.process.rpartition("/")[2]

    lines = ["step", "p mine", "step", "next", "step", "next", "back 2", "back"]
    lines += ["until name == 'look'", "reverse-until name == 'look'", "c"]
    out = debug(*lines)
    assert stops(out) == [first, one, two, three, four, two, one, last, first]
    assert "(debug) 'worker 7'" in out
    assert "this lane has no later step" in out
    assert f"in the process {child.process}" in out
    assert out.count("worker 7\n") == 1
    assert "exact (6 steps matched, 4 of them in 2 processes)" in debug.stderr[-1]  # type: ignore[attr-defined]

    number = two.rpartition(":")[2]
    out = debug("p mine", "pdb", "n", "p last", "c", options=["--at", f"{name}:{number}"])
    assert stops(out)[0] == two
    assert "(Pdb) 8" in out
    assert stops(debug("p 1/0", "c", options=["--at", f"{child.segment[:9]}:{number}"])) == [two]
    refused = command("debug", "last", "--at", f"{child.segment}:99", cwd=tmp_path)
    assert (refused.returncode, f"entry {child.segment}:99 is past the last one" in refused.stderr) == (2, True)
    assert "is no child process other in this run" in command("debug", "last", "--at", "other:2", cwd=tmp_path).stderr


SIDE_BY_SIDE = """\
import sys, threading
from tracekit import decision

def work(me):
    for n in range(200):
        decision("go on", input=me, output=n)

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work, args=(me,)) for me in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_make_steps_at_the_same_moment(tmp_path: Path, debug: Debug) -> None:
    """Each goes on as without a debugger: the program gets nothing of how it asks how far it may go."""
    (tmp_path / "program.py").write_text(SIDE_BY_SIDE)
    assert command("run", "program.py", cwd=tmp_path).returncode == 0
    assert "the replay has ended (exit code 0)" in debug("c")
    assert "exact (600 steps matched)" in debug.stderr[-1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("unread", [False, True])
def test_a_debugger_that_is_gone_ends_the_child_process_in_which_it_stood(tmp_path: Path, unread: bool) -> None:
    """Nothing of it reaches the program: no handler runs, nothing is printed, no process is left; whether or not it was answered."""
    program = CHILDREN.replace(
        "    below(n)\n", "    try:\n        below(n)\n    finally:\n        print('left', flush=True)\n"
    )
    (tmp_path / "program.py").write_text(program)
    assert command("run", "program.py", cwd=tmp_path).returncode == 0
    printed = tmp_path / "printed"
    started = [sys.executable, "-m", "tracekit", "debug", "last"]
    with open(printed, "wb") as out:
        debugged = subprocess.Popen(
            started, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=tmp_path, env=_environment()
        )
    assert debugged.stdin is not None
    # It stands still before the answer to this line comes, and never reads it.
    stop = f"ctypes.CDLL(None).kill({debugged.pid}, {int(signal.SIGSTOP)}); " if unread else ""
    debugged.stdin.write(f"step\nimport ctypes, os; {stop}print('pid', os.getpid(), flush=True)\n".encode())
    debugged.stdin.flush()
    while not (found := re.search(r"pid (\d+)\n", printed.read_text())):
        assert debugged.poll() is None, printed.read_text()
        time.sleep(0.05)
    debugged.kill()
    debugged.wait()
    debugged.stdin.close()
    while os.path.exists(f"/proc/{found[1]}"):
        time.sleep(0.05)
    assert "left" not in printed.read_text()
    assert "Traceback" not in printed.read_text()


def test_drift_is_told_once(tmp_path: Path) -> None:
    """What the summary says is not said as a Python warning before."""
    recorded(tmp_path, PROGRAM)
    path = Store().list()[0].path
    assert json.loads(Path(path).read_bytes().splitlines()[0])["meta"]["environment"]["hash_seed"] == 0
    done = command("replay", path, "--", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_a_program_that_is_not_here_is_named(tmp_path: Path) -> None:
    """A trace that comes from another machine: the replay says which path is missing, and how to name the program."""
    recorded(tmp_path, PROGRAM)
    (tmp_path / "program.py").rename(tmp_path / "moved.py")
    done = command("replay", "last", cwd=tmp_path)
    assert done.returncode == 2
    assert "program.py, which is not here" in done.stderr
    assert re.search(r"next: .*tracekit replay [0-9a-f-]{36} -- SCRIPT", done.stderr)
    assert "Traceback" not in done.stderr
    assert command("replay", "last", "--", "moved.py", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("keyword", ["", "async "])
def test_one_function_is_replayed_with_its_input(tmp_path: Path, keyword: str) -> None:
    """``--entry`` calls a recorded function, coroutine or not, with the arguments that it had."""
    (tmp_path / "service.py").write_text(ENTRY.replace("KEYWORD ", keyword))
    call = "import service; service.main()"
    subprocess.run([sys.executable, "-c", call], cwd=tmp_path, env=_environment(), check=True, timeout=60)
    done = command("replay", "last", "--entry", "service:handle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 step matched" in done.stderr


def test_isolation_that_was_asked_for_is_had_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--isolate=on`` does not go on without a network namespace; ``auto`` does, and says so."""
    monkeypatch.setattr(isolation, "enter", lambda: "not isolated: not allowed")
    monkeypatch.setattr(isolation, "available", lambda: True)
    with pytest.raises(RunStateError, match="not allowed"):
        launch.isolate("on", [])
    assert launch.isolate("auto", []) == "not isolated: not allowed"
