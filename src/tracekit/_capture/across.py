"""A ``with`` block of a generator that a ``yield`` leaves: what it sets holds for whoever takes the item, too."""

from __future__ import annotations

import contextlib
import dis
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, Final

__all__ = ["yields_inside"]

#: CALL_INTRINSIC_1 with this argument precedes a ``yield`` of an async generator (3.11 has an instruction for it).
_WRAP: Final = "ASYNC_GEN_WRAP"


def yields_inside(frame: FrameType | None) -> bool:
    """Whether the block that ``frame`` is about to enter has a ``yield`` in it, and no context manager is made of it.

    What ``contextlib`` and pytest run up to its ``yield`` sets something for others on purpose.
    """
    if frame is None or not frame.f_code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        return False
    driver = frame.f_back
    if driver is not None:
        file, name = driver.f_code.co_filename, driver.f_globals.get("__name__", "")
        if file == contextlib.__file__ or str(name).startswith(("_pytest", "pytest_asyncio")):
            return False
    return _yields(frame.f_code, frame.f_lasti)


@lru_cache(256)
def _yields(code: CodeType, at: int) -> bool:
    steps = list(dis.get_instructions(code))
    after = dict(zip((step.offset for step in steps), steps[1:], strict=False))
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    blocks = [
        entry
        for entry in table
        if entry.start > at and entry.target in after and after[entry.target].opname == "WITH_EXCEPT_START"
    ]
    if not blocks:
        return False
    handler = min(blocks, key=lambda entry: entry.start).target
    return any(
        step.opname == "YIELD_VALUE" and _gives(code, previous) and _leads(table, step.offset, handler)
        for previous, step in zip([None, *steps], steps, strict=False)
    )


def _leads(table: list[Any], offset: int, handler: int) -> bool:
    """Whether an exception at ``offset`` that nobody catches comes to ``handler``: then it is in the block."""
    seen: set[int] = set()
    while offset not in seen:
        seen.add(offset)
        target = next((entry.target for entry in table if entry.start <= offset < entry.end), None)
        if target is None or target == handler:
            return target == handler
        offset = target
    return False


def _gives(code: CodeType, before: dis.Instruction | None) -> bool:
    """Whether a yield that comes after ``before`` gives an item away: in an async generator others are awaits."""
    if not code.co_flags & CO_ASYNC_GENERATOR:
        return True
    return before is not None and (before.opname == _WRAP or _WRAP in before.argrepr)
