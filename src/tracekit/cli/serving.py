"""Recordings that name no program, ordered and served in a fresh process: ``python -m tracekit.cli.serving FILE``.

Inter-agent events come out in the order of their graph; the answers of an agentloom recording as its replay gives them, key by key.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final, Literal

from .._journal.reader import Trace
from ..agents import agentloom, graph, view
from ..errors import TraceError, TracekitError

__all__ = ["difference", "kind_of", "lines", "served"]

Kind = Literal["events", "agentloom", "run"]

#: A first line longer than this is no event.
_MOST: Final = 8 << 20


def kind_of(path: str) -> Kind | None:
    """What a file is: inter-agent events, an agentloom recording, or ``None``: a trace, for all that is seen here."""
    try:
        with open(path, "rb") as file:
            first = _object(file.readline(_MOST))
            if first is not None and "run_id" in first and "seq" in first:
                return None
            if first is not None and "event_id" in first:
                return "events"
            file.seek(0)
            return None if _object(file.read()) is None else "agentloom"
    except OSError:
        return None


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def lines(path: str, kind: Kind) -> list[bytes]:
    """What is recorded in the file, in canonical order. Raises what makes it unusable."""
    if kind == "events":
        return _events(path)
    recording = _recording(path, kind)
    told = [
        _line(key, number, turn)
        for key in sorted(recording.answers)
        for number, turn in enumerate(recording.turns(key), 1)
    ]
    told += [view.line(event) for event in recording.events or ()]
    if not told:
        raise TraceError(
            f"{path} holds no answer and no event: nothing is recorded in it",
            path=path,
            next_action="name a trace, a recording of agentloom or a file of inter-agent events",
        )
    return told


def _events(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return list(map(view.line, graph.ordered(view.parse(file.read()))))
    except OSError as error:
        raise TraceError(
            f"{path} can't be read: {error.strerror}", path=path, next_action="name another file"
        ) from None


def _recording(path: str, kind: Kind) -> agentloom.Recording:
    if kind == "agentloom":
        return agentloom.load(path)
    with Trace(path) as trace:
        return agentloom.exported(trace)


def _line(key: str, number: int, turn: dict[str, Any]) -> bytes:
    return json.dumps({"key": key, "turn": number, "answer": turn}, sort_keys=True).encode() + b"\n"


def _replayed(path: str, kind: Kind) -> list[bytes]:
    """The same, asked for one by one."""
    if kind == "events":
        return _events(path)
    recording = _recording(path, kind)
    with recording.replay() as replay:
        told = [
            _line(key, number, replay.complete(None, step_id=key))
            for key in sorted(recording.answers)
            for number in range(1, len(recording.turns(key)) + 1)
        ]
    return told + [view.line(event) for event in recording.events or ()]


# -- processes -----------------------------------------------------------------------------------------------------------


def served(path: str, kind: Kind, hash_seed: int) -> list[bytes]:
    """What a fresh process serves from the file. ``TraceError`` where it can't."""
    variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-m", "tracekit.cli.serving", os.path.abspath(path), kind]
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise TraceError(
            f"{path} could not be served: {done.stderr.decode('utf-8', 'replace').strip()}",
            path=path,
            next_action="see what it says; `tracekit verify` checks a trace",
        )
    return done.stdout.splitlines(keepends=True)


def difference(one: tuple[str, list[bytes]], other: tuple[str, list[bytes]]) -> str | None:
    """The first line in which two named streams differ, in words."""
    for number in range(max(len(one[1]), len(other[1]))):
        sides = [(name, found[number] if number < len(found) else b"(nothing)") for name, found in (one, other)]
        if sides[0][1] != sides[1][1]:
            told = "\n".join(f"  {name}:\n    {data.decode('utf-8', 'replace').strip():.400}" for name, data in sides)
            return f"line {number + 1} is another one in {other[0]} than in {one[0]}\n{told}"
    return None


def main() -> None:
    path, kind = sys.argv[1:]
    assert kind in ("events", "agentloom", "run")
    try:
        sys.stdout.buffer.write(b"".join(_replayed(path, kind)))  # type: ignore[arg-type]
    except TracekitError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
