"""Whether replays of one recording did the same, byte for byte: each other's, and what was recorded."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from hashlib import sha256
from threading import Lock
from typing import Any, Final, NamedTuple

from orjson import JSONDecodeError, loads

from .._capture import stdout
from .._journal.entry import family_of
from .._journal.reader import Trace
from .._runtime.callsite import caller
from .._runtime.context import Lane, Scope
from .._runtime.divergence import OPAQUE, describe, differences, steady
from .._runtime.redaction import Redactor
from .._runtime.replayer import Index, Replay, ReplayedStep, alike
from .._runtime.step import Request
from .._values import dumps, exception_to_json, fingerprint, to_json
from ..agents.graph import ordered
from ..agents.ids import segment_of_path
from ..agents.view import View, dump
from ..errors import BudgetExceededError, ContractViolationError, GraphError, LiveCallBlockedError, ReplayError
from .ending import last_entry
from .replaying import ReplayBlock

__all__ = [
    "NOTHING",
    "Did",
    "Difference",
    "Places",
    "Recorded",
    "Witness",
    "WitnessedReplaying",
    "apart",
    "first_difference",
    "name_of",
    "unsettle",
    "witnessed",
]

# -- did ---------------------------------------------------------------------------------------------------------------
#
# What a program did in one replay, read from what its witness wrote.

#: The result of a run that says none, and its place.
NOTHING: Final = (b"null", "")


@dataclass
class Did:
    """What the program did in one replay: as its witness wrote it, and as the system saw its process."""

    name: str
    hash_seed: int
    status: int
    stdout: bytes
    stderr: bytes
    #: Runs that it opened, in order, by id: their files.
    runs: dict[str, str] = field(default_factory=dict)
    #: By run and ``seq``: canonical line and place.
    steps: dict[str, dict[int, tuple[bytes, str]]] = field(default_factory=dict)
    results: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: list[tuple[int, str]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: str, name: str, hash_seed: int, status: int, stdout: bytes, stderr: bytes) -> Did:
        """The witness at ``path``, and those of the processes that the program started; a last line that was cut off is left out."""
        did = cls(name, hash_seed, status, stdout, stderr)
        did._read(path)
        for child in sorted(glob(f"{path}.*")):
            did._read(child, "seq", "path")
        return did

    def _read(self, path: str, *only: str) -> None:
        """Take what one process wrote; of another than the first the steps alone: its failure is the first one's as well."""
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        data, _, place = line[:-1].rpartition(b"\t")
                        about = loads(data)
                        if not only or any(key in about for key in only):
                            self._take(about, data, place.decode("utf-8", "replace"))
        except (FileNotFoundError, JSONDecodeError):
            pass  # its process never came so far, or wrote no more of it

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
        elif kind == "places" and about["lines"] == self.stdout.count(b"\n"):  # else others wrote there too
            self.places = [(line, where) for line, where in about["places"]]
        elif kind == "end":
            self.end = about

    @property
    def failure(self) -> tuple[dict[str, Any], str] | None:
        """What made the replay fail, and where, as it was told last: by then with what its processes had to say."""
        return self.failures[-1] if self.failures else None

    @property
    def failed(self) -> bool:
        """Whether the replay was not an exact one, by its own verdict; one of a log without an end may be."""
        return bool(self.failures) or self.end is None or self.end["code"] not in (0, 3)

    def stream(self) -> bytes:
        """Steps, results and end, in recorded order, without places."""
        found = [line for run in self.runs for _, (line, _) in sorted(self.steps.get(run, {}).items())]
        found += [self.results.get(run, NOTHING)[0] for run in self.runs]
        found.append(dumps(self.end))
        return b"\n".join(found)

    def digest(self) -> str:
        """SHA-256 of all of it, standard output included."""
        return sha256(self.stream() + b"\n" + self.stdout).hexdigest()

    def outcome(self) -> object:
        """All of it, with what made it fail: equal where two replays did the same, right or wrong."""
        actual = self.failure[0]["actual"] if self.failure is not None else None
        return self.stream(), self.stdout, dumps(actual)

    def count(self) -> int:
        """How many steps it made."""
        return sum(map(len, self.steps.values()))

    def __str__(self) -> str:
        return f"{self.name} (hash seed {self.hash_seed})"


