"""The power fails at every step of a run: whatever the disk loses of what was not synced, the log has what was
promised."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle import Log
from tests.support.power import Disk, Held, Keep, lay
from tracekit import decision, record, recovery, resume, traced_tool
from tracekit._runs.recovery import decision_on
from tracekit.integration import Store

RUN = "power"
TRACE = f".tracekit/runs/{RUN}.jsonl"
Fact = tuple[str, str, int, str]
Facts = list[Fact]


class Agent:
    """A program with effects of all three classes, nested ones and an exactly-once one; each effect is an event among
    those of the disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

        def tool(side_effect: Any, **contract: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
            def decorate(function: Callable[[int], Any]) -> Callable[[int], Any]:
                name = function.__name__

                def called(number: int) -> Any:
                    self.disk.happened(("effect", name, number, side_effect))
                    return function(number)

                called.__name__ = called.__qualname__ = name
                traced = traced_tool(side_effect=side_effect, name=name, **contract)(called)

                def seen(number: int) -> Any:
                    result = traced(number)
                    self.disk.happened(("returned", name, number, side_effect))
                    return result

                return seen

            return decorate

        @tool("read_only")
        def look(number: int) -> str:
            return f"{number}: {random.random()}"

        @tool("reversible")
        def book(number: int) -> str:
            return "b" * 1500  # a blob of its own, and more than two sectors

        @tool("irreversible")
        def pay(number: int) -> str:
            return f"paid {number}"

        @tool("irreversible", exactly_once="store")
        def order(number: int) -> str:
            return f"ordered {number}"

        @tool("reversible")
        def trip(number: int) -> str:
            return str(look(number + 100)) + str(book(number + 100))

        self.tools = look, pay, book, order, trip

    def turn(self, number: int) -> None:
        for tool in self.tools:
            tool(number)
            time.time()
        decision("go on", input={"number": number}, output=True)

    def alone(self) -> None:
        for number in range(2):
            self.turn(number)

    def threads(self) -> None:
        workers = [threading.Thread(target=self.turn, args=(1000 * n,)) for n in (1, 2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)


class Failure:
    """What is left after the power has failed, and what must be true of it."""

    def __init__(self, world: Path, held: Held, facts: Facts, whole: bytes, durability: str, before: bytes) -> None:
        self.facts = facts
        self.whole = whole
        self.before = before
        self.every = durability == "always"
        self.held = held
        shutil.rmtree(world, ignore_errors=True)
        world.mkdir()
        lay(held, world)
        self.store = Store(world / ".tracekit")
        self.path = world / TRACE

    def promised(self, kind: str) -> Iterator[tuple[str, int, str]]:
        for what, name, number, side_effect in self.facts:
            if what == kind and (self.every or side_effect != "read_only"):
                yield name, number, side_effect

    def check(self) -> str:
        """Check every promise, whatever was lost, and return the verdict."""
        if TRACE not in self.held.files:
            assert not list(self.promised("effect"))
            assert not list(self.promised("returned"))
            return "missing"
        log, verdict = Log(self.path), self.store.verify(RUN)
        assert (verdict.count, verdict.torn_bytes) == (len(log.entries), 0 if log.broken else log.torn)
        self._synced_is_there(log)
        self._effects_are_told(log)
        return self._verdict_is_true(log, verdict)

    def _synced_is_there(self, log: Log) -> None:
        """Check that what was synced is there and verifies."""
        certain = self.held.synced[TRACE].rfind(b"\n") + 1
        assert (log.ends[-1] if log.ends else 0) >= certain
        assert self.path.read_bytes()[:certain] == self.held.synced[TRACE][:certain]

    def _effects_are_told(self, log: Log) -> None:
        """Check that each effect that demands a sync has its intention, that each one that had returned has its
        outcome, and that none is repeated."""
        for name, number, _ in self.promised("effect"):
            assert log.calls(name, number=number), f"{name} {number} has happened, and the log does not know"
        for name, number, _ in self.promised("returned"):
            # what is around a call may have been made again, and the call with it
            assert any(call.state == "done" for call in log.calls(name, number=number)), f"{name} {number} had returned"
        again = self._decision(log).decision == "resume"
        for name, number, side_effect in self.promised("effect"):
            if side_effect == "irreversible" and again:
                assert log.calls(name, number=number)[-1].state == "done", f"{name} {number} would be done twice"
        keys = [data for path, data in self.held.files.items() if "/runs/" not in path and f'"{RUN}"'.encode() in data]
        assert len(keys) >= sum(name == "order" for name, _, _ in self.promised("effect"))

    def _decision(self, log: Log) -> recovery.Decision:
        """Check the decision against the oracle's, and, if the end of the log was lost, that of an operator who accepts
        the loss."""
        [decided] = recovery.scan(self.store.root, all=True)
        opinion = log.opinion()
        assert decided.decision == opinion.decision, (decided, opinion)
        if self.store.verify(RUN).lost_tail:
            return decision_on(str(self.path), accept_lost_tail=True)
        return decided

    def _verdict_is_true(self, log: Log, verdict: Any) -> str:
        content = self.path.read_bytes()
        good = content[: len(content) - verdict.torn_bytes]
        if content == self.before or self.whole.startswith(content):
            assert verdict.state != "broken"
        if verdict.state != "broken":
            assert self.whole.startswith(good), "changed bytes pass for right"
            assert (verdict.state == "complete") == (good == self.whole and not verdict.torn_bytes and log.finished)
            return "torn" if verdict.torn_bytes else str(verdict.state)
        assert verdict.last_good_seq == len(log.entries)
        unsynced = self.whole[len(self.held.synced[TRACE]) :]
        if not verdict.lost_tail:
            assert b'"type":"tool.call"' in unsynced or b'"type":"run.completed"' in unsynced, (
                "nothing there was an effect"
            )
        return "lost tail" if verdict.lost_tail else "broken"


def failures(
    disk: Disk,
    world: Path,
    durability: str,
    rng: random.Random,
    each: int,
    *,
    earlier: Sequence[Fact] = (),
    before: bytes = b"",
) -> dict[str, int]:
    """Let the power fail after every event in every way, and return how often each verdict was given."""
    whole = disk.after(len(disk.events), "all").files[TRACE]
    told: dict[str, int] = {}
    for count in range(disk.begins, len(disk.events) + 1):
        facts = [*earlier, *(event.fact for event in disk.events[:count] if event.kind == "fact")]
        keeps: list[Keep] = ["all", "none", *[rng] * each]
        for keep in keeps:
            state = rng.getstate()
            failure = Failure(world, disk.after(count, keep), facts, whole, durability, before)
            try:
                verdict = failure.check()
            except AssertionError as error:
                where = keep if isinstance(keep, str) else f"a part ({hash(state)})"
                raise AssertionError(
                    f"after {count} events ({disk.events[count - 1][:3]}), {where} kept: {error}"
                ) from error
            told[verdict] = told.get(verdict, 0) + 1
    return told


def recorded(world: Path, durability: Any, program: str) -> Disk:
    world.mkdir()
    disk = Disk(world)
    agent = Agent(disk)
    with disk.recording(), record(RUN, run_id=RUN, store=world / ".tracekit", durability=durability):
        getattr(agent, program)()
    return disk


@pytest.mark.parametrize("program", ["alone", "threads"])
@pytest.mark.parametrize("durability", ["effects", "always"])
def test_the_power_fails_while_a_run_is_recorded(durability: str, program: str, tmp_path: Path) -> None:
    """After any write, sync, rename or new directory, everything synced is still there, effects have intentions, and
    the verdict is true."""
    disk = recorded(tmp_path / "world", durability, program)
    told = failures(disk, tmp_path / "after", durability, random.Random(20261122), 1)
    assert {"missing", "incomplete", "complete"} <= set(told)
    assert set(told) & {"torn", "lost tail", "broken"}, "the disk has lost nothing of interest"


def test_another_process_has_just_made_the_store(tmp_path: Path) -> None:
    """A run that finds the store's directories does not rely on their being on the device, as another process may have
    just made them."""
    world = tmp_path / "world"
    world.mkdir()
    disk = Disk(world)
    with disk.recording():
        for name in (".tracekit", ".tracekit/runs", ".tracekit/keys"):
            os.mkdir(world / name, 0o700)
        with record(RUN, run_id=RUN, store=world / ".tracekit"):
            Agent(disk).alone()
    failures(disk, tmp_path / "after", "effects", random.Random(20261123), 1)


def resumed(directory: Path, durability: str, rng: random.Random) -> tuple[Disk, Facts, bytes]:
    """Resume a run whose process died in the middle of a line, on a disk that has synced nothing since."""
    disk = recorded(directory / "first", durability, "alone")
    counts = [
        number
        for number, event in enumerate(disk.events)
        if event.kind == "write" and event.path.endswith(TRACE) and b'"type":"tool.call"' in event.data
    ]
    second = directory / "second"
    while True:
        count = rng.choice(counts)
        held = disk.after(count, "all")
        held.files[TRACE] += disk.events[count].data[: len(disk.events[count].data) // 2]
        shutil.rmtree(second, ignore_errors=True)
        second.mkdir()
        lay(held, second)
        if Log(second / TRACE).opinion().decision == "resume":
            break
    facts = [event.fact for event in disk.events[:count] if event.kind == "fact"]
    again = Disk(second)
    with again.recording(), resume(RUN, store=second / ".tracekit"):
        Agent(again).alone()
    assert Log(second / TRACE).finished
    return again, facts, held.files[TRACE]


@pytest.mark.parametrize("durability", ["effects", "always"])
def test_the_power_fails_while_a_run_is_resumed(durability: str, tmp_path: Path) -> None:
    """The same promises hold from the moment at which a resume cuts off a torn line to the run's end."""
    rng = random.Random(20261122)
    disk, facts, before = resumed(tmp_path, durability, rng)
    told = failures(disk, tmp_path / "after", durability, rng, 1, earlier=facts, before=before)
    assert {"torn", "incomplete", "complete"} <= set(told)


@pytest.mark.crash_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("program", ["alone", "threads", "resumed"])
@pytest.mark.parametrize("durability", ["effects", "always"])
def test_the_power_fails_in_many_ways(durability: str, program: str, seed: int, tmp_path: Path) -> None:
    """The same promises hold for many more combinations of what the disk may have kept."""
    rng = random.Random(seed)
    if program == "resumed":
        disk, facts, before = resumed(tmp_path, durability, rng)
        failures(disk, tmp_path / "after", durability, rng, 8, earlier=facts, before=before)
    else:
        disk = recorded(tmp_path / "world", durability, program)
        failures(disk, tmp_path / "after", durability, rng, 8)
