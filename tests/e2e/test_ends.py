"""How a program ends under ``tracekit run`` and ``tracekit replay``: by signals, crashes, ``os._exit``, threads and
exit callbacks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes
from tests.support.place import PACKAGES, TOOL, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def entries(place: Place) -> list[dict[str, Any]]:
    (path,) = place.runs
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# -- the process ---------------------------------------------------------------------------------------------------------


def heeding() -> None:
    """In a new process: what who started the tests has had ignored (``nohup``) is not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT])
def test_a_signal_to_the_command_is_one_to_the_program(place: Place, sent: signal.Signals) -> None:
    """The agent runs in the process of ``tracekit run``, so that whatever ends the command ends the agent, and nothing
    more is paid."""
    script = place.program(
        TOOL
        + """
charge(1)
try:
    print(os.getpid(), flush=True)
    while True:
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
    )
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    with subprocess.Popen(
        [sys.executable, "-m", "tracekit", "run", script],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=place.directory, env=environment, start_new_session=True,
        preexec_fn=heeding,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == process.pid
            process.send_signal(sent)
            rest = process.stdout.read()
            assert process.wait(30) == -sent
        finally:
            process.kill()
    assert rest == ("interrupted\n" if sent == signal.SIGINT else "")
    assert place.effects() == 1
    assert place.cli("verify", place.run).returncode == (0 if sent == signal.SIGINT else 3)


def test_the_environment_of_a_run_is_that_of_its_program(place: Place) -> None:
    """The recorded ``argv`` and code revision are the program's, not those of what records it."""
    script = place.program(TOOL + "charge(1)\n")
    (place.directory / ".git").mkdir()
    (place.directory / ".git" / "HEAD").write_text("ab" * 20 + "\n")
    assert place.cli("run", script, "--fast").returncode == 0
    environment = entries(place)[0]["meta"]["environment"]
    assert environment["argv"] == [script, "--fast"]
    assert environment["revision"] == "ab" * 20
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 0
    assert "revision" not in replayed.stderr


def test_a_traceback_is_the_programs_own(place: Place) -> None:
    """The traceback of a failing program is the same with and without tracekit, in a recording and in a replay."""
    script = place.program(TOOL + "charge(1)\nraise ValueError('boom')\n")
    plain = subprocess.run(
        [sys.executable, script], cwd=place.directory, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES)},
    )  # fmt: skip
    trace = plain.stderr.replace(f'"{script}"', f'"{place.directory / script}"')
    trace = trace.replace(str(place.directory / place.directory / script), str(place.directory / script))
    recorded, replayed = place.cli("run", script), None
    replayed = place.cli("replay", place.run)
    for done in (recorded, replayed):
        assert trace in done.stderr
    assert "the recorded program ended with ValueError, status 1; so did this one" in replayed.stderr


@pytest.mark.parametrize(
    ("command", "said"), [(["bad.py"], "SyntaxError"), (["-m", "no_such_module"], "No module named 'no_such_module'")]
)
def test_what_can_not_be_run_is_told_as_python_tells_it(place: Place, command: list[str], said: str) -> None:
    """For a syntax error or a missing module the message is Python's own, the status is 1, and no run is made."""
    place.program("def (:\n", "bad.py")
    done = place.cli("run", *command)
    assert done.returncode == 1
    assert said in done.stderr
    assert "tracekit" not in done.stderr.replace(str(place.directory), "").replace(sys.executable, "")
    assert place.runs == []


def test_a_run_that_captured_nothing_says_so(place: Place) -> None:
    """A run that captured nothing says so at its end, with what to do."""
    done = place.cli("run", place.program("print('hello')\n"))
    assert done.stdout == "hello\n"
    assert "no model call, tool or HTTP call was captured" in done.stderr
    assert "@traced_tool" in done.stderr
    named = re.search(r"`tracekit (show .*? --why)`", done.stderr)
    assert named is not None
    assert "can be replayed" in place.cli(*named[1].split()).stdout


