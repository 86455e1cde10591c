"""The loop that passes requests to executors and their answers to responders until nothing is left to do."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ..errors import (
    BudgetExceededError,
    IntentionError,
    PendingRequestsError,
    ReplayError,
    RunStateError,
)
from ..integration import Unfinished, cost_usd, entered, here, watching
from .executors import Executor
from .intentions import ANSWERS, FAILURES, Event, Intention, Ref, deciding
from .responders import Readings, Responder
from .world import Past, World, past_of

__all__ = ["Agenda", "IntentionRequest", "Loop", "LoopResult", "RequestResult"]

# -- requests ----------------------------------------------------------------------------------------------------------
#
# One request of a loop: its executor, its answer, and the step in which it was executed.


class RequestResult(NamedTuple):
    """The result of a request: ``data``, or ``error``. ``exchange`` is the step that executed it, 0 if there is none."""

    data: Mapping[str, Any]
    error: BaseException | None = None
    exchange: int = 0
    replayed: bool = False


class IntentionRequest:
    """A request for a model or tool call, to be executed by ``executor``; ``None``: no executor accepts it."""

    def __init__(self, ref: Ref, intention: Intention, executor: Executor | None, by: str) -> None:
        self.ref: Final = ref
        self.intention: Final = intention
        self.executor: Final = executor
        #: The responder that made the request.
        self.by: Final = by
        #: Set once it may start, if the recorded loop had not started it yet.
        self.held: asyncio.Event | None = None
        self.begun = False

    def about(self) -> dict[str, Any]:
        """Return its facts, for lists of pending requests."""
        one = self.intention
        return {"seq": self.ref.seq, "kind": one.kind, "name": one.name, "object": one.object, "by": self.by}

    @property
    def step_name(self) -> str:
        """The name of the step that executes it."""
        return self.intention.name if self.executor is None else self.executor.name_of(self.intention)

    def __str__(self) -> str:
        one = self.intention
        about = "" if one.object is None else f" for object {one.object!r}"
        return f"{one.kind} {one.name!r}{about} (entry {self.ref.seq}, from {self.by})"

    def make(self) -> RequestResult:
        """Execute it. An error that makes a run or a replay fail is raised; any other exception becomes the answer."""
        executor = self._executor()
        with self._place() as place:
            try:
                return place.answer(executor.perform(self.intention.alone()))
            except IntentionError:
                raise
            except Exception as error:
                return place.failed(error)

    async def make_async(self) -> RequestResult:
        """Execute it concurrently with others; a synchronous executor runs in a thread."""
        if self.held is not None:
            await self.held.wait()
        self.begun = True
        executor = self._executor()
        if not executor.asynchronous_for(self.intention):
            return await asyncio.to_thread(self.make)
        with self._place() as place:
            try:
                return place.answer(await executor.perform(self.intention.alone()))
            except IntentionError:
                raise
            except Exception as error:
                return place.failed(error)

    def _executor(self) -> Executor:
        assert self.executor is not None
        return self.executor

    @contextmanager
    def _place(self) -> Iterator[_Place]:
        """The block inside the request's entry."""
        scope = here()
        place = _Place(self)
        if scope is None:
            yield place
            return
        with entered(scope.inside(self.ref.seq, live=False)):
            yield place


