"""The request that opens a connection of ``websockets``, in the form that a step needs, and the exceptions of opening a connection."""

from __future__ import annotations

from typing import Any

from tracekit.integration import Answer, Exchange, begin, here, outside, raw_headers

__all__ = ["begun", "raised", "report"]


def begun(uri: str, headers: Any) -> Exchange | str | None:
    """Begin the step of a connection."""
    scheme, _, rest = uri.partition("://")
    netloc, slash, path = rest.partition("#")[0].partition("/")
    if "?" in netloc:
        netloc, mark, query = netloc.partition("?")
        slash, path = "/" + mark, query
    scope = here()
    parts = (
        "WEBSOCKET",
        scheme.lower().encode(),
        netloc.rpartition("@")[2].encode("ascii", "replace"),
        (slash + path or "/").encode("ascii", "replace"),
        raw_headers(_pairs(headers)),
        b"",
    )
    return outside(*parts) if scope is None else begin(scope, *parts, websocket=True)


def _pairs(headers: Any) -> list[tuple[str, str]]:
    if headers is None:
        return []
    if hasattr(headers, "raw_items"):
        return [*headers.raw_items()]
    return [*(headers.items() if hasattr(headers, "items") else headers)]


def report(exchange: Exchange, error: BaseException, *, suspended: bool = False) -> None:
    """Record that no connection could be opened."""
    exchange.broke(error, "raised", suspended=suspended, early="open")


def raised(answer: Answer) -> BaseException:
    return answer.error or ConnectionError(answer.text)
