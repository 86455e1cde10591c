"""Attempts: only where declared, each recorded, with waits and time limits that a replay does not wait for."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.effects import Effects, entries
from tracekit import (
    ContractViolationError,
    RecordedError,
    StepTimeoutError,
    _reality,
    effect,
    record,
    replay,
    traced_tool,
)
from tracekit._capture import contracted
from tracekit._capture import contracted as attempts
from tracekit.errors import InexactReplayError, RunEndedError


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of this test, which take no time."""
    waited: list[float] = []
    monkeypatch.setattr(attempts, "_reality", SimpleNamespace(**{**vars(_reality), "sleep": waited.append}))
    return waited


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracted, "_FIRST_WAIT", 0.001)


class RateLimited(Exception):
    """What an SDK raises for 429."""

    def __init__(self, after: str) -> None:
        super().__init__("slow down")
        self.status_code = 429
        self.response = SimpleNamespace(status_code=429, headers={"retry-after": after})


def failing(effects: Effects, times: int, error: Callable[[], BaseException], **how: Any) -> Callable[[int], str]:
    @traced_tool(side_effect="read_only", name="ask", **how)
    def ask(x: int) -> str:
        said = effects.happen("ask")
        if effects.count("ask") <= times:
            raise error()
        return said

    return ask


def test_a_failed_call_is_made_again_as_often_as_declared(tmp_path: Path, waits: list[float]) -> None:
    """Each attempt is a call of its own in the log, the waits double, and a replay takes the same course without waiting."""
    effects = Effects(tmp_path)
    ask = failing(effects, 3, lambda: ConnectionError("no"), max_retries=4)
    with record("again") as run:
        said = ask(1)
    assert said == "ask 4"
    assert waits == [0.1, 0.2, 0.4]
    calls = entries(run.path, "tool.call")
    assert [(call["meta"].get("info") or {}).get("attempt", 1) for call in calls] == [1, 2, 3, 4]
    assert len(entries(run.path, "tool.error")) == 3
    assert [one["name"] for one in entries(run.path, "clock")] == ["tracekit.backoff"] * 3
    waits.clear()
    with replay(run.id) as session:
        assert ask(1) == said
    assert session.report.exact
    assert (effects.count(), waits) == (4, [])


def test_the_last_failure_reaches_the_caller(tmp_path: Path, waits: list[float]) -> None:
    """When all attempts have failed the caller gets the last one's exception, now and in a replay."""
    effects = Effects(tmp_path)
    ask = failing(effects, 99, lambda: ConnectionError(f"no {effects.count()}"), max_retries=2)

    def program() -> str:
        with pytest.raises(ConnectionError) as caught:
            ask(1)
        return str(caught.value)

    with record("hopeless") as run:
        assert program() == "no 3"
    with replay(run.id):
        assert program() == "no 3"
    assert effects.count() == 3
    assert waits == [0.1, 0.2]


def test_waits_are_bounded_and_what_was_asked_for_is_respected(tmp_path: Path, waits: list[float]) -> None:
    """No wait is longer than half a minute unless the other side asks for it; one that asks for too much is not asked again."""
    effects = Effects(tmp_path)
    failing(effects, 10, lambda: ConnectionError("no"), max_retries=10)(1)
    assert waits[-2:] == [25.6, 30.0]
    waits.clear()
    failing(effects, 12, lambda: RateLimited("7"), max_retries=1)(1)
    assert waits == [7.0]
    with pytest.raises(RateLimited):
        failing(effects, 99, lambda: RateLimited("86400"), max_retries=1)(1)
    assert waits == [7.0]


@pytest.mark.parametrize(
    "error",
    [
        lambda: ContractViolationError("inner"),
        lambda: RunEndedError("late"),
        lambda: KeyboardInterrupt(),
        lambda: asyncio.CancelledError(),
        lambda: SystemExit(3),
    ],
)
def test_some_failures_are_never_tried_again(
    error: Callable[[], BaseException], tmp_path: Path, waits: list[float]
) -> None:
    """Refused calls, interruptions and cancellations end the call at once, in a replay too."""
    effects = Effects(tmp_path)
    ask = failing(effects, 99, error, max_retries=3)

    def program() -> None:
        with pytest.raises(type(error())):
            ask(1)

    with record("never") as run:
        program()
    with replay(run.id):
        program()
    assert effects.count() == 1


