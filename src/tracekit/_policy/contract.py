"""What a tool's author promises of it, and what the engine promises in return: side-effect classes and contracts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import StrEnum
from threading import TIMEOUT_MAX
from typing import Any, Final, Literal

from ..errors import ContractViolationError

__all__ = [
    "ExecutionContract",
    "SideEffectClass",
    "check_transition",
    "impossible",
    "is_number",
    "shown",
]


class SideEffectClass(StrEnum):
    """What calling a tool does to the world. A string enumeration: the plain strings are accepted wherever a class is."""

    #: Nothing: safe to repeat.
    READ_ONLY = "read_only"
    #: Something that can be undone.
    REVERSIBLE = "reversible"
    #: Something that can't be undone: never repeated.
    IRREVERSIBLE = "irreversible"

    @classmethod
    def of(cls, value: object) -> SideEffectClass:
        """The class that ``value`` names. ``ContractViolationError`` where it names none."""
        try:
            return cls(value)  # type: ignore[arg-type]
        except ValueError:
            raise ContractViolationError(
                f"side_effect is {value!r}; say 'read_only' (safe to repeat), 'reversible' (can be undone) "
                "or 'irreversible' (never repeat)",
                contract="side_effect",
                actual=value,
            ) from None


_READ, _UNDO, _NEVER = SideEffectClass

#: Which class may replace which; ``True`` where it is an escalation, recorded as one.
_TRANSITIONS: Final = {
    (_READ, _READ): False,
    (_READ, _UNDO): False,
    (_UNDO, _UNDO): False,
    (_UNDO, _NEVER): True,
}


def check_transition(tool: str, before: str, other: str, after: str) -> bool:
    """Whether ``other`` standing in for ``tool`` is an escalation. ``ContractViolationError`` where it may not."""
    found = _TRANSITIONS.get((SideEffectClass(before), SideEffectClass(after)))
    if found is None:
        raise ContractViolationError(
            f"{other!r} ({after}) can't replace {tool!r} ({before})",
            tool=tool,
            contract="fallback",
            actual=other,
            next_action="what is read_only falls back to read_only or reversible, what is reversible to reversible or irreversible, "
            "what is irreversible to nothing",
        )
    return found


def impossible(
    tool: str | None, field: str, problem: str, next_action: str | None = None, *, actual: object = None
) -> ContractViolationError:
    """The error of a contract that nothing could keep, for where it is written."""
    named = "" if tool is None else f" of {tool!r}"
    return ContractViolationError(
        f"the contract{named} is not valid: {problem}",
        tool=tool,
        contract=field,
        actual=actual,
        next_action=next_action,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContract:
    """How a tool may be called.

    ``exactly_once`` (``True``: in a run and all its resumes; ``"store"``: in all runs of the store) answers a second call with the
    first one's result. ``no_retry`` says that nothing is repeated, ``max_retries`` how often a failed call is made again.
    ``idempotent_required`` refuses a call without an idempotency key, ``timeout_ms`` ends one that takes longer, and
    ``max_cost_units`` refuses one that costs more. A coroutine is cancelled when its time is over; a plain function can only be left
    behind in a thread of its own, and says so with ``timeout_in="thread"``. A contract that contradicts itself raises
    ``ContractViolationError``.
    """

    exactly_once: bool | Literal["store"] = False
    no_retry: bool = False
    max_retries: int = 0
    idempotent_required: bool = False
    timeout_ms: float | None = None
    max_cost_units: float | None = None
    timeout_in: Literal["thread"] | None = None

    def __post_init__(self) -> None:
        once = self.exactly_once
        if type(once) is not bool and once != "store":
            raise impossible(None, "exactly_once", f'exactly_once is True, False or "store", not {once!r}', actual=once)
        for name in ("no_retry", "idempotent_required"):
            if type(getattr(self, name)) is not bool:
                raise impossible(None, name, f"{name} is True or False, not {getattr(self, name)!r}")
        self._check_numbers()
        if self.timeout_in not in (None, "thread"):
            raise impossible(
                None,
                "timeout_in",
                f'timeout_in is "thread" or left out, not {self.timeout_in!r}',
                actual=self.timeout_in,
            )
        if self.timeout_in is not None and self.timeout_ms is None:
            raise impossible(None, "timeout_in", "timeout_in without timeout_ms", "say how long a call may take")
        if self.max_retries and self.no_retry:
            raise impossible(
                None, "max_retries", f"no_retry with max_retries={self.max_retries}", "leave one of the two out"
            )
        if self.max_retries and once:
            raise impossible(
                None,
                "max_retries",
                f"exactly_once with max_retries={self.max_retries}: a failed call may have had its effect",
                "leave one of the two out",
            )

    def _check_numbers(self) -> None:
        retries = self.max_retries
        if type(retries) is not int or retries < 0:
            raise impossible(
                None, "max_retries", f"max_retries is a number from 0, not {shown(retries)}", actual=retries
            )
        for name in ("timeout_ms", "max_cost_units"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise impossible(None, name, f"{name} is a number above 0, not {shown(value)}", actual=value)
        if self.timeout_ms is not None and self.timeout_ms / 1000 > TIMEOUT_MAX:
            raise impossible(None, "timeout_ms", f"timeout_ms={self.timeout_ms!r} is longer than any wait can be")

    def __bool__(self) -> bool:
        """Whether anything is set."""
        return bool(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """What is set, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    def check(self, tool: str, side_effect: str) -> None:
        """``ContractViolationError`` where a tool of this class can't have this contract."""
        if self.max_retries and side_effect == _NEVER:
            raise impossible(
                tool,
                "max_retries",
                f"it is irreversible, and max_retries={self.max_retries}: what can't be undone is never repeated",
                "leave max_retries out, or make the tool reversible with compensate=",
                actual=self.max_retries,
            )


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no truth value."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # an int may be larger than any float


def shown(value: object) -> str:
    """A value for a message."""
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "one so large"
