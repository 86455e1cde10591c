"""The guard: what it refuses, what it lets through, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import copy
import importlib
import multiprocessing
import multiprocessing.connection
import os
import platform
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracekit import decision, record, replay
from tracekit._capture import guard as guard_module
from tracekit._capture.guard import Guard, allow
from tracekit._runtime.lane import Lane
from tracekit.errors import LiveCallBlockedError, RunStateError
from tracekit.integration import Scope, current

HERE = Path(__file__).name


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """A listening socket on loopback that was there before the guard."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


@pytest.fixture
def connected(server: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(server) as sock:
        yield sock


def _connect() -> object:
    with socket.socket() as sock:
        return sock.connect(("127.0.0.1", 9))


def _connect_ex() -> object:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", 9))


def _connect_below() -> object:
    import _socket

    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        return sock.connect(("127.0.0.1", 9))
    finally:
        sock.close()


def _unix() -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect("/nowhere.sock")


def _sendto() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"x", ("127.0.0.1", 9))


def _sendmsg() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendmsg([b"x"], [], 0, ("127.0.0.1", 9))


def _listen() -> object:
    with socket.socket() as sock:
        return sock.listen()


def _executor_lookup() -> object:
    async def look() -> object:
        return await asyncio.get_running_loop().run_in_executor(None, socket.getaddrinfo, "example.test", 80)

    return asyncio.run(look())


def _process(method: str) -> Callable[[], object]:
    def start() -> object:
        process = multiprocessing.get_context(method).Process(target=print)
        return process.start()

    return start


LIVE: dict[str, tuple[str, Callable[[], object]]] = {
    "connect": ("connect", _connect),
    "connect_ex": ("connect", _connect_ex),
    "connect of the C type": ("connect", _connect_below),
    "connect to a Unix socket": ("connect", _unix),
    "create_connection": ("connect", lambda: socket.create_connection(("127.0.0.1", 9))),
    "sendto": ("send", _sendto),
    "sendmsg": ("send", _sendmsg),
    "bind": ("listen", lambda: socket.create_server(("127.0.0.1", 0))),
    "listen": ("listen", _listen),
    "getaddrinfo": ("lookup", lambda: socket.getaddrinfo("example.test", 80)),
    "gethostbyname": ("lookup", lambda: socket.gethostbyname("example.test")),
    "gethostbyname_ex": ("lookup", lambda: socket.gethostbyname_ex("example.test")),
    "gethostbyaddr": ("lookup", lambda: socket.gethostbyaddr("127.0.0.1")),
    "getnameinfo": ("lookup", lambda: socket.getnameinfo(("127.0.0.1", 9), 0)),
    "getaddrinfo in an executor": ("lookup", _executor_lookup),
    "asyncio connection": ("connect", lambda: asyncio.run(asyncio.open_connection("127.0.0.1", 9))),
    "asyncio connection by name": ("lookup", lambda: asyncio.run(asyncio.open_connection("example.test", 9))),
    "asyncio server": ("listen", lambda: asyncio.run(asyncio.start_server(print, "127.0.0.1", 0))),
    "asyncio subprocess": ("process", lambda: asyncio.run(asyncio.create_subprocess_exec("true"))),
    "subprocess": ("process", lambda: subprocess.run(["true"], check=False)),
    "os.system": ("process", lambda: os.system("true")),
    "os.popen": ("process", lambda: os.popen("true")),
    "os.posix_spawn": ("process", lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "os.execv": ("process", lambda: os.execv("/bin/true", ["true"])),
    "os.spawnv": ("process", lambda: os.spawnv(os.P_WAIT, "/bin/true", ["true"])),
    "os.fork": ("process", lambda: os.fork()),
    "os.forkpty": ("process", lambda: os.forkpty()),
    "multiprocessing fork": ("process", _process("fork")),
    "multiprocessing spawn": ("process", _process("spawn")),
}


@pytest.mark.parametrize("name", LIVE)
def test_live_operation_is_refused(name: str) -> None:
    """Every way to reach outside raises, names the caller's file, and is told to the session first."""
    kind, operation = LIVE[name]
    told: list[LiveCallBlockedError] = []
    with Guard(failed=told.append), pytest.raises(LiveCallBlockedError) as caught:
        operation()
    error = caught.value
    assert told[0].what == error.what
    assert error.kind == kind
    assert error.next_action
    if name != "getaddrinfo in an executor":  # its thread has no frame of the caller's
        assert HERE in (error.location or "")
    assert error.operation in str(error)


@pytest.mark.parametrize("name", ["connect", "getaddrinfo", "subprocess", "bind"])
def test_broad_except_does_not_swallow(name: str) -> None:
    """A refusal gets through ``except Exception``, in a thread as well."""
    raised: list[BaseException] = []

    def agent() -> None:
        try:
            try:
                LIVE[name][1]()
            except Exception:
                pytest.fail("swallowed")
        except BaseException as error:
            raised.append(error)

    with Guard():
        thread = threading.Thread(target=agent)
        thread.start()
        thread.join()
    assert isinstance(raised[0], LiveCallBlockedError)


@pytest.mark.parametrize("module", ["asyncio", "uvloop"])
def test_loops(module: str) -> None:
    """Under either event loop connecting, resolving, serving and spawning are refused."""
    run: Callable[[Any], Any] = asyncio.run
    if module == "uvloop":
        import uvloop

        run = uvloop.run

    async def endpoint() -> object:
        loop = asyncio.get_running_loop()
        return await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("127.0.0.1", 9))

    attempts: list[Callable[[], Any]] = [
        lambda: asyncio.open_connection("127.0.0.1", 9),
        lambda: asyncio.open_connection("example.test", 9),
        lambda: asyncio.open_unix_connection("/nowhere.sock"),
        lambda: asyncio.start_server(print, "127.0.0.1", 0),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.create_subprocess_shell("true"),
        endpoint,
    ]
    with Guard():
        for attempt in attempts:

            async def main(attempt: Callable[[], Any] = attempt) -> None:
                await attempt()

            with pytest.raises(LiveCallBlockedError, match="the replay was about to"):
                run(main())


