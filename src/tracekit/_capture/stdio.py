"""Capture of what a recorded program prints, which a replay compares."""

from __future__ import annotations

import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from itertools import groupby
from typing import Any, ClassVar, Final

from .._lazy import NamedTuple
from .._native import sha256_hex
from .._runtime.process import process
from .._runtime.session import current
from .._sources import is_tracekit
from .patch import looking_like

__all__ = [
    "Out",
    "PrintedDifference",
    "PrintedLines",
    "all_observed",
    "capture_output",
    "differences",
    "flush",
    "keeps_all",
    "observed",
    "other_order",
]

# -- what is printed ---------------------------------------------------------------------------------------------------
#
# The lines of each lane, and the first one that differs in a replay.
#
# Each line is kept as hash and length, the first ones also as redacted text; the lines beyond the limit share one hash.
# Everything that Python code writes to ``sys.stdout``, to its buffer, to a stream that replaces it and ends in either,
# and with ``os.write(1, …)`` counts, except for logging handlers, progress bars, and bodies of steps, which a replay
# does not run. The lines of child processes belong to them.

#: Modules whose lines are left out.
_UNCOUNTED_WRITERS: Final = frozenset(("logging", "tqdm", "alive_progress", "progressbar"))
#: The most lines kept per lane, and the most characters of text kept for all lanes.
_LINES: Final = 10_000
_TEXT: Final = 64 << 10
#: The most lines, over all lanes, whose order is kept.
_ORDERED: Final = 100_000

Redact = Callable[[str], tuple[str, Any]]


class PrintedLines:
    """The lines that one run prints, kept by lane, and the order in which the lanes printed them."""

    def __init__(self) -> None:
        self._lanes: Final[dict[str, _Lines]] = {}
        #: For each line, over all lanes, the lane that ended it.
        self._order: Final[list[str]] = []
        self._room = _TEXT

    def write(self, lane: str, text: str, redact: Redact) -> None:
        lines = self._lanes.get(lane) or self._lanes.setdefault(lane, _Lines())
        *whole, lines.open = (lines.open + text).split("\n")
        if len(lines.open) > _TEXT:
            whole, lines.open = [*whole, lines.open], ""
        for line in whole:
            self._add(lines, redact(line)[0])
        if whole and len(self._order) < _ORDERED:
            self._order.extend(
                (lane,) * len(whole)
            )  # last, so that hardly anything comes between it and the actual write

    def _add(self, lines: _Lines, line: str) -> None:
        if len(lines.hashes) >= _LINES:
            lines.more += 1
            if lines.rest is None:
                from hashlib import sha256  # not at the top: it loads OpenSSL, and few programs print so much

                lines.rest = sha256()
            lines.rest.update(b"%s %d\n" % (_hash(line).encode(), len(line)))
            return
        lines.hashes.append([_hash(line), len(line)])
        if len(line) < self._room and len(lines.text) == len(lines.hashes) - 1:
            lines.text.append(line)
            self._room -= len(line) + 1

    def as_dict(self, redact: Redact) -> dict[str, Any]:
        """Return all lines as JSON values; trailing text without a line end is a line, too."""
        for lines in self._lanes.values():
            if lines.open:
                self._add(lines, redact(lines.open)[0])
                lines.open = ""
        return {lane: lines.as_dict() for lane, lines in self._lanes.items()}

    def order(self) -> list[list[int]]:
        """Return the order of the lanes: pairs of a lane's number, by the sorted names, and how many lines it printed
        in a row.

        Empty if only one lane has printed.
        """
        if len(self._lanes) < 2:
            return []
        numbers = {lane: number for number, lane in enumerate(sorted(self._lanes))}
        return [[numbers[lane], sum(1 for _ in lines)] for lane, lines in groupby(self._order)]


class _Lines:
    """The printed lines of one lane."""

    __slots__ = ("hashes", "more", "open", "rest", "text")

    def __init__(self) -> None:
        self.hashes: list[list[Any]] = []
        self.text: list[str] = []
        self.more = 0
        #: The hash of those that are too many to be kept, once there are any.
        self.rest: Any = None
        self.open = ""

    def as_dict(self) -> dict[str, Any]:
        more = {"more": self.more, "rest": self.rest.hexdigest()[:16]} if self.more else {}
        return {"lines": self.hashes, "text": self.text, **more}


