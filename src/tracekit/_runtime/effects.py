"""The effects below a call that may be repeated, replaced or undone: which have happened, and which are in doubt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from .._journal import reader
from .._journal.entry import family_of, meta_of
from .._lazy import NamedTuple
from .._reality import OwnLock
from ..errors import RunEndedError, RunNotFoundError, TracekitError
from . import recovered

if TYPE_CHECKING:
    pass

__all__ = [
    "Begun",
    "Below",
    "EffectTree",
    "OpenCall",
    "in_process",
    "outside",
]

# -- effects -----------------------------------------------------------------------------------------------------------
#
# The open calls of the process, with one question about each: has something irreversible happened below it, or may it
# have?
#
# A call is kept here as long as it may be repeated, replaced or undone: an attempt at a tool with retries or fallbacks,
# a compensation, an agent that another may replace. In a run the scope carries it, so that tasks, threads and pools
# inherit it. Outside every run a context variable does; code that has lost its context there counts against every open
# call. The result is logged with the call's outcome, where replays and resumed runs read it.

#: The side-effect classes other than read-only.
EFFECTS: Final = frozenset(("reversible", "irreversible"))
#: The innermost open call of code outside every run; inside a run, the scope has it.
outside: Final[ContextVar[OpenCall | None]] = ContextVar("tracekit.open_call", default=None)


class Below(NamedTuple):
    """What has happened below a call: the first irreversible step, and the first that may still take effect, by name."""

    irreversible: str | None = None
    in_doubt: str | None = None


class EffectTree:
    """The open calls of a process, and the effects below them."""

    __slots__ = ("lock", "open")

    def __init__(self) -> None:
        #: Every open call, including abandoned ones whose threads still run. If empty, nothing needs to be counted.
        self.open: Final[set[OpenCall]] = set()
        self.lock: Final = OwnLock()

    def awaited(self, run_id: str) -> set[int]:
        """Return the steps of a run whose end its abort waits for, or which undo others, while their bodies run."""
        return {one.seq for one in [*self.open] if one.awaited and one.run_id == run_id}

    def begins_outside(self, name: str, side_effect: str | None, *, undoes: bool = False) -> Begun | None:
        """Announce an effect outside every run. Raises ``RunEndedError`` if it comes too late.

        A thread or callback that has lost its context may belong to any open call; then none of them is repeated: once
        too few is better than once too many.
        """
        if side_effect not in EFFECTS:
            return None
        call = outside.get()
        if call is not None:
            return call.begins(name, side_effect, undoes=undoes)
        if side_effect == "irreversible" and not undoes:
            with self.lock:
                for one in [*self.open]:
                    one._irreversible = one._irreversible or name
        return None


class OpenCall:
    """An open call in ``tree``; ``outer`` encloses it. ``seq`` is its step in the run ``run_id``, if it is one.

    Effects below a call that ``undoes`` another count beyond it only if the undoing fails.
    """

    __slots__ = (
        "_files",
        "_in_doubt",
        "_irreversible",
        "_tree",
        "_under_way",
        "_working",
        "awaited",
        "outer",
        "run_id",
        "seq",
        "undoes",
    )

    def __init__(
        self,
        tree: EffectTree,
        outer: OpenCall | None,
        *,
        run_id: str | None = None,
        seq: int = 0,
        undoes: bool = False,
        awaited: bool = False,
    ) -> None:
        self._tree: Final = tree
        #: Whether its body runs and an abort of the run waits for it, or it undoes another call: then effects in it may
        #: begin.
        self.awaited = awaited or undoes
        self.outer: Final = outer
        self.run_id: Final = run_id
        self.seq: Final = seq
        self.undoes: Final = undoes
        self._irreversible: str | None = None
        self._in_doubt: str | None = None
        #: The effects below it that have begun and not ended, in order.
        self._under_way: Final[dict[Begun, None]] = {}
        #: The trace files of processes started below it, which record what they do.
        self._files: list[str] = []
        #: For an abandoned call: returns whether its thread still runs.
        self._working: Callable[[], bool] | None = None
        tree.open.add(self)

    # -- position ------------------------------------------------------------------------------------------------------

    def around(self) -> Iterator[OpenCall]:
        """Yield this call and the enclosing ones, innermost first."""
        one: OpenCall | None = self
        while one is not None:
            yield one
            one = one.outer

    def steps(self, run_id: str) -> list[int]:
        """Return the steps of this call and the enclosing ones in the run ``run_id``, innermost first."""
        return [one.seq for one in self.around() if one.seq and one.run_id == run_id]

    # -- effects below it ----------------------------------------------------------------------------------------------

    def begins(
        self, name: str, side_effect: str, once: object = None, run_id: str | None = None, *, undoes: bool = False
    ) -> Begun:
        """Announce an effect below it. Raises ``RunEndedError`` if it comes too late.

        ``once``: repeated calls are answered by the first, within the run ``run_id`` or (``"store"``) across runs.
        """
        with self._tree.lock:
            reached = self._reached(name, side_effect)
            begun = Begun(self._tree, name, reached, undoes=undoes and side_effect == "irreversible")
            for one in reached:
                one._under_way[begun] = None
                answered = once == "store" or (once and one.run_id == run_id)
                if side_effect == "irreversible" and not undoes and not answered:
                    one._irreversible = one._irreversible or name
        return begun

    def _reached(self, name: str, side_effect: str) -> list[OpenCall]:
        """Return the calls against which the effect counts."""
        reached: list[OpenCall] = []
        counts = True
        for one in self.around():
            if one._working is not None and one._working():
                raise _too_late(one, name, side_effect)
            if counts:
                reached.append(one)
            counts = counts and not one.undoes
        return reached

    def given_up(self, working: Callable[[], bool]) -> None:
        """Abandon the call; while its thread is ``working``, no effect may begin below it."""
        with self._tree.lock:
            self._working = working

    def note_in_doubt(self, name: str) -> None:
        """Note that something below it was abandoned, and may still take effect."""
        with self._tree.lock:
            for one in self.around():
                one._in_doubt = one._in_doubt or name

    def recall(self, entries: Iterable[Mapping[str, Any]], run_id: str) -> None:
        """Count a logged step below it with everything inside, which answers a resumed run."""
        bodies: dict[int, OpenCall] = {}
        begun: dict[int, Begun] = {}
        for entry in entries:
            family, meta = family_of(entry["type"]), meta_of(entry)
            info = meta.get("info") or {}
            if family is None:
                continue
            if family[1] == "intent":
                body = bodies.get(entry.get("parent", 0), self)
                undoes = "compensates" in info
                if meta.get("side_effect") in EFFECTS:
                    once = (meta.get("contract") or {}).get("exactly_once")
                    begun[entry["seq"]] = body.begins(
                        str(entry.get("name")), meta["side_effect"], once, run_id, undoes=undoes
                    )
                bodies[entry["seq"]] = OpenCall(self._tree, body, undoes=True) if undoes else body
                continue
            step, failed = entry.get("step", 0), family[1] == "error"
            if step in begun:
                begun[step].end(failed=failed)
            if step in bodies and family[1] != "chunk":
                if info.get("in_doubt") and info.get("final"):
                    bodies[step].note_in_doubt(f"step {step}")
                if bodies[step].undoes:
                    bodies[step].end(failed=failed)

    def _below(self) -> Below:
        undoing = next((one.name for one in self._under_way if one.undoes), None)
        under_way = next((one.name for one in self._under_way), None)
        return Below(self._irreversible or undoing, self._in_doubt or under_way)

    def started(self, path: str) -> None:
        """Note that a process was started below it, whose part of the run is the file at ``path``."""
        for one in self.around():
            one._files = [*one._files, path]

    def end(self, *, failed: bool = False) -> Below:
        """End its body; return what happened in it, and, if it ``failed``, in the processes that it started."""
        self.awaited = False
        with self._tree.lock:
            below = self._below()
        if failed and self._files:
            found = [below, *map(in_process, self._files)]
            below = Below(
                next((one.irreversible for one in found if one.irreversible), None),
                next((one.in_doubt for one in found if one.in_doubt), None),
            )
        with self._tree.lock:
            if self.undoes and failed and self.outer is not None:
                for one in self.outer.around():
                    one._irreversible = one._irreversible or below.irreversible
        if self._working is None or not self._working():  # otherwise once its thread has ended
            self.over()
        if outside.get() is self:
            outside.set(self.outer)
        return below

    def over(self) -> None:
        """Remove the call: nothing goes on in it any more."""
        self._tree.open.discard(self)


class Begun:
    """An effect that has begun below open calls, until it ends."""

    __slots__ = ("_reached", "_tree", "name", "undoes")

    def __init__(self, tree: EffectTree, name: str, reached: list[OpenCall], *, undoes: bool) -> None:
        self._tree: Final = tree
        self.name: Final = name
        self._reached: Final = reached
        #: Whether it undoes another effect and can't be undone itself.
        self.undoes: Final = undoes

    def around(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``function``, and end the effect afterwards."""
        try:
            return function(*args, **kwargs)
        finally:
            self.end()

    async def around_async(self, made: Awaitable[Any]) -> Any:
        try:
            return await made
        finally:
            self.end()

    def end(self, *, failed: bool = False) -> None:
        """End the effect. One that undoes another counts against nothing, unless it ``failed``."""
        with self._tree.lock:
            for one in self._reached:
                under_way = one._under_way.pop(self, self) is None
                if under_way and failed and self.undoes:
                    one._irreversible = one._irreversible or self.name


def in_process(path: str) -> Below:
    """Return the lasting effects of a process of the run, from its own file; a process without one has captured
    nothing."""
    try:
        with reader.Trace(path) as trace:
            steps = [*recovered.RecoveredLog(trace.entries(damaged=True)).steps.values()]
    except (FileNotFoundError, RunNotFoundError):
        return Below()
    except (OSError, TracekitError):
        return Below(in_doubt="a process whose log can't be read")
    standing = [str(one.name) for one in steps if one.stands and one.key_by is None]
    pending = [str(one.name) for one in steps if one.state == "pending" and one.side_effect != "read_only"]
    return Below(next(iter(standing), None), next(iter(pending), None))


def _too_late(one: OpenCall, name: str, side_effect: str) -> RunEndedError:
    where = f"step {one.seq}, which" if one.seq else "a call that"
    return RunEndedError(
        f"{name!r} ({side_effect}) was called inside {where} was abandoned when its time was over; it was not executed",
        step=one.seq or None,
        next_action="give the call more time, or make its function look at a deadline itself",
    )
