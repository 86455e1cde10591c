"""The C extension answers as the same functions in Python do, whatever it is given."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tracekit._native import pure
from tracekit._runtime.secrets import made_from, passing_in_python
from tracekit._values import dumps_in_order, to_json
from tracekit.errors import LogWriteError

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


@pytest.mark.parametrize(
    "body",
    ["", "from tracekit._native import pure; pure.of_an_older_checkout", "raise ImportError('of another system')"],
)
def test_an_extension_that_does_not_fit_is_left_out(body: str) -> None:
    """One that was compiled from an older checkout lacks functions, or looks for some that are gone: those in Python are used."""
    code = f"""
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader

class Other(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return spec_from_loader(name, self) if name == "tracekit._native._compiled" else None
    def exec_module(self, module):
        exec({body!r}, vars(module))

sys.meta_path.insert(0, Other())
from tracekit import _native
print(_native.FORM)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Python"]


PROGRAM = r"""
import os, sys
import tracekit

@tracekit.traced_tool(side_effect="read_only")
def look(value, *more, **named):
    return value, more, named

@tracekit.traced_tool(side_effect="irreversible", mutates=("order",))
def pay(order):
    order["paid"] = [True, (1.5, float("nan"))]
    return order

@tracekit.traced_tool(side_effect="read_only")
def count(to):
    yield from (str(number) * 3 for number in range(to))

@tracekit.traced_tool(side_effect="read_only")
def fail(text):
    raise ValueError(text, {"$t": 1})

class Own(str):
    pass

deep = []
for _ in range(220):
    deep = [deep]
with tracekit.record("forms") as run:
    for value in (
        1, -0.0, 1e22, 1e-7, 2**64 - 1, 2**64, 10**60, "", "ascii", "\u00e9\U0001f600", "half \ud800", b"bytes", (1, ("a", None)),
        {"a": {"b": [1, {"c": (2,)}]}}, {"$t": "tuple"}, {1: 2}, {"dollar$": 1}, {2, 3}, [[]] * 250, deep, Own("own"), "x" * 3000,
        {"authorization": "Bearer abcdefghijklmnop1234567890"}, "my password is hunter2hunter2", [float("inf")], list("many") * 80,
    ):
        look(value, value, named=value)
    pay({"items": [1, 2]})
    list(count(4))
    try:
        fail("no")
    except ValueError:
        pass
    tracekit.decision("which", input={"of": (1, 2)}, output="this")
print(tracekit._native.FORM, run.path)
"""


def test_a_run_is_written_the_same(tmp_path: Path) -> None:
    """The entries of a program in C and in Python: but for their times, and what follows from these, each byte is the same."""
    (tmp_path / "program.py").write_text(PROGRAM)
    traces = {}
    for pure_too in ("0", "1"):
        variables = {
            **os.environ,
            "TRACEKIT_PURE": pure_too,
            "TRACEKIT_DIR": str(tmp_path / "store"),
            "PYTHONHASHSEED": "0",
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "program.py"], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        form, path = done.stdout.split()
        lines = Path(path).read_bytes().splitlines()
        run_id = json.loads(lines[0])["run_id"].encode()
        varying = rb'"(?:ts_ns|cpu_ns|wall_ns)":\d+|"hash":"[0-9a-f]{64}"|[0-9a-f-]*' + run_id + b"[0-9a-f-]*"
        traces[form] = [re.sub(varying, b"", line) for line in lines[1:]]
    assert len(traces["C"]) > 60
    for in_c, in_python in zip(traces["C"], traces["Python"], strict=True):
        assert in_c == in_python


def test_whatever_is_in_c_is_in_python() -> None:
    """Each function of the extension has one of the same name to be compared with."""
    assert {name for name in dir(compiled) if not name.startswith("_")} - {"SOURCES"} == set(pure.__all__)


@settings(max_examples=examples(800))
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


@settings(max_examples=examples(600))
@given(value=VALUES, data=st.data())
def test_repeats(value: Any, data: st.DataObject) -> None:
    """Whether a container occurs more than once in a value, whatever else refers to it; and the same of those that ``noted`` met."""
    parts = [value, [], {}, (1, [2])]
    for _ in range(data.draw(st.integers(0, 4))):
        chosen = data.draw(st.lists(st.sampled_from(parts), max_size=3))
        parts.append(
            data.draw(st.sampled_from([list, tuple, lambda items: {f"k{i}": item for i, item in enumerate(items)}]))(
                chosen
            )
        )
    whole = parts[-1]
    del parts
    if type(whole) in (dict, list):
        assert compiled.plain(whole, 188, 50_000, True) is pure.plain(whole, 188, 50_000, True)
    seen: list[Any] = []
    if compiled.noted(whole, seen) is not None:
        assert compiled.repeated(seen) is pure.repeated(seen)


def test_repeats_in_what_is_too_deep_or_wide() -> None:
    """A value in which each container may occur once only: a cycle, and one with many ways, are given up soon."""
    knot: list[Any] = []
    knot.append(knot)
    wide: list[Any] = []
    for _ in range(30):
        wide = [wide, wide]
    for value in (knot, wide):
        assert compiled.plain(value, 188, 50_000, True) is pure.plain(value, 188, 50_000, True) is False
    shared: list[Any] = []
    assert compiled.plain([shared] * 2, 188, 50_000) is pure.plain([shared] * 2, 188, 50_000) is True
    with pytest.raises(TypeError):
        compiled.repeated(())


def both_noted(value: Any) -> bytes | None:
    """What both make of a value by the short way: the bytes, and the containers met, one by one."""
    met: list[Any] = []
    met_in_python: list[Any] = []
    data = compiled.noted(value, met)
    assert data == pure.noted(value, met_in_python)
    if data is not None:
        assert [id(one) for one in met] == [id(one) for one in met_in_python]
    return data  # type: ignore[no-any-return]


@settings(max_examples=examples(800))
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
    """At each limit of what is recorded directly, the last value that is accepted and the first that is not are the
    same in C and in Python."""
    both_noted(value)


def test_noted_while_the_collector_runs() -> None:
    """A finalizer that changes the value while it is copied does no harm."""

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
            gc.collect(1)
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


@pytest.mark.parametrize("length", range(160))
def test_line_of_each_length(length: int) -> None:
    """The hash is right wherever its last block ends."""
    given = (b"0f" * 32, 7, b"m", 1, 2, 3, b"t" * length)
    assert compiled.line(*given) == pure.line(*given)


def test_line_refuses() -> None:
    """The compiled writer of log lines raises an error for arguments of a wrong type or size, and never writes a line of them."""
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


@given(
    step=st.integers(-(2**62), 2**62),
    text=st.one_of(TEXTS, st.text('\\"\n\t\b\f\r\v\0\x1f\x7f a\u00e9\U0001f600', max_size=1500)),
)
def test_of_text(step: int, text: str) -> None:
    """A piece of a stream, escaped as orjson does it, whatever its length; ``None`` of half a surrogate pair."""
    assert compiled.of_text(step, text) == pure.of_text(step, text)
    assert compiled.of_text(step, text * 40) == pure.of_text(step, text * 40)


def test_of_text_characters() -> None:
    """Each character is written as orjson writes it, and what is no text, or no number, is a mistake."""
    for code in [*range(0x300), 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]:
        for text in (chr(code), f"a{chr(code)}b", chr(code) * 1024):
            assert compiled.of_text(1, text) == pure.of_text(1, text)
    for wrong in ((1, b"a"), ("1", "a"), (1,), (2**63, "a"), (1, None)):
        with pytest.raises((TypeError, OverflowError)):
            compiled.of_text(*wrong)


@given(
    pairs=st.lists(st.tuples(st.sampled_from([b"A", b"b", b"c", b"D"]), st.binary(max_size=3)), max_size=8),
    kind=st.sampled_from([tuple, list, lambda pair: (pair[0], pair[0].lower(), pair[1])]),
)
def test_headers(pairs: list[Any], kind: Any) -> None:
    """The headers that have a name, also where that is found when it is asked for; the value is the last item of each."""

    class Names(dict[bytes, str]):
        def __missing__(self, raw: bytes) -> str:
            if raw == b"D":
                return ""
            return raw.decode().lower()

    given = [kind(pair) for pair in pairs]
    names = Names({b"b": ""})
    assert compiled.picked(given, names) == pure.picked(given, names)
    assert compiled.picked(iter(given), names) == [
        (raw.decode().lower(), value) for raw, value in pairs if raw in b"Ac"
    ]
    assert compiled.collected(given, names) == pure.collected(given, names)


def test_headers_refuse() -> None:
    """What is no header is a mistake of the caller's."""
    for wrong in ((1, {}), ([(b"a", b"1")], {}), ([(b"a",)], {b"a": "a"}), ([()], {}), ([1], {}), ([],)):
        for form in (compiled, pure):
            for function in (form.picked, form.collected):
                with pytest.raises((TypeError, KeyError, IndexError, ValueError)):
                    function(*wrong)
    for form in (compiled, pure):
        with pytest.raises((TypeError, AttributeError)):
            form.collected([(b"a", 1)], {b"a": "a"})


@given(text=st.text(max_size=40), kind=st.sampled_from([b"s", b"e", b"c" * 17]))
@pytest.mark.parametrize("size", [0, 1000, 2047, 2048, 3071, 3072, 10_000])
def test_digest(size: int, text: str, kind: bytes) -> None:
    """Texts have one digest if they are equal and of one kind, wherever they differ; short ones the same in both forms."""
    whole = ("The quick brown fox. " * 500)[:size] + text
    data = whole.encode()
    assert compiled.digest(kind, "".join([*whole])) == compiled.digest(kind, data)
    assert len(data) >= 2048 or compiled.digest(kind, data) == pure.digest(kind, data)
    for form in (compiled, pure):
        others = [form.digest(b"other", data), form.digest(kind, data + b"\0"), form.digest(kind, b"\0" + data)]
        for at in {0, 7, 8, 1023, 1024, 1031, 2047, 2048, len(data) - 1} & {*range(len(data))}:
            others.append(form.digest(kind, b"%b%c%b" % (data[:at], data[at] ^ 1, data[at + 1 :])))
            others.append(form.digest(kind, data[:at] + data[at + 1 :] + b"\xff"))
        if size > 3072:  # equal blocks change places, and words of one block
            others.append(form.digest(kind, data[1024:2048] + data[:1024] + data[2048:]))
            others.append(form.digest(kind, data[16:32] + data[:16] + data[32:]))
            others.append(form.digest(kind, data[8:16] + data[:8] + data[16:]))
        assert form.digest(kind, data) not in others


@pytest.mark.parametrize("size", [*range(130), 1 << 16, (1 << 16) + 1, 3_000_001])
def test_sha256_hex(size: int) -> None:
    """The hash of data of any length is that of ``hashlib``."""
    data = (b"The quick brown fox. " * (size // 21 + 1))[:size]
    assert compiled.sha256_hex(data) == pure.sha256_hex(data) == hashlib.sha256(data).hexdigest()


def test_sha256_hex_of_large_data_in_threads() -> None:
    """Several threads may hash large data at once."""
    many = [bytes([number]) * 2_000_000 for number in range(16)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(compiled.sha256_hex, many)] == [hashlib.sha256(data).hexdigest() for data in many]


def test_sha256_hex_refuses() -> None:
    """Only bytes are hashed: another object's memory could change meanwhile."""
    for wrong in ("text", bytearray(3), memoryview(b"abc"), None):
        with pytest.raises(TypeError):
            compiled.sha256_hex(wrong)


MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"content": st.one_of(st.text(max_size=30), st.sampled_from(["long " * 200, "\u00e9" * 600, None, 7]))},
        optional={"role": st.sampled_from(["user", "x"]), "more": st.lists(st.integers(-5, 5), max_size=2)},
    ),
    st.text(max_size=4),
    st.lists(st.integers(-5, 5), max_size=2),
    st.none(),
    st.booleans(),
)


