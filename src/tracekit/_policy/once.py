"""Exactly-once calls: claimed under a key before they begin; later calls are answered by the first one."""

from __future__ import annotations

import os
from _thread import LockType, get_ident
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from orjson import loads

from .. import _reality
from .._journal.entry import family_of, info_of, meta_of
from .._journal.keys import Keys, Owner
from .._journal.store import SEGMENT, Store, beside, file_beside, live_writer, segment_in, valid_run_id
from .._lazy import NamedTuple
from .._runtime.around import AroundStep
from .._runtime.callsite import say
from .._runtime.lane import Lane
from .._runtime.process import process
from .._runtime.recorder import RecordedStep, of_step
from .._runtime.recovered import RecoveredLog
from .._runtime.redaction import Originals
from .._runtime.session import Outcome, Scope, Step, current, owner
from .._runtime.step import Request, Spec
from .._values import add_structure, dumps_in_order, exception_with_structure, noted, repeated, with_structure
from .._values.decoding import exception_from_json, from_json, shortfalls, structured
from ..errors import (
    ContractViolationError,
    LogWriteError,
    NotReplayableError,
    RunEndedError,
    TraceError,
)
from . import budget

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .._runtime.recorder import Append, Recording

__all__ = [
    "Awaited",
    "Once",
    "place_of",
]

# -- duplicates --------------------------------------------------------------------------------------------------------
#
# An exactly-once call, and the calls that it answers.


class LiveValue(NamedTuple):
    """One value of a call: the live object, its JSON if that represents it fully, and the entry's ``meta``.

    ``structure`` is what the JSON does not say, as in the ``meta`` of an entry.
    """

    value: Any
    data: bytes | None
    meta: Mapping[str, Any]
    structure: Mapping[str, Any] = {}

    @classmethod
    def of(cls, value: Any, meta: Mapping[str, Any] | None) -> LiveValue:
        seen: list[Any] = []
        data = noted(value, seen)
        if data is None or not repeated(seen):
            return cls(value, data, meta or {})
        tree, found = with_structure(value)
        structure: dict[str, Any] = {}
        add_structure(structure, found, tree, "")
        return cls(value, dumps_in_order(tree), meta or {}, structure)

    def for_caller(self, spec: Spec) -> Any:
        """Return the value for another caller: a copy, if possible."""
        if self.data is None:
            return self.value
        return from_json(structured(loads(self.data), self.structure, ""), spec.hint())


class KeyedResult(NamedTuple):
    """The result of a call: what it returned or raised, and the pieces before that."""

    returned: LiveValue | None
    raised: BaseException | None = None
    pieces: tuple[LiveValue, ...] = ()
    lazy: str | None = None


class KeyedCall:
    """One call under a key, from before its intent record is logged until its outcome is.

    ``of`` is what duplicates refer to: its ``seq``, or run and ``seq`` if it belongs to another run. ``lane``,
    ``owner`` and ``thread`` identify its caller.
    """

    def __init__(self, lane: Lane | None, owner: int, thread: int) -> None:
        self.lane: Final = lane
        self.owner: Final = owner
        self.thread: Final = thread
        self.seq = 0
        #: Whether the next caller has to ask for its result again.
        self.stale = False
        self.of: int | Mapping[str, Any] = 0
        #: Why it can neither be made nor answered.
        self.refusal: ContractViolationError | None = None
        #: The calls that something inside this one waits for.
        self.waiting: list[KeyedCall] = []
        self.pieces: list[LiveValue] = []
        self._result: KeyedResult | None = None
        self._log: tuple[LoggedCall, Trace] | None = None
        self._lock: Final = _reality.OwnLock()
        self._waiters: list[Any] = []
        self._is_open: Final = _reality.gate()
        self._has_ended: Final = _reality.gate()

    @classmethod
    def answered(cls, of: Mapping[str, Any], result: KeyedResult) -> KeyedCall:
        """Return a call that another run has made."""
        call = cls(None, 0, 0)
        call.of, call._result = of, result
        call._is_open.release()
        return call

    @classmethod
    def logged(cls, logged: LoggedCall, log: Trace) -> KeyedCall:
        """Return a call that this run made before it was resumed."""
        call = cls(None, 0, 0)
        call.seq = call.of = logged.seq
        call._log = logged, log
        call._is_open.release()
        return call

    @classmethod
    def supplied(cls, seq: int, output: Any) -> KeyedCall:
        """Return a call that this run made before it was resumed, with an output supplied by a person."""
        call = cls(None, 0, 0)
        call.seq = call.of = seq
        call._result = KeyedResult(LiveValue(output, None, {}))
        call._is_open.release()
        return call

    @classmethod
    def undecided(cls, refusal: ContractViolationError) -> KeyedCall:
        """Return a call of which the log does not say whether it was made: every duplicate is refused."""
        call = cls(None, 0, 0)
        call.refusal = refusal
        call.of = refusal.step or 0
        call._is_open.release()
        return call

    # -- beginning -----------------------------------------------------------------------------------------------------

    def made(self, seq: int) -> None:
        """Note that its intent record is logged."""
        self.seq = self.of = seq
        self._is_open.release()

    def not_made(self) -> None:
        """Give the call up before its intent record is logged; those who wait for it look again."""
        self._is_open.release()

    def in_this_thread(self) -> bool:
        """Return whether the present thread is making it."""
        return self.thread == get_ident()

    def opened(self) -> bool:
        """Wait until its intent record is logged; return false if it was given up before."""
        if self.in_this_thread() and not self.of:
            return True  # a signal handler in the middle of it: the call is pending, and our own
        _reality.pause(_pass, self._is_open)
        return self.of != 0

    # -- ending --------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return self._result is None and self._log is None

    def end(self, result: KeyedResult) -> None:
        """End the call with its result, which answers every duplicate. Only the first end counts."""
        with self._lock:
            if self._result is not None:
                return
            self._result = result
            waiters, self._waiters = self._waiters, []
        self._has_ended.release()
        for future in waiters:
            _reality.wake(future)

    def wait(self, step: DuplicateStep) -> None:
        if self.pending:
            _reality.pause(_pass, self._has_ended)

    async def wait_async(self, step: DuplicateStep) -> bool:
        """Wait for the result; return whether the event loop ran meanwhile."""
        loop = _reality.running_loop()
        with self._lock:
            if not self.pending:
                return False
            future = loop.create_future()
            self._waiters.append(future)
        await future
        return True

    def result(self, spec: Spec) -> KeyedResult:
        if self._result is None:
            assert self._log is not None
            logged, log = self._log
            return logged.result(log, spec)
        return self._result

    # -- deadlocks -----------------------------------------------------------------------------------------------------

    def encloses(self, lane: Lane) -> bool:
        """Return whether ``lane`` is inside this call, which has not ended."""
        line: Lane | None = lane
        if self.lane is None or line is self.lane:
            return self.lane is not None
        while line is not None:
            if line.parent is self.lane and line.under >= self.seq > 0:
                return True
            line = line.parent
        return False

    def waits_for(self) -> set[KeyedCall]:
        """Return this call and everything that it waits for, directly or indirectly."""
        found: set[KeyedCall] = set()
        stack = [self]
        while stack:
            call = stack.pop()
            if call not in found:
                found.add(call)
                stack.extend(call.waiting)
        return found


