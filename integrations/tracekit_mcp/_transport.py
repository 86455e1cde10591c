"""Connections to MCP servers: opened as a step, and closed as one; everything below them belongs to these steps.

The SDK's transports are async generators that start a process, or open HTTP connections, and yield two streams of
messages. A session gets the streams of a ``Connection`` instead: they carry the messages of the live transport, or only
those in the log.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from inspect import signature
from math import inf
from typing import Any, Final

from tracekit.errors import ReplayError
from tracekit.integration import (
    Request,
    Scope,
    Step,
    below_seam,
    current,
    here,
    live_async,
    passing,
    perform_async,
    shown,
    trusted,
)

__all__ = ["Connection", "Sender", "awaited", "http", "sse", "stdio", "websocket"]

Info = Mapping[str, Any]

#: Names of steps that are no requests of the protocol.
OPEN: Final = "mcp/connect"
CLOSE: Final = "mcp/close"
MESSAGES: Final = "mcp/messages"
#: The id of the handshake by which a resumed run reopens a connection: one that no session uses.
_AGAIN: Final = "tracekit-resumed"


async def awaited(
    request: Request,
    call: Callable[[], Awaitable[Any]],
    *,
    began: Callable[[Step, Scope], object] | None = None,
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    answered: Callable[[Info], object] | None = None,
    info: Callable[[Any], dict[str, Any]] | None = None,
    failed: Callable[[BaseException], dict[str, Any]] | None = None,
) -> Any:
    """Make a call as a step: live by ``await call()``, else answered from the log.

    ``began`` is called before that with the step and its scope. A recorded outcome is awaited in the context
    ``waiting()``, and ``answered`` is called with its ``meta``; ``info`` (of the result) and ``failed`` (of the error)
    return additional ``meta`` of a live one.
    """
    scope = here()
    if scope is None:
        return await perform_async(request, call)
    step = scope.session.begin(scope, request)
    if step.deferred:
        step = await step.go_async()
    if began is not None:
        began(step, scope)
    if not step.live:
        with waiting():
            outcome = await step.answer_async()
        if answered is not None:
            answered(outcome.meta)
        return outcome.result()
    return await live_async(step, call(), of_result=info, of_error=failed)


# -- the streams of a session ------------------------------------------------------------------------------------------


class _Stream:
    """One of the two streams of a session: the transport's, or one that leads nowhere."""

    #: The SDK's own streams carry the context of a message's sender; here it would be the transport's.
    last_context: Final = None

    def __init__(self, connection: Connection, raw: Any) -> None:
        self.connection: Final = connection
        self._raw: Final = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def __aenter__(self) -> Any:
        await self._raw.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._raw.__aexit__(*error)


class Sender(_Stream):
    """The messages that a session sends. Its requests are steps where it waits for the answer; its own answers are
    steps here."""

    async def send(self, item: Any) -> None:
        asked = self.connection.asked_by(item)
        if asked is None:
            await self._send(item)
            return
        message = _root(item)
        result = getattr(message, "result", None)
        error = getattr(message, "error", None)
        answer = {"result": _plain(result)} if error is None else {"error": _plain(error)}
        # Its effect at the server is covered by the class of the request within which the server asks.
        request = Request.of("tool", f"mcp/answer {asked}", answer, side_effect="read_only")
        await awaited(request, lambda: self._send(item))

    async def _send(self, item: Any) -> None:
        connection = self.connection
        if not connection.opened:
            await self._raw.send(item)  # nobody reads it
            return
        with connection.transporting():
            await (connection.late or self._raw).send(item)