@given(
    items=st.lists(MESSAGES, max_size=6), running=st.sampled_from([b"", b"r" * 16]), least=st.sampled_from([1, 20, 512])
)
def test_elements(items: list[Any], running: bytes, least: int) -> None:
    """What the elements of a conversation and its beginnings are known by; the digests of their long texts are kept."""
    kept: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    before = repr(items)
    assert compiled.elements(items, least, running, kept[0]) == pure.elements(items, least, running, kept[1])
    assert kept[0] == kept[1]
    assert repr(items) == before


@pytest.mark.parametrize("items", [[object()], [{"content": "a" * 600, "b": object()}], [{"content": "\ud800" * 600}]])
def test_elements_refuses(items: list[Any]) -> None:
    """What is not JSON is a mistake of the caller's."""
    for form in (compiled, pure):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            form.elements(items, 512, b"", {})
    for wrong in (((), 1, b"", {}), ([], "1", b"", {}), ([], 1, "", {}), ([], 1, b"", []), ([], 1, b"")):
        with pytest.raises(TypeError):
            compiled.elements(*wrong)


SURVEYED = st.recursive(
    st.one_of(TEXTS, NUMBERS, st.none(), st.builds(Text, st.text())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["", "$ref", "$extend", "at", "\u00e9"]), inner, max_size=3),
    ),
    max_leaves=15,
)
SMALL = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["$t", "a$", '"$5"', "$", "\x00\x1f\x7f\b\t\n\f\r/\\", "a long text of prose, " * 3 + "ä\n"]),
)


ALMOST = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), SMALL),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(SMALL, inner, max_size=3)),
    max_leaves=10,
)


@given(
    value=ALMOST,
    way=st.sampled_from(
        [orjson.dumps, lambda value: json.dumps(value).encode(), lambda value: orjson.dumps(value)[:-1]]
    ),
    levels=st.sampled_from([0, 1, 2, 40]),
    longest=st.sampled_from([10, 1 << 20]),
)
def test_read_json(value: Any, way: Any, levels: int, longest: int) -> None:
    """A body is parsed, and is the log's own way to write its value if it is the way in which orjson does."""
    content, otherwise = way(value), object()
    found, data = compiled.read_json(content, otherwise, levels, longest)
    assert (found, data) == pure.read_json(content, otherwise, levels, longest)
    if data is not None:
        assert data is content
        assert orjson.dumps(found) == content
        assert dumps_in_order(to_json(found)) == content


@given(data=st.data())
def test_read_json_of_what_is_almost_written_so(data: st.DataObject) -> None:
    """Content that differs in one byte from what orjson writes is read as it is, and taken for what orjson writes only if it is that."""
    value = data.draw(ALMOST)
    content = bytearray(orjson.dumps(value))
    at, byte = (
        data.draw(st.integers(0, len(content) - 1)),
        data.draw(st.sampled_from(b'\0\t 0159.-+eEu"\\/{}[]:,af\x80\xe4')),
    )
    content[at : at + data.draw(st.integers(0, 1))] = bytes([byte]) * data.draw(st.integers(0, 2))
    given_content = bytes(content)
    found, same = compiled.read_json(given_content, None, 40, 1 << 20)
    expected, own = pure.read_json(given_content, None, 40, 1 << 20)
    assert (repr(found), same) == (repr(expected), own)


JSON_NUMBERS = (
    (
        "0 -0 00 01 -1 --1 - 1. .5 0.1 0.10 -0.0 0.0 1e5 1E5 1.5e3 0.0001 0.00001 1234567890.12345 0.30000000000000004 "
        "123456789012345678 1234567890123456789 -9223372036854775808 9223372036854775808 18446744073709551615 18446744073709551616 "
        f"1e16 10000000000000000.0 9999999999999998.0 1x NaN {'1' * 40} 1.{'1' * 40}"
    )
    .encode()
    .split()
)
#: As they are in JSON.
JSON_TEXTS = (
    *rb"\u0000 \u001f \u001F \u000a \n \/ \u007f \u00e4 \x \\\\ \u00 \" \ud83d\ude00 \ud800".split(),
    *(b"\x7f", b"\xff", b"\n", b"\\", "ä€😀".encode(), rb"\\" * 20, rb"\\" * 20 + b"\\"),
    *(b"a" * 40 + one + b"b" * 40 for one in (rb"\t", b"\x1f", b"\t")),
)
JSON_CONTAINERS = (
    *b'{"a":1,"a":1} {"a":1,"b":2,"a":3} [{"a":1},{"a":2},{"b":3},{"":4},{"":5}] {} [] [[],{}] {"a":} {"a"} [,] [1,] {"a":1,}'.split(),
    *(
        b"[true,false,null]",
        b"[tru]",
        b"[nulll]",
        b"[1]]",
        b'["a" ]',
        b"[1] ",
        b'{\n  "a": 1\n}',
        b"[ 1]",
        b'" "',
        b'"\ta"',
    ),
    *(b"[" * levels + b"]" * levels for levels in (40, 41, 300)),
)


