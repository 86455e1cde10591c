"""Handlers of work that comes from outside, and a replay that drives them without whatever brought it.

::

    @on_task("worker")
    def handle(task: Message) -> dict:
        return find(task.payload)

    answer = handle(extract(request.headers, body))         # in the server: received, done, answered

    with replay(run):
        drive(handle)                                        # no server: each recorded task, in recorded order

Each task runs in a line of execution (a lane) of its own, counted by handler as tasks come, whatever thread or task of whatever server
calls it; so a replay needs none of them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, ParamSpec, TypeVar

from .._canonical import from_json
from .._capture.notes import agent, named
from .._engine.gate import here, owner
from .._engine.index import Index
from .._engine.lanes import NOBODY, Lane, started
from .._engine.recording import ROOT
from .._engine.schedule import Schedule
from .._engine.scope import Scope, current, enter
from .._journal.reader import Trace
from ..errors import ReplayError, RunStateError
from .messages import OUTSIDE, Message, origin_of, receive_task, respond

__all__ = ["Handler", "drive", "drive_async", "on_task"]

P = ParamSpec("P")
R = TypeVar("R")


#: The handlers of this process: a replayed one gives them what the recorded one got.
registered: Final[dict[str, Handler[Any]]] = {}


class Handler(Generic[R]):
    """A function that does tasks for an agent. Call it with a message; it returns the response, a message too.

    ``None`` from the function is an answer like any other. What it raises goes to the caller, and no response is recorded.
    """

    def __init__(self, function: Callable[[Message], R], name: str) -> None:
        self.function: Final = function
        self.name: Final = name
        functools.update_wrapper(self, function)

    @property
    def lane(self) -> str:
        """The name of the lanes that its tasks run in."""
        return f"task:{self.name}"

    def __call__(self, message: Message) -> Any:
        scope = here()
        if scope is None or scope.live:  # what happens inside a tool is not run in a replay: it belongs to the tool
            return self._run(message, None)
        return self._run(
            message, Scope(scope.session, started(scope.lane.root, self.lane), ROOT, scope.agent, call=scope.call)
        )

    def _run(self, message: Message, scope: Scope | None) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return self._done_async(message, scope)
        with _within(scope), agent(self.name):
            task = receive_task(message, handler=self.name)
            return respond(task, self.function(task))

    async def _done_async(self, message: Message, scope: Scope | None) -> Message:
        with _within(scope), agent(self.name):
            task = receive_task(message, handler=self.name)
            return respond(task, await self.function(task))  # type: ignore[misc]


def on_task(name: str) -> Callable[[Callable[[Message], R]], Handler[R]]:
    """Let a function, sync or async, do the tasks of agent ``name``: it gets a message and returns the payload of the answer."""
    name = named(name, "the agent of a handler")

    def decorate(function: Callable[[Message], R]) -> Handler[R]:
        handler = registered[name] = Handler(function, name)
        return handler

    return decorate


@contextmanager
def _within(scope: Scope | None) -> Iterator[None]:
    """Inside a lane of its own, which ends with the block."""
    if scope is None:
        yield
        return
    scope.lane.owner = owner()
    token = enter(scope)
    try:
        yield
    finally:
        current.reset(token)
        scope.lane.owner = NOBODY


# -- replay --------------------------------------------------------------------------------------------------------------


def drive(*handlers: Handler[Any]) -> list[Message | Exception]:
    """Inside ``with replay(run):``, give every task that the recorded run got to its handler again, all at once, as they came.

    Returns what each came to, in recorded order: the response, or the exception that the handler raised then too. Raises what makes the
    replay fail, and ``RunStateError`` outside a replay, or where a task's handler is not among ``handlers``.
    """
    work = _work(handlers)
    found: list[Message | Exception] = [RunStateError("not done")] * len(work)
    failures: list[BaseException] = []

    def do(place: int, handler: Handler[Any], message: Message, scope: Scope) -> None:
        try:
            done = handler._run(message, scope)
            found[place] = asyncio.run(done) if inspect.iscoroutine(done) else done
        except Exception as error:
            found[place] = error
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=do, args=(place, *task), name=f"tracekit-task-{place}")
        for place, task in enumerate(work)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


async def drive_async(*handlers: Handler[Any]) -> list[Message | Exception]:
    """As :func:`drive`, in the running loop, for async handlers."""
    work = _work(handlers)
    results = await asyncio.gather(
        *(handler._run(message, lane) for handler, message, lane in work), return_exceptions=True
    )
    found: list[Message | Exception] = []
    for result in results:
        if isinstance(result, ReplayError) or (isinstance(result, BaseException) and not isinstance(result, Exception)):
            raise result
        found.append(result)
    return found


def _work(handlers: tuple[Handler[Any], ...]) -> list[tuple[Handler[Any], Message, Scope]]:
    """Handler, message and lane of each task that the recorded run got, in recorded order."""
    scope = here()
    session: Any = None if scope is None else scope.session
    session = getattr(session, "replay", session)
    session = getattr(session, "log", session)  # of a resumed run
    trace = getattr(session, "trace", None)
    if scope is None or not isinstance(trace, Trace):
        raise RunStateError(
            "drive() gives the tasks of a recorded run to their handlers: it works inside a replay, or a resumed run",
            next_action="call it inside `with replay(run):` or `with resume(run):`",
        )
    known = {handler.name: handler for handler in handlers}
    found = []
    for name, n, message in _received(trace):
        handler = known.get(name)
        if handler is None:
            raise RunStateError(
                f"the recorded run got tasks for {name!r}, and no such handler was given",
                run_id=trace.status.run_id,
                next_action=f"name the handler that @on_task({name!r}) made in drive(…)",
            )
        lane = Lane(handler.lane, n, scope.lane.root)
        scope.lane.root.counted(handler.lane, n)
        found.append((handler, message, Scope(scope.session, lane, ROOT, scope.agent)))
    _pass_over(session.index, session.schedule, scope.lane, {handler.lane for handler in known.values()})
    return found


def _pass_over(index: Index, schedule: Schedule, here: Lane, tasks: set[str]) -> None:
    """Whatever brought the tasks then does not now: nothing waits for a pool to begin a call, for a future, a queue or a timer of its.

    These are what happened in lanes that have no step, and in this one since its last step.
    """
    busy = {lane for lane, _ in index.intentions}
    ours: set[int] = set()
    for key, lane in index.lanes.items():  # a lane comes after its parent
        if key.parent in ours or key.name in tasks:
            ours.add(lane)
    for (lane, _, after, _), seq in index.timers.items():
        if lane not in ours and (lane not in busy if lane != here.id else after == here.last):
            schedule.skip(seq)


def has_tasks(trace: Trace) -> bool:
    """Whether the recorded run got a task for a handler."""
    return next(_received(trace), None) is not None


def _received(trace: Trace) -> Iterator[tuple[str, int, Message]]:
    """Handler's name, number of the lane, and message, of each task that a handler got."""
    lanes: dict[int, tuple[str, int]] = {}
    for entry in trace.entries():
        if entry["type"] == "lane":
            about = entry["input"]
            lanes[about["id"]] = about["name"], about["n"]
        elif entry["type"] == "task_received":
            meta = entry.get("meta") or {}
            name = meta.get("handler")
            lane, n = lanes.get(entry["lane"], ("", 0))
            if not isinstance(name, str) or lane != f"task:{name}":
                continue
            sender = None if entry["name"] == OUTSIDE else entry["name"]
            causes = entry.get("cause") or [None]
            origin = None if causes[0] is None else origin_of(causes[0])
            payload = from_json(trace.expand(entry["output"], before=entry["seq"]))
            task = meta.get("task")
            yield name, n, Message("task_sent", sender, name, payload, task, origin)