def test_an_input_that_is_wrong_is_not_tried_again(tmp_path: Path, waits: list[float]) -> None:
    """What another attempt can't mend is left alone; no_retry and no declaration mean one attempt."""
    effects = Effects(tmp_path)
    bad = RateLimited("0")
    bad.status_code = bad.response.status_code = 400
    for how in ({"max_retries": 3}, {"no_retry": True}, {"timeout_ms": 60_000, "timeout_in": "thread"}):
        error = bad if "max_retries" in how else ConnectionError("no")
        with pytest.raises(type(error)):
            failing(effects, 99, lambda error=error: error, **how)(1)  # type: ignore[misc]
    assert effects.count() == 3


def test_a_replay_without_the_exceptions_type_takes_the_same_course(tmp_path: Path, waits: list[float]) -> None:
    """What was decided stands in the log: an exception whose class is not loaded any more changes nothing there."""
    effects = Effects(tmp_path)
    gone: dict[str, Any] = {}
    exec("class Interrupted(BaseException): pass\nclass Flaky(Exception): pass", gone)
    for name, made in (("Interrupted", 1), ("Flaky", 3)):
        gone[name].__module__ = "module_that_is_gone"
        ask = failing(effects, effects.count() + 99, gone[name], max_retries=2)
        before = effects.count()
        with record("gone") as run, pytest.raises(gone[name]):
            ask(1)
        assert effects.count() - before == made
        with pytest.raises(InexactReplayError), replay(run.id) as session, pytest.raises(RecordedError):
            ask(1)
        assert session.report.consumed == made
        assert {reason.code for reason in session.report.verdict.reasons} == {"exception"}
        assert effects.count() - before == made


@pytest.mark.usefixtures("_soon")
def test_methods_and_coroutines_are_tried_again(tmp_path: Path) -> None:
    """Every shape of tool keeps its contract, several at once in one loop too."""
    effects = Effects(tmp_path)

    class Desk:
        @traced_tool(side_effect="read_only", max_retries=2)
        def ask(self, x: int) -> str:
            said = effects.happen("method")
            if effects.count("method") < 3:
                raise ConnectionError("no")
            return said

        @traced_tool(side_effect="read_only", max_retries=2)
        @classmethod
        def share(cls, x: int) -> str:
            said = effects.happen(f"class {cls.__name__}")
            if effects.count(f"class {cls.__name__}") < 2:
                raise ConnectionError("no")
            return said

    @traced_tool(side_effect="read_only", max_retries=3)
    async def later(x: int) -> str:
        said = effects.happen(f"later {x}")
        await asyncio.sleep(0.001 * x)
        if effects.count(f"later {x}") <= x:
            raise ConnectionError("no")
        return said

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(later(1), later(2), later(3)))

    def program() -> list[Any]:
        return [Desk().ask(1), Desk.share(1), asyncio.run(all_of_them())]

    with record("shapes") as run:
        came = program()
    made = effects.all()
    assert came == ["method 3", "class Desk 2", ["later 1 2", "later 2 3", "later 3 4"]]
    with replay(run.id) as session:
        assert program() == came
    assert session.report.exact
    assert effects.all() == made


def test_attempts_inside_another_tool_are_no_steps_of_a_replay(tmp_path: Path, waits: list[float]) -> None:
    """A tool's own inner attempts and waits are skipped with it."""
    effects = Effects(tmp_path)
    ask = failing(effects, 1, lambda: ConnectionError("no"), max_retries=1)

    @traced_tool(side_effect="read_only")
    def outer(x: int) -> str:
        return ask(x)

    with record("inner") as run:
        said = outer(1)
    assert waits == [0.1]
    with replay(run.id) as session:
        assert outer(1) == said
    assert session.report.exact
    assert effects.count() == 2