class _Place:
    """The execution of one request: finds the step that it made, and whether the log answered it."""

    def __init__(self, request: IntentionRequest) -> None:
        self._request: Final = request
        scope = here()
        self._scope: Final = scope
        self._before: Final = 0 if scope is None else scope.lane.last

    def answer(self, data: Any) -> RequestResult:
        request = self._request
        if inspect.isawaitable(data) or not isinstance(data, Mapping):
            raise IntentionError(
                f"the executor of {request} answered {data!r:.80}, which is not an event's data",
                next_action="`perform` returns a mapping; a coroutine of one where `asynchronous` is true",
            )
        exchange = self._exchange()
        if self._scope is not None and not exchange:
            raise IntentionError(
                f"{request} was done, and nothing of that is on the log: a replay would do it again",
                run_id=self._scope.session.run_id,
                next_action="call `tracekit.instrument()`, or `wrap` the client; an executor of your own calls traced tools",
            )
        return RequestResult(self._priced(data), None, exchange, self._replayed(exchange))

    def failed(self, error: Exception) -> RequestResult:
        exchange = self._exchange()
        description = {"type": f"{type(error).__module__}:{type(error).__qualname__}", "text": str(error)}
        return RequestResult(description, error, exchange, self._replayed(exchange))

    def _exchange(self) -> int:
        """Return the last step inside it; 0 if there is none."""
        scope = self._scope
        return 0 if scope is None or scope.lane.last == self._before else scope.lane.last

    def _replayed(self, exchange: int) -> bool:
        """Return whether the log answered: the step is recorded, and not live in a partial replay."""
        scope = self._scope
        if scope is None or not exchange:
            return False
        family = "llm" if self._request.intention.kind == "llm.request" else "tool"
        return scope.session.log.answered(exchange, family, self._request.step_name)

    def _priced(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the price to the data of a model's answer if it is known: by the budget's prices, if there is a budget."""
        usage, model = data.get("usage"), data.get("model")
        if self._request.intention.kind != "llm.request" or data.get("cost_usd") is not None or not (usage and model):
            return data
        cost = cost_usd(model, self._request.intention.name, usage)
        return data if cost is None else {**data, "cost_usd": cost}


# -- agenda ------------------------------------------------------------------------------------------------------------
#
# The state of a running loop: events that no responder has seen yet, and requests without an answer.

#: The source of intentions that the program itself passes to the loop.
PROGRAM: Final = "(program)"


class Agenda:
    """The state of one run of a loop: its unprocessed events, and its requests without an answer."""

    def __init__(
        self, world: World, responders: Sequence[Responder[Any]], executors: Sequence[Executor], max_events: int
    ) -> None:
        if deciding.get() is not None:
            raise IntentionError(
                f"responder {deciding.get()!r} ran a loop directly", next_action="return the intentions"
            )
        self._world: Final = world
        self._executors: Final = executors
        self._max_events: Final = max_events
        self._unseen: Final[deque[Event]] = deque()
        self._events: Final[list[Event]] = []
        #: Which responders read which events, and events that none reads.
        self.readings: Final = Readings(world, responders)
        self.pending: Final[dict[Ref, IntentionRequest]] = {}
        self._new: Final[list[IntentionRequest]] = []
        #: The first request that no executor accepts.
        self._untaken: IntentionRequest | None = None
        self._arrived: Final[dict[Ref, RequestResult]] = {}
        self._fatal: BaseException | None = None
        scope = here()
        past = Past({}, frozenset()) if scope is None else past_of(scope.session)
        self._log: Final = past.deliveries
        #: The requests that were started in the recording.
        self._begun: Final = past.begun
        #: Whether nothing new may be started: a trace answers, and the run is not resumed.
        self._replaying: Final = (
            scope is not None
            and not scope.session.recording
            and not scope.session.log.live
            and scope.session.log.trace is not None
        )
        self._held: Final[set[Ref]] = set()

    # -- scheduling ---------------------------------------------------------------------------------------------------

    def begin(self, intentions: Iterable[Intention]) -> None:
        for intention in intentions:
            self._emit(intention, None, PROGRAM)

    def goes_on(self) -> bool:
        """Pass new events to the responders; return whether a request is pending afterwards."""
        while self._unseen:
            event = self._unseen.popleft()
            for responder in self.readings.of(event):
                for intention in responder.decide(event, self._world):
                    self._emit(intention, event.ref, responder.name)
        if self._untaken is not None:
            raise self._left(f"no executor takes {self._untaken}")
        return bool(self.pending)

    def new(self) -> list[IntentionRequest]:
        """Return the new requests since the last call."""
        found = self._new.copy()
        self._new.clear()
        for request in found if self._replaying else ():
            if request.ref.seq not in self._begun:
                request.held = asyncio.Event()
                self._held.add(request.ref)
        return found

    def begun(self, request: IntentionRequest) -> bool:
        """Return whether a request was started, now or in the recording."""
        return request.begun or request.ref.seq in self._begun

    def let_go(self) -> None:
        """Start the requests that the recorded loop never started, once only those are left: that is the divergence."""
        if self._held and self.pending.keys() - self._arrived.keys() == self._held:
            for ref in self._held:
                held = self.pending[ref].held
                assert held is not None
                held.set()
            self._held.clear()

    def next(self) -> IntentionRequest:
        """Return the request to execute next, if they are executed one after another."""
        return next(iter(self.pending.values()))

    def arrive(self, request: IntentionRequest, answer: RequestResult | BaseException) -> None:
        """Accept a request's result. An error that ends the run is raised once the log has no further answers."""
        if isinstance(answer, ReplayError):
            raise answer
        if isinstance(answer, BaseException):
            self._fatal = self._fatal or answer
        else:
            self._arrived[request.ref] = answer

    def ready(self) -> tuple[IntentionRequest, RequestResult] | None:
        """Return the next request whose answer goes to the responders, with the answer, or ``None`` if it has not
        arrived.

        In a replay that is the recorded next one; beyond the log, the first that arrived.
        """
        log = self._log
        recorded = [(log[ref.seq].seq, ref) for ref in self.pending if ref.seq in log] if log else []
        if not recorded and self._fatal is not None:
            raise self._fatal
        ref = min(recorded)[1] if recorded else next(iter(self._arrived), None)
        return None if ref not in self._arrived else (self.pending[ref], self._arrived.pop(ref))

    # -- events ------------------------------------------------------------------------------------------------------

    def _emit(self, intention: Intention, event: Ref | None, by: str) -> None:
        """Record an intention; if it only changes the world, it is thereby executed."""
        if not isinstance(intention, Intention):
            raise IntentionError(
                f"{intention!r:.80} is not an intention", next_action="make one with `ask`, `call`, `create` or `patch`"
            )
        cause = intention.cause or event
        if intention.kind == "object.created":
            self._happened(self._world.create(intention.name, intention.data, cause=cause))
        elif intention.kind == "object.patched":
            self._happened(self._world.patch(intention.name, intention.data, cause=cause))
        elif intention.kind in ANSWERS:
            self._ask(intention, cause, by)
        else:
            raise IntentionError(
                f"{intention.kind!r} is not a kind of intention",
                next_action="make intentions with call(), ask(), create() and patch() of tracekit.agents",
            )

    def _ask(self, intention: Intention, cause: Ref | None, by: str) -> None:
        if intention.object is not None:
            self._world.needs(intention.object, f"the {intention.kind} of {by}")
        intention = intention.alone()  # execute exactly what is recorded
        kind, name, object = intention.kind, intention.name, intention.object
        ref = self._world.ledger.ask(by, kind, name, intention.data, object, cause)
        request = self.pending[ref] = IntentionRequest(ref, intention, self._executor_of(intention), by)
        self._new.append(request)
        if request.executor is None and self._untaken is None:
            self._untaken = request

    def _executor_of(self, intention: Intention) -> Executor | None:
        return next((executor for executor in self._executors if executor.takes(intention)), None)

    def deliver(self, request: IntentionRequest, answer: RequestResult) -> None:
        """Pass an answer to the responders; an error that none of them reads is raised."""
        intention, error = request.intention, answer.error
        kind = (ANSWERS if error is None else FAILURES)[intention.kind]
        data, info = dict(answer.data), {"exchange": answer.exchange or None, "cost_usd": answer.data.get("cost_usd")}
        recorded = self._log.get(request.ref.seq)
        if recorded is not None and "cost_usd" in data:  # with the price at the time of the recording
            data["cost_usd"] = recorded.info.get("cost_usd")
        result = "answered" if error is None else "failed"
        ref = self._world.ledger.write(
            "decision", kind, kind, input=request.ref.as_dict(), output=result, cause=request.ref,
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
        """All events, in order."""
        return tuple(self._events)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """A block whose end reports unanswered requests, and in which deferred work of responders is refused, too."""
        scope = here()
        sentences = [] if scope is None else scope.session.state.extras.of(Unfinished).says
        sentences.append(self._undone)
        try:
            with self._world.looping(), watching() if self.readings and here() is not None else nullcontext():
                yield
        except BaseException as error:
            if self.pending and not isinstance(error, PendingRequestsError | ReplayError):
                sentence = f"left without an answer: {self._names()}"
                error.add_note(sentence)
                _warn_quietly(sentence)
            raise
        finally:
            sentences.remove(self._undone)

    def _undone(self) -> str | None:
        """Return the run's warning if it ends while the loop is still running."""
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


def _warn_quietly(sentence: str) -> None:
    """Add a warning to the run's end; the exception is reported already."""
    scope = here()
    if scope is not None and scope.session.state.live:
        scope.session.report.warn(sentence, quiet=True)


# -- loop --------------------------------------------------------------------------------------------------------------
#
# The loop: responders decide, executors execute, and the log determines the world.
#
# ::
#
#     world = World()
#     loop = Loop([ask_for_summary, note_down], [LLMExecutor(client)], world=world)
#
#     with record("summaries") as run:
#         loop.run(create("page-1", {"url": url, "status": "new"}))
#
#     with replay(run):                       # the same code: no model is called, the same world
#         ...
#
# Every intention is an entry of its own, written before it is executed; its execution is a step inside it. Passing the
# answer to the responders is an entry, too, so that answers have the same order in a replay. A loop ends when nothing
# is pending. A request that no executor accepts, or that remains without an answer, is an error that names it.


@dataclass(frozen=True, slots=True)
class LoopResult:
    """The result of a loop: the world, its hash, and every event in order."""

    world: World
    hash: str
    events: tuple[Event, ...]

    @property
    def answers(self) -> tuple[Event, ...]:
        """The answers of models and tools, in the order in which the responders received them."""
        return tuple(event for event in self.events if event.request is not None)

    @property
    def replayed(self) -> int:
        """The number of answers that came from the log."""
        return sum(event.replayed for event in self.answers)

    @property
    def cost_usd(self) -> float:
        """The known cost of the live model calls; answers from the log cost nothing."""
        return round(sum(event.cost_usd or 0.0 for event in self.answers), 9)


class Loop:
    """Runs responders and executors on a world until nothing is pending.

    An event goes to the responders in the given order, a request to the first executor that accepts it. After
    ``max_events`` the loop stops with an error: responders that answer one another would never end. An answer that no
    responder reads is an error at the end, unless there are no responders at all, or ``unread="ok"`` says that the
    program reads ``outcome.answers``.

    Each intention is in the log before it is executed, and each event names its cause. In a replay the log answers: no
    model and no tool is called.

    Raises ``PendingRequestsError`` for a request that no executor accepts, ``UnreadEventsError`` for an answer that no
    responder reads, ``UnknownObjectError``, ``DanglingCauseError``, ``ContractViolationError`` for a responder that has
    effects itself, and what an executor raised if no responder handles ``llm.error`` or ``tool.error``.
    """

    def __init__(
        self,
        responders: Iterable[Responder[Any]] = (),
        executors: Iterable[Executor] = (),
        *,
        world: World | None = None,
        max_events: int = 10_000,
        unread: Literal["error", "ok"] = "error",
    ) -> None:
        self.world: Final = World() if world is None else world
        self.responders: Final = tuple(responders)
        self.executors: Final = tuple(executors)
        self.max_events: Final = max_events
        self.unread: Final = unread
        if unread not in ("error", "ok"):
            raise IntentionError(f"unread={unread!r} is not known", next_action="use unread='error' or unread='ok'")
        for objects, kind, word in ((self.responders, Responder, "responder"), (self.executors, Executor, "executor")):
            wrong = next((one for one in objects if not isinstance(one, kind)), None)
            if wrong is not None:
                raise IntentionError(
                    f"{wrong!r:.80} is no {word}", next_action=f"make one with `{kind.__name__}`, or its decorator"
                )

    def run(self, *intentions: Intention) -> LoopResult:
        """Execute these intentions and those that responders return, one after another unless executors are
        asynchronous.

        Raises what a responder raises; what an executor raises, if no responder handles ``"llm.error"`` or
        ``"tool.error"``; ``PendingRequestsError``; ``UnreadEventsError``; ``IntentionError`` for an invalid intention.
        """
        self._may_run()
        if any(executor.asynchronous for executor in self.executors):
            return asyncio.run(self.run_async(*intentions))
        agenda = Agenda(self.world, self.responders, self.executors, self.max_events)
        with agenda.ending():
            agenda.begin(intentions)
            while agenda.goes_on():
                request = agenda.next()
                agenda.deliver(request, request.make())
            return self._outcome(agenda)

    async def run_async(self, *intentions: Intention) -> LoopResult:
        """Do the same as ``run``, with all pending requests at once; the responders receive the answers one by one as
        they arrive.

        On a failure, started requests are awaited; on a cancellation, they are cancelled, too.
        """
        agenda = Agenda(self.world, self.responders, self.executors, self.max_events)
        tasks: dict[asyncio.Task[None], IntentionRequest] = {}
        arrived: asyncio.Queue[tuple[IntentionRequest, RequestResult | BaseException]] = asyncio.Queue()
        with agenda.ending():
            try:
                agenda.begin(intentions)
                while agenda.goes_on():
                    for request in agenda.new():
                        tasks[asyncio.ensure_future(_made(request, arrived))] = request
                    while not (ready := agenda.ready()):
                        agenda.let_go()
                        agenda.arrive(*await arrived.get())
                    agenda.deliver(*ready)
                return self._outcome(agenda)
            except (Exception, BudgetExceededError):
                await _finish_begun(agenda, tasks)
                raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _outcome(self, agenda: Agenda) -> LoopResult:
        outcome = LoopResult(self.world, self.world.end(), agenda.events)
        if self.unread == "error":
            agenda.readings.check()
        return outcome

    def _may_run(self) -> None:
        waiting = next((executor for executor in self.executors if executor.asynchronous), None)
        if waiting is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RunStateError(
            f"a {type(waiting).__name__} of the loop is asynchronous, and `run` was called in a running event loop",
            next_action="`await loop.run_async(…)`",
        )


async def _finish_begun(agenda: Agenda, tasks: dict[asyncio.Task[None], IntentionRequest]) -> None:
    """Wait for the requests that have started, so that their answers are recorded; the others never start."""
    begun = [task for task, request in tasks.items() if agenda.begun(request)]
    for task in tasks.keys() - begun:
        task.cancel()
    if begun:
        await asyncio.wait(begun)


async def _made(
    request: IntentionRequest, arrived: asyncio.Queue[tuple[IntentionRequest, RequestResult | BaseException]]
) -> None:
    try:
        arrived.put_nowait((request, await request.make_async()))
    except BaseException as error:  # raised by the waiting loop
        arrived.put_nowait((request, error))