# -- witness -----------------------------------------------------------------------------------------------------------
#
# What a program does while it is replayed, written down step by step, so that two replays can be compared byte by byte.
#
# A line is an object in canonical JSON, a tab, and the place in the user's code (which is not compared). It is in the file before the
# program goes on: a process that dies leaves what it had done.

_write: Final = os.write
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")
_REFUSALS: Final = (ContractViolationError, BudgetExceededError)
#: An input of more canonical bytes than this is written down as their hash.
_MOST: Final = 1 << 20
#: What is kept alive to its end by this process.
_kept: Final[list[object]] = []


class Witness:
    """The file in which one replaying process says what its program does."""

    def __init__(self, path: str) -> None:
        self._file: Final = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pid: Final = os.getpid()
        self._lock: Final = Lock()
        self._counts: Final[dict[int, int]] = {}
        self._lanes: Final[list[Lane]] = []

    def tell(self, about: Mapping[str, Any], place: str | None = None) -> None:
        """Write a line; a forked child writes none."""
        if os.getpid() != self._pid:
            return
        data = dumps(about) + b"\t" + (place or "").encode("utf-8", "replace") + b"\n"
        with self._lock:
            while data:
                data = data[_write(self._file, data) :]

    def step(self, run: str, scope: Scope, seq: int, **about: Any) -> None:
        """The program came to a step, which is the recorded one ``seq``."""
        lane = scope.lane
        with self._lock:
            n = self._counts.get(id(lane), 0) + 1
            if n == 1:
                self._lanes.append(lane)  # so that no other lane gets its id
            self._counts[id(lane)] = n
        agent = {} if scope.agent is None else {"agent_id": scope.agent}
        self.tell({"run": run, "lane": lane.path, "n": n, "seq": seq, **agent, **about}, caller())

    def failed(self, run: str | None, error: BaseException) -> None:
        """The replay of a run has failed."""
        about = {
            "kind": "failure",
            "run": run,
            "child": getattr(error, "child", None),
            "type": type(error).__name__,
            "code": getattr(error, "code", None),
            "step": getattr(error, "step", None),
            "blocked": getattr(error, "kind", None) if isinstance(error, LiveCallBlockedError) else None,
            "text": str(error),
            "actual": to_json(getattr(error, "actual", None)),
        }
        self.tell(about, getattr(error, "location", None))

    def ended(
        self, code: int, status: int, error: BaseException | None, players: list[ReplayBlock], out: Places | None
    ) -> None:
        """The program has ended, with ``status`` and the exception that nobody caught; ``code`` is the replay's own verdict."""
        for player in players:
            report = player.report
            about = {"unconsumed": len(report.unconsumed), "verdict": report.verdict.as_dict()}
            self.tell({"kind": "report", "run": player.run_id, **to_json(about)})
        if out is not None:
            self.tell({"kind": "places", "places": out.places, "lines": out.lines})
        self.tell({"kind": "end", "code": code, "status": status, "error": None if error is None else _told(error)})


def _told(error: BaseException) -> dict[str, Any]:
    tree = Redactor.of_process([]).redact(exception_to_json(error, []))[0]
    text = tree.get("text")
    return {"type": tree["type"], "text": _ADDRESS.sub("0x", text) if isinstance(text, str) else text}


class WitnessedReplaying(ReplayBlock):
    """A replay whose steps, result and failure a witness writes down."""

    def __init__(self, path: str, options: dict[str, Any], witness: Witness) -> None:
        super().__init__(path, options, None)
        self._witness: Final = witness

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        return witnessed(self._witness, trace, redactor, options)

    def _hint(self, session: Replay) -> str | None:
        return None  # that the hash seed is another one is the point; whether it matters is tried out

    def compare_result(self, value: Any) -> None:
        tree = steady(self.session.redactor.redact(to_json(value))[0])
        self._witness.tell({"kind": "result", "run": self.run_id, "result": tree}, caller())
        super().compare_result(value)


