"""Python programs in processes of their own, forked from an interpreter that has imported tracekit already.

Most of what a short program costs is the start of its interpreter and the import of what it uses. :func:`python` starts a
program as ``subprocess.run([sys.executable, …])`` does, and it finds what it would find there: its own ``__main__``,
``sys.argv``, ``sys.path``, variables, directory and standard streams, and the interpreter's own end. But the process is a
fork of one that has done the imports, with hash seed 0.

What is about the start itself (another hash seed, options of the interpreter) starts an interpreter of its own; a test that
must begin with nothing imported says ``fresh=True``. So do the interpreters that the program starts itself, unless the test says
with ``seeds`` that how they start is not its subject: then they are forked, too.

:func:`started` starts a server so, and :func:`command` is a command line with which somebody else does.
"""

from __future__ import annotations

import _posixsubprocess
import _socket
import atexit
import ctypes
import ctypes.util
import fcntl
import gc
import hashlib
import importlib
import importlib.machinery
import inspect
import io
import linecache
import locale
import marshal
import math
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
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["PYTEST", "SDKS", "command", "forking", "look_rarely", "python", "started"]

#: What programs import that ask a provider.
SDKS = "tests.support.clients"

#: What runs of pytest import: itself, the plugins of others that the tests of ours load, and an SDK.
PYTEST = "pytest,xdist.plugin,xdist.dsession,xdist.remote,anyio.pytest_plugin,pytest_asyncio.plugin,openai"

ROOT = Path(__file__).parents[2]
#: Variables that are read when an interpreter starts or tracekit is imported, but for the hash seed, the path, where compiled
#: files are, and the ticket of a run.
_AT_START = ["TRACEKIT_PURE"]
for _names in (
    "COERCECLOCALE DEBUG DEVMODE FAULTHANDLER HOME INSPECT INTMAXSTRDIGITS IOENCODING MALLOC NODEBUGRANGES",
    "NOUSERSITE OPTIMIZE PROFILEIMPORTTIME SAFEPATH TRACEMALLOC UNBUFFERED UTF8 VERBOSE WARNDEFAULTENCODING WARNINGS",
):
    _AT_START += [f"PYTHON{_name}" for _name in _names.split()]
_HASH_SEED = "0"
#: The variables of the warm interpreter: those that this process began with.
_VARIABLES = {**os.environ, "PYTHONPATH": ""}
if locale.getencoding().lower() == "utf-8":
    _AT_START.remove("PYTHONUTF8")  # it changes nothing


# -- in the tests ----------------------------------------------------------------------------------------------------------


