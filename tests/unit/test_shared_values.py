"""One object that is in a result twice is one object in the replay, too."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from tests.support.sharing import structure
from tests.support.tracing import both, entries, of_type, recorded, replayed
from tracekit import NotReplayableError, replay, traced_tool

SECRET = "sk-proj-Zk3vQ9xLw7Rt2NbY5mHdZk3vQ9xLw7Rt2NbY5mHd"


@dataclasses.dataclass
class Basket:
    items: list[Any]
    other: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    items: list[Any]


@attrs.define
class Slotted:
    items: list[Any]
    other: Any


class Packed(msgspec.Struct):
    items: list[Any]
    other: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    items: Any
    other: Any
    _seen: Any = pydantic.PrivateAttr(default=None)


class Pair(NamedTuple):
    one: list[Any]
    two: list[Any]


class Names(list[Any]):
    owner: Any = None


class Failed(Exception):
    def __init__(self, data: list[Any]) -> None:
        super().__init__(data)
        self.data = data


def _twice(make: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    return lambda: make([1])


def _inner() -> Any:
    inner: list[Any] = [1]
    outer = [inner, "x"]
    return {"a": outer, "b": outer, "c": inner}


def _model() -> Any:
    items = [1]
    model = Model(items=None, other=None, more=None)
    model.items, model.other, model.more, model._seen = items, items, items, items  # type: ignore[attr-defined]
    return model


def _names() -> Any:
    names = Names([1])
    names.owner = names2 = [2]
    return [names, names, names2]


#: How a list ``one`` is in a result more than once.
RESULTS: dict[str, Callable[[], Any]] = {
    "a dictionary": _twice(lambda one: {"a": one, "b": one}),
    "a list": _twice(lambda one: [one, one, [one]]),
    "a tuple": _twice(lambda one: (one, (one, 2))),
    "empty": lambda: (lambda one: {"a": one, "b": one})([]),  # type: ignore[misc]
    "dictionaries": lambda: [{"n": 1}] * 3,
    "odd keys": _twice(lambda one: {"a/b~c": one, "$t": one, "é": one}),
    "other keys": _twice(lambda one: {1: one, (2, 3): one}),
    "of another kind beside": _twice(lambda one: {"at": datetime.date(2026, 1, 2), "a": one, "b": one}),
    "inside one another": _inner,
    "a dataclass": _twice(lambda one: Basket(one, one)),
    "dataclasses": lambda: [Basket([1])] * 2,
    "frozen": _twice(lambda one: [Frozen(one), Frozen(one)]),
    "attrs": _twice(lambda one: Slotted(one, one)),
    "msgspec": _twice(lambda one: Packed(one, [one])),
    "pydantic": _model,
    "a named tuple": _twice(lambda one: Pair(one, one)),
    "a namespace": _twice(lambda one: SimpleNamespace(a=one, b=one)),
    "a deque": _twice(lambda one: collections.deque([one, one])),
    "an ordered dictionary": _twice(lambda one: collections.OrderedDict(a=one, b=one)),
    "a default dictionary": _twice(lambda one: collections.defaultdict(list, a=one, b=one)),
    "a subclass": _names,
    "a set": lambda: [{1, 2}] * 2,
    "a bytearray": lambda: (bytearray(b"x"),) * 2,
    "an exception": lambda: (lambda error: [error, error])(Failed([1])),  # type: ignore[misc]
    "large": _twice(lambda one: {"text": "x" * 3000, "a": one, "b": one}),
    "rows": lambda: (lambda tags: [{"n": n, "tags": tags} for n in range(300)])(["new"]),  # type: ignore[misc]
    "a secret": lambda: (lambda one: {"a": one, "b": one})(["x", SECRET]),  # type: ignore[misc]
    "under the name of a secret": lambda: (lambda one: {"password": one, "b": one})(["opensesame17"]),  # type: ignore[misc]
    "not at all": lambda: {"a": [1], "b": [1], "c": ((), ()), "d": [{}, {}]},
    "constants": lambda: (lambda day: [day, day, (1,), (1,)])(datetime.date(2026, 1, 2)),  # type: ignore[misc]
}
ALONE = ("not at all", "constants")


def _as_shape(shape: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """A program that calls a tool of this shape, and returns what the tool made."""

    async def later() -> Any:
        await asyncio.sleep(0)
        return make()

    def pieces() -> Iterator[Any]:
        yield make()

    async def pieces_later() -> AsyncIterator[Any]:
        yield make()

    def raising() -> Any:
        raise Failed(make())

    if shape == "contract":
        called: Any = traced_tool(side_effect="read_only", max_retries=1)(make)
    elif shape == "exactly once":
        called = traced_tool(side_effect="irreversible", exactly_once=True)(lambda: make())
    else:
        body = {
            "function": lambda: make(),
            "coroutine": later,
            "generator": pieces,
            "async generator": pieces_later,
            "raised": raising,
        }[shape]
        called = traced_tool(side_effect="read_only")(body)

    async def taken() -> Any:
        pieces = [piece async for piece in called()]
        return pieces[0]

    def program() -> Any:
        if shape == "coroutine":
            return asyncio.run(called())
        if shape == "generator":
            return next(iter(called()))
        if shape == "async generator":
            return asyncio.run(taken())
        if shape == "raised":
            try:
                called()
            except Failed as error:
                return [error.args[0], error.data]
        return called()

    return program


@pytest.mark.parametrize("what", RESULTS)
def test_the_same_object_is_the_same_in_a_replay(what: str) -> None:
    """Whatever holds it: what the program changes in one place it sees in the other."""
    run, first, second = both(_as_shape("function", RESULTS[what]))
    if "secret" not in what:
        assert structure(second) == structure(first)
    else:
        assert second["b"] is next(iter(second.values()))
    (outcome,) = of_type(run, "tool.return")
    assert ("shared" in outcome.get("meta", {})) == (what not in ALONE)


@pytest.mark.parametrize("shape", ["coroutine", "generator", "async generator", "contract", "exactly once", "raised"])
@pytest.mark.parametrize("what", ["a dictionary", "inside one another", "a dataclass", "rows"])
def test_whatever_kind_of_tool_it_is(shape: str, what: str) -> None:
    """The same of coroutines, pieces of streams, tools with a contract, and of what an exception carries."""
    _, first, second = both(_as_shape(shape, RESULTS[what]))
    assert structure(second) == structure(first)


def test_a_program_that_changes_what_it_was_given_goes_on_as_it_did() -> None:
    """A replay of an unchanged program makes the same steps where it depends on one list being in two places."""

    @traced_tool(side_effect="read_only")
    def plan() -> dict[str, Any]:
        todo = ["a"]
        return {"todo": todo, "view": {"open": todo}}

    @traced_tool(side_effect="read_only")
    def work(name: str) -> str:
        return name.upper()

    def program() -> list[str]:
        made = plan()
        made["todo"].append("b")
        return [work(name) for name in made["view"]["open"]]

    assert both(program)[1:] == (["A", "B"], ["A", "B"])


def test_the_trace_has_each_occurrence_in_full_and_says_that_they_are_one() -> None:
    """The output reads as it would without, and ``meta.shared`` has the pointers."""
    run, _ = recorded(_as_shape("function", RESULTS["inside one another"]))
    (outcome,) = of_type(run, "tool.return")
    assert outcome["output"] == {"a": [[1], "x"], "b": [[1], "x"], "c": [1]}
    assert outcome["meta"]["shared"] == [["/output/a", "/output/b"], ["/output/a/0", "/output/c"]]


def test_an_object_in_the_arguments_and_twice_in_the_result_is_the_callers() -> None:
    """A result with the caller's own list in two places, and a new list in two places, beside each other."""

    @traced_tool(side_effect="read_only")
    def wrap(given: list[Any]) -> dict[str, Any]:
        new = [given, "new"]
        given.append(2)
        return {"a": given, "b": new, "c": new, "d": [given]}

    def program() -> Any:
        mine = [1]
        made = wrap(mine)
        assert [one is mine for one in (made["a"], made["d"][0], made["b"][0])] == [True] * 3
        return structure((mine, made))

    assert len({repr(one) for one in both(program)[1:]}) == 1


