"""Inputs that a program reads by itself, not in a step: recorded, and compared in a replay.

A variable has its value whoever reads it, and in whichever order: an ``input`` entry records what the run first saw,
and another one follows after a change. A replay gives the program the recorded value; if today's differs, the replay is
not exact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from .. import _reality
from .._lazy import NamedTuple
from .._values import decoding
from ..errors import LogWriteError
from .callsite import caller, say
from .lane import Lane
from .redaction import Originals, Redactor
from .session import Scope, WrittenLog

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .index import Index
    from .matching import Bindings
    from .verdict import Report

__all__ = ["Disk", "LeftStates", "OwnFiles", "RecordedInputs", "ReplayedInputs"]

_WORDS: Final = {
    "directory": "the directory",
    "environment": "the environment variable",
    "file": "the file",
    "listing": "the directory",
    "scan": "the directory",
}
#: Inputs that are lists of names.
_NAMES: Final = frozenset(("listing", "scan"))
_UNKNOWN: Final = object()


class Disk(Protocol):
    """The files that a replayed program sees."""

    def lay(self, path: str, value: Any, *, first: bool, own: bool) -> bool | None:
        """Restore the file at ``path`` to its recorded state; ``first``: when the run began; ``own``: the
        replayed program has written it, or made a directory around it. Return ``False`` if its content was not kept, ``None`` if it
        differs here and stays so, because the replay would write to the user's file. Raises ``OSError`` if the system refuses."""
        ...


class OwnFiles:
    """Files that the program of a run has written itself, outside every step, and nobody else since: a replay writes
    them, too."""

    def __init__(self) -> None:
        self.paths: Final[set[str]] = set()
        #: The directories that it has made, outside the working directory: what is in them belongs to the run.
        self.made: Final[set[str]] = set()
        #: Whether the program has changed a file, outside every step, that it does not delete itself.
        self.lasting = False

    def made_around(self, path: str) -> bool:
        """Return whether the program has made a directory around this path."""
        while self.made and path != (path := os.path.dirname(path)):
            if path in self.made:
                return True
        return False


class LeftStates:
    """For one run, functions that set a named random generator of the process to the state in which a recorded step
    left it."""

    def __init__(self) -> None:
        self.setters: Final[dict[str, Callable[[Any], object]]] = {}


#: States that a step left behind: two of them count as two, even if equal.
_LEFT: Final = frozenset(("left", "state"))


def _after_files(left: tuple[str, str, int]) -> bool:
    """Sort the states that a step left behind: the current directory may be one that it made."""
    return left[0] == "state"


class RecordedInputs:
    """What one run has read so far. ``write`` appends an ``input`` entry; ``unwritten`` is called if that fails."""

    def __init__(
        self,
        log: WrittenLog,
        write: Callable[[str, dict[str, Any], dict[str, Any], tuple[int, int]], object],
        unwritten: Callable[[], None],
    ) -> None:
        self._log: Final = log
        self._write: Final = write
        self._unwritten: Final = unwritten
        self._known: Final[dict[tuple[str, str], Any]] = {}
        #: How often a lane has read a file that the system makes at each reading, and what it read last.
        self._readings: Final[dict[tuple[Lane, str], tuple[int, Any]]] = {}

    def read(self, scope: Scope, kind: str, name: str, value: Any) -> None:
        """User code has read ``value`` (JSON; ``None``: it does not exist)."""
        key = (kind, name)
        about: dict[str, Any] = {"name": name}
        if _is_generated(value):
            number, last = self._readings.get((scope.lane, name), (0, _UNKNOWN))
            self._readings[scope.lane, name] = number + 1, value
            if last == value:
                return
            self._known.pop(key, None)
            if scope.lane.id >= 0:
                about["reading"] = number + 1
        elif kind not in _LEFT and self._known.get(key, _UNKNOWN) == value:
            return
        where = caller()
        if where is not None:
            about["where"] = where
        try:
            with self._log.journal.held():
                if kind in _LEFT or self._known.get(key, _UNKNOWN) != value:
                    self._write(kind, about, {name: value}, (max(scope.lane.id, 0), scope.parent))
                    self._known[key] = value
        except LogWriteError:
            self._unwritten()


