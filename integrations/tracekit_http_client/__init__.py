"""The transport seam of ``http.client``: every request of ``requests``, ``urllib3``, ``botocore`` and
``urllib.request`` is a step.

It is below the parsing of these libraries and above the socket, so that in a replay their own code reads recorded
bytes: responses, redirects, cookies, retries and exceptions are created by it. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import Any

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


def _wrapped(name: str) -> Any:
    def wrap(original: Any) -> Any:
        from . import _connection

        return getattr(_connection, name)(original)

    return wrap


def _whole(name: str) -> Any:
    def wrap(original: Any) -> Any:
        from . import _callers

        return getattr(_callers, name)(original)

    return wrap


def _pool(original: Any) -> Any:
    from tracekit.integration import kept_to_itself

    return kept_to_itself(original)


#: Classes with a ``connect()`` of their own.
_CONNECTIONS = (
    ("http.client", "HTTPConnection"),
    ("http.client", "HTTPSConnection"),
    ("urllib3.connection", "HTTPConnection"),
    ("urllib3.connection", "HTTPSConnection"),
    ("httplib2", "HTTPConnectionWithTimeout"),
    ("httplib2", "HTTPSConnectionWithTimeout"),
)

integration = Integration(
    "http_client",
    modules=("requests", "urllib3", "botocore"),
    patches=[
        Patch("http.client", "HTTPConnection.putrequest", _wrapped("putrequest")),
        *(Patch(module, f"{name}.connect", _wrapped("connect")) for module, name in _CONNECTIONS),
        Patch("urllib3.util.connection", "create_connection", _wrapped("create_connection")),
        Patch("urllib3.connectionpool", "ConnectionPool.QueueCls", _pool),
        Patch("urllib3.connectionpool", "HTTPConnectionPool.urlopen", _whole("urlopen")),
        Patch("requests.sessions", "Session.send", _whole("session_send")),
        Patch("botocore.httpsession", "URLLib3Session.send", _whole("botocore_send")),
    ],
)
