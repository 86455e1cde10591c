"""A warm process that replays one run after another, each in a forked child of its own.

Run as ``python -m tracekit.cli.forkserver`` with a JSON object of instructions in ``TRACEKIT_LAUNCH``; not meant to be
called by hand. It has imported tracekit, and, if ``--entry`` names a function, its module, behind the guard of a
replay. Nothing else runs in it when it forks: if the module leaves a thread running, tries to reach the outside, opens
a run or can't be imported, each child imports it itself, in another such process that is started without it.

It reads jobs from standard input, one JSON object per line, and writes a line for each when its child has ended. A
child that takes too long is killed with everything that it has started, and so is the current child when standard input
is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, Final, NoReturn

from .. import _reality
from .._capture import guard, isolation, plugins, world
from .._journal.reader import Trace
from .._journal.store import Store
from .._lazy import make_all
from .._runs.environment import environment
from .._runs.program import Program
from .._runtime.callsite import not_made
from .._runtime.process import process
from .._runtime.redaction import Redactor
from .._runtime.secrets import compile_all as compile_formats
from .._values import dumps, exception_text
from ..errors import RunStateError, TracekitError
from . import launch
from .output import flush_output
from .replay import program_of, replay_instructions

__all__ = ["main"]

_fork: Final = os.fork if hasattr(os, "fork") else None
_exit: Final = os._exit
#: The most output of a program that is passed on, from its end.
_TAIL: Final = 8192


def main() -> None:
    """Serve until standard input is closed."""
    instructions = json.loads(os.environ.pop("TRACEKIT_LAUNCH"))
    if not sys.flags.safe_path:
        del sys.path[0]  # added by `python -m`; each child sets up its own import path
    server = _Server(instructions)
    server.warm_up()
    server.serve()


class _Server:
    """Forks a child for each job."""

    def __init__(self, instructions: Mapping[str, Any]) -> None:
        self._instructions: Final = instructions
        # Standard input and output belong to the program: messages use descriptors of their own.
        self._jobs: Final[IO[bytes]] = os.fdopen(os.dup(0), "rb", buffering=0)
        self._replies: Final = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        self._woken, self._wakes = os.pipe()
        for fd in (self._woken, self._wakes):
            os.set_blocking(fd, False)
        self._isolated = ""
        #: An overlay over the file system for the children, as long as none of them has written in it.
        self._layer: isolation.ScratchLayer | None = None
        #: Whether this process adopts what a child orphans, so that nothing keeps running in the layer of the next
        #: child.
        self._adopts = False
        self._cwd: Final = os.getcwd()
        self._pending = b""

    # -- being warm ------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Do what every child would do first; exit if that can't be done for all of them."""
        options = self._instructions["options"]
        # If isolated here, its children are isolated, too.
        self._isolated = launch.isolate(self._instructions["isolate"], launch.reached(options))
        launch.load("replay")
        launch.prepare()
        for module in _FOR_REPLAYS:
            importlib.import_module(module)
        Redactor.of_process([]).redact({"key": "a value that could be=one"})
        compile_formats()
        make_all()
        environment()
        with warnings.catch_warnings():
            launch.ignore_warnings()
        self._adopts = isolation.adopt_orphans()
        warm = self._instructions["entry"] is not None and self._instructions["warm"]
        if warm:
            self._import(self._instructions["entry"].partition(":")[0])
        world.enter()
        if not warm:  # the program is imported before its run begins, as when it was recorded: what remains are imports and caches
            world.leave()
        if len(_threads()) > 1:
            sys.exit("tracekit: the module leaves a thread running, so each replay imports it for itself")
        gc.collect()
        gc.freeze()
        self._reply({"ready": True, "warm": self._instructions["warm"]})

    def _import(self, module: str) -> None:
        """Import the module of the entry like a replay: nothing live, nothing written."""
        layer = isolation.ScratchLayer.enter([self._instructions["store"]])
        restore = plugins.supply_placeholders(self._instructions["credentials"])
        closed = guard.Guard("process", (), isinstance(layer, str))
        closed.engage()
        process.refuse_outside(_refuse)
        signal.alarm(max(1, int(self._instructions["timeout"])))  # ends this process: then each child imports it
        sys.path.insert(0, os.getcwd())
        try:
            with process.nothing_begins(_no_run):
                importlib.import_module(module)
        except BaseException as error:
            sys.exit(f"tracekit: {module} can't be imported for all replays: {exception_text(error)}")
        finally:
            signal.alarm(0)
            process.allow_outside(_refuse)
            closed.release()
            restore()
            if isinstance(layer, isolation.ScratchLayer):
                layer.leave()
        sys.path.remove(os.getcwd())

    # -- serving ---------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Take jobs until there are no more."""
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while (line := self._line()) is not None:
            self._reply(self._judge(json.loads(line)))

    def _line(self) -> bytes | None:
        """Return the next job; ``None`` at the end."""
        while b"\n" not in self._pending:
            data = self._jobs.read(1 << 16)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _reply(self, about: Mapping[str, Any]) -> None:
        data = json.dumps(about).encode() + b"\n"
        while data:
            data = data[_reality.write(self._replies, data) :]

    def _judge(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Replay one run; return how its process ended, and what it wrote about that."""
        with tempfile.TemporaryFile() as outcome, tempfile.TemporaryFile() as output:
            since, taken = _reality.monotonic(), _cpu()
            self._lay(job)
            pid = self._start(job, outcome.fileno(), output.fileno())
            timed_out = not self._waited(pid, since + job["timeout"])
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # it, or what it has left behind
            _, status, used = os.wait4(pid, 0)
            alone = self._end_others()
            if self._layer is not None and not (alone and self._layer.untouched()):
                self._take_layer_away()
            outcome.seek(0)
            written = outcome.read()
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL))
            return {
                "outcome": json.loads(written) if written else None,
                "exit": os.waitstatus_to_exitcode(status),
                "timed_out": timed_out,
                "seconds": _reality.monotonic() - since,
                "cpu": used.ru_utime + used.ru_stime + _cpu() - taken,  # including what this process did for it
                "output": output.read().decode("utf-8", "replace"),
            }

    def _lay(self, job: Mapping[str, Any]) -> None:
        """Create a file system layer that a child for this job can use, if possible."""
        cwd = self._cwd_of(job)
        passes = [job["store"], *([] if job["branches"] is None else [job["branches"]])]
        if cwd is None or not self._adopts:
            return
        os.chdir(cwd)
        if self._layer is not None and not self._layer.is_for(passes):
            self._take_layer_away()
            os.chdir(cwd)
        if self._layer is None:
            found = isolation.ScratchLayer.enter(passes)
            if isinstance(found, isolation.ScratchLayer):
                found.mark()
                self._layer = found

    def _take_layer_away(self) -> None:
        assert self._layer is not None
        os.chdir("/")  # the current directory may be one that was removed in the layer
        self._layer.leave()
        self._layer = None
        os.chdir(self._cwd)

    def _cwd_of(self, job: Mapping[str, Any]) -> str | None:
        """Return the working directory of a job's program, if it is a directory."""
        if self._instructions["entry"] is not None or self._instructions["command"]:
            return self._cwd
        with suppress(OSError, TracekitError, ValueError):
            command = launch.first_meta(job["path"]).get("program_command")
            cwd = command.get("cwd") if isinstance(command, Mapping) else None
            return cwd if isinstance(cwd, str) and os.path.isdir(cwd) else None
        return None

    def _end_others(self) -> bool:
        """End what a child has left behind outside of its process group, too; return whether nothing is left."""
        while True:
            try:
                if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None:
                    with open("/proc/thread-self/children") as file:
                        left = [int(pid) for pid in file.read().split()]
                    for pid in left:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    os.waitid(os.P_ALL, 0, os.WEXITED)
            except ChildProcessError:
                return True
            except OSError:  # this kernel does not list the children, or one of them has got another parent
                return False

    def _waited(self, pid: int, until: float) -> bool:
        """Wait for the end of a child, without reaping it; return False if it takes too long, or if the caller is gone."""
        while True:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            left = until - _reality.monotonic()
            if left <= 0:
                return False
            jobs = self._jobs.fileno()
            readable, _, _ = select.select([self._woken, jobs], [], [], left)
            if self._woken in readable:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            if jobs in readable:
                data = self._jobs.read(1 << 16)
                if not data:
                    os.killpg(pid, signal.SIGKILL)
                    _exit(1)
                self._pending += data

    def _start(self, job: Mapping[str, Any], outcome: int, output: int) -> int:
        flush_output()
        assert _fork is not None
        pid = _fork()
        if pid:
            with suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)
            return pid
        status = 1
        try:
            os.setpgid(0, 0)
            isolation.end_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._jobs.fileno(), self._replies, self._woken, self._wakes):
                os.close(fd)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = self._replay(job, outcome)
            flush_output()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            _exit(status)

    def _replay(self, job: Mapping[str, Any], outcome: int) -> int:
        """In the child: replay the run, like ``tracekit replay``."""
        how, path, store = self._instructions, job["path"], Store(job["store"])
        try:
            program = Program(None, None, (), os.getcwd())
            if how["entry"] is None:  # otherwise the trace is not needed for that, and verified when it is replayed
                with Trace(path, indexed=True) as trace:
                    store.check_replayable(trace)
                    program, cwd = program_of(trace, store, path, tuple(how["command"]), None, "regress")
                os.chdir(cwd)
            options = {**how["options"], "entry": how["entry"], "isolate": how["isolate"], "branches": job["branches"]}
            instructions = replay_instructions(job["run"], path, store, program, options)
            instructions |= {"outcome": outcome, "isolated": self._isolated}
            if how["entry"] is not None:
                return launch.replayed(None, None, instructions, self._layer)
            body = launch.prepared(program)
            return 1 if body is None else launch.replayed(program, body, instructions, self._layer)
        except TracekitError as error:
            os.write(outcome, dumps({"cannot": launch.raised_facts(error)}))
            return 1


#: What a replay imports at its begin, and most programs do.
_FOR_REPLAYS: Final = (
    "asyncio",
    "tracekit._capture.leftovers",
    "tracekit._capture.loops",
    "tracekit._runtime.divergence",
    "tracekit._runtime.replayer",
)


def _cpu() -> float:
    """Return the CPU time of this process, in seconds."""
    used = os.times()
    return used.user + used.system


def _threads() -> list[Any]:
    """Return the threads of this process, including native ones if the system lists them."""
    try:
        return os.listdir("/proc/self/task")
    except OSError:
        return threading.enumerate()


def _refuse(family: str, name: str) -> NoReturn:
    raise not_made(family, name, "while its module was imported")


def _no_run(what: str) -> NoReturn:
    raise RunStateError(f"{what}() was called while its module was imported")


if __name__ == "__main__":
    main()
