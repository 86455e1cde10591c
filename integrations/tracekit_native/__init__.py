"""Clients that connect below Python: the functions by which Python code calls them.

A replay refuses such a call, a recording names it. Clients whose sockets are Python's own (asyncpg, redis) need no line
here.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tracekit.integration import Integration, Native

__all__ = ["integration"]


def _address(host: object, port: object) -> object:
    """Return ``(host, port)``, only a name if there is no port, or nothing."""
    text = host.decode() if isinstance(host, bytes) else host
    if not text:
        return None
    number = int(port) if isinstance(port, (int, str, bytes)) and str(port) else None
    return (text, number) if number is not None else text


def _loaded(name: str) -> Any:
    """Return a module of the client that is being called; nothing is imported for that."""
    return sys.modules[name]


def _grpc(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """Return the target of the channel (``localhost:50051``, ``dns:///host:443``), else the method that is called."""
    target = getattr(args[0], "_target", None)
    if isinstance(target, bytes):
        host, _, port = target.decode().rpartition("/")[2].rpartition(":")
        if port.isdigit():
            return host.strip("[]"), int(port)
        return target.decode()
    method = getattr(args[0], "_method", None)
    return method.decode() if isinstance(method, bytes) else method


def _empty(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """Return an empty message as the answer of a unary call, in the form that grpc uses internally."""
    found = _loaded("grpc._channel")._RPCState((), (), (), _loaded("grpc").StatusCode.OK, "")
    found.response = args[0]._response_deserializer(b"") if args[0]._response_deserializer else b""
    return found, None


def _conninfo(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    conninfo = args[1] if len(args) > 1 else kwargs.get("conninfo", "")
    about = _loaded("psycopg.conninfo").conninfo_to_dict(conninfo)
    return _address(about.get("host") or about.get("hostaddr"), about.get("port") or 5432)


def _connected(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    return _address(args[0].pgconn.host, args[0].pgconn.port)


def _dsn(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    about = _loaded("psycopg2.extensions").parse_dsn(args[0] if args else kwargs.get("dsn", ""))
    return _address(about.get("host") or about.get("hostaddr"), about.get("port") or 5432)


def _cursor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    info = args[0].connection.info
    return _address(info.host, info.port)


def _curl(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    return _of_url(args[0].getinfo(_loaded("pycurl").EFFECTIVE_URL))


def _curl_cffi(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    curl = args[0] if hasattr(args[0], "getinfo") else args[1]
    found = curl.getinfo(_loaded("curl_cffi").CurlInfo.EFFECTIVE_URL)
    return _of_url(found.decode() if isinstance(found, bytes) else found)


def _url(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """Return the first argument that is an address."""
    return next((_of_url(one) for one in [kwargs.get("url"), *args] if isinstance(one, str) and "://" in one), None)


def _request(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    return _of_url((args[1] if len(args) > 1 else kwargs["request"]).url)


def _store(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """Return the address of an object store, or its kind."""
    store = args[0] if args else kwargs["store"]
    url = getattr(store, "url", None)
    return _of_url(url) if isinstance(url, str) else type(store).__name__


def _in_this_machine(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return _store(args, kwargs) in ("LocalStore", "MemoryStore")


def _of_url(text: str) -> object:
    from urllib.parse import urlsplit

    url = urlsplit(text)
    return _address(url.hostname, url.port or _PORTS.get(url.scheme))


def _connection_string(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    text = args[0] if args else ""
    about = dict(part.partition("=")[::2] for part in str(text).lower().split(";"))
    return kwargs.get("server") or about.get("server") or about.get("dsn")


def _interpreter(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    return "a sub-interpreter"


def _zmq(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    text = _endpoint(args, kwargs)
    return _of_url(text) if text.startswith("tcp:") else text


def _within_the_process(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return _endpoint(args, kwargs).startswith("inproc:")


def _endpoint(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    found = args[1] if len(args) > 1 else kwargs.get("addr", "")
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_METHODS = ("request", "get", "head", "options", "delete", "post", "put", "patch")
_PYQWEST = ("get", "post", "delete", "head", "options", "patch", "put", "execute", "stream")
_IMPIT = ("get", "post", "delete", "head", "options", "patch", "put", "trace", "stream", "request")
_PSYCOPG2 = ("execute", "executemany", "callproc", "copy_from", "copy_to", "copy_expert")

integration = Integration(
    "native",
    native=(
        Native("grpc._channel", "_UnaryUnaryMultiCallable._blocking", _grpc, nothing=_empty),
        Native("grpc._channel", "_UnaryUnaryMultiCallable.future", _grpc),
        *(Native("grpc._channel", f"_StreamUnaryMultiCallable.{name}", _grpc) for name in ("_blocking", "future")),
        Native("grpc._channel", "_UnaryStreamMultiCallable.__call__", _grpc),
        Native("grpc._channel", "_SingleThreadedUnaryStreamMultiCallable.__call__", _grpc),
        Native("grpc._channel", "_StreamStreamMultiCallable.__call__", _grpc),
        *(
            Native("grpc.aio._channel", f"{kind}MultiCallable.__call__", _grpc)
            for kind in ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")
        ),
        Native("psycopg", "BaseConnection._connect_gen", _conninfo),  # below `connect`, which is imported by name
        *(Native("psycopg", f"{kind}.wait", _connected, keeps=True) for kind in ("Connection", "AsyncConnection")),
        Native("psycopg2", "_connect", _dsn),
        *(Native("psycopg2.extensions", f"cursor.{name}", _cursor, keeps=True) for name in _PSYCOPG2),
        *(Native("pycurl", f"Curl.{name}", _curl) for name in ("perform", "perform_rb", "perform_rs")),
        *(Native("pycurl", f"CurlMulti.{name}") for name in ("perform", "socket_action")),
        Native("curl_cffi.curl", "Curl.perform", _curl_cffi),
        Native("curl_cffi.aio", "AsyncCurl.add_handle", _curl_cffi),
        # HTTP clients that are written in Rust.
        *(Native("primp", name, _url) for name in _METHODS),
        *(Native("primp", f"{kind}.{name}", _url) for kind in ("Client", "AsyncClient") for name in _METHODS),
        *(Native("rnet", name, _url) for name in (*_METHODS, "trace", "websocket")),
        *(
            Native("rnet", f"{kind}.{name}", _url)
            for kind in ("Client", "BlockingClient")
            for name in (*_METHODS, "trace", "websocket")
        ),
        *(Native("pyreqwest._pyreqwest", f"request.{kind}ConsumedRequest.send") for kind in ("", "Sync")),
        *(
            Native("pyreqwest._pyreqwest", f"request.{kind}StreamRequest.__{name}__")
            for kind, name in (("", "aenter"), ("Sync", "enter"))
        ),
        *(Native("pyqwest._pyqwest", f"{kind}Client.{name}", _url) for kind in ("", "Sync") for name in _PYQWEST),
        Native("pyqwest._pyqwest", "HTTPTransport.execute", _request),
        Native("pyqwest._pyqwest", "SyncHTTPTransport.execute_sync", _request),
        *(Native("impit", f"{kind}Client.{name}", _url) for kind in ("", "Async") for name in _IMPIT),
        *(Native("impit", name, _url) for name in _IMPIT if name != "request"),
        # Downloads from the Hugging Face hub, and to it.
        *(Native("hf_xet", name) for name in ("download_files", "upload_files", "upload_bytes")),
        *(
            Native("hf_xet", f"XetSession.new_{name}")
            for name in ("file_download_group", "download_stream_group", "upload_commit")
        ),
        # Object stores.
        *(
            Native("obstore", f"{name}{kind}", _store, inside=_in_this_machine)
            for name in (
                "copy",
                "delete",
                "get",
                "get_range",
                "get_ranges",
                "head",
                "list_with_delimiter",
                "open_reader",
                "put",
                "rename",
            )
            for kind in ("", "_async")
        ),
        Native("obstore", "list", _store, inside=_in_this_machine),
        # Databases and queues.
        Native("pyodbc", "connect", _connection_string),
        *(Native("pyodbc", f"Cursor.{name}", keeps=True) for name in ("execute", "executemany")),
        *(
            Native("confluent_kafka.cimpl", f"Producer.{name}", keeps=True)
            for name in ("produce", "produce_batch", "flush")
        ),
        *(
            Native("confluent_kafka.cimpl", f"Consumer.{name}", keeps=True)
            for name in ("subscribe", "assign", "poll", "consume")
        ),
        *(
            Native("zmq.sugar.socket", f"Socket.{name}", _zmq, inside=_within_the_process)
            for name in ("connect", "bind")
        ),
        *(Native("temporalio.bridge.client", f"Client.{name}") for name in ("connect", "call")),
        # A sub-interpreter has modules of its own, in which nothing is captured: what it does is unknown.
        Native("_xxsubinterpreters", "run_string", _interpreter),
        *(Native("_interpreters", name, _interpreter) for name in ("exec", "run_string", "run_func", "call")),
    ),
)
