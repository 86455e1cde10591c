"""Capture of child processes: every start becomes a lane of the run and carries a ticket by which the process joins it.

Here: what all starts have in common, and the functions of ``os`` and uvloop; ``popen`` has the rest.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from .._lazy import expression
from .._runtime.callsite import warn
from .._runtime.lane import Lane, started
from .._runtime.process import process
from .._runtime.session import (
    Scope,
    Session,
    below,
    below_seam,
    current,
    here,
    outside_the_run,
    passing,
)
from .._runtime.step import Request, Spec
from . import commands, guard, inputs, signals
from .callers import telemetry
from .guard import Attempt
from .patch import Patch, Switch
from .threads import parent_lane

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = [
    "VARIABLE",
    "Admission",
    "Numbers",
    "ProcessObserver",
    "admission_of",
    "apart",
    "becomes",
    "begun",
    "forked",
    "forking",
    "hooks",
    "joining_environment",
    "left_by_fork",
    "program_name",
    "starting",
    "steps_of_joined",
    "within",
    "words_of",
]

# -- the start of a process --------------------------------------------------------------------------------------------
#
# Before a program starts a process, the session is asked to admit it, by its lane and its command.

#: The environment variable with the ticket (JSON) by which a process joins a run.
VARIABLE: Final = "TRACEKIT_JOIN"
#: What a shell's command may begin with: ``NAME=value``.
_SETTING: Final = expression(r"[A-Za-z_]\w*=")
#: Characters with a meaning to a shell, except for quotes.
_OF_SHELLS: Final = frozenset(";&|<>()`$\n*?[]{}~#!\\")
_QUOTED: Final = expression(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


class ProcessObserver(Protocol):
    """The session's part in a process whose status the program asks for (a protocol)."""

    @property
    def session(self) -> Any: ...
    @property
    def path(self) -> str:
        """The path of its lane."""
        ...

    @property
    def live(self) -> bool:
        """Whether the process is being recorded."""
        ...

    def note(self, scope: Scope, status: Any) -> None:
        """Record what the program got: ``None`` (running), the exit status, or the output so far at a timeout."""
        ...

    def heard(self) -> None:
        """In a recording: the program has learned of the end of the process."""
        ...

    def recall(self, scope: Scope) -> Any:
        """Return what the recorded program got."""
        ...

    def let_end(self) -> None:
        """Wait until the process has ended."""
        ...

    def ended(self, status: int | None, recorded: int) -> None:
        """Compare the end of the replayed process, with ``status``, with that of the recorded one, with ``recorded``."""
        ...

    def let_run(self, step: Callable[[], bool]) -> None:
        """Call ``step`` until it returns true or the process is idle."""
        ...


class Admission(ProcessObserver, Protocol):
    """A session's consent to starting a process, with its ticket (a protocol)."""

    @property
    def ticket(self) -> str:
        """The ticket by which the process joins the run, as JSON."""
        ...

    def admitted(self) -> AbstractContextManager[None]:
        """Return the context in which the process is started."""
        ...

    def started(self, pid: int) -> None:
        """The process runs, with this id."""
        ...

    def not_started(self, scope: Scope, error: OSError) -> None:
        """The process could not be started."""
        ...

    #: Whether it is a step as well; in a replay: whether the recorded one was.
    is_step: bool
    #: In a replay: whether the recorded one became another program, which is not part of the run.
    becomes: bool


#: Whether an admitted process is being started here.
within: Final[ContextVar[bool]] = ContextVar("tracekit.process.within", default=False)


#: The admitted process that is being forked here.
forking: Final[ContextVar[Admission | None]] = ContextVar("tracekit.process.forking", default=None)


def left_by_fork() -> None:
    """Reset the context in a forked child, which is a copy of the one that forked it: nothing is being started here."""
    forking.set(None)
    within.set(False)
    below.set(None)
    guard.left_by_fork()


def admission_of(scope: Scope, name: str, words: list[str] | None, pool: bool = False) -> Admission | None:
    """Ask the session to admit a process of which nothing is captured; return ``None`` if it is not part of the run."""
    guard.refuse(Attempt("process", "process.start", name))  # before it gets a lane
    if guard.Caller().probes:
        return None
    lane, found = _admit(scope, f"process:{name}", words, pool)
    if not pool:  # a pool's worker does nothing by itself
        guard.observe(Attempt("process", "process.start", name), lane=None if found is None else lane.path)
    return found


