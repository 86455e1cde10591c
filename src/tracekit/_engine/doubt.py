"""What a log says of its steps after a crash: finished, failed, given up or pending, and inside what.

One pass over the entries as they stand in the file (references are not followed), a small object a step.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from .._journal.entry import FAMILIES, READS, REFUSALS, SINGLES, family_of

__all__ = ["CLASSES", "Doubt", "Steps"]

State = Literal["pending", "done", "failed", "given_up"]

#: The side-effect classes. A step of any other is as good as one of none.
CLASSES: Final = frozenset(("read_only", "reversible", "irreversible"))
_INTENTIONS: Final = frozenset(types.intention for types in FAMILIES.values())
#: Types that are no step, whatever their ``meta`` says; ``REFUSALS`` were not made.
_NO_EFFECTS: Final = SINGLES | READS | REFUSALS
#: Types that only tell of steps to come, and may name their class.
_TOLD: Final = frozenset(("contract.validated", "budget.estimated"))


class Doubt:
    """One step. ``inner`` is the innermost enclosing step that a replay does not run (0: none), ``outcome`` its last outcome.

    ``duplicate`` marks a call that was answered by an earlier one, ``settled`` one that a person decided, ``in_doubt`` a failure
    after which the effect may still have happened. ``hidden`` is ``redacted`` or ``opaque`` where the log does not have the whole output.
    """

    __slots__ = (
        "attempt", "chunks", "duplicate", "family", "first_chunk", "hidden", "in_doubt", "inner", "key_by", "lane", "name", "outcome",
        "passed", "seq", "settled", "side_effect", "state", "type", "undoes", "went_on",
    )  # fmt: skip

    def __init__(self, entry: Mapping[str, Any], family: str, inner: int) -> None:
        meta, info = _meta(entry)
        self.seq: Final[int] = entry["seq"]
        self.type: Final[str] = entry["type"]
        self.lane: Final[int] = entry["lane"]
        self.name: Final[Any] = entry.get("name")
        self.family: Final = family
        self.inner: Final = inner
        self.side_effect: Final = _class(family, meta)
        self.attempt: Final[Any] = info.get("attempt", meta.get("attempt", 1))
        self.duplicate = "duplicate_of" in info
        #: The step that this one undoes (a compensation), or 0.
        self.undoes: Final[int] = info["compensates"] if type(info.get("compensates")) is int else 0
        #: Of a call that happens once: the secret that its key was made under.
        self.key_by: Final[Any] = None if self.duplicate else info.get("once_by")
        self.state: State = "pending"
        self.outcome = 0
        self.settled = False
        self.in_doubt = False
        self.hidden: str | None = None
        self.chunks = 0
        self.first_chunk = 0
        self.went_on = 0
        #: Whether the program has gone on after its failure: where it was called, or around that.
        self.passed = False

    @property
    def effect(self) -> bool:
        """Whether it may have done something that can't be taken back."""
        return self.side_effect not in ("read_only", "reversible") and not self.duplicate

    def about(self) -> dict[str, Any]:
        """Its facts, for whoever makes it again."""
        return {
            "step": self.seq,
            "type": self.type,
            "name": self.name,
            "side_effect": self.side_effect,
            "lane": self.lane,
            "attempt": self.attempt,
            "chunks": self.chunks,
            "inside": self.inner,
        }


