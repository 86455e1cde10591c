"""``tracekit serve``: health and metrics of a store over HTTP."""

from __future__ import annotations

import signal
import socket
import sys

import click

from .._capture.inputs import bytes_of
from ..errors import RunStateError
from ..monitoring import asgi_app
from . import output
from .options import STORE

__all__ = ["serve"]


@click.command()
@STORE
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="The port; 0 for any free one."
)
@click.option(
    "--min-free", metavar="SIZE", default="100M", show_default=True, help="Unhealthy with less free space than this."
)
def serve(store: str | None, host: str, port: int, min_free: str) -> None:
    """Serve /health and /metrics of a store, until it is interrupted.

    /health answers 200, or 503 with the check that failed; /metrics is for Prometheus. No prompt, answer or argument is shown. It
    listens on this machine only, unless --host says otherwise. It needs the extra "metrics".

    \b
    Examples:
      tracekit serve --store /var/lib/agents/.tracekit
      curl http://127.0.0.1:9464/health
    """
    try:
        least = bytes_of(min_free)
    except ValueError as error:
        raise click.UsageError(f"--min-free: {error}") from None
    with output.reported():
        where = output.local(store)
        app = asgi_app(where, min_free=least)
        try:
            import uvicorn
        except ModuleNotFoundError:
            raise RunStateError(
                "`tracekit serve` needs the package uvicorn, which is not installed",
                next_action="pip install prometheus-client uvicorn, or mount tracekit.monitoring.asgi_app()",
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
        server = uvicorn.Server(config)

        def end(*_: object) -> None:
            server.should_exit = True

        # Ctrl-C is how it ends, also before uvicorn has its own handler and after it has given that up.
        before = signal.signal(signal.SIGINT, end)
        try:
            with listening:
                server.run(sockets=[listening])
        finally:
            signal.signal(signal.SIGINT, before)
    sys.exit(output.RIGHT)
