"""What a tool returned is the same in a replay in all that a program can find out: layout, flags, names."""

from __future__ import annotations

import argparse
import array
import collections
import contextlib
import datetime
import io
import os
import platform
import random
import sqlite3
import struct
import subprocess
import sys
import types
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pydantic_core
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.support.tracing import both, recorded, replayed
from tracekit import NotReplayableError, traced_tool
from tracekit.integration import from_json


def seen(value: Any) -> Any:
    """What a program can find out about a value."""
    kind = type(value).__qualname__
    if isinstance(value, np.ndarray):
        flags = (value.flags.c_contiguous, value.flags.f_contiguous, value.flags.owndata, value.flags.writeable)
        strides = [stride for size, stride in zip(value.shape, value.strides, strict=True) if size > 1]
        return (kind, value.dtype.descr, value.shape, strides, flags, value.tolist())
    if isinstance(value, memoryview):
        return (kind, value.readonly, value.format, value.shape, value.tobytes())
    if isinstance(value, datetime.datetime | datetime.time):
        return (kind, repr(value.replace(tzinfo=None)), value.utcoffset(), value.tzname(), value.fold)
    if isinstance(value, io.BytesIO | io.StringIO):
        return (kind, value.tell(), value.read(), value.getvalue(), vars(value))
    if isinstance(value, sqlite3.Row):
        return (kind, value.keys(), tuple(value))
    if isinstance(value, os.stat_result):
        return (kind, tuple(value), value.st_mtime_ns, value.st_blocks)
    if isinstance(value, float):
        return (kind, struct.pack("d", value))
    if isinstance(value, int):
        return (kind, hex(value))
    return (kind, repr(value), getattr(value, "__dict__", None))


def _half_read(value: Any) -> Any:
    value.read(2)
    value.name = "chart.png"
    return value


def _read_only() -> Any:
    value = np.arange(6).reshape(2, 3)
    value.flags.writeable = False
    return value


def _emptied() -> set[int]:
    value = set(range(0, 80, 8))
    for one in range(40, 80, 8):
        value.discard(one)
    return value


def _sampled(count: int) -> set[int]:
    return set(random.Random(count).sample(range(10**6), count))


class Settings(collections.UserDict[str, int]):
    """A subclass of the program's own."""


def _row() -> Any:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        return database.execute('SELECT 1 AS a, \'x\' AS "b "" c", NULL AS a').fetchone()


class OneHour(datetime.tzinfo):
    def utcoffset(self, dt: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=1)

    def dst(self, dt: Any) -> None:
        return None

    def tzname(self, dt: Any) -> str:
        return "ONE"