def _admit(scope: Scope, lane_name: str, words: list[str] | None, pool: bool = False) -> tuple[Lane, Admission | None]:
    lane, children = started(parent_lane(scope), lane_name, scope.live), scope.session.state.children
    return lane, None if children is None else children.admit(scope, lane, words, pool)


def apart(command: Any) -> None:
    """Report the start of a process by code outside of any run, or by telemetry, which is part of none."""
    guard.observe(Attempt("process", "process.start", program_name(words_of(command))))


@contextmanager
def starting(found: Admission, scope: Scope | None) -> Iterator[None]:
    """The block in which an admitted process is started, in ``scope``: the calls inside that perform the start are not
    checked again. ``None``: a step says itself that it could not be started."""
    token = within.set(True)
    try:
        with found.admitted(), passing():
            yield
    except OSError as error:  # no such program, not permitted, or too many processes
        if scope is not None:
            found.not_started(scope, error)
        raise
    finally:
        within.reset(token)


def joining_environment(found: Admission, env: Any) -> dict[Any, Any]:
    """Return the environment for a process, ``env`` or this process's, with the ticket added."""
    own = getattr(os.environ, "_data", None)
    if env is None and type(own) is dict and os.name == "posix":
        # In the raw form in which it is passed on: reading it value by value takes 0.1 ms.
        return {**own, VARIABLE.encode(): os.fsencode(found.ticket)}
    return {**(os.environ if env is None else env), VARIABLE: found.ticket}


class Words(list[str]):
    """A command as words. ``simple``: it was one text that is to a shell just the words of one program."""

    simple = False


def _active(quoted: re.Match[str]) -> str:
    """Return the characters of a quoted text that a shell does not take literally."""
    text = quoted.group()
    return "" if text[0] == "'" else "".join(letter for letter in text if letter in "$`\\")


def words_of(command: Any) -> list[str]:
    """Return a command as a list of words, without the leading ``NAME=value`` settings of a shell command."""
    if type(command) is not list and isinstance(command, commands.TEXTS):
        import shlex

        text = os.fsdecode(command)
        try:
            words = Words(shlex.split(text))
        except ValueError:  # an open quote
            words = Words(text.split())
        words.simple = _OF_SHELLS.isdisjoint(_QUOTED.sub(_active, text))
        while len(words) > 1 and _SETTING.match(words[0]):
            del words[0]
        return words or [""]
    return [word if type(word) is str else _word(word) for word in command] or [""]


def _word(word: Any) -> str:
    return os.fsdecode(word) if isinstance(word, commands.TEXTS) else ""


def program_name(words: list[str]) -> str:
    """Return the name of a command's program; for a Python program that of its script or module, whatever the
    interpreter's name."""
    return _program_name(tuple(words))


@functools.lru_cache(1000)
def _program_name(words: tuple[str, ...]) -> str:
    name = os.path.basename(words[0])
    if name.startswith("python") or words[0] == sys.executable:
        name = _script(list(words[1:])) or "python"
    return name.translate(_IN_PATHS)


#: Characters with a meaning in a lane's path.
_IN_PATHS: Final = str.maketrans("/#@+", "____")


