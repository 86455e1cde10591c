"""The session that records: logs an intent record before each live call, and its outcome before the caller gets it."""

from __future__ import annotations

from bisect import insort
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import orjson

from .._journal.entry import BESIDE, IN_LOOP, QUEUES
from .._journal.intern import Places
from .._journal.store import segment_in
from .._journal.vault import Vault
from .._journal.writer import Journal
from .._lazy import NamedTuple
from .._native import Pieces, of_text
from .._native.common import is_short
from .._reality import system
from .._values import (
    add_structure,
    decoding,
    dumps_in_order,
    exception_text,
    exception_with_structure,
    fingerprint,
    not_serialisable,
    quick,
    repeated,
    to_json,
)
from ..errors import (
    BudgetExceededError,
    LogWriteError,
    NotReplayableError,
    ReplayError,
    RunEndedError,
    TracekitError,
)
from . import mutations
from .around import AroundStep
from .boundary import Boundary
from .callsite import warn
from .changeable import changeable
from .doubt import lost
from .effects import Begun, in_process
from .encoding import Encoded, Encoder
from .inputs import RecordedInputs
from .lane import ROOT, Lane
from .progress import Progress
from .redaction import Mark, Redactor, StreamRedactor, below
from .report import RunReport
from .session import (
    Leaving,
    Refusal,
    RunState,
    Scope,
    Step,
    ThreadHooks,
    Timer,
    UndoLog,
    WrittenLog,
    current,
    in_own_lane,
)
from .step import Circumstances, Note, Patterns, RenderedSpec, Request, Spec, marked

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from ..failures import StructuredFailure
    from .spending import Budget, Spending

__all__ = [
    "RecordedStep",
    "RecordedTimer",
    "Recording",
    "of_run",
    "of_step",
]

# -- failures ----------------------------------------------------------------------------------------------------------
#
# What the log says about a failure besides the exception itself: ``meta.failure``, small and without secrets.

#: How much of the text, and how many causes, ``meta.failure`` repeats: the exception itself is in the entry.
MAX_REASON: Final = 300
MAX_CAUSES: Final = 3
#: For how many steps the raised exceptions are remembered.
_KEPT: Final = 256
#: How many related exceptions of the run's own are searched for one raised by a step.
_REACH: Final = 64


class _RaisingStep(NamedTuple):
    seq: int
    name: str
    agent: str | None
    side_effect: str | None
    identity: tuple[type, str]
    #: The first irreversible step that was begun inside it, whether that raised or not.
    effect: int | str | None = None


class RaisingSteps:
    """Which steps raised which exceptions, so that the run's end can name the step that caused it.

    The exceptions are not kept alive, since their frames would be, too. An equal exception at the same address counts
    as the same; of several steps, the latest counts.
    """

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, _RaisingStep] = {}

    def remember(self, error: BaseException, raised: _RaisingStep) -> None:
        """Remember that a step raised ``error``, which may come from a step inside it."""
        known = self._by_id.get(id(error))
        if known is not None and known.identity == raised.identity and known.seq > raised.seq:
            # It encloses the step that raised first.
            if raised.side_effect == "irreversible":
                self._by_id[id(error)] = known = known._replace(side_effect=raised.side_effect)
            if raised.effect is not None:
                self._by_id[id(error)] = known._replace(effect=raised.effect)
            return
        if len(self._by_id) >= _KEPT:
            self._by_id.pop(next(iter(self._by_id)), None)
        self._by_id[id(error)] = raised

    def linked(self, error: BaseException) -> list[_RaisingStep]:
        """Return the steps that raised ``error``, or one of its causes."""
        known = ((self._by_id.get(id(each)), each) for each in _causes_of(error))
        return [found for found, each in known if found is not None and found.identity == _type_and_text(each)]


def of_step(error: BaseException, session: Recording, step: RecordedStep, *, begun: bool = True) -> dict[str, Any]:
    """Return ``meta.failure`` of a step that raised; ``begun``: it may have had an effect."""
    spec, agent = step.spec, step.scope.agent
    try:
        from ..failures import classify

        side_effect = spec.side_effect if begun else None
        inner = None
        if side_effect != "irreversible":  # what an irreversible step inside this one raised is as final here
            inside = [one for one in session.state.extras.of(RaisingSteps).linked(error) if one.seq > step.seq]
            inner = next((one for one in inside if one.side_effect == "irreversible"), None)
        effect = session.effect_inside(step)
        if inner is None:
            failure = _not_repeated(classify(error, side_effect=side_effect, name=spec.name), effect)
        else:
            failure = classify(error, side_effect=inner.side_effect, step=inner.seq, name=inner.name)
        raising = _RaisingStep(step.seq, spec.name, agent, side_effect, _type_and_text(error), effect)
        session.state.extras.of(RaisingSteps).remember(error, raising)
        return _small(replace(failure, name=None), session.redactor)
    except Exception as unclear:  # at the recursion limit, say: observing never breaks the program
        return _unclear(unclear)


def of_run(error: BaseException, session: Recording) -> dict[str, Any]:
    """Return ``meta.failure`` of a run that ends with an exception, with the innermost step that raised it if known."""
    try:
        from ..failures import classify

        steps = session.state.extras.of(RaisingSteps).linked(error)
        if not steps:
            return _small(classify(error), session.redactor)
        inner = max(steps, key=lambda step: step.seq)
        side_effect = "irreversible" if any(step.side_effect == "irreversible" for step in steps) else None
        failure = classify(error, side_effect=side_effect, step=inner.seq, name=inner.name, agent=inner.agent)
        effect = next((step.effect for step in steps if step.effect is not None), None)
        return _small(_not_repeated(failure, effect), session.redactor)
    except Exception as unclear:
        return _unclear(unclear)


def _is_inside(parent: int, lane: Lane | None, step: RecordedStep) -> bool:
    """Return whether what began inside the step ``parent``, in ``lane``, is inside ``step``, or may be."""
    if parent <= step.seq:
        return parent == step.seq
    while lane is not None and lane is not step.scope.lane:
        lane = lane.parent
    return lane is not None


def _not_repeated(failure: StructuredFailure, effect: int | str | None) -> StructuredFailure:
    """Return the failure of a step inside which the irreversible step ``effect`` was begun: whatever raised afterwards,
    repeating the step would repeat that."""
    if effect is None or not failure.recoverable:
        return failure
    from ..failures import RecoveryStrategy

    return replace(
        failure,
        recoverable=False,
        recovery_strategy=RecoveryStrategy.MANUAL_INTERVENTION,
        retry_after_s=None,
        details={**failure.details, "irreversible_inside": effect},
    )


def _unclear(error: Exception) -> dict[str, Any]:
    return {
        "type": "unknown",
        "reason": f"not classified: {type(error).__name__}",
        "recoverable": False,
        "recovery_strategy": "abort",
    }


def _small(failure: StructuredFailure, redactor: Redactor) -> dict[str, Any]:
    tree: dict[str, Any] = redactor.redact(failure.as_dict())[0]
    tree.pop("run_id", None)
    level, depth = tree, 0
    while True:
        if len(level["reason"]) > MAX_REASON:
            level["reason"] = level["reason"][: MAX_REASON - 1] + "…"
        depth += 1
        if depth > MAX_CAUSES:
            level.pop("caused_by", None)
        if "caused_by" not in level:
            return tree
        level = level["caused_by"]


