"""Child processes: each is a line of execution of the run, and learns from its environment how to join it."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from .._runtime.context import Lane, Scope, current, started
from .._runtime.session import here
from ..errors import LiveCallBlockedError, ReplayError
from . import guard
from .guard import Attempt
from .patch import AttributePatch, Patch, Switch, when_imported
from .threads import name_of, parent_lane

__all__ = [
    "VARIABLE",
    "Carried",
    "Place",
    "Standing",
    "Welcome",
    "activate",
    "asked",
    "before_exec",
    "carry_by",
    "deactivate",
    "expect",
    "follow",
    "named",
    "os_entrances",
    "perform_by",
    "pools",
    "starting",
    "status_entrances",
    "told",
    "welcome",
    "within",
    "words_of",
    "workers",
]

# -- process pools -----------------------------------------------------------------------------------------------------
#
# Pools of processes: each call that is handed to one is a line of execution, with a segment of its own whichever worker makes it.
#
# A pool's workers take what comes next, so that nothing that depends on who did what may be in the trace: not a worker's segment, but
# the
# call's. Pools whose workers are forks, or were there before the run, are left alone, and the run says so.

#: Where a call belongs: what the worker needs to know of it.
Place = dict[str, Any]

#: The workers that know which run they belong to, by process id.
workers: Final[set[int]] = set()
_place: Callable[[Scope, Lane], Place | None] | None = None
_perform: Callable[[Place, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None


def carry_by(place: Callable[[Scope, Lane], Place | None]) -> None:
    """From now on ``place`` says where each call belongs that a run hands to a pool; ``None``: nowhere."""
    global _place
    _place = place


def perform_by(perform: Callable[[Place, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """In a worker: ``perform`` makes the calls that belong somewhere."""
    global _perform
    _perform = perform


class Carried:
    """A call on its way to a worker. ``spread``: its arguments begin with its place, or are a pair of place and argument."""

    def __init__(self, call: Callable[..., Any], place: Place | None, spread: str = "") -> None:
        self.call: Final = call
        self.place: Final = place
        self.spread: Final = spread

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self.call, self.place, self.spread)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        place = self.place
        if self.spread == "pair":
            place, args = args[0][0], (args[0][1],)
        elif self.spread:
            place, args = args[0], args[1:]
        if _perform is None or place is None:
            return self.call(*args, **kwargs)
        return _perform(place, self.call, args, kwargs)


def _carries(scope: Scope | None, method: str, pids: Iterable[int | None], call: Any) -> bool:
    """Whether calls go to workers that belong to the run of ``scope``; it says so if not."""
    if scope is None or _place is None:
        return False
    strangers = [pid for pid in pids if pid not in workers]
    if method != "fork" and not strangers:
        return True
    session = scope.session
    if strangers and not session.recording:
        raise session.fail(
            LiveCallBlockedError(
                f"{name_of(call)!r} was handed to processes that were there before the replay, where it would be live",
                run_id=session.run_id,
                operation="a process pool",
                next_action="make the pool inside the block",
            )
        )
    if session.state.live:
        session.report.warn(f"{name_of(call)} was handed to a process pool: what it does there is not in the trace")
    return False


def _next_place(scope: Scope, call: Any) -> Place | None:
    assert _place is not None
    return _place(scope, started(parent_lane(scope), name_of(call), scope.live))


# -- concurrent.futures ----------------------------------------------------------------------------------------------------


def _submit(original: Any) -> Any:
    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        context = getattr(self, "_mp_context", None)
        method = "fork" if context is None else str(context.get_start_method())
        if _carries(scope, method, list(getattr(self, "_processes", None) or ()), fn):
            assert scope is not None
            fn = Carried(fn, _next_place(scope, fn))
        return original(self, fn, *args, **kwargs)

    return submit


# -- multiprocessing.Pool --------------------------------------------------------------------------------------------------


def _within(pool: Any, scope: Scope | None, call: Any) -> bool:
    context = getattr(pool, "_ctx", None)
    if type(pool).__name__ != "Pool" or context is None:  # a pool of threads
        return False
    return _carries(scope, str(context.get_start_method()), [one.pid for one in pool._pool], call)


def _apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            func = Carried(func, _next_place(scope, func))
        return original(self, func, *args, **kwargs)

    return apply_async


def _map(original: Any) -> Any:
    @functools.wraps(original)
    def _map_async(self: Any, func: Any, iterable: Any, mapper: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            spread = "first" if mapper.__name__ == "starmapstar" else "pair"
            iterable = list(_placed(scope, func, iterable, spread))
            func = Carried(func, None, spread)
        return original(self, func, iterable, mapper, *args, **kwargs)

    return _map_async


def _imap(original: Any) -> Any:
    @functools.wraps(original)
    def imap(self: Any, func: Any, iterable: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            # The program's iterable is asked by the pool's thread, as without us.
            iterable, func = _placed(scope, func, iterable, "pair"), Carried(func, None, "pair")
        return original(self, func, iterable, *args, **kwargs)

    return imap


def _placed(scope: Scope, call: Any, items: Iterable[Any], spread: str) -> Iterator[Any]:
    for item in items:
        place = _next_place(scope, call)
        yield (place, item) if spread == "pair" else (place, *item)


#: Module, class, method, and what goes around it.
pools: Final = (
    ("concurrent.futures.process", "ProcessPoolExecutor", "submit", _submit),
    ("multiprocessing.pool", "Pool", "apply_async", _apply),
    ("multiprocessing.pool", "Pool", "_map_async", _map),
    ("multiprocessing.pool", "Pool", "imap", _imap),
    ("multiprocessing.pool", "Pool", "imap_unordered", _imap),
)

# -- process status ----------------------------------------------------------------------------------------------------
#
# How a process that a run has started stands: what its program was told of it, each time that it asked.
#
# ``poll``, ``wait`` and ``communicate`` of ``subprocess.Popen`` (so ``subprocess.run`` as well), ``is_alive``, ``join``, ``exitcode``
# and
# ``close`` of ``multiprocessing``'s processes, and when a loop of asyncio hears of the end of one: how long a process takes is chance.
# A
# recording writes down what each of them found; in a replay that is the answer, and where it was the end of the process, the replayed
# one
# has come to its end, too, when the program hears of it.

#: The longest output that is kept of a process which took too long, in bytes.
_MOST: Final = 16 << 20


class Standing(Protocol):
    """What a session has to do with a process that it follows."""

    @property
    def session(self) -> Any: ...
    @property
    def path(self) -> str:
        """The path of its lane."""
        ...

    @property
    def live(self) -> bool:
        """Whether it is being recorded."""
        ...

    def note(self, scope: Scope, told: Any) -> None:
        """The program was told this: ``None`` (it runs), its exit status, or what there was when the time ran out."""
        ...

    def heard(self) -> None:
        """The program has heard of its end, while it was recorded."""
        ...

    def recall(self, scope: Scope) -> Any:
        """What the recorded program was told."""
        ...

    def let_end(self) -> None:
        """Wait until the process has ended."""
        ...

    def ended(self, status: int | None, recorded: int) -> None:
        """It has, with this status, where the recorded one has ended with that."""
        ...

    def let_run(self, step: Callable[[], bool]) -> None:
        """Call ``step`` until it says that all is done, or the process has come to where it waits."""
        ...


_followed: Final[WeakKeyDictionary[Any, Standing]] = WeakKeyDictionary()


def follow(process: Any, standing: Standing) -> None:
    """What is asked of this process from now on is part of the run."""
    _followed[process] = standing


def _standing(process: Any) -> tuple[Standing, Scope] | None:
    """Where a question that is asked now belongs; ``None`` where it is none of the run's."""
    scope = current.get()
    if scope is None or scope.live:
        return None
    standing = _followed.get(process)
    session = scope.session
    if standing is None or standing.session is not session or session.state.ended:
        return None
    scope = here()
    return None if scope is None else (standing, scope)


