"""Requests of an MCP client session, each a step: the SDK's own code processes recorded answers like live ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tracekit.integration import Request, Spec

from ._transport import Connection, Sender, awaited

__all__ = ["request_of_dispatcher", "request_of_session"]

#: Requests that by the protocol only read, or change only what this session receives.
_READS: Final = frozenset(
    (
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tools/list",
    )
)
#: Requests that say who asks, not what is asked.
_GREETINGS: Final = frozenset(("initialize", "server/discover"))
#: Requests whose name is a part of the request, in OpenTelemetry's conventions for MCP.
_NAMED: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
#: Errors of the SDK itself, instead of an answer: timeout (with HTTP's code in the first version), connection closed.
_NO_ANSWER: Final = frozenset((408, -32001, -32000))
#: The entries of ``_meta`` for the transport and for tracing.
_PLUMBING: Final = frozenset(("baggage", "progressToken", "traceparent", "tracestate"))


def request_of_session(original: Any) -> Any:
    """Wrap ``BaseSession.send_request`` of the SDK's first major version."""

    async def send_request(self: Any, request: Any, result_type: Any, *args: Any, **kwargs: Any) -> Any:
        connection = _connection(self)
        if connection is None:
            return await original(self, request, result_type, *args, **kwargs)
        data = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        progress = args[2] if len(args) > 2 else kwargs.get("progress_callback")

        @contextmanager
        def unsent() -> Iterator[None]:
            id = self._request_id
            self._request_id = id + 1
            if progress is not None:
                self._progress_callbacks[id] = progress
            try:
                yield
            finally:
                self._progress_callbacks.pop(id, None)

        async def live() -> Any:
            return await original(self, request, _Unread, *args, **kwargs)

        raw = await _asked(connection, data["method"], data.get("params"), live, unsent)
        return result_type.model_validate(raw)

    return send_request


class _Unread:
    """Replaces the type of a result: the raw value is the result."""

    @staticmethod
    def model_validate(raw: Any) -> Any:
        return raw


def request_of_dispatcher(original: Any) -> Any:
    """Wrap ``JSONRPCDispatcher.send_raw_request`` of the second major version: every request of a session passes it."""

    async def send_raw_request(
        self: Any, method: str, params: Mapping[str, Any] | None, opts: Any = None, **kwargs: Any
    ) -> Any:
        connection = _connection(self)
        if connection is None:
            return await original(self, method, params, opts, **kwargs)
        progress = (opts or {}).get("on_progress")

        @contextmanager
        def unsent() -> Iterator[None]:
            import anyio

            id = (opts or {}).get("request_id")
            id = self._allocate_id() if id is None else id
            if progress is None:
                yield
                return
            send, receive = anyio.create_memory_object_stream[Any](1)
            pending = sys.modules["mcp.shared.jsonrpc_dispatcher"]._Pending
            self._pending[id] = pending(send=send, receive=receive, on_progress=progress)
            try:
                yield
            finally:
                self._pending.pop(id, None)
                send.close()
                receive.close()

        async def live() -> Any:
            return await original(self, method, params, opts, **kwargs)

        raw = await _asked(connection, method, params, live, unsent)
        return dict(raw) if type(raw) is dict else raw

    return send_raw_request


def _connection(session: Any) -> Connection | None:
    stream = session._write_stream
    return stream.connection if type(stream) is Sender else None


async def _asked(connection: Connection, method: str, params: Mapping[str, Any] | None, live: Any, unsent: Any) -> Any:
    """Make a request as a step; ``unsent`` is a context in which the session waits for an answer from the log."""

    sent = False

    async def call() -> Any:
        nonlocal sent
        await connection.again()
        sent = True
        return await live()

    def failed(error: BaseException) -> dict[str, Any]:
        return _failed(error, sent)

    def answered(meta: Mapping[str, Any]) -> None:
        connection.session_id = meta.get("mcp.session.id") or connection.session_id
        if method == "initialize":
            connection.greeting = params

    def info(result: Any) -> dict[str, Any]:
        about: dict[str, Any] = {}
        id = connection.current_session()
        if id is not None and id != connection.session_id:
            connection.session_id = about["mcp.session.id"] = id
        if method == "tools/call" and isinstance(result, Mapping) and result.get("isError"):
            about["error.type"] = "tool_error"
        return about

    request = _request(connection, method, dict(params or {}))
    result = await awaited(request, call, waiting=unsent, answered=answered, info=info, failed=failed)
    if method == "tools/list":
        connection.listed(result)
    return result


def _request(connection: Connection, method: str, params: dict[str, Any]) -> Request:
    """Return the request in the form that a replay compares, under OpenTelemetry's name for it."""
    info: dict[str, Any] = {"mcp.method.name": method, "network.transport": connection.network}
    asked: Any = params
    if method in _GREETINGS:
        info["params"], asked = params, {}
    elif "_meta" in params:
        meta = {key: value for key, value in params.pop("_meta").items() if not _is_plumbing(key)}
        if meta:
            params["_meta"] = meta
    name = params.get("name") if method in _NAMED else None
    if name is not None:
        info[_NAMED[method]] = name
        if not params.keys() - {"name", "arguments"}:
            asked = params.get("arguments") or {}
    spec = Spec(
        "tool", method if name is None else f"{method} {name}", side_effect=_side_effect(connection, method, name)
    )
    if method == "tools/call":
        info["gen_ai.operation.name"] = "execute_tool"
    return Request(spec, asked, info)


def _is_plumbing(key: str) -> bool:
    return key in _PLUMBING or key.startswith("io.modelcontextprotocol/")


def _side_effect(connection: Connection, method: str, tool: Any) -> str:
    """Return the class of a request. A server's claims about its tools count only if the user trusts it."""
    if method != "tools/call":
        return "read_only" if method in _READS else "irreversible"
    hints = connection.tools.get(tool, {}).get("annotations") if connection.trusted else None
    if not isinstance(hints, Mapping):
        return "irreversible"
    if hints.get("readOnlyHint") is True:
        return "read_only"
    return "reversible" if hints.get("destructiveHint") is False else "irreversible"


def _failed(error: BaseException, sent: bool) -> dict[str, Any]:
    """Return what a failure implies for the request: if the server has not answered, its effect is unknown."""
    data = getattr(error, "error", None)
    code = getattr(data, "code", None)
    about = {"error.type": str(code)} if isinstance(code, int) else {"error.type": type(error).__name__}
    if isinstance(code, int) and code not in _NO_ANSWER:
        return {**about, "rpc.response.status_code": str(code)}
    if not sent or type(error).__name__ == "ClosedResourceError":  # the server has not received it
        return about
    return {**about, "in_doubt": True}
