"""The C extension answers as the same functions in Python do, whatever it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit._native import pure

ROOT = Path(__file__).parents[2]

compiled: Any = pytest.importorskip("tracekit._native._compiled", reason="this installation has no C extension")


class Text(str):
    """Not a text of JSON's own kind."""

    __slots__ = ()


class Number(int):
    """Not a number of JSON's own kind."""


CYCLE: list[Any] = [1]
CYCLE.append({"again": CYCLE})


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


#: What a value may be made of: what orjson writes as it is, and what it refuses or writes as something else.
TEXTS = st.one_of(
    st.text(), st.text(st.characters()), st.sampled_from(["$t", "a$", "\ud800", "é\udfff", "\0", "😀", ""])
)
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**400, -(10**400)]),
    st.floats(),
    st.sampled_from([-0.0, 1e16, 1e22, 1e-5, 5e-324, 1.7976931348623157e308]),
)
LEAVES = st.one_of(
    TEXTS,
    NUMBERS,
    st.none(),
    st.booleans(),
    st.binary(),
    st.builds(Text, st.text()),
    st.builds(Number, st.integers()),
    st.sampled_from([CYCLE, (), object, nested(90), nested(93)]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(TEXTS, st.integers(), st.builds(Text, st.text())), inner, max_size=5),
    ),
    max_leaves=25,
)
CONTAINERS = st.one_of(st.lists(VALUES, max_size=5), st.dictionaries(TEXTS, VALUES, max_size=5))


def test_it_is_made_of_these_sources() -> None:
    """An installation that is older than its checkout would test what is not there any more."""
    code = "import hatch_build; print(hatch_build.digest())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == compiled.SOURCES, "compile it again: python hatch_build.py"


@pytest.mark.parametrize(("variable", "form"), [("", "C"), ("0", "C"), ("1", "Python")])
def test_a_variable_chooses(variable: str, form: str) -> None:
    """``TRACEKIT_PURE=1`` takes the functions in Python."""
    code = "from tracekit import _native as n; print(n.FORM, n.plain.__module__ == 'tracekit._native.pure')"
    variables = {**os.environ, "TRACEKIT_PURE": variable}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [form, str(form == "Python")]


def test_whatever_is_in_c_is_in_python() -> None:
    """Each function of the extension has one of the same name to be compared with."""
    assert {name for name in dir(compiled) if not name.startswith("_")} - {"SOURCES"} == set(pure.__all__)


@settings(max_examples=400)
@given(value=CONTAINERS, levels=st.integers(1, 6), width=st.integers(1, 6))
def test_plain(value: Any, levels: int, width: int) -> None:
    """Which values orjson writes as they are."""
    assert compiled.plain(value, levels, width) is pure.plain(value, levels, width)
    assert compiled.plain(value, 188, 50_000) is pure.plain(value, 188, 50_000)


@pytest.mark.parametrize("levels", [1, 2, 187, 188, 189, 400, 100_000])
def test_plain_depth(levels: int) -> None:
    """Depth ends at the same level, and exhausts no stack."""
    value = nested(levels)
    assert compiled.plain(value, 188, 50_000) is pure.plain(value, 188, 50_000) is (levels <= 188)
    while type(value) in (list, dict):  # what is nested so deep is not forgotten at once by every Python
        value = value[0] if type(value) is list else value["k"]


def test_plain_shared() -> None:
    """A value that holds one part many times, on each level, is given up soon."""
    value: Any = []
    for _ in range(150):
        value = [value, value]
    assert compiled.plain(value, 188, 50_000) is pure.plain(value, 188, 50_000) is False


def both_noted(value: Any) -> bytes | None:
    """What both make of a value by the short way: the bytes, and the containers met, one by one."""
    met: list[Any] = []
    met_in_python: list[Any] = []
    data = compiled.noted(value, met)
    assert data == pure.noted(value, met_in_python)
    if data is not None:
        assert [id(one) for one in met] == [id(one) for one in met_in_python]
    return data  # type: ignore[no-any-return]


