"""Processes that are started by the functions of ``os``, and by uvloop.

They are asked about and told of the run as those of ``subprocess`` are. ``os.exec*`` is the same process going on as another program: where
it had joined a run its part of it ends there; a run of its own can't end, and it says so.
"""

from __future__ import annotations

import functools
import os
import subprocess
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from .._engine.scope import Scope, current
from . import guard, guard_seams
from .guard_attempts import Attempt
from .processes_asking import Welcome, asked, named, starting, told, within, words_of

__all__ = ["before_exec", "places"]

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
        session: Any = None if scope is None else scope.session
        if within.get() or not there or session is None or not session.recording or not argv:
            return original(path, argv, *env)
        at = _ask(argv, path)
        if at is None:
            return original(path, argv, *env)
        at[1].started(os.getpid())
        for end in before_exec:
            end()
        if not session.ended:
            session.journal.flush()
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

    guard_seams.asking.add(start)
    return start


#: Module, class, name, and what goes in its place.
places: Final = (
    ("os", None, "system", _system),
    *((("os", None, "_spawnvef", _spawn),) if hasattr(os, "_spawnvef") else ()),
    *(("os", None, name, _posix_spawn) for name in ("posix_spawn", "posix_spawnp") if hasattr(os, name)),
    ("os", None, "execv", lambda original: _exec(original, False)),
    ("os", None, "execve", lambda original: _exec(original, True)),
    ("uvloop", "Loop", "subprocess_exec", lambda original: _uvloop(original, False)),
    ("uvloop", "Loop", "subprocess_shell", lambda original: _uvloop(original, True)),
)