def _pass(gate: LockType) -> None:
    """Wait until a gate is open."""
    with gate:
        pass


class FirstStep(AroundStep):
    """The live step of an exactly-once call; its result answers every later one.

    If it is dropped without a result (Ctrl-C just before the call, or after it), they are refused: they must not wait
    for ever.
    """

    __slots__ = ("_name", "_run_id", "call")

    def __init__(self, inner: Step, name: str, run_id: str, call: KeyedCall) -> None:
        super().__init__(inner)
        self._name: Final = name
        self._run_id: Final = run_id
        self.call: Final = call

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        self.inner.chunk(output, info=info)
        self.call.pieces.append(LiveValue.of(output, info))

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        piece = LiveValue.of(output, info)
        try:
            self.inner.done(output, info=info, data=data)
        except BaseException as error:
            if isinstance(error, LogWriteError) and error.kept:  # a later caller can ask again once it is logged
                self._end(piece, None, info)
            else:
                self._end(None, error, info)
            raise
        if info is not None and info.get("abandoned"):
            self._end(None, self._left(), info)
        else:
            self._end(piece, None, info)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        try:
            self.inner.failed(error, output=output, info=info)
        except BaseException as second:
            kept = isinstance(second, LogWriteError) and second.kept
            self._end(None, error if kept else second, info)
            raise
        self._end(None, error, info)

    def _end(self, returned: LiveValue | None, error: BaseException | None, info: Mapping[str, Any] | None) -> None:
        pieces = tuple(self.call.pieces)
        lazy = next(
            (facts.get("lazy") for facts in (info, *(piece.meta for piece in pieces)) if facts and "lazy" in facts),
            None,
        )
        self.call.end(KeyedResult(returned, error, pieces, lazy))

    def __del__(self) -> None:
        if self.call.pending:
            what = f"the first call of {self._name!r} under this key was broken off"
            self.call.end(KeyedResult(None, _unknown(what, self._run_id, self.seq)))

    def _left(self) -> ContractViolationError:
        return ContractViolationError(
            f"the call of {self._name!r} that this one must repeat was left before its end (step {self.seq})",
            run_id=self._run_id,
            step=self.seq,
            contract="exactly_once",
            next_action="take everything that the first one yields",
        )


def _unknown(what: str, run_id: str, step: int | None) -> ContractViolationError:
    return ContractViolationError(
        f"{what}: whether it did anything is not known, so it was not executed again",
        run_id=run_id,
        step=step,
        contract="exactly_once",
        next_action="find out what was done; another idempotency key makes another call",
    )


