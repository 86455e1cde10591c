"""A program that listens, and to which nobody connects while it is recorded, listens in a replay, too, and nobody reaches it."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tracekit import record, replay, traced_tool
from tracekit.errors import LiveCallBlockedError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a replay refuses to listen")

BEGIN = """
import asyncio, http.server, os, socket, sys, threading, time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(n):
    return n

async def app(scope, receive, send):
    pass

async def serve_uvicorn():
    import uvicorn
    server = uvicorn.Server(uvicorn.Config(app, port=0, loop="none", log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    look(1)
    await asyncio.sleep(0.25)
    server.should_exit = True
    await serving
    print("stopped", time.time())

async def serve_asyncio():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    beside = await asyncio.start_unix_server(lambda reader, writer: writer.close(), "here.sock")
    print([one.sockets[0].getsockname() for one in (server, beside)], look(2))
    os.chmod("here.sock", 0o600)
    async with server, beside:
        try:
            await asyncio.wait_for(server.serve_forever(), 0.1)
        except asyncio.TimeoutError:
            print("enough", time.time())
    if os.path.exists("here.sock"):
        os.unlink("here.sock")

async def serve_uvloop():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    beside = await loop.create_unix_server(asyncio.Protocol, "here.sock")
    print(len(server.sockets), beside.sockets[0].getsockname(), look(3))
    await asyncio.sleep(0.1)
    for one in (server, beside):
        one.close()
        await one.wait_closed()
    print("closed", time.time())
    if os.path.exists("here.sock"):
        os.unlink("here.sock")
"""
PROGRAMS = {
    "http.server in a thread": """
server = http.server.ThreadingHTTPServer(("", 0), http.server.BaseHTTPRequestHandler)
thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
thread.start()
print(server.server_address, server.socket.getsockname(), look(4))
time.sleep(0.2)
server.shutdown()
server.server_close()
thread.join()
print("done", time.time())
""",
    "a thread in accept": """
listener = socket.create_server(("localhost", 0))
def wait():
    try:
        print("connected", listener.accept())
    except OSError as error:
        print("closed", error)
thread = threading.Thread(target=wait)
thread.start()
print(listener.getsockname(), look(5))
time.sleep(0.1)
listener.shutdown(socket.SHUT_RDWR)
thread.join()
listener.close()
""",
    "a Unix socket with the number of the process": """
name = f"control-{os.getpid()}.sock"
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(name)
    os.chmod(name, 0o600)
    listener.listen()
    listener.settimeout(0.05)
    try:
        listener.accept()
    except TimeoutError:
        print("nobody", look(6), oct(os.stat(name).st_mode))
os.unlink(name)
""",
    "asyncio": "asyncio.run(serve_asyncio())\n",
    "uvicorn": "asyncio.run(serve_uvicorn())\n",
    "uvicorn on uvloop": "import uvloop\nuvloop.run(serve_uvicorn())\n",
    "uvloop": "import uvloop\nuvloop.run(serve_uvloop())\n",
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_listens_in_a_replay_too(name: str, place: Place) -> None:
    """Nothing is said to be lacking, and the replay is exact, in a network of its own and guarded in Python."""
    for package in ("uvicorn", "uvloop"):
        if package in name:
            pytest.importorskip(package)
    place.program(BEGIN + PROGRAMS[name])
    recording = place.cli("run", "agent.py", fresh="uv" in name)
    assert recording.returncode == 0, recording.stderr
    assert "not captured" not in recording.stderr
    answers = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert answers["can_be_replayed"]["answer"] is True, answers["can_be_replayed"]
    assert "listened" in [one["code"] for one in answers["safe_to_retry"]["reasons"]]
    for options in ([], ["--isolate", "off"]):
        replayed = place.cli("replay", "last", *options, fresh="uv" in name)
        assert (replayed.returncode, replayed.stdout) == (0, recording.stdout), replayed.stderr
        assert ": exact" in replayed.stderr
    assert not [*place.directory.glob("*.sock")]


@pytest.mark.parametrize("kind", ["TCP", "Unix", "uvloop"])
def test_where_somebody_connected_it_is_refused(kind: str, place: Place) -> None:
    """Each connection is in the log before the program gets it, and then a replay has no answer for who would connect."""
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    begin = """
import asyncio, socket, threading
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def visit(address):
    with socket.socket(socket.AF_UNIX if type(address) is str else socket.AF_INET) as visitor:
        visitor.connect(address)
"""
    plain = """
listener = socket.socket(KIND)
listener.bind(ADDRESS)
listener.listen()
visit(listener.getsockname())
print(type(listener.accept()[0]))
"""
    texts = {
        "TCP": plain.replace("KIND", "socket.AF_INET").replace("ADDRESS", "('127.0.0.1', 0)"),
        "Unix": plain.replace("KIND", "socket.AF_UNIX").replace("ADDRESS", "'here.sock'"),
        "uvloop": """
import uvloop
async def main():
    made = asyncio.get_running_loop().create_future()
    def protocol():
        made.set_result(None)
        return asyncio.Protocol()
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    await asyncio.to_thread(visit, server.sockets[0].getsockname())
    await made
    server.close()
uvloop.run(main())
""",
    }
    place.program(begin + texts[kind])
    recording = place.cli("run", "agent.py", fresh=kind == "uvloop")
    assert recording.returncode == 0, recording.stderr
    assert "not captured, and a replay will refuse it: listening on" in recording.stderr
    noted = [entry for entry in _entries(place) if entry["type"] == "boundary"]
    assert [entry["name"] for entry in noted] == ["listen", "accept"]
    assert noted[0]["input"]["target"] == noted[1]["input"]["target"]
    answers = json.loads(place.cli("show", "last", "--why", "--json").stdout)
    assert answers["can_be_replayed"]["answer"] is None
    (place.directory / "here.sock").unlink(missing_ok=True)
    replayed = place.cli("replay", "last", "--isolate", "off", fresh=kind == "uvloop")
    assert replayed.returncode == 1
    assert "was about to listen on" in replayed.stderr


def _entries(place: Place) -> list[dict[str, Any]]:
    (path,) = place.runs
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@traced_tool(side_effect="read_only")
def look(n: int) -> int:
    return n


def _tcp() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _ipv6() -> socket.socket:
    return socket.create_server(("::1", 0), family=socket.AF_INET6)


def _unix() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("here.sock")
    listener.listen()
    return listener


def _connects(listener: socket.socket) -> bool:
    """Return whether a connection to the address of a socket reaches it. (Loopback connects before this returns.)"""
    listener.setblocking(False)
    with socket.socket(listener.family) as visitor:
        visitor.setblocking(False)
        visitor.connect_ex(listener.getsockname())
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize("open_one", [_tcp, _ipv6, _unix])
def test_nobody_reaches_it(
    open_one: Callable[[], socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that a replayed program has opened takes no connection, even when the replay is over; a recorded one does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "store"))
    with record() as run, open_one() as recorded:
        address = recorded.getsockname()
        look(1)
    (tmp_path / "here.sock").unlink(missing_ok=True)
    with open_one() as control:  # the way in which this test connects reaches a socket that is open
        assert _connects(control)
    (tmp_path / "here.sock").unlink(missing_ok=True)
    with replay(run.id) as session:
        found = open_one()
        shown = found.getsockname()
        look(1)
    with found:
        assert session.report.exact
        assert shown == address
        assert not _connects(found)
        with pytest.raises(OSError):  # there is no filter that could be taken off
            found.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER


def test_an_address_in_use_is_shown_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service itself may be running where its recording is replayed: the program sees its own address all the same."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "store"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def serve() -> object:
        with socket.create_server(("127.0.0.1", port)) as listener:
            look(1)
            return listener.getsockname()

    with record() as run:
        address = serve()
    with socket.create_server(("127.0.0.1", port)) as other:
        with replay(run.id) as session:
            assert serve() == address == ("127.0.0.1", port)
        assert session.report.exact
        assert _connects(other)


def test_a_socket_that_the_recording_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that listens where it did not in the recording does something else than was recorded."""
    monkeypatch.setenv("TRACEKIT_DIR", str(tmp_path / "store"))
    with record() as run:
        look(1)
    with pytest.raises(LiveCallBlockedError), replay(run.id), socket.socket() as listener:
        listener.listen()
