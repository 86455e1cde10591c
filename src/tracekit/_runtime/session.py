"""Scopes (where in a run the running code is), and the protocols of sessions, steps and timers.

A capture point (tool, HTTP seam, clock, timer …) describes what is about to happen as a ``Request``, gets the scope
from ``here``, and begins a step on its session. The session alone decides: for a *live* step the capture point makes
the call and reports its outcome (``chunk``, ``done``, ``failed``); any other step is answered from the log (``answer``,
``next_chunk``). Capture points know nothing of replay, sessions know nothing of SDKs.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock, get_ident
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar
from weakref import ref

from .._native import owner
from .._reality import running_task, this_thread
from ..errors import BudgetExceededError, RunEndedError, UnknownPriceError
from .effects import outside
from .lane import CALLBACK, IMPORT, NOBODY, ROOT, Lane, started

if TYPE_CHECKING:
    from asyncio import Task

    from .._journal.reader import Trace
    from .._journal.writer import Journal
    from .._native import Pieces
    from ..errors import ContractViolationError, ReplayError, TracekitError
    from .boundary import Boundary
    from .effects import OpenCall
    from .progress import Progress
    from .redaction import Redactor
    from .spending import Spending
    from .step import Note, Request, Spec

__all__ = [
    "STEADY",
    "Closing",
    "Leaving",
    "Log",
    "Outcome",
    "RecordedCall",
    "Refusal",
    "Refused",
    "Reporting",
    "RunClock",
    "RunState",
    "Scope",
    "Seam",
    "Session",
    "SignalHooks",
    "Step",
    "ThreadHooks",
    "Timer",
    "Uncounted",
    "UndoLog",
    "Unfinished",
    "WrittenLog",
    "accounted_for",
    "below",
    "below_seam",
    "body_of",
    "current",
    "enter",
    "entered",
    "here",
    "in_call",
    "in_own_lane",
    "innermost",
    "outside_the_run",
    "owner",
    "passing",
    "placed",
    "undoing",
]

T = TypeVar("T")


# -- scope -------------------------------------------------------------------------------------------------------------
#
# Where a step happens: the session, the lane and the enclosing step in the context variable.
#
# A scope is immutable. Code that enters a step, a lane or an agent sets a new scope and restores the old one
# afterwards; tasks and threads get theirs from the hooks in ``_capture.threads``.


class Scope:
    """A position in a run: ``session``, ``lane``, the ``seq`` of the enclosing step, the acting agent.

    ``live`` is the ``seq`` of the innermost enclosing step whose body a replay does not run (a tool, a model call, an
    HTTP exchange), or 0: lanes started inside are numbered under that step and don't exist in a replay. ``spending`` is
    the innermost budget that calls count against; ``call`` is the innermost open call, to which their effects belong.
    """

    # No __slots__: from 3.13 on Python makes objects without them faster.

    def __init__(
        self,
        session: Session,
        lane: Lane,
        parent: int,
        agent: str | None = None,
        live: int = 0,
        spending: Spending | None = None,
        call: OpenCall | None = None,
    ) -> None:
        self.session: Final = session
        self.lane: Final = lane
        self.parent: Final = parent
        self.agent: Final = agent
        self.live: Final = live
        self.spending: Final = spending
        self.call: Final = call

    def inside(self, seq: int, *, live: bool) -> Scope:
        """Return the scope of the body of step ``seq``."""
        return Scope(self.session, self.lane, seq, self.agent, seq if live else self.live, self.spending, self.call)

    def in_lane(self, lane: Lane) -> Scope:
        """Return a scope inside the same step, in another lane."""
        return Scope(self.session, lane, self.parent, self.agent, self.live, self.spending, self.call)

    def own_lane(self, name: str) -> Scope:
        """Return a scope in a new lane that starts here, for a worker, connection or thread: the next one of this name."""
        return self.in_lane(started(self.lane, name))

    def task(self, name: str, n: int | None = None) -> Scope:
        """Return a scope in a new lane for work from outside, inside no step: the next one of this name in the run.

        In a replay, ``n`` is the recorded lane's number.
        """
        root = self.lane.root
        if n is None:
            lane = started(root, name)
        else:
            lane = Lane(name, n, root)
            root.counted(name, n)
        return Scope(self.session, lane, ROOT, self.agent, call=self.call)

    def of_module(self, name: str) -> Scope:
        """Return a scope in the lane of the module ``name``, which is being imported: the same lane whoever imports it
        first."""
        lane = started(self.lane.root, IMPORT + name)
        return Scope(self.session, lane, ROOT, self.agent, spending=self.spending, call=self.call)

    def acting(self, agent: str | None) -> Scope:
        return Scope(self.session, self.lane, self.parent, agent, self.live, self.spending, self.call)

    def within(self, spending: Spending | None) -> Scope:
        """Return a scope at the same position whose calls count against ``spending``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, spending, self.call)

    def within_call(self, call: OpenCall | None) -> Scope:
        """Return a scope at the same position whose effects belong to ``call``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, self.spending, call)


#: The scope of the running code, or ``None`` outside every run. Read it with ``current.get()``.
current: Final[ContextVar[Scope | None]] = ContextVar("tracekit.scope", default=None)


def enter(scope: Scope) -> Token[Scope | None]:
    """Set ``scope`` where there may be none yet; ``current.reset`` undoes it.

    Resetting a context variable to "no value" deletes its entry, and Python 3.11 may collect garbage in the middle of
    that: if a callback or finalizer then reads the variable (as any clock read does), a dangling pointer is left in its
    cache. So make sure that there is always a value to return to.
    """
    token = current.set(scope)
    if token.old_value is Token.MISSING:
        current.set(None)
        token = current.set(scope)
    return token


def outside_the_run(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a call whose clock reads, waits and other captured calls are not part of the run."""
    token = current.set(None)
    try:
        return call(*args, **kwargs)
    finally:
        current.reset(token)