class DuplicateStep(Step):
    """A later call under a key; see ``session.Step``. It is not made: the first call's result answers it."""

    __slots__ = ("_next", "_once", "around", "call", "request", "scope", "seq", "session", "spec")

    live: Final = False
    deferred: Final = False

    def __init__(self, once: Once, scope: Scope, request: Request, seq: int, call: KeyedCall) -> None:
        self._once: Final = once
        self.session: Final = once.session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq: Final = seq
        self.call: Final = call
        #: The exactly-once calls that this one is part of.
        self.around: set[Owner] = set()
        self._next = 0

    def body(self) -> Scope:
        return self.scope.inside(self.seq, live=True)

    def holds(self, instance: object) -> None:
        pass

    # -- the answer ----------------------------------------------------------------------------------------------------

    def answer(self) -> Outcome:
        refused = self._wait()
        return self._outcome(False) if refused is None else self._write(None, refused, {})

    async def answer_async(self) -> Outcome:
        refused, suspended = await self._wait_async()
        if refused is None:
            return self._outcome(suspended)
        return self._write(None, refused, {"suspended": True} if suspended else {})

    def next_chunk(self) -> Outcome | None:
        return None if self._wait() is not None else self._piece(False)

    async def next_chunk_async(self) -> Outcome | None:
        refused, suspended = await self._wait_async()
        return None if refused is not None else self._piece(suspended)

    def ahead(self, key: str) -> str | None:
        """Known when the first call has ended; waits for that, as ``answer`` does."""
        if self._wait() is not None:
            return None
        result = self._result()
        return None if result is None or key != "lazy" else result.lazy

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self) -> ContractViolationError | None:
        if not self.call.pending:
            return None
        try:
            self._once.may_wait(self, blocking=True)
        except ContractViolationError as refused:
            return refused
        try:
            self.call.wait(self)
        except ContractViolationError as refused:
            return refused
        except BaseException as error:  # Ctrl-C
            self._write(None, error, {})
            raise
        finally:
            self._once.waited(self)
        return None

    async def _wait_async(self) -> tuple[ContractViolationError | None, bool]:
        if not self.call.pending:
            return None, False
        try:
            self._once.may_wait(self, blocking=False)
        except ContractViolationError as refused:
            return refused, False
        try:
            return None, await self.call.wait_async(self)
        except ContractViolationError as refused:
            return refused, True
        except BaseException as error:  # cancelled
            self._write(None, error, {"suspended": True})
            raise
        finally:
            self._once.waited(self)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _result(self) -> KeyedResult | None:
        """Return the result, or ``None`` if the log's record of it can't be used; ``answer`` says why."""
        try:
            return self.call.result(self.spec)
        except ContractViolationError:
            return None

    def _outcome(self, suspended: bool) -> Outcome:
        try:
            result = self.call.result(self.spec)
        except ContractViolationError as refused:  # the log's record can't be used
            return self._write(None, refused, {})
        meta: dict[str, Any] = {"suspended": True} if suspended else {}
        if result.lazy is not None and not result.pieces:
            meta["lazy"] = result.lazy
        error = None if result.raised is None else self._error(result.raised)
        return self._write(result.returned, error, meta)

    def _piece(self, suspended: bool) -> Outcome | None:
        result = self._result()
        pieces = () if result is None else result.pieces
        if self._next == len(pieces):
            return None
        piece = pieces[self._next]
        self._next += 1
        meta = {key: value for key, value in piece.meta.items() if key in ("lazy", "sent", "thrown")}
        if suspended:
            meta["suspended"] = True
        value = piece.for_caller(self.spec)
        RecordedStep(self.session, self.scope, self.request, self.seq).chunk(value, info=meta or None)
        return Outcome(value, None, meta, {})

    def _error(self, raised: BaseException) -> BaseException:
        """Return the first call's exception for another caller. A cancellation concerned the first call alone."""
        if not isinstance(raised, Exception):
            what = f"the first call of {self.spec.name!r} under this key ended with {type(raised).__name__}"
            return _unknown(what, self.session.run_id, self.call.seq or None)
        return _copy(raised)

    def _write(self, returned: LiveValue | None, error: BaseException | None, meta: dict[str, Any]) -> Outcome:
        session, spec = self.session, self.spec
        value = None if returned is None else returned.for_caller(spec)
        if not session.state.ended:
            try:
                session.logged(self._skipped, value, error, meta)
            except LogWriteError:
                session._unnoted()
        return Outcome(value, error, meta, {})

    def _skipped(self, append: Append, value: Any, error: BaseException | None, meta: dict[str, Any]) -> int:
        session, spec = self.session, self.spec
        about: dict[str, Any] = {"reason": "exactly_once", "of": self.call.of}
        whole = {**meta, "info": about}
        if error is None:
            fields = session.value(value, whole, spec=spec, step=self.seq)
        else:
            about["final"] = True  # the first call decided whether to retry
            fields = self._failure(error, whole)
        lane = self.scope.lane
        write = partial(session.append_outcome, append, spec.types.skipped, lane, self, whole, False)
        seq = session.with_place(lane, write, fields) if "suspended" in meta and not self.scope.live else write(fields)
        meta.update(whole)
        return seq

    def _failure(self, error: BaseException, meta: dict[str, Any]) -> bytes:
        session, own = self.session, self.spec.patterns
        step: Any = self
        meta["failure"] = of_step(error, session, step)
        if own is not None:
            meta["failure"] = session.redactor.also(own).redact(meta["failure"])[0]
        return session.error(error, meta, own)


def _copy(error: BaseException) -> BaseException:
    """Return a separate exception for each caller, if it can be copied: raising one object in two threads mixes their
    tracebacks."""
    tree, found = exception_with_structure(error, [])
    structure: dict[str, Any] = {}
    add_structure(structure, found, tree, "")
    copy = exception_from_json(structured(tree, structure, ""))
    same = type(copy) is type(error) and str(copy) == str(error) and not list(shortfalls(tree, copy))
    return copy if same else error


# -- logged ------------------------------------------------------------------------------------------------------------
#
# What a log says about exactly-once calls.