class Steps:
    """Built from all entries in order. ``steps`` holds tools, model calls and exchanges by ``seq``; a span's body runs again anyway.

    ``unknown`` are effects of a type that this tracekit does not know, ``recoveries`` how often a recovery began, ``abort`` is where
    an operator's abort did (0: nowhere).
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self.steps: Final[dict[int, Doubt]] = {}
        self.unknown: Final[list[Mapping[str, Any]]] = []
        self.recoveries = 0
        self.abort = 0
        self.durability: Any = None
        self.last_lane = 0
        #: The processes that were started: each with its name and the step that it was started in, or 0.
        self.processes: Final[list[tuple[str, int]]] = []
        self._inner: Final = array("Q", [0])
        self._under: Final[dict[int, int]] = {}
        #: Blobs that hold something opaque.
        self._opaque: Final[set[int]] = set()
        #: Streams without an outcome, by the lanes that they were read in.
        self._streams: Final[dict[int, set[int]]] = {}
        #: Failed effects, by the lanes in which the program may go on after them.
        self._failed: Final[dict[int, set[int]]] = {}
        self._parents: Final[dict[int, int]] = {}
        for entry in entries:
            self._add(entry)

    def enclosing(self, step: Doubt) -> Iterable[Doubt]:
        """The steps around ``step`` that a replay answers as a whole, from the inside out."""
        seq = step.inner
        while seq:
            yield (around := self.steps[seq])
            seq = around.inner

    def _add(self, entry: Mapping[str, Any]) -> None:
        seq, kind, lane = entry["seq"], entry["type"], entry["lane"]
        parent = entry.get("parent", 0)
        inner = parent if parent in self.steps else self._inner[parent]
        inner = inner or self._under.get(lane, 0)
        self._inner.append(inner)
        found = family_of(kind)
        if found is not None or kind in _NO_EFFECTS:
            if lane in self._streams:
                self._went_on(seq, entry.get("step", 0), inner, self._streams[lane])
            if lane in self._failed:
                self._passed(inner, lane)
            if found is not None and found[0] != "span":
                self._step(entry, found[0], found[1], inner)
            return
        if kind == "blob":
            if self._is_opaque(entry.get("output")):
                self._opaque.add(seq)
        elif kind == "lane":
            about = entry.get("input")
            if isinstance(about, dict) and type(about.get("id")) is int:
                self._lane(about["id"], about.get("parent"), about.get("under"))
                if about.get("process"):
                    self.processes.append((str(about.get("name")), self._under.get(about["id"], 0) or inner))
        elif kind == "recovery.settled":
            if (step := self.steps.get(entry.get("step", 0))) is not None:
                step.settled = True
        elif kind == "recovery.started":
            if "abort" in _meta(entry)[0]:
                self.abort = self.abort or seq
            else:
                self.recoveries += 1
        elif kind == "run.started":
            self.durability = _meta(entry)[0].get("durability")
        elif kind not in _TOLD and _meta(entry)[0].get("side_effect", "read_only") != "read_only":
            self.unknown.append(entry)

    def _lane(self, number: int, parent: Any, under: Any) -> None:
        self.last_lane = max(self.last_lane, number)
        if type(parent) is int and parent < number:
            self._parents[number] = parent
        if type(under) is int and under in self.steps:
            self._under[number] = under

    def _step(self, entry: Mapping[str, Any], family: str, role: str, inner: int) -> None:
        if role == "intention":
            self.steps[entry["seq"]] = Doubt(entry, family, inner)
            return
        step = self.steps.get(entry.get("step", 0))
        if step is None:
            return  # an outcome of nothing: no intention, no effect
        meta, info = _meta(entry)
        if role == "chunk":
            self._chunk(step, entry, meta)
        else:
            self._outcome(step, entry, role, meta, info)

    def _chunk(self, step: Doubt, entry: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        step.chunks += 1
        step.first_chunk = step.first_chunk or entry["seq"]
        self._hides(step, entry, meta)
        for lane in {step.lane, entry["lane"]}:
            self._streams.setdefault(lane, set()).add(step.seq)

    def _outcome(
        self, step: Doubt, entry: Mapping[str, Any], role: str, meta: Mapping[str, Any], info: Mapping[str, Any]
    ) -> None:
        """The last outcome counts: a person may settle what had failed."""
        settled = "settled" in info or "settled" in meta
        if settled or "output" in entry:
            step.hidden = None if settled or not step.chunks else step.hidden
        step.outcome = entry["seq"]
        step.settled = step.settled or settled
        step.duplicate = step.duplicate or "duplicate_of" in info or "duplicate_of" in meta
        step.in_doubt = bool(meta.get("in_doubt") or info.get("in_doubt"))
        if role == "skipped" and "output" not in entry and "error" not in entry:
            step.state = "given_up"
        elif role == "error" or (role == "skipped" and "error" in entry):
            step.state = "failed"
            step.hidden = "redacted" if meta.get("redacted") else None
            self._may_pass(step)
        else:
            step.state = "done"
            self._hides(step, entry, meta)
        if step.chunks:
            for streams in self._streams.values():
                streams.discard(step.seq)

    def _hides(self, step: Doubt, entry: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if meta.get("redacted"):
            step.hidden = "redacted"
        elif step.hidden is None and self._is_opaque(entry.get("output")):
            step.hidden = "opaque"

    def _went_on(self, seq: int, step: int, inner: int, streams: set[int]) -> None:
        """Something happened in the lane of a stream whose pieces were read: note it, unless it is the stream's own."""
        for stream in streams:
            if step == stream or self.steps[stream].went_on:
                continue
            if not self._inside(inner, stream):
                self.steps[stream].went_on = seq

    def _may_pass(self, step: Doubt) -> None:
        lane: int | None = step.lane if step.effect else None
        while lane is not None:
            self._failed.setdefault(lane, set()).add(step.seq)
            lane = self._parents.get(lane)

    def _passed(self, inner: int, lane: int) -> None:
        """Something happened where the program goes on after failures: it has seen them."""
        for failed in [*self._failed[lane]]:
            if not self._inside(inner, failed):
                self.steps[failed].passed = True
                self._failed[lane].discard(failed)

    def _inside(self, inner: int, step: int) -> bool:
        while inner and inner != step:
            inner = self.steps[inner].inner
        return inner == step

    def _is_opaque(self, tree: Any) -> bool:
        """Whether something in ``tree``, or in what it refers to, could not be recorded."""
        stack = [tree]
        while stack:
            node = stack.pop()
            if type(node) is dict:
                blob = node.get("$ref", node.get("$extend"))
                if node.get("$t") == "opaque" or (type(blob) is int and blob in self._opaque):
                    return True
                stack.extend(node.values())
            elif type(node) is list:
                stack.extend(node)
        return False


def _class(family: str, meta: Mapping[str, Any]) -> str | None:
    """The recorded class; a model call is a read where nothing else is said. ``None`` for one that nobody knows."""
    found = meta.get("side_effect", "read_only" if family == "llm" else None)
    return found if isinstance(found, str) and found in CLASSES else None


def _meta(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """``meta`` and ``meta.info``; a trace may say anything."""
    meta = entry.get("meta")
    if not isinstance(meta, dict):
        return {}, {}
    info = meta.get("info")
    return meta, info if isinstance(info, dict) else {}
