"""What a decorated callable is, whatever its shape: the same to its callers, one step in a run, answered in a replay."""

from __future__ import annotations
import __future__

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import sys
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.tracing import both, entries, of_type, recorded, replayed
from tracekit import InexactReplayError, NotReplayableError, TraceExhaustedError, record, replay, traced_tool
from tracekit.errors import DivergenceError

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    calls.clear()
    yield
    calls.clear()


def tool(function: Any) -> Any:
    return traced_tool(side_effect="read_only")(function)


def once(program: Callable[[], Any]) -> Any:
    """What the program gives in a recording, the same in its replay, where no tool ran."""
    run, first = recorded(program)
    made = list(calls)
    report, second = replayed(run, program)
    assert calls == made, "a tool ran in the replay"
    assert report.exact, report.as_dict()
    assert second == first
    return first


@tool
def add(a: int, b: int = 2, *more: int, c: int = 3, **rest: int) -> int:
    calls.append((a, b))
    return a + b + c + sum(more) + sum(rest.values())


@tool
async def add_later(a: int, b: int = 2) -> int:
    calls.append((a, b))
    await asyncio.sleep(0)
    return a + b


@tool
def count(n: int) -> Iterator[int]:
    for i in range(n):
        calls.append(i)
        yield i


@tool
async def count_later(n: int) -> AsyncIterator[int]:
    for i in range(n):
        calls.append(i)
        await asyncio.sleep(0)
        yield i


@tool
def echo() -> Any:
    """Yields what it is sent, swallows ``ValueError``, and returns how often."""
    item, seen = None, 0
    while item != "stop":
        try:
            item = yield item
        except ValueError as error:
            item = f"caught {error}"
        seen += 1
    return seen


@tool
async def echo_later() -> Any:
    item = None
    while item != "stop":
        try:
            item = yield item
        except ValueError as error:
            item = f"caught {error}"


class Desk:
    def __init__(self, number: int) -> None:
        self.number = number

    @tool
    def book(self, seat: int) -> str:
        calls.append(seat)
        return f"{self.number}/{seat}"

    @classmethod
    @tool
    def outer_class(cls, floor: int) -> str:
        calls.append(floor)
        return f"{cls.__name__} {floor}"

    @tool
    @classmethod
    def inner_class(cls, floor: int) -> str:
        calls.append(floor)
        return f"{cls.__name__} {floor}"

    @staticmethod
    @tool
    def outer_static(floor: int) -> int:
        calls.append(floor)
        return floor

    @tool
    @staticmethod
    def inner_static(floor: int) -> int:
        calls.append(floor)
        return floor

    @tool
    async def later(self, seat: int) -> int:
        calls.append(seat)
        return seat

    @tool
    def each(self, seats: int) -> Iterator[int]:
        yield from range(seats)

    @property
    @tool
    def free(self) -> int:
        return self.number


class Corner(Desk):
    def book(self, seat: int) -> str:
        return "corner " + super().book(seat)


# -- what it is ---------------------------------------------------------------------------------------------------------------


def test_a_function_stays_what_it_is() -> None:
    """A decorated callable keeps its signature, name, annotations, documentation and kind."""

    def plain(a: int, b: int = 2, *more: int, c: int = 3, **rest: int) -> int:
        """Adds."""
        return 0

    traced = tool(plain)
    assert inspect.signature(traced) == inspect.signature(plain)
    assert typing.get_type_hints(traced) == typing.get_type_hints(plain)
    assert (traced.__name__, traced.__qualname__, traced.__doc__) == (plain.__name__, plain.__qualname__, "Adds.")
    assert traced.__module__ == __name__
    assert inspect.unwrap(traced) is plain
    assert inspect.isfunction(traced)


def test_its_annotations_may_name_what_is_defined_later() -> None:
    """As in a function without the decorator: Python 3.14 evaluates them when they are asked for; before, a program asks for that."""
    asked_for = 0 if sys.version_info >= (3, 14) else __future__.annotations.compiler_flag
    names: dict[str, Any] = {"tool": tool, "__name__": __name__}
    source = "@tool\ndef sell(seat: Seat, *others: Seat) -> Seat:\n    return seat\nclass Seat(int): ..."
    exec(compile(source, "seats.py", "exec", asked_for, dont_inherit=True), names)
    assert once(lambda: names["sell"](seat=3)) == 3


