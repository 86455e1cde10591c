"""``tracekit serve``: health and metrics of a store over HTTP."""

from __future__ import annotations

import re
import socket
import sys
from contextlib import suppress

import click

from .._journal.store import Store
from ..errors import RunStateError
from ..monitoring import MIN_FREE, asgi_app
from . import output

__all__ = ["serve"]

_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class _Size(click.ParamType[int]):
    """A number of bytes, as in ``500M`` or ``2Gi``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kKMGT]?i?)B?", str(value))
        unit = None if found is None else found[2].replace("K", "k").replace("ki", "Ki")
        if found is None or unit not in _UNITS:
            self.fail(f"{value!r} is no number of bytes: say 500M, or 2Gi", param, ctx)
        return int(float(found[1]) * _UNITS[unit])


@click.command()
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="The port; 0 for any that is free."
)
@click.option(
    "--min-free", metavar="SIZE", type=_Size(), default=MIN_FREE, help="Unhealthy with less free space (100M)."
)
def serve(store: str | None, host: str, port: int, min_free: int) -> None:
    """Serve /health and /metrics of a store, until it is interrupted.

    /health answers 200, or 503 with the check that failed; /metrics is for Prometheus. No prompt, answer or argument is shown, and only
    this machine is answered unless --host says otherwise. It needs the extra "metrics".
    """
    with output.reported():
        where = Store(store)
        app = asgi_app(where, min_free=min_free)
        try:
            import uvicorn
        except ModuleNotFoundError:
            raise RunStateError(
                "`tracekit serve` needs the package uvicorn, which is not installed",
                next_action="pip install 'tracekit-replay[metrics]', or mount tracekit.monitoring.asgi_app()",
            ) from None
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family)
        except OSError as error:
            raise RunStateError(
                f"{host}:{port} can't be listened on: {error.strerror or error}",
                next_action="choose another --port or --host",
            ) from None
        shown = f"[{host}]" if ":" in host else host
        output.message(f"Serving http://{shown}:{listening.getsockname()[1]}/metrics and /health of {where.root}.")
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="off"
        )
        with listening, suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            uvicorn.Server(config).run(sockets=[listening])
    sys.exit(output.RIGHT)
