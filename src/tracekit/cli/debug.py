"""``tracekit debug``: back and forth through the steps of a recorded run, in the lines of the program that made them.

The program is replayed in a child process that stops where requested (``_runs.debugging``); going back starts it again,
up to the step. ``DebuggedReplay`` is that process from the debugger's side, ``Shell`` the prompt.
"""

from __future__ import annotations

import cmd
import json
import linecache
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import IO, Any, Final, NamedTuple, NoReturn

import click

from .._journal.entry import FAMILIES, SINGLES
from .._journal.store import shown_as
from .._runs.debugging import SINK, StepPlace
from .._runs.reading import FileView, RunView, StepView, plain
from .._runs.replay import kinds_that_go_live
from ..errors import RunStateError, TracekitError
from .output import DIFFERENT, complete_in_run, console, fail, printable, read
from .replay import Prepared, live_kinds, of_a_replay, prepared, started
from .show import line_of, print_answer, print_input

__all__ = ["Condition", "DebuggedReplay", "Frame", "GoneError", "Line", "Steps", "Stop", "Streams", "debug"]


# -- steps -------------------------------------------------------------------------------------------------------------


class Steps:
    """The steps of a recorded run at which its replay can stop: those that the program and its child processes make
    themselves.

    They are in the order in which they began. A step is named by its number, in a child process by ``SEGMENT:NUMBER``.
    Raises ``RunStateError`` if there is none.
    """

    def __init__(self, view: RunView) -> None:
        self.view: Final = view
        self._order: Final = [step for step in _in_order(view) if _stops(step) and _around(step) is None]
        self._at: Final = {step.place: at for at, step in enumerate(self._order)}
        self.places: Final = [step.place for step in self._order]
        if not self._order:
            raise RunStateError(
                f"{shown_as(view.path)} has no step at which its replay could stop",
                next_action="its steps were made by processes that a replay does not start"
                if len(view.files) > 1
                else f"`tracekit show {shown_as(view.path)} --all` shows what it has",
            )

    def __getitem__(self, place: StepPlace) -> StepView:
        return self._order[self._at[place]]

    def get(self, place: StepPlace) -> StepView | None:
        return None if place not in self._at else self[place]

    def __len__(self) -> int:
        return len(self._order)

    def position(self, place: StepPlace) -> int:
        """Return its position among the steps of the run, from 0; for an entry between two steps, that of the next one."""
        if place in self._at:
            return self._at[place]
        segment, number = _parts(place)
        after = (at for at, one in enumerate(self._order) if _parts(one.place)[0] == segment and one.seq > number)
        return next(after, len(self._order))

    def place(self, text: StepPlace) -> StepPlace:
        """Return the step with this name; raise ``RunStateError`` unless the replay can stop there."""
        segment, number = _parts(str(text).strip())
        own = self.view.own
        files = [one for one in self.view.files[1:] if segment and _is_named(one, segment)] if segment else [own]
        if len(files) != 1 or number < 0:
            ambiguous = "are several child processes" if files else "is no child process"
            raise RunStateError(
                f"there {ambiguous} {segment} in this run" if segment else f"{str(text)!r} is not the number of a step",
                run_id=self.view.run_id,
                next_action=f"`tracekit show {shown_as(self.view.path)}` lists the steps of each, `SEGMENT:NUMBER`"
                if segment
                else self._where_to_look,
            )
        file = files[0]
        place = file.place(number)
        if place in self._at:
            return place
        raise self._refusal(file, number)

    @property
    def _where_to_look(self) -> str:
        return f"`tracekit show {shown_as(self.view.path)}` shows the number of each step"

    def _refusal(self, file: FileView, number: int) -> RunStateError:
        """Return why a replay can't stop at an entry of this file."""
        begun, known, place = file.steps.get(number), file.step_at(number), file.place(number)
        hint = self._where_to_look
        around = _around(begun)
        if not _is_started(self.view, file):
            what = f"step {place} was made by a process ({file.process}) that a replay does not start: what started it is answered"
        elif around is not None and begun is not None:
            what = f"step {place} happened inside step {around.place} ({around.kind} {around.name}), whose body a replay does not run"
            hint = f"stop at step {around.place}"
        else:
            there = 1 <= number <= file.found.count
            kind = (
                f"is of type {file.trace.entry(number)['type']}"
                if there
                else f"is past the last one, {file.found.count}"
            )
            what = f"no step begins there: entry {place} {kind}"
            if begun is None and known is not None and known.place in self._at:
                what, hint = f"{what}, which belongs to step {known.place}", f"stop at step {known.place}"
        return RunStateError(what, run_id=self.view.run_id, next_action=hint)

    def before_process(self, place: StepPlace) -> int:
        """Return the last step of the program's own process before the process of this step began; 0: none."""
        file = next((one for one in self.view.files if one.segment == _parts(place)[0]), self.view.own)
        began = _began(self.view, file)[1]
        return max((one.seq for one in self._order if one.file.segment is None and one.seq <= began), default=0)

    def after(self, position: int, like: StepView | None = None) -> Iterator[StepView]:
        """Yield the steps after this position, the nearest first; only those of the lane of ``like``, if given."""
        return self._of(self._order[max(0, position + 1) :], like)

    def before(self, position: int, like: StepView | None = None) -> Iterator[StepView]:
        """Yield the steps before this position, the nearest first; only those of the lane of ``like``, if given."""
        return self._of(self._order[: max(0, position)][::-1], like)

    def _of(self, steps: Sequence[StepView], like: StepView | None) -> Iterator[StepView]:
        for step in steps:
            if like is None or (step.file is like.file and step.lane_number == like.lane_number):
                yield step

    def condition(self, text: str) -> Condition:
        """Parse a condition on steps; raise ``RunStateError`` for one that no step can satisfy."""
        try:
            found = Condition(text)
        except (SyntaxError, NameError, ValueError) as error:
            raise RunStateError(f"{error}", next_action="see `help conditions` in tracekit debug") from error
        if found.place is not None:
            return Condition(str(self.place(found.place)))
        if found.word is not None and not any(found.holds(step) for step in self._order):
            named = Condition(f"name == {found.word!r}")
            if any(named.holds(step) for step in self._order):
                return named
            there = sorted({f"{step.kind}:{step.name}" for step in self._order})
            raise RunStateError(
                f"no step of this run is {found.word}",
                next_action=f"there are {', '.join(there[:10])}{' …' if len(there) > 10 else ''}",
            )
        return found


