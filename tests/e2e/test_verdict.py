"""One verdict on a replay and on a run: the report, errors and warnings, exit codes, ``show --why``, a dry run and the test kit agree."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import PACKAGES, TOOL, Place
from tests.support.processes import python
from tracekit import (
    DivergenceError,
    InexactReplayError,
    InexactReplayWarning,
    NotReplayableError,
    ReplayError,
    StepTimeoutError,
    decision,
    record,
    replay,
    traced_model,
    traced_tool,
)
from tracekit.testing import assert_replays

SECRET = "sk-proj-" + "a1B2" * 12


@traced_tool(side_effect="read_only")
def look(n: Any) -> Any:
    return n


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def recorded(program: Callable[[], Any], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with record("x", **options) as run:
            run.set_result(program())
    return run


# -- a replay ------------------------------------------------------------------------------------------------------------


def test_an_exact_replay_says_so_and_counts_its_remarks() -> None:
    """Clock reads more or fewer and placeholders that were handed out don't make a replay inexact; the line counts them."""
    run = recorded(lambda: [look(SECRET), time.time(), look(1)])
    with replay(run) as session:
        assert session.report.verdict.answer == "unknown"
        look(SECRET)
        time.time()
        time.time()
        look(1)
    verdict = session.report.verdict
    assert (verdict.answer, verdict.exit_code, session.report.exact) == ("exact", 0, True)
    assert verdict.line == "exact, 1 redacted, 1 clock read more or fewer"
    assert sorted(one["code"] for one in verdict.as_dict()["remarks"]) == ["clock", "redacted"]
    assert verdict.line in repr(session.report)


@pytest.mark.parametrize("strict", ["clock", "redacted"])
def test_strict_makes_a_remark_inexact(strict: Any) -> None:
    """``strict=`` names the remarks that a caller does not accept: the block raises, with the code and the place, and says how to go on."""
    run = recorded(lambda: [look(SECRET), time.time() and look(1)])

    def program() -> Any:
        value = look(SECRET)
        time.time()
        return [value, time.time() and look(1)]

    with pytest.raises(InexactReplayError) as failure, replay(run, strict={strict}) as session:
        program()
    assert {reason["code"] for reason in failure.value.reasons} == {strict}  # type: ignore[attr-defined]
    assert f'leave "{strict}" out of strict' in str(failure.value)
    assert isinstance(failure.value, ReplayError)
    assert (session.report.exact, session.report.verdict.exit_code) == (False, 1)
    assert session.report.failure is failure.value
    with pytest.raises(InexactReplayError):
        assert_replays(run, program, strict={strict})


def test_another_model_is_passed_over_where_the_caller_asked_for_that() -> None:
    """``on_divergence="warn"`` answers a model call with another model id, a warning at the end says so, and the verdict is inexact."""

    def ask(model: str) -> Any:
        return traced_model(model=model)(lambda prompt: prompt.upper())("hello")

    run = recorded(lambda: ask("small"))
    with pytest.raises(DivergenceError), replay(run):
        ask("large")
    with pytest.warns(InexactReplayWarning, match="1 difference passed over"):
        report = assert_replays(run, ask, "large", on_divergence="warn")
    (reason,) = report.verdict.reasons
    assert reason.code == "passed_over"
    assert "name" in [one["path"] for one in reason.facts["differences"]]
    assert (report.exact, report.verdict.exit_code) == (False, 1)


def test_another_result_is_a_reason_too() -> None:
    """Leniency holds for the result: a warning, and the reason ``result``; without it the difference is raised."""
    run = recorded(lambda: look(1))
    with pytest.raises(DivergenceError) as failure, replay(run) as session:
        session.set_result(look(1) + 1)
    assert "another result" in str(failure.value)
    assert [one.code for one in session.report.verdict.reasons] == ["result"]
    with pytest.warns(InexactReplayWarning, match="1 other result"), replay(run, on_divergence="warn") as session:
        session.set_result(look(1) + 1)
    assert [one.code for one in session.report.verdict.reasons] == ["result"]


