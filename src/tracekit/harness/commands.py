"""``tracekit import``: a recording of another tool as a run."""

from __future__ import annotations

import click

from ..cli import output
from .agentloom import import_agentloom

__all__ = ["import_"]


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option("--run-id", metavar="ID", help="What to call the run (default: a new id).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
def import_(file: str, run_id: str | None, as_json: bool, store: str | None) -> None:
    """Make a run of FILE, a recording of agentloom (version 1 or 2).

    `tracekit list`, `show` and `verify` read it from then on, and `tracekit export --to agentloom` gives the recording back.
    """
    with output.reported():
        writer = import_agentloom(file, store, run_id=run_id)
        if as_json:
            output.emit({"run_id": writer.run_id, "path": writer.path})
        else:
            output.message(f"{writer.run_id}  {writer.path}")
