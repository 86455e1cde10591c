"""Routing: who is asked, what stops a request, what is on the log of it, and a replay that asks nobody."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cut import cut
from tests.support.tracing import both, entries, of_type, recorded, replayed
from tracekit import (
    Budget,
    BudgetExceededError,
    DivergenceError,
    InexactReplayWarning,
    record,
    replay,
    resume,
    traced_tool,
)
from tracekit.agents import AgentRegistry, BaseAgent, IntentEnvelope, IntentResponse, IntentRouter
from tracekit.errors import EnvelopeError, RoutingFailedError, RunStateError
from tracekit.failures import FailureType

Route = Callable[..., IntentResponse]


class Town:
    """A registry whose agents count how often they are really called."""

    def __init__(self) -> None:
        self.registry = AgentRegistry()
        self.calls: Counter[str] = Counter()

    def agent(
        self, name: str, does: Any = None, *, asynchronous: bool = False, intent: str = "ask", **options: Any
    ) -> BaseAgent:
        """An agent that returns ``does``, raises it, or calls it."""

        def handler(envelope: IntentEnvelope) -> Any:
            self.calls[name] += 1
            if isinstance(does, BaseException):
                raise does
            return does(envelope) if callable(does) else does if does is not None else f"{name} says {envelope.payload}"

        async def handler_async(envelope: IntentEnvelope) -> Any:
            await asyncio.sleep(0)
            found = handler(envelope)
            return await found if inspect.iscoroutine(found) else found

        made = BaseAgent(handler_async if asynchronous else handler, intent=intent, name=name, **options)
        return self.registry.register(made)

    def route(self, strategy: str = "direct", payload: Any = None, /, **options: Any) -> IntentResponse:
        return IntentRouter(self.registry).route(envelope(strategy, payload, options), **options)

    def route_async(self, strategy: str = "direct", payload: Any = None, /, **options: Any) -> IntentResponse:
        router = IntentRouter(self.registry)
        return asyncio.run(router.route_async(envelope(strategy, payload, options), **options))


def envelope(strategy: str, payload: Any, options: dict[str, Any]) -> IntentEnvelope:
    routing = {"strategy": strategy, **options.pop("routing", {})}
    return IntentEnvelope.from_dict(
        {"intent": options.pop("intent", "ask"), "payload": payload or {}, "routing": routing}
    )


def types(run: Any) -> list[str]:
    """The types of a run's own entries."""
    return [
        entry["type"] for entry in entries(run)[1:-1] if entry["type"] not in ("identity", "lane", "contract.validated")
    ]


@pytest.fixture
def town() -> Town:
    return Town()


@pytest.fixture(params=["route", "route_async"])
def route(request: pytest.FixtureRequest, town: Town) -> Route:
    """Both ways to route; the agents of ``town`` are the same."""
    found: Route = getattr(town, request.param)
    return found


def chain(response: IntentResponse) -> list[str]:
    assert response.error is not None
    return [failure.type.value for failure in response.error.chain()]


# -- strategies ----------------------------------------------------------------------------------------------------------------


def test_a_direct_intent_goes_to_the_first_agent(town: Town, route: Route) -> None:
    """Five events, one call; the replay gives the same answer and calls nobody."""
    town.agent("second", priority=2, side_effect="read_only")
    town.agent("first", priority=1, side_effect="read_only")
    run, response, again = both(lambda: route("direct", {"n": 1}))
    assert (response.status, response.payload, response.agent) == ("success", "first says {'n': 1}", "first")
    assert again == response
    assert town.calls == {"first": 1}
    assert types(run) == [
        "intent.received", "agent.attempt.start", "tool.call", "tool.return", "agent.attempt.end", "router.decision",
        "final.response",
    ]  # fmt: skip


def test_coroutine_agents_are_awaited(town: Town, route: Route) -> None:
    """In a loop of their own where there is none; their replay awaits nothing of them."""
    town.agent("first", ValueError("no"), asynchronous=True, side_effect="read_only")
    town.agent("second", {"a": 1}, asynchronous=True, side_effect="read_only")
    _, response, again = both(lambda: route("fallback"))
    assert (response.payload, response.agent) == ({"a": 1}, "second")
    assert again == response
    assert town.calls == {"first": 1, "second": 1}


def test_a_target_is_asked_before_those_that_come_earlier(town: Town, route: Route) -> None:
    """``targetAgent`` is the only one to ask, or the first where others may stand in."""
    for name, does in (("a", ValueError("a")), ("b", ValueError("b")), ("c", None)):
        town.agent(name, does)
    assert route("direct", routing={"targetAgent": "c"}).agent == "c"
    assert route("direct", routing={"targetAgent": "b"}).status == "error"
    response = route("fallback", routing={"targetAgent": "b"})
    assert [one.agent for one in response.results] == ["b", "a", "c"]


