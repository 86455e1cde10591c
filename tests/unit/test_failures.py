"""Failures: every exception has a type, a way to recover and its causes; as data they come back exactly."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import http.client
import inspect
import json
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
from contextlib import suppress
from datetime import timedelta
from email.message import Message
from pathlib import Path
from typing import Any

import httpx
import httpx2
import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tracing import of_type
from tracekit import errors, record, recorded_failures, replay, traced, traced_tool
from tracekit.failures import DEFAULTS, FailureType, RecoveryStrategy, StructuredFailure, classify
from tracekit.failures.classify import classify_recorded

T, S = FailureType, RecoveryStrategy


def answered(status: int, headers: dict[str, str] | None = None, library: Any = httpx) -> Exception:
    request = library.Request("POST", "http://provider/v1")
    response = library.Response(status, headers=headers, request=request)
    return library.HTTPStatusError(f"status {status}", request=request, response=response)


class Order(pydantic.BaseModel):
    cents: int


def raised(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def urllib_error(status: int, **headers: str) -> urllib.error.HTTPError:
    told = Message()
    for name, value in headers.items():
        told[name.replace("_", "-")] = value
    with urllib.error.HTTPError("http://provider/v1", status, "no", told, None) as error:
        return error


class NoAgentFound(LookupError): ...


class RoutingError(Exception): ...


class AgentCrashedError(Exception): ...


class FallbackExhaustedError(Exception): ...


class SideEffectViolationError(Exception): ...


#: An exception, its type, its strategy, and the word for its kind.
TABLE: list[tuple[BaseException, FailureType, RecoveryStrategy, str | None]] = [
    # ours
    (errors.ContractViolationError("x"), T.CONTRACT_VIOLATION, S.ABORT, None),
    (errors.BudgetExceededError("x"), T.BUDGET_EXCEEDED, S.ABORT, None),
    (errors.StepTimeoutError("x"), T.TIMEOUT, S.RETRY, None),
    (errors.LogWriteError("x"), T.LOG_INTEGRITY, S.MANUAL_INTERVENTION, None),
    (errors.TraceIntegrityError("x"), T.LOG_INTEGRITY, S.MANUAL_INTERVENTION, None),
    (errors.TraceVersionError("x"), T.LOG_INTEGRITY, S.MANUAL_INTERVENTION, None),
    (errors.RecoveryRefusedError("x"), T.RECOVERY_ERROR, S.MANUAL_INTERVENTION, None),
    (errors.DivergenceError("x"), T.RECOVERY_ERROR, S.MANUAL_INTERVENTION, None),
    (errors.LiveCallBlockedError("x"), T.SIDE_EFFECT_VIOLATION, S.ABORT, None),
    (errors.RunEndedError("x"), T.SIDE_EFFECT_VIOLATION, S.ABORT, None),
    (errors.RunStateError("x"), T.INVALID_INPUT, S.ABORT, None),
    (errors.RunNotFoundError("x"), T.INVALID_INPUT, S.ABORT, None),
    (errors.EventCycleError("x"), T.LOG_INTEGRITY, S.MANUAL_INTERVENTION, None),
    (errors.UndecidedComparisonError("x"), T.LOG_INTEGRITY, S.MANUAL_INTERVENTION, None),
    (errors.InvalidMessageError("x"), T.INVALID_INPUT, S.ABORT, None),
    (errors.EnvelopeError("x"), T.INVALID_INPUT, S.ABORT, None),
    (errors.RoutingFailedError("x"), T.ROUTING_ERROR, S.FALLBACK, None),
    (errors.UnknownPriceError("x"), T.BUDGET_EXCEEDED, S.ABORT, None),
    # named after their type
    (NoAgentFound("x"), T.NO_AGENT_FOUND, S.ABORT, None),
    (RoutingError("x"), T.ROUTING_ERROR, S.FALLBACK, None),
    (AgentCrashedError("x"), T.AGENT_CRASHED, S.ABORT, None),
    (FallbackExhaustedError("x"), T.FALLBACK_EXHAUSTED, S.ABORT, None),
    (SideEffectViolationError("x"), T.SIDE_EFFECT_VIOLATION, S.ABORT, None),
    # time
    (TimeoutError("x"), T.TIMEOUT, S.RETRY, None),
    (asyncio.TimeoutError(), T.TIMEOUT, S.RETRY, None),  # noqa: UP041 - the name that programs use
    (concurrent.futures.TimeoutError(), T.TIMEOUT, S.RETRY, None),
    (socket.timeout("x"), T.TIMEOUT, S.RETRY, None),  # noqa: UP041
    (subprocess.TimeoutExpired("ls", 1), T.TIMEOUT, S.RETRY, None),
    (httpx.ConnectTimeout("x"), T.TIMEOUT, S.RETRY, None),
    (httpx2.PoolTimeout("x"), T.TIMEOUT, S.RETRY, None),
    (OSError(errno.ETIMEDOUT, "x"), T.TIMEOUT, S.RETRY, None),
    # the way there
    (ConnectionRefusedError(errno.ECONNREFUSED, "x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (BrokenPipeError(errno.EPIPE, "x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (OSError(errno.ENETUNREACH, "x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (socket.gaierror(-2, "no such name"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (ssl.SSLError(1, "x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (urllib.error.URLError("x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (httpx.ConnectError("x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (httpx2.ReadError("x"), T.NETWORK, S.RETRY_AFTER_DELAY, None),
    (httpx.RemoteProtocolError("x"), T.TRANSPORT, S.RETRY_AFTER_DELAY, "protocol"),
    (httpx2.DecodingError("x"), T.TRANSPORT, S.RETRY_AFTER_DELAY, "decoding"),
    (http.client.IncompleteRead(b""), T.TRANSPORT, S.RETRY_AFTER_DELAY, "protocol"),
    (httpx.UnsupportedProtocol("x"), T.INVALID_INPUT, S.ABORT, "url"),
    # answers
    (answered(400), T.INVALID_INPUT, S.ABORT, None),
    (answered(401), T.AGENT_UNAVAILABLE, S.MANUAL_INTERVENTION, "authentication"),
    (answered(403, library=httpx2), T.AGENT_UNAVAILABLE, S.MANUAL_INTERVENTION, "permission"),
    (answered(404), T.INVALID_INPUT, S.ABORT, "not_found"),
    (answered(408), T.TIMEOUT, S.RETRY_AFTER_DELAY, None),
    (answered(413), T.INVALID_INPUT, S.ABORT, "too_large"),
    (answered(422), T.INVALID_INPUT, S.ABORT, None),
    (answered(429), T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, "rate_limit"),
    (answered(500), T.TRANSPORT, S.RETRY_AFTER_DELAY, "server_error"),
    (answered(502), T.TRANSPORT, S.RETRY_AFTER_DELAY, "server_error"),
    (answered(503), T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, "overloaded"),
    (answered(504), T.TIMEOUT, S.RETRY_AFTER_DELAY, None),
    (answered(529), T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, "overloaded"),
    (urllib_error(429), T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, "rate_limit"),
    # shapes
    (raised(Order.model_validate, {"cents": "many"}), T.SCHEMA_VALIDATION, S.ABORT, None),
    (jsonschema.ValidationError("x"), T.SCHEMA_VALIDATION, S.ABORT, None),
    (raised(json.loads, "{"), T.SCHEMA_VALIDATION, S.ABORT, None),
    # the program's own
    (ValueError("x"), T.AGENT_ERROR, S.FALLBACK, None),
    (TypeError("x"), T.AGENT_ERROR, S.FALLBACK, None),
    (FileNotFoundError(errno.ENOENT, "x"), T.AGENT_ERROR, S.FALLBACK, None),
    (PermissionError(errno.EACCES, "x"), T.AGENT_ERROR, S.FALLBACK, None),
    (MemoryError(), T.AGENT_CRASHED, S.ABORT, None),
    (KeyboardInterrupt(), T.AGENT_CRASHED, S.ABORT, "interrupted"),
    (asyncio.CancelledError(), T.UNKNOWN, S.ABORT, "cancelled"),
]
#: The answer on an exception of httpx is recorded under ``instrument()``: see the tests with the real SDKs.
RECORDED = [row for row in TABLE if type(row[0]).__name__ != "HTTPStatusError"]


@pytest.mark.parametrize(("error", "kind", "strategy", "word"), TABLE, ids=lambda value: type(value).__name__)
def test_each_exception_has_its_type(
    error: BaseException, kind: FailureType, strategy: RecoveryStrategy, word: str | None
) -> None:
    """What an exception means: its type, what to do, whether that can help; and where it happened is kept."""
    failure = classify(error, run_id="r", step=7, name="search", agent="planner")
    assert (failure.type, failure.recovery_strategy, failure.details.get("kind")) == (kind, strategy, word)
    assert failure.recoverable is (strategy not in (S.ABORT, S.MANUAL_INTERVENTION))
    assert (failure.run_id, failure.step, failure.name, failure.agent) == ("r", 7, "search", "planner")
    assert failure.exception == f"{type(error).__module__}:{type(error).__qualname__}"
    assert failure.reason
    assert StructuredFailure.from_json(failure.to_json()) == failure


@pytest.mark.parametrize(("error", "kind", "strategy", "word"), RECORDED, ids=lambda value: type(value).__name__)
def test_a_recorded_exception_is_what_the_live_one_was(
    error: BaseException, kind: FailureType, strategy: RecoveryStrategy, word: str | None
) -> None:
    """Traces without a recorded failure are classified from the exception that they hold, with the same answer."""
    from tracekit._values import exception_to_json

    tree = json.loads(json.dumps(exception_to_json(error)))
    failure = classify_recorded(tree)
    if kind not in (T.UNKNOWN, T.AGENT_CRASHED):
        assert (failure.type, failure.recovery_strategy) == (kind, strategy)
    assert failure.reason == classify(error).reason


def test_every_type_and_strategy_has_its_place() -> None:
    """The taxonomy is closed: eighteen types, each with what it calls for; what needs a person is not recoverable."""
    assert set(DEFAULTS) == set(FailureType)
    assert len(FailureType) == 18
    for outlook in DEFAULTS.values():
        assert outlook.recoverable is (outlook.strategy not in (S.ABORT, S.MANUAL_INTERVENTION))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "20"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0.0),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_the_other_side_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    """Retry-After in milliseconds, seconds or as a date (by the answer's own clock); nonsense is no wait."""
    failure = classify(answered(429, headers))
    assert failure.retry_after_s == seconds
    assert failure.recovery_strategy is S.RETRY_AFTER_DELAY
    assert classify(urllib_error(503, **{k.replace("-", "_"): v for k, v in headers.items()})).retry_after_s == seconds


def test_a_wait_may_stand_on_the_exception_itself() -> None:
    """``retry_after`` as a number or a timedelta; what would be retried at once is retried after it."""
    error = TimeoutError("busy")
    error.retry_after = timedelta(seconds=3)  # type: ignore[attr-defined]
    failure = classify(error)
    assert (failure.retry_after_s, failure.recovery_strategy) == (3.0, S.RETRY_AFTER_DELAY)
    error.retry_after = True  # type: ignore[attr-defined]
    assert classify(error).retry_after_s is None


def test_whatever_an_irreversible_step_raises_needs_a_person() -> None:
    """The type is irreversible_step_failed, the failure proper stands behind it; other classes change nothing."""
    for error, kind, _, _ in TABLE:
        failure = classify(error, side_effect="irreversible", name="pay")
        assert failure.type is T.IRREVERSIBLE_STEP_FAILED
        assert failure.recovery_strategy is S.MANUAL_INTERVENTION
        assert not failure.recoverable
        assert failure.caused_by is not None
        assert failure.caused_by.type is kind
    assert classify(TimeoutError(), side_effect="reversible").type is T.TIMEOUT


def chained() -> BaseException:
    try:
        try:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        except OSError as error:
            raise TimeoutError("slow") from error
    except TimeoutError:
        try:
            raise RuntimeError("gave up")
        except RuntimeError as error:
            return error


def test_causes_are_followed() -> None:
    """`raise … from` and what was being handled are the chain; `from None` ends it; a circle and a long chain end."""
    chain = [failure.type for failure in classify(chained()).chain()]
    assert chain == [T.AGENT_ERROR, T.TIMEOUT, T.NETWORK]
    error = chained()
    error.__suppress_context__ = True
    assert classify(error).caused_by is None
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert len(list(classify(first).chain())) == 2
    long: BaseException = ValueError("0")
    for number in range(500):
        outer = ValueError(str(number))
        outer.__cause__, long = long, outer
    assert 2 < len(list(classify(long).chain())) < 20


def test_the_gravest_member_speaks_for_a_group() -> None:
    """A group is of the type of the member that is hardest to recover from, and waits as long as any asks for."""
    group = ExceptionGroup("both", [answered(429, {"retry-after": "9"}), ExceptionGroup("in", [answered(401)])])
    failure = classify(group)
    assert (failure.type, failure.recovery_strategy, failure.recoverable) == (
        T.AGENT_UNAVAILABLE,
        S.MANUAL_INTERVENTION,
        False,
    )
    assert failure.retry_after_s == 9.0
    assert failure.details["members"] == 2
    assert [behind.type for behind in failure.chain()][-1] is T.AGENT_UNAVAILABLE
    own = ExceptionGroup("own", [ValueError()])
    own.__cause__ = own
    assert classify(own).type is T.AGENT_ERROR


def test_an_exception_that_knows_its_failure_is_believed() -> None:
    """An error that carries a StructuredFailure as ``failure`` is that one."""
    error = RuntimeError("x")
    error.failure = StructuredFailure(type=T.NO_AGENT_FOUND, reason="nobody")  # type: ignore[attr-defined]
    assert classify(error, run_id="r") == StructuredFailure(type=T.NO_AGENT_FOUND, reason="nobody", run_id="r")


def test_no_exception_breaks_the_classification() -> None:
    """Properties, texts and headers that raise are passed over."""

    class Hostile(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("no response")

        @property
        def headers(self) -> Any:
            return 5

        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert classify(Hostile()).type is T.AGENT_ERROR


# -- as data -------------------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BASE = st.fixed_dictionaries(
    {"type": st.sampled_from(FailureType), "reason": TEXT},
    optional={
        "run_id": TEXT,
        "step": st.integers(1, 2**53) | TEXT,
        "name": TEXT,
        "agent": TEXT,
        "exception": TEXT,
        "details": st.dictionaries(TEXT, JSON, max_size=3),
        "recoverable": st.booleans(),
        "recovery_strategy": st.sampled_from(RecoveryStrategy),
        "retry_after_s": st.floats(0, 1e9),
    },
)
FAILURES = st.recursive(
    BASE.map(lambda given: StructuredFailure(**given)),
    lambda inner: st.tuples(BASE, inner).map(lambda pair: StructuredFailure(**pair[0], caused_by=pair[1])),
    max_leaves=4,
)


@given(FAILURES)
def test_json_both_ways(failure: StructuredFailure) -> None:
    """What is written comes back equal, from the dictionary and from its JSON."""
    assert StructuredFailure.from_json(failure.to_json()) == failure
    assert StructuredFailure.from_dict(failure.as_dict()) == failure
    assert json.loads(failure.to_json()) == failure.as_dict()


@given(JSON | st.dictionaries(st.sampled_from([*StructuredFailure.__dataclass_fields__, "failure_type"]), JSON))
def test_garbage_is_refused_in_words(tree: Any) -> None:
    """Anything else is a ValueError that says what is wrong, never another exception."""
    try:
        failure = StructuredFailure.from_dict(tree)
    except ValueError as error:
        told = str(error)
    else:
        told = f"failure {StructuredFailure.from_dict(failure.as_dict()) == failure}"
    assert "failure" in told
    assert told != "failure False"


def test_other_names_are_read() -> None:
    """What another runtime wrote under its names is read, unknown keys are passed over."""
    told = {
        "failure_type": "wal_integrity_error",
        "execution_id": "exec-001",
        "step_id": "step-1",
        "agent_name": "agent-1",
        "reason": "a bad line",
        "details": {"line": 3},
        "recoverable": False,
        "recovery_strategy": "abort",
        "timestamp_iso": "2026-01-03T10:30:00Z",
        "caused_by": {"failure_type": "schema_validation_error", "reason": "no JSON"},
    }
    failure = StructuredFailure.from_dict(told)
    assert (failure.type, failure.run_id, failure.step, failure.agent) == (
        T.LOG_INTEGRITY, "exec-001", "step-1", "agent-1",
    )  # fmt: skip
    assert failure.recovery_strategy is S.ABORT
    assert failure.caused_by is not None
    assert failure.caused_by.type is T.SCHEMA_VALIDATION
    assert FailureType("transport_error") is T.TRANSPORT
    assert FailureType("network_error") is T.NETWORK


def test_what_is_wrong_is_named() -> None:
    """The key and the value stand in the error; a chain of causes may not be endless."""
    for tree, words in [
        ({"type": "lost_patience", "reason": ""}, "lost_patience"),
        ({"reason": "x"}, "`type`"),
        ({"type": "timeout"}, "`reason`"),
        ({"type": "timeout", "reason": 5}, "`reason`"),
        ({"type": "timeout", "reason": "", "recoverable": 1}, "`recoverable`"),
        ({"type": "timeout", "reason": "", "step": True}, "`step`"),
        ({"type": "timeout", "reason": "", "retry_after_s": -1}, "`retry_after_s`"),
        ({"type": "timeout", "reason": "", "caused_by": []}, "object"),
        ([], "object"),
    ]:
        with pytest.raises(ValueError, match=words):
            StructuredFailure.from_dict(tree)  # type: ignore[arg-type]
    deep: dict[str, Any] = {"type": "timeout", "reason": ""}
    for _ in range(1000):
        deep = {"type": "timeout", "reason": "", "caused_by": deep}
    with pytest.raises(ValueError, match="causes"):
        StructuredFailure.from_dict(deep)
    with pytest.raises(ValueError, match="JSON"):
        StructuredFailure.from_json("{")
    with pytest.raises(ValueError, match="JSON"):
        StructuredFailure(type=T.TIMEOUT, reason="", details={"x": object()}).to_json()


def test_a_failure_can_not_be_changed() -> None:
    """Neither its fields nor, through the dictionary that it was made of, its details."""
    details = {"kind": "x"}
    failure = StructuredFailure(type=T.TIMEOUT, reason="", details=details)
    details["kind"] = "y"
    assert failure.details == {"kind": "x"}
    with pytest.raises(AttributeError):
        failure.reason = "other"  # type: ignore[misc]


# -- in the trace --------------------------------------------------------------------------------------------------------------

made: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    made.clear()


@traced_tool(side_effect="read_only")
def search(query: str) -> str:
    made.append(query)
    raise TimeoutError(f"no answer for {query}")


@traced_tool(side_effect="irreversible")
def pay(cents: int) -> str:
    made.append(f"pay {cents}")
    raise ConnectionResetError(errno.ECONNRESET, "reset")


@traced(name="agent")
def agent(tool: Any, *args: Any) -> None:
    try:
        tool(*args)
    except OSError as error:
        raise RuntimeError("gave up") from error


def failing(*body: Any, **options: Any) -> Any:
    with pytest.raises(RuntimeError), record("failing", **options) as run:
        agent(*body)
    return run


def test_the_log_says_what_failed_and_why() -> None:
    """The tool's error, the span's end and the run's end each carry theirs; the run names the innermost step."""
    run = failing(search, "owls")
    (tool,), (span,), (end,) = (of_type(run, kind) for kind in ("tool.error", "span.end", "run.failed"))
    assert tool["meta"]["failure"] == {
        "type": "timeout", "reason": "no answer for owls", "exception": "builtins:TimeoutError", "recoverable": True,
        "recovery_strategy": "retry",
    }  # fmt: skip
    assert span["meta"]["failure"]["type"] == "agent_error"
    failure = end["meta"]["failure"]
    assert (failure["type"], failure["step"], failure["name"]) == ("agent_error", tool["step"], "search")
    assert failure["caused_by"]["type"] == "timeout"


@traced_tool(side_effect="reversible")
def order(*, wrapped: bool) -> None:
    try:
        lose()
    except ConnectionError as error:
        if wrapped:
            raise TimeoutError("the order failed") from error
        raise


@traced_tool(side_effect="irreversible")
def lose() -> None:
    raise ConnectionError("lost")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_failed_by_an_irreversible_one_inside_it_is_not_to_be_repeated(wrapped: bool) -> None:
    """A reversible tool that passes on what an irreversible one inside it raised, as it is or as the cause of its own
    error, is never listed as recoverable by a retry: that would make the irreversible call again."""
    with suppress(ConnectionError, TimeoutError), record("shop") as run:
        order(wrapped=wrapped)
    found = list(recorded_failures(run.id))
    assert [one.family for one in found] == ["tool", "tool", "run"]
    assert {one.failure.type.value for one in found} == {"irreversible_step_failed"}
    assert not any(one.failure.recoverable for one in found)
    assert len({one.step for one in found}) == 1  # the step that a person settles


@traced_tool(side_effect="irreversible")
def book() -> None:
    pass


@traced_tool(side_effect="irreversible", exactly_once=True)
def book_once() -> None:
    pass


@traced_tool(side_effect="reversible")
def reserve(place: str) -> None:
    {"inside": book, "deeper": around, "in a thread": in_a_thread, "once": book_once, "not": len}[place](
        *(("",) if place == "not" else ())
    )
    raise ConnectionError("lost afterwards")


@traced
def around() -> None:
    book()


def in_a_thread() -> None:
    worker = threading.Thread(target=book)
    worker.start()
    worker.join()


@pytest.mark.parametrize("place", ["inside", "deeper", "in a thread", "once", "not"])
def test_a_step_that_failed_after_an_irreversible_one_inside_it_is_not_to_be_repeated(place: str) -> None:
    """However well that ended: repeating the step would repeat it, unless a repetition gets the first one's result. What
    happened before the step, or beside it, says nothing."""
    with suppress(ConnectionError), record("shop") as run:
        book()
        reserve(place)
    step, whole = recorded_failures(run.id)
    assert (step.name, step.failure.type.value, whole.failure.type.value) == ("reserve", "network", "network")
    repeated = place in ("once", "not")
    assert step.failure.recoverable is whole.failure.recoverable is repeated
    assert step.failure.recovery_strategy.value == ("retry_after_delay" if repeated else "manual_intervention")
    assert ("irreversible_inside" in step.failure.details) is not repeated


def test_an_irreversible_step_counts_whoever_is_on_the_device_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's irreversible step that began before is heard of only after: the one inside still counts."""
    numbered, over = threading.Event(), threading.Event()

    @traced_tool(side_effect="reversible")
    def reserved() -> None:
        book()
        over.set()
        other.join()
        raise ConnectionError("lost afterwards")

    with suppress(ConnectionError), record("shop") as run, monkeypatch.context() as patch:
        session: Any = run._session
        sync = session.log.journal.sync

        def late(seq: int | None = None) -> None:
            if threading.current_thread() is other:
                numbered.set()
                over.wait(60)
            sync(seq)

        patch.setattr(session.log.journal, "sync", late)
        other = threading.Thread(target=book)
        other.start()
        numbered.wait(60)
        reserved()
    step, _ = recorded_failures(run.id)
    assert not step.failure.recoverable
    assert "irreversible_inside" in step.failure.details


def test_a_run_that_failed_by_an_irreversible_step_says_so() -> None:
    """However the program wraps the exception: a person has to look."""
    run = failing(pay, 500)
    (tool,), (end,) = of_type(run, "tool.error"), of_type(run, "run.failed")
    for failure in (tool["meta"]["failure"], end["meta"]["failure"]):
        assert failure["type"] == "irreversible_step_failed"
        assert failure["recovery_strategy"] == "manual_intervention"
    assert tool["meta"]["failure"]["caused_by"]["type"] == "network"
    assert end["meta"]["failure"]["step"] == tool["step"]


def test_the_last_attempt_is_the_one_that_the_run_ended_by() -> None:
    """Equal exceptions of earlier attempts, which are gone by then, are not taken for it."""

    def program() -> None:
        for _ in range(5):
            try:
                search("owls")
            except TimeoutError:
                pass
        search("owls")

    with pytest.raises(TimeoutError), record("attempts") as run:
        program()
    assert of_type(run, "run.failed")[0]["meta"]["failure"]["step"] == of_type(run, "tool.error")[-1]["step"]


def test_secrets_stay_out_of_failures() -> None:
    """Reasons and causes are redacted before they are cut, so that no half of a secret is left."""
    secret = "sk-proj-" + "Ab3" * 20
    for place in range(200, 310, 7):
        run = failing(search, "x" * place + " " + secret)
        assert b"Ab3Ab3" not in Path(run.path).read_bytes()


def test_replay_is_as_exact_as_before() -> None:
    """A run that failed is replayed, nothing is called, and the same exceptions come back."""
    run = failing(pay, 500)
    assert made == ["pay 500"]
    with pytest.raises(RuntimeError) as caught, replay(run.id) as session:
        agent(pay, 500)
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert made == ["pay 500"]
    assert session.report.exact


@pytest.mark.parametrize("room", range(200, 206))
def test_the_recursion_limit_is_no_reason_to_lose_the_step(room: int) -> None:
    """At the limit a failure may not be classified; the error is recorded and raised as ever, and nothing wrong is said of
    it."""

    @traced_tool(side_effect="read_only")
    def deep() -> None:
        deep()

    def with_little_room() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack(0)) + room)
        try:
            deep()
        finally:
            sys.setrecursionlimit(limit)

    with pytest.raises(RecursionError), record("deep") as run:
        with_little_room()
    assert of_type(run, "tool.error")[0]["error"]["type"] == "builtins:RecursionError"
    assert not [one for one in run.warnings if "'deep'" in one]
    assert of_type(run, "run.failed")[0]["meta"]["failure"]["type"] in ("agent_crashed", "unknown")


