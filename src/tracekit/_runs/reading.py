"""A recorded run for readers: each step once, with input, outcome, duration and cost.

``tracekit show`` prints this model, and everything that compares, reports, exports or debugs runs is built on it::

    with read_run(path) as run:                     # or read_run(path, store): the run, and its child processes
        print(run.name, run.state, run.taken.cost_usd)
        for step in run.steps():                    # calls, decisions, errors, as they began; all=True: everything
            print(step.place, step.kind, step.name, step.state, step.took)
            if step.call is not None:               # a model call
                print(step.call.prompt.messages[-1].text, step.call.answer.text, step.call.answer.tool_calls)

Contents:

* ``RunView``: ``files``, one ``FileView`` for the run's own file and for each child process that joined it;
  ``steps()``, ``step(place)``, ``state``, ``taken`` (calls, tokens, dollars), ``verdict`` (whether it can be replayed),
  ``doubts``.
* ``StepView``: facts (``kind``, ``name``, ``lane``, ``agent``, ``side_effect``, ``outcome``, ``state``, ``took``) that
  are cheap to read, and values (``input``, ``output``, ``pieces``, ``error``) that are read from the file on access.
* ``ModelCall`` (``step.call``): ``model``, ``prompt`` (``Prompt``: messages, offered tools, parameters), ``answer``
  (text, requested tools, refusal), ``usage``, ``cost_usd``, ``changes``: how the prompt differs from the previous
  turn's.
* ``plain``: converts a recorded value to JSON that a person can read, without the tags of its Python types.

Traces are untrusted: nothing that they name is imported, and malformed values are read as far as possible.
"""

from __future__ import annotations

import os
from array import array
from base64 import b64decode
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from difflib import SequenceMatcher
from functools import cached_property
from itertools import compress, islice
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import orjson

from .._capture.plugins import Dialect, Reading, discover
from .._journal.entry import CHECKS, ENDS, READS, REFUSALS, branched_from, family_of, imported_from, meta_of
from .._journal.reader import Trace, Verdict
from .._journal.store import Store, beside, entries_of, holder, lane_of, last_entry, segment_in, shown_as
from .._lazy import expression
from .._runtime.boundary import Crossing, crossings_of
from .._runtime.prices import Prices
from .._runtime.redaction import Originals
from .._runtime.verdict import File, RunVerdict, judge
from ..errors import RunNotFoundError, TracekitError
from .recovery import decision_on, settlements

__all__ = [
    "GROUPS",
    "Change",
    "Edit",
    "FileView",
    "ModelCall",
    "Prompt",
    "PromptMessage",
    "RunView",
    "StepView",
    "Taken",
    "ToolRequest",
    "alignment",
    "alike",
    "body_text",
    "error_text",
    "plain",
    "plain_bytes",
    "prompt_change",
    "prompt_of",
    "read_run",
    "taken_in",
    "turn_before",
]

RunState = Literal["running", "complete", "failed", "aborted", "died", "broken"]
Op = Literal["same", "added", "removed", "changed"]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
StepState = Literal["done", "failed", "running", "in doubt", "cut off", "given up", "answered before"]

#: Entries about how a run was recorded, not about what it did.
_BOOKKEEPING: Final = (
    READS
    | {"lane", "identity", "blob", "input", "run.started", "contract.validated", "budget.estimated", "run.completed"}
    | {"recovery.completed", "pipe", "data"}
)
#: Kinds of steps that one word of a filter selects.
GROUPS: Final = {
    "decision": frozenset(("decision", "router.decision", *CHECKS, "state_transition", "intent.received")),
    "message": frozenset(("task_sent", "task_received", "response_sent", "final.response")),
    "fallback": frozenset(("fallback.triggered", "fallback.exhausted")),
    "refusal": REFUSALS,
    "recovery": frozenset(("recovery.started", "recovery.completed", "recovery.settled")),
    "run": frozenset(("run.started", *ENDS)),
}


# -- a run -------------------------------------------------------------------------------------------------------------


def read_run(path: str, store: Store | None = None) -> RunView:
    """Read and verify the run in the file at ``path`` and its child processes; a context manager that closes the files.

    Examples:
        >>> from tracekit import record, traced_tool
        >>> from tracekit.integration import read_run
        >>> @traced_tool(side_effect="read_only")
        ... def look_up(order):
        ...     return "lost"
        >>> with record("support") as run:
        ...     look_up("A-1042")
        'lost'
        >>> with read_run(run.path) as view:
        ...     view.state, [(step.name, step.input) for step in view.steps(kinds=("tool",))]
        ('complete', [('look_up', {'order': 'A-1042'})])
    """
    with ExitStack() as stack:
        where = Store.of(path) if store is None else store
        trace = stack.enter_context(Trace(path))
        verdict = where.judge_run(trace)
        files = [FileView(trace, verdict).read()]
        for other in beside(path):
            file = stack.enter_context(Trace(other))
            view = FileView(file, where.judge(file), segment_in(other)).read()
            if view.first or view.found.state == "broken":
                files.append(view)
        return RunView(files, stack.pop_all())


