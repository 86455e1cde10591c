"""Runs as recordings of agentloom."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from ..._canonical import from_json
from ..._capture.plugins import Dialect, discover
from ..._journal.reader import Trace
from ..view import Event, events
from .recording import NEWEST, Recording, Turn, request_hash

if TYPE_CHECKING:
    from ..._journal.runs import Store
    from ..runs import Recorded

__all__ = ["MARK", "exported", "origin"]

#: The key, in the input of a run that was imported, that says what the file was beside its answers.
MARK: Final = "agentloom_recording"
_MARKED: Final = {"version", "lists", "others", "events"}


def exported(
    *runs: Trace | str | os.PathLike[str] | Recorded, store: str | os.PathLike[str] | Store | None = None
) -> Recording:
    """What runs recorded (ids, paths, ``Run``s, open traces), as an agentloom recording: the answers of models, and the inter-agent events
    if agents spoke.

    An answer stands under its ``step_id``, if the call had one in its metadata, else under its request's hash; several under one key are
    its turns, in recorded order. Calls that failed or have no answer are left out: the format has no place for them. A run that was
    imported comes out as it went in.
    """
    if not runs:
        raise TypeError("exported() needs at least one run")
    with ExitStack() as stack:
        return _exported(_opened(runs, store, stack))


def _opened(runs: Iterable[Any], store: Any, stack: ExitStack) -> list[Trace]:
    from ..runs import files_of  # it reads what this module says of imported runs

    found: list[Trace] = []
    for run in runs:
        found += [run] if isinstance(run, Trace) else stack.enter_context(files_of(run, store=store))
    return found


def _exported(traces: list[Trace]) -> Recording:
    beside = origin(traces[0])
    answers: dict[str, list[Turn]] = {}
    for trace in traces:
        for key, turn in _answers(trace, imported=bool(beside)):
            answers.setdefault(key, []).append(turn)
    lists = set(beside.get("lists", ()))
    told: dict[str, Turn | list[Turn]] = {
        key: turns if len(turns) > 1 or key in lists else turns[0] for key, turns in answers.items()
    }
    found: list[Event] | None = beside.get("events")
    if not beside:
        seen = list(events(*traces))
        found = seen if any(event["event_type"] in ("task_sent", "task_received") for event in seen) else None
    return Recording(told, version=beside.get("version", NEWEST), events=found, others=beside.get("others"))


def origin(trace: Trace) -> dict[str, Any]:
    """What the file was beside its answers, if this run was imported from one."""
    trace.check()
    given = from_json(trace.expand(trace.entry(1).get("input")))
    mark = given.get(MARK) if isinstance(given, dict) else None
    return mark if isinstance(mark, dict) and mark.keys() == _MARKED else {}


class _Open:
    """A model call whose answer is still to come."""

    def __init__(self, entry: Mapping[str, Any], input: Any) -> None:
        self.meta: Final[Mapping[str, Any]] = entry.get("meta") or {}
        self.input: Final = input
        self.started: Final[int] = entry["ts_ns"]
        self.pieces: Final[list[Any]] = []

    @property
    def http(self) -> bool:
        """Whether it went over HTTP, in a protocol that a dialect reads."""
        return "dialect" in self.meta and isinstance(self.input, dict) and "url" in self.input

    def failed(self, output: Any) -> bool:
        """Whether the provider refused: an answer that the SDK makes an exception of, or asks again after."""
        told = [output, *(piece.get("head") for piece in self.pieces if isinstance(piece, dict))]
        status = next((one["status"] for one in told if isinstance(one, dict) and "status" in one), 200)
        return self.http and not 200 <= int(status) < 300


def _answers(trace: Trace, *, imported: bool) -> Iterable[tuple[str, Turn]]:
    asked: dict[int, _Open] = {}
    for entry in trace.entries():
        kind, seq = entry["type"], entry["seq"]
        if kind == "llm.request":
            asked[seq] = _Open(entry, trace.expand(entry.get("input"), before=seq))
        elif kind == "llm.chunk" and entry["step"] in asked:
            asked[entry["step"]].pieces.append(trace.expand(entry.get("output"), before=seq))
        elif kind == "llm.response" and entry["step"] in asked:
            call = asked.pop(entry["step"])
            output = trace.expand(entry.get("output"), before=seq)
            if call.failed(output):
                continue
            yield _key(call), from_json(output) if imported else _turn(call, output, entry)


def _key(call: _Open) -> str:
    step_id = call.meta.get("step_id")
    if isinstance(step_id, str):
        return step_id
    messages, parameters = _request(call)
    known = {name: parameters.pop(name, call.meta.get(name)) for name in ("temperature", "max_tokens")}
    model = parameters.pop("model", call.meta.get("model"))
    return request_hash(messages, model, known["temperature"], known["max_tokens"], parameters)


def _request(call: _Open) -> tuple[Any, dict[str, Any]]:
    """The messages of a request, and its other arguments."""
    given = call.input if isinstance(call.input, dict) else {"prompt": call.input}
    if call.http:
        given = given["body"] if isinstance(given.get("body"), dict) else {"prompt": given.get("body")}
    said = next((key for key in ("messages", "prompt", "input") if key in given), "")
    parameters = {key: value for key, value in given.items() if key not in (said, "parameters")}
    if isinstance(given.get("parameters"), dict):
        parameters.update(given["parameters"])
    messages = given.get(said)
    return ([{"role": "user", "content": messages}] if isinstance(messages, str) else messages), parameters


def _turn(call: _Open, output: Any, entry: Mapping[str, Any]) -> Turn:
    meta = entry.get("meta") or {}
    if isinstance(output, dict) and "content" in output and "status" not in output:
        return output  # in agentloom's own form
    said = _said(call, output)
    usage = meta.get("usage") or {}
    spent = [usage.get(name, 0) or 0 for name in ("input_tokens", "output_tokens")]
    turn: Turn = {
        "content": said["content"],
        "model": meta.get("model") or call.meta.get("model"),
        "usage": {
            "prompt_tokens": spent[0],
            "completion_tokens": spent[1],
            "total_tokens": usage.get("total_tokens") or sum(spent),
            "reasoning_tokens": usage.get("reasoning_tokens", 0) or 0,
        },
        "cost_usd": meta.get("cost_usd", 0.0) or 0.0,
        "latency_ms": (entry["ts_ns"] - call.started) / 1e6,
        "finish_reason": next(iter(meta.get("finish_reasons") or ()), "stop"),
    }
    return {**turn, "tool_calls": said["tool_calls"]} if said["tool_calls"] else turn


def _said(call: _Open, output: Any) -> dict[str, Any]:
    """Text and tool calls of an answer, read by the protocol's dialect where there is one."""
    dialect = _dialect(call.meta.get("dialect"))
    if dialect is not None and isinstance(output, dict):
        pieces = [from_json(piece) for piece in call.pieces]
        streamed = [piece for piece in pieces if isinstance(piece, (str, bytes))]
        body = b"".join(map(_bytes, streamed)) if pieces else output.get("body")
        read = dialect.read(body)
        return {"content": read.text, "tool_calls": [dict(made) for made in read.tool_calls]}
    if output is None and call.pieces:
        output = "".join(call.pieces) if all(isinstance(piece, str) for piece in call.pieces) else call.pieces
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, sort_keys=True)
    return {"content": text, "tool_calls": []}


def _dialect(name: Any) -> Dialect | None:
    every: Sequence[Dialect] = [dialect for integration in discover().values() for dialect in integration.dialects]
    return next((dialect for dialect in every if dialect.name == name), None)


def _bytes(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece
