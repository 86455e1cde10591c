"""The logical lines of execution of a run.

A lane is counted when its task, thread or submitted call is *started*, and gets its number in the file at its first step. Its
identity is its path: which name, the how-manieth of that name that the parent lane started, under which live step. Neither scheduling
nor what a library starts beside it changes that path.
"""

from __future__ import annotations

import threading
from typing import Final

from .._reality import free_in_forks

__all__ = ["CALLBACK", "IMPORT", "NOBODY", "ROOT", "UNLIMITED", "Lane", "Root", "started"]

#: The entry that encloses what happens in no step: the run's first.
ROOT: Final = 1

#: The ``owner`` of a lane whose task, thread or call has ended: an ident that is given again misleads nobody.
NOBODY: Final = -1

#: The ``limit`` of a lane that nobody holds.
UNLIMITED: Final = 1 << 62

#: The name of the lane of what comes from another thread or task than the one whose context it has.
CALLBACK: Final = "callback"

#: What the names of the lanes of modules begin with, in which is what their bodies do while they are imported.
IMPORT: Final = "import "

_numbering = free_in_forks(threading.Lock())


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
        "let_go",
        "limit",
        "loop",
        "made_at",
        "moved",
        "n",
        "name",
        "number",
        "owned",
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
        #: The lanes of the run's tasks and threads by owner, for contexts that several of them share; one for all lanes of a run.
        self.owned: Final[dict[int, Lane]] = {} if parent is None else parent.owned
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
        #: In a replay, of a task or a call in a thread: the line of the program that made it.
        self.made_at: str | None = None
        #: Whether anything has been captured in it, but that it began.
        self.captured = False
        #: Whether a replay has let it go on past what was recorded of it, where nothing else could go on.
        self.let_go = False
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

    def runs(self) -> None:
        """An event loop runs one more of its callbacks."""
        self.since += 1
        if self.moved is not None:
            self.moves()

    def moves(self) -> None:
        """It is the first callback since the last event of its loop."""
        if self.moved is not None:
            self.moved.append(self)
            self.moved = None

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
        return self.owner not in (0, NOBODY) and self.name != CALLBACK

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
