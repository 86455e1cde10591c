"""From values to the bytes in the log: the short way says the same as the long one, and nothing that a value does reaches the program."""

from __future__ import annotations

import enum
import threading
import typing
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tracing import recorded
from tracekit import Run, record, replay, traced_tool
from tracekit._runtime import encoding as values
from tracekit._runtime.encoding import Encoder
from tracekit._values import dumps_in_order, quick
from tracekit._values.decoding import structured
from tracekit.errors import InexactReplayError, NotReplayableError, RecordedError
from tracekit.integration import Redactor, Trace, current, from_json, to_json

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=6)
_keys = st.text(st.sampled_from("ab$tvü"), max_size=3) | st.integers(0, 3)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.sets(st.integers(0, 9), max_size=3)
    ),
    max_leaves=20,
)


def _encoder() -> Encoder:
    return Encoder(Redactor(), lambda data: pytest.fail("nothing here is large"))


@given(_values)
def test_the_short_way_says_the_same(value: Any) -> None:
    """Where the short way takes a value at all, its bytes are those of the long one."""
    data = quick(value)
    assert data is None or data == dumps_in_order(to_json(value))


@pytest.mark.parametrize(
    "value",
    [{"a": (1, 2, ("x",)), "b": [1.5, {"c": (None, True)}]}, (1, 2), {"n": float("inf")}, {"price": "$12"}, "text", []],
)
def test_everyday_values_take_the_short_way(value: Any) -> None:
    """Tuples, odd floats and a dollar in a text need no walk, and come back as they were."""
    data = quick(value)
    assert data is not None
    assert from_json(orjson.loads(data)) == value


@pytest.mark.parametrize("value", [{"$t": "tuple", "v": []}, {1: 2}, {"a": {1}}, {"a": b"x"}, {"a": "\ud800"}, 2**70])
def test_what_needs_a_tag_of_another_kind_takes_the_long_way(value: Any) -> None:
    """A key that might be taken for a tag, other key types, sets, bytes, lone surrogates, large integers: no short way."""
    assert quick(value) is None


def test_cycles_and_bombs_end() -> None:
    """A value that contains itself, or shares its parts over and over, is given up early."""
    cycle: list[Any] = []
    cycle.append(cycle)
    bomb: Any = [{}]
    for _ in range(40):
        bomb = [bomb] * 10
    assert quick(cycle) is None
    assert quick(bomb) is None


def test_a_value_that_changes_between_the_look_and_the_encoding_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread puts in what JSON has no word for, just after the look at it: it is recorded, nothing is raised."""
    value: dict[str, Any] = {"a": "x" * 10}
    monkeypatch.setattr(values, "to_json", lambda it, notes: (it.update(b={1, 2}), it)[1])
    encoded = _encoder().encode(value)
    assert from_json(orjson.loads(encoded.data)) == {"a": "x" * 10, "b": {1, 2}}


class _Odd:
    def __repr__(self) -> str:
        return f"in {current.get()}"


def test_a_repr_is_no_part_of_the_run() -> None:
    """What can't be encoded is described by the program's own ``__repr__``: whatever that calls is not recorded."""
    token = current.set("a scope")  # type: ignore[arg-type]
    try:
        encoded = _encoder().encode({"a": _Odd()})
        assert current.get() == "a scope"  # type: ignore[comparison-overlap]
    finally:
        current.reset(token)
    assert b"in None" in encoded.data
    assert len(encoded.notes) == 1


def test_large_values_are_copied_before_they_are_taken_apart() -> None:
    """The tree of a large value, which is redacted, interned and fingerprinted, is none of the program's own objects."""
    value = {"messages": [{"role": "user", "content": "x" * 2000}]}
    encoded = Encoder(Redactor(), lambda data: 7).encode(value, lists=True)
    value["messages"].clear()
    assert encoded.tree == {"messages": [{"role": "user", "content": "x" * 2000}]}


