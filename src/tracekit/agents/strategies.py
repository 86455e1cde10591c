"""Which agents are asked, and in which order: plain functions of the envelope and the registry."""

from __future__ import annotations

from typing import NamedTuple

from ..failures import FailureType, StructuredFailure
from .envelope import IntentEnvelope
from .registry import AgentRegistry, BaseAgent

__all__ = ["Plan", "plan"]


class Plan(NamedTuple):
    """Whom to ask, in order. ``failure`` is set where there is nobody."""

    agents: tuple[BaseAgent, ...]
    failure: StructuredFailure | None = None


def plan(envelope: IntentEnvelope, registry: AgentRegistry) -> Plan:
    """The agents for ``envelope``: the registry's order, but for those that its routing names."""
    able = registry.for_intent(envelope.intent)
    routing = envelope.routing
    named = [*([routing.target_agent] if routing.target_agent else []), *routing.fallback_agents]
    for name in named:
        if registry.get(name) not in able:
            return Plan((), _unable(name, envelope, registry))
    if not able:
        return Plan((), _nobody(envelope))
    if routing.strategy in ("broadcast", "parallel"):
        chosen = [agent for agent in able if agent.name in named] if named else able
        return Plan(tuple(chosen))
    first = next(agent for agent in able if routing.target_agent in (None, agent.name))
    if routing.strategy == "direct":
        return Plan((first,))
    if not routing.fallback_agents:
        return Plan((first, *(agent for agent in able if agent is not first)))
    others = [agent for name in routing.fallback_agents for agent in able if agent.name == name]
    return Plan(tuple(dict.fromkeys((first, *others))))


def _nobody(envelope: IntentEnvelope) -> StructuredFailure:
    intent = envelope.intent
    return StructuredFailure(
        type=FailureType.NO_AGENT_FOUND,
        reason=f"no agent handles the intent {intent.name!r}, version {intent.version}",
        details={"intent": intent.name, "version": intent.version},
    )


def _unable(name: str, envelope: IntentEnvelope, registry: AgentRegistry) -> StructuredFailure:
    intent = envelope.intent
    why = f"does not handle the intent {intent.name!r}" if name in registry else "is not registered"
    return StructuredFailure(
        type=FailureType.NO_AGENT_FOUND,
        reason=f"agent {name!r}, which the envelope names, {why}",
        agent=name,
        details={"intent": intent.name, "able": [agent.name for agent in registry.for_intent(intent)]},
    )
