"""The queue in which the callbacks of a run wait in an event loop.

A replay holds them there until a recorded event has come. ``progress`` says why.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Protocol

from .._reality import running_loop
from .lane import Lane

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .places import PlaceIndex

__all__ = ["Callback", "Deliverer", "LoopQueue"]


class Callback(Protocol):
    """A callback of a run in an event loop, with the interface of a handle. ``lane`` is the lane whose progress it is,
    ``None`` inside a live call. One that is not ``counted`` is no progress and is never held: the recording may or may
    not have it. One of tracekit's ``own`` moves nothing in the program."""

    counted: bool
    lane: Lane | None
    own: bool
    _args: Any
    _cancelled: bool

    def call(self) -> None:
        """Run it; its holder has counted it."""
        ...


class Deliverer(Protocol):
    """The schedule, which has the events of a replay."""

    def deliver(self, queue: LoopQueue) -> bool:
        """Deliver what is due in this loop, which has only held callbacks left to run. Return whether something was."""
        ...

    def is_done(self, seq: int) -> bool:
        """Return whether event ``seq`` has been delivered or skipped."""
        ...

    def is_coming(self, seq: int) -> bool:
        """Return whether event ``seq`` needs nothing more from its lane: it is asked for, or a thread delivers it."""
        ...

    def is_made(self, step: int) -> bool:
        """Return whether the program has reached a step."""
        ...

    def due_in(self, loop: AbstractEventLoop) -> int | None:
        """Return the next event, if it is asked for in ``loop``."""
        ...

    def is_due_in(self, loop: AbstractEventLoop) -> bool:
        """Return whether the next event is asked for in ``loop``, and nothing has to happen before it."""
        ...


