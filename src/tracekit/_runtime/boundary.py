"""The boundary of a process during a run: what crosses it outside every captured step, and at which line of user code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol
from weakref import WeakKeyDictionary

from .._journal.entry import meta_of
from .._lazy import NamedTuple
from ..errors import LogWriteError
from .lane import ROOT

__all__ = [
    "BY_CHANCE",
    "KINDS",
    "OBSERVED",
    "SERVING",
    "Boundary",
    "Crossing",
    "Status",
    "by_chance",
    "crossing_of",
    "crossings_of",
    "listeners",
    "reaches_the_network",
    "sentences",
    "uncaptured",
]

#: ``noted``: it went ahead and is in no step. ``ambient``: it was let through, and a replay does without it.
#: ``refused``: it did not happen. ``captured``: it is in a step.
Status = Literal["captured", "ambient", "refused", "noted"]

#: What is observed while recording, including inputs (``inputs.py``), as listed in the run's first entry. Anything else
#: is not.
OBSERVED: Final = (
    "connect",
    "directory",
    "endpoint",
    "environment",
    "file",
    "fork",
    "kept",
    "left",
    "listen",
    "listing",
    "lookup",
    "native",
    "process",
    "scan",
    "send",
    "stdin",
)


class CrossingKind:
    """What the kind of a crossing decides. ``words`` say what it is, before its target.

    ``effect``: it may have an effect, so that its entry is on the device before it goes ahead, and it is never repeated.
    ``chance``: all that a replay lacks of it, since this was a matter of chance. ``serves``: others may come to the program,
    and need not.
    """

    __slots__ = ("chance", "effect", "serves", "words")

    def __init__(self, words: str, *, effect: bool = False, chance: str = "", serves: bool = False) -> None:
        self.words: Final = words
        self.effect: Final = effect
        self.serves: Final = serves
        self.chance: Final = chance


#: Each kind of crossing, by the name of its entry. What to do about it: ``_CROSSED`` in ``cli.doctor``.
KINDS: Final = {
    "accept": CrossingKind("accepting connections on", serves=True),
    "connect": CrossingKind("a connection to", effect=True),
    # Without an effect: what the copy does is observed, as the work of a process of the run.
    "fork": CrossingKind("a fork of"),
    "listen": CrossingKind("listening on", serves=True),
    "look": CrossingKind("looking at", chance="when it was as the program found it"),
    "lookup": CrossingKind("a look-up of"),
    "native": CrossingKind("a call of", effect=True),
    "process": CrossingKind("the process", effect=True),
    "queue": CrossingKind("taking items from", chance="in which order, and which process got which item,"),
    "send": CrossingKind("sending to", effect=True),
    "stdin": CrossingKind("reading"),
    "wait": CrossingKind("waiting for", chance="which came first"),
}
_EFFECTS: Final = frozenset(name for name, kind in KINDS.items() if kind.effect)
#: Crossings of which a replay does not lack anything but the moment, which was a matter of chance.
BY_CHANCE: Final = frozenset(name for name, kind in KINDS.items() if kind.chance)
#: Crossings by which a program offers something to others.
SERVING: Final = frozenset(name for name, kind in KINDS.items() if kind.serves)
#: The operation that puts an item into a queue between processes. Any other one takes one.
_PUTS: Final = "Queue.put"
#: The operations by which a program listens whose connections are noted when they are accepted.
_WATCHED: Final = frozenset(("socket.listen", "uvloop.create_server", "uvloop.create_unix_server"))
#: How many targets of one kind and line get an entry each. Further ones are counted under one more target, ``_OTHERS``.
_TARGETS: Final = 100
_OTHERS: Final = "others"


class Crossing(NamedTuple):
    """A boundary crossing, distinguished by kind, target and line of user code: the first one, and how many there were.

    ``captured`` is how many of them turned out to be captured: processes that joined the run, or could not be started.
    ``entry`` is its entry in the log. ``unattributed``: it is unknown whether the code belongs to the run (a thread
    that is not part of it). ``telemetry`` names the telemetry, if recognised. ``operation`` is the function with which
    the first of them crossed. ``watched``: it listens, and the connections that it accepts are crossings, too; if there is
    none, a replay lacks nothing, and it counts as captured.
    """

    status: str
    kind: str
    target: str
    where: str | None
    unattributed: bool = False
    effect: bool = False
    lane: str | None = None
    entry: int = 0
    times: int = 1
    captured: int = 0
    telemetry: str | None = None
    operation: str = ""
    watched: bool = False

    @property
    def final_status(self) -> str:
        """``status``, but ``"captured"`` for a noted crossing if all of them turned out to be captured."""
        return "captured" if self.status == "noted" and self.times <= self.captured else self.status

    @property
    def text(self) -> str:
        """What it is and where, as text."""
        place = [] if self.where is None else [self.where]
        if self.times > 1:
            place.append(f"{self.times} times")
        known = KINDS.get(self.kind)
        words = self.kind if known is None else known.words
        return f"{words} {self.target}" + (f" ({', '.join(place)})" if place else "")

    @property
    def advice(self) -> str:
        """Advice about it that is not part of the verdict."""
        if self.status != "ambient":
            return ""
        return f"this is telemetry{f' of {self.telemetry}' if self.telemetry else ''}; it is left out"


class _Key(NamedTuple):
    """What is counted together."""

    status: str
    kind: str
    where: str | None
    target: str
    unattributed: bool
    telemetry: str | None


class _Journal(Protocol):
    def held(self) -> Any: ...
    def sync(self, seq: int | None = None) -> None: ...


class _Log(Protocol):
    @property
    def journal(self) -> _Journal: ...


class Boundary:
    """The boundary crossings of the process while one run is recorded, outside its captured steps.

    ``write`` appends a ``boundary`` entry (name, input as JSON values, lane and enclosing step) to ``log`` and returns
    its ``seq``; ``unwritten`` is called if that fails.
    """

    def __init__(
        self,
        log: _Log,
        write: Callable[[str, dict[str, Any], tuple[int, int]], int],
        unwritten: Callable[[], None],
    ) -> None:
        self._log: Final = log
        self._write: Final = write
        self._unwritten: Final = unwritten
        self._found: Final[dict[_Key, _Counted]] = {}
        self._targets: Final[Counter[tuple[str, str, str | None]]] = Counter()
        #: The counters of processes, by lane.
        self._processes: Final[dict[str, _Counted]] = {}
        #: The sockets already listed, with their targets (``None`` for a connected socket), and whether it is unknown
        #: who uses them.
        self._sockets: Final[WeakKeyDictionary[Any, set[tuple[object, bool]]]] = WeakKeyDictionary()

    def knows(self, sock: Any, target: object, unattributed: bool) -> bool:
        """Return whether data sent through this socket (to ``target``, if it is not connected) is listed already, and
        list it.

        A socket opened by other code counts again when the run's own code uses it.
        """
        try:
            targets = self._sockets.setdefault(sock, set())
        except TypeError:  # it can't be weakly referenced
            return False
        if any((one, whose) in targets for one in (target, None) for whose in {False, unattributed}):
            return True
        if len(targets) < _TARGETS:
            targets.add((target, unattributed))
        return False

    def note(
        self,
        status: Status,
        kind: str,
        operation: str,
        target: str,
        where: str | None,
        *,
        place: tuple[int, int] = (0, ROOT),
        unattributed: bool = False,
        lane: str | None = None,
        telemetry: str | None = None,
    ) -> None:
        """Log a crossing that is about to happen. If the log can't be written, it goes ahead nevertheless."""
        try:
            # the log's own lock: a finalizer may get here in the middle of an entry
            with self._log.journal.held():
                counted = self._counted(_Key(status, kind, where, target, unattributed, telemetry), lane, operation)
                if not counted.entry:
                    counted.entry = self._write(kind, counted.about(), place)
            if counted.effect:
                self._log.journal.sync(counted.entry)
        except LogWriteError:
            self._unwritten()

    def _counted(self, key: _Key, lane: str | None, operation: str) -> _Counted:
        line = key[:3]
        if key not in self._found and self._targets[line] >= _TARGETS:
            key = key._replace(target=_OTHERS)
        counted = self._found.get(key)
        if counted is None:
            counted = self._found[key] = _Counted(key, lane, operation)
            self._targets[line] += 1
        counted.times += 1
        if lane is not None:
            self._processes[lane] = counted
        return counted

    def captured(self, lane: str) -> None:
        """Note that the process in this lane is captured after all: it has joined the run, or could not be started."""
        counted = self._processes.pop(lane, None)
        if counted is not None:
            counted.captured += 1

    def listens_on(self, target: str) -> bool:
        """Return whether the run has listened on this address."""
        return any(key.kind == "listen" and key.target == target for key in [*self._found])

    @property
    def crossings(self) -> list[Crossing]:
        """All crossings so far, in order."""
        return _without_connections([one.crossing() for one in [*self._found.values()]])

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for the run's last entry, by entry."""
        found: dict[str, Any] = {}
        for one in self.crossings:
            if one.entry:
                found[str(one.entry)] = {"count": one.times} | ({"captured": one.captured} if one.captured else {})
        return found