class LoggedCall:
    """The call under one key: its intent record, its pieces, and the ``seq`` of its outcome (0: none).

    ``undoing`` is the ``seq`` of a compensation that began and did not succeed (0: none), ``by`` identifies the secret
    under which the key was made, ``in_store`` says whether the key covers the whole store.
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.seq: Final[int] = entry["seq"]
        self.name: Final[Any] = entry.get("name")
        self.run_id: Final[str] = entry["run_id"]
        self.side_effect: Final[Any] = entry["meta"].get("side_effect")
        self.pieces: Final[list[int]] = []
        self.outcome = 0
        self.undoing = 0
        self.by: Final[Any] = entry["meta"]["info"].get("once_by")
        contract = entry["meta"].get("contract")
        self.in_store: Final = isinstance(contract, Mapping) and contract.get("exactly_once") == "store"

    @property
    def ended(self) -> bool:
        return self.outcome != 0

    def result(self, log: Trace, spec: Spec) -> KeyedResult:
        """Return the decoded result. Raises ``ContractViolationError`` if the log does not have it completely."""
        try:
            return self._result(log, spec)
        except NotReplayableError as error:
            raise self._not_given(error.what) from None

    def settled(self, settlement: Mapping[str, Any], spec: Spec, place: Mapping[str, Any]) -> KeyedCall | None:
        """Return the call as a person settled it after its run had ended; ``None`` if it was not made."""
        if not settlement["done"]:
            return None
        return KeyedCall.answered(
            place, KeyedResult(LiveValue(from_json(settlement.get("output"), spec.hint()), None, {}))
        )

    def _result(self, log: Trace, spec: Spec) -> KeyedResult:
        pieces = tuple(self._piece(log, seq, spec) for seq in self.pieces)
        entry = log.entry(self.outcome)
        meta = meta_of(entry)
        lazy = next((facts["lazy"] for facts in (meta, *(piece.meta for piece in pieces)) if "lazy" in facts), None)
        if "error" in entry:
            entry = Originals(log.path).of(entry, log.expand, "error")
            tree = structured(log.expand(entry["error"]), meta, "/error")
            return KeyedResult(None, exception_from_json(tree), pieces, lazy)
        if meta.get("abandoned"):
            return KeyedResult(None, self._not_given("it was abandoned before its end"), pieces, lazy)
        return KeyedResult(self._piece(log, self.outcome, spec), None, pieces, lazy)

    def _piece(self, log: Trace, seq: int, spec: Spec) -> LiveValue:
        entry = log.entry(seq)
        meta = meta_of(entry)
        if meta.get("redacted"):
            originals = Originals(log.path)
            if originals.lack(entry, "output"):
                raise self._not_given("a secret in it was redacted, so the log does not have it")
            entry = originals.of(entry, log.expand, "output")
        tree = structured(log.expand(entry.get("output")), meta, "/output")
        return LiveValue(from_json(tree, spec.hint()), None, meta)

    def _not_given(self, why: str) -> ContractViolationError:
        return ContractViolationError(
            f"{self.name!r} was made in run {self.run_id} at step {self.seq}, and its result can't be given again: {why}; "
            "it was not executed",
            run_id=self.run_id,
            step=self.seq,
            contract="exactly_once",
            next_action="return something that can be recorded, or use another idempotency key",
        )


def calls_of(entries: Iterable[Mapping[str, Any]]) -> dict[str, LoggedCall]:
    """Return the calls of a log, by key, without those that were given up, settled as not done, or undone."""
    found: dict[str, LoggedCall] = {}
    begun: dict[int, tuple[str, LoggedCall]] = {}
    undoing: dict[int, tuple[str, LoggedCall]] = {}
    for entry in entries:
        role = family_of(entry["type"])
        if role is None:
            continue
        if role[1] == "intent":
            digest = _once(entry)
            if digest is not None:
                call = found[digest] = LoggedCall(entry)
                begun[call.seq] = digest, call
            undone = begun.get(_undoes(entry))
            if undone is not None:
                undoing[entry["seq"]] = undone
                undone[1].undoing = entry["seq"]
            continue
        seq, given_up = entry.get("step", 0), role[1] == "skipped" and "output" not in entry and "error" not in entry
        if seq in undoing:
            _of_undoing(found, *undoing[seq], role[1], given_up)
        if seq not in begun:
            continue
        digest, call = begun[seq]
        if role[1] == "chunk":
            call.pieces.append(entry["seq"])
        elif given_up:
            _forget(found, digest, call)
        else:
            call.outcome = entry["seq"]  # the last one counts: a person may settle a failed call
    return found


def _of_undoing(found: dict[str, LoggedCall], digest: str, call: LoggedCall, role: str, given_up: bool) -> None:
    if role == "outcome":
        _forget(found, digest, call)
    elif given_up:
        call.undoing = 0


def _forget(found: dict[str, LoggedCall], digest: str, call: LoggedCall) -> None:
    if found.get(digest) is call:
        del found[digest]


def _info(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``info`` of the intent record of a call that was made; empty if an earlier call answers it."""
    info = info_of(entry)
    return {} if "duplicate_of" in info else info


def _undoes(entry: Mapping[str, Any]) -> int:
    of = _info(entry).get("compensates")
    return of if type(of) is int else 0


def _once(entry: Mapping[str, Any]) -> str | None:
    """Return the key of a call that was made, not answered by an earlier one."""
    digest = _info(entry).get("once")
    return digest if isinstance(digest, str) else None


# -- calls of peers ----------------------------------------------------------------------------------------------------
#
# Asks other runs, and other processes of the same run, about an exactly-once call, through their logs, and waits for
# it.

#: After this many seconds, stderr says what a call waits for.
_REPORTED_AFTER: Final = 10.0
#: The pause between two looks at a log: initial, maximum, and minimum as a multiple of a look's duration.
_FIRST: Final = 0.005
_LONGEST: Final = 0.25
_APART: Final = 4