class LoopQueue:
    """The callbacks of a run that wait in ``loop``, in order. Those of a lane that has reached its place are set aside."""

    __slots__ = (
        "_cancelled",
        "_deliverer",
        "_expected",
        "_far",
        "_kicked",
        "_parked",
        "_places",
        "_queue",
        "look_again",
        "loop",
        "moved",
        "out",
        "parked",
        "resting",
        "thread",
    )

    def __init__(
        self, loop: AbstractEventLoop, deliverer: Deliverer | None, places: PlaceIndex | None, far: int
    ) -> None:
        self.loop: Final = loop
        self.thread: Final = get_ident()
        self._deliverer: Final = deliverer
        self._places: Final = places
        self._far: Final = far
        #: How many callbacks have run here, except for those of polling lanes.
        self.moved = 0
        self._queue: Final[deque[Callback]] = deque()
        self._parked: Final[deque[Callback]] = deque()
        #: The futures with which recorded events are awaited, and the callbacks to run first if one was cancelled.
        self._expected: Final[set[Any]] = set()
        self._cancelled: Final[dict[Any, Callback]] = {}
        self._kicked = False
        #: How many calls in threads that are not in the recording are pending: what they lead to is unpredictable.
        self.out = 0
        #: How often a callback was held at its place.
        self.parked = 0
        #: Whether a held lane may go on.
        self.look_again = False
        #: Whether the run has nothing to run here but held callbacks.
        self.resting = True

    def add(self, handle: Callback) -> None:
        args: Any = handle._args
        if (handle.lane is None or not handle.counted) and args and args[0] in self._expected and args[0].cancelled():
            self._cancelled[args[0]] = handle
        else:
            self._queue.append(handle)
        if not self._kicked:
            self.kick()

    def expect(self, future: Any) -> None:
        """Register ``future``, with which an event is awaited: if it is cancelled, the waiter goes on only when the
        event is next."""
        self._expected.add(future)

    def deliver(self, future: Any) -> None:
        """Deliver the event of ``future``: first its immediate consequence, then what was held meanwhile."""
        self._expected.discard(future)
        self.unpark()
        first = self._cancelled.pop(future, None)
        if first is not None:
            self._queue.appendleft(first)
        elif not future.done():
            rest = list(self._queue)
            self._queue.clear()
            future.set_result(None)
            self._queue.extend(rest)
        self.kick()

    def back(self) -> None:
        """A call in a thread that is not in the recording has returned."""
        self.out -= 1
        self.kick()

    def let_go(self) -> None:
        """Stop holding anything here."""
        self._expected.clear()
        self._queue.extend(self._cancelled.values())
        self._cancelled.clear()
        self.stir()

    @property
    def held_lanes(self) -> set[Lane]:
        """The lanes with a held callback here."""
        parked = [handle for handle in list(self._parked) if handle.counted and not handle._cancelled]
        return {handle.lane for handle in parked if handle.lane is not None}

    @property
    def polls(self) -> bool:
        """Whether a polling lane is held here."""
        return any(lane.limit > self._most for lane in self.held_lanes)

    @property
    def _most(self) -> int:
        return 0 if self._places is None else self._places.most

    @property
    def may_go_on(self) -> bool:
        """Whether a lane held here has been allowed to go on since."""
        return any(lane.since < lane.limit for lane in self.held_lanes)

    def stir(self) -> None:
        """Have held callbacks reconsidered; may be called from any thread."""
        self.look_again = True
        self.kick_from_anywhere()

    def kick(self) -> None:
        """Schedule a look at the queue; called in the loop's thread."""
        if not self._kicked:
            self._kicked = True
            self.resting = False
            self.loop.call_soon(self._run, context=Context())  # outside every run; a nested loop enters it again

    def kick_from_anywhere(self) -> None:
        if self.thread == get_ident() and running_loop() is self.loop:
            self.kick()
            return
        try:
            self.loop.call_soon_threadsafe(self.kick, context=Context())
        except RuntimeError:  # the loop is closed
            pass

    def unpark(self) -> None:
        """Queue what was held again, in order and before later callbacks."""
        self.look_again = False
        self._queue.extendleft(reversed(self._parked))
        self._parked.clear()

    def nested(self) -> None:
        """The loop is about to be run inside one of these callbacks."""
        self._kicked = False
        self.kick()

    def _run(self) -> None:
        self._kicked = False
        queue = self._queue
        try:
            for _ in range(len(queue)):
                if not queue:
                    break  # a nested loop has run them
                handle = queue.popleft()
                if handle._cancelled:
                    continue
                lane = handle.lane
                if lane is not None and handle.counted:
                    if lane.since >= lane.limit:
                        self._parked.append(handle)
                        self.parked += lane.limit <= self._most
                        continue
                    lane.runs()
                    if lane.since <= self._far:
                        self.moved += 1
                else:
                    if lane is not None and self._parked and self._is_due():
                        self._parked.append(handle)  # it comes after what waits for that event
                        continue
                    if not handle.own:
                        self.moved += 1
                handle.call()
                del handle  # it refers to values given to the program, which alone should own them
            if self.look_again:
                self.unpark()
            if self._deliverer is not None:
                self._rest(self._deliverer)
        finally:
            if queue:
                self.kick()
            else:
                self.resting = not self._kicked

    def _is_due(self) -> bool:
        return self._deliverer is not None and self._deliverer.is_due_in(self.loop)

    def _rest(self, deliverer: Deliverer) -> None:
        if self._queue and self._leads_to(deliverer.due_in(self.loop)):
            return
        while deliverer.deliver(self) and not self._queue:
            pass

    def _leads_to(self, due: int | None) -> bool:
        """Return whether what is left to run here may be on its way to the place of event ``due``; a polling lane is
        not."""
        if due is None:
            return True
        before = () if self._places is None else self._places.ended_before(due)
        most = self._most
        # Callbacks inside a call lead into it, or out of it: to a thread, or to an awaited event.
        return any(
            one.lane is None or (one.counted and (one.lane.limit <= most or one.lane.id in before))
            for one in self._queue
        )
