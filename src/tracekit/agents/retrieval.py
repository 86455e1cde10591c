"""The answer of a recorded execution, from its record alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from .._canonical import contains_opaque, from_json
from .._engine.redaction import Redactor
from ..errors import DivergenceError, EnvelopeError, NotReplayableError, TraceIntegrityError
from .envelope import IntentEnvelope
from .executions import indexed
from .hashing import stable_hash
from .record import ExecutionRecord, HasPath, place_of, record_at
from .recorded_form import Patterns, without_secrets
from .result import ReplayResult

__all__ = ["replay_execution"]

#: The beginning of a hash that is long enough to mean one request.
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{12,64})")


def replay_execution(
    run: str | os.PathLike[str] | HasPath,
    execution: str | None = None,
    *,
    verify_envelope: bool | str | bytes | IntentEnvelope | Mapping[str, Any] = False,
    redact: Patterns = (),
    store: str | os.PathLike[str] | None = None,
) -> ReplayResult:
    """What a recorded execution came to. No agent is asked, nothing is imported or run.

    ``verify_envelope=True`` hashes the recorded request again and compares it with the recorded hash. An envelope (its dictionary or
    its JSON too), or one of its two hashes, or the first 12 digits of one or more, is compared with what the record says; an envelope
    as the log keeps it: ``redact`` are the patterns that the run was recorded with. ``TraceIntegrityError`` or ``DivergenceError`` where
    they differ, ``EnvelopeError`` or ``TypeError`` for what is no request, ``NotReplayableError`` for a partial execution.
    """
    path, number = place_of(run, execution, store)
    record = record_at(path, number)
    header = record.header
    if verify_envelope is True:
        _verify(record)
    elif verify_envelope is not False:
        _compare(record, verify_envelope, redact)
    response = record.final_response
    if not header.replayable or response is None:
        raise NotReplayableError(
            f"execution {header.execution_id} can't be replayed: {header.replayable_reason}",
            run_id=header.run_id,
            reason=header.replayable_reason,
            next_action=_advice(record, path),
        )
    return ReplayResult(
        payload=response["payload"],
        status=response["status"],
        error=record.failure,
        agent=response["metadata"]["agent"],
        run_id=header.run_id,
        redacted=header.redacted,
    )


def _advice(record: ExecutionRecord, path: str) -> str | None:
    """What to do about an execution without an answer, or with one that is not whole."""
    if record.events[-1].type == "FINAL_RESPONSE":
        return _unrecorded(record.final_response)
    with indexed(path) as (trace, _):
        if trace.status.state == "sealed":
            return "its run has ended, so that nothing goes on with it: route the request again"
    return "`tracekit recovery scan` says whether its run may be resumed"


def _unrecorded(response: Mapping[str, Any] | None) -> str | None:
    try:
        from_json({**(response or {"$t": "opaque"}), "error": None})
    except NotReplayableError as error:
        return error.next_action
    return None


def _verify(record: ExecutionRecord) -> None:
    header = record.header
    actual = stable_hash(record.envelope)
    if actual != header.envelope_hash:
        if contains_opaque(record.envelope) is not None:
            raise NotReplayableError(
                f"the request of execution {header.execution_id} could not be recorded whole, so that it can't be hashed again",
                run_id=header.run_id,
                reason="the request was too large, or nested too deep",
                next_action="compare an envelope, or its hash: verify_envelope=ENVELOPE",
            )
        raise TraceIntegrityError(
            f"the request of execution {header.execution_id} is not the one that was hashed: {actual}",
            run_id=header.run_id,
            recorded=header.envelope_hash,
            next_action="the trace was made by another program, or changed with its hashes; don't rely on it",
        )


def _compare(record: ExecutionRecord, given: object, redact: Patterns) -> None:
    header = record.header
    digest = _DIGEST.fullmatch(given) if isinstance(given, str) else None
    if digest is not None:
        wanted = f"sha256:{digest[1].lower()}"
        same = any(one.startswith(wanted) for one in (header.envelope_hash, header.identity_hash))
    else:
        hashes = _hashes(_envelope(given), redact)
        wanted, same = hashes[0], header.envelope_hash in hashes
    if not same:
        raise DivergenceError(
            f"execution {header.execution_id} is about another request",
            run_id=header.run_id,
            recorded=header.envelope_hash,
            actual=wanted,
            differences=[{"path": "envelope_hash", "recorded": header.envelope_hash, "actual": wanted}],
            next_action="`tracekit list --envelope-hash HASH` finds the runs of a request; "
            "where its run was recorded with redact=, say the same here",
        )


def _envelope(given: object) -> IntentEnvelope:
    if isinstance(given, IntentEnvelope):
        return given
    if isinstance(given, Mapping):
        return IntentEnvelope.from_dict(given)
    if isinstance(given, (str, bytes)):
        if isinstance(given, str) and not given.lstrip().startswith("{"):
            raise EnvelopeError(
                f"{given!r:.80} is neither an envelope in JSON nor a hash of one",
                key=None,
                next_action="a hash is `sha256:` and 64 hex digits, or the first 12 of them or more",
            )
        return IntentEnvelope.from_json(given)
    raise TypeError(
        f"verify_envelope is True, an IntentEnvelope, its dictionary, its JSON or its hash, not {type(given).__name__}"
    )


def _hashes(envelope: IntentEnvelope, redact: Patterns) -> list[str]:
    """The hashes that the log may have of a request: which secrets it knew in its environment is not known here."""
    tree = envelope.as_dict()
    redactors = (Redactor.of_process(redact), Redactor(redact))
    return list(dict.fromkeys(stable_hash(one) for one in (*(without_secrets(r, tree) for r in redactors), tree)))
