"""Processes that do not join a run, as steps: a replay starts nothing, and returns what they wrote and how they ended.

When a process starts, nothing tells whether it will join, so each one is a step, with what goes through its pipes. In a
replay, a process that joined has a segment, and its step is skipped.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache, wraps
from itertools import chain
from typing import Any, Final, Protocol

from .._reality import OwnLock, aside, off_loop
from .._runtime.session import Outcome, Refused, Scope, Session, Step, Timer, Unfinished, current, here, outside_the_run
from .._runtime.step import Note, Request, Spec
from .._values import to_json
from .._values.decoding import from_json
from ..errors import NotReplayableError, ReplayError, TraceExhaustedError
from .callers import by_asyncio
from .guard import Attempt, cross
from .guard import check as guard_check
from .patch import ReversiblePatch, Switch

__all__ = [
    "BECOMING",
    "HARMLESS",
    "STATUS",
    "CapturedProcess",
    "Given",
    "ProcessSteps",
    "deactivate",
    "declare_commands",
    "described",
    "forget_classes",
    "give_terminal",
    "kind_of",
    "may_join",
    "note_status",
    "output_not_kept",
    "side_effect_of",
    "stays_out",
    "terminal_opened",
]

# -- what a command does -----------------------------------------------------------------------------------------------
#
# A command counts as irreversible unless the program declares otherwise or it is in the table of read-only commands.

#: Read-only commands, word by word. ``*`` at the end: any more words, none of which names a file to write.
HARMLESS: Final = (
    "arch",
    "cat *",
    "date",
    "df *",
    "du *",
    "git --version",
    "git branch --show-current",
    "git config --get *",
    "git describe *",
    "git ls-files *",
    "git ls-remote *",
    "git remote -v",
    "git remote get-url *",
    "git rev-list *",
    "git rev-parse *",
    "git status *",
    "git version",
    "grep *",
    "head *",
    "hostname",
    "id *",
    "ls *",
    "lsb_release *",
    "nproc",
    "nvidia-smi",
    "nvidia-smi -L",
    "ps *",
    "pwd",
    "sw_vers *",
    "tail *",
    "true",
    "false",
    "uname *",
    "wc *",
    "which *",
    "whoami",
    *(f"{name} --version" for name in ("docker", "gcc", "gh", "java", "node", "npm", "pip", "python", "python3", "rg", "uv")),
)  # fmt: skip
#: By program: the words of each command, and whether more may follow.
_HARMLESS: Final[dict[str, list[tuple[list[str], bool]]]] = {}
for _line in HARMLESS:
    _known = _line.removesuffix(" *").split()
    _HARMLESS.setdefault(_known[0], []).append((_known, _line.endswith(" *")))
#: The directories of the table's programs, if a command has a path to its program.
_STANDARD: Final = frozenset(("", "/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"))
_CLASSES: Final = ("read_only", "reversible", "irreversible")
#: What the program has declared, for the whole process: pattern and class, the latest declaration first.
_declared: Final[list[tuple[str, str]]] = []


def declare_commands(classes: Mapping[str, str]) -> None:
    """Declare side-effect classes, such as ``{"git status*": "read_only"}``, ``*`` as in file names; the first match
    counts.

    Raises ``ValueError`` for an unknown class.
    """
    for pattern, side_effect in classes.items():
        if side_effect not in _CLASSES:
            raise ValueError(
                f"processes[{pattern!r}]: {side_effect!r} is not one of read_only, reversible, irreversible"
            )
    _declared[:0] = classes.items()
    _side_effect_of.cache_clear()


def forget_classes() -> None:
    _declared.clear()
    _side_effect_of.cache_clear()


def side_effect_of(words: Sequence[str], *, one_program: bool) -> tuple[str, bool]:
    """Return the side-effect class of a command, and whether anybody declared it.

    ``one_program``: the words are those of one program. For a text in which a shell finds more than that, a pattern
    must match the whole.
    """
    return _side_effect_of(tuple(words), one_program)


@lru_cache(1000)
def _side_effect_of(words: tuple[str, ...], one_program: bool) -> tuple[str, bool]:
    text = " ".join(words)
    short = " ".join([os.path.basename(words[0]), *words[1:]])
    for pattern, side_effect in _declared:
        if pattern in (text, short) or (one_program and (fnmatchcase(text, pattern) or fnmatchcase(short, pattern))):
            return side_effect, True
    return ("read_only", True) if one_program and _is_harmless(words) else ("irreversible", False)


def stays_out(words: Sequence[str], *, one_program: bool) -> bool:
    """Return whether a command is in the table and its program is not Python: it needs no ticket, since it records
    nothing itself."""
    return one_program and _is_harmless(tuple(words)) and not may_join(words)


@lru_cache(1000)
def _is_harmless(words: tuple[str, ...]) -> bool:
    return os.path.dirname(words[0]) in _STANDARD and _only_asks([os.path.basename(words[0]), *words[1:]])


def _only_asks(words: list[str]) -> bool:
    for known, more in _HARMLESS.get(words[0], ()):
        rest = words[len(known) :]
        if words[: len(known)] == known and (not rest or (more and not any(map(_may_write, rest)))):
            return True
    return False


def _may_write(word: str) -> bool:
    return word.startswith(("--output", "--exec", "--upload-pack", "--open-files", "-O", "-o"))


#: Programs that change some setting and then become the program given to them.
BECOMING: Final = frozenset(("env", "nice", "nohup", "stdbuf", "setsid", "ionice", "taskset", "chrt", "exec"))


def may_join(words: Sequence[str]) -> bool:
    """Return whether a program may join a run itself: as far as can be seen, it is a Python program."""
    name = os.path.basename(words[0])
    if name in BECOMING:
        return any(map(_is_python, words[1:]))
    return _is_python(words[0])


@lru_cache(1000)
def _is_python(program: str) -> bool:
    if os.path.basename(program).startswith("python") or program == sys.executable:
        return True
    from shutil import which

    try:
        with off_loop(), open(which(program) or program, "rb") as file:
            return b"python" in file.read(200).partition(b"\n")[0]
    except (OSError, ValueError):
        return False


#: The types of a command given as one text.
TEXTS: Final = (str, bytes, os.PathLike)
#: The arguments for the streams of a process, except for inherited ones.
_STREAMS: Final = {-1: "pipe", -2: "stdout", -3: "null"}


def described(
    session: Session, command: Any, words: Sequence[str], options: Mapping[str, Any], given: Given
) -> dict[str, Any]:
    """Return the command of a process as its step records it: words, directory, and where its streams go."""
    if type(command) is not list and isinstance(command, TEXTS):
        shown: Any = os.fsdecode(command)
    else:
        program = "python" if words[0] == sys.executable else words[0]
        shown = session.redactor.redact_argv([program, *words[1:]])
    about: dict[str, Any] = {"command": shown}
    if options.get("cwd") is not None:
        about["cwd"] = os.fsdecode(options["cwd"])
    for name in ("stdin", "stdout", "stderr"):
        value = options.get(name)
        if value is not None:
            other = "terminal" if name in given.on_terminals else "file"
            about[name] = _STREAMS.get(value, other) if isinstance(value, int) else other
    return about


class Given:
    """The descriptors that a process is given besides pipes of its own: files of the program, which go on being used."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        #: The files by the name of the stream, or the number of the descriptor.
        self._files: Final[dict[str, tuple[int, os.stat_result]]] = {}
        #: What the process may write to and is nothing that is followed otherwise: a pipe, for example.
        self.unfollowed: str | None = None
        #: The files that it may write to, by descriptor.
        self.written: Final[list[int]] = []
        #: The streams that are standard streams of this process: as if it inherited them.
        self.inherited: Final[set[str]] = set()
        #: The terminals of which this process has the other end: its descriptors, by the terminal's name.
        self.terminals: Final[dict[str, list[int]]] = {}
        #: The streams that are such terminals, and whether the process may write to one.
        self.on_terminals: Final[set[str]] = set()
        for name, value in _descriptors(options):
            number = _number(value)
            if number is None or _is_captured(value):
                continue
            about = os.fstat(number)
            if name != "stdin" and _is_standard(about):
                self.inherited.add(name)
            elif stat.S_ISREG(about.st_mode):
                self._files[name] = number, about
                if name != "stdin":
                    self.written.append(number)
            elif stat.S_ISCHR(about.st_mode) and (terminal := _other_ends(number)) is not None:
                self.terminals[terminal[0]] = terminal[1]
                self.on_terminals.add(name)
            elif name != "stdin":
                self.unfollowed = self.unfollowed or kind_of(number, about.st_mode)

    def follow(self, steps: ProcessSteps) -> str | None:
        """Make what goes through the other ends of the terminals steps of a process that is given them. Return what can't
        be followed so."""
        descriptors, writes = steps.session.state.extras.of(Descriptors), self.on_terminals != {"stdin"}
        unfollowed = None
        for at, numbers in enumerate(self.terminals.values()):
            known = descriptors.of(numbers[0])
            terminal = known if isinstance(known, _Terminal) else _Terminal(steps.session, numbers[0])
            for number in numbers:
                descriptors.add(number, terminal)
            if not terminal.given_to(steps, f"terminal {at + 1}" if at else "terminal", writes):
                unfollowed = "a terminal"
        return unfollowed

    def positions(self) -> dict[str, int]:
        """Return where the files are now, as far as they are still open."""
        found = {}
        for name, (number, about) in self._files.items():
            with suppress(OSError):
                if os.path.samestat(os.fstat(number), about):
                    found[name] = os.lseek(number, 0, os.SEEK_CUR)
        return found

    def move(self, positions: object) -> None:
        """Move the files to where the process had left them."""
        for name, to in positions.items() if isinstance(positions, dict) else ():
            number, about = self._files.get(name, (-1, None))
            with suppress(OSError, TypeError, OverflowError):
                if about is not None and os.path.samestat(os.fstat(number), about):
                    os.lseek(number, to, os.SEEK_SET)