def test_read_json_of_numbers_and_texts() -> None:
    """Numbers and escapes that orjson would write otherwise are not taken for its own."""
    for content in (
        *JSON_CONTAINERS,
        *(form % one for one in JSON_NUMBERS for form in (b"[%b]", b'{"a":%b}', b"[%b,1]")),
        *(form % one for one in JSON_TEXTS for form in (b'"%b"', b'["%b"]', b'{"%b":1}')),
    ):
        for levels in (1, 40, 200):
            found, same = compiled.read_json(content, None, levels, 1 << 20)
            expected, own = pure.read_json(content, None, levels, 1 << 20)
            assert (repr(found), same) == (repr(expected), own), content


@given(value=SURVEYED, levels=st.integers(0, 4))
def test_shallow(value: Any, levels: int) -> None:
    """How deep the containers of a value are nested, whatever brackets its texts have."""

    def depth(node: Any) -> int:
        inside = node.values() if type(node) is dict else node if type(node) is list else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    for form in (compiled, pure):
        assert form.shallow(value, levels) is (depth(value) <= levels)
        assert form.shallow("[[[[[", levels)
    for wrong in ((value,), (value, "1")):
        with pytest.raises(TypeError):
            compiled.shallow(*wrong)


def test_a_dollar_within_a_text_is_no_tag() -> None:
    """A price, a formula or a line of a shell in a prompt has nothing examined value by value."""
    for form in (compiled, pure):
        for content, plain in (
            (b'{"content":"it costs $5, or $$6","a$":1}', True), (b'"$5"', False),
            (b'{"a":{"$ref":1}}', False), (b'["say \\"$5\\""]', False),
        ):  # fmt: skip
            assert form.read_json(content, None, 40, 1 << 20) == (orjson.loads(content), content if plain else None)


def test_read_json_refuses() -> None:
    """What is not JSON is something else; what is no bytes is a mistake of the caller's."""
    for content in (b"", b" {}", b"1", b"{", b'"\\ud800"', b"[" * 2000, b'{"$t":1}', b"\xff"):
        assert compiled.read_json(content, None, 40, 1 << 20) == pure.read_json(content, None, 40, 1 << 20)
    for wrong in (("{}", 1, 2, 3), (b"{}", 1, "2", 3), (b"{}", 1, 2)):
        with pytest.raises(TypeError):
            compiled.read_json(*wrong)


@given(value=VALUES, most=st.integers(1, 5))
def test_copied(value: Any, most: int) -> None:
    """Containers are made anew, and whatever is no plain JSON, or too deep, is made by somebody else."""

    def made(form: Any) -> tuple[Any, list[Any]]:
        others: list[Any] = []

        def other(tree: Any, depth: int) -> Any:
            others.append((id(tree), depth))
            return [len(others)]

        return form.copied(value, 1, most, other), others

    try:
        found, others = made(pure)
    except TypeError:  # a key that is no text
        with pytest.raises(TypeError):
            made(compiled)
        return
    assert [repr(part) for part in made(compiled)] == [repr(found), repr(others)]
    if not others:
        assert repr(found) == repr(value)
        assert found is not value or type(value) not in (dict, list)


