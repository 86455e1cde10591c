"""The report of a test whose replay fails: what differs, where, and the commands to continue with, in forty lines at
most."""

from __future__ import annotations

import linecache
import os
import re
import shlex
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import (
    DivergenceError,
    InexactReplayError,
    LiveCallBlockedError,
    TraceExhaustedError,
    TracekitError,
    UnconsumedStepsError,
)
from tracekit.integration import is_user_code

if TYPE_CHECKING:
    import pytest

    from ._traces import TestRun

#: The lines of a report, and the limits of the call path and of a line's width.
_LINES: Final = 40
_FRAMES: Final = 6
_WIDTH: Final = 160


def report_of(error: TracekitError, run: TestRun, item: pytest.Item) -> str:
    """Return the report on ``error``, the failure of a test's replay, or what prevented the replay."""
    start = item.config.invocation_params.dir
    path = _shown(str(run.path), start)
    step = error.step if isinstance(error.step, int) else None
    way = _way(error, start, run.reached)
    tail = [f"  trace   {path}" + (f", step {step}" if step else "")]
    if _exists(run):
        tail.append(f"  show    tracekit show {shlex.quote(path)}" + (f" {step}" if step else ""))
    tail += _next(error, run, item)
    first, *rest = error.what.splitlines() or [type(error).__name__]
    if _exists(run) and not run.is_inside_another:
        first = f"{_KINDS.get(type(error), 'the replay failed')}: {first}"
    head = [_clip(first)]
    left = _LINES - len(head) - len(way) - len(tail) - 1
    if len(rest) > left:
        rest = [*rest[: left - 1], f"  … {len(rest) - left + 1} more lines"]
    return "\n".join([*head, *map(_clip, rest), *way, *tail])


def refusal_of(error: TracekitError, item: pytest.Item, by_option: bool) -> str:
    """Return the report on a test without a run that would have gone live: ``by_option`` if ``--block-network`` was
    given."""
    way = _way(error, item.config.invocation_params.dir)
    lines = [f"the network is blocked: {error.what}" if by_option else f"the test would go live: {error.what}", *way]
    if by_option:
        lines.append("  next    --tracekit-allow-host=HOST lets a server of the test's own be reached")
    else:
        lines.append("  next    name the test that is replayed, without others: -- -m pytest FILE::TEST")
    return "\n".join(map(_clip, lines))


_TEMPORARY: Final = re.compile(r"[/\\]pytest-of-[^/\\\s]+[/\\]pytest-\d+")
_KINDS: Final[dict[type[BaseException], str]] = {
    DivergenceError: "the test does something else than its recording",
    TraceExhaustedError: "the test does more than its recording",
    UnconsumedStepsError: "the test does less than its recording",
    LiveCallBlockedError: "the test would go live",
    InexactReplayError: "the test does not do exactly what it did when recorded",
}


def _next(error: TracekitError, run: TestRun, item: pytest.Item) -> list[str]:
    """Return what to do: the error's own advice, and the command that records the test again."""
    command = f"pytest {shlex.quote(item.nodeid)}"
    if run.is_inside_another:
        return [
            f"  next    {command}    (without `tracekit run`: the plugin replays and records the test)",
            "          tracekit run -m pytest -m 'not tracekit'    (to record a run of the tests that have none of their own)",
        ]
    if run.is_empty:
        first = "--tracekit-update" if _exists(run) else "--record-mode=once"
        return [
            "  next    have the test's calls captured: a client that tracekit knows, or @traced_tool; then record it:",
            f"          {command} {first}",
            "          a test that asks for nothing needs no recording: take the mark, or the fixture tracekit_run, off it",
        ]
    if not _exists(run):
        return [f"  record  {command} --record-mode=once"]
    lines = []
    kind, fields = _temporary(error)
    if fields:
        what = f"{kind!r}: [{', '.join(map(repr, fields))}]"
        lines += [
            "  note    pytest's tmp_path is a new directory each time: keep it out of requests,",
            f"          or leave it out of the comparison: @pytest.mark.tracekit(ignore={{{what}}}),",
            f"          or have it recorded, and replayed, in one directory: {command} --record-mode=all --basetemp=DIRECTORY",
        ]
    advice = error.next_action
    if todays := getattr(error, "todays", None):
        options = ", ".join(f"{option}={names!r}" for option, names in todays.items())
        advice = f"give the test what it had; or let today's count: @pytest.mark.tracekit({options})"
    if advice and not isinstance(error, DivergenceError | TraceExhaustedError | UnconsumedStepsError):
        lines.append(f"  next    {advice}")
    return [*lines, f"  update  {command} --tracekit-update    (records it again, if the change is meant)"]


def _temporary(error: TracekitError) -> tuple[str, list[str]]:
    """Return the kind of step, and its differing fields, that contain a temporary directory of pytest."""
    recorded = getattr(error, "recorded", None)
    step = recorded if isinstance(recorded, Mapping) else {}
    kind, name = str(step.get("type", "")).partition(".")[0], step.get("name")
    found = [
        str(one["path"])
        for one in getattr(error, "differences", None) or ()
        if _TEMPORARY.search(f"{one.get('recorded')!r} {one.get('actual')!r}")
    ]
    return f"{kind}:{name}" if kind == "tool" else kind, found


def _exists(run: TestRun) -> bool:
    return run.path.exists()


def _way(error: TracekitError, start: Any, reached: BaseException | None = None) -> list[str]:
    """Return the lines of the user's own code that led to the call, the test's first.

    Code on the way may have raised another error in place of ``error``: ``reached`` is the one that reached the test's
    end, and has passed the lines further out.
    """
    frames = [*traceback.walk_tb(error.__traceback__)]
    if reached is not None and reached is not error:
        inner = {id(frame): at for at, (frame, _) in enumerate(frames)}
        outer = [*traceback.walk_tb(reached.__traceback__)]
        met = next((at for at, (frame, _) in enumerate(outer) if id(frame) in inner), None)
        if met is not None:
            frames = [*outer[:met], *frames[inner[id(outer[met][0])] :]]
    found: list[tuple[str, int, str]] = []
    for frame, at in frames:
        if is_user_code(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, at, frame.f_code.co_name))
    if not found and error.location:
        file, _, line = error.location.rpartition(":")
        if line.isdigit():
            found.append((file, int(line), ""))
    if len(found) > _FRAMES:
        found = [found[0], *found[-_FRAMES + 1 :]]
    lines = []
    for n, (file, number, name) in enumerate(found):
        source = linecache.getline(file, number).strip()
        inside = f" in {name}" if name else ""
        lines.append(_clip(f"  {'where  ' if n == 0 else '       '} {_shown(file, start)}:{number}{inside}: {source}"))
    return lines


def _shown(path: str, start: Any) -> str:
    shown = os.path.relpath(path, start)
    return path if shown.startswith("..") else shown


def _clip(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
