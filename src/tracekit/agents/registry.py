"""Agents by the intents that they handle, and one attempt of an agent at a request."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import RLock
from types import AsyncGeneratorType, CoroutineType, GeneratorType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tracekit import ExecutionContract, SideEffectClass, traced, traced_tool
from tracekit import agent as acting

from ..errors import BudgetExceededError, ContractViolationError, RecordedError, RegistryError
from ..failures import StructuredFailure, classify
from ..integration import (
    Below,
    Captured,
    ReplaceableCall,
    Request,
    Spec,
    Spending,
    captured_of,
    here,
    own_code,
    signature_of,
)
from .envelope import IntentEnvelope, IntentRef
from .result import AgentResult

if TYPE_CHECKING:
    from concurrent.futures import Executor


__all__ = ["AgentCall", "AgentRegistry", "AgentTerms", "BaseAgent", "Together", "class_of", "contract_of", "spec_of"]

# -- registry ----------------------------------------------------------------------------------------------------------
#
# Agents by the intents that they handle, in a deterministic order.

F = TypeVar("F", bound=Callable[..., Any])

#: The default priority of an agent; a lower number comes first.
_PRIORITY: Final = 100
#: An intent by its name (all versions), or by name and version.
Key = tuple[str, str | None]


class BaseAgent:
    """An agent that handles intents: wrap an existing handler, or derive from this class and write ``handle``.

    A handler takes one argument, the envelope; or, if its parameter is called ``payload``, the payload. It may be a
    coroutine function. ``intent`` is a name, an ``IntentRef`` for one version only, or several of them. ``node_id``
    names the remote node of the agent; an agent without one is local. ``side_effect`` is the class of *everything* that
    the handler does: such an agent is answered from the log in a replay. Without it the handler also runs in a replay,
    and the steps in it are answered. ``contract``, ``idempotency_key``, ``compensate`` and ``cost_units`` are as for
    ``traced_tool``, functions taking the ``payload``; ``version`` and ``identity`` are recorded and compared in a
    replay. A derived class may define each of these as an attribute of that name; arguments take precedence.
    """

    side_effect: str | None = None
    contract: ExecutionContract | None = None
    priority: int = _PRIORITY
    node_id: str | None = None
    version: str | None = None
    identity: Mapping[str, Any] | None = None

    def __init__(
        self,
        handler: Callable[..., Any] | None = None,
        *,
        intent: str | IntentRef | Iterable[str | IntentRef] | None = None,
        name: str | None = None,
        priority: int | None = None,
        node_id: str | None = None,
        side_effect: SideEffectClass | str | None = None,
        contract: ExecutionContract | Mapping[str, Any] | None = None,
        version: str | None = None,
        identity: Mapping[str, Any] | None = None,
        idempotency_key: Callable[..., Any] | None = None,
        compensate: Callable[..., Any] | None = None,
        cost_units: float | Callable[..., float] | None = None,
    ) -> None:
        self.handler: Final[Callable[..., Any]] = self.handle if handler is None else handler
        if inspect.isclass(handler) or not (handler is None or callable(handler)):
            raise RegistryError(f"an agent's handler must be a function or another callable, not {handler!r}")
        if handler is None and getattr(type(self), "handle", None) is BaseAgent.handle:
            raise RegistryError(
                "an agent without a handler, and without a `handle` of its own",
                next_action="give it a function, or derive from BaseAgent and write `handle(self, envelope)`",
            )
        self.name: Final = _name(self._option("name", name), handler, self)
        _no_generator(self.name, self.handler)
        self.intents: Final[tuple[Key, ...]] = _keys(self.name, self._option("intent", intent))
        self.priority = _checked(self.name, "priority", self._option("priority", priority), int, "a whole number")
        self.node_id = _checked(self.name, "node_id", self._option("node_id", node_id), str, "a text")
        self.side_effect = class_of(self._option("side_effect", side_effect))
        self.contract = contract_of(self._option("contract", contract), f"agent {self.name!r}")
        declared = _checked(self.name, "version", self._option("version", version), (str, int, float), "a text")
        self.version = None if declared is None else str(declared)
        self.identity = _checked(self.name, "identity", self._option("identity", identity), Mapping, "a mapping")
        #: Its options besides the class that a replay compares.
        self.declared: Final[dict[str, Any]] = _set(version=self.version, identity=self.identity)
        #: The other options of its step.
        self.options: Final[dict[str, Any]] = _set(
            idempotency_key=self._option("idempotency_key", idempotency_key),
            compensate=self._option("compensate", compensate),
            cost_units=self._option("cost_units", cost_units),
        )
        #: The handler as a step, for each set of terms.
        self.calls: Final[dict[Any, Callable[[Any], Any]]] = {}
        #: Whether the handler is to be awaited.
        self.asynchronous: Final = _asynchronous(self.handler)
        self._wants_payload: Final = _wants_payload(self.name, self.handler)
        self._agreed: Final = self._terms() if self.contract or self.options else None

    def _option(self, option: str, argument: Any) -> Any:
        """Return the argument, or else the class attribute of that name."""
        return getattr(self, option, None) if argument is None else argument

    def _terms(self) -> Captured | None:
        """Check its contract and options at the declaration, like a tool's."""

        def function(payload: Any) -> None: ...
        async def coroutine(payload: Any) -> None: ...

        # A class supplied by a call of route is not known here; this is the strictest one.
        side_effect = SideEffectClass.of(self.side_effect or "reversible")
        decorate = traced_tool(side_effect=side_effect, name=self.name, contract=self.contract, **self.options)
        return captured_of(decorate(coroutine if self.asynchronous else function))

    def units(self, payload: Any) -> float:
        """Return the cost units of one call."""
        return 1 if self._agreed is None else self._agreed.units(payload)

    def declared_units(self, payload: Any) -> float:
        """Return the cost units of one call, 0 if they can't be computed: that error is reported at the call."""
        try:
            return self.units(payload)
        except ContractViolationError:
            return 0

    def handle(self, envelope: IntentEnvelope) -> Any:
        """Handle a request, in a class of your own; it may be a coroutine."""
        raise NotImplementedError(f"agent {self.name!r} has neither a handler nor a `handle` of its own")

    def ask(self, envelope: IntentEnvelope) -> Any:
        """Call the handler with the argument that it takes."""
        return self.handler(envelope.payload if self._wants_payload else envelope)

    @property
    def returns(self) -> Any:
        """The return annotation of the handler, or ``None``."""
        function = inspect.unwrap(self.handler)
        try:
            return typing.get_type_hints(function).get("return")
        except Exception:  # a name that only the type checker knows, or something without annotations
            return None

    @property
    def order(self) -> tuple[int, int, str]:
        """The sort key: local agents first, then by priority, then by name."""
        return (0 if self.node_id is None else 1), self.priority, self.name

    def about(self) -> dict[str, Any]:
        """Return its facts as JSON values."""
        return {
            "name": self.name,
            "intents": [name if version is None else f"{name}@{version}" for name, version in self.intents],
            "priority": self.priority,
            "node_id": self.node_id,
            "side_effect": self.side_effect,
        }

    def __repr__(self) -> str:
        return f"<agent {self.name}>"