class PrintedDifference(NamedTuple):
    """The first printed line of a lane that differs: its number from 1, and both texts, ``None`` where there is no
    line."""

    lane: str
    number: int
    recorded: str | None
    actual: str | None

    def __str__(self) -> str:
        where = f" of {self.lane}" if self.lane else ""
        if self.number > _LINES and self.recorded == self.actual:
            return f"of the lines{where} past the first {self.number - 1}, whose text is not kept, one differs"
        return f"line {self.number} of the output{where} was {_shown(self.recorded)}, and is {_shown(self.actual)}"


def differences(recorded: Mapping[str, Any], actual: Mapping[str, Any]) -> list[PrintedDifference]:
    """Return the first line that differs, for each lane."""
    found = []
    for lane in sorted({*recorded, *actual}):
        was, now = _read(recorded.get(lane)), _read(actual.get(lane))
        number = next((n for n, (one, other) in enumerate(zip(was[0], now[0], strict=False)) if one != other), None)
        if number is None and was[0] == now[0] and was[2] == now[2] and (was[3] is None or was[3] == now[3]):
            continue
        number = min(len(was[0]), len(now[0])) if number is None else number
        found.append(PrintedDifference(lane, number + 1, _line(was, number), _line(now, number)))
    return found


class OtherOrder(NamedTuple):
    """The first line, over all lanes, in whose place another one was printed: its number from 1, and both texts."""

    number: int
    recorded: str | None
    actual: str | None

    def __str__(self) -> str:
        return (
            f"several threads or tasks print, and took turns in another order: line {self.number} of all output was "
            f"{_shown(self.recorded)}, and is {_shown(self.actual)}"
        )


def other_order(
    recorded: Mapping[str, Any], order: Any, actual: Mapping[str, Any], order_now: list[list[int]]
) -> OtherOrder | None:
    """Return where lanes with the same lines printed them in another order. ``None`` for an older recording, which
    lacks the order."""
    both = zip(_in_order(recorded, order), _in_order(actual, order_now), strict=False)
    for number, ((was, text), (now, text_now)) in enumerate(both, 1):
        if was != now:
            return OtherOrder(number, text, text_now)
    return None


def _in_order(printed: Mapping[str, Any], order: Any) -> Iterator[tuple[Any, str | None]]:
    """Yield all kept lines in the order in which they were printed, each with its text; a trace may contain anything."""
    lanes = [_read(printed[lane]) for lane in sorted(printed)]
    next_line = [0] * len(lanes)
    for turn in order if isinstance(order, list) else ():
        lane, count = turn if isinstance(turn, list) and len(turn) == 2 else (None, 0)
        if type(lane) is not int or type(count) is not int or not 0 <= lane < len(lanes):
            return
        for _ in range(count):
            at = next_line[lane]
            if at >= len(lanes[lane][0]):  # it printed more than is kept
                return
            yield lanes[lane][0][at], _line(lanes[lane], at)
            next_line[lane] += 1


def keeps_all(recorded: Mapping[str, Any]) -> bool:
    """Return whether something is kept of all recorded lines; an older recording has only the number of those beyond
    the limit."""
    return all(rest is not None or not more for _, _, more, rest in map(_read, recorded.values()))


_Printed = tuple[list[Any], list[Any], Any, Any]


def _read(about: Any) -> _Printed:
    """Read printed lines from a trace, which may contain anything."""
    about = about if isinstance(about, Mapping) else {}
    lines, text = about.get("lines"), about.get("text")
    lines, text = lines if isinstance(lines, list) else [], text if isinstance(text, list) else []
    return lines, text, about.get("more", 0), about.get("rest")


def _line(lines: _Printed, number: int) -> str | None:
    if number < len(lines[1]):
        return str(lines[1][number])
    return "a line that is not kept as text" if number < len(lines[0]) or lines[2] else None


def _shown(line: str | None) -> str:
    if line is None:
        return "not there"
    return repr(line if len(line) <= 200 else line[:200] + "…")


def _hash(line: str) -> str:
    return sha256_hex(line.encode("utf-8", "surrogatepass"))[:16]


# -- the process ---------------------------------------------------------------------------------------------------------


class _Heard:
    """A buffer of standard output that also passes what is written to it directly, not by its text stream, to a
    listener."""

    listen: Callable[[Any], None] | None = None

    def write(self, data: Any, /) -> Any:
        if self.listen is not None and sys._getframe(1).f_code not in _OF_THE_TEXT:
            self.listen(data)
        return super().write(data)  # type: ignore[misc]


class _Buffered(_Heard, BufferedWriter):
    pass


class _Unbuffered(_Heard, FileIO):
    """The same under ``python -u``."""


for _kind, _as in ((_Buffered, BufferedWriter), (_Unbuffered, FileIO)):
    _kind.__name__ = _kind.__qualname__ = _as.__name__
    _kind.__module__ = _as.__module__


