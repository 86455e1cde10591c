"""Processes that do not join a run, as steps: a replay starts nothing, and gives what they wrote, and how they ended.

When a process starts nobody knows whether it will join, so each is a step, with what goes through its pipes. In a replay the segment of
one that joined is there, and its step is passed over.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, Final, Protocol

from .._reality import off_loop
from .._runtime.session import Outcome, Scope, Session, Step, Unfinished, current, here
from .._runtime.step import Request, Spec
from .._values import from_json, to_json
from ..errors import NotReplayableError, ReplayError, TraceExhaustedError
from .patch import Patch, Switch

__all__ = [
    "BECOMING",
    "HARMLESS",
    "STATUS",
    "CapturedProcess",
    "ProcessSteps",
    "activate",
    "classify",
    "deactivate",
    "described",
    "forget_classes",
    "may_join",
    "note_status",
    "side_effect_of",
    "stays_out",
]

# -- what a command does -----------------------------------------------------------------------------------------------
#
# A command counts as irreversible unless the program says otherwise, or the table of those that only ask has it.

#: Commands that only ask, word by word. ``*`` at the end: any more words, none of which names a file to write.
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
#: By program: the words of each, and whether more may follow.
_HARMLESS: Final[dict[str, list[tuple[list[str], bool]]]] = {}
for _line in HARMLESS:
    _known = _line.removesuffix(" *").split()
    _HARMLESS.setdefault(_known[0], []).append((_known, _line.endswith(" *")))
#: Where the programs of the table are, if a command names its program by its place.
_STANDARD: Final = frozenset(("", "/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"))
_CLASSES: Final = ("read_only", "reversible", "irreversible")
#: What the program has declared, for the whole process: pattern and class, the latest declaration first.
_declared: Final[list[tuple[str, str]]] = []


def classify(classes: Mapping[str, str]) -> None:
    """The user's own side-effect classes, ``{"git status*": "read_only"}``, ``*`` as in file names; the first to fit holds."""
    for pattern, side_effect in classes.items():
        if side_effect not in _CLASSES:
            raise ValueError(f"processes[{pattern!r}]: {side_effect!r} is none of read_only, reversible, irreversible")
    _declared[:0] = classes.items()
    _side_effect_of.cache_clear()


def forget_classes() -> None:
    _declared.clear()
    _side_effect_of.cache_clear()


def side_effect_of(words: Sequence[str], *, one_program: bool) -> tuple[str, bool]:
    """The side-effect class of a command, and whether anybody has declared it.

    ``one_program``: the words are those of one program. Of a text in which a shell finds more than that, a pattern must be the whole.
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
    """Whether a command is one of the table, and its program not Python: it needs no ticket, since it has nothing to say of itself."""
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


#: Programs that set something and then become the one that they are given.
BECOMING: Final = frozenset(("env", "nice", "nohup", "stdbuf", "setsid", "ionice", "taskset", "chrt", "exec"))


def may_join(words: Sequence[str]) -> bool:
    """Whether a program may itself join a run: it is a Python one, for all that can be seen of it."""
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


#: What a command that is one text is given as.
TEXTS: Final = (str, bytes, os.PathLike)
#: How the streams of a process are given, but for those that it inherits.
_STREAMS: Final = {-1: "pipe", -2: "stdout", -3: "null"}


def described(session: Session, command: Any, words: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The command of a process as its step has it: words, directory, and where its streams go."""
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
            about[name] = _STREAMS.get(value, "file") if isinstance(value, int) else "file"
    return about


# -- a captured process ------------------------------------------------------------------------------------------------

#: The name under which the status of a process that its program got is recorded, followed by the process's path.
STATUS: Final = "process.status"
#: The streams by descriptor.
_NAMES: Final = ("stdin", "stdout", "stderr")
#: Of a process that never ran, or of which the log does not say which number it had: one that no process can have.
_NO_PROCESS: Final = 1 << 30


class Joining(Protocol):
    """What the run does for a process that may join it."""

    def heard(self) -> None: ...