def _type_and_text(error: BaseException) -> tuple[type, str]:
    try:
        return type(error), str(error)[:MAX_REASON]
    except Exception:
        return type(error), ""


def _causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, its causes and contexts, and the members of groups, nearest first."""
    queue, seen = [error], {id(error)}
    while queue and len(seen) < _REACH:
        found = queue.pop(0)
        yield found
        members = found.exceptions if isinstance(found, BaseExceptionGroup) else ()
        for other in (*members, found.__cause__, None if found.__suppress_context__ else found.__context__):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                queue.append(other)


# -- recorded steps ----------------------------------------------------------------------------------------------------
#
# Steps and timers that are being recorded.

#: How an error describes an effect whose outcome could not be written.
_EXECUTED: Final = "was executed; its outcome"
#: What ``info`` says of a piece before which other tasks ran, and nothing else about it; and as the log has it.
_SUSPENDED: Final = {"suspended": True}
_AS_LOGGED: Final = b',"meta":{"suspended":true}'
#: The pieces of a stream form one text: a secret may be split between two of them.
_STREAMED: Final = frozenset((str, bytes))


class RecordedStep(Step):
    """A step that is being recorded; see ``session.Step``."""

    # No __slots__: from 3.13 on Python makes objects without them faster.

    live: Final = True
    deferred: Final = False
    seq = 0
    #: Finds secrets in its pieces, and writes pieces that are plain.
    _stream: StreamRedactor | None = None
    _pieces: Pieces | None = None
    #: Whether a secret was removed from a piece; then the encoded bytes of that and later pieces are not logged.
    _hides = False
    #: Whether it arrived in pieces; then its end is the last of them.
    _in_pieces = False
    #: Its arguments before the call, if the call may change them.
    watched: mutations.WatchedArguments | None = None
    _inside: Spending

    def __init__(self, session: Recording, scope: Scope, request: Request, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq = seq

    def body(self) -> Scope:
        scope, spec, seq = self.scope, self.spec, self.seq
        live = scope.live if spec.structural else seq
        if spec.budget is not None:
            return Scope(scope.session, scope.lane, seq, scope.agent, live, self._budget(spec.budget), scope.call)
        return Scope(scope.session, scope.lane, seq, scope.agent, live, scope.spending, scope.call)

    def _budget(self, budget: Budget) -> Spending:
        """Return the ledger of the body: the same one however often the body is entered."""
        try:
            return self._inside
        except AttributeError:
            self._inside = budget.opened(self.spec.name, self.scope.spending)
            return self._inside

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        session = self.session
        if session.state.ended:
            return
        if session.state.before_piece:
            for write in session.state.before_piece.get(self.seq, ()):
                write()
        stored: Any = output
        replaced: list[Mark] = []
        everyday = False
        try:
            if self._pieces is not None:
                if info is None:
                    everyday = True
                    if self._pieces.add(output):
                        return
                elif info == _SUSPENDED and self._pieces.add(output, self.after_others):
                    return
            if type(output) in _STREAMED:  # a secret may begin in one piece and end in another
                stored, replaced = (self._stream or self._stream_redactor()).feed(stored)
            self._in_pieces = True
            if info is not None and "coded" in info:
                self._hides = self._hides or bool(replaced)
                info = _sized(info) if self._hides else info
            # already searched for secrets, as part of its stream
            everyday = type(stored) is str and not (replaced or info) and self.watched is None and is_short(stored)
            self._chunk(session.log.journal.append, self._reader(), stored, everyday, replaced, output, info)
        except LogWriteError as error:
            rest = (self._reader(), stored, everyday, replaced, output, info)
            self._unwritten(error, "was begun; a piece of what it gives", self._chunk, *rest, whole=False)

    def _stream_redactor(self) -> StreamRedactor:
        """Create what searches the pieces for secrets from now on."""
        session, scope = self.session, self.scope
        stream = self._stream = session.redactor.also(self.spec.patterns).stream()
        if self.watched is None and not stream.user:
            kind = self.spec.types.chunk
            undo = session.progress.take_back if self._has_places else None
            self._pieces = Pieces(stream, scope, current.get, session.state, session.log, kind, self.seq, undo)
        return stream

    def plain_pieces(self) -> Pieces | None:
        self._in_pieces = True
        if self._stream is None:
            self._stream_redactor()
        return self._pieces

    def after_others(self) -> bytes:
        if not self._has_places:
            return _AS_LOGGED
        # The scope is that of the reader: of another one's pieces none is plain.
        return _AS_LOGGED + self.session.place(self.scope.lane)

    @property
    def _has_places(self) -> bool:
        """Whether its entries have places if other tasks ran before them (``suspended``): not inside a live step, nor those
        of a span, which the program itself ends."""
        return not (self.scope.live or self.spec.structural)

    def _chunk(
        self,
        append: Append,
        lane: Lane,
        stored: Any,
        everyday: bool,
        replaced: list[Mark],
        output: object,
        info: Mapping[str, Any] | None,
    ) -> int:
        session, spec = self.session, self.spec
        if everyday:
            tail = of_text(self.seq, stored) or _of_text(self.seq, stored)
        else:
            meta = dict(info) if info else {}
            arguments, known = b"", False
            if self.watched is not None:
                arguments, known = self._changed(self.watched, output, meta)
            fields = session.value(stored, meta, spec=spec, step=self.seq, known=known) + arguments
            if replaced:
                meta["redacted"] = below(replaced, "/output")
                session.redacted_output(spec)
            tail = b',"step":%d%b%b' % (self.seq, fields, session.meta(meta))
        if lane.id < 0:
            session._enroll(lane)
        write = partial(append, spec.types.chunk, lane.id, self.seq)
        placed = info and "suspended" in info and self._has_places
        return session.with_place(lane, write, tail) if placed else write(tail)

    def _reader(self) -> Lane:
        """Return the lane of the code that takes a piece, or finds the end."""
        scope = current.get()
        if scope is None or scope.session.state is not self.session.state:
            return self.scope.lane
        return in_own_lane(scope).lane

    def _comes_to(self, meta: Mapping[str, Any]) -> Lane:
        """Return the lane that receives the outcome of a stream. Code that abandons it, or has it collected, reads no
        more of it, but may wait for its close."""
        left = meta.get("abandoned") and not meta.get("suspended")
        if left or meta.get("collected"):
            return self.scope.lane
        lane = self._reader()
        if lane.id < 0:
            self.session._enroll(lane)
        return lane

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        session, spec = self.session, self.spec
        if session.state.ended:
            if info is None or not info.get("abandoned"):  # a generator discarded later is no loss
                session._late_warning(f"the outcome of {spec.family} {spec.name!r}")
            return
        if session.state.before_outcome:
            self._leave()
        arguments, known = b"", False
        watched = self.watched
        if watched is not None and not watched.unchanged(output):
            more: dict[str, Any] = {}
            arguments, known = self._changes_kept(watched, output, more)
            if more:
                info = {**(info or {}), **more}
        if info is None and self.scope.agent is None and not self._in_pieces:
            seen: list[Any] = []
            plain = session._plain(output, seen)
            if plain is not None and (len(seen) < 3 or not repeated(seen)):
                seq = self.seq
                tail = b',"step":%d,"output":%b' % (seq, plain)
                if arguments:
                    tail += arguments
                try:
                    session.log.journal.append(spec.types.outcome, self.scope.lane.id, seq, tail, spec.effect)
                except LogWriteError as error:
                    self._unwritten(error, _EXECUTED, self._plain_outcome, tail)
                else:
                    if spec.effect:
                        session.in_doubt.pop(seq, None)
                return
        try:
            self._outcome(session.log.journal.append, output, info, data, arguments, known)
        except LogWriteError as error:
            self._unwritten(error, _EXECUTED, self._outcome, output, info, data, arguments, known)

    def _outcome(
        self,
        append: Append,
        output: object,
        info: Mapping[str, Any] | None,
        data: bytes | None,
        arguments: bytes,
        known: bool,
    ) -> int:
        spec, meta = self.spec, dict(info) if info else {}
        places: Places | None = [] if spec.lists else None
        fields = self.session.value(output, meta, spec=spec, step=self.seq, places=places, data=data, known=known)
        return self._finish(append, spec.types.outcome, fields + arguments, meta, places)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        session = self.session
        if session.state.ended:
            return
        if session.state.before_outcome:
            self._leave()
        begun = info is None or "start" not in info
        failure = of_step(error, session, self, begun=begun)
        try:
            self._failure(session.log.journal.append, error, output, info, failure)
        except LogWriteError as unwritten:
            how = "was executed and raised" if begun else "was not executed:"
            rest = (error, output, info, failure)
            self._unwritten(
                unwritten, f"{how} {type(error).__name__}; its outcome", self._failure, *rest, executed=begun
            )

    def _failure(
        self,
        append: Append,
        error: BaseException,
        output: object,
        info: Mapping[str, Any] | None,
        failure: dict[str, Any],
    ) -> int:
        session, own = self.session, self.spec.patterns
        meta = {**(info or {}), "failure": failure}
        fields = b"" if self.watched is None else self._changed(self.watched, None, meta)[0]
        if output is not None:
            fields = session.value(output, meta, spec=self.spec, step=self.seq) + fields
        if own is not None:
            meta["failure"] = session.redactor.also(own).redact(meta["failure"])[0]
        fields += session.error(error, meta, own, self)
        return self._finish(append, self.spec.types.error, fields, meta, known=not lost(meta, output))

    def _leave(self) -> None:
        self.session.state.before_piece.pop(self.seq, None)
        write = self.session.state.before_outcome.pop(self.seq, None)
        if write is not None:
            write()

    def holds(self, instance: object) -> None:
        if instance is None:
            return
        self._pieces = None
        if self.watched is None:
            self.watched = mutations.WatchedArguments({}, self.spec.mutates or (), None, [])
        self.watched.holds(instance)

    def resumed(self) -> None:
        if self.watched is not None:
            self.watched.resumed()

    def _changed(self, watched: mutations.WatchedArguments, output: object, meta: dict[str, Any]) -> tuple[bytes, bool]:
        """Return ``,"arguments":…`` (or nothing) with the changes that the call made to its arguments, and which of
        them it returned.

        Also return whether ``output`` is itself one of the arguments, so that a replay needs no other record of it.
        """
        session, spec = self.session, self.spec
        tool = f"{spec.family} {spec.name!r}"
        if watched.large:
            meta["unwatched"] = [*watched.large]
            names = ", ".join(watched.large)
            session.report.warn(
                f"what {tool} changes in {names} is not recorded: larger than {mutations.LARGEST >> 10} KiB. "
                f"If it changes {names}, name that in mutates=."
            )
        notes: list[str] = []
        try:
            changes = watched.changes(output, notes)
        except Exception as error:  # whatever the code of the values does, the program goes on
            session.report.warn(
                f"what {tool} changes in its arguments could not be recorded: {exception_text(error)}",
                uncaptured=True,
            )
            return b"", False
        if changes is None:
            return b"", False
        about, own = changes.about, spec.patterns
        for key, trees in (("was", changes.was), ("is", changes.now)):
            if trees:
                about[key] = {
                    name: mutations.state_hash(session.encoder.canonical({name: trees[name]}, own)) for name in trees
                }
        encoded = session.encoder.encode(about, data=dumps_in_order(about), at="arguments", own=own)
        if changes.lost:
            names = ", ".join(changes.lost)
            session.report.warn(f"what {tool} changes in {names} is not changed again in a replay", uncaptured=True)
        for note in notes:
            session.unrecorded(f"what {tool} puts into its arguments", note, self.seq)
        if notes:
            meta["notes"] = notes
        if encoded.redacted:
            meta["redacted"] = [*encoded.redacted, *meta.get("redacted", ())]
            session.redacted_output(spec)
        add_structure(meta, changes.structure, encoded.tree, "/arguments")
        return b',"arguments":%b' % encoded.data, "" in about.get("output", ()) or "" in about.get("output_after", ())

    def _changes_kept(
        self, watched: mutations.WatchedArguments, output: object, meta: dict[str, Any]
    ) -> tuple[bytes, bool]:
        """Return the same for an outcome; what can't be written of a large change is kept."""
        try:
            return self._changed(watched, output, meta)
        except LogWriteError:
            meta.clear()
            with suppress(LogWriteError):  # nothing is written any more, which writing the outcome will find as well
                return self.session.keeping(self._changed, watched, output, meta)
            return b"", False

    def _plain_outcome(self, append: Append, tail: bytes) -> int:
        seq = append(self.spec.types.outcome, self.scope.lane.id, self.seq, tail, self.spec.effect)
        self.session.in_doubt.pop(self.seq, None)
        return seq

    def _finish(
        self,
        append: Append,
        kind: str,
        fields: bytes,
        meta: dict[str, Any],
        places: Places | None = None,
        *,
        known: bool = True,
    ) -> int:
        """Write the outcome. ``known``: it settles whether an effect happened."""
        session, spec = self.session, self.spec
        lane = self._comes_to(meta) if self._in_pieces else self.scope.lane
        write = partial(session.append_outcome, append, kind, lane, self, meta, spec.effect)
        placed = "suspended" in meta and self._has_places
        seq = session.with_place(lane, write, fields) if placed else write(fields)
        if spec.effect and known:
            session.in_doubt.pop(self.seq, None)
        if places:
            session.encoder.remember(places, seq)
        return seq

    def _unwritten(
        self,
        error: LogWriteError,
        how: str,
        write: Callable[..., int],
        *rest: Any,
        executed: bool = True,
        whole: bool = True,
    ) -> None:
        """Keep an entry about something that has happened, which ``write(append, *rest)`` could not write. ``whole``:
        it is the complete outcome.

        For an effect, raise ``error``, extended accordingly: its caller must not get a result that is in no log.
        """
        session, spec = self.session, self.spec
        if session.state.ended:  # meanwhile
            session._late_warning(f"the outcome of {spec.family} {spec.name!r}")
            return
        journal = session.log.journal
        kept = False
        if spec.effect or journal.room:
            try:
                seq = session.keeping(write, journal.keep, *rest)
                kept = seq > journal.seq
                if spec.effect and not kept:
                    journal.sync(seq)
                if not (spec.effect and kept):
                    return
            except LogWriteError as second:
                error.what = second.what
        journal.lost += 1
        if not spec.effect:
            session.report.warn("the log could not be written for a while: outcomes are missing from it")
            return
        session.report.warn(
            "the log could not be written for a while: callers of effects got an error instead of the outcome"
        )
        doubt = ""
        if spec.side_effect == "irreversible" and executed:
            doubt = ", so the log has it in doubt" + (" until it is" if kept and whole else "")
        error.reword(
            f"{spec.family} {spec.name!r} {how} could not be written{' yet' if kept else ''}{doubt}: {error.what}"
        )
        error.run_id, error.step, error.executed, error.kept = session.run_id, self.seq, executed, kept
        again = "don't call it again" if executed else "it may be called again"
        if kept:
            error.next_action = (
                f"{again}; free space: what could not be written is kept in memory and written first, and until then no effect is "
                "executed. If the run ends before, `tracekit in-doubt` lists the step"
            )
        else:
            error.next_action = (
                f"{again}; find out what was done: `tracekit in-doubt` lists the step, and how to settle it"
            )
        raise error

    def go(self) -> RecordedStep:
        return self

    async def go_async(self) -> RecordedStep:
        return self