@settings(max_examples=400)
@given(value=VALUES)
def test_noted(value: Any) -> None:
    """The stored bytes of a value, or that it takes another way; and nothing is changed in it."""
    before = repr(value)
    both_noted(value)
    assert repr(value) == before


@pytest.mark.parametrize(
    "value",
    [
        {"customer": "ACME", "lines": (1, 2, (3.5, [])), "nan": [float("nan"), {"inf": float("-inf")}]},
        [-0.0, 1e22, 1e16, 1e-5, 5e-324, 0.1, 2**64 - 1, -(2**63)],
        {"$t": 1},
        {"a": {"b$": (1,)}},
        ["$t", {"a": "$"}],
        2**64,
        10**400,
        -(2**63) - 1,
        "half \ud800",
        {"half \ud800": 1},
        {1: (2,)},
        {Text("a"): (2,)},
        {"a": Text("b")},
        [Number(1)],
        [True, None, Number],
        (),
        [[]] * 199,
        [[]] * 200,
        [()] * 199,
        [()] * 200,
        CYCLE,
        {"one": b"bytes"},
        *(nested(levels) for levels in (93, 94, 95, 187, 188, 189, 199, 200, 201, 400)),
        *((nested(levels),) for levels in (93, 94, 95, 186, 187, 188, 198, 199, 200)),
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:30]!a}",
)
def test_noted_at_its_limits(value: Any) -> None:
    """What is refused, and the last thing that is not, at every limit."""
    both_noted(value)


def test_noted_while_the_collector_runs() -> None:
    """A finalizer that changes the value while it is copied does no harm."""
    import gc

    class Changing:
        def __del__(self) -> None:
            target.clear()
            others.clear()

    threshold = gc.get_threshold()
    try:
        for _ in range(50):
            others: list[Any] = [(number, [float("nan")]) for number in range(30)]
            target: dict[str, Any] = {"others": others, **{str(number): (number,) for number in range(30)}}
            trash: list[Any] = [Changing()]
            trash.append(trash)
            del trash
            gc.set_threshold(1)
            compiled.noted(target, [])
            gc.set_threshold(*threshold)
            gc.collect()
    finally:
        gc.set_threshold(*threshold)


@given(
    seq=st.integers(1, 2**62),
    ts=st.integers(-(2**62), 2**62),
    lane=st.integers(0, 2**40),
    parent=st.integers(0, 2**62),
    middle=st.binary(max_size=100),
    tail=st.one_of(st.binary(max_size=3000), st.sampled_from([b"", b"x" * 100_000])),
)
def test_line(seq: int, ts: int, lane: int, parent: int, middle: bytes, tail: bytes) -> None:
    """The line of an entry, and its hash."""
    head = b"a1" * 32
    assert compiled.line(head, seq, middle, ts, lane, parent, tail) == pure.line(
        head, seq, middle, ts, lane, parent, tail
    )


def test_line_refuses() -> None:
    """What is no line's part is a mistake of the caller's, and never a line."""
    good = (b"a" * 64, 1, b"m", 2, 3, 4, b"t")
    assert compiled.line(*good)
    for at, wrong in (
        (0, b"short"),
        (0, "a" * 64),
        (1, "1"),
        (1, None),
        (1, 2**63),
        (2, "m"),
        (3, 1.5),
        (4, None),
        (6, "t"),
    ):
        with pytest.raises((TypeError, OverflowError)):
            compiled.line(*good[:at], wrong, *good[at + 1 :])
    with pytest.raises(TypeError):
        compiled.line(*good[:-1])


def test_plain_refuses() -> None:
    """What is no dictionary and no list is a mistake of the caller's."""
    for wrong in ((1, 2, 3), ([], 0, 3), ([],), ([], "1", 2)):
        with pytest.raises(TypeError):
            compiled.plain(*wrong)
