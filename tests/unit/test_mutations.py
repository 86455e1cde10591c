"""What a tool changes in its arguments: its caller's own objects change in the replay as they did, and are what comes back."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import random
from array import array
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import jsonschema
import msgspec
import numpy
import pydantic
import pytest

from tests.support.cut import cut
from tests.support.plain_writer import chained
from tests.support.tracing import entries, of_type, recorded, replayed
from tracekit import InexactReplayError, NotReplayableError, replay, resume, traced_tool
from tracekit._journal.entry import load_schema

ran: list[str] = []
VALID = jsonschema.Draft202012Validator(load_schema())


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def tool(function: Any) -> Any:
    return traced_tool(side_effect="read_only")(function)


def same_in_both(program: Callable[[], Any]) -> Any:
    """What ``program`` comes to in a recording and in an exact replay, in which no tool runs."""
    run, first = recorded(program)
    made = list(ran)
    assert not [one for one in run.warnings if "recorded" in one]
    report, second = replayed(run, program)
    assert report.exact, report.as_dict()
    assert ran == made, "a tool ran in the replay"
    assert second == first
    for entry in entries(run):
        VALID.validate(entry)
    return first


@dataclasses.dataclass
class Order:
    lines: list[str]
    paid: bool = False
    about: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    lines: list[str]


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    name: str
    tags: list[str] = []
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)


@attrs.define
class Slotted:
    items: list[int]
    total: int = 0


class Packed(msgspec.Struct):
    items: list[int]
    total: int = 0


class Basket(list[str]):
    """A list with an attribute of its own."""

    owner = ""


def _append(value: Any) -> None:
    value.append("x")


def _model(value: Model) -> None:
    value.name = "other"
    value.tags.append("new")
    value._seen.append(7)
    value.more = {"a": [1]}  # type: ignore[attr-defined]


def _basket(value: Basket) -> None:
    value.insert(0, "first")
    value.owner = "me"


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "append": (lambda: [1, 2], _append),
    "empty a list": (lambda: [1, 2], list.clear),
    "insert": (lambda: [[1], [2]], lambda v: v.insert(0, [0])),
    "sort": (lambda: [3, 1, 2], list.sort),
    "reverse": (lambda: [[1], [2], [3]], list.reverse),
    "one becomes true": (lambda: [1, 1.5], lambda v: v.__setitem__(0, True)),
    "inner": (lambda: [{"a": [1]}], lambda v: v[0]["a"].append(2)),
    "not a number": (lambda: [1.0], lambda v: v.append(float("nan"))),
    "put": (lambda: {"a": 1}, lambda v: v.update(b=2, a=3)),
    "drop": (lambda: {"a": 1, "b": 2}, lambda v: v.pop("a")),
    "another order": (lambda: {"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a"))),
    "a key of another kind": (lambda: {"a": 1}, lambda v: v.__setitem__(3, [4])),
    "odd keys": (lambda: {"$t": [1], "a/b~c": [2]}, lambda v: (v["$t"].append(3), v["a/b~c"].append(4))),
    "numbered keys": (lambda: {1: [1], 2: [2]}, lambda v: (v[2].append(3), v.pop(1))),
    "set": (lambda: {1, 2}, lambda v: (v.add(3), v.discard(1))),
    "bytearray": (lambda: bytearray(b"abc"), lambda v: v.extend(b"d")),
    "deque": (lambda: deque([[1], [2]], maxlen=5), lambda v: (v.appendleft([0]), v[1].append(9))),
    "ordered": (lambda: OrderedDict(a=[1], b=[2]), lambda v: (v.move_to_end("a"), v["a"].append(3))),
    "default": (lambda: defaultdict(list, a=[1]), lambda v: v["b"].append(2)),
    "counter": (lambda: Counter("aab"), lambda v: v.update("bbb")),
    "tuple of lists": (lambda: ([1], [2]), lambda v: v[1].append(3)),
    "namespace": (lambda: SimpleNamespace(a=[1], b=2), lambda v: (v.a.append(2), delattr(v, "b"))),
    "dataclass": (lambda: Order(["a"]), lambda v: (v.lines.append("b"), setattr(v, "paid", True))),
    "frozen": (lambda: Frozen(["a"]), lambda v: v.lines.append("b")),
    "pydantic": (lambda: Model(name="n"), _model),
    "attrs": (lambda: Slotted([1]), lambda v: (v.items.append(2), setattr(v, "total", 3))),
    "msgspec": (lambda: Packed([1]), lambda v: (v.items.append(2), setattr(v, "total", 3))),
    "subclass": (lambda: Basket(["a"]), _basket),
    "array": (lambda: numpy.zeros(3), lambda v: v.__setitem__(1, 5.0)),
    "of many kinds": (lambda: [Order(["a"]), {"s": {1}}], lambda v: (v[0].lines.clear(), v[1]["s"].add(2))),
}


def _shown(value: Any) -> Any:
    """A value as something that compares: with the parts that its own comparison leaves out."""
    if isinstance(value, Model):
        return (value.model_dump(), value._seen, value.model_fields_set)
    if isinstance(value, Basket):
        return (list(value), value.owner)
    return repr(value)


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("shape", ["function", "coroutine", "generator", "contract"])
def test_what_a_tool_changes_changes_in_the_replay(what: str, shape: str) -> None:
    """Whatever kind of value it is and however it is changed, the very object that the caller has is the changed one afterwards."""
    make, change = CHANGES[what]

    def work(value: Any) -> str:
        ran.append(what)
        change(value)
        return "done"

    async def work_later(value: Any) -> str:
        await asyncio.sleep(0)
        return work(value)

    def work_twice(value: Any) -> Iterator[str]:
        yield "first"
        yield work(value)

    if shape == "contract":
        called: Any = traced_tool(side_effect="read_only", max_retries=1)(work)
    else:
        called = tool({"function": work, "coroutine": work_later, "generator": work_twice}[shape])

    def program() -> Any:
        value = make()
        again = value
        made = called(value)
        if shape == "coroutine":
            assert asyncio.run(made) == "done"
        elif shape == "generator":
            assert list(made) == ["first", "done"]
        assert again is value
        return _shown(value)

    first = same_in_both(program)
    expected = make()
    change(expected)
    assert first == _shown(expected)


def test_the_objects_inside_are_moved_and_not_made_again() -> None:
    """Rows that the caller holds are the same objects after the tool has sorted, moved and dropped them, each with its own content."""

    @tool
    def arrange(rows: list[dict[str, Any]], done: list[Any]) -> None:
        rows.sort(key=lambda row: row["n"])
        first = rows.pop(0)
        first["seen"] = True
        done.append(first)
        rows.insert(0, {"n": 0, "of": done})

    def program() -> Any:
        a, b, c = {"n": 3}, {"n": 1}, {"n": 2}
        rows: list[Any] = [a, b, c]
        done: list[Any] = []
        arrange(rows, done)
        assert rows[1] is c
        assert rows[2] is a
        assert done[0] is b
        assert rows[0]["of"] is done
        return a, b, c, len(rows)

    assert same_in_both(program) == ({"n": 3}, {"n": 1, "seen": True}, {"n": 2}, 3)


def test_one_object_given_twice_is_one_object() -> None:
    """The change that is made by way of one argument is not made again by way of the other."""

    @tool
    def note(a: list[Any], b: list[Any], c: dict[str, Any]) -> None:
        a.append(1)
        b.append(2)
        c["x"].append(3)

    def program() -> Any:
        items: list[Any] = [0]
        note(items, items, {"x": items})
        return items

    assert same_in_both(program) == [0, 1, 2, 3]


def test_what_a_tool_returns_of_its_arguments_is_the_callers_object() -> None:
    """The argument itself, a part of it, something that it has taken out of it or put into it, alone or inside a new value."""

    @tool
    def itself(items: list[int]) -> list[int]:
        return items

    @tool
    def part(state: dict[str, Any]) -> Any:
        return state["rows"][1]

    @tool
    def taken(queue: list[dict[str, int]]) -> dict[str, int]:
        return queue.pop()

    @tool
    def added(rows: list[Any]) -> Any:
        row = {"n": len(rows)}
        rows.insert(0, row)
        return row

    @tool
    def among(rows: list[Any], order: Order) -> Any:
        return {"rows": (rows, [order.lines]), "n": [1]}

    @tool
    async def later(order: Order) -> Order:
        order.paid = True
        return order

    @tool
    def each(rows: list[Any]) -> Iterator[Any]:
        for row in rows:
            row.append("seen")
            yield row

    def program() -> Any:
        items = [1]
        assert itself(items) is items
        state: dict[str, Any] = {"rows": [{"a": 1}, {"b": 2}]}
        assert part(state) is state["rows"][1]
        queue = [{"n": 1}, {"n": 2}]
        last = queue[1]
        assert taken(queue) is last
        rows: list[Any] = [{"n": 9}]
        row = added(rows)
        assert row is rows[0]
        order = Order(["a"])
        found = among(rows, order)
        assert found["rows"][0] is rows
        assert found["rows"][1][0] is order.lines
        assert asyncio.run(later(order)) is order
        lists: list[Any] = [[1], [2]]
        for known, given in zip(lists, each(lists), strict=True):
            assert known is given
        return items, state, queue, rows, order, found, lists

    same_in_both(program)


def test_a_tool_that_fails_has_changed_what_it_has_changed() -> None:
    """What it did before it raised is there in the replay when the exception is; so is what each of several attempts did."""

    @traced_tool(side_effect="read_only", max_retries=2)
    def collect(into: list[int]) -> None:
        ran.append("collect")
        into.append(len(into))
        if len(into) < 3:
            raise ConnectionError("not yet")

    @tool
    def fail(into: list[int]) -> None:
        into.append(9)
        raise ValueError("no")

    def program() -> Any:
        items: list[int] = []
        collect(items)
        try:
            fail(items)
        except ValueError:
            return items
        raise AssertionError

    assert same_in_both(program) == [0, 1, 2, 9]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_generator_changes_its_arguments_item_by_item(kind: str) -> None:
    """At each item they are as they were at that item, with what the caller itself did between two items."""

    @tool
    def feed(into: list[str]) -> Iterator[int]:
        for i in range(3):
            ran.append("item")
            into.append(f"tool {i}")
            yield i
        into.append("end")

    @tool
    async def feed_later(into: list[str]) -> AsyncIterator[int]:
        for i in feed.__wrapped__(into):
            await asyncio.sleep(0)
            yield i

    def program() -> Any:
        items: list[str] = []
        seen: list[Any] = []

        def look(i: int) -> None:
            seen.append((i, list(items)))
            items.append(f"caller {i}")

        async def run() -> None:
            async for i in feed_later(items):
                look(i)

        if kind == "sync":
            for i in feed(items):
                look(i)
        else:
            asyncio.run(run())
        return seen, items

    seen, items = same_in_both(program)
    assert seen[1] == (1, ["tool 0", "caller 0", "tool 1"])
    assert items[-2:] == ["caller 2", "end"]


class Desk:
    def __init__(self) -> None:
        self.written: list[str] = []
        self.count = 0
        self.lock = object()

    @traced_tool(side_effect="read_only", mutates=("self",))
    def write(self, text: str) -> Desk:
        ran.append("write")
        self.written.append(text)
        self.count += 1
        self.last = text
        return self

    @traced_tool(side_effect="read_only", mutates="self")
    async def write_later(self, text: str) -> int:
        await asyncio.sleep(0)
        self.written.append(text)
        return len(self.written)

    @traced_tool(side_effect="read_only", mutates=["self"])
    def write_each(self, texts: list[str]) -> Iterator[int]:
        while texts:
            self.written.append(texts.pop(0))
            yield len(self.written)

    @traced_tool(side_effect="read_only", mutates=("self",), max_retries=1)
    def write_again(self) -> None:
        self.count += 1
        if self.count % 2:
            raise ConnectionError("odd")


def test_a_method_changes_its_own_object_where_it_says_so() -> None:
    """``mutates="self"``: the object's attributes, as far as they can be recorded; and the object that it returns is the object itself."""

    def program() -> Any:
        desk = Desk()
        assert desk.write("a").write("b") is desk
        asyncio.run(desk.write_later("c"))
        texts = ["d", "e"]
        list(desk.write_each(texts))
        desk.write_again()
        return desk.written, desk.count, desk.last, texts

    assert same_in_both(program) == (["a", "b", "c", "d", "e"], 4, "b", [])


