"""Deep nesting: up to a limit a value comes back, beyond it that is told; whatever was written can be read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tracekit
from tracekit import record, replay, traced_tool
from tracekit._values import quick, snapshot
from tracekit.agents import agent, change_state, receive_task, respond, send_task
from tracekit.errors import NotReplayableError, RecordedError
from tracekit.integration import Trace, from_json, to_json

#: Where what is too deep begins for lists, and where readers once had theirs.
DEPTHS = [150, *range(182, 192), *range(196, 204), 250, 260, 400]
KINDS: dict[str, Callable[[Any], Any]] = {
    "lists": lambda inner: [inner],
    "dictionaries": lambda inner: {"a": inner},
    "tuples": lambda inner: (inner,),
    "keys": lambda inner: {1: inner},
    "sets": lambda inner: frozenset([inner]),
}
effects: list[str] = []


def nested(depth: int, around: Callable[[Any], Any] = KINDS["lists"], core: Any = 0) -> Any:
    for _ in range(depth):
        core = around(core)
    return core


class Lost(Exception):
    pass


@traced_tool(side_effect="read_only")
def fetch(value: Any) -> Any:
    effects.append("fetch")
    return deep


@traced_tool(side_effect="read_only")
def put(value: Any) -> int:
    effects.append("put")
    return 1


@traced_tool(side_effect="read_only")
def fail() -> None:
    effects.append("fail")
    raise Lost(deep)


@traced_tool(side_effect="read_only")
def pieces() -> Iterator[Any]:
    effects.append("pieces")
    yield deep
    yield 2


@tracekit.traced("phase")
def phase(value: Any) -> Any:
    put(1)
    return value


@traced_tool(side_effect="irreversible")
def pay(who: str) -> str:
    effects.append(who)
    return "paid " + who


def failing() -> Any:
    try:
        fail()
    except Lost as error:
        return error.args


def exchange() -> Any:
    with agent("planner", identity={"about": deep}):
        message = send_task("worker", deep, about=deep)
    with agent("worker"):
        answer = respond(receive_task(message), deep)
    change_state(deep, {"to": deep}, causes=[answer])
    return answer.payload


def note() -> Any:
    tracekit.policy_check("rule", input=deep, output=deep)
    return tracekit.decision("plan", input=deep, output=deep)


deep: Any = None
CARRIERS: dict[str, Callable[[], Any]] = {
    "output": lambda: fetch(1),
    "input": lambda: put(deep),
    "error": failing,
    "piece": lambda: list(pieces()),
    "span": lambda: phase(deep),
    "note": note,
    "message": exchange,
}


def program(carrier: Callable[[], Any]) -> Any:
    pay("ann")
    found = carrier()
    pay("bob")
    return found


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_written_can_be_read(carrier: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every depth, whatever carries the value: the trace verifies, and a replay gives the value back, or names what was not
    recorded; what was not recorded was told while recording. Effects are never made again."""
    monkeypatch.setitem(globals(), "deep", nested(depth))
    effects.clear()
    with warnings.catch_warnings(), record("deep", input={"task": deep}) as run:
        warnings.simplefilter("ignore", RuntimeWarning)
        found = program(CARRIERS[carrier])
    assert Trace(run.path).status.state == "complete"
    assert run.warnings or depth < 189
    made = list(effects)
    lost: Any = None
    try:
        with replay(run) as session:
            assert program(CARRIERS[carrier]) == found
        assert session.report.exact
    except (RecordedError, NotReplayableError) as error:
        lost = error
    if isinstance(lost, RecordedError):  # stands for an exception whose arguments are lost
        assert depth > 180
        assert carrier == "error"
        assert "Lost" in str(session.report.warnings)
        assert "Lost" in str(run.warnings)
    elif lost is not None:
        assert run.warnings
        assert "could not be recorded" in str(lost)
    assert effects == made


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_encoding_ends_at_the_same_depth(kind: str) -> None:
    """A value is opaque from the same level on whichever way it takes: the quick one, as it is, or copied."""
    whole = []
    for depth in range(1, 260):
        value = nested(depth, KINDS[kind])
        copied = snapshot(value)
        assert to_json(value) == copied
        data = quick(value)
        if data is not None:
            assert data == tracekit._values.dumps_in_order(copied)
        if "opaque" not in str(copied):
            whole.append(depth)
            assert from_json(copied) == value
    assert whole == list(range(1, len(whole) + 1))
    assert len(whole) > 60
