"""Executors: what was intended is done once, as a captured step inside its intention, with contracts, budgets and costs as anywhere."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anthropic
import openai
import pytest

import tracekit
from tests.support.stub_provider import StubProvider, stub_provider
from tests.support.tracing import both, of_type, recorded, replayed
from tracekit import (
    Budget,
    BudgetExceededError,
    ContractViolationError,
    DivergenceError,
    Price,
    record,
    replay,
    traced_model,
    traced_tool,
)
from tracekit.agents import (
    Executor,
    Intention,
    IntentionEvent,
    LLMExecutor,
    Loop,
    LoopResult,
    ToolExecutor,
    World,
    ask,
    call,
    create,
    patch,
    responder,
)
from tracekit.errors import IntentionError, PendingRequestsError, UnknownPriceError

calls: Counter[str] = Counter()


#: The clients that a test has opened.
opened: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    calls.clear()
    yield
    for client in opened:
        client.close()
    opened.clear()


def open_openai(provider: StubProvider) -> openai.OpenAI:
    opened.append(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k"))
    client: openai.OpenAI = opened[-1]
    return client


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with stub_provider() as server:
        yield server


@responder("llm.response")
def note(event: IntentionEvent) -> Intention | None:
    return None if event.object is None else patch(event.object, {"text": event.text, "cost": event.data["cost_usd"]})


def priced(messages: Any, **rest: Any) -> dict[str, Any]:
    calls["model"] += 1
    return {"text": f"said {calls['model']}", "usage": {"input_tokens": 10, "output_tokens": 5}, "cost_usd": 0.25}


def asking(executor: Executor, *intentions: Intention) -> Callable[[], LoopResult]:
    """A program that asks for one object."""
    return lambda: Loop([note], [executor]).run(
        create("page", {}), *(intentions or [ask("a", model="small", object="page")])
    )


# -- callables -----------------------------------------------------------------------------------------------------------------


def test_a_replayed_answer_costs_nothing_and_says_that_it_is_replayed() -> None:
    """The callable is called once; in a replay not at all. What it cost then is in the data, what it costs now is 0."""
    run, first = recorded(asking(LLMExecutor(priced)))
    report, second = replayed(run, asking(LLMExecutor(priced)))
    assert report.exact
    assert calls["model"] == 1
    assert (first.cost_usd, first.replayed) == (0.25, 0)
    assert (second.cost_usd, second.replayed) == (0.0, 1)
    [one], [other] = first.answers, second.answers
    assert (one.cost_usd, one.replayed, other.cost_usd, other.replayed) == (0.25, False, 0.0, True)
    assert one.data == other.data
    assert other.data["cost_usd"] == 0.25
    assert first.world.as_dict() == second.world.as_dict() == {"page": {"text": "said 1", "cost": 0.25}}


def test_a_budget_counts_the_cost_by_itself() -> None:
    """What the callable says that it cost is what is spent; the call that would go over is not made, in a replay neither."""
    limits = Budget(usd=0.6, prices={"small": Price(input_per_mtok=1, output_per_mtok=1)}, assumed_output_tokens=10)

    def program() -> None:
        Loop([], [LLMExecutor(priced)]).run(*[ask(f"{n}", model="small") for n in range(5)])

    with (
        pytest.raises(BudgetExceededError) as caught,
        pytest.warns(RuntimeWarning, match="budget"),
        record(budget=limits) as run,
    ):
        program()
    assert (caught.value.resource, caught.value.spent) == ("usd", 0.75)
    assert calls["model"] == 3
    assert caught.value.__notes__[0].startswith("left without an answer: llm.request 'small' (entry ")
    [end] = of_type(run, "run.failed")
    assert end["meta"]["budget"]["spent"]["usd"] == 0.75
    assert end["meta"]["budget"]["spent"]["llm_calls"] == 3
    assert any("left without an answer" in one for one in end["meta"]["warnings"])
    with pytest.raises(BudgetExceededError), replay(run):
        program()
    assert calls["model"] == 3


def test_intentions_count_once() -> None:
    """Neither the intention nor the delivery of its answer is a call: budgets, tokens and usage have the exchange alone."""
    with record(budget=Budget(llm_calls=1, tool_calls=1, usd=1, prices={"small": Price(1, 1)})) as run:
        tools = ToolExecutor(named(str.upper, "upper"), side_effect="read_only")
        Loop([note], [LLMExecutor(priced), tools], unread="ok").run(
            create("page", {}), ask("a", model="small", object="page"), call("upper", {"self": "a"})
        )
    spent = of_type(run, "run.completed")[0]["meta"]["budget"]["spent"]
    assert (spent["llm_calls"], spent["tool_calls"], spent["usd"], spent["input_tokens"]) == (1, 1, 0.25, 10)
    assert len(of_type(run, "llm.request")) == len(of_type(run, "tool.call")) == 1


def test_who_says_what_it_cost_needs_no_price() -> None:
    """A model that nobody knows is asked, what the callable says is counted, and the call that comes after the limit is not made."""

    def program() -> None:
        Loop([], [LLMExecutor(priced)]).run(*[ask(f"{n}", model="nobody-knows-it") for n in range(5)])

    with (
        pytest.raises(BudgetExceededError) as caught,
        pytest.warns(RuntimeWarning, match="budget"),
        record(budget=Budget(usd=0.6)) as run,
    ):
        program()
    assert (caught.value.resource, caught.value.spent) == ("usd", 0.75)
    assert calls["model"] == 3
    assert of_type(run, "run.failed")[0]["meta"]["budget"]["spent"]["usd"] == 0.75
    with pytest.raises(BudgetExceededError), replay(run):
        program()
    assert calls["model"] == 3


def test_who_does_not_say_what_it_cost_is_not_asked_again() -> None:
    """Without a price nobody knows then what is left of a budget in dollars: no further call is made, whatever its model."""

    def silent(messages: Any, **rest: Any) -> str:
        calls["model"] += 1
        return "said"

    with pytest.raises(UnknownPriceError, match="did not say what it cost"), record(budget=Budget(usd=1)) as run:
        Loop([], [LLMExecutor(silent)]).run(ask("a", model="nobody-knows-it"), ask("b", model="gpt-4o"))
    assert calls["model"] == 1
    assert of_type(run, "run.failed")[0]["meta"]["budget"]["spent"]["usd"] is None


def test_the_exchange_is_inside_the_intention() -> None:
    """The intention is on the log before the call, and the call's entry names it as its parent."""
    run, _ = recorded(asking(LLMExecutor(priced)))
    [intention, answer] = of_type(run, "decision")
    [request], [response], [changed] = (
        of_type(run, "llm.request"),
        of_type(run, "llm.response"),
        of_type(run, "object.patched")[1:],
    )
    assert intention["seq"] < request["seq"] == request["seq"]
    assert request["parent"] == intention["seq"]
    assert intention["name"] == "(program)"
    assert intention["output"]["data"]["messages"] == [{"role": "user", "content": "a"}]
    assert response["step"] == request["seq"] == answer["meta"]["info"]["exchange"]
    assert answer["meta"]["on"] == {"type": "llm.request", "seq": intention["seq"]}
    assert changed["meta"]["on"] == {"type": "llm.response", "seq": answer["seq"]}