class AgentRegistry:
    """The agents that an ``IntentRouter`` may call. Names are unique.

    ``@registry.agent(intent=…)`` adds a function, ``register`` an agent, ``for_intent`` finds those that handle an
    intent.
    """

    def __init__(self, agents: Iterable[BaseAgent] = ()) -> None:
        self._agents: Final[dict[str, BaseAgent]] = {}
        self._found: Final[dict[tuple[str, str], tuple[BaseAgent, ...]]] = {}
        for agent in agents:
            self.register(agent)

    def register(self, agent: BaseAgent) -> BaseAgent:
        """Add ``agent``, and return it. Raises ``RegistryError`` if its name is taken."""
        if not isinstance(agent, BaseAgent):
            raise RegistryError(
                f"{agent!r:.80} is not an agent",
                next_action="wrap a handler: BaseAgent(handler, intent='…'), or @registry.agent",
            )
        if agent.name in self._agents:
            raise RegistryError(
                f"there is an agent {agent.name!r} already",
                agent=agent.name,
                next_action="name one of them with name='…'",
            )
        self._agents[agent.name] = agent
        self._found.clear()
        return agent

    def agent(
        self,
        *,
        intent: str | IntentRef | Iterable[str | IntentRef],
        priority: int | None = None,
        node_id: str | None = None,
        name: str | None = None,
        side_effect: SideEffectClass | str | None = None,
        contract: ExecutionContract | Mapping[str, Any] | None = None,
        version: str | None = None,
        identity: Mapping[str, Any] | None = None,
        idempotency_key: Callable[..., Any] | None = None,
        compensate: Callable[..., Any] | None = None,
        cost_units: float | Callable[..., float] | None = None,
    ) -> Callable[[F], F]:
        """Register a function as an agent's handler, and return it unchanged; see ``BaseAgent``."""

        def decorate(handler: F) -> F:
            self.register(
                BaseAgent(
                    handler, intent=intent, name=name, priority=priority, node_id=node_id, side_effect=side_effect,
                    contract=contract, version=version, identity=identity, idempotency_key=idempotency_key, compensate=compensate,
                    cost_units=cost_units,
                )
            )  # fmt: skip
            return handler

        return decorate

    def tracekit_specs(self) -> Iterator[Spec]:
        """Yield the specs of its agents' steps, for recovery: of the class that each declares, or that its
        ``compensate`` requires."""

        for agent in self:
            yield spec_of(agent)

    def for_intent(self, intent: IntentRef | str) -> tuple[BaseAgent, ...]:
        """Return the agents that handle ``intent``, in the order in which they are called."""
        if isinstance(intent, str):
            intent = IntentRef(intent)
        if not isinstance(intent, IntentRef):
            raise RegistryError(f"an intent must be a name or an IntentRef, not {intent!r:.80}")
        key = intent.name, intent.version
        found = self._found.get(key)
        if found is None:
            keys = {key, (intent.name, None)}
            able = [agent for agent in self._agents.values() if not keys.isdisjoint(agent.intents)]
            found = self._found[key] = tuple(sorted(able, key=lambda agent: agent.order))
        return found

    def get(self, name: str) -> BaseAgent | None:
        """Return the agent of that name, or ``None``."""
        return self._agents.get(name)

    def __iter__(self) -> Iterator[BaseAgent]:
        return iter(sorted(self._agents.values(), key=lambda agent: agent.order))

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, name: object) -> bool:
        return name in self._agents

    def __repr__(self) -> str:
        return f"<AgentRegistry of {len(self)}>"