def test_copied_refuses() -> None:
    """An error of the other one is passed on, and so is an end of the stack."""
    for form in (compiled, pure):
        with pytest.raises(ZeroDivisionError):
            form.copied([{"a": {"$t": 0}}], 0, 9, lambda tree, depth: 1 // tree["$t"])
        with pytest.raises(RecursionError):
            form.copied(CYCLE, 0, 1 << 30, None)
    for wrong in (([], 0, 1), ([], "0", 1, None), ([], 0, "1", None)):
        with pytest.raises(TypeError):
            compiled.copied(*wrong)


@given(items=st.lists(SURVEYED, min_size=1, max_size=3), depth=st.integers(0, 3))
def test_survey(items: list[Any], depth: int) -> None:
    """The size of decoded JSON, its depth, and the references in it, each with its place."""

    def seen(form: Any, container: Any, key: Any) -> Any:
        size, deepest, found = form.survey(container, key, depth, 8)
        return size, deepest, [(id(holder), at, id(holder[at]), id(node), level) for holder, at, node, level in found]

    named = {"items": items}
    for container, key in ((items, 0), (items, len(items) - 1), (named, "items")):
        assert seen(compiled, container, key) == seen(pure, container, key)


def test_survey_refuses() -> None:
    """What is not there, or has a name without a length, is a mistake."""
    for form in (compiled, pure):
        for container, key, error in (([], 0, IndexError), ({}, "a", KeyError), ([{1: 2}], 0, TypeError)):
            with pytest.raises(error):
                form.survey(container, key, 0, 8)
    for wrong in (([1], 0, 0), ([1], 0, "0", 8), ([1], 0, 0, "8")):
        with pytest.raises(TypeError):
            compiled.survey(*wrong)


TREES = st.recursive(
    st.one_of(
        st.none(), st.integers(-5, 5), st.sampled_from(["", "short", "long " * 60, "\u00e9" * 300, "larger " * 200])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["content", "role", "a", "b"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    tree=st.dictionaries(st.sampled_from(["body", "url", "n"]), TREES, max_size=3),
    sizes=st.sampled_from([(256, 64, 512, 1 << 18), (256, 0, 512, 1 << 18), (4, 8, 16, 1 << 18), (256, 64, 512, 1000)]),
)
def test_unknown(tree: dict[str, Any], sizes: tuple[int, int, int, int]) -> None:
    """The large texts of a tree and where they are, unless a text is too large, or lists count and a digest in it is known."""
    before = repr(tree)
    digests: dict[int, Any] = {}
    texts, every = list[Any](), list[bytes]()
    with patch.object(pure, "digest", compiled.digest):  # long texts have others in C
        fits = pure._known_in(tree, ("input",), sizes, digests, texts, every)
        _unknown(tree, sizes, fits, digests, texts, every)
    assert repr(tree) == before


def _unknown(tree: dict[str, Any], sizes: Any, fits: bool, digests: Any, texts: Any, every: list[bytes]) -> None:
    for young, old in (({}, {}), (dict.fromkeys(every[:1], 1), {}), ({}, dict.fromkeys(every[-1:], 1))):
        shares = bool(sizes[1]) and bool(young or old)
        expected = texts if fits and not shares else None
        for form in (compiled, pure):
            kept: dict[int, Any] = {}
            assert form.unknown(tree, ("input",), sizes, kept, young, old) == expected
            assert kept == digests


@given(
    tree=st.dictionaries(st.sampled_from(["body", "url", "n"]), TREES, max_size=3),
    more=st.sampled_from(
        [{}, {"$x": 1}, {"t": dict.fromkeys("abcd", 1)}, {"t": [[1, 2]] * 4}, {"t": [[1, 2]] * 3 + [[1]]}]
    ),
    sizes=st.sampled_from([(256, 64, 512, 1 << 18, 4), (256, 0, 512, 1 << 18, 0), (4, 8, 16, 1 << 18, 4)]),
    least=st.sampled_from([0, 64, 1024]),
    secret=st.sampled_from([b"short", b"none of it"]),
)
def test_as_it_is(tree: dict[str, Any], more: dict[str, Any], sizes: Any, least: int, secret: bytes) -> None:
    """JSON goes into the log as it is, but for its texts, unless it has a secret, base64, or a list that may be there already: a table
    of a conversation, or what ``unknown`` does not know to be new."""
    tree |= more
    data = orjson.dumps(tree)
    with patch.object(pure, "digest", compiled.digest):
        every = pure.unknown(tree, ("input",), sizes[:4], {}, {}, {})
        for young in ({}, {} if not every else {every[0][0]: 1}):
            found = []
            for form in (compiled, pure):
                added, kept = dict(young), dict[int, Any]()
                texts = form.as_it_is(
                    data, tree, lambda data: secret in data, ("input",), sizes, least, kept, added, {}
                )
                found.append((texts, added, kept))
            assert found[0] == found[1]
            if (
                secret in data
                or b'"$' in data
                or (sizes[4] and len(data) >= least and len(more.get("t", ())) == 4 and [1] not in [*more["t"]])
            ):
                assert found[0] == (None, young, {})
            elif len(data) < least:
                assert found[0] == ([], young, {})
            else:
                assert found[0][0] == (None if young and sizes[1] else every)


def test_as_it_is_refuses() -> None:
    """What is no dictionary has to be examined; what is no JSON is a mistake, as is an error of the search."""
    sizes = (4, 8, 16, 1 << 18, 4)

    def breaks(data: bytes) -> bool:
        raise LookupError

    for form in (compiled, pure):
        assert form.as_it_is(b"[]", [], lambda _: False, (), sizes, 0, {}, {}, {}) is None
        with pytest.raises(LookupError):
            form.as_it_is(b"{}", {}, breaks, (), sizes, 0, {}, {}, {})
        with pytest.raises((TypeError, UnicodeEncodeError)):
            form.as_it_is(b"{}", {"a": "\ud800" * 9}, lambda _: False, (), sizes, 0, {}, {}, {})
    for wrong in (
        ("{}", {}, len, (), sizes, 0, {}, {}, {}), (b"{}", {}, len, [], sizes, 0, {}, {}, {}), (b"{}", {}, len, (), (1, 2), 0, {}, {}, {}),
        (b"{}", {}, len, (), sizes, "0", {}, {}, {}), (b"{}", {}, len, (), sizes, 0, None, {}, {}),
        (b"{}", {}, len, (), sizes, 0, {}, None, {}), (b"{}", {}, len, (), sizes, 0, {}, {}, None), (b"{}", {}, len, (), sizes, 0, {}, {}),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            compiled.as_it_is(*wrong)


def test_unknown_refuses() -> None:
    """What is not JSON is a mistake of the caller's."""
    sizes = (4, 8, 16, 1 << 18)
    for tree in ({"a": "\ud800" * 9}, {"a": [{"b": object()}]}):
        for form in (compiled, pure):
            with pytest.raises((TypeError, UnicodeEncodeError)):
                form.unknown(tree, ("input",), sizes, {}, {}, {})
    for wrong in (
        ([], (), sizes, {}, {}, {}), ({}, "", sizes, {}, {}, {}), ({}, (), (1, 2), {}, {}, {}), ({}, (), sizes, [], {}, {}),
        ({}, (), sizes, {}, None, {}), ({}, (), sizes, {}, {}, None), ({}, (), sizes),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            compiled.unknown(*wrong)


@given(first=st.integers(1, (1 << 32) - 50), flags=st.binary(max_size=40), width=st.sampled_from([4, 8]))
def test_numbered(first: int, flags: bytes, width: int) -> None:
    """The numbers whose flag is set, as an array has them."""
    expected = [number for number, flag in enumerate(flags, first) if flag]
    for form in (compiled, pure):
        assert array({4: "I", 8: "Q"}[width], form.numbered(first, flags, width)).tolist() == expected


@given(data=st.data(), first=st.integers(1, 40), size=st.integers(0, 40))
def test_siblings_and_answers(data: st.DataObject, first: int, size: int) -> None:
    """The tree of the entries, and which answers which, are the same in both forms, and so is what is left in the arrays."""
    earlier = st.integers(0, first + size - 1)
    parents, known = (data.draw(st.lists(earlier, min_size=n, max_size=n)) for n in (size, first + size))
    flags = data.draw(st.binary(min_size=size, max_size=size))
    found = []
    for form in (compiled, pure):
        children, answers = array("I", known), array("I", known)
        tied = array("I", form.siblings(children, first, array("I", parents)))
        found.append((tied, children, form.answered(answers, first, array("I", parents), flags), answers))
    assert found[0] == found[1]


def test_columns_of_an_index_refuse() -> None:
    """A number beyond the array, and what is no array of numbers of 32 bits, is a mistake of the caller's."""
    for form in (compiled, pure):
        with pytest.raises(IndexError):
            form.siblings(array("I", [0, 0]), 1, array("I", [2]))
        with pytest.raises(IndexError):
            form.answered(array("I", [0, 0]), 1, array("I", [2]), b"\1")
        with pytest.raises(IndexError):
            form.answered(array("I", [0, 0]), 2, array("I", [1]), b"\1")
    one = array("I", [0])
    for call, wrong in (
        (compiled.numbered, (1, "ab", 4)), (compiled.numbered, (1, b"ab", 2)), (compiled.numbered, (1, b"ab")),
        (compiled.siblings, (array("Q", [0]), 1, one)), (compiled.siblings, (one, 1, array("Q", [0]))),
        (compiled.siblings, (one, "1", one)), (compiled.siblings, (b"1234", 1, one)),
        (compiled.answered, (array("Q", [0]), 1, one, b"1")), (compiled.answered, (one, 1, array("Q", [0]), b"1")),
        (compiled.answered, (one, 1, one, "1")), (compiled.answered, (one, 1, one)),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError, BufferError)):
            call(*wrong)


class Taken:
    """What a stream of pieces is given: where it was begun, who is running, what looks for secrets, and the log."""

    def __init__(self, form: Any, look: Any, starts: tuple[str, ...]) -> None:
        self.written: list[Any] = []
        self.undone: list[None] = []
        self.lane = SimpleNamespace(owner=pure.owner(), id=3)
        self.here: Any = SimpleNamespace(lane=self.lane)
        run = SimpleNamespace(known=SimpleNamespace(starts=starts))
        self.stream = SimpleNamespace(tail="", keep=8, look=look, run=run)
        self.log, self.state = SimpleNamespace(journal=self), SimpleNamespace(ended=False)
        self.pieces = form(self.stream, self.here, lambda: self.here, self.state, self.log, "tool.chunk", 5, self.undo)

    def append(self, *entry: object) -> int:
        self.written.append(entry)
        return len(self.written)

    def undo(self) -> None:
        self.undone.append(None)

    def add(self, piece: object) -> tuple[Any, ...]:
        return self.pieces.add(piece), self.stream.tail, self.written[-1:]

    def receive(self, piece: object) -> tuple[list[Any], list[Any]]:
        kept: list[Any] = []
        left: list[Any] = []
        self.pieces.receive(kept, left.append, None, piece)
        return kept, left


def both_taken(starts: tuple[str, ...] = ()) -> tuple[Taken, Taken]:
    looks = compiled.quick_look(made_from())
    return Taken(compiled.Pieces, looks[3], starts), Taken(pure.Pieces, passing_in_python, starts)


PIECES = st.one_of(
    st.sampled_from(
        [
            "",
            "sk-",
            "proj-",
            "token=",
            "hunter2hunter2",
            "://",
            "a" * 1023,
            "b" * 1024,
            "\u20ac" * 342,
            "\ud800",
            'q"\n',
            "\u00e9",
        ]
    ),
    st.text("abc -_=0", max_size=12),
    st.builds(Text, st.text(max_size=3)),
    st.sampled_from([b"bytes", b"\xff", None, 7]),
)


@settings(max_examples=examples(600))
@given(pieces=st.lists(PIECES, max_size=12), starts=st.sampled_from([(), ("hunter", "\u00e9tat"), ("0",)]))
def test_pieces(pieces: list[Any], starts: tuple[str, ...]) -> None:
    """Which pieces of a stream are plain, and what is written of them; of one that is not plain nothing is done. What is not ASCII is
    plain in Python alone."""
    in_c, in_python = both_taken(starts)
    for piece in pieces:
        done, tail, written = in_c.add(piece)
        if done or (type(piece) is str and (in_python.stream.tail + piece).isascii()):
            assert (done, tail, written) == in_python.add(piece)
        else:
            in_python.stream.tail = in_c.stream.tail = "beside it"
        assert len(in_c.written) == len(in_python.written)
        received = piece.encode(errors="surrogatepass") if isinstance(piece, str) else piece
        kept, left = in_c.receive(received)
        assert kept + left == [received]
        if kept:
            assert in_python.receive(received) == (kept, left)
            assert in_python.written[-1] == in_c.written[-1]
            assert in_python.stream.tail == in_c.stream.tail


@pytest.mark.parametrize("form", [0, 1])
def test_pieces_that_come_elsewhere(form: int) -> None:
    """A piece that another thread or task takes, or a line without a number, is not plain; nor is one after the end of the run, or one that
    can't be written."""
    taken, me = both_taken()[form], pure.owner()
    assert taken.add("a") == (True, "a", [("tool.chunk", 3, 5, b',"step":5,"output":"a"')])
    begun = taken.here
    for other in (SimpleNamespace(lane=taken.lane), None):
        taken.here = other
        assert not taken.pieces.add("b")
    taken.here, taken.state.ended = begun, True
    assert not taken.pieces.add("b")
    taken.state.ended = False
    for owner, number in ((me + 1, 3), (0, 3), (me, -1)):
        taken.lane.owner, taken.lane.id = owner, number
        assert not taken.pieces.add("b")

    async def inside() -> tuple[bool, bool]:
        taken.lane.owner, taken.lane.id = me, 4
        of_the_thread = taken.pieces.add("c")
        taken.lane.owner = pure.owner()
        return of_the_thread, taken.pieces.add("c")

    assert asyncio.run(inside()) == (False, True)
    assert [entry[1:3] for entry in taken.written] == [(3, 5), (4, 5)]
    taken.lane.owner = me

    def refuses(*_: object) -> NoReturn:
        raise LogWriteError("no space left")

    taken.log.journal = SimpleNamespace(append=refuses)
    assert not taken.pieces.add("d")
    assert taken.receive(b"d") == ([], [b"d"])
    assert taken.stream.tail == "ac"
    taken.log.journal = SimpleNamespace(append=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        taken.pieces.add("e")
    assert taken.stream.tail == "ace"
    with pytest.raises(TypeError):
        taken.pieces.add()
    with pytest.raises(TypeError):
        taken.pieces.receive(None, print)
    with pytest.raises(TypeError):
        compiled.Pieces(1, 2)


@pytest.mark.parametrize("form", [0, 1])
def test_what_follows_a_piece(form: int) -> None:
    """What follows the text in the entry of a piece is asked for once the piece is known to be plain. Nothing is done if the log
    can't be written meanwhile."""
    taken = both_taken()[form]
    asked: list[int] = []

    def after() -> bytes:
        asked.append(len(taken.written))
        return b',"meta":{}'

    assert taken.pieces.add("a", after)
    assert taken.written == [("tool.chunk", 3, 5, b',"step":5,"output":"a","meta":{}')]
    assert not taken.pieces.add(7, after)
    assert not taken.pieces.add("sk-proj-" + "A1b2C3d4" * 6, after)
    assert asked == [0]
    kept: list[bytes] = []
    taken.pieces.receive(kept, print, after, b"b")
    assert (kept, asked) == ([b"b"], [0, 1])

    def refuses() -> NoReturn:
        raise LogWriteError("no space left")

    left: list[bytes] = []
    taken.pieces.receive(kept, left.append, refuses, b"c")
    assert (kept, left, taken.stream.tail, len(taken.written)) == ([b"b"], [b"c"], "ab", 2)
    for wrong, error in ((lambda: "text", TypeError), (lambda: 1 / 0, ZeroDivisionError)):
        with pytest.raises(error):
            taken.pieces.add("d", wrong)
    assert taken.stream.tail == "ab"

    def append(*_: object) -> NoReturn:
        raise LogWriteError("no space left")

    taken.log.journal = SimpleNamespace(append=append)
    taken.pieces.receive(kept, left.append, lambda: b"", b"d")
    assert (left, taken.undone, taken.stream.tail) == ([b"c", b"d"], [None], "ab")
    taken.pieces.receive(kept, left.append, None, b"e")
    assert (left, taken.undone) == ([b"c", b"d", b"e"], [None])


class Gone(Exception):
    """A write was given up."""


def log_of(base: Any, path: Path) -> Any:
    """A log of which ``base`` writes the entries; what it calls is noted in ``calls``."""

    class Log(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._end = (0, b"0" * 64, 0, 0)
            self._in_flight = None
            self._middles: dict[str, bytes] = {}
            self._stopped = False
            self.calls: list[Any] = []

        _os_write = staticmethod(os.write)

        def _middle(self, kind: str) -> bytes:
            self.calls.append(("middle", kind))
            return self._middles.setdefault(kind, b',"type":"%b","ts_ns":' % kind.encode())

        def _settle(self) -> None:
            self.calls.append(("settle", self._in_flight is not None, self._stopped))
            if self._in_flight is not None:
                self._end, self._in_flight = self._in_flight, None
            if self._stopped:
                raise Gone

        def _complete(self, line: bytes, written: int) -> None:
            self.calls.append(("complete", written))
            os.write(self._fd, line[written:])

        def _give_up(self, written: int, error: OSError) -> None:
            self.calls.append(("give up", written, type(error), error.errno, error.__traceback__ is not None))
            self._in_flight = None
            raise Gone from error

    return Log()


def entries_of(path: Path) -> list[Any]:
    """The entries of a file, without what depends on when it was written; their chain is checked."""
    found = []
    head = "0" * 64
    for line in path.read_bytes().splitlines(keepends=True):
        entry = json.loads(line)
        assert entry["hash"] == hashlib.sha256(head.encode() + line[:-76]).hexdigest()
        head = entry.pop("hash")
        entry.pop("ts_ns")
        found.append(entry)
    return found


READS = st.lists(
    st.tuples(
        st.sampled_from(["clock", "random"]),
        st.integers(0, 1),
        st.integers(0, 1),
        st.sampled_from(["time.time", "é", "time.time:urllib3"]),
        st.one_of(st.floats(), st.integers(), st.text(max_size=3)),
    ),
    max_size=12,
)


@given(reads=READS)
def test_grouped(reads: list[Any]) -> None:
    """Reads of one function and lane that come one after the other are one entry, whatever lies between two such groups."""
    entries = compiled.grouped(reads, lambda values: repr(values).encode())
    assert entries == pure.grouped(reads, lambda values: repr(values).encode())
    assert len(entries) == len([*groupby(read[:4] for read in reads)])


def test_grouped_refuses() -> None:
    """The compiled grouping of clock reads refuses what is not a read, and passes on what the encoder raises."""

    def fails(values: list[Any]) -> bytes:
        raise Gone

    read = ("clock", 0, 0, "f", 1)
    assert compiled.grouped([], fails) == []
    with pytest.raises(Gone):
        compiled.grouped([read], fails)
    for reads in ([read[:4]], ["read"], (read,)):
        with pytest.raises(TypeError):
            compiled.grouped(reads, repr)
    with pytest.raises(TypeError):
        compiled.grouped([read], repr)  # a text, not bytes


@pytest.mark.parametrize("form", [compiled, pure], ids=["C", "Python"])
def test_nearest(form: Any) -> None:
    """The nearest file that is known and not seen through decides; one of which nothing is known ends the search."""
    spaces: dict[str, Any] = {}
    for name in ("outer", "middle", "inner"):
        exec(compile(f"def {name}(call): return call()", f"<{name}>", "exec"), spaces)
    through = object()

    def asked(known: dict[str, Any], depth: int = 1) -> Any:
        ask = lambda: form.nearest(known, through, depth)  # noqa: E731
        return spaces["outer"](lambda: spaces["middle"](lambda: spaces["inner"](ask)))

    here = asked.__code__.co_filename
    assert asked({"<inner>": 1, "<middle>": 2}) == 1
    assert asked({"<inner>": None}) is None
    assert asked({"<inner>": through, here: through, "<middle>": 2}) == 2
    assert asked({"<inner>": through, here: through, "<middle>": through, "<outer>": False}) is False
    assert asked({"<inner>": through, "<middle>": 2}) is through
    assert asked({here: 3}, 0) == asked({here: 3}, 2) == 3
    assert asked({"<middle>": 2}, 3) == 2
    assert asked({}) is through
    assert asked({here: 1}, 10_000) is through
    with pytest.raises(TypeError):
        form.nearest({}, through, "1")


@pytest.mark.parametrize("form", [compiled, pure], ids=["C", "Python"])
def test_owner(form: Any) -> None:
    """A task has what it runs; outside of any it is the thread's."""
    assert form.owner() == threading.get_ident()
    found: list[Any] = []

    async def main() -> None:
        found.append(form.owner() == id(asyncio.current_task()))
        asyncio.get_running_loop().call_soon(lambda: found.append(form.owner() == threading.get_ident()))
        await asyncio.sleep(0)
        other = threading.Thread(target=lambda: found.append(form.owner() == threading.get_ident()))
        other.start()
        other.join()

    asyncio.run(main())
    assert found == [True, True, True]


@pytest.mark.parametrize("form", ["C", "Python"])
def test_owner_where_asyncio_is_not_imported(form: str) -> None:
    """To find out which task or thread runs does not import asyncio."""
    code = "import sys; from tracekit._native import owner, FORM; print(FORM, owner() > 0, 'asyncio' in sys.modules)"
    variables = {**os.environ, "TRACEKIT_PURE": str(int(form == "Python"))}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [form, "True", "False"]


HEADS = st.lists(
    st.sampled_from(
        [
            b"Name: value",
            b"NAME:other",
            b"x:\t a b \t",
            b" goes on",
            b"\tso: too ",
            b"no header",
            b"",
            b":",
            b"a: b: c",
            b"\xff: \xe9",
            b"a\rb: c",
        ]
    ),
    max_size=8,
)


@given(
    lines=HEADS,
    separator=st.sampled_from([b"\r\n", b"\n", b"--"]),
    first=st.sampled_from([b"HTTP/1.1 200 OK", b"", b" x"]),
)
def test_fields(lines: list[bytes], separator: bytes, first: bytes) -> None:
    """The head of a message: its first line and its headers, with lines that go on, and without what is none."""
    for head in (separator.join([first, *lines]), b"\r\n".join([first, *lines]) + b"\r"):
        found = compiled.fields(head, separator)
        assert found == pure.fields(head, separator)
        names = (b"name", b"x", b"", b"\xff", b"absent")
        assert compiled.header_values(found[1], names) == pure.header_values(found[1], names)


def test_fields_refuses() -> None:
    """What is no head and no header is a mistake."""
    for wrong in ((b"head", b""), ("head", b"\n"), (b"head",)):
        with pytest.raises(TypeError):
            compiled.fields(*wrong)
    for headers, names in (([b"a"], (b"a",)), ([("a", "b")], (b"a",)), ((), (b"a",)), ([], [b"a"])):
        with pytest.raises(TypeError):
            compiled.header_values(headers, names)


@given(variables=st.dictionaries(st.binary(max_size=6), st.binary(max_size=6), max_size=5))
def test_decoded(variables: dict[bytes, bytes]) -> None:
    """Names and values of the environment, bytes that are no text too."""
    assert compiled.decoded(variables) == pure.decoded(variables)
    assert compiled.decoded(variables) == [(os.fsdecode(name), os.fsdecode(value)) for name, value in variables.items()]


def test_decoded_refuses() -> None:
    """What is no environment is a mistake."""
    for wrong in ({"a": b"b"}, {b"a": "b"}, [(b"a", b"b")]):
        with pytest.raises(TypeError):
            compiled.decoded(wrong)


@pytest.fixture(params=["C", "Python"])
def base(request: pytest.FixtureRequest) -> Any:
    """The class in both forms."""
    return compiled.Chain if request.param == "C" else pure.Chain


class Noting:
    """The lock of a log: whether it is held."""

    held = 0

    def __enter__(self) -> None:
        self.held += 1

    def __exit__(self, *error: object) -> None:
        assert error == (None, None, None) or isinstance(error[1], BaseException)
        self.held -= 1


def test_who_rests_is_roused(base: Any, tmp_path: Path) -> None:
    """Once, whether he rests already or not; nobody holds the interpreter meanwhile, and without entries a rest ends by itself."""
    log = log_of(base, tmp_path / "log")
    log._rest(0.001, 600.0)
    log._rouse()
    log._rest(600.0, 600.0)
    resting = threading.Thread(target=log._rest, args=(600.0, 600.0))
    resting.start()
    log._rouse()
    resting.join()
    with pytest.raises(TypeError):
        log._rest()


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_entries_are_appended(base: Any, tmp_path: Path, always: bool, asleep: bool, lazy: bool) -> None:
    """The reads that wait come first; the lock is held while the file is looked at and written, and not while it is synced."""
    log = log_of(base, tmp_path / "log")
    log._lock, log._reads, log._always, log._lazy, log._asleep = Noting(), [], always, lazy, asleep
    noted: list[Any] = []

    def noting(name: str, answer: Any) -> Any:
        def call(*given: Any) -> Any:
            noted.append((name, log._lock.held, given))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call

    entry = ("one", 0, 2, b',"a":1')
    after = [("sync", 0, (1,))] if always else [("wake", 0, ())] if asleep and lazy else []
    log._look, log.sync, log._wake = noting("look", None), noting("sync", None), noting("wake", None)
    assert log.append(*entry) == 1
    assert noted == after
    noted.clear()
    assert log.append(*entry, True) == 2
    assert noted == [("look", 1, ()), ("sync", 0, (2,))]
    noted.clear()
    log._reads, log._write_with_reads = ["a read"], noting("reads", 1)
    assert log.append(*entry, False) == 1
    assert noted == [("reads", 1, (entry,)), *after]
    assert [found["seq"] for found in entries_of(tmp_path / "log")] == [1, 2]
    log._write_with_reads = noting("reads", Gone("reads"))
    with pytest.raises(Gone, match="reads"):
        log.append(*entry)
    log._look, noted[:] = noting("look", Gone("look")), []
    with pytest.raises(Gone, match="look"):
        log.append(*entry, True)
    assert noted == [("look", 1, ())]
    log._reads, log.sync, log._wake = [], noting("sync", Gone("sync")), noting("wake", Gone("wake"))
    log._look = noting("look", None)
    with pytest.raises(Gone, match="sync"):
        log.append(*entry, True)
    log._write = noting("write", Gone("write"))
    with pytest.raises(Gone, match="write"):
        log.append(*entry)
    assert log._lock.held == 0
    del log._lock
    with pytest.raises(AttributeError):
        log.append(*entry)
    with pytest.raises(TypeError):
        log.append("one", 0, 2)


def test_reads_are_kept(base: Any, tmp_path: Path) -> None:
    """A read waits; who rests is woken by it, and where too many wait they are written."""
    log = log_of(base, tmp_path / "log")
    noted: list[str] = []
    log._reads, log._asleep = deque(), False
    log._wake, log._crowded = lambda: noted.append("wake"), lambda: noted.append("crowded")
    log.read("clock", 0, 1, "time.time", 1.5)
    assert list(log._reads) == [("clock", 0, 1, "time.time", 1.5)]
    log._asleep = True
    log.read("random", 0, 1, "random.random", 0.5)
    log._asleep = False
    log._reads.extend([("clock", 0, 1, "time.time", 1.5)] * (pure.PENDING - 3))
    log.read("clock", 0, 1, "time.time", 1.5)
    assert (noted, len(log._reads)) == (["wake"], pure.PENDING)
    log.read("clock", 0, 1, "time.time", 1.5)
    assert noted == ["wake", "crowded"]
    log._crowded = [].pop
    with pytest.raises(IndexError):
        log.read("clock", 0, 1, "time.time", 1.5)
    with pytest.raises(TypeError):
        log.read("clock", 0, 1, "time.time")
    del log._reads
    with pytest.raises(AttributeError):
        log.read("clock", 0, 1, "time.time", 1.5)


def test_lines_of_several_entries(base: Any, tmp_path: Path) -> None:
    """Each is chained to the one before, all have one time, which never goes back, and where the log ends then is said. They are written
    after that end only."""
    log = log_of(base, tmp_path / "log")
    log._end = before_them = (7, b"0" * 64, 2**62, 100)
    data, end = log._lines(before_them, [("one", 0, 2, b',"a":1'), ("two", 3, 0, b""), ("one", 0, 1, b"")])
    assert log._put(before_them, data, end)
    assert log._end is end
    assert not log._put(before_them, data, before_them)
    assert log._end is end
    assert log._in_flight is None
    assert entries_of(tmp_path / "log") == [
        {"v": 1, "seq": 8, "type": "one", "lane": 0, "parent": 2, "a": 1},
        {"v": 1, "seq": 9, "type": "two", "lane": 3},
        {"v": 1, "seq": 10, "type": "one", "lane": 0, "parent": 1},
    ]
    assert {json.loads(line)["ts_ns"] for line in data.splitlines()} == {2**62}
    assert end == (10, json.loads(data.splitlines()[-1])["hash"].encode(), 2**62, 100 + len(data))
    assert log.calls == [("middle", "one"), ("middle", "two")]
    before = time.time_ns()
    assert before <= log._lines((0, b"0" * 64, 0, 0), [("one", 0, 2, b"")])[1][2] <= time.time_ns()
    for wrong in ([("one", 0, 2)], [("one", "0", 2, b"")], [("one", 0, 2, "tail")], ["one"]):
        with pytest.raises((TypeError, ValueError)):
            log._lines(end, wrong)


READS = [("random", 0, 1, "uuid.uuid4", "ab"), ("clock", 0, 1, "time.time", 1.5), ("clock", 0, 1, "time.time", 2.5)]


def log_with_reads(base: Any, path: Path) -> Any:
    """A log for which ``READS`` wait; what is given back waits again, and is noted in ``returned``."""
    log = log_of(base, path)
    log._reads, log._encode_read, log.returned = deque(READS), lambda values: json.dumps(values).encode(), []

    def give_back(reads: list[Any]) -> None:
        log.returned.append(list(reads))
        log._reads.extendleft(reversed(reads))

    log._give_back = give_back
    return log


def test_reads_are_written_with_the_entry_after_them(base: Any, tmp_path: Path) -> None:
    """One write puts them into the file, those of one function and lane as one entry; without anything to write none is made."""
    log = log_with_reads(base, tmp_path / "log")
    sizes: list[int] = []

    def write(fd: int, data: bytes) -> int:
        sizes.append(os.write(fd, data))
        return sizes[-1]

    log._os_write = write
    assert log._write_with_reads(("one", 2, 3, b',"a":1')) == 3
    assert (list(log._reads), sizes) == ([], [(tmp_path / "log").stat().st_size])
    assert log._write_with_reads() == 3
    assert (log._end[0], log._end[3], log._in_flight, len(sizes), log.returned) == (3, sizes[0], None, 1, [])
    log._reads.append(READS[0])
    assert log._write_with_reads() == 4
    found = entries_of(tmp_path / "log")
    assert [(one["seq"], one["type"], one.get("name"), one.get("values")) for one in found] == [
        (1, "random", "uuid.uuid4", ["ab"]),
        (2, "clock", "time.time", [1.5, 2.5]),
        (3, "one", None, None),
        (4, "random", "uuid.uuid4", ["ab"]),
    ]
    log._stopped = True
    for entries in ((), (("one", 0, 0, b""),)):
        with pytest.raises(Gone):
            log._write_with_reads(*entries)
    for missing in ("_reads", "_encode_read"):
        delattr(log, missing)
        with pytest.raises(AttributeError):
            log._write_with_reads()


def test_reads_that_were_not_written_wait_again(base: Any, tmp_path: Path) -> None:
    """Whatever went wrong, in their order; the next entry is written after them."""
    log = log_with_reads(base, tmp_path / "log")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "full")

    def interrupted(values: list[Any]) -> bytes:
        raise KeyboardInterrupt

    log._os_write = full
    with pytest.raises(Gone):
        log._write_with_reads(("one", 0, 0, b""))
    log._encode_read = interrupted
    with pytest.raises(KeyboardInterrupt):
        log._write_with_reads(("one", 0, 0, b""))
    log._encode_read = lambda values: json.dumps(values).encode()
    with pytest.raises(TypeError):
        log._write_with_reads(("one", 0, 0, "no bytes"))
    assert log.returned == [READS] * 3
    assert (list(log._reads), log._end[0], log._in_flight) == (READS, 0, None)
    del log._os_write
    assert log._write_with_reads(("one", 0, 0, b"")) == 3
    assert [entry["type"] for entry in entries_of(tmp_path / "log")] == ["random", "clock", "one"]


def test_reads_in_flight_do_not_wait_again(base: Any, tmp_path: Path) -> None:
    """After a Ctrl-C while the system writes they may be in the file: they are not written twice."""
    log = log_with_reads(base, tmp_path / "log")

    def interrupted(fd: int, data: bytes) -> int:
        os.write(fd, data)
        raise KeyboardInterrupt

    log._os_write = interrupted
    with pytest.raises(KeyboardInterrupt):
        log._write_with_reads(("one", 0, 0, b""))
    assert (list(log._reads), log.returned, log._in_flight[0]) == ([], [], 3)
    del log._os_write
    assert log._write("one", 0, 0, b"") == 4
    assert [entry["seq"] for entry in entries_of(tmp_path / "log")] == [1, 2, 3, 4]


def test_an_entry_within_a_write_of_reads_comes_after_it(base: Any, tmp_path: Path) -> None:
    """A signal handler that runs while the values are encoded writes before them, one that runs while the system writes after them."""
    log = log_with_reads(base, tmp_path / "log")

    def encode(values: list[Any]) -> bytes:
        if len(values) == 1:
            log._write("encoding", 0, 0, b"")
        return json.dumps(values).encode()

    def interrupted(fd: int, data: bytes) -> int:
        written = os.write(fd, data)
        if b"encoding" not in data:
            del log._os_write
            log._write("inner", 0, 0, b"")
        return written

    log._encode_read, log._os_write = encode, interrupted
    assert log._write_with_reads(("outer", 0, 0, b"")) == 4
    assert [entry["type"] for entry in entries_of(tmp_path / "log")] == [
        "encoding",
        "random",
        "clock",
        "outer",
        "inner",
    ]
    assert (log._end[0], log._in_flight, log.returned) == (5, None, [])


def test_entries_are_written(base: Any, tmp_path: Path) -> None:
    """Each one is in the file when ``_write`` returns, and the end is where the file ends; time never goes back."""
    log = log_of(base, tmp_path / "log")
    log._end = (0, b"0" * 64, 2**62, 0)
    assert [log._write("one", 0, 0, b',"a":1'), log._write("two", 3, 1, b""), log._write("one", 0, 2, b"")] == [1, 2, 3]
    assert entries_of(tmp_path / "log") == [
        {"v": 1, "seq": 1, "type": "one", "lane": 0, "a": 1},
        {"v": 1, "seq": 2, "type": "two", "lane": 3, "parent": 1},
        {"v": 1, "seq": 3, "type": "one", "lane": 0, "parent": 2},
    ]
    seq, head, ts, size = log._end
    assert (seq, ts, size, log._in_flight) == (3, 2**62, (tmp_path / "log").stat().st_size, None)
    assert head.decode() in (tmp_path / "log").read_text().splitlines()[-1]
    log._end = (3, head, 0, size)
    before = time.time_ns()
    log._write("one", 0, 0, b"")
    assert before <= log._end[2] <= time.time_ns()
    assert log.calls == [("middle", "one"), ("middle", "two")]


def test_a_short_write_is_completed(base: Any, tmp_path: Path) -> None:
    """The rest is written by ``_complete``, which is told how much is there."""
    log = log_of(base, tmp_path / "log")
    log._os_write = lambda fd, data: os.write(fd, data[:100])
    assert log._write("one", 0, 0, b',"a":"%b"' % (b"x" * 200)) == 1
    assert log.calls == [("middle", "one"), ("complete", 100)]
    assert [entry["seq"] for entry in entries_of(tmp_path / "log")] == [1]
    assert log._end[3] == (tmp_path / "log").stat().st_size


def test_a_write_that_fails_is_given_up(base: Any, tmp_path: Path) -> None:
    """Whatever ``_give_up`` raises comes out, caused by the error; nothing is in flight, and the next entry takes its place."""
    log = log_of(base, tmp_path / "log")

    def full(fd: int, data: bytes) -> int:
        assert log._in_flight is not None
        raise OSError(28, "full")

    log._os_write = full
    for _ in range(3):
        with pytest.raises(Gone) as caught:
            log._write("one", 0, 0, b"")
        assert isinstance(caught.value.__cause__, OSError)
    assert log.calls == [("middle", "one"), *[("give up", 0, OSError, 28, True)] * 3]
    assert (log._end[0], log._in_flight) == (0, None)
    del log._os_write
    assert log._write("one", 0, 0, b"") == 1


def test_another_error_leaves_the_entry_in_flight(base: Any, tmp_path: Path) -> None:
    """A Ctrl-C while the system writes: the entry may be in the file, and is taken to be; the next one settles that."""
    log = log_of(base, tmp_path / "log")

    def interrupted(fd: int, data: bytes) -> int:
        os.write(fd, data)
        raise KeyboardInterrupt

    log._os_write = interrupted
    with pytest.raises(KeyboardInterrupt):
        log._write("one", 0, 0, b"")
    assert log._in_flight[0] == 1
    assert log._end[0] == 0
    del log._os_write
    assert log._write("one", 0, 0, b"") == 2
    assert log.calls == [("middle", "one"), ("settle", True, False)]
    assert [entry["seq"] for entry in entries_of(tmp_path / "log")] == [1, 2]


def test_an_entry_within_a_write_comes_after_it(base: Any, tmp_path: Path) -> None:
    """A signal handler that runs while the system writes."""
    log = log_of(base, tmp_path / "log")
    inside: list[int] = []

    def interrupted(fd: int, data: bytes) -> int:
        written = os.write(fd, data)
        del log._os_write
        inside.append(log._write("inner", 0, 0, b""))
        return written

    log._os_write = interrupted
    assert log._write("outer", 0, 0, b"") == 1
    assert inside == [2]
    assert log._write("outer", 0, 0, b"") == 3
    assert [entry["type"] for entry in entries_of(tmp_path / "log")] == ["outer", "inner", "outer"]
    assert (log._end[0], log._in_flight) == (3, None)


def test_an_entry_that_comes_between_goes_first(base: Any, tmp_path: Path) -> None:
    """What is written after the end was read, by a finalizer say: the line is made anew, after that one."""
    log = log_of(base, tmp_path / "log")

    class Late(int):
        """A number that writes an entry when it is forgotten."""

        def __del__(self) -> None:
            if log._end[0] == 0:
                log._write("first", 0, 0, b"")

    log._write("zero", 0, 0, b"")
    os.truncate(tmp_path / "log", 0)
    log._end = (0, b"0" * 64, 0, 0)
    threshold = gc.get_threshold()
    gc.disable()
    try:
        trash: list[Any] = [Late(1)]
        trash.append(trash)
        del trash
        kept = [(number,) * 4 for number in range(5000)]  # a new tuple is not made of a former one
        gc.set_threshold(1)
        gc.enable()
        log._write("second", 0, 0, b"")
    finally:
        gc.set_threshold(*threshold)
        gc.enable()
    del kept
    # From 3.12 on the collector runs between lines of Python alone.
    types = [entry["type"] for entry in entries_of(tmp_path / "log")]
    assert types == ["first", "second"] or (sys.version_info >= (3, 12) and types == ["second"])


def test_what_stands_in_the_way_is_asked_first(base: Any, tmp_path: Path) -> None:
    """A log that was stopped writes nothing; what ``_settle`` raises comes out."""
    log = log_of(base, tmp_path / "log")
    log._stopped = True
    with pytest.raises(Gone):
        log._write("one", 0, 0, b"")
    assert log.calls == [("middle", "one"), ("settle", False, True)]
    assert entries_of(tmp_path / "log") == []


def test_a_log_is_forgotten(base: Any, tmp_path: Path) -> None:
    """It keeps nothing alive, nor itself in a circle."""
    log = log_of(base, tmp_path / "log")
    log.calls.append(log)
    log._middles["self"] = log
    gone = weakref.ref(log)
    del log
    gc.collect()
    assert gone() is None


def test_a_chain_without_its_attributes() -> None:
    """Nothing is written by mistake: each attribute has to be there, and be what it is."""

    class Bare(compiled.Chain):  # type: ignore[misc]
        _os_write = staticmethod(os.write)

        def _middle(self, kind: str) -> bytes:
            return b""

    log = Bare()
    with pytest.raises(AttributeError):
        log._write("one", 0, 0, b"")
    log._fd, log._in_flight, log._middles = -1, None, {"one": b""}
    for end in (None, (), (0, b"", 0, 0), (0, b"0" * 64, 0), ("0", b"0" * 64, 0, 0), [0, b"0" * 64, 0, 0]):
        log._end = end
        with pytest.raises(TypeError):
            log._write("one", 0, 0, b"")
    log._end = (0, b"0" * 64, 0, 0)
    for wrong in (
        (),
        ("one", 0, 0),
        ("one", "0", 0, b""),
        ("one", 0, None, b""),
        ("one", 0, 0, "text"),
        ([], 0, 0, b""),
    ):
        with pytest.raises(TypeError):
            log._write(*wrong)


#: What can be JSON of another writer, with the numbers that two writers may write in two ways, and texts full of signs.
WRITTEN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.floats(1e14, 1e18),
        st.sampled_from([1e15, 1e16, 9999999999999998.0, 123456789012345.6, 0.0001, 0.00012, 0.00001, 10.00005, -0.0]),
        st.text(),
        st.text('\\",: {}[]e1.'),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('\\",: a'), inner)),
    max_leaves=12,
)


@settings(max_examples=examples(800))
@given(value=WRITTEN, way=st.sampled_from(["json", "ascii", "orjson", "by hand"]))
def test_spaced(value: Any, way: str) -> None:
    """Which JSON is another's only but for its spaces; a yes means that Python's ``json`` writes it so, to the byte."""
    try:
        data = orjson.dumps(value)
        if way == "by hand":  # what nobody writes so
            content = b"".join(
                part if number % 2 else part.replace(b",", b", ").replace(b":", b": ")
                for number, part in enumerate(re.split(rb'("(?:[^"\\]|\\.)*")', data))
            )
        else:
            content = data if way == "orjson" else json.dumps(value, ensure_ascii=way == "ascii").encode()
            data = orjson.dumps(orjson.loads(content))
    except (TypeError, ValueError):  # no text
        return
    for one in (content, content[:-1], content + b" ", content.replace(b" ", b"", 1)):
        found = compiled.spaced(one, data)
        assert found is pure.spaced(one, data)
        if found:
            assert json.dumps(orjson.loads(data), ensure_ascii=False).encode() == one


def test_spaced_finds_what_is_usual() -> None:
    """A body of a Python program is found to be one, and what is cut, or no bytes, is none."""
    value = {"text": 'a "quoted" \\ line\n, ä: ', "list": [1, -2.5, None, True, {}, []], "0": {"": "\\"}, "e": 1000.25}
    content, data = json.dumps(value, ensure_ascii=False).encode(), orjson.dumps(value)
    assert compiled.spaced(content, data) is pure.spaced(content, data) is True
    for at in range(len(data)):
        assert compiled.spaced(content, data[:at]) is False
    for wrong in ((content,), (content, data.decode()), (None, data)):
        with pytest.raises(TypeError):
            compiled.spaced(*wrong)


def test_plain_refuses() -> None:
    """What is no dictionary and no list is a mistake of the caller's."""
    for wrong in ((1, 2, 3), ([], 0, 3), ([],), ([], "1", 2)):
        with pytest.raises(TypeError):
            compiled.plain(*wrong)
