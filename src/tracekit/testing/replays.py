"""``assert_replays``: assert that a recorded run replays exactly."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from .._capture.calls import signature_of
from .._runs.block import below_run, call_with
from .._runs.replay import replay
from .._runs.replaying import ReplayBlock
from .._runs.run import Run
from .._runtime.verdict import Report

__all__ = ["assert_replays"]


def assert_replays(
    run: str | os.PathLike[str] | Run, function: Callable[..., Any], *args: Any, **options: Any
) -> Report:
    """Call ``function(*args)`` in a replay of ``run``, and return the replay's report.

    Without ``args``, the function gets the run's recorded input: the arguments of the decorated function, or
    ``record(input=…)``. A function without parameters for these is called without arguments. If ``function`` is
    decorated with ``record``, the undecorated function is called. A coroutine function is awaited in an event loop of
    its own, inside ``async with replay(…)``.

    If the run has a recorded result, the function must return it again. ``options`` are those of ``tracekit.replay``.
    Raises whatever the replay raises (``DivergenceError``, ``InexactReplayError`` …), and nothing else.

    Examples:
        >>> from tracekit import record, traced_tool
        >>> from tracekit.testing import assert_replays
        >>> @traced_tool(side_effect="read_only")
        ... def look_up(order):
        ...     return "lost"
        >>> @record("support")
        ... def answer(order):
        ...     return f"{order} is {look_up(order)}"
        >>> answer("A-1042")
        'A-1042 is lost'
        >>> assert_replays("last", answer).exact  # with the recorded argument; the result is compared, too
        True
    """
    block = replay(run, **options)
    function = below_run(function)
    if inspect.iscoroutinefunction(function):
        import asyncio

        asyncio.run(_await(block, function, args))
    else:
        with block as session:
            positional, keywords = _arguments(function, args, session)
            block._returned(function(*positional, **keywords))
    return block.report


async def _await(block: ReplayBlock, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    async with block as session:
        positional, keywords = _arguments(function, args, session)
        block._returned(await function(*positional, **keywords))


def _arguments(
    function: Callable[..., Any], args: tuple[Any, ...], session: ReplayBlock
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return args, {}
    try:
        return call_with(function, session.input)
    except TypeError:
        signature_of(function).bind()  # raise the usual TypeError if it has other required parameters
        return (), {}
