"""The transport seam of ``aiohttp``'s client: every request of a session is a step.

It is below the library's parsing and above the transport of the event loop, so that in a replay the library's own code
reads recorded bytes. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


_CONNECTION = "tracekit_aiohttp._connection"
#: What the library, and what its event loop, calls on the protocol of a connection.
_PROTOCOL = ("set_parser", "set_response_params", "_reschedule_timeout", "_on_read_timeout")
_REPORTED = (
    ("aiohttp.client_proto", "ResponseHandler.data_received"),
    ("aiohttp.client_proto", "ResponseHandler.connection_lost"),
    ("aiohttp.base_protocol", "BaseProtocol.pause_writing"),
    ("aiohttp.base_protocol", "BaseProtocol.resume_writing"),
)

integration = Integration(
    "aiohttp",
    modules=("aiohttp",),
    patches=[
        Patch("aiohttp.connector", "BaseConnector.connect", f"{_CONNECTION}:connect"),
        Patch("aiohttp.connector", "BaseConnector._release", f"{_CONNECTION}:release"),
        Patch("aiohttp.client", "ClientSession.close", f"{_CONNECTION}:close"),
        *(Patch("aiohttp.client_proto", f"ResponseHandler.{name}", f"{_CONNECTION}:{name}") for name in _PROTOCOL),
        *(Patch(module, name, "tracekit.integration:reported") for module, name in _REPORTED),
    ],
)
