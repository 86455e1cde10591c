"""Several agents at once: functions in threads beside coroutines, with the limits and failures of functions."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.effects import Effects
from tests.support.tracing import both, of_type, recorded, replayed
from tracekit import InexactReplayWarning, record, traced_tool
from tracekit.agents import AgentRegistry, BaseAgent, IntentEnvelope, IntentResponse, IntentRouter
from tracekit.errors import RunEndedError, StepTimeoutError

#: How long (s) a thread waits at most for what is certain to come.
PATIENCE = 60.0
REQUEST = IntentEnvelope.from_dict({"intent": "do", "routing": {"strategy": "parallel"}})


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path)


def agent(handler: Callable[..., Any], name: str, **options: Any) -> BaseAgent:
    return BaseAgent(handler, intent="do", name=name, **options)


def router(*agents: BaseAgent) -> IntentRouter:
    """They are asked beside one that answers at once."""
    return IntentRouter(AgentRegistry([*agents, agent(lambda payload: "other", "z", side_effect="read_only")]))


@pytest.fixture(params=["route", "route_async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., IntentResponse]:
    def by_tasks(*agents: BaseAgent) -> IntentResponse:
        return asyncio.run(router(*agents).route_async(REQUEST))

    def by_threads(*agents: BaseAgent) -> IntentResponse:
        return router(*agents).route(REQUEST)

    return by_threads if request.param == "route" else by_tasks


class Late:
    """A function that takes too long, and goes on when it is let go."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self._go, self.over = threading.Event(), threading.Event()

    def __call__(self, payload: Any) -> None:
        try:
            self._go.wait(PATIENCE)
            self._then()
        finally:
            self.over.set()

    def end(self) -> None:
        self._go.set()
        assert self.over.wait(PATIENCE)


@pytest.mark.parametrize("side_effect", ["reversible", "irreversible"])
def test_a_function_that_takes_too_long_is_in_doubt_and_not_called_again(
    effects: Effects, ask: Any, side_effect: str
) -> None:
    """Whatever is declared: its thread continues. One effect, and the log says that it is in doubt."""
    late = Late(lambda: effects.happen("booked"))
    contract = {"timeout_ms": 20, "timeout_in": "thread", **({"max_retries": 2} if side_effect == "reversible" else {})}
    booking = agent(late, "a", side_effect=side_effect, contract=contract)
    run, response = recorded(lambda: ask(booking))
    late.end()
    report, again = replayed(run, lambda: ask(booking))
    assert (again, report.exact) == (response, True)
    assert effects.all() == ["booked"]
    error = response.results[0].exception
    assert isinstance(error, StepTimeoutError)
    assert error.in_doubt is True  # type: ignore[attr-defined]
    assert "its thread continues" in str(error)
    (failed,) = of_type(run, "tool.error")
    assert failed["meta"]["info"] == {"timeout": True, "in_doubt": True, "final": True}


@pytest.mark.parametrize("where", ["run", "outside"])
def test_no_effect_begins_in_a_function_whose_time_is_over(effects: Effects, ask: Any, where: str) -> None:
    """RunEndedError, and the tool is not executed."""
    raised: list[type] = []

    @traced_tool(side_effect="irreversible")
    def pay() -> None:
        effects.happen("paid")

    def then() -> None:
        try:
            pay()
        except BaseException as error:
            raised.append(type(error))

    late = Late(then)
    slow = agent(late, "a", side_effect="read_only", contract={"timeout_ms": 20, "timeout_in": "thread"})
    if where == "run":
        with record("late"):
            response = ask(slow)
            late.end()
    else:
        response = ask(slow)
        late.end()
    assert response.status == "partial"
    assert raised == [RunEndedError]
    assert effects.all() == []


def no_rows(payload: Any) -> Any:
    return next(iter(payload.get("rows", [])))


async def no_rows_async(payload: Any) -> Any:
    return next(iter(payload.get("rows", [])))


def leaves(payload: Any) -> Any:
    raise GeneratorExit


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"side_effect": "read_only"},
        {"side_effect": "read_only", "contract": {"timeout_ms": 60_000, "timeout_in": "thread"}},
    ],
)
@pytest.mark.parametrize(
    ("handler", "said"),
    [(no_rows, StopIteration), (no_rows_async, RuntimeError), (leaves, GeneratorExit)],
    ids=["StopIteration", "from a coroutine", "GeneratorExit"],
)
def test_whatever_a_function_raises_is_its_failure(ask: Any, handler: Any, said: Any, options: Any) -> None:
    """Also what no future takes: the others answer, and the response has the exception itself. A replay makes no ``GeneratorExit``: where
    the function does not run again it is another type, which the verdict says."""
    first = agent(handler, "a", **options)
    run, response = recorded(lambda: ask(first))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InexactReplayWarning)
        report, again = replayed(run, lambda: ask(first), on_divergence="warn")
    assert report.exact is not (said is GeneratorExit and bool(options))
    assert [one.status for one in response.results] == ["error", "success"]
    assert type(response.results[0].exception) is said
    assert again == response


