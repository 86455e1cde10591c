"""A process that replays and records for long, without the cyclic collector's help, keeps no file open."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tracekit import Run, record, recovery, replay, traced_tool
from tracekit.errors import ReplayError, RunNotFoundError, TracekitError
from tracekit.testing import assert_replays

pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux lists a process's open files"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@traced_tool(side_effect="read_only")
def look(n: int) -> int:
    return n


def program(n: int = 2) -> int:
    return sum(look(i) for i in range(n))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def run() -> Run:
    with record("job", input=[1, 2]) as run:
        run.set_result(program())
    return run


def exact(run: Run) -> None:
    with replay(run):
        program()


def diverging(run: Run) -> None:
    with suppress(ReplayError), replay(run):
        program(3)


def left_over(run: Run) -> None:
    with suppress(ReplayError), replay(run):
        pass


def raising(run: Run) -> None:
    with suppress(ReplayError, ZeroDivisionError), replay(run):
        program(1 // 0)


def asynchronous(run: Run) -> None:
    async def main() -> None:
        async with replay(run):
            program()

    asyncio.run(main())


def asked_afterwards(run: Run) -> None:
    with replay(run) as session:
        program()
    assert (session.result, session.input) == (1, [1, 2])


def partial(run: Run) -> None:
    with replay(run, live={"tool:look"}):
        program()


def in_threads(run: Run) -> None:
    def work(*n: int) -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(look, n)]

    with record("threads") as other:
        seen = work(1, 2, 3)
    with replay(other):
        assert work(1, 2, 3) == seen
    with suppress(ReplayError), replay(other):
        work(1, 3, 2)


def refused(run: Run) -> None:
    for options in ({"store": "/nowhere"}, {"strict": ("environment",)}, {"live": {"tool:nothing"}}):
        with suppress(TracekitError, ReplayError), replay(run.id, **options):  # type: ignore[arg-type]
            program()


WAYS: dict[str, Callable[[Run], Any]] = {
    "diverging": diverging,
    "steps left over": left_over,
    "an exception of the program": raising,
    "asynchronous": asynchronous,
    "asked afterwards": asked_afterwards,
    "partial": partial,
    "in threads": in_threads,
    "refused": refused,
    "assert_replays": lambda run: assert_replays(run, lambda: program()),
    "recorded": lambda run: record("other")(program)(),
    "scanned": lambda run: [*recovery.scan(all=True)],
}


def test_many_exact_replays_leave_no_file_open(run: Run, no_collector: None) -> None:
    """After two hundred replays in one process, one after the other, it has as many files open as before."""
    exact(run)
    before = open_files()
    for _ in range(200):
        exact(run)
    assert open_files() == before


@pytest.mark.parametrize("way", WAYS)
def test_whatever_comes_of_a_block(way: str, run: Run, no_collector: None) -> None:
    """However a block ends, and whatever is asked of it afterwards."""
    WAYS[way](run)
    before = open_files()
    kept = [WAYS[way](run) for _ in range(5)]
    assert open_files() == before, kept


def test_what_is_asked_of_a_file_that_is_gone(run: Run) -> None:
    """A replay that is over does not keep its file; who removes it, and asks then, gets one clear error."""
    with replay(run) as session:
        program()
    os.rename(run.path, f"{run.path}.kept")
    with pytest.raises(RunNotFoundError):
        _ = session.input
    os.rename(f"{run.path}.kept", run.path)
    assert (session.input, session.result) == ([1, 2], 1)


def test_a_descriptor_that_the_program_has_closed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that closes every descriptor (a daemon) may be given the number of one of tracekit's for a file of its own: that is
    neither read in place of another one nor closed."""
    monkeypatch.chdir(tmp_path)  # what changes there is kept
    file = tmp_path / "data"
    file.write_text("x")

    @traced_tool(side_effect="reversible")
    def change(text: str) -> None:
        with file.open("a") as opened:
            opened.write(text)

    def program(close: Callable[[int], None]) -> None:
        with file.open() as mine:
            change("y")
            for number in map(int, os.listdir("/proc/self/fd")):
                with suppress(OSError):
                    if number != mine.fileno() and os.path.samestat(os.fstat(number), file.stat()):
                        close(number)

    with record("job") as run:
        program(os.close)
        own = [os.open(tmp_path, os.O_RDONLY) for _ in range(3)]
        change("z")
    for number in own:
        assert os.path.samestat(os.fstat(number), tmp_path.stat())
        os.close(number)
    with record("another"):
        change("z")
    # Which SDKs other tests have imported, without tracekit.instrument(), is another matter.
    assert [warning for warning in run.warnings if "was imported" not in warning] == []
