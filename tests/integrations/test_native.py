"""Clients that connect below Python are refused in a replay where they are called, and named in a recording."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracekit import LiveCallBlockedError, record, replay, traced_tool
from tracekit.integration import Integration, Native, discover


def _grpc(port: int) -> object:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return channel.unary_unary("/a.B/C")(b"x", timeout=0.2)


def _grpc_stream(port: int) -> object:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return list(channel.unary_stream("/a.B/C")(b"x", timeout=0.2))


def _grpc_aio(port: int) -> object:
    import grpc

    async def call() -> object:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await channel.unary_unary("/a.B/C")(b"x", timeout=0.2)

    return asyncio.run(call())


def _psycopg(port: int) -> object:
    import psycopg

    return psycopg.connect(f"host=127.0.0.1 port={port} user=x connect_timeout=2")


def _psycopg_async(port: int) -> object:
    import psycopg

    return asyncio.run(psycopg.AsyncConnection.connect(host="127.0.0.1", port=port, user="x", connect_timeout=2))


def _psycopg2(port: int) -> object:
    import psycopg2

    return psycopg2.connect(host="127.0.0.1", port=port, user="x", connect_timeout=2)


def _pycurl(port: int) -> object:
    import pycurl

    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, f"http://127.0.0.1:{port}/")
    return handle.perform()


def _curl_cffi(port: int) -> object:
    from curl_cffi import requests

    return requests.get(f"http://127.0.0.1:{port}/")


def _curl_cffi_async(port: int) -> object:
    from curl_cffi import requests

    async def call() -> object:
        async with requests.AsyncSession() as session:
            return await session.get(f"http://127.0.0.1:{port}/")

    return asyncio.run(call())


def _primp(port: int) -> object:
    import primp

    return primp.Client().get(f"http://127.0.0.1:{port}/")


def _primp_function(port: int) -> object:
    import primp

    return primp.get(f"http://127.0.0.1:{port}/")


def _primp_async(port: int) -> object:
    import primp

    async def call() -> object:
        return await primp.AsyncClient().get(f"http://127.0.0.1:{port}/")

    return asyncio.run(call())


def _rnet(port: int) -> object:
    import rnet

    return rnet.BlockingClient().get(f"http://127.0.0.1:{port}/")


def _pyreqwest(port: int) -> object:
    from pyreqwest.client import SyncClientBuilder

    with SyncClientBuilder().build() as client:
        return client.get(f"http://127.0.0.1:{port}/").build().send()


def _pyqwest(port: int) -> object:
    import pyqwest

    return pyqwest.SyncClient().get(f"http://127.0.0.1:{port}/")


def _pyqwest_async(port: int) -> object:
    import pyqwest

    async def call() -> object:
        return await pyqwest.Client().post(f"http://127.0.0.1:{port}/", content=b"x")

    return asyncio.run(call())


def _pyqwest_transport(port: int) -> object:
    import pyqwest

    with pyqwest.SyncHTTPTransport() as transport:
        return transport.execute_sync(pyqwest.SyncRequest("GET", f"http://127.0.0.1:{port}/"))


def _impit(port: int) -> object:
    import impit

    return impit.Client().get(f"http://127.0.0.1:{port}/")


def _impit_function(port: int) -> object:
    import impit

    return impit.get(f"http://127.0.0.1:{port}/")


def _hf_xet(port: int) -> object:
    import hf_xet

    return hf_xet.XetSession().new_file_download_group(
        endpoint=port
    )  # which it refuses itself: it would try for minutes


def _obstore(port: int) -> object:
    import obstore
    from obstore.store import HTTPStore, MemoryStore

    within = MemoryStore()
    obstore.put(within, "x", b"x")
    assert bytes(within.get("x").bytes()) == b"x"
    store = HTTPStore.from_url(
        f"http://127.0.0.1:{port}/", client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    return store.get("x")


def _zmq(port: int) -> object:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR) as here, context.socket(zmq.PAIR) as there:
        here.bind("inproc://within")
        there.connect("inproc://within")
        there.send(b"x")
        assert here.recv() == b"x"
        with context.socket(zmq.REQ) as out:
            out.linger = 0
            out.connect(f"tcp://127.0.0.1:{port}")
            return out.recv(zmq.NOBLOCK)


#: By client: the module, and a call that fails where nobody listens.
CLIENTS: dict[str, tuple[str, Callable[[int], object]]] = {
    "grpc": ("grpc", _grpc),
    "grpc, a stream": ("grpc", _grpc_stream),
    "grpc.aio": ("grpc", _grpc_aio),
    "psycopg": ("psycopg", _psycopg),
    "psycopg, async": ("psycopg", _psycopg_async),
    "psycopg2": ("psycopg2", _psycopg2),
    "pycurl": ("pycurl", _pycurl),
    "curl_cffi": ("curl_cffi", _curl_cffi),
    "curl_cffi, async": ("curl_cffi", _curl_cffi_async),
    "primp": ("primp", _primp),
    "primp, a function": ("primp", _primp_function),
    "primp, async": ("primp", _primp_async),
    "rnet": ("rnet", _rnet),
    "pyreqwest": ("pyreqwest", _pyreqwest),
    "pyqwest": ("pyqwest", _pyqwest),
    "pyqwest, async": ("pyqwest", _pyqwest_async),
    "pyqwest, by its transport": ("pyqwest", _pyqwest_transport),
    "impit": ("impit", _impit),
    "impit, a function": ("impit", _impit_function),
    "hf_xet": ("hf_xet", _hf_xet),
    "obstore, but for what stays in the process": ("obstore", _obstore),
    "pyzmq, but for what stays in the process": ("zmq", _zmq),
}


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def boundary(path: str) -> list[dict[str, Any]]:
    return [one for line in Path(path).read_bytes().splitlines() if (one := json.loads(line))["type"] == "boundary"]


def _noted(run: Any) -> list[str]:
    """What the run says of its boundary; of SDKs that other tests have imported it says something, too."""
    return [one for one in run.warnings if "not captured" in one and "none of its calls" not in one]


@pytest.mark.parametrize("name", CLIENTS)
def test_it_is_named_where_it_is_called_and_refused_in_a_replay(name: str, port: int) -> None:
    """A recording lets such a call through and names its line; a replay raises before anything is reached, unless the
    host is allowed."""
    module, call = CLIENTS[name]
    pytest.importorskip(module)

    def program() -> None:
        with pytest.raises(Exception, match=r".*"):
            call(port)

    with record("native") as run:
        program()
    (told,) = _noted(run)
    assert module in told
    entry = boundary(run.path)[0]
    assert (entry["name"], entry["input"]["status"], entry["input"]["effect"]) == ("native", "noted", True)
    assert Path(__file__).name in entry["input"]["where"]

    @traced_tool(side_effect="read_only")
    def look() -> int:
        return 1

    with record("another") as run:
        look()

    def replayed() -> None:
        with replay(run):
            look()
            call(port)

    with pytest.raises(LiveCallBlockedError) as caught:
        replayed()
    assert (caught.value.kind, Path(__file__).name in (caught.value.location or "")) == ("native", True)
    if name not in ("grpc.aio", "pyreqwest", "hf_xet"):  # their calls do not say where they go
        with replay(run, allow_hosts=["127.0.0.1"]) as session:
            look()
            program()
        assert session.report.verdict.line.startswith("exact but for")


@pytest.mark.parametrize("name", CLIENTS)
def test_in_a_tool_it_is_free(name: str, port: int) -> None:
    """Inside a tool nothing is noted, as the tool's class covers the call, and the replay answers the tool."""
    module, call = CLIENTS[name]
    pytest.importorskip(module)

    @traced_tool(side_effect="irreversible", name="call")
    def tool() -> str:
        try:
            call(port)
        except Exception:
            return "refused"
        return "made"

    with record("native") as run:
        assert tool() == "refused"
    assert (_noted(run), boundary(run.path)) == ([], [])
    with replay(run) as session:
        assert tool() == "refused"
    assert session.report.exact


