"""The differences between two runs: steps aligned by lane and content, prompts by message, values by field.

Clocks, random numbers and how the runs were recorded are not compared, nor, unless requested, a transport's metadata
(dates, ids of requests and of tool calls, rate limits).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

from .._journal.entry import CHECKS
from .._runtime.matching import differences
from .._values import dumps
from .reading import (
    Change,
    FileView,
    ModelCall,
    Prompt,
    RunView,
    StepView,
    ToolRequest,
    alignment,
    plain,
    prompt_change,
)
from .wording import request_text

__all__ = ["EndDifference", "Op", "RunComparison", "StepDifference", "changes", "compare"]

Op = Literal["added", "removed", "changed", "moved"]

#: Headers with information about the transport, not the answer.
_OF_TRANSPORT: Final = re.compile(
    r"date|age|expires|etag|last-modified|via|server-timing|set-cookie|cf-.*|alt-svc|content-length|transfer-encoding|connection|keep-alive"
    r"|(x-)?(.*-)?request-?id|(x-)?(.*-)?trace-?(id|parent|state)|(x-)?(.*-)?ratelimit(-.*)?|retry-after(-ms)?|openai-processing-ms|x-envoy-.*"
)
#: Fields that a provider adds to an answer, and that differ in every call.
_OF_ANSWER: Final = frozenset(
    ("id", "created", "system_fingerprint", "service_tier", "request_id", "responseId", "created_at")
)


class StepDifference(NamedTuple):
    """One step that is not the same in both: ``before`` in the first run, ``now`` in the other.

    ``fields`` are the values that differ, each ``{"path", "recorded", "actual"}``, without an absent side; ``prompt``
    is how a model's prompt differs. A step that ``moved`` is in both, at another place in its lane.
    """

    op: Op
    before: StepView | None
    now: StepView | None
    fields: tuple[Mapping[str, Any], ...] = ()
    prompt: Change | None = None

    @property
    def step(self) -> StepView:
        """The step itself: the first run's, if it exists there."""
        found = self.now if self.before is None else self.before
        assert found is not None
        return found


class EndDifference(NamedTuple):
    """How the end of a run, or of one of its child processes, differs: its end, its result or its error."""

    before: FileView | None
    now: FileView | None
    fields: tuple[Mapping[str, Any], ...]


class _Lane:
    """The steps of one lane in one run, and the key by which each is found in the other run."""

    def __init__(self, file: FileView | None) -> None:
        self._file: Final = file
        self._seqs: Final = array("I")
        self.keys: Final[list[bytes]] = []

    def add(self, step: StepView, key: bytes) -> None:
        self._seqs.append(step.seq)
        self.keys.append(key)

    def __getitem__(self, at: int) -> StepView:
        assert self._file is not None
        return self._file.steps[self._seqs[at]]