@pytest.mark.parametrize(
    "said",
    [
        None,
        7,
        {},
        {"txt": "a"},
        {"text": "a", "cost_usd": -1},
        {"text": "a", "cost_usd": math.nan},
        {"text": "a", "cost_usd": "1"},
    ],
)
def test_a_request_that_gets_no_answer_fails(said: Any) -> None:
    """What is no answer is an error that names the executor, in a replay too; it is not taken for an empty text."""

    def mute(messages: Any, **rest: Any) -> Any:
        return said

    def program() -> Any:
        with pytest.raises(IntentionError, match="mute") as caught:
            asking(LLMExecutor(mute))()
        return str(caught.value)

    _, first, second = both(program)
    assert first == second


def test_what_a_callable_is_given_and_may_return() -> None:
    """The messages, and by keyword what else the question says; a text, a mapping, or an object of an SDK."""
    seen: list[Any] = []

    def echo(messages: Any, **rest: Any) -> str:
        seen.append((messages, rest))
        return "said"

    outcome = asking(LLMExecutor(echo), ask("a", model="small", max_tokens=7, temperature=0.5, object="page"))()
    assert seen == [([{"role": "user", "content": "a"}], {"model": "small", "max_tokens": 7, "temperature": 0.5})]
    assert outcome.answers[0].data == {
        "text": "said", "model": None, "usage": None, "cost_usd": None, "tool_calls": [], "finish_reason": None, "message": None,
    }  # fmt: skip