class Tally:
    count = 0  # the object itself has no attribute until the first call

    @traced_tool(side_effect="read_only", mutates=("self",))
    def add(self) -> None:
        self.count += 1

    @traced_tool(side_effect="read_only", mutates="this")
    def add_two(this) -> None:
        this.count += 2

    @property
    @traced_tool(side_effect="read_only", mutates=("self",))
    def next(self) -> int:
        self.count += 1
        return self.count


def test_an_object_without_attributes_and_under_another_name_is_watched() -> None:
    """``mutates=`` names the method's object by its parameter, whatever that is called, and whatever it had before the call.

    A property hands its object over as an argument; the replay changes that as well.
    """

    def program() -> Any:
        desks = [Tally(), Tally(), Tally()]
        desks[0].add()
        desks[1].add_two()
        seen = desks[2].next
        Tally.add(desks[0])
        return [vars(desk) for desk in desks], seen

    assert same_in_both(program) == ([{"count": 2}, {"count": 2}, {"count": 1}], 1)


def test_self_in_another_state_is_not_touched() -> None:
    """The method's own object is no part of the input, so nothing compares it before; the replay says that it was another one."""
    start = [0]

    def program() -> Any:
        desk = Desk()
        desk.count = start[0]
        desk.write("a")
        return desk.written

    run, _ = recorded(program)
    start[0] = 5
    with pytest.raises(InexactReplayError, match="argument in another state"), replay(run) as session:
        assert program() == []
    assert [(one.code, one.facts["step"]) for one in session.report.verdict.reasons] == [("shared_argument", 2)]