def _script(words: list[str]) -> str:
    """Return the name of the script or module that Python runs, given its arguments; nothing if it runs a text."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return os.path.basename(word)
        if word == "-":
            return ""
        options = "" if word.startswith("--") else word[1:]
        for at, letter in enumerate(options, 1):
            if letter == "c":
                return ""
            if letter == "m":
                return options[at:] or next(rest, "")
            if letter in "WX":
                if not options[at:]:
                    next(rest, None)
                break
    return ""


# -- processes started by os and uvloop --------------------------------------------------------------------------------
#
# They are admitted and get a ticket like those of ``subprocess``. With ``os.exec*`` the same process continues as
# another program: its segment of a run that it had joined ends there; a run of its own stays without an end, with a
# warning.


def _admission(command: Any, program: Any = None) -> tuple[Scope, Admission] | None:
    """Return the scope and admission of a process about to be started; ``None`` if it is not part of a run."""
    scope = current.get()
    if within.get():
        return None
    if scope is None or telemetry() is not None:
        apart(command if program is None else [program])
        return None
    words = words_of(command)
    if program is not None:
        words[0] = words_of([program])[0]
    found = admission_of(scope, program_name(words), words)
    return None if found is None else (scope, found)


def begun(
    scope: Scope, command: Any, words: list[str], options: Mapping[str, Any], *, one_program: bool
) -> Admission | commands.CapturedProcess | None:
    """Begin the step of a process that is about to be started.

    In a replay: return the consent for one that joined the recorded run, and answers for itself; ``None`` for one that
    the recording does not have.
    """
    session, name = scope.session, program_name(words)
    guard.refuse(Attempt("process", "process.start", name))
    executable = options.get("executable")
    if session.recording and executable is None and commands.stays_out(words, one_program=one_program):
        lane, found = started(parent_lane(scope), f"process:{name}", scope.live), None
    else:
        lane, found = _admit(scope, f"process:{name}", words)
    if found is not None and not found.live:
        return found
    if not session.state.live and not session.comes_next(scope, "process", name):
        return None
    if executable is not None:
        one_program, words = False, [os.fsdecode(executable), *words[1:]]
    side_effect, declared = commands.side_effect_of(words, one_program=one_program)
    path = lane.path
    info: dict[str, Any] = {"process": path} | ({} if declared else {"undeclared": True})
    if found is not None:
        info["lane"] = lane.id
    given = commands.Given(options)
    about = commands.described(session, command, words, options, given)
    step = session.begin(scope, Request(_spec(name, side_effect), about, info))
    if step.deferred:
        step = step.go()
    captured = commands.CapturedProcess(session, step, path, found, given)
    if captured.live and (side_effect != "read_only" or given.written):
        inputs.about_to_start(scope, step.seq, options.get("cwd"))
    if found is not None:
        found.is_step = True
    for one in given.written:
        session.state.extras.of(inputs.GivenAway).add(name, one, lambda: captured.over)
    unknown = (
        given.follow(captured)
        or given.unfollowed
        or next(("a file" for one in given.written if not inputs.brought_back(scope, one)), None)
    )
    if unknown is not None:
        attempt = _writing_to(name, unknown)
        if captured.live:
            guard.observe(attempt)
        else:
            guard.check(attempt)
    inherited = [stream for stream in ("stdout", "stderr") if stream not in about or stream in given.inherited]
    if inherited and not captured.live:
        session.state.extras.of(_Inherited).report(session, name, inherited)
    return captured


def _writing_to(name: str, unknown: str) -> Attempt:
    return Attempt("process", "process.output", f"{name}, which writes to {unknown}")


def steps_of_joined(session: Session, found: Admission, options: Mapping[str, Any]) -> commands.ProcessSteps:
    """Return the steps of the pipes and terminals of a process that joined the recorded run, and is in the replay, too."""
    steps = commands.ProcessSteps(session, found.path)
    unknown = commands.Given(options).follow(steps)
    if unknown is not None:
        guard.check(_writing_to(found.path, unknown))
    return steps


@functools.lru_cache(1000)
def _spec(name: str, side_effect: str) -> Spec:
    return Spec("process", name, side_effect=side_effect)


class _Inherited:
    """Whether a replay has reported that what processes write to inherited streams is not shown."""

    def __init__(self) -> None:
        self._reported = False

    def report(self, session: Session, name: str, streams: list[str]) -> None:
        if not self._reported:
            self._reported = True
            session.report.warn(
                f"{name} inherited {' and '.join(streams)}: what such a process writes there is not in the trace, and not shown now"
            )


# -- os.system, os.spawn*, os.posix_spawn* ---------------------------------------------------------------------------------


def _system(original: Any) -> Any:
    @functools.wraps(original)
    def system(command: Any) -> Any:
        scope = current.get()
        if not isinstance(command, str | bytes | os.PathLike) or within.get():
            return original(command)
        if scope is None or telemetry() is not None:
            apart(command)
            return original(command)
        from subprocess import Popen

        options: dict[str, Any] = {"close_fds": False, "restore_signals": False}  # as without tracekit
        status = _patiently(Popen(command, shell=True, **options))
        return -status if status < 0 else status << 8

    return system


def _patiently(process: Popen[Any]) -> int:
    """Wait for the process through Ctrl-C, which only the shell handles in ``os.system``."""
    while True:
        with suppress(KeyboardInterrupt):
            return process.wait()


def _spawn(original: Any) -> Any:
    @functools.wraps(original)
    def _spawnvef(mode: int, file: Any, args: Any, env: Any, func: Any) -> Any:
        def start(env: Any) -> int:
            guard.check(Attempt("process", "os.spawn", words_of([file])[0]))
            become = func if env is None else getattr(os, _WITH_ENVIRONMENT.get(func.__name__, func.__name__))
            pid: int = original(os.P_NOWAIT, file, args, env, become)
            return pid

        if within.get() or not (isinstance(args, list | tuple) and args):
            return original(mode, file, args, env, func)
        pid = _started(args, file, env, {}, start)
        return pid if mode == os.P_NOWAIT else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return _spawnvef


_WITH_ENVIRONMENT: Final = {"execv": "execve", "execvp": "execvpe"}


def _posix_spawn(original: Any) -> Any:
    @functools.wraps(original)
    def posix_spawn(path: Any, argv: Any, env: Any, /, **options: Any) -> Any:
        if within.get() or not (isinstance(argv, list | tuple) and argv):
            return original(path, argv, env, **options)
        return _started(argv, path, env, options, lambda env: original(path, argv, env, **options))

    return posix_spawn


def _started(argv: Any, program: Any, env: Any, options: Mapping[str, Any], start: Callable[[Any], int]) -> int:
    """Start a process that its program knows by its number, with ``start(environment)``; return the number."""
    scope = current.get()
    if scope is None or telemetry() is not None:
        apart([program])
        return start(env)
    scope = here() or scope
    words = words_of(argv)
    words[0] = words_of([program])[0]
    if scope.live or below_seam():
        found: Any = admission_of(scope, program_name(words), words)
        return start(env) if found is None else _with_ticket(found, env, start, scope)
    streams = _streams(options.get("file_actions") or ())
    found = begun(scope, argv, words, streams, one_program=True)
    if found is None:
        return start(env)
    if not isinstance(found, commands.CapturedProcess):
        pid = _with_ticket(found, env, start, scope)
    elif found.live:
        try:
            pid = _with_ticket(found.joining, env, start, None)
        except BaseException as error:
            found.not_started(error)
            raise
        found.started(pid)
    else:
        found.start()
        pid = found.pid
    _is_known_by(scope, pid, found, streams)
    if options.get("setsid") or options.get("setpgroup") == 0:
        scope.session.state.extras.of(Numbers).groups[pid] = scope.session.state.extras.of(Numbers).steps[pid]
    return pid


def _streams(actions: Iterable[Any]) -> dict[str, Any]:
    """Return the options of ``Popen`` for what ``os.posix_spawn`` is to do with the descriptors of a process."""
    streams: dict[str, Any] = {}
    for what, number, *other in actions:
        if what == os.POSIX_SPAWN_DUP2 and other[0] in _STREAMS:
            streams[_STREAMS[other[0]]] = number
        elif what == os.POSIX_SPAWN_DUP2:
            streams["pass_fds"] = (*streams.get("pass_fds", ()), number)
        elif what == os.POSIX_SPAWN_OPEN and number in _STREAMS:
            streams[_STREAMS[number]] = os.fsdecode(other[0])
    return streams


_STREAMS: Final = dict(enumerate(("stdin", "stdout", "stderr")))


def _with_ticket(found: Admission | None, env: Any, start: Callable[[Any], int], scope: Scope | None) -> int:
    if found is None:
        token = within.set(True)
        try:
            with passing():
                return start(env)
        finally:
            within.reset(token)
    with starting(found, scope):
        pid = start(joining_environment(found, env))
    found.started(pid)
    return pid


# -- os.fork, os.forkpty -----------------------------------------------------------------------------------------------
#
# The child is a copy that has its own part of the run from its first line: set up right after the fork (in a recording
# by ``_runs.segments``, in a replay by ``_runs.replaying``).


def _fork(original: Any) -> Any:
    @functools.wraps(original)
    def fork() -> Any:
        scope = current.get()
        if scope is None or within.get() or guard.Caller().passes("fork"):
            return original()
        guard.refuse(Attempt("process", f"os.{original.__name__}", "this process"))
        lane, found = _admit(scope, "fork", None)
        if found is None:
            return original()
        if original.__name__ == "forkpty" and not (scope.live or below_seam()):
            return _fork_on_terminal(original, scope, lane, found)
        guard.observe(Attempt("fork", f"os.{original.__name__}", "this process"), lane=lane.path)
        with forked(found, scope):
            made = original()
        pid = made if isinstance(made, int) else made[0]
        if pid:
            found.started(pid)
            _is_known_by(scope, pid, found)
        return made

    return fork


# A fork on a terminal of its own (``pty.fork``) is a step as well, with what goes through the terminal: it mostly becomes
# another program at once. In a replay the fork runs up to there, and ends where the recorded one became that program.


class _OnTerminal:
    """For the run of a process that was forked on a terminal: whether it is one, and what it becomes."""

    def __init__(self) -> None:
        #: The terminal, while the process may become another program, which then has it.
        self.terminal: os.stat_result | None = None
        #: The directory in which it was forked.
        self.directory = ""
        #: The step of the program that it becomes; 0 if it stays what it is.
        self.became = 0


def becomes(session: Session) -> int:
    """Return the step of the program that this process, forked on a terminal, becomes at the end of its part of the run;
    0 if it doesn't."""
    return session.state.extras.of(_OnTerminal).became