def test_a_default_model_and_models_that_are_taken() -> None:
    """`model` is asked where the question names none; `models` are the only ones; the first executor that takes it does it."""
    one = LLMExecutor(lambda messages, **rest: f"one {rest['model']}", models=("big",))
    other = LLMExecutor(lambda messages, **rest: f"other {rest['model']}", model="small")
    outcome = Loop([], [one, other]).run(ask("a", model="big"), ask("a"), ask("a", model="else"))
    assert [event.text for event in outcome.answers] == ["one big", "other small", "other else"]


def test_a_traced_model_is_not_recorded_twice() -> None:
    """It is a model call by itself, and taken as it is."""

    @traced_model(model="local")
    def local(messages: Any, **rest: Any) -> str:
        calls["model"] += 1
        return "said"

    run, first, second = both(asking(LLMExecutor(local), ask("a", object="page")))
    assert len(of_type(run, "llm.request")) == 1
    assert calls["model"] == 1
    assert first.world.as_dict() == second.world.as_dict()


def test_a_callable_that_makes_captured_model_calls_has_to_say_so() -> None:
    """Else the call would count twice: the inner one is refused before it is made. With captured=True it is the exchange."""

    @traced_model(model="local")
    def local(prompt: str) -> str:
        calls["model"] += 1
        return "said"

    def around(messages: Any, **rest: Any) -> str:
        return local(messages[0]["content"])

    def wrong() -> str:
        with pytest.raises(ContractViolationError, match="count twice") as caught:
            asking(LLMExecutor(around))()
        return str(caught.value)

    _, first, second = both(wrong)
    assert first == second
    assert calls["model"] == 0
    run, *_ = both(asking(LLMExecutor(around, captured=True)))
    assert len(of_type(run, "llm.request")) == 1
    assert calls["model"] == 1


def test_an_answer_of_which_nothing_is_on_the_log_is_refused() -> None:
    """A replay would do it again: an executor that captures nothing fails while recording."""

    class Own(Executor):
        kind = "tool.call"

        def perform(self, request: Intention) -> Any:
            return {"output": 7}

    def program() -> LoopResult:
        return Loop([], [Own()]).run(call("anything"))

    assert program().answers[0].output == 7  # outside every run
    with record(), pytest.raises(IntentionError, match="nothing of that is on the log"):
        program()
    with record(), pytest.raises(IntentionError, match="nothing of that is on the log"):
        asking(LLMExecutor(priced, captured=True))()


def test_an_executor_of_ones_own() -> None:
    """It returns the event's data; what it does are captured steps."""

    @traced_tool(side_effect="read_only")
    def measure(text: str) -> int:
        calls["tool"] += 1
        return len(text)

    class Own(Executor):
        kind = "tool.call"

        def takes(self, request: Intention) -> bool:
            return super().takes(request) and request.name == "length"

        def perform(self, request: Intention) -> Any:
            return {"output": measure(request.data["text"])}

    def program() -> Any:
        return Loop([], [Own()]).run(call("length", {"text": "abc"})).answers[0].output

    _, first, second = both(program)
    assert first == second == 3
    assert calls["tool"] == 1

    class Wrong(Own):
        def perform(self, request: Intention) -> Any:
            return measure(request.data["text"])

    with record(), pytest.raises(IntentionError, match="not an event's data"):
        Loop([], [Wrong()]).run(call("length", {"text": "abc"}))


