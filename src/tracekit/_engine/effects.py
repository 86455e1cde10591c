"""The open calls of the process, and one question about each: has something irreversible happened below it, or may it have?

A call is kept here while somebody may make it again, put another in its place, or undo it: an attempt at a tool with retries or
fallbacks, a compensation, an agent for which another may stand in. In a run the scope carries it, so that tasks, threads and pools
do; outside every run a context variable does, and what has lost its context there counts in every call that is open. What it
came to goes into the log with the call's outcome: a replay and a resumption read it there.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from .._journal.entry import family_of
from ..errors import RunEndedError
from .scope import Scope, current
from .step import Spec

__all__ = ["Begun", "Below", "EffectStep", "OpenCall", "innermost", "open_calls", "outside_run"]

#: Every open call, those included whose threads go on though they were given up. Empty: nobody asks, and nothing is to be counted.
open_calls: Final[set[OpenCall]] = set()
#: The side-effect classes of what is no mere look.
EFFECTS: Final = frozenset(("reversible", "irreversible"))
#: The innermost open call of code outside every run; in a run it is the scope's.
_outside: Final[ContextVar[OpenCall | None]] = ContextVar("tracekit.open_call", default=None)
_lock: Final = threading.Lock()


class Below(NamedTuple):
    """What has happened below a call: the first step that can't be undone, and the first that may take effect yet, by name."""

    irreversible: str | None = None
    in_doubt: str | None = None


class OpenCall:
    """One open call; ``outer`` is the one around it. ``seq`` is its step in the run ``run_id``, where it is one.

    What happens below a call that ``undoes`` another counts beyond it only if the undoing fails.
    """

    __slots__ = ("_in_doubt", "_irreversible", "_under_way", "_working", "outer", "run_id", "seq", "undoes")

    def __init__(
        self, outer: OpenCall | None, *, run_id: str | None = None, seq: int = 0, undoes: bool = False
    ) -> None:
        self.outer: Final = outer
        self.run_id: Final = run_id
        self.seq: Final = seq
        self.undoes: Final = undoes
        self._irreversible: str | None = None
        self._in_doubt: str | None = None
        #: The effects below it that have begun and not ended, in the order of their beginnings.
        self._under_way: Final[dict[Begun, None]] = {}
        #: Where nobody waits for it any longer: whether its thread still goes on.
        self._working: Callable[[], bool] | None = None
        open_calls.add(self)

    # -- where it is -----------------------------------------------------------------------------------------------------

    def around(self) -> Iterator[OpenCall]:
        """This one and those around it, innermost first."""
        one: OpenCall | None = self
        while one is not None:
            yield one
            one = one.outer

    def steps(self, run_id: str) -> list[int]:
        """The steps of this one and those around it in the run ``run_id``, innermost first."""
        return [one.seq for one in self.around() if one.seq and one.run_id == run_id]

    def body(self, scope: Scope | None) -> Scope | None:
        """The scope of its body; outside every run, where there is none, the running context is in it from here on."""
        if scope is None:
            _outside.set(self)
            return None
        return scope.within_call(self)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block that is (a part of) its body."""
        scope = current.get()
        if scope is None:
            before = _outside.get()
            _outside.set(self)
            try:
                yield
            finally:
                _outside.set(before)  # no reset: the block may be left in another context
            return
        token = current.set(scope.within_call(self))
        try:
            yield
        finally:
            current.reset(token)

    # -- what happens below it -------------------------------------------------------------------------------------------

    def begins(
        self, name: str, side_effect: str, once: object = None, run_id: str | None = None, *, undoes: bool = False
    ) -> Begun:
        """An effect is about to begin below it. ``RunEndedError`` if it comes too late.

        ``once``: whether a second call is answered by the first, in the run ``run_id`` or (``"store"``) everywhere.
        """
        with _lock:
            reached = self._reached(name, side_effect)
            begun = Begun(name, reached, undoes=undoes and side_effect == "irreversible")
            for one in reached:
                one._under_way[begun] = None
                answered = once == "store" or (once and one.run_id == run_id)
                if side_effect == "irreversible" and not undoes and not answered:
                    one._irreversible = one._irreversible or name
        return begun

    def _reached(self, name: str, side_effect: str) -> list[OpenCall]:
        """The calls that it counts in."""
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
        """Nobody waits for it any longer; while its thread is ``working``, no effect begins below it."""
        with _lock:
            self._working = working

    def doubt(self, name: str) -> None:
        """Something below it was given up, and may take effect yet."""
        with _lock:
            for one in self.around():
                one._in_doubt = one._in_doubt or name

    def recall(self, entries: Iterable[Mapping[str, Any]], run_id: str) -> None:
        """Count what a log says of a step below it, and of all that happened inside: a resumed run is answered from there."""
        bodies: dict[int, OpenCall] = {}
        begun: dict[int, Begun] = {}
        for entry in entries:
            family, meta = family_of(entry["type"]), entry.get("meta") or {}
            info = meta.get("info") or {}
            if family is None:
                continue
            if family[1] == "intention":
                body = bodies.get(entry.get("parent", 0), self)
                undoes = "compensates" in info
                if meta.get("side_effect") in EFFECTS:
                    once = (meta.get("contract") or {}).get("exactly_once")
                    begun[entry["seq"]] = body.begins(
                        str(entry.get("name")), meta["side_effect"], once, run_id, undoes=undoes
                    )
                bodies[entry["seq"]] = OpenCall(body, undoes=True) if undoes else body
                continue
            step, failed = entry.get("step", 0), family[1] == "error"
            if step in begun:
                begun[step].end(failed=failed)
            if step in bodies and family[1] != "chunk":
                if info.get("in_doubt") and info.get("final"):
                    bodies[step].doubt(f"step {step}")
                if bodies[step].undoes:
                    bodies[step].end(failed=failed)

    def _below(self) -> Below:
        undoing = next((one.name for one in self._under_way if one.undoes), None)
        under_way = next((one.name for one in self._under_way), None)
        return Below(self._irreversible or undoing, self._in_doubt or under_way)

    def end(self, *, failed: bool = False) -> Below:
        """Its body is over; returns what happened in it."""
        with _lock:
            below = self._below()
            if self.undoes and failed and self.outer is not None:
                for one in self.outer.around():
                    one._irreversible = one._irreversible or below.irreversible
        if self._working is None or not self._working():  # else when its thread has come to its end
            self.over()
        if _outside.get() is self:
            _outside.set(self.outer)
        return below

    def over(self) -> None:
        """Nothing goes on in it any more."""
        open_calls.discard(self)


class Begun:
    """An effect that has begun below open calls, until it has ended."""

    __slots__ = ("_reached", "name", "undoes")

    def __init__(self, name: str, reached: list[OpenCall], *, undoes: bool) -> None:
        self.name: Final = name
        self._reached: Final = reached
        #: Whether it takes another one back, and can't be taken back itself.
        self.undoes: Final = undoes

    def around(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what it is."""
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
        """It has come to its end. What undoes another is no reason against anything, unless it ``failed``."""
        with _lock:
            for one in self._reached:
                under_way = one._under_way.pop(self, self) is None
                if under_way and failed and self.undoes:
                    one._irreversible = one._irreversible or self.name


