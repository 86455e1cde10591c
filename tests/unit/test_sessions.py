"""Runs: opened as blocks or decorators, complete at their end, and strict about what comes after it."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracekit._journal.writer as writer
from tests.support.tracing import entries, of_type, recorded, replayed
from tracekit import (
    DivergenceError,
    LogWriteError,
    NotReplayableError,
    RunEndedError,
    agent,
    current_run,
    decision,
    record,
    replay,
    traced,
    traced_tool,
)
from tracekit.errors import ContractViolationError, RunNotFoundError, RunStateError, TraceIntegrityError
from tracekit.integration import Trace

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@traced_tool(side_effect="read_only")
def look(n: int = 1) -> int:
    calls.append(n)
    return n * 10


@traced_tool(side_effect="reversible")
def book(n: int = 1) -> int:
    calls.append(n)
    return n * 10


@traced_tool(side_effect="irreversible")
def pay(n: int = 1) -> int:
    calls.append(n)
    return n * 10


# -- blocks and decorators ----------------------------------------------------------------------------------------------------


def test_a_block_records_and_a_block_replays() -> None:
    """``with record`` writes a complete run; ``with replay`` answers the same program from it, by ``Run``, id, short id or path."""
    with record("billing") as run:
        run.set_result(look(2))
    with Trace(run.path) as trace:
        assert trace.status.state == "complete"
    first, last = entries(run)[0], entries(run)[-1]
    assert (first["type"], first["name"]) == ("run.started", "billing")
    assert (last["type"], last["output"], last["meta"]["steps"], last["meta"]["count"]) == ("run.completed", 20, 1, 4)
    for which in (run, run.id, run.id[:-3], run.path, Path(run.path)):
        with replay(which) as session:
            assert look(2) == 20
        assert session.report.exact
        assert session.result == 20
        assert session.run_id == run.id
    assert calls == [2]


def test_async_blocks_do_the_same() -> None:
    """``async with record`` and ``async with replay``."""

    async def main() -> int:
        async with record("billing") as run:
            assert look(3) == 30
        async with replay(run) as session:
            assert look(3) == 30
        return session.report.consumed

    assert asyncio.run(main()) == 1
    assert calls == [3]


def test_a_decorated_function_is_a_run_with_its_arguments_as_input() -> None:
    """The bound arguments become the run's input, the return value its result; each call is a run of its own."""
    ids = []

    @record("bill")
    def bill(customer: str, cents: int = 5, *, dry: bool = False) -> int:
        run = current_run()
        assert run is not None
        ids.append(run.path)
        return look(cents)

    @record
    async def bill_later(customer: str) -> int:
        run = current_run()
        assert run is not None
        ids.append(run.path)
        return look(7)

    assert bill("ACME") == 50
    assert bill(cents=6, customer="ACME") == 60
    assert asyncio.run(bill_later("ACME")) == 70
    assert len(set(ids)) == 3
    first, last = entries(ids[0])[0], entries(ids[0])[-1]
    assert first["input"] == {"customer": "ACME", "cents": 5, "dry": False}
    assert last["output"] == 50
    assert entries(ids[2])[0]["input"] == {"customer": "ACME"}
    assert bill.__name__ == "bill"


def test_a_decorated_method_leaves_self_out_of_its_input() -> None:
    """The object that a method belongs to is no input of the run."""
    ids = []

    class Desk:
        @record("desk")
        def bill(self, cents: int) -> int:
            run = current_run()
            assert run is not None
            ids.append(run.path)
            return cents

    assert Desk().bill(4) == 4
    assert entries(ids[0])[0]["input"] == {"cents": 4}


def test_a_replay_decorates_too_and_compares_the_result() -> None:
    """``@replay(run)`` replays at each call; a program that comes to another result diverges."""

    @record("bill")
    def bill(cents: int) -> int:
        calls.append(current_run())
        return look(cents)

    bill(5)
    run = calls[0]

    @replay(run)
    def again(extra: int) -> int:
        return look(5) + extra

    assert again(0) == 50
    with pytest.raises(DivergenceError, match="another result"):
        again(1)


def test_a_wrong_call_of_a_decorated_function_opens_no_run() -> None:
    """Python's own ``TypeError``, and no file."""

    @record("bill")
    def bill(customer: str) -> None:
        """Nothing."""

    with pytest.raises(TypeError, match=r"bill\(\) missing 1 required positional argument"):
        bill()
    assert not os.path.exists(os.path.join(os.environ["TRACEKIT_DIR"], "runs"))