def test_named_fallbacks_are_asked_in_the_order_in_which_they_are_named(town: Town, route: Route) -> None:
    """And nobody else is."""
    for name in "abcd":
        town.agent(name, ValueError(name))
    response = route("fallback", routing={"targetAgent": "b", "fallbackAgents": ["d", "a"]})
    assert [one.agent for one in response.results] == ["b", "d", "a"]
    assert chain(route("fallback", routing={"targetAgent": "c", "fallbackAgents": ["c"]})) == [
        "fallback_exhausted",
        "agent_error",
    ]
    response = route("fallback", routing={"fallbackAgents": ["d", "a"]})
    assert [one.agent for one in response.results] == ["a", "d"]


def test_a_fallback_is_on_the_log_with_its_reason(town: Town, route: Route) -> None:
    """Whose place who took, of which classes, and why."""
    town.agent("first", ConnectionError("refused"), side_effect="read_only", priority=1)
    town.agent("second", side_effect="reversible")
    run, response, again = both(lambda: route("fallback"))
    assert (response.agent, response.status, again) == ("second", "success", response)
    (fallback,) = of_type(run, "fallback.triggered")
    assert fallback["input"] == {
        "from": "first",
        "to": "second",
        "from_side_effect": "read_only",
        "to_side_effect": "reversible",
        "reason": "network",
    }
    assert town.calls == {"first": 1, "second": 1}


def test_an_escalation_is_told(town: Town, route: Route) -> None:
    """From what can be undone to what can't: allowed, and recorded as one."""
    town.agent("undoable", ValueError("no"), side_effect="reversible", priority=1)
    town.agent("final", side_effect="irreversible")
    run, response, again = both(lambda: route("fallback"))
    assert (response.agent, again) == ("final", response)
    (fallback,) = of_type(run, "fallback.triggered")
    assert fallback["input"]["escalation"] is True


@pytest.mark.parametrize("strategy", ["broadcast", "parallel"])
def test_everyone_is_asked_and_told_in_the_order_of_the_registry(town: Town, route: Route, strategy: str) -> None:
    """Whoever finishes first: results, and the entries of who began and who ended, have the registry's order."""
    for name in "cab":
        town.agent(name, side_effect="read_only")
    run, response, again = both(lambda: route(strategy, {"n": 1}))
    assert [one["agent"] for one in response.payload] == ["a", "b", "c"]
    assert response.payload[1] == {"agent": "b", "status": "success", "payload": "b says {'n': 1}"}
    assert again == response
    assert town.calls == {"a": 1, "b": 1, "c": 1}
    for kind in ("agent.attempt.start", "agent.attempt.end"):
        assert [entry["name"] for entry in of_type(run, kind)] == ["a", "b", "c"]


def test_agents_at_once_wait_for_one_another(town: Town) -> None:
    """``parallel`` really runs them at once, in threads, and the slowest first one changes no order."""
    met = threading.Barrier(3, timeout=30)
    for name in "cab":
        town.agent(name, lambda envelope: met.wait() >= 0, side_effect="read_only")
    _, response, again = both(lambda: town.route("parallel"))
    assert (response.ok, [one["agent"] for one in response.payload]) == (True, ["a", "b", "c"])
    assert again == response
    _, response, again = both(lambda: town.route_async("parallel"))
    assert (response.ok, again) == (True, response)
    assert town.calls == {"a": 2, "b": 2, "c": 2}


def test_coroutines_at_once_have_the_order_of_the_registry_whoever_is_first(town: Town) -> None:
    """The last in order finishes first; the answer does not show it."""
    turns: list[str] = []

    def waits(rounds: int) -> Any:
        async def answer(envelope: IntentEnvelope) -> str:
            for _ in range(rounds):
                await asyncio.sleep(0)
            turns.append(str(rounds))
            return str(rounds)

        return answer

    for name, rounds in (("a", 9), ("b", 5), ("c", 1)):
        town.agent(name, waits(rounds), asynchronous=True, side_effect="read_only")
    _, response, again = both(lambda: town.route_async("parallel"))
    assert turns == ["1", "5", "9"]
    assert [one["payload"] for one in response.payload] == ["9", "5", "1"]
    assert again == response


@pytest.mark.parametrize("strategy", ["broadcast", "parallel"])
def test_some_of_several_may_fail(town: Town, route: Route, strategy: str) -> None:
    """The answers that there are are given, and the first failure is told."""
    town.agent("a", side_effect="read_only")
    town.agent("b", ValueError("b is ill"), side_effect="read_only")
    _, response, again = both(lambda: route(strategy))
    assert response.status == "partial"
    assert [one["status"] for one in response.payload] == ["success", "error"]
    assert response.error is not None
    assert (response.error.type, response.error.agent, response.error.reason) == ("agent_error", "b", "b is ill")
    assert again == response
    assert isinstance(response.results[1].exception, ValueError)


# -- failures ------------------------------------------------------------------------------------------------------------------


def test_nobody_handles_the_intent(town: Town, route: Route) -> None:
    """``no_agent_found``, on the log too; nothing is raised."""
    town.agent("other", intent="something else")
    run, response, again = both(lambda: route())
    assert chain(response) == ["no_agent_found"]
    assert again == response
    assert types(run) == ["intent.received", "router.decision", "final.response"]


