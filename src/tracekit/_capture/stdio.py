"""The standard streams of a recorded program: what it prints, compared in a replay, and what it reads from its standard input."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from hashlib import sha256
from io import TextIOWrapper
from itertools import groupby
from typing import Any, Final

from .._lazy import NamedTuple
from .._runtime.process import process
from .._runtime.session import current
from .._runtime.step import Spec
from .calls import Captured, shell_of
from .patch import looking_like

__all__ = [
    "Out",
    "PrintedDifference",
    "PrintedLines",
    "capture_input",
    "capture_output",
    "differences",
    "observed",
    "other_order",
]

# -- what is printed ---------------------------------------------------------------------------------------------------
#
# The lines of each lane, and the first one that differs in a replay.
#
# Each line is kept as hash and length, the first ones as text too, redacted. What Python code writes to ``sys.stdout`` counts, but for
# logging handlers, progress bars, and bodies of steps, which a replay does not run. The lines of child processes are their own.

#: Whose lines are left out: by the module that writes.
_BESIDE: Final = frozenset(("logging", "tqdm", "alive_progress", "progressbar"))
#: How many lines of one line of execution are kept, and how many characters of text of all of them.
_LINES: Final = 10_000
_TEXT: Final = 64 << 10
#: Of how many lines, over all lines of execution, the order is kept.
_ORDERED: Final = 100_000

Redact = Callable[[str], tuple[str, Any]]


class PrintedLines:
    """The lines that one run prints, kept by lane, and in which order the lanes printed them."""

    def __init__(self) -> None:
        self._lanes: Final[dict[str, _Lines]] = {}
        #: Of each line the lane that has ended it, over all lanes.
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
            )  # last, so that hardly anything comes between it and the writing itself

    def _add(self, lines: _Lines, line: str) -> None:
        if len(lines.hashes) >= _LINES:
            lines.more += 1
            return
        lines.hashes.append([_hash(line), len(line)])
        if len(line) < self._room and len(lines.text) == len(lines.hashes) - 1:
            lines.text.append(line)
            self._room -= len(line) + 1

    def as_dict(self, redact: Redact) -> dict[str, Any]:
        """All lines as JSON values; text without a line end yet is a line too."""
        for lines in self._lanes.values():
            if lines.open:
                self._add(lines, redact(lines.open)[0])
                lines.open = ""
        return {lane: lines.as_dict() for lane, lines in self._lanes.items()}

    def order(self) -> list[list[int]]:
        """Which lane printed how many lines in a row, again and again, by the numbers of the lanes in the order of their names.

        Empty where one lane alone has printed.
        """
        if len(self._lanes) < 2:
            return []
        numbers = {lane: number for number, lane in enumerate(sorted(self._lanes))}
        return [[numbers[lane], sum(1 for _ in lines)] for lane, lines in groupby(self._order)]


class _Lines:
    """The printed lines of one lane."""

    __slots__ = ("hashes", "more", "open", "text")

    def __init__(self) -> None:
        self.hashes: list[list[Any]] = []
        self.text: list[str] = []
        self.more = 0
        self.open = ""

    def as_dict(self) -> dict[str, Any]:
        return {"lines": self.hashes, "text": self.text, **({"more": self.more} if self.more else {})}


class PrintedDifference(NamedTuple):
    """The first printed line of a lane that differs: its number from 1, and both texts, ``None`` where there is none."""

    lane: str
    number: int
    recorded: str | None
    actual: str | None

    def __str__(self) -> str:
        where = f" of {self.lane}" if self.lane else ""
        return f"line {self.number} of the output{where} was {_shown(self.recorded)}, and is {_shown(self.actual)}"


def differences(recorded: Mapping[str, Any], actual: Mapping[str, Any]) -> list[PrintedDifference]:
    """The first line that differs, for each lane."""
    found = []
    for lane in sorted({*recorded, *actual}):
        was, now = _read(recorded.get(lane)), _read(actual.get(lane))
        number = next((n for n, (one, other) in enumerate(zip(was[0], now[0], strict=False)) if one != other), None)
        if number is None and was[0] == now[0] and was[2] == now[2]:
            continue
        number = min(len(was[0]), len(now[0])) if number is None else number
        found.append(PrintedDifference(lane, number + 1, _line(was, number), _line(now, number)))
    return found


class OtherOrder(NamedTuple):
    """The first line, of those of all lanes together, in whose place another one was printed: its number from 1, and both texts."""

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
    """Where lanes that print the same lines print them in another order. That of an older recording is not known: ``None``."""
    both = zip(_in_order(recorded, order), _in_order(actual, order_now), strict=False)
    for number, ((was, text), (now, text_now)) in enumerate(both, 1):
        if was != now:
            return OtherOrder(number, text, text_now)
    return None


def _in_order(printed: Mapping[str, Any], order: Any) -> Iterator[tuple[Any, str | None]]:
    """All lines that are kept, in the order in which they were printed, each with its text; a trace may say anything of them."""
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


def _read(about: Any) -> tuple[list[Any], list[Any], Any]:
    """Read printed lines from a trace, which may contain anything."""
    about = about if isinstance(about, Mapping) else {}
    lines, text = about.get("lines"), about.get("text")
    return lines if isinstance(lines, list) else [], text if isinstance(text, list) else [], about.get("more", 0)


def _line(lines: tuple[list[Any], list[Any], Any], number: int) -> str | None:
    if number < len(lines[1]):
        return str(lines[1][number])
    return "a line that is not kept as text" if number < len(lines[0]) or lines[2] else None


def _shown(line: str | None) -> str:
    if line is None:
        return "not there"
    return repr(line if len(line) <= 200 else line[:200] + "…")


def _hash(line: str) -> str:
    return sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# -- the process ---------------------------------------------------------------------------------------------------------


class Out(TextIOWrapper):
    """Standard output that passes what is written to ``listeners`` as well."""

    def __init__(self, under: TextIOWrapper) -> None:
        super().__init__(
            under.buffer,
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

    @classmethod
    def take(cls) -> Out | None:
        """The ``Out`` in place of ``sys.stdout``, put there if possible; else ``None``."""
        under = sys.stdout
        if type(under) is Out:
            return under
        if type(under) is not TextIOWrapper:
            return None
        process.kept.append(under)  # it would close the file at its end
        out = sys.stdout = sys.__stdout__ = cls(under)  # type: ignore[misc]
        return out


def capture_output() -> None:
    """Keep what the runs of this process print, until the process ends."""
    out = Out.take()
    if out is not None and _printed not in out.listeners:
        out.listeners.append(_printed)


def observed() -> bool:
    """Whether what is printed now is kept."""
    return type(sys.stdout) is Out and _printed in sys.stdout.listeners


def _printed(text: str) -> None:
    scope = current.get()
    if scope is None or scope.live or "\r" in text:
        return
    if sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] in _BESIDE:
        return
    state = scope.session.state
    if state.ended:
        return
    state.extras.of(PrintedLines).write(scope.lane.path, text, scope.session.redactor.redact_text)


# -- standard input ----------------------------------------------------------------------------------------------------
#
# As steps of a run, where a whole program is recorded or replayed.


def capture_input() -> None:
    """Make ``input()`` and the reads of ``sys.stdin`` captured calls, for the rest of the process."""
    builtins.input = looking_like(_prompting(builtins.input), builtins.input, builtins)
    sys.stdin = _Stdin(sys.stdin)


def _step(name: str, function: Any) -> Any:
    """The function with each call as a step. It needs no identity, as a tool does, so that a program without tools imports no wrapt."""
    shell = shell_of(Captured(function, Spec("tool", name, side_effect="read_only")))

    def step(*args: Any, **kwargs: Any) -> Any:
        return shell(function, None, args, kwargs)

    return step


def _prompting(original: Any) -> Any:
    """``input``, whose prompt is printed before the step, in a replay too: what is printed is the program's own.

    On a terminal the line editor shows it, while the step is made.
    """
    shown: Any = _step("input", lambda prompt="": original())
    edited: Any = _step("input", original)

    @wraps(original)
    def input(prompt: object = "", /) -> Any:
        if _edits():
            return edited(prompt)
        sys.stderr.flush()
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
        return shown(prompt)

    return input


def _edits() -> bool:
    try:
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return False


class _Stdin:
    """Standard input whose reads are steps; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        for name in ("read", "readline", "readlines"):
            setattr(self, name, _step(f"stdin.{name}", getattr(stream, name)))

    def __iter__(self) -> Iterator[str]:
        while line := self.readline():
            yield line

    def __next__(self) -> str:
        line: str = self.readline()
        if not line:
            raise StopIteration
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