def test_names_that_are_no_parameters_are_refused_where_they_are_written() -> None:
    """A ``TypeError`` that names the tool and what there is: a misspelt name would be a promise that nobody keeps."""

    def plain(items: list[int], *more: int) -> None: ...

    for wrong in (["item"], "self", ("items", "cls")):
        with pytest.raises(TypeError, match=r"mutates of '.*plain': it has no parameter '\w+' \(items, more\)"):
            traced_tool(side_effect="read_only", mutates=wrong)(plain)
    for odd in (3, b"items", {"items": 1}, [1]):
        with pytest.raises(TypeError, match="mutates must be a list of parameter names"):
            traced_tool(side_effect="read_only", mutates=odd)(plain)  # type: ignore[arg-type]
    traced_tool(side_effect="read_only", mutates=("items", "more"))(plain)

    class Box:
        @staticmethod
        def put(items: list[int]) -> None: ...

    with pytest.raises(TypeError, match="no parameter 'self'"):
        traced_tool(side_effect="read_only", mutates=("self",))(Box.put)


def test_what_is_too_large_is_said_and_named_it_is_recorded() -> None:
    """More than 64 KiB is looked at only where ``mutates=`` names it; else the run and the outcome say that nobody looked."""

    def fill(docs: list[str], small: list[int]) -> int:
        docs.append("more")
        small.append(1)
        return len(docs)

    silent, named = tool(fill), traced_tool(side_effect="read_only", mutates="docs")(fill)

    def program(called: Any) -> Any:
        docs, small = ["x" * 1000] * 70, [0]
        called(docs, small)
        return len(docs), small

    with pytest.warns(RuntimeWarning, match="changes in docs is not recorded: larger than 64 KiB"):
        run, _ = recorded(lambda: program(silent))
    assert of_type(run, "tool.return")[0]["meta"]["unwatched"] == ["docs"]
    report, found = replayed(run, lambda: program(silent))
    assert found == (70, [0, 1])
    assert report.exact
    assert same_in_both(lambda: program(named)) == (71, [0, 1])