def _of_text(step: int, text: str) -> bytes:
    """Like ``of_text``, for a text with half a surrogate pair."""
    return b',"step":%d,"output":%b' % (step, dumps_in_order(to_json(text)))


class UnloggedStep(RecordedStep):
    """A read-only step that could not be logged, or came after the end: it is made, but not recorded."""

    __slots__ = ()

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        pass

    def plain_pieces(self) -> None:
        return None

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        pass

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        pass


class RecordedTimer(Timer):
    """An armed sleep or deadline, or another expected event; see ``session.Timer``."""

    __slots__ = ("_after", "_function", "_n", "_scope", "_session", "is_over")

    live: Final = True
    #: Whether it fired in a recording that is being replayed.
    comes: Final = False
    #: Whether it may still fire: past the end of the log of a resumed run.
    pending: Final = False

    def __init__(self, session: Recording, scope: Scope, function: str, after: int, n: int) -> None:
        self._session = session
        self._scope = scope
        self._function = function
        self._after = after
        self._n = n
        #: Whether it has fired.
        self.is_over = False

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        self.is_over = True
        if self._session.state.ended:
            return
        function, _, call = self._function.partition(":")
        after = b',"after":%d' % self._after if self._after else b""
        if call:
            after += b',"call":%b' % orjson.dumps(call)
        if about:
            after += b"," + orjson.dumps(about)[1:-1]
        tail = b',"name":%b,"input":{"n":%d%b}' % (orjson.dumps(function), self._n, after)
        in_loop = function in IN_LOOP
        if function not in BESIDE and not (call and function in QUEUES):
            self._scope.lane.captured = True
        try:
            self._session.logged(self._write, tail, in_loop, bool(about and "hop" in about))
        except LogWriteError:
            self._session.report.warn("the log could not be written for a while: timers are missing from it")

    def identity(self) -> list[Any] | None:
        session, scope = self._session, self._scope
        return None if session.state.ended else [session._placed(scope.lane), self._function, self._after, self._n]

    def _write(self, append: Append, tail: bytes, in_loop: bool, hop: bool) -> int:
        session, scope = self._session, self._scope
        write = partial(session.append, scope, "clock", append=append)
        return session.with_place(scope.lane, write, tail, hop=hop) if in_loop else write(tail)


