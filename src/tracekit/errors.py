"""Every exception of tracekit.

::

    TracekitError                      base of all errors; never raised itself
    ├── ReplayError (BaseException)    the replay can't continue; not caught by ``except Exception``
    │   ├── DivergenceError            the program's next step differs from the recorded one
    │   ├── TraceExhaustedError        the program went past the last recorded step
    │   ├── UnconsumedStepsError       recorded steps were left over at the end
    │   ├── LiveCallBlockedError       something tried to reach the outside world during a replay
    │   ├── NotReplayableError         the recording has no usable value for this step
    │   └── InexactReplayError         the replay finished, but was not exact
    ├── TraceError
    │   ├── TraceIntegrityError        a line was damaged, edited, removed or swapped
    │   ├── TraceVersionError          written in a newer major version of the format
    │   ├── RunNotFoundError
    │   └── LogWriteError              the log can't be written: an effect was not executed, or its outcome not saved
    ├── GraphError                     the events of several agents form no valid causal graph
    │   ├── MissingParentError         an event names a parent that does not exist
    │   ├── DuplicateEventError        two events share an id
    │   ├── EventCycleError            events that cause one another
    │   ├── UndecidedComparisonError   two recordings could not be compared: too many similar events
    │   └── InvalidEventError          a line is not a valid event
    ├── InvalidMessageError            a message between agents, or its headers, can't be parsed
    ├── ContractViolationError
    ├── BudgetExceededError (BaseException)
    │   └── UnknownPriceError          a limit in dollars, and a model without a known price
    ├── StepTimeoutError
    ├── RunEndedError                  an effect was requested after its run had ended
    ├── RunStateError                  record, replay or a run used incorrectly
    ├── RecoveryRefusedError
    ├── InvalidRecordError             the value is not a valid execution record
    ├── EnvelopeError                  a request to agents that can't be parsed
    ├── RegistryError                  an invalid registration, or no registry
    ├── RoutingFailedError             no agent answered a request
    ├── IntentionError                 an invalid intention
    │   ├── DanglingCauseError         its cause is not an event, or an event of the wrong kind
    │   ├── UnknownObjectError         its object does not exist
    │   └── UnreadEventsError          no responder consumes the answer
    ├── PendingRequestsError           requests left unanswered, and nothing left to answer them
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
    """The base class of all errors: a message, a stable ``code``, and the facts as attributes.

    ``what`` is the first sentence of the message; ``run_id``, ``step`` (a ``seq``) and ``location`` (``file:line`` in
    the user's code) say where it happened; ``next_action`` says what to do. Attributes survive pickling and copying.
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
        """Return a copy without traceback and context, to be raised again."""
        copy = _rebuild(type(self), self.what, dict(self.__dict__))
        assert isinstance(copy, TracekitError)
        return copy


def _rebuild(cls: type[TracekitError], what: str, facts: dict[str, Any]) -> TracekitError:
    error = cls.__new__(cls, what)
    error.args = (what,)
    error.__dict__.update(facts)
    return error


class _Error(TracekitError, Exception):
    """Base of the errors that ordinary code may catch."""


class ReplayError(TracekitError):
    """The replay can't continue.

    It derives from ``BaseException`` because agents wrap tool calls in ``except Exception`` and pass the text on to the
    model; a replay that differs from its recording must not end up there.

    ``at_log_end`` is true if nothing differed: the recorded process died here, and the program has followed its log to
    the last entry.
    """

    code = "replay"
    at_log_end = False


class DivergenceError(ReplayError):
    """The program's next step differs from the recorded one.

    ``recorded`` and ``actual`` are the two steps as dictionaries; ``differences`` lists the fields that differ.
    """

    code = "divergence"


class TraceExhaustedError(ReplayError):
    """The program asked for a step, stream chunk or random number beyond the last recorded one."""

    code = "trace-exhausted"


class UnconsumedStepsError(ReplayError):
    """The replay ended before all recorded steps were used; ``steps`` lists the remaining ones."""

    code = "unconsumed-steps"


class LiveCallBlockedError(ReplayError):
    """Something tried to reach the outside world while a replay was active; ``operation`` names it."""

    code = "live-call-blocked"


class NotReplayableError(ReplayError):
    """The recording can't answer this step, because its value could not be recorded; ``reason`` says why."""

    code = "not-replayable"
    reason: str


class InexactReplayError(ReplayError):
    """The replay finished but was not exact; ``reasons`` lists why, each with a ``code`` and a ``text``.

    If the only differences are inputs read from this machine, ``todays`` is the value to pass to ``replay`` so that
    today's inputs are accepted.
    """

    code = "inexact-replay"


class InexactReplayWarning(RuntimeWarning):
    """The replay was not exact, and no error is raised for it: ``on_divergence="warn"``, or another error is
    propagating."""


class TraceError(_Error):
    """A trace file is missing, damaged or can't be used."""

    code = "trace"


class TraceIntegrityError(TraceError):
    """A trace fails verification; ``path`` and ``line`` (1-based) name the first bad line."""

    code = "trace-integrity"


class TraceVersionError(TraceError):
    """The trace was written in a newer major version of the format than this tracekit can read."""

    code = "trace-version"


class RunNotFoundError(TraceError):
    """The store has no run of this name; ``store`` is the directory that was searched."""

    code = "run-not-found"


class LogWriteError(TraceError):
    """The log can't be written; ``path`` is its file. ``executed`` says whether the effect that needed the entry was
    executed.

    - ``False``: it was not executed, because its intent record could not be written.
    - ``True``: it **was** executed, but its outcome could not be written. ``step`` is its intent record; ``kept`` says
      whether the outcome is still held in memory, to be written as soon as there is space.
    - ``None``: the error does not concern an effect.
    """

    code = "log-write"
    path: str | None = None
    executed: bool | None = None
    kept: bool = False

    def reword(self, what: str) -> None:
        """Replace the first sentence of the message."""
        self.what = what
        self.args = (what,)


class GraphError(_Error):
    """The events of several agents form no valid causal graph; ``ids`` names the offending events."""

    code = "graph"


class MissingParentError(GraphError):
    """Events name parents that do not exist; ``ids`` are the missing parents, ``children`` the events that name them."""

    code = "missing-parent"


class DuplicateEventError(GraphError):
    """Two events share an id; ``ids`` lists each duplicated id once."""

    code = "duplicate-event"


class EventCycleError(GraphError):
    """Events cause one another, so none can come first; ``ids`` is one such cycle, in order."""

    code = "event-cycle"


class UndecidedComparisonError(GraphError):
    """It could not be decided whether two recordings show the same workflow: too many of their events look alike.
    ``ids`` is empty."""

    code = "undecided-comparison"


class InvalidEventError(GraphError):
    """A line is not a valid event of the inter-agent format; ``line`` is its number, ``problem`` says what is wrong."""

    code = "invalid-event"


class InvalidMessageError(_Error):
    """A message between agents, or its headers, can't be parsed: it is damaged or forged."""

    code = "invalid-message"


class ContractViolationError(_Error, ValueError):
    """A contract was violated or can't be satisfied; the tool was not called.

    ``tool`` is the tool's name, ``contract`` the field, ``limit`` the allowed value and ``actual`` the value found.
    """

    code = "contract-violation"


class BudgetExceededError(TracekitError):
    """The next call would exceed a budget; it was not made.

    ``resource`` is the limit (``"usd"``, ``"llm_calls"`` …), ``limit`` its value, ``spent`` what is already spent or
    reserved, ``estimate`` what the call might have cost; ``budget`` names the budget's owner.

    It derives from ``BaseException``: agents wrap calls in ``except Exception`` and continue, and SDKs treat an
    exception from their transport as a broken connection and retry.
    """

    code = "budget-exceeded"

    resource: str
    limit: float
    spent: float
    estimate: float
    budget: str


class UnknownPriceError(BudgetExceededError):
    """A budget in US dollars is set and the price of ``model`` is unknown; the call was not made."""

    code = "unknown-price"

    model: str
    provider: str | None


class StepTimeoutError(_Error):
    """A step ran longer than its ``timeout_ms``. If it was irreversible, its effect is in doubt."""

    code = "step-timeout"


class RunEndedError(_Error):
    """An effect was requested after its run had ended or its abort had begun; it was not executed."""

    code = "run-ended"


class RunStateError(_Error):
    """``record``, ``replay`` or a run was used incorrectly, or at the wrong time."""

    code = "run-state"


class RecoveryRefusedError(_Error):
    """The run can't safely be resumed, aborted or settled; ``reasons`` lists why, each with a ``code``."""

    code = "recovery-refused"


class InvalidRecordError(_Error, ValueError):
    """The value passed as an execution record is not one."""

    code = "invalid-record"


class EnvelopeError(_Error, ValueError):
    """A request to agents is invalid; ``key`` names the offending part."""

    code = "envelope"


class RegistryError(_Error, ValueError):
    """An agent's registration is invalid, or the registry that was asked for does not exist."""

    code = "registry"


class RoutingFailedError(_Error):
    """No agent answered a request; ``failure`` says why, and its ``caused_by`` what failed first."""

    code = "routing-failed"


class IntentionError(_Error, ValueError):
    """An intention is invalid; none of it was carried out, and nothing was logged."""

    code = "intention"


class DanglingCauseError(IntentionError):
    """The cause named by an event is not an event of this log, or is of the wrong kind; ``cause`` is the reference."""

    code = "dangling-cause"

    cause: Any


class UnknownObjectError(IntentionError):
    """An intention refers to an object that the world does not contain; ``object`` is its id."""

    code = "unknown-object"

    object: str


class UnreadEventsError(IntentionError):
    """A request was answered but no responder consumes the answer; ``unread`` lists such answers. They are carried out
    and logged."""

    code = "unread-events"

    unread: list[dict[str, Any]]


class PendingRequestsError(_Error):
    """Requests are unanswered and nothing is left that could answer them; ``pending`` lists them, each with its
    ``reason``."""

    code = "pending-requests"

    pending: list[dict[str, Any]]


class RecordedError(_Error):
    """A recorded exception whose own class is not loaded; ``type_name``, ``recorded_args`` and the text are preserved."""

    code = "recorded"

    def __str__(self) -> str:
        return self.what
