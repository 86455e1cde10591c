"""A call that happens once, and the calls that it answers."""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from asyncio import get_running_loop
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orjson import loads

from .._canonical import exception_from_json, exception_to_json, from_json, quick, shortfalls
from ..errors import ContractViolationError, LogWriteError
from .arrivals import place
from .classified import of_step
from .gate import Outcome
from .lanes import Lane
from .recorded import RecordedStep
from .scope import Scope
from .step import Request, Spec

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .logged import LoggedCall
    from .once import Once
    from .recording import Recording

__all__ = ["Call", "DuplicateStep", "FirstStep", "Piece", "Result"]


class Piece(NamedTuple):
    """One value that came of a call: the live object, and its JSON where that says it all; and the entry's ``meta``."""

    value: Any
    data: bytes | None
    meta: Mapping[str, Any]

    @classmethod
    def of(cls, value: Any, meta: Mapping[str, Any] | None) -> Piece:
        return cls(value, quick(value), meta or {})

    def given(self, spec: Spec) -> Any:
        """The value for one more caller: a copy of its own, where it can be copied."""
        return self.value if self.data is None else from_json(loads(self.data), spec.hint())


class Result(NamedTuple):
    """What came of a call: what it returned, or raised, and the pieces before that."""

    returned: Piece | None
    raised: BaseException | None = None
    pieces: tuple[Piece, ...] = ()
    lazy: str | None = None


class Call:
    """One call under a key, from before its intention is on the log until its outcome is.

    ``of`` is what a duplicate refers to: its ``seq``, or run and ``seq`` where that is another run's. ``lane``, ``owner`` and
    ``thread`` say who makes it.
    """

    def __init__(self, lane: Lane | None, owner: int, thread: int) -> None:
        self.lane: Final = lane
        self.owner: Final = owner
        self.thread: Final = thread
        self.seq = 0
        #: Whether whoever comes next asks again what came of it.
        self.stale = False
        self.of: int | Mapping[str, Any] = 0
        #: Why it can neither be made nor answered.
        self.doubt: ContractViolationError | None = None
        #: The calls that something inside this one waits for.
        self.waiting: list[Call] = []
        self.pieces: list[Piece] = []
        self._result: Result | None = None
        self._log: tuple[LoggedCall, Trace] | None = None
        self._lock: Final = RLock()
        self._waiters: list[Any] = []
        self._is_open: Final = allocate_lock()
        self._is_open.acquire()
        self._has_ended: Final = allocate_lock()
        self._has_ended.acquire()

    @classmethod
    def answered(cls, of: Mapping[str, Any], result: Result) -> Call:
        """One that another run has made."""
        call = cls(None, 0, 0)
        call.of, call._result = of, result
        call._is_open.release()
        return call

    @classmethod
    def logged(cls, logged: LoggedCall, log: Trace) -> Call:
        """One that this run made before it was resumed."""
        call = cls(None, 0, 0)
        call.seq = call.of = logged.seq
        call._log = logged, log
        call._is_open.release()
        return call

    @classmethod
    def supplied(cls, seq: int, output: Any) -> Call:
        """The same, where a person gives what came of it."""
        call = cls(None, 0, 0)
        call.seq = call.of = seq
        call._result = Result(Piece(output, None, {}))
        call._is_open.release()
        return call

    @classmethod
    def doubtful(cls, doubt: ContractViolationError) -> Call:
        """One of which the log does not say whether it was made."""
        call = cls(None, 0, 0)
        call.doubt = doubt
        call.of = doubt.step or 0
        call._is_open.release()
        return call

    # -- beginning -------------------------------------------------------------------------------------------------------

    def made(self, seq: int) -> None:
        """Its intention is on the log."""
        self.seq = self.of = seq
        self._is_open.release()

    def not_made(self) -> None:
        """It was given up before its intention was on the log; whoever waited for that looks again."""
        self._is_open.release()

    def opened(self) -> bool:
        """Wait until its intention is on the log; false if it was given up before."""
        if self.thread == get_ident() and not self.of:
            return True  # a signal handler in the middle of it: the call is pending, and its own
        with self._is_open:
            return self.of != 0

    # -- ending ----------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return self._result is None and self._log is None

    def end(self, result: Result) -> None:
        """It has come to an end: every duplicate is answered. The first end counts."""
        with self._lock:
            if self._result is not None:
                return
            self._result = result
            waiters, self._waiters = self._waiters, []
        self._has_ended.release()
        for loop, future in waiters:
            with suppress(RuntimeError):  # a loop that is closed has nobody waiting
                loop.call_soon_threadsafe(_wake, future, context=Context())

    def wait(self, spec: Spec) -> None:
        if self.pending:
            with self._has_ended:
                pass

    async def wait_async(self, spec: Spec) -> bool:
        """Whether the event loop ran meanwhile."""
        loop = get_running_loop()
        with self._lock:
            if not self.pending:
                return False
            future = loop.create_future()
            self._waiters.append((loop, future))
        await future
        return True

    def result(self, spec: Spec) -> Result:
        if self._result is None:
            assert self._log is not None
            logged, log = self._log
            return logged.result(log, spec)
        return self._result

    # -- who waits for whom ----------------------------------------------------------------------------------------------

    def encloses(self, lane: Lane) -> bool:
        """Whether what happens in ``lane`` happens inside this call, which has not ended."""
        line: Lane | None = lane
        if self.lane is None or line is self.lane:
            return self.lane is not None
        while line is not None:
            if line.parent is self.lane and line.under >= self.seq > 0:
                return True
            line = line.parent
        return False

    def waits_for(self) -> set[Call]:
        """This call and all that it waits for, by way of others too."""
        found: set[Call] = set()
        stack = [self]
        while stack:
            call = stack.pop()
            if call not in found:
                found.add(call)
                stack.extend(call.waiting)
        return found


