"""What ``record()`` and ``replay()`` are given, and how a replay's end is compared with the recorded one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from _thread import interrupt_main
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.place import PACKAGES
from tests.support.tracing import entries
from tracekit import DivergenceError, current_run, record, replay, traced_tool
from tracekit.cli import main
from tracekit.errors import RunStateError
from tracekit.harness import TraceWriter

#: Sleeps below Python, where no run sees it.
usleep = ctypes.CDLL(None).usleep


@traced_tool(side_effect="read_only")
def look(what: Any) -> Any:
    return what


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"run_id": 5}, TypeError, "run_id is a string"),
        ({"run_id": "last"}, RunStateError, "newest run"),
        ({"agent": 5}, TypeError, "agent is a string"),
        ({"name": b"x"}, TypeError, "name is a string"),
        ({"metadata": 5}, TypeError, "metadata is a mapping"),
        ({"redact": ["("]}, ValueError, "not a regular expression"),
        ({"redact": [5]}, TypeError, "5 in it is not one"),
        ({"user_modules": [5]}, TypeError, "user_modules must be a list of strings"),
    ],
)
def test_wrong_arguments_of_record(
    tmp_path: Path, given: dict[str, Any], error: type[BaseException], said: str
) -> None:
    """What can't be is told where ``record()`` is called, and makes no file."""
    with pytest.raises(error, match=said):
        record(**{"store": tmp_path / "store", **given})
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("run", [None, 5, "", b"x"])
def test_wrong_arguments_of_replay(run: Any) -> None:
    """``replay()`` of what names no run says what it takes."""
    with pytest.raises(TypeError, match=r"replay\(\) takes the run"):
        replay(run)


