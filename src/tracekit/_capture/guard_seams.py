"""The seams for what raises no audit event.

Sending on a connection that was open before the replay, listening and accepting, multiprocessing's own way to start a
process, named pipes, and uvloop, which connects, resolves and spawns below Python. They are in place while a guard is
engaged, and taken away exactly. asyncio's look-ups are caught where the program asks, since the thread that
makes them knows neither the caller nor its context.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, Final

from .guard_attempts import Attempt, Kind, descriptor, peer, thread_start
from .guard_hosts import numeric

__all__ = ["asking", "use"]

Check = Callable[[Attempt | None], None]
Note = Callable[[object, Iterable[object]], None]
Make = Callable[[Any], Any]

_MISSING: Final = object()
#: Functions below a seam that ask by themselves, since they know of processes that may be started.
asking: Final[set[Any]] = set()


class _Seam:
    """One attribute exchanged; restored to what was found, "nothing" included, unless someone has put theirs on top."""

    __slots__ = ("found", "mine", "name", "owner")

    def __init__(self, owner: Any, name: str, make: Make) -> None:
        self.owner: Final = owner
        self.name: Final = name
        self.found = vars(owner).get(name, _MISSING)
        self.mine = make(getattr(owner, name))
        setattr(owner, name, self.mine)

    def restore(self) -> None:
        if vars(self.owner).get(self.name) is not self.mine:
            return
        if self.found is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.found)


_live: list[_Seam] = []
_files: list[_Seam] = []
_acts: list[_Seam] = []
#: Functions that write to a descriptor, and which argument that is.
_WRITERS: Final = {
    "write": 0, "writev": 0, "pwrite": 0, "pwritev": 0, "sendfile": 0, "splice": 1, "copy_file_range": 1,
}  # fmt: skip
_waiting_for_uvloop = False


def use(check: Check, note: Note, *, live: bool, files: bool, acts: bool) -> None:
    """Have the seams for live operations, for files and for acts in place, or not. ``note`` learns what look-ups gave."""
    if live and not _live:
        _live.extend(_Seam(*seam) for seam in _live_seams(check, note))
        _await_uvloop(check, note)
    if files and not _files:
        _files.extend(_Seam(os, name, _pipe(check, name)) for name in ("mkfifo", "mknod") if hasattr(os, name))
    if acts and not _acts:
        names = [name for name in _WRITERS if hasattr(os, name)]
        _acts.extend(_Seam(os, name, _writing(check, name)) for name in names)
        if sys.version_info < (3, 12):  # later ones tell it by an event
            _acts.extend(_Seam(owner, name, _starting(check)) for owner, name in _thread_starts())
    for wanted, seams in ((live, _live), (files, _files), (acts, _acts)):
        while seams and not wanted:
            seams.pop().restore()


def _live_seams(check: Check, note: Note) -> Iterable[tuple[Any, str, Make]]:
    import _socket
    import socket
    from asyncio.base_events import BaseEventLoop

    for name in ("send", "sendall", "sendfile"):
        yield socket.socket, name, _on_socket(check, "send", name)
    for name in ("listen", "accept"):
        yield socket.socket, name, _on_socket(check, "listen", name)
    if "ssl" in sys.modules:  # else no such connection is open
        for name in ("send", "write"):
            yield sys.modules["ssl"].SSLSocket, name, _on_socket(check, "send", name)
    yield _socket, "getaddrinfo", _noting(note, lambda found: (entry[4] for entry in found))
    yield socket, "gethostbyname", _noting(note, lambda found: (found,))
    yield socket, "gethostbyname_ex", _noting(note, lambda found: found[2])
    yield BaseEventLoop, "getaddrinfo", _asyncio_lookup(check)
    if "_posixsubprocess" in sys.modules:
        yield sys.modules["_posixsubprocess"], "fork_exec", _fork_exec(check)
    if "uvloop" in sys.modules:
        yield from _uvloop_seams(sys.modules["uvloop"], check, note)


def _on_socket(check: Check, kind: Kind, name: str) -> Make:
    def make(original: Any) -> Any:
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            target = peer(self) if kind == "send" else self.getsockname()
            if target:
                check(Attempt(kind, f"socket.{name}", target))
            return original(self, *args, **kwargs)

        guarded.__name__ = name
        return guarded

    return make


def _noting(note: Note, addresses: Callable[[Any], Iterable[object]]) -> Make:
    def make(original: Any) -> Any:
        def looked_up(host: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(host, *args, **kwargs)
            note(host, addresses(found))
            return found

        return looked_up

    return make


def _asyncio_lookup(check: Check) -> Make:
    def make(original: Any) -> Any:
        async def getaddrinfo(
            self: Any, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
        ) -> Any:
            import socket

            _check_name(check, host, "loop.getaddrinfo")
            if self.__class__.getaddrinfo is not getaddrinfo:  # a loop with its own resolver
                return await original(self, host, port, family=family, type=type, proto=proto, flags=flags)
            # As asyncio does it, but in the caller's context, so that what was allowed here is allowed there.
            ask = copy_context().run
            return await self.run_in_executor(None, ask, socket.getaddrinfo, host, port, family, type, proto, flags)

        return getaddrinfo

    return make


def _check_name(check: Check, host: Any, operation: str) -> None:
    if not numeric(host):
        check(Attempt("lookup", operation, host))


def _fork_exec(check: Check) -> Make:
    def make(original: Any) -> Any:
        def fork_exec(args: Any, *rest: Any) -> Any:
            check(Attempt("process", "_posixsubprocess.fork_exec", args[0] if args else ""))
            return original(args, *rest)

        return fork_exec

    return make


def _pipe(check: Check, name: str) -> Make:
    def make(original: Any) -> Any:
        def guarded(path: Any, *args: Any, **kwargs: Any) -> Any:
            check(Attempt("file", f"os.{name}", os.fspath(path)))
            return original(path, *args, **kwargs)

        guarded.__name__ = name
        return guarded

    return make


def _thread_starts() -> Iterable[tuple[Any, str]]:
    import _thread
    import threading

    return ((_thread, "start_new_thread"), (_thread, "start_new"), (threading, "_start_new_thread"))


def _starting(check: Check) -> Make:
    def make(original: Any) -> Any:
        def start_new_thread(*args: Any) -> Any:
            check(thread_start(args))
            return original(*args)

        return start_new_thread

    return make


def _writing(check: Check, name: str) -> Make:
    at = _WRITERS[name]

    def make(original: Any) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            check(descriptor(f"os.{name}", args[at] if len(args) > at else None))
            return original(*args, **kwargs)

        guarded.__name__ = name
        return guarded

    return make


# -- uvloop -------------------------------------------------------------------------------------------------------


def _await_uvloop(check: Check, note: Note) -> None:
    """A program under the guard from its first line imports uvloop later."""
    global _waiting_for_uvloop
    if _waiting_for_uvloop or "uvloop" in sys.modules:
        return
    _waiting_for_uvloop = True
    from wrapt import register_post_import_hook

    def loaded(module: Any) -> None:
        if _live:
            _live.extend(_Seam(*seam) for seam in _uvloop_seams(module, check, note))

    register_post_import_hook(loaded, "uvloop")


def _uvloop_seams(uvloop: Any, check: Check, note: Note) -> Iterable[tuple[Any, str, Make]]:
    loop = getattr(uvloop, "Loop", None)
    if loop is None:  # being imported: the hook comes when it is whole
        return
    for name, before in _before(check).items():
        if hasattr(loop, name):
            yield loop, name, _first(before, note, name)


def _first(before: Callable[..., None], note: Note, name: str) -> Make:
    def make(original: Any) -> Any:
        async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            if original not in asking:
                before(*args, **kwargs)
            found = await original(self, *args, **kwargs)
            if name == "getaddrinfo":
                note(args[0] if args else kwargs.get("host"), (entry[4] for entry in found))
            return found

        guarded.__name__ = name
        return guarded

    return make


def _before(check: Check) -> dict[str, Callable[..., None]]:
    """What each of uvloop's own operations asks for, read from its arguments."""

    def connection(factory: Any, host: Any = None, port: Any = None, **more: Any) -> None:
        if host is not None:
            _check_name(check, host, "uvloop.create_connection")
            check(Attempt("connect", "uvloop.create_connection", (host, port)))

    def server(factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **more: Any) -> None:
        target = (host or "0.0.0.0", port or 0) if sock is None else sock.getsockname()
        check(Attempt("listen", "uvloop.create_server", target))

    def unix_connection(factory: Any, path: Any = None, **more: Any) -> None:
        if path is not None:
            check(Attempt("connect", "uvloop.create_unix_connection", os.fspath(path)))

    def unix_server(factory: Any, path: Any = None, *, sock: Any = None, **more: Any) -> None:
        target = os.fspath(path) if path is not None else sock.getsockname() if sock is not None else ""
        check(Attempt("listen", "uvloop.create_unix_server", target))

    def datagram(factory: Any, local: Any = None, remote: Any = None, *, sock: Any = None, **more: Any) -> None:
        local, remote = more.get("local_addr", local), more.get("remote_addr", remote)
        if sock is None:
            kind: Kind = "connect" if remote else "listen"
            check(Attempt(kind, "uvloop.create_datagram_endpoint", remote or local or ("0.0.0.0", 0)))

    def lookup(host: Any, *args: Any, **more: Any) -> None:
        _check_name(check, host, "loop.getaddrinfo")

    def reverse(sockaddr: Any, *args: Any, **more: Any) -> None:
        check(Attempt("lookup", "loop.getnameinfo", sockaddr[0]))

    def process(factory: Any, program: Any, *args: Any, **more: Any) -> None:
        text = os.fsdecode(program)
        check(Attempt("process", "uvloop.subprocess", text.split(None, 1)[0] if text.strip() else text))

    return {
        "create_connection": connection,
        "create_datagram_endpoint": datagram,
        "create_server": server,
        "create_unix_connection": unix_connection,
        "create_unix_server": unix_server,
        "getaddrinfo": lookup,
        "getnameinfo": reverse,
        "subprocess_exec": process,
        "subprocess_shell": process,
    }
