"""Compares the transcripts of several replays of one recording, and the recording, byte by byte."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from hashlib import sha256
from typing import Any, Final, NamedTuple

from orjson import JSONDecodeError, loads

from .. import _reality
from .._capture import stdio
from .._journal.entry import family_of, meta_of
from .._journal.reader import Trace
from .._journal.store import segment_in
from .._runtime.callsite import caller
from .._runtime.divergence import describe, in_common
from .._runtime.index import Index
from .._runtime.lane import Lane
from .._runtime.matching import OPAQUE, Bindings, Ignored, differences, placeholders_of, steady
from .._runtime.process import process
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay, ReplayedStep, for_replay
from .._runtime.session import Scope
from .._runtime.step import Note, Request
from .._runtime.verdict import Report
from .._values import dumps, exception_to_json, fingerprint, to_json
from ..errors import BudgetExceededError, ContractViolationError, LiveCallBlockedError, ReplayError
from .ending import text_of

__all__ = [
    "NOTHING",
    "OutputPlaces",
    "Recorded",
    "Transcript",
    "TranscriptDifference",
    "TranscriptWriter",
    "first_difference",
    "name_of",
    "perturb",
    "transcribed_session",
]

# -- transcripts -------------------------------------------------------------------------------------------------------
#
# What a program did in one replay, read from the transcript that it wrote.

#: The result of a run without one, and its place in the code.
NOTHING: Final = (b"null", "")


@dataclass
class Transcript:
    """What a program did in one replay: the transcript written by its process, its output and its exit status."""

    name: str
    hash_seed: int
    status: int
    stdout: bytes
    stderr: bytes
    #: The files of the runs that it opened, in order, by id.
    runs: dict[str, str] = field(default_factory=dict)
    #: By run and ``seq``: canonical line and place.
    steps: dict[str, dict[int, tuple[bytes, str]]] = field(default_factory=dict)
    results: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: list[tuple[int, str]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: str, name: str, hash_seed: int, status: int, stdout: bytes, stderr: bytes) -> Transcript:
        """Read the transcript at ``path`` and those of the child processes; an incomplete last line is ignored."""
        transcript = cls(name, hash_seed, status, stdout, stderr)
        transcript._read(path)
        for child in sorted(glob(f"{path}.*")):
            transcript._read(child, "seq", "path")
        return transcript

    def _read(self, path: str, *only: str) -> None:
        """Read the file of one process; of a child process only the steps, since its failures are the parent's as well."""
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        data, _, place = line[:-1].rpartition(b"\t")
                        about = loads(data)
                        if not only or any(key in about for key in only):
                            self._take(about, data, place.decode("utf-8", "replace"))
        except (FileNotFoundError, JSONDecodeError):
            pass  # its process ended before it wrote any, or in the middle of a line

    def _take(self, about: dict[str, Any], data: bytes, place: str) -> None:
        kind = about["kind"]
        if "seq" in about:
            self.steps.setdefault(about["run"], {})[about["seq"]] = data, place
        elif kind == "run":
            self.runs[about["run"]] = about["path"]
        elif kind == "result":
            self.results[about["run"]] = dumps(about["result"]), place
        elif kind == "failure":
            self.failures.append((about, place))
        elif kind == "report":
            self.reports[about["run"]] = about
        elif kind == "places" and about["lines"] == self.stdout.count(
            b"\n"
        ):  # otherwise something else wrote there, too
            self.places = [(line, where) for line, where in about["places"]]
        elif kind == "end":
            self.end = about

    @property
    def failure(self) -> tuple[dict[str, Any], str] | None:
        """The last reported failure of the replay, and where: it includes what child processes reported."""
        return self.failures[-1] if self.failures else None

    @property
    def failed(self) -> bool:
        """Whether the replay was not exact, by its own verdict; a replay of a log without an end may be exact."""
        failures = (about for about, _ in self.failures if not about["at_log_end"])
        return any(failures) or self.end is None or self.end["code"] not in (0, 3)

    def stream(self) -> bytes:
        """Return the bytes to compare: steps, results and end in recorded order, without places in the code."""
        found = [line for run in self.runs for _, (line, _) in sorted(self.steps.get(run, {}).items())]
        found += [self.results.get(run, NOTHING)[0] for run in self.runs]
        found.append(dumps(self.end))
        return b"\n".join(found)

    def digest(self) -> str:
        """Return the SHA-256 of the compared bytes and standard output."""
        return sha256(self.stream() + b"\n" + self.stdout).hexdigest()

    def outcome(self) -> object:
        """Return a value that is equal for two replays that did the same, right or wrong: the bytes, the output, the
        failing value."""
        actual = self.failure[0]["actual"] if self.failure is not None else None
        return self.stream(), self.stdout, dumps(actual)

    def count(self) -> int:
        """Return the number of steps made."""
        return sum(map(len, self.steps.values()))

    def __str__(self) -> str:
        return f"{self.name} (hash seed {self.hash_seed})"