def _really(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """How it is found out is nothing to record."""
    token = current.set(None)
    try:
        return call(*args, **options)
    finally:
        current.reset(token)


# -- subprocess ------------------------------------------------------------------------------------------------------------


def _poll(original: Any) -> Any:
    @functools.wraps(original)
    def poll(self: Any) -> Any:
        at = _standing(self)
        if at is None:
            return original(self)
        standing, scope = at
        if standing.live:
            status = _really(original, self)
            standing.note(scope, status)
            return status
        return _known(self, standing, standing.recall(scope))

    return poll


def _wait(original: Any) -> Any:
    @functools.wraps(original)
    def wait(self: Any, timeout: float | None = None) -> Any:
        at = _standing(self)
        if at is None:
            return original(self, timeout)
        standing, scope = at
        if not standing.live:
            told = standing.recall(scope)
            if told is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            return _known(self, standing, told)
        try:
            status = _really(original, self, timeout)
        except subprocess.TimeoutExpired:
            standing.note(scope, None)
            raise
        standing.note(scope, status)
        return status

    return wait


def _communicate(original: Any) -> Any:
    @functools.wraps(original)
    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        at = _standing(self)
        if at is None:
            return original(self, input, timeout)
        standing, scope = at
        if not standing.live:
            return _again(original, self, standing, standing.recall(scope), input, timeout)
        try:
            found = _really(original, self, input, timeout)
        except subprocess.TimeoutExpired as error:
            parts = {"output": error.output, "stderr": error.stderr}
            whole = sum(len(part or b"") for part in parts.values()) <= _MOST
            standing.note(scope, parts if whole else {"too_much": True})
            raise
        standing.note(scope, self.returncode)
        return found

    return communicate


def _again(original: Any, self: Any, standing: Standing, told: Any, input: Any, timeout: float | None) -> Any:
    if not isinstance(told, dict):
        found = _really(original, self, input)
        _known(self, standing, told)
        return found
    given = [input]

    def feed() -> bool:  # what it was given and what it wrote until then went through its pipes
        try:
            original(self, given.pop() if given else None, 0.02)
        except subprocess.TimeoutExpired:
            return False
        return True

    _really(standing.let_run, feed)
    raise subprocess.TimeoutExpired(self.args, timeout or 0, output=told.get("output"), stderr=told.get("stderr"))


def _known(process: Any, standing: Standing, status: Any) -> Any:
    """The recorded answer; where that is the end, the replayed process has come to its own."""
    if status is None:
        return None
    if process.returncode is None:
        _really(standing.let_end)
        _really(type(process).wait, process)
    standing.ended(process.returncode, status)
    process.returncode = status
    return status


# -- asyncio ---------------------------------------------------------------------------------------------------------------

_expected: Final[WeakKeyDictionary[Any, tuple[Standing, Any]]] = WeakKeyDictionary()


def expect(process: Any, standing: Standing) -> None:
    """An event loop will hear of the end of this process: an event of the run."""
    scope = current.get()
    scope = None if scope is None or scope.live else here()
    if scope is not None and not standing.session.state.ended:
        turn = standing.session.arm(scope, "process.exit", 0)
        if not turn.live:
            turn.from_outside()
        _expected[process] = standing, turn


def _exited(original: Any) -> Any:
    @functools.wraps(original)
    def _process_exited(self: Any, returncode: int) -> None:
        standing, turn = _expected.pop(self._proc, (None, None))
        if standing is None or turn is None or standing.session.state.ended:
            original(self, returncode)
        elif turn.live:
            turn.fired({"process": standing.path, "status": returncode})
            standing.heard()
            original(self, returncode)
        elif turn.comes:  # else the loop did not hear of it

            def heard() -> None:
                status = turn.about["status"]
                with suppress(ReplayError):  # it is the replay's failure now
                    standing.ended(returncode, status)
                original(self, status)

            turn.on_fire(heard)

    return _process_exited


# -- multiprocessing -------------------------------------------------------------------------------------------------------


def _asking(original: Any, unfinished: Any = None) -> Any:
    """A method that asks how the process stands; it answers ``unfinished`` as long as that goes on."""

    @functools.wraps(original)
    def ask(self: Any, *args: Any, **options: Any) -> Any:
        at = _standing(self)
        if at is None or getattr(self, "_popen", None) is None:
            return original(self, *args, **options)
        standing, scope = at
        if standing.live:
            popen = self._popen
            found = _really(original, self, *args, **options)
            standing.note(scope, popen.returncode)
            return found
        status = standing.recall(scope)
        if status is None:
            return unfinished
        popen = self._popen
        if popen.returncode is None:
            _really(standing.let_end)
            popen.wait()
        standing.ended(popen.returncode, status)
        popen.returncode = status
        return _really(original, self)

    return ask


def _exitcode(original: Any) -> Any:
    return property(_asking(original.fget), doc=original.__doc__)


#: Module, class, name, and what goes in its place.
status_entrances: Final = (
    ("subprocess", "Popen", "poll", _poll),
    ("subprocess", "Popen", "wait", _wait),
    ("subprocess", "Popen", "communicate", _communicate),
    ("asyncio.base_subprocess", "BaseSubprocessTransport", "_process_exited", _exited),
    ("multiprocessing.process", "BaseProcess", "is_alive", lambda original: _asking(original, True)),
    ("multiprocessing.process", "BaseProcess", "join", _asking),
    ("multiprocessing.process", "BaseProcess", "close", _asking),
    ("multiprocessing.process", "BaseProcess", "exitcode", _exitcode),
)

# -- processes asking --------------------------------------------------------------------------------------------------
#
# A process that a run's program is about to start: its name and command, and what the run's session says to it.

#: What tells a process which run to join: JSON.
VARIABLE: Final = "TRACEKIT_JOIN"
#: What a shell's command may begin with: ``NAME=value``.
_SETTING: Final = re.compile(r"[A-Za-z_]\w*=")
#: What means something to a shell, but for quotes.
_OF_SHELLS: Final = frozenset(";&|<>()`$\n*?[]{}~#!\\")
_QUOTED: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


class Welcome(Standing, Protocol):
    """What a session says to a process that is about to be started."""

    @property
    def ticket(self) -> str:
        """What the process is told."""
        ...

    def admitted(self) -> AbstractContextManager[None]:
        """Around the start."""
        ...

    def started(self, pid: int) -> None:
        """It runs."""
        ...

    def not_started(self, scope: Scope, error: OSError) -> None:
        """It could not be started."""
        ...


Ask = Callable[[Scope, Lane, list[str] | None, bool], Welcome | None]
_welcome: Ask | None = None
#: Whether a process is being started here that has been asked about.
within: Final[ContextVar[bool]] = ContextVar("tracekit.process.within", default=False)


def welcome(ask: Ask) -> None:
    """From now on ``ask`` is asked for each process that a run starts: by its lane, its command (``None``: a process of
    ``multiprocessing``), and whether it is a pool's worker."""
    global _welcome
    _welcome = ask


def asked(scope: Scope, name: str, words: list[str] | None, pool: bool = False) -> Welcome | None:
    guard.refuse(Attempt("process", "process.start", name))  # before it has a line of execution
    if _welcome is None or guard.find().probes:
        return None
    return _welcome(scope, started(parent_lane(scope), f"process:{name}", scope.live), words, pool)


@contextmanager
def starting(found: Welcome) -> Iterator[None]:
    """Around the start of a process: what that is made of is asked about no more."""
    token = within.set(True)
    try:
        with found.admitted():
            yield
    finally:
        within.reset(token)


def told(found: Welcome, env: Any) -> dict[Any, Any]:
    """The environment of a process, ``env`` or that of this one, in which it is told what to join."""
    return {**(os.environ if env is None else env), VARIABLE: found.ticket}


class Words(list[str]):
    """A command, word by word. ``simple``: it was one text, in which a shell finds nothing but the words of one program."""

    simple = False


def _active(quoted: re.Match[str]) -> str:
    """What a shell does not take as it stands, in a text in quotes."""
    text = quoted.group()
    return "" if text[0] == "'" else "".join(letter for letter in text if letter in "$`\\")


def words_of(command: Any) -> list[str]:
    if isinstance(command, str | bytes | os.PathLike):
        text = os.fsdecode(command)
        try:
            words = Words(shlex.split(text))
        except ValueError:  # an open quote
            words = Words(text.split())
        words.simple = _OF_SHELLS.isdisjoint(_QUOTED.sub(_active, text))
        while len(words) > 1 and _SETTING.match(words[0]):
            del words[0]
        return words or [""]
    return [os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else "" for word in command] or [""]


def named(words: list[str]) -> str:
    """A program's name; of a Python program that of its script or module, whatever its interpreter is called here."""
    name = os.path.basename(words[0])
    if name.startswith("python") or words[0] == sys.executable:
        name = _script(words[1:]) or "python"
    return "".join("_" if letter in "/#@+" else letter for letter in name)


def _script(words: list[str]) -> str:
    rest = iter(words)
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if word in ("-c", "-"):
            return ""
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""


# -- processes os ------------------------------------------------------------------------------------------------------
#
# Processes that are started by the functions of ``os``, and by uvloop.
#
# They are asked about and told of the run as those of ``subprocess`` are. ``os.exec*`` is the same process going on as another program:
# where
# it had joined a run its part of it ends there; a run of its own can't end, and it says so.

#: Called before this process becomes another program, and so comes to the end of its part of the run.
before_exec: Final[list[Callable[[], object]]] = []


def _ask(command: Any, program: Any = None) -> tuple[Scope, Welcome] | None:
    """What is said to a process that is started here; ``None``: nothing."""
    scope = current.get()
    if scope is None or within.get():
        return None
    words = words_of(command)
    if program is not None:
        words[0] = words_of([program])[0]
    found = asked(scope, named(words), words)
    return None if found is None else (scope, found)


# -- os.system, os.spawn*, os.posix_spawn* ---------------------------------------------------------------------------------


def _system(original: Any) -> Any:
    @functools.wraps(original)
    def system(command: Any) -> Any:
        at = _ask(command) if isinstance(command, str | bytes | os.PathLike) else None
        if at is None:
            return original(command)
        scope, found = at
        with starting(found):
            options: dict[str, Any] = {"close_fds": False, "restore_signals": False}  # as it is without us
            process = subprocess.Popen(command, shell=True, env=told(found, None), **options)
        found.started(process.pid)
        status = _ended(scope, found, lambda: _patiently(process))
        return -status if status < 0 else status << 8

    return system


def _patiently(process: subprocess.Popen[Any]) -> int:
    """Ctrl-C is the shell's, as it is in ``os.system``."""
    while True:
        with suppress(KeyboardInterrupt):
            return process.wait()


def _spawn(original: Any) -> Any:
    @functools.wraps(original)
    def _spawnvef(mode: int, file: Any, args: Any, env: Any, func: Any) -> Any:
        at = _ask(args, file) if isinstance(args, list | tuple) and args else None
        if at is None:
            if not within.get():
                guard.check(Attempt("process", "os.spawn", words_of([file])[0]))
            return original(mode, file, args, env, func)
        scope, found = at
        become = {"execv": "execve", "execvp": "execvpe"}.get(func.__name__, func.__name__)
        with starting(found):
            pid = original(os.P_NOWAIT, file, args, told(found, env), getattr(os, become))
        found.started(pid)
        if mode == os.P_NOWAIT:
            return pid
        return _ended(scope, found, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    return _spawnvef


def _ended(scope: Scope, found: Welcome, wait: Callable[[], int]) -> int:
    """The exit status of a process that is waited for where it is started."""
    token = current.set(None)
    try:
        if not found.live:
            found.let_end()
        real = wait()
    finally:
        current.reset(token)
    if scope.live:
        return real
    if found.live:
        found.note(scope, real)
        return real
    status: int = found.recall(scope)
    found.ended(real, status)
    return status


def _posix_spawn(original: Any) -> Any:
    @functools.wraps(original)
    def posix_spawn(path: Any, argv: Any, env: Any, /, **options: Any) -> Any:
        at = _ask(argv, path) if isinstance(argv, list | tuple) and argv else None
        if at is None:
            return original(path, argv, env, **options)
        _, found = at
        with starting(found):
            pid = original(path, argv, told(found, env), **options)
        found.started(pid)
        return pid

    return posix_spawn


# -- os.exec* --------------------------------------------------------------------------------------------------------------


def _exec(original: Any, with_env: bool) -> Any:
    @functools.wraps(original)
    def execute(path: Any, argv: Any, *env: Any) -> Any:
        there = isinstance(path, str | bytes | os.PathLike) and os.access(path, os.X_OK)
        scope = current.get()
        session = None if scope is None else scope.session
        if within.get() or not there or session is None or not session.recording or not argv:
            return original(path, argv, *env)
        at = _ask(argv, path)
        if at is None:
            return original(path, argv, *env)
        at[1].started(os.getpid())
        for end in before_exec:
            end()
        if not session.state.ended:
            session.log.flush()
            warnings.warn(
                f"tracekit: the program becomes another one ({named(words_of(argv))}) in the middle of run {session.run_id}: its "
                "trace has no end, and a replay stops there",
                RuntimeWarning,
                stacklevel=3,
            )
        return really(path, argv, told(at[1], env[0] if env else None))

    really = original if with_env else os.execve
    return execute


# -- uvloop ----------------------------------------------------------------------------------------------------------------


def _uvloop(original: Any, shell: bool) -> Any:
    @functools.wraps(original)
    async def start(self: Any, protocol_factory: Any, program: Any, *args: Any, **options: Any) -> Any:
        command = program if shell else [program, *args]
        at = _ask(command)
        if at is None:
            guard.check(Attempt("process", "uvloop.subprocess", words_of(command)[0]))
            return await original(self, protocol_factory, program, *args, **options)
        _, found = at
        options["env"] = told(found, options.get("env"))
        with starting(found):
            transport, protocol = await original(self, protocol_factory, program, *args, **options)
        found.started(transport.get_pid())
        return transport, protocol

    guard.asking.add(start)
    return start


#: Module, class, name, and what goes in its place.
os_entrances: Final = (
    ("os", None, "system", _system),
    *((("os", None, "_spawnvef", _spawn),) if hasattr(os, "_spawnvef") else ()),
    *(("os", None, name, _posix_spawn) for name in ("posix_spawn", "posix_spawnp") if hasattr(os, name)),
    ("os", None, "execv", lambda original: _exec(original, False)),
    ("os", None, "execve", lambda original: _exec(original, True)),
    ("uvloop", "Loop", "subprocess_exec", lambda original: _uvloop(original, False)),
    ("uvloop", "Loop", "subprocess_shell", lambda original: _uvloop(original, True)),
)

# -- processes ---------------------------------------------------------------------------------------------------------
#
# Processes that a run starts: each is counted as a line of execution, and told by its environment how to join the run.
#
# What stands on ``subprocess.Popen`` (asyncio's processes too) gets an environment variable; what ``multiprocessing`` starts afresh
# (``spawn``, ``forkserver``) gets it with the data that it is prepared by. Who is told what is the session's affair (:func:`welcome`).

#: Where ``env`` is among the arguments of ``Popen``, if it is given by its place.
_ENV: Final = 10
#: Set in a process that is made ready by multiprocessing, before its program's first line.
_PREPARED: Final = """\
import os, sys
os.environ[{variable!r}] = {ticket!r}
if "tracekit" in sys.modules:
    from tracekit._runs import joining
    joining.join()
"""
#: Modules in which an event loop has a process of its own, and hears of its end by itself.
_LOOPS: Final = frozenset({"asyncio.unix_events", "asyncio.windows_events"})
_POOLS: Final = frozenset({("multiprocessing.pool", "worker"), ("concurrent.futures.process", "_process_worker")})


#: What the process that multiprocessing is starting here is told.
_starting: Final[ContextVar[str | None]] = ContextVar("tracekit.process", default=None)


# -- subprocess ------------------------------------------------------------------------------------------------------------


def _popen(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        scope = current.get()
        # The commands by which the standard library asks the host what it is are none of the program's.
        if scope is None or not (args or "args" in kwargs) or guard.find().passes("process"):
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        words = words_of(args[0] if args else kwargs["args"])
        found = None if within.get() else asked(scope, named(words), words)
        if found is None:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        env = told(found, args[_ENV] if len(args) > _ENV else kwargs.get("env"))
        if len(args) > _ENV:
            args = (*args[:_ENV], env, *args[_ENV + 1 :])
        else:
            kwargs["env"] = env
        try:
            with starting(found):
                original(self, *args, **kwargs)
        except OSError as error:  # there is no such program, or it may not be run
            found.not_started(scope, error)
            raise
        found.started(self.pid)
        loops = sys._getframe(1).f_globals.get("__name__") in _LOOPS
        (expect if loops else follow)(self, found)
        return None

    return __init__


# -- multiprocessing -------------------------------------------------------------------------------------------------------


def _start(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        scope = current.get()
        if scope is None or _method(self) == "fork":
            return original(self)
        target = getattr(self, "_target", None)
        name = getattr(target, "__qualname__", None) or type(self).__qualname__
        pool = (getattr(target, "__module__", None), name) in _POOLS
        found = asked(scope, name.replace("/", "_"), None, pool)
        if found is None:
            return original(self)
        token = _starting.set(found.ticket)
        try:
            with starting(found):
                original(self)
        finally:
            _starting.reset(token)
        if pool:
            workers.add(self.pid)
        else:
            follow(self, found)
        found.started(self.pid)
        return None

    return start


def _method(process: Any) -> str:
    own = getattr(process, "_start_method", None)
    if own is None:
        context = sys.modules["multiprocessing.context"]
        own = context._default_context.get_start_method()
    return str(own)


class _Ready:
    """Unpickled in the new process, before the program's modules: by what any Python has."""

    def __init__(self, ticket: str) -> None:
        self.ticket: Final = ticket

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_PREPARED.format(variable=VARIABLE, ticket=self.ticket),)


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def get_preparation_data(*args: Any, **kwargs: Any) -> Any:
        data = original(*args, **kwargs)
        ticket = _starting.get()
        # First of all: what follows in it may import the program's modules when it is unpickled.
        return data if ticket is None else {VARIABLE: _Ready(ticket), **data}

    return get_preparation_data


# -- in place --------------------------------------------------------------------------------------------------------------

_made: Final[dict[tuple[str, str], Patch]] = {}


def _patches() -> list[Patch]:
    found = []
    for module, owner, name, wrap in (
        ("subprocess", "Popen", "__init__", _popen),
        ("multiprocessing.process", "BaseProcess", "start", _start),
        ("multiprocessing.spawn", None, "get_preparation_data", _prepare),
        *status_entrances,
        *os_entrances,
        *pools,
    ):
        loaded: Any = sys.modules.get(module)
        if loaded is not None:
            place: Any = loaded if owner is None else getattr(loaded, owner, None)
            if place is not None and (module, name) not in _made:
                _made[module, name] = AttributePatch(place, name, wrap(getattr(place, name)))
            if (module, name) in _made:
                found.append(_made[module, name])
    return found


_switch: Final = Switch(_patches)


def activate() -> None:
    """Put the hooks in place; each call wants a :func:`deactivate`."""
    _switch.on()
    for module in (
        "multiprocessing.process",
        "multiprocessing.spawn",
        "multiprocessing.pool",
        "concurrent.futures.process",
        "asyncio.base_subprocess",
        "uvloop",
    ):
        when_imported(module, _switch.refresh)


def deactivate() -> list[str]:
    """One holder less; the last one restores everything. Returns what somebody else has patched since."""
    return _switch.off()