class ReplayedInputs:
    """What the recorded run has read, for one replay. ``originals`` has the redacted secrets, if known; ``bindings``
    compares values that may contain placeholders; ``own`` are the program's own files.

    ``today`` has patterns of names, by kind, for which today's value is used.
    """

    def __init__(
        self,
        trace: Trace,
        index: Index,
        originals: Originals,
        bindings: Bindings,
        report: Report,
        redactor: Redactor,
        own: OwnFiles,
        states: LeftStates,
    ) -> None:
        self._trace: Final = trace
        self._index: Final = index
        self._recorded: Final = index.inputs
        self._originals: Final = originals
        self._bindings: Final = bindings
        #: The kinds that were recorded at all.
        self._observed: Final = frozenset(trace.entry(1).get("meta", {}).get("boundary", ()))
        self._report: Final = report
        self._redactor: Final = redactor
        self.today: Mapping[str, Iterable[str]] = {}
        self._own: Final = own
        self._states: Final = states
        #: The directory that relative names refer to.
        with _reality.off_loop():
            self._directory = os.path.abspath(".")
        self._disk: Disk | None = None
        #: The recorded states of files and generators after steps, by step; collected on first use.
        self._left: dict[int, list[tuple[str, str, int]]] | None = None
        self._lock: Final = _reality.OwnLock()
        #: The values still to come, the current one first, with the entry of each.
        self._rest: Final[dict[tuple[str, str], list[_Seen]]] = {}
        self._reported: Final[set[tuple[str, str]]] = set()
        #: How often a recorded lane has read a file that the system makes at each reading.
        self._readings: Final[dict[tuple[int, str], int]] = {}
        #: How many inputs were different here.
        self._said = 0

    def read(self, kind: str, name: str, value: Any, own: bool, lane: int, next_step: Callable[[], int]) -> Any:
        """Return what user code is given in place of ``value`` (``None``: it does not exist). ``own``: the program has
        set it itself.

        ``lane`` is the recorded lane, and ``next_step`` returns the step there that it reaches next.
        """
        if kind not in self._observed:
            return value
        with self._lock:
            rest = self._values(kind, name)
            if not rest:
                if kind != "endpoint":
                    self._once(kind, name, self._unrecorded)
                return value
            if any(fnmatchcase(name, pattern) for pattern in self.today.get(kind, ())):
                if not self._is(kind, name, rest[0].value, value):
                    self._once(kind, name, self._let, step=rest[0].seq)
                return value
            reading = self._same_reading(rest, lane, name)
            if reading is not None:
                rest = [reading]
            elif own or (kind == "environment" and value is not None):
                self._go_on_to(rest, kind, name, value)
            elif len(rest) > 1:
                self._go_on_before(rest, next_step())
            if kind == "endpoint":  # only where the program's own requests go decides what it gets
                return rest[0].value
            seq, recorded = rest[0].seq, rest[0].value
            # The program's current value replaces what was redacted (a secret), or not kept (the content of a file).
            whole = self._with_secrets(seq, recorded)
            if whole is not None and type(recorded) is not dict:
                return whole
            lost = self._holds_placeholder(recorded)
            if type(recorded) is dict:
                served = (whole or recorded) if "content" in recorded else value
                if served is recorded and self._holds_placeholder(served["content"]):
                    self._once(kind, f"{name} redacted", self._redacted, file=name, step=seq)
            else:
                served = value if value is not None and lost else recorded
            if kind == "directory":
                if value != recorded:
                    self._once(kind, name, self._other_directory, then=recorded, now=value, step=seq)
                return value
            if kind in _NAMES and served is not None:
                # Hide entries that a run left behind or that were created later; what is gone is shown, as far as it
                # was recorded.
                if value is None or sorted(served) != sorted(value):
                    self._once(kind, name, self._other_names, step=seq)
                return served
            ours = served is recorded or whole is not None
            which_reading = reading is not None or (_is_generated(recorded) and self._steps_between(kind, name))
            made = _is_generated(recorded) and ours and which_reading
            if (value is None and ours and not made) or self._is(kind, name, recorded, value):
                return served if value is None or kind == "environment" else value
            if kind == "file" and ours and ("kept", name) in self._recorded:
                self._once(kind, name, self._changed, step=seq)  # by the recorded run itself, after reading it
                return served
            if made:
                self._once(kind, name, self._generated, step=seq)
                return served
            self._once(kind, name, self._differs, then=recorded, now=value, given=served, step=seq)
            return served

    def lay(self, disk: Disk) -> None:
        """Restore the files that the recorded run changed to their initial state, once each; from now on, files changed
        by a step are set to the state in which it left them."""
        self._disk = disk
        for kind, name in self._recorded:
            if kind == "kept":
                self._lay(name, self._recorded[kind, name][0], first=True)

    def answered(self, step: int, before: int) -> None:
        """Restore the state in which ``step`` had left files, directory and random generators ``before`` the entry with
        which it was answered from the log: its outcome, or a piece of that."""
        if self._left is None:
            self._left = {}
            for (kind, name), seqs in self._recorded.items():
                for seq in seqs if kind in _LEFT else ():
                    self._left.setdefault(self._index.answered_within(seq, self._trace), []).append((kind, name, seq))
        left = self._left.get(step)
        if not left:
            return
        now = sorted((one for one in left if one[2] < before), key=_after_files)
        left[:] = [one for one in left if one[2] >= before]
        for kind, name, seq in now:
            if kind == "state":
                if name in self._states.setters:
                    self._states.setters[name](self._value(seq)[0])
                continue
            path = self._path(name)
            own = path in self._own.paths or self._own.made_around(path)
            self._own.paths.discard(path)
            if self._disk is not None:
                self._lay(name, seq, first=False, own=own)

    @_reality.off_loop()
    def _path(self, name: str) -> str:
        path = os.path.join(self._directory, name)
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))

    @_reality.off_loop()
    def _lay(self, name: str, seq: int, *, first: bool, own: bool = False) -> None:
        if self._disk is None or any(fnmatchcase(name, pattern) for pattern in self.today.get("file", ())):
            return
        value = self._value(seq)[0]
        content = value.get("content") if type(value) is dict else None
        whole = self._original(seq) if self._holds_placeholder(content) else None
        try:
            found = self._disk.lay(self._path(name), whole or value, first=first, own=own)
        except OSError as error:
            self._once("kept", name, partial(self._not_restored, error), step=seq)
            return
        if found is None:
            self._once("kept", name, self._not_laid, step=seq)
        elif not found:
            self._once("kept", name, self._not_kept, step=seq)

    def _not_kept(self, kind: str, name: str, where: str | None, step: int) -> None:
        text = f"{_named('file', name)}, which the recorded run has changed, is different here, and was not kept"
        self._report.remark("not_kept", text, name=name, step=step)

    def _not_restored(self, error: OSError, kind: str, name: str, where: str | None, step: int) -> None:
        why = error.strerror or type(error).__name__
        text = f"{_named('file', name)} differs from the recording here, and can't be restored: {why}"
        self._report.remark("not_laid", text, name=name, step=step)

    def _not_laid(self, kind: str, name: str, where: str | None, step: int) -> None:
        text = f"{_named('file', name)} differs from the recording here, and stays so without a scratch layer"
        self._report.remark("not_laid", text, name=name, step=step)

    def _is(self, kind: str, name: str, recorded: Any, value: Any) -> bool:
        """Return whether today's value is the recorded one."""
        if value is None or recorded is None:
            return value is recorded
        if kind == "environment":
            return self._bindings.equal(recorded, self._redactor.redact_environment([(name, value)])[name])
        same: bool = _without_content(recorded) == _without_content(value)
        return same

    def _value(self, seq: int) -> tuple[Any, str | None]:
        """Return an input from entry ``seq``, and where it was read."""
        entry = self._trace.entry(seq)
        about = entry["input"]
        return decoding.from_json(self._trace.expand(entry["output"])).get(about["name"]), about.get("where")

    def _original(self, seq: int) -> Any:
        """The same with its secrets restored, if all are known; else ``None``."""
        entry = self._trace.entry(seq)
        if self._originals.lack(entry, "output"):
            return None
        whole = self._originals.of(entry, self._trace.expand, "output")
        return decoding.from_json(self._trace.expand(whole["output"])).get(entry["input"]["name"])

    def _steps_between(self, kind: str, name: str) -> bool:
        """Return whether the places of all recorded values are told apart by steps."""
        return all(self._index.step_between(then, now) for then, now in pairwise(self._recorded[kind, name]))

    def _same_reading(self, seen: list[_Seen], lane: int, name: str) -> _Seen | None:
        """Count a reading of a file that the system makes at each one, and return what the same reading of this lane was
        in the recording; ``None`` if that is not known."""
        if not _is_generated(seen[0].value):
            return None
        number = self._readings[lane, name] = self._readings.get((lane, name), 0) + 1
        own = [one for one in seen if one.reading and self._index.lane[one.seq] == lane]
        return next((one for one in reversed(own) if one.reading <= number), None)

    def _with_secrets(self, seq: int, recorded: Any) -> Any:
        """Return what was recorded at ``seq`` with its secrets; ``None`` if none were redacted, or they are unknown."""
        inside = recorded.get("content") if type(recorded) is dict else recorded
        return self._original(seq) if self._holds_placeholder(inside) else None

    def _holds_placeholder(self, value: Any) -> bool:
        return isinstance(value, str) and bool(self._redactor.placeholders.within(value))

    def _values(self, kind: str, name: str) -> list[_Seen]:
        key = (kind, name)
        found = self._rest.get(key)
        if found is None:
            found = self._rest[key] = [self._seen(seq) for seq in self._recorded.get(key, ())]
        return found

    def _seen(self, seq: int) -> _Seen:
        number = self._trace.entry(seq)["input"].get("reading")
        return _Seen(seq, *self._value(seq), number if type(number) is int else 0)

    def _go_on_to(self, rest: list[_Seen], kind: str, name: str, value: Any) -> None:
        """Go on to a later recorded value if the program has it now: it has set it, as in the recording."""
        for at, seen in enumerate(rest):
            if self._is(kind, name, seen.value, value):
                del rest[:at]
                return

    def _go_on_before(self, rest: list[_Seen], seq: int) -> None:
        """Decide by position which of the values is current, if nothing else says so: ``seq`` is the program's next
        step.

        A value that appeared during a step is current after that step. One that appeared otherwise was set by something
        that a replay does as well, or lacks (a file with variables): it is current at the line where it was first seen.
        """
        where = caller()
        while len(rest) > 1 and rest[1].seq < seq:
            now, then = rest[0], rest[1]
            here = where in (now.where, then.where) and now.where != then.where
            if not (where == then.where if here else self._index.step_between(now.seq, then.seq)):
                return
            del rest[0]

    def _once(self, kind: str, name: str, say_so: Callable[..., None], **facts: Any) -> None:
        if (kind, name) not in self._reported:
            self._reported.add((kind, name))
            say_so(kind, name, caller(), **facts)

    def _unrecorded(self, kind: str, name: str, where: str | None) -> None:
        text = f"{_named(kind, name)} was read, which the recorded run did not read"
        self._report.remark("unrecorded_input", text, kind=kind, name=name, where=where)

    def _redacted(self, kind: str, _: str, where: str | None, file: str, step: int) -> None:
        text = f"{_named(kind, file)} was redacted: the program was given placeholders"
        self._report.remark("redacted", text, kind=kind, name=file, where=where, step=step)

    def _other_names(self, kind: str, name: str, where: str | None, step: int) -> None:
        text = f"{_named(kind, name)} has other entries here than in the recording: the program was given the recorded ones"
        self._report.remark("other_entries", text, kind=kind, name=name, where=where, step=step)

    def _other_directory(self, kind: str, name: str, where: str | None, then: Any, now: Any, step: int) -> None:
        text = f"the current directory was {then} in the recording and is {now} here"
        self._report.remark("other_directory", text, kind=kind, name=name, where=where, step=step)

    def _changed(self, kind: str, name: str, where: str | None, step: int) -> None:
        text = f"{_named(kind, name)}, which the recorded run has changed, was given as it was when that read it"
        self._report.remark("changed_file", text, kind=kind, name=name, where=where, step=step)

    def _generated(self, kind: str, name: str, where: str | None, step: int) -> None:
        text = f"{_named(kind, name)}, which the system makes at each reading, was given as it was just before the recorded run read it"
        self._report.remark("generated_file", text, kind=kind, name=name, where=where, step=step)

    def _let(self, kind: str, name: str, where: str | None, step: int) -> None:
        text = f"{_named(kind, name)} is today's, which differs from the recorded one"
        self._report.allow("live_input", text, kind=kind, name=name, where=where, step=step)

    def _differs(self, kind: str, name: str, where: str | None, then: Any, now: Any, given: Any, step: int) -> None:
        shown = [self._shown(kind, name, one) for one in (then, now)]
        text = f"{_named(kind, name)} was {shown[0]} in the recording and is {shown[1]} here: the program was given "
        text += "that" if given is now else "the recorded one"
        self._said += 1
        if self._said <= _SAID:
            say(f"{text} ({where})" if where else text)
        elif self._said == _SAID + 1:
            say("further inputs differ here: they are counted at the end")
        self._report.inexact("input", text, kind=kind, name=name, where=where, step=step)

    def _shown(self, kind: str, name: str, value: Any) -> str:
        if value is None:
            return "not there"
        if kind == "file" and isinstance(value, dict):
            return f"{value.get('size')} bytes, SHA-256 {str(value.get('sha256'))[:12]}…"
        if kind in _NAMES:
            return "there"
        if isinstance(value, str):
            value = self._redactor.redact_environment([(name, value)])[name]
        text = repr(value)  # a file of another writer may hold anything
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _Seen(NamedTuple):
    """A value that the recorded run has seen, the entry that records it, the line that read it, and which reading of its
    lane that was, where each reading may give another value."""

    seq: int
    value: Any
    where: str | None
    reading: int


#: How many inputs that differ are reported as soon as they are read.
_SAID: Final = 5
#: How much of a value is shown, in characters.
_SHOWN: Final = 80


def _is_generated(value: Any) -> bool:
    """Return whether this is a file that the system makes at each reading."""
    return type(value) is dict and "generated" in value


def _without_content(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != "content"} if type(value) is dict else value


def _named(kind: str, name: str) -> str:
    return f"{_WORDS[kind]} {name}"