class PeerCalls:
    """Looks up the store's keys for ``me``, whose recording is ``session``."""

    def __init__(self, session: Recording, keys: Keys, me: Owner) -> None:
        self._session: Final = session
        self._keys: Final = keys
        self._me: Final = me

    def ask(self, file: str, digest: str, spec: Spec) -> KeyedCall | None:
        """Return the call that another run, or process of this one, has made under the key; ``None`` if the key is ours
        now, its ``file`` on the device."""
        with self._session.log.journal.held():
            pass  # others must be able to read a log before there is a key
        report = self.report(spec)
        while True:
            has = self._keys.claim(file, *self._me[:2])
            if has is None or has[:2] == self._me[:2]:
                return None
            try:
                # As long as nobody writes to it and nobody can begin to, the log stays as it is.
                with live_writer(self.log_of(has)) as writing:
                    known = self.asked(digest, has, spec, writing)
                    if known is not None or (not writing and self._keys.take_over(file, has, *self._me[:2])):
                        return known
                if writing and has.seq:  # otherwise it is between its key and its intent record
                    raise self._refused(
                        has, 0, "is about to make this call, or may make it again", "wait until that run has ended"
                    )
            except LogWriteError:
                raise
            except (TraceError, OSError) as error:
                raise self._unsure(has, getattr(error, "what", str(error))) from error
            report(has)
            _reality.pause(_reality.sleep, _FIRST)

    def log_of(self, has: Owner) -> str:
        right = valid_run_id(has.run_id) and (has.segment is None or SEGMENT.fullmatch(f"x.{has.segment}"))
        if not right:
            raise self._unsure(has, "its name is not a run id")
        if has.run_id == self._me.run_id:
            return file_beside(self._session.log.path, has.segment)
        return Store(self._session.log.journal.root).path(has.run_id, has.segment)

    def asked(self, digest: str, has: Owner, spec: Spec, writing: bool) -> KeyedCall | None:
        """Return the call in the log of ``has``; ``None`` if it did not make the call, and will not unless it is
        ``writing``."""
        from .._journal.reader import Trace

        with Trace(self.log_of(has)) as log:
            status = log.check()
            call = calls_of(islice(log.entries(), status.count)).get(digest)  # its writer may have added entries since
            if call is not None and call.undoing:
                what = f"has undone this call, or not: its compensation (step {call.undoing}) has no certain end"
                raise self._refused(
                    has, call.seq, what, "find out what was done; another idempotency key makes another call"
                )
            if call is not None and not writing:
                settlement = self._keys.settled(digest, Owner(has.run_id, has.segment, call.seq))
                if settlement is not None and settlement.get("hash") == log.entry(call.seq)["hash"]:
                    return call.settled(settlement, spec, place_of(has, call.seq))
            if call is not None and call.ended:
                return KeyedCall.answered(place_of(has, call.seq), call.result(log, spec))
        if writing:
            return None if call is None else Awaited(self, digest, has, call.seq)  # as long as that process lives
        if call is not None:
            raise self._in_doubt(has, call)
        if status.count < has.seq:
            raise self._unsure(has, f"its log ends before step {has.seq}, where it began the call")
        return None

    # -- waiting -------------------------------------------------------------------------------------------------------

    def report(self, spec: Spec) -> Callable[[Owner], None]:
        """Return a function to be called repeatedly with the owner being waited for: it reports on stderr, once, if
        that takes long."""
        begun, reported = _reality.monotonic(), False

        def report(has: Owner) -> None:
            nonlocal reported
            if not reported and _reality.monotonic() - begun > _REPORTED_AFTER:
                reported = True
                say(f"{spec.name!r} waits in run {self._session.run_id}: run {has.shown} makes this call")

        return report

    def thread_of(self, has: Owner) -> int:
        """Return the thread of this process in which another run's call is being made; 0 if there is none."""
        for session in process.sessions:
            once = session.state.extras.of(RunKeys).once
            if once is not None and once.me[:2] == has[:2]:
                return once.thread_of(has.seq)
        return 0

    def waits_in(self, has: Owner) -> set[Owner]:
        """Return the calls, of any run, that something inside the call of ``has`` waits for, according to its log."""
        from .._journal.reader import Trace

        found: set[Owner] = set()
        with Trace(self.log_of(has)) as log:
            steps = RecoveredLog(islice(log.entries(), log.check().count))
            for step in steps.steps.values():
                waits = step.duplicate and step.state == "pending"
                if waits and any(one.seq == has.seq for one in steps.enclosing(step)):
                    of = log.entry(step.seq)["meta"]["info"]["duplicate_of"]
                    own = type(of) is int
                    found.add(has._replace(seq=of) if own else Owner(of["run_id"], of.get("segment"), of["seq"]))
        return found

    def leads_to(self, waits: Iterable[Owner], calls: Collection[Owner]) -> bool:
        """Return whether any of these waits, directly or indirectly, for one of ``calls``."""
        seen: set[Owner] = set()
        stack = [*waits]
        while stack:
            has = stack.pop()
            if has in calls:
                return True
            if has not in seen:
                seen.add(has)
                with suppress(TraceError, OSError):  # in the middle of a line
                    stack.extend(self.waits_in(has))
        return False

    # -- refusals ------------------------------------------------------------------------------------------------------

    def _in_doubt(self, has: Owner, call: LoggedCall) -> ContractViolationError:
        run = has.run_id if has.segment is None else f"{has.run_id}.{has.segment}"
        settle = f"`tracekit recovery settle {run} {call.seq} --done OUTPUT.json | --not-done --reason TEXT`"
        what = "began this call, and its log does not say whether it was made"
        return self._refused(has, call.seq, what, f"find out what was done, and say so with {settle}")

    def too_long(self, has: Owner, seq: int, waited: float) -> ContractViolationError:
        what = f"is making this call, and was waited for for {waited:g} s"
        return self._refused(has, seq, what, "wait until that call has ended, or give the tool a larger timeout_ms")

    def each_other(self, has: Owner, seq: int) -> ContractViolationError:
        what = "is making this call, and waits in it for one that this one is part of"
        return self._refused(has, seq, what, "let no call that happens once wait for another that waits for it")

    def given_up(self, has: Owner, seq: int) -> ContractViolationError:
        return self._refused(has, seq, "has given up this call, or undone it", "call it again")

    def _refused(self, has: Owner, seq: int, what: str, next_action: str) -> ContractViolationError:
        where = f" (step {seq})" if seq else ""
        same = has.run_id == self._session.run_id
        return ContractViolationError(
            f"{'another process of this run' if same else f'run {has.shown}'} {what}{where}: "
            f"exactly once in the whole {'run' if same else 'store'}, so it was not executed here",
            run_id=self._session.run_id,
            other_run=has.run_id,
            other_step=seq or None,
            contract="exactly_once",
            next_action=next_action,
        )

    def _unsure(self, has: Owner, why: str) -> ContractViolationError:
        return ContractViolationError(
            f"this call belongs to run {has.shown}; whether it was made is not known ({why}); it was not executed",
            run_id=self._session.run_id,
            other_run=has.run_id,
            contract="exactly_once",
            next_action="bring that run's file back, or find out what was done and remove its key file from the store's `keys`",
        )


