"""Who is asked, and in which order: never by chance, never by the order in which agents happened to be registered."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tracing import both, recorded
from tracekit import ContractViolationError, traced_tool
from tracekit.agents import AgentRegistry, BaseAgent, IntentEnvelope, IntentRef, IntentRouter
from tracekit.errors import RegistryError

GREET = IntentRef("greet")
Fact = tuple[str, int, str | None]


def names(registry: AgentRegistry, intent: IntentRef = GREET) -> list[str]:
    return [agent.name for agent in registry.for_intent(intent)]


def answer(envelope: IntentEnvelope) -> str:
    return envelope.intent.name


def test_local_agents_come_first_then_the_lower_number_then_the_name() -> None:
    """The published order, whatever order they were registered in."""
    facts: list[Fact] = [("d", 1, "node"), ("b", 5, None), ("c", 1, "a-node"), ("a", 5, None), ("z", 1, None)]
    registry = AgentRegistry(BaseAgent(answer, intent="greet", name=n, priority=p, node_id=w) for n, p, w in facts)
    assert names(registry) == ["z", "a", "b", "c", "d"]


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=4), st.integers(-3, 3), st.none() | st.just("far")),
        unique_by=lambda fact: fact[0],
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_does_not_depend_on_registration(facts: list[Fact], chance: Any) -> None:
    """Any order of registration gives the same order of asking: that of the published sort key."""
    expected = [n for n, p, w in sorted(facts, key=lambda fact: (0 if fact[2] is None else 1, fact[1], fact[0]))]
    chance.shuffle(facts)
    registry = AgentRegistry(BaseAgent(answer, intent="greet", name=n, priority=p, node_id=w) for n, p, w in facts)
    assert names(registry) == expected == [agent.name for agent in registry]


def test_a_decorator_registers_and_leaves_the_function_as_it_is() -> None:
    """The name is the function's; the function can be called as before."""
    registry = AgentRegistry()

    @registry.agent(intent="greet", priority=3, node_id="far", side_effect="read_only")
    def greeter(payload: dict[str, Any]) -> str:
        return "hello " + payload["who"]

    agent = registry.get("greeter")
    assert agent is not None
    assert greeter({"who": "you"}) == "hello you"
    assert agent.about() == {
        "name": "greeter",
        "intents": ["greet"],
        "priority": 3,
        "node_id": "far",
        "side_effect": "read_only",
    }
    assert (len(registry), "greeter" in registry, "other" in registry) == (1, True, False)


def test_a_name_is_given_once() -> None:
    """A second agent of the same name is refused; the first one stays."""
    registry = AgentRegistry([BaseAgent(answer, intent="greet")])
    with pytest.raises(RegistryError, match="an agent 'answer' already"):
        registry.agent(intent="other")(answer)
    assert names(registry) == ["answer"]
    registry.agent(intent="greet", name="answer-2")(answer)
    assert names(registry) == ["answer", "answer-2"]


def test_an_agent_may_handle_several_intents_and_one_version_of_an_intent() -> None:
    """A name stands for every version, an IntentRef for its own; agents that come later are found."""
    registry = AgentRegistry()
    registry.register(BaseAgent(answer, intent=["greet", "part"], name="any"))
    assert names(registry) == ["any"]
    registry.register(BaseAgent(answer, intent=[IntentRef("greet", "2.0")], name="second", priority=1))
    assert names(registry) == ["any"]
    assert names(registry, IntentRef("greet", "2.0")) == ["second", "any"]
    assert names(registry, IntentRef("part")) == ["any"]
    assert names(registry, IntentRef("none")) == []


class Greeter(BaseAgent):
    """A class of one's own."""

    def __init__(self) -> None:
        super().__init__(intent="greet")

    def handle(self, envelope: IntentEnvelope) -> str:
        return f"handled {envelope.payload['who']}"


class Callable_:
    """A handler that is an object."""

    def __call__(self, payload: dict[str, Any]) -> str:
        return f"called {payload['who']}"


def ask(agent: BaseAgent) -> Any:
    response = IntentRouter(AgentRegistry([agent])).route({"intent": "greet", "payload": {"who": "you"}})
    return response.unwrap()


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (Greeter(), "handled you"),
        (BaseAgent(Callable_(), intent="greet"), "called you"),
        (BaseAgent(lambda envelope: envelope.intent.name, intent="greet"), "greet"),
        (BaseAgent(lambda anything, more=1: anything.payload["who"], intent="greet"), "you"),
        (BaseAgent(lambda payload, **more: payload["who"], intent="greet"), "you"),
        (BaseAgent("{0.intent.name}!".format, intent="greet", name="format"), "greet!"),
    ],
    ids=["class", "object", "envelope", "any name", "payload", "built-in"],
)
def test_any_handler_can_be_wrapped(agent: BaseAgent, said: str) -> None:
    """A method, an object, a function of the envelope or of the payload."""
    assert ask(agent) == said