def test_the_programs_own_error_is_never_displaced() -> None:
    """Neither by the verdict nor by its warning, not even where warnings are errors; the error carries a note instead."""
    run = recorded(lambda: [look(1), look(2)])

    def program() -> None:
        look(1)
        raise LookupError("mine")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LookupError, match="mine") as raised, replay(run) as session:
            program()
    assert any("was not exact" in note for note in raised.value.__notes__)
    assert {one.code for one in session.report.verdict.reasons} == {"error", "unconsumed_steps"}


def test_the_same_error_as_recorded_is_exact() -> None:
    """A recorded run that failed: the replay raises what it raised, and is exact."""

    def program() -> None:
        look(1)
        raise LookupError("then and now")

    with pytest.raises(LookupError), record("x") as run:
        program()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LookupError, match="then and now"), replay(run) as session:
            program()
    assert session.report.exact
    assert session.report.verdict.line == "exact"


def test_what_the_caller_allowed_is_listed() -> None:
    """Steps that go live, hosts that may be reached and a guard that is off: exact but for those, and no failure."""
    run = recorded(lambda: look(1))
    with replay(run, live={"tool"}) as session:
        look(1)
    assert session.report.verdict.line == "exact but for 1 step that went live"
    assert (session.report.exact, session.report.verdict.exit_code) == (False, 0)
    with replay(run, guard="off") as session:
        session.set_result(look(1))
    assert session.report.verdict.answer == "exact but for"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with replay(run, allow_hosts=[f"127.0.0.1:{port}"]) as session:
            socket.create_connection(("127.0.0.1", port)).close()
            session.set_result(look(1))
        assert session.report.verdict.line == "exact but for 1 connection to an allowed host"
        with replay(run, allow_hosts=[f"127.0.0.1:{port}"]) as session:  # allowed, and never used
            session.set_result(look(1))
        assert session.report.exact