class Taken(NamedTuple):
    """The usage of model calls: their number, tokens, and US dollars (``None`` if a price is unknown); ``unpriced``
    names those models."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    unpriced: tuple[str, ...] = ()


class RunView:
    """One run: ``files[0]`` is its own file, the others are those of its child processes."""

    def __init__(self, files: Sequence[FileView], stack: ExitStack) -> None:
        self.files: Final = tuple(files)
        self.own: Final = files[0]
        self._stack: Final = stack

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the run's files. Idempotent."""
        self._stack.close()

    @property
    def run_id(self) -> str:
        return str(self.own.first.get("run_id", os.path.basename(self.own.trace.path)))

    @property
    def path(self) -> str:
        return self.own.trace.path

    @property
    def name(self) -> str:
        return str(self.own.first.get("name", "run"))

    @property
    def found(self) -> Verdict:
        """The result of verifying the run's own file."""
        return self.own.found

    @cached_property
    def verdict(self) -> RunVerdict:
        """Whether the run can be replayed, and is safe to run again."""
        return judge(
            [
                File(
                    Originals(one.trace.path).lacking(one.trace.entries(damaged=True)),
                    one.found,
                    one.segment,
                    one.ended is None and one.live,
                )
                for one in self.files
            ]
        )

    @property
    def state(self) -> RunState:
        """``running`` while its process has it open, ``died`` if that process is gone and there is no end entry,
        ``broken`` if it does not verify."""
        if self.found.state == "broken":
            return "broken"
        if self.own.ended is None:
            return "running" if self.own.live else "died"
        ends: dict[str, RunState] = {"run.failed": "failed", "run.aborted": "aborted"}
        return ends.get(self.own.ended, "complete")

    @property
    def imported_from(self) -> str | None:
        """The tool whose recording was imported; ``None`` for a run that tracekit recorded."""
        return imported_from(self.own.first)

    @property
    def branched_from(self) -> str | None:
        """The replay that wrote this run, in which only some kinds of steps were live; ``None`` for a recorded run."""
        found = branched_from(self.own.first)
        return None if found is None else f"replay of {found[0]}, live: {', '.join(found[1]) or 'nothing'}"

    @property
    def started_ns(self) -> int:
        return int(self.own.first.get("ts_ns", 0))

    @property
    def took(self) -> int:
        """Nanoseconds from the first entry to the last."""
        return self.own.took

    @cached_property
    def taken(self) -> Taken:
        """The usage of all model calls."""
        return taken_by(self.steps(kinds=("llm",)))

    def steps(self, *, all: bool = False, kinds: Sequence[str] = ()) -> Iterator[StepView]:
        """Yield the steps in the order in which they began, file by file; ``all`` includes clock and random reads,
        lanes and other bookkeeping.

        ``kinds`` selects families (``llm``, ``tool``, ``http``, ``process``, ``span``), groups (``decision``,
        ``message``, ``refusal`` …) or types of entries, bookkeeping or not.
        """

        def alike(step: StepView) -> bool | None:
            if not kinds:
                return all or (None if step.kind == "boundary" else not step.bookkeeping)
            return any(step.is_named(kind) for kind in kinds) or (None if "error" in kinds else False)

        def alone(step: StepView) -> bool:
            return any(step.is_a(kind) for kind in kinds) if kinds else not step.bookkeeping

        for file in self.files:
            for seq in file.steps.chosen(alike, alone):
                yield StepView(file, seq)

    def step(self, place: int | str) -> StepView:
        """Return the step at ``place``: the number of one of its entries, or ``"SEGMENT:NUMBER"`` in a child process.
        Raises ``RunNotFoundError`` if there is none."""
        segment, _, number = str(place).rpartition(":")
        for file in self.files:
            if (
                (file.segment or "") == segment
                and number.isdigit()
                and (found := file.step_at(int(number))) is not None
            ):
                return found
        known = not segment or any(one.segment == segment for one in self.files)
        raise RunNotFoundError(
            f"the run {self.run_id} has no step {place}"
            if known
            else f"the run {self.run_id} has no process {segment}",
            run=self.run_id,
            next_action=f"`tracekit show {shown_as(self.path)} --all` lists its steps; its own entries go up to {self.own.found.count}",
        )


class _Source(Protocol):
    """The source of one file's entries: a trace, or a follower of a file that is being written."""

    @property
    def path(self) -> str: ...
    def entry(self, seq: int) -> dict[str, Any]: ...
    def expand(self, value: Any, *, before: int | None = None) -> Any: ...


class LaneView(NamedTuple):
    """A lane; ``path`` identifies its task or thread (``worker#2/fetch#1``; empty for the main lane).

    ``label`` is what a reader sees: short, and of one lane of the file only.
    """

    number: int
    path: str
    label: str


_OWN: Final = LaneView(0, "", "")
#: How many ``meta`` objects are cached, and how many rows of dropped steps are kept before compaction.
_METAS: Final = 64
_ROWS: Final = 1000