_KINDS: Final = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def kind_of(number: int, mode: int) -> str | None:
    return "a terminal" if os.isatty(number) else _KINDS.get(stat.S_IFMT(mode))


def _other_ends(number: int) -> tuple[str, list[int]] | None:
    """Return the name of the terminal with this descriptor, and this process's descriptors of its other end; ``None`` if
    it has none, or the system does not tell."""
    try:
        name = os.ttyname(number)
        descriptors = outside_the_run(os.listdir, "/proc/self/fd")
    except OSError:
        return None
    numbers = [one for one in map(int, descriptors) if _other_end(one) == name]
    return (name, numbers) if numbers else None


def _other_end(number: int) -> str | None:
    """Return the name of the terminal of which this descriptor is the other end."""
    if not os.isatty(number):
        return None
    try:
        if hasattr(os, "ptsname"):  # from Python 3.13 on
            return str(os.ptsname(number))
        import fcntl

        return f"/dev/pts/{int.from_bytes(fcntl.ioctl(number, _TIOCGPTN, bytes(4)), sys.byteorder)}"
    except OSError:
        return None


#: The request for the number of a terminal, on Linux.
_TIOCGPTN: Final = 0x80045430


def _descriptors(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _NAMES:
        value = options.get(name)
        if value is not None and not (type(value) is int and value < 0):
            yield name, value
    for number in options.get("pass_fds") or ():
        yield str(number), number


def _number(value: Any) -> int | None:
    with suppress(Exception):  # what is no file is the program's error, which it is told elsewhere
        number = outside_the_run(_number_of, value)
        os.fstat(number)
        return int(number)
    return None


def _is_standard(about: os.stat_result) -> bool:
    """Return whether a file is one of the standard streams of this process."""
    for number in range(3):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), about):
                return True
    return False


def _is_captured(value: Any) -> bool:
    """Return whether a stream of a process is the pipe of another one that is captured."""
    value = getattr(value, "buffer", value)
    return isinstance(getattr(value, "raw", value), _Pipe)


# -- a captured process ------------------------------------------------------------------------------------------------

#: The name under which a process's status, as its program got it, is recorded, followed by the process's path.
STATUS: Final = "process.status"
#: The streams by descriptor.
_NAMES: Final = ("stdin", "stdout", "stderr")
#: The number of a process that never ran, or whose number the log does not have: one that no process can have.
_NO_PROCESS: Final = 1 << 30


