"""What the commands print: entries and runs as text or JSON, errors with their exit codes, and the ``--store`` option."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import orjson

from .._journal.entry import family_of
from .._journal.reader import ENDS, Trace, Verdict
from .._journal.store import Store, beside, holder, lane_of, name_of
from .._runs.recovery import FOR, Decision
from .._runtime.boundary import Crossing, crossings_of
from .._runtime.redaction import Originals
from .._runtime.verdict import File, RunVerdict, judge
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    RecoveryRefusedError,
    ReplayError,
    RunNotFoundError,
    TraceIntegrityError,
    TracekitError,
    UnknownPriceError,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "DIFFERENT",
    "INCOMPLETE",
    "REFUSED",
    "RIGHT",
    "USAGE_ERROR",
    "Step",
    "Timeline",
    "aside",
    "body_text",
    "console",
    "duration",
    "emit",
    "error_text",
    "escaped",
    "exit_code",
    "fail",
    "located",
    "message",
    "named",
    "plain",
    "printable",
    "reported",
    "short",
    "shown",
    "streamed",
    "structured",
    "timeline_of",
    "verdict_of",
]

# -- output ------------------------------------------------------------------------------------------------------------
#
# Data goes to stdout, messages to stderr; the meaning of each exit code.

#: Success.
RIGHT: Final = 0
#: A difference, or damage.
DIFFERENT: Final = 1
#: A usage error, or input that can't be read.
USAGE_ERROR: Final = 2
#: A run without an end, or a torn tail.
INCOMPLETE: Final = 3
#: Refused: recovery, budget, contract.
REFUSED: Final = 4


def structured(as_json: bool) -> bool:
    """Whether to print JSON: with ``--json``, or when stdout is not a terminal."""
    return as_json or not sys.stdout.isatty()


def emit(value: Mapping[str, Any] | Iterable[Mapping[str, Any]], *, pretty: bool = False, stderr: bool = False) -> None:
    """Print one JSON object, or several as JSON lines, on stdout (or ``stderr``). The reader may close the pipe early."""
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    out = (sys.stderr if stderr else sys.stdout).buffer
    for item in [value] if isinstance(value, Mapping) else value:
        out.write(escaped(orjson.dumps(item, option=options)))
    out.flush()


#: Characters that control a terminal or change the order in which text is shown: control characters (C0 without line ends and
#: tabs, and C1), bidirectional controls, invisible characters. In JSON they occur within strings only.
_STEERING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def escaped(json_text: bytes) -> bytes:
    """Equivalent JSON with terminal control characters written as escapes."""
    if json_text.isascii() and b"\x7f" not in json_text:
        return json_text
    return _STEERING.sub(
        lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", json_text.decode()
    ).encode()


def plain(text: str) -> str:
    """``text`` without terminal control characters; line ends and tabs stay."""
    return _STEERING.sub(" ", text)


def console(*, stderr: bool = False) -> Console:
    """A rich console on stdout (or ``stderr``) that prints all text as :func:`plain`."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **kwargs):
                yield segment if segment.control else Segment(plain(segment.text), segment.style)

    return Plain(highlight=False, stderr=stderr)


def message(text: str) -> None:
    """Print a line for people on stderr."""
    click.echo(plain(text), err=True)


def fail(error: TracekitError) -> NoReturn:
    """Print the error's text on stderr and exit with its exit code."""
    message(str(error))
    sys.exit(exit_code(error))


def exit_code(error: TracekitError) -> int:
    """The exit code of a command that ends with this error."""
    if isinstance(error, (TraceIntegrityError, ReplayError)):
        return DIFFERENT
    if isinstance(error, UnknownPriceError):
        return USAGE_ERROR
    if isinstance(error, (RecoveryRefusedError, BudgetExceededError, ContractViolationError)):
        return REFUSED
    return USAGE_ERROR


@contextmanager
def aside() -> Iterator[None]:
    """A block in which stdout is redirected to stderr, for user code and its child processes too: stdout is for data alone."""
    with redirect_stdout(sys.stderr):
        try:
            sys.stderr.flush()
            kept = os.dup(1)
        except (OSError, AttributeError):  # there is no stdout, or no stderr
            yield
            return
        try:
            os.dup2(2, 1)
            yield
        finally:
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
            os.dup2(kept, 1)
            os.close(kept)