# -- writing a transcript ----------------------------------------------------------------------------------------------
#
# Writes down what a program does while it is replayed, step by step, so that replays can be compared byte by byte.
#
# A line is an object in canonical JSON, a tab, and the place in the user's code (which is not compared). It is written
# to the file before the program continues, so that a process that dies leaves its transcript up to that point.

_REFUSALS: Final = (ContractViolationError, BudgetExceededError)
#: A larger input (in canonical bytes) is written as its hash.
_MAX_INPUT: Final = 1 << 20


class TranscriptWriter:
    """Writes the transcript of one replaying process to a file, line by line."""

    def __init__(self, path: str) -> None:
        self._file: Final = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pid: Final = os.getpid()
        self._lock: Final = _reality.OwnLock()
        self._counts: Final[dict[int, int]] = {}
        self._lanes: Final[list[Lane]] = []

    def write(self, about: Mapping[str, Any], place: str | None = None) -> None:
        """Write a line; a forked child writes none."""
        if os.getpid() != self._pid:
            return
        data = dumps(about) + b"\t" + (place or "").encode("utf-8", "replace") + b"\n"
        with self._lock:
            while data:
                data = data[_reality.write(self._file, data) :]

    def step(self, run: str, scope: Scope, seq: int, **about: Any) -> None:
        """Write that the program made the recorded step ``seq``."""
        lane = scope.lane
        with self._lock:
            n = self._counts.get(id(lane), 0) + 1
            if n == 1:
                self._lanes.append(lane)  # keeps the lane alive, so that no other lane gets its id
            self._counts[id(lane)] = n
        agent = {} if scope.agent is None else {"agent_id": scope.agent}
        self.write({"run": run, "lane": lane.path, "n": n, "seq": seq, **agent, **about}, caller())

    def failed(self, run: str | None, error: BaseException) -> None:
        """Write that the replay of a run has failed."""
        about = {
            "kind": "failure",
            "run": run,
            "child": getattr(error, "child", None),
            "type": type(error).__name__,
            "code": getattr(error, "code", None),
            "step": getattr(error, "step", None),
            "at_log_end": getattr(error, "at_log_end", False),
            "blocked": getattr(error, "kind", None) if isinstance(error, LiveCallBlockedError) else None,
            "text": str(error),
            "actual": to_json(getattr(error, "actual", None)),
        }
        self.write(about, getattr(error, "location", None))

    def ended(
        self,
        code: int,
        status: int,
        error: BaseException | None,
        reports: list[Report],
        out: OutputPlaces | None,
    ) -> None:
        """Write the end of the program: its exit ``status`` and uncaught exception; ``code`` is the verdict of the
        replay."""
        for report in reports:
            about = {"unconsumed": len(report.unconsumed), "verdict": report.verdict.as_dict()}
            self.write({"kind": "report", "run": report.run_id, **to_json(about)})
        if out is not None:
            self.write({"kind": "places", "places": out.places, "lines": out.lines})
        self.write(
            {"kind": "end", "code": code, "status": status, "error": None if error is None else _error_summary(error)}
        )


def _error_summary(error: BaseException) -> dict[str, Any]:
    tree = Redactor.of_process([]).redact(exception_to_json(error, []))[0]
    return {"type": tree["type"], "text": text_of(tree)}


def transcribed_session(
    writer: TranscriptWriter, trace: Trace, redactor: Redactor, options: Mapping[str, Any]
) -> Replay:
    """Return a replay session of this trace that writes a transcript."""
    how = {"on_divergence": options["on_divergence"], "strict": frozenset(options["strict"])}
    session = _TranscribedReplay(writer, trace, redactor, ignored=Ignored(options["ignore"]), **how)
    session.report._recorded = {}  # not needed here, and would cost another pass over the file
    writer.write({"kind": "run", "run": session.file, "path": os.path.abspath(trace.path)})
    return session


def name_of(path: str, run_id: str) -> str:
    """Return the name of a trace file in a transcript: the run id, with the segment's name for a segment."""
    segment = segment_in(path)
    return run_id if segment is None else f"{run_id}.{segment}"