def note_status(session: Session, scope: Scope, path: str, status: Any) -> None:
    """Record what the program got when it asked for the status of a process; see ``ProcessObserver.note``."""
    if isinstance(status, dict):  # what it had written so far
        tree, redacted = session.redactor.redact(to_json(status))
        if redacted:
            status = from_json(tree)
            session.report.warn(f"the output of the process {path} was redacted: a replay hands on the placeholder")
    session.clock_read(scope, f"{STATUS} {path}", lambda: status)


class ProcessSteps:
    """The steps of the pipes of a process; this one answers for itself in a replay, since it had joined the recorded run."""

    #: Whether there is a process, whose pipes are read and written.
    real = True
    #: Whether it is being recorded.
    live = False

    def __init__(self, session: Session, path: str) -> None:
        self.session: Final = session
        self.path: Final = path
        self._ended: Final = Lock()
        #: Of a process of an event loop: the steps of the pipes that it writes to, by descriptor.
        self.outputs: Final[dict[int, Step]] = {}
        #: Whether what it writes is the same in a replay, so that what that leads to in an event loop has its place.
        self.counted = False

    def recalled(self) -> None:
        """The program knows of its end."""
        self._ends()

    def _ends(self) -> bool:
        return self._ended.acquire(blocking=False)

    @property
    def over(self) -> bool:
        """Whether the program knows of its end."""
        return self._ended.locked()

    # -- its pipes -------------------------------------------------------------------------------------------------------

    def here(self) -> Scope | None:
        """Where the running code is in the run of the process; ``None`` where what it does is no part of that."""
        scope = current.get()
        if scope is None or scope.live or scope.session.state is not self.session.state or self.session.state.ended:
            return None
        return here()

    def begin(self, scope: Scope, pipe: str, input: object) -> Step:
        """A step of one of its pipes."""
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
                    next_action="abort the run, or start it anew",
                )
            )
        return step

    def open_outputs(self, scope: Scope, process: Any) -> None:
        """An event loop is about to read what ``process`` writes."""
        for fd, file in ((1, process.stdout), (2, process.stderr)):
            if file is not None:
                self.outputs[fd] = self.begin(scope, _NAMES[fd], {})

    def send(self, scope: Scope, data: Any) -> Callable[[], None]:
        """``communicate`` is about to write ``data`` to the process; call the result when it has."""
        step = self.begin(scope, _NAMES[0], {"data": kept(data)})
        if step.live:
            return lambda: step.done(None)
        if not self.real:
            step.answer()
        return lambda: None

    def group(self, scope: Scope, real: Callable[[], int]) -> int:
        """The number of its process group, which the program asks for."""
        if self.real:
            return (
                scope.session.question(scope, f"process.group {self.path}", real, lambda _: None)
                if self.live
                else real()
            )
        found: int = scope.session.question(scope, f"process.group {self.path}", lambda: _NO_PROCESS, lambda _: None)
        return found

    def signal(self, scope: Scope, number: int) -> None:
        """The program is about to send the process a signal."""
        scope.session.note(scope, "process.signal", self.path, input={"signal": number})

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
    """A process as an open step. Where that is not ``live`` there is no process: the log says what it wrote and how it ended."""

    def __init__(self, session: Session, step: Step, path: str, joining: Joining | None) -> None:
        super().__init__(session, path)
        self.step: Final = step
        self.live = self.real = step.live
        #: The consent to its start, where it may join.
        self.joining: Final[Any] = joining
        self._pid = 0
        self._outcome: Outcome | None = None
        #: What an event loop has at the end of a pipe, by descriptor; ``None`` where the recorded end came before it was there.
        self.connected: Final[dict[int, Any]] = {}
        #: Close what stands for its end of a pipe.
        self.let_go: Callable[[], object] = lambda: None

    @property
    def pid(self) -> int:
        """Its number; where there is no process, the recorded one."""
        if not self._pid:
            recorded = self.step.ahead("pid")
            self._pid = int(recorded) if recorded is not None and recorded.isdigit() and int(recorded) else _NO_PROCESS
        return self._pid

    # -- live ------------------------------------------------------------------------------------------------------------

    def started(self, pid: int) -> None:
        self._pid = pid

    def not_started(self, error: BaseException) -> None:
        if self._ends() and not isinstance(error, ReplayError):
            self.step.failed(error, info={"start": "failed"})

    def note(self, scope: Scope, status: Any) -> None:
        note_status(self.session, scope, self.path, status)
        if isinstance(status, int):
            self.ended_with(status)

    def ended_with(self, status: int, output: Mapping[str, Any] | None = None, *, collected: bool = False) -> bool:
        """The program learns of the end of the process, and of what it wrote. Whether it has not before. ``collected``: by a finalizer."""
        if not self._ends():
            return False
        info = {"pid": str(self._pid)} | ({"collected": True} if collected else {})
        self.step.done({"status": status, **(output or {})}, info=info)
        if self.joining is not None:
            self.joining.heard()
        return True

    def communicated(self, scope: Scope, status: int, found: tuple[Any, Any]) -> None:
        """``communicate`` has returned ``found``, and the process has ended."""
        output = {name: kept(data) for name, data in zip(("stdout", "stderr"), found, strict=True) if data is not None}
        note_status(self.session, scope, self.path, status)
        if not self.ended_with(status, output) and output:
            self.begin(scope, "output", {}).done(output)

    def failed(self, scope: Scope, status: int | None, error: BaseException) -> None:
        """``communicate`` could not make of the output what the program asked for."""
        note_status(self.session, scope, self.path, status)
        if status is not None and self._ends():
            self.step.failed(error, output={"status": status}, info={"pid": str(self._pid)})
        else:
            self.begin(scope, "output", {}).failed(error)

    def received(self, fd: int, data: bytes) -> None:
        """An event loop has read ``data``."""
        # Where a replay may have a process of its own, that writes in other pieces, a piece has no place.
        self.outputs[fd].chunk(kept(data), info={"suspended": True, "counted": True} if self.counted else None)

    def closed(self, fd: int) -> None:
        """An event loop has come to the end of what the process writes."""
        step = self.outputs.pop(fd, None)
        if step is not None:
            step.done(None)

    # -- answered --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raise what the recorded program got when it could not start the process."""
        if self.step.ahead("start") is not None:
            raise self._given()

    def _given(self) -> BaseException:
        error = self.outcome().error
        assert error is not None
        return error

    def outcome(self) -> Outcome:
        """Its recorded end, when its turn has come."""
        if self._outcome is None:
            self._outcome = self.step.answer()
        return self._outcome

    def next_piece(self, fd: int, deliver: Callable[[bytes], object]) -> None:
        """Call ``deliver`` in the running loop with each recorded piece when its turn has come."""
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
        """The end of what it writes has come."""
        step = self.outputs.pop(fd)
        if step.upcoming() is not None:
            step.take_next()

    def take_end(self) -> None:
        """Its end has come, in an event loop."""
        if self._ends() and self.step.upcoming() is not None:
            self._outcome = self.step.take_next()

    def recall_collected(self) -> int:
        """How it has ended, as a finalizer asks it: at no place in the run, which may have learnt of it otherwise, or not at all."""
        entry = None if self._outcome is not None else self.step.upcoming()
        output = self._outcome.output if self._outcome is not None else None if entry is None else entry.get("output")
        return int(output["status"]) if isinstance(output, dict) else 0

    def recall(self, scope: Scope) -> Any:
        """What the recorded program got when it asked for the status."""
        found = from_json(self.session.question(scope, f"{STATUS} {self.path}", self._past_end, lambda _: None))
        if isinstance(found, int):
            self.outcome()
        return found

    def _past_end(self) -> int:
        """The status of a process that the log does not say was asked for: past the end of the log, the one it ended with."""
        if not self.session.state.live:
            from .._runtime import divergence

            raise self.session.fail(divergence.asked_too_often(self.session.run_id, self.path))
        status: int = self.outcome().output["status"]
        return status

    def recall_output(self, scope: Scope, first: bool, text: bool) -> tuple[Any, Any]:
        """What ``communicate`` returned, in the type that the program asks for. ``first``: it did not know of the end before."""
        if first:
            self._ends()
            outcome = self.outcome()
        else:
            outcome = self.begin(scope, "output", {}).answer()
        output = outcome.result()
        return as_piped(output.get("stdout"), text), as_piped(output.get("stderr"), text)

    def too_much(self) -> ReplayError:
        return self.session.fail(
            NotReplayableError(
                f"the process {self.path} had written too much when its time ran out: that is not in the trace",
                run_id=self.session.run_id,
                reason="an output of more than 16 MiB",
                next_action="put the process and its time limit into a @traced_tool",
            )
        )