# -- failures --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_is_an_event_or_is_raised(asynchronous: bool) -> None:
    """With a responder to llm.error it goes on; without, the exception itself comes out of run. A replay does the same."""

    def fail(messages: Any, **rest: Any) -> str:
        calls["model"] += 1
        raise ConnectionError("down")

    async def fail_async(messages: Any, **rest: Any) -> str:
        await asyncio.sleep(0)
        return fail(messages)

    @responder("llm.error")
    def give_up(event: IntentionEvent) -> Intention:
        assert event.object is not None
        return patch(event.object, {"failed": event.data["text"], "type": type(event.error).__name__})

    executor = LLMExecutor(fail_async if asynchronous else fail)

    def caught() -> Any:
        return Loop([give_up], [executor]).run(create("page", {}), ask("a", object="page")).world["page"]

    def raised() -> str:
        with pytest.raises(ConnectionError, match="down"):
            asking(executor)()
        return "raised"

    for program, expected in ((caught, {"failed": "down", "type": "ConnectionError"}), (raised, "raised")):
        calls.clear()
        run, first, second = both(program)
        assert first == second == expected
        assert calls["model"] == 1
        assert of_type(run, "decision")[-1]["meta"]["event"] == "llm.error"


# -- tools -----------------------------------------------------------------------------------------------------------------------


def named(function: Any, name: str) -> Any:
    """A function of this name that does what another does."""

    def made(**arguments: Any) -> Any:
        return function(*arguments.values())

    made.__name__ = made.__qualname__ = name
    return made


def test_tools_by_their_class() -> None:
    """Plain functions become tools of the executor's class; a traced tool of another class is refused when the executor is made."""

    def fetch(url: str) -> str:
        calls["fetch"] += 1
        return url.upper()

    @traced_tool(side_effect="irreversible", name="mail")
    def mail(to: str) -> str:
        calls["mail"] += 1
        return f"sent to {to}"

    reading = ToolExecutor(named(fetch, "fetch"), side_effect="read_only", version="2")
    with pytest.raises(IntentionError, match="is irreversible, and this is the executor of read_only tools"):
        ToolExecutor(mail, side_effect="read_only")
    with pytest.raises(IntentionError, match="its side effect is not declared"):
        ToolExecutor(fetch)
    with pytest.raises(IntentionError, match="two tools"):
        ToolExecutor(mail, mail)

    def program() -> list[Any]:
        outcome = Loop([], [reading, ToolExecutor(mail, side_effect="irreversible")]).run(
            call("fetch", {"url": "a"}), call("mail", {"to": "bob"})
        )
        return [event.output for event in outcome.answers]

    run, first, second = both(program)
    assert first == second == ["A", "sent to bob"]
    assert calls == {"fetch": 1, "mail": 1}
    assert [(one["name"], one["meta"]["side_effect"]) for one in of_type(run, "tool.call")] == [
        ("fetch", "read_only"),
        ("mail", "irreversible"),
    ]


def test_a_tool_is_called_by_the_name_of_its_function() -> None:
    """A function in a function, by the bare name and by the full one; what is not there is told with what is."""

    def look(path: str) -> str:
        calls["tool"] += 1
        return f"seen {path}"

    def program() -> list[Any]:
        tools = ToolExecutor(look, side_effect="read_only")
        requests = [call("look", {"path": "a"}), call(look.__qualname__, {"path": "b"})]
        with pytest.raises(
            PendingRequestsError, match=r"(?s)no executor takes.*'lok'.*executors take: tool\.call.*'look'"
        ):
            Loop([], [tools], world=World("slip")).run(call("lok", {}))
        return [event.output for event in Loop([], [tools]).run(*requests).answers]

    _, first, second = both(program)
    assert first == second == ["seen a", "seen b"]
    assert calls["tool"] == 2