class Awaited(KeyedCall):
    """A call that another process is making. Waiting means looking at its log from time to time, as long as that
    process lives.

    ``inherited`` marks a call made by the parent of a forked process: it has no key file, so nobody else may ever make
    it here.
    """

    def __init__(self, peers: PeerCalls, digest: str, has: Owner, seq: int, *, inherited: bool = False) -> None:
        has = has._replace(seq=seq)
        super().__init__(None, 0, 0)
        self.of = place_of(has, seq)
        #: The calls that it waits for itself.
        self._waits: set[Owner] = set()
        self._peers: Final = peers
        self._digest: Final = digest
        self._has: Final = has
        self._step: Final = seq
        self._inherited: Final = inherited
        self._size = -1
        self._is_open.release()

    def in_this_thread(self) -> bool:
        # Asked anew each time: when the call has ended, another thread may have its thread's number.
        return self._peers.thread_of(self._has) == get_ident()

    def wait(self, step: DuplicateStep) -> None:
        for pause in self._poll_pauses(step):
            _reality.pause(_reality.sleep, pause)

    async def wait_async(self, step: DuplicateStep) -> bool:
        ran = False
        for pause in self._poll_pauses(step):
            token = current.set(None)  # the sleep itself is not part of the run
            try:
                ran = True
                from asyncio import sleep

                await sleep(pause)
            finally:
                current.reset(token)
        return ran

    def _poll_pauses(self, step: DuplicateStep) -> Iterator[float]:
        """Yield how long to wait until the next look, until the call has ended. Raises ``ContractViolationError`` if it
        never can, or not within the tool's own time limit."""
        limit, report = _limit(step.spec), self._peers.report(step.spec)
        began, pause = _reality.monotonic(), _FIRST
        while self.pending:
            looked = _reality.monotonic()
            if self._ended(step.spec):
                return
            if step.around and self._peers.leads_to(self._waits, step.around):
                raise self._peers.each_other(self._has, self._step)
            now = _reality.monotonic()
            if limit is not None and now - began >= limit:
                raise self._peers.too_long(self._has, self._step, limit)
            report(self._has)
            pause = max(pause, _APART * (now - looked))
            yield pause if limit is None else min(pause, began + limit - now)
            pause = min(2 * pause, _LONGEST)

    def _ended(self, spec: Spec) -> bool:
        if self.refusal is not None:
            raise self.refusal.fresh()
        try:
            self._ask(spec)
            return not self.pending
        except ContractViolationError as error:
            if self._inherited:
                self.refusal = error
            self.stale = not self._inherited
            raise

    def _ask(self, spec: Spec) -> None:
        path = self._peers.log_of(self._has)
        with live_writer(path) as writing:
            size = os.stat(path).st_size
            if writing and size == self._size:
                return
            try:
                known = self._peers.asked(self._digest, self._has, spec, writing)
                self._waits = self._peers.waits_in(self._has) if writing and known is not None else set()
            except (TraceError, OSError) as error:
                if writing:  # in the middle of a line
                    return
                raise self._peers._unsure(self._has, getattr(error, "what", str(error))) from error
            self._size = size
        if known is None:
            raise self._peers.given_up(self._has, self._step)
        if not known.pending:
            self.end(known.result(spec))


def _limit(spec: Spec) -> float | None:
    contract = spec.signature.get("contract")
    limit = contract.get("timeout_ms") if isinstance(contract, Mapping) else None
    return None if limit is None else limit / 1000


def place_of(has: Owner, seq: int) -> dict[str, Any]:
    place: dict[str, Any] = {"run_id": has.run_id, "seq": seq}
    if has.segment is not None:
        place["segment"] = has.segment
    return place


# -- once --------------------------------------------------------------------------------------------------------------
#
# The keys of ``exactly_once`` in one recording.
#
# The first call under a key is made. Every later one is a *duplicate*: it has its own intent record, but is not made;
# the first call's result answers it (``tool.skipped``). A call that was undone does not count: the next one is a first
# one again. With ``exactly_once="store"`` the first call has its key file on the device before its intent record is
# logged, and runs that find the file look for the result in its owner's log.


class RunKeys:
    """The keys of a run's exactly-once calls; ``None`` before the first of them."""

    once: Once | None = None