EXACT: dict[str, Callable[[], Any]] = {
    "an array that owns its memory": lambda: np.array([1.5, 2.5]),
    "a view": lambda: np.arange(6).reshape(2, 3),
    "Fortran order": lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
    "a transposed array": lambda: np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "a copy in its order": lambda: np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1).copy(order="K"),
    "backwards": lambda: np.arange(5)[::-1],
    "with fields": lambda: np.array([(1, 2.5, "a"), (2, -0.0, "bc")], [("n", "<i4"), ("x", ">f8"), ("text", "<U2")]),
    "a field of one": lambda: np.zeros(3, [("a", "i4"), ("b", "M8[D]")])["b"],
    "every second": lambda: np.arange(10)[::2],
    "a column": lambda: np.arange(12.0).reshape(3, 4)[:, 1],
    "broadcast": lambda: np.broadcast_to(np.arange(3), (2, 3)),
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(np.arange(5), 3),
    "read-only": _read_only,
    "of bytes": lambda: np.frombuffer(b"abcd", dtype="u1"),
    "big-endian": lambda: np.arange(3, dtype=">i4"),
    "no dimension": lambda: np.array(5.0),
    "empty": lambda: np.empty((0, 3), order="F"),
    "objects": lambda: np.array([1, "a", None], dtype=object),
    "objects in Fortran order": lambda: np.asfortranarray(np.array([[1, "a"], [None, 2]], dtype=object)),
    "a file in memory": lambda: io.BytesIO(b"abc\xff"),
    "a file in memory, half read": lambda: _half_read(io.BytesIO(b"abc")),
    "a text in memory, half read": lambda: _half_read(io.StringIO("a\r\nbc", newline=None)),
    "a text in memory with line ends": lambda: io.StringIO("a\r\nbc", newline=""),
    "a memoryview": lambda: memoryview(b"abc"),
    "a writable memoryview": lambda: memoryview(bytearray(b"abc")),
    "a memoryview of numbers": lambda: memoryview(array.array("i", [1, 2])),
    "a memoryview of two dimensions": lambda: memoryview(bytes(6)).cast("B", (2, 3)),
    "a named offset": lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "X")),
    "a time with a named offset": lambda: datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(0), "GMT")),
    "a time of a zone": lambda: datetime.time(1, 2, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "defaults of defaults": lambda: collections.defaultdict(collections.Counter, a=collections.Counter("ab")),
    "a zone of another class": lambda: datetime.datetime(2026, 1, 2, tzinfo=OneHour()),
    "a fold": lambda: datetime.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "the state of a file": lambda: os.stat("/"),
    "the size of a terminal": lambda: os.terminal_size((80, 24)),
    "times": os.times,
    "a set whose members collide": lambda: {8, 0, 16},
    "a frozenset": lambda: frozenset([16, 8, 0, 1.5]),
    "a set of pairs": lambda: {(x, y) for x in range(3) for y in range(4)},
    "a set without room for more": lambda: _sampled(18),
    "a large set": lambda: _sampled(300),
    "a union": lambda: _sampled(9) | _sampled(7),
    "a set from which members were removed": _emptied,
    "the keys of a dictionary": lambda: {"b": 1, "a": 2}.keys(),
    "the values of a dictionary": lambda: {"b": [1], "a": 2}.values(),
    "the items of an ordered dictionary": lambda: collections.OrderedDict(b=1, a=2).items(),
    "a read-only dictionary": lambda: types.MappingProxyType({"b": 1, "a": 2}),
    "a row of a database": _row,
    "a dictionary of the user's": lambda: Settings(b=1, a=2),
    "a list of the user's": lambda: collections.UserList([1, "a"]),
    "arguments of a command line": lambda: argparse.Namespace(verbose=True, files=["a"]),
    "a finished process": lambda: subprocess.CompletedProcess(["true"], 0, b"", b""),
    "a URL of pydantic": lambda: pydantic.HttpUrl("http://ann@a.example/x?y=1"),
    "a URL of several hosts": lambda: pydantic.PostgresDsn("postgres://a.example,b.example/db"),
    "a URL of pydantic's core": lambda: pydantic_core.Url("http://a.example"),
    "a deque": lambda: collections.deque([1, 2], 3),
    "an array of the standard library": lambda: array.array("f", [0.1, -0.0]),
    "minus zero": lambda: -0.0,
    "a large number": lambda: 10**5000,
    "half a surrogate pair": lambda: "a\ud800",
}


@pytest.mark.parametrize("what", EXACT)
def test_nothing_tells_a_recorded_value_from_the_original(what: str) -> None:
    """Type, contents, order of iteration, memory order, flags and names."""

    @traced_tool(side_effect="read_only")
    def made() -> Any:
        return EXACT[what]()

    _, first, second = both(lambda: seen(made()))
    assert second == first


PROGRAM = """
import pathlib, sys
import numpy as np
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="read_only")
def made():
    rows = ["row"]
    numbers = np.arange(6.0).reshape(2, 3).T
    numbers.flags.writeable = False
    return {"rows": rows, "open": {"rows": rows}, "numbers": numbers}

def program():
    found = made()
    found["rows"].append("new")
    return [found["open"], found["numbers"].strides, found["numbers"].flags.writeable]

if sys.argv[1] == "record":
    with record("test", path="run.jsonl"):
        print(program())
else:
    with replay("run.jsonl") as session:
        print(program())
    assert session.report.exact, session.report.as_dict()
"""