@pytest.mark.parametrize(
    ("routing", "said"),
    [({"targetAgent": "nobody"}, "is not registered"), ({"targetAgent": "other"}, "does not handle")],
    ids=["unknown", "unable"],
)
def test_an_agent_that_the_envelope_names_must_be_able(town: Town, route: Route, routing: Any, said: str) -> None:
    """A wrong name is no reason to ask somebody else."""
    town.agent("a")
    town.agent("other", intent="something else")
    response = route("fallback", routing=routing)
    assert chain(response) == ["no_agent_found"]
    assert said in response.error.reason  # type: ignore[union-attr]
    assert not town.calls


def test_what_an_agent_raises_is_in_the_response(town: Town, route: Route) -> None:
    """As a failure with its type, agent, run and cause, as the exception itself, and on the log."""

    def fails(envelope: IntentEnvelope) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise TimeoutError("too slow") from error

    town.agent("a", fails, side_effect="read_only")
    run, response, again = both(lambda: route())
    assert response.error is not None
    assert (response.error.type, response.error.agent, response.error.run_id) == ("timeout", "a", run.id)
    assert response.error.caused_by is not None
    assert again == response
    (ended,) = of_type(run, "agent.attempt.end")
    assert ended["output"] == {"status": "error"}
    assert ended["meta"]["info"]["failure"]["exception"] == "builtins:TimeoutError"
    for one in (response, again):
        with pytest.raises(RoutingFailedError, match="too slow") as caught:
            one.unwrap()
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert caught.value.failure == response.error  # type: ignore[attr-defined]


def test_when_all_fail_the_first_failure_is_the_cause(town: Town, route: Route) -> None:
    """``fallback_exhausted`` tells every failure, and what went wrong first stays behind it."""
    for name, error in (("a", ConnectionError("first")), ("b", ValueError("second")), ("c", KeyError("third"))):
        town.agent(name, error, side_effect="read_only")
    run, response, again = both(lambda: route("fallback"))
    assert chain(response) == ["fallback_exhausted", "network"]
    assert response.error is not None
    assert [one["agent"] for one in response.error.details["failures"]] == ["a", "b", "c"]
    assert response.error.caused_by is not None
    assert response.error.caused_by.reason == "first"
    assert again == response
    assert types(run).count("fallback.triggered") == 2
    (exhausted,) = of_type(run, "fallback.exhausted")
    assert exhausted["input"] == {"from": "a", "tried": ["b", "c"], "reason": "network"}
    assert isinstance(response.results[0].exception, ConnectionError)


def test_an_irreversible_agent_that_failed_has_nobody_stand_in(town: Town, route: Route) -> None:
    """Whether it took effect is not known: the chain ends there, with the original failure behind it."""
    town.agent("a", ValueError("maybe done"), side_effect="irreversible", priority=1)
    town.agent("b", side_effect="read_only")
    _, response, again = both(lambda: route("fallback"))
    assert chain(response) == ["irreversible_step_failed", "agent_error"]
    assert again == response
    assert town.calls == {"a": 1}


def test_a_class_that_may_not_stand_in_is_passed_over(town: Town, route: Route) -> None:
    """read_only never leads to irreversible; the next that may is asked, and without one the reason is told."""
    town.agent("a", ValueError("no"), side_effect="read_only", priority=1)
    town.agent("b", side_effect="irreversible", priority=2)
    _, response, again = both(lambda: route("fallback"))
    assert chain(response) == ["fallback_exhausted", "agent_error"]
    assert [one["type"] for one in response.error.details["failures"]] == [  # type: ignore[union-attr]
        "agent_error",
        "side_effect_violation",
    ]
    assert again == response
    town.agent("c", side_effect="read_only", priority=3)
    assert route("fallback").agent == "c"
    assert "b" not in town.calls


@pytest.mark.parametrize("declared", [None, "read_only"])
def test_nobody_stands_in_after_an_irreversible_step(town: Town, route: Route, declared: str | None) -> None:
    """An agent that paid and then failed is not replaced by one that may pay again, whatever class it said it has."""
    paid: list[int] = []

    @traced_tool(side_effect="irreversible")
    def pay(cents: int) -> int:
        paid.append(cents)
        return cents

    def pays(envelope: IntentEnvelope) -> None:
        pay(5)
        raise ValueError("after the payment")

    town.agent("a", pays, side_effect=declared, priority=1)
    town.agent("b", side_effect=declared)
    _, response, again = both(lambda: route("fallback"))
    assert chain(response) == ["irreversible_step_failed", "agent_error"]
    assert "'pay'" in response.error.reason.replace("test_nobody_stands_in_after_an_irreversible_step.", "")  # type: ignore[union-attr]
    assert again == response
    assert paid == [5]
    assert "b" not in town.calls


def test_somebody_stands_in_after_steps_that_can_be_repeated(town: Town, route: Route) -> None:
    """Without a class of its own an agent is judged by what it did."""

    @traced_tool(side_effect="reversible")
    def reserve(sku: str) -> str:
        return sku

    def reserves(envelope: IntentEnvelope) -> None:
        reserve("x")
        raise ValueError("after the reservation")

    town.agent("a", reserves, priority=1)
    town.agent("b")
    _, response, again = both(lambda: route("fallback"))
    assert (response.agent, again) == ("b", response)


