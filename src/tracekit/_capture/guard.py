"""The guard: while a replay is active, nothing of this process reaches the live world.

An audit hook sees connections, name look-ups, listening, processes and file changes at the C level; what raises no audit
event is caught by the seams of ``guard_seams``. Both are there while a guard is engaged, and taken away with the last one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import RLock, current_thread, get_ident
from typing import TYPE_CHECKING, Any, Final, Literal

from .._engine.scope import current
from ..errors import LiveCallBlockedError, RunStateError
from . import guard_seams
from .guard_attempts import ACTS, FILES, LIVE, Attempt, Kind
from .guard_caller import Caller, find
from .guard_hosts import Hosts

if TYPE_CHECKING:
    from .exchange import AuditHook

__all__ = [
    "Guard",
    "Reach",
    "Refuse",
    "Watch",
    "allow",
    "check",
    "everywhere",
    "instead_of_listening",
    "refuse",
    "warm",
]

Reach = Literal["process", "context", "off"]

_VERBS: Final[dict[Kind, str]] = {
    "connect": "connect to",
    "lookup": "look up",
    "listen": "listen on",
    "send": "send to",
    "process": "start a process:",
    "file": "change a file:",
}
_TOOL: Final = "let a @traced_tool or an instrumented client make this call, so that the replay answers it"
_NEXT: Final[dict[Kind, str]] = {
    "lookup": f"{_TOOL}; or, for a test's own server, replay(..., allow_hosts=[{{host!r}}])",
    "listen": "a server's work that comes through handlers (@on_task) is replayed without it: by `tracekit replay`, or with "
    "`drive(handler)` inside the block; or, for a test's own server, replay(..., allow_hosts=[{host!r}])",
    "process": f"{_TOOL}; or let it join the run that is recorded, by importing tracekit; or replay(..., guard='off') to "
    "let it run for real",
    "file": "let a @traced_tool make this change, so that the replay answers it; or replay without dry_run",
}
_NEXT_RESUMED: Final = (
    "a resumed run can't start processes before it has come to the end of its log: let a @traced_tool start this one, so that "
    "the log answers it; or give the run up with `tracekit recovery abort`"
)
_NEXT_FORK: Final = (
    "a copy of the process can't be replayed: start it afresh (multiprocessing.get_context('spawn') or subprocess), so that it joins the "
    "run; or fork in a @traced_tool, which the replay answers"
)
_NEXT_SQLITE: Final = "open it read-only (sqlite3.connect('file:...?mode=ro', uri=True)); or replay without dry_run"

_PROBE: Final = "tracekit.guard"
_lock: Final = RLock()
_engaged: tuple[Guard, ...] = ()
_events: Final[dict[str, Callable[[tuple[Any, ...]], Attempt | None]]] = {}
_tables: tuple[bool, ...] = ()
_hook: AuditHook | None = None
_bytecode: bool | None = None  # what the user had set, while a dry run has it changed
_listening: Callable[[], object] | None = None
_allowed: Final[ContextVar[bool]] = ContextVar("tracekit.guard.allowed", default=False)

#: Says what is raised for an operation, and ``file:line`` of the caller.
Refuse = Callable[[Attempt, str | None], BaseException]


class Guard:
    """Blocks live operations between :meth:`engage` and :meth:`release`, with :class:`LiveCallBlockedError`.

    ``scope`` is ``"process"`` (all threads and contexts), ``"context"`` (only code whose context belongs to a replay)
    or ``"off"``. ``allow_hosts`` as in :class:`~.guard_hosts.Hosts`. ``dry_run`` blocks changes of files too, with
    every scope (``"off"`` then means: everywhere, files only). ``failed`` is told of each refusal before it is
    raised; the error's ``run_id`` is that of the caller's context, or ``None`` where a thread has lost it. ``resumes``: it
    stands until a resumed run has come to the end of its log, and no option opens it.

    Guards nest and overlap in any order; an operation must be allowed by all that are engaged.
    """

    def __init__(
        self,
        scope: Reach = "process",
        allow_hosts: Iterable[str] = (),
        dry_run: bool = False,
        failed: Callable[[LiveCallBlockedError], None] | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        if scope not in ("process", "context", "off"):
            raise RunStateError(f"guard={scope!r} is not known", next_action="use guard='process', 'context' or 'off'")
        self.scope: Final[Reach] = scope
        self.dry_run: Final = dry_run
        self.hosts: Final = Hosts((allow_hosts,) if isinstance(allow_hosts, str) else allow_hosts)
        self.failed = failed
        self.resumes: Final = resumes

    def engage(self) -> None:
        """Close the guard. Each call needs one :meth:`release`."""
        if self.scope != "off" or self.dry_run:
            warm(files=self.dry_run)
        with _lock:
            _set((*_engaged, self))

    def release(self) -> None:
        """Open it again; the process is as it was when the last guard is released."""
        with _lock:
            if self not in _engaged:
                raise RunStateError("this guard is not engaged", next_action="call release() once for each engage()")
            at = _engaged.index(self)
            _set(_engaged[:at] + _engaged[at + 1 :])

    def __enter__(self) -> Guard:
        self.engage()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def blocks(self, attempt: Attempt) -> bool:
        """Whether this guard, as it was set, stands against that operation here and now."""
        if attempt.kind == "act":
            return False
        if attempt.kind == "file":
            if not self.dry_run:
                return False
        elif self.scope == "off":
            return False
        elif attempt.kind == "lookup":
            if self.hosts.looks_up(attempt.target):
                return False
        elif attempt.kind != "process" and self.hosts.permits(attempt.target):
            return False
        return self.scope != "context" or _replaying() is not None


class Watch(Guard):
    """Blocks nothing by itself: while it is engaged, a session whose ``reach`` is a :data:`Refuse` is asked (:func:`refuse`), about
    changes of files and other acts as well. ``say`` is asked about whatever the engaging thread does, in every context.

    One without ``say`` watches for longer, and from the interpreter's own events alone: it exchanges nothing that others use.
    """

    def __init__(self, say: Refuse | None = None) -> None:
        super().__init__("context")
        self.say: Final = say
        self.thread: Final = get_ident()

    def engage(self) -> None:
        with _lock:
            _set((*_engaged, self))

    def blocks(self, attempt: Attempt) -> bool:
        return False


def everywhere() -> bool:
    """Whether a replay guards the whole process now, threads that have lost its context included."""
    return bool(_engaged) and any(guard.scope == "process" for guard in _engaged)


@contextmanager
def allow() -> Iterator[None]:
    """Let tracekit's own operations through, in this context and in tasks started from it.

    For what a replay itself needs: a child that joins the replay, a step that ``live=`` lets go live.
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def warm(*, files: bool = False) -> None:
    """Fill the caches that the interpreter fills by running commands: they are no effects of the program.

    The first request of the OpenAI SDK in a process asks ``platform.platform()``, which runs ``uname -p``. With
    ``files``, the directory for temporary files is settled too, which takes a file written as a trial.
    """
    import platform

    with allow(), suppress(Exception):
        platform.platform()
        _ = platform.uname().processor
        if files:
            import tempfile

            tempfile.gettempdir()


