"""Python programs in processes of their own, forked from an interpreter that has imported tracekit already.

Most of what a short program costs is the start of its interpreter and the import of what it uses. :func:`python` starts a
program as ``subprocess.run([sys.executable, …])`` does, and it finds what it would find there: its own ``__main__``,
``sys.argv``, ``sys.path``, variables, directory and standard streams, and the interpreter's own end. But the process is a
fork of one that has done the imports, with hash seed 0.

What is about the start itself (another hash seed, options of the interpreter) starts an interpreter of its own; a test that
must begin with nothing imported says ``fresh=True``.

:func:`started` starts a server so, and :func:`command` is a command line with which somebody else does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

__all__ = ["SDKS", "command", "python", "started"]

#: What programs import that ask a provider.
SDKS = "anthropic,openai"

ROOT = Path(__file__).parents[2]
#: Variables that are read when an interpreter starts or tracekit is imported, but for the hash seed, the path, and where
#: compiled files are.
_AT_START = ["TRACEKIT_JOIN"]
for _names in (
    "BREAKPOINT COERCECLOCALE DEBUG DEVMODE FAULTHANDLER HOME INSPECT INTMAXSTRDIGITS IOENCODING MALLOC NODEBUGRANGES",
    "NOUSERSITE OPTIMIZE PROFILEIMPORTTIME SAFEPATH TRACEMALLOC UNBUFFERED UTF8 VERBOSE WARNDEFAULTENCODING WARNINGS",
):
    _AT_START += [f"PYTHON{_name}" for _name in _names.split()]
_HASH_SEED = "0"
#: The variables of the warm interpreter: those that this process began with.
_VARIABLES = {**os.environ, "PYTHONHASHSEED": _HASH_SEED, "PYTHONPATH": ""}


# -- in the tests ----------------------------------------------------------------------------------------------------------


def python(
    *arguments: str,
    input: str = "",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    fresh: bool = False,
    imports: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` to its end; ``fresh`` with an interpreter of its own in any case. ``imports`` are modules, with commas
    between them, that the warm interpreter has imported besides tracekit."""
    variables = dict(os.environ if env is None else env)
    if fresh or not _usual(arguments, variables):
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, input=input, capture_output=True, text=True, cwd=cwd, env=variables, check=False, timeout=timeout
        )
    where = os.fspath(cwd or os.getcwd())
    return _communicated(_warm(imports), list(arguments), input.encode(), where, variables, timeout)


@contextmanager
def started(*arguments: str, cwd: str | os.PathLike[str], imports: str = "") -> Iterator[Fork]:
    """``python *arguments`` without input, beside the test; it is gone when the block ends."""
    with open(os.devnull) as nothing:
        fork = Fork(_warm(imports), list(arguments), (nothing.fileno(), 1, 2), os.fspath(cwd), os.environ)
    with fork:
        try:
            yield fork
        finally:
            fork.kill()
            fork.wait()


def command(*arguments: str, imports: str = "") -> list[str]:
    """A command line that is what ``python *arguments`` is, but for the process that it starts first."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked.py")), _warm(imports).address, *arguments]


def _usual(arguments: tuple[str, ...], variables: Mapping[str, str]) -> bool:
    """Whether the warm interpreter is in the state in which one that is started with these would be."""
    first = arguments[2:3] if arguments[:1] == ("-W",) else arguments[:1]
    if not hasattr(os, "fork") or not first or (first[0].startswith("-") and first[0] not in ("-c", "-m")):
        return False
    if variables.get("PYTHONHASHSEED", _HASH_SEED) != _HASH_SEED:
        return False
    if any(Path(entry, "sitecustomize.py").exists() for entry in variables.get("PYTHONPATH", "").split(os.pathsep)):
        return False
    return all(variables.get(name) == _VARIABLES.get(name) for name in _AT_START)


class _Warm(NamedTuple):
    """A warm interpreter: where it is told to fork by this process, and by others."""

    control: socket.socket
    address: str


_warmed: dict[str, _Warm] = {}
_starting = threading.Lock()


def _warm(imports: str) -> _Warm:
    """The warm interpreter that has imported these as well, which is started by the first test that needs it."""
    with _starting:
        if imports not in _warmed:
            ours, theirs = socket.socketpair()
            directory = tempfile.TemporaryDirectory(prefix="tracekit-warm-")
            address = os.path.join(directory.name, "socket")
            with theirs, socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                files = theirs.fileno(), listener.fileno()
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.processes", *map(str, files), imports],
                    cwd=ROOT,
                    env=_VARIABLES,
                    pass_fds=files,
                    # Pipes, as the programs have: an interpreter looks at its standard streams once, when it starts.
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            _warmed[imports] = _Warm(ours, address)
            atexit.register(_end, ours, process, directory)
        return _warmed[imports]


def _end(control: socket.socket, process: subprocess.Popen[bytes], directory: tempfile.TemporaryDirectory[str]) -> None:
    control.close()
    process.wait(30)
    directory.cleanup()


class Fork:
    """A program forked from a warm interpreter."""

    def __init__(
        self, warm: _Warm, arguments: list[str], files: Sequence[int], cwd: str, variables: Mapping[str, str]
    ) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(warm.control, [b"x"], [*files, theirs.fileno()])
            self._talk = ours.makefile("rw")
        self._talk.write(json.dumps({"arguments": arguments, "cwd": cwd, "variables": dict(variables)}) + "\n")
        self._talk.flush()
        self.pid = int(self._talk.readline())

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self._talk.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its status, as that of a ``subprocess.Popen``."""
        return os.waitstatus_to_exitcode(int(self._talk.readline()))