@pytest.mark.parametrize("how", ["error", "raising"])
def test_a_warning_never_takes_the_place_of_the_programs_exception(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``-W error``, or where whoever shows warnings fails, the program's own exception comes out, with the warning as a note and on
    standard error; in a block, an async one, a decorated function and a run that is written by hand."""

    def failing(*_args: Any, **_options: Any) -> None:
        raise OSError("nowhere to show it")

    async def later() -> None:
        async with record("later") as run:
            look(object())
            seen.append(run)
            raise KeyError("mine")

    @record("decorated")
    def decorated() -> None:
        look(object())
        raise KeyError("mine")

    def block() -> None:
        with record("block") as run:
            look(object())
            seen.append(run)
            raise KeyError("mine")

    def by_hand() -> None:
        with TraceWriter() as writer:
            writer.record("decision", object(), 1)
            seen.append(writer)
            raise KeyError("mine")

    seen: list[Any] = []
    for program in (block, decorated, lambda: asyncio.run(later()), by_hand):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if how == "error" else "always")
            if how == "raising":
                warnings.showwarning = failing
            with pytest.raises(KeyError, match="mine") as caught:
                program()
        assert any("can't be recorded" in note for note in caught.value.__notes__)
        assert "can't be recorded" in capsys.readouterr().err
    assert all("can't be recorded" in run.warnings[0] for run in seen)


def test_a_warning_of_a_recording_is_never_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``-W error`` a program that works unrecorded works recorded: what the run has to say is a line on standard error and in
    ``run.warnings``, at its end and after it, in a run that is written by hand, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with record("warns", store=tmp_path) as run:
            look(object())
            inside = contextvars.copy_context()
        assert inside.run(look, 1) == 1  # after the end
        with TraceWriter(tmp_path) as writer:
            writer.record("decision", object(), 1)
    assert "can't be recorded" in run.warnings[0]
    assert "can't be recorded" in writer.warnings[0]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tracekit: ")]
    assert len(said) == 3
    assert f"came after run {run.id} had ended" in said[1]


def test_one_string_is_one_pattern(tmp_path: Path) -> None:
    """``redact="…"`` and ``user_modules="…"`` are one pattern, one name: not their letters."""
    block = record("one", store=tmp_path, redact="acme-[a-z]+", user_modules="some_module")
    assert block.options["user_modules"] == ("some_module",)
    with pytest.warns(RuntimeWarning, match="was redacted"), block as run:
        look("the cat sat; acme-secret here")
    text = Path(run.path).read_text()
    assert "acme-secret" not in text
    assert "the cat sat" in text


def _fail(error: BaseException) -> None:
    look(1)
    raise error


def _failed(store: Path, error: BaseException) -> Any:
    with pytest.raises(type(error)), record("fails", store=store) as run:
        _fail(error)
    return run


def test_the_end_of_a_failed_run_is_compared(tmp_path: Path) -> None:
    """The recorded run failed with ``KeyError``: a replay that does too lets it through and is exact; one that ends in order,
    or with another exception, is a divergence that says both ends."""
    run = _failed(tmp_path, KeyError("boo"))
    with pytest.raises(KeyError, match="boo"), replay(run) as session:
        _fail(KeyError("boo"))
    assert session.report.exact
    with pytest.raises(DivergenceError) as ended, replay(run) as session:
        look(1)
    assert "recorded  KeyError: 'boo'" in str(ended.value)
    assert "now       no exception" in str(ended.value)
    assert not session.report.exact
    for other in (ValueError("boo"), KeyError("bar")):
        with pytest.raises(DivergenceError) as different, replay(run) as session:
            _fail(other)
        assert different.value.__cause__ is other
        assert not session.report.exact


def test_a_closed_generator_is_no_failure(tmp_path: Path) -> None:
    """A run whose block was left because the generator that held it was closed replays in a plain block."""

    def held() -> Generator[str, None, None]:
        with record("held", store=tmp_path) as run:
            look(1)
            yield run.id

    generator = held()
    run = next(generator)
    generator.close()
    with replay(run, store=tmp_path) as session:
        look(1)
    assert session.report.exact


def test_another_error_in_a_replay_of_a_run_that_completed(tmp_path: Path) -> None:
    """It comes out as it is (an ``assert`` in a test, say), and the report is not exact."""
    with record("completes", store=tmp_path) as run:
        look(1)
    with pytest.raises(AssertionError), replay(run) as session:
        _fail(AssertionError())
    assert not session.report.exact


def test_the_result_of_a_replay(tmp_path: Path) -> None:
    """``session.set_result`` and ``current_run().set_result`` are compared with the recorded result at the end of the block."""
    with record("result", store=tmp_path) as run:
        run.set_result(look(1))
    with replay(run) as session:
        session.set_result(look(1))
        inner = current_run()
        assert inner is not None
        assert inner.id == run.id
    assert session.report.exact
    assert current_run() is None
    for by_run in (False, True):
        with pytest.raises(DivergenceError, match="another result"), replay(run) as session:
            (current_run() if by_run else session).set_result(look(1) + 4)  # type: ignore[union-attr]


def test_git_ignores_the_store(tmp_path: Path) -> None:
    """A store that is made has a ``.gitignore`` of its own; one that is there stays as it is."""
    with record("one", store=tmp_path / "store"):
        look(1)
    ignored = tmp_path / "store" / ".gitignore"
    assert ignored.read_text() == "*\n"
    ignored.unlink()
    with record("two", store=tmp_path / "store"):
        look(1)
    assert not ignored.exists()


_SETS = """
import sys
import threading
import time
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="read_only")
def look(text):
    return text

block = replay(sys.argv[1]) if len(sys.argv) > 1 else record("sets", run_id="sets")
with block:
    look(", ".join({str(n) for n in range(20)}))