def test_each_shape_is_seen_as_what_it_is() -> None:
    """``inspect`` tells coroutine functions, generators and async generators as before decorating."""
    assert inspect.iscoroutinefunction(add_later)
    assert inspect.iscoroutinefunction(Desk(1).later)
    assert inspect.isgeneratorfunction(count)
    assert inspect.isasyncgenfunction(count_later)
    assert not inspect.iscoroutinefunction(add)
    with record("kinds"):
        generator, coroutine = count(1), add_later(1)
        assert inspect.isgenerator(generator)
        assert inspect.iscoroutine(coroutine)
        assert (coroutine.__name__, generator.__qualname__) == ("add_later", "count")
        coroutine.close()


def test_what_has_its_object_already_is_one_step_too() -> None:
    """A bound method of an ordinary class, plain, wrapped, async, a generator, a builtin: its arguments are those of the call."""

    def loud(function: Any) -> Any:
        @functools.wraps(function)
        def louder(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return louder

    class Shop:
        def sell(self, what: str, count: int = 1) -> str:
            calls.append(what)
            return f"{count} {what}"

        async def sell_later(self, what: str, count: int = 1) -> str:
            await asyncio.sleep(0)
            return self.sell(what, count)

        def sell_each(self, what: str, count: int = 1) -> Iterator[str]:
            for _ in range(count):
                yield self.sell(what)

        sell_loudly = loud(sell)

        @classmethod
        def open(cls, what: str, count: int = 1) -> str:
            return cls().sell(what, count)

    shop, stock = Shop(), {"tea": "3 tea"}
    agreed = traced_tool(side_effect="irreversible", exactly_once=True)(shop.sell)
    for bound in (shop.sell, shop.sell_loudly, shop.open, Shop.open, agreed):
        sell = bound if bound is agreed else tool(bound)
        assert once(lambda sell=sell: [sell("tea"), sell(what="tea", count=1)]) == ["1 tea", "1 tea"]
        run, _ = recorded(lambda sell=sell: sell("tea"))
        assert of_type(run, "tool.call")[0]["input"] == {"what": "tea", "count": 1}
    assert once(lambda: asyncio.run(tool(shop.sell_later)("tea", 3))) == "3 tea"
    assert once(lambda: list(tool(shop.sell_each)("tea", 2))) == ["1 tea", "1 tea"]
    assert once(lambda: tool(stock.get)("tea")) == "3 tea"
    assert once(lambda: tool(len)("tea")) == 3


def test_pickling_and_copying_are_those_of_functions() -> None:
    """A tool pickles by its name, a bound one with its object, and copies to itself: process pools and deep copies work."""
    assert pickle.loads(pickle.dumps(add)) is add
    bound = pickle.loads(pickle.dumps(Desk(3).book))
    assert bound(4) == "3/4"
    assert pickle.loads(pickle.dumps(Desk.outer_static))(5) == 5
    assert pickle.loads(pickle.dumps(Desk.inner_class))(6) == "Desk 6"
    assert pickle.loads(pickle.dumps(Corner.inner_class))(6) == "Corner 6"
    assert copy.copy(add) is add
    assert copy.deepcopy({"tools": [add]})["tools"][0] is add
    desk = Desk(7)
    twin = copy.deepcopy([desk, desk.book])
    assert twin[1].__self__ is twin[0]
    assert twin[1](1) == "7/1"


def test_outside_a_run_it_is_called_straight() -> None:
    """With no run open a tool of any shape does what it did, and nothing is written."""

    async def later() -> list[Any]:
        return [await add_later(1), [i async for i in count_later(2)], await Desk(1).later(4)]

    assert add(1) == 6
    assert list(count(3)) == [0, 1, 2]
    assert asyncio.run(later()) == [3, [0, 1], 4]
    assert Desk(2).book(3) == "2/3"


# -- arguments ----------------------------------------------------------------------------------------------------------------


def test_positional_and_keyword_calls_are_one_with_defaults_filled_in() -> None:
    """The input of a step is the arguments by name; a call written the other way replays the same step."""
    run, _ = recorded(lambda: [add(1, 2), add(a=1), add(1, 2, 9, c=4, z=5)])
    inputs = [entry["input"] for entry in of_type(run, "tool.call")]
    plain = {"a": 1, "b": 2, "more": {"$t": "tuple", "v": []}, "c": 3, "rest": {}}
    assert inputs[:2] == [plain, plain]
    assert inputs[2] == {"a": 1, "b": 2, "more": {"$t": "tuple", "v": [9]}, "c": 4, "rest": {"z": 5}}
    report, _ = replayed(run, lambda: [add(b=2, a=1), add(1, c=3), add(1, 2, 9, z=5, c=4)])
    assert report.exact


def test_self_and_cls_are_left_out_in_every_way_a_method_is_called() -> None:
    """Methods, class methods and static methods, decorated on either side, called on object, class or subclass: one input."""

    def program() -> list[Any]:
        desk = Desk(9)
        bound = desk.book
        return [
            desk.book(1), bound(seat=1), Desk.book(desk, 1),
            desk.outer_class(2), Desk.outer_class(2), desk.inner_class(2), Desk.inner_class(floor=2),
            desk.outer_static(2), Desk.outer_static(2), desk.inner_static(2), Desk.inner_static(floor=2),
            list(desk.each(2)), Desk(5).free,
        ]  # fmt: skip

    values = once(program)
    assert values[:3] == ["9/1"] * 3
    assert values[3:7] == ["Desk 2"] * 4
    assert values[7:] == [2, 2, 2, 2, [0, 1], 5]
    run, _ = recorded(program)
    inputs = [entry["input"] for entry in of_type(run, "tool.call")]
    assert inputs == [{"seat": 1}] * 3 + [{"floor": 2}] * 8 + [{"seats": 2}, {}]


def test_a_subclass_calls_the_tool_that_it_overrides() -> None:
    """``super().method()`` reaches the decorated method of the base, and the class is the caller's."""
    assert once(lambda: [Corner(1).book(2), Corner.outer_class(3), Corner.inner_class(3)]) == [
        "corner 1/2",
        "Corner 3",
        "Corner 3",
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: add(),
        lambda: add(1, a=2),
        lambda: add_later(1, 2, 3),
        lambda: count(),
        lambda: count_later(1, 2),
        lambda: Desk(1).book(),
        lambda: Desk.inner_class(1, 2),
        lambda: Desk.outer_static(nope=1),
    ],
)
def test_a_wrong_call_is_refused_by_python_and_records_nothing(call: Callable[[], Any]) -> None:
    """A call that does not fit the signature raises Python's own ``TypeError`` at once, and no step is written."""
    with pytest.raises(TypeError) as outside:
        call()
    with record("wrong") as run, pytest.raises(TypeError) as inside:
        call()
    assert str(inside.value) == str(outside.value)
    assert "bind" not in str(inside.value)
    assert not of_type(run, "tool.call", "tool.error")
    assert not calls