class Desk:
    """Tools in all the ways in which a class can have them. Each writes down what it did."""

    def _wrote(self, text: str, more: int) -> str:
        calls[f"{text} {more}"] += 1
        return f"{text} {more}"

    @traced_tool(side_effect="irreversible")
    def write(self, text: str, more: int = 1) -> str:
        return self._wrote(text, more)

    @traced_tool(side_effect="irreversible")
    async def write_later(self, text: str, more: int = 1) -> str:
        await asyncio.sleep(0)
        return self._wrote(text, more)

    @traced_tool(side_effect="irreversible", exactly_once=True)
    def write_once(self, text: str, more: int = 1) -> str:
        return self._wrote(text, more)

    @staticmethod
    @traced_tool(side_effect="irreversible")
    def inner_static(text: str, more: int = 1) -> str:
        return Desk()._wrote(text, more)

    @traced_tool(side_effect="irreversible")
    @staticmethod
    def outer_static(text: str, more: int = 1) -> str:
        return Desk()._wrote(text, more)

    @classmethod
    @traced_tool(side_effect="irreversible")
    async def inner_class(cls, text: str, more: int = 1) -> str:
        return cls()._wrote(text, more)

    @traced_tool(side_effect="irreversible")
    @classmethod
    def outer_class(cls, text: str, more: int = 1) -> str:
        return cls()._wrote(text, more)

    def plain(self, text: str, more: int = 1) -> str:
        return self._wrote(text, more)

    async def plain_later(self, text: str, more: int = 1) -> str:
        await asyncio.sleep(0)
        return self._wrote(text, more)

    @classmethod
    def plain_class(cls, text: str, more: int = 1) -> str:
        return cls()._wrote(text, more)


class Clerk(Desk):
    @traced_tool(side_effect="irreversible")
    def __call__(self, text: str, more: int = 1) -> str:
        return self._wrote(text, more)


class Porter(Desk):
    async def __call__(self, text: str, more: int = 1) -> str:
        return self._wrote(text, more)


METHODS: dict[str, Any] = {
    **{name: getattr(Desk(), name) for name in dir(Desk) if not name.startswith("_")},
    **{name + " of the class": getattr(Desk, name) for name in dir(Desk) if name.endswith(("static", "class"))},
    "Clerk": Clerk(),
    "Porter": Porter(),
    **{name + " in part": partial(getattr(Desk(), name), more=1) for name in ("write", "write_later", "plain")},
    "write of an object given": partial(Desk.write, Desk()),
    "plain_later in parts": partial(partial(Desk().plain_later), more=1),
}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_a_tool_of_any_shape_is_called_once_and_recorded(name: str, at_once: bool) -> None:
    """Methods with their object, class and static methods, partials, objects that can be called; traced or not, async or not: two
    calls are two effects and two steps, alone or at once, and a replay has none."""
    called = name.split()[0]

    def program() -> Any:
        traced = not any(word in name for word in ("plain", "Porter"))
        tools = ToolExecutor(METHODS[name], side_effect=None if traced else "irreversible")
        loop = Loop([], [tools])
        asked = [call(called, {"text": "a"}), call(called, {"text": "b", "more": 1})]
        outcome = asyncio.run(loop.run_async(*asked)) if at_once else loop.run(*asked)
        return sorted(event.output for event in outcome.answers)

    run, first, second = both(program)
    assert first == second == ["a 1", "b 1"]
    assert calls == {"a 1": 1, "b 1": 1}
    made = of_type(run, "tool.call")
    assert sorted(one["input"]["text"] for one in made) == ["a", "b"]
    assert {one["meta"]["side_effect"] for one in made} == {"irreversible"}
    assert sorted(one["parent"] for one in made) == [one["seq"] for one in of_type(run, "decision")[:2]]