def test_an_iterator_that_a_tool_was_given_leaves_it_open(tmp_path: Path) -> None:
    """A replay takes nothing from an iterator that the recorded tool took items from: whether it can be replayed is not known."""

    @traced_tool(side_effect="read_only")
    def first(items: Any) -> Any:
        return next(items)

    with record("iterator", store=tmp_path) as run:
        first(iter([1, 2]))
    done = python("-m", "tracekit", "show", run.path, "--why", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["can_be_replayed"]
    assert (found["answer"], [one["code"] for one in found["reasons"]]) == (None, ["iterator"])


def test_a_recording_without_an_end_is_never_called_exact(tmp_path: Path) -> None:
    """Every step of it was answered; how it would have ended nobody knows."""
    run = recorded(lambda: look(1), store=tmp_path)
    path = Path(run.path)
    lines = path.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut" / path.name
    cut.parent.mkdir()
    cut.write_bytes(b"".join(lines[:-1]))
    with replay(cut) as session:
        look(1)
    verdict = session.report.verdict
    assert (verdict.answer, verdict.exit_code, session.report.exact) == ("unknown", 3, False)
    assert [one.code for one in verdict.unknown] == ["incomplete"]


def test_an_exception_of_another_type_is_not_exact(tmp_path: Path) -> None:
    """A tool raised what this process has no class for: the program got something else than then, and the verdict says so."""
    program = """
    import sys
    from tracekit import record, replay, traced_tool

    {type}

    @traced_tool(side_effect="read_only")
    def fail():
        raise Odd("no")

    def main():
        try:
            fail()
        except Exception as error:
            print(error)
    """
    place = Place(tmp_path)
    here = "class Odd(Exception): pass"
    place.program(program.replace("{type}", here) + '\n    with record("x"): main()\n')
    assert _python(place).returncode == 0
    place.program(program.replace("{type}", "") + f'\n    with replay("{place.run}"): main()\n')
    done = _python(place)
    assert "InexactReplayError" in done.stderr
    assert "exception: step 2" in done.stderr


def _python(place: Place) -> subprocess.CompletedProcess[str]:
    environment = {"TRACEKIT_DIR": str(place.store), "PYTHONPATH": ":".join(PACKAGES), "PATH": "/usr/bin:/bin"}
    return python("agent.py", cwd=place.directory, env=environment)


def test_the_test_kit_adds_nothing() -> None:
    """``assert_replays`` raises what the replay raises: a read of the clock more is no failure, another result is."""
    run = recorded(lambda: [look(1), time.time()])
    first = json.loads(Path(run.path).read_bytes().splitlines()[-1])["output"]

    def more() -> Any:
        value = [look(1), time.time()]
        time.time()
        return value

    report = assert_replays(run, more)
    assert report.verdict.line == "exact, 1 clock read more or fewer"
    assert first[0] == 1
    with pytest.raises(DivergenceError, match="another result"):
        assert_replays(run, lambda: [look(1), 0.0])


# -- the command line ----------------------------------------------------------------------------------------------------


def test_the_command_line_gives_the_verdict(place: Place) -> None:
    """Exact: exit code 0 and one line with the counts. A remark that ``--strict`` names, and what a lenient replay passed over: 1."""
    script = place.program(TOOL + "time.time() if len(sys.argv) > 1 else None\nprint(charge(1))\n")
    assert place.cli("run", script).returncode == 0
    replayed = place.cli("replay", place.run)
    assert (replayed.returncode, "exact (1 step matched)" in replayed.stderr) == (0, True), replayed.stderr
    more = place.cli("replay", place.run, "--", script, "more")
    assert (more.returncode, "exact, 1 clock read more or fewer" in more.stderr) == (0, True), more.stderr
    strictly = place.cli("replay", place.run, "--strict", "clock", "--", script, "more")
    assert (strictly.returncode, "[inexact-replay]" in strictly.stderr) == (1, True), strictly.stderr
    assert "leave out --strict clock" in strictly.stderr
    place.program(TOOL.replace("irreversible", "read_only") + "print(charge(int(sys.argv[1])))\n", "reads.py")
    assert place.cli("run", "reads.py", "1").returncode == 0
    lenient = place.cli("replay", "last", "--on-divergence", "warn", "--", "reads.py", "2")
    assert lenient.returncode == 1, lenient.stderr
    assert "inexact: 1 difference passed over" in lenient.stderr
    assert "passed_over: the program's tool 'charge' is not the recorded step" in lenient.stderr
    allowed = place.cli("replay", "last", "--guard", "off", "--isolate", "off", "--", "reads.py", "1")
    assert (allowed.returncode, "exact but for" in allowed.stderr) == (0, True), allowed.stderr


def test_a_program_that_a_stand_in_ends_shows_where_and_why(place: Place) -> None:
    """An exception without a class of its own ends the program like any other: traceback and verdict, not its text alone."""
    body = """
    def odd():
        class Odd(Exception):  # made at each call: a replay does not call the tool
            pass
        return Odd("no")

    @traced_tool(side_effect="read_only")
    def fail():
        raise odd()

    try:
        fail()
    except Exception as error:
        if type(error).__name__ != "Odd":
            raise
    """
    script = place.program(TOOL + textwrap.dedent(body))
    assert place.cli("run", script).returncode == 0
    replayed = place.cli("replay", place.run)
    assert replayed.returncode == 1
    assert "in <module>" in replayed.stderr
    assert re.search("exception: step 2 .* comes back as RecordedError", replayed.stderr), replayed.stderr
    assert "the program ended with RecordedError, status 1, and the recorded one did not" in replayed.stderr


LATE = """
import _thread, sys, threading
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

told, tried = _thread.allocate_lock(), _thread.allocate_lock()
told.acquire(), tried.acquire()

class Errors:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def write(self, text):
        self.real.write(text)
        if text.startswith("tracekit: replayed"):
            told.release(), tried.acquire()

def late():
    told.acquire()
    try:
        look(2)
    except BaseException as error:
        sys.stderr.real.write(f"refused: {type(error).__name__}\\n")
    finally:
        tried.release()

sys.stderr = Errors(sys.stderr)
threading.Thread(target=late, daemon=True).start()
look(1)
"""


def test_a_verdict_is_told_once(place: Place) -> None:
    """What a thread that is left asks for while the verdict is being printed is refused: line, exit code and rest of the output agree."""
    assert place.cli("run", place.program(LATE)).returncode == 0
    replayed = place.cli("replay", "last")
    assert "refused: TraceExhaustedError" in replayed.stderr, replayed.stderr
    assert "exact (1 step matched)" in replayed.stderr
    assert "has failed" not in replayed.stderr
    assert replayed.returncode == 0


FAMILY = """
import multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

def main():
    look(0)
    subprocess.run([sys.executable, __file__, "middle"], check=True)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(look, 4).result()

if sys.argv[1:] == ["middle"]:
    look(1), look(2)
    subprocess.run([sys.executable, __file__, "last"], check=True)
elif sys.argv[1:]:
    look(3)
elif __name__ == "__main__":
    main()
"""


def test_the_steps_of_processes_are_counted(place: Place) -> None:
    """The line counts what was compared, wherever it was made: in a process, in one below it, in a call of a pool; and the starts of the
    two that the program starts itself."""
    assert place.cli("run", place.program(FAMILY)).returncode == 0
    replayed = place.cli("replay", "last")
    assert "exact (7 steps matched, 5 of them in 3 processes)" in replayed.stderr, replayed.stderr


def test_what_the_program_printed_is_compared(place: Place) -> None:
    """Another line on standard output is a remark that shows both, of threads too; with ``--strict output`` it is a failure. Log lines,
    progress bars and what a tool prints, which does not run in a replay, are none."""
    script = place.program(
        TOOL
        + """
import logging, threading
logging.basicConfig(stream=sys.stdout, level="INFO")
word = open("word").read()

@traced_tool(side_effect="read_only")
def talks():
    print("in the tool")

print("same")
talks()
logging.info("logged %s", word)
sys.stdout.write(f"\\r{word}")
thread = threading.Thread(target=lambda: print("from a thread", word))
thread.start()
thread.join()
print("sk-proj-" + "a1B2" * 12)
"""
    )
    (place.directory / "word").write_text("one")
    assert place.cli("run", script).returncode == 0
    assert "a1B2a1B2" not in place.runs[0].read_text()
    same = place.cli("replay", place.run, "--strict", "output")
    assert (same.returncode, "exact (1 step" in same.stderr) == (0, True), same.stderr
    (place.directory / "word").write_text("two")
    other = place.cli("replay", place.run, "--live-files", "word")
    assert (other.returncode, "exact but for 1 input of today, 1 other output" in other.stderr) == (0, True), (
        other.stderr
    )
    assert "was 'from a thread one', and is 'from a thread two'" in other.stderr
    strictly = place.cli("replay", place.run, "--strict", "output", "--live-files", "word")
    assert (strictly.returncode, "[inexact-replay]" in strictly.stderr) == (1, True), strictly.stderr


@pytest.mark.parametrize("named", [True, False])
def test_the_order_in_which_threads_print_is_compared(place: Place, named: bool) -> None:
    """Each prints the same in another order, by what is not recorded: a remark with both lines, unless nobody could see a difference."""
    script = place.program(
        TOOL
        + f"""
import ctypes, threading
turns, said, usleep = open("turns").read().split(), [], ctypes.CDLL(None).usleep

def say(name):
    while len(said) < turns.index(name):
        usleep(100)
    print("line of", name if {named} else "a thread")
    said.append(name)

charge(1)
print("begins")
threads = [threading.Thread(target=say, args=(name,)) for name in turns]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ends")
"""
    )
    (place.directory / "turns").write_text("a b c")
    recorded = place.cli("run", script)
    assert recorded.returncode == 0, recorded.stderr
    same = place.cli("replay", place.run, "--strict", "output")
    assert (same.returncode, same.stdout) == (0, recorded.stdout), same.stderr
    (place.directory / "turns").write_text("a c b")
    program = (place.directory / script).read_text().replace("for name in turns]", "for name in sorted(turns)]")
    (place.directory / script).write_text(program)
    other = place.cli("replay", place.run, "--live-files", "turns")
    assert (other.returncode, "1 other output" in other.stderr) == (0, named), other.stderr
    assert ("line 3 of all output was 'line of b', and is 'line of c'" in other.stderr) == named
    strictly = place.cli("replay", place.run, "--live-files", "turns", "--strict", "output")
    assert strictly.returncode == int(named)


def test_strict_output_of_a_recording_that_kept_none_is_unknown() -> None:
    """What a block printed is not kept: asked to judge it, the verdict is unknown, not exact."""
    run = recorded(lambda: look(1))
    report = assert_replays(run, look, 1, strict={"output"})
    assert (report.verdict.answer, [one.code for one in report.verdict.unknown]) == ("unknown", ["output_not_kept"])


def test_another_exit_status_is_a_reason(place: Place) -> None:
    """The program matched every step and left with another status: exit code 1, lenient or not."""
    script = place.program(TOOL + "charge(1)\nsys.exit(int(open('status').read()))\n")
    (place.directory / "status").write_text("0")
    assert place.cli("run", script).returncode == 0
    (place.directory / "status").write_text("5")
    assert place.cli("replay", place.run, "--live-files", "status").returncode == 1
    lenient = place.cli("replay", place.run, "--live-files", "status", "--on-divergence", "warn")
    assert (lenient.returncode, "exit_status:" in lenient.stderr) == (1, True), lenient.stderr


@pytest.mark.parametrize(
    ("body", "end", "code"),
    [
        ("look(1); swallowed(look, 3)", "os._exit(0)", 1),
        ("look(1); swallowed(look, 3)", "sys.exit(0)", 1),
        ("look(1)", "os._exit(0)", 1),
        ("look(1); look(2)", "os._exit(0)", 1),
        ("look(1); swallowed(look, 3)", "open_ones.append(block)", 1),
        ("look(1); look(2)", "os._exit(5)", 5),
    ],
)
def test_a_process_that_ends_inside_a_replay_says_so(place: Place, body: str, end: str, code: int) -> None:
    """However a process ends in the middle of a ``with replay()`` block that is not exact, its status is not 0, and stderr says why."""
    common = (
        "import atexit, os, sys\nfrom tracekit import record, replay, traced_tool\natexit.register(print, 'goodbye')\n"
    )
    common += "@traced_tool(side_effect='read_only')\ndef look(n):\n    return n\n"
    record_it = place.program(f"{common}with record('x'):\n    look(1); look(2)\n", "record.py")
    assert python(record_it, cwd=place.directory, env=_environment(place)).returncode == 0
    script = place.program(
        f"{common}def swallowed(call, *args):\n    try:\n        call(*args)\n    except BaseException:\n        pass\n"
        f"open_ones = []\nblock = replay(sys.argv[1])\nblock.__enter__()\n"
        f"try:\n    {body}; {end}\nexcept SystemExit as error:\n    block.__exit__(SystemExit, error, None)\n    raise\n"
    )
    ended = python(script, place.run, cwd=place.directory, env=_environment(place))
    assert ended.returncode == code, ended.stderr
    assert place.run in ended.stderr
    if "_exit" in end:
        assert "inexact: 1 " in ended.stderr, ended.stderr
    else:  # the interpreter's own end: no exit handler is lost
        assert ended.stdout == "goodbye\n"


def test_a_program_recorded_to_its_hard_exit_replays_to_it(place: Place) -> None:
    """A block around a program that ``tracekit run`` recorded and that ends by ``os._exit`` is exact where it ends by the same status."""
    program = TOOL.replace("irreversible", "read_only") + "charge(1)\nos._exit(int(open('status').read()))\n"
    (place.directory / "status").write_text("0")
    assert place.cli("run", place.program(program)).returncode == 0
    script = place.program(
        "import runpy, sys\nfrom tracekit import replay\n"
        "with replay(sys.argv[1], live_files=['status']):\n    runpy.run_path('agent.py')\n",
        "again.py",
    )
    for status, code, said in (("0", 0, ": exact,"), ("5", 5, "inexact: 1 other exit status")):
        (place.directory / "status").write_text(status)
        ended = python(script, place.run, cwd=place.directory, env=_environment(place))
        assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr


def _environment(place: Place) -> dict[str, str]:
    return {**os.environ, "TRACEKIT_DIR": str(place.store), "PYTHONPATH": os.pathsep.join(PACKAGES)}


def test_a_program_that_never_opens_the_run_replays_nothing(place: Place) -> None:
    """Another program, and one that ends before it comes to the run, is no exact replay of it, whatever it replayed before."""
    script = place.program(
        TOOL.replace("irreversible", "read_only")
        + "for i in range(int(open('runs').read())):\n    with record(f'r{i}'):\n        charge(i)\n"
    )
    (place.directory / "runs").write_text("3")
    assert place.cli("run", script).returncode == 0
    last = place.runs[-1].stem
    assert place.cli("replay", last, "--", script).returncode == 0
    for count, said in (("0", "nothing was replayed"), ("2", "only 2 runs before it")):
        (place.directory / "runs").write_text(count)
        replayed = place.cli("replay", last, "--live-files", "runs", "--", script)
        assert (replayed.returncode, said in replayed.stderr) == (1, True), replayed.stderr


# -- a run ---------------------------------------------------------------------------------------------------------------


def _why(place: Place, run: str = "last") -> Any:
    return json.loads(place.cli("show", run, "--why", "--json").stdout)


def test_nothing_was_captured_is_said_whatever_bookkeeping_there_is(place: Place) -> None:
    """Decisions, spans and clock reads are no captured call: the recording says so, ``show --why`` too, and a dry run of nothing fails."""
    book = "import time, tracekit\n@tracekit.traced('plan')\ndef plan():\n"
    book += "    return tracekit.decision('d', input=time.time(), output=1)\nplan()\n"
    script = place.program(book)
    done = place.cli("run", script)
    assert "no model call, tool or HTTP call was captured" in done.stderr
    answer = _why(place)["can_be_replayed"]
    assert answer["answer"] is None
    assert "nothing was captured" in answer["text"]
    place.program("print('hello')\n")
    assert "was captured in it" in place.cli("run", script).stderr
    answer = _why(place)["can_be_replayed"]
    assert (answer["answer"], [one["code"] for one in answer["reasons"]]) == (False, ["nothing_captured"])
    dry = place.cli("replay", "last", "--dry-run", "--json")
    assert (dry.returncode, "nothing was captured" in dry.stderr) == (1, True)
    place.program(TOOL + "charge(1)\n")
    assert "was captured in it" not in place.cli("run", script).stderr


def test_a_replay_and_a_dry_run_agree_that_a_value_is_missing(place: Place) -> None:
    """What could not be recorded is *no* before anything runs, and the replay that needs it fails."""
    tool = "from tracekit import traced_tool\n@traced_tool(side_effect='read_only')\ndef make():\n    return object()\nmake()\n"
    script = place.program(tool)
    place.cli("run", script)
    answer = _why(place)["can_be_replayed"]
    assert (answer["answer"], [one["code"] for one in answer["reasons"]]) == (False, ["not_serialisable"])
    assert place.cli("replay", "last", "--dry-run").returncode == 1
    assert place.cli("replay", "last").returncode == 1


def test_unknown_is_never_yes(place: Place) -> None:
    """A run whose calls and inputs are all in the trace can be replayed; one that read a file of which nothing was kept: who knows. It is
    safe to run it again if all that was captured only reads and it wrote no file that lasts, by whatever code; else nobody knows."""
    tool = TOOL.replace("irreversible", "read_only")
    (place.directory / "kept.txt").write_text("kept")
    place.program(tool + "charge(open('kept.txt').read())\n")
    assert place.cli("run", "agent.py").returncode == 0
    answers = _why(place)
    assert answers["can_be_replayed"]["answer"] is True
    assert answers["can_be_replayed"]["text"].startswith("Yes: ")
    assert answers["safe_to_retry"]["answer"] is True
    assert [one["code"] for one in answers["safe_to_retry"]["reasons"]] == ["only_reads"]
    native = "import ctypes\nc = ctypes.CDLL(None)\nc.write(c.open(b'made.txt', 0o1101, 0o644), b'x', 1)\n"
    for writes in ("open('made.txt', 'w').close()\n", native):
        place.program(tool + "charge(1)\n" + writes)
        assert place.cli("run", "agent.py").returncode == 0
        again = _why(place)["safe_to_retry"]
        assert (again["answer"], [one["code"] for one in again["reasons"]]) == (None, ["wrote"])
    (place.directory / "secrets.env").write_text("PLACE=here")
    place.program(tool + "charge(len(open('secrets.env').read()))\n")
    assert place.cli("run", "agent.py").returncode == 0
    answer = _why(place)["can_be_replayed"]
    assert (answer["answer"], [one["code"] for one in answer["reasons"]]) == (None, ["not_kept"])
    assert "secrets.env" in answer["text"]
    place.program(TOOL + "charge(1)\n")
    assert place.cli("run", "agent.py").returncode == 0
    safe = _why(place)["safe_to_retry"]
    assert (safe["answer"], [one["code"] for one in safe["reasons"]]) == (False, ["done_effect"])


def test_what_timed_out_is_in_doubt_and_what_is_being_made_is_running(tmp_path: Path) -> None:
    """An irreversible call whose time was over is in doubt in a run that ended; one that a live process makes is running."""
    place = Place(tmp_path)

    @traced_tool(side_effect="irreversible", timeout_ms=20)
    async def charge() -> None:
        await asyncio.sleep(60)

    async def pays() -> None:
        with contextlib.suppress(StepTimeoutError):
            await charge()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with record("paid", store=place.store, run_id="paid"):
            asyncio.run(pays())
    safe = _why(place, "paid")["safe_to_retry"]
    assert (safe["answer"], [one["code"] for one in safe["reasons"]]) == (False, ["in_doubt"])

    @traced_tool(side_effect="irreversible")
    def pay() -> Any:
        return _why(place, "pays")["safe_to_retry"]

    with record("pays", store=place.store, run_id="pays"):
        safe = pay()
    assert (safe["answer"], [one["code"] for one in safe["reasons"]]) == (False, ["running"])


def test_the_runs_own_warning_says_no(place: Place) -> None:
    """What is not captured is known when it is recorded: the verdict on the run is no, and names it."""
    place.program(TOOL + "import socket\ncharge(1)\nsocket.socket().connect_ex(('127.0.0.1', 9))\n")
    assert place.cli("run", "agent.py").returncode == 0
    answer = _why(place)["can_be_replayed"]
    assert (answer["answer"], {one["code"] for one in answer["reasons"]}) == (False, {"uncaptured"})
    assert "a connection to 127.0.0.1:9" in answer["text"]
    assert place.cli("replay", "last").returncode == 1


def test_an_empty_run_can_not_be_replayed() -> None:
    """The replay refuses what the verdict says no to."""
    run = recorded(lambda: None)
    with pytest.raises(NotReplayableError), replay(run):
        pass
    run = recorded(lambda: decision("d", input=1, output=2))
    with replay(run) as session:
        session.set_result(decision("d", input=1, output=2))
    assert session.report.exact


# -- hints ---------------------------------------------------------------------------------------------------------------


def test_a_hint_works_as_it_is_printed(place: Place) -> None:
    """What the message of a divergence says to type, typed in the same place, shows the run: by its id in the store, by its path else."""
    script = place.program(TOOL + "print(charge(int(open('cents').read())))\n")
    (place.directory / "cents").write_text("5")
    assert place.cli("run", script).returncode == 0
    (place.directory / "cents").write_text("6")
    away = place.directory / "a copy" / "trace.jsonl"
    away.parent.mkdir()
    shutil.copy(place.runs[0], away)
    for given in ([place.run], [str(away), "--", script]):
        failed = place.cli("replay", "--live-files", "cents", *given)
        assert failed.returncode == 1, failed.stderr
        (hint, *_) = re.findall(r"`tracekit (show .*?)` shows the recorded steps", failed.stderr)
        shown = place.cli(*shlex.split(hint))
        assert (shown.returncode, "charge" in shown.stdout) == (0, True), (hint, shown.stderr)