def test_what_one_agent_does_to_the_payload_is_not_the_next_ones(town: Town, route: Route) -> None:
    """Each that may be asked has a payload of its own, so that a replay, in which the first is not called, asks the same."""

    def spoils(envelope: IntentEnvelope) -> None:
        envelope.payload["items"].clear()  # type: ignore[index]
        raise ValueError("spoilt")

    town.agent("a", spoils, side_effect="read_only", priority=1)
    town.agent("b", side_effect="read_only")
    run, response = recorded(lambda: route("fallback", {"items": [1, 2]}))
    assert response.payload == "b says {'items': [1, 2]}"
    assert replayed(run, lambda: route("fallback", {"items": [1, 2]}))[1] == response


class Unknown(Exception):
    """A type that a replay may not have."""


def test_a_failure_of_a_type_that_is_gone_is_the_same_failure(
    town: Town, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception comes back as another type, which makes the replay inexact; the response says what was recorded."""
    town.agent("a", Unknown("strange"), side_effect="read_only")
    run, response = recorded(lambda: route("fallback"))
    monkeypatch.delitem(globals(), "Unknown")
    with pytest.warns(InexactReplayWarning, match="exception"):
        report, again = replayed(run, lambda: route("fallback"), on_divergence="warn")
    assert type(again.results[0].exception).__name__ == "RecordedError"
    assert (again, report.exact) == (response, False)


def test_a_handler_may_return_a_coroutine(town: Town, route: Route) -> None:
    """It is awaited, though the handler is a plain function."""

    async def later(envelope: IntentEnvelope) -> str:
        await asyncio.sleep(0)
        return "later"

    town.agent("a", lambda envelope: later(envelope), side_effect="read_only")
    _, response, again = both(lambda: route())
    assert (response.payload, again) == ("later", response)


def test_an_agent_without_a_class_runs_in_a_replay_and_its_steps_are_answered(town: Town, route: Route) -> None:
    """So that one can stop in it with a debugger; what it called is not called again."""
    looked: list[str] = []

    @traced_tool(side_effect="read_only")
    def look(what: str) -> str:
        looked.append(what)
        return what.upper()

    town.agent("a", lambda envelope: look("x"))
    run, response, again = both(lambda: route())
    assert (response.payload, again.payload) == ("X", "X")
    assert (town.calls, looked) == ({"a": 2}, ["x"])
    assert types(run)[2:6] == ["span.start", "tool.call", "tool.return", "span.end"]
    assert of_type(run, "tool.call")[0]["agent_id"] == "a"


# -- contracts and budgets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        ({"side_effect": "irreversible"}, {"default_contract": {"max_retries": 2}}),
        ({}, {"default_contract": {"timeout_ms": 50, "timeout_in": "thread"}}),
        ({"side_effect": "read_only"}, {"default_contract": {"idempotent_required": True}}),
        ({"side_effect": "read_only", "cost_units": 9, "contract": {"timeout_ms": 60_000, "timeout_in": "thread"}}, {}),
        (
            {"contract": {"exactly_once": True, "max_cost_units": 3}, "cost_units": lambda payload: 5},
            {"default_side_effect": "irreversible"},
        ),
    ],
    ids=["retries of what can't be repeated", "no class", "no key", "fine", "too dear"],
)
def test_a_violated_contract_means_no_call(town: Town, route: Route, agent: Any, options: Any, request: Any) -> None:
    """The agent is called zero times, nobody else is asked, and the log says what was violated."""
    asynchronous = request.node.callspec.params["route"] == "route_async"
    town.agent("a", asynchronous=asynchronous, priority=1, **agent)
    town.agent("b", side_effect="read_only")
    if agent.get("cost_units") == 9:
        assert route("fallback", **options).agent == "a"
        return
    run, response, again = both(lambda: route("fallback", **options))
    assert chain(response) == ["contract_violation"]
    assert again == response
    assert not town.calls
    (violated,) = of_type(run, "contract.violated")
    assert (violated["name"], violated["input"]) == ("a", {"payload": {}})
    assert response.error.agent == "a"  # type: ignore[union-attr]


def test_a_limit_of_the_route_moves_no_function_to_another_thread_unasked(town: Town, route: Route) -> None:
    """A function that nothing can interrupt breaks the contract of the route: it is not called, and the message says what to do."""
    town.agent("a", asynchronous=False, side_effect="read_only")
    run, response, again = both(lambda: route("direct", default_contract={"timeout_ms": 60_000}))
    assert (chain(response), again) == (["contract_violation"], response)
    assert 'timeout_in="thread"' in response.error.reason  # type: ignore[union-attr]
    assert not town.calls
    assert of_type(run, "contract.violated")


def test_defaults_hold_for_agents_that_say_nothing_themselves(town: Town, route: Route) -> None:
    """An agent's own class and contract come first."""
    town.agent("own", side_effect="reversible", contract={"max_retries": 1}, intent="own")
    town.agent("bare", intent="bare")
    options: dict[str, Any] = {"default_side_effect": "read_only", "default_contract": {"no_retry": True}}
    for intent, side_effect, contract in (
        ("own", "reversible", {"max_retries": 1}),
        ("bare", "read_only", {"no_retry": True}),
    ):
        run, response, again = both(lambda intent=intent: route("direct", intent=intent, **options))  # type: ignore[misc]
        assert (response.ok, again) == (True, response)
        (call,) = of_type(run, "tool.call")
        assert (call["meta"]["side_effect"], call["meta"]["contract"]) == (side_effect, contract)


def test_an_agent_is_tried_again_as_its_contract_says(town: Town, route: Route) -> None:
    """Each attempt is on the log; the replay waits for none and calls nobody."""

    def fails_once(envelope: IntentEnvelope) -> str:
        if town.calls["a"] == 1:
            raise ConnectionError("not now")
        return "now"

    town.agent("a", fails_once, side_effect="read_only", contract={"max_retries": 1})
    run, response, again = both(lambda: route())
    assert (response.payload, again) == ("now", response)
    assert town.calls == {"a": 2}
    assert len(of_type(run, "tool.call")) == 2
    assert len(of_type(run, "agent.attempt.start")) == 1


def test_an_agent_that_takes_too_long_is_given_up(town: Town) -> None:
    """Its coroutine is interrupted, and the next one asked."""
    stuck = asyncio.Event

    async def waits(envelope: IntentEnvelope) -> None:
        await stuck().wait()

    town.agent("a", waits, asynchronous=True, side_effect="read_only", contract={"timeout_ms": 20}, priority=1)
    town.agent("b", asynchronous=True, side_effect="read_only")
    _, response, again = both(lambda: town.route_async("fallback"))
    assert (response.agent, again) == ("b", response)
    assert response.results[0].error is not None
    assert response.results[0].error.type is FailureType.TIMEOUT


def test_an_agent_asked_twice_with_one_key_is_called_once(town: Town, route: Route) -> None:
    """``exactly_once`` holds over the intents of a run."""
    town.agent(
        "pay",
        side_effect="irreversible",
        contract={"exactly_once": True},
        idempotency_key=lambda payload: payload["id"],
    )
    _, responses, again = both(lambda: [route("direct", {"id": 1, "try": n}) for n in range(3)])
    assert {one.payload for one in responses} == {"pay says {'id': 1, 'try': 0}"}
    assert again == responses
    assert town.calls == {"pay": 1}


def test_over_its_budget_a_request_makes_no_further_call(town: Town, route: Route) -> None:
    """The attempts of a request share its budget; the one that would go over is not made, and nobody else is asked."""
    town.agent("a", ValueError("no"), side_effect="read_only", cost_units=2, priority=1)
    town.agent("b", side_effect="read_only", cost_units=2, priority=2)
    town.agent("c", side_effect="read_only", priority=3)
    with pytest.warns(RuntimeWarning, match="a budget was exceeded"):
        run, response = recorded(lambda: route("fallback", budget_limit=3))
    again = replayed(run, lambda: route("fallback", budget_limit=3))[1]
    assert chain(response) == ["budget_exceeded", "agent_error"]
    assert again == response
    assert town.calls == {"a": 1}
    assert len(of_type(run, "budget.exceeded")) == 1


@pytest.mark.parametrize("side_effect", [None, "read_only", "irreversible"])
@pytest.mark.parametrize("strategy", ["broadcast", "parallel"])
def test_who_can_not_afford_to_ask_everybody_asks_nobody(
    town: Town, route: Route, strategy: str, side_effect: Any
) -> None:
    """What the agents declare is known before the first is called: over the request's budget none is, and a replay says the same."""
    for number, name in enumerate("abc"):
        town.agent(name, side_effect=side_effect, cost_units=lambda payload: 2, priority=number)
    with pytest.warns(RuntimeWarning, match="a budget was exceeded"):
        run, response = recorded(lambda: route(strategy, budget_limit=5))
    assert not town.calls
    assert chain(response)[0] == "budget_exceeded"
    assert replayed(run, lambda: route(strategy, budget_limit=5))[1] == response
    assert not of_type(run, "tool.call", "span.start")
    assert {one["error"]["attrs"]["resource"] for one in of_type(run, "budget.exceeded")} == {"cost_units"}
    run, response = recorded(lambda: route(strategy, budget_limit=6))
    assert (response.status, town.calls) == ("success", {"a": 1, "b": 1, "c": 1})
    assert replayed(run, lambda: route(strategy, budget_limit=6))[1] == response


@pytest.mark.parametrize("limit", [{"cost_units": 5}, {"tool_calls": 2}])
@pytest.mark.parametrize("strategy", ["broadcast", "parallel"])
def test_the_run_can_not_afford_to_ask_everybody(
    town: Town, route: Route, strategy: str, limit: dict[str, Any]
) -> None:
    """The budget of the run holds for all of them together, too, and what was spent before counts."""
    for name in "abc":
        town.agent(name, side_effect="irreversible", cost_units=2)

    with (
        pytest.raises(BudgetExceededError),
        pytest.warns(RuntimeWarning, match="a budget was exceeded"),
        record(budget=Budget(**limit)) as run,
    ):
        route(strategy)
    assert not town.calls
    with pytest.raises(BudgetExceededError), replay(run):
        route(strategy)


def test_a_budget_of_the_run_is_not_the_requests_to_catch(town: Town, route: Route) -> None:
    """The response is on the log, and the exception goes on to whoever set the budget, in a replay too."""
    town.agent("a", side_effect="read_only", cost_units=5)

    def program() -> str:
        try:
            route(budget_limit=100)
        except BudgetExceededError as error:
            return error.budget
        return "nothing"

    with pytest.warns(RuntimeWarning, match="a budget was exceeded"):
        run, whose = recorded(program, budget=Budget(cost_units=3))
    assert (whose, replayed(run, program)[1]) == ("run", "run")
    assert not town.calls
    assert "final.response" in types(run)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "much"])
