"""Recordings of agentloom, another package that records agents: read, replayed and written."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

from ..errors import InvalidEventError, TraceError, TraceExhaustedError, TraceVersionError, UnconsumedStepsError
from ..integration import Dialect, HasPath, Store, Trace, discover, from_json, meta_of
from . import view
from .envelope import DoubledKeyError, once
from .graph import ordered
from .view import Event, check
from .view import events as view_events

__all__ = [
    "EVENTS",
    "MARK",
    "NEWEST",
    "Recording",
    "Replay",
    "Turn",
    "events",
    "events_of",
    "exported",
    "load",
    "loads",
    "origin",
    "request_hash",
]

# -- recordings ---------------------------------------------------------------------------------------------------------
#
# A recording of agentloom in memory, and its files.

#: The key that holds the inter-agent events.
EVENTS: Final = "_inter_agent_events"
_VERSION: Final = "_version"
#: The newest known version; the one that is written.
NEWEST: Final = 2

#: One answer, as in the file.
Turn: TypeAlias = dict[str, Any]


def request_hash(
    messages: Any,
    model: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    version: int = NEWEST,
) -> str:
    """Return the key of a request without a step id: SHA-256 over its JSON; in version 1 over its messages alone."""
    whole = {
        "messages": messages,
        "model": model,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "extra": dict(extra or {}),
    }
    text = json.dumps(messages if version < 2 else whole, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)


class Recording:
    """A recording in memory.

    ``answers`` holds, by key, an object or a list of turns, as in the file; ``events`` the inter-agent events
    (``None``: the file has no such key); ``others`` everything else that begins with ``_``.
    """

    def __init__(
        self,
        answers: Mapping[str, Turn | list[Turn]],
        *,
        version: int = NEWEST,
        events: Iterable[Event] | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.version: Final = version
        self.answers: Final = dict(answers)
        self.events: Final = None if events is None else ordered(events)
        self.others: Final = dict(others or {})

    def turns(self, key: str) -> list[Turn]:
        """Return the turns under a key, one or several."""
        found = self.answers[key]
        return found if isinstance(found, list) else [found]

    def as_dict(self) -> dict[str, Any]:
        """Return the object that the file contains."""
        head: dict[str, Any] = {} if self.version < 2 else {_VERSION: self.version}
        tail: dict[str, Any] = {} if self.events is None else {EVENTS: self.events}
        return {**head, **self.others, **self.answers, **tail}

    def dumps(self) -> str:
        """Return the file's text, in ASCII like agentloom's: half of a surrogate pair has no other form."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def replay(self) -> Replay:
        """Return a new replay of this recording from its beginning."""

        return Replay(self)


# -- files ---------------------------------------------------------------------------------------------------------------
#
# One JSON object: ``_version`` (2; absent in version 1), the answers of a model by step id or by the hash of the
# request, each an object or a list of turns, and in files written by tracekit ``_inter_agent_events``, the events of
# ``tracekit.agents.view``. Readers of agentloom ignore keys that begin with ``_``.
#
# Unlike agentloom's own, this replay has no default answer: a request that is not in the recording is an error. Each
# turn of a list answers once; an object under a step id answers once; an object under a request's hash answers that
# same request any number of times.