@contextmanager
def reported() -> Iterator[None]:
    """A block around a command: tracekit's errors are printed as messages, without a traceback, and end it."""
    try:
        yield
    except TracekitError as error:
        fail(error)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe; Python would report that once more when it closes stdout.
        sys.stdout = None
        sys.exit(RIGHT)


# -- timeline ----------------------------------------------------------------------------------------------------------
#
# A trace as it is shown to people: each step once, with its outcome, and short texts for long values.

_SPACE: Final = re.compile(r"\s+")
_SPEAKING: Final = (
    "messages",
    "input",
    "content",
    "text",
    "output_text",
    "message",
    "choices",
    "output",
    "body",
    "parts",
)


class Step:
    """One step of a trace: the facts of its intent record (``entry``) and of its outcome.

    ``outcome`` is the type of the outcome's entry, ``None`` while there is none; ``answer`` is that entry's ``seq``, ``took`` the
    time between the two in nanoseconds, ``chunks`` the number of pieces in between.
    """

    __slots__ = (
        "answer", "chunks", "error", "facts", "family", "first_chunk", "name", "outcome", "place", "seq", "side_effect", "took", "ts",
    )  # fmt: skip

    def __init__(self, entry: Mapping[str, Any], family: str, place: int | str) -> None:
        meta = entry.get("meta") or {}
        self.seq: Final[int] = entry["seq"]
        #: Its ``seq``, prefixed by the segment where a child process made it.
        self.place: Final = place
        self.family: Final = family
        self.name: Final[str] = entry.get("name") or family
        self.side_effect: Final[str | None] = meta.get("side_effect")
        self.facts: Final[Mapping[str, Any]] = meta
        self.ts: Final[int] = entry["ts_ns"]
        self.outcome: str | None = None
        self.answer = 0
        self.took = 0
        self.chunks = 0
        self.first_chunk = 0
        self.error: str | None = None

    def end(self, entry: Mapping[str, Any]) -> None:
        self.outcome, self.answer, self.took = entry["type"], entry["seq"], entry["ts_ns"] - self.ts
        if "error" in entry:
            self.error = error_text(entry["error"])

    @property
    def circumstances(self) -> str:
        """How its call relates to others: which attempt it is, which step it undoes, which step answered it."""
        info = self.facts.get("info")
        if not isinstance(info, Mapping):
            return ""
        found = []
        if type(info.get("attempt")) is int and info["attempt"] > 1:
            found.append(f"attempt {info['attempt']}")
        if type(info.get("compensates")) is int:
            found.append(f"undoes {info['compensates']}")
        if "duplicate_of" in info:
            first = info["duplicate_of"]
            found.append(f"answered by {first if type(first) is int else short(first, 60)}")
        return ", ".join(found)

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def skipped(self) -> bool:
        return bool(self.outcome and self.outcome.endswith(".skipped"))


