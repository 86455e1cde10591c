"""One agent asked once: the same step as a traced tool, so that contracts, budgets, retries and the log hold for it, too."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from .._capture import callers
from .._capture.decorators import traced, traced_tool
from .._capture.notes import agent as acting
from .._engine.contract import ExecutionContract, side_effect_class
from .._engine.gate import here
from .._engine.step import Spec
from ..errors import BudgetExceededError, ContractViolationError, RegistryError
from ..failures import StructuredFailure, classify
from .envelope import IntentEnvelope
from .inside import Place
from .registry import BaseAgent
from .result import AgentResult

__all__ = ["Attempt", "Terms"]

#: What an attempt may come to. The rest is an interruption, or a replay that differs.
_FAILURES: Final = (Exception, BudgetExceededError)

#: What a handler may return by mistake: something that has yet to be awaited or gone through.
_UNFINISHED: Final = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)

#: The attempt that is running. Its step has the payload as its input; the handler gets the whole envelope from here.
_running: Final[ContextVar[Attempt]] = ContextVar("tracekit.attempt")


class Terms:
    """On which terms an agent is asked: its own side-effect class and contract, else those of the route."""

    __slots__ = ("contract", "side_effect")

    def __init__(self, agent: BaseAgent, contract: ExecutionContract | None, side_effect: str | None) -> None:
        self.side_effect: Final = side_effect if agent.side_effect is None else agent.side_effect
        self.contract: Final = contract if agent.contract is None else agent.contract

    @property
    def key(self) -> tuple[str | None, ExecutionContract | None]:
        return self.side_effect, self.contract


class Attempt:
    """One agent that is asked, and what it comes to."""

    __slots__ = (
        "agent",
        "called",
        "envelope",
        "error",
        "failure",
        "finished",
        "index",
        "payload",
        "place",
        "run_id",
        "terms",
    )

    def __init__(
        self, agent: BaseAgent, index: int, terms: Terms, envelope: IntentEnvelope, run_id: str | None
    ) -> None:
        self.agent: Final = agent
        self.index: Final = index
        self.terms: Final = terms
        self.envelope: Final = envelope
        self.run_id: Final = run_id
        self.payload: Any = None
        self.error: BaseException | None = None
        self.failure: StructuredFailure | None = None
        #: Whether it came to something, and was not interrupted.
        self.finished = False
        #: Whether the handler was really called; not where the log answered, or something forbade it.
        self.called = False
        #: Where in the log it begins, for an agent without a class.
        self.place: Place | None = None

    def make(self) -> None:
        """Ask the agent and wait for it."""
        token = _running.set(self)
        try:
            made = self._call("coroutine" if self.agent.asynchronous else "function")
            self.payload = asyncio.run(made) if inspect.iscoroutine(made) else made
            self.finished = True
        except _FAILURES as error:
            self._failed(error)
        finally:
            _running.reset(token)

    async def make_async(self, *, beside: bool = False) -> None:
        """The same without blocking the loop; a handler that is no coroutine does, unless it is asked ``beside`` others."""
        token = _running.set(self)
        try:
            made = self._call("coroutine" if self.agent.asynchronous or beside else "function")
            self.payload = await made if inspect.iscoroutine(made) else made
            self.finished = True
        except _FAILURES as error:
            self._failed(error)
        finally:
            _running.reset(token)

    def _call(self, shape: str) -> Any:
        """The step, begun; a coroutine of it where that is its shape, or what the handler returned is one."""
        return _call(self.agent, self.terms, shape)(self.envelope.payload)

    def ask(self) -> Any:
        """Call the handler: from within the step. A coroutine, which is to be awaited there, where it returned one."""
        self.called = True
        made = self.agent.ask(self.envelope)
        waits = type(made) is CoroutineType or (self.agent.asynchronous and inspect.isawaitable(made))
        return self._awaited(made) if waits else self._whole(made)

    async def _awaited(self, made: Any) -> Any:
        return self._whole(await made)

    def _whole(self, answer: Any) -> Any:
        """``answer``, unless it is only the beginning of one."""
        if not isinstance(answer, _UNFINISHED):
            return answer
        if isinstance(answer, (CoroutineType, GeneratorType)):
            answer.close()
        raise RegistryError(
            f"agent {self.agent.name!r} returned a {type(answer).__name__}, which is no answer yet",
            agent=self.agent.name,
            run_id=self.run_id,
            next_action="return what becomes of it: `await` it, or make a list of its items",
        )

    def _failed(self, error: BaseException) -> None:
        self.error, self.finished = error, True
        name = self.agent.name
        side_effect = self.terms.side_effect if self.called else None
        self.failure = classify(error, side_effect=side_effect, run_id=self.run_id, name=name, agent=name)

    @property
    def status(self) -> str:
        return "success" if self.error is None else "error"

    def result(self) -> AgentResult:
        if self.failure is None:
            return AgentResult(agent=self.agent.name, status="success", payload=self.payload)
        return AgentResult(agent=self.agent.name, status="error", error=self.failure, exception=self.error)


# -- the step ------------------------------------------------------------------------------------------------------------------


def _call(agent: BaseAgent, terms: Terms, shape: str) -> Callable[[Any], Any]:
    """The agent's handler as a step on these terms; made once."""
    key = *terms.key, shape
    found = agent.calls.get(key)
    if found is None:
        found = agent.calls[key] = _made(agent, terms, shape)
    return found


def _made(agent: BaseAgent, terms: Terms, shape: str) -> Callable[[Any], Any]:
    code = getattr(inspect.unwrap(agent.handler), "__code__", None)
    if code is not None:  # what reads the clock in there is the program's own code
        callers.include(code.co_filename)
    body = _coroutine(agent) if shape == "coroutine" else _function(agent)
    body.__annotations__ = {"return": agent.returns}
    body.__name__ = body.__qualname__ = agent.name
    try:
        made: Callable[[Any], Any] = _step(agent, terms)(body)
        return made
    except ContractViolationError as error:  # nobody could keep it: told at each call, in the place of the step
        return _refused(agent, terms, error, shape)


def _step(agent: BaseAgent, terms: Terms) -> Callable[[Any], Any]:
    if terms.side_effect is None:
        if terms.contract is not None:
            raise ContractViolationError(
                f"agent {agent.name!r} has a contract and no side-effect class: nothing says what may be repeated",
                next_action="declare side_effect= where the agent is registered, or default_side_effect= in the call of route",
            )
        return traced(agent.name)
    return traced_tool(
        side_effect=side_effect_class(terms.side_effect),
        name=agent.name,
        version=agent.version,
        contract=terms.contract,
        **agent.options,
    )


def _function(agent: BaseAgent) -> Any:
    def body(payload: Any) -> Any:
        with acting(agent.name, agent.identity):
            return _running.get().ask()

    return body


def _coroutine(agent: BaseAgent) -> Any:
    async def body(payload: Any) -> Any:
        with acting(agent.name, agent.identity):
            attempt = _running.get()
            made = attempt.ask() if agent.asynchronous else await asyncio.to_thread(attempt.ask)
            return await made if type(made) is CoroutineType else made

    return body


def _refused(agent: BaseAgent, terms: Terms, error: ContractViolationError, shape: str) -> Callable[[Any], Any]:
    spec = Spec("tool", agent.name, side_effect=terms.side_effect)

    def refuse(payload: Any) -> Any:
        scope = here()
        raise error.fresh() if scope is None else scope.session.refuse(scope, spec, {"payload": payload}, error)

    async def refuse_async(payload: Any) -> Any:
        refuse(payload)

    return refuse_async if shape == "coroutine" else refuse
