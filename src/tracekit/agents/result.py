"""The response to a routed request, and the result of each agent that was called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..failures import StructuredFailure
from ..integration import exception_text

__all__ = ["AgentResult", "IntentResponse", "ReplayResult", "Status"]

#: ``partial``: some of several agents failed.
Status = Literal["success", "partial", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The result of one agent: its ``payload``, or why there is none.

    ``exception`` is the exception itself, for a debugger; ``error`` describes it.
    """

    agent: str
    status: Literal["success", "error"]
    payload: Any = None
    error: StructuredFailure | None = None
    exception: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentResponse:
    """The response to a request.

    ``payload`` is what the agent returned; for ``broadcast`` and ``parallel`` a list with ``agent``, ``status`` and
    ``payload`` of each agent in the registry's order. ``agent`` is the one that answered, ``results`` are all that were
    called, in that order. ``error`` says why there is no answer; its ``caused_by`` leads to the first failure. The
    object is true in an ``if`` in any case: check ``ok``.
    """

    status: Status
    payload: Any = None
    agent: str | None = None
    strategy: str = "direct"
    results: tuple[AgentResult, ...] = ()
    error: StructuredFailure | None = None
    version: str = "1.0"

    @property
    def ok(self) -> bool:
        """Whether every agent that had to answer has answered."""
        return self.status == "success"

    def unwrap(self) -> Any:
        """Return the payload of a success.

        Otherwise raises ``RoutingFailedError``, caused by the first failure, with the others in its notes.
        """
        if self.status != "error":
            return self.payload
        from ..errors import RoutingFailedError

        raised = [(one.agent, one.exception) for one in self.results if one.exception is not None]
        failed = RoutingFailedError(
            f"no agent answered: {self.error.reason if self.error else 'no reason was reported'}",
            failure=self.error,
            next_action="`failure` and its chain of `caused_by` say what went wrong",
        )
        for agent, error in raised[1:]:
            failed.add_note(f"agent {agent!r} failed too: {exception_text(error)}")
        raise failed from (raised[0][1] if raised else None)

    def about(self) -> dict[str, Any]:
        """Return the part of it that is the same in every replay."""
        asked = [{"agent": one.agent, "status": one.status} for one in self.results]
        return {
            "version": self.version,
            "status": self.status,
            "payload": self.payload,
            "metadata": {"agent": self.agent, "strategy": self.strategy, "attempts": asked},
        }

    def as_dict(self) -> dict[str, Any]:
        """Return version, status, payload, metadata, error."""
        return {**self.about(), "error": None if self.error is None else self.error.as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The response of a recorded execution, read from its record: no agent was called.

    ``redacted``: placeholders replace secrets in the answer.
    """

    payload: Any
    status: Status
    error: StructuredFailure | None = None
    agent: str | None = None
    run_id: str | None = None
    redacted: bool = False
    from_replay: bool = True