def _fork_on_terminal(original: Any, scope: Scope, lane: Lane, found: Admission) -> tuple[int, int]:
    session = scope.session
    if not (found.live or found.becomes):  # it answers for itself
        with forked(found, scope):
            pid, master = original()
        if pid:
            found.started(pid)
            _is_known_by(scope, pid, found)
            commands.give_terminal(commands.ProcessSteps(session, found.path), master)
        return pid, master
    info = {"process": lane.path, "undeclared": True, "lane": lane.id}
    about = {"command": f"os.{original.__name__}", "stdin": "terminal", "stdout": "terminal", "stderr": "terminal"}
    step = session.begin(scope, Request(_spec("fork", "irreversible"), about, info))
    if step.deferred:
        step = step.go()
    captured = commands.CapturedProcess(session, step, lane.path, found if found.live else None, commands.Given({}))
    if captured.live:
        found.is_step = True
        inputs.about_to_start(scope, step.seq, None)
    else:
        captured.start()
    directory = _directory()
    try:
        with forked(found, None):
            pid, master = original()
    except BaseException as error:
        captured.not_started(error)
        raise
    if not pid:
        child = current.get()
        if child is not None and child.session.state.joined:
            on = child.session.state.extras.of(_OnTerminal)
            on.terminal, on.directory = os.fstat(0), directory
        return pid, master
    found.started(pid)
    if captured.live:
        captured.started(pid)
    else:
        captured.before_end = functools.partial(_let_end, found, pid)
    _is_known_by(scope, captured.pid, captured)
    commands.give_terminal(captured, master)
    return captured.pid, master


