"""Runs a program of the user's in this process: recorded, replayed or resumed, behind the guard where nothing may be live."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import operator
import os
import re
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import FrameType, ModuleType, TracebackType
from typing import Any, Final, NamedTuple, Protocol

import orjson

from .._capture import guard, isolation, plugins, stdin, stdout
from .._capture.instrumentation import instrument
from .._journal.keys import Keys
from .._journal.reader import Trace
from .._journal.store import RunSummary, Store, summary
from .._runs import RecordBlock, ReplayBlock, ResumeBlock, Run, children, ending, role
from .._runs import block as served
from .._runs.block import below_run, call_with, is_input
from .._runs.environment import Program, set_program
from .._runs.recording import DEFAULTS
from .._runtime import session as gate
from .._runtime.callsite import caller
from .._runtime.context import current
from .._runtime.redaction import PLACEHOLDER
from .._runtime.verdict import Report
from .._values import from_json, to_json
from ..errors import (
    BudgetExceededError,
    LiveCallBlockedError,
    RecoveryRefusedError,
    ReplayError,
    RunEndedError,
    RunStateError,
    TracekitError,
)
from .output import DIFFERENT, REFUSED, WRONG_USE, exit_code, plain

__all__ = [
    "Body",
    "Ended",
    "Entry",
    "Players",
    "Resumers",
    "Sibling",
    "Watchdog",
    "check_siblings",
    "die_of",
    "first_meta",
    "go",
    "main",
    "on_hard_exit",
    "prepared",
    "recorded_input",
    "resumed",
    "siblings",
    "spelled",
]

# -- course ------------------------------------------------------------------------------------------------------------
#
# A program from its first line to its last exit callback, run as the interpreter would, in this process.

Body = Callable[[], object]

_OURS: Final = (__file__, runpy.__file__, "<frozen runpy>")
#: The module that began this process: it must outlive its name in ``sys.modules``.
_before: Final[list[Any]] = []


class Ended(NamedTuple):
    """How a program came to its end: its exit status, and the exception that it did not catch."""

    status: int
    error: BaseException | None = None


def prepared(program: Program) -> Body | None:
    """The program, ready to run: ``sys.argv``, ``sys.path`` and ``__main__`` are its own from here on.

    ``None`` where it can't be run at all (no such module, a syntax error), which has been told as Python tells it.
    """
    _before.append(sys.modules["__main__"])
    if not sys.flags.safe_path and not os.path.isdir(os.path.join(sys.path[0], "tracekit")):
        del sys.path[0]  # the directory that `python -m` puts there
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
    sys.argv = [path, *program.arguments]
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
        _tell(error)
        return None
    return lambda: exec(code, main.__dict__)


def go(
    body: Body, end: Callable[[Ended], None], silent: Callable[[BaseException], bool] = lambda error: False
) -> Ended:
    """Run ``body``, wait for its threads, call its exit callbacks, then ``end``, whose errors come out.

    What was to be done at exit before ``body`` began is done after ``end``, so that it sees all that the program did. An
    exception that ends the program is shown by ``sys.excepthook``, without our own frames, unless it is ``silent``.
    """
    ended: list[Ended] = []
    closed: list[bool] = []
    errors: list[BaseException] = []

    def close() -> None:
        if ended and not closed:
            closed.append(True)
            try:
                end(ended[0])
            except BaseException as error:
                errors.append(error)

    atexit.register(close)
    ended.append(_outcome(body, silent))
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does first of all at its end
    except BaseException as error:
        _tell(error)
    atexit._run_exitfuncs()
    close()
    if errors:
        raise errors[0]
    return ended[0]


def _outcome(body: Body, silent: Callable[[BaseException], bool]) -> Ended:
    try:
        body()
    except SystemExit as end:
        return Ended(_status(end))
    except ReplayError as error:
        return Ended(1, error)  # told once, at the end of it all
    except BaseException as error:
        error.__traceback__ = _theirs(error.__traceback__)
        if not silent(error):
            _tell(error)
        return Ended(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1, error)
    return Ended(0)


def _tell(error: BaseException) -> None:
    """As the interpreter does with what nobody caught."""
    error.__traceback__ = _theirs(error.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except (Exception, ReplayError) as failed:
        if sys.excepthook is not sys.__excepthook__:
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(failed), failed, failed.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that lead to the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


def on_hard_exit(leaving: Callable[[int], int]) -> None:
    """From now on ``os._exit(status)`` asks ``leaving`` for the status that this process leaves with; a forked child does not."""
    really, pid = os._exit, os.getpid()

    def _exit(status: int) -> None:
        status = operator.index(status)
        if os.getpid() == pid:
            status = leaving(status)
            sys.stderr.flush()
        really(status)

    os._exit = _exit  # type: ignore[assignment]
    posix = sys.modules.get("posix")
    if posix is not None:
        posix._exit = _exit  # type: ignore[attr-defined]


def die_of(error: BaseException | None) -> None:
    """Where an interrupt ended the program, end as Python does: by the signal itself, so that a shell's loop stops too."""
    if isinstance(error, KeyboardInterrupt) and hasattr(os, "kill"):
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


