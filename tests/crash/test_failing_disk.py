"""The disk fails at any step of a run: nothing that needs the log happens, the caller is told which log, and what was
written stays whole."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import KINDS, Faults
from tests.support.oracle import Log
from tracekit import decision, record, traced_tool
from tracekit.errors import LogWriteError
from tracekit.integration import Store

RUN = "failing"


class World:
    """The tools, what they did, and what their callers were told."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, int]] = []
        self.returned: list[tuple[str, int]] = []
        self.refused: list[tuple[str, int, LogWriteError]] = []
        self.end: LogWriteError | None = None
        self.warned = False
        self.began = False
        #: What was done after the disk had begun to fail, and how long the log was then.
        self.faults: Faults | None = None
        self.after_failure: list[tuple[str, int]] = []
        self.written = 0

        def mark(name: str, number: int) -> None:
            self.effects.append((name, number))
            if self.faults is not None and self.faults.failed:
                self.after_failure.append((name, number))

        @traced_tool(side_effect="read_only", name="look")
        def look(number: int) -> str:
            mark("look", number)
            return "x" * 1500

        @traced_tool(side_effect="reversible", name="book")
        def book(number: int) -> str:
            mark("book", number)
            return "b" * 1500  # a blob of its own

        @traced_tool(side_effect="irreversible", name="pay")
        def pay(number: int) -> str:
            mark("pay", number)
            return f"paid {number} " + "." * 900  # longer than its intent record

        @traced_tool(side_effect="irreversible", name="order", exactly_once="store")
        def order(number: int) -> str:
            mark("order", number)
            return f"ordered {number}"

        self.tools = {"look": look, "pay": pay, "book": book, "order": order}

    def run(self, store: Path, faults: Faults, durability: Any) -> None:
        self.faults = faults
        path = store / "runs" / f"{RUN}.jsonl"

        def begins_to_fail() -> None:
            self.written = path.stat().st_size if path.exists() else 0

        faults.at_failure = begins_to_fail
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with faults.at_work(), record(RUN, run_id=RUN, store=store, durability=durability):
                    self.began = True
                    self._program()
            except LogWriteError as error:
                self.end = error
        self.warned = any("steps are missing" in str(one.message) for one in caught)

    def _program(self) -> None:
        for number in range(2):
            for name, tool in self.tools.items():
                time.time()
                try:
                    tool(number)
                except LogWriteError as error:
                    self.refused.append((name, number, error))
                else:
                    self.returned.append((name, number))
            decision("go on", input={"number": number}, output=True)

    def check(self, store: Path, kind: str, durability: str, *, once: bool) -> None:
        path = store / "runs" / f"{RUN}.jsonl"
        for error in [error for _, _, error in self.refused] + ([self.end] if self.end else []):
            assert error.code == "log-write"
            assert str(store) in str(error)
            assert str(store) in str(error.path)
        if not self.began:
            assert self.end is not None
            assert not self.effects
            return
        self._check_effects(Log(path), kind, once)
        if kind != "read-only" and not once:
            for name, number, error in self.refused:
                assert name == "order" or error.path == str(path), (name, number)
        for name, number, error in self.refused:
            done = [call.seq for call in Log(path).calls(name, number=number)] if error.executed else [None]
            assert error.executed is ((name, number) in self.effects), (name, number)
            assert error.step in done, (name, number)
        verdict = Store(store).verify(RUN)
        assert verdict.state in ("incomplete", "complete")
        assert verdict.torn_bytes == 0
        if verdict.state == "incomplete":
            assert self.end is not None or self.warned

    def _check_effects(self, log: Log, kind: str, once: bool) -> None:
        """Check that no effect happened without its intention in the log, none after a failed sync, and that each
        caller who was told of nothing has an outcome there."""
        for name, number in self.effects:
            if name != "look":
                assert log.calls(name, number=number), f"{name} {number} has happened, and the log does not know"
        for name, number in self.returned:
            if name != "look":
                [call] = log.calls(name, number=number)
                assert call.state == "done", f"{name} {number} has returned, and the log does not know"
        for name, number in self.after_failure if kind != "read-only" and not once else ():
            if name != "look":
                assert kind != "sync", f"{name} {number} happened though nothing could be synced"
                [call] = log.calls(name, number=number)
                assert call.end <= self.written, f"{name} {number} happened though nothing could be written"
        for name, number, _ in self.refused:
            if name != "look" and (name, number) in self.effects and log.calls(name, number=number)[-1].state != "done":
                assert log.calls(name, number=number)[-1].state == "pending"
                assert name == "book" or log.opinion().decision == "abort", f"{name} {number} would be done twice"
        assert [number for name, number in self.returned if name == "look"] == [0, 1]  # a read goes on without a log


def test_the_program_is_sound(tmp_path: Path) -> None:
    """On a disk that does not fail everything happens, and the run is complete."""
    world, store = World(), tmp_path / "store"
    world.run(store, Faults(store, "full", 0, once=True), "effects")
    assert len(world.returned) == len(world.effects) == 8
    assert Store(store).verify(RUN).state == "complete"


@pytest.mark.parametrize("once", [False, True], ids=["from then on", "once"])
@pytest.mark.parametrize("durability", ["effects", "always"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_disk_fails_at_every_step(kind: str, durability: str, once: bool, tmp_path: Path) -> None:
    """One run for each call that could fail and each way of failing: full, half a line written, an I/O error on write
    or sync, read-only."""
    nth = 1
    while True:
        world, store = World(), tmp_path / str(nth)
        store.mkdir()
        faults = Faults(store, kind, nth, once=once)
        world.run(store, faults, durability)
        if not faults.failed:
            break
        try:
            world.check(store, kind, durability, once=once)
        except AssertionError as error:
            raise AssertionError(
                f"{kind} at call {nth}: {error}; refused {world.refused}, end {world.end!r}"
            ) from error
        nth += 1
    assert nth > 3


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A run does not begin in a directory without room for a store, and the error names the directory."""
    file = tmp_path / "file"
    file.write_text("not a directory")
    world = World()
    world.run(file / "store", Faults(tmp_path / "none", "full", 0, once=True), "effects")
    assert not world.began
    assert world.end is not None
    assert os.fspath(file) in str(world.end)
