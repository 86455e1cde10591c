"""Requests and responses of ``httpx`` as values: attributes of exceptions (``HTTPStatusError.response``), or results of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tracekit.integration import Answer, body_not_kept, message, raw_headers, register_codec, shown

if TYPE_CHECKING:
    from ._library import Library

__all__ = ["teach"]


def teach(library: Library, name: str) -> None:
    """Record requests, responses and headers of ``library`` anywhere in a value, without credentials; also its URLs and
    queries, whose secrets the run's redactor replaces.

    The body of a request is not kept; of a response, the part that has been read.
    """
    unkept = _unkept(library)

    def encode_request(request: Any) -> dict[str, Any]:
        return {
            **message(None, request.headers.raw, None),
            "method": request.method,
            "url": shown(str(request.url)),
        }

    def request(recorded: dict[str, Any]) -> Any:
        headers = Answer.of_message(recorded).headers
        return library.Request(recorded["method"], recorded["url"], headers=headers, stream=unkept())

    def encode_response(response: Any) -> dict[str, Any]:
        headers = response.headers.raw
        return {
            **message(response.status_code, headers, getattr(response, "_content", None)),
            **library.also(response, headers),
            "elapsed": library.elapsed(response),
            "request": getattr(response, "_request", None),
            **({"history": response.history} if response.history else {}),
        }

    def response(recorded: dict[str, Any]) -> Any:
        answer = Answer.of_message(recorded)
        stream = library.ByteStream(answer.content) if answer.read else unkept()
        made = library.response(answer, recorded["request"], stream)
        made.history = recorded.get("history", [])
        if answer.read:
            made.read()
            library.was_read(made, answer)
        if recorded["elapsed"] is not None:
            made.elapsed = timedelta(seconds=recorded["elapsed"])
        return made

    def headers(recorded: Any) -> Any:
        return library.module.Headers(raw_headers(Answer.of_message({"headers": recorded}).headers))

    query = library.module.QueryParams
    register_codec(
        library.module.Headers, f"{name}.Headers", lambda value: message(None, value.raw, None)["headers"], headers
    )
    register_codec(query, f"{name}.QueryParams", lambda value: value.multi_items(), query)
    register_codec(library.module.URL, f"{name}.URL", str, library.module.URL)
    register_codec(library.Request, f"{name}.Request", encode_request, request)
    register_codec(library.Response, f"{name}.Response", encode_response, response)


def _unkept(library: Library) -> Any:
    class Unkept(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """A body that is not in the trace: reading it raises an error."""

        def __iter__(self) -> Iterator[bytes]:
            raise body_not_kept()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self:
                yield piece

    return Unkept
