"""Replays: exact or loudly not. Nothing is answered that was not recorded for it, and no failure can be swallowed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import of_type, recorded, replayed
from tracekit import (
    DivergenceError,
    InexactReplayError,
    InexactReplayWarning,
    LiveCallBlockedError,
    NotReplayableError,
    ReplayError,
    TraceExhaustedError,
    UnconsumedStepsError,
    decision,
    record,
    replay,
    traced,
    traced_model,
    traced_tool,
)
from tracekit.errors import RunStateError

HERE = Path(__file__).name
calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def declare(side_effect: Any = "read_only", **options: Any) -> Any:
    """A tool called ``look``, declared as said: another version of the program."""

    @traced_tool(side_effect=side_effect, name="look", **options)
    def look(n: Any = 1, deep: bool = False) -> Any:
        calls.append(n)
        return {"n": n, "draw": random.random()}

    return look


look = declare()


@traced_tool(side_effect="read_only")
def other(n: int = 1) -> int:
    calls.append(n)
    return n * 10


@traced_tool(side_effect="irreversible")
def pay(n: int = 1) -> int:
    calls.append(n)
    return n * 10


@traced_tool(side_effect="read_only")
async def look_later(n: int = 1) -> int:
    calls.append(n)
    await asyncio.sleep(0)
    return n * 10


def model(name: str = "small", **parameters: Any) -> Any:
    @traced_model(model=name, parameters=parameters)
    def ask(prompt: str) -> str:
        calls.append(prompt)
        return prompt.upper()

    return ask


def fails(run: Any, program: Callable[[], Any], kind: type[ReplayError], **options: Any) -> ReplayError:
    """The failure of a replay, which must be the block's own first one; no tool runs in it."""
    calls.clear()
    with pytest.raises(kind) as failure, replay(run, **options) as session:
        program()
    assert session.report.failure is failure.value
    assert not session.report.exact
    assert not calls, "a tool ran in the replay"
    return failure.value


# -- 18-19, 26: matching ------------------------------------------------------------------------------------------------------


def test_an_exact_replay_gives_the_same_values_without_a_call() -> None:
    """18: tools, models and effects are answered with equal values, and nothing of them runs."""

    def program() -> list[Any]:
        return [look(1), pay(2), model()("hi"), asyncio.run(look_later(3)), decision("d", input=1, output=[2])]

    run, first = recorded(program)
    made = list(calls)
    report, second = replayed(run, program)
    assert (second, calls) == (first, made)
    assert (report.exact, report.consumed, report.unconsumed) == (True, 5, [])


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (lambda: look(2), "input.n"),
        (lambda: look(1, deep=True), "input.deep"),
        (lambda: look(1.0), "input.n"),
        (lambda: look(True), "input.n"),
        (lambda: look("1"), "input.n"),
        (lambda: look([1]), "input.n"),
        (lambda: look(None), "input.n"),
        (lambda: other(1), "name"),
        (lambda: declare(version="2")(1), "meta.version"),
        (lambda: declare(config={"region": "eu"})(1), "meta.config"),
        (lambda: declare("irreversible")(1), "meta.side_effect"),
        (lambda: declare("reversible")(1), "meta.side_effect"),
    ],
)
def test_another_input_tool_version_configuration_or_class_is_a_divergence(
    program: Callable[[], Any], path: str
) -> None:
    """19: whatever differs of a tool's step is named, with the recorded step, and the caller's file and line."""
    run, _ = recorded(lambda: look(1))
    failure = fails(run, program, DivergenceError)
    assert path in {one["path"] for one in failure.differences}  # type: ignore[attr-defined]
    assert path in str(failure)
    assert failure.step == of_type(run, "tool.call")[0]["seq"]
    assert failure.location is not None
    assert HERE in failure.location


@pytest.mark.parametrize(
    ("now", "path"),
    [
        (lambda: model("large")("hi"), "meta.model"),
        (lambda: model(temperature=0.5)("hi"), "meta.temperature"),
        (lambda: model(temperature=0, safety="off")("hi"), "meta.safety"),
        (lambda: model(temperature=0)("hello"), "input.prompt"),
    ],
)
def test_another_model_parameter_or_prompt_is_a_divergence(now: Callable[[], Any], path: str) -> None:
    """19: model, decoding parameters, safety settings and prompt are compared."""
    run, _ = recorded(lambda: model(temperature=0)("hi"))
    failure = fails(run, now, DivergenceError)
    assert path in {one["path"] for one in failure.differences}  # type: ignore[attr-defined]


