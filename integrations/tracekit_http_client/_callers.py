"""The libraries above ``http.client``, which know whether their caller gets an answer piece by piece.

An answer that is read whole before the caller sees it is recorded as one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from tracekit.errors import TracekitError
from tracekit.integration import Incoming, current

from ._connection import quiet

__all__ = ["botocore_send", "session_send", "urlopen"]


def _held(original: Callable[..., Any], whole: bool, args: Any, kwargs: Any) -> Any:
    held: list[Incoming] | None = [] if whole else None
    token = quiet.set(held)
    try:
        return original(*args, **kwargs)
    finally:
        quiet.reset(token)
        for incoming in held or ():
            incoming.speak()


def urlopen(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``HTTPConnectionPool.urlopen`` of urllib3."""

    @wraps(original)
    def urlopen(*args: Any, **kwargs: Any) -> Any:
        if current.get() is None or not kwargs.get(
            "preload_content", True
        ):  # otherwise its caller decides what is read
            return original(*args, **kwargs)
        return _held(original, True, args, kwargs)

    return urlopen


def session_send(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Session.send`` of requests."""
    from ._values import teach

    teach(sys.modules["requests.models"])

    @wraps(original)
    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        if current.get() is None:
            return original(self, request, **kwargs)
        return _held(original, not kwargs.get("stream", self.stream), (self, request), kwargs)

    return send


def botocore_send(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``URLLib3Session.send`` of botocore, which turns every exception into an ``HTTPClientError``, including
    tracekit's."""

    @wraps(original)
    def send(self: Any, request: Any) -> Any:
        if current.get() is None:
            return original(self, request)
        try:
            return _held(original, not request.stream_output, (self, request), {})
        except Exception as error:
            cause = error.__context__
            if isinstance(cause, TracekitError) and isinstance(cause, Exception) and error is not cause:
                raise cause from None
            raise

    return send
