"""What ``record`` and ``replay`` were called with: wrong types are told where the call is, not where the value is used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RunStateError

__all__ = ["outputs_by_step", "patterns", "run_id", "run_to_replay", "strings", "taken_as"]


def taken_as(name: str, value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """``TypeError`` unless ``value`` is ``None`` or of one of ``kinds``."""
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"{name} is {what}, not {value!r}")


def strings(name: str, value: Any) -> tuple[str, ...]:
    """Several strings; one is taken as one, not as its letters."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise TypeError(f"{name} is a list of strings, not {value!r}")
    found = tuple(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name} is a list of strings; {one!r} in it is none")
    return found


def patterns(value: Any) -> tuple[Any, ...]:
    """Regular expressions, each a string or compiled; one alone is taken as one."""
    found = (value,) if isinstance(value, (str, re.Pattern)) else value
    if not isinstance(found, Iterable) or isinstance(found, (bytes, Mapping)):
        raise TypeError(f"redact is a list of regular expressions, not {value!r}")
    found = tuple(found)
    for one in found:
        if isinstance(one, str):
            try:
                re.compile(one)
            except re.error as error:
                raise ValueError(f"redact: {one!r} is no regular expression: {error}") from None
        elif isinstance(one, bytes) or (isinstance(one, re.Pattern) and isinstance(one.pattern, bytes)):
            raise TypeError(f"redact: {one!r} is of bytes; give it as str, it is looked for in bytes too")
        elif not isinstance(one, re.Pattern):
            raise TypeError(f"redact is a list of regular expressions; {one!r} in it is none")
    return found


def outputs_by_step(name: str, value: Any) -> None:
    """``TypeError`` unless it is ``None`` or a dictionary by the numbers of steps."""
    taken_as(name, value, Mapping, "a dictionary of outputs by step")
    for step in value or ():
        if type(step) is not int:
            raise TypeError(f"{name}: a step is the number of an entry, not {step!r}")


def run_id(value: Any) -> None:
    """``TypeError`` unless it is a string or ``None``; ``"last"`` is refused, for it names the newest run everywhere else."""
    taken_as("run_id", value, str, "a string")
    if value == "last":
        raise RunStateError(
            'run_id="last" can\'t be: the command line takes "last" for the newest run', next_action="choose another id"
        )


def run_to_replay(run: Any, kind: type, what: str = "replay") -> None:
    """``TypeError`` unless ``run`` is a ``kind`` (a ``Run``), an id or a path."""
    if not isinstance(run, (str, os.PathLike, kind)) or run == "":
        raise TypeError(f"{what}() takes the run: its id, its path, or what record() gave; not {run!r}")