def test_a_budget_that_makes_no_sense_is_refused(town: Town, route: Route, limit: Any) -> None:
    """Before anybody is asked."""
    town.agent("a")
    with pytest.raises((ValueError, TypeError)):
        route(budget_limit=limit)
    assert not town.calls


# -- the log -------------------------------------------------------------------------------------------------------------------


def test_outside_a_run_routing_works_and_leaves_nothing(town: Town, route: Route) -> None:
    """Contracts hold there as well."""
    town.agent("a", ValueError("no"), side_effect="read_only", priority=1)
    town.agent("b", side_effect="read_only")
    assert route("fallback").agent == "b"
    assert chain(route("fallback", default_contract={"idempotent_required": True})) == ["contract_violation"]


def test_another_answer_of_the_registry_is_a_divergence(town: Town, route: Route) -> None:
    """An agent that is new, or gone, is told at the first entry of the request."""
    town.agent("b", side_effect="read_only")
    run, _ = recorded(lambda: route())
    town.agent("a", side_effect="read_only")
    with pytest.raises(DivergenceError) as caught, replay(run.id):
        route()
    assert "intent.received" in str(caught.value)
    assert town.calls == {"b": 1}


@pytest.mark.parametrize("change", [{"n": 2}, {}, {"n": "1"}], ids=str)
def test_another_request_is_a_divergence(town: Town, route: Route, change: Any) -> None:
    """Whatever differs in the envelope is told, and nobody is asked."""
    town.agent("a", side_effect="read_only")
    run, _ = recorded(lambda: route("direct", {"n": 1}))
    with pytest.raises(DivergenceError), replay(run.id):
        route("direct", change)
    assert town.calls == {"a": 1}


