"""The record of one execution: a view of the trace, from the request to the final response."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from .._canonical import dumps_in_order, to_json
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import InvalidRecordError, RunNotFoundError
from ..failures import StructuredFailure
from .executions import Execution, indexed
from .recorded import id_of, parts, readable
from .shape import wrong

__all__ = ["ExecutionEvent", "ExecutionHeader", "ExecutionRecord", "HasPath", "place_of", "record_at", "schema"]


class HasPath(Protocol):
    """A run, as ``record()`` gives it."""

    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHeader:
    """Which execution it is, and whether its record can stand for it.

    ``execution_id`` is the run's id and the number of the entry that the request is in. A partial execution is not ``replayable``;
    ``replayable_reason`` says why. ``redacted``: placeholders stand for secrets in the answer, or in what is said of why there is none,
    which the log does not keep.
    """

    execution_id: str
    run_id: str
    created_utc_iso: str
    envelope_hash: str
    identity_hash: str
    replayable: bool
    replayable_reason: str | None = None
    redacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionEvent:
    """One event. ``seq`` (1, 2, 3 …) is the order, ``timestamp_ns`` information, ``entry`` its place in the trace."""

    seq: int
    type: str
    payload: Mapping[str, Any]
    timestamp_ns: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """A request, what was decided about it, each event, and the response: everything as the trace has it.

    ``router_decision`` and ``final_response`` are ``None`` where the execution did not come so far, and the latter where it could not be
    recorded; of an envelope that could not be there is only a sign (``{"$t": "opaque", …}``).
    """

    header: ExecutionHeader
    envelope: Mapping[str, Any]
    router_decision: Mapping[str, Any] | None
    events: tuple[ExecutionEvent, ...]
    final_response: Mapping[str, Any] | None

    @classmethod
    def all(
        cls, run: str | os.PathLike[str] | HasPath, *, store: str | os.PathLike[str] | None = None
    ) -> list[ExecutionRecord]:
        """The record of every execution in a run, in the order in which the requests came; those of its child processes after."""
        found = []
        for path in _paths(run, store):
            with indexed(path) as (trace, places):
                found += [_record(trace, place) for place in places]
        return found

    @classmethod
    def of(
        cls,
        run: str | os.PathLike[str] | HasPath,
        execution: str | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
    ) -> ExecutionRecord:
        """The record of the one execution in a run, or of the one with this ``execution_id``."""
        return record_at(*place_of(run, execution, store))

    @property
    def failure(self) -> StructuredFailure | None:
        """Why there is no answer, where there is none."""
        told = None if self.final_response is None else self.final_response["error"]
        return None if told is None else StructuredFailure.from_dict(told)

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON values, under the names that other systems use. What is no JSON is tagged, as in a trace."""
        return {
            "header": {key: getattr(self.header, name) for name, key in _HEADER},
            "envelope": to_json(dict(self.envelope)),
            "routerDecision": None if self.router_decision is None else to_json(dict(self.router_decision)),
            "events": [{key: to_json(getattr(event, name)) for name, key in _EVENT} for event in self.events],
            "finalResponse": None if self.final_response is None else to_json(dict(self.final_response)),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> ExecutionRecord:
        """The record that :meth:`as_dict` told. ``InvalidRecordError``, a ``ValueError``, for what is none."""
        if not isinstance(tree, Mapping):
            raise _none(f"it is no object but {tree!r:.80}")
        try:
            told = {key: readable(value)[0] for key, value in tree.items()}
        except (TypeError, ValueError, RecursionError) as error:
            raise _none(f"{type(error).__name__}: {error}") from None
        problem = wrong(told, schema())
        if problem is not None:
            raise _none(problem)
        header = {"redacted": False, **told["header"]}
        return cls(
            header=ExecutionHeader(**{name: header[key] for name, key in _HEADER}),
            envelope=told["envelope"],
            router_decision=told["routerDecision"],
            events=tuple(ExecutionEvent(**{name: event[key] for name, key in _EVENT}) for event in told["events"]),
            final_response=told["finalResponse"],
        )

    def to_json(self) -> str:
        """One line of JSON."""
        return dumps_in_order(self.as_dict()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> ExecutionRecord:
        """The record that :meth:`to_json` told. ``InvalidRecordError``, a ``ValueError``, for what is none."""
        try:
            tree = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise _none(str(error)) from None
        return cls.from_dict(tree)


def _none(problem: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"this is no record of an execution: {problem}",
        next_action="`tracekit schema execution` prints what one looks like; ExecutionRecord.of(run) makes it from a trace",
    )


def _keys(kind: Any, names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((one.name, names.get(one.name, one.name)) for one in fields(kind))


#: Field -> its name in JSON.
_HEADER: Final = _keys(
    ExecutionHeader,
    {
        "execution_id": "executionId",
        "run_id": "runId",
        "created_utc_iso": "createdUtcIso",
        "envelope_hash": "envelopeHash",
        "identity_hash": "identityHash",
        "replayable_reason": "replayableReason",
    },
)
_EVENT: Final = _keys(ExecutionEvent, {"timestamp_ns": "timestampNs"})


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a record as JSON, new each time."""
    with open(os.path.join(os.path.dirname(__file__), "execution.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _some(ids: list[str]) -> str:
    """The first few."""
    return ", ".join(ids[:5]) + (f", … ({len(ids)} in all)" if len(ids) > 5 else "")


# -- reading -------------------------------------------------------------------------------------------------------------------


def _shown(run: object) -> str:
    return str(getattr(run, "id", run))


def _paths(run: Any, store: str | os.PathLike[str] | None) -> Iterator[str]:
    path = getattr(run, "path", None)
    if path is None:
        path = Store(store).find(run)
    yield path
    directory = os.path.dirname(os.path.abspath(path))
    where = Store(os.path.dirname(directory))
    if where.runs == directory:
        yield from where.segments(os.path.splitext(os.path.basename(path))[0])


def place_of(
    run: str | os.PathLike[str] | HasPath, execution: str | None, store: str | os.PathLike[str] | None
) -> tuple[str, int]:
    """The file that an execution is in, and the how-manieth there it is; see :meth:`ExecutionRecord.of`."""
    found = [one for path in _paths(run, store) for one in _executions(path)]
    chosen = found if execution is None else [one for one in found if one[0] == execution]
    if len(chosen) == 1:
        return chosen[0][1:]
    ids = [one[0] for one in found]
    if not found:
        what, next_action = f"no intent was routed in run {_shown(run)}", "`tracekit show` says what happened in it"
    elif execution is not None:
        what, next_action = (
            f"there is no execution {execution!r} in run {_shown(run)}",
            f"say which: {_some(ids)}",
        )
    else:
        what, next_action = (
            f"{len(ids)} intents were routed in run {_shown(run)}",
            f"say which: {_some(ids)}",
        )
    raise RunNotFoundError(what, next_action=next_action, executions=ids)


def record_at(path: str, number: int) -> ExecutionRecord:
    """The record of an execution by its place."""
    with indexed(path) as (trace, places):
        return _record(trace, places[number])


def _executions(path: str) -> list[tuple[str, str, int]]:
    """Of each execution in a file its id, the file, and the how-manieth there it is."""
    with indexed(path) as (_, places):
        return [(id_of(path, place[0]), path, number) for number, place in enumerate(places)]


def _record(trace: Trace, place: Sequence[int]) -> ExecutionRecord:
    told = parts(trace, Execution(trace.entry(seq) for seq in place))
    events = tuple(ExecutionEvent(**event) for event in told.pop("events"))
    return ExecutionRecord(header=ExecutionHeader(**told.pop("header")), events=events, **told)