def test_an_extra_call_is_exhaustion() -> None:
    """19: a call beyond the recorded ones is never answered by default."""
    run, _ = recorded(lambda: look(1))
    failure = fails(run, lambda: [look(1), look(1)], TraceExhaustedError)
    assert "'look'" in str(failure)
    assert HERE in str(failure.location)


def test_a_step_that_is_not_asked_for_is_a_failure() -> None:
    """19: leftovers fail the end of the block, each listed."""
    run, _ = recorded(lambda: [look(1), other(2)])
    failure = fails(run, lambda: look(1), UnconsumedStepsError)
    (left,) = failure.steps  # type: ignore[attr-defined]
    assert (left["type"], left["name"]) == ("tool.call", "other")


def test_a_call_inserted_before_another_never_gets_its_answer() -> None:
    """26: of two versions of a program, one with a call more, the new call is not given the old one's answer."""
    run, _ = recorded(lambda: look("refund"))
    for inserted in (lambda: look("delete"), lambda: other(1), lambda: pay(1)):
        failure = fails(run, lambda first=inserted: [first(), look("refund")], DivergenceError)
        assert HERE in str(failure.location)


def test_an_inserted_call_says_which_recorded_step_it_resembles() -> None:
    """A missing call shows as the next one coming early: the message says where that one stands in the recording."""
    run, _ = recorded(lambda: [look("first of all"), look("second of all")])
    failure = fails(run, lambda: look("second of all"), DivergenceError)
    seq = of_type(run, "tool.call")[1]["seq"]
    assert f"nearest recorded step: {seq}, with equal input" in str(failure)


def test_two_equal_requests_get_their_own_answers_in_order() -> None:
    """21: equal calls are told apart by their place, however often a name repeats."""
    run, first = recorded(lambda: [look(1) for _ in range(5)])
    assert len({value["draw"] for value in first}) == 5
    assert replayed(run, lambda: [look(1) for _ in range(5)])[1] == first


def test_each_kind_of_step_has_its_own_place() -> None:
    """Tools, models and decisions do not run each other's cursors on; two of different kind that are swapped are a divergence."""
    run, _ = recorded(lambda: [look(1), decision("d", input=1, output=2)])

    def swapped() -> None:
        decision("d", input=1, output=2)
        look(1)

    error = fails(run, swapped, DivergenceError)
    assert "'look'" in str(error)
    with pytest.warns(InexactReplayWarning, match="reordered"):
        report, _ = replayed(run, swapped, on_divergence="warn")
    assert not report.exact
    assert report.reordered


# -- 20: what is inside -------------------------------------------------------------------------------------------------------


@traced_tool(side_effect="reversible")
def outer(n: int) -> int:
    calls.append("outer")
    return int(other(n)) + int(time.time() * 0) + int(random.random() * 0)


def test_a_stubbed_tool_takes_its_subtree_with_it() -> None:
    """What a recorded tool called, read and drew inside its body is skipped with it in a replay, and counted as skipped."""

    def program() -> list[Any]:
        return [outer(1), other(2), random.random()]

    run, first = recorded(program)
    calls.clear()
    report, second = replayed(run, program)
    assert (second, calls) == (first, [])
    assert (report.exact, report.consumed, report.skipped) == (True, 2, 1)


def test_a_span_runs_and_its_steps_are_answered() -> None:
    """The body of ``@traced`` runs in a replay, with all that is in it."""

    @traced("phase")
    def phase(n: int) -> Any:
        ran.append(n)
        return [look(n), random.random()]

    ran: list[int] = []
    run, first = recorded(lambda: [phase(1), phase(2)])
    report, second = replayed(run, lambda: [phase(1), phase(2)])
    assert (second, ran) == (first, [1, 2, 1, 2])
    assert report.exact
    with pytest.raises(DivergenceError), replay(run):
        phase(3)


def test_a_span_that_raises_is_replayed_so() -> None:
    """An error passes out of a span in the recording and in the replay."""

    @traced
    def phase() -> None:
        look(1)
        raise LookupError("nothing")

    def program() -> str:
        try:
            phase()
        except LookupError as error:
            return str(error)
        return "nothing raised"

    run, first = recorded(program)
    assert replayed(run, program)[1] == first == "nothing"


