"""Routing of requests to agents: which agents are called, in which order, and the final response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace as _replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracekit import Budget, ExecutionContract, SideEffectClass, limit

from ..errors import BudgetExceededError, ContractViolationError, RegistryError, ReplayError, RunStateError
from ..failures import FailureType, StructuredFailure, classify
from ..integration import Below, Note, Spec, check_transition, here, meta_of
from .envelope import IntentEnvelope, identity_of, stable_hash
from .registry import AgentCall, AgentRegistry, AgentTerms, BaseAgent, Together, class_of, contract_of
from .result import IntentResponse, Status

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["IntentRouter", "Plan", "Routing", "plan"]

# -- strategies --------------------------------------------------------------------------------------------------------
#
# Which agents are called, and in which order: plain functions of the envelope and the registry.


class Plan(NamedTuple):
    """The agents to call, in order. ``failure`` is set if there is none."""

    agents: tuple[BaseAgent, ...]
    failure: StructuredFailure | None = None


def plan(envelope: IntentEnvelope, registry: AgentRegistry) -> Plan:
    """Return the agents for ``envelope``: those that its routing names, else in the registry's order."""
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


# -- routing ------------------------------------------------------------------------------------------------------------
#
# The execution of one request: which agents are called when, the decisions, and what is recorded.

#: Why no other agent is called.
_NOBODY: Final = "nobody may replace it"
_NOT_OVER: Final = f"something in it may take effect yet, and {_NOBODY}"
#: After these failures no other agent is called: the same refusal would apply to it.
_FINAL: Final = (FailureType.CONTRACT_VIOLATION, FailureType.BUDGET_EXCEEDED)