def class_of(side_effect: object) -> str | None:
    """Return the name of a side-effect class, from any accepted form; ``None`` for none."""
    return None if side_effect is None else SideEffectClass.of(side_effect).value


def contract_of(contract: ExecutionContract | Mapping[str, Any] | None, whose: str) -> ExecutionContract | None:
    """Return a contract, from any accepted form; ``None`` for none, or one without any field set."""
    if not isinstance(contract, (ExecutionContract, Mapping, NoneType)):
        raise RegistryError(f"the contract of {whose} must be an ExecutionContract or a mapping, not {contract!r:.80}")
    if isinstance(contract, Mapping):
        unknown = sorted(map(str, set(contract) - set(ExecutionContract.__dataclass_fields__)))
        if unknown:
            raise RegistryError(
                f"the contract of {whose} has an unknown field {unknown[0]!r}",
                next_action=f"the fields are {', '.join(ExecutionContract.__dataclass_fields__)}",
            )
        contract = ExecutionContract(**contract)
    return contract or None


def _checked(name: str, option: str, value: Any, kind: Any, what: str) -> Any:
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise RegistryError(f"the {option} of agent {name!r} is {what}, not {value!r:.80}")


def _set(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _name(name: str | None, handler: Any, agent: BaseAgent) -> str:
    if name is None:
        name = getattr(handler, "__name__", None) or type(agent if handler is None else handler).__name__
    if not isinstance(name, str) or not name:
        raise RegistryError(f"an agent's name must be a non-empty string, not {name!r}")
    return name


def _keys(name: str, intent: Any) -> tuple[Key, ...]:
    declared: Any = () if intent is None else (intent,) if isinstance(intent, (str, IntentRef)) else intent
    several = [*declared] if isinstance(declared, Iterable) else [declared]
    if not all(isinstance(one, (str, IntentRef)) for one in several):
        raise RegistryError(
            f"agent {name!r} handles {intent!r:.80}, which is not an intent",
            next_action="say its name, an IntentRef, or a list of these: intent='…'",
        )
    keys = tuple((one, None) if isinstance(one, str) else (one.name, one.version) for one in several)
    if not keys or not all(key[0] for key in keys):
        raise RegistryError(f"agent {name!r} handles no intent", next_action="name at least one: intent='…'")
    return keys


def _no_generator(name: str, handler: Any) -> None:
    found = next((shape for one in (handler, inspect.unwrap(handler)) if (shape := _generator(one))), None)
    if found is not None:
        raise RegistryError(
            f"the handler of agent {name!r} is a{'n' if found[0] == 'a' else ''} {found}: an agent has one answer, not pieces of one",
            agent=name,
            next_action="return the complete answer (a list, a text) from a function or a coroutine function",
        )


def _generator(handler: Any) -> str | None:
    for one in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004 - the method itself
        if inspect.isasyncgenfunction(one):
            return "async generator"
        if inspect.isgeneratorfunction(one):
            return "generator"
    return None


def _asynchronous(handler: Any) -> bool:
    handler = inspect.unwrap(handler)
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - it may be a coroutine function
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _wants_payload(name: str, handler: Any) -> bool:
    try:
        parameters = list(signature_of(handler).parameters.values())
    except (TypeError, ValueError):  # a callable without a readable signature
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    first = parameters[0] if parameters else None
    if first is None or len(needed) > 1 or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise RegistryError(
            f"the handler of agent {name!r} takes {len(needed)} arguments",
            next_action="let it take one: the envelope, or the payload in a parameter called `payload`",
        )
    return first.name == "payload"


# -- attempt -----------------------------------------------------------------------------------------------------------
#
# One call of one agent. It is a step like a traced tool's, so that contracts, budgets, retries and the log apply to it.

#: The exceptions that are a failed attempt. All others are an interruption or a divergence.
_FAILURES: Final = (Exception, BudgetExceededError)
#: More exceptions that are a failure of a plain function: nothing can close it like a generator.
_OF_FUNCTIONS: Final = (*_FAILURES, GeneratorExit)

#: Types that a handler may return by mistake, besides awaitables: iterators that are not consumed yet.
_UNFINISHED: Final = (GeneratorType, AsyncGeneratorType)

#: The running attempt. Its step has the payload as its input; the handler gets the whole envelope from here.
_running: Final[ContextVar[AgentCall]] = ContextVar("tracekit.attempt")


#: The result of starting a step: an answer, a coroutine, or a failure.
Begun: TypeAlias = "tuple[Any, BaseException | None]"


class AgentTerms:
    """The side-effect class and contract of one call of an agent: its own, else those of the route."""

    __slots__ = ("contract", "side_effect")

    def __init__(self, agent: BaseAgent, contract: ExecutionContract | None, side_effect: str | None) -> None:
        self.side_effect: Final = side_effect if agent.side_effect is None else agent.side_effect
        self.contract: Final = contract if agent.contract is None else agent.contract

    @property
    def key(self) -> tuple[str | None, ExecutionContract | None]:
        return self.side_effect, self.contract


class Together:
    """Agents that are called either all or not at all: not at all if the budget does not allow all."""

    def __init__(self, agents: Sequence[tuple[BaseAgent, AgentTerms]]) -> None:
        self._agents: Final = agents
        self._lock: Final = RLock()
        self._asked = False
        self._refusal: BudgetExceededError | None = None

    def refusal(self, spending: Spending, payload: Any, *, metered: bool) -> BudgetExceededError | None:
        """Return the refusal of all, if any, before the first is called. ``metered``: agents without a class count in
        the request's budget."""
        with self._lock:
            if not self._asked:
                self._asked = True
                try:
                    self._look(spending, payload, metered)
                except BudgetExceededError as error:
                    self._refusal = error
        if self._refusal is None:
            return None
        copy = self._refusal.fresh()
        assert isinstance(copy, BudgetExceededError)
        return copy

    def _look(self, spending: Spending, payload: Any, metered: bool) -> None:
        calls = [one.declared_units(payload) for one, terms in self._agents if terms.side_effect is not None]
        rest = [one.declared_units(payload) for one, terms in self._agents if terms.side_effect is None]
        spending.afford({"tool_calls": len(calls), "cost_units": sum(calls)}, sum(rest) if metered else 0.0)


_NOTHING: Final = Below()


class AgentCall:
    """One call of one agent, and its result."""

    __slots__ = (
        "agent",
        "below",
        "called",
        "counted",
        "envelope",
        "error",
        "failure",
        "finished",
        "followed",
        "index",
        "metered",
        "payload",
        "run_id",
        "step",
        "terms",
        "together",
        "under_way",
    )

    def __init__(
        self, agent: BaseAgent, index: int, terms: AgentTerms, envelope: IntentEnvelope, run_id: str | None
    ) -> None:
        self.agent: Final = agent
        self.index: Final = index
        self.terms: Final = terms
        self.envelope: Final = envelope
        self.run_id: Final = run_id
        self.payload: Any = None
        self.error: BaseException | None = None
        self.failure: StructuredFailure | None = None
        #: Whether it has a result, and was not interrupted.
        self.finished = False
        #: Whether the handler was really called; false if the log answered, or the call was refused.
        self.called = False
        #: Whether another agent may be its fallback.
        self.followed = False
        #: Whether its cost counts in the request's budget, if its agent has no class.
        self.metered = False
        #: The agents that are called with it, or none of them.
        self.together: Together | None = None
        #: Whether its thread is running.
        self.under_way = False
        #: Whether the effects below it are counted, because of a possible fallback; and the count.
        self.counted = False
        #: Its step, once the agent is called.
        self.step: ReplaceableCall | None = None
        #: What has happened in it that a fallback can't undo.
        self.below = _NOTHING

    def make(self) -> None:
        """Call the agent and wait for it."""
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
        """Call the agent and await it. A plain function blocks the loop, unless it is called ``beside`` others.

        Then it runs in a thread of ``pool``, or of the loop's own pool.
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
        self.step = ReplaceableCall(followed=self.followed, counted=self.counted)
        try:
            with self.step.entered():
                yield
        finally:
            _running.reset(token)

    async def _in_thread(self, pool: Executor | None) -> Begun:
        return await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, self._apart)

    def _apart(self) -> Begun:
        """Begin the step in a thread; its result counts when the task continues with it."""
        self.under_way = True
        try:
            return self._begin("function")
        finally:
            self.under_way = False

    def _begin(self, shape: str) -> Begun:
        """Start the step: return its coroutine, if it or the handler's result is one; else the answer, or the failure.

        An exception is returned like an answer, since a future can't hold a ``StopIteration``.
        """
        try:
            return self._call(shape), None
        except _OF_FUNCTIONS as error:
            return None, error

    def _answered(self, payload: Any) -> None:
        self.payload, self.finished = payload, True

    def _call(self, shape: str) -> Any:
        """Call the step."""
        tool: Any = _call(self.agent, self.terms, shape)
        payload = self.envelope.payload
        if self.together is not None:
            self._afford(self.together, tool, payload)
        if self.metered and self.terms.side_effect is None:
            self._spend(payload)
        assert self.step is not None
        return self.step.call(tool, payload)

    def _afford(self, together: Together, tool: Any, payload: Any) -> None:
        """Refuse the step if the budget does not allow all agents of ``together``."""
        scope = here()
        if scope is None or scope.spending is None:
            return
        error = together.refusal(scope.spending, payload, metered=self.metered)
        if error is not None:
            session = scope.session
            captured = captured_of(tool)
            spec = Spec("span", self.agent.name) if captured is None else captured.spec
            raise session.refuse(scope, Request(spec, {"payload": payload}), error) from None

    def _spend(self, payload: Any) -> None:
        """Charge for an agent without a class, whose call is no step of its own; a refusal replaces the call."""
        scope = here()
        if scope is None or scope.spending is None:
            return
        session = scope.session
        try:
            scope.spending.charge(self.agent.units(payload))
        except (BudgetExceededError, ContractViolationError) as error:
            if isinstance(error, BudgetExceededError):
                raise session.refuse(
                    scope, Request(Spec("span", self.agent.name), {"payload": payload}), error
                ) from None

    def ask(self) -> Any:
        """Call the handler from within the step; return a coroutine for the step to await if the handler did."""
        self.called = True
        made = self.agent.ask(self.envelope)
        waits = type(made) is CoroutineType or (self.agent.asynchronous and inspect.isawaitable(made))
        return self._awaited(made) if waits else self._whole(made)

    async def _awaited(self, made: Any) -> Any:
        return self._whole(await made)

    def end(self) -> None:
        """End the attempt: the effects below it decide whether a fallback is allowed."""
        if self.step is not None:
            self.below = self.step.end(failed=self.failure is not None)

    @property
    def final(self) -> bool:
        """Whether its step forbids a fallback: it may still take effect."""
        return self.step is not None and self.step.final

    @property
    def stuck(self) -> bool:
        """Whether undoing its step failed."""
        return self.step is not None and self.step.stuck

    def _whole(self, answer: Any) -> Any:
        """Return ``answer``, or raise if it is an iterator or awaitable that is not complete."""
        if not isinstance(answer, _UNFINISHED) and not inspect.isawaitable(answer):
            return answer
        if isinstance(answer, (CoroutineType, GeneratorType)):
            answer.close()
        raise RegistryError(
            f"agent {self.agent.name!r} returned a {type(answer).__name__}, which is not an answer yet",
            agent=self.agent.name,
            run_id=self.run_id,
            next_action="return its result: `await` it, or make a list of its items",
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


def _call(agent: BaseAgent, terms: AgentTerms, shape: str) -> Callable[[Any], Any]:
    """Return the agent's handler as a step on these terms, cached."""
    key = *terms.key, shape
    found = agent.calls.get(key)
    if found is None:
        found = agent.calls[key] = _made(agent, terms, shape)
    return found


def _is_exit(error: BaseException) -> bool:
    """Return whether it stands for an exception that ended a coroutine and that no log can recreate."""
    return isinstance(error, RecordedError) and getattr(error, "type_name", None) == "builtins:GeneratorExit"


def spec_of(agent: BaseAgent) -> Spec:
    """Return the spec of an agent's step, on its own terms."""
    side_effect = agent.side_effect or ("reversible" if "compensate" in agent.options else None)
    terms = AgentTerms(agent, None, side_effect)
    captured = captured_of(_call(agent, terms, "coroutine" if agent.asynchronous else "function"))
    return Spec("tool", agent.name, side_effect=side_effect, mutates=()) if captured is None else captured.spec


def _made(agent: BaseAgent, terms: AgentTerms, shape: str) -> Callable[[Any], Any]:
    own_code(agent.handler)
    body = _coroutine(agent) if shape == "coroutine" else _function(agent)
    body.__annotations__ = {"return": agent.returns}
    body.__name__ = body.__qualname__ = agent.name
    try:
        made: Callable[[Any], Any] = _step(agent, terms)(body)
        return made
    except ContractViolationError as error:  # reported at each call, instead of the step
        return _refused(agent, terms, error, shape)
    except TypeError as error:  # the terms of a route that the function can't fulfil
        return _refused(agent, terms, _unkeepable(agent, error), shape)


def _step(agent: BaseAgent, terms: AgentTerms) -> Callable[[Any], Any]:
    if terms.side_effect is None:
        if terms.contract is not None:
            raise ContractViolationError(
                f"agent {agent.name!r} has a contract and no side-effect class: nothing says what may be repeated",
                next_action="declare side_effect= where the agent is registered, or default_side_effect= in the call of route",
            )
        return traced(agent.name)
    return traced_tool(
        side_effect=SideEffectClass.of(terms.side_effect),
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


def _unkeepable(agent: BaseAgent, error: TypeError) -> ContractViolationError:
    what = f"the contract of {agent.name!r} is not valid: {error}"
    return ContractViolationError(what, tool=agent.name, contract="timeout_ms", actual=None)


def _refused(agent: BaseAgent, terms: AgentTerms, error: ContractViolationError, shape: str) -> Callable[[Any], Any]:
    spec = Spec("tool", agent.name, side_effect=terms.side_effect, mutates=())

    def refuse(payload: Any) -> Any:
        scope = here()
        request = Request(spec, {"payload": payload})
        raise error.fresh() if scope is None else scope.session.refuse(scope, request, error)

    async def refuse_async(payload: Any) -> Any:
        refuse(payload)

    return refuse_async if shape == "coroutine" else refuse