def innermost() -> OpenCall | None:
    """The open call that the running code is in."""
    scope = current.get()
    return _outside.get() if scope is None else scope.call


def outside_run(name: str, side_effect: str | None, *, undoes: bool = False) -> Begun | None:
    """An effect is about to begin outside every run. ``RunEndedError`` if it comes too late.

    A thread or callback that has lost its context may be of any call that is open, and then none of them is made again: one time too
    few is better than one too many.
    """
    if side_effect not in EFFECTS:
        return None
    call = _outside.get()
    if call is not None:
        return call.begins(name, side_effect, undoes=undoes)
    if side_effect == "irreversible" and not undoes:
        with _lock:
            for one in [*open_calls]:
                one._irreversible = one._irreversible or name
    return None


def _too_late(one: OpenCall, name: str, side_effect: str) -> RunEndedError:
    where = f"step {one.seq}, which" if one.seq else "a call that"
    return RunEndedError(
        f"{name!r} ({side_effect}) was called inside {where} had been given up when its time was over; it was not executed",
        step=one.seq or None,
        next_action="give the call more time, or make its function look at a deadline itself",
    )


class EffectStep:
    """A live step with an effect below an open call, which is told when it has ended; see ``gate.Step``."""

    __slots__ = ("_begun", "_step")

    live: Final = True
    deferred: Final = False

    def __init__(self, step: Any, begun: Begun) -> None:
        self._step: Final = step
        self._begun: Final = begun

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        self._begun.end()  # between two pieces nothing goes on by itself
        self._step.chunk(output, info=info)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self._begun.end()
        self._step.done(output, info=info, data=data)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._begun.end(failed=True)
        self._step.failed(error, output=output, info=info)


def once_of(spec: Spec) -> object:
    """Whether a second call of a step of ``spec`` is answered by the first: in its run, or (``"store"``) everywhere."""
    return (spec.signature.get("contract") or {}).get("exactly_once")