def _communicated(
    warm: _Warm,
    arguments: list[str],
    input: bytes,
    cwd: str,
    variables: dict[str, str],
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    pipes = [os.pipe() for _ in range(3)]
    (stdin, feed), (out, stdout), (err, stderr) = pipes
    with Fork(warm, arguments, (stdin, stdout, stderr), cwd, variables) as fork:
        for end in (stdin, stdout, stderr):
            os.close(end)
        try:
            said = _communicate(input, feed, out, err, timeout)
        except BaseException:  # a test that takes too long among them
            fork.kill()
            raise
        status = fork.wait()
    return subprocess.CompletedProcess([sys.executable, *arguments], status, *said)


def _communicate(input: bytes, feed: int, out: int, err: int, timeout: float) -> tuple[str, str]:
    """Write ``input`` and read both outputs to their ends."""
    said: dict[int, bytearray] = {out: bytearray(), err: bytearray()}
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(feed, selectors.EVENT_WRITE)
        for file in said:
            selector.register(file, selectors.EVENT_READ)
        try:
            while selector.get_map():
                if not (ready := selector.select(end - time.monotonic())):
                    raise subprocess.TimeoutExpired(sys.executable, timeout)
                for key, _ in ready:
                    if key.fd == feed:
                        more = input = _fed(feed, input)
                    else:
                        more = os.read(key.fd, 65536)
                        said[key.fd] += more
                    if not more:
                        selector.unregister(key.fd)
                        os.close(key.fd)
        finally:
            for left in list(selector.get_map()):
                os.close(left)  # type: ignore[arg-type]  # a descriptor
    # As text=True reads it.
    return tuple(bytes(text).decode().replace("\r\n", "\n").replace("\r", "\n") for text in said.values())  # type: ignore[return-value]


def _fed(feed: int, input: bytes) -> bytes:
    """What is still to be written; nothing where nobody reads."""
    try:
        return input[os.write(feed, input[: select.PIPE_BUF]) :] if input else b""
    except BrokenPipeError:
        return b""


# -- in the warm interpreter -------------------------------------------------------------------------------------------------


class _Replaced(BaseException):
    """The process goes on as another program: what ``exec`` of our own interpreter does."""

    def __init__(self, arguments: list[str], variables: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.variables = variables


def _serve(control: socket.socket, listener: socket.socket) -> dict[str, Any]:
    """Fork for each request until the tests have ended; returns the request in each fork.

    Requests come from the tests' process over ``control``, and from others over a connection to ``listener``. Who goes away before
    the program has ended does not want it any longer: it is killed.
    """
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    for file in (control, listener, woken):
        selector.register(file, selectors.EVENT_READ)
    while True:
        ready = [key for key, _ in selector.select()]
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        for key in ready:
            if key.fileobj is control:
                said, files, _, _ = socket.recv_fds(control, 1, 4)
                if not said:
                    sys.exit()
                talk = socket.socket(fileno=files.pop())
            elif key.fileobj is listener:
                talk, _ = listener.accept()
                _, files, _, _ = socket.recv_fds(talk, 1, 3)
            else:
                if key.data in running:
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
                continue
            with talk.makefile("r") as lines:
                request: dict[str, Any] = json.loads(lines.readline())
            pid = os.fork()
            if pid == 0:
                selector.close()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (control, listener, talk, *running.values()):
                    other.close()
                for number, file in enumerate(files):
                    os.dup2(file, number)
                    os.close(file)
                os.close(woken)
                os.close(waker)
                return request
            for file in files:
                os.close(file)
            _answer(talk, pid)
            running[pid] = talk
            selector.register(talk, selectors.EVENT_READ, pid)
        _reap(running, selector)


def _reap(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as talk:
            with suppress(KeyError):  # nobody waits for it
                selector.unregister(talk)
            _answer(talk, status)


def _answer(talk: socket.socket, number: int) -> None:
    with suppress(OSError):  # a test that took too long is over
        talk.sendall(b"%d\n" % number)


def _become(arguments: list[str], variables: Mapping[str, str]) -> None:
    """The state in which an interpreter with these arguments begins."""
    os.environ.clear()
    os.environ.update(variables)
    sys.orig_argv[:] = [sys.executable, *arguments]
    paths = variables.get("PYTHONPATH", "")
    sys.path[:] = [*(paths.split(os.pathsep) if paths else []), *_PATH]
    if (started := sys.modules.get("multiprocessing.process")) is not None:
        started.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    _MAINS.append(sys.modules["__main__"])
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]


def _run(arguments: list[str]) -> None:
    main = sys.modules["__main__"]
    if arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings._processoptions([arguments[1]])  # type: ignore[attr-defined]  # what the interpreter does with it
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path.insert(0, os.getcwd())
        if not hasattr(sys.modules.get(arguments[1]), "__path__"):
            sys.modules.pop(arguments[1], None)  # it is run, as if it had not been imported
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what `python -m` does
        return
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        code = compile(arguments[1], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
        main.__file__ = os.path.join(os.getcwd(), arguments[0])
        main.__cached__ = None  # type: ignore[attr-defined]
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
        with open(arguments[0], "rb") as file:
            code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
    exec(code, vars(main))


def _program(request: dict[str, Any]) -> None:
    os.chdir(request["cwd"])
    arguments, variables = request["arguments"], request["variables"]
    really = os.execve

    def execve(path: str, argv: list[str], env: Mapping[str, str]) -> NoReturn:
        if argv[1:] == ["-m", "tracekit.cli.launch"] and env.get("PYTHONHASHSEED", _HASH_SEED) == _HASH_SEED:
            raise _Replaced(argv[1:], dict(env))
        really(path, argv, env)

    os.execve = execve  # type: ignore[assignment]
    try:
        _become(arguments, variables)
        try:
            _run(arguments)
        except _Replaced as other:
            os.execve = really
            again = other
        else:
            return
        atexit._clear()
        atexit.register(_spare)
        _become(again.arguments, again.variables)
        _run(again.arguments)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _spare() -> None:
    """Leave the modules that were there before the program as they are, as the last thing before the interpreter takes apart all it finds.

    To take a thousand modules apart that nobody has changed takes longer than most programs. What the program has made and
    imported goes as ever: its own modules, and all that lives in them.
    """
    for name in _SPARED:
        sys.modules.pop(name, None)


def _import(more: str) -> None:
    """Import what the programs will: all of tracekit but what is run as a program itself, and ``more``."""
    atexit.register(_spare)
    import tracekit

    for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if not module.name.startswith(("tracekit.cli.demo", "tracekit.__main__", "tracekit.testing")):
            __import__(module.name)
    for name in filter(None, more.split(",")):
        importlib.import_module(name)
    _SPARED.update(
        {name: module for name, module in sys.modules.items() if name not in ("__main__", "builtins", "sys")}
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_SPARED))  # nobody takes it apart either
    gc.freeze()


_PATH: list[str] = []
#: The modules that each program finds imported.
_SPARED: dict[str, ModuleType] = {}
_MAINS: list[ModuleType] = []

if __name__ == "__main__":
    _PATH[:] = sys.path[1:]
    _import(sys.argv[3])
    _program(_serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3])))
