"""What is on the agenda of a loop: events that nobody has responded to yet, and requests without an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from .._capture import guard
from .._engine import gate
from .._engine.gate import here
from .._engine.replay import Replay
from ..errors import IntentionError, PendingRequestsError, ReplayError
from .executors import Executor
from .intentions import ANSWERS, FAILURES, Event, Intention, Ref
from .ledger import deciding, trace_of
from .projection import Past, past_of
from .readings import Readings
from .requests import Answer, Request
from .responders import Responder
from .world import World

__all__ = ["Agenda"]

#: Who intends what the program itself gives to the loop.
PROGRAM: Final = "(program)"


class Agenda:
    """One run of a loop: the events that nobody has responded to yet, and the requests without an answer."""

    def __init__(
        self, world: World, responders: Sequence[Responder[Any]], executors: Sequence[Executor], max_events: int
    ) -> None:
        if deciding.get() is not None:
            raise IntentionError(
                f"responder {deciding.get()!r} ran a loop by itself", next_action="return the intentions"
            )
        self._world: Final = world
        self._executors: Final = executors
        self._max_events: Final = max_events
        self._unseen: Final[deque[Event]] = deque()
        self._events: Final[list[Event]] = []
        #: Who reads what, and what nobody read.
        self.readings: Final = Readings(world, responders)
        self.pending: Final[dict[Ref, Request]] = {}
        self._new: Final[list[Request]] = []
        #: The first request that nobody takes.
        self._untaken: Request | None = None
        self._arrived: Final[dict[Ref, Answer]] = {}
        self._fatal: BaseException | None = None
        scope = here()
        trace = None if scope is None else trace_of(scope.session)
        past = Past({}, frozenset()) if trace is None else past_of(trace)
        self._log: Final = past.deliveries
        #: For which requests something was done in the recording.
        self._begun: Final = past.begun
        #: Whether nothing else may be done.
        self._replaying: Final = scope is not None and isinstance(scope.session, Replay)
        self._held: Final[set[Ref]] = set()

    # -- what comes next ---------------------------------------------------------------------------------------------------

    def begin(self, intentions: Iterable[Intention]) -> None:
        for intention in intentions:
            self._emit(intention, None, PROGRAM)

    def goes_on(self) -> bool:
        """Let responders see what happened; whether a request waits for its answer then."""
        while self._unseen:
            event = self._unseen.popleft()
            for responder in self.readings.of(event):
                for intention in responder.decide(event, self._world):
                    self._emit(intention, event.ref, responder.name)
        if self._untaken is not None:
            raise self._left(f"no executor takes {self._untaken}")
        return bool(self.pending)

    def new(self) -> list[Request]:
        """The requests that came up since this was asked last."""
        found = self._new.copy()
        self._new.clear()
        for request in found if self._replaying else ():
            if request.ref.seq not in self._begun:
                request.held = asyncio.Event()
                self._held.add(request.ref)
        return found

    def begun(self, request: Request) -> bool:
        """Whether something was done for a request, now or in the recording."""
        return request.begun or request.ref.seq in self._begun

    def let_go(self) -> None:
        """Where only such requests are left as the recorded loop had left before it began with them, begin with them now: that
        is the divergence."""
        if self._held and self.pending.keys() - self._arrived.keys() == self._held:
            for ref in self._held:
                held = self.pending[ref].held
                assert held is not None
                held.set()
            self._held.clear()

    def next(self) -> Request:
        """The request that is done next, where one is done after another."""
        return next(iter(self.pending.values()))

    def arrive(self, request: Request, answer: Answer | BaseException) -> None:
        """Take in what a request came to. What makes the run fail is raised when the log has nothing more to give."""
        if isinstance(answer, ReplayError):
            raise answer
        if isinstance(answer, BaseException):
            self._fatal = self._fatal or answer
        else:
            self._arrived[request.ref] = answer

    def ready(self) -> tuple[Request, Answer] | None:
        """The request whose answer is given to the responders next, with the answer, once it is there.

        As long as the log says which that was, it is that one; then the first that came.
        """
        log = self._log
        told = [(log[ref.seq].seq, ref) for ref in self.pending if ref.seq in log] if log else []
        if not told and self._fatal is not None:
            raise self._fatal
        ref = min(told)[1] if told else next(iter(self._arrived), None)
        return None if ref not in self._arrived else (self.pending[ref], self._arrived.pop(ref))

    # -- what happens ------------------------------------------------------------------------------------------------------

    def _emit(self, intention: Intention, event: Ref | None, by: str) -> None:
        """Write an intention down; what is about the world alone happens with that."""
        if not isinstance(intention, Intention):
            raise IntentionError(
                f"{intention!r:.80} is no intention", next_action="make one with `ask`, `call`, `create` or `patch`"
            )
        cause = intention.cause or event
        if intention.kind == "object.created":
            self._happened(self._world.create(intention.name, intention.data, cause=cause))
        elif intention.kind == "object.patched":
            self._happened(self._world.patch(intention.name, intention.data, cause=cause))
        elif intention.kind in ANSWERS:
            self._ask(intention, cause, by)
        else:
            raise IntentionError(f"{intention.kind!r} is no kind of intention")

    def _ask(self, intention: Intention, cause: Ref | None, by: str) -> None:
        if intention.object is not None:
            self._world.needs(intention.object, f"the {intention.kind} of {by}")
        intention = intention.alone()  # what is done is what is written down
        kind, name, object = intention.kind, intention.name, intention.object
        ref = self._world.ledger.ask(by, kind, name, intention.data, object, cause)
        request = self.pending[ref] = Request(ref, intention, self._executor_of(intention), by)
        self._new.append(request)
        if request.executor is None and self._untaken is None:
            self._untaken = request

    def _executor_of(self, intention: Intention) -> Executor | None:
        return next((executor for executor in self._executors if executor.takes(intention)), None)

    def deliver(self, request: Request, answer: Answer) -> None:
        """Give an answer to the responders; what failed and no responder responds to is raised."""
        intention, error = request.intention, answer.error
        kind = (ANSWERS if error is None else FAILURES)[intention.kind]
        data, info = dict(answer.data), {"exchange": answer.exchange or None, "cost_usd": answer.data.get("cost_usd")}
        recorded = self._log.get(request.ref.seq)
        if recorded is not None and "cost_usd" in data:  # as it was priced then
            data["cost_usd"] = recorded.info.get("cost_usd")
        told = "answered" if error is None else "failed"
        ref = self._world.ledger.write(
            "decision", kind, kind, input=request.ref.as_dict(), output=told, cause=request.ref,
            info={key: value for key, value in info.items() if value is not None},
        )  # fmt: skip
        del self.pending[request.ref]
        event = Event(kind, ref, request.ref, data, intention.object, intention, answer.replayed, error)
        self._happened(event)
        if error is not None and not self.readings.has(event):
            raise error

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        self._unseen.append(event)
        if len(self._events) > self._max_events:
            raise IntentionError(
                f"more than {self._max_events} events, and no end",
                next_action="see which responders answer one another, or raise max_events",
            )

    # -- the end -----------------------------------------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened, in order."""
        return tuple(self._events)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """A block that no request leaves unanswered without a word, and in which what responders put off is held back, too."""
        scope = here()
        told = [] if scope is None else gate.undone.setdefault(scope.session, [])
        told.append(self._undone)
        try:
            with self._world.looping(), guard.Watch() if self.readings and here() is not None else nullcontext():
                yield
        except BaseException as error:
            if self.pending and not isinstance(error, PendingRequestsError | ReplayError):
                said = f"left without an answer: {self._names()}"
                error.add_note(said)
                _remark(said)
            raise
        finally:
            told.remove(self._undone)

    def _undone(self) -> str | None:
        """What the run says where it ends while the loop is still running."""
        return (
            f"the run ended while a loop was running; left without an answer: {self._names()}" if self.pending else None
        )

    def _left(self, why: str) -> PendingRequestsError:
        about = [
            {**request.about(), "reason": "no executor" if request.executor is None else "not answered yet"}
            for request in self.pending.values()
        ]
        scope = here()
        return PendingRequestsError(
            f"{why}; without an answer: {self._names()}",
            run_id=None if scope is None else scope.session.run_id,
            pending=about,
            next_action="give the loop an executor that takes it, or correct the name; its executors take: "
            + ("; ".join(executor.takings() for executor in self._executors) or "nothing, there are none"),
        )

    def _names(self) -> str:
        return ", ".join(map(str, self.pending.values()))


def _remark(sentence: str) -> None:
    """The run says so at its end; the exception is loud enough for now."""
    scope = here()
    remark = None if scope is None else getattr(scope.session, "remark", None)
    if remark is not None:
        remark(sentence)