class Timeline:
    """The entries of a trace that verify, read in one pass: steps by ``seq``, and the entries of each other type.

    ``segment`` names the file of a child process; ``processes`` are those of a run, each with its own timeline.
    """

    def __init__(
        self, trace: Trace, verdict: Verdict, segment: str | None = None, processes: Sequence[Timeline] = ()
    ) -> None:
        self.trace: Final = trace
        self.verdict: Final = verdict
        self.segment: Final = segment
        self.processes: Final = processes
        self.steps: Final[dict[int, Step]] = {}
        self.others: Final[dict[str, list[int]]] = {}
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self._crossings: Final[dict[int, Crossing]] = {}
        for entry in trace.entries(damaged=True):
            self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry["type"]
        known = family_of(kind)
        if known is None:
            self.others.setdefault(kind, []).append(entry["seq"])
        elif known[1] == "intent":
            self.steps[entry["seq"]] = Step(entry, known[0], self.place(entry["seq"]))
        elif (step := self.steps.get(entry.get("step", 0))) is not None:
            if known[1] == "chunk":
                step.chunks += 1
                step.first_chunk = step.first_chunk or entry["seq"]
            else:
                step.end(entry)
        if not self.first:
            self.first = entry
        self.last = entry

    def crossing(self, seq: int) -> Crossing:
        """What crossed the boundary of the process at this entry, with how many there were of it."""
        if not self._crossings:
            entries = [*self.entries_of("boundary"), *([self.last] if self.ended else ())]
            self._crossings.update((one.entry, one) for one in crossings_of(entries))
        return self._crossings[seq]

    def place(self, seq: int) -> int | str:
        """The name of an entry within the run: ``12``, or ``"c254f3cc2043470b:12"`` in a child process."""
        return seq if self.segment is None else f"{self.segment}:{seq}"

    @property
    def whole(self) -> Iterator[Timeline]:
        """The run's own timeline, then that of each of its child processes."""
        yield self
        yield from self.processes

    def every_step(self) -> list[Step]:
        return [step for one in self.whole for step in one.steps.values()]

    @property
    def lane(self) -> str:
        """The name of the process's lane."""
        return lane_of(self.first, self.segment or "")

    @property
    def run_id(self) -> str:
        return str(self.first.get("run_id", "?"))

    @property
    def name(self) -> str:
        return str(self.first.get("name", "run"))

    @property
    def ended(self) -> str | None:
        """The type of the entry that ends the run, or ``None``."""
        return self.last.get("type") if self.last.get("type") in ENDS else None

    @property
    def took(self) -> int:
        """Nanoseconds from the first entry to the last."""
        return int(self.last.get("ts_ns", 0)) - int(self.first.get("ts_ns", 0))

    def entries_of(self, *kinds: str) -> list[dict[str, Any]]:
        return [self.trace.entry(seq) for seq in sorted(seq for kind in kinds for seq in self.others.get(kind, ()))]

    def rows(self, first: int = 1) -> Iterator[tuple[int, dict[str, Any], Step | None]]:
        """The rows to show, in order: (depth, entry, its step). Outcomes, chunks and blobs have no row of their own."""
        depth: dict[int, int] = {}
        for entry in self.trace.entries(damaged=True):
            kind, seq = entry["type"], entry["seq"]
            known = family_of(kind)
            if kind == "blob" or (known is not None and known[1] != "intent"):
                continue
            at = depth.get(entry.get("parent", 0), -1) + 1
            if known is not None:
                depth[seq] = at
            if seq >= first:
                yield at, entry, self.steps.get(seq)


def timeline_of(trace: Trace, verdict: Verdict, where: Store, stack: ExitStack) -> Timeline:
    """The timeline of a run with its child processes, whose files ``stack`` closes."""
    files = [stack.enter_context(Trace(path)) for path in beside(trace.path, verdict.run_id)]
    processes = [Timeline(file, where.judge(file), name_of(file.path)) for file in files]
    return Timeline(trace, verdict, None, [one for one in processes if one.first or one.verdict.state == "broken"])


def verdict_of(timeline: Timeline) -> RunVerdict:
    """The verdict on a run: whether it can be replayed, and is safe to run again."""
    return judge(
        [
            File(
                Originals(one.trace.path).lacking(one.trace.entries(damaged=True)),
                one.verdict,
                one.segment,
                one.ended is None and bool(holder(one.trace.path)),
            )
            for one in timeline.whole
        ]
    )


def streamed(trace: Trace, step: Step, most: int = 80) -> str | None:
    """The beginning of the text that a step streamed, ``most`` characters or a few more, or ``None``."""
    text = ""
    for seq in range(step.first_chunk, min(step.first_chunk + 400, len(trace) + 1) if step.first_chunk else 0):
        entry = trace.entry(seq)
        if entry.get("step") == step.seq and isinstance(entry.get("output"), str):
            text += "".join(map(_delta, entry["output"].splitlines()))
        if len(text) > most or seq == step.answer:
            break
    return text or None


