"""Contracts: what can't be is refused where it is written, and what a call breaks is refused before the tool starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.effects import Effects, entries
from tests.support.ids import shown
from tracekit import (
    BudgetExceededError,
    ContractViolationError,
    ExecutionContract,
    SideEffectClass,
    StepTimeoutError,
    record,
    replay,
    traced_model,
    traced_tool,
)
from tracekit.agents import BaseAgent
from tracekit.errors import DivergenceError


def undo(x: int) -> None: ...


def undo_with(x: int, output: int) -> None: ...


def undo_strange(y: int) -> None: ...


async def undo_later(x: int) -> None: ...


@traced_tool(side_effect="read_only")
def look(x: int) -> int:
    return x


@traced_tool(side_effect="reversible")
def book(x: int) -> int:
    return x


@traced_tool(side_effect="irreversible")
def pay(x: int) -> int:
    return x


@traced_tool(side_effect="read_only")
def look_elsewhere(y: int) -> int:
    return y


@traced_tool(side_effect="read_only")
async def look_later(x: int) -> int:
    return x


@traced_tool(side_effect="read_only")
def looks(x: int) -> Iterator[int]:
    yield x


#: Declarations that nothing could keep, each with a word of the refusal.
IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("irreversible", {"max_retries": 1}, "never repeated"),
    ("read_only", {"max_retries": 1, "no_retry": True}, "no_retry"),
    ("read_only", {"max_retries": 1, "exactly_once": True}, "exactly_once"),
    ("reversible", {"max_retries": 1, "exactly_once": "store"}, "exactly_once"),
    ("read_only", {"exactly_once": "run"}, "exactly_once"),
    ("read_only", {"exactly_once": 1}, "exactly_once"),
    ("read_only", {"no_retry": 1}, "no_retry"),
    ("read_only", {"max_retries": -1}, "max_retries"),
    ("read_only", {"max_retries": True}, "max_retries"),
    ("read_only", {"max_retries": 1.5}, "max_retries"),
    ("read_only", {"max_retries": "3"}, "max_retries"),
    ("read_only", {"timeout_ms": 0}, "timeout_ms"),
    ("read_only", {"timeout_ms": 5, "timeout_in": "process"}, "timeout_in"),
    ("read_only", {"timeout_in": "thread"}, "timeout_in"),
    ("read_only", {"timeout_ms": -5}, "timeout_ms"),
    ("read_only", {"timeout_ms": True}, "timeout_ms"),
    ("read_only", {"timeout_ms": "5"}, "timeout_ms"),
    ("read_only", {"timeout_ms": float("nan")}, "timeout_ms"),
    ("read_only", {"timeout_ms": float("inf")}, "timeout_ms"),
    ("read_only", {"timeout_ms": 1e300}, "longer"),
    ("read_only", {"timeout_ms": 10**400}, "timeout_ms"),
    ("read_only", {"timeout_ms": 10**5000}, "timeout_ms"),
    ("read_only", {"max_cost_units": 10**400}, "max_cost_units"),
    ("read_only", {"cost_units": 10**400}, "cost_units"),
    ("read_only", {"max_cost_units": 0}, "max_cost_units"),
    ("read_only", {"max_cost_units": -1}, "max_cost_units"),
    ("read_only", {"max_cost_units": True}, "max_cost_units"),
    ("read_only", {"max_cost_units": 0.5}, "costs 1 unit"),
    ("read_only", {"max_cost_units": 1, "cost_units": 2}, "every call costs 2"),
    ("read_only", {"cost_units": -1}, "cost_units"),
    ("read_only", {"cost_units": True}, "cost_units"),
    ("read_only", {"cost_units": "2"}, "cost_units"),
    ("read_only", {"cost_units": lambda y: y}, "'y'"),
    ("read_only", {"idempotent_required": True}, "idempotency_key"),
    ("read_only", {"idempotency_key": "order"}, "'order'"),
    ("read_only", {"idempotency_key": lambda order: order}, "'order'"),
    ("read_only", {"idempotency_key": 3}, "idempotency_key"),
    ("read_only", {"contract": {"max_retry": 1}}, "max_retry"),
    ("read_only", {"contract": 3}, "ExecutionContract"),
    ("read_only", {"contract": ExecutionContract(max_retries=1), "max_retries": 2}, "max_retries"),
    ("irreversible", {"fallback": pay}, "irreversible"),
    ("irreversible", {"fallback": look}, "irreversible"),
    ("irreversible", {"fallback": book}, "irreversible"),
    ("read_only", {"fallback": pay}, "can't replace"),
    ("reversible", {"fallback": look}, "can't replace"),
    ("reversible", {"fallback": (pay, book)}, "can't replace"),
    ("reversible", {"fallback": (book, book)}, "twice"),
    ("read_only", {"fallback": (book, look)}, "can't replace"),
    ("read_only", {"fallback": undo}, "not a traced tool"),
    ("read_only", {"fallback": look_elsewhere}, "arguments"),
    ("read_only", {"fallback": look_later}, "coroutine"),
    ("read_only", {"fallback": looks}, "generator"),
    ("read_only", {"compensate": undo}, "only reversible calls"),
    ("irreversible", {"compensate": undo}, "only reversible calls"),
    ("reversible", {"compensate": undo_strange}, "'y'"),
    ("reversible", {"compensate": undo_later}, "coroutine"),
    ("reversible", {"compensate": 3}, "neither"),
    ("harmless", {}, "side_effect"),
]


@pytest.mark.parametrize(("side_effect", "how", "word"), IMPOSSIBLE)
def test_what_can_not_be_is_refused_where_it_is_written(side_effect: Any, how: dict[str, Any], word: str) -> None:
    """A contract that contradicts itself raises at the decorator, as a ValueError too, and says what contradicts what."""
    with pytest.raises(ContractViolationError, match=word) as caught:

        @traced_tool(side_effect=side_effect, **how)
        def tool(x: int) -> int:
            return x

    assert isinstance(caught.value, ValueError)
    assert caught.value.contract  # type: ignore[attr-defined]


#: Declarations that can be kept.
POSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("irreversible", {"exactly_once": True, "timeout_ms": 5000, "timeout_in": "thread", "no_retry": True}),
    ("irreversible", {"exactly_once": "store", "idempotent_required": True, "idempotency_key": "x"}),
    ("read_only", {"max_retries": 0, "no_retry": True}),
    (
        "read_only",
        {"max_retries": 3, "timeout_ms": 0.5, "timeout_in": "thread", "max_cost_units": 2.5, "cost_units": 2},
    ),
    ("read_only", {"fallback": (look, book)}),
    ("read_only", {"fallback": [look]}),
    ("reversible", {"fallback": (book, pay), "compensate": undo_with, "max_retries": 1}),
    ("reversible", {"exactly_once": True, "fallback": book}),
    (SideEffectClass.READ_ONLY, {"contract": {"max_retries": 1}}),
    (
        "read_only",
        {"contract": ExecutionContract(max_retries=1), "max_retries": 1, "timeout_ms": 5, "timeout_in": "thread"},
    ),
]


@pytest.mark.parametrize(("side_effect", "how"), POSSIBLE)
def test_what_can_be_kept_is_taken(side_effect: Any, how: dict[str, Any]) -> None:
    """Every combination that has a meaning is allowed, and the tool works."""

    @traced_tool(side_effect=side_effect, **how)
    def tool(x: int) -> int:
        return x

    with record("taken"):
        assert tool(1) == 1


class Desk:
    def book(self) -> None: ...

    @classmethod
    def open(cls) -> None: ...

    def __call__(self) -> None: ...


@pytest.mark.parametrize("how", [{"timeout_ms": 5}, {"contract": ExecutionContract(timeout_ms=5)}])
@pytest.mark.parametrize("function", [lambda: None, Desk.book, vars(Desk)["open"], Desk()])
def test_a_plain_function_is_not_moved_to_another_thread_unasked(function: Any, how: dict[str, Any]) -> None:
    """A limit on what nothing can interrupt is refused where it is written, by a message that names both ways out."""
    with pytest.raises(TypeError, match=r'async def.*timeout_in="thread"'):
        traced_tool(side_effect="read_only", **how)(function)
    with pytest.raises(TypeError, match=r'async def.*timeout_in="thread"'):
        BaseAgent(lambda payload: None, intent="book", side_effect="read_only", contract={"timeout_ms": 5})


def test_who_runs_in_another_thread_has_said_so() -> None:
    """With ``timeout_in="thread"`` a function runs in one of its own; a coroutine, which may say it too, in its caller's."""
    where: list[int] = []

    @traced_tool(side_effect="read_only", timeout_ms=60_000, timeout_in="thread")
    def function() -> None:
        where.append(threading.get_ident())

    @traced_tool(side_effect="read_only", timeout_ms=60_000, timeout_in="thread")
    async def coroutine() -> None:
        where.append(threading.get_ident())

    function()
    asyncio.run(coroutine())
    assert [one == threading.get_ident() for one in where] == [False, True]


