"""``tracekit dap``: the debugger of ``tracekit debug`` in an editor, by the Debug Adapter Protocol.

Where to go and what to stop at is shared with the prompt (``cli.debug``): steps, conditions, the replayed process.
Between two steps ``debugpy`` in that process steps by lines; the editor's requests meanwhile are passed on to it.
"""

from __future__ import annotations

import codecs
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import IO, Any, Final, NamedTuple

import click

from .. import _reality
from .._runs.debugging import StepPlace
from .._runs.reading import StepView, plain, read_run
from .._runs.replay import kinds_that_go_live
from .._runs.wording import raised_lines
from .._sources import TRACEKIT
from .._values import exception_text
from ..errors import TracekitError
from . import debug as prompt
from .debug import Condition, DebuggedReplay, GoneError, Line, Steps, Stop, Streams
from .output import USAGE_ERROR, message
from .replay import live_kinds, prepared
from .show import line_of

__all__ = ["Adapter", "Wire", "dap"]

_LOOPBACK: Final = "127.0.0.1"

# -- the protocol ------------------------------------------------------------------------------------------------------


class MessageError(Exception):
    """What arrived is framed as a message, but is none."""


class RefusedError(Exception):
    """A request that can't be answered: what is wrong, and what to do."""

    def __init__(self, what: str, next_action: str | None = None) -> None:
        super().__init__(what if next_action is None else f"{what}; {next_action}")


class Wire:
    """Messages of the protocol over two binary files. ``send`` may be called from several threads."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming: Final = incoming
        self._outgoing: Final = outgoing
        self._sending: Final = threading.Lock()
        self._sent = 0

    def read(self) -> dict[str, Any] | None:
        """Return the next message; ``None`` at the end. Raises ``MessageError`` for one that is not a JSON object."""
        length = self._length()
        if length is None:
            return None
        body = self._incoming.read(length)
        if len(body) < length:
            return None
        try:
            found = json.loads(body)
        except ValueError as error:
            raise MessageError(f"the message is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise MessageError(f"the message is not a JSON object: {found!r:.80}")
        return found

    def _length(self) -> int | None:
        """Return the length in the header; ``None`` at the end, and for another protocol: a browser's request must not
        be taken for a message."""
        length = None
        while line := self._incoming.readline(1000).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
            elif name.lower() != b"content-type":
                return None
        return length

    def send(self, **facts: Any) -> int:
        """Send a message; return its number. One that nobody reads any more is dropped."""
        with self._sending:
            self._sent += 1
            body = json.dumps({"seq": self._sent, **facts}, default=repr).encode()
            with suppress(OSError, ValueError):
                self._outgoing.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                self._outgoing.flush()
            return self._sent


# -- line by line ------------------------------------------------------------------------------------------------------


class LineDebugger:
    """``debugpy`` in the replayed process, with an editor's requests. ``stopped`` is called with its event when it
    stops."""

    def __init__(self, sock: socket.socket, stopped: Callable[[Mapping[str, Any]], object]) -> None:
        self.socket: Final = sock
        self._wire: Final = Wire(sock.makefile("rb"), sock.makefile("wb"))
        self._stopped: Final = stopped
        self._answers: Final[dict[int, queue.SimpleQueue[dict[str, Any]]]] = {}
        self._changing: Final = threading.Condition()
        self._ended = False
        threading.Thread(target=self._listen, name="tracekit-debugpy", daemon=True).start()
        self.ask("initialize", adapterID="tracekit", linesStartAt1=True, columnsStartAt1=True, pathFormat="path")
        rules = [{"path": f"{TRACEKIT}**", "include": False}]
        self.ask("attach", justMyCode=True, rules=rules, subProcess=False)
        self.ask("configurationDone")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return its answer to a request. Raises ``RefusedError`` if it refuses, ``GoneError`` if its process has
        ended."""
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._changing:
            if self._ended:
                raise GoneError
            self._answers[self._wire.send(type="request", command=command, arguments=arguments)] = answer
        found = answer.get()
        if not found:
            raise GoneError
        if not found.get("success"):
            raise RefusedError(f"debugpy: {found.get('message') or f'it refuses {command}'}")
        body: dict[str, Any] = found.get("body") or {}
        return body

    def leave(self) -> None:
        """Stop stepping by lines in all threads. None of them is stopped, so this gets no answer, but the next request
        does."""
        self._wire.send(type="request", command="continue", arguments={"threadId": "*"})
        self.ask("threads")

    def _listen(self) -> None:
        with suppress(OSError, ValueError, MessageError):
            while (found := self._wire.read()) is not None:
                if found.get("type") == "response":
                    with self._changing:
                        answer = self._answers.pop(found["request_seq"], None)
                    if answer is not None:
                        answer.put(found)
                elif found.get("type") == "event" and found.get("event") == "stopped":
                    self._stopped(found["body"])
        with self._changing:
            self._ended = True
            for answer in self._answers.values():
                answer.put({})


# -- the editor's debugger ---------------------------------------------------------------------------------------------


class LineBreakpoint(NamedTuple):
    """A breakpoint in a line of a file: it stops at the steps made from there, if ``condition`` holds in that line."""

    id: int
    path: str
    line: int
    condition: str | None