def _let_end(found: Admission, pid: int) -> None:
    """Wait for the end of a fork in a replay: to the program it has become another program long since."""
    outside_the_run(found.let_end)
    with suppress(ChildProcessError):
        outside_the_run(_waitpid_really, pid, 0)


_waitpid_really: Final = os.waitpid


@contextmanager
def forked(found: Admission, scope: Scope | None) -> Iterator[None]:
    """The block in which an admitted process is forked, in ``scope``; see ``starting``."""
    token = forking.set(found)
    try:
        with starting(found, scope):
            yield
    finally:
        forking.reset(token)


# -- signals to processes ----------------------------------------------------------------------------------------------
#
# By a process's number, which during a replay may belong to any process.


class Numbers:
    """The processes of a run that are steps, by their numbers and those of their groups."""

    def __init__(self) -> None:
        self.steps: Final[dict[int, commands.ProcessSteps]] = {}
        self.groups: Final[dict[int, commands.ProcessSteps]] = {}
        #: Those whose status the program queries by number.
        self.awaited: Final[dict[int, ProcessObserver | commands.CapturedProcess]] = {}


def _is_known_by(
    scope: Scope, pid: int, found: Admission | commands.CapturedProcess, streams: Mapping[str, Any] | None = None
) -> None:
    """Register a process that the program knows by its number, with the descriptors that it is given."""
    numbers = scope.session.state.extras.of(Numbers)
    numbers.awaited[pid] = found
    if isinstance(found, commands.CapturedProcess):
        numbers.steps[pid] = found
    elif found.is_step:
        numbers.steps[pid] = steps_of_joined(scope.session, found, streams or {})