def test_a_decorator_that_is_used_alone_says_how_it_is_written() -> None:
    """``@traced_tool`` without its parentheses, or without a side effect, is answered with the form to write; an error of an
    invalid declaration is as it was."""
    bare: Any = traced_tool
    for wrong in (lambda: bare(print), lambda: bare(), lambda: bare("read_only")):
        with pytest.raises(
            TypeError, match=r'write @traced_tool\(side_effect="read_only"\), or "reversible"'
        ) as raised:
            wrong()
        assert raised.value.__suppress_context__
    model: Any = traced_model
    with pytest.raises(TypeError, match=r'write @traced_model\(model="NAME"\)'):
        model(print)
    with pytest.raises(TypeError) as otherwise:
        bare(side_effect="read_only")(3)
    assert "write" not in str(otherwise.value)


def test_a_contract_is_a_value() -> None:
    """It can't be changed, is equal to its like, and says only what is set."""
    contract = ExecutionContract(max_retries=2, timeout_ms=5)
    assert contract.as_dict() == {"max_retries": 2, "timeout_ms": 5}
    assert contract == ExecutionContract(timeout_ms=5, max_retries=2)
    assert not ExecutionContract()
    with pytest.raises(AttributeError):
        contract.max_retries = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "how",
    [{"exactly_once": True}, {"max_retries": 1}, {"timeout_ms": 5}, {"fallback": look}],
)
def test_a_generator_is_refused_what_it_can_not_keep(how: dict[str, Any]) -> None:
    """A call that comes piece by piece can't be repeated or cut short unseen: that is said at the decorator."""
    with pytest.raises(ContractViolationError, match="generator"):

        @traced_tool(side_effect="read_only", **how)
        def items(x: int) -> Iterator[int]:
            yield x

    with pytest.raises(ContractViolationError, match="generator"):

        @traced_tool(side_effect="reversible", compensate=undo)
        def booked(x: int) -> Iterator[int]:
            yield x


