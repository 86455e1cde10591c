"""The processes that a recorded run starts: invited to it, counted in its budgets, and told of where they did not come."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from itertools import islice
from threading import RLock
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from .._canonical import from_json, to_json
from .._capture import instrumentation
from .._engine.lanes import Lane
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import Scope
from .._engine.spending import Spending
from .._journal.names import SEGMENT, SUFFIX, segment_of
from .._journal.reader import Trace
from .._journal.summary import first_entry
from ..errors import LogWriteError, TraceError
from . import takeover
from .child import NOT_STARTED, STATUS, is_open
from .forks import Segment
from .shares import Handed
from .started import started_as

__all__ = [
    "Invitation",
    "Segmented",
    "call_for_pool",
    "count_spending",
    "patterns",
    "remark_unjoined",
    "segments_of",
    "shown_arguments",
]

#: Arguments of more characters than this are told apart by their hash.
_LONG: Final = 2048
#: The budgets in which processes were started, by the paths of these, and the segments that are counted in them.
_spent: Final[WeakKeyDictionary[Recording, dict[str, Spending]]] = WeakKeyDictionary()
_counted: Final[WeakKeyDictionary[Recording, set[str]]] = WeakKeyDictionary()
#: The paths of those that are not counted yet.
_awaited: Final[WeakKeyDictionary[Recording, dict[str, None]]] = WeakKeyDictionary()
#: The calls of pools that a ledger is shared by.
_handed: Final[WeakKeyDictionary[Recording, dict[Spending, Handed]]] = WeakKeyDictionary()
#: What is in a segment counts once, whichever thread comes by it.
_counting = RLock()


def _afresh() -> None:
    """In a forked process: nobody holds it there."""
    global _counting
    _counting = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


class Invitation:
    """To a process that a recorded run starts."""

    live: Final = True

    def __init__(self, session: Recording, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> None:
        session.starts(lane)
        cause = _cause(session)
        journal = session.journal
        self.session: Final = session
        self.path: Final = lane.path
        # A pool's worker does nothing by itself, and what a tool's body starts is not started in a replay.
        self._lane: Final = "" if pool or "@" in lane.path else lane.path
        self.ticket: Final = json.dumps(
            {
                "mode": "record",
                "run_id": journal.run_id,
                "store": os.path.dirname(os.path.dirname(os.path.abspath(journal.path))),
                "lane": lane.path,
                "pool": pool,
                "arguments": shown_arguments(session, (words or [])[1:]),
                "by": os.getpid(),
                "as": None if words is None else started_as(words),
                "cause": cause,
                "durability": journal.durability,
                "agent": scope.agent,
                "budget": _left_of(scope),
                "program": takeover.program(),
                "redact": patterns(session),
                "instrument": instrumentation.instrumented(),
            }
        )
        if scope.spending is not None:
            _await(session, lane.path, scope.spending)

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def started(self, pid: int) -> None:
        if self._lane:
            self.session.invited.append(self._lane)

    def not_started(self, scope: Scope, error: OSError) -> None:
        if not scope.live and error.errno is not None:
            name = error.filename if isinstance(error.filename, str) else None
            told = [error.errno, error.strerror, name and self.session.redactor.redact_text(name)[0]]
            self.session.clock_read(scope, f"{NOT_STARTED} {self.path}", lambda: told)

    def note(self, scope: Scope, told: Any) -> None:
        if isinstance(told, dict):  # what it had written so far
            tree, redacted = self.session.redactor.redact(to_json(told))
            if redacted:
                told = from_json(tree)
                self.session.warn(
                    f"the output of the process {self.path} was redacted: a replay hands on the placeholder"
                )
        self.session.clock_read(scope, f"{STATUS} {self.path}", lambda: told)
        if isinstance(told, int):
            self.heard()

    def heard(self) -> None:
        """The program has heard of its end."""
        count_spending(self.session, self.path)

    def recall(self, scope: Scope) -> Any:
        raise AssertionError("a recording recalls nothing")


def _left_of(scope: Scope) -> dict[str, Any] | None:
    """What a process may spend that is started here."""
    return None if scope.spending is None else scope.spending.remainder().as_dict()


def _await(session: Recording, path: str, spending: Spending) -> None:
    """What the process at ``path`` spends counts in ``spending``: as soon as it has ended, and the program is about to spend more."""
    _spent.setdefault(session, {})[path] = spending
    _awaited.setdefault(session, {})[path] = None
    found = ref(session)

    def look() -> None:
        recording = found()
        if recording is not None and not recording.ended:
            _count_ended(recording)

    for level in spending.levels():
        if level.look is None:
            level.look = look


def _count_ended(session: Recording) -> None:
    awaited = _awaited.get(session)
    if not awaited:
        return
    directory = os.path.dirname(os.path.abspath(session.journal.path))
    with _counting:
        ended = set()
        for path in list(awaited):
            file = os.path.join(directory, f"{session.run_id}.{segment_of(path)}{SUFFIX}")
            if os.path.exists(file) and not is_open(file):
                ended.add(path)
        if ended:
            _count(session, _spent.get(session, {}), ended)


def count_spending(session: Recording, path: str = "") -> None:
    """Add what the process at ``path`` and those below it have spent, or all of the run's, to the budgets in which they were started.

    Each segment counts once, when its process has ended it, or at the end of the run.
    """
    started = _spent.get(session)
    if started is None and (session.spending is None or path):
        return
    with _counting:
        _count(session, started or {}, {path} if path else set())
    if not path:
        _tell_overruns(session, started or {})


def _tell_overruns(session: Recording, started: Mapping[str, Spending]) -> None:
    """At the end: processes side by side can't see what each other spends. The run tells of its own budget by itself."""
    for ledger in {level for spending in started.values() for level in spending.levels()} - {session.spending}:
        if ledger.refused is None and ledger.exceeded:
            session.warn(
                f"the processes that were started under a budget took more than it allows ({ledger.name}: {', '.join(ledger.exceeded)})"
            )