class Joining(Protocol):
    """The run's part in a process that may join it."""

    def heard(self) -> None: ...


def note_status(session: Session, scope: Scope, path: str, status: Any) -> None:
    """Record what the program got when it queried the status of a process; see ``ProcessObserver.note``."""
    if isinstance(status, dict):  # what it had written so far
        tree, redacted = session.redactor.redact(to_json(status))
        if redacted:
            status = from_json(tree)
            session.report.warn(f"the output of the process {path} was redacted: a replay passes on the placeholder")
    session.clock_read(scope, f"{STATUS} {path}", lambda: status)


def output_not_kept(session: Session, path: str) -> ReplayError:
    """Fail a replay that needs the output of a process that timed out and had written too much; return the error."""
    return session.fail(
        NotReplayableError(
            f"the process {path} had written too much when it timed out: its output is not in the trace",
            run_id=session.run_id,
            reason="an output of more than 16 MiB",
            next_action="put the process and its time limit into a @traced_tool",
        )
    )


class ProcessSteps:
    """The steps of a process's pipes; this process answers for itself in a replay, since it joined the recorded run."""

    #: Whether there is a process, whose pipes are read and written.
    real = True
    #: Whether it is being recorded.
    live = False

    def __init__(self, session: Session, path: str) -> None:
        self.session: Final = session
        self.path: Final = path
        #: Whether the program knows of the end of the process; the first one who asks ``_once`` makes it so.
        self.over = False
        self._once: Final = iter((True,))
        #: For a process of an event loop: the steps of its output pipes, by descriptor.
        self.outputs: Final[dict[int, Step]] = {}
        #: Whether a replay has the same output, so that what it triggers in an event loop has a place.
        self.counted = False

    def recalled(self) -> None:
        """Note that the program knows of the end of the process."""
        self._ends()

    def left(self) -> None:
        """Note that the program is about to leave its terminal."""

    def _ends(self) -> bool:
        if not next(self._once, False):
            return False
        self.over = True
        return True

    # -- its pipes -------------------------------------------------------------------------------------------------------

    def here(self) -> Scope | None:
        """Return the scope of the running code in the process's run; ``None`` if it is not part of it."""
        scope = current.get()
        if scope is None or scope.live or scope.session.state is not self.session.state or self.session.state.ended:
            return None
        return here()

    def begin(self, scope: Scope, pipe: str, input: object) -> Step:
        """Begin a step of one of the pipes."""
        request = Request(Spec("pipe", f"{self.path} {pipe}", side_effect="read_only"), input)
        step = scope.session.begin(scope, request)
        if step.deferred:
            step = step.go()
        if step.live and not self.real:
            raise scope.session.fail(
                NotReplayableError(
                    f"the program reads on in a pipe of the process {self.path}, or writes to it, where the log ends: that process is gone",
                    run_id=scope.session.run_id,
                    reason="a pipe of a process that has ended",
                    next_action="abort the run, or start it again",
                )
            )
        return step

    def open_outputs(self, scope: Scope, process: Any) -> None:
        """Begin the steps of an event loop that is about to read the output of ``process``."""
        for fd, file in ((1, process.stdout), (2, process.stderr)):
            if file is not None:
                self.outputs[fd] = self.begin(scope, _NAMES[fd], {})

    def send(self, scope: Scope, data: Any) -> Callable[[], None]:
        """Begin the step of ``communicate`` writing ``data`` to the process; call the result once it was written."""
        step = self.begin(scope, _NAMES[0], {"data": kept(data)})
        if step.live:
            return lambda: step.done(None)
        if not self.real:
            step.answer()
        return lambda: None

    def group(self, scope: Scope, real: Callable[[], int]) -> int:
        """Answer the program's query of the number of the process group."""
        if self.real:
            return (
                scope.session.question(scope, f"process.group {self.path}", real, lambda _: None)
                if self.live
                else real()
            )
        found: int = scope.session.question(scope, f"process.group {self.path}", lambda: _NO_PROCESS, lambda _: None)
        return found

    def signal(self, scope: Scope, number: int) -> None:
        """Record that the program is about to send the process a signal."""
        scope.session.note(scope, Note("process.signal", self.path, {"signal": number}))

    def wrap_pipes(self, process: Any, size: int) -> None:
        """Put the recording, or the log, below the file objects of the pipes of ``process``."""
        for name in ("stdin", "stdout", "stderr"):
            file = getattr(process, name)
            if file is not None:
                setattr(process, name, self._wrapped(file, name, size))

    def _wrapped(self, file: Any, name: str, size: int) -> Any:
        text: dict[str, Any] | None = None
        kind = type(file)
        if kind is not io.BufferedReader and isinstance(file, io.TextIOWrapper):
            text = {"encoding": file.encoding, "errors": file.errors, "line_buffering": file.line_buffering}
            text["write_through"] = file.write_through
            file = file.detach()
        buffered = kind is io.BufferedReader or not isinstance(file, io.RawIOBase)
        if buffered:
            file = file.detach()
        found: Any = _Writer(file, self, name) if name == "stdin" else _Reader(file, self, name)
        if buffered:
            size = size if size > 1 else io.DEFAULT_BUFFER_SIZE
            found = io.BufferedWriter(found, size) if name == "stdin" else io.BufferedReader(found, size)
        return found if text is None else io.TextIOWrapper(found, **text)