def test_a_list_that_contains_itself() -> None:
    """What a tool changes in a container that stands in itself, before the call or since, changes in the replay."""

    @tool
    def extend(given: Any, more: Any) -> int:
        ran.append("extend")
        if isinstance(given, dict):
            given["more"] = given if more is None else more
        else:
            given.append(given if more is None else more)
        return len(given)

    def program() -> list[Any]:
        numbers: list[Any] = [1]
        numbers.append(numbers)
        names: dict[str, Any] = {"x": [1]}
        names["x"].append(names)
        sizes = [extend(numbers, 7), extend(numbers, None), extend(names, 7), extend(names, None)]
        assert numbers[2] == 7
        assert all(one is numbers for one in numbers[1::2])
        assert names["x"][1] is names is names["more"]
        return sizes

    run, first = recorded(program)
    assert not [one for one in run.warnings if "64 KiB" in one], run.warnings
    report, second = replayed(run, program)
    assert report.exact, report.as_dict()
    assert (first, second, len(ran)) == ([3, 4, 2, 2], [3, 4, 2, 2], 4)


def test_parallel_tools_each_change_their_own_argument() -> None:
    """In tasks and in threads: each tool's list is its own business, whatever goes on beside it."""

    @tool
    async def work(into: list[int], n: int) -> None:
        await asyncio.sleep(0.001 * (n % 3))
        into.append(n)

    @tool
    def work_hard(into: list[int], n: int) -> None:
        into.append(n)

    async def tasks() -> Any:
        lists: list[list[int]] = [[] for _ in range(5)]
        await asyncio.gather(*(work(one, n) for n, one in enumerate(lists)))
        return lists

    def threads() -> Any:
        lists: list[list[int]] = [[] for _ in range(5)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work_hard, lists, range(5)))
        return lists

    assert same_in_both(lambda: asyncio.run(tasks())) == [[0], [1], [2], [3], [4]]
    assert same_in_both(threads) == [[0], [1], [2], [3], [4]]