def load(path: str | os.PathLike[str]) -> Recording:
    """Read the recording in a file.

    Raises ``TraceError`` if it can't be read or is not a recording, ``TraceVersionError`` if it is newer.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise _unusable(os.fspath(path), f"can't be read: {error.strerror}") from None
    return loads(data, os.fspath(path))


def loads(data: bytes | str, path: str = "the recording") -> Recording:
    """Parse the recording in ``data``; ``path`` is for messages. Raises like ``load``."""
    try:
        tree = json.loads(data, object_pairs_hook=once)
    except DoubledKeyError as doubled:
        # Readers take the last of duplicate keys: an answer would be lost silently.
        raise _unusable(path, f"has the key {doubled.key!r:.80} twice in one object") from None
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise _unusable(path, "is not a JSON object")
    version = tree.pop(_VERSION, 1)
    if type(version) is not int or version < 1:
        raise _unusable(path, f"says that its version is {version!r:.80}")
    if version > NEWEST:
        raise TraceVersionError(
            f"{path} is an agentloom recording of version {version}; {NEWEST} is the newest known here",
            next_action="update tracekit, or record with an older agentloom",
        )
    found = tree.pop(EVENTS, None)
    others = {key: tree.pop(key) for key in list(tree) if key.startswith("_")}
    for key, answer in tree.items():
        if not isinstance(answer, dict) and not _are_turns(answer):
            raise _unusable(path, f"has neither an answer nor a list of turns under {key!r:.80}")
    return Recording(tree, version=version, events=None if found is None else _checked(found, path), others=others)


def _are_turns(answer: Any) -> bool:
    return isinstance(answer, list) and bool(answer) and all(isinstance(turn, dict) for turn in answer)


def _checked(found: Any, path: str) -> list[Event]:
    if not isinstance(found, list):
        raise _unusable(path, f"{EVENTS} is not a list")
    for number, event in enumerate(found, 1):
        problem = check(event)
        if problem is not None:
            raise InvalidEventError(
                f"{path}: event {number} of {EVENTS}: {problem}",
                line=number,
                problem=problem,
                ids=(),
                next_action="`tracekit schema inter-agent` prints what an event has to be",
            )
    return found


def _unusable(path: str, problem: str) -> TraceError:
    return TraceError(f"{path} {problem}", path=path, next_action="name a recording that agentloom or tracekit wrote")


# -- replaying ---------------------------------------------------------------------------------------------------------
#
# Answers to requests, from a recording of agentloom.


class Replay:
    """Answers requests from a recording; thread-safe. As a context manager it ends with ``finish``."""

    def __init__(self, recording: Recording) -> None:
        self.recording: Final = recording
        self._used: Final[dict[str, int]] = {}
        self._lock: Final = threading.RLock()

    def complete(
        self,
        messages: Any,
        model: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        *,
        step_id: str | None = None,
        **extra: Any,
    ) -> Turn:
        """Return the recorded answer to a request: by ``step_id`` if there is such a key, else by the request's hash.

        Raises ``TraceExhaustedError`` if the recording has no answer, or no further turn.
        """
        key = step_id if step_id is not None and step_id in self.recording.answers else None
        by_hash = key is None
        if key is None:
            key = request_hash(messages, model, temperature, max_tokens, extra, version=self.recording.version)
            if key not in self.recording.answers:
                raise self._miss(step_id, key)
        return self._turn(key, again=by_hash and not isinstance(self.recording.answers[key], list))

    async def acomplete(self, messages: Any, model: str | None = None, **rest: Any) -> Turn:
        """Return the recorded answer to a request, for ``await``; see ``complete``."""
        return self.complete(messages, model, **rest)

    def finish(self) -> None:
        """End the replay; raise ``UnconsumedStepsError`` if recorded answers were never requested."""
        left = [
            {"seq": turn + 1, "type": "llm.response", "name": key}
            for key in self.recording.answers
            for turn in range(self._used.get(key, 0), len(self.recording.turns(key)))
        ]
        if left:
            raise UnconsumedStepsError(
                f"{len(left)} recorded answers were never requested, the first under {left[0]['name']!r}",
                steps=left,
                next_action="see which step no longer asks; record again if the change is meant",
            )

    def _turn(self, key: str, *, again: bool) -> Turn:
        turns = self.recording.turns(key)
        with self._lock:
            place = 0 if again else self._used.get(key, 0)
            if place == len(turns):
                raise TraceExhaustedError(
                    f"the recording has {len(turns)} answers under {key!r}, and all of them are used",
                    kind="llm",
                    name=key,
                    next_action="the program asks once more than it did: see why, or record again",
                )
            self._used[key] = place + 1
        return json.loads(json.dumps(turns[place]))  # type: ignore[no-any-return]  # the caller's own copy

    def _miss(self, step_id: str | None, key: str) -> TraceExhaustedError:
        sought = f"neither step {step_id!r} nor" if step_id is not None else "no"
        return TraceExhaustedError(
            f"the recording has {sought} answer to this request ({key})",
            kind="llm",
            name=step_id or key,
            next_action="an argument of the request is not the recorded one; record again if that is meant",
        )

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()


# -- exporting ---------------------------------------------------------------------------------------------------------
#
# Runs as recordings of agentloom.

#: The key, in the input of an imported run, for the parts of the file besides its answers.
MARK: Final = "agentloom_recording"
_MARKED: Final = {"version", "lists", "others", "events"}


def exported(
    *runs: Trace | str | os.PathLike[str] | HasPath, store: str | os.PathLike[str] | Store | None = None
) -> Recording:
    """Return what runs recorded (ids, paths, ``Run``s, open traces) as an agentloom recording: models' answers, and any
    inter-agent events.

    An answer is stored under its ``step_id``, if the call had one in its metadata, else under its request's hash;
    several answers under one key are its turns, in recorded order. Calls that failed or have no answer are omitted: the
    format can't represent them. Exporting an imported run gives the original recording.
    """
    if not runs:
        raise TypeError("exported() needs at least one run")
    with ExitStack() as stack:
        return _exported(_opened(runs, store, stack))


def _opened(runs: Iterable[Any], store: Any, stack: ExitStack) -> list[Trace]:

    found: list[Trace] = []
    for run in runs:
        found += [run] if isinstance(run, Trace) else stack.enter_context(Store.at(store).files(run))
    return found


def _exported(traces: list[Trace]) -> Recording:
    beside = origin(traces[0])
    answers: dict[str, list[Turn]] = {}
    for trace in traces:
        for key, turn in _answers(trace, imported=bool(beside)):
            answers.setdefault(key, []).append(turn)
    lists = set(beside.get("lists", ()))
    by_key: dict[str, Turn | list[Turn]] = {
        key: turns if len(turns) > 1 or key in lists else turns[0] for key, turns in answers.items()
    }
    found: list[Event] | None = beside.get("events")
    if not beside:
        seen = list(view_events(*traces))
        found = seen if any(event["event_type"] in ("task_sent", "task_received") for event in seen) else None
    return Recording(by_key, version=beside.get("version", NEWEST), events=found, others=beside.get("others"))


def origin(trace: Trace) -> dict[str, Any]:
    """Return the parts of the imported file besides its answers; empty for a run that was not imported."""
    if not trace.check().count:
        return {}  # its process died before the run began
    request = from_json(trace.expand(trace.entry(1).get("input")))
    mark = request.get(MARK) if isinstance(request, dict) else None
    return mark if isinstance(mark, dict) and mark.keys() == _MARKED else {}


class _Open:
    """A model call without its answer yet."""

    def __init__(self, entry: Mapping[str, Any], input: Any) -> None:
        self.meta: Final[Mapping[str, Any]] = meta_of(entry)
        self.input: Final = input
        self.started: Final[int] = entry["ts_ns"]
        self.pieces: Final[list[Any]] = []

    @property
    def http(self) -> bool:
        """Whether it used HTTP, in a protocol that a dialect reads."""
        return "dialect" in self.meta and isinstance(self.input, dict) and "url" in self.input

    def failed(self, output: Any) -> bool:
        """Return whether the provider returned an error, for which the SDK raises or retries."""
        heads = [output, *(piece.get("head") for piece in self.pieces if isinstance(piece, dict))]
        status = next((one["status"] for one in heads if isinstance(one, dict) and "status" in one), 200)
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
    """Return the messages of a request, and its other arguments."""
    request = call.input if isinstance(call.input, dict) else {"prompt": call.input}
    if call.http:
        request = request["body"] if isinstance(request.get("body"), dict) else {"prompt": request.get("body")}
    where = next((key for key in ("messages", "prompt", "input") if key in request), "")
    parameters = {key: value for key, value in request.items() if key not in (where, "parameters")}
    if isinstance(request.get("parameters"), dict):
        parameters.update(request["parameters"])
    messages = request.get(where)
    return ([{"role": "user", "content": messages}] if isinstance(messages, str) else messages), parameters


def _turn(call: _Open, output: Any, entry: Mapping[str, Any]) -> Turn:
    meta = meta_of(entry)
    if isinstance(output, dict) and "content" in output and "status" not in output:
        return output  # in agentloom's own form
    content = _content(call, output)
    usage = meta.get("usage") or {}
    spent = [usage.get(name, 0) or 0 for name in ("input_tokens", "output_tokens")]
    turn: Turn = {
        "content": content["content"],
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
    return {**turn, "tool_calls": content["tool_calls"]} if content["tool_calls"] else turn


def _content(call: _Open, output: Any) -> dict[str, Any]:
    """Return text and tool calls of an answer, read by the protocol's dialect if there is one."""
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


# -- runs --------------------------------------------------------------------------------------------------------------
#
# The inter-agent events of runs, by id or by path.


def events(
    *runs: str | os.PathLike[str] | HasPath,
    store: str | os.PathLike[str] | Store | None = None,
    payloads: bool = False,
) -> list[Event]:
    """Return the events of runs (ids, paths or ``Run``s; including their child processes), file by file in recorded
    order.

    Name all runs that exchanged messages, so that ``ordered`` finds every parent. ``payloads`` adds the payloads. A run
    without an end has the events up to there. Raises ``RunNotFoundError``, and ``TraceIntegrityError`` for a damaged
    file.
    """
    with Store.at(store).files(*runs) as traces:
        return list(events_of(traces, payloads))


def events_of(traces: Iterable[Trace], payloads: bool = False) -> Iterator[Event]:
    """Yield the events of open traces, file by file; for an imported recording its own events, if it has any."""
    for trace in traces:
        imported = origin(trace).get("events")
        yield from view.events(trace, payloads=payloads) if imported is None else imported