def test_a_program_that_only_read_replays(place: Place) -> None:
    """A program that only read inputs replays exactly, since a replay gives it those."""
    script = place.program("import pathlib\nprint(pathlib.Path('notes.txt').read_text())\n")
    (place.directory / "notes.txt").write_text("one")
    assert place.cli("run", script).returncode == 0
    done = place.cli("replay", "last")
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr


# -- how it ended --------------------------------------------------------------------------------------------------------

_RUNTIME = "raise RuntimeError('went wrong')"


@pytest.mark.parametrize(
    ("before", "after", "recorded", "now"),
    [
        (_RUNTIME, "print('fixed')", "RuntimeError: went wrong", "exit status 0"),
        (_RUNTIME, "{}['bug']", "RuntimeError: went wrong", "KeyError: 'bug'"),
        (_RUNTIME, "raise RuntimeError('other')", "RuntimeError: went wrong", "RuntimeError: other"),
        (_RUNTIME, "sys.exit(3)", "RuntimeError: went wrong", "exit status 3"),
        ("sys.exit(3)", "sys.exit(0)", "3", "0"),
        ("sys.exit(0)", "sys.exit(9)", "0", "9"),
        ("os._exit(7)", "pass", "7", "0"),
        ("sys.exit(0)", "os._exit(7)", "0", "7"),
    ],
)
def test_another_end_is_a_difference(place: Place, before: str, after: str, recorded: str, now: str) -> None:
    """If all steps match but the program ends in another way, the exit code is 1, and both ends are named."""
    script = place.program(TOOL + f"charge(5)\n{before}\n")
    place.cli("run", script)
    place.program(TOOL + f"charge(5)\n{after}\n")
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert f"recorded  {recorded}\n" in replayed.stderr
    assert f"now       {now}\n" in replayed.stderr


def test_a_failure_that_was_not_recorded(place: Place) -> None:
    """If the recorded program ended cleanly and this one fails, the exit code is 1, and its traceback is shown."""
    script = place.program(TOOL + "charge(5)\n")
    place.cli("run", script)
    place.program(TOOL + "charge(5)\n{}['bug']\n")
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "KeyError: 'bug'" in replayed.stderr
    assert "the program ended with KeyError, status 1, and the recorded one did not" in replayed.stderr


# -- os._exit ------------------------------------------------------------------------------------------------------------


def test_a_hard_exit_leaves_a_run_that_replays(place: Place) -> None:
    """``os._exit(7)`` under ``tracekit run`` gives status 7 and a complete run, whose replay ends in the same way and
    is exact."""
    script = place.program(TOOL + "print(charge(5), flush=True)\nos._exit(7)\n")
    recorded = place.cli("run", script)
    assert recorded.returncode == 7
    assert place.cli("verify", place.run).returncode == 0
    assert entries(place)[-1]["output"] == {"status": 7}
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert place.effects() == 1


def test_a_hard_exit_inside_a_tool_stays_in_doubt(place: Place) -> None:
    """If a program leaves by ``os._exit`` in the middle of an effect, its trace has no end, and the effect is in doubt."""
    script = place.program(TOOL.replace("return f", "os._exit(3)\n    return f") + "charge(5)\n")
    assert place.cli("run", script).returncode == 3
    assert place.cli("verify", place.run).returncode == 3
    written = [entry["type"] for entry in entries(place)]
    assert [kind for kind in written if kind != "input"] == ["run.started", "tool.call"]  # it has written a file, too


@pytest.mark.parametrize("own", [False, True], ids=["whole program", "record()"])
def test_a_hard_exit_hides_no_divergence(place: Place, own: bool) -> None:
    """``except BaseException: os._exit(0)`` does not turn a failed or unfinished replay into a success."""
    calls = "    charge(int(os.environ['CENTS']))\n    if 'LEAVE' in os.environ: os._exit(0)\n    charge(7)\n"
    block = f"with record():\n{calls}" if own else f"if True:\n{calls}"
    text = "".join(f"    {line}\n" for line in block.splitlines())
    script = place.program(TOOL + f"try:\n{text}except BaseException:\n    os._exit(0)\nos._exit(0)\n")
    recorded = place.cli("run", script, CENTS="5")
    assert recorded.returncode == 0, recorded.stderr
    assert place.effects() == 2
    assert place.cli("replay", place.run, CENTS="5").returncode == 0
    diverged = place.cli("replay", place.run, "--live-env", "CENTS", CENTS="6")
    assert diverged.returncode == 1
    assert "now       6" in diverged.stderr
    early = place.cli("replay", place.run, "--live-env", "LEAVE", CENTS="5", LEAVE="1")
    assert early.returncode == 1
    assert "never requested" in early.stderr
    assert place.effects() == 2