def _entrances() -> list[object]:
    """What lies at each place of the table now."""
    found: list[object] = []
    for native in discover()["native"].native:
        owner: Any = sys.modules.get(native.module)
        *way, name = native.attribute.split(".")
        for step in way:
            owner = getattr(owner, step, None)
        found.append(vars(owner).get(name) if owner is not None else None)
    return found


def test_everything_is_as_it_was_when_the_last_run_has_ended() -> None:
    """After the last run no replaced function is left in a client, in Python's sockets, or in copies of them."""
    for module in {module for module, _ in CLIENTS.values()}:
        pytest.importorskip(module)
    before, sockets = _entrances(), dict(vars(socket.socket))
    assert sum(one is not None for one in before) > 15
    with record("a"):
        assert any(now is not then for now, then in zip(_entrances(), before, strict=True))
        with record("b", nested="link"):
            pass
    assert all(now is then for now, then in zip(_entrances(), before, strict=True))
    assert dict(vars(socket.socket)) == sockets
    assert copy.deepcopy([1]) == [1]


def test_a_client_that_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is watched from its import on; attributes that it lacks are skipped, and an unreadable target is shown
    by name."""
    made = types.ModuleType("acme_db")
    exec("class Client:\n    def ask(self): return 1\n    @classmethod\n    def open(cls): return cls()\n", vars(made))

    def broken(args: Any, kwargs: Any) -> object:
        raise KeyError

    integration = Integration(
        "acme",
        native=[
            Native("acme_db", "Client.ask", broken, keeps=True),
            Native("acme_db", "Client.open"),
            Native("acme_db", "Client.gone"),
            Native("acme_db", "Nobody.here"),
        ],
    )
    monkeypatch.setitem(discover(), "acme", integration)
    monkeypatch.setitem(sys.modules, "acme_db", made)
    client: Any = vars(made)["Client"]

    class Derived(client):  # type: ignore[misc]
        pass

    with record("acme") as run:
        found = Derived.open()
        assert type(found) is Derived
        assert [found.ask() for _ in range(3)] == [1, 1, 1]
    noted = [(one["input"]["operation"], one["input"]["target"]) for one in boundary(run.path)]
    assert noted == [("acme_db.Client.open", "acme_db to acme_db"), ("acme_db.Client.ask", "acme_db to acme_db")]
    last = json.loads(Path(run.path).read_bytes().splitlines()[-1])
    assert [one["count"] for one in last["meta"]["boundary"].values()] == [1, 1]  # of a client the first call alone
    assert vars(client)["ask"].__qualname__ == "Client.ask"
    assert not hasattr(vars(client)["ask"], "__wrapped__")