def test_an_object_stands_for_its_traced_methods() -> None:
    """Those that are public, of it and of its bases; what has none is refused, and so is a class."""
    tools = ToolExecutor(Desk())
    assert sorted(name.rpartition(".")[2] for name in tools.tools) == [
        "inner_class", "inner_static", "outer_class", "outer_static", "write", "write_later", "write_once",
    ]  # fmt: skip

    def program() -> Any:
        return [one.output for one in Loop([], [ToolExecutor(Desk())]).run(call("write", {"text": "a"})).answers]

    _, first, second = both(program)
    assert first == second == ["a 1"]
    assert calls == {"a 1": 1}
    for wrong, said in [(object(), "has no traced methods"), (Desk, "is a class"), ([Desk().write], "can't be called")]:
        with pytest.raises(IntentionError, match=said):
            ToolExecutor(wrong)


def test_what_can_not_be_called_by_names_is_refused() -> None:
    """When the executor is made: a method without its object, arguments that have a place only."""
    for wrong, said in [
        (Desk.write, "without its object"), (Desk.plain, "without its object"), (len, "by its place only"),
    ]:  # fmt: skip
        with pytest.raises(IntentionError, match=said):
            ToolExecutor(wrong, side_effect="irreversible")


@pytest.mark.parametrize("shape", ["method", "object", "part"])
def test_a_traced_model_of_any_shape_is_not_recorded_twice(shape: str) -> None:
    """A method, an object that is called, a partial: each is the exchange itself."""

    class Local:
        @traced_model(model="local")
        def __call__(self, messages: Any, **rest: Any) -> str:
            calls["model"] += 1
            return "said"

        say = __call__

    way = {"method": Local().say, "object": Local(), "part": partial(Local().say, temperature=0)}[shape]
    run, *_ = both(asking(LLMExecutor(way), ask("a", object="page")))
    assert len(of_type(run, "llm.request")) == calls["model"] == 1


def test_a_bare_name_that_may_be_two_tools_is_refused() -> None:
    """When the executor is made; names that were given are taken as they are."""

    class One:
        def look(self) -> None: ...

    class Two:
        def look(self) -> None: ...

    with pytest.raises(IntentionError, match=r"'look' may be .*One\.look.* or .*Two\.look"):
        ToolExecutor(One().look, Two().look, side_effect="read_only")
    one, two = (traced_tool(side_effect="read_only", name=f"{name}.look")(lambda: None) for name in "ab")
    assert [*ToolExecutor(one, two).tools] == ["a.look", "b.look"]


def test_a_tools_contract_holds() -> None:
    """exactly_once: the second intention with equal arguments is answered by the first effect. Retries are the tool's own."""

    @traced_tool(side_effect="irreversible", name="charge", exactly_once=True)
    def charge(customer: str) -> str:
        calls["charge"] += 1
        return f"charged {calls['charge']}"

    @traced_tool(side_effect="read_only", name="flaky", max_retries=2)
    def flaky() -> str:
        calls["flaky"] += 1
        if calls["flaky"] < 3:
            raise ConnectionError("down")
        return "up"

    def program() -> list[Any]:
        asked = [call("charge", {"customer": "a"}), call("charge", {"customer": "a"}), call("flaky")]
        return [event.output for event in Loop([], [ToolExecutor(charge, flaky)]).run(*asked).answers]

    _, first, second = both(program)
    assert first == second == ["charged 1", "charged 1", "up"]
    assert calls == {"charge": 1, "flaky": 3}


