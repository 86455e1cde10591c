"""Every exception of tracekit.

::

    TracekitError                      the interface that all share
    ├── ReplayError (BaseException)    a replay that can't go on; no ``except Exception`` swallows it
    │   ├── DivergenceError            the program did something else than the recording
    │   ├── TraceExhaustedError        the program asked for more than was recorded
    │   ├── UnconsumedStepsError       the program asked for less than was recorded
    │   ├── LiveCallBlockedError       something tried to reach the live world during a replay
    │   ├── NotReplayableError         the recording itself can't answer this step
    │   └── InexactReplayError         the program came to its end, and not in all as it was recorded
    ├── TraceError
    │   ├── TraceIntegrityError        a line was damaged, edited, removed or swapped
    │   ├── TraceVersionError          written by a newer major format
    │   ├── RunNotFoundError
    │   └── LogWriteError              the log can't be written: an effect was not made, or its outcome not kept
    ├── GraphError                     the events of several agents make no graph that can be ordered
    │   ├── MissingParentError         an event names a parent that is not there
    │   ├── DuplicateEventError        two events have one id
    │   ├── EventCycleError            events are each other's causes
    │   ├── UndecidedComparisonError   too many events look alike to say whether two recordings are the same
    │   └── InvalidEventError          a line is no event
    ├── InvalidMessageError            a message between agents, or its headers, can't be read
    ├── ContractViolationError
    ├── BudgetExceededError (BaseException)
    │   └── UnknownPriceError          a limit in dollars, and a model whose price nobody knows
    ├── StepTimeoutError
    ├── RunEndedError                  an effect was asked for after its run had ended
    ├── RunStateError                  record, replay or a run used in a way that makes no sense
    ├── RecoveryRefusedError
    ├── InvalidRecordError             what should be the record of an execution is none
    ├── EnvelopeError                  a request to agents that can't be read
    ├── RegistryError                  agents registered in a way that makes no sense
    ├── RoutingFailedError             no agent answered a request
    ├── IntentionError                 an invalid intention
    │   ├── DanglingCauseError         it names a cause that is no event, or one of another kind
    │   ├── UnknownObjectError         it is about an object that is not there
    │   └── UnreadEventsError          nobody reads what was answered
    ├── PendingRequestsError           requests without an answer, and nothing that could bring one
    └── RecordedError                  stands for a recorded exception whose type is not loaded

Each error carries its facts as attributes (``run_id``, ``step``, ``location``, ``next_action`` and its own), and its
text says what happened, where, and what to do next. ``code`` is a stable slug that can be searched in the documentation.
``InexactReplayWarning`` is the one warning with a class of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BudgetExceededError",
    "ContractViolationError",
    "DanglingCauseError",
    "DivergenceError",
    "DuplicateEventError",
    "EnvelopeError",
    "EventCycleError",
    "GraphError",
    "InexactReplayError",
    "IntentionError",
    "InvalidEventError",
    "InvalidMessageError",
    "InvalidRecordError",
    "LiveCallBlockedError",
    "LogWriteError",
    "MissingParentError",
    "NotReplayableError",
    "PendingRequestsError",
    "RecordedError",
    "RecoveryRefusedError",
    "RegistryError",
    "ReplayError",
    "RoutingFailedError",
    "RunEndedError",
    "RunNotFoundError",
    "RunStateError",
    "StepTimeoutError",
    "TraceError",
    "TraceExhaustedError",
    "TraceIntegrityError",
    "TraceVersionError",
    "TracekitError",
    "UnconsumedStepsError",
    "UndecidedComparisonError",
    "UnknownObjectError",
    "UnknownPriceError",
    "UnreadEventsError",
]


class TracekitError(BaseException):
    """The interface of all errors: a message, a stable ``code``, and the facts as attributes.

    ``what`` is the first sentence; ``run_id``, ``step`` (a ``seq``) and ``location`` (``file:line`` of the user's code) say
    where; ``next_action`` says what to do. Errors pickle and copy: the facts travel with them.
    """

    code: ClassVar[str] = "error"

    def __init__(
        self,
        what: str,
        *,
        run_id: str | None = None,
        step: int | None = None,
        location: str | None = None,
        next_action: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.run_id = run_id
        self.step = step
        self.location = location
        self.next_action = next_action
        self.__dict__.update(facts)

    def __str__(self) -> str:
        where = [
            f"{label} {value}"
            for label, value in (("run", self.run_id), ("step", self.step), ("at", self.location))
            if value is not None
        ]
        lines = [f"[{self.code}] {self.what}"]
        if where:
            lines.append("  where: " + ", ".join(where))
        if self.next_action:
            lines.append("  next:  " + self.next_action)
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, dict(self.__dict__))

    def fresh(self) -> TracekitError:
        """A copy without traceback or context, to be raised once more."""
        copy = _rebuild(type(self), self.what, dict(self.__dict__))
        assert isinstance(copy, TracekitError)
        return copy


def _rebuild(cls: type[TracekitError], what: str, facts: dict[str, Any]) -> TracekitError:
    error = cls.__new__(cls, what)
    error.args = (what,)
    error.__dict__.update(facts)
    return error


class _Error(TracekitError, Exception):
    """What ordinary code may catch."""


class ReplayError(TracekitError):
    """A replay that can't go on.

    It derives from ``BaseException``: agents wrap tool calls in ``except Exception`` and feed the text to the model, and
    a replay that differs from its recording must not end that way.

    ``at_log_end``: nothing differed. The recorded process died here, and the program has followed its log to the last entry.
    """

    code = "replay"
    at_log_end = False


class DivergenceError(ReplayError):
    """The program did something else than the recording at this point.

    ``recorded`` and ``actual`` are the two steps as dictionaries, ``differences`` the fields that differ.
    """

    code = "divergence"


class TraceExhaustedError(ReplayError):
    """The program asked for a step, chunk or draw beyond the last recorded one."""

    code = "trace-exhausted"


class UnconsumedStepsError(ReplayError):
    """The replay ended, and recorded steps were never asked for; ``steps`` lists them."""

    code = "unconsumed-steps"


class LiveCallBlockedError(ReplayError):
    """Something tried to reach the live world while a replay was active; ``operation`` says what."""

    code = "live-call-blocked"


class NotReplayableError(ReplayError):
    """The recording can't answer this step: its value could not be recorded; ``reason`` says why."""

    code = "not-replayable"
    reason: str


class InexactReplayError(ReplayError):
    """The replay came to its end and was not exact; ``reasons`` lists why, each with a ``code`` and a ``text``.

    Where nothing but inputs are different here, ``todays`` is what to pass to ``replay`` to have today's count.
    """

    code = "inexact-replay"


class InexactReplayWarning(RuntimeWarning):
    """A replay that was not exact, where the caller asked to go on (``on_divergence="warn"``) or another error is on its way."""


class TraceError(_Error):
    """Something is wrong with a trace file."""

    code = "trace"


class TraceIntegrityError(TraceError):
    """A trace does not verify; ``path`` and ``line`` (from 1) name the first line that is wrong."""

    code = "trace-integrity"


class TraceVersionError(TraceError):
    """A trace was written by a newer major version of the format than this tracekit can read."""

    code = "trace-version"


class RunNotFoundError(TraceError):
    """There is no run of this name in the store; ``store`` is the directory that was searched."""

    code = "run-not-found"


class LogWriteError(TraceError):
    """The log can't be written; ``path`` names it. ``executed`` says whether the effect that needed it was executed.

    ``False``: it was not, since its intent record could not be written. ``True``: it **was**, and its outcome could not be written;
    ``step`` is its intent record, and ``kept`` says whether the outcome is in memory still, to be written as soon as there is room.
    ``None``: the error is about no effect.
    """

    code = "log-write"
    path: str | None = None
    executed: bool | None = None
    kept: bool = False

    def reword(self, what: str) -> None:
        """Say ``what`` instead."""
        self.what = what
        self.args = (what,)


class GraphError(_Error):
    """The events of several agents make no graph that can be ordered; ``ids`` names the events that are wrong."""

    code = "graph"


class MissingParentError(GraphError):
    """Events name parents that are not there; ``ids`` are the missing ones, ``children`` who names them."""

    code = "missing-parent"


class DuplicateEventError(GraphError):
    """Two events have one id; ``ids`` lists each such id once."""

    code = "duplicate-event"


class EventCycleError(GraphError):
    """Events are each other's causes, so none can come first; ``ids`` is one such circle in order."""

    code = "event-cycle"


class UndecidedComparisonError(GraphError):
    """Two recordings have events so much alike that it was not found out whether they are of one workflow; ``ids`` is empty."""

    code = "undecided-comparison"


class InvalidEventError(GraphError):
    """A line is no event of the inter-agent format; ``line`` is its number, ``problem`` says what is wrong."""

    code = "invalid-event"


class InvalidMessageError(_Error):
    """A message between agents, or its headers, can't be read: it came damaged, or somebody made it up."""

    code = "invalid-message"


class ContractViolationError(_Error, ValueError):
    """A contract was broken or can't be kept; the tool was not called.

    ``tool`` and ``contract`` (the field) name them, ``limit`` is what was allowed, ``actual`` what was found.
    """

    code = "contract-violation"


class BudgetExceededError(TracekitError):
    """The next call would go over a budget; it was not made.

    ``resource`` is the limit (``"usd"``, ``"llm_calls"`` …), ``limit`` how much it allows, ``spent`` what was spent or held back,
    ``estimate`` what the call might have taken; ``budget`` says whose it is. It derives from ``BaseException``: agents wrap calls in
    ``except Exception`` and go on, and SDKs take what their transport raises for a broken connection, and try again.
    """

    code = "budget-exceeded"

    resource: str
    limit: float
    spent: float
    estimate: float
    budget: str


class UnknownPriceError(BudgetExceededError):
    """A budget in US dollars is set, and the price of ``model`` is not known. The call was not made."""

    code = "unknown-price"

    model: str
    provider: str | None


class StepTimeoutError(_Error):
    """A step ran longer than its ``timeout_ms``. If it was irreversible, what it did is in doubt."""

    code = "step-timeout"


class RunEndedError(_Error):
    """An effect was asked for after its run had ended, or after others had begun to abort it; it was not executed."""

    code = "run-ended"


class RunStateError(_Error):
    """``record``, ``replay`` or a run was used in a way that makes no sense here."""

    code = "run-state"


class RecoveryRefusedError(_Error):
    """The run can't safely be resumed, aborted or settled; ``reasons`` lists why, each with a ``code``."""

    code = "recovery-refused"


class InvalidRecordError(_Error, ValueError):
    """What was given as the record of an execution is none."""

    code = "invalid-record"


class EnvelopeError(_Error, ValueError):
    """A request to agents is not what it must be; ``key`` names the part."""

    code = "envelope"


class RegistryError(_Error, ValueError):
    """An agent can't be registered like this, or there is no registry where one was looked for."""

    code = "registry"


class RoutingFailedError(_Error):
    """No agent answered a request; ``failure`` says why, and its ``caused_by`` what went wrong first."""

    code = "routing-failed"


class IntentionError(_Error, ValueError):
    """What a responder or the program intends can't be; nothing of it was done, and nothing is on the log."""

    code = "intention"


class DanglingCauseError(IntentionError):
    """The cause that an event names is no event of this log, or is one of another kind; ``cause`` is the reference."""

    code = "dangling-cause"

    cause: Any


class UnknownObjectError(IntentionError):
    """An intention is about an object that the world does not have; ``object`` is its id."""

    code = "unknown-object"

    object: str


class UnreadEventsError(IntentionError):
    """What was asked for was answered, and no responder reads the answer; ``unread`` lists them. It was done, and is on the log."""

    code = "unread-events"

    unread: list[dict[str, Any]]


class PendingRequestsError(_Error):
    """Requests have no answer, and nothing is left that could bring one; ``pending`` lists them, each with its ``reason``."""

    code = "pending-requests"

    pending: list[dict[str, Any]]


class RecordedError(_Error):
    """A recorded exception whose own type is not loaded; ``type_name``, ``recorded_args`` and the text are kept."""

    code = "recorded"

    def __str__(self) -> str:
        return self.what
