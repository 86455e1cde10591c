"""Lanes: the lines of execution of a run (tasks, threads, calls in pools), and what identifies each of them.

A lane is counted when its task, thread or submitted call is *started*, and gets its number in the file at its first
step. It is identified by its path: its name, its number among the lanes of that name started by the parent lane, and
the live step in which it was started. Neither scheduling nor other lanes that a library starts change that path.
"""

from __future__ import annotations

from binascii import crc32
from functools import lru_cache
from itertools import count
from typing import Final

from .._reality import OwnLock

__all__ = ["CALLBACK", "IMPORT", "NOBODY", "ROOT", "UNLIMITED", "Lane", "Root", "started"]

#: The entry that encloses what happens outside every step: the run's first.
ROOT: Final = 1

#: The ``owner`` of a lane whose task, thread or call has ended, so that a reused ident is not taken for it.
NOBODY: Final = -1

#: The ``limit`` of a lane that is not being held.
UNLIMITED: Final = 1 << 62

#: The name of the lane for steps that arrive from another thread or task than the one that owns the context.
CALLBACK: Final = "callback"

#: The prefix of the lanes of modules, for what a module's body does while it is imported.
IMPORT: Final = "import "

# Reentrant: a signal handler or a finalizer may start a lane while its own thread is in here.
_numbering: Final = OwnLock()
#: Numbers the runs of this process that have asked for a place of their tasks in sets.
_runs: Final = count()


class Lane:
    """One line of execution.

    ``id`` is its number in this file, ``-1`` until its first step. ``owner`` is what runs it: a thread's ident, or the
    ``id()`` of a task; a step that arrives from elsewhere opens a callback lane. ``under`` is the ``seq`` of the live
    step in which the lane was started, or 0.
    """

    __slots__ = (
        "_armed",
        "_counts",
        "_hash",
        "_since",
        "begun_at",
        "by_chance",
        "callbacks",
        "captured",
        "id",
        "in_loop",
        "inside",
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
        "task",
        "under",
    )

    def __init__(self, name: str, n: int, parent: Lane | None, under: int = 0, *, id: int = -1, owner: int = 0) -> None:
        self.name: Final = name
        self.n: Final = n
        self.parent: Final = parent
        self.under: Final = under
        #: The main lane of the run.
        self.root: Final[Lane] = self if parent is None else parent.root
        #: The lanes of the run's tasks and threads by owner, for contexts shared by several of them; one dictionary per
        #: run.
        self.owned: Final[dict[int, Lane]] = {} if parent is None else parent.owned
        #: The lanes for steps that arrived here from other threads or tasks, by references to these: their numbers
        #: become those of later ones.
        self.callbacks: dict[object, Lane] | None = None
        self.id = id
        self.owner = owner
        #: Used by the session (a replay keeps its cursors here).
        self.state: object = None
        #: The ``seq`` of its latest step, 0 before the first.
        self.last = 0
        #: Its future ``id``, if it was named in the file before its first step; else 0.
        self.number = 0
        #: In a replay, for a task or a call in a thread: the program's line that created it.
        self.made_at: str | None = None
        #: In a replay, for a task: whether a finalizer started it, at a time that the interpreter chose, or it is below such a task.
        self.by_chance = False
        #: Whether anything but its start has been captured in it.
        self.captured = False
        #: Whether a replay has let it go on past the end of what was recorded of it, because nothing else could go on.
        self.let_go = False
        #: How many of its callbacks an event loop has run since the loop's last event, and how many it may run; see
        #: ``progress``.
        self.since = 0
        self.limit = UNLIMITED
        #: How far its parent had come when it was started.
        self.begun_at: Final = 0 if parent is None else max(0, parent.since)
        #: Whether it is that of a task, which has one callback more than a coroutine that a loop is run for.
        self.task = False
        #: Whether a task runs it now: its own, or one with a coroutine that it runs a loop for.
        self.in_loop = False
        #: In how many live calls, or waits for recorded ones, its task is suspended.
        self.inside = 0
        #: The event loop that runs them, and the list to append this lane to when one runs; ``None`` if it is in the list.
        self.loop: object = None
        self.moved: list[Lane] | None = None
        self._counts: dict[tuple[int, str], int] = {}
        #: How many timers of each function it has armed since step ``_since``.
        self._armed: dict[str, int] = {}
        self._since = 0
        self._hash: int | None = None

    def runs(self) -> None:
        """Count one more callback that an event loop runs."""
        self.since += 1
        if self.moved is not None:
            self.moves()

    def moves(self) -> None:
        """Enter the lane in its loop's list, at the first callback since the loop's last event."""
        if self.moved is not None:
            self.moved.append(self)
            self.moved = None

    def count(self, name: str, under: int) -> int:
        """Return the number, from 1, of the child lane that is being started."""
        key, counts = (under, name), self._counts
        with _numbering:
            # The interpreter runs no handler from here to the end of the block, which calls nothing.
            counts[key] = n = counts[key] + 1 if key in counts else 1
        return n

    def counted(self, name: str, n: int) -> None:
        """Note that a lane of this name with number ``n`` was started in another way; later ones get higher numbers."""
        key, counts = (0, name), self._counts
        with _numbering:
            if key not in counts or counts[key] < n:
                counts[key] = n

    def armed(self, function: str) -> tuple[int, int]:
        """Return a timer's identity: the lane's last step, and the timer's number among those of ``function`` since.

        Timers are not numbered consecutively through the lane: a wait with a time limit arms no timer if its condition
        is already met, which may differ in a replay.
        """
        if self._since != self.last:
            self._since, self._armed = self.last, {}
        armed = self._armed
        armed[function] = n = armed[function] + 1 if function in armed else 1  # no handler is called in between
        return self.last, n

    @property
    def path(self) -> str:
        """``""`` for the main lane, else the names and numbers down from it; used in messages and segment names."""
        if self.parent is None:
            return ""
        under = f"@{self.under}" if self.under else ""
        return f"{self.parent.path}/{self.name}#{self.n}{under}"

    @property
    def hash(self) -> int:
        """Where its task is in a set: the same in each run of the same code, unlike an address.

        The lowest bits, which decide, are the lane's name and number among its siblings, so that what stands around a
        program makes no difference, and siblings come as they were started. Its parent and its run follow, so that few
        tasks of a process have the same hash.
        """
        if self._hash is None:
            if self.parent is None:
                self._hash = (next(_runs) & 0x7FFF) << 47
            else:
                above = self.parent.hash
                beside = (_spread(self.name) + self.n) & 0xFFFF_FFFF
                self._hash = above >> 47 << 47 | (above * 0x9E37_79B1 >> 16 & 0x7FFF) << 32 | beside
        return self._hash

    @property
    def imports(self) -> bool:
        """Whether it is that of a module, for what its body does while it is imported."""
        return self.name.startswith(IMPORT)

    @property
    def open(self) -> bool:
        """Whether its task, thread or call has not ended. A callback lane never counts as open."""
        return self.owner not in (0, NOBODY) and self.name != CALLBACK

    def __repr__(self) -> str:
        return f"<Lane {self.id} {self.path or '/'}>"


@lru_cache(1024)
def _spread(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass"))


class Root(Lane):
    """The main lane of a process that joined a run; its path continues that of the lane that started it."""

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
    """Return a new lane started by ``parent``: counted, but without owner and file number."""
    return Lane(name, parent.count(name, under), parent, under)