class Out(TextIOWrapper):
    """Standard output that also passes everything written to ``listeners``."""

    #: The instance that replaces, or replaced, the process's own stream.
    installed: ClassVar[Out | None] = None

    def __init__(self, under: TextIOWrapper) -> None:
        buffer: Any = under.buffer
        if type(buffer) is BufferedWriter or type(buffer) is FileIO:
            under.flush()
            if type(buffer) is BufferedWriter:
                buffer = _Buffered(buffer.raw)
            else:
                buffer, name = _Unbuffered(buffer.fileno(), "w", closefd=False), buffer.name
                buffer.name = name
            buffer.listen = self._bytes
        self._decoder: Final = getincrementaldecoder("utf-8")("backslashreplace")
        #: Whether something may have written to it unnoticed.
        self.passed_by = False
        super().__init__(
            buffer,
            encoding=under.encoding,
            errors=under.errors,
            newline="\n" if os.linesep == "\n" else None,
            line_buffering=under.line_buffering,
            write_through=under.write_through,
        )
        self.mode = getattr(under, "mode", "w")  # type: ignore[misc]  # which Python sets where it makes its streams
        self.listeners: Final[list[Callable[[str], None]]] = []

    def write(self, text: str, /) -> int:
        for listen in self.listeners:
            listen(text)
        return super().write(text)

    def _bytes(self, data: Any) -> None:
        """Handle bytes written to the buffer or the descriptor."""
        with suppress(TypeError):  # the write itself raises for what can't be written
            text = self._decoder.decode(bytes(memoryview(data)))
            for listen in self.listeners:
                listen(text)

    # Delegating methods, so that the buffer knows who writes to it.

    def flush(self) -> None:
        super().flush()

    def close(self) -> None:
        super().close()

    def detach(self) -> Any:
        return super().detach()

    def reconfigure(self, **options: Any) -> None:
        super().reconfigure(**options)

    @classmethod
    def take(cls) -> Out | None:
        """Return the ``Out`` in place of ``sys.stdout``, installed if possible; else ``None``."""
        under = sys.stdout
        if type(under) is Out:
            return under
        if type(under) is not TextIOWrapper:
            return None
        process.kept.append(under)  # it would close the file when collected
        out = cls.installed = sys.stdout = sys.__stdout__ = cls(under)  # type: ignore[misc]
        return out


_OF_THE_TEXT: Final = frozenset(
    one.__code__ for one in (Out.write, Out.flush, Out.close, Out.detach, Out.reconfigure, Out.__init__)
)


def capture_output() -> None:
    """Keep what the runs of this process print, until the process ends."""
    out = Out.take()
    if out is not None and _printed not in out.listeners:
        out.listeners.append(_printed)
        _watch_the_descriptor(out)


def _watch_the_descriptor(out: Out) -> None:
    """Notice writes to descriptor 1 itself; writes to a copy of it go unnoticed."""
    write, dup = os.write, os.dup

    def written(fd: int, data: Any, /) -> int:
        if fd == 1 and not is_tracekit(sys._getframe(1).f_code.co_filename):
            out._bytes(data)
        return write(fd, data)

    def copied(fd: int, /) -> int:
        if fd == 1 and not is_tracekit(sys._getframe(1).f_code.co_filename):
            out.passed_by = True
        return dup(fd)

    os.write = looking_like(written, write, os)
    os.dup = looking_like(copied, dup, os)


def observed() -> bool:
    """Return whether what is printed is kept."""
    return Out.installed is not None and _printed in Out.installed.listeners


def all_observed() -> bool:
    """Return whether nothing is known to have been printed unnoticed."""
    out, now = Out.installed, sys.stdout
    if out is None or out.passed_by:
        return False
    with suppress(Exception):
        return now is out or isinstance(getattr(now, "buffer", None), _Heard) or now.fileno() != 1
    return True


def flush() -> None:
    """Flush standard output, or what the program put in its place: what it printed is compared, and comes before what
    tracekit says of the run where both streams go to one file."""
    with suppress(Exception):
        sys.stdout.flush()


def _printed(text: str) -> None:
    scope = current.get()
    if scope is None or scope.live or "\r" in text:
        return
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in (
        "write",
        "writelines",
        "flush",
    ):  # of a stream that passes it on
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _UNCOUNTED_WRITERS:
        return
    state = scope.session.state
    if state.ended:
        return
    state.extras.of(PrintedLines).write(scope.lane.path, text, scope.session.redactor.redact_text)
