"""What a log says about its steps after a crash: finished, failed, given up or pending, and inside which others.

One pass over the raw entries (references are not resolved), with a small object per step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from .._journal.entry import (
    FAMILIES,
    READS,
    REFUSALS,
    SINGLES,
    family_of,
    imported_from,
    info_of,
    meta_of,
    read_by_library,
)
from .doubt import lost
from .redaction import Originals

if TYPE_CHECKING:
    from .._journal.reader import EntryBlock

__all__ = ["CLASSES", "RecoveredLog", "RecoveredStep", "declared_settlement", "steps_in_doubt"]

State = Literal["pending", "done", "failed", "given_up"]
#: The known side-effect classes. A step of an unknown class counts as one without a class.
CLASSES: Final = frozenset(("read_only", "reversible", "irreversible"))
#: Types that are not effects, whatever their ``meta`` says; ``REFUSALS`` were not executed.
_NO_EFFECTS: Final = SINGLES | READS | REFUSALS
#: Types that only announce later steps, and may name their class.
_ANNOUNCEMENTS: Final = frozenset(("contract.validated", "budget.estimated"))


#: States of a step in ``RecoveredSteps``, by ``seq``: no step; begun, or plainly done, without an object; with an
#: object.
_NONE, _BEGUN, _DONE, _MADE = range(4)


#: The role of an entry's type in ``RecoveredLog.take``; other types have to be looked at individually.
_IS_INTENT, _IS_OUTCOME, _IS_NOTHING = 1, 2, 3


class RecoveredStep:
    """One step of a log. ``inner`` is the innermost enclosing step that a replay does not run (0: none), ``outcome``
    its last outcome.

    ``duplicate`` marks a call answered by an earlier one, ``settled`` one that a person decided, ``in_doubt`` a failure
    after which the effect may still have happened. ``hidden`` is ``redacted`` or ``opaque`` if the log lacks part of
    the output.
    """

    __slots__ = (
        "attempt", "chunks", "continued_at", "covered", "declared_done", "duplicate", "family", "first_chunk", "hidden", "in_doubt",
        "inner", "key_by", "lane", "lost", "name", "outcome", "passed", "seq", "settled", "side_effect", "state", "type", "undeclared",
        "undoes",
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
        #: Whether its effect is undeclared: a process.
        self.undeclared: Final = info.get("undeclared") is True
        #: The step that this one undoes (a compensation), or 0.
        self.undoes: Final[int] = info["compensates"] if type(info.get("compensates")) is int else 0
        #: For an exactly-once call, the fingerprint of the secret under which its key was made.
        self.key_by: Final[Any] = None if self.duplicate else info.get("once_by")
        self.state: State = "pending"
        self.outcome = 0
        self.settled = False
        #: What a person last declared: done or not done; ``None`` if nobody did.
        self.declared_done: bool | None = None
        #: The enclosing step that a person has settled together with this one, or 0.
        self.covered = 0
        self.in_doubt = False
        self.hidden: str | None = None
        self.chunks = 0
        self.first_chunk = 0
        self.continued_at = 0
        #: Whether it failed inconclusively: it timed out, its response was lost, or it was broken off.
        self.lost = False
        #: Whether the program went on after its failure, in the calling lane or around it.
        self.passed = False

    @property
    def effect(self) -> bool:
        """Whether it may have had an irreversible effect."""
        return self.side_effect not in ("read_only", "reversible") and not self.duplicate

    @property
    def stands(self) -> bool:
        """Whether it has had, or may have had, an effect that another call would repeat."""
        return self.effect and self.state != "given_up"

    @property
    def may_have_happened(self) -> bool:
        """Whether it is unknown if its irreversible effect happened; in an incomplete run, every failure leaves that
        open."""
        return self.effect and self.open and not self.covered

    @property
    def open(self) -> bool:
        """Whether its result is unknown: it has no outcome, or a failure that nobody has settled."""
        return self.state == "pending" or (self.state == "failed" and not self.settled)

    @property
    def left_in_doubt(self) -> bool:
        """The same for a run that has ended: its program knows about an ordinary failure and went on."""
        return self.may_have_happened and (self.state == "pending" or self.lost)

    def about(self) -> dict[str, Any]:
        """Return its facts, for whoever repeats it."""
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


class RecoveredSteps(Mapping[int, RecoveredStep]):
    """The steps of a log, by ``seq``, in order. The object of a step that was plainly done is created on access."""

    __slots__ = ("_inner", "_made", "load", "outcomes", "states")

    def __init__(self, inner: array[int]) -> None:
        self._made: dict[int, RecoveredStep] = {}
        #: By entry, the innermost enclosing step.
        self._inner: Final = inner
        self.states: Final = bytearray(1)
        #: For steps without an object.
        self.outcomes: Final = array("I", [0])
        #: Loads an entry of the log, if there are steps without an object.
        self.load: Callable[[int], Mapping[str, Any]] | None = None

    def add(self, step: RecoveredStep) -> None:
        self._made[step.seq] = step
        self.states[step.seq] = _MADE

    def __getitem__(self, seq: int) -> RecoveredStep:
        step = self._made.get(seq)
        if step is None:
            if seq not in self or self.load is None:
                raise KeyError(seq)
            entry = self.load(seq)
            family = family_of(entry["type"])
            assert family is not None
            step = RecoveredStep(entry, family[0], self._inner[seq])
            if self.states[seq] == _DONE:
                step.state, step.outcome = "done", self.outcomes[seq]
            self.add(step)
        return step

    def get(self, seq: Any) -> RecoveredStep | None:  # type: ignore[override]
        step = self._made.get(seq)
        return self[seq] if step is None and seq in self else step

    def __contains__(self, seq: object) -> bool:
        return type(seq) is int and 0 < seq < len(self.states) and self.states[seq] != _NONE

    def __iter__(self) -> Iterator[int]:
        return iter([*self._made] if self.load is None else [seq for seq, state in enumerate(self.states) if state])

    def __len__(self) -> int:
        return len(self.states) - self.states.count(_NONE)

    def values(self) -> list[RecoveredStep]:  # type: ignore[override]
        """Return all steps as objects."""
        return [self[seq] for seq in self]

    def notable(self) -> Iterable[RecoveredStep]:
        """Return all steps except those plainly done whose enclosing steps all have outcomes, too."""
        if self.load is None:
            return self._made.values()
        for seq in _places(self.states, _BEGUN):
            self[seq]
        if any(step.state == "pending" for step in self._made.values()):
            for seq in _places(self.states, _DONE):
                if self._inner[seq] and self._within_pending(self._inner[seq]):
                    self[seq]
        return [step for _, step in sorted(self._made.items())]

    def _within_pending(self, inner: int) -> bool:
        while inner:
            step = self._made.get(inner)
            if step is not None and step.state == "pending":
                return True
            inner = self._inner[inner]
        return False


def _places(states: bytearray, state: int) -> list[int]:
    return [*compress(range(len(states)), map(state.__eq__, states))] if state in states else []


_TAKEN: Final = tuple(
    {
        **{
            kind: number
            for family, types in FAMILIES.items()
            if family not in ("process", "span")  # a process goes on as long as its program
            for kind, number in ((types.intent, _IS_INTENT), (types.outcome, _IS_OUTCOME))
        },
        **dict.fromkeys((*FAMILIES["span"], "blob", *sorted(SINGLES | READS)), _IS_NOTHING),
    }.items()
)


class RecoveredLog:
    """What a log says about its steps, built from all entries in order.

    ``steps`` has tools, model calls and exchanges by ``seq``; the body of a span runs again anyway. ``crossed`` are
    ``boundary`` entries, outside all steps; ``unknown`` are effects of types that this tracekit does not know;
    ``recoveries`` counts recoveries; ``abort`` is where an operator's abort began (0: nowhere). Placeholders whose
    values ``originals`` has don't count as redacted.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]] = (), originals: Originals | None = None) -> None:
        self._originals: Final = originals
        #: By entry, the innermost enclosing step.
        self._inner: Final = array("Q", [0])
        self.steps: Final = RecoveredSteps(self._inner)
        self.unknown: Final[list[Mapping[str, Any]]] = []
        self.crossed: Final[list[Mapping[str, Any]]] = []
        self.recoveries = 0
        self.abort = 0
        self.durability: Any = None
        #: The run's name, if its log has one.
        self.name: str | None = None
        #: The tool that it was imported from.
        self.imported_from: str | None = None
        #: What the log says about the processes that wrote it, one after the other.
        self.writers: Final[list[Mapping[str, Any]]] = []
        self.last_lane = 0
        #: The processes that were started: name, lane, and the step in which each was started, or 0.
        self.processes: Final[list[tuple[str, int, int]]] = []
        #: The lanes of processes that are steps themselves.
        self.captured: Final[set[int]] = set()
        self._under: Final[dict[int, int]] = {}
        #: Entries with an opaque part, which others may refer to.
        self._opaque: Final[set[int]] = set()
        #: Streams without an outcome, by the lanes that read them.
        self._streams: Final[dict[int, set[int]]] = {}
        #: Failed effects, by the lanes in which the program may go on after them.
        self._failed: Final[dict[int, set[int]]] = {}
        self._parents: Final[dict[int, int]] = {}
        for entry in entries:
            self.add(entry)

    @classmethod
    def begin(cls, path: str) -> RecoveredLog:
        return cls((), Originals(path))

    def enclosing(self, step: RecoveredStep) -> Iterable[RecoveredStep]:
        """Yield the steps around ``step`` that a replay answers as a whole, inside out."""
        seq = step.inner
        while seq:
            yield (around := self.steps[seq])
            seq = around.inner

    def settled_with(self, step: RecoveredStep) -> Iterator[RecoveredStep]:
        """Yield the steps around ``step`` that a person settles together with it, inside out.

        An exactly-once call is settled by itself, with everything inside: it answers calls other than the enclosing
        one. So is a step that undoes another.
        """
        for one in (step, *self.enclosing(step)):
            if one is not step:
                yield one
            if one.key_by is not None or one.undoes:
                return

    def _settle(self, step: RecoveredStep, done: bool) -> None:
        """A person has settled ``step``, and thereby whatever was open inside it, unless that is repeated with the
        step."""
        step.settled, step.declared_done = True, done
        for inner in self.steps.notable():
            if inner.duplicate or not any(around is step for around in self.settled_with(inner)):
                continue
            if step.state == "given_up":
                inner.covered = 0
            elif inner.open:
                inner.covered = step.seq

    def below(self, step: RecoveredStep) -> Iterator[RecoveredStep]:
        """Yield the lasting effects inside ``step``, except what undid it."""
        for inner in self.steps.values():
            if inner.stands and inner.undoes != step.seq and any(one.seq == step.seq for one in self.enclosing(inner)):
                yield inner

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry."""
        if self._originals is not None:
            entry = self._originals.lacks(entry)
        seq, kind, lane = entry["seq"], entry["type"], entry["lane"]
        parent = entry.get("parent", 0)
        inner = parent if self.steps.states[parent] else self._inner[parent]
        inner = inner or self._under.get(lane, 0)
        self._inner.append(inner)
        self.steps.states.append(_NONE)
        self.steps.outcomes.append(0)
        found = family_of(kind)
        if (found is not None or kind == "blob") and any(
            self._is_opaque(entry[key]) for key in ("input", "output") if key in entry
        ):
            self._opaque.add(seq)
        if found is not None or (kind in _NO_EFFECTS and not read_by_library(entry)):
            if lane in self._streams:
                self._continued(seq, entry.get("step", 0), inner, self._streams[lane])
            if lane in self._failed:
                self._passed(inner, lane)
            if found is not None and found[0] != "span":
                self._step(entry, found[0], found[1], inner)
            return
        if kind == "lane":
            about = entry.get("input")
            if isinstance(about, dict) and type(about.get("id")) is int:
                self._lane(about["id"], about.get("parent"), about.get("under"))
                if about.get("process"):
                    number = about["id"]
                    self.processes.append((str(about.get("name")), number, self._under.get(number, 0) or inner))
        elif kind == "boundary":
            self.crossed.append(entry)
        elif kind == "recovery.settled":
            if (step := self.steps.get(entry.get("step", 0))) is not None:
                self._settle(step, _declared_done(entry))
        elif kind == "recovery.started":
            meta = meta_of(entry)
            self._written_by(meta)
            if "abort" in meta:
                self.abort = self.abort or seq
            else:
                self.recoveries += 1
        elif kind == "run.started":
            meta, name = meta_of(entry), entry.get("name")
            self._written_by(meta)
            self.durability = meta.get("durability")
            if seq == 1:
                self.name = name if isinstance(name, str) else None
                self.imported_from = imported_from(entry)
        elif kind not in _ANNOUNCEMENTS and _meta(entry)[0].get("side_effect", "read_only") != "read_only":
            self.unknown.append(entry)

    #: See ``reader.BlockCollector``; the keys that ``add`` looks for in the ``meta`` of the types handled in blocks.
    watched: ClassVar = (b"duplicate_of", b"compensates", b"once_by", b"settled", b"in_doubt", b"start", b"redacted")

    def take(self, block: EntryBlock, marks: int, load: Callable[[int], Mapping[str, Any]]) -> None:
        """Take the entries of a block: like ``add`` for each, but without creating objects for calls that were plainly
        done."""
        self.steps.load = load
        kinds = block.kinds(_TAKEN)
        marks |= block.OPAQUE
        if self._opaque or block.has(block.OPAQUE):
            marks |= block.REFERS
        for start, end in block.stretches(kinds, marks):
            if start:
                self.add(block.entry(start - 1))
            while start < end:
                start = self._take(block, kinds, start, end)
                if start < end:
                    self.add(block.entry(start))
                    start += 1

    def _take(self, block: EntryBlock, kinds: bytes, start: int, end: int) -> int:
        """Take usual entries up to ``end``; return the first that has to be looked at individually, or ``end``."""
        lanes = block.lanes[start:end]
        busy = {lane for waiting in (self._streams, self._failed) for lane, steps in waiting.items() if steps}
        if not busy.isdisjoint(lanes):
            lanes = lanes[: next(at for at, lane in enumerate(lanes) if lane in busy)]
            end = start + len(lanes)
        inner, under, states, outcomes = self._inner, self._under, self.steps.states, self.steps.outcomes
        first = seq = block.first + start
        outcomes.extend(array("I", bytes(outcomes.itemsize * len(lanes))))
        for kind, lane, parent, step in zip(
            kinds[start:end], lanes, block.parents[start:end], block.steps[start:end], strict=True
        ):
            if kind == _IS_OUTCOME and states[step]:
                if states[step] != _BEGUN:
                    break
                states[step] = _DONE
                outcomes[step] = seq
            around = parent if states[parent] else inner[parent]
            inner.append(around or under.get(lane, 0) if under else around)
            states.append(_BEGUN if kind == _IS_INTENT else _NONE)
            seq += 1
        del outcomes[seq:]
        return start + seq - first

    def undeclared(self, seq: int) -> bool:
        """Return whether this is a step whose effect nobody has declared: a process."""
        step = self.steps.get(seq)
        return step is not None and step.undeclared

    def _written_by(self, meta: Mapping[str, Any]) -> None:
        about = meta.get("writer")
        self.writers.append(about if isinstance(about, Mapping) else {})

    def _lane(self, number: int, parent: Any, under: Any) -> None:
        self.last_lane = max(self.last_lane, number)
        if type(parent) is int and parent < number:
            self._parents[number] = parent
        if type(under) is int and under in self.steps:
            self._under[number] = under

    def _step(self, entry: Mapping[str, Any], family: str, role: str, inner: int) -> None:
        if role == "intent":
            self.steps.add(RecoveredStep(entry, family, inner))
            if family == "process":  # it goes on as long as its program
                self._streams.setdefault(entry["lane"], set()).add(entry["seq"])
                self.captured.add(_meta(entry)[1].get("lane", 0))
            return
        step = self.steps.get(entry.get("step", 0))
        if step is None:
            return  # an outcome without an intent record: no effect
        meta, info = _meta(entry)
        if role == "chunk":
            self._chunk(step, entry, meta)
        else:
            self._outcome(step, entry, role, meta, info)

    def _chunk(self, step: RecoveredStep, entry: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        step.chunks += 1
        step.first_chunk = step.first_chunk or entry["seq"]
        self._hides(step, entry, meta)
        for lane in {step.lane, entry["lane"]}:
            self._streams.setdefault(lane, set()).add(step.seq)

    def _outcome(
        self, step: RecoveredStep, entry: Mapping[str, Any], role: str, meta: Mapping[str, Any], info: Mapping[str, Any]
    ) -> None:
        """The last outcome counts: a person may settle a failed step."""
        settled = "settled" in info or "settled" in meta
        if settled or "output" in entry:
            step.hidden = None if settled or not step.chunks else step.hidden
        step.outcome = entry["seq"]
        step.duplicate = step.duplicate or "duplicate_of" in info or "duplicate_of" in meta
        step.in_doubt = bool(meta.get("in_doubt") or info.get("in_doubt"))
        if role == "skipped" and "output" not in entry and "error" not in entry:
            step.state = "given_up"
        elif meta.get("start") == "failed":  # a process that never existed
            step.state = "done"
        elif role == "error" or (role == "skipped" and "error" in entry):
            step.state = "failed"
            step.hidden = "redacted" if meta.get("redacted") else None
            step.lost = lost(meta, entry.get("output"))
            self._may_pass(step)
        else:
            step.state = "done"
            self._hides(step, entry, meta)
        if settled:
            self._settle(step, step.state != "given_up")
        if step.chunks or step.family == "process":
            for streams in self._streams.values():
                streams.discard(step.seq)

    def _hides(self, step: RecoveredStep, entry: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if meta.get("redacted"):
            step.hidden = "redacted"
        elif step.hidden is None and entry["seq"] in self._opaque:
            step.hidden = "opaque"

    def _continued(self, seq: int, step: int, inner: int, streams: set[int]) -> None:
        """Something happened in the lane of a stream whose pieces were read: note it, unless it belongs to the stream
        itself."""
        for stream in streams:
            if step == stream or self.steps[stream].continued_at:
                continue
            if not self._inside(inner, stream):
                self.steps[stream].continued_at = seq

    def _may_pass(self, step: RecoveredStep) -> None:
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
            inner = self._inner[inner]
        return inner == step

    def _is_opaque(self, tree: Any) -> bool:
        """Return whether something in ``tree``, or in what it refers to, could not be recorded."""
        stack = [tree]
        while stack:
            node = stack.pop()
            if type(node) is dict:
                other = node.get("$ref", node.get("$extend"))
                if node.get("$t") == "opaque" or (type(other) is int and other in self._opaque):
                    return True
                stack.extend(node.values())
            elif type(node) is list:
                stack.extend(node)
        return False


def _meta(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return ``meta`` and ``meta.info`` of an entry, which may be malformed."""
    return meta_of(entry), info_of(entry)


def _class(family: str, meta: Mapping[str, Any]) -> str | None:
    """Return the recorded class, by default read-only for a model call; ``None`` if it is unknown."""
    found = meta.get("side_effect", "read_only" if family == "llm" else None)
    return found if isinstance(found, str) and found in CLASSES else None


def declared_settlement(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a person has declared about a step, if that is what this entry of the log holds."""
    settlement = _meta(entry)[1].get("settled")
    return settlement if isinstance(settlement, dict) else None


def _declared_done(entry: Mapping[str, Any]) -> bool:
    return (declared_settlement(entry) or {}).get("done") is True


def steps_in_doubt(log: RecoveredLog, *, live: bool = False) -> tuple[int, ...]:
    """Return the steps whose effect may or may not have happened. ``live``: the run is being executed, so pending steps
    are in progress."""
    found = {entry["seq"] for entry in log.unknown}
    for one in log.steps.notable():
        if one.may_have_happened and not (live and one.state == "pending"):
            found.add(one.seq)
    return tuple(sorted(found))
