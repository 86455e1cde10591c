"""Who there is to ask: agents by the intents that they handle, in an order that never depends on chance."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .._capture.wrapper import shape_of
from .._engine.contract import ExecutionContract, SideEffectClass, side_effect_class
from .._engine.step import Spec
from ..errors import RegistryError
from .envelope import IntentEnvelope, IntentRef

if TYPE_CHECKING:
    from .._capture.terms import Terms

__all__ = ["AgentRegistry", "BaseAgent", "class_of", "contract_of"]

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

    def _terms(self) -> Terms:
        """What was agreed; refuses here what no request could keep, as where a tool is declared."""
        from .._capture.terms import Terms, merged

        # A class that the call of route gives is not known here: this one has the most to say.
        side_effect = self.side_effect or "reversible"
        shape = "coroutine" if self.asynchronous else "function"
        return Terms(
            self.name, lambda payload: payload, side_effect, merged(self.contract, {}), shape=shape, **self.options
        )

    def units(self, payload: Any) -> float:
        """What it costs to ask it."""
        cost = None if self._agreed is None else self._agreed.units({"payload": payload})
        return 1 if cost is None else cost

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
        from .attempt import spec_of

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
