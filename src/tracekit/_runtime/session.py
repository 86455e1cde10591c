"""Where in a run the running code is, and what it may ask there: scopes, and the protocols of sessions, steps and timers.

A capture point (tool, HTTP seam, clock, timer …) describes what is about to happen as a ``Request``, asks ``here`` for
the scope, and opens a step on its session. The session alone decides: a *live* step is made by the capture point and its
outcome reported (``chunk``, ``done``, ``failed``); a step that is not live is answered from the log (``answer``, ``next_chunk``).
Capture points know nothing of replay, sessions know nothing of SDKs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from .._native import owner
from ..errors import BudgetExceededError, RunEndedError, UnknownPriceError
from .effects import outside
from .lane import CALLBACK, IMPORT, NOBODY, ROOT, Lane, started

if TYPE_CHECKING:
    from _thread import LockType
    from asyncio import Task

    from .._journal.reader import Trace
    from .._journal.writer import Journal
    from ..errors import ContractViolationError, ReplayError, TracekitError
    from .boundary import Boundary
    from .effects import OpenCall
    from .progress import Progress
    from .redaction import Redactor
    from .spending import Spending
    from .step import Request, Spec

__all__ = [
    "STEADY",
    "Closing",
    "Log",
    "Outcome",
    "RecordedCall",
    "Refusal",
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
    "owner",
    "passing",
    "placed",
    "undoing",
]

T = TypeVar("T")


# -- scope -------------------------------------------------------------------------------------------------------------
#
# Where a step happens: the session, the lane and the enclosing step that the context variable points to.
#
# A scope is immutable. Who enters a step, a lane or an agent sets a new one and restores the old one after; tasks and
# threads get theirs from the hooks in ``_capture.threads``.


class Scope:
    """One point in a run: ``session``, ``lane``, the ``seq`` of the enclosing step, the acting agent.

    ``live`` is the ``seq`` of the innermost enclosing step whose body replay does not run (a tool, a model call, an HTTP
    exchange), or 0: what is started in there is numbered under that step, and is not there in a replay. ``spending`` is the
    innermost budget that calls made here are counted in, ``call`` the innermost open call in which their effects are.
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
        """The scope of the body of step ``seq``."""
        return Scope(self.session, self.lane, seq, self.agent, seq if live else self.live, self.spending, self.call)

    def in_lane(self, lane: Lane) -> Scope:
        """A scope below the same step, in another lane."""
        return Scope(self.session, lane, self.parent, self.agent, self.live, self.spending, self.call)

    def own_lane(self, name: str) -> Scope:
        """In a line of execution of its own that starts here, for a worker, a connection, a thread: the next of this name."""
        return self.in_lane(started(self.lane, name))

    def task(self, name: str, n: int | None = None) -> Scope:
        """In a line of execution of its own for work that came from outside, inside no step: the next of this name in the run.

        In a replay ``n`` says which one it was.
        """
        root = self.lane.root
        if n is None:
            lane = started(root, name)
        else:
            lane = Lane(name, n, root)
            root.counted(name, n)
        return Scope(self.session, lane, ROOT, self.agent, call=self.call)

    def of_module(self, name: str) -> Scope:
        """In the line of execution of the module ``name``, which is being imported: the same one whoever is the first to import it."""
        lane = started(self.lane.root, IMPORT + name)
        return Scope(self.session, lane, ROOT, self.agent, spending=self.spending, call=self.call)

    def acting(self, agent: str | None) -> Scope:
        return Scope(self.session, self.lane, self.parent, agent, self.live, self.spending, self.call)

    def within(self, spending: Spending | None) -> Scope:
        """A scope at the same place, whose calls are counted in ``spending``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, spending, self.call)

    def within_call(self, call: OpenCall | None) -> Scope:
        """A scope at the same place, whose effects are counted in ``call``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, self.spending, call)


#: The scope of the running code, or ``None`` outside every run. Read it with ``current.get()``.
current: Final[ContextVar[Scope | None]] = ContextVar("tracekit.scope", default=None)


def enter(scope: Scope) -> Token[Scope | None]:
    """Set ``scope`` where there may be none yet; ``current.reset`` takes it back.

    Resetting to "no value" deletes the entry, and Python 3.11 may collect garbage in the middle of that: a collection's
    callback or finalizer that reads the variable just then (any read of a clock does) leaves a dangling pointer in its
    cache. So there is always a value to go back to.
    """
    token = current.set(scope)
    if token.old_value is Token.MISSING:
        current.set(None)
        token = current.set(scope)
    return token