class _TranscribedReplay(Replay):
    """A replay session that writes each step to a transcript as the program makes it."""

    def __init__(self, writer: TranscriptWriter, trace: Trace, redactor: Redactor, **how: Any) -> None:
        super().__init__(trace, redactor, **how)
        self._writer: Final = writer
        self.file: Final = name_of(trace.path, self.run_id)

    def begin(self, scope: Scope, request: Request) -> ReplayedStep:
        about = self._describe(request)
        try:
            step = super().begin(scope, request)
        except _REFUSALS:
            self._writer.step(self.file, scope, scope.lane.last, **about)
            raise
        self._writer.step(self.file, scope, step.seq, **about)
        return step

    def _describe(self, request: Request) -> dict[str, Any]:
        spec, key = request.spec.render(self.redactor), request.key
        about: dict[str, Any] = {"kind": request.spec.family, "name": spec.name, "meta": spec.meta}
        if key is not None:
            return {**about, "input_hash": fingerprint(spec.name, self.comparison.encoded(key)[0])}
        return {**about, "input": shown_input(*self.comparison.input(request))}

    def note(self, scope: Scope, note: Note) -> int:
        meta = dict(note.signature or {})
        meta.pop("info", None)
        tree, data = self.comparison.encoded({"input": note.input, "output": note.output})
        if OPAQUE in data:
            tree = steady(tree)
        about = {
            "kind": note.type,
            "name": self.redactor.redact_text(note.name)[0],
            "meta": self.comparison.encoded(meta)[0],
            **tree,
        }
        seq = super().note(scope, note)
        self._writer.step(self.file, scope, seq, **about)
        return seq

    def _stopped(self, error: ReplayError) -> None:
        self._writer.failed(self.file, error)
        super()._stopped(error)


def shown_input(tree: Any, data: bytes) -> Any:
    """Return an input as a transcript shows it: without what differs between processes, and as a hash if it is very
    large."""
    if OPAQUE in data:
        tree = steady(tree)
    return tree if len(data) <= _MAX_INPUT else {"bytes": len(data), "sha256": fingerprint("", tree)}


# -- perturbing the process --------------------------------------------------------------------------------------------


class OutputPlaces:
    """Where in the user's code each line of standard output was written."""

    def __init__(self) -> None:
        #: The number of a line, counted from 0, and the place that wrote its first and the following characters.
        self.places: Final[list[tuple[int, str]]] = []
        self.lines = 0

    def _note_place(self, text: str) -> None:
        place = caller() or ""
        if text and (not self.places or self.places[-1][1] != place):
            self.places.append((self.lines, place))
        self.lines += text.count("\n")

    @classmethod
    def take(cls) -> OutputPlaces | None:
        """Listen to what is written to ``sys.stdout``; return ``None`` if that is impossible."""
        out = stdio.Out.take()
        if out is None:
            return None
        places = cls()
        out.listeners.append(places._note_place)
        return places


def perturb(number: int) -> None:
    """Vary what a program should not depend on, differently in each replay: the thread switch interval and memory
    addresses."""
    sys.setswitchinterval((0.02, 0.0002)[number % 2])
    process.kept.append([object() for _ in range(1 + 20_011 * number)])


# -- the recorded run as a transcript ----------------------------------------------------------------------------------
#
# What the replays of a recorded run must match, in the form of a transcript.


