"""Routing: one request to the agents that handle it, everything that decides on the trace.

What to do next is one generator (:meth:`Course.steps`); ``route`` and ``route_async`` only make the attempts that it asks for, and
wait for them or await them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from .._engine.contract import ExecutionContract, SideEffectClass
from .._engine.gate import here
from .._engine.step import Spec
from ..errors import RegistryError
from .attempt import Attempt, Terms
from .course import Course
from .envelope import IntentEnvelope
from .ledger import trace_of
from .registry import AgentRegistry, class_of, contract_of
from .result import IntentResponse

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["IntentRouter"]


class IntentRouter:
    """Routes envelopes to the agents of ``registry``.

    The order is the registry's (local ones first, the lower priority number, the name), so equal requests to equal registries go the
    same way. What an agent raises is in the response, not raised; see :meth:`IntentResponse.unwrap`.
    """

    def __init__(self, registry: AgentRegistry) -> None:
        if not isinstance(registry, AgentRegistry):
            raise RegistryError(f"a router routes to the agents of an AgentRegistry, not of {registry!r:.80}")
        self.registry: Final = registry

    def route(
        self,
        envelope: IntentEnvelope | Mapping[str, Any],
        *,
        budget_limit: float | None = None,
        default_contract: ExecutionContract | Mapping[str, Any] | None = None,
        default_side_effect: SideEffectClass | str | None = None,
    ) -> IntentResponse:
        """Ask the agents, and return what they came to.

        ``budget_limit`` is what all attempts together may cost, in cost units. The defaults hold for agents that were registered
        without a contract or a class of their own. In a run the whole execution is on the trace; in its replay it is answered from there.
        Agents that are coroutine functions are run in an event loop of their own: in a running one, await :meth:`route_async`.
        """
        course = self._course(envelope, budget_limit, default_contract, default_side_effect)
        course.needs_no_loop()
        steps = course.steps()
        with course.spending():
            try:
                while True:
                    _make(next(steps), steps)
            except StopIteration as end:
                response: IntentResponse = end.value
        return response

    async def route_async(
        self,
        envelope: IntentEnvelope | Mapping[str, Any],
        *,
        budget_limit: float | None = None,
        default_contract: ExecutionContract | Mapping[str, Any] | None = None,
        default_side_effect: SideEffectClass | str | None = None,
    ) -> IntentResponse:
        """:meth:`route` for coroutines. An agent that is a plain function runs in the loop, or in a thread where several run at once."""
        course = self._course(envelope, budget_limit, default_contract, default_side_effect)
        steps = course.steps()
        with course.spending():
            try:
                while True:
                    await _make_async(next(steps), steps)
            except StopIteration as end:
                response: IntentResponse = end.value
        return response

    def tracekit_specs(self) -> Iterator[Spec]:
        """The steps of its agents, for whoever undoes what they did."""
        return self.registry.tracekit_specs()

    def _course(
        self, envelope: IntentEnvelope | Mapping[str, Any], budget_limit: float | None, contract: Any, side_effect: Any
    ) -> Course:
        asked = envelope if isinstance(envelope, IntentEnvelope) else IntentEnvelope.from_dict(envelope)
        default, word = contract_of(contract, "the route"), class_of(side_effect)
        return Course(asked, self.registry, budget_limit, lambda agent: Terms(agent, default, word))


Steps = Generator[list[Attempt], None, IntentResponse]


def _make(attempts: list[Attempt], steps: Steps) -> None:
    try:
        if len(attempts) == 1:
            attempts[0].make()
        else:
            _make_at_once(attempts)
    except BaseException as error:  # no failure of an agent: an interruption, or a replay that differs
        steps.throw(error)
        raise


def _make_at_once(attempts: list[Attempt]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(len(attempts))
    try:
        made = [pool.submit(attempt.make) for attempt in attempts]
        pool.shutdown(wait=True)
    except BaseException:  # Ctrl-C: nobody waits for the threads any longer
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    for one in made:
        one.result()


async def _make_async(attempts: list[Attempt], steps: Steps) -> None:
    try:
        if len(attempts) == 1:
            await attempts[0].make_async()
        else:
            await _make_at_once_async(attempts)
    except BaseException as error:
        steps.throw(error)
        raise


async def _make_at_once_async(attempts: list[Attempt]) -> None:
    pool = _pool(sum(not attempt.agent.asynchronous for attempt in attempts))
    tasks = [asyncio.ensure_future(attempt.make_async(beside=True, pool=pool)) for attempt in attempts]
    try:
        # One that cancels itself is no reason to cut the others off; what ends the program is.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in sorted(tasks, key=asyncio.Task.cancelled):
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if pool is not None:
            pool.shutdown(wait=False)


def _pool(threads: int) -> Executor | None:
    """A pool where the log answers: the one of the loop may have fewer threads here than where it was recorded."""
    scope = here()
    if not threads or scope is None or trace_of(scope.session) is None:
        return None
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads)