def test_open_connection_is_no_way_out(connected: socket.socket) -> None:
    """A connection that was open before the replay can't be sent on; closing it is no call."""
    with Guard():
        for send in (connected.send, connected.sendall):
            with pytest.raises(LiveCallBlockedError, match="send to 127"):
                send(b"x")
        with pytest.raises(LiveCallBlockedError):
            connected.sendmsg([b"x"])
    connected.sendall(b"x")


def test_the_process_still_works_inside() -> None:
    """Socket pairs, event loops, threads, the host's own name and digits as addresses are not live calls."""
    with Guard(dry_run=True):
        left, right = socket.socketpair()
        with left, right:
            left.sendall(b"x")
            assert right.recv(1) == b"x"
        assert asyncio.run(asyncio.to_thread(lambda: 7)) == 7
        assert socket.gethostname()
        assert socket.getaddrinfo("127.0.0.1", 80)
        assert socket.getaddrinfo(None, 80)
        assert platform.platform()
        assert platform.uname().processor is not None
        assert platform.architecture()[0]


def test_allowed_hosts(server: tuple[str, int]) -> None:
    """A host in ``allow_hosts`` is reached, by digits or by name, on its port where it has one; others are not."""
    host, port = server
    for entries in (["127.0.0.1"], [f"127.0.0.1:{port}"], ["localhost"], [f"localhost:{port}"], "127.0.0.1"):
        with Guard(allow_hosts=entries):
            socket.create_connection((host, port)).close()
    with Guard(allow_hosts=[f"localhost:{port}"]):
        socket.create_connection(("localhost", port)).close()

        async def connect() -> None:
            _, writer = await asyncio.open_connection("localhost", port)
            writer.write(b"x")
            await writer.drain()
            writer.close()

        asyncio.run(connect())
        with pytest.raises(LiveCallBlockedError):
            socket.create_connection(("127.0.0.1", 9))
        with pytest.raises(LiveCallBlockedError):
            socket.create_connection(("example.test", port))


