"""Agents that are declared, and one attempt of an agent at an intent."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from threading import Lock
from types import AsyncGeneratorType, CoroutineType, GeneratorType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from .._capture import callers
from .._capture.calls import captured_of, shape_of
from .._capture.contracted import Done, Invocation, came_to, course, follow, follow_async
from .._capture.decorators import traced, traced_tool
from .._capture.notes import agent as acting
from .._policy.budget import overspent
from .._policy.contract import ExecutionContract, SideEffectClass, impossible, side_effect_class
from .._runtime.effects import Below, OpenCall, innermost
from .._runtime.session import here
from .._runtime.step import Request, Spec
from ..errors import BudgetExceededError, ContractViolationError, RecordedError, RegistryError
from ..failures import StructuredFailure, classify
from .envelope import IntentEnvelope, IntentRef
from .result import AgentResult

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .._capture.contracted import Terms as ToolTerms
    from .._policy.budget import Spending

__all__ = ["AgentRegistry", "Attempt", "BaseAgent", "Terms", "Together", "class_of", "contract_of", "spec_of"]

# -- registry ----------------------------------------------------------------------------------------------------------
#
# Who there is to ask: agents by the intents that they handle, in an order that never depends on chance.

F = TypeVar("F", bound=Callable[..., Any])

#: The priority of an agent that names none; a lower number comes first.
_PRIORITY: Final = 100
#: An intent that every version of a name falls under, by its name; or one version of it.
Key = tuple[str, str | None]


class BaseAgent:
    """Something that handles intents: wrap an existing handler, or derive from it and write ``handle``.

    A handler takes one argument, the envelope; or, where its parameter is called ``payload``, the payload. It may be a
    coroutine function. ``intent`` is a name, an ``IntentRef`` for one version only, or several of them. ``node_id`` says on which other
    node the agent lives; an agent without one is local. ``side_effect`` is the class of *all* that the handler does: such an agent is
    answered from the log in a replay. Without it the handler runs in a replay, too, and the steps in it are answered. ``contract``,
    ``idempotency_key``, ``compensate`` and ``cost_units`` are as for ``traced_tool``, functions taking the ``payload``; ``version`` and
    ``identity`` are recorded and compared in a replay. A derived class may say each of these in an attribute of its name; what is
    given counts more.
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
            raise RegistryError(f"an agent's handler is a function or another callable, not {handler!r}")
        if handler is None and getattr(type(self), "handle", None) is BaseAgent.handle:
            raise RegistryError(
                "an agent without a handler, and without a `handle` of its own",
                next_action="give it a function, or derive from BaseAgent and write `handle(self, envelope)`",
            )
        self.name: Final = _name(self._said("name", name), handler, self)
        _no_generator(self.name, self.handler)
        self.intents: Final[tuple[Key, ...]] = _keys(self.name, self._said("intent", intent))
        self.priority = _checked(self.name, "priority", self._said("priority", priority), int, "a whole number")
        self.node_id = _checked(self.name, "node_id", self._said("node_id", node_id), str, "a text")
        self.side_effect = class_of(self._said("side_effect", side_effect))
        self.contract = contract_of(self._said("contract", contract), f"agent {self.name!r}")
        said = _checked(self.name, "version", self._said("version", version), (str, int, float), "a text")
        self.version = None if said is None else str(said)
        self.identity = _checked(self.name, "identity", self._said("identity", identity), Mapping, "a mapping")
        #: What is said of it beside its class, to be compared in a replay.
        self.declared: Final[dict[str, Any]] = _set(version=self.version, identity=self.identity)
        #: What else its step is told.
        self.options: Final[dict[str, Any]] = _set(
            idempotency_key=self._said("idempotency_key", idempotency_key),
            compensate=self._said("compensate", compensate),
            cost_units=self._said("cost_units", cost_units),
        )
        #: The handler as a step, by the terms on which it is asked.
        self.calls: Final[dict[Any, Callable[[Any], Any]]] = {}
        #: Whether the handler is to be awaited.
        self.asynchronous: Final = _asynchronous(self.handler)
        self._wants_payload: Final = _wants_payload(self.name, self.handler)
        self._agreed: Final = self._terms() if self.contract or self.options else None

    def _said(self, option: str, given: Any) -> Any:
        """What was given, else what its class says in an attribute of that name."""
        return getattr(self, option, None) if given is None else given

    def _terms(self) -> ToolTerms:
        """What was agreed; refuses here what no request could keep, as where a tool is declared."""
        from .._capture.contracted import Terms as ToolTerms
        from .._capture.contracted import merged

        # A class that the call of route gives is not known here: this one has the most to say.
        side_effect = self.side_effect or "reversible"
        shape = "coroutine" if self.asynchronous else "function"
        return ToolTerms(
            self.name, lambda payload: payload, side_effect, merged(self.contract, {}), shape=shape, **self.options
        )

    def units(self, payload: Any) -> float:
        """What it costs to ask it."""
        cost = None if self._agreed is None else self._agreed.units({"payload": payload})
        return 1 if cost is None else cost

    def declared_units(self, payload: Any) -> float:
        """The same, and nothing where it can't be said: that is told when it is asked."""
        try:
            return self.units(payload)
        except ContractViolationError:
            return 0

    def handle(self, envelope: IntentEnvelope) -> Any:
        """What the agent does with a request, in a class of your own; it may be a coroutine."""
        raise NotImplementedError(f"agent {self.name!r} has neither a handler nor a `handle` of its own")

    def ask(self, envelope: IntentEnvelope) -> Any:
        """Call the handler with what it takes."""
        return self.handler(envelope.payload if self._wants_payload else envelope)

    @property
    def returns(self) -> Any:
        """What the handler says that it returns, or ``None``."""
        function = inspect.unwrap(self.handler)
        try:
            return typing.get_type_hints(function).get("return")
        except Exception:  # a name that only the type checker knows, or something without annotations
            return None

    @property
    def order(self) -> tuple[int, int, str]:
        """Local ones first, then the lower number, then the name."""
        return (0 if self.node_id is None else 1), self.priority, self.name

    def about(self) -> dict[str, Any]:
        """Its facts as JSON values."""
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
    """The agents that an :class:`IntentRouter` may ask. A name is given once."""

    def __init__(self, agents: Iterable[BaseAgent] = ()) -> None:
        self._agents: Final[dict[str, BaseAgent]] = {}
        self._found: Final[dict[tuple[str, str], tuple[BaseAgent, ...]]] = {}
        for agent in agents:
            self.register(agent)

    def register(self, agent: BaseAgent) -> BaseAgent:
        """Add ``agent``; ``RegistryError`` if there is one of its name."""
        if not isinstance(agent, BaseAgent):
            raise RegistryError(
                f"{agent!r:.80} is no agent",
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
        """Register a function as an agent's handler, and leave it as it is; see :class:`BaseAgent`."""

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
        """Its agents as steps, for whoever undoes what they did: by the class that each says, or that its ``compensate`` asks for."""

        for agent in self:
            yield spec_of(agent)

    def for_intent(self, intent: IntentRef | str) -> tuple[BaseAgent, ...]:
        """Those who handle ``intent``, in the order in which they are asked."""
        if isinstance(intent, str):
            intent = IntentRef(intent)
        if not isinstance(intent, IntentRef):
            raise RegistryError(f"an intent is a name or an IntentRef, not {intent!r:.80}")
        key = intent.name, intent.version
        found = self._found.get(key)
        if found is None:
            keys = {key, (intent.name, None)}
            able = [agent for agent in self._agents.values() if not keys.isdisjoint(agent.intents)]
            found = self._found[key] = tuple(sorted(able, key=lambda agent: agent.order))
        return found

    def get(self, name: str) -> BaseAgent | None:
        """The agent of that name, or ``None``."""
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
    """A side-effect class by its word, however it was given; ``None`` where none was."""
    return None if side_effect is None else side_effect_class(side_effect).value


def contract_of(contract: ExecutionContract | Mapping[str, Any] | None, whose: str) -> ExecutionContract | None:
    """A contract, however it was given; ``None`` where none was, or nothing is set in it."""
    if not isinstance(contract, (ExecutionContract, Mapping, NoneType)):
        raise RegistryError(f"the contract of {whose} is an ExecutionContract or a mapping, not {contract!r:.80}")
    if isinstance(contract, Mapping):
        unknown = sorted(map(str, set(contract) - set(ExecutionContract.__dataclass_fields__)))
        if unknown:
            raise RegistryError(
                f"the contract of {whose} has a field {unknown[0]!r}, and there is none",
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
        raise RegistryError(f"an agent's name is a text that is not empty, not {name!r}")
    return name


def _keys(name: str, intent: Any) -> tuple[Key, ...]:
    given: Any = () if intent is None else (intent,) if isinstance(intent, (str, IntentRef)) else intent
    several = [*given] if isinstance(given, Iterable) else [given]
    if not all(isinstance(one, (str, IntentRef)) for one in several):
        raise RegistryError(
            f"agent {name!r} handles {intent!r:.80}, which is no intent",
            next_action="say its name, an IntentRef, or a list of these: intent='…'",
        )
    keys = tuple((one, None) if isinstance(one, str) else (one.name, one.version) for one in several)
    if not keys or not all(key[0] for key in keys):
        raise RegistryError(f"agent {name!r} handles no intent", next_action="name at least one: intent='…'")
    return keys


def _no_generator(name: str, handler: Any) -> None:
    shapes = {shape_of(handler), shape_of(inspect.unwrap(handler))}
    found = next((shape for shape in shapes if "generator" in shape), None)
    if found is not None:
        raise RegistryError(
            f"the handler of agent {name!r} is a{'n' if found[0] == 'a' else ''} {found}: an agent has one answer, not pieces of one",
            agent=name,
            next_action="return the whole of it (a list, a text) from a function or a coroutine function",
        )


def _asynchronous(handler: Any) -> bool:
    handler = inspect.unwrap(handler)
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - it may be a coroutine function
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _wants_payload(name: str, handler: Any) -> bool:
    try:
        parameters = list(inspect.signature(handler).parameters.values())
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
# One agent asked once: the same step as a traced tool, so that contracts, budgets, retries and the log hold for it, too.

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


class Together:
    """Agents that are all asked, whatever comes of each: none of them is where not all can be afforded."""

    def __init__(self, agents: Sequence[tuple[BaseAgent, Terms]]) -> None:
        self._agents: Final = agents
        self._lock: Final = Lock()
        self._asked = False
        self._refusal: BudgetExceededError | None = None

    def refusal(self, spending: Spending, payload: Any, *, metered: bool) -> BudgetExceededError | None:
        """Why none is asked, found out before the first. ``metered``: agents without a class count in the request's own budget."""
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
        "together",
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
        #: Those that are asked with it, whatever comes of it.
        self.together: Together | None = None
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
        if self.together is not None:
            self._afford(self.together, tool, payload)
        if self.metered and self.terms.side_effect is None:
            self._spend(payload)
        captured = captured_of(tool)
        if captured is None or (captured.terms is None and not (self.followed and self.terms.side_effect)):
            return tool(payload)
        call = Invocation(captured, tool.__wrapped__, None, {"payload": payload}, (payload,), {}, here())
        call.followed = self.followed
        return self._settled(call) if captured.shape == "coroutine" else self._came_to(follow(course(call)))

    async def _settled(self, call: Invocation) -> Any:
        return self._came_to(await follow_async(course(call)))

    def _came_to(self, done: Done) -> Any:
        self.final, self.stuck = "final" in done.about, done.stuck
        self.below = Below(done.about.get("irreversible"))
        return came_to(done)

    def _afford(self, together: Together, tool: Any, payload: Any) -> None:
        """Refuse in the place of its step where what all of them cost can't be afforded."""
        scope = here()
        if scope is None or scope.spending is None:
            return
        error = together.refusal(scope.spending, payload, metered=self.metered)
        if error is not None:
            session = scope.session
            overspent(session.state, error)
            captured = captured_of(tool)
            spec = Spec("span", self.agent.name) if captured is None else captured.spec
            raise session.refuse(scope, Request(spec, {"payload": payload}), error) from None

    def _spend(self, payload: Any) -> None:
        """What an agent without a class costs, which is no call of its own: refused in the place of its step."""
        scope = here()
        if scope is None or scope.spending is None:
            return
        session = scope.session
        try:
            scope.spending.charge(self.agent.units(payload))
        except (BudgetExceededError, ContractViolationError) as error:
            if isinstance(error, BudgetExceededError):
                overspent(session.state, error)
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
            below = self.open.end(failed=self.failure is not None)
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
    return Spec("tool", agent.name, side_effect=side_effect, mutates=()) if captured is None else captured.spec


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
    spec = Spec("tool", agent.name, side_effect=terms.side_effect, mutates=())

    def refuse(payload: Any) -> Any:
        scope = here()
        request = Request(spec, {"payload": payload})
        raise error.fresh() if scope is None else scope.session.refuse(scope, request, error)

    async def refuse_async(payload: Any) -> Any:
        refuse(payload)

    return refuse_async if shape == "coroutine" else refuse