def test_a_decorator_that_passes_other_arguments_on_is_still_captured() -> None:
    """Where the shown signature is not the one that is called, the call is a step all the same: never live in a replay."""

    def with_connection(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function("connection", *args, **kwargs)

        return call

    @tool
    @with_connection
    def save(connection: str, row: int) -> str:
        calls.append(row)
        return f"{connection} {row}"

    assert once(lambda: save(3)) == "connection 3"
    assert calls == [3]


def test_an_argument_that_the_tool_changes_is_recorded_as_it_was_at_the_call() -> None:
    """What a tool does to a list it is given is in neither the recorded input nor the comparison of a replay, but in its outcome."""

    @tool
    def drain(items: list[int]) -> int:
        total = sum(items)
        items.clear()
        return total

    run, _ = recorded(lambda: drain([1, 2, 3]))
    assert of_type(run, "tool.call")[0]["input"] == {"items": [1, 2, 3]}
    report, value = replayed(run, lambda: drain([1, 2, 3]))
    assert (report.exact, value) == (True, 6)


def test_a_result_that_the_caller_changes_later_is_recorded_as_it_was() -> None:
    """The output is on the log when the caller gets it, so what the caller does to it changes no record."""

    @tool
    def rows() -> list[int]:
        return [1]

    def program() -> list[int]:
        found = rows()
        found.append(2)
        return found

    assert once(program) == [1, 2]


# -- shapes -------------------------------------------------------------------------------------------------------------------


def test_coroutines_are_answered_without_running() -> None:
    """A coroutine tool is one step, awaited directly, in a task or through ``gather``, and its body never runs in a replay."""

    async def main() -> list[Any]:
        task = asyncio.create_task(add_later(3))
        return [
            await add_later(1),
            await add_later(b=1, a=1),
            await task,
            *await asyncio.gather(add_later(5), add_later(6)),
        ]

    assert once(lambda: asyncio.run(main())) == [3, 2, 5, 7, 8]


def test_a_coroutine_that_is_never_awaited_is_no_step() -> None:
    """A step begins when its coroutine starts."""
    with record("unused") as run:
        add_later(1).close()
    assert not of_type(run, "tool.call")


def test_generators_are_steps_from_their_first_item() -> None:
    """Nothing is recorded before the first ``next``; then one chunk an item, and the end."""

    def program() -> list[int]:
        unused = count(9)
        items = list(count(3))
        unused.close()
        return items

    assert once(program) == [0, 1, 2]
    run, _ = recorded(program)
    assert [entry["type"] for entry in entries(run)][1:-1] == ["tool.call", *["tool.chunk"] * 3, "tool.return"]


@pytest.mark.parametrize(("recorded_items", "items"), [(3, 1), (1, 3)])
def test_a_stream_that_is_left_elsewhere_is_no_exact_replay(recorded_items: int, items: int) -> None:
    """A replay that leaves a stream earlier than the recorded program is inexact; one that reads on fails."""

    def program(many: int) -> list[int]:
        return [item for item, _ in zip(count(5), range(many), strict=False)]

    run, _ = recorded(lambda: program(recorded_items))
    wrong = TraceExhaustedError if items > recorded_items else InexactReplayError
    with pytest.raises(wrong, match=r"more of a generator than it took|was never requested"), replay(run):
        program(items)


def test_values_sent_and_thrown_into_a_generator_belong_to_its_chunks() -> None:
    """``send`` and ``throw`` reach the live generator, are on the log, and are answered from there; the return value too."""

    def program() -> list[Any]:
        generator, out = echo(), []
        out.append(next(generator))
        out.append(generator.send("one"))
        out.append(generator.throw(ValueError("two")))
        try:
            generator.send("stop")
        except StopIteration as stop:
            out.append(stop.value)
        return out

    assert once(program) == [None, "one", "caught two", 3]
    run, _ = recorded(program)
    assert [entry.get("meta") for entry in of_type(run, "tool.chunk", "tool.return")] == [
        None,
        {"sent": "one"},
        {"thrown": "ValueError: two"},
        {"sent": "stop"},
    ]


@pytest.mark.parametrize("other", ["send", "throw", "next"])
def test_another_value_put_into_a_generator_is_a_divergence(other: str) -> None:
    """What the program sends or throws into a generator is compared with the recording."""

    def program(change: str | None) -> None:
        generator = echo()
        next(generator)
        if change == "throw":
            generator.throw(ValueError("x"))
        elif change == "next":
            next(generator)
        else:
            generator.send("different" if change else "same")
        generator.close()

    run, _ = recorded(lambda: program(None))
    with pytest.raises(DivergenceError, match="generator"), replay(run):
        program(other)


def test_a_secret_sent_into_a_generator_is_not_stored_and_still_matches() -> None:
    """What is sent goes through redaction like any other value, in the record and in the comparison."""
    secret = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2

    @tool
    def length() -> Any:
        item = "nothing"
        while True:
            item = yield len(item)

    def program() -> Any:
        generator = length()
        next(generator)
        value = generator.send(secret)
        generator.close()
        return value

    run, value = recorded(program)
    assert value == len(secret)
    with open(run.path, encoding="utf-8") as file:
        assert secret not in file.read()
    report, _ = replayed(run, program)
    assert report.exact


def test_a_generator_that_is_left_early_keeps_what_was_delivered() -> None:
    """``close``, ``break`` and garbage collection end a generator where it is; replaying no further is exact."""

    def program() -> list[int]:
        out = []
        for item in count(5):
            out.append(item)
            if item == 1:
                break
        closed = count(5)
        out.append(next(closed))
        closed.close()
        gc.collect()
        return out

    assert once(program) == [0, 1, 0]


@pytest.mark.parametrize("how", ["close", "forget"])
def test_asking_a_replayed_generator_for_more_than_was_taken_is_exhaustion(how: str) -> None:
    """Of a generator that was left early, nobody knows what came next."""

    def program(n: int) -> list[int]:
        generator = count(5)
        out = [next(generator) for _ in range(n)]
        if how == "close":
            generator.close()
        return out

    run, _ = recorded(lambda: program(2))
    with pytest.raises(TraceExhaustedError), replay(run):
        program(3)


def test_a_generator_left_open_at_the_end_of_the_run_is_no_trouble() -> None:
    """Forgetting a generator after the run has ended writes nothing and warns of nothing."""
    with record("open") as run:
        generator = count(5)
        assert next(generator) == 0
    del generator
    gc.collect()
    with replay(run) as session:
        generator = count(5)
        assert next(generator) == 0
    assert session.report.exact
    del generator
    gc.collect()


def test_a_generator_that_raises_does_so_at_the_same_item() -> None:
    """The items before an error are delivered, then the error itself."""

    @tool
    def some() -> Iterator[int]:
        yield 1
        raise LookupError("no more", 2)

    def program() -> list[Any]:
        out: list[Any] = []
        try:
            for item in some():
                out.append(item)
        except LookupError as error:
            out.append((type(error), error.args))
        return out

    assert once(program) == [1, (LookupError, ("no more", 2))]


def test_async_generators_take_what_is_sent_and_thrown() -> None:
    """``asend``, ``athrow`` and ``aclose`` of an async generator reach it live and are answered in a replay."""

    async def main() -> list[Any]:
        generator = echo_later()
        out = [await anext(generator), await generator.asend("one"), await generator.athrow(ValueError("two"))]
        await generator.aclose()
        out += [item async for item in count_later(3)]
        async for item in count_later(5):
            out.append(item)
            if item == 1:
                break
        return out

    assert once(lambda: asyncio.run(main())) == [None, "one", "caught two", 0, 1, 2, 0, 1]


def test_an_async_generator_that_raises_does_so_at_the_same_item() -> None:
    """An error in an async generator comes after the items before it."""

    @tool
    async def some() -> AsyncIterator[int]:
        yield 1
        raise LookupError("no more")

    async def main() -> list[Any]:
        out: list[Any] = []
        try:
            async for item in some():
                out.append(item)
        except LookupError as error:
            out.append(str(error))
        return out

    assert once(lambda: asyncio.run(main())) == [1, "no more"]


def test_callable_objects_partials_and_builtins_are_tools_too() -> None:
    """An object with ``__call__`` (a coroutine one too), a ``functools.partial``, a built-in and a lambda."""

    class Greeter:
        def __call__(self, name: str) -> str:
            calls.append(name)
            return f"hello {name}"

    class LateGreeter:
        async def __call__(self, name: str) -> str:
            calls.append(name)
            return f"later {name}"

    greet, late = tool(Greeter()), tool(LateGreeter())
    part = tool(functools.partial(add.__wrapped__, 1, c=0))
    biggest, short = tool(max), tool(lambda x: x * 2)

    def program() -> list[Any]:
        return [greet("Ann"), asyncio.run(late("Bob")), part(5), biggest(3, 4), short(4)]

    assert once(program) == ["hello Ann", "later Bob", 6, 4, 8]
    run, _ = recorded(program)
    names = [entry["name"].rpartition(".")[2] for entry in of_type(run, "tool.call")]
    assert names == ["Greeter", "LateGreeter", "add", "max", "<lambda>"]


def test_a_callable_object_keeps_what_else_it_does() -> None:
    """A tool made of an object with ``len``, ``[]``, ``with``, iteration and truth still has them; attributes are the object's."""

    class Shelf:
        def __init__(self) -> None:
            self.items = [3, 1]

        def __call__(self, more: int) -> int:
            self.items.append(more)
            return len(self.items)

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, at: int) -> int:
            return self.items[at]

        def __bool__(self) -> bool:
            return False

        def __enter__(self) -> Shelf:
            return self

        def __exit__(self, *error: object) -> None:
            self.items.clear()

    shelf = tool(Shelf())
    assert (len(shelf), shelf[0], list(shelf), sorted(shelf), bool(shelf)) == (2, 3, [3, 1], [1, 3], False)
    with shelf as inside:
        assert (shelf(5), inside.items) == (3, [3, 1, 5])
    shelf.label = "top"
    assert (shelf.items, inside.label, isinstance(shelf, Shelf)) == ([], "top", True)
    del shelf.label
    assert not hasattr(inside, "label")