def test_agents_may_ask_agents(town: Town, route: Route) -> None:
    """A request inside a request is inside its step; a replay of the outer one asks neither."""
    town.agent("inner", side_effect="read_only", intent="inner")
    town.agent("outer", lambda envelope: town.route(intent="inner").payload, side_effect="read_only")
    run, response, again = both(lambda: route())
    assert (response.payload, again) == ("inner says {}", response)
    assert town.calls == {"inner": 1, "outer": 1}
    outer, inner = of_type(run, "intent.received")
    assert inner["parent"] == of_type(run, "tool.call")[0]["seq"]
    assert outer["parent"] == 1


def test_a_secret_in_an_envelope_is_neither_in_the_log_nor_in_its_hash(town: Town, route: Route) -> None:
    """The hash is of what the log keeps: a hash of a short secret gives it away."""
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1A" * 2
    town.agent("a", lambda envelope: len(envelope.payload["key"]), side_effect="read_only")
    run, response, again = both(lambda: route("direct", {"key": secret}))
    assert (response.payload, again) == (len(secret), response)
    (received,) = of_type(run, "intent.received")
    assert secret not in str(entries(run))
    kept = IntentEnvelope.from_dict(received["input"])
    assert received["meta"]["info"]["envelope_hash"] == kept.envelope_hash
    assert kept.envelope_hash != envelope("direct", {"key": secret}, {}).envelope_hash


def test_a_payload_that_is_no_json_is_refused_before_anything_happens(town: Town, route: Route) -> None:
    """In a run and outside: nobody is asked, nothing is on the log."""
    town.agent("a")
    with pytest.raises(EnvelopeError, match="JSON values only"):
        route("direct", {"x": object()})
    with record("test") as run, pytest.raises(EnvelopeError):
        route("direct", {"x": object()})
    assert types(run) == []
    assert not town.calls


def test_large_answers_and_odd_values_come_back(town: Town, route: Route) -> None:
    """What an agent returns is what a replay returns, JSON or not."""
    value = {"text": "x" * 5000, "pair": (1, 2), "$ref": 3, "bytes": b"\x00", "many": list(range(300))}
    town.agent("a", lambda envelope: value, side_effect="read_only")
    _, response, again = both(lambda: route())
    assert response.payload == value
    assert again.payload == value
    assert type(again.payload["pair"]) is tuple