@traced_tool(side_effect="read_only")
def load(kind: str, size: int) -> Any:
    return {"text": lambda: "x" * size, "numbers": lambda: [1] * size, "texts": lambda: ["y" * 1000] * size}[kind]()


@traced_tool(side_effect="read_only")
def measure(value: Any) -> int:
    return len(value)


@pytest.mark.parametrize(
    ("kind", "size"), [("text", 65 << 20), ("numbers", 8_000_000), ("texts", 40_000)], ids=["text", "numbers", "texts"]
)
def test_what_no_reader_would_take_is_opaque(kind: str, size: int) -> None:
    """A value beyond the reader's limits is told at the end of the run, and the rest of the run can be read and replayed."""

    def program() -> None:
        assert len(load(kind, size)) == size
        load("text", 3)

    with pytest.warns(RuntimeWarning, match=r"is too large, \d+ MiB"):
        run, _ = recorded(program)
    assert [entry["type"] for entry in Trace(run.path).entries()][-1] == "run.completed"
    with pytest.raises(NotReplayableError, match="too large"), replay(run):
        load(kind, size)


def test_a_large_input_is_compared_by_its_type() -> None:
    """The step of an input that is too large still matches, and its answer comes back."""
    value = "x" * (65 << 20)
    run, _ = recorded(lambda: measure(value))
    assert "too large" in run.warnings[0]
    with replay(run) as session:
        assert measure(value) == len(value)
    assert session.report.exact


def test_large_values_within_the_limits_come_back() -> None:
    """Texts of many megabytes, several in one value."""
    with record("large") as run:
        first = [load("text", 8 << 20), {"all": load("texts", 8_000)}]
    with replay(run) as session:
        assert [load("text", 8 << 20), {"all": load("texts", 8_000)}] == first
    assert session.report.exact


@pytest.mark.parametrize("held", [lambda: "x" * (20 << 20), threading.Lock], ids=["too large", "not data"])
def test_an_exception_that_holds_what_cant_be_recorded_keeps_its_text(held: Callable[[], Any]) -> None:
    """Its arguments are left out, and its text is the recorded one, as far as texts of exceptions go; the recording says, once,
    that it comes back as another, and the replay is not exact."""

    @traced_tool(side_effect="read_only")
    def fail() -> None:
        raise ValueError("short", held())

    with record("large") as run:
        for _ in range(2):
            with pytest.raises(ValueError):
                fail()
    assert sum("ValueError, which comes back as RecordedError" in text for text in run.warnings) == 1
    inexact = pytest.raises(InexactReplayError, match="comes back as RecordedError")
    with inexact, replay(run):
        for _ in range(2):
            with pytest.raises(RecordedError, match="short"):
                fail()


def warned_of_values(run: Run) -> list[str]:
    """The warnings of a run without those of SDKs that other tests of this process have imported."""
    return [text for text in run.warnings if "none of its calls was captured" not in text]


def _local() -> Any:
    @dataclass
    class Local:
        a: int

    return Local


def _with_a_method() -> Any:
    class Pair(NamedTuple):
        a: int

        def twice(self) -> int:
            return 2 * self.a

    return Pair


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_dataclass("Made", ["a"])(1),
        lambda: pydantic.create_model("Made", a=(int, ...))(a=1),
        lambda: enum.Enum("Made", "A B").A,  # type: ignore[attr-defined]
        lambda: _local()(1),
        lambda: [_with_a_method()(1)],
        lambda: type("Made", (list,), {})([1]),
    ],
)
def test_a_value_of_a_class_made_while_the_program_ran_is_told(make: Callable[[], Any]) -> None:
    """When it is recorded, not in the night in which the run has to be replayed; as an argument it is compared, and nothing is lost."""

    @traced_tool(side_effect="read_only")
    def give() -> Any:
        return make()

    @traced_tool(side_effect="read_only")
    def take(value: Any) -> str:
        return "taken"

    with pytest.warns(RuntimeWarning, match="its class was made while the program ran"):
        run, _ = recorded(give)
    assert [one["seq"] for one in Trace(run.path).entries() if "notes" in one.get("meta", {})] == [3]
    with pytest.raises(NotReplayableError, match="made while the recorded program ran"), replay(run):
        give()
    run, _ = recorded(lambda: take(make()))
    assert warned_of_values(run) == []
    with replay(run) as session:
        assert take(make()) == "taken"
    assert session.report.exact