def innermost() -> OpenCall | None:
    """The open call that the running code is in."""
    scope = current.get()
    return outside.get() if scope is None else scope.call


def body_of(call: OpenCall, scope: Scope | None) -> Scope | None:
    """The scope of the body of ``call``; outside every run, where there is none, the running context is in it from here on."""
    if scope is None:
        outside.set(call)
        return None
    return scope.within_call(call)


@contextmanager
def in_call(call: OpenCall) -> Iterator[None]:
    """A block that is (a part of) the body of ``call``."""
    scope = current.get()
    if scope is None:
        before = outside.get()
        outside.set(call)
        try:
            yield
        finally:
            outside.set(before)  # no reset: the block may be left in another context
        return
    token = current.set(scope.within_call(call))
    try:
        yield
    finally:
        current.reset(token)


def placed(scope: Scope) -> Scope:
    """Where a step is that is made here in the line of ``scope``: inside the step of its run that is running, its effects counted in
    the call that is open."""
    around, call = current.get(), innermost() or scope.call
    if around is None or around.session is not scope.session:
        return scope.within_call(call)
    return Scope(scope.session, scope.lane, around.parent, around.agent or scope.agent, around.live, call=call)


# -- steps and timers --------------------------------------------------------------------------------------------------

Refusal: TypeAlias = "ContractViolationError | BudgetExceededError | RunEndedError"


class Outcome:
    """A recorded outcome: ``output`` (decoded), or ``error`` (the exception to raise), and the entry's ``meta``.

    ``entry`` is the raw entry as a dictionary, ``abandoned`` true where the caller left a stream before its end.
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
        """The output, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.output


class Step(Protocol):
    """An open step. ``live`` says who answers: the capture point's own call, or the log.

    Each kind of step has its own part of these; asking one for another kind's is a mistake of the capture point.
    """

    __slots__ = ()

    @property
    def live(self) -> bool: ...
    @property
    def seq(self) -> int: ...

    def holds(self, instance: object) -> None:
        """The method's own object, where the call may change it: named right after the step has begun."""
        raise AssertionError("nobody makes this step")

    # -- live: the capture point makes the call and reports the outcome --------------------------------------------------
    def body(self) -> Scope:
        """The scope to set (``current.set``) around the live call and each resumption of a generator, and to reset after."""
        raise AssertionError("its caller does not make this step")

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        """One piece of a stream; it is on the log when this returns, before the caller gets it.

        ``coded`` in ``info`` are the bytes that it came as. Of a piece of which a secret is taken out, and of those after it, the log has
        their number alone (``size``).
        """
        raise AssertionError("its caller does not make this step")

    def resumed(self) -> None:
        """A generator goes on after a piece: its caller may have changed its arguments meanwhile."""
        raise AssertionError("its caller does not make this step")

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        """The call returned ``output``; ``info`` goes into the outcome's ``meta`` (usage, cost, ``abandoned``, ``suspended`` …).

        ``data`` is the JSON of ``output`` as the log writes it, where that is at hand.
        """
        raise AssertionError("its caller does not make this step")

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        """The call raised ``error``; ``output`` is what there was beside it (a status, headers)."""
        raise AssertionError("its caller does not make this step")

    # -- deferred: the log does not answer, and it is not followed to its end yet (a resumed run) -------------------------
    @property
    def deferred(self) -> bool:
        """Whether a step that is not ``live`` is to be made after all: ask ``go`` for the live one."""
        ...

    def go(self) -> Step:
        """The live step, once the rest of the log has been followed. Blocks the calling thread until then."""
        raise AssertionError("this step is not deferred")

    async def go_async(self) -> Step:
        raise AssertionError("this step is not deferred")

    # -- not live: the log answers ---------------------------------------------------------------------------------------
    def answer(self) -> Outcome:
        """The recorded outcome, when its turn has come. Blocks the calling thread until then."""
        raise AssertionError("the log does not answer this step")

    async def answer_async(self) -> Outcome:
        raise AssertionError("the log does not answer this step")

    def next_chunk(self) -> Outcome | None:
        """The next recorded chunk when its turn has come, or ``None`` where the recording has no more of them."""
        raise AssertionError("the log does not answer this step")

    async def next_chunk_async(self) -> Outcome | None:
        raise AssertionError("the log does not answer this step")

    def upcoming(self) -> Mapping[str, Any] | None:
        """The entry that the log has next for this step, a chunk or its outcome, before its turn; ``None`` where it has no more."""
        raise AssertionError("the log does not answer this step")

    def rest(self) -> Iterator[Outcome]:
        """All that the log still has for this step, its chunks and its outcome, before their turn; an error is left out."""
        raise AssertionError("the log does not answer this step")

    def on_next(self, then: Callable[[Outcome], object]) -> Callable[[], object]:
        """Call ``then`` with what comes next, in the running event loop, when its turn has come; where the replay fails before that, with
        its failure. Call what this returns to take it back."""
        raise AssertionError("the log does not answer this step")

    def take_next(self) -> Outcome:
        """What comes next, at once: it came together with what came before, or is the program's own doing."""
        raise AssertionError("the log does not answer this step")

    def alike(self, recorded: object, actual: object) -> bool:
        """Whether the program gives what the recorded one gave, as far as that is recorded: placeholders stand for their secrets."""
        raise AssertionError("the log does not answer this step")

    def ahead(self, key: str) -> str | None:
        """What the ``info`` of its next chunk, else of its outcome, has under ``key``: a text that must be known before its turn.

        ``"lazy"``: what a plain function returned unfinished. ``"early"``: how a request ended before its answer was asked for.
        ``"with"``: what a piece of an answer was received with.
        """
        raise AssertionError("the log does not answer this step")