class FileView:
    """One file of a run: ``steps`` by the number of the entry that began each, ``lanes`` by number.

    ``segment`` names the file of a child process. ``feed`` takes entries in order; ``read`` takes all entries of a
    trace.
    """

    def __init__(
        self, trace: Trace, found: Verdict, segment: str | None = None, *, source: _Source | None = None
    ) -> None:
        self.trace: Final = trace
        self.source: Final[_Source] = trace if source is None else source
        self.found: Final = found
        self.segment: Final = segment
        self.steps: Final = _Steps(self)
        self.lanes: Final[dict[int, LaneView]] = {0: _OWN}
        #: The labels of the lanes.
        self.labels: Final[set[str]] = set()
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        #: The model calls of each lane, in order.
        self._calls: Final[dict[int, array[int]]] = {}
        #: Cached ``meta`` of recently used entries.
        self._metas: Final[dict[int, Mapping[str, Any]]] = {}

    def read(self) -> FileView:
        """Take all entries of the trace, as far as it was verified; return ``self``.

        A live run goes on while it is read: what came after the verification is not taken.
        """
        for entry in islice(self.trace.entries(damaged=True), len(self.trace)):
            self.feed(entry)
        return self

    def feed(self, entry: dict[str, Any]) -> StepView | None:
        """Take the next entry; return the step that it began or ended."""
        kind, seq = entry["type"], entry["seq"]
        self.first = self.first or entry
        self.last = entry
        known = family_of(kind)
        if known is None or known[1] == "intent":
            if kind == "lane":
                self._lane(entry)
            family = kind if known is None else known[0]
            step = self.steps.add(entry, family)
            if family == "llm":
                self._calls.setdefault(step.lane_number, array("I")).append(seq)
            if kind == "recovery.settled" and (about := self.steps.get(entry.get("step", 0))) is not None:
                self.steps.settle(about.seq, entry)
            return step
        found = self.steps.get(entry.get("step", 0))
        if found is None:
            return None
        if known[1] == "chunk":
            self.steps.chunks.setdefault(found.seq, array("I")).append(seq)
            return None
        self.steps.end(found.seq, entry)
        return found

    def _lane(self, entry: Mapping[str, Any]) -> None:
        born = entry.get("input")
        if not isinstance(born, Mapping) or type(born.get("id")) is not int:
            return
        name = f"{born.get('name', '?')}#{born.get('n', 1)}"
        above = self.lanes.get(born.get("parent", 0), _OWN)
        path = f"{above.path}/{name}" if above.path else name
        self.lanes[born["id"]] = LaneView(born["id"], path, self._label(born["id"], name.rpartition("<locals>.")[2]))

    def _label(self, number: int, name: str) -> str:
        """Return the label of a lane: its name, unless that is private to the code that started it (a wrapper of some
        library), or another lane has it already; then its number."""
        private = any(part.startswith("_") for part in name.split("."))
        label = f"lane {number}" if private or name in self.labels else name
        self.labels.add(label)
        return label

    def forget(self, step: StepView) -> None:
        """Drop a step that has ended, so that a run of any length can be followed. Lanes are kept, since later steps
        refer to them."""
        if step.kind == "lane":
            return
        if step.kind == "llm":
            self._calls.pop(step.lane_number, None)
        self.steps.forget(step.seq)

    def step_at(self, seq: int) -> StepView | None:
        """Return the step that the entry ``seq`` belongs to."""
        found = self.steps.get(seq)
        if found is None and 0 < seq <= self.last.get("seq", 0):
            entry = self.source.entry(seq)
            found = self.steps.get(entry.get("step", 0)) if family_of(entry["type"]) is not None else None
        return found

    def meta_of(self, seq: int) -> Mapping[str, Any]:
        """Return ``meta`` of the entry ``seq``; don't modify it."""
        found = self._metas.get(seq)
        if found is None:
            if len(self._metas) >= _METAS:
                self._metas.clear()
            found = self._metas[seq] = meta_of(self.source.entry(seq))
        return found

    def entries_of(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the entries of these types that are not calls, in order."""
        return [self.source.entry(step.seq) for step in self.steps.values() if step.type in kinds]

    def place(self, seq: int) -> int | str:
        """Return the name of an entry within the run: ``12``, or ``"c254f3cc2043470b:12"`` in a child process."""
        return seq if self.segment is None else f"{self.segment}:{seq}"

    def calls_before(self, step: StepView) -> Iterator[StepView]:
        """Yield the model calls before ``step`` in its lane, latest first."""
        for seq in reversed(self._calls.get(step.lane_number, ())):
            if seq < step.seq:
                yield self.steps[seq]

    @property
    def process(self) -> str:
        """The lane path of the child process that wrote the file; empty for the run's own file."""
        return "" if self.segment is None else lane_of(self.first, self.segment)

    @property
    def ended(self) -> str | None:
        """The type of the end entry, or ``None``."""
        return self.last.get("type") if self.last.get("type") in ENDS else None

    @property
    def took(self) -> int:
        """Nanoseconds from the first entry to the last."""
        return int(self.last.get("ts_ns", 0)) - int(self.first.get("ts_ns", 0))

    @cached_property
    def live(self) -> bool:
        """Whether a process has the file open."""
        try:
            return bool(holder(self.trace.path))
        except OSError:
            return False

    @cached_property
    def crossings(self) -> Mapping[int, Crossing]:
        """The boundary crossings of the process, by the entry that reports each, with their counts."""
        entries = [*self.entries_of("boundary"), *([self.last] if self.ended else ())]
        return {one.entry: one for one in crossings_of(entries)}

    @cached_property
    def settled(self) -> Mapping[int, Mapping[str, Any]]:
        """The settlements, stored beside an ended run, of the steps that it left in doubt."""
        left = meta_of(self.last).get("in_doubt") if self.ended else None
        if not isinstance(left, list):
            return {}
        settlement_of = settlements(self.trace)
        return {step: found for step in left if type(step) is int and (found := settlement_of(step)) is not None}

    @cached_property
    def doubts(self) -> Mapping[int, str]:
        """Steps whose effect is unknown or that are being executed: ``in doubt`` or ``running``."""
        try:
            last = last_entry(self.trace.path)
            if last.get("type") in ENDS and not meta_of(last).get("in_doubt"):
                return {}
            decision = decision_on(self.trace.path, segments=())
        except (OSError, TracekitError):
            return {}
        found = dict.fromkeys(decision.in_doubt, "in doubt") | dict.fromkeys(decision.running, "running")
        # A live run may have made further steps since this file was read.
        return {step: what for step, what in found.items() if isinstance(step, int) and step in self.steps}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, (dict, Mapping)) else {}  # a dict is found faster than a Mapping


# -- a step ------------------------------------------------------------------------------------------------------------


class _Steps(Mapping[int, "StepView"]):
    """The steps of one file, by the number of the entry that began each, in that order.

    A trace may have a million of them, so what every step has is stored in columns, 52 bytes per step, and a
    ``StepView`` is created on access. Each text is stored once; columns refer to it by number.
    """

    def __init__(self, file: FileView) -> None:
        self._file: Final = file
        self._forgotten: Final[set[int]] = set()
        self._found = 0
        self.texts: Final[list[str | None]] = [None]
        self._numbers: Final[dict[str | None, int]] = {None: 0}
        self.seqs: Final = array("I")
        self.types: Final = array("I")
        self.kinds: Final = array("I")
        self.names: Final = array("I")
        self.agents: Final = array("I")
        self.parents: Final = array("I")
        self.lanes: Final = array("Q")
        self.began: Final = array("Q")
        #: The entry that ended each step, its type and its time; 0 if the step has not ended.
        self.answers: Final = array("I")
        self.outcomes: Final = array("I")
        self.ended: Final = array("Q")
        self._columns: Final = (
            self.seqs, self.types, self.kinds, self.names, self.agents, self.parents, self.lanes, self.began, self.answers,
            self.outcomes, self.ended,
        )  # fmt: skip
        #: Only for the steps that have any: the numbers of their pieces, and settlements by a person.
        self.chunks: Final[dict[int, array[int]]] = {}
        self.settlements: Final[dict[int, Mapping[str, Any]]] = {}

    def row(self, seq: int) -> int:
        """Return the row of a step. Raises ``KeyError`` if there is none."""
        at = self._found  # nearly always the same as the last time
        if at >= len(self.seqs) or self.seqs[at] != seq:
            at = bisect_left(self.seqs, seq)
            if at == len(self.seqs) or self.seqs[at] != seq:
                raise KeyError(seq)
            self._found = at
        return at

    def __getitem__(self, seq: int) -> StepView:
        if seq in self._forgotten:
            raise KeyError(seq)
        self.row(seq)
        return StepView(self._file, seq)

    def __iter__(self) -> Iterator[int]:
        return (seq for seq in self.seqs if seq not in self._forgotten)

    def __len__(self) -> int:
        return len(self.seqs) - len(self._forgotten)

    def chosen(
        self, alike: Callable[[StepView], bool | None], alone: Callable[[StepView], bool] | None = None
    ) -> Iterator[int]:
        """Yield the numbers of the steps to choose.

        ``alike`` decides on all steps of one type, kind, agent and lane by one of them; ``None`` leaves it to ``alone``,
        which is asked about each.
        """
        decided: dict[tuple[int, ...], bool | None] = {}
        classes = zip(self.types, self.kinds, self.agents, self.lanes, strict=True)
        for seq, one in zip(self.seqs, classes, strict=True):
            if seq in self._forgotten:
                continue
            if one not in decided:
                decided[one] = alike(StepView(self._file, seq))
            found = decided[one]
            if found or (found is None and alone is not None and alone(StepView(self._file, seq))):
                yield seq

    def add(self, entry: Mapping[str, Any], kind: str) -> StepView:
        """Add a step of this kind by the entry that begins it."""
        agent = entry.get("agent_id")
        texts = entry["type"], kind, str(entry.get("name") or kind), None if agent is None else str(agent)
        numbers = map(self._number, texts)
        row = entry["seq"], *numbers, entry.get("parent", 0), entry["lane"], entry["ts_ns"], 0, 0, 0
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        return StepView(self._file, entry["seq"])

    def end(self, seq: int, entry: Mapping[str, Any]) -> None:
        """Take an entry that ends the step ``seq``; the last one counts."""
        row = self.row(seq)
        self.answers[row], self.outcomes[row], self.ended[row] = (
            entry["seq"],
            self._number(entry["type"]),
            entry["ts_ns"],
        )
        self.settle(seq, entry)

    def settle(self, seq: int, entry: Mapping[str, Any]) -> None:
        """Take the settlement of the step ``seq``, if the entry has one."""
        meta = _mapping(entry.get("meta"))
        settlement = _mapping(meta.get("info")).get("settled", meta.get("settled"))
        if isinstance(settlement, Mapping):
            self.settlements[seq] = settlement

    def forget(self, seq: int) -> None:
        """Drop a step. Rows are compacted once the dropped steps outnumber the remaining ones."""
        self._forgotten.add(seq)
        self.chunks.pop(seq, None)
        self.settlements.pop(seq, None)
        if len(self._forgotten) > max(len(self), _ROWS):
            kept = [seq not in self._forgotten for seq in self.seqs]
            for column in self._columns:
                column[:] = array(column.typecode, compress(column, kept))
            self._forgotten.clear()

    def _number(self, text: str | None) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


