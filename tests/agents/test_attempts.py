"""What an attempt did decides on what follows it: in a run, in its replay, and outside every run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cut import cut
from tests.support.effects import Effects
from tests.support.tracing import both, entries, of_type, recorded, replayed
from tracekit import _reality, current_run, effect, record, resume, traced_tool
from tracekit._capture import contracted
from tracekit._capture import contracted as attempts
from tracekit.agents import AgentRegistry, BaseAgent, IntentEnvelope, IntentResponse, IntentRouter
from tracekit.errors import RunEndedError, StepTimeoutError
from tracekit.failures import FailureType

#: How long (s) a thread waits at most for what is certain to come.
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_reality", SimpleNamespace(**{**vars(_reality), "sleep": lambda seconds: None}))
    monkeypatch.setattr(contracted, "_FIRST_WAIT", 0.001)


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path)


def ask(*agents: BaseAgent, strategy: str = "fallback", waiting: bool = False, **options: Any) -> IntentResponse:
    """Route one request to these agents, in this order."""
    router = IntentRouter(AgentRegistry(agents))
    envelope = IntentEnvelope.from_dict({"intent": "do", "payload": {"n": 1}, "routing": {"strategy": strategy}})
    return asyncio.run(router.route_async(envelope, **options)) if waiting else router.route(envelope, **options)


def agent(handler: Callable[..., Any], name: str, priority: int = 1, **options: Any) -> BaseAgent:
    return BaseAgent(handler, intent="do", name=name, priority=priority, **options)


def payer(effects: Effects, name: str = "pay") -> Any:
    """A tool that pays, and whose answer is lost."""

    @traced_tool(side_effect="irreversible", name=name)
    def pay(order: str) -> str:
        effects.happen(f"paid {order}")
        raise ConnectionError("the answer was lost")

    return pay


def in_the_body(effects: Effects) -> Callable[[Any], Any]:
    pay = payer(effects)
    return lambda payload: pay("A")


def in_a_thread(effects: Effects) -> Callable[[Any], Any]:
    pay = payer(effects)

    async def handler(payload: Any) -> Any:
        return await asyncio.to_thread(pay, "A")

    return handler


def in_a_task(effects: Effects) -> Callable[[Any], Any]:
    @traced_tool(side_effect="irreversible")
    async def pay(order: str) -> str:
        await asyncio.sleep(0)
        effects.happen(f"paid {order}")
        raise ConnectionError("the answer was lost")

    async def handler(payload: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(pay("A"))

    return handler


def in_a_generator(effects: Effects) -> Callable[[Any], Any]:
    @traced_tool(side_effect="irreversible")
    def pay(order: str) -> Any:
        effects.happen(f"paid {order}")
        yield "half"
        yield "all"

    def handler(payload: Any) -> Any:
        for _ in pay("A"):
            raise ConnectionError("in the middle")

    return handler


def in_a_block(effects: Effects) -> Callable[[Any], Any]:
    def handler(payload: Any) -> Any:
        with effect("pay", side_effect="irreversible", order="A") as paying:
            paying.perform(effects.happen, "paid A")
        raise ConnectionError("the answer was lost")

    return handler


def in_a_run_of_its_own(effects: Effects) -> Callable[[Any], Any]:
    pay = payer(effects)

    def handler(payload: Any) -> Any:
        with record("inner", nested="link"):
            pay("A")

    return handler


WAYS = [in_the_body, in_a_thread, in_a_task, in_a_generator, in_a_block]


# -- what can't be undone, outside a run too -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pays", [*WAYS, in_a_run_of_its_own])
@pytest.mark.parametrize("side_effect", [None, "reversible"])
@pytest.mark.parametrize("waiting", [False, True])
def test_outside_a_run_nobody_stands_in_after_what_cant_be_undone(
    effects: Effects, pays: Any, side_effect: Any, waiting: bool
) -> None:
    """As in a run: paid once, and the response says why nobody else was asked."""
    first = agent(pays(effects), "A", 1, side_effect=side_effect)
    second = agent(lambda payload: effects.happen("paid B"), "B", 2, side_effect=side_effect)
    response = ask(first, second, waiting=waiting)
    assert effects.all() == ["paid A"]
    assert response.error is not None
    assert response.error.type is FailureType.IRREVERSIBLE_STEP_FAILED


@pytest.mark.parametrize("pays", WAYS)
@pytest.mark.parametrize("side_effect", [None, "reversible"])
@pytest.mark.parametrize("waiting", [False, True])
def test_in_a_run_the_same_and_in_its_replay(effects: Effects, pays: Any, side_effect: Any, waiting: bool) -> None:
    """Paid once, by the recording."""
    first = agent(pays(effects), "A", 1, side_effect=side_effect)
    second = agent(lambda payload: effects.happen("paid B"), "B", 2, side_effect=side_effect)
    _, response, again = both(lambda: ask(first, second, waiting=waiting))
    assert effects.all() == ["paid A"]
    assert again == response
    assert response.error is not None
    assert response.error.type is FailureType.IRREVERSIBLE_STEP_FAILED


def test_outside_a_run_the_next_request_is_a_new_one(effects: Effects) -> None:
    """What one attempt did says nothing of another: after a failure without an effect somebody stands in."""
    pay = payer(effects)
    first = agent(lambda payload: pay("A"), "A", 1)
    with pytest.raises(ConnectionError):
        pay("before")
    assert not ask(first, agent(lambda payload: "B", "B", 2)).ok

    def fails(payload: Any) -> None:
        raise ConnectionError("before anything happened")

    assert ask(agent(fails, "C", 1), agent(lambda payload: "D", "D", 2)).payload == "D"
    assert effects.all() == ["paid before", "paid A"]


@pytest.mark.parametrize("once", [True, "store"])
def test_outside_a_run_nothing_makes_a_call_exactly_once_but_making_it_once(effects: Effects, once: Any) -> None:
    """There is no log to answer the second call: what is around it is not made again."""

    @traced_tool(side_effect="irreversible", exactly_once=once)
    def pay(order: str) -> None:
        effects.happen(f"paid {order}")
        raise ConnectionError("the answer was lost")

    @traced_tool(side_effect="reversible", max_retries=2)
    def buy(x: int) -> None:
        pay("A")

    with pytest.raises(ConnectionError):
        buy(1)
    response = ask(agent(lambda payload: pay("B"), "a", 1), agent(lambda payload: pay("C"), "b", 2))
    assert (effects.all(), response.status) == (["paid A", "paid B"], "error")


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize(
    "how", [{"max_retries": 2}, {"fallback": True}, {"timeout_ms": 60_000, "timeout_in": "thread", "fallback": True}]
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_around_what_cant_be_undone_is_made_once(
    effects: Effects, where: str, how: dict[str, Any], asynchronous: bool
) -> None:
    """Neither another attempt nor another tool, in a run and outside; in a thread of its own, or in tasks and their threads."""
    pay = payer(effects)

    @traced_tool(side_effect="reversible")
    def other(x: int) -> None:
        effects.happen("other")

    options = {**how, **({"fallback": other} if "fallback" in how else {})}

    @traced_tool(side_effect="reversible", **options)
    def plain(x: int) -> str:
        return pay("A")  # type: ignore[no-any-return]

    @traced_tool(side_effect="reversible", **options)
    async def waiting(x: int) -> str:
        return await asyncio.create_task(asyncio.to_thread(pay, "A"))

    def program() -> str:
        try:
            return asyncio.run(waiting(1)) if asynchronous else plain(1)
        except ConnectionError as error:
            return str(error)

    if where == "run":
        run, said, again = both(program)
        assert said == again == "the answer was lost"
        assert len(of_type(run, "tool.call")) == 2
    else:
        assert program() == "the answer was lost"
    assert effects.all() == ["paid A"]


def test_a_tool_in_a_run_around_a_run_of_its_own_is_made_once(effects: Effects) -> None:
    """What the inner run can't undo counts, whichever log it is on."""
    pay = payer(effects)

    @traced_tool(side_effect="reversible", max_retries=1)
    def outer(x: int) -> None:
        with record("inner", nested="link"):
            pay("A")

    with record("outer"), pytest.raises(ConnectionError):
        outer(1)
    assert effects.all() == ["paid A"]