def check(attempt: Attempt | None) -> None:
    """Raise :class:`LiveCallBlockedError` if a guard stands against this operation of this caller."""
    if attempt is None:
        return
    refuse(attempt)
    if _allowed.get() or _gone_live():
        return
    guards = [guard for guard in _engaged if guard.blocks(attempt)]
    if not guards:
        return
    caller = find()
    if caller.passes(attempt.kind):
        return
    if _listening is not None and attempt.kind == "listen":
        _listening()
    if attempt.sock is not None and caller.leaks:
        attempt.sock.close()
    error = _error(attempt, caller, any(guard.resumes for guard in guards))
    for guard in guards:
        if guard.failed is not None:
            with suppress(Exception):
                guard.failed(error)
    raise error


def refuse(attempt: Attempt) -> None:
    """Raise what the caller's session says of a live operation, in a recording as well; what a replay allows is asked, too."""
    say = _say()
    if say is None or (attempt.kind == "act" and _allowed.get()):
        return
    caller = find()
    if caller.passes(attempt.kind) or (attempt.kind == "file" and caller.keeps):
        return
    if attempt.sock is not None and caller.leaks:
        attempt.sock.close()
    raise say(attempt, caller.location)


def _say() -> Refuse | None:
    """Who is asked about what the running code does: its session, or a watch of its thread."""
    scope = current.get()
    say: Refuse | None = None if scope is None else getattr(scope.session, "reach", None)
    if say is None:
        for guard in _engaged:
            if isinstance(guard, Watch) and guard.say is not None and guard.thread == get_ident():
                return guard.say
    return say


