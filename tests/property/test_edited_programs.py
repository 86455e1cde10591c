"""Programs that were edited since their recording: each replay fails at the first step that differs, at its line, and none hangs.

A program is the text of a module: lanes of statements, each on a line of its own. Each edit is one that a person makes: a step is inserted,
removed, renamed, two are swapped, a task is added, taken away or started earlier, a loop goes round once more, an event is set later or
not any more.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.generated import loops
from tracekit import record, replay, traced_tool
from tracekit.errors import InexactReplayError, ReplayError

pytestmark = pytest.mark.timeout(60, method="thread")


@traced_tool(side_effect="read_only")
async def ask(what: str, ms: float = 1) -> str:
    await asyncio.sleep(ms / 1000)
    return what


@traced_tool(side_effect="read_only")
def look(what: str) -> str:
    return what


#: Statements by a lane and a number; what makes a step has it between ``<`` and ``>``.
STEPS = (
    "seen.append(await ask('<{}>', {ms}))",
    "seen.append(look('<{}>'))",
    "seen.append(await asyncio.to_thread(lambda: look('<{}>')))",
    "seen += [await ask('<{}>') for _ in range(3)]",
    "async with lock: seen.append(await ask('<{}>', {ms}))",
    "async with asyncio.timeout(10): seen.append(await ask('<{}>', {ms}))",
)
OTHERS = (
    "await asyncio.sleep({ms} / 1000)",
    "await asyncio.sleep(0)",
    "await asyncio.to_thread(threading.Event().wait, 0.001)",
)
#: What one lane waits for in the one before it.
WAITS = (
    ("await queues[{lane}].put(1)", "await queues[{before}].get()"),
    ("events[{lane}].set()", "await events[{before}].wait()"),
    ("events[{lane}].set()", "while not events[{before}].is_set(): await asyncio.sleep(0)"),
    ("done[{lane}].set_result(1)", "await asyncio.shield(done[{before}])"),
    ("flags[{lane}].set()", "await asyncio.to_thread(wait_for, flags[{before}])"),
)


def wait_for(flag: threading.Event) -> None:
    """A thread that polls."""
    while not flag.wait(0.001):
        pass


LANES = range(3)


def written(seed: int) -> list[str]:
    """The lines of a program."""
    rng = random.Random(seed)
    lines = [
        "import asyncio, threading",
        "from tests.property.test_edited_programs import ask, look, wait_for",
        "async def main():",
        "    lock, seen = asyncio.Lock(), []",
        "    queues, events = [asyncio.Queue() for _ in range(3)], [asyncio.Event() for _ in range(3)]",
        "    done, flags = [asyncio.get_running_loop().create_future() for _ in range(3)], [threading.Event() for _ in range(3)]",
        "    async with asyncio.TaskGroup() as group:",
        *(f"        group.create_task(lane{lane}(lock, seen, queues, events, done, flags))" for lane in LANES),
        "    return seen",
    ]
    waits = [rng.choice(WAITS) for _ in LANES]
    for lane in LANES:
        body = [rng.choice(STEPS) for _ in range(rng.randint(2, 4))] + rng.choices(OTHERS, k=2)
        rng.shuffle(body)
        body = [line.format(f"{lane}-{n}", ms=rng.choice((0, 1, 1, 3))) for n, line in enumerate(body)]
        if lane:
            body.insert(rng.randint(0, len(body)), waits[lane - 1][1].format(before=lane - 1))
        body.insert(rng.randint(0, len(body)), waits[lane][0].format(lane=lane))
        lines.append(f"async def lane{lane}(lock, seen, queues, events, done, flags):")
        lines += [f"    {line}" for line in body]
    return lines


class Edit(NamedTuple):
    """An edited program, and the line (from 1) where it differs first; 0 where that is only seen at its end, ``None`` where it need not
    differ in anything that was recorded."""

    what: str
    lines: list[str]
    line: int | None


def is_step(line: str) -> bool:
    return "<" in line and line.startswith("    ") and "create_task" not in line


def lane_of(lines: list[str], at: int) -> int:
    return max(i for i in range(at + 1) if lines[i].startswith("async def"))


def next_step(lines: list[str], at: int, *, in_threads: bool = False) -> int:
    """The line of the next step of the same lane from ``at`` on, or 0; what is done in threads is apart from it."""
    for i in range(at, len(lines)):
        if lines[i].startswith("async def"):
            return 0
        if is_step(lines[i]) and ("to_thread" in lines[i]) == in_threads:
            return i + 1
    return 0


def edits(lines: list[str]) -> Iterator[Edit]:
    steps = [i for i, line in enumerate(lines) if is_step(line)]
    for i in steps:
        yield Edit("renamed", [*lines[:i], lines[i].replace("<", "<new "), *lines[i + 1 :]], i + 1)
        yield Edit("inserted", [*lines[:i], "    seen.append(await ask('<new>'))", *lines[i:]], i + 1)
        without = [*lines[:i], "    pass", *lines[i + 1 :]]
        yield Edit("removed", without, next_step(without, i, in_threads="to_thread" in lines[i]))
        if "range(3)" in lines[i]:
            yield Edit("once more", [*lines[:i], lines[i].replace("range(3)", "range(4)"), *lines[i + 1 :]], i + 1)
            yield Edit(
                "once less",
                [*lines[:i], lines[i].replace("range(3)", "range(2)"), *lines[i + 1 :]],
                next_step(lines, i + 1),
            )
    for i, k in itertools.pairwise(steps):
        if lane_of(lines, i) == lane_of(lines, k):
            swapped = list(lines)
            swapped[i], swapped[k] = lines[k], lines[i]
            yield Edit("swapped", swapped, i + 1)
    at = next(i for i, line in enumerate(lines) if "create_task" in line)
    more = [*lines[:at], "        group.create_task(more(seen))", *lines[at:]]
    more += ["async def more(seen):", "    seen.append(await ask('<new>'))"]
    yield Edit("a task more", more, len(more))
    earlier = list(lines)
    earlier[at], earlier[at + 2] = lines[at + 2], lines[at]
    yield Edit("in another order", earlier, None)
    for i, line in enumerate(lines):
        if re.search(r"\.(set|set_result|put)\(", line):
            yield Edit(
                "not set", [*lines[:i], "    pass", *lines[i + 1 :]], None if f"[{len(LANES) - 1}]" in line else 0
            )
            yield Edit("later", [*lines[:i], "    for _ in range(50): await asyncio.sleep(0)", *lines[i:]], None)
    # What the others wait for comes all the same.
    yield Edit("a task less", [*lines[: at + 2], "        pass", *lines[at + 3 :]], 0)


def made(lines: list[str], path: Path) -> Any:
    path.write_text("\n".join(lines) + "\n")
    names: dict[str, Any] = {"__name__": "edited", "threading": threading}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["main"]


def in_its_place(error: ReplayError, path: Path, edit: Edit) -> bool:
    """Whether a failure is at the line of the edit. Where steps are missing, others may wait for what they led to, and are named."""
    if error.location is not None:
        return error.location == f"{path}:{edit.line}"
    missing = edit.what in ("removed", "once less", "a task less", "swapped", "not set", "in another order", "later")
    return missing and (error.code == "unconsumed-steps" or f" at {path}:" in str(error))


SEEDS = [(5, "uvloop"), (7, "asyncio")]
MORE = [(seed, loop) for seed in range(1, 31) for loop in ("asyncio", "uvloop") if (seed, loop) not in SEEDS]


@pytest.mark.parametrize(
    ("seed", "loop"), [*SEEDS, *(pytest.param(*one, marks=pytest.mark.programs_full) for one in MORE)]
)
def test_an_edited_program_fails_where_it_differs(seed: int, loop: str, tmp_path: Path) -> None:
    """At once, at the line of the first step that differs; and where only something is missing, at the end, with what is. It ends."""
    lines, wrong = written(seed), []
    for i, line in enumerate(lines):
        assert len(re.findall("<", line)) <= 1, (i, line)

    def play(main: Any) -> Any:
        with asyncio.Runner(loop_factory=loops()[loop]) as runner:
            return runner.run(main())

    main = made(lines, tmp_path / "program.py")
    with record("edited", durability="none") as run:
        seen = play(main)
    with replay(run):
        assert play(main) == seen
    for n, edit in enumerate(edits(lines)):
        path = tmp_path / f"edited_{n}.py"
        main, found = made(edit.lines, path), None
        session, same = replay(run), None
        try:
            with session:
                same = play(main) == seen
        except ReplayError as error:
            found = error
        said = f"{n} {edit.what}: {edit.lines[edit.line - 1].strip() if edit.line else 'at its end'}"
        if edit.line is None and (found is None or type(found) is InexactReplayError):
            if session.report.exact != (found is None) or (found is None and not same):
                wrong.append(f"{said}: neither the same nor an error")
        elif found is None:
            wrong.append(f"{said}: not found")
        elif session.report.exact:
            wrong.append(f"{said}: exact")
        elif not in_its_place(found, path, edit):
            wrong.append(f"{said} ({edit.line}): {found.location} {found}")
    assert not wrong, "\n".join(wrong)
