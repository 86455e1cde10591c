"""The options and arguments that several commands have, each defined once."""

from __future__ import annotations

from typing import Final

import click

__all__ = ["COMMAND", "JSON", "JSON_LINES", "READ_STORE", "STORE"]

#: The store in which a command records or changes runs, and the one that it only reads.
STORE: Final = click.option(
    "--store",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The directory of runs (default: TRACEKIT_DIR, .tracekit).",
)
READ_STORE: Final = click.option(
    "--store", metavar="DIR", help="The directory of runs, or its URL (default: TRACEKIT_DIR, .tracekit)."
)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
JSON_LINES: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
#: A program with its arguments.
COMMAND: Final = click.argument("command", nargs=-1, type=click.UNPROCESSED)
