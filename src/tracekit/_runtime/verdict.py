"""The verdict: was a replay exact, can a run be replayed, and is it safe to run it again?

Each answer has coded reasons, and where something is unknown the answer is unknown, never yes. A session adds its
findings to a ``ReplayVerdict`` through its ``Report``; ``judge`` is a pure function of a log. Everything else that
reports exactness or safety (exit codes, warnings, ``show --why``, ``tracekit.testing``) uses these.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from .._journal.entry import READS, SINGLES, family_of, imported_from, info_of, meta_of
from .._lazy import NamedTuple
from .._reality import OwnLock
from ..errors import InexactReplayError
from .boundary import KINDS, OBSERVED, SERVING, Crossing, by_chance, crossings_of, uncaptured
from .recovered import RecoveredLog, RecoveredStep
from .report import MOST

if TYPE_CHECKING:
    from .._journal.reader import Verdict

__all__ = [
    "CAN_BE_INEXACT",
    "CODES",
    "FOLLOWS",
    "File",
    "Judgement",
    "Reason",
    "ReplayVerdict",
    "Report",
    "RunVerdict",
    "captured",
    "judge",
]

#: How many reasons of one code are kept; all of them are counted.
_KEPT: Final = 1000
#: How many reasons the text of an error shows.
_SHOWN: Final = 5
_CHANGED: Final = "look at what changed in the code; record again if the change is meant"
_ORDER: Final = (
    "where nothing changed in the code, threads, tasks or processes took turns in another order: what they share without a lock, a "
    f"future or a queue (a list, a flag) is not recorded, so let them share it by one of these; else {_CHANGED}"
)
_BEFORE: Final = "wait for the thread or task that makes the call before the block ends"
_TYPE: Final = (
    "if it holds what can't be recorded, raise it with plain values, or register a codec (`tracekit.integration.register_codec`), "
    "and record again; else import the module of its type before the replay"
)
_VERSIONS: Final = "replay with the versions that it was recorded with; or record again"
_PLACEHOLDER: Final = "no replay has the value that was taken out of the recording"


class Code:
    """What is decided by the code of a reason for which a replay is not exact, or of a remark.

    ``one`` and ``many`` count it in a line. ``advice`` is what to do about it. ``strict``: a remark which ``strict`` may name,
    and which then makes a replay inexact. ``follows``: the consequence of another one, since the program had taken another
    path before.
    """

    __slots__ = ("advice", "follows", "many", "one", "strict")

    def __init__(
        self, one: str, many: str | None = None, *, advice: str = _CHANGED, strict: bool = False, follows: bool = False
    ) -> None:
        self.one: Final = one
        self.many: Final = one if many is None else many
        self.advice: Final = advice
        self.strict: Final = strict
        self.follows: Final = follows


#: Each code with which a session reports something. (A failure of a replay has the code of its error.)
CODES: Final = {
    "environment": Code("difference of environment", "differences of environment", advice=_VERSIONS, strict=True),
    "attributes": Code("exception without all its attributes", "exceptions without all their attributes"),
    "changed_file": Code("file as it was before", "files as they were before"),
    "clock": Code("clock read more or fewer", "clock reads more or fewer", strict=True),
    "directory": Code("directory that is missing here", "directories that are missing here"),
    "error": Code("other exception at the end", "other exceptions at the end", follows=True),
    "exception": Code("exception of another type", "exceptions of another type", advice=_TYPE, follows=True),
    "exit_status": Code("other exit status", "other exit statuses", follows=True),
    "generated_file": Code("file of the system as it was", "files of the system as they were"),
    "guard": Code("guard that was off", "guards that were off"),
    "hops": Code("hop more or fewer", "hops more or fewer"),
    "hosts": Code("connection to an allowed host", "connections to allowed hosts"),
    "hour": Code("clock that showed another hour", "clocks that showed another hour"),
    "ignored": Code("step inside what is excluded from the comparison", "steps inside what is excluded from the comparison"),
    "imported": Code("imported run", "imported runs"),
    "incomplete": Code("recording without an end", "recordings without an end"),
    "input": Code("input that is different here", "inputs that are different here"),
    "interrupted": Code("interruption by Ctrl-C", "interruptions by Ctrl-C"),
    "late": Code("call after the end", "calls after the end", advice=_BEFORE),
    "left": Code("way that the recorded program did not go", "ways that the recorded program did not go"),
    "live": Code("step that went live", "steps that went live"),
    "live_differs": Code("difference that followed from it", "differences that followed from it"),
    "live_input": Code("input of today", "inputs of today"),
    "not_kept": Code("file that is different here", "files that are different here"),
    "not_laid": Code("file of today without a scratch layer", "files of today without a scratch layer"),
    "not_made": Code("recorded step that was not made", "recorded steps that were not made"),
    "other_directory": Code("other current directory", "other current directories"),
    "other_entries": Code("directory with other entries", "directories with other entries"),
    "other_signal": Code("signal handled otherwise", "signals handled otherwise"),
    "output": Code("other output", "other outputs", strict=True),
    "output_not_kept": Code("output not kept", "outputs not kept"),
    "passed_over": Code("difference passed over", "differences passed over"),
    "past_end": Code("step past the recorded end", "steps past the recorded end"),
    "place": Code("event whose place was passed", "events whose places were passed"),
    "polled": Code("task that may have polled otherwise", "tasks that may have polled otherwise"),
    "redacted": Code("redacted", advice=_PLACEHOLDER, strict=True),
    "reordered": Code("reordered", advice=_ORDER, follows=True),
    "result": Code("other result", "other results", follows=True),
    "shared_argument": Code("argument in another state", "arguments in another state", advice=_ORDER),
    "signal": Code("handler called between two steps", "handlers called between two steps"),
    "unconsumed_steps": Code("recorded step that was never requested", "recorded steps that were never requested", follows=True),
    "undelivered": Code("recorded event that never came", "recorded events that never came", advice=_ORDER, follows=True),
    "unrecorded_input": Code("input that was not recorded", "inputs that were not recorded"),
    "written": Code("file that was written", "files that were written"),
}  # fmt: skip
#: The remarks that ``strict`` may name.
CAN_BE_INEXACT: Final = tuple(name for name, code in CODES.items() if code.strict)
#: The codes of what follows from something else.
FOLLOWS: Final = frozenset(name for name, code in CODES.items() if code.follows)

Answer = Literal["exact", "exact but for", "inexact", "unknown"]


class Reason(NamedTuple):
    """A reason for an answer: a stable ``code``, a sentence, and facts (``step``, ``where`` … as JSON values)."""

    code: str
    text: str
    facts: Mapping[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "text": self.text, **self.facts}


class ReplayVerdict:
    """Whether one replay was exact. Until the replay has ended the answer is unknown.

    ``reasons`` make it inexact, ``remarks`` are only counted, ``allowed`` is what the caller permitted, ``unknown`` is
    what could not be determined. A remark whose code is in ``strict`` becomes a reason. ``counts`` has the number of
    each code, including those not kept.
    """

    def __init__(self, strict: Iterable[str] = ()) -> None:
        self.strict: Final = frozenset(strict)
        self.reasons: Final[list[Reason]] = []
        self.remarks: Final[list[Reason]] = []
        self.allowed: Final[list[Reason]] = []
        self.unknown: Final[list[Reason]] = []
        self.counts: Final[Counter[str]] = Counter()
        self.ended = False
        #: Whether it is being reported, after which nothing changes it.
        self.final = False
        #: Whether Ctrl-C has come from outside: what the program did afterwards says nothing about the replay.
        self.interrupted = False
        self._lock: Final = OwnLock()

    def add(self, kind: Literal["reasons", "remarks", "allowed", "unknown"], reason: Reason) -> None:
        """Add a reason of a kind."""
        if kind == "remarks" and reason.code in self.strict:
            kind = "reasons"
        with self._lock:
            if self.final or self.interrupted:
                return
            self.interrupted = reason.code == "interrupted"
            self.counts[reason.code] += 1
            if self.counts[reason.code] <= _KEPT:
                getattr(self, kind).append(reason)

    def of(self, code: str) -> list[Reason]:
        """Return the reasons of this code, of whatever kind."""
        return [one for kind in self._kinds() for one in kind if one.code == code]

    @property
    def answer(self) -> Answer:
        if self.reasons:
            return "inexact"
        if self.unknown or not self.ended:
            return "unknown"
        return "exact but for" if self.allowed else "exact"

    @property
    def exit_code(self) -> int:
        """0 if the replay was exact except for what the caller allowed, 1 if not, 3 if unknown."""
        return {"exact": 0, "exact but for": 0, "inexact": 1, "unknown": 3}[self.answer]

    @property
    def line(self) -> str:
        """The answer with its counts: ``"exact, 2 redacted"``."""
        first = {"exact": [], "exact but for": self.allowed, "inexact": self.reasons, "unknown": self.unknown}[
            self.answer
        ]
        head: str = self.answer if first or self.answer == "exact" else "unknown: it has not ended"
        if first:
            head += (" " if self.answer == "exact but for" else ": ") + self._counted(first)
        rest = [kind for kind in self._kinds() if kind and kind is not first]
        return ", ".join([head, *map(self._counted, rest)])

    def _kinds(self) -> tuple[list[Reason], ...]:
        return self.reasons, self.unknown, self.allowed, self.remarks

    def _counted(self, reasons: Sequence[Reason]) -> str:
        codes = dict.fromkeys(reason.code for reason in reasons)
        return ", ".join(f"{self.counts[code]} {_words(code, self.counts[code])}" for code in codes)

    def error(self, run_id: str, what: str = "the replay ended and was not exact") -> InexactReplayError:
        """Return the error that an inexact replay raises."""
        shown = [f"\n  {one.code}: {one.text}{_place(one)}" for one in self.reasons[:_SHOWN]]
        left = sum(self.counts[code] for code in {one.code for one in self.reasons}) - len(shown)
        more = f"\n  and {left} more" if left > 0 else ""
        codes = {one.code for one in self.reasons}
        chosen = sorted(codes & self.strict)
        named = ", ".join(f'"{code}"' for code in chosen)
        leave = f"; or leave {named} out of strict" if chosen and chosen == sorted(codes) else ""
        action = "; ".join(dict.fromkeys(_code(one.code).advice for one in self.reasons))
        todays = self._options_for_today() if codes == {"input"} else {}
        if todays:
            import shlex

            keywords = ", ".join(f"{option}={names!r}" for option, names in todays.items())
            flags = " ".join(
                f"--{option.replace('_', '-')} {shlex.quote(name)}"
                for option, names in todays.items()
                for name in names
            )
            action = f"give it what it had; or let today's count: {keywords}, `{flags}`"
        return InexactReplayError(
            f"{what} ({self._counted(self.reasons)}){''.join(shown)}{more}",
            run_id=run_id,
            step=next((one.facts["step"] for one in self.reasons if type(one.facts.get("step")) is int), None),
            location=next((one.facts["where"] for one in self.reasons if one.facts.get("where")), None),
            next_action=f"{action}{leave}",
            reasons=[one.as_dict() for one in self.reasons],
            todays=todays,
        )

    def _options_for_today(self) -> dict[str, list[str]]:
        """Return the options for a replay that accepts today's values of the inputs that differ here."""
        found: dict[str, dict[str, None]] = {}
        for one in self.reasons:
            option = "live_env" if one.facts.get("kind") == "environment" else "live_files"
            found.setdefault(option, {})[str(one.facts.get("name"))] = None
        return {option: _in_short([*names]) for option, names in found.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the answer and everything it is based on, as JSON values."""
        kinds = ("reasons", "unknown", "allowed", "remarks")
        found = {kind: [one.as_dict() for one in getattr(self, kind)] for kind in kinds}
        return {"answer": self.answer, "line": self.line, **found, "counts": dict(self.counts)}


def _in_short(paths: list[str]) -> list[str]:
    """Return these paths; if they are many and in one directory, the pattern that stands for all of them."""
    if len(paths) <= _SHOWN:
        return paths
    try:
        above = os.path.commonpath(paths)
    except ValueError:  # some are relative
        return paths
    names = {os.path.basename(path) for path in paths}
    return [os.path.join(above, "*", *names) if len(names) == 1 else f"{above}/*"] if above.strip("/") else paths


def _code(name: str) -> Code:
    return CODES.get(name) or Code(name.replace("_", " "))


def _words(name: str, count: int) -> str:
    return _code(name).one if count == 1 else _code(name).many


def _place(reason: Reason) -> str:
    where = reason.facts.get("where")
    return f" (at {where})" if where else ""


# -- recorded runs -------------------------------------------------------------------------------------------------------


class File(NamedTuple):
    """One file of a run: its raw entries, the result of verifying it, its segment (``None``: the run's own), and
    whether a process is writing it right now."""

    entries: Iterable[Mapping[str, Any]]
    state: Verdict
    segment: str | None = None
    live: bool = False


class Judgement(NamedTuple):
    """An answer about a run: ``True``, ``False``, or ``None`` if unknown; each reason may name ``entries``."""

    answer: bool | None
    reasons: tuple[Reason, ...]

    @property
    def text(self) -> str:
        word = {True: "Yes", False: "No", None: "Unknown"}[self.answer]
        return f"{word}: {'; '.join(one.text for one in self.reasons)}."

    @property
    def entries(self) -> list[int | str]:
        """The entries that the answer is based on: ``12``, or ``"SEGMENT:12"`` of a child process."""
        return list(dict.fromkeys(entry for one in self.reasons for entry in one.facts.get("entries", ())))

    def as_dict(self) -> dict[str, Any]:
        reasons = [one.as_dict() for one in self.reasons]
        return {"answer": self.answer, "text": self.text, "entries": self.entries, "reasons": reasons}


class RunVerdict(NamedTuple):
    """Whether a recorded run can be replayed, and whether it is safe to run again."""

    can_be_replayed: Judgement
    safe_to_run_again: Judgement


#: For runs recorded by older versions, which did not observe the boundary: neither question can be answered yes.
_NOT_OBSERVED: Final = Reason(
    "boundary_not_observed",
    "what the program reached outside its captured steps was not observed",
)
#: For runs recorded without observing some kind of input.
_INPUTS_NOT_OBSERVED: Final = Reason("inputs_not_observed", "not every kind of input that it read was observed")
_WRITES_NOT_OBSERVED: Final = Reason("writes_not_observed", "which files it wrote was not observed")
_WROTE: Final = Reason("wrote", "it changed files outside every step, and would do so again")
_LISTENED: Final = Reason("listened", "it listened for connections, and what others would ask it for is not known")
#: Why a run is safe to run again.
_ONLY_READS: Final = Reason("only_reads", "every captured step only reads, and model calls would be paid again")
_NO_EFFECTS: Final = Reason(
    "no_effects", "nothing that it did outside its process is known to have an effect, and it wrote no file"
)
_NOTHING_LACKING: Final = Reason(
    "nothing_lacking", "every call that it made and every input that was observed is in the trace"
)


def judge(files: Sequence[File]) -> RunVerdict:
    """Return the verdict on a run, given its own file (first) and those of its child processes."""
    read = [_Read(one) for one in files]
    joined = {one.lane for one in read if one.lane}
    crossings = [crossings_of(one.crossing, joined) for one in read]
    crossed = [(one, crossing) for one, own in zip(read, crossings, strict=True) for crossing in uncaptured(own)]
    unseen = [] if all(one.observed for one in read) else [_NOT_OBSERVED]
    if not unseen and not all(one.inputs_observed for one in read):
        unseen = [_INPUTS_NOT_OBSERVED]
    return RunVerdict(
        _judgement(
            [*_against_a_replay(read), *_uncaptured(crossed, by_chance(crossings))],
            unseen,
            _NOTHING_LACKING,
        ),
        _judgement(
            [*_against_running_it(read), *_with_effects(crossed), *_listening(crossings)],
            unseen or _writes(read),
            _ONLY_READS if any(one.captured for one in read) else _NO_EFFECTS,
        ),
    )


def _writes(read: Sequence[_Read]) -> list[Reason]:
    """Return the reasons why running it again may change files."""
    if any(one.wrote for one in read):
        return [_WROTE]
    # An entry that could not be written may have been an effect.
    return [] if all(one.wrote is False and not one.state.lost for one in read) else [_WRITES_NOT_OBSERVED]


def captured(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the entries include a model call, tool call or HTTP call; everything else is bookkeeping."""
    found = (family_of(entry["type"]) for entry in entries)
    return any(one is not None and one[0] != "span" for one in found)


def _judgement(
    found: Iterable[tuple[bool | None, Reason]], unseen: Iterable[Reason], otherwise: Reason | None = None
) -> Judgement:
    """Return no if a reason says so, unknown if one leaves it open; the decisive reasons come first.

    Without any reason the answer is yes, with ``otherwise`` as its reason if given.
    """
    answers = [*found, *((None, one) for one in unseen)]
    if not answers and otherwise is not None:
        return Judgement(True, (otherwise,))
    answer = False if any(says is False for says, _ in answers) else None
    reasons = [reason for says, reason in answers if says is answer]
    return Judgement(answer, tuple(reasons))


class _Read:
    """The facts of one file, gathered in one pass."""

    def __init__(self, file: File) -> None:
        self.state: Final = file.state
        self.segment: Final = file.segment
        self.live: Final = file.live
        self.first: Mapping[str, Any] = {}
        self.uncaptured: list[str] = []
        #: Outcomes and chunks that could not be recorded completely, and those that were redacted.
        self.lacking: Final[list[int | str]] = []
        self.redacted: Final[list[int | str]] = []
        #: Effect blocks that used neither ``perform()`` nor ``live``.
        self.unasked: Final[list[int | str]] = []
        #: Calls that were given iterators.
        self.iterators: Final[list[int | str]] = []
        self.captured = False
        self.bookkeeping = False
        #: Whether boundary crossings were observed; the entries about them, and the last entry, which has the counts.
        self.observed = False
        self.inputs_observed = False
        #: Whether it changed files outside steps; ``None`` if that was not observed or the file has no end.
        self.wrote: bool | None = None
        #: Files that it read but whose content is not in the trace, by name.
        self.not_kept: Final[dict[str, int | str]] = {}
        self.crossing: Final[list[Mapping[str, Any]]] = []
        #: The lane of the process, if it joined the run by itself.
        self.lane: str | None = None
        self.log: Final = RecoveredLog(self._noted(file.entries))

    def _noted(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        for entry in entries:
            self._note(entry)
            yield entry

    def _note(self, entry: Mapping[str, Any]) -> None:
        self.first = self.first or entry
        kind, meta = entry["type"], meta_of(entry)
        found = family_of(kind)
        if found is not None and found[0] != "span":
            self.captured = True
        elif found is not None or kind in SINGLES or kind in READS or kind == "input":
            self.bookkeeping = True
        if info_of(entry).get("unasked"):
            self.unasked.append(self.place(entry["seq"]))
        if info_of(entry).get("iterators"):
            self.iterators.append(self.place(entry["seq"]))
        if found is not None and found[1] != "intent":
            if "notes" in meta:
                self.lacking.append(self.place(entry["seq"]))
            if "redacted" in meta:
                self.redacted.append(self.place(entry["seq"]))
        if kind == "boundary" or kind.startswith("run."):
            self.crossing.append(entry)
        if kind == "input" and entry.get("name") == "file" and isinstance(entry.get("output"), dict):
            for name, value in entry["output"].items():
                if isinstance(value, dict) and "content" not in value:
                    self.not_kept.setdefault(name, self.place(entry["seq"]))
        if kind == "run.started":
            kinds = meta.get("boundary")
            self.observed = isinstance(kinds, list)
            self.inputs_observed = isinstance(kinds, list) and set(OBSERVED) <= {str(one) for one in kinds}
            lane = meta.get("lane")
            self.lane = lane if isinstance(lane, str) and not meta.get("indirect") else None
        if kind.startswith("run.") and isinstance(meta.get("wrote"), bool):
            self.wrote = bool(meta["wrote"])
        if kind.startswith("run.") and isinstance(meta.get("uncaptured"), list):
            self.uncaptured += [str(one) for one in meta["uncaptured"]]

    def place(self, seq: int) -> int | str:
        return seq if self.segment is None else f"{self.segment}:{seq}"


#: How many files are named.
_NAMED: Final = 5


def _against_a_replay(read: Sequence[_Read]) -> Iterator[tuple[bool | None, Reason]]:
    own = read[0].state
    if own.state == "broken":
        where = f" at line {own.line}" if own.line else ""
        yield False, Reason("damaged", f"the trace is broken{where}: {own.problem}")
        return
    if not read[0].first:
        yield False, Reason("no_entries", "the file has no entries")
        return
    if not any(one.captured for one in read):
        only = any(one.bookkeeping for one in read)
        yield (
            None if only else False,
            Reason("nothing_captured", "nothing was captured in it (no model call, tool or HTTP call)"),
        )
    source = imported_from(read[0].first)
    if source is not None:
        text = f"it was imported from {source}: a replay answers HTTP by content, and clock, random numbers and tools are live"
        yield None, Reason("imported", text, {"entries": [1]})
    lacking = [place for one in read for place in one.lacking]
    if lacking:
        text = "a value in it could not be recorded, and a replay stops where it is needed"
        yield False, Reason("not_serialisable", text, {"entries": lacking})
    unasked = [place for one in read for place in one.unasked]
    if unasked:
        text = "the block of an effect used neither `perform()` nor `live`, so a replay can't skip it, and stops there"
        yield False, Reason("unasked", text, {"entries": unasked})
    iterators = [place for one in read for place in one.iterators]
    if iterators:
        text = "a call was given an iterator: a replay takes nothing from it, and differs if the program goes on with what is left"
        yield None, Reason("iterator", text, {"entries": iterators})
    lost = sum(one.state.lost for one in read)
    if lost:
        text = f"{lost} of its entries could not be written, and a replay stops where the first is missing"
        yield False, Reason("lost_entries", text, {"entries": [own.count]})
    for sentence in dict.fromkeys(sentence for one in read for sentence in one.uncaptured):
        yield False, Reason("uncaptured", sentence.rstrip("."))
    if own.state != "complete":
        text = f"it is incomplete: {own.problem}; a replay goes up to entry {own.count}"
        yield None, Reason("incomplete", text, {"entries": [own.count]})
    cut_off = [one.place(one.state.count) for one in read[1:] if one.state.state != "complete"]
    if cut_off:
        text = "one of its processes has no end: a replay goes up to where that log ends"
        yield None, Reason("incomplete", text, {"entries": cut_off})
    redacted = [place for one in read for place in one.redacted]
    if redacted:
        text = "a replay passes on placeholders where values were redacted"
        yield None, Reason("redacted", text, {"entries": redacted})
    not_kept = {name: place for one in read for name, place in one.not_kept.items()}
    if not_kept:
        named = ", ".join([*not_kept][:_NAMED]) + (
            f" and {len(not_kept) - _NAMED} more" if len(not_kept) > _NAMED else ""
        )
        text = f"it read files whose content was not kept: a replay needs them unchanged ({named})"
        yield None, Reason("not_kept", text, {"entries": [*not_kept.values()]})
    python = (meta_of(read[0].first).get("environment") or {}).get("python")
    here = sys.version.split()[0]
    if source is None and isinstance(python, str) and python.split(".")[:2] != here.split(".")[:2]:
        yield None, Reason("environment", f"it was recorded on Python {python}, and this is {here}")


_Crossed = Sequence[tuple[_Read, Crossing]]


def _uncaptured(crossed: _Crossed, chance: Sequence[Crossing]) -> Iterator[tuple[bool | None, Reason]]:
    """Yield the boundary crossings that a replay would lack. Listening, what may not belong to the run, and what ``chance``
    decided, are uncertain."""
    for one, crossing in crossed:
        facts = {"entries": [one.place(crossing.entry)], "kind": crossing.kind, "where": crossing.where}
        if crossing.status == "refused":
            yield False, Reason("refused", f"{crossing.text} was refused", facts)
        elif crossing.unattributed:
            text = f"{crossing.text} was not captured, and it is unknown whether it was this run's"
            yield None, Reason("unattributed", text, facts)
        else:
            why = "did not join the run" if crossing.lane is not None else "was not captured"
            says = None if crossing.kind in SERVING else False
            yield says, Reason("uncaptured", f"{crossing.text} {why}", facts)
    for crossing in chance:
        text = f"{crossing.text}: {KINDS[crossing.kind].chance} was not captured"
        yield None, Reason("uncaptured", text, {"kind": crossing.kind, "where": crossing.where})


def _with_effects(crossed: _Crossed) -> Iterator[tuple[bool | None, Reason]]:
    """Yield the boundary crossings that may have had an effect, so that running the program again may not be safe."""
    for one, crossing in crossed:
        if crossing.effect:
            facts = {"entries": [one.place(crossing.entry)], "kind": crossing.kind, "where": crossing.where}
            text = f"{crossing.text} was not captured, so it is not known to be safe"
            yield None, Reason("uncaptured_effect", text, facts)
        elif crossing.kind in SERVING:
            yield None, _LISTENED
        elif crossing.status == "refused":
            yield None, Reason("refused", f"{crossing.text} was refused")
        else:  # a look-up, or a fork that did not join and was not observed
            yield None, Reason("uncaptured", f"{crossing.text} was not captured")


def _listening(crossings: Sequence[Sequence[Crossing]]) -> Iterator[tuple[bool | None, Reason]]:
    """Yield the reason of sockets to which nobody connected: a replay lacks nothing, and the next run may be asked."""
    if any(one.kind == "listen" and one.captured for own in crossings for one in own):
        yield None, _LISTENED


def _against_running_it(read: Sequence[_Read]) -> Iterator[tuple[bool | None, Reason]]:
    if read[0].state.state == "broken":
        yield (
            False,
            Reason("damaged", "the trace is damaged, so what happened after its last intact entry is not known"),
        )
        return
    if not read[0].first:
        yield None, Reason("no_entries", "the file is empty, so what its process did is not known")
        return
    made = [
        (one, step)
        for one in read
        for step in one.log.steps.values()
        if step.state != "given_up" and not step.duplicate
    ]
    final = [(one, step) for one, step in made if step.effect]
    running = [(one, step) for one, step in final if step.state == "pending" and one.live]
    in_doubt = [(one, step) for one, step in final if step.left_in_doubt and (one, step) not in running]
    failed = [(one, step) for one, step in final if step.state == "failed" and not step.left_in_doubt]
    done = [(one, step) for one, step in final if step.state == "done" and step.side_effect is not None]
    classless = [(one, step) for one, step in final if step.state == "done" and step.side_effect is None]
    again = [(one, step) for one, step in made if step.side_effect == "reversible"]
    unknown = [(one, entry) for one in read for entry in one.log.unknown]
    if running:
        yield False, _of_steps("running", "{} is being made right now", running)
    if in_doubt:
        yield False, _of_steps("in_doubt", "{} may or may not have happened: find out before anything else", in_doubt)
    if failed:
        yield False, _of_steps("failed_effect", "{} failed and is irreversible: it may have happened in part", failed)
    if done:
        yield False, _of_steps("done_effect", "{} was done and can't be undone: a new run would do it again", done)
    if classless:
        yield None, _of_steps("class_missing", "{} has no side-effect class", classless)
    if again:
        yield None, _of_steps("reversible_again", "{} would be made again, which can be undone", again)
    if unknown:
        places = [one.place(entry["seq"]) for one, entry in unknown]
        yield (
            None,
            Reason("unknown_effect", "it has effects of types that this tracekit does not know", {"entries": places}),
        )
    for sentence in dict.fromkeys(sentence for one in read for sentence in one.uncaptured):
        yield None, Reason("uncaptured", sentence.rstrip("."))


def _of_steps(code: str, text: str, found: Sequence[tuple[_Read, RecoveredStep]]) -> Reason:
    counted = Counter(str(step.name) for _, step in found)
    names = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in counted.items())
    return Reason(code, text.format(names), {"entries": [one.place(step.seq) for one, step in found]})


# -- report ------------------------------------------------------------------------------------------------------------


class Report:
    """The report on one replay, complete when its block has ended. ``verdict`` says whether it was exact, and why not.

    - ``consumed``: the number of steps answered from the log or run in their recorded place; ``skipped``: those inside
      an answered step. ``matched`` counts both, including child processes.
    - ``unconsumed``: recorded steps that the program did not make (``seq``, ``type``, ``name``).
    - ``reordered``: the ``seq`` of events delivered or requested out of their recorded order.
    - ``differences``: mismatches after which the replay continued.
    - ``clock_drift``: places with more (``surplus``) or fewer (``missing``) clock reads than recorded.
    - ``cost``: the cost of the replay; ``recorded``: what the recorded run used.
    """

    def __init__(self, run_id: str, path: str | None = None, strict: Iterable[str] = ()) -> None:
        self.run_id: Final = run_id
        self.verdict: Final = ReplayVerdict(strict)
        self._path: Final = path
        self._recorded: dict[str, Any] | None = None
        self.consumed = 0
        self.skipped = 0
        self._below: Counter[str] = Counter()
        self.unconsumed: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.failure: BaseException | None = None
        self.isolation: str | None = None
        self.cost = 0.0

    # -- added by sessions ---------------------------------------------------------------------------------------------

    def inexact(self, code: str, text: str, **facts: Any) -> None:
        """Add a reason that makes the replay inexact."""
        self.verdict.add("reasons", Reason(code, text, facts))

    def never_asked_for(self, steps: Iterable[Mapping[str, Any]]) -> None:
        """Add a reason for each recorded step (``seq``, ``type``, ``name``) that the program did not make."""
        for step in steps:
            text = f"step {step['seq']} ({step['type']} {step['name']!r}) was never requested"
            self.inexact("unconsumed_steps", text, step=step["seq"], name=step["name"])

    def remark(self, code: str, text: str, **facts: Any) -> None:
        """Add a remark: counted, and a reason only if ``strict`` names its code."""
        self.verdict.add("remarks", Reason(code, text, facts))

    def allow(self, code: str, text: str, **facts: Any) -> None:
        """Note something that happened because the caller of the replay allowed it."""
        self.verdict.add("allowed", Reason(code, text, facts))

    def unknown(self, code: str, text: str, **facts: Any) -> None:
        """Note something because of which it is unknown whether the replay was exact."""
        self.verdict.add("unknown", Reason(code, text, facts))

    def interrupted(self) -> None:
        """Note that Ctrl-C came from outside, unless the replay has failed: that interrupts what waits, too."""
        if not self.verdict.reasons:
            self.unknown("interrupted", "Ctrl-C came from outside, and nothing was compared after it")

    def warn(self, sentence: str, *, quiet: bool = False, uncaptured: bool = False) -> None:
        """Keep a sentence for ``warnings``, once; the recording reports the rest."""
        if sentence not in self.warnings and len(self.warnings) < MOST:
            self.warnings.append(sentence)

    def include(self, found: Mapping[str, Any], process: str) -> None:
        """Include the verdict (as JSON values) on a child process. Whether its log has an end does not matter here."""
        for kind in ("reasons", "allowed", "remarks"):
            for one in found.get(kind) or ():
                facts = {key: value for key, value in one.items() if key not in ("code", "text")}
                self.verdict.add(kind, Reason(one["code"], one["text"], {**facts, "process": process}))
        below = Counter(found.get("matched") or {})
        below["in_processes"], own = below["consumed"], below["consumed"] > below["in_processes"]
        below["processes"] += own
        self._below += below

    # -- results -------------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether the replay has ended, and the program made every recorded step, in order and with equal content, and
        no other."""
        return self.verdict.answer == "exact"

    @property
    def matched(self) -> dict[str, int]:
        """The number of ``consumed`` and ``skipped`` steps, how many of the former were ``in_processes``, and in how
        many processes."""
        below = self._below
        return {
            "consumed": self.consumed + below["consumed"],
            "skipped": self.skipped + below["skipped"],
            "in_processes": below["in_processes"],
            "processes": below["processes"],
        }

    @property
    def reordered(self) -> list[int]:
        return [one.facts["step"] for one in self.verdict.of("reordered")]

    @property
    def differences(self) -> list[dict[str, Any]]:
        return [dict(one.facts) for code in ("passed_over", "live_differs") for one in self.verdict.of(code)]

    @property
    def clock_drift(self) -> list[dict[str, Any]]:
        return [dict(one.facts) for one in self.verdict.of("clock")]

    @property
    def recorded(self) -> dict[str, Any]:
        """What the recorded run used: calls, tokens, ``cost_usd`` (``None`` if a price is unknown) and seconds."""
        from .spending import usage_of

        if self._recorded is None:
            self._recorded = {} if self._path is None else usage_of(self._path)
        return self._recorded

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        names = ("run_id", "consumed", "skipped", "unconsumed", "clock_drift", "reordered", "differences", "warnings")
        facts = {name: getattr(self, name) for name in (*names, "isolation", "cost", "recorded", "exact")}
        facts["matched"] = self.matched
        facts["failure"] = None if self.failure is None else str(self.failure)
        facts["verdict"] = self.verdict.as_dict()
        return facts

    def __repr__(self) -> str:
        return f"<Report {self.run_id}: {self.verdict.line}; {self.consumed} consumed, {self.skipped} skipped>"

    def _repr_html_(self) -> str:
        """Return the report as HTML for notebooks: the verdict, its reasons, and the steps that were not made."""
        verdict = self.verdict
        colour = {"exact": "#1a7f37", "exact but for": "#9a6700", "inexact": "#cf222e", "unknown": "#9a6700"}[
            verdict.answer
        ]
        kinds = (("reasons", "not exact"), ("unknown", "not known"), ("allowed", "allowed"), ("remarks", "remarked"))
        rows = [
            (word, f"{one.code}: {one.text}{_place(one)}") for kind, word in kinds for one in getattr(verdict, kind)
        ]
        rows += [("not asked for", f"step {one['seq']} {one['type']} {one['name']}") for one in self.unconsumed]
        if self.failure is not None:
            rows.insert(0, ("failed", str(self.failure)))
        table = "".join(
            f'<tr><td>{word}</td><td style="text-align:left;white-space:pre-wrap">{_html(text)}</td></tr>'
            for word, text in rows[:MOST]
        )
        if len(rows) > MOST:
            table += f"<tr><td></td><td>… {len(rows) - MOST} more</td></tr>"
        steps = f"{self.consumed} step{'' if self.consumed == 1 else 's'} answered, {self.skipped} skipped"
        return (
            f'<div><b>replay</b> <code>{_html(self.run_id)}</code> <span style="color:{colour}">{_html(verdict.line)}</span><br>{steps}'
            f"{f'<table>{table}</table>' if table else ''}</div>"
        )


def _html(text: str) -> str:
    """Escape a text for use in an HTML element: recorded text is never markup."""
    from html import escape

    return escape("".join(char if char.isprintable() or char == "\n" else " " for char in text))