# -- what may take effect yet --------------------------------------------------------------------------------------------------


class Late:
    """A function whose thread goes on after its time until it is let go."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._go, self.over = threading.Event(), threading.Event()

    def __call__(self, payload: Any) -> None:
        try:
            self._go.wait(PATIENCE)
            self._effects.happen("late")
        finally:
            self.over.set()

    def end(self) -> None:
        self._go.set()
        assert self.over.wait(PATIENCE)


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("inside", ["the agent", "a tool", "a tool of an agent without a class"])
def test_nobody_stands_in_for_what_may_take_effect_yet(
    effects: Effects, where: str, waiting: bool, inside: str
) -> None:
    """A reversible function that took too long goes on in its thread: one effect, whoever has the limit, and the same in a replay."""
    late = Late(effects)
    if inside == "the agent":
        first = agent(late, "A", 1, side_effect="reversible", contract={"timeout_ms": 20, "timeout_in": "thread"})
    else:
        tool = traced_tool(side_effect="reversible", name="slow", timeout_ms=20, timeout_in="thread")(late.__call__)
        side_effect = None if "without" in inside else "reversible"
        first = agent(lambda payload: tool(payload), "A", 1, side_effect=side_effect)
    second = agent(lambda payload: effects.happen("B"), "B", 2, side_effect="reversible")

    def program() -> IntentResponse:
        return ask(first, second, waiting=waiting)

    if where == "run":
        run, response = recorded(program)
        late.end()
        report, again = replayed(run, program)
        assert (again, report.exact) == (response, True)
    else:
        response = program()
        late.end()
    assert effects.all() == ["late"]
    assert [one.agent for one in response.results] == ["A"]
    assert response.error is not None
    assert response.error.type is FailureType.TIMEOUT


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("side_effect", [None, "read_only", "reversible"])
def test_nobody_stands_in_while_a_thread_of_the_agent_is_at_work(
    effects: Effects, waiting: bool, side_effect: Any
) -> None:
    """The agent has ended, what it started has not: one effect, and the same answer in the replay."""
    late, begun = Late(effects), threading.Event()

    @traced_tool(side_effect="reversible")
    def book() -> None:
        begun.set()
        late(1)

    async def handler(payload: Any) -> None:
        booking = asyncio.get_running_loop().run_in_executor(threads, book)
        while not begun.is_set():
            await asyncio.sleep(0)
        booking.add_done_callback(lambda done: done.exception())
        raise ConnectionError("it takes too long")

    first = agent(handler, "A", 1, side_effect=side_effect)
    second = agent(lambda payload: effects.happen("B"), "B", 2, side_effect=side_effect)
    with ThreadPoolExecutor(1) as threads, record("late") as run:
        response = ask(first, second, waiting=waiting)
        late.end()
    assert effects.all() == ["late"]
    assert [one.agent for one in response.results] == ["A"]
    if side_effect is not None:  # else its body runs again, and waits for what is not called
        report, again = replayed(run, lambda: ask(first, second, waiting=waiting))
        assert (again, report.exact) == (response, True)
        assert effects.all() == ["late"]


@pytest.mark.parametrize("where", ["run", "outside"])
def test_a_tool_around_one_that_may_take_effect_yet_is_not_made_again(effects: Effects, where: str) -> None:
    """Neither is it stood in for: the inner thread goes on."""
    late = Late(effects)
    slow = traced_tool(side_effect="reversible", name="slow", timeout_ms=20, timeout_in="thread")(late.__call__)

    @traced_tool(side_effect="reversible")
    def other(x: int) -> None:
        effects.happen("other")

    @traced_tool(side_effect="reversible", max_retries=1, fallback=other)
    def outer(x: int) -> None:
        slow(x)

    def program() -> str:
        with pytest.raises(StepTimeoutError):
            outer(1)
        return "timed out"

    if where == "run":
        run, _ = recorded(program)
        late.end()
        assert replayed(run, program)[0].exact
    else:
        program()
        late.end()
    assert effects.all() == ["late"]


def test_outside_a_run_no_effect_begins_in_what_was_given_up(effects: Effects) -> None:
    """As in a run: RunEndedError, and the tool is not executed; in what comes after, it is."""
    pay = payer(effects)
    go, over = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @traced_tool(side_effect="read_only", timeout_ms=20, timeout_in="thread")
    def slow(x: int) -> None:
        go.wait(PATIENCE)
        try:
            pay("late")
        except BaseException as error:
            raised.append(error)
        finally:
            over.set()

    with pytest.raises(StepTimeoutError):
        slow(1)
    go.set()
    assert over.wait(PATIENCE)
    assert [type(error) for error in raised] == [RunEndedError]
    with pytest.raises(ConnectionError):
        pay("in time")
    assert effects.all() == ["paid in time"]


# -- compensations -------------------------------------------------------------------------------------------------------------


def hotels(effects: Effects, undo: Callable[..., Any], **options: Any) -> tuple[BaseAgent, BaseAgent]:
    def first(payload: Any) -> None:
        effects.happen("booked at A")
        raise ConnectionError("the answer was lost")

    options = {"compensate": undo, **options}
    return (
        agent(first, "A", 1, side_effect="reversible", **options),
        agent(lambda payload: effects.happen("booked at B"), "B", 2, side_effect="reversible"),
    )


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("tries", [1, 2])
def test_an_agent_that_failed_is_undone_before_the_next_one_is_asked(
    effects: Effects, where: str, waiting: bool, tries: int
) -> None:
    """And before it is asked again; once each, and by the recording alone."""

    def undo(payload: Any, output: Any) -> None:
        effects.happen(f"undo A ({output})")

    contract = {"max_retries": tries - 1} if tries > 1 else None
    first, second = hotels(effects, undo, contract=contract)

    def program() -> IntentResponse:
        return ask(first, second, waiting=waiting)

    if where == "run":
        run, response, again = both(program)
        assert again == response
        calls = of_type(run, "tool.call")
        undone = [(call.get("meta") or {}).get("info", {}).get("compensates") for call in calls]
        assert [seq for seq in undone if seq] == [call["seq"] for call in calls if call["name"] == "A"]
    else:
        response = program()
    assert response.agent == "B"
    assert effects.all() == ["booked at A", "undo A (None)"] * tries + ["booked at B"]


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize("tries", [1, 2])
def test_where_undoing_an_agent_fails_nothing_follows(effects: Effects, where: str, tries: int) -> None:
    """Neither another attempt nor another agent; the failure of the agent is what is told, the other in its notes."""

    def undo(payload: Any, output: Any) -> None:
        effects.happen("undo A")
        raise RuntimeError("the hotel does not answer")

    first, second = hotels(effects, undo, contract={"max_retries": tries - 1} if tries > 1 else None)
    if where == "run":
        _, response, again = both(lambda: ask(first, second))
        assert again == response
    else:
        response = ask(first, second)
    assert effects.all() == ["booked at A", "undo A"]
    assert [one.agent for one in response.results] == ["A"]
    (only,) = response.results
    assert isinstance(only.exception, ConnectionError)
    assert any("the hotel does not answer" in note for note in only.exception.__notes__)


def test_an_agent_is_not_undone_where_nobody_follows(effects: Effects) -> None:
    """As with a tool: what failed last stays, until the run is aborted; then it is undone once."""

    def undo(payload: Any, output: Any) -> None:
        effects.happen(f"undo {output}")

    first, second = hotels(effects, undo)
    looks = agent(lambda payload: "seen", "B", 2, side_effect="read_only")

    def program(*agents: BaseAgent, strategy: str = "fallback") -> IntentResponse:
        response = ask(*agents, strategy=strategy)
        run = current_run()
        assert run is not None
        run.abort("no longer wanted")
        return response

    ways = (((first,), "fallback"), ((first, second), "direct"), ((first, looks), "fallback"))
    for times, (agents, strategy) in enumerate(ways, 1):
        with record("trip") as run:
            response = program(*agents, strategy=strategy)
        assert effects.all() == ["booked at A", "undo None"] * times
        report, again = replayed(run, lambda agents=agents, strategy=strategy: program(*agents, strategy=strategy))
        assert (again, report.exact) == (response, True)
        assert effects.all() == ["booked at A", "undo None"] * times


def test_a_crash_between_the_undoing_and_the_next_agent(effects: Effects, tmp_path: Path) -> None:
    """The resumed run goes on with the next agent, and undoes nothing twice."""

    def undo(payload: Any, output: Any) -> None:
        effects.happen("undo A")

    first, second = hotels(effects, undo)
    run, _ = recorded(lambda: ask(first, second))
    before = [entry["type"] for entry in entries(run)].index("fallback.triggered")
    left = cut(run, before, tmp_path / "store")
    made = effects.all()
    with resume(left):
        response = ask(first, second)
    assert response.agent == "B"
    assert effects.all() == [*made, "booked at B"]
    report, again = replayed(left, lambda: ask(first, second))
    assert (again, report.exact) == (response, True)
    assert effects.all() == [*made, "booked at B"]