class _Counted:
    """The counter of equal crossings; see ``Crossing``."""

    __slots__ = ("captured", "effect", "entry", "key", "lane", "operation", "times")

    def __init__(self, key: _Key, lane: str | None, operation: str) -> None:
        self.key: Final = key
        self.lane: Final = lane
        self.operation: Final = operation
        self.effect: Final = key.status == "noted" and key.kind in _EFFECTS
        self.entry = 0
        self.times = 0
        self.captured = 0

    def about(self) -> dict[str, Any]:
        """Return the input of its entry."""
        key = self.key
        about: dict[str, Any] = {"status": key.status, "operation": self.operation, "target": key.target}
        if key.where is not None:
            about["where"] = key.where
        if self.effect:
            about["effect"] = True
        if self.watched:
            about["watched"] = True
        if key.unattributed:
            about["unattributed"] = True
        if self.lane is not None:
            about["process"] = self.lane
        if key.telemetry is not None:
            about["telemetry"] = key.telemetry
        return about

    def crossing(self) -> Crossing:
        return Crossing(
            **self.key._asdict(),
            effect=self.effect,
            lane=self.lane,
            entry=self.entry,
            times=self.times,
            captured=self.captured,
            operation=self.operation,
            watched=self.watched,
        )

    @property
    def watched(self) -> bool:
        return self.key.kind == "listen" and self.operation in _WATCHED


