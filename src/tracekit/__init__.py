"""tracekit: record what an LLM agent does, and replay the same code against the record.

::

    import tracekit
    from tracekit import record, replay, traced_tool

    tracekit.instrument()

    @traced_tool(side_effect="irreversible")
    def send_invoice(customer_id: str, amount: int) -> str: ...

    with record("billing") as run:
        agent("Bill ACME for October")

    with replay(run.id):
        agent("Bill ACME for October")     # no network, no side effect, same clock, same random numbers

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING, Final

from ._lazy import lazily as _lazily
from ._version import __version__

if TYPE_CHECKING:
    from ._capture.decorators import effect as effect
    from ._capture.decorators import traced as traced
    from ._capture.decorators import traced_model as traced_model
    from ._capture.decorators import traced_tool as traced_tool
    from ._capture.instrumentation import instrument as instrument
    from ._capture.instrumentation import uninstrument as uninstrument
    from ._capture.notes import agent as agent
    from ._capture.notes import breaker as breaker
    from ._capture.notes import data as data
    from ._capture.notes import decision as decision
    from ._capture.notes import detection as detection
    from ._capture.notes import policy_check as policy_check
    from ._capture.notes import state_transition as state_transition
    from ._journal.entry import SCHEMA_URI as SCHEMA_URI
    from ._policy.budget import limit as limit
    from ._policy.contract import ExecutionContract as ExecutionContract
    from ._policy.contract import SideEffectClass as SideEffectClass
    from ._policy.forecast import estimate as estimate
    from ._runs.corpus import CorpusReport as CorpusReport
    from ._runs.corpus import JudgedRun as JudgedRun
    from ._runs.corpus import Query as Query
    from ._runs.corpus import regress as regress
    from ._runs.failures import RecordedFailure as RecordedFailure
    from ._runs.failures import recorded_failures as recorded_failures
    from ._runs.recording import record as record
    from ._runs.replay import replay as replay
    from ._runs.resuming import resume as resume
    from ._runs.run import Run as Run
    from ._runs.run import current_run as current_run
    from ._runtime.prices import Price as Price
    from ._runtime.spending import Budget as Budget
    from ._runtime.verdict import Report as Report
    from .errors import BudgetExceededError as BudgetExceededError
    from .errors import ContractViolationError as ContractViolationError
    from .errors import DivergenceError as DivergenceError
    from .errors import InexactReplayError as InexactReplayError
    from .errors import InexactReplayWarning as InexactReplayWarning
    from .errors import LiveCallBlockedError as LiveCallBlockedError
    from .errors import LogWriteError as LogWriteError
    from .errors import NotReplayableError as NotReplayableError
    from .errors import RecordedError as RecordedError
    from .errors import RecoveryRefusedError as RecoveryRefusedError
    from .errors import ReplayError as ReplayError
    from .errors import RunEndedError as RunEndedError
    from .errors import RunNotFoundError as RunNotFoundError
    from .errors import RunStateError as RunStateError
    from .errors import StepTimeoutError as StepTimeoutError
    from .errors import TraceError as TraceError
    from .errors import TraceExhaustedError as TraceExhaustedError
    from .errors import TraceIntegrityError as TraceIntegrityError
    from .errors import TracekitError as TracekitError
    from .errors import TraceVersionError as TraceVersionError
    from .errors import UnconsumedStepsError as UnconsumedStepsError
    from .errors import UnknownPriceError as UnknownPriceError
    from .failures import FailureType as FailureType
    from .failures import RecoveryStrategy as RecoveryStrategy
    from .failures import StructuredFailure as StructuredFailure

#: Where each public name lives; it is imported when it is first used, so that ``import tracekit`` costs next to nothing.
_HOMES: Final = {
    "SCHEMA_URI": "_journal.entry",
    "CorpusReport": "_runs.corpus",
    "JudgedRun": "_runs.corpus",
    "Query": "_runs.corpus",
    "RecordedFailure": "_runs.failures",
    "Budget": "_runtime.spending",
    "Price": "_runtime.prices",
    "ExecutionContract": "_policy.contract",
    "Report": "_runtime.verdict",
    "SideEffectClass": "_policy.contract",
    "Run": "_runs.run",
    "agent": "_capture.notes",
    "breaker": "_capture.notes",
    "current_run": "_runs.run",
    "data": "_capture.notes",
    "decision": "_capture.notes",
    "detection": "_capture.notes",
    "effect": "_capture.decorators",
    "estimate": "_policy.forecast",
    "limit": "_policy.budget",
    "instrument": "_capture.instrumentation",
    "policy_check": "_capture.notes",
    "record": "_runs.recording",
    "recorded_failures": "_runs.failures",
    "regress": "_runs.corpus",
    "replay": "_runs.replay",
    "resume": "_runs.resuming",
    "state_transition": "_capture.notes",
    "traced": "_capture.decorators",
    "traced_model": "_capture.decorators",
    "traced_tool": "_capture.decorators",
    "uninstrument": "_capture.instrumentation",
    "BudgetExceededError": "errors",
    "ContractViolationError": "errors",
    "DivergenceError": "errors",
    "InexactReplayError": "errors",
    "InexactReplayWarning": "errors",
    "LiveCallBlockedError": "errors",
    "LogWriteError": "errors",
    "NotReplayableError": "errors",
    "RecordedError": "errors",
    "RecoveryRefusedError": "errors",
    "ReplayError": "errors",
    "RunEndedError": "errors",
    "RunNotFoundError": "errors",
    "RunStateError": "errors",
    "StepTimeoutError": "errors",
    "TraceError": "errors",
    "TraceExhaustedError": "errors",
    "TraceIntegrityError": "errors",
    "TraceVersionError": "errors",
    "TracekitError": "errors",
    "UnconsumedStepsError": "errors",
    "UnknownPriceError": "errors",
    "FailureType": "failures",
    "RecoveryStrategy": "failures",
    "StructuredFailure": "failures",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - the tests compare it with the names above


if not TYPE_CHECKING:  # a type checker takes a module with it for one that has every name
    __getattr__, __dir__ = _lazily(globals(), _HOMES)


# A process that a recorded program has started is part of the run from here on.
if "TRACEKIT_JOIN" in _os.environ:
    from ._runs.segments import join as _join

    _join()