def test_an_agent_without_a_handler_says_so() -> None:
    """Where it is written, not at the first request."""
    with pytest.raises(RegistryError, match="without a handler"):
        BaseAgent(intent="greet", name="empty")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: BaseAgent(5, intent="a"), RegistryError, "must be a function"),  # type: ignore[arg-type]
        (lambda: BaseAgent(dict, intent="a"), RegistryError, "must be a function"),
        (lambda: BaseAgent(answer, intent=[]), RegistryError, "handles no intent"),
        (lambda: BaseAgent(answer, intent=""), RegistryError, "handles no intent"),
        (lambda: BaseAgent(answer, intent="a", name=""), RegistryError, "non-empty"),
        (lambda: BaseAgent(answer, intent="a", priority="high"), RegistryError, "whole number"),  # type: ignore[arg-type]
        (lambda: BaseAgent(lambda a, b: 1, intent="a"), RegistryError, "takes 2 arguments"),
        (lambda: BaseAgent(lambda: 1, intent="a"), RegistryError, "takes 0 arguments"),
        (lambda: BaseAgent(answer, intent="a", side_effect="maybe"), ContractViolationError, "maybe"),
        (
            lambda: BaseAgent(answer, intent="a", side_effect="irreversible", contract={"max_retries": 2}),
            ContractViolationError,
            "irreversible",
        ),
        (lambda: BaseAgent(answer, intent="a", contract={"timeout_ms": -1}), ContractViolationError, "timeout_ms"),
        (lambda: AgentRegistry([answer]), RegistryError, "is not an agent"),  # type: ignore[list-item]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_makes_no_sense_is_refused_where_it_is_written(make: Any, error: type[BaseException], said: str) -> None:
    """Before anything is routed, with what to do instead."""
    with pytest.raises(error, match=said):
        make()


def pieces(payload: dict[str, Any]) -> Any:
    yield payload


async def pieces_async(payload: dict[str, Any]) -> Any:
    yield payload


class Pieces(BaseAgent):
    def handle(self, envelope: IntentEnvelope) -> Any:
        yield envelope


class PiecesOfAnObject:
    def __call__(self, payload: dict[str, Any]) -> Any:
        yield payload


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: BaseAgent(pieces, intent="a"), "a generator"),
        (lambda: BaseAgent(pieces_async, intent="a", side_effect="irreversible"), "an async generator"),
        (lambda: BaseAgent(functools.partial(pieces), intent="a", name="part"), "a generator"),
        (lambda: BaseAgent(PiecesOfAnObject(), intent="a"), "a generator"),
        (lambda: BaseAgent(traced_tool(side_effect="read_only")(pieces_async), intent="a"), "an async generator"),
        (lambda: Pieces(intent="a"), "a generator"),
        (lambda: AgentRegistry().agent(intent="a")(pieces), "a generator"),
    ],
    ids=["generator", "async generator", "partial", "object", "tool", "class", "decorator"],
)
def test_an_agent_that_answers_piece_by_piece_is_refused(make: Any, what: str) -> None:
    """Where it is registered: its first request would come to something that nobody runs."""
    with pytest.raises(RegistryError, match=rf"is {what}: an agent has one answer"):
        make()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compensate": lambda result: 0, "side_effect": "reversible"}, "result"),
        ({"compensate": lambda payload: 0, "side_effect": "read_only"}, "only reversible calls"),
        ({"idempotency_key": lambda order: order, "side_effect": "irreversible"}, "order"),
        ({"idempotency_key": "order", "side_effect": "irreversible"}, "order"),
        ({"cost_units": lambda tokens: tokens, "side_effect": "read_only"}, "tokens"),
        ({"cost_units": -1, "side_effect": "read_only"}, "cost_units"),
        ({"contract": {"idempotent_required": True}, "side_effect": "read_only"}, "idempotency_key"),
        ({"contract": {"max_cost_units": 1}, "cost_units": 2, "side_effect": "read_only"}, "max_cost_units"),
        ({"idempotency_key": lambda order: order}, "order"),
        ({"contract": {"idempotent_required": True}}, "idempotency_key"),
    ],
)
def test_a_declaration_that_no_request_could_keep_is_refused(options: dict[str, Any], said: str) -> None:
    """Where it is registered, as where a tool is declared; also for an agent that is given its class by the call of route."""
    with pytest.raises(ContractViolationError, match=said):
        BaseAgent(answer, intent="a", **options)


