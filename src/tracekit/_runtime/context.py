"""Where in a run the running code is: its session, its lane and the step around it."""

from __future__ import annotations

import threading
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .._policy.budget import Spending
    from .effects import OpenCall
    from .session import Session

__all__ = ["NOBODY", "ROOT", "UNLIMITED", "Lane", "Root", "Scope", "current", "enter", "started"]

# -- scope -------------------------------------------------------------------------------------------------------------
#
# Where a step happens: the session, the lane and the enclosing step that the context variable points to.
#
# A scope is immutable. Who enters a step, a lane or an agent sets a new one and restores the old one after; tasks and
# threads get theirs from the hooks in ``_capture.threads``.


#: The entry that encloses what happens in no step: the run's first.
ROOT: Final = 1


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
        """The same enclosing step, another line of execution."""
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

    def acting(self, agent: str | None) -> Scope:
        return Scope(self.session, self.lane, self.parent, agent, self.live, self.spending, self.call)

    def within(self, spending: Spending | None) -> Scope:
        """The same place, its calls counted in ``spending``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, spending, self.call)

    def within_call(self, call: OpenCall | None) -> Scope:
        """The same place, the effects of its calls counted in ``call``."""
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


# -- lanes -------------------------------------------------------------------------------------------------------------
#
# Lanes: the logical lines of execution of a run.
#
# A lane is counted when its task, thread or submitted call is *started*, and gets its number in the file at its first
# step. Its identity is its path: which name, the how-manieth of that name that the parent lane started, under which live
# step. Neither scheduling nor what a library starts beside it changes that path.

#: The ``owner`` of a lane whose task, thread or call has ended: an ident that is given again misleads nobody.
NOBODY: Final = -1

#: The ``limit`` of a lane that nobody holds.
UNLIMITED: Final = 1 << 62

_numbering = threading.Lock()


class Lane:
    """One logical line of execution.

    ``id`` is its number in this file, ``-1`` until its first step. ``owner`` is whoever runs it: a thread's ident, or the
    task object's ``id()``; a step that arrives from someone else opens a callback lane of its own.
    ``under`` is the ``seq`` of the live step inside which it was started, or 0.
    """

    __slots__ = (
        "_armed",
        "_counts",
        "_since",
        "callbacks",
        "captured",
        "id",
        "last",
        "limit",
        "loop",
        "moved",
        "n",
        "name",
        "number",
        "owner",
        "parent",
        "root",
        "since",
        "state",
        "under",
    )

    def __init__(self, name: str, n: int, parent: Lane | None, under: int = 0, *, id: int = -1, owner: int = 0) -> None:
        self.name: Final = name
        self.n: Final = n
        self.parent: Final = parent
        self.under: Final = under
        #: The run's own line.
        self.root: Final[Lane] = self if parent is None else parent.root
        #: The lanes of those who arrived in this one from another thread or task, by owner.
        self.callbacks: dict[int, Lane] | None = None
        self.id = id
        self.owner = owner
        #: The session's own record of this lane (a replay keeps its cursors here).
        self.state: object = None
        #: The ``seq`` of its last step so far, 0 before the first.
        self.last = 0
        #: The ``id`` that it will have, where it has been named in the file before its first step; else 0.
        self.number = 0
        #: Whether anything has been captured in it, but that it began.
        self.captured = False
        #: How many of its callbacks an event loop has run since its own last event, and how many may run; see ``progress``.
        self.since = 0
        self.limit = UNLIMITED
        #: The event loop that runs them, and where to be entered when one of them runs; ``None`` where it is entered already.
        self.loop: object = None
        self.moved: list[Lane] | None = None
        self._counts: dict[tuple[int, str], int] = {}
        #: How many timers of each function it has armed since step ``_since``.
        self._armed: dict[str, int] = {}
        self._since = 0

    def count(self, name: str, under: int) -> int:
        """The number of the child that is being started now, from 1."""
        with _numbering:
            n = self._counts.get((under, name), 0) + 1
            self._counts[under, name] = n
        return n

    def counted(self, name: str, n: int) -> None:
        """A lane of this name that was started by another way is the ``n``-th: the next is a later one."""
        with _numbering:
            self._counts[0, name] = max(self._counts.get((0, name), 0), n)

    def armed(self, function: str) -> tuple[int, int]:
        """A timer's identity: the lane's last step, and the number of the timer among those of ``function`` since.

        Not counted through: a wait with a time limit arms no timer where what it waits for is there already, and that may
        be otherwise in a replay.
        """
        if self._since != self.last:
            self._since, self._armed = self.last, {}
        n = self._armed[function] = self._armed.get(function, 0) + 1
        return self.last, n

    @property
    def path(self) -> str:
        """``""`` for the run's own line, else the names and numbers from there down, for messages and segment names."""
        if self.parent is None:
            return ""
        under = f"@{self.under}" if self.under else ""
        return f"{self.parent.path}/{self.name}#{self.n}{under}"

    @property
    def open(self) -> bool:
        """Whether its task, thread or call has not ended. A callback's lane never counts as open."""
        return self.owner not in (0, NOBODY) and self.name != "callback"

    def __repr__(self) -> str:
        return f"<Lane {self.id} {self.path or '/'}>"


class Root(Lane):
    """The own line of a process that joined a run: its path goes on from that of the line that started it."""

    __slots__ = ("_path",)

    def __init__(self, path: str, owner: int) -> None:
        super().__init__("", 1, None, id=0, owner=owner)
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    @path.setter
    def path(self, path: str) -> None:
        self._path = path


def started(parent: Lane, name: str, under: int = 0) -> Lane:
    """A new lane, started by ``parent``, counted now, with no owner and no number yet."""
    return Lane(name, parent.count(name, under), parent, under)