"""


def _sets(tmp_path: Path, seed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES), "PYTHONHASHSEED": seed}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SETS, *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_divergence_that_the_hash_seed_may_explain(tmp_path: Path) -> None:
    """A step that differs in a process with another hash seed: the message says what that does to sets; with the same seed it
    does not differ."""
    assert _sets(tmp_path, "1").returncode == 0
    assert _sets(tmp_path, "1", "sets").returncode == 0
    other = _sets(tmp_path, "2", "sets")
    assert other.returncode == 1
    assert "hash seed was 1 in the recording and is 2 here" in other.stderr


def test_a_thread_reads_its_clock_while_the_run_ends() -> None:
    """What a thread reads in the very moment in which its run ends is counted or left out; the run verifies in either case."""
    for _ in range(3):
        read, stop = threading.Event(), threading.Event()

        def reads_on(read: threading.Event = read, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                time.time()
                read.set()
                usleep(20)  # or it fills the log with what it reads while the end waits for it

        thread = threading.Thread(target=reads_on)
        try:
            with warnings.catch_warnings(), record("ending") as run:
                warnings.simplefilter("ignore")
                thread.start()
                read.wait()
        finally:
            stop.set()
            thread.join()
        assert CliRunner().invoke(main, ["verify", str(run.path)]).exit_code == 0


def test_a_replay_waits_at_its_end_for_steps_that_a_call_has_yet_to_make(tmp_path: Path) -> None:
    """A call that nobody waits for had made its step when the recording ended, and has when the replay ends, however slow it is there."""

    def program(ms: int, pool: ThreadPoolExecutor) -> None:
        begun = threading.Event()

        def work() -> None:
            begun.set()
            usleep(ms * 1000)
            look("late")

        pool.submit(work)
        begun.wait()
        look("first")

    with ThreadPoolExecutor(1) as pool, record("left", store=tmp_path) as run:
        program(5, pool)
    with ThreadPoolExecutor(1) as pool, replay(run) as session:
        program(1500, pool)
    assert session.report.exact


@pytest.mark.parametrize("ends", ["in the body", "at the end"])
def test_an_async_block_that_is_cancelled_while_it_waits_for_its_tasks_ends(tmp_path: Path, ends: str) -> None:
    """A server gives up a request: its run has an end, says how, and leaves nothing installed in the process; so does a replay."""

    @traced_tool(side_effect="read_only")
    async def slow() -> int:
        await asyncio.sleep(60)
        return 1

    async def in_block(block: Any) -> None:
        async with block as opened:
            seen.append(opened)
            task = asyncio.create_task(slow())
            tasks.append(task)
            await asyncio.sleep(0)
            if ends == "in the body":
                await task

    async def given_up(block: Any) -> None:
        handler = asyncio.ensure_future(in_block(block))
        while not tasks:
            await asyncio.sleep(0)
        for _ in range(3):  # as anyio does, for as long as it takes
            await asyncio.sleep(0.01)
            if handler.done():
                break
            handler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await handler
        tasks.pop().cancel()

    seen: list[Any] = []
    tasks: list[Any] = []
    before = time.sleep, asyncio.sleep, threading.Thread.start
    asyncio.run(given_up(record("given up", store=tmp_path)))
    assert (time.sleep, asyncio.sleep, threading.Thread.start) == before
    last = entries(seen[0].path)[-1]
    assert last["type"] == "run.failed"
    assert last["error"]["type"].endswith("CancelledError")
    block = replay(seen[0])
    with contextlib.suppress(BaseException):
        asyncio.run(given_up(block))
    assert not block.active
    assert (time.sleep, asyncio.sleep, threading.Thread.start) == before


def test_a_block_that_is_interrupted_while_it_waits_for_its_threads_has_failed(tmp_path: Path) -> None:
    """Ctrl-C at the end of a block that went well: that is what the program leaves it with."""
    begun, over = threading.Event(), threading.Event()

    @traced_tool(side_effect="read_only")
    def slow() -> bool:
        begun.set()
        return over.wait(60)

    def program() -> None:
        with record("interrupted", store=tmp_path) as run:
            seen.append(run)
            thread = threading.Thread(target=slow, daemon=True)
            thread.start()
            begun.wait()  # what has made no call yet is not waited for
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            undo.append(lambda: signal.signal(signal.SIGALRM, before))
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    seen: list[Any] = []
    undo: list[Any] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            program()
    finally:
        undo[0]()
        over.set()
    last = entries(seen[0].path)[-1]
    assert last["type"] == "run.failed"
    assert last["error"]["type"].endswith("KeyboardInterrupt")


def test_ctrl_c_while_the_end_of_a_run_is_written(tmp_path: Path) -> None:
    """Whatever the instant at which its last entry is made: the run is complete, and its program is interrupted then."""

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_name == "_close_log":
            left = n
        elif event == "call" and frame.f_code.co_name == "leave" and frame.f_code.co_filename.endswith("world.py"):
            sys.setprofile(None)  # the log is closed
        elif left:
            left -= 1
            if not left:
                sys.setprofile(None)
                interrupt_main()

    n, left, interrupted = 0, 0, True
    while interrupted:
        n += 3
        interrupted = False
        try:
            with record("interrupted", store=tmp_path) as run:
                look("at this")
                sys.setprofile(count)
            sys.setprofile(None)
        except KeyboardInterrupt:
            interrupted = True
        assert entries(run.path)[-1]["type"] == "run.completed", n
    assert n > 20
