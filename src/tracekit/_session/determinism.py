"""Whether replays of one recording did the same, byte for byte: each other's, and what was recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from orjson import JSONDecodeError, loads

from .._canonical import dumps
from .._engine.divergence import describe, differences, steady
from .._engine.placeholders import alike
from .._engine.redaction import Redactor
from .._journal.entry import family_of
from .._journal.reader import Trace
from ..agents.graph import ordered
from ..agents.ids import segment_of_path
from ..agents.view import View, dump
from ..errors import GraphError
from .ends import last_entry
from .witness import kept

__all__ = ["Did", "Difference", "Recorded", "apart", "first_difference", "view_of"]

_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent", "state_transition"})
_NOTHING: Final = (b"null", "")


class Difference(NamedTuple):
    """The first thing in which replays and recording differ. ``kind``: replay, run, step, result, end, agents or stdout."""

    kind: str
    text: str
    step: int | None = None
    where: str | None = None


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
        """The witness at ``path``; a last line that was cut off is left out."""
        did = cls(name, hash_seed, status, stdout, stderr)
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        data, _, place = line[:-1].rpartition(b"\t")
                        did._take(data, place.decode("utf-8", "replace"))
        except (FileNotFoundError, JSONDecodeError):
            pass  # its process never came so far, or wrote no more of it
        return did

    def _take(self, data: bytes, place: str) -> None:
        about = loads(data)
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
        elif kind == "places":
            self.places = [(line, where) for line, where in about["places"]]
        elif kind == "end":
            self.end = about

    @property
    def failure(self) -> tuple[dict[str, Any], str] | None:
        """What made the replay fail first, and where."""
        return self.failures[0] if self.failures else None

    @property
    def failed(self) -> bool:
        """Whether the replay was not an exact one, by its own verdict."""
        return bool(self.failures) or self.end is None or self.end["code"] != 0

    def stream(self) -> bytes:
        """Steps, results and end, in recorded order, without places."""
        found = [line for run in self.runs for _, (line, _) in sorted(self.steps.get(run, {}).items())]
        found += [self.results.get(run, _NOTHING)[0] for run in self.runs]
        found.append(dumps(self.end))
        return b"\n".join(found)

    def digest(self) -> str:
        """SHA-256 of all of it, standard output included."""
        return sha256(self.stream() + b"\n" + self.stdout).hexdigest()

    def count(self) -> int:
        """How many steps it made."""
        return sum(map(len, self.steps.values()))

    def __str__(self) -> str:
        return f"{self.name} (hash seed {self.hash_seed})"


# -- what was recorded ---------------------------------------------------------------------------------------------------


class Recorded:
    """The lines that a witness would have written of one recorded run."""

    def __init__(self, path: str) -> None:
        self.trace: Final = Trace(path)
        self.run_id: Final[str] = self.trace.entry(1)["run_id"]
        self._redactor: Final = Redactor.of_process([])
        self._lanes: Final[dict[int, str]] = {0: ""}
        for entry in self.trace.entries():
            if entry["type"] == "lane":
                self._lane(entry["input"])

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
            "run": self.run_id,
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
        """What the run came to; ``None`` where the log does not say."""
        last = last_entry(self.trace)
        if last["type"] != "run.completed" or "output" not in last:
            return None
        return dumps(steady(self.trace.expand(last["output"])))

    def same(self, recorded: bytes, actual: bytes) -> bool:
        """Whether a recorded line is one of now, placeholders standing for any text."""
        if recorded == actual:
            return True
        return alike(self._redactor.redact(loads(recorded))[0], loads(actual))


def view_of(recorded: Recorded, steps: Mapping[int, tuple[bytes, str]]) -> bytes | None:
    """The inter-agent view of what a replay did; ``None`` where agents said nothing."""
    trace, spoke = recorded.trace, False

    def expand(value: Any, before: int) -> Any:
        return trace.expand(value, before=before)

    view = View(expand, segment_of_path(trace.path, recorded.run_id))
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


# -- comparing -----------------------------------------------------------------------------------------------------------


def first_difference(replays: Sequence[Did], *, expected: Mapping[str, str], stdout: bool) -> Difference | None:
    """``None`` where all replays did the same and what was recorded, to the byte. ``expected``: every run of the program, by id."""
    return next(_all(replays, expected, stdout), None)


def _all(replays: Sequence[Did], expected: Mapping[str, str], stdout: bool) -> Iterator[Difference]:
    yield from _failed(replays)
    yield from _runs(replays, expected)
    first = replays[0]
    for run, path in first.runs.items():
        recorded = Recorded(path)
        yield from _steps(recorded, replays)
        yield from _results(recorded, replays)
        views = [view_of(recorded, did.steps.get(run, {})) for did in replays]
        if any(view != views[0] for view in views):
            yield Difference("agents", f"the inter-agent views of {first} and another replay differ")
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
            f"{did} differs from it in the same way: something that the program reads has changed since the recording "
            "(its code, a file, a variable of the environment)"
        )
    if mine["step"] == theirs["step"] and mine["actual"] is not None and theirs["actual"] is not None:
        found = differences(mine["actual"], theirs["actual"])
        if found:
            return f"{did} differs there as well, in another way\n{apart(found, one.name, did.name)}"
    return f"{did} differs in another way\n{_indented(theirs['text'])}"


def _runs(replays: Sequence[Did], expected: Mapping[str, str]) -> Iterator[Difference]:
    for did in replays:
        left = [run for run in expected if run not in did.runs]
        if left:
            yield Difference("run", f"{did} never opened the run {left[0]}, which this program recorded")
    first = replays[0]
    for did in replays[1:]:
        if list(did.runs) != list(first.runs):
            yield Difference("run", f"{first} opened the runs {list(first.runs)}, {did} opened {list(did.runs)}")


def _steps(recorded: Recorded, replays: Sequence[Did]) -> Iterator[Difference]:
    made = [did.steps.get(recorded.run_id, {}) for did in replays]
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


def _results(recorded: Recorded, replays: Sequence[Did]) -> Iterator[Difference]:
    run, was = recorded.run_id, recorded.result()
    first = replays[0].results.get(run)
    for did in replays:
        now = did.results.get(run)
        if was is not None and not recorded.same(was, (now or _NOTHING)[0]):
            yield _another("the recording", was, did, now)
        elif (now or _NOTHING)[0] != (first or _NOTHING)[0]:
            yield _another(str(replays[0]), (first or _NOTHING)[0], did, now)


def _another(one: str, was: bytes, did: Did, now: tuple[bytes, str] | None) -> Difference:
    data, where = now or _NOTHING
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