def crossings_of(entries: Iterable[Mapping[str, Any]], joined: Collection[str] = ()) -> list[Crossing]:
    """Return the boundary crossings in a log. ``joined`` are the lanes of processes of the run that have files of their
    own."""
    found: dict[int, Crossing] = {}
    counts: Mapping[str, Any] | None = None
    for entry in entries:
        if entry["type"] == "boundary":
            found[entry["seq"]] = crossing_of(entry)
        elif entry["type"].startswith("run."):
            observed = meta_of(entry).get("boundary")
            counts = observed if isinstance(observed, Mapping) else counts
    return _without_connections([_with_counts(one, counts, joined) for one in found.values()])


def _without_connections(found: list[Crossing]) -> list[Crossing]:
    """Return the crossings, with the listening sockets to which nobody connected as captured: a replay lacks nothing."""
    accepted = {one.target for one in found if one.kind == "accept"}
    return [
        one._replace(captured=one.times) if one.watched and accepted.isdisjoint((one.target, _OTHERS)) else one
        for one in found
    ]


def listeners(entries: Iterable[Mapping[str, Any]]) -> tuple[frozenset[str], bool]:
    """Return the addresses on which the process of a log listened and nobody connected, and whether nobody connected to
    any other either."""
    found = crossings_of(entry for entry in entries if entry["type"] == "boundary")
    quiet = frozenset(one.target for one in found if one.watched and one.captured)
    return quiet, not any(one.kind == "accept" for one in found)