def _wake(future: Any) -> None:
    if not future.done():
        future.set_result(None)


class FirstStep(RecordedStep):
    """The step of a call that happens once: what comes of it answers every later one."""

    __slots__ = ("_undoes", "call")

    def __init__(
        self, session: Recording, scope: Scope, request: Request, seq: int, call: Call, undoes: int | None = None
    ) -> None:
        super().__init__(session, scope, request, seq)
        self.call: Final = call
        self._undoes: Final = undoes
        if undoes is not None:
            session.undone[undoes] = seq

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        super().chunk(output, info=info)
        self.call.pieces.append(Piece.of(output, info))

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        piece = Piece.of(output, info)
        try:
            super().done(output, info=info, data=data)
        except BaseException as error:
            self._end(None, error, info)
            raise
        if self._undoes is not None:
            self.session.undone[self._undoes] = 0
        if info is not None and info.get("abandoned"):
            self._end(None, self._left(), info)
        else:
            self._end(piece, None, info)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        try:
            super().failed(error, output=output, info=info)
        except BaseException as second:
            self._end(None, second, info)
            raise
        self._end(None, error, info)

    def _end(self, returned: Piece | None, error: BaseException | None, info: Mapping[str, Any] | None) -> None:
        pieces = tuple(self.call.pieces)
        lazy = next(
            (told.get("lazy") for told in (info, *(piece.meta for piece in pieces)) if told and "lazy" in told), None
        )
        self.call.end(Result(returned, error, pieces, lazy))

    def _left(self) -> ContractViolationError:
        return ContractViolationError(
            f"the call of {self.spec.name!r} that this one must repeat was left before its end (step {self.seq})",
            run_id=self.session.run_id,
            step=self.seq,
            contract="exactly_once",
            next_action="take everything that the first one yields",
        )


