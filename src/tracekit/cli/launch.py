"""Runs a user's program in this process: recorded, replayed or resumed, behind the network and process guard if needed."""

from __future__ import annotations

import atexit
import builtins
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import pairwise
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeGuard

from .. import _reality
from .._capture import guard, inputs, plugins, stdio
from .._capture.instrumentation import instrument
from .._journal import keys, reader
from .._journal.entry import FAMILIES, meta_of
from .._journal.store import RunSummary, Store, beside, file_name, first_entry, summary
from .._lazy import expression
from .._runs import block as served
from .._runs import ending
from .._runs.block import below_run, call_with
from .._runs.environment import is_input
from .._runs.program import Program
from .._runs.recording import DEFAULTS, RecordBlock, RecordedProgram, enclose
from .._runs.run import Run
from .._runtime.callsite import at_prompt, caller, not_made, raised_at, say
from .._runtime.process import NextRun, ProcessRole, process
from .._runtime.redaction import Originals, Redactor
from .._runtime.session import current
from .._runtime.signals import in_live_step, name_of
from .._values import decoding, dumps, to_json
from ..errors import (
    BudgetExceededError,
    LiveCallBlockedError,
    RecordedError,
    RecoveryRefusedError,
    ReplayError,
    RunEndedError,
    RunStateError,
    TracekitError,
)
from .output import (
    DIFFERENT,
    INTERRUPTED,
    REFUSED,
    USAGE_ERROR,
    end_by_interrupt,
    exit_code,
    flush_output,
    plain,
    stands,
)

if TYPE_CHECKING:
    from .._capture import isolation
    from .._runs.debugging import RemoteDebugger
    from .._runs.replaying import ReplayBlock
    from .._runs.resuming import ResumeBlock
    from .._runtime.inputs import Disk
    from .._runtime.replayer import Replay
    from .._runtime.verdict import Report

__all__ = [
    "Body",
    "Ended",
    "Entry",
    "check_siblings",
    "first_meta",
    "go",
    "ignore_warnings",
    "isolate",
    "load",
    "main",
    "prepare",
    "prepared",
    "reached",
    "replayed",
    "siblings",
]

# -- running a program ------------------------------------------------------------------------------------------------------------
#
# A program from its first line to its last exit callback, run like by the interpreter, in this process.

Body = Callable[[], object]

_LAUNCHER_FILES: Final = (__file__, runpy.__file__, "<frozen runpy>")


class Ended(NamedTuple):
    """How a program ended: its exit status, its uncaught exception, the line that called ``sys.exit``, and the signal
    by which it ended itself."""

    status: int
    error: BaseException | None = None
    where: str | None = None
    signal: str | None = None

    @property
    def text(self) -> str:
        """How it ended, if without an exception."""
        return f"exit status {self.status}" if self.signal is None else f"ended itself by {self.signal}"


def prepared(program: Program) -> Body | None:
    """Return the program as a callable; set up ``sys.argv``, ``sys.path`` and ``__main__`` for it.

    ``None`` if it can't be run at all (no such module, a syntax error); the error has been printed as Python prints it.
    """
    process.kept.append(sys.modules["__main__"])
    if not sys.flags.safe_path and not os.path.isdir(os.path.join(sys.path[0], "tracekit")):
        del sys.path[0]  # added by `python -m`
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    return _module(program) if program.module is not None else _script(program, main)


