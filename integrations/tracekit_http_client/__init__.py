"""The transport seam of ``http.client``: every request of ``requests``, ``urllib3``, ``botocore`` and
``urllib.request`` is a step.

It is below the parsing of these libraries and above the socket, so that in a replay their own code reads recorded
bytes: responses, redirects, cookies, retries and exceptions are created by it. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


_CONNECTION = "tracekit_http_client._connection"
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
        Patch("http.client", "HTTPConnection.putrequest", f"{_CONNECTION}:putrequest"),
        *(Patch(module, f"{name}.connect", f"{_CONNECTION}:connect") for module, name in _CONNECTIONS),
        Patch("urllib3.util.connection", "create_connection", f"{_CONNECTION}:create_connection"),
        Patch("urllib3.connectionpool", "ConnectionPool.QueueCls", "tracekit.integration:kept_to_itself"),
        Patch("urllib3.connectionpool", "HTTPConnectionPool.urlopen", "tracekit_http_client._callers:urlopen"),
        Patch("requests.sessions", "Session.send", "tracekit_http_client._callers:session_send"),
        Patch("botocore.httpsession", "URLLib3Session.send", "tracekit_http_client._callers:botocore_send"),
    ],
)