class Recorded:
    """One recorded run as the lines of a transcript."""

    def __init__(self, path: str) -> None:
        self.trace: Final = for_replay(path)
        first = self.trace.entry(1)
        self.run_id: Final[str] = first["run_id"]
        self.name: Final = name_of(path, self.run_id)
        self._redactor: Final = Redactor.of_process([], trace=path)
        self._bindings: Final = Bindings(self._redactor, placeholders_of(self.trace), lambda seq: False)
        self._lanes: Final[dict[int, str]] = {0: self._own_lane(first)}
        for entry in self.trace.entries():
            if entry["type"] == "lane":
                self._lane(entry["input"])

    def _own_lane(self, first: Mapping[str, Any]) -> str:
        lane = meta_of(first).get("lane")
        return lane if isinstance(lane, str) and self.name != self.run_id else ""

    def _lane(self, about: Mapping[str, Any]) -> None:
        under = f"@{about['under']}" if about.get("under") else ""
        self._lanes[about["id"]] = f"{self._lanes.get(about['parent'], '')}/{about['name']}#{about['n']}{under}"

    def lines(self, steps: Mapping[int, tuple[bytes, str]]) -> dict[int, bytes]:
        """Return the recorded line of each step that a replay made."""
        counts: dict[int, int] = {}
        found = {}
        for seq in sorted(steps):
            entry = self.trace.entry(seq)
            n = counts[entry["lane"]] = counts.get(entry["lane"], 0) + 1
            found[seq] = dumps(self._about(entry, n, keyed=b'"input_hash":' in steps[seq][0]))
        return found

    def _about(self, entry: Mapping[str, Any], n: int, *, keyed: bool) -> dict[str, Any]:
        meta = dict(meta_of(entry))
        info = meta.pop("info", None) or {}
        step = family_of(entry["type"])
        family = step[0] if step is not None else info.get("family")
        about = {
            "run": self.name,
            "lane": self._lanes.get(entry["lane"], ""),
            "n": n,
            "seq": entry["seq"],
            "kind": family or entry["type"],
            "name": entry.get("name"),
            "meta": meta,
        }
        if "agent_id" in entry:
            about["agent_id"] = entry["agent_id"]
        if keyed and "input_hash" in entry:
            return {**about, "input_hash": entry["input_hash"]}
        tree = self.trace.expand(entry.get("input"), before=entry["seq"])
        if family is None:
            output = self.trace.expand(entry.get("output"), before=entry["seq"])
            return {**about, "input": steady(tree), "output": steady(output)}
        return {**about, "input": shown_input(tree, dumps(tree))}

    def result(self) -> bytes | None:
        """Return the result of the run; ``None`` if it has none, and for a child process."""
        if self.name != self.run_id or not self.trace.has_result:
            return None
        return dumps(steady(self.trace.expand(self.trace.last["output"])))

    def matches(self, recorded: bytes, actual: bytes) -> bool:
        """Return whether a replay's line matches a recorded one; placeholders match their values."""
        if recorded == actual:
            return True
        return self._bindings.equal(self._redactor.redact(loads(recorded))[0], loads(actual))

    @property
    def incomplete(self) -> bool:
        """Whether the run has no end."""
        return self.trace.status.state == "incomplete"

    @property
    def is_concurrent(self) -> bool:
        """Whether the run had more than one lane: threads, tasks, calls submitted to pools."""
        return len(self._lanes) > 1

    def expected_steps(self) -> set[int]:
        """Return the steps that a replay of the whole log makes: all but those inside another step."""
        index = self.trace.collected(Index).finish()
        steps = [(seq, family) for (_, family), seqs in index.intents.items() for seq in seqs]
        inside = {within for seq, family in steps if family != "span" for within in index.inside(seq)}
        return {seq for seq, _ in steps} - inside - index.repeated

    def as_replayed(self, steps: Mapping[int, tuple[bytes, str]]) -> Iterator[dict[str, Any]]:
        """Yield the entries of the recording, with the replay's values in place of the recorded ones."""
        for entry in self.trace.entries():
            if entry["seq"] in steps:
                line = loads(steps[entry["seq"]][0])
                entry |= {key: line[key] for key in ("name", "agent_id", "input", "output") if key in line}
            yield entry


# -- comparing transcripts ---------------------------------------------------------------------------------------------
#
# The first difference between the transcripts of several replays, and between them and the recording.


class TranscriptDifference(NamedTuple):
    """The first difference between replays and recording. ``kind``: replay, run, step, result, end, stdout or served."""

    kind: str
    text: str
    step: int | None = None
    where: str | None = None


def first_difference(
    replays: Sequence[Transcript],
    recordings: Mapping[str, Recorded],
    *,
    expected: Collection[str] = (),
    stdout: bool = True,
) -> TranscriptDifference | None:
    """Return the first difference among replays and recordings; ``None`` if all are equal byte by byte.

    ``recordings`` are the runs that were opened, by id, ``expected`` the ids of all that the program recorded. Other
    representations of the run follow from the steps and are not compared themselves.
    """
    return next(_differences(replays, recordings, expected, stdout), None)


def _differences(
    replays: Sequence[Transcript], recordings: Mapping[str, Recorded], expected: Collection[str], stdout: bool
) -> Iterator[TranscriptDifference]:
    yield from _failed_replays(replays)
    yield from _runs(replays, expected)
    for run in replays[0].runs:
        yield from _steps(recordings[run], replays)
        yield from _results(recordings[run], replays)
    yield from _missing_steps(replays, recordings)
    yield from _ends(replays)
    if stdout:
        yield from _printed(replays)


