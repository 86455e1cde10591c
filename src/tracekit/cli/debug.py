"""``tracekit debug``: back and forth through the steps of a recorded run, in the lines of the program that made them.

The program is replayed in a child process that stops where it should (``_runs.debugging``); going back starts it anew, up to the step.
``DebuggedReplay`` is that process as whoever debugs it sees it, ``Shell`` the prompt.
"""

from __future__ import annotations

import cmd
import json
import linecache
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, Any, Final, NamedTuple, NoReturn

import click

from .._journal.entry import FAMILIES, SINGLES
from .._journal.store import shown_as
from .._runs.reading import FileView, RunView, StepView, plain
from .._runs.replaying import kinds_that_go_live
from .._runs.wording import plural
from ..errors import RunStateError, TracekitError
from .output import DIFFERENT, console, fail, message, printable, read
from .replay import Prepared, live_kinds, of_a_replay, prepared, started
from .show import line_of, print_answer, print_input

__all__ = ["Condition", "DebuggedReplay", "Frame", "GoneError", "Line", "Steps", "Stop", "Streams", "debug", "interact"]


# -- steps -------------------------------------------------------------------------------------------------------------


class Steps:
    """The steps of a recorded run at which its replay can stop, by their numbers: those that the program makes itself.

    ``RunStateError`` where there is none.
    """

    def __init__(self, view: RunView) -> None:
        self.view: Final = view
        self._steps: Final = {step.seq: step for step in view.own.steps.values() if self._is_made(step)}
        self.numbers: Final = sorted(self._steps)
        if not self.numbers:
            raise RunStateError(
                f"{shown_as(view.path)} has no step at which its replay could stop",
                next_action="its steps were made by processes that it started, which are answered from the trace"
                if len(view.files) > 1
                else "`tracekit show RUN --all` shows what it has",
            )

    def _is_made(self, step: StepView) -> bool:
        return _stops(step) and self._around(step) is None

    def _around(self, step: StepView | None) -> StepView | None:
        """The step in whose course this one happened, where a replay answers that without its body."""
        found = None
        while step is not None and step.parent:
            step = self.view.own.steps.get(step.parent)
            if step is not None and step.kind in FAMILIES and step.kind != "span":
                found = step
        return found

    def __getitem__(self, number: int) -> StepView:
        return self._steps[number]

    def get(self, number: int) -> StepView | None:
        return self._steps.get(number)

    def __len__(self) -> int:
        return len(self.numbers)

    def number(self, text: str | int) -> int:
        """A step's number as somebody gives it; ``RunStateError`` unless the replay can stop there."""
        segment, colon, of_segment = str(text).strip().partition(":")
        if colon and of_segment.isdigit():
            self._refuse_elsewhere(segment, int(of_segment))
        number = int(text) if str(text).isdigit() else 0
        if number in self._steps:
            return number
        own = self.view.own
        begun, known = own.steps.get(number), own.step_at(number)
        around = self._around(begun)
        hint = "`tracekit show RUN` shows the number of each step"
        if around is not None and begun is not None:
            what = f"step {number} happened inside step {around.seq} ({around.kind} {around.name}), whose body a replay does not run"
            hint = f"stop at step {around.seq}"
        else:
            there = 1 <= number <= own.found.count
            kind = f"is a {own.trace.entry(number)['type']}" if there else "is not there"
            what = f"no step begins there; entry {text} {kind}"
            if begun is None and known is not None and known.seq in self._steps:
                what, hint = f"{what}, which belongs to step {known.seq}", f"stop at step {known.seq}"
        raise RunStateError(what, run_id=self.view.run_id, next_action=hint)

    @cached_property
    def elsewhere(self) -> list[StepView]:
        """The steps that child processes make, which the debugger does not enter."""
        return [step for file in self.view.files[1:] for step in file.steps.values() if _stops(step)]

    def _refuse_elsewhere(self, segment: str, number: int) -> NoReturn:
        """Say why a step of a child process, as ``show`` names it, is none to stop at."""
        for step in self.elsewhere:
            if step.seq == number and str(step.file.segment).startswith(segment):
                raise self._is_elsewhere(step)
        raise RunStateError(
            f"no child process of this run has a step {segment}:{number}",
            run_id=self.view.run_id,
            next_action="`tracekit show RUN` lists those of each",
        )

    def _is_elsewhere(self, step: StepView) -> RunStateError:
        file, began = step.file, self._began(step.file)
        place = f"{file.segment}:{step.seq}"
        shown = f"`tracekit show {shown_as(self.view.path)} {place}` shows that step"
        before = max((one for one in self.numbers if one <= began), default=None)
        return RunStateError(
            f"step {place} ({step.kind} {step.name}) is made by a child process ({file.first.get('name')}), "
            "and the debugger stops in the program's own process alone",
            run_id=self.view.run_id,
            next_action=shown
            if before is None
            else f"stop at step {before}, the last one before that process began; {shown}",
        )

    def _began(self, file: FileView) -> int:
        """Up to which entry of the program's own process a child process had not begun."""
        causes = [one for one in file.first.get("cause") or () if isinstance(one, Mapping)]
        cause = causes[0] if causes else {}
        above = next((one for one in self.view.files[1:] if one.segment == cause.get("segment")), None)
        if above is not None and above is not file:
            return self._began(above)
        seq = cause.get("seq")
        return seq if type(seq) is int else 0

    def after(self, number: int, lane: int | None = None) -> Iterator[StepView]:
        """The steps after ``number``, the nearest first; those of one lane."""
        return self._of(self.numbers[bisect_right(self.numbers, number) :], lane)

    def before(self, number: int, lane: int | None = None) -> Iterator[StepView]:
        """The steps before ``number``, the nearest first; those of one lane."""
        return self._of(self.numbers[: bisect_left(self.numbers, number)][::-1], lane)

    def _of(self, numbers: Sequence[int], lane: int | None) -> Iterator[StepView]:
        for number in numbers:
            if lane is None or self._steps[number].lane_number == lane:
                yield self._steps[number]

    def condition(self, text: str) -> Condition:
        """What somebody looks for in them; ``RunStateError`` for what none of them could ever be."""
        try:
            found = Condition(text)
        except (SyntaxError, NameError, ValueError) as error:
            raise RunStateError(f"{error}", next_action="see `help conditions` in tracekit debug") from error
        if found.text.isdigit():
            self.number(found.text)
        elif found.word is not None and not any(found.holds(step) for step in self._steps.values()):
            named = Condition(f"name == {found.word!r}")
            if any(named.holds(step) for step in self._steps.values()):
                return named
            for step in self.elsewhere:
                if found.holds(step) or named.holds(step):
                    raise self._is_elsewhere(step)
            there = sorted({f"{step.kind}:{step.name}" for step in self._steps.values()})
            raise RunStateError(
                f"no step of this run is {found.word}",
                next_action=f"there are {', '.join(there[:10])}{' …' if len(there) > 10 else ''}",
            )
        return found