def crossing_of(entry: Mapping[str, Any]) -> Crossing:
    """Return the crossing in a ``boundary`` entry, which may be malformed."""
    about = entry.get("input")
    about = about if isinstance(about, Mapping) else {}
    where, lane, telemetry = about.get("where"), about.get("process"), about.get("telemetry")
    return Crossing(
        str(about.get("status", "noted")),
        str(entry.get("name")),
        str(about.get("target")),
        where if isinstance(where, str) else None,
        about.get("unattributed") is True,
        about.get("effect") is True,
        lane if isinstance(lane, str) else None,
        entry["seq"],
        telemetry=telemetry if isinstance(telemetry, str) else None,
        operation=str(about.get("operation")),
        watched=about.get("watched") is True,
    )


def _with_counts(one: Crossing, counts: Mapping[str, Any] | None, joined: Collection[str]) -> Crossing:
    counted = None if counts is None else counts.get(str(one.entry))
    if isinstance(counted, Mapping):
        count, captured = counted.get("count"), counted.get("captured", 0)
        if type(count) is int and type(captured) is int:
            return one._replace(times=count, captured=captured)
    return one._replace(captured=int(one.lane is not None and one.lane in joined))


def uncaptured(crossings: Iterable[Crossing]) -> list[Crossing]:
    """Return what a replay would lack: crossings noted and not captured, and refused ones.

    Left out are a look-up followed by a connection, connections to a listening socket that is there itself, and what a
    replay does, too, but perhaps at another moment (``by_chance``).
    """
    found = [
        one
        for one in crossings
        if one.status in ("noted", "refused") and one.kind not in BY_CHANCE and one.times > one.captured
    ]
    elsewhere = {one.where for one in found if one.kind != "lookup"}
    listening = {one.target for one in found if one.kind == "listen"}
    return [
        one
        for one in found
        if (one.kind != "lookup" or one.where not in elsewhere)
        and (one.kind != "accept" or one.target not in listening)
    ]


def by_chance(processes: Iterable[Iterable[Crossing]]) -> list[Crossing]:
    """Return the crossings, of those of each process, that chance decided: looking at a file that a running process
    changed, waiting for the first of several connections, and taking items from a queue from which another process takes
    some, too, or into which several put them."""
    looks: dict[tuple[str, str | None], Crossing] = {}
    taken: dict[str, list[Crossing]] = {}
    put: Counter[str] = Counter()
    for crossings in processes:
        own = [*crossings]
        looks.update(((one.target, one.where), one) for one in own if one.kind in BY_CHANCE and one.kind != "queue")
        queues = {(one.target, one.operation): one for one in reversed(own) if one.kind == "queue"}
        for (target, operation), one in queues.items():
            if operation == _PUTS:
                put[target] += 1
            else:
                taken.setdefault(target, []).append(one)
    return [*looks.values(), *(one[0] for target, one in taken.items() if len(one) > 1 or put[target] > 1)]


def reaches_the_network(one: Crossing) -> bool:
    """Return whether this looks like an HTTP client or SDK, which ``instrument()`` captures if tracekit knows it."""
    sends = one.kind == "send" and one.operation.startswith("socket.")  # neither a signal nor a pipe
    return one.status == "noted" and (sends or one.kind in ("connect", "lookup"))


def sentences(found: Sequence[Crossing], most: int) -> list[str]:
    """Return at most ``most`` lines about what was not captured."""
    texts = [_sentence(one) for one in found]
    if len(texts) <= most:
        return texts
    return [
        *texts[: most - 1],
        f"not captured, and a replay will refuse it: {len(texts) - most + 1} more, which `tracekit show RUN --why` names",
    ]


def _sentence(one: Crossing) -> str:
    if one.status == "refused":
        return f"refused, and by a replay too: {one.text}"
    if one.kind in BY_CHANCE:
        shared = ", which several processes share" if one.kind == "queue" else ""
        return f"not captured, and a replay may differ: {one.text}{shared}"
    more = ""
    if one.lane is not None:
        more = ", which did not join the run"
    elif one.unattributed:
        more = "; whether it belongs to this run is unknown"
    return f"not captured, and a replay will refuse it: {one.text}{more}"