def _module(program: Program) -> Body | None:
    name = str(program.module)
    sys.argv = [name, *program.arguments]
    sys.path.insert(0, os.getcwd())
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        print(f"{sys.executable}: No module named {name.partition('.')[0]!r}", file=sys.stderr)
        return None
    return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` itself does


def _script(program: Program, main: ModuleType) -> Body | None:
    path = str(program.script)
    sys.argv = [program.called or path, *program.arguments]
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        return lambda: runpy.run_path(path, run_name="__main__")
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main)["__cached__"] = None
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: {error}", file=sys.stderr)
        return None
    except (SyntaxError, ValueError) as error:
        _print_exception(error)
        return None
    return lambda: exec(code, main.__dict__)


def go(
    body: Body, end: Callable[[Ended], object], silent: Callable[[BaseException], bool] = lambda error: False
) -> Ended:
    """Run ``body``, wait for its threads, call its exit callbacks, then ``end``, whose errors are raised.

    Exit callbacks registered before ``body`` began are called after ``end``. An exception that ends the program is
    printed by ``sys.excepthook``, without tracekit's own frames, unless ``silent`` returns true for it.
    """
    ended: list[Ended] = []
    closed: list[bool] = []
    errors: list[BaseException] = []

    def close() -> None:
        if ended and not closed:
            closed.append(True)
            if sys.stderr is not None and getattr(
                sys.stderr, "closed", False
            ):  # closed by the program; its descriptor is still open
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            stdio.flush()
            try:
                end(ended[0])
            except BaseException as error:
                errors.append(error)

    atexit.register(close)
    ended.append(_outcome(body, silent))
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does first of all at its end
    except BaseException as error:
        _print_exception(error)
    atexit._run_exitfuncs()
    close()
    if errors:
        raise errors[0]
    return ended[0]


def _outcome(body: Body, silent: Callable[[BaseException], bool]) -> Ended:
    try:
        body()
    except SystemExit as end:
        return Ended(_status(end), where=raised_at(end))
    except ReplayError as error:
        return Ended(1, error)  # printed once, in the summary
    except BaseException as error:
        error.__traceback__ = _program_frames(error.__traceback__)
        if not silent(error):
            _print_exception(error)
        return Ended(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1, error)
    return Ended(0)


def _is_message(error: BaseException | None) -> TypeGuard[TracekitError]:
    """Return whether an exception that ends a program is tracekit's own, with a self-explanatory text: not a
    replacement for one of the program's."""
    return isinstance(error, TracekitError) and not isinstance(error, RecordedError)


def _print_exception(error: BaseException) -> None:
    """Print an uncaught exception like the interpreter."""
    error.__traceback__ = _program_frames(error.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except (Exception, ReplayError) as failed:
        if sys.excepthook is not sys.__excepthook__:
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def _program_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the leading frames of tracekit."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _LAUNCHER_FILES:
        trace = trace.tb_next
    return trace


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


def exit_by_signal(error: BaseException | None) -> None:
    """After a ``KeyboardInterrupt``, end this process by SIGINT itself, like Python, so that a shell's loop stops, too."""
    if isinstance(error, KeyboardInterrupt):
        end_by_interrupt()


# -- entries -----------------------------------------------------------------------------------------------------------
#
# ``--entry module:function``: a run repeated by calling one function with the run's recorded input.


class Entry:
    """The function that ``--entry`` names. If it has a ``record()`` of its own inside, that block becomes the run.

    ``in_task``: for a coroutine function the run is inside its task, like its own ``record()`` would be; else around
    the event loop.
    """

    def __init__(self, name: str, *, in_task: bool) -> None:
        self._name: Final = name
        self._in_task: Final = in_task
        #: Whether the function has opened a run of its own.
        self.opened = False
        #: What is wrong with how it is used: no end of the program, whatever the recorded one was.
        self._misused: RunStateError | None = None

    def function(self) -> Any:
        """Return the function, without a ``record`` that decorates it. Raises ``RunStateError`` if there is none."""
        module, _, name = self._name.partition(":")
        sys.path.insert(0, os.getcwd())
        try:
            found: Any = importlib.import_module(module)
        except (ImportError, ValueError) as error:
            if isinstance(error, ImportError) and error.name not in (None, module, module.partition(".")[0]):
                raise  # the module exists, and one that it imports does not
            raise self._usage_error(f"there is no module {module!r}") from None
        for part in name.split(".") if name else ():
            found = getattr(found, part, None)
        if not name or not callable(found):
            raise self._usage_error(f"{module!r} has no function {name!r}")
        return below_run(found)

    def _usage_error(
        self, what: str, next_action: str = "say --entry MODULE:FUNCTION, importable from here"
    ) -> RunStateError:
        return RunStateError(f"--entry {self._name}: {what}", next_action=next_action, option="--entry")

    def call(
        self, block: Any, run: Callable[[], Run], input_of: Callable[[], Any], set_result: Callable[[Any], object]
    ) -> None:
        """Call it inside ``block`` with the run's input; ``set_result`` receives its result, unless it opened a run of
        its own."""
        try:
            self._call(block, run, input_of, set_result)
        except BaseException:
            if self._misused is None:
                raise
            raise self._misused from None

    def _call(
        self, block: Any, run: Callable[[], Run], input_of: Callable[[], Any], set_result: Callable[[Any], object]
    ) -> None:
        import asyncio

        function = self.function()
        if self._in_task and inspect.iscoroutinefunction(function):
            asyncio.run(self._call_async(function, block, run, input_of, set_result))
            return
        with block:
            self._lend_run(block, run())
            args, kwargs = self._arguments(function, input_of())
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            if not self.opened:
                set_result(value)

    async def _call_async(self, function: Any, block: Any, run: Any, input_of: Any, set_result: Any) -> None:
        async with block:
            self._lend_run(block, run())
            args, kwargs = self._arguments(function, input_of())
            value = await function(*args, **kwargs)
            if not self.opened:
                set_result(value)

    def _arguments(self, function: Any, recorded: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return call_with(function, recorded)
        except TypeError as error:
            what = ", ".join(map(str, recorded)) if isinstance(recorded, Mapping) else type(recorded).__name__
            self._misused = self._usage_error(
                f"it can't be called with what the run was given, {what}: {error}",
                "name the function that has made the runs, or one that takes the same arguments",
            )
            raise self._misused from None

    def _lend_run(self, block: Any, run: Run) -> None:
        enclose(block.session, _EnclosingRun(self, run))


class _EnclosingRun:
    """Replaces the ``record()`` inside an entry function by the run that is already open around it."""

    def __init__(self, entry: Entry, run: Run) -> None:
        self._entry = entry
        self._run = run

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        self._entry.opened = True
        return self._run

    async def drain_for(self, run: Run) -> None:
        await ending.drain_async(run._session)

    def end_for(self, run: Run, error: BaseException | None) -> None:
        pass


# -- siblings ----------------------------------------------------------------------------------------------------------
#
# All runs of one execution of a program, in the order in which it opened them.


class Sibling(NamedTuple):
    """One run of a program: its number among the program's runs, its file, and the summary of its first and last line."""

    ordinal: int
    path: str
    about: RunSummary


def first_meta(path: str) -> dict[str, Any]:
    """Return ``meta`` of a file's first entry, unverified; empty if it has none."""
    try:
        return meta_of(first_entry(path))
    except OSError:  # removed meanwhile
        return {}


def recorded_input(path: str) -> Any:
    """Return the recorded input of the run in this file."""
    with reader.Trace(path, indexed=True) as trace:
        return decoding.from_json(trace.expand(Originals(path).first(trace).get("input")))


def siblings(store: Store, path: str) -> dict[int, Sibling]:
    """Return all runs of the program that made the run at ``path``, by their ordinals."""
    own = first_meta(path)
    program, target = own.get("program"), own.get("ordinal")
    found: dict[int, Sibling] = {}
    if type(target) is int:
        found[target] = Sibling(target, path, summary(path))
    for run in store.list() if program is not None else ():
        meta = first_meta(run.path)
        ordinal = meta.get("ordinal")
        if meta.get("program") == program and type(ordinal) is int and "segment" not in meta:
            found.setdefault(ordinal, Sibling(ordinal, run.path, run))
    return found


# -- replayed runs -----------------------------------------------------------------------------------------------------------
#
# The runs of one program, each replayed from its own file, and the watchdog for a program that does not end.

_really_exit: Final = os._exit
#: The library's advice to leave names out of ``strict``, and the names in it.
_STRICT: Final = expression(r'leave ("[\w", ]+") out of strict')
_NAMES: Final = expression(r'"(\w+)"')


class FollowedRuns(ProcessRole):
    """A program that follows recorded runs: a failure to do so is reported once, when it happens."""

    #: Why a captured call outside of these runs is refused, and what to do about it.
    _outside: ClassVar[tuple[str, str]]

    def __init__(self, program: str | None = None, command: Program | None = None) -> None:
        super().__init__(program, command)
        #: The replays that the program has opened.
        self.replay_blocks: Final[list[ReplayBlock]] = []
        #: The first operation that was refused outside of every replay.
        self._blocked: LiveCallBlockedError | None = None
        self._reported: Final[list[BaseException]] = []
        self._continued = False

    def print_failure(self, failure: BaseException) -> bool:
        from .._runtime.divergence import headline

        say(f"{headline(failure)}\n{command_line_text(failure)}")
        self._reported.append(failure)
        return True

    def listen(self) -> None:
        served.serve_the_log()

    def outside(self, family: str, name: str) -> None:
        """Refuse a captured call outside of every run that is followed: it would be live."""
        error = not_made(family, name, *self._outside)
        self.blocked(error)
        raise error

    def blocked(self, error: LiveCallBlockedError) -> None:
        """Fail the replays that are active because something was refused."""
        open_ones = [replay_block for replay_block in self.replay_blocks if replay_block.active]
        for replay_block in open_ones:
            replay_block.session.fail(error)
        if not open_ones and self._blocked is None and not at_prompt():
            self._blocked = error

    @property
    def started(self) -> list[ReplayBlock]:
        return [replay_block for replay_block in self.replay_blocks if replay_block.started]

    def _replays(self) -> list[Replay]:
        """Return the replays that have begun."""
        return [replay_block.session for replay_block in self.started]

    @property
    def failure(self) -> BaseException | None:
        """The first failure to follow what is recorded."""
        failures = (replay.failure for replay in self._replays())
        return next((failure for failure in failures if failure is not None), self._blocked)

    def program_ended(self, error: BaseException | None) -> None:
        """Note that the program has ended, with ``error`` or ``None``; its runs may still be open."""
        self._continued = error is None and bool(self._reported)

    def report(self, failure: BaseException) -> None:
        """Report a failure at the end of the program, if that was not done before; else repeat its headline if other
        output followed."""
        if not any(failure is one for one in self._reported):
            print(command_line_text(failure), file=sys.stderr)
        elif self._continued:
            from .._runtime.divergence import headline

            print(
                f"tracekit: {headline(failure)}, as reported above; its program continued all the same", file=sys.stderr
            )


def _no_run(ordinal: int, next_action: str) -> RunStateError:
    text = f"the program opens its record() number {ordinal}, and the store has no run of this program"
    return RunStateError(text, next_action=next_action)


class ReplayedRuns(FollowedRuns):
    """A replayed program: its runs, each replayed from its own file when the program opens it."""

    _outside = (
        "outside the replayed run",
        "move the call inside the record() block; under a replay nothing is called live",
    )

    def __init__(
        self,
        command: Program | None,
        store: Store,
        path: str,
        options: dict[str, Any],
        make: Callable[[str, dict[str, Any]], ReplayBlock] | None = None,
    ) -> None:
        super().__init__(command=command)
        self._store = store
        self._options = options
        #: The debugger of the run that is replayed, and the step from which on kinds of steps are live.
        self.debugger: RemoteDebugger | None = None
        self.live_from = 0
        #: See ``tracekit._runs.replaying.ReplayBlock.disk``.
        self.disk: Disk | None = None
        #: Called with the signal by which the program is about to end its process.
        self.killed: Callable[[int], object] = lambda number: None
        #: Called with the refusal when the program would listen, and has not opened the run.
        self.serves: Callable[[LiveCallBlockedError], object] = lambda error: None
        self._path = path
        from .._runs.replaying import ReplayBlock

        self._make = make or (lambda path, options: ReplayBlock(path, options, None))

    @cached_property
    def _siblings(self) -> Mapping[int, str]:
        return {ordinal: one.path for ordinal, one in siblings(self._store, self._path).items()}

    def of(self, path: str, options: dict[str, Any] | None = None) -> ReplayBlock:
        replay_block = self._make(path, self._options if options is None else options)
        if path == self._path:
            replay_block.debugger, replay_block.live_from = self.debugger, self.live_from
        replay_block.disk = self.disk
        self.replay_blocks.append(replay_block)
        return replay_block

    def replay_of(self, path: str, options: Mapping[str, Any]) -> ReplayBlock | None:
        """Return the run that this process was started to replay, if its program replays it itself, like a test does.

        Both sides' options for the comparison apply.
        """
        if self.opened or not os.path.exists(path) or not os.path.samefile(path, self._path):
            return None
        ours = self._options
        lists = ("strict", "allow_hosts", "live_env", "live_files", "redact")
        both: dict[str, Any] = {name: [*ours[name], *options[name]] for name in lists}
        kinds = {*ours["ignore"], *options["ignore"]}
        both["ignore"] = {kind: [*ours["ignore"].get(kind, ()), *options["ignore"].get(kind, ())] for kind in kinds}
        if options["on_divergence"] == "warn":
            both["on_divergence"] = "warn"
        return self.of(self._path, {**ours, **both})

    def replacement(self, block: RecordBlock) -> ReplayBlock:
        """Return the replay that replaces this ``record()`` block of the program, selected by the block's number."""
        ordinal = block.ordinal
        path = self._siblings.get(ordinal)
        if path is None:
            raise _no_run(ordinal, "replay in the store where the program was recorded, or name one run with --entry")
        return self.of(path)

    def next_run(self) -> NextRun:
        path = self._siblings.get(self.ordinal + 1)
        return NextRun(None if path is None else recorded_input(path))

    def before_death(self, number: int) -> None:
        self.killed(number)

    def blocked(self, error: LiveCallBlockedError) -> None:
        active = any(replay_block.active for replay_block in self.replay_blocks)
        begins = not active and self._blocked is None and not self.opened and not at_prompt()
        if begins and getattr(error, "kind", None) == "listen":
            self.serves(error)  # before it is the failure of the replay
        super().blocked(error)

    @property
    def stalled(self) -> float:
        return max((replay_block.session.schedule.stalled for replay_block in self.started), default=0.0)

    @property
    def asked(self) -> list[ReplayBlock]:
        """The replays of the requested run itself; the program may have others."""
        return [replay_block for replay_block in self.started if replay_block.session.trace.path == self._path]

    @property
    def opened(self) -> bool:
        """Whether the program has opened the run that is to be replayed."""
        return bool(self.asked)

    def expected(self, error: BaseException) -> bool:
        """Return whether a recorded run ended with this error, too."""
        return any(replay_block.recorded_failure(error) for replay_block in self.started)


class Watched(Protocol):
    """The runs that a watchdog observes: their first failure, and for how long none has made progress."""

    @property
    def failure(self) -> BaseException | None: ...
    @property
    def stalled(self) -> float:
        """Return for how long (s) no thread or task has made progress, for no known reason."""
        ...

    def report(self, failure: BaseException) -> None: ...


#: After this many seconds without progress a replay reports what it waits for; it is ended ``--grace`` seconds later.
_REPORTED_AFTER: Final = 10.0


class Watchdog:
    """Ends a program that is still running ``grace`` seconds after its replay failed or made no more progress.

    A failure in a child process counts, too. It prints all stacks on stderr and ends the child processes as well.
    """

    def __init__(self, runs: Watched, grace: float, before_end: Callable[[], None] = lambda: None) -> None:
        self._runs = runs
        self._grace = grace
        #: Called before it ends the process.
        self._before_end: Final = before_end
        self._over = threading.Lock()
        self._over.acquire()
        self._thread: Final = _reality.OwnThread(self._watch, "tracekit-watchdog")
        self._thread.start()

    def _watch(self) -> None:
        waited = 0.0
        while not self._over.acquire(timeout=0.25):
            for session in process.sessions:
                if session.state.children is not None:
                    session.state.children.poll()
            failure = self._runs.failure
            waited = waited + 0.25 if failure is not None else 0.0
            if failure is None and self._runs.stalled >= _REPORTED_AFTER + self._grace and not _stopped_in_debugger():
                self._end(
                    "nothing in the program has moved for so long that it is ended; whether the replay is exact is not known",
                    3,
                )
            if failure is not None and waited >= self._grace:
                self._runs.report(failure)
                code = 3 if _log_ended(failure) else 1
                self._end(f"the program has not ended {self._grace:g} s after that; it is ended", code)

    def _end(self, why: str, code: int) -> None:
        print(f"tracekit: {why}", file=sys.stderr)
        self._before_end()
        import faulthandler

        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()
        for session in process.sessions:
            if session.state.children is not None:
                session.state.children.abandon()
        _really_exit(code)

    def stop(self) -> None:
        if self._over.locked():
            self._over.release()

    def join(self) -> None:
        """Wait until its thread is gone, after it was stopped.

        On Linux, a process that ends while a thread whose ``/proc`` files were read is ending takes 3 ms more CPU time.
        """
        self._thread.join()


def _log_ended(failure: BaseException | None) -> bool:
    """Return whether a replay is over only because the log of a killed process is."""
    return isinstance(failure, ReplayError) and failure.at_log_end


def _stopped_in_debugger() -> bool:
    from .._runtime.threads import stopped_in_debugger  # needed late, if at all

    return stopped_in_debugger()


def command_line_text(failure: BaseException | None) -> str:
    """Return a failure's text, its advice given as command-line options instead of library calls."""
    text = str(failure)
    for library, here in (
        ("replay(..., guard='off')", "`tracekit replay --guard off`"),
        ("replay(..., guard='context')", "`tracekit replay --guard context`"),
        ("replay without dry_run", "replay without --no-writes"),
        ("replay(..., writes='real')", "`tracekit replay --writes real`"),
    ):
        text = text.replace(library, here)
    text = _STRICT.sub(
        lambda found: "leave out " + ", ".join(f"--strict {one}" for one in _NAMES.findall(found[1])), text
    )
    head, found, rest = text.partition("replay(..., allow_hosts=[")
    if found:
        host, _, tail = rest.partition("])")
        text = f"{head}`tracekit replay --allow-host {host.strip(chr(39) + chr(34))}`{tail}"
    return plain(text)


# -- resumed runs ----------------------------------------------------------------------------------------------------------
#
# What replaces each ``record()`` of a program that is resumed after a crash.


def check_siblings(store: Store, path: str) -> dict[int, Sibling]:
    """Return the runs of the program of ``path``; raise ``RecoveryRefusedError`` unless running it again is known to be
    safe.

    The runs that it had finished before are replayed, so each must exist and have an end; runs that were open at the
    same time (a server) can't be distinguished when it runs again.
    """
    found = siblings(store, path)
    target = next((sibling for sibling in found.values() if sibling.path == path), None)
    if target is None:
        return {}
    line = sorted(found.values())
    for one, next_ in pairwise(line):
        if (one.about.ended_ns or 0) > next_.about.started_ns or one.about.end is None:
            _refuse(
                target, "concurrent_runs", f"the program had {one.about.run_id} and {next_.about.run_id} open at once"
            )
    for ordinal in range(1, target.ordinal):
        before = found.get(ordinal)
        if before is None:
            _refuse(target, "sibling_missing", f"run number {ordinal} of the same program is not in the store")
        elif before.about.end == "run.aborted":
            _refuse(target, "sibling_aborted", f"{before.about.run_id}, an earlier run of the program, was aborted")
    return found


def _refuse(target: Sibling, code: str, text: str) -> None:
    raise RecoveryRefusedError(
        f"resuming run {target.about.run_id} by running its program again is refused: {text}",
        run_id=target.about.run_id,
        reasons=[{"code": code, "text": text}],
        next_action=f"resume this run alone: tracekit recovery resume {target.about.run_id} --entry module:function",
    )


class ResumedRuns(FollowedRuns):
    """A resumed program and its runs: finished ones are replayed, the one that crashed is resumed, later ones are
    recorded."""

    _outside = (
        "outside the resumed run, before that had reached the end of its log",
        "move the call inside the record() block; or resume with --entry module:function",
    )

    def __init__(
        self,
        program: str | None,
        command: Program | None,
        store: Store,
        path: str,
        options: dict[str, Any],
        resumption: dict[str, Any],
    ) -> None:
        super().__init__(program, command)
        self.resumed: ResumeBlock | None = None
        self._store = store
        self.path = path
        self._replay = options
        self._resumption = resumption
        self._siblings = siblings(store, path)

    def resume(self, options: dict[str, Any]) -> ResumeBlock:
        """Return the resumption of the run that crashed, for a ``record()`` with these options."""
        with_store = {**options, "store": self._store}
        from .._runs.resuming import ResumeBlock

        self.resumed = ResumeBlock(self.path, with_store, None, **self._resumption)
        return self.resumed

    def replacement(self, block: RecordBlock) -> ReplayBlock | ResumeBlock | None:
        """Return the replay or resumption that replaces this ``record()`` block, selected by its number; ``None``: it
        is recorded."""
        if self.resumed is not None:
            return None
        ordinal = block.ordinal
        sibling = self._siblings.get(ordinal)
        if sibling is None:
            raise _no_run(
                ordinal, "resume in the store where the program was recorded, or with --entry module:function"
            )
        if sibling.path == self.path:
            return self.resume(block.options)
        from .._runs.replaying import ReplayBlock

        replay_block = ReplayBlock(sibling.path, self._replay, None)
        self.replay_blocks.append(replay_block)
        return replay_block

    def next_run(self) -> NextRun:
        ordinal = self.ordinal + 1
        return NextRun(self._input_of(ordinal), lambda value: self._is_input(ordinal, value))

    def _input_of(self, ordinal: int) -> Any:
        """Return the input of the program's ``ordinal``-th run, or ``None`` if the log does not have all of it.

        A live call with a placeholder in place of a secret would do something else.
        """
        sibling = self._siblings.get(ordinal)
        if self.resumed is not None or sibling is None:
            return None
        lost = Originals(sibling.path).lack(first_entry(sibling.path), "input")
        return None if lost else recorded_input(sibling.path)

    def _is_input(self, ordinal: int, value: Any) -> bool | None:
        """Return whether the input of the program's ``ordinal``-th run was ``value``; ``None`` if that is unknown."""
        sibling = self._siblings.get(ordinal)
        if sibling is None:
            return None
        return is_input(keys.Keys(self._store.root), first_meta(sibling.path).get("input_key"), value)

    def _replays(self) -> list[Replay]:
        resumed = self.resumed
        return [*super()._replays(), *([resumed.session.replay] if resumed is not None and resumed.begun else ())]

    @property
    def stalled(self) -> float:
        return 0.0  # it may be live, so it is not ended for being slow


# -- resuming ----------------------------------------------------------------------------------------------------------
#
# The process in which a run is resumed after a crash.


def resume_process(command: Program | None, body: Body | None, instructions: Mapping[str, Any]) -> int:
    """Run the program again and resume its run; return the exit status."""
    guard.warm()
    instrument()
    meta = first_meta(instructions["path"])
    closed = guard.Guard("process", (), False, resumes=True)
    process.role = runs = _role_of_resumption(command, meta, instructions, closed)
    closed.failed = runs.blocked
    closed.engage()
    process.refuse_outside(runs.outside)
    end = _EndOfResumption(runs, instructions["grace"])
    if instructions.get("entry") is not None:
        body = _resumed_call(runs, Entry(instructions["entry"], in_task=not meta.get("whole_program")))
    elif meta.get("whole_program"):
        runs.next_ordinal()
        end.block = runs.resume(dict(DEFAULTS))
        end.block.__enter__()
    assert body is not None
    ending.on_os_exit(end.by_os_exit)
    ended = go(body, end, silent=_is_message)
    end.watchdog.stop()
    exit_by_signal(ended.error)
    assert end.code is not None
    return end.code


def _role_of_resumption(
    command: Program | None, meta: Mapping[str, Any], instructions: Mapping[str, Any], closed: guard.Guard
) -> ResumedRuns:
    store = Store(instructions["store"])

    def opened() -> None:
        closed.release()
        process.allow_outside(runs.outside)

    replay_options = {
        "store": store, "on_divergence": "raise", "strict": (), "ignore": {}, "guard": "process", "allow_hosts": (), "dry_run": False,
        "writes": "real", "live_env": (), "live_files": (), "redact": (), "live": (), "branches": None,
    }  # fmt: skip
    resumption = {
        "supply": {int(step): value for step, value in instructions["supply"].items()},
        "accept_lost_tail": instructions["accept_lost_tail"],
        "original_is_dead": instructions["original_is_dead"],
        "opened": opened,
    }
    program = meta["program"] if isinstance(meta.get("program"), str) else None
    runs = ResumedRuns(program, command, store, instructions["path"], replay_options, resumption)
    return runs


class _EndOfResumption:
    """The actions at the end of a resumed program, taken once: the end of its run is written, and the outcome printed."""

    def __init__(self, runs: ResumedRuns, grace: float) -> None:
        self._runs: Final = runs
        self._pid: Final = os.getpid()
        #: The resumption of the whole program.
        self.block: ResumeBlock | None = None
        #: The exit code, once the program has ended.
        self.code: int | None = None
        self.watchdog: Final = Watchdog(runs, grace)

    def __call__(self, ended: Ended) -> None:
        self._runs.program_ended(ended.error)
        try:
            if self.block is not None:
                if ended.error is None:
                    self.block.run.set_result({"status": ended.status})
                _leave(self.block, ended.error)
        except BaseException as failure:
            ended = ended._replace(error=failure)
        forked = os.getpid() != self._pid  # a child that has ended a part of the run
        self.code = ended.status if forked else _report_resumption(self._runs, ended)

    def by_os_exit(self, status: int) -> int:
        """Return the status for ``os._exit``: the run ends cleanly, except inside a live effect, which stays in doubt."""
        if self.code is None and not in_live_step():
            self.watchdog.stop()
            if self._runs.resumed is not None and self._runs.resumed.begun:
                self._runs.resumed.leave()
            self.code = status
        return status


def _leave(block: RecordBlock | ReplayBlock | ResumeBlock, error: BaseException | None) -> None:
    block.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _resumed_call(resumed_runs: ResumedRuns, entry: Entry) -> Body:
    """Return a call of ``module:function`` with the run's recorded input, inside the resumed run."""

    def body() -> None:
        block = resumed_runs.resume(dict(DEFAULTS))
        entry.call(block, lambda: block.run, lambda: block.input, lambda value: block.run.set_result(value))

    return body


def _report_resumption(resumed_runs: ResumedRuns, ended: Ended) -> int:
    """Print the outcome of a resumption; return the exit status."""
    failure = resumed_runs.failure
    error = ended.error
    if failure is not None:
        resumed_runs.report(failure)
        return 1
    block = resumed_runs.resumed
    if isinstance(error, TracekitError):
        print(str(error), file=sys.stderr)
        if exit_code(error) != USAGE_ERROR or isinstance(error, RunStateError):
            return exit_code(error)
    if block is None or not block.begun:
        print("tracekit: the program never opened the run: nothing was resumed", file=sys.stderr)
        stands(resumed_runs.path)
        return ended.status or 1
    if not block.session.followed:
        print("tracekit: the program ended before its log had; the run is as it was", file=sys.stderr)
        stands(resumed_runs.path)
        return ended.status or 1
    print(f"tracekit: resumed run {block.run.id}", file=sys.stderr)
    _print_warnings(block.run.id, block.run.warnings)
    if error is not None:
        stands(resumed_runs.path)
    return ended.status


# -- launch ------------------------------------------------------------------------------------------------------------
#
# The process in which a program is recorded or replayed: set up before the program's first line.
#
# Run as ``python -m tracekit.cli.launch`` with a JSON object of instructions in ``TRACEKIT_LAUNCH``; not meant to be
# called by hand.

#: The most reasons of a verdict that are printed.
_MAX_REASONS = 20
#: How many warnings of redacted outputs are printed.
_MAX_REDACTED = 3
_REDACTED = " was redacted: "


#: The additional modules of each mode.
_NEEDED: Final = {
    "record": (),
    "replay": ("._capture.isolation", "._runs.replaying"),
    "resume": ("._capture.isolation", "._runs.replaying", "._runs.resuming"),
}


def load(mode: str) -> None:
    """Import what programs in this mode need: before their own directories are on the path, and their clocks are
    replayed."""
    for name in _NEEDED[mode]:
        importlib.import_module(name, "tracekit")


def main() -> None:
    """Run the program as ``TRACEKIT_LAUNCH`` says; exit with its status, or with that of the error that kept it from running."""
    instructions = json.loads(os.environ.pop("TRACEKIT_LAUNCH"))
    load(instructions["mode"])
    program = Program.of(instructions) or Program(None, None, (), instructions["cwd"])
    entry = instructions.get("entry")
    body: Body | None = None
    command: Program | None = None
    try:
        if instructions.get("held"):  # Ctrl-C, while this module was imported
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if entry is None:
            command = program
            body = prepared(program)
            if body is None:
                sys.exit(1)
        if instructions["mode"] == "record":
            status = _record(program, body, instructions)
        else:
            status = (
                replayed(command, body, instructions)
                if instructions["mode"] == "replay"
                else _status_within_budget(resume_process(command, body, instructions))
            )
    except TracekitError as error:
        print(command_line_text(error), file=sys.stderr)
        status = exit_code(error)
    except KeyboardInterrupt as error:  # not the program's: before it began, or after its end
        print("interrupted", file=sys.stderr)
        if instructions["mode"] == "resume":
            stands(instructions["path"])
        exit_by_signal(error)
        raise
    flush_output()
    if status == INTERRUPTED and instructions["mode"] == "replay":
        end_by_interrupt()
    sys.exit(status)


# -- recording -----------------------------------------------------------------------------------------------------------


def _record(program: Program, body: Body | None, instructions: Mapping[str, Any]) -> int:
    assert body is not None
    instrument(user_modules=instructions["user_modules"])
    stdio.capture_output()
    process.role = role = RecordedProgram(instructions.get("program"), command=program)
    role.user_modules = tuple(instructions["user_modules"])
    if instructions["spans"]:
        from ..otel import emit_spans

        emit_spans()
    name = instructions.get("name") or program.module or os.path.basename(program.script or "") or "run"
    block = RecordBlock.of_program(name, program, role)
    block.__enter__()
    end = _EndOfRecording(block)
    ending.on_os_exit(end.by_os_exit)
    ended = go(body, end)
    exit_by_signal(ended.error)
    return _status_within_budget(ended.status, ended.error)


class _EndOfRecording:
    """The actions at the end of a recorded program, taken once: the end of its run is written, and its name printed."""

    def __init__(self, block: RecordBlock) -> None:
        self._block: Final = block
        self._pid: Final = os.getpid()
        self._over = False
        scope = current.get()
        self._look_again: Final = None if scope is None else inputs.look_around(scope)

    def __call__(self, ended: Ended) -> None:
        block = self._block
        if ended.error is None:
            block.run.set_result({"status": ended.status})
        self._end(partial(_leave, block, ended.error), in_fork=os.getpid() != self._pid)
        if block.kept:  # otherwise the program recorded runs of its own, and calls outside of them are not restricted
            process.refuse_outside(partial(_after_the_end, block.run))

    def by_os_exit(self, status: int) -> int:
        """Return the status for ``os._exit``: the run ends cleanly, except inside a live effect, which stays in doubt."""
        if not self._over and not in_live_step():
            self._block.run.set_result({"status": status})
            self._end(self._block.leave)
        return _status_within_budget(status)

    def _end(self, leave: Callable[[], object], *, in_fork: bool = False) -> None:
        self._over = True
        if self._look_again is not None and not in_fork:
            self._look_again()
        with _without_run_warnings():
            leave()
        if not in_fork:
            _print_recorded(self._block)


def _after_the_end(run: Run, family: str, name: str) -> None:
    """Refuse a call made after the run has ended, as finalizers at interpreter exit may: it could not be recorded."""
    raise RunEndedError(
        f"{family} {name!r} was called after the end of the run that `tracekit run` recorded; it was not executed",
        run_id=run.id,
        location=caller(),
        next_action="call it before the program ends (in a finally, or by atexit), not when its objects are collected",
    )


def _status_within_budget(status: int, error: BaseException | None = None) -> int:
    """Return the exit status of a program: 4 if a run exceeded its budget, whatever the program itself returns."""
    over = isinstance(error, BudgetExceededError) or (status in (0, 1) and process.overspent > 0)
    return REFUSED if over else status


@contextmanager
def _without_run_warnings() -> Iterator[None]:
    """A block without a run's Python warnings at its end: the command prints them itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tracekit: run ", RuntimeWarning)
        yield


def _print_warnings(run_id: str, warnings: Iterable[str]) -> None:
    """Print them, of redacted outputs only a few: a service that sets a cookie has one in every answer."""
    redacted = 0
    for warning in warnings:
        redacted += _REDACTED in warning
        if _REDACTED not in warning or redacted <= _MAX_REDACTED:
            print(plain(f"tracekit:   {warning}"), file=sys.stderr)
    if redacted > _MAX_REDACTED:
        text = f"{redacted - _MAX_REDACTED} more outputs were redacted: `tracekit show {run_id} --why` counts them"
        print(f"tracekit:   {text}", file=sys.stderr)


def _print_recorded(block: RecordBlock) -> None:
    if block.kept:
        run = block.run
        print(f"tracekit: recorded run {run.id}", file=sys.stderr)
        _print_warnings(run.id, run.warnings)
        if not block.captured:
            print(
                "tracekit: no model call, tool or HTTP call was captured in it: decorate the program's tools with @traced_tool; "
                f"`tracekit show {run.id} --why` names what it reached otherwise",
                file=sys.stderr,
            )


# -- replaying -----------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Install what every replay of a program needs in its process; called once per process."""
    guard.warm()
    instrument()
    stdio.capture_output()


def ignore_warnings() -> None:
    """Suppress warnings whose content is in the summary of a replay."""
    warnings.filterwarnings("ignore", "tracekit: replay of", RuntimeWarning)


def replayed(
    command: Program | None,
    body: Body | None,
    instructions: Mapping[str, Any],
    layer: isolation.ScratchLayer | None = None,
) -> int:
    """Replay a program, or the function that the instructions name, in this process; return the exit code.

    ``layer`` is an existing layer over the file system, entered by the process that forked this one; nothing has been
    written in it.
    """
    ignore_warnings()
    isolated: str | None = instructions.get("isolated")  # isolated and prepared in the process that forked this one
    if isolated is None:
        isolated = isolate(instructions["isolate"], reached(instructions["options"]))
    _reality.room_aside()
    files = _Files(instructions, layer)
    path = instructions["path"]
    recorded = None
    with suppress(OSError):  # removed meanwhile
        recorded = plugins.recorded_credentials(path)
    plugins.supply_placeholders(recorded)
    if "isolated" not in instructions:
        prepare()
    compared = _ComparedReplay(instructions["transcript"]) if "transcript" in instructions else None
    process.role = replayed_runs = _role_of_replay(command, instructions, files, compared)
    closed = _guard_of_replay(replayed_runs, instructions, files)
    closed.engage()
    process.refuse_outside(replayed_runs.outside)
    threading.excepthook = _hide_replay_errors(threading.excepthook)
    end = _EndOfReplay(replayed_runs, instructions, isolated, files, compared)
    if instructions.get("entry") is not None:
        end.block = replayed_runs.of(path)
        body = _replayed_call(end.block, Entry(instructions["entry"], in_task=not _ran_under_run(path)))
    elif _ran_under_run(path):
        end.block = replayed_runs.of(path)
        end.block.ends_process = True
        end.block.__enter__()
    assert body is not None
    ending.on_os_exit(end.by_os_exit)
    if "outcome" not in instructions:  # otherwise whoever reads it sees the signal itself
        replayed_runs.killed = end.by_signal
    if compared is None:  # who compares replays says it for all of them
        replayed_runs.serves = end.by_serving
    ended = go(body, end, silent=_is_message)
    if end.in_fork:
        return ended.status
    end.watchdog.stop()
    end.watchdog.join()
    closed.release()
    files.leave()
    assert end.code is not None
    return end.code


def _role_of_replay(
    command: Program | None, instructions: Mapping[str, Any], files: _Files, compared: _ComparedReplay | None
) -> ReplayedRuns:
    store = Store(instructions["store"])
    options = dict(
        instructions["options"],
        store=store,
        writes=files.of_processes,
        transcript=instructions.get("transcript", {}).get("path"),
        debugger=instructions.get("debugger", {}).get("address"),
    )
    runs = ReplayedRuns(
        command, store, instructions["path"], options, None if compared is None else compared.replay_block
    )
    if "debugger" in instructions:
        from .._runs.debugging import RemoteDebugger

        runs.debugger = RemoteDebugger(instructions["debugger"])
    runs.live_from = instructions.get("live_from", 0)
    if instructions["trusted"]:
        runs.disk = files
    return runs


def _guard_of_replay(runs: ReplayedRuns, instructions: Mapping[str, Any], files: _Files) -> guard.Guard:
    options = instructions["options"]
    return guard.Guard(
        options["guard"],
        options["allow_hosts"],
        options["dry_run"],
        failed=runs.blocked,
        writes="real" if instructions["writes"] == "real" else "new",
        wrote=files.wrote,
        covered=files.covered,
    )


class _EndOfReplay:
    """The actions at the end of a replayed program, taken once: its verdict is printed, and kept for the caller."""

    def __init__(
        self,
        runs: ReplayedRuns,
        instructions: Mapping[str, Any],
        isolated: str,
        files: _Files,
        compared: _ComparedReplay | None,
    ) -> None:
        self._runs: Final = runs
        self._instructions: Final = instructions
        self._isolated: Final = isolated
        self._files: Final = files
        self._compared: Final = compared
        self._pid: Final = os.getpid()
        #: The replay of the whole program, or of the function that is called instead.
        self.block: ReplayBlock | None = None
        #: The exit code, once the program has ended.
        self.code: int | None = None
        self.watchdog: Final = Watchdog(runs, instructions["grace"], lambda: self._keep(None))

    @property
    def in_fork(self) -> bool:
        """Whether this is a forked child, whose own replay ends with its process."""
        return os.getpid() != self._pid

    def __call__(self, ended: Ended) -> int:
        if self.in_fork:
            return ended.status
        self._runs.program_ended(ended.error)
        if self._runs.debugger is not None:
            self._runs.debugger.ended()
        try:
            if self._instructions.get("entry") is None:
                _end_whole_program(self.block, ended)
        except BaseException as failure:
            ended = ended._replace(error=failure)
        code = self.code = _report_replay(self._runs, ended, self._isolated, self._instructions)
        self._keep(ended)
        if not self._files.report():
            code = self.code = code or 1
        if self._compared is not None:
            self._compared.ended(code, self._runs, ended)
        return code

    def by_os_exit(self, status: int) -> int:
        """End the replay when the program calls ``os._exit``; return the status for that."""
        return status if self.code is not None else self._at_once(Ended(status, where=caller()))

    def by_signal(self, number: int) -> None:
        """End the replay, and this process, where the program would end itself by a signal."""
        if self.code is None and not self.in_fork:
            code = self._at_once(Ended(-number, where=caller(), signal=name_of(number)))
            sys.stderr.flush()
            _really_exit(code)

    def by_serving(self, refused: LiveCallBlockedError) -> None:
        """End the replay, and this process, where the program begins to serve: a request had opened the run, and here
        nobody makes one. What the server would say of the refusal helps nobody."""
        if self.code is not None or self.in_fork:
            return
        run, target = self._instructions["run"], getattr(refused, "target", "")
        given = recorded_input(self._instructions["path"])
        gets = f" (it gets {', '.join(map(str, given))})" if isinstance(given, dict) and given else ""
        error = RunStateError(
            f"the program begins to serve on {target}, and has not opened {file_name(self._instructions['path']).stem}: "
            "a request had opened it, and a replay makes none",
            location=refused.location,
            next_action=f"name the function that opens it{gets}: tracekit replay {run} --entry module:function; "
            f"or, if the program only has a server of its own beside the run: --allow-host {target}",
        )
        code = self._at_once(Ended(1, error))
        sys.stderr.flush()
        _really_exit(code)

    def _at_once(self, ended: Ended) -> int:
        self.watchdog.stop()
        for block in self._runs.started:
            if block.active and block is not self.block:
                _finish(block)
        return self(ended)

    def _keep(self, ended: Ended | None) -> None:
        into: int | None = self._instructions.get("outcome")
        if into is not None:
            _write_outcome(into, self._runs, ended, None if ended is None else self.code)


class _ComparedReplay:
    """A replay whose every step is written to a transcript, for a comparison with another replay."""

    def __init__(self, instructions: Mapping[str, Any]) -> None:
        from .._runs.determinism import OutputPlaces, TranscriptWriter, perturb
        from .._runs.replaying import TranscribedReplayBlock

        perturb(instructions["number"])
        self._out = OutputPlaces.take() if instructions["stdout"] else None
        self._transcript = transcript = TranscriptWriter(instructions["path"])
        self.replay_block: Callable[[str, dict[str, Any]], ReplayBlock] = lambda path, options: TranscribedReplayBlock(
            path, options, transcript
        )

    def ended(self, code: int, replayed_runs: ReplayedRuns, ended: Ended) -> None:
        failure = replayed_runs.failure
        if failure is None and _is_message(ended.error) and not replayed_runs.expected(ended.error):
            failure = ended.error
        if failure is not None:
            self._transcript.failed(getattr(failure, "run_id", None), failure)
        self._transcript.ended(
            code, ended.status, ended.error, [one.report for one in replayed_runs.started], self._out
        )


def _end_whole_program(replay_block: ReplayBlock | None, ended: Ended) -> None:
    """End the replay of the whole program; raise its failure, or the program's own error."""
    if replay_block is None:
        return
    error = ended.error
    if error is None:
        replay_block.ended_as, replay_block.ended_at = ended.text, ended.where
        replay_block.set_result({"status": ended.status})
    _leave(replay_block, error)


def _finish(replay_block: ReplayBlock) -> None:
    """End a replay inside which the program exits: recorded steps that were not made are its failure."""
    try:
        replay_block.session.finish()
    except ReplayError:
        pass  # kept by the session


def _replayed_call(replay_block: ReplayBlock, entry: Entry) -> Body:
    """Return a replay of ``module:function``, called with the run's recorded input."""

    def body() -> None:
        entry.call(replay_block, replay_block.as_run, lambda: replay_block.input, replay_block._returned)

    return body


def _report_replay(replayed_runs: ReplayedRuns, ended: Ended, isolated: str, instructions: Mapping[str, Any]) -> int:
    """Print the outcome of a replay with the verdicts on its runs; return the exit code."""
    error = ended.error
    for replay_block in replayed_runs.started:
        replay_block.session.close_verdict()
    failure = replayed_runs.failure
    if failure is None and _is_message(error) and not replayed_runs.expected(error):
        failure = error
    reports = [replay_block.report for replay_block in replayed_runs.started]
    if _is_interrupted(replayed_runs, ended):
        _print_interrupted(replayed_runs, instructions)
        return INTERRUPTED
    for report in reports:
        report.isolation = isolated
    for replay_block in replayed_runs.started:
        if replay_block.new_run_id is not None:
            print(f"tracekit: recorded the result as run {replay_block.new_run_id}", file=sys.stderr)
    if failure is not None:
        replayed_runs.report(failure)
    if failure is not None and not _log_ended(failure):
        pass
    elif not replayed_runs.opened:
        before = f"{len(reports)} run{'' if len(reports) == 1 else 's'} before it"
        nothing = f" of it was replayed, only {before}" if reports else " was replayed"
        print(f"tracekit: the program never opened the run {instructions['run']}: nothing{nothing}", file=sys.stderr)
    else:
        if instructions.get("outcome") is None:  # otherwise nobody reads it
            _summary(reports, ended, replayed_runs)
        codes = {report.verdict.exit_code for report in reports}
        # An error of the program outside of its runs is in none of their verdicts, and a replay that ends with one is
        # not exact.
        own = error is not None and failure is None and not replayed_runs.expected(error)
        return DIFFERENT if own or DIFFERENT in codes else max(codes)
    return exit_code(error) if isinstance(error, RunStateError) else DIFFERENT


def _is_interrupted(replayed_runs: ReplayedRuns, ended: Ended) -> bool:
    """Return whether Ctrl-C from outside has ended a replay that had not failed before."""
    if any(one.report.verdict.interrupted for one in replayed_runs.started):
        return True
    # Outside of its runs nothing notes it.
    error = ended.error
    return isinstance(error, KeyboardInterrupt) and replayed_runs.failure is None and not replayed_runs.expected(error)


def _print_interrupted(replayed_runs: ReplayedRuns, instructions: Mapping[str, Any]) -> None:
    how_far = "the program had not opened the run"
    for replay_block in replayed_runs.asked:
        matched, left = replay_block.report.matched["consumed"], len(replay_block.report.unconsumed)
        how_far = f"{matched} step{'' if matched == 1 else 's'} matched, {left} not requested"
    print(
        f"tracekit: interrupted: {how_far}; whether the replay of {instructions['run']} is exact is not known",
        file=sys.stderr,
    )


def _write_outcome(into: int, replayed_runs: ReplayedRuns, ended: Ended | None, code: int | None) -> None:
    """Write the outcome of a replay, for a caller that replays many runs, into the open file ``into``: how it ended,
    and each difference.

    ``ended`` is ``None`` if the watchdog ends the program.
    """
    reports = [one.report for one in replayed_runs.started]
    failure, error = replayed_runs.failure, None if ended is None else ended.error
    if isinstance(error, ReplayError):
        failure, error = failure or error, None
    about = {
        "code": code,
        "status": None if ended is None else ended.status,
        "opened": replayed_runs.opened,
        "failure": None if failure is None else _failure_facts(failure),
        "raised": None if error is None or replayed_runs.expected(error) else raised_facts(error),
        "verdicts": [one.verdict.as_dict() for one in reports],
        "steps": sum(one.matched["consumed"] for one in reports),
        "new_run": next((one.new_run_id for one in replayed_runs.started if one.new_run_id is not None), None),
    }
    data = dumps(to_json(about))
    while data:
        data = data[_reality.write(into, data) :]


def _failure_facts(failure: BaseException) -> dict[str, Any]:
    """Return the facts on a replay's failure: its text, its place, and the step that differs."""
    facts = {name: getattr(failure, name, None) for name in ("code", "step", "location", "next_action", "differences")}
    step = next(
        (one for name in ("recorded", "actual") if isinstance(one := getattr(failure, name, None), Mapping)), None
    )
    left = getattr(failure, "steps", None)
    if step is None and isinstance(left, list) and left:
        step = left[0]
    found = {"type": getattr(failure, "kind", None), "name": getattr(failure, "name", None)} if step is None else step
    kind = found.get("type", found.get("kind"))
    return {
        **facts,
        "type": type(failure).__name__,
        "text": getattr(failure, "what", str(failure)),
        "kind": kind if isinstance(kind, str) else None,
        "name": found.get("name"),
        "input": actual.get("input") if isinstance(actual := getattr(failure, "actual", None), Mapping) else None,
    }


def raised_facts(error: BaseException) -> dict[str, Any]:
    """Return the facts on an exception that ended the program, and the line of its own code that raised it."""
    text = Redactor.of_process([]).redact_text(error.what if isinstance(error, TracekitError) else str(error))[0]
    return {
        "type": type(error).__name__,
        "text": text,
        "location": raised_at(error),
        "code": getattr(error, "code", None),
        # An option that is wrong whatever the run, and what to do.
        "option": getattr(error, "option", None),
        "next": getattr(error, "next_action", None),
    }


def _summary(reports: list[Report], ended: Ended, replayed_runs: ReplayedRuns) -> None:
    asked = {block.report.run_id for block in replayed_runs.asked}
    for report in reports:
        matched = report.matched
        steps = f"{matched['consumed']} step{'' if matched['consumed'] == 1 else 's'} matched"
        if matched["in_processes"]:
            processes = "1 process" if matched["processes"] == 1 else f"{matched['processes']} processes"
            steps += f", {matched['in_processes']} of them in {processes}"
        if matched["skipped"]:
            steps += f", {matched['skipped']} inside them"
        which = ""
        if len(reports) > 1:
            which = ", the requested run" if report.run_id in asked else ", another run of the program"
        print(f"tracekit: replayed {report.run_id}{which}: {report.verdict.line} ({steps})", file=sys.stderr)
        for reason in report.verdict.reasons[:_MAX_REASONS]:
            where = f" (at {reason.facts['where']})" if reason.facts.get("where") else ""
            print(plain(f"tracekit:   {reason.code}: {reason.text}{where}"), file=sys.stderr)
        for reason in [one for one in report.verdict.remarks if one.code == "output"][:_MAX_REASONS]:
            print(plain(f"tracekit:   output: {reason.text}"), file=sys.stderr)
        for reason in report.verdict.allowed[:_MAX_REASONS]:
            print(plain(f"tracekit:   allowed: {reason.text}"), file=sys.stderr)
        taken = _usage_text(report.recorded)
        if taken:
            paid = "" if report.verdict.of("live") else "this replay cost nothing; "
            print(f"tracekit:   {paid}the recorded run took {taken}", file=sys.stderr)
        _print_warnings(report.run_id, report.warnings)
    network = f"tracekit: network: {reports[0].isolation}; "
    how = f"{type(ended.error).__name__}, status {ended.status}"
    if ended.error is None:
        how = f"the program's status is {ended.status}" if ended.signal is None else f"the program {ended.text}"
        print(f"{network}{how}", file=sys.stderr)
    elif _log_ended(replayed_runs.failure):
        print(f"{network}how the recorded program would have ended is not known", file=sys.stderr)
    elif not replayed_runs.expected(ended.error):
        print(f"{network}the program ended with {how}, and the recorded one did not", file=sys.stderr)
    else:
        print(f"{network}the recorded program ended with {how}; so did this one", file=sys.stderr)


def _usage_text(recorded: Mapping[str, Any]) -> str:
    """Return what a recorded run used of models (calls, tokens, cost) as text; empty if it called none."""
    if not recorded.get("llm_calls"):
        return ""
    from .._runs.wording import plural
    from .._runtime.prices import why_unpriced

    counts = [
        plural(recorded[name], word)
        for name, word in (
            ("llm_calls", "model call"),
            ("input_tokens", "input token"),
            ("output_tokens", "output token"),
        )
        if recorded[name] is not None
    ]
    if recorded.get("unreported"):
        counts.append(f"{recorded['unreported']} of them without saying how many tokens")
    if recorded["cost_usd"] is not None:
        counts.append(f"${recorded['cost_usd']:.6f}")
    unpriced = recorded["cost_usd"] is None and recorded["unpriced"]
    cost = f"; cost not known: {why_unpriced(recorded['unpriced'])}" if unpriced else ""
    return ", ".join(counts) + cost


def reached(options: Mapping[str, Any]) -> list[str]:
    """Return what a replay with these options can reach outside: hosts, and kinds of live calls."""
    return [*options["allow_hosts"], *(kind for kind in options["live"] if kind.partition(":")[0] in FAMILIES)]


def isolate(mode: str, reaches: list[str]) -> str:
    from .._capture import isolation

    # In a network namespace of its own the program can't reach any host, including the allowed ones.
    if mode == "off" or (mode == "auto" and (reaches or not isolation.available())):
        return "guarded in Python"
    in_force = isolation.enter()
    if mode == "on" and in_force.startswith("not isolated"):
        raise RunStateError(
            f"--isolate=on is not possible here: {in_force}",
            next_action="replay with --isolate=auto, behind the guard in Python alone",
        )
    return in_force


#: The random part of the name of a temporary file.
_RANDOM_NAME: Final = expression(r"[a-z0-9_]{8}")


class _Files:
    """Where a replayed program's files are written, and what it has written."""

    def __init__(self, instructions: Mapping[str, Any], there: isolation.ScratchLayer | None = None) -> None:
        self._kept_in: Final[str | None] = instructions["writes_to"]
        #: Whether a tool observes this process, and writes files of its own when it ends.
        self._observed: Final = sys.gettrace() is not None or "coverage" in sys.modules
        self._layer: isolation.ScratchLayer | None = None
        self._why_not = ""
        self._wrote: Final[set[str]] = set()
        self._laid: Final[set[str]] = set()
        #: Files created by the recorded run: they must not exist before the program creates them.
        self._unborn: Final[set[str]] = set()
        self._reported = False
        #: Whether files are restored to their recorded state: not if the program changes the user's own files.
        self._lays: Final[bool] = instructions["writes"] == "scratch" and not instructions["options"]["dry_run"]
        self._cwd: Final = os.getcwd()
        if there is not None:
            there.own()
        if self._lays:
            branches = instructions["options"]["branches"]
            self._enter([instructions["store"], *([] if branches is None else [branches])], there, instructions)
        elif there is not None:
            there.leave()
        if instructions["trusted"]:
            self._go_where_it_was(first_meta(instructions["path"]).get("program_command"))

    def _enter(self, passes: list[str], there: isolation.ScratchLayer | None, instructions: Mapping[str, Any]) -> None:
        if self._kept_in is not None:
            os.makedirs(self._kept_in, exist_ok=True)
            passes.append(self._kept_in)
        left = _temporary_files_left_by(instructions["path"])
        if there is not None:
            if not left and there.is_for(passes):
                self._layer = there
                return
            there.leave()
        from .._capture import isolation

        # Compared replays may run concurrently: none may find a temporary file of another one.
        transcript = instructions.get("transcript")
        if transcript is not None:
            passes.append(os.path.dirname(transcript["path"]))
        found = isolation.ScratchLayer.enter(passes, temporary=bool(left) or transcript is not None)
        if isinstance(found, isolation.ScratchLayer):
            self._layer = found
            for path in left:  # the recorded run found these names free
                if found.may_hide(path):
                    self._unborn.add(path)
                    with suppress(OSError):
                        inputs.remove(path)
            return
        self._why_not = found
        if self._kept_in is not None:
            raise RunStateError(
                f"--writes-to can't be had here, since there is no scratch layer: {found}",
                next_action="replay without it: files that were there before are not changed, and new ones are written where they are",
            )

    def _go_where_it_was(self, command: Any) -> None:
        """Make the current directory visible at its path in the recording: the path is in prompts and files."""
        then = command.get("cwd") if isinstance(command, Mapping) else None
        layer: isolation.ScratchLayer | None = self._layer
        if layer is None or not isinstance(then, str) or not os.path.isabs(then) or then == self._cwd:
            return
        if layer.show(self._cwd, then):
            os.chdir(then)

    def lay(self, path: str, value: Any, *, first: bool, own: bool) -> bool | None:
        """Restore a file to its recorded state, in the layer, or where the program itself writes; see
        ``tracekit._runtime.inputs.Disk``."""
        if not self._lays or (first and path in self._laid):  # by an earlier run of the program, which changes it again
            return True
        self._laid.add(path)
        if first and value is None:
            self._unborn.add(path)
        with guard.allow():
            if own:
                return inputs.restore(path, value)
            if self._layer is None:
                return True if inputs.is_as_it_was(path, value) else None
            return inputs.restore(path, value) if self._layer.covers(path) else True

    @property
    def of_processes(self) -> guard.Writes:
        """Return what the processes of the program may write: if there is a layer, they are in it."""
        return "new" if self._why_not else "real"

    def covered(self, path: str) -> bool:
        """Return whether a write to this path goes into the layer."""
        return self._layer is not None and self._layer.covers(path)

    def wrote(self, path: str, where: str | None) -> None:
        """Note that the guard has permitted a new file."""
        self._wrote.add(path)

    def report(self) -> bool:
        """Print what was written, and keep what is to be kept; once. Return whether that was possible."""
        if self._reported:
            return True
        self._reported = True
        kept = True
        if self._layer is not None:
            try:
                self._report_layer(self._layer)
            except OSError as error:  # the program closed our descriptors, or gave up its rights
                kept = self._kept_in is None
                what = "are gone" if kept else f"could not be kept in {self._kept_in}"
                print(
                    plain(f"tracekit: files: those written in the scratch layer {what}, and can't be listed: {error}"),
                    file=sys.stderr,
                )
        if self._wrote:
            why = f", since there is no scratch layer here ({self._why_not})" if self._why_not else ""
            self._print(f"written, and there{why}", sorted(self._wrote))
        return kept

    def _report_layer(self, layer: isolation.ScratchLayer) -> None:
        if layer.untouched():
            return
        changes = [one for one in layer.changes() if not (one.removed and one.path in self._unborn)]
        if changes and self._kept_in is not None:
            layer.keep(self._kept_in, self._cwd)
            self._print(f"written in a scratch layer and kept in {self._kept_in}", [one.text for one in changes])
        elif changes:
            self._print("written in a scratch layer, and gone", [one.text for one in changes])

    def _print(self, what: str, paths: list[str]) -> None:
        cwd = self._cwd + os.sep
        more = f" and {len(paths) - _MAX_REASONS} more" if len(paths) > _MAX_REASONS else ""
        named = ", ".join(path.removeprefix(cwd) for path in paths[:_MAX_REASONS])
        print(plain(f"tracekit: files: {what}: {named}{more}"), file=sys.stderr)

    def leave(self) -> None:
        """Leave the layer if a tool observes this process: it writes its own files when the process ends."""
        if self._layer is not None and self._observed:
            self._layer.leave()


def _temporary_files_left_by(trace: str) -> list[str]:
    """Return the temporary files and directories that the recorded run, or a replay of it, has left behind, by their random
    names: in the directory for temporary files and the current one."""
    import tempfile

    names: set[str] = set()
    for file in (trace, *beside(trace)):
        with suppress(OSError), open(file, "rb") as lines:
            for line in lines:
                if b'"name":"tempfile.name' in line:
                    with suppress(ValueError, KeyError, TypeError):
                        names.update(name for name in json.loads(line)["values"] if _RANDOM_NAME.fullmatch(name))
    found: list[str] = []
    for directory in {os.path.realpath(tempfile.gettempdir()), os.getcwd()} if names else ():
        with suppress(OSError):
            entries = os.listdir(directory)
            found += (os.path.join(directory, one) for one in entries if any(name in one for name in names))
    return found


def _ran_under_run(path: str) -> bool:
    return bool(first_meta(path).get("whole_program"))


def _hide_replay_errors(before: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a ``threading.excepthook`` that skips the replay's own errors: they are printed once, in the summary."""

    def hook(args: Any) -> object:
        return None if isinstance(args.exc_value, ReplayError) else before(args)

    return hook


if __name__ == "__main__":
    main()
