"""The debugger's part in a replayed process: it stops the program at recorded steps.

It stops in the line of the program's own code that makes the step.

The other part runs in a process of its own (``tracekit.cli.debug``): through a pipe it says how far to go, and asks for
the program's variables while that is stopped. A line of either pipe is a JSON object:

=====================================================
==============================================================================
request                                                answer
=====================================================
==============================================================================
``{"do": "run", "to": 12}``                            ``stopped``, when the step is made; ``passed``, if it has been
made already.
                                                       ``"to": null`` runs to the end, ``"to": 0`` to the next step,
                                                       whichever it is;
                                                       ``"lines": [["/a.py", 7]]``: also stops at each step made from
                                                       one of these
``{"do": "evaluate", "frame": 0, "text": "x + 1"}``    ``value``: its ``text``, whether it ``failed``, and the number of
its children
``{"do": "variables", "of": 3}``                       ``variables``: the children; ``{"frame": 0, "scope": "locals"}``
is the root
``{"do": "lines", "frame": 0}``                        opens ``pdb`` there, which asks with ``prompt``, answered by
``{"line": …}``
``{"do": "debugpy"}``                                  ``debugpy``: why it is unavailable; else it connects itself by
its socket
``{"do": "trace", "frame": 0}``                        nothing: ``debugpy`` stops at the next line of this frame
=====================================================
==============================================================================

An editor receives ``made`` for each step, with the line that made it: stepping backwards uses these to stop.

A child process of the replay that is answered from a segment talks to the debugger itself: it connects to the socket
named by its ticket, says ``hello`` with its segment, and is told how far to go. Its steps are named ``"SEGMENT:12"``.

A failure of the debugger never reaches the program: if the other process is gone, this one ends.
"""

from __future__ import annotations

import io
import json
import os
import reprlib
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from .. import _reality
from .._capture import callers, guard
from .._capture.isolation import end_with_parent
from .._journal.store import segment_in
from .._runtime.callsite import is_user_frame, prompt
from .._runtime.replayer import Replay
from .._runtime.session import Scope, current
from .._runtime.threads import stopped_in_debugger
from .._sources import TRACEKIT
from .._values import exception_text

if TYPE_CHECKING:
    from asyncio import Task

    from .._runtime.lane import Lane
    from .._runtime.threads import ThreadMonitor

__all__ = ["SINK", "CodeLine", "RemoteDebugger", "StepPlace", "joined", "places"]

_really_exit: Final = os._exit
_real_poll: Final = select.poll  # while a run is active there may be another
_NEXT: Final = 0
#: The most children of one value that are listed.
_MAX_CHILDREN: Final = 1000


# -- where the program is ----------------------------------------------------------------------------------------------


class CodeLine(NamedTuple):
    """A line of the program's own code: its frame, the path of its lane, and whether it belongs to the code that makes
    the step."""

    frame: FrameType
    lane: str
    own: bool


def places(scope: Scope, threads: ThreadMonitor, frame: FrameType | None) -> list[CodeLine]:
    """Return the lines of the program that make a step, from the innermost outwards, starting at ``frame``.

    A task's or a pool's call has its own lines first, then those of the lane that started it, which usually waits for
    it. So there is a line of the program even if the thread that makes the step runs only a library's code.
    """
    every = _all_places(scope, threads, frame)
    for kind in (_in_checkout, callers.is_user, _is_others):
        found = [one for one in every if kind(one.frame)]
        if found:
            return found
    return every


def _in_checkout(frame: FrameType) -> bool:
    return is_user_frame(frame)