def test_a_dry_run_changes_no_file(tmp_path: Path) -> None:
    """20: with ``dry_run`` a file write is refused, and the store is as it was."""
    run, _ = recorded(lambda: look(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def writes() -> None:
        look(1)
        (tmp_path / "out.txt").write_text("x")

    fails(run, writes, LiveCallBlockedError, dry_run=True)
    replayed(run, lambda: look(1))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_tool_never_runs_in_a_replay_that_fails_either() -> None:
    """20: not after a divergence, not in a thread, not in an ``except`` block: an effect in a replay is never executed."""
    run, _ = recorded(lambda: [look(1), pay(1)])
    calls.clear()

    def program() -> None:
        try:
            look(2)
        except BaseException:
            with pytest.raises(ReplayError):
                pay(1)
            thread = threading.Thread(target=swallow)
            thread.start()
            thread.join()

    def swallow() -> None:
        try:
            pay(1)
        except BaseException as error:
            seen.append(type(error))

    seen: list[Any] = []
    fails(run, program, DivergenceError)
    assert seen == [DivergenceError]


# -- 23: clock and rng -------------------------------------------------------------------------------------------------------


def test_clock_and_dice_return_what_was_recorded() -> None:
    """23: instants, draws and ids are those of the recording."""

    def program() -> list[Any]:
        out = [time.time(), random.random(), uuid.uuid4(), look(1), time.time(), random.randint(1, 10**9)]
        return [*out, time.time_ns(), random.random()]

    run, first = recorded(program)
    report, second = replayed(run, program)
    assert second == first
    assert report.exact


def test_a_program_that_waits_for_a_clock_that_stands_still_fails_where_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who reads a clock until it has come to an instant that the recording did not come to is told so, and does not wait for ever."""
    monkeypatch.setattr("tracekit._runtime.replayer._STANDS_STILL", 1000)

    def program(limit: float) -> None:
        until = time.monotonic() + limit
        while time.monotonic() < until:
            pass
        look(1)

    run, _ = recorded(lambda: program(0.0005))
    report, _ = replayed(run, lambda: program(0.0005))
    assert report.exact
    error = fails(run, lambda: program(60), TraceExhaustedError)
    assert "keeps reading time.monotonic here" in str(error)
    assert HERE in str(error.location)


def test_a_clock_read_too_many_is_reported_and_never_the_real_time() -> None:
    """23: a surplus read gets the window's last instant; the verdict counts it, with its place."""

    def program(reads: int) -> list[Any]:
        return [[time.time() for _ in range(reads)], look(1), time.time()]

    run, first = recorded(lambda: program(2))
    report, second = replayed(run, lambda: program(4))
    assert second[0] == [*first[0], first[0][-1], first[0][-1]]
    assert second[2] == first[2]
    assert report.exact
    assert report.verdict.line == "exact, 2 clock reads more or fewer"
    assert [(one["kind"], one["function"], one["count"]) for one in report.clock_drift] == [
        ("surplus", "time.time", 1)
    ] * 2
    assert HERE in report.clock_drift[0]["where"]
    strictly = fails(run, lambda: program(4), InexactReplayError, strict={"clock"})
    assert HERE in str(strictly)


def test_a_clock_that_was_never_read_shows_when_the_run_started() -> None:
    """23: with no recorded read at all the answer is from the recording still."""
    before = time.time()
    run, _ = recorded(lambda: look(1))
    after = time.time()
    report, (value, _) = replayed(run, lambda: (time.time(), look(1)))
    assert before <= value <= after
    assert report.clock_drift


def test_a_clock_read_missing_is_reported() -> None:
    """23: too few reads are drift too, at the next step or at the end of the lane."""

    def program(first: int, last: int) -> None:
        for _ in range(first):
            time.time()
        look(1)
        for _ in range(last):
            time.monotonic()

    run, _ = recorded(lambda: program(3, 2))
    report, _ = replayed(run, lambda: program(1, 1))
    assert [(one["kind"], one["function"], one["count"]) for one in report.clock_drift] == [
        ("missing", "time.time", 2),
        ("missing", "time.monotonic", 1),
    ]
    fails(run, lambda: program(1, 2), InexactReplayError, strict={"clock"})
    fails(run, lambda: program(3, 1), InexactReplayError, strict={"clock"})


@pytest.mark.parametrize(
    "now",
    [
        lambda: [random.random(), random.random(), look(1)],
        lambda: [look(1), random.random()],
        lambda: [look(1)],
        lambda: [random.randint(1, 6), look(1)],
        lambda: [random.random(), look(1), random.random()],
    ],
    ids=["too many", "too late", "missing", "other function", "one more at the end"],
)
def test_a_draw_too_many_missing_or_of_another_function_is_a_divergence(now: Callable[[], Any]) -> None:
    """23: rng are compared strictly, step by step."""
    run, _ = recorded(lambda: [random.random(), look(1)])
    failure = fails(run, now, DivergenceError)
    assert "draw" in str(failure)


def test_a_draw_of_another_size_is_a_divergence() -> None:
    """Bytes of another number are not handed to a program that would take them for its own."""
    with record("job") as run:
        os.urandom(8)
    with (
        pytest.raises(DivergenceError, match=r"draws 16 bytes by os\.urandom here, and the recorded one drew 8"),
        replay(run.id),
    ):
        os.urandom(16)


def test_a_draw_too_many_after_a_clock_that_stood_still_says_so() -> None:
    """Code that draws by the clock need not have changed for it: the message names the reading that gave an earlier time."""

    def program(reads: int) -> None:
        look(1)
        times = [time.time_ns() for _ in range(reads)]
        random.random()
        if times[-1] == times[0] and reads > 1:
            random.random()

    run, _ = recorded(lambda: program(1))
    failure = fails(run, lambda: program(2), DivergenceError)
    assert "before it time.time_ns was read at" in str(failure)
    assert "If nothing changed" in str(failure)
    other = fails(run, lambda: [look(1), random.random(), random.random()], DivergenceError)
    assert "time.time_ns" not in str(other)


def test_a_draw_missing_at_the_end_of_a_lane_is_a_divergence() -> None:
    """23: no step follows, and it is told all the same; in a thread that is not started any more, too."""

    def program(draws: int, thread: bool) -> None:
        look(1)
        for _ in range(draws):
            random.random()
        if thread:
            drawing = threading.Thread(target=lambda: random.random())
            drawing.start()
            drawing.join()

    run, _ = recorded(lambda: program(2, True))
    replayed(run, lambda: program(2, True))
    fails(run, lambda: program(1, True), DivergenceError)
    fails(run, lambda: program(2, False), DivergenceError)


def test_reads_of_libraries_are_in_no_trace() -> None:
    """29: what logging and queues read for themselves is not recorded, and what asyncio reads for a deadline can't be exhausted."""
    import logging

    def program() -> None:
        logging.getLogger("tracekit.test").warning("x")
        asyncio.run(asyncio.wait_for(look_later(1), 5))

    run, _ = recorded(program)
    assert {entry["name"] for entry in of_type(run, "clock") if "values" in entry} <= {"loop.time:asyncio"}
    logging.getLogger("tracekit.test").addFilter(lambda record: [time.time() for _ in range(3)] and False)
    replayed(run, lambda: (logging.getLogger("tracekit.other").warning("x"), program()))


# -- 24, 27: concurrency ------------------------------------------------------------------------------------------------------


def test_fifty_concurrent_calls_get_their_own_answers() -> None:
    """24: tasks that end in shuffled order, with equal names, are answered each with its own."""

    @traced_tool(side_effect="read_only")
    async def slow(n: int) -> Any:
        await asyncio.sleep(0.001 * ((n * 37) % 50))
        order.append(n)
        return [n, random.random()]

    async def main() -> list[Any]:
        return list(await asyncio.gather(*(slow(n) for n in range(50))))

    order: list[int] = []
    run, first = recorded(lambda: asyncio.run(main()))
    assert order != sorted(order)
    report, second = replayed(run, lambda: asyncio.run(main()))
    assert second == first
    assert report.exact


def test_a_thread_pool_keeps_answers_apart() -> None:
    """27: parallel calls of one tool with equal input in a pool are answered by their place of submission."""

    def program() -> list[Any]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda n: [n, look("same")], range(12)))

    run, first = recorded(program)
    report, second = replayed(run, program)
    assert second == first
    assert report.exact, report.as_dict()


