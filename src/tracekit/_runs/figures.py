"""Metrics over all runs of a store: each file is read and verified once, then only what was appended.

Counters (steps, tokens, failures …) only grow while the process lives, whatever happens to the files: a decreasing
counter would be taken for a restart. Gauges (states, steps in doubt) describe the files that exist now.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .. import _reality
from .._journal.entry import DEFAULT, ENDS, REFUSALS, SINGLES, family_of, info_of, meta_of
from .._journal.reader import RawEntry, Scan, Trace
from .._journal.store import SUFFIX, Store, file_name, holder, holds_its_run, is_segment
from .._journal.tip import read_tip
from .._runtime.prices import Prices
from .._runtime.recovered import RecoveredLog, steps_in_doubt
from .._runtime.spending import LoggedModelCall, ModelCalls
from ..errors import RunNotFoundError, TraceError, TraceIntegrityError
from .failures import FailureReader
from .recovery import last_settled, uncertain_steps

__all__ = ["STATES", "Figures", "Histogram", "StepInDoubt", "StoreFigures", "Totals"]

#: The states of a run. ``died``: it has no end and no writer. ``unreadable``: of a newer format, or can't be opened.
STATES: Final = ("running", "complete", "failed", "aborted", "died", "broken", "unreadable")
#: Upper bounds of the histograms, in seconds.
STEP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
RUN_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
#: The kinds of tokens, by their name in ``meta.usage``. Cached tokens are included in ``input``.
_TOKENS: Final = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_creation",
}
#: A trace may name any model: the most models counted separately, and the maximum length of a name.
_MODELS: Final = 100
_OTHER: Final = "other"
_LONGEST: Final = 100
#: Nanoseconds within which two changes of a directory may have the same time stamp, on any file system.
_COARSE: Final = 2_000_000_000

_END: Final = {"run.completed": "complete", "run.failed": "failed", "run.aborted": "aborted"}
_COUNTED: Final = SINGLES | REFUSALS


class Histogram:
    """The number of values below each of several bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = bounds
        #: Between the bounds; the last one counts values above all of them.
        self.counts: Final = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Totals:
    """The counts over everything that has been read."""

    def __init__(self) -> None:
        #: By kind and outcome (``ok``, ``error``, ``skipped``).
        self.steps: Final[Counter[tuple[str, str]]] = Counter()
        self.step_seconds: Final[dict[str, Histogram]] = {}
        #: By the state in which they ended.
        self.run_seconds: Final[dict[str, Histogram]] = {}
        #: By model and kind.
        self.tokens: Final[Counter[tuple[str, str]]] = Counter()
        #: By model, and whether its price is known.
        self.calls: Final[Counter[tuple[str, bool]]] = Counter()
        self.cost_usd: Final[dict[str, float]] = {}
        self.failures: Final[Counter[str]] = Counter()
        self.bytes_read = 0
        self._models: Final[set[str]] = set()

    def model(self, name: str) -> str:
        """Return the name under which a model is counted."""
        name = name[:_LONGEST]
        if name not in self._models:
            if len(self._models) >= _MODELS:
                return _OTHER
            self._models.add(name)
        return name


class StepInDoubt(NamedTuple):
    """An irreversible step without a known outcome; ``running``: it is being made right now. ``since`` in ns since the
    epoch."""

    running: bool
    declared: bool
    since: int


class Figures(NamedTuple):
    """The store at one instant: runs by state, steps in doubt, and when the oldest active run began (``None``: none is
    active)."""

    runs: Mapping[str, int]
    doubts: tuple[StepInDoubt, ...]
    oldest_running: int | None
    bytes: int
    files: int
    #: Whether the directory could be listed; otherwise all of this is what was known before.
    readable: bool
    totals: Totals


