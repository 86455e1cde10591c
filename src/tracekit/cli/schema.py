"""``tracekit schema``: the JSON Schemas of the trace format and of its views."""

from __future__ import annotations

import sys
from typing import Any

import click

from .._journal import schema as format_schema
from . import output

__all__ = ["schema"]


@click.command()
@click.argument("form", metavar="[FORM]", type=click.Choice(["trace", "inter-agent", "execution"]), default="trace")
def schema(form: str) -> None:
    """Print the JSON Schema (2020-12) that each line keeps to.

    FORM is "trace" (what record() writes; the default), "inter-agent" (what `tracekit export --to inter-agent` writes) or "execution" (the
    record of a routed intent).
    """
    with output.reported():
        output.emit(_load(form), pretty=sys.stdout.isatty())


def _load(form: str) -> dict[str, Any]:
    if form == "trace":
        return format_schema.load()
    from ..agents import record
    from ..agents import schema as agents_schema

    return record.schema() if form == "execution" else agents_schema.load()


def validator() -> Any:
    """A validator of entries, made by the jsonschema package; without it this ends the command, with what to install."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        output.message("Checking against the schema needs jsonschema: python -m pip install jsonschema")
        sys.exit(output.WRONG_USE)
    return Draft202012Validator(format_schema.load())