def _failed_replays(replays: Sequence[Transcript]) -> Iterator[TranscriptDifference]:
    failed = [transcript for transcript in replays if transcript.failed]
    if not failed:
        return
    one = min(failed, key=lambda transcript: (transcript.failure is None, _step_of(transcript)))
    others = [_compared_with_failed(transcript, one) for transcript in replays if transcript is not one]
    text = "\n".join([f"{one} is not the recording", _failure_text(one), *others])
    about, where = one.failure or ({}, "")
    yield TranscriptDifference("replay", text, about.get("step"), where or None)


def _step_of(transcript: Transcript) -> int:
    step = transcript.failure[0].get("step") if transcript.failure else None
    return step if isinstance(step, int) else 1 << 62


def _failure_text(transcript: Transcript) -> str:
    if transcript.failure is not None:
        return str(transcript.failure[0]["text"])
    if transcript.end is None:
        return f"its process ended with status {transcript.status} before the program had{_stderr_tail(transcript)}"
    error = transcript.end["error"] or {}
    failure = f": {error.get('type')}: {error.get('text')}" if error else ""
    return f"the program failed, and the recorded one did not{failure}{_stderr_tail(transcript)}"


def _stderr_tail(transcript: Transcript) -> str:
    lines = transcript.stderr.decode("utf-8", "replace").strip().splitlines()[-12:]
    return "".join(f"\n  | {line}" for line in lines)


def _compared_with_failed(transcript: Transcript, one: Transcript) -> str:
    """Return a sentence that compares another replay with ``one``, which failed."""
    if not transcript.failed:
        return f"{transcript} matched the recording: what the program does changes from one process to the next"
    if transcript.failure is None or one.failure is None:
        return f"{transcript}: {_failure_text(transcript)}"
    mine, theirs = one.failure[0], transcript.failure[0]
    if _waits(one) and _waits(transcript):
        return (
            f"{transcript} waits as well: what threads or tasks share without a queue or a future, and what the body of a tool sets, "
            "is not recorded"
        )
    if mine["text"] == theirs["text"]:
        return (
            f"{transcript} differs from it in the same way: what the program depends on is not the same as in the recording "
            "(its code, a file, a variable of the environment, the hash seed; where it has several threads or processes, their order)"
        )
    if mine["step"] == theirs["step"] and mine["actual"] is not None and theirs["actual"] is not None:
        found = differences(mine["actual"], theirs["actual"])
        if found:
            return f"{transcript} differs there as well, in another way\n{labelled_differences(found, one.name, transcript.name)}"
    return f"{transcript} differs in another way\n{_indented(theirs['text'])}"


def _waits(transcript: Transcript) -> bool:
    """Return whether the replay ended because nothing in it could go on, not because the program did something else."""
    reasons = [one for about in transcript.reports.values() for one in about["verdict"]["reasons"]]
    return any(one["code"] == "everything_waits" for one in reasons)


def _runs(replays: Sequence[Transcript], expected: Collection[str]) -> Iterator[TranscriptDifference]:
    for transcript in replays:
        left = [run for run in expected if run not in transcript.runs]
        if left:
            yield TranscriptDifference(
                "run", f"{transcript} never opened the run {left[0]}, which this program recorded"
            )
    first = replays[0]
    for transcript in replays[1:]:
        if list(transcript.runs) != list(first.runs):
            yield TranscriptDifference(
                "run", f"{first} opened the runs {list(first.runs)}, {transcript} opened {list(transcript.runs)}"
            )


def _steps(recorded: Recorded, replays: Sequence[Transcript]) -> Iterator[TranscriptDifference]:
    made = [transcript.steps.get(recorded.name, {}) for transcript in replays]
    union = {seq: line for steps in made for seq, line in steps.items()}
    recorded_lines = recorded.lines(union)
    for seq in sorted(union):
        lines = [steps.get(seq) for steps in made]
        first = lines[0]
        for transcript, line in zip(replays, lines, strict=True):
            if line is None:
                yield TranscriptDifference(
                    "step", f"{transcript} never reached step {seq}{_at(union[seq][1])}", seq, union[seq][1]
                )
            elif not recorded.matches(recorded_lines[seq], line[0]):
                yield _step_difference(seq, "the recording", recorded_lines[seq], str(transcript), line)
            elif first is not None and line[0] != first[0]:
                yield _step_difference(seq, str(replays[0]), first[0], str(transcript), line)


