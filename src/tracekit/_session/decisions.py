"""The decision on a run as it stands in a store: its file, whoever holds it, and its child processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

from .._engine.recovery import Decision, Segment, decide, newer
from .._journal.heads import read_head
from .._journal.keys import Keys
from .._journal.lock import holder
from .._journal.names import SEGMENT, SUFFIX, holds_its_run
from .._journal.reader import Trace, Verdict
from .._journal.runs import Store
from .._journal.scan import ENDS
from .._journal.summary import first_entry, last_entry
from ..errors import RecoveryRefusedError, TracekitError, TraceVersionError

__all__ = ["candidates", "decided", "decision_on", "refused", "store_at", "store_of"]


def candidates(store: Store, *, all: bool = False) -> Iterator[tuple[str, Sequence[str]]]:
    """The runs that did not end, or not as the head kept for them says, or with a child process that died in the middle of an effect;
    with ``all`` every run: the file, and its segments'."""
    for path, segments in store.paths().items():
        if all or not _ended(path, store.heads) or _leaves_doubt(path, segments):
            yield path, segments


def _leaves_doubt(path: str, segments: Sequence[str]) -> bool:
    """Whether a child process of a run that has ended did not, and what it did is in doubt; who gave the run up has looked."""
    try:
        open_ones = [segment for segment in segments if last_entry(segment).get("type") not in ENDS]
        if not open_ones or last_entry(path).get("type") == "run.aborted":
            return False
        return any(decision_on(segment, segments=()).in_doubt for segment in open_ones)
    except (OSError, TracekitError):
        return True  # it is told by whoever decides on it


def _ended(path: str, heads: str) -> bool:
    """Whether a file ends as it did when the run ended, so that a cut, or another end, is not taken for it."""
    try:
        last = last_entry(path)
        kept = read_head(os.path.join(heads, os.path.basename(path)[: -len(SUFFIX)])) if last else None
    except (OSError, ValueError):
        return False
    if kept is None or last.get("type") not in ENDS:
        return False
    return (kept.count, kept.head) == (last.get("seq"), last.get("hash"))


def decision_on(
    path: str,
    *,
    supplied: Collection[int] = (),
    accept_lost_tail: bool = False,
    segments: Sequence[str] | None = None,
) -> Decision:
    """The decision on the run in the file at ``path``; see ``decide``. ``segments``, where they are known. Reads only."""
    run_id = os.path.basename(path).removesuffix(SUFFIX)
    held = holder(path)
    try:
        with Trace(path) as trace:
            verdict = store_of(path).judge_run(trace)
            return decided(
                trace,
                verdict,
                holder=held,
                supplied=supplied,
                accept_lost_tail=accept_lost_tail,
                segments=segments,
            )
    except TraceVersionError as error:
        return newer(run_id, error.__dict__.get("version"))


def decided(
    trace: Trace,
    verdict: Verdict,
    *,
    holder: int | bool | None = None,
    supplied: Collection[int] = (),
    accept_lost_tail: bool = False,
    segments: Sequence[str] | None = None,
) -> Decision:
    """The decision on an open trace, its verdict known and its holder looked for (``None`` for whoever holds it himself)."""
    run_id = os.path.basename(trace.path).removesuffix(SUFFIX)
    entries = islice(trace.entries(damaged=True), verdict.count)  # whoever writes it may have added some
    decision = decide(
        entries,
        verdict,
        holder=holder,
        segments=_segments(trace.path, run_id, segments),
        supplied=supplied,
        accept_lost_tail=accept_lost_tail,
        secret=lambda: _secret(trace.path),
        run_id=run_id,
    )
    # A copy of a run under another name is not that run: nobody shall take it for the one that it copies.
    return decision if holds_its_run(trace.path, verdict.run_id) else decision._replace(run_id=run_id)


def _segments(path: str, run_id: str, segments: Sequence[str] | None) -> list[Segment]:
    if segments is None:
        segments = () if SEGMENT.fullmatch(run_id) else store_of(path).segments(run_id)
    found = []
    for segment in segments:
        name = os.path.basename(segment)[len(run_id) + 1 : -len(SUFFIX)]
        meta = first_entry(segment).get("meta")
        lane = meta.get("lane") if isinstance(meta, dict) else None
        inside = isinstance(lane, str) and "@" in lane  # in a tool's body, which is not entered again
        found.append(Segment(decision_on(segment, segments=())._replace(run_id=name), inside))
    return found


def _secret(path: str) -> str | None:
    """Which secret the store of a trace makes its keys under; ``None`` where it has none that can be read."""
    try:
        return Keys(store_of(path).root).known_by()
    except (TracekitError, OSError):
        return None


def store_at(store: Any) -> Store:
    """The store that a caller means: a directory, a ``Store``, or ``None`` for the usual one."""
    return store if isinstance(store, Store) else Store(store)


def store_of(path: str) -> Store:
    """The store that a trace file lies in; for a file elsewhere: one that has nothing of it."""
    runs = os.path.dirname(os.path.abspath(path))
    return Store(os.path.dirname(runs) if os.path.basename(runs) == "runs" else runs)


def refused(
    decision: Decision, what: str, reasons: Collection[dict[str, object]], next_action: str
) -> RecoveryRefusedError:
    """What to raise where ``what`` is refused for ``reasons`` of ``decision``."""
    said = "; ".join(str(reason["text"]) for reason in reasons)
    return RecoveryRefusedError(
        f"{what} is refused: {said}",
        run_id=decision.run_id,
        reasons=[*reasons],
        decision=decision.as_dict(),
        next_action=next_action,
    )
