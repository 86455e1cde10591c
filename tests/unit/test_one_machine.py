"""A call is recorded and replayed in one way, however its tool is declared."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.tracing import entries
from tracekit import record, replay, traced_tool

#: What a contract may say of a call without changing what is recorded of one that goes well, or fails once.
DECLARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "contract": {"no_retry": True},
    "cost": {"max_cost_units": 5},
    "own patterns": {"redact": "secret-[0-9]+"},
    "own object": {"mutates": "args"},
}


class Stop(BaseException):
    """Neither an ``Exception`` nor an exit."""


def value(*args: Any) -> Any:
    return {"got": list(args)}


def nothing(*args: Any) -> None: ...


def changed(*args: Any) -> Any:
    args[0].append(1)
    return args[0]


def fails(*args: Any) -> Any:
    raise ValueError("no", 3)


def stops(*args: Any) -> Any:
    raise Stop("now")


def later(*args: Any) -> Any:
    async def found() -> str:
        await asyncio.sleep(0)
        return "later"

    return found()


def pieces(*args: Any) -> Iterator[int]:
    return (n for n in range(3))


def each(*args: Any) -> Iterator[Any]:
    yield args[0]
    args[0].append(2)
    yield {"n": len(args[0])}
    return "end"


def breaks(*args: Any) -> Iterator[int]:
    yield 1
    raise ValueError("no more")


async def _later(function: Callable[..., Any], *args: Any) -> Any:
    await asyncio.sleep(0)
    return function(*args)


def awaited(function: Callable[..., Any]) -> Any:
    """The same as a coroutine function."""

    async def body(*args: Any) -> Any:
        return await _later(function, *args)

    return body


PLAIN: list[Callable[..., Any]] = [value, nothing, changed, fails, stops]
BODIES: dict[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (*PLAIN, later, pieces, each, breaks)},
    **{f"{one.__name__} awaited": awaited(one) for one in PLAIN},
}


def made(tool: Any, given: Any) -> Any:
    """What a call came to, whatever that is."""
    try:
        found = tool(given)
        if inspect.isawaitable(found):
            found = asyncio.run(_await(found))
        return list(found) if isinstance(found, Iterator) else found
    except (ValueError, Stop) as error:
        return type(error), error.args


async def _await(coroutine: Any) -> Any:
    return await coroutine


def told(run: Any) -> list[Any]:
    """What the log says, but for times, hashes and the declarations."""
    kept = []
    for entry in entries(run)[1:-1]:
        if entry["type"] in ("contract.validated", "clock"):
            continue
        entry = {
            key: item for key, item in entry.items() if key not in ("ts_ns", "hash", "run_id", "seq", "parent", "step")
        }
        meta = {key: item for key, item in entry.pop("meta", {}).items() if key != "contract"}
        info = {key: item for key, item in meta.pop("info", {}).items() if key not in ("cost_units", "final")}
        if "error" in entry:
            entry["error"] = {key: entry["error"].get(key) for key in ("type", "text", "args")}
        kept.append((entry, {**meta, **({"info": info} if info else {})}))
    return kept


@pytest.mark.parametrize("what", BODIES)
def test_declarations_change_nothing_of_what_a_call_is(what: str) -> None:
    """The caller gets the same, the log says the same, and a replay gives the same again: returns, exceptions, what comes later."""
    found: dict[str, Any] = {}
    for how, options in DECLARED.items():
        options = dict(options)
        if options.get("mutates"):
            options["mutates"] = ("args",)
        tool = traced_tool(side_effect="read_only", name="work", **options)(BODIES[what])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with record("one") as run:
                first = made(tool, [0])
        with replay(run):
            assert made(tool, [0]) == first
        found[how] = (first, told(run))
    for how, one in found.items():
        assert one == found["plain"], how


class Thing:
    """What can be seen to be gone."""


@traced_tool(side_effect="read_only")
def fails_too(n: int, thing: Thing) -> None:
    raise ConnectionError("no")


@pytest.mark.parametrize(
    "options",
    [{}, {"no_retry": True}, {"timeout_ms": 60_000, "timeout_in": "thread"}, {"fallback": fails_too}],
    ids=["plain", "contract", "limit", "fallback"],
)
@pytest.mark.parametrize("where", ["run", "outside"])
def test_a_call_that_failed_is_not_kept_alive(options: dict[str, Any], where: str) -> None:
    """Once its exception is handled nothing holds what the call was given: no circle is left for the collector."""

    @traced_tool(side_effect="read_only", **options)
    def fail(n: int, thing: Thing) -> None:
        raise ValueError("no")

    def program() -> Any:
        thing = Thing()
        gone = weakref.ref(thing)
        with contextlib.suppress(ValueError):
            fail(1, thing)
        return gone

    gc.collect()
    gc.disable()
    try:
        with record("kept") if where == "run" else contextlib.nullcontext():
            assert program()() is None
    finally:
        gc.enable()