def test_a_sleep_after_a_tool_that_calls_another_is_over_at_once(tmp_path: Path) -> None:
    """Which timer it is does not depend on what happened inside a step, which a replay does not make."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only")
    def inner(x: int) -> str:
        return effects.happen("inner")

    @traced_tool(side_effect="read_only")
    def outer(x: int) -> str:
        return inner(x)

    def program() -> str:
        said = outer(1)
        time.sleep(0.001)
        return said

    with record("asleep") as run:
        said = program()
    with replay(run.id) as session:
        assert program() == said
    assert session.report.exact


def test_outside_a_run_the_contract_holds_too(tmp_path: Path, waits: list[float]) -> None:
    """Attempts and limits do not depend on being recorded."""
    effects = Effects(tmp_path)
    assert failing(effects, 1, lambda: ConnectionError("no"), max_retries=1)(1) == "ask 2"
    assert waits == [0.1]


def test_what_has_started_something_irreversible_is_not_made_again(tmp_path: Path, waits: list[float]) -> None:
    """A tool that fails after an irreversible step inside it would do that twice; one that happens once is no hindrance."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="irreversible")
    def pay(x: int) -> str:
        return effects.happen("pay")

    @traced_tool(side_effect="irreversible", exactly_once=True)
    def pay_once(x: int) -> str:
        return effects.happen("pay_once")

    @traced_tool(side_effect="read_only")
    def between(x: int) -> str:
        return pay(x)

    def composed(inner: Callable[[int], str]) -> Callable[[int], str]:
        @traced_tool(side_effect="reversible", max_retries=2, name="composed")
        def order(x: int) -> str:
            inner(x)
            effects.happen("order")
            raise ConnectionError("no")

        return order

    for inner, paid, ordered in ((pay, 1, 1), (between, 2, 2), (pay_once, 2, 5)):
        order = composed(inner)
        with record("composed") as run, pytest.raises(ConnectionError):
            order(1)
        assert (effects.count("pay"), effects.count("order")) == (paid, ordered)
        with replay(run.id) as session, pytest.raises(ConnectionError):
            order(1)
        assert session.report.exact
    assert effects.count("pay_once") == 1


# -- time limits -------------------------------------------------------------------------------------------------------------


def _in_another_context(call: Callable[[], object]) -> None:
    Context().run(call)


def _in_a_bare_thread(call: Callable[[], object]) -> None:
    over = threading.Event()

    def body() -> None:
        try:
            call()
        finally:
            over.set()

    _thread.start_new_thread(body, ())
    assert over.wait(60)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("lost", [_in_another_context, _in_a_bare_thread])