def test_a_class_made_while_the_program_ran_that_the_annotation_names() -> None:
    """It is found by that: nothing is lacking."""
    local = _local()

    def give() -> Any:
        return local(1)

    give.__annotations__["return"] = local
    tool = traced_tool(side_effect="read_only")(give)
    run, value = recorded(tool)
    assert warned_of_values(run) == []
    with replay(run) as session:
        assert tool() == value
    assert session.report.exact


def test_a_class_made_while_the_program_ran_that_a_field_names() -> None:
    """The field's class is in the annotation of the class in which it is, written as Python's own versions keep annotations."""
    classes = "@dataclass\nclass Seat:\n    n: int\nclass Row(NamedTuple):\n    seat: Seat\n"
    names: dict[str, Any] = {"NamedTuple": NamedTuple, "dataclass": dataclass, "__name__": __name__}
    exec(
        compile(classes + "def give() -> list[Row]:\n    return [Row(Seat(1))]", "rows.py", "exec", dont_inherit=True),
        names,
    )
    tool = traced_tool(side_effect="read_only")(names["give"])
    run, _ = recorded(tool)
    assert warned_of_values(run) == []
    with replay(run) as session:
        [row] = tool()
    assert session.report.exact
    assert type(row.seat) is names["Seat"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: namedtuple("Row", "id name")(1, "x"),  # as helpers for databases make them
        lambda: namedtuple("Row", ["class", "b"], rename=True)(1, 2),
        lambda: namedtuple("Row", ())(),
        lambda: typing.NamedTuple("Row", [("a", int)])(1),
    ],
)
def test_a_named_tuple_made_while_the_program_ran_comes_back(make: Callable[[], Any]) -> None:
    """A tool's named tuple whose class was made inside a function comes back as an equal one, of a class with the same fields."""

    @traced_tool(side_effect="read_only")
    def rows() -> list[Any]:
        return [make(), make()]

    run, value = recorded(rows)
    assert warned_of_values(run) == []
    with replay(run) as session:
        back = rows()
    assert session.report.exact
    assert back == value
    assert repr(back) == repr(value)
    assert back[0]._fields == value[0]._fields
    assert type(back[0]) is type(back[1])


@pytest.mark.parametrize("fields", [["a", "a"], ["a b"], [1], "ab", ["x"] * 2, ["__import__('os')"]])
def test_the_fields_of_a_named_tuple_that_somebody_has_edited(fields: Any) -> None:
    """What is no list of names makes no class, and where a name stands twice the second one has none."""
    tree: Any = {"$t": "namedtuple", "c": "no.module:Row", "v": [1, 2], "f": fields}
    if fields in (["a", "a"], ["x", "x"]):
        assert from_json(tree)._fields == (fields[0], "_1")
        return
    with pytest.raises(NotReplayableError):
        from_json(tree)


@pytest.mark.parametrize(
    "groups",
    [
        1,
        [1],
        [[1, 2]],
        ["/output"],
        [["/output", "/output/a"]],
        [["/output/a", "/output/a/0"]],
        [["/output/a", "/output/x"], ["/output/a/-1", "/output/a/0", "/output/b/é"]],
        [["/output/a", "/output/a/0"], ["/output/a/0", "/output/a"]],
    ],
)
def test_malformed_groups_are_refused_or_mean_nothing(groups: Any) -> None:
    """A trace is untrusted: whatever it says is one object, there is a value or the documented error."""
    tree = {"a": [[1], 2], "b": [[1], 2]}
    try:
        made = from_json(structured(tree, {"shared": groups}, "/output"))
    except NotReplayableError:
        made = tree
    assert made == tree