#: A file of tracekit's core on the machine that recorded the run.
_OWN_FILE: Final = expression(r"[/\\]tracekit[/\\]_[a-z]+[/\\]\w+\.py$")


class StepView:
    """One step: ``kind`` is its family (``llm``, ``tool``, ``http``, ``span`` …), or the type of its only entry
    (``decision``).

    ``seq`` is the entry that began it, ``answer`` the entry that ended it (0: none), ``took`` the nanoseconds between
    them, ``chunks`` the numbers of the pieces in between.
    """

    __slots__ = ("file", "seq")

    def __init__(self, file: FileView, seq: int) -> None:
        self.file: Final = file
        self.seq: Final = seq

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepView) and self.seq == other.seq and self.file is other.file

    def __hash__(self) -> int:
        return hash((id(self.file), self.seq))

    # -- facts -----------------------------------------------------------------------------------------------------------

    def _fact(self, column: array[int]) -> int:
        return column[self.file.steps.row(self.seq)]

    def _text(self, column: array[int]) -> str | None:
        return self.file.steps.texts[self._fact(column)]

    @property
    def type(self) -> str:
        """The type of the entry that began the step."""
        return self._text(self.file.steps.types) or ""

    @property
    def kind(self) -> str:
        """The step's family, or the type of its only entry."""
        return self._text(self.file.steps.kinds) or ""

    @property
    def name(self) -> str:
        """The name of what was called, or the kind."""
        return self._text(self.file.steps.names) or ""

    @property
    def agent(self) -> str | None:
        """The agent that made the step."""
        return self._text(self.file.steps.agents)

    @property
    def parent(self) -> int:
        """The enclosing step; 0 if there is none."""
        return self._fact(self.file.steps.parents)

    @property
    def lane_number(self) -> int:
        """The number of the step's lane."""
        return self._fact(self.file.steps.lanes)

    @property
    def ts_ns(self) -> int:
        """The time at which it began."""
        return self._fact(self.file.steps.began)

    @property
    def answer(self) -> int:
        """The entry that ended it; 0 if there is none."""
        return self._fact(self.file.steps.answers)

    @property
    def outcome(self) -> str | None:
        """The type of the entry that ended it."""
        return self._text(self.file.steps.outcomes)

    @property
    def took(self) -> int:
        """Nanoseconds until it ended; 0 if it has not, or if a person gave it its outcome later."""
        if not self.answer:
            return 0
        if self.seq in self.file.steps.settlements and _mapping(self.ended_with.get("info")).get("reason") == "settled":
            return 0
        return self._fact(self.file.steps.ended) - self.ts_ns

    @property
    def chunks(self) -> Sequence[int]:
        """The numbers of the pieces before its end."""
        return self.file.steps.chunks.get(self.seq, ())

    @property
    def meta(self) -> Mapping[str, Any]:
        """``meta`` of the entry that began it."""
        return self.file.meta_of(self.seq)

    @property
    def ended_with(self) -> Mapping[str, Any]:
        """``meta`` of the entry that ended it."""
        return self.file.meta_of(self.answer) if self.answer else {}

    @property
    def facts(self) -> Mapping[str, Any]:
        """How the call relates to others: attempt, key, cost …"""
        return _mapping(self.meta.get("info"))

    @property
    def side_effect(self) -> str | None:
        """Its side-effect class, if it has one."""
        found = self.meta.get("side_effect")
        return found if isinstance(found, str) else None

    @property
    def place(self) -> int | str:
        """Its name within the run: its ``seq``, or ``"SEGMENT:SEQ"`` in a child process."""
        return self.file.place(self.seq)

    @property
    def lane(self) -> LaneView:
        """The lane in which it was made."""
        return self.file.lanes.get(self.lane_number, _OWN)

    @property
    def calls(self) -> bool:
        """Whether it is a call with an outcome of its own, not a single entry."""
        return self.kind != self.type

    @property
    def bookkeeping(self) -> bool:
        """Whether it is about how the run was recorded, not about what it did."""
        if self.kind == "boundary":
            one = self.file.crossings[self.seq]
            return one.status == "noted" and one.final_status == "captured"
        return self.kind in _BOOKKEEPING

    def is_a(self, kind: str) -> bool:
        """Return whether it is of this kind: its family, its type, or the group of these."""
        return self.is_named(kind) or (kind == "error" and self.failed)

    def is_named(self, kind: str) -> bool:
        """Return whether its family, its type or the group of these has this name."""
        return kind in (self.kind, self.type) or self.kind in GROUPS.get(kind, ())

    @property
    def settled(self) -> Mapping[str, Any] | None:
        """Its settlement by a person, ``{"by", "reason", "at", "done"}``, or ``None``."""
        return self.file.steps.settlements.get(self.seq, self.file.settled.get(self.seq))

    @property
    def given_up(self) -> bool:
        """Whether it ended without an outcome: it was retried, or a person declared it not done."""
        if not (self.outcome or "").endswith(".skipped"):
            return False
        entry = self.file.source.entry(self.answer)
        return "output" not in entry and "error" not in entry

    @property
    def state(self) -> StepState:
        """The state of the step."""
        if not self.calls:
            return "failed" if self.failed else "done"
        doubt = None if self.settled is not None or self.kind == "span" else self.file.doubts.get(self.seq)
        if doubt is not None:
            return "in doubt" if doubt == "in doubt" else "running"
        if self.outcome is None:
            if self.settled is not None:
                return "done"
            return "running" if self.file.ended is None and self.file.live else "cut off"
        if self.given_up:
            return "given up"
        if self.failed:
            return "failed"
        return "answered before" if "duplicate_of" in self.facts else "done"

    @property
    def failed(self) -> bool:
        """Whether it raised an exception, was refused, or got an HTTP error status."""
        return self.error is not None

    @property
    def error(self) -> str | None:
        """``"ValueError: no such order"``, ``"HTTP 429"``; ``None`` if it did not fail."""
        entry = self._entry_with_result
        if entry is None:
            return None
        if "error" in entry:
            return error_text(entry["error"])
        status = self.status
        if status is None or status < 400:
            return None
        text = body_text(plain(self.output)) if self.output is not None else None
        return f"HTTP {status}{f': {text}' if text else ''}"

    @property
    def raised(self) -> Mapping[str, Any] | None:
        """Type and text of the exception that it raised, without the location."""
        error = (self._entry_with_result or {}).get("error")
        return {key: error.get(key) for key in ("type", "text")} if isinstance(error, Mapping) else None

    @property
    def raised_at(self) -> list[Mapping[str, Any]]:
        """The frames of the recorded traceback, the innermost last (``file``, ``line``, ``function``, ``code``), without tracekit's own."""
        error = (self._entry_with_result or {}).get("error")
        frames = error.get("traceback") if isinstance(error, Mapping) else None
        return [
            frame
            for frame in (frames if isinstance(frames, list) else ())
            if isinstance(frame, Mapping) and not _OWN_FILE.search(str(frame.get("file")))
        ]

    @property
    def status(self) -> int | None:
        """The HTTP status of the response, including a model call's."""
        if self.kind not in ("llm", "http") or not (self.answer or self.chunks):
            return None
        for seq in (*([self.answer] if self.answer else ()), *self.chunks[:2]):
            output = self.file.source.entry(seq).get("output")
            head = output.get("head", output) if isinstance(output, Mapping) else None
            if isinstance(head, Mapping) and type(head.get("status")) is int:
                return int(head["status"])
        return None

    @property
    def attempt(self) -> int:
        """The number of this attempt of the call, from 1."""
        found = self.facts.get("attempt", self.meta.get("attempt", 1))
        return found if type(found) is int else 1

    # -- values ----------------------------------------------------------------------------------------------------------

    @property
    def _entry_with_result(self) -> dict[str, Any] | None:
        if not self.calls:
            return self.file.source.entry(self.seq)
        return self.file.source.entry(self.answer) if self.answer else None

    def _value(self, seq: int, key: str) -> Any:
        entry = self.file.source.entry(seq)
        return None if key not in entry else self.file.source.expand(entry[key], before=seq)

    @property
    def entry(self) -> dict[str, Any]:
        """The entry that began it, as logged."""
        return self.file.source.entry(self.seq)

    @property
    def input(self) -> Any:
        """Its input, with references resolved; don't modify it."""
        return self._value(self.seq, "input")

    @property
    def output(self) -> Any:
        """Its output, with references resolved; don't modify it. ``None`` if there is none yet."""
        return None if (entry := self._entry_with_result) is None else self._value(entry["seq"], "output")

    @property
    def has_output(self) -> bool:
        """Whether it returned anything, even ``None``."""
        return (entry := self._entry_with_result) is not None and "output" in entry

    def pieces(self, most: int | None = None) -> Iterator[Any]:
        """Yield the pieces before its end, as of a stream."""
        for seq in self.chunks[:most]:
            yield self._value(seq, "output")

    @property
    def values(self) -> list[Any]:
        """The values returned by a clock or random function, read by read."""
        found = self.file.source.entry(self.seq).get("values")
        return found if isinstance(found, list) else []

    @property
    def call(self) -> ModelCall | None:
        """The model call; ``None`` if it is not one."""
        return ModelCall(self) if self.kind == "llm" else None

    def __repr__(self) -> str:
        return f"<StepView {self.place} {self.kind} {self.name}>"


