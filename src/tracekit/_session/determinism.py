"""Whether replays of one recording did the same, byte for byte: each other's, and what was recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orjson import loads

from .._engine.divergence import describe, differences
from .did import NOTHING, Did
from .ends import last_entry
from .expected import Recorded

__all__ = ["Difference", "apart", "first_difference"]


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