def test_a_tool_can_not_stand_in_for_itself() -> None:
    """The same function under another declaration is no other tool."""

    def find(x: int) -> int:
        return x

    again = traced_tool(side_effect="read_only")(find)
    with pytest.raises(ContractViolationError, match="itself"):
        traced_tool(side_effect="read_only", fallback=again)(find)


def test_the_fallbacks_of_a_fallback_count() -> None:
    """What a read_only tool comes to by way of others is no irreversible one either."""

    @traced_tool(side_effect="reversible", fallback=pay)
    def book_or_pay(x: int) -> int:
        return x

    with pytest.raises(ContractViolationError, match="can't replace"):
        traced_tool(side_effect="read_only", fallback=book_or_pay)(lambda x: x)


def test_the_contract_is_part_of_the_signature_where_one_is_set() -> None:
    """A replay under another contract is a divergence; a tool without one says nothing of it."""

    def tool_with(**how: Any) -> Callable[[int], int]:
        @traced_tool(side_effect="read_only", name="priced", **how)
        def priced(x: int) -> int:
            return x

        return priced

    with record("signed") as run:
        tool_with(max_retries=2)(1)
        look(1)
    calls = entries(run.path, "tool.call")
    assert calls[0]["meta"] == {"contract": {"max_retries": 2}, "side_effect": "read_only"}
    assert calls[1]["meta"] == {"side_effect": "read_only"}
    with pytest.raises(DivergenceError), replay(run.id):
        tool_with(max_retries=3)(1)


# -- at each call ------------------------------------------------------------------------------------------------------------