def test_parallel_tools_that_fill_one_list() -> None:
    """Each puts its own piece into a list that all were given: in the replay it fills up in the same order."""

    turns: list[asyncio.Event] = []

    @tool
    async def fetch(n: int, into: list[dict[str, int]]) -> None:
        await turns[n].wait()
        await asyncio.sleep(0.002)
        into.append({"n": n})
        if n:
            turns[n - 1].set()

    async def program() -> Any:
        turns[:] = [asyncio.Event() for _ in range(3)]
        turns[2].set()
        found: list[dict[str, int]] = []
        await asyncio.gather(*(fetch(n, found) for n in range(3)))
        return found

    assert same_in_both(lambda: asyncio.run(program())) == [{"n": 2}, {"n": 1}, {"n": 0}]


def test_what_the_program_itself_has_changed_meanwhile_is_not_changed_twice() -> None:
    """While a tool waits, another task of the program's own writes to what the tool was given: it does so in the replay, too."""

    @tool
    async def wait(into: list[str]) -> int:
        await asyncio.sleep(0.01)
        return len(into)

    @tool
    async def tick() -> None:
        await asyncio.sleep(0)

    async def program() -> Any:
        items: list[str] = []

        async def beside() -> None:
            await tick()
            items.append("mine")

        answer, _ = await asyncio.gather(wait(items), beside())
        return answer, items

    assert same_in_both(lambda: asyncio.run(program())) == (1, ["mine"])


@pytest.mark.parametrize("beside_makes_steps", [False, True])
def test_an_argument_that_is_in_another_state_is_left_as_it_is(beside_makes_steps: bool) -> None:
    """What the program has put in it since is never overwritten: inexact, or remarked where other lanes went on meanwhile."""
    writes = [False]

    @tool
    async def fill(into: list[str]) -> None:
        await asyncio.sleep(0.01)
        into.append("tool")

    @tool
    async def tick() -> None:
        await asyncio.sleep(0)

    async def program() -> list[str]:
        items: list[str] = []

        async def beside() -> None:
            if beside_makes_steps:
                await tick()
            if writes[0]:
                items.append("program")

        await asyncio.gather(fill(items), beside())
        return items

    run, first = recorded(lambda: asyncio.run(program()))
    assert first == ["tool"]
    writes[0] = True
    if beside_makes_steps:
        report, second = replayed(run, lambda: asyncio.run(program()))
        assert report.exact
        assert [one.code for one in report.verdict.remarks] == ["shared_argument"]
        assert second == ["program"]
    else:
        found: list[Any] = []
        with pytest.raises(InexactReplayError, match="argument in another state"), replay(run):
            found += asyncio.run(program())
        assert found == ["program"]


def test_a_new_value_that_cannot_be_recorded_is_named_by_the_replay_that_needs_it() -> None:
    """The error says which tool's, and which step's: there is nothing else to go by."""

    @tool
    def put(into: list[Any]) -> None:
        into.append(object())

    @tool
    def give() -> Any:
        return object()

    for program, what in ((lambda: put([]), "put"), (give, "give")):
        with pytest.warns(RuntimeWarning, match="can't be recorded"):
            run, _ = recorded(program)
        step = of_type(run, "tool.call")[0]["seq"]
        with pytest.raises(NotReplayableError, match=rf"tool '.*{what}' \(step {step}\)") as caught, replay(run):
            program()
        assert caught.value.step == step