def test_what_a_tool_puts_into_its_arguments_twice_is_one_object() -> None:
    """A new list that a tool puts into an argument in two places, and returns."""

    @traced_tool(side_effect="read_only")
    def fill(box: dict[str, Any], rows: list[Any]) -> Any:
        new = ["new"]
        box["a"] = new
        box["b"] = {"deep": new}
        rows.extend([new, [new]])
        return {"got": new}

    def program() -> Any:
        box: dict[str, Any] = {"old": [0]}
        rows: list[Any] = []
        made = fill(box, rows)
        return structure((box, rows, made))

    _, first, second = both(program)
    assert second == first


def test_each_piece_of_a_stream_is_a_value_of_its_own() -> None:
    """A generator that gives one list again and again: each piece is what it was when it was given."""

    @traced_tool(side_effect="read_only")
    def growing() -> Iterator[list[int]]:
        buffer: list[int] = []
        for n in range(3):
            buffer.append(n)
            yield buffer

    def program() -> list[int]:
        return [len(piece) for piece in growing()]

    assert both(program)[1:] == ([1, 2, 3], [1, 2, 3])


def test_a_partial_replay_keeps_it() -> None:
    """A step that is answered in a replay which writes a new run has the same structure in that run, and in its replays."""

    @traced_tool(side_effect="read_only")
    def found() -> Any:
        one = [1]
        return {"a": one, "b": one}

    @traced_tool(side_effect="read_only")
    def live(n: int) -> int:
        return n

    def program() -> Any:
        made = found()
        made["a"].append(live(2))
        return structure(made)

    run, first = recorded(program)
    with replay(run, live={"tool:live"}) as session:
        assert program() == first
    assert session.new_run_id is not None
    again, second = replayed(session.new_run_id, program)
    assert (again.exact, second) == (True, first)


def test_a_cycle_is_still_said() -> None:
    """What contains itself can't be recorded; the run says so, and a replay that needs it stops there."""

    @traced_tool(side_effect="read_only")
    def knot() -> list[Any]:
        made: list[Any] = [1]
        made.append(made)
        return made

    run, _ = recorded(lambda: len(knot()))
    assert any("it contains itself" in warning for warning in run.warnings)
    with pytest.raises(NotReplayableError):
        replayed(run, lambda: len(knot()))


def test_the_input_says_nothing_about_it() -> None:
    """The arguments of a call are the program's own objects in a replay, too: one given twice is no part of the input."""

    @traced_tool(side_effect="read_only")
    def look(one: list[int], other: list[int]) -> int:
        return len(one)

    def program() -> int:
        given = [1]
        return look(given, given)

    run, *_ = both(program)
    assert not [entry for entry in entries(run) if "shared" in entry.get("meta", {})]