def test_a_generator_function_cant_be_a_run() -> None:
    """It would end before it begins, so it is refused where it is written."""
    with pytest.raises(TypeError, match="generator"):

        @record("items")
        def items() -> Iterator[int]:
            yield 1


def test_a_block_is_entered_once() -> None:
    """A second ``with`` on one block is refused."""
    block = record("once")
    with block:
        pass
    with pytest.raises(RunStateError, match="entered before"), block:
        pass


def test_the_input_of_a_run_may_be_given() -> None:
    """``input=`` is kept in ``run.started``, and a replay shows it."""
    with record("given", input={"goal": "pay"}) as run:
        look()
    with replay(run) as session:
        look()
    assert session.input == {"goal": "pay"}


@pytest.mark.parametrize("options", [{"durability": "often"}, {"nested": "yes"}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """A misspelt option is an error where it is written."""
    with pytest.raises(ValueError):
        record("x", **options)
    with pytest.raises(ValueError):
        replay("x", strict={"clocks"})  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        replay("x", on_divergence="ignore")  # type: ignore[arg-type]


# -- nesting and context ------------------------------------------------------------------------------------------------------


def test_a_run_inside_a_run_is_refused() -> None:
    """Two runs in one context would share steps; the outer one goes on unharmed."""
    with record("outer") as run:
        with pytest.raises(RunStateError, match="inside the open run"), record("inner"):
            pass
        with pytest.raises(RunStateError, match="inside the open run"), replay("whatever"):
            pass
        look()
    assert len(of_type(run, "tool.call")) == 1


def test_a_linked_run_names_the_outer_one_and_the_step() -> None:
    """``nested="link"``: a run of its own whose first entry says by whom and where it was caused."""

    @traced_tool(side_effect="read_only")
    def serve() -> Any:
        with record("request", nested="link") as inner:
            look(4)
        return inner.path

    with record("server") as outer:
        path = serve()
        assert current_run() is outer
        look(5)
    step = of_type(outer, "tool.call")[0]["seq"]
    assert entries(path)[0]["cause"] == [{"run_id": outer.id, "seq": step}]
    assert [entry["input"] for entry in of_type(outer, "tool.call")][1:] == [{"n": 5}]
    assert [entry["input"] for entry in of_type(path, "tool.call")] == [{"n": 4}]


def test_a_linked_run_inside_a_replay_never_goes_live() -> None:
    """A replay that meets ``record(nested="link")`` in a body that it runs stops: what is inside is in another file."""

    def program() -> None:
        look(1)
        with record("request", nested="link"):
            pay(4)

    run, _ = recorded(program)
    calls.clear()
    with pytest.raises(NotReplayableError, match="inside a replay"), replay(run):
        program()
    assert calls == []


def test_the_current_run_is_that_of_the_context() -> None:
    """``current_run()`` follows tasks and threads that were started inside, and is ``None`` outside."""
    assert current_run() is None
    with record("here") as run:
        assert current_run() is run

        async def main() -> Any:
            return await asyncio.create_task(inner())

        async def inner() -> Any:
            return current_run()

        assert asyncio.run(main()) is run
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append(current_run()))
        thread.start()
        thread.join()
        assert seen == [run]
        look()
    assert current_run() is None
    assert run.id in repr(run)


def test_two_runs_in_two_threads_do_not_meet() -> None:
    """Runs of different contexts record side by side, each its own steps."""
    runs: dict[int, Any] = {}
    barrier = threading.Barrier(2)

    def program(n: int) -> None:
        with record(f"run {n}") as run:
            runs[n] = run
            for _ in range(5):
                barrier.wait(10)
                look(n)

    threads = [threading.Thread(target=program, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, run in runs.items():
        assert [entry["input"] for entry in of_type(run, "tool.call")] == [{"n": n}] * 5


# -- the end, and after it ----------------------------------------------------------------------------------------------------


class BillingError(Exception):
    """Raised by the program."""


def test_a_run_that_fails_leaves_a_complete_record() -> None:
    """The error passes through, and the complete file has every step and says what was raised, with traceback and cause."""

    def program() -> None:
        look(1)
        try:
            raise KeyError("inner")
        except KeyError as cause:
            raise BillingError("no such customer") from cause

    with pytest.raises(BillingError), record("fails") as run:
        program()
    last = entries(run)[-1]
    assert last["type"] == "run.failed"
    assert last["error"]["text"] == "no such customer"
    assert last["error"]["cause"]["text"] == "'inner'"
    assert last["error"]["traceback"][-1]["function"].endswith("program")
    with Trace(run.path) as trace:
        assert trace.status.state == "complete"
    with pytest.raises(BillingError), replay(run) as session:
        program()
    assert session.report.exact


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_a_run_that_is_interrupted_is_sealed_too(error: BaseException) -> None:
    """Interrupts, exits and cancellations end the run with ``run.failed``."""
    with pytest.raises(type(error)), record("stopped") as run:
        raise error
    assert entries(run)[-1]["type"] == "run.failed"


def late(call: Any) -> Any:
    """Calls in the context of a run that has ended; returns what it gave or raised."""
    import contextvars

    with record("ended") as run:
        look()
        context = contextvars.copy_context()
    before = entries(run)
    try:
        return context.run(call)
    except BaseException as error:
        return error
    finally:
        assert entries(run) == before
        with Trace(run.path) as trace:
            assert trace.status.state == "complete"


def test_a_read_after_the_end_passes_with_a_warning() -> None:
    """A read-only step that comes late is made, warned of, and in no trace."""
    with pytest.warns(RuntimeWarning, match="had ended and is not in its trace"):
        assert late(lambda: look(2)) == 20


@pytest.mark.parametrize("tool", [pay, book])
def test_an_effect_after_the_end_is_refused_before_it_happens(tool: Any) -> None:
    """``RunEndedError`` for effects, reversible or not; the function is never called."""
    error = late(lambda: tool(9))
    assert isinstance(error, RunEndedError)
    assert "not executed" in str(error)
    assert 9 not in calls


def test_warnings_are_told_at_the_end_of_the_run() -> None:
    """What could not be recorded is warned of once per run, kept in its last entry, and on the run itself."""

    @traced_tool(side_effect="read_only")
    def opened() -> Any:
        return open

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with record("gaps") as run:
            opened()
            opened()
    told = [str(one.message) for one in seen if issubclass(one.category, RuntimeWarning)]
    assert len(told) == 1
    assert run.id in told[0]
    assert {one.filename for one in seen} == {__file__}
    assert entries(run)[-1]["meta"]["warnings"] == run.warnings
    assert sum("can't be recorded" in sentence for sentence in run.warnings) == 1
    assert re.search(r"the output of tool '.*opened' \(step \d+\): ", told[0])


def test_a_span_may_change_what_it_is_given() -> None:
    """Its body runs in a replay, too, which so repeats the change: there is nothing to be warned of."""

    @traced
    def collect(into: list[int]) -> int:
        into.append(len(into))
        return len(into)

    def program() -> list[int]:
        found: list[int] = []
        collect(found)
        collect(found)
        return found

    with record("span") as run:
        first = program()
    assert not [one for one in run.warnings if "into" in one]
    with replay(run):
        assert program() == first == [0, 1]


def test_an_iterator_that_a_tool_took_from_is_named() -> None:
    """A replay does not advance it, nor call a function that the tool was given, and the recording says so."""

    @traced_tool(side_effect="read_only")
    def eat(items: Any, each: Any) -> int:
        return sum(map(each, items))

    with record("iterator") as run:
        items = iter([1, 2])
        assert (eat(items, abs), list(items)) == (3, [])
    (remark,) = [sentence for sentence in run.warnings if "the input items" in sentence]
    assert remark.endswith("a replay that answers the call neither calls it nor takes items from it.")
    with replay(run):
        items = iter([1, 2])
        assert (eat(items, abs), list(items)) == (3, [1, 2])


def test_an_input_that_cant_be_recorded_is_a_remark() -> None:
    """It is named in the trace with its tool, and no Python warning is made of it: a replay compares its type."""

    @traced_tool(side_effect="read_only")
    def hold(lock: Any, n: int) -> int:
        return n

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with record("remark") as run:
            hold(threading.Lock(), 1)
    (remark,) = [sentence for sentence in run.warnings if "the input lock of tool" in sentence]
    assert "It is compared by its type and description only; a replay that answers the call" in remark
    with replay(run) as session:
        assert hold(threading.Lock(), 1) == 1
    assert session.report.exact


# -- durability ---------------------------------------------------------------------------------------------------------------


class Device:
    """Counts what is really synced: how much of the file was on the device after each sync, by thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = threading.get_ident()
        self.mine: list[int] = []
        self.all: list[int] = []
        real = writer._fdatasync

        def fdatasync(fd: int) -> None:
            size = os.fstat(fd).st_size
            real(fd)
            self.all.append(size)
            if threading.get_ident() == self.here:
                self.mine.append(size)

        monkeypatch.setattr(writer, "_fdatasync", fdatasync)


def observed(monkeypatch: pytest.MonkeyPatch, durability: Any, side_effect: Any) -> tuple[bool, int, int]:
    """Whether the intention was on the device when the tool ran; syncs before, and after its outcome, by the program's thread."""
    seen: dict[str, Any] = {}

    @traced_tool(side_effect=side_effect)
    def act() -> None:
        run = current_run()
        assert run is not None
        seen["on device"] = bool(device.mine) and device.mine[-1] >= os.path.getsize(run.path)
        seen["before"] = len(device.mine)

    device = Device(monkeypatch)
    with record("durable", durability=durability):
        device.mine.clear()
        act()
        seen["after"] = len(device.mine) - seen["before"]
        device.here = -1
    return seen["on device"], seen["before"], seen["after"]


@pytest.mark.parametrize("side_effect", ["reversible", "irreversible"])
@pytest.mark.parametrize("durability", ["effects", "always"])
def test_an_effect_starts_when_its_intention_is_on_the_device(
    monkeypatch: pytest.MonkeyPatch, durability: str, side_effect: str
) -> None:
    """``fdatasync`` returns before the function is called, and again after its outcome."""
    assert observed(monkeypatch, durability, side_effect) == (True, 1, 1)


def test_reads_are_synced_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only step waits for the device with ``"always"`` only."""
    assert observed(monkeypatch, "always", "read_only") == (True, 1, 1)
    assert observed(monkeypatch, "effects", "read_only")[1:] == (0, 0)


def test_no_durability_is_no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """``"none"`` never syncs, effects included, and the end of the run neither."""
    done = []
    monkeypatch.setattr(writer, "_fdatasync", done.append)
    with record("fast", durability="none"):
        pay()
        look()
    assert done == []


def test_the_end_of_a_run_is_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the block has ended, all of the file is synced."""
    device = Device(monkeypatch)
    with record("complete") as run:
        look()
    assert max(device.all) == os.path.getsize(run.path)


def test_an_effect_that_cant_be_logged_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the sync fails the effect is not executed, nor any later one; reads go on, and the run says that steps are missing."""

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(writer, "_fdatasync", failing)

    def program() -> None:
        for _ in range(2):
            with pytest.raises(LogWriteError, match="Input/output error"):
                pay()
        assert look(2) == 20

    with pytest.raises(LogWriteError), record("disk") as run:
        program()
    assert calls == [2]
    assert any("could not be written" in warning for warning in run.warnings)


# -- the store ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run_id", ["../escape", "a/b", "..", ".hidden", "", "a\x00b", "x" * 200, "/etc/passwd", "a..b"]
)
def test_a_run_id_cant_leave_the_directory(run_id: str) -> None:
    """An id that is no plain file name is refused, and nothing is written anywhere."""
    with pytest.raises(RunStateError), record("x", run_id=run_id):
        pass
    root = Path(os.environ["TRACEKIT_DIR"])
    assert not [path for path in root.parent.rglob("*") if path.is_file()]


def test_a_chosen_run_id_is_the_one_everywhere() -> None:
    """The id names the file, every entry, the run and its replay; a second run of that id is refused."""
    with record("x", run_id="order-17") as run:
        look()
    assert run.id == "order-17"
    assert os.path.basename(run.path) == "order-17.jsonl"
    assert {entry["run_id"] for entry in entries(run)} == {"order-17"}
    with pytest.raises(RunStateError), record("x", run_id="order-17"):
        pass
    assert replayed("order-17", look)[0].run_id == "order-17"


def test_a_second_live_writer_is_refused() -> None:
    """While a run is open nobody else opens its file to write."""
    from tracekit.integration import Store

    with record("x", run_id="mine") as run:
        look()
        with pytest.raises((RunStateError, LogWriteError)), record("x", run_id="mine", nested="link"):
            pass
        with pytest.raises((RunStateError, LogWriteError)):
            Store().reopen("mine")
    assert len(of_type(run, "tool.call")) == 1


def test_the_files_are_the_users_own() -> None:
    """A run's file can be read by nobody else."""
    with record("private") as run:
        look()
    assert os.stat(run.path).st_mode & 0o777 == 0o600


def test_a_run_that_is_not_there_or_damaged_says_so() -> None:
    """A missing run and an edited one are two different errors, and neither is replayed."""
    with pytest.raises(RunNotFoundError), replay("nothing-here"):
        pass
    run, _ = recorded(look)
    path = Path(run.path)
    path.write_text(path.read_text().replace('"output":10', '"output":11'))
    with pytest.raises(TraceIntegrityError), replay(run):
        look()


# -- agents -------------------------------------------------------------------------------------------------------------------

SPIFFE = {"spiffe_id": "spiffe://example.org/planner", "config_hash": "sha256:aa"}


def test_an_agents_steps_carry_its_name_and_its_identity_is_recorded_once() -> None:
    """``agent()`` marks every step inside, in tasks too; the identity is one entry."""

    async def later() -> None:
        await asyncio.create_task(inner())

    async def inner() -> None:
        look(2)

    def program() -> None:
        look(0)
        with agent("planner", identity=SPIFFE):
            look(1)
            asyncio.run(later())
            decision("plan", input=1, output=2)
        with agent("planner", identity=SPIFFE):
            look(3)

    run, _ = recorded(program)
    ids = [entry.get("agent_id") for entry in of_type(run, "tool.call", "decision")]
    assert ids == [None, "planner", "planner", "planner", "planner"]
    (identity,) = of_type(run, "identity")
    assert (identity["agent_id"], identity["input"]) == ("planner", SPIFFE)
    assert replayed(run, program)[0].exact


@pytest.mark.parametrize("now", [None, {**SPIFFE, "config_hash": "sha256:bb"}])
def test_an_agent_with_another_identity_is_a_divergence(now: Any) -> None:
    """In a replay the identity must be the recorded one, field by field."""

    def program(identity: Any) -> None:
        with agent("planner", identity=identity):
            look()

    run, _ = recorded(lambda: program(SPIFFE))
    with pytest.raises(DivergenceError, match="has another identity than") as failure, replay(run):
        program(now)
    assert "config_hash" in str(failure.value)


def test_a_step_of_another_agent_is_a_divergence() -> None:
    """The same call made by another agent than in the recording fails the replay."""

    def program(name: str) -> None:
        with agent("a"), agent("b"):
            pass
        with agent(name):
            look()

    run, _ = recorded(lambda: program("a"))
    with pytest.raises(DivergenceError, match="agent_id"), replay(run):
        program("b")


def test_the_agent_of_a_run_acts_in_all_of_it() -> None:
    """``record(agent=, identity=)`` names who acts from the first entry on, and a replay knows it."""

    def program() -> int:
        return int(look(1))

    run, _ = recorded(program, agent="biller", identity=SPIFFE)
    assert entries(run)[0]["agent_id"] == "biller"
    assert of_type(run, "tool.call")[0]["agent_id"] == "biller"
    assert of_type(run, "identity")[0]["input"] == SPIFFE
    assert replayed(run, program)[0].exact


# -- refusing effects outside -------------------------------------------------------------------------------------------------


def test_effects_may_require_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``require_run``, or ``TRACEKIT_REQUIRE_RUN=1``, an effect outside every run is refused; reads are not."""
    strict = traced_tool(side_effect="irreversible", require_run=True)(lambda: calls.append("paid"))
    with pytest.raises(ContractViolationError, match="outside a run"):
        strict()
    monkeypatch.setenv("TRACEKIT_REQUIRE_RUN", "1")
    by_environment = traced_tool(side_effect="reversible")(lambda: calls.append("booked"))
    reading = traced_tool(side_effect="read_only")(lambda: "read")
    with pytest.raises(ContractViolationError):
        by_environment()
    assert reading() == "read"
    assert calls == []
    with record("inside"):
        strict()
    assert calls == ["paid"]


def test_a_clock_read_in_a_garbage_collection_does_no_harm() -> None:
    """A collection's callback that reads a clock (Hypothesis has one) may come at any allocation, that of leaving a run too."""
    import gc
    import time

    threshold = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: time.perf_counter())
    try:
        for n in range(200):
            gc.set_threshold(threshold[0])
            with record("collected", durability="none"):
                look(n)
                gc.set_threshold(1)
            assert current_run() is None
            keep = [object() for _ in range(50)]
            with pytest.raises(RunNotFoundError), replay("nothing-here"):
                pass
            del keep
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)