MALFORMED: dict[str, Any] = {
    "no pointer": {"patch": [{"at": "/elsewhere", "items": [0, 0, [1]]}]},
    "no patch": {"patch": [{"at": "/into"}]},
    "no list": {"patch": 7},
    "another kind": {"patch": [{"at": "/into", "put": {"a": 1}, "drop": []}]},
    "a class of its choice": {
        "patch": [{"at": "/into", "items": [0, 0, [{"$t": "dataclass", "c": "os:system", "v": {}}]]}]
    },
    "no such output": {"output": {"/a/b": "/into"}},
    "no such argument": {"output": {"": "/nothing"}},
    "no names": {"was": ["into"]},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_changes_are_refused(what: str, tmp_path: Path) -> None:
    """A trace is untrusted: whatever it says, the replay stops and names the step; of a patch that is wrong nothing is done."""

    @tool
    def fill(into: list[int]) -> list[int]:
        into.append(1)
        return [2]

    def program(into: list[int]) -> Any:
        return fill(into)

    run, _ = recorded(lambda: program([0]))
    lines, tip = [], "0" * 64
    for entry in entries(run):
        if entry["type"] == "tool.return":
            entry["arguments"] = {**entry["arguments"], **MALFORMED[what]}
        line, tip = chained({key: item for key, item in entry.items() if key != "hash"}, tip)
        lines.append(line)
    path = tmp_path / "forged.jsonl"
    path.write_bytes(b"".join(lines))
    items = [0]
    with pytest.raises(NotReplayableError, match=r"fill' \(step 2\)"), replay(str(path)):
        program(items)
    assert items == ([0, 1] if "output" in MALFORMED[what] else [0])
    path.unlink()  # it is no trace of ours: not every one of them is as the schema says


def test_secrets_do_not_get_into_the_log_by_way_of_arguments() -> None:
    """What a tool puts into its arguments is redacted like everything else; the running program has the real one."""
    key = "sk-proj-" + "A1b2C3d4" * 6

    @tool
    def sign_in(headers: dict[str, str], log: list[str]) -> None:
        headers["authorization"] = f"Bearer {key}"
        log.append(f"key {key}")

    def program() -> Any:
        headers: dict[str, str] = {"a": "b"}
        log: list[str] = []
        sign_in(headers, log)
        return headers, log

    with pytest.warns(RuntimeWarning, match="was redacted"):
        run, (headers, _) = recorded(program)
    assert key in headers["authorization"]
    assert key not in str(entries(run))
    report, (again, _) = replayed(run, program)
    assert report.exact
    assert again.keys() == headers.keys()


def test_a_resumed_run_goes_on_with_changed_arguments(tmp_path: Path) -> None:
    """What the log answers is changed from the log, what comes after it for real."""

    @tool
    def add(into: list[int], n: int) -> None:
        ran.append(str(n))
        into.append(n)

    def program() -> Any:
        items: list[int] = []
        for n in range(4):
            add(items, n)
        return items

    run, _ = recorded(program)
    left = cut(run, of_type(run, "tool.return")[1]["seq"], tmp_path)
    ran.clear()
    with resume(left, store=tmp_path):
        assert program() == [0, 1, 2, 3]
    assert ran == ["2", "3"]


def _containers(value: Any) -> list[Any]:
    """Every list and dictionary in a value, itself first."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value] if isinstance(value, list | dict) else []
    return found + [one for item in inside for one in _containers(item)]


def _anything(draw: random.Random, depth: int = 3) -> Any:
    if depth and draw.random() < 0.6:
        size = draw.randrange(4)
        if draw.random() < 0.5:
            return [_anything(draw, depth - 1) for _ in range(size)]
        return {draw.choice("abcd/~$"): _anything(draw, depth - 1) for _ in range(size)}
    return draw.choice([None, 1, 2.5, "x", True, (1, "y")])


def _mangle(draw: random.Random, left: list[Any], right: dict[str, Any]) -> Any:
    """Some changes, among them moves of what is there already; returns some container of the two."""
    for _ in range(draw.randrange(6)):
        there = _containers([left, right])[1:]
        one, new = draw.choice(there), draw.choice([_anything(draw), draw.choice(there)])
        if any(inner is one for inner in _containers(new)):
            continue  # no value holds itself
        if isinstance(one, list):
            how = draw.random()
            if how < 0.4 or not one:
                one.insert(draw.randrange(len(one) + 1), new)
            elif how < 0.7:
                one.pop(draw.randrange(len(one)))
            else:
                one.reverse()
        elif draw.random() < 0.6 or not one:
            one[draw.choice("abcd/~$e")] = new
        else:
            one.pop(draw.choice(list(one)))
    return draw.choice(_containers([left, right])[1:])


@pytest.mark.parametrize("seed", range(40))
def test_random_changes_of_random_values(seed: int) -> None:
    """Nested lists and dictionaries that share parts: every object comes out as it did, what the tool returns included."""
    draw = random.Random(seed)
    kept: tuple[list[Any], dict[str, Any]] = ([_anything(draw), _anything(draw)], {"k": _anything(draw)})
    if seed % 2:
        kept[1]["shared"] = kept[0]

    @tool
    def mangle(left: list[Any], right: dict[str, Any]) -> Any:
        return _mangle(draw, left, right)

    def program() -> Any:
        left, right = copy.deepcopy(kept)
        before = _containers([left, right])[1:]
        made = mangle(left, right)
        same = [[a is b for b in before] for a in _containers([left, right, made])[1:]]
        return repr((left, right, made, before)), same

    same_in_both(program)


class Refused(Exception):
    """An exception with attributes."""

    def __init__(self, code: int) -> None:
        super().__init__([code])
        self.code = code
        self.tries: list[int] = []


def test_what_a_view_of_memory_shows_is_changed() -> None:
    """A buffer that a tool fills through a ``memoryview`` is filled in the replay: in parts, as other items, in two dimensions."""

    @tool
    def fill(view: memoryview) -> int:
        ran.append("fill")
        if view.ndim == 1:
            view[0] = 65
        else:
            view[1, 1] = 66
        return view.nbytes

    def program() -> Any:
        buffer, numbers, table = bytearray(b"abcdef"), array("i", [1, 2, 3]), bytearray(b"abcdef")
        views = [
            memoryview(buffer)[2:5],
            memoryview(buffer)[::2],
            memoryview(numbers),
            memoryview(table).cast("B", (2, 3)),
        ]
        return [fill(view) for view in views], buffer, numbers, table

    @tool
    def look(view: memoryview) -> bytes:
        ran.append("look")
        return view.tobytes()

    def reading() -> Any:
        return look(memoryview(b"fixed"))

    same_in_both(reading)
    assert same_in_both(program)[1:] == (bytearray(b"AbAdef"), array("i", [65, 2, 3]), bytearray(b"abcdBf"))


def test_the_dictionaries_of_a_chain_are_changed() -> None:
    """A ``ChainMap`` and the dictionaries behind it have what a tool has put into them."""

    @tool
    def learn(settings: ChainMap[str, Any]) -> None:
        ran.append("learn")
        settings["k"] = 1
        settings["known"].append(2)
        settings.maps[1]["q"] = 3

    def program() -> Any:
        defaults: dict[str, Any] = {"known": [1]}
        settings = ChainMap({}, defaults)
        learn(settings)
        return settings, defaults

    assert same_in_both(program)[1] == {"known": [1, 2], "q": 3}


def test_an_exception_that_a_tool_is_given_is_changed() -> None:
    """Its attributes, its arguments, its notes and what they contain; one that is returned is that same object."""

    @tool
    def explain(error: BaseException) -> BaseException:
        ran.append("explain")
        error.retry = True  # type: ignore[attr-defined]
        error.add_note("seen")
        if isinstance(error, Refused):
            error.tries.append(1)
            error.args[0].append(5)
            del error.code
        elif not isinstance(error, OSError):
            error.args = ("other",)
        return error

    def program() -> Any:
        errors = [Refused(4), ValueError("x"), FileNotFoundError(2, "none", "a.txt")]
        same = [explain(error) is error for error in errors]
        return same, [(error.args, vars(error)) for error in errors]

    same, states = same_in_both(program)
    assert same == [True] * 3
    assert states[0] == (([4, 5],), {"tries": [1], "retry": True, "__notes__": ["seen"]})


def test_what_cannot_be_changed_again_is_said() -> None:
    """The run warns of a change that a replay does not make: here in a member of a group of exceptions."""

    @tool
    def mark(group: ExceptionGroup[Refused]) -> None:
        group.exceptions[0].code = 7  # type: ignore[union-attr]

    run, _ = recorded(lambda: mark(ExceptionGroup("two", [Refused(1), Refused(2)])))
    assert [one for one in run.warnings if "in group is not changed again in a replay" in one], run.warnings
