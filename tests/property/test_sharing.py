"""A value and its copy in a replay can't be told apart by a program: structure of sharing included."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from types import SimpleNamespace
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.support.sharing import structure
from tests.support.tracing import both
from tracekit import traced_tool


@dataclasses.dataclass
class Box:
    one: Any
    two: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    one: Any


class Pair(NamedTuple):
    one: Any
    two: Any


class Names(list[Any]):
    pass


_KEYS = ("a", "b/c", "d~e", "$t", "é", "password", 1, (2, "x"))
_LEAVES = (None, True, 0, -1.5, float("nan"), "text", "x" * 1500, b"bytes", 2**70, datetime.date(2026, 1, 2))
#: How a node is made of the nodes that it contains.
_KINDS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda items: dict(zip(_KEYS, items, strict=False)),
    "plain": lambda items: {f"k{i}": item for i, item in enumerate(items)},
    "deque": lambda items: collections.deque(items, 9),
    "ordered": lambda items: collections.OrderedDict(zip("zyxw", items, strict=False)),
    "default": lambda items: collections.defaultdict(list, zip("zyxw", items, strict=False)),
    "box": lambda items: Box(*items[:2]) if items else Box(0),
    "frozen": lambda items: Frozen(list(items)),
    "pair": lambda items: Pair(items, items[:1]),
    "names": Names,
    "namespace": lambda items: SimpleNamespace(**{f"k{i}": item for i, item in enumerate(items)}),
    "error": lambda items: ValueError(*items),
    "set": lambda items: {len(items) * 8, *range(0, 16, 8), "x"},
    "frozenset": lambda items: frozenset([16, 8, len(items)]),
    "bytearray": lambda items: bytearray(len(items)),
}


@st.composite
def _graphs(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(_KINDS)) -> Any:
    """A value that is made of nodes, each of which contains earlier ones, any of them more than once."""
    nodes: list[Any] = []
    for _ in range(draw(st.integers(1, 9))):
        parts = st.sampled_from(_LEAVES) if not nodes else st.sampled_from(nodes) | st.sampled_from(_LEAVES)
        nodes.append(_KINDS[draw(st.sampled_from(kinds))](draw(st.lists(parts, max_size=4))))
    return nodes[-1]


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(_graphs() | _graphs(("list", "plain", "tuple")))
def test_what_is_one_object_is_one_in_a_replay(value: Any) -> None:
    """Types, contents, order of keys and what is the same object, by whatever path the value goes into the log."""

    @traced_tool(side_effect="read_only")
    def made() -> Any:
        return value

    _, first, second = both(lambda: structure(made()))
    assert second == first