class Once:
    """The keys of one recording. ``past`` is the log that it continues, if there is one.

    ``shared``: other processes write parts of the same run, so that each of its keys has a key file.
    """

    @_reality.off_loop()
    def __init__(self, session: Recording, past: Trace | None = None) -> None:
        self.session: Final = session
        journal = session.log.journal
        self.me: Final = Owner(session.run_id, segment_in(journal.path))
        self._keys: Final = Keys(journal.root, sync=journal.durability != "none")
        self._peers: Final = PeerCalls(session, self._keys, self.me)
        self._lock: Final = _reality.OwnLock()
        self._calls: Final[dict[str, KeyedCall]] = {}
        self.shared = past is not None and bool(beside(file_beside(journal.path, None)))
        #: Whether every key of this recording has its file; one thread sees to it.
        self._published = self.shared
        self._publishing: Final = _reality.OwnLock()
        #: For keys that had no file: if the machine dies, no process is left that could ask for them.
        self._unsynced: Final = Keys(journal.root, sync=False)
        #: Why the keys in the log can't be used.
        self._strange: ContractViolationError | None = None
        if past is not None:
            self._load_past(past)

    def forked(self, child: Once) -> None:
        """In a forked child, let its keys ``child`` inherit the parent's."""
        child.shared = child._published = True
        child._strange = self._strange
        for digest, call in [*self._calls.items()]:
            if self._undoing(call) != 0:
                child._calls[digest] = self._inherited(child, digest, call)

    def _inherited(self, child: Once, digest: str, call: KeyedCall) -> KeyedCall:
        undoing = self._undoing(call)
        if undoing:
            return KeyedCall.undecided(self._half_undone(call, undoing))
        if call.pending and call.refusal is None and call.seq and not call.in_this_thread():
            has = Owner(self.me.run_id, self.me.segment, call.seq)
            return Awaited(child._peers, digest, has, call.seq, inherited=True)
        if call.pending and call.refusal is None and not isinstance(call, Awaited):
            refusal = ContractViolationError(
                f"the process that this one was forked from is making this call (step {call.seq}); it was not executed here",
                run_id=self.session.run_id,
                step=call.seq or None,
                contract="exactly_once",
                next_action="fork when the call has ended",
            )
            return KeyedCall.undecided(refusal)
        if type(call.of) is int and call.refusal is None:
            call.of = place_of(self.me, call.of)
        return call

    def share(self) -> None:
        """Note that other processes write parts of the run from now on, and publish the keys of earlier calls.

        Raises ``LogWriteError`` if that is impossible; then no process may be started.
        """
        with self._publishing:
            with self._lock:
                self.shared = True
                known = [] if self._published else list(self._calls.items())
            for digest, call in known:
                # Wait for calls that another thread is about to begin without a file: that is one entry of the log.
                if call.opened() and not isinstance(call.of, Mapping) and self._undoing(call) != 0:
                    file = self._file(digest, False)
                    assert file is not None
                    self._unsynced.restore(file, *self.me[:2], call.of)
            self._published = True

    # -- beginning a call ----------------------------------------------------------------------------------------------

    def begin(self, scope: Scope, request: Request) -> FirstStep | DuplicateStep:
        """Return the live step of the first call under a key, or a step that the first one answers.

        Raises ``LogWriteError`` if it can't be determined or written that it is the first, and
        ``ContractViolationError`` (which is then logged) if it can neither be made nor answered.
        """
        try:
            if self._strange is not None:
                raise self._strange.fresh()
            assert request.once_key is not None
            digest = self._keys.digest(request.spec.name.encode("utf-8", "surrogatepass"), request.once_key)
            keyed = request.unkeyed({"once": digest, "once_by": self._keys.fingerprint()})
            while True:
                mine = KeyedCall(scope.lane, owner(), get_ident())
                try:
                    call = self._enter(digest, mine)
                    if call is mine and (step := self._first(mine, digest, scope, keyed)) is not None:
                        return step
                except BaseException as error:  # a refusal, or Ctrl-C
                    self._give_up(digest, mine, error)
                    raise
                if call is not mine and call.opened():
                    return self._duplicate(call, scope, keyed)
        except ContractViolationError as error:
            raise self.session.refuse(scope, request, error) from None

    def _enter(self, digest: str, mine: KeyedCall) -> KeyedCall:
        """Return the call that has the key: ``mine`` if no other has it."""
        with self._lock:
            call = self._calls.get(digest)
            undoing = None if call is None else self._undoing(call)
            if call is None or call.stale or undoing == 0:
                self._calls[digest] = mine
                return mine
            if undoing:
                raise self._half_undone(call, undoing)
            return call

    def _give_up(self, digest: str, call: KeyedCall, error: BaseException) -> None:
        """End a call that ``error`` has broken off before its step could: those who wait for it look again, or are refused
        if they were told of it."""
        if call.of:
            call.end(KeyedResult(None, error))
        with self._lock:
            if not call.of and self._calls.get(digest) is call:
                del self._calls[digest]
        with suppress(RuntimeError):  # it is open
            call.not_made()

    def _undoing(self, call: KeyedCall) -> int | None:
        """Return the step that undoes a call of this run, 0 if that is complete, ``None`` if there is none."""
        return self.session.undone.get(call.of) if type(call.of) is int else None

    def _half_undone(self, call: KeyedCall, undoing: int) -> ContractViolationError:
        return ContractViolationError(
            f"the call under this key (step {call.of}) was undone, or not: its compensation (step {undoing}) has no certain end; it was "
            "not executed",
            run_id=self.session.run_id,
            step=undoing,
            contract="exactly_once",
            next_action="find out what was done; another idempotency key makes another call",
        )

    def _first(self, call: KeyedCall, digest: str, scope: Scope, request: Request) -> FirstStep | None:
        """Make the call; return ``None`` if another run has made it, whose result is the answer."""
        spec = request.spec
        file = self._file(digest, _in_store(spec))
        try:
            if file is not None:
                known = self._peers.ask(file, digest, spec)
                if known is not None:
                    with self._lock:
                        self._calls[digest] = known
                    call.not_made()
                    return None
            step = budget.begin(self.session, scope, request)
            if step.seq <= scope.parent:  # the run has ended meanwhile: it is in no log, and could answer nobody
                raise RunEndedError(
                    f"{spec.name!r} was called when run {self.session.run_id} was ending; it was not executed",
                    run_id=self.session.run_id,
                    next_action="wait for the task or thread that calls it before the record() block ends",
                )
            if file is not None and not spec.effect:  # others rely on it, so it is synced like an effect's
                self.session.log.journal.sync(step.seq)
            if file is not None:
                self._keys.used(file, step.seq)
            call.made(step.seq)
            return FirstStep(step, spec.name, self.session.run_id, call)
        except Exception:  # after Ctrl-C its intent record may be in the log
            if file is not None and not call.of:
                self._keys.release(file, *self.me[:2])
            raise

    def _file(self, digest: str, in_store: bool) -> str | None:
        """Return the name of the key's file; ``None`` if it needs none."""
        if in_store or not self.shared:
            return digest if in_store else None
        return self._keys.digest(self.me.run_id.encode(), digest.encode())

    def _duplicate(self, call: KeyedCall, scope: Scope, request: Request) -> DuplicateStep:
        if call.refusal is not None:
            raise call.refusal.fresh()
        if call.pending and (call.owner == owner() or call.encloses(scope.lane)):
            raise self._inside_itself(call, request.spec)
        request = request.saying({"duplicate_of": call.of})
        seq = self.session.intend(scope, request)
        return DuplicateStep(self, scope, request, seq, call)

    def _inside_itself(self, call: KeyedCall, spec: Spec) -> ContractViolationError:
        return ContractViolationError(
            f"{spec.name!r} was called again under the key of a call that has not ended (step {call.of}), by that call's own code; "
            "it was not executed, and waiting for the first one would never end",
            run_id=self.session.run_id,
            step=call.seq or None,
            contract="exactly_once",
            next_action="let the tool not call itself with the same input, or give the two calls different idempotency keys",
        )

    def _in_its_thread(self, call: KeyedCall, spec: Spec) -> ContractViolationError:
        return ContractViolationError(
            f"{spec.name!r} was called in the thread in which run {call.of['run_id']} is making this call"  # type: ignore[index]
            f" (step {call.of['seq']}), and can't end meanwhile; it was not executed",  # type: ignore[index]
            run_id=self.session.run_id,
            contract="exactly_once",
            next_action="make the tool a coroutine function, or call it in another thread",
        )

    def thread_of(self, seq: int) -> int:
        """Return the thread in which the call of this step is being made; 0 if there is none."""
        with self._lock:
            return next((one.thread for one in [*self._calls.values()] if one.pending and one.seq == seq), 0)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def may_wait(self, step: DuplicateStep, *, blocking: bool) -> None:
        """Let ``step`` wait for its call. Raises ``ContractViolationError`` if that call could then never end."""
        call = step.call
        ends_never = blocking and call.in_this_thread()
        with self._lock:
            if not call.pending:
                return
            if ends_never:
                raise (
                    self._in_its_thread(call, step.spec)
                    if isinstance(call, Awaited)
                    else self._inside_itself(call, step.spec)
                )
            around = [one for one in [*self._calls.values()] if one.pending and one.encloses(step.scope.lane)]
            if call in around or any(one in call.waits_for() for one in around):
                raise self._inside_itself(call, step.spec)
            step.around = {self.me._replace(seq=one.seq) for one in around}
            for one in around:
                one.waiting.append(call)

    def waited(self, step: DuplicateStep) -> None:
        with self._lock:
            for one in [*self._calls.values()]:
                if step.call in one.waiting and one.encloses(step.scope.lane):
                    one.waiting.remove(step.call)

    # -- the log of a resumed run --------------------------------------------------------------------------------------

    def _load_past(self, past: Trace) -> None:
        """Load the keys in the log, and restore key files that the store has lost."""
        calls = calls_of(past.entries())
        made_by = {call.by for call in calls.values()}
        if made_by and made_by != {self._keys.known_by()}:
            self._strange = self._other_secret()
            return
        for digest, call in calls.items():
            known = self._recorded(call, past)
            if known is not None:
                self._calls[digest] = known
            file = self._file(digest, call.in_store)
            if file is not None:
                self._keys.restore(file, *self.me[:2], call.seq)

    def _other_secret(self) -> ContractViolationError:
        path = os.path.join(self._keys.root, "secret")
        return ContractViolationError(
            f"run {self.session.run_id} made calls that happen once under a secret that is not in {path}: which of them were made is not "
            "known, so this one was not executed",
            run_id=self.session.run_id,
            path=path,
            contract="exactly_once",
            next_action=f"bring {path} back as it was when that run was made, then resume it",
        )

    def _recorded(self, call: LoggedCall, past: Trace) -> KeyedCall | None:
        """Return the call under a key in the log; ``None`` if it may be made (again)."""
        if call.undoing:
            undecided = KeyedCall.undecided(self._half_undone(KeyedCall.logged(call, past), call.undoing))
            undecided.of = call.seq
            return undecided
        if call.ended:
            supplied = self.session.supplied
            return (
                KeyedCall.supplied(call.seq, supplied[call.seq])
                if call.seq in supplied
                else KeyedCall.logged(call, past)
            )
        if call.side_effect in ("read_only", "reversible"):
            return None
        return KeyedCall.undecided(
            ContractViolationError(
                f"{call.name!r} ({call.side_effect}) began in run {self.session.run_id} at step {call.seq} and the log does not say "
                "whether it was made; it was not executed again",
                run_id=self.session.run_id,
                step=call.seq,
                contract="exactly_once",
                next_action="find out what was done, and say so with "
                f"`tracekit recovery settle {self.session.run_id} {call.seq} --done OUTPUT.json | --not-done --reason TEXT`",
            )
        )


def _in_store(spec: Spec) -> bool:
    contract = spec.signature.get("contract")
    return isinstance(contract, Mapping) and contract.get("exactly_once") == "store"
