"""What a capture point may ask of a session: the protocols of sessions, steps and timers, and who is asked.

A capture point (tool, HTTP seam, clock, timer …) describes what is about to happen as a ``Request``, asks :func:`here` for
the scope, and opens a step on its session. The session alone decides: a *live* step is made by the capture point and its
outcome reported (``chunk``, ``done``, ``failed``); a step that is not live is answered from the log (``answer``, ``next_chunk``).
Capture points know nothing of replay, sessions know nothing of SDKs.
"""

from __future__ import annotations

from asyncio import current_task
from asyncio.events import _get_running_loop
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from ..errors import BudgetExceededError, UnknownPriceError
from .context import NOBODY, Lane, Scope, current, enter, started

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .._journal.writer import Journal
    from .._policy.budget import Spending
    from ..errors import ContractViolationError, ReplayError, RunEndedError, TracekitError
    from .progress import Progress
    from .recorder import Closing
    from .redaction import Redactor
    from .replayer import Replay
    from .step import Request, Spec
    from .threads import ThreadMonitor

__all__ = [
    "Log",
    "Outcome",
    "Refusal",
    "Reporting",
    "RunState",
    "Session",
    "Step",
    "Timer",
    "Unfinished",
    "WrittenLog",
    "entered",
    "here",
    "owner",
    "settled",
]

T = TypeVar("T")

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
        """One piece of a stream; it is on the log when this returns, before the caller gets it."""
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

    def lazy(self) -> str | None:
        """``"coroutine"``, ``"generator"`` or ``"async generator"``, where a plain function returned one; else ``None``."""
        raise AssertionError("the log does not answer this step")


class Timer(Protocol):
    """A sleep or deadline that the run's own code armed.

    Recording (``live``): the capture point waits for real, and calls ``fired()`` when (and only if) the time ran out, before
    the program goes on. Replaying: ``wait``/``wait_async`` return when its recorded place in the log has come, and never
    return if it did not fire in the recording; ``on_fire`` asks for a call in the running event loop (``anywhere``: in any thread);
    ``cancel`` takes it back.
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


class Log:
    """The trace that answers a session's steps (``None``: nothing does), and the file that it stands in."""

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

    def of_fork(self, session: Any) -> Children:
        """The same for the recording of a forked child."""
        ...

    def before_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``."""
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


class RunState:
    """How a run stands in this process. Sessions that stand around one another in one run share it."""

    __slots__ = (
        "children",
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
        #: Set when the run is aborted: what keeps effects from beginning.
        self.closing: Closing | None = None
        #: Lanes in which a second thread arrived that no hook had brought there: their numbers depend on who came first.
        self.collisions: Final[list[Lane]] = []
        #: The budgets that a call was refused for, by whose they are, and which limit it was.
        self.overruns: Final[dict[str, str]] = {}
        #: What the run may spend, and has spent.
        self.spending: Spending | None = None
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
    def threads(self) -> ThreadMonitor | None:
        """Whom the hooks report to which threads take part; ``None`` where nothing waits for them (a recording)."""
        ...

    def begin(self, scope: Scope, request: Request) -> Step:
        """Begin a step: its intent record is on the log, or matched with the recorded one (else ``DivergenceError``)."""
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
    ) -> int:
        """A one-entry step (``decision``, ``data`` …): recorded, or compared whole with the recorded one. Returns its seq."""
        ...

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        """A read of a clock: ``real()`` recorded, or what was recorded. ``function`` as in ``"time.time"``."""
        ...

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        """A read of a steady clock for a time limit that ``library`` sets or checks: recorded under its name, or what was recorded.

        One more or fewer is no difference. Without a name it is not recorded: a replay has the instant that the run has come to.
        """
        ...

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        """What polling code sees of another thread: ``real()`` recorded, or what was recorded, ``agree`` bringing it about first."""
        ...

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        """A random draw. In replay ``real`` is called too and its value dropped, so that a generator's state follows."""
        ...

    def snapshot(self, name: str, state: Any) -> Any:
        """Keep the state of something that the run starts from (JSON values); in a replay: the one to set, or ``None``."""
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
    def undo_log(self) -> Replay | None:
        """The replay whose log says which steps an abort undoes, and in which order; ``None`` where the abort decides it."""
        ...

    def starts(self, lane: Lane) -> None:
        """A process is about to be started in ``lane``: after a crash the log must say so. It has no part in a replay."""
        ...

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        """The tasks in lanes of these names are handed out without what brought them then: nothing waits for that.

        It is what happened in lanes that have no step, and in ``here`` since its last step. A recording has no use for it.
        """
        ...


def owner() -> int:
    """Who is running: the ``id`` of the current task, or the ident of the thread outside any task."""
    loop = _get_running_loop()
    if loop is not None:
        task = current_task(loop)
        if task is not None:
            return id(task)
    return get_ident()


#: Lanes of tasks and threads by owner, for contexts that several of them share; kept by ``_capture.threads``.
owned: Final[dict[int, Lane]] = {}


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
    return None if scope is None else settled(scope)


def settled(scope: Scope) -> Scope:
    """``scope``, which the context variable has, in the lane of who is running."""
    lane = scope.lane
    me = get_ident() if _get_running_loop() is None else owner()
    if lane.owner == me:
        return scope
    if lane.owner == 0:
        lane.owner = me
        return scope
    return scope.in_lane(_lane_of(me, lane, scope))


def _lane_of(me: int, lane: Lane, scope: Scope) -> Lane:
    known = owned.get(me)
    if known is not None and known.root is lane.root:
        return known
    callbacks = lane.callbacks
    if callbacks is None:
        callbacks = lane.callbacks = {}
    callback = callbacks.get(me)
    if callback is None:
        callback = started(lane, "callback", scope.live)
        callback.owner = me
        callbacks[me] = callback
        if len(callbacks) > 1:
            scope.session.state.collisions.append(lane)
    return callback
