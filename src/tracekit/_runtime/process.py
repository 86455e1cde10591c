"""This process: its role towards the runs in it, which sessions are open, and what happens to calls outside all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from .. import _reality
from .effects import EffectTree

if TYPE_CHECKING:
    from .session import Session

__all__ = ["NextRun", "Process", "ProcessRole", "Replacement", "has_children", "next_run", "process"]

#: An id of this start of the process.
_START: Final = os.urandom(8).hex()  # noqa: TID251 - once, before anything is exchanged


class Replacement(Protocol):
    """A block that takes the place of a ``record()``: the replay of the run, its resumption, or a part of another run."""

    def begin_for(self, options: Mapping[str, Any]) -> Any:
        """Begin, for a ``record()`` with these options; returns the ``Run``."""
        ...

    async def drain_for(self, run: Any) -> None:
        """At the end of an asynchronous block of ``run``: let what it has started end, as a ``record()`` does."""
        ...

    def end_for(self, run: Any, error: BaseException | None) -> None:
        """End as the block of ``run`` ends."""
        ...


class NextRun:
    """The recorded run that the next ``record()`` of this process stands for, since the process is replayed or resumed."""

    __slots__ = ("_is_input", "input", "resumed")

    def __init__(self, input: Any, is_input: Callable[[Any], bool | None] | None = None) -> None:
        #: What it was given, as the log has it; ``None`` where it has nothing.
        self.input: Final = input
        #: Whether it is resumed, so that its input reaches the live world.
        self.resumed: Final = is_input is not None
        self._is_input: Final = is_input

    def was_given(self, value: Any) -> bool | None:
        """Of one that is resumed: whether ``value`` was its input, secrets included; ``None`` if unknown."""
        return None if self._is_input is None else self._is_input(value)


def next_run() -> NextRun | None:
    """The run that the next ``record()`` stands for; ``None`` where it records a run of its own."""
    return process.role.next_run()


class ProcessRole:
    """What a process is to the runs in it. This one is plain: each ``record()`` is a run of its own.

    A program that is recorded as a whole, replayed, resumed, or has joined the run of another process has a role of its own, made when
    the process starts. ``program`` is the id of the program start that its runs belong to, ``command`` the program as it was started,
    where tracekit starts it.
    """

    def __init__(self, program: str | None = None, command: Any = None) -> None:
        self.program: Final = program or _START
        self.command: Final = command
        #: The number of the run that its program has opened last.
        self.ordinal = 0
        self.ordinaling = threading.RLock()

    def tell_failure(self, failure: BaseException) -> bool:
        """Report on standard error, now, why a replay has failed; whether that is done. Otherwise an exception leaves the block with it."""
        return False

    # -- the runs that its program opens ---------------------------------------------------------------------------------

    def next_ordinal(self) -> int:
        """The number of the run that is being opened: the n-th of this process, from 1."""
        with self.ordinaling:
            self.ordinal += 1
            return self.ordinal

    def not_opened(self) -> None:
        """The run that was opened last turns out to be none."""
        with self.ordinaling:
            self.ordinal -= 1

    def part(self, block: Any) -> Replacement | None:
        """What takes the place of a ``record()`` in a process that has joined a run: a part of that run."""
        return None

    def replacement(self, block: Any) -> Replacement | None:
        """What takes the place of a ``record()`` whose number is known: its replay or resumption."""
        return None

    def replay_of(self, path: str, options: Mapping[str, Any]) -> Any:
        """The block that replays the run at ``path`` in place of a ``replay()`` of the program's own; ``None``: it replays it itself."""
        return None

    def is_whole_program(self, session: Session) -> bool:
        """Whether ``session`` records the whole program."""
        return False

    def is_replaced_by_run(self, session: Session) -> bool:
        """Whether ``session`` is discarded in favour of a run that the program opens in it."""
        return session.recording and session.state.discarded

    def next_run(self) -> NextRun | None:
        """The recorded run that the next ``record()`` stands for; ``None`` where it records one of its own."""
        return None

    def forked(self) -> None:
        """In a forked child: nobody else holds the lock here."""
        self.ordinaling = threading.RLock()

    # -- what comes to it from outside -----------------------------------------------------------------------------------

    def listen(self) -> None:
        """The program is about to listen for work, where it must not. It may raise, to leave the call."""

    def perform(
        self, place: Mapping[str, Any], call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make a call that this process, a pool's worker, was given with its place in a run."""
        return call(*args, **kwargs)

    def before_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``."""


class Process:
    """What there is once in a process; see ``process``."""

    __slots__ = (
        "_lock",
        "_refusals",
        "_watchers",
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
        #: The calls that are open, and the effects below them.
        self.effects: Final = EffectTree()
        #: The open sessions, in the order in which they were opened.
        self.sessions: tuple[Session, ...] = ()
        #: How many runs of this process ended over their budget, by the program's word or not.
        self.overspent = 0
        #: Called with family and name for a step outside every run, where that may not be; ``None`` otherwise.
        self.outside: Callable[[str, str], None] | None = None
        #: How often what was called outside every run while some run is being recorded (by a thread or a callback that lost it).
        self.outside_calls: dict[str, int] | None = None
        #: Called with its name for each block that begins (``record``, ``replay`` …) while none may; ``None`` otherwise.
        self.forbidden: Callable[[str], None] | None = None
        #: What must live as long as the process does, whoever else lets go of it.
        self.kept: Final[list[object]] = []
        #: Called before the process becomes another program, and so comes to the end of its part of a run.
        self.before_exec: Final[list[Callable[[], object]]] = []
        self._refusals: tuple[Callable[[str, str], None], ...] = ()
        self._watchers = 0
        self._lock = threading.RLock()
        #: tracekit's own threads that look at the others, for every replay of this process, by their native ids: they bring nothing about.
        #: Each with the lock under which it looks, or ``None``: who waits for that is not blocked, but has it as soon as it has looked.
        self.observers: Final[dict[int, Any]] = {}

    def forked(self) -> None:
        """In a forked child: nobody else holds the locks here.

        One that is forked before anything was recorded, as the workers of a server are, is a program start of its own.
        """
        self._lock = threading.RLock()
        self.effects.forked()
        for session in self.sessions:  # nobody else's lanes go on
            if session.state.root is not None:
                session.state.root.owned.clear()
        if type(self.role) is ProcessRole and not self.sessions and not self.role.ordinal:
            self.role = ProcessRole(_reality.urandom(8).hex())
        self.role.forked()

    # -- sessions --------------------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        """``session`` is one of the open ones from now on."""
        with self._lock:
            if session not in self.sessions:
                self.sessions = (*self.sessions, session)

    def closed(self, session: Session) -> None:
        """``session`` is none of the open ones any more. Idempotent."""
        with self._lock:
            self.sessions = tuple(one for one in self.sessions if one is not session)

    def has_open(self, run_id: str) -> bool:
        """Whether this process has the run open."""
        return any(session.run_id == run_id for session in self.sessions)

    def about_to_signal(self, pid: int) -> None:
        """The program is about to send a signal to process ``pid``, which may end it."""
        self.role.before_signal(pid)
        for session in self.sessions:
            if session.state.children is not None:
                session.state.children.before_signal(pid)

    def handles_signal_itself(self, pid: int, number: int) -> bool:
        """Whether process ``pid`` is a replayed child whose own log has the call of its handler: it is not sent the signal."""
        managers = [session.state.children for session in self.sessions if session.state.children is not None]
        return any(children.handles_itself(pid, number) for children in managers)

    # -- calls outside every run -----------------------------------------------------------------------------------------

    def refuse_outside(self, refuse: Callable[[str, str], None]) -> None:
        """From now on a captured call outside every run is ``refuse``'s to refuse: it would be live."""
        with self._lock:
            self._refuse_by((*self._refusals, refuse))

    def refuse_leftovers(self, refuse: Callable[[str, str], None]) -> None:
        """From now on, where nobody else is asked about a captured call outside every run, ``refuse`` is, which may allow it."""
        with self._lock:
            if refuse not in self._refusals:
                self._refuse_by((refuse, *self._refusals))

    def allow_outside(self, refuse: Callable[[str, str], None]) -> None:
        """Take back ``refuse_outside(refuse)``; in any order."""
        with self._lock:
            at = self._refusals.index(refuse)
            self._refuse_by(self._refusals[:at] + self._refusals[at + 1 :])

    def _refuse_by(self, refusals: tuple[Callable[[str, str], None], ...]) -> None:
        self._refusals = refusals
        self.outside = refusals[-1] if refusals else None

    def count_outside(self) -> dict[str, int]:
        """Count what is called outside every run from now on, until ``called_outside_since``; returns what was counted before."""
        with self._lock:
            self._watchers += 1
            if self.outside_calls is None:
                self.outside_calls = {}
            return dict(self.outside_calls)

    def called_outside_since(self, before: Mapping[str, int]) -> list[str]:
        """The names of what was called outside every run since ``count_outside`` returned ``before``."""
        with self._lock:
            after = dict(self.outside_calls or ())
            self._watchers -= 1
            if not self._watchers:
                self.outside_calls = None
        return [name for name in after if after[name] != before.get(name, 0)]

    @contextmanager
    def nothing_begins(self, forbidden: Callable[[str], None]) -> Iterator[None]:
        """A block in which ``forbidden`` is called for each run or replay that is about to begin, for it to raise."""
        before, self.forbidden = self.forbidden, forbidden
        try:
            yield
        finally:
            self.forbidden = before


#: What ``waitid`` is to look at: also children that were started in unusual ways (Linux: ``__WALL``).
_ALL_CHILDREN: Final = 0x40000000


def has_children() -> bool:
    """Whether this process has child processes: one question to the system, and the answer mostly is no."""
    try:
        _reality.system.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ALL_CHILDREN)
    except ChildProcessError:
        return False
    except (AttributeError, OSError):  # a system that can't be asked
        pass
    return True


#: This process. Whoever starts a program in it, or joins a run, gives it its role.
process: Final = Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process.forked)