# -- model calls -------------------------------------------------------------------------------------------------------


class ToolRequest(NamedTuple):
    """A tool requested by a model: its name, and its arguments, parsed if they are JSON."""

    name: str
    arguments: Any
    id: str | None = None


class PromptMessage(NamedTuple):
    """One message of a prompt, in any protocol: role, text, the tools it requests, and the request whose result it is.

    ``others`` names other content it has (``image``, ``file``).
    """

    role: str
    text: str
    requests: tuple[ToolRequest, ...] = ()
    answers: str | None = None
    others: tuple[str, ...] = ()


class Prompt(NamedTuple):
    """The prompt of a model call: messages (the system prompt first), the names of the offered tools, and parameters."""

    messages: tuple[PromptMessage, ...]
    tools: tuple[str, ...]
    parameters: Mapping[str, Any]


class Edit(NamedTuple):
    """One row of two aligned prompts: a message that is the ``same`` in both, ``added``, ``removed`` or ``changed``."""

    op: Op
    before: PromptMessage | None
    now: PromptMessage | None


class Change(NamedTuple):
    """How a prompt differs from an earlier one (of the step ``previous``): the aligned messages, in order.

    ``tools`` lists tools now offered (``+name``) or no longer offered (``-name``); ``parameters`` maps those with
    another value to ``(before, now)``.
    """

    previous: StepView | None
    messages: tuple[Edit, ...]
    tools: tuple[str, ...] = ()
    parameters: Mapping[str, tuple[Any, Any]] = {}

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return not (self.tools or self.parameters) and all(edit.op == "same" for edit in self.messages)

    def count(self, op: str) -> int:
        """Return how many messages are ``same``, ``added``, ``removed`` or ``changed``."""
        return sum(edit.op == op for edit in self.messages)