def test_failures_of_a_run_in_python() -> None:
    """recorded_failures() yields them in order, with where they stand."""
    run = failing(search, "owls", agent="scout")
    found = list(recorded_failures(run.id))
    assert [each.at for each in found] == ["tool.error", "span.end", "run.failed"]
    assert [each.family for each in found] == ["tool", "span", "run"]
    assert {each.agent for each in found} == {"scout"}
    assert found[0].failure.run_id == found[0].run_id == run.id
    assert (found[0].failure.step, found[0].failure.name) == (of_type(run, "tool.call")[0]["seq"], "search")


def test_the_page_lists_each_type_as_it_is() -> None:
    """docs/reference/failures.md has the table of the code: recoverable and strategy of each type."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "failures.md").read_text("utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:4]] for line in page.splitlines() if line.startswith("| `")]
    told = {row[0]: (row[1], row[2]) for row in rows if row[0] in set(FailureType)}
    assert told == {
        kind.value: ("yes" if outlook.recoverable else "no", outlook.strategy.value)
        for kind, outlook in DEFAULTS.items()
    }


def test_the_schema_describes_what_is_recorded() -> None:
    """Each entry with a failure satisfies the published schema, which knows every type and strategy."""
    from tracekit._journal.entry import load_schema

    described = load_schema()["$defs"]["failure"]["properties"]
    assert described["type"]["enum"] == [kind.value for kind in FailureType]
    assert described["recovery_strategy"]["enum"] == [how.value for how in RecoveryStrategy]
    validator = jsonschema.Draft202012Validator(load_schema())
    run = failing(pay, 500)
    for entry in of_type(run, "tool.error", "span.end", "run.failed"):
        assert list(validator.iter_errors(entry)) == []
        entry["meta"]["failure"]["type"] = "tired"
        assert list(validator.iter_errors(entry)) != []


def test_every_error_of_tracekit_has_a_type() -> None:
    """None of them is told as the program's own error, or as unknown; but for the one that stands for another."""
    for name in errors.__all__:
        kind = classify(getattr(errors, name)("x")).type
        assert (kind in (T.AGENT_ERROR, T.UNKNOWN)) is (name in ("TracekitError", "RecordedError")), name