class CapturedProcess(ProcessSteps):
    """A process as an open step. Unless ``live``, there is no process: the log says what it wrote and how it ended."""

    def __init__(self, session: Session, step: Step, path: str, joining: Joining | None, given: Given) -> None:
        super().__init__(session, path)
        self.step: Final = step
        self._handed: Final = given
        self._begins: Final = given.positions()
        self.live = self.real = step.live
        #: The consent to its start, if it may join.
        self.joining: Final[Any] = joining
        self._pid = 0
        self._outcome: Outcome | None = None
        #: An event loop's end of each pipe, by descriptor; ``None`` if the recorded end came before it existed.
        self.connected: Final[dict[int, Any]] = {}
        #: In a replay, waits for what has run of it: called before the program knows of its end, or leaves its terminal.
        self.before_end: Callable[[], object] = lambda: None
        #: Closes the placeholder for the process's end of a pipe.
        self.let_go: Callable[[], object] = lambda: None

    @property
    def pid(self) -> int:
        """The number of the process; if there is no process, the recorded one."""
        if not self._pid:
            recorded = self.step.ahead("pid")
            self._pid = int(recorded) if recorded is not None and recorded.isdigit() and int(recorded) else _NO_PROCESS
        return self._pid

    # -- live ------------------------------------------------------------------------------------------------------------

    def started(self, pid: int) -> None:
        self._pid = pid

    def recalled(self) -> None:
        super().recalled()
        self._let_end()

    def left(self) -> None:
        self._let_end()

    def _let_end(self) -> None:
        wait, self.before_end = self.before_end, lambda: None
        wait()

    def not_started(self, error: BaseException) -> None:
        if self._ends() and not isinstance(error, ReplayError):
            self.step.failed(error, info={"start": "failed"})

    def note(self, scope: Scope, status: Any) -> None:
        note_status(self.session, scope, self.path, status)
        if isinstance(status, int):
            self.ended_with(status)

    def ended_with(self, status: int, output: Mapping[str, Any] | None = None, *, collected: bool = False) -> bool:
        """Complete the step: the program learns of the end of the process, and of its output. Return whether that is
        new.

        ``collected``: a finalizer asked.
        """
        if not self._ends():
            return False
        info: dict[str, Any] = {"pid": str(self._pid)} | ({"collected": True} if collected else {})
        ends = self._handed.positions()
        if moved := {name: at for name, at in ends.items() if at != self._begins.get(name)}:
            info["positions"] = moved
        self.step.done({"status": status, **(output or {})}, info=info)
        if self.joining is not None:
            self.joining.heard()
        return True

    def communicated(self, scope: Scope, status: int, found: tuple[Any, Any]) -> None:
        """Record that ``communicate`` returned ``found``, and the process has ended."""
        output = {name: kept(data) for name, data in zip(("stdout", "stderr"), found, strict=True) if data is not None}
        note_status(self.session, scope, self.path, status)
        if not self.ended_with(status, output) and output:
            self.begin(scope, "output", {}).done(output)

    def failed(self, scope: Scope, status: int | None, error: BaseException) -> None:
        """Record that ``communicate`` could not convert the output as requested."""
        note_status(self.session, scope, self.path, status)
        if status is not None and self._ends():
            self.step.failed(error, output={"status": status}, info={"pid": str(self._pid)})
        else:
            self.begin(scope, "output", {}).failed(error)

    def received(self, fd: int, data: bytes) -> None:
        """Record that an event loop has read ``data``."""
        # If a replay may have a real process, which writes in other pieces, a piece has no place.
        self.outputs[fd].chunk(kept(data), info={"suspended": True, "counted": True} if self.counted else None)

    def closed(self, fd: int) -> None:
        """Record that an event loop has reached the end of a pipe."""
        step = self.outputs.pop(fd, None)
        if step is not None:
            step.done(None)

    # -- answered --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raise what the recorded program got if it could not start the process."""
        if self.step.ahead("start") is not None:
            raise self._given()

    def _given(self) -> BaseException:
        error = self.outcome().error
        assert error is not None
        return error

    def outcome(self) -> Outcome:
        """Return the recorded end at its turn."""
        if self._outcome is None:
            self._outcome = self.step.answer()
            self._handed.move(self._outcome.meta.get("positions"))
        return self._outcome

    def next_piece(self, fd: int, deliver: Callable[[bytes], object]) -> None:
        """Call ``deliver`` in the running loop with each recorded piece at its turn."""
        step = self.outputs[fd]

        def hand_on(piece: Outcome) -> None:
            if piece.error is None:
                self.counted = bool(piece.meta.get("counted"))
                deliver(as_piped(piece.output, False))
                self.next_piece(fd, deliver)

        entry = step.upcoming()
        if entry is not None and entry["type"] == "pipe.chunk":
            step.on_next(hand_on)

    def take_eof(self, fd: int) -> None:
        """Take the recorded end of a pipe."""
        step = self.outputs.pop(fd)
        if step.upcoming() is not None:
            step.take_next()

    def take_end(self) -> None:
        """Take the recorded end of the process, in an event loop."""
        if self._ends() and self.step.upcoming() is not None:
            self._outcome = self.step.take_next()
            self._handed.move(self._outcome.meta.get("positions"))

    def recall_collected(self) -> int:
        """Return how the process ended, for a finalizer: at no place in the run, which may have learned of it
        otherwise, or not at all."""
        entry = None if self._outcome is not None else self.step.upcoming()
        output = self._outcome.output if self._outcome is not None else None if entry is None else entry.get("output")
        return int(output["status"]) if isinstance(output, dict) else 0

    def recall(self, scope: Scope) -> Any:
        """Return what the recorded program got when it queried the status."""
        found = from_json(self.session.question(scope, f"{STATUS} {self.path}", self._past_end, lambda _: None))
        if isinstance(found, int):
            self.outcome()
        return found

    def _past_end(self) -> int:
        """Return the status for a query that is not in the log: past the end of the log, the one the process ended
        with."""
        if not self.session.state.live:
            from .._runtime import divergence

            raise self.session.fail(divergence.asked_too_often(self.session.run_id, self.path))
        status: int = self.outcome().output["status"]
        return status

    def recall_output(self, scope: Scope, first: bool, text: bool) -> tuple[Any, Any]:
        """Return what ``communicate`` returned, in the type that the program expects. ``first``: it did not know of the
        end before."""
        if first:
            self._ends()
            outcome = self.outcome()
        else:
            outcome = self.begin(scope, "output", {}).answer()
        output = outcome.result()
        return as_piped(output.get("stdout"), text), as_piped(output.get("stderr"), text)