class StoreFigures:
    """The metrics of a store, updated by each ``refresh``. To be used by one thread at a time, see ``lock``."""

    def __init__(self, store: Store) -> None:
        self.store: Final = store
        #: Must be held while the result of ``refresh`` is read.
        self.lock: Final = _reality.OwnLock()
        self._totals: Final = Totals()
        self._files: dict[str, _File] = {}
        #: Vanished files: one that reappears under the name of a run is that run, and is counted already.
        self._gone: Final[dict[str, _File]] = {}
        self._prices: Final = Prices()
        self._settled_at: tuple[int, ...] = ()

    @_reality.off_loop()
    def refresh(self) -> Figures:
        """Read what is new, and return the present figures. Never raises for the content of a file."""
        with self.lock:
            there = _listed(self.store.runs)
            gone = not there and self._files and not os.path.isdir(self.store.runs)
            if there is None or gone:
                return self._figures(readable=False)
            settled = last_settled(self.store)
            files: dict[str, _File] = {}
            for name, stamp in there.items():
                files[name] = file = self._files.get(name) or self._gone.pop(name, None) or self._new(name)
                if file.stamp != stamp or (file.state == "running" and not _held(file.path)):
                    self._read(file, stamp)
                elif file.doubts and file.reader is None and settled != self._settled_at:
                    file.doubts = _doubts(file.path)
            self._gone.update((name, file) for name, file in self._files.items() if name not in files)
            _judge_with_children(files)
            # Time stamps are coarse: another settlement may get the same one.
            young = _reality.time_ns() - max(settled) < _COARSE
            self._files, self._settled_at = files, () if young else settled
            return self._figures()

    def _new(self, name: str) -> _File:
        return _File(os.path.join(self.store.runs, name), file_name(name).run + SUFFIX if is_segment(name) else None)

    def _figures(self, *, readable: bool = True) -> Figures:
        files = self._files
        runs = dict.fromkeys(STATES, 0)
        doubts: list[StepInDoubt] = []
        began: list[int] = []
        broken = {file.run for file in files.values() if file.run is not None and file.state == "broken"}
        broken.update(name for name, file in files.items() if not file.whole)
        for name, file in files.items():
            if file.state == "gone" or (file.run is not None and file.run not in files):
                continue
            if file.run is None:
                runs["broken" if name in broken else file.state] += 1
            doubts += file.doubts
            if file.state == "running" and file.run is None and file.began is not None:
                began.append(file.began)
        size = sum(file.stamp[1] for file in files.values())
        return Figures(runs, tuple(doubts), min(began, default=None), size, len(files), readable, self._totals)

    def _read(self, file: _File, stamp: _Stamp) -> None:
        """Read what is new in a file, and determine its state."""
        if stamp == _NO_FILE:
            file.stands("unreadable")
            file.stamp = stamp
            return
        try:
            held = _held(file.path)
            self._scan(file, stamp, held)
            file.stands(self._state(file, held))
        except TraceIntegrityError:
            file.stands("broken")
        except (FileNotFoundError, RunNotFoundError):
            file.stands("gone")  # pruned meanwhile
        except (OSError, TraceError):
            file.stands("unreadable")
        except Exception:  # a line that verifies may contain anything: no trace may hide the figures of the others
            file.stands("broken")
        file.stamp = stamp
        if file.state == "broken":
            file.doubts = _doubts(file.path)

    def _scan(self, file: _File, stamp: _Stamp, held: bool) -> None:
        before = 0 if file.last is None else file.last.offset + file.last.length
        reader = file.reader
        # Read from the beginning: a file that had no writer at the last look, or that was replaced or truncated.
        if reader is None or stamp[0] != file.stamp[0] or stamp[1] < before or (held and reader.log is None):
            file.reader = reader = _Reader(file.path, self._prices, whole=file.run is None, live=held)
            file.last, before = None, 0
        scan = Scan(file.path, DEFAULT, file.last)
        nowhere = Totals()
        try:
            for raw in scan:
                reader.take(raw.data, self._totals if raw.line > file.counted else nowhere)
                file.last = raw
                file.counted = max(file.counted, raw.line)
                if file.began is None:
                    file.began = raw.data["ts_ns"]
        finally:
            self._totals.bytes_read += scan.good_end - before

    def _state(self, file: _File, held: bool) -> str:
        """Return the state of a file that verifies, as far as it was read."""
        last, reader = file.last, file.reader
        assert reader is not None
        kind = None if last is None else last.data["type"]
        if held and kind not in ENDS:
            file.doubts = reader.doubts()
            return "running"
        if not self._is_whole(file.path, last):
            return "broken"
        about = {} if last is None else meta_of(last.data)
        if last is not None and kind in ENDS:
            file.lists = bool(about.get("segments"))
            file.doubts = _doubts(file.path) if about.get("in_doubt") else ()
            return "broken" if about.get("count") not in (None, last.line) else _END[kind]
        file.doubts = _doubts(file.path)
        if file.crashed != file.counted:
            file.crashed = file.counted
            reader.died(self._totals)
        return "died"

    def _is_whole(self, path: str, last: RawEntry | None) -> bool:
        """Return whether a file belongs to its run, and nothing that existed at the run's end was cut off, by the tip
        hash kept then."""
        if last is not None and not holds_its_run(path, last.data["run_id"]):
            return False
        try:
            kept = read_tip(os.path.join(self.store.tips, file_name(path).stem))
        except ValueError:
            return False
        if kept is None:
            return True
        if last is None:
            return False
        return kept.count < last.line or (kept.count, kept.head) == (last.line, last.head.decode())