def test_another_tool_result_type_comes_back_as_it_was() -> None:
    """A tool's output need not be JSON: it is what the tool returned, in a replay too."""

    @traced_tool(side_effect="read_only", name="pair")
    def pair() -> tuple[int, bytes]:
        return 1, b"x"

    _, first, second = both(lambda: Loop([], [ToolExecutor(pair)]).run(call("pair")).answers[0].output)
    assert first == second == (1, b"x")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("lazy", ["coroutine", "generator"])
def test_a_tool_that_leaves_its_work_to_others_is_refused(lazy: str) -> None:
    """A plain function that returns a coroutine or a generator: nobody would see that through, and nothing is taken for an answer."""

    async def later() -> None:
        calls["tool"] += 1

    def each() -> Iterator[int]:
        calls["tool"] += 1
        yield 1

    def leave() -> Any:
        return later() if lazy == "coroutine" else each()

    with (
        record(),
        pytest.raises(IntentionError, match=f"'leave' returned a {lazy}, which nothing would run to its end"),
    ):
        Loop([], [ToolExecutor(named(leave, "leave"), side_effect="read_only")]).run(call("leave"))
    assert not calls


def test_wrong_arguments_are_the_tools_own_error() -> None:
    """They are told as the tool tells them, and nothing is taken for an answer."""

    @traced_tool(side_effect="read_only", name="pair")
    def pair(a: int) -> int:
        return a

    with record(), pytest.raises(TypeError, match="b"):
        Loop([], [ToolExecutor(pair)]).run(call("pair", {"b": 1}))


def test_an_executor_that_can_not_be() -> None:
    """No callable, no client; a generator tool."""

    @traced_tool(side_effect="read_only")
    def stream() -> Iterator[int]:
        yield 1

    with pytest.raises(IntentionError, match="neither a callable nor a client"):
        LLMExecutor(7)
    with pytest.raises(IntentionError, match="not a tool that returns once"):
        ToolExecutor(stream)


# -- real SDKs -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instrumented", [False, True], ids=["this client", "instrument()"])
@pytest.mark.parametrize("sdk", ["openai", "openai async", "anthropic", "anthropic async"])
def test_a_real_client(provider: StubProvider, sdk: str, instrumented: bool) -> None:
    """Each SDK's client, sync and async: its exchange is on the log once, inside the intention; a replay sends nothing."""

    def client() -> Any:
        if sdk.startswith("openai"):
            made = openai.AsyncOpenAI if "async" in sdk else openai.OpenAI
            return made(base_url=f"{provider.url}/v1", api_key="k")
        made_other = anthropic.AsyncAnthropic if "async" in sdk else anthropic.Anthropic
        return made_other(base_url=provider.url, api_key="k")

    def ask_it() -> LoopResult:
        with client() as asked:
            return loop_of(asked).run(create("page", {}), question)

    async def ask_async() -> LoopResult:
        async with client() as asked:
            return await loop_of(asked).run_async(create("page", {}), question)

    def program() -> Any:
        outcome = asyncio.run(ask_async()) if "async" in sdk else ask_it()
        [answer] = outcome.answers
        return outcome.world["page"], answer.data, answer.replayed

    question = ask("a", max_tokens=20, object="page")

    def loop_of(client: Any) -> Loop:
        return Loop([note], [LLMExecutor(client, model="small")])

    if instrumented:
        tracekit.instrument()
    try:
        run, first, second = both(program)
    finally:
        tracekit.uninstrument()
    assert sum(provider.requests.values()) == 1
    assert len(of_type(run, "llm.request")) == 1
    assert of_type(run, "llm.request")[0]["parent"] == of_type(run, "decision")[0]["seq"]
    assert first[:2] == second[:2]
    assert (first[2], second[2]) == (False, True)
    assert first[0]["text"].startswith("naïve")
    assert first[0]["text"].endswith("/ a")
    assert first[1]["usage"] == of_type(run, "llm.response")[0]["meta"]["usage"]
    assert first[1]["message"]["role"] == "assistant"
    assert first[1]["finish_reason"] in ("stop", "end_turn")