def test_looked_up_addresses_are_allowed(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses that looking up an allowed name gave are allowed thereby, however it was looked up."""
    import _socket

    def resolver(host: Any, port: Any, *rest: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port or 0)))]

    monkeypatch.setattr(_socket, "getaddrinfo", resolver)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.0.1")
    with Guard(allow_hosts=[f"db.test:{server[1]}"]):
        with pytest.raises(LiveCallBlockedError), socket.socket() as sock:
            sock.connect(server)
        socket.create_connection(("db.test", server[1])).close()
        with pytest.raises(LiveCallBlockedError), socket.socket() as sock:
            sock.connect(("127.0.0.1", 9))
    with Guard(allow_hosts=["db.test"]):
        address = socket.gethostbyname("db.test")
        socket.create_connection((address, server[1])).close()


def test_allow_is_carried_by_the_context(server: tuple[str, int]) -> None:
    """What tracekit allows itself holds in the tasks it starts and for their look-ups, and ends with the block."""

    async def connect() -> None:
        _, writer = await asyncio.open_connection("localhost", server[1])
        writer.close()

    with Guard(dry_run=True):
        with allow():
            asyncio.run(connect())
            assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
        with pytest.raises(LiveCallBlockedError):
            asyncio.run(connect())


def _scope(*, recording: bool) -> Scope:
    session: Any = SimpleNamespace(
        run_id="run-1", recording=recording, reach=None, state=SimpleNamespace(partial=False)
    )
    return Scope(session, Lane("", 1, None, id=0), 0)


def test_context_guard_leaves_live_traffic_alone(server: tuple[str, int]) -> None:
    """``guard="context"`` refuses only where the context belongs to a replay; all else passes."""
    with Guard("context"):
        socket.create_connection(server).close()
        for recording in (True, False):
            token = current.set(_scope(recording=recording))
            try:
                if recording:
                    socket.create_connection(server).close()
                    continue
                with pytest.raises(LiveCallBlockedError) as caught:
                    socket.create_connection(server)
                assert caught.value.run_id == "run-1"
                with pytest.raises(LiveCallBlockedError):
                    asyncio.run(asyncio.open_connection("localhost", server[1]))
            finally:
                current.reset(token)


def test_off_passes_everything_but_a_dry_run(server: tuple[str, int], tmp_path: Path) -> None:
    """``guard="off"`` lets live calls through; a dry run's files stay closed all the same."""
    with Guard("off"):
        socket.create_connection(server).close()
        (tmp_path / "a").write_text("x")
    with Guard("off", dry_run=True):
        socket.create_connection(server).close()
        with pytest.raises(LiveCallBlockedError):
            (tmp_path / "b").write_text("x")
    with pytest.raises(RunStateError):
        Guard("everything")  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda at: (at / "old").write_text("y"),
    "create": lambda at: (at / "new").open("x"),
    "append": lambda at: (at / "old").open("a"),
    "update": lambda at: (at / "old").open("r+"),
    "os.open": lambda at: os.open(at / "old", os.O_RDWR),
    "remove": lambda at: os.remove(at / "old"),
    "rename": lambda at: os.rename(at / "old", at / "new"),
    "replace": lambda at: os.replace(at / "old", at / "new"),
    "mkdir": lambda at: os.mkdir(at / "new"),
    "rmdir": lambda at: os.rmdir(at / "dir"),
    "link": lambda at: os.link(at / "old", at / "new"),
    "symlink": lambda at: os.symlink("/dev/null", at / "new"),
    "truncate": lambda at: os.truncate(at / "old", 0),
    "chmod": lambda at: os.chmod(at / "old", 0o600),
    "utime": lambda at: os.utime(at / "old", (1, 1)),
    "mkfifo": lambda at: os.mkfifo(at / "new"),
    "mknod": lambda at: os.mknod(at / "new"),
    "rmtree": lambda at: __import__("shutil").rmtree(at / "dir"),
    "copy": lambda at: __import__("shutil").copy(at / "old", at / "new"),
    "mkstemp": lambda at: tempfile.mkstemp(dir=at),
    "mkdtemp": lambda at: tempfile.mkdtemp(dir=at),
    "named temporary file": lambda at: tempfile.NamedTemporaryFile(dir=at),
    "sqlite": lambda at: sqlite3.connect(at / "new"),
    "dbm": lambda at: __import__("dbm.dumb").dumb.open(str(at / "new"), "c"),
}