class ModelCall:
    """The model call of a step, in any protocol; read from the log on access."""

    def __init__(self, step: StepView) -> None:
        self.step: Final = step

    @property
    def model(self) -> str:
        """The requested model."""
        return str(self.step.meta.get("model") or self.step.name)

    @property
    def usage(self) -> Mapping[str, Any]:
        """The usage, as reported by the provider: ``input_tokens``, ``output_tokens`` …"""
        found = self.step.ended_with.get("usage")
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def cost_usd(self) -> float | None:
        """The cost in US dollars; ``None`` if price or usage is unknown."""
        return _paid(Prices(), _asked_by(self.step), self.step.ended_with)

    @cached_property
    def prompt(self) -> Prompt:
        """The prompt."""
        return prompt_of(plain(_request(self.step.input)))

    @cached_property
    def answer(self) -> Reading:
        """The answer: ``text``, ``tool_calls`` (``{"id", "name", "arguments"}``), ``refusal``, ``reasoning``; empty if
        the call failed.

        The pieces of a stream are joined first.
        """
        if self.step.failed or not (self.step.answer or self.step.chunks):
            return Reading()
        pieces = [plain_bytes(piece) for piece in self.step.pieces()]
        streamed = [piece for piece in pieces if isinstance(piece, str | bytes)]
        output = self.step.output
        body: Any
        if streamed:
            body = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in streamed)
            with suppress(ValueError):  # an ordinary response that arrived in several pieces
                whole = orjson.loads(body)
                body = whole if isinstance(whole, dict) else body
        else:
            body = plain(output.get("body") if isinstance(output, Mapping) and "status" in output else output)
        return _read(
            str(self.step.meta.get("dialect") or ""), body, [one for one in pieces if isinstance(one, Mapping)]
        )

    @cached_property
    def requested(self) -> tuple[ToolRequest, ...]:
        """The tools that the model requested."""
        return tuple(
            ToolRequest(str(one.get("name") or "?"), one.get("arguments"), one.get("id"))
            for one in self.answer.tool_calls
        )

    @cached_property
    def changes(self) -> Change:
        """How the prompt differs from the previous turn's: that of the earlier call in the lane that shares most
        messages with it.

        If none shares any, a conversation begins: ``previous`` is ``None``, and every message is added.
        """
        best = turn_before(
            Counter(map(repr, self.prompt.messages)),
            (
                (earlier, Counter(map(repr, ModelCall(earlier).prompt.messages)))
                for earlier in self.step.file.calls_before(self.step)
            ),
        )
        if best is None:
            return Change(None, tuple(Edit("added", None, one) for one in self.prompt.messages))
        return prompt_change(best, ModelCall(best).prompt, self.prompt)


def prompt_change(previous: StepView, old: Prompt, new: Prompt) -> Change:
    """Return how the prompt ``new`` differs from ``old``, that of the model call ``previous``."""
    offered = [f"-{one}" for one in old.tools if one not in new.tools] + [
        f"+{one}" for one in new.tools if one not in old.tools
    ]
    names = dict.fromkeys((*old.parameters, *new.parameters))
    other = {
        name: (old.parameters.get(name), new.parameters.get(name))
        for name in names
        if old.parameters.get(name) != new.parameters.get(name)
    }
    return Change(previous, tuple(aligned(old.messages, new.messages)), tuple(offered), other)


#: How many earlier calls of a lane are considered as the previous turn.
_TURNS: Final = 24


def turn_before(mine: Counter[K], earlier: Iterable[tuple[T, Counter[K]]]) -> T | None:
    """Return the earlier prompt (latest first, each given by its messages) that shares most messages; ``None`` if none
    does."""
    best, most = None, 0
    for one, theirs in islice(earlier, _TURNS):
        shared = (mine & theirs).total()
        if shared > most:
            best, most = one, shared
        if shared == theirs.total():  # all its messages are still there: it was the previous turn
            break
    return best


def aligned(old: Sequence[PromptMessage], new: Sequence[PromptMessage]) -> Iterator[Edit]:
    """Yield two lists of messages aligned: those in both, those in one of them, and those changed in place."""
    for op, i, j in alignment([*map(repr, old)], [*map(repr, new)], lambda i, j: alike(old[i], new[j])):
        yield Edit(op, None if i is None else old[i], None if j is None else new[j])


def alike(before: PromptMessage, now: PromptMessage) -> bool:
    """Return whether a message in the place of another is a changed version of it."""
    return (before.role, before.answers) == (now.role, now.answers)


def alignment(
    old: Sequence[Hashable], new: Sequence[Hashable], same_place: Callable[[int, int], bool]
) -> Iterator[tuple[Op, int | None, int | None]]:
    """Align two lists, by the indexes of their items; ``same_place`` says whether one item is a changed version of
    another."""
    begin, end, most = 0, 0, min(len(old), len(new))
    while begin < most and old[begin] == new[begin]:  # usually most of the prompt
        yield "same", begin, begin
        begin += 1
    while end < most - begin and old[~end] == new[~end]:
        end += 1
    matcher = SequenceMatcher(None, old[begin : len(old) - end], new[begin : len(new) - end], autojunk=False)
    for op, i, j, k, m in matcher.get_opcodes():
        before, now = deque(range(begin + i, begin + j)), deque(range(begin + k, begin + m))
        while before and now and (op == "equal" or same_place(before[0], now[0])):
            yield "same" if op == "equal" else "changed", before.popleft(), now.popleft()
        yield from (("removed", one, None) for one in before)
        yield from (("added", None, one) for one in now)
    yield from (("same", len(old) - left, len(new) - left) for left in range(end, 0, -1))