@pytest.mark.parametrize("by_block", [True, False])
def test_what_was_started_where_the_run_is_lost_is_not_made_again(
    tmp_path: Path, waits: list[float], lost: Callable[[Callable[[], object]], None], recorded: bool, by_block: bool
) -> None:
    """An irreversible call in a thread or context that knows of no run may be any running attempt's: none of them is repeated."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="irreversible")
    def charge() -> None:
        effects.happen("charge")

    def charge_in_a_block() -> None:
        with effect("charge", side_effect="irreversible") as one:
            one.perform(effects.happen, "charge")

    @traced_tool(side_effect="reversible", max_retries=3)
    def order() -> None:
        lost(charge_in_a_block if by_block else charge)
        raise ConnectionError("reset after the charge")

    def program() -> None:
        with pytest.raises(ConnectionError):
            order()

    if recorded:
        with record("lost"):
            program()
    else:
        program()
    assert effects.count("charge") == 1
    assert waits == []


@pytest.mark.parametrize("side_effect", ["read_only", "reversible", "irreversible"])
def test_a_coroutine_that_takes_too_long_is_interrupted(side_effect: Any, tmp_path: Path) -> None:
    """It is cancelled and its clean-up runs; the caller has StepTimeoutError with the facts, and so in a replay, at once."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect=side_effect, timeout_ms=20)
    async def wait(x: int) -> None:
        effects.happen("begun")
        try:
            await asyncio.Event().wait()
        finally:
            effects.happen("cleaned up")

    async def program() -> StepTimeoutError:
        with pytest.raises(StepTimeoutError) as caught:
            await wait(1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return caught.value

    with record("limit") as run:
        error = asyncio.run(program())
    assert error.timeout_ms == 20  # type: ignore[attr-defined]
    assert error.in_doubt is (side_effect == "irreversible")  # type: ignore[attr-defined]
    assert error.step == entries(run.path, "tool.call")[0]["seq"]
    [failed] = entries(run.path, "tool.error")
    assert failed["meta"]["info"]["timeout"] is True
    assert failed["meta"]["info"].get("in_doubt") == (True if side_effect == "irreversible" else None)
    with replay(run.id) as session:
        again = asyncio.run(program())
    assert session.report.exact
    assert str(again) == str(error)
    assert effects.all() == ["begun", "cleaned up"]


def test_a_cancellation_from_outside_stays_one(tmp_path: Path) -> None:
    """The limit of a tool does not turn the caller's own cancellation into a time-out, nor does it try again."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only", timeout_ms=60_000, max_retries=3)
    async def wait(x: int) -> None:
        effects.happen("begun")
        await asyncio.Event().wait()

    async def program() -> str:
        task = asyncio.ensure_future(wait(1))
        await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "not"

    with record("outer") as run:
        assert asyncio.run(program()) == "cancelled"
    with replay(run.id):
        assert asyncio.run(program()) == "cancelled"
    assert effects.count() == 1


def test_a_coroutine_that_raises_its_own_timeout_keeps_it(tmp_path: Path) -> None:
    """TimeoutError of the tool's own is not the limit's, and one in time returns its value."""

    @traced_tool(side_effect="read_only", timeout_ms=60_000)
    async def ask(x: int) -> int:
        await asyncio.sleep(0)
        if x:
            raise TimeoutError("mine")
        return 5

    async def program() -> int:
        with pytest.raises(TimeoutError, match="mine"):
            await ask(1)
        return await ask(0)

    with record("own") as run:
        assert asyncio.run(program()) == 5
    with replay(run.id):
        assert asyncio.run(program()) == 5


@pytest.mark.parametrize("side_effect", ["read_only", "reversible", "irreversible"])
def test_a_function_that_takes_too_long_is_not_waited_for(side_effect: Any, tmp_path: Path) -> None:
    """Its thread goes on, what it comes to is dropped, and no effect begins in it any more; a replay starts no thread."""
    effects = Effects(tmp_path)
    go_on, ended = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    @traced_tool(side_effect="irreversible")
    def pay(x: int) -> str:
        return effects.happen("pay")

    @traced_tool(side_effect="read_only")
    def look(x: int) -> str:
        return effects.happen("look")

    @traced_tool(side_effect=side_effect, timeout_ms=30, timeout_in="thread")
    def work(x: int) -> str:
        effects.happen("begun")
        go_on.wait()
        try:
            look(x)
            pay(x)
        except BaseException as error:
            refused.append(error)
        ended.set()
        return "too late"

    def program() -> StepTimeoutError:
        with pytest.raises(StepTimeoutError) as caught:
            work(1)
        return caught.value

    with record("thread") as run:
        error = program()
        go_on.set()
        assert ended.wait(10)
    assert isinstance(refused[0], RunEndedError)
    assert error.in_doubt is (side_effect != "read_only")  # type: ignore[attr-defined]
    [failed] = entries(run.path, "tool.error")
    assert failed["meta"]["info"]["timeout"] is True
    assert failed["meta"]["info"].get("in_doubt", False) is error.in_doubt  # type: ignore[attr-defined]
    assert entries(run.path, "run.completed")
    with replay(run.id) as session:
        assert str(program()) == str(error)
    assert session.report.exact
    assert effects.all() == ["begun", "look"]


def test_a_function_in_time_is_as_without_a_limit(tmp_path: Path) -> None:
    """Its value and exceptions are the caller's, context variables reach it, and steps inside are below it."""
    effects = Effects(tmp_path)
    who = contextvars.ContextVar("who", default="nobody")

    @traced_tool(side_effect="read_only")
    def inner(x: int) -> str:
        return effects.happen("inner")

    @traced_tool(side_effect="read_only", timeout_ms=60_000, timeout_in="thread")
    def work(x: int) -> str:
        if x:
            raise LookupError(x)
        return f"{who.get()} {inner(x)}"

    def program() -> str:
        who.set("me")
        with pytest.raises(LookupError):
            work(1)
        return work(0)

    with record("in time") as run:
        assert program() == "me inner 1"
    calls = entries(run.path, "tool.call")
    assert calls[2]["parent"] == calls[1]["seq"]
    with replay(run.id) as session:
        assert program() == "me inner 1"
    assert session.report.exact
    assert effects.count() == 1


def test_a_timed_out_call_is_tried_again_where_declared(tmp_path: Path, waits: list[float]) -> None:
    """A read_only tool that hung once answers at the second attempt."""
    effects = Effects(tmp_path)
    go_on = threading.Event()

    @traced_tool(side_effect="read_only", timeout_ms=30, timeout_in="thread", max_retries=1)
    def ask(x: int) -> str:
        said = effects.happen("ask")
        if said == "ask 1":
            go_on.wait()
        return said

    with record("hung") as run:
        assert ask(1) == "ask 2"
        go_on.set()
    with replay(run.id) as session:
        assert ask(1) == "ask 2"
    assert session.report.exact
    assert effects.count() == 2


def test_a_function_that_returns_a_coroutine_is_told_to_say_so(tmp_path: Path) -> None:
    """A limit on a plain function could not hold what it returns unfinished: it is not begun."""
    effects = Effects(tmp_path)

    async def later(x: int) -> None:
        effects.happen("later")

    @traced_tool(side_effect="read_only", timeout_ms=1000, timeout_in="thread")
    def start(x: int) -> Any:
        return later(x)

    with record("lazy"), pytest.raises(ContractViolationError, match="async def"):
        start(1)
    assert effects.count() == 0


def test_a_swallowed_cancellation_makes_no_success(tmp_path: Path) -> None:
    """A coroutine that goes on after its limit, and returns, has taken too long: what it returns is dropped."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="irreversible", timeout_ms=20)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return effects.happen("late")

    async def program() -> str:
        with pytest.raises(StepTimeoutError) as caught:
            await stubborn()
        assert caught.value.in_doubt
        await asyncio.sleep(0)  # the task itself is not cancelled
        return str(caught.value)

    with record("stubborn") as run:
        said = asyncio.run(program())
    [failed] = entries(run.path, "tool.error")
    assert failed["meta"]["info"]["in_doubt"] is True
    with replay(run.id) as session:
        assert asyncio.run(program()) == said
    assert session.report.exact
    assert effects.all() == ["late"]


@pytest.mark.parametrize("side_effect", ["read_only", "reversible"])
def test_what_may_take_effect_yet_is_not_repeated(side_effect: Any, tmp_path: Path) -> None:
    """A function whose thread goes on: a reversible one is in doubt, neither made again, undone nor stood in for; a look is."""
    effects = Effects(tmp_path)
    go_on = threading.Event()
    how: dict[str, Any] = {"compensate": lambda: effects.happen("undo")} if side_effect == "reversible" else {}

    @traced_tool(side_effect="reversible", name="other")
    def other() -> str:
        return effects.happen("other")

    @traced_tool(side_effect=side_effect, timeout_ms=30, timeout_in="thread", max_retries=1, fallback=other, **how)
    def book() -> None:
        effects.happen("begun")
        go_on.wait()

    def program() -> str:
        try:
            return book() or ""
        except StepTimeoutError as error:
            return f"in doubt: {error.in_doubt}"  # type: ignore[attr-defined]

    try:
        with record("slow") as run:
            said = program()
    finally:
        go_on.set()
    made = effects.all()
    assert (said, made) == (
        ("in doubt: True", ["begun"]) if side_effect == "reversible" else ("other 1", ["begun", "begun", "other"])
    )
    with replay(run.id) as session:
        assert program() == said
    assert session.report.exact
    assert effects.all() == made