def _snapshot(at: Path) -> dict[str, tuple[int, int, int, bytes]]:
    def facts(path: Path) -> tuple[int, int, int, bytes]:
        stat = path.lstat()
        return stat.st_mode, stat.st_mtime_ns, stat.st_nlink, path.read_bytes() if path.is_file() else b""

    return {str(path): facts(path) for path in [at, *sorted(at.rglob("*"))]}


@pytest.mark.parametrize("name", CHANGES)
def test_dry_run_changes_no_file(name: str, tmp_path: Path) -> None:
    """In a dry run a write, creation or deletion raises, and the directory is as it was."""
    (tmp_path / "old").write_text("x")
    (tmp_path / "dir").mkdir()
    before = _snapshot(tmp_path)
    with Guard(dry_run=True), pytest.raises(LiveCallBlockedError) as caught:
        CHANGES[name](tmp_path)
    assert caught.value.kind == "file"
    assert HERE in (caught.value.location or "")
    assert _snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "device", ["ttyUSB0", "ttyS0", "lp0", "usb/lp0", "sda", "mem", "nonesuch", "pts/../sda", "fd/../lp0"]
)
def test_a_device_is_no_place_where_nothing_is_kept(device: str) -> None:
    """A printer, a serial line, a disk: only devices that are known to store nothing are written to in a dry run."""
    with Guard(dry_run=True), pytest.raises(LiveCallBlockedError, match="change a file"):
        os.open(f"/dev/{device}", os.O_WRONLY)


def test_a_file_from_the_descriptor_of_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay overwrites no file that was there before, also if its name is relative to a directory that is open."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    file = tmp_path / "settings"
    file.write_text("old")

    def program() -> None:
        decision("begin", input=1, output=2)
        directory = os.open(tmp_path, os.O_RDONLY)
        try:
            opened = os.open("settings", os.O_WRONLY | os.O_TRUNC, dir_fd=directory)
            os.write(opened, b"new")
            os.close(opened)
        finally:
            os.close(directory)

    monkeypatch.setattr(guard_module, "_SHARED", ())  # where tests have their files
    with record("job") as run:
        program()
    assert file.read_text() == "new"
    file.write_text("mine")
    with pytest.raises(LiveCallBlockedError, match="settings"), replay(run):
        program()
    assert file.read_text() == "mine"