def _by_number(number: Any, *, group: bool = False) -> tuple[commands.ProcessSteps, Scope] | None:
    scope = current.get()
    if scope is None:
        return None
    known = scope.session.state.extras.of(Numbers)
    steps = known.groups.get(number) if group else None
    leads = (
        group and steps is None
    )  # the program may have made it the leader of a group itself (`preexec_fn=os.setsid`)
    steps = steps or known.steps.get(number)
    at = None if steps is None else steps.here()
    if steps is None or at is None:
        return None
    if leads and (own := steps.group(at, lambda: _group_of(number))) != number:
        if own:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return None
    if leads:
        known.groups[number] = steps
    return steps, at


def _group_of(pid: int) -> int:
    """Return the number of a process's group; 0 if the process is gone."""
    try:
        return int(outside_the_run(os.getpgid, pid))
    except ProcessLookupError:
        return 0


def _kill(original: Any, group: bool) -> Any:
    @functools.wraps(original)
    def kill(number: Any, sig: Any, /) -> None:
        at = _by_number(number, group=group)
        if at is None:
            if not group and number == os.getpid():
                signals.send(int(sig), lambda: original(number, sig))
                return
            if number == (os.getpgrp() if group else 0):
                signals.before_death(int(sig))
            if process.sessions:
                guard.observe(guard.signal_to_other("os.killpg" if group else "os.kill", number, sig))
            if group or process.needs_signal(number, sig):
                original(number, sig)
            return
        steps, scope = at
        if not steps.over:
            steps.signal(scope, sig)
        elif not steps.live:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if steps.real and (group or process.needs_signal(number, sig)):
            original(number, sig)

    return kill


def _getpgid(original: Any) -> Any:
    @functools.wraps(original)
    def getpgid(pid: Any) -> int:
        at = _by_number(pid)
        if at is None:
            return int(original(pid))
        steps, scope = at
        group = steps.group(scope, lambda: int(original(pid)))
        scope.session.state.extras.of(Numbers).groups[group] = steps
        return group

    return getpgid


# -- the status of a process by its number -----------------------------------------------------------------------------


def _waitpid(original: Any) -> Any:
    @functools.wraps(original)
    def waitpid(pid: Any, options: Any, /) -> tuple[int, int]:
        scope = current.get()
        scope = None if scope is None or scope.live or not isinstance(pid, int) else here()
        if scope is None or scope.session.state.ended or options & ~os.WNOHANG:
            return original(pid, options)  # type: ignore[no-any-return]
        awaited = scope.session.state.extras.of(Numbers).awaited
        if pid == -1 and awaited:
            return _wait_for_any(original, scope, awaited, options)
        found = awaited.get(pid)
        if found is None:
            return original(pid, options)  # type: ignore[no-any-return]
        return _wait_for(original, scope, awaited, pid, found, options)

    return waitpid


def _wait_for(
    original: Any,
    scope: Scope,
    awaited: dict[int, ProcessObserver | commands.CapturedProcess],
    pid: int,
    found: ProcessObserver | commands.CapturedProcess,
    options: int,
) -> tuple[int, int]:
    if found.live:
        number, word = outside_the_run(original, pid, options)
        if number:
            del awaited[pid]
        found.note(scope, os.waitstatus_to_exitcode(word) if number else None)
        return number, word
    status = found.recall(scope)
    if status is None:
        return 0, 0
    del awaited[pid]
    word = _end_of(original, pid, found, status)
    _known_to_have_ended(scope, pid)
    return pid, word