def test_an_interruption_passes_through_and_is_on_the_log(town: Town) -> None:
    """What ends a task or the program is no failure of an agent; the execution stays without a response."""
    town.agent("a", asyncio.CancelledError(), asynchronous=True, side_effect="read_only")

    async def program() -> str:
        try:
            await IntentRouter(town.registry).route_async({"intent": "ask"})
        except asyncio.CancelledError:
            return "cancelled"
        return "answered"

    run, value, again = both(lambda: asyncio.run(program()))
    assert (value, again) == ("cancelled", "cancelled")
    (ended,) = of_type(run, "agent.attempt.end")
    assert ended["output"]["status"] == "interrupted"
    assert "final.response" not in types(run)


def test_who_stops_waiting_for_several_at_once_leaves_no_task_behind(town: Town) -> None:
    """They are cancelled and awaited."""
    left: list[str] = []

    async def program() -> int:
        begun = asyncio.Event()

        async def waits(envelope: IntentEnvelope) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.append("cancelled")

        town.agent("a", waits, asynchronous=True)
        town.agent("b", waits, asynchronous=True)
        routing = {"strategy": "parallel"}
        asking = asyncio.ensure_future(IntentRouter(town.registry).route_async({"intent": "ask", "routing": routing}))
        await begun.wait()
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return len(asyncio.all_tasks())

    assert asyncio.run(program()) == 1
    assert left == ["cancelled", "cancelled"]


class Stop(BaseException):
    """No failure of an agent."""


def test_what_ends_one_of_several_at_once_ends_the_others(town: Town) -> None:
    """They are cancelled and awaited, and the log says of each what became of it."""
    left: list[str] = []

    async def waits(envelope: IntentEnvelope) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append("cancelled")

    town.agent("a", Stop(), asynchronous=True, side_effect="read_only")
    town.agent("b", waits, asynchronous=True, side_effect="read_only")
    town.agent("c", asynchronous=True, side_effect="read_only")

    async def program() -> int:
        routing = {"strategy": "parallel"}
        with pytest.raises(Stop):
            await IntentRouter(town.registry).route_async({"intent": "ask", "routing": routing})
        return len(asyncio.all_tasks())

    run, tasks = recorded(lambda: asyncio.run(program()))
    assert (tasks, left) == (1, ["cancelled"])
    ends = {entry["name"]: entry["output"]["status"] for entry in of_type(run, "agent.attempt.end")}
    assert (ends["a"], ends["b"]) == ("interrupted", "interrupted")
    assert "final.response" not in types(run)


def test_a_coroutine_agent_needs_route_async_in_a_running_loop(town: Town) -> None:
    """Refused with the way out, before anything is on the log."""
    town.agent("a", asynchronous=True)

    async def program() -> None:
        with pytest.raises(RunStateError, match="route_async"):
            IntentRouter(town.registry).route({"intent": "ask"})

    run, _ = recorded(lambda: asyncio.run(program()))
    assert types(run) == []


def test_a_thousand_intents_at_once_four_times() -> None:
    """Each gets its own answer; four recordings have them in the same order, and are replayed exactly, asking nobody."""
    registry, calls = AgentRegistry(), Counter[int]()

    @registry.agent(intent="double", side_effect="read_only")
    async def double(payload: dict[str, int]) -> int:
        calls[payload["n"]] += 1
        for _ in range(payload["n"] % 3):
            await asyncio.sleep(0)
        return payload["n"] * 2

    router = IntentRouter(registry)
    envelopes = [IntentEnvelope.from_dict({"intent": "double", "payload": {"n": n}}) for n in range(1000)]

    async def program() -> list[Any]:
        return [one.payload for one in await asyncio.gather(*map(router.route_async, envelopes))]

    orders = set()
    for n in range(4):
        calls.clear()
        run, answers = recorded(lambda: asyncio.run(program()))
        assert answers == [n * 2 for n in range(1000)]
        assert set(calls.values()) == {1}
        orders.add(tuple((e["type"], e["lane"], str(e.get("output"))) for e in entries(run)[1:-1]))
        if n in (0, 3):
            report, again = replayed(run, lambda: asyncio.run(program()))
            assert (again, report.exact, set(calls.values())) == (answers, True, {1})
    assert len(orders) == 1


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def pieces_later() -> Any:
    yield 1