#: A file's inode, size and modification time.
_Stamp = tuple[int, int, int]
_NEVER: Final[_Stamp] = (0, 0, 0)
#: For something with the name of a trace that is no file: a dangling link, a directory, a pipe.
_NO_FILE: Final[_Stamp] = (-1, 0, -1)


class _File:
    """The state of one file; ``run`` is the name of its run's own file if it is a child process's."""

    __slots__ = (
        "began", "counted", "crashed", "doubts", "judged", "last", "lists", "path", "reader", "run", "stamp", "state", "whole",
    )  # fmt: skip

    def __init__(self, path: str, run: str | None) -> None:
        self.path: Final = path
        self.run: Final = run
        self.stamp = _NEVER
        self.state = "unreadable"
        self.began: int | None = None
        #: The last entry that was read, and what must be remembered of those before it: for a file that has a writer.
        self.last: RawEntry | None = None
        self.reader: _Reader | None = None
        #: The number of entries in the totals, and the number at the time it was found dead.
        self.counted = 0
        self.crashed = -1
        self.doubts: tuple[StepInDoubt, ...] = ()
        #: For a run that has ended: whether its end lists child processes, whether their files are what it says, and
        #: the stamps of all its files when that was checked.
        self.lists = False
        self.whole = True
        self.judged: tuple[_Stamp, ...] = ()

    def stands(self, state: str) -> None:
        self.state = state
        if state != "running":
            self.reader = self.last = None


def _judge_with_children(files: Mapping[str, _File]) -> None:
    """Check the runs that have ended against the files of their child processes: one that is missing, cut off or another
    one breaks its run."""
    below: dict[str, list[_Stamp]] = {}
    for name in sorted(files):
        if (run := files[name].run) is not None:
            below.setdefault(run, []).append(files[name].stamp)
    for name, file in files.items():
        stamps = (file.stamp, *below.get(name, ()))
        if file.run is not None or file.judged == stamps or not (file.lists or name in below):
            continue
        file.judged, file.whole = stamps, True
        if file.state in _END.values():
            try:
                with Trace(file.path) as trace:
                    file.whole = Store.judge_run(trace).state != "broken"
            except (OSError, TraceError):
                pass  # pruned meanwhile, or unreadable, which is counted


def _is_settled(entry: Mapping[str, Any]) -> bool:
    """Return whether a person has stated this outcome after the process had died."""
    return info_of(entry).get("reason") == "settled"