def violating(effects: Effects) -> list[tuple[str, Callable[[], Any], str, Any]]:
    """Tools with a call that breaks their contract, the field, and what came."""

    @traced_tool(side_effect="irreversible", idempotent_required=True, idempotency_key="order")
    def charge(amount: int, order: str | None = None) -> str:
        return effects.happen("charge")

    @traced_tool(
        side_effect="irreversible", exactly_once=True, idempotent_required=True, idempotency_key=lambda order: order
    )
    def charge_once(order: str) -> str:
        return effects.happen("charge_once")

    @traced_tool(side_effect="reversible", max_cost_units=10, cost_units=lambda pages: pages * 2)
    def crawl(pages: int) -> str:
        return effects.happen("crawl")

    @traced_tool(side_effect="read_only", cost_units=lambda pages: "much")
    def scan(pages: int) -> str:
        return effects.happen("scan")

    @traced_tool(side_effect="read_only", max_cost_units=1, cost_units=lambda pages: 1 / pages)
    def divide(pages: int) -> str:
        return effects.happen("divide")

    @traced_tool(side_effect="irreversible", exactly_once=True)
    def hand_over(thing: object) -> str:
        return effects.happen("hand_over")

    class Desk:
        @traced_tool(side_effect="irreversible", idempotent_required=True, idempotency_key="order")
        def charge(self, order: str | None = None) -> str:
            return effects.happen("desk")

    @traced_tool(side_effect="irreversible", idempotent_required=True, idempotency_key="order")
    async def charge_later(order: str | None) -> str:
        return effects.happen("later")

    @traced_tool(side_effect="read_only", max_cost_units=2, cost_units=lambda x: x)
    def counted(x: int) -> Iterator[str]:
        yield effects.happen("counted")

    return [
        ("no key", lambda: charge(5), "idempotent_required", None),
        ("empty key", lambda: charge_once(""), "idempotent_required", None),
        ("too dear", lambda: crawl(6), "max_cost_units", 12),
        ("no number", lambda: scan(1), "cost_units", "much"),
        ("cost raises", lambda: divide(0), "cost_units", None),
        ("opaque input", lambda: hand_over(object()), "exactly_once", None),
        ("method", lambda: Desk().charge(), "idempotent_required", None),
        ("coroutine", lambda: asyncio.run(charge_later(None)), "idempotent_required", None),
        ("generator", lambda: list(counted(3)), "max_cost_units", 3),
    ]


CASES = range(9)


@pytest.mark.parametrize("case", CASES)
def test_a_call_that_breaks_its_contract_is_not_made(case: int, tmp_path: Path) -> None:
    """The tool is called zero times, contract.violated stands in the log in its place, the caller is told; the same in a replay."""
    effects = Effects(tmp_path)
    what, call, field, actual = violating(effects)[case]

    def program() -> ContractViolationError:
        with pytest.raises(ContractViolationError) as caught:
            call()
        return caught.value

    with record(what) as run:
        error = program()
    assert error.contract == field  # type: ignore[attr-defined]
    if actual is not None:
        assert error.actual == actual  # type: ignore[attr-defined]
    assert error.run_id == run.id
    assert not entries(run.path, "tool.call")
    [violated] = entries(run.path, "contract.violated")
    assert violated["meta"]["info"]["family"] == "tool"
    assert violated["error"]["type"] == "tracekit.errors:ContractViolationError"
    with replay(run.id) as session:
        again = program()
    assert session.report.exact
    assert again.contract == field  # type: ignore[attr-defined]
    assert effects.count() == 0


@pytest.mark.parametrize("case", [0, 2, 3, 4, 6, 7, 8])
def test_outside_a_run_a_call_is_checked_too(case: int, tmp_path: Path) -> None:
    """Without a log there is still no call; ``exactly_once`` alone needs one."""
    effects = Effects(tmp_path)
    _, call, field, _ = violating(effects)[case]
    with pytest.raises(ContractViolationError) as caught:
        call()
    assert caught.value.contract == field  # type: ignore[attr-defined]
    assert effects.count() == 0


