"""One agent asked once: the same step as a traced tool, so that contracts, budgets, retries and the log hold for it, too."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .._capture import callers
from .._capture.contracted import Done, Invocation, came_to, settle, settle_async
from .._capture.decorators import traced, traced_tool
from .._capture.notes import agent as acting
from .._capture.wrapper import captured_of
from .._engine.contract import ExecutionContract, impossible, side_effect_class
from .._engine.effects import Below, OpenCall, innermost
from .._engine.gate import here
from .._engine.step import Request, Spec
from ..errors import BudgetExceededError, ContractViolationError, RecordedError, RegistryError
from ..failures import StructuredFailure, classify
from .envelope import IntentEnvelope
from .registry import BaseAgent
from .result import AgentResult

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["Attempt", "Terms", "spec_of"]

#: What an attempt may come to. The rest is an interruption, or a replay that differs.
_FAILURES: Final = (Exception, BudgetExceededError)
#: What a function may come to beside: nobody can end it as one does a generator, so it is the function that says so.
_OF_FUNCTIONS: Final = (*_FAILURES, GeneratorExit)

#: What a handler may return by mistake, beside what can be awaited: something that has yet to be gone through.
_UNFINISHED: Final = (GeneratorType, AsyncGeneratorType)

#: The attempt that is running. Its step has the payload as its input; the handler gets the whole envelope from here.
_running: Final[ContextVar[Attempt]] = ContextVar("tracekit.attempt")


#: What the beginning of a step came to: an answer, a coroutine, or a failure.
Begun: TypeAlias = "tuple[Any, BaseException | None]"


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
        "below",
        "called",
        "counted",
        "envelope",
        "error",
        "failure",
        "final",
        "finished",
        "followed",
        "index",
        "metered",
        "open",
        "payload",
        "run_id",
        "stuck",
        "terms",
        "under_way",
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
        #: Whether somebody may stand in for it where it fails.
        self.followed = False
        #: Whether what it costs is counted in a budget of the request, where its agent has no class.
        self.metered = False
        #: Whether its step says that nothing may follow it: it may take effect yet.
        self.final = False
        #: Whether its step was to be undone, and that failed.
        self.stuck = False
        #: Whether its thread has begun and not ended.
        self.under_way = False
        #: Whether what happens below it is counted, since somebody may stand in; and what that came to.
        self.counted = False
        self.open: OpenCall | None = None
        self.below = Below()

    def make(self) -> None:
        """Ask the agent and wait for it."""
        with self._asked():
            self.under_way = True
            try:
                made, error = self._begin("coroutine" if self.agent.asynchronous else "function")
                if error is not None:
                    self._failed(error)
                else:
                    self._answered(asyncio.run(made) if inspect.iscoroutine(made) else made)
            except _FAILURES as error:
                self._failed(error)
            finally:
                self.under_way = False

    async def make_async(self, *, beside: bool = False, pool: Executor | None = None) -> None:
        """The same without blocking the loop; a handler that is no coroutine does, unless it is asked ``beside`` others.

        Then it has a thread of ``pool``, or of the loop's own.
        """
        with self._asked():
            try:
                if self.agent.asynchronous:
                    made, error = self._begin("coroutine")
                else:
                    made, error = await self._in_thread(pool) if beside else self._begin("function")
                if error is not None:
                    self._failed(error)
                else:
                    self._answered(await made if inspect.iscoroutine(made) else made)
            except _FAILURES as error:
                self._failed(error)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        token = _running.set(self)
        if self.counted:
            self.open = OpenCall(innermost())
        try:
            with nullcontext() if self.open is None else self.open.entered():
                yield
        finally:
            _running.reset(token)

    async def _in_thread(self, pool: Executor | None) -> Begun:
        return await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, self._apart)

    def _apart(self) -> Begun:
        """In a thread beside others; what comes of it counts when the task goes on with it."""
        self.under_way = True
        try:
            return self._begin("function")
        finally:
            self.under_way = False

    def _begin(self, shape: str) -> Begun:
        """The coroutine of the step, where that is its shape, or what the handler returned is one; else the answer, or the failure.

        What a function raises is handed on like an answer: no future takes its ``StopIteration``.
        """
        try:
            return self._call(shape), None
        except _OF_FUNCTIONS as error:
            return None, error

    def _answered(self, payload: Any) -> None:
        self.payload, self.finished = payload, True

    def _call(self, shape: str) -> Any:
        """The step, begun."""
        tool: Any = _call(self.agent, self.terms, shape)
        payload = self.envelope.payload
        if self.metered and self.terms.side_effect is None:
            self._spend(payload)
        captured = captured_of(tool)
        if captured is None or (captured.terms is None and not (self.followed and self.terms.side_effect)):
            return tool(payload)
        call = Invocation(captured, tool.__wrapped__, None, {"payload": payload}, (payload,), {}, here())
        call.followed = self.followed
        return self._settled(call) if captured.shape == "coroutine" else self._came_to(settle(call))

    async def _settled(self, call: Invocation) -> Any:
        return self._came_to(await settle_async(call))

    def _came_to(self, done: Done) -> Any:
        self.final, self.stuck = "final" in done.about, done.stuck
        self.below = Below(done.about.get("irreversible"))
        return came_to(done)

    def _spend(self, payload: Any) -> None:
        """What an agent without a class costs, which is no call of its own: refused in the place of its step."""
        scope = here()
        if scope is None or scope.spending is None:
            return
        session: Any = scope.session
        try:
            scope.spending.charge(self.agent.units(payload))
        except (BudgetExceededError, ContractViolationError) as error:
            if isinstance(error, BudgetExceededError):
                session.overspent(error)
            raise session.refuse(scope, Request(Spec("span", self.agent.name), {"payload": payload}), error) from None

    def ask(self) -> Any:
        """Call the handler: from within the step. A coroutine, which is to be awaited there, where it returned one."""
        self.called = True
        made = self.agent.ask(self.envelope)
        waits = type(made) is CoroutineType or (self.agent.asynchronous and inspect.isawaitable(made))
        return self._awaited(made) if waits else self._whole(made)

    async def _awaited(self, made: Any) -> Any:
        return self._whole(await made)

    def end(self) -> None:
        """It is over: what happened below it decides on what follows."""
        if self.open is not None:
            below = self.open.end()
            self.below = Below(below.irreversible or self.below.irreversible, below.in_doubt)

    def _whole(self, answer: Any) -> Any:
        """``answer``, unless it is only the beginning of one."""
        if not isinstance(answer, _UNFINISHED) and not inspect.isawaitable(answer):
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
        if self.agent.asynchronous and _is_exit(error):
            raise error
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


def _is_exit(error: BaseException) -> bool:
    """Whether it stands for what ended a coroutine, which no log brings back."""
    return isinstance(error, RecordedError) and getattr(error, "type_name", None) == "builtins:GeneratorExit"


def spec_of(agent: BaseAgent) -> Spec:
    """The step of an agent as it registered."""
    side_effect = agent.side_effect or ("reversible" if "compensate" in agent.options else None)
    terms = Terms(agent, None, side_effect)
    captured = captured_of(_call(agent, terms, "coroutine" if agent.asynchronous else "function"))
    return Spec("tool", agent.name, side_effect=side_effect) if captured is None else captured.spec


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
    except TypeError as error:  # the terms of a route, for a function that can't keep them
        return _refused(agent, terms, impossible(agent.name, "timeout_ms", str(error)), shape)


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
            made = _running.get().ask()
            return await made if type(made) is CoroutineType else made

    return body


def _refused(agent: BaseAgent, terms: Terms, error: ContractViolationError, shape: str) -> Callable[[Any], Any]:
    spec = Spec("tool", agent.name, side_effect=terms.side_effect)

    def refuse(payload: Any) -> Any:
        scope = here()
        request = Request(spec, {"payload": payload})
        raise error.fresh() if scope is None else scope.session.refuse(scope, request, error)

    async def refuse_async(payload: Any) -> Any:
        refuse(payload)

    return refuse_async if shape == "coroutine" else refuse