def _step_difference(seq: int, one: str, was: bytes, other: str, line: tuple[bytes, str]) -> TranscriptDifference:
    here = loads(line[0])
    found = labelled_differences(differences(loads(was), here), one, other)
    text = f"step {seq} ({here['kind']} {here['name']!r}) is different in {other} than in {one}\n{found}{_at(line[1])}"
    return TranscriptDifference("step", text, seq, line[1] or None)


def _missing_steps(replays: Sequence[Transcript], recordings: Mapping[str, Recorded]) -> Iterator[TranscriptDifference]:
    """Yield steps that a replayed process without a recorded end never made, if they come before the end of the run."""
    for file, recorded in recordings.items():
        run = recordings.get(recorded.run_id)
        if run is None or run is recorded or not recorded.incomplete:
            continue
        end = run.trace.last["ts_ns"]
        expected_steps = {seq for seq in recorded.expected_steps() if recorded.trace.entry(seq)["ts_ns"] < end}
        for transcript in replays:
            for seq in sorted(expected_steps - transcript.steps.get(file, {}).keys()):
                name = recorded.trace.entry(seq).get("name")
                yield TranscriptDifference(
                    "step", f"{transcript} never reached step {seq} ({name!r}) of the process {file}", seq
                )


def _results(recorded: Recorded, replays: Sequence[Transcript]) -> Iterator[TranscriptDifference]:
    run, was = recorded.name, recorded.result()
    first = replays[0].results.get(run)
    for transcript in replays:
        now = transcript.results.get(run)
        if was is not None and not recorded.matches(was, (now or NOTHING)[0]):
            yield _result_difference("the recording", was, transcript, now)
        elif (now or NOTHING)[0] != (first or NOTHING)[0]:
            yield _result_difference(str(replays[0]), (first or NOTHING)[0], transcript, now)


def _result_difference(
    one: str, was: bytes, transcript: Transcript, now: tuple[bytes, str] | None
) -> TranscriptDifference:
    data, where = now or NOTHING
    found = labelled_differences(differences(loads(was), loads(data)), one, str(transcript))
    return TranscriptDifference(
        "result", f"{transcript} gave another result than {one}\n{found}{_at(where)}", None, where or None
    )


def _ends(replays: Sequence[Transcript]) -> Iterator[TranscriptDifference]:
    first = replays[0]
    for transcript in replays[1:]:
        was, now = ({"end": one.end, "process status": one.status} for one in (first, transcript))
        found = differences(was, now)
        if found:
            yield TranscriptDifference(
                "end",
                f"{transcript} ended differently from {first}\n{labelled_differences(found, str(first), str(transcript))}",
            )


def _printed(replays: Sequence[Transcript]) -> Iterator[TranscriptDifference]:
    first = replays[0]
    for transcript in replays[1:]:
        if transcript.stdout != first.stdout:
            yield _lines(first, transcript)


def _lines(first: Transcript, transcript: Transcript) -> TranscriptDifference:
    one, other = first.stdout.splitlines(keepends=True), transcript.stdout.splitlines(keepends=True)
    number = in_common(one, other)
    sides = []
    for replay, lines in ((first, one), (transcript, other)):
        line = lines[number].decode("utf-8", "replace").rstrip("\n")[:400] if number < len(lines) else "(nothing)"
        sides.append(f"  {replay}:\n    {line}")
    where = _place(transcript if number < len(other) else first, number)
    text = "\n".join([f"line {number + 1} of standard output differs between {transcript} and {first}", *sides])
    return TranscriptDifference("stdout", text + _at(where), None, where or None)


def _place(transcript: Transcript, line: int) -> str:
    i = bisect_right(transcript.places, line, key=lambda place: place[0])
    return transcript.places[i - 1][1] if i else ""


# -- messages ----------------------------------------------------------------------------------------------------------


def labelled_differences(found: list[dict[str, Any]], one: str, other: str) -> str:
    """Return a description of differences field by field, with the names of the two sides."""
    names = {"    recorded  ": f"    {one}: ", "    now       ": f"    {other}: "}
    names |= {"    --- recorded": f"    --- {one}", "    +++ now": f"    +++ {other}"}
    lines = []
    for line in describe(found).splitlines():
        label = next((label for label in names if line.startswith(label)), None)
        lines.append(line if label is None else names[label] + line[len(label) :])
    return "\n".join(lines)


def _at(where: str) -> str:
    return f"\n  where: at {where}" if where else ""


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