class Wait:
    """What is awaitable without being a coroutine."""

    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize("side_effect", [None, "read_only"])
def test_what_has_yet_to_be_awaited_is_no_answer(ask: Any, side_effect: Any) -> None:
    """An awaitable of any kind."""
    first = agent(lambda payload: Wait(), "a", side_effect=side_effect)
    _, response, again = both(lambda: ask(first))
    assert "not an answer yet" in str(response.results[0].exception)
    assert again == response


def test_who_cancels_itself_cancels_nobody_else(effects: Effects) -> None:
    """The others come to their end, what can't be undone whole; then the cancellation goes on, in the replay too."""

    async def quits(payload: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def pays(payload: Any) -> str:
        effects.happen("begun")
        for _ in range(5):
            await asyncio.sleep(0)
        return effects.happen("paid")

    def program() -> str:
        agents = (agent(quits, "a", side_effect="read_only"), agent(pays, "b", side_effect="irreversible"))
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(router(*agents).route_async(REQUEST))
        return "cancelled"

    run, _, _ = both(program)
    assert effects.all() == ["begun", "paid"]
    ends = {entry["name"]: entry["output"]["status"] for entry in of_type(run, "agent.attempt.end")}
    assert ends == {"a": "interrupted", "b": "success", "z": "success"}


def test_a_thread_that_goes_on_after_a_cancellation_is_told(effects: Effects) -> None:
    """The router does not wait for it; the log says that the agent's thread continues, and records its outcome later."""
    begun = threading.Event()
    late = Late(lambda: effects.happen("paid"))

    def pays(payload: Any) -> None:
        begun.set()
        late(payload)

    first = agent(pays, "a", side_effect="irreversible")

    async def program() -> str:
        asking = asyncio.ensure_future(router(first).route_async(REQUEST))
        await asyncio.to_thread(begun.wait, PATIENCE)
        asking.cancel()
        try:
            await asking
        except asyncio.CancelledError:
            await asyncio.to_thread(late.end)
            return "cancelled"
        return "answered"

    with record("cancelled") as run:
        assert asyncio.run(program()) == "cancelled"
    ended = of_type(run, "agent.attempt.end")[0]
    assert (ended["output"]["status"], ended["meta"]["info"]["goes_on"]) == ("interrupted", True)
    (paid,) = [call["seq"] for call in of_type(run, "tool.call") if call["name"] == "a"]
    assert paid in [ended["step"] for ended in of_type(run, "tool.return")]
    assert effects.all() == ["paid"]


def test_a_thread_that_goes_on_after_ctrl_c_is_told(effects: Effects) -> None:
    """KeyboardInterrupt reaches the program; what the log says of the agents is true."""
    begun, caught = threading.Event(), threading.Event()
    late = Late(lambda: effects.happen("paid"))
    main = threading.main_thread().ident or 0

    def pays(payload: Any) -> None:
        begun.set()
        late(payload)

    def interrupt() -> None:
        # Python may lose a signal: one that comes just before a lock is waited for ends that wait no more, and what a handler raises
        # inside the callback of a weak reference goes no further. Whoever sits there presses the keys again.
        begun.wait(PATIENCE)
        while not caught.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            caught.wait(1)

    def once(number: int, frame: Any) -> None:
        if not isinstance(sys.exception(), KeyboardInterrupt):  # it is on its way out
            raise KeyboardInterrupt

    presses = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, once)
    try:
        presses.start()
        with record("interrupted") as run:
            try:
                router(agent(pays, "a", side_effect="irreversible")).route(REQUEST)
            except KeyboardInterrupt:
                caught.set()
                late.end()
        presses.join()
    finally:
        signal.signal(signal.SIGINT, before)
    ended = of_type(run, "agent.attempt.end")[0]
    assert (ended["output"]["status"], ended["meta"]["info"]["goes_on"]) == ("interrupted", True)
    assert effects.all() == ["paid"]


def test_a_replay_with_fewer_threads_is_exact() -> None:
    """Where the program's loop has fewer of them than agents are asked, nobody waits for a thread."""
    together = threading.Barrier(6)

    def meets(payload: Any) -> int:
        return together.wait(PATIENCE)

    agents = [agent(meets, f"a{n}", side_effect="read_only") for n in range(6)]

    async def program(threads: int) -> IntentResponse:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
        return await router(*agents).route_async(REQUEST)

    run, response = recorded(lambda: asyncio.run(program(8)))
    report, again = replayed(run, lambda: asyncio.run(program(1)))
    assert (again, report.exact) == (response, True)
