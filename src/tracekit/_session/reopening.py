"""The log of a run that has died, open for what a person decided about it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from .. import _reality
from .._engine.recording import Recording, encode_reads
from .._engine.recovery import Decision
from .._engine.redaction import Redactor
from .._journal.names import SUFFIX
from .._journal.reader import Trace, Verdict
from .._journal.segments import told_of
from ..errors import RecoveryRefusedError, RunStateError
from .decisions import decided, refused, store_at, store_of

__all__ = ["operator", "reopened", "said_by", "sealed", "segments", "who_and_why"]


@contextmanager
def reopened(
    run: str | os.PathLike[str],
    store: str | os.PathLike[str] | None,
    what: str,
    final: Collection[str],
    *,
    accept_lost_tail: bool = False,
    look: Callable[[Trace, Decision], None] | None = None,
) -> Iterator[tuple[Recording, Decision]]:
    """A session that appends to the log of ``run``, and the decision on it; nobody else writes it meanwhile.

    A torn tail is cut off, and kept. ``what`` is refused for the reasons in ``final``, where another process has the run open, and
    where ``look`` raises: then nothing is changed.
    """
    path = store_at(store).find(run)
    found: list[Decision] = []

    def check(trace: Trace, verdict: Verdict) -> None:
        decision = decided(trace, verdict, accept_lost_tail=accept_lost_tail)
        if reasons := [reason for reason in decision.reasons if reason["code"] in final]:
            raise refused(decision, what, reasons, "`tracekit show` shows the run as it is")
        if look is not None:
            look(trace, decision)
        found.append(decision)

    try:
        journal, _ = store_of(path).reopen(
            path, encode_read=encode_reads, accept_lost_tail=accept_lost_tail, check=check
        )
    except RunStateError as error:
        raise _held(path, what, error) from error
    session = Recording(journal, Redactor.of_process())
    try:
        yield session, found[0]
    finally:
        session.ended = True
        journal.close()


def _held(path: str, what: str, error: RunStateError) -> RecoveryRefusedError:
    run_id = os.path.basename(path).removesuffix(SUFFIX)
    pid = error.__dict__.get("pid")
    who = "another process" if pid is None else f"process {pid}"
    reason = {"code": "held", "text": f"{who} still runs it", "pid": pid}
    decision = Decision(run_id, "unsealed", "abort", (reason,))
    return refused(decision, what, (reason,), "wait until that run has ended, or end that process")


def operator() -> str:
    """Who is asking, where nobody says: the user of the operating system."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def who_and_why(session: Recording, by: str | None, reason: str) -> dict[str, Any]:
    """``by``, ``reason`` and ``at``, for the log."""
    return said_by(session.redactor, by, reason)


def said_by(redactor: Redactor, by: str | None, reason: str) -> dict[str, Any]:
    """The same, without a session."""
    clean = redactor.redact_text
    return {"by": clean(by or operator())[0], "reason": clean(reason)[0], "at": _reality.time_ns()}


def segments(path: str, run_id: str) -> list[dict[str, Any]]:
    """The files of a run's other processes, each with count and head, or as open."""
    return [told_of(segment) for segment in store_of(path).segments(run_id)]


def sealed(session: Recording) -> None:
    """Keep the head of a run that has its end now; a file outside every store has none."""
    path = session.journal.path
    where = store_of(path)
    if os.path.dirname(os.path.abspath(path)) == where.runs:
        where.sealed(session.run_id, session.journal.seq, session.journal.head.decode())