def python(
    *arguments: str,
    input: str = "",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    fresh: bool = False,
    imports: str = "",
    seeds: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` to its end; ``fresh`` with an interpreter of its own in any case. ``imports`` are modules, with commas
    between them, that the warm interpreter has imported besides tracekit. The interpreters that the program starts itself, with one of
    these hash ``seeds``, are forked as well: with the seed 0 they are its own children, with another one those of others."""
    variables = dict(os.environ if env is None else env)
    if fresh or not _usual(arguments, variables):
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, input=input, capture_output=True, text=True, cwd=cwd, env=variables, check=False, timeout=timeout
        )
    request = {
        "arguments": arguments,
        "cwd": os.fspath(cwd or os.getcwd()),
        "variables": variables,
        "nursery": _HASH_SEED in seeds,
        "addresses": {seed: _warm(imports, seed) for seed in seeds},
    }
    return _communicated(_warm(imports), request, input.encode(), timeout)


@contextmanager
def started(
    *arguments: str,
    cwd: str | os.PathLike[str],
    imports: str = "",
    env: Mapping[str, str] | None = None,
    output: Sequence[int] = (1, 2),
) -> Iterator[Fork]:
    """``python *arguments`` without input, beside the test; it is gone when the block ends."""
    with open(os.devnull) as nothing:
        request = {"arguments": arguments, "cwd": os.fspath(cwd), "variables": dict(os.environ if env is None else env)}
        fork = Fork(_warm(imports), request, (nothing.fileno(), *output))
    with fork:
        try:
            yield fork
        finally:
            fork.kill()
            fork.wait()


def command(*arguments: str, imports: str = "") -> list[str]:
    """A command line that is what ``python *arguments`` is, but for the process that it starts first."""
    return [*_forked(_warm(imports)), *arguments]


@contextmanager
def forking(imports: str = "", *, children: bool = False) -> Iterator[None]:
    """Interpreters that are started in the block by ``subprocess`` are forks; with ``children`` those that they start themselves, too."""
    before = subprocess._fork_exec, subprocess._USE_POSIX_SPAWN  # type: ignore[attr-defined]
    _fork_instead({_HASH_SEED: _warm(imports)}, children=children)
    try:
        yield
    finally:
        subprocess._fork_exec, subprocess._USE_POSIX_SPAWN = before  # type: ignore[attr-defined]


def _forked(address: str, seed: str = "") -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked.py")), address, seed]


def _usual(arguments: Sequence[str], variables: Mapping[str, str], seed: str = _HASH_SEED) -> bool:
    """Whether the warm interpreter of this hash seed is in the state in which one that is started with these would be."""
    skipped = {"-W": 2, "-u": 1}.get(arguments[0], 0) if arguments else 0
    first = arguments[skipped : skipped + 1]
    if not hasattr(os, "fork") or not first or (first[0].startswith("-") and first[0] not in ("-c", "-m")):
        return False
    if variables.get("PYTHONHASHSEED", _HASH_SEED) != seed:
        return False
    if any(_exists(f"{entry}/sitecustomize.py") for entry in variables.get("PYTHONPATH", "").split(os.pathsep)):
        return False
    return all(variables.get(name) == _VARIABLES.get(name) for name in _AT_START)


def _exists(path: str, really: Callable[[str], object] = os.stat) -> bool:
    """A program that asks ``os`` under record has asked for it itself."""
    with suppress(OSError):
        really(path)
        return True
    return False


_warmed: dict[tuple[str, str], str] = {}
_starting = threading.Lock()
#: The workers of a session share their warm interpreters.
_SESSION = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex


def _warm(imports: str, seed: str = _HASH_SEED) -> str:
    """Where the warm interpreter listens that has imported these as well. The first test of all workers that needs it starts it; it ends
    when the last of the workers has ended that have asked for it here."""
    key = imports, seed
    with _starting:
        if key not in _warmed:
            state = _SESSION, imports, seed, [_VARIABLES.get(name) for name in _AT_START]
            name = hashlib.sha256(repr(state).encode()).hexdigest()[:32]
            address = os.path.join(tempfile.gettempdir(), f"tracekit-warm-{name}")
            while not _held(address):
                _start(address, imports, {**_VARIABLES, "PYTHONHASHSEED": seed})
            _warmed[key] = address
        return _warmed[key]


def _held(address: str) -> bool:
    """Whether a warm interpreter listens there, which then does not end before this process."""
    hold = _connected(address)
    with suppress(OSError):
        hold.sendall(_HOLD)
        if hold.recv(1):
            _HELD.append(hold)
            return True
    hold.close()
    return False


def _start(address: str, imports: str, variables: Mapping[str, str]) -> None:
    """Start a warm interpreter that listens there, if nobody else has just done so."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        made = os.path.join(directory, "socket")
        listener.bind(made)
        listener.listen(1000)
        try:
            os.link(made, address)
        except FileExistsError:
            return
        _STARTED.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.processes", str(listener.fileno()), address, imports],
                cwd=ROOT,
                env=variables,
                pass_fds=[listener.fileno()],
                # Pipes, as the programs have: an interpreter looks at its standard streams once, when it starts.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        connection.connect(address)
    return connection


class Fork:
    """A program forked from a warm interpreter."""

    def __init__(self, warm: str, request: Mapping[str, Any], files: Sequence[int]) -> None:
        with _connected(warm) as connection:
            socket.send_fds(connection, [b"x"], files)
            connection.sendall(marshal.dumps(request))
            self._talk = connection.makefile("r")
        self.pid = int(self._talk.readline())
        self._status: int | None = None

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self._talk.close()

    def kill(self) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its status, as that of a ``subprocess.Popen``."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(int(self._talk.readline()))
        return self._status


def _communicated(
    warm: str, request: Mapping[str, Any], input: bytes, timeout: float
) -> subprocess.CompletedProcess[str]:
    pipes = [os.pipe() for _ in range(3)]
    (stdin, feed), (out, stdout), (err, stderr) = pipes
    with Fork(warm, request, (stdin, stdout, stderr)) as fork:
        for end in (stdin, stdout, stderr):
            os.close(end)
        try:
            said = _communicate(input, feed, out, err, timeout)
        except BaseException:  # a test that takes too long among them
            fork.kill()
            raise
        status = fork.wait()
    return subprocess.CompletedProcess([sys.executable, *request["arguments"]], status, *said)


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


def _serve(listener: socket.socket, address: str) -> dict[str, Any]:
    """Fork for each request until nobody holds this interpreter any longer; returns the request in each fork.

    Who goes away before the program has ended does not want it any longer: it is killed.
    """
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    held = set[socket.socket]()
    selector = selectors.DefaultSelector()
    for file in (listener, woken):
        selector.register(file, selectors.EVENT_READ)
    while True:
        ready = [key for key, _ in selector.select()]
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        for key in ready:
            if key.fileobj is listener:
                talk, _ = listener.accept()
                said, files, _, _ = socket.recv_fds(talk, 1, _MOST_FILES)
                if said == _HOLD:
                    held.add(talk)
                    selector.register(talk, selectors.EVENT_READ)
                    talk.sendall(_HOLD)
                    continue
            elif key.fileobj in held:
                selector.unregister(key.fileobj)
                held.remove(key.fileobj)  # type: ignore[arg-type]
                if not held:
                    os.unlink(address)
                    sys.exit()
                continue
            else:
                if key.data in running:
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
                continue
            try:
                with talk.makefile("rb") as stream:
                    request: dict[str, Any] = marshal.load(stream)
            except EOFError:  # a test was ended while it asked
                for left in (talk.detach(), *files):
                    os.close(left)
                continue
            pid = os.fork()
            if pid == 0:
                selector.close()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, talk, *running.values(), *held):
                    other.close()
                os.close(woken)
                os.close(waker)
                _place(files, request.get("numbers", range(3)))
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
    if "TRACEKIT_JOIN" in variables:
        sys.meta_path.insert(0, _Joining())


class _Joining:
    """Finds tracekit when the program imports it, which then does what it does at its import: it joins the run of the ticket."""

    def __init__(self) -> None:
        self._module = sys.modules.pop("tracekit")
        self._spec = self._module.__spec__

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != "tracekit":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        from tracekit._runs.segments import join

        join()


def _unbuffered(stream: Any) -> io.TextIOWrapper:
    """The stream as ``python -u`` makes it."""
    stream.flush()
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    raw.name = stream.name
    made = io.TextIOWrapper(raw, stream.encoding, stream.errors, "\n", write_through=True)
    made.mode = "w"  # type: ignore[misc]
    return made


def _run(arguments: list[str]) -> None:
    main = sys.modules["__main__"]
    if arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings._processoptions([arguments[1]])  # type: ignore[attr-defined]  # what the interpreter does with it
        arguments = arguments[2:]
    elif arguments[0] == "-u":
        sys.stdout, sys.stderr = map(_unbuffered, (sys.stdout, sys.stderr))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        library = ctypes.CDLL(None)
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, 2, 0)  # _IONBF
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path.insert(0, os.getcwd())
        if not hasattr(sys.modules.get(arguments[1]), "__path__"):
            sys.modules.pop(arguments[1], None)  # it is run, as if it had not been imported
        really = runpy._get_module_details  # type: ignore[attr-defined]

        def details(name: str, *error: Any) -> Any:
            runpy._get_module_details = really  # type: ignore[attr-defined]
            return _LAUNCH[0] if name == _LAUNCHER else really(name, *error)

        runpy._get_module_details = details  # type: ignore[attr-defined]
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what `python -m` does
        return
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        code = compile(arguments[1], "<string>", "exec", dont_inherit=True)
        if sys.version_info >= (3, 13):  # an exception there shows the lines
            lines = arguments[1].splitlines(keepends=True)
            linecache.cache["<string>"] = len(arguments[1]), None, lines, "<string>"
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
    request, ask = _with_nursery(request)
    os.chdir(request["cwd"])
    arguments = list(request["arguments"])
    variables = {os.fsdecode(name): os.fsdecode(value) for name, value in request["variables"].items()}
    really = os.execve
    own = _VARIABLES["PYTHONHASHSEED"]

    def execve(path: str, argv: list[str], env: Mapping[str, str]) -> NoReturn:
        if argv[1:] == ["-m", _LAUNCHER] and env.get("PYTHONHASHSEED", own) == own:
            raise _Replaced(argv[1:], dict(env))
        really(path, argv, env)

    os.execve = execve  # type: ignore[assignment]
    if addresses := request.get("addresses"):
        _fork_instead(addresses, ask)
    try:
        _become(arguments, variables)
        try:
            _run(arguments)
        except _Replaced as other:
            os.execve = really
            again = other
        else:
            _STATUS.append(0)
            return
        atexit._clear()
        atexit.register(_spare)
        _become(again.arguments, again.variables)
        _run(again.arguments)
        _STATUS.append(0)
    except SystemExit as error:
        if error.code is None or (type(error.code) is int and 0 <= error.code < 256):
            _STATUS.append(error.code or 0)
        if _KEPT:  # by a program that has called the exit handlers itself
            _end()
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        _STATUS.append(1)
        sys.exit(1)


def _fork_instead(
    addresses: Mapping[str, str], ask: Callable[..., int | None] | None = None, *, children: bool = False
) -> None:
    """Let what this process starts with our own interpreter be forked: its own children by ``ask``, others from the warm interpreter at the
    address of their hash seed; with ``children`` what those start in turn, too."""
    really = subprocess._fork_exec  # type: ignore[attr-defined]
    ours: Any = os.environ

    def fork_exec(
        args: Sequence[Any], executables: Any, close_fds: bool, keep: Any, cwd: Any, env: Any, *rest: Any
    ) -> Any:
        first, *arguments = map(os.fsdecode, args)
        if first == sys.executable:
            lines = [b"%b=%b" % one for one in ours._data.items()] if env is None else env
            variables = dict(os.fsdecode(line).split("=", 1) for line in lines)
            seed = variables.get("PYTHONHASHSEED", _HASH_SEED)
            if seed in addresses and _usual(arguments, variables, seed):
                if ask is None or seed != _VARIABLES["PYTHONHASHSEED"]:
                    args = [*_forked(addresses[seed], seed if children else ""), *arguments]
                elif (pid := ask(arguments, variables, close_fds, keep, cwd, *rest)) is not None:
                    return pid
        return really(args, executables, close_fds, keep, cwd, env, *rest)

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[attr-defined]  # the other way, from Python 3.13 on
    if ask is not None:
        _posixsubprocess.fork_exec = fork_exec  # of multiprocessing


# -- the children of a program ----------------------------------------------------------------------------------------------
#
# A program that is recorded is no longer as the warm interpreter was; but a copy of that, forked before the program began, is. It
# is a child of the program, and what it forks with ``CLONE_PARENT`` is one as well. What those start themselves is not forked.


def _with_nursery(request: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., int | None] | None]:
    """The program to run in this process, and with what it asks for its children."""
    if not request.get("nursery") or sys.platform != "linux":
        return request, None
    asking, asked = _socket.socketpair()
    if os.fork() == 0:
        asking.close()
        return _nurse(asked), None
    asked.close()
    high = _socket.socket(fileno=fcntl.fcntl(asking.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH))
    high.settimeout(60)  # a replay takes a thread that waits without a limit for one that nobody will wake
    asking.close()
    return request, _asking(high)


def _asking(talk: _socket.socket) -> Callable[..., int | None]:
    """Fork a child of this process as ``subprocess._fork_exec`` would; ``None`` if only that can do it."""
    getcwd, getpid, one_at_a_time, program = os.getcwd, os.getpid, threading.Lock(), os.getpid()

    def ask(
        arguments: list[str], variables: dict[str, str], close_fds: bool, keep: Sequence[int], cwd: Any, *rest: Any
    ) -> int | None:
        stdin, _, _, stdout, _, stderr, _, gone, _, session, group, *unusual = rest[:16]
        if getpid() != program or not close_fds or [*unusual] != [None, None, None, -1, None]:
            return None
        numbers = [0, 1, 2, *(number for number in keep if number != gone)]
        files = [*(own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))), *numbers[3:]]
        told = {
            "arguments": arguments, "variables": variables, "numbers": numbers, "session": session, "group": group,
            "cwd": os.path.join(getcwd(), os.fsdecode(cwd or "")), "mask": [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))],
            "ignored": [int(one) for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN],
        }  # fmt: skip
        body = marshal.dumps(told)
        with one_at_a_time:
            try:
                packed = b"".join(file.to_bytes(4, sys.byteorder) for file in files)
                talk.sendmsg([len(body).to_bytes(8)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)])
                talk.sendall(body)
                pid = int.from_bytes(talk.recv(8))
            except OSError:
                return None
        return pid or None

    return ask


def _nurse(talk: _socket.socket) -> dict[str, Any]:
    """Fork a child of this process's parent for each that it asks for; returns the request in each fork."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)  # who reads what the program writes does not wait for us
    os.close(nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # the program's
    while True:
        size, control, _, _ = talk.recvmsg(8, _socket.CMSG_SPACE(4 * _MOST_FILES))
        if not size:
            os._exit(0)
        body = b""
        while len(body) < int.from_bytes(size):
            body += talk.recv(int.from_bytes(size) - len(body))
        files = [
            int.from_bytes(data[at : at + 4], sys.byteorder) for _, _, data in control for at in range(0, len(data), 4)
        ]
        pid = _fork_sibling()
        if pid == 0:
            talk.close()
            return _born(marshal.loads(body), files)
        for file in files:
            os.close(file)
        talk.sendall(max(pid, 0).to_bytes(8))


def _born(told: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
    """The program that was asked for, in the state in which ``exec`` would begin with these files."""
    _place(files, told["numbers"])
    if told["session"]:
        os.setsid()
    if told["group"] >= 0:
        os.setpgid(0, told["group"])
    for number in told["ignored"]:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, told["mask"])
    return told


def _place(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give these files these numbers."""
    above = max(_HIGH, *numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _fork_sibling() -> int:
    """``os.fork()``, but the new process is a child of this one's parent; -1 where the kernel does not do that."""
    own = ctypes.pythonapi
    address = ctypes.c_uint64()
    settid = _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    flags = _CLONE_PARENT
    if own.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address)) == 0:  # where C remembers the number of the thread
        flags |= settid
    arguments = (ctypes.c_uint64 * 8)(flags, 0, address.value)
    own.PyOS_BeforeFork()
    pid = own.syscall(_SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid == 0:
        own.PyOS_AfterFork_Child()
    else:
        own.PyOS_AfterFork_Parent()
    return int(pid)


#: From ``linux/sched.h``, ``linux/prctl.h`` and ``asm-generic/unistd.h``.
_CLONE_PARENT = 0x8000
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000
_PR_GET_TID_ADDRESS = 40
_SYS_CLONE3 = 435
#: Above the files that programs have.
_HIGH = 200
#: That are handed on at once: the kernel's limit.
_MOST_FILES = 253


def _spare() -> None:
    """Leave what was there before the program as it is, as the last thing before the interpreter takes apart all it finds.

    To take a thousand modules apart that nobody has changed takes longer than most programs, and each page of memory that is written
    to has to be copied first. What the program has made and imported goes as ever: its own modules, and all that lives in them.
    """
    imported = []
    for name in reversed(sys.modules):
        if name == _HERE:
            break
        if _SPARED.get(name) is not sys.modules[name]:
            imported.append(name)
    names = ["sys", "builtins", "__main__", *reversed(imported)]
    modules = {name: sys.modules.pop(name) for name in names}
    _exchange(sys.modules, modules)
    _keep(modules)
    _KEPT.append(modules)
    _end()


def _end() -> None:
    """End the process as :class:`_End` does, if its status is known."""
    if _STATUS:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            sys._no_more = _End(_STATUS[0])  # type: ignore[attr-defined]


class _End:
    """The last that there is in ``sys``. When it goes, nothing is left of the program, and the process ends as it would at last, with what
    C has to do at its end, without taking apart the interpreter, which takes longer still."""

    def __init__(self, status: int) -> None:
        self._exit, self._status = ctypes.PyDLL(None).exit, status
        self._flush = sys.stdout.flush

    def __del__(self) -> None:
        with suppress(Exception):  # what was printed while the program was taken apart
            self._flush()
        self._exit(self._status)


def _exchange(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    """Give each of two dictionaries what the other one holds, and touch none of it."""
    begin, size = object.__basicsize__, dict.__basicsize__ - object.__basicsize__
    kept = ctypes.string_at(id(one) + begin, size)
    ctypes.memmove(id(one) + begin, id(other) + begin, size)
    ctypes.memmove(id(other) + begin, kept, size)


def _keep(thing: object) -> None:
    """Nobody takes it apart."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _import(more: str) -> None:
    """Import what the programs will: all of tracekit but what is run as a program itself, and ``more``."""
    gc.disable()  # until all is imported: next to nothing of it is garbage
    atexit.register(_spare)
    _leave_openssl_as_it_is()
    import tracekit

    for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
        if not module.name.startswith(("tracekit.cli.demo", "tracekit.__main__", "tracekit.testing")):
            __import__(module.name)
    for name in filter(None, [*_PRINTING, *more.split(",")]):
        importlib.import_module(name)
    _make_lazy_things()
    sys.modules[_HERE] = ModuleType(_HERE)
    _SPARED.update(
        {name: module for name, module in sys.modules.items() if name not in ("__main__", "builtins", "sys")}
    )
    _keep(_SPARED)
    gc.collect()
    gc.freeze()
    gc.enable()
    _use_large_pages()


def _leave_openssl_as_it_is() -> None:
    """Keep OpenSSL from freeing its tables when a fork ends, which would copy hundreds of pages. To be called before its first use."""
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(ctypes.util.find_library("crypto"))
        library.OPENSSL_init_crypto(ctypes.c_uint64(_OPENSSL_INIT_NO_ATEXIT), None)


def _use_large_pages() -> None:
    """Move the memory of this process to pages of 2 MiB, if the kernel can do this: a fork then copies far fewer entries of the page
    table. If the fork writes to such a page, the kernel splits it for the fork alone."""
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        with open("/proc/self/maps") as file:
            areas = [line.split() for line in file]
        for area, access, _, _, inode, *_ in areas:
            first, last = (int(address, 16) / _LARGE_PAGE for address in area.split("-"))
            if access == "rw-p" and inode == "0":
                for page in range(math.ceil(first), math.floor(last)):
                    madvise(page * _LARGE_PAGE, _LARGE_PAGE, _MADV_COLLAPSE)


#: From ``openssl/crypto.h`` and ``linux/mman.h``.
_OPENSSL_INIT_NO_ATEXIT = 0x80000
_MADV_COLLAPSE = 25
_LARGE_PAGE = 2 << 20


def _make_lazy_things() -> None:
    """What tracekit and the standard library make when it is first used, and what is the same whoever uses it: names, regular expressions,
    the modules of integrations. No run is made: the first of a program is the first of its process."""
    from tracekit import _sources
    from tracekit._capture import clock, inputs, plugins, randomness
    from tracekit._lazy import _Expression
    from tracekit._runtime.redaction import Redactor
    from tracekit._runtime.secrets import FORMATS

    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "tracekit":
            for attribute in dir(module):
                getattr(module, attribute, None)
    for beginning in (
        *FORMATS,
        "password=",
        "Authorization: Bearer ",
        "--key ",
        "https://a:",
        "-----BEGIN PRIVATE KEY-----",
    ):
        text = f"{beginning}aB3dE5gH7jK9mN1pQ3sT5vW7yZ9@"
        Redactor().redact([text, text.encode()])
    for one in gc.get_objects():
        if type(one) is _Expression:
            assert one.pattern
    inputs._holds_credentials("a.txt")
    for module in [*sys.modules.values()]:  # whose a file is, says its path alone
        if isinstance(file := getattr(module, "__file__", None), str):
            _sources.is_user_code(file)
    inspect.signature(len)
    clock._core_patches()  # of C functions, in place: a program has not changed these
    randomness._core_patches()
    plugins.discover()
    plugins.discover.cache_clear()  # it says what the path of a program has
    _remember_packages()
    _LAUNCH.append(runpy._get_module_details(_LAUNCHER))  # type: ignore[attr-defined]


def _remember_packages() -> None:
    """Read once what the packages announce that every program finds; whoever installs one changes its directory. The scratch layer of a
    replay gives a directory another number, not another name."""
    from tracekit import _announced

    read, fstat, readlink = _announced._packages, os.fstat, os.readlink
    remembered = {}

    def key(directory: int) -> tuple[str, int]:
        return readlink(f"/proc/self/fd/{directory}"), fstat(directory).st_mtime_ns

    def packages(directory: int) -> list[tuple[str, str, bytes]]:
        try:
            found = remembered.get(key(directory))
        except OSError:  # a system without such names
            found = None
        return read(directory) if found is None else found

    for folder in filter(os.path.isdir, _PATH):
        directory = os.open(folder, os.O_RDONLY)
        with suppress(OSError):
            remembered[key(directory)] = read(directory)
        os.close(directory)
    _announced._packages = packages


#: What the command line imports when it has something to print.
_PRINTING = ("click._textwrap", "encodings.ascii", "rich._emoji_codes", "rich.console", "rich.table", "rich.text")
#: How a program is recorded or replayed, and its code.
_LAUNCHER = "tracekit.cli.launch"
_LAUNCH: list[Any] = []
_PATH: list[str] = []
#: What a process says that wants a warm interpreter to stay, and what it is answered.
_HOLD = b"h"
_HELD: list[socket.socket] = []
_STARTED: list[subprocess.Popen[bytes]] = []
#: The modules that each program finds imported.
_SPARED: dict[str, ModuleType] = {}
#: The name after which the modules come that the program has imported.
_HERE = "tests.support.processes.begin"
_MAINS: list[ModuleType] = []
#: With which status the program has ended, if it has.
_STATUS: list[int] = []
#: The modules that are left as they are, once the program has ended.
_KEPT: list[dict[str, ModuleType]] = []

if __name__ == "__main__":
    _PATH[:] = sys.path[1:]
    _import(sys.argv[3])
    _program(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))


def look_rarely(seconds: float) -> None:
    """Let a replayed process look that rarely whether its children have ended, as on a machine too busy to wake it."""
    from tracekit._runs import replayed_children

    vars(replayed_children)["_POLL_S"] = seconds
