"""Letting the other tasks of an event loop go on from inside a call that does not await."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context
from typing import Any

__all__ = ["can_go_on", "go_on"]


def can_go_on(loop: AbstractEventLoop) -> bool:
    """Whether ``go_on`` works with this loop: those of the standard library."""
    return hasattr(loop, "_run_once") and hasattr(loop, "_ready")


def go_on(loop: Any, until: Callable[[], bool]) -> None:
    """Run the loop's other tasks until ``until()``; the calling task stays where it is.

    A round of the loop takes what is ready one by one, and counts it first: it is inside such a round that this is called. So it
    finds as much to take, when that round goes on, as there was.
    """
    task = asyncio.current_task(loop)
    counted = len(loop._ready)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    try:
        while not until():
            loop._run_once()
    finally:
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
        for _ in range(counted):
            loop.call_soon(_nothing, context=Context())


def _nothing() -> None:
    pass