def _in_order(view: RunView) -> list[StepView]:
    """Return the steps of the processes that a replay starts, as they began: each process's in its own order, none
    before its cause."""
    keyed: list[tuple[tuple[int, int, int], StepView]] = []
    for at, file in enumerate(view.files):
        if file is not view.own and not _is_started(view, file):
            continue
        moment = _began(view, file)[0]
        for step in file.steps.values():
            moment = max(moment, step.ts_ns)
            keyed.append(((moment, at, step.seq), step))
    keyed.sort(key=itemgetter(0))
    return [step for _, step in keyed]


def _began(view: RunView, file: FileView) -> tuple[int, int]:
    """Return when a process began, and after which entry of the program's own process."""
    causes = [one for one in file.first.get("cause") or () if isinstance(one, Mapping)]
    if file is view.own or not causes:
        return 0, 0
    cause = causes[0]
    seq = cause.get("seq")
    above = next((one for one in view.files if one.segment == cause.get("segment")), view.own)
    if above is file or type(seq) is not int:
        return 0, 0
    if above is not view.own:
        return max(_began(view, above)[0], _moment(above, seq)), _began(view, above)[1]
    return _moment(above, seq), seq


def _moment(file: FileView, seq: int) -> int:
    return int(file.trace.entry(seq)["ts_ns"]) if 1 <= seq <= file.found.count else 0


def _is_started(view: RunView, file: FileView) -> bool:
    """Return whether a replay starts this process: not if a tool or a command that is answered from the trace started
    it."""
    return file is view.own or not ("@" in file.process or file.first.get("meta", {}).get("indirect"))


def _is_named(file: FileView, name: str) -> bool:
    """Return whether a name means this child process: the beginning of its segment, its path, or the last part of that
    (``worker#2``)."""
    last = file.process.rpartition("/")[2]
    return str(file.segment).startswith(name) or name in (file.process, last, last.rpartition(":")[2])


def _parts(place: StepPlace) -> tuple[str | None, int]:
    """Return the segment and the number of a step; -1 if there is none."""
    segment, _, number = str(place).rpartition(":")
    return segment or None, int(number) if number.isdecimal() else -1


def _around(step: StepView | None) -> StepView | None:
    """Return the step around this one that a replay answers without running its body."""
    found = None
    while step is not None and step.parent:
        step = step.file.steps.get(step.parent)
        if step is not None and step.kind in FAMILIES and step.kind != "span":
            found = step
    return found


def _stops(step: StepView) -> bool:
    return step.type in SINGLES or (step.kind in FAMILIES and step.kind != "pipe")


#: What a condition can ask about a step.
_NAMES: Final[Mapping[str, Callable[[StepView], Any]]] = {
    "step": lambda step: step.place,
    "kind": lambda step: step.kind,
    "name": lambda step: step.name,
    "lane": lambda step: step.lane.path,
    "process": lambda step: step.file.process,
    "agent": lambda step: step.agent,
    "side_effect": lambda step: step.side_effect,
    "failed": lambda step: step.failed,
    "error": lambda step: step.error or "",
    "attempt": lambda step: step.attempt,
    "took": lambda step: step.took / 1e9,
    "input": lambda step: plain(step.input),
    "answer": lambda step: step.call.answer.text if step.call is not None else plain(step.output),
    "requested": lambda step: [one.name for one in step.call.requested] if step.call is not None else [],
    "model": lambda step: step.call.model if step.call is not None else None,
    "cost": lambda step: (step.call.cost_usd if step.call is not None else 0) or 0,
    "tokens": lambda step: sum(_counts(step)),
}
#: ``12``, ``c254f3cc:12``: a step.
_STEP: Final = re.compile(r"(?:[^\s'\"()=<>]+:)?\d+$")
#: ``tool``, ``tool:search``: a kind of step, and one name of it.
_KIND: Final = re.compile(r"(?P<kind>[a-z_]+(?:\.[a-z_]+)?)(?::(?P<name>[^\s'\"()=<>]+))?$")


def _counts(step: StepView) -> list[int]:
    found = {} if step.call is None else step.call.usage
    return [found[key] for key in ("input_tokens", "output_tokens") if type(found.get(key)) is int]


class _Facts(Mapping[str, Any]):
    """The names in a condition, each evaluated on demand."""

    def __init__(self, step: StepView) -> None:
        self._step: Final = step

    def __getitem__(self, name: str) -> Any:
        return _NAMES[name](self._step)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