# -- what comes after the last line ---------------------------------------------------------------------------------------


def test_what_a_program_does_at_exit_is_part_of_its_run(place: Place) -> None:
    """Steps of non-daemon threads, exit callbacks and the program's ``sys.excepthook`` are in the trace in Python's
    order, and a replay answers them."""
    script = place.program(
        TOOL
        + """
import atexit, threading
atexit.register(lambda: print("first registered", charge(4), flush=True))
atexit.register(lambda: print("last registered", charge(3), flush=True))
go = threading.Event()
def late():
    go.wait()
    print("thread", charge(2), flush=True)
threading.Thread(target=late).start()
def hook(kind, error, trace):
    print("hook", kind.__name__, charge(1), flush=True)
    go.set()
sys.excepthook = hook
raise KeyError("x")
"""
    )
    recorded = place.cli("run", script)
    assert recorded.returncode == 1, recorded.stderr
    assert [line.split(" receipt")[0] for line in recorded.stdout.splitlines()] == [
        "hook KeyError", "thread", "last registered", "first registered",
    ]  # fmt: skip
    called = [entry["input"]["cents"] for entry in entries(place) if entry["type"] == "tool.call"]
    assert called == [1, 2, 3, 4]
    assert place.effects() == 4
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert place.effects() == 4


def test_a_divergence_at_exit_is_one(place: Place) -> None:
    """If an exit callback differs in the replay, the exit code is 1, and its effect does not happen."""
    script = place.program(
        TOOL + "import atexit\natexit.register(lambda: charge(2 if os.path.exists('now') else 1))\ncharge(0)\n"
    )
    assert place.cli("run", script).returncode == 0
    assert place.effects() == 2
    place.program("", "now")
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "now       2" in replayed.stderr
    assert place.effects() == 2


# -- what there is to say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["replay", "last"], 2),
        (["replay", "last", "--dry-run"], 2),
        (["show", "last"], 3),
        (["show", "last", "--why", "--json"], 3),
        (["verify", "last"], 3),
    ],
)
def test_an_empty_file(place: Place, command: list[str], status: int) -> None:
    """A trace without an entry gets a clear message and the documented exit code, without a traceback, and is never
    called safe."""
    runs = place.store / "runs"
    runs.mkdir(parents=True)
    (runs / "empty.jsonl").touch()
    done = place.cli(*command)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert "has no entries" in done.stdout + done.stderr
    if "--why" in command:
        answers = json.loads(done.stdout)
        assert answers["safe_to_retry"]["answer"] is None
        assert answers["can_be_replayed"]["answer"] is False


def test_redacted_arguments_are_told(place: Place) -> None:
    """A replay of a program whose arguments held a secret says how to give them again, and matches if they are given
    so."""
    script = place.program(TOOL + "charge(sum(map(ord, sys.argv[1])))\n")
    key = "sk-proj-" + "a1B2" * 12
    assert place.cli("run", script, key).returncode == 0
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert f"tracekit replay {place.run} -- {place.directory / script} ARGS" in replayed.stderr
    assert place.cli("replay", place.run, "--", script, key).returncode == 0


def test_the_guard_speaks_the_command_lines_words(place: Place) -> None:
    """For a refused connection ``tracekit replay`` advises one of its own options."""
    script = place.program(
        TOOL + "import socket\ncharge(1)\nif 'now' in os.environ: socket.create_connection(('192.0.2.1', 9))\n"
    )
    assert place.cli("run", script).returncode == 0
    replayed = place.cli("replay", place.run, "--live-env", "now", now="1")
    assert replayed.returncode == 1
    assert "--allow-host 192.0.2.1:9" in replayed.stderr
    assert "replay(...," not in replayed.stderr