def test_attributes_set_on_a_tool_are_those_of_its_function() -> None:
    """A tool's name, documentation, defaults and other attributes can be set and deleted, and equal those of the function."""

    def look(order: int = 1) -> int:
        return order

    traced = tool(look)
    traced.__name__, traced.__doc__, traced.__defaults__, traced.note = "seek", "Seeks.", (7,), "n"
    assert (look.__name__, look.__doc__, look(), vars(look)) == ("seek", "Seeks.", 7, {"note": "n"})
    assert (traced(), traced.note, vars(traced)) == (7, "n", {"note": "n"})
    assert (traced == look, look == traced, {look: 1}[traced]) == (True, True, 1)
    del traced.note
    assert not hasattr(look, "note")
    with pytest.raises(AttributeError):
        Desk(4).book.note = "n"


def test_a_method_taken_from_its_class_binds_to_another_object() -> None:
    """A tool that is assigned to another class, or bound with ``__get__``, has its object as the first argument, as a function would."""

    class Other:
        number = 5
        book = Desk.book

    desk = Desk(4)
    assert Desk.book.__get__(desk)(2) == desk.book(2) == Desk.book(desk, 2)
    assert (Other().book(2), Other.book.__get__(desk)(2)) == ("5/2", "4/2")


def test_a_plain_function_may_return_a_coroutine_or_a_generator() -> None:
    """What a plain function hands back unfinished is captured to its end: decorators and factories return such things."""

    def passes_on(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    @tool
    @passes_on
    async def late(n: int) -> int:
        calls.append(n)
        await asyncio.sleep(0)
        return n

    @tool
    def makes(n: int) -> Awaitable[int]:
        async def inner() -> int:
            calls.append(n)
            return n * 2

        return inner()

    @tool
    @passes_on
    def items(n: int) -> Iterator[int]:
        calls.append(n)
        yield from range(n)

    @tool
    @passes_on
    async def late_items(n: int) -> AsyncIterator[int]:
        calls.append(n)
        yield n

    async def main() -> list[Any]:
        return [
            await late(1),
            await makes(2),
            list(items(2)),
            [i async for i in late_items(3)],
            *await asyncio.gather(late(4)),
        ]

    assert once(lambda: asyncio.run(main())) == [1, 4, [0, 1], [3], 4]


def test_a_function_that_hides_a_coroutine_or_generator_is_taken_for_what_it_returns() -> None:
    """A wrapper that runs the coroutine, or makes a context manager of a generator, is a plain function to its callers."""

    def runs(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return asyncio.run(function(*args))

        return call

    @tool
    @runs
    async def sync(n: int) -> int:
        return n + 1

    assert once(lambda: sync(1)) == 2

    @tool
    @contextmanager
    def opened() -> Iterator[int]:
        yield 1

    with pytest.warns(RuntimeWarning, match="not serialised"), record("cm"), opened() as value:
        assert value == 1


# -- errors -------------------------------------------------------------------------------------------------------------------


class OrderError(Exception):
    def __init__(self, order: str, *, cents: int) -> None:
        super().__init__(f"order {order}: {cents} cents")
        self.order = order
        self.cents = cents


@tool
def fails() -> None:
    calls.append("fails")
    try:
        int("x")
    except ValueError as cause:
        error = OrderError("o-1", cents=7)
        error.add_note("tried twice")
        raise error from cause


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def test_an_error_comes_back_as_itself() -> None:
    """Type, text, ``args``, attributes, cause and notes of a recorded exception are those that were raised."""
    _, first, second = both(lambda: caught(fails))
    for error in (first, second):
        assert type(error) is OrderError
        assert str(error) == "order o-1: 7 cents"
        assert error.args == ("order o-1: 7 cents",)
        assert (error.order, error.cents) == ("o-1", 7)
        assert type(error.__cause__) is ValueError
        assert error.__notes__ == ["tried twice"]
    assert calls == ["fails"]
    assert second is not first


@pytest.mark.parametrize(
    ("raised", "comes_back"),
    [
        (KeyboardInterrupt("stop"), KeyboardInterrupt),
        (asyncio.CancelledError("left"), asyncio.CancelledError),
        (SystemExit(3), SystemExit),
        (ExceptionGroup("both", [ValueError("a"), KeyError("b")]), ExceptionGroup),
        (FileNotFoundError(2, "No such file", "/nowhere"), FileNotFoundError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeDecodeError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_of_every_kind_are_steps(raised: BaseException, comes_back: type[BaseException]) -> None:
    """Interrupts, cancellations, exits and groups are recorded as the tool's outcome, reach the caller, and come back."""

    @tool
    def bad() -> None:
        raise raised

    run, first = recorded(lambda: caught(bad))
    assert first is raised
    report, second = replayed(run, lambda: caught(bad))
    assert report.exact
    assert type(second) is comes_back
    assert str(second) == str(raised)


def test_a_cancelled_tool_is_cancelled_in_the_replay_too() -> None:
    """Cancelling the task of a running tool is recorded as its outcome and happens again."""

    @tool
    async def endless() -> None:
        await asyncio.Event().wait()

    async def main() -> str:
        task = asyncio.create_task(endless())
        await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "finished"

    assert once(lambda: asyncio.run(main())) == "cancelled"


# -- what can't be recorded ---------------------------------------------------------------------------------------------------


class Handle:
    """Nothing that could be written down."""

    def __init__(self) -> None:
        self.inside = inspect.currentframe()

    def __reduce__(self) -> Any:
        raise TypeError("no")


def test_a_result_that_cant_be_encoded_reaches_the_caller_untouched() -> None:
    """The caller gets the very object, the step is marked, the run warns, and a replay says so: never a stand-in."""
    handle = open  # a built-in function: nothing rebuilds it from a trace

    @tool
    def opened() -> Any:
        return {"handle": handle, "n": 1}

    with pytest.warns(RuntimeWarning, match="not serialised"):
        run, first = recorded(opened)
    assert first["handle"] is handle
    assert of_type(run, "tool.return")[0]["meta"]["notes"]
    with pytest.raises(NotReplayableError) as failure, replay(run):
        opened()
    assert failure.value.step == of_type(run, "tool.call")[0]["seq"]
    assert __file__ in str(failure.value)


def test_an_argument_that_cant_be_encoded_is_marked_and_still_matches() -> None:
    """An opaque input is recorded by type and description, without addresses, and matches another object like it."""

    class Client:
        __slots__ = ("lock",)

        def __init__(self) -> None:
            self.lock = gc

    @tool
    def use(client: Client, n: int) -> int:
        return n

    run, _ = recorded(lambda: use(Client(), 1))
    assert "the input client of tool" in run.warnings[0]
    report, value = replayed(run, lambda: use(Client(), 1))
    assert (report.exact, value) == (True, 1)
    with pytest.raises(DivergenceError), replay(run):
        use(Client(), 2)


def test_an_opaque_argument_that_shows_its_identity_matches_in_another_process() -> None:
    """Addresses and ``id()`` in a ``repr`` differ from process to process; they do not count, other differences do."""

    class Session:
        def __init__(self, who: str) -> None:
            self.who = who
            self.me = self

        def __repr__(self) -> str:
            return f"<Session {self.who} id={id(self)} {hex(id(self))}>"

        __getstate__ = None  # not to be taken apart

    keep = []

    @tool
    def use(session: Any) -> int:
        return 1

    def program(who: str) -> int:
        keep.append(Session(who))
        return int(use({"s": keep[-1].__repr__}))

    run, _ = recorded(lambda: program("ann"))
    assert "opaque" in run.warnings[0]
    report, _ = replayed(run, lambda: program("ann"))
    assert report.exact
    with pytest.raises(DivergenceError), replay(run):
        program("bob")


# -- declaring ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["safe", None, ""])
def test_a_side_effect_class_must_be_one_of_three(wrong: Any) -> None:
    """A tool is declared read_only, reversible or irreversible; anything else is an error where it is written."""
    with pytest.raises(ValueError, match="read_only"):
        traced_tool(side_effect=wrong)


def test_what_is_no_tool_is_refused() -> None:
    """A class or a value can't be decorated."""
    with pytest.raises(TypeError, match="a tool must be"):
        tool(Desk)
    with pytest.raises(TypeError, match="a tool must be"):
        tool(3)
    with pytest.raises(ValueError, match="empty"):
        traced_tool(side_effect="read_only", name="")


def test_the_configuration_of_a_tool_is_that_of_its_declaration() -> None:
    """Changing the dictionary after the decorator changes neither what is recorded nor what is compared."""
    config: dict[str, Any] = {"region": "eu", "limits": [1]}

    @traced_tool(side_effect="read_only", version="2", config=config)
    def look() -> int:
        return 1

    run, _ = recorded(look)
    config["limits"].append(2)
    assert of_type(run, "tool.call")[0]["meta"] == {
        "version": "2",
        "config": {"region": "eu", "limits": [1]},
        "side_effect": "read_only",
    }
    report, _ = replayed(run, look)
    assert report.exact


def test_a_secret_in_a_tools_configuration_is_not_stored() -> None:
    """Version and configuration go through redaction too, and match afterwards."""
    secret = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2

    @traced_tool(side_effect="read_only", config={"key": secret})
    def look(n: int) -> int:
        return n

    run, _ = recorded(lambda: [look(1), look(2)])
    with open(run.path, encoding="utf-8") as file:
        assert secret not in file.read()
    report, _ = replayed(run, lambda: [look(1), look(2)])
    assert report.exact


class _Echo:
    """An awaitable that answers what its awaiter sends and throws."""

    def __await__(self) -> Generator[Any, Any, list[str]]:
        seen = []
        given: Any = "first"
        while given != "last":
            try:
                given = yield given
                seen.append(f"sent {given}")
            except KeyError as error:
                given = error.args[0]
                seen.append(f"thrown {given}")
        return seen


async def _raises_later() -> None:
    try:
        await _Echo()
    except ValueError:
        pass
    raise LookupError("after the other was handled")


def _by_hand(made: Any, *gives: Any) -> list[Any]:
    """What a coroutine yields, returns and raises when a driver of its own sends and throws."""
    got: list[Any] = []
    for give in gives:
        try:
            got.append(made.throw(give) if isinstance(give, Exception) else made.send(give))
        except StopIteration as stop:
            got.append(stop.value)
        except Exception as error:
            got += [repr(error), repr(error.__context__)]
    return got


def test_a_coroutine_gets_what_its_driver_sends_and_throws_as_without_a_run() -> None:
    """An async tool is driven as the bare function is: values and exceptions reach what it awaits, and its own exception
    has no other context than there."""

    async def echo() -> list[str]:
        return await _Echo()

    gives: list[tuple[Any, tuple[Any, ...]]] = [
        (echo, (None, "one", KeyError("two"), None, "three", "last")),
        (echo, (None, KeyError("one"), KeyError("two"), "last")),
        (echo, (None, KeyError("last"))),
        (echo, (None, ZeroDivisionError())),
        (_raises_later, (None, ValueError())),
        (_raises_later, (None, "one", ValueError())),
    ]
    for function, given in gives:
        bare = _by_hand(function(), *given)
        with record():
            recorded = _by_hand(traced_tool(side_effect="read_only")(function)(), *given)
        assert recorded == bare