# -- what a class says ---------------------------------------------------------------------------------------------------------


class Booker(BaseAgent):
    """An agent that says everything in its class."""

    intent = "book"
    name = "booker"
    side_effect = "reversible"
    priority = 5
    node_id = "far"
    version = "2"
    identity = {"model": "m1"}  # noqa: RUF012
    contract = {"max_retries": 1}  # type: ignore[assignment]  # noqa: RUF012

    done: list[str] = []  # noqa: RUF012

    def compensate(self, payload: dict[str, Any], output: Any) -> None:
        self.done.append(f"unbook {payload['n']}")

    def cost_units(self, payload: dict[str, Any]) -> float:
        return 2

    def handle(self, envelope: IntentEnvelope) -> str:
        self.done.append(f"book {envelope.payload['n']}")
        raise ConnectionError("busy")


def test_a_derived_class_says_what_its_agent_is() -> None:
    """Each option, by an attribute or a method of its name; what is given where it is made counts more."""
    agent = Booker()
    assert (agent.name, agent.intents, agent.priority, agent.node_id) == ("booker", (("book", None),), 5, "far")
    assert (agent.side_effect, agent.version, agent.identity) == ("reversible", "2", {"model": "m1"})
    assert agent.contract is not None
    assert agent.contract.max_retries == 1
    assert agent.units({"n": 1}) == 2
    other = Booker(name="other", intent="else", contract={"no_retry": True}, priority=1, version="3", cost_units=7)
    assert (other.name, other.priority, other.intents, other.version) == ("other", 1, (("else", None),), "3")
    assert (other.contract is not None and other.contract.no_retry, other.units({})) == (True, 7)


def test_what_a_class_says_is_kept() -> None:
    """Its agent is undone and asked again as declared, answered from the log in a replay, and over its budget not asked."""
    Booker.done.clear()
    router = IntentRouter(AgentRegistry([Booker()]))
    request = {"intent": "book", "payload": {"n": 1}}
    _, response, again = both(lambda: router.route(request))
    assert (response.status, again) == ("error", response)
    assert Booker.done == ["book 1", "unbook 1", "book 1"]
    with pytest.warns(RuntimeWarning, match="a budget was exceeded"):
        recorded(lambda: router.route(request, budget_limit=1))
    assert Booker.done == ["book 1", "unbook 1", "book 1"]


class Mailer(BaseAgent):
    side_effect = "irreversible"
    sent = 0

    def __init__(self) -> None:
        super().__init__(intent="mail")

    def handle(self, envelope: IntentEnvelope) -> str:
        type(self).sent += 1
        return "sent"


def test_an_irreversible_class_sends_one_mail() -> None:
    """A replay answers it from the log."""
    Mailer.sent = 0
    router = IntentRouter(AgentRegistry([Mailer()]))
    both(lambda: router.route({"intent": "mail"}))
    assert Mailer.sent == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BaseAgent(answer, intent=5), "is not an intent"),  # type: ignore[arg-type]
        (lambda: BaseAgent(answer, intent=["a", None]), "is not an intent"),  # type: ignore[list-item]
        (lambda: BaseAgent(answer), "handles no intent"),
        (lambda: BaseAgent(answer, intent="a", contract={"foo": 1}), "has an unknown field 'foo'"),
        (lambda: BaseAgent(answer, intent="a", contract="x"), "must be an ExecutionContract or a mapping"),  # type: ignore[arg-type]
        (lambda: BaseAgent(answer, intent="a", node_id=5), "the node_id of agent 'answer' is a text"),  # type: ignore[arg-type]
        (lambda: BaseAgent(answer, intent="a", identity="x"), "the identity of agent 'answer' is a mapping"),  # type: ignore[arg-type]
        (lambda: BaseAgent(None, intent="a"), "without a handler"),
        (lambda: AgentRegistry().for_intent(5), "a name or an IntentRef"),  # type: ignore[arg-type]
        (lambda: IntentRouter(None), "of an AgentRegistry, not of None"),  # type: ignore[arg-type]
        (
            lambda: IntentRouter(AgentRegistry()).route({"intent": "a"}, default_contract="x"),  # type: ignore[arg-type]
            "the contract of the route",
        ),
        (
            lambda: IntentRouter(AgentRegistry()).route({"intent": "a"}, default_contract={"zz": 1}),
            "the contract of the route has an unknown field 'zz'",
        ),
    ],
)
def test_a_wrong_argument_is_told_where_it_is_given(make: Any, said: str) -> None:
    """What, whose, and what would be right."""
    with pytest.raises(RegistryError, match=said):
        make()