def _known_to_have_ended(scope: Scope, pid: int) -> None:
    steps = scope.session.state.extras.of(Numbers).steps.get(pid)
    if steps is not None:
        steps.recalled()


def _end_of(original: Any, pid: int, found: ProcessObserver | commands.CapturedProcess, status: int) -> int:
    """Return the recorded end of a process in ``waitpid``'s form; a process that runs in the replay ends first, and is
    compared."""
    if isinstance(found, commands.CapturedProcess):
        found.recalled()
    else:
        outside_the_run(found.let_end)
        _, word = outside_the_run(original, pid, 0)
        found.ended(os.waitstatus_to_exitcode(word), status)
    return status << 8 if status >= 0 else -status


def _wait_for_any(
    original: Any, scope: Scope, awaited: dict[int, ProcessObserver | commands.CapturedProcess], options: int
) -> tuple[int, int]:
    session = scope.session
    if next(iter(awaited.values())).live:
        number, word = outside_the_run(original, -1, options)
        found = awaited.pop(number, None)
        session.clock_read(scope, _ANY, lambda: found.path if found is not None else _OTHER if number else "")
        if found is not None:
            found.note(scope, os.waitstatus_to_exitcode(word))
        return number, word
    path = session.question(scope, _ANY, lambda: _OTHER, lambda _: None)
    if not path:
        return 0, 0
    for pid, found in awaited.items():
        if found.path == path:
            del awaited[pid]
            word = _end_of(original, pid, found, found.recall(scope))
            _known_to_have_ended(scope, pid)
            return pid, word
    return original(-1, options)  # type: ignore[no-any-return]


#: The name under which is recorded which process had ended when the program asked for any; and the placeholder for a
#: process that is not the run's.
_ANY: Final = "process.any"
_OTHER: Final = "other"


def _wait_any(original: Any) -> Any:
    @functools.wraps(original)
    def wait() -> tuple[int, int]:
        scope = current.get()
        if scope is None or not scope.session.state.extras.of(Numbers).awaited:
            return original()  # type: ignore[no-any-return]
        return os.waitpid(-1, 0)

    return wait


# -- os.exec* --------------------------------------------------------------------------------------------------------------


def _on_terminal(scope: Scope) -> os.stat_result | None:
    return None if scope.live else scope.session.state.extras.of(_OnTerminal).terminal


def _become(scope: Scope, path: Any, argv: Any, really: Callable[[Callable[..., Any]], Any]) -> Any:
    """Become another program, on the terminal that this process was forked on: a step. In a replay the process ends.

    Its part of the run ends before. ``really`` is called with what adds the ticket to an environment.
    """
    session = scope.session
    on = session.state.extras.of(_OnTerminal)
    words = words_of(argv)
    words[0] = words_of([path])[0]
    name = program_name(words)
    guard.refuse(Attempt("process", "process.start", name))
    lane, found = _admit(scope, f"process:{name}", words)
    side_effect, declared = commands.side_effect_of(words, one_program=True)
    directory, given = _directory(), commands.Given({})
    about = commands.described(session, argv, words, {"cwd": None if directory == on.directory else directory}, given)
    info: dict[str, Any] = {"process": lane.path, "becomes": True} | ({} if declared else {"undeclared": True})
    step = session.begin(scope, Request(_spec(name, side_effect), about, info))
    if step.deferred:
        step = step.go()
    unknown = _unfollowed(on)
    if not step.live:
        if unknown is not None:
            guard.check(_writing_to(name, unknown))
        step.answer().result()
        _end_part()
        _exit(0)
    if unknown is not None:
        guard.observe(_writing_to(name, unknown))
    step.done({})
    on.became = step.seq
    _end_part()
    try:
        return really(lambda env=os.environ: env if found is None else joining_environment(found, env))
    except OSError:
        for call in process.after_exec:  # it goes on as what it is
            call()
        guard.observe(Attempt("process", "os.exec", name))
        raise


_exit: Final = os._exit
_getcwd: Final = os.getcwd
_isfile: Final = os.path.isfile


def _directory() -> str:
    with suppress(OSError):  # it has been removed
        return _getcwd()
    return ""


