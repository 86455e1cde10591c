"""A trace that is read in blocks, by the C extension, says what one says that is read line by line: whatever its bytes are."""

from __future__ import annotations

import json
import re
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tests.support.plain_writer import chained_raw, lines
from tracekit._journal import reader
from tracekit._runs.recovery import decide, held
from tracekit._runtime.recovered import RecoveredLog
from tracekit._runtime.replayer import NEEDED
from tracekit.errors import TracekitError
from tracekit.integration import Trace

compiled: Any = pytest.importorskip("tracekit._native._compiled", reason="this installation has no C extension")

EVERYTHING = (*NEEDED, RecoveredLog)
GOLDEN = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "golden").rglob("*.jsonl"))]

# -- traces ------------------------------------------------------------------------------------------------------------

CALLS = {
    "tool.call": ("tool.return", "tool.error", "tool.skipped", "tool.chunk"),
    "llm.request": ("llm.response", "llm.error", "llm.chunk"),
    "http.request": ("http.response", "http.error", "http.chunk"),
    "process.start": ("process.end", "process.error", "process.chunk"),
    "span.start": ("span.end",),
}
OTHERS = (
    *(
        "decision",
        "data",
        "policy.check",
        "contract.violated",
        "budget.exceeded",
        "clock",
        "random",
        "blob",
        "lane",
        "boundary",
    ),
    *(
        "identity",
        "input",
        "recovery.started",
        "recovery.settled",
        "contract.validated",
        "a.type.of.tomorrow",
        "run.completed",
    ),
)
METAS: list[dict[str, Any]] = [
    {},
    {"side_effect": "read_only"},
    {"side_effect": "irreversible"},
    {"side_effect": "irreversible", "info": {"once_by": "s", "attempt": 2}},
    {"side_effect": "read_only", "info": {"waited": True}},
    {"info": {"compensates": 3}, "side_effect": "irreversible"},
    {"info": {"duplicate_of": 2}},
    {"info": {"settled": {"done": True}}},
    {"info": {"in_doubt": True, "undeclared": True}},
    {"info": {"family": "tool"}},
    {"info": 5},
    {"info": [{"waited": 1}]},
    {"abandoned": True},
    {"suspended": True},
    {"redacted": [["/output", 0, "[redacted:key:1]"]]},
    {"start": "failed"},
    {"failure": {"type": "timeout"}},
    {"model": "m", "deeper": {"compensates": {"settled": 1}}},
]
VALUES: list[Any] = [
    None,
    "text",
    'Grüße 😀 \u2028 \x7f \\ " \n',
    [],
    {},
    [1, -2.5, 1e22, True, None, {"a": [[]]}],
    {"$t": "opaque", "v": "x"},
    {"$t": "tuple", "v": [1, 2]},
    {"$ref": 2},
    {"$ref": 4, "at": ["input", 1]},
    {"$extend": 3, "at": ["output"], "n": 1, "v": ["more"]},
    {"raised": "ConnectError"},
    "long " * 100,
]