def test_dry_run_still_reads_and_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Reading, the null device, descriptors that are open, standard output and memory stay usable in a dry run."""
    (tmp_path / "old").write_text("x")
    with sqlite3.connect(tmp_path / "data.db") as database:
        database.execute("create table t (c)")
    database.close()
    with Guard(dry_run=True):
        assert (tmp_path / "old").read_text() == "x"
        with open(os.devnull, "w") as sink:
            sink.write("x")
        with open(1, "w", closefd=False) as out:
            out.write("printed")
        with tempfile.TemporaryFile() as unnamed:
            unnamed.write(b"x")
        sqlite3.connect(":memory:").close()
        sqlite3.connect(f"file:{tmp_path}/data.db?mode=ro", uri=True).close()
    assert capfd.readouterr().out == "printed"


def test_dry_run_imports_without_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports work in a dry run and leave no bytecode behind; the user's own setting comes back after it."""
    (tmp_path / "a_fresh_module.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with Guard(dry_run=True), Guard(dry_run=True):
        assert __import__("a_fresh_module").value == 3
    assert sys.dont_write_bytecode is False
    assert not (tmp_path / "__pycache__").exists()
    del sys.modules["a_fresh_module"]


def _patched() -> list[dict[str, object]]:
    import _posixsubprocess
    import _socket
    from asyncio.base_events import BaseEventLoop

    import uvloop

    owners: list[Any] = [
        socket.socket,
        ssl.SSLSocket,
        _socket,
        socket,
        BaseEventLoop,
        _posixsubprocess,
        os,
        uvloop.Loop,
    ]
    return [dict(vars(owner)) for owner in owners]


def test_engaging_and_releasing_is_the_identity(server: tuple[str, int]) -> None:
    """Guards nest, overlap in any order, and the last release leaves everything as it was."""
    before = _patched()
    first, second = Guard(), Guard(dry_run=True)
    first.engage()
    first.engage()
    second.engage()
    assert _patched() != before
    for guard in (first, second, first):
        with pytest.raises(LiveCallBlockedError):
            socket.create_connection(server)
        guard.release()
    assert _patched() == before
    assert not guard_module._engaged.events
    socket.create_connection(server).close()
    with pytest.raises(RunStateError):
        first.release()


def test_all_engaged_guards_must_agree(server: tuple[str, int]) -> None:
    """A host that one replay allows is still refused by another that does not."""
    with Guard(allow_hosts=["127.0.0.1"]):
        socket.create_connection(server).close()
        with Guard(), pytest.raises(LiveCallBlockedError):
            socket.create_connection(server)
        socket.create_connection(server).close()


def test_failure_in_the_callback_does_not_open_the_guard() -> None:
    """A ``failed`` that raises changes nothing: the call is refused all the same."""

    def failed(error: LiveCallBlockedError) -> None:
        raise ValueError(error)

    with Guard(failed=failed), pytest.raises(LiveCallBlockedError):
        _connect()


def test_secrets_in_arguments_are_not_told() -> None:
    """The message names the program, never its arguments."""
    with Guard():
        for start in (lambda: subprocess.run(["curl", "hunter2"], check=False), lambda: os.system("curl hunter2")):
            with pytest.raises(LiveCallBlockedError) as caught:
                start()
            assert "curl" in str(caught.value)
            assert "hunter2" not in str(caught.value)


def test_debugger_talks_to_its_front_end(server: tuple[str, int]) -> None:
    """A debugger's own connection passes; what the program asks for under a debugger does not."""
    debugger: dict[str, Any] = {"__name__": "pydevd"}
    source = (
        "import socket\ndef talk(address): socket.create_connection(address).close()\ndef run(call, *args): call(*args)"
    )
    exec(compile(source, "/x/site-packages/pydevd.py", "exec"), debugger)
    with Guard():
        debugger["talk"](server)
        with pytest.raises(LiveCallBlockedError):
            debugger["run"](_connect)


def test_thread_of_a_package_is_named() -> None:
    """Where no frame is the user's own, the message names the package's file and the thread."""
    package: dict[str, Any] = {"__name__": "exporter"}
    path = "/x/site-packages/exporter.py"
    source = (
        "import socket\n"
        "def export():\n"
        "    try: socket.create_connection(('127.0.0.1', 9))\n"
        "    except BaseException: pass\n"
    )
    exec(compile(source, path, "exec"), package)
    told: list[LiveCallBlockedError] = []

    with Guard(failed=told.append):
        thread = threading.Thread(target=package["export"], name="export-1")
        thread.start()
        thread.join()
    assert told[0].run_id is None
    assert "export-1" in told[0].what
    assert told[0].location == f"{path}:3"
    assert copy.copy(told[0]).target == "127.0.0.1:9"


def test_names_from_before_the_run_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that holds a function by a name of its own from before the run makes calls that are in no trace: the run names it."""
    (tmp_path / "early.py").write_text("from os import sep, listdir, system as shell\n")
    (tmp_path / "late.py").write_text("from os import listdir\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("early")
    try:
        for _ in range(2):
            with record("held", store=tmp_path / "store") as run:
                importlib.import_module("late")
            (said,) = [said for said in run.warnings if "early" in said or "late" in said]
            assert said.startswith(
                "early has os.listdir, os.system under names of its own, imported before the first run"
            )
        del sys.modules["early"]
        sys.modules["another"] = types.ModuleType("another")  # as many modules as before
        with record("held", store=tmp_path / "store") as run:
            pass
        assert not [said for said in run.warnings if "early" in said]
    finally:
        for name in ("early", "late", "another"):
            sys.modules.pop(name, None)


def test_a_socket_of_multiprocessing_has_advice_of_its_own() -> None:
    """A Manager and the fork server listen in a directory of their own, of another name each time: nobody could allow that host."""
    address = multiprocessing.connection.arbitrary_address("AF_UNIX")
    with socket.socket(socket.AF_UNIX) as listener, Guard(), pytest.raises(LiveCallBlockedError) as blocked:
        listener.bind(address)
    assert "imports tracekit, so that they join the run; a Manager is not" in str(blocked.value)
    assert "allow_hosts" not in str(blocked.value)
