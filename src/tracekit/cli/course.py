"""A program from its first line to its last exit callback, run as the interpreter would, in this process."""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import importlib.util
import operator
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple

from .._engine.program import Program
from ..errors import ReplayError

__all__ = ["Body", "Ended", "die_of", "go", "on_hard_exit", "prepared"]

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
