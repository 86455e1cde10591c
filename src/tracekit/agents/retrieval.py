"""The answer of a recorded execution, from its record alone."""

from __future__ import annotations

import os

from ..errors import DivergenceError, NotReplayableError, TraceIntegrityError
from .envelope import IntentEnvelope
from .hashing import stable_hash
from .record import ExecutionRecord, HasPath
from .result import ReplayResult

__all__ = ["replay_execution"]


def replay_execution(
    run: str | os.PathLike[str] | HasPath,
    execution: str | None = None,
    *,
    verify_envelope: bool | str | IntentEnvelope = False,
    store: str | os.PathLike[str] | None = None,
) -> ReplayResult:
    """What a recorded execution came to. No agent is asked, nothing is imported or run.

    ``verify_envelope`` hashes the recorded request again and compares it with the recorded hash; an envelope, or one of its two hashes,
    is compared with what the record says. ``TraceIntegrityError`` or ``DivergenceError`` where they differ, ``NotReplayableError`` for a
    partial execution.
    """
    record = ExecutionRecord.of(run, execution, store=store)
    header = record.header
    if verify_envelope is not False:
        _verify(record, verify_envelope)
    if not header.replayable or record.final_response is None:
        raise NotReplayableError(
            f"execution {header.execution_id} can't be replayed: {header.replayable_reason}",
            run_id=header.run_id,
            reason=header.replayable_reason,
            next_action="`tracekit recovery scan` says whether its run may be resumed",
        )
    response = record.final_response
    return ReplayResult(
        payload=response["payload"],
        status=response["status"],
        error=record.failure,
        agent=response["metadata"]["agent"],
        run_id=header.run_id,
    )


def _verify(record: ExecutionRecord, given: bool | str | IntentEnvelope) -> None:
    header = record.header
    recorded = (header.envelope_hash, header.identity_hash)
    if given is True:
        actual = stable_hash(record.envelope)
        if actual != header.envelope_hash:
            raise TraceIntegrityError(
                f"the request of execution {header.execution_id} is not the one that was hashed: {actual}",
                run_id=header.run_id,
                recorded=header.envelope_hash,
                next_action="the trace was made by another program, or changed with its hashes; don't rely on it",
            )
        return
    wanted = given.envelope_hash if isinstance(given, IntentEnvelope) else given
    if wanted not in recorded:
        raise DivergenceError(
            f"execution {header.execution_id} is about another request",
            run_id=header.run_id,
            recorded=header.envelope_hash,
            actual=wanted,
            differences=[{"path": "envelope_hash", "recorded": header.envelope_hash, "actual": wanted}],
            next_action="`tracekit list --envelope-hash HASH` finds the runs of a request",
        )
