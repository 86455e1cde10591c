"""This process: its role in the runs, the open sessions, and calls outside every run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from .. import _reality
from .effects import EffectTree

if TYPE_CHECKING:
    from .session import Session

__all__ = ["NextRun", "Process", "ProcessRole", "Replacement", "has_children", "next_run", "process"]

#: Identifies this start of the process.
_START: Final = os.urandom(8).hex()  # noqa: TID251 - once, before anything is exchanged


class Replacement(Protocol):
    """A block that replaces a ``record()``: the replay or resumption of the run, or a part of another run."""

    def begin_for(self, options: Mapping[str, Any]) -> Any:
        """Begin, for a ``record()`` with these options; return the ``Run``."""
        ...

    async def drain_for(self, run: Any) -> None:
        """At the end of an asynchronous block of ``run``, let what it has started end, as a ``record()`` does."""
        ...

    def end_for(self, run: Any, error: BaseException | None) -> None:
        """End as the block of ``run`` would."""
        ...


class NextRun:
    """The recorded run that the next ``record()`` of this process replays or resumes."""

    __slots__ = ("_is_input", "input", "resumed")

    def __init__(self, input: Any, is_input: Callable[[Any], bool | None] | None = None) -> None:
        #: Its recorded input; ``None`` if there is none.
        self.input: Final = input
        #: Whether it is resumed, so that its input may reach the outside world.
        self.resumed: Final = is_input is not None
        self._is_input: Final = is_input

    def was_given(self, value: Any) -> bool | None:
        """For a resumed run, return whether ``value`` was its input, including secrets; ``None`` if unknown."""
        return None if self._is_input is None else self._is_input(value)


def next_run() -> NextRun | None:
    """Return the recorded run that the next ``record()`` replays or resumes; ``None`` if it records a run of its own."""
    return process.role.next_run()


class ProcessRole:
    """The role of a process in the runs in it. This one is plain: each ``record()`` is a run of its own.

    A process that records, replays or resumes a whole program, or has joined a run of another process, has another
    role, set when the process starts. ``program`` identifies the program start that its runs belong to; ``command`` is
    the program, if tracekit started it.
    """

    def __init__(self, program: str | None = None, command: Any = None) -> None:
        self.program: Final = program or _START
        self.command: Final = command
        #: The number of the run that its program opened last.
        self.ordinal = 0
        self.ordinaling = _reality.OwnLock()

    def print_failure(self, failure: BaseException) -> bool:
        """Print why a replay has failed on standard error now; return whether this was done. Otherwise the exception
        reports it."""
        return False

    # -- runs opened by the program ------------------------------------------------------------------------------------

    def next_ordinal(self) -> int:
        """Return the number, from 1, of the run of this process that is being opened."""
        with self.ordinaling:
            self.ordinal += 1
            return self.ordinal

    def not_opened(self) -> None:
        """Take back the last number: the run was not opened after all."""
        with self.ordinaling:
            self.ordinal -= 1

    def part(self, block: Any) -> Replacement | None:
        """Return what replaces a ``record()`` in a process that has joined a run: a part of that run."""
        return None

    def replacement(self, block: Any) -> Replacement | None:
        """Return what replaces the ``record()`` that has just been numbered: its replay or resumption."""
        return None

    def replay_of(self, path: str, options: Mapping[str, Any]) -> Any:
        """Return the block that replaces the program's own ``replay()`` of the run at ``path``; ``None`` to let it run."""
        return None

    def is_whole_program(self, session: Session) -> bool:
        """Return whether ``session`` records the whole program."""
        return False

    def is_replaced_by_run(self, session: Session) -> bool:
        """Return whether ``session`` has been discarded in favour of a run that the program opened in it."""
        return session.recording and session.state.discarded

    def next_run(self) -> NextRun | None:
        """Return the recorded run that the next ``record()`` replays or resumes; ``None`` if it records one of its own."""
        return None

    # -- work from outside ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """The program is about to listen for work, which it must not. May raise, to leave the call."""

    def perform(
        self, place: Mapping[str, Any], call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make a call that this process, a pool's worker, received with its place in a run."""
        return call(*args, **kwargs)

    def before_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``."""

    def before_death(self, number: int) -> None:
        """The program is about to end its own process by this signal. May end it otherwise."""


class Process:
    """The state of the process, of which there is one; see ``process``."""

    __slots__ = (
        "_lock",
        "_refusals",
        "_watchers",
        "after_exec",
        "before_exec",
        "effects",
        "forbidden",
        "kept",
        "observers",
        "outside",
        "outside_calls",
        "overspent",
        "role",
        "sessions",
    )

    def __init__(self) -> None:
        self.role = ProcessRole()
        #: The open calls, and the effects below them.
        self.effects: Final = EffectTree()
        #: The open sessions, in the order in which they were opened.
        self.sessions: tuple[Session, ...] = ()
        #: How many runs of this process exceeded their budget, whether the program reported it or not.
        self.overspent = 0
        #: Called with family and name of a step outside every run, if that is forbidden; else ``None``.
        self.outside: Callable[[str, str], None] | None = None
        #: How often each call was made outside every run while some run was being recorded (by a thread or a callback
        #: that lost it).
        self.outside_calls: dict[str, int] | None = None
        #: Called with the name of each block that begins (``record``, ``replay`` …), if that is forbidden; else
        #: ``None``.
        self.forbidden: Callable[[str], None] | None = None
        #: Objects that must live as long as the process.
        self.kept: Final[list[object]] = []
        #: Called before the process becomes another program (exec), which ends its part of a run.
        self.before_exec: Final[list[Callable[[], object]]] = []
        #: Called if it could not become that program, and goes on.
        self.after_exec: Final[list[Callable[[], object]]] = []
        self._refusals: tuple[Callable[[str, str], None], ...] = ()
        self._watchers = 0
        self._lock: Final = _reality.OwnLock()
        #: tracekit's own threads that observe the others for a replay, by native id; they cause no events. Each with
        #: the lock that it holds while it looks, or ``None``: a thread that waits for that lock is not blocked.
        self.observers: Final[dict[int, Any]] = {}

    def forked(self) -> None:
        """A child forked before anything was recorded, such as a server's worker, counts as a program start of its own."""
        for session in self.sessions:  # the lanes of other threads don't continue here
            if session.state.root is not None:
                session.state.root.owned.clear()
        if type(self.role) is ProcessRole and not self.sessions and not self.role.ordinal:
            self.role = ProcessRole(_reality.urandom(8).hex())

    # -- sessions ------------------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        """Add ``session`` to the open ones."""
        with self._lock:
            if session not in self.sessions:
                self.sessions = (*self.sessions, session)

    def closed(self, session: Session) -> None:
        """Remove ``session`` from the open ones. Idempotent."""
        with self._lock:
            self.sessions = tuple(one for one in self.sessions if one is not session)

    def has_open(self, run_id: str) -> bool:
        """Return whether this process has the run open."""
        return any(session.run_id == run_id for session in self.sessions)

    def about_to_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``, which may kill it."""
        self.role.before_signal(pid)
        for session in self.sessions:
            if session.state.children is not None:
                session.state.children.before_signal(pid)

    def needs_signal(self, pid: int, number: int) -> bool:
        """Return whether a signal to process ``pid`` has to be sent; a replayed child's log may have all its effects."""
        managers = [session.state.children for session in self.sessions if session.state.children is not None]
        return all(children.needs_signal(pid, number) for children in managers)

    # -- calls outside every run ---------------------------------------------------------------------------------------

    def refuse_outside(self, refuse: Callable[[str, str], None]) -> None:
        """Have ``refuse`` called for each captured call outside every run, which would be live, so that it can raise."""
        with self._lock:
            self._refuse_by((*self._refusals, refuse))

    def refuse_leftovers(self, refuse: Callable[[str, str], None]) -> None:
        """Have ``refuse`` called for captured calls outside every run if nobody else refuses them; it may allow them."""
        with self._lock:
            if refuse not in self._refusals:
                self._refuse_by((refuse, *self._refusals))

    def allow_outside(self, refuse: Callable[[str, str], None]) -> None:
        """Undo ``refuse_outside(refuse)``; in any order."""
        with self._lock:
            at = self._refusals.index(refuse)
            self._refuse_by(self._refusals[:at] + self._refusals[at + 1 :])

    def _refuse_by(self, refusals: tuple[Callable[[str, str], None], ...]) -> None:
        self._refusals = refusals
        self.outside = refusals[-1] if refusals else None

    def count_outside(self) -> dict[str, int]:
        """Count calls outside every run from now on, until ``called_outside_since``; return the present counts."""
        with self._lock:
            self._watchers += 1
            if self.outside_calls is None:
                self.outside_calls = {}
            return dict(self.outside_calls)

    def called_outside_since(self, before: Mapping[str, int]) -> list[str]:
        """Return the names of calls made outside every run since ``count_outside`` returned ``before``."""
        with self._lock:
            after = dict(self.outside_calls or ())
            self._watchers -= 1
            if not self._watchers:
                self.outside_calls = None
        return [name for name in after if after[name] != before.get(name, 0)]

    @contextmanager
    def nothing_begins(self, forbidden: Callable[[str], None]) -> Iterator[None]:
        """A block in which ``forbidden`` is called, and can raise, for each run or replay that is about to begin."""
        before, self.forbidden = self.forbidden, forbidden
        try:
            yield
        finally:
            self.forbidden = before


#: A flag for ``waitid``: include children that were started in unusual ways (Linux: ``__WALL``).
_ALL_CHILDREN: Final = 0x40000000


def has_children() -> bool:
    """Return whether this process has child processes, with a single system call."""
    try:
        _reality.system.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ALL_CHILDREN)
    except ChildProcessError:
        return False
    except (AttributeError, OSError):  # a system that can't be asked
        pass
    return True


#: This process. Code that starts a program in it, or joins a run, sets its role.
process: Final = Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process.forked)
