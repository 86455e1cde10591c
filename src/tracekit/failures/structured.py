"""One failure as data: made from an exception, kept in traces, sent between agents, JSON both ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from .kinds import DEFAULTS, FailureType, RecoveryStrategy

__all__ = ["StructuredFailure"]

#: How many causes are read one inside the other.
MAX_CHAIN: Final = 64
#: Key -> other systems' key for the same.
_OTHER_NAMES: Final = {"type": "failure_type", "run_id": "execution_id", "step": "step_id", "agent": "agent_name"}
_TEXTS: Final = ("run_id", "name", "agent", "exception")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredFailure:
    """What went wrong (``type``, ``reason``), where (``run_id``, ``step``, ``name`` of the tool or model, ``agent``), and what to do.

    ``recoverable`` and ``recovery_strategy`` are those of the type unless given. ``retry_after_s`` is what the other side asked to
    wait. ``details`` is JSON; ``exception`` the type of the exception (``module:name``); ``caused_by`` the failure behind this one.
    """

    type: FailureType
    reason: str
    run_id: str | None = None
    step: int | str | None = None
    name: str | None = None
    agent: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    recoverable: bool = None  # type: ignore[assignment]  # filled in below
    recovery_strategy: RecoveryStrategy = None  # type: ignore[assignment]  # filled in below
    retry_after_s: float | None = None
    caused_by: StructuredFailure | None = None
    exception: str | None = None

    def __post_init__(self) -> None:
        kind = FailureType(self.type)
        usual, strategy, recoverable = _usual(kind, self.recovery_strategy, self.recoverable)
        for key, value in (
            ("type", kind),
            ("recovery_strategy", strategy),
            ("recoverable", usual if recoverable is None else recoverable),
            ("details", dict(self.details)),
        ):
            object.__setattr__(self, key, value)

    def __str__(self) -> str:
        where = [
            f"{label}={value}"
            for label, value in (("step", self.step), ("name", self.name), ("agent", self.agent))
            if value
        ]
        return " ".join((f"[{self.type}]", *where, self.reason))

    def chain(self) -> Iterator[StructuredFailure]:
        """This failure, then the one behind it, and so on."""
        failure: StructuredFailure | None = self
        while failure is not None:
            yield failure
            failure = failure.caused_by

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """All that is known, as JSON values; what is not known is left out."""
        tree: dict[str, Any] = {"type": self.type.value, "reason": self.reason}
        for key in ("run_id", "step", "name", "agent", "exception"):
            if getattr(self, key) is not None:
                tree[key] = getattr(self, key)
        if self.details:
            tree["details"] = dict(self.details)
        tree["recoverable"] = self.recoverable
        tree["recovery_strategy"] = self.recovery_strategy.value
        if self.retry_after_s is not None:
            tree["retry_after_s"] = self.retry_after_s
        if self.caused_by is not None:
            tree["caused_by"] = self.caused_by.as_dict()
        return tree

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> StructuredFailure:
        """The failure that :meth:`as_dict` told, or another system did under its names; unknown keys are passed over.

        ``ValueError`` says which key is missing or wrong.
        """
        return _read(tree, MAX_CHAIN)

    def to_json(self) -> str:
        """One line of JSON. ``ValueError`` where ``details`` holds what is not JSON."""
        try:
            return orjson.dumps(self.as_dict()).decode()
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the details of a failure are JSON values: {error}") from None

    @classmethod
    def from_json(cls, text: str | bytes) -> StructuredFailure:
        """The failure that :meth:`to_json` told. ``ValueError`` for anything else."""
        try:
            tree = orjson.loads(text)
        except ValueError as error:
            raise ValueError(f"a failure is a JSON object: {error}") from None
        return cls.from_dict(tree)


#: Strategies without a way on for the program itself.
_HOPELESS: Final = (RecoveryStrategy.ABORT, RecoveryStrategy.MANUAL_INTERVENTION)


def _usual(kind: FailureType, strategy: Any, recoverable: Any) -> tuple[bool, RecoveryStrategy, bool | None]:
    """Whether such a failure can usually be recovered from; the strategy, and what was said of that."""
    outlook = DEFAULTS[kind]
    chosen = outlook.strategy if strategy is None else RecoveryStrategy(strategy)
    usual = outlook.recoverable if chosen is outlook.strategy else chosen not in _HOPELESS
    return usual, chosen, recoverable


def _read(tree: Any, left: int) -> StructuredFailure:
    if not isinstance(tree, Mapping):
        raise ValueError(f"a failure is an object with `type` and `reason`, not {tree!r:.80}")
    found = {key: tree.get(key, tree.get(_OTHER_NAMES.get(key, key))) for key in _KEYS}
    if found["type"] is None:
        raise ValueError("a failure has a `type`")
    given = {key: value for key, value in found.items() if value is not None and key != "caused_by"}
    given["type"] = _one_of(FailureType, "type", found["type"])
    if found["recovery_strategy"] is not None:
        given["recovery_strategy"] = _one_of(RecoveryStrategy, "recovery_strategy", found["recovery_strategy"])
    if found["reason"] is None:
        raise ValueError("a failure has a `reason`")
    for key in ("reason", *_TEXTS):
        _check(key, found[key], str, "a string")
    _check("details", found["details"], Mapping, "an object")
    _check("recoverable", found["recoverable"], bool, "true or false")
    _check("step", found["step"], (int, str), "an entry's number")
    delay = found["retry_after_s"]
    if delay is not None and (type(delay) not in (int, float) or not math.isfinite(delay) or delay < 0):
        raise ValueError(f"`retry_after_s` of a failure is a number of seconds, not {delay!r:.80}")
    if found["caused_by"] is not None:
        if left <= 0:
            raise ValueError(f"a failure has at most {MAX_CHAIN} causes, one inside the other")
        given["caused_by"] = _read(found["caused_by"], left - 1)
    return StructuredFailure(**given)


_KEYS: Final = tuple(StructuredFailure.__dataclass_fields__)


def _one_of(kind: Any, key: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"`{key}` of a failure is one of {', '.join(kind)}, not {value!r:.80}") from None


def _check(key: str, value: object, kind: Any, what: str) -> None:
    if (value is not None and not isinstance(value, kind)) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"`{key}` of a failure is {what}, not {value!r:.80}")
