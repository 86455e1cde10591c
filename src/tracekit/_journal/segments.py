"""The files of a run's child processes: which there are, how each ends, and whether they are what the run's own file says of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..errors import RunNotFoundError, TraceIntegrityError
from .names import SEGMENT, SUFFIX, valid_run_id
from .reader import Trace, Verdict

__all__ = ["beside", "is_segment", "lane_of", "name_of", "told_of", "with_segments"]

_NAME: Final = re.compile("[0-9a-f]{16}")


def beside(path: str, run_id: str | None = None) -> tuple[str, ...]:
    """The segments that lie beside the run's file at ``path``, by the name of that, or by the id that it says. A segment has none."""
    directory, name = os.path.split(os.path.abspath(path))
    if is_segment(path):
        return ()
    stem = run_id if run_id is not None and valid_run_id(run_id) else name.removesuffix(SUFFIX)
    try:
        names = [one for one in os.listdir(directory) if one.startswith(f"{stem}.") and one.endswith(SUFFIX)]
    except OSError:
        return ()
    found = (os.path.join(directory, one) for one in sorted(names) if _is_of(one, stem))
    return tuple(one for one in found if os.path.isfile(one))


def _is_of(name: str, run: str) -> bool:
    match = SEGMENT.fullmatch(name.removesuffix(SUFFIX))
    return match is not None and match["run"] == run


def is_segment(path: str) -> bool:
    """Whether a file has the name of a segment."""
    return SEGMENT.fullmatch(os.path.basename(path).removesuffix(SUFFIX)) is not None


def name_of(path: str) -> str:
    """The 16 hex digits of a segment's file."""
    return os.path.basename(path)[-len(SUFFIX) - 16 : -len(SUFFIX)]


def lane_of(first: dict[str, Any], name: str) -> str:
    """What a segment, whose first entry this is, calls its process; its name where it does not say."""
    meta = first.get("meta")
    lane = meta.get("lane") if isinstance(meta, dict) else None
    return lane.strip("/") if isinstance(lane, str) else name


def told_of(path: str) -> dict[str, Any]:
    """What the last entry of a run says of the segment at ``path``: up to where it went, and whether it was open then."""
    with Trace(path) as trace:
        verdict = trace.status
    about: dict[str, Any] = {"segment": name_of(path)}
    if verdict.state != "sealed":
        about["open"] = True
    if verdict.state == "sealed" or verdict.count:
        about.update(count=verdict.count, head=verdict.head)
    return about


def with_segments(trace: Trace, verdict: Verdict, judge: Callable[[Trace], Verdict]) -> Verdict:
    """The verdict on a run whose own file has ``verdict``, given those of its segments by ``judge``. They carry a ``state`` each."""
    directory, stem = os.path.split(os.path.abspath(trace.path))
    stem = verdict.run_id if verdict.run_id and valid_run_id(verdict.run_id) else stem.removesuffix(SUFFIX)
    told = {str(segment.get("segment")): segment for segment in verdict.segments}
    for path in beside(trace.path, verdict.run_id):
        told.setdefault(name_of(path), {"unlisted": True})
    judged = []
    for name, said in sorted(told.items()):
        state, problem = _judged(trace, os.path.join(directory, f"{stem}.{name}{SUFFIX}"), name, said, judge)
        left_open = state == "unsealed" and bool(said.get("open"))
        if left_open:  # the run's end says so itself: it is as it was
            problem = f"open: its process had not ended it when the run ended ({problem})"
        judged.append({"segment": name, **said, "state": state, "problem": problem})
        ended_open = state == "unsealed" and verdict.state == "sealed" and not left_open
        if verdict.state != "broken" and (state == "broken" or ended_open):
            verdict = verdict._replace(state=state, problem=f"segment {name}: {problem}", line=None, lost_tail=False)
    return verdict._replace(segments=tuple(judged))


def _judged(
    parent: Trace, path: str, name: str, said: dict[str, Any], judge: Callable[[Trace], Verdict]
) -> tuple[Any, str | None]:
    """State and problem of one segment, compared with what the run's last entry says of it."""
    if not _NAME.fullmatch(name):
        return "broken", "its name is none"
    try:
        trace = Trace(path, parent.limits)
    except RunNotFoundError:
        return "broken", "its file is missing"
    with trace:
        verdict = judge(trace)
        if verdict.state == "broken":
            return "broken", f"line {verdict.line}: {verdict.problem}" if verdict.line else verdict.problem
        if verdict.run_id not in (None, parent.status.run_id):
            return "broken", f"it belongs to run {verdict.run_id}"
        count = said.get("count")
        if type(count) is int and (verdict.count < count or trace.hash_of(count) != said.get("head")):
            return "broken", _otherwise(verdict.count, count, said)
        first = trace.entry(1) if verdict.count else {}
        meta = first.get("meta")
        if isinstance(meta, dict) and meta.get("segment", name) != name:
            return "broken", f"it holds segment {meta['segment']}: it is a copy, or was renamed"
        if not _linked(parent, first):
            return "broken", "it was started by another entry than the one it names"
        return verdict.state, verdict.problem


def _otherwise(found: int, count: int, said: dict[str, Any]) -> str:
    what = "it is empty" if not found else f"its last {count - found} of {count} entries were cut off"
    return f"it is not what the run's end says: {count} entries with head {said.get('head')}" + (
        f"; {what}" if found < count else ""
    )


def _linked(parent: Trace, first: dict[str, Any]) -> bool:
    """Whether the entry of its parent's file, the run's own or another segment, that a segment names is the one whose hash it carries."""
    for cause in _causes(first):
        segment = cause.get("segment")
        if segment is None:
            return _has(parent, cause)
        if not (isinstance(segment, str) and _NAME.fullmatch(segment)):
            return False
        path = os.path.join(os.path.dirname(os.path.abspath(parent.path)), f"{parent.status.run_id}.{segment}{SUFFIX}")
        try:
            with Trace(path, parent.limits) as trace:
                return _has(trace, cause)
        except (RunNotFoundError, TraceIntegrityError):
            return False
    return True


def _causes(first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    causes = first.get("cause")
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and "hash" in cause and type(cause.get("seq")) is int:
            yield cause


def _has(trace: Trace, cause: dict[str, Any]) -> bool:
    seq = cause["seq"]
    return bool(0 < seq <= trace.status.count and trace.hash_of(seq) == cause["hash"])