def test_the_same_in_another_process(tmp_path: Path) -> None:
    """A process that has none of the objects makes them as they were."""
    (tmp_path / "program.py").write_text(PROGRAM)
    said = [
        subprocess.run(
            [sys.executable, "program.py", how],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        for how in ("record", "replay")
    ]
    assert said[0] == said[1]
    assert "'rows': ['row', 'new']" in said[0]


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(st.data())
def test_any_layout_of_an_array(data: st.DataObject) -> None:
    """However an array lies in its memory, the one of a replay lies there in the same way, and takes part in sums alike."""
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    value: Any = np.arange(int(np.prod(shape, dtype=int)), dtype=data.draw(st.sampled_from(["<f8", ">i4", "u1", "|O"])))
    value = value.reshape(shape)
    value = value.transpose(data.draw(st.permutations(range(value.ndim))))
    if value.dtype != object:
        steps = [slice(None, None, data.draw(st.sampled_from([1, 2, -1, -2]))) for _ in range(value.ndim)]
        value = value[(..., *steps)]
    if data.draw(st.booleans()):
        value = value.copy(order=data.draw(st.sampled_from(["C", "F", "K"])))
    value.flags.writeable = data.draw(st.booleans())

    @traced_tool(side_effect="read_only")
    def made() -> Any:
        return value

    def program() -> Any:
        found = made()
        return seen(found) if found.size else (found.shape, found.flags.owndata, found.flags.writeable)

    _, first, second = both(program)
    assert second == first


@pytest.mark.parametrize(
    "tree",
    [
        {"$t": "ndarray", "dtype": "<i4", "shape": [2], "v": "AAAAAAAAAAA=", "strides": [10**9]},
        {"$t": "ndarray", "dtype": "<i4", "shape": [2], "v": "AAAAAAAAAAA=", "strides": ["a"]},
        {"$t": "ndarray", "dtype": "<i4", "shape": [2], "v": "AAAAAAAAAAA=", "strides": [4, 4]},
        {"$t": "ndarray", "dtype": "<i4", "shape": [2], "v": "AAAAAAAAAAA=", "strides": 4},
        {"$t": "ndarray", "dtype": [["a", "<i4"], ["a", "<i4"]], "shape": [1], "v": "AAAAAAAAAAA="},
        {"$t": "ndarray", "dtype": [["a", "|O"]], "shape": [1], "v": "AAAAAAAAAAA="},
        {"$t": "ndarray", "dtype": [["a"]], "shape": [2], "v": "AAAAAAAAAAA="},
        {"$t": "memoryview", "v": "AAAA", "format": "i", "shape": [1]},
        {"$t": "memoryview", "v": "AAAA", "format": "B", "shape": [-3]},
        {"$t": "memoryview", "v": "AAAA", "format": "<x", "shape": [3]},
        {"$t": "BytesIO", "v": ["a"], "at": 0},
        {"$t": "BytesIO", "v": [{"$t": "bytes", "v": "AAAA"}], "at": -1},
        {"$t": "StringIO", "v": ["a", "b"], "at": 0},
        {"$t": "StringIO", "v": ["a"], "at": "b"},
        {"$t": "set", "v": [0, 8], "order": [0, 0]},
        {"$t": "set", "v": [0, 8], "order": ["0", 1]},
        {"$t": "set", "v": [0, 8], "order": [1, 0], "slots": 10**9},
        {"$t": "view", "c": "clear", "v": {}},
        {"$t": "mappingproxy", "v": [1]},
        {"$t": "sqlite_row", "c": ["a"], "v": []},
        {"$t": "sqlite_row", "c": [], "v": []},
        {"$t": "url", "c": "pydantic.networks:HttpUrl", "of": "ValidationError", "v": "http://a.example"},
        {"$t": "url", "c": "pydantic.types:SecretStr", "of": "Url", "v": "http://a.example"},
        {"$t": "object", "c": "threading:Thread", "v": {}},
        {"$t": "structseq", "c": "os:stat_result", "v": [], "f": {}},
        {"$t": "structseq", "c": "builtins:tuple", "v": [], "f": {}},
        {"$t": "datetime", "v": "2026-01-02T00:00:00", "name": "X"},
    ],
)
def test_malformed_values_of_these_kinds(tree: Any) -> None:
    """A trace is untrusted: an array that would need more memory than it has data, and the like, is refused."""
    with pytest.raises(NotReplayableError):
        from_json(tree)


def test_a_named_tuple_that_computes_its_fields_is_said() -> None:
    """What could not be made again is no silent loss: the run says it."""

    @traced_tool(side_effect="read_only")
    def machine() -> Any:
        return platform.uname()

    run, _ = recorded(machine)
    if sys.version_info[:2] == (3, 11) or any("uname_result" in warning for warning in run.warnings):
        assert any("uname_result" in warning for warning in run.warnings)
    with pytest.raises(NotReplayableError):
        replayed(run, machine)


class Account(pydantic.BaseModel):
    name: str
    word: pydantic.SecretStr


def test_a_secret_text_is_never_written() -> None:
    """Whatever it looks like, and wherever it is: a replay has a placeholder in its place, and says so."""
    word = "blue"

    @traced_tool(side_effect="read_only")
    def account(found: list[Any]) -> Any:
        found.append(pydantic.SecretStr(word))
        return Account(name="Ann", word=pydantic.SecretStr(word))

    @traced_tool(side_effect="read_only")
    def fail() -> None:
        raise ValueError(pydantic.SecretStr(word))

    def program() -> Any:
        found: list[Any] = []
        made = account(found)
        with pytest.raises(ValueError) as caught:
            fail()
        return [made.word, found[0], caught.value.args[0]]

    run, made = recorded(program)
    assert [one.get_secret_value() for one in made] == [word] * 3
    assert word.encode() not in Path(run.path).read_bytes()
    report, again = replayed(run, program)
    assert [type(one) for one in again] == [pydantic.SecretStr] * 3
    assert len({one.get_secret_value() for one in again}) == 1
    assert "redacted" in {remark.code for remark in report.verdict.remarks}
