"""What a resumed run has to undo and never did itself: steps inside others that the log answers.

The program is given the outcome of the outer step, and its body does not run: nothing in this process has seen what was done inside.
"""

from __future__ import annotations

from typing import Any

from .._capture.compensation import Compensation, Completed
from .._capture.ledger import Ledger
from .._engine.doubt import Doubt, Steps
from .._engine.resumption import Resumption
from .._journal.reader import Trace
from .compensating import facts, uncompensated

__all__ = ["inherit"]


def inherit(session: Any, book: Ledger) -> None:
    """Let ``book`` know the steps inside others that an earlier process of this run has made and nobody has undone.

    How a step is undone, its tool says, if it is one of this process; what can't be told is ``stuck``.
    """
    if not isinstance(session, Resumption):
        return
    with Trace(session.journal.path) as trace:
        log = Steps(trace.entries(damaged=True))
        for step in sorted(_left(session, log, book), key=lambda step: step.seq):
            if any(book.has(outer.seq) or outer.seq in book.stuck for outer in log.enclosing(step)):
                continue  # it is undone with that one, or that one stands
            if not _add(book, trace, log, step):
                book.stuck.add(step.seq)
                session.warn(
                    f"step {step.seq} ({step.name!r}), inside another, can't be undone by the resumed run: look what stands of it"
                )


def _left(session: Resumption, log: Steps, book: Ledger) -> list[Doubt]:
    before = len(session.past())
    return [step for step in uncompensated(log) if step.inner and step.seq <= before and not book.has(step.seq)]


def _add(book: Ledger, trace: Trace, log: Steps, step: Doubt) -> bool:
    """Whether it is known what would undo a step, and with what, or that nothing would."""
    found = Compensation.named(str(step.name))
    if not found:
        return True
    failed = any(one.undoes == step.seq and one.state == "failed" for one in log.steps.values())
    known = None if len(found) > 1 or found[0].needs_object or failed else facts(trace, step, None)
    if known is not None:
        book.add(Completed(found[0], step.seq, *known, None, [outer.seq for outer in log.enclosing(step)]))
    return known is not None