class Timer(Protocol):
    """A sleep or deadline that the run's own code armed.

    Recording (``live``): the capture point waits for real, and calls ``fired()`` when (and only if) the time ran out, before
    the program goes on. Replaying: ``wait``/``wait_async`` return when its recorded place in the log has come. If it did not fire in the
    recording they return when the log answers nothing any more: it is ``live`` then, and the capture point waits for real.
    ``on_fire`` asks for a call in the running event loop (``anywhere``: in any thread); ``cancel`` takes it back.
    """

    __slots__ = ()

    @property
    def live(self) -> bool: ...
    @property
    def comes(self) -> bool:
        """Whether it fired in the recording that is replayed."""
        ...

    @property
    def pending(self) -> bool:
        """Whether it may come true later: past the end of the log of a run that goes on."""
        ...

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("a replayed timer fires at its recorded place")

    def wait(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    async def wait_async(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        return


# -- a run ------------------------------------------------------------------------------------------------------------


class Log:
    """The trace that answers a session's steps (``None``: nothing does), and the file that holds it."""

    __slots__ = ("live", "trace")

    def __init__(self, trace: Trace | None, live: Collection[str] = ()) -> None:
        self.trace: Final = trace
        #: The kinds of steps that go live all the same, in a partial replay.
        self.live: Final = live

    def answered(self, seq: int, family: str, name: str) -> bool:
        """Whether the step ``seq`` of this kind and name was answered from the log."""
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
    """The journal that a recording writes, and the trace that it goes on from, where it is resumed."""

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
    """What upper rooms keep for a run: one object of each type."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: Final[dict[type, Any]] = {}

    def of(self, kind: type[T]) -> T:
        """The run's own ``kind``, made when it is first asked for."""
        found = self._kept.get(kind)
        return found if found is not None else self._kept.setdefault(kind, kind())  # type: ignore[no-any-return]


class Unfinished:
    """What says what a run would leave undone if it ended now; asked at its end."""

    def __init__(self) -> None:
        self.says: Final[list[Callable[[], str | None]]] = []


class Children(Protocol):
    """The child processes that a run starts: each takes part in it, by a ticket or by the place of its call."""

    def admit(self, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> Any:
        """Consent to the start of a process in ``lane``; ``None`` where it is none of the run's.

        ``words`` is the command, ``None`` for a process of ``multiprocessing``; ``pool`` says that it is a pool's worker.
        """
        ...

    def place(self, scope: Scope, lane: Lane) -> dict[str, Any] | None:
        """The place in the run of a call that is submitted to a process pool; ``None`` outside of it."""
        ...

    def before_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``."""
        ...

    def handles_itself(self, pid: int, number: int) -> bool:
        """Whether process ``pid`` calls its handler for this signal without being sent it, because a log has that call."""
        ...

    def poll(self) -> None:
        """See whether one of them has failed."""
        ...

    def stuck(self, waiting: list[str]) -> tuple[ReplayError | None, bool]:
        """Nothing can move in a replay, neither here (``waiting`` says where) nor in them: end those that rest.

        The failure that follows from that, and whether the program goes on without one.
        """
        ...

    def abandon(self) -> None:
        """This process is about to end: end them."""
        ...

    def conclude(self) -> None:
        """The run, or this part of it, is about to end: report what became of them. Idempotent."""
        ...


#: Whether a compensation is called here.
undoing: Final[ContextVar[bool]] = ContextVar("tracekit.undoing", default=False)


class Closing:
    """What may still begin in a run that is aborted for ``reason``.

    When the abort is ``over``, the line of execution that asked for it, ``lane``, goes on with what it likes. Others don't.
    """

    def __init__(self, run_id: str, reason: str, lane: Lane, at: int, within: Callable[[Scope], bool]) -> None:
        self._run_id: Final = run_id
        self._reason: Final = reason
        self.lane = lane
        self.over = False
        #: The last entry before.
        self.at = at
        #: Whether it is inside a step that is waited for, or that undoes something.
        self._within: Final = within

    def admits(self, scope: Scope, request: Request) -> bool:
        """What has no effect, what undoes something, and what happens inside a step that is waited for, or inside one of those."""
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


#: Clocks that begin anywhere, and must not go back.
STEADY: Final = frozenset(
    ("time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "loop.time")
)


class RunClock:
    """The steady clocks of a run whose readings are not this machine's: they began elsewhere, or stood still while it was down.

    Whoever makes a deadline of a reading means this clock, and what waits for it waits on the machine's: how much is left at any time is
    for ``now`` to say. ``begin`` says what a clock shows as long as none of its readings has been ``shown``.
    """

    __slots__ = ("_begin", "_shown")

    def __init__(self, begin: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._begin: Final = begin
        #: By function: the last reading that was given to the program, and the machine's at that time.
        self._shown: Final[dict[str, tuple[Any, Any]]] = {}

    def shown(self, function: str, value: T, real: Callable[[], T]) -> T:
        """``value``, which the program is given as a reading of ``function``."""
        if function in STEADY:
            self._shown[function] = value, real()
        return value

    def now(self, function: str, real: Callable[[], Any]) -> Any:
        """What the run's clock shows now: the last reading that was given, and the time since."""
        then = self._shown.get(function)
        return self._begin(function, real) if then is None else then[0] + (real() - then[1])


class RunState:
    """How a run stands in this process. Sessions that stand around one another in one run share it."""

    __slots__ = (
        "at_begin",
        "before_outcome",
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
        #: Whether its calls are made, or may be: what they take is counted.
        self.live: Final = live
        #: Whether the hand-overs between threads are events, too: not in a replay of an older trace.
        self.ordered: Final = ordered
        self.ended = False
        #: Given up for a run of the program's own: whatever comes here happens as if outside every run.
        self.discarded = False
        #: Whether this is the new run of a partial replay: what happens in it is meant to be live, inside a replay.
        self.partial = False
        #: Whether other processes write parts of it.
        self.shared = False
        #: Whether this process has joined it: the run is another process's.
        self.joined = False
        #: The session that its program sees, with the policies of the run around the one that writes the log.
        self.session: Session | None = None
        #: The run's own line of execution in this process.
        self.root: Lane | None = None
        #: The child processes that it starts, where they take part in it.
        self.children: Children | None = None
        #: The run's own steady clocks, where they are not this machine's.
        self.clock: RunClock | None = None
        #: What crosses the boundary of the process, of a run that is being recorded.
        self.boundary: Boundary | None = None
        #: Set when the run is aborted: what keeps effects from beginning.
        self.closing: Closing | None = None
        #: Lanes in which a second thread arrived that no hook had brought there: their numbers depend on who came first.
        self.collisions: Final[list[Lane]] = []
        #: The budgets that a call was refused for, by whose they are, and which limit it was.
        self.overruns: Final[dict[str, str]] = {}
        #: What the run may spend, and has spent.
        self.spending: Spending | None = None
        #: What looks at the process when a step begins whose body a replay does not run, to see at its end what that has changed.
        self.at_begin: Final[list[Callable[[Scope, int], object]]] = []
        #: What is to be written before the outcome of an open step is, by its ``seq``: how it leaves what it has changed.
        self.before_outcome: Final[dict[int, Callable[[], object]]] = {}
        self.extras: Final = Extras()

    def overran(self, error: Refusal) -> None:
        """Remember which budget refused a call, where one did."""
        if isinstance(error, BudgetExceededError) and not isinstance(error, UnknownPriceError):
            self.overruns[error.budget] = error.resource


class Reporting(Protocol):
    """What a session says at its end beside what it did."""

    def warn(self, sentence: str, *, quiet: bool = False, uncaptured: bool = False) -> None:
        """Say a sentence, once. ``quiet``: it may well be meant so. ``uncaptured``: a replay of the trace will lack something."""
        ...


class RecordedCall(Protocol):
    """The recorded call of a signal handler that a replay brings about."""

    @property
    def at(self) -> str:
        """Where in the program it was made; see ``signals``."""
        ...


class SignalHooks(Protocol):
    """Whom the hooks notify of signals in a replay, in the main thread."""

    def sent(self, number: int) -> bool:
        """The program sends this process the signal. Whether that is not to be done: what came of it is in the recording."""
        ...

    def comes_again(self, number: int) -> bool:
        """Whether the signal can't be handled at this moment, so that it is sent once more."""
        ...

    def taken(self, number: int) -> RecordedCall | None:
        """The handler is about to be called: for which recorded call. ``None``: the signal comes from elsewhere."""
        ...

    def returned(self, call: Any) -> None:
        """The handler has returned, or raised: what it interrupted goes on."""
        ...

    def came(self, number: int) -> bool:
        """The signal came from outside the program. Whether its handler is called."""
        ...


class ThreadHooks(Protocol):
    """Whom the hooks report to which threads take part in a replay, and what they wait for."""

    def launching(self) -> None:
        """The calling thread starts a thread; until ``launched`` nothing counts as blocked."""
        ...

    def launched(self, native: int | None, ident: int | None, *, beside: bool = False) -> None:
        """The thread has been started, or (``None``) could not be."""
        ...

    def submitted(self, *, beside: bool = False) -> None:
        """The calling thread hands a call to a pool: another thread will run it."""
        ...

    def begun(self, lane: Lane) -> None:
        """A call that was handed to a pool, or a thread's own, is begun by the calling thread, in this lane."""
        ...

    def created(self, task: Task[Any]) -> None:
        """A task of the run was created, in the loop of the calling thread."""
        ...

    @property
    def signals(self) -> SignalHooks | None:
        """The calls of signal handlers that the replay brings about; ``None``: the recording has none."""
        ...

    @property
    def failed(self) -> bool:
        """Whether the replay has failed, and is not over: threads wait for one another as they are, and nothing comes in an order."""
        ...

    def wait_in(self, gate: LockType, *, limited: bool = False) -> None:
        """Wait until another thread releases ``gate``; where nothing can move and the replay has failed, raise that failure.

        ``limited``: the wait has a time limit, which has run out where the replay is over.
        """
        ...


class UndoLog(Protocol):
    """A recording that is replayed, as an abort asks it: which steps were undone, and in which order."""

    @property
    def threads(self) -> ThreadHooks: ...

    def next_undone(self, scope: Scope) -> int | None:
        """What the next recorded step of the scope's lane undoes, or ``None``."""
        ...

    def left_standing(self) -> set[int]:
        """The steps that the recorded run has undone at some time, or says it has not: none that an abort now would undo too."""
        ...

    def ended_before_undoing(self, seq: int, of: int) -> bool:
        """Whether step ``seq`` had come to its end when step ``of`` was undone."""
        ...


class Session(Protocol):
    """What a scope points to: a recording, or a replay."""

    @property
    def log(self) -> Log:
        """The trace that answers, and where the run's entries stand."""
        ...

    @property
    def state(self) -> RunState: ...
    @property
    def report(self) -> Reporting: ...
    @property
    def reach(self) -> Callable[[Any, str | None], BaseException] | None:
        """Where nothing outside the process may be reached, by whom it may be: says why not, of the attempt and its place."""
        ...

    @property
    def decides(self) -> bool:
        """Whether somebody decides here who may do nothing at all."""
        ...

    @property
    def run_id(self) -> str: ...
    @property
    def recording(self) -> bool: ...
    @property
    def warnings(self) -> list[str]:
        """What the run warns of so far; of a replay that has ended: what the recorded one warned of."""
        ...

    @property
    def progress(self) -> Progress | None:
        """Its callbacks in event loops; ``None`` where nobody counts them."""
        ...

    @property
    def redactor(self) -> Redactor:
        """What takes secrets out of what this session stores and compares."""
        ...

    @property
    def threads(self) -> ThreadHooks | None:
        """Whom the hooks report to which threads take part; ``None`` where nothing waits for them (a recording)."""
        ...

    def begin(self, scope: Scope, request: Request) -> Step:
        """Begin a step: its intent record is on the log, or matched with the recorded one (else ``DivergenceError``)."""
        ...

    def model(self, name: str) -> str:
        """The model that is asked in place of ``name``: another one where a partial replay tries that; else ``name``."""
        ...

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        """What a policy, a breaker or a detector says in place of ``output``, where a partial replay tries another one; else ``output``."""
        ...

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        """Whether the log goes on, in this lane, with a step of this kind and name, for one that only its failure makes a step."""
        ...

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        """A call that must not be made: on the log as ``contract.violated`` or ``budget.exceeded``, or matched with the
        recorded refusal. Returns what to raise."""
        ...

    def validated(self, scope: Scope, spec: Spec) -> None:
        """A tool with a contract is called, and the contract holds so far: said once a run. It has no part in a replay."""
        ...

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """Say who ``agent`` is, or compare it with what the recording says."""
        ...

    def fail(self, error: ReplayError) -> ReplayError:
        """Make ``error`` the failure of a replay; returns what to raise. A recording has no use for it."""
        ...

    def note(
        self,
        scope: Scope,
        type: str,
        name: str,
        *,
        input: object = None,
        output: object = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        must: bool = False,
    ) -> int:
        """A one-entry step (``decision``, ``data`` …): recorded, or compared whole with the recorded one. Returns its seq.

        Where the log can't be written it has happened all the same, and is written later; with ``must`` it has not (0).
        """
        ...

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        """A read of a clock: ``real()`` recorded, or what was recorded. ``function`` as in ``"time.time"``."""
        ...

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        """A read of a clock by which ``library`` decides (a time limit, the age of a cached value, when a job is due): recorded under its
        name, or what was recorded.

        One more or fewer is no difference. Without a name it is not recorded: a replay has the instant that the run has come to.
        """
        ...

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        """What polling code sees of another thread: ``real()`` recorded, or what was recorded, ``agree`` bringing it about first."""
        ...

    def asked_again(self, scope: Scope, function: str) -> None:
        """A question whose answer the lane has already is no event of the run. A trace that has it all the same is read past it."""
        ...

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        """A random draw. In replay ``real`` is called too and its value dropped, so that a generator's state follows."""
        ...

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        """A random draw by which ``library`` decides (how long it waits before another try): recorded under its name, or what was recorded.

        One more or fewer is no difference. ``real`` is called in a replay, too, as in ``random_read``.
        """
        ...

    def snapshot(self, name: str, state: Any) -> Any:
        """Keep the state of something that the run starts from (JSON values); in a replay: the one to set, or ``None``."""
        ...

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        """User code reads something from outside, which is ``value`` now (JSON; ``None``: it is not there): recorded, or what was
        recorded. ``own``: the program has set it itself."""
        ...

    def arm(self, scope: Scope, function: str, seconds: float) -> Timer:
        """A sleep or deadline of ``seconds`` from now, armed by the code of ``scope``."""
        ...

    def open_lanes(self) -> list[Lane]:
        """The lanes whose task, thread or call has not ended."""
        ...

    def owed_by(self, lanes: list[Lane]) -> bool:
        """Whether one of these lanes has recorded steps that it has not made yet, in a replay."""
        ...

    def part_ended(self, step: int, name: str, result: object) -> None:
        """A part of the run that is another process's came to ``result``: compared in a replay."""
        ...

    @property
    def undo_log(self) -> UndoLog | None:
        """What says which steps an abort undoes, and in which order; ``None`` where the abort decides it."""
        ...

    def starts(self, lane: Lane) -> None:
        """A process is about to be started in ``lane``: after a crash the log must say so. It has no part in a replay."""
        ...

    def importing(self, scope: Scope, module: str) -> Scope | None:
        """Where the body of a module happens that is about to be executed in ``scope``: in a line of its own, since chance decides which
        thread or task is the first to import it. ``None``: in that of whoever imports it, as in a recording that has no such line."""
        ...

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        """The tasks in lanes of these names are handed out without what brought them then: nothing waits for that.

        It is what happened in lanes that have no step, and in ``here`` since its last step. A recording has no use for it.
        """
        ...


# -- who is running ----------------------------------------------------------------------------------------------------


@contextmanager
def entered(scope: Scope, *, ends: bool = False) -> Iterator[None]:
    """A block whose steps are in ``scope``, by whoever runs it; ``ends``: its line of execution ends with the block."""
    scope.lane.owner = owner()
    token = enter(scope)
    try:
        yield
    finally:
        current.reset(token)
        if ends:
            scope.lane.owner = NOBODY


def here() -> Scope | None:
    """The scope of the running code, its lane checked against who runs it.

    A step that arrives in a lane from another task or thread than the lane's own (done callbacks, ``call_soon``, signal
    handlers, contexts that are shared) gets a callback lane of its own.
    """
    scope = current.get()
    return None if scope is None else in_own_lane(scope)


def in_own_lane(scope: Scope) -> Scope:
    """``scope``, which the context variable has, in the lane of who is running."""
    lane = scope.lane
    me = owner()
    if lane.owner == me:
        return scope
    if lane.owner == 0:
        lane.owner = me
        return scope
    return scope.in_lane(_lane_of(me, lane, scope))


def _lane_of(me: int, lane: Lane, scope: Scope) -> Lane:
    known = lane.owned.get(me)
    if known is not None:
        return known
    callbacks = lane.callbacks
    if callbacks is None:
        callbacks = lane.callbacks = {}
    callback = callbacks.get(me)
    if callback is None:
        callback = started(lane, CALLBACK, scope.live)
        callback.owner = me
        callbacks[me] = callback
        if len(callbacks) > 1:
            scope.session.state.collisions.append(lane)
    return callback


# -- who accounts for what the running code does -----------------------------------------------------------------------
#
# One operation passes several seams on its way out: a tool that calls an SDK, which calls an HTTP library, which writes to a socket. The
# uppermost that knows what it means accounts for it. Two questions follow for each seam below, and they are not the same:
#
# - A transport asks ``below_seam()``: is this request only the means of one that was caught above? Then it is let through as it is.
#   (A request in the body of a tool is one of its own: it is recorded, and a replay skips it with the tool.)
# - An entrance of the boundary (a socket, a process start) asks ``accounted_for()``: is a step, or a seam, around it? Then it is no
#   concern of the boundary: in a replay that step is answered, and nothing below it happens.


class Seam(Protocol):
    """What a seam does on the way out. While it is ``open``, what happens below it is a part of it."""

    @property
    def open(self) -> bool: ...

    @property
    def entered_by(self) -> CodeType | None:
        """The code that calls the library below it; ``None``: whatever calls, it is let through."""

    @property
    def target(self) -> object:
        """The request that it makes; who makes the same below it sends it on."""


#: What the running code is below of. Tasks and callbacks that are started meanwhile keep it: ``open`` says when it is over.
below: Final[ContextVar[Seam | None]] = ContextVar("tracekit.below", default=None)


def below_seam() -> bool:
    """Whether the running code is only the transport of what a seam above it has caught, or lets through."""
    seam = below.get()
    return seam is not None and seam.open


def accounted_for() -> bool:
    """Whether what the running code does is part of a captured step, or of what a seam has caught or lets through."""
    scope = current.get()
    if scope is not None and scope.live:
        return True
    seam = below.get()
    return seam is not None and seam.open


class _Passing:
    """What is let through belongs to whoever lets it through for good: a connection that it leaves open is its own, too."""

    open: Final = True
    entered_by: Final = None
    target: Final = None


_PASSING: Final = _Passing()


class passing:
    """A block whose traffic is let through as it is: whoever opens it has said what it is (ambient traffic, tracekit's own)."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = below.set(_PASSING)

    def __exit__(self, *error: object) -> None:
        below.reset(self._token)