def _end_part() -> None:
    for end in process.before_exec:
        end()


def _unfollowed(on: _OnTerminal) -> str | None:
    """Return what a program gets from this process, to read or to write, that is neither the terminal nor nothing; so
    far as it can be this program's own."""
    for number in range(3):
        with suppress(OSError):
            about = os.fstat(number)
            if not (on.terminal is not None and os.path.samestat(about, on.terminal)) and not _is_null(about):
                return commands.kind_of(number, about.st_mode) or "a file"
    return None


def _is_null(about: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(about, os.stat(os.devnull))
    return False


def _exec(original: Any, with_env: bool) -> Any:
    def become(path: Any, argv: Any, *env: Any) -> Any:
        there = isinstance(path, str | bytes | os.PathLike) and os.access(path, os.X_OK) and _isfile(path)
        scope = current.get()
        session = None if scope is None else scope.session
        if scope is not None and _on_terminal(scope) is not None and argv and not within.get():
            if there:
                return _become(scope, path, argv, lambda ticket: really(path, argv, ticket(*env)))
            if not scope.session.recording and isinstance(path, str | bytes | os.PathLike):
                missing = errno.EACCES if os.path.exists(path) else errno.ENOENT
                raise OSError(missing, os.strerror(missing))
        if within.get() or not there or session is None or not session.recording or not argv:
            return original(path, argv, *env)
        at = _admission(argv, path)
        if at is None:
            return original(path, argv, *env)
        at[1].started(os.getpid())
        _end_part()
        if not session.state.ended:
            session.log.flush()
            warn(
                f"the program becomes another one ({program_name(words_of(argv))}) in the middle of run {session.run_id}: its trace has "
                "no end, and a replay stops there"
            )
        return really(path, argv, joining_environment(at[1], env[0] if env else None))

    really = original if with_env else os.execve

    @functools.wraps(original)
    def execv(path: Any, argv: Any, /) -> Any:
        return become(path, argv)

    @functools.wraps(original)
    def execve(path: Any, argv: Any, env: Any) -> Any:
        return become(path, argv, env)

    return execve if with_env else execv


# -- uvloop ----------------------------------------------------------------------------------------------------------------


def _uvloop(original: Any, shell: bool) -> Any:
    @functools.wraps(original)
    async def start(self: Any, protocol_factory: Any, program: Any, *args: Any, **options: Any) -> Any:
        command = program if shell else [program, *args]
        at = _admission(command)
        if at is None:
            guard.check(Attempt("process", "uvloop.subprocess", words_of(command)[0]))
            return await original(self, protocol_factory, program, *args, **options)
        scope, found = at
        options["env"] = joining_environment(found, options.get("env"))
        with starting(found, scope):
            transport, protocol = await original(self, protocol_factory, program, *args, **options)
        found.started(transport.get_pid())
        return transport, protocol

    return guard.asks(start)


def _openpty(original: Any) -> Any:
    @functools.wraps(original)
    def openpty() -> tuple[int, int]:
        master, slave = original()
        scope = current.get()
        if scope is not None and not scope.live and not scope.session.state.ended:
            commands.terminal_opened(scope, master)
        return master, slave

    return openpty


#: Those functions that the system has.
hooks: Final = Switch(
    (
        Patch("os", "system", _system),
        Patch("os", "_spawnvef", _spawn),
        Patch("os", "openpty", _openpty),
        Patch("os", "posix_spawn", _posix_spawn),
        Patch("os", "posix_spawnp", _posix_spawn),
        Patch("os", "waitpid", _waitpid),
        Patch("os", "wait", _wait_any),
        Patch("os", "kill", lambda original: _kill(original, False)),
        Patch("os", "killpg", lambda original: _kill(original, True)),
        Patch("os", "getpgid", _getpgid),
        Patch("os", "fork", _fork),
        Patch("os", "forkpty", _fork),
        Patch("os", "execv", lambda original: _exec(original, False)),
        Patch("os", "execve", lambda original: _exec(original, True)),
        Patch("uvloop", "Loop.subprocess_exec", lambda original: _uvloop(original, False)),
        Patch("uvloop", "Loop.subprocess_shell", lambda original: _uvloop(original, True)),
    )
)