@pytest.mark.parametrize(
    "unfinished",
    [
        lambda envelope: (n for n in range(3)),
        lambda envelope: pieces_later(),
        lambda envelope: later(n for n in range(3)),
        lambda envelope: later(pieces_later()),
    ],
    ids=["generator", "async generator", "awaited generator", "awaited async generator"],
)
@pytest.mark.parametrize("side_effect", [None, "read_only", "irreversible"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("strategy", ["direct", "parallel"])
def test_what_is_not_finished_is_no_answer(
    town: Town, route: Route, unfinished: Any, side_effect: str | None, asynchronous: bool, strategy: str
) -> None:
    """An agent that returns a generator failed, and says so; the replay has the same failure and makes no call of one with a class."""
    town.agent("a", unfinished, asynchronous=asynchronous, side_effect=side_effect, contract=None)
    if strategy == "parallel":
        town.agent("b", side_effect="read_only", intent="ask", priority=200)
    _, response, again = both(lambda: route(strategy))
    first = response.results[0]
    assert (first.status, first.payload) == ("error", None)
    assert "which is not an answer yet" in str(first.exception)
    assert response.status == ("error" if strategy == "direct" else "partial")
    assert again == response
    assert town.calls["a"] == (2 if side_effect is None else 1)


@pytest.mark.parametrize("strategy", ["direct", "parallel"])
def test_a_plain_function_may_return_a_coroutine(town: Town, route: Route, strategy: str) -> None:
    """It is awaited within the agent's step, alone or beside others."""
    town.agent("a", lambda envelope: later("told"), side_effect="read_only", priority=1)
    if strategy == "parallel":
        town.agent("b", "at once", side_effect="read_only")
    _, response, again = both(lambda: route(strategy))
    assert response.results[0].payload == "told"
    assert (response.ok, again) == (True, response)
    assert town.calls["a"] == 1


# -- what is compared ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side_effect", [None, "read_only"])
@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"identity": {"model": "m1"}}, {"identity": {"model": "m2"}}),
        ({"identity": {"model": "m1"}}, {}),
        ({}, {"identity": {"model": "m1"}}),
        ({"version": "1"}, {"version": "2"}),
        ({"version": "1"}, {}),
        ({}, {"version": "1"}),
    ],
)
def test_another_version_or_identity_is_a_divergence(side_effect: Any, then: Any, now: Any) -> None:
    """Of an agent with a class or without one, whether it was there then or is now; the same one is none."""
    before, after = Town(), Town()
    before.agent("a", side_effect=side_effect, **then)
    after.agent("a", side_effect=side_effect, **now)
    run, _, _ = both(before.route)
    with pytest.raises(DivergenceError, match="a"):
        replayed(run, after.route)


def test_what_went_wrong_first_is_what_unwrap_is_caused_by(town: Town, route: Route) -> None:
    """The others are in its notes, and nothing is added to the exceptions themselves."""
    town.agent("a", PermissionError("the key was revoked"), priority=1)
    town.agent("b", KeyError("second"), priority=2)
    response = route("fallback")
    for _ in range(2):
        with pytest.raises(RoutingFailedError) as caught:
            response.unwrap()
        assert isinstance(caught.value.__cause__, PermissionError)
        assert caught.value.__notes__ == ["agent 'b' failed too: KeyError: 'second'"]
        assert not hasattr(caught.value.__cause__, "__notes__")


@pytest.mark.parametrize("cost", [None, 2, lambda payload: 2])
def test_agents_without_a_class_count_in_the_budget_of_a_request(town: Town, route: Route, cost: Any) -> None:
    """What they declare, 1 where they say nothing; the one that would go over is not called, and a replay has the same answer."""
    for name in "abcd":
        town.agent(name, ValueError(name), cost_units=cost)
    with pytest.warns(RuntimeWarning, match="a budget was exceeded"):
        run, response = recorded(lambda: route("fallback", budget_limit=2.5 if cost is None else 5))
    assert town.calls.total() == 2
    assert replayed(run, lambda: route("fallback", budget_limit=2.5 if cost is None else 5))[1] == response
    assert town.calls.total() == 4  # a span runs in a replay, too
    failures = [one.error.type for one in response.results if one.error is not None]
    assert FailureType.BUDGET_EXCEEDED in failures
    assert len(of_type(run, "budget.exceeded")) == 1


def test_the_budget_of_a_request_is_known_to_a_resumed_run(town: Town, tmp_path: Path) -> None:
    """What agents without a class cost before a crash counts after it."""
    for name in "abcd":
        town.agent(name, ValueError(name))
    with pytest.warns(RuntimeWarning, match="a budget was exceeded"):
        run, response = recorded(lambda: town.route("fallback", budget_limit=2))
    ends = [entry["seq"] for entry in of_type(run, "agent.attempt.end")]
    left = cut(run, ends[0], tmp_path / "store")
    town.calls.clear()
    with pytest.warns(RuntimeWarning, match="a budget was exceeded"), resume(left):
        again = town.route("fallback", budget_limit=2)
    assert [one.status for one in again.results] == [one.status for one in response.results]
    assert town.calls == {"a": 1, "b": 1}  # the first in a span that runs again


# -- what if -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side_effect", [None, "read_only"])
def test_another_answer_in_a_what_if_is_told_and_no_divergence(town: Town, route: Route, side_effect: Any) -> None:
    """The program goes on with it, the report says what differs, and the new run is replayed exactly."""
    weather = iter(["grey", "blue"])

    @traced_tool(side_effect="read_only")
    def look() -> str:
        return next(weather)

    town.agent("a", lambda envelope: look(), side_effect=side_effect)
    run, response = recorded(route)
    with replay(run, live={"tool"}) as session:
        other = route()
    assert (response.payload, other.payload) == ("grey", "blue")
    assert [one["family"] for one in session.report.differences] == ["tool", "final.response"]
    assert session.new_run_id is not None
    report, again = replayed(session.new_run_id, route)
    assert (again.payload, report.exact) == ("blue", True)