def kept(data: Any) -> Any:
    """What went through a pipe as the log has it: text where it is UTF-8."""
    if isinstance(data, str | None):
        return data
    data = bytes(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def as_piped(found: Any, text: bool) -> Any:
    """What ``kept`` was given."""
    return found.encode() if isinstance(found, str) and not text else found


class _Pipe(io.RawIOBase):
    """One end of a pipe of a process, below the buffer that the program reads from or writes to."""

    def __init__(self, file: Any, process: ProcessSteps, name: str) -> None:
        self._file: Final = file
        self._process: Final = process
        self._name: Final = name
        self.mode: Final = file.mode
        #: Whether the program has done something with its descriptor that is captured.
        self._seen = False

    @property
    def name(self) -> Any:
        return self._file.name

    def fileno(self) -> int:
        number: int = self._file.fileno()
        # Python itself asks when a pipe is handed on to another process: in a replay nobody writes to it.
        if current.get() is None or sys._getframe(1).f_globals.get("__name__") == "subprocess":
            return number
        scope = self._process.here()
        if scope is not None:
            scope.session.state.extras.of(Descriptors).add(number, self)
        return number

    @property
    def process(self) -> ProcessSteps:
        return self._process

    def asked_in_vain(self) -> None:
        """At the end of the run: what went through the descriptor that the program asked for was not seen."""
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
    """The pipes of captured processes whose descriptors the program knows, for one run."""

    def __init__(self) -> None:
        self._pipes: Final[dict[int, tuple[tuple[int, int], _Pipe]]] = {}

    def add(self, number: int, pipe: _Pipe) -> None:
        if number in self._pipes and self._pipes[number][1] is pipe:
            return
        if not _by_descriptor.active:
            _by_descriptor.activate()
        self._pipes[number] = (_file_of(number), pipe)
        pipe.process.session.state.extras.of(Unfinished).says.append(pipe.asked_in_vain)

    def __bool__(self) -> bool:
        return bool(self._pipes)

    def of(self, number: object) -> _Pipe | None:
        """The pipe that this descriptor is of now."""
        found = self._pipes.get(number) if isinstance(number, int) else None
        if found is None:
            return None
        try:
            if _file_of(number) == found[0]:  # type: ignore[arg-type]
                return found[1]
        except OSError:
            pass
        del self._pipes[number]  # type: ignore[arg-type]  # the number is another file's by now
        return None


def _file_of(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino


class _Reader(_Pipe):
    """What a process writes, piece by piece as it is read."""

    _step: Step | None = None
    _over = False
    #: What of a recorded piece is to come yet.
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
        """``os.read`` of its descriptor."""
        self._seen = True
        buffer = bytearray(length)
        return bytes(buffer[: _not_blocked(self.readinto(buffer))])

    def _read(self, step: Step, buffer: Any) -> int | None:
        try:
            count: int | None = self._file.readinto(buffer)
        except Exception as error:
            self._over = True
            step.failed(error)
            raise
        if count:
            step.chunk(kept(bytes(buffer[:count])))
        elif count is None:  # a pipe that does not block, and has nothing
            step.chunk(None)
        else:
            self._over = True
            step.done(None)
        return count

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
                    next_action="look at what decides how much of it is read",
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
        """``os.write`` to its descriptor."""
        self._seen = True
        return _not_blocked(self.write(data))


def _not_blocked(count: int | None) -> int:
    if count is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return count


# -- descriptors -------------------------------------------------------------------------------------------------------
#
# What a program does with the descriptor of a pipe below its file object. The functions are exchanged once a program has asked for one.


def _pipe_of(number: object) -> tuple[_Pipe, Scope] | None:
    scope = current.get()
    if scope is None or scope.live:
        return None
    pipe = scope.session.state.extras.of(Descriptors).of(number)
    at = None if pipe is None or _by_asyncio() else pipe.process.here()
    return None if pipe is None or at is None else (pipe, at)


def _by_asyncio() -> bool:
    """Whether an event loop has asked, which reads when it likes."""
    return str(sys._getframe(3).f_globals.get("__name__")).startswith(("asyncio.", "uvloop"))


def _os_read(original: Any) -> Any:
    @wraps(original)
    def read(fd: Any, length: Any, /) -> bytes:
        at = _pipe_of(fd)
        if at is None or not isinstance(at[0], _Reader):
            return original(fd, length)  # type: ignore[no-any-return]
        return at[0].os_read(length)

    return read


def _os_write(original: Any) -> Any:
    @wraps(original)
    def write(fd: Any, data: Any, /) -> int:
        at = _pipe_of(fd)
        if at is None or not isinstance(at[0], _Writer):
            return original(fd, data)  # type: ignore[no-any-return]
        return at[0].os_write(data)

    return write


#: The name under which it is recorded which of several descriptors were ready.
_READY: Final = "process.ready"


def _select(original: Any) -> Any:
    @wraps(original)
    def select(*args: Any) -> Any:
        lists = [[*files] for files in args[:3]]
        at = next((found for files in lists for file in files if (found := _pipe_of(_number_of(file)))), None)
        if at is None:
            return original(*lists, *args[3:])

        def real() -> list[list[int]]:
            ready = _untold(original, *lists, *args[3:])
            return [[files.index(one) for one in found] for files, found in zip(lists, ready, strict=True)]

        ready = at[1].session.question(at[1], _READY, real, lambda _: None)
        return tuple([files[number] for number in found] for files, found in zip(lists, ready, strict=True))

    return select


def _selector(original: Any) -> Any:
    @wraps(original)
    def select(self: Any, timeout: float | None = None) -> Any:
        keys = [*self.get_map().values()]
        at = next((found for key in keys if (found := _pipe_of(key.fd))), None)
        if at is None:
            return original(self, timeout)

        def real() -> list[list[int]]:
            return [[keys.index(key), events] for key, events in _untold(original, self, timeout)]

        return [
            (keys[number], events) for number, events in at[1].session.question(at[1], _READY, real, lambda _: None)
        ]

    return select


def _number_of(file: Any) -> Any:
    return file if isinstance(file, int) else file.fileno() if hasattr(file, "fileno") else None


def _untold(call: Callable[..., Any], *args: Any) -> Any:
    """Make a call whose own clock reads are not recorded."""
    token = current.set(None)
    try:
        return call(*args)
    finally:
        current.reset(token)


def _patches() -> list[Patch]:
    found = [_by_descriptor.once(os, "read", _os_read), _by_descriptor.once(os, "write", _os_write)]
    select, selectors = sys.modules.get("select"), sys.modules.get("selectors")
    if select is not None:
        found.append(_by_descriptor.once(select, "select", _select))
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector"):
        kind = getattr(selectors, name, None)
        if kind is not None and "select" in vars(kind):
            found.append(_by_descriptor.once(kind, "select", _selector))
    return found


_by_descriptor: Final = Switch(_patches, ("select", "selectors"))


def activate() -> None:
    """Nothing yet: the hooks are put in place when a program asks for the descriptor of a pipe."""


def deactivate() -> list[str]:
    """Restore the functions that take descriptors."""
    return _by_descriptor.deactivate()


def one_of(names: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, of those that may also be given by their place."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