class RunComparison:
    """The comparison of two runs: differing ``steps``, differing ``ends``; ``same`` is the number of equal steps.

    ``rest`` are the places of the first run's steps after the last one of their lane that both have made.
    """

    def __init__(self, before: RunView, now: RunView, *, transport: bool) -> None:
        self.before: Final = before
        self.now: Final = now
        self.steps: Final[list[StepDifference]] = []
        self.ends: Final[list[EndDifference]] = []
        self.same = 0
        self.rest: Final[set[int | str]] = set()
        self._transport: Final = transport
        for one, other in _processes(before, now):
            self._compare(one, other)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.steps or self.ends)

    def _compare(self, one: FileView | None, other: FileView | None) -> None:
        lanes: dict[str, tuple[_Lane, _Lane]] = {}
        for side, file in enumerate((one, other)):
            for step in () if file is None else file.steps.values():
                if step.kind != "boundary" and not step.bookkeeping and not step.type.startswith("run."):
                    if step.lane.path not in lanes:
                        lanes[step.lane.path] = _Lane(one), _Lane(other)
                    lanes[step.lane.path][side].add(step, self._key(step))
        found = [difference for before, now in lanes.values() for difference in self._aligned(before, now)]
        self.steps.extend(sorted(found, key=lambda difference: difference.step.seq))
        fields = differences(_end(one), _end(other))
        if fields:
            self.ends.append(EndDifference(one, other, tuple(fields)))

    def _aligned(self, before: _Lane, now: _Lane) -> Iterator[StepDifference]:
        removed: list[int] = []
        last = -1
        added: dict[bytes, deque[int]] = defaultdict(deque)
        # Steps with the same name at the same place are one step with another input.
        for op, i, j in alignment(before.keys, now.keys, lambda i, j: _named(before[i]) == _named(now[j])):
            if i is not None and j is not None:
                last = max(last, i)
                yield from self._changed(before[i], now[j], asked_the_same=op == "same")
            elif i is not None:
                removed.append(i)
            elif j is not None:
                added[now.keys[j]].append(j)
        for i in removed:
            elsewhere = added.get(before.keys[i])
            if elsewhere:
                yield StepDifference("moved", before[i], now[elsewhere.popleft()])
            else:
                if i > last:
                    self.rest.add(before[i].place)
                yield StepDifference("removed", before[i], None)
        yield from (StepDifference("added", None, now[j]) for left in added.values() for j in left)

    def _changed(self, before: StepView, now: StepView, *, asked_the_same: bool) -> Iterator[StepDifference]:
        """Yield the difference between two versions of a step, if there is one; ``asked_the_same``: they have one key."""
        recorded, actual, prompt = self._outcome(before), self._outcome(now), None
        if not asked_the_same:
            recorded, actual = {**self._asked(before), **recorded}, {**self._asked(now), **actual}
            if before.call is not None and now.call is not None:
                change = prompt_change(before, self._prompt(before.call), self._prompt(now.call))
                prompt = None if change.same else change
        fields = tuple(differences(recorded, actual))
        if fields or prompt is not None:
            yield StepDifference("changed", before, now, fields, prompt)
        else:
            self.same += 1

    def _key(self, step: StepView) -> bytes:
        """Return the key by which a step is found in the other run: a hash of its kind, name and input."""
        if step.call is None:
            asked = [self._quiet(step, step.input)]
        else:
            prompt = self._prompt(step.call)
            asked = [_request(step.call, prompt), repr(prompt.messages)]
        return sha256(dumps([*_named(step), *asked])).digest()[:16]

    def _asked(self, step: StepView) -> dict[str, Any]:
        """Return what is compared of a step's input, except for the messages of a prompt."""
        if step.call is not None:
            return {"input": _request(step.call, step.call.prompt)}
        inputs = self._quiet(step, step.input)
        return {} if inputs is None else {"input": inputs}

    def _outcome(self, step: StepView) -> dict[str, Any]:
        """Return what is compared of what came of a step."""
        found: dict[str, Any] = {}
        if step.calls:
            found["outcome"] = step.outcome
        if step.call is not None and not step.failed and not self._transport:
            answer = step.call.answer
            requests = [[one.name, one.arguments] for one in step.call.requested]
            answered = {"text": answer.text, "refusal": answer.refusal, "requests": requests}
            found["answer"] = {key: value for key, value in answered.items() if value}
        elif step.has_output:
            found["output"] = self._quiet(step, step.output)
        if step.chunks and (step.call is None or self._transport):
            found["pieces"] = [*step.pieces()]
        if (error := step.raised) is not None:
            found["error"] = error
        return found

    def _prompt(self, call: ModelCall) -> Prompt:
        return call.prompt if self._transport else _without_ids(call.prompt)

    def _quiet(self, step: StepView, value: Any) -> Any:
        if self._transport or step.kind not in ("http", "llm") or not isinstance(value, Mapping):
            return value
        found = {key: _without_transport(item) if key == "headers" else item for key, item in value.items()}
        if step.kind == "llm" and isinstance(found.get("body"), Mapping):
            found["body"] = {key: item for key, item in found["body"].items() if key not in _OF_ANSWER}
        return found


def compare(before: RunView, now: RunView, *, transport: bool = False) -> RunComparison:
    """Compare two runs; with ``transport``, dates, request ids and rate limits are compared, too."""
    return RunComparison(before, now, transport=transport)


def _processes(before: RunView, now: RunView) -> Iterator[tuple[FileView | None, FileView | None]]:
    """Yield pairs of files: the runs' own files, then those of their child processes, matched by the place of their
    start."""
    sides = [{file.process: file for file in view.files} for view in (before, now)]
    for process in dict.fromkeys((*sides[0], *sides[1])):
        yield sides[0].get(process), sides[1].get(process)


def _named(step: StepView) -> tuple[str, str]:
    """Return what a step is, whatever it was asked. The name of a model call is its model, which is a part of its input."""
    return step.type, "" if step.call is not None else step.name


def _request(call: ModelCall, prompt: Prompt) -> dict[str, Any]:
    """Return what a model was asked except for the messages, which are compared separately."""
    return {"model": call.model, "tools": [*prompt.tools], "parameters": plain(dict(prompt.parameters))}


def _end(file: FileView | None) -> dict[str, Any]:
    found: dict[str, Any] = {"outcome": None if file is None else file.ended}
    if file is not None and file.ended is not None:
        last = file.last
        if "output" in last:
            found["output"] = file.source.expand(last["output"], before=last["seq"])
        if isinstance(error := last.get("error"), Mapping):  # the place where it was raised is not compared
            found["error"] = {key: error.get(key) for key in ("type", "text")}
    return found