def witnessed(witness: Witness, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
    """A replay of this trace that ``witness`` writes down."""
    how = {"on_divergence": options["on_divergence"], "strict": frozenset(options["strict"])}
    session = _Witnessed(witness, trace, redactor, **how)
    session.report._recorded = {}  # what the run took is not asked here, and costs another reading of the file
    witness.tell({"kind": "run", "run": session.file, "path": os.path.abspath(trace.path)})
    return session


def name_of(path: str, run_id: str) -> str:
    """What a trace file is called in a witness: by its run, and its segment where it is one."""
    segment = segment_of_path(path, run_id)
    return run_id if segment is None else f"{run_id}.{segment}"


class _Witnessed(Replay):
    """A replay that writes down each step as the program asks for it."""

    def __init__(self, witness: Witness, trace: Trace, redactor: Redactor, **how: Any) -> None:
        super().__init__(trace, redactor, **how)
        self._witness: Final = witness
        self.file: Final = name_of(trace.path, self.run_id)

    def begin(self, scope: Scope, request: Request) -> ReplayedStep:
        about = self._asked(request)
        try:
            step = super().begin(scope, request)
        except _REFUSALS:
            self._witness.step(self.file, scope, scope.lane.last, **about)
            raise
        self._witness.step(self.file, scope, step.seq, **about)
        return step

    def _asked(self, request: Request) -> dict[str, Any]:
        told, key = request.spec.tell(self.redactor), request.key
        about: dict[str, Any] = {"kind": request.spec.family, "name": told.name, "meta": told.meta}
        if key is not None:
            return {**about, "input_hash": fingerprint(told.name, self._encode(key)[0])}
        return {**about, "input": kept(*self._encode_input(request))}

    def note(
        self,
        scope: Scope,
        type: str,
        name: str,
        *,
        input: object = None,
        output: object = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> int:
        meta = dict(signature or {})
        meta.pop("info", None)
        tree, data = self._encode({"input": input, "output": output})
        if OPAQUE in data:
            tree = steady(tree)
        about = {"kind": type, "name": self.redactor.redact_text(name)[0], "meta": self._encode(meta)[0], **tree}
        seq = super().note(scope, type, name, input=input, output=output, signature=signature, info=info)
        self._witness.step(self.file, scope, seq, **about)
        return seq

    def fail(self, error: ReplayError, code: str | None = None) -> ReplayError:
        with self._lock:
            if self.failure is None:
                self._witness.failed(self.file, error)
            return super().fail(error, code)


def kept(tree: Any, data: bytes) -> Any:
    """An input as it is written down: whole, or its hash where it is very large; what differs from process to process left out."""
    if OPAQUE in data:
        tree = steady(tree)
    return tree if len(data) <= _MOST else {"bytes": len(data), "sha256": fingerprint("", tree)}


# -- the process ---------------------------------------------------------------------------------------------------------


class Places:
    """Where in the user's code each line of standard output was written."""

    def __init__(self) -> None:
        #: Number of a line, counted from 0, and the place that its first character and those after it come from.
        self.places: Final[list[tuple[int, str]]] = []
        self.lines = 0

    def _write(self, text: str) -> None:
        place = caller() or ""
        if text and (not self.places or self.places[-1][1] != place):
            self.places.append((self.lines, place))
        self.lines += text.count("\n")

    @classmethod
    def take(cls) -> Places | None:
        """Listen to what is written to ``sys.stdout``, where that can be."""
        out = stdout.Out.take()
        if out is None:
            return None
        places = cls()
        out.listeners.append(places._write)
        return places


def unsettle(number: int) -> None:
    """Make what a program should not depend on another one in each of several replays: thread switches, places in memory."""
    sys.setswitchinterval((0.02, 0.0002)[number % 2])
    _kept.append([object() for _ in range(1 + 20_011 * number)])


# -- expected ----------------------------------------------------------------------------------------------------------
#
# What replays of a recorded run have to come to, in the form in which a witness writes what they did.

_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent", "state_transition"})


class Recorded:
    """The lines that a witness would have written of one recorded run."""

    def __init__(self, path: str) -> None:
        self.trace: Final = Trace(path)
        first = self.trace.entry(1)
        self.run_id: Final[str] = first["run_id"]
        self.name: Final = name_of(path, self.run_id)
        self._redactor: Final = Redactor.of_process([])
        self._lanes: Final[dict[int, str]] = {0: self._own_lane(first)}
        for entry in self.trace.entries():
            if entry["type"] == "lane":
                self._lane(entry["input"])

    def _own_lane(self, first: Mapping[str, Any]) -> str:
        lane = (first.get("meta") or {}).get("lane")
        return lane if isinstance(lane, str) and self.name != self.run_id else ""

    def _lane(self, about: Mapping[str, Any]) -> None:
        under = f"@{about['under']}" if about.get("under") else ""
        self._lanes[about["id"]] = f"{self._lanes.get(about['parent'], '')}/{about['name']}#{about['n']}{under}"

    def lines(self, like: Mapping[int, tuple[bytes, str]]) -> dict[int, bytes]:
        """Of each step that a replay made, what was recorded of it in the same form."""
        counts: dict[int, int] = {}
        found = {}
        for seq in sorted(like):
            entry = self.trace.entry(seq)
            n = counts[entry["lane"]] = counts.get(entry["lane"], 0) + 1
            found[seq] = dumps(self._about(entry, n, keyed=b'"input_hash":' in like[seq][0]))
        return found

    def _about(self, entry: Mapping[str, Any], n: int, *, keyed: bool) -> dict[str, Any]:
        meta = dict(entry.get("meta") or {})
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
        return {**about, "input": kept(tree, dumps(tree))}

    def result(self) -> bytes | None:
        """What the run came to; ``None`` where the log does not say, and for a process of it that is not its first."""
        if self.name != self.run_id:
            return None
        last = last_entry(self.trace)
        if last["type"] != "run.completed" or "output" not in last:
            return None
        return dumps(steady(self.trace.expand(last["output"])))

    def same(self, recorded: bytes, actual: bytes) -> bool:
        """Whether a recorded line is one of now, placeholders standing for any text."""
        if recorded == actual:
            return True
        return alike(self._redactor.redact(loads(recorded))[0], loads(actual))

    @property
    def unsealed(self) -> bool:
        """Whether the run has no end."""
        return self.trace.status.state == "unsealed"

    @property
    def several(self) -> bool:
        """Whether it had more than one line of execution: threads, tasks, calls that were submitted."""
        return len(self._lanes) > 1

    def asked(self) -> set[int]:
        """Every step that a replay of the whole log is asked for: none of what happened inside another one."""
        index = Index(self.trace.entries())
        steps = [(seq, family) for (_, family), seqs in index.intentions.items() for seq in seqs]
        inside = {within for seq, family in steps if family != "span" for within in index.inside(seq)}
        return {seq for seq, _ in steps} - inside - index.repeated

    def view(self, steps: Mapping[int, tuple[bytes, str]]) -> bytes | None:
        """The inter-agent view of what a replay did; ``None`` where agents said nothing."""
        trace, spoke = self.trace, False

        def expand(value: Any, before: int) -> Any:
            return trace.expand(value, before=before)

        view = View(expand, segment_of_path(trace.path, self.run_id))
        found = []
        for entry in trace.entries():
            if entry["seq"] in steps:
                did = loads(steps[entry["seq"]][0])
                spoke = spoke or entry["type"] in _MESSAGES
                entry = {**entry, **{key: did[key] for key in ("name", "agent_id", "input", "output") if key in did}}
            event = view.feed(entry)
            if event is not None:
                found.append(event)
        if not spoke:
            return None
        try:
            return dump(ordered(found))
        except GraphError:  # what caused them happened in runs that are not looked at
            return dump(found)


# -- determinism -------------------------------------------------------------------------------------------------------
#
# Whether replays of one recording did the same, byte for byte: each other's, and what was recorded.


class Difference(NamedTuple):
    """The first thing in which replays and recording differ. ``kind``: replay, run, step, result, end, stdout or served."""

    kind: str
    text: str
    step: int | None = None
    where: str | None = None


def first_difference(
    replays: Sequence[Did], recordings: Mapping[str, Recorded], *, expected: Collection[str] = (), stdout: bool = True
) -> Difference | None:
    """``None`` where all replays did the same and what was recorded, to the byte.

    ``recordings`` are the runs that were opened, by id, ``expected`` the ids of all that the program recorded. The inter-agent view needs
    no look of its own: it is worked out of the steps.
    """
    return next(_all(replays, recordings, expected, stdout), None)


def _all(
    replays: Sequence[Did], recordings: Mapping[str, Recorded], expected: Collection[str], stdout: bool
) -> Iterator[Difference]:
    yield from _failed(replays)
    yield from _runs(replays, expected)
    for run in replays[0].runs:
        yield from _steps(recordings[run], replays)
        yield from _results(recordings[run], replays)
    yield from _left_behind(replays, recordings)
    yield from _ends(replays)
    if stdout:
        yield from _printed(replays)


def _failed(replays: Sequence[Did]) -> Iterator[Difference]:
    failed = [did for did in replays if did.failed]
    if not failed:
        return
    one = min(failed, key=lambda did: (did.failure is None, _step_of(did)))
    others = [_compared(did, one) for did in replays if did is not one]
    text = "\n".join([f"{one} is not the recording", _said(one), *others])
    about, where = one.failure or ({}, "")
    yield Difference("replay", text, about.get("step"), where or None)


def _step_of(did: Did) -> int:
    step = did.failure[0].get("step") if did.failure else None
    return step if isinstance(step, int) else 1 << 62


def _said(did: Did) -> str:
    if did.failure is not None:
        return str(did.failure[0]["text"])
    if did.end is None:
        return f"its process ended with status {did.status} before the program had{_tail(did)}"
    error = did.end["error"] or {}
    told = f": {error.get('type')}: {error.get('text')}" if error else ""
    return f"the program failed, and the recorded one did not{told}{_tail(did)}"


def _tail(did: Did) -> str:
    lines = did.stderr.decode("utf-8", "replace").strip().splitlines()[-12:]
    return "".join(f"\n  | {line}" for line in lines)


def _compared(did: Did, one: Did) -> str:
    """How another replay did, where ``one`` failed."""
    if not did.failed:
        return f"{did} matched the recording: what the program does changes from one process to the next"
    if did.failure is None or one.failure is None:
        return f"{did}: {_said(did)}"
    mine, theirs = one.failure[0], did.failure[0]
    if mine["text"] == theirs["text"]:
        return (
            f"{did} differs from it in the same way: what the program depends on is another one than in the recording "
            "(its code, a file, a variable of the environment, the hash seed; where it has several threads or processes, their order)"
        )
    if mine["step"] == theirs["step"] and mine["actual"] is not None and theirs["actual"] is not None:
        found = differences(mine["actual"], theirs["actual"])
        if found:
            return f"{did} differs there as well, in another way\n{apart(found, one.name, did.name)}"
    return f"{did} differs in another way\n{_indented(theirs['text'])}"


def _runs(replays: Sequence[Did], expected: Collection[str]) -> Iterator[Difference]:
    for did in replays:
        left = [run for run in expected if run not in did.runs]
        if left:
            yield Difference("run", f"{did} never opened the run {left[0]}, which this program recorded")
    first = replays[0]
    for did in replays[1:]:
        if list(did.runs) != list(first.runs):
            yield Difference("run", f"{first} opened the runs {list(first.runs)}, {did} opened {list(did.runs)}")


def _steps(recorded: Recorded, replays: Sequence[Did]) -> Iterator[Difference]:
    made = [did.steps.get(recorded.name, {}) for did in replays]
    union = {seq: line for steps in made for seq, line in steps.items()}
    were = recorded.lines(union)
    for seq in sorted(union):
        lines = [steps.get(seq) for steps in made]
        first = lines[0]
        for did, line in zip(replays, lines, strict=True):
            if line is None:
                yield Difference("step", f"{did} never came to step {seq}{_at(union[seq][1])}", seq, union[seq][1])
            elif not recorded.same(were[seq], line[0]):
                yield _unlike(seq, "the recording", were[seq], str(did), line)
            elif first is not None and line[0] != first[0]:
                yield _unlike(seq, str(replays[0]), first[0], str(did), line)


def _unlike(seq: int, one: str, was: bytes, other: str, line: tuple[bytes, str]) -> Difference:
    here = loads(line[0])
    found = apart(differences(loads(was), here), one, other)
    text = (
        f"step {seq} ({here['kind']} {here['name']!r}) is another one in {other} than in {one}\n{found}{_at(line[1])}"
    )
    return Difference("step", text, seq, line[1] or None)


def _left_behind(replays: Sequence[Did], recordings: Mapping[str, Recorded]) -> Iterator[Difference]:
    """Steps that replays of a process without an end did not come to; those after the run's own end nobody waits for."""
    for file, recorded in recordings.items():
        run = recordings.get(recorded.run_id)
        if run is None or run is recorded or not recorded.unsealed:
            continue
        end = last_entry(run.trace)["ts_ns"]
        asked = {seq for seq in recorded.asked() if recorded.trace.entry(seq)["ts_ns"] < end}
        for did in replays:
            for seq in sorted(asked - did.steps.get(file, {}).keys()):
                name = recorded.trace.entry(seq).get("name")
                yield Difference("step", f"{did} never came to step {seq} ({name!r}) of the process {file}", seq)


def _results(recorded: Recorded, replays: Sequence[Did]) -> Iterator[Difference]:
    run, was = recorded.name, recorded.result()
    first = replays[0].results.get(run)
    for did in replays:
        now = did.results.get(run)
        if was is not None and not recorded.same(was, (now or NOTHING)[0]):
            yield _another("the recording", was, did, now)
        elif (now or NOTHING)[0] != (first or NOTHING)[0]:
            yield _another(str(replays[0]), (first or NOTHING)[0], did, now)


def _another(one: str, was: bytes, did: Did, now: tuple[bytes, str] | None) -> Difference:
    data, where = now or NOTHING
    found = apart(differences(loads(was), loads(data)), one, str(did))
    return Difference("result", f"{did} came to another result than {one}\n{found}{_at(where)}", None, where or None)


def _ends(replays: Sequence[Did]) -> Iterator[Difference]:
    first = replays[0]
    for did in replays[1:]:
        was, now = ({"end": one.end, "process status": one.status} for one in (first, did))
        found = differences(was, now)
        if found:
            yield Difference("end", f"{did} ended otherwise than {first}\n{apart(found, str(first), str(did))}")


def _printed(replays: Sequence[Did]) -> Iterator[Difference]:
    first = replays[0]
    for did in replays[1:]:
        if did.stdout != first.stdout:
            yield _lines(first, did)


def _lines(first: Did, did: Did) -> Difference:
    one, other = first.stdout.splitlines(keepends=True), did.stdout.splitlines(keepends=True)
    number = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    sides = []
    for replay, lines in ((first, one), (did, other)):
        line = lines[number].decode("utf-8", "replace").rstrip("\n")[:400] if number < len(lines) else "(nothing)"
        sides.append(f"  {replay}:\n    {line}")
    where = _place(did if number < len(other) else first, number)
    text = "\n".join([f"line {number + 1} of standard output is another one in {did} than in {first}", *sides])
    return Difference("stdout", text + _at(where), None, where or None)


def _place(did: Did, line: int) -> str:
    i = bisect_right(did.places, line, key=lambda place: place[0])
    return did.places[i - 1][1] if i else ""


# -- in words ------------------------------------------------------------------------------------------------------------


def apart(found: list[dict[str, Any]], one: str, other: str) -> str:
    """Differences field by field, the two sides named."""
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