class Routing:
    """One request while it is routed. ``terms`` returns the terms (side-effect class, contract) on which an agent is
    called."""

    def __init__(
        self,
        envelope: IntentEnvelope,
        registry: AgentRegistry,
        budget_limit: float | None,
        terms: Callable[[BaseAgent], AgentTerms],
    ) -> None:
        self.envelope: Final = envelope
        #: Computed first, since it refuses a payload that is not JSON.
        self._hash: Final = envelope.envelope_hash
        self.plan: Final = plan(envelope, registry)
        self._terms: Final = terms
        self._scope: Final = here()
        self._budget: Final = None if budget_limit is None else Budget(cost_units=budget_limit)
        self._made: Final[list[AgentCall]] = []
        #: Why agents were skipped that might have been fallbacks.
        self._passed_over: Final[list[StructuredFailure]] = []
        #: Why no further agent is called.
        self._stopped = ""

    def needs_no_loop(self) -> None:
        """Raise ``RunStateError`` if an agent is asynchronous and the caller is synchronous in a running loop."""
        waiting = [agent.name for agent in self.plan.agents if agent.asynchronous]
        if not waiting:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RunStateError(
            f"agent {waiting[0]!r} is a coroutine function, and `route` was called in a running event loop",
            next_action="`await router.route_async(envelope)`",
        )

    def spending(self) -> AbstractContextManager[object]:
        """Return a context whose calls count in the request's own budget, if it has one."""
        return nullcontext() if self._budget is None else limit(self._budget, name=self._budget_name)

    # -- strategies in progress --------------------------------------------------------------------------------------------------------

    def steps(self) -> Generator[list[AgentCall], None, IntentResponse]:
        """Yield the attempts to make next, one or several at once, and be resumed when they are made; return the
        response."""
        self._received()
        if self.plan.failure is not None:
            return self._respond(None, "error", None, self.plan.failure, "nobody to ask")
        strategy = self.envelope.routing.strategy
        if strategy in ("broadcast", "parallel"):
            response = yield from self._everyone(strategy == "parallel")
        else:
            response = yield from self._one_after_another()
        for attempt in self._made:
            if self._beyond(attempt.error):
                assert attempt.error is not None
                raise attempt.error
        return response

    def _beyond(self, error: BaseException | None) -> bool:
        """Return whether a budget outside of the request was exceeded: that ends more than the request."""
        return isinstance(error, BudgetExceededError) and (self._budget is None or error.budget != self._budget_name)

    def _one_after_another(self) -> Generator[list[AgentCall], None, IntentResponse]:
        """Call one agent after another until one answers."""
        agents = self.plan.agents
        for place, agent in enumerate(agents):
            if self._made and not self._is_fallback(agent):
                continue
            followed = any(_may_follow(self._class(agent), self._class(one)) for one in agents[place + 1 :])
            attempt = yield from self._ask([agent], followed)
            if attempt.failure is None:
                reason = "the first in order" if attempt.index == 0 else "the one before it failed"
                return self._respond(attempt, "success", attempt.payload, None, reason)
            self._stopped = self._final(attempt, place + 1 == len(agents))
            if self._stopped:
                break
        return self._nobody_answered()

    def _everyone(self, at_once: bool) -> Generator[list[AgentCall], None, IntentResponse]:
        for batch in [self.plan.agents] if at_once else [(agent,) for agent in self.plan.agents]:
            last = yield from self._ask(list(batch), together=not self._made)
            if last.failure is not None and last.failure.type is FailureType.BUDGET_EXCEEDED:
                self._stopped = _NOBODY
                break
        payloads = [{"agent": one.agent.name, "status": one.status, "payload": one.payload} for one in self._made]
        failed = [one for one in self._made if one.failure is not None]
        if not failed:
            return self._respond(None, "success", payloads, None, "every agent answered")
        if len(failed) < len(self._made):
            return self._respond(
                None, "partial", payloads, failed[0].failure, f"{len(failed)} of {len(payloads)} agents failed"
            )
        return self._nobody_answered()

    def _ask(
        self, agents: list[BaseAgent], followed: bool = False, together: bool = False
    ) -> Generator[list[AgentCall], None, AgentCall]:
        """Call agents at once; record their starts before and their ends after, each in the order of the agents.

        ``followed``: another agent may be its fallback. ``together``: every agent of the plan is called, or none if the
        budget does not allow all.
        """
        run_id = None if self._scope is None else self._scope.session.run_id
        first = len(self._made)
        alone = len(self.plan.agents) == 1
        attempts = [
            AgentCall(agent, first + i, self._terms(agent), self.envelope if alone else _fresh(self.envelope), run_id)
            for i, agent in enumerate(agents)
        ]
        self._made.extend(attempts)
        everybody = Together([(one, self._terms(one)) for one in self.plan.agents]) if together and not alone else None
        for attempt in attempts:
            attempt.followed, attempt.metered = followed, self._budget is not None
            attempt.together = everybody
            about = {"attempt": attempt.index + 1, "side_effect": attempt.terms.side_effect, **attempt.agent.declared}
            self._note("agent.attempt.start", attempt.agent.name, about, None)
            attempt.counted = not alone and len(agents) == 1
        try:
            yield attempts
        except ReplayError:
            for attempt in attempts:
                attempt.end()
            raise
        except BaseException as error:
            for attempt in attempts:
                self._ended(attempt, {"exception": f"{type(error).__module__}:{type(error).__qualname__}"})
            raise
        for attempt in attempts:
            self._ended(attempt)
        return attempts[-1]

    def _final(self, attempt: AgentCall, last: bool) -> str:
        """Return why no other agent may be a fallback for one that failed; empty if one may."""
        assert attempt.failure is not None
        if attempt.failure.type in _FINAL or attempt.terms.side_effect == "irreversible" or attempt.stuck:
            return _NOBODY
        if last:
            return ""
        done = attempt.below.irreversible
        if done is None:
            if attempt.final:
                return _NOBODY
            return _NOT_OVER if attempt.below.in_doubt else ""
        attempt.failure = StructuredFailure(
            type=FailureType.IRREVERSIBLE_STEP_FAILED,
            reason=f"agent {attempt.agent.name!r} failed after {done!r}, which can't be undone: no agent may replace it",
            run_id=attempt.run_id,
            agent=attempt.agent.name,
            caused_by=attempt.failure,
        )
        return _NOBODY

    def _class(self, agent: BaseAgent) -> str | None:
        return self._terms(agent).side_effect

    def _is_fallback(self, agent: BaseAgent) -> bool:
        """Record that ``agent`` is called instead of the one that failed, unless its side-effect class forbids that."""
        before = self._made[-1]
        one, other = before.terms.side_effect, self._terms(agent).side_effect
        assert before.failure is not None
        about: dict[str, Any] = {
            "from": before.agent.name,
            "to": agent.name,
            "from_side_effect": one,
            "to_side_effect": other,
        }
        if one is not None and other is not None:
            try:
                if check_transition(before.agent.name, one, agent.name, other):
                    about["escalation"] = True
            except ContractViolationError as error:
                failure = classify(error, name=agent.name, agent=agent.name)
                self._passed_over.append(_replace(failure, type=FailureType.SIDE_EFFECT_VIOLATION))
                return False
        about["reason"] = before.failure.type.value
        self._note("fallback.triggered", before.agent.name, about, None, failure=before.failure)
        return True

    def _nobody_answered(self) -> IntentResponse:
        first, last = self._made[0], self._made[-1]
        assert first.failure is not None
        assert last.failure is not None
        if self._stopped or self.envelope.routing.strategy == "direct":
            # The reason for the end is reported first; the first cause stays at the end of the chain.
            failure = _with_first_cause(last.failure, first.failure)
            reason = self._stopped or "the only one to ask"
            return self._respond(None, "error", None, failure, f"{last.agent.name} failed: {reason}")
        failures = [one.failure for one in self._made if one.failure is not None] + self._passed_over
        asked = [one.agent.name for one in self._made]
        about = {"from": asked[0], "tried": asked[1:], "reason": first.failure.type.value}
        self._note("fallback.exhausted", first.agent.name, about, None, failure=first.failure)
        failure = StructuredFailure(
            type=FailureType.FALLBACK_EXHAUSTED,
            reason=f"no agent is left for the intent {self._name!r}: {', '.join(asked)} failed",
            run_id=first.run_id,
            agent=last.agent.name,
            details={"failures": [{"agent": f.agent, "type": f.type.value, "reason": f.reason} for f in failures]},
            caused_by=first.failure,
        )
        return self._respond(None, "error", None, failure, "every agent failed")

    # -- recording ----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.envelope.intent.name

    @property
    def _budget_name(self) -> str:
        """The name of its budget."""
        return f"intent {self._name}"

    def _received(self) -> None:
        scope = self._scope
        if scope is None:
            return
        tree = self.envelope.as_dict()
        # The hash of what the log keeps, not of the input: a hash of a short secret would reveal it.
        stored = scope.session.redactor.without_secrets(tree)
        digest = self._hash if stored is tree else stable_hash(stored)
        hashes = {"envelope_hash": digest, "identity_hash": stable_hash(identity_of(stored))}
        chosen = [agent.name for agent in self.plan.agents]
        self._note("intent.received", self._name, tree, {"agents": chosen}, info=hashes)

    def _ended(self, attempt: AgentCall, interrupted: Mapping[str, Any] | None = None) -> None:
        attempt.end()
        cut = interrupted is not None and not attempt.finished
        about = {"attempt": attempt.index + 1}
        outcome = {"status": "interrupted" if cut else attempt.status}
        info = dict(interrupted) if cut and interrupted is not None else {}
        if cut and attempt.under_way:
            info["goes_on"] = True
        if attempt.failure is not None:
            info |= {key: name for key, name in attempt.below._asdict().items() if name is not None}
        seq = self._note("agent.attempt.end", attempt.agent.name, about, outcome, failure=attempt.failure, info=info)
        recorded = self._recorded(seq)
        if recorded is not None and attempt.failure is not None:
            attempt.failure = self._recorded_failure(seq, attempt.failure)
            attempt.below = Below(recorded.get("irreversible"), recorded.get("in_doubt"))

    def _respond(
        self, answered: AgentCall | None, status: Status, payload: Any, failure: StructuredFailure | None, reason: str
    ) -> IntentResponse:
        agent = None if answered is None else answered.agent.name
        strategy = self.envelope.routing.strategy
        asked = [one.agent.name for one in self._made]
        self._note(
            "router.decision", self._name, {"strategy": strategy, "asked": asked}, {"agent": agent, "reason": reason}
        )
        results = tuple(one.result() for one in self._made)
        response = IntentResponse(
            status=status, payload=payload, agent=agent, strategy=strategy, results=results, error=failure,
            version=self.envelope.version,
        )  # fmt: skip
        seq = self._note("final.response", self._name, None, response.about(), failure=failure)
        recalled = self._recorded_failure(seq, failure)
        return response if recalled is failure else _replace(response, error=recalled)

    def _note(
        self,
        kind: str,
        name: str,
        input: Any,
        output: Any,
        *,
        failure: StructuredFailure | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> int:
        """Write one entry. A failure is not compared in a replay: a recreated exception may carry less information."""
        scope = self._scope
        if scope is None:
            return 0
        if failure is not None:
            info = {**(info or {}), "failure": failure.as_dict()}
        return scope.session.note(scope, Note(kind, name, input, output, info=info))

    def _recorded_failure(self, seq: int, failure: StructuredFailure | None) -> StructuredFailure | None:
        """Return the failure as in the log, if the log answers."""
        recorded = None if failure is None else self._recorded(seq)
        kept = None if recorded is None else recorded.get("failure")
        return failure if kept is None else StructuredFailure.from_dict(kept)

    def _recorded(self, seq: int) -> Mapping[str, Any] | None:
        """Return the part of a recorded entry that a replay does not compare, if the log answers."""
        trace = None if self._scope is None else self._scope.session.log.trace
        if trace is None or not 0 < seq <= len(trace):
            return None
        return trace.expand(meta_of(trace.entry(seq)).get("info", {}))  # type: ignore[no-any-return]


def _may_follow(one: str | None, other: str | None) -> bool:
    """Return whether an agent of class ``other`` may be the fallback of one of class ``one``."""
    if one is None or other is None:
        return True
    try:
        check_transition("", one, "", other)
    except ContractViolationError:
        return False
    return True


def _with_first_cause(failure: StructuredFailure, first: StructuredFailure) -> StructuredFailure:
    """Return ``failure`` with ``first`` at the end of its chain of causes."""
    if first in failure.chain():
        return failure
    cause = first if failure.caused_by is None else _with_first_cause(failure.caused_by, first)
    return _replace(failure, caused_by=cause)


def _fresh(envelope: IntentEnvelope) -> IntentEnvelope:
    """Return a copy of the request for one agent, which may change its payload."""
    return _replace(envelope, payload=deepcopy(dict(envelope.payload)))


# -- router ------------------------------------------------------------------------------------------------------------
#
# The public router. All decisions are in one generator (``Routing.steps``); ``route`` and ``route_async`` only make the
# attempts that it yields, synchronously or with ``await``.


class IntentRouter:
    """Routes envelopes to the agents of ``registry``.

    The order is the registry's (local agents first, then by priority number, then by name), so equal requests to equal
    registries are routed equally. What an agent raises is in the response, not raised; see ``IntentResponse.unwrap``.
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
        """Call the agents, and return their response.

        ``budget_limit`` is what all attempts together may cost, in cost units. The defaults apply to agents that were
        registered without a contract or a class of their own. In a run the whole execution is in the trace; in its
        replay it is answered from there. Agents that are coroutine functions are run in a new event loop: in a running
        one, await ``route_async``; ``RunStateError`` is raised there.
        """
        routing = self._routing(envelope, budget_limit, default_contract, default_side_effect)
        routing.needs_no_loop()
        steps = routing.steps()
        with routing.spending():
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
        """Do the same as ``route`` for coroutines. An agent that is a plain function runs in the loop, or in a thread
        if several run at once."""
        routing = self._routing(envelope, budget_limit, default_contract, default_side_effect)
        steps = routing.steps()
        with routing.spending():
            try:
                while True:
                    await _make_async(next(steps), steps)
            except StopIteration as end:
                response: IntentResponse = end.value
        return response

    def tracekit_specs(self) -> Iterator[Spec]:
        """Yield the specs of its agents' steps, for recovery, which undoes them."""
        return self.registry.tracekit_specs()

    def _routing(
        self, envelope: IntentEnvelope | Mapping[str, Any], budget_limit: float | None, contract: Any, side_effect: Any
    ) -> Routing:
        asked = envelope if isinstance(envelope, IntentEnvelope) else IntentEnvelope.from_dict(envelope)
        default, word = contract_of(contract, "the route"), class_of(side_effect)
        return Routing(asked, self.registry, budget_limit, lambda agent: AgentTerms(agent, default, word))


Steps = Generator[list[AgentCall], None, IntentResponse]


def _make(attempts: list[AgentCall], steps: Steps) -> None:
    try:
        if len(attempts) == 1:
            attempts[0].make()
        else:
            _make_at_once(attempts)
    except BaseException as error:  # not a failure of an agent: an interruption, or a divergence
        steps.throw(error)
        raise


def _make_at_once(attempts: list[AgentCall]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(len(attempts))
    try:
        made = [pool.submit(attempt.make) for attempt in attempts]
        pool.shutdown(wait=True)
    except BaseException:  # Ctrl-C: the threads are no longer waited for
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    for one in made:
        one.result()


async def _make_async(attempts: list[AgentCall], steps: Steps) -> None:
    try:
        if len(attempts) == 1:
            await attempts[0].make_async()
        else:
            await _make_at_once_async(attempts)
    except BaseException as error:
        steps.throw(error)
        raise


async def _make_at_once_async(attempts: list[AgentCall]) -> None:
    pool = _pool(sum(not attempt.agent.asynchronous for attempt in attempts))
    tasks = [asyncio.ensure_future(attempt.make_async(beside=True, pool=pool)) for attempt in attempts]
    try:
        # An agent that cancels itself does not cancel the others; an exception that ends the program does.
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
    """Return a separate pool in a replay: the loop's pool may have fewer threads here than in the recording."""
    scope = here()
    if not threads or scope is None or scope.session.log.trace is None:
        return None
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads)
