"""From an exception, live or recorded, to a typed failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from .kinds import DEFAULTS, ORDER, FailureType, RecoveryStrategy
from .retry_after import header, retry_after
from .rules import Meaning, by_code, by_name, by_status
from .seen import NETWORK_NUMBERS, Seen, seen, seen_answer, seen_in
from .structured import StructuredFailure

__all__ = ["classify", "classify_answer", "classify_recorded"]

#: How far causes are followed, and how many members of a group are looked at.
MAX_CAUSES: Final = 8
MAX_MEMBERS: Final = 32
#: What gives way to a wait that the other side asks for.
_AT_ONCE: Final = (RecoveryStrategy.RETRY, RecoveryStrategy.FALLBACK)
#: Facts of our own errors that are worth querying.
_FACTS: Final = (
    "tool", "contract", "resource", "budget", "limit", "actual", "estimate", "spent", "timeout_ms", "model", "operation", "key",
)  # fmt: skip


def classify(
    error: BaseException,
    *,
    side_effect: str | None = None,
    run_id: str | None = None,
    step: int | None = None,
    name: str | None = None,
    agent: str | None = None,
) -> StructuredFailure:
    """What ``error`` means: its type, whether it can be recovered from and how, how long to wait, and what is behind it.

    ``side_effect`` is the class of the step that was *started* and raised: whatever an irreversible one raises, a person has to
    look at it, and the failure proper is its ``caused_by``. ``run_id``, ``step``, ``name`` and ``agent`` say where it happened.
    Never raises for what an exception holds.
    """
    return _placed(_failure(error, MAX_CAUSES, frozenset()), side_effect, run_id, step, name, agent)


def classify_recorded(
    tree: Mapping[str, Any],
    *,
    side_effect: str | None = None,
    run_id: str | None = None,
    step: int | None = None,
    name: str | None = None,
    agent: str | None = None,
) -> StructuredFailure:
    """As :func:`classify`, for the ``error`` of a trace's entry: as exact as what is recorded there."""
    return _placed(_failure(tree, MAX_CAUSES, frozenset()), side_effect, run_id, step, name, agent)


def classify_answer(status: int, headers: Any, body: Any) -> StructuredFailure:
    """What an HTTP answer with an error's ``status`` means; headers and body as far as they are known."""
    return _of(seen_answer(status, headers, body), None)


def _placed(
    failure: StructuredFailure,
    side_effect: str | None,
    run_id: str | None,
    step: int | None,
    name: str | None,
    agent: str | None,
) -> StructuredFailure:
    if side_effect == "irreversible" and failure.type is not FailureType.IRREVERSIBLE_STEP_FAILED:
        what = repr(name) if name else "an irreversible step"
        raised = (failure.exception or "an error").rpartition(":")[2]
        failure = StructuredFailure(
            type=FailureType.IRREVERSIBLE_STEP_FAILED,
            reason=f"{what} failed, and may have taken effect: {raised}: {failure.reason}",
            exception=failure.exception,
            caused_by=failure,
        )
    return replace(
        failure,
        run_id=failure.run_id if run_id is None else run_id,
        step=failure.step if step is None else step,
        name=failure.name if name is None else name,
        agent=failure.agent if agent is None else agent,
    )


def _failure(error: Any, left: int, above: frozenset[int]) -> StructuredFailure:
    known = seen_in(error) if isinstance(error, Mapping) else seen(error)
    carried = known.get("failure")
    if isinstance(carried, StructuredFailure):  # an exception that knows what it is
        return carried
    above |= {id(error)}
    if known.members:
        return _group(known, left, above)
    behind = known.cause()
    follow = behind is not None and left > 1 and id(behind) not in above
    return _of(known, _failure(behind, left - 1, above) if follow else None)


def _of(known: Seen, caused_by: StructuredFailure | None) -> StructuredFailure:
    meaning, details = _meaning(known)
    wait = retry_after(known.headers, known.get("retry_after"))
    strategy = meaning.strategy
    if wait is not None and (strategy or DEFAULTS[meaning.type].strategy) in _AT_ONCE:
        strategy = RecoveryStrategy.RETRY_AFTER_DELAY
    run_id = known.get("run_id") if known.exception.startswith("tracekit.") else None
    return StructuredFailure(
        type=meaning.type,
        reason=known.text or known.exception,
        run_id=run_id if isinstance(run_id, str) else None,
        details=details,
        recovery_strategy=strategy,  # type: ignore[arg-type]  # None: the type's own
        retry_after_s=wait,
        caused_by=caused_by,
        exception=known.exception or None,
    )


def _meaning(known: Seen) -> tuple[Meaning, dict[str, Any]]:
    status = known.status if not known.exception.startswith(("builtins:", "tracekit.")) else None
    meaning = (
        by_code(known.codes, status=status)
        or (by_status(status) if status is not None else None)
        or by_name(known.names)
        or (Meaning(FailureType.NETWORK) if known.number in NETWORK_NUMBERS else None)
        or Meaning(FailureType.AGENT_ERROR if known.ordinary else FailureType.UNKNOWN)
    )
    details: dict[str, Any] = {}
    if meaning.kind is not None:
        details["kind"] = meaning.kind
    if status is not None:
        details["status"] = status
    code = next(known.codes, None)
    if code is not None and status is not None and len(code) <= 100:
        details["code"] = code
    request = header(known.headers, "request-id") or header(known.headers, "x-request-id")
    if request is not None and len(request) <= 200:
        details["request_id"] = request
    if known.number is not None:
        details["errno"] = known.number
    if known.exception.startswith("tracekit."):
        details.update((key, value) for key in _FACTS if _small(value := known.get(key)))
    return meaning, details


def _group(known: Seen, left: int, above: frozenset[int]) -> StructuredFailure:
    """Of several failures at once the gravest speaks for all."""
    members = [
        _failure(member, left - 1, above)
        for member in known.members[:MAX_MEMBERS]
        if left > 1 and id(member) not in above
    ]
    if not members:
        return StructuredFailure(type=FailureType.UNKNOWN, reason=known.text, exception=known.exception)
    gravest = max(members, key=lambda failure: ORDER.index(failure.recovery_strategy))
    waits = [failure.retry_after_s for failure in members if failure.retry_after_s is not None]
    return StructuredFailure(
        type=gravest.type,
        reason=known.text,
        details={"members": len(known.members), "types": [failure.type.value for failure in members]},
        recoverable=gravest.recoverable,
        recovery_strategy=gravest.recovery_strategy,
        retry_after_s=max(waits) if waits else None,
        caused_by=gravest,
        exception=known.exception,
    )


def _small(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= 32 and all(map(_small, value))
    return isinstance(value, (int, float, bool)) or (isinstance(value, str) and len(value) <= 500)
