"""That a run replays."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from .._runs import Replaying, Run, replay
from .._runtime.verdict import Report

__all__ = ["assert_replays"]


def assert_replays(
    run: str | os.PathLike[str] | Run, function: Callable[..., Any], *args: Any, exact: bool = True, **options: Any
) -> Report:
    """Call ``function(*args)`` under a replay of ``run``, and return the report.

    A coroutine function is awaited in a loop of its own, inside ``async with replay(…)``. The recorded result, where the run has one, must
    come again. ``options`` are those of ``tracekit.replay``. Raises what the replay raises (``DivergenceError`` …), and, unless ``exact``
    is false, ``AssertionError`` where a replay went through with clock reads too many or too few, or (``on_divergence="warn"``) with
    steps that differ. That threads came in another order is no failure, unless ``strict=("order",)`` makes it one.
    """
    block = replay(run, **options)
    if inspect.iscoroutinefunction(function):
        import asyncio

        asyncio.run(_await(block, function, args))
    else:
        with block as session:
            _compare(session, function(*args))
    report: Report = block.report
    if exact and (report.clock_drift or report.differences):
        raise AssertionError(f"the replay of {report.run_id} is not exact: {report.as_dict()}")
    return report


async def _await(block: Replaying, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    async with block as session:
        _compare(session, await function(*args))


def _compare(session: Replaying, value: Any) -> None:
    """The result, where one was set, and every step was asked for: else that is what the end of the block tells."""
    session.session.account()
    if session.result is not None and not session.report.unconsumed:
        session.compare_result(value)