class _Sum:
    """Sums up model calls, one by one."""

    def __init__(self) -> None:
        self.calls = 0
        self._prices: Final = Prices()
        self._read = self._written = 0
        self._cost = 0.0
        self._unpriced: Final[set[str]] = set()

    def add(self, model: object, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Add a call's usage, given ``meta`` of its request and of its response."""
        found = answer.get("usage")
        usage = found if isinstance(found, Mapping) else {}
        self._read += count_of(usage.get("input_tokens"))
        self._written += count_of(usage.get("output_tokens"))
        paid = _paid(self._prices, request, answer)
        if paid is not None:
            self._cost += paid
        elif usage:
            self._unpriced.add(str(model))

    @property
    def taken(self) -> Taken:
        cost = None if self._unpriced else round(self._cost, 9)
        return Taken(self.calls, self._read, self._written, cost, tuple(sorted(self._unpriced)))


def taken_by(steps: Iterable[StepView]) -> Taken:
    """Return the total usage of these model calls."""
    total = _Sum()
    for step in steps:
        if (call := step.call) is not None:
            total.calls += 1
            total.add(call.model, _asked_by(step), step.ended_with)
    return total.taken


def taken_in(path: str) -> Taken:
    """Return the usage of the model calls of the run at ``path`` and its child processes, without verification.

    Reads only the entries of model calls, so that it is quick over many runs. Never raises, whatever a file contains.
    """
    total = _Sum()
    for file in (path, *beside(path)):
        asked: dict[int, Mapping[str, Any]] = {}
        try:
            for entry in entries_of(file, marked=b'"type":"llm.'):
                meta = meta_of(entry)
                if entry["type"] == "llm.request":
                    total.calls += 1
                    asked[entry.get("seq", 0)] = {**meta, "name": entry.get("name")}
                elif isinstance(meta.get("usage"), Mapping):
                    request = asked.get(entry.get("step", 0), {})
                    total.add(request.get("model") or request.get("name"), request, meta)
        except (OSError, TracekitError):  # deleted meanwhile, or its compressed content is damaged
            continue
    return total.taken


def _paid(prices: Prices, request: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
    """Return the cost of a model call, given ``meta`` of its request, with its ``name``, and of its response."""
    return prices.of_logged(str(request.get("model") or request.get("name")), _mapping(request.get("info")), answer)


def count_of(value: object) -> int:
    """Return a recorded number of tokens; 0 for anything else."""
    return value if type(value) is int and value > 0 else 0


def _asked_by(step: StepView) -> Mapping[str, Any]:
    """Return what ``_paid`` needs to know about a request."""
    return {**step.meta, "name": step.name}


def _request(input: Any) -> Any:
    """Return the body of an HTTP request, or the input that a program recorded by hand."""
    if isinstance(input, Mapping) and "body" in input and ("url" in input or "method" in input):
        return input["body"]
    return input


def _read(name: str, body: Any, objects: Sequence[Mapping[str, Any]]) -> Reading:
    """Parse a response with the protocol's dialect; one recorded by hand with the first dialect that finds something in
    it."""
    dialects: list[Dialect] = [one for integration in discover().values() for one in integration.dialects]
    for dialect in sorted(dialects, key=lambda one: one.name != name):
        if not isinstance(body, dict | bytes):
            break
        found = _tried(dialect, body)
        if found is not None and (dialect.name == name or found.text or found.tool_calls or found.refusal):
            return found
        if dialect.name == name:
            break
    if isinstance(body, bytes):
        return Reading(text=body.decode("utf-8", "replace"))
    if isinstance(body, str):
        return Reading(text=body)
    message = _message(body) if isinstance(body, Mapping) else None
    if message is None or not (message.text or message.requests):
        joined = "".join(filter(None, (body_text(one) for one in objects)))
        return Reading(text=joined or body_text(body) or "")
    return Reading(text=message.text, tool_calls=[one._asdict() for one in message.requests])


def _tried(dialect: Dialect, body: Any) -> Reading | None:
    try:
        return dialect.read(body)
    except Exception:  # malformed: sent by a server or written by a person
        return None


# -- prompts -----------------------------------------------------------------------------------------------------------
#
# Protocols differ only in how they name things: there is a list of messages, each with a role and parts; a part is a
# text, a requested tool, or a tool's result.

_LISTS: Final = ("messages", "contents", "input", "chat_history", "prompt", "message", "texts", "query")
_SYSTEM: Final = ("system", "instructions", "systemInstruction", "system_instruction", "preamble")
_TEXTS: Final = ("text", "content", "parts", "output", "thinking", "summary", "message")
_REQUESTS: Final = ("tool_use", "toolUse", "functionCall", "function_call", "tool_call", "custom_tool_call", "function")
_RESULTS: Final = ("tool_result", "toolResult", "functionResponse", "function_call_output", "custom_tool_call_output")
#: The keys, or the types, by which such parts are known.
_CALL_PARTS: Final = frozenset((*_REQUESTS, *_RESULTS))
_ROLES: Final = {
    "model": "assistant",
    "developer": "system",
    "CHATBOT": "assistant",
    "USER": "user",
    "SYSTEM": "system",
}
_DEPTH: Final = 12


def prompt_of(body: Any) -> Prompt:
    """Return the prompt in the body of a model request, in any protocol; ``body`` is a value as returned by ``plain``."""
    if not isinstance(body, Mapping):
        return Prompt(tuple(_messages(body)), (), {})
    found: list[PromptMessage] = []
    used = {"model"}
    for key in (*_SYSTEM, *_LISTS):
        if key in body and body[key] not in (None, "", []):
            made = [*_messages(body[key])]
            if key in _SYSTEM:
                made = [one._replace(role="system") for one in made]
            if made:
                found += made
                used.add(key)
    tools = body.get("tools") or body.get("toolConfig") or body.get("functions")
    used |= {"tools", "toolConfig", "functions"}
    return Prompt(tuple(found), tuple(_offered(tools)), {key: value for key, value in body.items() if key not in used})


def _messages(value: Any) -> Iterator[PromptMessage]:
    if isinstance(value, str):
        yield PromptMessage("user", value)
    elif isinstance(value, dict):
        if (made := _message(value)) is not None:
            yield made
    elif isinstance(value, list):
        for one in value:
            yield from _messages(one)


def _message(value: Mapping[str, Any]) -> PromptMessage | None:
    texts: list[str] = []
    requests: list[ToolRequest] = []
    answers: list[str] = []
    others: list[str] = []
    _part(value, texts, requests, answers, others, 0)
    kind = value.get("type")
    role = value.get("role")
    if not isinstance(role, str):
        role = "tool" if answers else "assistant" if requests or kind == "reasoning" else "user"
    answered = value.get("tool_call_id") or (answers[0] if answers else None)
    if answers or role in ("tool", "function"):
        role = "tool"
    return PromptMessage(
        _ROLES.get(role, role),
        "\n".join(filter(None, texts)),
        tuple(requests),
        str(answered) if answered is not None else None,
        tuple(others),
    )


def _part(
    value: Any, texts: list[str], requests: list[ToolRequest], answers: list[str], others: list[str], depth: int
) -> None:
    """Sort the content of a message, or of a part of one, into the lists."""
    if isinstance(value, str):
        texts.append(value)
        return
    if isinstance(value, list):
        for one in value[:1000] if depth < _DEPTH else ():
            _part(one, texts, requests, answers, others, depth + 1)
        return
    if not isinstance(value, dict) or depth > _DEPTH:
        return
    kind = value.get("type")
    of_call = (isinstance(kind, str) and kind in _CALL_PARTS) or not _CALL_PARTS.isdisjoint(value)
    for name in _REQUESTS if of_call else ():
        about = value if kind == name and name != "function" else value.get(name)
        if isinstance(about, Mapping) and (kind == name or name in value) and isinstance(about.get("name"), str):
            requests.append(_requested(value, about))
            return
    for name in _RESULTS if of_call else ():
        about = value if kind == name else value.get(name)
        if isinstance(about, Mapping) and (kind == name or name in value):
            answers.append(
                str(
                    next(
                        (about[key] for key in ("tool_use_id", "toolUseId", "call_id", "name", "id") if key in about),
                        "?",
                    )
                )
            )
            result = next((about[key] for key in ("content", "output", "response", "result") if key in about), None)
            texts.append(_text_of(result))
            return
    for call in value.get("tool_calls") or () if isinstance(value.get("tool_calls"), list) else ():
        _part(
            {"type": "function", **call} if isinstance(call, Mapping) else call,
            [],
            requests,
            answers,
            others,
            depth + 1,
        )
    held = [key for key in _TEXTS if isinstance(value.get(key), str | list | Mapping)]
    for key in held:
        _part(value[key], texts, requests, answers, others, depth + 1)
    if not held and isinstance(value.get("json"), Mapping | list):
        texts.append(_text_of(value["json"]))
    elif not held and not value.get("tool_calls"):
        known = {
            "image_url": "image",
            "input_image": "image",
            "inlineData": "image",
            "inline_data": "image",
            "input_file": "file",
        }
        named = kind if isinstance(kind, str) else next((key for key in value if key not in ("role", "id")), None)
        if named is not None and value.get("content") != "" and depth:
            others.append(known.get(named, named))


def _requested(value: Mapping[str, Any], about: Mapping[str, Any]) -> ToolRequest:
    arguments: Any = next((about[key] for key in ("arguments", "input", "args", "parameters") if key in about), {})
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except ValueError:
            pass
    named = next(
        (one[key] for one in (about, value) for key in ("call_id", "toolUseId", "id") if isinstance(one.get(key), str)),
        None,
    )
    return ToolRequest(str(about["name"]), arguments, named)


def _text_of(value: Any) -> str:
    """Return the text of a tool's result: its texts, or else all of it as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, Mapping) and one.keys() & {"text", "json"} for one in value):
        return "\n".join(
            one["text"] if isinstance(one.get("text"), str) else _text_of(one.get("json")) for one in value
        )
    return "" if value is None else orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _offered(tools: Any, depth: int = 0) -> Iterator[str]:
    """Yield the names of the tools in a request."""
    if isinstance(tools, list) and depth < 4:
        for one in tools:
            yield from _offered(one, depth + 1)
    elif isinstance(tools, Mapping) and depth < 5:
        if isinstance(tools.get("name"), str):
            yield tools["name"]
            return
        inner = [
            key
            for key in ("function", "functionDeclarations", "function_declarations", "toolSpec", "tools")
            if key in tools
        ]
        for key in inner:
            yield from _offered(tools[key], depth + 1)
        if not inner and isinstance(tools.get("type"), str):
            yield tools["type"]


# -- values ------------------------------------------------------------------------------------------------------------

_PAIRS: Final = frozenset(("dict", "OrderedDict", "Counter", "defaultdict"))
_HIDDEN: Final = frozenset(("opaque",))


def plain(tree: Any, depth: int = 0) -> Any:
    """Convert a recorded value to JSON that a person can read: without type tags, objects as their fields.

    Bytes become text if they are UTF-8, else a phrase with their length; values that were not recorded are marked as
    such.
    """
    if isinstance(tree, list):
        return [plain(one, depth + 1) for one in tree] if depth < 200 else "…"
    if not isinstance(tree, Mapping):
        return tree
    tag = tree.get("$t")
    if tag is None:
        return {key: plain(one, depth + 1) for key, one in tree.items()} if depth < 200 else "…"
    value = tree.get("v")
    if tag == "opaque":
        return str(tree.get("repr"))
    if tag in _PAIRS and isinstance(value, list):
        return {
            _key(pair[0], depth): plain(pair[1], depth + 1)
            for pair in value
            if isinstance(pair, list) and len(pair) == 2
        }
    if tag in ("bytes", "bytearray", "memoryview", "npbytes"):
        data = plain_bytes(tree)
        return f"<{len(data)} bytes>" if isinstance(data, bytes) else data
    if tag == "str":
        return _unpaired(value)
    if tag == "int" and isinstance(value, str):
        return int(value, 16) if len(value) < 5000 else value
    if tag == "enum":
        name = str(tree.get("c", "")).rpartition(":")[2]
        return f"{name}.{tree['n']}" if tree.get("n") else plain(value, depth + 1)
    if tag == "ndarray":
        return f"<array {tree.get('dtype')} of shape {tree.get('shape')}>"
    if tag == "exception":
        return error_text(value)
    return plain(value, depth + 1)


def plain_bytes(tree: Any) -> Any:
    """Return bytes as text if they are UTF-8, else as bytes; return any other value unchanged."""
    if not isinstance(tree, Mapping) or tree.get("$t") not in ("bytes", "bytearray", "memoryview", "npbytes"):
        return tree
    try:
        data = b64decode(tree["v"])
    except (ValueError, TypeError, KeyError):
        return b""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _key(tree: Any, depth: int) -> str:
    key = plain(tree, depth + 1)
    return key if isinstance(key, str) else orjson.dumps(key, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _unpaired(value: Any) -> str:
    try:
        return b64decode(value).decode("utf-8", "replace")
    except (ValueError, TypeError):
        return ""


def class_of(tree: Any) -> str | None:
    """Return the class name of a recorded object, without its module; ``None`` if the value is not an object."""
    if not isinstance(tree, Mapping) or not isinstance(tree.get("c"), str) or "$t" not in tree:
        return None
    return str(tree["c"]).rpartition(":")[2] or None


def error_text(error: object) -> str:
    """Return a recorded exception as ``"ValueError: no such order"``, whichever of its keys exist."""
    if not isinstance(error, Mapping):
        return str(error)
    kind = str(error.get("type") or error.get("type_name") or "Error").rpartition(":")[2].rpartition(".")[2]
    text = error.get("text") or error.get("message") or error.get("str") or ""
    return f"{kind}: {text}" if text else kind


_SPEAKING: Final = (
    "messages", "input", "content", "text", "output_text", "message", "choices", "output", "body", "parts", "error", "delta", "prompt",
)  # fmt: skip


def body_text(value: object, depth: int = 0) -> str | None:
    """Return the last text in a request's or response's body: a heuristic over the keys that bodies use for text."""
    if isinstance(value, str):
        return value if depth and value.strip() else None
    if depth > _DEPTH:
        return None
    if isinstance(value, Mapping):
        for key in _SPEAKING:
            if key in value and (found := body_text(value[key], depth + 1)):
                return found
    if isinstance(value, list):
        for item in reversed(value[-8:]):
            if isinstance(item, Mapping) and (found := body_text(item, depth + 1)):
                return found
    return None