class Condition:
    """A condition on the steps of a run: ``12``, ``tool:send``, ``failed``, or a Python expression over ``_NAMES``.

    Raises ``SyntaxError`` or ``NameError`` for anything else.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text.strip()
        #: The step's name, if it names a step.
        self.place: Final = self.text if _STEP.match(self.text) else None
        self._kind: Final = None if self.text in _NAMES or self.place else _KIND.match(self.text)
        #: The kind of step, with or without a name, if it is one.
        self.word: Final = None if self._kind is None else self.text
        self._code: Final = None if self._kind or self.place else compile(self.text, "<condition>", "eval")
        unknown = set(() if self._code is None else self._code.co_names) - {*_NAMES, *dir(__builtins__), *dir(str)}
        if unknown - {*dir(dict), *dir(list)}:
            raise NameError(f"{', '.join(sorted(unknown))}: a condition knows {', '.join(_NAMES)}")

    def holds(self, step: StepView) -> bool:
        if self._kind is not None:
            return step.is_a(self._kind["kind"]) and self._kind["name"] in (None, step.name)
        if self.place is not None:
            return str(step.place) == self.place
        assert self._code is not None
        try:
            return bool(eval(self._code, {}, _Facts(step)))
        except Exception:  # another kind of step, which has no such value
            return False


# -- the replayed process ----------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A line of the program; ``own``: it belongs to the thread or task that makes the step, else to one that waits for
    that."""

    file: str
    line: int
    function: str
    lane: str
    own: bool


class Stop(NamedTuple):
    """Where the replay has stopped: the step (or ``after`` it, between two), the lane, and the lines, the innermost
    first."""

    step: StepPlace
    after: bool
    lane: str
    frames: tuple[Frame, ...]


#: A line of the program: its file, and its number.
Line = tuple[str, int]


class GoneError(Exception):
    """The replayed process has ended."""


class Streams(NamedTuple):
    """Where the program's output goes for an editor: two descriptors."""

    stdout: int
    stderr: int


class _Channel:
    """The messages to and from one process of the replay: lines of JSON. ``segment`` is that of a child process."""

    def __init__(
        self, asked: int, events: int, segment: str | None = None, connection: socket.socket | None = None
    ) -> None:
        self.segment: Final = segment
        self.events: Final = events
        #: Its event, if it has stopped while another process is being inspected.
        self.stopped: dict[str, Any] | None = None
        #: The last step that it made.
        self.last: StepPlace = 0
        #: The connection to ``debugpy`` in the process, once that was asked to connect.
        self.editor: socket.socket | None = None
        self._asked: Final = asked
        self._connection: Final = connection
        #: Its messages that were not handled yet.
        self.heard: Final[deque[dict[str, Any]]] = deque()
        self._rest = b""
        self._closed = False

    def send(self, what: Mapping[str, Any]) -> None:
        line = json.dumps(what).encode() + b"\n"
        with suppress(OSError):  # it has ended, which it reports by its end
            while line and not self._closed:
                line = line[os.write(self._asked, line) :]

    def hear(self) -> bool:
        """Read its messages into ``heard``; return False if it has ended."""
        try:
            read = os.read(self.events, 65536)
        except OSError:
            read = b""
        *whole, self._rest = (self._rest + read).split(b"\n")
        self.heard.extend(map(json.loads, whole))
        return bool(read)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
            else:
                os.close(self._asked)
                os.close(self.events)
            if self.editor is not None:
                self.editor.close()