def _stops(step: StepView) -> bool:
    return step.type in SINGLES or (step.kind in FAMILIES and step.kind != "pipe")


#: What a condition can ask of a step.
_NAMES: Final[Mapping[str, Callable[[StepView], Any]]] = {
    "step": lambda step: step.seq,
    "kind": lambda step: step.kind,
    "name": lambda step: step.name,
    "lane": lambda step: step.lane.path,
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
#: ``tool``, ``tool:search``: a kind of step, and one name of it.
_KIND: Final = re.compile(r"(?P<kind>[a-z_]+(?:\.[a-z_]+)?)(?::(?P<name>[^\s'\"()=<>]+))?$")


def _counts(step: StepView) -> list[int]:
    found = {} if step.call is None else step.call.usage
    return [found[key] for key in ("input_tokens", "output_tokens") if type(found.get(key)) is int]


class _Facts(Mapping[str, Any]):
    """What a condition can ask, each looked up when it is."""

    def __init__(self, step: StepView) -> None:
        self._step: Final = step

    def __getitem__(self, name: str) -> Any:
        return _NAMES[name](self._step)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


class Condition:
    """What somebody looks for in the steps of a run: ``12``, ``tool:send``, ``failed``, or a Python expression over ``_NAMES``.

    ``SyntaxError`` or ``NameError`` for one that is none of these.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text.strip()
        self._kind: Final = None if self.text in _NAMES else _KIND.match(self.text)
        #: The kind of step, with or without a name, that it is.
        self.word: Final = None if self._kind is None else self.text
        self._code: Final = None if self._kind else compile(self.text, "<condition>", "eval")
        unknown = set(() if self._code is None else self._code.co_names) - {*_NAMES, *dir(__builtins__), *dir(str)}
        if unknown - {*dir(dict), *dir(list)}:
            raise NameError(f"{', '.join(sorted(unknown))}: a condition knows {', '.join(_NAMES)}")

    def holds(self, step: StepView) -> bool:
        if self._kind is not None:
            return step.is_a(self._kind["kind"]) and self._kind["name"] in (None, step.name)
        if self.text.isdigit():
            return step.seq == int(self.text)
        assert self._code is not None
        try:
            return bool(eval(self._code, {}, _Facts(step)))
        except Exception:  # of another kind of step, which has nothing of the sort
            return False


# -- the replayed process ----------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A line of the program; ``own``: it is of the thread or task that makes the step, else of the one that waits for that."""

    file: str
    line: int
    function: str
    lane: str
    own: bool


class Stop(NamedTuple):
    """The replay stands still: at which step (or ``after`` it, between two), in which lane, and in which lines, the innermost first."""

    step: int
    after: bool
    lane: str
    frames: tuple[Frame, ...]


#: A line of the program: its file, and its number.
Line = tuple[str, int]


class GoneError(Exception):
    """The replayed process has ended."""


class Streams(NamedTuple):
    """Where an editor has what the program prints: two descriptors."""

    stdout: int
    stderr: int


class DebuggedReplay:
    """The process in which the run is replayed. ``at`` is where it stands still; ``None`` before the start, and after the end.

    At a prompt ``ask`` is called where ``pdb`` wants a line (``None``: there are no more), ``write`` with what it prints. An editor has
    ``streams``, and goes line by line in ``debugpy``.
    """

    def __init__(
        self,
        found: Prepared,
        ask: Callable[[], str | None],
        write: Callable[[str], object],
        streams: Streams | None = None,
    ) -> None:
        self._found: Final = found
        self._ask: Final = ask
        self._write: Final = write
        self._streams: Final = streams
        #: For an editor: the line that each step was made from, as far as the replay has come to it.
        self.lines_of: Final[dict[int, Line]] = {}
        #: The step that was made last.
        self.last = 0
        #: Connected to ``debugpy`` in the process, once that was asked to.
        self.socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: IO[bytes] | None = None
        self._events: IO[bytes] | None = None
        self._sink: IO[bytes] | None = None
        self.at: Stop | None = None
        #: The furthest step that was seen: what the program prints up to there is not shown again.
        self._seen = 0
        self._killed = self._over = False
        self._changing: Final = threading.Lock()
        #: The exit code of the last replay that came to its end.
        self.status: int | None = None

    @property
    def directory(self) -> str:
        """The directory in which the program runs."""
        return self._found.cwd

    # -- running ---------------------------------------------------------------------------------------------------------

    def go(self, to: int | None, lines: Iterable[Line] = ()) -> Stop | None:
        """Run to step ``to``, anew where that lies behind; ``None``: to the end. Returns where it stands still, ``None`` at the end.

        On the way it stops at each step that is made from one of these ``lines``.
        """
        wanted = sorted(lines)
        if self.at is None or (to is not None and to <= self.at.step):
            return self._start(to, self._hidden(to), wanted)
        self._send(do="run", to=to, lines=wanted)
        self.at = None
        event = self._next()
        if event is not None and event["event"] == "passed":  # by another thread, which was quicker this time
            return self._start(to, self._hidden(to))
        return self._stopped(event)

    def lines(self, frame: int) -> Stop | None:
        """``pdb`` in this frame; returns where the replay stands still once that was left."""
        before = self.at
        self._send(do="lines", frame=frame)
        self.at = None
        event = self._next()
        if event is not None and event["event"] == "looked":
            self.at = before
            return before
        return self._stopped(event)

    def trace(self, frame: int) -> Stop | None:
        """Let ``debugpy``, which was connected before, stop in this frame; returns where the replay stands still at a step again."""
        self._send(do="trace", frame=frame)
        self.at = None
        return self._stopped(self._next())

    def _hidden(self, to: int | None) -> int:
        """The step up to which what the program prints was shown before."""
        if to is None:
            return 0 if self._seen == sys.maxsize else self._seen
        return min(to, self._seen)

    def branch(self, live: Mapping[str, Any], since: int) -> Stop | None:
        """Replay the run to its end with these kinds of steps live from step ``since`` on, which writes a new run."""
        options = {**self._found.instructions["options"], "live": dict(live)}
        return self._start(None, since, options=options, live_from=since)

    def _start(self, to: int | None, hidden: int, lines: Sequence[Line] = (), **instructions: Any) -> Stop | None:
        self.close()
        self.last, self._killed = 0, False
        sink = self._sink = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        asked, ours = os.pipe()
        theirs, answers = os.pipe()
        self._asked, self._events = os.fdopen(ours, "wb", buffering=0), os.fdopen(theirs, "rb")
        pipes = {"asked": asked, "answers": answers, "sink": sink.fileno()}
        far: socket.socket | None = None
        if self._streams is not None:
            self.socket, far = socket.socketpair()
            pipes["debugpy"] = far.fileno()
        whole = {
            **self._found.instructions,
            **instructions,
            "debugger": {"debugpy": None, **pipes, "to": to, "lines": lines, "hidden": hidden or None},
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
        self._seen = max(self._seen, self.at.step)
        return self.at

    def _next(self) -> dict[str, Any] | None:
        """What the process says next, apart from what ``pdb`` does there; ``None``: it has ended."""
        assert self._events is not None
        while True:
            line = self._events.readline()
            if not line.endswith(b"\n"):
                self._ended()
                return None
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "made":
                self.last = event["step"]
                if event["line"] is not None:
                    self.lines_of[self.last] = (event["line"][0], event["line"][1])
            elif event["event"] == "output":
                self._write(event["text"])
            elif event["event"] == "prompt":
                self._send(line=self._ask() or "")
            else:
                return event

    def _ended(self) -> None:
        assert self._process is not None
        assert self._sink is not None
        self.at = None
        status = self._process.wait()
        if self._killed:
            return
        self.status, self._seen = status, sys.maxsize
        self._sink.seek(0)
        hidden = self._sink.read()  # nothing, unless it ended before it came to where it was to be shown: this says why
        if self._streams is not None:
            os.write(self._streams.stderr, hidden)
            return
        sys.stderr.flush()
        sys.stderr.buffer.write(hidden)
        sys.stderr.buffer.flush()

    # -- asking ----------------------------------------------------------------------------------------------------------

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask the process while it stands still; ``GoneError`` where it has ended."""
        self._send(**question)
        answer = self._next()
        if answer is None:
            raise GoneError
        return answer

    def _send(self, **what: Any) -> None:
        assert self._asked is not None
        with suppress(BrokenPipeError):  # it has ended, as the other pipe says
            self._asked.write(json.dumps(what).encode() + b"\n")

    # -- the end ---------------------------------------------------------------------------------------------------------

    def kill(self, *, for_good: bool = False) -> None:
        """End the process, and what it has started, also from another thread: whoever waits for it there sees its end.

        ``for_good``: and no other one is started.
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
        self._process, self.at = None, None
        for file in (self._asked, self._events, self._sink, self.socket):
            if file is not None:
                with suppress(OSError):
                    file.close()


# -- the prompt --------------------------------------------------------------------------------------------------------


class Shell(cmd.Cmd):
    """The prompt of ``tracekit debug``: each ``do_NAME`` is a command."""

    prompt = "(debug) "

    def __init__(self, found: Prepared, steps: Steps) -> None:
        super().__init__()
        self._interactive: Final = sys.stdin.isatty() and sys.stdout.isatty()
        self.use_rawinput = self._interactive
        if not self._interactive:
            # Unbuffered: what `pdb` is to read must not be taken before.
            self._lines: Final = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
        self._steps: Final = steps
        self.replay: Final = DebuggedReplay(found, self._line_for_pdb, self._print)
        self._breaks: list[Condition] = []
        self._frame = 0
        self._listed = 0

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
        sys.stdout.write("".join(map(printable, text.splitlines(keepends=True))) if not text.isascii() else text)
        sys.stdout.flush()

    def _say(self, text: str) -> None:
        self._print(f"{text}\n")

    def close(self) -> None:
        """End the replay. Idempotent."""
        self.replay.close()
        if not self._interactive:
            self._lines.close()

    def cmdloop(self, intro: object = None) -> None:
        """Read and do commands until one of them ends it."""
        with self._completed():
            while self._do_next():
                pass

    @contextmanager
    def _completed(self) -> Iterator[None]:
        """A block in which Tab completes what is typed, where there is a terminal and the library for it."""
        try:
            if not self._interactive:
                raise ImportError
            import readline
        except ImportError:
            yield
            return
        before, delimiters = readline.get_completer(), readline.get_completer_delims()
        readline.set_completer(self.complete)  # type: ignore[arg-type]  # as cmd.Cmd does; typeshed has it one way only
        readline.set_completer_delims(" \t\n")  # not `-` and `:`, which are within commands and conditions
        readline.parse_and_bind("tab: complete")
        try:
            yield
        finally:
            readline.set_completer(before)
            readline.set_completer_delims(delimiters)

    def _do_next(self) -> bool:
        """Read and do a command; says whether another is to be read."""
        try:
            line = self._read(self.prompt)
        except KeyboardInterrupt:  # of what was typed
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
            self._say("\ninterrupted; the replay was ended: `goto N` starts it anew")
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
        number = self._steps.numbers.index(stop.step) + 1
        self._say(f"step {stop.step} ({number} of {len(self._steps)})")
        out.print(line_of(step, out.width), no_wrap=True, overflow="ellipsis")

    def _show_frame(self) -> None:
        frame = self._at.frames[self._frame]
        text = linecache.getline(frame.file, frame.line).strip()
        self._say(f"> {frame.file}({frame.line}){frame.function}()")
        self._say(f"-> {text}")

    def _show_end(self) -> None:
        self._say(f"the replay has come to its end (exit code {self.replay.status}); `back` goes to its last step")

    @property
    def _at(self) -> Stop:
        if self.replay.at is None:
            raise RunStateError(
                "the replay does not stand at a step", next_action="`goto N`, `first` or `last` goes to one"
            )
        return self.replay.at

    @property
    def _number(self) -> int:
        """The number of the step at which it stands; past the last one after the end."""
        if self.replay.at is not None:
            return self.replay.at.step
        return 0 if self.replay.status is None else self._steps.numbers[-1] + 1

    @property
    def _step(self) -> StepView:
        return self._steps[self._at.step]

    # -- going -----------------------------------------------------------------------------------------------------------

    def goto(self, number: int | None) -> None:
        """Go to a step, or (``None``) to the end, and show it."""
        self._arrive(self.replay.go(number))

    def _go_to_first(self, found: Iterator[StepView], none: str, *, skip: int = 0) -> None:
        steps = [step for step, _ in zip(found, range(skip + 1), strict=False)]
        if not steps:
            self._say(none)
        else:
            self.goto(steps[-1].seq)

    def do_step(self, arg: str) -> None:
        """step [COUNT]: go to the next step of the run, in whichever lane."""
        if self.replay.at is not None and not any(self._steps.after(self._number)):
            self.goto(None)
        else:
            self._go_to_first(self._steps.after(self._number), "there is no later step", skip=_count(arg))

    def do_next(self, arg: str) -> None:
        """next [COUNT]: go to the next step of this lane (thread, task)."""
        lane = None if self.replay.at is None else self._step.lane_number
        if self.replay.at is not None and not any(self._steps.after(self._number, lane)):
            if any(self._steps.after(self._number)):
                self._say("this lane has no later step: `step` goes to the next one of the run")
                return
            self.goto(None)
        else:
            self._go_to_first(self._steps.after(self._number, lane), "there is no later step", skip=_count(arg))

    def do_back(self, arg: str) -> None:
        """back [COUNT]: go to the step before this one, in whichever lane."""
        self._go_to_first(self._steps.before(self._number), "this is the first step", skip=_count(arg))

    def do_reverse_next(self, arg: str) -> None:
        """reverse-next [COUNT]: go to the step before this one in this lane."""
        lane = None if self.replay.at is None else self._step.lane_number
        self._go_to_first(self._steps.before(self._number, lane), "this lane has no earlier step", skip=_count(arg))

    def do_goto(self, arg: str) -> None:
        """goto N: go to step N, forwards or back."""
        self.goto(self._steps.number(arg.strip()))

    def do_first(self, arg: str) -> None:
        """first: go to the first step of the run."""
        self.goto(self._steps.numbers[0])

    def do_last(self, arg: str) -> None:
        """last: go to the last step of the run."""
        self.goto(self._steps.numbers[-1])

    def do_until(self, arg: str) -> None:
        """until CONDITION: go to the next step for which this holds; see `help conditions`."""
        if (wanted := self._condition(arg)) is not None:
            found = (step for step in self._steps.after(self._number) if wanted.holds(step))
            self._go_to_first(found, f"no later step has {wanted.text}")

    def do_reverse_until(self, arg: str) -> None:
        """reverse-until CONDITION: go back to the nearest step for which this holds."""
        if (wanted := self._condition(arg)) is not None:
            found = (step for step in self._steps.before(self._number) if wanted.holds(step))
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
        found = next((step for step in self._steps.after(self._number) if self._breaks_at(step)), None)
        self.goto(None if found is None else found.seq)

    def do_reverse_continue(self, arg: str) -> None:
        """reverse-continue: go back to the breakpoint before this, or to the first step."""
        found = next((step for step in self._steps.before(self._number) if self._breaks_at(step)), None)
        self.goto(self._steps.numbers[0] if found is None else found.seq)

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
        """input [N]: what this step, or step N, was given."""
        print_input(console(), self._chosen(arg))

    def do_answer(self, arg: str) -> None:
        """answer [N]: what came of this step, or of step N, in the recording; the replay gives it to the program next."""
        print_answer(console(), self._chosen(arg))

    def _chosen(self, arg: str) -> StepView:
        return self._steps[self._steps.number(arg.strip())] if arg.strip() else self._step

    def do_steps(self, arg: str) -> None:
        """steps [COUNT]: the steps around this one."""
        count, here = _count(arg) or 5, self._number
        out = console()
        before, after = [*self._steps.before(here)][:count], [*self._steps.after(here)][:count]
        now = [] if self.replay.at is None else [self._step]
        for step in (*before[::-1], *now, *after):
            self._print("-> " if step.seq == here else "   ")
            out.print(line_of(step, out.width - 3), no_wrap=True, overflow="ellipsis")

    def do_where(self, arg: str) -> None:
        """where: the lines of your program that led to this step, the innermost last; a lane is named that waits for it."""
        for number, frame in reversed([*enumerate(self._at.frames)]):
            mark = ">" if number == self._frame else " "
            waits = "" if frame.own else f"  [{frame.lane.rpartition('/')[2] or 'the main line'}]"
            self._say(f"{mark} {number} {frame.file}({frame.line}){frame.function}(){waits}")
            self._say(f"      {linecache.getline(frame.file, frame.line).strip()}")

    def do_up(self, arg: str) -> None:
        """up [COUNT]: look at an outer line."""
        self._move(_count(arg) + 1)

    def do_down(self, arg: str) -> None:
        """down [COUNT]: look at an inner line."""
        self._move(-_count(arg) - 1)

    def _move(self, count: int) -> None:
        to = min(max(0, self._frame + count), len(self._at.frames) - 1)
        if to == self._frame:
            self._say("there is no line further out" if count > 0 else "this is the innermost line")
        else:
            self._frame, self._listed = to, 0
            self._show_frame()

    def do_list(self, arg: str) -> None:
        """list: the source around this line; again, what follows."""
        if not self._at.frames:
            return
        frame = self._at.frames[self._frame]
        first = self._listed or max(1, frame.line - 5)
        lines = linecache.getlines(frame.file)
        for number, text in enumerate(lines[first - 1 : first + 10], first):
            self._say(f"{number:4} {'->' if number == frame.line else '  '} {text.rstrip()}")
        self._listed = first + 11

    def do_p(self, arg: str) -> None:
        """p EXPRESSION: its value in this line. It may call what it likes, and reaches nothing live."""
        self._evaluate(arg, pretty=False)

    def do_pp(self, arg: str) -> None:
        """pp EXPRESSION: its value, over several lines."""
        self._evaluate(arg, pretty=True)

    def default(self, line: str) -> None:
        """What is no command is a statement of Python, done in this line."""
        name, _, rest = line.partition(" ")
        if (known := _spelled(name)) is not None:
            self.onecmd(f"{known} {rest}")
        else:
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
        """pdb: line by line from here, in pdb. Its `c` goes on to the next step, and comes back here."""
        if not self._at.frames:
            self._say("there is no line of your program here")
            return
        before = self._at
        stop = self.replay.lines(self._frame)
        if stop is not before:
            self._arrive(stop)

    def do_what_if(self, arg: str) -> None:
        """what-if KIND[:NAME][=MODEL]…: from here on, let llm, tool or http calls go live, or those of one name; writes a new run."""
        try:
            kinds = kinds_that_go_live(live_kinds(shlex.split(arg) or ("llm",)))
        except ValueError as error:
            self._say(f"{error}")
            return
        since = self._at.step
        self.replay.branch(kinds, since)
        self.replay.status = None
        self._say(
            f"`tracekit diff {self._steps.view.run_id} last` shows what came of it; `goto {since}` goes back to here"
        )

    # -- the end ---------------------------------------------------------------------------------------------------------

    def do_quit(self, arg: str) -> bool:
        """quit: leave, and end the replay."""
        return True

    def emptyline(self) -> bool:
        return False

    def do_help(self, arg: str) -> None:
        """help [COMMAND]: what there is, or one command of it."""
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
                self._say(f"  {usage:<26} {short:<4} {text}")

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        return [name for names in _COMMANDS.values() for name in names if name.startswith(text)]

    def complete_goto(self, text: str, *ignored: Any) -> list[str]:
        return [str(number) for number in self._steps.numbers if str(number).startswith(text)]

    def complete_until(self, text: str, *ignored: Any) -> list[str]:
        kinds = {f"{step.kind}:{step.name}" for step in map(self._steps.__getitem__, self._steps.numbers)}
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
    """The method's name of a command that is written short, or with a hyphen."""
    whole = _SHORT.get(name, name)
    known = any(whole in names for names in _COMMANDS.values())
    return whole.replace("-", "_") if known and whole.replace("-", "_") != name else None


def _count(arg: str) -> int:
    """How many more than one."""
    return max(0, int(arg) - 1) if arg.strip().isdigit() else 0


# -- the command -------------------------------------------------------------------------------------------------------


def interact(found: Prepared, at: str | int | None) -> NoReturn:
    """Debug a prepared replay at the prompt, beginning at a step (``None``: the first one), and exit."""
    try:
        with read(found.path, found.store) as view:
            steps = Steps(view)
            if steps.elsewhere:
                processes = plural(len({one.file.segment for one in steps.elsewhere}), "child process", "es")
                made = plural(len(steps.elsewhere), "step")
                message(f"tracekit: {made} more in {processes}, where the debugger does not stop")
            shell = Shell(found, steps)
            try:
                shell.goto(steps.number(steps.numbers[0] if at is None else at))
                shell.cmdloop()
            finally:
                shell.close()
    except TracekitError as error:
        fail(error)
    if shell.replay.status is None:
        click.echo("tracekit: the replay was left in the debugger", err=True)
    sys.exit(DIFFERENT if shell.replay.status is None else shell.replay.status)


@click.command(context_settings={"allow_interspersed_args": True})
@of_a_replay
@click.option("--at", metavar="STEP", help="Begin at this step; at the first one by default.")
def debug(run: str, command: tuple[str, ...], store: str | None, at: str | None, **options: Any) -> None:
    """Go back and forth through RUN, from step to step, in the lines of your program that made them.

    The program runs again, answered from the trace, and stands still at a step: look at its input, its answer and the variables of your
    code, go on, go back, run to the first step that has what you look for, let it go live from there. `help` at the prompt lists what there
    is. Commands are read from standard input, so that they can be piped in. Exit codes: those of tracekit replay; 1 where you leave it
    before its end.

    \b
    Examples:
      tracekit debug last
      tracekit debug last --at 9  # stop at the step that `show` calls 9
      printf 'until name == "send"\\np body\\n' | tracekit debug last
    """
    try:
        found = prepared(run, command, store, "debug", {**options, "live": ()})
    except TracekitError as error:
        fail(error)
    interact(found, at)