# -- the session -------------------------------------------------------------------------------------------------------

T = TypeVar("T")
#: ``Journal.append``, or ``keep``.
Append = Callable[..., int]

#: The keys of ``meta`` with pointers into the entry, which has been redacted.
_OF_POINTERS: Final = ("redacted", "shared")
#: An exception with a longer encoding is recorded by its text: no part of it is interned, so it must fit in one line.
MAX_ERROR: Final = 16 << 20


class _Placed(Protocol):
    """A step with a position in this log."""

    @property
    def scope(self) -> Scope: ...
    @property
    def seq(self) -> int: ...


class Recording:
    """The session of one run that is being recorded into ``journal``."""

    recording = True
    reach: Final = None
    decides: Final = False
    #: Which threads run does not matter while recording.
    threads: ThreadHooks | None = None

    def __init__(
        self,
        journal: Journal,
        redactor: Redactor,
        *,
        past: Trace | None = None,
        ordered: bool = True,
    ) -> None:
        self.log: Final = WrittenLog(journal, past)
        self.state: Final = RunState(live=True, ordered=ordered)
        self.redactor: Final = redactor
        self.run_id: Final = journal.run_id
        self.encoder: Final = Encoder(redactor, self._write_blob)
        self._plain: Final = self.encoder.plain
        self.report: Final = RunReport(redactor)
        journal.vault = redactor.placeholders.vault = Vault.of_process(journal.path, self.report.warn)
        self.state.boundary = Boundary(self.log, self._crossing, self._unnoted)
        self._inputs: Final = RecordedInputs(self.log, self._input, self._unnoted)
        #: The warnings already given about values that can't be recorded.
        self._warned_of: set[tuple[str, str]] = set()
        self.steps = 0
        self._lanes: list[Lane] = []
        self._last_lane = 0
        #: Counts its callbacks in event loops.
        self.progress = Progress()
        self._identities: set[str] = set()
        #: The steps whose compensation has begun: the compensation's ``seq`` until it is done, then 0.
        self.undone: Final[dict[int, int]] = {}
        self._validated: set[str] | None = None
        #: Irreversible steps that have begun and whose effect is unknown: pending, or failed inconclusively.
        self.in_doubt: Final[dict[int, None]] = {}
        #: The irreversible steps that a repetition would repeat, in order, each with its enclosing step and its lane.
        self._effects: Final[list[tuple[int, int, Lane]]] = []
        #: The files of the processes that were started inside a step, with the same.
        self._processes: Final[list[tuple[int, Lane, str]]] = []
        #: Threads that are writing about something that has happened, so that entries that can't be written are kept.
        self._keepers: Final[set[int]] = set()

    # -- steps -----------------------------------------------------------------------------------------------------------

    def refused(self, scope: Scope, request: Request) -> Step | None:
        """Return a step if the run has ended, or ``None`` if the step may begin. Raises an error if it must not."""
        state = self.state
        if state.ended:
            return self._late(scope, request)
        if state.closing is not None and not state.closing.admits(scope, request):
            raise Recording.refuse(self, scope, request, state.closing.refusal(request.spec))
        return None

    def model(self, name: str) -> str:
        return name

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        return output

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        return False

    def begin(self, scope: Scope, request: Request) -> Step:
        """Write the intent record of a step, synced for an effect. Raises ``LogWriteError`` if that fails."""
        spec = request.spec
        state = self.state
        if state.ended:
            return self._late(scope, request)
        if state.closing is not None and not state.closing.admits(scope, request):
            raise Recording.refuse(self, scope, request, state.closing.refusal(spec))
        assert request.once_key is None  # exactly-once calls go through the run's policies
        begun = None if scope.call is None else self._begins(scope, request)
        lane = scope.lane
        places: Places | None = None
        plain = None
        info = request.info
        seen: list[Any] = []
        if spec.lists:
            places = []
        elif info is None and request.key is None and request.data is None and scope.agent is None:
            plain = self._plain(request.input, seen)
        try:
            if plain is not None:
                rendered = spec.rendered
                if rendered.state is not self.redactor.state:
                    rendered = spec.render(self.redactor)
                tail = rendered.prefix + plain + rendered.suffix
            else:  # large parts are written on the way
                tail = self._intention(scope, request, places)
            if lane.id < 0:
                self._enroll(lane)
            # In doubt from the moment at which it is in the file: another thread may end the run before it is on the device.
            sync = self.in_doubt if spec.side_effect == "irreversible" else spec.effect
            seq = self.log.journal.append(spec.types.intent, lane.id, scope.parent, tail, sync)
        except LogWriteError as error:
            if begun is not None:
                begun.end()
            return self._not_begun(scope, request, error)
        if places:
            self.encoder.remember(places, seq)
        if not scope.live:  # a replay does not run what is inside a live step, so no timer there depends on it
            lane.last = seq
        self.steps += 1
        if info is not None and "compensates" in info:
            step: RecordedStep = UndoingStep(self, scope, request, seq, info["compensates"])
        else:
            step = RecordedStep(self, scope, request, seq)
        if plain is None:
            if spec.mutates is not None and request.key is None and request.data is None:
                step.watched = mutations.watched_arguments(spec.mutates, request.input)
        elif (91 in plain or plain.rfind(123) > 0) and spec.mutates is not None:  # a "[" or a second "{"
            input = request.input
            if changeable(input, spec.mutates):
                step.watched = mutations.WatchedArguments(input, spec.mutates, plain, seen)
        if state.at_begin and not (scope.live or spec.structural):
            for look in state.at_begin:
                look(scope, seq)
        return self._began(step, begun) if spec.effect else step

    def started_inside(self, scope: Scope, path: str) -> None:
        """Note that a process was started in this scope, whose part of the run is the file at ``path``."""
        if scope.parent != ROOT:
            self._processes.append((scope.parent, scope.lane, path))

    def effect_inside(self, step: RecordedStep) -> int | str | None:
        """Return the first irreversible step that was begun inside this one, if a repetition would repeat it; for one of
        a process that was started inside, the segment of that process.

        What begins in the lane of the step before it ends is taken for a step inside it, unless it says otherwise: once
        too many is better than once too few.
        """
        found: int | str | None = None
        for seq, parent, lane in reversed(self._effects):
            if seq < step.seq:
                break
            if _is_inside(parent, lane, step):
                found = seq
        for parent, lane, path in self._processes if found is None else ():
            if _is_inside(parent, lane, step) and any(in_process(path)):
                return segment_in(path) or path
        return found

    def _not_begun(self, scope: Scope, request: Request, error: LogWriteError) -> Step:
        """Handle an intent record that could not be written: an effect is not executed."""
        if self.state.ended:  # meanwhile
            return self._late(scope, request)
        if request.spec.effect or (request.info is not None and "once" in request.info):
            _not_executed(error, request.spec)
            raise error
        return self._unlogged(scope, request)

    def _begins(self, scope: Scope, request: Request) -> Begun | None:
        """Announce an effect to the open calls around it. Raises ``RunEndedError`` if it comes too late."""
        spec, info = request.spec, request.info
        if scope.call is None or not spec.effect:
            return None
        undoes = info is not None and "compensates" in info
        return scope.call.begins(spec.name, str(spec.side_effect), once_of(spec), self.run_id, undoes=undoes)

    def _began(self, step: RecordedStep, begun: Begun | None) -> RecordedStep | EffectStep:
        """Wrap a live step that may have an effect."""
        spec = step.spec
        if spec.side_effect == "irreversible" and not once_of(spec) and not isinstance(step, UndoingStep):
            # The threads come here in any order: which one is on the device first says nothing.
            insort(self._effects, (step.seq, step.scope.parent, step.scope.lane))
        return step if begun is None else EffectStep(step, begun)

    @property
    def supplied(self) -> Mapping[int, Any]:
        """Outputs missing from the log, by step, that a person supplied."""
        return {}

    def intend(self, scope: Scope, request: Request) -> int:
        """Write the intent record of a step that is not made. Raises ``LogWriteError`` whatever its class."""
        try:
            tail = self._intention(scope, request, None)
            if scope.lane.id < 0:
                self._enroll(scope.lane)
            seq = self.log.journal.append(request.spec.types.intent, scope.lane.id, scope.parent, tail)
        except LogWriteError as error:
            _not_executed(error, request.spec)
            raise
        if not scope.live:
            scope.lane.last = seq
        self.steps += 1
        return seq

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        """Log that a call was refused, in place of its intent record; return ``error``."""
        spec = request.spec
        self.state.overran(error)
        rendered = spec.render(self.redactor)
        kind = "budget.exceeded" if isinstance(error, BudgetExceededError) else "contract.violated"

        def write(append: Append) -> int:
            encoded = self.encoder.encode(request.input, own=spec.patterns)
            about: dict[str, Any] = {"family": spec.family}
            self._mark_input(about, encoded, spec)
            tail = self._agent(scope) + rendered.prefix + encoded.data + self.error(error, about, spec.patterns)
            return self.append(scope, kind, tail + self._tree({**spec.meta, "info": to_json(about)}), append)

        try:
            seq = self.logged(write)
        except LogWriteError:
            self._unnoted()
        else:
            if not scope.live:
                scope.lane.last = seq
            self.steps += 1
        return error

    def _intention(self, scope: Scope, request: Request, places: Places | None) -> bytes:
        spec, info, key, data = request.spec, request.info, request.key, request.data
        encoded: Encoded | None = None
        if request.continued is not None and data is not None and spec.lists and spec.patterns is None:
            encoded = self.encoder.encode_continued(request.input, data, request.continued, places)
        elif data is None and places is None and spec.patterns is None:
            plain = self._plain(request.input, [])
            encoded = None if plain is None else Encoded(plain, request.input)
        if encoded is None:
            encoded = self.encoder.encode(request.input, lists=spec.lists, places=places, data=data, own=spec.patterns)
        rendered = spec.render(self.redactor)
        hashed = b""
        if key is not None:
            hashed = b',"input_hash":"%b"' % fingerprint(rendered.name, self.encoder.encode(key).tree).encode()
        if type(info) is Circumstances and not encoded.redacted and not encoded.notes:
            meta = info.render(spec, self.redactor)
        else:
            about = dict(info or {})
            self._mark_input(about, encoded, spec)
            if encoded.notes and type(request.input) is dict:
                # By the type: a proxy may have no class to show, or load something for it.
                iterators = [
                    name for name, value in request.input.items() if issubclass(type(value), (Iterator, AsyncIterator))
                ]
                if iterators:
                    about["iterators"] = iterators
            if encoded.redacted:  # it may be derived from what was removed
                about.pop("idempotency_key", None)
            meta = self._with_info(spec, rendered, about) if about else rendered.suffix
        # joined at once: the input may be large
        agent = b"" if scope.agent is None else self._agent(scope)
        return b"".join((agent, rendered.prefix, encoded.data, hashed, meta))

    def _with_info(self, spec: Spec, rendered: RenderedSpec, info: dict[str, Any]) -> bytes:
        """Return ``,"meta":{…}`` of the intent record of a step of ``spec`` with this ``info``."""
        data = self._plain(info, [])
        if data is None or rendered.marks or not rendered.suffix:
            return self._tree({**spec.meta, "info": to_json(info)})
        return b'%b,"info":%b}' % (rendered.suffix[:-1], data)

    def append_outcome(
        self, append: Append, kind: str, lane: Lane, step: _Placed, meta: Mapping[str, Any], sync: bool, fields: bytes
    ) -> int:
        """Append the outcome of ``step``."""
        tail = b',"step":%d%b%b' % (step.seq, fields, self.meta(meta) if meta else b"")
        if step.scope.agent is not None:
            tail = self._agent(step.scope) + tail
        return append(kind, lane.id, step.seq, tail, sync)

    def value(
        self,
        value: object,
        meta: dict[str, Any],
        *,
        spec: Spec,
        step: int,
        places: Places | None = None,
        data: bytes | None = None,
        known: bool = False,
    ) -> bytes:
        """Return ``,"output":…`` for a value, adding notes to ``meta``; empty if a replay knows the value anyway."""
        if places is None and data is None and spec.patterns is None:
            seen: list[Any] = []
            plain = self.encoder.plain(value, seen)
            if plain is not None and (len(seen) < 3 or not repeated(seen)):
                return b',"output":%b' % plain
        encoded = self.encoder.encode(
            value, places=places, at="output", data=data, own=spec.patterns, returns=spec.hint, replayed=True
        )
        if encoded.structure is not None:
            add_structure(meta, encoded.structure, encoded.tree, "/output")
        if (encoded.notes or encoded.redacted) and not known:
            self._mark(meta, encoded, f"the output of {spec.family} {spec.name!r}", step)
            if encoded.redacted:
                self.redacted_output(spec)
        return b',"output":%b' % encoded.data

    def redacted_output(self, spec: Spec) -> None:
        if self.redactor.placeholders.vault is None:  # otherwise a replay has the value
            self.report.warn(
                f"the output of {spec.family} {spec.name!r} was redacted: a replay passes on the placeholder"
            )

    def error(
        self, error: BaseException, meta: dict[str, Any], own: Patterns | None = None, step: Step | None = None
    ) -> bytes:
        """Return ``,"error":…`` for an exception, adding notes to ``meta``; warn if a replay of ``step`` can't raise it."""
        notes: list[str] = []
        original, found = exception_with_structure(error, notes)
        tree, data = original, dumps_in_order(original)
        redacted: list[Mark] = []
        if own is not None or self.redactor.suspicious(data):
            tree, redacted = self.redactor.also(own).redact(original)
            data = dumps_in_order(tree)
        if len(data) > MAX_ERROR:
            found = []
            tree = {"type": tree["type"], "text": tree["text"], "args": [], "cut": True}
            notes = [
                f"An exception of type {tree['type']} is too large, {len(data) >> 20} MiB: only its text is recorded."
            ]
            data = dumps_in_order(tree)
            original = tree
        if step is not None:
            self._warn_of_shortfalls(step, original)
        if notes:
            meta["notes"] = notes
        if redacted:
            meta["redacted"] = [*below(redacted, "/error"), *meta.get("redacted", ())]
        add_structure(meta, found, tree, "/error")
        return b',"error":%b' % data

    def _warn_of_shortfalls(self, step: Any, tree: dict[str, Any]) -> None:
        """Warn if an exception can't be made again from ``tree``; tried once for each type that a tool raises."""
        what, spec = tree["type"], step.spec
        tool = f"{spec.family} {spec.name!r}"
        deep = tree.get("cut") == "RecursionError"  # there is no room to try it
        if deep or (tool, what) in self._warned_of or len(self._warned_of) >= 100:
            return
        self._warned_of.add((tool, what))
        token = current.set(None)  # its text is made by the program's own code, which is not part of the run
        try:
            shortfalls = decoding.shortfalls(tree, decoding.exception_from_json(tree))
        except NotReplayableError as refused:
            shortfalls = [] if refused.reason == "stack" else [("exception", f"raised {what}: {refused.what}")]
        finally:
            current.reset(token)
        for code, sentence in shortfalls:
            if code == "exception":
                advice = "Raise an exception that holds plain values, or register a codec (`tracekit.integration.register_codec`)."
                self.report.warn(f"{tool} (step {step.seq}) {self.redactor.redact_text(sentence)[0]}. {advice}")

    def meta(self, meta: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> bytes:
        """Return ``,"meta":{…}``, redacted, or nothing.

        ``own`` are facts that tracekit itself relies on, as JSON: they are not redacted, whatever the user's patterns match.
        Dictionaries of the same name in both are merged.
        """
        if not meta:
            return b""
        data = self._plain(meta, [])
        found = self._tree(to_json(dict(meta))) if data is None else b',"meta":%b' % data
        if own is None:
            return found
        tree = dict(own)
        for key, item in orjson.loads(found[len(b',"meta":') :]).items():
            tree[key] = {**tree[key], **item} if key in tree else item
        return b',"meta":%b' % dumps_in_order(tree)

    def _tree(self, tree: Any) -> bytes:
        data = dumps_in_order(tree)
        if self.redactor.suspicious(data):
            own = {key: tree[key] for key in _OF_POINTERS if key in tree}
            info = tree.get("info")
            if type(info) is dict and "redacted" in info:
                tree = {**tree, "info": {key: item for key, item in info.items() if key != "redacted"}}
            kept, found = self.redactor.redact({key: item for key, item in tree.items() if key not in own})
            marks = [*below(found, "/meta"), *(info.get("redacted", ()) if type(info) is dict else ())]
            kept = marked(kept, marks) if marks else kept
            data = dumps_in_order({**kept, **own})
        return b',"meta":%b' % data

    def _mark(self, meta: dict[str, Any], encoded: Encoded, what: str, step: int = 0) -> None:
        """Note what the trace lacks of ``what``, which a replay needs; only at the first step (``0``: none) where it is
        so."""
        if encoded.notes:
            meta["notes"] = encoded.notes
            for note in encoded.notes:
                self.unrecorded(what, note, step)
        if encoded.redacted:
            meta["redacted"] = [*encoded.redacted, *meta.get("redacted", ())]

    def unrecorded(self, what: str, note: str, step: int = 0) -> None:
        if (what, note) not in self._warned_of and len(self._warned_of) < 100:
            self._warned_of.add((what, note))
            where = f" (step {step})" if step else ""
            self.report.warn(f"{what}{where}: {note} A replay that needs it stops there.")

    def _mark_input(self, about: dict[str, Any], encoded: Encoded, spec: Spec) -> None:
        """Note an input that can't be recorded, which is no loss: a replay compares its type."""
        if encoded.notes:
            about["notes"] = encoded.notes
            tree = encoded.tree if type(encoded.tree) is dict else {}
            names = [name for name, item in tree.items() if not_serialisable(item) is not None]
            inputs = f"the input {', '.join(names)}" if names and "$t" not in tree else "the input"
            noted = f"{inputs} of {spec.family} {spec.name!r}: {encoded.notes[0]}"
            self.report.warn(
                f"{noted} It is compared by its type and description only; a replay that answers the call neither calls it nor takes "
                "items from it.",
                quiet=True,
            )
        marks = [*spec.render(self.redactor).marks, *encoded.redacted]
        if marks:
            about["redacted"] = marks

    def _agent(self, scope: Scope) -> bytes:
        return b"" if scope.agent is None else b',"agent_id":%b' % orjson.dumps(scope.agent)

    # -- one-entry steps, clock and random numbers ---------------------------------------------------------------------

    def note(self, scope: Scope, note: Note) -> int:
        try:
            write = self._note
            return write(self.log.journal.append, scope, note) if note.must else self.logged(write, scope, note)
        except LogWriteError:
            self._unnoted()
            return 0

    def _note(self, append: Append, scope: Scope, note: Note) -> int:
        meta, about = dict(note.signature or {}), dict(note.info or {})
        encoded, answer = self._noted(note.input, "input"), self._noted(note.output, "output")
        self._mark(about, encoded, f"the input of {note.type} {note.name!r}")
        self._mark(about, answer, f"the output of {note.type} {note.name!r}")
        cause = about.pop("cause", None)
        name, found = self.redactor.redact_text(note.name)
        if found:
            about["redacted"] = [*below(found, "/name"), *about.get("redacted", ())]
        if about:
            meta["info"] = about
        tail = self._agent(scope) + b',"name":%b,"input":%b,"output":%b' % (
            orjson.dumps(name), encoded.data, answer.data,
        )  # fmt: skip
        if cause:
            tail += b',"cause":%b' % orjson.dumps(cause)
        seq = self.append(scope, note.type, tail + self.meta(meta), append)
        self.steps += 1
        return seq

    def _noted(self, value: object, at: str) -> Encoded:
        plain = self._plain(value, [])
        return self.encoder.encode(value, at=at) if plain is None else Encoded(plain, value)

    def append(self, scope: Scope, kind: str, tail: bytes, append: Append | None = None) -> int:
        """Append an entry in the scope's lane."""
        if self.state.ended:
            self._late_warning(kind)
            return 0
        if kind != "clock":
            scope.lane.captured = True
        if scope.lane.id < 0:
            self._enroll(scope.lane)
        return (append or self.log.journal.append)(kind, scope.lane.id, scope.parent, tail)

    def logged(self, write: Callable[..., int], *rest: Any) -> int:
        """Write an entry about something that has happened with ``write(append, *rest)``; keep it if it can't be
        written.

        Raises ``LogWriteError`` if nothing will be written any more, or too much is kept already.
        """
        try:
            return write(self.log.journal.append, *rest)
        except LogWriteError:
            journal = self.log.journal  # the journal of a segment is created with its first entry
            if not journal.room:
                raise
            return self.keeping(write, journal.keep, *rest)

    def keeping(self, write: Callable[..., T], *rest: Any) -> T:
        """Call ``write(*rest)``; entries that it writes for parts of a value are kept if they can't be written."""
        me, keepers = get_ident(), self._keepers
        if me in keepers:
            return write(*rest)
        keepers.add(me)
        try:
            return write(*rest)
        finally:
            keepers.discard(me)

    def _part(self, kind: str, lane: int, parent: int, tail: bytes) -> int:
        """Append an entry that another one refers to."""
        try:
            return self.log.journal.append(kind, lane, parent, tail)
        except LogWriteError:
            if get_ident() not in self._keepers:
                raise
            return self.log.journal.keep(kind, lane, parent, tail)

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        value = real()
        self._read("clock", scope, function, value)
        return value

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        value = real()
        if library is not None and not self.state.ended:
            self.library_read(scope, f"{function}:{library}", value)
        return value

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        value = real()
        if not self.state.ended:
            self.library_read(scope, f"{function}:{library}", value, "random")
        return value

    def library_read(self, scope: Scope, name: str, value: object, kind: str = "clock") -> None:
        """Log what a library read. It does not count as something captured in a call in a thread."""
        lane = scope.lane.id
        if lane < 0:
            try:
                lane = self._placed(scope.lane)
            except LogWriteError:
                self._unnoted()
                return
        self.log.journal.read(kind, lane, scope.parent, name, value)

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        return self.clock_read(scope, function, real)

    def asked_again(self, scope: Scope, function: str) -> None:
        """Do nothing: repeated questions are not recorded."""

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        value = real()
        self._read("random", scope, function, value)
        return value

    def _read(self, kind: str, scope: Scope, function: str, value: object) -> None:
        if self.state.ended:
            return
        lane = scope.lane
        if lane.id < 0:
            try:
                self._enroll(lane)
            except LogWriteError:
                self._unnoted()
                return
        lane.captured = True
        self.log.journal.read(kind, lane.id, scope.parent, function, value)

    def snapshot(self, name: str, state: Any) -> Any:
        if not self.state.ended:
            tail = b',"name":%b,"output":%b' % (orjson.dumps(name), dumps_in_order(state))
            try:
                self.logged(lambda append: append("random", 0, ROOT, tail))
            except LogWriteError:
                self._unnoted()
        return None

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        if not self.state.ended:
            self._inputs.read(scope, kind, name, value)
        return value

    def arm(self, scope: Scope, function: str, seconds: float) -> RecordedTimer:
        return RecordedTimer(self, scope, function, *scope.lane.armed(function))

    def importing(self, scope: Scope, module: str) -> Scope | None:
        return scope.of_module(module)

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        pass

    # -- lanes and blobs -----------------------------------------------------------------------------------------------

    def starts(self, lane: Lane) -> None:
        """Log that a process is about to be started in ``lane``: after a crash the log must show it, even if the
        process wrote nothing."""
        if lane.id < 0 and not self.state.ended:
            self._enroll(lane, process=True)

    def _enroll(self, lane: Lane, *, process: bool = False) -> None:
        """Give a lane its number and its entry; its ancestors first."""
        parent = lane.parent
        assert parent is not None
        parent.captured = True
        if parent.id < 0:
            self._enroll(parent)
        with self.log.journal.held():
            if lane.id >= 0:
                return
            number = self._number(lane, parent)
            if number:
                lane.id = number
                return
            if lane.number:
                lane.id = lane.number
                self._lanes.append(lane)
                return
            lane.id = self._name(lane, parent.id, process)
            self._lanes.append(lane)

    def _name(self, lane: Lane, parent: int, process: bool = False) -> int:
        """Write the entry that gives ``lane`` the next number; return the number.

        A signal handler may raise, or give a lane a number itself, after any call in here. So the number is taken
        before the entry is written, and no other lane gets it, though this one may get a second one: that counts.
        """
        number = self._last_lane = self._last_lane + 1
        about = {"id": number, "parent": parent, "name": lane.name, "n": lane.n}
        if lane.under:
            about["under"] = lane.under
        if process:
            about["process"] = True
        if lane.parent is not None and not lane.parent.last:
            about["since"] = lane.begun_at  # is all that the parent does to wait for it?
        try:
            self._part("lane", parent, lane.under or ROOT, b',"input":%b' % orjson.dumps(about))
        except LogWriteError:
            if self._last_lane == number:
                self._last_lane -= 1
            raise
        return number

    def place(self, lane: Lane, *, hop: bool = False) -> bytes:
        """Return the place of an event of ``lane`` that an event loop is delivering, as a field of its entry. If that
        can't be written, ``progress.take_back`` lets the next attempt have the place (``with_place``)."""
        return self.progress.place(lane, self._placed, hop=hop)

    def with_place(self, lane: Lane, write: Callable[[bytes], int], fields: bytes, *, hop: bool = False) -> int:
        """Write the entry of an event of ``lane`` that an event loop is delivering: ``write(fields)``, with its place."""
        fields += self.place(lane, hop=hop)  # may write entries of lanes, which are no part of what is taken back
        try:
            return write(fields)
        except LogWriteError:
            self.progress.take_back()
            raise

    def _placed(self, lane: Lane) -> int:
        """Return the number of a lane that is named in a place, although it may never make a step."""
        if lane.id >= 0 or lane.number:
            return lane.number if lane.id < 0 else lane.id
        assert lane.parent is not None
        parent = self._placed(lane.parent)
        with self.log.journal.held():
            if lane.id < 0 and not lane.number:
                lane.number = self._number(lane, lane.parent) or self._name(lane, parent)
        return lane.number if lane.id < 0 else lane.id

    def _number(self, lane: Lane, parent: Lane) -> int:
        """Return the number that ``lane`` already has in the log, or 0."""
        return 0

    def _write_blob(self, data: bytes) -> int:
        return self._part("blob", 0, ROOT, b',"output":%b' % data)

    def open_lanes(self) -> list[Lane]:
        """Return the lanes whose task, thread or call has not ended."""
        return [lane for lane in self._lanes if lane.open]

    def owed_by(self, lanes: list[Lane]) -> bool:
        return False

    def part_ended(self, step: int, name: str, result: object) -> None:
        pass

    @property
    def undo_log(self) -> UndoLog | None:
        return None

    # -- the run's own entries -----------------------------------------------------------------------------------------

    def validated(self, scope: Scope, spec: Spec) -> None:
        noted = self._validated
        if noted is None:
            past = self.log.trace
            entries = () if past is None else past.entries()
            noted = self._validated = {one["name"] for one in entries if one["type"] == "contract.validated"}
        name = spec.render(self.redactor).name
        if name not in noted and self.recording:
            noted.add(name)
            about = self._tree(spec.render(self.redactor).meta)
            try:
                self.append(scope, "contract.validated", b',"name":%b%b' % (orjson.dumps(name), about))
            except LogWriteError:
                self._unnoted()

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """Log the identity of ``agent``, once; entries refer to it by ``agent_id``."""
        if agent in self._identities:
            return
        try:
            encoded = self.encoder.encode(dict(identity or {}))
            tail = b',"agent_id":%b,"name":%b,"input":%b' % (orjson.dumps(agent), orjson.dumps(agent), encoded.data)
            self.log.journal.append("identity", 0, ROOT, tail)
        except LogWriteError:
            self._unnoted()
        else:
            self._identities.add(agent)

    def _crossing(self, kind: str, about: dict[str, Any], place: tuple[int, int]) -> int:
        """Append a ``boundary`` entry. It creates no lane: a replay has no crossings, and lanes are compared."""
        tail = b',"name":%b,"input":%b' % (orjson.dumps(kind), self.encoder.encode(about).data)
        return self.log.journal.append("boundary", *place, tail)

    def _input(self, kind: str, about: dict[str, Any], value: dict[str, Any], place: tuple[int, int]) -> int:
        """Append an ``input`` entry, which creates no lane either."""
        if kind == "environment":  # names reveal more about secrets here than elsewhere
            there = self.redactor.redact_environment((name, one) for name, one in value.items() if one is not None)
            value = {**value, **there}
        asked, found = self.encoder.encode(about), self.encoder.encode(value, at="output")
        marks = [*asked.redacted, *found.redacted]
        tail = b',"name":%b,"input":%b,"output":%b' % (orjson.dumps(kind), asked.data, found.data)
        return self.log.journal.append(
            "input", *place, tail + (b',"meta":%b' % dumps_in_order(marked({}, marks)) if marks else b"")
        )

    def result(self, value: object, meta: dict[str, Any]) -> bytes:
        encoded = self.encoder.encode(value, at="output")
        self._mark(meta, encoded, "the result of the run")
        return b',"output":%b' % encoded.data

    def discard(self) -> None:
        """Discard this run and its file."""
        self.state.ended = self.state.discarded = True
        self.log.journal.close()
        system.unlink(self.log.journal.path)

    def fail(self, error: ReplayError) -> ReplayError:
        return error

    @property
    def warnings(self) -> list[str]:
        return [*self.report.noted, *self.report.warnings, *self.report.quiet]

    # -- warnings and late steps ---------------------------------------------------------------------------------------

    def _unnoted(self) -> None:
        self.log.journal.lost += 1
        self.report.warn("the log could not be written for a while: steps are missing from it")

    def _unlogged(self, scope: Scope, request: Request) -> RecordedStep:
        self._unnoted()
        return UnloggedStep(self, scope, request, scope.parent)

    def _late(self, scope: Scope, request: Request) -> RecordedStep:
        spec = request.spec
        if self.state.discarded:
            return UnloggedStep(self, scope, request, scope.parent)
        if isinstance(self.state.closing, Leaving):
            self.state.closing.hold()
        if spec.effect:
            raise RunEndedError(
                f"{spec.family} {spec.name!r} ({spec.side_effect}) was called after run {self.run_id} had ended; it was not executed",
                run_id=self.run_id,
                next_action="wait for the task or thread that calls it before the record() block ends",
            )
        self._late_warning(f"{spec.family} {spec.name!r}")
        return UnloggedStep(self, scope, request, scope.parent)

    def _late_warning(self, what: str) -> None:
        if self.state.discarded:
            return
        what = self.redactor.redact_text(what)[0]
        warn(f"{what} came after run {self.run_id} had ended and is not in its trace")


def _sized(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is recorded about a piece, with the number of its encoded bytes instead of the bytes."""
    return {"size": len(info["coded"]), **{name: value for name, value in info.items() if name != "coded"}}


def _not_executed(error: LogWriteError, spec: Spec) -> None:
    """Add to the error of an intent record that could not be written that the call was not executed."""
    error.reword(f"{spec.family} {spec.name!r} was not executed: {error.what}")
    error.executed = False


def encode_reads(values: list[Any]) -> bytes:
    """Return the values of clock and random reads as JSON."""
    return quick(values) or dumps_in_order(to_json(values))


# -- steps with an effect ----------------------------------------------------------------------------------------------
#
# Steps counted by an open call around them.


class EffectStep(AroundStep):
    """A live step with an effect below an open call, to which its end is reported."""

    __slots__ = ("_begun",)

    def __init__(self, inner: Step, begun: Begun) -> None:
        super().__init__(inner)
        self._begun: Final = begun

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        self._begun.end()  # nothing goes on by itself between two pieces
        self.inner.chunk(output, info=info)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self._begun.end()
        self.inner.done(output, info=info, data=data)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._begun.end(failed=True)
        self.inner.failed(error, output=output, info=info)


def once_of(spec: Spec) -> object:
    """Return whether repeated calls of ``spec`` are answered by the first: within the run, or (``"store"``) across
    runs."""
    return (spec.signature.get("contract") or {}).get("exactly_once")


# -- compensations -----------------------------------------------------------------------------------------------------
#
# Steps that undo others: an exactly-once call that was undone may be made again.


class UndoingStep(RecordedStep):
    """The compensation of step ``of``. Until it has returned, it is unknown whether that step is undone."""

    __slots__ = ("_of",)

    def __init__(self, session: Recording, scope: Scope, request: Request, seq: int, of: int) -> None:
        super().__init__(session, scope, request, seq)
        self._of: Final = of
        session.undone[of] = seq

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        super().done(output, info=info, data=data)
        self.session.undone[self._of] = 0