@pytest.mark.parametrize("captured", ["this client", "all", "those of another SDK"])
@pytest.mark.parametrize("sdk", ["openai", "anthropic async"])
def test_the_method_of_a_client_is_the_client(provider: StubProvider, sdk: str, captured: str) -> None:
    """`LLMExecutor(client.messages.create)`: the exchange is a model call, once, whatever is captured beside it."""

    async def main() -> Any:
        if sdk == "openai":
            with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k") as client:
                way: Any = client.chat.completions.create
                return (await Loop([], [LLMExecutor(way, model="small")]).run_async(ask("a"))).answers[0].data
        async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="k") as other:
            way = other.messages.create
            return (await Loop([], [LLMExecutor(way, model="small")]).run_async(ask("a", max_tokens=9))).answers[0].data

    if captured != "this client":
        tracekit.instrument(*([] if captured == "all" else ["anthropic" if sdk == "openai" else "openai"]))
    try:
        run, first, second = both(lambda: asyncio.run(main()))
    finally:
        tracekit.uninstrument()
    assert first == second
    assert sum(provider.requests.values()) == 1
    assert len(of_type(run, "llm.request")) == 1
    assert not of_type(run, "http.request")
    assert not [one for one in run.warnings if sdk.split()[0] in one]


def test_the_price_of_an_answer_is_that_of_the_recording(
    provider: StubProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with a known price: the event says it, a budget counts it once, and a later price list changes no replay."""

    def program() -> Any:
        client = open_openai(provider)
        outcome = asking(LLMExecutor(client), ask("a", model="gpt-4o-mini", max_tokens=20, object="page"))()
        return outcome.world["page"], outcome.cost_usd

    with record(budget=Budget(usd=1)) as run:
        first = program()
    assert 0 < first[1] < 0.001
    assert first[0]["cost"] == first[1]
    assert of_type(run, "run.completed")[0]["meta"]["budget"]["spent"]["usd"] == pytest.approx(first[1])
    monkeypatch.setattr("tracekit._runtime.prices.Prices.of_answer", lambda *_: 7.0)
    with replay(run) as session:
        second = program()
    assert session.report.exact
    assert second == (first[0], 0.0)


def test_tool_calls_of_a_model_become_calls(provider: StubProvider) -> None:
    """The model wants a tool: a responder turns that into an intention, an executor does it, and it is done once."""

    def look(place: str) -> str:
        calls["look"] += 1
        return f"at {place}"

    @responder("llm.response")
    def use(event: IntentionEvent) -> list[Intention]:
        return [call(one["name"], one["arguments"], object=event.object) for one in event.data["tool_calls"]]

    @responder("tool.return")
    def keep(event: IntentionEvent) -> Intention:
        assert event.object is not None
        return patch(event.object, {"found": event.output})

    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    def program() -> Any:
        client = open_openai(provider)
        return (
            Loop(
                [use, keep],
                [LLMExecutor(client, model="small"), ToolExecutor(named(look, "look"), side_effect="read_only")],
            )
            .run(create("page", {}), ask("a", tools=tools, object="page"))
            .world["page"]
        )

    _, first, second = both(program)
    assert first == second
    assert first["found"].startswith("at naïve")
    assert calls["look"] == 1


def test_a_client_needs_a_model(provider: StubProvider) -> None:
    """The question or the executor names it."""
    client = open_openai(provider)
    with record(), pytest.raises(IntentionError, match="names no model"):
        asking(LLMExecutor(client), ask("a"))()
    assert not provider.requests


def test_another_question_in_a_replay_is_a_divergence() -> None:
    """It is told at the intention, before the exchange."""
    questions = iter(["a", "b"])

    def program() -> None:
        asking(LLMExecutor(priced), ask(next(questions), object="page"))()

    run, _ = recorded(program)
    with pytest.raises(DivergenceError, match="program"):
        replayed(run, program)
    assert calls["model"] == 1
