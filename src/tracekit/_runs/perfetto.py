"""Runs as Chrome trace events, for Perfetto and ``chrome://tracing``.

A track for each lane, arrows for hops and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from .._capture.plugins import Form
from .._journal.entry import FAMILIES, causes_of
from .._journal.reader import Trace
from .._journal.store import segment_in
from .._version import __version__
from .reading import FileView, StepView, plain

__all__ = ["Perfetto"]

_CALLS: Final = frozenset(FAMILIES) - {"pipe"}
_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent"})
#: Minimum length (ns): an arrow can't point to a slice without length.
_SHORTEST: Final = 1000

Place = tuple[str, str | None, int]


class _Slice(NamedTuple):
    """What fills a part of a track, in ns since the epoch."""

    start: int
    end: int
    lane: int
    name: str
    kind: str
    args: dict[str, Any]
    seq: int = 0


class _At(NamedTuple):
    """A place on a track."""

    process: int
    track: int
    ns: int


class Perfetto(Form):
    """Chrome trace events: times relative to the first entry, one process per file, one track per lane."""

    name = "perfetto"
    summary = "Chrome trace events, to be opened in ui.perfetto.dev or chrome://tracing."
    payloads = True

    def export(self, traces: Sequence[Trace], *, payloads: bool = False) -> Iterable[bytes]:
        files = [_File(number, trace, payloads=payloads) for number, trace in enumerate(traces, 1)]
        origin = min((file.began for file in files if file.view.steps), default=0)
        about = {"tracekit": __version__, "began_ns": str(origin)}
        yield b'{"displayTimeUnit":"ms","otherData":%b,"traceEvents":[\n' % orjson.dumps(about)
        places = {key: at for file in files for key, at in file.places.items()}
        separator = b""
        for event in _events(files, origin, places):
            yield separator + orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS)
            separator = b",\n"
        yield b"\n]}\n"


class _File:
    """One file of a run, with its slices on tracks in which they nest."""

    def __init__(self, number: int, trace: Trace, *, payloads: bool) -> None:
        self.number: Final = number
        self.view: Final = FileView(trace, trace.status, segment_in(trace.path)).read()
        self.began: Final = int(self.view.first.get("ts_ns", 0))
        self.ended: Final = int(self.view.last.get("ts_ns", 0))
        self._payloads: Final = payloads
        #: The numbers of each lane's tracks, and the open slices of each track.
        self._tracks: Final[dict[int, list[int]]] = {}
        self._open: Final[dict[int, list[int]]] = {}
        self.names: Final[dict[int, str]] = {}
        self.placed: Final[list[tuple[_Slice, int]]] = []
        #: Where an arrow from or to an entry begins or ends.
        self.places: Final[dict[Place, _At]] = {}
        for one in sorted(self._slices(), key=lambda one: (one.start, -one.end)):
            track = self._track(one)
            self.placed.append((one, track))
            if one.seq:
                self.places[self.key(one.seq)] = _At(number, track, one.start)

    def key(self, seq: int) -> Place:
        return str(self.view.first.get("run_id")), self.view.segment, seq

    def _slices(self) -> Iterator[_Slice]:
        if not self.view.first:
            return
        first, last = self.view.first, self.view.last
        lasts: dict[int, int] = {}
        for step in self.view.steps.values():
            end = self._end(step)
            lasts[step.lane_number] = max(lasts.get(step.lane_number, 0), end)
            if step.kind in _CALLS:
                yield _Slice(step.ts_ns, end, step.lane_number, _label(step), step.kind, self._args(step), step.seq)
            elif step.kind in _MESSAGES:
                yield _Slice(
                    step.ts_ns, end, step.lane_number, f"{step.kind} {step.name}", step.kind, self._args(step), step.seq
                )
        state = str(last["type"]) if self.view.ended is not None else "running" if self.view.live else "died"
        about = {"run_id": first.get("run_id"), "state": state}
        yield _Slice(
            self.began, max(self.ended, *lasts.values()), 0, str(first.get("name") or "run"), "run", about, first["seq"]
        )
        for step in self.view.steps.values():
            born = step.entry.get("input") if step.kind == "lane" else None
            if isinstance(born, Mapping) and born.get("id") in lasts:
                lane = self.view.lanes[born["id"]]
                yield _Slice(
                    step.ts_ns,
                    max(lasts[lane.number], step.ts_ns + _SHORTEST),
                    lane.number,
                    lane.label,
                    "lane",
                    {"path": lane.path},
                )

    def _end(self, step: StepView) -> int:
        if step.kind in _CALLS and step.outcome is None:
            return self.ended + _SHORTEST
        return step.ts_ns + max(step.took, _SHORTEST)

    def _args(self, step: StepView) -> dict[str, Any]:
        found: dict[str, Any] = {"step": step.place}
        if step.calls:
            found["state"] = step.state
        if step.side_effect is not None:
            found["side_effect"] = step.side_effect
        if step.agent is not None:
            found["agent"] = step.agent
        call = step.call
        if call is not None:
            found |= {"model": call.model, **call.usage}
            if call.cost_usd is not None:
                found["cost_usd"] = call.cost_usd
        if step.error is not None:
            found["error"] = step.error[:500]
        if self._payloads:
            found |= {"input": plain(step.input), "output": plain(step.output)}
        return found

    def _track(self, one: _Slice) -> int:
        """Return the first track of the lane in whose open slices this one nests; a new one if there is none."""
        tracks = self._tracks.setdefault(one.lane, [])
        for track in tracks:
            ends = self._open[track]
            while ends and ends[-1] <= one.start:
                ends.pop()
            if not ends or one.end <= ends[-1]:
                ends.append(one.end)
                return track
        track = len(self._open) + 1
        self._open[track] = [one.end]
        lane = self.view.lanes.get(one.lane)
        label = (lane.path if lane is not None else "") or "main"
        self.names[track] = f"{label} ({len(tracks) + 1})" if tracks else label
        tracks.append(track)
        return track

    def track_of(self, lane: int) -> int | None:
        """Return the first track of a lane."""
        tracks = self._tracks.get(lane)
        return tracks[0] if tracks else None


def _label(step: StepView) -> str:
    operation = step.meta.get("operation")
    return f"{operation} {step.name}" if step.kind == "llm" and isinstance(operation, str) else step.name


def _events(files: Sequence[_File], origin: int, places: Mapping[Place, _At]) -> Iterator[dict[str, Any]]:
    def at(ns: int) -> float:
        return (ns - origin) / 1000

    for file in files:
        process = {"pid": file.number}
        name = str(file.view.first.get("name") or "run") if file.view.segment is None else file.view.process
        yield {"ph": "M", "name": "process_name", **process, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", **process, "args": {"sort_index": file.number}}
        for track, label in file.names.items():
            yield {"ph": "M", "name": "thread_name", **process, "tid": track, "args": {"name": label}}
            yield {"ph": "M", "name": "thread_sort_index", **process, "tid": track, "args": {"sort_index": track}}
        for one, track in file.placed:
            yield {
                "ph": "X", "name": one.name, "cat": one.kind, **process, "tid": track,
                "ts": at(one.start), "dur": (one.end - one.start) / 1000, "args": one.args,
            }  # fmt: skip
        yield from _instants(file, at)
    for number, (before, after, name) in enumerate(_arrows(files, places), 1):
        for place, ends in ((before, {"ph": "s"}), (after, {"ph": "f", "bp": "e"})):
            yield {
                **ends,
                "id": number,
                "name": name,
                "cat": name,
                "pid": place.process,
                "tid": place.track,
                "ts": at(place.ns),
            }


def _instants(file: _File, at: Any) -> Iterator[dict[str, Any]]:
    for step in file.view.steps.values():
        track = file.track_of(step.lane_number)
        if not step.calls and not step.bookkeeping and step.kind not in _MESSAGES and track is not None:
            name = f"{step.kind} {step.name}" if step.name != step.kind else step.kind
            yield {
                "ph": "i",
                "s": "t",
                "name": name,
                "cat": step.kind,
                "pid": file.number,
                "tid": track,
                "ts": at(step.ts_ns),
            }


def _arrows(files: Sequence[_File], places: Mapping[Place, _At]) -> Iterator[tuple[_At, _At, str]]:
    """Yield arrows: from the start of a lane to the lane, from a message to its receiver, from a run to its child
    process."""
    for file in files:
        for step in file.view.steps.values():
            entry = step.entry if step.kind in _MESSAGES or step.kind in ("lane", "run.started") else {}
            if step.kind == "lane":
                born = entry.get("input")
                child = file.track_of(born["id"]) if isinstance(born, Mapping) and type(born.get("id")) is int else None
                parent = file.track_of(step.lane_number)
                if child is not None and parent is not None:
                    yield _At(file.number, parent, step.ts_ns), _At(file.number, child, step.ts_ns), "hop"
                continue
            for cause in causes_of(entry):
                there = _cause(files, places, cause)
                here = places.get(file.key(step.seq))
                if there is not None and here is not None:
                    yield there, here, "process" if step.kind == "run.started" else "message"


def _cause(files: Sequence[_File], places: Mapping[Place, _At], cause: Mapping[str, Any]) -> _At | None:
    key = (str(cause.get("run_id")), cause.get("segment"), cause["seq"])
    if key in places:
        return places[key]
    for file in files:  # an entry without a slice: its place in its lane
        if file.key(cause["seq"]) == key and (step := file.view.steps.get(cause["seq"])) is not None:
            track = file.track_of(step.lane_number)
            return None if track is None else _At(file.number, track, step.ts_ns)
    return None