def _without_ids(prompt: Prompt) -> Prompt:
    """Return a prompt in which each request for a tool, and its result, is known by what was requested, and by its number
    among equal requests: the id that the provider gives to it is another one in every run."""
    names: dict[str, str] = {}
    equal: Counter[str] = Counter()

    def named(request: ToolRequest) -> ToolRequest:
        if request.id is None:
            return request
        if request.id not in names:
            text = request_text(request)
            equal[text] += 1
            names[request.id] = text if equal[text] == 1 else f"{text} ({equal[text]})"
        return request._replace(id=names[request.id])

    messages = []
    for one in prompt.messages:
        requests = tuple(map(named, one.requests))
        answers = None if one.answers is None else names.get(one.answers, one.answers)
        messages.append(one._replace(requests=requests, answers=answers))
    return prompt._replace(messages=tuple(messages))


def _without_transport(headers: Any) -> Any:
    if isinstance(headers, Mapping):
        return {name: value for name, value in headers.items() if not _OF_TRANSPORT.fullmatch(str(name).lower())}
    if isinstance(headers, list):
        return [
            one
            for one in headers
            if not (isinstance(one, list) and one and _OF_TRANSPORT.fullmatch(str(one[0]).lower()))
        ]
    return headers


# -- consequences of a change ------------------------------------------------------------------------------------------

#: Calls that a program makes to anything but models.
_CALLS: Final = ("tool", "http", "process")
_PLANS: Final = ("decision", "router.decision")
_SIGNS: Final[Mapping[Op, str]] = {"added": "added", "removed": "dropped", "changed": "changed", "moved": "moved"}


def changes(
    before: RunView, now: RunView, ended: Mapping[str, Any] | None = None, *, crashed: bool = False
) -> dict[str, Any]:
    """Return how a run differs from the one that it is a variation of, as JSON values: calls, decisions, result, models
    and cost.

    ``ended`` is the call at which it had to end, since nothing answers it (``"answered": false``); ``crashed``: its
    program ended with an exception of its own. What the recorded run did after that is ``"not reached"``, not dropped.
    """
    found = compare(before, now)
    calls = [_call(one) for one in found.steps if one.step.kind in _CALLS and _changed_call(one)]
    if ended is not None or crashed:
        for one in calls:
            if one["op"] == "dropped" and one["step"] in found.rest:
                one["op"] = "not reached"
    if ended is not None:
        # Without the recorded call in whose place it was made.
        calls = [one for one in calls if one["op"] not in ("dropped", "not reached") or one["step"] != ended["step"]]
        calls.append({"op": "added" if ended["step"] is None else "changed", **ended, "answered": False})
    own = next((one for one in found.ends if one.before is before.own), None)
    result = [] if own is None or ended is not None or crashed else [dict(one) for one in own.fields]
    decided = [one for one in found.steps if one.step.kind in CHECKS and one.op == "changed" and _of(one, "output")]
    return {
        "calls": calls,
        "decisions": [*_flips(before, decided)],
        "plans": sum(_other_plan(one) for one in found.steps),
        "result": result,
        "recorded": before.taken._asdict(),
        "now": now.taken._asdict(),
    }


def _other_plan(one: StepDifference) -> bool:
    """Return whether the program decided something else, or had something decided that was not before, or no longer."""
    return one.step.kind in _PLANS or (one.step.kind in CHECKS and one.op in ("added", "removed"))


def _changed_call(one: StepDifference) -> bool:
    """Return whether the program itself makes another call: not if only the answer, or its transport, differs."""
    return one.op != "changed" or bool(_of(one, "input"))


def _of(one: StepDifference, part: str) -> list[dict[str, Any]]:
    """Return the differing fields of one part of a step."""
    return [dict(field) for field in one.fields if re.split(r"[.\[]", str(field["path"]))[0] == part]


def _call(one: StepDifference) -> dict[str, Any]:
    found: dict[str, Any] = {
        "op": _SIGNS[one.op],
        "kind": one.step.type,
        "name": one.step.name,
        "differences": _of(one, "input"),
    }
    found["step"] = None if one.before is None else one.before.place
    if one.op in ("added", "removed"):
        found["input"] = plain(one.step.input)
    return found


def _flips(before: RunView, decided: Sequence[StepDifference]) -> Iterator[dict[str, Any]]:
    """Yield the differing decisions, and the effects that the recorded run had due to the old ones."""
    if not decided:
        return
    from .auditing import account_of

    behind: dict[int | str, list[dict[str, Any]]] = defaultdict(list)
    for action in account_of(before).actions:
        if action.effect and action.policy is not None:
            behind[action.policy.place].append({"step": action.step.place, "name": action.step.name})
    for one in decided:
        assert one.before is not None
        assert one.now is not None
        yield {
            "kind": one.step.kind,
            "name": one.step.name,
            "step": one.before.place,
            "input": plain(one.before.input),
            "recorded": plain(one.before.output),
            "actual": plain(one.now.output),
            "behind": behind[one.before.place],
        }