# -- 25: what can't be swallowed ----------------------------------------------------------------------------------------------


def test_a_run_without_steps_replays_nothing() -> None:
    """25: a recording of nothing is not a successful replay of anything."""
    with record("empty") as run:
        pass
    failure = fails(run, lambda: None, NotReplayableError)
    assert "instrument()" in str(failure)
    fails(run, lambda: look(1), TraceExhaustedError)


def _sync() -> None:
    swallow(lambda: look(2))


def _in_thread() -> None:
    thread = threading.Thread(target=lambda: swallow(lambda: look(2)))
    thread.start()
    thread.join()


def _in_future() -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(look, 2)
        swallow(future.result)


def _in_task() -> None:
    async def main() -> None:
        task = asyncio.create_task(look_later(2))
        try:
            await task
        except Exception:
            pass

    swallow(lambda: asyncio.run(main()))


def _in_gather() -> None:
    async def main() -> Any:
        return await asyncio.gather(look_later(2), asyncio.sleep(0), return_exceptions=True)

    swallow(lambda: asyncio.run(main()))


def _in_group() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(look_later(2))
            group.create_task(asyncio.sleep(0))

    swallow(lambda: asyncio.run(main()))


def _in_finally() -> None:
    try:
        look(2)
    finally:
        raise LookupError("something else is in flight")