def test_a_call_that_keeps_its_contract_is_made_and_says_so_once(tmp_path: Path) -> None:
    """contract.validated is written once per run and tool, and a replay does not ask for it."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="reversible", max_cost_units=10, cost_units=lambda pages: pages * 2)
    def crawl(pages: int) -> str:
        return effects.happen("crawl")

    def program() -> list[str]:
        return [crawl(5), crawl(1)]

    with record("kept") as run:
        came = program()
    [validated] = entries(run.path, "contract.validated")
    assert validated["name"].endswith("crawl")
    assert validated["meta"]["contract"] == {"max_cost_units": 10}
    assert [call["meta"]["info"]["cost_units"] for call in entries(run.path, "tool.call")] == [10, 2]
    with replay(run.id) as session:
        assert program() == came
    assert session.report.exact
    assert effects.count("crawl") == 2


def test_a_refusal_by_key_does_not_show_in_a_replay_of_another_key(tmp_path: Path) -> None:
    """A call that is refused now and was made then is a divergence, and the other way round."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="irreversible", idempotent_required=True, idempotency_key="order")
    def charge(order: str | None) -> str:
        return effects.happen("charge")

    with record("made") as run:
        charge("a")
    with pytest.raises(DivergenceError), replay(run.id):
        charge(None)
    assert effects.count() == 1


# -- a tool's own patterns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["function", "coroutine", "generator"])
def test_a_tools_patterns_hide_in_its_values_alone(shape: str, tmp_path: Path) -> None:
    """Input, output, pieces and errors of that tool are stored without what the patterns match; its caller gets all."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only", redact=r"patient-\d+")
    def function(who: str) -> str:
        effects.happen("asked")
        return f"file of {who}"

    @traced_tool(side_effect="read_only", redact=[r"patient-\d+"])
    async def coroutine(who: str) -> str:
        effects.happen("asked")
        return f"file of {who}"

    @traced_tool(side_effect="read_only", redact=[r"patient-\d+"])
    def generator(who: str) -> Iterator[str]:
        effects.happen("asked")
        yield f"file of {who}"

    @traced_tool(side_effect="read_only", redact=r"patient-\d+")
    def fails(who: str) -> str:
        raise LookupError(f"no {who}")

    def program() -> Any:
        with pytest.raises(LookupError):
            fails("patient-77")
        if shape == "function":
            return function("patient-77")
        if shape == "coroutine":
            return asyncio.run(coroutine("patient-77"))
        return list(generator("patient-77"))

    def recorded() -> Any:
        with record("hidden") as run:
            assert "patient-77" in str(program())
            look(77)
        return run

    with pytest.warns(RuntimeWarning, match="redacted"):
        run = recorded()
    text = Path(run.path).read_text()
    assert "patient-77" not in text
    assert "REDACTED_" in text
    with replay(run.id):
        program()
        look(77)
    assert effects.count("asked") == 1


def test_errors_are_their_public_names() -> None:
    """What a contract raises can be imported from the package."""
    assert StepTimeoutError.code == "step-timeout"
    assert BudgetExceededError.code == "budget-exceeded"


@pytest.mark.parametrize("key", [None, "", "  ", b"", [], {}, (), set()], ids=shown)
def test_an_empty_key_is_none(key: Any) -> None:
    """Nothing, a blank text and an empty container tell no two calls apart; 0 and False do."""

    @traced_tool(side_effect="irreversible", idempotency_key="key", idempotent_required=True)
    def pay(key: Any) -> Any:
        return key

    with pytest.raises(ContractViolationError, match="key"):
        pay(key)
    assert [pay(0), pay(False), pay(" a")] == [0, False, " a"]


def test_functions_of_the_arguments_are_asked_once_a_call(tmp_path: Path) -> None:
    """A key and a cost that are worked out anew each time are one of each for a call: what is counted is what the trace says."""
    keys, costs = iter("abc"), iter((1, 2, 3))

    @traced_tool(
        side_effect="irreversible",
        exactly_once=True,
        idempotent_required=True,
        idempotency_key=lambda order: next(keys),
        cost_units=lambda order: next(costs),
        max_cost_units=2,
    )
    def charge(order: str) -> str:
        return order

    with record("orders", store=tmp_path) as run:
        assert [charge("one"), charge("one")] == ["one", "one"]
    calls = [entry["meta"]["info"] for entry in entries(run.path, "tool.call")]
    assert [(info["idempotency_key"], info["cost_units"]) for info in calls] == [("a", 1), ("b", 2)]
    assert calls[0]["once"] != calls[1]["once"]