class DebuggedReplay:
    """The processes in which the run is replayed. ``at`` is where it has stopped; ``None`` before the start, and after
    the end.

    One of them is stopped at a time, and the others run as far as they can without it. A step of another process is
    reached by replaying the run to there again: then it does not matter which of them is faster. At a prompt ``ask`` is
    called when ``pdb`` needs a line (``None``: there are no more), ``write`` with its output. An editor has
    ``streams``, and steps by lines in ``debugpy``.
    """

    def __init__(
        self,
        found: Prepared,
        steps: Steps,
        ask: Callable[[], str | None],
        write: Callable[[str], object],
        streams: Streams | None = None,
    ) -> None:
        self._found: Final = found
        self._steps: Final = steps
        self._ask: Final = ask
        self._write: Final = write
        self._streams: Final = streams
        #: For an editor: the line from which each step was made, as far as the replay has got.
        self.lines_of: Final[dict[StepPlace, Line]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        #: The program's own process, its child processes, and the one that is stopped, or was last.
        self._main: _Channel | None = None
        self._children: list[_Channel] = []
        self._here: _Channel | None = None
        self._listener: socket.socket | None = None
        self._directory: str | None = None
        self._sink: IO[bytes] | None = None
        #: How far processes that start now may go.
        self._wanted: dict[str, Any] = {}
        self.at: Stop | None = None
        #: The furthest step seen of each process, past all of them if it has ended: its output up to there is shown
        #: only once.
        self._seen: Final[dict[str | None, int]] = {}
        self._killed = self._over = False
        self._changing: Final = threading.Lock()
        #: Whether it was left in ``pdb``, with ``q`` or at the end of the input.
        self.left = False
        #: The exit code of the last replay that reached its end.
        self.status: int | None = None

    @property
    def directory(self) -> str:
        """The directory in which the program runs."""
        return self._found.cwd

    @property
    def last(self) -> StepPlace:
        """The last step made in the process that was stopped last."""
        return 0 if self._here is None else self._here.last

    @property
    def editor(self) -> socket.socket | None:
        """The connection to ``debugpy`` in the stopped process; ``None`` if not connected."""
        return None if self._here is None else self._here.editor

    def line_by_line(self) -> socket.socket:
        """Wait for the connection to ``debugpy``, and return it: a child process connects when asked to."""
        assert self._here is not None
        assert self._listener is not None
        while self._here.editor is None:
            self._welcome(self._listener)
        return self._here.editor

    # -- running ---------------------------------------------------------------------------------------------------------

    def go(self, to: StepPlace | None, lines: Iterable[Line] = ()) -> Stop | None:
        """Run to step ``to``, from the start if it is behind or in another process; ``None``: to the end. Return where
        it has stopped, ``None`` at the end.

        On the way it stops at each step made from one of these ``lines``.
        """
        wanted = sorted(lines)
        if self.at is None or (to is not None and not self._is_ahead(to)):
            return self._start(to, self._hidden(to), wanted)
        stopped = next((one for one in self._children if one.stopped is not None), None) if wanted else None
        if stopped is not None:  # it reached one of these lines meanwhile
            self._here = stopped
            return self._stopped(stopped.stopped)
        self._wanted.update(to=to, lines=wanted)
        self._go_on()
        event = self._next()
        if event is not None and event["event"] == "passed":  # by another thread, which was faster this time
            return self._start(to, self._hidden(to))
        return self._stopped(event)

    def _is_ahead(self, to: StepPlace) -> bool:
        assert self.at is not None
        (segment, number), (here, at) = _parts(to), _parts(self.at.step)
        return segment == here and number > at

    def _go_on(self) -> None:
        """Let all processes go on: one that is not stopped learns at its next step how far."""
        self.at = None
        for one in self._channels:
            one.stopped = None
            one.send({"do": "run", "to": self._wanted["to"], "lines": self._wanted["lines"]})

    def lines(self, frame: int) -> Stop | None:
        """Run ``pdb`` in this frame; return where the replay has stopped once that was left."""
        before = self.at
        self._send(do="lines", frame=frame)
        self.at = None
        event = self._next()
        if event is not None and event["event"] == "looked":
            self.at = before
            return before
        return self._stopped(event)

    def trace(self, frame: int) -> Stop | None:
        """Let ``debugpy``, which is connected, stop in this frame; return where the replay stops at a step again."""
        self._send(do="trace", frame=frame)
        self.at = None
        return self._stopped(self._next())

    def _hidden(self, to: StepPlace | None) -> dict[str | None, int]:
        """Return, by process, the step up to which its output was shown before."""
        if to is None:
            return {} if self._seen.get(None) == sys.maxsize else dict(self._seen)
        segment, number = _parts(to)
        found = {**self._seen, segment: min(number, self._seen.get(segment, 0))}
        if segment is not None:  # its output was shown up to where the program started it
            found[None] = min(self._steps.before_process(to), self._seen.get(None, 0))
        return found

    def branch(self, live: Mapping[str, Any], since: StepPlace) -> Stop | None:
        """Replay the run to its end with these kinds of steps live from step ``since`` on, which writes a new run.

        Raises ``RunStateError`` for a step of a child process.
        """
        if not isinstance(since, int):
            raise RunStateError(
                "what-if continues from a step of the program's own process",
                next_action=f"step {since} is a child process's",
            )
        options = {**self._found.instructions["options"], "live": dict(live)}
        return self._start(None, {None: since}, options=options, live_from=since)

    def _start(
        self, to: StepPlace | None, hidden: Mapping[str | None, int], lines: Sequence[Line] = (), **instructions: Any
    ) -> Stop | None:
        self.close()
        self._killed = self.left = False
        self._wanted = {"to": to, "lines": list(lines), "hidden": hidden}
        self._directory = directory = tempfile.mkdtemp(prefix="tracekit-debug-")
        address = os.path.join(directory, "socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(64)
        sink = self._sink = open(os.path.join(directory, SINK), "a+b")  # noqa: SIM115  # as long as the process
        asked, ours = os.pipe()
        theirs, answers = os.pipe()
        main = self._main = self._here = _Channel(ours, theirs)
        pipes = {"asked": asked, "answers": answers, "sink": sink.fileno()}
        far: socket.socket | None = None
        if self._streams is not None:
            main.editor, far = socket.socketpair()
            pipes["debugpy"] = far.fileno()
        about = {"to": to, "lines": lines, "hidden": hidden.get(None) or None, "editor": self._streams is not None}
        whole = {
            **self._found.instructions,
            **instructions,
            "debugger": {**pipes, **about, "address": address},
        }
        try:
            with self._changing:
                if self._over:
                    raise GoneError
                self._process = started(self._found, whole, [*pipes.values()], self._streams)
        finally:
            os.close(asked)
            os.close(answers)
            if far is not None:
                far.close()
        return self._stopped(self._next())

    def _stopped(self, event: Mapping[str, Any] | None) -> Stop | None:
        if event is None:
            return None
        self.at = Stop(event["step"], event["after"], event["lane"], tuple(Frame(**frame) for frame in event["frames"]))
        segment, number = _parts(self.at.step)
        self._seen[segment] = max(self._seen.get(segment, 0), number)
        if segment is not None:
            self._seen[None] = max(self._seen.get(None, 0), self._steps.before_process(self.at.step))
        return self.at

    # -- what they say -----------------------------------------------------------------------------------------------------

    @property
    def _channels(self) -> list[_Channel]:
        return [*([] if self._main is None else [self._main]), *self._children]

    def _next(self, of: _Channel | None = None) -> dict[str, Any] | None:
        """Return the next event of any process, or only of ``of``, except for what ``pdb`` does there; ``None`` if the
        replay, or that process, has ended."""
        main, listener = self._main, self._listener
        assert main is not None
        assert listener is not None
        while True:
            for channel in self._channels:
                while channel.heard:
                    event = channel.heard.popleft()
                    if not self._took(channel, event, of):
                        self._here = channel
                        return event
            known = {channel.events: channel for channel in self._channels}
            ready = select.poll()
            for one in (listener.fileno(), *known):
                ready.register(one, select.POLLIN)
            for fd, _ in ready.poll():
                if fd == listener.fileno():
                    self._welcome(listener)
                elif not known[fd].hear():
                    if known[fd] is main:
                        self._ended()
                        return None
                    self._children.remove(known[fd])
                    known[fd].close()
                    self._seen[known[fd].segment] = sys.maxsize
                    if known[fd] is of:
                        return None

    def _took(self, channel: _Channel, event: dict[str, Any], of: _Channel | None) -> bool:
        """Handle a process's event other than the expected one; return False if it is the expected one."""
        if event["event"] == "made":
            channel.last = event["step"]
            if event["line"] is not None:
                self.lines_of[channel.last] = (event["line"][0], event["line"][1])
        elif event["event"] == "output":
            self._write(event["text"])
        elif event["event"] == "left":
            self.left = True
        elif event["event"] == "prompt":
            channel.send({"line": self._ask() or ""})
        elif event["event"] == "stopped" and (of is not None or self.at is not None):
            channel.stopped = event  # one is stopped already
        else:
            return of is not None and channel is not of
        return True

    def _welcome(self, listener: socket.socket) -> None:
        """Accept the connection of a child process of the replay, or of ``debugpy`` in one."""
        connection, _ = listener.accept()
        hello = b""
        while not hello.endswith(b"\n") and (one := connection.recv(1)):
            hello += one
        try:
            about = json.loads(hello)
        except ValueError:  # it has ended already
            connection.close()
            return
        if about["event"] == "lines":
            assert self._here is not None
            self._here.editor = connection
            return
        segment, fd = about["segment"], connection.fileno()
        channel = _Channel(fd, fd, segment, connection)
        self._children.append(channel)
        hidden = self._wanted["hidden"].get(segment)
        place = f"{segment}:{hidden}" if hidden else None
        wanted = {"to": self._wanted["to"], "lines": self._wanted["lines"], "hidden": place}
        channel.send({**wanted, "editor": self._streams is not None})

    def _ended(self) -> None:
        assert self._process is not None
        assert self._sink is not None
        self.at = None
        status = self._process.wait()
        if self._killed:
            return
        self.status = status
        self._seen[None] = sys.maxsize
        self._sink.seek(0)
        hidden = self._sink.read()  # empty unless it ended before its output was to be shown: then this explains why
        if self._streams is not None:
            os.write(self._streams.stderr, hidden)
            return
        sys.stderr.flush()
        sys.stderr.buffer.write(hidden)
        sys.stderr.buffer.flush()

    # -- asking ----------------------------------------------------------------------------------------------------------

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask the stopped process; raise ``GoneError`` if it has ended."""
        self._send(**question)
        answer = self._next(self._here)
        if answer is None:
            raise GoneError
        return answer

    def _send(self, **what: Any) -> None:
        assert self._here is not None
        self._here.send(what)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def kill(self, *, for_good: bool = False) -> None:
        """Kill the process, and what it has started, possibly from another thread: a thread waiting for it notices its
        end.

        ``for_good``: and start no other one.
        """
        with self._changing:
            self._over |= for_good
            process = self._process
        if process is not None and process.poll() is None:
            self._killed = True
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """End the process, and what it has started. Idempotent."""
        self.kill()
        for channel in self._channels:
            channel.close()
        self._process = self._main = self._here = self.at = None
        self._children.clear()
        for file in (self._listener, self._sink):
            if file is not None:
                file.close()
        self._listener = self._sink = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


# -- the prompt --------------------------------------------------------------------------------------------------------


class Shell(cmd.Cmd):
    """The prompt of ``tracekit debug``: each ``do_NAME`` is a command."""

    prompt = "(debug) "

    def __init__(self, found: Prepared, steps: Steps) -> None:
        super().__init__()
        self._interactive: Final = sys.stdin.isatty() and sys.stdout.isatty()
        self.use_rawinput = self._interactive
        if not self._interactive:
            # Unbuffered: input for `pdb` must not be consumed before.
            self._lines: Final = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
        self._steps: Final = steps
        self.replay: Final = DebuggedReplay(found, steps, self._line_for_pdb, self._print)
        self._breaks: list[Condition] = []
        self._frame = 0
        self._listed = 0
        #: The exit code of the last what-if.
        self._tried: int | None = None

    # -- reading and printing --------------------------------------------------------------------------------------------

    def _read(self, text: str) -> str | None:
        if self._interactive:
            try:
                return input(text)
            except EOFError:
                return None
        self._print(text)
        line = self._lines.readline()
        return line.decode(errors="replace").rstrip("\r\n") if line else None

    def _line_for_pdb(self) -> str | None:
        line = self._read("")
        return None if line is None else f"{line}\n"

    def _print(self, text: str) -> None:
        sys.stdout.write("".join(char if char in "\n\t" else printable(char) for char in text))
        sys.stdout.flush()

    def _say(self, text: str) -> None:
        self._print(f"{text}\n")

    def close(self) -> None:
        """End the replay. Idempotent."""
        self.replay.close()
        if not self._interactive:
            self._lines.close()

    def cmdloop(self, intro: object = None) -> None:
        """Read and execute commands until one of them ends it."""
        with self._completed():
            while self._do_next():
                pass

    @contextmanager
    def _completed(self) -> Iterator[None]:
        """The block in which Tab completes the input, if there is a terminal and the library for it."""
        try:
            if not self._interactive:
                raise ImportError
            import readline
        except ImportError:
            yield
            return
        before, delimiters = readline.get_completer(), readline.get_completer_delims()
        readline.set_completer(self.complete)  # type: ignore[arg-type]  # as cmd.Cmd does; typeshed has it one way only
        readline.set_completer_delims(" \t\n")  # not `-` and `:`, which occur within commands and conditions
        readline.parse_and_bind("tab: complete")
        try:
            yield
        finally:
            readline.set_completer(before)
            readline.set_completer_delims(delimiters)

    def _do_next(self) -> bool:
        """Read and execute a command; return whether to read another."""
        try:
            line = self._read(self.prompt)
        except KeyboardInterrupt:  # cancels the input
            self._say("")
            return True
        if line is None:
            self._say("")
            return False
        try:
            return not self.onecmd(line)
        except TracekitError as error:
            self._say(f"{error.what}" + (f"; {error.next_action}" if error.next_action else ""))
        except GoneError:
            self._show_end()
        except KeyboardInterrupt:
            self.replay.close()
            self._say("\ninterrupted; the replay was ended: `goto N` starts it again")
        return True

    # -- where it stands -------------------------------------------------------------------------------------------------

    def _arrive(self, stop: Stop | None) -> None:
        self._frame = self._listed = 0
        if stop is None:
            self._show_end()
            return
        self._show_step(stop)
        if stop.frames:
            self._show_frame()
        else:
            self._say("(no line of your program: see `where`)")

    def _show_step(self, stop: Stop) -> None:
        step = self._steps[stop.step]
        out = console()
        process = f", in the process {step.file.process}" if step.file.process else ""
        self._say(f"step {stop.step} ({self._steps.position(stop.step) + 1} of {len(self._steps)}){process}")
        out.print(line_of(step, out.width), no_wrap=True, overflow="ellipsis")

    def _show_frame(self) -> None:
        frame = self._at.frames[self._frame]
        text = linecache.getline(frame.file, frame.line).strip()
        self._say(f"> {frame.file}({frame.line}){frame.function}()")
        self._say(f"-> {text}")

    def _show_end(self) -> None:
        if self.replay.left:
            self._say("the replay was left in pdb; `goto N`, `first` or `last` starts it again")
        else:
            self._say(f"the replay has ended (exit code {self.replay.status}); `back` goes to its last step")

    @property
    def _at(self) -> Stop:
        if self.replay.at is None:
            raise RunStateError(
                "the replay does not stand at a step", next_action="`goto N`, `first` or `last` goes to one"
            )
        return self.replay.at

    @property
    def _position(self) -> int:
        """Return its position among the steps of the run; -1 before the start, past the last one after the end."""
        if self.replay.at is not None:
            return self._steps.position(self.replay.at.step)
        return -1 if self.replay.status is None else len(self._steps)

    @property
    def _step(self) -> StepView:
        return self._steps[self._at.step]

    # -- going -----------------------------------------------------------------------------------------------------------

    def goto(self, place: StepPlace | None) -> None:
        """Go to a step, or (``None``) to the end, and show it."""
        self._arrive(self.replay.go(place))

    def _go_to_first(self, found: Iterator[StepView], none: str, *, skip: int = 0) -> None:
        steps = [step for step, _ in zip(found, range(skip + 1), strict=False)]
        if not steps:
            self._say(none)
        else:
            self.goto(steps[-1].place)

    def do_step(self, arg: str) -> None:
        """step [COUNT]: go to the next step of the run, in whichever lane."""
        if self.replay.at is not None and not any(self._steps.after(self._position)):
            self.goto(None)
        else:
            self._go_to_first(self._steps.after(self._position), "there is no later step", skip=_count(arg))

    def do_next(self, arg: str) -> None:
        """next [COUNT]: go to the next step of this lane (thread, task)."""
        here = None if self.replay.at is None else self._step
        if here is not None and not any(self._steps.after(self._position, here)):
            if any(self._steps.after(self._position)):
                self._say("this lane has no later step: `step` goes to the next one of the run")
                return
            self.goto(None)
        else:
            self._go_to_first(self._steps.after(self._position, here), "there is no later step", skip=_count(arg))

    def do_back(self, arg: str) -> None:
        """back [COUNT]: go to the step before this one, in whichever lane."""
        self._go_to_first(self._steps.before(self._position), "this is the first step", skip=_count(arg))

    def do_reverse_next(self, arg: str) -> None:
        """reverse-next [COUNT]: go to the step before this one in this lane."""
        here = None if self.replay.at is None else self._step
        self._go_to_first(self._steps.before(self._position, here), "this lane has no earlier step", skip=_count(arg))

    def do_goto(self, arg: str) -> None:
        """goto N: go to step N, forwards or back."""
        self.goto(self._steps.place(arg.strip()))

    def do_first(self, arg: str) -> None:
        """first: go to the first step of the run."""
        self.goto(self._steps.places[0])

    def do_last(self, arg: str) -> None:
        """last: go to the last step of the run."""
        self.goto(self._steps.places[-1])

    def do_until(self, arg: str) -> None:
        """until CONDITION: go to the next step for which this holds; see `help conditions`."""
        if (wanted := self._condition(arg)) is not None:
            found = (step for step in self._steps.after(self._position) if wanted.holds(step))
            self._go_to_first(found, f"no later step has {wanted.text}")

    def do_reverse_until(self, arg: str) -> None:
        """reverse-until CONDITION: go back to the nearest step for which this holds."""
        if (wanted := self._condition(arg)) is not None:
            found = (step for step in self._steps.before(self._position) if wanted.holds(step))
            self._go_to_first(found, f"no earlier step has {wanted.text}")

    def do_break(self, arg: str) -> None:
        """break [CONDITION]: `continue` and `reverse-continue` stop where this holds; without one, list them."""
        if not arg:
            for number, one in enumerate(self._breaks, 1):
                self._say(f"{number} {one.text}")
        elif (wanted := self._condition(arg)) is not None:
            self._breaks.append(wanted)

    def do_clear(self, arg: str) -> None:
        """clear [NUMBER]: remove one breakpoint, or all."""
        number = int(arg) if arg.strip().isdigit() else 0
        if not arg:
            self._breaks.clear()
        elif 1 <= number <= len(self._breaks):
            del self._breaks[number - 1]
        else:
            self._say(f"there is no breakpoint {arg}: `break` lists them")

    def do_continue(self, arg: str) -> None:
        """continue: go on to the next breakpoint, or to the end of the run."""
        if self.replay.at is None and self.replay.status is not None:
            self._say("the replay is at its end; `back` goes to its last step")
            return
        found = next((step for step in self._steps.after(self._position) if self._breaks_at(step)), None)
        self.goto(None if found is None else found.place)

    def do_reverse_continue(self, arg: str) -> None:
        """reverse-continue: go back to the breakpoint before this, or to the first step."""
        found = next((step for step in self._steps.before(self._position) if self._breaks_at(step)), None)
        self.goto(self._steps.places[0] if found is None else found.place)

    def _breaks_at(self, step: StepView) -> bool:
        return any(one.holds(step) for one in self._breaks)

    def _condition(self, text: str) -> Condition | None:
        try:
            return self._steps.condition(text)
        except TracekitError as error:
            self._say(f"{error.what}; {error.next_action}")
            return None

    # -- looking ---------------------------------------------------------------------------------------------------------

    def do_input(self, arg: str) -> None:
        """input [N]: the input of this step, or of step N."""
        print_input(console(), self._chosen(arg))

    def do_answer(self, arg: str) -> None:
        """answer [N]: the recorded outcome of this step, or of step N; the replay gives it to the program next."""
        print_answer(console(), self._chosen(arg))

    def _chosen(self, arg: str) -> StepView:
        return self._steps[self._steps.place(arg.strip())] if arg.strip() else self._step

    def do_steps(self, arg: str) -> None:
        """steps [COUNT]: the steps around this one."""
        count, here = _count(arg) or 5, self._position
        out = console()
        before, after = [*self._steps.before(here)][:count], [*self._steps.after(here)][:count]
        now = [] if self.replay.at is None else [self._step]
        for step in (*before[::-1], *now, *after):
            self._print("-> " if self._steps.position(step.place) == here else "   ")
            out.print(line_of(step, out.width - 3), no_wrap=True, overflow="ellipsis")

    def do_where(self, arg: str) -> None:
        """where: the lines of your program that led to this step, innermost last, and the threads or tasks that wait for it."""
        for number, frame in reversed([*enumerate(self._at.frames)]):
            mark = ">" if number == self._frame else " "
            waits = "" if frame.own else f"  [{frame.lane.rpartition('/')[2] or 'main'}]"
            self._say(f"{mark} {number} {frame.file}({frame.line}){frame.function}(){waits}")
            self._say(f"      {linecache.getline(frame.file, frame.line).strip()}")

    def do_up(self, arg: str) -> None:
        """up [COUNT]: select the line that called this one."""
        self._move(_count(arg) + 1)

    def do_down(self, arg: str) -> None:
        """down [COUNT]: select the line that this one called."""
        self._move(-_count(arg) - 1)

    def _move(self, count: int) -> None:
        to = min(max(0, self._frame + count), len(self._at.frames) - 1)
        if to == self._frame:
            self._say("there is no line further out" if count > 0 else "this is the innermost line")
        else:
            self._frame, self._listed = to, 0
            self._show_frame()

    def do_list(self, arg: str) -> None:
        """list: the source around this line; repeated, the lines that follow."""
        if not self._at.frames:
            return
        frame = self._at.frames[self._frame]
        first = self._listed or max(1, frame.line - 5)
        lines = linecache.getlines(frame.file)
        for number, text in enumerate(lines[first - 1 : first + 10], first):
            self._say(f"{number:4} {'->' if number == frame.line else '  '} {text.rstrip()}")
        self._listed = first + 11

    def do_p(self, arg: str) -> None:
        """p EXPRESSION: evaluate it in this line. It may call functions; nothing reaches the outside world."""
        self._evaluate(arg, pretty=False)

    def do_pp(self, arg: str) -> None:
        """pp EXPRESSION: the same, printed over several lines."""
        self._evaluate(arg, pretty=True)

    def onecmd(self, line: str) -> bool:
        """Execute a command, however it is spelled; return whether it ends the debugger."""
        name, _, rest = line.strip().partition(" ")
        known = _spelled(name)
        return super().onecmd(line if known is None else f"{known} {rest}")

    def default(self, line: str) -> None:
        """Execute anything that is not a command as a Python statement in this line."""
        self._evaluate(line.removeprefix("!"), pretty=False)

    def _evaluate(self, text: str, *, pretty: bool) -> None:
        _ = self._at
        found = self.replay.ask(do="evaluate", frame=self._frame, text=text, pretty=pretty)
        if found["text"]:
            self._say(f"*** {found['text']}" if found["failed"] else found["text"])

    def do_vars(self, arg: str) -> None:
        """vars: the variables of this line."""
        if self._at.frames:
            found = self.replay.ask(do="variables", frame=self._frame, scope="locals")
            for one in found["variables"]:
                self._say(f"{one['name']} = {one['text']}")

    # -- line by line, and what-if ---------------------------------------------------------------------------------------

    def do_pdb(self, arg: str) -> None:
        """pdb: step line by line in pdb from here. Its `c` continues to the next step and returns to this prompt."""
        if not self._at.frames:
            self._say("there is no line of your program here")
            return
        before = self._at
        stop = self.replay.lines(self._frame)
        if stop is not before:
            self._arrive(stop)

    def do_what_if(self, arg: str) -> None:
        """what-if KIND[:NAME][=MODEL]…: from here on, let llm, tool or http calls go live, or those of one name; this writes a new run."""
        try:
            kinds = kinds_that_go_live(live_kinds(shlex.split(arg) or ("llm",)))
        except ValueError as error:
            self._say(f"{error}")
            return
        since = self._at.step
        self.replay.branch(kinds, since)
        self._tried, self.replay.status = self.replay.status, None
        self._say(f"`tracekit diff {self._steps.view.run_id} last` shows its outcome; `goto {since}` goes back to here")

    # -- the end ---------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> int | None:
        """The exit code of the last replay that reached its end, be it a what-if; ``None`` if none has."""
        return self._tried if self.replay.status is None else self.replay.status

    def do_quit(self, arg: str) -> bool:
        """quit: end the replay and leave."""
        return True

    def emptyline(self) -> bool:
        return False

    def do_help(self, arg: str) -> None:
        """help [COMMAND]: list the commands, or explain one."""
        if arg.strip() == "conditions":
            self._say(_CONDITIONS)
            return
        name = _spelled(arg.strip()) or arg.strip().replace("-", "_")
        found = getattr(self, f"do_{name}", None)
        if arg.strip():
            self._say(found.__doc__ if found is not None else f"there is no command {arg.strip()}")
            return
        for group, names in _COMMANDS.items():
            self._say(f"{group}:")
            for one in names:
                usage, _, text = (getattr(self, f"do_{one.replace('-', '_')}").__doc__ or "").partition(": ")
                short = ", ".join(key for key, known in _SHORT.items() if known == one)
                self._say(f"  {usage:<29} {short:<19} {text}".rstrip())

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        return [name for names in _COMMANDS.values() for name in names if name.startswith(text)]

    def complete_goto(self, text: str, *ignored: Any) -> list[str]:
        return [str(place) for place in self._steps.places if str(place).startswith(text)]

    def complete_until(self, text: str, *ignored: Any) -> list[str]:
        kinds = {f"{step.kind}:{step.name}" for step in map(self._steps.__getitem__, self._steps.places)}
        return sorted(one for one in {*_NAMES, *kinds} if one.startswith(text))

    complete_break = complete_reverse_until = complete_until


_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "go": ("step", "next", "back", "reverse-next", "goto", "first", "last", "until", "reverse-until"),
    "breakpoints": ("break", "clear", "continue", "reverse-continue"),
    "look at the step": ("input", "answer", "steps"),
    "look at the program": ("where", "up", "down", "list", "p", "pp", "vars", "pdb"),
    "and": ("what-if", "help", "quit"),
}
_SHORT: Final[Mapping[str, str]] = {
    "s": "step",
    "n": "next",
    "b": "back",
    "rs": "back",
    "rn": "reverse-next",
    "g": "goto",
    "u": "up",
    "d": "down",
    "c": "continue",
    "rc": "reverse-continue",
    "i": "input",
    "a": "answer",
    "w": "where",
    "bt": "where",
    "l": "list",
    "h": "help",
    "q": "quit",
    "reverse-step": "back",
    "exit": "quit",
}
_CONDITIONS: Final = f"""A condition is a step's number (12), a kind (tool, llm, http, decision, error), a kind with a name
(tool:send), or an expression of Python over {", ".join(_NAMES)}:
  until failed
  until name == "send" and input["amount"] > 100
  break "refund" in requested"""


def _spelled(name: str) -> str | None:
    """Return the method's name of a command that is abbreviated, or written with a hyphen."""
    whole = _SHORT.get(name, name)
    known = any(whole in names for names in _COMMANDS.values())
    return whole.replace("-", "_") if known and whole.replace("-", "_") != name else None


def _count(arg: str) -> int:
    """Return how many more than one."""
    return max(0, int(arg) - 1) if arg.strip().isdigit() else 0


# -- the command -------------------------------------------------------------------------------------------------------


def interact(found: Prepared, at: str | int | None) -> NoReturn:
    """Debug a prepared replay at the prompt, beginning at a step (``None``: the first one), and exit."""
    try:
        with read(found.path, found.store) as view:
            steps = Steps(view)
            shell = Shell(found, steps)
            try:
                shell.goto(steps.places[0] if at is None else steps.place(at))
                shell.cmdloop()
            finally:
                shell.close()
    except TracekitError as error:
        fail(error)
    if shell.status is None:
        click.echo("tracekit: the replay was left in the debugger", err=True)
    sys.exit(DIFFERENT if shell.status is None else shell.status)


@click.command(context_settings={"allow_interspersed_args": True})
@of_a_replay
@click.option(
    "--at",
    metavar="STEP",
    shell_complete=complete_in_run("step"),
    help="Begin at this step (in a child process: SEGMENT:STEP); by default at the first.",
)
def debug(run: str, command: tuple[str, ...], store: str | None, at: str | None, **options: Any) -> None:
    """Step forward and back through RUN, in the lines of your program that made the steps.

    The program runs again, answered from the trace, and stops at a step: look at its input, its answer and the variables of your
    code, go on, go back, run to the first step that meets a condition, let it go live from there. `help` at the prompt lists the
    commands. They are read from standard input and can be piped in. Exit codes: those of tracekit replay for the last replay, or
    what-if, that came to its end; 1 if you quit before any did.

    \b
    Examples:
      tracekit debug last
      tracekit debug last --at 9  # stop at the step that `show` calls 9
      tracekit debug last --at worker#1:4  # at one of a child process
      printf 'until name == "send"\\np body\\n' | tracekit debug last
    """
    try:
        found = prepared(run, command, store, "debug", {**options, "live": ()})
    except TracekitError as error:
        fail(error)
    interact(found, at)