def _count(session: Recording, started: Mapping[str, Spending], paths: set[str]) -> None:
    """Of the processes at ``paths``, or of all."""
    file = os.path.abspath(session.journal.path)
    for path in paths:
        _awaited.get(session, {}).pop(path, None)
    counted = _counted.setdefault(session, set())
    above = paths or {(first_entry(file).get("meta") or {}).get("lane") or ""}
    for lane, segment in segments_of(os.path.dirname(file), session.run_id).items():
        if lane in counted or segment.path == file or above.isdisjoint(_from(lane)):
            continue
        if paths and lane not in paths and is_open(segment.path):
            continue
        counted.add(lane)
        for handed in _handed.get(session, {}).values():
            handed.counted(lane)
        spending = _spending_of(started, lane) or session.spending
        if spending is not None:
            with Trace(segment.path) as trace, suppress(TraceError):
                spending.include(islice(trace.entries(), trace.status.count))


def _spending_of(started: Mapping[str, Spending], lane: str) -> Spending | None:
    """The budget in which the process of a lane was started, or the one that it comes from."""
    return next((started[path] for path in _from(lane) if path in started), None)


def _from(lane: str) -> Iterator[str]:
    """The paths that a lane may belong to: its own, that of a process that came with the same words, those of the ones above it."""
    yield lane
    yield from (lane[:at] for at in range(len(lane) - 1, -1, -1) if lane[at] in "/+")


def remark_unjoined(session: Recording) -> None:
    """At a run's end: say which of the processes that its program started did not join it."""
    if not session.invited:
        return
    path = os.path.abspath(session.journal.path)
    joined = segments_of(os.path.dirname(path), session.run_id)
    for lane in session.invited:
        if lane not in joined:
            session.remark(
                f"the process {lane} did not join the run: a replay will refuse to start it. Let it import tracekit, or start it "
                "in a @traced_tool"
            )
        elif joined[lane].indirect:
            session.remark(
                f"the process {lane} did not join the run, only what it has started: a replay will refuse to start it, since what "
                "else it does would be real. Start the Python program itself, or put the process into a @traced_tool"
            )


def _cause(session: Recording) -> dict[str, Any]:
    """The last entry of a recording, which what is started now comes after."""
    session.share()
    journal: Any = session.journal
    with suppress(LogWriteError):
        if isinstance(journal, Segment):
            journal = journal.open()
        journal.flush()
    with journal.held():
        cause = {"run_id": journal.run_id, "seq": journal.seq, "hash": journal.head.decode()}
    segment = SEGMENT.fullmatch(os.path.basename(journal.path)[: -len(SUFFIX)])
    if segment is not None:
        cause["segment"] = segment["segment"]
    return cause


def shown_arguments(session: Recording | Replay, arguments: list[str]) -> list[str]:
    """What of a program's arguments may be kept; of very long ones their hash, by which they are known again."""
    shown = session.redactor.redact_argv(arguments)
    length = sum(map(len, shown))
    return shown if length <= _LONG else ["sha256:" + sha256("\0".join(shown).encode("utf-8", "replace")).hexdigest()]


def patterns(session: Recording | Replay) -> list[list[Any]]:
    return [[pattern.pattern, pattern.flags] for pattern in session.redactor.patterns]


def call_for_pool(session: Recording, scope: Scope, lane: Lane) -> dict[str, Any]:
    """Where a call belongs that goes to a pool's process."""
    place = {"lane": lane.path, "cause": _cause(session), "agent": scope.agent}
    if scope.spending is None:
        return {**place, "budget": None}
    with _counting:
        left = _left_of(scope)
        ledgers = _handed.setdefault(session, {})
        beside = ledgers.setdefault(scope.spending, Handed()).as_dict()
        for level in scope.spending.levels():
            ledgers.setdefault(level, Handed()).add(lane.path)
        _await(session, lane.path, scope.spending)
    return {**place, "budget": left, "beside": beside}


class Segmented(NamedTuple):
    """A segment's file, the arguments that its program was started with, and whether another program has started that (a shell)."""

    path: str
    arguments: Any
    indirect: bool


def segments_of(directory: str, run_id: str) -> dict[str, Segmented]:
    """The segments of a run by the path of their lane, as they say it themselves."""
    found: dict[str, Segmented] = {}
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            match = SEGMENT.fullmatch(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
            if match is None or match["run"] != run_id:
                continue
            path = os.path.join(directory, name)
            meta = first_entry(path).get("meta") or {}
            lane = meta.get("lane")
            if isinstance(lane, str) and segment_of(lane) == match["segment"]:
                found[lane] = Segmented(path, meta.get("arguments"), bool(meta.get("indirect")))
    return found