class _Reader:
    """Reads one file entry by entry: what is open in it, and what it adds to the totals."""

    def __init__(self, path: str, prices: Prices, *, whole: bool, live: bool) -> None:
        self._calls: Final = ModelCalls(prices)
        self._failures: Final = FailureReader(path)
        self._open: Final[dict[int, tuple[str, int]]] = {}
        #: Whether it is a run's own file, whose end is the run's.
        self._whole: Final = whole
        self._began: int | None = None
        #: What may be in doubt in a file that is being written; otherwise `recovery` determines it once and for all.
        self.log: Final = RecoveredLog(()) if live else None
        self._since: Final[dict[int, int]] = {}

    def take(self, entry: Mapping[str, Any], totals: Totals) -> None:
        kind, seq, at = entry["type"], entry["seq"], entry["ts_ns"]
        if self._began is None:
            self._began = at
        known = family_of(kind)
        if known is None:
            if kind in _COUNTED:
                totals.steps[kind, "error" if kind in REFUSALS else "ok"] += 1
            elif self._whole and kind in _END:
                self._seconds(totals.run_seconds, _END[kind], RUN_SECONDS, at - self._began)
        elif known[1] == "intent":
            self._open[seq] = known[0], at
            if self.log is not None:
                self._since[seq] = at
        elif known[1] != "chunk":
            self._ended(entry, known[1], totals)
        call = self._calls.take(entry) if known is not None and known[0] == "llm" else None
        if call is not None:
            self._call(call, totals)
        failed = self._failures.take(dict(entry))
        if failed is not None:
            totals.failures[failed.failure.type.value] += 1
        if self.log is not None:
            self.log.add(entry)

    def _ended(self, entry: Mapping[str, Any], role: str, totals: Totals) -> None:
        family, began = self._open.pop(entry.get("step", 0), (None, 0))
        if family is None:
            return
        failed = role == "error" or "error" in entry
        totals.steps[family, "error" if failed else "skipped" if role == "skipped" else "ok"] += 1
        if not _is_settled(entry):  # by a person, perhaps a day later
            self._seconds(totals.step_seconds, family, STEP_SECONDS, entry["ts_ns"] - began)

    def _call(self, call: LoggedModelCall, totals: Totals) -> None:
        model = totals.model(call.model)
        totals.calls[model, call.reported and call.cost_usd is not None] += 1
        if call.cost_usd:
            totals.cost_usd[model] = totals.cost_usd.get(model, 0.0) + call.cost_usd
        for name, sort in _TOKENS.items():
            count = call.usage.get(name)
            if type(count) is int and count > 0:
                totals.tokens[model, sort] += count

    def _seconds(self, to: dict[str, Histogram], key: str, bounds: Sequence[float], ns: int) -> None:
        histogram = to.get(key)
        if histogram is None:
            histogram = to[key] = Histogram(bounds)
        histogram.add(ns / 1e9)

    def doubts(self) -> tuple[StepInDoubt, ...]:
        """Return what is in doubt, or being made, in a file that has a writer."""
        log = self.log
        assert log is not None
        found = [
            StepInDoubt(False, not (seq in log.steps and log.steps[seq].undeclared), self._since.get(seq, 0))
            for seq in steps_in_doubt(log, live=True)
        ]
        return tuple(
            found
            + [
                StepInDoubt(True, not step.undeclared, self._since[step.seq])
                for step in log.steps.values()
                if step.effect and step.state == "pending"
            ]
        )

    def died(self, totals: Totals) -> None:
        """Account for a file that has no writer any more, and no end."""
        failed = self._failures.crashed()
        if failed is not None:
            totals.failures[failed.failure.type.value] += 1
        for call in self._calls.cut_off():
            self._call(call, totals)


def _listed(directory: str) -> dict[str, _Stamp] | None:
    """Return the entries of a directory that have the name of a trace file, with their stamps; ``None`` if it can't be
    listed."""
    found: dict[str, _Stamp] = {}
    try:
        with os.scandir(directory) as files:
            for file in files:
                if file.name.endswith(SUFFIX) and (stamp := _stamp_of(file)) is not None:
                    found[file.name] = stamp
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        return None
    return found


def _stamp_of(file: os.DirEntry[str]) -> _Stamp | None:
    try:
        facts = file.stat()
    except OSError:
        return _NO_FILE if file.is_symlink() else None  # a dangling link, or pruned meanwhile
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else _NO_FILE


def _held(path: str) -> bool:
    """Return whether a file has a writer; reading reports what is wrong with one that can't be opened."""
    try:
        return bool(holder(path))
    except OSError:
        return False


def _doubts(path: str) -> tuple[StepInDoubt, ...]:
    """Return what is in doubt in a file without a writer."""
    try:
        steps, _ = uncertain_steps(path)
    except Exception:  # as in `_read`; a file that can't be judged is counted as damaged or unreadable
        return ()
    return tuple(
        StepInDoubt(step.state == "running", step.declared, int(step.time.timestamp() * 1_000_000) * 1000)
        for step in steps
    )