def _is_others(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(TRACEKIT)


def _all_places(scope: Scope, threads: ThreadMonitor, frame: FrameType | None) -> list[CodeLine]:
    lane: Lane | None = scope.lane
    task = _reality.running_task()
    outermost = None if task is None else _frame_of(task.get_coro())
    found: list[CodeLine] = []
    while frame is not None:
        found.append(CodeLine(frame, scope.lane.path, True))
        inner, frame = frame, frame.f_back
        if inner is outermost:
            break
    seen = {id(one.frame) for one in found}
    running = {**sys._current_frames(), threading.get_ident(): frame}  # without what belongs to the task that runs here
    last = task
    while lane is not None:
        others = [*_outwards(running.get(lane.owner))]
        if lane.owner not in running and (waiting := threads.task(lane.owner)) is not None:
            others, last = [*_awaited_by(waiting)][::-1], waiting
        if lane.parent is None and last is not None:  # the code that runs the event loop
            others += _outwards(running.get(getattr(last.get_loop(), "_thread_id", None) or threading.get_ident()))
        for one in others:
            if id(one) not in seen:
                seen.add(id(one))
                found.append(CodeLine(one, lane.path, False))
        lane = lane.parent
    return found


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited_by(task: Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a waiting task, from the outermost inwards."""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = _frame_of(coroutine)
        if frame is None:
            return
        yield frame
        coroutine = next(
            (getattr(coroutine, name) for name in ("cr_await", "gi_yieldfrom", "ag_await") if hasattr(coroutine, name)),
            None,
        )


def _frame_of(coroutine: Any) -> FrameType | None:
    found = (getattr(coroutine, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
    return next((frame for frame in found if isinstance(frame, FrameType)), None)


# -- the debugger's part in the replayed process -----------------------------------------------------------------------


#: The name of the file, next to the debugger's socket, that receives hidden output.
SINK: Final = "hidden"
#: A step of the run: its number, in a child process ``"SEGMENT:NUMBER"``.
StepPlace = int | str


def joined(address: str, segment: str) -> RemoteDebugger | None:
    """Return the debugger's part in a child process of the replay, which is answered from this segment; ``None`` if the
    debugger is gone."""
    with guard.allow(), _reality.off_loop(), suppress(OSError, ValueError, KeyError):
        file = _connected(address, event="hello", segment=segment)
        sink = os.open(os.path.join(os.path.dirname(address), SINK), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        pipes = {"asked": file, "answers": os.dup(file), "sink": sink}
        return RemoteDebugger({**json.loads(_line_of(file)), **pipes, "address": address, "child": True})
    return None


def _connected(address: str, **hello: object) -> int:
    """Connect to the debugger, and send it the first message."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.connect(address)
        _send(found.fileno(), hello)
        return found.detach()


def _line_of(file: int) -> bytes:
    """Read the next line, and nothing beyond it."""
    line = b""
    while not line.endswith(b"\n") and (one := os.read(file, 1)):
        line += one
    return line


def _send(file: int, what: Mapping[str, Any]) -> None:
    line = json.dumps(what, default=repr).encode() + b"\n"
    while line:
        line = line[_reality.write(file, line) :]


class RemoteDebugger:
    """Stops the replay where the other process says; ``instructions`` name the pipes, the first step to stop at, and
    what is hidden.

    What the program prints up to step ``hidden`` has been seen before: it goes into the file ``sink``. ``debugpy``: an
    editor wants to step by lines, through the socket with this number or another connection to ``address``.
    """

    def __init__(self, instructions: Mapping[str, Any]) -> None:
        self._asked: Final = os.fdopen(instructions["asked"], "rb", buffering=0)
        self._answers: Final[int] = instructions["answers"]
        self._address: Final[str] = instructions["address"]
        self._answering: Final = threading.Lock()
        self._to: StepPlace | None = instructions["to"]
        self._lines_to_stop_at = _pairs(instructions["lines"])
        self._editor: Final[bool] = instructions["editor"]
        self._socket: Final[int | None] = instructions.get("debugpy")
        self._connected = False
        #: The last step that was made.
        self._last: StepPlace = 0
        self._hidden: StepPlace | None = instructions["hidden"]
        #: Held by the stopped thread; any other thread that reaches a step meanwhile waits for it.
        self._still: Final = threading.RLock()
        self._stopped = False
        #: Whether it is at the prompt of ``pdb``.
        self._at_prompt = False
        #: Whether ``pdb`` is stepping by lines.
        self._follows = False
        self._values: list[Any] = []
        self._streams: tuple[int, int] | None = None
        self._sink: Final[int] = instructions["sink"]
        for file in (self._asked.fileno(), self._answers, self._sink, self._socket):
            if file is not None:
                os.set_inheritable(file, False)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        if not instructions.get("child"):
            end_with_parent()
        if self._hidden is not None:
            self._hide()
        before: Any = sys.breakpointhook
        while isinstance(
            of := getattr(before, "__self__", None), RemoteDebugger
        ):  # the hook of the process that forked this one
            before = of._before
        self._before: Final[Callable[..., Any]] = before
        self._hook: Final = self._breakpoint
        sys.breakpointhook = self._hook

    def _forked(self) -> None:
        """In a forked child: it talks to the debugger itself, if it is debugged."""
        self._to = None
        self._lines_to_stop_at = frozenset()
        if sys.breakpointhook is self._hook:
            sys.breakpointhook = self._before
        with suppress(OSError):
            self._asked.close()
            os.close(self._answers)

    # -- what is printed -------------------------------------------------------------------------------------------------

    def _hide(self) -> None:
        self._streams = os.dup(1), os.dup(2)
        os.dup2(self._sink, 1)
        os.dup2(self._sink, 2)

    def show(self) -> None:
        """Show what the program prints from now on."""
        self._hidden = None
        if self._streams is None:
            return
        streams, self._streams = self._streams, None
        _flush()
        for number, saved in enumerate(streams, 1):
            os.dup2(saved, number)
            os.close(saved)
        os.ftruncate(self._sink, 0)

    # -- stopping --------------------------------------------------------------------------------------------------------

    def reached(self, replay: Replay, scope: Scope, seq: int) -> None:
        """Handle that the calling thread makes the recorded step ``seq``; see
        :class:`~tracekit._runtime.replayer.StepDebugger`."""
        segment = segment_in(replay.trace.path)
        place = seq if segment is None else f"{segment}:{seq}"
        if self._stopped or self._has_message():
            with self._still:  # released when the program may go on
                self._hear_meanwhile()
        if place == self._hidden:
            self.show()
        self._last = place
        frame, line = sys._getframe(1), None
        if self._editor:
            line = self._tell(replay, scope, place, frame)
        if not self._stops_at(place, line):
            return
        with self._still:
            if self._stops_at(place, line):  # it may have been another thread's next step
                self._stop(replay, scope, place, frame)

    def _has_message(self) -> bool:
        # An object of its own: several threads reach steps at once, and only one at a time may ask one.
        poll = _real_poll()
        poll.register(self._asked, select.POLLIN)
        return bool(poll.poll(0))

    def _hear_meanwhile(self) -> None:
        """Receive messages that arrived while the program was running: how far it may go now, since another process was
        stopped."""
        try:
            while self._has_message():
                self._apply_run(self._hear())
        except _GoneError:
            _leave()
        except Exception:  # an error must never reach the program
            traceback.print_exc(file=sys.__stderr__)

    def _apply_run(self, asked: Mapping[str, Any]) -> None:
        if asked["do"] != "run":
            _leave()
        self._to, self._lines_to_stop_at = asked["to"], _pairs(asked["lines"])

    @property
    def stands(self) -> bool:
        """Return whether the program is stopped, at a step or at a line."""
        return self._stopped or self._at_prompt or (self._connected and stopped_in_debugger())

    def _stops_at(self, place: StepPlace, line: tuple[str, int] | None) -> bool:
        return self._to in (_NEXT, place) or line in self._lines_to_stop_at

    def _tell(self, replay: Replay, scope: Scope, place: StepPlace, frame: FrameType) -> tuple[str, int] | None:
        """Report that this step is made, and from which line; return the line."""
        try:
            found = places(scope, replay.threads, frame)
            line = (found[0].frame.f_code.co_filename, found[0].frame.f_lineno or 0) if found else None
            self._say("made", step=place, line=line)
        except _GoneError:
            _leave()
        except Exception:  # an error must never reach the program
            traceback.print_exc(file=sys.__stderr__)
            return None
        return line

    def _stop(
        self, replay: Replay, scope: Scope, place: StepPlace, frame: FrameType | None, *, after: bool = False
    ) -> None:
        """Stop at a step, or ``after`` it, between two steps."""
        self._stopped = True
        self.show()
        replay.threads.away()
        goes_on: _Stepping | None = None
        try:
            found = places(scope, replay.threads, frame)
            with prompt(), _reality.off_loop():
                _flush()
                about = [_about(one) for one in found]
                self._say("stopped", step=place, after=after, lane=scope.lane.path, frames=about)
                goes_on = self._serve(replay, found)
        except _GoneError:
            _leave()
        except Exception:  # an error must never reach the program
            traceback.print_exc(file=sys.__stderr__)
            self._to = None
        finally:
            self._values = []
            self._stopped = False
            replay.threads.back()
        if goes_on is not None:
            how, there = goes_on
            how(there)

    def _serve(self, replay: Replay, found: list[CodeLine]) -> _Stepping | None:
        """Answer requests until the program is to go on; return how it steps by lines, and in which frame."""
        while True:
            asked = self._hear()
            what = asked["do"]
            if what == "run":
                segment, _, number = str(asked["to"] or "").rpartition(":")
                if number and segment == (segment_in(replay.trace.path) or "") and replay.made(int(number)):
                    self._say("passed")
                    continue
                self._apply_run(asked)
                return None
            if what == "evaluate":
                self._say("value", **self._evaluated(found, asked))
            elif what == "variables":
                self._say("variables", variables=self._variables(found, asked))
            elif what == "lines":
                place: CodeLine = found[asked["frame"]]
                if place.own:
                    self._to = _NEXT
                    return self._lines, place.frame
                self._pdb().interaction(place.frame, None)  # a frame that is not running can only be inspected
                self._say("looked")
            elif what == "debugpy":
                failed = None if self._connected else self._import_debugpy()
                self._say("debugpy", failed=failed)
                if failed is None and not self._connected:
                    self._connect()  # the editor sends its commands at the other end; wait for them
            elif what == "trace":
                self._to = _NEXT
                return self._trace, found[asked["frame"]].frame
            else:
                _leave()

    # -- values ----------------------------------------------------------------------------------------------------------

    def _evaluated(self, found: list[CodeLine], asked: Mapping[str, Any]) -> dict[str, Any]:
        frame = found[asked["frame"]].frame if found else None
        spaces = ({}, {}) if frame is None else (frame.f_globals, frame.f_locals)
        text = asked["text"].strip()
        try:
            try:
                code = compile(text, "<debugger>", "eval")
            except SyntaxError:
                exec(compile(text, "<debugger>", "single"), *spaces)  # a statement typed at the debugger's prompt
                return {"text": "", "failed": False, "of": 0}
            value = eval(code, *spaces)
            shown = _pretty(value) if asked.get("pretty") else repr(value)
            return {"text": shown, "failed": False, "of": self._known(value), "type": type(value).__name__}
        except BaseException as error:
            return {"text": traceback.format_exception_only(error)[-1].strip(), "failed": True, "of": 0}

    def _variables(self, found: list[CodeLine], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        if "of" in asked:
            items = _children(self._values[asked["of"] - 1])
        else:
            frame = found[asked["frame"]].frame
            names = frame.f_locals if asked["scope"] == "locals" else frame.f_globals
            items = [(name, value) for name, value in names.items() if not name.startswith("__")]
        return [
            {"name": name, "text": _SHORT.repr(value), "type": type(value).__name__, "of": self._known(value)}
            for name, value in items[:_MAX_CHILDREN]
        ]

    def _known(self, value: Any) -> int:
        """Return the number by which a value's children can be requested; 0: it has none."""
        if not _has_children(value):
            return 0
        self._values.append(value)
        return len(self._values)

    # -- line by line ----------------------------------------------------------------------------------------------------

    def _pdb(self) -> Any:
        from pdb import Pdb  # with its imports 2 ms, to be paid only if needed

        debugger = self

        class Lines(Pdb):
            def interaction(self, *args: Any, **options: Any) -> None:
                with debugger._still:
                    debugger._at_prompt = True
                    try:
                        super().interaction(*args, **options)
                    finally:
                        debugger._at_prompt = False

            def do_quit(self, arg: str) -> NoReturn:
                with suppress(_GoneError):
                    debugger._say("left")
                _leave()

            do_q = do_exit = do_EOF = do_quit

            def in_another_thread(self, frame: FrameType, event: str, arg: Any) -> Any:
                """In a thread that was started meanwhile, stop only at breakpoints, and step by lines from there."""
                if event == "call":
                    skipped = self.is_skipped_module(frame.f_globals.get("__name__", ""))
                    return None if skipped or not self.break_anywhere(frame) else self.in_another_thread
                if event != "line" or not self.break_here(frame):
                    return self.in_another_thread
                self.user_line(frame)
                sys.settrace(self.trace_dispatch)
                return self.trace_dispatch

        return Lines(
            stdin=_Asking(self),
            stdout=_Saying(self),
            skip=["tracekit", "tracekit.*", "tracekit_*", "wrapt.*"],
            nosigint=True,
        )

    def _lines(self, frame: FrameType) -> None:
        """Run ``pdb`` in a frame of this thread; stepping goes on from there."""
        debugger = self._pdb()
        debugger.set_trace(frame)  # hooks the frames; by itself it would stop at the next line of tracekit
        sys.settrace(None)
        # From Python 3.13 on set_trace() asks for a stop at the next instruction; a command revokes that for the frame it is given in.
        debugger.enterframe = frame
        debugger.interaction(frame, None)
        debugger.enterframe = None
        if frame.f_trace is not None:
            self._follows = True
            threading.settrace(debugger.in_another_thread)
            sys.settrace(debugger.trace_dispatch)

    def ended(self) -> None:
        """The program has ended: stop hiding its output and tracing its lines."""
        self.show()
        if self._follows:
            threading.settrace(None)
            sys.settrace(None)

    def _breakpoint(self, *args: Any, **options: Any) -> Any:
        """Handle ``breakpoint()`` in the program; ignored while the replay is returning to a step."""
        if self._hidden is not None:
            return None
        if self._editor:
            self._stop_between(sys._getframe(1))
            return None
        if os.environ.get("PYTHONBREAKPOINT") or self._before is not sys.__breakpointhook__:
            return self._before(*args, **options)
        return self._pdb().set_trace(sys._getframe(1))

    def _stop_between(self, frame: FrameType) -> None:
        scope = current.get()
        if scope is not None and isinstance(scope.session, Replay):
            with self._still:
                self._stop(scope.session, scope, self._last, frame, after=True)

    # -- debugpy ---------------------------------------------------------------------------------------------------------

    def _import_debugpy(self) -> str | None:
        """Import ``debugpy``; return why it is unavailable, or ``None``."""
        before = {**os.environ}
        os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # else it prints that the standard library is frozen
        try:
            import debugpy.server  # noqa: F401  # an editor has asked for it, which makes pydevd known
            import pydevd  # noqa: F401
        except Exception as error:
            return exception_text(error)
        finally:  # restore the program's variables
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
        return None

    def _connect(self) -> None:
        """Connect ``debugpy`` to the editor, which notices a failure by the end of the socket."""
        import debugpy  # noqa: T100
        import pydevd

        self._connected = True
        with guard.allow():
            sock = socket.socket(fileno=self._socket or _connected(self._address, event="lines"))
        # A replay may be in a network namespace of its own, in which nothing can connect: it gets a connected socket.
        start_client, pydevd.start_client = pydevd.start_client, lambda host, port: sock
        try:
            debugpy.connect(("127.0.0.1", 0))
        except Exception:
            traceback.print_exc(file=sys.__stderr__)
            sock.close()
        finally:
            pydevd.start_client = start_client

    def _trace(self, frame: FrameType) -> None:
        """Start ``debugpy`` at the next line of a frame."""
        import pydevd

        pydevd.settrace(
            suspend=True,
            trace_only_current_thread=True,
            patch_multiprocessing=False,
            stop_at_frame=frame,
            notify_stdin=False,
        )

    # -- the pipes -------------------------------------------------------------------------------------------------------

    def _say(self, event: str, **facts: Any) -> None:
        try:
            with self._answering:
                _send(self._answers, {"event": event, **facts})
        except OSError as error:
            raise _GoneError from error

    def _hear(self) -> dict[str, Any]:
        try:
            line = self._asked.readline()
        except OSError as error:  # killed before it read this process's last message
            raise _GoneError from error
        if not line.endswith(b"\n"):
            raise _GoneError
        found: dict[str, Any] = json.loads(line)
        return found


#: How a program steps by lines, and the frame in which it does.
_Stepping = tuple[Callable[[FrameType], None], FrameType]


def _pairs(lines: Iterable[Sequence[Any]]) -> frozenset[tuple[str, int]]:
    return frozenset((str(file), int(line)) for file, line in lines)


class _GoneError(Exception):
    """The process that debugs this one is gone."""


class _Asking(io.StringIO):
    """The standard input of ``pdb``: lines from the other process."""

    def __init__(self, debugger: RemoteDebugger) -> None:
        super().__init__()
        self._debugger: Final = debugger

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # typeshed has it two ways
        try:
            self._debugger._say("prompt")
            return str(self._debugger._hear().get("line", ""))
        except _GoneError:
            _leave()


class _Saying(io.StringIO):
    """The standard output of ``pdb``."""

    def __init__(self, debugger: RemoteDebugger) -> None:
        super().__init__()
        self._debugger: Final = debugger

    def write(self, text: str) -> int:
        try:
            self._debugger._say("output", text=text)
        except _GoneError:
            _leave()
        return len(text)


def _leave() -> NoReturn:
    """End this process, which is no longer debugged; nothing of that reaches the program."""
    _flush()
    _really_exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _about(place: CodeLine) -> dict[str, Any]:
    frame = place.frame
    return {
        "file": frame.f_code.co_filename,
        "line": frame.f_lineno,
        "function": frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name,
        "lane": place.lane,
        "own": place.own,
    }


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 12


def _pretty(value: Any) -> str:
    from pprint import pformat

    return pformat(value, width=100)


def _has_children(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return bool(len(value))
    return not isinstance(value, str | bytes | bytearray | int | float | complex | type(None) | type) and bool(
        getattr(value, "__dict__", None)
    )


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(repr(key), one) for key, one in [*value.items()][:_MAX_CHILDREN]]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{number}]", one) for number, one in enumerate([*value][:_MAX_CHILDREN])]
    return [*vars(value).items()]