def _in_group_of_its_own() -> None:
    try:
        look(2)
    except BaseException as error:
        raise BaseExceptionGroup("wrapped", [error]) from None


def _in_everything_caught() -> None:
    try:
        look(2)
    except BaseException:
        pass


def _in_a_callback() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: swallow(lambda: look(2)))
        await asyncio.sleep(0)

    asyncio.run(main())


def swallow(call: Callable[[], Any]) -> None:
    """What agents do around every call."""
    try:
        call()
    except Exception:
        pass


@pytest.mark.parametrize(
    "agent",
    [
        _sync, _in_thread, _in_future, _in_task, _in_gather, _in_group, _in_finally, _in_group_of_its_own, _in_everything_caught,
        _in_a_callback,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_agent_swallows_a_divergence(agent: Callable[[], None]) -> None:
    """25: whatever an agent catches, and whatever else is in flight, the block ends with the first failure itself."""
    with record("x") as run:
        look(1)
    failure = fails(run, agent, ReplayError)
    assert type(failure) in (DivergenceError, TraceExhaustedError)
    assert not isinstance(failure, Exception)


def test_a_failure_sticks() -> None:
    """25: each further step, read and note raises a fresh copy of the first failure, and the block raises the first itself."""
    run, _ = recorded(lambda: [look(1), other(1), time.time(), random.random()])
    seen: list[BaseException] = []

    def program() -> None:
        for step in (
            lambda: look(2), lambda: look(1), lambda: other(1), time.time, random.random,
            lambda: decision("d", input=1, output=1), lambda: asyncio.run(look_later(1)),
        ):  # fmt: skip
            try:
                step()
            except BaseException as error:
                seen.append(error)

    failure = fails(run, program, DivergenceError)
    assert seen[0] is failure
    assert len(seen) == 7
    for copy in seen[1:]:
        assert copy is not failure
        assert str(copy) == str(failure)
        assert type(copy) is type(failure)


def test_the_failure_tells_what_else_was_in_flight() -> None:
    """The error that the block would have raised is kept as the cause of the failure."""
    run, _ = recorded(lambda: look(1))
    failure = fails(run, _in_finally, DivergenceError)
    assert isinstance(failure.__cause__, LookupError)


def test_the_programs_own_error_is_raised_as_it_is() -> None:
    """A program that fails of itself, where the recorded one did not, raises its own error; leftovers are in the report."""
    run, _ = recorded(lambda: [look(1), look(2)])

    def program() -> None:
        look(1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"), replay(run) as session:
        program()
    assert [left["name"] for left in session.report.unconsumed] == ["look"]
    assert not session.report.exact


# -- going on all the same ----------------------------------------------------------------------------------------------------


def test_warn_goes_on_with_a_step_of_equal_kind_and_name() -> None:
    """``on_divergence="warn"`` answers, notes the difference with its place, and the report is not exact."""
    run, first = recorded(lambda: [look(1), decision("d", input=1, output=2)])
    with pytest.warns(InexactReplayWarning, match="2 differences passed over"):
        report, second = replayed(run, lambda: [look(2), decision("d", input=1, output=3)], on_divergence="warn")
    assert second == [first[0], 3]
    assert not report.exact
    assert [one["differences"][0]["path"] for one in report.differences] == ["input.n", "output"]
    assert all(HERE in one["where"] for one in report.differences)
    assert report.as_dict()["exact"] is False


def test_warn_never_answers_an_effect_or_another_tool() -> None:
    """An irreversible step, recorded or asked for, and a step of another name, diverge whatever is asked for."""
    run, _ = recorded(lambda: pay(1))
    fails(run, lambda: pay(2), DivergenceError, on_divergence="warn")
    run, _ = recorded(lambda: look(1))
    fails(run, lambda: other(1), DivergenceError, on_divergence="warn")
    fails(run, lambda: declare("irreversible")(1), DivergenceError, on_divergence="warn")
    run, _ = recorded(lambda: declare("irreversible")(1))
    fails(run, lambda: look(1), DivergenceError, on_divergence="warn")


def test_another_environment_is_warned_of_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay elsewhere says what differs; with ``strict={"environment"}`` it does not begin."""
    from tracekit._runs import replaying as module

    run, _ = recorded(lambda: look(1))
    real = module.environment
    with monkeypatch.context() as patch:
        patch.setattr(module, "environment", lambda: {**real(), "python": "3.99.1"})
        with pytest.warns(RuntimeWarning, match=r"3\.99"):
            report, _ = replayed(run, lambda: look(1))
        assert any("3.99" in warning for warning in report.warnings)
        with pytest.raises(InexactReplayError, match=r"3\.99"), replay(run, strict={"environment"}):
            look(1)
    assert replayed(run, lambda: look(1))[0].consumed == 1  # the refusal left nothing behind


def test_the_warning_of_another_environment_names_the_line_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ``async`` block, too, which is entered from deeper inside tracekit."""
    from tracekit._runs import replaying as module

    run, _ = recorded(lambda: look(1))
    real = module.environment
    monkeypatch.setattr(module, "environment", lambda: {**real(), "python": "3.99.1"})

    def block() -> None:
        with replay(run):
            look(1)

    async def asynchronous() -> None:
        async with replay(run):
            look(1)

    for program in (block, lambda: asyncio.run(asynchronous())):
        with pytest.warns(RuntimeWarning, match=r"3\.99") as warned:
            program()
        assert [one.filename for one in warned] == [__file__]


def test_a_replay_inside_a_run_is_refused() -> None:
    """One context is in one run at a time."""
    run, _ = recorded(lambda: look(1))
    with replay(run):
        with pytest.raises(RunStateError), record("inner"):
            pass
        look(1)


# -- interrupts ---------------------------------------------------------------------------------------------------------------


def test_a_recorded_interrupt_interrupts_again() -> None:
    """A tool during which ``KeyboardInterrupt`` came raises it in the replay too, and the run ends as it did."""

    @traced_tool(side_effect="irreversible")
    def long() -> None:
        calls.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), record("x") as run:
        long()
    with pytest.raises(KeyboardInterrupt), replay(run) as session:
        long()
    assert session.report.exact
    assert calls == [1]


def test_a_program_that_is_interrupted_differently_is_not_exact() -> None:
    """An interrupt that the recording does not have passes through, and the report shows what was left."""
    run, _ = recorded(lambda: [look(1), look(2)])

    def program() -> None:
        look(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replay(run) as session:
        program()
    assert not session.report.exact


# -- another process ----------------------------------------------------------------------------------------------------------

PROGRAM = '''
import asyncio, sys
from decimal import Decimal
from pydantic import BaseModel
import tracekit
from tracekit import record, replay, traced_tool

class Receipt(BaseModel):
    total: Decimal
    tags: set[str]

class Client:
    """Neither data nor stable to describe."""
    __slots__ = ("lock",)

@traced_tool(side_effect="irreversible", config={"tags": {"b", "a", "c", "dd", "ee"}})
def pay(tags: set[str], client: Client) -> Receipt:
    if sys.argv[1] == "replay":
        raise SystemExit("a tool ran in the replay")
    return Receipt(total=Decimal("1.50"), tags=tags | {"paid"})

@traced_tool(side_effect="read_only")
async def look(n: int) -> bytes:
    if sys.argv[1] == "replay":
        raise SystemExit("a tool ran in the replay")
    await asyncio.sleep(0)
    return bytes([n]) * 3

def program():
    receipt = pay({"x", "y", "zz", "www"}, Client())
    assert type(receipt) is Receipt and type(receipt.total) is Decimal
    return [sorted(receipt.tags), str(receipt.total), asyncio.run(look(7)).hex()]

if sys.argv[1] == "record":
    import warnings
    warnings.simplefilter("ignore")
    with record("fresh", run_id="fresh") as run:
        run.set_result(program())
else:
    with replay("fresh") as session:
        assert program() == session.result
    assert session.report.exact, session.report.as_dict()
'''


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_a_replay_in_a_fresh_process_with_another_hash_seed_is_exact(tmp_path: Path, seed: str) -> None:
    """28: sets, models, bytes and opaque objects match and come back in another process, whatever its hash seed."""
    import os

    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    for mode, hash_seed in (("record", "1"), ("replay", seed)):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{root}/src:{root}/integrations"}
        done = subprocess.run(
            [sys.executable, str(path), mode], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