@st.composite
def entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A run: most of it is calls with outcomes, some of it whatever a trace may hold."""
    found: list[dict[str, Any]] = [{"type": "run.started", "name": "r", "meta": {"durability": "effects"}}]
    calls: list[tuple[int, str]] = []
    for seq in range(2, draw(st.sampled_from([3, 10, 30, 60]))):
        lane = draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
        parent = draw(st.sampled_from([1, 1, 1, *range(1, seq)]))
        one: dict[str, Any] = {"lane": lane, "parent": parent}
        what = draw(st.integers(0, 19))
        if calls and what < 9:
            step, kind = calls[draw(st.integers(-1, len(calls) - 1))]
            one |= {"type": draw(st.sampled_from([CALLS[kind][0]] * 6 + [*CALLS[kind]])), "step": step, "parent": step}
            one |= {"output": draw(st.sampled_from(VALUES))} if draw(st.integers(0, 9)) else {}
        elif what < 17:
            kind = draw(st.sampled_from([*["tool.call"] * 4, *CALLS]))
            calls.append((seq, kind))
            one |= {
                "type": kind,
                "name": "t",
                "input": draw(st.sampled_from(VALUES)),
                "meta": {"side_effect": "read_only"},
            }
        else:
            one |= _other(draw, seq)
        if not draw(st.integers(0, 9)):
            one["meta"] = draw(st.sampled_from(METAS))
        found.append(one)
    return found


def _other(draw: st.DrawFn, seq: int) -> dict[str, Any]:
    kind = draw(st.sampled_from(OTHERS))
    if kind in ("clock", "random"):
        name = draw(st.sampled_from(["time.time", "package:time.time", "asyncio.timer", "future.begin", None]))
        about: dict[str, Any] = {"values": [1.5]} if draw(st.booleans()) else {"input": {"n": 0, "after": 0}}
        return {"type": kind, **({} if name is None else {"name": name}), **about}
    if kind == "lane":
        about = {
            "id": draw(st.integers(1, 3)),
            "parent": 0,
            "name": "thread",
            "n": seq,
            "under": draw(st.integers(0, seq)),
        }
        return {"type": kind, "input": about}
    if kind == "blob":
        return {"type": kind, "output": draw(st.sampled_from(VALUES))}
    if kind == "recovery.settled":
        return {
            "type": kind,
            "step": draw(st.integers(1, seq - 1)),
            "meta": {"info": {"settled": {"done": draw(st.booleans())}}},
        }
    return {
        "type": kind,
        "name": "x",
        "agent_id": "a",
        "input": draw(st.sampled_from(VALUES)),
        "output": draw(st.sampled_from(VALUES)),
    }


# -- what is done to them ----------------------------------------------------------------------------------------------

#: What may stand somewhere in a line.
SNIPPETS = (
    *(
        b"",
        b" ",
        b"\t",
        b"\n",
        b"\0",
        b"\r\n",
        b",",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b'"',
        b"\\",
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
    ),
    *(
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xf0\x9f\x98\x80",
        b"\\u",
        b"\\ud800",
        b"\\ud83d\\ude00",
        b"\\u0041",
        b"\\x",
        b"\\/",
    ),
    *(
        b"0",
        b"1",
        b"01",
        b"-",
        b"-0",
        b"-1",
        b"1.",
        b".5",
        b"1.5",
        b"1e5",
        b"1E+99",
        b"1e999",
        b"-1e-999",
        b"9" * 18,
        b"9" * 19,
    ),
    *(
        b"8999999999999999999",
        b"9223372036854775807",
        b"18446744073709551615",
        b"18446744073709551616",
        b"9" * 70,
        b"1." + b"0" * 80,
    ),
    *(
        b"4294967295",
        b"4294967296",
        b"null",
        b"nul",
        b"true",
        b"false",
        b"NaN",
        b"Infinity",
        b'"x"',
        b"{}",
        b"[]",
        b"[[[]]]",
    ),
    *(
        b"[" * 301 + b"]" * 301,
        b"[" * 1200 + b"]" * 1200,
        b'{"a":' * 302 + b"1" + b"}" * 302,
        b"[]," * 400 + b"[]",
        b"]" * 400,
    ),
    *(
        b'"a":1,"a":2',
        b'"$t":"opaque"',
        b'"\\u0024t":"opaque"',
        b'"$t":"opa\\u0071ue"',
        b'{"$t":"opaque"}',
        b'{"$ref":2}',
        b'{"$t":["opaque"]}',
    ),
)
SNIPPETS += tuple(b'"aB%bCd"' % odd for odd in SNIPPETS if odd[:1] and (odd[0] < 32 or odd[0] > 127 or odd[0] == 92))
#: What may be added to an entry, or come first in it.
KEYS = (
    *(
        b'"v":1',
        b'"v":1.0',
        b'"v":2',
        b'"v":true',
        b'"seq":2',
        b'"seq":2.0',
        b'"run_id":"x"',
        b'"run_id":null',
        b'"type":"tool.call"',
    ),
    *(
        b'"type":"tool\\u002ecall"',
        b'"type":7',
        b'"ts_ns":1',
        b'"ts_ns":9223372036854775807',
        b'"ts_ns":-1',
        b'"lane":0',
        b'"lane":-1',
    ),
    *(
        b'"lane":4294967296',
        b'"lane":99999999999999999999',
        b'"lane":"0"',
        b'"parent":null',
        b'"parent":0',
        b'"parent":1',
        b'"parent":[1]',
    ),
    *(
        b'"step":null',
        b'"step":1',
        b'"step":2',
        b'"step":99',
        b'"meta":null',
        b'"meta":5',
        b'"meta":[]',
        b'"meta":{}',
        b'"meta":"m"',
    ),
    *(
        b'"meta":{"info":null}',
        b'"meta":{"info":5}',
        b'"meta":{"info":{"wait\\u0065d":true}}',
        b'"meta":{"info":{"waited":true}}',
    ),
    *(
        b'"me\\u0074a":{"abandoned":true}',
        b'"values":[1]',
        b'"values":1',
        b'"name":1',
        b'"name":"p:q"',
        b'"hash":"x"',
        b'"":{}',
        b'"output":1',
    ),
    *(b'"error":{}', b'"\\ud800":1', b'"\xff":1', b'"x":{"$ref":1,"$ref":3}', b'"x" :1', b'"x":\t1'),
)
PLACE = st.floats(0, 1, exclude_max=True)
CHANGES = st.one_of(
    st.tuples(st.just("bytes"), PLACE, st.integers(0, 3), st.sampled_from(SNIPPETS) | st.binary(max_size=3)),
    st.tuples(st.just("bit"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACE),
    st.tuples(st.just("more"), st.sampled_from([b"x", b"{}\n", b"\n", b"\0" * 40, b"y" * 3000, b"y" * 3000 + b"\n"])),
    st.tuples(st.sampled_from(["remove", "double", "swap"]), PLACE, PLACE),
)
#: The same to the body of a line, where whoever does that makes the chain anew.
FORGED = st.one_of(
    st.tuples(st.just("bytes"), PLACE, PLACE, st.integers(0, 3), st.sampled_from(SNIPPETS) | st.binary(max_size=3)),
    st.tuples(st.just("value"), PLACE, PLACE, st.sampled_from(SNIPPETS)),
    st.tuples(st.just("last"), PLACE, st.sampled_from(KEYS)),
    st.tuples(st.just("first"), PLACE, st.sampled_from(KEYS)),
    st.tuples(st.just("instead"), PLACE, st.sampled_from(SNIPPETS)),
)


def forged(whole: list[bytes], changes: list[tuple[Any, ...]]) -> list[bytes]:
    """Lines whose bodies are changed, chained anew."""
    bodies = [line[:-76] for line in whole]
    for how, place, *more in changes:
        number = int(len(bodies) * place)
        body = bodies[number]
        if how == "bytes":
            at = int(len(body) * more[0])
            body = body[:at] + more[2] + body[at + more[1] :]
        elif how == "value":
            starts = [at + 1 for at, byte in enumerate(body) if byte in b":[,"] or [0]
            at = starts[int(len(starts) * more[0])]
            ends = [end for end in range(at, len(body)) if body[end] in b",]}"] or [len(body)]
            body = body[:at] + more[1] + body[ends[0] :]
        elif how == "last":
            body += b"," + more[0]
        elif how == "key":
            name = more[0].partition(b":")[0]
            body = re.sub(
                re.escape(name) + rb":(?:\{.*?\}+|\[.*?\]|[^,]*)", more[0].replace(b"\\", b"\\\\"), body, count=1
            )
        elif how == "first":
            body = b"{" + more[0] + b"," + body[1:]
        else:
            body = more[0]
        bodies[number] = body
    found, previous = [], "0" * 64
    for body in bodies:
        line, previous = chained_raw(body, previous)
        found.append(line)
    return found


def changed(whole: list[bytes], changes: list[tuple[Any, ...]]) -> bytes:
    whole, data = [*whole], None
    for how, *more in changes:
        if how in ("remove", "double", "swap"):
            if data is not None or not whole:
                continue
            one, other = (int(len(whole) * place) for place in more)
            if how == "remove":
                del whole[one]
            elif how == "double":
                whole.insert(one, whole[one])
            else:
                whole[one], whole[other] = whole[other], whole[one]
            continue
        data = b"".join(whole) if data is None else data
        if not data or how == "more":
            data += more[0] if how == "more" else b""
            continue
        at = int(len(data) * more[0])
        if how == "bytes":
            data = data[:at] + more[2] + data[at + more[1] :]
        elif how == "bit":
            data = data[:at] + bytes([data[at] ^ 1 << more[1]]) + data[at + 1 :]
        else:
            data = data[:at]
    return b"".join(whole) if data is None else data


# -- what is found -----------------------------------------------------------------------------------------------------


#: Values that are facts themselves. Nearly all are: they are told apart where they stand, not by a call each.
PLAIN_KINDS = frozenset((str, int, bool, float, bytes, NoneType))


def facts(value: Any) -> Any:
    """Everything that an object holds, in a form that can be compared."""
    kind = type(value)
    if kind in PLAIN_KINDS:
        return value
    if isinstance(value, array):
        return value.typecode, value.tolist()
    if kind is dict or isinstance(value, Mapping):
        return {key: item if type(item) in PLAIN_KINDS else facts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) in PLAIN_KINDS else facts(item) for item in value]
    if kind.__module__.startswith("tracekit."):
        held = ((name, getattr(value, name)) for name in getattr(kind, "__slots__", None) or vars(value))
        return {
            name: item if type(item) in PLAIN_KINDS else facts(item)
            for name, item in held
            if name not in ("_originals", "_load", "_last")
        }
    return value


def found_in(path: Path, form: str, limits: reader.Limits, piece: int, collects: Sequence[tuple[Any, ...]]) -> Any:
    """What reading a trace through says, and what is made of its entries."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "FORM", form)
        patch.setattr(reader, "columns", compiled.columns)
        patch.setattr(reader, "_BUFFER", piece)
        for collect in collects:
            with Trace(path, limits, collect=collect) as trace:
                found.append(outcome(trace.check))
                found.append(outcome(lambda trace=trace: (trace.status, trace._offsets)))
                for kind in collect:
                    found.append(outcome(lambda trace=trace, kind=kind: (kind in trace._collected, made(trace, kind))))
    return found