def innermost() -> OpenCall | None:
    """Return the open call that the running code is in."""
    scope = current.get()
    return outside.get() if scope is None else scope.call


def body_of(call: OpenCall, scope: Scope | None) -> Scope | None:
    """Return the scope of the body of ``call``. Outside every run there is none; the running context is put into the
    call instead."""
    if scope is None:
        outside.set(call)
        return None
    return scope.within_call(call)


@contextmanager
def in_call(call: OpenCall) -> Iterator[None]:
    """A block that is (part of) the body of ``call``."""
    scope = current.get()
    if scope is None:
        before = outside.get()
        outside.set(call)
        try:
            yield
        finally:
            outside.set(before)  # not reset(): the block may be left in another context
        return
    token = current.set(scope.within_call(call))
    try:
        yield
    finally:
        current.reset(token)


def placed(scope: Scope) -> Scope:
    """Return the scope for a step made here in the lane of ``scope``: inside the current step of its run, its effects
    counted in the open call."""
    around, call = current.get(), innermost() or scope.call
    if around is None or around.session is not scope.session:
        return scope.within_call(call)
    return Scope(scope.session, scope.lane, around.parent, around.agent or scope.agent, around.live, call=call)


# -- steps and timers --------------------------------------------------------------------------------------------------

Refusal: TypeAlias = "ContractViolationError | BudgetExceededError | RunEndedError"


