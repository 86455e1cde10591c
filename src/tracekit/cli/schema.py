"""``tracekit schema``: the JSON Schema of the trace format."""

from __future__ import annotations

import sys
from typing import Any

import click

from .._journal import schema as format_schema
from . import output

__all__ = ["schema"]


@click.command()
def schema() -> None:
    """Print the JSON Schema (2020-12) that each line of a trace keeps to."""
    with output.reported():
        output.emit(format_schema.load(), pretty=sys.stdout.isatty())


def validator() -> Any:
    """A validator of entries, made by the jsonschema package; without it this ends the command, with what to install."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        output.message("Checking against the schema needs jsonschema: python -m pip install jsonschema")
        sys.exit(output.WRONG_USE)
    return Draft202012Validator(format_schema.load())