class StepBreakpoint(NamedTuple):
    """A breakpoint by properties of a step (a *function breakpoint*): all conditions must hold."""

    id: int
    conditions: tuple[Condition, ...]

    def holds(self, step: StepView) -> bool:
        return all(one.holds(step) for one in self.conditions)


class _Members(NamedTuple):
    """The children of a value in the replayed process: the request that returns them (``_runs.debugging``)."""

    question: Mapping[str, Any]


#: A move: returns where the replay has stopped, and why, in the protocol's terms.
Way = Callable[[], tuple[Stop | None, str]]

_FAILED: Final = "failed"
_CAPABILITIES: Final = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsStepBack": True,
    "supportsGotoTargetsRequest": True,
    "supportsRestartRequest": True,
    "supportsTerminateRequest": True,
    "supportsExceptionInfoRequest": True,
    "supportsEvaluateForHovers": True,
    "exceptionBreakpointFilters": [{"filter": _FAILED, "label": "Steps that failed", "default": False}],
}


class Adapter:
    """One session of an editor: its requests arrive by ``wire``, and are answered in that order.

    One thread (``_go_on``) runs the replay while further requests are read.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire: Final = wire
        self._open: Final = ExitStack()
        self._ways: Final[queue.SimpleQueue[Way | None]] = queue.SimpleQueue()
        self._traveller: threading.Thread | None = None
        #: Actions to take once the request was answered.
        self._follows: Final[list[Callable[[], object]]] = []
        #: Messages from the editor; ``None`` at its end.
        self._messages: Final[queue.SimpleQueue[dict[str, Any] | MessageError | None]] = queue.SimpleQueue()
        #: The editor wants no more of the replay; and it has left.
        self._leaving = self._left = False
        #: Where the replay prints to, and what confirms that it was passed on up to a mark, which no program prints.
        self._streams: Final[list[tuple[int, threading.Semaphore]]] = []
        self._mark: Final = b"\0%s\0" % _reality.urandom(16).hex().encode()
        self._steps: Steps | None = None
        self._replay_: DebuggedReplay | None = None
        self._begin: StepPlace | None = None
        #: Whether the editor runs the program "without debugging": it stops nowhere, and the session ends with it.
        self._undebugged = False
        #: The threads and tasks of the run, by process and lane: the editor's number for each.
        self._lanes: Final[dict[tuple[str, int], int]] = {("", 0): 1}
        #: Whether the replay is running. If it has stopped between two steps, in ``debugpy``, the thread that waits for
        #: the next step is still waiting.
        self._runs = False
        self._state: Final = threading.Lock()
        self._lines: LineDebugger | None = None
        self._line_thread: int | None = None
        #: Stepping by lines until the next breakpoint.
        self._passing = False
        #: Why the replay was ended before its end, if it was.
        self._given_up: str | None = None
        #: Where to go instead, when the thread that waits for the next step notices the end of the process.
        self._instead: Way | None = None
        self._line_breakpoints: Final[dict[str, list[LineBreakpoint]]] = {}
        self._step_breakpoints: list[StepBreakpoint] = []
        self._stops_at_failures = False
        self._number_of_breakpoints = 0
        #: The values that the editor knows by number, until the replay goes on.
        self._values: list[Any] = []
        self._requests: Final[Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]]] = {
            "initialize": self._initialize,
            "launch": self._launch,
            "configurationDone": self._configuration_done,
            "setBreakpoints": self._set_breakpoints,
            "setFunctionBreakpoints": self._set_function_breakpoints,
            "setExceptionBreakpoints": self._set_exception_breakpoints,
            "threads": self._threads,
            "stackTrace": self._stack_trace,
            "scopes": self._scopes,
            "variables": self._variables,
            "evaluate": self._evaluate,
            "exceptionInfo": self._exception_info,
            "continue": self._continue,
            "next": self._next,
            "stepIn": self._step_in,
            "stepOut": self._step_out,
            "stepBack": self._step_back,
            "reverseContinue": self._reverse_continue,
            "gotoTargets": self._goto_targets,
            "goto": self._goto,
            "restart": self._restart,
            "terminate": self._terminate,
            "disconnect": self._disconnect,
        }

    # -- requests --------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer until the editor leaves; then nothing of the replay is left."""
        threading.Thread(target=self._read, name="tracekit-editor", daemon=True).start()
        try:
            while not self._left and (found := self._messages.get()) is not None:
                if isinstance(found, MessageError):
                    self._refuse({}, str(found))
                elif found.get("type") == "request":
                    self._answer(found)
        finally:
            self._leaving = True
            self._ways.put(None)
            if self._replay_ is not None:
                self._replay_.kill(for_good=True)
            if self._traveller is not None:
                self._traveller.join()
            self._open.close()

    def _read(self) -> None:
        """Read messages. When the editor leaves, the replay ends at once: earlier requests may never be answered."""
        command: object = None
        found: dict[str, Any] | MessageError | None = {}
        while found is not None and command != "disconnect":
            try:
                found = self._wire.read()
            except MessageError as error:
                found = error
            except (OSError, ValueError):
                found = None
            command = found.get("command") if isinstance(found, dict) else None
            if found is None or command in ("disconnect", "terminate"):
                self._leaving = True
                if self._replay_ is not None:
                    self._replay_.kill(for_good=True)
            self._messages.put(found)

    def _answer(self, request: dict[str, Any]) -> None:
        command: Any = request.get("command")
        arguments: Any = request.get("arguments") or {}
        self._follows.clear()
        try:
            if not isinstance(arguments, dict):
                raise RefusedError(f"the arguments of {command} are not an object: {arguments!r:.80}")
            answer = self._requests.get(str(command))
            if answer is None:
                raise RefusedError(f"there is no request {command!r:.80} here")
            body = answer(arguments)
        except RefusedError as error:
            self._refuse(request, str(error))
        except TracekitError as error:
            self._refuse(request, error.what + (f"; {error.next_action}" if error.next_action else ""))
        except click.ClickException as error:
            self._refuse(request, error.format_message())
        except GoneError:
            self._refuse(request, "the replay has ended meanwhile")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self._refuse(request, f"the arguments of {command} are not as they should be: {exception_text(error)}")
        except Exception as error:
            traceback.print_exc()
            self._refuse(request, f"{command} failed in tracekit: {exception_text(error)}")
        else:
            response = {"type": "response", "request_seq": request.get("seq", 0), "success": True, "command": command}
            self._wire.send(**response, **({} if body is None else {"body": body}))
            for follows in self._follows:
                follows()

    def _refuse(self, request: Mapping[str, Any], text: str) -> None:
        self._wire.send(
            type="response",
            request_seq=request.get("seq", 0),
            success=False,
            command=str(request.get("command", "")),
            message=text,
            body={"error": {"id": 1, "format": "{text}", "variables": {"text": text}, "showUser": True}},
        )

    def _event(self, event: str, **body: Any) -> None:
        self._wire.send(type="event", event=event, body=body)

    def _say(self, text: str, category: str = "console") -> None:
        if text:
            self._event("output", category=category, output=text)

    # -- the beginning and the end ---------------------------------------------------------------------------------------

    def _initialize(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if arguments.get("linesStartAt1", True) is False or arguments.get("pathFormat", "path") != "path":
            raise RefusedError(
                "lines begin at 1 here, and files are named by their paths", "set the editor's client so"
            )
        return _CAPABILITIES

    def _launch(self, arguments: Mapping[str, Any]) -> None:
        if self._steps is not None:
            raise RefusedError("a replay was launched already", "disconnect first")
        if isinstance(cwd := arguments.get("cwd"), str):
            try:
                os.chdir(cwd)
            except OSError as error:
                raise RefusedError(f"cwd: {error}") from error
        with prompt.debug.make_context("tracekit debug", _command_line(arguments)) as context:
            options = dict(context.params)
        at, run = options.pop("at"), options.pop("run")
        found = prepared(run, options.pop("command"), options.pop("store"), "debug", {**options, "live": ()})
        view = self._open.enter_context(read_run(found.path, found.store))
        steps = Steps(view)
        self._begin = steps.place(at) if at is not None else None
        self._undebugged = arguments.get("noDebug") is True
        if self._undebugged:
            self._begin = None
        elif self._begin is None and arguments.get("stopOnEntry", True):
            self._begin = steps.places[0]
        streams = Streams(self._passed_on("stdout"), self._passed_on("stderr"))
        replay = DebuggedReplay(found, steps, lambda: None, lambda text: self._say(text, "stdout"), streams)
        self._open.callback(replay.close)
        self._steps, self._replay_ = steps, replay
        self._traveller = threading.Thread(target=self._go_on, name="tracekit-replay")
        self._traveller.start()
        self._follows.append(lambda: self._event("initialized"))

    def _passed_on(self, category: str) -> int:
        """Return a descriptor whose input is passed to the editor."""
        out, into = os.pipe()
        passed = threading.Semaphore(0)
        threading.Thread(
            target=self._pass_on, args=(out, category, passed), name=f"tracekit-{category}", daemon=True
        ).start()
        self._streams.append((into, passed))
        self._open.callback(os.close, into)
        return into

    def _pass_on(self, out: int, category: str, passed: threading.Semaphore) -> None:
        pending = b""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with os.fdopen(out, "rb", buffering=0) as stream:
            while data := stream.read(65536):
                *whole, pending = (pending + data).split(self._mark)
                for text in whole:
                    self._say(decoder.decode(text), category)
                    passed.release()
                kept = max((n for n in range(1, len(self._mark)) if pending.endswith(self._mark[:n])), default=0)
                self._say(decoder.decode(pending[: len(pending) - kept]), category)
                pending = pending[len(pending) - kept :]

    def _all_passed_on(self) -> None:
        """Wait until everything that the program has printed so far has been passed on."""
        for into, passed in self._streams:
            os.write(into, self._mark)
            passed.acquire()

    def _configuration_done(self, arguments: Mapping[str, Any]) -> None:
        begin = self._begin
        if self._undebugged:
            self._go(self._to_end)
        else:
            self._go(self._to_breakpoint if begin is None else lambda: (self._replay.go(begin), "entry"))

    def _restart(self, arguments: Mapping[str, Any]) -> None:
        first = self._known.places[0] if self._begin is None else self._begin
        self._go(lambda: (self._replay.go(first), "entry"))

    def _terminate(self, arguments: Mapping[str, Any]) -> None:
        self._end()

    def _disconnect(self, arguments: Mapping[str, Any]) -> None:
        self._left = True

    def _end(self, status: int | None = None) -> None:
        def ended() -> None:
            if self._replay_ is not None:
                self._replay_.kill()
            if status is not None:
                self._event("exited", exitCode=status)
            self._event("terminated")

        self._follows.append(ended)

    # -- breakpoints -----------------------------------------------------------------------------------------------------

    def _new_breakpoint(self) -> int:
        self._number_of_breakpoints += 1
        return self._number_of_breakpoints

    def _set_breakpoints(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        path = _real(arguments["source"].get("path") or arguments["source"].get("name") or "")
        found: list[LineBreakpoint] = []
        answers: list[dict[str, Any]] = []
        for one in arguments.get("breakpoints") or ():
            new = LineBreakpoint(self._new_breakpoint(), path, int(one["line"]), one.get("condition") or None)
            wrong = _wrong_expression(new.condition)
            if wrong is None:
                found.append(new)
            answers.append(_about_breakpoint(new.id, wrong) | {"line": new.line})
        self._line_breakpoints[path] = found
        return {"breakpoints": answers}

    def _set_function_breakpoints(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        found: list[StepBreakpoint] = []
        answers: list[dict[str, Any]] = []
        for one in arguments["breakpoints"]:
            number, wrong = self._new_breakpoint(), None
            try:
                asked = [self._known.condition(str(text)) for text in (one["name"], one.get("condition")) if text]
                found.append(StepBreakpoint(number, tuple(asked)))
            except TracekitError as error:
                wrong = f"{error.what}; {error.next_action}"
            answers.append(_about_breakpoint(number, wrong))
        self._step_breakpoints = found
        return {"breakpoints": answers}

    def _set_exception_breakpoints(self, arguments: Mapping[str, Any]) -> None:
        self._stops_at_failures = _FAILED in arguments["filters"]

    def _wants(self, step: StepView) -> bool:
        """Return whether to stop at this step, wherever it is made from."""
        return (self._stops_at_failures and step.failed) or any(one.holds(step) for one in self._step_breakpoints)

    def _in_lines(self) -> list[Line]:
        found = {(one.path, one.line) for some in self._line_breakpoints.values() for one in some}
        return [(path, line) for real, line in found for path in self._spellings(real)]

    def _spellings(self, real: str) -> Iterator[str]:
        """Yield the names that the replayed program may have for a file: its own, if it leads over a link."""
        yield real
        seen = {path for path, _ in self._replay.lines_of.values()} if self._replay_ is not None else set()
        directories = {self._replay.directory, os.getcwd()} if self._replay_ is not None else {os.getcwd()}
        for directory in directories:
            relative = os.path.relpath(real, os.path.realpath(directory))
            seen.add(os.path.join(directory, relative))
        yield from (path for path in seen if path != real and _real(path) == real)

    def _hit(self, stop: Stop) -> str | None:
        """Return why to stop here, in the protocol's terms; ``None``: don't stop."""
        step = self._known.get(stop.step)
        if stop.after:  # `breakpoint()` in the program
            return "breakpoint"
        if step is not None and self._stops_at_failures and step.failed:
            return "exception"
        if step is not None and any(one.holds(step) for one in self._step_breakpoints):
            return "function breakpoint"
        here = self._replay.lines_of.get(stop.step)
        if here is None:
            return None
        path = _real(here[0])
        for one in self._line_breakpoints.get(path, ()):
            if one.line == here[1] and (one.condition is None or self._holds(one.condition)):
                return "breakpoint"
        return None

    def _holds(self, condition: str) -> bool:
        found = self._replay.ask(do="evaluate", frame=0, text=f"bool({condition})")
        if found["failed"]:
            self._say(f"condition {condition}: {found['text']}\n", "important")
        return bool(found["text"] == "True" or found["failed"])

    # -- going -----------------------------------------------------------------------------------------------------------

    @property
    def _replay(self) -> DebuggedReplay:
        if self._replay_ is None:
            raise RefusedError("no replay was launched", "send launch first")
        return self._replay_

    @property
    def _known(self) -> Steps:
        if self._steps is None:
            raise RefusedError("no replay was launched", "send launch first")
        return self._steps

    @property
    def _place(self) -> StepPlace | None:
        """The step at which it has stopped, or the last one made in the stopped process."""
        if self._line_thread is not None:
            return self._replay.last
        return None if self._replay.at is None else self._replay.at.step

    @property
    def _position(self) -> int:
        """Its position among the steps of the run; -1 before the start, past the last one at the end. Between two
        steps: at the first of them."""
        place = self._place
        if place is None:
            return -1 if self._replay.status is None else len(self._known)
        return self._known.position(place) - (place not in self._known.places)

    @property
    def _between(self) -> bool:
        """Whether it has stopped between two steps."""
        return self._line_thread is not None or (self._replay.at is not None and self._replay.at.after)

    @property
    def _at_end(self) -> bool:
        return not self._runs and self._replay.at is None and self._line_thread is None

    def _go(self, way: Way) -> None:
        """Go there once the request was answered. If it is stopped in ``debugpy``, leave that."""
        replay = self._replay
        with self._state:
            if self._runs:
                raise RefusedError("the replay runs", "it stops at a breakpoint, or at its end")
            self._runs = True
            waits, self._line_thread = self._line_thread is not None, None
            if waits:
                self._instead = way
        self._values = []
        self._follows.append(replay.kill if waits else lambda: self._ways.put(way))

    def _go_on(self) -> None:
        while (way := self._ways.get()) is not None:
            while way is not None:
                way = self._gone(way)

    def _gone(self, way: Way) -> Way | None:
        """Make one move; return where to go instead, if that was requested meanwhile."""
        self._given_up = None
        try:
            stop, reason = way()
        except RefusedError as error:
            self._say(f"{error}\n", "important")
            stop, reason = self._replay.at, "pause"
        except GoneError:
            stop, reason = None, "pause"
        except Exception as error:  # must not end the editor's session
            stop, reason = self._replay.at, "pause"
            if self._instead is None and not self._leaving:
                self._say(traceback.format_exc(), "important")
                if stop is None:  # nobody knows how far it has come
                    self._replay.kill()
                    self._given_up = f"the replay was ended: {exception_text(error)}"
        instead, self._instead = self._instead, None
        if instead is None and not self._leaving:
            self._arrived(stop, reason)
        return instead

    def _arrived(self, stop: Stop | None, reason: str) -> None:
        self._all_passed_on()
        with self._state:
            self._runs, self._line_thread = False, None
        if stop is None:
            status = self._replay.status
            if self._undebugged:
                self._event("exited", exitCode=status)
                self._event("terminated")
                return
            text = self._end_text
            self._say(f"{text}\n")
            self._event("stopped", reason="pause", description=text, threadId=1, allThreadsStopped=True)
            return
        text = self._title(stop)
        step = self._known.get(stop.step)
        self._say(f"{text}{f': {line_of(step, 150).plain}' if step is not None and not stop.after else ''}\n")
        failed = {"text": step.error} if step is not None and reason == "exception" else {}
        self._event(
            "stopped", reason=reason, description=text, threadId=self._thread(stop), allThreadsStopped=True, **failed
        )

    @property
    def _end_text(self) -> str:
        return self._given_up or f"the end of the replay (exit code {self._replay.status})"

    def _title(self, stop: Stop) -> str:
        step = self._known.get(stop.step)
        where = "" if step is None else f" ({self._known.position(stop.step) + 1} of {len(self._known)})"
        return f"{'after ' if stop.after else ''}step {stop.step}{where}"

    def _thread(self, stop: Stop) -> int:
        return self._thread_of(self._known.get(stop.step))

    def _thread_of(self, step: StepView | None) -> int:
        return (
            1 if step is None else self._lanes.setdefault((step.file.process, step.lane_number), len(self._lanes) + 1)
        )

    def _here(self) -> StepView | None:
        place = self._place
        return None if place is None else self._known.get(place)

    def _to_first(self, *ways: Iterator[StepView]) -> Way:
        """Return a move to the first step that exists, of the iterators in order; to the end if there is none."""
        found = next((step.place for way in ways for step in way), None)
        return lambda: (self._replay.go(found), "step")

    def _to_end(self) -> tuple[Stop | None, str]:
        while self._replay.go(None) is not None:  # `breakpoint()` in the program
            pass
        return None, ""

    def _to_breakpoint(self) -> tuple[Stop | None, str]:
        while True:
            target = next((step.place for step in self._known.after(self._position) if self._wants(step)), None)
            stop = self._replay.go(target, self._in_lines())
            if stop is None:
                return None, ""
            if (reason := self._hit(stop)) is not None:
                return stop, reason

    def _back_to_breakpoint(self, position: int) -> tuple[Stop | None, str]:
        lines = {(_real(path), line) for path, line in self._in_lines()}
        for step in self._known.before(position):
            path, line = self._replay.lines_of.get(step.place, ("", 0))
            if self._wants(step) or (_real(path), line) in lines:
                stop = self._replay.go(step.place)
                if stop is None:
                    return None, ""
                if (reason := self._hit(stop)) is not None:
                    return stop, reason
        return self._replay.go(self._known.places[0]), "entry"

    def _continue(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._line_thread is not None:
            self._passing = True
            self._resume("continue")
        elif self._at_end and self._replay.status is not None:
            self._end(self._replay.status)
        else:
            self._go(self._to_breakpoint)
        return {"allThreadsContinued": True}

    def _reverse_continue(self, arguments: Mapping[str, Any]) -> None:
        position = self._position + self._between
        self._go(lambda: self._back_to_breakpoint(position))

    def _next(self, arguments: Mapping[str, Any]) -> None:
        if self._line_thread is not None:
            self._resume("next")
        elif self._at_end:
            raise RefusedError("this is the end of the replay", "go back, or continue to leave it")
        else:
            position = self._position
            self._go(self._to_first(self._known.after(position, self._here()), self._known.after(position)))

    def _step_back(self, arguments: Mapping[str, Any]) -> None:
        position = self._position + self._between  # between two steps: the last one made
        here = None if self._between else self._here()
        before = (self._known.before(position, here), self._known.before(position))
        if not any(self._known.before(position)):
            raise RefusedError("this is the first step of the run")
        self._go(self._to_first(*before))

    def _step_in(self, arguments: Mapping[str, Any]) -> None:
        self._line(0, "stepIn")

    def _step_out(self, arguments: Mapping[str, Any]) -> None:
        self._line(1, "stepOut")

    def _goto_targets(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        here = (_real(arguments["source"].get("path") or ""), int(arguments["line"]))
        made = {place for place, (path, line) in self._replay.lines_of.items() if (_real(path), line) == here}
        found = [(number, one) for number, one in enumerate(self._known.after(-1), 1) if one.place in made]
        return {"targets": [{"id": number, "label": line_of(one, 100).plain, "line": here[1]} for number, one in found]}

    def _goto(self, arguments: Mapping[str, Any]) -> None:
        number = int(arguments["targetId"])
        if not 1 <= number <= len(self._known):
            raise RefusedError(f"there is no target {number}", "ask for gotoTargets first")
        place = self._known.places[number - 1]
        self._go(lambda: (self._replay.go(place), "goto"))

    def _command(self, name: str, rest: str) -> None:
        """Run a command of the prompt of ``tracekit debug`` in the editor's console."""
        replay, steps = self._replay, self._known
        if name == "goto":
            place = steps.place(rest)
            self._go(lambda: (replay.go(place), "goto"))
        elif name == "what-if":
            since = self._place or 0
            kinds = kinds_that_go_live(live_kinds(shlex.split(rest) or ("llm",)))
            self._go(lambda: (replay.branch(kinds, since), "pause"))
        else:
            wanted = steps.condition(rest)
            there = steps.after(self._position) if name == "until" else steps.before(self._position + self._between)
            found = next((step.place for step in there if wanted.holds(step)), None)
            if found is None:
                raise RefusedError(f"no {'later' if name == 'until' else 'earlier'} step has {wanted.text}")
            self._go(lambda: (replay.go(found), "goto"))

    # -- line by line ----------------------------------------------------------------------------------------------------

    def _line(self, frame: int, command: str) -> None:
        """Go from a step to the next line of the frame that makes it, or of an outer frame; from a line on, debugpy
        does that."""
        if self._line_thread is not None:
            self._resume(command)
            return
        at = self._replay.at
        if at is None:
            raise RefusedError("the replay does not stand at a step")
        own = [number for number, one in enumerate(at.frames) if one.own]
        if len(own) <= frame:
            raise RefusedError(
                "there is no line of your program here that continues from this step",
                "go to the next step, or continue",
            )
        lines = self._connected()
        self._go(lambda: self._traced(lines, own[frame]))

    def _connected(self) -> LineDebugger:
        """Return ``debugpy`` in the stopped process of the replay, connected."""
        replay = self._replay
        if self._lines is None or self._lines.socket is not replay.editor:
            failed = replay.ask(do="debugpy")["failed"]
            if failed is not None:
                raise RefusedError(
                    f"going line by line takes debugpy where the program runs, which has none ({failed})",
                    "pip install debugpy",
                )
            try:
                self._lines = LineDebugger(replay.line_by_line(), self._line_reached)
            except GoneError:
                raise RefusedError("debugpy could not be connected", "the replay has printed why") from None
        return self._lines

    def _traced(self, lines: LineDebugger, frame: int) -> tuple[Stop | None, str]:
        self._passing = False
        stop = self._replay.trace(frame)
        if stop is None:
            return None, ""
        with suppress(RefusedError, GoneError):
            lines.leave()  # otherwise it would stop in a line once more, after this step
        if self._passing:
            reason = self._hit(stop)
            return (stop, reason) if reason is not None else self._to_breakpoint()
        return stop, "breakpoint" if stop.after else "step"

    def _line_reached(self, stopped: Mapping[str, Any]) -> None:
        """Handle that ``debugpy`` has stopped at a line."""
        with self._state:
            if self._leaving or self._instead is not None:
                return
            self._runs, self._line_thread = False, stopped.get("threadId") or 1
        self._all_passed_on()
        self._values = []
        between = Stop(self._replay.last, True, "", ())
        self._event(
            "stopped",
            reason="step",
            description=self._title(between),
            threadId=self._thread(between),
            allThreadsStopped=True,
        )

    def _resume(self, command: str) -> None:
        lines, thread = self._lines, self._line_thread
        assert lines is not None
        with self._state:
            self._runs, self._line_thread = True, None

        def resume() -> None:
            with suppress(GoneError):
                lines.ask(command, threadId=thread)

        self._follows.append(resume)

    # -- what the editor shows -------------------------------------------------------------------------------------------

    def _stopped(self) -> Stop | None:
        """Return where it has stopped, ``None`` at the end."""
        if self._runs:
            raise RefusedError("the replay runs")
        return self._replay.at

    def _threads(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._replay_ is None or self._runs or self._at_end:
            return {"threads": [{"id": 1, "name": "replay"}]}
        step = self._here()
        name = "replay" if step is None else step.lane.path or "main"
        if step is not None and step.file.process:
            name = f"{step.file.process}: {name}"
        return {"threads": [{"id": self._thread_of(step), "name": name}]}

    def _stack_trace(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._line_thread is not None and self._lines is not None:
            found = self._lines.ask("stackTrace", threadId=self._line_thread)
            frames = [one for one in found["stackFrames"] if not _is_ours(one)]
        else:
            stop = self._stopped()
            if stop is None:
                frames = [{"id": 0, "name": self._end_text, "line": 0, "column": 0, "presentationHint": "label"}]
            else:
                frames = [_about_frame(number, one) for number, one in enumerate(stop.frames, 1)]
                nowhere = {"id": 1, "name": self._title(stop), "line": 0, "column": 0, "presentationHint": "label"}
                frames = frames or [nowhere]
        first, most = int(arguments.get("startFrame") or 0), int(arguments.get("levels") or 0)
        return {"stackFrames": frames[first : first + most if most else None], "totalFrames": len(frames)}

    def _scopes(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._line_thread is not None and self._lines is not None:
            return self._lines.ask("scopes", frameId=arguments["frameId"])
        stop, number = self._stopped(), int(arguments["frameId"]) - 1
        if stop is None:
            return {"scopes": []}
        step = self._known.get(stop.step)
        found: list[dict[str, Any]] = []
        if step is not None:
            title = f"{'Last step' if stop.after else 'Step'} {step.place}: {step.kind} {step.name}"
            found.append(self._scope(title, _facts_of(step)))
        if 0 <= number < len(stop.frames):
            for name in ("locals", "globals"):
                scope = self._scope(name.capitalize(), _Members({"frame": number, "scope": name}))
                found.append(scope | {"presentationHint": name, "expensive": name == "globals"})
        return {"scopes": found}

    def _scope(self, name: str, value: Any) -> dict[str, Any]:
        return {"name": name, "variablesReference": self._numbered(value), "expensive": False}

    def _numbered(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values)

    def _variables(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = int(arguments["variablesReference"])
        if self._line_thread is not None and self._lines is not None:
            found = {key: arguments[key] for key in ("start", "count", "filter", "format") if key in arguments}
            return self._lines.ask("variables", variablesReference=reference, **found)
        self._stopped()
        if not 1 <= reference <= len(self._values):
            raise RefusedError(
                f"there is no variablesReference {reference}", "they are valid until the replay continues"
            )
        value = self._values[reference - 1]
        if isinstance(value, _Members):
            asked = self._replay.ask(do="variables", **value.question)["variables"]
            return {"variables": [self._remote(one["name"], one) for one in asked]}
        items = value.items() if isinstance(value, Mapping) else ((f"[{n}]", one) for n, one in enumerate(value))
        return {"variables": [self._variable(str(name), one) for name, one in items]}

    def _remote(self, name: str, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value of the replayed process in the protocol's form."""
        inside = self._numbered(_Members({"of": about["of"]})) if about["of"] else 0
        return {"name": name, "value": about["text"], "type": about["type"], "variablesReference": inside}

    def _variable(self, name: str, value: Any) -> dict[str, Any]:
        """Return a recorded value in the protocol's form."""
        inside = self._numbered(value) if isinstance(value, Mapping | list) and value else 0
        text = value if isinstance(value, _Label) else json.dumps(value, ensure_ascii=False, default=repr)
        kind = "str" if isinstance(value, str) else type(value).__name__
        return {"name": name, "value": text[:10_000], "type": kind, "variablesReference": inside}

    def _evaluate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        text, frame = str(arguments["expression"]), arguments.get("frameId")
        name, _, rest = text.strip().partition(" ")
        if arguments.get("context") == "repl" and name in ("goto", "until", "reverse-until", "what-if"):
            self._command(name, rest.strip())
            return {"result": "", "variablesReference": 0}
        if self._line_thread is not None and self._lines is not None:
            asked = {"expression": text, "context": arguments.get("context", "watch")}
            return self._lines.ask("evaluate", **asked, **({} if frame is None else {"frameId": frame}))
        stop = self._stopped()
        if stop is None:
            raise RefusedError("the replay is at its end", "go back to a step")
        number = int(frame or 1) - 1
        if not 0 <= number < max(1, len(stop.frames)):
            raise RefusedError(f"there is no frame {frame}")
        found = self._replay.ask(do="evaluate", frame=number, text=text)
        if found["failed"]:
            raise RefusedError(found["text"])
        inside = self._numbered(_Members({"of": found["of"]})) if found["of"] else 0
        return {"result": found["text"], "type": found.get("type", ""), "variablesReference": inside}

    def _exception_info(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        stop = self._stopped()
        step = None if stop is None else self._known.get(stop.step)
        if step is None or step.error is None:
            raise RefusedError("this step did not fail")
        raised = step.raised or {}
        return {"exceptionId": str(raised.get("type") or step.kind), "description": step.error, "breakMode": "always"}


class _Label(str):
    """Words about a step, not a recorded value."""

    __slots__ = ()


def _facts_of(step: StepView) -> dict[str, Any]:
    """Return what the editor shows of a step."""
    found: dict[str, Any] = {"kind": _Label(step.kind), "name": _Label(step.name), "state": _Label(step.state)}
    found |= {key: _Label(value) for key, value in (("side_effect", step.side_effect), ("agent", step.agent)) if value}
    if step.took:
        found["took"] = _Label(f"{step.took / 1e6:.3f} ms")
    call = step.call
    if call is not None:
        found |= {"model": _Label(call.model), "usage": dict(call.usage)}
        found["prompt"] = [{"role": one.role, "text": one.text} for one in call.prompt.messages]
    found["input"] = plain(step.input)
    if call is not None:
        found["answer"] = call.answer.text
        found["requested"] = [{"name": one.name, "arguments": one.arguments} for one in call.requested]
    if step.has_output:
        found["output" if call is not None else "answer"] = plain(step.output)
    elif step.chunks:
        found["pieces"] = [plain(one) for one in step.pieces(1000)]
    if step.values:
        found["values"] = plain(step.values)
    if step.error is not None:
        found["error"] = _Label(step.error)
        if lines := raised_lines(step):
            found["raised at"] = _Label(lines[-1])
    return found


def _about_frame(number: int, frame: prompt.Frame) -> dict[str, Any]:
    lane = frame.lane.rpartition("/")[2] or "main"
    found = {"id": number, "name": frame.function, "line": frame.line, "column": 1}
    if not frame.own:
        found |= {"name": f"{frame.function} [{lane}, which waits]", "presentationHint": "subtle"}
    if os.path.isfile(frame.file):
        found["source"] = {"name": os.path.basename(frame.file), "path": os.path.abspath(frame.file)}
    return found


def _about_breakpoint(number: int, wrong: str | None) -> dict[str, Any]:
    return {"id": number, "verified": wrong is None, **({} if wrong is None else {"message": wrong})}


def _is_ours(frame: Mapping[str, Any]) -> bool:
    path = str((frame.get("source") or {}).get("path") or "")
    return path.startswith(TRACEKIT) or os.path.basename(path) == "runpy.py"


def _wrong_expression(text: str | None) -> str | None:
    try:
        compile(text or "True", "<condition>", "eval")
    except (SyntaxError, ValueError) as error:
        return f"{error}; a condition in a line is an expression of Python over its variables"
    return None


def _real(path: str) -> str:
    return os.path.normcase(os.path.realpath(path))


def _command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``launch`` as those of ``tracekit debug``."""
    words: list[str] = []
    for name in ("at", "store", "entry"):
        if arguments.get(name) is not None:
            words += [f"--{name}", str(arguments[name])]
    further = arguments.get("args") or []
    if not isinstance(further, list) or not all(isinstance(one, str) for one in further):
        raise RefusedError(f"args must be a list of words, as `tracekit debug RUN` takes them, not {further!r:.80}")
    return [str(arguments.get("run") or "last"), *words, *further]


# -- the command -------------------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port of 127.0.0.1, instead of stdin and stdout."
)
def dap(port: int | None) -> None:
    """Debug runs in an editor: a server for the Debug Adapter Protocol.

    An editor starts it and talks to it over stdin and stdout, or, with --port, connects to it; then it serves one session after
    another until it is interrupted. The editor's launch request names the run ("run": "last") and takes "at", "store", "entry",
    "stopOnEntry", and "args" for everything else that tracekit debug takes. Exit codes: 0; 2 if it cannot listen.

    \b
    Examples:
      tracekit dap              # as the debug adapter of an editor
      tracekit dap --port 4711  # for an editor that connects
    """
    if port is not None:
        _listen(port)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # only the protocol may be written there
    with suppress(KeyboardInterrupt, SystemExit):
        Adapter(Wire(incoming, outgoing)).serve()
    os._exit(0)  # not through the end of the interpreter, which would wait for the thread that reads from the editor


def _listen(port: int) -> None:
    """Serve each session in a process of its own, with the connection as its stdin and stdout."""
    try:
        listening = socket.create_server((_LOOPBACK, port))
    except OSError as error:
        message(f"tracekit: can't listen on {_LOOPBACK}:{port}: {error.strerror}; --port 0 takes a free one")
        sys.exit(USAGE_ERROR)
    sessions: list[subprocess.Popen[bytes]] = []
    with listening, suppress(KeyboardInterrupt):
        message(f"tracekit: listening on {_LOOPBACK}:{listening.getsockname()[1]}")
        while True:
            connection, _ = listening.accept()
            with connection:
                sessions = [one for one in sessions if one.poll() is None]
                command = [sys.executable, "-m", "tracekit", "dap"]
                stream = connection.fileno()
                sessions.append(subprocess.Popen(command, stdin=stream, stdout=stream))