class Outcome:
    """A recorded outcome: ``output`` (decoded), or ``error`` (the exception to raise), and the entry's ``meta``.

    ``entry`` is the raw entry as a dictionary; ``abandoned`` is true if the caller left a stream before its end.
    """

    __slots__ = ("abandoned", "entry", "error", "meta", "output")

    def __init__(
        self, output: Any, error: BaseException | None, meta: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> None:
        self.output: Final = output
        self.error: Final = error
        self.meta: Final = meta
        self.entry: Final = entry
        self.abandoned: Final = bool(meta.get("abandoned"))

    def result(self) -> Any:
        """Return the output, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.output


class Step(Protocol):
    """An open step. If ``live``, the capture point makes the call; otherwise the log answers.

    Each kind of step supports part of these methods; calling another is a mistake of the capture point.
    """

    __slots__ = ()

    @property
    def live(self) -> bool: ...
    @property
    def seq(self) -> int: ...

    def holds(self, instance: object) -> None:
        """Note the method's own object, which the call may change. Called right after the step has begun."""
        raise AssertionError("nobody makes this step")

    # -- live: the capture point makes the call and reports the outcome ------------------------------------------------
    def body(self) -> Scope:
        """Return the scope to set (``current.set``) around the live call and each resumption of a generator, and to
        reset afterwards."""
        raise AssertionError("its caller does not make this step")

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        """Log one piece of a stream; call it before the caller gets the piece.

        ``coded`` in ``info`` holds the bytes as received. If a secret is removed from a piece, the log has only the
        number of bytes (``size``) of this and later pieces.
        """
        raise AssertionError("its caller does not make this step")

    def plain_pieces(self) -> Pieces | None:
        """Return what logs plain pieces of a stream in one call, as ``chunk`` would without ``info``, if there is such a
        thing for this step."""
        return None

    def after_others(self) -> bytes:
        """Return what follows the text in the entry of a plain piece before which other tasks ran (``suspended``)."""
        raise AssertionError("it has no plain pieces")

    def resumed(self) -> None:
        """Note that a generator continues after a piece: its caller may have changed its arguments meanwhile."""
        raise AssertionError("its caller does not make this step")

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        """Log that the call returned ``output``; ``info`` goes into the outcome's ``meta`` (usage, cost, ``abandoned``,
        ``suspended`` …).

        ``data`` is the JSON of ``output`` as the log writes it, if available.
        """
        raise AssertionError("its caller does not make this step")

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        """Log that the call raised ``error``; ``output`` is what there was besides it (a status, headers)."""
        raise AssertionError("its caller does not make this step")

    # -- deferred: the log has no answer, and the program has not yet followed it to its end (a resumed run) -----------
    @property
    def deferred(self) -> bool:
        """Whether a step that is not ``live`` has to be made after all; ``go`` returns the live step."""
        ...

    def go(self) -> Step:
        """Return the live step. Blocks the calling thread until the rest of the log has been followed."""
        raise AssertionError("this step is not deferred")

    async def go_async(self) -> Step:
        raise AssertionError("this step is not deferred")

    # -- not live: the log answers -------------------------------------------------------------------------------------
    def answer(self) -> Outcome:
        """Return the recorded outcome. Blocks the calling thread until it is next in the schedule."""
        raise AssertionError("the log does not answer this step")

    async def answer_async(self) -> Outcome:
        raise AssertionError("the log does not answer this step")

    def next_chunk(self) -> Outcome | None:
        """Return the next recorded chunk, blocking until it is next in the schedule, or ``None`` if there are no more
        chunks."""
        raise AssertionError("the log does not answer this step")

    async def next_chunk_async(self) -> Outcome | None:
        raise AssertionError("the log does not answer this step")

    def upcoming(self) -> Mapping[str, Any] | None:
        """Return the step's next entry in the log, a chunk or its outcome, without waiting; ``None`` if there is none."""
        raise AssertionError("the log does not answer this step")

    def comes_in_pieces(self) -> bool:
        """Return whether the step's next entry in the log is a chunk."""
        raise AssertionError("the log does not answer this step")

    def rest(self) -> Iterator[Outcome]:
        """Yield the step's remaining chunks and its outcome without waiting; an error is left out."""
        raise AssertionError("the log does not answer this step")

    def on_next(self, then: Callable[[Outcome], object]) -> Callable[[], object]:
        """Call ``then`` in the running event loop with the next chunk or outcome when it is next in the schedule, or
        with the replay's failure if that comes first. Return a function that cancels this."""
        raise AssertionError("the log does not answer this step")

    def take_next(self) -> Outcome:
        """Return the next chunk or outcome at once: it came together with the previous one, or the program itself
        causes it."""
        raise AssertionError("the log does not answer this step")

    def alike(self, recorded: object, actual: object) -> bool:
        """Return whether the program's value equals the recorded one as far as that was recorded; placeholders match
        the secrets they replace."""
        raise AssertionError("the log does not answer this step")

    def ahead(self, key: str) -> str | None:
        """Return the text under ``key`` in the ``info`` of the next chunk, or else of the outcome, which is needed
        before its turn.

        ``"lazy"``: what a plain function returned unfinished. ``"early"``: how a request ended before its response was
        requested. ``"with"``: what a piece of a response was received with.
        """
        raise AssertionError("the log does not answer this step")


class Timer(Protocol):
    """A sleep or deadline armed by the run's own code; or another event that is no step, such as a result that a thread
    hands to an event loop.

    Recording (``live``): the capture point really waits, and calls ``fired()`` if and only if the time ran out, or the
    event occurred, before the program continues. Replaying: ``wait``/``wait_async`` return when the timer's recorded
    place in the log is reached. If it did not fire in the recording, they return once the log answers nothing any more;
    the timer is then ``live``, and the capture point really waits.

    ``on_fire`` schedules a call in the running event loop (``anywhere``: in any thread); ``cancel`` revokes it.
    """

    __slots__ = ()

    @property
    def live(self) -> bool: ...
    @property
    def comes(self) -> bool:
        """Whether the timer fired in the recording."""
        ...

    @property
    def pending(self) -> bool:
        """Whether it may still fire: past the end of the log of a resumed run."""
        ...

    @property
    def given_up(self) -> bool:
        """Whether, in the recording, a thread has cancelled in time what it gets by this call of a loop."""
        return False

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("a replayed timer fires at its recorded place")

    def wait(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    async def wait_async(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def cancel(self) -> None:
        """Stop waiting for the timer."""
        return

    def await_lock(self) -> None:
        """Wait until the thread has taken a lock that had it before in the recording."""
        return

    def took_lock(self) -> None:
        """Note that a lock has been taken."""
        return

    def identity(self) -> list[Any] | None:
        """Return what identifies the timer in the log: lane, function, the lane's last step, number since. ``None`` if
        nothing is logged any more."""
        return None


# -- a run ------------------------------------------------------------------------------------------------------------


class Log:
    """The trace that answers a session's steps (``None``: nothing does), and the file that contains it."""

    __slots__ = ("live", "trace")

    def __init__(self, trace: Trace | None, live: Collection[str] = ()) -> None:
        self.trace: Final = trace
        #: The kinds of steps that go live nevertheless, in a partial replay.
        self.live: Final = live

    def answered(self, seq: int, family: str, name: str) -> bool:
        """Return whether the step ``seq`` of this kind and name was answered from the log."""
        there = self.trace is not None and seq <= len(self.trace)
        return there and family not in self.live and f"{family}:{name}" not in self.live

    @property
    def path(self) -> str:
        """The file that the session writes, or answers from."""
        assert self.trace is not None
        return self.trace.path

    @property
    def position(self) -> int:
        """``seq`` of the last entry."""
        assert self.trace is not None
        return len(self.trace)

    def flush(self) -> None:
        """Write what is pending."""


class WrittenLog(Log):
    """The journal that a recording writes, and the trace that it continues if the run is resumed."""

    __slots__ = ("journal",)

    def __init__(self, journal: Journal, trace: Trace | None = None) -> None:
        super().__init__(trace)
        self.journal = journal

    @property
    def path(self) -> str:
        return self.journal.path

    @property
    def position(self) -> int:
        return self.journal.seq

    def flush(self) -> None:
        self.journal.flush()


class Extras:
    """Data that other packages keep for a run: one object per type."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: Final[dict[type, Any]] = {}

    def of(self, kind: type[T]) -> T:
        """Return the run's object of type ``kind``, created on first use."""
        found = self._kept.get(kind)
        return found if found is not None else self._kept.setdefault(kind, kind())  # type: ignore[no-any-return]


class Unfinished:
    """Reports what a run would leave undone if it ended now; asked at its end."""

    def __init__(self) -> None:
        self.says: Final[list[Callable[[], str | None]]] = []


class Refused:
    """Reports what a replay will refuse, depending on which processes run in it: asked at the end of a run, or of a
    process's part of it, with what says that of a process's path."""

    def __init__(self) -> None:
        self.says: Final[list[Callable[[Callable[[str], bool]], str | None]]] = []


class Children(Protocol):
    """The child processes started by a run; each joins it with a ticket, or at the place of a submitted call."""

    def admit(self, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> Any:
        """Admit a process that is about to be started in ``lane``; return ``None`` if it does not take part in the run.

        ``words`` is the command, ``None`` for a process of ``multiprocessing``; ``pool`` marks a pool's worker.
        """
        ...

    def place(self, scope: Scope, lane: Lane) -> dict[str, Any] | None:
        """Return the place in the run of a call submitted to a process pool; ``None`` outside it."""
        ...

    def before_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``."""
        ...

    def needs_signal(self, pid: int, number: int) -> bool:
        """Return whether a signal to process ``pid`` has to be sent; a replayed child's log may have all its effects."""
        ...

    def poll(self) -> None:
        """Check whether a child has failed."""
        ...

    def stuck(self, waiting: list[str]) -> tuple[ReplayError | None, bool]:
        """In a replay, end the children that rest, because nothing can move, neither here (``waiting`` says where) nor
        in them.

        Return the resulting failure, and whether the program continues without one.
        """
        ...

    def abandon(self) -> None:
        """End the children: this process is about to end."""
        ...

    def conclude(self) -> None:
        """Report how the children ended: the run, or this part of it, is about to end. Idempotent."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return what the last entry of the log says about the children; nothing in a replay, which writes none."""
        ...


#: Whether the running code is a compensation.
undoing: Final[ContextVar[bool]] = ContextVar("tracekit.undoing", default=False)


class Closing:
    """Decides what may still begin in a run that is aborted for ``reason``.

    When the abort is ``over``, the lane that requested it continues without restriction; others don't.
    """

    def __init__(self, run_id: str, reason: str, lane: Lane, at: int, within: Callable[[Scope], bool]) -> None:
        self._run_id: Final = run_id
        self._reason: Final = reason
        self.lane = lane
        self.over = False
        #: The last entry before the abort.
        self.at = at
        #: Whether a scope is inside a step that is waited for, or that undoes something.
        self._within: Final = within

    def admits(self, scope: Scope, request: Request) -> bool:
        """Return whether a request may begin: it has no effect, or undoes something, or is inside a step that is waited
        for or undoes something."""
        info = request.info
        if not request.spec.effect or undoing.get() or (info is not None and "compensates" in info):
            return True
        return self._within(scope) or (self.over and self._is_askers(scope.lane))

    def _is_askers(self, lane: Lane) -> bool:
        line: Lane | None = self.lane
        while line is not None and line is not lane:
            line = line.parent
        return line is not None

    def refusal(self, spec: Spec) -> RunEndedError:
        return RunEndedError(
            f"{spec.family} {spec.name!r} ({spec.side_effect}) was called when run {self._run_id} was being aborted ({self._reason}); "
            "it was not executed",
            run_id=self._run_id,
            next_action="let the tasks and threads of the run end before it is aborted, or let them see this error",
        )


class Leaving(Closing):
    """Holds what the threads of a run ask for when its process is about to end.

    They are daemon threads, which end with the process: it must not live on for them, nor may they do more than they would
    have done in a process that is not recorded. What is inside a step goes on.
    """

    def __init__(self, run_id: str, lane: Lane, at: int) -> None:
        super().__init__(run_id, "its process ends", lane, at, lambda scope: scope.parent > 0)
        self._thread: Final = get_ident()

    def admits(self, scope: Scope, request: Request) -> bool:
        if not self._within(scope):
            self.hold()
        return True

    def hold(self) -> None:
        """Do not return, in any thread but the one that ends the process."""
        if get_ident() != self._thread:
            never = allocate_lock()
            never.acquire()
            never.acquire()


#: Clocks with an arbitrary start, which must never go back.
STEADY: Final = frozenset(
    ("time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "loop.time")
)


class RunClock:
    """The steady clocks of a run whose readings are not this machine's: they started elsewhere, or stood still while
    the machine was down.

    A program computes deadlines on this clock, but waits for them on the machine's clock; ``now`` converts between
    them. ``begin`` returns the reading of a clock of which none has been ``shown`` yet.
    """

    __slots__ = ("_begin", "_shown")

    def __init__(self, begin: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._begin: Final = begin
        #: By function: the last reading given to the program, and the machine's reading at that time.
        self._shown: Final[dict[str, tuple[Any, Any]]] = {}

    def shown(self, function: str, value: T, real: Callable[[], T]) -> T:
        """Return ``value``, which the program is given as a reading of ``function``, and remember it."""
        if function in STEADY:
            self._shown[function] = value, real()
        return value

    def now(self, function: str, real: Callable[[], Any]) -> Any:
        """Return the run's current time: the last reading given, plus the time since."""
        then = self._shown.get(function)
        return self._begin(function, real) if then is None else then[0] + (real() - then[1])


class RunState:
    """The state of a run in this process, shared by the sessions wrapped around one another."""

    __slots__ = (
        "at_begin",
        "before_outcome",
        "before_piece",
        "boundary",
        "children",
        "clock",
        "closing",
        "collisions",
        "discarded",
        "ended",
        "extras",
        "joined",
        "live",
        "ordered",
        "overruns",
        "partial",
        "root",
        "session",
        "shared",
        "spending",
    )

    def __init__(self, *, live: bool, ordered: bool = True) -> None:
        #: Whether its calls are made, or may be, so that their cost counts.
        self.live: Final = live
        #: Whether hand-overs between threads are events, too; false in a replay of an older trace.
        self.ordered: Final = ordered
        self.ended = False
        #: Discarded in favour of a run of the program's own: everything in it happens as if outside every run.
        self.discarded = False
        #: Whether this is the new run of a partial replay, in which things are meant to be live although a replay is
        #: active.
        self.partial = False
        #: Whether other processes write parts of the run.
        self.shared = False
        #: Whether this process has joined a run that belongs to another process.
        self.joined = False
        #: The session that the program sees: the one that writes the log, with the run's policies around it.
        self.session: Session | None = None
        #: The main lane in this process.
        self.root: Lane | None = None
        #: The child processes that take part in the run.
        self.children: Children | None = None
        #: The run's own steady clocks, if they are not this machine's.
        self.clock: RunClock | None = None
        #: The boundary crossings of a run that is being recorded.
        self.boundary: Boundary | None = None
        #: Set when the run is aborted: decides which effects may still begin.
        self.closing: Closing | None = None
        #: Lanes in which a second thread arrived without a hook: the numbers of their steps depend on which thread came
        #: first.
        self.collisions: Final[list[Lane]] = []
        #: The budgets for which a call was refused, by owner, and the limit.
        self.overruns: Final[dict[str, str]] = {}
        #: What the run may spend, and has spent.
        self.spending: Spending | None = None
        #: Called when a step begins whose body a replay does not run; they inspect the process, to determine at its end
        #: what the step changed.
        self.at_begin: Final[list[Callable[[Scope, int], object]]] = []
        #: By the ``seq`` of an open step: writes what must precede its outcome, such as the changes it made.
        self.before_outcome: Final[dict[int, Callable[[], object]]] = {}
        #: The same for what must precede a piece of it.
        self.before_piece: Final[dict[int, list[Callable[[], object]]]] = {}
        self.extras: Final = Extras()

    def shown(self, function: str, value: T, real: Callable[[], T]) -> T:
        """Return ``value``, which the program is given as a reading of a clock."""
        return value if self.clock is None else self.clock.shown(function, value, real)

    def overran(self, error: Refusal) -> None:
        """Remember which budget refused a call, if one did."""
        if isinstance(error, BudgetExceededError) and not isinstance(error, UnknownPriceError):
            self.overruns[error.budget] = error.resource


class Reporting(Protocol):
    """What a session reports at its end in addition to its steps."""

    def warn(self, sentence: str, *, quiet: bool = False, uncaptured: bool = False) -> None:
        """Report a sentence, once. ``quiet``: it is probably intended. ``uncaptured``: a replay of the trace will lack
        something."""
        ...

    def interrupted(self) -> None:
        """Note that Ctrl-C came from outside. It is an event of a recording, and the end of a replay."""
        ...


class RecordedCall(Protocol):
    """The recorded call of a signal handler, which a replay repeats."""

    @property
    def at(self) -> str:
        """The place in the program at which it was made; see ``signals``."""
        ...


class SignalHooks(Protocol):
    """Notified by the hooks of signals in a replay, in the main thread."""

    def sent(self, number: int) -> bool:
        """The program sends itself a signal. Return whether to suppress it, because its result is in the recording."""
        ...

    def comes_again(self, number: int) -> bool:
        """Return whether the signal can't be handled at this moment, so that it has to be sent again."""
        ...

    def taken(self, number: int) -> RecordedCall | None:
        """The handler is about to be called. Return the recorded call it belongs to, or ``None`` if the signal comes
        from elsewhere."""
        ...

    def returned(self, call: Any) -> None:
        """The handler has returned, or raised; the interrupted code continues."""
        ...

    def came(self, number: int) -> bool:
        """A signal came from outside the program. Return whether to call its handler."""
        ...


class ThreadHooks(Protocol):
    """Notified by the hooks of the threads that take part in a replay, and what they wait for."""

    def launching(self) -> None:
        """The calling thread starts a thread; until ``launched``, nothing counts as blocked."""
        ...

    def launched(self, native: int | None, ident: int | None, *, beside: bool = False) -> None:
        """The thread has been started, or (``None``) could not be."""
        ...

    def submitted(self, *, beside: bool = False) -> None:
        """The calling thread submits a call to a pool: another thread will run it."""
        ...

    def begun(self, lane: Lane, *, beside: bool = False) -> None:
        """The calling thread begins a call submitted to a pool, or a thread's own, in this lane."""
        ...

    def created(self, task: Task[Any]) -> None:
        """A task of the run was created, in the loop of the calling thread."""
        ...

    @property
    def signals(self) -> SignalHooks | None:
        """The calls of signal handlers that the replay repeats; ``None`` if the recording has none."""
        ...

    @property
    def failed(self) -> bool:
        """Whether the replay has failed but is not over: threads then really wait for one another, and nothing is
        ordered."""
        ...

    def wait_in(self, gate: LockType, *, limited: bool = False) -> None:
        """Wait until another thread releases ``gate``. Raises the replay's failure once it has failed and nothing can
        move.

        ``limited``: the wait has a time limit, which counts as expired when the replay is over.
        """
        ...


class UndoLog(Protocol):
    """What an abort needs to know of a recording that is replayed: which steps were undone, and in which order."""

    @property
    def threads(self) -> ThreadHooks: ...

    def next_undone(self, scope: Scope) -> int | None:
        """Return the step that the next recorded step of the scope's lane undoes, or ``None``."""
        ...

    def left_standing(self) -> set[int]:
        """Return the steps that the recorded run undid at some time, or reports as not undone: an abort now must not
        undo them."""
        ...

    def ended_before_undoing(self, seq: int, of: int) -> bool:
        """Return whether step ``seq`` had ended when step ``of`` was undone."""
        ...


class Session(Protocol):
    """A session: a recording, a replay, or a resumed run. Scopes refer to it."""

    @property
    def log(self) -> Log:
        """The trace that answers, and the file of the run."""
        ...

    @property
    def state(self) -> RunState: ...
    @property
    def report(self) -> Reporting: ...
    @property
    def reach(self) -> Callable[[Any, str | None], BaseException] | None:
        """If nothing outside the process may be reached: a function that returns the error for an attempt and its
        location."""
        ...

    @property
    def decides(self) -> bool:
        """Whether some code here decides what may be done at all."""
        ...

    @property
    def run_id(self) -> str: ...
    @property
    def recording(self) -> bool: ...
    @property
    def warnings(self) -> list[str]:
        """The run's warnings so far; after a replay, those of the recorded run."""
        ...

    @property
    def progress(self) -> Progress | None:
        """Counts the run's callbacks in event loops; ``None`` if nobody counts them."""
        ...

    @property
    def redactor(self) -> Redactor:
        """Removes secrets from what this session stores and compares."""
        ...

    @property
    def threads(self) -> ThreadHooks | None:
        """Notified by the hooks of the threads that take part; ``None`` in a recording, where nothing waits for them."""
        ...

    def begin(self, scope: Scope, request: Request) -> Step:
        """Begin a step: log its intent record, or match it with the recorded one. Raises ``DivergenceError`` if it
        differs."""
        ...

    def model(self, name: str) -> str:
        """Return the model to use for ``name``: another one if a partial replay tries that, else ``name``."""
        ...

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        """Return the output that replaces ``output`` of a policy, breaker or detector in a partial replay, else
        ``output``."""
        ...

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        """Return whether the lane's next recorded step has this kind and name; for calls that are steps only if they
        fail."""
        ...

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        """Refuse a call: log it as ``contract.violated`` or ``budget.exceeded``, or match it with the recorded refusal.
        Return the error to raise."""
        ...

    def validated(self, scope: Scope, spec: Spec) -> None:
        """Note, once per run, that a tool was called and its contract holds so far. It has no part in a replay."""
        ...

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """Log the identity of ``agent``, or compare it with the recorded one."""
        ...

    def fail(self, error: ReplayError) -> ReplayError:
        """Make ``error`` the failure of a replay; return the error to raise. A recording ignores it."""
        ...

    def note(self, scope: Scope, note: Note) -> int:
        """Make a step of one entry: log it, or compare it whole with the recorded one. Return its seq."""
        ...

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        """Read a clock: log the result of ``real()``, or return the recorded one. ``function`` is ``"time.time"``, say."""
        ...

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        """Read a clock on which ``library`` bases a decision (a time limit, the age of a cached value, when a job is
        due): log it under the library's name, or return the recorded reading.

        One read more or fewer is not a difference. Without a name it is not logged; a replay returns the current
        instant of the run.
        """
        ...

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        """Answer what polling code asks about another thread: log the result of ``real()``, or return the recorded one
        after ``agree`` has made it true."""
        ...

    def asked_again(self, scope: Scope, function: str) -> None:
        """Note a question that the lane has already had answered, which is not an event. A trace that has it as one is
        read past it."""
        ...

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        """Draw a random number. In a replay ``real`` is called too and its value dropped, so that the generator's state
        follows."""
        ...

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        """Draw a random number on which ``library`` bases a decision (how long to wait before a retry): log it under
        the library's name, or return the recorded one.

        One draw more or fewer is not a difference. ``real`` is called in a replay, too, as in ``random_read``.
        """
        ...

    def snapshot(self, name: str, state: Any) -> Any:
        """Log the initial state of something that the run uses (JSON values); in a replay, return the state to set, or
        ``None``."""
        ...

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        """User code reads an input whose current value is ``value`` (JSON; ``None``: it does not exist): log it, or
        return the recorded value. ``own``: the program has set it itself."""
        ...

    def arm(self, scope: Scope, function: str, seconds: float) -> Timer:
        """Arm a sleep or deadline of ``seconds`` from now, for the code of ``scope``; or, with 0, expect another event.
        ``function`` is its name in the log."""
        ...

    def open_lanes(self) -> list[Lane]:
        """Return the lanes whose task, thread or call has not ended."""
        ...

    def owed_by(self, lanes: list[Lane]) -> bool:
        """In a replay, return whether one of these lanes has recorded steps that it has not made yet."""
        ...

    def part_ended(self, step: int, name: str, result: object) -> None:
        """A part of the run in another process ended with ``result``, which a replay compares."""
        ...

    @property
    def undo_log(self) -> UndoLog | None:
        """Says which steps an abort undoes, in which order; ``None`` if the abort decides that."""
        ...

    def starts(self, lane: Lane) -> None:
        """Log that a process is about to be started in ``lane``, for recovery after a crash. It has no part in a
        replay."""
        ...

    def importing(self, scope: Scope, module: str) -> Scope | None:
        """Return the scope for the body of a module that is about to be executed in ``scope``: in a lane of its own,
        since chance decides which thread or task imports it first. ``None``: in the importer's lane, as in a recording
        without such a lane."""
        ...

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        """Hand out the tasks in lanes of these names without the events that led to them: nothing waits for those.

        These are the events in lanes without a step, and in ``here`` since its last step. A recording ignores it.
        """
        ...


# -- who is running ----------------------------------------------------------------------------------------------------


@contextmanager
def entered(scope: Scope, *, ends: bool = False) -> Iterator[None]:
    """A block whose steps are in ``scope``, whoever runs it; ``ends``: the lane ends with the block."""
    scope.lane.owner = owner()
    token = enter(scope)
    try:
        yield
    finally:
        current.reset(token)
        if ends:
            scope.lane.owner = NOBODY


def here() -> Scope | None:
    """Return the scope of the running code, in the right lane.

    A step that arrives in a lane from another task or thread than the lane's own (done callbacks, ``call_soon``, signal
    handlers, shared contexts) gets a callback lane.
    """
    scope = current.get()
    if scope is None or scope.lane.owner == owner():  # the common cases, without another call
        return scope
    return in_own_lane(scope)


def in_own_lane(scope: Scope) -> Scope:
    """Return ``scope``, from the context variable, in the lane of the running task or thread."""
    lane = scope.lane
    me = owner()
    if lane.owner == me:
        return scope
    if lane.owner == 0:
        lane.owner = me
        return scope
    return scope.in_lane(_lane_of(me, lane, scope))


def running_lane(scope: Scope) -> Lane | None:
    """Return the lane of the running task or thread, if it has one. ``scope`` may be another one's, such as that of a
    stream which this one reads on."""
    lane, me = scope.lane, owner()
    return lane if lane.owner in (me, 0) else lane.owned.get(me)


class Uncounted:
    """A block in which the running lane is inside a live call of ``scope``: its callbacks count for nobody. ``None``: they
    count as ever."""

    __slots__ = ("_lane",)

    def __init__(self, scope: Scope | None) -> None:
        self._lane: Final = None if scope is None else running_lane(scope)

    def __enter__(self) -> None:
        if self._lane is not None:
            self._lane.inside += 1

    def __exit__(self, *error: object) -> None:
        if self._lane is not None:
            self._lane.inside -= 1


def _lane_of(me: int, lane: Lane, scope: Scope) -> Lane:
    known = lane.owned.get(me)
    if known is not None:
        return known
    callbacks = lane.callbacks
    if callbacks is None:
        callbacks = lane.callbacks = {}
    task = running_task()
    whose = this_thread() if task is None else ref(task)
    callback = callbacks.get(whose)
    if callback is None:
        callback = started(lane, CALLBACK, scope.live)
        callback.owner = me
        callbacks[whose] = callback
        if len(callbacks) == 2:
            scope.session.state.collisions.append(lane)
    return callback


# -- who accounts for what the running code does -----------------------------------------------------------------------
#
# One operation passes several seams on its way out: a tool calls an SDK, which calls an HTTP library, which writes to a
# socket. The uppermost seam that knows what the operation means accounts for it. The seams below ask two different
# questions:
#
# - A transport asks ``below_seam()``: does this request only carry out one that was caught above? Then it is let
#   through. (A request in the body of a tool is a step of its own: it is recorded, and a replay skips it with the
#   tool.)
# - A boundary hook (a socket, a process start) asks ``accounted_for()``: is there a step or a seam around it? Then the
#   boundary ignores it: in a replay that step is answered, and nothing below it happens.


class Seam(Protocol):
    """An operation in progress at a seam. While it is ``open``, everything below belongs to it."""

    @property
    def open(self) -> bool: ...

    @property
    def entered_by(self) -> CodeType | None:
        """The code that calls the library below; ``None``: whatever calls, it is let through."""

    @property
    def target(self) -> object:
        """The request that it makes; code below that makes the same request forwards it."""


#: The seam that the running code is below. Tasks and callbacks started meanwhile inherit it; ``open`` says when it is
#: over.
below: Final[ContextVar[Seam | None]] = ContextVar("tracekit.below", default=None)


def below_seam() -> bool:
    """Return whether the running code only carries out what a seam above it has caught or lets through."""
    seam = below.get()
    return seam is not None and seam.open


def accounted_for() -> bool:
    """Return whether what the running code does is part of a captured step, or of what a seam has caught or lets
    through."""
    scope = current.get()
    if scope is not None and scope.live:
        return True
    seam = below.get()
    return seam is not None and seam.open


class _Passing:
    """Traffic that is let through belongs to its opener for good, including connections that it leaves open."""

    open: Final = True
    entered_by: Final = None
    target: Final = None


_PASSING: Final = _Passing()


class passing:
    """A block whose traffic is let through: whoever opens it accounts for it (ambient traffic, tracekit's own)."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = below.set(_PASSING)

    def __exit__(self, *error: object) -> None:
        below.reset(self._token)
