"""The course of one request: who is asked when, what is decided, and what is written down of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace as _replace
from typing import Any, Final

from .._capture.limits import limit
from .._engine.budget import Budget
from .._engine.contract import check_transition
from .._engine.effects import Below
from .._engine.gate import here
from ..errors import BudgetExceededError, ContractViolationError, ReplayError, RunStateError
from ..failures import FailureType, StructuredFailure, classify
from .attempt import Attempt, Terms
from .envelope import IntentEnvelope
from .hashing import identity_of, stable_hash
from .ledger import trace_of
from .recorded_form import without_secrets
from .registry import AgentRegistry, BaseAgent
from .result import IntentResponse, Status
from .strategies import plan

__all__ = ["Course"]

#: Why nobody else is asked.
_NOBODY: Final = "nobody may stand in for it"
_NOT_OVER: Final = f"something in it may take effect yet, and {_NOBODY}"
#: After these nobody else is asked: what forbade one call forbids the next.
_FINAL: Final = (FailureType.CONTRACT_VIOLATION, FailureType.BUDGET_EXCEEDED)


class Course:
    """One request on its way. ``terms`` says on which terms an agent is asked."""

    def __init__(
        self,
        envelope: IntentEnvelope,
        registry: AgentRegistry,
        budget_limit: float | None,
        terms: Callable[[BaseAgent], Terms],
    ) -> None:
        self.envelope: Final = envelope
        #: Worked out first, since it refuses a payload that is no JSON.
        self._hash: Final = envelope.envelope_hash
        self.plan: Final = plan(envelope, registry)
        self._terms: Final = terms
        self._scope: Final = here()
        self._budget: Final = None if budget_limit is None else Budget(cost_units=budget_limit)
        self._made: Final[list[Attempt]] = []
        #: Why agents were passed over that might have stood in.
        self._passed_over: Final[list[StructuredFailure]] = []
        #: Why nobody else is asked.
        self._stopped = ""

    def needs_no_loop(self) -> None:
        """``RunStateError`` where an agent would have to be awaited, and can't."""
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
        """A block in which what is called counts in the request's own budget, where it has one."""
        return nullcontext() if self._budget is None else limit(self._budget, name=self._whose)

    # -- the course --------------------------------------------------------------------------------------------------------

    def steps(self) -> Generator[list[Attempt], None, IntentResponse]:
        """Yields the attempts to be made next, one or several at once, and goes on when they are; returns the response."""
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
        """Whether a budget around the request was exceeded, not its own: that ends more than the request."""
        return isinstance(error, BudgetExceededError) and (self._budget is None or error.budget != self._whose)

    def _one_after_another(self) -> Generator[list[Attempt], None, IntentResponse]:
        """The first that answers; after it nobody is asked."""
        agents = self.plan.agents
        for place, agent in enumerate(agents):
            if self._made and not self._stands_in(agent):
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

    def _everyone(self, at_once: bool) -> Generator[list[Attempt], None, IntentResponse]:
        for batch in [self.plan.agents] if at_once else [(agent,) for agent in self.plan.agents]:
            last = yield from self._ask(list(batch))
            if last.failure is not None and last.failure.type is FailureType.BUDGET_EXCEEDED:
                self._stopped = _NOBODY
                break
        told = [{"agent": one.agent.name, "status": one.status, "payload": one.payload} for one in self._made]
        failed = [one for one in self._made if one.failure is not None]
        if not failed:
            return self._respond(None, "success", told, None, "every agent answered")
        if len(failed) < len(self._made):
            return self._respond(
                None, "partial", told, failed[0].failure, f"{len(failed)} of {len(told)} agents failed"
            )
        return self._nobody_answered()

    def _ask(self, agents: list[BaseAgent], followed: bool = False) -> Generator[list[Attempt], None, Attempt]:
        """The agents at once, the beginnings written down before, the ends after, each in the order of the agents.

        ``followed``: somebody may stand in for the one.
        """
        run_id = None if self._scope is None else self._scope.session.run_id
        first = len(self._made)
        alone = len(self.plan.agents) == 1
        attempts = [
            Attempt(agent, first + i, self._terms(agent), self.envelope if alone else _fresh(self.envelope), run_id)
            for i, agent in enumerate(agents)
        ]
        self._made.extend(attempts)
        for attempt in attempts:
            attempt.followed, attempt.metered = followed, self._budget is not None
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

    def _final(self, attempt: Attempt, last: bool) -> str:
        """Why nobody may stand in for an agent that failed; empty where somebody may."""
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
            reason=f"agent {attempt.agent.name!r} failed after {done!r}, which can't be undone: nobody may stand in for it",
            run_id=attempt.run_id,
            agent=attempt.agent.name,
            caused_by=attempt.failure,
        )
        return _NOBODY

    def _class(self, agent: BaseAgent) -> str | None:
        return self._terms(agent).side_effect

    def _stands_in(self, agent: BaseAgent) -> bool:
        """Write down that ``agent`` is asked in place of the one that failed, unless its class forbids that."""
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
            # What stopped it is told first, what began it stays behind.
            failure = _behind(last.failure, first.failure)
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

    # -- what is written down ----------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.envelope.intent.name

    @property
    def _whose(self) -> str:
        """The name of its budget."""
        return f"intent {self._name}"

    def _received(self) -> None:
        scope = self._scope
        if scope is None:
            return
        tree = self.envelope.as_dict()
        # Of what the log keeps, not of what it was given: a hash of a short secret gives the secret away.
        stored = without_secrets(scope.session.redactor, tree)
        digest = self._hash if stored is tree else stable_hash(stored)
        hashes = {"envelope_hash": digest, "identity_hash": stable_hash(identity_of(stored))}
        chosen = [agent.name for agent in self.plan.agents]
        self._note("intent.received", self._name, tree, {"agents": chosen}, info=hashes)

    def _ended(self, attempt: Attempt, interrupted: Mapping[str, Any] | None = None) -> None:
        attempt.end()
        cut = interrupted is not None and not attempt.finished
        about = {"attempt": attempt.index + 1}
        said = {"status": "interrupted" if cut else attempt.status}
        info = dict(interrupted) if cut and interrupted is not None else {}
        if cut and attempt.under_way:
            info["goes_on"] = True
        if attempt.failure is not None:
            info |= {key: name for key, name in attempt.below._asdict().items() if name is not None}
        seq = self._note("agent.attempt.end", attempt.agent.name, about, said, failure=attempt.failure, info=info)
        recorded = self._recorded(seq)
        if recorded is not None and attempt.failure is not None:
            attempt.failure = self._recalled(seq, attempt.failure)
            attempt.below = Below(recorded.get("irreversible"), recorded.get("in_doubt"))

    def _respond(
        self, answered: Attempt | None, status: Status, payload: Any, failure: StructuredFailure | None, reason: str
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
        recalled = self._recalled(seq, failure)
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
        """One entry. A failure is told beside what a replay compares: of an exception that is made again less may be known."""
        scope = self._scope
        if scope is None:
            return 0
        if failure is not None:
            info = {**(info or {}), "failure": failure.as_dict()}
        return scope.session.note(scope, kind, name, input=input, output=output, info=info)

    def _recalled(self, seq: int, failure: StructuredFailure | None) -> StructuredFailure | None:
        """The failure as the log has it, where the log answers."""
        recorded = None if failure is None else self._recorded(seq)
        told = None if recorded is None else recorded.get("failure")
        return failure if told is None else StructuredFailure.from_dict(told)

    def _recorded(self, seq: int) -> Mapping[str, Any] | None:
        """What the log says of an entry beside what a replay compares, where the log answers."""
        trace = None if self._scope is None else trace_of(self._scope.session)
        if trace is None or not 0 < seq <= len(trace):
            return None
        return trace.expand((trace.entry(seq).get("meta") or {}).get("info", {}))  # type: ignore[no-any-return]


def _may_follow(one: str | None, other: str | None) -> bool:
    """Whether an agent of the class ``other`` may stand in for one of the class ``one``."""
    if one is None or other is None:
        return True
    try:
        check_transition("", one, "", other)
    except ContractViolationError:
        return False
    return True


def _behind(failure: StructuredFailure, first: StructuredFailure) -> StructuredFailure:
    """``failure`` with ``first`` at the end of its chain of causes."""
    if first in failure.chain():
        return failure
    cause = first if failure.caused_by is None else _behind(failure.caused_by, first)
    return _replace(failure, caused_by=cause)


def _fresh(envelope: IntentEnvelope) -> IntentEnvelope:
    """The same request, for an agent of its own: what one does to the payload is not the next one's."""
    return _replace(envelope, payload=deepcopy(dict(envelope.payload)))