def instead_of_listening(call: Callable[[], object] | None) -> None:
    """Where the program would listen, ``call`` comes first: it may leave by an exception of its own."""
    global _listening
    _listening = call


def _error(attempt: Attempt, caller: Caller, resumes: bool) -> LiveCallBlockedError:
    thread = current_thread()
    where = "" if caller.own else f", in thread {thread.name!r}, in a package's code"
    scope = _replaying()
    who = "resumed run" if resumes else "replay"
    return LiveCallBlockedError(
        f"the {who} was about to {_VERBS[attempt.kind]} {attempt.text} ({attempt.operation}{where}); it was not done",
        run_id=None if scope is None else scope.session.run_id,
        location=caller.location,
        next_action=_NEXT_RESUMED if resumes and attempt.kind == "process" else _next(attempt),
        operation=attempt.operation,
        target=attempt.text,
        kind=attempt.kind,
    )


def _next(attempt: Attempt) -> str:
    if attempt.operation == "sqlite3.connect":
        return _NEXT_SQLITE
    if attempt.operation in ("os.fork", "os.forkpty"):
        return _NEXT_FORK
    return _NEXT.get(attempt.kind, _NEXT["lookup"]).format(host=attempt.text)


def _gone_live() -> bool:
    """Whether this is the body of a step that ``live=`` lets go live: it belongs to the new run of a what-if."""
    scope = current.get()
    return scope is not None and getattr(scope.session, "what_if", False)


def _replaying() -> Any:
    scope = current.get()
    return None if scope is None or scope.session.recording else scope


def _set(guards: tuple[Guard, ...]) -> None:
    """Bring hook, table, seams and the interpreter's flag in line with these guards; under the lock."""
    global _engaged
    strict = [guard for guard in guards if not isinstance(guard, Watch)]
    watched = len(strict) < len(guards)
    closely = any(isinstance(guard, Watch) and guard.say is not None for guard in guards)
    live = any(guard.scope != "off" for guard in strict)
    files = any(guard.dry_run for guard in strict)
    if guards and not _engaged:
        _hear()
    _engaged = guards  # before the table: what is in the table finds its guards, what has none left finds nothing
    _listen_to(live or watched, files or watched, watched)
    guard_seams.use(check, _note, live=live or closely, files=files or closely, acts=closely)
    _forbid_bytecode(files)
    if not guards and _hook is not None:
        _hook.restore()


def _listen_to(*tables: bool) -> None:
    """Have those tables of events in force: live operations, files, acts."""
    global _tables
    if tables == _tables:
        return
    _tables = tables
    wanted = {
        event: table[event] for table, on in zip((LIVE, FILES, ACTS), tables, strict=True) if on for event in table
    }
    _events.update(wanted)
    for event in [event for event in _events if event not in wanted]:
        del _events[event]


def _note(name: object, addresses: Iterable[object]) -> None:
    """A look-up that was allowed gave these addresses."""
    for guard in _engaged:
        if guard.hosts.looks_up(name):
            guard.hosts.note(name, addresses)


def _forbid_bytecode(forbidden: bool) -> None:
    """The import system's caches are files too; without this, a dry run would refuse the program's imports."""
    global _bytecode
    if forbidden and _bytecode is None:
        _bytecode = sys.dont_write_bytecode
        sys.dont_write_bytecode = True
    elif not forbidden and _bytecode is not None:
        sys.dont_write_bytecode = _bytecode
        _bytecode = None


def _hear() -> None:
    """Add the audit hook and see that it works: a hook of someone else may have refused it."""
    global _hook
    from .exchange import AuditHook  # ctypes: not for who only imports tracekit

    heard: list[bool] = []

    def probe(args: tuple[Any, ...]) -> None:
        heard.append(True)
        if _hook is not None:
            with suppress(Exception):  # it stays then
                _hook.locate()

    _hook = _hook or AuditHook(_heard_event)
    _events[_PROBE] = probe
    try:
        _hook.apply()
        sys.audit(_PROBE)
    finally:
        del _events[_PROBE]
        if not heard:
            _hook.restore()
    if not heard:
        raise RunStateError(
            "the replay guard can't see this process: another audit hook refused it",
            next_action="remove that hook, or replay with guard='off' and no network",
        )


def _heard_event(event: str, args: tuple[Any, ...], find_event: Callable[[str], Any] = _events.get) -> None:
    describe = find_event(event)
    if describe is not None:
        check(describe(args))