def kept(data: Any) -> Any:
    """Return data from a pipe in the log's form: text if it is UTF-8."""
    if isinstance(data, str | None):
        return data
    data = bytes(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def as_piped(found: Any, text: bool) -> Any:
    """Return the data that ``kept`` was called with."""
    return found.encode() if isinstance(found, str) and not text else found


class _Pipe(io.RawIOBase):
    """One end of a process's pipe, below the buffer that the program reads from or writes to."""

    def __init__(self, file: Any, process: ProcessSteps, name: str) -> None:
        self._file: Final = file
        self._process = process
        self._name = name
        self.mode: Final = file.mode
        #: Whether the program has used the descriptor in a way that is captured.
        self._seen = False

    @property
    def name(self) -> Any:
        return self._file.name

    def fileno(self) -> int:
        number: int = self._file.fileno()
        # Python itself asks when a pipe is passed to another process: in a replay nobody writes to it.
        if current.get() is None or sys._getframe(1).f_globals.get("__name__") == "subprocess":
            return number
        scope = self._process.here()
        if scope is not None:
            scope.session.state.extras.of(Descriptors).add(number, self)
        return number

    @property
    def process(self) -> ProcessSteps:
        return self._process

    def has(self, number: int) -> object:
        """Return what identifies the file that this descriptor belongs to now."""
        found = os.fstat(number)
        return found.st_dev, found.st_ino

    def asked_in_vain(self) -> None:
        """Warn at the end of the run if the program asked for the descriptor and its use was not seen."""
        if self._process.live and not self._seen:
            self._process.session.report.warn(
                f"the descriptor of the {self._name} of the process {self._process.path} was asked for: what went through it, neither by "
                "its file object nor by os.read or os.write, is not recorded",
                uncaptured=True,
            )

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()


class Descriptors:
    """For one run: the pipes of captured processes whose descriptors the program knows."""

    def __init__(self) -> None:
        self._pipes: Final[dict[int, tuple[object, _Pipe]]] = {}

    def add(self, number: int, pipe: _Pipe) -> None:
        if number in self._pipes and self._pipes[number][1] is pipe:
            return
        if not _by_descriptor.active:
            _by_descriptor.activate()
        self._pipes[number] = (pipe.has(number), pipe)
        pipe.process.session.state.extras.of(Unfinished).says.append(pipe.asked_in_vain)

    def __bool__(self) -> bool:
        return bool(self._pipes)

    def of(self, number: object) -> _Pipe | None:
        """Return the pipe that this descriptor belongs to now, or ``None``."""
        found = self._pipes.get(number) if isinstance(number, int) else None
        if found is None:
            return None
        try:
            if found[1].has(number) == found[0]:  # type: ignore[arg-type]
                return found[1]
        except OSError:
            pass
        self.forget(number)  # type: ignore[arg-type]  # it is another file's by now
        return None

    def forget(self, number: int) -> None:
        self._pipes.pop(number, None)

    def knows(self, pipe: _Pipe) -> bool:
        """Return whether a pipe has a descriptor."""
        return any(one is pipe for _, one in self._pipes.values())


class _Reader(_Pipe):
    """The output of a process, piece by piece as it is read."""

    _step: Step | None = None
    _over = False
    #: The rest of a recorded piece.
    _left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._seen = True
        scope = self._process.here()
        if scope is None or self._over:
            count: int | None = self._file.readinto(buffer)
            return count
        if self._step is None:
            self._step = self._process.begin(scope, self._name, {})
        if self._step.live:
            return self._read(self._step, buffer)
        if not self._process.real:
            return self._recorded(self._step, buffer)
        self._over = True
        return self.readinto(buffer)

    def os_read(self, length: int) -> bytes:
        """Read as ``os.read`` of the descriptor."""
        buffer = bytearray(length)
        return bytes(buffer[: self.os_readinto(buffer)])

    def os_readinto(self, buffer: Any) -> int:
        """Read as ``os.readinto`` of the descriptor."""
        self._seen = True
        return _not_blocked(self.readinto(memoryview(buffer).cast("B")))

    def _read(self, step: Step, buffer: Any) -> int | None:
        try:
            count: int | None = self._file.readinto(buffer)
        except Exception as error:
            if not self._over:
                self._over = True
                self._broken(step, error)
            raise
        if self._over:  # the run ends, and what is still being read is not in it
            return count
        if count:
            step.chunk(kept(bytes(buffer[:count])))
        elif count is None:  # a non-blocking pipe without data
            step.chunk(None)
        else:
            self._over = True
            step.done(None)
        return count

    def _broken(self, step: Step, error: Exception) -> None:
        step.failed(error)

    def _recorded(self, step: Step, buffer: Any) -> int | None:
        if not self._left:
            piece = step.next_chunk()
            if piece is None:
                self._over = True
                return self._end(step.answer())
            if piece.output is None:
                return None
            self._left = as_piped(piece.output, False)
        data, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _end(self, outcome: Outcome) -> int:
        outcome.result()
        if outcome.abandoned:
            session = self._process.session
            raise session.fail(
                TraceExhaustedError(
                    f"the program reads more of what the process {self._process.path} writes than it read in the recording",
                    run_id=session.run_id,
                    next_action="check what decides how much of it is read",
                )
            )
        return 0

    def close(self) -> None:
        step = self._step
        if step is not None and step.live and not self._over:
            self._over = True
            step.done(None, info={"abandoned": True})
        super().close()


class _Writer(_Pipe):
    """What a program writes to a process."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int | None:
        self._seen = True
        scope = self._process.here()
        if scope is None:
            return self._really(data) if self._process.real else len(data)
        step = self._process.begin(scope, self._name, {"data": kept(data)})
        if not self._process.real:
            written: int | None = step.answer().result()
            return written
        if not step.live:
            return self._really(data)
        try:
            count = self._really(data)
        except BaseException as error:
            step.failed(error)
            raise
        step.done(count)
        return count

    def _really(self, data: Any) -> int | None:
        count: int | None = self._file.write(data)
        return count

    def os_write(self, data: Any) -> int:
        """Write as ``os.write`` to the descriptor."""
        self._seen = True
        return _not_blocked(self.write(data))


class _Terminal(_Reader, _Writer):
    """The program's end of a terminal that a process is given: what the program writes there, and what it reads, be it
    from the process or what the terminal has made of the input.

    In a replay the terminal is a real one, at whose other end nobody is.
    """

    #: Whether a process has been given it, and whether one may write to it.
    _given = False
    _written = False
    #: Whether the program has closed it.
    _left_behind = False
    #: How many threads are reading it.
    _reading = 0
    #: Whether an event loop of the run says when there is something to read.
    in_loop = False

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(io.FileIO(number, "r+", closefd=False), ProcessSteps(session, ""), "terminal")
        #: For each thread that waits for something to read before a process has been given the terminal: what wakes it.
        self._waiting: Final[list[int]] = []
        self._waking: Final = OwnLock()
        #: The paths of the processes that it was given to.
        self._paths: Final[dict[str, None]] = {}

    def has(self, number: int) -> object:
        return _other_end(number)

    def given_to(self, process: ProcessSteps, name: str, writes: bool) -> bool:
        """Note that a process is given the terminal, also if another one has it. Return whether its part in a replay is
        the same as the other one's, and nothing is being read of which the run doesn't know."""
        alike = self._process.real is process.real if self._given else not self._reading
        self._process, self._given, self._written = process, True, self._written or writes
        with self._waking:
            for one in self._waiting:
                os.write(one, b"\0")
        if not self._paths:
            process.session.state.extras.of(Refused).says.append(self._refused)
        self._paths[process.path] = None
        if self._step is None:
            self._name = name
        return alike

    def _refused(self, runs: Callable[[str], bool]) -> str | None:
        """Say why a replay refuses it: where only some of its processes run there, it can't tell what comes from whom;
        where one does, what an event loop reads has no recorded places."""
        own = {path: runs(path) for path in self._paths}
        if self.in_loop and any(own.values()):
            return (
                f"an event loop reads the terminal of {' and '.join(own)}, which joined the run: a replay will refuse that, since such "
                "a process runs in it, and writes in other pieces. Read the terminal in a thread"
            )
        if len({*own.values()}) < 2:
            return None
        joined, others = (
            " and ".join(path for path, joins in own.items() if joins is which) for which in (True, False)
        )
        return (
            f"one terminal was given to {joined}, which joined the run, and to {others}, which did not: a replay will refuse that, "
            "since it starts only the one. Give each a terminal of its own"
        )

    def in_use(self) -> Attempt | None:
        """Describe that an event loop uses it."""
        what = f"{self._process.path}, whose terminal an event loop uses"
        return Attempt("process", "process.output", what) if self._given else None

    def readinto(self, buffer: Any) -> int | None:
        if self._over and (self._process.live or not self._process.real):
            self._step, self._over = None, False  # after its end, another process may open the terminal
        if not self._given and os.get_blocking(self._file.fileno()):
            outside_the_run(self._await_process)
        self._reading += 1
        try:
            return super().readinto(buffer) if self._given else self._file.readinto(buffer)
        finally:
            self._reading -= 1
            if self._left_behind:
                self.left()

    def write(self, data: Any) -> int | None:
        return super().write(data) if self._given else self._really(data)

    def _await_process(self) -> None:
        """Wait until there is something to read, or a process has been given the terminal: what comes then is its own."""
        import select

        ends = [aside(one) for one in os.pipe()]
        with self._waking:
            self._waiting.append(ends[1])
        try:
            poller = select.poll()
            for number in (self._file.fileno(), ends[0]):
                poller.register(number, select.POLLIN)
            if not self._given:
                poller.poll()
        finally:
            with self._waking:
                self._waiting.remove(ends[1])
            for number in ends:
                os.close(number)

    def _broken(self, step: Step, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno == errno.EIO:  # the end of what the process writes, on Linux
            step.done({"errno": errno.EIO})
        else:
            step.failed(error)

    def _end(self, outcome: Outcome) -> int:
        super()._end(outcome)
        if outcome.output is None:
            return 0
        raise OSError(outcome.output["errno"], os.strerror(outcome.output["errno"]))

    def left(self) -> None:
        """Note that the program has closed it; what a thread still reads comes before the end."""
        self._left_behind = True
        if not self._reading:
            self._abandon()

    def _abandon(self) -> None:
        step = self._step
        if step is not None and step.live and not self._over:
            self._over = True
            step.done(None, info={"abandoned": True})

    def asked_in_vain(self) -> None:
        if self._written:
            super().asked_in_vain()
        self._abandon()

    def close(self) -> None:
        """Do nothing: the program closes its descriptors."""


def terminal_opened(scope: Scope, master: int) -> None:
    """Remember the terminal whose program's end has descriptor ``master``: a process may be given its other end."""
    if _other_end(master) is not None:
        scope.session.state.extras.of(Descriptors).add(master, _Terminal(scope.session, master))


def give_terminal(process: ProcessSteps, master: int) -> None:
    """Note that a process is given the terminal whose program's end has descriptor ``master``, for all its streams."""
    terminal = _Terminal(process.session, master)
    terminal.given_to(process, "terminal", True)
    process.session.state.extras.of(Descriptors).add(master, terminal)


class _Opened(io.RawIOBase):
    """A file object of the program's end of a terminal, below its buffer."""

    def __init__(self, file: io.FileIO, terminal: _Terminal, descriptors: Descriptors) -> None:
        self._file: Final = file
        self._terminal: Final = terminal
        self._descriptors: Final = descriptors
        self.name: Final = file.name
        self.mode: Final = file.mode

    def __repr__(self) -> str:
        return repr(self._file)

    def readable(self) -> bool:
        return self._file.readable()

    def writable(self) -> bool:
        return self._file.writable()

    def readinto(self, buffer: Any) -> int | None:
        return self._terminal.readinto(buffer) if self.readable() else self._file.readinto(buffer)

    def write(self, data: Any) -> int | None:
        return self._terminal.write(data) if self.writable() else self._file.write(data)

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                if self._file.closefd:
                    _leave(self._descriptors, self._terminal, self._file.fileno())
                self._file.close()


def _leave(descriptors: Descriptors, terminal: _Terminal, number: int) -> None:
    """Note that the program closes a descriptor of its end of a terminal."""
    descriptors.forget(number)
    if not descriptors.knows(terminal):
        terminal.process.left()
        terminal.left()


def _not_blocked(count: int | None) -> int:
    if count is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return count


# -- descriptors -------------------------------------------------------------------------------------------------------
#
# What a program does with the descriptor of a pipe, below its file object, or with its end of a terminal. The functions
# are replaced once a program has asked for a descriptor, or given a terminal to a process.


def _pipe_of(*files: Any, reading: bool = False) -> tuple[_Pipe, Scope] | None:
    """Return the first of these files or descriptors that is a process's pipe, and where it is used: not by an event
    loop of asyncio, which calls the function that called this one, unless that is ``reading`` a terminal."""
    scope = current.get()
    if scope is None or scope.live:
        return None
    descriptors = scope.session.state.extras.of(Descriptors)
    for file in files:
        pipe = descriptors.of(_number_of(file))
        if pipe is None or (at := pipe.process.here()) is None:
            continue
        if not by_asyncio(3):
            return pipe, at
        if isinstance(pipe, _Terminal):
            if reading and pipe.in_loop:
                return pipe, at
            if not pipe.in_loop:
                cross(pipe.in_use())
    return None


def _of_pipes(kind: type[_Reader | _Writer], name: str) -> Callable[[Any], Any]:
    """Return what wraps a function of ``os`` that reads or writes: a pipe of this kind does that itself."""
    own = getattr(kind, f"os_{name}")

    def wrap(original: Any) -> Any:
        @wraps(original)
        def move(fd: Any, what: Any, /) -> Any:
            at = _pipe_of(fd, reading=kind is _Reader)
            return original(fd, what) if at is None or not isinstance(at[0], kind) else own(at[0], what)

        return move

    return wrap


def _closing(original: Any) -> Any:
    """Wrap ``os.close``."""

    @wraps(original)
    def close(fd: Any, /) -> None:
        scope = current.get()
        if scope is not None:
            descriptors = scope.session.state.extras.of(Descriptors)
            pipe = descriptors.of(fd)
            if isinstance(pipe, _Terminal):
                _leave(descriptors, pipe, fd)
        original(fd)

    return close


def _doubling(original: Any) -> Any:
    """Wrap ``os.dup`` and ``os.dup2``: another descriptor of the program's end of a terminal is one, too."""

    @wraps(original)
    def double(fd: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(fd, *args, **kwargs)
        scope = current.get()
        if scope is not None:
            descriptors = scope.session.state.extras.of(Descriptors)
            pipe = descriptors.of(fd)
            if isinstance(pipe, _Terminal):
                descriptors.add(found, pipe)
        return found

    return double


def _opening(original: Any) -> Any:
    """Wrap ``open``, which ``os.fdopen`` calls: a file object of the program's end of a terminal reads and writes it as
    ``os.read`` and ``os.write`` do."""

    def opened(file: int, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
               newline: Any = None, closefd: bool = True) -> Any:  # fmt: skip
        scope = current.get()
        assert scope is not None
        descriptors = scope.session.state.extras.of(Descriptors)
        terminal = descriptors.of(file)
        assert isinstance(terminal, _Terminal)
        text = "b" not in mode
        if text and not buffering:
            raise ValueError("can't have unbuffered text I/O")
        bare = "".join(letter for letter in mode if letter not in "bt")
        found: Any = _Opened(original(file, bare + "b", 0, closefd=closefd), terminal, descriptors)
        if not buffering:
            return found
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        kind: Any = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        found = kind(found, size)
        if text:
            found = io.TextIOWrapper(found, encoding, errors, newline, line_buffering=buffering in (-1, 1))
            found.mode = mode
        return found

    @wraps(original)
    def open(*args: Any, **kwargs: Any) -> Any:
        file = args[0] if args else kwargs.get("file")
        at = _pipe_of(file) if type(file) is int else None
        if at is None or not isinstance(at[0], _Terminal):
            return original(*args, **kwargs)
        return opened(*args, **kwargs)

    return open


#: The name under which the mode of a terminal is recorded, followed by the path of the process that has it: a program that
#: asks for a password turns the echo off.
_MODE: Final = "terminal.mode"


def _asking_mode(original: Any) -> Any:
    """Wrap ``termios.tcgetattr``: in a replay nobody sets the mode of the program's end of a terminal."""

    @wraps(original)
    def tcgetattr(fd: Any, /) -> Any:
        at = _pipe_of(_number_of(fd))
        pipe = None if at is None else at[0]
        if at is None or not isinstance(pipe, _Terminal) or pipe.in_use() is None:
            return original(fd)
        if pipe.process.real and not pipe.process.live:
            return original(fd)

        def real() -> list[Any]:
            *mode, characters = original(fd)
            return [*mode, [one if isinstance(one, int) else one.decode("latin-1") for one in characters]]

        *mode, characters = at[1].session.question(at[1], f"{_MODE} {pipe.process.path}", real, lambda _: None)
        return [*mode, [one if isinstance(one, int) else one.encode("latin-1") for one in characters]]

    return tcgetattr


#: The name under which is recorded which of several descriptors were ready.
_READY: Final = "process.ready"


def _ready(scope: Scope, real: Callable[[], list[list[int]]]) -> list[list[int]]:
    """Return which descriptors are ready, by their number among those asked for: as ``real`` says, or as recorded."""
    return scope.session.question(scope, _READY, real, lambda _: None)


def _select(original: Any) -> Any:
    @wraps(original)
    def select(*args: Any) -> Any:
        lists = [[*files] for files in args[:3]]
        at = _pipe_of(*chain(*lists))
        if at is None:
            return original(*lists, *args[3:])

        def real() -> list[list[int]]:
            ready = outside_the_run(original, *lists, *args[3:])
            return [[files.index(one) for one in found] for files, found in zip(lists, ready, strict=True)]

        ready = _ready(at[1], real)
        return tuple([files[number] for number in found] for files, found in zip(lists, ready, strict=True))

    return select


def _selector(original: Any) -> Any:
    @wraps(original)
    def select(self: Any, timeout: float | None = None) -> Any:
        keys = [*self.get_map().values()]
        at = _pipe_of(*(key.fd for key in keys))
        if at is None:
            return original(self, timeout)

        def real() -> list[list[int]]:
            return [[keys.index(key), events] for key, events in outside_the_run(original, self, timeout)]

        return [(keys[number], events) for number, events in _ready(at[1], real)]

    return select


#: The event that a terminal has something to read, in an event loop.
_READABLE: Final = "loop.readable"


class _Readable:
    """Has an event loop call ``handle`` when a terminal has something to read: each time an event of the run."""

    def __init__(self, scope: Scope, handle: Any, live: bool) -> None:
        self._scope: Final = scope
        self._handle: Final = handle
        #: Whether the loop says when; otherwise the log does.
        self.live: Final = live
        self._turn = self._armed()

    def _armed(self) -> Timer:
        turn = self._scope.session.arm(self._scope, _READABLE, 0)
        if not self.live and turn.comes:
            turn.on_fire(self.arrived)
        return turn

    def arrived(self) -> None:
        if self._handle.cancelled():
            return
        if not self._scope.session.state.ended:
            if self.live:
                self._turn.fired()
            self._turn = self._armed()
        self._handle._run()

    def cancel(self) -> None:
        self._turn.cancel()
        self._handle.cancel()


#: The attribute of an event loop with its ``_Readable`` objects, by descriptor.
_READABLES: Final = "_tracekit_readables"


def _adding_reader(original: Any) -> Any:
    """Wrap what an event loop has itself told by that a descriptor can be read."""

    @wraps(original)
    def add_reader(self: Any, fd: Any, callback: Any, *args: Any) -> Any:
        scope = current.get()
        number = None if scope is None else _number_of(fd)
        terminal = None if scope is None else scope.session.state.extras.of(Descriptors).of(number)
        at = terminal.process.here() if isinstance(terminal, _Terminal) else None
        if at is None or not isinstance(terminal, _Terminal) or terminal.in_use() is None:
            return original(self, fd, callback, *args)
        if not terminal.process.live and terminal.process.real:  # what it writes arrives in other pieces
            guard_check(terminal.in_use())
        import asyncio
        from contextvars import Context

        terminal.in_loop = True
        remove(self, number)
        handle = asyncio.Handle(callback, args, self)
        readable = _Readable(at, handle, terminal.process.live)
        vars(self).setdefault(_READABLES, {})[number] = readable
        if readable.live:
            Context().run(original, self, fd, readable.arrived)
        return handle

    def remove(loop: Any, number: Any) -> None:
        before = vars(loop).get(_READABLES, {}).pop(number, None)
        if before is not None:
            before.cancel()

    return add_reader


def _removing_reader(original: Any) -> Any:
    @wraps(original)
    def remove_reader(self: Any, fd: Any) -> Any:
        readable = vars(self).get(_READABLES, {}).pop(_number_of(fd), None)
        if readable is not None:
            readable.cancel()
            if not readable.live:
                return True
        return original(self, fd)

    return remove_reader


def _telling(original: Any) -> Any:
    """Wrap what makes an event loop use a descriptor in a way that is not followed."""

    @wraps(original)
    def use(self: Any, *args: Any, **kwargs: Any) -> Any:
        for one in (*args, *kwargs.values()):
            at = _pipe_of(one)
            if at is not None and isinstance(at[0], _Terminal):
                cross(at[0].in_use())
        return original(self, *args, **kwargs)

    return use


class _Poll:
    """A ``select.poll`` object that knows what is registered with it."""

    def __init__(self, genuine: Any) -> None:
        self._genuine: Final = genuine
        self._numbers: Final[dict[int, None]] = {}

    def register(self, fd: Any, *mask: Any) -> None:
        self._genuine.register(fd, *mask)
        self._numbers[_number_of(fd)] = None

    def modify(self, fd: Any, mask: Any) -> None:
        self._genuine.modify(fd, mask)

    def unregister(self, fd: Any) -> None:
        self._genuine.unregister(fd)
        del self._numbers[_number_of(fd)]

    def poll(self, *timeout: Any) -> Any:
        numbers = [*self._numbers]
        at = _pipe_of(*numbers)
        if at is None:
            return self._genuine.poll(*timeout)

        def real() -> list[list[int]]:
            return [[numbers.index(fd), events] for fd, events in outside_the_run(self._genuine.poll, *timeout)]

        return [(numbers[number], events) for number, events in _ready(at[1], real)]


def _polling(original: Any) -> Any:
    @wraps(original)
    def poll() -> Any:
        return original() if current.get() is None else _Poll(original())

    return poll


def _number_of(file: Any) -> Any:
    return file if isinstance(file, int) else file.fileno() if hasattr(file, "fileno") else None


def _patches() -> list[ReversiblePatch]:
    found = [
        _by_descriptor.once(os, name, _of_pipes(kind, name))
        for kind, name in ((_Reader, "read"), (_Reader, "readinto"), (_Writer, "write"))
        if hasattr(os, name)  # `readinto` from Python 3.14 on
    ]
    found.append(_by_descriptor.once(os, "close", _closing))
    found += [_by_descriptor.once(os, name, _doubling) for name in ("dup", "dup2")]
    for name in ("termios", "tty", "pty"):
        modes: Any = sys.modules.get(name)
        if hasattr(modes, "tcgetattr"):
            found.append(_by_descriptor.once(modes, "tcgetattr", _asking_mode))
    found += [_by_descriptor.once(module, "open", _opening) for module in (builtins, io)]
    select, selectors = sys.modules.get("select"), sys.modules.get("selectors")
    if select is not None:
        found.append(_by_descriptor.once(select, "select", _select))
        if hasattr(select, "poll"):
            found.append(_by_descriptor.once(select, "poll", _polling))
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector"):
        kind = getattr(selectors, name, None)
        if kind is not None and "select" in vars(kind):
            found.append(_by_descriptor.once(kind, "select", _selector))
    for module, name, under, others in _LOOPS:
        loop = getattr(sys.modules.get(module), name, None)
        if loop is not None:
            found.append(_by_descriptor.once(loop, f"{under}add_reader", _adding_reader))
            found.append(_by_descriptor.once(loop, f"{under}remove_reader", _removing_reader))
            found += [_by_descriptor.once(loop, other, _telling) for other in others]
    return found


#: Event loops: how the names begin of what is told when a descriptor can be read, and what else uses descriptors.
_LOOPS: Final = (
    ("asyncio.selector_events", "BaseSelectorEventLoop", "_", ("_add_writer",)),
    ("uvloop", "Loop", "", ("add_writer", "connect_read_pipe", "connect_write_pipe")),
)
_by_descriptor: Final = Switch(
    _patches, ("select", "selectors", "uvloop", "asyncio.selector_events", "termios", "tty", "pty")
)


def deactivate() -> list[str]:
    """Restore the functions that take descriptors."""
    return _by_descriptor.deactivate()


def one_of(names: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, including those given by position."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
