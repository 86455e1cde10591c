"""The new run that a what-if writes: it names the run that it branches from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._canonical import canonical
from .._capture import instrumentation
from .._engine.environment import environment
from .._engine.recording import ROOT, Recording, encode_reads
from .._engine.replay import Replay
from .._engine.whatif import WhatIf
from .._journal.runs import Store

__all__ = ["branch", "seal_branch"]


def branch(session: Replay, store: Store, live: Iterable[str], given: Any) -> WhatIf:
    """Open a run in ``store`` for a replay of ``session`` in which ``live`` steps go live; ``given`` is the run's input."""
    new = Recording(store.create(encode_read=encode_reads), session.redactor)
    new.what_if = True
    kinds = frozenset(live)
    about = {
        "origin": {"run_id": session.run_id, "head": session.trace.status.head},
        "live": sorted(kinds),
        "environment": environment(instrumentation.packages()),
    }
    cause = canonical([{"run_id": session.run_id, "seq": 1}])
    name = canonical(session.trace.entry(1).get("name"))
    tail = b',"cause":%b,"name":%b,"input":%b' % (cause, name, new.encoder.encode_whole(given).data)
    new.journal.append("run.started", 0, 0, tail + new.meta(about))
    return WhatIf(session, new, kinds)


def seal_branch(what_if: WhatIf, store: Store, error: BaseException | None) -> None:
    """End the new run: completed, or failed with ``error``."""
    new, journal = what_if.new, what_if.new.journal
    meta: dict[str, Any] = {"steps": new.steps, "differences": len(what_if.replay.report.differences)}
    fields = b"" if error is None else new.error(error, meta)
    journal.flush()
    with journal.held():
        new.ended = True
        meta["count"] = journal.seq + 1
        journal.append("run.completed" if error is None else "run.failed", 0, ROOT, fields + new.meta(meta))
    journal.close()
    store.sealed(new.run_id, journal.seq, journal.head.decode())