class DuplicateStep:
    """A later call under a key; see ``gate.Step``. It is not made: what came of the first one is its answer."""

    __slots__ = ("_next", "_once", "call", "request", "scope", "seq", "session", "spec")

    live: Final = False
    deferred: Final = False

    def __init__(self, once: Once, scope: Scope, request: Request, seq: int, call: Call) -> None:
        self._once: Final = once
        self.session: Final = once.session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq: Final = seq
        self.call: Final = call
        self._next = 0

    def body(self) -> Scope:
        return self.scope.inside(self.seq, live=True)

    def go(self) -> Any:
        raise AssertionError("an earlier call answers this step")

    async def go_async(self) -> Any:
        raise AssertionError("an earlier call answers this step")

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("an earlier call answers this step")

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        raise AssertionError("an earlier call answers this step")

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("an earlier call answers this step")

    # -- the answer ------------------------------------------------------------------------------------------------------

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

    def lazy(self) -> str | None:
        """Known when the first one has ended; until then it is waited for, as by ``answer``."""
        if self._wait() is not None:
            return None
        result = self._result()
        return None if result is None else result.lazy

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def _wait(self) -> ContractViolationError | None:
        if not self.call.pending:
            return None
        try:
            self._once.may_wait(self, blocking=True)
        except ContractViolationError as refused:
            return refused
        try:
            self.call.wait(self.spec)
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
            return None, await self.call.wait_async(self.spec)
        except ContractViolationError as refused:
            return refused, True
        except BaseException as error:  # cancelled
            self._write(None, error, {"suspended": True})
            raise
        finally:
            self._once.waited(self)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def _result(self) -> Result | None:
        """``None`` where what the log has of the call can't be given: ``answer`` says why."""
        try:
            return self.call.result(self.spec)
        except ContractViolationError:
            return None

    def _outcome(self, suspended: bool) -> Outcome:
        try:
            result = self.call.result(self.spec)
        except ContractViolationError as refused:  # what the log has can't be given
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
        value = piece.given(self.spec)
        RecordedStep(self.session, self.scope, self.request, self.seq).chunk(value, info=meta or None)
        return Outcome(value, None, meta, {})

    def _error(self, raised: BaseException) -> BaseException:
        """The first one's exception for one more caller. A cancellation was the first one's alone."""
        if not isinstance(raised, Exception):
            return ContractViolationError(
                f"the first call of {self.spec.name!r} under this key ended with {type(raised).__name__}: whether it did anything is "
                "not known, so it was not executed again",
                run_id=self.session.run_id,
                step=self.call.seq or None,
                contract="exactly_once",
                next_action="find out what was done; another idempotency key makes another call",
            )
        return _copy(raised)

    def _write(self, returned: Piece | None, error: BaseException | None, meta: dict[str, Any]) -> Outcome:
        session, spec = self.session, self.spec
        value = None if returned is None else returned.given(spec)
        if not session.ended:
            if "suspended" in meta:
                burst = place()
                if burst is not None:
                    meta["burst"] = burst
            about: dict[str, Any] = {"reason": "exactly_once", "of": self.call.of}
            meta["info"] = about
            try:
                if error is None:
                    fields = session.value(value, meta, spec=spec, step=self.seq)
                else:
                    about["final"] = True  # whether to try again was the first one's to decide
                    fields = self._failure(error, meta)
                session.outcome(self, spec.types.skipped, fields, meta, sync=False)
            except LogWriteError:
                session._unnoted()
        return Outcome(value, error, meta, {})

    def _failure(self, error: BaseException, meta: dict[str, Any]) -> bytes:
        session, own = self.session, self.spec.redactor
        step: Any = self
        meta["failure"] = of_step(error, session, step)
        if own is not None:
            meta["failure"] = own.redact(meta["failure"])[0]
        return session.error(error, meta, own)


def _copy(error: BaseException) -> BaseException:
    """An exception of its own for each caller, where it can be made again: raising one object in two threads mixes their traces."""
    tree = exception_to_json(error, [])
    copy = exception_from_json(tree)
    same = type(copy) is type(error) and str(copy) == str(error) and not list(shortfalls(tree, copy))
    return copy if same else error
