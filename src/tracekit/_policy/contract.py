"""Side-effect classes and execution contracts: what a tool's author declares, and what tracekit enforces."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
    "merged",
    "shown",
]


class SideEffectClass(StrEnum):
    """What calling a tool does to the outside world. Plain strings are accepted wherever a class is expected."""

    #: No effect: safe to repeat.
    READ_ONLY = "read_only"
    #: An effect that can be undone.
    REVERSIBLE = "reversible"
    #: An effect that can't be undone, and is never repeated.
    IRREVERSIBLE = "irreversible"

    @classmethod
    def of(cls, value: object) -> SideEffectClass:
        """Return the class that ``value`` names. Raises ``ContractViolationError`` if there is none."""
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

#: Which class may replace which; ``True`` if that is an escalation, which is recorded as such.
_TRANSITIONS: Final = {
    (_READ, _READ): False,
    (_READ, _UNDO): False,
    (_UNDO, _UNDO): False,
    (_UNDO, _NEVER): True,
}


def check_transition(tool: str, before: str, other: str, after: str) -> bool:
    """Return whether replacing ``tool`` by ``other`` is an escalation. Raises ``ContractViolationError`` if it is not
    allowed."""
    found = _TRANSITIONS.get((SideEffectClass(before), SideEffectClass(after)))
    if found is None:
        raise ContractViolationError(
            f"{other!r} ({after}) can't replace {tool!r} ({before})",
            tool=tool,
            contract="fallback",
            actual=other,
            next_action="a read_only call falls back to read_only or reversible, a reversible one to reversible or irreversible, "
            "an irreversible one to nothing",
        )
    return found


def impossible(
    tool: str | None, field: str, problem: str, next_action: str | None = None, *, actual: object = None
) -> ContractViolationError:
    """Return the error for a contract that can't be satisfied, to be raised where the tool is declared."""
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
    """How a tool may be called. All fields are optional.

    - ``exactly_once``: a repeated call gets the first call's result instead of a second execution; ``True`` covers a
      run and all its resumes, ``"store"`` all runs of the store.
    - ``no_retry``: nothing is ever repeated. ``max_retries``: how many times a failed call is repeated.
    - ``idempotent_required``: a call without an idempotency key is refused.
    - ``timeout_ms``: a call that takes longer raises ``StepTimeoutError``. A coroutine is cancelled; a plain function
      can't be stopped and keeps running in a thread of its own, so it must declare ``timeout_in="thread"``.
    - ``max_cost_units``: a call that costs more is refused.

    Raises ``ContractViolationError`` if the fields contradict one another.
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
                None, "max_retries", f"max_retries must be a number >= 0, not {shown(retries)}", actual=retries
            )
        for name in ("timeout_ms", "max_cost_units"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise impossible(None, name, f"{name} must be a number above 0, not {shown(value)}", actual=value)
        if self.timeout_ms is not None and self.timeout_ms / 1000 > TIMEOUT_MAX:
            raise impossible(None, "timeout_ms", f"timeout_ms={self.timeout_ms!r} is longer than any wait can be")

    def __bool__(self) -> bool:
        """Whether any field is set."""
        return bool(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    def check(self, tool: str, side_effect: str) -> None:
        """Raise ``ContractViolationError`` if a tool of this side-effect class can't have this contract."""
        if self.max_retries and side_effect == _NEVER:
            raise impossible(
                tool,
                "max_retries",
                f"it is irreversible, and max_retries={self.max_retries}: what can't be undone is never repeated",
                "leave max_retries out, or make the tool reversible with compensate=",
                actual=self.max_retries,
            )


def is_number(value: Any) -> bool:
    """Return whether the value is a finite number and not a bool."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # an int may be larger than any float


def shown(value: object) -> str:
    """Return a value as text for a message."""
    try:
        return repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "one so large"


def merged(contract: object, fields: Mapping[str, Any]) -> ExecutionContract:
    """Merge the keyword ``fields`` (``None``: not given) into ``contract``."""
    if isinstance(contract, ExecutionContract):
        found = contract.as_dict()
    elif contract is None or isinstance(contract, Mapping):
        found = dict(contract or {})
    else:
        raise impossible(None, "contract", f"contract must be an ExecutionContract, not {contract!r}")
    for name, value in fields.items():
        if value is None:
            continue
        if name in found and found[name] != value:
            raise impossible(
                None,
                name,
                f"{name} is {found[name]!r} in contract= but {value!r} as an argument of its own",
                actual=value,
            )
        found[name] = value
    try:
        return ExecutionContract(**found)
    except TypeError:
        unknown = sorted(set(found) - set(ExecutionContract.__dataclass_fields__))
        raise impossible(None, "contract", f"it has no field {', '.join(map(repr, unknown))}") from None
