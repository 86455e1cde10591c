"""The loop in which intentions become events: responders decide, executors do, the world is what the log says.

::

    world = World()
    loop = Loop([ask_for_summary, note_down], [LLMExecutor(client)], world=world)

    with record("summaries") as run:
        loop.run(create("page-1", {"url": url, "status": "new"}))

    with replay(run):                       # the same code: no model is asked, the same world
        ...

Every intention is an entry of its own, written before anything is done; what an executor does is a step inside it; giving the answer
to the responders is an entry, too, and so the order in which answers came is that of the log, in a replay as well. A loop ends when
nothing is pending. A request that nobody can answer, or that is left without an answer, is an error that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..errors import BudgetExceededError, IntentionError, RunStateError
from .agenda import Agenda
from .executors import Executor
from .intentions import Event, Intention
from .requests import Answer, Request
from .responders import Responder
from .world import World

__all__ = ["Loop", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a loop came to: the world, its hash, and every event in order."""

    world: World
    hash: str
    events: tuple[Event, ...]

    @property
    def answers(self) -> tuple[Event, ...]:
        """What models and tools answered, in the order in which it was given to the responders."""
        return tuple(event for event in self.events if event.request is not None)

    @property
    def replayed(self) -> int:
        """How many of the answers came from the log."""
        return sum(event.replayed for event in self.answers)

    @property
    def cost_usd(self) -> float:
        """What the models cost now, as far as that is known: nothing for what the log answered."""
        return round(sum(event.cost_usd or 0.0 for event in self.answers), 9)


class Loop:
    """Runs responders and executors on a world until nothing is pending.

    An event goes to the responders in the order given, a request to the first executor that takes it. After ``max_events`` it stops
    with an error: responders that answer one another would go on for ever. An answer that no responder reads is an error at the end,
    unless there are no responders at all, or ``unread="ok"`` says that the program reads ``outcome.answers``.
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
        for given, kind, word in ((self.responders, Responder, "responder"), (self.executors, Executor, "executor")):
            wrong = next((one for one in given if not isinstance(one, kind)), None)
            if wrong is not None:
                raise IntentionError(
                    f"{wrong!r:.80} is no {word}", next_action=f"make one with `{kind.__name__}`, or its decorator"
                )

    def run(self, *intentions: Intention) -> Outcome:
        """Do what is intended, and what responders intend on it. Without async executors one thing after another.

        Raises what a responder raises; what an executor raises, where no responder responds to ``"llm.error"`` or ``"tool.error"``;
        ``PendingRequestsError``; ``UnreadEventsError``; ``IntentionError`` for an intention that can't be.
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

    async def run_async(self, *intentions: Intention) -> Outcome:
        """The same with every pending request on its way at once; their answers are given to the responders as they come, one by one.

        Where it fails, what has begun is waited for; where it is cancelled, it is cancelled too.
        """
        agenda = Agenda(self.world, self.responders, self.executors, self.max_events)
        tasks: dict[asyncio.Task[None], Request] = {}
        arrived: asyncio.Queue[tuple[Request, Answer | BaseException]] = asyncio.Queue()
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
                await _wound_up(agenda, tasks)
                raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _outcome(self, agenda: Agenda) -> Outcome:
        outcome = Outcome(self.world, self.world.end(), agenda.events)
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


async def _wound_up(agenda: Agenda, tasks: dict[asyncio.Task[None], Request]) -> None:
    """What has begun is paid for: its answer comes on the log, and a replay has it there. The rest never begins."""
    begun = [task for task, request in tasks.items() if agenda.begun(request)]
    for task in tasks.keys() - begun:
        task.cancel()
    if begun:
        await asyncio.wait(begun)


async def _made(request: Request, arrived: asyncio.Queue[tuple[Request, Answer | BaseException]]) -> None:
    try:
        arrived.put_nowait((request, await request.make_async()))
    except BaseException as error:  # whoever waits for it must learn of it
        arrived.put_nowait((request, error))
