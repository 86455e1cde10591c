"""Requests and responses of ``requests`` as values: attributes of exceptions (``HTTPError.response``), or results of tools."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie
from types import ModuleType
from typing import Any

from tracekit.integration import Answer, body_not_kept, message, raw_headers, register_codec, shown

__all__ = ["teach"]


def teach(models: ModuleType) -> None:
    """Record requests and responses of ``requests.models`` anywhere in a value, without credentials.

    Of a response, the body that has been read is kept; of a request, a body that is text or bytes.
    """

    def encode_request(request: Any) -> dict[str, Any]:
        body = request.body if isinstance(request.body, str | bytes) else None
        content = body.encode() if isinstance(body, str) else body
        return {
            **message(None, raw_headers(request.headers or {}), content),
            "method": request.method,
            "url": _url(request.url),
            **({"text": True} if isinstance(body, str) else {}),
        }

    def decode_request(recorded: dict[str, Any]) -> Any:
        answer = Answer.of_message(recorded)
        request = models.PreparedRequest()
        request.method, request.url = recorded["method"], recorded["url"]
        request.headers = models.CaseInsensitiveDict(answer.headers)
        if answer.read and answer.content is not None:
            request.body = answer.content.decode() if "text" in recorded else answer.content
        return request

    def encode_response(response: Any) -> dict[str, Any]:
        content = None if response._content is False else response._content or b""
        coding = {
            name: response.headers[name] for name in ("content-encoding", "content-length") if name in response.headers
        }
        return {
            **message(response.status_code, raw_headers(response.headers), content),
            "url": _url(response.url),
            "reason": response.reason,
            "encoding": response.encoding,
            "elapsed": response.elapsed.total_seconds(),
            "request": response.request,
            **({"coding": coding} if "content-encoding" in coding else {}),
            **({"history": response.history} if response.history else {}),
        }

    def decode_response(recorded: dict[str, Any]) -> Any:
        answer = Answer.of_message(recorded)
        response = models.Response()
        response.status_code = answer.status
        response.headers = models.CaseInsensitiveDict(_joined(answer.headers) | recorded.get("coding", {}))
        for name, value in _cookies(value for name, value in answer.headers if name == "set-cookie"):
            response.cookies.set(name, value)
        response.url, response.reason, response.encoding = recorded["url"], recorded["reason"], recorded["encoding"]
        response.elapsed = timedelta(seconds=recorded["elapsed"])
        response.request, response.history = recorded["request"], recorded.get("history", [])
        if answer.read:
            response._content, response._content_consumed = answer.content, True
        else:
            response.raw = _Unkept()
        return response

    register_codec(models.PreparedRequest, "requests.PreparedRequest", encode_request, decode_request)
    register_codec(models.Response, "requests.Response", encode_response, decode_response)


def _url(url: str | None) -> str | None:
    return None if url is None else shown(url)


def _joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers by name; a repeated one with its values joined, as urllib3 does it."""
    joined: dict[str, str] = {}
    for name, value in headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _cookies(headers: Iterable[str]) -> Iterable[tuple[str, str]]:
    for header in headers:
        try:
            yield from ((name, morsel.value) for name, morsel in SimpleCookie(header).items())
        except CookieError:  # what is not a cookie to Python is none to requests
            continue


class _Unkept:
    """A body that is not in the trace: reading it raises an error."""

    def read(self, *args: Any, **kwargs: Any) -> bytes:
        raise body_not_kept()

    stream = read

    def close(self) -> None:
        pass