def _delta(line: str) -> str:
    """The piece of text in one line of server-sent events, in any of the forms that model servers use."""
    if not line.startswith("data: {"):
        return ""
    try:
        event = orjson.loads(line[6:])
    except ValueError:
        return ""
    choices = event.get("choices")
    holder = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else event
    delta = holder.get("delta")
    if isinstance(delta, Mapping):
        delta = delta.get("content") or delta.get("text")
    return delta if isinstance(delta, str) else ""


def error_text(error: object) -> str:
    """``"ValueError: no such order"`` from a recorded exception, whichever of its keys are there."""
    if not isinstance(error, Mapping):
        return short(error)
    kind = str(error.get("type") or error.get("type_name") or "Error").rpartition(":")[2].rpartition(".")[2]
    text = error.get("text") or error.get("message") or error.get("str") or ""
    return f"{kind}: {text}" if text else kind


def short(value: object, most: int = 96) -> str:
    """``value`` as compact JSON or, if it is a string, as itself, in one line of at most ``most`` characters."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=repr).decode()
    text = _SPACE.sub(" ", printable(text)).strip()
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str) -> str:
    """``text`` without the control characters that a hostile trace could steer a terminal with."""
    return "".join(char if char.isprintable() else " " for char in text)


def body_text(value: object, depth: int = 0) -> str | None:
    """The last text in a request's or response's body: a heuristic over the keys that bodies use for text."""
    if isinstance(value, str):
        return value if depth and value.strip() else None
    if depth > 12:
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


def duration(ns: int) -> str:
    """A duration for people: ``"340 µs"``, ``"12 ms"``, ``"3.1 s"``."""
    if ns < 1_000_000:
        return f"{ns // 1000} µs"
    return f"{ns // 1_000_000} ms" if ns < 1_000_000_000 else f"{ns / 1e9:.1f} s"


# -- store -------------------------------------------------------------------------------------------------------------
#
# The file that RUN names: an id, the beginning of one, ``last``, or a path.


def named(store: str | None, *, existing: bool = False) -> Store:
    """The store to list: the one named by ``--store`` or ``TRACEKIT_DIR``, which must exist, or the default one.

    With ``existing`` the default one must exist too: else a wrong directory would pass for a store without runs.
    """
    found = Store(store)
    if existing and not os.path.isdir(found.runs):
        raise click.UsageError(
            f"there is no store in {found.root} (it has no directory 'runs'), so nothing was looked at: go to the directory that the "
            "program runs in, or name its store with --store or TRACEKIT_DIR"
        )
    if (store is not None or os.environ.get("TRACEKIT_DIR")) and not os.path.isdir(found.root):
        which = "--store" if store is not None else "TRACEKIT_DIR"
        raise click.UsageError(f"{which}: there is no directory {found.root}")
    return found


def located(run: str, store: Store) -> str:
    """The path of the trace file of ``run``; ``RunNotFoundError`` if there is none."""
    if run == "last":
        runs = store.list()
        if not runs:
            raise RunNotFoundError(
                f"there is no run in {store.root}",
                store=store.root,
                next_action="record one, or name another store with TRACEKIT_DIR",
            )
        return runs[0].path
    try:
        return store.find(run)
    except RunNotFoundError:
        if os.path.isfile(run):  # any file: whoever reads it reports what is wrong with it
            return os.path.abspath(run)
        raise


# -- decisions -----------------------------------------------------------------------------------------------------------
#
# Recovery decisions on runs without an end, as text.


def shown(decisions: Iterable[Decision], *, stderr: bool = False) -> bool:
    """Print each decision with its reasons, on stdout (or ``stderr``); returns whether there was any."""
    from rich.text import Text

    terminal, found = console(stderr=stderr), False
    for decision in decisions:
        found = True
        style = "bold green" if decision.decision == "resume" else "bold red"
        line = Text(f"{decision.decision:<7}", style=style) + Text(printable(decision.run_id), style="cyan")
        terminal.print(line + Text(f"  {decision.state}", style="dim"), soft_wrap=True)
        for reason in decision.reasons:
            mark = Text("  + ", style="green") if reason["code"] in FOR else Text("  - ", style="red")
            text = Text(f"{reason['code']}: ", style="bold") + Text(printable(str(reason["text"])))
            terminal.print(mark + text, soft_wrap=True)
    return found
