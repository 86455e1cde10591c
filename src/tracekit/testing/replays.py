"""That a run replays."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from .._runs import Replaying, Run, replay
from .._runs.block import below_run, call_with
from .._runtime.verdict import Report

__all__ = ["assert_replays"]


def assert_replays(
    run: str | os.PathLike[str] | Run, function: Callable[..., Any], *args: Any, exact: bool = True, **options: Any
) -> Report:
    """Call ``function(*args)`` under a replay of ``run``, and return the report.

    Without ``args`` the function gets what the run was given: its recorded arguments, or ``record(input=…)``. One that can be called with
    nothing, and has no parameters for that, gets nothing. A function that ``record`` decorates is called below its decorator.

    A coroutine function is awaited in a loop of its own, inside ``async with replay(…)``. The recorded result, where the run has one, must
    come again. ``options`` are those of ``tracekit.replay``. Raises what the replay raises (``DivergenceError`` …), and, unless ``exact``
    is false, ``AssertionError`` where a replay went through with clock reads too many or too few, or (``on_divergence="warn"``) with
    steps that differ. That threads came in another order is no failure, unless ``strict=("order",)`` makes it one.
    """
    block = replay(run, **options)
    function = below_run(function)
    if inspect.iscoroutinefunction(function):
        import asyncio

        asyncio.run(_await(block, function, args))
    else:
        with block as session:
            positional, keywords = _arguments(function, args, session)
            _compare(session, function(*positional, **keywords))
    report: Report = block.report
    if exact and (report.clock_drift or report.differences):
        raise AssertionError(f"the replay of {report.run_id} is not exact: {report.as_dict()}")
    return report


async def _await(block: Replaying, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    async with block as session:
        positional, keywords = _arguments(function, args, session)
        _compare(session, await function(*positional, **keywords))


def _arguments(
    function: Callable[..., Any], args: tuple[Any, ...], session: Replaying
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return args, {}
    try:
        return call_with(function, session.input)
    except TypeError:
        inspect.signature(function).bind()  # what needs arguments, and can't take these, is an error
        return (), {}


def _compare(session: Replaying, value: Any) -> None:
    """The result, where one was set, and every step was asked for: else that is what the end of the block tells."""
    session.session.account()
    if session.result is not None and not session.report.unconsumed:
        session.compare_result(value)