# -- entries -----------------------------------------------------------------------------------------------------------
#
# ``--entry module:function``: a run made again by calling one function with what the run was given.


class Entry:
    """The function that ``--entry`` names. It may have a ``record()`` of its own inside: that is the run itself then.

    ``in_task``: a coroutine function has the run in its task, as its own ``record()`` would have; else around the event loop.
    """

    def __init__(self, name: str, *, in_task: bool) -> None:
        self._name: Final = name
        self._in_task: Final = in_task
        #: Whether the function has opened a run of its own.
        self.opened = False

    def function(self) -> Any:
        """The function, below a ``record`` that decorates it. ``RunStateError`` where there is none."""
        module, _, name = self._name.partition(":")
        sys.path.insert(0, os.getcwd())
        try:
            found: Any = importlib.import_module(module)
        except (ImportError, ValueError) as error:
            if isinstance(error, ImportError) and error.name not in (None, module, module.partition(".")[0]):
                raise  # it is there, and what it imports is not
            raise self._wrong(f"there is no module {module!r}") from None
        for part in name.split(".") if name else ():
            found = getattr(found, part, None)
        if not name or not callable(found):
            raise self._wrong(f"{module!r} has no function {name!r}")
        return below_run(found)

    def _wrong(self, what: str) -> RunStateError:
        return RunStateError(
            f"--entry {self._name}: {what}", next_action="say --entry MODULE:FUNCTION, importable from here"
        )

    def call(self, block: Any, run: Callable[[], Run], given: Callable[[], Any], came: Callable[[Any], object]) -> None:
        """Call it inside ``block`` with what the run was ``given``; ``came`` gets what it returns, if the run is not its own."""
        function = self.function()
        if self._in_task and inspect.iscoroutinefunction(function):
            asyncio.run(self._awaited(function, block, run, given, came))
            return
        with block:
            self._lend(block, run())
            args, kwargs = self._arguments(function, given())
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            if not self.opened:
                came(value)

    async def _awaited(self, function: Any, block: Any, run: Any, given: Any, came: Any) -> None:
        async with block:
            self._lend(block, run())
            args, kwargs = self._arguments(function, given())
            value = await function(*args, **kwargs)
            if not self.opened:
                came(value)

    def _arguments(self, function: Any, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return call_with(function, given)
        except TypeError as error:
            what = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
            raise self._wrong(f"it can't be called with what the run was given, {what}: {error}") from None

    def _lend(self, block: Any, run: Run) -> None:
        role.lend(block.session, _Borrowed(self, run))


class _Borrowed:
    """What stands in for the ``record()`` inside the function: the run around it."""

    def __init__(self, entry: Entry, run: Run) -> None:
        self._entry = entry
        self._run = run

    def stand_in(self, options: Mapping[str, Any]) -> Run:
        self._entry.opened = True
        return self._run

    def end_for(self, run: Run, error: BaseException | None) -> None:
        pass


# -- siblings ----------------------------------------------------------------------------------------------------------
#
# The runs that one program made, in the order in which it opened them.

#: A first line longer than this is read to its end by nobody: its program is not looked for.
_MOST = 8 << 20


class Sibling(NamedTuple):
    """One run of a program: the how-manieth it opened, its file, and what its first and last line say."""

    ordinal: int
    path: str
    about: RunSummary


def first_meta(path: str) -> dict[str, Any]:
    """``meta`` of a file's first entry, unverified; empty where there is none."""
    try:
        with open(path, "rb") as file:
            meta = orjson.loads(file.readline(_MOST)).get("meta")
    except (OSError, ValueError, AttributeError):
        return {}
    return meta if isinstance(meta, dict) else {}


def recorded_input(path: str) -> Any:
    """What the run in this file was given."""
    with Trace(path) as trace:
        return from_json(trace.expand(trace.entry(1).get("input")))


def siblings(store: Store, path: str) -> dict[int, Sibling]:
    """The runs of the program that made the run at ``path``, by their ordinals, that run among them."""
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


# -- players -----------------------------------------------------------------------------------------------------------
#
# The runs of one program, each replayed from its own file, and the watch over a program that does not end.

_really_exit: Final = os._exit
#: The advice of the library to leave something out of ``strict``, and the names in it.
_STRICT: Final = re.compile(r'leave ("[\w", ]+") out of strict')
_NAMES: Final = re.compile(r'"(\w+)"')


class Players:
    """The runs of one program, each replayed from its own file when the program opens it."""

    def __init__(
        self,
        store: Store,
        path: str,
        options: dict[str, Any],
        break_at: int | None,
        make: Callable[[str, dict[str, Any]], ReplayBlock] | None = None,
    ) -> None:
        self.played: list[ReplayBlock] = []
        self._store = store
        self._options = options
        self._break_at = break_at
        self._path = path
        self._make = make or (lambda path, options: ReplayBlock(path, options, None))
        self._siblings = {ordinal: one.path for ordinal, one in siblings(store, path).items()}
        self._blocked: LiveCallBlockedError | None = None

    def of(self, path: str) -> ReplayBlock:
        player = self._make(path, self._options)
        player.break_at = self._break_at if path == self._path else None
        self.played.append(player)
        return player

    def find(self, block: RecordBlock) -> ReplayBlock:
        """The replay that stands in for this ``record()`` of the program: its ``n``-th."""
        ordinal = block.ordinal
        path = self._siblings.get(ordinal)
        if path is None:
            raise RunStateError(
                f"the program opens its record() number {ordinal}, and the store has no run of it",
                next_action="replay in the store where the program was recorded, or name one run with --entry",
            )
        return self.of(path)

    def input_of(self, ordinal: int) -> Any:
        """What the ``n``-th run of the program was given, where the store has it."""
        path = self._siblings.get(ordinal)
        return None if path is None else recorded_input(path)

    def outside(self, family: str, name: str) -> None:
        """A captured call outside every replayed run would be live."""
        error = LiveCallBlockedError(
            f"{family} {name!r} was called outside the replayed run",
            operation=f"{family} {name}",
            next_action="move the call inside the record() block; under a replay nothing is called live",
        )
        self.blocked(error)
        raise error

    def blocked(self, error: LiveCallBlockedError) -> None:
        open_ones = [player for player in self.played if player.active]
        for player in open_ones:
            player.session.fail(error)
        if not open_ones and self._blocked is None:
            self._blocked = error

    @property
    def started(self) -> list[ReplayBlock]:
        return [player for player in self.played if player.started]

    @property
    def failure(self) -> BaseException | None:
        for player in self.started:
            if player.session.failure is not None:
                return player.session.failure
        return self._blocked

    @property
    def stalled(self) -> float:
        return max((player.session.schedule.stalled for player in self.started), default=0.0)

    def expected(self, error: BaseException) -> bool:
        """Whether the recorded run ended with this error too."""
        return any(player.recorded_failure(error) for player in self.started)


class Watched(Protocol):
    """What may fail while its program goes on: the first failure, if there is one."""

    @property
    def failure(self) -> BaseException | None: ...
    @property
    def stalled(self) -> float:
        """For how long (s) nobody has moved, while it can't be told what for."""
        ...


#: After so long (s) without a move a replay says whom it waits for; then it has the time of ``--grace``.
_UNTIL_SAID: Final = 10.0


class Watchdog:
    """Ends a program that has not ended ``grace`` seconds after the replay's first failure, one in a process that it has started
    included, or after it was said that nobody moves: its stacks on stderr, its processes with it.
    """

    def __init__(self, players: Watched, grace: float) -> None:
        self._players = players
        self._grace = grace
        self._over = threading.Lock()
        self._over.acquire()
        threading.Thread(target=self._watch, name="tracekit-watchdog", daemon=True).start()

    def _watch(self) -> None:
        waited = 0.0
        while not self._over.acquire(timeout=0.25):
            children.heed()
            failure = self._players.failure
            waited = waited + 0.25 if failure is not None else 0.0
            if failure is None and self._players.stalled >= _UNTIL_SAID + self._grace and not _debugged():
                self._end(
                    "nobody in the program has moved for so long that it is ended; whether the replay is exact is not known",
                    3,
                )
            if failure is not None and waited >= self._grace:
                print(spelled(failure), file=sys.stderr)
                self._end(f"the program has not ended {self._grace:g} s after that; it is ended", 1)

    @staticmethod
    def _end(why: str, code: int) -> None:
        print(f"tracekit: {why}", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()
        children.abandon()
        _really_exit(code)

    def stop(self) -> None:
        if self._over.locked():
            self._over.release()


def _debugged() -> bool:
    """Whether a thread of the program stands at somebody's prompt."""
    for frame in sys._current_frames().values():
        found: FrameType | None = frame
        while found is not None:
            if (
                os.path.basename(found.f_code.co_filename) in ("bdb.py", "pdb.py")
                or "pydev" in found.f_code.co_filename
            ):
                return True
            found = found.f_back
    return False


def spelled(failure: BaseException | None) -> str:
    """A failure's text, with what it advises in the words of the command line."""
    text = str(failure)
    for library, here in (
        ("replay(..., guard='off')", "`tracekit replay --guard off`"),
        ("replay(..., guard='context')", "`tracekit replay --guard context`"),
        ("replay without dry_run", "replay without --no-writes"),
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


# -- resumers ----------------------------------------------------------------------------------------------------------
#
# What stands in for each ``record()`` of a program that goes on after a crash.


def check_siblings(store: Store, path: str) -> dict[int, Sibling]:
    """The runs of the program of ``path``; ``RecoveryRefusedError`` where running it again can't be told to be safe.

    The runs that it had finished before are replayed, so each must be there and have an end; runs that it had open at once (a
    server) can't be told apart when it runs again.
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
        next_action="resume this run alone: tracekit recovery resume RUN --entry module:function",
    )


class Resumers:
    """The finished runs of a program replayed, the one that crashed resumed, later ones recorded."""

    def __init__(self, store: Store, path: str, options: dict[str, Any], resumption: dict[str, Any]) -> None:
        self.resumed: ResumeBlock | None = None
        self.played: list[ReplayBlock] = []
        self._store = store
        self._path = path
        self._replay = options
        self._resumption = resumption
        self._siblings = siblings(store, path)
        self._blocked: LiveCallBlockedError | None = None

    def resume(self, options: dict[str, Any]) -> ResumeBlock:
        """The resumption of the run that crashed, for a ``record()`` with these options."""
        given = {**options, "store": self._store}
        self.resumed = ResumeBlock(self._path, given, None, **self._resumption)
        return self.resumed

    def find(self, block: RecordBlock) -> ReplayBlock | ResumeBlock | None:
        """What stands in for this ``record()`` of the program: its ``n``-th."""
        if self.resumed is not None:
            return None
        ordinal = block.ordinal
        sibling = self._siblings.get(ordinal)
        if sibling is None:
            raise RunStateError(
                f"the program opens its record() number {ordinal}, and the store has no run of it",
                next_action="resume in the store where the program was recorded, or with --entry module:function",
            )
        if sibling.path == self._path:
            return self.resume(block.options)
        player = ReplayBlock(sibling.path, self._replay, None)
        self.played.append(player)
        return player

    def input_of(self, ordinal: int) -> Any:
        """What the ``n``-th run of the program was given, as it was: ``None`` where the log does not keep all of it.

        What goes live with a placeholder in the place of a secret would do something else.
        """
        sibling = self._siblings.get(ordinal)
        if self.resumed is not None or sibling is None:
            return None
        given = recorded_input(sibling.path)
        return None if PLACEHOLDER.search(json.dumps(to_json(given))) else given

    def is_input(self, ordinal: int, value: Any) -> bool | None:
        """Whether the ``n``-th run of the program was given this; ``None`` where that can't be told."""
        sibling = self._siblings.get(ordinal)
        if sibling is None:
            return None
        return is_input(Keys(self._store.root), first_meta(sibling.path).get("input_key"), value)

    def outside(self, family: str, name: str) -> None:
        """A captured call before the run has come to the end of its log would be repeated."""
        error = LiveCallBlockedError(
            f"{family} {name!r} was called outside the resumed run, before that had come to the end of its log",
            operation=f"{family} {name}",
            next_action="move the call inside the record() block; or resume with --entry module:function",
        )
        self.blocked(error)
        raise error

    def blocked(self, error: LiveCallBlockedError) -> None:
        for player in self.played:
            if player.active:
                player.session.fail(error)
        if self._blocked is None:
            self._blocked = error

    @property
    def failure(self) -> BaseException | None:
        """What went wrong before anything was live."""
        for player in self.played:
            if player.started and player.session.failure is not None:
                return player.session.failure
        if self.resumed is not None and self.resumed.begun and self.resumed.session.replay.failure is not None:
            return self.resumed.session.replay.failure
        return self._blocked

    @property
    def stalled(self) -> float:
        return 0.0  # it may be live: nobody ends it for being slow


# -- going on ----------------------------------------------------------------------------------------------------------
#
# The process in which a run goes on after a crash; see ``launch``.


def resumed(body: Body | None, told: Mapping[str, Any]) -> int:
    """Run the program again and go on with its run; returns the exit status."""
    guard.warm()
    instrument()
    stdin.capture()
    path = told["path"]
    store = Store(told["store"])
    meta = first_meta(path)
    closed = guard.Guard("process", (), False, resumes=True)

    def opened() -> None:
        closed.release()
        gate.allow_outside(resumers.outside)

    replay_options = {
        "store": store, "on_divergence": "raise", "strict": (), "guard": "process", "allow_hosts": (), "dry_run": False,
        "redact": (), "live": (),
    }  # fmt: skip
    resumption = {
        "supply": {int(step): value for step, value in told["supply"].items()},
        "accept_lost_tail": told["accept_lost_tail"],
        "original_is_dead": told["original_is_dead"],
        "opened": opened,
    }
    resumers = Resumers(store, path, replay_options, resumption)
    closed.failed = resumers.blocked
    closed.engage()
    gate.refuse_outside(resumers.outside)
    if isinstance(meta.get("program"), str):
        role.go_on_as(meta["program"])
    role.set_controller(resumers.find, resumers.input_of, resumers.is_input)
    served.serve_the_log()
    whole: ResumeBlock | None = None
    if told.get("entry") is not None:
        body = _resumed_call(resumers, Entry(told["entry"], in_task=not meta.get("whole_program")))
    elif meta.get("whole_program"):
        role.next_ordinal()
        whole = resumers.resume(dict(DEFAULTS))
        whole.__enter__()
    watchdog = Watchdog(resumers, told["grace"])
    assert body is not None
    codes: list[int] = []

    def end(ended: Ended) -> None:
        error = ended.error
        try:
            if whole is not None:
                if error is None:
                    whole.run.set_result({"status": ended.status})
                whole.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as failure:
            error = failure
        codes.append(_conclude_resumption(resumers, ended._replace(error=error)))

    def leaving(status: int) -> int:
        """The program ends by ``os._exit``: in the middle of an effect that stays in doubt, else in order."""
        scope = current.get()
        if not codes and not (scope is not None and scope.live):
            watchdog.stop()
            if resumers.resumed is not None and resumers.resumed.begun:
                resumers.resumed.leave()
            codes.append(status)
        return status

    on_hard_exit(leaving)
    ended = go(body, end, silent=lambda error: isinstance(error, TracekitError))
    watchdog.stop()
    die_of(ended.error)
    return codes[0]


def _resumed_call(resumers: Resumers, entry: Entry) -> Body:
    """``module:function``, called with the run's recorded input in the resumed run."""

    def body() -> None:
        block = resumers.resume(dict(DEFAULTS))
        entry.call(block, lambda: block.run, lambda: block.input, lambda value: block.run.set_result(value))

    return body


def _conclude_resumption(resumers: Resumers, ended: Ended) -> int:
    """Say how it went; returns the exit status."""
    failure = resumers.failure
    error = ended.error
    if failure is not None:
        print(spelled(failure), file=sys.stderr)
        return 1
    block = resumers.resumed
    if isinstance(error, TracekitError):
        print(str(error), file=sys.stderr)
        if exit_code(error) != WRONG_USE or isinstance(error, RunStateError):
            return exit_code(error)
    if block is None or not block.begun:
        print("tracekit: the program never opened the run: nothing was resumed", file=sys.stderr)
        return ended.status or 1
    if not block.session.followed:
        print("tracekit: the program ended before its log had; the run is as it was", file=sys.stderr)
        return ended.status or 1
    print(f"tracekit: resumed run {block.run.id}", file=sys.stderr)
    for sentence in block.run.warnings:
        print(plain(f"tracekit:   {sentence}"), file=sys.stderr)
    return ended.status


# -- launch ------------------------------------------------------------------------------------------------------------
#
# The process in which a program is recorded or replayed: set up before the program's first line.
#
# Run as ``python -m tracekit.cli.launch`` with a JSON object of instructions in ``TRACEKIT_LAUNCH``; not meant to be typed.

#: How many reasons of a verdict are printed.
_SHOWN = 20


def main() -> None:
    """Follow the instructions and end with the program's status, or 1 where a replay failed."""
    told = json.loads(os.environ.pop("TRACEKIT_LAUNCH"))
    program = Program(told.get("script"), told.get("module"), tuple(told["arguments"]), told["cwd"])
    entry = told.get("entry")
    body: Body | None = None
    if entry is None:
        set_program(program)
        body = prepared(program)
        if body is None:
            sys.exit(1)
    try:
        if told["mode"] == "record":
            status = _record(program, body, told)
        else:
            status = _replay(body, told) if told["mode"] == "replay" else _paid(resumed(body, told))
    except TracekitError as error:
        print(spelled(error), file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.exit(status)


# -- recording -----------------------------------------------------------------------------------------------------------


def _record(program: Program, body: Body | None, told: Mapping[str, Any]) -> int:
    assert body is not None
    instrument()
    stdin.capture()
    stdout.capture()
    block = RecordBlock.of_program(told.get("name") or program.module or program.script or "run", program)
    run = block.__enter__()
    pid = os.getpid()
    over: list[bool] = []

    def end(ended: Ended) -> None:
        over.append(True)
        if ended.error is None:
            run.set_result({"status": ended.status})
        error = ended.error
        with _untold():
            block.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if os.getpid() == pid:
            _say_recorded(block)
        if block.kept:  # else the program's own runs were the runs, and what is outside of them is its own matter
            gate.refuse_outside(partial(_after_the_end, run))

    def leaving(status: int) -> int:
        scope = current.get()
        if not over and not (scope is not None and scope.live):  # inside a tool its effect stays in doubt
            over.append(True)
            run.set_result({"status": status})
            with _untold():
                block.leave()
            _say_recorded(block)
        return _paid(status)

    on_hard_exit(leaving)
    ended = go(body, end)
    die_of(ended.error)
    return _paid(ended.status, ended.error)


def _after_the_end(run: Run, family: str, name: str) -> None:
    """What is collected when the interpreter goes could not be recorded any more, so it is not done."""
    raise RunEndedError(
        f"{family} {name!r} was called after the end of the run that `tracekit run` recorded; it was not executed",
        run_id=run.id,
        location=caller(),
        next_action="call it before the program ends (in a finally, or by atexit), not when its objects are collected",
    )


def _paid(status: int, error: BaseException | None = None) -> int:
    """The exit status of a program: one that went over a run's budget has not done right, whatever it says."""
    over = isinstance(error, BudgetExceededError) or (status in (0, 1) and ending.refused_runs() > 0)
    return REFUSED if over else status


@contextmanager
def _untold() -> Iterator[None]:
    """What a run warns of at its end is told by us, not as a warning with a place in our code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "tracekit: run ", RuntimeWarning)
        yield


def _say_recorded(block: RecordBlock) -> None:
    if block.kept:
        run = block.run
        print(f"tracekit: recorded run {run.id}", file=sys.stderr)
        for sentence in run.warnings:
            print(plain(f"tracekit:   {sentence}"), file=sys.stderr)
        if not block.captured:
            print(
                "tracekit: nothing was captured in it, no model call, tool or HTTP call: decorate the program's tools with "
                "@traced_tool; of SDKs, tracekit captures those that are built on httpx",
                file=sys.stderr,
            )


# -- replaying -----------------------------------------------------------------------------------------------------------


def _replay(body: Body | None, told: Mapping[str, Any]) -> int:
    warnings.filterwarnings("ignore", "tracekit: replay of", RuntimeWarning)  # the summary says it
    isolated = _isolate(told["isolate"], told["options"]["allow_hosts"])
    plugins.supply()
    guard.warm()
    instrument()
    stdin.capture()
    stdout.capture()
    store, path = Store(told["store"]), told["path"]
    options = dict(told["options"], store=store, witness=told.get("witness", {}).get("path"))
    witnessed = _Witnessed(told["witness"]) if "witness" in told else None
    players = Players(store, path, options, told.get("break"), None if witnessed is None else witnessed.player)
    closed = guard.Guard(options["guard"], options["allow_hosts"], options["dry_run"], failed=players.blocked)
    closed.engage()
    gate.refuse_outside(players.outside)
    role.set_controller(players.find, players.input_of)
    served.serve_the_log()
    threading.excepthook = _quiet(threading.excepthook)
    watchdog = Watchdog(players, told["grace"])
    player: ReplayBlock | None = None
    if told.get("entry") is not None:
        player = players.of(path)
        body = _replayed_call(player, Entry(told["entry"], in_task=not _ran_under_run(path)))
    elif _ran_under_run(path):
        player = players.of(path)
        player.__enter__()
    assert body is not None
    codes: list[int] = []

    def end(ended: Ended) -> None:
        error = ended.error
        try:
            if told.get("entry") is None:
                _end_player(player, ended)
        except BaseException as failure:
            error = failure
        codes.append(_conclude(players, ended._replace(error=error), isolated, told))
        if witnessed is not None:
            witnessed.ended(codes[0], players, ended._replace(error=error))

    def leaving(status: int) -> int:
        if codes:
            return status
        watchdog.stop()
        for open_one in players.started:
            if open_one.active and open_one is not player:
                _finished(open_one)
        end(Ended(status))
        return codes[0]

    on_hard_exit(leaving)
    go(body, end, silent=lambda error: isinstance(error, TracekitError) or type(error).__name__ == "BdbQuit")
    watchdog.stop()
    closed.release()
    return codes[0]


class _Witnessed:
    """What the program does in this replay is written down, for a comparison with another one."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        from .._runs.determinism import Places, Witness, WitnessedReplaying, unsettle

        unsettle(told["number"])
        self._out = Places.take() if told["stdout"] else None
        self._witness = witness = Witness(told["path"])
        self.player: Callable[[str, dict[str, Any]], ReplayBlock] = lambda path, options: WitnessedReplaying(
            path, options, witness
        )

    def ended(self, code: int, players: Players, ended: Ended) -> None:
        failure = players.failure
        if failure is None and isinstance(ended.error, TracekitError) and not players.expected(ended.error):
            failure = ended.error
        if failure is not None:
            self._witness.failed(getattr(failure, "run_id", None), failure)
        self._witness.ended(code, ended.status, ended.error, players.started, self._out)


def _end_player(player: ReplayBlock | None, ended: Ended) -> None:
    """End the replay of the whole program; raises its failure, or the program's own error."""
    if player is None:
        return
    error = ended.error
    if error is None:
        player.ended_as = f"exit status {ended.status}"
        player.set_result({"status": ended.status})
    player.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _finished(player: ReplayBlock) -> None:
    """The program leaves inside this run: whatever was recorded and not asked for is its failure."""
    try:
        player.session.finish()
    except ReplayError:
        pass  # it is kept by the session


def _replayed_call(player: ReplayBlock, entry: Entry) -> Body:
    """A replay of ``module:function``, called with the run's recorded input."""

    def body() -> None:
        entry.call(player, player.as_run, lambda: player.input, player._returned)

    return body


def _conclude(players: Players, ended: Ended, isolated: str, told: Mapping[str, Any]) -> int:
    """Say how the replay went, as the verdicts on its runs have it; returns the exit code."""
    error = ended.error
    failure = players.failure
    if failure is None and isinstance(error, TracekitError) and not players.expected(error):
        failure = error
    reports = [player.report for player in players.started]
    for report in reports:
        report.isolation = isolated
    step = told.get("break")
    for player in players.started:
        if step is not None and player.break_at == step and not player.came_to(step):
            print(f"tracekit: --break {step}: the program did not come to that step by itself", file=sys.stderr)
    if failure is not None:
        print(spelled(failure), file=sys.stderr)
    elif type(error).__name__ == "BdbQuit":
        print("tracekit: the replay was left in the debugger", file=sys.stderr)
    elif not reports:
        print(f"tracekit: the program never opened the run {told['run']}: nothing was replayed", file=sys.stderr)
    else:
        _summary(reports, ended, players)
        codes = {report.verdict.exit_code for report in reports}
        # An error of the program outside its runs is none of theirs, and no replay is right that ends with it.
        own = error is not None and not players.expected(error)
        return DIFFERENT if own or DIFFERENT in codes else max(codes)
    return exit_code(error) if isinstance(error, RunStateError) else DIFFERENT


def _summary(reports: list[Report], ended: Ended, players: Players) -> None:
    for report in reports:
        steps = f"{report.consumed} steps matched" + (f", {report.skipped} inside them" if report.skipped else "")
        print(f"tracekit: replayed {report.run_id}: {report.verdict.line} ({steps})", file=sys.stderr)
        for reason in report.verdict.reasons[:_SHOWN]:
            where = f" (at {reason.facts['where']})" if reason.facts.get("where") else ""
            print(plain(f"tracekit:   {reason.code}: {reason.text}{where}"), file=sys.stderr)
        for reason in [one for one in report.verdict.remarks if one.code == "output"][:_SHOWN]:
            print(plain(f"tracekit:   output: {reason.text}"), file=sys.stderr)
        for reason in report.verdict.allowed[:_SHOWN]:
            print(plain(f"tracekit:   allowed: {reason.text}"), file=sys.stderr)
        taken = _taken(report.recorded)
        if taken:
            print(f"tracekit:   this replay cost nothing; the recorded run took {taken}", file=sys.stderr)
        for sentence in report.warnings:
            print(plain(f"tracekit:   {sentence}"), file=sys.stderr)
    network = f"tracekit: network: {reports[0].isolation}; "
    if ended.error is None:
        print(f"{network}the program's status is {ended.status}", file=sys.stderr)
    elif not players.expected(ended.error):
        print(f"{network}the program failed, and the recorded one did not", file=sys.stderr)
    else:
        how = f"{type(ended.error).__name__}, status {ended.status}"
        print(f"{network}the recorded program ended with {how}; so did this one", file=sys.stderr)


def _taken(recorded: Mapping[str, Any]) -> str:
    """What a recorded run took of models; nothing where it asked none."""
    if not recorded.get("llm_calls"):
        return ""
    counts = [
        f"{recorded[name]:,} {name.replace('_', ' ')}"
        for name in ("llm_calls", "input_tokens", "output_tokens")
        if recorded[name] is not None
    ]
    if recorded.get("unreported"):
        counts.append(f"{recorded['unreported']} of them without saying how many tokens")
    if recorded["cost_usd"] is not None:
        counts.append(f"${recorded['cost_usd']:.6f}")
    elif recorded["unpriced"]:
        counts.append(f"no price known for {', '.join(recorded['unpriced'])}")
    return ", ".join(counts).replace("llm calls", "model calls")


def _isolate(mode: str, allowed: list[str]) -> str:
    # In a network namespace of its own the program reaches no host at all, the allowed ones included.
    if mode == "off" or (mode == "auto" and (allowed or not isolation.available())):
        return "guarded in Python"
    in_force = isolation.enter()
    if mode == "on" and in_force.startswith("not isolated"):
        raise RunStateError(
            f"--isolate=on can't be had here: {in_force}",
            next_action="replay with --isolate=auto, behind the guard in Python alone",
        )
    return in_force


def _ran_under_run(path: str) -> bool:
    with Trace(path) as trace:
        return bool(trace.entry(1).get("meta", {}).get("whole_program"))


def _quiet(before: Callable[[Any], object]) -> Callable[[Any], object]:
    """Threads that end with the replay's failure say nothing of their own: it is told once, at the end."""

    def hook(args: Any) -> object:
        return None if isinstance(args.exc_value, ReplayError) else before(args)

    return hook


if __name__ == "__main__":
    main()
