"""What holds for every value, drawn by Hypothesis."""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import pathlib
import zoneinfo
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.depth import examples
from tracekit._values import canonical, dumps, dumps_in_order, not_serialisable
from tracekit._values.decoding import REBUILD
from tracekit.errors import NotReplayableError
from tracekit.integration import Redactor, exception_from_json, from_json, to_json

_text = st.text(st.characters(), max_size=8)  # lone surrogates too
_hashable = st.recursive(
    st.one_of(
        *(
            st.none(),
            st.booleans(),
            st.integers(),
            st.integers(-(2**70), 2**70),
            st.floats(allow_nan=False),
            _text,
            st.binary(max_size=9),
        ),
        *(
            st.dates(),
            st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
            st.times(),
            st.timedeltas(),
            st.uuids(),
            st.complex_numbers(allow_nan=False),
        ),
        *(
            st.decimals(allow_nan=False),
            st.fractions(),
            st.just(pathlib.PurePosixPath("a/b")),
            st.builds(range, st.integers(), st.integers(), st.integers(1)),
        ),
        st.datetimes(timezones=st.sampled_from(["Europe/Berlin", "UTC"]).map(zoneinfo.ZoneInfo)),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
_key = _text | st.sampled_from(["$t", "$ref", "v"]) | _hashable
_values = st.recursive(
    _hashable | st.binary(max_size=9).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(_key, inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(_hashable, max_size=4)
    ),
    max_leaves=12,
)
_quiet = settings(
    max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def _same(one: Any, other: Any) -> bool:
    """Equal, of the same types all through, the order of keys and the sign of zero included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one.items(), other.items(), strict=True))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, (decimal.Decimal, fractions.Fraction)):
        return repr(one) == repr(other)
    return bool(one == other)


@_quiet
@given(_values)
def test_round_trip(value: Any) -> None:
    """Any nesting of supported values comes back equal and of exactly the same types, through the line."""
    notes: list[str] = []
    tree = to_json(value, notes)
    assert notes == []
    assert not_serialisable(tree) is None
    assert _same(from_json(orjson.loads(dumps_in_order(tree))), value)


@_quiet
@given(_values)
def test_the_canonical_form_is_one(value: Any) -> None:
    """What came back has the same canonical form; encoding again gives the same bytes."""
    encoded = canonical(value)
    assert canonical(value) == encoded
    assert canonical(from_json(orjson.loads(encoded))) == encoded
    assert dumps(orjson.loads(encoded)) == encoded


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(
    [
        "os:system",
        "builtins:eval",
        "builtins:int",
        "datetime:datetime",
        "enum:Flag",
        "decimal:Decimal",
        "tracekit.errors:RecordedError",
        ":",
        "a.b:c.d",
    ]
)
_node = st.fixed_dictionaries(
    {"$t": st.sampled_from(sorted(REBUILD)), "v": st.deferred(lambda: _hostile)},
    optional={
        "c": _names | _json,
        "n": _json,
        "b": st.sampled_from(["str", "dict", "list", "object"]) | _json,
        "a": _json,
        "f": _json,
        "dtype": st.sampled_from(["<i4", "O", "<U3"]) | _json,
        "shape": _json,
        "maxlen": _json,
        "set": _json,
    },
)
_hostile: st.SearchStrategy[Any] = st.one_of(
    _json, _node, st.lists(_node, max_size=2), st.lists(st.lists(_json | _node, max_size=2), max_size=2)
)


@_quiet
@given(_hostile)
def test_hostile_trees(tree: Any) -> None:
    """Whatever a tree holds, decoding answers or refuses with the documented error."""
    try:
        from_json(tree)
    except NotReplayableError as error:
        reason = error.reason  # type: ignore[attr-defined]
    else:
        reason = "answered"
    assert reason


@_quiet
@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("type", "text", "args", "attrs", "notes", "cause", "context", "members"), _hostile),
    )
)
def test_hostile_exceptions(tree: Any) -> None:
    """Whatever an exception's tree holds, there is an exception or the documented error."""
    try:
        assert isinstance(exception_from_json(tree), BaseException)
    except NotReplayableError:
        pass


@_quiet
@given(
    _values,
    st.lists(
        st.sampled_from(
            ["sk-proj-Zk3vQ9xLw7Rt2NbY5mHdZk3vQ9", "x", "hf_Zk3vQ9xLw7Rt2NbY5mHdPc8sJf4gTaUe6W", "?token=abc"]
        ),
        max_size=3,
    ),
)
def test_redaction(value: Any, planted: list[str]) -> None:
    """Redacting twice is redacting once: a placeholder stands for itself. What is not suspicious holds nothing; a redacted tree still
    decodes."""
    tree = to_json([value, planted])
    redactor = Redactor()
    redacted, marks = redactor.redact(tree)
    again, found = redactor.redact(redacted)
    assert (again, {mark[2] for mark in found}) == (redacted, {mark[2] for mark in marks})
    assert redactor.suspicious(dumps(tree)) or not marks
    assert len(marks) >= sum(text.startswith(("sk-", "hf_")) for text in planted)
    assert b"Zk3vQ9" not in dumps(redacted)
    from_json(redacted)