class Receiver(_Stream):
    """The messages that a session receives. Those that the server sends unprompted are recorded, piece by piece, and
    repeated in a replay."""

    def __init__(self, connection: Connection, raw: Any) -> None:
        super().__init__(connection, raw)
        self._step: Step | None = None
        #: The session's loop's place in the program, while it is in code that only carries answers.
        self._place: Scope | None = None

    async def aclose(self) -> None:
        self._ends(None)
        await self._raw.aclose()

    def close(self) -> None:
        self._ends(None)
        self._raw.close()

    async def __aexit__(self, *error: Any) -> Any:
        self._ends(error[1])
        return await super().__aexit__(*error)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:
        self._returns()
        recorded = await self._recorded()
        if recorded is not None:
            return recorded
        self._leaves()
        try:
            item = await self._raw.receive()
        except BaseException as error:
            self._returns()
            self._ends(error)
            raise
        if _is_own(item):
            self._returns()
            self.connection.received(item)
            self._note(item)
        return item

    def _leaves(self) -> None:
        """Leave the program's lane: receiving answers and passing them on is no progress of the program, since a replay
        has no such loop."""
        place, scope = current.get(), self.connection.scope
        if place is not None and scope is not None and place.session is scope.session:
            self._place = place
            current.set(scope)

    def _returns(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            current.set(place)

    async def _recorded(self) -> Any:
        """Return the next recorded message of the server's own, at its turn."""
        step = self._step
        if step is None:
            scope = here()
            # A session without any makes no step, so a replay looks whether the first one is due.
            if scope is None or not scope.session.comes_next(scope, "tool", MESSAGES):
                return None
            step = self._step = _begun(scope, self.connection)
        if step.live or step.deferred:
            return None
        chunk = await step.next_chunk_async()
        if chunk is None:
            self._step = None
            return await self._recorded()
        item = message_of(chunk.output)
        self.connection.received(item)
        return item

    def _note(self, item: Any) -> None:
        if self._step is None:
            scope = here()
            if scope is None or scope.session.state.ended:
                return
            step = _begun(scope, self.connection)
            self._step = step if step.live else None
        if self._step is not None:
            self._step.chunk(_plain(_root(item)), info={"suspended": True})

    def _ends(self, error: BaseException | None) -> None:
        """Complete the step when nothing receives any more."""
        step, self._step = self._step, None
        if step is not None and step.live and not isinstance(error, ReplayError):
            step.done(None, info={"abandoned": True})


def _begun(scope: Scope, connection: Connection) -> Step:
    return scope.session.begin(scope, Request.of("tool", MESSAGES, connection.about(), side_effect="read_only"))


# -- messages ----------------------------------------------------------------------------------------------------------


def _root(item: Any) -> Any:
    """Return the message itself: the SDK's first major version wraps it once more."""
    message = getattr(item, "message", item)
    return getattr(message, "root", message)


def _plain(value: Any) -> Any:
    """Return a value in its wire format."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(by_alias=True, mode="json", exclude_unset=True)


def _is_own(item: Any) -> bool:
    """Return whether the server sent it unprompted: a request or a notification."""
    return hasattr(_root(item), "method")


def message_of(data: Mapping[str, Any]) -> Any:
    """Return a message of the SDK from its wire format."""
    modern = sys.modules.get("mcp_types")
    if modern is not None:
        message = modern.jsonrpc_message_adapter.validate_python(data, by_name=False)
    else:
        message = sys.modules["mcp.types"].JSONRPCMessage.model_validate(data)
    return sys.modules["mcp.shared.message"].SessionMessage(message)


# -- connections -------------------------------------------------------------------------------------------------------


class Connection:
    """One connection to a server, live or answered from the log, and what is known about the server."""

    def __init__(self, kind: str, server: Mapping[str, Any], target: str, manager: Any) -> None:
        self.kind: Final = kind
        #: The part that a replay compares, and the text by which the user trusts it.
        self.server: Final = server
        self.target: Final = target
        self._manager: Final = manager
        #: The streams that the transport yielded; ``None`` if the log answered.
        self.streams: tuple[Any, ...] | None = None
        #: The scope of its tasks, inside the step that opened it.
        self.scope: Scope | None = None
        self.session_id: str | None = None
        self.trusted: Final = trusted(target)
        #: The server's descriptions of its tools.
        self.tools: Final[dict[str, Mapping[str, Any]]] = {}
        #: The handshake that the log answered.
        self.greeting: Mapping[str, Any] | None = None
        #: The transport's stream of a connection that a resumed run has reopened.
        self.late: Any = None
        self._back: Any = None
        self._host: asyncio.Future[None] | None = None
        self._ready: Final = asyncio.Event()
        self._requests: Final[dict[Any, str]] = {}

    @property
    def opened(self) -> bool:
        return self.streams is not None or self.late is not None

    def about(self) -> dict[str, Any]:
        return {"transport": self.kind, **self.server}

    @property
    def network(self) -> str:
        return "pipe" if self.kind == "stdio" else "tcp"

    async def open(self) -> None:
        self.streams = await self._manager.__aenter__()

    async def close(self, error: BaseException | None) -> bool:
        kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
        with passing():
            return bool(await self._manager.__aexit__(kind, error, trace))

    def began(self, step: Step, scope: Scope) -> None:
        self.scope = step.body() if step.live else scope.inside(step.seq, live=True)

    @contextmanager
    def transporting(self) -> Iterator[None]:
        """The block whose code, and what it starts, belongs to the transport."""
        scope = current.get()
        token = current.set(scope if scope is not None and scope.live else self.scope)
        try:
            with passing():
                yield
        finally:
            current.reset(token)

    # -- what is learned from what passes -----------------------------------------------------------------------------------

    def received(self, item: Any) -> None:
        """Remember the server's requests, so that answers to them are recognised."""
        message = _root(item)
        asked, id = getattr(message, "method", None), getattr(message, "id", None)
        if asked is not None and id is not None:
            self._requests[id] = asked

    def asked_by(self, item: Any) -> str | None:
        """Return the request that an outgoing message answers, or ``None``."""
        message = _root(item)
        if hasattr(message, "method"):
            return None
        return self._requests.pop(getattr(message, "id", None), None)

    def listed(self, result: Any) -> None:
        """Remember the tools that the server has listed."""
        found = result.get("tools") if isinstance(result, Mapping) else None
        for tool in found if isinstance(found, list) else ():
            if isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
                self.tools[tool["name"]] = tool

    def current_session(self) -> str | None:
        """Return the session's id, as assigned by a server over HTTP."""
        streams = self.streams
        return streams[2]() if streams is not None and len(streams) > 2 else self.session_id

    # -- live again -----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def answered(self) -> AsyncIterator[tuple[Any, ...]]:
        """Yield the streams of a connection that the log answers. They lead nowhere, unless a resumed run continues
        with it."""
        import anyio

        self._back, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, sent = anyio.create_memory_object_stream[Any](inf)
        try:
            yield incoming, outgoing
        finally:
            for stream in (self._back, incoming, outgoing, sent):
                stream.close()
            if self._host is not None:
                self._host.cancel()
                await asyncio.wait([self._host])

    async def again(self) -> None:
        """Reopen it for a request that the log does not answer: its session continues as if it had never been closed."""
        if self.opened:
            return
        if self._host is None:
            with self.transporting():
                self._host = asyncio.ensure_future(self._go_on())
                self._host.add_done_callback(lambda _: self._ready.set())
        await self._ready.wait()
        if not self.opened:
            self._host.result()  # raises the reason why it was not opened

    async def _go_on(self) -> None:
        import anyio

        async with self._manager as streams:
            incoming, outgoing = streams[0], streams[1]
            try:
                await self._greet(incoming, outgoing)
                self.late = outgoing
                self._ready.set()
                async for item in incoming:
                    await self._back.send(item)
                self._back.close()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the session has ended
            finally:  # as the session does with its own
                await incoming.aclose()
                await outgoing.aclose()

    async def _greet(self, incoming: Any, outgoing: Any) -> None:
        """Repeat the handshake of the continued session."""
        if self.greeting is None:
            return
        greeting = {"jsonrpc": "2.0", "id": _AGAIN, "method": "initialize", "params": dict(self.greeting)}
        await outgoing.send(message_of(greeting))
        while getattr(_root(await incoming.receive()), "id", None) != _AGAIN:
            pass
        await outgoing.send(message_of({"jsonrpc": "2.0", "method": "notifications/initialized"}))


def _transport(kind: str) -> Callable[[Any], Any]:
    """Return the patch of one of the SDK's transports."""

    def wrap(original: Any) -> Any:
        manager_of, bind = asynccontextmanager(original), signature(original).bind

        async def captured(*args: Any, **kwargs: Any) -> AsyncIterator[tuple[Any, ...]]:
            if below_seam():  # one transport built on another
                async with manager_of(*args, **kwargs) as streams:
                    yield streams
                return
            try:
                bound = bind(*args, **kwargs)
            except TypeError:
                manager_of(*args, **kwargs)  # raises like the original
                raise
            bound.apply_defaults()
            arguments = bound.arguments
            server, target, info = _server(kind, arguments)
            connection = Connection(kind, server, target, manager_of(*args, **kwargs))
            async with _opened(connection, info, arguments.get("on_session_created")) as streams:
                yield streams

        return captured

    return wrap


stdio, sse, http, websocket = map(_transport, ("stdio", "sse", "http", "websocket"))


def _server(kind: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return the part of a server that a replay compares, the text that names it, and what else is recorded about it."""
    if kind != "stdio":
        url = shown(str(arguments.get("url", "")))
        return {"url": url}, url, {}
    server = arguments["server"]
    args = [str(one) for one in server.args]
    # The paths of interpreters or launchers differ between machines, and the environment contains secrets.
    compared = {"command": os.path.basename(server.command), "args": args}
    info = {"command": server.command, "environment": sorted(server.env or ())}
    cwd = getattr(server, "cwd", None)
    return compared, " ".join([server.command, *args]), info if cwd is None else {**info, "cwd": str(cwd)}


@asynccontextmanager
async def _opened(
    connection: Connection, about: Mapping[str, Any], on_session: Callable[[str], object] | None
) -> AsyncIterator[tuple[Any, ...]]:
    async def live() -> None:
        with passing():
            await connection.open()

    request = Request.of("tool", OPEN, connection.about(), side_effect="read_only", info=about)
    await awaited(request, live, began=connection.began)
    ends = connection.answered() if connection.streams is None else nullcontext(connection.streams[:2])
    async with ends as (incoming, outgoing):
        try:
            yield _streams(connection, incoming, outgoing)
        except BaseException as error:
            if not await _closed(connection, error):
                raise
        else:
            await _closed(connection, None)


def _streams(connection: Connection, incoming: Any, outgoing: Any) -> tuple[Any, ...]:
    pair = (Receiver(connection, incoming), Sender(connection, outgoing))
    # In its first major version the SDK yields a third value for streamable HTTP.
    third = connection.kind == "http" if connection.streams is None else len(connection.streams) > 2
    return (*pair, connection.current_session) if third and "mcp_types" not in sys.modules else pair


async def _closed(connection: Connection, error: BaseException | None) -> bool:
    """Close it, with the error that the program's own code raised; return whether that error ends here, or raise what
    it becomes."""
    import anyio

    if isinstance(error, (ReplayError, GeneratorExit)):
        return connection.streams is not None and await connection.close(error)
    became: BaseException | None = None

    async def live() -> dict[str, Any]:
        nonlocal became
        if connection.streams is None:
            return {}
        try:
            ends = await connection.close(error)
        except BaseException as failure:
            groups = None if error is None else _groups(failure, error)
            if groups is None:
                raise
            became = failure
            return {"groups": groups}
        return {"ends": ends} if ends else {}

    request = Request.of("tool", CLOSE, connection.about(), side_effect="read_only")
    if connection.streams is not None:
        said = await awaited(request, live)
    else:
        with anyio.CancelScope(shield=True):  # the cancellation of the program must not keep the outcome out of the log
            said = await awaited(request, live)
    if became is None and error is not None and said.get("groups"):
        became = error
        for text in said["groups"]:
            became = BaseExceptionGroup(text, [became])
    if became is not None and became is not error:
        raise became from None
    return bool(said.get("ends"))


def _groups(failure: BaseException, error: BaseException) -> list[str] | None:
    """Return the exception groups that the transport's tasks have put around ``error``, the innermost first; ``None``:
    another failure."""
    texts: list[str] = []
    while failure is not error:
        if not isinstance(failure, BaseExceptionGroup) or len(failure.exceptions) != 1:
            return None
        texts.insert(0, failure.message)
        failure = failure.exceptions[0]
    return texts