def test_a_stop_inside_another_step_is_refused(place: Place) -> None:
    """``tracekit debug --at`` refuses a step inside another one, whose body a replay does not run, and names the outer
    step."""
    script = place.program(
        TOOL + "@traced_tool(side_effect='read_only')\ndef outer():\n    return charge(3)\n\nprint(outer())\n"
    )
    assert place.cli("run", script).returncode == 0
    outer, inner = (entry["seq"] for entry in entries(place) if entry["type"] == "tool.call")
    missed = place.cli("debug", place.run, "--at", str(inner))
    assert missed.returncode == 2
    assert f"step {inner} happened inside step {outer} (tool outer)" in missed.stderr
    reached = place.cli("debug", place.run, "--at", str(outer), input="c\n")
    assert f"step {outer} (1 of 1)" in reached.stdout
    assert reached.returncode == 0


def test_what_a_run_warns_of_is_told_in_a_line(place: Place) -> None:
    """A warning of the run is one line after its id, without a place in tracekit's own code."""
    script = place.program(TOOL.replace("return f", "return 'sk-proj-' + 'a1B2' * 12\n    return f") + "charge(1)\n")
    recorded = place.cli("run", script)
    assert "tracekit:   the output of tool 'charge' was redacted" in recorded.stderr
    assert "launch.py" not in recorded.stderr


# -- the end of a block ------------------------------------------------------------------------------------------------

LEFT_BEHIND = """
import asyncio, os, signal
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
async def look(number):
    for _ in range(number):
        await asyncio.sleep(0.001)
    if os.environ.get("DIE") == str(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return number, os.urandom(4)

async def answer(number):
    return await look(number), await look(number + 1)

async def handle():
    async with record("left behind") as run:
        beside = [asyncio.create_task(answer(number)) for number in (20, 30, 40)]
        run.set_result(await look(1))
    print([task.done() for task in beside], [task.result() for task in beside])
"""


@pytest.mark.parametrize("how", ["replay", "entry", "resume"])
def test_tasks_that_outlive_what_their_block_runs_end_with_it(place: Place, how: str) -> None:
    """A block waits at its end for the tasks that it left behind, also where a command replays or resumes it."""
    place.program(LEFT_BEHIND, "handler.py")
    script = place.program("import asyncio\nfrom handler import handle\nasyncio.run(handle())\n")
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}
    died = {"DIE": "21"} if how == "resume" else {}
    recorded = processes.python(script, cwd=place.directory, env={**environment, **died})
    if how == "resume":
        assert recorded.returncode == -signal.SIGKILL
        recorded = place.cli("recovery", "resume", place.run)
    assert recorded.stdout.startswith("[True, True, True] [((20, "), recorded.stderr
    entry = ["--entry", "handler:handle"] if how == "entry" else []
    replayed = place.cli("replay", place.run, *entry)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


def test_a_limit_on_the_size_of_files_ends_the_log_and_not_the_program(place: Place) -> None:
    """What the program writes below the limit is written, its own write beyond it fails as without tracekit, and the end
    says which log lacks how much, and what to do."""
    place.program(
        """
import os, resource
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return "x" * n

look(900)
limit = os.path.getsize(next(one.path for one in os.scandir(os.environ["TRACEKIT_DIR"] + "/runs") if one.name.endswith(".jsonl")))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
print(len(look(900)), len(look(800)))
with open("small", "w") as file:
    file.write("here")
try:
    with open("large", "wb", buffering=0) as file:
        file.write(b"x" * limit)
        file.write(b"x")
except OSError as error:
    print(error.strerror)
print(open("small").read())
"""
    )
    done = place.cli("run", "agent.py")
    assert (done.returncode, done.stdout) == (2, "900 800\nFile too large\nhere\n"), done.stderr
    (run,) = place.runs
    assert f"{run} can't be written: [Errno 27] File too large" in done.stderr
    assert re.search(r"; [2-9] calls or readings are missing from it\n", done.stderr)
    assert "raise the limit on the size of files of the process (`ulimit -f`) before the next run" in done.stderr
    assert "free space" not in done.stderr
    assert place.cli("verify", "last").returncode == 3
