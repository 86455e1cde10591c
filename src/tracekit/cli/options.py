"""The options and arguments that several commands have, each defined once."""

from __future__ import annotations

import os
import shlex
from typing import Final

import click

__all__ = ["COMMAND", "JSON", "JSON_LINES", "QUICK", "READ_STORE", "STORE"]


def _directory(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A store, if one is named: not a file, and not nothing, which would silently be the default one."""
    if value == "":
        raise click.BadParameter("it is empty: an unset variable? Leave the option out for the default store")
    if value is not None and os.path.isfile(value):
        raise click.BadParameter(
            f"{value} is a file, and a store is a directory; a trace is named as RUN: tracekit show {shlex.quote(value)}"
        )
    return value


#: The store in which a command records or changes runs, and the one that it only reads.
STORE: Final = click.option(
    "--store",
    metavar="DIR",
    callback=_directory,
    help="The directory of runs (default: TRACEKIT_DIR, .tracekit).",
)
READ_STORE: Final = click.option(
    "--store",
    metavar="DIR",
    callback=_directory,
    help="The directory of runs, or its URL (default: TRACEKIT_DIR, .tracekit).",
)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
JSON_LINES: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
#: For a command that verifies every run of a store otherwise.
QUICK: Final = click.option(
    "--quick", is_flag=True, help="Read only the last line of runs that have ended; damage before it is not seen."
)
#: A program with its arguments.
COMMAND: Final = click.argument("command", nargs=-1, type=click.UNPROCESSED)