def made(trace: Trace, kind: Any) -> Any:
    it = trace.collected(kind)
    if kind is not RecoveredLog:
        return facts(it.state())
    ways: list[dict[str, Any]] = [{}, {"by": [held(None)]}, {"secret": lambda: "another"}]
    decisions = [outcome(lambda how=how: decide(it, trace.status, **how)) for how in ways]
    return {"decisions": decisions, **facts(it), "order of steps": [*it.steps]}


def outcome(ask: Any) -> Any:
    try:
        return facts(ask())
    except TracekitError as error:
        return [str(error), facts(vars(error))]
    except Exception as error:  # entries that verify, and make no sense
        return repr(error)


def compare(
    data: bytes,
    limits: reader.Limits = reader.DEFAULT,
    piece: int = 1 << 20,
    collects: Sequence[tuple[Any, ...]] = (NEEDED, EVERYTHING, ()),
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a.jsonl")
        path.write_bytes(data)
        in_blocks = found_in(path, "C", limits, piece, collects)
        assert in_blocks == found_in(path, "Python", limits, piece, collects)


LIMITS = st.one_of(
    st.just(reader.DEFAULT),
    st.builds(reader.Limits, st.integers(200, 1000), st.integers(1, 8), st.integers(2_000, 200_000)),
)
PIECES = st.sampled_from([1, 300, 4096, 1 << 20])


@given(entries(), st.lists(FORGED, max_size=2), st.lists(CHANGES, max_size=1), LIMITS, PIECES)
@settings(max_examples=examples(300), deadline=None)
def test_a_trace_says_the_same_in_blocks_and_line_by_line(
    run: list[dict[str, Any]], forgeries: list[Any], changes: list[Any], limits: reader.Limits, piece: int
) -> None:
    """Verdict, message, where entries end, and what is made of them: whole, damaged, cut off or forged."""
    compare(changed(forged(lines(run), forgeries), changes), limits, piece)


@given(entries(), PIECES)
@settings(max_examples=examples(300), deadline=None)
def test_a_whole_trace_says_the_same(run: list[dict[str, Any]], piece: int) -> None:
    """Of one that verifies."""
    compare(b"".join(lines(run)), piece=piece, collects=(EVERYTHING,))


#: Usual calls before and after what is looked at: enough for each to be taken together.
USUAL = [
    {"type": kind, "name": "t", "meta": {"side_effect": "read_only"}}
    if kind == "tool.call"
    else {"type": kind, "step": -1, "output": 1}
    for kind in ("tool.call", "tool.return") * 10
]
IRREVERSIBLE = {"type": "tool.call", "name": "pay", "meta": {"side_effect": "irreversible"}}
READ_ONLY = {"type": "tool.call", "name": "look", "meta": {"side_effect": "read_only"}}
RETURN = {"type": "tool.return", "step": -1, "output": 1}
#: Negative numbers are entries before.
SCENES: dict[str, list[dict[str, Any]]] = {
    "done inside what is pending": [IRREVERSIBLE, {**IRREVERSIBLE, "parent": -1}, {**RETURN, "parent": -1}],
    "done inside a span inside what is pending": [
        READ_ONLY,
        {"type": "span.start", "name": "s", "parent": -1},
        {**IRREVERSIBLE, "parent": -1},
        RETURN,
    ],
    "a thread of what is pending": [
        READ_ONLY,
        {"type": "lane", "input": {"id": 1, "parent": 0, "name": "thread", "n": 0, "under": -1}},
        *({**one, "lane": 1} for one in USUAL),
        {**IRREVERSIBLE, "lane": 1},
        {**RETURN, "lane": 1},
    ],
    "a value that was not recorded": [
        {"type": "blob", "output": {"a": [{"$t": "opaque", "v": "x"}]}},
        READ_ONLY,
        {**RETURN, "output": {"$ref": -2}},
        READ_ONLY,
        {**RETURN, "output": [{"$ref": -2, "at": ["output", 0]}]},
        {**READ_ONLY, "input": [{"$t": "opaque", "v": "x"}]},
        {**RETURN, "output": {"$extend": -1, "at": ["input"], "v": []}},
    ],
    "settled around": [
        READ_ONLY,
        {**IRREVERSIBLE, "parent": -1},
        {"type": "recovery.settled", "step": -2, "meta": {"info": {"settled": {"done": True}}}},
    ],
    "settled by an outcome": [
        {**READ_ONLY, "lane": 2},
        {**IRREVERSIBLE, "parent": -1},
        {"type": "tool.skipped", "step": -2, "output": 1, "meta": {"info": {"settled": {"done": True}}}},
    ],
    "given up": [IRREVERSIBLE, {"type": "tool.skipped", "step": -1}, {"type": "tool.return", "step": -2}],
    "failed, and gone on": [IRREVERSIBLE, {"type": "tool.error", "step": -1, "error": {}}],
    "two outcomes": [READ_ONLY, RETURN, {**RETURN, "step": -2}],
    "pieces, and gone on": [
        READ_ONLY,
        {"type": "tool.chunk", "step": -1, "output": "a"},
        {"type": "tool.chunk", "step": -2, "output": "b"},
        *USUAL,
        {**RETURN, "step": -23},
    ],
    "pieces after an outcome": [
        READ_ONLY,
        {"type": "tool.chunk", "step": -1},
        {**RETURN, "step": -2},
        {"type": "tool.chunk", "step": -3},
    ],
    "an outcome of no step": [{**RETURN, "step": 1}, {**RETURN, "step": -1}],
    "a step in another lane than its outcome": [{**IRREVERSIBLE, "lane": 3}, {**RETURN, "lane": 4}],
    "readings": [
        {"type": "clock", "name": "time.time", "values": [1]},
        {"type": "clock", "name": "p:time.time", "values": [1], "meta": {"side_effect": "irreversible"}},
        {"type": "random", "values": [1]},
    ],
    **{f"called with {meta}": [{**READ_ONLY, "meta": meta}, RETURN] for meta in METAS},
    **{f"pending with {meta}": [{**READ_ONLY, "meta": meta}] for meta in METAS},
    **{f"returned with {meta}": [IRREVERSIBLE, {**RETURN, "meta": meta}] for meta in METAS},
    **{f"returned {value}": [READ_ONLY, {**RETURN, "output": value}] for value in VALUES},
    **{f"read with {meta}": [{"type": "clock", "name": "a", "values": [1], "meta": meta}] for meta in METAS},
}


@pytest.mark.parametrize("scene", SCENES)
def test_what_happens_among_usual_calls_says_the_same(scene: str) -> None:
    """What a step came to, and what has to be known of it to go on."""
    run = [{"type": "run.started", "meta": {"durability": "effects"}}, *USUAL, *SCENES[scene], *USUAL]
    compare(b"".join(lines([placed(one, seq) for seq, one in enumerate(run, 1)])), collects=(EVERYTHING,))


def placed(tree: Any, seq: int) -> Any:
    """With the numbers of entries in the place of how far they are before."""
    if isinstance(tree, dict):
        return {
            key: item + seq
            if key in ("step", "parent", "under", "$ref", "$extend") and type(item) is int and item < 0
            else placed(item, seq)
            for key, item in tree.items()
        }
    return [placed(item, seq) for item in tree] if isinstance(tree, list) else tree


@given(st.sampled_from(GOLDEN), st.lists(FORGED, max_size=1), st.lists(CHANGES, max_size=2), LIMITS, PIECES)
@settings(max_examples=examples(100), deadline=None)
def test_a_recorded_trace_says_the_same(
    golden: bytes, forgeries: list[Any], changes: list[Any], limits: reader.Limits, piece: int
) -> None:
    """The same of what tracekit has written."""
    whole = golden.splitlines(keepends=True)
    torn = whole.pop() if not whole[-1].endswith(b"\n") else b""
    forged_lines = forged(whole, forgeries) if forgeries else whole
    compare(changed([*forged_lines, torn], changes), limits, piece)


#: A run of which every entry is taken in a block, but the first and the last.
PLAIN = lines(
    [
        {"type": "run.started"},
        *(
            {"type": "tool.call", "name": "t", "input": {"n": seq}, "meta": {"side_effect": "read_only", "info": {}}}
            if seq % 2 == 0
            else {"type": "tool.return", "step": seq - 1, "parent": seq - 1, "output": [{"$t": "x"}, "é"]}
            for seq in range(2, 24)
        ),
        {"type": "run.completed", "meta": {"count": 24}},
    ]
)


@pytest.mark.parametrize("number", [12, 13])
@pytest.mark.parametrize("odd", SNIPPETS)
def test_each_oddity_says_the_same_wherever_it_is_forged(number: int, odd: bytes) -> None:
    """In the place of every value of an entry, in the middle of a run of which the rest is taken in blocks."""
    body = PLAIN[number - 1][:-76]
    starts = [at + 1 for at, byte in enumerate(body) if byte in b":[,"]
    for at in range(len(starts)):
        same_forged(("value", (number - 0.5) / len(PLAIN), (at + 0.5) / len(starts), odd))
    same_forged(("instead", (number - 0.5) / len(PLAIN), odd))


@pytest.mark.parametrize("number", [12, 13])
@pytest.mark.parametrize("key", KEYS)
def test_each_odd_key_says_the_same(number: int, key: bytes) -> None:
    """First in an entry, last in it, and in the place of the one that it has."""
    place = (number - 0.5) / len(PLAIN)
    same_forged(("first", place, key))
    same_forged(("last", place, key))
    same_forged(("key", place, key))


def same_forged(change: tuple[Any, ...]) -> None:
    try:
        compare(b"".join(forged(PLAIN, [change])), collects=(EVERYTHING,))
    except AssertionError as error:
        raise AssertionError(f"{change}: {error}") from None


def test_every_bit_of_a_line_that_is_flipped_says_the_same() -> None:
    """Damage to an entry in the middle of a block is reported as it is line by line."""
    data = b"".join(PLAIN)
    start = len(b"".join(PLAIN[:12]))
    for at in range(start, start + len(PLAIN[12])):
        compare(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])


def test_entries_are_taken_in_blocks_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else this file compared a thing with itself."""
    monkeypatch.setattr(reader, "FORM", "C")
    monkeypatch.setattr(reader, "columns", compiled.columns)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(PLAIN))
    blocks = [one for one in reader.Scan(str(path), reader.DEFAULT).blocks(()) if isinstance(one, reader.EntryBlock)]
    assert [(block.first, len(block)) for block in blocks] == [(2, len(PLAIN) - 1)]
    assert blocks[0].entry(3) == json.loads(PLAIN[4])


@pytest.mark.parametrize("depth", range(1, 8))
@pytest.mark.parametrize("inner", range(1, 8))
def test_the_limit_of_nesting_is_the_same(depth: int, inner: int) -> None:
    """To the level."""
    whole = forged(PLAIN, [("last", 0.5, b'"x":' + b"[" * inner + b"]" * inner)])
    compare(b"".join(whole), reader.Limits(depth=depth), collects=((),))
